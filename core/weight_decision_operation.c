/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions about residency operations. */
#include <string.h>

#include "core/weight_decision.h"
#include "core/weight_decision_priv.h"

/* ---- Start ---- */

/* The operation as a request wants it, but for its fence and times. */
static struct weight_operation requested(
	const struct weight_operation_state *state,
	const struct weight_identity *identity,
	const struct weight_operation_request *rq)
{
	return (struct weight_operation){
		.operation_id = state->next_operation_id,
		.identity = *identity,
		.kind = rq->kind,
		.target_residency = rq->target_residency,
		.target_hot_ratio = rq->target_hot_ratio,
		.cursor = "",
		.message = "",
	};
}

/* Whether the request can be meant at all, whatever there is. */
static int request_check(const struct weight_operation *op, struct buf *why)
{
	struct weight_operation probe = *op;

	probe.operation_id = 1;
	probe.fenced_metadata_generation = 1;
	return weight_operation_check(&probe, why);
}

static bool same_goal(const struct weight_operation *a,
		      const struct weight_operation *b)
{
	return a->kind == b->kind &&
	       a->target_residency == b->target_residency &&
	       a->target_hot_ratio == b->target_hot_ratio;
}

/* Whether the policy and the make of the revision allow it. */
static int policy_refusal(const struct weight_metadata *m,
			  const struct weight_operation *op, struct buf *why)
{
	if (op->kind == WEIGHT_MIGRATING && m->policy.mode == WEIGHT_PINNED) {
		EXPLAIN(why, "the policy of the revision is pinned, so it "
			     "stays as it is; change the policy first");
		return log_debug(-EPERM, "pinned");
	}
	if (op->target_residency == WEIGHT_MIXED && m->affinity_count < 2) {
		EXPLAIN(why, "mixed residency needs at least two tensors to "
			     "tell apart");
		return log_debug(-EPERM, "mixed without units");
	}
	return 0;
}

/* Whether an operation may begin on a revision that has none. */
static int start_refusal(const struct weight_metadata *m,
			 const struct weight_operation *op, uint64_t expected,
			 struct buf *why)
{
	if (is_stale(m, expected))
		return stale(m, expected);
	if (!is_live(m)) {
		EXPLAIN(why, "the revision is %s",
			weight_availability_name(m->availability));
		return log_debug(-EINPROGRESS, "availability %d",
				 (int)m->availability);
	}
	return policy_refusal(m, op, why);
}

/* A request that finds an operation active. */
static int start_again(const struct weight_operation_state *state,
		       const struct weight_operation *op, uint64_t expected,
		       struct weight_operation_outcome *ret, struct buf *why)
{
	const struct weight_operation *active = state->operation;

	if (!same_goal(active, op)) {
		EXPLAIN(why,
			"operation %llu is %s the revision to %s; wait for its "
			"end",
			(unsigned long long)active->operation_id,
			weight_operation_kind_name(active->kind),
			weight_residency_name(active->target_residency));
		return log_debug(-EBUSY, "operation %llu",
				 (unsigned long long)active->operation_id);
	}
	if (!is_retry(state->metadata, expected))
		return stale(state->metadata, expected);
	*ret = (struct weight_operation_outcome){
		.operation = *active,
		.metadata = *state->metadata,
	};
	return 0;
}

/* Both records with the operation begun. */
static int start_records(const struct weight_operation_state *state,
			 const struct weight_operation *op, uint64_t now_ms,
			 struct weight_operation_outcome *ret)
{
	struct weight_operation_outcome out = { .operation = *op,
						.changed = true };
	const struct weight_metadata *m = state->metadata;
	int r;

	r = advance(m, now_ms, &out.metadata);
	if (r < 0)
		return r;
	/* The one after must be a number, too. */
	if (state->next_operation_id == UINT64_MAX)
		return log_debug(-EOVERFLOW, "no operation id is left");
	out.metadata.operation_id = op->operation_id;
	out.operation.fenced_metadata_generation =
		out.metadata.metadata_generation;
	out.operation.started_at_ms = out.metadata.updated_at_ms;
	out.operation.updated_at_ms = out.metadata.updated_at_ms;
	out.operation.total_units = m->affinity_count;
	out.operation.total_bytes = m->manifest.logical_bytes;
	*ret = out;
	return 0;
}

static bool takes_place(const struct weight_operation_state *state,
			const struct weight_operation *op,
			const struct weight_operation_request *rq)
{
	return rq->supersedes && !same_goal(state->operation, op) &&
	       !weight_operation_blocks(state->operation);
}

static struct weight_operation superseded(const struct weight_operation *op,
					  uint64_t now_ms)
{
	struct weight_operation over = *op;

	over.updated_at_ms = later(now_ms, op->updated_at_ms);
	over.cursor = "";
	over.message = WEIGHT_OPERATION_SUPERSEDED;
	return over;
}

