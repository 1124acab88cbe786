# SPDX-License-Identifier: Apache-2.0
# Policies: set before publishing and after, a part at a time, under a fence.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from residency import *
from wf import *

SRC = checkpoint("src")
DEFAULT = "preferred=hot,ratio=0.5,mode=auto"
d = Daemon()
line = lineage()
can_pin = "memory can be locked: yes" in (
    MNT / ".weights" / "health").read_text()
here = "hot" if can_pin else "cold"


def policy(path, value):
    set_attr(path, "policy", value)


def is_unlisted(path):
    check("user.weights.policy" not in os.listxattr(path), "policy is listed")


BAD = ["", "hot", "preferred", "preferred=", "preferred=HOT",
       "preferred=unknown", "preferred=absent", "preferred=hot,",
       ",preferred=hot", "preferred=hot mode=auto", "preferred=hot, mode=auto",
       "preferred=hot,preferred=cold", "ratio=0", "ratio=1", "ratio=0.5,ratio=1",
       "ratio=1e-1", "ratio=-0.5", "ratio=" + "0.1" * 1000, "mode=off",
       "mode=auto,if=", "mode=auto,if=0", "mode=auto,if=-1", "mode=auto,if=x",
       "mode=auto,if=1,if=1", "if=2", "mode=auto\n", "mode=auto\0",
       "mode=auto\0,ratio=0.5", "Mode=auto", "mode=auto,colour=red",
       "x" * 60_000]

# ---- Staged: what it will have
stage = staging(line, 7, SRC)
equal(attr(stage, "policy"), DEFAULT, "at first")
is_unlisted(stage)
policy(stage, "mode=manual")
equal(attr(stage, "policy"), "preferred=hot,ratio=0.5,mode=manual", "a part")
policy(stage, "ratio=0.125,preferred=cold")
equal(attr(stage, "policy"), "preferred=cold,ratio=0.125,mode=manual", "two")
for value in (attr(stage, "policy"), "ratio=0.999999999999999",
              "ratio=0.000000000000001", "ratio=0.1"):
    policy(stage, value)
    again = attr(stage, "policy")
    policy(stage, again)
    equal(attr(stage, "policy"), again, f"what was said of {value}")
for value in BAD:
    refused("EINVAL", policy, stage, value)
    says(attr(stage, "error"), "the policy stays as it is")
refused("EINVAL", policy, stage, "mode=auto,if=1")
says(attr(stage, "error"), "no metadata_generation yet")
says(run("setfattr", "-n", "user.weights.policy", "-v", "mode=always", stage,
         status=1), "Invalid argument")
says(attr(stage, "error"), "mode= takes pinned, manual or auto")
equal(attr(stage, "policy"), "preferred=cold,ratio=0.1,mode=manual", "then")
is_unlisted(stage)

# ---- Nothing else acts there, and nothing below it
for name in ("residency", "remove", "scrub", "repair", "preferred", "mode",
             "watermark", "claim"):
    set_attr(stage, name, "x")
    refused("ENODATA", attr, stage, name)
for path in (stage / "config.json", stage / "1_Pooling",
             stage / "1_Pooling" / "config.json"):
    policy(path, "preferred=hot")
    policy(path, "nonsense")
    refused("ENODATA", attr, path, "policy")
os.removexattr(stage, "user.weights.policy")
equal(attr(stage, "policy"), "preferred=cold,ratio=0.1,mode=manual", "removed")

# ---- No copy brings it along
for tool in (["cp", "-a"], ["cp", "-a", "--preserve=all"], ["rsync", "-aX"]):
    if not shutil.which(tool[0]):
        continue
    other = staging(line, 8)
    run(*tool, f"{stage}/.", other)
    equal(attr(other, "policy"), DEFAULT, f"after {tool}")
    shutil.rmtree(other)

# ---- It outlives the daemon, and goes with what was staged
d.kill()
d.restart()
equal(attr(stage, "policy"), "preferred=cold,ratio=0.1,mode=manual", "restart")
other = staging(line, 9, SRC)
policy(other, "mode=pinned")
shutil.rmtree(other)
other = staging(line, 9, SRC)
equal(attr(other, "policy"), DEFAULT, "staged anew")

# ---- Published: a part, a fence, a repeat
gen = publish(other)
settle(gen)
comes_to(gen, here)
equal(attr(gen, "policy"), DEFAULT, "published")
is_unlisted(gen)
at = int(attr(gen, "metadata_generation"))
policy(gen, f"mode=manual,if={at}")
equal(int(attr(gen, "metadata_generation")), at + 1, "metadata_generation")
policy(gen, f"mode=manual,if={at}")
policy(gen, "mode=manual")
equal(int(attr(gen, "metadata_generation")), at + 1, "after repeats")
for fence in (at, at + 2, 1, 2 ** 64 - 1):
    refused("ECANCELED", policy, gen, f"ratio=0.25,if={fence}")
    says(attr(gen, "error"), "metadata_generation is another one")
