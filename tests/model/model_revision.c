/* SPDX-License-Identifier: Apache-2.0 */
/* The model of what happens to a revision that is there. */
#include <errno.h>

#include "model.h"

static bool is_published(const struct revision *r)
{
	return r->availability == WEIGHT_READY ||
	       r->availability == WEIGHT_DEGRADED;
}

/* ---- Policies ---- */

static bool has_policy(const struct revision *r, const struct import *i)
{
	return r->preferred == i->preferred &&
	       r->policy_ratio == i->policy_ratio && r->mode == i->mode;
}

static int may_change_policy(struct model *m, const struct call *c,
			     bool *ret_repeat)
{
	const struct import *i = &c->import;
	const struct revision *there;

	*ret_repeat = false;
	if (identity_is_bad(c) || policy_is_bad(i))
		return -EINVAL;
	there = state_revision(&m->s, c->lineage, c->generation);
	if (!there)
		return -ENOENT;
	if (lineage_fences(&m->s.lineages[c->lineage], c->generation))
		return -EBUSY;
	if (has_policy(there, i)) {
		*ret_repeat = true;
		return fence_is_retry(there->metadata_generation, c->fence) ?
			       0 :
			       -ECANCELED;
	}
	if (there->operation_id)
		return -EBUSY;
	if (!fence_fits(there->metadata_generation, c->fence))
		return -ECANCELED;
	if (!is_published(there))
		return -EINPROGRESS;
	return 0;
}

/* Whether the new policy sends the revision elsewhere at once. */
static bool policy_moves(const struct revision *r)
{
	return r->availability == WEIGHT_READY && r->mode == WEIGHT_AUTO &&
	       r->residency != r->preferred;
}

static int policy(struct model *m, const struct call *c, struct outcome *ret)
{
	struct revision rev, *there;
	struct operation op;
	bool repeat;
	int r = may_change_policy(m, c, &repeat);

	if (r < 0)
		return r;
	there = state_revision(&m->s, c->lineage, c->generation);
	ret->has_revision = true;
	ret->revision = rev = *there;
	if (repeat)
		return 0;
	rev.preferred = c->import.preferred;
	rev.policy_ratio = c->import.policy_ratio;
	rev.mode = c->import.mode;
	if (policy_moves(&rev) && rev.preferred == WEIGHT_MIXED &&
	    rev.affinity_count < 2)
		return -EPERM;
	r = advance(rev.metadata_generation, &rev.metadata_generation);
	if (r < 0)
		return r;
	r = model_may_log(m, false);
	if (r < 0)
		return r;
	rev.updated_at_ms = later(rev.updated_at_ms, c->now_ms);
	if (policy_moves(&rev)) {
		op = operation_begin(
			m, &rev, WEIGHT_MIGRATING, rev.preferred,
			rev.preferred == WEIGHT_MIXED ? rev.policy_ratio : 0,
			c->now_ms);
		state_put_operation(&m->s, &op);
	}
	*there = rev;
	model_logged(m, 1);
	ret->revision = rev;
	return 0;
}

/* ---- Removal ---- */

int beside_claim(const struct lineage *l, uint64_t generation, bool is_import,
		 bool by_claim)
{
	/* A claim deletes what it retires, and nothing else. */
	if (!is_import && by_claim)
		return lineage_fences(l, generation) ? 0 : -ECANCELED;
	if (!lineage_is_live(l))
		return 0;
	/* Payload of the target comes in when its turn has come. */
	if (is_import)
		return generation == l->target &&
				       l->phase != WEIGHT_DELETING_BASE &&
				       l->error == ERROR_NONE ?
			       0 :
			       -EBUSY;
	return generation == l->base || generation == l->target ? -EBUSY : 0;
}

uint64_t leases_of(struct state *s, const struct revision *r, uint64_t ignore,
		   uint64_t now_ms)
{
	uint64_t n = 0;

	for (size_t i = 0; i < s->lease_count; i++)
		n += lease_is_active(&s->leases[i], r, now_ms) &&
		     s->leases[i].holder != ignore;
	return n;
}

static int may_delete(struct model *m, const struct call *c, bool *ret_repeat)
{
	struct revision *there;
	int r;

	*ret_repeat = false;
	if (identity_is_bad(c))
		return -EINVAL;
	there = state_revision(&m->s, c->lineage, c->generation);
	if (!there)
		return -ENOENT;
	r = beside_claim(&m->s.lineages[c->lineage], c->generation, false,
			 c->by_claim);
	if (r < 0)
		return r;
	if (there->availability == WEIGHT_DELETING ||
	    there->availability == WEIGHT_DELETED) {
		*ret_repeat = true;
		return fence_is_retry(there->metadata_generation, c->fence) ?
			       0 :
			       -ECANCELED;
	}
	if (!fence_fits(there->metadata_generation, c->fence))
		return -ECANCELED;
	if (leases_of(&m->s, there, c->ignore, c->now_ms))
		return -EBUSY;
	if (there->operation_id &&
	    active_operation(&m->s, there)->kind != WEIGHT_MIGRATING)
		return -EBUSY;
	if (!is_published(there))
		return -EINPROGRESS;
	return model_may_log(m, false);
}

/*
 * The leases that didn't count, and those that expired. That the revision is
 * DELETING tells those who follow the log that they are gone.
 */
static void drop_leases(struct state *s, const struct call *c)
{
	for (size_t i = s->lease_count; i-- > 0;)
		if (s->leases[i].lineage == c->lineage &&
		    s->leases[i].generation == c->generation)
			state_drop_lease(s, &s->leases[i]);
}

