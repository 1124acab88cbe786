# SPDX-License-Identifier: Apache-2.0
# The metadata grows while eight readers list it, reaches its limit, says so, and
# goes on with a higher one: no reader notices, and nothing is lost.
# MANUAL
# TIMEOUT: 300
. "$TESTS/integration/tools/py.sh"
expect_log 'No space left on device'

py <<'EOP'
import threading
from offline import *
from residency import comes_to, settle
from snapshot import with_operations
from wf import *

LONG = "x" * 180


def many_tensors(name, count, seed):
    """Small, with many tensors of long names."""
    top = WORK / name
    top.mkdir()
    safetensors(top / "model.safetensors",
                {f"layers.{i}.{LONG}.{seed}": b"%04d" % i
                 for i in range(count)})
    deep = top
    for part in ("a" * 100, "b" * 100, "c" * 100):
        deep = deep / part
        deep.mkdir()
    (deep / ("d" * 200 + ".txt")).write_text(str(seed))
    return top


SOURCES = [many_tensors(f"src{n}", 300, n) for n in range(3)]


class Readers:
    """Eight that do nothing but `ls -R`, each of which has to go well."""

    def __init__(self):
        self.stop, self.rounds, self.wrong = False, 0, []
        self.threads = [threading.Thread(target=self.loop) for _ in range(8)]
        for t in self.threads:
            t.start()

    def loop(self):
        while not self.stop:
            done = subprocess.run(["ls", "-R", MNT / "t"], check=False,
                                  stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True)
            self.rounds += 1
            if done.returncode or done.stderr:
                self.wrong.append(done.stderr)

    def end(self):
        self.stop = True
        for t in self.threads:
            t.join()
        equal(self.wrong, [], "what readers met")
        check(self.rounds >= 8, "readers")


def data():
    return (STORE / "meta" / "data.mdb").stat()


# ---- Until it is full
d = Daemon("metadata_limit=1M", "durability=none", "memory=8M")
line = lineage("main-" + LONG, "r" * 200)
readers = Readers()
count, error = 0, None
while not error:
    try:
        stage = staging(line, count + 1, SOURCES[count % 3])
        os.rename(stage, line / str(count + 1))
        count += 1
    except OSError as e:
        if e.errno == errno.EAGAIN:
            ready(stage)
            os.rename(stage, line / str(count + 1))
            count += 1
        else:
            error = e
equal(error.errno, errno.ENOSPC, "the error")
check(count > 50, f"only {count} revisions")
where = stage if stage.exists() and stage.name == str(count + 1) else line
says(attr(where, "error"), "limit of 1 MiB", "option metadata_limit",
     "remove revisions")
# Bounded by design: nothing of 300 tensors or long paths is in it.
print(f"# {count} revisions with 300 tensors in 1 MiB")
check(data().st_blocks * 512 <= 20 << 20, "the size of the database")


def all_there(upto):
    equal([n for n in names(line) if n != ".staging"],
          sorted(str(n) for n in range(1, upto + 1)), "generations")
    for n in (1, upto // 2, upto):
        same_tree(line / str(n), SOURCES[(n - 1) % 3])


all_there(count)
readers.end()
# Opens take leases, and go on for as long as anybody likes.
for n in range(1, count + 1):
    equal(sha(line / str(n) / "model.safetensors"),
          sha(SOURCES[(n - 1) % 3] / "model.safetensors"), "a file")
d.stop()
sound()

# ---- Killed and started at the limit
d.start()
all_there(count)
d.kill()
d.start()
all_there(count)
remove(line / str(count))
count -= 1
all_there(count)
d.stop()

# ---- With a higher limit, which is far above what is mapped by now
d.options[0] = "metadata_limit=8M"
d.start()
all_there(count)
with contextlib.suppress(FileNotFoundError):
    for name in names(line / ".staging"):
        run("rm", "-r", line / ".staging" / name)
readers = Readers()
first = count + 2  # the number of the one that was removed is taken
for n in range(first, first + 30):
    stage = staging(line, n, SOURCES[(n - 1) % 3])
    ready(stage)
    os.rename(stage, line / str(n))
readers.end()
same_tree(line / str(first + 29), SOURCES[(first + 28) % 3])
d.stop()
sound()

# ---- More than what is mapped at first, while readers are at it
d.options = []
d.start()
settle(line / "1")
comes_to(line / "1", "hot")
set_attr(line / "1", "residency", "cold")
settle(line / "1")
d.stop()
snap = WORK / "snap"
exported(snap)
whole = snap.read_bytes()
MIB, AHEAD = 1 << 20, 16 << 20  # what is allocated ahead of what is used


def used_with(operations, store):
    """How much of the database is used when it has so many more of them."""
    snap.write_bytes(with_operations(whole, operations))
    imported(snap, store)
    return (store / "meta" / "data.mdb").stat().st_size - AHEAD


# A little less than the 64 MiB that are mapped at first.
each = used_with(40_000, WORK / "measure") / 40_000
shutil.rmtree(STORE / "meta")
used = used_with(int((63 << 20) / each), STORE)
check(60 * MIB < used < 64 * MIB, f"{used} bytes before it grows")


def mapped_bytes():
    maps = pathlib.Path(f"/proc/{d.pid}/maps").read_text()
    found = re.findall(rf"(?m)^(\w+)-(\w+) .*{STORE}/meta/data.mdb$", maps)
    return sum(int(end, 16) - int(at, 16) for at, end in found)


d.start()
equal(mapped_bytes(), 64 * MIB, "what is mapped at first")
readers = Readers()
first += 40
n = first
while mapped_bytes() <= 64 * MIB:
    check(n < first + 1500, "it does not grow")
    stage = staging(line, n, SOURCES[0])
    ready(stage)
    os.rename(stage, line / str(n))
    n += 1
for _ in range(20):
    stage = staging(line, n, SOURCES[0])
    ready(stage)
    os.rename(stage, line / str(n))
    n += 1
print(f"# grown after {n - first} more, with {readers.rounds} listings")
readers.end()
equal(len([x for x in names(line) if x != ".staging"]), count + 30 + n - first,
      "revisions")
d.stop()
sound()
EOP
