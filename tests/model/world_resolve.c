/* SPDX-License-Identifier: Apache-2.0 */
/* The values of arguments that depend on what is there, or was seen. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/weight_management.h"
#include "world.h"

/* Of an import that nobody has described, and where nothing is known. */
#define COUNT 2
#define BYTES 100
#define UNITS 2
#define UNITS_TAG 3

static struct state *state_of(const struct world *w)
{
	return (struct state *)&w->model.s;
}

static uint64_t fence_of(const struct world *w, const struct op *op,
			 uint64_t generation)
{
	const struct revision *there =
		state_revision(state_of(w), op->arg[A_LINEAGE], generation);
	const struct actor *a = &w->actors[op->arg[A_WHO]];
	uint64_t current = there ? there->metadata_generation : 1;

	switch (op->arg[A_FENCE]) {
	case FENCE_CURRENT:
		return current;
	case FENCE_LAST:
		return current - 1;
	case FENCE_NEXT:
		return current + 1;
	case FENCE_SEEN:
		return generation > GENERATIONS_MAX ?
			       0 :
			       a->generations[op->arg[A_LINEAGE]][generation];
	case FENCE_1:
		return 1;
	default:
		return 0;
	}
}

static double ratio_of(uint64_t word, uint64_t residency, bool of_target)
{
	switch (word) {
	case RATIO_ONE:
		return 1;
	case RATIO_ZERO:
		return 0;
	case RATIO_HALF:
		return 0.5;
	case RATIO_QUARTER:
		return 0.25;
	case RATIO_NAN:
		return (double)NAN;
	case RATIO_ABOVE:
		return 1.5;
	default:
		if (residency == WEIGHT_MIXED)
			return 0.5;
		return residency == WEIGHT_HOT && !of_target ? 1 : 0;
	}
}

/* ---- Imports ---- */

static void policy_into(const struct weight_policy *p, struct import *ret)
{
	ret->preferred = p->preferred;
	ret->policy_ratio = p->mixed_hot_ratio;
	ret->mode = p->mode;
}

static void import_like_record(const struct world *w, const struct call *c,
			       struct import *ret)
{
	const struct staging *g =
		state_staging(state_of(w), c->lineage, c->generation);
	const struct revision *r =
		state_revision(state_of(w), c->lineage, c->generation);

	if (g && g->has_policy) {
		ret->preferred = g->preferred;
		ret->policy_ratio = g->policy_ratio;
		ret->mode = g->mode;
	}
	if (!r)
		return;
	*ret = (struct import){
		.payload_count = r->payload_count,
		.logical_bytes = r->logical_bytes,
		.preferred = r->preferred,
		.policy_ratio = r->policy_ratio,
		.mode = r->mode,
		.affinity_count = r->affinity_count,
		.affinity_tag = r->affinity_tag,
	};
}

static void import_like_claim(const struct lineage *l, struct import *ret)
{
	if (!l->described)
		return;
	*ret = (struct import){
		.payload_count = l->payload_count,
		.logical_bytes = l->logical_bytes,
		.preferred = l->preferred,
		.policy_ratio = l->policy_ratio,
		.mode = l->mode,
		.affinity_count = l->affinity_count,
		.affinity_tag = l->affinity_tag,
	};
}

static void resolve_import(const struct world *w, const struct op *op,
			   struct call *c)
{
	struct import *i = &c->import;

	policy_into(&policies[op->arg[A_POLICY]], i);
	i->payload_count = op->arg[A_COUNT];
	i->logical_bytes = op->arg[A_BYTES];
	i->affinity_count = op->arg[A_UNITS];
	i->affinity_tag = op->arg[A_UNITS] ? UNITS_TAG : TAG_NOTHING;
	/* Of a staged import: the store's own policy. */
	c->has_policy = op->arg[A_LIKE] != LIKE_RECORD;
	if (op->arg[A_LIKE] == LIKE_RECORD)
		import_like_record(w, c, i);
	if (op->arg[A_LIKE] == LIKE_CLAIM)
		import_like_claim(&w->model.s.lineages[c->lineage], i);
}

/* A commit says what the import said that began. */
static void resolve_commit(const struct world *w, struct call *c)
{
	const struct revision *r =
		state_revision(state_of(w), c->lineage, c->generation);

	c->import.payload_count = r ? r->payload_count : COUNT;
	c->import.logical_bytes = r ? r->logical_bytes : BYTES;
	if (c->ref == REF_COUNT)
		c->import.payload_count++;
	if (c->ref == REF_BYTES)
		c->import.logical_bytes++;
}

/* ---- Leases and operations ---- */

