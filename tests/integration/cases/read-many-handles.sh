# SPDX-License-Identifier: Apache-2.0
# Handles that are never closed cost the daemon little, and end with the client.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
import resource

from wf import *

COUNT = 5000
src = WORK / "src"
src.mkdir()
safetensors(src / "model.safetensors",
            {f"t.{i:06}": b"x" for i in range(20_000)})
for i in range(COUNT):
    (src / f"f{i:05}").write_bytes(b"%d" % i)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
if 0 <= hard < COUNT + 100:
    skip("too few descriptors allowed")

OPEN = """
resource = __import__('resource')
hard = resource.getrlimit(7)[1]
resource.setrlimit(7, (hard, hard))
held = []
for i in range(args[1]):
    held.append(os.open(args[0] / ('f%05d' % i), os.O_RDONLY))
"""
OPEN_TENSORS = """
more = []
for i in range(args[1]):
    more.append(os.open(args[0] / '.weights' / 'tensors' / ('t.%06d' % i),
                        os.O_RDONLY))
"""


def rss(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) * 1024


def descriptors(d):
    return len(os.listdir(f"/proc/{d.pid}/fd"))


d = Daemon("durability=none")
line = lineage()
gen = put(line, 1, src)
names(gen)
before, memory = descriptors(d), rss(d.pid)
c = Client()
c.do(OPEN, gen, COUNT)
grown = rss(d.pid) - memory
print(f"# {descriptors(d) - before} descriptors, {grown / COUNT:.0f} bytes of "
      "memory for each open file")
check(descriptors(d) <= before + COUNT + 500, "descriptors for each handle")
check(grown < 64 << 20, f"the daemon grew by {grown} bytes")
equal(attr(gen, "leases"), "1", "leases")
e = refused("EBUSY", remove, gen)
says(attr(gen, "error"), r"\b%d\b" % c.pid)
equal(c.get("os.pread(held[4999], 10, 0)"), b"4999", "the last of them")
c.do(OPEN_TENSORS, gen, 2000)
equal(c.get("os.pread(more[1999], 10, 0)"), b"x", "a tensor")
c.kill()
# What the kernel remembers of files may be kept, once for each file.
kept = descriptors(d)
for _ in range(2):
    with Client() as c:
        c.do(OPEN, gen, COUNT)
        c.do(OPEN_TENSORS, gen, 2000)
wait_for(lambda: descriptors(d) <= kept + 100,
         "descriptors that don't grow with every client", 30)

# Directories that are opened and forgotten.
c = Client()
c.do("""
dirs = []
for i in range(2000):
    dirs.append(os.open(args[0], os.O_RDONLY | os.O_DIRECTORY))
    os.listdir(dirs[-1])
""", gen)
check(descriptors(d) <= kept + 2500, "descriptors for directories")
c.kill()
wait_for(lambda: descriptors(d) <= kept + 100, "directories are let go")


def removed():
    try:
        remove(gen)
        return True
    except OSError as e:
        equal(e.errno, errno.EBUSY, "remove")
        return False


wait_for(removed, "nobody holds it any more")
d.stop()
EOP
