# SPDX-License-Identifier: Apache-2.0
# Whatever a writer still holds: it is refused, or can change nothing any more.
# MANUAL
# TIMEOUT: 180
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src")
MAP = ("f = open(args[0], 'r+b'); "
       "m = mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED); f.close()")
# How a process keeps a file writable, and what it then tries on it.
WRITERS = {
    "descriptor": ("f = os.open(args[0], os.O_RDWR)", [
        "os.pwrite(f, b'CHANGED', 0)", "os.ftruncate(f, 3)",
        "fallocate(f, 0, 0, 1 << 20)", "os.fchmod(f, 0o777)"]),
    "write-only descriptor": ("f = os.open(args[0], os.O_WRONLY)", [
        "os.pwrite(f, b'CHANGED', 0)"]),
    "append descriptor": ("f = os.open(args[0], os.O_WRONLY | os.O_APPEND)", [
        "os.write(f, b'CHANGED')"]),
    "inherited descriptor": (
        "f = os.open(args[0], os.O_RDWR); os.set_inheritable(f, True); "
        "c = subprocess.Popen(['sleep', '1000'], close_fds=False); "
        "os.close(f)", []),
    "shared mapping": (MAP, ["m[0:7] = b'CHANGED'; m.flush()"]),
    "mapping and descriptor": (
        "f = open(args[0], 'r+b'); "
        "m = mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED)",
        ["m[0:7] = b'CHANGED'"]),
}
# How a process keeps a way into the tree, and what it then tries there.
INSIDERS = {
    "cwd": ("os.chdir(args[0])", "."),
    "dirfd": ("dir = os.open(args[0], os.O_RDONLY | os.O_DIRECTORY)", None),
    "cwd below": ("os.chdir(args[0] / '1_Pooling')", ".."),
}
ATTEMPTS = [
    "open(top + 'new', 'w')", "open(top + 'config.json', 'w')",
    "open(top + 'config.json', 'a')", "open(top + 'config.json', 'r+')",
    "os.unlink(top + 'config.json')", "os.mkdir(top + 'newdir')",
    "os.rename(top + 'config.json', top + 'renamed')",
    "os.symlink('x', top + 'l')",
    "os.link(top + 'config.json', top + 'l')",
    "os.chmod(top + 'config.json', 0o777)",
    "os.truncate(top + 'config.json', 0)",
    "os.utime(top + 'config.json')",
    "os.setxattr(top + 'config.json', 'user.x', b'')",
    "os.rmdir(top + '1_Pooling')", "os.chmod(top, 0o777)",
]
line = None
counter = iter(range(1, 1000))


def attempt(stage):
    """Tries to publish; the generation's directory, or the refusal."""
    target = stage.parent.parent / stage.name
    try:
        os.rename(stage, target)
        return target, None
    except OSError as e:
        return None, e


def refuse_writer(stage, pid, file):
    gen, e = attempt(stage)
    check(gen is None, "published under a writer")
    equal(errno.errorcode[e.errno], "EBUSY", "publishing under a writer")
    says(attr(stage, "error"), re.escape(file), r"\b%d\b" % pid,
         pathlib.Path(f"/proc/{pid}/comm").read_text().strip())
    check(stage.exists() and not (line / stage.name).exists(), "half moved")


def frozen(gen, client, tries, want):
    for text in tries:
        with contextlib.suppress(OSError, AssertionError, ValueError):
            client.do(text)
    same_tree(gen, want)


def writer(d, kind, killed):
    hold, tries = WRITERS[kind]
    stage = staging(line, next(counter), SRC)
    c = Client()
    c.do(hold, stage / "model.safetensors")
    if killed:
        d.kill()
        d.start()
    inherited = kind == "inherited descriptor"
    refuse_writer(stage, c.get("c.pid") if inherited else c.pid,
                  "model.safetensors")
    # It may go on: nothing was harmed by the attempt.
    for text in tries[:1]:
        c.do(text)
    if inherited:
        c.do("c.kill(); c.wait()")
    c.kill()
    run("cp", "-a", SRC / "model.safetensors", stage)
    gen = publish(stage)
    equal(sha(gen / "model.safetensors"), sha(SRC / "model.safetensors"), kind)


