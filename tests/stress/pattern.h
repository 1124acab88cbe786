/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pattern: files whose every byte follows from generation, file and offset, so
 * that bytes of another generation, another file, another place, or zeros, are
 * recognised wherever they turn up.
 *
 * A file is a safetensors file of one tensor "t<file>": a head of
 * PATTERN_HEAD bytes, then words of the pattern up to its size.
 *
 * Plain functions over memory; any thread.
 */
#ifndef TESTS_STRESS_PATTERN_H
#define TESTS_STRESS_PATTERN_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define PATTERN_HEAD ((size_t)256)

struct pattern {
	uint64_t generation;
	unsigned file;
	uint64_t size; /* bytes, head included; at least PATTERN_HEAD */
};

static inline uint64_t pattern_word(const struct pattern *p, uint64_t i)
{
	uint64_t x = i ^ (p->generation << 48) ^ ((uint64_t)p->file << 38);

	x *= 0x9e3779b97f4a7c15;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93;
	return x ^ x >> 32;
}

static inline void pattern_head(const struct pattern *p,
				unsigned char ret[static PATTERN_HEAD])
{
	const uint64_t len = PATTERN_HEAD - sizeof(len);
	char text[PATTERN_HEAD];
	unsigned long long data = p->size - PATTERN_HEAD;
	int n = snprintf(text, sizeof(text),
			 "{\"t%u\":{\"dtype\":\"U8\",\"shape\":[%llu],"
			 "\"data_offsets\":[0,%llu]}}",
			 p->file, data, data);

	memset(ret, ' ', PATTERN_HEAD);
	memcpy(ret, &len, sizeof(len));
	memcpy(ret + sizeof(len), text, (size_t)n);
}

/* The bytes of a file from offset on. */
static inline void pattern_fill(const struct pattern *p, uint64_t offset,
				void *ret, size_t len)
{
	unsigned char head[PATTERN_HEAD];
	unsigned char *to = ret;

	if (offset < PATTERN_HEAD)
		pattern_head(p, head);
	while (len > 0) {
		size_t skip = (size_t)(offset % 8);
		size_t n = 8 - skip < len ? 8 - skip : len;
		uint64_t word = pattern_word(p, offset / 8);

		if (offset < PATTERN_HEAD)
			memcpy(to, head + offset, n);
		else
			memcpy(to, (unsigned char *)&word + skip, n);
		to += n;
		offset += n;
		len -= n;
	}
}

/* How many bytes are as they should be, before the first that is not. */
static inline size_t pattern_check(const struct pattern *p, uint64_t offset,
				   const void *bytes, size_t len)
{
	const unsigned char *at = bytes;
	unsigned char expected[512];
	size_t done = 0;

	while (done < len) {
		uint64_t from = offset + done;
		size_t n = len - done;

		if (from >= PATTERN_HEAD && n >= 8 && from % 8 != 0)
			n = 8 - (size_t)(from % 8);
		n = n < sizeof(expected) ? n : sizeof(expected);
		pattern_fill(p, from, expected, n);
		if (memcmp(at + done, expected, n) != 0)
			break;
		done += n;
	}
	for (size_t i = 0; done < len && at[done] == expected[i]; i++)
		done++;
	return done;
}

#endif
