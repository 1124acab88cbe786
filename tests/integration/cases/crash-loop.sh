# SPDX-License-Identifier: Apache-2.0
# kill -9 at any moment of publishing: each revision is whole or not there.
# MANUAL
# TIMEOUT: 180
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

ROUNDS = 30
rng = random.Random(36)
sources = [checkpoint(f"src{i}", size=rng.choice([10_000, 300_000]), seed=i)
           for i in range(5)]
wants = [facts(s) for s in sources]
d = Daemon()
line = lineage()
first = put(line, 1, sources[0])
reader = Client()
reader.do("m = mapped(args[0])", first / "model.safetensors")
done, maybe = {1: 0}, set()
n = 1
staged = {}

for r in range(ROUNDS):
    c = Client()
    c.send("exec", """
n, done = args[0], []
while True:
    s = n % 5
    done.append(('staging', n))
    stage = staging(args[1], n, args[2][s])
    done.append(('staged', n))
    if n % 7 == 0:
        n += 1
        continue
    if n % 2:
        ready(stage)
    os.rename(stage, args[1] / str(n))
    done.append(('published', n))
    n += 1
""", n + 1, line, sources)
    # The moment is random on purpose; nothing waits for a state here.
    time.sleep(rng.uniform(0.005, 0.25))
    d.kill()
    with contextlib.suppress(OSError, AssertionError):
        c.answer()
    happened = c.get("done")
    c.end()
    d.start()
    for what, k in happened:
        n = max(n, k)
        if what == "staged":
            staged[k] = True
        if what == "published":
            done[k] = k % 5
            staged.pop(k, None)
    there = {int(x) for x in names(line) if x.isdigit()}
    check(set(done) <= there, f"acknowledged, but gone: {set(done) - there}")
    for k in there - set(done):
        # The answer was lost; then it is whole.
        done[k] = k % 5
        staged.pop(k, None)
    in_staging = {int(x) for x in names(line / ".staging")} \
        if ".staging" in os.listdir(line) else set()
    check(set(staged) <= in_staging,
          f"staged, but gone: {set(staged) - in_staging}")
    for k in sorted(done)[-3:]:
        equal(facts(line / str(k)), wants[done[k]], f"generation {k}")
print(f"# {len(done)} published, {len(staged)} staged in {ROUNDS} rounds")

for k, s in done.items():
    equal(facts(line / str(k)), wants[s], f"generation {k}")
    run("sha256sum", "-c", "--quiet",
        line / str(k) / ".weights" / "sha256sums", cwd=line / str(k))
for k in staged:
    equal(facts(line / ".staging" / str(k)), wants[k % 5], f"staged {k}")
    publish(line / ".staging" / str(k))
    equal(facts(line / str(k)), wants[k % 5], f"generation {k}")
    done[k] = k % 5
# What was half copied in can be taken away, and nothing else is left.
for k in names(line / ".staging"):
    shutil.rmtree(line / ".staging" / k)
if passthrough():
    equal(reader.get("hashlib.sha256(m).hexdigest()"),
          sha(sources[0] / "model.safetensors"), "the reader never noticed")
    refused("EBUSY", remove, first)
reader.kill()
wait_for(lambda: len(list((STORE).rglob("model.safetensors"))) == len(done),
         "no files of what was aborted are left")
d.stop()
d.start()
equal({int(x) for x in names(line)}, set(done), "after a clean restart")
d.stop()
EOP
