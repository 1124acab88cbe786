/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins: ranges of payload files that are held in memory.
 *
 * A file that is pinned anywhere is mapped once, readable and shared, and the
 * mapping is locked on fault: what is faulted in stays, whatever the host does,
 * until it is taken out again. Files are pinned and unpinned in granules of
 * PIN_GRANULE_BYTES, aligned, because the page cache holds them in pieces of
 * up to that size; so both are exact. What is in a file's holes is never
 * pinned: a granule without data counts as pinned and costs nothing.
 *
 * One budget in bytes for all files. It counts the pages of pinned granules
 * that hold data, also while they are being pinned. Who gives way when it is
 * full is the caller's decision.
 *
 * Nobody else pays. A page is charged to the memory cgroup of whoever brought
 * it in. One that is charged to another cgroup is not locked: it is written
 * back, dropped and read again, and is then charged to this process. A page
 * that somebody has mapped, or that is in a pipe, can't be dropped; its
 * granule is left unpinned, to be tried again later. Who pays is known where
 * /proc/kpagecgroup and page frame numbers can be read (root of the machine).
 * Elsewhere everything that is in the cache already counts as somebody else's.
 *
 * Not pinning is no failure of the store: pins_status() says whether memory
 * can be locked at all, and files that can't be bound are served all the same.
 *
 * Ownership: a file belongs to the caller of pins_file_open(), until
 * pins_file_close(). The descriptor that is made for it is the only one behind
 * the mapping, so holders_any_but() on it sees everybody else.
 *
 * Trust: the mapping is never dereferenced; a file that shrinks or can't be
 * read gives an error. The file should not be written while it is pinned; after
 * it was, pins_again() makes true again what this module believes.
 *
 * Threads: any. Calls that change one file wait for each other, also for its
 * disk, so they are for workers, not for session threads. Locks: one for the
 * sums, innermost; one a file, taken first and held across the disk.
 *
 * A process that has pins doesn't fork and go on as the child: pins_new() comes
 * after that.
 */
#ifndef CORE_PINS_H
#define CORE_PINS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"

#define PIN_GRANULE_BYTES ((uint64_t)2 << 20)
#define PINS_FILE_BYTES_MAX ((uint64_t)16 << 40)

/*
 * At most one file a mapping and a descriptor, of which the process needs
 * others, several for each file that it knows: the bounds are these shares of
 * vm.max_map_count and of RLIMIT_NOFILE.
 */
#define PINS_MAPS_SHARE 2
#define PINS_DESCRIPTORS_SHARE 8

struct pins;
struct pin_file;

/*
 * budget_bytes may be 0. Where fewer bytes may be locked, that is the budget.
 * Errors: -ENOMEM.
 */
int pins_new(uint64_t budget_bytes, struct pins **ret);

/* All files are closed. Accepts NULL. */
void pins_free(struct pins *p);
DEFINE_CLEANUP(struct pins *, pins_free)

/*
 * Appends "yes", perhaps with how much of it, or "no (reason)" once locking
 * memory was refused. Errors: those of buf_append().
 */
int pins_status(struct pins *p, struct buf *out);

struct pins_stats {
	uint64_t budget_bytes;
	uint64_t pinned_bytes;
	uint64_t files;
	uint64_t files_max;
	bool knows_payers;           /* else all that is cached is reread */
	uint64_t granules_total;     /* that were pinned and had data */
	uint64_t reread_total;       /* granules dropped for who paid */
	uint64_t left_total;         /* granules left unpinned, every time */
	uint64_t filled_bytes_total; /* that the cache lacked, in pages */
};

void pins_stats(struct pins *p, struct pins_stats *ret);

/*
 * Binds the regular file behind fd, which may be an O_PATH descriptor and stays
 * the caller's. Nothing is pinned yet. size is fixed from here on.
 *
 * Errors:
 *  -EMFILE	pins_stats.files_max files are bound
 *  -EPERM	memory can't be locked, see pins_status()
 *  -EINVAL	not a regular file
 *  -EFBIG	larger than PINS_FILE_BYTES_MAX
 *  -ENOMEM, or what opening and mapping answered
 */
int pins_file_open(struct pins *p, int fd, struct pin_file **ret);

/* Unpins everything and lets the cache be. Accepts NULL. */
void pins_file_close(struct pin_file *f);
DEFINE_CLEANUP(struct pin_file *, pins_file_close)

int pins_file_fd(const struct pin_file *f); /* O_RDONLY, borrowed */
uint64_t pins_file_size(const struct pin_file *f);
size_t pins_file_granules(const struct pin_file *f); /* 0 when it is empty */

/* What counts in the budget for this file. */
uint64_t pins_file_pinned_bytes(struct pin_file *f);

/* Whether each of the granules is pinned; true for none. */
bool pins_is_pinned(struct pin_file *f, size_t first, size_t count);

/*
 * Is told of every step while pinning: bytes more are pinned (0: none in this
 * step). A negative answer stops pinning, which then returns it. May wait, to
 * keep a limit. Must not call anything for the same file.
 */
typedef int pins_progress_fn(void *arg, uint64_t bytes);

/*
 * Pins granules [first, first + count): reads what the cache lacks, in large
 * pieces, and locks. What is pinned already costs nothing. progress may be
 * NULL.
 *
 * Stores how many granules had to be left unpinned because of who pays for
 * them; others are pinned. On failure, what was pinned until then stays so, and
 * the call may be repeated.
 *
 * Errors:
 *  -EINVAL	beyond the end of the file
 *  -ENOSPC	the budget is full
 *  -EUCLEAN	the file became shorter
 *  -EIO	reading failed; or writing back what somebody else had brought
 *		in, which the kernel reports once for each descriptor
 *  -ENOMEM, or what progress answered
 */
int pins_pin(struct pin_file *f, size_t first, size_t count,
	     pins_progress_fn *progress, void *arg, size_t *ret_left);

/*
 * Unpins granules [first, first + count), two system calls however many they
 * are. With drop, what is in the page cache of this range is let go too, as far
 * as it is clean and nobody has it mapped.
 *
 * Errors: -EINVAL beyond the end of the file.
 */
int pins_unpin(struct pin_file *f, size_t first, size_t count, bool drop);

/*
 * Looks whether what is pinned really is, and pins again what somebody's write
 * past the cache has thrown out. Otherwise as pins_pin() of all that is pinned;
 * what is left is no longer pinned.
 *
 * Errors: as pins_pin(), -EUCLEAN also when the size changed: bind it anew.
 */
int pins_again(struct pin_file *f, size_t *ret_left);

/* What is there of one granule, in pages; a granule that is a hole has none. */
struct pin_seen {
	unsigned data;
	unsigned resident; /* of data, in the page cache, pinned or not */
	unsigned locked;   /* of data, held by the mapping */
};

/*
 * Looks what is really in memory of granules [first, first + count) and stores
 * it in as many elements of ret, also on failure as far as it came. After a
 * daemon's death much may be resident; it only has to be pinned again.
 *
 * Where the process may not know what is cached (it neither owns the file nor
 * may write to it), everything looks resident; where it may not see its own
 * page tables, what is believed to be pinned counts as locked.
 *
 * Errors: -EINVAL beyond the end of the file, -ENOMEM, or what mincore or
 * lseek answered.
 */
int pins_verify(struct pin_file *f, size_t first, size_t count,
		struct pin_seen *ret);

#endif
