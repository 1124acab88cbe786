/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/holders.h"
#include "core/pace.h"
#include "core/prefetch.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

#define MIB ((uint64_t)1 << 20)
#define W PREFETCH_WINDOW_BYTES
#define THREADS 3
#define ATTEMPTS 10 /* others drop caches, too */
#define PATIENCE_MS 60000

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

static const struct prefetch_limits no_limits;

/* ---- Files whose cache can be dropped ---- */

static bool has_disk(void)
{
	struct statfs st;

	return statfs("/var/tmp", &st) == 0 &&
	       (st.f_type == EXT4_SUPER_MAGIC || st.f_type == XFS_SUPER_MAGIC ||
		st.f_type == BTRFS_SUPER_MAGIC);
}

#define need_disk()                                                            \
	do {                                                                   \
		if (has_disk())                                                \
			break;                                                 \
		printf("# %s: skipped, /var/tmp is not on a disk\n",           \
		       __func__);                                              \
		return;                                                        \
	} while (0)

/* A new file without a name, open for reading and writing. */
static int make_empty(uint64_t size)
{
	char path[] = "/var/tmp/test_prefetch.XXXXXX";
	int fd = mkostemp(path, O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
	return fd;
}

static void put_data(int fd, uint64_t from, uint64_t len)
{
	auto_free char *piece = malloc(MIB);

	ck_assert_ptr_nonnull(piece);
	memset(piece, 'x', MIB);
	for (uint64_t at = from; at < from + len; at += MIB) {
		size_t n = from + len - at < MIB ? from + len - at : MIB;

		ck_assert_int_eq(pwrite(fd, piece, n, (off_t)at), (ssize_t)n);
	}
}

static void drop(int fd)
{
	ck_assert_int_eq(fsync(fd), 0);
	ck_assert_int_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
}

static int make_file(uint64_t size)
{
	int fd = make_empty(size);

	put_data(fd, 0, size);
	drop(fd);
	return fd;
}

/* Bytes of [0, size) that are in the cache, in whole pages. */
static uint64_t cached_bytes(int fd, uint64_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t pages = (size + page - 1) / page, count = 0;
	unsigned char *seen = malloc(pages);
	void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);

	ck_assert_ptr_nonnull(seen);
	ck_assert_ptr_ne(map, MAP_FAILED);
	ck_assert_int_eq(mincore(map, size, seen), 0);
	for (size_t i = 0; i < pages; i++)
		count += seen[i] & 1;
	(void)munmap(map, size);
	free(seen);
	return count * page;
}

static void nap(void)
{
	struct timespec ms = { .tv_nsec = 1000000 };

	(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &ms, NULL);
}

static void await_over(const struct prefetch *job)
{
	uint64_t end = clock_monotonic_ms() + PATIENCE_MS;

	while (!prefetch_is_over(job)) {
		ck_assert_uint_lt(clock_monotonic_ms(), end);
		nap();
	}
}

static struct prefetcher *make(unsigned threads,
			       const struct prefetch_limits *limits)
{
	struct prefetcher *p = NULL;

	ck_assert_int_eq(prefetcher_new(threads, limits, &p), 0);
	return p;
}

static struct prefetch *begin(struct prefetcher *p, int fd, uint64_t size)
{
	struct prefetch *job = NULL;

	ck_assert_int_eq(prefetch_start(p, fd, size, &job), 0);
	return job;
}

static struct prefetch_stats stats_of(struct prefetcher *p)
{
	struct prefetch_stats stats;

	prefetch_stats(p, &stats);
	return stats;
}

/* Prefetches all of it and returns what was read. */
static uint64_t read_by(struct prefetcher *p, int fd, uint64_t size)
{
	uint64_t before = stats_of(p).read_bytes_total;
	struct prefetch *job = begin(p, fd, size);

	await_over(job);
	prefetch_stop(job);
	return stats_of(p).read_bytes_total - before;
}

/* Prefetches the dropped file until all of expected is in the cache. */
static void assert_fills(int fd, uint64_t size, uint64_t expected)
{
	struct prefetcher *p = make(THREADS, &no_limits);

	for (int i = 0; cached_bytes(fd, size) != expected; i++) {
		ck_assert_int_lt(i, ATTEMPTS);
		(void)read_by(p, fd, size);
		/* What read-ahead was asked for is on its way. */
		for (int ms = 0; ms < 500; ms++)
			if (cached_bytes(fd, size) != expected)
				nap();
	}
	prefetcher_free(p);
}

