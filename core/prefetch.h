/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetch: brings files into the page cache ahead of who reads them.
 *
 * A file is taken in windows, in order, by a few threads, so that several
 * requests are at the device at once; what is cached already is passed over,
 * and so are holes. Jobs take turns, window by window. It goes on while there
 * is memory that nobody would miss, within a pace, and until it is told to
 * stop or reading fails. Nothing is pinned, nothing stays mapped.
 *
 * Ownership: prefetch_start() gives the caller a job, to be ended with
 * prefetch_stop(), also when it is through. The job works on a descriptor of
 * its own (a dup of fd: the same open file), closed when prefetch_stop()
 * returns or when the job is through. The offset of the open file may move.
 *
 * Trust: nothing that is read is looked at; a file that shrinks ends its job.
 *
 * Threads: any. Callbacks of struct prefetch_limits run in threads of the
 * prefetcher, with no lock held. Locks: one of its own, innermost.
 */
#ifndef CORE_PREFETCH_H
#define CORE_PREFETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/cleanup.h"

#define PREFETCH_WINDOW_BYTES ((uint64_t)32 << 20)

struct pace;
struct prefetcher;
struct prefetch;

struct prefetch_limits {
	struct pace *pace; /* borrowed; NULL: none */
	/*
	 * Bytes that jobs may have in memory altogether, until they are stopped,
	 * with what they have brought in already: memory that is available
	 * includes it. Asked before each window. NULL: as many as you like.
	 */
	uint64_t (*room)(void *arg);
	void *arg;
};

struct prefetch_stats {
	uint64_t files_total;
	uint64_t read_bytes_total; /* that the cache lacked */
	uint64_t stopped_for_room_total;
	uint64_t running; /* jobs */
};

/*
 * Three threads keep a device busy, and hardly a CPU. *limits is copied.
 *
 * Errors: those of workers_new(), -ENOMEM, -EAGAIN.
 */
int prefetcher_new(unsigned threads, const struct prefetch_limits *limits,
		   struct prefetcher **ret);
/* Every job was stopped. Accepts NULL. */
void prefetcher_free(struct prefetcher *p);
DEFINE_CLEANUP(struct prefetcher *, prefetcher_free)

/*
 * Begins with the first size bytes of fd, which is open for reading.
 * Errors: -ENOMEM, -EMFILE.
 */
int prefetch_start(struct prefetcher *p, int fd, uint64_t size,
		   struct prefetch **ret);
/*
 * Ends it; the job's descriptor is closed when this returns, after at most one
 * read that was going on. Accepts NULL.
 */
void prefetch_stop(struct prefetch *job);
/* Asks it to end soon, without waiting; prefetch_stop() still has to come. */
void prefetch_cancel(struct prefetch *job);
bool prefetch_is_over(const struct prefetch *job);
/* Everything before it was, or is just being, brought in. Thread-safe. */
uint64_t prefetch_position(struct prefetch *job);
/* What the cache lacked, and has been read. */
uint64_t prefetch_read_bytes(struct prefetch *job);

void prefetch_stats(struct prefetcher *p, struct prefetch_stats *ret);

/*
 * What the machine, or the control group, would give without hurting anybody:
 * the kernel's estimate of available bytes. root stands before the paths that
 * are read, "" but in tests. Errors: -EBADMSG, or what reading answered.
 */
int prefetch_available_memory(const char *root, uint64_t *ret);

#endif
