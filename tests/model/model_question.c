/* SPDX-License-Identifier: Apache-2.0 */
/* The model of questions: what changes nothing. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model.h"

#define LIST_LIMIT_MAX 1000
#define LIST_LIMIT_DEFAULT 100
#define PARTS 4

/* ---- Single records ---- */

static int get(struct model *m, const struct call *c, struct outcome *ret)
{
	const struct revision *there;

	if (identity_is_bad(c))
		return -EINVAL;
	there = state_revision(&m->s, c->lineage, c->generation);
	if (!there)
		return -ENOENT;
	ret->has_revision = true;
	ret->revision = *there;
	return 0;
}

static int revision_next(struct model *m, const struct call *c,
			 struct outcome *ret)
{
	size_t at = state_revision_at(&m->s, c->lineage, c->generation);

	if (c->flaw != FLAW_NONE)
		return -EINVAL;
	if (at == m->s.revision_count ||
	    m->s.revisions[at].lineage != c->lineage)
		return -ENOENT;
	ret->has_revision = true;
	ret->revision = m->s.revisions[at];
	return 0;
}

static int staged_get(struct model *m, const struct call *c,
		      struct outcome *ret)
{
	const struct staging *there;

	if (identity_is_bad(c))
		return -EINVAL;
	there = state_staging(&m->s, c->lineage, c->generation);
	if (!there)
		return -ENOENT;
	ret->has_staging = true;
	ret->staging = *there;
	return 0;
}

static int staged_next(struct model *m, const struct call *c,
		       struct outcome *ret)
{
	size_t at = state_staging_at(&m->s, c->lineage, c->generation);

	if (c->flaw != FLAW_NONE)
		return -EINVAL;
	if (at == m->s.staging_count || m->s.stagings[at].lineage != c->lineage)
		return -ENOENT;
	ret->has_staging = true;
	ret->staging = m->s.stagings[at];
	return 0;
}

static int in_use(struct model *m, const struct call *c, struct outcome *ret)
{
	if (c->flaw != FLAW_NONE)
		return -EINVAL;
	for (size_t i = 0; i < m->s.staging_count; i++)
		if (m->s.stagings[i].lineage == c->lineage)
			ret->numbers[0] = true;
	for (size_t i = 0; i < m->s.revision_count; i++)
		if (m->s.revisions[i].lineage == c->lineage &&
		    m->s.revisions[i].availability != WEIGHT_DELETING &&
		    m->s.revisions[i].availability != WEIGHT_DELETED)
			ret->numbers[0] = true;
	return 0;
}

static int summary(struct model *m, const struct call *c, struct outcome *ret)
{
	const struct revision *there;

	if (identity_is_bad(c))
		return -EINVAL;
	there = state_revision(&m->s, c->lineage, c->generation);
	if (!there)
		return -ENOENT;
	for (size_t i = 0; i < m->s.lease_count; i++) {
		const struct lease *l = &m->s.leases[i];

		if (!lease_is_active(l, there, c->now_ms))
			continue;
		if (ret->numbers[0] == 0 || l->expires_at_ms < ret->numbers[1])
			ret->numbers[1] = l->expires_at_ms;
		ret->numbers[0]++;
	}
	return 0;
}

static int operation_get(struct model *m, const struct call *c,
			 struct outcome *ret)
{
	const struct operation *op = state_operation(&m->s, c->operation);

	if (c->operation == 0)
		return -EINVAL;
	if (!op || lineage_tenant(op->lineage) != c->tenant)
		return -ENOENT;
	ret->has_operation = true;
	ret->operation = *op;
	return 0;
}

/* ---- Claims ---- */

static uint64_t step_of_base(struct model *m, const struct call *c,
			     const struct lineage *l)
{
	struct revision *base = state_revision(&m->s, c->lineage, l->base);

	if (!base || base->availability == WEIGHT_DELETED)
		return WEIGHT_CLAIM_ADVANCE;
	if (leases_of(&m->s, base, c->ignore, c->now_ms))
		return WEIGHT_CLAIM_WAITS;
	if (base->operation_id &&
	    active_operation(&m->s, base)->kind != WEIGHT_MIGRATING)
		return WEIGHT_CLAIM_WAITS;
	return base->availability == WEIGHT_DELETING ? WEIGHT_CLAIM_WAITS :
						       WEIGHT_CLAIM_DELETE;
}

