# SPDX-License-Identifier: Apache-2.0
# df tells the truth: the room on the mount is that of the store's filesystem,
# and in memory no more than there is memory.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"
expect_log "No space left"

py <<'EOP'
from wf import *

MIB = 1 << 20


def bracketed(store, mnt=MNT):
    """The mount says what the store says, right before or right after."""
    before, seen, after = (os.statvfs(p) for p in [store, mnt, store])
    return all(min(getattr(before, n), getattr(after, n)) <=
               getattr(seen, n) * seen.f_frsize // before.f_frsize <=
               max(getattr(before, n), getattr(after, n))
               for n in ["f_blocks", "f_bfree", "f_bavail"]) and (
        before.f_ffree != after.f_ffree or seen.f_ffree == after.f_ffree)


def room(path):
    st = os.statvfs(path)
    return st.f_bavail * st.f_frsize


def is_sane(path=MNT):
    st = os.statvfs(path)
    for name in ["f_bsize", "f_frsize"]:
        size = getattr(st, name)
        check(512 <= size <= 4 * MIB and size & (size - 1) == 0,
              f"{name} is {size}")
    check(st.f_bavail <= st.f_bfree <= st.f_blocks, f"no order: {st}")
    check(st.f_ffree <= st.f_files, f"no order: {st}")
    equal(st.f_namemax, 255, "f_namemax")


# ---- Beside the store, also from within, and with df
with Daemon():
    is_sane()
    wait_for(lambda: bracketed(STORE), "the mount says what the store says")
    line = lineage()
    wait_for(lambda: bracketed(STORE, line), "so does a directory")
    done = put(line, 1, checkpoint())
    wait_for(lambda: bracketed(STORE, done / "config.json"), "so does a file")
    wait_for(lambda: run("df", "-B1", "--output=size", MNT).split()[-1] ==
             run("df", "-B1", "--output=size", STORE).split()[-1], "df")
    with Client(uid=65534) as c:
        st = c.get("tuple(os.statvfs(args[0]))", MNT)
        equal(st[2], os.statvfs(STORE).f_blocks, "blocks for nobody")
        c.end()

need_root()
if not APART and subprocess.run(["mount", "-V"], check=False).returncode:
    skip("no mounts")


def memory(name, size):
    path = WORK / name
    path.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", path)
    return path


def available():
    m = re.search(r"^MemAvailable: +(\d+) kB$",
                  pathlib.Path("/proc/meminfo").read_text(), re.M)
    return int(m[1]) << 10


# ---- Nobody else writes here: exactly the same, before and after
small = memory("small", "64m")
with Daemon(store=small / "store"):
    is_sane()
    equal(room(MNT), room(small), "room")
    equal(os.statvfs(MNT).f_blocks, os.statvfs(small).f_blocks, "blocks")
    before = room(MNT)
    stage = staging(lineage(), 1)
    (stage / "w").write_bytes(bytes(b"x") * 20 * MIB)
    used = before - room(MNT)
    check(20 * MIB <= used <= 21 * MIB, f"20 MiB took {used}")
    equal(room(MNT), room(small), "room with a file")
    (stage / "w").unlink()
    wait_for(lambda: room(MNT) > before - MIB, "the room is back")
    said = run("dd", "if=/dev/zero", f"of={stage}/all", "bs=1M", status=None)
    says(said, "No space left")
    equal(room(MNT), 0, "room when full")
    equal(run("df", "--output=pcent", MNT).split()[-1], "100%", "df when full")

# ---- A promise that memory can't keep is not passed on
large = memory("large", "16t")
with Daemon(store=large / "store"):
    is_sane()
    check(room(large) > 15 << 40, "the filesystem promises much")
    slack = 256 * MIB
    wait_for(lambda: room(MNT) <= available() + slack, "room for what fits")
    check(room(MNT) > 0, "no room at all")
    st = os.statvfs(MNT)
    used = (st.f_blocks - st.f_bfree) * st.f_frsize
    check(used < 64 * MIB, f"an empty store uses {used}")
EOP