for value in BAD:
    refused("EINVAL", policy, gen, value)
    says(attr(gen, "error"), "the policy stays as it is")
equal(attr(gen, "policy"), "preferred=hot,ratio=0.5,mode=manual", "policy")
policy(gen, "ratio=0.25")
equal([attr(gen, n) for n in ("preferred", "mixed_hot_ratio", "mode")],
      ["hot", "0.25", "manual"], "the three attributes")
said = json.loads((gen / ".weights" / "metadata.json").read_text())
equal([said[n] for n in ("preferred_residency", "mixed_hot_ratio",
                         "migration_mode")], ["hot", 0.25, "manual"], "JSON")
policy(gen, attr(gen, "policy"))
for path in (gen / "config.json", gen / "1_Pooling", line, MNT,
             gen / ".weights" / "metadata.json"):
    refused("EPERM|EROFS|EOPNOTSUPP", policy, path, "mode=auto")
    refused("ENODATA", attr, path, "policy")
refused("EPERM|EROFS", os.removexattr, gen, "user.weights.policy")

# ---- Pinned stays where it is; manual moves when it is told; auto goes
policy(gen, "mode=pinned")
refused("EPERM", move, gen, "cold" if can_pin else "hot")
says(attr(gen, "error"), "pinned" if can_pin else "pinned|locked")
policy(gen, "preferred=cold,mode=manual")
settle(gen)
equal(attr(gen, "residency"), here, "manual")
equal(operation(gen), None, "an operation")
policy(gen, "mode=auto")
settle(gen)
comes_to(gen, "cold")
if can_pin:
    policy(gen, "preferred=hot")
    settle(gen)
    comes_to(gen, "hot")

# ---- Mixed may be wanted, but nothing begins
refused("EPERM", policy, gen, "preferred=mixed")
policy(gen, "preferred=mixed,mode=pinned")
equal(attr(gen, "policy"), "preferred=mixed,ratio=0.25,mode=pinned", "mixed")
equal(operation(gen), None, "an operation")

# ---- What is published has it, and goes where it is wanted once, at least
equal(attr(publish(stage), "policy"), "preferred=cold,ratio=0.1,mode=manual",
      "of what was staged so")
for g, mode in ((20, "manual"), (21, "pinned"), (22, "auto")):
    stage = staging(line, g, SRC)
    policy(stage, f"preferred=cold,ratio=0.25,mode={mode}")
    gen = publish(stage)
    equal(attr(gen, "policy"), f"preferred=cold,ratio=0.25,mode={mode}", mode)
    settle(gen)
    comes_to(gen, "cold")
    same_tree(gen, SRC)

# ---- A lineage in which nothing was replaced
for name in ("watermark", "claim"):
    refused("ENODATA", attr, line, name)
    refused("EPERM", set_attr, line, name, "7")
check(not {"user.weights.watermark", "user.weights.claim"} &
      set(os.listxattr(line)), "they are listed")

# ---- By its owner or by root
if os.geteuid() == 0:
    A, B = 11111, 22222
    theirs = MNT / "t" / "n" / "r" / "theirs"
    theirs.mkdir()
    os.chown(theirs, A, A)
    a, b = Client(A), Client(B)
    try:
        a.get("os.listdir(args[0])", MNT)
    except OSError:
        skip("the build directory is closed to other users")
    stage = theirs / ".staging" / "1"
    a.do("args[0].mkdir()", stage)
    run("cp", "-r", f"{SRC}/.", stage)
    run("chmod", "-R", "a+rX", stage)
    os.chmod(stage, 0o777)
    SET = "set_attr(args[0], 'policy', args[1])"
    a.do(SET, stage, "mode=manual")
    refused("EPERM", b.do, SET, stage, "mode=auto")
    says(attr(stage, "error"), "given a policy by its owner or by root")
    equal(b.get("attr(args[0], 'policy')", stage),
          "preferred=hot,ratio=0.5,mode=manual", "read by B")
    os.chmod(stage, 0o755)
    refused("EACCES", b.do, SET, stage, "mode=auto")
    os.chmod(stage, 0o777)
    mine = publish(stage)
    refused("EPERM", b.do, SET, mine, "mode=pinned")
    a.do(SET, mine, "mode=pinned")
    equal(attr(mine, "mode"), "pinned", "set by its owner")
    a.end()
    b.end()
d.stop()
EOP
