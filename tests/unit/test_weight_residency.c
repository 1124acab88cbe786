/* SPDX-License-Identifier: Apache-2.0 */
/* Into memory and out of it, and to the disk, through the tree's door. */
#include "weight_tree_fixture.h"

#define LARGE (2 * MIB)

/* ---- At publish ---- */

START_TEST(a_publish_is_in_memory_at_once)
{
	struct weight_group *g;
	struct weight_metadata *m;
	struct weight_residence seen;
	struct weight_file *f;

	if (!can_pin())
		skip("no right to lock memory");
	g = published_large("7", LARGE);
	m = record_of(g);
	f = find_file(g, "model.safetensors");
	assert_residency(g, WEIGHT_HOT);
	ck_assert_uint_eq(m->operation_id, 0);
	ck_assert_uint_eq(m->metadata_generation, 2);
	ck_assert_uint_ge(residence_of(g).pinned_bytes, LARGE);
	ck_assert_int_eq(weight_file_residence(f, &seen), 0);
	ck_assert_int_eq(seen.residency, WEIGHT_HOT);
	ck_assert(seen.hot_ratio == 1.0);
	weight_file_unref(f);
	weight_metadata_free(m);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_policy_of_cold_pins_nothing)
{
	struct weight_group *g;

	config.policy.preferred = WEIGHT_COLD;
	reopen_store();
	g = published_large("7", LARGE);
	assert_residency(g, WEIGHT_COLD);
	settle(g);
	assert_residency(g, WEIGHT_COLD);
	ck_assert_uint_eq(operation_of(g), 0);
	ck_assert(is_durable(g));
	weight_group_unref(g);
}
END_TEST

/* The wait ends and says so; what can go on does. */
static void assert_no_room(struct weight_group *g)
{
	buf_release(&why);
	ck_assert_int_eq(weight_group_wait(g, NULL, &why), 1);
	ck_assert_msg(strstr(why.data, "no room in memory") &&
			      strstr(why.data, "(option"),
		      "%s", why.data);
	wait_until(is_durable(g));
}

START_TEST(a_publish_that_has_no_room_is_on_the_disk_until_there_is)
{
	struct weight_group *g;

	if (!can_pin())
		skip("no right to lock memory");
	config.memory_bytes = LARGE / 2;
	reopen_store();
	g = published_large("7", LARGE);
	assert_residency(g, WEIGHT_COLD);
	ck_assert_uint_ne(operation_of(g), 0);
	assert_no_room(g);
	assert_residency(g, WEIGHT_COLD);
	ck_assert_int_eq(availability_of(g), WEIGHT_READY);
	weight_group_unref(g);

	config.memory_bytes = 2 * LARGE;
	reopen_store();
	g = find_published("7");
	settle(g);
	assert_residency(g, WEIGHT_HOT);
	ck_assert_uint_eq(operation_of(g), 0);
	weight_group_unref(g);
}
END_TEST

/*
 * An error that stays as it is was recorded once, whatever is tried.
 * WeightGroupLifecycle.ExistingOffloadReportsFailureToWeightOperation
 */
START_TEST(what_fails_is_counted_and_tried_again)
{
	struct weight_group *g;
	uint64_t failures;

	if (!can_pin())
		skip("no right to lock memory");
	config.memory_bytes = LARGE / 2;
	reopen_store();
	g = published_large("7", LARGE);
	assert_no_room(g);
	wait_until(metrics_get(METRIC_OPERATION_RETRIES) >= 3);
	failures = metrics_get(METRIC_OPERATION_FAILURES);
	ck_assert_uint_ge(failures, 1);
	ck_assert_uint_lt(failures, 3);
	ck_assert_uint_eq(metrics_get(METRIC_OPERATIONS_FINISHED), 0);
	ck_assert_uint_eq(metrics_get(METRIC_MIGRATION_REMAINING_BYTES), LARGE);
	/* The other way there is no failure. */
	move(g, WEIGHT_COLD);
	wait_until(operation_of(g) == 0);
	ck_assert_uint_eq(metrics_get(METRIC_OPERATION_FAILURES), failures);
	ck_assert_uint_eq(metrics_get(METRIC_OPERATIONS_FINISHED), 1);
	ck_assert_uint_eq(metrics_get(METRIC_MIGRATION_PROCESSED_BYTES), LARGE);
	ck_assert_uint_eq(metrics_get(METRIC_MIGRATION_REMAINING_BYTES), 0);
	weight_group_unref(g);
}
END_TEST

