/* SPDX-License-Identifier: Apache-2.0 */
#include "core/prefetch.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/list.h"
#include "core/log.h"
#include "core/memory_limit.h"
#include "core/pace.h"
#include "core/util.h"
#include "core/workers.h"

/*
 * How the cache is filled decides how fast it is mapped afterwards. Measured
 * with a file of 2 GiB, dropped before, on a disk that gives 3.5 GB/s, with one,
 * two and four threads and read-ahead of 128 KiB and 4 MiB. Then a byte of each
 * page was touched through a new mapping. In GB/s:
 *
 *	a window advised MADV_HUGEPAGE,		filled		touched
 *	  every second 2 MiB faulted in		3.1 to 3.6	50 to 150
 *	  all of it faulted in			1.1 to 3.6	1 to 320
 *	  all, and advised MADV_RANDOM		2.6 to 3.6	30 to 110
 *	preads of 4 MiB				0.6 to 3.1	10 to 250
 *	readahead(2) of 4 MiB			2.9 to 4.7	9 to 10
 *
 * The kernel answers such a fault with two huge pages, the second of which
 * nobody has to wait for, so the device stays busy. A fault in the second one
 * would start ordinary read-ahead behind it, in pages as small as that is.
 * Hence a step that is on its way already is passed over. Somebody who began to
 * read or map at the same moment was done soonest beside three threads of this
 * kind: in a seventh to two thirds of the time that it took alone with 128 KiB
 * of read-ahead; with 4 MiB in 0.7 to 0.9 of it where nobody else used the disk.
 *
 * readahead(2) takes small pages always, but needs neither a mapping nor a
 * buffer: it does where there are no huge pages, and beside holes.
 */
#define STEP_BYTES ((uint64_t)2 << 20)
#define STEPS (PREFETCH_WINDOW_BYTES / STEP_BYTES)

#define ST_BLOCK_BYTES 512 /* stat's unit */
#define PAUSE_MS_MAX 60000 /* at a time */

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

struct lane {
	struct work work;
	struct prefetcher *prefetcher;
};

struct prefetcher {
	pthread_mutex_t lock;
	pthread_cond_t changed;        /* a job came, was left, or is to end */
	struct prefetch_limits limits; /* constant */
	uint64_t page;                 /* constant */
	struct workers *pool; /* constant; each thread runs one lane for ever */
	atomic_bool cant_populate; /* the kernel is older than 5.14 */

	/* Guarded by lock. */
	struct list queue;   /* jobs that have windows left, in turn */
	uint64_t held_bytes; /* of all jobs */
	struct prefetch_stats stats;
	bool ending;

	struct lane lanes[]; /* constant */
};

struct prefetch {
	struct prefetcher *prefetcher; /* constant */
	uint64_t size;                 /* constant */
	bool has_holes;                /* constant */
	atomic_bool stopping;
	atomic_bool over;

	/* Guarded by the prefetcher's lock. */
	int fd; /* -1 when over; lanes inside read it without the lock */
	struct list turn;
	uint64_t next;       /* where the next window begins */
	unsigned lanes;      /* that are inside */
	uint64_t held_bytes; /* brought in, or about to be */
	uint64_t read_bytes;
};

/* One lane's visit to a window. */
struct visit {
	struct prefetch *job;
	int fd; /* the job's, which stays open while a lane is inside */
	uint64_t from, to;
	char *map;               /* of [from, to) */
	bool is_huge;            /* a fault reads whole steps */
	uint64_t missing[STEPS]; /* bytes of data the cache lacked at first */
	uint64_t total;          /* of these */
};

/* ---- What is there of a range ---- */

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static int cached_pages(const struct visit *v, uint64_t from, uint64_t len,
			uint64_t *ret)
{
	struct {
		uint64_t off;
		uint64_t len;
	} range = { from, len };
	struct {
		uint64_t cached;
		uint64_t dirty;
		uint64_t writeback;
		uint64_t evicted;
		uint64_t evicted_recently;
	} answer;

	if (syscall(SYS_cachestat, v->fd, &range, &answer, 0) < 0)
		return -errno;
	*ret = answer.cached;
	return 0;
}

/* The same on kernels before 6.5. from is at a page. */
static int resident_pages(const struct visit *v, uint64_t from, uint64_t len,
			  uint64_t *ret)
{
	uint64_t page = v->job->prefetcher->page;
	unsigned char resident[STEP_BYTES / 4096]; /* no page is smaller */
	size_t pages = (size_t)((len + page - 1) / page);
	uint64_t count = 0;

	if (mincore(v->map + (from - v->from), (size_t)len, resident) < 0)
		return -errno;
	for (size_t i = 0; i < pages; i++)
		count += resident[i] & 1;
	*ret = count;
	return 0;
}