def insider(d, kind, killed):
    hold, top = INSIDERS[kind]
    stage = staging(line, next(counter), SRC)
    with Client() as c:
        c.do(hold, stage)
        c.do("top = args[0]", (top + "/") if top else "")
        if killed:
            d.kill()
            d.start()
        gen, e = attempt(stage)
        if e:
            equal(errno.errorcode[e.errno], "EBUSY", kind)
            says(attr(stage, "error"), r"\b%d\b" % c.pid)
            return
        want = WORK / f"want-{stage.name}"
        run("cp", "-a", gen, want)
        for text in ATTEMPTS:
            if top is None:
                text = "os.fchdir(dir); " + text
            with contextlib.suppress(OSError):
                c.do(text)
                raise AssertionError(f"{kind}: went well: {text}")
        same_tree(gen, want)
        same_tree(gen, SRC)


def reader_then_writer(d):
    """Read-only holders of staged files stay, and are no hindrance."""
    stage = staging(line, next(counter), SRC)
    path = stage / "model.safetensors"
    with Client() as c:
        c.do("f = os.open(args[0], os.O_RDONLY); m = mapped(args[0])", path)
        gen = publish(stage)
        equal(c.get("hashlib.sha256(m).hexdigest()"),
              sha(SRC / "model.safetensors"), "mapped since before")
        for text in ["os.fchmod(f, 0o777)", "os.setxattr(f, 'user.x', b'')",
                     "os.utime(f)", "os.fchown(f, 1, 1)",
                     "open('/proc/self/fd/%d' % f, 'r+')",
                     "os.truncate('/proc/self/fd/%d' % f, 0)"]:
            refused("EROFS|EPERM|EACCES", c.do, text)
        same_tree(gen, SRC)


def unlinked_writer(d):
    """What has no name in the tree any more can't change it."""
    stage = staging(line, next(counter), SRC)
    with Client() as c:
        c.do("f = os.open(args[0], os.O_RDWR | os.O_CREAT)", stage / "gone")
        os.unlink(stage / "gone")
        gen, e = attempt(stage)
        if e:
            equal(errno.errorcode[e.errno], "EBUSY", "unlinked")
            c.end()
            gen = publish(stage)
        same_tree(gen, SRC)


def second_name(d):
    """A writer through another name of the file, or one that was renamed."""
    stage = staging(line, next(counter), SRC)
    os.link(stage / "config.json", stage / "again.json")
    with Client() as c:
        c.do("f = os.open(args[0], os.O_RDWR)", stage / "again.json")
        os.unlink(stage / "again.json")
        os.rename(stage / "config.json", stage / "moved.json")
        gen, e = attempt(stage)
        check(gen is None, "published under a writer by another name")
        equal(errno.errorcode[e.errno], "EBUSY", "by another name")
        says(attr(stage, "error"), "(moved|again).json", r"\b%d\b" % c.pid)
    publish(stage)


def object_digest_is_right(gen, name):
    """The manifest's chunk digests are those of the bytes that are there."""
    manifest = json.loads((gen / ".weights" / "manifest.json").read_text())
    entry = next(o for o in manifest["objects"]
                 if name in json.dumps(o) or o["size"] ==
                 os.stat(gen / name).st_size)
    data, step = (gen / name).read_bytes(), entry["chunk_size"]
    equal(entry["chunks"],
          [hashlib.sha256(data[i:i + step]).hexdigest()
           for i in range(0, len(data), step)], "chunk digests")


d = Daemon("durability=none")
line = lineage()
# Without passthrough, what was open is dead with the daemon.
for killed in (False, True) if passthrough() else (False,):
    for kind in WRITERS:
        print("#", kind, "killed" if killed else "", flush=True)
        writer(d, kind, killed)
    for kind in INSIDERS:
        print("#", kind, "killed" if killed else "", flush=True)
        insider(d, kind, killed)
reader_then_writer(d)
unlinked_writer(d)
second_name(d)


# What is written while no daemon lives is what is published, with its digest.
stage = staging(line, next(counter), SRC)
ready(stage)
with Client() as c:
    c.do("f = os.open(args[0], os.O_RDWR)", stage / "model.safetensors")
    d.kill()
    wrote = True
    try:
        c.do("os.pwrite(f, b'under nobody', 20_000)")
    except OSError as e:
        wrote = False
        check(e.errno in (errno.ENOTCONN, errno.ECONNABORTED), repr(e))
    d.start()
    gen, e = attempt(stage)
    check(e is None if not wrote else e and e.errno == errno.EBUSY,
          f"after a kill: {e}")
gen = gen or publish(stage)
data = (gen / "model.safetensors").read_bytes()
equal(data[20_000:20_012] == b"under nobody", wrote, "the late bytes")
run("sha256sum", "-c", "--quiet", gen / ".weights" / "sha256sums", cwd=gen)
object_digest_is_right(gen, "model.safetensors")
d.stop()
EOP
