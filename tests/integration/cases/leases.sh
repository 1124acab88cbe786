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
           "ttl": ["durability=none", "lease_ttl=1s"],
           "clock": ["durability=none", "lease_ttl=1h"]}
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
    ("restart in order, mapped", "map", "", ["in_order(d)"], "held", 5),
    ("restart in order, then unmap", "map", "",
     ["in_order(d)", "c.do('m.close()')"], "free", 15),
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
    ("the clock jumps on, open", "fd", "clock", ["jump(+48)"], "held", 5),
    ("the clock jumps on, mapped", "map", "clock", ["jump(+48)"], "held", 5),
    ("the clock jumps on, then unmap", "map", "clock",
     ["jump(+48)", "c.do('m.close()')"], "free", 10),
    ("the clock jumps on while no daemon lives, mapped", "map", "clock",
     ["d.kill()", "jump(+48)", "d.start()"], "held", 5),
    ("the clock jumps back, mapped", "map", "clock", ["jump(-96)"], "held", 5),
    ("the clock jumps back, then unmap", "map", "clock",
     ["jump(-96)", "c.do('m.close()')"], "free", 10),
    ("the clock jumps back while no daemon lives, gone", "fd", "clock",
     ["d.kill()", "c.kill()", "jump(-96)", "d.start()"], "free", 15),
    ("nobody ever", "nothing", "", [], "free", 5),
]


def die(d):
    d.kill()
    d.start()


def in_order(d):
    """SIGTERM, while readers hold what they have."""
    d.terminate()
    d.start()


def jump(hours):
    """Moves the daemon's wall clock, see clock_jump.c."""
    path = WORK / "clock"
    new = int(path.read_text()) + hours * 3600
    (WORK / "clock.new").write_text(f"{new}\n")
    os.rename(WORK / "clock.new", path)


def jumpy_clock():
    """What makes the daemon's clock ours; None where that can't be."""
    library = WORK / "clock_jump.so"
    source = pathlib.Path(os.environ["TESTS"]) / "integration/tools"
    if "libasan" in run("ldd", DAEMON, status=None) or "libtsan" in run(
            "ldd", DAEMON, status=None) or not shutil.which("cc"):
        return None
    run("cc", "-shared", "-fPIC", "-O1", "-o", library,
        source / "clock_jump.c")
    (WORK / "clock").write_text("0\n")
    return {"LD_PRELOAD": str(library), "CLOCK_FILE": str(WORK / "clock")}


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
            exec(step, {"c": c, "d": d, "die": die, "in_order": in_order,
                        "pass_ttl": pass_ttl, "jump": jump, "os": os, "signal": signal})
        if state == "held":
            for _ in range(3):
                refused("EBUSY", remove, gen)
                says(attr(gen, "error"), r"\b%d\b" % (
                    c.get("pid") if hold == "forked" else c.pid), "python")
                wait_for(lambda: attr(gen, "leases") == "1",
                         "the lease is in force", seconds)
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
    env = jumpy_clock() if name == "clock" else {}
    if env is None:
        print("# no rows about the clock: it can't be moved here")
        continue
    d = Daemon(*OPTIONS[name], env=env)
    line = lineage(f"main{name}")
    for n, (event, hold, option, steps, state, seconds) in enumerate(TABLE, 1):
        if option != name:
            continue
        # Without passthrough, what was open is dead with the daemon.
        if state == "held" and not passthrough() and re.search(
                r"die|d\.kill|in_order", str(steps)):
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