/* How much of a range within one step the cache lacks; all, if not known. */
static uint64_t lacking(const struct visit *v, uint64_t from, uint64_t len)
{
	uint64_t page = v->job->prefetcher->page;
	uint64_t cached = 0;
	int r;

	r = cached_pages(v, from, len, &cached);
	if (r == -ENOSYS)
		r = resident_pages(v, from, len, &cached);
	if (r < 0 || cached > len / page + 1)
		return len;
	return len - smaller(len, cached * page);
}

/*
 * The next range of data in [from, to), in whole pages. Only files with holes
 * are asked: it costs a search in the map of blocks. Returns false for none,
 * and where the filesystem doesn't say, all is data.
 */
static bool next_data(const struct visit *v, uint64_t from, uint64_t to,
		      uint64_t *ret_from, uint64_t *ret_to)
{
	uint64_t page = v->job->prefetcher->page;
	off_t data, hole;

	*ret_from = from;
	*ret_to = to;
	if (from >= to)
		return false;
	if (!v->job->has_holes)
		return true;
	data = lseek(v->fd, (off_t)from, SEEK_DATA);
	if (data < 0)
		return errno != ENXIO;
	if ((uint64_t)data >= to)
		return false;
	if ((uint64_t)data > from)
		*ret_from = (uint64_t)data / page * page;
	hole = lseek(v->fd, data, SEEK_HOLE);
	if (hole > 0 && (uint64_t)hole < to)
		*ret_to =
			smaller(((uint64_t)hole + page - 1) / page * page, to);
	return true;
}

/* ---- A window ---- */

static uint64_t step_end(const struct visit *v, uint64_t at)
{
	return smaller(at + STEP_BYTES, v->to);
}

static void plan(struct visit *v)
{
	size_t i = 0;

	v->total = 0;
	for (uint64_t at = v->from; at < v->to; at += STEP_BYTES, i++) {
		uint64_t left = at, from, to;

		v->missing[i] = 0;
		for (; next_data(v, left, step_end(v, at), &from, &to);
		     left = to)
			v->missing[i] += lacking(v, from, to - from);
		v->total += v->missing[i];
	}
}

/* Reads the data of a step in small pages, and doesn't wait for it. */
static int read_small(struct visit *v, uint64_t at, uint64_t end)
{
	uint64_t from, to;

	for (; next_data(v, at, end, &from, &to); at = to)
		if (readahead(v->fd, (off_t)from, (size_t)(to - from)) < 0)
			return log_debug(-errno, "reading ahead at %llu",
					 (unsigned long long)from);
	return 0;
}

static int read_step(struct visit *v, uint64_t at)
{
	struct prefetcher *p = v->job->prefetcher;
	uint64_t end = step_end(v, at);
	uint64_t from, to;

	/* A fault takes the hole along. */
	if (!v->is_huge || atomic_load(&p->cant_populate) ||
	    (next_data(v, at, end, &from, &to) && (from > at || to < end)))
		return read_small(v, at, end);
	/* The step before, or whoever reads the file, may have brought it. */
	if (lacking(v, at, end - at) == 0)
		return 0;
	if (madvise(v->map + (at - v->from), (size_t)(end - at),
		    MADV_POPULATE_READ) == 0)
		return 0;
	if (errno != EINVAL)
		return log_debug(-errno, "faulting in at %llu",
				 (unsigned long long)at);
	atomic_store(&p->cant_populate, true);
	return read_small(v, at, end);
}

/* Waits for the pace, but not longer than the job lasts. */
static void pause_for(struct prefetch *job, uint64_t ms)
{
	struct prefetcher *p = job->prefetcher;
	uint64_t now = clock_monotonic_ms();
	uint64_t end = ms < UINT64_MAX - now ? now + ms : UINT64_MAX;

	(void)pthread_mutex_lock(&p->lock);
	for (; !atomic_load(&job->stopping) && now < end;
	     now = clock_monotonic_ms())
		clock_cond_wait(&p->changed, &p->lock,
				smaller(end - now, PAUSE_MS_MAX));
	(void)pthread_mutex_unlock(&p->lock);
}

static void account(struct prefetch *job, uint64_t bytes)
{
	struct prefetcher *p = job->prefetcher;
	uint64_t ms = 0;

	(void)pthread_mutex_lock(&p->lock);
	p->stats.read_bytes_total += bytes;
	job->read_bytes += bytes;
	(void)pthread_mutex_unlock(&p->lock);
	if (p->limits.pace)
		ms = pace_take(p->limits.pace, bytes, clock_monotonic_ms());
	if (ms)
		pause_for(job, ms);
}

