# SPDX-License-Identifier: Apache-2.0
# A store is checked while nothing runs on it, its metadata goes out as a
# snapshot, and comes in again where it was lost: what was there is there.
# MANUAL
# TIMEOUT: 240
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from offline import *
from residency import comes_to, settle
from wf import *

SRC = checkpoint("src", files=2)
os.link(SRC / "config.json", SRC / "again.json")
os.symlink("config.json", SRC / "link.json")
(SRC / "private").mkdir(mode=0o700)
(SRC / "private" / "notes.txt").write_text("x")
SMALL = checkpoint("small", seed=2)

source_facts = facts(SRC)

# ---- What there is
d = Daemon()
line, other = lineage(), lineage("other", "q")
one = put(line, 1, SRC)
two = put(line, 2, SMALL)
put(line, 3, SMALL)
third = put(other, 7, SRC)
os.symlink("2", line / "serving")
remove(line / "3")
for gen in (one, two, third):
    settle(gen)
set_attr(two, "residency", "cold")
settle(two)
staging(line, 4, SMALL)
tree = whole_tree(MNT / "t")
attrs = {gen: attributes(gen) for gen in (one, two, third)}
groups = {gen: group(gen) for gen in (one, two, third)}


def same_facts(found, expected):
    """Of two trees, but for what is staged."""
    for name in sorted({*found, *expected}):
        if b".staging" not in name:
            equal(found.get(name), expected.get(name), name)


def is_as_it_was():
    same_facts(whole_tree(MNT / "t"), tree)
    for gen, expected in attrs.items():
        equal(attributes(gen), expected, f"attributes of {gen}")
    refused("EEXIST", os.mkdir, line / ".staging" / "3")


def durable_again(*generations):
    """Nothing counts as durable before it was read; then it is."""
    for gen in generations:
        settle(gen)
        equal(attr(gen, "durable"), "yes", "durable")


# ---- A daemon runs on it
before = everything(STORE / "meta")
for argv in (["--check"], ["--export", WORK / "no"], ["--import", SRC]):
    _, err = weightfs(*argv, STORE, status=1)
    says(err, str(STORE), "a daemon runs on it")
check(not (WORK / "no").exists(), "an export of an open store")
check(not (WORK / "no.part").exists(), "a part of an export of an open store")
same_tree(one, SRC)

# ---- Sound, also as a copy, and read where nothing can be written
d.stop()
out = sound()
says(out, "^checked 4 revisions", r", 1 staged: nothing is wrong$")
run("cp", "-a", STORE, WORK / "copy")
(WORK / "copy" / "lock").unlink()
(WORK / "copy" / "meta" / "lock.mdb").unlink()
equal(sound(WORK / "copy"), out, "the check of a copy")
if APART and os.geteuid() == 0:
    run(*APART, "sh", "-c", f"mount --bind {STORE} {WORK}/copy/tree && "
        f"mount -o remount,ro,bind {WORK}/copy/tree && "
        f"{DAEMON} --check {WORK}/copy/tree")
run("rm", "-r", WORK / "copy" / "tree", WORK / "copy" / "groups")
wrong("groups is not there: the payload of 3 revisions", store=WORK / "copy")

# ---- What is none
for path, word in [(WORK / "absent", "No such file"), (SRC, "not a store"),
                   (SRC / "config.json", "Not a directory")]:
    for argv in (["--check"], ["--export", WORK / "no"]):
        says(weightfs(*argv, path, status=1)[1], word, str(path))
(WORK / "empty").mkdir()
says(weightfs("--check", WORK / "empty", status=1)[1], "empty")
check(not (WORK / "absent").exists() and not names(WORK / "empty"),
      "a check made something")
for argv in (["--check"], ["--check", STORE, MNT], ["--export", STORE],
             ["--check", "--export", "x", STORE], ["--check", STORE, "-f"],
             ["--check", STORE, "-o", "memory=1G"], ["--import"]):
    says(weightfs(*argv, status=1)[1], "weightfs --help|at a time|requires")

