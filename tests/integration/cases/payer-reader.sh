# SPDX-License-Identifier: Apache-2.0
# Who has read pays for no pins: 800 MiB of 1 GiB are read, become HOT, and the
# reader takes 400 MiB more.
# TIMEOUT: 240
# SERIAL
need_root
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from payers import *
from wf import *

FILES, FILE = 8, 100 * MIB
LIMIT, MORE = 1 << 30, 400 * MIB
# Reads whole files, then waits to be told, then wants memory of its own.
READER = r"""
import sys
for path in sys.argv[2:]:
    with open(path, "rb", buffering=0) as f:
        while f.read(1 << 20):
            pass
print("read", flush=True)
sys.stdin.readline()
""" + ALLOCATE


def backing(name):
    found = list(STORE.glob(f"groups/*/*/files/{name}"))
    equal(len(found), 1, "backing files")
    return found[0]


need_root()
need_memory(4 << 30)
block = random.Random(1).randbytes(FILE)
src = WORK / "src"
src.mkdir()
for i in range(FILES):
    safetensors(src / f"model-{i}.safetensors", {f"t{i}": block})
gen = put(lineage(), 1, src)
set_attr(gen, "residency", "cold")
(gen / ".weights" / "wait").read_text()
comes_to(gen, "cold")
stored = [backing(name) for name in names(src)]
forget([*src.iterdir(), *stored])

with Group("reader", LIMIT) as g:
    def reader(paths):
        r = subprocess.Popen(
            ["sh", "-c", 'echo $$ >"$0" && exec "$@"',
             str(g.path / "cgroup.procs"), sys.executable, "-c", READER,
             str(MORE), *map(str, paths)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        equal(r.stdout.readline(), "read\n", "the reader")
        return r

    r = reader([gen / name for name in names(src)])
    print(f"# {g.usage >> 20} MiB of what was read are the reader's")
    if g.usage < FILES * FILE * 7 // 8:
        # The daemon was faster and has read it ahead. Read below the mount,
        # it is the reader's, whoever is fast.
        r.kill()
        r.wait()
        forget(stored)
        r = reader(stored)
    check(g.usage >= FILES * FILE * 7 // 8, "the reader has paid for it")
    set_attr(gen, "residency", "hot")
    (gen / ".weights" / "wait").read_text()
    comes_to(gen, "hot")
    check(int(attr(gen, "pinned_bytes")) >= FILES * FILE, "all is pinned")
    r.stdin.write("\n")
    r.stdin.flush()
    g.lives(r, "the reader")
same_tree(gen, src, times=False)
EOP
