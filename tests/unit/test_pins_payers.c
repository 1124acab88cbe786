/* SPDX-License-Identifier: Apache-2.0 */
/* Who may lock memory, and whose memory it is: nobody else pays for pins. */
#include "pins_fixture.h"

/* --- Without the right to lock --- */

/* From here on this process is nobody, who may lock so many bytes. */
static bool become_nobody(rlim_t may_lock)
{
	const struct rlimit lock = { may_lock, may_lock };

	if (geteuid() != 0 || !has_disk() ||
	    setrlimit(RLIMIT_MEMLOCK, &lock) < 0)
		return false;
	ck_assert_int_eq(setresgid(NOBODY, NOBODY, NOBODY), 0);
	ck_assert_int_eq(setresuid(NOBODY, NOBODY, NOBODY), 0);
	/* Without this it is not even allowed to look at itself. */
	ck_assert_int_eq(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
	return true;
}

static void assert_refused(struct pins *p, const char *part)
{
	struct buf why = BUF_INIT;

	ck_assert_int_eq(pins_status(p, &why), 0);
	ck_assert_msg(strncmp(why.data, "no (", 4) == 0 &&
			      strstr(why.data, part) != NULL,
		      "status '%s'", why.data);
	buf_release(&why);
}

START_TEST(who_may_not_lock_is_told_once_and_goes_on)
{
	struct pin_file *untouched = NULL;
	struct pins *p = NULL;
	struct pins_stats s;
	int fd;

	if (!become_nobody(0))
		skip("not root, or too little to begin with");
	ck_assert_int_eq(pins_new(PLENTY, &p), 0);
	assert_refused(p, "CAP_IPC_LOCK");
	fd = make_empty();
	write_range(fd, 0, 100);
	ck_assert_int_eq(pins_file_open(p, fd, &untouched), -EPERM);
	ck_assert_ptr_null(untouched);
	pins_stats(p, &s);
	ck_assert_uint_eq(s.files, 0);
	(void)close(fd);
	pins_free(p);
}
END_TEST

START_TEST(a_limit_on_locked_memory_is_a_limit_on_files)
{
	struct pin_file *untouched = NULL, *f = NULL;
	auto_fd int fd = -1;
	struct buf why = BUF_INIT;
	struct pins *p = NULL;
	struct pins_stats s;
	size_t left = 99;

	if (!become_nobody(MIB))
		skip("not root, or too little to begin with");
	ck_assert_int_eq(pins_new(PLENTY, &p), 0);
	ck_assert_int_eq(pins_status(p, &why), 0);
	ck_assert_str_eq(why.data,
			 "yes, 1 MiB (RLIMIT_MEMLOCK; CAP_IPC_LOCK lifts it)");
	buf_release(&why);
	pins_stats(p, &s);
	ck_assert_uint_eq(s.budget_bytes, MIB);
	fd = make_empty();
	write_range(fd, 0, 100);
	ck_assert_int_eq(pins_file_open(p, fd, &f), 0);
	ck_assert_int_eq(pins_pin(f, 0, 1, NULL, NULL, &left), 0);
	ck_assert_uint_eq(left, 0);
	write_range(fd, 0, 2 * MIB);
	ck_assert_int_eq(pins_file_open(p, fd, &untouched), -EPERM);
	ck_assert_ptr_null(untouched);
	assert_refused(p, "RLIMIT_MEMLOCK allows 1048576 bytes");
	pins_file_close(f);
	pins_free(p);
}
END_TEST

START_TEST(who_can_not_see_who_pays_rereads_what_is_cached)
{
	struct pin_file *f = NULL;
	struct pin_seen seen;
	struct pins *p = NULL;
	struct pins_stats s;
	auto_fd int fd = -1;
	size_t left = 99;
	void *map;

	if (!become_nobody(4 * G))
		skip("not root, or too little to begin with");
	ck_assert_int_eq(pins_new(PLENTY, &p), 0);
	pins_stats(p, &s);
	ck_assert(!s.knows_payers);
	fd = make_empty();
	write_range(fd, 0, 4 * G);
	ck_assert_int_eq(pins_file_open(p, fd, &f), 0);
	/* One granule is kept in memory by a mapping. */
	map = mmap(NULL, page, PROT_READ, MAP_SHARED | MAP_POPULATE, fd,
		   (off_t)G);
	ck_assert_ptr_ne(map, MAP_FAILED);
	ck_assert_int_eq(pins_pin(f, 0, 4, NULL, NULL, &left), 0);
	ck_assert_uint_eq(left, 1);
	ck_assert(!pins_is_pinned(f, 1, 1));
	pins_stats(p, &s);
	ck_assert_uint_eq(s.reread_total, 4);
	ck_assert_uint_eq(s.filled_bytes_total, 3 * G);
	ck_assert_int_eq(munmap(map, page), 0);
	ck_assert_int_eq(pins_pin(f, 0, 4, NULL, NULL, &left), 0);
	ck_assert_uint_eq(left, 0);
	pins_stats(p, &s);
	ck_assert_uint_eq(s.pinned_bytes, 4 * G);
	for (size_t i = 0; i < 4; i++) {
		ck_assert_int_eq(pins_verify(f, i, 1, &seen), 0);
		ck_assert_uint_eq(seen.locked, seen.data);
	}
	pins_file_close(f);
	pins_free(p);
}
END_TEST

START_TEST(not_knowing_leaves_no_rest_of_what_nobody_keeps)
{
	if (!can_all() || !stats().knows_payers)
		skip("who pays is unknown anyway");
	(void)close(pins->payers.kpagecgroup);
	pins->payers.kpagecgroup = -1;
	bind_file(50 * G + 1);
	for (int i = 0; i < 5; i++) {
		ck_assert_int_eq(pin(0, 51), 0);
		ck_assert_uint_eq(stats().pinned_bytes, 50 * G + page);
		ck_assert_int_eq(pins_unpin(file, 0, 51, i % 2), 0);
	}
	ck_assert_uint_ge(stats().filled_bytes_total, 4 * (50 * G + page));
}
END_TEST

/* --- Nobody else pays --- */

#define POD (192 * MIB)
#define READ_BYTES ((uint64_t)(112 * MIB))

START_TEST(a_reader_that_was_first_neither_pays_nor_dies)
{
	struct other reader;
	struct group g;

	if (!can_all() || !stats().knows_payers ||
	    !group_make(&g, "reader", POD))
		skip("no right to lock memory or to make a cgroup");
	bind_file(READ_BYTES);
	drop_cache(path_fd);
	other_start(&reader, &g, path_fd, READ_BYTES);
	ck_assert(other_does(&reader, 'r'));
	ck_assert_uint_ge(group_usage(&g), READ_BYTES);
	ck_assert_int_eq(pin(0, pins_file_granules(file)), 0);
	ck_assert_uint_lt(group_usage(&g), READ_BYTES / 2);
	ck_assert_uint_eq(stats().reread_total, READ_BYTES / G);
	ck_assert(other_does(&reader, 'e'));
	for (size_t i = 0; i < pins_file_granules(file); i++)
		assert_hot(i);
	other_end(&reader);
	group_end(&g);
}
END_TEST

/* What the rule is for: with a plain lock the same reader has no room left. */
START_TEST(a_plain_lock_would_take_the_readers_memory)
{
	struct other reader;
	struct group g;
	auto_fd int fd = -1;
	void *map;

	if (!can_all() || !group_make(&g, "plain", POD))
		skip("no right to lock memory or to make a cgroup");
	bind_file(READ_BYTES);
	drop_cache(path_fd);
	fd = reopen(path_fd, O_RDONLY);
	other_start(&reader, &g, path_fd, READ_BYTES);
	ck_assert(other_does(&reader, 'r'));
	map = mmap(NULL, READ_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_int_eq(mlock2(map, READ_BYTES, MLOCK_ONFAULT), 0);
	ck_assert_int_eq(madvise(map, READ_BYTES, MADV_POPULATE_READ), 0);
	group_reclaim(&g);
	ck_assert_uint_ge(group_usage(&g), READ_BYTES);
	ck_assert_int_eq(munmap(map, READ_BYTES), 0);
	group_reclaim(&g);
	ck_assert_uint_lt(group_usage(&g), READ_BYTES / 2);
	other_end(&reader);
	group_end(&g);
}
END_TEST

START_TEST(what_a_writer_left_dirty_is_written_back_and_ours)
{
	struct other writer;
	struct group g;

	if (!can_all() || !stats().knows_payers ||
	    !group_make(&g, "writer", POD))
		skip("no right to lock memory or to make a cgroup");
	bind_file(READ_BYTES);
	drop_cache(path_fd);
	other_start(&writer, &g, path_fd, READ_BYTES);
	ck_assert(other_does(&writer, 'w'));
	ck_assert_int_eq(pin(0, pins_file_granules(file)), 0);
	ck_assert_uint_lt(group_usage(&g), READ_BYTES / 2);
	ck_assert(other_does(&writer, 'e'));
	for (size_t i = 0; i < pins_file_granules(file); i++)
		assert_hot(i);
	other_end(&writer);
	group_end(&g);
}
END_TEST

START_TEST(what_a_foreign_mapping_keeps_is_left_and_tried_again)
{
	struct other reader;
	struct group g;
	size_t left = 0;

	if (!can_all() || !stats().knows_payers ||
	    !group_make(&g, "mapper", POD))
		skip("no right to lock memory or to make a cgroup");
	bind_file(20 * G);
	drop_cache(path_fd);
	/* The first three are ours; what was read ahead isn't anybody's. */
	ck_assert_int_eq(pin(0, 3), 0);
	drop_cache(path_fd);
	other_start(&reader, &g, path_fd, 20 * G);
	ck_assert(other_does(&reader, 'm'));
	ck_assert_int_eq(pins_pin(file, 0, 20, NULL, NULL, &left), 0);
	ck_assert_uint_eq(left, 17);
	ck_assert_uint_eq(stats().left_total, 17);
	ck_assert_uint_eq(stats().pinned_bytes, 3 * G);
	for (size_t i = 3; i < 20; i++) {
		ck_assert_uint_eq(see(i).locked, 0);
		ck_assert(!pins_is_pinned(file, i, 1));
	}
	ck_assert(other_does(&reader, 'u'));
	ck_assert_int_eq(pin(0, 20), 0);
	ck_assert_uint_lt(group_usage(&g), READ_BYTES / 2);
	ck_assert_uint_eq(stats().pinned_bytes, 20 * G);
	other_end(&reader);
	group_end(&g);
}
END_TEST

START_TEST(the_own_descriptor_probes_for_everybody_else)
{
	auto_fd int fd = -1;

	if (!can_all())
		skip("no right to lock memory");
	bind_file(2 * G);
	ck_assert_int_eq(pin(0, 2), 0);
	ck_assert_int_eq(holders_any_but(pins_file_fd(file)), 0);
	fd = reopen(path_fd, O_RDONLY);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(holders_any_but(pins_file_fd(file)), 1);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("pins_payers");
	TCase *tc = tcase_create("pins_payers");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, who_may_not_lock_is_told_once_and_goes_on);
	tcase_add_test(tc, a_limit_on_locked_memory_is_a_limit_on_files);
	tcase_add_test(tc, who_can_not_see_who_pays_rereads_what_is_cached);
	tcase_add_test(tc, not_knowing_leaves_no_rest_of_what_nobody_keeps);
	tcase_add_test(tc, a_reader_that_was_first_neither_pays_nor_dies);
	tcase_add_test(tc, a_plain_lock_would_take_the_readers_memory);
	tcase_add_test(tc, what_a_writer_left_dirty_is_written_back_and_ours);
	tcase_add_test(tc,
		       what_a_foreign_mapping_keeps_is_left_and_tried_again);
	tcase_add_test(tc, the_own_descriptor_probes_for_everybody_else);
	suite_add_tcase(s, tc);
	return s;
}
