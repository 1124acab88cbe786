# SPDX-License-Identifier: Apache-2.0
# Hundreds who wait cost little, end when killed, and keep nobody from waiting.
# OPTIONS: durability=none
# TIMEOUT: 120
need_root
need setpriv
. "$TESTS/integration/tools/py.sh"
expect_log 'too many requests'

py <<'EOP'
from wf import *

FILES, MANY, USER = 2000, 300, 12345
pid = os.environ["DAEMON_PID"]
line = lineage()
SRC = checkpoint("src")


def rss():
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) * 1024


def threads():
    return len(os.listdir(f"/proc/{pid}/task"))


def wait_by(n, *front):
    return [subprocess.Popen([*front, "cat", stage / ".weights" / "wait"],
                             stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL) for _ in range(n)]


stage = staging(line, 1)
for i in range(FILES):
    (stage / f"f{i}").write_bytes(b"x")
held = os.open(stage / "f0", os.O_RDWR)
before, idle = rss(), threads()
waiters = wait_by(MANY)
wait_for(lambda: threads() >= idle + MANY, "all of them wait")
grown = rss() - before
print(f"# {grown / MANY / 1024:.0f} KiB for each waiter")
if not re.search("lib[at]san", pathlib.Path(f"/proc/{pid}/maps").read_text()):
    check(grown < 48 << 20, f"the daemon grew by {grown} bytes")

# Beside them all goes on.
gen = put(line, 2, SRC)
same_tree(gen, SRC)
equal(names(line), [".staging", "2"], "names")

# Some are stopped, some killed: the latter end at once.
for p in waiters[:50]:
    p.send_signal(signal.SIGSTOP)
for p in waiters[50:150]:
    p.kill()
for p in waiters[50:150]:
    equal(p.wait(20), -signal.SIGKILL, "a killed waiter")
for p in waiters[:50]:
    p.send_signal(signal.SIGCONT)

# A user who takes all that one user may have leaves room for others.
mine = os.access(WORK, os.X_OK) and subprocess.run(
    ["setpriv", f"--reuid={USER}", "--clear-groups", "ls", stage],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
if mine:
    greedy = wait_by(400, "setpriv", f"--reuid={USER}", "--clear-groups")
    wait_for(lambda: any(p.poll() for p in greedy), "one too many", 30)
    same_tree(put(line, 3, SRC), SRC)
    for p in greedy:
        p.kill()
    for p in greedy:
        p.wait(20)
for p in waiters[:50] + waiters[150:]:
    equal(p.poll(), None, "still waiting")

# What they wait for happens: all are told.
os.close(held)
for p in waiters[:50] + waiters[150:]:
    equal(p.wait(30), 0, "a waiter")
wait_for(lambda: threads() <= idle + 1, "their threads are gone")
publish(stage)
EOP