static void resolve_lease(const struct world *w, const struct op *op,
			  struct call *c)
{
	const struct actor *a = &w->actors[op->arg[A_WHO]];
	const struct lease *l;

	switch (op->arg[A_LEASE]) {
	case PICK_LAST:
		c->lease = a->leases[0];
		break;
	case PICK_OLDER:
		c->lease = a->leases[1];
		break;
	case PICK_NEWEST:
		c->lease = w->model.next_lease_id - 1;
		break;
	case PICK_ACTIVE:
		if (w->model.s.lease_count)
			c->lease = w->model.s.leases[0].id;
		break;
	case PICK_NEXT:
		c->lease = w->model.next_lease_id;
		break;
	default:
		c->lease = 0;
	}
	l = state_lease(state_of(w), c->lease);
	c->tenant = l ? lineage_tenant(l->lineage) : 0;
	if (op->arg[A_TENANT] == TENANT_OTHER)
		c->tenant = (c->tenant + 1) % TENANTS;
}

static void resolve_operation(const struct world *w, const struct op *op,
			      struct call *c)
{
	const struct actor *a = &w->actors[op->arg[A_WHO]];
	const struct revision *r =
		state_revision(state_of(w), c->lineage, c->generation);
	const struct operation *o;

	switch (op->arg[A_OPERATION]) {
	case PICK_LAST:
		c->operation = a->operations[0];
		break;
	case PICK_OLDER:
		c->operation = a->operations[1];
		break;
	case PICK_NEWEST:
		c->operation = w->model.next_operation_id - 1;
		break;
	case PICK_ACTIVE:
		c->operation = r ? r->operation_id : 0;
		break;
	case PICK_NEXT:
		c->operation = w->model.next_operation_id;
		break;
	default:
		c->operation = 0;
	}
	o = state_operation(state_of(w), c->operation);
	c->tenant = lineage_tenant(o ? o->lineage : c->lineage);
	if (op->arg[A_TENANT] == TENANT_OTHER)
		c->tenant = (c->tenant + 1) % TENANTS;
}

/* Counts are how many more than before. */
static void resolve_progress(const struct world *w, const struct op *op,
			     struct call *c)
{
	const struct operation *o = state_operation(state_of(w), c->operation);

	c->total_units = o ? o->total_units : UNITS;
	c->total_bytes = o ? o->total_bytes : BYTES;
	c->processed_units = (o ? o->processed_units : 0) + op->arg[A_UNITS];
	c->processed_bytes = (o ? o->processed_bytes : 0) + op->arg[A_BYTES];
	switch (op->arg[A_TOTALS]) {
	case TOTALS_MORE:
		c->total_units++;
		break;
	case TOTALS_NONE:
		c->total_units = 0;
		c->processed_units = 0;
		break;
	case TOTALS_EXCEEDED:
		c->processed_bytes = c->total_bytes + 1;
		break;
	default:
		break;
	}
}

/* ---- Claims ---- */

static void resolve_claim_name(const struct world *w, const struct op *op,
			       struct call *c)
{
	const struct lineage *l = &w->model.s.lineages[c->lineage];
	const struct actor *a = &w->actors[op->arg[A_WHO]];

	c->request = l->request;
	c->base = l->base;
	c->generation = l->target;
	switch (op->arg[A_NAME]) {
	case NAME_REQUEST:
		c->request = (c->request + 1) % REQUESTS;
		break;
	case NAME_BASE:
		c->base++;
		break;
	case NAME_TARGET:
		c->generation++;
		break;
	case NAME_SEEN:
		c->request = a->claims[c->lineage].request;
		c->base = a->claims[c->lineage].base;
		c->generation = a->claims[c->lineage].target;
		break;
	default:
		break;
	}
}

static void resolve_upsert(const struct world *w, const struct op *op,
			   struct call *c)
{
	const struct lineage *l = &w->model.s.lineages[c->lineage];

	if (op->arg[A_LIKE] == LIKE_CLAIM && l->claimed) {
		c->request = l->request;
		c->base = l->base;
		c->generation = l->target;
		c->upsert_mode = l->upsert_mode;
		c->fence = l->expected;
		c->described = l->described;
	} else {
		c->request = op->arg[A_REQUEST];
		c->base = op->arg[A_BASE];
		c->upsert_mode = op->arg[A_MODE];
		c->fence = fence_of(w, op, c->base);
		c->described = op->arg[A_DESCRIBED];
	}
	if (!c->described)
		memset(&c->import, 0, sizeof(c->import));
}

/* ---- Lists ---- */

static void resolve_token(const struct world *w, const struct op *op,
			  struct call *c)
{
	const char *revision = lineage_names[c->lineage].revision;
	char *to = c->token;
	size_t size = sizeof(c->token);

