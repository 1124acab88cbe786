# SPDX-License-Identifier: Apache-2.0
# Hundreds who wait keep nobody from anything, and end when they are killed.
# OPTIONS: durability=none
# TIMEOUT: 90
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

WAITERS = 300
SRC = checkpoint("src")
line = lineage()
stage = staging(line, 1, SRC)
writer = os.open(stage / "config.json", os.O_RDWR)
waiters = [subprocess.Popen(["cat", stage / ".weights" / "wait"],
                            stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)
           for _ in range(WAITERS)]
# They all have something to tell while they wait.
for w in waiters[:20]:
    check(w.stdout.readline(), "no progress line")

# ---- Everybody else goes on
other = lineage("other")
for n in range(1, 4):
    same_tree(put(other, n, SRC), SRC)
remove(other / "2")
equal(names(other), ["1", "3"],
      "the other lineage")
equal(attr(other / "1" / "config.json", "sha256"), sha(SRC / "config.json"),
      "sha256 on demand")
run("sha256sum", "-c", "--quiet", other / "1" / ".weights" / "sha256sums",
    cwd=other / "1")
refused("EBUSY", os.rename, stage, line / "1")
says(attr(stage, "error"), r"config\.json", r"\b%d\b" % os.getpid())

# ---- Killed and interrupted ones end at once
for i, w in enumerate(waiters[:200]):
    w.send_signal([signal.SIGKILL, signal.SIGINT, signal.SIGTERM][i % 3])
for w in waiters[:200]:
    w.wait(10)

# ---- The rest ends when the writer does, and says that it is ready
os.close(writer)
for w in waiters[200:]:
    out = w.communicate(timeout=30)[0].decode()
    equal(w.returncode, 0, f"a waiter that said {out[-200:]!r}")
    equal(out.splitlines()[-1], "ready", "the last word")
same_tree(publish(stage), SRC)
# Waiting for what has been published, and for what is gone.
says((line / "1" / ".weights" / "wait").read_text(), "ready")
stage = staging(line, 2, SRC)
writer = os.open(stage / "config.json", os.O_RDWR)
cat = subprocess.Popen(["cat", stage / ".weights" / "wait"],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
check(cat.stdout.readline(), "no progress line")
os.close(writer)
shutil.rmtree(stage)
cat.communicate(timeout=30)
EOP