START_TEST(what_can_never_fit_keeps_nothing_from_others)
{
	auto_free unsigned char *bytes = large_model(LARGE, 1);
	struct weight_group *g;

	if (!can_pin())
		skip("no right to lock memory");
	config.memory_bytes = LARGE / 2;
	reopen_store();
	g = stage("7");
	weight_file_unref(put(g, "part.bin", bytes, LARGE / 4));
	weight_file_unref(put(g, "model.safetensors", bytes, LARGE));
	ck_assert_int_eq(weight_group_wait(g, NULL, &why), 0);
	publish(g, "7");
	assert_no_room(g);
	wait_until(residence_of(g).residency == WEIGHT_COLD);
	assert_no_room(g);
	weight_group_unref(g);
	/* What fits has all of the room. */
	g = published_large("8", LARGE / 4);
	settle(g);
	assert_residency(g, WEIGHT_HOT);
	weight_group_unref(g);
}
END_TEST

START_TEST(headroom_is_left_for_copying_in)
{
	struct weight_group *g;

	if (!can_pin())
		skip("no right to lock memory");
	config.memory_bytes = 2 * LARGE + LARGE / 2;
	config.headroom_bytes = 2 * LARGE;
	reopen_store();
	g = published_large("7", LARGE); /* was copied in */
	settle(g);
	assert_residency(g, WEIGHT_HOT);
	move(g, WEIGHT_COLD);
	settle(g);
	move(g, WEIGHT_HOT);
	assert_no_room(g);
	ck_assert_ptr_nonnull(strstr(why.data, "headroom"));
	assert_residency(g, WEIGHT_COLD);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_staged_tree_that_rests_gives_way)
{
	struct weight_group *g, *staged;

	if (!can_pin())
		skip("no right to lock memory");
	config.memory_bytes = LARGE + LARGE / 2;
	reopen_store();
	g = published_large("7", LARGE);
	settle(g);
	move(g, WEIGHT_COLD);
	settle(g);
	staged = staged_large("8", LARGE);
	ck_assert_int_eq(weight_group_wait(staged, NULL, &why), 0);
	ck_assert_uint_ge(residence_of(g).pinned_bytes, 0);
	move(g, WEIGHT_HOT);
	settle(g);
	assert_residency(g, WEIGHT_HOT);
	/* And is published all the same, from the disk. */
	publish(staged, "8");
	assert_no_room(staged);
	assert_residency(staged, WEIGHT_COLD);
	weight_group_unref(staged);
	weight_group_unref(g);
}
END_TEST

START_TEST(room_that_one_leaves_is_taken_by_who_waits_for_it)
{
	struct weight_group *g, *waits;

	if (!can_pin())
		skip("no right to lock memory");
	config.memory_bytes = LARGE + LARGE / 2;
	reopen_store();
	g = published_large("7", LARGE);
	waits = published_large("8", LARGE);
	assert_no_room(waits);
	settle(g);
	move(g, WEIGHT_COLD);
	settle(g);
	/* Nobody has to ask for it anew. */
	wait_until(operation_of(waits) == 0);
	assert_residency(waits, WEIGHT_HOT);
	assert_residency(g, WEIGHT_COLD);
	weight_group_unref(waits);
	weight_group_unref(g);
}
END_TEST

/* ---- Moving ---- */

/*
 * WeightGroupLifecycle.ColdOperationEvictsWholeManagedGroup
 * WeightGroupLifecycle.RehydrateQueuesAndCompletesWholeManagedGroup
 */