/* ---- Filling ---- */

/* clang-format off */
static const uint64_t sizes[] = {
	1, 4096, 4097, 2 * MIB, 2 * MIB + 1, W - 1, W, W + 1, 3 * W + 5 * MIB,
};
/* clang-format on */

START_TEST(a_dropped_file_is_in_the_cache_afterwards)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t size = sizes[_i];
	auto_fd int fd = -1;

	need_disk();
	fd = make_file(size);
	assert_fills(fd, size, (size + page - 1) / page * page);
}
END_TEST

START_TEST(what_was_read_is_counted_and_what_is_cached_is_passed_over)
{
	struct prefetcher *p = make(1, &no_limits);
	uint64_t size = 2 * W + 3 * MIB;
	auto_fd int fd = -1;
	bool ok = false;

	need_disk();
	fd = make_file(size);
	for (int i = 0; i < ATTEMPTS && !ok; i++) {
		drop(fd);
		ok = read_by(p, fd, size) == size && read_by(p, fd, size) == 0;
	}
	ck_assert(ok);
	ck_assert_uint_eq(stats_of(p).files_total % 2, 0);
	ck_assert_uint_eq(stats_of(p).running, 0);
	ck_assert_uint_eq(stats_of(p).stopped_for_room_total, 0);
	prefetcher_free(p);
}
END_TEST

START_TEST(only_what_the_cache_lacks_is_read)
{
	struct prefetcher *p = make(2, &no_limits);
	uint64_t size = W, part = 8 * MIB;
	auto_free char *piece = malloc(part);
	auto_fd int fd = -1, other = -1;
	bool ok = false;
	char path[32];

	need_disk();
	fd = make_file(size);
	/* Another open file, through which nothing is read ahead. */
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	other = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(other, 0);
	ck_assert_int_eq(posix_fadvise(other, 0, 0, POSIX_FADV_RANDOM), 0);
	for (int i = 0; i < ATTEMPTS && !ok; i++) {
		uint64_t before;

		drop(fd);
		ck_assert_int_eq(pread(other, piece, part, 4 * MIB),
				 (ssize_t)part);
		before = cached_bytes(fd, size);
		ok = before >= part && read_by(p, fd, size) == size - before &&
		     cached_bytes(fd, size) == size;
	}
	ck_assert(ok);
	prefetcher_free(p);
}
END_TEST

START_TEST(holes_are_left_alone)
{
	static const struct {
		uint64_t from, len;
	} data[] = {
		{ 4 * MIB, 2 * MIB },  /* a whole step */
		{ 9 * MIB, 64 << 10 }, /* part of one */
		{ 10 * MIB, MIB },     /* its beginning */
		{ 15 * MIB, MIB },     /* its end */
		{ W + 3 * MIB, 9 * MIB },
	};
	uint64_t size = 3 * W, filled = 0, cached;
	struct prefetcher *p = make(THREADS, &no_limits);
	auto_fd int fd = -1;

	need_disk();
	fd = make_empty(size);
	for (size_t i = 0; i < ARRAY_LEN(data); i++) {
		put_data(fd, data[i].from, data[i].len);
		filled += data[i].len;
	}
	drop(fd);
	ck_assert_uint_eq(read_by(p, fd, size), filled);
	prefetcher_free(p);
	assert_fills(fd, size, filled);
	cached = cached_bytes(fd, size);
	ck_assert_uint_eq(cached, filled);
}
END_TEST

START_TEST(many_files_advance_with_few_threads)
{
	enum { FILES = 40 };
	struct prefetcher *p = make(2, &no_limits);
	struct prefetch *jobs[FILES];
	uint64_t size = 3 * MIB;
	int fds[FILES];

	need_disk();
	for (int i = 0; i < FILES; i++)
		fds[i] = make_file(size);
	for (int i = 0; i < FILES; i++) {
		jobs[i] = begin(p, fds[i], size);
		/* It has one of its own. */
		if (i % 2)
			(void)close(fds[i]);
	}
	for (int i = 0; i < FILES; i++)
		await_over(jobs[i]);
	ck_assert_uint_eq(stats_of(p).files_total, FILES);
	ck_assert_uint_eq(stats_of(p).running, 0);
	ck_assert_uint_gt(stats_of(p).read_bytes_total, size);
	for (int i = 0; i < FILES; i++) {
		prefetch_stop(jobs[i]);
		if (i % 2 == 0)
			(void)close(fds[i]);
	}
	prefetcher_free(p);
}
END_TEST

