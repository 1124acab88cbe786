# SPDX-License-Identifier: Apache-2.0
# weightctl scrub finds what is damaged on the disk and says which tensor it is;
# weightctl repair mends it with good copies, and leaves nothing behind.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"
expect_log 'damaged|DEGRADED|degraded|mend|repair'

py <<'EOP'
from wf import *

CTL = pathlib.Path(DAEMON).parent.parent / "mount-helpers" / "weightctl"
if not CTL.exists():
    skip("no weightctl")
SRC = checkpoint("src", size=6_000_000)
(SRC / "sub").mkdir()
shutil.copy(SRC / "model.safetensors", SRC / "sub" / "other.safetensors")
# Nothing is in memory, so what the disk has is what there is.
d = Daemon("default_weight_preferred_residency=cold")
line = lineage()


def ctl(*argv, status=0, cwd=None):
    return run(CTL, *argv, status=status, cwd=cwd)


def damage(path):
    """Other bytes in the middle of the store's only copy."""
    (found,) = [p for p in STORE.glob(f"groups/**/{path}") if p.is_file()]
    st = found.stat()
    mode = stat.S_IMODE(st.st_mode)
    found.chmod(0o600)
    with open(found, "r+b") as f:
        f.seek(st.st_size // 4)
        f.write(b"damaged!")
    found.chmod(mode)
    os.utime(found, ns=(st.st_atime_ns, st.st_mtime_ns))


ctl("put", "--durable", SRC, line / "7")
gen = line / "7"

# ---- All is well
says(ctl("scrub", gen), f"{gen}: .*0 bad")
facts = json.loads(run(CTL, "scrub", "-jq", gen / "config.json"))
equal((facts["path"], facts["availability"].lower()), (str(gen), "ready"),
      "facts")

# ---- Damage: status 1, the tensor by name, and the rest is served
damage("model.safetensors")
said = ctl("scrub", gen, status=1)
says(said, rf"weightctl: {gen}: ", r"layers\.0\.a\.weight")
equal(attr(gen, "availability").lower(), "degraded", "availability")
equal((gen / "config.json").read_bytes(), (SRC / "config.json").read_bytes(),
      "the rest")

# ---- What is not the good file is refused before anything is copied
generations = names(line)
for argv, pattern in [
        ((gen, WORK / "absent"), "No such file|no file of the revision"),
        ((gen, SRC / "config.json"), "several files"),
        ((gen, f"absent.bin={SRC / 'config.json'}"), "absent.bin"),
        ((gen, f"../7/config.json={SRC / 'config.json'}"), "path in the"),
        ((gen, f"model.safetensors={SRC / 'config.json'}"), "bytes"),
        ((line, SRC / "model.safetensors"), "revision"),
]:
    says(ctl("repair", *argv, status=1), "^weightctl: ", pattern)
ctl("repair", gen, status=2)
equal(names(line / ".staging"), [], "staged")
equal(names(line), generations, "generations")
equal(attr(gen, "availability").lower(), "degraded", "availability")

# A file of the right size with the wrong bytes mends nothing.
bad = WORK / "model.safetensors"
bad.write_bytes(bytes((SRC / "model.safetensors").stat().st_size))
ctl("repair", gen, bad, status=1)
equal(names(line / ".staging"), [], "staged")

# ---- The good one, by its name
says(ctl("repair", gen, SRC / "model.safetensors"), f"{gen}: ready")
equal(attr(gen, "availability").lower(), "ready", "availability")
equal(names(line / ".staging"), [], "staged")
same_tree(gen, SRC)
says(ctl("scrub", gen), "0 bad")

# ---- Two at once, one of them under another name
good = WORK / "good copy=1.safetensors"
shutil.copy(SRC / "model.safetensors", good)
damage("sub/other.safetensors")
damage("model.safetensors")
ctl("scrub", gen, status=1)
says(ctl("repair", gen, f"sub/other.safetensors={good}",
         SRC / "model.safetensors"), f"{gen}: ready")
same_tree(gen, SRC)
facts = json.loads(run(CTL, "repair", "-jq", gen, SRC / "model.safetensors"))
equal(facts["availability"].lower(), "ready", "nothing to mend")
equal(names(line / ".staging"), [], "staged")
d.stop()
EOP