START_TEST(it_moves_out_of_memory_and_back)
{
	struct weight_group *g;

	if (!can_pin())
		skip("no right to lock memory");
	g = published_large("7", LARGE);
	settle(g);
	for (int i = 0; i < 2; i++) {
		move(g, WEIGHT_COLD);
		settle(g);
		assert_residency(g, WEIGHT_COLD);
		ck_assert_uint_eq(operation_of(g), 0);
		ck_assert_uint_eq(resident_bytes(g, "model.safetensors"), 0);
		move(g, WEIGHT_HOT);
		settle(g);
		assert_residency(g, WEIGHT_HOT);
		ck_assert_uint_ge(resident_bytes(g, "model.safetensors"),
				  LARGE);
	}
	weight_group_unref(g);
}
END_TEST

/* WeightGroupLifecycle.OperationRemainsPendingUntilTargetObserved */
START_TEST(a_move_is_on_record_from_its_start_to_its_end)
{
	struct weight_group *g = published_large("7", LARGE);
	struct buf text = BUF_INIT;
	struct stat st;
	uint64_t id = 0;

	settle(g);
	ck_assert_int_eq(weight_group_migrate(g, WEIGHT_COLD, 0, &why), 0);
	settle(g);
	/* A HOT publish needs none; one that has no locks converges. */
	ck_assert_int_eq(weight_tree_operation_next(store, 0, &id), 0);
	ck_assert_int_eq(weight_tree_operation_next(store, id, &id), -ENOENT);
	ck_assert_int_eq(weight_tree_operation_json(store, id, &text), 0);
	ck_assert_msg(strstr(text.data, "\"message\":\"completed\"") &&
			      strstr(text.data, "\"target_residency\":") &&
			      strstr(text.data, "\"weight_generation\":7,"),
		      "%s", text.data);
	ck_assert_int_eq(weight_tree_operation_stat(store, id, &st), 0);
	ck_assert(S_ISREG(st.st_mode));
	buf_release(&text);
	ck_assert_int_eq(weight_tree_operation_json(store, id + 1, &text),
			 -ENOENT);
	ck_assert_int_eq(weight_tree_operation_json(store, 0, &text), -ENOENT);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_move_that_may_not_be_is_refused)
{
	struct weight_group *g = published_large("7", LARGE);
	struct weight_group *staged = stage("8");
	struct weight_metadata *m;

	settle(g);
	m = record_of(g);
	ck_assert_int_eq(weight_group_migrate(g, WEIGHT_MIXED, 0, &why),
			 -EINVAL);
	ck_assert_ptr_nonnull(why.data);
	ck_assert_int_eq(weight_group_migrate(staged, WEIGHT_COLD, 0, &why),
			 -ENOENT);
	buf_release(&why);
	ck_assert_int_eq(weight_group_migrate(g, WEIGHT_COLD,
					      m->metadata_generation + 1, &why),
			 -ECANCELED);
	ck_assert_ptr_nonnull(strstr(why.data, "metadata_generation"));
	ck_assert_uint_eq(operation_of(g), 0);
	ck_assert_int_eq(weight_group_migrate(g, WEIGHT_COLD,
					      m->metadata_generation, &why),
			 0);
	settle(g);
	/* The one from before says nothing any more. */
	ck_assert_int_eq(weight_group_migrate(g, WEIGHT_COLD,
					      m->metadata_generation, &why),
			 -ECANCELED);
	ck_assert_int_eq(weight_group_remove(g, 0, &why), 0);
	ck_assert_int_eq(weight_group_migrate(g, WEIGHT_COLD, 0, &why),
			 -ENOENT);
	weight_metadata_free(m);
	weight_group_unref(staged);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_policy_may_keep_it_where_it_is)
{
	struct weight_group *g;

	config.policy.mode = WEIGHT_PINNED;
	reopen_store();
	g = published_large("7", LARGE);
	(void)weight_group_wait(g, NULL, &why);
	buf_release(&why);
	ck_assert_int_eq(weight_group_migrate(g, WEIGHT_COLD, 0, &why), -EPERM);
	ck_assert_ptr_nonnull(why.data);
	weight_group_unref(g);
}
END_TEST

