# SPDX-License-Identifier: Apache-2.0
# mv right after the last close publishes, 300 times out of 300.
# OPTIONS: durability=none
# TIMEOUT: 150
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

rng = random.Random(9)
line = lineage()
noise = Client()
noise.send("exec", """
while not os.path.exists(args[0]):
    for p in args[1].glob('*/model.safetensors'):
        try:
            f = open(p, 'rb')
        except OSError:
            continue
        f.read(100)
        m = mapped(p)
        f.close()
        m.close()
""", WORK / "stop", line)
for n in range(1, 301):
    stage = staging(line, n)
    data = rng.randbytes(rng.choice([3, 4096, 40_000]))
    safetensors(stage / "model.safetensors", {"w": data})
    if n % 3 == 0:
        with open(stage / "model.safetensors", "r+b") as f:
            m = mmap.mmap(f.fileno(), 0)
        m[-1:] = b"!"
        data = data[:-1] + b"!"
        m.close()
    if n % 5 == 0:
        run("mv", "-T", stage, line / str(n))
    else:
        os.rename(stage, line / str(n))
    tensor = line / str(n) / ".weights" / "tensors" / "w"
    if n % 10 == 0:
        equal(tensor.read_bytes(), data, "the tensor")
    equal((line / str(n) / "model.safetensors").read_bytes()[-len(data):],
          data, "the last bytes written")
    if n % 50 == 0:
        run("sha256sum", "-c", "--quiet",
            line / str(n) / ".weights" / "sha256sums", cwd=line / str(n))
(WORK / "stop").write_text("")
noise.answer()
noise.end()
equal(len(names(line)), 300, "revisions")
EOP
