# SPDX-License-Identifier: Apache-2.0
# A mount starts, serves, refuses what can't be, and ends in order.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *


def weightfs(*argv, status, says_=(), env=None):
    """One that must end by itself: at once, with reasons on stderr."""
    done = subprocess.run([DAEMON, *map(str, argv)], text=True, timeout=30,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, check=False,
                          env={**os.environ, **(env or {})})
    equal(done.returncode, status, f"status of {argv} ({done.stderr})")
    says(done.stderr, *says_)
    return done


def is_mounted():
    text = pathlib.Path("/proc/self/mountinfo").read_text()
    return f" {MNT} " in text


# ---- What can't be, each with its name on stderr
for options, word in [("no_such_thing=1", "no_such_thing"),
                      ("frobnicate", "frobnicate"),
                      ("publish_wait=soon", "publish_wait"),
                      ("publish_wait=", "publish_wait"),
                      ("publish_wait", "publish_wait"),
                      ("passthrough=maybe", "passthrough"),
                      ("lease_ttl=-1s", "lease_ttl"),
                      ("derived=1Q", "derived"),
                      ("weight_migration_max_members_per_round=0",
                       "weight_migration_max_members_per_round"),
                      ("weight_migration_max_bytes_per_round=0",
                       "weight_migration_max_bytes_per_round"),
                      ("default_weight_mixed_hot_ratio=1",
                       "default_weight_mixed_hot_ratio"),
                      ("durability=none,control=sometimes", "control"),
                      ("config=/no/such/file", "/no/such/file")]:
    weightfs("-f", STORE, MNT, "-o", options, status=1, says_=[word])
    check(not is_mounted(), f"mounted with {options}")
check(not STORE.exists() or not names(STORE), "a refused option made a store")
weightfs("-f", STORE, WORK / "absent", status=1, says_=["absent"])
(WORK / "file").write_text("x")
weightfs("-f", STORE, WORK / "file", status=1, says_=["file"])
weightfs("-f", WORK / "file", MNT, status=1, says_=["file"])
weightfs("-f", STORE, status=1)
weightfs("-f", STORE, MNT, "third", status=1)
(WORK / "other").mkdir()
(WORK / "other" / "photo.jpg").write_text("x")
weightfs("-f", WORK / "other", MNT, status=1, says_=["other"])
equal(names(WORK / "other"), ["photo.jpg"], "a directory that is no store")
check("weightfs" in weightfs("--version", status=0).stdout, "--version")
check("-o" in weightfs("--help", status=0).stdout, "--help")

# ---- In the foreground; SIGTERM, SIGINT and unmounting end it in order
for how in [signal.SIGTERM, signal.SIGINT, None]:
    d = Daemon()
    equal(names(MNT), [".weights"], "a new store")
    equal(os.stat(STORE).st_mode & 0o777, 0o700, "mode of the store")
    if how:
        d.process.send_signal(how)
        d.ends()
    else:
        d.stop()
    check(not is_mounted(), "still mounted")

# ---- A second daemon for the same store is refused, and does no harm
d = Daemon()
(WORK / "mnt2").mkdir()
busy = ["store|in use|open|running"]
weightfs("-f", STORE, WORK / "mnt2", status=1, says_=busy)
weightfs(STORE, WORK / "mnt2", status=1, says_=busy)
weightfs("-f", STORE, MNT, status=1)
if os.geteuid() == 0:
    done = subprocess.run(["unshare", "-p", "-f", DAEMON, "-f", STORE,
                           WORK / "mnt2"], timeout=30, text=True,
                          capture_output=True, check=False)
    equal(done.returncode, 1, "status in another pid namespace")
    says(done.stderr, *busy)
equal(names(WORK / "mnt2"), [], "second mount point")
put(lineage(), 1, checkpoint())

# ---- A dead mount: ENOTCONN, and the same command clears it
line = lineage()
cwd = Client()
cwd.do("os.chdir(args[0])", line)
d.kill()
refused("ENOTCONN", os.listdir, MNT)
refused("ENOTCONN", cwd.get, "os.listdir('.')")
d.start()
same_tree(line / "1", WORK / "ckpt")
equal(pathlib.Path("/proc/self/mountinfo").read_text().count(f" {MNT} "), 1,
      "mounts at the mount point")
cwd.end()

# A dead mount is not cleared by whoever may not have the store.
d.kill()
weightfs("-f", WORK / "other", MNT, status=1)
d.start()
d.stop()

# A mount point with something in it is covered, and comes back.
(MNT / "precious").write_text("x")
d.start()
equal(names(MNT), [".weights", "t"], "covers what was there")
d.terminate()
equal(names(MNT), ["precious"], "comes back")
(MNT / "precious").unlink()

# ---- In the background: returns 0 when it serves
log = WORK / "background.log"
for _ in range(3):
    weightfs(STORE, MNT, "-o", f"log={log}", status=0)
    check((MNT / ".weights" / "version").read_text(), "not served")
    same_tree(line / "1", WORK / "ckpt")
    # The store is locked by the one in the background.
    weightfs("-f", STORE, WORK / "mnt2", status=1, says_=busy)
    run("fusermount3", "-u", MNT)
    # The store is let go: a daemon can have it.
    wait_for(lambda: subprocess.run(
        ["grep", "-lsF", str(STORE), *map(str, pathlib.Path("/proc").glob(
            "[0-9]*/cmdline"))], capture_output=True,
        check=False).stdout == b"", "the daemon in the background ends", 30)
check("rror" not in log.read_text(), log.read_text())

# ---- health says what could not be had
d = Daemon("passthrough=off")
says((MNT / ".weights" / "health").read_text(), "(?m)^passthrough\\W.*off")
says((MNT / ".weights" / "config").read_text(), "(?m)^passthrough = off$")
d.stop()
if os.geteuid() == 0:
    d = Daemon()
    score = pathlib.Path(f"/proc/{d.pid}/oom_score_adj").read_text().strip()
    if score != "-1000":
        says((MNT / ".weights" / "health").read_text(),
             "protected from the OOM killer: no")
    d.stop()
EOP
