/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the pins module share.
 *
 * pins.c has files, the budget and unpinning, pins_pin.c pinning,
 * pins_verify.c what is really there, pins_cgroup.c who pays for a page.
 */
#ifndef CORE_PINS_PRIV_H
#define CORE_PINS_PRIV_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/pins.h"

/* With the smallest pages that there are. */
#define PIN_GRANULE_PAGES_MAX ((size_t)(PIN_GRANULE_BYTES / 4096))

/* How many granules are handled in one go. */
#define PIN_BATCH_GRANULES ((size_t)16)
#define PIN_BATCH_PAGES (PIN_BATCH_GRANULES * PIN_GRANULE_PAGES_MAX)

/* In pin_file.pages: pinned, and there is nothing in it. */
#define PIN_HOLE UINT16_MAX

#define PINS_REASON_MAX 160

/* --- Who pays (pins_cgroup.c) --- */

struct payers {
	int pagemap;     /* -1: can't be read */
	int kpagecgroup; /* -1: can't be read */
};

/* Opens what can be opened. */
void payers_init(struct payers *y);
void payers_release(struct payers *y);

/*
 * Whom a new page of this process is charged to, now. That is asked of the
 * kernel with a page, so neither the version of control groups nor namespaces
 * matter. Errors: -EOPNOTSUPP this process can't know.
 */
int payers_own(const struct payers *y, uint64_t *ret);

/*
 * Stores what the page tables hold for count pages from at on.
 * Errors: -EOPNOTSUPP, or what reading answered.
 */
int payers_read(const struct payers *y, const char *at, size_t count,
		uint64_t *ret);

/*
 * Finds out which of count granules from at on, a batch at most, are mapped in
 * one piece, and so are one folio that is charged as a whole. In doubt, no.
 */
void payers_find_huge(const struct payers *y, const char *at, size_t count,
		      bool *ret);

static inline bool payers_is_present(uint64_t entry)
{
	return entry >> 63;
}

/* The page frame's number; 0 when this process may not know. */
static inline uint64_t payers_frame(uint64_t entry)
{
	return entry & (((uint64_t)1 << 55) - 1);
}

/*
 * Whether each of the entries, at most PIN_GRANULE_PAGES_MAX, that is present
 * is charged to own or to nobody. In doubt, no.
 */
bool payers_all_own(const struct payers *y, uint64_t own,
		    const uint64_t *entries, size_t count);

/* --- Files (pins.c) --- */

struct pins {
	struct payers payers; /* constant */
	size_t page;          /* bytes; constant */
	uint64_t lock_limit;  /* bytes that may be locked; constant */

	pthread_mutex_t lock;
	uint64_t taken_bytes;         /* of the budget; guarded by lock */
	struct pins_stats stats;      /* guarded by lock */
	bool refused_for_good;        /* guarded by lock */
	char reason[PINS_REASON_MAX]; /* "": none; guarded by lock */
};

/* [from, to), bytes of a file. */
struct pin_range {
	uint64_t from;
	uint64_t to;
};

struct pin_file {
	struct pins *pins; /* constant */
	int fd;            /* constant */
	char *map;         /* NULL while the file is empty; constant */
	uint64_t map_len;  /* size in whole pages; constant */
	uint64_t size;     /* constant */
	size_t granules;   /* constant */

	pthread_mutex_t work;  /* held by whoever changes the file's pins */
	uint64_t hole_from;    /* from here to data.from there is a hole */
	struct pin_range data; /* the last one found; guarded by work */
	uint64_t pinned_bytes; /* guarded by pins->lock */
	uint16_t *pages;       /* a granule: pinned pages, 0, or PIN_HOLE;
				   written with work and pins->lock held */
};

/* The bytes of granules [first, first + count), to the end of the mapping. */
struct pin_range pin_range_of(const struct pin_file *f, size_t first,
			      size_t count);

bool pin_became_shorter(const struct pin_file *f);

/*
 * Finds the first data in the range, both ends in whole pages; work is held.
 * Returns 1, 0 when all of it is a hole, -EUCLEAN when the file became shorter,
 * or what lseek answered.
 */
int pin_next_data(struct pin_file *f, struct pin_range in,
		  struct pin_range *ret);

/* Takes a range out of the mapping, so that it isn't locked any more. */
int pin_zap(struct pin_file *f, struct pin_range range);

/* Forgets a granule; work and pins->lock are held. */
void pin_forget_locked(struct pin_file *f, size_t granule);

/* --- Pinning (pins_pin.c) --- */

/* Faults in a range's data. base is where byte 0 is mapped; work is held. */
int pin_populate(struct pin_file *f, char *base, struct pin_range range);

/* As pins_pin(), with a range that is there; work is held. Adds to *left. */
int pin_all(struct pin_file *f, size_t first, size_t count,
	    pins_progress_fn *progress, void *arg, size_t *left);

#endif
