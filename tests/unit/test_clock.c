/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "suite.h"

START_TEST(real_time_is_that_of_the_system)
{
	uint64_t before = (uint64_t)time(NULL) * 1000;
	uint64_t now = clock_realtime_ms();

	/* The coarse clock behind time() lags by less than a second. */
	ck_assert_uint_ge(now + 1000, before);
	ck_assert_uint_le(now, before + 60000);
}
END_TEST

START_TEST(monotonic_time_advances_and_never_steps_back)
{
	uint64_t start = clock_monotonic_ms();
	uint64_t last = start;

	while (last < start + 3) {
		uint64_t now = clock_monotonic_ms();

		ck_assert_uint_ge(now, last);
		last = now;
	}
}
END_TEST

static uint64_t fake(void *arg)
{
	return *(uint64_t *)arg;
}

START_TEST(a_test_can_replace_the_clock)
{
	uint64_t now = 7;
	const struct clock_source source = {
		.realtime_ms = fake,
		.monotonic_ms = fake,
		.arg = &now,
	};

	clock_set(&source);
	ck_assert_uint_eq(clock_realtime_ms(), 7);
	now = 8;
	ck_assert_uint_eq(clock_monotonic_ms(), 8);
	clock_set(NULL);
	ck_assert_uint_gt(clock_realtime_ms(), 1000000000000);
}
END_TEST

/* As long as somebody waits who is told of nothing; and no replaced clock. */
START_TEST(a_wait_ends_by_itself)
{
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	uint64_t before = clock_monotonic_ms(), now = 7;
	const struct clock_source source = {
		.realtime_ms = fake,
		.monotonic_ms = fake,
		.arg = &now,
	};
	pthread_cond_t cond;

	ck_assert_int_eq(clock_cond_init(&cond), 0);
	(void)pthread_mutex_lock(&lock);
	clock_set(&source);
	clock_cond_wait(&cond, &lock, 1100);
	clock_set(NULL);
	(void)pthread_mutex_unlock(&lock);
	(void)pthread_cond_destroy(&cond);
	ck_assert_uint_ge(clock_monotonic_ms() + 1, before + 1100);
}
END_TEST

struct bell {
	pthread_mutex_t lock;
	pthread_cond_t cond;
};

/* Its lock is free only while the other one waits. */
static void *ring(void *arg)
{
	struct bell *bell = arg;

	(void)pthread_mutex_lock(&bell->lock);
	(void)pthread_cond_broadcast(&bell->cond);
	(void)pthread_mutex_unlock(&bell->lock);
	return NULL;
}

START_TEST(a_wait_ends_when_it_is_told)
{
	struct bell bell = { .lock = PTHREAD_MUTEX_INITIALIZER };
	uint64_t before = clock_monotonic_ms();
	pthread_t thread;

	ck_assert_int_eq(clock_cond_init(&bell.cond), 0);
	(void)pthread_mutex_lock(&bell.lock);
	ck_assert_int_eq(pthread_create(&thread, NULL, ring, &bell), 0);
	clock_cond_wait(&bell.cond, &bell.lock, 60000);
	(void)pthread_mutex_unlock(&bell.lock);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	(void)pthread_cond_destroy(&bell.cond);
	ck_assert_uint_lt(clock_monotonic_ms(), before + 60000);
}
END_TEST

START_TEST(the_boot_id_stays_the_same)
{
	char first[CLOCK_BOOT_ID_LEN + 1];
	char second[CLOCK_BOOT_ID_LEN + 1];

	ck_assert_int_eq(clock_boot_id(first), 0);
	ck_assert_int_eq(clock_boot_id(second), 0);
	ck_assert_uint_eq(strlen(first), CLOCK_BOOT_ID_LEN);
	ck_assert_str_eq(first, second);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("clock");
	TCase *tc = tcase_create("core");

	tcase_add_test(tc, real_time_is_that_of_the_system);
	tcase_add_test(tc, monotonic_time_advances_and_never_steps_back);
	tcase_add_test(tc, a_test_can_replace_the_clock);
	tcase_add_test(tc, a_wait_ends_by_itself);
	tcase_add_test(tc, a_wait_ends_when_it_is_told);
	tcase_add_test(tc, the_boot_id_stays_the_same);
	suite_add_tcase(s, tc);
	return s;
}
