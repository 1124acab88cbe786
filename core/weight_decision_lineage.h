/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decisions about lineages: the claim to replace a generation by a newer one,
 * from its beginning to its end.
 *
 *	PUT_FIRST	PREPARING_TARGET -> RETIRING_BASE -> COMPLETED
 *	DELETE_FIRST	DELETING_BASE -> TARGET_IMPORTING -> COMPLETED
 *
 * and from every phase before the end to ABORTED, with the exceptions that
 * weight_decide_upsert_abort() names.
 *
 * As in core/weight_decision.h: pure functions from the records that are there
 * to the record as it shall be; results borrow from the arguments; why gets one
 * sentence on a refusal and may be NULL; errors are listed in the order in which
 * they are looked for. Nothing is stored on a refusal.
 *
 * Source: weight contracts, sections 6.10, 6.11, 6.13 and 6.17.
 */
#ifndef CORE_WEIGHT_DECISION_LINEAGE_H
#define CORE_WEIGHT_DECISION_LINEAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/weight_lineage.h"
#include "core/weight_management.h"
#include "core/weight_record.h"

/* The message of a DELETE_FIRST claim whose target went away. */
#define WEIGHT_CLAIM_INTERRUPTED "target import interrupted"

struct weight_upsert_request {
	const char *request_id;
	struct weight_identity base;
	struct weight_identity target;
	enum weight_upsert_mode mode;
	uint64_t expected_base_metadata_generation; /* 1 or more */
	bool described; /* else the target is staged on the mount */
	struct weight_import import; /* zero if it isn't described */
};

/* What there is. NULL stands for a record that is not there. */
struct weight_lineage_state {
	const struct weight_lineage_record *lineage;
	const struct weight_metadata *base;
	const struct weight_metadata *target;
	const struct weight_staging *staged; /* the target, on the mount */
	uint64_t base_leases;                /* live ones */
	/* READY alone doesn't retire a base: the target must be durable. */
	bool wants_durable;
};

/*
 * The claim begins. A repeat of the latest request, with the same id and the
 * same arguments, resumes it in whatever phase it is, also when it has ended:
 * then *ret_changed is false and ret is what there is.
 *
 * A claim of the mode DELETE_FIRST whose target was interrupted loses its error
 * when it is resumed by its own request; that is a change.
 *
 * A described import has at least one object, one byte and one affinity unit,
 * and a digest of its units.
 *
 * Errors:
 *  -EINVAL	a bad identity, mode, request id, fence or import; base and
 *		target of different lineages
 *  -ECANCELED	the target is not above the base
 *  -EPERM	preferred MIXED with fewer than two affinity units
 *  -EBUSY	another claim is going on
 *  -ECANCELED	the base is not the watermark, or the target is not above it.
 *		Without a record of the lineage the base is the watermark
 *  -ENOENT	there is no base
 *  -ECANCELED	the base has another metadata generation
 *  -EINPROGRESS	the base is not READY
 *  -EBUSY	DELETE_FIRST, and the base has leases or an operation
 *  -EEXIST	the target can't be prepared: there is a record of it, in any
 *		state, or it is staged although described, or neither
 *  -EOVERFLOW	no lineage metadata generation is left
 */
int weight_decide_upsert_begin(const struct weight_lineage_state *state,
			       const struct weight_upsert_request *request,
			       uint64_t now_ms,
			       struct weight_lineage_record *ret,
			       bool *ret_changed, struct buf *why);

/* Who speaks of a claim names all of it. */
struct weight_claim_name {
	const char *request_id;
	uint64_t base; /* weight generations */
	uint64_t target;
};

/*
 * The target is READY: PUT_FIRST goes on to RETIRING_BASE, DELETE_FIRST to
 * COMPLETED, and the watermark to the target. Done already is a repeat.
 *
 * Errors:
 *  -ENOENT	the lineage has no claim
 *  -EEXIST	the latest claim is another one, or was aborted
 *  -EINPROGRESS	the target is not READY, or not durable where it must be,
 *		or the base of DELETE_FIRST is still there
 *  -EOVERFLOW
 */