/* ---- Older kernels ---- */

/* From now on this process is told that it has no such call. */
static bool refuse_calls(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_cachestat, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_POPULATE_READ, 2, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
	};
	struct sock_fprog program = { ARRAY_LEN(code), code };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

START_TEST(kernels_without_the_newer_calls_fill_the_cache_too)
{
	uint64_t size = W + 5 * MIB, hole = 3 * MIB;
	auto_fd int fd = -1;

	need_disk();
	if (!refuse_calls()) {
		printf("# skipped, calls can't be refused here\n");
		return;
	}
	ck_assert_int_eq(syscall(SYS_cachestat, -1, NULL, NULL, 0), -1);
	ck_assert_int_eq(errno, ENOSYS);
	ck_assert_int_eq(madvise(&fd, 0, MADV_POPULATE_READ), -1);
	ck_assert_int_eq(errno, EINVAL);
	fd = make_file(size);
	assert_fills(fd, size, size);
	(void)close(fd);
	fd = make_empty(size);
	put_data(fd, hole, size - hole);
	drop(fd);
	assert_fills(fd, size, size - hole);
}
END_TEST

/* ---- Limits ---- */

static uint64_t room_of(void *arg)
{
	return *(const uint64_t *)arg;
}

/* clang-format off */
static const struct {
	uint64_t room, expected, stopped;
} rooms[] = {
	{ 0,           0,         1 },
	{ W - 1,       0,         1 },
	{ W,           W,         1 },
	{ 2 * W,       2 * W,     1 },
	{ 3 * W,       3 * W,     0 },
	{ UINT64_MAX,  3 * W,     0 },
};
/* clang-format on */

START_TEST(it_stops_where_the_room_ends)
{
	uint64_t room = rooms[_i].room;
	struct prefetch_limits limits = { .room = room_of, .arg = &room };
	struct prefetcher *p = make(1, &limits);
	auto_fd int fd = -1;

	need_disk();
	fd = make_file(3 * W);
	ck_assert_uint_eq(read_by(p, fd, 3 * W), rooms[_i].expected);
	ck_assert_uint_eq(stats_of(p).stopped_for_room_total,
			  rooms[_i].stopped);
	ck_assert_uint_eq(stats_of(p).running, 0);
	prefetcher_free(p);
}
END_TEST

START_TEST(room_is_for_all_jobs_until_they_are_stopped)
{
	uint64_t room = 2 * W;
	struct prefetch_limits limits = { .room = room_of, .arg = &room };
	struct prefetcher *p = make(2, &limits);
	struct prefetch *first;
	auto_fd int fd = -1, other = -1;

	need_disk();
	fd = make_file(2 * W);
	other = make_file(2 * W);
	first = begin(p, fd, 2 * W);
	await_over(first);
	ck_assert_uint_eq(read_by(p, other, 2 * W), 0);
	ck_assert_uint_eq(stats_of(p).stopped_for_room_total, 1);
	prefetch_stop(first);
	ck_assert_uint_eq(read_by(p, other, 2 * W), 2 * W);
	prefetcher_free(p);
}
END_TEST

START_TEST(the_pace_is_kept)
{
	struct prefetch_limits limits = { 0 };
	struct prefetcher *p;
	uint64_t size = W, begin_ms, took_ms;
	auto_fd int fd = -1;

	need_disk();
	fd = make_file(size);
	ck_assert_int_eq(pace_new(64 * MIB, &limits.pace), 0);
	p = make(THREADS, &limits);
	begin_ms = clock_monotonic_ms();
	ck_assert_uint_eq(read_by(p, fd, size), size);
	took_ms = clock_monotonic_ms() - begin_ms;
	ck_assert_uint_ge(took_ms, 500 - PACE_BURST_MS - 1);
	prefetcher_free(p);
	pace_free(limits.pace);
}
END_TEST

