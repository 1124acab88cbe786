/* SPDX-License-Identifier: Apache-2.0 */
/* The model of lineages and the claims on them. */
#include <errno.h>

#include "model.h"

/* ---- Beginning ---- */

static bool import_is_bad(const struct import *i)
{
	return policy_is_bad(i) || i->payload_count == 0 ||
	       i->logical_bytes == 0 || i->affinity_count == 0;
}

static bool upsert_is_bad(const struct call *c)
{
	return identity_is_bad(c) || c->base == 0 ||
	       c->upsert_mode > WEIGHT_DELETE_FIRST ||
	       c->request == REQUEST_EMPTY || c->fence == 0 ||
	       (c->described && import_is_bad(&c->import));
}

/* The claim as it begins. */
static struct lineage claim_of(const struct call *c)
{
	struct lineage l = {
		.there = true,
		.claimed = true,
		.request = c->request,
		.base = c->base,
		.target = c->generation,
		.upsert_mode = c->upsert_mode,
		.phase = c->upsert_mode == WEIGHT_DELETE_FIRST ?
				 WEIGHT_DELETING_BASE :
				 WEIGHT_PREPARING_TARGET,
		.expected = c->fence,
		.described = c->described,
	};

	if (!c->described)
		return l;
	l.payload_count = c->import.payload_count;
	l.logical_bytes = c->import.logical_bytes;
	l.preferred = c->import.preferred;
	l.policy_ratio = c->import.policy_ratio;
	l.mode = c->import.mode;
	l.affinity_count = c->import.affinity_count;
	l.affinity_tag = c->import.affinity_tag;
	return l;
}

static bool is_same_claim(const struct lineage *a, const struct lineage *b)
{
	return a->claimed && b->claimed && a->request == b->request &&
	       a->base == b->base && a->target == b->target &&
	       a->upsert_mode == b->upsert_mode && a->expected == b->expected &&
	       a->described == b->described &&
	       a->payload_count == b->payload_count &&
	       a->logical_bytes == b->logical_bytes &&
	       a->preferred == b->preferred &&
	       a->policy_ratio == b->policy_ratio && a->mode == b->mode &&
	       a->affinity_count == b->affinity_count &&
	       a->affinity_tag == b->affinity_tag;
}

static int may_claim(struct model *m, const struct call *c,
		     const struct lineage *there)
{
	uint64_t watermark = there->there ? there->watermark : c->base;
	struct revision *base;

	if (lineage_is_live(there))
		return -EBUSY;
	if (c->base != watermark || c->generation <= watermark)
		return -ECANCELED;
	base = state_revision(&m->s, c->lineage, c->base);
	if (!base)
		return -ENOENT;
	if (base->metadata_generation != c->fence)
		return -ECANCELED;
	if (base->availability != WEIGHT_READY)
		return -EINPROGRESS;
	if (c->upsert_mode == WEIGHT_DELETE_FIRST &&
	    (base->operation_id ||
	     leases_of(&m->s, base, HOLDER_NONE, c->now_ms)))
		return -EBUSY;
	/* Staged or described: one of both. */
	if (state_revision(&m->s, c->lineage, c->generation) ||
	    (state_staging(&m->s, c->lineage, c->generation) != NULL) ==
		    c->described)
		return -EEXIST;
	return 0;
}

/* Writes a lineage with the next generation. */
static int lineage_put(struct model *m, const struct call *c,
		       struct lineage *there, struct lineage *next,
		       struct outcome *ret)
{
	int r = 0;

	next->metadata_generation = 1;
	if (there->there)
		r = advance(there->metadata_generation,
			    &next->metadata_generation);
	if (r < 0)
		return r;
	r = model_may_log(m, true);
	if (r < 0)
		return r;
	next->updated_at_ms = later(there->updated_at_ms, c->now_ms);
	*there = *next;
	model_logged(m, 1);
	ret->lineage = *there;
	return 0;
}

static int upsert(struct model *m, const struct call *c, struct outcome *ret)
{
	struct lineage *there = &m->s.lineages[c->lineage];
	struct lineage next = claim_of(c);
	int r;

	if (upsert_is_bad(c))
		return -EINVAL;
	if (c->generation <= c->base)
		return -ECANCELED;
	if (c->described && c->import.preferred == WEIGHT_MIXED &&
	    c->import.affinity_count < 2)
		return -EPERM;
	ret->has_lineage = true;
	ret->lineage = *there;
	if (is_same_claim(there, &next)) {
		if (there->error == ERROR_NONE)
			return 0;
		next = *there;
		next.error = ERROR_NONE;
		return lineage_put(m, c, there, &next, ret);
	}
	r = may_claim(m, c, there);
	if (r < 0)
		return r;
	next.watermark = there->there ? there->watermark : c->base;
	next.created_at_ms = later(there->updated_at_ms, c->now_ms);
	return lineage_put(m, c, there, &next, ret);
}

