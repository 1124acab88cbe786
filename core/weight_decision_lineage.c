/* SPDX-License-Identifier: Apache-2.0 */
#include "core/weight_decision_lineage.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/weight_decision_priv.h"
#include "core/weight_management_priv.h"

/* ---- The life of a claim ---- */

enum event {
	EVENT_COMMIT,
	EVENT_ABORT,
	EVENT_ADVANCE,
};

enum verdict {
	IS_DONE, /* a repeat, or nothing to do */
	IS_EARLY,
	IS_CONFLICT,
	MOVES,
};

/* What an event makes of a claim that is in a phase. */
struct move {
	enum verdict verdict;
	enum weight_upsert_phase next; /* if it moves; and its error then */
	const char *error;
};

/* clang-format off */
#define TO(phase) { MOVES, WEIGHT_##phase, "" }

static const struct move moves[][WEIGHT_ABORTED + 1] = {
	[EVENT_COMMIT] = {
		[WEIGHT_PREPARING_TARGET] = TO(RETIRING_BASE),
		[WEIGHT_RETIRING_BASE]    = { IS_DONE },
		[WEIGHT_DELETING_BASE]    = { IS_EARLY },
		[WEIGHT_TARGET_IMPORTING] = TO(COMPLETED),
		[WEIGHT_COMPLETED]        = { IS_DONE },
		[WEIGHT_ABORTED]          = { IS_CONFLICT },
	},
	[EVENT_ABORT] = {
		[WEIGHT_PREPARING_TARGET] = TO(ABORTED),
		[WEIGHT_RETIRING_BASE]    = { IS_CONFLICT },
		[WEIGHT_DELETING_BASE]    = TO(ABORTED),
		/* The base is gone: there is nothing to go back to. */
		[WEIGHT_TARGET_IMPORTING] = { MOVES, WEIGHT_TARGET_IMPORTING,
					      WEIGHT_CLAIM_INTERRUPTED },
		[WEIGHT_COMPLETED]        = { IS_CONFLICT },
		[WEIGHT_ABORTED]          = { IS_DONE },
	},
	[EVENT_ADVANCE] = {
		[WEIGHT_PREPARING_TARGET] = { IS_DONE },
		[WEIGHT_RETIRING_BASE]    = TO(COMPLETED),
		[WEIGHT_DELETING_BASE]    = TO(TARGET_IMPORTING),
		[WEIGHT_TARGET_IMPORTING] = { IS_DONE },
		[WEIGHT_COMPLETED]        = { IS_DONE },
		[WEIGHT_ABORTED]          = { IS_DONE },
	},
};
#undef TO
/* clang-format on */

static const struct move *move_of(enum event event,
				  const struct weight_claim *c)
{
	return &moves[event][c->phase];
}

static bool is_interrupted(const struct weight_claim *c)
{
	return c->phase == WEIGHT_TARGET_IMPORTING &&
	       strcmp(c->error, WEIGHT_CLAIM_INTERRUPTED) == 0;
}

/* What somebody else can do about a claim that is going on. */
static const char *advice(const struct weight_claim *c)
{
	if (is_interrupted(c))
		return "that was interrupted, and only the same request can "
		       "go on with it";
	if (move_of(EVENT_ABORT, c)->next == WEIGHT_ABORTED)
		return "wait for its end, or abort it";
	return "wait for its end";
}

static int busy(const struct weight_claim *c, struct buf *why)
{
	return refuse(why, -EBUSY,
		      "generation %" PRIu64 " is being replaced by %" PRIu64
		      " (request %s); %s",
		      c->base, c->target, c->request_id, advice(c));
}

/* The record after a change of its claim. Errors: -EOVERFLOW. */
static int advance_lineage(const struct weight_lineage_record *l,
			   uint64_t now_ms, struct weight_lineage_record *ret,
			   struct buf *why)
{
	struct weight_lineage_record next = *l;
	int r;

	r = weight_generation_advance(l->lineage_metadata_generation,
				      &next.lineage_metadata_generation);
	if (r < 0) {
		EXPLAIN(why, "the lineage has used up its metadata "
			     "generations and can't change any more; begin "
			     "another one");
		return r;
	}
	next.claim.updated_at_ms = later(now_ms, l->claim.updated_at_ms);
	*ret = next;
	return 0;
}

static int keep(const struct weight_lineage_record *l,
		struct weight_lineage_record *ret, bool *ret_changed)
{
	*ret = *l;
	*ret_changed = false;
	return 0;
}

