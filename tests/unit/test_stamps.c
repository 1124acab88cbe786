/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/digest.h"
#include "core/metrics.h"
#include "core/stamps.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

#define NAME "stamps"
#define HEAD 56
#define ENTRY 48

/* --- A directory --- */

static char top[sizeof("stamps-XXXXXX")];
static int dir = -1;

static void make_dir(void)
{
	memcpy(top, "stamps-XXXXXX", sizeof(top));
	ck_assert_ptr_nonnull(mkdtemp(top));
	dir = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(dir, 0);
}

static void remove_dir(void)
{
	(void)unlinkat(dir, NAME, AT_REMOVEDIR);
	(void)unlinkat(dir, NAME, 0);
	(void)unlinkat(dir, NAME ".tmp", AT_REMOVEDIR);
	(void)unlinkat(dir, NAME ".tmp", 0);
	(void)close(dir);
	ck_assert_int_eq(rmdir(top), 0);
}

static void put_file(const void *bytes, size_t len)
{
	auto_fd int fd = openat(dir, NAME,
				O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
}

/* --- Stamps --- */

static struct stat looks(uint64_t ino)
{
	return (struct stat){
		.st_ino = ino,
		.st_size = (off_t)(ino * 3),
		.st_mtim = { -5 - (time_t)ino, 999999999 },
		.st_ctim = { (time_t)1 << 40, (long)(ino % 1000000000) },
	};
}

/* Three of five are known. */
static struct stamps *sample(void)
{
	struct stamps *s = NULL;

	ck_assert_int_eq(stamps_new(5, &s), 0);
	s->epoch = 7;
	s->scrub_ended_ms = 1234567890123;
	s->scrub_next = 5;
	s->scrub_bad = UINT64_MAX;
	for (size_t i = 0; i < 5; i += 2) {
		struct stat st = looks(1000 - i);

		stamps_set(s, i, &st);
	}
	return s;
}

static void assert_same(const struct stamps *a, const struct stamps *b)
{
	struct buf x = BUF_INIT, y = BUF_INIT;

	ck_assert_uint_eq(a->known_count, b->known_count);
	ck_assert_int_eq(stamps_encode(a, &x), 0);
	ck_assert_int_eq(stamps_encode(b, &y), 0);
	ck_assert_uint_eq(x.len, y.len);
	ck_assert(memcmp(x.data, y.data, x.len) == 0);
	buf_release(&x);
	buf_release(&y);
}

START_TEST(a_stamp_matches_the_file_that_it_was_made_of)
{
	auto_fd int fd = openat(dir, NAME, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	struct stat before, after;
	struct stamp stamp;

	ck_assert_int_eq(fstat(fd, &before), 0);
	stamp = stamp_of(&before);
	ck_assert(stamp.known);
	ck_assert(stamp_matches(&stamp, &before));
	ck_assert_int_eq(fchmod(fd, 0400), 0);
	do { /* until the clock of the filesystem has moved on */
		ck_assert_int_eq(pwrite(fd, "x", 1, 0), 1);
		ck_assert_int_eq(fstat(fd, &after), 0);
	} while (after.st_ctim.tv_sec == before.st_ctim.tv_sec &&
		 after.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
	ck_assert(!stamp_matches(&stamp, &after));
}
END_TEST

START_TEST(any_difference_is_one)
{
	const struct stat same = looks(9);
	const struct stamp stamp = stamp_of(&same);
	const struct stamp unknown = { 0 };
	const struct stat zero = { 0 };
	struct stat other[6];

	for (size_t i = 0; i < ARRAY_LEN(other); i++)
		other[i] = same;
	other[0].st_ino++;
	other[1].st_size++;
	other[2].st_mtim.tv_sec++;
	other[3].st_mtim.tv_nsec--;
	other[4].st_ctim.tv_sec++;
	other[5].st_ctim.tv_nsec++;
	ck_assert(stamp_matches(&stamp, &same));
	for (size_t i = 0; i < ARRAY_LEN(other); i++)
		ck_assert_msg(!stamp_matches(&stamp, &other[i]), "%zu", i);
	ck_assert(!stamp_matches(&unknown, &zero));
}
END_TEST

START_TEST(what_is_known_is_found_by_its_number)
{
	cleanup(stamps_free_cleanup) struct stamps *s = sample();
	struct stat st = looks(50);
	size_t at = 99;

	ck_assert_uint_eq(s->known_count, 3);
	ck_assert_int_eq(stamps_find(s, 998, &at), 0);
	ck_assert_uint_eq(at, 2);
	ck_assert_int_eq(stamps_find(s, 999, &at), -ENOENT);
	stamps_set(s, 2, &st); /* changes */
	ck_assert_int_eq(stamps_find(s, 998, &at), -ENOENT);
	ck_assert_int_eq(stamps_find(s, 50, &at), 0);
	ck_assert_uint_eq(at, 2);
	stamps_set(s, 2, NULL);
	stamps_set(s, 2, NULL);
	ck_assert_int_eq(stamps_find(s, 50, &at), -ENOENT);
	ck_assert(!s->entries[2].known);
	ck_assert_uint_eq(s->known_count, 2);
}
END_TEST

START_TEST(a_number_belongs_to_its_last_owner)
{
	cleanup(stamps_free_cleanup) struct stamps *s = sample();
	struct stat st = looks(1000);
	size_t at;

	stamps_set(s, 4, &st);
	ck_assert_int_eq(stamps_find(s, 1000, &at), 0);
	ck_assert_uint_eq(at, 4);
	ck_assert(!s->entries[0].known);
	ck_assert_int_eq(stamps_find(s, 996, &at), -ENOENT);
	ck_assert_uint_eq(s->known_count, 2);
}
END_TEST

/* Compares with the obvious: the entry whose number it is. */
START_TEST(the_index_survives_many_changes)
{
	enum { COUNT = 200, INOS = 300, STEPS = 20000 };
	cleanup(stamps_free_cleanup) struct stamps *s = NULL;
	uint32_t x = 1;

	ck_assert_int_eq(stamps_new(COUNT, &s), 0);
	for (unsigned n = 0; n < STEPS; n++) {
		struct stat st;
		size_t i, known = 0, at;

		x = x * 1664525 + 1013904223;
		i = (x >> 8) % COUNT;
		st = looks((x >> 16) % INOS);
		stamps_set(s, i, x >> 30 ? &st : NULL);
		if (n % 100)
			continue;
		for (i = 0; i < COUNT; i++) {
			if (!s->entries[i].known)
				continue;
			known++;
			ck_assert_int_eq(stamps_find(s, s->entries[i].ino, &at),
					 0);
			ck_assert_uint_eq(at, i);
		}
		ck_assert_uint_eq(known, s->known_count);
	}
}
END_TEST

START_TEST(the_largest_number_of_stamps_is_quick_and_one_more_is_refused)
{
	cleanup(stamps_free_cleanup) struct stamps *s = NULL;
	cleanup(stamps_free_cleanup) struct stamps *again = NULL;
	size_t at;

	ck_assert_int_eq(stamps_new(STAMPS_COUNT_MAX + 1, &s), -EFBIG);
	ck_assert_int_eq(stamps_new(SIZE_MAX, &s), -EFBIG);
	ck_assert_ptr_null(s);
	ck_assert_int_eq(stamps_new(STAMPS_COUNT_MAX, &s), 0);
	for (size_t i = 0; i < STAMPS_COUNT_MAX; i++) {
		struct stat st = looks(5 * (STAMPS_COUNT_MAX - i));

		stamps_set(s, i, &st);
	}
	ck_assert_int_eq(stamps_write(dir, NAME, s, false), 0);
	ck_assert_int_eq(stamps_read(dir, NAME, &again), 0);
	ck_assert_uint_eq(again->known_count, STAMPS_COUNT_MAX);
	ck_assert_int_eq(stamps_find(again, 5, &at), 0);
	ck_assert_uint_eq(at, STAMPS_COUNT_MAX - 1);
}
END_TEST

/* --- Files --- */

START_TEST(what_is_written_is_read)
{
	cleanup(stamps_free_cleanup) struct stamps *s = sample();
	cleanup(stamps_free_cleanup) struct stamps *again = NULL;
	uint64_t syncs = metrics_get(METRIC_FSYNCS);
	struct stat st;

	ck_assert_int_eq(stamps_read(dir, NAME, &again), -ENOENT);
	ck_assert_int_eq(stamps_write(dir, NAME, s, _i), 0);
	ck_assert_uint_eq(metrics_get(METRIC_FSYNCS) - syncs, _i ? 2 : 0);
	ck_assert_int_eq(stamps_read(dir, NAME, &again), 0);
	assert_same(s, again);
	ck_assert(again->entries[4].known && !again->entries[3].known);
	st = looks(996);
	ck_assert(stamp_matches(&again->entries[4], &st));
	ck_assert_int_eq(fstatat(dir, NAME ".tmp", &st, 0), -1);
	ck_assert_int_eq(fstatat(dir, NAME, &st, 0), 0);
	ck_assert_uint_eq((uint64_t)st.st_size, HEAD + 5 * ENTRY + DIGEST_LEN);
	ck_assert_uint_eq(st.st_mode & 07777, 0600);
}
END_TEST

START_TEST(none_at_all_can_be_written)
{
	cleanup(stamps_free_cleanup) struct stamps *s = NULL;
	cleanup(stamps_free_cleanup) struct stamps *again = NULL;
	size_t at;

	ck_assert_int_eq(stamps_new(0, &s), 0);
	ck_assert_int_eq(stamps_find(s, 0, &at), -ENOENT);
	ck_assert_int_eq(stamps_write(dir, NAME, s, true), 0);
	ck_assert_int_eq(stamps_read(dir, NAME, &again), 0);
	assert_same(s, again);
}
END_TEST

START_TEST(writing_replaces_the_file_and_leaves_of_a_try_before)
{
	cleanup(stamps_free_cleanup) struct stamps *s = sample();
	cleanup(stamps_free_cleanup) struct stamps *again = NULL;
	auto_fd int path = open(top, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	put_file("old", 3);
	ck_assert_int_eq(symlinkat("../not-ours", dir, NAME ".tmp"), 0);
	ck_assert_int_eq(stamps_write(path, NAME, s, true), 0);
	ck_assert_int_eq(stamps_read(path, NAME, &again), 0);
	assert_same(s, again);
	ck_assert_int_eq(fstatat(dir, "../not-ours", &st, 0), -1);
}
END_TEST

/* The file as it is documented, byte for byte. */
START_TEST(the_format_is_as_documented)
{
	static const unsigned char expected[HEAD + ENTRY] =
		/* clang-format off */
		"wfstamps" "\1\0\0\0\0\0\0\0"
		"\2\1\0\0\0\0\0\0" "\3\0\0\0\0\0\0\0"
		"\1\0\0\0\0\0\0\0" "\5\0\0\0\0\0\0\0"
		"\1\0\0\0\0\0\0\0"
		"\x11\0\0\0\0\0\0\0" "\x12\0\0\0\0\0\0\0"
		"\xff\xff\xff\xff\xff\xff\xff\xff" "\x13\0\0\0"
		"\x14\0\0\0" "\x15\0\0\0\0\0\0\0"
		"\1\0\0\0" "\0\0\0";
	/* clang-format on */
	const struct stat st = {
		.st_ino = 0x11,
		.st_size = 0x12,
		.st_mtim = { -1, 0x13 },
		.st_ctim = { 0x15, 0x14 },
	};
	cleanup(stamps_free_cleanup) struct stamps *s = NULL;
	struct buf out = BUF_INIT;

	ck_assert_int_eq(stamps_new(1, &s), 0);
	s->epoch = 0x102;
	s->scrub_ended_ms = 3;
	s->scrub_next = 1;
	s->scrub_bad = 5;
	stamps_set(s, 0, &st);
	ck_assert_int_eq(stamps_encode(s, &out), 0);
	ck_assert_uint_eq(out.len, sizeof(expected) + DIGEST_LEN);
	ck_assert(memcmp(out.data, expected, sizeof(expected)) == 0);
	buf_release(&out);
}
END_TEST

/* --- Damage --- */

START_TEST(a_flipped_bit_is_noticed)
{
	cleanup(stamps_free_cleanup) struct stamps *s = sample();
	cleanup(stamps_free_cleanup) struct stamps *again = NULL;
	struct buf b = BUF_INIT;

	ck_assert_int_eq(stamps_encode(s, &b), 0);
	for (size_t bit = 0; bit < 8 * b.len; bit++) {
		int r;

		b.data[bit / 8] ^= (char)(1 << bit % 8);
		r = stamps_decode(b.data, b.len, &again);
		b.data[bit / 8] ^= (char)(1 << bit % 8);
		ck_assert_msg(r == -EUCLEAN ||
				      (r == -EPROTONOSUPPORT && bit / 64 == 1),
			      "bit %zu: %d", bit, r);
	}
	ck_assert_ptr_null(again);
	buf_release(&b);
}
END_TEST

START_TEST(a_file_that_was_cut_is_noticed)
{
	cleanup(stamps_free_cleanup) struct stamps *s = sample();
	cleanup(stamps_free_cleanup) struct stamps *again = NULL;
	struct buf b = BUF_INIT;

	ck_assert_int_eq(stamps_encode(s, &b), 0);
	ck_assert_int_eq(buf_append(&b, "\0", 1), 0);
	for (size_t len = 0; len <= b.len; len++) {
		if (len == b.len - 1) /* all of it */
			continue;
		put_file(b.data, len);
		ck_assert_int_eq(stamps_read(dir, NAME, &again), -EUCLEAN);
	}
	ck_assert_ptr_null(again);
	buf_release(&b);
}
END_TEST

/* clang-format off */
/* One field of the sample, wrong, under a digest that is right. */
static const struct {
	const char *why;
	size_t at;
	const char *bytes;
	size_t len;
	int err;
} wrong[] = {
	{ "magic",              0,  "wfstampS", 8, -EUCLEAN },
	{ "version 0",          8,  "\0", 1, -EUCLEAN },
	{ "version 2",          8,  "\2", 1, -EPROTONOSUPPORT },
	{ "a large version",    9,  "\xff", 1, -EPROTONOSUPPORT },
	{ "u16 not zero",       10, "\1", 1, -EUCLEAN },
	{ "u32 not zero",       15, "\1", 1, -EUCLEAN },
	{ "fewer than are there", 48, "\4", 1, -EUCLEAN },
	{ "more than are there",  48, "\6", 1, -EUCLEAN },
	{ "a count that wraps",   48, "\x05\0\0\0\0\0\0\x10", 8, -EUCLEAN },
	{ "mtime ns",           HEAD + 24, "\0\xca\x9a\x3b", 4, -EUCLEAN },
	{ "ctime ns",           HEAD + 28, "\0\xca\x9a\x3b", 4, -EUCLEAN },
	{ "known 2",            HEAD + 40, "\2", 1, -EUCLEAN },
	{ "entry not zero",     HEAD + 44, "\1", 1, -EUCLEAN },
	{ "unknown with ino",   HEAD + ENTRY, "\1", 1, -EUCLEAN },
	{ "unknown with size",  HEAD + ENTRY + 8, "\1", 1, -EUCLEAN },
	{ "unknown with mtime", HEAD + ENTRY + 16, "\1", 1, -EUCLEAN },
	{ "unknown with mtime ns", HEAD + ENTRY + 24, "\1", 1, -EUCLEAN },
	{ "unknown with ctime ns", HEAD + ENTRY + 28, "\1", 1, -EUCLEAN },
	{ "unknown with ctime", HEAD + ENTRY + 32, "\1", 1, -EUCLEAN },
	{ "unknown but not zero", HEAD + 40, "\0", 1, -EUCLEAN },
	{ "a number twice",     HEAD + 2 * ENTRY, "\xe8", 1, -EUCLEAN },
};
/* clang-format on */

START_TEST(what_is_out_of_range_is_refused)
{
	cleanup(stamps_free_cleanup) struct stamps *s = sample();
	cleanup(stamps_free_cleanup) struct stamps *again = NULL;
	struct buf b = BUF_INIT;
	struct digest d;
	int r;

	ck_assert_int_eq(stamps_encode(s, &b), 0);
	memcpy(b.data + wrong[_i].at, wrong[_i].bytes, wrong[_i].len);
	ck_assert_int_eq(digest_of(b.data, b.len - DIGEST_LEN, &d), 0);
	memcpy(b.data + b.len - DIGEST_LEN, d.bytes, DIGEST_LEN);
	r = stamps_decode(b.data, b.len, &again);
	ck_assert_msg(r == wrong[_i].err, "%s: %d", wrong[_i].why, r);
	ck_assert_ptr_null(again);
	buf_release(&b);
}
END_TEST

START_TEST(other_kinds_of_files_are_damage)
{
	cleanup(stamps_free_cleanup) struct stamps *s = NULL;

	ck_assert_int_eq(symlinkat("absent", dir, NAME), 0);
	ck_assert_int_eq(stamps_read(dir, NAME, &s), -EUCLEAN);
	ck_assert_int_eq(unlinkat(dir, NAME, 0), 0);
	ck_assert_int_eq(mkfifoat(dir, NAME, 0600), 0);
	ck_assert_int_eq(stamps_read(dir, NAME, &s), -EUCLEAN);
	ck_assert_int_eq(unlinkat(dir, NAME, 0), 0);
	ck_assert_int_eq(mkdirat(dir, NAME, 0700), 0);
	ck_assert_int_eq(stamps_read(dir, NAME, &s), -EUCLEAN);
}
END_TEST

START_TEST(a_file_above_the_limit_is_not_read)
{
	cleanup(stamps_free_cleanup) struct stamps *s = NULL;
	auto_fd int fd = openat(dir, NAME, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	off_t most = (off_t)(HEAD + STAMPS_COUNT_MAX * ENTRY + DIGEST_LEN);

	ck_assert_int_eq(ftruncate(fd, most + 1), 0);
	ck_assert_int_eq(stamps_read(dir, NAME, &s), -EFBIG);
	ck_assert_int_eq(ftruncate(fd, (off_t)1 << 40), 0);
	ck_assert_int_eq(stamps_read(dir, NAME, &s), -EFBIG);
	ck_assert_int_eq(ftruncate(fd, most), 0);
	ck_assert_int_eq(stamps_read(dir, NAME, &s), -EUCLEAN);
}
END_TEST

/* --- Failures --- */

START_TEST(what_cannot_be_written_leaves_the_old_file)
{
	const struct rlimit small = { 100, 100 };
	cleanup(stamps_free_cleanup) struct stamps *s = sample();
	cleanup(stamps_free_cleanup) struct stamps *again = NULL;
	struct stat st;

	ck_assert_int_eq(stamps_write(dir, NAME, s, false), 0);
	s->scrub_next = 0;
	(void)signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
	ck_assert_int_eq(stamps_write(dir, NAME, s, true), -EFBIG);
	ck_assert_int_eq(fstatat(dir, NAME ".tmp", &st, 0), -1);
	ck_assert_int_eq(stamps_read(dir, NAME, &again), 0);
	ck_assert_uint_eq(again->scrub_next, 5);
}
END_TEST

START_TEST(a_place_that_cannot_be_written_says_so)
{
	cleanup(stamps_free_cleanup) struct stamps *s = sample();
	char name[NAME_MAX + 1];

	memset(name, 'n', NAME_MAX);
	name[NAME_MAX] = '\0';
	ck_assert_int_eq(stamps_write(dir, name, s, true), -ENAMETOOLONG);
	ck_assert_int_eq(stamps_write(-1, NAME, s, true), -EBADF);
	ck_assert_int_eq(mkdirat(dir, NAME ".tmp", 0700), 0);
	ck_assert_int_eq(stamps_write(dir, NAME, s, true), -EISDIR);
	ck_assert_int_eq(unlinkat(dir, NAME ".tmp", AT_REMOVEDIR), 0);
	ck_assert_int_eq(mkdirat(dir, NAME, 0700), 0);
	ck_assert_int_eq(stamps_write(dir, NAME, s, true), -EISDIR);
}
END_TEST

static int write_and_read(void)
{
	cleanup(stamps_free_cleanup) struct stamps *s = NULL;
	cleanup(stamps_free_cleanup) struct stamps *again = NULL;
	struct stat st = looks(1);
	int r = stamps_new(3, &s);

	if (r < 0)
		return r;
	stamps_set(s, 1, &st);
	r = stamps_write(dir, NAME, s, false);
	return r < 0 ? r : stamps_read(dir, NAME, &again);
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(write_and_read);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("stamps");
	TCase *tc = tcase_create("files");

	tcase_add_checked_fixture(tc, make_dir, remove_dir);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_stamp_matches_the_file_that_it_was_made_of);
	tcase_add_test(tc, any_difference_is_one);
	tcase_add_test(tc, what_is_known_is_found_by_its_number);
	tcase_add_test(tc, a_number_belongs_to_its_last_owner);
	tcase_add_test(tc, the_index_survives_many_changes);
	tcase_add_test(
		tc,
		the_largest_number_of_stamps_is_quick_and_one_more_is_refused);
	tcase_add_loop_test(tc, what_is_written_is_read, 0, 2);
	tcase_add_test(tc, none_at_all_can_be_written);
	tcase_add_test(tc,
		       writing_replaces_the_file_and_leaves_of_a_try_before);
	tcase_add_test(tc, the_format_is_as_documented);
	tcase_add_test(tc, a_flipped_bit_is_noticed);
	tcase_add_test(tc, a_file_that_was_cut_is_noticed);
	tcase_add_loop_test(tc, what_is_out_of_range_is_refused, 0,
			    (int)ARRAY_LEN(wrong));
	tcase_add_test(tc, other_kinds_of_files_are_damage);
	tcase_add_test(tc, a_file_above_the_limit_is_not_read);
	tcase_add_test(tc, what_cannot_be_written_leaves_the_old_file);
	tcase_add_test(tc, a_place_that_cannot_be_written_says_so);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
