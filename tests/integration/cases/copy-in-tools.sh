# SPDX-License-Identifier: Apache-2.0
# cp, rsync, tar, git, sqlite and editors find an ordinary directory in staging.
# OPTIONS: durability=none
# TIMEOUT: 180
need rsync tar git sqlite3
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src", files=3, size=300_000)
BIG = WORK / "big" / "big.bin"
BIG.parent.mkdir()
BIG.write_bytes(random.Random(5).randbytes(4_000_000))
# Modes, old times, links: all that a copy can carry.
os.chmod(SRC / "config.json", 0o440)
os.chmod(SRC / "1_Pooling", 0o750)
os.symlink("config.json", SRC / "c.json")
os.link(SRC / "model-0.safetensors", SRC / "same.safetensors")
(SRC / "1_Pooling" / ".hidden").write_text("h")
for i, p in enumerate(sorted(SRC.rglob("*"))):
    os.utime(p, ns=(10**18 + i, 981173106 * 10**9 + i * 1001),
             follow_symlinks=False)
line = lineage()
counter = iter(range(1, 1000))
open_dirs = []


def fresh():
    return staging(line, next(counter))


def copy(*argv, **kwargs):
    """Runs the command with {} as a new staging directory."""
    into = fresh()
    run(*[str(a).replace("{}", str(into)) for a in argv], **kwargs)
    return into


# ---- Copies keep what their options promise, and exit with 0
same_tree(copy("cp", "-a", f"{SRC}/.", "{}"), SRC)
same_tree(copy("cp", "-rp", "--preserve=links", f"{SRC}/.", "{}"), SRC)
plain = facts(copy("cp", "-r", f"{SRC}/.", "{}"), times=False)
equal(sorted(plain), sorted(facts(SRC)), "names after cp -r")
same_tree(copy("cp", "-a", "--reflink=auto", f"{SRC}/.", "{}"), SRC)
same_tree(copy("cp", "-a", "--sparse=always", f"{SRC}/.", "{}"), SRC)
same_tree(copy("rsync", "-aH", f"{SRC}/", "{}/"), SRC)
same_tree(copy("rsync", "-aH", "--inplace", f"{SRC}/", "{}/"), SRC)
same_tree(copy("rsync", "-aHX", "--partial", "--append-verify", f"{SRC}/",
               "{}/"), SRC)
equal(facts(copy("rsync", "-rt", "--inplace", "--no-perms", "--copy-links",
                 f"{SRC}/", "{}/")).keys(), facts(SRC).keys(), "rsync -rt")
# An index that has to be copied twice, onto what is there.
twice = copy("rsync", "-aH", f"{SRC}/", "{}/")
run("rsync", "-aH", "--checksum", "--delete", f"{SRC}/", f"{twice}/")
same_tree(twice, SRC)
run("rsync", "-a", "--delete", f"{BIG.parent}/", f"{twice}/")
equal(names(twice), ["big.bin"], "rsync --delete")

run("tar", "-cpf", WORK / "a.tar", "-C", SRC, ".")
same_tree(copy("tar", "-xpf", WORK / "a.tar", "-C", "{}"), SRC, times=False)
out = copy("cp", "-a", f"{SRC}/.", "{}")
run("tar", "-cpf", WORK / "b.tar", "-C", out, ".")
(WORK / "untarred").mkdir()
run("tar", "-xpf", WORK / "b.tar", "-C", WORK / "untarred")
same_tree(WORK / "untarred", SRC, times=False)

into = copy("install", "-m", "0444", SRC / "config.json", "{}/c")
equal(os.stat(into / "c").st_mode & 0o7777, 0o444, "install -m")
shutil.copytree(SRC, into / "tree", symlinks=True)
equal(facts(into / "tree", times=False).keys(), facts(SRC).keys(), "copytree")
shutil.copy2(BIG, into / "copy2")
equal(os.stat(into / "copy2").st_mtime_ns, os.stat(BIG).st_mtime_ns, "copy2")
shutil.copy(BIG, WORK / "local")
run("mv", WORK / "local", into / "moved")
equal(sha(into / "moved"), sha(BIG), "mv from elsewhere")
check(not (WORK / "local").exists(), "mv left its source")
run("touch", "-d", "2001-01-01 00:00:00 UTC", into / "c")
equal(os.stat(into / "c").st_mtime, 978307200, "touch -d")
run("chmod", "0400", into / "moved")
equal(sha(into / "moved"), sha(BIG), "readable after chmod 0400")
run("dd", f"if={BIG}", f"of={into}/dd", "bs=64k", "conv=fsync", "status=none")
equal(sha(into / "dd"), sha(BIG), "dd")
run("truncate", "-s", "1000", into / "dd")
equal(os.stat(into / "dd").st_size, 1000, "truncate")
for umask, want in [(0o077, 0o600), (0o002, 0o664), (0o022, 0o644)]:
    old = os.umask(umask)
    (into / f"u{umask:o}").write_text("x")
    os.umask(old)
    equal(os.stat(into / f"u{umask:o}").st_mode & 0o777, want, "umask")

# ---- rsync that is killed, then run again
into = fresh()
killed = False
for limit in (2000, 1000, 500):
    p = subprocess.Popen(["rsync", "-a", f"--bwlimit={limit}", str(BIG),
                          f"{into}/"], stderr=subprocess.DEVNULL,
                         start_new_session=True)
    wait_for(lambda: p.poll() is not None or names(into), "rsync began")
    if p.poll() is None:
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        killed = True
        break
