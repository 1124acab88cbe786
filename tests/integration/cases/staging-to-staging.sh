# SPDX-License-Identifier: Apache-2.0
# A file moved to another staging tree belongs to that one, with its holders.
# OPTIONS: durability=none
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src")
line, other = lineage(), lineage("other")


def publishes(stage):
    os.rename(stage, stage.parent.parent / stage.name)
    return stage.parent.parent / stage.name


for i, target in enumerate([line, other]):
    a, b = staging(line, 10 + 2 * i, SRC), staging(target, 11 + 2 * i, SRC)
    (a / "deep" / "er").mkdir(parents=True)
    (a / "deep" / "er" / "f").write_text("before")
    (a / "deep" / "er" / "g").write_text("g")
    ready(a)
    c = Client()
    (b / "moved" / "er").mkdir(parents=True)
    c.do("f = os.open(args[0], os.O_RDWR); d = os.open(args[1], "
         "os.O_RDONLY | os.O_DIRECTORY); os.chdir(args[1])",
         a / "deep" / "er" / "f", b / "moved" / "er")
    refused("EPERM", os.rename, a / "deep", b / "moved2")
    for name in ("f", "g"):
        os.rename(a / "deep" / "er" / name, b / "moved" / "er" / name)
    shutil.rmtree(a / "deep")
    # The writer is b's now: a can be published, b can't.
    gen_a = publishes(a)
    same_tree(gen_a, SRC)
    refused("EBUSY", publishes, b)
    says(attr(b, "error"), r"er/f", r"\b%d\b" % c.pid)
    c.do("os.pwrite(f, b'after!', 0)")
    c.do("open('new', 'w').write('made through a cwd')")
    c.do("os.close(f)")
    gen_b = publishes(b)
    equal((gen_b / "moved" / "er" / "f").read_text(), "after!", "moved file")
    equal((gen_b / "moved" / "er" / "new").read_text(), "made through a cwd",
          "through the cwd")
    for text in ["open('new2', 'w')", "open('f', 'r+')", "os.unlink('f')",
                 "os.open('x', os.O_CREAT | os.O_WRONLY, dir_fd=d)",
                 "os.truncate('f', 0)", "os.rename('f', 'y')",
                 "os.mkdir('z')", "os.chmod('f', 0o777)"]:
        refused("EROFS", c.do, text)
    run("sha256sum", "-c", "--quiet", gen_b / ".weights" / "sha256sums",
        cwd=gen_b)
    same_tree(gen_a, SRC)
    # It is b's lease and b's removal that it counts for.
    c.do("m = mapped('f')")
    refused("EBUSY", remove, gen_b)

    def removed(gen):
        try:
            remove(gen)
            return True
        except OSError as e:
            equal(e.errno, errno.EBUSY, "remove")
            return False

    wait_for(lambda: removed(gen_a), "the other one's removal")
    refused("EBUSY", remove, gen_b)
    c.end()
    wait_for(lambda: removed(gen_b), "removal")

# A file with a name in one tree gets none in another.
a, b = staging(line, 50, SRC), staging(line, 51, SRC)
refused("EXDEV|EPERM", os.link, a / "config.json", b / "linked")
os.link(a / "config.json", a / "second")
try:
    os.rename(a / "config.json", b / "half")
except OSError as e:
    check(e.errno in (errno.EPERM, errno.EBUSY), repr(e))
else:
    # Then it has a name in each: neither may be published like that.
    for stage in (a, b):
        refused("EBADMSG|EBUSY", publishes, stage)
    os.unlink(a / "second")
    publishes(b)

# A file moved while its tree is being published waits, or is refused.
a, b = staging(line, 60, SRC), staging(line, 61, SRC)
with open(a / "big.bin", "wb") as f:
    for _ in range(32):
        f.write(os.urandom(1 << 20))
c = Client()
c.send("exec", "os.rename(*args)", a, line / "60")
moved = True
try:
    os.rename(a / "config.json", b / "taken")
except OSError as e:
    moved = False
    check(e.errno in (errno.EROFS, errno.ENOENT, errno.EPERM), repr(e))
c.answer()
c.end()
equal((line / "60" / "config.json").exists(), not moved, "in one of them only")
equal((b / "taken").exists(), moved, "in one of them only")
run("sha256sum", "-c", "--quiet", line / "60" / ".weights" / "sha256sums",
    cwd=line / "60")
EOP
