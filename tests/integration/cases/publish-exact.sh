# SPDX-License-Identifier: Apache-2.0
# A published revision is exactly the tree that was copied in, and stays so.
# MANUAL
# TIMEOUT: 90
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src", files=3, size=200_001)
odd = [b".hidden", b"new\nline", b"a b", b"a" * 255, b"%2F",
       "\u2581".encode(), b"..x", b"7", b"-rf"]
for i, name in enumerate(odd):
    path = os.path.join(os.fsencode(SRC), name)
    with open(path, "wb") as f:
        f.write(b"x" * i)
    os.chmod(path, [0o644, 0o600, 0o444, 0o755, 0o400][i % 5])
deep = SRC / "/".join(["d"] * 20)
deep.mkdir(parents=True)
(deep / "leaf").write_text("leaf")
(SRC / "empty-dir").mkdir()
os.chmod(SRC / "empty-dir", 0o700)
os.symlink("../config.json", SRC / "1_Pooling" / "up")
os.symlink("1_Pooling", SRC / "to-dir")
os.symlink("up", SRC / "1_Pooling" / "to-link")
os.link(SRC / "model-0.safetensors", SRC / "d" / "hard.safetensors")
os.link(SRC / "config.json", SRC / "again.json")
with open(SRC / "sparse", "wb") as f:
    f.seek(30_000_000)
    f.write(b"end")
for i, p in enumerate(sorted(SRC.rglob("*"), key=os.fsencode)):
    os.utime(p, ns=(10**18, 10**18 + i * 1_000_003), follow_symlinks=False)
if os.geteuid() == 0:
    os.chown(SRC / "config.json", 1234, 4321)
    os.lchown(SRC / "to-dir", 1234, 4321)

d = Daemon("control=hidden")
line = lineage()
stage = staging(line, 7, SRC)
same_tree(stage, SRC, owners=True)
inodes = {p.relative_to(stage): p.lstat().st_ino for p in stage.rglob("*")}
gen = publish(stage)


def is_exact():
    same_tree(gen, SRC, owners=True)
    run("diff", "-r", "--no-dereference", SRC, gen)
    check(".weights" not in names(gen), ".weights is listed")
    check(".staging" not in names(line), "an empty .staging is listed")
    equal(names(line), ["7"], "the lineage")
    equal(os.stat(gen / "sparse").st_blocks * 512 < 1 << 20, True, "sparse")
    equal(sorted(p.relative_to(gen) for p in gen.rglob("*")),
          sorted(p.relative_to(SRC) for p in SRC.rglob("*")), "names")


is_exact()
equal({p.relative_to(gen): p.lstat().st_ino for p in gen.rglob("*")}, inodes,
      "inode numbers through the rename")
refused("ENOENT", os.stat, stage)

# The copies that people make of it are equal to the source, too.
run("cp", "-a", gen, WORK / "copy")
same_tree(WORK / "copy", SRC)
if shutil.which("rsync"):
    run("rsync", "-aH", f"{gen}/", WORK / "rsynced")
    same_tree(WORK / "rsynced", SRC)

# And so after a restart, and after a kill.
d.stop()
d.start()
is_exact()
d.kill()
d.start()
is_exact()

# Another generation with the same names, sizes and times is another one.
gen8 = staging(line, 8, SRC)
other = gen8 / "model-0.safetensors"
with open(other, "r+b") as f:
    f.seek(-10, os.SEEK_END)
    f.write(b"0123456789")
st = os.stat(SRC / "model-0.safetensors")
os.utime(other, ns=(st.st_atime_ns, st.st_mtime_ns))
want = sha(other)
gen8 = publish(gen8)
is_exact_8 = sha(gen8 / "model-0.safetensors")
equal(is_exact_8, want, "generation 8")
equal(sha(gen / "model-0.safetensors"), sha(SRC / "model-0.safetensors"), "7")
equal(sha(gen8 / "d" / "hard.safetensors"), want, "its hard link")
d.stop()

# publish_mode changes modes at the rename, and nothing else.
d = Daemon("publish_mode=a+rX")
stage = staging(line, 9, SRC)
os.chmod(stage, 0o700)
gen = publish(stage)
wait_for(lambda: gen.stat().st_mode & 0o777 == 0o755, "mode of the root", 5)
for p in SRC.rglob("*"):
    if p.is_symlink():
        continue
    mode = p.stat().st_mode
    want = mode | 0o444 | (0o111 if mode & 0o111 or p.is_dir() else 0)
    # The kernel may show what it knew for another second.
    wait_for(lambda: (gen / p.relative_to(SRC)).stat().st_mode == want,
             f"mode {want:o} of {p}", 5)
equal((gen / "config.json").read_bytes(), (SRC / "config.json").read_bytes(),
      "bytes")
d.stop()
EOP
