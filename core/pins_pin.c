/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/log.h"
#include "core/pins_priv.h"

/*
 * How the cache is filled decides how fast it is mapped. A fault in memory that
 * is advised to have huge pages reads a whole granule into one folio. Where
 * that would read a hole as well, large reads are next best.
 */
#define FILL_BYTES ((size_t)4 << 20)

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

#define BATCH_BYTES (PIN_BATCH_GRANULES * PIN_GRANULE_BYTES)

enum granule_state {
	GRANULE_SETTLED, /* pinned before, or a hole */
	GRANULE_WANTED,
	GRANULE_FOREIGN, /* somebody else pays for something in it */
	GRANULE_KEPT,    /* and keeps it */
	GRANULE_LOCKED,
};

/* One call's way through the file, one batch of granules after the other. */
struct pinning {
	struct pins *pins;
	struct pin_file *file;
	bool knows_own;
	uint64_t own; /* the memory cgroup of this process */

	/*
	 * A second mapping, of the batch, which locks nothing: the cache is
	 * filled and pages are looked at through it. It is aligned like the
	 * first, so that both get the same entries.
	 */
	char *room;
	char *window;
	bool is_huge; /* the window reads whole granules */

	char *buffer; /* FILL_BYTES; NULL until something has to be read */

	size_t first; /* the batch */
	size_t count;
	struct pin_range range; /* its bytes */
	enum granule_state state[PIN_BATCH_GRANULES];
	uint16_t cost[PIN_BATCH_GRANULES]; /* pages */

	unsigned char resident[PIN_BATCH_PAGES];
	uint64_t seen[PIN_BATCH_PAGES];   /* in the window */
	uint64_t locked[PIN_BATCH_PAGES]; /* in the mapping */
};

static void pinning_free(struct pinning *w)
{
	if (w->room)
		(void)munmap(w->room, BATCH_BYTES + PIN_GRANULE_BYTES);
	free(w->buffer);
	free(w);
}
DEFINE_CLEANUP(struct pinning *, pinning_free)

