# SPDX-License-Identifier: Apache-2.0
# Above a revision, names are parts of an identity, and only those have a place.
# MANUAL
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src")
d = Daemon("durability=none")

# ---- Parts of an identity, percent-encoded where a path can't hold them
GOOD = ["a", "A", "a b", "model%2Fname", "%2Ehidden", "100%25", "\u4e2d",
        "x" * 255, "a.b", "-x", "7", "a+b=c@d:e,f", "main.", "%252F"]
BAD = {"%2f": "EINVAL|EPERM", "%41": "EINVAL|EPERM", "%": "EINVAL|EPERM",
       "a%": "EINVAL|EPERM", "%zz": "EINVAL|EPERM", ".hidden": "EINVAL|EPERM",
       "%00": "EINVAL|EPERM", "x" * 256: "ENAMETOOLONG", "a%2": "EINVAL|EPERM",
       "%2e": "EINVAL|EPERM", "new\nline": "EINVAL|EPERM",
       "\x7f": "EINVAL|EPERM"}
parent = MNT / "t" / "n"
parent.mkdir(parents=True)
for i, name in enumerate(GOOD):
    line = parent / name / "main"
    line.mkdir(parents=True)
    put(line, i + 1, SRC)
equal(names(parent), sorted(GOOD), "names that were made")
for i, name in enumerate(GOOD):
    meta = json.loads((parent / name / "main" / str(i + 1) / ".weights" /
                       "metadata.json").read_text())
    plain = re.sub("%([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), name)
    check(plain in json.dumps(meta, ensure_ascii=False),
          f"{plain!r} in {meta}")
for where in (MNT, parent, parent / "a"):
    for name, err in BAD.items():
        refused(err, os.mkdir, where / name)
        check(name not in names(where), "it is there all the same")
# Two spellings of one identity would be two names for it.
refused("ENOENT", os.stat, parent / "model%2fname")
refused("EINVAL|EPERM", os.mkdir, MNT / "_tenant")
for reserved in (".weights", ".staging"):
    for where in (MNT / "t", parent, parent / "a"):
        refused("EPERM|EINVAL|EEXIST", os.mkdir, where / reserved)
refused("EEXIST|EPERM", os.mkdir, MNT / ".weights")

# ---- What has no place: EPERM, and a sentence where somebody can read it
line = lineage()
gen = put(line, 1, SRC)
for where in (MNT, MNT / "t", parent, parent / "r", line):
    for function, args in [
            (os.open, (where / "file", os.O_CREAT | os.O_WRONLY)),
            (os.mknod, (where / "file",)),
            (os.mknod, (where / "fifo", 0o600 | stat.S_IFIFO))]:
        refused("EPERM", function, *args)
check(attr(line, "error"), "no sentence")
for where in (MNT, MNT / "t", parent, parent / "r"):
    refused("EPERM", os.symlink, "x", where / "link")
refused("EPERM", os.mkdir, line / "2")
says(attr(line, "error"), r"\.staging")
refused("EPERM", os.mkdir, line / "subdir")
refused("EEXIST", os.mkdir, line / ".staging")
for name in ("x", "07", "-1", "+7", "7.0", " 7", "0x7", "", "9" * 40):
    if name:
        refused("EPERM|EINVAL|ENAMETOOLONG", os.mkdir, line / ".staging" / name)
for name in ("file", "7"):
    refused("EPERM|EEXIST", os.open, line / ".staging" / name,
            os.O_CREAT | os.O_WRONLY)
    refused("EPERM", os.symlink, "x", line / ".staging" / name)
equal([n for n in names(line) if n != ".staging"], ["1"], "the lineage")

# The largest generations; the first that is none.
big = 2**64 - 1
for n in (big, 2**63, 0):
    try:
        os.mkdir(line / ".staging" / str(n))
        os.rmdir(line / ".staging" / str(n))
    except OSError as e:
        equal(e.errno, errno.EPERM, f"generation {n}")
refused("EPERM", os.mkdir, line / ".staging" / str(2**64))
refused("EPERM", os.mkdir, line / ".staging" / str(2**64 + 7))

# ---- .weights is reserved in a tree, too, and never listed in staging
stage = staging(line, 5, SRC)
for function, args in [
        (os.mkdir, (stage / ".weights",)),
        (os.symlink, ("x", stage / ".weights" / "x")),
        (os.rename, (stage / "config.json", stage / ".weights")),
        (os.rename, (stage / "config.json", stage / ".weights" / "x")),
        (os.link, (stage / "config.json", stage / ".weights")),
        (os.open, (stage / ".weights" / "x", os.O_CREAT | os.O_WRONLY)),
        (os.unlink, (stage / ".weights" / "wait",)),
        (os.rmdir, (stage / ".weights",)),
        (os.mkdir, (stage / "1_Pooling" / ".weights",)),
        (os.open, (stage / "1_Pooling" / ".weights",
                   os.O_CREAT | os.O_WRONLY))]:
    refused("EPERM|EEXIST|EROFS|ENOTEMPTY|EISDIR|EBUSY", function, *args)
equal(names(stage), names(SRC), "the staging directory")
equal(names(stage / ".weights"), ["wait"], ".weights of a staged one")
refused("ENOENT", os.stat, stage / "1_Pooling" / ".weights")
refused("ENOENT", os.stat, line / ".weights")
refused("ENOENT", os.stat, stage / ".staging")
(stage / ".staging").mkdir()  # an ordinary name down here
shutil.rmtree(stage / ".staging")

# ---- Symlinks beside generations: the users' own pointers
link = line / "serving"
os.symlink("1", link)
equal(os.readlink(link), "1", "readlink")
same_tree(link, SRC)
run("ln", "-sfn", "5", link)
equal(os.readlink(link), "5", "ln -sfn")
os.symlink("1", line / "next")
os.rename(line / "next", link)
equal(os.readlink(link), "1", "renamed over")
with Client() as c:
    c.send("exec", """
wrong = 0
while not os.path.exists(args[1]):
    try:
        wrong += os.readlink(args[0]) not in ('1', '5')
    except OSError:
        wrong += 1
""", link, WORK / "stop")
    for i in range(300):
        os.symlink("15"[i % 2], line / ".tmp-link")
        os.rename(line / ".tmp-link", link)
    (WORK / "stop").write_text("")
    c.answer()
    equal(c.get("wrong"), 0, "moments without the link")
for name in ("3", "1", "99999", "007", ".staging", ".weights"):
    refused("EPERM|EEXIST", os.symlink, "1", line / name)
    refused("EPERM|EEXIST|ENOTEMPTY|EISDIR|EROFS|ENOTDIR", os.rename, link,
            line / name)
os.symlink("/etc/hostname", line / "anywhere")  # never interpreted
os.symlink("no/such/thing", line / "dangling")
equal(names(line), [".staging", "1", "anywhere", "dangling", "serving"],
      "the lineage")
other = lineage("other")
os.rename(line / "dangling", other / "dangling")
os.unlink(other / "dangling")
os.unlink(line / "anywhere")
equal(os.lstat(link).st_size, 1, "size of a symlink")

# ---- Directories: removed when empty, renamed while empty
os.mkdir(MNT / "empty")
os.rename(MNT / "empty", MNT / "renamed")
refused("ENOENT", os.stat, MNT / "empty")
(MNT / "renamed" / "n").mkdir()
refused("EPERM", os.rename, MNT / "renamed", MNT / "again")
os.rename(MNT / "renamed" / "n", MNT / "renamed" / "m")
refused("EPERM", os.rename, MNT / "renamed" / "m", MNT / "m")
refused("EPERM", os.rename, line, line.parent / "moved")
refused("ENOTEMPTY", os.rmdir, MNT / "renamed")
refused("ENOTEMPTY", os.rmdir, line)
refused("ENOTEMPTY", os.rmdir, line.parent)
os.rmdir(MNT / "renamed" / "m")
os.rmdir(MNT / "renamed")
fresh = lineage("fresh")
os.rename(fresh, fresh.parent / "newer")
os.mkdir(fresh.parent / "newer" / ".staging" / "1")
refused("EPERM", os.rename, fresh.parent / "newer", fresh)
refused("ENOTEMPTY", os.rmdir, fresh.parent / "newer")
os.rmdir(fresh.parent / "newer" / ".staging" / "1")
os.rmdir(fresh.parent / "newer")
run("mkdir", "-p", line / ".staging" / "40")
run("mkdir", "-p", line / ".staging" / "40" / "sub")
run("rmdir", line / ".staging" / "40" / "sub", line / ".staging" / "40")
run("chmod", "0750", line)
equal(stat.S_IMODE(os.stat(line).st_mode), 0o750, "chmod of a lineage")

# ---- All of it is there after a restart
before = facts(MNT / "t")
d.stop()
d.start()
equal(facts(MNT / "t"), before, "after a restart")
d.stop()

# ---- One tenant only, where the option says so
d = Daemon("tenants=default", "control=visible", store=WORK / "store2")
refused("EINVAL|EPERM", os.mkdir, MNT / "acme")
(MNT / "default" / "n" / "r" / "v").mkdir(parents=True)
gen = put(MNT / "default" / "n" / "r" / "v", 1, SRC)
check(".weights" in names(gen), "control=visible")
d.stop()
EOP
