# SPDX-License-Identifier: Apache-2.0
# A reader that takes longer than any lease, sleeps, or is stopped keeps what it
# has mapped: whoever wants the memory or the revision waits or is refused, and
# when the reader is gone, all of it goes on. No clock changes that.
# MANUAL
# TIMEOUT: 300
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from clocks import Clock
from residency import *
from wf import *

MIB = 1 << 20
SIZE = 24 * MIB
NAME = "model.safetensors"
# Room for one of that size and a little more.
MEMORY = f"memory={SIZE // MIB + 12}M"
sources = [checkpoint(f"src{n}", size=SIZE, seed=n) for n in range(4)]
want = sha(sources[0] / NAME)

# Touches a page every now and then, all its life, and counts what is wrong.
SLOWLY = """
import threading
data = open(args[1], 'rb').read()
steps, wrong = 0, 0
def look():
    global steps, wrong
    places = list(range(0, len(data), 4096))
    random.Random(1).shuffle(places)
    while True:
        at = places[steps % len(places)]
        if m[at:at + 4096] != data[at:at + 4096]:
            wrong += 1
        steps += 1
        time.sleep(0.02)
threading.Thread(target=look, daemon=True).start()
"""
HOLDS = {
    "a mapping": "m = mapped(args[0])",
    "a descriptor and a mapping": "f = os.open(args[0], os.O_RDONLY)\n"
                                  "m = mapped(args[0])",
    "a descriptor": """
class Reading:
    def __init__(self, path):
        self.fd = os.open(path, os.O_RDONLY)
    def __getitem__(self, part):
        return os.pread(self.fd, part.stop - part.start, part.start)
m = Reading(args[0])
""",
}


def ttl_passes():
    """This is what happens here: time, more than lease_ttl."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        time.sleep(0.1)


def reads_on(c):
    steps = c.get("steps")
    wait_for(lambda: c.get("steps") > steps + 3, "it reads on", 30)
    equal(c.get("wrong"), 0, "wrong bytes")


def is_kept(gen, below, ident):
    """Nothing was taken away, and everybody is told why."""
    equal(operation(gen), ident, "the operation")
    equal(attr(gen, "residency"), "hot", "residency while it is read")
    wait_for(lambda: attr(gen, "leases") == "1", "it has a lease")
    equal(resident(below), 1.0, "share in memory")
    refused("EBUSY", remove, gen)
    says(attr(gen, "error"), re.escape(NAME))
    check(operation_text(ident)["message"] != "completed", "it is over")


def removed(gen):
    def gone():
        try:
            remove(gen)
        except OSError as e:
            equal(e.errno, errno.EBUSY, "remove")
            return False
        return True
    wait_for(gone, f"{gen} is removed", 40)
    refused("ENOENT", os.stat, gen)


def kept_from(d, clock, line, hold):
    """All that goes on while one reads, and what comes after it."""
    first = put(line, 1, sources[0])
    settle(first)
    comes_to(first, "hot")
    below = backing(first / NAME)
    with Client() as c:
        c.do(HOLDS[hold], first / NAME)
        c.do(SLOWLY, first / NAME, sources[0] / NAME)
        reads_on(c)
        os.kill(c.pid, signal.SIGSTOP)
        move(first, "cold")
        ident = wait_for(lambda: operation(first), "an operation")
        # Others want the memory, which isn't theirs.
        others = [put(line, n, sources[n]) for n in (2, 3)]
        ttl_passes()
        is_kept(first, below, ident)
        for gen, source in zip(others, sources[2:]):
            check(attr(gen, "residency") != "hot", "there was no room")
            same_tree(gen, source)
        if clock.moves:
            clock.jump(+48)
            is_kept(first, below, ident)
        os.kill(c.pid, signal.SIGCONT)
        reads_on(c)
        is_kept(first, below, ident)
        if clock.moves:
            clock.jump(-96)
            reads_on(c)
            is_kept(first, below, ident)
        says(first_line(first), "waiting for those who read it")
        equal(c.get("wrong"), 0, "wrong bytes")
    # It was killed: the lease ends, and so does the operation.
    wait_for(lambda: attr(first, "leases") == "0", "the lease ends", 30)
    wait_for(lambda: operation(first) is None, "the operation ends", 30)
    equal(operation_text(ident)["message"], "completed", "its message")
    equal(attr(first, "residency"), "cold", "residency")
    # The memory goes to one of the others now, by itself.
    wait_for(lambda: "hot" in [attr(g, "residency") for g in others],
             "another is in memory", 60)
    equal(sha(first / NAME), want, "from the disk")
    for gen in [first, *others]:
        removed(gen)
    wait_for(lambda: metric("weightfs_pinned_bytes") == 0, "memory is free")
    equal((MNT / ".weights" / "leases").read_text(), "", "leases")


def kept_over_a_restart(d, line):
    """What only lives in a mapping outlives the daemon, too."""
    first = put(line, 1, sources[0])
    settle(first)
    comes_to(first, "hot")
    with Client() as c:
        c.do(HOLDS["a mapping"], first / NAME)
        c.do(SLOWLY, first / NAME, sources[0] / NAME)
        d.kill()
        reads_on(c)
        os.kill(c.pid, signal.SIGSTOP)
        d.restart()
        comes_to(first, "hot")
        move(first, "cold")
        ttl_passes()
        refused("EBUSY", remove, first)
        equal(attr(first, "residency"), "hot", "residency")
        os.kill(c.pid, signal.SIGCONT)
        reads_on(c)
    settle(first)
    comes_to(first, "cold")
    removed(first)


clock = Clock()
if not clock.moves:
    print("# the clock can't be moved here")
with Daemon("lease_ttl=1s", MEMORY, env=clock.env) as d:
    for n, hold in enumerate(HOLDS):
        print("#", hold, flush=True)
        kept_from(d, clock, lineage(f"l{n}"), hold)
    if passthrough():
        print("# over a restart", flush=True)
        kept_over_a_restart(d, lineage("restart"))
with Daemon("lease_ttl=1s", MEMORY, "passthrough=off", env=clock.env) as d:
    print("# a descriptor, without passthrough", flush=True)
    kept_from(d, clock, lineage("slow"), "a descriptor")
EOP
