# SPDX-License-Identifier: Apache-2.0
# mount -t weightfs, a line of fstab and umount work as for any filesystem.
# MANUAL
need_root
need unshare mount umount findmnt meson

# A view of the system with the helpers in /sbin, which nobody else sees.
BUILD=$(cd "$(dirname "$DAEMON")/.." && pwd)
cat >"$WORK/inside.sh" <<'END'
set -eu
fail() { echo "FAIL: $*"; exit 1; }
sbin=$(readlink -f /sbin)
mkdir "$WORK/real" "$WORK/sbin"
mount --bind "$sbin" "$WORK/real"
cp -as "$WORK/real/." "$WORK/sbin/"
for f in mount.weightfs umount.weightfs umount.fuse.weightfs; do
	rm -f "$WORK/sbin/$f"
	cp -P "$(find "$WORK/root" -name "$f")" "$WORK/sbin/"
done
mount --bind "$WORK/sbin" "$sbin"
export WEIGHTFS=$DAEMON

mount -t weightfs "$STORE" "$MNT" -o "durability=none,log=$LOG" ||
	fail "mount -t weightfs: $?"
grep -q '^weightfs' "$MNT/.weights/version" || fail "it does not serve"
grep -qx 'durability = none' "$MNT/.weights/config" || fail "options got lost"
[ "$(findmnt -n -o SOURCE "$MNT")" = "$STORE" ] || fail "source"
mkdir -p "$MNT/t/n/r/v/.staging/1"
umount "$MNT" || fail "umount: $?"

# At once again: umount waited until the daemon had let go of the store.
for i in 1 2 3; do
	mount -t weightfs "$STORE" "$MNT" -o "log=$LOG" || fail "again: $?"
	[ -d "$MNT/t/n/r/v/.staging/1" ] || fail "what was staged is gone"
	umount "$MNT" || fail "umount again: $?"
done

echo "$STORE $MNT weightfs noauto,nofail,_netdev,log=$LOG,x-systemd.automount 0 0" \
	>"$WORK/fstab"
mount -T "$WORK/fstab" "$MNT" || fail "a line of fstab: $?"
[ -d "$MNT/t/n/r/v" ] || fail "fstab's mount does not serve"
umount "$MNT" || fail "umount of fstab's mount: $?"

status=0
mount -t weightfs "$STORE" "$MNT" -o no_such_option=7 2>"$WORK/err" || status=$?
[ "$status" = 32 ] || fail "unknown option: status $status"
grep -q no_such_option "$WORK/err" || fail "not named: $(cat "$WORK/err")"
! findmnt "$MNT" >/dev/null || fail "mounted all the same"
END
DESTDIR=$WORK/root meson install -C "$BUILD" --no-rebuild --quiet \
	>"$WORK/install.out" 2>&1 || fail "install: $(cat "$WORK/install.out")"
WORK=$WORK MNT=$MNT STORE=$STORE LOG=$LOG DAEMON=$DAEMON \
	$(private_mounts) bash "$WORK/inside.sh" \
	>"$WORK/inside.out" 2>&1 || fail "$(cat "$WORK/inside.out")"
