/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Set of the keys of one JSON object, to notice a key that is there twice.
 * Used by json.c only.
 *
 * Open addressing. The hash is SipHash-1-3 with a random key for each set, so
 * that nobody can write an object whose keys all collide. Keys are borrowed.
 */
#ifndef CORE_JSON_KEYS_H
#define CORE_JSON_KEYS_H

#include <endian.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct json_keys_slot {
	const char *key; /* NULL: free */
	size_t len;
	uint64_t hash;
};

struct json_keys {
	struct json_keys_slot *slots;
	size_t cap; /* 0 or a power of two, at least twice count */
	size_t count;
	uint64_t seed[2];
};

#define JSON_KEYS_INIT                                                         \
	{                                                                      \
		.slots = NULL                                                  \
	}
#define JSON_KEYS_CAP_MIN 32

static inline void json_keys_release(struct json_keys *k)
{
	free(k->slots);
	*k = (struct json_keys)JSON_KEYS_INIT;
}

static inline uint64_t json_keys_rotl(uint64_t x, unsigned by)
{
	return x << by | x >> (64 - by);
}

static inline void json_keys_round(uint64_t v[static 4])
{
	v[0] += v[1];
	v[2] += v[3];
	v[1] = json_keys_rotl(v[1], 13) ^ v[0];
	v[3] = json_keys_rotl(v[3], 16) ^ v[2];
	v[0] = json_keys_rotl(v[0], 32);
	v[2] += v[1];
	v[0] += v[3];
	v[1] = json_keys_rotl(v[1], 17) ^ v[2];
	v[3] = json_keys_rotl(v[3], 21) ^ v[0];
	v[2] = json_keys_rotl(v[2], 32);
}

static inline uint64_t json_keys_hash(const uint64_t seed[static 2],
				      const char *key, size_t len)
{
	uint64_t v[4] = {
		seed[0] ^ 0x736f6d6570736575,
		seed[1] ^ 0x646f72616e646f6d,
		seed[0] ^ 0x6c7967656e657261,
		seed[1] ^ 0x7465646279746573,
	};
	uint64_t last = (uint64_t)len << 56;
	uint64_t word;
	size_t at = 0;

	for (; len - at >= sizeof(word); at += sizeof(word)) {
		memcpy(&word, key + at, sizeof(word));
		word = le64toh(word);
		v[3] ^= word;
		json_keys_round(v);
		v[0] ^= word;
	}
	for (unsigned i = 0; at + i < len; i++)
		last |= (uint64_t)(uint8_t)key[at + i] << 8 * i;
	v[3] ^= last;
	json_keys_round(v);
	v[0] ^= last;
	v[2] ^= 0xff;
	for (unsigned i = 0; i < 3; i++)
		json_keys_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The slot that holds key, or the free one where it belongs. */
static inline struct json_keys_slot *json_keys_slot(const struct json_keys *k,
						    const char *key, size_t len,
						    uint64_t hash)
{
	size_t i = hash & (k->cap - 1);

	for (;; i = (i + 1) & (k->cap - 1)) {
		struct json_keys_slot *s = &k->slots[i];

		if (!s->key || (s->hash == hash && s->len == len &&
				memcmp(s->key, key, len) == 0))
			return s;
	}
}

static inline int json_keys_grow(struct json_keys *k)
{
	struct json_keys old = *k;

	k->cap = old.cap ? 2 * old.cap : JSON_KEYS_CAP_MIN;
	k->slots = calloc(k->cap, sizeof(*k->slots));
	if (!k->slots) {
		*k = old;
		return -ENOMEM;
	}
	/* Without random bits a guessable seed is still correct. */
	if (!old.cap && getrandom(k->seed, sizeof(k->seed), GRND_NONBLOCK) < 0)
		k->seed[0] = (uint64_t)(uintptr_t)k->slots;
	for (size_t i = 0; i < old.cap; i++) {
		struct json_keys_slot *s = &old.slots[i];

		if (s->key)
			*json_keys_slot(k, s->key, s->len, s->hash) = *s;
	}
	free(old.slots);
	return 0;
}

/* Errors: -EEXIST, -ENOMEM. */
static inline int json_keys_add(struct json_keys *k, const char *key,
				size_t len)
{
	struct json_keys_slot *s;
	uint64_t hash;
	int r;

	if (2 * (k->count + 1) > k->cap) {
		r = json_keys_grow(k);
		if (r < 0)
			return r;
	}
	hash = json_keys_hash(k->seed, key, len);
	s = json_keys_slot(k, key, len, hash);
	if (s->key)
		return -EEXIST;
	*s = (struct json_keys_slot){ .key = key, .len = len, .hash = hash };
	k->count++;
	return 0;
}

#endif
