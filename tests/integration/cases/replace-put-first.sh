# SPDX-License-Identifier: Apache-2.0
# A generation takes the place of another: the base can be read until its
# successor is there for good, who reads it keeps it, and nobody gets between.
# MANUAL
# TIMEOUT: 180
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from claims import *
from wf import *

MIB = 1 << 20
SRC, NEW = checkpoint("src", seed=1), checkpoint("new", seed=2)
BIG = checkpoint("big", size=6 * MIB, seed=3)
# Writing back takes long enough to look at what is so meanwhile.
d = Daemon("io_limit=2M")
line = lineage()
gen = put(line, 7, SRC)
ready(gen)
refused("ENODATA", attr, line, "claim")
refused("ENODATA", attr, line, "watermark")
check(not (CLAIMS / "t").exists(), "a claim")

# ---- What makes no sense is refused in words, and leaves no claim
stage = staging(line, 8)
at = int(attr(gen, "metadata_generation"))
for value in ["", "x", "0", "-7", "07", "7,", ",7", "7,mode=", "7,mode=first",
              "7,mode=PUT_FIRST", "7,request_id=", "7,request_id=a\nb",
              "7,request_id=" + "r" * 1025, "7,if=", "7,if=0", "7,if=x",
              "7,mode=put_first,mode=put_first", "7,colour=red", "7\0",
              "7,request_id=a\0b", "18446744073709551616"]:
    refused("EINVAL", set_attr, stage, "replaces", value)
    says(attr(stage, "error"), "nothing is replaced")
for value, error, sentence in [
        ("6", "ENOENT", "no generation 6"),
        ("8", "ENOENT", "no generation 8"),
        (f"7,if={at + 1}", "ECANCELED", f"metadata generation {at}, not"),
        (f"7,if={at - 1}", "ECANCELED", f"metadata generation {at}, not")]:
    refused(error, set_attr, stage, "replaces", value)
    says(attr(stage, "error"), sentence)
low = staging(line, 3)
refused("ECANCELED", announce, low, 7)
says(attr(low, "error"), "choose a higher one")
for path in (line, gen, MNT, gen / "config.json"):
    refused("EPERM|EROFS|EOPNOTSUPP", announce, path, 7)
refused("ENODATA", attr, stage, "replaces")
refused("ENODATA", attr, line, "claim")
check(not (CLAIMS / "t").exists(), "a claim")

# ---- Announced: the base is as it was
announce(stage, 7, "put_first", "r1", at)
equal(attr(stage, "replaces"), "7,mode=put_first,request_id=r1", "replaces")
check("user.weights.replaces" not in os.listxattr(stage), "it is listed")
is_claimed(line, 7, 8, "put_first", "preparing_target", "r1", 7)
equal(claim_text(line)["expected_base_metadata_generation"], at, "its fence")
listed = run("getfattr", "-d", "--absolute-names", line)
says(listed, 'claim="7 by 8, mode=put_first, phase=preparing_target')
equal(run("find", CLAIMS, "-type", "f").split(),
      [str(CLAIMS / "t" / "n" / "r" / "main")], "claims")
# The same again goes on where it is; another one doesn't.
announce(stage, 7, "put_first", "r1", at)
announce(stage, 7)
for args in ((7, "delete_first", "r1"), (7, "put_first", "r2"),
             (7, "put_first", "r1", at + 1)):
    refused("EBUSY", announce, stage, *args)
    says(attr(stage, "error"), "r1")
same_tree(gen, SRC)

# ---- No copy brings it along, in neither direction
for tool in (["cp", "-a"], ["cp", "-a", "--preserve=all"], ["rsync", "-aX"]):
    if not shutil.which(tool[0]):
        continue
    run(*tool, f"{stage}/.", WORK / "copy")
    equal([n for n in os.listxattr(WORK / "copy") if "weights.rep" in n], [],
          f"copied by {tool}")
    with_it = checkpoint("with_it")
    for p in (with_it / "config.json", with_it / "1_Pooling"):
        os.setxattr(p, "user.weights.replaces", b"7,mode=put_first")
    other = staging(line, 12)
    run(*tool, f"{stage}/.", other)
    refused("ENODATA", attr, other, "replaces")
    run(*tool, f"{with_it}/.", other)
    for p in (other, other / "config.json", other / "1_Pooling"):
        refused("ENODATA", attr, p, "replaces")
    shutil.rmtree(other)
is_claimed(line, 7, 8, "put_first", "preparing_target", "r1", 7)

# ---- Nobody else: not by announcing, not by renaming, not by removing
other = staging(line, 9, NEW)
refused("EBUSY", announce, other, 7)
says(attr(other, "error"), "generation 7 is being replaced by 8", "r1")
ready(other)
refused("EBUSY", os.rename, other, line / "9")
says(attr(other, "error"), "generation 7 is being replaced by 8", "r1")
says(run("mv", "-T", other, line / "9", status=1),
     "Device or resource busy")
refused("EBUSY", remove, gen)
says(attr(gen, "error"), "the replacement of generation 7 by 8")
same_tree(gen, SRC)

