/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunk digests: the digests of a file's fixed-size chunks, made by all cores.
 *
 * A file is cut into chunks of CHUNK_BYTES, the last one shorter. Each chunk
 * has a digest of its own, so any range can be checked alone, and one file is
 * hashed in parallel. The root covers the list of chunk digests.
 *
 * A chunk job hashes one file on a pool of workers. Each job keeps at most one
 * item per worker in the queue and goes to its end after every chunk, so
 * several jobs share the cores evenly. Chunks that are holes are neither read
 * nor hashed: all zeros have a known digest.
 *
 * Ownership: a job is reference-counted; chunk_job_start() gives the caller
 * one reference, the running job holds one of its own. The chunk list belongs
 * to whoever got it.
 *
 * Threads: everything here may be called from any thread. The callback runs
 * once, in a thread of the pool, with no lock held. Memory: one buffer of
 * CHUNK_BYTES per thread that ever hashed, freed with the thread.
 *
 * The data isn't trusted to stand still: a file that shrinks or grows meanwhile
 * is noticed. Writes that keep the size are the caller's to exclude.
 */
#ifndef CORE_CHUNK_DIGEST_H
#define CORE_CHUNK_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "core/cleanup.h"
#include "core/digest.h"
#include "core/workers.h"

#define CHUNK_BYTES ((uint32_t)4 << 20)
#define CHUNK_FILE_BYTES_MAX ((uint64_t)16 << 40)

struct chunk_list {
	uint64_t size; /* of the file, in bytes */
	uint32_t chunk_size;
	size_t count;
	struct digest *chunks; /* count of them, in order */
	struct digest root;
};

void chunk_list_free(struct chunk_list *list); /* accepts NULL */
DEFINE_CLEANUP(struct chunk_list *, chunk_list_free)

/* The number of chunks of a file of size bytes. */
static inline size_t chunk_count(uint64_t size)
{
	return (size_t)(size / CHUNK_BYTES + (size % CHUNK_BYTES != 0));
}

/* The length of chunk i of such a file; i is below chunk_count(size). */
static inline uint32_t chunk_len(uint64_t size, size_t i)
{
	uint64_t left = size - (uint64_t)i * CHUNK_BYTES;

	return left < CHUNK_BYTES ? (uint32_t)left : CHUNK_BYTES;
}

struct chunk_job;

/*
 * r is 0 and list is the result, now the callee's, or r is negative and list
 * is NULL:
 *  -ECANCELED	chunk_job_cancel() came before the end
 *  -EBUSY	the file changed its size while it was read
 *  -ENOMEM	no memory for a buffer
 *  others	what the filesystem answered, -EIO above all
 */
typedef void chunk_done_fn(void *arg, int r, struct chunk_list *list);

/*
 * Starts to digest the first size bytes, the whole file, of fd. fd may be
 * open with O_DIRECT. The job works on a duplicate of fd, which counts as the
 * same open file for leases and is closed before done is called.
 *
 * *ret is set before done can run. The pool has to outlive the job.
 *
 * Errors, without a callback: -EFBIG (size is above CHUNK_FILE_BYTES_MAX),
 * -ENOMEM, -EMFILE, -EBADF.
 */
int chunk_job_start(struct workers *pool, int fd, uint64_t size,
		    chunk_done_fn *done, void *arg, struct chunk_job **ret);

/*
 * Asks the job to stop. The callback still comes, once, with -ECANCELED,
 * unless the last chunk was done before.
 */
void chunk_job_cancel(struct chunk_job *job);

/* How many bytes are through; may be asked at any time. */
uint64_t chunk_job_bytes_done(const struct chunk_job *job);

/* The caller's reference may be dropped at any time, also in the callback. */
void chunk_job_unref(struct chunk_job *job); /* accepts NULL */
DEFINE_CLEANUP(struct chunk_job *, chunk_job_unref)

/*
 * Digests chunk i of a file of size bytes here and now. Errors: -EBUSY, -EIO
 * and others as for chunk_done_fn.
 */
int chunk_digest_at(int fd, uint64_t size, size_t i, struct digest *ret);

#endif
