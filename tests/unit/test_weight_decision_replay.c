/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each rule of a follower: what may follow on what, and what may not. Stands
 * for OpLogApplier (weight cases): upsert, lease, delete, tombstone fence.
 */
#include <errno.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_decision.h"
#include "core/weight_decision_replay.h"
#include "suite.h"
#include "weight_log_fixture.h"

/* What is there (was), and what the entry says (is). A rule changes both. */
static struct weight_metadata was, is;
static struct weight_operation op_was, op_is;     /* the entry's first */
static struct weight_operation next_was, next_is; /* the entry's second */
static struct weight_lease lease_was, lease_is;
static struct weight_lineage_record lineage_was, lineage_is;
static struct weight_replay_state state;
static struct oplog_change change;

static void to_state(struct weight_metadata *m,
		     enum weight_availability availability)
{
	m->availability = availability;
	if (availability == WEIGHT_DELETING || availability == WEIGHT_DELETED)
		m->operation_id = 0;
	if (availability == WEIGHT_DELETED) {
		m->residency = WEIGHT_ABSENT;
		m->observed_hot_ratio = 0;
	}
}

static void to_import(struct weight_metadata *m)
{
	uint64_t metadata_generation = m->metadata_generation;
	uint64_t updated_at_ms = m->updated_at_ms;
	uint64_t last_accessed_at_ms = m->last_accessed_at_ms;

	*m = demo_import();
	m->metadata_generation = metadata_generation;
	m->updated_at_ms = updated_at_ms;
	m->last_accessed_at_ms = last_accessed_at_ms;
}

/* READY at 4 without an operation becomes READY at 5. */
static void goes_on(void)
{
	was = demo_metadata();
	was.operation_id = 0;
	is = was;
	is.metadata_generation = 5;
	is.updated_at_ms = was.updated_at_ms + 1;
	state.metadata = &was;
	state.next_lease_id = 6;
	state.next_operation_id = 4;
	change.type = OPLOG_METADATA_UPSERT;
	change.metadata = &is;
}

static void stays(void)
{
	goes_on();
	is = was;
}

static void first(void)
{
	goes_on();
	state.metadata = NULL;
	is = demo_import();
}

static void published(void)
{
	first();
	is = demo_metadata();
	is.operation_id = 0;
	is.metadata_generation = WEIGHT_PUBLISHED_GENERATION;
}

static void from_to(enum weight_availability from, enum weight_availability to)
{
	goes_on();
	if (from == WEIGHT_IMPORTING)
		to_import(&was);
	else
		to_state(&was, from);
	/* What never had a manifest doesn't get one by being removed. */
	if (to == WEIGHT_IMPORTING ||
	    (from == WEIGHT_IMPORTING && to == WEIGHT_DELETING))
		to_import(&is);
	to_state(&is, to);
}

/* An import at 1 becomes READY at 2. */
static void commit(void)
{
	goes_on();
	was = demo_import();
	is.metadata_generation = 2;
}

/* A DELETE_FIRST claim begins its target again that was deleted at 4. */
static void begins_again(void)
{
	from_to(WEIGHT_DELETED, WEIGHT_IMPORTING);
	lineage_was = demo_lineage();
	lineage_was.claim.mode = WEIGHT_DELETE_FIRST;
	lineage_was.claim.phase = WEIGHT_TARGET_IMPORTING;
	lineage_was.claim.base = 6;
	lineage_was.claim.target = 7;
	state.lineage = &lineage_was;
}

/* The operation 3 that is there, and in the entry, too. */
static void runs(void)
{
	goes_on();
	was.operation_id = is.operation_id = 3;
	op_was = op_is = demo_operation();
	op_is.fenced_metadata_generation = 5;
	state.active = &op_was;
	state.operations[0] = &op_was;
	change.operation_count = 1;
	change.operations[0] = &op_is;
}

static void progresses(void)
{
	runs();
	is = was;
	op_is.fenced_metadata_generation = 4;
	op_is.processed_units = 3;
	op_is.processed_bytes = 600;
	op_is.cursor = "d";
	op_is.updated_at_ms++;
}

static void starts(void)
{
	runs();
	was.operation_id = 0;
	state.active = state.operations[0] = NULL;
	state.next_operation_id = 3;
}

static void end(struct weight_operation *op, const char *message)
{
	op->message = message;
	op->cursor = "";
	op->updated_at_ms++;
}

static void finishes(void)
{
	runs();
	is.operation_id = 0;
	is.residency = WEIGHT_COLD;
	is.observed_hot_ratio = 0;
	op_is = op_was;
	op_is.processed_units = op_is.total_units;
	op_is.processed_bytes = op_is.total_bytes;
	end(&op_is, WEIGHT_OPERATION_COMPLETED);
}

