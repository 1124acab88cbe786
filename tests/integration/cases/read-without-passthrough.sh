# SPDX-License-Identifier: Apache-2.0
# Where the daemon moves every byte itself, reads and maps are the same.
# OPTIONS: durability=none,passthrough=off
. "$TESTS/integration/tools/py.sh"
py <"$TESTS/integration/tools/published_reads.py"
