# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of revisions are, as the kernel tells it.

What the daemon says of itself is compared with what stays in memory when the
kernel takes all back that it can.
"""
import contextlib
import ctypes
import json
import os
import re

from wf import (MNT, STORE, attr, check, libc, set_attr, wait_for)

PAGE = 4096
OPERATIONS = MNT / ".weights" / "operations"

libc.mmap.restype = ctypes.c_void_p


def backing(path):
    """The file of the store behind a file of the mount."""
    ino, size = os.stat(path).st_ino, os.stat(path).st_size
    found = [p for p in (STORE / "groups").rglob(os.path.basename(path))
             if p.stat().st_ino == ino]
    check(len(found) == 1 and found[0].stat().st_size == size,
          f"behind {path}: {found}")
    return found[0]


def resident(path):
    """The share of a file's pages that are in memory."""
    size = os.stat(path).st_size
    pages = (size + PAGE - 1) // PAGE
    seen = (ctypes.c_ubyte * pages)()
    fd = os.open(path, os.O_RDONLY)
    at = ctypes.c_void_p(libc.mmap(None, ctypes.c_size_t(size), 1, 1, fd,
                                   ctypes.c_long(0)))
    os.close(fd)
    status = libc.mincore(at, ctypes.c_size_t(size), seen)
    libc.munmap(at, ctypes.c_size_t(size))
    check(status == 0, f"mincore of {path}")
    return sum(b & 1 for b in seen) / pages


def move(gen, value):
    """Begins to move a revision."""
    set_attr(gen, "residency", value)


def settle(gen, ends="ready"):
    """Reads the revision's wait to its end, which is so; its lines."""
    with open(gen / ".weights" / "wait", "rb", buffering=0) as f:
        text = b""
        while part := f.read(4096):
            text += part
    lines = text.decode().splitlines()
    check(lines and re.fullmatch(ends, lines[-1]), f"wait says {lines}")
    return lines


def first_line(gen):
    """The first line that the revision's wait has to say."""
    with open(gen / ".weights" / "wait", "rb", buffering=0) as f:
        return f.read(4096).decode()


def operation(gen):
    """The id of the one that runs, or None."""
    with contextlib.suppress(OSError):
        return int(attr(gen, "operation"))
    return None


def operation_text(ident):
    return json.loads((OPERATIONS / f"{ident}.json").read_text())


def operations():
    return [int(re.fullmatch(r"([1-9]\d*)\.json", n)[1])
            for n in os.listdir(OPERATIONS)]


def comes_to(gen, residency, seconds=60):
    wait_for(lambda: attr(gen, "residency") == residency and
             operation(gen) is None, f"{gen} is {residency}", seconds)


# For a Client: a mapping that outlives its descriptor, and what it holds.
MAP = """
libc.mmap.restype = ctypes.c_void_p
fd = os.open(args[0], os.O_RDONLY)
size = os.fstat(fd).st_size
at = libc.mmap(None, ctypes.c_size_t(size), 1, 1, fd, ctypes.c_long(0))
os.close(fd)
"""
MAPPED_SHA = "hashlib.sha256(ctypes.string_at(at, size)).hexdigest()"
UNMAP = "libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))"
