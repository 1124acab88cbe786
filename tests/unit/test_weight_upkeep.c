/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Upkeep of odd revisions, and of revisions beside broken ones, through the
 * tree's door.
 */
#include "chunk_check_fixture.h"

#include "weight_tree_fixture.h"

#include <stdatomic.h>

#include "core/stamps.h"
#include "core/step.h"

#define LARGE (2 * MIB)
#define NAME "model.safetensors"
#define LEN (2 * (size_t)CHUNK_BYTES + MIB)
/* As many as work in turn, and one more. */
#define MANY 9

static struct weight_tree_space tree_space(void)
{
	struct weight_tree_space space;

	weight_tree_space(store, &space);
	return space;
}

/* ---- Below the daemon ---- */

/* "<store>/groups/xx/<hash>" of a generation; its identity says whose it is. */
static void group_path(char ret[static PATH_LEN * 2], const char *name)
{
	char command[PATH_LEN * 2];
	FILE *out;

	(void)snprintf(command, sizeof(command),
		       "dirname $(grep -l 'weight_generation\":%s}' "
		       "'%s'/groups/*/*/identity.json)",
		       name, path);
	out = popen(command, "r");
	ck_assert_ptr_nonnull(out);
	ck_assert_ptr_nonnull(fgets(ret, PATH_LEN * 2, out));
	(void)pclose(out);
	ret[strcspn(ret, "\n")] = '\0';
}

static void break_manifest(const char *name)
{
	char at[PATH_LEN * 3];

	group_path(at, name);
	(void)strcat(at, "/manifest.json");
	ck_assert_int_eq(truncate(at, 10), 0);
}

static void break_byte(struct weight_group *g, uint64_t at)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f =
		find_file(g, NAME);
	auto_fd int fd = reopen_file(f, O_RDWR);

	flip(fd, at);
	ck_assert_int_eq(fsync(fd), 0);
	drop_cache(fd);
}

/* Whether bytes of it that aren't what was published could be read. */
static bool serves(struct weight_group *g, uint64_t at)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f =
		find_file(g, NAME);
	int r = weight_file_open(f, O_RDONLY, true);

	if (r == 0) {
		r = weight_file_range_check(f, at, 1);
		weight_file_close(f, O_RDONLY);
	}
	return r == 0;
}

/* ---- Nothing in it, and holes ---- */

static bool arrives(struct weight_group *g, enum weight_residency target)
{
	uint64_t end = clock_monotonic_ms() + 5000;

	move(g, target);
	while (operation_of(g) && clock_monotonic_ms() < end)
		(void)usleep(1000);
	return operation_of(g) == 0;
}

START_TEST(a_revision_of_no_bytes_moves)
{
	struct weight_group *g;

	if (!can_pin())
		skip("no right to lock memory");
	g = stage("7");
	weight_file_unref(put(g, "empty.txt", "", 0));
	publish(g, "7");
	settle(g);
	ck_assert(arrives(g, WEIGHT_COLD));
	assert_residency(g, WEIGHT_COLD);
	ck_assert(arrives(g, WEIGHT_HOT));
	assert_residency(g, WEIGHT_HOT);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_file_that_is_all_a_hole_moves)
{
	struct weight_setattr larger = { .set_size = true, .size = 2 * LARGE };
	struct weight_group *g;
	struct weight_file *f;

	if (!can_pin())
		skip("no right to lock memory");
	g = stage("7");
	f = create(g, "hole.bin");
	ck_assert_int_eq(weight_file_setattr(f, &larger), 0);
	weight_file_close(f, O_WRONLY);
	weight_file_unref(f);
	publish(g, "7");
	settle(g);
	assert_residency(g, WEIGHT_HOT);
	ck_assert(arrives(g, WEIGHT_COLD));
	assert_residency(g, WEIGHT_COLD);
	ck_assert(arrives(g, WEIGHT_HOT));
	assert_residency(g, WEIGHT_HOT);
	weight_group_unref(g);
}
END_TEST

/* ---- Staged files that are pinned and then others ---- */

