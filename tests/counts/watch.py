# SPDX-License-Identifier: Apache-2.0
"""Watches what a daemon does, with strace: requests that it reads from its
FUSE device, by name, and system calls that write to or wait for a disk.

A section is bracketed by two lookups of names that nobody else asks for, so
its counts are exact, however late strace is.
"""
import collections
import contextlib
import os
import re
import subprocess
import time

from mounts import Failed

OPCODES = {
    1: "LOOKUP", 2: "FORGET", 3: "GETATTR", 4: "SETATTR", 5: "READLINK",
    6: "SYMLINK", 8: "MKNOD", 9: "MKDIR", 10: "UNLINK", 11: "RMDIR",
    12: "RENAME", 13: "LINK", 14: "OPEN", 15: "READ", 16: "WRITE",
    17: "STATFS", 18: "RELEASE", 20: "FSYNC", 21: "SETXATTR", 22: "GETXATTR",
    23: "LISTXATTR", 24: "REMOVEXATTR", 25: "FLUSH", 26: "INIT",
    27: "OPENDIR", 28: "READDIR", 29: "RELEASEDIR", 30: "FSYNCDIR",
    34: "ACCESS", 35: "CREATE", 36: "INTERRUPT", 42: "BATCH_FORGET",
    43: "FALLOCATE", 44: "READDIRPLUS", 45: "RENAME2", 46: "LSEEK",
    47: "COPY_FILE_RANGE", 52: "STATX",
}
HEADER_BYTES = 40
# Nobody waits for these; when they come says nothing.
LATE = {"FORGET", "BATCH_FORGET", "INTERRUPT"}
SYNCS = {"fsync", "fdatasync", "msync", "sync_file_range", "syncfs"}
WRITES = {"write", "pwrite64", "pwritev", "pwritev2"}
READS = {"read", "readv"}
DEADLINE_S = 30
AGAIN_S = 3

CALL = re.compile(r"^(\d+) +(\w+)\((.*)$")
RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
HEX = re.compile(r'"((?:\\x[0-9a-f]{2})+)"')


class Section:
    def __init__(self):
        self.requests = collections.Counter()
        self.syncs = collections.Counter()
        self.writes = 0

    def __str__(self):
        parts = [f"{n} {name}" for name, n in sorted(self.requests.items())]
        return ", ".join(parts) or "no requests"


class Watch:
    """Attached to the daemon of a mount from `with` to its end."""

    def __init__(self, mount, path):
        self.mount, self.path, self.marks = mount, path, 0
        self.lines, self.calls, self.rest = [], {}, ""
        self.devices = self.descriptors("/dev/fuse")
        self.log = self.descriptors(str(mount.log))

    def descriptors(self, target):
        folder = f"/proc/{self.mount.pid}/fd"
        return {fd for fd in os.listdir(folder)
                if os.readlink(f"{folder}/{fd}") == target}

    def __enter__(self):
        self.strace = subprocess.Popen(
            ["strace", "-f", "-xx", "-s", "128", "-o", self.path, "-p",
             str(self.mount.pid), "-e",
             "trace=" + ",".join(sorted(SYNCS | WRITES | READS))],
            stderr=subprocess.PIPE, text=True)
        line = self.strace.stderr.readline()
        if "attached" not in line:
            self.strace.wait()
            raise Failed(f"strace: {line.strip()}")
        self.trace = open(self.path, encoding="ascii", errors="replace")
        try:
            self.mark()
        except Failed:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.strace.terminate()
        self.strace.wait()
        self.strace.stderr.close()
        self.trace.close()

    def next_lines(self):
        self.rest += self.trace.read()
        *whole, self.rest = self.rest.split("\n")
        return whole

    def ask(self):
        """Lets the daemon see a name that it has not seen; as strace shows
        it."""
        self.marks += 1
        name = f"mark-{os.getpid()}-{self.marks}"
        (self.mount.path / name).exists()
        return "".join(f"\\x{b:02x}" for b in name.encode())

    def mark(self):
        """Reads the trace up to a name that only this asks for. What comes
        just when strace attaches is not shown: it asks again."""
        deadline = time.monotonic() + DEADLINE_S
        found = []
        while time.monotonic() < deadline:
            shown = self.ask()
            again = time.monotonic() + AGAIN_S
            while time.monotonic() < again:
                for line in self.next_lines():
                    if shown in line:
                        return found
                    found.append(line)
                time.sleep(0.005)
        raise Failed("strace shows nothing of the daemon")

    @contextlib.contextmanager
    def section(self):
        counts = Section()
        self.mark()
        yield counts
        for line in self.mark():
            self.count(line, counts)

    def count(self, line, counts):
        """One line of the trace. A call that another thread interrupts has
        two: its arguments are in the first, a buffer that is read in both."""
        if m := CALL.match(line):
            tid, name, rest = m.groups()
            fd = re.match(r"\d*", rest)[0]
            if rest.endswith("<unfinished ...>"):
                self.calls[tid] = fd
                return
        elif m := RESUMED.match(line):
            tid, name, rest = m.groups()
            fd = self.calls.pop(tid, "")
        else:
            return
        if name in SYNCS:
            counts.syncs[name] += 1
        elif name in WRITES and fd not in self.devices | self.log:
            counts.writes += 1
        elif name in READS and (m := HEX.search(rest)):
            # The one that was waiting when strace came has no descriptor.
            if fd in self.devices or not fd:
                self.count_request(bytes.fromhex(m[1].replace("\\x", "")),
                                   counts)

    @staticmethod
    def count_request(data, counts):
        if len(data) < HEADER_BYTES:
            return
        opcode = int.from_bytes(data[4:8], "little")
        name = OPCODES.get(opcode, f"opcode {opcode}")
        if name not in LATE:
            counts.requests[name] += 1
