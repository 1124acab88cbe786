# SPDX-License-Identifier: Apache-2.0
# A full disk is a clean ENOSPC; removal works on it and makes it go on.
# MANUAL
# TIMEOUT: 150
need_root
need mkfs.ext4 losetup
. "$TESTS/integration/tools/py.sh"

# disk NAME SIZE [OPTIONS]: a new ext4 in a file, mounted on $WORK/NAME.
disk() {
	mkdir "$WORK/$1"
	truncate -s "$2" "$WORK/$1.img"
	mkfs.ext4 -q -O ^has_journal -m 0 "${@:3}" "$WORK/$1.img" ||
		skip "no ext4"
	mount -o loop "$WORK/$1.img" "$WORK/$1" || skip "no loop mounts"
}
disk small 64M
disk few 64M -N 64
expect_log 'ENOSPC|No space left'

py <<'EOP'
from wf import *

SMALL = checkpoint("small-ckpt", size=4_000_000)
LARGE = checkpoint("large-ckpt", size=100_000_000, seed=2)

d = Daemon(store=WORK / "small" / "store")
line = lineage()
first = put(line, 1, SMALL)
before = facts(first)

# ---- Copying too much: ENOSPC by name, at once, for every way to write
stage = staging(line, 2)
said = run("cp", "-r", f"{LARGE}/.", stage, status=1)
says(said, "No space left on device")
same_tree(first, SMALL)
fd = os.open(stage / "more", os.O_WRONLY | os.O_CREAT)


def fill():
    while True:
        os.write(fd, bytes(1 << 16))


refused("ENOSPC", fill)
refused("ENOSPC", fallocate, fd, 0, 0, 1 << 30)
os.close(fd)
# What is short is not published as if it was whole.
refused("EBADMSG|ENOSPC", os.rename, stage, line / "2")
check(not (line / "2").exists(), "half a revision is published")
check(attr(stage, "error"), "no sentence")
same_tree(first, SMALL)

# ---- Readable, listable, removable while full
equal(names(line), [".staging", "1"], "listing")
mapping = mapped(first / "model.safetensors")
refused("EBUSY", remove, first)
mapping.close()


def removed():
    try:
        remove(first)
    except OSError as e:
        equal(e.errno, errno.EBUSY, "removing on a full disk")
        return False
    return True


wait_for(removed, "removal on a full disk", 30)
refused("ENOENT", os.stat, first)

# ---- Room was made: everything goes on without a restart
run("rm", "-r", stage / "more")


def copied():
    return "No space" not in run("cp", "-r", f"{SMALL}/.", stage,
                                 status=None)


wait_for(copied, "room is there again", 30)
done = publish(stage)
equal(facts(done, times=False), facts(SMALL, times=False), "published")

# ---- Publishing itself on a full disk: all or nothing
stage = staging(line, 3, SMALL)
ready(stage)
ballast = WORK / "small" / "ballast"
with open(ballast, "wb", buffering=0) as f:
    with contextlib.suppress(OSError):
        while True:
            f.write(bytes(1 << 20))
    with contextlib.suppress(OSError):
        while True:
            f.write(bytes(512))
try:
    os.rename(stage, line / "3")
    print("# published on a full disk")
except OSError as e:
    equal(e.errno, errno.ENOSPC, "publishing on a full disk")
    check(not (line / "3").exists() and stage.exists(), "half published")
    ballast.unlink()
    os.rename(stage, line / "3")
ballast.unlink(missing_ok=True)
equal(facts(line / "3", times=False), facts(SMALL, times=False), "bytes")
d.stop()
d.start()
equal(names(line), ["2", "3"], "after a restart")
equal(facts(line / "3", times=False), facts(SMALL, times=False), "bytes")
d.stop()

# ---- Inodes run out
d = Daemon(store=WORK / "few" / "store")
line = lineage()
first = put(line, 1, SMALL)
stage = staging(line, 2)


def files():
    for i in range(1000):
        (stage / str(i)).write_text("x")


refused("ENOSPC", files)
refused("ENOSPC", os.mkdir, line / ".staging" / "9")
refused("ENOSPC", os.mkdir, stage / "dir")
same_tree(first, SMALL)
wait_for(removed, "removal without inodes", 30)
run("rm", "-r", stage)
put(line, 3, SMALL)
same_tree(line / "3", SMALL)
d.stop()
EOP