START_TEST(what_a_staged_file_was_does_not_count)
{
	struct weight_group *g;
	struct weight_file *f;
	auto_free unsigned char *bytes = large_model(LARGE, 1);

	if (!can_pin())
		skip("no right to lock memory");
	config.memory_bytes = LARGE + LARGE / 2;
	reopen_store();
	g = stage("7");
	f = put(g, "notes.bin", bytes, LARGE);
	ck_assert_int_eq(weight_group_wait(g, NULL, &why), 0);
	wait_until(tree_space().pinned_bytes == LARGE);
	ck_assert_int_eq(weight_group_enter(g, NULL), 0);
	ck_assert_int_eq(weight_file_open(f, O_WRONLY | O_TRUNC, true), 0);
	weight_group_leave(g);
	weight_file_close(f, O_WRONLY | O_TRUNC);
	weight_file_unref(f);
	weight_file_unref(put(g, NAME, bytes, LARGE));
	publish(g, "7");
	f = find_file(g, NAME);
	if (residence_of(g).residency == WEIGHT_HOT) {
		struct weight_residence seen;

		ck_assert_int_eq(weight_file_residence(f, &seen), 0);
		ck_assert_int_eq(seen.residency, WEIGHT_HOT);
	}
	weight_file_unref(f);
	settle(g);
	assert_residency(g, WEIGHT_HOT);
	ck_assert_uint_eq(tree_space().pinned_bytes,
			  residence_of(g).pinned_bytes);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_staged_file_that_is_gone_leaves_memory)
{
	struct weight_file *root;
	struct weight_group *g;
	auto_free unsigned char *bytes = large_model(LARGE, 1);

	if (!can_pin())
		skip("no right to lock memory");
	g = stage("7");
	root = root_of(g);
	for (unsigned round = 0; round < 60; round++) {
		char name[16];

		for (unsigned i = 0; i < 4; i++) {
			(void)snprintf(name, sizeof(name), "f%u", i);
			weight_file_unref(put(g, name, bytes, LARGE));
		}
		(void)usleep(1000 * (round % 30));
		ck_assert_int_eq(weight_group_enter(g, NULL), 0);
		for (unsigned i = 0; i < 4; i++) {
			(void)snprintf(name, sizeof(name), "f%u", i);
			ck_assert_int_eq(weight_file_unlink(root, name), 0);
		}
		weight_group_leave(g);
	}
	weight_file_unref(root);
	wait_until(tree_space().pinned_bytes == 0);
	ck_assert_int_eq(weight_dir_unstage(lineage, "7", &why), 0);
	weight_group_unref(g);
}
END_TEST

START_TEST(what_goes_and_comes_back_at_once_is_there)
{
	struct weight_group *g;

	if (!can_pin())
		skip("no right to lock memory");
	g = stage("7");
	for (unsigned i = 0; i < 24; i++) {
		auto_free unsigned char *bytes = large_model(LARGE, i);
		char name[32];

		(void)snprintf(name, sizeof(name), "m%u.safetensors", i);
		weight_file_unref(put(g, i ? name : NAME, bytes, LARGE));
	}
	publish(g, "7");
	settle(g);
	for (unsigned i = 0; i < 20; i++) {
		move(g, WEIGHT_COLD);
		wait_until(operation_of(g) == 0);
		move(g, WEIGHT_HOT);
		wait_until(operation_of(g) == 0);
		(void)usleep(300000);
		settle(g);
		assert_residency(g, WEIGHT_HOT);
	}
	weight_group_unref(g);
}
END_TEST

/* ---- Beside broken ones ---- */

START_TEST(a_broken_one_does_not_keep_others_out_of_memory)
{
	struct weight_group *broken, *g;

	if (!can_pin())
		skip("no right to lock memory");
	config.policy.preferred = WEIGHT_COLD;
	reopen_store();
	broken = published_large("7", LARGE);
	g = published_large("8", LARGE);
	settle(broken);
	settle(g);
	break_manifest("7");
	move(broken, WEIGHT_HOT);
	(void)usleep(300000);
	ck_assert(arrives(g, WEIGHT_HOT));
	assert_residency(g, WEIGHT_HOT);
	weight_group_unref(broken);
	weight_group_unref(g);
}
END_TEST

