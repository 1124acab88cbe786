/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mount: the session from before it is mounted until after it is gone.
 *
 * Failures: a negative errno, with one sentence for a person in why.
 */
#ifndef FS_MOUNT_H
#define FS_MOUNT_H

#include <stdbool.h>

#include "core/buf.h"
#include "fs/fs.h"

struct mount_options {
	const char *store;      /* as shown in the list of mounts */
	const char *mountpoint; /* absolute */
	bool foreground;        /* SIGHUP ends it, as closing a terminal does */
	/* Called once from another thread when the mount serves. */
	void (*ready)(void *arg);
	/* Called for SIGHUP in the background, from another thread. */
	void (*hangup)(void *arg);
	void *arg;
};

/*
 * Whether something can be mounted there. Clears a dead mount of weightfs that
 * is in the way. Errors: -ENOENT, -ENOTDIR, -EBUSY a live one, -ENODEV no
 * /dev/fuse, -EPERM.
 */
int mount_prepare(const char *mountpoint, struct buf *why);

/*
 * To be called before the first thread is started: from here on only
 * mount_serve() gets the signals that end it.
 */
void mount_block_signals(void);

/*
 * Mounts, serves until it is unmounted or a signal comes, answers what is on
 * its way, and unmounts. Frees fs in any case, while its session is there.
 */
int mount_serve(struct fs *fs, const struct mount_options *options,
		struct buf *why);

#endif
