/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunk checks: is a chunk of a published file what it was published as, on the
 * device and in the page cache, and can one copy of it mend the other?
 *
 * The device is read past the cache (O_DIRECT), once; a hole isn't read at all.
 * The cache is asked which pages it has (mincore) and only those are looked at,
 * without readahead, so a check leaves the cache and the holes as they are. A
 * chunk whose digest is right in one of them is written back through the cache
 * from there, which mends both; nothing else ever writes to a published file.
 *
 * Where the filesystem has no O_DIRECT, or like btrfs one that isn't past the
 * cache, the cache is dropped as far as possible and read through. So a good
 * copy in the cache of a bad device is gone then, or, when it is pinned, hides
 * that the device is bad.
 *
 * Ownership: struct chunk_target is borrowed for the call. Threads: any; calls
 * on one chunk are the caller's to keep apart, and while a call runs the daemon
 * has a mapping of fd. Memory: two buffers of CHUNK_BYTES per thread that ever
 * checked, freed with the thread.
 */
#ifndef CORE_CHUNK_CHECK_H
#define CORE_CHUNK_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/chunk_digest.h"

struct chunk_target {
	int fd;        /* open for reading */
	int device_fd; /* the same file, O_DIRECT; -1: the filesystem can't */
	uint64_t size; /* of the file, as published */
	uint64_t chunk_size; /* CHUNK_BYTES, or as the manifest says: whole
				pages, at most CHUNK_BYTES */
	const struct digest *chunks; /* what they should be */
};

enum chunk_verdict {
	CHUNK_GOOD, /* on the device and, as far as it is there, in the cache */
	CHUNK_STALE,         /* good on the device, wrong in the cache */
	CHUNK_BAD_ON_DEVICE, /* wrong or unreadable there, or the file's size
				is, but whole in the cache; what isn't in the
				cache may come from the device */
	CHUNK_LOST,          /* no such copy */
};

/*
 * Looks at chunk i. A file that is too short, or in its last chunk too long,
 * and a device that can't read the range are verdicts. A file without chunks is
 * the caller's to look at. *ret_device_error is 0, or the negative errno with
 * which the device failed; it may be NULL.
 *
 * Errors: -EFBIG a chunk_size above CHUNK_BYTES; -EINVAL no such chunk, or a
 * chunk_size that is no multiple of pages; -ENOMEM; -ENOSYS, -EPERM the process
 * may not use process_vm_readv(2) on itself.
 */
int chunk_check(const struct chunk_target *t, size_t i, enum chunk_verdict *ret,
		int *ret_device_error);

/*
 * Mends chunk i from the copy that chunk_check() found good, or, where both are
 * lost, from from_fd (-1: none), another file with that chunk at the same
 * offset. write_fd is the file, open for writing, through the cache. The bytes
 * are checked before they are written, and are on the device, read back and
 * right, when this returns 0. What is good already isn't written, and a hole
 * stays one where it should be zeros.
 *
 * Gives the file its size back, if chunk i is where it is wrong. Times change;
 * they are the caller's to put back.
 *
 * Errors: -ENODATA no good copy; -EIO the device still gives others; -ENOSPC,
 * those of chunk_check(), or what writing answered.
 */
int chunk_mend(const struct chunk_target *t, size_t i, int write_fd,
	       int from_fd);

/* The length of chunk i of a file; 0 behind its end. */
uint64_t chunk_target_len(const struct chunk_target *t, size_t i);
size_t chunk_target_count(const struct chunk_target *t);

#endif