static void removes(void)
{
	runs();
	to_state(&is, WEIGHT_DELETING);
	op_is = op_was;
	end(&op_is, WEIGHT_OPERATION_REMOVED);
}

/* Operation 4 takes the place of 3. */
static void supersedes(void)
{
	runs();
	is.operation_id = 4;
	op_is = op_was;
	end(&op_is, WEIGHT_OPERATION_SUPERSEDED);
	next_is = demo_operation();
	next_is.operation_id = 4;
	next_is.fenced_metadata_generation = 5;
	change.operation_count = 2;
	change.operations[1] = &next_is;
}

/* The revision changes, and with it comes one that is long over. */
static void was_over(void)
{
	goes_on();
	op_was = demo_operation();
	op_was.operation_id = 2;
	op_was.fenced_metadata_generation = 2;
	end(&op_was, WEIGHT_OPERATION_SUPERSEDED);
	op_is = op_was;
	state.operations[0] = &op_was;
	change.operation_count = 1;
	change.operations[0] = &op_is;
}

/* The tombstone at 5 of what is DELETING at 4. */
static void deletes(void)
{
	goes_on();
	to_state(&was, WEIGHT_DELETING);
	change = (struct oplog_change){ .type = OPLOG_METADATA_DELETE,
					.timestamp_ms = was.updated_at_ms + 1,
					.identity = was.identity,
					.metadata_generation = 5 };
}

static void deletes_again(void)
{
	deletes();
	to_state(&was, WEIGHT_DELETED);
	was.metadata_generation = 5;
	was.updated_at_ms++;
}

static void acquires(void)
{
	goes_on();
	lease_is = demo_lease();
	lease_is.lease_id = 6;
	lease_is.fenced_metadata_generation = 4;
	change = (struct oplog_change){ .type = OPLOG_LEASE_UPSERT,
					.lease = &lease_is,
					.last_accessed_at_ms =
						was.last_accessed_at_ms };
}

static void renews(void)
{
	acquires();
	lease_was = lease_is = demo_lease();
	lease_is.expires_at_ms++;
	state.lease = &lease_was;
}

static void releases(void)
{
	goes_on();
	lease_was = demo_lease();
	state.lease = &lease_was;
	change = (struct oplog_change){ .type = OPLOG_LEASE_DELETE,
					.lease_id = lease_was.lease_id,
					.identity = lease_was.identity,
					.metadata_generation = 2 };
}

static void first_claim(void)
{
	goes_on();
	lineage_is = demo_lineage();
	lineage_is.lineage_metadata_generation = 1;
	change = (struct oplog_change){ .type = OPLOG_LINEAGE_UPSERT,
					.lineage = &lineage_is };
}

static void phases(enum weight_upsert_mode mode, enum weight_upsert_phase from,
		   enum weight_upsert_phase to)
{
	first_claim();
	lineage_is.lineage_metadata_generation = 3;
	lineage_was = demo_lineage();
	lineage_was.claim.mode = lineage_is.claim.mode = mode;
	lineage_was.claim.phase = from;
	lineage_is.claim.phase = to;
	lineage_is.claim.updated_at_ms++;
	state.lineage = &lineage_was;
}

static void retires(void)
{
	phases(WEIGHT_PUT_FIRST, WEIGHT_PREPARING_TARGET, WEIGHT_RETIRING_BASE);
	lineage_is.watermark = 8;
}

/* What was completed is followed by the claim of the next generation. */
static void next_claim(void)
{
	phases(WEIGHT_PUT_FIRST, WEIGHT_COMPLETED, WEIGHT_PREPARING_TARGET);
	lineage_is.claim.base = 8;
	lineage_is.claim.target = 9;
	lineage_is.claim.created_at_ms = lineage_is.claim.updated_at_ms;
}

static void same_lineage(void)
{
	retires();
	lineage_is = lineage_was;
}

/* Completed, and the record goes on for another reason. */
static void completed(void)
{
	phases(WEIGHT_PUT_FIRST, WEIGHT_COMPLETED, WEIGHT_COMPLETED);
	lineage_is.claim = lineage_was.claim;
	lineage_is.watermark = 9;
}

#define RULE(name, scene, statements)                                          \
	static void name(void)                                                 \
	{                                                                      \
		scene();                                                       \
		statements;                                                    \
	}
#define AS_TOMBSTONE from_to(WEIGHT_DELETED, WEIGHT_DELETED)

/* clang-format off */

/* ---- Revisions ---- */

RULE(first_at_2,          first, is.metadata_generation = 2)
RULE(first_is_deleting,   first, to_state(&is, WEIGHT_DELETING))
RULE(first_is_ready_at_1, published, is.metadata_generation = 1)
RULE(published_at_3,      published, is.metadata_generation = 3)
RULE(published_degraded,  published, to_state(&is, WEIGHT_DEGRADED))
RULE(published_deleted,   published, to_state(&is, WEIGHT_DELETED))

