# SPDX-License-Identifier: Apache-2.0
# weightctl policy says where a revision is wanted, changes it under a fence, and
# waits for the operation that this begins.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from residency import *
from wf import *

CTL = pathlib.Path(DAEMON).parent.parent / "mount-helpers" / "weightctl"
if not CTL.exists():
    skip("no weightctl")
SRC = checkpoint("src", size=4_000_000)
d = Daemon()
line = lineage()
can_pin = "memory can be locked: yes" in (
    MNT / ".weights" / "health").read_text()


def ctl(*argv, status=0):
    return run(CTL, "policy", *argv, status=status)


def facts_of(*argv):
    return json.loads(ctl("--json", *argv))


# ---- Of what is staged: shown and changed, in one argument or several
stage = staging(line, 7, SRC)
equal(ctl(stage), f"{stage}: preferred=hot,ratio=0.5,mode=auto\n", "at first")
equal(ctl(stage / "config.json", "preferred=cold,ratio=0.125", "mode=manual"),
      f"{stage}: preferred=cold,ratio=0.125,mode=manual\n", "changed")
equal(facts_of(stage), {"path": str(stage), "preferred": "cold",
                        "ratio": 0.125, "mode": "manual"}, "facts")
equal(attr(stage, "policy"), "preferred=cold,ratio=0.125,mode=manual", "so")
equal(ctl("--wait", stage, "preferred=hot", "mode=auto"),
      f"{stage}: preferred=hot,ratio=0.125,mode=auto\n", "nothing to wait for")
said = ctl("--if=1", stage, "mode=pinned", status=1)
equal(said.strip(), f"weightctl: {stage}: policy=mode=pinned,if=1: "
      + attr(stage, "error"), "a fence")

# ---- Of what is published
gen = publish(stage)
settle(gen)
comes_to(gen, "hot" if can_pin else "cold")
at = int(attr(gen, "metadata_generation"))
equal(ctl("-i", at, gen / "config.json", "mode=manual"),
      f"{gen}: preferred=hot,ratio=0.125,mode=manual; no operation runs\n",
      "changed")
for argv, sentence in [
        ((f"--if={at}", gen, "ratio=0.25"), "metadata_generation is another"),
        ((gen, "preferred=warm"), "takes hot, cold or mixed"),
        ((gen, "cold"), "something beside preferred="),
        ((gen, "mode=auto", "mode=auto"), "is there twice"),
        ((gen, ""), "the policy stays as it is"),
        ((line,), "not in a revision"), (("/",), "not on a mount")]:
    says(ctl(*argv, status=1), "^weightctl: ", sentence)
equal(attr(gen, "policy"), "preferred=hot,ratio=0.125,mode=manual", "stays")
for argv in [(), ("--wait", gen), ("--if=1", gen)]:
    ctl(*argv, status=2)
f = facts_of(gen)
equal((f["preferred"], f["ratio"], f["mode"], f["metadata_generation"]),
      ("hot", 0.125, "manual", at + 1), "facts")
check("operation" not in f, f"an operation: {f}")

# ---- Auto goes where it is preferred, and is waited for
if not can_pin:
    d.stop()
    skip("memory can't be pinned here")
says(ctl("--wait", gen, "preferred=cold,mode=auto"),
     f"(?m)^{gen}: preferred=cold,ratio=0.125,mode=auto; cold, ")
equal(attr(gen, "residency"), "cold", "residency")
f = facts_of("-wq", gen, "preferred=hot")
equal((f["preferred"], f["residency"]), ("hot", "hot"), "facts")
comes_to(gen, "hot")

# ---- Held by a reader: the operation is named, and goes on without us
with Client() as c:
    c.do("m = mapped(args[0])", gen / "model.safetensors")
    said = ctl(gen, "preferred=cold")
    op = operation(gen)
    equal(said, f"{gen}: preferred=cold,ratio=0.125,mode=auto; operation {op}\n",
          "an operation")
    equal(facts_of(gen)["operation"], op, "facts")
    p = subprocess.Popen(
        [CTL, "policy", "--wait", gen, "preferred=cold"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    wait_for(lambda: any(os.readlink(f"/proc/{p.pid}/fd/{n}").endswith("wait")
                         for n in os.listdir(f"/proc/{p.pid}/fd")), "waits")
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(timeout=30)
    equal(p.returncode, -signal.SIGINT, f"status ({out})")
    says(out, "interrupted; the operation goes on")
    equal(operation(gen), op, "the operation")
    said = ctl(gen, "preferred=hot", status=1)
    equal(said.strip(), f"weightctl: {gen}: policy=preferred=hot: "
          + attr(gen, "error"), "while an operation runs")
    p = subprocess.Popen([CTL, "policy", "-w", gen, "preferred=cold"],
                         stdout=subprocess.PIPE, text=True)
    c.do("m.close()")
    out, _ = p.communicate(timeout=60)
    equal((p.returncode, out),
          (0, f"{gen}: preferred=cold,ratio=0.125,mode=auto; cold, "
           f"operation {op}\n"), "waited for")
equal(attr(gen, "residency"), "cold", "residency")

# ---- Without memory for it: the sentence, status 1, and no endless wait
d.stop()
d.restart("memory=1M")
says(ctl("--wait", gen, "preferred=hot", status=1), "memory")
equal(attr(gen, "preferred"), "hot", "it is wanted there all the same")
d.stop()
EOP
