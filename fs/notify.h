/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifier: tells the kernel to forget names of generations that are gone.
 *
 * A notification may wait for a lock that another request holds, so it is sent
 * from a thread of its own and by nobody else, and nobody waits for it without
 * a limit.
 *
 * Threads: any. Locks: one of its own, innermost, not held while notifying.
 */
#ifndef FS_NOTIFY_H
#define FS_NOTIFY_H

#include "fs/fs.h"

/* Starts the thread. Errors: -ENOMEM, -EAGAIN. */
int notifier_new(struct fs *fs, struct notifier **ret);

/*
 * Drops what is queued and joins the thread. The session is still there and
 * the loop has ended. Accepts NULL.
 */
void notifier_free(struct notifier *notifier);

/*
 * Soon: makes the kernel forget some files that nobody has open, because the
 * descriptors behind them run out.
 */
void notifier_shrink(struct notifier *notifier);

/* A published group left the tree. For weight_tree_on_removed(). */
void notifier_removed(struct notifier *notifier, struct weight_group *group);

/* The same, and waits until the kernel knows, for at most ms. */
void notifier_removed_wait(struct notifier *notifier,
			   struct weight_group *group, unsigned ms);

#endif
