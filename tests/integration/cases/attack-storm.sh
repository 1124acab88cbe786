# SPDX-License-Identifier: Apache-2.0
# Everything at once, with clients killed at random: nobody hangs, no byte goes.
# OPTIONS: durability=none,publish_wait=2s
# TIMEOUT: 180
. "$TESTS/integration/tools/py.sh"
expect_log 'too many requests'

py <<'EOP'
import threading

from wf import *

ROUNDS = 60
SRC = [checkpoint(f"src{i}", size=200_000 + i, seed=i) for i in range(3)]
FACTS = [facts(s, times=False) for s in SRC]
lines = [lineage(f"l{i}") for i in range(2)]
ANY = (OSError, AssertionError, ValueError, FileNotFoundError)


def quietly(f, *args):
    with contextlib.suppress(*ANY):
        return f(*args)


def shell(*argv):
    subprocess.run([str(a) for a in argv], stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, check=False)


def putter(rng, line):
    n = rng.randrange(1, 40)
    stage = line / ".staging" / str(n)
    os.mkdir(stage)
    shell("cp", "-r", f"{SRC[n % 3]}/.", stage)
    if rng.random() < .5:
        quietly(ready, stage)
    shell("mv", "-T", stage, line / str(n))


def aborter(rng, line):
    shell("rm", "-rf", line / ".staging" / str(rng.randrange(1, 40)))


def remover(rng, line):
    gens = [x for x in names(line) if x.isdigit()]
    if gens:
        remove(line / rng.choice(gens))


def reader(rng, line):
    gens = [x for x in names(line) if x.isdigit()]
    if not gens:
        return
    gen = line / rng.choice(gens)
    m = mapped(gen / "model.safetensors")
    t = mapped(gen / ".weights" / "tensors" / "layers.0.a.weight")
    for f in ("manifest.json", "sha256sums", "metadata.json", "wait"):
        (gen / ".weights" / f).read_bytes()
    hashlib.sha256(m).digest()
    hashlib.sha256(t).digest()


def lister(rng, line):
    shell("ls", "-lR", MNT)
    shell("getfattr", "-d", *line.glob("*"))
    for f in (MNT / ".weights").iterdir():
        f.read_bytes()


def meddler(rng, line):
    for stage in (line / ".staging").iterdir():
        quietly(os.rename, stage / "config.json", stage / "c2")
        quietly(os.link, stage / "c2", stage / "c3")
        quietly(os.unlink, stage / "c3")
        quietly(os.rename, stage / "c2", stage / "config.json")
        other = lines[0] if line is lines[1] else lines[1]
        for o in (other / ".staging").iterdir():
            quietly(os.rename, stage / "1_Pooling" / "config.json",
                    o / "1_Pooling" / "config.json")
            quietly(os.truncate, o / "config.json", 100)
            quietly(os.copy_file_range, os.open(o / "config.json", 0),
                    os.open(stage / "config.json", os.O_WRONLY), 10)
        quietly(os.setxattr, stage / "config.json", "user.x", b"y")


ROLES = [putter, putter, putter, aborter, remover, reader, reader, lister,
         meddler]


def child(role, seed):
    rng = random.Random(seed)
    for _ in range(100):
        quietly(role, rng, rng.choice(lines))
    os._exit(0)


def start(i):
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        child(ROLES[i % len(ROLES)], random.random())
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return pid


def end(pid):
    """Kills it with all it started, and waits for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        check(time.monotonic() < deadline, "a killed client hangs: " + run(
            "sh", "-c", f"cat /proc/{pid}/stack /proc/{pid}/wchan",
            status=None))
        time.sleep(.01)


pids = [start(i) for i in range(len(ROLES))]
for r in range(ROUNDS):
    time.sleep(random.random() / 3)  # not for a state: any moment will do
    i = random.randrange(len(pids))
    how = random.random()
    if how < .2:
        os.killpg(pids[i], signal.SIGSTOP)
        time.sleep(random.random() / 3)
        os.killpg(pids[i], signal.SIGCONT)
    else:
        end(pids[i])
        pids[i] = start(i)
for p in pids:
    end(p)


def is_mine(pid):
    try:
        return str(MNT).encode() in pathlib.Path(
            f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


wait_for(lambda: not [p for p in os.listdir("/proc") if p.isdigit() and
                      p not in (str(os.getpid()), os.environ["DAEMON_PID"]) and
                      is_mine(p) and "case.py" not in pathlib.Path(
                          f"/proc/{p}/cmdline").read_text() and
                      "run.sh" not in pathlib.Path(
                          f"/proc/{p}/cmdline").read_text()],
         "all clients are gone", 30)
whole = 0
for line in lines:
    for name in names(line):
        if not name.isdigit():
            continue
        gen = line / name
        # Meddlers and killed copies publish odd trees, but never untrue ones.
        run("sha256sum", "-c", "--quiet", gen / ".weights" / "sha256sums",
            cwd=gen)
        manifest = json.loads((gen / ".weights" / "manifest.json").read_text())
        digests = sorted(o["digest"] for o in manifest["objects"])
        inodes = {os.lstat(p).st_ino: p for p in gen.rglob("*")
                  if p.is_file() and not p.is_symlink()}
        equal(sorted(attr(p, "digest") for p in inodes.values()), digests,
              "digests")
        for p in inodes.values():
            chunk = manifest["objects"][0]["chunk_size"]
            data = p.read_bytes()
            chunks = [hashlib.sha256(data[i:i + chunk]).digest()
                      for i in range(0, len(data), chunk)]
            equal(attr(p, "digest"), hashlib.sha256(b"".join(
                chunks)).hexdigest(), f"digest of {p}")
        if facts(gen, times=False) == FACTS[int(name) % 3]:
            whole += 1
        wait_for(lambda: quietly(remove, gen) or not gen.exists(),
                 f"{gen} can be removed", 20)
published, removed = (metric(f"weightfs_{x}_total")
                      for x in ("publishes", "removals"))
print(f"# {published} published, {removed} removed, {whole} whole at the end")
check(published > 5 and removed > 0, "nothing happened")
for line in lines:
    shell("rm", "-rf", *(line / ".staging").iterdir())
    equal([x for x in names(line) if x != ".staging"], [], "left over")
    os.rmdir(line)
EOP
