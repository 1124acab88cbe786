# SPDX-License-Identifier: Apache-2.0
"""The row of starting: on very many revisions, and after a kill."""
import os
import shutil
import statistics
import time

from mounts import LINEAGE, Failed, Mount, run, status_kib, unmount
from result import PAIRS_MIN, Result
from world import HERE, ROOT

REVISIONS = 100_000
GENERATIONS = 100  # of each lineage
GIB = 1 << 30
FIRST_LS_S = 1.0
HOT_AGAIN_S = 1.0
PER_GIB_S = 0.010
START_S = 120
POLL_S = 0.001
LIBRARIES = ("-llmdb", "-lyajl", "-lcrypto", "-lpthread")


def fill(world, store):
    """Makes the store with what the daemon was linked from."""
    library = world.daemon.parent.parent / "core" / "libcore.a"
    if not library.exists():
        raise Failed(f"no core/libcore.a beside the folder of {world.daemon}")
    program = world.dir / "fill"
    run(os.environ.get("CC", "cc"), "-O2", "-std=gnu17", "-D_GNU_SOURCE",
        f"-I{ROOT}", HERE / "fill.c", library, *LIBRARIES, "-o", program)
    run(program, store, world.args.revisions // GENERATIONS, GENERATIONS)
    program.unlink()
    os.sync()


def first_ls(mount):
    """Starts the daemon; the seconds to the first list of the root, of one of
    the lineages, and to READY in its own words."""
    begun = time.perf_counter()
    mount.launch()
    while True:
        try:
            if "fill" in os.listdir(mount.path):
                break
        except OSError:
            pass
        if time.perf_counter() - begun > START_S or mount.process.poll():
            raise Failed("the daemon does not serve: "
                         f"{mount.log.read_text()[-500:]}")
        time.sleep(POLL_S)
    root = time.perf_counter() - begun
    names = os.listdir(mount.path / "fill" / "fill" / "0" / "main")
    took = time.perf_counter() - begun
    if len(names) != GENERATIONS:
        raise Failed(f"{len(names)} generations are listed")
    return took, root, begun


def hot_again(mount, begun):
    path = mount.path / LINEAGE / "1"
    while os.getxattr(path, "user.weights.residency") != b"hot":
        if time.perf_counter() - begun > START_S:
            raise Failed("it is not HOT again")
        time.sleep(POLL_S)
    return time.perf_counter() - begun


def kill(mount):
    mount.process.kill()
    mount.process.wait()
    mount.process = None
    unmount(mount.path)


def row_b19(world):
    mount = Mount(world, "b19")
    mount.stop()
    shutil.rmtree(mount.store)
    begun = time.perf_counter()
    fill(world, mount.store)
    filled = time.perf_counter() - begun
    text = f"with {world.args.revisions:,} revisions"
    clean = Result("B19", f"start {text}, to the first ls of a lineage", "",
                   "≤ 1 s", goal_ours=FIRST_LS_S)
    killed = Result("B19", f"restart after kill -9 {text}, to the first ls",
                    "", "≤ 1 s", goal_ours=FIRST_LS_S)
    mount.start()
    source = world.checkpoint("b19.source", world.args.size, 4)
    mount.put(source, 1)
    shutil.rmtree(source)
    mount.settle(1, "hot")
    pinned = int(mount.attribute(1, "pinned_bytes")) / GIB
    hot = Result("B19", f"the same, until {pinned:.2f} GiB are HOT again", "",
                 "≤ 1 s + 10 ms for each pinned GiB",
                 goal_ours=HOT_AGAIN_S + PER_GIB_S * pinned)
    roots, own = [], []
    for _ in range(PAIRS_MIN):
        mount.stop()
        took, root, begun = first_ls(mount)
        clean.ours.append(took)
        roots.append(root)
        hot_again(mount, begun)
        own.append(status_kib(mount.pid, "RssAnon") / 1024)
        kill(mount)
        took, root, begun = first_ls(mount)
        killed.ours.append(took)
        hot.ours.append(hot_again(mount, begun))
        mount.settle(1, "hot")
    clean.notes.append(f"the root's ls after {statistics.median(roots):.2f} "
                       f"s; anonymous memory {statistics.median(own):.0f} "
                       f"MiB; making the store took {filled:.0f} s")
    yield clean
    yield killed
    yield hot
    mount.stop()
    shutil.rmtree(mount.store)
