# SPDX-License-Identifier: Apache-2.0
# A lease is one record for all opens, and an open in steady state writes nothing.
# OPTIONS: durability=none
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src")
line = lineage()
for n in range(1, 6):
    gen = put(line, n, SRC)
    before = metric("weightfs_lease_writes_total")
    held = [open(gen / "model.safetensors", "rb") for _ in range(50)]
    equal(attr(gen, "leases"), "1", "one lease for all opens")
    first = metric("weightfs_lease_writes_total") - before
    check(first == 1, f"{first} writes of the lease for the first 50 opens")
    commits = metric("weightfs_metadata_commits_total")
    held += [open(gen / "model.safetensors", "rb") for _ in range(50)]
    held += [open(gen / "config.json", "rb") for _ in range(50)]
    equal(metric("weightfs_lease_writes_total") - before, 1, "writes, steady")
    equal(metric("weightfs_metadata_commits_total"), commits, "commits")
    for f in held:
        f.close()
    # Opened again at once: the record lingers, to spare writes.
    with open(gen / "model.safetensors", "rb"):
        equal(metric("weightfs_lease_writes_total") - before, 1, "reopened")
EOP