int weight_decide_upsert_commit(const struct weight_lineage_state *state,
				const struct weight_claim_name *name,
				uint64_t now_ms,
				struct weight_lineage_record *ret,
				bool *ret_changed, struct buf *why);

/*
 * Gives the claim up. ABORTED already is a repeat. DELETE_FIRST in phase
 * TARGET_IMPORTING doesn't end: it stays there with the error
 * WEIGHT_CLAIM_INTERRUPTED, for the same request to resume.
 *
 * Errors:
 *  -ENOENT	the lineage has no claim
 *  -EEXIST	the latest claim is another one; COMPLETED or RETIRING_BASE; the
 *		target is READY or DEGRADED
 *  -EOVERFLOW
 */
int weight_decide_upsert_abort(const struct weight_lineage_state *state,
			       const struct weight_claim_name *name,
			       uint64_t now_ms,
			       struct weight_lineage_record *ret,
			       bool *ret_changed, struct buf *why);

/* What a claim needs next, from what is there. */
enum weight_claim_step {
	WEIGHT_CLAIM_DONE,    /* it has ended, or there is none */
	WEIGHT_CLAIM_WAITS,   /* for its writer, for leases, for the disk */
	WEIGHT_CLAIM_PREPARE, /* begin the import of the target again */
	WEIGHT_CLAIM_CLEAN,   /* the target is DELETING: finish that */
	WEIGHT_CLAIM_COMMIT,  /* the target is READY: commit */
	WEIGHT_CLAIM_ABORT,   /* the target is gone: abort */
	WEIGHT_CLAIM_DELETE,  /* nobody reads the base: delete it */
	WEIGHT_CLAIM_ADVANCE, /* the base is gone: weight_decide_claim_advance() */
};

/*
 *	phase			and				step
 *	PREPARING_TARGET,	target READY (and durable)	COMMIT
 *	TARGET_IMPORTING	READY, not durable yet		WAITS
 *				DEGRADED			WAITS
 *				IMPORTING, or staged		WAITS
 *				DELETING			CLEAN
 *				DELETED				ABORT
 *				none, described			PREPARE
 *				none, not described		ABORT
 *	RETIRING_BASE,		base DELETED or none		ADVANCE
 *	DELETING_BASE		base has leases, or an operation
 *				that is not to be ended		WAITS
 *				base DELETING			WAITS
 *				else				DELETE
 *
 * With the error WEIGHT_CLAIM_INTERRUPTED it waits for its own request instead
 * of ABORT and PREPARE. A target that is staged beside its tombstone is staged.
 *
 * An operation of the base that only pins or unpins doesn't keep it: the
 * deletion ends it.
 */
enum weight_claim_step weight_decide_claim_step(
	const struct weight_lineage_state *state, bool base_operation_blocks);

/*
 * The base is gone: RETIRING_BASE becomes COMPLETED, DELETING_BASE becomes
 * TARGET_IMPORTING. In another phase nothing changes.
 *
 * Errors: -ENOENT the lineage has no claim; -EBUSY the base is still there;
 * -EOVERFLOW.
 */
int weight_decide_claim_advance(const struct weight_lineage_state *state,
				uint64_t now_ms,
				struct weight_lineage_record *ret,
				bool *ret_changed);

/*
 * Whether something else may happen to the generation while the lineage is as
 * it is: begin an import, publish, or delete. by_claim: on behalf of the claim
 * that is going on.
 *
 * Errors: -EBUSY a claim is going on, and this is
 *  - an import of another generation than its target,
 *  - the import of its target before a base that goes first is gone, or after
 *    it was interrupted and before its own request has resumed it,
 *  - a deletion of its base or target that isn't done by it.
 */
int weight_decide_beside_claim(const struct weight_lineage_record *lineage,
			       uint64_t generation, bool is_import,
			       bool by_claim, struct buf *why);

#endif
