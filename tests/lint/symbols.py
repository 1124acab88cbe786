#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks which functions our objects call. Looks at symbols, not at text, so
macros, comments and strings cannot fool it.

usage: symbols.py LIBRARY...
"""
import re
import subprocess
import sys

# Too easy to get wrong, or hiding a dependency that tests must control.
BANNED = {
    r".*": "strcpy strcat strncpy strncat sprintf vsprintf strtok gets atoi "
           "atol gmtime localtime asctime ctime mktemp rand system popen",
    r"libcore\.a": "sleep usleep nanosleep time gettimeofday exit getenv",
}

# A foreign library's prefix, and the only objects that may call it. The
# kernel's clocks too: tests replace core/clock, all but the deadlines of waits.
OWNERS = {
    r"mdb_": r"core/meta",
    r"yajl_": r"core/json",
    r"(EVP_|SHA\d|CRYPTO_|ERR_)": r"core/digest",
    r"XXH": r"core/oplog",
    r"fuse_": r"fs/\w+",
    r"clock_gettime$": r"core/clock|fs/\w+",
}

# Not the gates' business: the sanitizers' and the compiler's own.
IGNORED = re.compile(r"(__asan|__ubsan|__tsan|__sanitizer|__stack_chk)")


def undefined(library):
    """Yields (object, symbol) for every call that leaves an object."""
    text = subprocess.run(["nm", "-A", "-u", library], check=True,
                          capture_output=True, text=True).stdout
    for line in text.splitlines():
        m = re.match(r".*[:/]([\w.-]+)\.c\.o: +U (\w+)", line)
        if m and not IGNORED.match(m[2]):
            yield m[1], re.sub(r"^(__isoc\d\d_|__)(\w+?)(_chk)?$", r"\2", m[2])


def defined(library):
    text = subprocess.run(["nm", "--defined-only", library], check=True,
                          capture_output=True, text=True).stdout
    return {line.split()[2] for line in text.splitlines()
            if len(line.split()) == 3}


def errors(library):
    own = defined(library)
    folder = re.search(r"lib(\w+)\.a$", library)[1]
    for obj, symbol in undefined(library):
        if symbol in own:
            continue
        for pattern, names in BANNED.items():
            if re.search(pattern, library) and symbol in names.split():
                yield f"{obj}.c calls {symbol}()"
        for prefix, owner in OWNERS.items():
            if (re.match(prefix, symbol) and
                    not re.fullmatch(owner, f"{folder}/{obj}")):
                yield f"{obj}.c calls {symbol}(), which belongs to {owner}"


found = [e for library in sys.argv[1:] for e in errors(library)]
print("\n".join(found))
sys.exit(bool(found))
