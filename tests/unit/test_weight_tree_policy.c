/* SPDX-License-Identifier: Apache-2.0 */
/* Policies of staged and of published groups. */
#include <pthread.h>

#include "weight_tree_fixture.h"

static const struct weight_policy_change to_manual = {
	.set_mode = true,
	.policy = { .mode = WEIGHT_MANUAL },
};
static const struct weight_policy_change to_auto = {
	.set_mode = true,
	.policy = { .mode = WEIGHT_AUTO },
};
static const struct weight_policy_change to_pinned = {
	.set_mode = true,
	.policy = { .mode = WEIGHT_PINNED },
};
static const struct weight_policy_change to_quarter = {
	.set_mixed_hot_ratio = true,
	.policy = { .mixed_hot_ratio = 0.25 },
};
static const struct weight_policy_change to_cold = {
	.set_preferred = true,
	.policy = { .preferred = WEIGHT_COLD },
};
static const struct weight_policy_change to_mixed = {
	.set_preferred = true,
	.policy = { .preferred = WEIGHT_MIXED },
};

static int set(struct weight_group *g,
	       const struct weight_policy_change *change, uint64_t expected)
{
	buf_release(&why);
	return weight_group_set_policy(g, change, expected, &why);
}

static void assert_policy(struct weight_group *g,
			  enum weight_residency preferred, double ratio,
			  enum weight_migration_mode mode)
{
	const struct weight_policy want = { preferred, ratio, mode };
	struct weight_policy p;

	ck_assert_int_eq(weight_group_policy(g, &p), 0);
	ck_assert_msg(weight_policy_equal(&p, &want), "%s, %g, %s",
		      weight_residency_name(p.preferred), p.mixed_hot_ratio,
		      weight_migration_mode_name(p.mode));
}

static void assert_refused(int r, int want, const char *sentence)
{
	ck_assert_int_eq(r, want);
	ck_assert_msg(strstr(why.data, sentence), "'%s' without '%s'", why.data,
		      sentence);
}

static uint64_t metadata_generation_of(struct weight_group *g)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m =
		record_of(g);

	return m->metadata_generation;
}

START_TEST(a_staged_one_has_the_stores_policy_until_it_gets_one)
{
	struct weight_group *g = stage("7");

	assert_policy(g, WEIGHT_HOT, 0.5, WEIGHT_AUTO);
	ck_assert_int_eq(set(g, &to_quarter, 0), 0);
	ck_assert_int_eq(set(g, &to_manual, 0), 0);
	assert_policy(g, WEIGHT_HOT, 0.25, WEIGHT_MANUAL);
	ck_assert_int_eq(set(g, &to_cold, 0), 0);
	assert_policy(g, WEIGHT_COLD, 0.25, WEIGHT_MANUAL);
	weight_group_unref(g);
	reopen_store();
	ck_assert_int_eq(weight_dir_staged(lineage, "7", &g), 0);
	assert_policy(g, WEIGHT_COLD, 0.25, WEIGHT_MANUAL);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_staged_one_has_nothing_to_fence_with)
{
	struct weight_group *g = stage("7");

	assert_refused(set(g, &to_manual, 1), -EINVAL,
		       "no metadata_generation yet");
	assert_policy(g, WEIGHT_HOT, 0.5, WEIGHT_AUTO);
	weight_group_unref(g);
}
END_TEST

START_TEST(an_aborted_or_removed_one_has_no_policy_to_set)
{
	struct weight_group *g = stage("7");
	struct weight_policy p;

	ck_assert_int_eq(weight_dir_unstage(lineage, "7", &why), 0);
	ck_assert_int_eq(set(g, &to_manual, 0), -ENOENT);
	ck_assert_int_lt(weight_group_policy(g, &p), 0);
	weight_group_unref(g);
	g = published("8");
	ck_assert_int_eq(weight_group_remove(g, 0, &why), 0);
	ck_assert_int_eq(set(g, &to_manual, 0), -ENOENT);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_published_one_changes_a_part_of_it_under_a_fence)
{
	struct weight_group *g = published("7");
	uint64_t at;

	settle(g);
	at = metadata_generation_of(g);
	ck_assert_int_eq(set(g, &to_manual, at), 0);
	assert_policy(g, WEIGHT_HOT, 0.5, WEIGHT_MANUAL);
	ck_assert_uint_eq(metadata_generation_of(g), at + 1);
	/* A repeat, right after it and without a fence. */
	ck_assert_int_eq(set(g, &to_manual, at), 0);
	ck_assert_int_eq(set(g, &to_manual, 0), 0);
	ck_assert_uint_eq(metadata_generation_of(g), at + 1);
	ck_assert_int_eq(set(g, &to_quarter, 0), 0);
	assert_policy(g, WEIGHT_HOT, 0.25, WEIGHT_MANUAL);
	assert_refused(set(g, &to_cold, at), -ECANCELED,
		       "metadata_generation is another one");
	assert_refused(set(g, &to_manual, at), -ECANCELED,
		       "metadata_generation is another one");
	assert_policy(g, WEIGHT_HOT, 0.25, WEIGHT_MANUAL);
	weight_group_unref(g);
}
END_TEST

