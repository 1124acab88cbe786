/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published files that aren't what they were: found, not served, and mended,
 * through the tree's door.
 */
#include "chunk_check_fixture.h"

#include "weight_tree_fixture.h"

/* Tensor "a" is in chunks 0 and 1, "b" in 1 and 2. */
#define LEN (2 * (size_t)CHUNK_BYTES + MIB)
#define BAD (2 * (uint64_t)CHUNK_BYTES + 12345)
#define NAME "model.safetensors"

/* ---- A revision that leaves memory, so that its disk is what is read ---- */

static struct weight_group *group;
static struct weight_file *file;

static void begin(const char *name)
{
	config.policy.preferred = WEIGHT_COLD;
	reopen_store();
	group = published_large(name, LEN);
	settle(group);
	ck_assert(is_durable(group));
	file = find_file(group, NAME);
}

static void end(void)
{
	weight_file_unref(take_ptr(file));
	weight_group_unref(take_ptr(group));
}

/* Nobody remembers anything but what is on record. */
static void restart(void)
{
	end();
	reopen_store();
	group = find_published("7");
	file = find_file(group, NAME);
}

/* Another byte, and other times, as anything leaves them that writes. */
static void damage(uint64_t at)
{
	auto_fd int fd = reopen_file(file, O_RDWR);

	flip(fd, at);
	ck_assert_int_eq(fsync(fd), 0);
	drop_cache(fd);
}

static int open_and_close(void)
{
	int r = weight_file_open(file, O_RDONLY, true);

	if (r == 0)
		weight_file_close(file, O_RDONLY);
	return r;
}

/* The wait ends, and says what is lost. */
static void settle_damaged(struct weight_group *g)
{
	buf_release(&why);
	ck_assert_int_eq(weight_group_wait(g, NULL, &why), 1);
	ck_assert_msg(strstr(why.data, "lost"), "%s", why.data);
}

/* Whatever comes of it. */
static void scrub(struct weight_group *g)
{
	ck_assert_int_eq(weight_group_scrub(g, &why), 0);
	ck_assert_int_ge(weight_group_wait(g, NULL, &why), 0);
}

static void repair(struct weight_group *g)
{
	ck_assert_int_eq(weight_group_repair(g, &why), 0);
	ck_assert_int_ge(weight_group_wait(g, NULL, &why), 0);
}

static void assert_scrubbed(struct weight_group *g, const char *text)
{
	struct buf said = BUF_INIT;

	ck_assert_int_eq(weight_group_scrub_text(g, &said), 0);
	ck_assert_msg(strstr(said.data, text), "%s", said.data);
	buf_release(&said);
}

static void assert_whole(void)
{
	struct buf said = BUF_INIT;

	ck_assert_int_eq(weight_group_damage(group, &said), 0);
	ck_assert_msg(said.len == 0, "%s", said.data);
	ck_assert_int_eq(availability_of(group), WEIGHT_READY);
	ck_assert_int_eq(open_and_close(), 0);
	ck_assert(weight_file_may_pass(file));
	ck_assert_int_eq(weight_file_range_check(file, 0, LEN), 0);
	buf_release(&said);
}

/* Just chunk 2 is lost, which is of tensor "b". */
static void assert_damaged(void)
{
	struct buf said = BUF_INIT;

	settle_damaged(group);
	ck_assert_int_eq(availability_of(group), WEIGHT_DEGRADED);
	ck_assert(!is_durable(group));
	ck_assert_int_eq(weight_group_damage(group, &said), 0);
	ck_assert_msg(strstr(said.data, "'" NAME "'") &&
			      strstr(said.data, "'b'") &&
			      !strstr(said.data, "'a'") &&
			      strstr(said.data, "8388608..9437184"),
		      "%s", said.data);
	buf_release(&said);
	/* It can be opened, for what is whole. */
	ck_assert_int_eq(open_and_close(), 0);
	ck_assert(!weight_file_may_pass(file));
	ck_assert_int_eq(weight_file_range_check(file, 0, 2 * CHUNK_BYTES), 0);
	ck_assert_int_eq(weight_file_range_check(file, BAD, 1), -EIO);
	ck_assert_int_eq(weight_file_range_check(file, 0, LEN), -EIO);
	ck_assert_int_eq(weight_file_range_check(file, 2 * CHUNK_BYTES - 1, 2),
			 -EIO);
	ck_assert_int_eq(weight_file_range_check(file, LEN, 4096), 0);
}

