/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passthrough: backing files that the kernel reads, writes and maps itself.
 *
 * A node has at most one backing id, registered from an O_PATH descriptor when
 * it is first opened, and shared by all of its opens: the kernel refuses
 * another one while any is open, and refuses to mix opens with and without.
 * So the first open of an idle node decides, and the rest follow.
 *
 * A published file of which a range is damaged is served by reading, so that
 * the range can answer EIO. While opens from before go on through the kernel,
 * there is no way to serve another one.
 *
 * Whether the kernel lets us is found out by registering. When it doesn't, the
 * reason is kept for `health` and files are served by reading them.
 *
 * Threads: any. Locks: the node's, for a few instructions and the ioctl.
 */
#ifndef FS_PASSTHROUGH_H
#define FS_PASSTHROUGH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"

struct fs;
struct node;

struct passthrough {
	atomic_bool on;
	atomic_int error; /* negative: what registering said */
	bool offered;     /* by kernel and library; set at INIT */
	bool staged;      /* staged files too */
};

/* Before mounting: what options and the store's filesystem allow. */
void passthrough_init(struct fs *fs);

/* At INIT: whether the kernel offers it. */
void passthrough_offer(struct fs *fs, bool offered);

/* Once the mount serves: registers a nameless file, to know early. */
void passthrough_try(struct fs *fs);

/* Appends a line for `health`. Errors: those of buf_append(). */
int passthrough_describe(const struct fs *fs, struct buf *ret);

/* How an open of the node would be served now. */
bool passthrough_wanted(struct fs *fs, struct node *node);

/*
 * Counts one open of the node. *ret_id is the backing id to answer with, or 0
 * when this open is served by reading. fd is the node's O_PATH descriptor.
 * Errors: -EIO the file is damaged, and it is still passed through to others.
 */
int passthrough_attach(struct fs *fs, struct node *node, int fd,
		       int32_t *ret_id);

/*
 * Counts it down. keep: the id stays registered while nobody has the node
 * open, to be found again by the next open.
 */
void passthrough_detach(struct fs *fs, struct node *node, bool keep);

/* Drops the id of a node that nobody has open. */
void passthrough_drop(struct fs *fs, struct node *node);

#endif
