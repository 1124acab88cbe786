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

#include "core/derived.h"
#include "core/holders.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

#define MIB ((uint64_t)1 << 20)
#define SOURCE_BYTES (12 * MIB)
#define LIMIT_BYTES (16 * MIB)

static int source = -1;
static struct derived *derived;

static unsigned char source_byte(uint64_t at)
{
	return (unsigned char)(at * 31 + (at >> 12));
}

static void start(void)
{
	static unsigned char piece[1 << 16];

	ck_assert_int_eq(holders_init(), 0);
	source = memfd_create("source", MFD_CLOEXEC);
	for (uint64_t at = 0; at < SOURCE_BYTES; at += sizeof(piece)) {
		for (size_t i = 0; i < sizeof(piece); i++)
			piece[i] = source_byte(at + i);
		ck_assert_int_eq(
			pwrite(source, piece, sizeof(piece), (off_t)at),
			sizeof(piece));
	}
	ck_assert_int_eq(derived_new(LIMIT_BYTES, &derived), 0);
}

static void stop(void)
{
	derived_free(derived);
	(void)close(source);
}

static int reopen(const struct derived_file *f, int flags)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d",
		       derived_file_fd(f));
	return open(path, flags | O_CLOEXEC);
}

static void expect_bytes(const struct derived_file *f, uint64_t off,
			 uint64_t len)
{
	auto_fd int fd = reopen(f, O_RDONLY);
	unsigned char *got = malloc((size_t)len + 1);

	ck_assert_ptr_nonnull(got);
	ck_assert_uint_eq(derived_file_size(f), len);
	ck_assert_int_eq(pread(fd, got, (size_t)len + 1, 0), (ssize_t)len);
	for (uint64_t i = 0; i < len; i++)
		if (got[i] != source_byte(off + i))
			ck_abort_msg("byte %llu differs",
				     (unsigned long long)i);
	free(got);
}

static struct derived_stats stats(void)
{
	struct derived_stats s;

	derived_stats(derived, &s);
	return s;
}

static const struct {
	uint64_t off, len;
} ranges[] = {
	{ 0, 0 },
	{ 5, 1 },
	{ 4095, 4097 },
	{ 3, DERIVED_HUGE_BYTES - 1 },
	{ 8, DERIVED_HUGE_BYTES },
	{ 123457, DERIVED_HUGE_BYTES + 1 },
	{ 1, 9 * MIB + 77 },
	{ 0, SOURCE_BYTES },
};

START_TEST(a_range_becomes_a_file)
{
	uint64_t off = ranges[_i].off, len = ranges[_i].len;
	struct derived_file *f = NULL;
	struct stat st;

	ck_assert_int_eq(derived_open(derived, "k", source, off, len, &f), 0);
	expect_bytes(f, off, len);
	ck_assert_int_eq(fstat(derived_file_fd(f), &st), 0);
	/* No more memory than the limit counts: the tail is given back. */
	ck_assert_uint_le((uint64_t)st.st_blocks * 512,
			  (len + 4095) / 4096 * 4096);
	ck_assert_uint_eq(stats().used_bytes, (len + 4095) / 4096 * 4096);
	derived_release(f);
}
END_TEST

START_TEST(root_gets_memory_filesystems_with_huge_pages)
{
	if (geteuid() != 0) {
		(void)fprintf(stderr, "# skipped: not root\n");
		return;
	}
	ck_assert_int_ne(derived_kind(derived), DERIVED_MEMFD);
	ck_assert_str_eq(derived_kind_text(DERIVED_HUGE_PAGES), "huge");
}
END_TEST

START_TEST(without_privilege_memfds_take_their_place)
{
	cleanup(derived_free_cleanup) struct derived *d = NULL;
	struct derived_file *f = NULL;

	if (seteuid(65534) < 0) {
		(void)fprintf(stderr, "# skipped: not root\n");
		return;
	}
	ck_assert_int_eq(derived_new(LIMIT_BYTES, &d), 0);
	ck_assert_int_eq(derived_kind(d), DERIVED_MEMFD);
	ck_assert_int_eq(derived_open(d, "k", source, 7, 3 * MIB, &f), 0);
	expect_bytes(f, 7, 3 * MIB);
	{
		auto_fd int fd = reopen(f, O_RDWR);

		ck_assert(fd < 0 || write(fd, "x", 1) < 0);
	}
	derived_release(f);
	ck_assert_int_eq(seteuid(0), 0);
}
END_TEST

