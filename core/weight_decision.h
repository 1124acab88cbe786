/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decisions: what an operation makes of the records that it finds.
 *
 * Each function takes the records as they are (NULL: there is none), the
 * arguments of the operation and the time, and either gives the record as it
 * shall be or refuses. Nothing is read, written, allocated for the caller or
 * remembered. The metadata store calls them inside its transactions.
 *
 * Ownership: a record in *ret borrows its strings from the arguments.
 *
 * Fences: expected_metadata_generation 0 stands for the current one. Times
 * never go back: `now_ms` counts as at least the time that a record has.
 *
 * why gets one sentence on a refusal; it may be NULL.
 *
 * The errors of a function are listed in the order in which they are looked
 * for. Each stands for one error of the contracts, see weight_error_errno().
 *
 * Source: weight contracts, sections 6.4 to 6.6 and 6.8 to 6.11.
 */
#ifndef CORE_WEIGHT_DECISION_H
#define CORE_WEIGHT_DECISION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/weight_management.h"
#include "core/weight_record.h"

/* What is to be published. All of it is borrowed. */
struct weight_publication {
	struct weight_identity identity;
	struct weight_manifest_ref manifest; /* complete */
	struct weight_policy policy;
	uint64_t affinity_count;
	struct digest affinity_digest;
	enum weight_residency residency;
	double observed_hot_ratio;
	bool durable;
	/* An operation to the preferred residency begins, unless it is there. */
	bool converges;
};

struct weight_publish_state {
	const struct weight_metadata *existing;
	const struct weight_staging *staged;
	const struct weight_lineage_record *lineage;
	uint64_t next_operation_id;
};

/*
 * Whether identity may be staged.
 *
 * Errors: -EINVAL; -EEXIST a record of it exists, in any state, or it is staged
 * already; why says which.
 */
int weight_decide_stage(const struct weight_metadata *existing,
			const struct weight_staging *staged,
			const struct weight_identity *identity,
			struct buf *why);

/*
 * Begin and commit of an import as one step: the record is READY at once and
 * its metadata generation is WEIGHT_PUBLISHED_GENERATION.
 *
 * Errors:
 *  -EINVAL	the arguments don't make a valid record
 *  -EPERM	preferred MIXED with fewer than two affinity units
 *  -EEXIST	it is there already
 *  -ECANCELED	it was there and was removed
 *  -EBUSY	a replacement has claimed the lineage and this isn't its target, or
 *		its base has not gone yet and is to go first, or it was interrupted
 *		and nobody resumed it
 *  -ECANCELED	the generation is not above the watermark
 *  -ENOENT	it isn't staged
 *  -EOVERFLOW	no operation id is left
 */
#define WEIGHT_PUBLISHED_GENERATION 2
int weight_decide_publish(const struct weight_publish_state *state,
			  const struct weight_publication *p, uint64_t now_ms,
			  struct weight_metadata *ret, struct buf *why);

/* The operation that begins with a record that was just published so. */
void weight_decide_publish_operation(const struct weight_metadata *m,
				     struct weight_operation *ret);

struct weight_lease_request {
	const char *holder;
	uint64_t ttl_ms;
	uint64_t expected_metadata_generation;
	bool degraded_too; /* DEGRADED will do as well as READY */
};

struct weight_lease_state {
	const struct weight_metadata *metadata;
	const struct weight_lease *held; /* live and of the same holder */
	bool fenced;           /* a replacement retires the revision */
	bool operation_blocks; /* one other than MIGRATING is active */
	uint64_t next_lease_id;
};

/*
 * A holder that has a live lease gets that one, unchanged: then *ret_new is
 * false and nothing is to be written.
 *
 * Errors: -EINVAL a bad identity, holder or TTL; -ENOENT; -ECANCELED another
 * metadata generation; -EINPROGRESS not READY; -EBUSY fenced, or an operation
 * that blocks; -EOVERFLOW no lease id is left.
 */
int weight_decide_lease_acquire(const struct weight_lease_state *state,
				const struct weight_identity *identity,
				const struct weight_lease_request *request,
				uint64_t now_ms, struct weight_lease *ret,
				bool *ret_new);

/*
 * Never shortens a lease.
 *
 * Errors: -EINVAL a bad TTL; -ENOENT no such lease, or of another tenant;
 * -EKEYEXPIRED; -EBUSY fenced.
 */
int weight_decide_lease_renew(const struct weight_lease *lease,
			      const char *tenant, bool fenced, uint64_t ttl_ms,
			      uint64_t now_ms, struct weight_lease *ret);

struct weight_delete_state {
	const struct weight_metadata *metadata;
	bool claimed;          /* a replacement is going on */
	uint64_t leases;       /* active ones that count */
	bool operation_blocks; /* one that can't just be ended is active */
};

/*
 * To DELETING. An active operation that doesn't block ends with it. *ret_changed
 * is false for a repeat of what is done already.
 *
 * Errors: -ENOENT; -EBUSY claimed; -ECANCELED another metadata generation;
 * -EBUSY leases, then operation; -EINPROGRESS neither READY nor DEGRADED;
 * -EOVERFLOW.
 */
int weight_decide_delete_begin(const struct weight_delete_state *state,
			       uint64_t expected_metadata_generation,
			       uint64_t now_ms, struct weight_metadata *ret,
			       bool *ret_changed);

/*
 * From DELETING to the tombstone: DELETED and ABSENT.
 *
 * Errors: -ENOENT; -ECANCELED another metadata generation; -EEXIST not
 * DELETING; -EOVERFLOW.
 */
int weight_decide_delete_finish(const struct weight_metadata *metadata,
				uint64_t expected_metadata_generation,
				uint64_t now_ms, struct weight_metadata *ret,
				bool *ret_changed);

