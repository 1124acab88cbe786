/* SPDX-License-Identifier: Apache-2.0 */
#include "core/weight_decision_replay.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/weight_decision.h"
#include "core/weight_management_priv.h"

/* The one way to refuse: the entry doesn't follow on what is there. */
#define unfit(why, ...) refuse(why, -EUCLEAN, __VA_ARGS__)

/* Whether an id may be given now. The one after must be a number, too. */
static bool is_next_id(uint64_t id, uint64_t next)
{
	return id >= next && id < UINT64_MAX;
}

/* ---- Revisions ---- */

static bool same_summary(const struct weight_metadata *a,
			 const struct weight_metadata *b)
{
	return a->manifest.payload_count == b->manifest.payload_count &&
	       a->manifest.logical_bytes == b->manifest.logical_bytes &&
	       a->affinity_count == b->affinity_count &&
	       digest_equal(&a->affinity_digest, &b->affinity_digest);
}

/* The key and the group follow from the identity. */
static bool same_reference(const struct weight_metadata *a,
			   const struct weight_metadata *b)
{
	return a->manifest.complete == b->manifest.complete &&
	       digest_equal(&a->manifest.manifest_sha256,
			    &b->manifest.manifest_sha256) &&
	       digest_equal(&a->manifest.payload_keys_sha256,
			    &b->manifest.payload_keys_sha256);
}

/* All that counts as a change of the metadata generation. */
static bool same_state(const struct weight_metadata *a,
		       const struct weight_metadata *b)
{
	return a->availability == b->availability &&
	       a->residency == b->residency &&
	       a->observed_hot_ratio == b->observed_hot_ratio &&
	       a->operation_id == b->operation_id &&
	       weight_policy_equal(&a->policy, &b->policy);
}

static int first_follows(const struct weight_metadata *m, struct buf *why)
{
	bool begins = m->metadata_generation == 1 &&
		      m->availability == WEIGHT_IMPORTING;
	bool published =
		m->metadata_generation == WEIGHT_PUBLISHED_GENERATION &&
		m->availability == WEIGHT_READY;

	if (!begins && !published)
		return unfit(why,
			     "a revision begins as %s at metadata generation "
			     "%" PRIu64,
			     weight_availability_name(m->availability),
			     m->metadata_generation);
	return 0;
}

static int times_follow(const struct weight_metadata *before,
			const struct weight_metadata *m, struct buf *why)
{
	if (m->updated_at_ms < before->updated_at_ms ||
	    m->last_accessed_at_ms < before->last_accessed_at_ms)
		return unfit(why, "the time of a revision goes back");
	return 0;
}

/* What a claim begins again is an import of its own; only its number goes on. */
static int restart_follows(const struct weight_replay_state *state,
			   const struct weight_metadata *m, struct buf *why)
{
	const struct weight_claim *claim =
		weight_lineage_live_claim(state->lineage);

	if (m->availability != WEIGHT_IMPORTING || !claim ||
	    claim->mode != WEIGHT_DELETE_FIRST ||
	    claim->phase != WEIGHT_TARGET_IMPORTING ||
	    claim->target != m->identity.generation)
		return unfit(why, "something follows on a tombstone");
	if (m->metadata_generation != state->metadata->metadata_generation + 1)
		return unfit(why,
			     "metadata generation %" PRIu64
			     " follows on a tombstone at %" PRIu64,
			     m->metadata_generation,
			     state->metadata->metadata_generation);
	if (m->created_at_ms < state->metadata->created_at_ms)
		return unfit(why, "the time of a revision goes back");
	return times_follow(state->metadata, m, why);
}

static int change_follows(const struct weight_metadata *before,
			  const struct weight_metadata *m, struct buf *why)
{
	bool same = m->metadata_generation == before->metadata_generation;

	if (!same && m->metadata_generation != before->metadata_generation + 1)
		return unfit(
			why,
			"metadata generation %" PRIu64 " follows on %" PRIu64,
			m->metadata_generation, before->metadata_generation);
	if (m->created_at_ms != before->created_at_ms ||
	    !same_summary(before, m) ||
	    (!same_reference(before, m) &&
	     (before->availability != WEIGHT_IMPORTING ||
	      m->availability != WEIGHT_READY)))
		return unfit(why, "the payload of a revision changes");
	if (same && !same_state(before, m))
		return unfit(why, "a revision changes, but not its metadata "
				  "generation");
	if (m->availability != before->availability &&
	    !weight_availability_may(before->availability, m->availability))
		return unfit(why, "a revision that is %s becomes %s",
			     weight_availability_name(before->availability),
			     weight_availability_name(m->availability));
	return times_follow(before, m, why);
}

/* ---- Their operations ---- */

