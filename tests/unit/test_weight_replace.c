/* SPDX-License-Identifier: Apache-2.0 */
/* Replacing one generation by another, through the tree's door. */
#include "weight_tree_fixture.h"

#include "core/step.h"
#include "core/weight_lineage.h"
#include "core/workers.h"

#define NAME "model.safetensors"

/* ---- Short ways ---- */

static int replace(struct weight_group *g, uint64_t base,
		   enum weight_upsert_mode mode, const char *request_id)
{
	const struct weight_replacement rp = { .base = base,
					       .mode = mode,
					       .request_id = request_id };

	buf_release(&why);
	return weight_group_replace(g, &rp, &why);
}

/* The claim as the lineage shows it begins with these words. */
static bool claim_is(const char *begin, const char *part)
{
	cleanup(buf_release) struct buf text = BUF_INIT;
	int r = weight_dir_claim(lineage, &text);

	if (r == -ENODATA)
		return false;
	ck_assert_int_eq(r, 0);
	return strncmp(text.data, begin, strlen(begin)) == 0 &&
	       strstr(text.data, part);
}

static void wait_for_claim(const char *begin, const char *part)
{
	uint64_t end = clock_monotonic_ms() + DEADLINE_MS;

	while (!claim_is(begin, part)) {
		ck_assert_msg(clock_monotonic_ms() < end, "no %s", part);
		(void)usleep(2000);
	}
}

static bool is_there(const char *name)
{
	struct weight_group *g = NULL;
	int r = weight_dir_published(lineage, name, &g);

	weight_group_unref(g);
	ck_assert(r == 0 || r == -ENOENT);
	return r == 0;
}

static uint64_t watermark(void)
{
	uint64_t v = 0;

	ck_assert_int_eq(weight_dir_watermark(lineage, &v), 0);
	return v;
}

static void bring(struct weight_group *g)
{
	weight_file_unref(put(g, NAME, model, sizeof(model) - 1));
}

static struct weight_file *open_model(struct weight_group *g)
{
	struct weight_file *f = find_file(g, NAME);

	ck_assert_int_eq(weight_file_open(f, O_RDONLY, true), 0);
	return f;
}

/* ---- PUT_FIRST ---- */

/* put_first_publishes_target_before_retiring_base */
START_TEST(the_base_goes_when_its_successor_is_durable)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *base =
		published("7");
	cleanup(weight_group_unref_cleanup) struct weight_group *g = stage("8");
	uint64_t none;

	ck_assert_int_eq(weight_dir_watermark(lineage, &none), -ENODATA);
	ck_assert_int_eq(replace(g, 7, WEIGHT_PUT_FIRST, "req"), 0);
	ck_assert(claim_is("7 by 8, mode=put_first", "preparing_target"));
	ck_assert(claim_is("7 by 8", "request_id=req"));
	bring(g);
	ck_assert(is_there("7"));
	publish(g, "8");
	ck_assert(is_there("8"));
	wait_for_claim("7 by 8, mode=put_first", "completed");
	ck_assert(!is_there("7"));
	ck_assert(is_there("8"));
	ck_assert_uint_eq(watermark(), 8);
}
END_TEST

/* WeightRevisionLease.PutFirstFencesBaseAfterTargetCommit */
START_TEST(readers_of_the_base_keep_it_and_nobody_joins_them)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *base =
		published("7");
	cleanup(weight_group_unref_cleanup) struct weight_group *g = stage("8");
	cleanup(weight_file_unref_cleanup) struct weight_file *f =
		open_model(base);
	cleanup(buf_release) struct buf sentence = BUF_INIT;

	ck_assert_int_eq(replace(g, 7, WEIGHT_PUT_FIRST, NULL), 0);
	bring(g);
	publish(g, "8");
	wait_for_claim("7 by 8", "retiring_base");
	ck_assert_int_eq(weight_file_open(f, O_RDONLY, true), -EBUSY);
	ck_assert_int_eq(weight_group_error(base, &sentence), 0);
	ck_assert_ptr_nonnull(strstr(sentence.data, "replaced"));
	ck_assert_int_eq(weight_group_migrate(base, WEIGHT_COLD, 0, &why),
			 -EBUSY);
	/* Deleting it is the claim's own business, and so is its target. */
	ck_assert_int_eq(weight_group_remove(base, 0, &why), -EBUSY);
	ck_assert_int_eq(weight_group_remove(g, 0, &why), -EBUSY);
	ck_assert(is_there("7"));
	weight_file_close(f, O_RDONLY);
	wait_for_claim("7 by 8", "completed");
	ck_assert(!is_there("7"));
}
END_TEST