START_TEST(a_long_pause_ends_with_the_job)
{
	struct prefetch_limits limits = { 0 };
	struct prefetcher *p;
	struct prefetch *job;
	uint64_t begin_ms;
	auto_fd int fd = -1;

	need_disk();
	fd = make_file(2 * W);
	ck_assert_int_eq(pace_new(1, &limits.pace), 0);
	p = make(2, &limits);
	job = begin(p, fd, 2 * W);
	while (stats_of(p).read_bytes_total < 4 * MIB)
		nap();
	ck_assert(!prefetch_is_over(job));
	ck_assert_uint_eq(stats_of(p).running, 1);
	begin_ms = clock_monotonic_ms();
	prefetch_cancel(job);
	await_over(job);
	prefetch_stop(job);
	ck_assert_uint_lt(clock_monotonic_ms() - begin_ms, 10000);
	ck_assert_uint_eq(stats_of(p).read_bytes_total, 4 * MIB);
	prefetcher_free(p);
	pace_free(limits.pace);
}
END_TEST

/* ---- Descriptors, holders, failures ---- */

static unsigned descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned count = 0;

	ck_assert_ptr_nonnull(dir);
	while (readdir(dir))
		count++;
	(void)closedir(dir);
	return count;
}

START_TEST(the_descriptor_goes_when_the_job_is_over)
{
	struct prefetcher *p = make(2, &no_limits);
	unsigned before;
	struct prefetch *job;
	auto_fd int fd = -1;

	need_disk();
	fd = make_file(3 * MIB);
	before = descriptors();
	job = begin(p, fd, 3 * MIB);
	await_over(job);
	ck_assert_uint_eq(descriptors(), before);
	prefetch_stop(job);
	job = begin(p, fd, 3 * MIB);
	prefetch_stop(job);
	ck_assert_uint_eq(descriptors(), before);
	prefetcher_free(p);
}
END_TEST

START_TEST(an_empty_file_is_over_at_once)
{
	struct prefetcher *p = make(1, &no_limits);
	auto_fd int fd = make_empty(0);
	struct prefetch *job = begin(p, fd, 0);

	ck_assert(prefetch_is_over(job));
	prefetch_cancel(job);
	prefetch_stop(job);
	prefetch_stop(NULL);
	prefetcher_free(p);
	prefetcher_free(NULL);
}
END_TEST

START_TEST(it_does_not_look_like_somebody_who_holds_the_file)
{
	struct prefetch_limits limits = { 0 };
	struct prefetcher *p;
	struct prefetch *job;
	char path[32];
	auto_fd int writable = -1, fd = -1;

	need_disk();
	holders_init();
	writable = make_file(2 * W);
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", writable);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	(void)close(take_fd(&writable));
	if (holders_any_but(fd) != 0) {
		printf("# skipped, holders can't be seen here\n");
		return;
	}
	/* So slow that it is in the middle of a window. */
	ck_assert_int_eq(pace_new(1, &limits.pace), 0);
	p = make(2, &limits);
	job = begin(p, fd, 2 * W);
	while (stats_of(p).read_bytes_total < 4 * MIB)
		nap();
	ck_assert_int_eq(holders_any_but(fd), 0);
	prefetch_stop(job);
	ck_assert_int_eq(holders_any_but(fd), 0);
	prefetcher_free(p);
	pace_free(limits.pace);
}
END_TEST

START_TEST(a_file_that_ends_early_ends_its_job)
{
	struct prefetcher *p = make(2, &no_limits);
	auto_fd int fd = -1;

	need_disk();
	fd = make_file(3 * MIB);
	(void)read_by(p, fd, 9 * W);
	(void)read_by(p, fd, UINT64_MAX);
	ck_assert_int_eq(ftruncate(fd, 0), 0);
	(void)read_by(p, fd, 3 * MIB);
	ck_assert_uint_eq(stats_of(p).running, 0);
	ck_assert_uint_eq(stats_of(p).stopped_for_room_total, 0);
	prefetcher_free(p);
}
END_TEST

START_TEST(what_cannot_be_mapped_ends_its_job)
{
	struct prefetcher *p = make(2, &no_limits);
	int ends[2];

	ck_assert_int_eq(pipe(ends), 0);
	ck_assert_uint_eq(read_by(p, ends[0], W), 0);
	(void)close(ends[0]);
	(void)close(ends[1]);
	prefetcher_free(p);
}
END_TEST

START_TEST(without_a_descriptor_left_it_does_not_start)
{
	struct prefetcher *p = make(1, &no_limits);
	struct rlimit limit = { 64, 64 };
	struct prefetch *job = NULL;
	auto_fd int fd = make_empty(MIB);

	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	while (dup(fd) >= 0)
		;
	ck_assert_int_eq(prefetch_start(p, fd, MIB, &job), -EMFILE);
	ck_assert_ptr_null(job);
	ck_assert_uint_eq(stats_of(p).files_total, 0);
	prefetcher_free(p);
}
END_TEST