START_TEST(broken_ones_do_not_keep_others_off_the_disk)
{
	struct weight_group *groups[MANY];
	struct weight_group *g;
	char name[] = "1";

	config.durability = CONFIG_DURABILITY_NONE;
	config.policy.preferred = WEIGHT_COLD;
	reopen_store();
	for (unsigned i = 0; i < MANY; i++) {
		name[0] = (char)('1' + i);
		weight_group_unref(published_large(name, LARGE));
	}
	config.durability = CONFIG_DURABILITY_WRITEBACK;
	close_store();
	for (unsigned i = 0; i + 1 < MANY; i++) {
		name[0] = (char)('1' + i);
		break_manifest(name);
	}
	open_store();
	for (unsigned i = 0; i < MANY; i++) {
		name[0] = (char)('1' + i);
		groups[i] = find_published(name);
	}
	g = groups[MANY - 1];
	wait_until(is_durable(g));
	for (unsigned i = 0; i < MANY; i++)
		weight_group_unref(groups[i]);
}
END_TEST

/* Lost before it was on the disk: said so, instead of tried for ever. */
START_TEST(a_file_that_goes_before_it_is_durable_is_lost)
{
	char at[PATH_LEN * 3];
	struct weight_group *g;
	size_t len;

	config.durability = CONFIG_DURABILITY_NONE;
	config.policy.preferred = WEIGHT_COLD;
	reopen_store();
	weight_group_unref(published_large("7", LARGE));
	config.durability = CONFIG_DURABILITY_WRITEBACK;
	close_store();
	group_path(at, "7");
	len = strlen(at);
	(void)strncat(at, "/files/" NAME, sizeof(at) - len - 1);
	ck_assert_int_eq(unlink(at), 0);
	if (_i == 1)
		ck_assert_int_eq(mkdir(at, 0700), 0);
	if (_i == 2)
		ck_assert_int_eq(symlink("/etc/passwd", at), 0);
	open_store();
	g = find_published("7");
	wait_until(availability_of(g) == WEIGHT_DEGRADED);
	if (_i == 0)
		ck_assert(!serves(g, 0));
	buf_release(&why);
	ck_assert_int_eq(weight_group_wait(g, NULL, &why), 1);
	ck_assert_ptr_nonnull(strstr(why.data, "lost"));
	weight_group_unref(g);
}
END_TEST

/* ---- What was known of a file that has changed since ---- */

START_TEST(a_scrub_that_goes_on_trusts_nothing_that_changed)
{
	cleanup(stamps_free_cleanup) struct stamps *st = NULL;
	char at[PATH_LEN * 3];
	struct weight_group *g;
	auto_fd int dir = -1;

	config.policy.preferred = WEIGHT_COLD;
	reopen_store();
	g = published_large("7", LEN);
	settle(g);
	weight_group_unref(g);
	close_store();
	group_path(at, "7");
	dir = open(at, O_RDONLY | O_DIRECTORY);
	ck_assert_int_eq(stamps_read(dir, "stamps", &st), 0);
	st->scrub_next = 3; /* chunks 0 and 1 were looked at */
	ck_assert_int_eq(stamps_write(dir, "stamps", st, true), 0);
	open_store();
	g = find_published("7");
	break_byte(g, 5000);
	ck_assert_int_eq(weight_group_scrub(g, &why), 0);
	ck_assert_int_ge(weight_group_wait(g, NULL, &why), 0);
	ck_assert(!serves(g, 5000));
	weight_group_unref(g);
}
END_TEST

START_TEST(what_is_mended_is_read_as_a_whole)
{
	struct weight_group *g, *copy;

	config.policy.preferred = WEIGHT_COLD;
	/* Else it is read back next. */
	config.durability = CONFIG_DURABILITY_NONE;
	reopen_store();
	g = published_large("7", LEN);
	settle(g);
	break_byte(g, 2 * (uint64_t)CHUNK_BYTES + 77);
	ck_assert(serves(g, 0));
	ck_assert(!serves(g, 2 * (uint64_t)CHUNK_BYTES + 77));
	copy = staged_large("8", LEN);
	ck_assert_int_eq(weight_group_wait(copy, NULL, &why), 0);
	/* While it is damaged nobody looks at its times. */
	break_byte(g, 5000);
	{
		cleanup(weight_file_unref_cleanup) struct weight_file *f =
			find_file(copy, NAME);
		auto_fd int fd = reopen_file(f, O_RDWR);

		flip(fd, 5000);
	}
	ck_assert_int_eq(weight_group_repair(g, &why), 0);
	ck_assert_int_ge(weight_group_wait(g, NULL, &why), 0);
	ck_assert(serves(g, 2 * (uint64_t)CHUNK_BYTES + 77));
	ck_assert(!serves(g, 5000));
	weight_group_unref(copy);
	weight_group_unref(g);
}
END_TEST