RULE(skips_one,           goes_on, is.metadata_generation = 6)
RULE(goes_back,           goes_on, is.metadata_generation = 3)
RULE(policy,              goes_on, is.policy.mode = WEIGHT_PINNED)
RULE(residency,           goes_on, is.residency = WEIGHT_MIXED;
				   is.observed_hot_ratio = 0.5)
RULE(accessed,            goes_on, is.last_accessed_at_ms++)
RULE(same_time,           goes_on, is.updated_at_ms = was.updated_at_ms)
RULE(created_later,       goes_on, is.created_at_ms++)
RULE(updated_earlier,     goes_on, is.updated_at_ms = was.updated_at_ms - 1)
RULE(accessed_earlier,    goes_on, is.last_accessed_at_ms--)
RULE(other_count,         goes_on, is.manifest.payload_count++)
RULE(other_bytes,         goes_on, is.manifest.logical_bytes++)
RULE(other_affinities,    goes_on, is.affinity_count++)
RULE(other_affinity,      goes_on, is.affinity_digest.bytes[0]++)
RULE(other_manifest,      goes_on, is.manifest.manifest_sha256.bytes[0]++)
RULE(other_keys,          goes_on, is.manifest.payload_keys_sha256.bytes[0]++)
RULE(commit_of_others,    commit,  is.manifest.payload_count++)
RULE(commit_of_more,      commit,  is.manifest.logical_bytes++)
RULE(commit_of_units,     commit,  is.affinity_count++)
RULE(commit_at_once,      commit,  is.metadata_generation = 1)
RULE(abort_with_manifest, commit,  to_state(&is, WEIGHT_DELETING))
RULE(manifest_goes,       goes_on, to_import(&is);
				   to_state(&is, WEIGHT_DELETING))

RULE(stays_durable,       stays, is.durable = true; is.updated_at_ms++)
RULE(stays_accessed,      stays, is.last_accessed_at_ms++)
RULE(stays_ready,         stays, to_state(&is, WEIGHT_DEGRADED))
RULE(stays_in_place,      stays, is.residency = WEIGHT_COLD;
				 is.observed_hot_ratio = 0)
RULE(stays_by_policy,     stays, is.policy.mixed_hot_ratio = 0.4)
RULE(stays_created,       stays, is.created_at_ms--)
RULE(stays_updated,       stays, is.updated_at_ms--)
RULE(stays_accessed_then, stays, is.last_accessed_at_ms--)
RULE(stays_with_payload,  stays, is.manifest.manifest_sha256.bytes[9]++)
RULE(stays_without_work,  stays, is.operation_id = 3)

RULE(tombstone_follows,   goes_on, AS_TOMBSTONE)
RULE(tombstone_stays,     goes_on, AS_TOMBSTONE; is = was)
RULE(tombstone_accessed,  goes_on, AS_TOMBSTONE; is = was;
				   is.last_accessed_at_ms++)

RULE(again_created_later, begins_again, is.created_at_ms++;
					is.updated_at_ms++)
RULE(again_of_others,     begins_again, is.manifest.payload_count++)
RULE(again_at_1,          begins_again, is.metadata_generation = 1)
RULE(again_at_4,          begins_again, is.metadata_generation = 4)
RULE(again_created_before, begins_again, is.created_at_ms--)
RULE(again_in_the_past,   begins_again, is.updated_at_ms = 1000)
RULE(again_accessed,      begins_again, is.last_accessed_at_ms--)
RULE(again_unclaimed,     begins_again, state.lineage = NULL)
RULE(again_never_claimed, begins_again, lineage_was.claimed = false)
RULE(again_completed,     begins_again,
     lineage_was.claim.phase = WEIGHT_COMPLETED)
RULE(again_too_early,     begins_again,
     lineage_was.claim.phase = WEIGHT_DELETING_BASE)
RULE(again_put_first,     begins_again,
     lineage_was.claim.mode = WEIGHT_PUT_FIRST;
     lineage_was.claim.phase = WEIGHT_PREPARING_TARGET)
RULE(again_its_base,      begins_again, lineage_was.claim.base = 7;
					lineage_was.claim.target = 8)
RULE(again_ready,         begins_again, is = was; to_state(&is, WEIGHT_READY);
	is.metadata_generation = 5; is.residency = WEIGHT_COLD)
RULE(again_with_work,     begins_again, op_is = demo_operation();
	change.operation_count = 1; change.operations[0] = &op_is)

/* ---- Operations ---- */