# ---- Each thing that is wrong is a line
hexes = {gen: f"{g.parent.name}/{g.name}" for gen, g in groups.items()}
first = groups[one]
first.rename(WORK / "away")
wrong(f"t/n/r/main/1: its directory groups/{hexes[one]}: No such file")
(WORK / "away").rename(first)
manifest = first / "manifest.json"
text = manifest.read_bytes()
manifest.write_bytes(text + b" ")
wrong("t/n/r/main/1: its manifest is not the one")
manifest.unlink()
wrong("t/n/r/main/1: its manifest is not there")
manifest.mkdir()
wrong("t/n/r/main/1: its manifest can't be read")
manifest.rmdir()
manifest.write_bytes(text)
(first / "files").rename(WORK / "files")
wrong("t/n/r/main/1: its files in groups/.*: No such file")
(WORK / "files").rename(first / "files")
(first / "files" / "config.json").unlink()
changed = first / "files" / "1_Pooling" / "config.json"
times = changed.stat().st_atime_ns, changed.stat().st_mtime_ns
changed.write_text("longer\n")
wrong("'config.json': No such file", "'1_Pooling/config.json': it has another")
os.link(first / "files" / "again.json", first / "files" / "config.json")
changed.write_text("{}\n")
os.utime(changed, ns=times)
sound()
(STORE / "groups" / "00" / ("0" * 64) / "files").mkdir(parents=True)
(STORE / "groups" / "00" / ("0" * 64) / "identity.json").write_text(
    '{"resource":"lost\nline"}')
(STORE / "groups" / "junk").write_text("x")
wrong(f"groups/00/{'0' * 64}: no record knows it; it was .*lost.line",
      "groups/junk: no record knows it")
shutil.rmtree(STORE / "groups" / "00")
(STORE / "groups" / "junk").unlink()
staged = next(p for p in (STORE / "groups").glob("*/*")
              if not (p / "manifest.json").exists())
staged.rename(WORK / "staged")
wrong("t/n/r/main/4: it is staged, and has no directory")
(WORK / "staged").rename(staged)
equal(sound(), out, "the check after all that")

# ---- Out: once, whole, for nobody else to read
snap = WORK / "snap"
exported(snap)
says(weightfs("--export", snap, STORE, status=1)[1], "is there already")
exported(WORK / "again")
equal((WORK / "again").read_bytes(), snap.read_bytes(), "the same store")
with open(WORK / "piped", "wb") as f:
    _, err = weightfs("--export", "-", STORE, stdout=f)
says(err, f"^exported {SUMMARY}")
equal((WORK / "piped").read_bytes(), snap.read_bytes(), "through a pipe")
says(weightfs("--export", WORK / "absent" / "s", STORE, status=1)[1], "No such")
with open("/dev/full", "wb") as f:
    says(weightfs("--export", "-", STORE, status=1, stdout=f)[1], "No space")
(WORK / "snap2.part").write_text("of one that was killed")
exported(WORK / "snap2")
says(weightfs("--import", snap, STORE, status=1)[1], "has metadata")
equal(sound(), out, "the check after exports")

# ---- The metadata is lost: nothing starts, and the snapshot brings it back
shutil.rmtree(STORE / "meta")
lost = ["payload and no metadata", "--import"]
says(weightfs("-f", STORE, MNT, status=1)[1], *lost)
wrong("payload and no metadata", unreadable=True)
says(weightfs("--export", WORK / "no", STORE, status=1)[1], "no metadata")
staged.rename(WORK / "staged")
imported(snap)
says(sound(), "^checked 4 revisions")
d.start()
is_as_it_was()
durable_again(one, two, third)
comes_to(one, "hot")
same_tree(one, SRC)
d.stop()
says(sound(), "^checked 4 revisions")

# ---- On another machine, with nothing but payload and the snapshot
there = WORK / "there"
there.mkdir()
run("cp", "-a", STORE / "groups", there)
says(weightfs("-f", there, MNT, status=1)[1], "neither a store", "--import")
imported(snap, there)
equal(os.stat(there).st_mode & 0o777, 0o700, "mode of the store")
second = Daemon(store=there)
check("serving" not in names(line), "a symlink out of nowhere")
for gen, source in ((one, SRC), (two, SMALL), (third, SRC)):
    same_tree(gen, source)
    equal(attributes(gen), attrs[gen], f"attributes of {gen}")
