#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The first process of the guest: makes it a system, runs guest.sh, ends it.
/bin/busybox --install -s /bin
echo
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
# One that fails is missed by whoever needs it.
while read -r module; do insmod "/modules/$module"; done \
	</modules/order
mkdir -p /disk /mnt /run
ip link set lo up
# Without udev, who makes a device makes its node.
export DM_DISABLE_UDEV=1
. /settings
sh /guest.sh
echo "VM: exit $?"
poweroff -f
