# SPDX-License-Identifier: Apache-2.0
# Owners and modes keep tenants apart, as on any filesystem.
# OPTIONS: durability=none
need_root
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src")
run("chmod", "-R", "a+rX", SRC)
A, B = 11111, 22222
a, b = Client(A), Client(B)
try:
    a.get("os.listdir(args[0])", MNT)
except OSError:
    skip("the build directory is closed to other users")

# ---- Root makes the tenants; the rest is theirs
refused("EACCES|EPERM", a.do, "os.mkdir(args[0])", MNT / "mine")
for tenant, uid, mode in (("alice", A, 0o750), ("bob", B, 0o755)):
    os.mkdir(MNT / tenant)
    os.chown(MNT / tenant, uid, uid)
    os.chmod(MNT / tenant, mode)
for c, tenant in ((a, "alice"), (b, "bob")):
    line = MNT / tenant / "ns" / "model" / "main"
    c.do("args[0].mkdir(parents=True)", line)
    c.do("os.mkdir(args[0])", line / ".staging" / "1")
    c.do("run('cp', '-r', '%s/.' % args[0], args[1])", SRC,
         line / ".staging" / "1")
    equal(os.stat(line).st_uid, A if c is a else B, "owner of a lineage")
    equal(os.stat(line / ".staging" / "1" / "config.json").st_uid,
          A if c is a else B, "owner of a staged file")
alice, bob = (MNT / t / "ns" / "model" / "main" for t in ("alice", "bob"))


def denied(c, text, *args):
    refused("EACCES|EPERM", c.do, text, *args)


# ---- Staged: nobody else's, closed where its owner closed it
denied(b, "os.listdir(args[0])", alice)
denied(b, "open(args[0])", alice / ".staging" / "1" / "config.json")
for text in ["open(args[0] / 'config.json', 'w')", "open(args[0] / 'n', 'w')",
             "os.unlink(args[0] / 'config.json')", "os.mkdir(args[0] / 'd')",
             "os.rename(args[0], args[0].parent.parent / '1')",
             "os.rename(args[0] / 'config.json', args[0] / 'y')",
             "os.chmod(args[0], 0o777)", "os.chown(args[0], 11111, 11111)",
             "set_attr(args[0], 'policy', 'preferred=cold')"]:
    denied(a, text, bob / ".staging" / "1")
denied(a, "os.mkdir(args[0])", bob / ".staging" / "5")
denied(a, "os.symlink('1', args[0])", bob / "serving")
denied(a, "os.mkdir(args[0])", MNT / "bob" / "ns" / "other")
denied(a, "os.rmdir(args[0])", bob)
same_tree(bob / ".staging" / "1", SRC, times=False)

# ---- Published by its owner; read by whoever the modes let in
for c, line in ((a, alice), (b, bob)):
    c.do("publish(args[0])", line / ".staging" / "1")
    equal(os.stat(line / "1").st_uid, A if c is a else B, "owner")
a.do("m = mapped(args[0])", bob / "1" / "model.safetensors")
equal(a.get("facts(args[0], times=False)", bob / "1"),
      facts(SRC, times=False), "read by another")
a.get("open(args[0]).read()", bob / "1" / ".weights" / "metadata.json")
a.get("attr(args[0], 'availability')", bob / "1")
denied(b, "open(args[0])", alice / "1" / "config.json")
denied(b, "open(args[0])", alice / "1" / ".weights" / "manifest.json")
denied(b, "os.listdir(args[0])", alice / "1" / ".weights" / "tensors")

# ---- Removal is the owner's
denied(a, "remove(args[0])", bob / "1")
same_tree(bob / "1", SRC, times=False)
refused("EBUSY", b.do, "remove(args[0])", bob / "1")
says(attr(bob / "1", "error"), r"\b%d\b" % a.pid)
a.do("m.close()")


def removed():
    try:
        b.do("remove(args[0])", bob / "1")
        return True
    except OSError as e:
        equal(e.errno, errno.EBUSY, "remove")
        return False


wait_for(removed, "removal by the owner")

# ---- Files that only their owner may read stay so
b.do("os.mkdir(args[0])", bob / ".staging" / "2")
b.do("run('cp', '-r', '%s/.' % args[0], args[1])", SRC, bob / ".staging" / "2")
b.do("os.chmod(args[0], 0o600)", bob / ".staging" / "2" / "config.json")
b.do("os.chmod(args[0], 0o700)", bob / ".staging" / "2" / "1_Pooling")
b.do("publish(args[0])", bob / ".staging" / "2")
denied(a, "open(args[0])", bob / "2" / "config.json")
denied(a, "os.listdir(args[0])", bob / "2" / "1_Pooling")

# ---- The tensors are no way around a file's mode
b.do("os.mkdir(args[0])", bob / ".staging" / "3")
b.do("run('cp', '-r', '%s/.' % args[0], args[1])", SRC, bob / ".staging" / "3")
b.do("os.chmod(args[0], 0o600)",
     bob / ".staging" / "3" / "model.safetensors")
b.do("publish(args[0])", bob / ".staging" / "3")
tensor = bob / "3" / ".weights" / "tensors" / "layers.0.a.weight"
denied(a, "open(args[0], 'rb')", bob / "3" / "model.safetensors")
denied(a, "open(args[0], 'rb')", tensor)
equal(b.get("len(open(args[0], 'rb').read())", tensor), 25_001, "its owner")

# ---- A directory that the whole world may write to is still its owner's
b.do("os.mkdir(args[0])", bob / ".staging" / "4")
b.do("run('cp', '-r', '%s/.' % args[0], args[1])", SRC, bob / ".staging" / "4")
b.do("os.chmod(args[0], 0o777)", bob / ".staging" / "4")
b.do("publish(args[0])", bob / ".staging" / "4")
denied(a, "remove(args[0])", bob / "4")
same_tree(bob / "4", SRC, times=False)

# ---- A user namespace in which nothing is mapped
if shutil.which("unshare"):
    said = run("setpriv", f"--reuid={B}", f"--regid={B}", "--clear-groups",
               "unshare", "-U", "ls", MNT / "alice", status=None)
    says(said, "Permission denied|Operation not permitted|No space left")
for c in (a, b):
    c.end()
EOP
