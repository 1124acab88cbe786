# SPDX-License-Identifier: Apache-2.0
"""The row of starting: on very many revisions, and after a kill."""
import os
import shutil
import statistics
import time

from mounts import LINEAGE, Failed, Mount, run, status_kib, unmount
from result import PAIRS_MIN, Result, remove

REVISIONS = (1_000, 10_000, 100_000, 1_000_000)
# With so many there is a goal. What are more are records and names only.
FULL = 100_000
GENERATIONS = 100  # of each lineage
GIB = 1 << 30
FIRST_LS_S = 1.0
HOT_AGAIN_S = 1.0
PER_GIB_S = 0.010
START_S = 120
POLL_S = 0.001


def fill(program, store, before, count, *more):
    """Adds revisions until there are count; the seconds that it took."""
    begun = time.perf_counter()
    run(program, store, before // GENERATIONS, count // GENERATIONS,
        GENERATIONS, *more)
    os.sync()
    return time.perf_counter() - begun


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


def pinned(world, mount):
    """Publishes a HOT checkpoint as well; its GiB."""
    source = world.checkpoint("b19.source", world.args.size, 4)
    mount.put(source, 1)
    shutil.rmtree(source)
    mount.settle(1, "hot")
    return int(mount.attribute(1, "pinned_bytes")) / GIB


def starts(world, mount, count, limit, filled):
    """Starts with count revisions; limit: the goal's seconds and its text."""
    text = f"with {count:,} revisions"
    goal = {"goal": limit[1], "goal_ours": limit[0]}
    clean = Result("B19", f"start {text}, to the first ls of a lineage", "",
                   **goal)
    killed = Result("B19", f"restart after kill -9 {text}, to the first ls",
                    "", **goal)
    results, hot = [clean, killed], None
    mount.start()
    if count == min(FULL, world.args.revisions[-1]):
        gib = pinned(world, mount)
        hot = Result("B19", f"the same, until {gib:.2f} GiB are HOT again", "",
                     "≤ 1 s + 10 ms for each pinned GiB",
                     goal_ours=HOT_AGAIN_S + PER_GIB_S * gib)
        results.append(hot)
    roots, own = [], []
    for _ in range(PAIRS_MIN):
        mount.stop()
        took, root, begun = first_ls(mount)
        clean.ours.append(took)
        roots.append(root)
        if hot:
            hot_again(mount, begun)
        own.append(status_kib(mount.pid, "RssAnon") / 1024)
        kill(mount)
        took, root, begun = first_ls(mount)
        killed.ours.append(took)
        if hot:
            hot.ours.append(hot_again(mount, begun))
            mount.settle(1, "hot")
    if hot:
        remove(mount, 1)
    mount.stop()
    clean.notes.append(f"the root's ls after {statistics.median(roots):.2f} "
                       f"s; anonymous memory {statistics.median(own):.0f} "
                       f"MiB; making the store took {filled:.0f} s more")
    return results


def names_only(world, program, mount, count):
    """Whether a start takes as long when of revisions there are only records
    and names: more than FULL are made so."""
    other = Mount(world, "b19-names")
    other.stop()
    shutil.rmtree(other.store)
    fill(program, other.store, 0, count, "names")
    r = Result("B19", f"start with {count:,} revisions, records and names "
               "only", "all of each revision", "≤ 1.1", goal_ratio=1.1)
    for _ in range(PAIRS_MIN):
        ours = first_ls(other)[0]
        other.stop()
        r.pair(ours, first_ls(mount)[0])
        mount.stop()
    run("rm", "-rf", other.store)
    return r


def row_b19(world):
    program = world.build("fill")
    mount = Mount(world, "b19")
    mount.stop()
    shutil.rmtree(mount.store)
    before, limit = 0, (FIRST_LS_S, "≤ 1 s")
    for count in world.args.revisions:
        more = count > FULL
        if more:
            yield names_only(world, program, mount, before)
        filled = fill(program, mount.store, before, count,
                      *(["names"] if more else []))
        results = starts(world, mount, count, limit, filled)
        if more:
            results[0].notes.append(f"{count - before:,} of them are records "
                                    "and names only")
        yield from results
        # Beyond that, as long for each.
        times = world.args.revisions[-1] / count
        limit = (times * statistics.median(results[0].ours),
                 f"≤ {times:.0f} × that") if count >= FULL else limit
        before = count
    run("rm", "-rf", mount.store)