static void assert_bytes(void)
{
	auto_free unsigned char *want = large_model(LEN, 1);
	auto_free unsigned char *got = malloc(LEN + 1);
	auto_fd int fd = reopen_file(file, O_RDONLY);

	ck_assert_int_eq(pread(fd, got, LEN + 1, 0), (ssize_t)LEN);
	ck_assert_mem_eq(got, want, LEN);
}

/* ---- Finding it ---- */

START_TEST(what_looks_as_it_did_is_not_read)
{
	begin("7");
	metrics_reset();
	ck_assert_int_eq(open_and_close(), 0);
	restart();
	ck_assert_int_eq(open_and_close(), 0);
	ck_assert_uint_eq(metrics_get(METRIC_BYTES_HASHED), 0);
	end();
}
END_TEST

START_TEST(what_looks_different_is_read_before_it_is_served)
{
	begin("7");
	damage(BAD);
	damage(BAD); /* and is the same again */
	metrics_reset();
	ck_assert_int_eq(weight_file_open(file, O_RDONLY, false), -EWOULDBLOCK);
	ck_assert_int_eq(open_and_close(), 0);
	ck_assert_uint_eq(metrics_get(METRIC_BYTES_HASHED), LEN);
	assert_whole();
	/* Once. */
	ck_assert_uint_eq(metrics_get(METRIC_BYTES_HASHED), LEN);
	settle(group);
	restart();
	assert_whole();
	ck_assert_uint_eq(metrics_get(METRIC_BYTES_HASHED), LEN);
	end();
}
END_TEST

START_TEST(who_opens_it_waits_only_for_so_long)
{
	struct buf said = BUF_INIT;
	int r;

	begin("7");
	config.open_wait_ms = 0;
	restart();
	damage(BAD);
	ck_assert_int_eq(open_and_close(), -EINPROGRESS);
	ck_assert_int_eq(weight_group_error(group, &said), 0);
	ck_assert_ptr_nonnull(strstr(said.data, "verified"));
	buf_release(&said);
	wait_until((r = open_and_close()) != -EINPROGRESS);
	ck_assert_int_eq(r, 0);
	assert_damaged();
	end();
}
END_TEST

START_TEST(an_open_finds_what_is_damaged)
{
	begin("7");
	damage(BAD);
	metrics_reset();
	ck_assert_int_eq(open_and_close(), 0);
	ck_assert(!weight_file_may_pass(file));
	ck_assert_int_eq(weight_file_range_check(file, BAD, 1), -EIO);
	assert_damaged();
	ck_assert_uint_eq(metrics_get(METRIC_BAD_CHUNKS), 1);
	/* Also by who comes after. */
	restart();
	ck_assert_int_eq(open_and_close(), 0);
	assert_damaged();
	end();
}
END_TEST

START_TEST(a_scrub_finds_what_nobody_opened)
{
	begin("7");
	assert_scrubbed(group, ", 0 bad"); /* it was just read back */
	damage(BAD);
	ck_assert(weight_file_may_pass(file));
	scrub(group);
	assert_damaged();
	assert_scrubbed(group, ", 1 bad");
	ck_assert_uint_ge(metrics_get(METRIC_SCRUBS), 1);
	end();
}
END_TEST

START_TEST(who_had_it_open_while_it_was_staged_is_told)
{
	config.policy.preferred = WEIGHT_COLD;
	reopen_store();
	group = staged_large("7", LEN);
	file = find_file(group, NAME);
	ck_assert_int_eq(weight_file_open(file, O_RDONLY, true), 0);
	publish(group, "7");
	settle(group);
	ck_assert_int_eq(weight_file_range_check(file, 0, LEN), 0);
	damage(BAD);
	scrub(group);
	ck_assert_int_eq(weight_file_range_check(file, 0, 1), 0);
	ck_assert_int_eq(weight_file_range_check(file, BAD, 1), -EIO);
	ck_assert(!weight_file_may_pass(file));
	weight_file_close(file, O_RDONLY);
	assert_damaged();
	end();
}
END_TEST

