# SPDX-License-Identifier: Apache-2.0
# What was published without a mount is an ordinary revision on one: a directory
# with a file for each tensor, which moves, is scrubbed, read and removed.
# MANUAL
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
import array

from residency import *
from wf import *

EXAMPLE = pathlib.Path(DAEMON).parent.parent / "examples" / "without_fuse"

told = run(EXAMPLE, STORE)
for word in ("weight_put", "weight_list", "weight_get", "weight_migrate",
             "weight_upsert", "as they were given"):
    says(told, word)
# Again it has nowhere to go.
run(EXAMPLE, STORE, status=1)

d = Daemon()
line = MNT / "default" / "examples" / "tiny" / "main"
gen = line / "2"
equal(names(line), ["2"], "generations")
equal(names(line / ".staging"), [], "staged")
equal(sorted(names(gen)), ["layers.0.weight", "norm.weight"], "tensors")
norm = array.array("f", (i + 1000 + 2 for i in range(1024))).tobytes()
equal((gen / "norm.weight").read_bytes(), norm, "bytes")
refused("EROFS", (gen / "norm.weight").write_bytes, b"x")
equal((gen / ".weights" / "tensors" / "norm.weight").read_bytes(), norm,
      "the tensor's file")
manifest = json.loads((gen / ".weights" / "manifest.json").read_text())
equal([t["tensor_id"] for t in manifest["tensors"]],
      ["layers.0.weight", "norm.weight"], "manifest")
equal(attr(gen, "manifest_sha256"), sha(gen / ".weights" / "manifest.json"),
      "its digest")
run("sha256sum", "-c", "--quiet", gen / ".weights" / "sha256sums", cwd=gen)
equal(attr(line, "watermark"), "2", "watermark")
says(attr(line, "claim"), "phase=completed")

# ---- It lives like any other
settle(gen)
equal(attr(gen, "durable"), "yes", "durable")
set_attr(gen, "scrub", "1")
settle(gen)
equal(attr(gen, "availability"), "ready", "availability")
set_attr(gen, "residency", "cold")
settle(gen)
equal(attr(gen, "residency"), "cold", "residency")
stage = staging(line, 3, checkpoint("src"))
set_attr(line / ".staging" / "3", "replaces", "2")
publish(stage)
wait_for(lambda: "2" not in names(line), "the replacement of 2")
refused("EEXIST", os.mkdir, line / ".staging" / "2")
d.stop()
EOP