START_TEST(one_that_is_under_way_ends_first)
{
	struct weight_group *g;
	uint64_t id;

	if (!can_pin())
		skip("no right to lock memory");
	config.io_limit = 2 * LARGE; /* so that it is */
	reopen_store();
	g = published_large("7", LARGE);
	move(g, WEIGHT_COLD);
	id = operation_of(g);
	ck_assert_uint_ne(id, 0);
	ck_assert_int_eq(weight_group_migrate(g, WEIGHT_HOT, 0, &why), -EBUSY);
	ck_assert_ptr_nonnull(strstr(why.data, "operation"));
	/* The same is that one. */
	move(g, WEIGHT_COLD);
	ck_assert_uint_eq(operation_of(g), id);
	settle(g);
	assert_residency(g, WEIGHT_COLD);
	weight_group_unref(g);
}
END_TEST

static uint64_t oldest_ms(void)
{
	weight_tree_gauges(store);
	return metrics_get(METRIC_OLDEST_OPERATION_AGE_MS);
}

START_TEST(its_age_is_known_for_as_long_as_it_runs)
{
	struct weight_group *g;
	uint64_t age = 1;

	if (!can_pin())
		skip("no right to lock memory");
	config.io_limit = 2 * LARGE;
	reopen_store();
	g = published_large("7", LARGE);
	move(g, WEIGHT_COLD);
	wait_until(oldest_ms() > 0);
	for (uint64_t seen = age; operation_of(g) != 0; age = oldest_ms()) {
		ck_assert_uint_ge(age, seen);
		seen = age;
		(void)usleep(1000);
	}
	wait_until(oldest_ms() == 0);
	weight_group_unref(g);
}
END_TEST

/* ---- Who holds it ---- */

/* Interrupted once the line that it waits for has come. */
struct impatience {
	const char *line;
	bool seen;
	uint64_t end_ms;
};

static void on_progress(void *arg, const char *line)
{
	struct impatience *i = arg;

	i->seen |= strstr(line, i->line) != NULL;
}

static bool on_interrupted(void *arg)
{
	struct impatience *i = arg;

	return i->seen || clock_monotonic_ms() > i->end_ms;
}

static void assert_waits(struct weight_group *g, const char *line)
{
	struct impatience i = {
		.line = line,
		.end_ms = clock_monotonic_ms() + DEADLINE_MS,
	};
	const struct weight_waiter waiter = { on_interrupted, on_progress, &i };

	ck_assert_int_eq(weight_group_wait(g, &waiter, &why), -EINTR);
	ck_assert_msg(i.seen, "it never said '%s'", line);
}

static void assert_message(uint64_t id, const char *message)
{
	struct buf text = BUF_INIT;

	ck_assert_int_eq(weight_tree_operation_json(store, id, &text), 0);
	ck_assert_msg(strstr(text.data, message), "%s", text.data);
	buf_release(&text);
}

/*
 * WeightGroupLifecycle.ColdOperationOffloadsOnlyWeightsAndWaitsForLeaseBeforeDemotion
 */
START_TEST(what_somebody_has_open_stays_in_memory)
{
	struct weight_group *g;
	struct weight_file *f;

	if (!can_pin())
		skip("no right to lock memory");
	g = published_large("7", LARGE);
	settle(g);
	f = find_file(g, "model.safetensors");
	ck_assert_int_eq(weight_file_open(f, O_RDONLY, true), 0);
	move(g, WEIGHT_COLD);
	assert_waits(g, "waiting for those who read it (1)");
	assert_residency(g, WEIGHT_HOT);
	ck_assert_uint_ne(operation_of(g), 0);
	weight_file_close(f, O_RDONLY);
	settle(g);
	assert_residency(g, WEIGHT_COLD);
	weight_file_unref(f);
	weight_group_unref(g);
}
END_TEST

START_TEST(one_that_waits_for_readers_gives_way)
{
	struct weight_group *g;
	struct weight_file *f;
	uint64_t id;

	if (!can_pin())
		skip("no right to lock memory");
	g = published_large("7", LARGE);
	settle(g);
	f = find_file(g, "model.safetensors");
	ck_assert_int_eq(weight_file_open(f, O_RDONLY, true), 0);
	move(g, WEIGHT_COLD);
	id = operation_of(g);
	assert_waits(g, "waiting for those who read it (1)");
	move(g, WEIGHT_HOT);
	settle(g);
	assert_residency(g, WEIGHT_HOT);
	ck_assert_uint_eq(operation_of(g), 0);
	assert_message(id, WEIGHT_OPERATION_SUPERSEDED);
	weight_file_close(f, O_RDONLY);
	settle(g);
	assert_residency(g, WEIGHT_HOT);
	weight_file_unref(f);
	weight_group_unref(g);
}
END_TEST

