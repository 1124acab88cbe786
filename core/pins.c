/* SPDX-License-Identifier: Apache-2.0 */
#include "core/pins.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/parse.h"
#include "core/pins_priv.h"

#define MAP_COUNT_DEFAULT 65530 /* vm.max_map_count as the kernel has it */

/* --- What is allowed --- */

static uint64_t max_map_count(void)
{
	auto_fd int fd =
		open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC);
	char text[32];
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	uint64_t count;

	if (n <= 0)
		return MAP_COUNT_DEFAULT;
	text[n] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return parse_u64(text, &count) < 0 ? MAP_COUNT_DEFAULT : count;
}

static uint64_t files_max(void)
{
	uint64_t maps = max_map_count() / PINS_MAPS_SHARE;
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) < 0 ||
	    files.rlim_cur == RLIM_INFINITY)
		return maps;
	files.rlim_cur /= PINS_DESCRIPTORS_SHARE;
	return files.rlim_cur < maps ? (uint64_t)files.rlim_cur : maps;
}

/*
 * Whether len bytes may be locked: 0, or what the kernel says. The memory that
 * is tried with is never touched, so it isn't there.
 */
static int try_lock(size_t len)
{
	void *p = mmap(NULL, len, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int r = 0;

	if (p == MAP_FAILED)
		return -errno;
	if (mlock2(p, len, MLOCK_ONFAULT) < 0)
		r = -errno;
	(void)munmap(p, len);
	return r;
}

/* Remembers why memory can't be locked; the first reason is the one. */
__attribute__((format(printf, 3, 4))) static int refuse(struct pins *p,
							bool for_good,
							const char *fmt, ...)
{
	va_list ap;

	(void)pthread_mutex_lock(&p->lock);
	p->refused_for_good |= for_good;
	if (!*p->reason) {
		va_start(ap, fmt);
		(void)vsnprintf(p->reason, sizeof(p->reason), fmt, ap);
		va_end(ap);
	}
	(void)pthread_mutex_unlock(&p->lock);
	return log_debug(-EPERM, "locking memory was refused");
}

/* What mlock2() answered for a file becomes an error of ours. */
static int lock_refused(struct pins *p, int err, uint64_t len)
{
	if (err == -EPERM)
		return refuse(p, true,
			      "locking memory needs CAP_IPC_LOCK or "
			      "RLIMIT_MEMLOCK");
	if (err == -ENOMEM && p->lock_limit != UINT64_MAX)
		return refuse(
			p, false,
			"RLIMIT_MEMLOCK allows %llu bytes, a file of %llu "
			"is too much; CAP_IPC_LOCK lifts it",
			(unsigned long long)p->lock_limit,
			(unsigned long long)len);
	return log_debug(err, "locking a file of %llu bytes",
			 (unsigned long long)len);
}

static void find_limits(struct pins *p)
{
	struct rlimit lock = { .rlim_cur = RLIM_INFINITY };

	p->lock_limit = UINT64_MAX;
	p->stats.files_max = files_max();
	if (try_lock(p->page) == -EPERM) {
		(void)lock_refused(p, -EPERM, 0);
		return;
	}
	if (getrlimit(RLIMIT_MEMLOCK, &lock) < 0 ||
	    lock.rlim_cur == RLIM_INFINITY ||
	    lock.rlim_cur > SIZE_MAX - p->page)
		return;
	/* The limit isn't one for those who have the capability. */
	if (try_lock((size_t)lock.rlim_cur + p->page) == 0)
		return;
	p->lock_limit = lock.rlim_cur;
	if (p->stats.budget_bytes > p->lock_limit)
		p->stats.budget_bytes = p->lock_limit;
}

/* --- The whole --- */

int pins_new(uint64_t budget_bytes, struct pins **ret)
{
	struct pins *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	(void)pthread_mutex_init(&p->lock, NULL);
	p->page = (size_t)sysconf(_SC_PAGESIZE);
	assert(PIN_GRANULE_BYTES / p->page <= PIN_GRANULE_PAGES_MAX);
	payers_init(&p->payers);
	p->stats.budget_bytes = budget_bytes;
	p->stats.knows_payers = p->payers.kpagecgroup >= 0;
	find_limits(p);
	*ret = p;
	return 0;
}

void pins_free(struct pins *p)
{
	if (!p)
		return;
	assert(p->stats.files == 0);
	assert(p->taken_bytes == 0);
	payers_release(&p->payers);
	(void)pthread_mutex_destroy(&p->lock);
	free(p);
}

int pins_status(struct pins *p, struct buf *out)
{
	char reason[PINS_REASON_MAX];

	(void)pthread_mutex_lock(&p->lock);
	memcpy(reason, p->reason, sizeof(reason));
	(void)pthread_mutex_unlock(&p->lock);
	if (*reason)
		return buf_printf(out, "no (%s)", reason);
	if (p->lock_limit == UINT64_MAX)
		return buf_append(out, "yes", 3);
	return buf_printf(out,
			  "yes, %llu MiB (RLIMIT_MEMLOCK; CAP_IPC_LOCK lifts "
			  "it)",
			  (unsigned long long)(p->lock_limit >> 20));
}

void pins_stats(struct pins *p, struct pins_stats *ret)
{
	(void)pthread_mutex_lock(&p->lock);
	*ret = p->stats;
	(void)pthread_mutex_unlock(&p->lock);
}

/* --- Binding --- */

static int count_file(struct pins *p)
{
	int r = 0;

	(void)pthread_mutex_lock(&p->lock);
	if (p->refused_for_good)
		r = -EPERM;
	else if (p->stats.files >= p->stats.files_max)
		r = -EMFILE;
	else
		p->stats.files++;
	(void)pthread_mutex_unlock(&p->lock);
	return r;
}

static void uncount_file(struct pins *p)
{
	(void)pthread_mutex_lock(&p->lock);
	assert(p->stats.files > 0);
	p->stats.files--;
	(void)pthread_mutex_unlock(&p->lock);
}

static int open_own(struct pin_file *f, int fd)
{
	char path[32];
	struct stat st;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	/* Looked at before it is opened: opening a FIFO would wait. */
	if (fstat(fd, &st) < 0)
		return log_debug(-errno, "descriptor %d", fd);
	if (!S_ISREG(st.st_mode))
		return log_debug(-EINVAL, "not a regular file");
	f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (f->fd < 0)
		return log_debug(-errno, "opening a file to pin");
	if (fstat(f->fd, &st) < 0)
		return log_debug(-errno, "a file to pin");
	f->size = (uint64_t)st.st_size;
	if (f->size > PINS_FILE_BYTES_MAX)
		return log_debug(-EFBIG, "%llu bytes",
				 (unsigned long long)f->size);
	return 0;
}

/*
 * At an address that is a multiple of the granule, so that large pieces of the
 * page cache are mapped whole, and taken out whole.
 */
static int map_aligned(struct pin_file *f)
{
	size_t len = (size_t)f->map_len;
	size_t slack = f->size < PIN_GRANULE_BYTES ? 0 : PIN_GRANULE_BYTES;
	char *room, *at;

	room = mmap(NULL, len + slack, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		return log_debug(-errno, "room for %zu bytes", len);
	at = room;
	if (slack)
		at += -(uintptr_t)room & (PIN_GRANULE_BYTES - 1);
	if (at > room)
		(void)munmap(room, (size_t)(at - room));
	if (at + len < room + len + slack)
		(void)munmap(at + len, (size_t)(room + slack - at));
	if (mmap(at, len, PROT_READ, MAP_SHARED | MAP_FIXED, f->fd, 0) ==
	    MAP_FAILED) {
		int r = -errno;

		(void)munmap(at, len);
		return log_debug(r, "mapping a file to pin");
	}
	f->map = at;
	return 0;
}

static int map_and_lock(struct pin_file *f)
{
	size_t page = f->pins->page;
	int r;

	f->map_len = (f->size + page - 1) / page * page;
	f->granules =
		(size_t)((f->size + PIN_GRANULE_BYTES - 1) / PIN_GRANULE_BYTES);
	if (f->size == 0)
		return 0;
	f->pages = calloc(f->granules, sizeof(*f->pages));
	if (!f->pages)
		return -ENOMEM;
	r = map_aligned(f);
	if (r < 0)
		return r;
	if (mlock2(f->map, (size_t)f->map_len, MLOCK_ONFAULT) < 0)
		return lock_refused(f->pins, -errno, f->size);
	return 0;
}

int pins_file_open(struct pins *p, int fd, struct pin_file **ret)
{
	cleanup(pins_file_close_cleanup) struct pin_file *f = NULL;
	int r;

	r = count_file(p);
	if (r < 0)
		return log_debug(r, "binding a file to pin");
	f = calloc(1, sizeof(*f));
	if (!f) {
		uncount_file(p);
		return -ENOMEM;
	}
	f->pins = p;
	f->fd = -1;
	(void)pthread_mutex_init(&f->work, NULL);
	r = open_own(f, fd);
	if (r < 0)
		return r;
	r = map_and_lock(f);
	if (r < 0)
		return r;

	*ret = take_ptr(f);
	return 0;
}

void pins_file_close(struct pin_file *f)
{
	if (!f)
		return;
	if (f->map)
		(void)munmap(f->map, (size_t)f->map_len);
	if (f->fd >= 0)
		(void)close(f->fd);
	(void)pthread_mutex_lock(&f->pins->lock);
	f->pins->stats.pinned_bytes -= f->pinned_bytes;
	f->pins->taken_bytes -= f->pinned_bytes;
	(void)pthread_mutex_unlock(&f->pins->lock);
	uncount_file(f->pins);
	(void)pthread_mutex_destroy(&f->work);
	free(f->pages);
	free(f);
}

/* --- What a file is --- */

int pins_file_fd(const struct pin_file *f)
{
	return f->fd;
}

uint64_t pins_file_size(const struct pin_file *f)
{
	return f->size;
}

size_t pins_file_granules(const struct pin_file *f)
{
	return f->granules;
}

uint64_t pins_file_pinned_bytes(struct pin_file *f)
{
	uint64_t bytes;

	(void)pthread_mutex_lock(&f->pins->lock);
	bytes = f->pinned_bytes;
	(void)pthread_mutex_unlock(&f->pins->lock);
	return bytes;
}

bool pins_is_pinned(struct pin_file *f, size_t first, size_t count)
{
	size_t i = 0;

	assert(first <= f->granules && count <= f->granules - first);
	(void)pthread_mutex_lock(&f->pins->lock);
	while (i < count && f->pages[first + i])
		i++;
	(void)pthread_mutex_unlock(&f->pins->lock);
	return i == count;
}

struct pin_range pin_range_of(const struct pin_file *f, size_t first,
			      size_t count)
{
	uint64_t from = (uint64_t)first * PIN_GRANULE_BYTES;
	uint64_t to = (uint64_t)(first + count) * PIN_GRANULE_BYTES;

	return (struct pin_range){ from, to < f->map_len ? to : f->map_len };
}

bool pin_became_shorter(const struct pin_file *f)
{
	struct stat st;

	return fstat(f->fd, &st) == 0 && (uint64_t)st.st_size < f->size;
}

/* Fills in the hole and the data that come at or behind at. */
static int seek_data(struct pin_file *f, uint64_t at)
{
	off_t from = lseek(f->fd, (off_t)at, SEEK_DATA);
	off_t to;

	if (from < 0 && errno != ENXIO)
		return log_debug(-errno, "looking for data");
	if (from < 0 && pin_became_shorter(f))
		return log_debug(-EUCLEAN, "the file became shorter");
	f->hole_from = at;
	if (from < 0) {
		f->data = (struct pin_range){ UINT64_MAX, UINT64_MAX };
		return 0;
	}
	to = lseek(f->fd, from, SEEK_HOLE);
	if (to < 0)
		return log_debug(-errno, "looking for a hole");
	f->data = (struct pin_range){ (uint64_t)from, (uint64_t)to };
	return 0;
}

int pin_next_data(struct pin_file *f, struct pin_range in,
		  struct pin_range *ret)
{
	size_t page = f->pins->page;
	uint64_t from, to;
	int r;

	if (in.from >= in.to)
		return 0;
	if (in.from < f->hole_from || in.from >= f->data.to) {
		r = seek_data(f, in.from);
		if (r < 0)
			return r;
	}
	if (f->data.from >= in.to)
		return 0;
	from = f->data.from / page * page;
	to = (f->data.to + page - 1) / page * page;
	ret->from = from < in.from ? in.from : from;
	ret->to = f->data.to >= in.to ? in.to : to;
	return 1;
}

/* --- Unpinning --- */

int pin_zap(struct pin_file *f, struct pin_range range)
{
	if (range.from >= range.to)
		return 0;
	if (madvise(f->map + range.from, (size_t)(range.to - range.from),
		    MADV_DONTNEED_LOCKED) < 0)
		return log_debug(-errno, "unpinning");
	return 0;
}

void pin_forget_locked(struct pin_file *f, size_t granule)
{
	uint16_t pages = f->pages[granule];

	f->pages[granule] = 0;
	if (pages == 0 || pages == PIN_HOLE)
		return;
	f->pinned_bytes -= (uint64_t)pages * f->pins->page;
	f->pins->stats.pinned_bytes -= (uint64_t)pages * f->pins->page;
	f->pins->taken_bytes -= (uint64_t)pages * f->pins->page;
}

/* Takes out of the mapping, at once, whatever of it may be in there. */
static int unpin(struct pin_file *f, size_t first, size_t count)
{
	size_t from = first, to = first + count;
	int r;

	while (from < to && !f->pages[from])
		from++;
	while (to > from && !f->pages[to - 1])
		to--;
	if (from == to)
		return 0;
	r = pin_zap(f, pin_range_of(f, from, to - from));
	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&f->pins->lock);
	for (size_t i = from; i < to; i++)
		pin_forget_locked(f, i);
	(void)pthread_mutex_unlock(&f->pins->lock);
	return 0;
}

int pins_unpin(struct pin_file *f, size_t first, size_t count, bool drop)
{
	struct pin_range range;
	int r;

	if (first > f->granules || count > f->granules - first)
		return log_debug(-EINVAL, "granule %zu and %zu more", first,
				 count);
	if (count == 0)
		return 0;
	(void)pthread_mutex_lock(&f->work);
	r = unpin(f, first, count);
	(void)pthread_mutex_unlock(&f->work);
	range = pin_range_of(f, first, count);
	if (r == 0 && drop)
		(void)posix_fadvise(f->fd, (off_t)range.from,
				    (off_t)(range.to - range.from),
				    POSIX_FADV_DONTNEED);
	return r;
}
