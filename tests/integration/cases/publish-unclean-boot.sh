# SPDX-License-Identifier: Apache-2.0
# What was staged before a power loss is published only if it is known whole;
# what was published is verified before it is served, unless it was durable.
# MANUAL
# TIMEOUT: 150
need_root
need unshare mount
. "$TESTS/integration/tools/py.sh"
# What is damaged answers so.
expect_log 'Input/output error'

# The kernel tells boots apart by a file. Another one is bound over it, in a
# mount namespace that ends with the program.
APART=$(private_mounts) || skip "no mount namespaces"

IN_FRONT=$APART py <<'EOP'
import uuid

from wf import *


def boot():
    """What daemons start from now on runs after another boot."""
    fresh = WORK / f"boot_id.{uuid.uuid4()}"
    fresh.write_text(f"{uuid.uuid4()}\n")
    run("mount", "--bind", fresh, "/proc/sys/kernel/random/boot_id")


def backing(path):
    """The file in the store that a file of the mount is."""
    ino = path.stat().st_ino
    found = [p for p in STORE.rglob(path.name) if p.stat().st_ino == ino]
    equal(len(found), 1, f"files in the store behind {path}")
    return found[0]


def zero(path, keep):
    """What a power cut may leave: the size and the start, then zeros."""
    st = path.stat()
    with open(path, "r+b") as f:
        f.truncate(keep)
        f.truncate(st.st_size)
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))


def cut(daemon):
    """The machine goes down and comes up again."""
    daemon.kill()
    run("umount", "-l", MNT)
    boot()


SRC = checkpoint("src", size=300_000, files=2)
boot()
# ---- Staged files: here a wait makes them safe
d = Daemon("durability=writethrough")
says((MNT / ".weights" / "health").read_text(), "unclean boots: 0")
line = lineage()
gen = put(line, 1, SRC)
plain = staging(line, 2, SRC)
synced = staging(line, 3, SRC)
ready(synced)
late = staging(line, 4, SRC)
ready(late)
with open(late / "config.json", "a") as f:
    f.write("after it was safe\n")
whole = staging(line, 5)
shutil.copytree(SRC, whole, dirs_exist_ok=True)
wait_for(lambda: re.search("digests: [^;]*4 of 4", attr(whole, "progress")),
         "digests")
for p in whole.rglob("*"):
    if p.is_file():
        fd = os.open(p, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


zeroed = [backing(plain / "model-0.safetensors"),
          backing(synced / "model-1.safetensors")]
cut(d)
for path in zeroed:
    zero(path, 2000)
d = Daemon("durability=writethrough")
says((MNT / ".weights" / "health").read_text(), "unclean boots: 1")
# What was published was durable, and is there.
same_tree(gen, SRC)
equal(names(line / ".staging"), ["2", "3", "4", "5"], "still staged")

# ---- Never made safe: refused, naming the files; every file is suspect
refused("ECANCELED", publish, plain)
says(attr(plain, "error"), r"model-0\.safetensors", "write")
check(plain.exists() and not (line / "2").exists(), "half moved")
# ---- Made safe, then damaged by the cut: refused, naming just that file
refused("ECANCELED", publish, synced)
says(attr(synced, "error"), r"model-1\.safetensors")
check("model-0" not in attr(synced, "error"), attr(synced, "error"))
# ---- Changed after it was safe: that file is named
refused("ECANCELED", publish, late)
says(attr(late, "error"), r"config\.json")
check("model" not in attr(late, "error"), attr(late, "error"))
says(run("mv", "-T", late, line / "4", status=1), "Operation canceled")
# ---- fsync of each file is enough
same_tree(publish(whole), SRC, times=False)

# ---- Writing them again clears it
run("cp", SRC / "model-1.safetensors", synced)
same_tree(publish(synced), SRC, times=False)
os.unlink(late / "config.json")
run("cp", SRC / "config.json", late)
same_tree(publish(late), SRC, times=False)
run("cp", "-r", f"{SRC}/.", plain)
same_tree(publish(plain), SRC, times=False)

# ---- The death of a daemon alone, in the same boot, makes nothing suspect
stage = staging(line, 10, SRC)
d.kill()
d.start()
same_tree(publish(stage), SRC)
# ---- A shutdown in order doesn't either
stage = staging(line, 11, SRC)
ready(stage)
d.stop()
boot()
d = Daemon("durability=writethrough")
same_tree(publish(stage), SRC)

# ---- Published ones. What was durable is served at once, unread
BIG = checkpoint("big", size=1_500_000, files=2)
SLOW = "io_limit=300K"  # so that writing back isn't over before the cut
d.stop()
d = Daemon()
durable = put(line, 20, BIG)
says(ready(durable), "ready")
equal(attr(durable, "durable"), "yes", "durable")
cut(d)
d = Daemon(SLOW)
same_tree(durable, BIG)
equal(attr(durable, "availability"), "ready", "of what was durable")
equal((metric("weightfs_bytes_hashed_total"),
       metric("weightfs_bad_chunks_total")), (0, 0), "read, bad")

# ---- What wasn't is read first, and then it is as it was, or isn't served
good, zeroed, lost = (put(line, n, BIG) for n in (21, 22, 23))
for gen in (good, zeroed, lost):
    equal(attr(gen, "durable"), "no", "durable")
bad = backing(zeroed / "model-1.safetensors")
gone = backing(lost / "config.json")
cut(d)
zero(bad, 2000)
gone.unlink()
d = Daemon()
same_tree(good, BIG)
check(metric("weightfs_bytes_hashed_total") >= 1_500_000, "read before")
equal(attr(good, "availability"), "ready", "of what is whole")
refused("EIO", sha, zeroed / "model-1.safetensors")
equal(sha(zeroed / "model-0.safetensors"), sha(BIG / "model-0.safetensors"),
      "the file that is whole")
wait_for(lambda: attr(zeroed, "availability") == "degraded", "degraded")
says(attr(zeroed, "error"), r"model-1\.safetensors", r"layers\.1\.[ab]\.weight")
check("model-0" not in attr(zeroed, "error"), attr(zeroed, "error"))
wait_for(lambda: attr(lost, "availability") == "degraded", "degraded")
says(attr(lost, "error"), r"config\.json")
refused("EIO", sha, lost / "config.json")
equal(sha(lost / "model-1.safetensors"), sha(BIG / "model-1.safetensors"),
      "what was not lost")
check(metric("weightfs_bad_chunks_total") >= 2, "bad chunks are counted")
# A good one becomes durable in the end; of the others, what is put back does.
says(ready(good), "ready")
equal(attr(good, "durable"), "yes", "durable")
stage = staging(line, 24, BIG)
ready(stage)
for gen in (zeroed, lost):
    equal(attr(gen, "durable"), "no", "of what is damaged")
    set_attr(gen, "repair", 1)
    says(ready(gen), "ready")
    equal(attr(gen, "availability"), "ready", "mended")
    equal(attr(gen, "durable"), "yes", "durable")
    same_tree(gen, BIG, times=False)

# ---- Staged ones, where a wait makes nothing safe: only fsync does
plain = staging(line, 30, SRC)
ready(plain)
whole = staging(line, 31, SRC)
ready(whole)
for p in whole.rglob("*"):
    if p.is_file():
        fd = os.open(p, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
cut(d)
d = Daemon()
refused("ECANCELED", publish, plain)
says(attr(plain, "error"), "model-0", "config")
same_tree(publish(whole), SRC)
d.stop()
EOP