static int move_claim(const struct weight_lineage_record *l,
		      const struct move *move, uint64_t now_ms,
		      struct weight_lineage_record *ret, bool *ret_changed,
		      struct buf *why)
{
	struct weight_lineage_record next;
	int r = advance_lineage(l, now_ms, &next, why);

	if (r < 0)
		return r;
	next.claim.phase = move->next;
	next.claim.error = move->error;
	*ret = next;
	*ret_changed = true;
	return 0;
}

/* ---- Begin ---- */

static int import_check(const struct weight_upsert_request *rq, struct buf *why)
{
	static const struct weight_import none;
	const struct weight_import *import = &rq->import;

	if (!rq->described && !weight_import_equal(import, &none))
		return refuse(why, -EINVAL,
			      "a target that is staged is described by what is "
			      "there, leave the description out");
	if (!rq->described)
		return 0;
	if (import->payload_count == 0 || import->logical_bytes == 0)
		return refuse(why, -EINVAL,
			      "the target needs at least one object and one "
			      "byte");
	if (import->affinity_count == 0 ||
	    digest_equal(&import->affinity_digest, &none.affinity_digest))
		return refuse(why, -EINVAL,
			      "the target needs the number and the digest of "
			      "its affinity units");
	return weight_policy_check(&import->policy, why);
}

/* Whether the request can be meant at all, whatever there is. */
static int request_check(const struct weight_upsert_request *rq,
			 struct buf *why)
{
	int r;

	if ((r = weight_identity_check(&rq->base, why)) < 0 ||
	    (r = weight_identity_check(&rq->target, why)) < 0)
		return r;
	if (!weight_upsert_mode_name(rq->mode))
		return refuse(why, -EINVAL,
			      "the mode must be put_first or delete_first");
	if (!weight_component_ok(rq->request_id))
		return refuse(why, -EINVAL,
			      "the request id must be 1 to 1024 bytes of UTF-8 "
			      "without control characters");
	if (rq->expected_base_metadata_generation == 0 ||
	    rq->expected_base_metadata_generation >
		    WEIGHT_METADATA_GENERATION_MAX)
		return refuse(why, -EINVAL,
			      "no base has metadata generation %" PRIu64
			      ", name the one that it has now",
			      rq->expected_base_metadata_generation);
	if (!weight_lineage_equal(&rq->base.lineage, &rq->target.lineage))
		return refuse(why, -EINVAL,
			      "base and target must be generations of one "
			      "lineage");
	return import_check(rq, why);
}

/* Whether what is wanted can be had, of whatever there is. */
static int wish_refusal(const struct weight_upsert_request *rq, struct buf *why)
{
	if (rq->target.generation <= rq->base.generation)
		return refuse(why, -ECANCELED,
			      "generation %" PRIu64 " can't be replaced by "
			      "%" PRIu64 ", choose a higher one",
			      rq->base.generation, rq->target.generation);
	if (rq->described && rq->import.policy.preferred == WEIGHT_MIXED &&
	    rq->import.affinity_count < 2)
		return refuse(why, -EPERM,
			      "the policy prefers mixed residency, which needs "
			      "at least two tensors to tell apart");
	return 0;
}

static bool same_request(const struct weight_claim *c,
			 const struct weight_upsert_request *rq)
{
	return strcmp(c->request_id, rq->request_id) == 0 &&
	       c->base == rq->base.generation &&
	       c->target == rq->target.generation && c->mode == rq->mode &&
	       c->expected_base_metadata_generation ==
		       rq->expected_base_metadata_generation &&
	       c->described == rq->described &&
	       weight_import_equal(&c->import, &rq->import);
}

/* Its own request has come again. */
static int resume(const struct weight_lineage_record *l, uint64_t now_ms,
		  struct weight_lineage_record *ret, bool *ret_changed,
		  struct buf *why)
{
	const struct move again = { MOVES, l->claim.phase, "" };

	if (!is_interrupted(&l->claim))
		return keep(l, ret, ret_changed);
	return move_claim(l, &again, now_ms, ret, ret_changed, why);
}

/* Whether the lineage lets another claim begin. */
static int lineage_refusal(const struct weight_lineage_record *l,
			   const struct weight_upsert_request *rq,
			   struct buf *why)
{
	const struct weight_claim *live = weight_lineage_live_claim(l);
	uint64_t watermark = l ? l->watermark : rq->base.generation;