/* What was found out about the payload of a revision. */
struct weight_observation {
	enum weight_availability availability; /* READY or DEGRADED */
	enum weight_residency residency;
	double hot_ratio;
	bool durable;
	/* An active operation goes on as it is, instead of being -EBUSY. */
	bool beside_operation;
};

/* Whether a revision can be so. Errors: -EINVAL. */
int weight_observation_check(const struct weight_observation *seen);

/*
 * Makes the record say what is there. The metadata generation goes up when
 * more than `durable` changes; that one is the filesystem's own. The fence of
 * an active operation has to follow, see weight_decide_operation_follow().
 *
 * Errors: -EINVAL; -ENOENT; -EBUSY an operation is active; -ECANCELED another
 * metadata generation; -EINPROGRESS neither READY nor DEGRADED; -EOVERFLOW.
 */
int weight_decide_observe(const struct weight_metadata *metadata,
			  const struct weight_observation *seen,
			  uint64_t expected_metadata_generation,
			  uint64_t now_ms, struct weight_metadata *ret,
			  bool *ret_changed);

/* ---- Residency operations ---- */

/*
 * Whether the active operation of a revision (NULL: there is none) is in the
 * way of leases and of removal. One that only pins or unpins is not.
 */
bool weight_operation_blocks(const struct weight_operation *active);

/*
 * What becomes of the active operation of a revision whose record is `next`
 * now: it ends with a removal, and else its fence follows. *ret_changed is
 * false when it is as it was.
 */
void weight_decide_operation_follow(const struct weight_operation *active,
				    const struct weight_metadata *next,
				    uint64_t now_ms,
				    struct weight_operation *ret,
				    bool *ret_changed);

struct weight_operation_state {
	const struct weight_metadata *metadata;
	/* When starting, the active one, else the one that the id names. */
	const struct weight_operation *operation;
	/* Of starting only. */
	bool fenced; /* a replacement retires the revision */
	uint64_t next_operation_id;
};

/* Both records after a decision. */
struct weight_operation_outcome {
	struct weight_operation operation;
	/* As it was, unless its metadata generation has gone up. */
	struct weight_metadata metadata;
	bool changed; /* false for a repeat: nothing is to be written */
	/* The one whose place it took, as it is now; id 0: there was none. */
	struct weight_operation superseded;
};

struct weight_operation_request {
	enum weight_operation_kind kind;
	enum weight_residency target_residency; /* HOT, COLD or MIXED */
	double target_hot_ratio; /* inside (0,1) for MIXED, else 0 */
	uint64_t expected_metadata_generation;
	/*
	 * An active one with another goal ends for this one, if it only pins
	 * or unpins: the caller knows that it can't go on.
	 */
	bool supersedes;
};

/*
 * A request for what is being done already is a repeat.
 *
 * Errors:
 *  -EINVAL	a bad identity, kind, target or ratio
 *  -ENOENT
 *  -EBUSY	fenced
 *  -ECANCELED	a repeat with a generation of long ago
 *  -EBUSY	another operation is active
 *  -ECANCELED	another metadata generation
 *  -EINPROGRESS	neither READY nor DEGRADED
 *  -EPERM	migrating what its policy pins; a MIXED target with fewer than
 *		two affinity units
 *  -EOVERFLOW	no metadata generation or no operation id is left
 */
int weight_decide_operation_start(const struct weight_operation_state *state,
				  const struct weight_identity *identity,
				  const struct weight_operation_request *rq,
				  uint64_t now_ms,
				  struct weight_operation_outcome *ret,
				  struct buf *why);

struct weight_operation_progress {
	uint64_t processed_units;
	uint64_t total_units; /* the totals are those of the operation */
	uint64_t processed_bytes;
	uint64_t total_bytes;
	const char *cursor;  /* where to go on; "" for none */
	const char *message; /* "" for none */
	/* What is there meanwhile. */
	enum weight_availability availability; /* READY or DEGRADED */
	enum weight_residency residency;
	double hot_ratio;
};

/*
 * Counters alone change no metadata. What is there does, and then the fence of
 * the operation follows. A total of 0 is taken only from an operation that has
 * nothing to process.
 *
 * Errors:
 *  -EINVAL	a bad id, total, count, cursor, message or observation
 *  -ENOENT	no such revision, or none of its operations has this id
 *  -EEXIST	it isn't the active operation or is over; other totals, less
 *		than before, or another cursor without progress
 *  -EOVERFLOW
 */
int weight_decide_operation_progress(const struct weight_operation_state *state,
				     uint64_t operation_id,
				     const struct weight_operation_progress *p,
				     uint64_t now_ms,
				     struct weight_operation_outcome *ret);

/*
 * Says what keeps the operation from going on. It stays active.
 *
 * Errors: -EINVAL a bad id or message; -ENOENT as above; -EEXIST it isn't the
 * active operation or is over.
 */
int weight_decide_operation_error(const struct weight_operation_state *state,
				  uint64_t operation_id, const char *message,
				  uint64_t now_ms,
				  struct weight_operation_outcome *ret);

/*
 * Ends the operation, with the residency that was reached. For MIXED that may
 * have another ratio than the target.
 *
 * Errors: -EINVAL a bad id, or a ratio that the residency can't have; -ENOENT
 * as above; -EEXIST it isn't the active operation, unless it was finished and
 * the revision is idle just as it says; -EINPROGRESS the target isn't reached;
 * -EOVERFLOW.
 */
int weight_decide_operation_finish(const struct weight_operation_state *state,
				   uint64_t operation_id,
				   enum weight_residency residency,
				   double hot_ratio, uint64_t now_ms,
				   struct weight_operation_outcome *ret);

#endif
