/* SPDX-License-Identifier: Apache-2.0 */
/* core/chunk_check.h on disks that give other bytes, or none. */
#include "chunk_check_fixture.h"

/* --- Disks that give other bytes --- */

static const struct disk_kind *kind_at(int i)
{
	return &disk_kinds[i];
}

/* A page of chunk 0, of chunk 2's first and of its last data. */
static const uint64_t victims[] = {
	17,
	(2 * CHUNK_BYTES) / PAGE,
	LAST_PAGE,
};

static size_t chunk_of(uint64_t page)
{
	return (size_t)(page / PAGES);
}

START_TEST(a_bad_disk_is_mended_from_the_cache)
{
	const struct disk_kind *kind = kind_at(_i);
	struct chunk_target t;
	struct disk d;
	const char *why = disk_make(&d, kind);
	auto_fd int fd = -1;

	if (why)
		skip(why);
	if (kind->sums)
		skip("reading leads through the cache");
	fd = make_file(MOUNT);
	t = target(fd);
	for (size_t v = 0; v < ARRAY_LEN(victims); v++) {
		size_t i = chunk_of(victims[v]);
		size_t resident;

		drop_cache(fd);
		disk_flip(&d, victims[v]);
		ck_assert_int_eq(look(&t, i, 0), CHUNK_LOST);
		disk_flip(&d, victims[v]);
		fill_cache(fd, 0, SIZE);
		resident = resident_pages(fd);
		disk_flip(&d, victims[v]);
		ck_assert_int_eq(look(&t, i, 0), CHUNK_BAD_ON_DEVICE);
		ck_assert_uint_eq(resident_pages(fd), resident);
		ck_assert_int_eq(chunk_mend(&t, i, fd, -1), 0);
		ck_assert_int_eq(look(&t, i, 0), CHUNK_GOOD);
		drop_cache(fd);
		ck_assert_uint_eq(resident_pages(fd), 0);
		assert_all_good(&t);
	}
	(void)close(t.device_fd);
}
END_TEST

START_TEST(the_cache_needs_only_what_is_bad_on_the_disk)
{
	const struct disk_kind *kind = kind_at(_i);
	struct chunk_target t;
	struct disk d;
	const char *why = disk_make(&d, kind);
	auto_fd int fd = -1;

	if (why)
		skip(why);
	if (kind->sums)
		skip("reading leads through the cache");
	fd = make_file(MOUNT);
	t = target(fd);
	for (size_t v = 0; v < ARRAY_LEN(victims); v++) {
		uint64_t page = victims[v];
		size_t i = chunk_of(page);

		drop_cache(fd);
		fill_cache(fd, page * PAGE, (page + 1) * PAGE);
		disk_flip(&d, page);
		ck_assert_int_eq(look(&t, i, 0), CHUNK_BAD_ON_DEVICE);
		ck_assert_int_eq(chunk_mend(&t, i, fd, -1), 0);
		drop_cache(fd);
		assert_all_good(&t);
	}
	drop_cache(fd);
	fill_cache(fd, 18 * PAGE, 100 * PAGE); /* all but the bad one */
	disk_flip(&d, 17);
	ck_assert_int_eq(look(&t, 0, 0), CHUNK_LOST);
	ck_assert_int_eq(chunk_mend(&t, 0, fd, -1), -ENODATA);
	(void)close(t.device_fd);
}
END_TEST

START_TEST(a_bad_disk_is_mended_from_another_file)
{
	const struct disk_kind *kind = kind_at(_i);
	int error = kind->sums ? -EIO : 0;
	struct chunk_target t;
	struct disk d;
	const char *why = disk_make(&d, kind);
	auto_fd int good = make_file("/var/tmp");
	auto_fd int fd = -1;

	if (why)
		skip(why);
	fd = make_file(MOUNT);
	t = target(fd);
	for (size_t v = 0; v < ARRAY_LEN(victims); v++) {
		size_t i = chunk_of(victims[v]);

		drop_cache(fd);
		disk_flip(&d, victims[v]);
		ck_assert_int_eq(look(&t, i, error), CHUNK_LOST);
		ck_assert_int_eq(chunk_mend(&t, i, fd, good), 0);
		assert_all_good(&t);
		drop_cache(fd);
		assert_all_good(&t);
	}
	(void)close(t.device_fd);
}
END_TEST

