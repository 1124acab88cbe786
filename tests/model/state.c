/* SPDX-License-Identifier: Apache-2.0 */
#include "state.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_management.h"
#include "names.h"

/* ---- Finding and changing ---- */

static int compare_names(uint64_t lineage_a, uint64_t generation_a,
			 uint64_t lineage_b, uint64_t generation_b)
{
	if (lineage_a != lineage_b)
		return lineage_a < lineage_b ? -1 : 1;
	if (generation_a != generation_b)
		return generation_a < generation_b ? -1 : 1;
	return 0;
}

size_t state_revision_at(const struct state *s, uint64_t lineage,
			 uint64_t after)
{
	size_t i = 0;

	while (i < s->revision_count &&
	       compare_names(s->revisions[i].lineage,
			     s->revisions[i].generation, lineage, after) <= 0)
		i++;
	return i;
}

size_t state_staging_at(const struct state *s, uint64_t lineage, uint64_t after)
{
	size_t i = 0;

	while (i < s->staging_count &&
	       compare_names(s->stagings[i].lineage, s->stagings[i].generation,
			     lineage, after) <= 0)
		i++;
	return i;
}

struct revision *state_revision(struct state *s, uint64_t lineage,
				uint64_t generation)
{
	for (size_t i = 0; i < s->revision_count; i++)
		if (s->revisions[i].lineage == lineage &&
		    s->revisions[i].generation == generation)
			return &s->revisions[i];
	return NULL;
}

struct staging *state_staging(struct state *s, uint64_t lineage,
			      uint64_t generation)
{
	for (size_t i = 0; i < s->staging_count; i++)
		if (s->stagings[i].lineage == lineage &&
		    s->stagings[i].generation == generation)
			return &s->stagings[i];
	return NULL;
}

struct lease *state_lease(struct state *s, uint64_t id)
{
	for (size_t i = 0; i < s->lease_count; i++)
		if (s->leases[i].id == id)
			return &s->leases[i];
	return NULL;
}

struct operation *state_operation(struct state *s, uint64_t id)
{
	if (id == 0 || id > s->operation_count)
		return NULL;
	return &s->operations[id - 1];
}

void state_put_revision(struct state *s, const struct revision *r)
{
	struct revision *there = state_revision(s, r->lineage, r->generation);
	size_t at = state_revision_at(s, r->lineage, r->generation);

	if (there) {
		*there = *r;
		return;
	}
	assert(s->revision_count < REVISIONS_MAX);
	memmove(&s->revisions[at + 1], &s->revisions[at],
		(s->revision_count - at) * sizeof(*r));
	s->revisions[at] = *r;
	s->revision_count++;
}

void state_put_staging(struct state *s, const struct staging *g)
{
	struct staging *there = state_staging(s, g->lineage, g->generation);
	size_t at = state_staging_at(s, g->lineage, g->generation);

	if (there) {
		*there = *g;
		return;
	}
	assert(s->staging_count < REVISIONS_MAX);
	memmove(&s->stagings[at + 1], &s->stagings[at],
		(s->staging_count - at) * sizeof(*g));
	s->stagings[at] = *g;
	s->staging_count++;
}

/* New ones come last: ids go up. */
void state_put_lease(struct state *s, const struct lease *l)
{
	struct lease *there = state_lease(s, l->id);

	if (there) {
		*there = *l;
		return;
	}
	assert(s->lease_count < LEASES_MAX);
	s->leases[s->lease_count++] = *l;
}

void state_put_operation(struct state *s, const struct operation *op)
{
	assert(op->id > 0 && op->id <= s->operation_count + 1 &&
	       op->id <= OPERATIONS_MAX);
	s->operations[op->id - 1] = *op;
	if (op->id > s->operation_count)
		s->operation_count++;
}

void state_drop_staging(struct state *s, const struct staging *g)
{
	size_t at = (size_t)(g - s->stagings);

	s->staging_count--;
	memmove(&s->stagings[at], &s->stagings[at + 1],
		(s->staging_count - at) * sizeof(*g));
}

void state_drop_lease(struct state *s, const struct lease *l)
{
	size_t at = (size_t)(l - s->leases);

	s->lease_count--;
	memmove(&s->leases[at], &s->leases[at + 1],
		(s->lease_count - at) * sizeof(*l));
}

