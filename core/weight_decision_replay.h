/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decisions of a follower: whether an entry of the operation log may follow on
 * what is there. What may, is then written just as the entry says.
 *
 * Pure functions; why gets one sentence on a refusal and may be NULL.
 *
 * Source: weight contracts, section 8.4.
 */
#ifndef CORE_WEIGHT_DECISION_REPLAY_H
#define CORE_WEIGHT_DECISION_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/oplog.h"

/* What there is of what the entry names. NULL stands for no record. */
struct weight_replay_state {
	const struct weight_metadata *metadata;
	const struct weight_lineage_record *lineage;
	const struct weight_lease *lease; /* with the entry's lease id */
	/* With the ids of the entry's operations, in their order. */
	const struct weight_operation *operations[OPLOG_OPERATIONS_MAX];
	/* The active one of the revision as it is, or NULL. */
	const struct weight_operation *active;
	uint64_t next_lease_id;
	uint64_t next_operation_id;
};

/*
 * METADATA_UPSERT: the first metadata generation is 1 (an import that begins),
 * or WEIGHT_PUBLISHED_GENERATION (one that is published at once); later ones are
 * the current one plus 1, by a legal transition, with the payload and affinity
 * summary that it began with, an immutable reference from READY on, the same
 * creation time, and times that don't go back. At the same generation nothing
 * may differ but `durable`, the times of update and of the last access (which
 * don't go back) and operations that changed with it. Nothing follows on a
 * tombstone, but for an import that a live DELETE_FIRST claim in phase
 * TARGET_IMPORTING begins again for its own target, with a description and a
 * creation time of its own.
 *
 * Its operations: an active one that the revision has then must be in the entry
 * or be there, fenced at the new generation; one that it had and has no more
 * must be in the entry, over, with the fence that it had, and finished only
 * where the revision is idle and has reached the target. A new one has an id
 * from next_operation_id on. What an operation is doing for which revision
 * stays as it began, one that is over doesn't change, counters and times of one
 * don't go down.
 *
 * METADATA_DELETE: the revision is DELETING, the generation the next one, and
 * the timestamp not before its last update; the same tombstone again is
 * accepted.
 *
 * LEASE_UPSERT: a new one has an id from next_lease_id on, the revision is READY
 * or DEGRADED and the fence its metadata generation; one that is there keeps
 * identity, holder and fence and is only extended. An id below next_lease_id
 * without a lease was released: it never comes back. The revision is there, and
 * its last access doesn't go back.
 *
 * LEASE_DELETE: the lease has this identity and fence; one that is gone already
 * is accepted if its id was ever given.
 *
 * LINEAGE_UPSERT: the first lineage metadata generation is 1, later ones the
 * current plus 1, or the same record again; the watermark doesn't go down, times
 * neither; a claim begins in the first phase of its mode; a live one is followed
 * by its own next phases only, never by another claim, and one that has ended by
 * itself unchanged or by another one.
 *
 * The last id of all, UINT64_MAX, is never given: no next one would be left.
 *
 * Errors: -EUCLEAN the entry doesn't follow.
 */
int weight_decide_replay(const struct weight_replay_state *state,
			 const struct oplog_change *change, struct buf *why);

#endif
