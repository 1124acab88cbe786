/* SPDX-License-Identifier: Apache-2.0 */
/* The model of imports: staged and published, or begun and committed. */
#include <errno.h>
#include <string.h>

#include "model.h"

/* ---- Staged imports ---- */

static int stage(struct model *m, const struct call *c)
{
	struct staging g = { .lineage = c->lineage,
			     .generation = c->generation,
			     .created_at_ms = c->now_ms,
			     .epoch = m->epoch };

	if (identity_is_bad(c))
		return -EINVAL;
	if (state_revision(&m->s, c->lineage, c->generation) ||
	    state_staging(&m->s, c->lineage, c->generation))
		return -EEXIST;
	state_put_staging(&m->s, &g);
	return 0;
}

static int staged_policy(struct model *m, const struct call *c)
{
	struct staging *g;

	if (identity_is_bad(c) || (c->has_policy && policy_is_bad(&c->import)))
		return -EINVAL;
	g = state_staging(&m->s, c->lineage, c->generation);
	if (!g)
		return -ENOENT;
	g->has_policy = c->has_policy;
	g->preferred = c->has_policy ? c->import.preferred : 0;
	g->policy_ratio = c->has_policy ? c->import.policy_ratio : 0;
	g->mode = c->has_policy ? c->import.mode : 0;
	return 0;
}

static int unstage(struct model *m, const struct call *c)
{
	struct staging *g;

	if (identity_is_bad(c))
		return -EINVAL;
	g = state_staging(&m->s, c->lineage, c->generation);
	if (!g)
		return -ENOENT;
	state_drop_staging(&m->s, g);
	return 0;
}

/* ---- Records ---- */

/* What an import says of a revision from its beginning on. */
static struct revision imported(const struct call *c)
{
	const struct import *i = &c->import;

	return (struct revision){
		.lineage = c->lineage,
		.generation = c->generation,
		.preferred = i->preferred,
		.policy_ratio = i->policy_ratio,
		.mode = i->mode,
		.payload_count = i->payload_count,
		.logical_bytes = i->logical_bytes,
		.affinity_count = i->affinity_count,
		.affinity_tag = i->affinity_tag,
		.manifest_tag = TAG_ZERO,
		.keys_tag = TAG_ZERO,
	};
}

static bool is_same_import(const struct revision *a, const struct revision *b)
{
	return a->preferred == b->preferred &&
	       a->policy_ratio == b->policy_ratio && a->mode == b->mode &&
	       a->payload_count == b->payload_count &&
	       a->logical_bytes == b->logical_bytes &&
	       a->affinity_count == b->affinity_count &&
	       a->affinity_tag == b->affinity_tag;
}

static bool is_unsatisfiable(const struct import *i)
{
	return i->preferred == WEIGHT_MIXED && i->affinity_count < 2;
}

/* Where the payload of a revision that is READY may be. */
static bool is_tier(uint64_t residency)
{
	return residency == WEIGHT_HOT || residency == WEIGHT_COLD ||
	       residency == WEIGHT_MIXED;
}

/* An operation to the preferred residency, unless it is there. */
static void converge(struct model *m, struct revision *r, uint64_t now_ms)
{
	struct operation op;

	if (r->residency == r->preferred)
		return;
	op = operation_begin(m, r, WEIGHT_MIGRATING, r->preferred,
			     r->preferred == WEIGHT_MIXED ? r->policy_ratio : 0,
			     now_ms);
	state_put_operation(&m->s, &op);
}

/* ---- Publishing ---- */

/* Checkpoints without tensors or bytes are real here, as the header says. */
static bool publication_is_bad(const struct call *c)
{
	const struct import *i = &c->import;

	return identity_is_bad(c) || policy_is_bad(i) || c->ref == REF_KEY ||
	       c->ref == REF_GROUP || c->ref == REF_PART ||
	       c->ref == REF_NONE ||
	       (i->payload_count == 0 && i->logical_bytes > 0) ||
	       !is_tier(c->residency) || !ratio_fits(c->residency, c->ratio);
}

static int may_publish(struct model *m, const struct call *c)
{
	const struct lineage *l = &m->s.lineages[c->lineage];
	const struct revision *there;
	int r;

	if (publication_is_bad(c))
		return -EINVAL;
	if (is_unsatisfiable(&c->import))
		return -EPERM;
	there = state_revision(&m->s, c->lineage, c->generation);
	/* What was removed is said to be stale, as the header says. */
	if (there)
		return there->availability == WEIGHT_DELETING ||
				       there->availability == WEIGHT_DELETED ?
			       -ECANCELED :
			       -EEXIST;
	r = beside_claim(l, c->generation, true, false);
	if (r < 0)
		return r;
	if (l->there && c->generation <= l->watermark)
		return -ECANCELED;
	if (!state_staging(&m->s, c->lineage, c->generation))
		return -ENOENT;
	return model_may_log(m, false);
}