static int delete_begin(struct model *m, const struct call *c,
			struct outcome *ret)
{
	struct revision rev, *there;
	bool repeat;
	int r = may_delete(m, c, &repeat);

	if (r < 0)
		return r;
	there = state_revision(&m->s, c->lineage, c->generation);
	ret->has_revision = true;
	ret->revision = rev = *there;
	if (repeat)
		return 0;
	r = advance(rev.metadata_generation, &rev.metadata_generation);
	if (r < 0)
		return r;
	if (rev.operation_id)
		operation_end(active_operation(&m->s, there), MESSAGE_REMOVED,
			      c->now_ms);
	rev.availability = WEIGHT_DELETING;
	rev.operation_id = 0;
	rev.updated_at_ms = later(rev.updated_at_ms, c->now_ms);
	*there = rev;
	drop_leases(&m->s, c);
	model_logged(m, 1);
	ret->revision = rev;
	return 0;
}

static int delete_finish(struct model *m, const struct call *c,
			 struct outcome *ret)
{
	struct revision rev, *there;
	int r;

	if (identity_is_bad(c))
		return -EINVAL;
	there = state_revision(&m->s, c->lineage, c->generation);
	if (!there)
		return -ENOENT;
	ret->has_revision = true;
	ret->revision = rev = *there;
	if (rev.availability == WEIGHT_DELETED &&
	    fence_is_retry(rev.metadata_generation, c->fence))
		return 0;
	if (!fence_fits(rev.metadata_generation, c->fence))
		return -ECANCELED;
	if (rev.availability != WEIGHT_DELETING)
		return -EEXIST;
	r = advance(rev.metadata_generation, &rev.metadata_generation);
	if (r < 0)
		return r;
	r = model_may_log(m, false);
	if (r < 0)
		return r;
	rev.availability = WEIGHT_DELETED;
	rev.residency = WEIGHT_ABSENT;
	rev.hot_ratio = 0;
	rev.updated_at_ms = later(rev.updated_at_ms, c->now_ms);
	*there = rev;
	model_logged(m, 1);
	ret->revision = rev;
	return 0;
}

/* ---- What is seen of a payload ---- */

static bool can_be_seen(const struct call *c)
{
	if (c->availability != WEIGHT_READY &&
	    c->availability != WEIGHT_DEGRADED)
		return false;
	if (c->residency == WEIGHT_UNKNOWN)
		return false;
	if (c->residency == WEIGHT_ABSENT && c->availability == WEIGHT_READY)
		return false;
	return ratio_fits(c->residency, c->ratio);
}

static int may_observe(struct model *m, const struct call *c)
{
	const struct revision *there;

	if (identity_is_bad(c) || !can_be_seen(c))
		return -EINVAL;
	there = state_revision(&m->s, c->lineage, c->generation);
	if (!there)
		return -ENOENT;
	if (there->operation_id && !c->beside)
		return -EBUSY;
	return 0;
}

static int observe(struct model *m, const struct call *c, struct outcome *ret)
{
	struct revision rev, *there;
	bool moved;
	int r = may_observe(m, c);

	if (r < 0)
		return r;
	there = state_revision(&m->s, c->lineage, c->generation);
	ret->has_revision = true;
	ret->revision = rev = *there;
	moved = rev.availability != c->availability ||
		rev.residency != c->residency || rev.hot_ratio != c->ratio;
	if (!moved && rev.durable == c->durable &&
	    fence_is_retry(rev.metadata_generation, c->fence))
		return 0;
	if (!fence_fits(rev.metadata_generation, c->fence))
		return -ECANCELED;
	if (!is_published(&rev))
		return -EINPROGRESS;
	if (moved) {
		r = advance(rev.metadata_generation, &rev.metadata_generation);
		if (r < 0)
			return r;
		rev.updated_at_ms = later(rev.updated_at_ms, c->now_ms);
	}
	r = model_may_log(m, false);
	if (r < 0)
		return r;
	rev.availability = c->availability;
	rev.residency = c->residency;
	rev.hot_ratio = c->ratio;
	rev.durable = c->durable;
	*there = rev;
	if (moved && rev.operation_id)
		operation_follow(active_operation(&m->s, there), there,
				 c->now_ms);
	model_logged(m, 1);
	ret->revision = rev;
	return 0;
}

static int mark_durable(struct model *m, const struct call *c,
			struct outcome *ret)
{
	struct revision *there;
	int r;

	if (identity_is_bad(c))
		return -EINVAL;
	there = state_revision(&m->s, c->lineage, c->generation);
	if (!there)
		return -ENOENT;
	if (!is_published(there))
		return -EINPROGRESS;
	if (!there->durable) {
		r = model_may_log(m, false);
		if (r < 0)
			return r;
		there->durable = true;
		model_logged(m, 1);
	}
	ret->has_revision = true;
	ret->revision = *there;
	return 0;
}

void model_revision(struct model *m, const struct call *c, struct outcome *ret)
{
	switch (c->kind) {
	case OP_POLICY:
		ret->err = policy(m, c, ret);
		break;
	case OP_DELETE:
		ret->err = delete_begin(m, c, ret);
		break;
	case OP_DELETE_FINISH:
		ret->err = delete_finish(m, c, ret);
		break;
	case OP_OBSERVE:
		ret->err = observe(m, c, ret);
		break;
	default:
		ret->err = mark_durable(m, c, ret);
	}
}
