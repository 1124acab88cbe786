# SPDX-License-Identifier: Apache-2.0
# A range that is damaged on the disk answers EIO and nothing else does,
# however the rest is served; a good copy brings all of it back.
# MANUAL
# TIMEOUT: 180
. "$TESTS/integration/tools/py.sh"
expect_log 'Input/output error'

py <<'EOP'
from residency import *
from wf import *

need_root()
CHUNK = 8 << 20  # a multiple of what has a digest of its own
SIZE = 5 * CHUNK
rng = random.Random(3)
src = WORK / "src"
src.mkdir()
for name in "ab":
    safetensors(src / f"{name}.safetensors",
                {f"{name}.{i}": rng.randbytes(CHUNK) for i in range(5)})
data = (src / "a.safetensors").read_bytes()
BAD = 2 * CHUNK + 12345


def damage(below, at=BAD):
    """Behind the back of everybody, and nobody has it in memory."""
    st = below.stat()
    with open(below, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 0x40]))
        f.flush()
        os.fsync(f.fileno())
        os.utime(f.fileno(), ns=(st.st_atime_ns, st.st_mtime_ns))
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# Whoever waits for what is damaged is told so.
EITHER = "ready|.* are lost.*"


def scrub(gen):
    set_attr(gen, "scrub", 1)
    settle(gen, EITHER)
    return attr(gen, "scrub")


def only_that_range(gen):
    """Opens anew: the lost range is EIO, and all else is as it was."""
    file = gen / "a.safetensors"
    fd = os.open(file, os.O_RDONLY)
    refused("EIO", os.pread, fd, 4096, BAD // 4096 * 4096)
    for at in (0, CHUNK - 100, 4 * CHUNK, len(data) - 4096):
        equal(os.pread(fd, 4096, at), data[at:at + 4096], f"bytes at {at}")
    equal(os.pread(fd, 4096, len(data)), b"", "the end")
    os.close(fd)
    refused("EIO", sha, file)
    refused("EIO", shutil.copyfile, file, WORK / "copy")
    equal(sha(gen / "b.safetensors"), sha(src / "b.safetensors"), "the other")
    tensors = gen / ".weights" / "tensors"
    refused("EIO", sha, tensors / "a.2")
    equal(sha(tensors / "a.4"), hashlib.sha256(
        data[-CHUNK:]).hexdigest(), "a tensor that is whole")


def damaged_opens_fail(file):
    try:
        os.close(os.open(file, os.O_RDONLY))
        return False
    except OSError as e:
        equal(e.errno, errno.EIO, "errno")
        return True


def degraded(gen):
    equal(attr(gen, "availability"), "degraded", "availability")
    says(attr(gen, "error"), "a.safetensors", "a\\.2")


def mend(line, gen, generation):
    stage = staging(line, generation, src)
    ready(stage)
    set_attr(gen, "repair", 1)
    settle(gen)
    equal(attr(gen, "availability"), "ready", "availability")
    same_tree(gen, src)
    shutil.rmtree(stage)


def to_cold(gen):
    settle(gen)
    move(gen, "cold")
    settle(gen)
    comes_to(gen, "cold")


def life(d, resource):
    line = lineage(resource=resource)
    gen = put(line, 1, src)
    file = gen / "a.safetensors"
    to_cold(gen)
    below = backing(file)

    # ---- Found by a scrub
    damage(below)
    says(scrub(gen), r", [1-9]\d* bad$")
    degraded(gen)
    only_that_range(gen)
    only_that_range(gen)
    mend(line, gen, 2)
    says(scrub(gen), ", 0 bad$")

    # ---- Found by an open, since the file is another one now
    damage(below)
    only_that_range(gen)
    settle(gen, ".* are lost.*")
    degraded(gen)
    d.kill()
    d.restart()
    only_that_range(gen)
    settle(gen, ".* are lost.*")
    degraded(gen)
    mend(line, gen, 3)

    # ---- Who has it open from before, and who comes after
    fd = os.open(file, os.O_RDONLY)
    equal(os.pread(fd, 4096, 0), data[:4096], "before")
    damage(below)
    if passthrough():
        says(scrub(gen), r", [1-9]\d* bad$")
        refused("EIO", os.open, file, os.O_RDONLY)
        says(attr(gen, "error"), "a\\.2")
    else:
        # Bytes that nobody vouches for don't go out.
        for at in range(0, len(data), 1 << 20):
            try:
                equal(os.pread(fd, 1 << 20, at), data[at:at + (1 << 20)],
                      f"bytes at {at}")
            except OSError as e:
                equal(e.errno, errno.EIO, "errno")
                check(at <= BAD < at + CHUNK or at - CHUNK < BAD <= at,
                      f"EIO at {at}")
        os.close(os.open(file, os.O_RDONLY))
    os.close(fd)
    # The kernel tells of a close a little later.
    wait_for(lambda: not damaged_opens_fail(file), "it is served by reading")
    only_that_range(gen)
    fd = os.open(file, os.O_RDONLY)
    mend(line, gen, 4)
    equal(os.pread(fd, 4096, BAD), data[BAD:BAD + 4096], "mended, same handle")
    os.close(fd)
    same_tree(gen, src)

    # ---- Who copies it on inside of the mount, with a handle from before
    fd = os.open(file, os.O_RDONLY)
    stage = staging(line, 9)
    out = os.open(stage / "copy", os.O_CREAT | os.O_WRONLY)
    damage(below)
    refused("EIO", os.copy_file_range, fd, out, 4096, BAD // 4096 * 4096, 0)
    equal(os.fstat(out).st_size, 0, "nothing was copied")
    os.close(out)
    os.close(fd)
    shutil.rmtree(stage)
    mend(line, gen, 5)

    # ---- What is in memory is good, so the disk is mended from there
    move(gen, "hot")
    settle(gen)
    comes_to(gen, "hot")
    equal(sha(file), sha(src / "a.safetensors"), "hot again")


with Daemon() as d:
    life(d, "passed")
with Daemon("passthrough=off") as d:
    life(d, "read")
EOP