static int publish(struct model *m, const struct call *c, struct outcome *ret)
{
	struct revision rev = imported(c);
	struct staging *staged;
	int r = may_publish(m, c);

	if (r < 0)
		return r;
	staged = state_staging(&m->s, c->lineage, c->generation);
	rev.availability = WEIGHT_READY;
	rev.residency = c->residency;
	rev.hot_ratio = c->ratio;
	rev.durable = c->durable;
	rev.complete = true;
	rev.manifest_tag = c->tag;
	rev.keys_tag = c->tag;
	/* Begin and commit in one. */
	rev.metadata_generation = 2;
	rev.created_at_ms = later(c->now_ms, staged->created_at_ms);
	rev.updated_at_ms = rev.created_at_ms;
	rev.accessed_at_ms = rev.created_at_ms;
	if (c->converges)
		converge(m, &rev, c->now_ms);
	state_drop_staging(&m->s, staged);
	state_put_revision(&m->s, &rev);
	model_logged(m, 1);
	ret->has_revision = true;
	ret->revision = rev;
	return 0;
}

/* ---- Imports that a writer announces ---- */

/* Whether a claim may bring its own target back from the dead. */
static bool may_restart(const struct lineage *l, const struct revision *there,
			bool by_claim)
{
	return by_claim && there->availability == WEIGHT_DELETED &&
	       lineage_is_live(l) && l->upsert_mode == WEIGHT_DELETE_FIRST &&
	       l->phase == WEIGHT_TARGET_IMPORTING &&
	       l->target == there->generation;
}

/* Who claims has said what the target will be. */
static bool is_claimed_import(const struct lineage *l,
			      const struct revision *asked)
{
	const struct revision claimed = {
		.preferred = l->preferred,
		.policy_ratio = l->policy_ratio,
		.mode = l->mode,
		.payload_count = l->payload_count,
		.logical_bytes = l->logical_bytes,
		.affinity_count = l->affinity_count,
		.affinity_tag = l->affinity_tag,
	};

	return is_same_import(&claimed, asked);
}

static bool begin_is_bad(const struct call *c)
{
	const struct import *i = &c->import;

	return identity_is_bad(c) || policy_is_bad(i) || c->ref == REF_GROUP ||
	       i->payload_count == 0 || i->logical_bytes == 0 ||
	       i->affinity_count == 0;
}

static int may_begin(struct model *m, const struct call *c, bool *ret_repeat)
{
	const struct lineage *l = &m->s.lineages[c->lineage];
	const struct revision asked = imported(c), *there;
	int r;

	*ret_repeat = false;
	if (begin_is_bad(c))
		return -EINVAL;
	if (is_unsatisfiable(&c->import))
		return -EPERM;
	there = state_revision(&m->s, c->lineage, c->generation);
	if (there && (there->availability == WEIGHT_IMPORTING ||
		      there->availability == WEIGHT_READY)) {
		*ret_repeat = is_same_import(there, &asked);
		return *ret_repeat ? 0 : -EEXIST;
	}
	if (there && !may_restart(l, there, c->by_claim))
		return -EEXIST;
	if (state_staging(&m->s, c->lineage, c->generation))
		return -EEXIST;
	r = beside_claim(l, c->generation, true, c->by_claim);
	if (r < 0)
		return r;
	if (lineage_is_live(l) && l->described && !c->by_claim)
		return -EBUSY;
	if (lineage_is_live(l) && l->described && !is_claimed_import(l, &asked))
		return -EEXIST;
	if (l->there && c->generation <= l->watermark)
		return -ECANCELED;
	return model_may_log(m, false);
}

static int import_begin(struct model *m, const struct call *c,
			struct outcome *ret)
{
	struct revision rev = imported(c), *there;
	bool repeat;
	int r = may_begin(m, c, &repeat);

