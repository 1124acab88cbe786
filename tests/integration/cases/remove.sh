# SPDX-License-Identifier: Apache-2.0
# A revision is removed as a whole and by name only, and leaves a tombstone.
# MANUAL
# TIMEOUT: 90
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src", size=500_000)
d = Daemon("durability=none")
line = lineage()
gen = put(line, 7, SRC)
other = put(line, 8, SRC)


def removed(path):
    try:
        remove(path)
        return True
    except OSError as e:
        equal(e.errno, errno.EBUSY, "remove")
        return False


# ---- Held: EBUSY with who holds it, and nothing changes
with Client() as c:
    c.do("m = mapped(args[0])", gen / "model.safetensors")
    refused("EBUSY", remove, gen)
    says(attr(gen, "error"), r"model\.safetensors", r"\b%d\b" % c.pid,
         "python")
    says(run("setfattr", "-n", "user.weights.remove", "-v", "7", gen,
             status=1), "Device or resource busy")
    same_tree(gen, SRC)
    # A tensor's file holds it, too.
    c.do("m.close(); m = mapped(args[0])",
         gen / ".weights" / "tensors" / "layers.0.a.weight")
    refused("EBUSY", remove, gen)
    says(attr(gen, "error"), r"\b%d\b" % c.pid)
    c.do("m.close()")
    # A cwd in it is no hindrance, as on any disk.
    c.do("os.chdir(args[0])", other)

# ---- A value that is not this generation's number
for value in ["8", "0", "", "07", "7 ", "all", "-7", "7,if=", "7,if=x",
              "7,force=1", "7" * 100, "7\0"]:
    refused("EINVAL", set_attr, gen, "remove", value)
    check(attr(gen, "error"), f"no sentence for {value!r}")
same_tree(gen, SRC)
refused("ECANCELED", set_attr, gen, "remove", "7,if=99999")
# Where it does not apply
for path in (line, MNT, gen / "config.json", gen / "1_Pooling"):
    refused("EPERM|EINVAL|EOPNOTSUPP|EROFS", set_attr, path, "remove", "7")
refused("ENODATA", attr, gen, "remove")
check("user.weights.remove" not in os.listxattr(gen), "remove is listed")

# ---- Removed: gone at once, for everybody, with all of its files
current = attr(gen, "metadata_generation")
held = os.open(gen, os.O_RDONLY | os.O_DIRECTORY)


def fenced():
    try:
        set_attr(gen, "remove",
                 f"7,if={attr(gen, 'metadata_generation')}")
        return True
    except OSError as e:
        equal(e.errno, errno.EBUSY, "remove")
        return False


wait_for(fenced, "removal with its fence")
refused("ENOENT", os.stat, gen)
refused("ENOENT", os.stat, gen / "config.json")
refused("ENOENT|ESTALE", os.open, "config.json", os.O_RDONLY, dir_fd=held)
os.close(held)
equal(names(line), ["8"], "the lineage")
wait_for(lambda: len([p for p in STORE.rglob("model.safetensors")]) == 1,
         "its bytes go")

# ---- The tombstone: the number is never used again
refused("EEXIST", os.mkdir, line / ".staging" / "7")
says(attr(line, "error"), "7")
refused("ENOENT", os.stat, gen)
same_tree(other, SRC)
d.stop()
d.start()
refused("EEXIST", os.mkdir, line / ".staging" / "7")
equal(names(line), ["8"], "after a restart")
d.kill()
d.start()
refused("EEXIST", os.mkdir, line / ".staging" / "7")

# ---- rm -r of a staging directory aborts, and its number is free
stage = staging(line, 9, SRC)
with open(stage / "model.safetensors", "rb") as f:
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
run("rm", "-r", stage)
equal(m[:], (SRC / "model.safetensors").read_bytes(), "mapped all the while")
m.close()
refused("ENOENT", os.stat, stage)
wait_for(lambda: len([p for p in STORE.rglob("model.safetensors")]) == 1,
         "its bytes go")
put(line, 9, SRC)
run("rm", "-rf", line / ".staging")
equal(names(line), ["8", "9"], "rm -rf of .staging")
stage = staging(line, 10)
os.rmdir(stage)
os.mkdir(stage)
refused("ENOTEMPTY", os.rmdir, staging(line, 11, SRC))

# ---- A kill at the moment of removal: gone or whole
for n in range(20, 26):
    gen = put(line, n, SRC)
    c = Client()
    c.send("exec", "remove(args[0])", gen)
    time.sleep(random.Random(n).random() * 0.01)
    d.kill()
    ok = True
    try:
        c.answer()
    except OSError:
        ok = False
    c.end()
    d.start()
    if gen.exists():
        check(not ok, "removal was acknowledged, but it is back")
        same_tree(gen, SRC)
        wait_for(lambda: removed(gen), "removal")
    refused("EEXIST", os.mkdir, line / ".staging" / str(n))
d.stop()
EOP
