# SPDX-License-Identifier: Apache-2.0
# Where the metadata may lie and who may open it: on a disk that runs full while
# it is published, below a daemon in the background, with others that want it
# from other pid namespaces, and on filesystems that are no local disk.
# MANUAL
# TIMEOUT: 240
. "$TESTS/integration/tools/py.sh"
expect_log 'No space left on device'

py <<'EOP'
from disks import fill, tmpfs
from offline import *
from residency import settle
from wf import *

SRC = checkpoint("src", size=3000)
BUSY = "daemon|somebody has the store"


def full_while_publishing():
    """Neither a signal nor a lie: ENOSPC, and what was there is served."""
    top = tmpfs("small", "8m")
    d = Daemon(store=top / "store")
    line = lineage()
    done = []

    def publish_until_full():
        for n in range(max(done, default=0) + 1, 5000):
            stage = line / ".staging" / str(n)
            try:
                if not stage.exists():
                    stage.mkdir()
                if "No space" in run("cp", "-a", f"{SRC}/.", stage,
                                     status=None):
                    return
                with contextlib.suppress(OSError):
                    ready(stage)
                os.rename(stage, line / str(n))
            except OSError as e:
                equal(e.errno, errno.ENOSPC, f"publishing {n}")
                return
            done.append(n)

    def all_there():
        equal([n for n in names(line) if n != ".staging"],
              sorted(map(str, done)), "generations")
        for n in done[::max(1, len(done) // 10)]:
            same_tree(line / str(n), SRC)

    publish_until_full()
    check(len(done) > 10, f"{len(done)} revisions in 8 MiB")
    all_there()
    # To the last byte, and again and again.
    ballast = fill(top / "ballast")
    for _ in range(20):
        before = len(done)
        publish_until_full()
        equal(len(done), before, "published without room")
        all_there()
    # Killed and started where there is nothing left.
    d.kill()
    d.start()
    all_there()
    # Removal needs no room, and makes some.
    remove(line / str(done.pop(0)))
    all_there()
    ballast.unlink()
    for n in done[:5]:
        remove(line / str(n))
    del done[:5]
    before = len(done)
    wait_for(lambda: publish_until_full() or len(done) > before,
             "there is room again", 30)
    all_there()
    d.stop()
    sound(top / "store")


def processes_with(path):
    """Who has it open, by its pid; how often."""
    found = {}
    for fd in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(fd) == str(path):
                pid = int(fd.parts[2])
                found[pid] = found.get(pid, 0) + 1
    return found


def in_the_background():
    """The database is opened once, by the process that stays."""
    log = WORK / "background.log"
    done = subprocess.run([DAEMON, STORE, MNT, "-o", f"log={log}"],
                          timeout=60, check=False)
    equal(done.returncode, 0, "status")
    line = lineage()
    gens = [put(line, n, SRC) for n in range(1, 21)]
    for gen in gens:
        settle(gen)
    set_attr(gens[0], "residency", "cold")
    settle(gens[0])
    m = mapped(gens[1] / "model.safetensors")
    refused("EBUSY", remove, gens[1])
    m.close()
    remove(gens[2])
    same_tree(gens[0], SRC)
    for path in (STORE / "meta" / "data.mdb", STORE / "lock"):
        holders = processes_with(path)
        equal(len(holders), 1, f"processes with {path}")
    pid = next(iter(processes_with(STORE / "lock")))
    # Two descriptors are what one database has.
    equal(processes_with(STORE / "meta" / "data.mdb"), {pid: 2}, "it is open")
    others_from_elsewhere()
    run("fusermount3", "-u", MNT)
    wait_for(lambda: not processes_with(STORE / "lock"), "it ends", 30)
    check("rror" not in log.read_text(), log.read_text())
    sound()


def others_from_elsewhere():
    """The lock is one whatever pids a process sees."""
    (WORK / "mnt2").mkdir()
    # SRC/config.json stands for a snapshot: nobody comes to look at it.
    commands = [[DAEMON, "-f", STORE, WORK / "mnt2"],
                [DAEMON, STORE, WORK / "mnt2"],
                [DAEMON, "--check", STORE],
                [DAEMON, "--export", WORK / "no", STORE],
                [DAEMON, "--import", SRC / "config.json", STORE]]
    apart = [[]]
    if os.geteuid() == 0:
        apart.append(["unshare", "-p", "-f"])
    for front in apart:
        for command in commands:
            done = subprocess.run([*front, *map(str, command)], timeout=60,
                                  text=True, capture_output=True, check=False)
            equal(done.returncode, 1, f"status of {front} {command}")
            says(done.stderr, BUSY)
    check(not (WORK / "no").exists(), "an export of an open store")
    same_tree(lineage() / "1", SRC)


def on_a_layer():
    """It works there, and says that it isn't the place for it."""
    top = tmpfs("layers", "64m")
    for name in ("lower", "upper", "work", "merged"):
        (top / name).mkdir()
    said = run("mount", "-t", "overlay", "none", "-o",
               f"lowerdir={top}/lower,upperdir={top}/upper,"
               f"workdir={top}/work", top / "merged", status=None)
    if said.strip():
        print("# overlay: not tried,", said.strip())
        return
    start = LOG.stat().st_size
    d = Daemon(store=top / "merged" / "store")
    says((MNT / ".weights" / "health").read_text(),
         "(?m)^filesystem: overlay, a layer: put the store on the filesystem "
         "below it$")
    with open(LOG, encoding="utf-8") as f:
        f.seek(start)
        equal(f.read().count("the store is on overlay, a layer"), 1, "the log")
    line = lineage()
    gen = put(line, 1, SRC)
    same_tree(gen, SRC)
    d.kill()
    d.start()
    same_tree(gen, SRC)
    # The lower name of the same store is locked, too.
    done = subprocess.run([DAEMON, "--check", top / "upper" / "store"],
                          timeout=60, text=True, capture_output=True,
                          check=False)
    check(done.returncode in (0, 1), f"below the layer: {done}")
    d.stop()
    sound(top / "merged" / "store")


def the_manual_says_so():
    root = pathlib.Path(os.environ["TESTS"]).parent
    for path in ("README.md", "mount-helpers/man/weightfs.8"):
        says((root / path).read_text().replace("\n", " "), "local filesystem")


in_the_background()
the_manual_says_so()
need_root()
full_while_publishing()
on_a_layer()
EOP
