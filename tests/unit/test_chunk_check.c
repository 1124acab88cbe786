/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>

#include "chunk_check_fixture.h"
#include "core/metrics.h"

/* --- Looking --- */

static uint64_t blocks_of(int fd)
{
	struct stat st;

	ck_assert_int_eq(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks;
}

static void assert_target(const struct chunk_target *t)
{
	static const uint64_t len[] = { CHUNK_BYTES, CHUNK_BYTES,
					SIZE - 2 * CHUNK_BYTES, 0, 0 };

	ck_assert_uint_eq(chunk_target_count(t), 3);
	for (size_t i = 0; i < ARRAY_LEN(len); i++)
		ck_assert_uint_eq(chunk_target_len(t, i), len[i]);
	ck_assert_uint_eq(chunk_target_len(t, SIZE_MAX), 0);
}

START_TEST(a_check_reads_no_more_than_the_chunk_and_changes_no_cache)
{
	static const struct {
		uint64_t from, to; /* in the cache */
	} cached[] = {
		{ 0, 0 },
		{ 0, SIZE },
		{ 7 * PAGE, 9 * PAGE },
		{ SIZE - PAGE, SIZE },
	};
	static const unsigned expected[] = { 1, 0, 1 };
	auto_fd int fd = make_file("/var/tmp");
	struct chunk_target t = target(fd);
	uint64_t blocks = blocks_of(fd);

	if (t.device_fd < 0)
		skip("no O_DIRECT here");
	assert_target(&t);
	drop_cache(fd);
	fill_cache(fd, cached[_i].from, cached[_i].to);
	for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
		size_t resident = resident_pages(fd);
		uint64_t hashed = metrics_get(METRIC_CHUNKS_HASHED);
		unsigned long long before = reads() + 1; /* its own */

		ck_assert_int_eq(look(&t, i, 0), CHUNK_GOOD);
		ck_assert_uint_eq(reads() - before, expected[i]);
		ck_assert_uint_eq(resident_pages(fd), resident);
		ck_assert_uint_eq(metrics_get(METRIC_CHUNKS_HASHED) - hashed,
				  expected[i]);
	}
	ck_assert_uint_eq(blocks_of(fd), blocks);
	(void)close(t.device_fd);
}
END_TEST

START_TEST(the_zeros_that_a_hole_has_in_the_cache_are_looked_at)
{
	auto_fd int fd = make_file("/var/tmp");
	struct chunk_target t = target(fd);
	unsigned char byte;
	unsigned long long before;

	ck_assert_int_eq(pread(fd, &byte, 1, CHUNK_BYTES + 99), 1);
	before = reads() + 1;
	ck_assert_int_eq(look(&t, 1, 0), CHUNK_GOOD);
	ck_assert_uint_eq(reads() - before, 0);
	(void)close(t.device_fd);
}
END_TEST

START_TEST(what_is_good_is_not_written)
{
	auto_fd int fd = make_file("/var/tmp");
	auto_fd int read_only = reopen(fd, O_RDONLY);
	struct chunk_target t = target(fd);

	for (size_t i = 0; i < ARRAY_LEN(digests); i++)
		ck_assert_int_eq(chunk_mend(&t, i, read_only, -1), 0);
	(void)close(t.device_fd);
}
END_TEST

/* Wrong bytes, well written: they are the same in both places. */
START_TEST(wrong_bytes_are_lost_until_another_file_has_them)
{
	static const uint64_t places[] = {
		0,
		CHUNK_BYTES - 1,
		CHUNK_BYTES + 5, /* in the hole */
		2 * CHUNK_BYTES + 77,
		SIZE - TAIL_IN_2 - 1, /* in the hole of chunk 2 */
		SIZE - 1,
	};
	size_t i = (size_t)(places[_i] / CHUNK_BYTES);
	auto_fd int good = make_file("/var/tmp");
	auto_fd int fd = make_file("/var/tmp");
	auto_fd int read_only = reopen(fd, O_RDONLY);
	struct chunk_target t = target(fd);

	flip(fd, places[_i]);
	ck_assert_int_eq(fsync(fd), 0);
	if (_i % 2)
		drop_cache(fd);
	ck_assert_int_eq(look(&t, i, 0), CHUNK_LOST);
	ck_assert_int_eq(chunk_mend(&t, i, fd, -1), -ENODATA);
	ck_assert_int_eq(chunk_mend(&t, i, fd, fd), -ENODATA);
	ck_assert_int_eq(chunk_mend(&t, i, read_only, good), -EBADF);
	ck_assert_int_eq(look(&t, i, 0), CHUNK_LOST);
	ck_assert_int_eq(chunk_mend(&t, i, fd, good), 0);
	drop_cache(fd);
	assert_all_good(&t);
	(void)close(t.device_fd);
}
END_TEST

