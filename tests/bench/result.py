# SPDX-License-Identifier: Apache-2.0
"""What a row yields, how pairs are taken, and revisions to take them on."""
import ctypes
import dataclasses
import errno
import itertools
import mmap
import os
import shutil
import statistics
import time

from mounts import Failed, Mount, libc

PAIRS_MIN = 5
PAIRS = 21
PAIRS_SLOW = 11  # those that start a program or make memory each time
PAGE = 4096
RANDOM_TOUCHES = 20_000
PASSING_S = 120
CACHESTAT = 451


@dataclasses.dataclass
class Result:
    row: str
    work: str
    limit_is: str
    goal: str          # as text, for people
    unit: str = "s"
    ours: list = dataclasses.field(default_factory=list)
    limit: list = dataclasses.field(default_factory=list)
    goal_ratio: float = 0      # 0: the goal is no ratio
    goal_ours: float = 0       # 0: none on the figure itself
    notes: list = dataclasses.field(default_factory=list)

    def pair(self, ours, limit):
        self.ours.append(ours)
        self.limit.append(limit)

    @property
    def ratios(self):
        return [a / b for a, b in zip(self.ours, self.limit)]

    @property
    def ratio(self):
        return statistics.median(self.ratios) if self.limit else None

    @property
    def met(self):
        met = True
        if self.goal_ratio and self.limit:
            met = self.ratio <= self.goal_ratio
        if self.goal_ours:
            met = met and statistics.median(self.ours) <= self.goal_ours
        return met


def cached_bytes(path):
    """Page cache of one file, as cachestat(2) says."""
    fd = os.open(path, os.O_RDONLY)
    try:
        everything = (ctypes.c_uint64 * 2)(0, 0)
        said = (ctypes.c_uint64 * 5)()
        if libc.syscall(CACHESTAT, fd, everything, said, 0) != 0:
            raise Failed("no cachestat in this kernel")
        return said[0] * mmap.PAGESIZE
    finally:
        os.close(fd)


def offsets():
    """A place in the page that was not touched a moment ago."""
    return (at * 192 % PAGE for at in itertools.count(1))


def must_pass_through(mount):
    """Rows are about files that the kernel serves. Where it can't just now
    (another test switched leases off), the figures would be of something
    else: it is mounted again until it can."""
    deadline = time.monotonic() + PASSING_S
    while True:
        health = (mount.path / ".weights" / "health").read_text()
        why = [line for line in health.splitlines()
               if line.startswith("passthrough:")]
        if why == ["passthrough: yes"]:
            return
        if time.monotonic() > deadline:
            raise Failed(" ".join(why))
        time.sleep(1)
        mount.fresh()


def remove(mount, generation):
    """While leases are switched off nobody can tell that it isn't held."""
    deadline = time.monotonic() + PASSING_S
    while True:
        try:
            return mount.remove(generation)
        except OSError as e:
            if e.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


class Published:
    """Files of size bytes together, just copied in and published with the
    options; HOT and durable unless these say otherwise."""

    def __init__(self, world, name, options="", size=0, shards=1):
        self.world, self.offsets = world, offsets()
        self.seeds = itertools.count(1)
        source = world.checkpoint(f"{name}.source",
                                  size or world.args.size // 4, shards)
        self.mount = Mount(world, name, options)
        must_pass_through(self.mount)
        self.revision = self.mount.put(source, 1)
        shutil.rmtree(source)
        self.files = sorted(self.revision.glob("*.safetensors"))
        self.backings = [self.mount.backing(p.name) for p in self.files]
        self.file, self.backing = self.files[0], self.backings[0]
        self.size = sum(os.stat(p).st_size for p in self.backings)
        self.where = "hot"
        self.mount.settle(1, self.where)

    def next(self):
        return next(self.offsets)

    # Seconds for one way to read, with with_open=True those of the open too.

    def touch(self, path, **more):
        return self.world.reader("touch", path, self.next(), **more)

    def random(self, path, **more):
        return self.world.reader("random", path, RANDOM_TOUCHES,
                                 next(self.seeds), **more) / RANDOM_TOUCHES

    def read(self, path, **more):
        return self.world.reader("read", path, **more)

    def fresh(self):
        """A daemon that has nothing of before in memory but what it pins."""
        self.mount.fresh()
        must_pass_through(self.mount)
        self.mount.settle(1, self.where)

    def to(self, where):
        """Moves it; the seconds until nothing is pending."""
        took = self.mount.migrate(1, where)
        self.where = where
        self.mount.settle(1, where)
        return took

    def keep_warm(self):
        """Idle page cache may be paged out: each round touches it first."""
        for path in self.backings:
            self.touch(path)

    def drop(self):
        """What isn't pinned leaves the page cache."""
        self.world.reader("drop", *self.backings)

    def close(self):
        self.mount.stop()
        shutil.rmtree(self.mount.store)


def pairs_of(published, ours, limit, result, count=PAIRS):
    for _ in range(max(PAIRS_MIN, count)):
        published.fresh()
        published.keep_warm()
        a = ours()
        published.keep_warm()
        result.pair(a, limit())
    return result