/* upsert_abort_keeps_put_first_base_and_releases_claim */
START_TEST(giving_up_the_successor_keeps_the_base)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *base =
		published("7");
	struct weight_group *g = stage("8");
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;

	ck_assert_int_eq(replace(g, 7, WEIGHT_PUT_FIRST, "req"), 0);
	/* The same announcement goes on where it is. */
	ck_assert_int_eq(replace(g, 7, WEIGHT_PUT_FIRST, "req"), 0);
	ck_assert_int_eq(replace(g, 7, WEIGHT_PUT_FIRST, NULL), 0);
	ck_assert_int_eq(weight_dir_unstage(lineage, "8", &why), 0);
	weight_group_unref(g);
	ck_assert(claim_is("7 by 8", "aborted"));
	ck_assert_uint_eq(watermark(), 7);
	f = open_model(base);
	weight_file_close(f, O_RDONLY);
	/* And it can be announced again, by another name. */
	g = stage("8");
	ck_assert_int_eq(replace(g, 7, WEIGHT_PUT_FIRST, "req"), -EEXIST);
	ck_assert_ptr_nonnull(strstr(why.data, "req was given up"));
	ck_assert(claim_is("7 by 8", "aborted"));
	ck_assert_int_eq(weight_group_replaces(g, &why), -ENODATA);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_int_eq(replace(g, 7, WEIGHT_PUT_FIRST, NULL), 0);
		ck_assert(claim_is("7 by 8", "preparing_target"));
		ck_assert_int_eq(weight_dir_unstage(lineage, "8", &why), 0);
		weight_group_unref(g);
		g = stage("8");
	}
	ck_assert_int_eq(replace(g, 7, WEIGHT_PUT_FIRST, NULL), 0);
	bring(g);
	publish(g, "8");
	weight_group_unref(g);
	wait_for_claim("7 by 8", "completed");
}
END_TEST

/* ---- Competitors and bad requests ---- */

START_TEST(a_competitor_is_busy_at_the_latest_at_the_rename)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *base =
		published("7");
	cleanup(weight_group_unref_cleanup) struct weight_group *g = stage("8");
	cleanup(weight_group_unref_cleanup) struct weight_group *other =
		stage("9");

	ck_assert_int_eq(replace(g, 7, WEIGHT_PUT_FIRST, NULL), 0);
	ck_assert_int_eq(replace(other, 7, WEIGHT_PUT_FIRST, NULL), -EBUSY);
	ck_assert_uint_gt(why.len, 0);
	bring(other);
	ck_assert_int_eq(weight_group_wait(other, NULL, &why), 0);
	buf_release(&why);
	ck_assert_int_eq(
		weight_group_publish(other, lineage, "9", false, NULL, &why),
		-EBUSY);
	ck_assert_uint_gt(why.len, 0);
	bring(g);
	publish(g, "8");
	wait_for_claim("7 by 8", "completed");
	ck_assert_int_eq(
		weight_group_publish(other, lineage, "9", false, NULL, &why),
		0);
}
END_TEST

START_TEST(what_makes_no_sense_is_refused_and_leaves_no_claim)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *base =
		published("7");
	cleanup(weight_group_unref_cleanup) struct weight_group *g = stage("8");
	cleanup(weight_group_unref_cleanup) struct weight_group *low =
		stage("3");
	const struct weight_replacement fenced = {
		.base = 7, .expected_metadata_generation = 77
	};

	ck_assert_int_eq(replace(g, 6, WEIGHT_PUT_FIRST, NULL), -ENOENT);
	ck_assert_uint_gt(why.len, 0);
	ck_assert_int_eq(replace(g, 8, WEIGHT_PUT_FIRST, "r"), -ENOENT);
	ck_assert_int_eq(replace(low, 7, WEIGHT_PUT_FIRST, NULL), -ECANCELED);
	ck_assert_int_eq(replace(g, 7, WEIGHT_PUT_FIRST, ""), -EINVAL);
	ck_assert_int_eq(weight_group_replace(g, &fenced, &why), -ECANCELED);
	ck_assert_int_eq(replace(base, 7, WEIGHT_PUT_FIRST, NULL), -EBUSY);
	ck_assert(!claim_is("", ""));
	ck_assert_int_eq(weight_group_replaces(g, &why), -ENODATA);
}
END_TEST

/* ---- DELETE_FIRST ---- */

static bool has_run;
static void run_parked(struct work *work)
{
	(void)work;
	__atomic_store_n(&has_run, true, __ATOMIC_SEQ_CST);
}

