# SPDX-License-Identifier: Apache-2.0
# A published revision reads and maps right in every way, and never changes.
# OPTIONS: durability=none
. "$TESTS/integration/tools/py.sh"
py <"$TESTS/integration/tools/published_reads.py"