START_TEST(mending_leaves_holes)
{
	auto_fd int good = make_file("/var/tmp");
	auto_fd int fd = make_file("/var/tmp");
	struct chunk_target t = target(fd);
	uint64_t blocks = blocks_of(fd);

	flip(fd, 2 * CHUNK_BYTES);
	flip(fd, SIZE - 1);
	ck_assert_int_eq(fsync(fd), 0);
	drop_cache(fd);
	ck_assert_int_eq(chunk_mend(&t, 2, fd, good), 0);
	ck_assert_uint_eq(blocks_of(fd), blocks);
	drop_cache(fd);
	assert_all_good(&t);
	(void)close(t.device_fd);
}
END_TEST

START_TEST(data_that_became_a_hole_comes_back)
{
	auto_fd int good = make_file("/var/tmp");
	auto_fd int fd = make_file("/var/tmp");
	struct chunk_target t = target(fd);

	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
		      CHUNK_BYTES) < 0)
		skip("no holes here");
	ck_assert_int_eq(look(&t, 0, 0), CHUNK_LOST);
	ck_assert_int_eq(chunk_mend(&t, 0, fd, good), 0);
	drop_cache(fd);
	assert_all_good(&t);
	(void)close(t.device_fd);
}
END_TEST

/* clang-format off */
static const struct {
	const char *why;
	uint64_t size;
	enum chunk_verdict verdicts[3];
	int mend; /* what mending chunk 2 alone answers */
} resized[] = {
	{ "a byte shorter",   SIZE - 1,
	  { CHUNK_GOOD, CHUNK_GOOD, CHUNK_LOST }, -ENODATA },
	{ "without chunk 2",  2 * CHUNK_BYTES,
	  { CHUNK_GOOD, CHUNK_GOOD, CHUNK_LOST }, -ENODATA },
	{ "within the hole",  CHUNK_BYTES + 10,
	  { CHUNK_GOOD, CHUNK_BAD_ON_DEVICE, CHUNK_LOST }, -ENODATA },
	{ "empty",            0,
	  { CHUNK_LOST, CHUNK_BAD_ON_DEVICE, CHUNK_LOST }, -ENODATA },
	{ "a byte longer",    SIZE + 1,
	  { CHUNK_GOOD, CHUNK_GOOD, CHUNK_BAD_ON_DEVICE }, 0 },
	{ "a lot longer",     SIZE + 2 * CHUNK_BYTES,
	  { CHUNK_GOOD, CHUNK_GOOD, CHUNK_BAD_ON_DEVICE }, 0 },
};
/* clang-format on */

