# SPDX-License-Identifier: Apache-2.0
# A scrub that was interrupted goes on from its place, whoever interrupts it, and
# what it had found isn't forgotten.
# MANUAL
# TIMEOUT: 300
. "$TESTS/integration/tools/py.sh"
expect_log 'Input/output error'

py <<'EOP'
from residency import *
from wf import *

MIB = 1 << 20
# Its place is kept after each round of that many files.
ROUND, FILES, EACH = 64, 240, 256 << 10
SLOW = "scrub_rate=8M"
src = WORK / "src"
src.mkdir()
rng = random.Random(1)
for i in range(FILES):
    safetensors(src / f"{i:03}.safetensors", {f"t.{i}": rng.randbytes(EACH)})
total = sum(p.stat().st_size for p in src.iterdir())


def damage(below):
    """One byte, behind everybody's back, and nobody has it in memory."""
    st = below.stat()
    with open(below, "r+b", buffering=0) as f:
        f.seek(EACH // 2)
        byte = f.read(1)[0]
        f.seek(EACH // 2)
        f.write(bytes([byte ^ 1]))
        os.fsync(f.fileno())
        os.utime(f.fileno(), ns=(st.st_atime_ns, st.st_mtime_ns))
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def done():
    """Bytes that a running scrub is past, or None."""
    m = re.fullmatch(r"running, (\d+) of (\d+) bytes", attr(gen, "scrub"))
    if m and int(m[2]):
        equal(int(m[2]), total, "bytes of it")
        return int(m[1])
    return None


def is_past(count):
    def past():
        at = done()
        check(attr(gen, "scrub")[:7] == "running", "it ended by itself")
        return at is not None and at >= count
    wait_for(past, f"it is past {count}", 60)


def goes_on_from(place):
    """As soon as it runs, it is there."""
    at = wait_for(done, "it runs", 100)
    check(at >= place, f"it goes on from {at}, not from {place}")


round_bytes = ROUND * min(p.stat().st_size for p in src.iterdir())
d = Daemon(SLOW)
line = lineage()
gen = put(line, 1, src)
settle(gen)
comes_to(gen, "hot")
equal(attr(gen, "durable"), "yes", "durable")
below = next((STORE / "groups").rglob("003.safetensors"))
move(gen, "cold")
settle(gen)
comes_to(gen, "cold")
damage(below)

# ---- kill -9: by itself, the next daemon goes on where the last round ended
before = metric("weightfs_scrubs_total")
set_attr(gen, "scrub", 1)
is_past(round_bytes + round_bytes // 4)
d.kill()
d.restart(SLOW)
goes_on_from(round_bytes)
wait_for(lambda: attr(gen, "availability") == "degraded", "still damaged")
says(attr(gen, "error"), "003.safetensors", "t\\.3'")

# ---- An orderly end keeps its place to the file, or nearly
is_past(2 * round_bytes + round_bytes // 2)
place = done()
d.stop()
d.restart("scrub_rate=0")
hashed = metric("weightfs_bytes_hashed_total")
set_attr(gen, "scrub", 1)
wait_for(lambda: attr(gen, "scrub").endswith("1 bad"), "it ends", 60)
equal(metric("weightfs_scrubs_total"), 1, "scrubs of this daemon")
hashed = metric("weightfs_bytes_hashed_total") - hashed
check(hashed <= total - place + 2 * MIB,
      f"{hashed} bytes were read for the last {total - place}")
equal(attr(gen, "availability"), "degraded", "availability")

# ---- The next one starts at the beginning, and finds the same
hashed = metric("weightfs_bytes_hashed_total")
last = attr(gen, "scrub")
set_attr(gen, "scrub", 1)
wait_for(lambda: attr(gen, "scrub").endswith("1 bad") and
         attr(gen, "scrub") != last, "another one ends", 60)
check(metric("weightfs_bytes_hashed_total") - hashed >= total - EACH - 4096,
      "all of it is read")
d.stop()
EOP
