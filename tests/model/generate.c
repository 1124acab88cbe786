/* SPDX-License-Identifier: Apache-2.0 */
#include "generate.h"

#include <string.h>

#include "core/util.h"
#include "core/weight_management.h"

/* ---- Chance ---- */

static uint64_t next_random(struct generator *g)
{
	uint64_t z = g->random += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static uint64_t below(struct generator *g, uint64_t n)
{
	return next_random(g) % n;
}

static uint64_t up_to(struct generator *g, uint64_t n)
{
	return n == UINT64_MAX ? next_random(g) : below(g, n + 1);
}

static bool chance(struct generator *g, unsigned percent)
{
	return below(g, 100) < percent;
}

#define ONE_OF(g, ...)                                                         \
	({                                                                     \
		static const uint64_t of_[] = { __VA_ARGS__ };                 \
		of_[below(g, ARRAY_LEN(of_))];                                 \
	})

/* ---- Scripts ---- */

void generator_init(struct generator *g, uint64_t seed)
{
	memset(g, 0, sizeof(*g));
	g->random = seed;
	(void)next_random(g);
	g->length = chance(g, 65) ? 100 + below(g, 300) :
		    chance(g, 80) ? 400 + below(g, 1000) :
				    1500 + below(g, 3500);
	g->generation_max = g->length < 400 ? 6 : 6 + below(g, 50);
	g->lineages[g->lineage_count++] = 0;
	for (uint64_t l = 1; l < LINEAGES; l++)
		if (chance(g, l == 1 ? 60 : 25))
			g->lineages[g->lineage_count++] = l;
	g->is_replicated = chance(g, 10);
}

/* ---- What is there ---- */

#define STATE(availability) (1u << WEIGHT_##availability)
#define PUBLISHED (STATE(READY) | STATE(DEGRADED))

static uint64_t highest(struct world *w, uint64_t lineage)
{
	const struct state *s = &w->model.s;
	uint64_t top = 0;

	for (size_t i = 0; i < s->revision_count; i++)
		if (s->revisions[i].lineage == lineage)
			top = later(top, s->revisions[i].generation);
	for (size_t i = 0; i < s->staging_count; i++)
		if (s->stagings[i].lineage == lineage)
			top = later(top, s->stagings[i].generation);
	return top;
}

static uint64_t any_generation(struct generator *g, struct world *w,
			       uint64_t lineage)
{
	uint64_t top = highest(w, lineage) + 2;

	return 1 + below(g, top < g->generation_max ? top : g->generation_max);
}

/* One above all others, when there is room. */
static uint64_t new_generation(struct generator *g, struct world *w,
			       uint64_t lineage)
{
	uint64_t top = highest(w, lineage) + 1 + (below(g, 4) == 0);

	return top <= g->generation_max ? top : any_generation(g, w, lineage);
}

/* A generation in one of the states, mostly. */
static uint64_t generation_in(struct generator *g, struct world *w,
			      uint64_t lineage, unsigned states)
{
	const struct state *s = &w->model.s;
	uint64_t chosen = 0, found = 0;

	for (size_t i = 0; i < s->revision_count; i++) {
		const struct revision *r = &s->revisions[i];

		if (r->lineage == lineage && states >> r->availability & 1 &&
		    below(g, ++found) == 0)
			chosen = r->generation;
	}
	if (chosen == 0 || chance(g, 8))
		return any_generation(g, w, lineage);
	return chosen;
}

/* One that has an operation, for what needs one. */
static uint64_t operated_generation(struct generator *g, struct world *w,
				    const struct op *op)
{
	const struct state *s = &w->model.s;
	uint64_t lineage = op->arg[A_LINEAGE], chosen = 0, found = 0;

	for (size_t i = 0; i < s->revision_count; i++) {
		const struct revision *r = &s->revisions[i];

		if (r->lineage == lineage && r->operation_id &&
		    below(g, ++found) == 0)
			chosen = r->generation;
	}
	if (chosen == 0 || op->kind == OP_START || chance(g, 8))
		return generation_in(g, w, lineage, PUBLISHED);
	return chosen;
}

static uint64_t staged_generation(struct generator *g, struct world *w,
				  uint64_t lineage)
{
	const struct state *s = &w->model.s;
	uint64_t chosen = 0, found = 0;

	for (size_t i = 0; i < s->staging_count; i++)
		if (s->stagings[i].lineage == lineage && below(g, ++found) == 0)
			chosen = s->stagings[i].generation;
	if (chosen == 0 || chance(g, 8))
		return any_generation(g, w, lineage);
	return chosen;
}

/* ---- Arguments ---- */

static uint64_t some_fence(struct generator *g)
{
	return ONE_OF(g, FENCE_ANY, FENCE_ANY, FENCE_CURRENT, FENCE_CURRENT,
		      FENCE_CURRENT, FENCE_CURRENT, FENCE_LAST, FENCE_SEEN,
		      FENCE_SEEN, FENCE_NEXT, FENCE_1);
}

static uint64_t some_policy(struct generator *g)
{
	return below(g, chance(g, 4) ? POLICIES : POLICIES_GOOD);
}

static void some_import(struct generator *g, struct op *op)
{
	op->arg[A_POLICY] = some_policy(g);
	op->arg[A_UNITS] = chance(g, 80) ? 2 : below(g, 4);
	op->arg[A_COUNT] = chance(g, 90) ? 2 : below(g, 3);
	op->arg[A_BYTES] = chance(g, 90) ? 100 : below(g, 3) - 1;
}

static void some_place(struct generator *g, struct op *op)
{
	op->arg[A_RESIDENCY] = ONE_OF(g, WEIGHT_HOT, WEIGHT_COLD, WEIGHT_MIXED,
				      WEIGHT_HOT, WEIGHT_COLD, WEIGHT_MIXED);
	if (chance(g, 6))
		op->arg[A_RESIDENCY] = below(g, 6);
	if (chance(g, 10))
		op->arg[A_RATIO] = below(g, arg_words(A_RATIO));
}

static void some_seen(struct generator *g, struct op *op)
{
	some_place(g, op);
	op->arg[A_AVAILABILITY] = ONE_OF(g, WEIGHT_READY, WEIGHT_READY,
					 WEIGHT_READY, WEIGHT_DEGRADED);
	if (op->arg[A_AVAILABILITY] == WEIGHT_DEGRADED && chance(g, 40))
		op->arg[A_RESIDENCY] = WEIGHT_ABSENT;
	if (chance(g, 3))
		op->arg[A_AVAILABILITY] = below(g, 6);
}

/* ---- Kinds; the lineage is chosen ---- */

/* Where there is nothing of what is wanted, it is brought about, mostly. */
static bool has_staged(const struct world *w, uint64_t lineage)
{
	const struct state *s = &w->model.s;
	size_t at = state_staging_at(s, lineage, 0);

	return at < s->staging_count && s->stagings[at].lineage == lineage;
}

static bool has_in(const struct world *w, uint64_t lineage, unsigned states)
{
	const struct state *s = &w->model.s;

	for (size_t i = 0; i < s->revision_count; i++)
		if (s->revisions[i].lineage == lineage &&
		    states >> s->revisions[i].availability & 1)
			return true;
	return false;
}

static bool has_operation(const struct world *w, uint64_t lineage)
{
	const struct state *s = &w->model.s;

	for (size_t i = 0; i < s->revision_count; i++)
		if (s->revisions[i].lineage == lineage &&
		    s->revisions[i].operation_id)
			return true;
	return false;
}

static enum kind kind_for(struct generator *g, const struct world *w,
			  const struct op *op)
{
	uint64_t lineage = op->arg[A_LINEAGE];
	enum family family = kind_family(op->kind);

	if (chance(g, 15))
		return op->kind;
	if (op->kind == OP_DELETE_FINISH) {
		if (!has_in(w, lineage, STATE(DELETING)))
			return OP_GET;
	} else if (op->kind == OP_IMPORT_COMMIT ||
		   op->kind == OP_IMPORT_ABORT) {
		if (!has_in(w, lineage, STATE(IMPORTING)))
			return OP_IMPORT_BEGIN;
	} else if (op->kind == OP_PROGRESS || op->kind == OP_FINISH ||
		   op->kind == OP_ERROR) {
		if (!has_operation(w, lineage))
			return OP_START;
	} else if (family == FAMILY_REVISIONS || family == FAMILY_OPERATIONS ||
		   op->kind == OP_ACQUIRE || op->kind == OP_UPSERT) {
		if (!has_in(w, lineage, PUBLISHED))
			return has_staged(w, lineage) ? OP_PUBLISH : OP_STAGE;
	} else if (op->kind == OP_PUBLISH || op->kind == OP_UNSTAGE ||
		   op->kind == OP_STAGED_POLICY) {
		if (!has_staged(w, lineage))
			return OP_STAGE;
	}
	return op->kind;
}

static void some_import_op(struct generator *g, struct world *w, struct op *op)
{
	uint64_t *arg = op->arg, lineage = arg[A_LINEAGE];

	some_import(g, op);
	some_place(g, op);
	arg[A_LIKE] = ONE_OF(g, LIKE_ARGUMENTS, LIKE_ARGUMENTS, LIKE_ARGUMENTS,
			     LIKE_RECORD, LIKE_CLAIM);
	arg[A_TAG] = 1 + below(g, 2);
	arg[A_REF] = chance(g, 92) ? REF_GOOD : below(g, arg_words(A_REF));
	arg[A_DURABLE] = below(g, 2);
	arg[A_CONVERGES] = below(g, 2);
	arg[A_STAYS] = chance(g, 25);
	arg[A_CLAIM] = below(g, 2);
	arg[A_FENCE] = some_fence(g);
	switch (op->kind) {
	case OP_STAGE:
		arg[A_GENERATION] = new_generation(g, w, lineage);
		break;
	case OP_IMPORT_BEGIN:
		arg[A_GENERATION] =
			chance(g, 70) ?
				new_generation(g, w, lineage) :
				generation_in(g, w, lineage,
					      STATE(IMPORTING) | STATE(READY) |
						      STATE(DELETED));
		if (chance(g, 30))
			arg[A_REF] = REF_NONE;
		break;
	case OP_IMPORT_COMMIT:
	case OP_IMPORT_ABORT:
		arg[A_GENERATION] = generation_in(
			g, w, lineage,
			chance(g, 80) ? STATE(IMPORTING) :
					STATE(READY) | STATE(DELETING));
		break;
	default:
		arg[A_GENERATION] = staged_generation(g, w, lineage);
	}
}

static void some_revision_op(struct generator *g, struct world *w,
			     struct op *op)
{
	uint64_t *arg = op->arg;
	unsigned states = PUBLISHED;

	some_seen(g, op);
	arg[A_POLICY] = some_policy(g);
	arg[A_FENCE] = some_fence(g);
	arg[A_DURABLE] = below(g, 2);
	arg[A_BESIDE] = below(g, 2);
	arg[A_IGNORE] = below(g, HOLDER_CONTROL);
	arg[A_CLAIM] = below(g, 3) == 0;
	if (op->kind == OP_DELETE_FINISH)
		states = STATE(DELETING);
	else if (op->kind == OP_DELETE && chance(g, 15))
		states = STATE(DELETING) | STATE(DELETED) | STATE(IMPORTING);
	arg[A_GENERATION] = generation_in(g, w, arg[A_LINEAGE], states);
}

static void some_lease_op(struct generator *g, struct world *w, struct op *op)
{
	uint64_t *arg = op->arg;

	arg[A_GENERATION] = generation_in(g, w, arg[A_LINEAGE], PUBLISHED);
	arg[A_FENCE] = some_fence(g);
	arg[A_HOLDER] = chance(g, 95) ? 1 + below(g, 3) : below(g, HOLDERS);
	arg[A_TTL] = ONE_OF(g, 1, 10, 50, 50, 200, 1000, 5000, 86400000);
	if (chance(g, 4))
		arg[A_TTL] = ONE_OF(g, 0, 86400001, UINT64_MAX);
	arg[A_DEGRADED] = below(g, 2);
	arg[A_LEASE] = ONE_OF(g, PICK_LAST, PICK_LAST, PICK_OLDER, PICK_NEWEST,
			      PICK_ACTIVE);
	if (chance(g, 5))
		arg[A_LEASE] = ONE_OF(g, PICK_NONE, PICK_NEXT);
	arg[A_TENANT] = chance(g, 8);
	arg[A_LIMIT] = ONE_OF(g, 1, 2, 100, 100);
}

/* How much more was processed, mostly no more than there is. */
static void some_counts(struct generator *g, const struct operation *active,
			struct op *op)
{
	op->arg[A_UNITS] = ONE_OF(g, 0, 0, 1, 1, 2);
	op->arg[A_BYTES] = ONE_OF(g, 0, 0, 10, 50);
	if (active && chance(g, 90)) {
		op->arg[A_UNITS] =
			up_to(g, active->total_units - active->processed_units);
		op->arg[A_BYTES] =
			up_to(g, active->total_bytes - active->processed_bytes);
		if (chance(g, 30))
			op->arg[A_UNITS] = op->arg[A_BYTES] = 0;
	}
	if (chance(g, 4))
		op->arg[A_BYTES] = UINT64_MAX; /* one less */
}

static void some_operation_op(struct generator *g, struct world *w,
			      struct op *op)
{
	uint64_t *arg = op->arg;
	const struct revision *r;
	const struct operation *active;

	arg[A_GENERATION] = operated_generation(g, w, op);
	r = state_revision(&w->model.s, arg[A_LINEAGE], arg[A_GENERATION]);
	active = r ? state_operation(&w->model.s, r->operation_id) : NULL;
	some_seen(g, op);
	arg[A_FENCE] = some_fence(g);
	arg[A_OPERATION_KIND] = below(g, chance(g, 97) ? 2 : 3);
	arg[A_TARGET] = ONE_OF(g, WEIGHT_HOT, WEIGHT_COLD, WEIGHT_MIXED);
	if (chance(g, 4))
		arg[A_TARGET] = below(g, 6);
	arg[A_RATIO] =
		chance(g, 85) ? RATIO_FITS : below(g, arg_words(A_RATIO));
	arg[A_SUPERSEDES] = below(g, 3) == 0;
	arg[A_OPERATION] = chance(g, 80) ? PICK_ACTIVE : below(g, 6);
	some_counts(g, active, op);
	arg[A_TOTALS] = chance(g, 93) ? TOTALS_RIGHT : below(g, 4);
	arg[A_CURSOR] = below(g, chance(g, 95) ? CURSOR_CONTROL : CURSORS);
	if (arg[A_UNITS] == 0 && arg[A_BYTES] == 0 && active && chance(g, 60))
		arg[A_CURSOR] = active->cursor;
	arg[A_MESSAGE] = below(g, chance(g, 93) ? MESSAGE_COMPLETED : MESSAGES);
	if (active && chance(g, 70)) {
		if (op->kind == OP_FINISH)
			arg[A_RESIDENCY] = active->target;
		if (op->kind == OP_START)
			arg[A_TARGET] = active->target;
	}
	/* As it is: counters alone. */
	if (op->kind == OP_PROGRESS && r && chance(g, 40)) {
		arg[A_AVAILABILITY] = r->availability;
		arg[A_RESIDENCY] = r->residency;
		arg[A_RATIO] = RATIO_FITS;
	}
}

/* What somebody has to do before a claim goes on. */
static void what_it_waits_for(struct generator *g, struct world *w,
			      struct op *op)
{
	const struct lineage *l = &w->model.s.lineages[op->arg[A_LINEAGE]];
	uint64_t *arg = op->arg;

	if (l->phase == WEIGHT_RETIRING_BASE ||
	    l->phase == WEIGHT_DELETING_BASE) {
		op->kind = chance(g, 60) ? OP_DELETE_FINISH : OP_RELEASE;
		arg[A_GENERATION] = l->base;
		arg[A_LEASE] = PICK_ACTIVE;
		return;
	}
	some_import(g, op);
	arg[A_RESIDENCY] = WEIGHT_HOT;
	arg[A_TAG] = 1;
	if (state_staging(&w->model.s, arg[A_LINEAGE], l->target)) {
		op->kind = OP_PUBLISH;
	} else if (l->error == ERROR_INTERRUPTED) {
		op->kind = chance(g, 60) ? OP_UPSERT : OP_IMPORT_BEGIN;
		arg[A_LIKE] = LIKE_CLAIM;
		arg[A_CLAIM] = true;
	} else {
		op->kind = chance(g, 75) ? OP_IMPORT_COMMIT : OP_IMPORT_ABORT;
	}
}

/* What a claim that goes on needs next, or what may come between. */
static void drive_claim(struct generator *g, struct world *w, struct op *op)
{
	static struct outcome step;
	const struct lineage *l = &w->model.s.lineages[op->arg[A_LINEAGE]];
	struct call c = { .kind = OP_CLAIM_STEP,
			  .now_ms = w->now_ms,
			  .lineage = op->arg[A_LINEAGE],
			  .ignore = HOLDER_MOUNT };
	uint64_t *arg = op->arg;

	memset(op->arg, 0, sizeof(op->arg));
	arg[A_WHO] = below(g, ACTORS);
	arg[A_LINEAGE] = c.lineage;
	arg[A_GENERATION] = l->target;
	arg[A_FENCE] = ONE_OF(g, FENCE_ANY, FENCE_CURRENT);
	model_apply(&w->model, &c, &step);
	switch ((enum weight_claim_step)step.numbers[0]) {
	case WEIGHT_CLAIM_COMMIT:
		op->kind = OP_COMMIT;
		return;
	case WEIGHT_CLAIM_ADVANCE:
		op->kind = OP_ADVANCE;
		return;
	case WEIGHT_CLAIM_ABORT:
		/* What was removed may also begin again. */
		op->kind =
			l->phase == WEIGHT_TARGET_IMPORTING && chance(g, 60) ?
				OP_IMPORT_BEGIN :
				OP_ABORT;
		some_import(g, op);
		arg[A_LIKE] = LIKE_CLAIM;
		arg[A_CLAIM] = true;
		return;
	case WEIGHT_CLAIM_CLEAN:
		op->kind = OP_DELETE_FINISH;
		return;
	case WEIGHT_CLAIM_PREPARE:
		op->kind = OP_IMPORT_BEGIN;
		arg[A_LIKE] = LIKE_CLAIM;
		arg[A_CLAIM] = true;
		return;
	case WEIGHT_CLAIM_DELETE:
		op->kind = OP_DELETE;
		arg[A_GENERATION] = l->base;
		arg[A_CLAIM] = true;
		arg[A_IGNORE] = HOLDER_MOUNT;
		return;
	case WEIGHT_CLAIM_WAITS:
	case WEIGHT_CLAIM_DONE:
		break;
	}
	what_it_waits_for(g, w, op);
}

static void some_claim_op(struct generator *g, struct world *w, struct op *op)
{
	uint64_t *arg = op->arg, lineage = arg[A_LINEAGE];
	const struct lineage *l = &w->model.s.lineages[lineage];

	if (lineage_is_live(l) && chance(g, 65)) {
		drive_claim(g, w, op);
		return;
	}
	some_import(g, op);
	arg[A_LIKE] = chance(g, 20) ? LIKE_CLAIM : LIKE_ARGUMENTS;
	arg[A_REQUEST] = below(g, chance(g, 97) ? REQUEST_EMPTY : REQUESTS);
	arg[A_MODE] = below(g, chance(g, 97) ? 2 : 3);
	arg[A_FENCE] = chance(g, 85) ? FENCE_CURRENT : some_fence(g);
	arg[A_BASE] = l->there && chance(g, 85) ?
			      l->watermark :
			      generation_in(g, w, lineage, STATE(READY));
	arg[A_GENERATION] = chance(g, 50) ? staged_generation(g, w, lineage) :
			    chance(g, 85) ? new_generation(g, w, lineage) :
					    any_generation(g, w, lineage);
	arg[A_DESCRIBED] =
		state_staging(&w->model.s, lineage, arg[A_GENERATION]) == NULL;
	if (chance(g, 8))
		arg[A_DESCRIBED] ^= 1;
	arg[A_NAME] = chance(g, 75) ? NAME_LATEST : below(g, arg_words(A_NAME));
	arg[A_WANTS_DURABLE] = below(g, 3) == 0;
}

static void some_question(struct generator *g, struct world *w, struct op *op)
{
	uint64_t *arg = op->arg;

	arg[A_GENERATION] =
		chance(g, 20) ? 0 : any_generation(g, w, arg[A_LINEAGE]);
	arg[A_OPERATION] = below(g, 6);
	arg[A_TENANT] = chance(g, 10);
	arg[A_WANTS_DURABLE] = below(g, 2);
	arg[A_IGNORE] = below(g, HOLDER_CONTROL);
	arg[A_TOKEN] = ONE_OF(g, TOKEN_NONE, TOKEN_LAST, TOKEN_LAST, TOKEN_LAST,
			      TOKEN_ITEM);
	if (chance(g, 8))
		arg[A_TOKEN] = below(g, arg_words(A_TOKEN));
	arg[A_LIMIT] = ONE_OF(g, 1, 2, 3, 5, 0, 1000, 1001);
	if (op->kind == OP_GENERATIONS)
		arg[A_LIMIT] = 1 + below(g, GENERATIONS_MAX);
	arg[A_NAMES] = below(g, 2);
	arg[A_DEPTH] = below(g, chance(g, 95) ? 4 : 5);
}

static void some_whole_op(struct generator *g, struct world *w, struct op *op)
{
	uint64_t *arg = op->arg;

	arg[A_LIMIT] = 10 + below(g, 30);
	arg[A_BOOT] = chance(g, 50) ? w->model.boot : 1 + below(g, 3);
	arg[A_ELSEWHERE] = chance(g, 25);
	arg[A_REPLICATED] = chance(g, 50);
	arg[A_CONFIRMS] = below(g, 4);
	arg[A_MS] = ONE_OF(g, 1, 1, 7, 20, 60, 300, 2000);
	if (chance(g, 15))
		arg[A_MS] = (uint64_t) - (int64_t)ONE_OF(g, 1, 30, 500, 9000);
	else if (chance(g, 2))
		arg[A_MS] = ONE_OF(g, 90000000, 400000000);
	else if (chance(g, 15))
		arg[A_TO] = ONE_OF(g, TO_EXPIRY, TO_LAST_MS);
	else if (below(g, 1000) == 0)
		arg[A_MS] = INT64_MAX; /* to the end of all times */
	if (op->kind != OP_CONFIGURE)
		return;
	/* Mostly all goes on. */
	if (!g->is_replicated || chance(g, 60))
		arg[A_CONFIRMS] = 3;
}

/* ---- Which kind ---- */

static const struct {
	enum kind kind;
	unsigned weight;
} weights[] = {
	{ OP_STAGE, 40 },        { OP_STAGED_POLICY, 10 },
	{ OP_UNSTAGE, 6 },       { OP_PUBLISH, 60 },
	{ OP_IMPORT_BEGIN, 35 }, { OP_IMPORT_COMMIT, 30 },
	{ OP_IMPORT_ABORT, 10 }, { OP_POLICY, 30 },
	{ OP_DELETE, 28 },       { OP_DELETE_FINISH, 25 },
	{ OP_OBSERVE, 50 },      { OP_DURABLE, 15 },
	{ OP_ACQUIRE, 70 },      { OP_RENEW, 30 },
	{ OP_RELEASE, 40 },      { OP_SWEEP, 12 },
	{ OP_START, 50 },        { OP_PROGRESS, 60 },
	{ OP_ERROR, 15 },        { OP_FINISH, 40 },
	{ OP_UPSERT, 60 },       { OP_COMMIT, 30 },
	{ OP_ABORT, 15 },        { OP_ADVANCE, 20 },
	{ OP_GET, 10 },          { OP_STAGED_GET, 4 },
	{ OP_STAGED_NEXT, 4 },   { OP_REVISION_NEXT, 4 },
	{ OP_IN_USE, 6 },        { OP_SUMMARY, 12 },
	{ OP_OPERATION_GET, 8 }, { OP_CLAIM_STEP, 25 },
	{ OP_LIST, 25 },         { OP_GENERATIONS, 8 },
	{ OP_NAMES, 12 },        { OP_IS_NEW, 1 },
	{ OP_CLOCK, 50 },
};

/* Out of so many steps one is of this kind. */
static const struct {
	enum kind kind;
	unsigned every;
} rare[] = {
	{ OP_BOOT, 600 },   { OP_REOPEN, 1000 },   { OP_MARK_CLEAN, 500 },
	{ OP_MOVE, 1500 },  { OP_FOLLOW, 2000 },   { OP_PROMOTE, 3000 },
	{ OP_FORGE, 1500 }, { OP_CONFIGURE, 800 }, { OP_CHECK, 1500 },
};

static enum kind some_kind(struct generator *g)
{
	unsigned sum = 0;
	uint64_t at;
	size_t i = 0;

	for (i = 0; i < ARRAY_LEN(rare); i++)
		if (below(g, rare[i].every) == 0)
			return rare[i].kind;
	for (i = 0; i < ARRAY_LEN(weights); i++)
		sum += weights[i].weight;
	at = below(g, sum);
	for (i = 0; at >= weights[i].weight; i++)
		at -= weights[i].weight;
	return weights[i].kind;
}

#define CRASH_EVERY 300
#define CRASH_STEPS_MAX 6

/* Any values at all, as far as words go. */
static void some_chaos(struct generator *g, struct op *op)
{
	for (unsigned a = 0; a < ARGS; a++)
		if (kind_has(op->kind, a) && arg_words(a))
			op->arg[a] = below(g, arg_words(a));
}

static void first_of_all(struct generator *g, struct op *op)
{
	op->kind = OP_CONFIGURE;
	op->arg[A_REPLICATED] = g->is_replicated;
	op->arg[A_CONFIRMS] = 3;
	op->arg[A_KEEP] = ONE_OF(g, 0, 0, 0, 1, 7, 100);
}

void generate(struct generator *g, struct world *w, size_t number,
	      struct op *ret)
{
	static void (*const families[FAMILIES])(struct generator *,
						struct world *, struct op *) = {
		[FAMILY_IMPORTS] = some_import_op,
		[FAMILY_REVISIONS] = some_revision_op,
		[FAMILY_LEASES] = some_lease_op,
		[FAMILY_OPERATIONS] = some_operation_op,
		[FAMILY_CLAIMS] = some_claim_op,
		[FAMILY_QUESTIONS] = some_question,
		[FAMILY_WHOLE] = some_whole_op,
	};

	memset(ret, 0, sizeof(*ret));
	if (number == 0) {
		first_of_all(g, ret);
		return;
	}
	ret->kind = some_kind(g);
	ret->arg[A_WHO] = below(g, ACTORS);
	ret->arg[A_LINEAGE] =
		g->lineages[below(g, 2) ? 0 : below(g, g->lineage_count)];
	ret->kind = kind_for(g, w, ret);
	if (lineage_is_live(&w->model.s.lineages[ret->arg[A_LINEAGE]]) &&
	    kind_family(ret->kind) == FAMILY_IMPORTS && chance(g, 40))
		drive_claim(g, w, ret);
	else
		families[kind_family(ret->kind)](g, w, ret);
	if (kind_family(ret->kind) == FAMILY_WHOLE)
		return;
	if (chance(g, 3))
		some_chaos(g, ret);
	else if (chance(g, 3))
		ret->arg[A_FLAW] = below(g, FLAWS);
	if (kind_has(ret->kind, A_CRASH) && below(g, CRASH_EVERY) == 0)
		ret->arg[A_CRASH] = 1 + below(g, CRASH_STEPS_MAX);
}