# ---- A reader, then the successor: READY, but not durable yet
reader = Client()
reader.do("m = mapped(args[0])", gen / "model.safetensors")
run("cp", "-a", f"{BIG}/.", stage)
target = publish(stage)
equal(attr(target, "availability"), "ready", "availability")
equal(attr(target, "durable"), "no", "too fast to look at what is between")
is_claimed(line, 7, 8, "put_first", "preparing_target", "r1", 7)
same_tree(gen, SRC)
refused("EBUSY", remove, target)
says(attr(target, "error"), "the replacement of generation 7 by 8")
refused("EBUSY", remove, gen)
equal(attr(target, "durable"), "no", "too fast to look at what is between")

# ---- Durable: nobody comes to the base any more, who is there stays
wait_for(lambda: attr(target, "durable") == "yes", "durable", 60)
comes_to(line, "retiring_base")
is_claimed(line, 7, 8, "put_first", "retiring_base", "r1", 8)
for path in (gen / "config.json", gen / "model.safetensors",
             gen / ".weights" / "tensors" / "layers.0.a.weight"):
    refused("EBUSY", open, path, "rb")
    says(attr(gen, "error"), "being replaced by 8")
says(run("cat", gen / "config.json", status=1), "Device or resource busy")
refused("EBUSY", set_attr, gen, "residency", "cold")
refused("EBUSY", set_attr, gen, "policy", "mode=manual")
refused("EBUSY", remove, gen)
refused("EBUSY", remove, target)
refused("EBUSY", os.rename, other, line / "9")
same_tree(target, BIG)
for _ in range(5):
    equal(reader.get("bytes(m)"), (SRC / "model.safetensors").read_bytes(),
          "what the reader sees")
    check(gen.exists(), "removed under its reader")
    time.sleep(0.3)
reader.do("m.close()")
comes_to(line, "completed")
is_claimed(line, 7, 8, "put_first", "completed", "r1", 8)
refused("ENOENT", os.stat, gen)
wait_for((MNT / ".weights" / "tombstones" / "t" / "n" / "r" / "main" /
          "7.json").exists, "its tombstone")
refused("EEXIST", os.mkdir, line / ".staging" / "7")
reader.end()
equal(names(line), [".staging", "8"] if ".staging" in names(line) else ["8"],
      "the lineage")

# ---- The watermark: below it nothing is published, above it all is free again
for number in (3, 7, 5):
    path = line / ".staging" / str(number)
    if not path.exists():
        if number == 7:
            continue
        path.mkdir()
    run("cp", "-a", f"{NEW}/.", path)
    ready(path)
    refused("ECANCELED", os.rename, path, line / str(number))
    says(attr(path, "error"), r"\b8\b")
    says(run("mv", "-T", path, line / str(number), status=1),
         "Operation canceled")
    shutil.rmtree(path)
os.rename(other, line / "9")
same_tree(line / "9", NEW)
# The lineage has come to 8 by replacing, and 8 is what can be replaced.
stage = staging(line, 10)
refused("ECANCELED", announce, stage, 9)
says(attr(stage, "error"), "has reached generation 8, not 9")
refused("ECANCELED", announce, stage, 7)
remove_later = line / "9"
wait_for(lambda: not subprocess.run(
    ["setfattr", "-n", "user.weights.remove", "-v", "9", remove_later],
    stderr=subprocess.DEVNULL, check=False).returncode, "9 is removed")

# ---- Given up: the base stays, and another announcement may follow
for request, again in (("r2", "r3"), (None, None)):
    announce(stage, 8, request=request)
    is_claimed(line, 8, 10, "put_first", "preparing_target", request, 8)
    run("cp", "-a", f"{SRC}/.", stage)
    run("rm", "-r", stage)
    is_claimed(line, 8, 10, "put_first", "aborted", request, 8)
    same_tree(target, BIG)
    stage = staging(line, 10)
    refused("ENODATA", attr, stage, "replaces")
    if request:
        refused("EEXIST", announce, stage, 8, request=request)
        says(attr(stage, "error"), f"request {request} was given up")
        is_claimed(line, 8, 10, "put_first", "aborted", request, 8)
    announce(stage, 8, request=again)
    is_claimed(line, 8, 10, "put_first", "preparing_target", again, 8)
    run("rm", "-r", stage)
    stage = staging(line, 10)
equal(claims_in("put_first", "preparing_target"), 0, "claims that go on")
equal(counted("failures", "put_first"), 0, "failures")
# Nothing was announced: 10 is published, and nothing goes for it.
run("cp", "-a", f"{SRC}/.", stage)
gen = publish(stage)
ready(gen)
same_tree(target, BIG)
d.stop()

# ---- Where nothing waits for a disk
d.restart("durability=none")
line = lineage("scratch")
gen = put(line, 7, SRC)
stage = staging(line, 8)
announce(stage, 7)
run("cp", "-a", f"{NEW}/.", stage)
target = publish(stage)
comes_to(line, "completed")
refused("ENOENT", os.stat, gen)
same_tree(target, NEW)

# ---- One after the other
for n in range(9, 14):
    stage = staging(line, n)
    announce(stage, n - 1, "put_first")
    run("cp", "-a", f"{SRC}/.", stage)
    publish(stage)
    comes_to(line, "completed")
    is_claimed(line, n - 1, n, "put_first", "completed", None, n)
    wait_for(lambda: not (line / str(n - 1)).exists(), f"{n - 1} is gone")
equal([n for n in names(line) if n != ".staging"], ["13"], "the lineage")
d.stop()
EOP
