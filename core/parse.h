/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers, sizes, times and switches as people write them.
 *
 * Every function takes the whole string or nothing: no blanks, no sign, no
 * exponent, no leading zeros, no value that does not fit. On success *ret is
 * set; on failure it is untouched.
 *
 * Errors, of every function: -EINVAL.
 *
 * Trust: the text may come from anywhere. Pure functions, any thread.
 */
#ifndef CORE_PARSE_H
#define CORE_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"

/* Digits after the point that parse_ratio() takes. */
#define PARSE_RATIO_DIGITS_MAX 20

/* Decimal. */
int parse_u64(const char *text, uint64_t *ret);

/* Bytes: a number, or one with K, M, G or T (powers of 1024; either case). */
int parse_size(const char *text, uint64_t *ret);

/*
 * A time in milliseconds: a number with ms, s, m or h. Only 0 may do without
 * a unit, because any other bare number could mean anything.
 */
int parse_time_ms(const char *text, uint64_t *ret);

/* on or off. */
int parse_switch(const char *text, bool *ret);

/* From 0 to 1, both included: "0", "0.25", "1". The locale has no say. */
int parse_ratio(const char *text, double *ret);

/* Writes the decimal digits, no NUL behind them; returns how many. */
#define PRINT_U64_MAX 20
size_t print_u64(uint64_t v, char ret[static PRINT_U64_MAX]);

/*
 * Appends a ratio from 0 to 1 as parse_ratio() takes it. What that gave is read
 * as the same again. Errors: as buf_append().
 */
int print_ratio(double ratio, struct buf *ret);

#endif
