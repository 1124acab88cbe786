#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that functions and files stay small enough to be read at once.

usage: size.py SOURCE-ROOT

The layout makes this easy: the braces of a function's body, and nothing else
that is counted here, stand alone in the first column.
"""
import pathlib
import sys

FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 1000
FOLDERS = ("core", "fs", "transport", "mount-helpers", "examples", "tests")


def errors(name, lines):
    if len(lines) > FILE_LINES_MAX:
        yield f"{name}: {len(lines)} lines, more than {FILE_LINES_MAX}"
    start = None
    for no, line in enumerate(lines, 1):
        if line == "{":
            start = no
        elif line.startswith("}") and start is not None:
            if no - start > FUNCTION_LINES_MAX:
                yield (f"{name}:{start}: a function of {no - start} lines, "
                       f"more than {FUNCTION_LINES_MAX}")
            start = None


def main():
    root = pathlib.Path(sys.argv[1])
    found = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.[ch]")):
            found += errors(path.relative_to(root),
                            path.read_text().splitlines())
    print("\n".join(found))
    return bool(found)


sys.exit(main())
