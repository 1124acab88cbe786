# SPDX-License-Identifier: Apache-2.0
# A generation takes the place of another that goes first: not while somebody
# reads it, a copy that is begun at once waits for it, and nothing waits for ever.
# MANUAL
# TIMEOUT: 240
. "$TESTS/integration/tools/py.sh"
# What was made undeletable doesn't stay, whatever happens.
free_all() {
	local status=$?
	set +e
	chattr -R -f -i "$STORE" 2>/dev/null
	(exit "$status")
	clean_up
}
trap free_all EXIT

py <<'EOP'
from claims import *
from wf import *

SRC, NEW = checkpoint("src", seed=1), checkpoint("new", seed=2)
os.environ["PATH"] += ":/sbin:/usr/sbin"
AWAITS = "the generation that it replaces is being removed first"


def start(*argv):
    return subprocess.Popen([str(a) for a in argv], stderr=subprocess.STDOUT,
                            stdout=open(WORK / "started.out", "wb"))


def ends(process, status=0):
    equal(process.wait(30), status, "status of " + " ".join(process.args))


def is_parked(process):
    """It waits for an answer, and goes on doing so."""
    for _ in range(5):
        time.sleep(0.1)
        check(process.poll() is None, "it doesn't wait")


def claimed(stage, *args):
    """The base may be held for a moment by who has just read it."""
    def announced():
        try:
            announce(stage, *args)
        except OSError as e:
            equal(e.errno, errno.EBUSY, "announcing")
            return False
        return True
    wait_for(announced, f"{args} is announced")


d = Daemon()
line = lineage()
gen = put(line, 7, SRC)
ready(gen)
stage = staging(line, 8)

# ---- While somebody reads the base: refused, with who it is; nothing changes
with Client() as c:
    c.do("m = mapped(args[0])", gen / "model.safetensors")
    refused("EBUSY", announce, stage, 7, "delete_first")
    says(attr(stage, "error"), r"model\.safetensors", r"\b%d\b" % c.pid,
         "python")
    says(run("setfattr", "-n", "user.weights.replaces", "-v",
             "7,mode=delete_first", stage, status=1),
         "Device or resource busy")
    c.do("m.close(); f = open(args[0])", gen / "1_Pooling" / "config.json")
    refused("EBUSY", announce, stage, 7, "delete_first")
    says(attr(stage, "error"), r"1_Pooling/config\.json", r"\b%d\b" % c.pid)
    c.do("f.close()")
refused("ENODATA", attr, line, "claim")
same_tree(gen, SRC)
# ---- Nor with files there, which its base's room was to be for
(stage / "config.json").write_text("{}")
refused("EPERM", announce, stage, 7, "delete_first")
says(attr(stage, "error"), "files are there already", "before the first file")
refused("ENODATA", attr, line, "claim")
(stage / "config.json").unlink()
(stage / "d").mkdir()
refused("EPERM", announce, stage, 7, "delete_first")
(stage / "d").rmdir()
at = int(attr(gen, "metadata_generation"))
refused("ECANCELED", announce, stage, 7, "delete_first", "r1", at + 1)
equal(attr(gen, "availability"), "ready", "availability")

# ---- Announced, and the copy at once: it waits if it has to
claimed(stage, 7, "delete_first", "r1", at)
ends(start("cp", "-a", f"{NEW}/.", stage))
is_claimed(line, 7, 8, "delete_first", "target_importing", "r1", 7)
refused("ENOENT", os.stat, gen)
check((MNT / ".weights" / "tombstones" / "t" / "n" / "r" / "main" /
       "7.json").exists(), "no tombstone of what has gone first")
equal(attr(stage, "replaces"), "7,mode=delete_first,request_id=r1", "replaces")
# A competitor comes too late, by whatever name.
other = staging(line, 9, SRC)
ready(other)
refused("EBUSY", os.rename, other, line / "9")
says(attr(other, "error"), "generation 7 is being replaced by 8", "r1")
refused("EBUSY", announce, other, 7)
says(run("mv", "-T", other, line / "9", status=1),
     "Device or resource busy")
