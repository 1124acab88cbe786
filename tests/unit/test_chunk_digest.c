/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/chunk_digest.h"
#include "core/metrics.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

/* What the callback brought, and a way to wait for it. */
struct outcome {
	pthread_mutex_t lock;
	pthread_cond_t came;
	unsigned calls;          /* guarded by lock */
	int r;                   /* guarded by lock */
	struct chunk_list *list; /* guarded by lock */
};

#define OUTCOME_INIT                                                           \
	{                                                                      \
		.lock = PTHREAD_MUTEX_INITIALIZER,                             \
		.came = PTHREAD_COND_INITIALIZER                               \
	}

static void note_outcome(void *arg, int r, struct chunk_list *list)
{
	struct outcome *o = arg;

	(void)pthread_mutex_lock(&o->lock);
	o->calls++;
	o->r = r;
	o->list = list;
	(void)pthread_cond_signal(&o->came);
	(void)pthread_mutex_unlock(&o->lock);
}

static int wait_outcome(struct outcome *o)
{
	int r;

	(void)pthread_mutex_lock(&o->lock);
	while (!o->calls)
		(void)pthread_cond_wait(&o->came, &o->lock);
	r = o->r;
	(void)pthread_mutex_unlock(&o->lock);
	return r;
}

static struct workers *pool;

static void start_pool(void)
{
	ck_assert_int_eq(workers_new("chunk", 4, 0, &pool), 0);
}

static void stop_pool(void)
{
	workers_free(pool);
}

/* An unlinked file in the working directory, on a real filesystem. */
static int scratch_file(int flags)
{
	char name[] = "chunks-XXXXXX";
	int fd = mkstemp(name), again;

	ck_assert_int_ge(fd, 0);
	again = open(name, O_RDWR | O_CLOEXEC | flags);
	(void)unlink(name);
	(void)close(fd);
	return again;
}

/* Bytes that differ from chunk to chunk. */
static void fill(int fd, uint64_t size)
{
	static unsigned char piece[1 << 16];

	for (uint64_t at = 0; at < size; at += sizeof(piece)) {
		size_t n = sizeof(piece);

		if (n > size - at)
			n = (size_t)(size - at);
		memset(piece, (int)(at / sizeof(piece) % 251) + 1, n);
		ck_assert_int_eq(pwrite(fd, piece, n, (off_t)at), (ssize_t)n);
	}
}

/* The same list, the slow and obvious way. */
static void expect_list(int fd, uint64_t size, const struct chunk_list *list)
{
	unsigned char *all = malloc((size_t)size + 1);
	struct digest d;

	ck_assert_ptr_nonnull(all);
	ck_assert_int_eq(pread(fd, all, (size_t)size, 0), (ssize_t)size);
	ck_assert_uint_eq(list->size, size);
	ck_assert_uint_eq(list->chunk_size, CHUNK_BYTES);
	ck_assert_uint_eq(list->count,
			  (size_t)((size + CHUNK_BYTES - 1) / CHUNK_BYTES));
	for (size_t i = 0; i < list->count; i++) {
		ck_assert_int_eq(digest_of(all + i * CHUNK_BYTES,
					   chunk_len(size, i), &d),
				 0);
		ck_assert(digest_equal(&d, &list->chunks[i]));
	}
	ck_assert_int_eq(digest_root(list->chunks, list->count, &d), 0);
	ck_assert(digest_equal(&d, &list->root));
	free(all);
}

static void digest_and_expect(int fd, uint64_t size)
{
	struct outcome o = OUTCOME_INIT;
	struct chunk_job *job = NULL;

	ck_assert_int_eq(
		chunk_job_start(pool, fd, size, note_outcome, &o, &job), 0);
	ck_assert_int_eq(wait_outcome(&o), 0);
	ck_assert_uint_eq(chunk_job_bytes_done(job), size);
	expect_list(fd, size, o.list);
	chunk_list_free(o.list);
	chunk_job_unref(job);
}

static const uint64_t sizes[] = {
	0,
	1,
	4095,
	CHUNK_BYTES - 1,
	CHUNK_BYTES,
	CHUNK_BYTES + 1,
	3 * CHUNK_BYTES,
	9 * CHUNK_BYTES + 77,
};

START_TEST(every_size_has_the_digests_of_its_chunks)
{
	auto_fd int fd = scratch_file(0);
	uint64_t before = metrics_get(METRIC_CHUNKS_HASHED);

	fill(fd, sizes[_i]);
	digest_and_expect(fd, sizes[_i]);
	ck_assert_uint_eq(metrics_get(METRIC_CHUNKS_HASHED) - before,
			  chunk_count(sizes[_i]));
}
END_TEST

