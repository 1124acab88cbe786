# SPDX-License-Identifier: Apache-2.0
# kill -9 in the middle of a move: the next daemon goes on with it, and what
# was in memory comes back there.
# MANUAL
# TIMEOUT: 180
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from residency import *
from wf import *

# At this speed what is moved takes longer than a look at it.
SLOW = "io_limit=8M"
src = checkpoint("src", size=48 << 20)
want = sha(src / "model.safetensors")

d = Daemon()
line = lineage()
gen = put(line, 1, src)
settle(gen)
file = gen / "model.safetensors"
below = backing(file)


def forget():
    """What the cache has of it goes, but for what is locked."""
    with open(below, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def pinned():
    return int(attr(gen, "pinned_bytes"))


def over(ident):
    settle(gen)
    equal(operation(gen), None, "an operation")
    equal(operation_text(ident)["message"], "completed", "its message")


# ---- HOT, and no operation: it is HOT again
comes_to(gen, "hot")
for _ in range(2):
    d.kill()
    d.restart()
    comes_to(gen, "hot")
    equal(sha(file), want, "bytes")
d.stop()
d.restart()
comes_to(gen, "hot")

# ---- On its way into memory, killed again and again
move(gen, "cold")
settle(gen)
comes_to(gen, "cold")
d.stop()
d.restart(SLOW)
forget()
move(gen, "hot")
ident = wait_for(lambda: operation(gen), "an operation")
middle = 0
for _ in range(3):
    wait_for(pinned, "something is pinned")
    if operation(gen) is None:
        break
    text = operation_text(ident)
    check(text["processed_bytes"] <= text["total_bytes"], text)
    middle += attr(gen, "residency") == "mixed"
    d.kill()
    forget()
    d.restart(SLOW)
    check(operation(gen) in (ident, None), f"it is {operation(gen)} now")
check(middle > 0, "it was never in the middle")
d.kill()
d.restart("io_limit=0")
over(ident)
comes_to(gen, "hot")
equal(sha(file), want, "bytes")
text = operation_text(ident)
equal(text["processed_bytes"], text["total_bytes"], "bytes that are through")

# ---- On its way out, with a reader that never lets go meanwhile
with Client() as reader:
    alive = passthrough()
    reader.do(MAP, str(file))
    move(gen, "cold")
    ident = wait_for(lambda: operation(gen), "an operation")
    d.kill()
    if alive:
        equal(reader.get(MAPPED_SHA), want, "without a daemon")
    # What was locked isn't any more, so nothing is left to wait for.
    d.restart()
    check(operation(gen) in (ident, None), f"it is {operation(gen)} now")
    if alive:
        equal(reader.get(MAPPED_SHA), want, "with the next daemon")
over(ident)
comes_to(gen, "cold")
equal(sha(file), want, "bytes")

# ---- An orderly end in the middle loses nothing, either
d.stop()
d.restart(SLOW)
forget()
move(gen, "hot")
ident = wait_for(lambda: operation(gen), "an operation")
d.stop()
d.restart("io_limit=0")
over(ident)
comes_to(gen, "hot")
same_tree(gen, src)
d.stop()
EOP
