# shellcheck shell=dash
# SPDX-License-Identifier: Apache-2.0
#
# What runs in the guest, below busybox. /settings has FS, OPTIONS, POINTS and
# SEED; /ref/N is the tree that generation N is copied from. Disks:
#
#   vda  the store's, below dm-log-writes     vdb  that log
#   vdc  as vda was before; the log is replayed onto it
#   vdd  what is written to vdc while it is looked at, and then forgotten
#
# First the scenario, with a mark in the log for each thing that was promised
# by then. Then, for each of many points in the log: what the disk may hold
# after a power loss at that point is mounted, and must keep the promises.
LINE=t/n/r/main
L=/mnt/$LINE
LOG=/tmp/log
PID=
FAILURES=0
FAILURES_MAX=5
POINT=scenario

say() { echo "VM: $*"; }

fail() {
	say "FAIL at $POINT: $*"
	sed 's/^/VM:   compare: /' /tmp/compare 2>/dev/null | head -n 8
	tail -n 12 $LOG | sed 's/^/VM:   log: /'
	FAILURES=$((FAILURES + 1))
	[ $FAILURES -lt $FAILURES_MAX ] || { say "too many failures"; exit 1; }
}

die() { FAILURES_MAX=0; fail "$@"; exit 1; }

# wait_for SECONDS COMMAND...
wait_for() {
	deadline=$(($(date +%s) + $1))
	shift
	until "$@"; do
		[ "$(date +%s)" -lt $deadline ] || return 1
		sleep 0.1
	done
}

# By their paths: newer busybox has smaller ones of its own, and prefers them.
attr_of() { /bin/getfattr --absolute-names --only-values -n "user.weights.$2" "$1"; }

# ---- The daemon ----

# The kernel tells boots apart by a file; another one is bound over it.
new_boot() {
	cat /proc/sys/kernel/random/uuid >/tmp/uuid
	cat /tmp/uuid >/tmp/boot_id
}

served() { [ -n "$(head -n 1 /mnt/.weights/version 2>/dev/null)" ]; }
ended() { ! grep -q '^State:.[^Z]' "/proc/$PID/status" 2>/dev/null; }
served_or_ended() { served || ended; }

start_daemon() {
	: >$LOG
	weightfs -f /disk/store /mnt -o "$OPTIONS" >>$LOG 2>&1 &
	PID=$!
	wait_for 60 served_or_ended
	served
}

stop_daemon() {
	wait_for 20 umount /mnt 2>/dev/null ||
		{ fail "cannot unmount"; kill -9 $PID; umount -l /mnt; }
	wait_for 60 ended || { fail "the daemon does not end"; kill -9 $PID; }
	wait $PID || fail "the daemon ended with status $?"
}

mount_disk() { mount -t "$FS" -o "noatime$NOUUID" "$1" /disk; }

# ---- The scenario ----

mark() { dmsetup message logged 0 mark "$1" && say "mark $1"; }

copy() {
	mkdir -p "$L/.staging/$1"
	cp -r "/ref/$1/." "$L/.staging/$1/"
}

# As who knows the size first does: a power cut may leave zeros in it.
copy_presized() {
	mkdir -p "$L/.staging/$1"
	(cd "/ref/$1" && find . -type d -exec mkdir -p "$L/.staging/$1/{}" \; &&
		find . -type f | while read -r f; do
			truncate -s "$(stat -c %s "$f")" "$L/.staging/$1/$f"
			dd if="$f" of="$L/.staging/$1/$f" bs=64k conv=notrunc \
				2>/dev/null
		done)
}

publish() {
	cat "$L/.staging/$1/.weights/wait" >/tmp/wait 2>&1
	mv -T "$L/.staging/$1" "$L/$1"
}

must_publish() { publish "$1" 2>/tmp/mv || die "publish $1: $(cat /tmp/mv)"; }

is_durable() { [ "$(attr_of "$L/$1" durable)" = yes ]; }

must_be_durable() {
	timeout 120 cat "$L/$1/.weights/wait" >/tmp/wait
	is_durable "$1" || die "$1 does not become durable: $(cat /tmp/wait)"
}

# fsync makes a digest durable once there is one.
digested() {
	attr_of "$L/.staging/$1" progress |
		grep -q ', \([0-9]*\) of \1 files'
}

must_be_digested() {
	wait_for 60 digested "$1" ||
		die "no digests: $(attr_of "$L/.staging/$1" progress)"
}

