# SPDX-License-Identifier: Apache-2.0
# Publishing, reading and removing for ever takes no more memory than once.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src", size=200_000)
d = Daemon("durability=none")
line = lineage()


def facts_of_daemon():
    text = pathlib.Path(f"/proc/{d.pid}/status").read_text()
    return (int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) >> 10,
            len(os.listdir(f"/proc/{d.pid}/fd")))


def removed(gen):
    try:
        remove(gen)
        return True
    except OSError as e:
        equal(e.errno, errno.EBUSY, "remove")
        return False


for n in range(1, 201):
    gen = put(line, n, SRC)
    for path in ("model.safetensors", ".weights/manifest.json",
                 ".weights/tensors/layers.0.a.weight", ".weights/sha256sums"):
        (gen / path).read_bytes()
    stage = staging(line, 1000 + n, SRC)
    shutil.rmtree(stage)
    wait_for(lambda: removed(gen), "removal")
    if n == 50:
        memory, descriptors = facts_of_daemon()
print("#", memory, descriptors, "then", *facts_of_daemon())
check(facts_of_daemon()[0] <= memory + 8 + memory // 4, "memory grows")
wait_for(lambda: facts_of_daemon()[1] <= descriptors + 20, "descriptors grow")
wait_for(lambda: not list(STORE.rglob("*.safetensors")), "bytes stay behind")
# A mount in between forgets nothing of the tombstones.
d.stop()
d.start()
for n in (1, 77, 200):
    refused("EEXIST", os.mkdir, line / ".staging" / str(n))
d.stop()
EOP