/* The disk is right again, and only the cache still has the wrong byte. */
START_TEST(a_stale_cache_is_mended_from_the_disk)
{
	const struct disk_kind *kind = kind_at(_i);
	struct chunk_target t;
	struct disk d;
	const char *why = disk_make(&d, kind);
	unsigned char bytes[PAGE];
	auto_fd int fd = -1;

	if (why)
		skip(why);
	if (kind->sums)
		skip("what was written over lies elsewhere");
	fd = make_file(MOUNT);
	t = target(fd);
	for (size_t v = 0; v < ARRAY_LEN(victims); v++) {
		uint64_t at = victims[v] * PAGE + 100;
		size_t i = chunk_of(victims[v]);

		flip(fd, at);
		ck_assert_int_eq(fsync(fd), 0);
		ck_assert_int_eq(look(&t, i, 0), CHUNK_LOST);
		disk_flip(&d, victims[v]);
		ck_assert_int_eq(look(&t, i, 0), CHUNK_STALE);
		ck_assert_int_eq(chunk_mend(&t, i, fd, -1), 0);
		ck_assert_int_eq(look(&t, i, 0), CHUNK_GOOD);
		page_bytes(victims[v], bytes);
		ck_assert_int_eq(pread(fd, bytes, 1, (off_t)at), 1);
		ck_assert_uint_eq(bytes[0], bytes[100]);
		drop_cache(fd);
		assert_all_good(&t);
	}
	(void)close(t.device_fd);
}
END_TEST