START_TEST(a_file_of_another_size_gets_its_own_back)
{
	auto_fd int good = make_file("/var/tmp");
	auto_fd int fd = make_file("/var/tmp");
	struct chunk_target t = target(fd);
	struct stat st;

	ck_assert_int_eq(ftruncate(fd, (off_t)resized[_i].size), 0);
	for (size_t i = 0; i < 3; i++)
		ck_assert_msg(look(&t, i, 0) == resized[_i].verdicts[i],
			      "%s: chunk %zu", resized[_i].why, i);
	ck_assert_int_eq(chunk_mend(&t, 2, fd, -1), resized[_i].mend);
	for (size_t i = 0; i < 3; i++)
		ck_assert_int_eq(chunk_mend(&t, i, fd, good), 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_uint_eq((uint64_t)st.st_size, SIZE);
	drop_cache(fd);
	assert_all_good(&t);
	(void)close(t.device_fd);
}
END_TEST

/* A file that stands for the device of another, which readers see. */
START_TEST(a_device_that_does_not_take_it_is_an_error)
{
	auto_fd int fd = make_file("/var/tmp");
	auto_fd int other = make_file("/var/tmp");
	struct chunk_target t = target(fd);

	if (t.device_fd < 0)
		skip("no O_DIRECT here");
	(void)close(t.device_fd);
	flip(other, 5);
	ck_assert_int_eq(fsync(other), 0);
	t.device_fd = reopen(other, O_RDONLY | O_DIRECT);
	fill_cache(fd, 0, SIZE);
	ck_assert_int_eq(look(&t, 0, 0), CHUNK_BAD_ON_DEVICE);
	ck_assert_int_eq(chunk_mend(&t, 0, fd, -1), -EIO);
	(void)close(t.device_fd);
}
END_TEST

START_TEST(a_device_that_is_not_asked_right_is_no_verdict)
{
	auto_fd int fd = make_file("/var/tmp");
	auto_fd int dir = open("/var/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_fd int write_only = reopen(fd, O_WRONLY);
	enum chunk_verdict verdict = CHUNK_STALE;
	struct chunk_target t = target(fd);
	int error = 1;

	(void)close(t.device_fd);
	t.device_fd = dir;
	ck_assert_int_eq(chunk_check(&t, 0, &verdict, &error), -EISDIR);
	t.device_fd = write_only;
	ck_assert_int_eq(chunk_check(&t, 0, &verdict, &error), -EBADF);
	t.device_fd = -1;
	t.fd = dir;
	ck_assert_int_lt(chunk_check(&t, 0, &verdict, &error), 0);
	t.fd = 12345;
	ck_assert_int_eq(chunk_check(&t, 0, &verdict, &error), -EBADF);
	ck_assert_int_eq(chunk_mend(&t, 0, fd, -1), -EBADF);
	ck_assert_int_eq(verdict, CHUNK_STALE);
	ck_assert_int_eq(error, 1);
}
END_TEST

/* clang-format off */
static const struct {
	uint64_t size, chunk_size;
	size_t i;
	int err;
} refused[] = {
	{ SIZE, CHUNK_BYTES, 3, -EINVAL },
	{ SIZE, CHUNK_BYTES, SIZE_MAX, -EINVAL },
	{ SIZE, CHUNK_BYTES / 2, SIZE_MAX / 2, -EINVAL },
	{ 0, CHUNK_BYTES, 0, -EINVAL },
	{ SIZE, 0, 0, -EINVAL },
	{ SIZE, 1000, 0, -EINVAL },
	{ SIZE, CHUNK_BYTES - 512, 0, -EINVAL },
	{ SIZE, CHUNK_BYTES + PAGE, 0, -EFBIG },
	{ SIZE, UINT64_MAX, 0, -EFBIG },
};
/* clang-format on */

START_TEST(what_is_no_chunk_is_refused)
{
	auto_fd int fd = make_file("/var/tmp");
	struct chunk_target t = {
		.fd = fd,
		.device_fd = -1,
		.size = refused[_i].size,
		.chunk_size = refused[_i].chunk_size,
		.chunks = digests,
	};
	enum chunk_verdict verdict;

	ck_assert_int_eq(chunk_check(&t, refused[_i].i, &verdict, NULL),
			 refused[_i].err);
	ck_assert_int_eq(chunk_mend(&t, refused[_i].i, fd, -1),
			 refused[_i].err);
}
END_TEST

START_TEST(smaller_chunks_can_be_checked)
{
	enum { SMALL = 64 << 10, COUNT = DATA_IN_2 / SMALL };
	auto_fd int fd = make_file("/var/tmp");
	auto_fd int good = make_file("/var/tmp");
	static unsigned char bytes[SMALL];
	struct digest small[COUNT];
	struct chunk_target t = target(fd);

	t.size = COUNT * SMALL;
	t.chunk_size = SMALL;
	t.chunks = small;
	ck_assert_int_eq(ftruncate(fd, COUNT * SMALL), 0);
	for (size_t i = 0; i < COUNT; i++) {
		ck_assert_int_eq(pread(fd, bytes, SMALL, (off_t)(i * SMALL)),
				 SMALL);
		ck_assert_int_eq(digest_of(bytes, SMALL, &small[i]), 0);
	}
	ck_assert_uint_eq(chunk_target_count(&t), COUNT);
	flip(fd, 3 * SMALL);
	ck_assert_int_eq(look(&t, 2, 0), CHUNK_GOOD);
	ck_assert_int_eq(look(&t, 3, 0), CHUNK_LOST);
	ck_assert_int_eq(chunk_mend(&t, 3, fd, good), 0);
	ck_assert_int_eq(look(&t, 3, 0), CHUNK_GOOD);
	(void)close(t.device_fd);
}
END_TEST

/* --- Without O_DIRECT --- */

START_TEST(without_a_way_past_the_cache_it_is_dropped)
{
	auto_fd int good = make_file("/var/tmp");
	auto_fd int fd = make_file("/var/tmp");
	struct chunk_target t = target(fd);

	(void)close(t.device_fd);
	t.device_fd = -1;
	assert_all_good(&t);
	flip(fd, SIZE - 1);
	ck_assert_int_eq(look(&t, 2, 0), CHUNK_LOST);
	ck_assert_int_eq(chunk_mend(&t, 2, fd, -1), -ENODATA);
	ck_assert_int_eq(chunk_mend(&t, 2, fd, good), 0);
	assert_all_good(&t);
}
END_TEST

START_TEST(a_file_in_memory_can_be_checked)
{
	auto_fd int good = make_file("/var/tmp");
	auto_fd int fd = make_file("/dev/shm");
	struct chunk_target t = target(fd);

	for (int i = 0; i < 2; i++) {
		assert_all_good(&t);
		flip(fd, 0);
		ck_assert_int_eq(look(&t, 0, 0), CHUNK_LOST);
		ck_assert_int_eq(chunk_mend(&t, 0, fd, good), 0);
		assert_all_good(&t);
		if (t.device_fd >= 0)
			(void)close(t.device_fd);
		t.device_fd = -1;
	}
}
END_TEST

/* --- Threads --- */

static struct chunk_target shared;
static atomic_uint wrong_verdicts;

static void *check_often(void *arg)
{
	size_t i = *(size_t *)arg;

	for (int n = 0; n < 20; n++) {
		enum chunk_verdict verdict = CHUNK_LOST;

		if (chunk_check(&shared, i, &verdict, NULL) < 0 ||
		    verdict != CHUNK_GOOD)
			atomic_fetch_add(&wrong_verdicts, 1);
	}
	return NULL;
}

START_TEST(several_threads_check_at_once)
{
	size_t chunk[6] = { 0, 1, 2, 0, 1, 2 };
	auto_fd int fd = make_file("/var/tmp");
	pthread_t threads[ARRAY_LEN(chunk)];

	shared = target(fd);
	for (size_t i = 0; i < ARRAY_LEN(chunk); i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, check_often,
						&chunk[i]),
				 0);
	for (size_t i = 0; i < ARRAY_LEN(chunk); i++)
		(void)pthread_join(threads[i], NULL);
	ck_assert_uint_eq(atomic_load(&wrong_verdicts), 0);
	(void)close(shared.device_fd);
}
END_TEST

static atomic_bool stop;

static void *cut_often(void *arg)
{
	int fd = *(int *)arg;

	while (!atomic_load(&stop)) {
		(void)ftruncate(fd, 10 * (off_t)PAGE);
		(void)ftruncate(fd, (off_t)SIZE);
		write_data(fd, 0, 20 * PAGE);
	}
	return NULL;
}

/* Bytes that go away while they are looked at would end in SIGBUS. */
START_TEST(a_file_that_is_cut_meanwhile_kills_nobody)
{
	auto_fd int fd = make_file("/var/tmp");
	struct chunk_target t = target(fd);
	enum chunk_verdict verdict;
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, cut_often, &fd), 0);
	for (int i = 0; i < 150; i++)
		ck_assert_int_eq(chunk_check(&t, 0, &verdict, NULL), 0);
	atomic_store(&stop, true);
	(void)pthread_join(thread, NULL);
	(void)close(t.device_fd);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("chunk_check");
	TCase *tc = tcase_create("looking");

	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(
		tc, a_check_reads_no_more_than_the_chunk_and_changes_no_cache,
		0, 4);
	tcase_add_test(tc,
		       the_zeros_that_a_hole_has_in_the_cache_are_looked_at);
	tcase_add_test(tc, what_is_good_is_not_written);
	tcase_add_loop_test(
		tc, wrong_bytes_are_lost_until_another_file_has_them, 0, 6);
	tcase_add_test(tc, mending_leaves_holes);
	tcase_add_test(tc, data_that_became_a_hole_comes_back);
	tcase_add_loop_test(tc, a_file_of_another_size_gets_its_own_back, 0,
			    (int)ARRAY_LEN(resized));
	tcase_add_test(tc, a_device_that_does_not_take_it_is_an_error);
	tcase_add_test(tc, a_device_that_is_not_asked_right_is_no_verdict);
	tcase_add_loop_test(tc, what_is_no_chunk_is_refused, 0,
			    (int)ARRAY_LEN(refused));
	tcase_add_test(tc, smaller_chunks_can_be_checked);
	tcase_add_test(tc, without_a_way_past_the_cache_it_is_dropped);
	tcase_add_test(tc, a_file_in_memory_can_be_checked);
	tcase_add_test(tc, several_threads_check_at_once);
	tcase_add_test(tc, a_file_that_is_cut_meanwhile_kills_nobody);
	suite_add_tcase(s, tc);
	return s;
}
