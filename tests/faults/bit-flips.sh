# SPDX-License-Identifier: Apache-2.0
# Bits turn over on the device below a published file. What is in memory mends
# the device; what isn't makes the revision DEGRADED, which names the tensor,
# keeps the range back and serves the rest, until a good copy comes.
# MANUAL
# TIMEOUT: 240
. "$TESTS/integration/tools/py.sh"
expect_log 'Input/output error'

py <<'EOP'
from disks import Disk
from payers import forget
from residency import *
from wf import *

need_root()
MIB = 1 << 20
TENSOR = 8 * MIB  # whole chunks, but for the header
src = WORK / "src"
src.mkdir()
rng = random.Random(11)
for name in "ab":
    safetensors(src / f"{name}.safetensors",
                {f"{name}.{i}": rng.randbytes(TENSOR) for i in range(3)})
(src / "config.json").write_text('{"model_type": "demo"}\n')
data = (src / "a.safetensors").read_bytes()
LAST = len(data) - 1
# In the first, the second and the last tensor, at the very start of the file
# and at its very end.
PLACES = {0: None, TENSOR // 2: "a.0", TENSOR + TENSOR // 2: "a.1",
          LAST: "a.2"}


def find(name):
    return next((disk.store / "groups").rglob(name))


def scrubbed(gen):
    set_attr(gen, "scrub", 1)
    settle(gen)
    return attr(gen, "scrub")


def scrubbed_badly(gen):
    """As above, for one whose wait ends with what is lost."""
    set_attr(gen, "scrub", 1)
    said = first_line(gen)
    while not re.search("lost", said):
        said = first_line(gen)
    return attr(gen, "scrub")


def on_device(disk, path, at):
    """A byte of a file as the image has it."""
    there = disk.on_device(path, at)
    fd = os.open(disk.image, os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, 4096)
    os.preadv(fd, [page], there // 4096 * 4096)
    os.close(fd)
    return page[there % 4096]


def served(gen, at, bad):
    """Whether a byte is read, and right; what is bad is EIO."""
    fd = os.open(gen / "a.safetensors", os.O_RDONLY)
    try:
        if bad:
            refused("EIO", os.pread, fd, 1, at)
        else:
            equal(os.pread(fd, 1, at), data[at:at + 1], f"byte {at}")
    finally:
        os.close(fd)


def hot(disk, gen, below):
    """The copy in memory is good, so the device gets it again."""
    comes_to(gen, "hot")
    for at, _ in PLACES.items():
        before = metric("weightfs_mended_chunks_total")
        disk.flip(below, at)
        check(on_device(disk, below, at) != data[at], "nothing was flipped")
        says(scrubbed(gen), ", 0 bad$")
        check(metric("weightfs_mended_chunks_total") > before, "mended")
        equal(on_device(disk, below, at), data[at], "on the device")
        equal(attr(gen, "availability"), "ready", "availability")
        equal(attr(gen, "residency"), "hot", "residency")
        equal(attr(gen, "durable"), "yes", "durable")
    same_tree(gen, src, times=False)


def cold(disk, gen, below, line):
    """No good copy: it is said which tensor, and the rest is served."""
    for n, (at, tensor) in enumerate(PLACES.items()):
        move(gen, "cold")
        settle(gen)
        comes_to(gen, "cold")
        forget([below])
        before = metric("weightfs_bad_chunks_total")
        disk.flip(below, at)
        says(scrubbed_badly(gen), ", 1 bad$")
        check(metric("weightfs_bad_chunks_total") > before, "counted")
        equal(attr(gen, "availability"), "degraded", "availability")
        says(attr(gen, "error"), "a.safetensors", tensor and re.escape(tensor)
             or "lost")
        for place in PLACES:
            served(gen, place, place == at)
        equal(sha(gen / "b.safetensors"), sha(src / "b.safetensors"), "b")
        equal((gen / "config.json").read_bytes(),
              (src / "config.json").read_bytes(), "config.json")
        good = next(i for i in "012" if f"a.{i}" != tensor and
                    not (at == 0 and i == "0"))
        equal(sha(gen / ".weights" / "tensors" / f"a.{good}"),
              hashlib.sha256(data[len(data) - (3 - int(good)) * TENSOR:]
                             [:TENSOR]).hexdigest(), "a whole tensor")
        stage = staging(line, 100 + n)
        run("cp", "-a", src / "a.safetensors", stage)
        set_attr(gen, "repair", 1)
        settle(gen)
        equal(attr(gen, "availability"), "ready", "repaired")
        equal(on_device(disk, below, at), data[at], "on the device")
        check("user.weights.error" not in os.listxattr(gen), "a sentence")
        served(gen, at, False)
        shutil.rmtree(stage)
        # What was mended has to be durable anew.
        settle(gen)
        equal(attr(gen, "durable"), "yes", "durable")
    same_tree(gen, src, times=False)


def survives_a_restart(d, disk, gen, below, line):
    """What is lost stays known, and what is good is served."""
    move(gen, "cold")
    settle(gen)
    forget([below])
    disk.flip(below, TENSOR // 2)
    says(scrubbed_badly(gen), ", 1 bad$")
    d.kill()
    d.restart()
    served(gen, TENSOR // 2, True)
    served(gen, LAST, False)
    wait_for(lambda: attr(gen, "availability") == "degraded", "it is said")
    wait_for(lambda: "user.weights.error" in os.listxattr(gen), "in words")
    says(attr(gen, "error"), "a\\.0")
    stage = staging(line, 200)
    run("cp", "-a", src / "a.safetensors", stage)
    set_attr(gen, "repair", 1)
    settle(gen)
    equal(attr(gen, "availability"), "ready", "repaired")
    served(gen, TENSOR // 2, False)


def in_small_files(disk, gen):
    """A file without tensors is as good as the others."""
    below = find("config.json")
    move(gen, "cold")
    settle(gen)
    comes_to(gen, "cold")
    forget([below])
    disk.flip(below, 3)
    says(scrubbed_badly(gen), ", 1 bad$")
    says(attr(gen, "error"), "config.json")
    fd = os.open(gen / "config.json", os.O_RDONLY)
    refused("EIO", os.read, fd, 10)
    os.close(fd)
    equal(sha(gen / "a.safetensors"), sha(src / "a.safetensors"), "a")


disk = Disk("disk", 160 * MIB)
with Daemon(store=disk.store) as d:
    line = lineage()
    gen = put(line, 1, src)
    settle(gen)
    equal(attr(gen, "durable"), "yes", "durable")
    below = find("a.safetensors")
    hot(disk, gen, below)
    cold(disk, gen, below, line)
    survives_a_restart(d, disk, gen, below, line)
    in_small_files(disk, gen)
EOP
