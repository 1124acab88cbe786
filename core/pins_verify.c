/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "core/log.h"
#include "core/pins_priv.h"

/* --- Looking --- */

struct look {
	unsigned char resident[PIN_BATCH_PAGES];
	uint64_t entries[PIN_BATCH_PAGES];
	bool sees; /* entries are what the page tables hold */
};

/* Counts in one granule, of which the look begins at byte start. */
static int count_seen(struct pin_file *f, size_t granule,
		      const struct look *look, uint64_t start,
		      struct pin_seen *ret)
{
	struct pin_range left = pin_range_of(f, granule, 1);
	struct pin_range data;
	size_t page = f->pins->page;
	int r;

	*ret = (struct pin_seen){ 0 };
	while ((r = pin_next_data(f, left, &data)) > 0) {
		for (uint64_t at = data.from; at < data.to; at += page) {
			size_t i = (size_t)((at - start) / page);

			ret->data++;
			ret->resident += look->resident[i] & 1;
			ret->locked +=
				look->sees ?
					payers_is_present(look->entries[i]) :
					f->pages[granule] != 0;
		}
		left.from = data.to;
	}
	return r;
}

/* As verify(), for at most a batch. */
static int verify_batch(struct pin_file *f, struct look *look, size_t first,
			size_t count, struct pin_seen *ret)
{
	struct pin_range range = pin_range_of(f, first, count);
	size_t len = (size_t)(range.to - range.from);
	int r = 0;

	if (mincore(f->map + range.from, len, look->resident) < 0)
		return log_debug(-errno, "mincore");
	look->sees = payers_read(&f->pins->payers, f->map + range.from,
				 len / f->pins->page, look->entries) == 0;
	for (size_t i = 0; r == 0 && i < count; i++)
		r = count_seen(f, first + i, look, range.from, &ret[i]);
	return r;
}

/* As pins_verify(), with a range that is there; work is held. */
static int verify(struct pin_file *f, size_t first, size_t count,
		  struct pin_seen *ret)
{
	auto_free struct look *look = malloc(sizeof(*look));

	if (!look)
		return -ENOMEM;
	for (size_t i = 0; i < count; i += PIN_BATCH_GRANULES) {
		size_t left = count - i;
		size_t n =
			left < PIN_BATCH_GRANULES ? left : PIN_BATCH_GRANULES;
		int r = verify_batch(f, look, first + i, n, ret + i);

		if (r < 0)
			return r;
	}
	return 0;
}

int pins_verify(struct pin_file *f, size_t first, size_t count,
		struct pin_seen *ret)
{
	int r;

	if (first > f->granules || count > f->granules - first)
		return log_debug(-EINVAL, "granule %zu and %zu more", first,
				 count);
	if (count == 0)
		return 0;
	(void)pthread_mutex_lock(&f->work);
	r = verify(f, first, count, ret);
	(void)pthread_mutex_unlock(&f->work);
	return r;
}

/* --- Repairing --- */

/* Whether a granule that is believed to be pinned is, with all its data. */
static bool is_whole(const struct pin_file *f, size_t granule,
		     const struct pin_seen *seen)
{
	unsigned pages = f->pages[granule];

	if (pages == PIN_HOLE)
		pages = 0;
	return seen->data == pages && seen->locked == pages;
}

/* Lets go of granule and pins it anew. */
static int pin_anew(struct pin_file *f, size_t granule, size_t *left)
{
	int r = pin_zap(f, pin_range_of(f, granule, 1));

	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&f->pins->lock);
	pin_forget_locked(f, granule);
	(void)pthread_mutex_unlock(&f->pins->lock);
	return pin_all(f, granule, 1, NULL, NULL, left);
}

/* As pins_again(), for at most a batch. Adds to *left. */
static int again(struct pin_file *f, size_t first, size_t count, size_t *left)
{
	struct pin_seen seen[PIN_BATCH_GRANULES] = { 0 };
	int r;

	r = verify(f, first, count, seen);
	for (size_t i = 0; r == 0 && i < count; i++) {
		size_t granule = first + i;

		if (!f->pages[granule])
			continue;
		if (!is_whole(f, granule, &seen[i]))
			r = pin_anew(f, granule, left);
		/* Who can't see what is missing faults everything in. */
		else if (f->pins->payers.pagemap < 0)
			r = pin_populate(f, f->map,
					 pin_range_of(f, granule, 1));
	}
	return r;
}

int pins_again(struct pin_file *f, size_t *ret_left)
{
	size_t left = 0;
	struct stat st;
	int r = 0;

	if (fstat(f->fd, &st) < 0)
		return log_debug(-errno, "a file that is pinned");
	if ((uint64_t)st.st_size != f->size)
		return log_debug(-EUCLEAN, "the size of a file changed");
	(void)pthread_mutex_lock(&f->work);
	/* Holes may have become data. */
	f->hole_from = 0;
	f->data = (struct pin_range){ 0, 0 };
	for (size_t i = 0; r == 0 && i < f->granules;) {
		size_t n = 0;

		while (n < PIN_BATCH_GRANULES && i + n < f->granules &&
		       f->pages[i + n])
			n++;
		if (n)
			r = again(f, i, n, &left);
		i += n ? n : 1;
	}
	(void)pthread_mutex_unlock(&f->work);
	if (r == 0)
		*ret_left = left;
	return r;
}
