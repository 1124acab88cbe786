/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles: what fi->fh points at between OPEN and RELEASE, OPENDIR and
 * RELEASEDIR.
 *
 * Ownership: made by an open, freed by its release; the kernel holds it in
 * between. It has a reference to its node.
 *
 * Threads: requests on one handle may run at once; the lock guards what is
 * marked so.
 */
#ifndef FS_HANDLE_H
#define FS_HANDLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "core/buf.h"
#include "core/list.h"
#include "fs/fs.h"

struct derived_file;
struct listing;

struct handle {
	struct list in_open; /* fs->handles */
	struct fs *fs;
	struct node *node;
	int flags;     /* as of open(2) */
	bool opened;   /* the store knows of it: to be closed there */
	bool attached; /* counted in the node's opens */
	int fd;        /* served by reading: our own descriptor; else -1 */
	struct derived_file *derived; /* of a TENSOR */

	pthread_mutex_t lock;
	struct timespec vouched; /* under lock; of a published file that is
				    served by reading: the time of its inode
				    when its bytes were known; 0: unknown */
	struct buf text;         /* under lock; of a control file */
	bool text_made;          /* under lock */
	bool over;               /* under lock; of wait: nothing follows */
	uint64_t line_ms;        /* under lock; when a line was last given */
	struct listing *listing; /* under lock; of a directory */
};

/* Errors: -ENOMEM. */
int handle_new(struct fs *fs, struct node *node, int flags,
	       struct handle **ret);
/* Gives back what it holds, in the order that open took it. */
void handle_close(struct handle *handle); /* accepts NULL */

/* Opens what an O_PATH descriptor stands for. May block. */
int handle_reopen(int path_fd, int flags, int *ret);

static inline struct handle *handle_of(const struct fuse_file_info *fi)
{
	return (struct handle *)(uintptr_t)fi->fh;
}

#endif
