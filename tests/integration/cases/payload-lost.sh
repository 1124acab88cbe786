# SPDX-License-Identifier: Apache-2.0
# The payload of revisions is gone, or their manifests: they are degraded and say
# so, nothing else is the worse for it, and they heal when it is put back.
# MANUAL
# TIMEOUT: 240
. "$TESTS/integration/tools/py.sh"
expect_log "its (payload|manifest) is missing.*: (Input|Structure)"
expect_log "bytes .* are lost.*: Input/output error"

py <<'EOP'
from offline import *
from residency import *
from wf import *

SRC = checkpoint("src", files=2)
SMALL = checkpoint("small", seed=2)
MISSING = "payload is missing; copy it back into groups/"


def log_since(at):
    with open(LOG, "rb") as f:
        f.seek(at)
        return f.read().decode(errors="replace")


def gone_is_said(gen, residency="absent", says_=MISSING):
    """Degraded on record, with a sentence, and its wait ends with that."""
    wait_for(lambda: attr(gen, "availability") == "degraded", "degraded")
    wait_for(lambda: attr(gen, "residency") == residency, "on record")
    says(attr(gen, "error"), says_)
    equal(attr(gen, "durable"), "no", "durable")
    settle(gen, ".*" + says_ + ".*")
    check(operation(gen) is None, "an operation on what is gone")


def nothing_to_read(gen, name):
    refused("EIO", os.stat, gen / name)
    refused("EIO", open, gen / name, "rb")
    refused("EIO", os.listdir, gen)
    refused("EROFS|EIO", open, gen / "new", "wb")
    refused("EIO", set_attr, gen, "residency", "hot")


def put_back(gen, saved, directory):
    run("cp", "-a", f"{saved}/.", directory)
    set_attr(gen, "repair", 1)
    wait_for(lambda: attr(gen, "availability") == "ready", f"{gen} heals", 30)
    settle(gen)
    equal(attr(gen, "durable"), "yes", "durable")


d = Daemon()
line = lineage()
one, two, three = put(line, 1, SRC), put(line, 2, SMALL), put(line, 3, SRC)
gens = (one, two, three)
for gen in gens:
    settle(gen)
comes_to(one, "hot")
set_attr(two, "residency", "cold")
settle(two)
groups = {gen: group(gen) for gen in gens}
d.stop()
saved = {}
for gen, g in groups.items():
    saved[gen] = WORK / f"saved-{gen.name}"
    run("cp", "-a", g, saved[gen])

# ---- One in memory and one on the disk have lost everything
for gen in (one, two):
    shutil.rmtree(groups[gen])
start = LOG.stat().st_size
d.start()
wait_for(lambda: "degraded" == attr(two, "availability"), "nobody has asked")
text = log_since(start)
says(text, "the payload of 2 revisions is missing")
equal(names(line), ["1", "2", "3"], "the list")
run("ls", "-l", line)
for gen in (one, two):
    gone_is_said(gen)
    nothing_to_read(gen, "config.json")
same_tree(three, SRC)
equal(attr(three, "availability"), "ready", "the third one")
# It is told of once, whoever looks.
for _ in range(20):
    refused("EIO", os.listdir, one)
    attr(one, "error")
equal(log_since(start).count("generation 1 is damaged"), 1, "lines in the log")
# Nothing goes on with it for ever.
before = metric("weightfs_metadata_commits_total")
failures = metric("weightfs_reconciliation_failures_total")
time.sleep(2)
equal(metric("weightfs_metadata_commits_total"), before, "commits")
equal(metric("weightfs_reconciliation_failures_total"), failures, "failures")
d.stop()
wrong("t/n/r/main/1: it is degraded", "t/n/r/main/1: its manifest is not there",
      "t/n/r/main/2: it is degraded", "t/n/r/main/2: its manifest is not there")
d.start()
gone_is_said(one)
set_attr(one, "scrub", 1)
gone_is_said(one)
set_attr(one, "repair", 1)
gone_is_said(one)

# ---- Put back while the daemon runs, and while it doesn't
put_back(one, saved[one], groups[one])
same_tree(one, SRC)
comes_to(one, "hot")
d.stop()
run("cp", "-a", f"{saved[two]}/.", groups[two])
d.start()
wait_for(lambda: attr(two, "availability") == "ready", "the second one heals")
settle(two)
same_tree(two, SMALL)
check("error" not in [n.rsplit(".")[-1] for n in os.listxattr(two)], "an error")
d.stop()
sound()

# ---- Under a running daemon, which had it open
d.start()
holder = Client()
holder.do(MAP, one / "model-0.safetensors")
sha_before = holder.get(MAPPED_SHA)
run("rm", "-r", *groups[one].glob("*"))
equal(holder.get(MAPPED_SHA), sha_before, "what is mapped")
holder.do(UNMAP)
holder.end()
set_attr(one, "scrub", 1)
wait_for(lambda: attr(one, "availability") == "degraded", "a scrub finds it")
d.stop()
d.start()
gone_is_said(one)
put_back(one, saved[one], groups[one])
same_tree(one, SRC)

# ---- The manifest alone: what stamps vouch for is served
d.stop()
(groups[three] / "manifest.json").rename(WORK / "manifest")
d.start()
same_tree(three, SRC)
says_ = "manifest is missing or damaged"
set_attr(three, "scrub", 1)
wait_for(lambda: attr(three, "availability") == "degraded", "noticed")
says(attr(three, "error"), says_, "copy it back")
same_tree(three, SRC)
refused("ENOENT", os.stat, three / "no-such-file")
refused("EUCLEAN|EIO", os.listdir, three / ".weights" / "tensors")
refused("EIO", set_attr, three, "residency", "cold")
(groups[three] / "manifest.json").write_text("{}")
set_attr(three, "repair", 1)
settle(three, ".*" + says_ + ".*")
(groups[three] / "manifest.json").unlink()
(WORK / "manifest").rename(groups[three] / "manifest.json")
set_attr(three, "repair", 1)
wait_for(lambda: attr(three, "availability") == "ready", "it heals", 30)
settle(three)
check(names(three / ".weights" / "tensors"), "tensors")
same_tree(three, SRC)

# ---- The files alone: their names come back, their bytes are lost
d.stop()
shutil.rmtree(groups[two] / "files")
d.start()
wait_for(lambda: attr(two, "availability") == "degraded" and
         "are lost" in attr(two, "error"), "the names are back", 30)
equal(names(two), names(SMALL), "names")
fd = os.open(two / "config.json", os.O_RDONLY)
refused("EIO", os.read, fd, 10)
os.close(fd)
stage = staging(line, 9, SMALL)
ready(stage)
set_attr(two, "repair", 1)
wait_for(lambda: attr(two, "availability") == "ready", "mended", 30)
settle(two)
same_tree(two, SMALL, times=False)
run("rm", "-r", stage)

# ---- What is gone can be removed
d.stop()
shutil.rmtree(groups[one])
d.start()
gone_is_said(one)
remove(one)
refused("ENOENT", os.stat, one)
equal(names(line), ["2", "3"], "the list")
d.stop()
sound()

# ---- An import without its payload
snap = WORK / "snap"
exported(snap)
there = WORK / "there"
says(imported(snap, there), "2 have no payload here")
other = Daemon(store=there)
for gen in (two, three):
    gone_is_said(gen)
    nothing_to_read(gen, "config.json")
for gen in (two, three):
    place = there / "groups" / groups[gen].relative_to(STORE / "groups")
    put_back(gen, groups[gen], place)
same_tree(three, SRC)
same_tree(two, SMALL, times=False)
other.stop()
sound(there)
EOP