START_TEST(what_is_pinned_stays_where_it_is)
{
	struct weight_group *g = published("7");

	settle(g);
	ck_assert_int_eq(set(g, &to_pinned, 0), 0);
	buf_release(&why);
	assert_refused(weight_group_migrate(g, WEIGHT_COLD, 0, &why), -EPERM,
		       "pinned");
	ck_assert_int_eq(set(g, &to_cold, 0), 0);
	ck_assert_uint_eq(operation_of(g), 0);
	weight_group_unref(g);
}
END_TEST

START_TEST(with_auto_it_goes_where_it_is_wanted)
{
	struct weight_group *g = published("7");
	bool pins = can_pin();

	settle(g);
	assert_residency(g, pins ? WEIGHT_HOT : WEIGHT_COLD);
	ck_assert_int_eq(set(g, &to_manual, 0), 0);
	ck_assert_int_eq(set(g, &to_cold, 0), 0);
	settle(g);
	assert_residency(g, pins ? WEIGHT_HOT : WEIGHT_COLD);
	ck_assert_int_eq(set(g, &to_auto, 0), 0);
	settle(g);
	assert_residency(g, WEIGHT_COLD);
	assert_policy(g, WEIGHT_COLD, 0.5, WEIGHT_AUTO);
	weight_group_unref(g);
}
END_TEST

START_TEST(mixed_may_be_wanted_but_nothing_begins)
{
	struct weight_group *g = published_large("7", MIB);

	settle(g);
	assert_refused(set(g, &to_mixed, 0), -EPERM, "mode=manual");
	assert_policy(g, WEIGHT_HOT, 0.5, WEIGHT_AUTO);
	ck_assert_int_eq(set(g, &to_manual, 0), 0);
	ck_assert_int_eq(set(g, &to_mixed, 0), 0);
	assert_policy(g, WEIGHT_MIXED, 0.5, WEIGHT_MANUAL);
	ck_assert_uint_eq(operation_of(g), 0);
	weight_group_unref(g);
}
END_TEST

#define TURNS 100

static void *set_ratios(void *arg)
{
	struct weight_policy_change change = { .set_mixed_hot_ratio = true };

	for (unsigned i = 1; i <= TURNS; i++) {
		struct buf sentence = BUF_INIT;

		change.policy.mixed_hot_ratio = i / (double)(TURNS + 1);
		ck_assert_int_eq(
			weight_group_set_policy(arg, &change, 0, &sentence), 0);
		buf_release(&sentence);
	}
	return NULL;
}

/* Two people set a part each, while the record changes for other reasons. */
static void race(struct weight_group *g)
{
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, set_ratios, g), 0);
	for (unsigned i = 0; i < TURNS; i++)
		ck_assert_int_eq(set(g, i % 2 ? &to_manual : &to_pinned, 0), 0);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	assert_policy(g, WEIGHT_HOT, TURNS / (double)(TURNS + 1),
		      WEIGHT_MANUAL);
}

START_TEST(of_two_that_set_a_part_each_both_are_heard)
{
	struct weight_group *staged = stage("8");
	struct weight_group *g = published("7");

	ck_assert_int_eq(set(g, &to_manual, 0), 0);
	race(g);
	race(staged);
	weight_group_unref(g);
	weight_group_unref(staged);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_tree_policy");
	TCase *t = tcase_create("policy");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, a_staged_one_has_the_stores_policy_until_it_gets_one);
	tcase_add_test(t, a_staged_one_has_nothing_to_fence_with);
	tcase_add_test(t, an_aborted_or_removed_one_has_no_policy_to_set);
	tcase_add_test(t, a_published_one_changes_a_part_of_it_under_a_fence);
	tcase_add_test(t, what_is_pinned_stays_where_it_is);
	tcase_add_test(t, with_auto_it_goes_where_it_is_wanted);
	tcase_add_test(t, mixed_may_be_wanted_but_nothing_begins);
	tcase_add_test(t, of_two_that_set_a_part_each_both_are_heard);
	suite_add_tcase(s, t);
	return s;
}
