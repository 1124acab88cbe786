# SPDX-License-Identifier: Apache-2.0
# System calls on staged files do what they do on a local disk.
# OPTIONS: durability=none
. "$TESTS/integration/tools/py.sh"
py <"$TESTS/integration/tools/staged_calls.py"