START_TEST(what_is_damaged_is_looked_at_again_when_it_changes)
{
	const uint64_t bad = 2 * (uint64_t)CHUNK_BYTES + 77;
	struct weight_group *g;

	config.policy.preferred = WEIGHT_COLD;
	reopen_store();
	g = published_large("7", LEN);
	settle(g);
	break_byte(g, bad);
	ck_assert(serves(g, 5000));
	ck_assert(!serves(g, bad));
	break_byte(g, 5000);
	ck_assert(!serves(g, 5000));
	/* Somebody puts it right, bit by bit. */
	break_byte(g, 5000);
	ck_assert(serves(g, 5000));
	break_byte(g, bad);
	ck_assert(serves(g, bad));
	metrics_reset();
	ck_assert(serves(g, bad));
	ck_assert_uint_eq(metrics_get(METRIC_BYTES_HASHED), 0);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_sync_is_no_proof_for_writethrough)
{
	auto_free unsigned char *bytes = large_model(LARGE, 1);
	struct buf line = BUF_INIT;
	struct weight_group *g;
	struct weight_file *f;

	config.durability = CONFIG_DURABILITY_WRITETHROUGH;
	reopen_store();
	metrics_reset();
	g = stage("7");
	f = put(g, NAME, bytes, LARGE);
	wait_until((buf_release(&line), weight_group_progress(g, &line) == 0 &&
						strstr(line.data, "1 of 1")));
	buf_release(&line);
	ck_assert_int_eq(weight_file_sync(f, false), 0);
	weight_file_unref(f);
	publish(g, "7");
	ck_assert(is_durable(g));
	ck_assert_uint_ge(metrics_get(METRIC_BYTES_READ_BACK), LARGE);
	weight_group_unref(g);
}
END_TEST

/* A seal that is written late would make it look as if it had changed. */
START_TEST(what_was_synced_while_it_was_staged_looks_as_it_did)
{
	auto_free unsigned char *bytes = large_model(LARGE, 1);
	struct weight_file *files[20];
	struct weight_group *g;

	config.policy.preferred = WEIGHT_COLD;
	reopen_store();
	g = stage("7");
	for (unsigned i = 0; i < ARRAY_LEN(files); i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "%u.bin", i);
		files[i] = put(g, name, bytes, LARGE);
		ck_assert_int_eq(weight_file_sync(files[i], false), 0);
	}
	publish(g, "7");
	(void)usleep(300000);
	metrics_reset();
	for (unsigned i = 0; i < ARRAY_LEN(files); i++) {
		ck_assert_int_eq(weight_file_open(files[i], O_RDONLY, true), 0);
		weight_file_close(files[i], O_RDONLY);
		weight_file_unref(files[i]);
	}
	ck_assert_uint_eq(metrics_get(METRIC_BYTES_HASHED), 0);
	weight_group_unref(g);
}
END_TEST

START_TEST(what_is_lost_of_many_files_is_said_in_short)
{
	char command[PATH_LEN * 4], at[PATH_LEN * 3];
	struct buf said = BUF_INIT;
	struct weight_group *g;

	config.policy.preferred = WEIGHT_COLD;
	config.durability = CONFIG_DURABILITY_NONE;
	reopen_store();
	g = stage("7");
	for (unsigned i = 0; i < 1000; i++) {
		char name[96];

		(void)snprintf(name, sizeof(name), "%080u.txt", i);
		weight_file_unref(put(g, name, name, sizeof(name)));
	}
	publish(g, "7");
	weight_group_unref(g);
	close_store();
	group_path(at, "7");
	(void)snprintf(command, sizeof(command), "truncate -s 0 %s/files/*.txt",
		       at);
	ck_assert_int_eq(system(command), 0);
	open_store();
	g = find_published("7");
	ck_assert_int_eq(weight_group_scrub(g, &why), 0);
	ck_assert_int_eq(weight_group_wait(g, NULL, &why), 1);
	ck_assert_int_eq(weight_group_damage(g, &said), 0);
	ck_assert_uint_gt(said.len, 0);
	/* Values of attributes have an end. */
	ck_assert_uint_lt(said.len, 16 << 10);
	buf_release(&said);
	weight_group_unref(g);
}
END_TEST

