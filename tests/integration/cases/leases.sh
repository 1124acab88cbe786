# SPDX-License-Identifier: Apache-2.0
# What ends a lease and what does not: one row for each event.
# MANUAL
# TIMEOUT: 180
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src")
# What a client does to hold a revision. {} stands for the path.
HOLDS = {
    "fd": "f = os.open(args[0], os.O_RDONLY)",
    "map": "m = mapped(args[0])",
    "both": "f = os.open(args[0], os.O_RDONLY); m = mapped(args[0])",
    "private map": "g = open(args[0], 'rb'); m = mmap.mmap(g.fileno(), 0, "
                   "flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ); g.close()",
    "part of a map": "g = open(args[0], 'rb'); m = mmap.mmap(g.fileno(), "
                     "4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, "
                     "offset=8192); g.close()",
    "forked": "m = mapped(args[0]); pid = os.fork()\n"
              "if pid == 0:\n    signal.pause()\nm.close()",
    "nothing": "pass",
}
OPTIONS = {"": ["durability=none"],
           "ttl": ["durability=none", "lease_ttl=1s"]}
# event: hold, option set, what happens (steps), the end state, and the seconds
# within which it is reached. "held" must be true at once and stay so.
TABLE = [
    ("an open descriptor", "fd", "", [], "held", 5),
    ("close", "fd", "", ["c.do('os.close(f)')"], "free", 10),
    ("close while mapped", "both", "", ["c.do('os.close(f)')"], "held", 5),
    ("a mapping alone", "map", "", [], "held", 5),
    ("a private mapping", "private map", "", [], "held", 5),
    ("a part mapped", "part of a map", "", [], "held", 5),
    ("unmap", "map", "", ["c.do('m.close()')"], "free", 10),
    ("close, then unmap", "both", "",
     ["c.do('os.close(f)')", "c.do('m.close()')"], "free", 10),
    ("unmap, then close", "both", "",
     ["c.do('m.close()')", "c.do('os.close(f)')"], "free", 10),
    ("a child keeps the mapping", "forked", "", [], "held", 5),
    ("the child is killed", "forked", "",
     ["c.do('os.kill(pid, 9); os.waitpid(pid, 0)')"], "free", 10),
    ("exit of the client", "both", "", ["c.end()"], "free", 10),
    ("kill -9 of the client", "both", "", ["c.kill()"], "free", 10),
    ("kill -9 of a mapper", "map", "", ["c.kill()"], "free", 10),
    ("client stopped", "map", "",
     ["os.kill(c.pid, signal.SIGSTOP)"], "held", 5),
    ("kill -9 of the daemon, mapped", "map", "", ["die(d)"], "held", 5),
    ("kill -9 of the daemon, open", "fd", "", ["die(d)"], "held", 5),
    ("kill -9 of the daemon, then unmap", "map", "",
     ["die(d)", "c.do('m.close()')"], "free", 15),
    ("kill -9 of the daemon, then of the client", "both", "",
     ["die(d)", "c.kill()"], "free", 15),
    ("kill -9 of the daemon twice, mapped", "map", "",
     ["die(d)", "die(d)"], "held", 5),
    ("kill -9 of the client while no daemon lives", "map", "",
     ["d.kill()", "c.kill()", "d.start()"], "free", 15),
    ("restart in order, mapped", "map", "", ["lazily(d)"], "held", 5),
    ("restart in order, then unmap", "map", "",
     ["lazily(d)", "c.do('m.close()')"], "free", 15),
    ("the lease's time is over, open", "fd", "ttl", ["pass_ttl()"], "held", 5),
    ("the lease's time is over, mapped", "map", "ttl", ["pass_ttl()"], "held",
     5),
    ("the lease's time is over, client stopped", "map", "ttl",
     ["os.kill(c.pid, signal.SIGSTOP)", "pass_ttl()"], "held", 5),
    ("the lease's time is over, then unmap", "map", "ttl",
     ["pass_ttl()", "c.do('m.close()')"], "free", 10),
    ("the time is over while no daemon lives, mapped", "map", "ttl",
     ["d.kill()", "pass_ttl()", "d.start()"], "held", 5),
    ("the time is over while no daemon lives, gone", "fd", "ttl",
     ["d.kill()", "c.kill()", "pass_ttl()", "d.start()"], "free", 15),
    ("nobody ever", "nothing", "", [], "free", 5),
]


