# SPDX-License-Identifier: Apache-2.0
"""Memory cgroups of both versions, and processes that live in one: whose
memory is it that files take?
"""
import os
import pathlib
import re
import subprocess
import time

from wf import attr, check, skip, wait_for

MIB = 1 << 20
# A program that takes so many bytes, page by page.
ALLOCATE = r"""
import mmap, sys
m = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(m), 4096):
    m[at] = 1
"""


class Group:
    """A memory cgroup with a limit, as a container has one."""

    V1 = pathlib.Path("/sys/fs/cgroup/memory")

    def __init__(self, name, limit):
        self.is_v1 = (self.V1 / "memory.limit_in_bytes").exists()
        root = self.V1 if self.is_v1 else self.root_of_v2()
        self.path = root / f"weightfs-{name}-{os.getpid()}"
        self.root = root
        try:
            self.path.mkdir()
            self.put("memory.limit_in_bytes" if self.is_v1 else "memory.max",
                     limit)
            if not self.is_v1 and (self.path / "memory.swap.max").exists():
                self.put("memory.swap.max", 0)
        except OSError as e:
            self.end()
            skip(f"no memory cgroup can be made: {e}")

    @staticmethod
    def root_of_v2():
        """Where the version 2 tree is, if it gives memory to its children."""
        for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
            _, path, kind = line.split()[:3]
            control = pathlib.Path(path) / "cgroup.subtree_control"
            if kind != "cgroup2":
                continue
            try:
                if "memory" not in control.read_text():
                    control.write_text("+memory")
                return pathlib.Path(path)
            except OSError as e:
                skip(f"no memory cgroup can be made: {e}")
        return skip("no memory cgroups here")

    def put(self, name, value):
        (self.path / name).write_text(str(value))

    def number(self, name):
        return int((self.path / name).read_text())

    @property
    def usage(self):
        return self.number("memory.usage_in_bytes" if self.is_v1 else
                           "memory.current")

    @property
    def kills(self):
        """How many processes of it died for want of memory."""
        name = "memory.oom_control" if self.is_v1 else "memory.events"
        m = re.search(r"^oom_kill (\d+)$", (self.path / name).read_text(),
                      re.M)
        return int(m[1]) if m else 0

    def reclaim(self):
        """Throws out what can be, so that what stays is what can't."""
        for _ in range(3):
            try:
                if self.is_v1:
                    self.put("memory.force_empty", 0)
                else:
                    self.put("memory.reclaim", "4G")
            except OSError:
                pass  # not all of it, which is the question

    def start(self, *argv):
        """A program that lives in there from its first instruction on."""
        return subprocess.Popen(
            ["sh", "-c", 'echo $$ >"$0" && exec "$@"',
             str(self.path / "cgroup.procs"), *map(str, argv)])

    def lives(self, process, what, seconds=120):
        """It ends well, and nobody in the group was killed."""
        status = process.wait(seconds)
        check(self.kills == 0, f"{what}: killed for want of memory")
        check(status == 0, f"{what}: status {status}")

    def end(self):
        deadline = time.monotonic() + 10
        while self.path.exists() and time.monotonic() < deadline:
            for pid in (self.path / "cgroup.procs").read_text().split():
                try:
                    (self.root / "cgroup.procs").write_text(pid)
                except OSError:
                    pass
            try:
                self.path.rmdir()
            except OSError:
                time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def need_memory(count):
    text = pathlib.Path("/proc/meminfo").read_text()
    available = int(re.search(r"MemAvailable:\s+(\d+) kB", text)[1]) << 10
    if available < count:
        skip(f"{count // MIB} MiB of memory are needed")


def forget(paths):
    """The cache lets go of these files, whoever paid for it."""
    for path in paths:
        with open(path, "rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def comes_to(path, residency, seconds=120):
    wait_for(lambda: attr(path, "residency") == residency,
             f"{path} is {residency}", seconds)
