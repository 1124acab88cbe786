# SPDX-License-Identifier: Apache-2.0
# mount.weightfs and umount.weightfs, called as mount(8) and umount(8) do.
# MANUAL
need_root
need findmnt meson

BUILD=$(cd "$(dirname "$DAEMON")/.." && pwd)
DESTDIR=$WORK/root meson install -C "$BUILD" --no-rebuild --quiet \
	>"$WORK/install.out" 2>&1 || fail "install: $(cat "$WORK/install.out")"

# All of it is installed, and nothing of a libfuse that was built along.
for f in weightfs mount.weightfs umount.weightfs umount.fuse.weightfs \
	weightfs.8 mount.weightfs.8 umount.weightfs.8 weightfs@.service; do
	[ -n "$(find "$WORK/root" -name "$f*" -print -quit)" ] ||
		fail "$f is not installed"
done
[ -z "$(find "$WORK/root" -name '*fuse3*' -print -quit)" ] ||
	fail "libfuse is installed along"

MOUNT=$(find "$WORK/root" -name mount.weightfs)
UMOUNT=$(find "$WORK/root" -name umount.weightfs)
export WEIGHTFS=$DAEMON

# Wrong commands: status 1. A mount that fails: 32, with a reason.
status() { local s=0; "$@" >"$WORK/out" 2>&1 || s=$?; echo "$s"; }
[ "$(status "$MOUNT" "$STORE")" = 1 ] || fail "no mount point, but status not 1"
[ "$(status "$MOUNT" "$STORE" "$MNT" -x)" = 1 ] || fail "-x is known?"
[ "$(status "$MOUNT" "$STORE" "$WORK/absent")" = 32 ] || fail "absent: not 32"
[ "$(status "$MOUNT" "$STORE" "$MNT" -o rw,no_such=1)" = 32 ] ||
	fail "unknown option: not 32"
grep -q no_such "$WORK/out" || fail "the option is not named"
! mounted || fail "mounted all the same"

# -f mounts nothing.
[ "$(status "$MOUNT" "$STORE" "$MNT" -f -v -o rw)" = 0 ] || fail "-f"
! mounted || fail "-f mounts"

# What is for mount(8) alone is taken out; it returns when the mount serves.
"$MOUNT" "$STORE" "$MNT" -o \
	"rw,nofail,_netdev,x-systemd.automount,nosuid,nodev,log=$LOG" ||
	fail "status $? of mount.weightfs"
served || fail "mount.weightfs returned before the mount was served"
grep -q " $MNT fuse.weightfs [^ ]*nosuid,nodev" /proc/self/mounts ||
	fail "not nosuid,nodev: $(grep " $MNT " /proc/self/mounts)"
[ "$(findmnt -n -o SOURCE --mountpoint "$MNT")" = "$STORE" ] ||
	fail "the source is not the store"

# A busy mount is not unmounted, and goes on.
mkdir -p "$MNT/t/n/r/v"
(cd "$MNT/t" && [ "$(status "$UMOUNT" "$MNT")" = 32 ]) ||
	fail "unmounted though busy"
served || fail "the refused unmount broke the mount"

# After umount.weightfs the store is free at once, every time.
for i in 1 2 3; do
	"$UMOUNT" "$MNT" || fail "status $? of umount.weightfs"
	! mounted || fail "still mounted"
	"$MOUNT" "$STORE" "$MNT" -o "log=$LOG" || fail "the store is not free"
done
"$UMOUNT" "$MNT" -v >"$WORK/out" || fail "the last umount.weightfs"
grep -q 'has ended' "$WORK/out" || fail "it did not wait for the daemon"
