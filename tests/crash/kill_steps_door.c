/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A life through the first door: a put, a replacement of each mode, one of each
 * given up, a removal. Whoever comes after a kill sees what the last deed allows,
 * asks for the same again, and goes on to the end.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/util.h"
#include "kill_steps.h"

#define TENSORS 3

/* Its generations, and what may be so of each. */
enum { A, B, C, D, E, NAMED };
static_assert(NAMED == DOOR_GENERATIONS, "each has something to be seen");
#define IS(availability) (1u << WEIGHT_##availability)
#define NONE (1u << (WEIGHT_DELETED + 1))
#define GOING (IS(READY) | IS(DELETING) | IS(DELETED))
#define COMING (NONE | IS(IMPORTING) | IS(READY))
#define FAILING (NONE | IS(IMPORTING) | IS(DELETING) | IS(DELETED))
#define GONE IS(DELETED)

/* The deed that was begun last, 2d + 1, or ended last, 2d + 2. */
enum {
	PUT,
	REPLACE,
	DELETE_FIRST,
	GIVE_UP_PUT,
	GIVE_UP_REPLACEMENT,
	TAKE_AWAY,
	DEEDS,
};

/* clang-format off */
static const unsigned allowed[2 * DEEDS + 1][NAMED] = {
	/*                             A          B          C          D        E */
	[0]                         = { NONE,      NONE,      NONE,      NONE,    NONE },
	[2 * PUT + 1]               = { COMING,    NONE,      NONE,      NONE,    NONE },
	[2 * PUT + 2]               = { IS(READY), NONE,      NONE,      NONE,    NONE },
	[2 * REPLACE + 1]           = { GOING,     COMING,    NONE,      NONE,    NONE },
	[2 * REPLACE + 2]           = { GONE,      IS(READY), NONE,      NONE,    NONE },
	[2 * DELETE_FIRST + 1]      = { GONE,      GOING,     COMING,    NONE,    NONE },
	[2 * DELETE_FIRST + 2]      = { GONE,      GONE,      IS(READY), NONE,    NONE },
	[2 * GIVE_UP_PUT + 1]       = { GONE,      GONE,      IS(READY), FAILING, NONE },
	[2 * GIVE_UP_PUT + 2]       = { GONE,      GONE,      IS(READY), GONE,    NONE },
	[2 * GIVE_UP_REPLACEMENT + 1]
				    = { GONE,      GONE,      IS(READY), GONE,    FAILING },
	[2 * GIVE_UP_REPLACEMENT + 2]
				    = { GONE,      GONE,      IS(READY), GONE,    GONE },
	[2 * TAKE_AWAY + 1]         = { GONE,      GONE,      GOING,     GONE,    GONE },
	[2 * TAKE_AWAY + 2]         = { GONE,      GONE,      GONE,      GONE,    GONE },
};
/* clang-format on */

static struct buf why = BUF_INIT;
static char revision[NAME_LEN];

/* ---- What is put ---- */

static struct weight_identity identity(unsigned named)
{
	return (struct weight_identity){
		.lineage = { "t", "door", "r", revision },
		.generation = named + 1,
	};
}

/* Several chunks, a granule, less than a page. */
static const uint64_t sizes[TENSORS] = { (5 << 20) + 3, 2 << 20, 1000 };
static const char *const ids[TENSORS] = { "w/0", "w/1", "norm" };
static struct weight_description tensors[TENSORS];

static void describe(void)
{
	for (size_t i = 0; i < TENSORS; i++)
		tensors[i] = (struct weight_description){
			.tensor_id = ids[i],
			.dtype = "U8",
			.layout_fingerprint = "test:v1",
			.global_shape = &sizes[i],
			.rank = 1,
			.itemsize = 1,
			.len = sizes[i],
			.layer_id = WEIGHT_NO_NUMBER,
			.expert_id = WEIGHT_NO_NUMBER,
		};
	(void)snprintf(revision, sizeof(revision), "life-%u",
		       atomic_load(&shared->generation));
}

