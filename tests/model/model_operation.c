/* SPDX-License-Identifier: Apache-2.0 */
/* The model of leases and residency operations. */
#include <errno.h>

#include "model.h"

/* ---- Leases ---- */

#define TTL_MS_MAX 86400000 /* 24 hours */

static uint64_t expiry(uint64_t now_ms, uint64_t ttl_ms)
{
	return now_ms > UINT64_MAX - ttl_ms ? UINT64_MAX : now_ms + ttl_ms;
}

static bool ttl_is_bad(uint64_t ttl_ms)
{
	return ttl_ms == 0 || ttl_ms > TTL_MS_MAX;
}

static bool holder_is_bad(uint64_t holder)
{
	return holder == HOLDER_NONE || holder >= HOLDER_CONTROL;
}

static int may_acquire(struct model *m, const struct call *c)
{
	const struct revision *there;

	if (identity_is_bad(c) || holder_is_bad(c->holder) ||
	    ttl_is_bad(c->ttl_ms))
		return -EINVAL;
	there = state_revision(&m->s, c->lineage, c->generation);
	if (!there)
		return -ENOENT;
	if (!fence_fits(there->metadata_generation, c->fence))
		return -ECANCELED;
	if (there->availability != WEIGHT_READY &&
	    !(c->degraded_too && there->availability == WEIGHT_DEGRADED))
		return -EINPROGRESS;
	if (lineage_fences(&m->s.lineages[c->lineage], c->generation))
		return -EBUSY;
	if (there->operation_id &&
	    active_operation(&m->s,
			     state_revision(&m->s, c->lineage, c->generation))
			    ->kind != WEIGHT_MIGRATING)
		return -EBUSY;
	return 0;
}

static int acquire(struct model *m, const struct call *c, struct outcome *ret)
{
	struct revision *there;
	struct lease l;
	int r = may_acquire(m, c);

	if (r < 0)
		return r;
	there = state_revision(&m->s, c->lineage, c->generation);
	ret->has_lease = true;
	for (size_t i = 0; i < m->s.lease_count; i++) {
		ret->lease = m->s.leases[i];
		if (ret->lease.holder == c->holder &&
		    lease_is_active(&ret->lease, there, c->now_ms))
			return 0;
	}
	if (m->next_lease_id == UINT64_MAX)
		return -EOVERFLOW;
	r = model_may_log(m, false);
	if (r < 0)
		return r;
	l = (struct lease){ .id = m->next_lease_id++,
			    .lineage = c->lineage,
			    .generation = c->generation,
			    .holder = c->holder,
			    .expires_at_ms = expiry(c->now_ms, c->ttl_ms),
			    .fence = there->metadata_generation };
	state_put_lease(&m->s, &l);
	there->accessed_at_ms = later(there->accessed_at_ms, c->now_ms);
	model_logged(m, 1);
	ret->lease = l;
	return 0;
}

/* A lease, when it is one of the tenant. */
static struct lease *lease_of_tenant(struct model *m, const struct call *c)
{
	struct lease *l = state_lease(&m->s, c->lease);

	return l && lineage_tenant(l->lineage) == c->tenant ? l : NULL;
}

static int renew(struct model *m, const struct call *c, struct outcome *ret)
{
	uint64_t expires_at_ms;
	struct lease *l;
	int r;

	if (ttl_is_bad(c->ttl_ms))
		return -EINVAL;
	l = lease_of_tenant(m, c);
	if (!l)
		return -ENOENT;
	if (l->expires_at_ms <= c->now_ms)
		return -EKEYEXPIRED;
	if (lineage_fences(&m->s.lineages[l->lineage], l->generation))
		return -EBUSY;
	expires_at_ms = later(l->expires_at_ms, expiry(c->now_ms, c->ttl_ms));
	if (expires_at_ms != l->expires_at_ms) {
		r = model_may_log(m, false);
		if (r < 0)
			return r;
		l->expires_at_ms = expires_at_ms;
		model_logged(m, 1);
	}
	ret->has_lease = true;
	ret->lease = *l;
	return 0;
}

