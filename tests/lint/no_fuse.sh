#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# no_fuse.sh SOURCE-ROOT BUILD-DIR: core/ builds and passes a unit test, and the
# example runs, in a build that knows nothing of FUSE.
set -eu
src=$1 dir=$2
[ -e "$dir/build.ninja" ] ||
	meson setup "$dir" "$src" -Dfuse=disabled -Dtests=enabled >"$dir.log" ||
	{ cat "$dir.log"; exit 1; }
ninja -C "$dir" core/libcore.a tests/test_map examples/without_fuse >"$dir.log" 2>&1 ||
	{ cat "$dir.log"; exit 1; }
"$dir/tests/test_map"
"$dir/examples/without_fuse"
! nm -u "$dir/core/libcore.a" | grep ' fuse_'
