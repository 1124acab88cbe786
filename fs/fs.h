/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one mount, which every operation finds through its request.
 *
 * Made by fs_new() before the session, released by fs_free() after it. What
 * isn't marked otherwise is constant while the session runs.
 */
#ifndef FS_FS_H
#define FS_FS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "core/config.h"
#include "core/list.h"
#include "core/weight_tree.h"
#include "fs/compat.h"
#include "fs/passthrough.h"

#define FS_CONTROL_NAME ".weights"
#define FS_STAGING_NAME ".staging"

/* Published things never change; removal invalidates them by a notification. */
#define FS_TIMEOUT_LONG_S 86400.0
/* Others change behind the kernel's back only through another mount's daemon
 * or a publish, and a second of delay is harmless there. */
#define FS_TIMEOUT_SHORT_S 1.0

struct node;
struct node_table;
struct notifier;

struct fs {
	struct weight_store *store;   /* borrowed */
	const struct config *config;  /* borrowed */
	struct fuse_session *session; /* borrowed, set before mounting */
	struct workers *workers;      /* borrowed, the store's */
	struct node_table *nodes;     /* owned */
	struct node *root;            /* one reference */
	struct notifier *notifier;    /* owned */
	struct passthrough passthrough;
	struct timespec started;
	unsigned device_minor; /* of the mount, once it serves; else 0 */
	size_t files_max;      /* known to the kernel, before some have to go */

	atomic_bool stopping; /* waits end with EINTR */
	pthread_mutex_t calls_lock;
	pthread_cond_t calls_idle; /* under calls_lock */
	unsigned calls;         /* under calls_lock; handed out, unanswered */
	struct list calls_long; /* under calls_lock; on a thread each */
	struct list handles;    /* under calls_lock; all that there are */

	/* What could not be had, said once by main(); "" when all is well. */
	struct buf shortcomings;
};

/* Errors: -ENOMEM, -EAGAIN (no thread). */
int fs_new(struct weight_store *store, const struct config *config,
	   struct fs **ret);

/*
 * What goes on in another thread and uses fs is bracketed by these, so that
 * fs_stop() can wait for it.
 */
void fs_begin(struct fs *fs);
void fs_end(struct fs *fs);

/*
 * Makes every wait end, lets the last calls answer, and stops notifications.
 * Call when the session loop has ended and before it is unmounted.
 */
void fs_stop(struct fs *fs);

/* Ends the connection to the kernel by force. */
void fs_cut(struct fs *fs);

void fs_free(struct fs *fs); /* after fs_stop(); accepts NULL */
DEFINE_CLEANUP(struct fs *, fs_free)

#endif
