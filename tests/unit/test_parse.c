/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdint.h>

#include "core/checked.h"
#include "core/cleanup.h"
#include "core/parse.h"
#include "core/util.h"
#include "suite.h"

#define BAD UINT64_MAX /* for the tables: refused */
#define SENTINEL 12345

typedef int parse_fn(const char *text, uint64_t *ret);

/* clang-format off */
static const struct {
	const char *text;
	uint64_t number;
	uint64_t size;
	uint64_t time_ms;
} cases[] = {
	{ "0",    0,   0,                   0 },
	{ "1",    1,   1,                   BAD },
	{ "42",   42,  42,                  BAD },
	{ "18446744073709551614", UINT64_MAX - 1, UINT64_MAX - 1, BAD },
	{ "18446744073709551616", BAD, BAD, BAD },
	{ "99999999999999999999", BAD, BAD, BAD },
	{ "1K",   BAD, 1024,                BAD },
	{ "1k",   BAD, 1024,                BAD },
	{ "64M",  BAD, 64 << 20,            BAD },
	{ "3G",   BAD, (uint64_t)3 << 30,   BAD },
	{ "2T",   BAD, (uint64_t)2 << 40,   BAD },
	{ "16777215T", BAD, (uint64_t)16777215 << 40, BAD },
	{ "16777216T", BAD, BAD,            BAD },
	{ "0K",   BAD, 0,                   BAD },
	{ "0ms",  BAD, BAD,                 0 },
	{ "250ms", BAD, BAD,                250 },
	{ "5s",   BAD, BAD,                 5000 },
	{ "3m",   BAD, 3 << 20,             180000 },
	{ "24h",  BAD, BAD,                 86400000 },
	{ "5124095576030h", BAD, BAD,       (uint64_t)5124095576030 * 3600000 },
	{ "5124095576031h", BAD, BAD,       BAD },
	{ "",     BAD, BAD, BAD },
	{ " 1",   BAD, BAD, BAD },
	{ "1 ",   BAD, BAD, BAD },
	{ "1 K",  BAD, BAD, BAD },
	{ "+1",   BAD, BAD, BAD },
	{ "-1",   BAD, BAD, BAD },
	{ "-0",   BAD, BAD, BAD },
	{ "00",   BAD, BAD, BAD },
	{ "01",   BAD, BAD, BAD },
	{ "0x1",  BAD, BAD, BAD },
	{ "1e3",  BAD, BAD, BAD },
	{ "1.5G", BAD, BAD, BAD },
	{ "1KB",  BAD, BAD, BAD },
	{ "1KiB", BAD, BAD, BAD },
	{ "1P",   BAD, BAD, BAD },
	{ "K",    BAD, BAD, BAD },
	{ "ms",   BAD, BAD, BAD },
	{ "1S",   BAD, BAD, BAD },
	{ "1d",   BAD, BAD, BAD },
	{ "1h30m", BAD, BAD, BAD },
	{ "\xd9\xa1", BAD, BAD, BAD }, /* an Arabic-Indic digit */
};

static const struct {
	const char *text;
	double ratio; /* below 0: refused */
} ratios[] = {
	{ "0", 0 },
	{ "1", 1 },
	{ "0.0", 0 },
	{ "1.0", 1 },
	{ "0.5", 0.5 },
	{ "0.1", 0.1 },
	{ "0.30000000001", 0.30000000001 },
	{ "0.999999999999999", 0.999999999999999 },
	{ "0.00000000000000000001", 0 },
	{ "0.12345678901234567890", 0.123456789012345 },
	{ "0.123456789012345678901", -1 },
	{ "", -1 },
	{ ".", -1 },
	{ ".5", -1 },
	{ "0.", -1 },
	{ "1.", -1 },
	{ "00.5", -1 },
	{ "1.1", -1 },
	{ "1.000000000000001", -1 },
	{ "2", -1 },
	{ "10", -1 },
	{ "-0.5", -1 },
	{ "+0.5", -1 },
	{ "0,5", -1 },
	{ "5e-1", -1 },
	{ "0.5e0", -1 },
	{ "0.5 ", -1 },
	{ " 0.5", -1 },
	{ "0x0.8", -1 },
	{ "nan", -1 },
	{ "inf", -1 },
};
/* clang-format on */

static void check_u64(parse_fn *parse, const char *what, const char *text,
		      uint64_t expected)
{
	uint64_t value = SENTINEL;
	int r = parse(text, &value);

	if (expected == BAD)
		ck_assert_msg(r == -EINVAL && value == SENTINEL,
			      "%s of '%s': got %d", what, text, r);
	else
		ck_assert_msg(r == 0 && value == expected,
			      "%s of '%s': got %d and %llu", what, text, r,
			      (unsigned long long)value);
}

START_TEST(each_text_is_one_value_or_refused)
{
	check_u64(parse_u64, "number", cases[_i].text, cases[_i].number);
	check_u64(parse_size, "size", cases[_i].text, cases[_i].size);
	check_u64(parse_time_ms, "time", cases[_i].text, cases[_i].time_ms);
}
END_TEST

