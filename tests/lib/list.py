#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what is in a folder, for meson.build: a file dropped there is a test.

usage: list.py files DIR         every file, with its path
       list.py names DIR PREFIX  PREFIXname.c as name
       list.py cases DIR         name.sh as name:timeout:kind, from the case's
                                 "# TIMEOUT: seconds" and "# SERIAL" lines
       list.py beside DIR PATH   the first PATH in a folder beside DIR, if any
"""
import pathlib
import re
import sys

TIMEOUT_S = 60


def case(path):
    text = path.read_text()
    m = re.search(r"^# TIMEOUT: (\d+)$", text, re.M)
    kind = "serial" if re.search(r"^# SERIAL$", text, re.M) else "parallel"
    return f"{path.stem}:{m[1] if m else TIMEOUT_S}:{kind}"


def main():
    what, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    if what == "beside":
        print(*sorted(folder.parent.glob("*/" + sys.argv[3]))[:1])
        return
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in paths:
        if path.name.startswith("."):
            continue
        if what == "files":
            print(path)
        elif what == "cases" and path.suffix == ".sh":
            print(case(path))
        elif what == "names" and path.suffix == ".c":
            if path.stem.startswith(sys.argv[3]):
                print(path.stem.removeprefix(sys.argv[3]))


main()