static struct pattern pattern_of(unsigned named, unsigned i)
{
	return (struct pattern){ atomic_load(&shared->generation) + named, i,
				 sizes[i] };
}

static void give(struct weight_writer *w, unsigned named, unsigned i)
{
	const struct pattern p = pattern_of(named, i);
	auto_free char *bytes = malloc(p.size);
	int r;

	must(bytes, "memory", 0);
	pattern_fill(&p, 0, bytes, p.size);
	r = weight_writer_put_tensor(w, ids[i], bytes, p.size, &why);
	must(r == 0, why.data, r);
}

static void fill_and_commit(struct weight_writer *w, unsigned named)
{
	int r;

	for (unsigned i = 0; i < TENSORS; i++)
		give(w, named, i);
	r = weight_writer_commit(w, NULL, &why);
	must(r == 0, why.data, r);
	weight_writer_free(w);
}

/* ---- What is there ---- */

static unsigned availability(unsigned named)
{
	const struct weight_identity id = identity(named);
	struct weight_metadata *m = NULL;
	unsigned found = WEIGHT_DELETED + 1;
	int r = weight_get_metadata(store, &id, &m, NULL);

	must(r == 0 || r == -ENOENT, "metadata", r);
	if (r == 0)
		found = m->availability;
	weight_metadata_free(m);
	return found;
}

static void await(unsigned named, enum weight_availability expected)
{
	must(true, "an availability", 0);
	while (availability(named) != expected)
		(void)usleep(PAUSE_US);
}

static void check_bytes(unsigned named)
{
	const struct weight_identity id = identity(named);
	struct weight_reader *reader = NULL;
	int r = weight_get(store, &id, &reader, &why);

	/* It is being replaced, and that goes on. */
	if (r == -EBUSY || r == -EINPROGRESS || r == -ENOENT) {
		buf_release(&why);
		return;
	}
	must(r == 0, why.data, r);
	must(weight_reader_tensor_count(reader) == TENSORS, "tensors", 0);
	for (unsigned i = 0; i < TENSORS; i++) {
		const struct pattern p = pattern_of(named, i);
		auto_free char *bytes = malloc(p.size);
		size_t at = 0;

		must(bytes, "memory", 0);
		r = weight_reader_find(reader, ids[i], &at);
		must(r == 0, "a tensor is missing", r);
		r = weight_reader_read(reader, at, 0, bytes, p.size);
		must(r == 0, "reading", r);
		must(pattern_check(&p, 0, bytes, p.size) == p.size,
		     "wrong bytes", (int)i);
	}
	weight_reader_free(reader);
}

/* What the last deed allows, whatever goes on in the background. */
static void check_all(unsigned fate)
{
	unsigned found[NAMED];

	for (unsigned i = NAMED; i-- > 0;) {
		/* The base after its target: it goes when that is there. */
		found[i] = availability(i);
		must(allowed[fate][i] & 1u << found[i],
		     "a generation is what it can't be",
		     (int)(fate * 100 + i * 10 + found[i]));
	}
	must(fate != 2 * REPLACE + 1 || found[B] == WEIGHT_READY ||
		     found[A] == WEIGHT_READY,
	     "PUT_FIRST, and neither is there", 0);
	must(fate != 2 * DELETE_FIRST + 1 || (1u << found[C] & NONE) ||
		     found[B] == WEIGHT_DELETED,
	     "DELETE_FIRST, and both are there", 0);
	for (unsigned i = 0; i < NAMED; i++)
		if (found[i] == WEIGHT_READY)
			check_bytes(i);
}

/* ---- The deeds; each goes on where it was ---- */

static bool is_put(unsigned named, struct weight_writer **ret)
{
	const struct weight_put_args args = { .identity = identity(named),
					      .tensors = tensors,
					      .count = TENSORS };
	int r = weight_put(store, &args, ret, &why);

	must(r == 0 || r == -EEXIST, why.data, r);
	buf_release(&why);
	return r == -EEXIST;
}