	if (r < 0)
		return r;
	there = state_revision(&m->s, c->lineage, c->generation);
	ret->has_revision = true;
	if (repeat) {
		ret->revision = *there;
		return 0;
	}
	rev.availability = WEIGHT_IMPORTING;
	rev.metadata_generation = 1;
	rev.created_at_ms = c->now_ms;
	rev.updated_at_ms = c->now_ms;
	rev.accessed_at_ms = c->now_ms;
	if (there) {
		rev.metadata_generation = there->metadata_generation + 1;
		rev.created_at_ms = there->created_at_ms;
		rev.updated_at_ms = later(c->now_ms, there->updated_at_ms);
		rev.accessed_at_ms = later(c->now_ms, there->accessed_at_ms);
	}
	state_put_revision(&m->s, &rev);
	model_logged(m, 1);
	ret->revision = rev;
	return 0;
}

static bool commit_is_bad(const struct call *c)
{
	return identity_is_bad(c) || c->ref == REF_PART || c->ref == REF_NONE ||
	       c->import.payload_count == 0 || c->import.logical_bytes == 0 ||
	       !is_tier(c->residency) || !ratio_fits(c->residency, c->ratio);
}

static bool is_same_manifest(const struct revision *r, const struct call *c)
{
	return c->ref == REF_GOOD && r->manifest_tag == c->tag &&
	       r->payload_count == c->import.payload_count &&
	       r->logical_bytes == c->import.logical_bytes;
}

static int may_commit(struct model *m, const struct call *c, bool *ret_repeat)
{
	const struct revision *there;

	*ret_repeat = false;
	if (commit_is_bad(c))
		return -EINVAL;
	there = state_revision(&m->s, c->lineage, c->generation);
	if (!there)
		return -ENOENT;
	if (there->availability == WEIGHT_READY) {
		if (!is_same_manifest(there, c))
			return -EEXIST;
		*ret_repeat = true;
		return fence_is_retry(there->metadata_generation, c->fence) ?
			       0 :
			       -ECANCELED;
	}
	if (!fence_fits(there->metadata_generation, c->fence))
		return -ECANCELED;
	if (there->availability != WEIGHT_IMPORTING || c->ref != REF_GOOD ||
	    there->payload_count != c->import.payload_count ||
	    there->logical_bytes != c->import.logical_bytes)
		return -EEXIST;
	return model_may_log(m, false);
}

static int import_commit(struct model *m, const struct call *c,
			 struct outcome *ret)
{
	struct revision rev, *there;
	bool repeat;
	int r = may_commit(m, c, &repeat);

	if (r < 0)
		return r;
	there = state_revision(&m->s, c->lineage, c->generation);
	ret->has_revision = true;
	ret->revision = *there;
	if (repeat)
		return 0;
	rev = *there;
	r = advance(rev.metadata_generation, &rev.metadata_generation);
	if (r < 0)
		return r;
	rev.availability = WEIGHT_READY;
	rev.residency = c->residency;
	rev.hot_ratio = c->ratio;
	rev.durable = c->durable;
	rev.complete = true;
	rev.manifest_tag = c->tag;
	rev.keys_tag = c->tag;
	rev.updated_at_ms = later(rev.updated_at_ms, c->now_ms);
	/* PINNED and MANUAL, too: the first way is no migration of theirs. */
	if (!c->stays)
		converge(m, &rev, c->now_ms);
	*there = rev;
	model_logged(m, 1);
	ret->revision = rev;
	return 0;
}

static int import_abort(struct model *m, const struct call *c,
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
	if (rev.availability == WEIGHT_DELETING &&
	    fence_is_retry(rev.metadata_generation, c->fence))
		return 0;
	if (!fence_fits(rev.metadata_generation, c->fence))
		return -ECANCELED;
	if (rev.availability != WEIGHT_IMPORTING)
		return -EEXIST;
	r = advance(rev.metadata_generation, &rev.metadata_generation);
	if (r < 0)
		return r;
	r = model_may_log(m, false);
	if (r < 0)
		return r;
	rev.availability = WEIGHT_DELETING;
	rev.updated_at_ms = later(rev.updated_at_ms, c->now_ms);
	*there = rev;
	model_logged(m, 1);
	ret->revision = rev;
	return 0;
}

void model_import(struct model *m, const struct call *c, struct outcome *ret)
{
	switch (c->kind) {
	case OP_STAGE:
		ret->err = stage(m, c);
		break;
	case OP_STAGED_POLICY:
		ret->err = staged_policy(m, c);
		break;
	case OP_UNSTAGE:
		ret->err = unstage(m, c);
		break;
	case OP_PUBLISH:
		ret->err = publish(m, c, ret);
		break;
	case OP_IMPORT_BEGIN:
		ret->err = import_begin(m, c, ret);
		break;
	case OP_IMPORT_COMMIT:
		ret->err = import_commit(m, c, ret);
		break;
	default:
		ret->err = import_abort(m, c, ret);
	}
}
