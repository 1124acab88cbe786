# SPDX-License-Identifier: Apache-2.0
# HOT is really locked in memory and COLD really isn't: the kernel takes back
# what it can, and mincore shows what stayed.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from payers import Group
from residency import *
from wf import *

need_root()
SIZE = 24 << 20
src = checkpoint("src", size=SIZE, files=2)
total = sum(p.stat().st_size for p in src.rglob("*") if p.is_file())


def is_hot(gen, files, group):
    group.reclaim()
    for name, below in files.items():
        equal(resident(below), 1.0, f"{name} in memory")
        equal(attr(gen / name, "residency"), "hot", name)
    equal(attr(gen, "residency"), "hot", "the revision")
    equal(float(attr(gen, "hot_ratio")), 1.0, "hot_ratio")
    check(total <= int(attr(gen, "pinned_bytes")) < total + (64 << 20),
          f"pinned_bytes is {attr(gen, 'pinned_bytes')}")
    equal(metric("weightfs_pinned_bytes"), int(attr(gen, "pinned_bytes")),
          "of the metrics")


def is_cold(gen, files, group):
    group.reclaim()
    for name, below in files.items():
        equal(resident(below), 0.0, f"{name} in memory")
        equal(attr(gen / name, "residency"), "cold", name)
    equal(attr(gen, "residency"), "cold", "the revision")
    equal(float(attr(gen, "hot_ratio")), 0.0, "hot_ratio")
    equal(attr(gen, "pinned_bytes"), "0", "pinned_bytes")
    equal(metric("weightfs_pinned_bytes"), 0, "of the metrics")


def follow(gen, target):
    before = operations()
    move(gen, target)
    settle(gen)
    made = [i for i in operations() if i not in before]
    equal(len(made), 1, "operations")
    text = operation_text(made[0])
    equal(text["operation_id"], made[0], "its id")
    equal(text["target_residency"], target, "its target")
    equal(text["message"], "completed", "its message")
    equal(operation(gen), None, "one that runs")
    check("user.weights.operation" not in os.listxattr(gen), "it is listed")


with Group("residency", 4 << 30) as group, Daemon() as d:
    (group.path / "cgroup.procs").write_text(str(d.pid))
    gen = put(lineage(), 7, src)
    settle(gen)
    equal(attr(gen, "durable"), "yes", "durable")
    files = {p.name: backing(gen / p.name) for p in src.glob("*.safetensors")}
    comes_to(gen, "hot")
    is_hot(gen, files, group)
    for _ in range(2):
        follow(gen, "cold")
        is_cold(gen, files, group)
        follow(gen, "hot")
        is_hot(gen, files, group)
        same_tree(gen, src)
    # A step to where it is already.
    follow(gen, "hot")
    follow(gen, "cold")
    follow(gen, "cold")
    # The bytes come from the disk now, and are the same.
    same_tree(gen, src)
    tensor = gen / ".weights" / "tensors" / "layers.0.a.weight"
    equal(attr(tensor, "residency"), "cold", "a tensor")
    with open(MNT / ".weights" / "wait", "rb", buffering=0) as f:
        check(f.read(4096).endswith(b"ready\n"), "the mount's wait")
EOP