static uint64_t step_of_target(struct model *m, const struct call *c,
			       const struct lineage *l)
{
	struct revision *target = state_revision(&m->s, c->lineage, l->target);
	bool interrupted = l->error == ERROR_INTERRUPTED;

	if (target && target->availability == WEIGHT_READY)
		return target->durable || !c->wants_durable ?
			       WEIGHT_CLAIM_COMMIT :
			       WEIGHT_CLAIM_WAITS;
	if (target && target->availability == WEIGHT_DELETING)
		return WEIGHT_CLAIM_CLEAN;
	if (target && target->availability != WEIGHT_DELETED)
		return WEIGHT_CLAIM_WAITS;
	if (state_staging(&m->s, c->lineage, l->target) || interrupted)
		return WEIGHT_CLAIM_WAITS;
	return !target && l->described ? WEIGHT_CLAIM_PREPARE :
					 WEIGHT_CLAIM_ABORT;
}

static int claim_step(struct model *m, const struct call *c,
		      struct outcome *ret)
{
	const struct lineage *l = &m->s.lineages[c->lineage];

	if (c->flaw != FLAW_NONE)
		return -EINVAL;
	if (!l->there)
		return -ENOENT;
	ret->has_lineage = true;
	ret->lineage = *l;
	if (!lineage_is_live(l))
		ret->numbers[0] = WEIGHT_CLAIM_DONE;
	else if (l->phase == WEIGHT_RETIRING_BASE ||
		 l->phase == WEIGHT_DELETING_BASE)
		ret->numbers[0] = step_of_base(m, c, l);
	else
		ret->numbers[0] = step_of_target(m, c, l);
	return 0;
}

/* ---- Lists ---- */

struct position {
	char revision[WEIGHT_COMPONENT_MAX + 1];
	uint64_t generation;
};

/* Takes a token apart: what is behind the last separator is decimal. */
static bool token_parse(const char *token, struct position *ret)
{
	const char *separator = strrchr(token, '\x1f');
	size_t len;
	int end = 0;

	if (!separator || separator[1] < '1' || separator[1] > '9' ||
	    sscanf(separator + 1, "%" SCNu64 "%n", &ret->generation, &end) !=
		    1 ||
	    separator[1 + end] != '\0')
		return false;
	len = (size_t)(separator - token);
	if (len > WEIGHT_COMPONENT_MAX)
		return false;
	memcpy(ret->revision, token, len);
	ret->revision[len] = '\0';
	return weight_component_ok(ret->revision);
}

static bool is_behind(const struct revision *r, const struct position *p)
{
	int order = strcmp(lineage_names[r->lineage].revision, p->revision);

	return order > 0 || (order == 0 && r->generation > p->generation);
}

static bool is_of_resource(const struct revision *r, uint64_t lineage)
{
	const struct weight_lineage *a = &lineage_names[r->lineage];
	const struct weight_lineage *b = &lineage_names[lineage];

	return strcmp(a->tenant, b->tenant) == 0 &&
	       strcmp(a->name_space, b->name_space) == 0 &&
	       strcmp(a->resource, b->resource) == 0;
}

/* The first one of the resource behind a position, or NULL. */
static const struct revision *first_behind(const struct model *m,
					   uint64_t lineage,
					   const struct position *p)
{
	const struct revision *first = NULL;

	for (size_t i = 0; i < m->s.revision_count; i++) {
		const struct revision *r = &m->s.revisions[i];
		struct position at = { .generation = r->generation };

		if (!is_of_resource(r, lineage) || !is_behind(r, p))
			continue;
		(void)strcpy(at.revision, lineage_names[r->lineage].revision);
		if (!first || is_behind(first, &at))
			first = r;
	}
	return first;
}

