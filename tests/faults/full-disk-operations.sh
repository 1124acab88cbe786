# SPDX-License-Identifier: Apache-2.0
# The disk runs full, to the last block, in the middle of everything: readers
# don't notice, what is asked is done or refused by name, removal works, and when
# there is room again all of it ends where it should.
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
sources = [checkpoint(f"src{n}", size=12 * MIB, seed=n) for n in range(4)]


def may_lack_room(function, *args):
    """Done, or ENOSPC. Whether it was done."""
    try:
        function(*args)
    except OSError as e:
        equal(e.errno, errno.ENOSPC, f"{function.__name__} {args}")
        return False
    return True


def removed(gen):
    def gone():
        try:
            remove(gen)
        except OSError as e:
            equal(e.errno, errno.EBUSY, "removing on a full disk")
            return False
        return True
    wait_for(gone, f"{gen} is removed", 30)
    refused("ENOENT", os.stat, gen)


def all_right(line, *generations):
    equal([n for n in names(line) if n != ".staging"],
          [str(n) for n in generations], "generations")
    for n in generations:
        equal(attr(line / str(n), "availability"), "ready", "availability")
        same_tree(line / str(n), sources[n], times=False)


disk = Disk("disk", 128 * MIB)
d = Daemon(store=disk.store)
line = lineage()
gens = {n: put(line, n, sources[n]) for n in range(1, 4)}
for gen in gens.values():
    settle(gen)
    comes_to(gen, "hot")

# ---- While operations run
d.stop()
d.restart("io_limit=4M", "scrub_rate=4M")
for gen in gens.values():
    comes_to(gen, "hot")
move(gens[1], "cold")
set_attr(gens[2], "scrub", 1)
ballast = disk.fill()
done = {2: may_lack_room(move, gens[2], "cold"),
        3: may_lack_room(set_attr, gens[3], "scrub", 1)}
print("# on a full disk:", done)
for _ in range(10):
    all_right(line, 1, 2, 3)
    time.sleep(0.1)
# A reader's lease is a record, too. Without it nobody is served; with it, all.
with Client() as c:
    c.do("m = mapped(args[0])", gens[3] / "model.safetensors")
    refused("EBUSY", remove, gens[3])
    equal(c.get("hashlib.sha256(m).hexdigest()"),
          sha(sources[3] / "model.safetensors"), "mapped")

# ---- Killed, and started where there is no room for anything
d.kill()
d.restart("scrub_rate=0")
all_right(line, 1, 2, 3)
disk.fill("more")

# ---- Removal makes room, and needs none
removed(gens[3])
(disk.top / "more").unlink()
all_right(line, 1, 2)

# ---- All ends where it should
ballast.unlink()
settle(gens[1])
comes_to(gens[1], "cold")
if not done[2]:
    move(gens[2], "cold")
settle(gens[2])
comes_to(gens[2], "cold")
set_attr(gens[2], "scrub", 1)
settle(gens[2])
says(attr(gens[2], "scrub"), ", 0 bad$")
for n in (1, 2):
    equal(attr(gens[n], "durable"), "yes", "durable")
    move(gens[n], "hot")
    settle(gens[n])
    comes_to(gens[n], "hot")
all_right(line, 1, 2)
d.stop()
d.restart()
all_right(line, 1, 2)
d.stop()
EOP
