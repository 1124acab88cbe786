# SPDX-License-Identifier: Apache-2.0
"""Everything that can be read of a published revision, and that nothing of it
can be changed. Runs with and without passthrough."""
from wf import *

rng = random.Random(3)
TENSORS = {"page.crosser": rng.randbytes(10_001), "empty": b"",
           "large": rng.randbytes(3_000_000), "one": b"1",
           "a/b": b"slash", "../../escape": b"up", ".": b"dot",
           "..": b"dots", "/abs": b"abs", "x" * 255: b"255",
           "x" * 256: b"256", "p" * 300 + "1": b"p1", "p" * 300 + "2": b"p2",
           " spaces ": b"sp", "%2F": b"percent", "\u2581t": b"utf8",
           ".hidden": b"h", "A": b"upper", "a": b"lower"}
SRC = checkpoint("src")
safetensors(SRC / "model.safetensors", TENSORS)
os.link(SRC / "config.json", SRC / "hard.json")
os.symlink("config.json", SRC / "soft.json")
(SRC / "empty.txt").write_text("")
line = lineage()
gen = put(line, 1, SRC)
weights = gen / ".weights"
MODEL = gen / "model.safetensors"
same_tree(gen, SRC)


# ---- The text files
equal(set(names(weights)), {"wait", "metadata.json", "manifest.json",
                            "sha256sums", "tensors"}, ".weights")
equal((weights / "wait").read_text().splitlines()[-1], "ready", "wait")
meta = json.loads((weights / "metadata.json").read_text())
text = (weights / "manifest.json").read_bytes()
digest = hashlib.sha256(text).hexdigest()
equal(attr(gen, "manifest_sha256"), digest, "manifest_sha256")
check(digest in (weights / "metadata.json").read_text(), "digest in metadata")
equal(os.stat(weights / "manifest.json").st_size, len(text), "its size")
equal(mapped(weights / "manifest.json")[:], text, "manifest.json mapped")
manifest = json.loads(text)
check("READY" in json.dumps(meta).upper(), "metadata says ready")
equal(len(manifest["objects"]), int(attr(gen, "payload_count")), "objects")
run("sha256sum", "-c", "--strict", weights / "sha256sums", cwd=gen)
sums = (weights / "sha256sums").read_text().splitlines()
files = [p for p in SRC.rglob("*") if p.is_file() and not p.is_symlink()]
equal(len(sums), len(files), "lines of sha256sums")
# Each open reads its own text, in any piece, from its start to its end: with
# its size of 0 it is a stream, which no sendfile takes for an empty file.
with open(weights / "metadata.json", "rb", buffering=0) as f:
    refused("ESPIPE", f.seek, 10)
    equal(f.read(20), (weights / "metadata.json").read_bytes()[:20], "start")
run("cp", weights / "metadata.json", WORK / "copied")
equal((WORK / "copied").read_bytes(), (weights / "metadata.json").read_bytes(),
      "cp of a text")
with open(weights / "sha256sums", "rb", buffering=0) as g, \
        open(WORK / "sent", "wb") as f:
    # Who gets this reads instead; who got 0 would be done.
    refused("EINVAL", os.sendfile, f.fileno(), g.fileno(), None, 1 << 20)
with open(weights / "sha256sums", "rb", buffering=0) as f:
    equal(b"".join(iter(lambda: f.read(7), b"")),
          (weights / "sha256sums").read_bytes(), "in small pieces")

# ---- Tensors: one file each, reversible names, no other bytes
listed = names(weights / "tensors")
equal(len(listed), len(TENSORS), f"tensor files {listed}")
check(all(len(os.fsencode(n)) <= 255 for n in listed), "long names")
check(not {".", ".."} & set(listed), "a second . or ..")
found = {}
data = (SRC / "model.safetensors").read_bytes()
for name in listed:
    p = weights / "tensors" / name
    check(p.is_file(), f"{name} is a file")
    where = attr(p, "extent").rsplit(",", 2)
    offset, length = int(where[1]), int(where[2])
    content = p.read_bytes()
    equal(where[0], "model.safetensors", "extent's file")
    equal(content, data[offset:offset + length], f"bytes of {name}")
    equal(os.stat(p).st_size, length, "size")
    equal(attr(p, "dtype"), "U8", "dtype")
    equal(json.loads(attr(p, "shape")), [length], "shape")
    equal(attr(p, "sha256"), hashlib.sha256(content).hexdigest(), "sha256")
    found[content] = name
