/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunk buffers: what everything that looks at chunks of files shares.
 *
 * Each thread has CHUNK_BUFFER_COUNT buffers of CHUNK_BYTES, made when it first
 * asks for one and freed with the thread. They are aligned for O_DIRECT.
 *
 * Threads: any. The cache of digests has a lock of its own, an innermost one.
 */
#ifndef CORE_CHUNK_BUFFER_H
#define CORE_CHUNK_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/chunk_digest.h"

#define CHUNK_BUFFER_COUNT 2
/* Of offsets and lengths, so that O_DIRECT reads the tail of a file, too. */
#define CHUNK_BUFFER_ALIGN ((size_t)4096)

/* Borrowed; which is below CHUNK_BUFFER_COUNT. Errors: -ENOMEM. */
int chunk_buffer_get(unsigned which, unsigned char **ret);

/*
 * Reads len bytes at `at` into buffer, which has room for len rounded up to
 * CHUNK_BUFFER_ALIGN. If fd is open with O_DIRECT, `at` and buffer are aligned
 * to that. *ret below len: the file ended; above: it goes on behind them.
 *
 * Errors: what reading answered.
 */
int chunk_buffer_read(int fd, uint64_t at, uint32_t len, unsigned char *buffer,
		      size_t *ret);

/* Whether [at, at + len) holds no data. A filesystem that can't say: no. */
bool chunk_buffer_is_hole(int fd, uint64_t at, uint32_t len);

/*
 * The digest of len zeros, at most CHUNK_BYTES. Uses the thread's buffer 0.
 * Errors: -ENOMEM, -EIO.
 */
int chunk_buffer_zeros(uint32_t len, struct digest *ret);

#endif
