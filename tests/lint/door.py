#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the operations of the first door. Everything else that its header
declares belongs to a handle that one of them gives out, or to the store itself.

usage: door.py SOURCE-ROOT
"""
import pathlib
import re
import sys

OPERATIONS = set(
    "weight_put weight_get weight_is_exist weight_get_metadata "
    "weight_get_size weight_list weight_update_policy weight_upsert "
    "weight_migrate weight_get_operation weight_remove".split())
HANDLES = ("weight_store_", "weight_writer_", "weight_reader_",
           "weight_page_")

text = (pathlib.Path(sys.argv[1]) / "core/weight_store.h").read_text()
text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
text = re.sub(r"^#.*(?:\\\n.*)*", "", text, flags=re.M)
declared = set(re.findall(r"^[a-z][\w\s*]*?\b(\w+)\(", text, flags=re.M))
declared.discard("DEFINE_CLEANUP")
found = {name for name in declared if not name.startswith(HANDLES)}

for name in sorted(OPERATIONS - found):
    print(f"core/weight_store.h: {name}() is missing")
for name in sorted(found - OPERATIONS):
    print(f"core/weight_store.h: {name}() is none of the eleven")
sys.exit(found != OPERATIONS)