RULE(follows_without,     runs, change.operation_count = 0)
RULE(follows_behind,      runs, op_is.fenced_metadata_generation = 4)
RULE(follows_ahead,       runs, op_is.fenced_metadata_generation = 6)
RULE(follows_elsewhere,   runs, is.operation_id = 4)
RULE(vanishes,            runs, is.operation_id = 0; change.operation_count = 0)
RULE(vanishes_running,    runs, is.operation_id = 0)
RULE(stays_beside,        runs, is = was; change.operation_count = 0;
				is.durable = true)
RULE(stays_but_fenced,    runs, is = was; change.operation_count = 0;
				op_was.fenced_metadata_generation = 3)
RULE(stays_but_gone,      runs, is = was; change.operation_count = 0;
				state.active = NULL)
RULE(stays_another,       runs, is = was; change.operation_count = 0;
				op_was.operation_id = 2)

RULE(reports_an_error,    progresses, op_is = op_was; op_is.message = "no room")
RULE(progress_again,      progresses, op_is = op_was)
RULE(progress_refenced,   progresses, op_is.fenced_metadata_generation = 5)
RULE(progress_seen,       progresses, is.metadata_generation = 5;
     is.residency = WEIGHT_MIXED; is.observed_hot_ratio = 0.5;
     op_is.fenced_metadata_generation = 5)
RULE(fewer_units,         progresses, op_is.processed_units = 1)
RULE(fewer_bytes,         progresses, op_is.processed_bytes = 299)
RULE(operation_goes_back, progresses, op_is.updated_at_ms = 2099)
RULE(other_total,         progresses, op_is.total_units++)
RULE(other_total_bytes,   progresses, op_is.total_bytes++)
RULE(other_kind,          progresses, op_is.kind = WEIGHT_REPAIRING)
RULE(other_target,        progresses, op_is.target_residency = WEIGHT_HOT)
RULE(other_ratio,         progresses,
     op_was.target_residency = op_is.target_residency = WEIGHT_MIXED;
     op_was.target_hot_ratio = 0.5; op_is.target_hot_ratio = 0.6)
RULE(other_start,         progresses, op_is.started_at_ms++)
RULE(other_revision,      progresses, op_was.identity.generation = 6)

RULE(starts_later,        starts, state.next_operation_id = 1)
RULE(starts_again,        starts, state.next_operation_id = 4)
RULE(starts_at_the_end,   starts,
     is.operation_id = op_is.operation_id = UINT64_MAX)
RULE(starts_before_it,    starts,
     is.operation_id = op_is.operation_id = UINT64_MAX - 1)
RULE(starts_unsaid,       starts, is.operation_id = 0)
RULE(starts_in_place,     starts, is = was)
RULE(starts_over,         starts, end(&op_is, WEIGHT_OPERATION_SUPERSEDED))
RULE(starts_gone,         starts, end(&op_is, WEIGHT_OPERATION_SUPERSEDED);
				  is.operation_id = 0)
RULE(starts_nowhere,      starts, change.operation_count = 0)
RULE(published_with_work, published, is.operation_id = 4;
     op_is = demo_operation(); op_is.operation_id = 4;
     op_is.fenced_metadata_generation = 2;
     change.operation_count = 1; change.operations[0] = &op_is)
RULE(published_for_work,  published, is.operation_id = 4)

RULE(finishes_refenced,   finishes, op_is.fenced_metadata_generation = 5)
RULE(finishes_elsewhere,  finishes, is.residency = WEIGHT_MIXED;
				    is.observed_hot_ratio = 0.5)
RULE(finishes_other_work, finishes, op_is.kind = WEIGHT_REPAIRING)
RULE(finishes_and_runs,   finishes, is.operation_id = 3)
RULE(finishes_for_next,   supersedes, is.residency = WEIGHT_COLD;
     is.observed_hot_ratio = 0; op_is = op_was;
     op_is.processed_units = op_is.total_units;
     op_is.processed_bytes = op_is.total_bytes;
     end(&op_is, WEIGHT_OPERATION_COMPLETED))
RULE(removes_refenced,    removes, op_is.fenced_metadata_generation = 5)
RULE(removes_without,     removes, change.operation_count = 0)
RULE(supersedes_silently, supersedes, change.operations[0] = &next_is;
     state.operations[0] = NULL; change.operation_count = 1)
RULE(supersedes_running,  supersedes, op_is = op_was)
RULE(supersedes_for_old,  supersedes, state.next_operation_id = 5)
RULE(supersedes_old_one,  supersedes, next_was = next_is;
     next_was.fenced_metadata_generation = 1;
     end(&next_was, WEIGHT_OPERATION_REMOVED); state.operations[1] = &next_was)