/* Takes bytes of what there is room for. Errors: -ENOSPC. */
static int take_room(struct prefetch *job, uint64_t bytes)
{
	struct prefetcher *p = job->prefetcher;
	uint64_t room =
		p->limits.room ? p->limits.room(p->limits.arg) : UINT64_MAX;
	int r = -ENOSPC;

	(void)pthread_mutex_lock(&p->lock);
	if (p->held_bytes <= room && bytes <= room - p->held_bytes) {
		p->held_bytes += bytes;
		job->held_bytes += bytes;
		r = 0;
	}
	(void)pthread_mutex_unlock(&p->lock);
	return r;
}

static void give_room_back(struct prefetch *job, uint64_t bytes)
{
	struct prefetcher *p = job->prefetcher;

	(void)pthread_mutex_lock(&p->lock);
	p->held_bytes -= bytes;
	job->held_bytes -= bytes;
	(void)pthread_mutex_unlock(&p->lock);
}

static int read_window(struct visit *v)
{
	uint64_t left = v->total;
	size_t i = 0;
	int r;

	r = take_room(v->job, v->total);
	if (r < 0)
		return r;
	for (uint64_t at = v->from; at < v->to; at += STEP_BYTES, i++) {
		if (atomic_load(&v->job->stopping))
			break;
		if (v->missing[i] == 0)
			continue;
		r = read_step(v, at);
		if (r < 0)
			break;
		left -= v->missing[i];
		account(v->job, v->missing[i]);
	}
	give_room_back(v->job, left);
	return r;
}

static int visit_window(struct visit *v)
{
	size_t len = (size_t)(v->to - v->from);
	int r = 0;

	v->map = mmap(NULL, len, PROT_READ, MAP_SHARED, v->fd, (off_t)v->from);
	if (v->map == MAP_FAILED)
		return log_debug(-errno, "mapping a window");
	v->is_huge = madvise(v->map, len, MADV_HUGEPAGE) == 0;
	/* The page that comes along could be of a hole. */
	if (v->job->has_holes)
		(void)madvise(v->map, len, MADV_RANDOM);
	plan(v);
	if (v->total)
		r = read_window(v);
	(void)munmap(v->map, len);
	return r;
}

/* ---- Jobs ---- */

/* Lets a job that has nothing left to do, and no lane inside, be over. */
static void settle_locked(struct prefetch *job)
{
	if (job->lanes || !list_empty(&job->turn) || atomic_load(&job->over))
		return;
	(void)close(job->fd);
	job->fd = -1;
	job->prefetcher->stats.running--;
	atomic_store(&job->over, true);
	(void)pthread_cond_broadcast(&job->prefetcher->changed);
}

/* No more windows are begun, and lanes inside leave soon. */
static void end_locked(struct prefetch *job)
{
	atomic_store(&job->stopping, true);
	list_remove(&job->turn);
	(void)pthread_cond_broadcast(&job->prefetcher->changed);
	settle_locked(job);
}

/* Enters the next window of the job whose turn it is; false when there's none. */
static bool enter_locked(struct prefetcher *p, struct visit *v)
{
	struct list *first = list_first(&p->queue);
	struct prefetch *job;

	if (!first)
		return false;
	job = container_of(first, struct prefetch, turn);
	v->job = job;
	v->fd = job->fd;
	v->from = job->next;
	v->to = v->from + smaller(job->size - v->from, PREFETCH_WINDOW_BYTES);
	job->next = v->to;
	job->lanes++;
	if (job->next < job->size)
		list_move_tail(&p->queue, first);
	else
		list_remove(first);
	return true;
}

static void leave_locked(struct prefetch *job, int r)
{
	job->lanes--;
	if (r < 0 && !atomic_load(&job->stopping)) {
		job->prefetcher->stats.stopped_for_room_total += r == -ENOSPC;
		end_locked(job);
	}
	settle_locked(job);
}

static void lane_run(struct work *work)
{
	struct lane *lane = container_of(work, struct lane, work);
	struct prefetcher *p = lane->prefetcher;
	struct visit v;
	int r;

	(void)pthread_mutex_lock(&p->lock);
	while (!p->ending) {
		if (!enter_locked(p, &v)) {
			(void)pthread_cond_wait(&p->changed, &p->lock);
			continue;
		}
		(void)pthread_mutex_unlock(&p->lock);
		r = visit_window(&v);
		(void)pthread_mutex_lock(&p->lock);
		leave_locked(v.job, r);
	}
	(void)pthread_mutex_unlock(&p->lock);
}