int weight_decide_operation_start(const struct weight_operation_state *state,
				  const struct weight_identity *identity,
				  const struct weight_operation_request *rq,
				  uint64_t now_ms,
				  struct weight_operation_outcome *ret,
				  struct buf *why)
{
	struct weight_operation op = requested(state, identity, rq);
	uint64_t expected = rq->expected_metadata_generation;
	int r;

	r = request_check(&op, why);
	if (r < 0)
		return r;
	if (!state->metadata)
		return log_debug(-ENOENT, "no such revision");
	if (state->fenced) {
		EXPLAIN(why, "the revision is being replaced");
		return log_debug(-EBUSY, "fenced by a replacement");
	}
	if (state->operation && !takes_place(state, &op, rq))
		return start_again(state, &op, expected, ret, why);
	r = start_refusal(state->metadata, &op, expected, why);
	if (r == 0)
		r = start_records(state, &op, now_ms, ret);
	if (r == 0 && state->operation)
		ret->superseded = superseded(state->operation, now_ms);
	return r;
}

/* ---- The rest of its life ---- */

static int find_refusal(const struct weight_operation_state *state)
{
	if (!state->metadata || !state->operation)
		return log_debug(-ENOENT, "no such revision or operation");
	return 0;
}

static bool is_active(const struct weight_operation_state *state)
{
	return state->metadata->operation_id ==
		       state->operation->operation_id &&
	       !weight_operation_is_over(state->operation);
}

static int inactive(const struct weight_operation_state *state)
{
	return log_debug(-EEXIST, "operation %llu is not active",
			 (unsigned long long)state->operation->operation_id);
}

/* A total of nothing is a mistake, except where there is nothing. */
static bool total_ok(uint64_t total, uint64_t processed, bool may_be_0)
{
	return processed <= total && (total > 0 || may_be_0);
}

static int progress_check(const struct weight_operation *op,
			  const struct weight_operation_progress *p)
{
	if (!total_ok(p->total_units, p->processed_units,
		      op && op->total_units == 0) ||
	    !total_ok(p->total_bytes, p->processed_bytes,
		      op && op->total_bytes == 0))
		return log_debug(-EINVAL, "counts");
	if (p->cursor[0] && !weight_component_ok(p->cursor))
		return log_debug(-EINVAL, "cursor");
	if (p->message[0] && !weight_operation_message_ok(p->message))
		return log_debug(-EINVAL, "message");
	if (p->availability != WEIGHT_READY &&
	    p->availability != WEIGHT_DEGRADED)
		return log_debug(-EINVAL, "availability %d",
				 (int)p->availability);
	if (!weight_place_ok(p->availability, p->residency, p->hot_ratio))
		return log_debug(-EINVAL, "residency %d, ratio %g",
				 (int)p->residency, p->hot_ratio);
	return 0;
}

static int progress_conflict(const struct weight_operation *op,
			     const struct weight_operation_progress *p)
{
	if (p->total_units != op->total_units ||
	    p->total_bytes != op->total_bytes)
		return log_debug(-EEXIST, "other totals");
	if (p->processed_units < op->processed_units ||
	    p->processed_bytes < op->processed_bytes)
		return log_debug(-EEXIST, "less than before");
	if (p->processed_units == op->processed_units &&
	    p->processed_bytes == op->processed_bytes &&
	    strcmp(p->cursor, op->cursor) != 0)
		return log_debug(-EEXIST, "another cursor, but no progress");
	return 0;
}

/* The revision as it is seen during the operation. */
static int progress_metadata(const struct weight_metadata *m,
			     const struct weight_operation_progress *p,
			     uint64_t now_ms, struct weight_metadata *ret)
{
	struct weight_metadata next = *m;
	int r;

	if (m->availability == p->availability &&
	    m->residency == p->residency &&
	    m->observed_hot_ratio == p->hot_ratio) {
		*ret = next;
		return 0;
	}
	if (m->availability != p->availability &&
	    !weight_availability_may(m->availability, p->availability))
		return log_debug(-EINVAL, "availability %d",
				 (int)m->availability);
	next.availability = p->availability;
	next.residency = p->residency;
	next.observed_hot_ratio = p->hot_ratio;
	r = weight_metadata_check(&next, NULL);
	if (r < 0)
		return r;
	return advance(&next, now_ms, ret);
}

/* The operation after progress, for a revision that is `m` now. */
static struct weight_operation progressed(
	const struct weight_operation *op, const struct weight_metadata *m,
	const struct weight_operation_progress *p, uint64_t now_ms)
{
	struct weight_operation next = *op;

	next.fenced_metadata_generation = m->metadata_generation;
	next.updated_at_ms = later(now_ms, op->updated_at_ms);
	next.processed_units = p->processed_units;
	next.processed_bytes = p->processed_bytes;
	next.cursor = p->cursor;
	next.message = p->message;
	return next;
}