static void put(void)
{
	struct weight_writer *w = NULL;

	if (!is_put(A, &w))
		fill_and_commit(w, A);
	must(availability(A) == WEIGHT_READY, "it was put", 0);
}

/* The same request each time: what was seen of the base is remembered. */
static int upsert(unsigned base, unsigned target, enum weight_upsert_mode mode,
		  struct weight_writer **ret)
{
	struct weight_upsert_args args = { .base = identity(base),
					   .target = identity(target),
					   .mode = mode,
					   .tensors = tensors,
					   .count = TENSORS };
	_Atomic uint64_t *seen = &shared->door_seen[target];
	struct weight_metadata *m = NULL;
	int r;

	if (atomic_load(seen) == 0) {
		must(weight_get_metadata(store, &args.base, &m, NULL) == 0,
		     "metadata of the base", 0);
		atomic_store(seen, m->metadata_generation);
		weight_metadata_free(m);
	}
	args.expected_base_metadata_generation = atomic_load(seen);
	/* The base of the claim before is gone, and that may just be ending. */
	while ((r = weight_upsert(store, &args, ret, &why)) == -EBUSY) {
		buf_release(&why);
		(void)usleep(PAUSE_US);
	}
	/* It moved before the claim began. */
	if (r == -ECANCELED) {
		atomic_store(seen, 0);
		buf_release(&why);
		return upsert(base, target, mode, ret);
	}
	return r;
}

static void replace(void)
{
	struct weight_writer *w = NULL;
	int r = upsert(A, B, WEIGHT_PUT_FIRST, &w);

	must(r == 0, why.data, r);
	fill_and_commit(w, B);
	await(A, WEIGHT_DELETED);
}

static void delete_first(void)
{
	struct weight_writer *w = NULL;
	int r = upsert(B, C, WEIGHT_DELETE_FIRST, &w);

	must(r == 0, why.data, r);
	must(availability(B) == WEIGHT_DELETED, "a writer beside the base", 0);
	fill_and_commit(w, C);
}

static void give_up(struct weight_writer *w, unsigned named)
{
	int r;

	give(w, named, 0);
	r = weight_writer_abort(w, &why);
	must(r == 0, why.data, r);
	weight_writer_free(w);
}

static void give_up_put(void)
{
	struct weight_writer *w = NULL;

	if (!is_put(D, &w))
		give_up(w, D);
	await(D, WEIGHT_DELETED);
}

static void give_up_replacement(void)
{
	struct weight_writer *w = NULL;
	int r = upsert(C, E, WEIGHT_PUT_FIRST, &w);

	/* It was given up already, in part. */
	must(r == 0 || r == -EEXIST, why.data, r);
	buf_release(&why);
	if (r == 0)
		give_up(w, E);
	await(E, WEIGHT_DELETED);
}

static void take_away(void)
{
	const struct weight_identity id = identity(C);
	int r;

	must(true, "removal", 0);
	/* The claim that was given up may be about to end. */
	while ((r = weight_remove(store, &id, 0, &why)) == -EBUSY)
		(void)usleep(PAUSE_US);
	must(r == 0, why.data, r);
	await(C, WEIGHT_DELETED);
}

static void (*const deeds[DEEDS])(void) = {
	[PUT] = put,
	[REPLACE] = replace,
	[DELETE_FIRST] = delete_first,
	[GIVE_UP_PUT] = give_up_put,
	[GIVE_UP_REPLACEMENT] = give_up_replacement,
	[TAKE_AWAY] = take_away,
};

/* ---- Lives ---- */

/* From where the last one was. */
void live_door(void)
{
	unsigned fate = atomic_load(&shared->door_fate);

	describe();
	open_store();
	check_all(fate);
	for (unsigned d = fate / 2; d < DEEDS; d++) {
		atomic_store(&shared->door_fate, 2 * d + 1);
		deeds[d]();
		atomic_store(&shared->door_fate, 2 * d + 2);
		check_all(2 * d + 2);
	}
	await_groups(1);
	buf_release(&why);
	close_store();
	_exit(0);
}
