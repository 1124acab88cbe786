# SPDX-License-Identifier: Apache-2.0
# Attributes follow the rules of getxattr(2), and copies of them do no harm.
# OPTIONS: durability=none
. "$TESTS/integration/tools/py.sh"
expect_log 'refused .*user\.weights\.error can'

py <<'EOP'
from wf import *

SRC = checkpoint("src", files=2)
line = lineage()
gen = put(line, 7, SRC)
(gen / ".weights" / "wait").read_text()
before = attr(gen, "residency")
P = "user.weights."

# ---- What is listed can be read, at every size
LISTED = {
    "availability": "ready", "residency": "hot|cold|mixed",
    "hot_ratio": r"[01](\.\d+)?", "pinned_bytes": r"\d+",
    "preferred": "hot", "mixed_hot_ratio": r"0\.5\d*",
    "mode": "auto", "metadata_generation": r"[1-9]\d*",
    "logical_bytes": r"\d+", "payload_count": "4",
    "manifest_sha256": "[0-9a-f]{64}", "manifest_key": ".+", "group_id": ".+",
    "leases": r"\d+", "durable": "yes|no", "scrub": "never",
    "created": r"\d.*",
    "updated": r"\d.*", "last_accessed": r"\d.*"}
HIDDEN = {"operation", "policy", "remove", "repair", "replaces", "sha256"}


def is_whole(path, want=None):
    listed = [n for n in os.listxattr(path) if n.startswith(P)]
    equal(len(set(listed)), len(listed), "listed twice")
    size = listxattr_size(path, 0)
    equal(listxattr_size(path, size), size, "listxattr, exact")
    equal(listxattr_size(path, 65536), size, "listxattr, large")
    if size:
        refused("ERANGE", listxattr_size, path, size - 1)
        refused("ERANGE", listxattr_size, path, 1)
    for name in listed:
        value = os.getxattr(path, name)
        n = getxattr_size(path, name, 0)
        equal(n, len(value), f"length of {name}")
        equal(getxattr_size(path, name, n), n, f"{name}, exact")
        equal(getxattr_size(path, name, 65536), n, f"{name}, large")
        if n > 1:
            refused("ERANGE", getxattr_size, path, name, n - 1)
            refused("ERANGE", getxattr_size, path, name, 1)
    found = {n.removeprefix(P) for n in listed}
    check(not found & HIDDEN, f"listed: {found & HIDDEN}")
    for name, pattern in (want or {}).items():
        check(name in found, f"{name} is not listed: {sorted(found)}")
        check(re.fullmatch(pattern, attr(path, name), re.I),
              f"{name} is {attr(path, name)!r}")
    return found


is_whole(gen, LISTED)
files = [p for p in SRC.rglob("*") if p.is_file()]
equal(int(attr(gen, "logical_bytes")), sum(p.stat().st_size for p in files),
      "logical_bytes")
for name in LISTED:
    check(f"{P}{name}=" in run("getfattr", "-d", gen), f"getfattr -d: {name}")
run("getfattr", "-d", "-m", "-", gen)
is_whole(line)
is_whole(MNT)
is_whole(MNT / "t")
file = gen / "model-0.safetensors"
is_whole(file, {"residency": before, "hot_ratio": r"[01](\.\d+)?",
                "pinned_bytes": r"\d+", "digest": "[0-9a-f]{64}"})
equal(attr(file, "sha256"), sha(file), "sha256 of a file")
tensor = gen / ".weights" / "tensors" / "layers.0.a.weight"
is_whole(tensor, {"dtype": "U8", "residency": before, "shape": r"\[25001\]",
                  "extent": r"model-0\.safetensors,\d+,25001"})
equal(attr(tensor, "sha256"), sha(tensor), "sha256 of a tensor")

# ---- Absent, foreign, unknown
for path in (gen, line, file, tensor, MNT, gen / "1_Pooling"):
    refused("ENODATA", os.getxattr, path, P + "no_such")
    refused("ENODATA", os.getxattr, path, "user.other")
    refused("EOPNOTSUPP|ENODATA", os.getxattr, path, "security.capability")
    refused("EOPNOTSUPP|ENODATA", os.getxattr, path, "system.posix_acl_access")
    refused("EOPNOTSUPP|ENODATA", os.getxattr, path, "trusted.x")
refused("ENODATA", attr, gen, "remove")
refused("ENODATA", attr, gen, "repair")
refused("ENODATA", attr, gen, "operation")
refused("ENODATA", attr, line / "7" / "config.json", "dtype")

# ---- Setting what can't be set: a plain errno, with a sentence
for name, value in [("availability", "ready"), ("leases", "0"),
                    ("manifest_sha256", "0" * 64), ("no_such", "x"),
                    ("error", ""), ("durable", "yes")]:
    refused("EPERM|EINVAL|EROFS", set_attr, gen, name, value)
    check(attr(gen, "error"), f"no sentence for {name}")
for value in ["", "x", "77", " 7", "7,if=1,if=2", "7" * 60_000]:
    refused("EINVAL|ECANCELED", set_attr, gen, "remove", value)
    check(attr(gen, "error"), f"no sentence for {value[:10]!r}")
says(run("setfattr", "-n", P + "remove", "-v", "8", gen, status=1),
     "Invalid argument")
says(run("getfattr", "--only-values", "-n", P + "error", gen), "7|8")
refused("EROFS|EPERM", os.setxattr, gen, "user.other", b"x")
refused("EROFS|EPERM|ENODATA|EINVAL", os.removexattr, gen, P + "residency")
refused("EOPNOTSUPP|EROFS|EINVAL", os.setxattr, gen,
        "system.posix_acl_access", b"\2\0\0\0" + bytes(8))
same_tree(gen, SRC)

# ---- Copies that carry them along: no failure, no effect, none kept
run("cp", "-a", "--preserve=all", gen, WORK / "copy")
stage = staging(line, 8)
run("cp", "-a", f"{gen}/.", stage)
same_tree(stage, SRC)
for name in ("residency", "availability", "remove", "digest", "scrub",
             "repair"):
    for path in (stage, stage / "config.json", stage / "1_Pooling"):
        os.setxattr(path, P + name, b"7")
        os.removexattr(path, P + name)
        refused("ENODATA", attr, path, name)
os.setxattr(stage / "config.json", "user.mine", b"kept")
if shutil.which("rsync"):
    run("rsync", "-aX", f"{gen}/", f"{stage}/")
    refused("ENODATA", os.getxattr, stage / "config.json", "user.mine")
    run("rsync", "-aX", f"{stage}/", f"{WORK}/rsynced/")
os.setxattr(stage / "config.json", "user.mine", b"kept")
says(attr(stage, "progress"), ".")
copied = publish(stage)
equal(os.getxattr(copied / "config.json", "user.mine"), b"kept", "user.mine")
refused("EROFS", os.setxattr, copied / "config.json", "user.mine", b"x")
refused("EROFS", os.removexattr, copied / "config.json", "user.mine")
run("cp", "-a", copied / "config.json", WORK / "one")
equal(os.getxattr(WORK / "one", "user.mine"), b"kept", "copied out")
equal(attr(gen, "residency"), before, "the source of the copies")

# ---- A staging directory's own
stage = staging(line, 9, SRC)
found = is_whole(stage)
check("availability" not in found, "a staged one has an availability")
refused("ENODATA", attr, stage, "error")
refused("ENODATA", attr, stage, "availability")

# ---- Nothing that was refused turned attributes off for the mount
run("cp", "-a", SRC / "config.json", stage / "again")
is_whole(gen, LISTED)
EOP