/* Whether two records of one operation say the same, but for their times. */
static bool same_progress(const struct weight_operation *a,
			  const struct weight_operation *b)
{
	return a->processed_units == b->processed_units &&
	       a->processed_bytes == b->processed_bytes &&
	       a->fenced_metadata_generation == b->fenced_metadata_generation &&
	       strcmp(a->cursor, b->cursor) == 0 &&
	       strcmp(a->message, b->message) == 0;
}

int weight_decide_operation_progress(const struct weight_operation_state *state,
				     uint64_t operation_id,
				     const struct weight_operation_progress *p,
				     uint64_t now_ms,
				     struct weight_operation_outcome *ret)
{
	const struct weight_operation *op = state->operation;
	struct weight_operation_outcome out = { .changed = false };
	int r;

	if (operation_id == 0)
		return log_debug(-EINVAL, "operation 0");
	if ((r = progress_check(op, p)) < 0 || (r = find_refusal(state)) < 0)
		return r;
	if (!is_active(state))
		return inactive(state);
	r = progress_conflict(op, p);
	if (r < 0)
		return r;
	r = progress_metadata(state->metadata, p, now_ms, &out.metadata);
	if (r < 0)
		return r;
	out.operation = progressed(op, &out.metadata, p, now_ms);
	out.changed = !same_progress(op, &out.operation);
	if (!out.changed)
		out.operation = *op;
	*ret = out;
	return 0;
}

int weight_decide_operation_error(const struct weight_operation_state *state,
				  uint64_t operation_id, const char *message,
				  uint64_t now_ms,
				  struct weight_operation_outcome *ret)
{
	const struct weight_operation *op = state->operation;
	struct weight_operation_outcome out = { .changed = false };
	int r;

	if (operation_id == 0 || !weight_operation_message_ok(message))
		return log_debug(-EINVAL, "operation 0 or message");
	r = find_refusal(state);
	if (r < 0)
		return r;
	if (!is_active(state))
		return inactive(state);
	out = (struct weight_operation_outcome){
		.operation = *op,
		.metadata = *state->metadata,
		.changed = strcmp(op->message, message) != 0,
	};
	if (out.changed) {
		out.operation.message = message;
		out.operation.updated_at_ms = later(now_ms, op->updated_at_ms);
	}
	*ret = out;
	return 0;
}

/* A finish that finds the operation inactive: a repeat, or a conflict. */
static int finish_again(const struct weight_operation_state *state,
			enum weight_residency residency, double hot_ratio,
			struct weight_operation_outcome *ret)
{
	const struct weight_metadata *m = state->metadata;

	/* One that a removal has ended was never finished. */
	if (m->operation_id != 0 || m->residency != residency ||
	    m->observed_hot_ratio != hot_ratio ||
	    !weight_operation_is_finished(state->operation))
		return inactive(state);
	*ret = (struct weight_operation_outcome){
		.operation = *state->operation,
		.metadata = *m,
	};
	return 0;
}

/* The operation as it is when all is done. Its fence stays what it was. */
static struct weight_operation finished(const struct weight_operation *op,
					uint64_t now_ms)
{
	struct weight_operation next = *op;

	next.updated_at_ms = later(now_ms, op->updated_at_ms);
	next.processed_units = op->total_units;
	next.processed_bytes = op->total_bytes;
	next.cursor = "";
	next.message = WEIGHT_OPERATION_COMPLETED;
	return next;
}

int weight_decide_operation_finish(const struct weight_operation_state *state,
				   uint64_t operation_id,
				   enum weight_residency residency,
				   double hot_ratio, uint64_t now_ms,
				   struct weight_operation_outcome *ret)
{
	const struct weight_operation *op = state->operation;
	struct weight_operation_outcome out = { .changed = true };
	int r;

	if (operation_id == 0 || !weight_residency_name(residency) ||
	    !ratio_fits(residency, hot_ratio))
		return log_debug(-EINVAL, "operation, residency or ratio");
	r = find_refusal(state);
	if (r < 0)
		return r;
	if (!is_active(state))
		return finish_again(state, residency, hot_ratio, ret);
	if (residency != op->target_residency)
		return log_debug(-EINPROGRESS, "residency %d", (int)residency);
	r = advance(state->metadata, now_ms, &out.metadata);
	if (r < 0)
		return r;
	out.metadata.operation_id = 0;
	out.metadata.residency = residency;
	out.metadata.observed_hot_ratio = hot_ratio;
	out.operation = finished(op, now_ms);
	*ret = out;
	return 0;
}
