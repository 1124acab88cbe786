#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what --help says: status 0, at most 80 columns, every option named.
The manual page names every option and every attribute, too.

usage: help.py DAEMON OPTIONS-PROGRAM MANUAL-PAGE

OPTIONS-PROGRAM prints "name = value" for every option there is.
"""
import re
import subprocess
import sys

COLUMNS_MAX = 80


def output(*command):
    return subprocess.run(command, check=True, capture_output=True,
                          text=True, timeout=30).stdout


def errors(daemon, options_program, manual):
    text = output(daemon, "--help")
    for no, line in enumerate(text.splitlines(), 1):
        if len(line.expandtabs()) > COLUMNS_MAX:
            yield f"--help, line {no}: more than {COLUMNS_MAX} columns"
    with open(manual, encoding="utf-8") as f:
        page = f.read()
    names = re.findall(r"^(\w+) = ", output(options_program), re.M)
    if not names:
        yield "there are no options"
    for name in names + ["-f", "--foreground", "--help", "--version", "--check",
                         "--export", "--import"]:
        if not re.search(rf"(?<!\w){name}\b", text):
            yield f"--help does not name {name}"
        if not re.search(rf"(?<!\w){name}\b", page.replace("\\-", "-")):
            yield f"{manual} does not name {name}"
    attributes = re.findall(r"^  (\w+) {2,}\S", text.split("user.weights.")[-1],
                            re.M)
    if not attributes:
        yield "--help lists no attributes"
    for name in attributes:
        if not re.search(rf"^\.B {name}$", page, re.M):
            yield f"{manual} does not describe the attribute {name}"
    if not re.search(r"\d+\.\d+", output(daemon, "--version")):
        yield "--version prints no version"


found = list(errors(*sys.argv[1:]))
print("\n".join(found))
sys.exit(bool(found))
