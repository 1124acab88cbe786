# SPDX-License-Identifier: Apache-2.0
# Who copies in pays for no pins: 1 GiB from within 64 MiB, and it becomes HOT.
# TIMEOUT: 240
# SERIAL
need_root
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from payers import *
from wf import *

FILES, FILE = 32, 32 * MIB
LIMIT = 64 * MIB

need_root()
need_memory(3 << 30)
block = random.Random(1).randbytes(FILE)
src = WORK / "src"
src.mkdir()
for i in range(FILES):
    safetensors(src / f"model-{i:02}.safetensors", {f"t{i}": block})
# Not the writer's: the source was in nobody's memory when it began.
forget(src.iterdir())
line = lineage()

with Group("writer", LIMIT) as g:
    # One file after the other, as cp does: each is pinned once it is closed,
    # while the next one is being written.
    stage = staging(line, 1)
    g.lives(g.start("cp", "-r", f"{src}/.", stage), "the writer")
    gen = publish(stage)
    (gen / ".weights" / "wait").read_text()
    comes_to(gen, "hot")
    check(int(attr(gen, "pinned_bytes")) >= FILES * FILE, "all is pinned")
    # And lives on, with memory of its own.
    g.lives(g.start(sys.executable, "-c", ALLOCATE, LIMIT // 2),
            "the writer, later")
    g.reclaim()
    print(f"# {g.usage >> 20} MiB are the writer's in the end")
    check(g.usage < LIMIT // 4, "the writer still pays")
same_tree(gen, src, times=False)
EOP
