#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks all text files for what does not belong into the tree: paths of the
machine that somebody worked on, hosts of package archives, trailing blanks,
unfinished ends, and source files without a licence line.

usage: words.py SOURCE-ROOT
"""
import pathlib
import re
import subprocess
import sys

# Written so that this file does not refuse itself.
REFUSED = [
    (r"/wo[r]k/", "a path of one machine"),
    (r"/tm[p]/hb\b", "a path of one machine"),
    (r"/home/\w+/", "a path of one machine"),
    (r"(deb|security|snapshot)\.debian\.or[g]", "the host of an archive"),
    (r"py(pi|thonhosted)\.or[g]", "the host of an archive"),
    (r"\b(TOD[O]|FIXM[E]|XX[X])\b", "an unfinished end"),
    (r"^(<{7}|>{7}) ", "a merge conflict"),
]
LICENSED = {".c", ".h", ".py", ".sh"}
LICENCE = "SPDX-License-Identifier: Apache-2.0"
# Read as given, not written here.
EXEMPT = ("LICENSE", "tests/fuzz/corpus/", "tests/data/")


def files(root):
    git = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "-co",
         "--exclude-standard"], capture_output=True, check=False)
    if git.returncode == 0:
        names = git.stdout.decode().split("\0")
    else:
        names = [str(p.relative_to(root)) for p in root.rglob("*")
                 if not re.match(r"(build|subprojects/|\.git/)",
                                 str(p.relative_to(root)))]
    for name in sorted(set(names)):
        if name and not name.startswith(EXEMPT) and (root / name).is_file():
            yield name


def errors(root, name):
    try:
        text = (root / name).read_text()
    except UnicodeDecodeError:
        return
    if pathlib.Path(name).suffix in LICENSED and LICENCE not in text[:200]:
        yield f"{name}:1: no licence line"
    for no, line in enumerate(text.splitlines(), 1):
        for pattern, what in REFUSED:
            if re.search(pattern, line):
                yield f"{name}:{no}: {what}"
        if line != line.rstrip() and not name.endswith(".md"):
            yield f"{name}:{no}: trailing blanks"


def main():
    root = pathlib.Path(sys.argv[1])
    found = [e for name in files(root) for e in errors(root, name)]
    print("\n".join(found))
    return bool(found)


sys.exit(main())