equal(sorted(found), sorted(TENSORS.values()), "contents")
for plain in ("page.crosser", "large", "one", "A", "a", "empty", "x" * 255):
    equal((weights / "tensors" / plain).read_bytes(), TENSORS[plain], plain)
refused("ENOENT", os.stat, weights / "tensors" / "no such")
big = weights / "tensors" / "page.crosser"
with open(big, "rb") as f:
    for at in (0, 1, 4095, 4096, 4097, 10_000, 10_001, 20_000):
        equal(os.pread(f.fileno(), 5000, at), TENSORS["page.crosser"]
              [at:at + 5000], f"pread at {at}")
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    second = mmap.mmap(f.fileno(), 4096, prot=mmap.PROT_READ, offset=4096)
equal(m[:], TENSORS["page.crosser"], "mapped tensor")
equal(second[:], TENSORS["page.crosser"][4096:8192], "its second page")

# ---- Maps of all kinds, of files, tensors and the manifest
for p in (MODEL, big, weights / "manifest.json"):
    want = p.read_bytes()
    with open(p, "rb") as f:
        shared = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_SHARED,
                           prot=mmap.PROT_READ)
        private = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE,
                            prot=mmap.PROT_READ | mmap.PROT_WRITE)
        refused("EACCES", mmap.mmap, f.fileno(), 0, flags=mmap.MAP_SHARED,
                prot=mmap.PROT_READ | mmap.PROT_WRITE)
    private[0:4] = b"MINE"
    equal(shared[:], want, f"{p.name} shared")
    equal(private[4:], want[4:], f"{p.name} private")
    equal(p.read_bytes(), want, f"{p.name} after a private change")
    # The rest of the last page is zeros.
    libc.mmap.restype = ctypes.c_void_p
    size = (len(want) + 4095) // 4096 * 4096
    with open(p, "rb") as f:
        at = libc.mmap(None, ctypes.c_size_t(size + 4096), 1, 1, f.fileno(),
                       ctypes.c_long(0))
    tail = ctypes.string_at(at + len(want), size - len(want))
    equal(tail, bytes(len(tail)), "the last page's rest")
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size + 4096))
    with Client() as c:
        # One page past the end is SIGBUS, as on any disk.
        c.send("exec", """
with open(args[0], 'rb') as f:
    at = libc.mmap(None, ctypes.c_size_t(args[1] + 4096), 1, 1, f.fileno(),
                   ctypes.c_long(0))
libc.mmap.restype = ctypes.c_void_p
ctypes.string_at(at + args[1], 1)
""", p, size)
        status = os.waitpid(c.pid, 0)[1]
        equal(os.WTERMSIG(status), signal.SIGBUS, "one page past the end")
        c.pid = os.fork()
        if c.pid == 0:
            signal.pause()

# ---- Reads of all kinds
want = MODEL.read_bytes()
direct = ["iflag=direct"]
if attr(MODEL, "residency") == "hot":
    # There is nothing to be had past the memory that it is in.
    refused("EINVAL", os.open, MODEL, os.O_RDONLY | os.O_DIRECT)
    direct = []
run("dd", f"if={MODEL}", f"of={WORK}/dd", "bs=1M", "status=none", *direct)
equal((WORK / "dd").read_bytes(), want, "dd")
for size in (1, 511, 4096, 100_000):
    fd = os.open(MODEL, os.O_RDONLY)
    for _ in range(20):
        at = rng.randrange(len(want))
        equal(os.pread(fd, size, at), want[at:at + size], "pread")
    os.close(fd)
fd = os.open(MODEL, os.O_RDONLY)
children = [Client() for _ in range(8)]
step = len(want) // 8 + 1
for i, c in enumerate(children):
    c.send("eval", "hashlib.sha256(b''.join(os.pread(args[0], 65536, "
           "at)[:args[2] - at] for at in range(args[1], args[2], 65536)))"
           ".hexdigest()", fd, i * step, min(len(want), (i + 1) * step))
for i, c in enumerate(children):
    equal(c.answer(), hashlib.sha256(want[i * step:(i + 1) * step])
          .hexdigest(), "one handle, eight readers")
    c.end()
os.close(fd)
for option in ("auto", "never"):
    run("cp", f"--reflink={option}", MODEL, WORK / "out")
    equal(sha(WORK / "out"), sha(MODEL), "cp out")
stage = staging(line, 2)
run("cp", MODEL, stage)
equal(sha(stage / "model.safetensors"), sha(MODEL), "cp to staging")
with open(WORK / "sent", "wb") as f, open(big, "rb") as g:
    equal(os.sendfile(f.fileno(), g.fileno(), 1, 10_000), 10_000, "sendfile")