target = publish(stage)
same_tree(target, NEW)
comes_to(line, "completed")
is_claimed(line, 7, 8, "delete_first", "completed", "r1", 8)
os.rename(other, line / "9")
gen = line / "9"
ready(gen)

# ---- Given up: the base is gone, and only the same request goes on
line = lineage("resumed")
gen = put(line, 7, SRC)
ready(gen)
stage = staging(line, 8)
claimed(stage, 7, "delete_first", "r1")
run("cp", "-a", f"{NEW}/.", stage)
run("rm", "-r", stage)
is_claimed(line, 7, 8, "delete_first", "target_importing", "r1", 7)
equal(claim(line)["error"], "target import interrupted", "its error")
refused("ENOENT", os.stat, gen)
stage = staging(line, 8, NEW)
ready(stage)
refused("EBUSY", os.rename, stage, line / "8")
says(attr(stage, "error"), "that was interrupted", "by the same request, r1$")
for args in ((7, "delete_first", "r2"), (7, "put_first", "r1"),
             (7, "put_first", "r2")):
    refused("EBUSY", announce, stage, *args)
    says(attr(stage, "error"), "r1")
other = staging(line, 9)
for args in ((7, "delete_first", "r1"), (8, "put_first", None), (7, )):
    refused("EBUSY|ENOENT", announce, other, *args)
os.rmdir(other)
announce(stage, 7, "delete_first", "r1")
equal(claim(line)["error"], "", "its error")
target = publish(stage)
same_tree(target, NEW)
comes_to(line, "completed")
is_claimed(line, 7, 8, "delete_first", "completed", "r1", 8)
d.stop()

# ---- One that nothing durable is asked of
d.restart("durability=none")
line = lineage("scratch")
gen = put(line, 7, SRC)
stage = staging(line, 8)
claimed(stage, 7, "delete_first")
ends(start("cp", "-a", f"{NEW}/.", stage))
same_tree(publish(stage), NEW)
comes_to(line, "completed")
d.stop()

# ---- A base that goes slowly: who waits is told so, and may give up
disk = Disk()
d.env.update(disk.env)
d.restart("durability=writeback")


def begun(name):
    """A base that is on its way out, and what comes for it."""
    line = lineage(name)
    gen = put(line, 7, SRC)
    ready(gen)
    disk.hold()
    stage = staging(line, 8)
    claimed(stage, 7, "delete_first", "r1")
    is_claimed(line, 7, 8, "delete_first", "deleting_base", "r1", 7)
    wait_for(lambda: not gen.exists(), "the base goes")
    return line, stage


