# SPDX-License-Identifier: Apache-2.0
"""The rows of the bench. Each is a function that yields results; ROWS names
them. A result is measured in pairs, ours and then its limit, so that whatever
else the machine does meets both.
"""
import dataclasses
import itertools
import mmap
import os
import resource
import shutil
import statistics
import subprocess

from mounts import MIB, Failed, Mount, run, status_kib, write_safetensors
from world import TENSOR_BYTES, quiet, timed

PAIRS_MIN = 5
PAIRS = 21
PAIRS_SLOW = 11  # those that start a program or make memory each time
RANDOM_TOUCHES = 20_000
OPENS = 5_000
NAMES = 100_000
PROCESSES = 8
HANDLES = 5_000
PAGE = 4096


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


def offsets():
    """A place in the page that was not touched a moment ago."""
    return (at * 192 % PAGE for at in itertools.count(1))


class Published:
    """One file of args.size / 4 bytes, just copied in and published."""

    def __init__(self, world, name):
        self.world, self.offsets = world, offsets()
        source = world.checkpoint(f"{name}.source", world.args.size // 4, 1)
        self.mount = Mount(world, name, "durability=none")
        self.revision = self.mount.put(source, 1)
        shutil.rmtree(source)
        self.file = self.revision / "model.safetensors"
        self.backing = self.mount.backing("model.safetensors")
        self.size = os.stat(self.backing).st_size

    def next(self):
        return next(self.offsets)

    def keep_warm(self):
        """Idle page cache may be paged out: each round touches it first."""
        self.world.reader("touch", self.backing, self.next())

    def close(self):
        self.mount.stop()
        shutil.rmtree(self.mount.store)


def pairs_of(world, published, ours, limit, result, count=PAIRS):
    for _ in range(max(PAIRS_MIN, count)):
        published.mount.fresh()
        published.keep_warm()
        a = ours()
        published.keep_warm()
        result.pair(a, limit())
    return result


def row_b1(world):
    p = Published(world, "b1")
    text = f"map {p.size // MIB} MiB, touch every page, fresh mount"
    yield pairs_of(
        world, p, lambda: world.reader("touch", p.file, p.next()),
        lambda: world.reader("touch", p.backing, p.next()),
        Result("B1", text, "its backing file", "≤ 1.03", goal_ratio=1.03))
    try:
        huge = world.new_tmpfs("huge", "huge=always,size=100%") / "copy"
        shutil.copyfile(p.backing, huge)
        yield pairs_of(
            world, p, lambda: world.reader("touch", p.file, p.next()),
            lambda: world.reader("touch", huge, p.next()),
            Result("B1", text, "a copy on huge-page tmpfs", "≤ 2.5",
                   goal_ratio=2.5))
        huge.unlink()
    finally:
        p.close()


def row_b2(world):
    p = Published(world, "b2")
    seed = itertools.count(1)

    def touches(path):
        return world.reader("random", path, RANDOM_TOUCHES,
                            next(seed)) / RANDOM_TOUCHES

    yield pairs_of(
        world, p, lambda: touches(p.file), lambda: touches(p.backing),
        Result("B2", f"{RANDOM_TOUCHES:,} random first touches of a map, "
               "each", "its backing file", "≤ 1.05", goal_ratio=1.05))
    p.close()


def row_b3(world):
    p = Published(world, "b3")
    yield pairs_of(
        world, p, lambda: world.reader("read", p.file),
        lambda: world.reader("read", p.backing),
        Result("B3", f"first read of {p.size // MIB} MiB in preads of 1 MiB, "
               "fresh mount", "its backing file", "≤ 1.03", goal_ratio=1.03))
    p.close()


LOADER = """
import pathlib, sys, time
def load_safetensors(path):
    with safe_open(path, framework="numpy") as f:
        return {k: f.get_tensor(k) for k in f.keys()}
def load_map(path):
    import json, mmap, struct
    with open(path, "rb") as f:
        m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    n, = struct.unpack("<Q", m[:8])
    out, base = {}, 8 + n
    for k, v in json.loads(m[8:base]).items():
        if k != "__metadata__":
            a, b = v["data_offsets"]
            out[k] = m[base + a:base + b]
    return out
try:
    from safetensors import safe_open
    import numpy
    load = load_safetensors
except ImportError:
    load = load_map
if len(sys.argv) == 1:
    print(load.__name__)
    sys.exit()
paths = sorted(pathlib.Path(sys.argv[1]).rglob("*.safetensors"))
start = time.perf_counter()
all = [load(p) for p in paths]
print(time.perf_counter() - start)
"""


def row_b5(world):
    python = world.args.python
    kind = run(python, "-c", LOADER).strip()
    source = world.args.model
    made = None
    if not source:
        source = made = world.checkpoint("b5.source", world.args.size // 4, 4)
    local = world.dir / "b5.local"
    shutil.copytree(source, local)
    mount = Mount(world, "b5", "durability=none")
    revision = mount.put(local, 1)
    size = sum(p.stat().st_size for p in local.rglob("*.safetensors"))
    result = Result(
        "B5", f"load {'a real' if not made else 'a generated'} checkpoint of "
        f"{size // MIB} MiB into memory, fresh mount", "the same files on the "
        "disk of the store, page cache warm", "≤ 1.03", goal_ratio=1.03)
    result.notes.append(
        "read by safetensors with numpy" if kind == "load_safetensors" else
        "no safetensors here: read by a Python program that maps and copies")

    def load(path):
        world.warm(size)
        return float(run(python, "-c", LOADER, path))

    for _ in range(PAIRS):
        mount.fresh()
        for path in (revision, local):  # both warm
            quiet("cat", *sorted(path.rglob("*.safetensors")))
        result.pair(load(revision), load(local))
    yield result
    mount.stop()


def row_b6(world):
    source = world.checkpoint("b6.source", 4 * MIB, 1)
    mount = Mount(world, "b6", "durability=none")
    file = mount.put(source, 1) / "model.safetensors"
    result = Result("B6", "open and close of a file in a leased revision",
                    "libfuse's passthrough example", "≤ 0.6 and ≤ 30 µs",
                    goal_ratio=0.6, goal_ours=30e-6)
    native = mount.backing("model.safetensors")
    limit = native
    try:
        limit = world.passthrough_example(source) / "model.safetensors"
    except Failed as e:
        result.limit_is, result.goal_ratio = "its backing file", 0
        result.notes.append(f"beside the native file only: {e}")
    natives = []
    with open(file, "rb"):
        world.reader("opens", file, OPENS)
        for _ in range(PAIRS):
            result.pair(world.reader("opens", file, OPENS),
                        world.reader("opens", limit, OPENS))
            natives.append(world.reader("opens", native, OPENS))
    result.notes.append(
        f"natively {statistics.median(natives) * 1e6:.1f} µs")
    yield result
    mount.stop()


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def copy_pairs(world, source, mount, after):
    """Copies source into staging and to a plain directory in turn. after, with
    the generation, ends each of ours. Yields the two times, what after
    returned, and the processor's time of the plain copy."""
    size = sum(p.stat().st_size for p in source.iterdir())
    plain = world.dir / "plain"
    os.sync()
    for generation in range(1, PAIRS_MIN + 1):
        quiet("cat", *source.iterdir())
        world.warm(size)
        staged = mount.stage(generation)
        ours = quiet("cp", "-r", f"{source}/.", staged)
        more = after(generation)
        os.sync()
        quiet("cat", *source.iterdir())
        world.warm(size)
        busy = children_seconds()
        limit = quiet("cp", "-r", source, plain)
        busy = children_seconds() - busy
        shutil.rmtree(plain)
        os.sync()
        yield ours, limit, more, busy


def row_b7(world):
    source = world.checkpoint("b7.source", world.args.size, 16)
    mount = Mount(world, "b7")
    result = Result(
        "B7", f"cp -r of {world.args.size // MIB} MiB in 16 files into "
        "staging", "the same cp beside the store", "≤ 1.1", goal_ratio=1.1)

    def drop(generation):
        shutil.rmtree(mount.lineage / ".staging" / str(generation))

    for ours, limit, _, _ in copy_pairs(world, source, mount, drop):
        result.pair(ours, limit)
    yield result
    mount.stop()
    shutil.rmtree(source)


def b8(world, shards):
    source = world.checkpoint("b8.source", world.args.size, shards)
    size = sum(p.stat().st_size for p in source.iterdir())
    mount = Mount(world, f"b8-{shards}", "durability=none")
    what = f"{shards} files" if shards > 1 else "1 file"
    result = Result(
        "B8", f"cp of {size // MIB} MiB in {what}, wait, rename, "
        "without the disk",
        "max(cp, SHA-256 of all cores)" if shards > 1 else
        "cp + 1.1 × SHA-256 of all cores",
        "≤ 1.25" if shards > 1 else "≤ 1", goal_ratio=1.25 if shards > 1 else 1)
    renames, waits, digests, both = [], [], [], []
    cores = len(os.sched_getaffinity(0))

    def publish(generation):
        waits.append(timed(mount.wait, generation))
        renames.append(timed(mount.publish, generation))
        mount.remove(generation)
        return waits[-1] + renames[-1]

    for cp_ours, cp, rest, busy in copy_pairs(world, source, mount, publish):
        digests.append(world.sha256_seconds(size))
        both.append(busy / cores + digests[-1])
        limit = (max(cp, digests[-1]) if shards > 1 else
                 cp + 1.1 * digests[-1])
        result.pair(cp_ours + rest, limit)
    result.notes.append(
        f"wait {statistics.median(waits):.2f} s after the cp; SHA-256 alone "
        f"{statistics.median(digests):.2f} s; {cores} cores need "
        f"{statistics.median(both):.2f} s for both works, however shared")
    yield result
    yield Result("B8", f"the rename of {what} itself", "", "≤ 50 ms",
                 ours=renames, goal_ours=0.05)
    mount.stop()
    shutil.rmtree(source)


def row_b8(world):
    yield from b8(world, 16)
    yield from b8(world, 1)


def many_tensors(world, name, count):
    source = world.dir / f"{name}.source"
    source.mkdir()
    write_safetensors(source / "model.safetensors",
                      [(f"model.layers.{i}.mlp.weight", 4)
                       for i in range(count)], world.block)
    return source


def row_b12(world):
    count = world.args.names
    for names in (count // 10, count):
        mount = Mount(world, f"b12-{names}", "durability=none")
        revision = mount.put(many_tensors(world, f"b12-{names}", names), 1)
        tensors = revision / ".weights" / "tensors"
        first = quiet("ls", "-f", tensors)
        plain = world.new_tmpfs(f"names-{names}", "nr_inodes=0")
        for name in os.listdir(tensors):
            (plain / name).touch()
        for argv in (["ls", "-f"], ["find"]):
            result = Result(
                "B12", f"{' '.join(argv)} of {names:,} tensors",
                "the same names on tmpfs", "≤ 3", goal_ratio=3)
            for _ in range(PAIRS_SLOW):
                result.pair(quiet(*argv, tensors), quiet(*argv, plain))
            if argv[0] == "ls":
                result.notes.append(f"the first time {first * 1e3:.0f} ms")
            yield result
        mount.stop()


def row_b13(world):
    size = max(world.args.size // 16, TENSOR_BYTES)
    source = world.dir / "b13.source"
    source.mkdir()
    write_safetensors(source / "model.safetensors",
                      [("small", 1000), ("big", size)], world.block)
    mount = Mount(world, "b13", f"durability=none,derived={2 * size}")
    tensor = mount.put(source, 1) / ".weights" / "tensors" / "big"
    backing = mount.backing("model.safetensors")
    at = int(os.getxattr(tensor, "user.weights.extent").split(b",")[1])
    result = Result(
        "B13", f"first open of a tensor of {size // MIB} MiB, map, touch "
        "every page", "memcpy into huge pages, touch every page", "≤ 1.3",
        goal_ratio=1.3)
    place = offsets()
    again = []
    for _ in range(PAIRS_SLOW):
        mount.fresh()
        os.stat(tensor)  # the table of tensors is another matter
        world.reader("touch", backing, next(place))
        world.warm(size)
        ours = world.reader("first", tensor, next(place))
        again.append(world.reader("first", tensor, next(place)))
        world.warm(size)
        result.pair(ours, world.reader("copy", backing, at, size,
                                       next(place)))
    result.notes.append(
        f"the second open takes {statistics.median(again) * 1e3:.1f} ms")
    yield result
    mount.stop()


HOLDER = """
import mmap, sys
with open(sys.argv[1], "rb") as f:
    m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
for at in range(0, len(m), 1 << 24):
    m[at:at + (1 << 24)]
print("mapped", flush=True)
sys.stdin.read()
"""


def cached_bytes(path):
    """Page cache of one file, as cachestat(2) says."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY)
    try:
        everything = (ctypes.c_uint64 * 2)(0, 0)
        said = (ctypes.c_uint64 * 5)()
        if libc.syscall(451, fd, everything, said, 0) != 0:
            raise Failed("no cachestat in this kernel")
        return said[0] * mmap.PAGESIZE
    finally:
        os.close(fd)


def pss_bytes(pid, path):
    total, counts = 0, False
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as smaps:
        for line in smaps:
            if "-" in line.split()[0]:
                counts = line.rstrip().endswith(str(path))
            elif counts and line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def row_b18(world):
    p = Published(world, "b18")
    holders = [subprocess.Popen([world.args.python, "-c", HOLDER, p.file],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
               for _ in range(PROCESSES)]
    try:
        for h in holders:
            h.stdout.readline()
        pss = sum(pss_bytes(h.pid, p.file) for h in holders)
        cached = cached_bytes(p.backing) + cached_bytes(p.file)
        anon = status_kib(p.mount.pid, "RssAnon") * 1024
    finally:
        for h in holders:
            h.communicate()
    yield Result("B18", f"{PROCESSES} processes map one file of "
                 f"{p.size // MIB} MiB: page cache of it, below and on the "
                 "mount", "its size", "≤ 1.02", unit="MiB",
                 ours=[cached / MIB], limit=[p.size / MIB], goal_ratio=1.02)
    yield Result("B18", "the same: Pss of their maps together", "its size",
                 "≤ 1.02", unit="MiB", ours=[pss / MIB],
                 limit=[p.size / MIB], goal_ratio=1.02)
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
    yield result
    p.close()


ROWS = {"B1": row_b1, "B2": row_b2, "B3": row_b3, "B5": row_b5, "B6": row_b6,
        "B7": row_b7, "B8": row_b8, "B12": row_b12, "B13": row_b13,
        "B18": row_b18}