static int release(struct model *m, const struct call *c)
{
	struct lease *l = lease_of_tenant(m, c);
	int r;

	if (!state_lease(&m->s, c->lease))
		return 0;
	if (!l)
		return -ENOENT;
	r = model_may_log(m, false);
	if (r < 0)
		return r;
	state_drop_lease(&m->s, l);
	model_logged(m, 1);
	return 0;
}

static int sweep(struct model *m, const struct call *c, struct outcome *ret)
{
	uint64_t removed = 0;
	int r;

	for (size_t i = 0; i < m->s.lease_count && removed < c->limit;) {
		if (m->s.leases[i].expires_at_ms > c->now_ms) {
			i++;
			continue;
		}
		r = model_may_log(m, false);
		if (r < 0)
			return r;
		state_drop_lease(&m->s, &m->s.leases[i]);
		removed++;
	}
	model_logged(m, removed);
	ret->numbers[0] = removed;
	return 0;
}

void model_lease(struct model *m, const struct call *c, struct outcome *ret)
{
	switch (c->kind) {
	case OP_ACQUIRE:
		ret->err = acquire(m, c, ret);
		break;
	case OP_RENEW:
		ret->err = renew(m, c, ret);
		break;
	case OP_RELEASE:
		ret->err = release(m, c);
		break;
	default:
		ret->err = sweep(m, c, ret);
	}
}

/* ---- Operations ---- */

struct operation *active_operation(struct state *s, const struct revision *r)
{
	return state_operation(s, r->operation_id);
}

struct operation operation_begin(struct model *m, struct revision *r,
				 uint64_t kind, uint64_t target, double ratio,
				 uint64_t now_ms)
{
	r->operation_id = m->next_operation_id++;
	return (struct operation){
		.id = r->operation_id,
		.lineage = r->lineage,
		.generation = r->generation,
		.kind = kind,
		.target = target,
		.target_ratio = ratio,
		.fence = r->metadata_generation,
		.started_at_ms = later(now_ms, r->updated_at_ms),
		.updated_at_ms = later(now_ms, r->updated_at_ms),
		.total_units = r->affinity_count,
		.total_bytes = r->logical_bytes,
	};
}

void operation_end(struct operation *op, uint64_t message, uint64_t now_ms)
{
	op->message = message;
	op->cursor = CURSOR_NONE;
	op->updated_at_ms = later(op->updated_at_ms, now_ms);
}

void operation_follow(struct operation *op, const struct revision *r,
		      uint64_t now_ms)
{
	op->fence = r->metadata_generation;
	op->updated_at_ms = later(op->updated_at_ms, now_ms);
}

static bool start_is_bad(const struct call *c)
{
	bool ratio_is_bad = c->target == WEIGHT_MIXED ?
				    !(c->ratio > 0 && c->ratio < 1) :
				    c->ratio != 0;

	return identity_is_bad(c) || c->operation_kind > WEIGHT_REPAIRING ||
	       (c->target != WEIGHT_HOT && c->target != WEIGHT_COLD &&
		c->target != WEIGHT_MIXED) ||
	       ratio_is_bad;
}

static bool is_asked(const struct operation *op, const struct call *c)
{
	return op->kind == c->operation_kind && op->target == c->target &&
	       op->target_ratio == c->ratio;
}

static int may_start(struct model *m, const struct call *c, bool *ret_repeat)
{
	struct revision *there;
	struct operation *active;

	*ret_repeat = false;
	if (start_is_bad(c))
		return -EINVAL;
	there = state_revision(&m->s, c->lineage, c->generation);
	if (!there)
		return -ENOENT;
	if (lineage_fences(&m->s.lineages[c->lineage], c->generation))
		return -EBUSY;
	active = active_operation(&m->s, there);
	if (active && is_asked(active, c)) {
		*ret_repeat = true;
		return fence_is_retry(there->metadata_generation, c->fence) ?
			       0 :
			       -ECANCELED;
	}
	/* One that only pins or unpins may give way, as the header says. */
	if (active && !(c->supersedes && active->kind == WEIGHT_MIGRATING))
		return -EBUSY;
	if (!fence_fits(there->metadata_generation, c->fence))
		return -ECANCELED;
	if (there->availability != WEIGHT_READY &&
	    there->availability != WEIGHT_DEGRADED)
		return -EINPROGRESS;
	if (c->operation_kind == WEIGHT_MIGRATING &&
	    there->mode == WEIGHT_PINNED)
		return -EPERM;
	if (c->target == WEIGHT_MIXED && there->affinity_count < 2)
		return -EPERM;
	return model_may_log(m, false);
}