durable_again(one, two, third)
second.stop()
sound(there)

# ---- Into nothing: a directory that is made, and one that is empty
for path in (WORK / "made", WORK / "empty"):
    out = imported(snap, path)
    says(out, "3 have no payload here")
    equal(names(path), ["lock", "meta"], "what is made")
with open(snap, "rb") as f:
    weightfs("--import", "-", WORK / "from-stdin", stdin=f)
reader, writer = os.pipe()
says(weightfs("--import", "-", WORK / "no", stdin=reader, status=1)[1], "pipe")
os.close(reader)
os.close(writer)
check(not (WORK / "no").exists(), "a store out of a pipe")

# ---- All or nothing
bad = WORK / "bad"
whole = snap.read_bytes()
for what, data in [("cut", whole[:-1]), ("empty", b""), ("longer", whole + b"x"),
                   ("text", b"these are notes"),
                   ("a bit", whole[:100] + bytes([whole[100] ^ 1]) +
                    whole[101:])]:
    bad.write_bytes(data)
    for path in (WORK / "no", WORK / "was-empty"):
        if path.name == "was-empty":
            path.mkdir(exist_ok=True)
        says(weightfs("--import", bad, path, status=1)[1], "snapshot")
    check(not (WORK / "no").exists(), f"{what}: half a store")
    equal(names(WORK / "was-empty"), [], f"{what}: half a store")
left = everything(there / "groups")
shutil.rmtree(there / "meta")
weightfs("--import", bad, there, status=1)
equal(names(there), ["groups", "lock", "tree"], "after a refusal")
equal(everything(there / "groups"), left, "payload after a refusal")
says(weightfs("--import", snap, SRC, status=1)[1], "neither a store")
equal(facts(SRC), source_facts, "a directory that is no store")
says(weightfs("--import", WORK / "absent", there, status=1)[1], "absent")

# ---- Payload that the snapshot doesn't know is no rubbish
newer = there / "groups" / "ff" / ("f" * 64)
(newer / "files").mkdir(parents=True)
(newer / "files" / "precious").write_text("x")
out = imported(snap, there)
says(out, f"groups/ff/{'f' * 64}: not in the snapshot, moved to aside",
     "1 directory of groups/ is not in the snapshot")
equal((there / "aside" / ("f" * 64) / "files" / "precious").read_text(), "x",
      "what was put aside")
second.start()
same_tree(one, SRC)
second.stop()
check((there / "aside" / ("f" * 64) / "files" / "precious").exists(),
      "a start removed it")
sound(there)

# ---- A kill in the middle of an import
shutil.rmtree(there / "meta")
(there / "meta.new").mkdir()
(there / "meta.new" / "data.mdb").write_text("half of it")
says(weightfs("-f", there, MNT, status=1)[1], *lost)
check(not (there / "meta.new").exists(), "a half one is left")
check(not (there / "meta").exists(), "metadata out of nowhere")
(there / "meta.new").mkdir()
(there / "meta.new" / "data.mdb").write_text("half of it")
imported(snap, there)
check(not (there / "meta.new").exists(), "a half one is left")
sound(there)

# ---- Completion knows what the program knows
script = (pathlib.Path(os.environ["TESTS"]).parent / "mount-helpers" /
          "completion" / "weightfs")


def completed(*words):
    return run("bash", "-c", '. "$1"; shift; PATH=$1:$PATH; shift; '
               'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weightfs; '
               'printf "%s\n" "${COMPREPLY[@]}"', "-", script,
               pathlib.Path(DAEMON).parent, *words).split()


equal(completed("weightfs", "--ex"), ["--export"], "an option")
equal(completed("weightfs", "-o", "dur"), ["durability="], "of the mount")
equal(completed("weightfs", "-o", "memory=1G,dur"), ["memory=1G,durability="],
      "one after another")
equal(completed("weightfs", "-o", "durability", "=", "n"), ["none"], "a value")
equal(completed("weightfs", "-o", "control", "="), ["hidden", "visible"],
      "all values")
equal(sorted(completed("weightfs", str(WORK / "sna"))),
      [str(snap), str(WORK / "snap2")], "a file")
EOP
