# SPDX-License-Identifier: Apache-2.0
# Metadata that is cut, zeroed, garbled, another thing, of somebody else, or copied
# while it changes: a start and a check say so, or it is sound; nobody writes to
# it, and nobody dies.
# MANUAL
# TIMEOUT: 240
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
import threading
from offline import *
from residency import settle
from wf import *

SRC = checkpoint("src", files=2)
PAGE = 4096

d = Daemon()
line = lineage()
gens = [put(line, n, SRC) for n in range(1, 9)]
for gen in gens:
    settle(gen)
tail = gens[-1]
d.stop()
sound()
snap = WORK / "snap"
exported(snap)
DATA = STORE / "meta" / "data.mdb"
good = DATA.read_bytes()


def used_pages():
    """The pages that the newer of the two headers counts."""
    def header(at):
        # struct MDB_page, then struct MDB_meta: last page and transaction.
        last, txn = struct.unpack_from("<QQ", good, at + 16 + 8 + 16 + 96)
        return txn, last
    return max(header(0), header(PAGE))[1] + 1


def restored():
    if DATA.is_dir():
        DATA.rmdir()
    DATA.unlink(missing_ok=True)
    DATA.write_bytes(good)
    DATA.chmod(0o600)


def refuses(*words):
    """A start ends with a line about it, and leaves it as it is."""
    before = everything(STORE / "meta")[str(DATA)]
    done = subprocess.run([DAEMON, "-f", STORE, MNT], timeout=30, text=True,
                          capture_output=True, check=False)
    equal(done.returncode, 1, f"status ({done.stderr})")
    says(done.stderr, str(DATA), *words)
    equal(len(done.stderr.splitlines()), 1, f"lines: {done.stderr}")
    equal(everything(STORE / "meta")[str(DATA)], before, "what is damaged")
    check(not MNT.is_mount(), "mounted")


def damaged():
    """Refused everywhere, with the way out in the line."""
    refuses("damaged or not a metadata", "copy or a snapshot")
    wrong("damaged or not a metadata", unreadable=True)
    says(weightfs("--export", WORK / "no", STORE, status=1)[1], "damaged")
    says(weightfs("--import", snap, STORE, status=1)[1], "has metadata")
    check(not (WORK / "no").exists(), "an export of what is damaged")