/* ---- Rounds ---- */

static atomic_uint pins, unpins;

static void count_steps(const char *name)
{
	if (strcmp(name, "pin: some") == 0)
		pins++;
	else if (strcmp(name, "unpin: some") == 0)
		unpins++;
}

/* Of files of four granules, of one and of one. */
static const struct {
	uint64_t members, bytes;
	unsigned pins, unpins;
} rounds[] = {
	{ 64, (uint64_t)1 << 30, 3, 1 },
	{ 1, (uint64_t)1 << 30, 3, 3 },
	{ 2, (uint64_t)1 << 30, 3, 2 },
	{ 64, 2 * MIB, 6, 3 },
	{ 64, 1, 6, 3 },
};

START_TEST(a_round_takes_what_it_may)
{
	static const size_t sizes[] = { 8 * MIB, 2 * MIB, 2 * MIB };
	struct weight_group *g;

	if (!can_pin())
		skip("no right to lock memory");
	close_store();
	config.migration_round_members = rounds[_i].members;
	config.migration_round_bytes = rounds[_i].bytes;
	step_hook = count_steps;
	open_store();
	g = stage("7");
	for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
		auto_free unsigned char *bytes = large_model(sizes[i], i);
		char name[32];

		(void)snprintf(name, sizeof(name), "m%u.safetensors", i);
		weight_file_unref(put(g, i ? name : NAME, bytes, sizes[i]));
	}
	publish(g, "7");
	settle(g);
	unpins = 0;
	ck_assert(arrives(g, WEIGHT_COLD));
	assert_residency(g, WEIGHT_COLD);
	ck_assert_uint_eq(unpins, rounds[_i].unpins);
	pins = 0;
	ck_assert(arrives(g, WEIGHT_HOT));
	assert_residency(g, WEIGHT_HOT);
	ck_assert_uint_eq(pins, rounds[_i].pins);
	weight_group_unref(g);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_upkeep");
	TCase *t = tcase_create("odd");

	tcase_set_timeout(t, 90);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_revision_of_no_bytes_moves);
	tcase_add_test(t, a_file_that_is_all_a_hole_moves);
	tcase_add_test(t, what_a_staged_file_was_does_not_count);
	tcase_add_test(t, a_staged_file_that_is_gone_leaves_memory);
	tcase_add_test(t, what_goes_and_comes_back_at_once_is_there);
	suite_add_tcase(s, t);

	t = tcase_create("rounds");
	tcase_set_timeout(t, 90);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, a_round_takes_what_it_may, 0, ARRAY_LEN(rounds));
	suite_add_tcase(s, t);

	t = tcase_create("broken");
	tcase_set_timeout(t, 90);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_broken_one_does_not_keep_others_out_of_memory);
	tcase_add_test(t, broken_ones_do_not_keep_others_off_the_disk);
	tcase_add_loop_test(t, a_file_that_goes_before_it_is_durable_is_lost, 0,
			    3);
	suite_add_tcase(s, t);

	t = tcase_create("known");
	tcase_set_timeout(t, 90);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_scrub_that_goes_on_trusts_nothing_that_changed);
	tcase_add_test(t, what_is_mended_is_read_as_a_whole);
	tcase_add_test(t, what_is_damaged_is_looked_at_again_when_it_changes);
	tcase_add_test(t, a_sync_is_no_proof_for_writethrough);
	tcase_add_test(t, what_was_synced_while_it_was_staged_looks_as_it_did);
	tcase_add_test(t, what_is_lost_of_many_files_is_said_in_short);
	suite_add_tcase(s, t);
	return s;
}
