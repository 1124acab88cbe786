#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the format of all C files with clang-format.

usage: format.py SOURCE-ROOT

What clang-format makes of a file differs from version to version, so any but
the one that the tree is formatted with is a skip.
"""
import pathlib
import re
import shutil
import subprocess
import sys

VERSION = 14
FOLDERS = ("core", "fs", "transport", "mount-helpers", "examples", "tests")


def formatter():
    for name in (f"clang-format-{VERSION}", "clang-format"):
        if path := shutil.which(name):
            text = subprocess.run([path, "--version"], check=True,
                                  capture_output=True, text=True).stdout
            if re.search(rf"version {VERSION}\.", text):
                return path
    return None


def main():
    tool = formatter()
    if not tool:
        print(f"SKIP: no clang-format {VERSION}")
        return 77
    root = pathlib.Path(sys.argv[1])
    files = [str(p) for f in FOLDERS
             for p in sorted((root / f).rglob("*.[ch]"))]
    return subprocess.run([tool, "--dry-run", "-Werror"] + files,
                          check=False).returncode


sys.exit(main())
