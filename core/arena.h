/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for many small things that are freed together.
 *
 * An arena on the stack or in a struct starts as ARENA_INIT. Pointers stay
 * valid until arena_reset() or arena_release(). One owner at a time.
 */
#ifndef CORE_ARENA_H
#define CORE_ARENA_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_ALIGN ((size_t)8)

/* Blocks grow from the first size to the last, so a small arena stays small. */
#define ARENA_BLOCK_MIN ((size_t)1 << 10)
#define ARENA_BLOCK_MAX ((size_t)1 << 18)

struct arena_block {
	struct arena_block *older;
	size_t used;
	size_t cap;
	char bytes[] __attribute__((aligned(ARENA_ALIGN)));
};

struct arena {
	struct arena_block *newest;
};

#define ARENA_INIT                                                             \
	{                                                                      \
		.newest = NULL                                                 \
	}

static inline void arena_release(struct arena *a)
{
	while (a->newest) {
		struct arena_block *older = a->newest->older;

		free(a->newest);
		a->newest = older;
	}
}

/* Drops the contents. Keeps one ordinary block for what comes next. */
static inline void arena_reset(struct arena *a)
{
	struct arena_block *kept = a->newest;

	if (!kept)
		return;
	a->newest = kept->older;
	arena_release(a);
	if (kept->cap > ARENA_BLOCK_MAX) {
		free(kept);
		return;
	}
	kept->older = NULL;
	kept->used = 0;
	a->newest = kept;
}

/* Uninitialised memory for any type, NULL when there is none. */
static inline void *arena_alloc(struct arena *a, size_t size)
{
	struct arena_block *b = a->newest;
	size_t cap;
	void *p;

	if (size > PTRDIFF_MAX / 2)
		return NULL;
	size = (size + ARENA_ALIGN - 1) & ~(ARENA_ALIGN - 1);
	if (!b || size > b->cap - b->used) {
		cap = b ? 2 * b->cap : ARENA_BLOCK_MIN;
		if (cap > ARENA_BLOCK_MAX)
			cap = ARENA_BLOCK_MAX;
		if (cap < size)
			cap = size;
		b = malloc(sizeof(*b) + cap);
		if (!b)
			return NULL;
		b->older = a->newest;
		b->used = 0;
		b->cap = cap;
		a->newest = b;
	}
	p = b->bytes + b->used;
	b->used += size;
	return p;
}

/* A copy of len bytes and a NUL after them, NULL when there is no memory. */
static inline char *arena_copy(struct arena *a, const void *bytes, size_t len)
{
	char *p = arena_alloc(a, len + 1);

	if (!p)
		return NULL;
	if (len)
		memcpy(p, bytes, len);
	p[len] = '\0';
	return p;
}

#endif
