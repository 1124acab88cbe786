# SPDX-License-Identifier: Apache-2.0
"""The row of what it all takes in memory."""
import contextlib
import os
import pathlib
import subprocess

from mounts import MIB, Failed, status_kib
from result import Published, Result, cached_bytes

PROCESSES = 8
HANDLES = 5_000
CGROUP_V1 = pathlib.Path("/sys/fs/cgroup/memory")


@contextlib.contextmanager
def own_account():
    """A memory cgroup of our own, to which everything is charged that is
    brought in meanwhile; yields what tells its bytes, or None."""
    usage = "memory.usage_in_bytes"
    if not (CGROUP_V1 / usage).exists():
        yield None  # version 2 gives no group to a process that has children
        return
    group = CGROUP_V1 / f"weightfs-bench-{os.getpid()}"
    with open("/proc/self/cgroup", encoding="ascii") as f:
        own = [line.split(":", 2)[2].strip() for line in f
               if ":memory:" in line][0]
    home = CGROUP_V1 / own.lstrip("/")
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        yield None
        return
    try:
        yield lambda: int((group / usage).read_text())
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (home / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            (group / "memory.force_empty").write_text("0")
            group.rmdir()


def pss_bytes(pid, paths):
    total, counts = 0, False
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as smaps:
        for line in smaps:
            if "-" in line.split()[0]:
                counts = any(line.rstrip().endswith(str(p)) for p in paths)
            elif counts and line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


@contextlib.contextmanager
def holders_of(world, p):
    """Processes that map all of the file and touched every page of it."""
    processes = [subprocess.Popen(
        [world.reader_path, "hold", p.file, str(p.next())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(PROCESSES)]
    try:
        for process in processes:
            if process.stdout.readline() != b"held\n":
                raise Failed("a holder doesn't hold")
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.communicate()


def of_size(p, work, ours, limit_is="its size"):
    return Result("B18", work, limit_is, "≤ 1.02", unit="MiB",
                  ours=[ours / MIB], limit=[p.size / MIB], goal_ratio=1.02)


def mapped(world):
    """A file that is HOT and mapped by many, and all that this takes."""
    with own_account() as account:
        before = account() if account else 0
        p = Published(world, "b18")
        with holders_of(world, p) as pids:
            daemon = p.mount.pid
            pss = sum(pss_bytes(pid, (p.file, p.backing))
                      for pid in (*pids, daemon))
            cached = cached_bytes(p.backing) + cached_bytes(p.file)
            tables = sum(status_kib(pid, "VmPTE") for pid in pids)
            anon = status_kib(daemon, "RssAnon") * 1024
            daemon_tables = status_kib(daemon, "VmPTE") * 1024
            everything = account() - before if account else 0
            where = p.mount.attribute(1, "residency")
    text = (f"{PROCESSES} processes map one {where.upper()} file of "
            f"{p.size // MIB} MiB")
    yield of_size(p, f"{text}: page cache of it, below and on the mount",
                  cached)
    yield of_size(p, "the same: Pss of their maps and the daemon's", pss)
    own = of_size(p, "the same: page cache, and the daemon's anonymous memory "
                  "and page tables", cached + anon + daemon_tables)
    own.notes.append(f"anonymous {anon / MIB:.1f}, page tables "
                     f"{daemon_tables / MIB:.1f} MiB, those of the processes "
                     f"{tables / 1024:.1f} MiB")
    if everything:
        own.notes.append("a memory cgroup of all of them, with the readers' "
                         f"own memory, was charged {everything / MIB:.0f} MiB")
    yield own
    yield handles(p, anon)
    p.close()


def handles(p, anon):
    before = status_kib(p.mount.pid, "RssAnon") * 1024
    fds = []
    try:
        fds = [os.open(p.file, os.O_RDONLY) for _ in range(HANDLES)]
        after = status_kib(p.mount.pid, "RssAnon") * 1024
    finally:
        for fd in fds:
            os.close(fd)
    allowed = 64 * MIB + 200 * HANDLES
    result = Result(
        "B18", f"the daemon's anonymous memory, {HANDLES:,} files open",
        "64 MiB + 200 bytes each", "≤ 1", unit="MiB", ours=[after / MIB],
        limit=[allowed / MIB], goal_ratio=1)
    result.notes.append(f"{(after - before) / HANDLES:.0f} bytes each more; "
                        f"{anon / MIB:.1f} MiB with the maps alone")
    return result


def row_b18(world):
    yield from mapped(world)
