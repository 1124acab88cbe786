# SPDX-License-Identifier: Apache-2.0
# What residency, scrub and repair don't take, who may set them, and who may
# look at the operations.
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from residency import *
from wf import *

need_root()
src = checkpoint("src", size=1 << 20)
line = lineage()
gen = put(line, 7, src)
settle(gen)
comes_to(gen, "hot")
file = gen / "model.safetensors"

# ---- Values
equal(operations(), sorted(operations()), "operations in order")
before = operations()
for value in ["", "1", "mixed", "absent", "unknown", "HOT", " hot", "hot ",
              "hot,", "hot,if", "hot,if=", "hot,if=0", "hot,if=-1",
              "hot,if=01", "hot,if=x", "hot,if=1,if=1", "cold,warm", "hot\n",
              "hot\0", "cold\0hot", "hot" * 20_000,
              "hot,if=18446744073709551616"]:
    refused("EINVAL", move, gen, value)
    says(attr(gen, "error"), "takes hot or cold", "nothing is moved")
for name in ("scrub", "repair"):
    for value in ["", "0", "2", "11", "yes", "1 "]:
        refused("EINVAL", set_attr, gen, name, value)
        says(attr(gen, "error"), f"{name} takes 1")
says(run("setfattr", "-n", "user.weights.residency", "-v", "mixed", gen,
         status=1), "Invalid argument")
equal(operations(), before, "operations")

# ---- The fence
now = int(attr(gen, "metadata_generation"))
for fence in (now + 1, max(now - 1, 1), 2 ** 64 - 1):
    refused("ECANCELED", move, gen, f"cold,if={fence}")
    says(attr(gen, "error"), "metadata_generation|metadata generation")
equal(attr(gen, "residency"), "hot", "residency")
move(gen, f"cold,if={now}")
settle(gen)
comes_to(gen, "cold")
refused("ECANCELED", move, gen, f"hot,if={now}")
equal(attr(gen, "residency"), "cold", "residency")

# ---- Where it can't be set
refused("EPERM|EROFS", move, file, "hot")
refused("EPERM|EROFS", move, gen / "1_Pooling", "hot")
refused("EPERM", move, line, "hot")
refused("EPERM", set_attr, line, "scrub", 1)
refused("ENODATA", attr, gen, "repair")
check("user.weights.repair" not in os.listxattr(gen), "repair is listed")
stage = staging(line, 8, src)
before = operations()
for name, value in [("residency", "cold"), ("scrub", 1), ("repair", 1),
                    ("operation", 3)]:
    set_attr(stage, name, value)
    set_attr(stage / "config.json", name, value)
refused("ENODATA", attr, stage, "residency")
equal(operations(), before, "operations of what is staged")
equal(attr(file, "residency"), "cold", "of a file")
equal(attr(file, "pinned_bytes"), "0", "of a file")

# ---- What it answers
set_attr(gen, "scrub", 1)
settle(gen)
says(attr(gen, "scrub"), r"^\d{4}-\d\d-\d\dT[\d:.]+Z, 0 bad$")
set_attr(gen, "repair", 1)
settle(gen)
equal(attr(gen, "availability"), "ready", "availability")

# ---- The operations
last = operations()[-1]
for name in ("x", f"{last}", f"{last}.jso", f"0{last}.json", "0.json",
             "-1.json", ".json", f"{last + 1}.json", f"{2 ** 56 + last}.json",
             f"{2 ** 64 - 1}.json", f"{2 ** 64 + last}.json",
             f"{last}.json.json", "1" * 255):
    refused("ENOENT", os.stat, OPERATIONS / name)
one = OPERATIONS / f"{last}.json"
refused("EPERM|EACCES|EROFS", open, one, "w")
refused("EPERM|EACCES|EROFS", open, OPERATIONS / "new", "x")
refused("EPERM|EACCES|EROFS", os.unlink, one)
refused("EPERM|EACCES|EROFS", os.chmod, one, 0o666)
refused("EPERM|EACCES|EROFS", os.mkdir, OPERATIONS / "dir")
refused("EPERM|EACCES|EROFS", os.rename, one, OPERATIONS / "other")
st = one.stat()
equal(stat.S_IMODE(st.st_mode) & 0o333, 0, "writable bits")
equal(json.loads(one.read_text())["weight_generation"], 7, "its generation")
check(str(last) not in names(MNT / ".weights"), "beside operations")

# ---- Many of them come in numeric order, and a listing can be gone on with
for i in range(12):
    move(gen, "hot" if i % 2 else "cold")
    settle(gen)
found = operations()
equal(found, sorted(found), "in numeric order")
check(len(found) >= 12, f"{len(found)} operations")
equal(run("find", OPERATIONS, "-name", "*.json").count("\n"), len(found),
      "found")

# ---- Other users
A, B = 11111, 22222
a, b = Client(A), Client(B)
try:
    a.get("os.listdir(args[0])", MNT)
except OSError:
    skip("the build directory is closed to other users")
theirs = MNT / "t" / "n" / "r" / "theirs"
theirs.mkdir()
os.chown(theirs, A, A)
stage = theirs / ".staging" / "1"
stage.mkdir()
run("cp", "-r", f"{src}/.", stage)
os.chmod(stage, 0o777)
os.chown(stage, A, A)
for name in os.listdir(stage):
    os.chown(stage / name, A, A)
gen = publish(stage)
settle(gen)
comes_to(gen, "hot")
SET = "os.setxattr(args[0], 'user.weights.' + args[1], args[2])"
before = operations()
for name, value, what in [("residency", b"cold", "moved"),
                          ("scrub", b"1", "scrubbed"),
                          ("repair", b"1", "repaired")]:
    refused("EPERM", b.get, SET, gen, name, value)
    says(attr(gen, "error"), f"{what} by its owner or by root")
equal(operations(), before, "operations of a stranger")
a.get(SET, gen, "residency", b"cold")
settle(gen)
comes_to(gen, "cold")
a.get(SET, gen, "scrub", b"1")
settle(gen)

# Who may read the revision may read of its operations.
READ = "open(args[0]).read()"
one = OPERATIONS / f"{operations()[-1]}.json"
equal(json.loads(b.get(READ, one))["revision"], "theirs", "read by B")
stage = theirs / ".staging" / "2"
stage.mkdir()
run("cp", "-r", f"{src}/.", stage)
os.chmod(stage, 0o700)
os.chown(stage, A, A)
gen = publish(stage)
settle(gen)
move(gen, "cold")
settle(gen)
one = OPERATIONS / f"{operations()[-1]}.json"
equal(json.loads(a.get(READ, one))["weight_generation"], 2, "read by A")
refused("EACCES", b.get, READ, one)
refused("EACCES", b.get, READ, MNT / ".weights" / "wait")
check(one.name in b.get("os.listdir(args[0])", OPERATIONS), "ids are listed")
remove(gen)
wait_for(lambda: one.stat().st_uid == 0, "root's alone")
equal(stat.S_IMODE(one.stat().st_mode), 0o400, "mode, once it is removed")
refused("EACCES", a.get, READ, one)
EOP
