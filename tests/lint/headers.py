#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the project's headers, one a line, relative to the source root.

Fails when an include guard does not close at the end of its file.
"""
import pathlib
import sys

root = pathlib.Path(sys.argv[1])
for folder in ("core", "fs", "transport"):
    for header in sorted((root / folder).glob("*.h")):
        if header.read_text().rstrip().splitlines()[-1] != "#endif":
            sys.exit(f"{header}: the last line is not #endif")
        print(header.relative_to(root))