RULE(over_refenced,       was_over, op_is.fenced_metadata_generation = 3)
RULE(over_with_progress,  was_over, op_is.processed_units++)
RULE(over_with_bytes,     was_over, op_is.processed_bytes++)
RULE(over_later,          was_over, op_is.updated_at_ms++)
RULE(over_otherwise,      was_over, op_is.message = WEIGHT_OPERATION_REMOVED)
RULE(over_and_runs,       was_over, op_is.message = ""; is.operation_id = 2;
				    op_is.fenced_metadata_generation = 5)
RULE(over_with_a_cursor,  was_over, op_is.cursor = "c"; op_is.message = "")
RULE(over_of_another,     was_over, op_is.kind = WEIGHT_REPAIRING)

/* ---- Tombstones ---- */

RULE(deletes_at_once,     deletes, change.timestamp_ms = was.updated_at_ms)
RULE(deletes_earlier,     deletes, change.timestamp_ms--;
				   change.timestamp_ms--)
RULE(deletes_nobody,      deletes, state.metadata = NULL)
RULE(deletes_ahead,       deletes, change.metadata_generation = 6)
RULE(deletes_in_place,    deletes, change.metadata_generation = 4)
RULE(deletes_ready,       deletes, to_state(&was, WEIGHT_READY))
RULE(deletes_degraded,    deletes, to_state(&was, WEIGHT_DEGRADED))
RULE(deletes_import,      deletes, to_import(&was))
RULE(deletes_on,          deletes_again, change.metadata_generation = 6)
RULE(deletes_then,        deletes_again, change.metadata_generation = 4)
RULE(deletes_again_later, deletes_again, change.timestamp_ms++)

/* ---- Leases ---- */

RULE(acquires_degraded,   acquires, to_state(&was, WEIGHT_DEGRADED))
RULE(acquires_later_id,   acquires, lease_is.lease_id = 9)
RULE(acquires_last_id,    acquires, lease_is.lease_id = UINT64_MAX - 1)
RULE(acquires_end,        acquires, lease_is.lease_id = UINT64_MAX)
RULE(acquires_released,   acquires, lease_is.lease_id = 5)
RULE(acquires_accessed,   acquires, change.last_accessed_at_ms++)
RULE(acquires_in_past,    acquires, change.last_accessed_at_ms--)
RULE(acquires_nothing,    acquires, state.metadata = NULL)
RULE(acquires_import,     acquires, to_import(&was))
RULE(acquires_deleting,   acquires, to_state(&was, WEIGHT_DELETING))
RULE(acquires_deleted,    acquires, to_state(&was, WEIGHT_DELETED))
RULE(acquires_behind,     acquires, lease_is.fenced_metadata_generation = 3)
RULE(acquires_ahead,      acquires, lease_is.fenced_metadata_generation = 5)
RULE(renews_again,        renews, lease_is = lease_was)
RULE(renews_accessed,     renews, change.last_accessed_at_ms++)
RULE(renews_in_past,      renews, change.last_accessed_at_ms--)
RULE(renews_shorter,      renews, lease_is.expires_at_ms -= 2)
RULE(renews_holder,       renews, lease_is.holder = "mount:2")
RULE(renews_identity,     renews, lease_is.identity.generation = 8)
RULE(renews_tenant,       renews, lease_is.identity.lineage.tenant = "other")
RULE(renews_fence,        renews, lease_is.fenced_metadata_generation = 4)
RULE(renews_nothing,      renews, state.metadata = NULL)
RULE(releases_again,      releases, state.lease = NULL)
RULE(releases_never,      releases, state.lease = NULL; change.lease_id = 6)
RULE(releases_identity,   releases, change.identity.generation = 8)
RULE(releases_fence,      releases, change.metadata_generation = 3)
RULE(releases_going,      releases, to_state(&was, WEIGHT_DELETING))

/* ---- Lineages ---- */

RULE(first_lineage,       first_claim, lineage_is.claimed = false)
RULE(first_lineage_at_2,  first_claim,
     lineage_is.lineage_metadata_generation = 2)
RULE(first_delete_first,  first_claim,
     lineage_is.claim.mode = WEIGHT_DELETE_FIRST;
     lineage_is.claim.phase = WEIGHT_DELETING_BASE)
RULE(first_retiring,      first_claim,
     lineage_is.claim.phase = WEIGHT_RETIRING_BASE)
RULE(first_aborted,       first_claim,
     lineage_is.claim.phase = WEIGHT_ABORTED)
RULE(first_importing,     first_claim,
     lineage_is.claim.mode = WEIGHT_DELETE_FIRST;
     lineage_is.claim.phase = WEIGHT_TARGET_IMPORTING)
RULE(claims_later,        next_claim, lineage_was.claimed = false)
RULE(claims_later_midway, next_claim, lineage_was.claimed = false;
     lineage_is.claim.phase = WEIGHT_COMPLETED)