check(killed, "rsync was always too fast to be killed")
check(any(n.startswith(".big.bin.") for n in names(into)), "nothing partial")
run("rsync", "-a", "--delete", f"{BIG.parent}/", f"{into}/")
equal(names(into), ["big.bin"], "after the second rsync")
done = publish(into)
equal(names(done), ["big.bin"], "published")
equal(sha(done / "big.bin"), sha(BIG), "bytes")

# ---- git: commit, status, gc, fsck, clone
into = fresh()
git = ["git", "-C", into, "-c", "user.name=a", "-c", "user.email=a@example",
       "-c", "init.defaultBranch=main", "-c", "safe.directory=*",
       "-c", "gc.auto=0"]
run("cp", "-a", f"{SRC}/.", into)
run(*git, "init", "-q", ".")
run(*git, "add", ".")
run(*git, "commit", "-q", "-m", "x")
equal(run(*git, "status", "--porcelain"), "", "git status")
(into / "config.json").chmod(0o644)
with open(into / "config.json", "a") as f:
    f.write("\n")
says(run(*git, "status", "--porcelain"), "M config.json")
run(*git, "checkout", "-q", "config.json")
run(*git, "gc", "-q", "--prune=now")
run(*git, "fsck", "--strict")
run("git", "-c", "safe.directory=*", "clone", "-q", into, fresh() / "clone")
same_tree(publish(into) / "1_Pooling", SRC / "1_Pooling", times=False)

# ---- sqlite in WAL mode
into = fresh()
db = into / "notes.db"
for i in range(20):
    said = run("sqlite3", db, "pragma journal_mode=wal; create table if not "
               f"exists t(x); insert into t values({i});")
    check(said.startswith("wal"), said)
equal(run("sqlite3", db, "select count(*), sum(x) from t;").strip(), "20|190",
      "rows")
equal(run("sqlite3", db, "pragma integrity_check;").strip(), "ok", "sqlite")

# ---- Editors: in place, by rename, with a backup
(into / "config.json").write_text('{"a": 1}\n')
ino = os.stat(into / "config.json").st_ino
run("sed", "-i", "s/1/2/", into / "config.json")
equal((into / "config.json").read_text(), '{"a": 2}\n', "sed -i")
check(os.stat(into / "config.json").st_ino != ino, "sed -i renames")
run("sed", "-i.bak", "s/2/3/", into / "config.json")
equal((into / "config.json.bak").read_text(), '{"a": 2}\n', "sed -i.bak")
run("perl", "-pi", "-e", "s/3/4/", into / "config.json")
equal((into / "config.json").read_text(), '{"a": 4}\n', "perl -i")
if shutil.which("ed"):
    run("ed", "-s", into / "config.json", input="s/4/5/\nw\nq\n")
if shutil.which("vi"):
    run("vi", "-es", "-u", "NONE", "+s/[45]/6/", "+wq", into / "config.json",
        status=None)

# ---- find, du, df, ls see the truth
into = copy("cp", "-a", f"{SRC}/.", "{}")
equal(run("find", ".", "-printf", "%p %y %s %i\\n", cwd=into).count("\n"),
      len(facts(SRC)) + 1, "find")
want = sum(p.lstat().st_size for p in SRC.rglob("*")
           if p.is_file() and not p.is_symlink() and p.name != "same.safetensors")
check(int(run("du", "-sb", "--apparent-size", into).split()[0]) >= want, "du")
disk, here = (os.statvfs(p) for p in (STORE, MNT))
equal((here.f_blocks * here.f_frsize, here.f_namemax),
      (disk.f_blocks * disk.f_frsize, 255), "df")
check(here.f_bavail > 0 and here.f_ffree > 0, "df says it is full")
says(run("ls", "-la", into), "c.json -> config.json")

# ---- As an ordinary user
if os.geteuid() == 0:
    mine = lineage("mine")
    os.chown(mine, 12345, 12345)
    with Client(12345) as c:
        try:
            c.get("os.stat(args[0])", mine)
        except OSError:
            skip("the build directory is closed to other users")
        c.do("os.mkdir(args[0])", mine / ".staging" / "1")
        into = mine / ".staging" / "1"
        run("chmod", "-R", "a+rX", SRC)
        for i, argv in enumerate([
                ["cp", "-a", "--no-preserve=ownership", f"{SRC}/."],
                ["cp", "-rp", f"{SRC}/."], ["cp", "-a", f"{SRC}/."],
                ["rsync", "-rltpH", f"{SRC}/"], ["rsync", "-a", f"{SRC}/"]]):
            c.do("os.mkdir(args[0])", into / str(i))
            c.do("run(*args)", *argv, f"{into / str(i)}/")
            if argv[0] != "rsync" or "H" in argv[1]:
                names_now = facts(into / str(i)).keys()
                equal(names_now, facts(SRC).keys(), f"{argv}")
            equal(os.stat(into / str(i) / "config.json").st_uid, 12345,
                  "owner")
        refused("EPERM", c.do, "os.chown(args[0], 1, 1)",
                into / "0" / "config.json")
        c.do("os.chmod(args[0], 0o400)", into / "0" / "config.json")
        c.get("open(args[0]).read()", into / "0" / "config.json")
        c.do("os.rename(args[0], args[1])", into, mine / "1")
        equal(os.stat(mine / "1").st_uid, 12345, "owner of what is published")
        for call in ["os.chmod(args[0], 0o600)", "os.utime(args[0])",
                     "os.chown(args[0], 12345, 12345)"]:
            refused("EROFS|EPERM", c.do, call,
                    mine / "1" / "1" / "config.json")
EOP
