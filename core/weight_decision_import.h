/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decisions about imports that a writer announces, fills and commits, and about
 * policies. The mount stages and publishes instead, see weight_decide_publish().
 *
 * As in core/weight_decision.h: pure functions from the records that are there
 * to the records as they shall be; results borrow from the arguments; a fence
 * of 0 stands for the current generation; why gets one sentence on a refusal and
 * may be NULL; errors are listed in the order in which they are looked for.
 *
 * Source: weight contracts, sections 6.5 to 6.7.
 */
#ifndef CORE_WEIGHT_DECISION_IMPORT_H
#define CORE_WEIGHT_DECISION_IMPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/weight_decision.h"
#include "core/weight_lineage.h"
#include "core/weight_management.h"
#include "core/weight_record.h"

struct weight_import_request {
	struct weight_identity identity;
	const char *payload_group_id; /* the canonical one */
	struct weight_import import;
	bool by_claim; /* for the replacement that claims the lineage */
};

struct weight_import_state {
	const struct weight_metadata *existing;
	const struct weight_staging *staged;
	const struct weight_lineage_record *lineage;
};

/*
 * The import begins: IMPORTING, UNKNOWN, metadata generation 1. What is
 * IMPORTING or READY with the same arguments is a repeat. The claim of a
 * DELETE_FIRST replacement in phase TARGET_IMPORTING may begin its own DELETED
 * target again, with the next metadata generation.
 *
 * Errors:
 *  -EINVAL	a bad identity, policy, or group id; nothing to import
 *  -EPERM	preferred MIXED with fewer than two affinity units
 *  -EEXIST	it is there in another state or with other arguments, or staged
 *  -EBUSY	the lineage is claimed by a replacement, and this isn't its target,
 *		or its turn hasn't come: see weight_decide_beside_claim(); or its
 *		claim describes it, and somebody else asks
 *  -EEXIST	the claim whose target it is describes another import
 *  -ECANCELED	the generation is not above the watermark
 *  -EOVERFLOW
 */
int weight_decide_import_begin(const struct weight_import_state *state,
			       const struct weight_import_request *request,
			       uint64_t now_ms, struct weight_metadata *ret,
			       bool *ret_changed, struct buf *why);

struct weight_commit_request {
	struct weight_identity identity;
	uint64_t expected_metadata_generation;
	struct weight_manifest_ref manifest; /* complete */
	/* Where the payload is by now; a plain commit is HOT, 1.0. */
	enum weight_residency residency;
	double observed_hot_ratio;
	bool durable;
	/* There is no way to the preferred residency: no operation begins. */
	bool stays;
};

/*
 * READY; with an operation to the preferred residency, unless it is there. A
 * revision that is READY with this manifest is a repeat.
 *
 * Errors:
 *  -EINVAL	a bad identity, an incomplete manifest reference, a residency or
 *		ratio that READY can't have
 *  -ENOENT
 *  -EEXIST	READY with another manifest
 *  -ECANCELED	another metadata generation
 *  -EEXIST	not IMPORTING; a manifest key that is not canonical; group, count
 *		or bytes other than at the beginning
 *  -EOVERFLOW	no metadata generation or no operation id is left
 */
struct weight_commit_state {
	const struct weight_metadata *existing;
	uint64_t next_operation_id;
};
int weight_decide_import_commit(const struct weight_commit_state *state,
				const struct weight_commit_request *request,
				uint64_t now_ms,
				struct weight_operation_outcome *ret,
				struct buf *why);

/*
 * From IMPORTING to DELETING. DELETING already is a repeat.
 *
 * Errors: -ENOENT; -ECANCELED another metadata generation; -EEXIST not
 * IMPORTING; -EOVERFLOW.
 */
int weight_decide_import_abort(const struct weight_metadata *existing,
			       uint64_t expected_metadata_generation,
			       uint64_t now_ms, struct weight_metadata *ret,
			       bool *ret_changed);

/* An import that nobody has touched for so long is given up. */
#define WEIGHT_IMPORT_IDLE_MS 300000 /* 5 minutes */
bool weight_import_is_abandoned(const struct weight_metadata *m,
				uint64_t now_ms);

struct weight_policy_state {
	const struct weight_metadata *metadata;
	const struct weight_operation *active; /* or NULL */
	bool fenced; /* a replacement retires the revision */
	uint64_t next_operation_id;
};

/*
 * Another policy. Where that is AUTO and the revision READY and not where the
 * policy wants it, an operation begins with it; else ret->operation has id 0.
 *
 * Errors:
 *  -EINVAL	a bad policy
 *  -ENOENT
 *  -EBUSY	fenced
 *  -ECANCELED	a repeat with a generation of long ago
 *  -EBUSY	an operation is active
 *  -ECANCELED	another metadata generation
 *  -EINPROGRESS	neither READY nor DEGRADED
 *  -EPERM	an operation to MIXED with fewer than two affinity units
 *  -EOVERFLOW
 */
int weight_decide_policy(const struct weight_policy_state *state,
			 const struct weight_policy *policy,
			 uint64_t expected_metadata_generation, uint64_t now_ms,
			 struct weight_operation_outcome *ret, struct buf *why);

#endif