/* Enters as a call of the mount does: it may have to wait. */
static void enter_patiently(struct weight_group *g)
{
	struct weight_parked parked = { .work = { .run = run_parked } };
	uint64_t end = clock_monotonic_ms() + DEADLINE_MS;
	int r;

	for (;;) {
		__atomic_store_n(&has_run, false, __ATOMIC_SEQ_CST);
		r = weight_group_enter(g, &parked);
		ck_assert_int_ge(r, 0);
		if (r == 0)
			break;
		while (!__atomic_load_n(&has_run, __ATOMIC_SEQ_CST)) {
			ck_assert(clock_monotonic_ms() < end);
			(void)usleep(1000);
		}
	}
	weight_group_leave(g);
}

/* delete_first_reclaims_base_before_returning_writer */
START_TEST(the_base_goes_before_the_first_byte)
{
	struct weight_group *base = published("7");
	cleanup(weight_group_unref_cleanup) struct weight_group *g = stage("8");

	ck_assert_int_eq(weight_group_wait(base, NULL, &why), 0);
	weight_group_unref(base);
	ck_assert_int_eq(replace(g, 7, WEIGHT_DELETE_FIRST, "req"), 0);
	enter_patiently(g);
	ck_assert(!is_there("7"));
	ck_assert(claim_is("7 by 8, mode=delete_first", "target_importing"));
	bring(g);
	publish(g, "8");
	wait_for_claim("7 by 8", "completed");
	ck_assert_uint_eq(watermark(), 8);
}
END_TEST

/* The base is being deleted for as long as this is true. */
static bool holds_up;
static void hold_up(const char *name)
{
	uint64_t end = clock_monotonic_ms() + DEADLINE_MS;

	while (strcmp(name, "removal: batch") == 0 &&
	       __atomic_load_n(&holds_up, __ATOMIC_SEQ_CST) &&
	       clock_monotonic_ms() < end)
		(void)usleep(1000);
}

static void expect_run(void)
{
	uint64_t end = clock_monotonic_ms() + DEADLINE_MS;

	while (!__atomic_exchange_n(&has_run, false, __ATOMIC_SEQ_CST)) {
		ck_assert(clock_monotonic_ms() < end);
		(void)usleep(1000);
	}
}

START_TEST(who_waits_for_the_base_to_go_may_give_up)
{
	struct weight_parked parked = { .work = { .run = run_parked } };
	struct weight_parked other = { .work = { .run = run_parked } };
	struct weight_parked late = { .work = { .run = run_parked } };
	struct weight_group *base = published("7");
	cleanup(weight_group_unref_cleanup) struct weight_group *g = stage("8");

	ck_assert_int_eq(weight_group_wait(base, NULL, &why), 0);
	weight_group_unref(base);
	holds_up = true;
	step_hook = hold_up;
	ck_assert_int_eq(replace(g, 7, WEIGHT_DELETE_FIRST, "req"), 0);
	ck_assert_int_eq(weight_group_enter(g, &parked), 1);
	ck_assert_int_eq(weight_group_enter(g, &other), 1);
	/* It comes before or after it was parked. */
	weight_parked_give_up(store, &parked);
	expect_run();
	ck_assert_int_eq(weight_group_enter(g, &parked), -EINTR);
	weight_parked_give_up(store, &late);
	ck_assert_int_eq(weight_group_enter(g, &late), -EINTR);
	/* All at once, as at the end. */
	weight_tree_give_up(store);
	expect_run();
	ck_assert_int_eq(weight_group_enter(g, &other), -EINTR);
	__atomic_store_n(&holds_up, false, __ATOMIC_SEQ_CST);
	wait_for_claim("7 by 8", "target_importing");
	step_hook = NULL;
	/* There is nothing to wait for now. */
	ck_assert_int_eq(weight_group_enter(g, &late), 0);
	weight_group_leave(g);
}
END_TEST

/* delete_first_busy_fails_before_target_import */
START_TEST(a_base_that_is_read_is_not_deleted_first)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *base =
		published("7");
	cleanup(weight_group_unref_cleanup) struct weight_group *g = stage("8");
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;

	ck_assert_int_eq(weight_group_wait(base, NULL, &why), 0);
	f = open_model(base);
	ck_assert_int_eq(replace(g, 7, WEIGHT_DELETE_FIRST, NULL), -EBUSY);
	ck_assert_uint_gt(why.len, 0);
	ck_assert(!claim_is("", ""));
	/* The staged tree can be filled as before, and the base be read. */
	bring(g);
	ck_assert_int_eq(weight_file_open(f, O_RDONLY, true), 0);
	weight_file_close(f, O_RDONLY);
	weight_file_close(f, O_RDONLY);
	ck_assert_int_eq(replace(g, 7, WEIGHT_DELETE_FIRST, NULL), -EPERM);
	ck_assert_ptr_nonnull(strstr(why.data, "files are there already"));
	ck_assert(!claim_is("", ""));
}
END_TEST