	if (live && strcmp(live->request_id, rq->request_id) == 0)
		return refuse(why, -EBUSY,
			      "request %s is going on with other arguments; "
			      "repeat it as it was, or choose another id",
			      rq->request_id);
	if (live)
		return busy(live, why);
	if (rq->target.generation <= watermark)
		return refuse(why, -ECANCELED,
			      "generation %" PRIu64 " is not above %" PRIu64
			      ", which the lineage has reached; choose a "
			      "higher one",
			      rq->target.generation, watermark);
	if (rq->base.generation != watermark)
		return refuse(why, -ECANCELED,
			      "the lineage has reached generation %" PRIu64
			      ", not %" PRIu64 "; replace that one",
			      watermark, rq->base.generation);
	return 0;
}

/* Whether the base may be replaced, and how it was asked for. */
static int base_refusal(const struct weight_lineage_state *state,
			const struct weight_upsert_request *rq, struct buf *why)
{
	const struct weight_metadata *base = state->base;
	uint64_t generation = rq->base.generation;

	if (!base)
		return refuse(why, -ENOENT,
			      "there is no generation %" PRIu64 " to replace",
			      generation);
	if (base->metadata_generation != rq->expected_base_metadata_generation)
		return refuse(why, -ECANCELED,
			      "generation %" PRIu64 " has metadata generation "
			      "%" PRIu64 ", not %" PRIu64 "; look at it again",
			      generation, base->metadata_generation,
			      rq->expected_base_metadata_generation);
	if (base->availability != WEIGHT_READY)
		return refuse(why, -EINPROGRESS,
			      "generation %" PRIu64 " is %s, and only one that "
			      "is ready can be replaced",
			      generation,
			      weight_availability_name(base->availability));
	if (rq->mode != WEIGHT_DELETE_FIRST)
		return 0;
	if (state->base_leases > 0)
		return refuse(why, -EBUSY,
			      "generation %" PRIu64 " is in use (%" PRIu64
			      " leases); wait for their end, or replace it by "
			      "put_first",
			      generation, state->base_leases);
	if (base->operation_id != 0)
		return refuse(why, -EBUSY,
			      "operation %" PRIu64 " is active on generation "
			      "%" PRIu64 "; wait for its end, or replace it by "
			      "put_first",
			      base->operation_id, generation);
	return 0;
}

/* What keeps the target from being prepared, or NULL. */
static const char *target_fault(const struct weight_lineage_state *state,
				const struct weight_upsert_request *rq)
{
	const struct weight_metadata *target = state->target;

	if (target && (target->availability == WEIGHT_DELETED ||
		       target->availability == WEIGHT_DELETING))
		return "removed, and a removed generation never comes back; "
		       "choose another target";
	if (target)
		return "there already; choose another target";
	if (state->staged && rq->described)
		return "staged; publish or remove the staged tree, or choose "
		       "another target";
	if (!state->staged && !rq->described)
		return "not staged; stage it first";
	return NULL;
}

static int target_refusal(const struct weight_lineage_state *state,
			  const struct weight_upsert_request *rq,
			  struct buf *why)
{
	const char *fault = target_fault(state, rq);

	if (!fault)
		return 0;
	return refuse(why, -EEXIST, "generation %" PRIu64 " is %s",
		      rq->target.generation, fault);
}

/* The record with the claim begun. */
static int begin_record(const struct weight_lineage_record *l,
			const struct weight_upsert_request *rq, uint64_t now_ms,
			struct weight_lineage_record *ret, struct buf *why)
{
	struct weight_lineage_record next = {
		.lineage = rq->base.lineage,
		.lineage_metadata_generation = 1,
		.watermark = rq->base.generation,
	};
	int r;

	if (l) {
		r = advance_lineage(l, now_ms, &next, why);
		if (r < 0)
			return r;
	}
	if (next.claimed)
		now_ms = next.claim.updated_at_ms;
	next.claimed = true;
	next.claim = (struct weight_claim){
		.request_id = rq->request_id,
		.base = rq->base.generation,
		.target = rq->target.generation,
		.mode = rq->mode,
		.phase = rq->mode == WEIGHT_PUT_FIRST ?
				 WEIGHT_PREPARING_TARGET :
				 WEIGHT_DELETING_BASE,
		.expected_base_metadata_generation =
			rq->expected_base_metadata_generation,
		.described = rq->described,
		.import = rq->import,
		.created_at_ms = now_ms,
		.updated_at_ms = now_ms,
		.error = "",
	};
	*ret = next;
	return 0;
}

