# SPDX-License-Identifier: Apache-2.0
# Who may replace what: the owner of both, and root; and one tenant's
# replacement is none of another's business.
# MANUAL
need_root
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from claims import *
from wf import *

SRC = checkpoint("src")
run("chmod", "-R", "a+rX", SRC)
d = Daemon("durability=none")
A, B = 11111, 22222
a, b = Client(A), Client(B)
for c in (a, b):
    c.do("sys.path.insert(0, args[0])",
         os.path.join(os.environ["TESTS"], "integration", "tools"))
try:
    for c in (a, b):
        c.get("os.listdir(args[0])", MNT)
        c.do("from claims import announce")
except OSError:
    skip("the build directory is closed to other users")

MODES = ("put_first", "delete_first")
lines = {}
for c, tenant, uid in ((a, "alice", A), (b, "bob", B)):
    os.mkdir(MNT / tenant)
    os.chown(MNT / tenant, uid, uid)
    lines[tenant] = line = MNT / tenant / "n" / "r" / "main"
    c.do("args[0].mkdir(parents=True)", line)
    c.do("os.mkdir(args[0])", line / ".staging" / "7")
    c.do("run('cp', '-r', '%s/.' % args[0], args[1])", SRC,
         line / ".staging" / "7")
    c.do("publish(args[0])", line / ".staging" / "7")
    c.do("os.mkdir(args[0])", line / ".staging" / "8")
alice, bob = lines["alice"], lines["bob"]


def denied(c, text, *args):
    return refused("EACCES|EPERM", c.do, text, *args)


# ---- Of another: not by any mode of the directory
for mode in MODES:
    denied(a, "announce(args[0], 7, args[1])", bob / ".staging" / "8", mode)
b.do("os.chmod(args[0], 0o777)", bob / ".staging" / "8")
for mode in MODES:
    denied(a, "announce(args[0], 7, args[1])", bob / ".staging" / "8", mode)
    says(attr(bob / ".staging" / "8", "error"), "made to replace another by")
# In a lineage that is open to all, what one stages replaces nothing of another.
b.do("os.chmod(args[0], 0o777)", bob)
a.do("os.mkdir(args[0])", bob / ".staging" / "9")
for mode in MODES:
    denied(a, "announce(args[0], 7, args[1])", bob / ".staging" / "9", mode)
    says(attr(bob / ".staging" / "9", "error"),
         "replaced by its owner or by root")
refused("ENODATA", attr, bob, "claim")
same_tree(bob / "7", SRC, times=False)
a.do("os.rmdir(args[0])", bob / ".staging" / "9")

# ---- Its own: in both at once, with the same names, and the same id
a.do("announce(args[0], 7, 'put_first', 'r1')", alice / ".staging" / "8")
b.do("announce(args[0], 7, 'put_first', 'r1')", bob / ".staging" / "8")
for line in (alice, bob):
    is_claimed(line, 7, 8, "put_first", "preparing_target", "r1", 7)
equal(claims_in("put_first", "preparing_target"), 2, "claims")
b.do("os.rmdir(args[0])", bob / ".staging" / "8")
is_claimed(bob, 7, 8, "put_first", "aborted", "r1", 7)
is_claimed(alice, 7, 8, "put_first", "preparing_target", "r1", 7)
denied(b, "os.rmdir(args[0])", alice / ".staging" / "8")
a.do("run('cp', '-r', '%s/.' % args[0], args[1])", SRC,
     alice / ".staging" / "8")
a.do("publish(args[0])", alice / ".staging" / "8")
comes_to(alice, "completed")
is_claimed(alice, 7, 8, "put_first", "completed", "r1", 8)
same_tree(alice / "8", SRC, times=False)
same_tree(bob / "7", SRC, times=False)

# ---- What they see of it: their own lineage's attributes, not claims/
equal(a.get("attr(args[0], 'claim')", alice)[:6], "7 by 8", "claim")
refused("EACCES", a.get, "os.listdir(args[0])", CLAIMS)
refused("EACCES", a.get, "os.stat(args[0])", CLAIMS / "alice")

# ---- Root may do it for them
os.mkdir(bob / ".staging" / "9")
run("cp", "-r", f"{SRC}/.", bob / ".staging" / "9")
announce(bob / ".staging" / "9", 7)
publish(bob / ".staging" / "9")
comes_to(bob, "completed")
check(not (bob / "7").exists(), "the base is there")
for c in (a, b):
    c.end()
d.stop()
EOP
