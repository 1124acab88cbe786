# SPDX-License-Identifier: Apache-2.0
# A tree of more files than the daemon may have descriptors works all the same.
# MANUAL
# TIMEOUT: 120
need prlimit
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

COUNT = 1500
src = WORK / "src"
src.mkdir()
safetensors(src / "model.safetensors",
            {f"t.{i:06}": b"x" for i in range(2000)})
for i in range(COUNT):
    (src / f"f{i:05}").write_bytes(b"%d" % i)
argv = Daemon.argv
Daemon.argv = lambda self: ["prlimit", "--nofile=512:512", *argv(self)]
d = Daemon("durability=none")
line = lineage()
small = put(line, 1, checkpoint("small"))

# ---- Copied in, listed, read, published, removed: nothing of it is at once
stage = staging(line, 2)
said = run("timeout", "60", "cp", "-r", f"{src}/.", stage, status=None)
equal(said[:300], "", "cp")
equal(run("ls", "-l", stage).count("\n"), COUNT + 2, "ls -l")
run("timeout", "60", "cat", stage / ".weights" / "wait")
os.rename(stage, line / "2")
same_tree(line / "2", src, times=False)
same_tree(small, WORK / "small")

# ---- More handles at once than there are descriptors: fine, or a clean error
with Client() as c:
    try:
        c.do("""
held = []
for i in range(args[1]):
    held.append(os.open(args[0] / ('f%05d' % i), os.O_RDONLY))
""", line / "2", COUNT)
    except OSError as e:
        check(e.errno in (errno.EMFILE, errno.ENFILE), repr(e))
    for i in range(c.get("len(held)")):
        equal(c.get("os.pread(held[args[0]], 10, 0)", i), b"%d" % i, "bytes")
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