int weight_decide_upsert_begin(const struct weight_lineage_state *state,
			       const struct weight_upsert_request *request,
			       uint64_t now_ms,
			       struct weight_lineage_record *ret,
			       bool *ret_changed, struct buf *why)
{
	const struct weight_lineage_record *l = state->lineage;
	int r;

	if ((r = request_check(request, why)) < 0 ||
	    (r = wish_refusal(request, why)) < 0)
		return r;
	if (l && l->claimed && same_request(&l->claim, request))
		return resume(l, now_ms, ret, ret_changed, why);
	if ((r = lineage_refusal(l, request, why)) < 0 ||
	    (r = base_refusal(state, request, why)) < 0 ||
	    (r = target_refusal(state, request, why)) < 0)
		return r;
	r = begin_record(l, request, now_ms, ret, why);
	if (r == 0)
		*ret_changed = true;
	return r;
}

/* ---- Commit and abort ---- */

/* The latest claim, if it is the one that is meant. */
static int find_claim(const struct weight_lineage_record *l,
		      const struct weight_claim_name *name, struct buf *why,
		      const struct weight_claim **ret)
{
	const struct weight_claim *c;

	if (!l || !l->claimed)
		return refuse(why, -ENOENT,
			      "no generation of the lineage is being replaced");
	c = &l->claim;
	if (strcmp(c->request_id, name->request_id) != 0 ||
	    c->base != name->base || c->target != name->target)
		return refuse(why, -EEXIST,
			      "the latest request of the lineage is %s, to "
			      "replace generation %" PRIu64 " by %" PRIu64
			      ", and not the one that was named",
			      c->request_id, c->base, c->target);
	*ret = c;
	return 0;
}

static int target_not_ready(const struct weight_lineage_state *state,
			    const struct weight_claim *c, struct buf *why)
{
	const struct weight_metadata *target = state->target;

	if (!target)
		return refuse(why, -EINPROGRESS,
			      "generation %" PRIu64 " is not there yet",
			      c->target);
	if (target->availability != WEIGHT_READY)
		return refuse(why, -EINPROGRESS, "generation %" PRIu64 " is %s",
			      c->target,
			      weight_availability_name(target->availability));
	if (state->wants_durable && !target->durable)
		return refuse(why, -EINPROGRESS,
			      "generation %" PRIu64 " is not durable yet; wait "
			      "for it",
			      c->target);
	return 0;
}

int weight_decide_upsert_commit(const struct weight_lineage_state *state,
				const struct weight_claim_name *name,
				uint64_t now_ms,
				struct weight_lineage_record *ret,
				bool *ret_changed, struct buf *why)
{
	const struct weight_lineage_record *l = state->lineage;
	const struct weight_claim *c;
	const struct move *move;
	int r = find_claim(l, name, why, &c);

	if (r < 0)
		return r;
	move = move_of(EVENT_COMMIT, c);
	if (move->verdict == IS_DONE)
		return keep(l, ret, ret_changed);
	if (move->verdict == IS_CONFLICT)
		return refuse(why, -EEXIST,
			      "request %s was aborted; begin again with "
			      "another id",
			      c->request_id);
	if (move->verdict == IS_EARLY)
		return refuse(why, -EINPROGRESS,
			      "generation %" PRIu64 " is not gone yet; wait "
			      "for that",
			      c->base);
	r = target_not_ready(state, c, why);
	if (r < 0)
		return r;
	r = move_claim(l, move, now_ms, ret, ret_changed, why);
	if (r == 0)
		ret->watermark = later(l->watermark, c->target);
	return r;
}

int weight_decide_upsert_abort(const struct weight_lineage_state *state,
			       const struct weight_claim_name *name,
			       uint64_t now_ms,
			       struct weight_lineage_record *ret,
			       bool *ret_changed, struct buf *why)
{
	const struct weight_lineage_record *l = state->lineage;
	const struct weight_claim *c;
	const struct move *move;
	int r = find_claim(l, name, why, &c);

	if (r < 0)
		return r;
	move = move_of(EVENT_ABORT, c);
	if (move->verdict == IS_DONE)
		return keep(l, ret, ret_changed);
	if (move->verdict == IS_CONFLICT)
		return refuse(why, -EEXIST,
			      "generation %" PRIu64 " has taken the place of "
			      "%" PRIu64 " already",
			      c->target, c->base);
	if (state->target && is_live(state->target))
		return refuse(why, -EEXIST,
			      "generation %" PRIu64 " is published already; "
			      "commit instead",
			      c->target);
	if (is_interrupted(c))
		return keep(l, ret, ret_changed);
	return move_claim(l, move, now_ms, ret, ret_changed, why);
}