static bool same_work(const struct weight_operation *a,
		      const struct weight_operation *b)
{
	return weight_identity_equal(&a->identity, &b->identity) &&
	       a->kind == b->kind &&
	       a->target_residency == b->target_residency &&
	       a->target_hot_ratio == b->target_hot_ratio &&
	       a->started_at_ms == b->started_at_ms &&
	       a->total_units == b->total_units &&
	       a->total_bytes == b->total_bytes;
}

/* Of operations with the same id. */
static bool same_operation(const struct weight_operation *a,
			   const struct weight_operation *b)
{
	return same_work(a, b) &&
	       a->fenced_metadata_generation == b->fenced_metadata_generation &&
	       a->updated_at_ms == b->updated_at_ms &&
	       a->processed_units == b->processed_units &&
	       a->processed_bytes == b->processed_bytes &&
	       strcmp(a->cursor, b->cursor) == 0 &&
	       strcmp(a->message, b->message) == 0;
}

static int progress_follows(const struct weight_operation *before,
			    const struct weight_operation *op, struct buf *why)
{
	if (!same_work(before, op))
		return unfit(why, "operation %" PRIu64 " becomes another one",
			     op->operation_id);
	if (op->processed_units < before->processed_units ||
	    op->processed_bytes < before->processed_bytes ||
	    op->updated_at_ms < before->updated_at_ms)
		return unfit(why, "operation %" PRIu64 " goes back",
			     op->operation_id);
	return 0;
}

/* op is the active one of m. */
static int active_follows(const struct weight_replay_state *state,
			  const struct weight_metadata *m,
			  const struct weight_operation *before,
			  const struct weight_operation *op, struct buf *why)
{
	if (op->operation_id != m->operation_id ||
	    op->fenced_metadata_generation != m->metadata_generation)
		return unfit(why,
			     "operation %" PRIu64 " runs, but its revision "
			     "doesn't say so",
			     op->operation_id);
	if (before)
		return progress_follows(before, op, why);
	if (!is_next_id(op->operation_id, state->next_operation_id))
		return unfit(why,
			     "operation %" PRIu64 " begins, but ids go on "
			     "with %" PRIu64,
			     op->operation_id, state->next_operation_id);
	return 0;
}

/* op is over. It keeps the fence that it had. */
static int end_follows(const struct weight_metadata *m,
		       const struct weight_operation *before,
		       const struct weight_operation *op, struct buf *why)
{
	if (!before || op->operation_id == m->operation_id)
		return unfit(why,
			     "operation %" PRIu64 " is over, but was never "
			     "begun, or runs by what its revision says",
			     op->operation_id);
	if (op->fenced_metadata_generation !=
	    before->fenced_metadata_generation)
		return unfit(why,
			     "operation %" PRIu64 " ends with another fence",
			     op->operation_id);
	if (weight_operation_is_finished(op) &&
	    (m->operation_id != 0 || m->residency != op->target_residency))
		return unfit(why,
			     "operation %" PRIu64 " is finished, but the "
			     "revision is %s",
			     op->operation_id,
			     weight_residency_name(m->residency));
	return progress_follows(before, op, why);
}

static int operation_follows(const struct weight_replay_state *state,
			     const struct weight_metadata *m,
			     const struct weight_operation *before,
			     const struct weight_operation *op, struct buf *why)
{
	if (before && weight_operation_is_over(before)) {
		if (!same_operation(before, op))
			return unfit(why,
				     "operation %" PRIu64 " was over, and "
				     "changes",
				     op->operation_id);
		return 0;
	}
	if (weight_operation_is_over(op))
		return end_follows(m, before, op, why);
	return active_follows(state, m, before, op, why);
}

static bool names_operation(const struct oplog_change *change, uint64_t id)
{
	for (size_t i = 0; i < change->operation_count; i++)
		if (change->operations[i]->operation_id == id)
			return true;
	return false;
}

/* Whether the active operation that is there will do as it is. */
static bool active_stays(const struct weight_replay_state *state,
			 const struct weight_metadata *m)
{
	const struct weight_operation *op = state->active;

	return op && op->operation_id == m->operation_id &&
	       op->fenced_metadata_generation == m->metadata_generation;
}

static int operations_follow(const struct weight_replay_state *state,
			     const struct oplog_change *change, struct buf *why)
{
	const struct weight_metadata *m = change->metadata;
	uint64_t had = state->metadata ? state->metadata->operation_id : 0;

	for (size_t i = 0; i < change->operation_count; i++) {
		int r = operation_follows(state, m, state->operations[i],
					  change->operations[i], why);

		if (r < 0)
			return r;
	}
	if (m->operation_id != 0 && !names_operation(change, m->operation_id) &&
	    !active_stays(state, m))
		return unfit(why,
			     "operation %" PRIu64 " is not there, or fenced "
			     "elsewhere",
			     m->operation_id);
	/* What is named and not the active one was seen to be over. */
	if (had != 0 && had != m->operation_id && !names_operation(change, had))
		return unfit(why, "operation %" PRIu64 " doesn't end", had);
	return 0;
}

