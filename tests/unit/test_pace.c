/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <pthread.h>

#include "core/pace.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

#define START_MS 1000000
#define BURST(rate) ((uint64_t)(rate)*PACE_BURST_MS / 1000)

static struct pace *make(uint64_t rate)
{
	struct pace *p = NULL;

	ck_assert_int_eq(pace_new(rate, &p), 0);
	return p;
}

START_TEST(without_a_limit_nobody_pauses)
{
	cleanup(pace_free_cleanup) struct pace *p = make(0);

	ck_assert_uint_eq(pace_take(p, UINT64_MAX, START_MS), 0);
	ck_assert_uint_eq(pace_take(p, UINT64_MAX, START_MS), 0);
}
END_TEST

START_TEST(what_was_not_used_is_there_up_to_the_burst)
{
	cleanup(pace_free_cleanup) struct pace *p = make(1000);
	uint64_t now = START_MS;

	ck_assert_uint_eq(pace_take(p, BURST(1000), now), 0);
	ck_assert_uint_eq(pace_take(p, 100, now), 100);
	/* Half of it came back. */
	now += 100 + PACE_BURST_MS / 2;
	ck_assert_uint_eq(pace_take(p, BURST(1000) / 2, now), 0);
	ck_assert_uint_eq(pace_take(p, 1, now), 1);
	/* An hour of silence gives no more than the burst. */
	now += 3600000;
	ck_assert_uint_eq(pace_take(p, BURST(1000) + 5, now), 5);
}
END_TEST

/* clang-format off */
static const struct {
	uint64_t rate, piece;
} paces[] = {
	{ 1,                     1 },
	{ 3,                     7 },
	{ 999,                   1 },
	{ (uint64_t)100 << 20,   (uint64_t)2 << 20 },
	{ (uint64_t)100 << 20,   4096 },
	{ (uint64_t)1 << 40,     (uint64_t)32 << 20 },
};
/* clang-format on */

/* Whoever pauses as long as he is told keeps the limit, and uses it. */
START_TEST(the_limit_is_kept_and_reached)
{
	cleanup(pace_free_cleanup) struct pace *p = make(paces[_i].rate);
	uint64_t rate = paces[_i].rate, now = START_MS, moved = 0;
	double span_s;

	for (int i = 0; i < 20000; i++) {
		moved += paces[_i].piece;
		now += pace_take(p, paces[_i].piece, now);
	}
	span_s = (double)(now - START_MS) / 1000;
	ck_assert_double_le((double)moved, (double)rate * (span_s + 0.201));
	ck_assert_double_ge((double)moved, (double)rate * (span_s - 0.001));
}
END_TEST

START_TEST(several_share_one_limit)
{
	cleanup(pace_free_cleanup) struct pace *p = make(1000);
	uint64_t due[3] = { START_MS, START_MS, START_MS };
	uint64_t moved = 0, now;

	for (now = START_MS; now < START_MS + 60000; now++)
		for (size_t i = 0; i < ARRAY_LEN(due); i++)
			if (now >= due[i]) {
				moved += 50;
				due[i] = now + pace_take(p, 50, now);
			}
	/* The burst, and what each still waits for. */
	ck_assert_uint_le(moved, 60000 + BURST(1000) + 3 * 50);
	ck_assert_uint_ge(moved, 60000 - 50);
}
END_TEST

START_TEST(the_largest_numbers_wait_for_ever)
{
	cleanup(pace_free_cleanup) struct pace *p = make(1);
	uint64_t ever = UINT64_MAX / 1000000;

	ck_assert_uint_ge(pace_take(p, UINT64_MAX, 0), ever);
	ck_assert_uint_ge(pace_take(p, UINT64_MAX, 1), ever - 1);
	ck_assert_uint_eq(pace_take(p, 1, UINT64_MAX), 0);
}
END_TEST

START_TEST(time_from_another_thread_may_be_a_little_older)
{
	cleanup(pace_free_cleanup) struct pace *p = make(1000);

	ck_assert_uint_eq(pace_take(p, BURST(1000), START_MS), 0);
	ck_assert_uint_eq(pace_take(p, 10, START_MS - 5), 15);
	ck_assert_uint_eq(pace_take(p, 10, START_MS), 20);
}
END_TEST

#define TAKES 10000

static void *take_many(void *arg)
{
	for (int i = 0; i < TAKES; i++)
		(void)pace_take(arg, 1, START_MS);
	return NULL;
}

START_TEST(nothing_is_lost_between_threads)
{
	cleanup(pace_free_cleanup) struct pace *p = make(1000);
	pthread_t threads[4];

	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, take_many, p), 0);
	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		(void)pthread_join(threads[i], NULL);
	ck_assert_uint_eq(pace_take(p, 1, START_MS),
			  4 * TAKES + 1 - BURST(1000));
}
END_TEST

static int make_and_drop(void)
{
	cleanup(pace_free_cleanup) struct pace *p = NULL;

	return pace_new(1, &p);
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(make_and_drop);
	pace_free(NULL);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("pace");
	TCase *tc = tcase_create("core");

	tcase_add_test(tc, without_a_limit_nobody_pauses);
	tcase_add_test(tc, what_was_not_used_is_there_up_to_the_burst);
	tcase_add_loop_test(tc, the_limit_is_kept_and_reached, 0,
			    (int)ARRAY_LEN(paces));
	tcase_add_test(tc, several_share_one_limit);
	tcase_add_test(tc, the_largest_numbers_wait_for_ever);
	tcase_add_test(tc, time_from_another_thread_may_be_a_little_older);
	tcase_add_test(tc, nothing_is_lost_between_threads);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