static int start(struct model *m, const struct call *c, struct outcome *ret)
{
	struct revision rev, *there;
	struct operation op, *active;
	bool repeat;
	int r = may_start(m, c, &repeat);

	if (r < 0)
		return r;
	there = state_revision(&m->s, c->lineage, c->generation);
	active = active_operation(&m->s, there);
	ret->has_operation = true;
	if (repeat) {
		ret->operation = *active;
		return 0;
	}
	rev = *there;
	r = advance(rev.metadata_generation, &rev.metadata_generation);
	if (r < 0)
		return r;
	if (m->next_operation_id == UINT64_MAX)
		return -EOVERFLOW;
	rev.updated_at_ms = later(rev.updated_at_ms, c->now_ms);
	if (active)
		operation_end(active, MESSAGE_SUPERSEDED, c->now_ms);
	op = operation_begin(m, &rev, c->operation_kind, c->target, c->ratio,
			     c->now_ms);
	*there = rev;
	state_put_operation(&m->s, &op);
	model_logged(m, 1);
	ret->operation = op;
	return 0;
}

/* The operation that a call names, when it is one of the revision's. */
static struct operation *named(struct model *m, const struct call *c)
{
	struct operation *op = state_operation(&m->s, c->operation);

	if (!state_revision(&m->s, c->lineage, c->generation) || !op ||
	    op->lineage != c->lineage || op->generation != c->generation)
		return NULL;
	return op;
}

static bool progress_is_bad(const struct call *c)
{
	return identity_is_bad(c) || c->operation == 0 ||
	       c->processed_units > c->total_units ||
	       c->processed_bytes > c->total_bytes ||
	       c->cursor >= CURSOR_CONTROL || c->message >= MESSAGE_COMPLETED ||
	       (c->availability != WEIGHT_READY &&
		c->availability != WEIGHT_DEGRADED) ||
	       c->residency == WEIGHT_UNKNOWN ||
	       (c->availability == WEIGHT_READY &&
		c->residency == WEIGHT_ABSENT) ||
	       !ratio_fits(c->residency, c->ratio);
}

static int may_progress(struct model *m, const struct call *c)
{
	const struct operation *op;
	const struct revision *there;
	bool goes_on;

	if (progress_is_bad(c))
		return -EINVAL;
	op = named(m, c);
	/* A total of 0 is for who has nothing to process, as the header says */
	if ((c->total_units == 0 && !(op && op->total_units == 0)) ||
	    (c->total_bytes == 0 && !(op && op->total_bytes == 0)))
		return -EINVAL;
	if (!op)
		return -ENOENT;
	there = state_revision(&m->s, c->lineage, c->generation);
	if (there->operation_id != op->id || operation_is_over(op) ||
	    c->total_units != op->total_units ||
	    c->total_bytes != op->total_bytes ||
	    c->processed_units < op->processed_units ||
	    c->processed_bytes < op->processed_bytes)
		return -EEXIST;
	goes_on = c->processed_units > op->processed_units ||
		  c->processed_bytes > op->processed_bytes;
	if (c->cursor != op->cursor && !goes_on)
		return -EEXIST;
	return 0;
}

