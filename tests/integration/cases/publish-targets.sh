# SPDX-License-Identifier: Apache-2.0
# Each wrong target of a publish has its errno, and mv prints plain words.
# OPTIONS: durability=none
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src")
line = lineage()
gen = put(line, 1, SRC)
other = lineage("other")
put(line, 2, SRC)
remove(line / "2")


def mv(source, target, *words):
    """mv -T fails with these words, and nothing has moved."""
    said = run("mv", "-T", source, target, status=1)
    says(said, *words)
    check("subdirectory of itself" not in said and "inter-device" not in said,
          said)
    return said


def stays(stage, function=os.rename, target=None, names_="", *flags):
    want = facts(stage)
    refused(names_, function, stage, target, *flags)
    equal(facts(stage), want, "the staging directory after a refusal")


# ---- What exists: ENOTEMPTY, EEXIST under RENAME_NOREPLACE
stage = line / ".staging" / "1"
refused("EEXIST", os.mkdir, stage)
five = staging(line, 5, SRC)
stays(five, os.rename, gen, "ENOTEMPTY|EPERM")
stays(five, rename2, gen, "EEXIST", RENAME_NOREPLACE)
mv(five, gen, "Directory not empty|Operation not permitted")

# ---- A wrong place: EPERM
for target in [line / "6", line / "05", line / "name", line / "x7",
               other / "5", MNT / "5", MNT / "t" / "5", MNT / "t" / "n" / "5",
               MNT / "t" / "n" / "r" / "5", line / ".staging" / "6",
               other / ".staging" / "5"]:
    stays(five, os.rename, target, "EPERM")
    mv(five, target, "Operation not permitted")
    check(attr(five, "error") if target.parent == line else True, "sentence")
stays(five, os.rename, gen / "5", "EROFS|EPERM")
stays(five, os.rename, five / "inner", "EINVAL")  # the kernel's own
stays(five, os.rename, WORK / "5", "EXDEV")  # the kernel's own
# A symlink of the user at a free number can't be; a name can.
os.symlink("1", line / "serving")
stays(five, os.rename, line / "serving", "ENOTDIR|EPERM")

# ---- Flags
stays(five, rename2, line / "5", "EINVAL", RENAME_EXCHANGE | RENAME_NOREPLACE)
stays(five, rename2, line / "5", "EINVAL|ENOENT", RENAME_EXCHANGE)
stays(five, rename2, line / "5", "EINVAL|EPERM", RENAME_WHITEOUT)
stays(five, rename2, line / "5", "EINVAL", 64)
stays(five, rename2, gen, "EINVAL|EPERM", RENAME_EXCHANGE)

# ---- A tombstone: no staging under its number, ECANCELED for a rename
refused("EEXIST", os.mkdir, line / ".staging" / "2")
says(attr(line, "error"), "2")
refused("ENOENT", os.stat, line / "2")
# ---- Out of a published revision, and the revision itself: never
for function, args in [
        (os.rename, (gen, line / ".staging" / "9")),
        (os.rename, (gen, line / "9")),
        (os.rename, (gen, line / "name")),
        (os.rename, (gen, other / "1")),
        (os.rename, (gen / "config.json", five / "config.json")),
        (os.rename, (gen / "config.json", five / "fresh.json")),
        (os.rename, (gen / "config.json", gen / "renamed.json")),
        (os.rename, (five / "config.json", gen / "config.json")),
        (os.rename, (five / "config.json", gen / "new.json")),
        (os.rename, (five / "config.json", line / "config.json")),
        (os.rename, (five / "1_Pooling", line / "11")),
        (os.rename, (five / "1_Pooling", line / ".staging" / "11")),
        (os.link, (gen / "config.json", five / "linked.json")),
        (os.link, (five / "config.json", gen / "linked.json")),
        (rename2, (gen / "config.json", five / "config.json",
                   RENAME_EXCHANGE)),
        (rename2, (gen, five, RENAME_EXCHANGE))]:
    refused("EROFS|EPERM|EINVAL" if args[-1] == RENAME_EXCHANGE
            else "EROFS|EPERM", function, *args)
same_tree(gen, SRC)
same_tree(five, SRC)
says(run("mv", gen, line / ".staging" / "back", status=1),
     "Read-only file system|Operation not permitted")
says(run("mv", gen / "config.json", five / "stolen", status=1),
     "Read-only file system")
check(not (five / "stolen").exists(), "mv copied and could not delete")

# ---- The ordinary ways in
run("mv", "-n", "-T", five, line / "5")
same_tree(line / "5", SRC)
six = staging(line, 6, SRC)
rename2(six, line / "6", RENAME_NOREPLACE)
same_tree(line / "6", SRC)
# A lower number than the newest is an ordinary publish.
put(line, 3, SRC)
# Without -T, mv moves into what exists, or publishes what does not.
seven = staging(line, 7, SRC)
run("mv", seven, line / "7")
eight = staging(line, 8, SRC)
run("mv", eight, f"{line}/")
equal(names(line), ["1", "3", "5", "6", "7", "8", "serving"], "the lineage")
nine = staging(line, 9, SRC)
says(run("mv", nine, line / "8", status=1), "Read-only|not permitted")
run("rm", "-r", nine)

# ---- Two publishers race for one target: one wins
readers = Client()
readers.send("exec", """
seen = set()
while not os.path.exists(args[1]):
    for n in names(args[0]):
        if n.isdigit() and int(n) >= 100:
            seen.add(len(facts(args[0] / n, times=False)))
""", line, WORK / "stop")
want = len(facts(SRC))
racers = [Client(), Client()]
for n in range(100, 150):
    stage = staging(line, n, SRC)
    ready(stage)
    for c in racers:
        c.send("exec", "os.rename(*args)", stage, line / str(n))
    won = 0
    for c in racers:
        try:
            c.answer()
            won += 1
        except OSError as e:
            check(e.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT,
                              errno.EBUSY), f"the loser gets {e!r}")
    equal(won, 1, "winners")
    check(not stage.exists(), "it is still staged")
(WORK / "stop").write_text("")
readers.answer()
equal(readers.get("sorted(seen)"), [want], "all or nothing for readers")
for c in [*racers, readers]:
    c.end()
for n in range(100, 150):
    same_tree(line / str(n), SRC)
EOP