START_TEST(the_largest_number_is_one)
{
	uint64_t value = 0;

	ck_assert_int_eq(parse_u64("18446744073709551615", &value), 0);
	ck_assert(value == UINT64_MAX);
}
END_TEST

START_TEST(a_ratio_is_the_nearest_double_or_refused)
{
	double value = SENTINEL;
	int r = parse_ratio(ratios[_i].text, &value);

	if (ratios[_i].ratio < 0)
		ck_assert_msg(r == -EINVAL && value == SENTINEL, "'%s': got %d",
			      ratios[_i].text, r);
	else
		ck_assert_msg(r == 0 && value == ratios[_i].ratio,
			      "'%s': got %d and %.17g", ratios[_i].text, r,
			      value);
}
END_TEST

START_TEST(a_printed_ratio_is_read_as_the_same)
{
	cleanup(buf_release) struct buf text = BUF_INIT;
	double value = ratios[_i].ratio, again = SENTINEL;

	if (value < 0)
		return;
	ck_assert_int_eq(print_ratio(value, &text), 0);
	ck_assert_int_eq(parse_ratio(text.data, &again), 0);
	ck_assert_msg(again == value, "%.17g became '%s'", value, text.data);
}
END_TEST

START_TEST(a_printed_number_is_read_as_the_same)
{
	static const uint64_t numbers[] = { 0, 9, 10, 12345, UINT64_MAX };

	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		char text[PRINT_U64_MAX + 1];
		uint64_t v = SENTINEL;

		text[print_u64(numbers[i], text)] = '\0';
		ck_assert_int_eq(parse_u64(text, &v), 0);
		ck_assert_uint_eq(v, numbers[i]);
	}
}
END_TEST

START_TEST(a_switch_is_on_or_off)
{
	bool value = false;

	ck_assert_int_eq(parse_switch("on", &value), 0);
	ck_assert(value);
	ck_assert_int_eq(parse_switch("yes", &value), -EINVAL);
	ck_assert_int_eq(parse_switch("", &value), -EINVAL);
	ck_assert_int_eq(parse_switch("ON", &value), -EINVAL);
	ck_assert_int_eq(parse_switch("on ", &value), -EINVAL);
	ck_assert(value);
	ck_assert_int_eq(parse_switch("off", &value), 0);
	ck_assert(!value);
}
END_TEST

START_TEST(checked_arithmetic_notices_every_overflow)
{
	uint64_t v = SENTINEL;
	size_t z = SENTINEL;

	ck_assert_int_eq(checked_add(UINT64_MAX, 1, &v), -EOVERFLOW);
	ck_assert_int_eq(checked_mul(UINT64_MAX, 2, &v), -EOVERFLOW);
	ck_assert_int_eq(checked_sub(1, 2, &v), -EOVERFLOW);
	ck_assert_int_eq(checked_add_size(SIZE_MAX, 1, &z), -EOVERFLOW);
	ck_assert_int_eq(checked_mul_size(SIZE_MAX, 2, &z), -EOVERFLOW);
	ck_assert(v == SENTINEL && z == SENTINEL);

	ck_assert_int_eq(checked_add(UINT64_MAX - 1, 1, &v), 0);
	ck_assert(v == UINT64_MAX);
	ck_assert_int_eq(checked_mul(UINT64_MAX, 1, &v), 0);
	ck_assert(v == UINT64_MAX);
	ck_assert_int_eq(checked_sub(2, 2, &v), 0);
	ck_assert(v == 0);
	ck_assert_int_eq(checked_add_size(1, 2, &z), 0);
	ck_assert_uint_eq(z, 3);
	ck_assert_int_eq(checked_mul_size(2, 3, &z), 0);
	ck_assert_uint_eq(z, 6);
}
END_TEST

START_TEST(a_range_must_lie_within)
{
	ck_assert_int_eq(checked_range(0, 0, 0), 0);
	ck_assert_int_eq(checked_range(4, 6, 10), 0);
	ck_assert_int_eq(checked_range(10, 0, 10), 0);
	ck_assert_int_eq(checked_range(4, 7, 10), -EOVERFLOW);
	ck_assert_int_eq(checked_range(11, 0, 10), -EOVERFLOW);
	ck_assert_int_eq(checked_range(1, UINT64_MAX, 10), -EOVERFLOW);
	ck_assert_int_eq(checked_range(UINT64_MAX, UINT64_MAX, 10), -EOVERFLOW);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("parse");
	TCase *tc = tcase_create("core");

	tcase_add_loop_test(tc, each_text_is_one_value_or_refused, 0,
			    ARRAY_LEN(cases));
	tcase_add_test(tc, the_largest_number_is_one);
	tcase_add_loop_test(tc, a_ratio_is_the_nearest_double_or_refused, 0,
			    ARRAY_LEN(ratios));
	tcase_add_loop_test(tc, a_printed_ratio_is_read_as_the_same, 0,
			    ARRAY_LEN(ratios));
	tcase_add_test(tc, a_printed_number_is_read_as_the_same);
	tcase_add_test(tc, a_switch_is_on_or_off);
	tcase_add_test(tc, checked_arithmetic_notices_every_overflow);
	tcase_add_test(tc, a_range_must_lie_within);
	suite_add_tcase(s, tc);
	return s;
}
