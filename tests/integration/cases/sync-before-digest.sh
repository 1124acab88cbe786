# SPDX-License-Identifier: Apache-2.0
# A staged file that was synced before its digest was known is sealed as soon as
# it is, and can be published after a power loss; one that wasn't synced can't.
# MANUAL
need_root
need unshare mount
. "$TESTS/integration/tools/py.sh"
APART=$(private_mounts) || skip "no mount namespaces"

IN_FRONT=$APART py <<'EOP'
import uuid

from wf import *


def boot():
    fresh = WORK / f"boot_id.{uuid.uuid4()}"
    fresh.write_text(f"{uuid.uuid4()}\n")
    run("mount", "--bind", fresh, "/proc/sys/kernel/random/boot_id")


def is_sealed(path):
    """Whether the file in the store carries a digest that was synced."""
    ino = path.stat().st_ino
    found = [p for p in STORE.rglob(path.name) if p.stat().st_ino == ino]
    equal(len(found), 1, f"files in the store behind {path}")
    return os.getxattr(found[0], "user.weights.seal")[10] == 1


SRC = checkpoint("src", size=300_000, files=2)
boot()
d = Daemon("durability=writeback")
line = lineage()
synced, plain = staging(line, 1), staging(line, 2)
for stage in synced, plain:
    shutil.copytree(SRC, stage, dirs_exist_ok=True)
files = [f for f in synced.rglob("*") if f.is_file()]
for path in files:
    with open(path, "r+b", buffering=0) as f:
        f.write(path.read_bytes())
        os.fsync(f)  # a writer, so no digest can be there
wait_for(lambda: all(is_sealed(f) for f in files), "seals of what was synced")
wait_for(lambda: re.search(r"(\d+) of \1 files", attr(plain, "progress")),
         "digests")
check(not any(is_sealed(f) for f in plain.rglob("*") if f.is_file()),
      "sealed without a sync")
d.kill()
run("umount", "-l", MNT)
boot()
d = Daemon("durability=writeback")
same_tree(publish(synced), SRC, times=False)
refused("ECANCELED", publish, plain)
says(attr(plain, "error"), "write them again")
d.stop()
EOP
