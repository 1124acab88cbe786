# SPDX-License-Identifier: Apache-2.0
"""Rows of what is COLD, of moving it, and of getting it onto the disk."""
import os
import shutil
import statistics
import time

from mounts import MIB, Failed, Mount, run
from result import (PAIRS_MIN, PAIRS_SLOW, RANDOM_TOUCHES, Published, Result,
                    cached_bytes, must_pass_through, pairs_of, remove)
from world import quiet, timed

SHARDS = 16
MOVED_SHARDS = 4
SYNCS = 20
DROPPED_S = 20


# ---- B4: reading what is COLD

def ways_to_read(p):
    size = f"{p.size // MIB} MiB"
    return [
        (f"map COLD {size}, touch every page", p.touch),
        (f"{RANDOM_TOUCHES:,} random first touches of a COLD map of {size}, "
         "each", p.random),
        (f"read COLD {size} in preads of 1 MiB", p.read),
    ]


def is_dropped(paths):
    return all(cached_bytes(p) < MIB for p in paths)


def wait_dropped(p):
    """A daemon lets go of the cache in the background."""
    deadline = time.monotonic() + DROPPED_S
    while not is_dropped(p.backings) and time.monotonic() < deadline:
        time.sleep(0.01)
        p.drop()
    if not is_dropped(p.backings):
        raise Failed("the page cache keeps what was dropped")


def dropped_pairs(p, read, result):
    for _ in range(PAIRS_MIN):
        p.fresh()
        wait_dropped(p)
        ours = read(p.file, with_open=True)
        p.mount.stop()  # with all that it may still be bringing in
        wait_dropped(p)
        result.pair(ours, read(p.backing, with_open=True))
    return result


def row_b4(world):
    p = Published(world, "b4")
    p.to("cold")
    for text, read in ways_to_read(p):
        yield pairs_of(
            p, lambda r=read: r(p.file), lambda r=read: r(p.backing),
            Result("B4", f"{text}, page cache warm", "its backing file",
                   "≤ 1.05", goal_ratio=1.05), PAIRS_SLOW)
        yield dropped_pairs(
            p, read, Result("B4", f"open, {text}, page cache dropped",
                            "its backing file", "≤ 1.0", goal_ratio=1.0))
    p.close()


# ---- B9: onto the disk, and proved to be there

def to_durable(source, mount, generation, parts):
    staged = mount.stage(generation)
    target = mount.lineage / str(generation) / ".weights" / "wait"
    took = [quiet("cp", "-r", f"{source}/.", staged),
            timed(mount.wait, generation), timed(mount.publish, generation),
            timed(target.read_text)]
    if mount.attribute(generation, "durable") != "yes":
        raise Failed("it is not durable")
    parts.append(took)
    return sum(took)


def plain_to_disk(world, source, plain, parts):
    took = [quiet("cp", "-r", source, plain)]
    files = sorted(plain.iterdir())
    took += [timed(world.reader, "sync", *files),
             timed(world.reader, "direct", *files)]
    parts.append(took)
    return sum(took)


def medians(parts):
    return [statistics.median(column) for column in zip(*parts)]


def clean_memory(world, source):
    """The source is in the page cache, nothing is dirty, memory is at hand."""
    os.sync()
    quiet("cat", *source.iterdir())
    world.warm(sum(p.stat().st_size for p in source.iterdir()))


def row_b9(world):
    source = world.checkpoint("b9.source", world.args.size, SHARDS)
    mount, plain = Mount(world, "b9"), world.dir / "plain"
    must_pass_through(mount)
    result = Result(
        "B9", f"cp of {world.args.size // MIB} MiB in {SHARDS} files, wait, "
        "rename, until it is durable",
        "cp, fsync, one read past the cache", "≤ 1.1", goal_ratio=1.1)
    ours, limits = [], []
    for generation in range(1, PAIRS_MIN + 1):
        clean_memory(world, source)
        a = to_durable(source, mount, generation, ours)
        mount.settle(generation, "hot")
        remove(mount, generation)
        clean_memory(world, source)
        result.pair(a, plain_to_disk(world, source, plain, limits))
        shutil.rmtree(plain)
    result.notes.append("cp {:.2f}, wait {:.2f}, rename {:.3f}, durable "
                        "{:.2f} s; ".format(*medians(ours)) +
                        "beside it cp {:.2f}, fsync {:.2f}, read {:.2f} s"
                        .format(*medians(limits)))
    yield result
    mount.stop()
    shutil.rmtree(mount.store)
    shutil.rmtree(source)


