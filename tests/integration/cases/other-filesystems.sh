# SPDX-License-Identifier: Apache-2.0
# Stores on ext4, xfs, btrfs and tmpfs, also full ones, and where the kernel can't
# tell who has a file open: each says what it can do, and nobody notices a
# difference.
# MANUAL
# SERIAL
# TIMEOUT: 400
need_root
need losetup
. "$TESTS/integration/tools/py.sh"
expect_log 'No space left|ENOSPC'

not_tried() { echo "# $1: not tried, $2"; }

# disk KIND: a new filesystem in a file, mounted on $WORK/KIND.
disk() {
	PATH=$PATH:/sbin:/usr/sbin command -v "mkfs.$1" >/dev/null ||
		{ not_tried "$1" "no mkfs.$1"; return; }
	truncate -s 512M "$WORK/$1.img"
	PATH=$PATH:/sbin:/usr/sbin "mkfs.$1" "$WORK/$1.img" >"$WORK/mkfs" 2>&1 ||
		{ not_tried "$1" "$(tail -n 1 "$WORK/mkfs")"; return; }
	mkdir "$WORK/$1"
	mount -t "$1" -o loop "$WORK/$1.img" "$WORK/$1" 2>"$WORK/mkfs" ||
		{ not_tried "$1" "$(tail -n 1 "$WORK/mkfs")"; return; }
	kinds="$kinds $1"
}
kinds=
for kind in ext4 xfs btrfs; do disk $kind; done
mkdir "$WORK/tmpfs"
mount -t tmpfs -o size=256m none "$WORK/tmpfs" || skip "no mounts"

# shellcheck disable=SC2086
py $kinds tmpfs <<'EOP'
from wf import *

FIRST = checkpoint("first", size=5_000_000, files=2)
SECOND = checkpoint("second", size=3_000_000, seed=2)
SWITCH = pathlib.Path("/proc/sys/fs/leases-enable")


def health():
    return (MNT / ".weights" / "health").read_text()


def line_of(name):
    lines = dict(l.split(": ", 1) for l in health().splitlines())
    return lines.get(name, "")


def moves(revision):
    """To the disk and back into memory, as the attributes tell."""
    for target in ["cold", "hot"]:
        set_attr(revision, "residency", target)
        ready(revision)
        equal(attr(revision, "residency"), target, f"after going {target}")
        same_tree(revision, FIRST)


def is_removed(revision):
    def removed():
        try:
            remove(revision)
        except OSError as e:
            equal(e.errno, errno.EBUSY, "removing what nobody reads")
            return False
        return True
    wait_for(removed, f"{revision} is removed")
    refused("ENOENT", os.stat, revision)


def is_held(revision):
    """A mapping keeps it; when that is gone, it goes."""
    with Client() as c:
        c.do("m = mapped(args[0])", revision / "model-0.safetensors")
        refused("EBUSY", remove, revision)
        says(attr(revision, "error"), "model-0.safetensors")
        c.end()


def has_no_writers(line):
    stage = staging(line, 7, SECOND)
    fd = os.open(stage / "config.json", os.O_WRONLY)
    refused("EBUSY", os.rename, stage, line / "7")
    os.close(fd)
    same_tree(publish(stage), SECOND)


def life(d, line, durable):
    revision = put(line, 1, FIRST)
    same_tree(revision, FIRST)
    says(ready(revision), "ready")
    equal(attr(revision, "durable"), "yes" if durable else "no", "durable")
    stage = staging(line, 2, SECOND)
    d.stop()
    d.start()
    same_tree(revision, FIRST)
    same_tree(publish(stage), SECOND)
    is_held(revision)
    has_no_writers(line)
    if durable:
        moves(revision)
    else:
        refused("EPERM", set_attr, revision, "residency", "cold")
        says(attr(revision, "error"), "memory")
        same_tree(revision, FIRST)
    d.kill()
    d.start()
    same_tree(revision, FIRST)
    same_tree(line / "2", SECOND)
    equal(attr(revision, "availability"), "ready", "after the daemon's death")
    is_removed(revision)
    d.stop()


def is_full(kind, line):
    """No write finds room, not even to the store's own files."""
    revision = put(line, 3, FIRST)
    ready(revision)
    ballast = WORK / kind / "ballast"
    stage = staging(line, 4, SECOND)
    fd = os.open(ballast, os.O_WRONLY | os.O_CREAT, 0o600)
    piece = os.urandom(1 << 20)
    with contextlib.suppress(OSError):
        while os.write(fd, piece):
            pass
    os.sync()
    with contextlib.suppress(OSError):
        os.write(fd, piece)
        os.fsync(fd)
    os.close(fd)
    for _ in range(3):
        with contextlib.suppress(OSError):
            shutil.copy(SECOND / "model.safetensors", stage / "more")
        with contextlib.suppress(OSError):
            set_attr(revision, "residency", "cold")
        with contextlib.suppress(OSError):
            set_attr(revision, "scrub", "1")
        same_tree(revision, FIRST)
    ballast.unlink()
    (stage / "more").unlink(missing_ok=True)
    os.sync()
    same_tree(publish(stage), SECOND)
    same_tree(revision, FIRST)


def on(kind):
    d = Daemon(store=WORK / kind / "store")
    in_memory = kind == "tmpfs"
    equal(line_of("filesystem"), kind, "filesystem")
    says(line_of("survives a power loss"), "^no," if in_memory else "^yes$")
    equal(line_of("file leases"), "yes", "leases")
    says(line_of("direct reads"), {"tmpfs": "^no,", "btrfs": "^(yes|no,)"}
         .get(kind, "^yes$"))
    says(line_of("large folios"), "^(yes|no|unknown)")
    says(line_of("user attributes"), "^(yes|no)")
    says(line_of("passthrough"),
         "^(published files only|no)" if in_memory else "^(yes|no)")
    print("#", kind + ":", *(f"{n} {line_of(n).split(',')[0]};" for n in
                             ["direct reads", "large folios",
                              "passthrough"]))
    line = lineage()
    life(d, line, durable=not in_memory)
    d.start()
    is_full(kind, line)
    d.stop()


def without_leases():
    if SWITCH.read_text().strip() != "1":
        print("# without leases: not tried, they are off for good")
        return
    # A timeout comes as SIGTERM, and the machine's switch is to be put back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    d = None
    try:
        try:
            SWITCH.write_text("0")
        except OSError as e:
            print("# without leases: not tried,", e)
            return
        d = Daemon()
        says(line_of("file leases"), "^no, .*without passthrough")
        check(not passthrough(), "passed through without leases")
        line = lineage()
        life(d, line, durable=True)
    finally:
        SWITCH.write_text("1")
    # The same store where they can be asked again.
    d.start()
    equal(line_of("file leases"), "yes", "leases")
    same_tree(line / "2", SECOND)
    with mapped(line / "2" / "model.safetensors"):
        refused("EBUSY", remove, line / "2")
    is_removed(line / "2")
    d.stop()


for kind in sys.argv[1:]:
    on(kind)
without_leases()
EOP