#define COPY(to, from, what)                                                   \
	do {                                                                   \
		(to)->what##_count = (from)->what##_count;                     \
		memcpy((to)->what##s, (from)->what##s,                         \
		       (from)->what##_count * sizeof((from)->what##s[0]));     \
	} while (0)

void state_copy(struct state *to, const struct state *from, bool operations)
{
	COPY(to, from, revision);
	COPY(to, from, staging);
	COPY(to, from, lease);
	memcpy(to->lineages, from->lineages, sizeof(to->lineages));
	if (operations)
		COPY(to, from, operation);
}

/* ---- Questions ---- */

bool lineage_is_live(const struct lineage *l)
{
	return l->there && l->claimed && l->phase != WEIGHT_COMPLETED &&
	       l->phase != WEIGHT_ABORTED;
}

bool lineage_fences(const struct lineage *l, uint64_t generation)
{
	return lineage_is_live(l) && l->base == generation &&
	       (l->upsert_mode == WEIGHT_DELETE_FIRST ||
		l->phase == WEIGHT_RETIRING_BASE);
}

bool lease_is_active(const struct lease *l, const struct revision *r,
		     uint64_t now_ms)
{
	return l->lineage == r->lineage && l->generation == r->generation &&
	       l->expires_at_ms > now_ms && l->fence <= r->metadata_generation;
}

bool operation_is_over(const struct operation *op)
{
	return op->message == MESSAGE_COMPLETED ||
	       op->message == MESSAGE_REMOVED ||
	       op->message == MESSAGE_SUPERSEDED;
}

/* ---- Differences ---- */

struct field {
	const char *name;
	bool is_ratio;
};

#define NAME_NUMBER(name) { #name, false },
#define NAME_RATIO(name) { #name, true },
#define FIELDS_MAX 32

static const struct {
	const char *name;
	size_t count;
	struct field fields[FIELDS_MAX];
} records[] = {
	[RECORD_REVISION] = { "revision",
			      sizeof(struct revision) / 8,
			      { REVISION_FIELDS(NAME_NUMBER, NAME_RATIO) } },
	[RECORD_LEASE] = { "lease",
			   sizeof(struct lease) / 8,
			   { LEASE_FIELDS(NAME_NUMBER, NAME_RATIO) } },
	[RECORD_OPERATION] = { "operation",
			       sizeof(struct operation) / 8,
			       { OPERATION_FIELDS(NAME_NUMBER, NAME_RATIO) } },
	[RECORD_STAGING] = { "staging",
			     sizeof(struct staging) / 8,
			     { STAGING_FIELDS(NAME_NUMBER, NAME_RATIO) } },
	[RECORD_LINEAGE] = { "lineage",
			     sizeof(struct lineage) / 8,
			     { LINEAGE_FIELDS(NAME_NUMBER, NAME_RATIO) } },
};

static void print_field(const struct field *f, const unsigned char *at)
{
	uint64_t n;
	double ratio;

	memcpy(&n, at, sizeof(n));
	memcpy(&ratio, at, sizeof(ratio));
	if (f->is_ratio)
		(void)printf("%g", ratio);
	else
		(void)printf("%" PRIu64, n);
}

void record_print_difference(enum record kind, const void *store,
			     const void *model)
{
	const unsigned char *a = store, *b = model;

	(void)printf("%s", records[kind].name);
	for (size_t i = 0; i < records[kind].count; i++, a += 8, b += 8) {
		const struct field *f = &records[kind].fields[i];
		bool same = memcmp(a, b, 8) == 0;

		/* The first three name the record. */
		if (same && i >= 3)
			continue;
		(void)printf(same ? " %s " : "\n\t%s: the store says ",
			     f->name);
		print_field(f, a);
		if (!same) {
			(void)printf(", the model ");
			print_field(f, b);
		}
	}
	(void)printf("\n");
}

static bool records_equal(enum record kind, const void *store,
			  size_t store_count, const void *model,
			  size_t model_count)
{
	static const unsigned char nothing[8 * FIELDS_MAX];
	const size_t size = records[kind].count * 8;
	const unsigned char *a = store, *b = model;

	for (size_t i = 0; i < store_count || i < model_count; i++) {
		const void *x = i < store_count ? a + i * size : nothing;
		const void *y = i < model_count ? b + i * size : nothing;

		if (memcmp(x, y, size) == 0)
			continue;
		(void)printf("%zu of them in the store, %zu in the model; ",
			     store_count, model_count);
		record_print_difference(kind, x, y);
		return false;
	}
	return true;
}

#define EQUAL(kind, what)                                                      \
	records_equal(kind, store->what##s, store->what##_count,               \
		      model->what##s, model->what##_count)

bool state_equal(const struct state *store, const struct state *model,
		 bool operations)
{
	return EQUAL(RECORD_REVISION, revision) &&
	       EQUAL(RECORD_STAGING, staging) && EQUAL(RECORD_LEASE, lease) &&
	       records_equal(RECORD_LINEAGE, store->lineages, LINEAGES,
			     model->lineages, LINEAGES) &&
	       (!operations || EQUAL(RECORD_OPERATION, operation));
}