# ---- B10: between memory and disk

def sync_seconds(world):
    """What one small change of a file costs that has to be on the disk."""
    path, took = world.dir / "synced", []
    with open(path, "wb", buffering=0) as f:
        for _ in range(SYNCS):
            os.pwrite(f.fileno(), bytes(4096), 0)
            took.append(timed(os.fdatasync, f.fileno()))
    path.unlink()
    return statistics.median(took)


def move_pairs(world, p, plain):
    """HOT to COLD and back, with the cache warm and dropped, in turn."""
    text = f"{p.size // MIB} MiB in {len(p.files)} files"
    cold = Result("B10", f"HOT to COLD, durable: {text}",
                  "MADV_DONTNEED_LOCKED of the same", "≤ 1.1", goal_ratio=1.1)
    warm = Result("B10", f"COLD to HOT, page cache warm: {text}",
                  "MADV_POPULATE_READ of the same", "≤ 1.1", goal_ratio=1.1)
    dropped = Result("B10", f"COLD to HOT, page cache dropped: {text}",
                     "a read of the same from the disk, in order", "≤ 1.1",
                     goal_ratio=1.1)

    def to_cold():
        cold.pair(p.to("cold"), world.reader("unpin", *plain))
        wait_dropped(p)

    for _ in range(PAIRS_MIN):
        to_cold()
        world.reader("drop", *plain)
        quiet("cat", *p.backings, *plain)  # both in folios of one kind
        warm.pair(p.to("hot"), world.reader("pin", *plain))
        to_cold()
        world.reader("drop", *plain)
        world.warm(p.size)
        ours = p.to("hot")
        # Through the cache: read-ahead keeps more requests at the device.
        dropped.pair(ours, sum(world.reader("read", path) for path in plain))
    synced = sync_seconds(world) * 1e3
    for result in (cold, warm):
        result.notes.append(f"an fdatasync of 4 KiB takes {synced:.2f} ms")
    return cold, warm, dropped


def undurable_pairs(world, source):
    """HOT to COLD right after the rename: it has to be durable before."""
    mount, plain = Mount(world, "b10-new"), world.dir / "plain-new"
    size = sum(p.stat().st_size for p in source.iterdir())
    result = Result("B10", f"HOT to COLD, just published: {size // MIB} MiB "
                    f"in {MOVED_SHARDS} files", "fsync, and one read past the "
                    "cache", "≤ 1.1", goal_ratio=1.1)
    for generation in range(1, PAIRS_MIN + 1):
        clean_memory(world, source)
        staged = mount.stage(generation)
        run("cp", "-r", f"{source}/.", staged)
        rested = (timed(mount.wait, generation) +
                  timed(mount.publish, generation))
        ours = mount.migrate(generation, "cold")
        remove(mount, generation)
        clean_memory(world, source)
        run("cp", "-r", source, plain)
        files = sorted(plain.iterdir())
        time.sleep(rested)  # the kernel writes back meanwhile, as above
        result.pair(ours, timed(world.reader, "sync", *files) +
                    timed(world.reader, "direct", *files))
        shutil.rmtree(plain)
    mount.stop()
    shutil.rmtree(mount.store)
    return result


def row_b10(world):
    p = Published(world, "b10", size=world.args.size, shards=MOVED_SHARDS)
    plain = world.dir / "b10.plain"
    plain.mkdir()
    run("cp", *p.backings, plain)
    os.sync()
    yield from move_pairs(world, p, sorted(plain.iterdir()))
    p.close()
    yield undurable_pairs(world, plain)
    shutil.rmtree(plain)