	switch (op->arg[A_TOKEN]) {
	case TOKEN_LAST:
		(void)snprintf(to, size, "%s", w->actors[op->arg[A_WHO]].token);
		break;
	case TOKEN_ITEM:
		(void)snprintf(to, size, "%s\x1f%u", revision,
			       (unsigned)op->arg[A_GENERATION]);
		break;
	case TOKEN_NO_GENERATION:
		(void)snprintf(to, size, "%s\x1f", revision);
		break;
	case TOKEN_ZEROS:
		(void)snprintf(to, size,
			       "%s\x1f"
			       "01",
			       revision);
		break;
	case TOKEN_WORD:
		(void)snprintf(to, size, "%s", revision);
		break;
	case TOKEN_NO_REVISION:
		(void)snprintf(to, size,
			       "\x1f"
			       "1");
		break;
	default:
		*to = '\0';
	}
}

void world_resolve(const struct world *w, const struct op *op, struct call *ret)
{
	const uint64_t *arg = op->arg;
	struct call *c = ret;
	bool of_target = op->kind == OP_START;

	*c = (struct call){
		.kind = op->kind,
		.now_ms = w->now_ms,
		.lineage = arg[A_LINEAGE],
		.generation = arg[A_GENERATION],
		.flaw = arg[A_FLAW],
		.tag = arg[A_TAG],
		.ref = arg[A_REF],
		.availability = arg[A_AVAILABILITY],
		.residency = arg[A_RESIDENCY],
		.ratio = ratio_of(arg[A_RATIO],
				  arg[of_target ? A_TARGET : A_RESIDENCY],
				  of_target),
		.durable = arg[A_DURABLE],
		.converges = arg[A_CONVERGES],
		.stays = arg[A_STAYS],
		.beside = arg[A_BESIDE],
		.by_claim = arg[A_CLAIM],
		.holder = arg[A_HOLDER],
		.ttl_ms = arg[A_TTL],
		.degraded_too = arg[A_DEGRADED],
		.limit = arg[A_LIMIT],
		.ignore = arg[A_IGNORE],
		.operation_kind = arg[A_OPERATION_KIND],
		.target = arg[A_TARGET],
		.supersedes = arg[A_SUPERSEDES],
		.cursor = arg[A_CURSOR],
		.message = arg[A_MESSAGE],
		.wants_durable = arg[A_WANTS_DURABLE],
		.names = arg[A_NAMES] + WMS_NAMES_CLAIMS,
		.depth = arg[A_DEPTH],
	};
	c->fence = fence_of(w, op, c->generation);
	if (kind_has(op->kind, A_POLICY))
		resolve_import(w, op, c);
	if (op->kind == OP_IMPORT_COMMIT)
		resolve_commit(w, c);
	else if (c->ref == REF_COUNT || c->ref == REF_BYTES)
		c->ref = REF_GOOD; /* nothing was said before */
	if (kind_has(op->kind, A_LEASE))
		resolve_lease(w, op, c);
	if (kind_has(op->kind, A_OPERATION))
		resolve_operation(w, op, c);
	if (op->kind == OP_PROGRESS)
		resolve_progress(w, op, c);
	if (kind_has(op->kind, A_NAME))
		resolve_claim_name(w, op, c);
	if (op->kind == OP_UPSERT)
		resolve_upsert(w, op, c);
	if (op->kind == OP_LIST)
		resolve_token(w, op, c);
	if (c->flaw == FLAW_GENERATION) {
		c->generation = 0;
		c->flaw = FLAW_NONE;
	}
}

/* ---- What is seen ---- */

static void keep(uint64_t kept[KEPT], uint64_t id)
{
	if (kept[0] == id)
		return;
	memmove(&kept[1], &kept[0], (KEPT - 1) * sizeof(kept[0]));
	kept[0] = id;
}

void world_learn(struct world *w, const struct op *op, const struct call *c,
		 const struct outcome *o)
{
	struct actor *a = &w->actors[op->arg[A_WHO]];

	if (o->has_revision) {
		a->generations[o->revision.lineage][o->revision.generation] =
			o->revision.metadata_generation;
		if (o->revision.operation_id)
			keep(a->operations, o->revision.operation_id);
	}
	if (o->has_lease)
		keep(a->leases, o->lease.id);
	if (o->has_operation)
		keep(a->operations, o->operation.id);
	if (o->has_lineage) {
		a->claims[c->lineage].request = o->lineage.request;
		a->claims[c->lineage].base = o->lineage.base;
		a->claims[c->lineage].target = o->lineage.target;
	}
	if (op->kind == OP_LIST && o->err == 0)
		(void)strcpy(a->token, o->text);
}
