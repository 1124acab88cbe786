/* SPDX-License-Identifier: Apache-2.0 */
#include "core/map.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/checked.h"
#include "core/log.h"

#define KEY_INLINE_MAX 16
#define SLOTS_MIN 16
#define SLOT_FREE UINT32_MAX

struct entry {
	uint64_t hash;
	void *value;
	size_t len;
	union {
		uint8_t small[KEY_INLINE_MAX];
		uint8_t *large; /* owned, when len is above KEY_INLINE_MAX */
	} key;
};

/*
 * Entries stand side by side in an array, so walking is quick and a removal
 * only moves the last one into the gap. Where an entry stands is found through
 * slots, a hash table with linear probing that is never more than 2/3 full.
 */
struct map {
	uint8_t secret[16];
	struct entry *entries;
	size_t count;
	size_t room;     /* of entries */
	uint32_t *slots; /* index into entries, or SLOT_FREE */
	size_t mask;     /* slots are a power of two; this is one less */
};

struct sip {
	uint64_t v0, v1, v2, v3;
};

static uint64_t rotate(uint64_t x, unsigned by)
{
	return x << by | x >> (64 - by);
}

static void sip_rounds(struct sip *s, unsigned rounds)
{
	while (rounds--) {
		s->v0 += s->v1;
		s->v2 += s->v3;
		s->v1 = rotate(s->v1, 13) ^ s->v0;
		s->v3 = rotate(s->v3, 16) ^ s->v2;
		s->v0 = rotate(s->v0, 32);
		s->v2 += s->v1;
		s->v0 += s->v3;
		s->v1 = rotate(s->v1, 17) ^ s->v2;
		s->v3 = rotate(s->v3, 21) ^ s->v0;
		s->v2 = rotate(s->v2, 32);
	}
}

static void sip_word(struct sip *s, uint64_t word)
{
	s->v3 ^= word;
	sip_rounds(s, 2);
	s->v0 ^= word;
}

static uint64_t le64_at(const uint8_t *bytes)
{
	uint64_t v;

	memcpy(&v, bytes, sizeof(v));
	return le64toh(v);
}

/* Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012). */
uint64_t map_hash(const uint8_t secret[static 16], const void *bytes,
		  size_t len)
{
	const uint64_t k0 = le64_at(secret), k1 = le64_at(secret + 8);
	struct sip s = {
		.v0 = k0 ^ 0x736f6d6570736575,
		.v1 = k1 ^ 0x646f72616e646f6d,
		.v2 = k0 ^ 0x6c7967656e657261,
		.v3 = k1 ^ 0x7465646279746573,
	};
	const uint8_t *at = bytes;
	uint64_t last = (uint64_t)len << 56;
	size_t left = len;

	for (; left >= 8; left -= 8, at += 8)
		sip_word(&s, le64_at(at));
	for (size_t i = 0; i < left; i++)
		last |= (uint64_t)at[i] << (8 * i);
	sip_word(&s, last);

	s.v2 ^= 0xff;
	sip_rounds(&s, 4);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

static const uint8_t *entry_key(const struct entry *e)
{
	return e->len > KEY_INLINE_MAX ? e->key.large : e->key.small;
}

static bool entry_is(const struct entry *e, uint64_t hash, const void *key,
		     size_t len)
{
	return e->hash == hash && e->len == len &&
	       (!len || memcmp(entry_key(e), key, len) == 0);
}

static int entry_init(struct entry *e, uint64_t hash, const void *key,
		      size_t len, void *value)
{
	uint8_t *to = e->key.small;

	if (len > KEY_INLINE_MAX) {
		to = malloc(len);
		if (!to)
			return -ENOMEM;
		e->key.large = to;
	}
	if (len)
		memcpy(to, key, len);
	e->hash = hash;
	e->len = len;
	e->value = value;
	return 0;
}

static void entry_release(struct entry *e)
{
	if (e->len > KEY_INLINE_MAX)
		free(e->key.large);
}

/* The slot that holds the entry, or the free one where it would go. */
static size_t slot_of_key(const struct map *m, uint64_t hash, const void *key,
			  size_t len)
{
	size_t at = (size_t)hash & m->mask;

	while (m->slots[at] != SLOT_FREE &&
	       !entry_is(&m->entries[m->slots[at]], hash, key, len))
		at = (at + 1) & m->mask;
	return at;
}

/* As slot_of_key(), for the entry that stands at index. */
static size_t slot_of_index(const struct map *m, size_t index)
{
	size_t at = (size_t)m->entries[index].hash & m->mask;

	while (m->slots[at] != index)
		at = (at + 1) & m->mask;
	return at;
}

static int slots_grow(struct map *m)
{
	size_t size = m->slots ? (m->mask + 1) * 2 : SLOTS_MIN;
	uint32_t *slots;

	slots = calloc(size, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	memset(slots, 0xff, size * sizeof(*slots)); /* SLOT_FREE */
	for (size_t i = 0; i < m->count; i++) {
		size_t at = (size_t)m->entries[i].hash & (size - 1);

		while (slots[at] != SLOT_FREE)
			at = (at + 1) & (size - 1);
		slots[at] = (uint32_t)i;
	}
	free(m->slots);
	m->slots = slots;
	m->mask = size - 1;
	return 0;
}

/* Makes room for one more entry and the slot for it. */
static int map_reserve(struct map *m)
{
	if (m->count >= MAP_COUNT_MAX)
		return log_debug(-EFBIG, "%zu entries", m->count);
	if (m->count == m->room) {
		size_t room = m->room ? m->room * 2 : SLOTS_MIN / 2;
		struct entry *entries = NULL;
		size_t bytes;

		if (checked_mul_size(room, sizeof(*entries), &bytes) == 0)
			entries = realloc(m->entries, bytes);
		if (!entries)
			return -ENOMEM;
		m->entries = entries;
		m->room = room;
	}
	if ((m->count + 1) * 3 > (m->mask + 1) * 2)
		return slots_grow(m);
	return 0;
}

int map_new(struct map **ret)
{
	cleanup(map_free_cleanup) struct map *m = NULL;
	ssize_t n;
	int r;

	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	do
		n = getrandom(m->secret, sizeof(m->secret), 0);
	while (n < 0 && errno == EINTR);
	if (n != sizeof(m->secret))
		return log_debug(n < 0 ? -errno : -EIO, "drawing a secret");
	r = slots_grow(m);
	if (r < 0)
		return r;

	*ret = take_ptr(m);
	return 0;
}

void map_free(struct map *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->count; i++)
		entry_release(&m->entries[i]);
	free(m->slots);
	free(m->entries);
	free(m);
}

size_t map_count(const struct map *m)
{
	return m->count;
}

void *map_find(const struct map *m, const void *key, size_t len)
{
	uint64_t hash = map_hash(m->secret, key, len);
	uint32_t index = m->slots[slot_of_key(m, hash, key, len)];

	return index == SLOT_FREE ? NULL : m->entries[index].value;
}

/* Adds what is known not to be there. */
static int map_append(struct map *m, uint64_t hash, const void *key, size_t len,
		      void *value)
{
	int r;

	assert(value);
	if (len > MAP_KEY_BYTES_MAX)
		return log_debug(-EFBIG, "a key of %zu bytes", len);
	r = map_reserve(m);
	if (r < 0)
		return r;
	r = entry_init(&m->entries[m->count], hash, key, len, value);
	if (r < 0)
		return r;
	m->slots[slot_of_key(m, hash, key, len)] = (uint32_t)m->count;
	m->count++;
	return 0;
}

int map_add(struct map *m, const void *key, size_t len, void *value)
{
	uint64_t hash = map_hash(m->secret, key, len);

	if (m->slots[slot_of_key(m, hash, key, len)] != SLOT_FREE)
		return -EEXIST;
	return map_append(m, hash, key, len, value);
}

int map_put(struct map *m, const void *key, size_t len, void *value,
	    void **ret_old)
{
	uint64_t hash = map_hash(m->secret, key, len);
	uint32_t index = m->slots[slot_of_key(m, hash, key, len)];
	void *old = NULL;
	int r = 0;

	if (index == SLOT_FREE) {
		r = map_append(m, hash, key, len, value);
	} else {
		assert(value);
		old = m->entries[index].value;
		m->entries[index].value = value;
	}
	if (r == 0 && ret_old)
		*ret_old = old;
	return r;
}

/*
 * Frees a slot and closes the gap, so that no probe ends there too early:
 * whatever may stand at the gap, seen from where its probe starts, moves there
 * (Knuth, The Art of Computer Programming, 6.4, algorithm R).
 */
static void slot_release(struct map *m, size_t gap)
{
	size_t at = gap;

	for (;;) {
		size_t home;

		at = (at + 1) & m->mask;
		if (m->slots[at] == SLOT_FREE)
			break;
		home = (size_t)m->entries[m->slots[at]].hash & m->mask;
		if (((at - home) & m->mask) < ((at - gap) & m->mask))
			continue;
		m->slots[gap] = m->slots[at];
		gap = at;
	}
	m->slots[gap] = SLOT_FREE;
}

void *map_take(struct map *m, const void *key, size_t len)
{
	uint64_t hash = map_hash(m->secret, key, len);
	size_t slot = slot_of_key(m, hash, key, len);
	uint32_t index = m->slots[slot];
	size_t last = m->count - 1;
	void *value;

	if (index == SLOT_FREE)
		return NULL;
	value = m->entries[index].value;
	slot_release(m, slot);
	entry_release(&m->entries[index]);
	if (index != last) {
		m->slots[slot_of_index(m, last)] = index;
		m->entries[index] = m->entries[last];
	}
	m->count = last;
	return value;
}

bool map_next(const struct map *m, size_t *at, struct map_entry *ret)
{
	const struct entry *e;

	/* From the end: what a removal moves has been seen already. */
	if (*at == 0)
		return false;
	assert(*at <= m->count);
	e = &m->entries[--*at];
	*ret = (struct map_entry){
		.key = entry_key(e),
		.len = e->len,
		.value = e->value,
	};
	return true;
}

void map_check(const struct map *m)
{
	size_t used = 0;

	assert(m->count <= m->room);
	assert(m->count * 3 <= (m->mask + 1) * 2);
	for (size_t i = 0; i <= m->mask; i++)
		used += m->slots[i] != SLOT_FREE;
	assert(used == m->count);
	for (size_t i = 0; i < m->count; i++) {
		const struct entry *e = &m->entries[i];
		size_t slot = slot_of_key(m, e->hash, entry_key(e), e->len);

		assert(m->slots[slot] == i);
		assert(e->hash == map_hash(m->secret, entry_key(e), e->len));
	}
}