/* ---- What goes on by itself ---- */

static enum weight_claim_step target_step(
	const struct weight_lineage_state *state, const struct weight_claim *c)
{
	static const enum weight_claim_step steps[] = {
		[WEIGHT_IMPORTING] = WEIGHT_CLAIM_WAITS,
		[WEIGHT_READY] = WEIGHT_CLAIM_COMMIT,
		[WEIGHT_DEGRADED] = WEIGHT_CLAIM_WAITS,
		[WEIGHT_DELETING] = WEIGHT_CLAIM_CLEAN,
		[WEIGHT_DELETED] = WEIGHT_CLAIM_ABORT,
	};
	const struct weight_metadata *target = state->target;

	/* One that begins anew is staged beside its tombstone. */
	if (state->staged &&
	    (!target || target->availability == WEIGHT_DELETED))
		return WEIGHT_CLAIM_WAITS;
	if (!target)
		return c->described ? WEIGHT_CLAIM_PREPARE : WEIGHT_CLAIM_ABORT;
	if (steps[target->availability] == WEIGHT_CLAIM_COMMIT &&
	    state->wants_durable && !target->durable)
		return WEIGHT_CLAIM_WAITS;
	return steps[target->availability];
}

static bool base_is_gone(const struct weight_lineage_state *state)
{
	return !state->base || state->base->availability == WEIGHT_DELETED;
}

static enum weight_claim_step base_step(
	const struct weight_lineage_state *state, bool operation_blocks)
{
	if (base_is_gone(state))
		return WEIGHT_CLAIM_ADVANCE;
	if (state->base_leases > 0 || operation_blocks ||
	    state->base->availability == WEIGHT_DELETING)
		return WEIGHT_CLAIM_WAITS;
	return WEIGHT_CLAIM_DELETE;
}

enum weight_claim_step weight_decide_claim_step(
	const struct weight_lineage_state *state, bool base_operation_blocks)
{
	const struct weight_claim *c =
		weight_lineage_live_claim(state->lineage);
	enum weight_claim_step step;

	if (!c)
		return WEIGHT_CLAIM_DONE;
	if (c->phase == WEIGHT_RETIRING_BASE ||
	    c->phase == WEIGHT_DELETING_BASE)
		return base_step(state, base_operation_blocks);
	step = target_step(state, c);
	/* Its own request comes first. */
	if (is_interrupted(c) &&
	    (step == WEIGHT_CLAIM_ABORT || step == WEIGHT_CLAIM_PREPARE))
		return WEIGHT_CLAIM_WAITS;
	return step;
}

int weight_decide_claim_advance(const struct weight_lineage_state *state,
				uint64_t now_ms,
				struct weight_lineage_record *ret,
				bool *ret_changed)
{
	const struct weight_lineage_record *l = state->lineage;
	const struct move *move;

	if (!l || !l->claimed)
		return log_debug(-ENOENT, "no claim");
	move = move_of(EVENT_ADVANCE, &l->claim);
	if (move->verdict == IS_DONE)
		return keep(l, ret, ret_changed);
	if (!base_is_gone(state))
		return log_debug(-EBUSY, "generation %" PRIu64 " is there",
				 l->claim.base);
	return move_claim(l, move, now_ms, ret, ret_changed, NULL);
}

int weight_decide_beside_claim(const struct weight_lineage_record *lineage,
			       uint64_t generation, bool is_import,
			       bool by_claim, struct buf *why)
{
	const struct weight_claim *c = weight_lineage_live_claim(lineage);

	if (!c)
		return 0;
	if (!is_import)
		return by_claim || !weight_lineage_claims(lineage, generation) ?
			       0 :
			       busy(c, why);
	if (generation != c->target)
		return busy(c, why);
	if (c->phase == WEIGHT_DELETING_BASE)
		return refuse(why, -EBUSY,
			      "generation %" PRIu64 " comes when %" PRIu64
			      " is gone; wait for that",
			      c->target, c->base);
	if (is_interrupted(c))
		return refuse(why, -EBUSY,
			      "generation %" PRIu64 " replaces %" PRIu64
			      ", and that was interrupted; announce it again, "
			      "by the same request, %s",
			      c->target, c->base, c->request_id);
	return 0;
}
