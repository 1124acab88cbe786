# SPDX-License-Identifier: Apache-2.0
# A store can be read without a mount, copied and moved, and serves as before.
# MANUAL
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src", files=2)
os.link(SRC / "config.json", SRC / "again.json")
d = Daemon()
line = lineage()
gen = put(line, 1, SRC)
os.symlink("1", line / "serving")
staging(line, 2, SRC)
put(line, 3, SRC)
remove(line / "3")

# ---- Without a mount: the files are plain files
d.stop()
found = [p.parent for p in STORE.rglob("model-0.safetensors")]
check(found, "the files of the store are not where one can find them")
check(any(facts(p) == facts(SRC) for p in found), "they differ")

# ---- Copied elsewhere, with other inode numbers
run("cp", "-a", STORE, WORK / "copy")
copy = Daemon(store=WORK / "copy")
same_tree(gen, SRC)
refused("EEXIST", os.mkdir, line / ".staging" / "3")
same_tree(publish(line / ".staging" / "2"), SRC)
run("sha256sum", "-c", "--quiet", gen / ".weights" / "sha256sums", cwd=gen)
equal(names(line), ["1", "2", "serving"], "the copy")
copy.stop()

# ---- Copied while it is served and nobody writes
d.start()
m = mapped(gen / "model-0.safetensors")
run("cp", "-a", STORE, WORK / "live")
m.close()
d.stop()
live = Daemon(store=WORK / "live")
same_tree(gen, SRC)
equal(names(line), [".staging", "1", "serving"], "the copy of a live one")
live.stop()

# ---- Moved
STORE.rename(WORK / "moved")
moved = Daemon(store=WORK / "moved")
same_tree(gen, SRC)


def removed():
    try:
        remove(gen)
        return True
    except OSError as e:
        equal(e.errno, errno.EBUSY, "remove")
        return False


wait_for(removed, "removal")
moved.stop()

# ---- Damaged metadata stops the start, with a clear line, untouched
for name, spoil in [("cut", lambda p: os.truncate(p, 5000)),
                    ("zeroed", lambda p: p.write_bytes(
                        bytes(p.stat().st_size))),
                    ("a directory", lambda p: (p.unlink(), p.mkdir()))]:
    bad = WORK / f"bad-{name[0]}"
    run("cp", "-a", WORK / "copy", bad)
    data = next(bad.rglob("data.mdb"))
    spoil(data)
    before = data.read_bytes() if data.is_file() else None
    done = subprocess.run([DAEMON, "-f", bad, MNT], timeout=30, text=True,
                          capture_output=True, check=False)
    check(done.returncode == 1, f"{name}: status {done.returncode}")
    says(done.stderr, str(bad))
    equal(data.read_bytes() if data.is_file() else None, before,
          "damaged metadata was written to")
EOP