START_TEST(what_keeps_its_times_is_found_by_a_scrub)
{
	struct stat st;
	struct timespec times[2];
	int fd;

	begin("7");
	fd = reopen_file(file, O_RDWR);
	ck_assert_int_eq(fstat(fd, &st), 0);
	times[0] = st.st_atim;
	times[1] = st.st_mtim;
	damage(BAD);
	ck_assert_int_eq(futimens(fd, times), 0);
	(void)close(fd);
	scrub(group);
	assert_damaged();
	end();
}
END_TEST

/* ---- Other lengths, no file, other files ---- */

START_TEST(what_was_cut_off_is_lost_and_nothing_else)
{
	int fd;

	begin("7");
	fd = reopen_file(file, O_RDWR);
	ck_assert_int_eq(ftruncate(fd, (off_t)BAD), 0);
	(void)close(fd);
	if (_i == 0)
		ck_assert_int_eq(open_and_close(), 0);
	else
		scrub(group);
	assert_damaged();
	end();
}
END_TEST

START_TEST(what_was_added_behind_its_end_goes)
{
	int fd;

	begin("7");
	fd = reopen_file(file, O_RDWR);
	ck_assert_int_eq(ftruncate(fd, LEN + 5), 0);
	(void)close(fd);
	scrub(group);
	assert_whole();
	assert_bytes();
	end();
}
END_TEST

/* Where the payload of the only group lies. */
static void payload_path(char ret[static PATH_LEN * 2], const char *name)
{
	char command[PATH_LEN + 64];
	FILE *out;

	(void)snprintf(command, sizeof(command),
		       "find '%s/groups' -type d -name files | head -n 1",
		       path);
	out = popen(command, "r");
	ck_assert_ptr_nonnull(out);
	ck_assert_ptr_nonnull(fgets(ret, PATH_LEN, out));
	(void)pclose(out);
	ret[strcspn(ret, "\n")] = '\0';
	(void)snprintf(ret + strlen(ret), PATH_LEN, "/%s", name);
}

/* WeightReconciliation.MissingPayloadOrManifestBecomesDegraded */
START_TEST(a_file_that_is_gone_is_lost)
{
	char at[PATH_LEN * 2];
	struct buf said = BUF_INIT;

	begin("7");
	payload_path(at, NAME);
	ck_assert_int_eq(unlink(at), 0);
	end();
	reopen_store();
	group = find_published("7");
	scrub(group);
	ck_assert_int_eq(availability_of(group), WEIGHT_DEGRADED);
	ck_assert_int_eq(weight_group_damage(group, &said), 0);
	ck_assert_msg(strstr(said.data, "'" NAME "': bytes 0..9437184"), "%s",
		      said.data);
	buf_release(&said);
	/* Its name is there, with its size, and nothing of it is served. */
	file = find_file(group, NAME);
	ck_assert_int_eq(open_and_close(), 0);
	ck_assert_int_eq(weight_file_range_check(file, 0, 1), -EIO);
	end();
}
END_TEST