static int metadata_upsert(const struct weight_replay_state *state,
			   const struct oplog_change *change, struct buf *why)
{
	const struct weight_metadata *before = state->metadata;
	int r;

	if (!before)
		r = first_follows(change->metadata, why);
	else if (before->availability == WEIGHT_DELETED)
		r = restart_follows(state, change->metadata, why);
	else
		r = change_follows(before, change->metadata, why);
	if (r < 0)
		return r;
	return operations_follow(state, change, why);
}

static int metadata_delete(const struct weight_replay_state *state,
			   const struct oplog_change *change, struct buf *why)
{
	const struct weight_metadata *m = state->metadata;

	if (!m)
		return unfit(why, "a tombstone of no revision");
	if (m->availability == WEIGHT_DELETED &&
	    m->metadata_generation == change->metadata_generation &&
	    m->updated_at_ms == change->timestamp_ms)
		return 0;
	if (m->availability != WEIGHT_DELETING ||
	    change->metadata_generation != m->metadata_generation + 1)
		return unfit(why,
			     "a tombstone at %" PRIu64
			     " of a revision that is %s at %" PRIu64,
			     change->metadata_generation,
			     weight_availability_name(m->availability),
			     m->metadata_generation);
	if (change->timestamp_ms < m->updated_at_ms)
		return unfit(why, "the time of a tombstone goes back");
	return 0;
}

/* ---- Leases ---- */

static int new_lease_follows(const struct weight_replay_state *state,
			     const struct weight_lease *lease, struct buf *why)
{
	const struct weight_metadata *m = state->metadata;

	if (!is_next_id(lease->lease_id, state->next_lease_id))
		return unfit(why,
			     "lease %" PRIu64 " is not there, but ids go on "
			     "with %" PRIu64,
			     lease->lease_id, state->next_lease_id);
	if (m->availability != WEIGHT_READY &&
	    m->availability != WEIGHT_DEGRADED)
		return unfit(why, "lease %" PRIu64 " of a revision that is %s",
			     lease->lease_id,
			     weight_availability_name(m->availability));
	if (lease->fenced_metadata_generation != m->metadata_generation)
		return unfit(why,
			     "lease %" PRIu64 " is fenced at %" PRIu64
			     ", the revision is at %" PRIu64,
			     lease->lease_id, lease->fenced_metadata_generation,
			     m->metadata_generation);
	return 0;
}

static int renewal_follows(const struct weight_lease *before,
			   const struct weight_lease *lease, struct buf *why)
{
	if (!weight_identity_equal(&lease->identity, &before->identity) ||
	    strcmp(lease->holder, before->holder) != 0 ||
	    lease->fenced_metadata_generation !=
		    before->fenced_metadata_generation)
		return unfit(why, "lease %" PRIu64 " becomes another one",
			     lease->lease_id);
	if (lease->expires_at_ms < before->expires_at_ms)
		return unfit(why, "lease %" PRIu64 " gets shorter",
			     lease->lease_id);
	return 0;
}

static int lease_upsert(const struct weight_replay_state *state,
			const struct oplog_change *change, struct buf *why)
{
	const struct weight_lease *lease = change->lease;

	if (!state->metadata)
		return unfit(why, "lease %" PRIu64 " of no revision",
			     lease->lease_id);
	if (change->last_accessed_at_ms < state->metadata->last_accessed_at_ms)
		return unfit(why, "the last access of a revision goes back");
	if (!state->lease)
		return new_lease_follows(state, lease, why);
	return renewal_follows(state->lease, lease, why);
}

static int lease_delete(const struct weight_replay_state *state,
			const struct oplog_change *change, struct buf *why)
{
	const struct weight_lease *lease = state->lease;

	if (!lease && change->lease_id >= state->next_lease_id)
		return unfit(why, "lease %" PRIu64 " ends, but never began",
			     change->lease_id);
	if (lease &&
	    (!weight_identity_equal(&lease->identity, &change->identity) ||
	     lease->fenced_metadata_generation != change->metadata_generation))
		return unfit(why, "lease %" PRIu64 " is another one",
			     change->lease_id);
	return 0;
}

/* ---- Lineages ---- */

#define TO(phase) (1u << WEIGHT_##phase)

/*
 * What may follow on a phase within one claim. An abort leaves TARGET_IMPORTING
 * as it is, with another error.
 */
