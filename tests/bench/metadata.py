# SPDX-License-Identifier: Apache-2.0
"""The row of records: reading and changing those of very many revisions."""
import shutil
import statistics

from mounts import Mount, run, status_kib
from result import PAIRS_SLOW, Result
from world import quiet

LISTED_FROM = 100_000  # fewer are listed in no time
LISTS = 5
FULL = 1_000_000  # with so many there is a goal
BARE = "LMDB alone, the same records"
DURABLE = "LMDB alone, the same writes, as many commits"
# Name: what one of it is, its limit, and the goal.
WORKS = {
    "get": ("read one of", BARE, 2),
    "list": ("an item of a page of 100, of", BARE, 2),
    "policy": ("change the policy of one of", DURABLE, 1.2),
    "publish": ("stage one and publish it, beside", DURABLE, 1.2),
    "announce": ("announce one and commit it, beside", DURABLE, 1.2),
}


def measure(world, mount, program, before, count):
    """Fills the store up to count; pairs of seconds, by work."""
    bare = world.dir / "b11.bare"
    said = run(program, mount.store / "meta", bare, before, count, PAIRS_SLOW)
    shutil.rmtree(bare)
    pairs = {}
    for line in said.splitlines():
        work, ours, limit = line.split()
        pairs.setdefault(work, []).append((int(ours) / 1e9, int(limit) / 1e9))
    return pairs


def result_of(work, count, pairs):
    what, limit_is, goal = WORKS[work]
    full = count >= FULL
    r = Result("B11", f"{what} {count:,} revisions", limit_is,
               f"≤ {goal}" if full else "–", goal_ratio=goal if full else 0)
    for ours, limit in pairs:
        r.pair(ours, limit)
    return r


def growth(work, few, many, span):
    """How much longer it takes with more, on both sides."""
    r = Result("B11", f"{WORKS[work][0]} {span}: how much longer it takes",
               "LMDB alone", "≤ 1.2", unit="times", goal_ratio=1.2)
    r.pair(statistics.median(many.ours) / statistics.median(few.ours),
           statistics.median(many.limit) / statistics.median(few.limit))
    return r


def listed(mount, count, before):
    """ls of all of them in one directory, an entry; before: with fewer."""
    mount.start()
    path = mount.path / "bench" / "bench" / "many" / "main"
    r = Result("B11", f"ls -f of a lineage of {count:,} generations on the "
               "mount, an entry", "", "–")
    if before:
        r.goal, r.goal_ours = "≤ 1.2 × with fewer", 1.2 * before
    quiet("ls", "-f", path)
    own = status_kib(mount.pid, "RssAnon")
    most = own
    for _ in range(LISTS):
        r.ours.append(quiet("ls", "-f", path) / count)
        most = max(most, status_kib(mount.pid, "RssAnon"))
    r.notes.append(f"the daemon's anonymous memory {own} KiB, and "
                   f"{most - own} KiB more after {LISTS} lists")
    mount.stop()
    return r


def row_b11(world):
    program = world.build("metadata")
    mount = Mount(world, "b11")
    mount.stop()
    counts = world.args.revisions
    span = f"{counts[-1]:,} instead of {counts[0]:,} revisions"
    first, last, before, entry = {}, {}, 0, 0
    for count in counts:
        pairs = measure(world, mount, program, before, count)
        before = count
        for work in WORKS:
            last[work] = result_of(work, count, pairs[work])
            first.setdefault(work, last[work])
            yield last[work]
        if count >= LISTED_FROM or count == counts[-1]:
            r = listed(mount, count, entry)
            entry = statistics.median(r.ours)
            yield r
    for work in WORKS:
        yield growth(work, first[work], last[work], span)
    shutil.rmtree(mount.store)
