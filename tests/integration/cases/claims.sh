# SPDX-License-Identifier: Apache-2.0
# A replacement is announced by an attribute, and .weights/claims and the lineage
# tell how far it is.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from residency import *
from wf import *

SRC = checkpoint("src")
CLAIMS = MNT / ".weights" / "claims"
d = Daemon()
line = lineage()
odd = MNT / "a b" / "n%2Fm" / "%2Er" / "50%25 é"
odd.mkdir(parents=True)


def replaces(path, value):
    set_attr(path, "replaces", value)


def claim(path):
    return json.loads((CLAIMS / path.relative_to(MNT)).read_text())


# ---- Values
gen = put(line, 7, SRC)
settle(gen)
stage = staging(line, 8, SRC)
refused("ENODATA", attr, stage, "replaces")
for value in ["", "0", "07", " 7", "7 ", "-7", "x", "7,", "7,8", "7\n", "7\0",
              "7,mode=", "7,mode=0", "7,mode=first", "7,mode=put_first,",
              "7,mode=put_first,mode=put_first", "7,request_id=",
              "7,request_id=\x01", "7,request_id=a,b",
              "7,request_id=" + "x" * 1025, "7,if=", "7,if=0", "7,if=1,if=1",
              "mode=put_first,7", "7,preferred=hot", "7" * 60_000]:
    refused("EINVAL", replaces, stage, value)
    says(attr(stage, "error"), "nothing is replaced")
refused("EINVAL", os.setxattr, stage, "user.weights.replaces",
        b"7,request_id=\xff")
refused("ENOENT", replaces, stage, "6")
refused("ECANCELED", replaces, stage, "7,if=99")
equal(names(CLAIMS), [], "claims")
refused("ENODATA", attr, line, "watermark")

# ---- Nothing acts below the root, and what is published replaces nothing
for path in (stage / "config.json", stage / "1_Pooling"):
    replaces(path, "7")
    replaces(path, "nonsense")
    refused("ENODATA", attr, path, "replaces")
refused("EPERM", replaces, gen, "6")
refused("EPERM", replaces, line, "7")
refused("ENODATA", attr, gen, "replaces")
refused("ENODATA", attr, line, "claim")

# ---- Announced
at = attr(gen, "metadata_generation")
replaces(stage, f"7,request_id=a request = 1,if={at}")
equal(attr(stage, "replaces"), "7,mode=put_first,request_id=a request = 1",
      "replaces")
replaces(stage, attr(stage, "replaces"))
check("user.weights.replaces" not in os.listxattr(stage), "it is listed")
equal(attr(line, "watermark"), "7", "watermark")
equal(attr(line, "claim"), "7 by 8, mode=put_first, phase=preparing_target, "
      "request_id=a request = 1", "claim")
check({"user.weights.watermark", "user.weights.claim"} <=
      set(os.listxattr(line)), "they are not listed")
found = claim(line)
for key, want in {"tenant_id": "t", "namespace": "n", "resource_id": "r",
                  "revision": "main", "base": 7, "target": 8,
                  "mode": "put_first", "phase": "preparing_target",
                  "request_id": "a request = 1", "error": "",
                  "committed_weight_generation": 7,
                  "expected_base_metadata_generation": int(at)}.items():
    equal(found[key], want, key)
check(found["updated_at_ms"] >= found["created_at_ms"] > 0, "its times")
for tool in (["cp", "-a"], ["rsync", "-aX"]):
    if not shutil.which(tool[0]):
        continue
    other = staging(line, 9)
    run(*tool, f"{stage}/.", other)
    refused("ENODATA", attr, other, "replaces")
    shutil.rmtree(other)
refused("EBUSY", replaces, staging(line, 9), "7")
says(attr(line / ".staging" / "9", "error"), "claim|replac")

# ---- The directories are as those of tombstones
put(odd, 1, SRC)
replaces(staging(odd, 2), "1")
equal(names(CLAIMS), ["a b", "t"], "tenants")
equal(names(CLAIMS / "a b" / "n%2Fm" / "%2Er"), ["50%25 é"], "revisions")
equal(claim(odd)["revision"], "50% é", "of an odd name")
one = CLAIMS / "t" / "n" / "r" / "main"
equal(run("find", CLAIMS, "-type", "f").count("\n"), 2, "found")
equal(run("find", CLAIMS, "-type", "d").count("\n"), 7, "directories")
equal(stat.S_IMODE(one.stat().st_mode), 0o400, "its mode")
equal(stat.S_IMODE(one.parent.stat().st_mode), 0o500, "mode of a directory")
for path in ("x", "t/x", "t/n/x", "t/n/r/x", "t/n/r/main.json", "a b/n/m"):
    refused("ENOENT", os.stat, CLAIMS / path)
refused("ENOTDIR", os.stat, one / "7.json")
for call, *args in [(open, one, "w"), (os.unlink, one), (os.truncate, one, 0),
                    (os.rename, one, one.parent / "x"), (os.rmdir, CLAIMS),
                    (os.mkdir, one.parent / "x"), (os.chmod, one, 0o666)]:
    refused("EPERM|EACCES|EROFS", call, *args)

# ---- Published: it goes on to its end
d.stop()
d.restart()
equal(attr(stage, "replaces"), "7,mode=put_first,request_id=a request = 1",
      "replaces, after a restart")
publish(stage)
wait_for(lambda: claim(line)["phase"] == "completed", "its end", 30)
equal(attr(line, "watermark"), "8", "watermark")
says(attr(line, "claim"), "^7 by 8, .*phase=completed")
equal(claim(line)["committed_weight_generation"], 8, "watermark")
refused("ENOENT", os.stat, gen)
check((MNT / ".weights" / "tombstones" / "t" / "n" / "r" / "main" /
       "7.json").exists(), "no tombstone")
refused("ENODATA", attr, line / "8", "replaces")

# ---- To replace is to remove: by the owner of both, or root
if os.geteuid() == 0:
    A, B = 11111, 22222
    a, b = Client(A), Client(B)
    try:
        a.get("os.listdir(args[0])", MNT)
    except OSError:
        skip("the build directory is closed to other users")
    ours = MNT / "t" / "n" / "r" / "ours"
    ours.mkdir()
    os.chmod(ours, 0o777)
    run("chmod", "-R", "a+rX", SRC)
    COPY = "args[0].mkdir(); run('cp', '-r', f'{args[1]}/.', args[0])"
    a.do(COPY, ours / ".staging" / "1", SRC)
    a.do("publish(args[0])", ours / ".staging" / "1")
    b.do("args[0].mkdir()", ours / ".staging" / "2")
    a.do("args[0].mkdir(); args[0].chmod(0o777)", ours / ".staging" / "3")
    SET = "set_attr(args[0], 'replaces', '1')"
    refused("EPERM", b.do, SET, ours / ".staging" / "2")
    says(attr(ours / ".staging" / "2", "error"), "replaced by its owner")
    refused("EPERM", b.do, SET, ours / ".staging" / "3")
    refused("ENODATA", attr, ours, "claim")
    a.do(SET, ours / ".staging" / "3")
    equal(b.get("attr(args[0], 'watermark')", ours), "1", "read by B")
    refused("EACCES", a.get, "os.listdir(args[0])", CLAIMS)
    refused("EACCES", a.get, "open(args[0]).read()", one)
    a.end()
    b.end()
d.stop()
EOP