START_TEST(a_prefetcher_needs_threads)
{
	struct prefetcher *p = NULL;

	ck_assert_int_eq(prefetcher_new(0, &no_limits, &p), -EINVAL);
	ck_assert_ptr_null(p);
}
END_TEST

struct hustle {
	struct prefetcher *prefetcher;
	int fd;
	uint64_t size;
};

static void *start_and_stop(void *arg)
{
	struct hustle *h = arg;

	for (int i = 0; i < 200; i++) {
		struct prefetch *job = begin(h->prefetcher, h->fd, h->size);

		if (i % 3 == 0)
			prefetch_cancel(job);
		if (i % 5 == 0)
			while (!prefetch_is_over(job))
				nap();
		prefetch_stop(job);
		if (i % 16 == 0)
			(void)posix_fadvise(h->fd, 0, 0, POSIX_FADV_DONTNEED);
	}
	return NULL;
}

START_TEST(jobs_may_be_stopped_at_any_time)
{
	struct hustle h = { .size = 6 * MIB };
	pthread_t threads[4];

	need_disk();
	h.prefetcher = make(THREADS, &no_limits);
	h.fd = make_file(h.size);
	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, start_and_stop, &h),
			0);
	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		(void)pthread_join(threads[i], NULL);
	ck_assert_uint_eq(stats_of(h.prefetcher).running, 0);
	ck_assert_uint_eq(stats_of(h.prefetcher).files_total, 800);
	prefetcher_free(h.prefetcher);
	(void)close(h.fd);
}
END_TEST

static int make_start_and_drop(void)
{
	cleanup(prefetcher_free_cleanup) struct prefetcher *p = NULL;
	auto_fd int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct prefetch *job = NULL;
	int r;

	r = prefetcher_new(2, &no_limits, &p);
	if (r == 0)
		r = prefetch_start(p, fd, MIB, &job);
	prefetch_stop(job);
	return r;
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(make_start_and_drop);
}
END_TEST

/* ---- Available memory ---- */

static char root[] = "/tmp/test_prefetch.XXXXXX";

static void make_root(void)
{
	ck_assert_ptr_nonnull(mkdtemp(root));
}

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void remove_root(void)
{
	(void)nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Makes a file below root, and the folders that it is in. */
static void put(const char *name, const char *text)
{
	char path[256];
	int fd;

	(void)snprintf(path, sizeof(path), "%s%s", root, name);
	for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		ck_assert(mkdir(path, 0700) == 0 || errno == EEXIST);
		*at = '/';
	}
	fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	(void)close(fd);
}

static void assert_available(uint64_t expected)
{
	uint64_t available = 0;

	ck_assert_int_eq(prefetch_available_memory(root, &available), 0);
	ck_assert_uint_eq(available, expected);
}

#define MEMINFO                                                                \
	"MemTotal:        9000 kB\nMemFree:            7 kB\n"                 \
	"MemAvailable:    1000 kB\n"
#define V2 "/sys/fs/cgroup"
#define V1 "/sys/fs/cgroup/memory"

START_TEST(without_limits_it_is_what_the_machine_has)
{
	put("/proc/meminfo", MEMINFO);
	assert_available(1024000);
	put("/proc/self/cgroup", "0::/a\n");
	put(V2 "/a/memory.max", "max\n");
	put(V2 "/a/memory.current", "5000\n");
	assert_available(1024000);
}
END_TEST

START_TEST(a_group_has_its_limit_without_what_it_uses_but_for_the_cache)
{
	put("/proc/meminfo", MEMINFO);
	put("/proc/self/cgroup", "0::/a/b\n");
	put(V2 "/a/b/memory.max", "90000\n");
	assert_available(90000);
	put(V2 "/a/b/memory.current", "50000\n");
	assert_available(40000);
	put(V2 "/a/b/memory.stat",
	    "anon 7\nfile 99999\ninactive_anon 1\nactive_anon 2\n"
	    "inactive_file 3000\nactive_file 200\nunevictable 9\n");
	assert_available(43200);
	/* More than that is full, and no more than the limit is there. */
	put(V2 "/a/b/memory.current", "100000\n");
	assert_available(0);
	put(V2 "/a/b/memory.current", "100\n");
	assert_available(90000);
	/* The group above is in more need. */
	put(V2 "/a/memory.max", "80000\n");
	put(V2 "/a/memory.current", "79000\n");
	put(V2 "/a/memory.stat", "active_file 500\n");
	assert_available(1500);
}
END_TEST