static const unsigned phases_after[] = {
	[WEIGHT_PREPARING_TARGET] =
		TO(PREPARING_TARGET) | TO(RETIRING_BASE) | TO(ABORTED),
	[WEIGHT_RETIRING_BASE] = TO(RETIRING_BASE) | TO(COMPLETED),
	[WEIGHT_DELETING_BASE] =
		TO(DELETING_BASE) | TO(TARGET_IMPORTING) | TO(ABORTED),
	[WEIGHT_TARGET_IMPORTING] = TO(TARGET_IMPORTING) | TO(COMPLETED),
	[WEIGHT_COMPLETED] = TO(COMPLETED),
	[WEIGHT_ABORTED] = TO(ABORTED),
};

/* Where a claim of each mode begins. */
static const enum weight_upsert_phase first_phase[] = {
	[WEIGHT_PUT_FIRST] = WEIGHT_PREPARING_TARGET,
	[WEIGHT_DELETE_FIRST] = WEIGHT_DELETING_BASE,
};

/* What a claim is from its beginning to its end. */
static bool same_claim(const struct weight_claim *a,
		       const struct weight_claim *b)
{
	return strcmp(a->request_id, b->request_id) == 0 &&
	       a->base == b->base && a->target == b->target &&
	       a->mode == b->mode &&
	       a->expected_base_metadata_generation ==
		       b->expected_base_metadata_generation &&
	       a->described == b->described &&
	       weight_import_equal(&a->import, &b->import);
}

/* Also where it stands. */
static bool same_place(const struct weight_claim *a,
		       const struct weight_claim *b)
{
	return same_claim(a, b) && a->phase == b->phase &&
	       a->created_at_ms == b->created_at_ms &&
	       a->updated_at_ms == b->updated_at_ms &&
	       strcmp(a->error, b->error) == 0;
}

static bool same_lineage(const struct weight_lineage_record *a,
			 const struct weight_lineage_record *b)
{
	return a->watermark == b->watermark && a->claimed == b->claimed &&
	       (!a->claimed || same_place(&a->claim, &b->claim));
}

static int new_claim_follows(const struct weight_claim *claim, struct buf *why)
{
	if (claim->phase != first_phase[claim->mode])
		return unfit(why, "a claim begins in phase %s",
			     weight_upsert_phase_name(claim->phase));
	return 0;
}

static int claim_follows(const struct weight_claim *before,
			 const struct weight_claim *claim, struct buf *why)
{
	bool over = weight_upsert_phase_is_terminal(before->phase);

	if (claim->created_at_ms < before->created_at_ms ||
	    claim->updated_at_ms < before->updated_at_ms)
		return unfit(why, "the time of a claim goes back");
	if (over && same_place(before, claim))
		return 0;
	if (!same_claim(before, claim)) {
		if (!over)
			return unfit(why,
				     "another claim takes the place of one "
				     "that goes on");
		return new_claim_follows(claim, why);
	}
	if (over || claim->created_at_ms != before->created_at_ms ||
	    !(phases_after[before->phase] & 1u << claim->phase))
		return unfit(why, "a claim goes from phase %s to %s",
			     weight_upsert_phase_name(before->phase),
			     weight_upsert_phase_name(claim->phase));
	return 0;
}

static int lineage_upsert(const struct weight_replay_state *state,
			  const struct oplog_change *change, struct buf *why)
{
	const struct weight_lineage_record *before = state->lineage;
	const struct weight_lineage_record *l = change->lineage;
	uint64_t at = before ? before->lineage_metadata_generation : 0;

	if (before && l->lineage_metadata_generation == at &&
	    same_lineage(before, l))
		return 0;
	if (l->lineage_metadata_generation != at + 1)
		return unfit(why,
			     "lineage metadata generation %" PRIu64
			     " follows on %" PRIu64,
			     l->lineage_metadata_generation, at);
	if (before && l->watermark < before->watermark)
		return unfit(why,
			     "the watermark goes from %" PRIu64
			     " back to %" PRIu64,
			     before->watermark, l->watermark);
	if (!before || !before->claimed)
		return l->claimed ? new_claim_follows(&l->claim, why) : 0;
	if (!l->claimed)
		return unfit(why, "the claim of a lineage is gone");
	return claim_follows(&before->claim, &l->claim, why);
}

int weight_decide_replay(const struct weight_replay_state *state,
			 const struct oplog_change *change, struct buf *why)
{
	switch (change->type) {
	case OPLOG_METADATA_UPSERT:
		return metadata_upsert(state, change, why);
	case OPLOG_METADATA_DELETE:
		return metadata_delete(state, change, why);
	case OPLOG_LEASE_UPSERT:
		return lease_upsert(state, change, why);
	case OPLOG_LEASE_DELETE:
		return lease_delete(state, change, why);
	case OPLOG_LINEAGE_UPSERT:
		return lineage_upsert(state, change, why);
	}
	return unfit(why, "an entry of type %u", (unsigned)change->type);
}