/* delete_first_payload_failure_recovers_with_same_request */
START_TEST(an_interrupted_successor_is_resumed_by_its_own_request)
{
	struct weight_group *base = published("7");
	struct weight_group *g = stage("8");
	cleanup(weight_group_unref_cleanup) struct weight_group *other = NULL;

	ck_assert_int_eq(weight_group_wait(base, NULL, &why), 0);
	weight_group_unref(base);
	ck_assert_int_eq(replace(g, 7, WEIGHT_DELETE_FIRST, "req"), 0);
	enter_patiently(g);
	ck_assert_int_eq(weight_dir_unstage(lineage, "8", &why), 0);
	weight_group_unref(g);
	ck_assert(claim_is("7 by 8", "target_importing"));
	ck_assert(claim_is("7 by 8", "interrupted"));
	/* Somebody else can't take its place, by whatever name. */
	other = stage("9");
	bring(other);
	ck_assert_int_eq(weight_group_wait(other, NULL, &why), 0);
	ck_assert_int_eq(
		weight_group_publish(other, lineage, "9", false, NULL, &why),
		-EBUSY);
	g = stage("8");
	bring(g);
	ck_assert_int_eq(weight_group_wait(g, NULL, &why), 0);
	ck_assert_int_eq(
		weight_group_publish(g, lineage, "8", false, NULL, &why),
		-EBUSY);
	ck_assert_int_eq(replace(g, 7, WEIGHT_DELETE_FIRST, "else"), -EBUSY);
	ck_assert_int_eq(replace(g, 7, WEIGHT_DELETE_FIRST, "req"), 0);
	publish(g, "8");
	weight_group_unref(g);
	wait_for_claim("7 by 8", "completed");
}
END_TEST

/* ---- Restarts ---- */

START_TEST(a_claim_outlives_a_restart)
{
	struct weight_group *base = published("7");
	struct weight_group *g = stage("8");
	cleanup(buf_release) struct buf text = BUF_INIT;

	ck_assert_int_eq(replace(g, 7, WEIGHT_PUT_FIRST, "req"), 0);
	weight_group_unref(base);
	weight_group_unref(g);
	reopen_store();
	ck_assert_int_eq(weight_dir_staged(lineage, "8", &g), 0);
	ck_assert_int_eq(weight_group_replaces(g, &text), 0);
	ck_assert_str_eq(text.data, "7,mode=put_first,request_id=req");
	bring(g);
	publish(g, "8");
	weight_group_unref(g);
	reopen_store();
	wait_for_claim("7 by 8", "completed");
	ck_assert(!is_there("7"));
	ck_assert(is_there("8"));
}
END_TEST

/* The writer is gone, and so is what it had staged. */
START_TEST(a_claim_without_a_target_is_given_up_by_the_reconciler)
{
	struct weight_group *base = published("7");
	struct weight_group *g = stage("8");
	char command[2 * PATH_LEN];

	ck_assert_int_eq(replace(g, 7, WEIGHT_PUT_FIRST, "req"), 0);
	weight_group_unref(base);
	weight_group_unref(g);
	close_store();
	(void)snprintf(command, sizeof(command),
		       "rm -rf $(dirname $(grep -l 'generation\":8}' "
		       "'%s'/groups/*/*/identity.json))",
		       path);
	ck_assert_int_eq(system(command), 0);
	open_store();
	wait_for_claim("7 by 8", "aborted");
	ck_assert(is_there("7"));
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_replace");
	TCase *tc = tcase_create("weight_replace");

	tcase_set_timeout(tc, 2 * DEADLINE_MS / 1000);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, the_base_goes_when_its_successor_is_durable);
	tcase_add_test(tc, readers_of_the_base_keep_it_and_nobody_joins_them);
	tcase_add_test(tc, giving_up_the_successor_keeps_the_base);
	tcase_add_test(tc, a_competitor_is_busy_at_the_latest_at_the_rename);
	tcase_add_test(tc, what_makes_no_sense_is_refused_and_leaves_no_claim);
	tcase_add_test(tc, the_base_goes_before_the_first_byte);
	tcase_add_test(tc, who_waits_for_the_base_to_go_may_give_up);
	tcase_add_test(tc, a_base_that_is_read_is_not_deleted_first);
	tcase_add_test(tc,
		       an_interrupted_successor_is_resumed_by_its_own_request);
	tcase_add_test(tc, a_claim_outlives_a_restart);
	tcase_add_test(tc,
		       a_claim_without_a_target_is_given_up_by_the_reconciler);
	suite_add_tcase(s, tc);
	return s;
}
