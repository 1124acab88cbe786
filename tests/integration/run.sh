#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh CASE DAEMON: mounts a new store in a private directory and runs CASE.
#
# A case is a shell file that passes by reaching its end; lib.sh says what it
# may use. Lines of comment in it direct this program:
#
#   # OPTIONS: a=b,c       mount options of the first start
#   # MANUAL               the case starts the daemon itself
#   # TIMEOUT: seconds     default 60 (read by the build)
#   # SERIAL               no other test runs beside it (read by the build)
#
# A line in the daemon's log that looks like trouble fails the case, unless
# the case expects it. Whatever happens, no mount, process or file stays.
set -eu

CASE=$(realpath "$1") DAEMON=$(realpath "$2")
TESTS=$(cd "$(dirname "$0")/.." && pwd)
# Beside the daemon, not in /tmp, which may be in memory: the store's
# filesystem should be the kind that users have.
WORK=$(mktemp -d "$(dirname "$DAEMON")/case.XXXXXX")
chmod 755 "$WORK"
STORE=$WORK/store MNT=$WORK/mnt LOG=$WORK/log
DAEMON_PID=
EXPECTED_LOG=()
mkdir "$MNT"
: >"$LOG"
# A sanitizer's report ends the daemon, and its text is suspicious anyway.
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:${ASAN_OPTIONS:-}
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:${UBSAN_OPTIONS:-}

. "$TESTS/integration/lib.sh"

mounts_below() {
	awk -v w="$WORK/" 'index($5 "/", w) == 1 { print $5 }' \
		/proc/self/mountinfo | sort -r
}

# The processes that name this case's directory, but for this one.
leftovers() {
	grep -lsF "$WORK" /proc/[0-9]*/cmdline | cut -d/ -f3 |
		grep -vx "$$" || true
}

clean_up() {
	status=$?
	trap '' TERM INT HUP
	set +e
	exec 2>/dev/null
	cd /
	local m p
	[ -z "$DAEMON_PID" ] || kill -9 "$DAEMON_PID"
	for p in $(leftovers) $(jobs -p); do kill -9 "$p"; done
	for m in $(mounts_below); do
		umount -i -l "$m" || fusermount3 -u -z "$m"
	done
	wait
	rm -rf --one-file-system "$WORK"
	exit "$status"
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT HUP

log_is_clean() {
	local lines e
	lines=$(grep -Ei '\berror\b|\bwarn(ing)?\b|sanitizer|assert|panic' \
		"$LOG" || true)
	for e in "${EXPECTED_LOG[@]}"; do
		lines=$(grep -Ev "$e" <<<"$lines" || true)
	done
	[ -z "$lines" ] || fail "unexpected in the log: $lines"
}

directive() { sed -n "s/^# $1: *//p" "$CASE" | head -n 1; }

[ -r /dev/fuse ] && [ -w /dev/fuse ] || skip "no /dev/fuse"
need fusermount3 python3

if ! grep -qx '# MANUAL' "$CASE"; then
	options=$(directive OPTIONS)
	start_daemon ${options:+-o "$options"}
fi

cd "$WORK"
. "$CASE"
cd /

# A daemon that is still there must leave when asked, with status 0.
if [ -n "$DAEMON_PID" ] && mounted; then stop_daemon; fi
[ -z "$DAEMON_PID" ] || daemon_ends
log_is_clean
