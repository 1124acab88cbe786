/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Map from a key, which is any string of bytes, to a pointer.
 *
 * Invariant, true between calls: a key is in the map once.
 *
 * Ownership: the map copies keys (up to 16 bytes of them without a separate
 * allocation) and never touches what the values point at. Keys handed out are
 * borrowed until their entry is removed.
 *
 * Trust: keys may come from an enemy. They are hashed with a secret that each
 * map draws for itself, so nobody can choose keys that fall together.
 *
 * Not thread-safe: one owner or lock at a time. Memory grows with the largest
 * count that there was, and is given back by map_free().
 */
#ifndef CORE_MAP_H
#define CORE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/cleanup.h"

#define MAP_COUNT_MAX ((size_t)1 << 30)
#define MAP_KEY_BYTES_MAX ((size_t)1 << 20)

struct map;

/* Errors: -ENOMEM, or what getrandom() answered. */
int map_new(struct map **ret);
void map_free(struct map *m); /* accepts NULL */
DEFINE_CLEANUP(struct map *, map_free)

size_t map_count(const struct map *m);

/* The value under the key, or NULL. */
void *map_find(const struct map *m, const void *key, size_t len);

/*
 * Adds value, which is not NULL. On failure the map is unchanged.
 *
 * Errors:
 *  -EEXIST	there is a value under the key already
 *  -EFBIG	above one of the limits
 *  -ENOMEM
 */
int map_add(struct map *m, const void *key, size_t len, void *value);

/*
 * As map_add(), but takes the place of a value that is there. *ret_old, which
 * may be NULL, is set to that value or to NULL.
 */
int map_put(struct map *m, const void *key, size_t len, void *value,
	    void **ret_old);

/* Removes the key and returns its value, or NULL when it was not there. */
void *map_take(struct map *m, const void *key, size_t len);

struct map_entry {
	const void *key;
	size_t len;
	void *value;
};

/*
 * Walks over all entries in no promised order:
 *
 *	struct map_entry e;
 *	size_t at = map_count(m);
 *
 *	while (map_next(m, &at, &e))
 *		...
 *
 * The body may take the entry that it was just given, and no other, and may
 * not add any.
 */
bool map_next(const struct map *m, size_t *at, struct map_entry *ret);

/* SipHash-2-4 of bytes under a secret. Here so that a test can check it. */
uint64_t map_hash(const uint8_t secret[static 16], const void *bytes,
		  size_t len);

/* Aborts unless every invariant holds. Slow; for tests. */
void map_check(const struct map *m);

#endif