START_TEST(what_somebody_has_mapped_stays_in_memory)
{
	struct weight_group *g;
	struct weight_file *f;
	void *map;
	int fd;

	if (!can_pin())
		skip("no right to lock memory");
	if (!weight_tree_can_lease(store))
		skip("nobody knows who has a file mapped");
	g = published_large("7", LARGE);
	settle(g);
	f = find_file(g, "model.safetensors");
	ck_assert_int_eq(weight_file_open(f, O_RDONLY, true), 0);
	fd = reopen_file(f, O_RDONLY);
	map = mmap(NULL, LARGE, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(map, MAP_FAILED);
	(void)close(fd);
	weight_file_close(f, O_RDONLY);
	move(g, WEIGHT_COLD);
	assert_waits(g, "waiting for those who read it");
	assert_residency(g, WEIGHT_HOT);
	(void)munmap(map, LARGE);
	settle(g);
	assert_residency(g, WEIGHT_COLD);
	weight_file_unref(f);
	weight_group_unref(g);
}
END_TEST

START_TEST(who_reads_it_does_not_keep_it_out_of_memory)
{
	struct weight_group *g;
	struct weight_file *f;

	if (!can_pin())
		skip("no right to lock memory");
	g = published_large("7", LARGE);
	settle(g);
	move(g, WEIGHT_COLD);
	settle(g);
	f = find_file(g, "model.safetensors");
	ck_assert_int_eq(weight_file_open(f, O_RDONLY, true), 0);
	move(g, WEIGHT_HOT);
	settle(g);
	assert_residency(g, WEIGHT_HOT);
	weight_file_close(f, O_RDONLY);
	weight_file_unref(f);
	weight_group_unref(g);
}
END_TEST

START_TEST(reading_past_the_cache_is_for_what_is_not_in_it)
{
	struct weight_group *g;
	struct weight_file *f;
	int flags = O_RDONLY | O_DIRECT;

	if (!can_pin())
		skip("no right to lock memory");
	g = published_large("7", LARGE);
	settle(g);
	f = find_file(g, "model.safetensors");
	ck_assert_int_eq(weight_file_open(f, flags, true), -EINVAL);
	move(g, WEIGHT_COLD);
	settle(g);
	ck_assert_int_eq(weight_file_open(f, flags, true), 0);
	weight_file_close(f, flags);
	weight_file_unref(f);
	weight_group_unref(g);

	config.direct = CONFIG_DIRECT_ALLOW;
	reopen_store();
	g = find_published("7");
	move(g, WEIGHT_HOT);
	settle(g);
	f = find_file(g, "model.safetensors");
	ck_assert_int_eq(weight_file_open(f, flags, true), 0);
	weight_file_close(f, flags);
	weight_file_unref(f);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_removal_ends_a_move)
{
	struct weight_group *g;

	if (!can_pin())
		skip("no right to lock memory");
	config.memory_bytes = LARGE / 2;
	reopen_store();
	g = published_large("7", LARGE);
	assert_no_room(g);
	ck_assert_uint_ne(operation_of(g), 0);
	buf_release(&why);
	ck_assert_msg(weight_group_remove(g, 0, &why) == 0, "%s", why.data);
	ck_assert_int_eq(weight_group_wait(g, NULL, &why), -ENOENT);
	weight_group_unref(g);
}
END_TEST

START_TEST(what_was_in_memory_is_there_after_a_restart)
{
	struct weight_group *g;

	if (!can_pin())
		skip("no right to lock memory");
	g = published_large("7", LARGE);
	settle(g);
	weight_group_unref(g);
	reopen_store();
	g = find_published("7");
	settle(g);
	assert_residency(g, WEIGHT_HOT);
	move(g, WEIGHT_COLD);
	settle(g);
	weight_group_unref(g);
	reopen_store();
	g = find_published("7");
	settle(g);
	assert_residency(g, WEIGHT_COLD);
	weight_group_unref(g);
}
END_TEST

/* ---- To the disk ---- */

#define FILES 5

static struct weight_group *staged_many(const char *name)
{
	struct weight_group *g = stage(name);
	struct weight_file *root = root_of(g), *dir = NULL;

	for (int i = 0; i < FILES; i++) {
		char file[16];

		(void)snprintf(file, sizeof(file), "%d.txt", i);
		weight_file_unref(put(g, file, "x", 1));
	}
	ck_assert_int_eq(weight_group_enter(g, NULL), 0);
	ck_assert_int_eq(weight_file_mkdir(root, "dir", 0755, &caller, &dir),
			 0);
	weight_group_leave(g);
	weight_file_unref(dir);
	weight_file_unref(root);
	return g;
}

/* The stamps, the directories above the group's, and of the lineage. */
#define FSYNCS_FIXED (2 + 1 + 2 + WEIGHT_TREE_LINEAGE_DEPTH + 1)

START_TEST(it_is_written_back_once_and_read_again)
{
	struct weight_group *g = staged_many("7");
	uint64_t before;

	/* The wait: the directories above, so that the rename needn't. */
	metrics_reset();
	before = 2 + WEIGHT_TREE_LINEAGE_DEPTH + 1;
	ck_assert_int_eq(weight_group_wait(g, NULL, &why), 0);
	ck_assert_uint_eq(metrics_get(METRIC_FSYNCS), before);
	ck_assert_int_eq(
		weight_group_publish(g, lineage, "7", false, NULL, &why), 0);
	settle(g);
	ck_assert(is_durable(g));
	ck_assert_uint_eq(metrics_get(METRIC_WRITE_BACKS), 1);
	ck_assert_uint_eq(metrics_get(METRIC_WRITE_BACK_FAILURES), 0);
	ck_assert_uint_eq(metrics_get(METRIC_BYTES_READ_BACK), FILES);
	/*
	 * The publish itself: its manifest. Then files and directories; those
	 * above are on the disk already.
	 */
	ck_assert_uint_eq(metrics_get(METRIC_FSYNCS),
			  2 + FILES + 2 + FSYNCS_FIXED);

	/* It is so from then on. */
	before = metrics_get(METRIC_FSYNCS);
	settle(g);
	ck_assert_int_eq(weight_group_sync(g, 0, NULL, &why), 0);
	weight_group_unref(g);
	reopen_store();
	g = find_published("7");
	settle(g);
	ck_assert_uint_eq(metrics_get(METRIC_WRITE_BACKS), 1);
	ck_assert_uint_eq(metrics_get(METRIC_FSYNCS), before);
	weight_group_unref(g);
}
END_TEST

/*
 * WeightGroupLifecycle.ColdOperationOffloadsOnlyWeightsAndWaitsForLeaseBeforeDemotion
 */
START_TEST(it_leaves_memory_only_when_it_is_durable)
{
	struct weight_group *g;

	if (!can_pin())
		skip("no right to lock memory");
	config.io_limit = 2 * LARGE; /* half a second, and as much again */
	reopen_store();
	g = published_large("7", LARGE);
	ck_assert(!is_durable(g));
	move(g, WEIGHT_COLD);
	while (residence_of(g).residency == WEIGHT_HOT)
		(void)usleep(1000);
	ck_assert(is_durable(g));
	settle(g);
	assert_residency(g, WEIGHT_COLD);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_sync_waits_for_as_long_as_it_may)
{
	struct weight_group *g;

	config.io_limit = 2 * LARGE;
	reopen_store();
	g = published_large("7", LARGE);
	ck_assert_int_eq(weight_group_sync(g, 0, NULL, &why), -EAGAIN);
	ck_assert_ptr_nonnull(strstr(why.data, "wait"));
	ck_assert_int_eq(weight_group_sync(g, DEADLINE_MS, NULL, &why), 0);
	ck_assert(is_durable(g));
	weight_group_unref(g);
}
END_TEST

START_TEST(without_durability_nothing_waits_for_a_disk)
{
	struct weight_group *g;

	config.durability = CONFIG_DURABILITY_NONE;
	reopen_store();
	metrics_reset();
	g = published_large("7", LARGE);
	settle(g);
	ck_assert(!is_durable(g));
	ck_assert_int_eq(weight_group_sync(g, 0, NULL, &why), 0);
	ck_assert_uint_eq(metrics_get(METRIC_FSYNCS), 0);
	ck_assert_uint_eq(metrics_get(METRIC_WRITE_BACKS), 0);
	weight_group_unref(g);
}
END_TEST

START_TEST(with_writethrough_it_is_durable_when_it_is_published)
{
	struct weight_group *g;

	config.durability = CONFIG_DURABILITY_WRITETHROUGH;
	reopen_store();
	metrics_reset();
	g = published_large("7", LARGE);
	ck_assert(is_durable(g));
	settle(g);
	ck_assert_uint_eq(metrics_get(METRIC_WRITE_BACKS), 0);
	weight_group_unref(g);
}
END_TEST

START_TEST(the_whole_tree_can_be_waited_for)
{
	struct weight_group *groups[4];

	for (size_t i = 0; i < ARRAY_LEN(groups); i++) {
		const char name[] = { (char)('1' + i), '\0' };

		groups[i] = published_large(name, LARGE);
	}
	ck_assert_int_eq(weight_tree_wait(store, NULL, &why), 0);
	for (size_t i = 0; i < ARRAY_LEN(groups); i++) {
		ck_assert(is_durable(groups[i]));
		weight_group_unref(groups[i]);
	}
	/* What can't go on for want of memory doesn't count. */
	config.memory_bytes = LARGE / 2;
	reopen_store();
	groups[0] = published_large("9", LARGE);
	ck_assert_int_eq(weight_tree_wait(store, NULL, &why), 0);
	ck_assert(is_durable(groups[0]));
	weight_group_unref(groups[0]);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_residency");
	TCase *t = tcase_create("publish");

	tcase_set_timeout(t, 90);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_publish_is_in_memory_at_once);
	tcase_add_test(t, a_policy_of_cold_pins_nothing);
	tcase_add_test(
		t, a_publish_that_has_no_room_is_on_the_disk_until_there_is);
	tcase_add_test(t, what_fails_is_counted_and_tried_again);
	tcase_add_test(t, what_can_never_fit_keeps_nothing_from_others);
	tcase_add_test(t, headroom_is_left_for_copying_in);
	tcase_add_test(t, a_staged_tree_that_rests_gives_way);
	tcase_add_test(t, room_that_one_leaves_is_taken_by_who_waits_for_it);
	suite_add_tcase(s, t);

	t = tcase_create("move");
	tcase_set_timeout(t, 90);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, it_moves_out_of_memory_and_back);
	tcase_add_test(t, a_move_is_on_record_from_its_start_to_its_end);
	tcase_add_test(t, a_move_that_may_not_be_is_refused);
	tcase_add_test(t, a_policy_may_keep_it_where_it_is);
	tcase_add_test(t, one_that_is_under_way_ends_first);
	tcase_add_test(t, its_age_is_known_for_as_long_as_it_runs);
	tcase_add_test(t, what_somebody_has_open_stays_in_memory);
	tcase_add_test(t, one_that_waits_for_readers_gives_way);
	tcase_add_test(t, what_somebody_has_mapped_stays_in_memory);
	tcase_add_test(t, who_reads_it_does_not_keep_it_out_of_memory);
	tcase_add_test(t, reading_past_the_cache_is_for_what_is_not_in_it);
	tcase_add_test(t, a_removal_ends_a_move);
	tcase_add_test(t, what_was_in_memory_is_there_after_a_restart);
	suite_add_tcase(s, t);

	t = tcase_create("disk");
	tcase_set_timeout(t, 90);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, it_is_written_back_once_and_read_again);
	tcase_add_test(t, it_leaves_memory_only_when_it_is_durable);
	tcase_add_test(t, a_sync_waits_for_as_long_as_it_may);
	tcase_add_test(t, without_durability_nothing_waits_for_a_disk);
	tcase_add_test(t, with_writethrough_it_is_durable_when_it_is_published);
	tcase_add_test(t, the_whole_tree_can_be_waited_for);
	suite_add_tcase(s, t);
	return s;
}