# notice: marks what became durable by itself.
PENDING=
notice() {
	for g in $PENDING; do
		if is_durable "$g"; then
			PENDING=$(echo " $PENDING " | sed "s/ $g / /")
			mark "durable:$g"
		fi
	done
}

# put_now N COPY: published as soon as it can be.
put_now() {
	"$2" "$1"
	must_publish "$1"
	mark "published:$1"
	PENDING="$PENDING $1"
	notice
}

scenario() {
	mark begin
	put_now 1 copy
	must_be_durable 1
	notice
	# An operation that is running, and its record.
	/bin/setfattr -n user.weights.residency -v cold "$L/1" 2>/dev/null &&
		mark cold:1

	# While this one is written back, more is written.
	put_now 2 copy_presized
	copy 3
	mark staged:3
	notice
	must_be_digested 3
	find "$L/.staging/3" -depth | xargs sync || die "cannot sync 3"
	mark synced:3
	copy_presized 4
	notice
	must_be_digested 4
	sync "$L/.staging/4/model-00001-of-00002.safetensors" ||
		die "cannot sync a file of 4"
	mark synced-file:4:model-00001
	mark staged:4

	put_now 5 copy
	must_be_durable 5
	notice
	mark removing:5
	/bin/setfattr -n user.weights.remove -v 5 "$L/5" || die "cannot remove"
	mark removed:5

	copy 6
	mark staged:6
	must_be_durable 2
	notice
	put_now 7 copy_presized
	sync "$L/7/model-00002-of-00002.safetensors" ||
		die "cannot sync a published file"
	mark synced-file:7:model-00002
	mark stopping
	stop_daemon
	mark stopped
}

run_scenario() {
	dmsetup create logged --table \
		"0 $(cat /sys/block/vda/size) log-writes /dev/vda /dev/vdb" ||
		die "no dm-log-writes"
	mount_disk /dev/mapper/logged || die "cannot mount"
	new_boot
	start_daemon || die "the daemon does not start"
	grep '^passthrough' /mnt/.weights/health | sed 's/^/VM: /'
	scenario
	umount /disk || die "cannot unmount the disk"
	dmsetup remove logged
}

# ---- What must be so afterwards ----

synced_files() { sed -n "s/^synced-file:$1://p" /tmp/promised; }
promised() { grep -qx "$1" /tmp/promised; }

compare() { compare_tree "/ref/$1" "$L/$1" >/tmp/compare; }

# Each name that isn't whole stands in the sentence, or a tensor of it does.
named() {
	while read -r _ name _; do
		name=${name%:}
		case $2:$name in
		*"'$name'"*:* | *"'$name/"*:* | *layers.*:*.safetensors) ;;
		*) return 1 ;;
		esac
	done <"$1"
}

wait_for_all() {
	timeout 120 cat "$L/$1/.weights/wait" >/tmp/wait 2>&1
	[ $? -lt 124 ] || fail "$1 does not settle: $(tail -n 1 /tmp/wait)"
}

check_published() {
	# Whoever comes before it settled waits, or is refused.
	compare "$1"
	whole=$?
	[ $whole -lt 2 ] || fail "$1 shows at once what it must not"
	wait_for_all "$1"
	if [ $whole != 0 ]; then
		compare "$1"
		whole=$?
	fi
	case $whole in
	0)
		[ "$(attr_of "$L/$1" availability)" = ready ] ||
			fail "$1 is whole and not ready:" \
				"$(attr_of "$L/$1" error 2>&1)"
		;;
	1)
		DEGRADED=$((DEGRADED + 1))
		! promised "durable:$1" || fail "$1 was durable and is damaged"
		[ "$(attr_of "$L/$1" availability)" = degraded ] ||
			fail "$1 is damaged and not degraded"
		named /tmp/compare "$(attr_of "$L/$1" error)" ||
			fail "$1: no name in: $(attr_of "$L/$1" error 2>&1)"
		for file in $(synced_files "$1"); do
			! grep -q "$file" /tmp/compare ||
				fail "$file of $1 was synced and is damaged"
		done
		say "$1 is degraded: $(attr_of "$L/$1" error | cut -c -100)..."
		;;
	*) fail "$1 shows what it must not" ;;
	esac
}

check_refused() {
	grep -qi cancel /tmp/mv ||
		fail "$1 is refused with: $(cat /tmp/mv)"
	sentence=$(attr_of "$S" error 2>&1)
	case $sentence in
	*model* | *config* | *gitattributes*) ;;
	*) fail "$1 is refused without a file's name: $sentence" ;;
	esac
	for file in $(synced_files "$1"); do
		case $sentence in
		*"$file"*) fail "$file of $1 was synced: $sentence" ;;
		esac
	done
	! promised "synced:$1" || fail "$1 was synced: $sentence"
	REFUSED=$((REFUSED + 1))
}