static int pinning_new(struct pin_file *f, struct pinning **ret)
{
	cleanup(pinning_free_cleanup) struct pinning *w = NULL;
	char *room;

	w = malloc(sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->pins = f->pins;
	w->file = f;
	w->room = NULL;
	w->buffer = NULL;
	/* Asked anew each time: a process can be moved to another cgroup. */
	w->knows_own = payers_own(&w->pins->payers, &w->own) == 0;
	room = mmap(NULL, BATCH_BYTES + PIN_GRANULE_BYTES, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		return log_debug(-errno, "room for a window");
	w->room = room;
	w->window = room + (-(uintptr_t)room & (PIN_GRANULE_BYTES - 1));
	*ret = take_ptr(w);
	return 0;
}

/* --- Ranges of a batch --- */

static size_t page_of(const struct pinning *w, uint64_t at)
{
	return (size_t)((at - w->range.from) / w->pins->page);
}

/*
 * The next granules in that state that are next to each other, from *i on,
 * which moves behind them.
 */
static bool next_run(const struct pinning *w, enum granule_state state,
		     size_t *i, struct pin_range *ret)
{
	size_t from;

	while (*i < w->count && w->state[*i] != state)
		++*i;
	from = *i;
	while (*i < w->count && w->state[*i] == state)
		++*i;
	if (from == *i)
		return false;
	*ret = pin_range_of(w->file, w->first + from, *i - from);
	return true;
}

static void change_state(struct pinning *w, enum granule_state from,
			 enum granule_state to)
{
	for (size_t i = 0; i < w->count; i++)
		if (w->state[i] == from)
			w->state[i] = to;
}

static bool has_state(const struct pinning *w, enum granule_state state)
{
	for (size_t i = 0; i < w->count; i++)
		if (w->state[i] == state)
			return true;
	return false;
}

/* --- Faulting in --- */

int pin_populate(struct pin_file *f, char *base, struct pin_range range)
{
	struct pin_range data;
	int r;

	while ((r = pin_next_data(f, range, &data)) > 0) {
		if (madvise(base + data.from, (size_t)(data.to - data.from),
			    MADV_POPULATE_READ) < 0) {
			r = -errno;
			/* This is how it says that a load would fault. */
			if (r == -EFAULT || r == -EHWPOISON)
				r = pin_became_shorter(f) ? -EUCLEAN : -EIO;
			return log_debug(r, "faulting in at %llu",
					 (unsigned long long)data.from);
		}
		range.from = data.to;
	}
	return r;
}

static int populate_all(struct pinning *w, enum granule_state state, char *base)
{
	struct pin_range run;
	size_t i = 0;

	while (next_run(w, state, &i, &run)) {
		int r = pin_populate(w->file, base, run);

		if (r < 0)
			return r;
	}
	return 0;
}

/* Maps the window anew, empty, over the batch. Returns 1 if it's so advised. */
static int map_window(struct pinning *w, int advice)
{
	size_t len = (size_t)(w->range.to - w->range.from);

	if (mmap(w->window, len, PROT_READ, MAP_SHARED | MAP_FIXED, w->file->fd,
		 (off_t)w->range.from) == MAP_FAILED)
		return log_debug(-errno, "mapping a window");
	return madvise(w->window, len, advice) == 0;
}

static int populate_window(struct pinning *w, enum granule_state state)
{
	return populate_all(w, state, w->window - w->range.from);
}

/* --- Reading --- */

/* Reads a range of data into the cache. */
static int read_range(struct pinning *w, struct pin_range range)
{
	struct pin_file *f = w->file;
	uint64_t end = range.to < f->size ? range.to : f->size;

	if (!w->buffer)
		w->buffer = malloc(FILL_BYTES);
	if (!w->buffer)
		return -ENOMEM;
	for (uint64_t at = range.from; at < end;) {
		uint64_t want = end - at < FILL_BYTES ? end - at : FILL_BYTES;
		ssize_t n = pread(f->fd, w->buffer, (size_t)want, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return log_debug(-errno, "reading at %llu",
					 (unsigned long long)at);
		if (n == 0)
			return log_debug(-EUCLEAN, "the file ends at %llu",
					 (unsigned long long)at);
		at += (uint64_t)n;
	}
	return 0;
}

static int ask_resident(struct pinning *w)
{
	if (mincore(w->file->map + w->range.from,
		    (size_t)(w->range.to - w->range.from), w->resident) < 0)
		return log_debug(-errno, "mincore");
	return 0;
}

static bool is_cached_anywhere(const struct pinning *w, struct pin_range range)
{
	for (size_t i = page_of(w, range.from); i < page_of(w, range.to); i++)
		if (w->resident[i] & 1)
			return true;
	return false;
}

/* How much of a range of data isn't in the cache. */
static uint64_t missing_bytes(const struct pinning *w, struct pin_range range)
{
	uint64_t pages = 0;

	for (size_t i = page_of(w, range.from); i < page_of(w, range.to); i++)
		pages += !(w->resident[i] & 1);
	return pages * w->pins->page;
}

/*
 * Whether all of the batch is in the cache, holes too. Cheap where the kernel
 * can say it (6.5 or newer); elsewhere the answer is no.
 */
static bool is_cached_whole(const struct pinning *w)
{
	struct {
		uint64_t off;
		uint64_t len;
	} range = { w->range.from, w->range.to - w->range.from };
	struct {
		uint64_t cached;
		uint64_t dirty;
		uint64_t writeback;
		uint64_t evicted;
		uint64_t evicted_recently;
	} answer;

	return syscall(SYS_cachestat, w->file->fd, &range, &answer, 0) == 0 &&
	       answer.cached == range.len / w->pins->page;
}

/* One granule: reads it, unless the window will. */
static int fill_granule(struct pinning *w, size_t i, uint64_t *missing)
{
	struct pin_range left = pin_range_of(w->file, w->first + i, 1);
	bool is_whole = w->cost[i] * w->pins->page == PIN_GRANULE_BYTES;
	struct pin_range data;
	int r;

	while ((r = pin_next_data(w->file, left, &data)) > 0) {
		uint64_t bytes = missing_bytes(w, data);

		left.from = data.to;
		*missing += bytes;
		r = !bytes || (is_whole && w->is_huge) ? 0 :
							 read_range(w, data);
		if (r < 0)
			return r;
	}
	return r;
}

/* Brings the data of what is wanted into the cache, and maps the window. */
static int fill(struct pinning *w)
{
	uint64_t missing = 0;
	int r;

	r = map_window(w, MADV_HUGEPAGE);
	if (r < 0)
		return r;
	w->is_huge = r;
	r = 0;
	if (!is_cached_whole(w)) {
		r = ask_resident(w);
		for (size_t i = 0; r == 0 && i < w->count; i++)
			if (w->state[i] == GRANULE_WANTED)
				r = fill_granule(w, i, &missing);
	}
	if (r == 0)
		r = populate_window(w, GRANULE_WANTED);
	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&w->pins->lock);
	w->pins->stats.filled_bytes_total += missing;
	(void)pthread_mutex_unlock(&w->pins->lock);
	return 0;
}

/* --- Who pays --- */

/* 1 when there is an entry for all the data of a granule, else 0. */
static int has_all(struct pinning *w, size_t i, const uint64_t *entries)
{
	struct pin_range left = pin_range_of(w->file, w->first + i, 1);
	struct pin_range data;
	int r;

	while ((r = pin_next_data(w->file, left, &data)) > 0) {
		size_t to = page_of(w, data.to);

		for (size_t at = page_of(w, data.from); at < to; at++)
			if (!payers_is_present(entries[at]))
				return 0;
		left.from = data.to;
	}
	return r < 0 ? r : 1;
}

/* Whether somebody else pays for some of a granule, or it went meanwhile. */
static int is_foreign(struct pinning *w, size_t i, bool is_huge)
{
	struct pin_range g = pin_range_of(w->file, w->first + i, 1);
	size_t at = page_of(w, g.from);
	size_t pages = is_huge ? 1 : page_of(w, g.to) - at;
	int r = has_all(w, i, w->seen);

	if (r <= 0)
		return r < 0 ? r : 1;
	return !payers_all_own(&w->pins->payers, w->own, w->seen + at, pages);
}

/* Looks through the window at what is wanted: some of it may be foreign. */
static int inspect(struct pinning *w)
{
	bool is_huge[PIN_BATCH_GRANULES];
	int r;

	r = payers_read(&w->pins->payers, w->window, page_of(w, w->range.to),
			w->seen);
	/* Second: if the pages changed in between, the lock finds others. */
	payers_find_huge(&w->pins->payers, w->window, w->count, is_huge);
	for (size_t i = 0; r >= 0 && i < w->count; i++) {
		if (w->state[i] != GRANULE_WANTED)
			continue;
		r = is_foreign(w, i, is_huge[i]);
		if (r > 0)
			w->state[i] = GRANULE_FOREIGN;
	}
	return r < 0 ? r : 0;
}

/* Whether a granule's pages in the mapping are those that were looked at. */
static int is_as_seen(struct pinning *w, size_t i)
{
	struct pin_range g = pin_range_of(w->file, w->first + i, 1);

	for (size_t at = page_of(w, g.from); at < page_of(w, g.to); at++)
		if (payers_is_present(w->locked[at]) &&
		    (!payers_is_present(w->seen[at]) ||
		     payers_frame(w->locked[at]) != payers_frame(w->seen[at])))
			return 0;
	return has_all(w, i, w->locked);
}

/*
 * Between the look and the lock a page can go, and come again in somebody
 * else's name. That granule is let go.
 */
static int compare_with_seen(struct pinning *w)
{
	struct pin_file *f = w->file;
	int r;

	r = payers_read(&w->pins->payers, f->map + w->range.from,
			page_of(w, w->range.to), w->locked);
	for (size_t i = 0; r >= 0 && i < w->count; i++) {
		if (w->state[i] != GRANULE_WANTED)
			continue;
		r = is_as_seen(w, i);
		if (r == 0) {
			w->state[i] = GRANULE_FOREIGN;
			r = pin_zap(f, pin_range_of(f, w->first + i, 1));
		}
	}
	return r < 0 ? r : 0;
}

/* Lets go of what is foreign, which is then wanted again. */
static int drop_foreign(struct pinning *w)
{
	struct pin_file *f = w->file;
	struct pin_range run;
	size_t i = 0, granules = 0;

	/* What is mapped stays, so the window is emptied. */
	if (madvise(w->window, (size_t)(w->range.to - w->range.from),
		    MADV_DONTNEED) < 0)
		return log_debug(-errno, "emptying a window");
	while (next_run(w, GRANULE_FOREIGN, &i, &run)) {
		off_t len = (off_t)(run.to - run.from);

		if (sync_file_range(f->fd, (off_t)run.from, len,
				    SYNC_FILE_RANGE_WAIT_BEFORE |
					    SYNC_FILE_RANGE_WRITE |
					    SYNC_FILE_RANGE_WAIT_AFTER) < 0)
			return log_debug(-errno, "writing back at %llu",
					 (unsigned long long)run.from);
		(void)posix_fadvise(f->fd, (off_t)run.from, len,
				    POSIX_FADV_DONTNEED);
		granules +=
			(size_t)((run.to - run.from - 1) / PIN_GRANULE_BYTES) +
			1;
	}
	change_state(w, GRANULE_FOREIGN, GRANULE_WANTED);
	(void)pthread_mutex_lock(&w->pins->lock);
	w->pins->stats.reread_total += granules;
	(void)pthread_mutex_unlock(&w->pins->lock);
	return 0;
}

/* Every wanted granule of which something is cached gets the state. */
static int mark_cached(struct pinning *w, enum granule_state state)
{
	int r = ask_resident(w);

	for (size_t i = 0; r == 0 && i < w->count; i++)
		if (w->state[i] == GRANULE_WANTED &&
		    is_cached_anywhere(w,
				       pin_range_of(w->file, w->first + i, 1)))
			w->state[i] = state;
	return r;
}

/* Without knowing who pays: only what wasn't in the cache is ours. */
static int drop_cached(struct pinning *w)
{
	int r;

	r = mark_cached(w, GRANULE_FOREIGN);
	if (r < 0 || !has_state(w, GRANULE_FOREIGN))
		return r;
	/*
	 * What is still on its way into the cache can't be dropped, so wait for
	 * it, without reading ahead.
	 */
	r = map_window(w, MADV_RANDOM);
	if (r < 0)
		return r;
	r = populate_window(w, GRANULE_FOREIGN);
	if (r < 0)
		return r;
	r = drop_foreign(w);
	if (r < 0)
		return r;
	return mark_cached(w, GRANULE_KEPT);
}

/* --- A batch --- */

/* Reads, looks at, and locks what is wanted and isn't foreign. */
static int lock_wanted(struct pinning *w)
{
	int r;

	r = fill(w);
	if (r == 0 && w->knows_own)
		r = inspect(w);
	if (r == 0)
		r = populate_all(w, GRANULE_WANTED, w->file->map);
	if (r == 0 && w->knows_own)
		r = compare_with_seen(w);
	if (r == 0)
		change_state(w, GRANULE_WANTED, GRANULE_LOCKED);
	return r;
}

static int lock_batch(struct pinning *w)
{
	int r;

	if (!has_state(w, GRANULE_WANTED))
		return 0;
	if (!w->knows_own) {
		r = drop_cached(w);
		return r < 0 ? r : lock_wanted(w);
	}
	r = lock_wanted(w);
	if (r < 0 || !has_state(w, GRANULE_FOREIGN))
		return r;
	r = drop_foreign(w);
	return r < 0 ? r : lock_wanted(w);
}

static int data_pages(struct pin_file *f, size_t granule, uint16_t *ret)
{
	struct pin_range left = pin_range_of(f, granule, 1);
	struct pin_range data;
	uint64_t pages = 0;
	int r;

	while ((r = pin_next_data(f, left, &data)) > 0) {
		pages += (data.to - data.from) / f->pins->page;
		left.from = data.to;
	}
	if (r == 0)
		*ret = (uint16_t)pages;
	return r;
}

/* Says what is to be done in the batch, and does what costs nothing. */
static int plan_batch(struct pinning *w, size_t first, size_t count)
{
	struct pin_file *f = w->file;

	w->first = first;
	w->count = count < PIN_BATCH_GRANULES ? count : PIN_BATCH_GRANULES;
	w->range = pin_range_of(f, first, w->count);
	for (size_t i = 0; i < w->count; i++) {
		int r;

		w->state[i] = GRANULE_SETTLED;
		if (f->pages[first + i])
			continue;
		r = data_pages(f, first + i, &w->cost[i]);
		if (r < 0)
			return r;
		if (w->cost[i]) {
			w->state[i] = GRANULE_WANTED;
			continue;
		}
		(void)pthread_mutex_lock(&w->pins->lock);
		f->pages[first + i] = PIN_HOLE;
		(void)pthread_mutex_unlock(&w->pins->lock);
	}
	return 0;
}

/* Takes from the budget, and cuts the batch to what there is; true if cut. */
static bool take_budget(struct pinning *w)
{
	struct pins *p = w->pins;
	size_t i;

	(void)pthread_mutex_lock(&p->lock);
	for (i = 0; i < w->count; i++) {
		uint64_t bytes;

		if (w->state[i] != GRANULE_WANTED)
			continue;
		bytes = (uint64_t)w->cost[i] * p->page;
		if (bytes > p->stats.budget_bytes ||
		    p->taken_bytes > p->stats.budget_bytes - bytes)
			break;
		p->taken_bytes += bytes;
	}
	(void)pthread_mutex_unlock(&p->lock);
	if (i == w->count)
		return false;
	w->count = i;
	w->range = pin_range_of(w->file, w->first, w->count);
	return true;
}

/* Puts on record what is locked now, and gives back what isn't. */
static void settle_batch(struct pinning *w, uint64_t *ret_bytes,
			 size_t *ret_left)
{
	struct pins *p = w->pins;
	struct pin_file *f = w->file;
	uint64_t bytes = 0;
	size_t left = 0;

	(void)pthread_mutex_lock(&p->lock);
	for (size_t i = 0; i < w->count; i++) {
		uint64_t cost;

		if (w->state[i] == GRANULE_SETTLED)
			continue;
		cost = (uint64_t)w->cost[i] * p->page;
		if (w->state[i] != GRANULE_LOCKED) {
			p->taken_bytes -= cost;
			left++;
			continue;
		}
		f->pages[w->first + i] = w->cost[i];
		p->stats.granules_total++;
		bytes += cost;
	}
	f->pinned_bytes += bytes;
	p->stats.pinned_bytes += bytes;
	p->stats.left_total += left;
	(void)pthread_mutex_unlock(&p->lock);
	*ret_bytes = bytes;
	*ret_left = left;
}

/* Nothing of what failed halfway stays locked. */
static void undo_batch(struct pinning *w)
{
	struct pin_range run;
	size_t i = 0;

	while (next_run(w, GRANULE_WANTED, &i, &run))
		(void)pin_zap(w->file, run);
}

static int pin_batch(struct pinning *w, uint64_t *ret_bytes, size_t *ret_left)
{
	bool is_full = take_budget(w);
	int r = lock_batch(w);

	if (r < 0)
		undo_batch(w);
	settle_batch(w, ret_bytes, ret_left);
	if (r == 0 && is_full)
		return log_debug(-ENOSPC, "the budget for pins is full");
	return r;
}

/* --- Files --- */

int pin_all(struct pin_file *f, size_t first, size_t count,
	    pins_progress_fn *progress, void *arg, size_t *left)
{
	cleanup(pinning_free_cleanup) struct pinning *w = NULL;
	size_t end = first + count;
	int r;

	while (first < end) {
		uint64_t bytes;
		size_t kept;

		if (f->pages[first]) {
			first++;
			continue;
		}
		if (!w) {
			r = pinning_new(f, &w);
			if (r < 0)
				return r;
		}
		r = plan_batch(w, first, end - first);
		if (r < 0)
			return r;
		first += w->count;
		r = pin_batch(w, &bytes, &kept);
		*left += kept;
		if (progress) {
			int stop = progress(arg, bytes);

			if (r == 0 && stop < 0)
				r = stop;
		}
		if (r < 0)
			return r;
	}
	return 0;
}

int pins_pin(struct pin_file *f, size_t first, size_t count,
	     pins_progress_fn *progress, void *arg, size_t *ret_left)
{
	size_t left = 0;
	int r;

	if (first > f->granules || count > f->granules - first)
		return log_debug(-EINVAL, "granule %zu and %zu more", first,
				 count);
	(void)pthread_mutex_lock(&f->work);
	r = pin_all(f, first, count, progress, arg, &left);
	(void)pthread_mutex_unlock(&f->work);
	if (r == 0)
		*ret_left = left;
	return r;
}
