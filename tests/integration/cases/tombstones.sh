# SPDX-License-Identifier: Apache-2.0
# .weights/tombstones shows what was removed, for good, and takes no change.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

TOMBS, CLAIMS = MNT / ".weights" / "tombstones", MNT / ".weights" / "claims"
SRC = checkpoint("src", size=2000)
d = Daemon("durability=none")


def gone(gen, tomb):
    """Removes a generation, and waits for its tombstone."""
    remove(gen)
    wait_for(tomb.exists, f"{tomb} is there")


def order(path):
    with os.scandir(path) as entries:
        return [e.name for e in entries]


# ---- Nothing at first, but listed
for top in (TOMBS, CLAIMS):
    check(top.name in names(MNT / ".weights"), f"{top} is not listed")
    equal(names(top), [], f"{top}")
    equal(stat.S_IMODE(top.stat().st_mode), 0o500, f"mode of {top}")
    refused("ENOENT", os.stat, top / "t")

# ---- As many as were removed, in numeric order
line = lineage()
odd = MNT / "a b" / "n%2Fm" / "%2Er" / "50%25 é"
odd.mkdir(parents=True)
before = {}
for g in (2, 10, 11, 3, 100):
    gen = put(line, g, SRC)
    before[g] = json.loads((gen / ".weights" / "metadata.json").read_text())
put(odd, 7, SRC)
for g in (10, 100, 2, 3):
    gone(line / str(g), TOMBS / "t" / "n" / "r" / "main" / f"{g}.json")
gone(odd / "7", TOMBS / odd.relative_to(MNT) / "7.json")
tombs = TOMBS / "t" / "n" / "r" / "main"
equal(order(tombs), ["2.json", "3.json", "10.json", "100.json"], "tombstones")
equal(order(TOMBS), ["a b", "t"], "tenants")
equal(order(TOMBS / "a b" / "n%2Fm" / "%2Er"), ["50%25 é"], "revisions")
equal(names(CLAIMS), [], "claims")

# ---- Each tells of what there was
for g in (2, 3, 10, 100):
    text = (tombs / f"{g}.json").read_text()
    check(text.endswith("}\n") and text.count("\n") == 1, "one line")
    found, was = json.loads(text), before[g]
    equal(found["availability"], "deleted", "availability")
    equal(found["residency"], "absent", "residency")
    check(found["metadata_generation"] > was["metadata_generation"],
          "metadata_generation")
    check("operation_id" not in found, "an operation")
    for key in ("tenant_id", "namespace", "resource_id", "revision",
                "weight_generation", "manifest_sha256", "manifest_key",
                "payload_count", "logical_bytes", "created_at_ms",
                "preferred_residency", "mixed_hot_ratio", "migration_mode"):
        equal(found[key], was[key], key)
found = json.loads((TOMBS / odd.relative_to(MNT) / "7.json").read_text())
equal([found[k] for k in ("tenant_id", "namespace", "resource_id",
                          "revision", "weight_generation")],
      ["a b", "n/m", ".r", "50% é", 7], "identity")

# ---- Only what there is, by its one name
for path in ("4.json", "11.json", "2", "02.json", "2.json.json", "2.JSON",
             "0.json", "-2.json", "x", ".json", "18446744073709551616.json",
             "1" * 255):
    refused("ENOENT", os.stat, tombs / path)
for path in ("x", "t/x", "t/n/x", "t/n/r/x", "a b/n%2fm", "a b/n/m", "a%20b",
             "t/n/r/%6Dain", "%", "%00", "t%ff"):
    refused("ENOENT", os.stat, TOMBS / path)
refused("ENOTDIR", os.stat, tombs / "2.json" / "x")
refused("ENOTDIR", os.listdir, tombs / "2.json")
refused("EISDIR", os.open, tombs, os.O_WRONLY)

