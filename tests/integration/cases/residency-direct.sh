# SPDX-License-Identifier: Apache-2.0
# O_DIRECT goes past the memory that holds a HOT file, so it is refused, unless
# it was allowed; of a COLD file it reads the disk.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from residency import *
from wf import *

src = checkpoint("src", size=4 << 20)
probe = os.open(WORK / "probe", os.O_CREAT | os.O_RDWR)
try:
    os.close(os.open(WORK / "probe", os.O_RDONLY | os.O_DIRECT))
except OSError:
    skip("this filesystem has no O_DIRECT")


def direct(path):
    return run("dd", f"if={path}", f"of={WORK}/copy", "bs=1M", "iflag=direct",
               "status=none", status=None)


def reads(path):
    equal(direct(path), "", "dd")
    equal(sha(WORK / "copy"), sha(src / path.name), "what dd read")


with Daemon() as d:
    gen = put(lineage(), 1, src)
    settle(gen)
    comes_to(gen, "hot")
    file = gen / "model.safetensors"
    says(direct(file), "Invalid argument")
    says(attr(gen, "error"), "memory", "direct")
    refused("EINVAL", os.open, file, os.O_RDONLY | os.O_DIRECT)
    equal(sha(file), sha(src / file.name), "read through the cache")
    # Names of other kinds of opens say nothing of it.
    os.close(os.open(file, os.O_RDONLY | os.O_NOATIME | os.O_NONBLOCK))

    move(gen, "cold")
    settle(gen)
    comes_to(gen, "cold")
    reads(file)
    # What has it open that way is a reader, too.
    fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    equal(attr(gen, "leases"), "1", "leases")
    os.close(fd)
    move(gen, "hot")
    settle(gen)
    comes_to(gen, "hot")
    says(direct(file), "Invalid argument")

    # A staged file isn't held to anything.
    stage = staging(lineage(), 2, src)
    reads(stage / "model.safetensors")

d.restart("direct=allow")
comes_to(gen, "hot")
reads(file)
d.stop()
EOP
