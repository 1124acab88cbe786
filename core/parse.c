/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/util.h"

struct unit {
	const char *name;
	uint64_t factor;
};

/* clang-format off */
static const struct unit size_units[] = {
	{ "",  1 },
	{ "K", (uint64_t)1 << 10 }, { "k", (uint64_t)1 << 10 },
	{ "M", (uint64_t)1 << 20 }, { "m", (uint64_t)1 << 20 },
	{ "G", (uint64_t)1 << 30 }, { "g", (uint64_t)1 << 30 },
	{ "T", (uint64_t)1 << 40 }, { "t", (uint64_t)1 << 40 },
};

static const struct unit time_units[] = {
	{ "ms", 1 },
	{ "s",  1000 },
	{ "m",  60000 },
	{ "h",  3600000 },
};
/* clang-format on */

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Reads the number that text starts with; *rest is what follows it. */
static int leading_u64(const char *text, uint64_t *ret, const char **rest)
{
	uint64_t value = 0;

	if (!is_digit(*text) || (*text == '0' && is_digit(text[1])))
		return -EINVAL;
	for (; is_digit(*text); text++)
		if (checked_mul(value, 10, &value) < 0 ||
		    checked_add(value, (uint64_t)(*text - '0'), &value) < 0)
			return -EINVAL;
	*ret = value;
	*rest = text;
	return 0;
}

static int scale(uint64_t value, const char *unit, const struct unit *units,
		 size_t count, uint64_t *ret)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(units[i].name, unit) == 0)
			return checked_mul(value, units[i].factor, ret) < 0 ?
				       -EINVAL :
				       0;
	return -EINVAL;
}

int parse_u64(const char *text, uint64_t *ret)
{
	const char *rest;
	uint64_t value;

	if (leading_u64(text, &value, &rest) < 0 || *rest)
		return -EINVAL;
	*ret = value;
	return 0;
}

int parse_size(const char *text, uint64_t *ret)
{
	const char *unit;
	uint64_t value;

	if (leading_u64(text, &value, &unit) < 0)
		return -EINVAL;
	return scale(value, unit, size_units, ARRAY_LEN(size_units), ret);
}

int parse_time_ms(const char *text, uint64_t *ret)
{
	const char *unit;
	uint64_t value;

	if (leading_u64(text, &value, &unit) < 0)
		return -EINVAL;
	if (value == 0 && !*unit) {
		*ret = 0;
		return 0;
	}
	return scale(value, unit, time_units, ARRAY_LEN(time_units), ret);
}

int parse_switch(const char *text, bool *ret)
{
	bool on = strcmp(text, "on") == 0;

	if (!on && strcmp(text, "off") != 0)
		return -EINVAL;
	*ret = on;
	return 0;
}

/*
 * A decimal fraction is digits over a power of ten. Up to 15 digits both are
 * exact in a double, so the quotient is the nearest one; the digits after that
 * are below what a ratio of bytes can tell apart, and are only checked.
 */
#define EXACT_DIGITS 15

int parse_ratio(const char *text, double *ret)
{
	uint64_t value, scale_by = 1;
	size_t digits = 0;

	if (text[0] != '0' && text[0] != '1')
		return -EINVAL;
	value = (uint64_t)(text[0] - '0');
	if (text[1] == '.') {
		const char *fraction = text + 2;

		for (; is_digit(fraction[digits]); digits++) {
			if (digits >= EXACT_DIGITS)
				continue;
			scale_by *= 10;
			value = value * 10 + (uint64_t)(fraction[digits] - '0');
		}
		if (!digits || digits > PARSE_RATIO_DIGITS_MAX ||
		    fraction[digits])
			return -EINVAL;
	} else if (text[1]) {
		return -EINVAL;
	}
	if (value > scale_by)
		return -EINVAL;
	*ret = (double)value / (double)scale_by;
	return 0;
}

size_t print_u64(uint64_t v, char ret[static PRINT_U64_MAX])
{
	char digits[PRINT_U64_MAX];
	size_t at = sizeof(digits);

	do
		digits[--at] = (char)('0' + v % 10);
	while ((v /= 10) > 0);
	memcpy(ret, digits + at, sizeof(digits) - at);
	return sizeof(digits) - at;
}

int print_ratio(double ratio, struct buf *ret)
{
	char text[EXACT_DIGITS + 8];
	int n = snprintf(text, sizeof(text), "%.*f", EXACT_DIGITS, ratio);

	assert(n > 0 && (size_t)n < sizeof(text));
	while (text[n - 1] == '0' && text[n - 2] != '.')
		n--;
	return buf_append(ret, text, (size_t)n);
}
