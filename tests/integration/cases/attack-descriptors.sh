# SPDX-License-Identifier: Apache-2.0
# More files than the daemon has descriptors are published, listed and read.
# MANUAL
# TIMEOUT: 120
need setpriv prlimit
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

LIMIT, FILES, GENERATIONS = 2000, 600, 6
STARTED = Daemon.argv
# Without that capability the daemon can't help itself to more.
Daemon.argv = lambda self: [
    *(["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"]
      if os.geteuid() == 0 else []),
    "prlimit", f"--nofile={LIMIT}:{LIMIT}", *STARTED(self)]
d = Daemon("durability=none")
says((MNT / ".weights" / "health").read_text(),
     f"open files: limited to {LIMIT}")
src = WORK / "src"
src.mkdir()
for i in range(FILES):
    (src / f"f{i:04}").write_bytes(b"%d" % i)
line = lineage()
most = 0
for n in range(1, GENERATIONS + 1):
    gen = put(line, n, src)
    most = max(most, len(os.listdir(f"/proc/{d.pid}/fd")))
print(f"# at most {most} descriptors, {GENERATIONS * FILES} files")
# What is open, mapped or somebody's directory stays as it is.
held = os.open(line / "1" / "f0000", os.O_RDONLY)
m = mapped(line / "2" / "f0001")
os.chdir(line / "3")
for again in range(2):
    for n in range(1, GENERATIONS + 1):
        for i in range(0, FILES, 3):
            equal(os.stat(line / str(n) / f"f{i:04}").st_size, len(str(i)),
                  "size")
        equal(len(names(line / str(n))), FILES, "names")
equal(os.pread(held, 9, 0), b"0", "open all the while")
equal(m[:], b"1", "mapped all the while")
equal(open("f0599").read(), "599", "from within")
maps = pathlib.Path("/proc/self/maps").read_text()
check(str(line / "2" / "f0001") in maps, "the name of what is mapped")
e = refused("EBUSY", remove, line / "2")
says(attr(line / "2", "error"), r"\b%d\b" % os.getpid(), "f0001")
os.chdir("/")
os.close(held)
m.close()

# Too many in one generation is refused with what to do, at the latest when it
# is to be published, and rm -r helps.
stage = staging(line, 100)
try:
    for i in range(2 * LIMIT):
        (stage / f"g{i}").write_bytes(b"")
    os.rename(stage, line / "100")
    raise AssertionError("nothing was refused")
except OSError as e:
    equal(e.errno, errno.EMFILE, "too many")
says(attr(stage, "error"), "limit of open files")
run("rm", "-r", stage)
wait_for(lambda: len(os.listdir(f"/proc/{d.pid}/fd")) < LIMIT / 2 + 200,
         "descriptors are free again")
put(line, 101, src)
d.stop()
EOP
expect_log 'limit of open files'
expect_log 'Too many open files'