/* ---- Going on and ending ---- */

/* The claim that a call names. */
static int named(const struct call *c, const struct lineage *l)
{
	if (!l->there || !l->claimed)
		return -ENOENT;
	if (c->request != l->request || c->base != l->base ||
	    c->generation != l->target)
		return -EEXIST;
	return 0;
}

static bool target_is_ready(struct model *m, const struct call *c)
{
	struct revision *target =
		state_revision(&m->s, c->lineage, c->generation);

	return target && target->availability == WEIGHT_READY &&
	       (target->durable || !c->wants_durable);
}

static int commit(struct model *m, const struct call *c, struct outcome *ret)
{
	struct lineage *there = &m->s.lineages[c->lineage], next = *there;
	int r;

	if (c->flaw != FLAW_NONE)
		return -EINVAL;
	r = named(c, there);
	if (r < 0)
		return r;
	if (there->phase == WEIGHT_ABORTED)
		return -EEXIST;
	ret->has_lineage = true;
	ret->lineage = *there;
	if (there->phase == WEIGHT_RETIRING_BASE ||
	    there->phase == WEIGHT_COMPLETED)
		return 0;
	if (there->phase == WEIGHT_DELETING_BASE || !target_is_ready(m, c))
		return -EINPROGRESS;
	next.phase = there->phase == WEIGHT_PREPARING_TARGET ?
			     WEIGHT_RETIRING_BASE :
			     WEIGHT_COMPLETED;
	next.watermark = there->target;
	next.error = ERROR_NONE;
	return lineage_put(m, c, there, &next, ret);
}

static int abort_claim(struct model *m, const struct call *c,
		       struct outcome *ret)
{
	struct lineage *there = &m->s.lineages[c->lineage], next = *there;
	struct revision *target;
	int r;

	if (c->flaw != FLAW_NONE)
		return -EINVAL;
	r = named(c, there);
	if (r < 0)
		return r;
	ret->has_lineage = true;
	ret->lineage = *there;
	if (there->phase == WEIGHT_ABORTED)
		return 0;
	target = state_revision(&m->s, c->lineage, c->generation);
	if (there->phase == WEIGHT_COMPLETED ||
	    there->phase == WEIGHT_RETIRING_BASE ||
	    (target && (target->availability == WEIGHT_READY ||
			target->availability == WEIGHT_DEGRADED)))
		return -EEXIST;
	if (there->phase == WEIGHT_TARGET_IMPORTING) {
		if (there->error == ERROR_INTERRUPTED)
			return 0;
		next.error = ERROR_INTERRUPTED;
	} else {
		next.phase = WEIGHT_ABORTED;
	}
	return lineage_put(m, c, there, &next, ret);
}

static int claim_advance(struct model *m, const struct call *c,
			 struct outcome *ret)
{
	struct lineage *there = &m->s.lineages[c->lineage], next = *there;
	struct revision *base;

	if (c->flaw != FLAW_NONE)
		return -EINVAL;
	if (!there->there || !there->claimed)
		return -ENOENT;
	ret->has_lineage = true;
	ret->lineage = *there;
	if (there->phase != WEIGHT_RETIRING_BASE &&
	    there->phase != WEIGHT_DELETING_BASE)
		return 0;
	base = state_revision(&m->s, c->lineage, there->base);
	if (base && base->availability != WEIGHT_DELETED)
		return -EBUSY;
	next.phase = there->phase == WEIGHT_RETIRING_BASE ?
			     WEIGHT_COMPLETED :
			     WEIGHT_TARGET_IMPORTING;
	return lineage_put(m, c, there, &next, ret);
}

void model_claim(struct model *m, const struct call *c, struct outcome *ret)
{
	switch (c->kind) {
	case OP_UPSERT:
		ret->err = upsert(m, c, ret);
		break;
	case OP_COMMIT:
		ret->err = commit(m, c, ret);
		break;
	case OP_ABORT:
		ret->err = abort_claim(m, c, ret);
		break;
	default:
		ret->err = claim_advance(m, c, ret);
	}
}