static int progress(struct model *m, const struct call *c, struct outcome *ret)
{
	struct operation op;
	struct revision rev;
	bool moved, counted;
	int r = may_progress(m, c);

	if (r < 0)
		return r;
	op = *named(m, c);
	rev = *state_revision(&m->s, c->lineage, c->generation);
	moved = rev.availability != c->availability ||
		rev.residency != c->residency || rev.hot_ratio != c->ratio;
	counted = op.processed_units != c->processed_units ||
		  op.processed_bytes != c->processed_bytes ||
		  op.cursor != c->cursor || op.message != c->message;
	ret->has_operation = true;
	ret->operation = op;
	if (!moved && !counted)
		return 0;
	if (moved) {
		r = advance(rev.metadata_generation, &rev.metadata_generation);
		if (r < 0)
			return r;
		rev.availability = c->availability;
		rev.residency = c->residency;
		rev.hot_ratio = c->ratio;
		rev.updated_at_ms = later(rev.updated_at_ms, c->now_ms);
	}
	r = model_may_log(m, false);
	if (r < 0)
		return r;
	op.processed_units = c->processed_units;
	op.processed_bytes = c->processed_bytes;
	op.cursor = c->cursor;
	op.message = c->message;
	operation_follow(&op, &rev, c->now_ms);
	state_put_operation(&m->s, &op);
	state_put_revision(&m->s, &rev);
	model_logged(m, 1);
	ret->operation = op;
	return 0;
}

static int error(struct model *m, const struct call *c, struct outcome *ret)
{
	struct operation *op;
	int r;

	if (identity_is_bad(c) || c->operation == 0 ||
	    c->message == MESSAGE_NONE || c->message >= MESSAGE_COMPLETED)
		return -EINVAL;
	op = named(m, c);
	if (!op)
		return -ENOENT;
	if (state_revision(&m->s, c->lineage, c->generation)->operation_id !=
		    op->id ||
	    operation_is_over(op))
		return -EEXIST;
	if (op->message != c->message) {
		r = model_may_log(m, false);
		if (r < 0)
			return r;
		op->message = c->message;
		op->updated_at_ms = later(op->updated_at_ms, c->now_ms);
		model_logged(m, 1);
	}
	ret->has_operation = true;
	ret->operation = *op;
	return 0;
}

static int may_finish(struct model *m, const struct call *c, bool *ret_repeat)
{
	const struct operation *op;
	const struct revision *there;

	*ret_repeat = false;
	if (identity_is_bad(c) || c->operation == 0 ||
	    !ratio_fits(c->residency, c->ratio))
		return -EINVAL;
	op = named(m, c);
	if (!op)
		return -ENOENT;
	there = state_revision(&m->s, c->lineage, c->generation);
	if (there->operation_id != op->id) {
		/* What ended unfinished, nobody has finished. */
		*ret_repeat = op->message == MESSAGE_COMPLETED &&
			      there->operation_id == 0 &&
			      there->residency == c->residency &&
			      there->hot_ratio == c->ratio;
		return *ret_repeat ? 0 : -EEXIST;
	}
	if (c->residency != op->target)
		return -EINPROGRESS;
	return model_may_log(m, false);
}

static int finish(struct model *m, const struct call *c, struct outcome *ret)
{
	struct operation *op;
	struct revision *there;
	bool repeat;
	int r = may_finish(m, c, &repeat);

	if (r < 0)
		return r;
	op = named(m, c);
	there = state_revision(&m->s, c->lineage, c->generation);
	ret->has_operation = true;
	ret->operation = *op;
	if (repeat)
		return 0;
	r = advance(there->metadata_generation, &there->metadata_generation);
	if (r < 0)
		return r;
	there->operation_id = 0;
	there->residency = c->residency;
	there->hot_ratio = c->ratio;
	there->updated_at_ms = later(there->updated_at_ms, c->now_ms);
	op->processed_units = op->total_units;
	op->processed_bytes = op->total_bytes;
	operation_end(op, MESSAGE_COMPLETED, c->now_ms);
	model_logged(m, 1);
	ret->operation = *op;
	return 0;
}

void model_operation(struct model *m, const struct call *c, struct outcome *ret)
{
	switch (c->kind) {
	case OP_START:
		ret->err = start(m, c, ret);
		break;
	case OP_PROGRESS:
		ret->err = progress(m, c, ret);
		break;
	case OP_ERROR:
		ret->err = error(m, c, ret);
		break;
	default:
		ret->err = finish(m, c, ret);
	}
}
