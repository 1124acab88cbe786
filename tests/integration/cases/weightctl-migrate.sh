# SPDX-License-Identifier: Apache-2.0
# weightctl migrate moves a revision and waits, op shows the operation, and an
# interrupted wait leaves it going on. umount.weightfs waits for what is pending.
# MANUAL
# TIMEOUT: 180
need_root
need findmnt
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

HELPERS = pathlib.Path(DAEMON).parent.parent / "mount-helpers"
CTL, UMOUNT = HELPERS / "weightctl", HELPERS / "umount.weightfs"
if not CTL.exists():
    skip("no weightctl")
SRC = checkpoint("src", size=30_000_000)
d = Daemon()
line = lineage()


def ctl(*argv, status=0, cwd=None):
    return run(CTL, *argv, status=status, cwd=cwd)


def start(*argv):
    """Whatever the case was started with, signals are not ignored."""
    return subprocess.Popen(
        [str(a) for a in argv], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.STDOUT, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def operation(gen):
    with contextlib.suppress(OSError):
        return attr(gen, "operation")


ctl("put", "--durable", SRC, line / "7")
gen = line / "7"
equal(attr(gen, "durable"), "yes", "durable")
ctl("migrate", gen, "hot", status=None)
if attr(gen, "residency") != "hot":
    skip("memory can't be pinned here")

# ---- There and back, by any path in it, in text and JSON
says(ctl("migrate", gen, "cold"), f"^{gen}: cold|\n{gen}: cold")
equal(attr(gen, "residency"), "cold", "residency")
facts = json.loads(run(CTL, "migrate", "--json", "--quiet",
                       gen / "config.json", "hot"))
equal((facts["path"], facts["residency"], facts["hot_ratio"]),
      (str(gen), "hot", 1), "facts")
check(facts["pinned_bytes"] >= 30_000_000, f"pinned {facts}")
says(ctl("migrate", gen, "hot"), "hot")
same_tree(gen, SRC)

# ---- An operation on record
op = str(facts["operation"])
equal(json.loads(ctl("op", "--json", op, cwd=line))["message"], "completed",
      "its record")
says(ctl("op", f"--mount={MNT}", op), r"(?m)^target_residency +hot",
     r"(?m)^message +completed")
says(ctl("op", gen), "no operation runs")
equal(ctl("op", "--json", gen), "{}\n", "none")

# ---- Held by a reader: it waits, says so, can be left, and goes on
with Client() as c:
    c.do("m = mapped(args[0])", gen / "model.safetensors")
    said = ctl("migrate", "--no-wait", gen, "cold")
    says(said, r"operation \d+")
    op = attr(gen, "operation")
    says(said, rf"\b{op}\b")
    p = start(CTL, "migrate", gen, "cold")
    # It has begun to wait when its end is not asked for any more.
    wait_for(lambda: any(os.readlink(f"/proc/{p.pid}/fd/{n}").endswith("wait")
                         for n in os.listdir(f"/proc/{p.pid}/fd")), "waits")
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(timeout=30)
    equal(p.returncode, -signal.SIGINT, f"status ({out})")
    says(out, "interrupted; the operation goes on")
    equal(operation(gen), op, "the operation")
    says(ctl("op", gen), r"(?m)^target_residency +cold")
    equal(json.loads(ctl("op", "--json", gen))["operation_id"], int(op), "id")
    equal(attr(gen, "residency"), "hot", "held")

    q = start(CTL, "migrate", gen, "cold")
    c.do("m.close()")
    out, _ = q.communicate(timeout=60)
    equal(q.returncode, 0, f"status ({out})")
    says(out, f"{gen}: cold")
equal(attr(gen, "residency"), "cold", "residency")

# ---- Refusals
says(ctl("migrate", gen, "mixed", status=2), "hot or cold")
ctl("migrate", gen, status=2)
says(ctl("migrate", line, "cold", status=1), "not in a published revision")
says(ctl("migrate", "--if=99999", gen, "hot", status=1),
     rf"^weightctl: {gen}: residency=hot,if=99999: ")
equal(attr(gen, "residency"), "cold", "refused")

# ---- Without memory for it: the sentence, status 1, and no endless wait
d.stop()
d.restart("memory=4M")
says(ctl("migrate", gen, "hot", status=1), "memory")
check(attr(gen, "residency") != "hot", "hot without memory")
says(ctl("wait", gen, status=1), "memory")
# It keeps nobody from what has nothing to do with it.
ctl("wait", MNT)
says(ctl("scrub", gen), "0 bad")
says(ctl("repair", gen, f"config.json={SRC}/config.json"), "ready")
says(ctl("put", "--durable", SRC, line / "9"), "durable")
ctl("rm", line / "9")

# ---- umount.weightfs waits until all is durable; a signal leaves it as it is
run("sh", UMOUNT, MNT)
d.ends()
d.restart("io_limit=1M")
ctl("put", "-q", SRC, line / "8")
u = start("sh", UMOUNT, MNT)
says(u.stdout.readline(), r"^umount\.weightfs: .*MiB")
os.killpg(u.pid, signal.SIGTERM)
out, _ = u.communicate(timeout=30)
equal(u.returncode, 32, f"status of umount.weightfs ({out})")
says(out, "may not be durable", "stays mounted")
equal(attr(line / "8", "durable"), "no", "durable")
# Told not to wait, it does not.
check("MiB" not in run("sh", UMOUNT, "-l", MNT), "-l waits")
d.ends()
# Waited for, it is durable.
d.restart("io_limit=20M")
says(run("sh", UMOUNT, "-v", MNT), "MiB", "has ended")
d.ends()
d.restart("")
equal(attr(line / "8", "durable"), "yes", "durable")
d.stop()
EOP