START_TEST(a_file_is_made_once_and_kept)
{
	struct derived_file *a = NULL, *b = NULL, *c = NULL;

	ck_assert_int_eq(derived_open(derived, "k", source, 0, MIB, &a), 0);
	ck_assert_int_eq(derived_open(derived, "k", source, 0, MIB, &b), 0);
	ck_assert_ptr_eq(a, b);
	derived_release(a);
	derived_release(b);
	ck_assert_uint_eq(stats().idle_files, 1);
	ck_assert_int_eq(derived_open(derived, "k", source, 0, MIB, &c), 0);
	ck_assert_ptr_eq(a, c);
	ck_assert_uint_eq(stats().made_total, 1);
	ck_assert_uint_eq(stats().copied_bytes_total, MIB);
	ck_assert_uint_eq(stats().idle_files, 0);
	derived_release(c);
	derived_release(NULL);
}
END_TEST

static void *open_once(void *arg)
{
	struct derived_file *f = NULL;
	uint64_t len = *(const uint64_t *)arg;
	int r = derived_open(derived, "shared", source, 0, len, &f);

	derived_release(f);
	return r < 0 ? arg : NULL;
}

/* How many of 16 threads at once fail to open len bytes. */
static unsigned open_by_many(uint64_t len)
{
	pthread_t threads[16];
	unsigned failures = 0;

	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, open_once, &len), 0);
	for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
		void *failed;

		ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
		failures += failed != NULL;
	}
	return failures;
}

START_TEST(all_who_ask_at_once_wait_for_one_copy)
{
	ck_assert_uint_eq(open_by_many(10 * MIB), 0);
	ck_assert_uint_eq(stats().made_total, 1);
}
END_TEST

START_TEST(all_who_ask_at_once_see_the_failure)
{
	ck_assert_uint_eq(open_by_many(SOURCE_BYTES + 1), 16);
	ck_assert_uint_eq(stats().made_total, 0);
	ck_assert_uint_eq(stats().files, 0);
	ck_assert_uint_eq(stats().used_bytes, 0);
}
END_TEST

static void open_and_release(const char *key, uint64_t len)
{
	struct derived_file *f = NULL;

	ck_assert_int_eq(derived_open(derived, key, source, 0, len, &f), 0);
	derived_release(f);
}

START_TEST(the_least_recently_used_gives_way)
{
	open_and_release("a", 6 * MIB);
	open_and_release("b", 6 * MIB);
	open_and_release("a", 6 * MIB);
	open_and_release("c", 6 * MIB); /* instead of b */
	ck_assert_uint_eq(stats().dropped_total, 1);
	open_and_release("a", 6 * MIB);
	ck_assert_uint_eq(stats().made_total, 3);
	open_and_release("b", 6 * MIB);
	ck_assert_uint_eq(stats().made_total, 4);
}
END_TEST

START_TEST(what_is_in_use_does_not_give_way)
{
	struct derived_file *a = NULL, *b = NULL, *none = NULL;

	ck_assert_int_eq(derived_open(derived, "a", source, 0, 8 * MIB, &a), 0);
	ck_assert_int_eq(derived_open(derived, "b", source, 0, 8 * MIB, &b), 0);
	ck_assert_int_eq(derived_open(derived, "c", source, 0, 1, &none),
			 -ENOSPC);
	ck_assert_ptr_null(none);
	derived_release(a);
	ck_assert_int_eq(derived_open(derived, "c", source, 0, 1, &none), 0);
	derived_release(none);
	derived_release(b);
}
END_TEST