static int list(struct model *m, const struct call *c, struct outcome *ret)
{
	struct position p = { .generation = 0 };
	uint64_t limit = c->limit ? c->limit : LIST_LIMIT_DEFAULT;
	const struct revision *r;

	/* Its revision isn't asked for. */
	if ((c->flaw != FLAW_NONE && c->flaw != FLAW_EMPTY &&
	     c->flaw != FLAW_UTF8) ||
	    limit > LIST_LIMIT_MAX || (*c->token && !token_parse(c->token, &p)))
		return -EINVAL;
	while (ret->count < limit && (r = first_behind(m, c->lineage, &p))) {
		ret->items[ret->count++] = *r;
		(void)strcpy(p.revision, lineage_names[r->lineage].revision);
		p.generation = r->generation;
	}
	if (first_behind(m, c->lineage, &p))
		(void)snprintf(ret->text, sizeof(ret->text), "%s\x1f%" PRIu64,
			       p.revision, p.generation);
	return 0;
}

static int generations(struct model *m, const struct call *c,
		       struct outcome *ret)
{
	size_t at = state_revision_at(&m->s, c->lineage, c->generation);

	if (c->flaw != FLAW_NONE)
		return -EINVAL;
	for (; at < m->s.revision_count && ret->count < c->limit; at++) {
		const struct revision *r = &m->s.revisions[at];

		if (r->lineage != c->lineage)
			break;
		ret->items[ret->count++] = (struct revision){
			.lineage = c->lineage,
			.generation = r->generation,
			.availability = r->availability,
		};
	}
	return 0;
}

static const char *part_of(uint64_t lineage, uint64_t depth)
{
	const struct weight_lineage *l = &lineage_names[lineage];
	const char *const parts[PARTS] = { l->tenant, l->name_space,
					   l->resource, l->revision };

	return parts[depth];
}

/* Whether a lineage is among the claims, or the tombstones. */
static bool is_named(const struct model *m, uint64_t names, uint64_t lineage)
{
	if (lineage_is_long(lineage))
		return false;
	if (names == WMS_NAMES_CLAIMS)
		return m->s.lineages[lineage].claimed;
	for (size_t i = 0; i < m->s.revision_count; i++)
		if (m->s.revisions[i].lineage == lineage &&
		    m->s.revisions[i].availability == WEIGHT_DELETED)
			return true;
	return false;
}

/* All names of a level, each with a '|' behind it. */
static int names(struct model *m, const struct call *c, struct outcome *ret)
{
	const char *last = "";

	if (c->depth >= PARTS)
		return -EINVAL;
	for (;;) {
		const char *next = NULL;

		for (uint64_t l = 0; l < LINEAGES; l++) {
			const char *name = part_of(l, c->depth);
			bool below = is_named(m, c->names, l);

			for (uint64_t d = 0; d < c->depth; d++)
				below = below &&
					strcmp(part_of(l, d),
					       part_of(c->lineage, d)) == 0;
			if (below && strcmp(name, last) > 0 &&
			    (!next || strcmp(name, next) < 0))
				next = name;
		}
		if (!next)
			return 0;
		(void)strcat(ret->text, next);
		(void)strcat(ret->text, "|");
		last = next;
	}
}

static int is_new(struct model *m, struct outcome *ret)
{
	ret->numbers[0] = m->is_new;
	return 0;
}

void model_question(struct model *m, const struct call *c, struct outcome *ret)
{
	switch (c->kind) {
	case OP_GET:
		ret->err = get(m, c, ret);
		break;
	case OP_REVISION_NEXT:
		ret->err = revision_next(m, c, ret);
		break;
	case OP_STAGED_GET:
		ret->err = staged_get(m, c, ret);
		break;
	case OP_STAGED_NEXT:
		ret->err = staged_next(m, c, ret);
		break;
	case OP_IN_USE:
		ret->err = in_use(m, c, ret);
		break;
	case OP_SUMMARY:
		ret->err = summary(m, c, ret);
		break;
	case OP_OPERATION_GET:
		ret->err = operation_get(m, c, ret);
		break;
	case OP_CLAIM_STEP:
		ret->err = claim_step(m, c, ret);
		break;
	case OP_LIST:
		ret->err = list(m, c, ret);
		break;
	case OP_GENERATIONS:
		ret->err = generations(m, c, ret);
		break;
	case OP_NAMES:
		ret->err = names(m, c, ret);
		break;
	default:
		ret->err = is_new(m, ret);
	}
}