START_TEST(holes_are_neither_read_nor_hashed)
{
	auto_fd int fd = scratch_file(0);
	uint64_t size = 6 * CHUNK_BYTES + 4097;
	uint64_t before = metrics_get(METRIC_CHUNKS_HASHED);

	ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
	ck_assert_int_eq(pwrite(fd, "x", 1, 2 * CHUNK_BYTES + 5), 1);
	for (int i = 0; i < 2; i++)
		digest_and_expect(fd, size);
	ck_assert_uint_eq(metrics_get(METRIC_CHUNKS_HASHED) - before, 2);
}
END_TEST

START_TEST(a_descriptor_past_the_cache_works_too)
{
	auto_fd int fd = scratch_file(O_DIRECT);
	struct outcome o = OUTCOME_INIT;
	struct chunk_job *job = NULL;
	auto_fd int plain = -1;
	char path[64];

	if (fd < 0)
		return; /* not on this filesystem */
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	plain = open(path, O_RDWR | O_CLOEXEC);
	fill(plain, CHUNK_BYTES + 1234);
	ck_assert_int_eq(fsync(plain), 0);
	ck_assert_int_eq(chunk_job_start(pool, fd, CHUNK_BYTES + 1234,
					 note_outcome, &o, &job),
			 0);
	ck_assert_int_eq(wait_outcome(&o), 0);
	expect_list(plain, CHUNK_BYTES + 1234, o.list);
	chunk_list_free(o.list);
	chunk_job_unref(job);
}
END_TEST

/* clang-format off */
static const struct {
	const char *why;
	uint64_t real, told;
} moved[] = {
	{ "shrank within a chunk", CHUNK_BYTES + 1, CHUNK_BYTES + 2 },
	{ "shrank by a chunk",     CHUNK_BYTES,     2 * CHUNK_BYTES },
	{ "became empty",          0,               10 },
	{ "grew within a chunk",   100,             99 },
	{ "grew by a chunk",       2 * CHUNK_BYTES, CHUNK_BYTES },
	{ "was empty",             5,               0 },
};
/* clang-format on */

START_TEST(a_file_of_another_size_has_changed)
{
	auto_fd int fd = scratch_file(0);
	struct outcome o = OUTCOME_INIT;
	struct chunk_job *job = NULL;
	int r;

	fill(fd, moved[_i].real);
	ck_assert_int_eq(chunk_job_start(pool, fd, moved[_i].told, note_outcome,
					 &o, &job),
			 0);
	r = wait_outcome(&o);
	ck_assert_msg(r == -EBUSY, "%s: got %d", moved[_i].why, r);
	ck_assert_ptr_null(o.list);
	chunk_job_unref(job);
}
END_TEST

START_TEST(many_jobs_share_one_pool)
{
	enum { JOBS = 12 };
	uint64_t size = 5 * CHUNK_BYTES + 3;
	auto_fd int fd = scratch_file(0);
	struct chunk_job *jobs[JOBS];
	struct outcome o[JOBS];

	fill(fd, size);
	for (size_t i = 0; i < JOBS; i++) {
		o[i] = (struct outcome)OUTCOME_INIT;
		ck_assert_int_eq(chunk_job_start(pool, fd, size, note_outcome,
						 &o[i], &jobs[i]),
				 0);
	}
	for (size_t i = 0; i < JOBS; i++) {
		ck_assert_int_eq(wait_outcome(&o[i]), 0);
		ck_assert(digest_equal(&o[i].list->root, &o[0].list->root));
		chunk_job_unref(jobs[i]);
	}
	for (size_t i = 0; i < JOBS; i++)
		chunk_list_free(o[i].list);
}
END_TEST

/* Keeps the only thread busy until the test lets go. */
static pthread_barrier_t gate;

static void wait_at_gate(struct work *work)
{
	(void)work;
	(void)pthread_barrier_wait(&gate);
}