START_TEST(what_is_mapped_does_not_give_way)
{
	struct derived_file *a = NULL, *none = NULL;
	unsigned char *map;
	int fd;

	ck_assert_int_eq(derived_open(derived, "a", source, 0, 12 * MIB, &a),
			 0);
	fd = reopen(a, O_RDONLY);
	map = mmap(NULL, 12 * MIB, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(map, MAP_FAILED);
	(void)close(fd);
	derived_release(a);
	ck_assert_int_eq(derived_open(derived, "b", source, 0, 12 * MIB, &none),
			 -ENOSPC);
	derived_forget(derived, "");
	ck_assert_uint_eq(map[12 * MIB - 1], source_byte(12 * MIB - 1));
	(void)munmap(map, 12 * MIB);
	open_and_release("b", 12 * MIB);
}
END_TEST

START_TEST(forgetting_is_by_prefix_and_spares_users)
{
	struct derived_file *used = NULL, *anew = NULL;

	ck_assert_int_eq(derived_open(derived, "7/x", source, 0, 100, &used),
			 0);
	open_and_release("7/y", 100);
	open_and_release("8/x", 100);
	derived_forget(derived, "7/");
	ck_assert_uint_eq(stats().files, 1);
	expect_bytes(used, 0, 100);
	ck_assert_int_eq(derived_open(derived, "7/x", source, 50, 100, &anew),
			 0);
	ck_assert_ptr_ne(used, anew);
	derived_release(used);
	expect_bytes(anew, 50, 100);
	derived_release(anew);
	ck_assert_uint_eq(stats().files, 2);
}
END_TEST

START_TEST(a_file_is_made_of_parts)
{
	const struct derived_part parts[] = {
		{ .fd = source, .offset = 100, .len = 3 * MIB },
		{ .fd = -1, .data = "", .len = 0 },
		{ .fd = -1, .data = "header", .len = 6 },
		{ .fd = source, .offset = 0, .len = 2 },
	};
	struct derived_file *f = NULL;
	auto_fd int fd = -1;
	char tail[9] = "";

	ck_assert_int_eq(
		derived_open_parts(derived, "k", parts, ARRAY_LEN(parts), &f),
		0);
	fd = reopen(f, O_RDONLY);
	ck_assert_uint_eq(derived_file_size(f), 3 * MIB + 8);
	ck_assert_int_eq(pread(fd, tail, 9, 3 * MIB), 8);
	ck_assert_int_eq(memcmp(tail, "header", 6), 0);
	ck_assert_uint_eq((unsigned char)tail[7], source_byte(1));
	derived_release(f);
}
END_TEST

START_TEST(many_small_files_keep_few_descriptors)
{
	for (unsigned i = 0; i < DERIVED_IDLE_MAX + 10; i++) {
		struct derived_file *f = NULL;
		char key[32];
		int r;

		(void)snprintf(key, sizeof(key), "k%u", i);
		r = derived_open(derived, key, source, i, 10, &f);
		if (r == -EMFILE) {
			(void)fprintf(stderr, "# skipped: few descriptors\n");
			return;
		}
		ck_assert_int_eq(r, 0);
		derived_release(f);
	}
	ck_assert_uint_le(stats().idle_files, DERIVED_IDLE_MAX);
}
END_TEST

START_TEST(bad_arguments_are_rejected)
{
	static char key[DERIVED_KEY_MAX + 2];
	const struct derived_part huge[] = {
		{ .fd = 0, .len = UINT64_MAX },
		{ .fd = 0, .len = 2 },
	};
	struct derived_file *none = NULL;

	memset(key, 'k', DERIVED_KEY_MAX + 1);
	ck_assert_int_eq(derived_open(derived, key, source, 0, 1, &none),
			 -EINVAL);
	key[DERIVED_KEY_MAX] = '\0';
	open_and_release(key, 1);
	ck_assert_int_eq(derived_open(derived, "k", -1, 0, 1, &none), -EBADF);
	ck_assert_int_eq(derived_open_parts(derived, "k", huge, 2, &none),
			 -EFBIG);
	ck_assert_int_eq(
		derived_open(derived, "k", source, SOURCE_BYTES - 1, 2, &none),
		-EUCLEAN);
	ck_assert_int_eq(
		derived_open(derived, "k", source, 0, LIMIT_BYTES + 1, &none),
		-ENOSPC);
	ck_assert_ptr_null(none);
}
END_TEST

static int make_and_drop(void)
{
	cleanup(derived_free_cleanup) struct derived *d = NULL;
	cleanup(derived_release_cleanup) struct derived_file *f = NULL;
	int r = derived_new(MIB, &d);

	if (r < 0)
		return r;
	return derived_open(d, "a key that is not short", source, 0, 10, &f);
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(make_and_drop);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("derived");
	TCase *tc = tcase_create("files");

	tcase_add_checked_fixture(tc, start, stop);
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, a_range_becomes_a_file, 0,
			    (int)ARRAY_LEN(ranges));
	tcase_add_test(tc, root_gets_memory_filesystems_with_huge_pages);
	tcase_add_test(tc, without_privilege_memfds_take_their_place);
	tcase_add_test(tc, a_file_is_made_once_and_kept);
	tcase_add_test(tc, all_who_ask_at_once_wait_for_one_copy);
	tcase_add_test(tc, all_who_ask_at_once_see_the_failure);
	tcase_add_test(tc, the_least_recently_used_gives_way);
	tcase_add_test(tc, what_is_in_use_does_not_give_way);
	tcase_add_test(tc, what_is_mapped_does_not_give_way);
	tcase_add_test(tc, forgetting_is_by_prefix_and_spares_users);
	tcase_add_test(tc, a_file_is_made_of_parts);
	tcase_add_test(tc, many_small_files_keep_few_descriptors);
	tcase_add_test(tc, bad_arguments_are_rejected);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
