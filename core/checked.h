/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic that notices overflow.
 *
 * Whatever is computed from numbers that a file or a peer sent goes through
 * these. They return 0 and store the result, or -EOVERFLOW and store nothing.
 */
#ifndef CORE_CHECKED_H
#define CORE_CHECKED_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

static inline int checked_add(uint64_t a, uint64_t b, uint64_t *ret)
{
	uint64_t sum;

	if (__builtin_add_overflow(a, b, &sum))
		return -EOVERFLOW;
	*ret = sum;
	return 0;
}

static inline int checked_mul(uint64_t a, uint64_t b, uint64_t *ret)
{
	uint64_t product;

	if (__builtin_mul_overflow(a, b, &product))
		return -EOVERFLOW;
	*ret = product;
	return 0;
}

/* a - b; below zero is an overflow, too. */
static inline int checked_sub(uint64_t a, uint64_t b, uint64_t *ret)
{
	if (b > a)
		return -EOVERFLOW;
	*ret = a - b;
	return 0;
}

/* For sizes of memory, whose type is narrower on some machines. */
static inline int checked_add_size(size_t a, size_t b, size_t *ret)
{
	size_t sum;

	if (__builtin_add_overflow(a, b, &sum))
		return -EOVERFLOW;
	*ret = sum;
	return 0;
}

static inline int checked_mul_size(size_t a, size_t b, size_t *ret)
{
	size_t product;

	if (__builtin_mul_overflow(a, b, &product))
		return -EOVERFLOW;
	*ret = product;
	return 0;
}

/* Whether [offset, offset + len) lies within [0, size). */
static inline int checked_range(uint64_t offset, uint64_t len, uint64_t size)
{
	return offset > size || len > size - offset ? -EOVERFLOW : 0;
}

#endif