if disk.holds:
    line, stage = begun("slow")
    equal(attr(stage, "progress"), AWAITS, "progress")
    for _ in range(2):
        with open(stage / ".weights" / "wait", "rb", buffering=0) as f:
            equal(f.read(4096).decode(), AWAITS + "\n", "wait")
    says(run("mv", "-T", stage, line / "8", status=1),
         "Device or resource busy")
    says(attr(stage, "error"), "generation 8 comes when 7 is gone")
    # Whoever is asked to stop does, and nothing comes of it.
    for argv in (["touch", stage / "other"], ["mkdir", stage / "other"],
                 ["cp", "-a", f"{NEW}/.", stage], ["chmod", "700", stage],
                 ["cat", stage / ".weights" / "wait"]):
        for sent in (signal.SIGINT, signal.SIGKILL):
            p = start(*argv)
            is_parked(p)
            p.send_signal(sent)
            ends(p, -sent)
    equal(names(stage), [], "what is staged")
    is_claimed(line, 7, 8, "delete_first", "deleting_base", "r1", 7)

    # Killed: the next one goes on deleting, and the copy waits for that.
    p = start("cp", "-a", f"{NEW}/.", stage)
    is_parked(p)
    d.kill()
    check(p.wait(30) != 0, "the copy went well without a daemon")
    d.restart()
    is_claimed(line, 7, 8, "delete_first", "deleting_base", "r1", 7)
    check(not (line / "7").exists(), "it is back")
    equal(attr(stage, "replaces"), "7,mode=delete_first,request_id=r1",
          "replaces")
    # Asked to end, it keeps nobody waiting but for the disk itself.
    p = start("cp", "-a", f"{NEW}/.", stage)
    is_parked(p)
    d.process.terminate()
    check(p.wait(30) != 0, "the copy went well without a daemon")
    disk.free()
    d.ends()
    d.restart()
    equal(names(stage), [], "what is staged")
    disk.hold()
    # All goes on by itself, and the copy that waited with it.
    line, stage = begun("waited")
    p = start("cp", "-a", f"{NEW}/.", stage)
    is_parked(p)
    disk.free()
    ends(p)
    for name in ("slow", "waited"):
        line, stage = lineage(name), lineage(name) / ".staging" / "8"
        if name == "slow":
            run("cp", "-a", f"{NEW}/.", stage)
        same_tree(stage, NEW)
        is_claimed(line, 7, 8, "delete_first", "target_importing", "r1", 7)
        same_tree(publish(stage), NEW)
        comes_to(line, "completed")
        is_claimed(line, 7, 8, "delete_first", "completed", "r1", 8)

    # Forced: the mount is gone, and the daemon ends when the last one goes.
    if os.geteuid() == 0:
        line, stage = begun("forced")
        p = start("touch", stage / "other")
        is_parked(p)
        run("umount", "-l", MNT)
        p.kill()
        ends(p, -signal.SIGKILL)
        disk.free()
        d.ends()
        d.restart()
        run("cp", "-a", f"{NEW}/.", stage)
        same_tree(publish(stage), NEW)
        comes_to(line, "completed")

else:
    print("# nothing can be held here")

# ---- A base that can't be deleted: nobody waits for that
line = lineage("stuck")
gen = put(line, 7, SRC)
ready(gen)
with Stuck(gen) as stuck:
    if not stuck.works:
        print("# nothing can be made undeletable here")
        raise SystemExit(d.stop())
    stage = staging(line, 8)
    claimed(stage, 7, "delete_first", "r1")
    wait_for(lambda: not gen.exists(), "the base goes")
    wait_for(lambda: re.search("generation 7 .* can't be deleted: "
                               "Operation not permitted; trying again",
                               LOG.read_text()), "a line in the log")
    for how in (d.stop, d.terminate, d.kill):
        says(run("cp", "-a", f"{NEW}/.", stage, status=1),
             "Operation not permitted")
        says(attr(stage, "error"), "can't be removed; trying again")
        equal(attr(stage, "progress"), AWAITS, "progress")
        is_claimed(line, 7, 8, "delete_first", "deleting_base", "r1", 7)
        check(not gen.exists(), "it is back")
        equal(names(stage), [], "what is staged")
        how()
        d.restart()
    stuck.free()
comes_to(line, "target_importing")
run("cp", "-a", f"{NEW}/.", stage)
same_tree(publish(stage), NEW)
comes_to(line, "completed")
is_claimed(line, 7, 8, "delete_first", "completed", "r1", 8)

# ---- Given up while the base goes: it is over, whatever becomes of the base
line = lineage("over")
gen = put(line, 7, SRC)
ready(gen)
with Stuck(gen) as stuck:
    stage = staging(line, 8)
    claimed(stage, 7, "delete_first", "r1")
    is_claimed(line, 7, 8, "delete_first", "deleting_base", "r1", 7)
    wait_for(lambda: not gen.exists(), "the base goes")
    run("rmdir", stage)
    is_claimed(line, 7, 8, "delete_first", "aborted", "r1", 7)
    stage = staging(line, 8)
    for mode in ("put_first", "delete_first"):
        refused("EINPROGRESS", announce, stage, 7, mode)
        says(attr(stage, "error"), "generation 7 is deleting")
    run("cp", "-a", f"{NEW}/.", stage)
    same_tree(publish(stage), NEW)
    stuck.free()
wait_for((MNT / ".weights" / "tombstones" / "t" / "n" / "r" / "over" /
          "7.json").exists, "its tombstone")
d.stop()
EOP