# ---- What is refused
used = used_pages()
check(20 < used < len(good) // PAGE, f"{used} pages are used")
for what, spoil in [
        ("cut by one page", lambda: os.truncate(DATA, (used - 1) * PAGE)),
        ("cut to a page", lambda: os.truncate(DATA, PAGE)),
        ("cut in a page", lambda: os.truncate(DATA, 5000)),
        ("empty", lambda: os.truncate(DATA, 0)),
        ("zeroed", lambda: DATA.write_bytes(bytes(len(good)))),
        ("headers zeroed",
         lambda: DATA.write_bytes(bytes(2 * PAGE) + good[2 * PAGE:])),
        ("garbled", lambda: DATA.write_bytes(
            good[:2 * PAGE] + b"\xa5" * (len(good) - 2 * PAGE))),
        ("a text", lambda: DATA.write_text("these are notes\n")),
        ("a directory", lambda: (DATA.unlink(), DATA.mkdir())),
        ("a link", lambda: (DATA.unlink(), DATA.symlink_to("/dev/null")))]:
    spoil()
    print("#", what)
    damaged()
    restored()
sound()

# Room that is allocated ahead may be missing: nothing of it is used.
os.truncate(DATA, used * PAGE)
sound()
d.start()
same_tree(tail, SRC)
d.stop()
sound()
good = DATA.read_bytes()

# ---- Each page alone: said, or harmless, and never the end of the program
said = tried = 0
used = used_pages()
for page in range(2, used, max(1, used // 40)):
    tried += 1
    with open(DATA, "r+b") as f:
        f.seek(page * PAGE)
        f.write(b"\xa5" * PAGE)
    done = subprocess.run([DAEMON, "--check", STORE], timeout=60, text=True,
                          capture_output=True, check=False)
    check(done.returncode in (0, 2), f"page {page}: {done}")
    said += done.returncode == 2
    restored()
print(f"# {said} of {tried} garbled pages were in use, and noticed")
check(said > 5, "too few")
sound()

# ---- Whose it is
DATA.chmod(0o400)
sound()
if os.geteuid() == 0:
    d.start()  # root may write to it all the same
    same_tree(tail, SRC)
    d.stop()
    os.chown(DATA, 12345, 12345)
    sound()
    d.start()
    same_tree(tail, SRC)
    d.stop()
    os.chown(DATA, 0, 0)
    # One who may read the store and not its metadata, or not write to it.
    other = WORK / "other"
    run("cp", "-a", STORE, other)
    for path in [other, *other.rglob("*")]:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    (WORK / "mnt2").mkdir()
    os.chown(WORK / "mnt2", 65534, 65534)
    theirs = other / "meta" / "data.mdb"

    def as_nobody(*argv):
        return subprocess.run(argv, timeout=30, text=True, user=65534,
                              group=65534, extra_groups=[], check=False,
                              capture_output=True)

    for mode, owner, verb in [(0o400, 65534, "writing"), (0o600, 0, "writing")]:
        theirs.chmod(mode)
        os.chown(theirs, owner, owner)
        done = as_nobody(DAEMON, "-f", other, WORK / "mnt2")
        equal(done.returncode, 1, "status")
        says(done.stderr, str(theirs), verb, "permission is denied")
        equal(theirs.read_bytes(), DATA.read_bytes(), "the metadata")
    done = as_nobody(DAEMON, "--check", other)
    equal(done.returncode, 1, "a check of what can't be read")
    says(done.stderr, "Permission denied")
    os.chown(theirs, 65534, 65534)
    done = as_nobody(DAEMON, "--check", other)
    equal(done.returncode, 0, f"a check by the owner ({done})")
    done = as_nobody(DAEMON, "--check", STORE)
    equal(done.returncode, 1, "a check of somebody else's")
    if APART:
        run(*APART, "sh", "-c", f"""
            mount --bind {STORE} {STORE} && mount -o remount,ro,bind {STORE} &&
            ! {DAEMON} -f {STORE} {MNT} 2>{WORK}/ro && {DAEMON} --check {STORE}
            """)
        says((WORK / "ro").read_text(), "[Rr]ead-only")
restored()
sound()

# ---- A copy of one that is in use
d.start()
stop = False


def busy():
    n = 100
    while not stop:
        gen = put(line, n, SRC)
        set_attr(gen, "residency", "cold") if n % 3 == 0 and \
            attr(gen, "durable") == "yes" else None
        n += 1


writer = threading.Thread(target=busy)
writer.start()
codes = []
for i in range(40):
    copy = WORK / "live" / "meta"
    copy.mkdir(parents=True)
    run("cp", DATA, copy)
    done = subprocess.run([DAEMON, "--check", WORK / "live"], timeout=60,
                          text=True, capture_output=True, check=False)
    check(done.returncode in (1, 2), f"the check of a copy: {done}")
    check(done.stdout.strip() or done.stderr.strip(), "nothing is said")
    if done.returncode == 1:
        says(done.stderr, "nothing was ever stored")
    codes.append("damaged or not" in done.stdout)
    shutil.rmtree(WORK / "live")
stop = True
writer.join()
print(f"# {sum(codes)} of {len(codes)} copies of a busy one were torn")
for gen in gens:
    settle(gen)
# And of one that nobody writes to just now: it serves like the original.
(MNT / ".weights" / "wait").read_text()
run("cp", "-a", STORE, WORK / "idle")
d.stop()
sound(WORK / "idle")
EOP
