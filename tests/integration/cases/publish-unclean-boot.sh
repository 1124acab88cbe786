# SPDX-License-Identifier: Apache-2.0
# What was staged before a power loss is published only if it is known whole.
# MANUAL
need_root
need unshare mount
. "$TESTS/integration/tools/py.sh"

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


SRC = checkpoint("src", size=300_000, files=2)
boot()
d = Daemon()
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
wait_for(lambda: "4 of 4 files;" in attr(whole, "progress"), "digests")
for p in whole.rglob("*"):
    if p.is_file():
        fd = os.open(p, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def backing(path):
    """The file in the store that a staged file is."""
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


zeroed = [backing(plain / "model-0.safetensors"),
          backing(synced / "model-1.safetensors")]
d.kill()
for path in zeroed:
    zero(path, 2000)
run("umount", "-l", MNT)

boot()
d = Daemon()
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
d = Daemon()
same_tree(publish(stage), SRC)
d.stop()
EOP