/* As readers of pinned files have it: they see the mended byte, in place. */
START_TEST(a_locked_mapping_stays_while_its_bytes_are_mended)
{
	const struct disk_kind *kind = kind_at(_i);
	struct chunk_target t;
	struct disk d;
	const char *why = disk_make(&d, kind);
	unsigned char bytes[PAGE];
	const unsigned char *map;
	auto_fd int fd = -1;
	size_t resident;

	if (why)
		skip(why);
	if (kind->sums)
		skip("what was written over lies elsewhere");
	fd = make_file(MOUNT);
	t = target(fd);
	map = mmap(NULL, CHUNK_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(map, MAP_FAILED);
	if (syscall(SYS_mlock, map, CHUNK_BYTES) < 0)
		skip("no memory may be locked");
	resident = resident_pages(fd);
	page_bytes(17, bytes);
	flip(fd, 17 * PAGE + 100);
	ck_assert_int_eq(fsync(fd), 0);
	disk_flip(&d, 17);
	ck_assert_int_ne(map[17 * PAGE + 100], bytes[100]);
	ck_assert_int_eq(look(&t, 0, 0), CHUNK_STALE);
	ck_assert_int_eq(chunk_mend(&t, 0, fd, -1), 0);
	ck_assert_int_eq(map[17 * PAGE + 100], bytes[100]);
	disk_flip(&d, 17);
	ck_assert_int_eq(look(&t, 0, 0), CHUNK_BAD_ON_DEVICE);
	ck_assert_int_eq(chunk_mend(&t, 0, fd, -1), 0);
	ck_assert(memcmp(map + 17 * PAGE, bytes, PAGE) == 0);
	ck_assert_uint_eq(resident_pages(fd), resident);
	drop_cache(fd);
	ck_assert_uint_ge(resident_pages(fd), PAGES);
	assert_all_good(&t);
	(void)munmap((void *)(uintptr_t)map, CHUNK_BYTES);
	(void)close(t.device_fd);
}
END_TEST

/* --- Disks that fail --- */

START_TEST(what_cannot_be_read_is_mended_from_the_cache)
{
	struct chunk_target t;
	struct disk d;
	const char *why = disk_make(&d, &plain_ext4);
	auto_fd int fd = -1;

	if (why)
		skip(why);
	fd = make_file(MOUNT);
	t = target(fd);
	fill_cache(fd, 0, SIZE);
	for (size_t v = 0; v < ARRAY_LEN(victims); v++) {
		size_t i = chunk_of(victims[v]);

		disk_cut(&d, victims[v]);
		ck_assert_int_eq(look(&t, i, -EIO), CHUNK_BAD_ON_DEVICE);
		for (size_t all = 0; all < ARRAY_LEN(digests); all++)
			ck_assert_int_eq(chunk_mend(&t, all, fd, -1), 0);
		assert_all_good(&t);
	}
	drop_cache(fd);
	assert_all_good(&t);
	(void)close(t.device_fd);
}
END_TEST

/* What is before the bad pages comes from the disk, in one more read. */
START_TEST(the_cache_needs_only_what_cannot_be_read)
{
	struct chunk_target t;
	struct disk d;
	const char *why = disk_make(&d, &plain_ext4);
	unsigned long long before;
	auto_fd int fd = -1;

	if (why)
		skip(why);
	fd = make_file(MOUNT);
	t = target(fd);
	drop_cache(fd);
	fill_cache(fd, 17 * PAGE, SIZE);
	disk_cut(&d, 17);
	before = reads() + 1;
	ck_assert_int_eq(look(&t, 0, -EIO), CHUNK_BAD_ON_DEVICE);
	ck_assert_uint_le(reads() - before, 3);
	ck_assert_int_eq(chunk_mend(&t, 0, fd, -1), 0);
	ck_assert_int_eq(chunk_mend(&t, 2, fd, -1), 0);
	drop_cache(fd);
	assert_all_good(&t);
	drop_cache(fd);
	disk_cut(&d, 17);
	fill_cache(fd, 0, 16 * PAGE);
	ck_assert_int_eq(look(&t, 0, -EIO), CHUNK_LOST);
	ck_assert_int_eq(chunk_mend(&t, 0, fd, -1), -ENODATA);
	(void)close(t.device_fd);
}
END_TEST

START_TEST(what_cannot_be_read_is_mended_from_another_file)
{
	struct chunk_target t;
	struct disk d;
	const char *why = disk_make(&d, &plain_ext4);
	auto_fd int good = make_file("/var/tmp");
	auto_fd int fd = -1;
	struct stat st;

	if (why)
		skip(why);
	fd = make_file(MOUNT);
	t = target(fd);
	for (size_t v = 0; v < ARRAY_LEN(victims); v++) {
		size_t i = chunk_of(victims[v]);
		unsigned long long before;

		drop_cache(fd);
		disk_cut(&d, victims[v]);
		before = reads() + 1;
		ck_assert_int_eq(look(&t, i, -EIO), CHUNK_LOST);
		ck_assert_uint_eq(reads() - before, 1);
		ck_assert_int_eq(chunk_mend(&t, i, fd, -1), -ENODATA);
		for (size_t all = 0; all < ARRAY_LEN(digests); all++)
			ck_assert_int_eq(chunk_mend(&t, all, fd, good), 0);
		assert_all_good(&t);
		ck_assert_int_eq(fstat(fd, &st), 0);
		ck_assert_uint_eq((uint64_t)st.st_size, SIZE);
		drop_cache(fd);
		assert_all_good(&t);
	}
	(void)close(t.device_fd);
}
END_TEST

/* The bytes of the disk are on a filesystem that is full. */
START_TEST(a_disk_that_cannot_be_written_is_an_error)
{
	const char *why = disk_privately();
	auto_fd int fd = -1;
	struct chunk_target t;
	struct disk d;
	int image, rest;

	if (why)
		skip(why);
	ck_assert_int_eq(mount("none", MOUNT, "tmpfs", 0, "size=64M"), 0);
	image = make_empty(MOUNT);
	rest = make_empty(MOUNT);
	why = disk_mount(&d, &plain_ext4, image);
	if (why)
		skip(why);
	fd = make_file(MOUNT);
	t = target(fd);
	fill_cache(fd, 0, SIZE);
	disk_cut(&d, 17);
	while (write(rest, digests, sizeof(digests)) > 0)
		;
	ck_assert_int_eq(look(&t, 0, -EIO), CHUNK_BAD_ON_DEVICE);
	ck_assert_int_lt(chunk_mend(&t, 0, fd, -1), 0);
	(void)close(t.device_fd);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("chunk_check_disks");
	TCase *tc = tcase_create("disks");
	int kinds = (int)ARRAY_LEN(disk_kinds);

	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, a_bad_disk_is_mended_from_the_cache, 0, kinds);
	tcase_add_loop_test(tc, the_cache_needs_only_what_is_bad_on_the_disk, 0,
			    kinds);
	tcase_add_loop_test(tc, a_bad_disk_is_mended_from_another_file, 0,
			    kinds);
	tcase_add_loop_test(tc, a_stale_cache_is_mended_from_the_disk, 0,
			    kinds);
	tcase_add_loop_test(tc,
			    a_locked_mapping_stays_while_its_bytes_are_mended,
			    0, kinds);
	tcase_add_test(tc, what_cannot_be_read_is_mended_from_the_cache);
	tcase_add_test(tc, the_cache_needs_only_what_cannot_be_read);
	tcase_add_test(tc, what_cannot_be_read_is_mended_from_another_file);
	tcase_add_test(tc, a_disk_that_cannot_be_written_is_an_error);
	suite_add_tcase(s, tc);
	return s;
}