RULE(stays_unclaimed,     next_claim, lineage_was.claimed = false;
     lineage_is.claimed = false; lineage_is.watermark = 9)
RULE(lineage_skips,       retires, lineage_is.lineage_metadata_generation = 4)
RULE(lineage_back,        retires, lineage_is.lineage_metadata_generation = 1)
RULE(lineage_in_place,    retires, lineage_is.lineage_metadata_generation = 2)
RULE(watermark_back,      retires, lineage_is.watermark = 6)
RULE(claim_updated_back,  retires, lineage_is.claim.updated_at_ms -= 2)
RULE(claim_created_back,  retires, lineage_is.claim.created_at_ms--)
RULE(claim_created_later, retires, lineage_is.claim.created_at_ms++)
RULE(claim_goes,          retires, lineage_is.claimed = false)
RULE(claim_of_others,     retires, lineage_is.claim.request_id = "another")
RULE(claim_of_target,     retires, lineage_is.claim.target = 9)
RULE(claim_of_base,       retires, lineage_is.claim.base = 6)
RULE(claim_of_fence,      retires,
     lineage_is.claim.expected_base_metadata_generation = 5)
RULE(claim_of_size,       retires,
     lineage_is.claim.import.logical_bytes++)
RULE(claim_undescribed,   retires, lineage_is.claim.described = false;
     lineage_is.claim.import = (struct weight_import){ 0 })
RULE(claim_begins_beside, next_claim,
     lineage_was.claim.phase = WEIGHT_RETIRING_BASE)
RULE(claim_fails,         retires, lineage_is.claim.error = "no room";
     lineage_is.claim.phase = WEIGHT_PREPARING_TARGET)
RULE(claims_after_abort,  next_claim,
     lineage_was.claim.phase = WEIGHT_ABORTED)
RULE(claims_by_same_id,   next_claim, lineage_is.claim.base = 7;
     lineage_was.claim.phase = WEIGHT_ABORTED)
RULE(claims_midway,       next_claim,
     lineage_is.claim.phase = WEIGHT_RETIRING_BASE)
RULE(claims_in_the_past,  next_claim, lineage_is.claim.created_at_ms = 2499)
RULE(revives,             next_claim, lineage_is.claim = lineage_was.claim;
     lineage_is.claim.phase = WEIGHT_PREPARING_TARGET)
RULE(revives_later,       revives, lineage_is.claim.created_at_ms++)
RULE(completed_later,     completed, lineage_is.claim.updated_at_ms++)
RULE(completed_badly,     completed, lineage_is.claim.error = "no room")
RULE(same_but_error,      same_lineage, lineage_is.claim.error = "no room")
RULE(same_but_watermark,  same_lineage, lineage_is.watermark++)
RULE(same_but_unclaimed,  same_lineage, lineage_is.claimed = false)
RULE(same_unclaimed,      same_lineage,
     lineage_was.claimed = lineage_is.claimed = false)
RULE(unknown_type,        goes_on, change.type = 13)

