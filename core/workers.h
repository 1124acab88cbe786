/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers: a fixed pool of named threads that run short pieces of work.
 *
 * Two queues, each first in first out: everything that serves a user goes
 * before everything in bulk. A pool for bulk work alone also runs at a lower
 * CPU priority (nice). Work that has much to do runs for one piece and submits
 * itself again, so that all who share the pool advance in turn.
 *
 * Ownership: struct work is embedded in an object of the caller, which is
 * found again with container_of(). The pool doesn't touch an item once its
 * run() was called, so run() may free it or submit it again.
 *
 * Threads: workers_submit() may be called from any thread, also from run().
 * Pool threads have all signals blocked. Locks: one of its own, innermost, not
 * held while run() runs.
 */
#ifndef CORE_WORKERS_H
#define CORE_WORKERS_H

#include "core/cleanup.h"

#define WORKERS_COUNT_MAX 256
#define WORKERS_NAME_MAX 12 /* characters; the thread's number is appended */
#define WORKERS_NICE_BULK 10

struct workers;

enum work_priority {
	WORK_SERVING, /* somebody waits for it */
	WORK_BULK,
};

struct work {
	void (*run)(struct work *work);
	enum work_priority priority;
	struct work *next; /* the pool's while the item is queued */
};

/*
 * Starts count threads, named after name, at that nice value (0: as the
 * caller; a value that the kernel refuses is ignored).
 *
 * Errors: -EINVAL (count is 0 or above WORKERS_COUNT_MAX, or name is longer
 * than WORKERS_NAME_MAX), -ENOMEM, -EAGAIN (too many threads).
 */
int workers_new(const char *name, unsigned count, int nice,
		struct workers **ret);

/*
 * Waits until everything that is queued has run, also what that submits, and
 * joins the threads. Accepts NULL. Not to be called from a pool's own thread.
 */
void workers_free(struct workers *w);
DEFINE_CLEANUP(struct workers *, workers_free)

/* Queues an item that isn't queued. Its run() is called once. */
void workers_submit(struct workers *w, struct work *item);

unsigned workers_count(const struct workers *w);

#endif
