/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done to a store that no daemon has open: what checking, exporting and
 * importing share. Errors have a sentence in why.
 */
#ifndef CORE_WEIGHT_STORE_OFFLINE_PRIV_H
#define CORE_WEIGHT_STORE_OFFLINE_PRIV_H

#include "core/buf.h"
#include "core/digest.h"
#include "core/map.h"
#include "core/weight_metadata_store.h"
#include "core/weight_store.h"

#define OFFLINE_GROUP_PATH_LEN (2 + 1 + DIGEST_HEX_LEN + 1)

/* All but the path start as -1 or NULL. */
struct offline {
	const char *path;
	int fd;
	int lock_fd;   /* stays -1 where nobody ever made the lock */
	int groups_fd; /* -1: there is no payload at all */
	struct weight_metadata_store *records;
};
#define OFFLINE_INIT(at)                                                       \
	{                                                                      \
		.path = (at), .fd = -1, .lock_fd = -1, .groups_fd = -1         \
	}
void offline_release(struct offline *o);

/* Opens a store that is there, with its records, to be read only. */
int offline_open(struct offline *o, struct buf *why);
/* groups_fd, if there is payload. */
int offline_open_groups(struct offline *o, struct buf *why);
/* "what 'path': " and what the error is. Returns r. */
int offline_say(const struct offline *o, int r, const char *what,
		struct buf *why);

/* What is in the records. */
int offline_summary(struct offline *o, struct weight_store_summary *ret,
		    struct buf *why);

/* "<2 hex>/<hash>", relative to groups/. */
void offline_group_path(const char *hex,
			char ret[static OFFLINE_GROUP_PATH_LEN]);

/* ---- Whose directories there may be ---- */

/* The names of directories that records know, as they are looked up. */
struct payload_names {
	struct map *live; /* of what has payload, or may have some */
	struct map *gone; /* of what was removed */
};
int payload_names_new(struct payload_names *ret);
void payload_names_release(struct payload_names *n);
int payload_names_add(struct map *to, const struct weight_identity *id);
/* Those of all records. */
int payload_names_read(struct weight_metadata_store *records,
		       struct payload_names *n);

/* Calls fn for all directories in groups/ that are not among the live ones. */
typedef int stray_fn(void *arg, const char *name);
int payload_strays(int groups_fd, const struct payload_names *n, stray_fn *fn,
		   void *arg);

#endif