/* Whether fewer blocks are there than it has bytes. */
static bool has_holes(int fd)
{
	struct stat st;

	return fstat(fd, &st) < 0 ||
	       (uint64_t)st.st_blocks < (uint64_t)st.st_size / ST_BLOCK_BYTES;
}

int prefetch_start(struct prefetcher *p, int fd, uint64_t size,
		   struct prefetch **ret)
{
	auto_free struct prefetch *job = calloc(1, sizeof(*job));

	if (!job)
		return -ENOMEM;
	job->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (job->fd < 0)
		return log_debug(-errno, "a descriptor for prefetching");
	job->prefetcher = p;
	job->size = size;
	job->has_holes = has_holes(fd);
	list_init(&job->turn);
	(void)pthread_mutex_lock(&p->lock);
	p->stats.files_total++;
	p->stats.running++;
	if (size)
		list_add_tail(&p->queue, &job->turn);
	(void)pthread_cond_broadcast(&p->changed);
	settle_locked(job);
	(void)pthread_mutex_unlock(&p->lock);
	*ret = take_ptr(job);
	return 0;
}

void prefetch_cancel(struct prefetch *job)
{
	(void)pthread_mutex_lock(&job->prefetcher->lock);
	end_locked(job);
	(void)pthread_mutex_unlock(&job->prefetcher->lock);
}

void prefetch_stop(struct prefetch *job)
{
	struct prefetcher *p;

	if (!job)
		return;
	p = job->prefetcher;
	(void)pthread_mutex_lock(&p->lock);
	end_locked(job);
	while (!atomic_load(&job->over))
		(void)pthread_cond_wait(&p->changed, &p->lock);
	p->held_bytes -= job->held_bytes;
	(void)pthread_mutex_unlock(&p->lock);
	free(job);
}

uint64_t prefetch_position(struct prefetch *job)
{
	struct prefetcher *p = job->prefetcher;
	uint64_t position;

	(void)pthread_mutex_lock(&p->lock);
	position = atomic_load(&job->over) ? job->size : job->next;
	(void)pthread_mutex_unlock(&p->lock);
	return position;
}

uint64_t prefetch_read_bytes(struct prefetch *job)
{
	uint64_t bytes;

	(void)pthread_mutex_lock(&job->prefetcher->lock);
	bytes = job->read_bytes;
	(void)pthread_mutex_unlock(&job->prefetcher->lock);
	return bytes;
}

bool prefetch_is_over(const struct prefetch *job)
{
	return atomic_load(&job->over);
}

/* ---- The prefetcher ---- */

void prefetcher_free(struct prefetcher *p)
{
	if (!p)
		return;
	(void)pthread_mutex_lock(&p->lock);
	assert(p->stats.running == 0);
	p->ending = true;
	(void)pthread_cond_broadcast(&p->changed);
	(void)pthread_mutex_unlock(&p->lock);
	workers_free(p->pool);
	(void)pthread_cond_destroy(&p->changed);
	(void)pthread_mutex_destroy(&p->lock);
	free(p);
}

int prefetcher_new(unsigned threads, const struct prefetch_limits *limits,
		   struct prefetcher **ret)
{
	auto_free struct prefetcher *p = NULL;
	int r;

	p = calloc(1, sizeof(*p) + threads * sizeof(p->lanes[0]));
	if (!p)
		return -ENOMEM;
	p->limits = *limits;
	p->page = (uint64_t)sysconf(_SC_PAGESIZE);
	list_init(&p->queue);
	/* Not a nice one: somebody waits for what it brings. */
	r = workers_new("prefetch", threads, 0, &p->pool);
	if (r < 0)
		return r;
	r = clock_cond_init(&p->changed);
	if (r < 0) {
		workers_free(p->pool);
		return r;
	}
	(void)pthread_mutex_init(&p->lock, NULL);
	for (unsigned i = 0; i < threads; i++) {
		p->lanes[i].prefetcher = p;
		p->lanes[i].work.run = lane_run;
		p->lanes[i].work.priority = WORK_SERVING;
		workers_submit(p->pool, &p->lanes[i].work);
	}
	*ret = take_ptr(p);
	return 0;
}

void prefetch_stats(struct prefetcher *p, struct prefetch_stats *ret)
{
	(void)pthread_mutex_lock(&p->lock);
	*ret = p->stats;
	(void)pthread_mutex_unlock(&p->lock);
}

int prefetch_available_memory(const char *root, uint64_t *ret)
{
	return memory_limit_available(root, ret);
}
