# SPDX-License-Identifier: Apache-2.0
# What scrub= asks for happens. A move that lacks memory hides no progress of
# write-back, and doesn't make it begin anew.
# OPTIONS: scrub=10s,memory=32M,io_limit=30M
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from residency import *
from wf import *

SIZE = 100 << 20
src = checkpoint("src", size=SIZE)
gen = put(lineage(), 1, src)
# Too large for memory, and on its way to the disk all the same.
lines = settle(gen, r".*no room in memory.*option memory\)")
done = [float(m[1]) for m in
        (re.match(r"writing back .*, ([\d.]+) of [\d.]+ MiB", l)
         for l in lines) if m]
check(done, f"no progress: {lines}")
equal(done, sorted(done), "write-back that begins anew")
equal(attr(gen, "durable"), "yes", "durable")

before = attr(gen, "scrub")
wait_for(lambda: metric("weightfs_scrubs_total") > 0, "it is scrubbed", 60)
wait_for(lambda: ", 0 bad" in attr(gen, "scrub"), "it is said", 10)
check(attr(gen, "scrub") != before, "the time of the scrub")
same_tree(gen, src)
remove(gen)
EOP
