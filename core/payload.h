/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload: the tree of files of one group, as it stands on disk.
 *
 * payload_scan() walks a tree and describes it completely, or refuses it with
 * a sentence. What it accepts can be published: directories, regular files and
 * symlinks that end inside the tree; no name that is reserved; no file that
 * somebody outside the tree has another name for.
 *
 * Hard links to one file are several entries of one object. Objects are
 * numbered in the order of their first path.
 *
 * Ownership: a struct payload and everything in it belongs to the caller and
 * is freed as a whole. It is a plain value that doesn't change after the scan,
 * so any thread may read it.
 *
 * Trust: names and shapes come from users. Every limit below is enforced while
 * walking. No symlink is ever followed out of the tree. A tree that changes
 * during the walk gives either of its states or -EBUSY.
 */
#ifndef CORE_PAYLOAD_H
#define CORE_PAYLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "core/buf.h"
#include "core/cleanup.h"

#define PAYLOAD_ENTRIES_MAX ((size_t)1 << 20)
#define PAYLOAD_DEPTH_MAX 64            /* path components */
#define PAYLOAD_PATH_MAX ((size_t)4000) /* bytes of one path or link target */
#define PAYLOAD_PATHS_BYTES_MAX ((size_t)256 << 20) /* of all of them */
#define PAYLOAD_RESERVED_NAME ".weights"
#define PAYLOAD_NO_OBJECT SIZE_MAX

enum payload_kind {
	PAYLOAD_FILE,
	PAYLOAD_DIR,
	PAYLOAD_SYMLINK,
};

struct payload_entry {
	char *path; /* from the root of the tree, without a leading slash */
	enum payload_kind kind;
	uint32_t mode; /* permission bits, at most 07777 */
	uint32_t uid;
	uint32_t gid;
	uint64_t size; /* bytes */
	uint64_t ino;
	uint64_t nlink;
	struct timespec mtime;
	char *target;  /* of a symlink, else NULL */
	size_t object; /* of a file, else PAYLOAD_NO_OBJECT */
};

struct payload {
	size_t count;
	struct payload_entry *entries; /* by path, in the order of its bytes */
	size_t object_count;
	size_t *objects; /* index of the first entry of each object */
	uint64_t dev;    /* the one filesystem that holds all of it */
	size_t path_bytes;
};

/*
 * Describes the tree below dirfd, which may be an O_PATH descriptor. The root
 * itself has no entry.
 *
 * Errors, all but -ENOMEM with a sentence in why, which may be NULL:
 *  -EBADMSG	another kind of file; the reserved name; another filesystem
 *		mounted in the tree; a symlink that is absolute, dangles,
 *		loops or leaves the tree; a file with a name outside the tree
 *  -EFBIG	above one of the limits
 *  -EBUSY	the tree changed during the walk
 *  -ENOMEM, or what the filesystem answered
 */
int payload_scan(int dirfd, struct payload **ret, struct buf *why);

void payload_free(struct payload *p); /* accepts NULL */
DEFINE_CLEANUP(struct payload *, payload_free)

/* The entry of that path, borrowed, or NULL. O(log n). */
const struct payload_entry *payload_find(const struct payload *p,
					 const char *path);

/*
 * Makes every directory of the tree durable, from the bottom up, the root
 * last. Errors: what open or fsync answered.
 */
int payload_sync_dirs(int dirfd, const struct payload *p);

/*
 * Removes at most max entries below dirfd, the deepest first, and never follows
 * a link. Stores whether nothing is left; the root itself stays. Works on any
 * tree, also on those that payload_scan() refuses.
 *
 * Errors, with a sentence in why, which may be NULL: what the filesystem
 * answered.
 */
int payload_remove_batch(int dirfd, unsigned max, bool *ret_empty,
			 struct buf *why);

#endif