def die(d):
    d.kill()
    d.start()


def lazily(d):
    """An unmount in order that leaves the readers what they have."""
    run("fusermount3", "-u", "-z", d.mnt)
    d.ends()
    d.start()


def pass_ttl():
    """Longer than lease_ttl, by the clock: this is the time that passes."""
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        time.sleep(0.1)


def row(d, line, n, hold, steps, state, seconds):
    gen = put(line, n, SRC)
    want = sha(SRC / "model.safetensors")
    c = Client()
    ended = any("c.kill" in s or "c.end" in s for s in steps)
    try:
        c.do(HOLDS[hold], gen / "model.safetensors")
        if hold != "nothing":
            equal(attr(gen, "leases"), "1", "a lease while it is held")
            says((MNT / ".weights" / "leases").read_text(), rf"main/{n}\b|{n}")
        for step in steps:
            exec(step, {"c": c, "d": d, "die": die, "lazily": lazily,
                        "pass_ttl": pass_ttl, "os": os, "signal": signal})
        if state == "held":
            for _ in range(3):
                refused("EBUSY", remove, gen)
                says(attr(gen, "error"), r"\b%d\b" % (
                    c.get("pid") if hold == "forked" else c.pid), "python")
                equal(attr(gen, "leases"), "1", "a lease while it is held")
            same_tree(gen, SRC)
            if "SIGSTOP" in str(steps):
                os.kill(c.pid, signal.SIGCONT)
            if hold in ("map", "both", "private map"):
                equal(c.get("hashlib.sha256(m).hexdigest()"), want, "mapped")
            if hold == "fd" and not any("d" in s and "die" in s
                                        for s in steps):
                equal(c.get("hashlib.sha256(os.pread(f, 10**7, 0))"
                            ".hexdigest()"), want, "read")
            return

        def removed():
            try:
                remove(gen)
                return True
            except OSError as e:
                equal(e.errno, errno.EBUSY, "remove")
                return False

        wait_for(removed, "removed", seconds)
        refused("ENOENT", os.stat, gen)
    finally:
        if hold == "forked":
            with contextlib.suppress(OSError, AssertionError):
                os.kill(c.get("pid"), 9)
        if not ended:
            c.kill()


failures = 0
for name in OPTIONS:
    d = Daemon(*OPTIONS[name])
    line = lineage(f"main{name}")
    # One record for one revision, however many hold it.
    many = put(line, 100, SRC)
    writes = metric("weightfs_lease_writes_total")
    held = [open(many / "model.safetensors", "rb") for _ in range(50)]
    equal(attr(many, "leases"), "1", "one lease for all opens")
    # An open in steady state writes nothing.
    writes = metric("weightfs_lease_writes_total") - writes
    if writes > 2:
        failures += 1
        print(f"FAILED {writes} writes of the lease for 50 opens", flush=True)
    for f in held:
        f.close()
    for n, (event, hold, option, steps, state, seconds) in enumerate(TABLE, 1):
        if option != name:
            continue
        print(f"# {event}: {state}", flush=True)
        try:
            row(d, line, n, hold, steps, state, seconds)
        except (OSError, AssertionError) as e:
            failures += 1
            print(f"FAILED {event}: {e!r}", flush=True)
            if d.process.poll() is not None:
                d.kill()
                d.start()
    if failures:
        d.terminate()
    else:
        d.stop()
check(not failures, f"{failures} rows failed")
EOP
