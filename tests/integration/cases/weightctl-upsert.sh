# SPDX-License-Identifier: Apache-2.0
# weightctl upsert puts a tree in the place of a generation, waits until that is
# gone, names who keeps it, and goes on where it was interrupted.
# MANUAL
# TIMEOUT: 180
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from residency import *
from wf import *

CTL = pathlib.Path(DAEMON).parent.parent / "mount-helpers" / "weightctl"
if not CTL.exists():
    skip("no weightctl")
SRC = checkpoint("src", size=3_000_000)
BIG = checkpoint("big", size=300_000_000)
d = Daemon()
line = lineage()


def ctl(*argv, status=0):
    return run(CTL, "upsert", *argv, status=status)


def facts_of(*argv):
    done = subprocess.run([CTL, *map(str, argv)], stdout=subprocess.PIPE,
                          check=True)
    return json.loads(done.stdout)


def claim():
    return facts_of("claim", "--json", line)


def start(*argv):
    """Whatever the case was started with, signals are not ignored."""
    return subprocess.Popen(
        [CTL, "upsert", *map(str, argv)], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def ends(p, status=0):
    out, err = p.communicate(timeout=60)
    equal(p.returncode, status, f"status ({out}{err})")
    return out, err


def staged():
    return names(line / ".staging")


def generations():
    return [int(n) for n in names(line) if n.isdigit()]


# ---- Nobody reads it: one goes, the other is there
settle(put(line, 1, SRC))
said = ctl("--replaces=1", SRC, line / "2")
says(said, rf"(?m)^{line}/2: published, 3 files, .*, durable; "
     "generation 1 is gone$")
equal((generations(), staged()), ([2], []), "generations")
same_tree(line / "2", SRC)
equal((claim()["phase"], claim()["watermark"]), ("completed", 2), "claim")
# The same command again finds it done.
says(ctl("--replaces", "1", SRC, line / "2"),
     rf"^{line}/2: published, \S+, durable; generation 1 is gone$")

# ---- A reader holds the base: he is named, and waited for
base = line / "2"
with Client() as c:
    c.do("f = open(args[0], 'rb')", base / "model.safetensors")
    p = start("--json", "--request-id=a request = 1", "-r", 2,
              f"--if={attr(base, 'metadata_generation')}", SRC, line / "3")
    said = p.stderr.readline()
    while said and "open or mapped" not in said:
        said = p.stderr.readline()
    says(said, f"^weightctl: {line}/3: generation 2, which it replaces, is "
         "still open or mapped: .*model.safetensors",
         rf"python3? .*\b{c.pid}\b")
    equal(claim()["phase"], "retiring_base", "phase")
    same_tree(line / "3", SRC)
    refused("EBUSY", open, base / "config.json")
    check(p.poll() is None, "it does not wait")

    # A signal leaves it to the mount; the same command waits again.
    p.send_signal(signal.SIGINT)
    said = ends(p, -signal.SIGINT)[1]
    says(said, f"weightctl: {line}/3: interrupted; it is published, and "
         "generation 2 goes without us; the same command waits for that")
    same = ("--json", "--request-id=a request = 1", "-r", 2, SRC, line / "3")
    says(ctl("-r2", "-R", "another", SRC, line / "3", status=1), "3 is there|"
         "published")
    f = json.loads(ctl("--no-wait", *same))
    equal((f["phase"], f["base"], f["target"]), ("retiring_base", 2, 3), "facts")
    says(ctl("-n", "-r2", SRC, line / "3"), "generation 2 goes when it can\n$")
    p = start(*same)
    c.do("f.close()")
    f = json.loads(ends(p)[0])
for key, want in {"path": str(line / "3"), "generation": 3, "base": 2,
                  "target": 3, "mode": "put_first", "phase": "completed",
                  "request_id": "a request = 1", "durable": True,
                  "availability": "ready"}.items():
    equal(f[key], want, key)
equal(generations(), [3], "generations")

# ---- The base first: refused while somebody reads, and nothing begins
base = line / "3"
with Client() as c:
    c.do("m = mapped(args[0])", base / "model.safetensors")
    said = ctl("--mode=delete_first", "--replaces=3", SRC, line / "4", status=1)
    says(said, rf"^weightctl: {line}/.staging/4: replaces=3,mode=delete_first: "
         "generation 3 is open or mapped", rf"\b{c.pid}\b")
    equal((staged(), generations(), claim()["target"]), ([], [3], 3), "as it was")
    c.do("m.close()")
wait_for(lambda: attr(base, "leases") == "0", "nobody reads")
settle(base)
f = facts_of("upsert", "-jq", "-M", "delete_first", "-r3", SRC, line / "4")
equal((f["mode"], f["phase"], f["files"]), ("delete_first", "completed", 3), f)
equal((generations(), staged()), ([4], []), "generations")
same_tree(line / "4", SRC)

# ---- A competitor: he says so, takes nothing away, and leaves nothing
settle(line / "4")
other = staging(line, 5, SRC)
set_attr(other, "replaces", "4,request_id=mine")
said = ctl("--replaces=4", SRC, line / "6", status=1)
says(said, f"^weightctl: {line}/.staging/6: replaces=4,mode=put_first: "
     "generation 4 is being replaced by 5 .request mine.")
says(ctl("-r4", "-R", "yours", SRC, line / "5", status=1), "5: an import .* there")
same_tree(other, SRC)
equal((staged(), generations()), (["5"], [4]), "as it was")
shutil.rmtree(other)
equal(claim()["phase"], "aborted", "given up")

# ---- Refusals: a sentence with the path, status 1, and nothing stays
broken = checkpoint("broken")
os.truncate(broken / "model.safetensors", 100)
for argv, pattern in [
        (("--if=99", "-r4", SRC, line / "6"), r"4 has metadata generation \d+"),
        (("-r3", SRC, line / "6"), "no generation 3|has reached generation 4"),
        (("-r4", SRC, line / "3"), r"3\b.*(removed|tombstone|again)"),
        (("-r7", SRC, line / "6"), "no generation 7"),
        (("-r4", WORK / "absent", line / "6"), "No such file"),
        (("-r4", "-R", "\x01", SRC, line / "6"), "request_id= takes"),
        (("-r4", broken, line / "6"),
         r"model\.safetensors(?s:.*)6: generation 4 stays; the same command "
         "begins anew")]:
    said = ctl(*argv, status=1)
    says(said, "^weightctl: ", pattern)
    equal((staged(), generations()), ([], [4]), f"after {argv}")
for argv in [(SRC, line / "6"), ("-r0", SRC, line / "6"),
             ("-rx", SRC, line / "6"), ("-r4", "-M0", SRC, line / "6"),
             ("-r4", "-R", "a,b", SRC, line / "6"), ("-r4", SRC)]:
    ctl(*argv, status=2)


# ---- Interrupted while it copies
def copying(generation, *argv):
    """One that copies; somebody who writes keeps it from going further."""
    stage = line / ".staging" / str(generation)
    p = start(*argv, BIG, line / str(generation))
    file = wait_for(lambda: next(stage.glob("model.*"), None), "it copies")
    return p, stage, os.open(file, os.O_RDWR)


def stopped(p, number, writer):
    p.send_signal(number)
    said = ends(p, -number)[1]
    os.close(writer)
    return said


p, stage, writer = copying(6, "--replaces=4")
says(stopped(p, signal.SIGINT, writer),
     "6: interrupted; nothing was published",
     "6: generation 4 stays; the same command begins anew")
equal((staged(), generations(), claim()["phase"]), ([], [4], "aborted"), "gone")

p, stage, writer = copying(6, "--replaces=4", "--request-id=once")
says(stopped(p, signal.SIGINT, writer), "anew, with another --request-id")
says(ctl("-r4", "-R", "once", SRC, line / "6", status=1),
     "request once was given up; announce it under another request_id")
equal((staged(), generations()), ([], [4]), "after that")

# Kept, it goes on: by the same request, with nothing that was left over.
p, stage, writer = copying(6, "--keep", "--replaces=4", "--request-id=twice")
says(ctl("-r4", "-R", "twice", BIG, line / "6", status=1),
     "6: somebody else is filling it")
says(stopped(p, signal.SIGINT, writer), "6: what was copied stays there",
     "6: generation 4 stays; the same command goes on")
equal((staged(), claim()["phase"]), (["6"], "preparing_target"), "kept")
(stage / "left over").mkdir()
(stage / "left over" / "x").write_text("x")
(stage / "config.json").write_text("x")
says(ctl("-r4", "-R", "thrice", BIG, line / "6", status=1), "an import .* there")
says(ctl("-r4", "-R", "twice", "--if=99", BIG, line / "6", status=1),
     "with other arguments|metadata generation")
equal(staged(), ["6"], "a refusal takes nothing away")
ctl("--replaces=4", "--request-id=twice", BIG, line / "6")
same_tree(line / "6", BIG)
equal((staged(), generations(), claim()["request_id"]), ([], [6], "twice"),
      "gone on")

# Killed, it goes on likewise.
p, stage, writer = copying(7, "--replaces=6")
stopped(p, signal.SIGKILL, writer)
equal(staged(), ["7"], "what it left")
ctl("-qr6", SRC, line / "7")
same_tree(line / "7", SRC)
equal(generations(), [7], "gone on")

# With the base gone there is no way back, but one on.
settle(line / "7")
p, stage, writer = copying(8, "--mode=delete_first", "--replaces=7")
says(stopped(p, signal.SIGINT, writer),
     "8: generation 7 is gone; the same command goes on")
equal((staged(), generations()), ([], []), "gone")
says(ctl("-r7", SRC, line / "9", status=1), "only the same request|no generation")
ctl("-qr7", "-Mdelete_first", SRC, line / "8")
equal((generations(), claim()["phase"]), ([8], "completed"), "gone on")

# ---- Published without, it does not replace what it once was to replace
other = lineage("other")
settle(put(other, 1, SRC))
set_attr(staging(other, 2), "replaces", "1")
(other / ".staging" / "2").rmdir()
put(other, 2, SRC)
says(ctl("-nr1", SRC, other / "2", status=1), "2 is published already")
equal(names(other), ["1", "2"], "generations")

# ---- Not root: by the owner of both
if os.geteuid() == 0:
    need("setpriv")
    os.chown(line, 12345, 12345)
    WORK.chmod(0o755)
    drop = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    says(run(*drop, CTL, "upsert", "-qr8", SRC, line / "9", status=1),
         "owner|Permission denied")
    equal(staged(), [], "staged")
    ours = line.parent / "ours"
    ours.mkdir()
    os.chown(ours, 12345, 12345)
    run(*drop, CTL, "put", "-qd", SRC, ours / "1")
    run(*drop, CTL, "upsert", "-qr1", SRC, ours / "2")
    equal(names(ours), ["2"], "by its owner")
d.stop()
EOP