static const struct {
	const char *name;
	void (*set)(void);
	bool fits;
} rules[] = {
#define FITS(name) { #name, name, true }
#define UNFIT(name) { #name, name, false }
	FITS(first), FITS(published),
	UNFIT(first_at_2), UNFIT(first_is_deleting),
	UNFIT(first_is_ready_at_1), UNFIT(published_at_3),
	UNFIT(published_degraded), UNFIT(published_deleted),

	FITS(goes_on), FITS(policy), FITS(residency), FITS(accessed),
	FITS(same_time), FITS(commit),
	UNFIT(skips_one), UNFIT(goes_back), UNFIT(created_later),
	UNFIT(updated_earlier), UNFIT(accessed_earlier), UNFIT(other_count),
	UNFIT(other_bytes), UNFIT(other_affinities), UNFIT(other_affinity),
	UNFIT(other_manifest), UNFIT(other_keys), UNFIT(commit_of_others),
	UNFIT(commit_of_more), UNFIT(commit_of_units), UNFIT(commit_at_once),
	UNFIT(abort_with_manifest), UNFIT(manifest_goes),

	FITS(stays), FITS(stays_durable), FITS(stays_accessed),
	UNFIT(stays_ready), UNFIT(stays_in_place),
	UNFIT(stays_by_policy), UNFIT(stays_created), UNFIT(stays_updated),
	UNFIT(stays_accessed_then), UNFIT(stays_with_payload),
	UNFIT(stays_without_work),

	FITS(begins_again), FITS(again_created_later), FITS(again_of_others),
	UNFIT(tombstone_follows), UNFIT(tombstone_stays),
	UNFIT(tombstone_accessed), UNFIT(again_at_1), UNFIT(again_at_4),
	UNFIT(again_created_before), UNFIT(again_in_the_past),
	UNFIT(again_accessed), UNFIT(again_unclaimed),
	UNFIT(again_never_claimed), UNFIT(again_completed),
	UNFIT(again_too_early), UNFIT(again_put_first), UNFIT(again_its_base),
	UNFIT(again_ready), UNFIT(again_with_work),

	FITS(runs), FITS(stays_beside),
	UNFIT(follows_without), UNFIT(follows_behind), UNFIT(follows_ahead),
	UNFIT(follows_elsewhere), UNFIT(vanishes), UNFIT(vanishes_running),
	UNFIT(stays_but_fenced), UNFIT(stays_but_gone), UNFIT(stays_another),

	FITS(progresses), FITS(reports_an_error), FITS(progress_again),
	FITS(progress_seen),
	UNFIT(progress_refenced), UNFIT(fewer_units), UNFIT(fewer_bytes),
	UNFIT(operation_goes_back), UNFIT(other_total),
	UNFIT(other_total_bytes), UNFIT(other_kind), UNFIT(other_target),
	UNFIT(other_ratio), UNFIT(other_start), UNFIT(other_revision),

	FITS(starts), FITS(starts_later), FITS(starts_before_it),
	FITS(published_with_work),
	UNFIT(starts_again), UNFIT(starts_at_the_end), UNFIT(starts_unsaid),
	UNFIT(starts_in_place), UNFIT(starts_over), UNFIT(starts_gone),
	UNFIT(starts_nowhere), UNFIT(published_for_work),

	FITS(finishes), FITS(removes), FITS(supersedes),
	UNFIT(finishes_refenced), UNFIT(finishes_elsewhere),
	UNFIT(finishes_other_work), UNFIT(finishes_and_runs),
	UNFIT(finishes_for_next), UNFIT(removes_refenced),
	UNFIT(removes_without), UNFIT(supersedes_silently),
	UNFIT(supersedes_running), UNFIT(supersedes_for_old),
	UNFIT(supersedes_old_one),

	FITS(was_over),
	UNFIT(over_refenced), UNFIT(over_with_progress), UNFIT(over_with_bytes),
	UNFIT(over_later), UNFIT(over_otherwise), UNFIT(over_and_runs),
	UNFIT(over_with_a_cursor), UNFIT(over_of_another),

	FITS(deletes), FITS(deletes_at_once), FITS(deletes_again),
	UNFIT(deletes_earlier), UNFIT(deletes_nobody), UNFIT(deletes_ahead),
	UNFIT(deletes_in_place), UNFIT(deletes_ready), UNFIT(deletes_degraded),
	UNFIT(deletes_import), UNFIT(deletes_on), UNFIT(deletes_then),
	UNFIT(deletes_again_later),

	FITS(acquires), FITS(acquires_degraded), FITS(acquires_later_id),
	FITS(acquires_last_id), FITS(acquires_accessed),
	UNFIT(acquires_end), UNFIT(acquires_released), UNFIT(acquires_in_past),
	UNFIT(acquires_nothing), UNFIT(acquires_import),
	UNFIT(acquires_deleting), UNFIT(acquires_deleted),
	UNFIT(acquires_behind), UNFIT(acquires_ahead),
	FITS(renews), FITS(renews_again), FITS(renews_accessed),
	UNFIT(renews_in_past), UNFIT(renews_shorter), UNFIT(renews_holder),
	UNFIT(renews_identity), UNFIT(renews_tenant), UNFIT(renews_fence),
	UNFIT(renews_nothing),
	FITS(releases), FITS(releases_again), FITS(releases_going),
	UNFIT(releases_never), UNFIT(releases_identity), UNFIT(releases_fence),

	FITS(first_claim), FITS(first_lineage), FITS(first_delete_first),
	UNFIT(first_lineage_at_2), UNFIT(first_retiring), UNFIT(first_aborted),
	UNFIT(first_importing),
	FITS(claims_later), FITS(stays_unclaimed), UNFIT(claims_later_midway),
	FITS(retires), FITS(claim_fails),
	UNFIT(lineage_skips), UNFIT(lineage_back), UNFIT(lineage_in_place),
	UNFIT(watermark_back), UNFIT(claim_updated_back),
	UNFIT(claim_created_back), UNFIT(claim_created_later),
	UNFIT(claim_goes), UNFIT(claim_of_others), UNFIT(claim_of_target),
	UNFIT(claim_of_base), UNFIT(claim_of_fence), UNFIT(claim_of_size),
	UNFIT(claim_undescribed), UNFIT(claim_begins_beside),
	FITS(next_claim), FITS(claims_after_abort), FITS(claims_by_same_id),
	FITS(completed), FITS(same_lineage), FITS(same_unclaimed),
	UNFIT(claims_midway), UNFIT(claims_in_the_past), UNFIT(revives),
	UNFIT(revives_later), UNFIT(completed_later), UNFIT(completed_badly),
	UNFIT(same_but_error), UNFIT(same_but_watermark),
	UNFIT(same_but_unclaimed), UNFIT(unknown_type),
};
/* clang-format on */

