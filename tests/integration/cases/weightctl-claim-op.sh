# SPDX-License-Identifier: Apache-2.0
# weightctl claim, op and leases tell what the control plane is about, for people
# and as JSON.
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


def ctl(*argv, status=0, cwd=None):
    return run(CTL, *argv, status=status, cwd=cwd)


def facts_of(*argv, cwd=None):
    return json.loads(ctl(*argv, "--json", cwd=cwd))


def rows(*argv):
    pairs = [x.partition(" ") for x in ctl(*argv).splitlines()]
    return {name: value.strip() for name, _, value in pairs}


# ---- claim: nothing yet
gen = put(line, 7, SRC)
settle(gen)
equal(ctl("claim", line), f"{line}: nothing was replaced\n", "no claim")
equal(facts_of("claim", line), {"path": str(line)}, "no claim")
for path in (MNT, MNT / "t", MNT / ".weights", line.parent):
    says(ctl("claim", path, status=1), "not in a lineage")
says(ctl("claim", "/", status=1), "not on a mount")

# ---- claim: by any path in the lineage, until it is completed
stage = staging(line, 8, SRC)
set_attr(stage, "replaces", "7,request_id=a request = 1")
os.symlink("7", line / "serving")
want = {"path": str(line), "base": 7, "target": 8, "mode": "put_first",
        "phase": "preparing_target", "request_id": "a request = 1",
        "watermark": 7}
for path in (line, gen, gen / "1_Pooling" / "config.json", line / "serving",
             line / ".staging", stage, stage / "config.json"):
    equal(facts_of("claim", path), want, f"of {path}")
equal(rows("claim", gen),
      {k: str(v) for k, v in want.items() if k != "path"}, "rows")
publish(stage)
wait_for(lambda: facts_of("claim", line)["phase"] == "completed", "its end", 30)
equal(facts_of("claim", line), {**want, "phase": "completed", "watermark": 8},
      "completed")
equal(facts_of("stat", line)["watermark"], 8, "a number")
# One that was interrupted says so.
stage = staging(line, 9)
gen = line / "8"
settle(gen)
if operation(gen) is None:
    set_attr(stage, "replaces", "8,mode=delete_first")
    wait_for(lambda: not gen.exists(), "the base is gone")
    wait_for(lambda: facts_of("claim", line)["phase"] == "target_importing",
             "its turn")
    os.rmdir(stage)
    f = facts_of("claim", line)
    equal((f["phase"], f["mode"]), ("target_importing", "delete_first"), f)
    says(f["error"], "interrupted")
    says(rows("claim", line)["error"], "interrupted")

# ---- op: running, then over
line = lineage("other")
gen = put(line, 1, SRC)
settle(gen)
with Client() as c:
    c.do("m = mapped(args[0])", gen / "model.safetensors")
    moves = attr(gen, "residency") == "hot"
    if moves:
        move(gen, "cold")
        op = operation(gen)
        found = facts_of("op", gen)
        equal((found["state"], found["operation_id"]), ("running", op), found)
        equal({k: v for k, v in found.items() if k != "state"},
              operation_text(op), "the record")
        equal(facts_of("op", op, cwd=line), found, "by its id")
        says(rows("op", gen)["state"], r"^running, \d+%$")

    # ---- leases: what is in use, wherever it is asked from
    for argv, cwd in [((), line), ((MNT,), None), ((gen,), None)]:
        f = facts_of("leases", *argv, cwd=cwd)
        equal(f["path"], str(MNT), "the mount")
        (one,) = f["leases"]
        equal(one["path"], str(gen), "the revision")
        check(one["lease_id"] > 0 and one["holder"] and
              one["expires_at_ms"] > time.time() * 1000, one)
    head, one = ctl("leases", MNT).splitlines()
    says(head, "^LEASE +EXPIRES +HOLDER +REVISION$")
    says(one, r"^\d+ +20\d\d-\S+Z +\S.* t/n/r/other/1$")
    c.do("m.close()")
wait_for(lambda: facts_of("leases", MNT)["leases"] == [], "none is left")
equal(ctl("leases", MNT), "", "none")
says(ctl("leases", "/", status=1), "no mount of weightfs")
if moves:
    wait_for(lambda: operation(gen) is None, "it is over", 30)
    equal(facts_of("op", op, cwd=line)["state"], "over", "state")
    equal(rows("op", op, f"--mount={MNT}")["state"], "over", "state")
equal(ctl("op", gen), f"{gen}: no operation runs\n", "none")
says(ctl("op", "12345", cwd=line, status=1), "operation 12345")

# ---- Names that hold blanks
odd = MNT / "a b" / "n%2Fm" / "%2Er" / "50%25 é"
odd.mkdir(parents=True)
gen = put(odd, 7, SRC)
with open(gen / "config.json"):
    equal([x["path"] for x in facts_of("leases", MNT)["leases"]], [str(gen)],
          "the revision")
    says(ctl("leases", MNT), "a b/n%2Fm/%2Er/50%25 é/7\n$")

# ---- Leases are root's; of a lineage everybody may ask who may read it
if os.geteuid() == 0:
    need("setpriv")
    drop = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    WORK.chmod(0o755)
    says(run(*drop, CTL, "leases", MNT, status=None), "Permission denied")
    says(run(*drop, CTL, "claim", MNT / "t/n/r/main", status=None),
         "watermark|Permission denied")
d.stop()
EOP
