/* SPDX-License-Identifier: Apache-2.0 */
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
	tcase_add_test(tc, the_boot_id_stays_the_same);
	suite_add_tcase(s, tc);
	return s;
}
