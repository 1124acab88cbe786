# SPDX-License-Identifier: Apache-2.0
# Few descriptors: what can't be pinned is said and served all the same, work
# that finds none left waits for some and isn't taken for damage.
# MANUAL
# TIMEOUT: 240
need prlimit
. "$TESTS/integration/tools/py.sh"
expect_log 'limit of open files|Too many open files'

py <<'EOP'
from residency import *
from wf import *

need_root()
FEW, MANY = 512, 20_000
src = WORK / "src"
src.mkdir()
rng = random.Random(1)
for i in range(200):
    safetensors(src / f"{i:03}.safetensors", {f"t.{i}": rng.randbytes(5000)})
small = checkpoint("small", size=4 << 20)
limit = FEW
argv = Daemon.argv
Daemon.argv = lambda self: ["prlimit", f"--nofile={limit}:{limit}",
                            *argv(self)]


def last_line(gen):
    with open(gen / ".weights" / "wait", "rb", buffering=0) as f:
        text = b""
        while part := f.read(4096):
            text += part
    return text.decode().strip().splitlines()[-1]


def removed(gen):
    def gone():
        try:
            remove(gen)
        except OSError as e:
            check(e.errno in (errno.EBUSY, errno.EMFILE), repr(e))
            return False
        return True
    wait_for(gone, f"{gen} is removed", 30)


# ---- More files than may be pinned
d = Daemon()
line = lineage()
gen = put(line, 1, src)
says(last_line(gen), "files are pinned", "no more may be",
     "limit of open files")
equal(attr(gen, "residency"), "mixed", "residency")
equal(attr(gen, "durable"), "yes", "durable")
equal(attr(gen, "availability"), "ready", "availability")
same_tree(gen, src)
ident = wait_for(lambda: operation(gen), "an operation")
says(operation_text(ident)["message"], "limit of open files")
set_attr(gen, "scrub", 1)
wait_for(lambda: attr(gen, "scrub").endswith(", 0 bad"), "it is scrubbed", 60)
move(gen, "cold")
settle(gen)
comes_to(gen, "cold")
wait_for(lambda: metric("weightfs_pinned_files") == 0, "no pinned files")

# ---- None left at all, while there is work to do
second = put(line, 2, small)
settle(second)
comes_to(second, "hot")
run("prlimit", "--pid", d.pid, f"--nofile=8:{FEW}")


def if_there_is_one(function, *args):
    """Its value, or None for want of a descriptor."""
    try:
        return function(*args)
    except OSError as e:
        check(e.errno in (errno.EMFILE, errno.ENFILE), repr(e))
        return None


for one in [gen, second]:
    if_there_is_one(set_attr, one, "scrub", 1)
if_there_is_one(move, second, "cold")
if_there_is_one(move, gen, "hot")
for _ in range(20):
    for one, source, name in [(gen, src, "000.safetensors"),
                              (second, small, "model.safetensors")]:
        check(if_there_is_one(attr, one, "availability") in (None, "ready"),
              "it is taken for damage")
        check(if_there_is_one(sha, one / name) in (None, sha(source / name)),
              f"bytes of {name}")
    time.sleep(0.1)
run("prlimit", "--pid", d.pid, f"--nofile={FEW}:{FEW}")

# ---- There are some again: all of it is done
for one, source in [(gen, src), (second, small)]:
    for _ in range(2):
        set_attr(one, "scrub", 1)
        wait_for(lambda: attr(one, "scrub").endswith(", 0 bad"), "scrubbed",
                 60)
    equal(attr(one, "availability"), "ready", "availability")
    same_tree(one, source)
wait_for(lambda: operation(second) is None, "its operation ends", 60)
equal(metric("weightfs_bad_chunks_total"), 0, "bad chunks")
removed(second)
d.stop()

# ---- Enough of them: what had no place has one now
limit = MANY
d.restart()
if operation(gen) is None:
    move(gen, "hot")
comes_to(gen, "hot")
same_tree(gen, src)
removed(gen)
d.stop()
EOP
