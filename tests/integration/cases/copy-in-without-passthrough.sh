# SPDX-License-Identifier: Apache-2.0
# Staged files behave the same where the daemon moves every byte itself.
# OPTIONS: durability=none,passthrough=off
. "$TESTS/integration/tools/py.sh"
py <"$TESTS/integration/tools/staged_calls.py"