static int replay(void)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	int r = weight_decide_replay(&state, &change, &why);

	ck_assert_int_eq(weight_decide_replay(&state, &change, NULL), r);
	ck_assert((why.len > 0) == (r < 0));
	ck_assert_ptr_null(strchr(why.data, '\n'));
	return r;
}

START_TEST(each_rule_has_its_answer)
{
	cleanup(buf_release) struct buf entry = BUF_INIT;
	int r;

	rules[_i].set();
	r = replay();
	/* What fits is a valid entry. */
	if (rules[_i].fits)
		ck_assert_int_eq(oplog_encode(&change, 1, &entry), 0);
	ck_assert_msg(r == (rules[_i].fits ? 0 : -EUCLEAN), "%s: %d",
		      rules[_i].name, r);
}
END_TEST

/* ---- All arrows ---- */

START_TEST(revisions_take_exactly_the_legal_arrows)
{
	for (unsigned from = 0; from <= WEIGHT_DELETED; from++)
		for (unsigned to = 0; to <= WEIGHT_DELETED; to++) {
			/* An operation or a policy changes nothing of these. */
			bool fits = weight_availability_may(from, to) ||
				    (from == to && from != WEIGHT_DELETED);
			int r;

			from_to(from, to);
			r = replay();
			ck_assert_msg(r == (fits ? 0 : -EUCLEAN),
				      "%u to %u: %d", from, to, r);
		}
}
END_TEST

/* clang-format off */
static const struct {
	enum weight_upsert_mode mode;
	enum weight_upsert_phase from, to;
} arrows[] = {
	{ WEIGHT_PUT_FIRST, WEIGHT_PREPARING_TARGET, WEIGHT_PREPARING_TARGET },
	{ WEIGHT_PUT_FIRST, WEIGHT_PREPARING_TARGET, WEIGHT_RETIRING_BASE },
	{ WEIGHT_PUT_FIRST, WEIGHT_PREPARING_TARGET, WEIGHT_ABORTED },
	{ WEIGHT_PUT_FIRST, WEIGHT_RETIRING_BASE, WEIGHT_RETIRING_BASE },
	{ WEIGHT_PUT_FIRST, WEIGHT_RETIRING_BASE, WEIGHT_COMPLETED },
	{ WEIGHT_DELETE_FIRST, WEIGHT_DELETING_BASE, WEIGHT_DELETING_BASE },
	{ WEIGHT_DELETE_FIRST, WEIGHT_DELETING_BASE, WEIGHT_TARGET_IMPORTING },
	{ WEIGHT_DELETE_FIRST, WEIGHT_DELETING_BASE, WEIGHT_ABORTED },
	{ WEIGHT_DELETE_FIRST, WEIGHT_TARGET_IMPORTING, WEIGHT_TARGET_IMPORTING },
	{ WEIGHT_DELETE_FIRST, WEIGHT_TARGET_IMPORTING, WEIGHT_COMPLETED },
};
/* clang-format on */

static bool is_arrow(unsigned mode, unsigned from, unsigned to)
{
	for (size_t i = 0; i < ARRAY_LEN(arrows); i++)
		if (arrows[i].mode == mode && arrows[i].from == from &&
		    arrows[i].to == to)
			return true;
	return false;
}

START_TEST(claims_take_exactly_the_legal_arrows)
{
	for (unsigned mode = 0; mode <= WEIGHT_DELETE_FIRST; mode++)
		for (unsigned n = 0; n < 36; n++) {
			unsigned from = n / 6, to = n % 6;
			int r;

			phases(mode, from, to);
			/* No record has a phase of the other mode. */
			if (weight_lineage_record_check(&lineage_was, NULL) ||
			    weight_lineage_record_check(&lineage_is, NULL))
				continue;
			r = replay();
			ck_assert_msg(
				r == (is_arrow(mode, from, to) ? 0 : -EUCLEAN),
				"mode %u, %u to %u: %d", mode, from, to, r);
		}
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_decision_replay");
	TCase *tc = tcase_create("core");

	tcase_add_loop_test(tc, each_rule_has_its_answer, 0,
			    (int)ARRAY_LEN(rules));
	tcase_add_test(tc, revisions_take_exactly_the_legal_arrows);
	tcase_add_test(tc, claims_take_exactly_the_legal_arrows);
	suite_add_tcase(s, tc);
	return s;
}
