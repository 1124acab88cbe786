# SPDX-License-Identifier: Apache-2.0
# Attempts never fail a cp that is running, and publish all of it or nothing.
# OPTIONS: durability=none,publish_wait=200ms
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = WORK / "src"
SRC.mkdir()
safetensors(SRC / "model.safetensors",
            {"w": random.Random(1).randbytes(1_000_000)})
for i in range(120):
    (SRC / f"f{i:03}").write_bytes(random.Random(i).randbytes(20_000))
want = facts(SRC, times=False)
line = lineage()

for n in range(1, 4):
    stage = staging(line, n)
    target = line / str(n)
    cp = subprocess.Popen(["cp", "-r", f"{SRC}/.", str(stage)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    tries = 0
    published = None
    while cp.poll() is None and published is None:
        try:
            os.rename(stage, target)
            published = cp.poll()
            if published is None:
                # All that cp had closed by then; cp meets EROFS or goes on.
                break
        except OSError as e:
            check(e.errno in (errno.EBUSY, errno.EAGAIN, errno.EBADMSG),
                  repr(e))
            tries += 1
    said = cp.communicate()[0]
    if target.exists():
        # The attempt won: what was there is a whole tree, and is frozen.
        if cp.returncode:
            # The last one when cp had not begun: the number is taken.
            says(said, "Read-only file system|No such file|File exists")
        before = facts(target)
        equal(before, facts(target), "published")
        for name, fact in before.items():
            equal(fact[:4], facts(SRC, times=False)[name][:4], name)
    else:
        equal((cp.returncode, said), (0, ""), f"cp beside {tries} attempts")
        equal(facts(stage, times=False), want, "what cp made")
        publish(stage)
        equal(facts(target, times=False), want, "published")

# One that always fails to publish: cp must never notice the attempts.
(SRC / "bad.gguf").write_bytes(b"no such thing")
want = facts(SRC, times=False)
for n in range(10, 13):
    stage = staging(line, n)
    run("cp", SRC / "bad.gguf", stage)
    cp = subprocess.Popen(["cp", "-r", f"{SRC}/.", str(stage)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    tries = 0
    while cp.poll() is None:
        refused("EBUSY|EAGAIN|EBADMSG", os.rename, stage, line / str(n))
        tries += 1
    equal((cp.returncode, cp.communicate()[0]), (0, ""),
          f"cp beside {tries} attempts")
    check(tries > 0, "no attempt was made")
    equal(facts(stage, times=False), want, "what cp made")
    refused("EBADMSG", publish, stage)

# rsync, and a process that makes, renames and removes all the time.
stage = staging(line, 20)
run("cp", SRC / "bad.gguf", stage)
churn = Client()
churn.send("exec", """
for i in range(150):
    p = args[0] / f'c{i}'
    p.write_bytes(b'x' * 1000)
    os.link(p, args[0] / 'hard')
    os.rename(p, args[0] / 'renamed')
    os.mkdir(p)
    os.symlink('renamed', args[0] / 'soft')
    for n in ('hard', 'soft'):
        os.unlink(args[0] / n)
    os.truncate(args[0] / 'renamed', 10)
    os.chmod(args[0] / 'renamed', 0o600)
    os.rmdir(p)
(args[1]).write_text('')
""", stage, WORK / "churned")
rsync = subprocess.Popen(["rsync", "-rt", f"{SRC}/", f"{stage}/"],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True) if shutil.which("rsync") else None
while not (WORK / "churned").exists() or (rsync and rsync.poll() is None):
    refused("EBUSY|EAGAIN|EBADMSG", os.rename, stage, line / "20")
churn.answer()
churn.end()
if rsync:
    equal((rsync.returncode, rsync.communicate()[0]), (0, ""), "rsync")
os.unlink(stage / "bad.gguf")
os.unlink(stage / "renamed")
del want["bad.gguf".encode()]
gen = publish(stage)
if rsync:
    equal(facts(gen, times=False), want, "published")
EOP
