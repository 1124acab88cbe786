# SPDX-License-Identifier: Apache-2.0
# What .weights tells is told to those only who may see it anyway.
# OPTIONS: durability=none
need_root
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

A, B = 11111, 22222
a, b = Client(A), Client(B)
try:
    a.get("os.listdir(args[0])", MNT)
except OSError:
    skip("the build directory is closed to other users")
SRC = checkpoint("src")
run("chmod", "-R", "a+rX", SRC)
line = lineage()
counter = iter(range(1, 100))


def denied(c, text, *args):
    refused("EACCES|EPERM", c.do, text, *args)


# ---- All tenants' names stand in the list of leases
hold = mapped(put(line, next(counter), SRC) / "config.json")
check((MNT / ".weights" / "leases").read_text(), "leases for root")
denied(a, "open(args[0])", MNT / ".weights" / "leases")
for name in ("version", "config", "health", "metrics"):
    check(a.get("open(args[0]).read()", MNT / ".weights" / name), name)

# ---- A root that may be passed but not listed: no names, no digests
TELLS = ("metadata.json", "manifest.json", "sha256sums", "wait")
for mode, may in ((0o755, True), (0o711, False)):
    stage = staging(line, next(counter), SRC)
    # The kernel knows .weights before the mode is what it will be.
    names(stage / ".weights")
    ready(stage)
    os.chown(stage, B, B)
    os.chmod(stage, mode)
    gen = publish(stage)
    for name in TELLS:
        text = "open(args[0]).read()"
        check(b.get(text, gen / ".weights" / name), f"{name} for its owner")
        if may:
            check(a.get(text, gen / ".weights" / name), name)
        else:
            denied(a, text, gen / ".weights" / name)
    for d in (gen / ".weights", gen / ".weights" / "tensors"):
        check(b.get("os.listdir(args[0])", d), f"{d} for its owner")
        if not may:
            denied(a, "os.listdir(args[0])", d)
    # What may be read by its name may be read as tensors, too.
    equal(a.get("open(args[0]).read()", gen / "config.json"),
          (SRC / "config.json").read_text(), "a file by its name")
    equal(a.get("len(open(args[0], 'rb').read())",
                gen / ".weights" / "tensors" / "layers.0.a.weight"), 25_001,
          "a tensor by its name")

# ---- Whoever can't pass the directory gets no tensor, whosever the file is
#	owner, group, mode of the directory; of the file; who else may read
WAYS = [
    ((0, 0, 0o755), (A, A, 0o600), "a"),
    ((0, 0, 0o700), (A, A, 0o644), ""),
    ((B, B, 0o700), (A, A, 0o644), "b"),
    ((B, A, 0o750), (0, 0, 0o644), "ab"),
    ((B, A, 0o710), (B, B, 0o640), "b"),
    ((B, B, 0o755), (0, A, 0o640), "a"),
    ((B, B, 0o700), (0, A, 0o640), ""),
]
for directory, file, may in WAYS:
    stage = staging(line, next(counter))
    (stage / "sub").mkdir()
    path = stage / "sub" / "model.safetensors"
    run("cp", SRC / "model.safetensors", path)
    for p, (uid, gid, mode) in ((path, file), (stage / "sub", directory)):
        os.chown(p, uid, gid)
        os.chmod(p, mode)
    gen = publish(stage)
    for c, who in ((a, "a"), (b, "b")):
        text = "open(args[0], 'rb').read(1)"
        direct, tensor = True, True
        try:
            c.do(text, gen / "sub" / "model.safetensors")
        except OSError:
            direct = False
        try:
            c.do(text, gen / ".weights" / "tensors" / "layers.0.a.weight")
        except OSError:
            tensor = False
        what = f"{who}: {directory} {file}"
        equal(direct, who in may, f"the file by {what}")
        check(direct or not tensor, f"the tensor by {what}")
for c in (a, b):
    c.end()
EOP
