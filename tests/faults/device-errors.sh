# SPDX-License-Identifier: Apache-2.0
# The device fails while a revision is written back: that is said and counted,
# nothing of it leaves the memory, readers don't notice, and when the device is
# good again, the revision becomes durable.
# MANUAL
# TIMEOUT: 300
. "$TESTS/integration/tools/py.sh"
expect_log 'Input/output error|No space left'

py <<'EOP'
from disks import Disk, tmpfs
from residency import *
from wf import *

need_root()
MIB = 1 << 20
SIZE = 24 * MIB
FAILURES = "weightfs_write_back_failures_total"
src = checkpoint("src", size=SIZE)
FILE = src / "model.safetensors"
want = sha(FILE)


class Patient:
    """A revision whose bytes are in memory only, on a disk to be broken."""

    def __init__(self, disk, d):
        self.disk, self.d = disk, d
        self.line = lineage()
        stage = staging(self.line, 1)
        for name in ["config.json", "1_Pooling"]:
            run("cp", "-a", src / name, stage)
        # All blocks of the file have a place, where the disk will be cut.
        plug = disk.give_high()
        with open(stage / FILE.name, "wb") as f:
            f.write(b"\xa5" * FILE.stat().st_size)
            f.flush()
            os.fsync(f.fileno())
        plug.unlink()
        os.sync()
        with open(stage / FILE.name, "r+b") as f, open(FILE, "rb") as g:
            shutil.copyfileobj(g, f, 4 * MIB)
        self.below = next((disk.store / "groups").rglob(FILE.name))
        self.stage, self.gen = stage, self.line / "1"

    def publish(self):
        ready(self.stage)
        os.rename(self.stage, self.gen)

    def half(self):
        """Where about half of the file lies behind, and nothing else."""
        places = [there for _, there, _ in self.disk.extents(self.below)]
        return (min(places) + self.disk.image.stat().st_size) // 2 // MIB * MIB

    def fails(self, more=1):
        """It goes on failing, and says so."""
        seen = metric(FAILURES)
        wait_for(lambda: metric(FAILURES) >= seen + more, "failures", 90)
        says(attr(self.gen, "error"), FILE.name,
             "can't be (written|read) back", "trying again")
        equal(attr(self.gen, "durable"), "no", "durable meanwhile")
        equal(attr(self.gen, "availability"), "ready", "availability")
        equal(sha(self.gen / FILE.name), want, "bytes meanwhile")

    @contextlib.contextmanager
    def kept_in_the_cache(self):
        """What is mapped isn't dropped, whatever others do to the machine."""
        with Client() as c:
            c.do(MAP, str(self.below))
            equal(c.get(MAPPED_SHA), want, "in the cache")
            yield
            equal(c.get(MAPPED_SHA), want, "in the cache")

    def recovers(self):
        wait_for(lambda: attr(self.gen, "durable") == "yes", "durable", 90)
        check("user.weights.error" not in os.listxattr(self.gen),
              "an old sentence is left")
        equal(attr(self.gen, "availability"), "ready", "availability")

    def is_on_the_device(self):
        """Only what was written is read here."""
        with open(self.below, "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        equal(sha(self.below), want, "on the device")
        same_tree(self.gen, src, times=False)


def broken(name, *options):
    disk = Disk(name, 128 * MIB)
    disk.split(24 * MIB, SIZE + 4 * MIB)
    d = Daemon(*options, store=disk.store)
    return disk, d, Patient(disk, d)


def in_memory():
    """HOT: who wants it COLD waits until it is safe on the device."""
    disk, d, p = broken("hot")
    disk.cut(p.half())
    p.publish()
    comes_to(p.gen, "hot")
    p.fails(2)
    move(p.gen, "cold")
    ident = wait_for(lambda: operation(p.gen), "an operation")
    p.fails()
    equal(operation(p.gen), ident, "the operation")
    equal(attr(p.gen, "residency"), "hot", "residency meanwhile")
    equal(resident(p.below), 1.0, "share in memory")
    says(first_line(p.gen), "can't be (written|read) back")
    # Who dies doesn't take it along, as long as the cache keeps it.
    with p.kept_in_the_cache():
        d.kill()
        d.restart()
        p.fails()
        equal(operation(p.gen), ident, "the operation")
        disk.mend()
        p.recovers()
    settle(p.gen)
    comes_to(p.gen, "cold")
    equal(operation_text(ident)["message"], "completed", "the operation")
    p.is_on_the_device()
    d.stop()


def not_in_memory():
    """Too little memory to pin it: what is cached is good, too."""
    disk, d, p = broken("cold", "memory=1M")
    disk.cut(p.half())
    p.publish()
    equal(attr(p.gen / FILE.name, "residency"), "cold", "residency")
    with p.kept_in_the_cache():
        p.fails()
        disk.mend()
        p.recovers()
    p.is_on_the_device()
    d.stop()


def found_by_scrub():
    """What was durable isn't any more: it stays in memory until it is."""
    disk, d, p = broken("scrub")
    p.publish()
    p.recovers()
    comes_to(p.gen, "hot")
    disk.cut(p.half())
    set_attr(p.gen, "scrub", 1)
    wait_for(lambda: attr(p.gen, "durable") == "no", "it isn't durable")
    p.fails()
    move(p.gen, "cold")
    p.fails()
    equal(attr(p.gen, "residency"), "hot", "residency meanwhile")
    disk.mend()
    p.recovers()
    settle(p.gen)
    comes_to(p.gen, "cold")
    says(attr(p.gen, "scrub"), ", 0 bad$")
    p.is_on_the_device()
    d.stop()


def no_room():
    """A thin device that finds no room for what it has promised to take."""
    thin = tmpfs("thin", 512 * MIB)
    disk = Disk("full", 128 * MIB, where=thin)
    disk.split(24 * MIB, SIZE + 4 * MIB)
    d = Daemon(store=disk.store)
    p = Patient(disk, d)
    make_room = disk.take_away(p.below)
    p.publish()
    p.fails()
    equal(attr(p.gen, "residency"), "hot", "residency meanwhile")
    make_room()
    p.recovers()
    move(p.gen, "cold")
    settle(p.gen)
    p.is_on_the_device()
    d.stop()


for case in [in_memory, not_in_memory, found_by_scrub, no_room]:
    print("#", case.__doc__, flush=True)
    case()
EOP
