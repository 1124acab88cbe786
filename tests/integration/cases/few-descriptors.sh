# SPDX-License-Identifier: Apache-2.0
# Out of descriptors, the daemon answers so, and goes on once there are some.
# MANUAL
# TIMEOUT: 120
need prlimit
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

MANY, FEW = 1500, 200
src = WORK / "src"
src.mkdir()
safetensors(src / "model.safetensors",
            {f"t.{i:06}": b"x" for i in range(2000)})
for i in range(FEW):
    (src / f"f{i:05}").write_bytes(b"%d" % i)
argv = Daemon.argv
Daemon.argv = lambda self: ["prlimit", "--nofile=512:512", *argv(self)]
d = Daemon("durability=none")
line = lineage()
small = put(line, 1, checkpoint("small"))

# ---- A staged tree may have as many files as there are descriptors for
stage = staging(line, 2)
made = 0
try:
    for i in range(MANY):
        (stage / ("g%05d" % i)).write_bytes(b"x")
        made += 1
except OSError as e:
    check(e.errno in (errno.EMFILE, errno.ENFILE), repr(e))
print(f"# {made} files before it is said")
check(made >= FEW, f"only {made} files")
same_tree(small, WORK / "small")
for name in names(stage):
    os.unlink(stage / name)
run("cp", "-r", f"{src}/.", stage)
run("timeout", "60", "cat", stage / ".weights" / "wait")
os.rename(stage, line / "2")
same_tree(line / "2", src, times=False)

# ---- More handles at once than there are descriptors: fine, or a clean error
with Client() as c:
    try:
        c.do("""
held = []
for turn in range(4):
    for i in range(args[1]):
        held.append(os.open(args[0] / ('f%05d' % i), os.O_RDONLY))
""", line / "2", FEW)
    except OSError as e:
        check(e.errno in (errno.EMFILE, errno.ENFILE), repr(e))
    for i in range(c.get("len(held)")):
        equal(c.get("os.pread(held[args[0]], 10, 0)", i), b"%d" % (i % FEW),
              "bytes")
same_tree(small, WORK / "small")
(small / ".weights" / "tensors" / "layers.0.a.weight").read_bytes()


def removed():
    try:
        remove(line / "2")
        return True
    except OSError as e:
        equal(e.errno, errno.EBUSY, "remove")
        return False


wait_for(removed, "removal", 30)
d.stop()
EOP
expect_log 'limit of open files'
