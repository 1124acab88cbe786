/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Derived files: copies of ranges of payload files, in memory.
 *
 * Passthrough maps offset to offset, so a tensor inside a larger file can't be
 * served as a file of its own. It is copied once, when it is first opened, into
 * a memory filesystem that is mounted nowhere: no path leads there, and what
 * somebody has mapped outlives the daemon. Files of DERIVED_HUGE_BYTES and more
 * lie in an instance with huge pages, smaller ones in one with ordinary pages.
 * Where the process may not make filesystems, memfds take their place.
 *
 * Files are kept after their last use, within a limit in bytes. For room, those
 * not in use are dropped, the least recently used first, unless somebody still
 * has them mapped: dropping those would free nothing. Only above
 * DERIVED_IDLE_MAX files, and when forgotten, they go all the same.
 *
 * Ownership: derived_open() gives the caller one use of a file, ended by
 * derived_release(). A backing id registered from the file's descriptor counts
 * as a use as well: it keeps the memory.
 *
 * Threads: any. Callers that want the same file wait for one copy. Locks: one
 * of its own, innermost but for holders' probes, not held while copying.
 *
 * Trust: the caller has checked the source's digests. Nothing here is ever
 * written again once it is open to others.
 */
#ifndef CORE_DERIVED_H
#define CORE_DERIVED_H

#include <stddef.h>
#include <stdint.h>

#include "core/cleanup.h"

#define DERIVED_HUGE_BYTES ((uint64_t)2 << 20)
#define DERIVED_KEY_MAX ((size_t)8192)
#define DERIVED_IDLE_MAX 4096 /* files kept without a use, each a descriptor */

enum derived_kind {
	DERIVED_HUGE_PAGES,  /* memory filesystem, huge pages for large files */
	DERIVED_SMALL_PAGES, /* the kernel has no huge pages for it */
	DERIVED_MEMFD,       /* no memory filesystem of our own */
};

struct derived;
struct derived_file;

/* holders_init() comes before. Errors: -ENOMEM. */
int derived_new(uint64_t limit_bytes, struct derived **ret);

/* Every use has ended. Accepts NULL. */
void derived_free(struct derived *d);
DEFINE_CLEANUP(struct derived *, derived_free)

enum derived_kind derived_kind(const struct derived *d);
const char *derived_kind_text(enum derived_kind kind);

/* A piece of a derived file: a range of fd, or of memory when fd is -1. */
struct derived_part {
	int fd;
	uint64_t offset; /* in fd */
	const void *data;
	uint64_t len;
};

/*
 * Finds the file under key, or makes it of the parts, one after the other. key
 * has to change when the bytes do. May take as long as the copy: about 0.1 s
 * per GiB that is in memory.
 *
 * Errors:
 *  -ENOSPC	above the limit, and everything else is in use
 *  -EUCLEAN	a source ends before its range does
 *  -EINVAL	key is longer than DERIVED_KEY_MAX
 *  -EFBIG	the lengths overflow
 *  -ENOMEM, -EMFILE, or what reading answered
 */
int derived_open_parts(struct derived *d, const char *key,
		       const struct derived_part *parts, size_t count,
		       struct derived_file **ret);

/* The same for the one range [off, off + len) of src_fd. */
int derived_open(struct derived *d, const char *key, int src_fd, uint64_t off,
		 uint64_t len, struct derived_file **ret);

/* Ends one use. Accepts NULL. */
void derived_release(struct derived_file *file);
DEFINE_CLEANUP(struct derived_file *, derived_release)

/* An O_PATH descriptor, borrowed: valid while in use. */
int derived_file_fd(const struct derived_file *file);
uint64_t derived_file_size(const struct derived_file *file);

/*
 * Forgets every file whose key starts with prefix: the next open makes it anew,
 * and those in use go with their last use. Mappings stay valid; their memory no
 * longer counts.
 */
void derived_forget(struct derived *d, const char *prefix);

struct derived_stats {
	uint64_t limit_bytes;
	uint64_t used_bytes; /* of all files below */
	uint64_t files;
	uint64_t idle_files;
	uint64_t made_total;
	uint64_t dropped_total;
	uint64_t copied_bytes_total;
};

void derived_stats(struct derived *d, struct derived_stats *ret);

#endif
