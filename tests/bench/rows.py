# SPDX-License-Identifier: Apache-2.0
"""The rows of the bench. Each is a function that yields results; ROWS names
them. A result is measured in pairs, ours and then its limit, so that whatever
else the machine does meets both.
"""
import os
import resource
import shutil
import statistics

import memory
import metadata
import residency
import start
from mounts import MIB, Failed, Mount, run, write_safetensors
from result import (PAIRS, PAIRS_MIN, PAIRS_SLOW, RANDOM_TOUCHES, Published,
                    Result, must_pass_through, offsets, pairs_of, remove)
from world import TENSOR_BYTES, quiet, timed

OPENS = 5_000
NAMES = 100_000


def row_b1(world):
    p = Published(world, "b1")
    text = f"map HOT {p.size // MIB} MiB, touch every page, fresh mount"
    yield pairs_of(
        p, lambda: p.touch(p.file), lambda: p.touch(p.backing),
        Result("B1", text, "its backing file", "≤ 1.03", goal_ratio=1.03))
    try:
        huge = world.new_tmpfs("huge", "huge=always,size=100%") / "copy"
        shutil.copyfile(p.backing, huge)
        yield pairs_of(
            p, lambda: p.touch(p.file), lambda: p.touch(huge),
            Result("B1", text, "a copy on huge-page tmpfs", "≤ 2.5",
                   goal_ratio=2.5))
        huge.unlink()
    finally:
        p.close()


def row_b2(world):
    p = Published(world, "b2")
    yield pairs_of(
        p, lambda: p.random(p.file), lambda: p.random(p.backing),
        Result("B2", f"{RANDOM_TOUCHES:,} random first touches of a HOT "
               "map, each", "its backing file", "≤ 1.05", goal_ratio=1.05))
    p.close()


def row_b3(world):
    p = Published(world, "b3")
    yield pairs_of(
        p, lambda: p.read(p.file), lambda: p.read(p.backing),
        Result("B3", f"first read of HOT {p.size // MIB} MiB in preads of "
               "1 MiB, fresh mount", "its backing file", "≤ 1.03",
               goal_ratio=1.03))
    p.close()


LOADER = """
import pathlib, sys, time
def load_numpy(path):
    with safe_open(path, framework="numpy") as f:
        return {k: f.get_tensor(k) for k in f.keys()}
def load_torch(path):
    all = safetensors.torch.load_file(path)
    for t in all.values():
        if t.numel():
            t.view(-1).view(torch.uint8)[::4096].sum()
    return all
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
found = {"map": load_map}
try:
    from safetensors import safe_open
    import numpy
    found["numpy"] = load_numpy
except ImportError:
    pass
try:
    import safetensors.torch, torch
    found["torch"] = load_torch
except ImportError:
    pass
if len(sys.argv) == 1:
    print(" ".join(found))
    sys.exit()
paths = sorted(pathlib.Path(sys.argv[2]).rglob("*.safetensors"))
start = time.perf_counter()
all = [found[sys.argv[1]](p) for p in paths]
print(time.perf_counter() - start)
"""
READERS = {
    "numpy": "safetensors with numpy, which copies",
    "torch": "safetensors with torch, which maps; every page touched",
    "map": "a Python program that maps and copies, as no safetensors is here",
}


def b5_pairs(world, mount, revision, local, reader):
    size = sum(p.stat().st_size for p in local.rglob("*.safetensors"))
    result = Result(
        "B5", f"load a checkpoint of {size // MIB} MiB "
        f"({world.model_name(local)}), fresh mount: {READERS[reader]}",
        "the same files on the disk of the store, page cache warm",
        "≤ 1.03", goal_ratio=1.03)

    def load(path):
        world.warm(size)
        return float(run(world.args.python, "-c", LOADER, reader, path))

    for _ in range(PAIRS_SLOW):
        mount.fresh()
        must_pass_through(mount)
        mount.settle(1, "hot")
        for path in (revision, local):  # both warm
            quiet("cat", *sorted(path.rglob("*.safetensors")))
        result.pair(load(revision), load(local))
    return result


def row_b5(world):
    kinds = run(world.args.python, "-c", LOADER).split()
    models = world.models() or [world.checkpoint(
        "generated", world.args.size // 4, 4)]
    for number, source in enumerate(models):
        local = world.dir / f"b5-{number}" / source.name
        shutil.copytree(source, local)
        mount = Mount(world, f"b5-{number}")
        revision = mount.put(local, 1)
        mount.settle(1, "hot")
        for reader in READERS:
            if reader in kinds and (reader != "map" or len(kinds) == 1):
                yield b5_pairs(world, mount, revision, local, reader)
        mount.stop()
        shutil.rmtree(mount.store)


def row_b6(world):
    source = world.checkpoint("b6.source", 4 * MIB, 1)
    mount = Mount(world, "b6")
    must_pass_through(mount)
    file = mount.put(source, 1) / "model.safetensors"
    mount.settle(1, "hot")
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
    mount = Mount(world, f"b8-{shards}")
    must_pass_through(mount)
    what = f"{shards} files" if shards > 1 else "1 file"
    result = Result(
        "B8", f"cp of {size // MIB} MiB in {what}, wait, rename",
        "max(cp, SHA-256 of all cores)" if shards > 1 else
        "cp + 1.1 × SHA-256 of all cores",
        "≤ 1.25" if shards > 1 else "≤ 1", goal_ratio=1.25 if shards > 1 else 1)
    renames, waits, digests, both, where = [], [], [], [], []
    cores = len(os.sched_getaffinity(0))

    def publish(generation):
        waits.append(timed(mount.wait, generation))
        renames.append(timed(mount.publish, generation))
        where.append(mount.attribute(generation, "residency"))
        mount.settle(generation, "hot")
        remove(mount, generation)
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
        f"{statistics.median(both):.2f} s for both works, however shared; "
        f"published HOT {where.count('hot')} of {len(where)} times")
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
    must_pass_through(mount)
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


ROWS = {"B1": row_b1, "B2": row_b2, "B3": row_b3, "B4": residency.row_b4,
        "B5": row_b5, "B6": row_b6, "B7": row_b7, "B8": row_b8,
        "B9": residency.row_b9, "B10": residency.row_b10,
        "B11": metadata.row_b11, "B12": row_b12, "B13": row_b13,
        "B18": memory.row_b18, "B19": start.row_b19}
