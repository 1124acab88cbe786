# shellcheck shell=dash
# SPDX-License-Identifier: Apache-2.0
#
# Read by guest.sh at its end: bytes of a published file change on the disk
# alone. Generation 1 has one shard of two chunks; the second one is hit.
SHARD=model.safetensors
HIT=1100 # the page, of 4 KiB

# The file in the store that the shard of 1 is.
backing_file() {
	find /disk/store -type f -name $SHARD | while read -r f; do
		! cmp -s "$f" "/ref/1/$SHARD" || echo "$f"
	done | head -n 1
}

# block_of FILE: where its page HIT is on the device, in pages.
block_of() {
	filefrag -v -b4096 "$1" | tr -d ':.' | awk -v hit=$HIT '
		$1 ~ /^[0-9]+$/ && hit >= $2 && hit <= $3 {
			print $4 + hit - $2
		}'
}

flip() {
	printf 'these bytes were changed' | dd of=/dev/mapper/snap bs=1 \
		seek=$(($1 * 4096 + 77)) conv=notrunc,fsync 2>/dev/null
}

has_scrub() { attr_of "$L/1" scrub >/dev/null 2>&1; }

scrub() {
	/bin/setfattr -n user.weights.scrub -v 1 "$L/1" || fail "cannot scrub"
	wait_for_all 1
}

must_be() {
	[ "$(attr_of "$L/1" availability)" = "$1" ] ||
		fail "$2: it is not $1: $(attr_of "$L/1" error 2>&1)"
}

# From the disk, not from what was cached.
must_be_equal() {
	echo 3 >/proc/sys/vm/drop_caches
	compare 1 || fail "$1: it is not equal"
}

# No good copy anywhere: that range is refused, the rest served.
check_degraded() {
	scrub
	must_be degraded "scrubbed"
	compare 1
	[ $? = 1 ] || fail "flipped bytes were served, or nothing is missing"
	say "$(cat /tmp/compare)"
	[ "$(wc -l </tmp/compare)" = 1 ] && grep -q "$SHARD" /tmp/compare ||
		fail "more is refused than is damaged"
	named /tmp/compare "$(attr_of "$L/1" error)" ||
		fail "no name in: $(attr_of "$L/1" error 2>&1)"
}

check_repair() {
	mkdir -p "$L/.staging/90"
	cp -r /ref/1/. "$L/.staging/90/"
	/bin/setfattr -n user.weights.repair -v 1 "$L/1" || fail "cannot repair"
	wait_for_all 1
	must_be ready "repaired"
	must_be_equal "repaired"
}

# A copy in memory is good while the disk's is not: it is written again.
check_mended() {
	compare 1 || fail "it is not equal"
	flip "$BLOCK"
	scrub
	must_be ready "mended"
	must_be_equal "mended"
}

flip_checks() {
	if ! has_scrub; then
		say "no scrub here: flipped bits are not looked for"
		return
	fi
	check_degraded
	check_repair
}

flip_while_cached() { ! has_scrub || check_mended; }

# The damage is there before the daemon starts, or comes while it runs.
flip_and_look() {
	mount_disk /dev/mapper/snap || die "cannot mount"
	file=$(backing_file)
	[ -n "$file" ] || die "no file of 1 in the store"
	BLOCK=$(block_of "$file")
	umount /disk
	[ -n "$BLOCK" ] || die "the file has no such page"
	[ "$1" != flip_checks ] || flip "$BLOCK"
	mounted_store "$1"
}

POINT="bytes changed on the disk"
snapshot flip_and_look flip_checks
POINT="bytes changed on the disk while they are cached"
snapshot flip_and_look flip_while_cached