# ---- Tools
equal(run("find", TOMBS, "-type", "f").count("\n"), 5, "found")
equal(run("find", TOMBS, "-type", "d").count("\n"), 9, "directories")
says(run("cat", tombs / "2.json"), '"weight_generation":2,')
run("cp", "-r", TOMBS, WORK / "copy")
equal(len(list((WORK / "copy").rglob("*.json"))), 5, "copied")
check(len(run("grep", "-rl", '"deleted"', TOMBS).splitlines()) == 5, "grep")
ino = (tombs / "2.json").stat().st_ino
equal((tombs / "2.json").stat().st_ino, ino, "its inode number")
equal(len({p.stat().st_ino for p in TOMBS.rglob("*")}), 13, "inode numbers")
fd = os.open(tombs / "3.json", os.O_RDONLY)
whole = b"".join(iter(lambda: os.read(fd, 7), b""))
os.close(fd)
equal(json.loads(whole)["weight_generation"], 3, "read in pieces")
held = os.open(tombs, os.O_RDONLY | os.O_DIRECTORY)
os.close(os.open("2.json", os.O_RDONLY, dir_fd=held))
os.chdir(tombs)
check(os.getcwd().endswith("/tombstones/t/n/r/main"), "cwd")

# ---- No change
one = tombs / "2.json"
NO = "EPERM|EACCES|EROFS"
for call, *args in [
        (open, one, "w"), (open, one, "r+"), (open, one, "a"),
        (open, tombs / "new.json", "x"), (open, TOMBS / "x", "x"),
        (os.truncate, one, 0), (os.unlink, one), (os.rmdir, tombs),
        (os.rmdir, TOMBS), (os.mkdir, TOMBS / "x"), (os.mkdir, tombs / "x"),
        (os.mkdir, CLAIMS / "x"), (os.symlink, "x", tombs / "x"),
        (os.mkfifo, tombs / "x"), (os.link, one, tombs / "x"),
        (os.rename, one, tombs / "x"), (os.rename, tombs, TOMBS / "x"),
        (os.rename, tombs, line / "x"), (os.rename, WORK / "copy", tombs / "x"),
        (os.chmod, one, 0o666), (os.chmod, tombs, 0o777),
        (os.chown, one, 1, 1), (os.utime, one, (1, 1))]:
    refused(NO + "|EXDEV", call, *args)
refused("EPERM|EOPNOTSUPP", os.setxattr, one, "user.weights.remove", b"2")
refused("EPERM|EOPNOTSUPP", os.setxattr, tombs, "user.mine", b"x")
equal(os.listxattr(one), [], "attributes")
refused("ENODATA", os.getxattr, one, "user.weights.availability")
equal(order(tombs), ["2.json", "3.json", "10.json", "100.json"], "tombstones")

# ---- The number stays taken, whatever becomes of the lineage, and over starts
refused("EEXIST", os.mkdir, line / ".staging" / "2")
os.chdir("/")
os.close(held)
os.rmdir(odd)
for p in list(odd.relative_to(MNT).parents)[:-1]:
    os.rmdir(MNT / p)
d.stop()
d.restart()
check(not (MNT / "a b").exists(), "the lineage is there")
equal(order(TOMBS), ["a b", "t"], "tenants")
equal(json.loads((TOMBS / odd.relative_to(MNT) / "7.json").read_text()),
      found, "told of again")
d.kill()
d.restart()
equal(order(tombs), ["2.json", "3.json", "10.json", "100.json"], "tombstones")

# ---- For root alone
if os.geteuid() == 0:
    a = Client(11111)
    try:
        a.get("os.listdir(args[0])", MNT / ".weights")
    except OSError:
        skip("the build directory is closed to other users")
    for path in (TOMBS, CLAIMS):
        a.get("os.stat(args[0])", path)
        refused("EACCES", a.get, "os.listdir(args[0])", path)
    refused("EACCES", a.get, "os.stat(args[0])", TOMBS / "t")
    refused("EACCES", a.get, "open(args[0]).read()", one)
    equal(stat.S_IMODE(one.stat().st_mode), 0o400, "mode")
    equal(one.stat().st_uid, 0, "owner")
    a.end()

# ---- Many of them
many = lineage("many")
for g in range(1, 301):
    (many / ".staging" / str(g)).mkdir()
    os.rename(many / ".staging" / str(g), many / str(g))
    remove(many / str(g))
tombs = TOMBS / "t" / "n" / "r" / "many"
wait_for(lambda: tombs.exists() and len(os.listdir(tombs)) == 300,
         "their tombstones")
equal(order(tombs), [f"{g}.json" for g in range(1, 301)], "in numeric order")
equal(run("find", tombs, "-name", "*.json").count("\n"), 300, "found")
d.stop()
EOP
