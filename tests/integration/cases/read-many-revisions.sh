# SPDX-License-Identifier: Apache-2.0
# A resource with very many revisions is read as a stream: every one that stays
# is shown once while others come and go, from any place that was told, and the
# daemon's memory doesn't grow with them.
# MANUAL
# TIMEOUT: 300
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

MANY = 30_000
LISTINGS = 8
d = Daemon("durability=none")
line = lineage()
resource = line.parent
# Made below a stopped daemon: who looks them up one by one costs descriptors.
d.stop()
tree = next(d.store.glob("tree/*/*/*"))
for i in range(MANY):
    (tree / f"revision-{i:06}-with-a-longer-name").mkdir()
d.restart()
names = {f"revision-{i:06}-with-a-longer-name" for i in range(MANY)}
names.add(line.name)


def anonymous_kib():
    for text in open(f"/proc/{d.pid}/status"):
        if text.startswith("RssAnon:"):
            return int(text.split()[1])


libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]


def next_name(stream):
    entry = libc.readdir(stream)
    if not entry:
        return None
    return ctypes.string_at(entry + 19).decode()


# ---- Many listings at once, each at its beginning: no copy of the names
before = anonymous_kib()
streams = []
for _ in range(LISTINGS):
    stream = ctypes.c_void_p(libc.opendir(str(resource).encode()))
    next_name(stream)
    streams.append(stream)
grown = anonymous_kib() - before
check(grown < 4096, f"{LISTINGS} listings took {grown} KiB")
for stream in streams:
    libc.closedir(stream)

# ---- All, once each
found = os.listdir(resource)
equal(len(found), len(set(found)), "names that came twice")
equal(set(found), names, "the names")

# ---- From each place that was told, the same goes on
stream = ctypes.c_void_p(libc.opendir(str(resource).encode()))
places = []
while True:
    at = libc.telldir(stream)
    name = next_name(stream)
    if name is None:
        break
    places.append((at, name))
for at, name in places[::997] + places[-3:] + places[:3]:
    libc.seekdir(stream, at)
    equal(next_name(stream), name, "the name at a place that was told")
libc.closedir(stream)

# ---- While others come and go, those that stay are all there, once
with Client() as c:
    c.send("exec", """
resource, = args
for i in range(0, 3000, 3):
    (resource / f"revision-{i:06}-with-a-longer-name").rmdir()
    (resource / f"new-{i}").mkdir()
""", resource)
    stay = {n for i, n in enumerate(sorted(names)) if n == line.name
            or int(n.split("-")[1]) >= 3000 or int(n.split("-")[1]) % 3}
    for _ in range(10):
        found = [n for n in os.listdir(resource) if n in stay]
        equal(len(found), len(set(found)), "names that came twice")
        equal(set(found), stay, "those that stay")
    c.answer()
d.stop()
EOP
