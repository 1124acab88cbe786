# SPDX-License-Identifier: Apache-2.0
# weightctl put copies a tree as it is, publishes it, and leaves nothing behind
# when it can't.
# OPTIONS: durability=none
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

CTL = pathlib.Path(DAEMON).parent.parent / "mount-helpers" / "weightctl"
if not CTL.exists():
    skip("no weightctl")
line = lineage()


def ctl(*argv, status=0, cwd=None):
    return run(CTL, *argv, status=status, cwd=cwd)


def facts_of(*argv):
    done = subprocess.run([CTL, *map(str, argv)], stdout=subprocess.PIPE,
                          check=True)
    return json.loads(done.stdout)


def staged():
    return names(line / ".staging")


# ---- A tree with all that a tree may have
SRC = checkpoint("src", size=3_000_000, files=2)
(SRC / "model-0.safetensors").chmod(0o640)
os.link(SRC / "config.json", SRC / "1_Pooling" / "hard.json")
os.symlink("../config.json", SRC / "1_Pooling" / "soft.json")
(SRC / "empty").touch()
(SRC / "name with \u00fcml\u00e4ut \n and more").write_text("x")
with open(SRC / "holes.bin", "wb") as f:
    f.truncate(20_000_000)
    f.seek(7_000_000)
    f.write(b"data")
(SRC / "hole.bin").touch()
os.truncate(SRC / "hole.bin", 5_000_000)
(SRC / "closed").mkdir()
(SRC / "closed" / "x").write_text("x")
(SRC / "closed").chmod(0o555)
for p in (SRC / "config.json", SRC / "closed", SRC / "1_Pooling", SRC):
    os.utime(p, ns=(1_500_000_000_123_456_789, 1_600_000_000_987_654_321))

new = MNT / "t" / "n" / "other" / "made"
said = ctl("put", SRC, new / "7")
says(said, "published", "9 files|10 files")
same_tree(new / "7", SRC)
equal((new / "7").stat().st_mtime_ns, SRC.stat().st_mtime_ns, "its own time")
equal((new / "7" / "closed").stat().st_mtime_ns,
      (SRC / "closed").stat().st_mtime_ns, "a directory's time")
for name in ("holes.bin", "hole.bin"):
    check((new / "7" / name).stat().st_blocks * 512 < 2_000_000,
          f"the holes of {name} are filled")
equal(staged(), [], "staged")

# Facts as JSON; progress goes elsewhere. A trailing slash, a relative path.
f = facts_of("put", "--json", "--quiet", f"{SRC}/", f"{line}/8/")
equal((f["path"], f["generation"]), (str(line / "8"), 8), "facts")
equal(f["durable"] in (True, False), True, "durable")
check(f["bytes"] > 28_000_000 and f["availability"].lower() == "ready", f)
said = ctl("put", SRC, "9", cwd=line)
same_tree(line / "9", SRC)
# The source may be a revision of the same mount, or a symlink to it.
os.symlink("9", line / "serving")
ctl("put", "-q", line / "serving", line / "10")
same_tree(line / "10", SRC)
# One file alone
ctl("put", SRC / "model-0.safetensors", line / "11")
equal(names(line / "11"), ["model-0.safetensors"], "one file")

# ---- A cache of links to a common folder
cache = WORK / "cache"
(cache / "blobs").mkdir(parents=True)
(cache / "snapshot").mkdir()
shutil.copy(SRC / "model-0.safetensors", cache / "blobs" / "abc")
os.symlink("../blobs/abc", cache / "snapshot" / "model.safetensors")
said = ctl("put", cache / "snapshot", line / "12", status=1)
equal(staged(), [], "what can't be published is removed")
ctl("put", "-L", cache / "snapshot", line / "12")
equal(sha(line / "12" / "model.safetensors"), sha(cache / "blobs" / "abc"),
      "its bytes")
os.symlink(".", cache / "snapshot" / "again")
says(ctl("put", "-L", cache / "snapshot", line / "13", status=1), "leads back")

# ---- Refusals: a sentence with the path, status 1, and nothing stays
before = names(line)
broken = checkpoint("broken")
os.truncate(broken / "model.safetensors", 100)
for argv, pattern in [
        ((SRC, line / "9"), "9 is published"),
        ((SRC, line / "seven"), "generation"),
        ((SRC, line / "07"), "generation"),
        ((SRC, WORK / "elsewhere" / "7"), "not on a mount"),
        ((WORK / "absent", line / "20"), "No such file"),
        (("/dev/null", line / "20"), "neither"),
        ((broken, line / "20"), r"model\.safetensors"),
        ((SRC, MNT / "t" / "n" / "20"), "no lineage"),
        ((MNT, line / "20"), "into itself"),
        ((line, line / "20"), "into itself"),
]:
    said = ctl("put", *argv, status=1)
    says(said, "^weightctl: ", pattern)
    equal(staged(), [], f"after {argv}")
