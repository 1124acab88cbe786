# SPDX-License-Identifier: Apache-2.0
# No room on the disk, no inodes, no memory: each is said by its name, nothing is
# half there, what was there is served, and it goes on without a restart as soon
# as there is room.
# MANUAL
# TIMEOUT: 240
. "$TESTS/integration/tools/py.sh"
expect_log 'No space left|ENOSPC'

py <<'EOP'
from disks import Disk
from residency import *
from wf import *

need_root()
MIB = 1 << 20
SMALL = checkpoint("small", size=16 * MIB)
OTHER = checkpoint("other", size=16 * MIB, seed=2)
LARGE = checkpoint("large", size=100 * MIB, seed=3)


def full(error):
    equal(error.errno, errno.ENOSPC, f"the error of {error}")


def removed(gen):
    def gone():
        try:
            remove(gen)
        except OSError as e:
            equal(e.errno, errno.EBUSY, "removing without room")
            return False
        return True
    wait_for(gone, f"{gen} is removed", 30)


def whole(line, *generations):
    """What is published is what was copied, and there is nothing else."""
    equal([n for n in names(line) if n != ".staging"],
          [str(n) for n, _ in generations], "generations")
    for n, source in generations:
        same_tree(line / str(n), source, times=False)


def copied_in_calls(source, stage):
    """Write, fsync and close of each file, as a careful program does it."""
    for path in sorted(source.rglob("*")):
        to = stage / path.relative_to(source)
        if path.is_dir():
            to.mkdir(exist_ok=True)
            continue
        fd = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            left = memoryview(path.read_bytes())
            while left:
                left = left[os.write(fd, left[:MIB]):]
            os.fsync(fd)
        finally:
            os.close(fd)


def on_a_full_disk(options):
    disk = Disk("full-" + (options or "default"), 64 * MIB)
    d = Daemon(*filter(None, [options]), store=disk.store)
    line = lineage()
    first = put(line, 1, SMALL)
    settle(first)
    comes_to(first, "hot")
    # More than fits, by a tool and by calls.
    stage = staging(line, 2)
    says(run("cp", "-r", f"{LARGE}/.", stage, status=1), "No space left")
    try:
        copied_in_calls(LARGE, stage)
        raise AssertionError("100 MiB went into 64")
    except OSError as e:
        full(e)
    e = refused("ENOSPC|EBADMSG", os.rename, stage, line / "2")
    check(attr(stage, "error"), "no sentence")
    whole(line, (1, SMALL))
    # What moves goes on moving, as far as it needs no room.
    move(first, "cold")
    settle(first)
    comes_to(first, "cold")
    whole(line, (1, SMALL))
    # Room is made: here, and without a restart.
    removed(first)
    run("rm", "-r", stage / "model.safetensors")

    def copied():
        return "No space" not in run("cp", "-r", f"{OTHER}/.", stage,
                                     status=None)
    wait_for(copied, "there is room again", 30)
    second = publish(stage)
    settle(second)
    equal(attr(second, "durable"), "yes", "durable")
    whole(line, (2, OTHER))
    # Not one block is left for the manifest: published, or not at all.
    stage = staging(line, 3, SMALL)
    ready(stage)
    ballast = disk.fill()
    try:
        os.rename(stage, line / "3")
    except OSError as e:
        full(e)
        says(attr(stage, "error"), "manifest", "No space left")
        whole(line, (2, OTHER))
        ballast.unlink()
        os.rename(stage, line / "3")
    ballast.unlink(missing_ok=True)
    settle(line / "3")
    equal(attr(line / "3", "durable"), "yes", "durable")
    whole(line, (2, OTHER), (3, SMALL))
    d.stop()
    d.restart()
    whole(line, (2, OTHER), (3, SMALL))
    d.stop()


def without_inodes():
    disk = Disk("few", 96 * MIB, "-N", "80")
    d = Daemon(store=disk.store)
    line = lineage()
    first = put(line, 1, SMALL)
    settle(first)
    stage = staging(line, 2, OTHER)
    ready(stage)
    taken = []
    with contextlib.suppress(OSError):
        for i in range(1000):
            path = disk.top / f"i{i}"
            path.touch()
            taken.append(path)
    refused("ENOSPC", os.mkdir, line / ".staging" / "9")
    refused("ENOSPC", (stage / "more").write_text, "x")
    try:
        os.rename(stage, line / "2")
    except OSError as e:
        full(e)
        whole(line, (1, SMALL))
        equal(names(line / ".staging"), ["2"], "staged")
    set_attr(first, "scrub", 1)
    move(first, "cold")
    for path in taken:
        path.unlink()
    if stage.exists():
        os.rename(stage, line / "2")
    settle(first)
    settle(line / "2")
    comes_to(first, "cold")
    says(attr(first, "scrub"), ", 0 bad$")
    equal(attr(line / "2", "durable"), "yes", "durable")
    whole(line, (1, SMALL), (2, OTHER))
    removed(first)
    d.stop()


def wait_says(gen):
    """The last thing that the revision's wait says."""
    with open(gen / ".weights" / "wait", "rb", buffering=0) as f:
        text = b""
        while part := f.read(4096):
            text += part
    return text.decode().strip().splitlines()[-1]


def stays_cold(gen, source):
    """No room in memory: said, and nobody is the worse for it."""
    says(wait_says(gen), "no room in memory", "MiB", "option memory")
    check(attr(gen, "residency") != "hot", "residency")
    equal(attr(gen / "model.safetensors", "residency"), "cold", "of the file")
    equal(attr(gen, "availability"), "ready", "availability")
    equal(attr(gen, "durable"), "yes", "durable")
    check(metric("weightfs_pinned_bytes") <= metric("weightfs_memory_bytes"),
          "more is pinned than may be")
    same_tree(gen, source)


def without_memory():
    two = [checkpoint("one64", size=64 * MIB, seed=4),
           checkpoint("two64", size=64 * MIB, seed=5)]
    d = Daemon("memory=32M")
    line = lineage()
    gen = put(line, 1, two[0])
    stays_cold(gen, two[0])
    # Asked for by hand: on record, with the reason.
    if operation(gen) is None:
        move(gen, "hot")
    ident = wait_for(lambda: operation(gen), "an operation")
    stays_cold(gen, two[0])
    says(operation_text(ident)["message"], "no room in memory")
    # Who gives up is not kept waiting, and may ask again.
    move(gen, "cold")
    settle(gen)
    comes_to(gen, "cold")
    move(gen, "hot")
    ident = wait_for(lambda: operation(gen), "an operation")
    stays_cold(gen, two[0])
    # What fits beside it goes in all the same.
    fits = put(line, 2, SMALL)
    comes_to(fits, "hot")
    stays_cold(gen, two[0])
    d.stop()
    # More of it, and it goes on by itself.
    d.restart("memory=120M")
    comes_to(gen, "hot")
    equal(operation_text(ident)["message"], "completed", "the operation")
    same_tree(gen, two[0])
    # Another of that size doesn't fit, until one leaves: by its removal ...
    other = put(line, 3, two[1])
    stays_cold(other, two[1])
    removed(gen)
    comes_to(other, "hot")
    same_tree(other, two[1])
    # ... or by going to the disk.
    third = put(line, 4, two[0])
    stays_cold(third, two[0])
    move(other, "cold")
    comes_to(third, "hot")
    settle(other)
    comes_to(other, "cold")
    same_tree(third, two[0])
    same_tree(other, two[1])
    d.stop()


on_a_full_disk(None)
on_a_full_disk("durability=writethrough")
without_inodes()
without_memory()
EOP
