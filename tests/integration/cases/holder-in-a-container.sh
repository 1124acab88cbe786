# SPDX-License-Identifier: Apache-2.0
# A holder that came through a bind mount in another namespace is named, too.
# OPTIONS: durability=none
need_root
need unshare
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

if not APART:
    skip("no mount namespaces")

gen = put(lineage(), 1, checkpoint("src"))
HOLDER = """
import mmap, sys
f = open(sys.argv[1], "rb")
if sys.argv[2] == "map":
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    f.close()
print("held", flush=True)
sys.stdin.readline()
"""
(WORK / "holder.py").write_text(HOLDER)
(WORK / "pod").mkdir()
for how in ("open", "map"):
    pod = subprocess.Popen(
        [*APART, "sh", "-c",
         f"mount --bind {gen} {WORK}/pod && exec python3 {WORK}/holder.py "
         f"{WORK}/pod/model.safetensors {how}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    equal(pod.stdout.readline(), "held\n", "held in there")
    refused("EBUSY", remove, gen)
    says(attr(gen, "error"), r"model\.safetensors", r"\b%d\b" % pod.pid,
         "python")
    pod.communicate("\n")
EOP