START_TEST(the_older_version_counts_groups_below)
{
	put("/proc/meminfo", MEMINFO);
	put("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/u\n");
	put(V1 "/a/memory.limit_in_bytes", "90000\n");
	put(V1 "/a/memory.usage_in_bytes", "50000\n");
	put(V1 "/a/memory.stat",
	    "cache 1\ninactive_file 7\nactive_file 7\n"
	    "total_inactive_file 3000\ntotal_active_file 200\n");
	put(V1 "/memory.limit_in_bytes", "9223372036854771712\n");
	put(V1 "/memory.usage_in_bytes", "700000\n");
	assert_available(43200);
}
END_TEST

START_TEST(an_account_that_is_not_understood_is_an_error)
{
	uint64_t available = 7;

	ck_assert_int_eq(prefetch_available_memory(root, &available), -ENOENT);
	put("/proc/meminfo", "MemTotal: 1 kB\n");
	ck_assert_int_eq(prefetch_available_memory(root, &available), -EBADMSG);
	put("/proc/meminfo", "MemAvailable: 18446744073709551615 kB\n");
	ck_assert_int_eq(prefetch_available_memory(root, &available), -EBADMSG);
	put("/proc/meminfo", "MemAvailable: 111111111111111111111111 kB\n");
	ck_assert_int_eq(prefetch_available_memory(root, &available), -EBADMSG);
	ck_assert_uint_eq(available, 7);
}
END_TEST

START_TEST(this_machine_has_some)
{
	uint64_t available = 0;

	ck_assert_int_eq(prefetch_available_memory("", &available), 0);
	ck_assert_uint_gt(available, MIB);
}
END_TEST

static void add_filling(Suite *s)
{
	TCase *tc = tcase_create("filling");

	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, a_dropped_file_is_in_the_cache_afterwards, 0,
			    (int)ARRAY_LEN(sizes));
	tcase_add_test(
		tc, what_was_read_is_counted_and_what_is_cached_is_passed_over);
	tcase_add_test(tc, only_what_the_cache_lacks_is_read);
	tcase_add_test(tc, holes_are_left_alone);
	tcase_add_test(tc, many_files_advance_with_few_threads);
	tcase_add_test(tc, kernels_without_the_newer_calls_fill_the_cache_too);
	tcase_add_loop_test(tc, it_stops_where_the_room_ends, 0,
			    (int)ARRAY_LEN(rooms));
	tcase_add_test(tc, room_is_for_all_jobs_until_they_are_stopped);
	tcase_add_test(tc, the_pace_is_kept);
	tcase_add_test(tc, a_long_pause_ends_with_the_job);
	suite_add_tcase(s, tc);
}

static void add_jobs(Suite *s)
{
	TCase *tc = tcase_create("jobs");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, the_descriptor_goes_when_the_job_is_over);
	tcase_add_test(tc, an_empty_file_is_over_at_once);
	tcase_add_test(tc, it_does_not_look_like_somebody_who_holds_the_file);
	tcase_add_test(tc, a_file_that_ends_early_ends_its_job);
	tcase_add_test(tc, what_cannot_be_mapped_ends_its_job);
	tcase_add_test(tc, without_a_descriptor_left_it_does_not_start);
	tcase_add_test(tc, a_prefetcher_needs_threads);
	tcase_add_test(tc, jobs_may_be_stopped_at_any_time);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
}

static void add_memory(Suite *s)
{
	TCase *tc = tcase_create("memory");

	tcase_add_checked_fixture(tc, make_root, remove_root);
	tcase_add_test(tc, without_limits_it_is_what_the_machine_has);
	tcase_add_test(
		tc,
		a_group_has_its_limit_without_what_it_uses_but_for_the_cache);
	tcase_add_test(tc, the_older_version_counts_groups_below);
	tcase_add_test(tc, an_account_that_is_not_understood_is_an_error);
	tcase_add_test(tc, this_machine_has_some);
	suite_add_tcase(s, tc);
}

Suite *suite(void)
{
	Suite *s = suite_create("prefetch");

	add_filling(s);
	add_jobs(s);
	add_memory(s);
	return s;
}
