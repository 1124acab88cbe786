# SPDX-License-Identifier: Apache-2.0
# Odd and malformed checkpoints get their verdict through a real publish.
# OPTIONS: durability=none
# TIMEOUT: 240
#
# CASES is a program that writes them and says what is right, see below.
. "$TESTS/integration/tools/py.sh"
# Some of the files are named after errors.
expect_log "info: .*refused '"
CASES=${CASES:-$(find "$TESTS/../.." -mindepth 3 -maxdepth 3 \
	-path '*/cases/make_cases.py' -print -quit)}
[ -f "$CASES" ] || skip "no generator of cases (CASES=)"
python3 "$CASES" "$WORK/cases" >"$WORK/cases.out" ||
	fail "the generator: $(cat "$WORK/cases.out")"
py "$WORK/cases" <"$TESTS/integration/tools/publish_cases.py"
