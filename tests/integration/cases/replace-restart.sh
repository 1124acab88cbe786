# SPDX-License-Identifier: Apache-2.0
# The daemon dies in each phase of a replacement. The next one goes on with it,
# and what was there stays there until something else is.
# MANUAL
# TIMEOUT: 240
. "$TESTS/integration/tools/py.sh"
# What was made undeletable doesn't stay, whatever happens.
free_all() {
	local status=$?
	set +e
	chattr -R -f -i "$STORE" 2>/dev/null
	(exit "$status")
	clean_up
}
trap free_all EXIT

py <<'EOP'
from claims import *
from wf import *

MIB = 1 << 20
SRC, NEW = checkpoint("src", seed=1), checkpoint("new", seed=2)
BIG = checkpoint("big", size=8 * MIB, seed=3)
os.environ["PATH"] += ":/sbin:/usr/sbin"


def again():
    d.kill()
    d.restart()


def synced(tree):
    for p in [*tree.rglob("*"), tree]:
        fd = os.open(p, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def is_whole_or_goes(gen, source):
    """Who goes on after a restart may delete a base while it is read."""
    try:
        same_tree(gen, source)
    except (AssertionError, FileNotFoundError):
        if gen.exists():
            raise
    except OSError as e:
        equal(e.errno, errno.EBUSY, "reading")


def based(name):
    line = lineage(name)
    gen = put(line, 7, SRC)
    ready(gen)
    return line, gen, staging(line, 8)


def is_replaced(line, source, mode, request):
    comes_to(line, "completed", 60)
    is_claimed(line, 7, 8, mode, "completed", request, 8)
    wait_for((MNT / ".weights" / "tombstones" / line.relative_to(MNT) /
              "7.json").exists, "the tombstone of the base")
    equal([n for n in names(line) if n != ".staging"], ["8"], "the lineage")
    same_tree(line / "8", source)


d = Daemon("io_limit=2M")

# ---- PUT_FIRST: announced, copied, published, durable, read, deleted, over
line, gen, stage = based("put")
announce(stage, 7, "put_first", "r1")
again()
is_claimed(line, 7, 8, "put_first", "preparing_target", "r1", 7)
equal(attr(stage, "replaces"), "7,mode=put_first,request_id=r1", "replaces")
same_tree(gen, SRC)
announce(stage, 7, "put_first", "r1")
run("cp", "-a", f"{BIG}/.", stage)
synced(stage)
again()
is_claimed(line, 7, 8, "put_first", "preparing_target", "r1", 7)
same_tree(stage, BIG)
same_tree(gen, SRC)
other = staging(line, 9, NEW)
ready(other)
refused("EBUSY", os.rename, other, line / "9")
reader = Client()
reader.do("m = mapped(args[0])", gen / "model.safetensors")
target = publish(stage)
again()
# Without the kernel's help nobody outlives the daemon.
if not passthrough():
    reader.end()
    reader = Client()
    reader.do("m = mapped(args[0])", gen / "model.safetensors")
check(gen.exists() and target.exists(), "both are there")
equal(attr(target, "durable"), "no", "too fast to look at what is between")
is_claimed(line, 7, 8, "put_first", "preparing_target", "r1", 7)
same_tree(target, BIG)
same_tree(gen, SRC)
refused("EBUSY", remove, gen)
comes_to(line, "retiring_base", 60)
refused("EBUSY", os.rename, other, line / "9")
again()
if passthrough():
    is_claimed(line, 7, 8, "put_first", "retiring_base", "r1", 8)
    for _ in range(5):
        equal(reader.get("bytes(m)"), (SRC / "model.safetensors").read_bytes(),
              "what the reader sees")
        check(gen.exists(), "removed under its reader")
        time.sleep(0.3)
    refused("EBUSY", open, gen / "config.json")
    refused("EBUSY", os.rename, other, line / "9")
reader.end()
is_replaced(line, BIG, "put_first", "r1")
check(counted("recoveries", "put_first") > 0, "nothing was recovered")
again()
is_replaced(line, BIG, "put_first", "r1")
os.rename(other, line / "9")

# ---- Killed while the base is deleted
line, gen, stage = based("deleted")
with Stuck(gen) as stuck:
    if stuck.works:
        announce(stage, 7, "put_first", "r1")
        run("cp", "-a", f"{NEW}/.", stage)
        publish(stage)
        comes_to(line, "retiring_base", 60)
        wait_for(lambda: not gen.exists(), "the base goes")
        for _ in range(3):
            again()
            check(not gen.exists(), "it is back")
            is_claimed(line, 7, 8, "put_first", "retiring_base", "r1", 8)
            same_tree(line / "8", NEW)
        stuck.free()
        is_replaced(line, NEW, "put_first", "r1")

# ---- Given up, and killed: it stays so, with the base
line, gen, stage = based("aborted")
announce(stage, 7, "put_first", "r1")
run("cp", "-a", f"{NEW}/.", stage)
shutil.rmtree(stage)
again()
is_claimed(line, 7, 8, "put_first", "aborted", "r1", 7)
same_tree(gen, SRC)
stage = staging(line, 8)
announce(stage, 7)
again()
run("cp", "-a", f"{NEW}/.", stage)
publish(stage)
is_replaced(line, NEW, "put_first", None)

# ---- DELETE_FIRST: announced, copied in part, interrupted, published
line, gen, stage = based("delete")
wait_for(lambda: not subprocess.run(
    ["setfattr", "-n", "user.weights.replaces", "-v",
     "7,mode=delete_first,request_id=r1", stage], check=False,
    stderr=subprocess.DEVNULL).returncode, "it is announced")
again()
run("cp", "-a", NEW / "config.json", stage)
is_claimed(line, 7, 8, "delete_first", "target_importing", "r1", 7)
synced(stage)
again()
is_claimed(line, 7, 8, "delete_first", "target_importing", "r1", 7)
equal(names(stage), ["config.json"], "what is staged")
equal(attr(stage, "replaces"), "7,mode=delete_first,request_id=r1", "replaces")
shutil.rmtree(stage)
again()
equal(claim(line)["error"], "target import interrupted", "its error")
is_claimed(line, 7, 8, "delete_first", "target_importing", "r1", 7)
stage = staging(line, 8)
run("cp", "-a", f"{NEW}/.", stage)
ready(stage)
refused("EBUSY", os.rename, stage, line / "8")
announce(stage, 7, "delete_first", "r1")
again()
is_claimed(line, 7, 8, "delete_first", "target_importing", "r1", 7)
equal(claim(line)["error"], "", "its error")
publish(stage)
again()
is_replaced(line, NEW, "delete_first", "r1")

# ---- At any instant of all of it, again and again
rng = random.Random(1)
line = lineage("often")
at = 1
put(line, at, SRC)
for n in range(12):
    mode = ("put_first", "delete_first")[n % 2]
    ready(line / str(at))
    with Client() as c:
        c.do("sys.path.insert(0, args[0])",
             os.path.join(os.environ["TESTS"], "integration", "tools"))
        c.do("from claims import *")
        c.send("exec", """
line, at, mode, source = args
stage = line / ".staging" / str(at + 1)
stage.mkdir(parents=True, exist_ok=True)
announce(stage, at, mode, "r%d" % at)
run("cp", "-a", f"{source}/.", stage)
publish(stage)
comes_to(line, "completed")
""", line, at, mode, NEW)
        time.sleep(rng.random() * 1.2)
        again()
    stage, target = line / ".staging" / str(at + 1), line / str(at + 1)
    base = line / str(at)
    if mode == "put_first":
        check(base.exists() or target.exists(), "neither is there")
    for gen in (base, target):
        if gen.exists() and not (gen == base and target.exists()):
            is_whole_or_goes(gen, SRC if at == 1 and gen == base else NEW)
    if not target.exists():
        stage.mkdir(parents=True, exist_ok=True)
        try:
            announce(stage, at, mode, f"r{at}")
        except OSError as e:
            # It had begun to be filled, and the base was to go first.
            equal((e.errno, mode), (errno.EPERM, "delete_first"), "announcing")
            shutil.rmtree(stage)
            stage.mkdir()
            announce(stage, at, mode, f"r{at}")
        run("cp", "-a", f"{NEW}/.", stage)
        publish(stage)
    comes_to(line, "completed", 60)
    equal(int(attr(line, "watermark")), at + 1, "watermark")
    wait_for(lambda: not base.exists(), "the base is gone")
    same_tree(target, NEW)
    at += 1
d.stop()
EOP