# Writing the files again makes a refused tree one to be published.
write_again() {
	cp -r "/ref/$1/." "$S/" || fail "cannot write $1 again"
	publish "$1" 2>/tmp/mv || fail "$1, written again: $(cat /tmp/mv)"
	compare "$1" || fail "$1, written again, is not equal"
}

check_staged() {
	S=$L/.staging/$1
	if publish "$1" 2>/tmp/mv; then
		compare "$1"
		case $? in
		0) ;;
		1)
			# The copy was going on, so its names may be missing.
			! grep -qv '^missing' /tmp/compare ||
				fail "$1 was published damaged"
			! promised "staged:$1" ||
				fail "$1 was published without names it had"
			;;
		*) fail "$1 was published, and it is wrong" ;;
		esac
	else
		check_refused "$1"
		[ "$1" != 6 ] || write_again "$1"
	fi
}

check_generation() {
	if promised "removed:$1"; then
		[ ! -e "$L/$1" ] || fail "$1 was removed and is there"
	elif [ -e "$L/$1" ]; then
		check_published "$1"
	elif promised "published:$1"; then
		promised "removing:$1" || fail "$1 was published and is gone"
	elif [ -e "$L/.staging/$1" ]; then
		check_staged "$1"
	elif promised "synced:$1"; then
		fail "$1 was synced and is gone"
	fi
}

check_store() {
	promised stopping || grep -q '^unclean boots: [1-9]' \
		/mnt/.weights/health || fail "this boot is not seen as unclean"
	for g in 1 2 3 4 5 6 7; do check_generation $g; done
	# And it goes on.
	copy 8 2>/tmp/cp || fail "cannot stage: $(cat /tmp/cp)"
	publish 8 2>/tmp/mv || fail "cannot publish: $(cat /tmp/mv)"
	compare 8 || fail "what is published then is not equal"
}

# ---- Points ----

# snapshot COMMAND: runs it with vdc as it is; what it writes is forgotten.
snapshot() {
	dmsetup create snap --table \
		"0 $(cat /sys/block/vdc/size) snapshot /dev/vdc /dev/vdd N 16" ||
		die "no dm-snapshot"
	"$@"
	dmsetup remove snap || die "the snapshot is in use"
}

mounted_store() {
	if ! mount_disk /dev/mapper/snap; then
		fail "$FS itself does not mount"
		return
	fi
	new_boot
	if start_daemon; then
		"$@"
		stop_daemon
	else
		fail "the daemon does not start"
		kill -9 $PID
	fi
	umount /disk || die "the disk is in use"
}

look_at() {
	[ "$FLUSHED" = "$END" ] || replay_log /dev/vdb write /dev/mapper/snap \
		"$FLUSHED" "$END" "$LUCK" || die "cannot replay"
	mounted_store check_store
}

check_points() {
	at=0 n=0 DEGRADED=0 REFUSED=0
	replay_log /dev/vdb points "$POINTS" "$SEED" >/tmp/points ||
		die "cannot read the log"
	say "$(wc -l </tmp/points) points of" \
		"$(tail -n 1 /tmp/points | cut -d' ' -f2) entries"
	while read -r FLUSHED END LUCK what; do
		n=$((n + 1))
		replay_log /dev/vdb marks "$END" >/tmp/promised
		POINT="entry $END, after $(tail -n 1 /tmp/promised)"
		[ "$LUCK" = 0 ] || POINT="$POINT (cache lost, $LUCK)"
		replay_log /dev/vdb write /dev/vdc $at "$FLUSHED" ||
			die "cannot replay"
		at=$FLUSHED
		snapshot look_at
		read -r up _ </proc/uptime
		say "$up s: $what, $POINT"
	done </tmp/points
	say "$n points; $DEGRADED times a revision was degraded," \
		"$REFUSED times a staged tree refused"
}

sysctl -qw kernel.printk="3 4 1 3" 2>/dev/null
cat /proc/sys/kernel/random/boot_id >/tmp/boot_id
mount --bind /tmp/boot_id /proc/sys/kernel/random/boot_id
NOUUID=
[ "$FS" != xfs ] || NOUUID=,nouuid
run_scenario
check_points
. /flip.sh
say "$FAILURES failures"
[ $FAILURES = 0 ]
