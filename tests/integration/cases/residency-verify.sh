# SPDX-License-Identifier: Apache-2.0
# A file that was touched behind the daemon's back is verified before it is
# served: who opens it waits, others don't, and good bytes come back.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from residency import *
from wf import *

SIZE = 192 << 20
src = WORK / "src"
src.mkdir()
safetensors(src / "big.safetensors",
            {"t": random.Random(5).randbytes(1 << 20) * (SIZE >> 20)})
(src / "config.json").write_text("{}\n")
want = sha(src / "big.safetensors")
OPEN = "os.close(os.open(args[0], os.O_RDONLY))"


def published():
    gen = put(lineage(), 1, src)
    settle(gen)
    move(gen, "cold")
    settle(gen)
    return gen


def touched(below):
    os.utime(below, ns=(0, time.time_ns()))


# ---- Not as long as it takes: EINPROGRESS, and later it is there
d = Daemon("open_wait=1ms")
gen = published()
file, small = gen / "big.safetensors", gen / "config.json"
below = backing(file)
touched(below)
refused("EINPROGRESS", os.open, file, os.O_RDONLY)
says(attr(gen, "error"), "big.safetensors", "verified")
equal(small.read_text(), "{}\n", "another file")


def opens():
    try:
        os.close(os.open(file, os.O_RDONLY))
        return True
    except OSError as e:
        equal(e.errno, errno.EINPROGRESS, "errno")
        return False


wait_for(opens, "it is verified")
equal(sha(file), want, "bytes")
d.stop()

# ---- Many wait, and nobody else does
for options in (["open_wait=60s"], ["open_wait=60s", "passthrough=off"]):
    d.restart(*options)
    readers = [Client() for _ in range(40)]
    touched(below)
    for r in readers:
        r.send("exec", OPEN, str(file))
    worst, asked, end = 0, 0, time.monotonic() + 1
    while time.monotonic() < end:
        begin = time.monotonic()
        lineage(f"other{asked}", "others")
        attr(gen, "leases")
        equal(small.read_text(), "{}\n", "another file")
        worst = max(worst, time.monotonic() - begin)
        asked += 1
    for r in readers:
        r.answer()
        r.end()
    check(worst < 5, f"others waited {worst:.1f} s")
    equal(sha(file), want, "bytes")
    equal(attr(gen, "availability"), "ready", "availability")
    for n in range(asked):
        (MNT / "t" / "n" / "others" / f"other{n}").rmdir()
    d.stop()
EOP
