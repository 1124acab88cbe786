# SPDX-License-Identifier: Apache-2.0
# While digests take long, nobody else waits, and a rename ends within its time.
# MANUAL
# TIMEOUT: 150
# SERIAL
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
import threading

from wf import *

WAIT_S = 0.4
# A busy machine may keep anybody from running for that long.
GRACE_S = 3.0
SRC = checkpoint("src")
d = Daemon("durability=none", f"publish_wait={int(WAIT_S * 1000)}ms")
line = lineage()
put(line, 1, SRC)
elsewhere = lineage("x", resource="elsewhere")


def big(n):
    """A staged checkpoint that takes seconds to hash. Holes would not."""
    stage = staging(line, n, SRC)
    part = random.Random(n).randbytes(64 << 20)
    with open(stage / "big.bin", "wb", buffering=0) as f:
        for _ in range(48):
            f.write(part)
    return stage


def timed(what, function, *args):
    began = time.monotonic()
    try:
        return function(*args)
    finally:
        took = time.monotonic() - began
        slowest[what] = max(slowest.get(what, 0), took)


slowest = {}
stop = threading.Event()
failures = []


def others():
    """What others do all the while, on this mount and in this lineage."""
    i = 0
    try:
        while not stop.is_set():
            i += 1
            stage = elsewhere / ".staging" / str(i)
            timed("ls of the lineage", names, line)
            timed("ls of .staging", names, line / ".staging")
            timed("a name that is not there", os.path.exists, line / f"no{i}")
            timed("mkdir in .staging", os.mkdir, line / ".staging" / "900")
            timed("rmdir in .staging", os.rmdir, line / ".staging" / "900")
            timed("mkdir elsewhere", os.mkdir, stage)
            (stage / "a").write_text("x")
            os.mkdir(stage / "d")
            timed("a rename elsewhere", os.rename, stage / "a",
                  stage / "d" / "a")
            timed("rm -r elsewhere", shutil.rmtree, stage)
            timed("a symlink", os.symlink, "1", line / "serving")
            timed("its removal", os.unlink, line / "serving")
            timed("open and read", (line / "1" / "config.json").read_text)
            timed("getfattr", attr, line / "1", "availability")
    except BaseException as e:
        failures.append(e)


# ---- The rename gives up in time, and the tree is as it was
stage = big(2)
thread = threading.Thread(target=others, daemon=True)
thread.start()
attempts = 0
for _ in range(3):
    began = time.monotonic()
    try:
        os.rename(stage, line / "2")
        print("# this machine hashes fast")
        break
    except OSError as e:
        equal(e.errno, errno.EAGAIN, "not ready")
        check(time.monotonic() - began <= WAIT_S + GRACE_S,
              f"the rename took {time.monotonic() - began} s")
        says(attr(stage, "error"), "wait")
        says(attr(stage, "progress"), ".")
        attempts += 1
        check(stage.exists() and not (line / "2").exists(), "half moved")
if stage.exists():
    says(run("mv", "-T", stage, line / "2", status=None) or "moved",
         "Resource temporarily unavailable|moved")

# ---- wait: progress lines, interruptible, then the rename hashes nothing
if stage.exists():
    with open(stage / ".weights" / "wait", "rb", buffering=0) as f:
        first = f.read(4096)
    says(first.decode(), r"\S")
    cat = subprocess.Popen(["cat", stage / ".weights" / "wait"],
                           stdout=subprocess.PIPE)
    if cat.stdout.read(1):
        cat.send_signal(signal.SIGINT)
        check(cat.wait(10) in (-signal.SIGINT, 0), "cat is not interrupted")
    said = ready(stage)
    print("# wait said:", said.replace("\n", " | "))
    check(said.endswith("\n") and "ready" in said.splitlines()[-1], said)
    stop.set()
    thread.join(30)
    check(not thread.is_alive(), "somebody hangs")
    if failures:
        raise failures[0]
    before = metric("weightfs_bytes_hashed_total")
    timed("the rename after wait", os.rename, stage, line / "2")
    equal(metric("weightfs_bytes_hashed_total") - before, 0,
          "bytes hashed by a rename after wait")

stop.set()
thread.join(30)
check(not thread.is_alive(), "somebody hangs")
if failures:
    raise failures[0]

# ---- mv interrupted: ends at once, nothing moved
d.stop()
d.restart("durability=none", "publish_wait=60s")
stage = big(3)
mv = subprocess.Popen(["mv", "-T", stage, line / "3"], stderr=subprocess.PIPE,
                      env={**os.environ, "LC_ALL": "C"})


def in_rename():
    with contextlib.suppress(OSError):
        text = pathlib.Path(f"/proc/{mv.pid}/syscall").read_text().split()[0]
        return text == "316" or mv.poll() is not None
    return True


if os.uname().machine == "x86_64":
    wait_for(in_rename, "mv is in renameat2")
mv.send_signal(signal.SIGINT)
status = mv.wait(GRACE_S)
if status == 0:
    print("# too late to be interrupted")
else:
    check(status in (-signal.SIGINT, 1), f"status {status}")
    check(stage.exists() and not (line / "3").exists(), "moved all the same")

    def kill9():
        p = subprocess.Popen(["mv", "-T", stage, line / "3"],
                             stderr=subprocess.DEVNULL)
        wait_for(lambda: p.poll() is not None or pathlib.Path(
            f"/proc/{p.pid}/comm").read_text() == "mv\n", "mv runs")
        p.kill()
        return p.wait(GRACE_S)

    if kill9() == -signal.SIGKILL and stage.exists():
        equal(names(line / ".staging").count("3"), 1, "staged")
    if stage.exists():
        ready(stage)
        os.rename(stage, line / "3")
check((line / "3").exists(), "published in the end")
for what, took in sorted(slowest.items(), key=lambda x: -x[1]):
    print(f"# {took * 1000:7.1f} ms {what}")
    check(took <= WAIT_S + GRACE_S, f"{what} took {took} s")
equal(names(elsewhere / ".staging") if (elsewhere / ".staging").exists()
      else [], [], "left elsewhere")
d.stop()
EOP
