/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listings: what one open directory shows.
 *
 * A listing is a copy of the names that were there when it was begun, followed
 * by what is too many to copy and is asked for piece by piece: generations,
 * operations and tombstones, in numeric order, tensors, and what has claims and
 * tombstones. A directory above lineages is read as it is, through a descriptor
 * of the listing's own. Position 0 begins anew; any position that was told may be
 * returned to, and names that neither came nor went meanwhile are shown exactly
 * once. Memory doesn't grow with what is asked for.
 *
 * Not thread-safe; belongs to a handle and its lock.
 */
#ifndef FS_LISTING_H
#define FS_LISTING_H

#include "fs/compat.h"
#include "fs/node.h"

struct listing;

/* Copies the names of the node. May block. Errors: -ENOENT, -ENOMEM, -EIO. */
int listing_new(struct fs *fs, struct node *node, struct listing **ret);
void listing_free(struct listing *listing); /* accepts NULL */
DEFINE_CLEANUP(struct listing *, listing_free)

/*
 * Writes entries from position on into data, as many as fit into size. No
 * entry means the end. May block. Errors: -EIO, -EINVAL too small for one.
 */
int listing_fill(struct listing *listing, fuse_req_t req, uint64_t position,
		 char *data, size_t size, size_t *ret_len);

#endif