equal(names(line), before, "generations")
check(not (WORK / "elsewhere").exists(), "made something elsewhere")
os.mkfifo(SRC / "fifo")
says(ctl("put", SRC, line / "20", status=1), "fifo.*neither")
os.unlink(SRC / "fifo")
# With --keep it stays.
ctl("put", "--keep", broken, line / "20", status=1)
equal(staged(), ["20"], "kept")
same_tree(line / ".staging" / "20", broken)
# Not the sentence of an earlier refusal
says(ctl("put", SRC, line / "20", status=1), r"20: an import .* is there")
equal(staged(), ["20"], "what another one staged")
same_tree(line / ".staging" / "20", broken)
shutil.rmtree(line / ".staging" / "20")

# ---- Wrong commands: status 2
for argv in [(), ("put",), ("put", SRC), ("put", SRC, "a", "b"), ("nothing",),
             ("put", "--nothing", SRC, line / "20"),
             ("rm", "--json", line / "9")]:
    ctl(*argv, status=2)

BIG = checkpoint("big", size=400_000_000)


# ---- A signal: what was staged goes, and the program ends by the signal
def interrupted(number, *options):
    stage = line / ".staging" / "30"
    p = subprocess.Popen(
        [CTL, "put", *options, BIG, line / "30"], stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    # Somebody who writes keeps it from going on.
    file = wait_for(lambda: next(stage.glob("model.*"), None), "it copies")
    fd = os.open(file, os.O_RDWR)
    p.send_signal(number)
    _, said = p.communicate(timeout=60)
    os.close(fd)
    equal(p.returncode, -number, f"status ({said})")
    says(said.decode(), "interrupted")
    check(not (line / "30").exists(), "published")
    return stage


for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    stage = interrupted(number)
    equal(staged(), [], "after a signal")
stage = interrupted(signal.SIGINT, "--keep")
equal(staged(), ["30"], "kept")
shutil.rmtree(stage)

# Facts that can't be written are said to be lost.
with open("/dev/full", "w") as full:
    p = subprocess.run([CTL, "ls", line], stdout=full, stderr=subprocess.PIPE)
equal(p.returncode, 1, "status")
says(p.stderr.decode(), "standard output")

# Where nothing gets durable, waiting for that is no success.
says(ctl("put", "--durable", SRC / "config.json", line / "14", status=1),
     "is published, and nothing makes it durable")
equal(attr(line / "14", "availability"), "ready", "availability")

# Nobody who reads what it says: it goes on, and cleans up.
p = subprocess.Popen([CTL, "put", broken, line / "31"],
                     stderr=subprocess.PIPE)
p.stderr.close()
equal(p.wait(60), 1, "status")
equal(staged(), [], "after a closed pipe")


# ---- Progress: a bar on a terminal only
def progress(*argv):
    import pty
    above, below = pty.openpty()
    p = subprocess.Popen([CTL, *map(str, argv)], stdout=subprocess.DEVNULL,
                         stderr=below)
    os.close(below)
    text = b""
    with contextlib.suppress(OSError):
        while part := os.read(above, 4096):
            text += part
    os.close(above)
    equal(p.wait(), 0, "status")
    return text.decode()


said = progress("put", BIG, line / "40")
says(said, "\r", r"copying \[#*\.+\]", r"MiB")
check("\x1b[" not in said.replace("\x1b[K", ""), "colours")
equal(progress("put", "-q", SRC, line / "41"), "", "quiet")
said = ctl("put", SRC, line / "42")
check("\r" not in said and "[" not in said, f"a bar in a file: {said!r}")
same_tree(line / "40", BIG)

# ---- Not root: the same, with what he may
if os.geteuid() == 0:
    os.chown(line, 12345, 12345)
    WORK.chmod(0o755)
    drop = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    need("setpriv")
    run(*drop, CTL, "put", SRC, line / "50", status=1)
    equal(staged(), [], "after a file that he can't read")
    (SRC / "model-0.safetensors").chmod(0o644)
    run(*drop, CTL, "put", SRC, line / "50")
    same_tree(line / "50", SRC)
    equal((line / "50" / "config.json").stat().st_uid, 12345, "owner")
    says(run(*drop, CTL, "put", SRC, MNT / "u" / "n" / "r" / "v" / "1",
             status=1), "Permission denied")
EOP
