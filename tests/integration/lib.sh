# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# What a case may use. run.sh reads this before the case.
#
#   $MNT      the mount point             $STORE  the store's directory
#   $WORK     a private directory, on the same filesystem as the store
#   $LOG      the daemon's log            $DAEMON the program
#   $DAEMON_PID

skip() { echo "SKIP: $*"; exit 77; }

fail() {
	echo "FAIL: $*"
	local i
	for ((i = 1; i < ${#BASH_SOURCE[@]}; i++)); do
		echo "  ${BASH_SOURCE[i]##*/}:${BASH_LINENO[i - 1]}"
	done
	if [ -s "$LOG" ]; then
		echo "--- the daemon's log, its end"
		tail -n 60 "$LOG"
	fi
	exit 1
}

# need PROGRAM...: the case is skipped where one is missing.
need() {
	local p
	for p; do command -v "$p" >/dev/null || skip "no $p"; done
}

need_root() { [ "$(id -u)" = 0 ] || skip "not root"; }

# private_mounts: prints the command that runs another one with mounts of its
# own, which nobody else sees. In a chroot the usual form is refused; without
# shared mounts a copy of them is private as it is.
private_mounts() {
	if unshare -m true 2>/dev/null; then
		echo "unshare -m"
	elif ! grep -q ' shared:' /proc/self/mountinfo &&
		unshare -m --propagation unchanged true 2>/dev/null; then
		echo "unshare -m --propagation unchanged"
	else
		return 1
	fi
}

# wait_until SECONDS COMMAND...: false if it never succeeds in that time.
wait_until() {
	local deadline=$((SECONDS + $1 + 1))
	shift
	until "$@"; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.05
	done
}

mounted() { grep -q " $MNT fuse" /proc/self/mounts; }

# A mount is served when its root answers.
served() { mounted && [ -n "$(cat "$MNT/.weights/version" 2>/dev/null)" ]; }

# A child that was not waited for yet is a zombie, and gone.
gone() {
	local state
	state=$(sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null) || return 0
	[ -z "$state" ] || [ "$state" = Z ]
}

# start_daemon [-o OPTIONS]: starts it in the foreground mode and waits until
# the mount is served. $WEIGHTFS_TEST_OPTIONS go before, for a whole run.
start_daemon() {
	local options=()
	[ -z "${WEIGHTFS_TEST_OPTIONS:-}" ] ||
		options=(-o "$WEIGHTFS_TEST_OPTIONS")
	"$DAEMON" -f "$STORE" "$MNT" "${options[@]}" "$@" >>"$LOG" 2>&1 &
	DAEMON_PID=$!
	wait_until 20 served_or_gone || fail "the daemon does not serve"
	served || fail "the daemon did not start"
}

served_or_gone() { served || gone "$DAEMON_PID"; }

# run_daemon [ARGUMENT...]: one that should end by itself; its exit status.
run_daemon() {
	timeout 30 "$DAEMON" -f "$STORE" "$MNT" "$@" >>"$LOG" 2>&1
}

unmount() { fusermount3 -u "$1" 2>/dev/null || umount -i "$1"; }

users_of_mount() {
	local p
	for p in $(fuser -m "$MNT" 2>/dev/null); do
		tr '\0' ' ' <"/proc/$p/cmdline"
	done
}

# stop_daemon: unmounts; the daemon must then end with status 0.
stop_daemon() {
	unmount "$MNT" || fail "cannot unmount, in use by: $(users_of_mount)"
	daemon_ends
}

# daemon_ends: it ends by itself within 30 seconds, with status 0.
daemon_ends() {
	local status=0
	wait_until 30 gone "$DAEMON_PID" || fail "the daemon does not end"
	wait "$DAEMON_PID" || status=$?
	DAEMON_PID=
	[ "$status" = 0 ] || fail "the daemon ended with status $status"
}

# kill_daemon: kill -9; the dead mount stays.
kill_daemon() {
	kill -9 "$DAEMON_PID"
	wait_until 10 gone "$DAEMON_PID" || fail "the daemon survives kill -9"
	wait "$DAEMON_PID" 2>/dev/null || true
	DAEMON_PID=
}

# restart_daemon [-o OPTIONS]: in order when it runs, else after its death.
restart_daemon() {
	if [ -n "$DAEMON_PID" ]; then stop_daemon; fi
	start_daemon "$@"
}

# make_checkpoint DIR [ARGUMENT...]: see tests/lib/checkpoint.py.
make_checkpoint() {
	python3 "$TESTS/lib/checkpoint.py" "$@" || fail "no checkpoint made"
}

# stage SOURCE LINEAGE GENERATION: copies a tree into a staging directory.
# LINEAGE is a path below the mount.
stage() {
	mkdir -p "$MNT/$2/.staging/$3" || fail "cannot stage $2 $3"
	cp -r "$1/." "$MNT/$2/.staging/$3/" || fail "cannot copy $1"
}

# publish STAGING TARGET: waits until it is ready, then moves.
publish() {
	cat "$1/.weights/wait" >"$WORK/wait.out" || fail "wait: $1"
	mv -T "$1" "$2" 2>"$WORK/mv.err" ||
		fail "publish: $(cat "$WORK/mv.err")"
}

# put SOURCE LINEAGE GENERATION: all of it, from a directory to a revision.
put() {
	stage "$@"
	publish "$MNT/$2/.staging/$3" "$MNT/$2/$3"
}

# expect_errno NAME COMMAND...: the command fails, and its message has the text
# of that errno.
expect_errno() {
	local name=$1 text status=0
	shift
	text=$(python3 -c 'import errno, os, sys
print(os.strerror(getattr(errno, sys.argv[1])))' "$name")
	LC_ALL=C "$@" >"$WORK/expect.out" 2>&1 || status=$?
	[ "$status" != 0 ] || fail "expected $name, but this went well: $*"
	grep -qF "$text" "$WORK/expect.out" ||
		fail "expected $name of $*, got: $(cat "$WORK/expect.out")"
}

attr_of() { getfattr --absolute-names --only-values -n "user.weights.$2" "$1"; }

# expect_sentence PATH REGEX: user.weights.error of PATH matches.
expect_sentence() {
	local said
	said=$(attr_of "$1" error 2>&1) || fail "no sentence on $1: $said"
	grep -Eq "$2" <<<"$said" || fail "expected /$2/ on $1, it says: $said"
}

# expect_log REGEX: lines of the log that match are no reason to fail.
expect_log() { EXPECTED_LOG+=("$1"); }

# same_tree A B: names, kinds, modes, times and contents are equal.
same_tree() {
	diff -r --no-dereference "$1" "$2" &&
		diff <(tree_facts "$1") <(tree_facts "$2")
}

tree_facts() {
	(cd "$1" && find . -mindepth 1 \( -type d -printf '%p %y %m\n' -o \
		-printf '%p %y %m %s %T@ %l\n' \) | sort)
}
