/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/log.h"
#include "core/pins_priv.h"

/*
 * A system call costs as much as the kernel's work for about this many pages,
 * so those between two that are wanted are asked for as well.
 */
#define SPAN_GAP 64
#define SPAN_MAX ((size_t)512)

void payers_init(struct payers *y)
{
	uint64_t own;

	y->pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	y->kpagecgroup = open("/proc/kpagecgroup", O_RDONLY | O_CLOEXEC);
	/* One that opens but doesn't tell is as good as none. */
	if (y->kpagecgroup >= 0 && payers_own(y, &own) < 0) {
		(void)close(y->kpagecgroup);
		y->kpagecgroup = -1;
	}
}

void payers_release(struct payers *y)
{
	if (y->pagemap >= 0)
		(void)close(y->pagemap);
	if (y->kpagecgroup >= 0)
		(void)close(y->kpagecgroup);
}

/* Reads len bytes at off, all of them. */
static int read_entries(int fd, uint64_t *ret, size_t count, uint64_t index)
{
	char *bytes = (char *)ret;
	size_t len = count * sizeof(*ret);
	uint64_t at = index * sizeof(*ret);

	while (len) {
		ssize_t n = pread(fd, bytes, len, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return log_debug(-errno, "reading a page table");
		if (n == 0)
			return log_debug(-EOPNOTSUPP, "no such page");
		bytes += n;
		len -= (size_t)n;
		at += (uint64_t)n;
	}
	return 0;
}

int payers_read(const struct payers *y, const char *at, size_t count,
		uint64_t *ret)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	if (y->pagemap < 0)
		return -EOPNOTSUPP;
	return read_entries(y->pagemap, ret, count, (uintptr_t)at / page);
}

int payers_own(const struct payers *y, uint64_t *ret)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint64_t entry = 0;
	volatile char *p;
	int r;

	if (y->kpagecgroup < 0)
		return -EOPNOTSUPP;
	p = mmap(NULL, page, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return log_debug(-errno, "mapping a page");
	*p = 1;
	r = payers_read(y, (const char *)p, 1, &entry);
	if (r == 0 && (!payers_is_present(entry) || !payers_frame(entry)))
		r = -EOPNOTSUPP;
	if (r == 0)
		r = read_entries(y->kpagecgroup, ret, 1, payers_frame(entry));
	(void)munmap((void *)p, page);
	return r < 0 ? log_debug(-EOPNOTSUPP, "who pays is unknown") : 0;
}

/*
 * A question to a page table, as in linux/fs.h since 6.7. Here because older
 * headers lack it; older kernels answer ENOTTY.
 */
struct scan {
	uint64_t size;
	uint64_t flags;
	uint64_t start;
	uint64_t end;
	uint64_t walk_end;
	uint64_t vec;
	uint64_t vec_len;
	uint64_t max_pages;
	uint64_t category_inverted;
	uint64_t category_mask;
	uint64_t category_anyof_mask;
	uint64_t return_mask;
};

struct scan_region {
	uint64_t start;
	uint64_t end;
	uint64_t categories;
};

#define SCAN _IOWR('f', 16, struct scan)
#define SCAN_IS_HUGE ((uint64_t)1 << 6)

void payers_find_huge(const struct payers *y, const char *at, size_t count,
		      bool *ret)
{
	struct scan_region found[PIN_BATCH_GRANULES];
	struct scan scan = {
		.size = sizeof(scan),
		.start = (uintptr_t)at,
		.end = (uintptr_t)at + count * PIN_GRANULE_BYTES,
		.vec = (uintptr_t)found,
		.vec_len = PIN_BATCH_GRANULES,
		.category_mask = SCAN_IS_HUGE,
		.return_mask = SCAN_IS_HUGE,
	};
	int n;

	assert(count <= PIN_BATCH_GRANULES);
	memset(ret, 0, count * sizeof(*ret));
	n = ioctl(y->pagemap, SCAN, &scan);
	for (int i = 0; i < n; i++)
		for (uint64_t a = found[i].start;
		     a + PIN_GRANULE_BYTES <= found[i].end;
		     a += PIN_GRANULE_BYTES)
			ret[(a - scan.start) / PIN_GRANULE_BYTES] = true;
}

static int compare_frames(const void *a, const void *b)
{
	const uint64_t *x = a;
	const uint64_t *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* How many of the sorted frames one read can answer for; at least one. */
static size_t span_of(const uint64_t *frames, size_t count)
{
	size_t n = 1;

	while (n < count && frames[n] - frames[n - 1] <= SPAN_GAP &&
	       frames[n] - frames[0] < SPAN_MAX)
		n++;
	return n;
}

static bool span_is_own(const struct payers *y, uint64_t own,
			const uint64_t *frames, size_t count)
{
	uint64_t payer[SPAN_MAX] = { 0 };
	uint64_t first = frames[0];

	if (read_entries(y->kpagecgroup, payer,
			 (size_t)(frames[count - 1] - first) + 1, first) < 0)
		return false;
	for (size_t i = 0; i < count; i++) {
		uint64_t whose = payer[frames[i] - first];

		if (whose != own && whose != 0)
			return false;
	}
	return true;
}

bool payers_all_own(const struct payers *y, uint64_t own,
		    const uint64_t *entries, size_t count)
{
	uint64_t frames[PIN_GRANULE_PAGES_MAX];
	bool is_sorted = true;
	size_t n = 0;

	assert(count <= PIN_GRANULE_PAGES_MAX);
	for (size_t i = 0; i < count; i++) {
		if (!payers_is_present(entries[i]))
			continue;
		if (!payers_frame(entries[i]))
			return false;
		frames[n] = payers_frame(entries[i]);
		is_sorted &= n == 0 || frames[n - 1] < frames[n];
		n++;
	}
	if (!is_sorted)
		qsort(frames, n, sizeof(*frames), compare_frames);
	for (size_t at = 0, span; at < n; at += span) {
		span = span_of(frames + at, n - at);
		if (!span_is_own(y, own, frames + at, span))
			return false;
	}
	return true;
}
