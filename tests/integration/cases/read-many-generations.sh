# SPDX-License-Identifier: Apache-2.0
# A directory of many generations lists all of them in numeric order, while some
# are published, removed and staged.
# MANUAL
# TIMEOUT: 300
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

MANY = 20_000
d = Daemon("durability=none")
line = lineage()
stages = line / ".staging"
for i in range(1, MANY + 1):
    (stages / str(i)).mkdir()
    # What the kernel remembers costs descriptors.
    if i % 4000 == 0:
        d.stop()
        d.restart()
for i in range(1, 400, 2):
    (stages / str(i) / "config.json").write_text("{}\n")
    os.rename(stages / str(i), line / str(i))


def numbers(path):
    """The numbers that a directory lists, in its order."""
    with os.scandir(path) as entries:
        found = [int(e.name) for e in entries if e.name.isdigit()]
    check(all(a < b for a, b in zip(found, found[1:])), "in numeric order")
    return found


equal(numbers(line), list(range(1, 400, 2)), "what is published")
equal(numbers(stages), [i for i in range(1, MANY + 1)
                        if i > 400 or i % 2 == 0], "what is staged")
check(".staging" in os.listdir(line), "no .staging")

# ---- Every third one goes, others come, some go over; the rest is untouched
with Client() as c:
    c.send("exec", """
stages, line = args
for i in range(3, 3000, 3):
    if i > 400 or i % 2 == 0:
        (stages / str(i)).rmdir()
    elif i < 400:
        remove(line / str(i))
    (stages / str(20_000 + i)).mkdir()
    if i % 2 == 0:
        os.rename(stages / str(20_000 + i), line / str(20_000 + i))
""", stages, line)
    published = {i for i in range(1, 400, 2) if i % 3}
    staged = {i for i in range(1, MANY + 1)
              if (i > 400 or i % 2 == 0) and (i % 3 or i >= 3000)}
    for _ in range(20):
        check(published <= set(numbers(line)), "a published one is missing")
        check(staged <= set(numbers(stages)), "a staged one is missing")
    c.answer()
come = range(20_003, 23_000, 3)
equal(numbers(line), sorted(published | {i for i in come if i % 2 == 0}),
      "what is published then")
equal(numbers(stages), sorted(staged | {i for i in come if i % 2}),
      "what is staged then")

# ---- A listing goes on from any place that it told
fd = os.open(stages, os.O_RDONLY | os.O_DIRECTORY)
libc.fdopendir.restype = libc.readdir.restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long
stream = ctypes.c_void_p(libc.fdopendir(fd))


def next_name():
    entry = libc.readdir(stream)
    return ctypes.string_at(entry + 19).decode() if entry else None


seen, told = [], {}
while name := next_name():
    seen.append(name)
    told[name] = libc.telldir(stream)
equal(len(seen), len(set(seen)), "names")
for at in (5000, 17, 12_345, 0, len(seen) - 2):
    libc.seekdir(stream, ctypes.c_long(told[seen[at]]))
    equal(next_name(), seen[at + 1], f"behind {seen[at]}")
libc.closedir(stream)
d.stop()
EOP