equal((WORK / "sent").read_bytes(), TENSORS["page.crosser"][1:], "sendfile")
equal(os.stat(MODEL).st_blksize, 2 << 20, "st_blksize")

# ---- No change whatsoever, by root or another, EROFS for all of it
stage = staging(line, 3, SRC)
SOME = gen / "config.json"
keep = mapped(SOME)


def writes(gen, stage):
    some, sub = gen / "config.json", gen / "1_Pooling"
    opened = {f: (lambda f=f: os.open(some, f)) for f in (
        os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC,
        os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_CREAT)}
    return {
        **opened,
        "create": lambda: os.open(gen / "new", os.O_WRONLY | os.O_CREAT),
        "create below": lambda: open(sub / ".tmpXXXX", "w"),
        "create excl": lambda: os.open(
            gen / "new", os.O_RDWR | os.O_CREAT | os.O_EXCL),
        "truncate": lambda: os.truncate(some, 0),
        "grow": lambda: os.truncate(some, 10_000),
        "unlink": lambda: os.unlink(some),
        "unlink link": lambda: os.unlink(gen / "soft.json"),
        "rmdir below": lambda: os.rmdir(sub),
        "mkdir": lambda: os.mkdir(gen / "d"),
        "mknod": lambda: os.mknod(gen / "n"),
        "symlink": lambda: os.symlink("x", gen / "l"),
        "link": lambda: os.link(some, gen / "l"),
        "rename": lambda: os.rename(some, gen / "x"),
        "rename in": lambda: os.rename(stage / "config.json", some),
        "rename out": lambda: os.rename(some, stage / "stolen"),
        "chmod": lambda: os.chmod(some, 0o777),
        "chmod dir": lambda: os.chmod(sub, 0o777),
        "chmod root": lambda: os.chmod(gen, 0o777),
        "chown": lambda: os.chown(some, os.getuid(), os.getgid()),
        "utimes": lambda: os.utime(some),
        "utimes root": lambda: os.utime(gen),
        "setxattr": lambda: os.setxattr(some, "user.x", b"y"),
        "removexattr": lambda: os.removexattr(some, "user.x"),
        "tensor": lambda: open(gen / ".weights" / "tensors" / "one", "r+b"),
        "text": lambda: open(gen / ".weights" / "metadata.json", "w"),
        "in .weights": lambda: open(gen / ".weights" / "new", "w"),
        "rm manifest": lambda: os.unlink(gen / ".weights" / "manifest.json"),
        "mkdir .weights": lambda: os.mkdir(gen / ".weights" / "views2"),
    }


for name, function in writes(gen, stage).items():
    try:
        refused("EROFS", function)
    except AssertionError as e:
        raise AssertionError(f"{name}: {e}") from e
    same_tree(gen, SRC)
if os.geteuid() == 0:
    with Client(12345) as c:
        with contextlib.suppress(OSError):
            c.get("os.stat(args[0])", gen)
            for text in ["os.open(args[0], os.O_WRONLY)",
                         "os.unlink(args[0])", "os.truncate(args[0], 0)",
                         "os.chmod(args[0], 0)"]:
                try:
                    c.do(text, SOME)
                except OSError as e:
                    check(e.errno in (errno.EROFS, errno.EACCES, errno.EPERM),
                          f"{text}: {e}")
                else:
                    raise AssertionError(f"went well: {text}")
refused("ENOTEMPTY", os.rmdir, gen)
for argv in (["sh", "-c", f": > {SOME}"], ["sh", "-c", f"echo x >> {SOME}"],
             ["dd", "if=/dev/zero", f"of={SOME}", "conv=notrunc", "count=1"],
             ["rm", "-rf", gen], ["rm", "-f", SOME], ["touch", SOME],
             ["truncate", "-s0", SOME], ["mv", WORK / "dd", SOME],
             ["cp", WORK / "out", SOME], ["sed", "-i", "s/a/b/", SOME]):
    says(run(*argv, status=None), "Read-only file system")
equal(keep[:], (SRC / "config.json").read_bytes(), "the mapping all the while")
same_tree(gen, SRC)
check(metric("weightfs_weight_group_guard_refusals_total") > 30, "counted")

# ---- Listings
for _ in range(3):
    equal(run("ls", "-fU", gen), run("ls", "-fU", gen), "order of ls")
if passthrough():
    before = metric("weightfs_passthrough_opens_total")
    MODEL.read_bytes()
    check(metric("weightfs_passthrough_opens_total") > before, "passthrough")
