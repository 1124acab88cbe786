#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that what the READMEs name is there: the programs of the tree that
their commands call, and the files that they link to.

usage: readme.py SOURCE-ROOT
"""
import os
import pathlib
import re
import sys

PROGRAMS = re.compile(
    r"^\s*\$?\s*(?:sudo\s+)?((?:\./)?(?:tests|examples|mount-helpers|\.ci)"
    r"/[\w./-]+)")


def commands(text):
    for block in re.findall(r"```[^\n]*\n(.*?)```", text, re.S):
        yield from block.splitlines()
    yield from re.findall(r"^    (\S.*)$", text, re.M)


def errors(root, readme):
    name = readme.relative_to(root)
    text = readme.read_text()
    for line in commands(text):
        if m := PROGRAMS.match(line):
            program = root / m[1]
            if not program.is_file():
                yield f"{name}: {m[1]} is not there"
            elif not os.access(program, os.X_OK):
                yield f"{name}: {m[1]} is not executable"
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in link and not (readme.parent / link).exists():
            yield f"{name}: the link to {link} leads nowhere"


def main():
    root = pathlib.Path(sys.argv[1])
    found = []
    for readme in sorted(root.glob("*.md")) + sorted(root.glob("*/*.md")):
        if not readme.is_relative_to(root / "build"):
            found += errors(root, readme)
    print("\n".join(found))
    return bool(found)


sys.exit(main())
