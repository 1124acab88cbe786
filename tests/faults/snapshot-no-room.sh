# SPDX-License-Identifier: Apache-2.0
# Snapshots where there is no room: neither half a file nor half a store, payload
# stays where it is, and the same goes well where there is room.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from disks import Disk, fill, tmpfs
from offline import *
from residency import settle
from snapshot import with_operations
from wf import *

need_root()
SRC = checkpoint("src")
d = Daemon()
line = lineage()
gen = put(line, 1, SRC)
settle(gen)
if attr(gen, "residency") != "hot":
    set_attr(gen, "residency", "hot")
    settle(gen)
set_attr(gen, "residency", "cold")
settle(gen)
d.stop()
snap, large = WORK / "snap", WORK / "large"
exported(snap)
large.write_bytes(with_operations(snap.read_bytes(), 200_000))


def no_room(*argv):
    out, err = weightfs(*argv, status=1)
    equal(out, "", "what is said of it")
    says(err, "No space left|disk is full")


# ---- Out: to a full disk, and to one that fills up on the way
top = tmpfs("full", "1m")
ballast = fill(top / "ballast")
no_room("--export", top / "snap", STORE)
equal(names(top), ["ballast"], "what is left")
ballast.unlink()
scratch = WORK / "scratch"
imported(large, scratch)
no_room("--export", top / "snap", scratch)
equal(names(top), [], "what is left")
exported(top / "snap")
equal((top / "snap").read_bytes(), snap.read_bytes(), "the snapshot")

# ---- In: into nothing, and beside payload
for kind in ("tmpfs", "ext4"):
    if kind == "tmpfs":
        top = tmpfs("in-tmpfs", "24m")
    else:
        top = Disk("in-ext4", 24 << 20).top
    no_room("--import", large, top / "made")
    check("made" not in names(top), f"{kind}: half a store")
    (top / "empty").mkdir()
    no_room("--import", large, top / "empty")
    equal(names(top / "empty"), [], f"{kind}: half a store")
    store = top / "store"
    store.mkdir()
    run("cp", "-a", STORE / "groups", STORE / "tree", store)
    before = facts(store)
    no_room("--import", large, store)
    equal(facts(store), before, f"{kind}: beside payload")
    # To the last byte.
    ballast = fill(top / "ballast")
    no_room("--import", snap, store)
    equal(facts(store), before, f"{kind}: on a full disk")
    ballast.unlink()
    imported(snap, store)
    other = Daemon(store=store)
    same_tree(gen, SRC)
    other.stop()
    sound(store)
EOP