START_TEST(a_file_that_nobody_published_is_not_served)
{
	char at[PATH_LEN * 2];
	struct weight_file *foreign;
	auto_fd int fd = -1;

	begin("7");
	payload_path(at, "foreign");
	fd = open(at, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
	ck_assert_int_eq(write(fd, "x", 1), 1);
	foreign = find_file(group, "foreign");
	ck_assert_int_eq(weight_file_open(foreign, O_RDONLY, true), -EIO);
	ck_assert(!weight_file_may_pass(foreign));
	ck_assert_int_eq(weight_file_range_check(foreign, 0, 1), -EIO);
	weight_file_unref(foreign);
	assert_whole();
	end();
}
END_TEST

/* ---- Mending it ---- */

START_TEST(a_good_copy_in_staging_mends_it)
{
	struct weight_group *staged;

	begin("7");
	damage(BAD);
	scrub(group);
	assert_damaged();
	/* None, then one with another content, then the right one. */
	repair(group);
	assert_damaged();
	staged = stage("8");
	weight_file_unref(put(staged, NAME, model, sizeof(model) - 1));
	repair(group);
	assert_damaged();
	weight_group_unref(staged);
	staged = staged_large("9", LEN);
	metrics_reset();
	repair(group);
	ck_assert_uint_eq(metrics_get(METRIC_MENDED_CHUNKS), 1);
	assert_whole();
	assert_bytes();
	ck_assert(is_durable(group));
	ck_assert_int_eq(weight_group_state(staged), WEIGHT_GROUP_STAGED);
	weight_group_unref(staged);
	restart();
	assert_whole();
	scrub(group);
	assert_scrubbed(group, ", 0 bad");
	end();
}
END_TEST

START_TEST(a_file_that_is_gone_comes_back_from_staging)
{
	char at[PATH_LEN * 2];
	struct weight_group *staged;

	begin("7");
	payload_path(at, NAME);
	ck_assert_int_eq(unlink(at), 0);
	end();
	reopen_store();
	group = find_published("7");
	staged = staged_large("9", LEN);
	repair(group);
	scrub(group);
	repair(group);
	file = find_file(group, NAME);
	assert_whole();
	assert_bytes();
	weight_group_unref(staged);
	end();
}
END_TEST

START_TEST(what_is_damaged_can_be_removed)
{
	begin("7");
	damage(BAD);
	scrub(group);
	assert_damaged();
	ck_assert_msg(weight_group_remove(group, 0, &why) == 0, "%s", why.data);
	ck_assert_int_eq(weight_group_scrub(group, &why), -ENOENT);
	ck_assert_int_eq(weight_group_repair(group, &why), -ENOENT);
	end();
}
END_TEST

/* ---- The disk under a copy in memory ---- */

static struct disk disk;
static uint64_t page_of_bad = BAD / PAGE;

static void setup_disk(void)
{
	config_init(&config);
	config.memory_bytes = 256 * MIB;
}

/* NULL, or why there is none. */
static const char *begin_on_disk(void)
{
	const char *no = disk_make(&disk, &plain_ext4);
	struct weight_file *f;
	int fd;

	if (no)
		return no;
	(void)snprintf(path, sizeof(path), MOUNT "/store");
	open_store();
	if (!can_pin())
		return "no right to lock memory";
	group = stage("7");
	f = create(group, "data.bin");
	fd = reopen_file(f, O_WRONLY);
	write_data(fd, 0, LEN);
	(void)close(fd);
	weight_file_close(f, O_WRONLY);
	publish(group, "7");
	settle(group);
	assert_residency(group, WEIGHT_HOT);
	file = f;
	return NULL;
}

/* All of that page, wherever it starts as it should. */
static bool is_on_disk(uint64_t page)
{
	unsigned char want[PAGE], there[PAGE];
	off_t at = disk_find(&disk, page, 0);

	page_bytes(page, want);
	ck_assert_int_ge(at, 0);
	ck_assert_int_eq(pread(disk.image, there, PAGE, at), PAGE);
	return memcmp(there, want, PAGE) == 0;
}

/* The mount goes away with this process. */
static void end_on_disk(void)
{
	end();
	close_store();
	buf_release(&why);
	(void)umount(MOUNT);
	(void)close(disk.loop);
	(void)close(disk.image);
}

START_TEST(the_copy_in_memory_mends_the_disk)
{
	const char *no = begin_on_disk();

	if (no)
		skip(no);
	disk_flip(&disk, page_of_bad);
	ck_assert(!is_on_disk(page_of_bad));
	metrics_reset();
	scrub(group);
	ck_assert_uint_eq(metrics_get(METRIC_BAD_CHUNKS), 1);
	ck_assert_uint_eq(metrics_get(METRIC_MENDED_CHUNKS), 1);
	ck_assert_int_eq(availability_of(group), WEIGHT_READY);
	assert_scrubbed(group, ", 0 bad");
	ck_assert(is_on_disk(page_of_bad));
	/* It stayed in memory meanwhile, and needn't from now on. */
	assert_residency(group, WEIGHT_HOT);
	move(group, WEIGHT_COLD);
	settle(group);
	scrub(group);
	ck_assert_int_eq(availability_of(group), WEIGHT_READY);
	ck_assert_int_eq(open_and_close(), 0);
	ck_assert(weight_file_may_pass(file));
	end_on_disk();
}
END_TEST

START_TEST(a_write_back_that_went_wrong_is_noticed_and_mended)
{
	const char *no = begin_on_disk();
	const uint64_t last = 2 * LEN / PAGE - 1;
	struct weight_group *g;
	int fd;

	if (no)
		skip(no);
	/* On the disk already, but not read back. */
	config.io_limit = LEN;
	end();
	reopen_store();
	g = stage("8");
	file = create(g, "data.bin");
	fd = reopen_file(file, O_RDWR);
	write_data(fd, LEN, 2 * LEN);
	write_data(fd, 0, LEN);
	ck_assert_int_eq(fsync(fd), 0);
	(void)close(fd);
	weight_file_close(file, O_WRONLY);
	publish(g, "8");
	ck_assert(!is_durable(g));
	disk_flip(&disk, last);
	metrics_reset();
	settle(g);
	ck_assert(is_durable(g));
	ck_assert_uint_eq(metrics_get(METRIC_MENDED_CHUNKS), 1);
	ck_assert(is_on_disk(last));
	group = g;
	end_on_disk();
}
END_TEST

/* Its bytes are others, or the device answers EIO for them. */
START_TEST(a_disk_that_is_bad_with_nothing_in_memory_is_damage)
{
	const char *no = begin_on_disk();
	int fd;

	if (no)
		skip(no);
	move(group, WEIGHT_COLD);
	settle(group);
	fd = reopen_file(file, O_RDONLY);
	drop_cache(fd);
	(void)close(fd);
	if (_i == 0)
		disk_flip(&disk, page_of_bad);
	else
		disk_cut(&disk, page_of_bad);
	scrub(group);
	ck_assert_int_eq(availability_of(group), WEIGHT_DEGRADED);
	ck_assert_int_eq(weight_file_range_check(file, BAD, 1), -EIO);
	/* What else was cut off lies wherever the disk had room. */
	if (_i == 0)
		ck_assert_int_eq(weight_file_range_check(file, 0, 1), 0);
	end_on_disk();
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_health");
	TCase *t = tcase_create("find");

	tcase_set_timeout(t, 90);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, what_looks_as_it_did_is_not_read);
	tcase_add_test(t, what_looks_different_is_read_before_it_is_served);
	tcase_add_test(t, who_opens_it_waits_only_for_so_long);
	tcase_add_test(t, an_open_finds_what_is_damaged);
	tcase_add_test(t, a_scrub_finds_what_nobody_opened);
	tcase_add_test(t, who_had_it_open_while_it_was_staged_is_told);
	tcase_add_test(t, what_keeps_its_times_is_found_by_a_scrub);
	tcase_add_loop_test(t, what_was_cut_off_is_lost_and_nothing_else, 0, 2);
	tcase_add_test(t, what_was_added_behind_its_end_goes);
	tcase_add_test(t, a_file_that_is_gone_is_lost);
	tcase_add_test(t, a_file_that_nobody_published_is_not_served);
	suite_add_tcase(s, t);

	t = tcase_create("mend");
	tcase_set_timeout(t, 90);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_good_copy_in_staging_mends_it);
	tcase_add_test(t, a_file_that_is_gone_comes_back_from_staging);
	tcase_add_test(t, what_is_damaged_can_be_removed);
	suite_add_tcase(s, t);

	t = tcase_create("disk");
	tcase_set_timeout(t, 90);
	tcase_add_checked_fixture(t, setup_disk, NULL);
	tcase_add_test(t, the_copy_in_memory_mends_the_disk);
	tcase_add_test(t, a_write_back_that_went_wrong_is_noticed_and_mended);
	tcase_add_loop_test(
		t, a_disk_that_is_bad_with_nothing_in_memory_is_damage, 0, 2);
	suite_add_tcase(s, t);
	return s;
}
