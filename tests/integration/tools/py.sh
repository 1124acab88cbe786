# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# py: runs the Python program on stdin, which may import wf (wf.py beside this
# file). Its failure fails the case, and its skip() skips it. IN_FRONT=COMMAND
# runs it below that.

py() {
	local status=0
	cat >"$WORK/case.py"
	MNT=$MNT STORE=$STORE WORK=$WORK LOG=$LOG DAEMON=$DAEMON TESTS=$TESTS \
		DAEMON_PID=$DAEMON_PID PYTHONDONTWRITEBYTECODE=1 \
		APART="$(private_mounts || true)" \
		PYTHONPATH=$TESTS/integration/tools \
		${IN_FRONT:-} python3 "$WORK/case.py" "$@" </dev/null || status=$?
	[ "$status" != 77 ] || exit 77
	[ "$status" = 0 ] || fail "the program of the case ended with $status"
}