START_TEST(a_small_job_passes_a_large_one)
{
	cleanup(workers_free_cleanup) struct workers *one = NULL;
	struct outcome large = OUTCOME_INIT, small = OUTCOME_INIT;
	struct chunk_job *a = NULL, *b = NULL;
	struct work first = { .run = wait_at_gate, .priority = WORK_BULK };
	auto_fd int fd = scratch_file(0);
	auto_fd int fd_small = scratch_file(0);

	(void)pthread_barrier_init(&gate, NULL, 2);
	ck_assert_int_eq(workers_new("one", 1, 0, &one), 0);
	fill(fd, 64 * CHUNK_BYTES);
	fill(fd_small, 100);
	workers_submit(one, &first);
	ck_assert_int_eq(chunk_job_start(one, fd, 64 * CHUNK_BYTES,
					 note_outcome, &large, &a),
			 0);
	ck_assert_int_eq(
		chunk_job_start(one, fd_small, 100, note_outcome, &small, &b),
		0);
	(void)pthread_barrier_wait(&gate);
	ck_assert_int_eq(wait_outcome(&small), 0);
	ck_assert_uint_lt(chunk_job_bytes_done(a), 64 * CHUNK_BYTES);
	ck_assert_int_eq(wait_outcome(&large), 0);
	chunk_list_free(large.list);
	chunk_list_free(small.list);
	chunk_job_unref(a);
	chunk_job_unref(b);
}
END_TEST

START_TEST(a_canceled_job_calls_back_once)
{
	cleanup(workers_free_cleanup) struct workers *one = NULL;
	struct work first = { .run = wait_at_gate, .priority = WORK_BULK };
	struct outcome o = OUTCOME_INIT;
	auto_fd int fd = scratch_file(0);
	struct chunk_job *job = NULL;
	uint64_t before;

	(void)pthread_barrier_init(&gate, NULL, 2);
	ck_assert_int_eq(workers_new("one", 1, 0, &one), 0);
	fill(fd, 2 * CHUNK_BYTES);
	before = metrics_get(METRIC_CHUNKS_HASHED);
	workers_submit(one, &first);
	ck_assert_int_eq(chunk_job_start(one, fd, 2 * CHUNK_BYTES, note_outcome,
					 &o, &job),
			 0);
	chunk_job_cancel(job);
	chunk_job_unref(job);
	(void)pthread_barrier_wait(&gate);
	ck_assert_int_eq(wait_outcome(&o), -ECANCELED);
	workers_free(take_ptr(one));
	ck_assert_uint_eq(o.calls, 1);
	ck_assert_ptr_null(o.list);
	ck_assert_uint_eq(metrics_get(METRIC_CHUNKS_HASHED), before);
}
END_TEST

START_TEST(what_cannot_start_has_no_callback)
{
	struct outcome o = OUTCOME_INIT;
	struct chunk_job *job = NULL;

	ck_assert_int_eq(chunk_job_start(pool, -1, 5, note_outcome, &o, &job),
			 -EBADF);
	ck_assert_int_eq(chunk_job_start(pool, 0, CHUNK_FILE_BYTES_MAX + 1,
					 note_outcome, &o, &job),
			 -EFBIG);
	ck_assert_ptr_null(job);
	ck_assert_uint_eq(o.calls, 0);
}
END_TEST

START_TEST(what_cannot_be_read_fails_as_the_kernel_says)
{
	struct outcome o = OUTCOME_INIT;
	struct chunk_job *job = NULL;
	auto_fd int fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	ck_assert_int_eq(chunk_job_start(pool, fd, 5, note_outcome, &o, &job),
			 0);
	ck_assert_int_eq(wait_outcome(&o), -EISDIR);
	chunk_job_unref(job);
}
END_TEST

static int digest_one_file(void)
{
	struct outcome o = OUTCOME_INIT;
	struct chunk_job *job = NULL;
	auto_fd int fd = memfd_create("sweep", 0);
	int r;

	if (ftruncate(fd, 10) < 0)
		return -errno;
	r = chunk_job_start(pool, fd, 10, note_outcome, &o, &job);
	if (r < 0)
		return r;
	r = wait_outcome(&o);
	chunk_list_free(o.list);
	chunk_job_unref(job);
	return r;
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(digest_one_file);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("chunk_digest");
	TCase *tc = tcase_create("jobs");

	tcase_add_checked_fixture(tc, start_pool, stop_pool);
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, every_size_has_the_digests_of_its_chunks, 0,
			    (int)ARRAY_LEN(sizes));
	tcase_add_test(tc, holes_are_neither_read_nor_hashed);
	tcase_add_test(tc, a_descriptor_past_the_cache_works_too);
	tcase_add_loop_test(tc, a_file_of_another_size_has_changed, 0,
			    (int)ARRAY_LEN(moved));
	tcase_add_test(tc, many_jobs_share_one_pool);
	tcase_add_test(tc, a_small_job_passes_a_large_one);
	tcase_add_test(tc, a_canceled_job_calls_back_once);
	tcase_add_test(tc, what_cannot_start_has_no_callback);
	tcase_add_test(tc, what_cannot_be_read_fails_as_the_kernel_says);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
