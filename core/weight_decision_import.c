/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions about announced imports and about policies. */
#include "core/weight_decision_import.h"

#include <string.h>

#include "core/weight_decision_lineage.h"
#include "core/weight_decision_priv.h"

/* ---- Begin ---- */

/* The record of an import that has just begun. */
static struct weight_metadata import_record(
	const struct weight_import_request *rq, uint64_t now_ms)
{
	return (struct weight_metadata){
		.identity = rq->identity,
		.manifest = {
			.manifest_key = "",
			.payload_group_id = rq->payload_group_id,
			.payload_count = rq->import.payload_count,
			.logical_bytes = rq->import.logical_bytes,
		},
		.policy = rq->import.policy,
		.availability = WEIGHT_IMPORTING,
		.residency = WEIGHT_UNKNOWN,
		.affinity_count = rq->import.affinity_count,
		.affinity_digest = rq->import.affinity_digest,
		.metadata_generation = 1,
		.created_at_ms = now_ms,
		.updated_at_ms = now_ms,
		.last_accessed_at_ms = now_ms,
	};
}

static int import_check(const struct weight_import_request *rq,
			const struct weight_metadata *m, struct buf *why)
{
	int r;

	if (rq->import.payload_count == 0 || rq->import.logical_bytes == 0 ||
	    rq->import.affinity_count == 0) {
		EXPLAIN(why, "there is nothing to import: objects, bytes and "
			     "units must be more than 0");
		return log_debug(-EINVAL, "nothing to import");
	}
	r = weight_metadata_check(m, why);
	if (r < 0)
		return r;
	if (rq->import.policy.preferred == WEIGHT_MIXED &&
	    rq->import.affinity_count < 2) {
		EXPLAIN(why, "the policy prefers mixed residency, which "
			     "needs at least two tensors to tell apart");
		return log_debug(-EPERM, "mixed without units");
	}
	return 0;
}

static bool same_import(const struct weight_metadata *a,
			const struct weight_metadata *b)
{
	return strcmp(a->manifest.payload_group_id,
		      b->manifest.payload_group_id) == 0 &&
	       a->manifest.payload_count == b->manifest.payload_count &&
	       a->manifest.logical_bytes == b->manifest.logical_bytes &&
	       weight_policy_equal(&a->policy, &b->policy) &&
	       a->affinity_count == b->affinity_count &&
	       digest_equal(&a->affinity_digest, &b->affinity_digest);
}

/* Whether the claim of a DELETE_FIRST replacement begins its target again. */
static bool is_restart(const struct weight_import_state *state,
		       const struct weight_import_request *rq)
{
	const struct weight_claim *c =
		weight_lineage_live_claim(state->lineage);

	return rq->by_claim && c && c->target == rq->identity.generation &&
	       c->phase == WEIGHT_TARGET_IMPORTING &&
	       state->existing->availability == WEIGHT_DELETED;
}

static int begin_conflict(const struct weight_import_state *state,
			  const struct weight_import_request *rq,
			  struct buf *why)
{
	const struct weight_claim *claim =
		weight_lineage_live_claim(state->lineage);
	unsigned long long generation = rq->identity.generation;
	int r;

	if (state->existing && !is_restart(state, rq)) {
		EXPLAIN(why, "generation %llu is %s already", generation,
			weight_availability_name(
				state->existing->availability));
		return log_debug(-EEXIST, "exists");
	}
	if (state->staged) {
		EXPLAIN(why, "generation %llu is staged already", generation);
		return log_debug(-EEXIST, "staged");
	}
	r = weight_decide_beside_claim(state->lineage, rq->identity.generation,
				       true, rq->by_claim, why);
	if (r < 0)
		return r;
	/* One that isn't described is filled in staging, by whoever may. */
	if (claim && claim->described && !rq->by_claim) {
		EXPLAIN(why,
			"generation %llu is to replace %llu, and is imported "
			"by the request that does, %s",
			generation, (unsigned long long)claim->base,
			claim->request_id);
		return log_debug(-EBUSY, "not by its claim");
	}
	if (claim && claim->described &&
	    !weight_import_equal(&claim->import, &rq->import)) {
		EXPLAIN(why,
			"generation %llu was described otherwise by who "
			"replaces %llu by it",
			generation, (unsigned long long)claim->base);
		return log_debug(-EEXIST, "described otherwise");
	}
	if (!state->lineage ||
	    rq->identity.generation > state->lineage->watermark)
		return 0;
	EXPLAIN(why,
		"generation %llu is not above %llu, which the lineage has "
		"reached; take a higher one",
		generation, (unsigned long long)state->lineage->watermark);
	return log_debug(-ECANCELED, "watermark");
}

int weight_decide_import_begin(const struct weight_import_state *state,
			       const struct weight_import_request *request,
			       uint64_t now_ms, struct weight_metadata *ret,
			       bool *ret_changed, struct buf *why)
{
	const struct weight_metadata *existing = state->existing;
	struct weight_metadata m = import_record(request, now_ms);
	int r;

	r = import_check(request, &m, why);
	if (r < 0)
		return r;
	if (existing &&
	    (existing->availability == WEIGHT_IMPORTING ||
	     existing->availability == WEIGHT_READY) &&
	    same_import(existing, &m)) {
		*ret = *existing;
		*ret_changed = false;
		return 0;
	}
	r = begin_conflict(state, request, why);
	if (r < 0)
		return r;
	if (existing) {
		struct weight_metadata next;

		r = advance(existing, now_ms, &next);
		if (r < 0)
			return r;
		m.metadata_generation = next.metadata_generation;
		m.created_at_ms = existing->created_at_ms;
		m.updated_at_ms = next.updated_at_ms;
		m.last_accessed_at_ms =
			later(now_ms, existing->last_accessed_at_ms);
	}
	*ret = m;
	*ret_changed = true;
	return 0;
}

/* ---- Commit ---- */

static bool same_manifest(const struct weight_manifest_ref *a,
			  const struct weight_manifest_ref *b)
{
	return strcmp(a->manifest_key, b->manifest_key) == 0 &&
	       strcmp(a->payload_group_id, b->payload_group_id) == 0 &&
	       digest_equal(&a->manifest_sha256, &b->manifest_sha256) &&
	       digest_equal(&a->payload_keys_sha256, &b->payload_keys_sha256) &&
	       a->payload_count == b->payload_count &&
	       a->logical_bytes == b->logical_bytes;
}

static int commit_check(const struct weight_commit_request *rq, struct buf *why)
{
	const struct weight_manifest_ref *ref = &rq->manifest;
	int r = weight_identity_check(&rq->identity, why);

	if (r < 0)
		return r;
	if (!ref->complete || !ref->manifest_key || !ref->manifest_key[0] ||
	    !ref->payload_group_id || !ref->payload_group_id[0] ||
	    ref->payload_count == 0 || ref->logical_bytes == 0) {
		EXPLAIN(why, "the manifest reference is not complete");
		return log_debug(-EINVAL, "manifest reference");
	}
	if ((rq->residency != WEIGHT_HOT && rq->residency != WEIGHT_COLD &&
	     rq->residency != WEIGHT_MIXED) ||
	    !ratio_fits(rq->residency, rq->observed_hot_ratio)) {
		EXPLAIN(why, "a revision that is ready is hot, cold or mixed, "
			     "and has the hot ratio of that");
		return log_debug(-EINVAL, "residency %d, ratio %g",
				 (int)rq->residency, rq->observed_hot_ratio);
	}
	return 0;
}

/* Whether a commit finds itself done, or something else. */
static int commit_again(const struct weight_metadata *m,
			const struct weight_commit_request *rq, struct buf *why)
{
	if (!same_manifest(&m->manifest, &rq->manifest)) {
		EXPLAIN(why, "it is published with another manifest");
		return log_debug(-EEXIST, "another manifest");
	}
	if (!is_retry(m, rq->expected_metadata_generation))
		return stale(m, rq->expected_metadata_generation);
	return 0;
}

static int commit_refusal(const struct weight_metadata *m,
			  const struct weight_commit_request *rq,
			  struct buf *why)
{
	if (is_stale(m, rq->expected_metadata_generation))
		return stale(m, rq->expected_metadata_generation);
	if (m->availability != WEIGHT_IMPORTING) {
		EXPLAIN(why, "generation %llu is %s, not being imported",
			(unsigned long long)m->identity.generation,
			weight_availability_name(m->availability));
		return log_debug(-EEXIST, "availability %d",
				 (int)m->availability);
	}
	if (strcmp(m->manifest.payload_group_id,
		   rq->manifest.payload_group_id) != 0 ||
	    m->manifest.payload_count != rq->manifest.payload_count ||
	    m->manifest.logical_bytes != rq->manifest.logical_bytes) {
		EXPLAIN(why, "group, count or bytes are not those that the "
			     "import was begun with");
		return log_debug(-EEXIST, "another import");
	}
	return 0;
}

/* The operation to where the policy wants the revision; id 0: it is there. */
static int converge(const struct weight_metadata *m, uint64_t next_operation_id,
		    struct weight_operation_outcome *out)
{
	if (m->residency == m->policy.preferred)
		return 0;
	/* The one after must be a number, too. */
	if (next_operation_id == UINT64_MAX)
		return log_debug(-EOVERFLOW, "no operation id is left");
	out->metadata.operation_id = next_operation_id;
	weight_decide_publish_operation(&out->metadata, &out->operation);
	return 0;
}

int weight_decide_import_commit(const struct weight_commit_state *state,
				const struct weight_commit_request *request,
				uint64_t now_ms,
				struct weight_operation_outcome *ret,
				struct buf *why)
{
	const struct weight_metadata *m = state->existing;
	struct weight_operation_outcome out = { .changed = true };
	int r;

	r = commit_check(request, why);
	if (r < 0)
		return r;
	if (!m)
		return log_debug(-ENOENT, "no such revision");
	if (m->availability == WEIGHT_READY) {
		r = commit_again(m, request, why);
		if (r == 0)
			*ret = (struct weight_operation_outcome){ .metadata =
									  *m };
		return r;
	}
	r = commit_refusal(m, request, why);
	if (r < 0)
		return r;
	out.metadata = *m;
	out.metadata.availability = WEIGHT_READY;
	out.metadata.manifest = request->manifest;
	out.metadata.residency = request->residency;
	out.metadata.observed_hot_ratio = request->observed_hot_ratio;
	out.metadata.durable = request->durable;
	r = weight_metadata_check(&out.metadata, why);
	/* Of the reference only the key can be wrong by now. */
	if (r == -EINVAL)
		return log_debug(-EEXIST, "manifest key");
	if (r == 0)
		r = advance(&out.metadata, now_ms, &out.metadata);
	if (r == 0 && !request->stays)
		r = converge(&out.metadata, state->next_operation_id, &out);
	if (r == 0)
		*ret = out;
	return r;
}

/* ---- Abort ---- */

int weight_decide_import_abort(const struct weight_metadata *existing,
			       uint64_t expected_metadata_generation,
			       uint64_t now_ms, struct weight_metadata *ret,
			       bool *ret_changed)
{
	int r;

	if (!existing)
		return log_debug(-ENOENT, "no such revision");
	if (existing->availability == WEIGHT_DELETING &&
	    is_retry(existing, expected_metadata_generation)) {
		*ret = *existing;
		*ret_changed = false;
		return 0;
	}
	if (is_stale(existing, expected_metadata_generation))
		return stale(existing, expected_metadata_generation);
	if (existing->availability != WEIGHT_IMPORTING)
		return log_debug(-EEXIST, "availability %d",
				 (int)existing->availability);
	r = advance(existing, now_ms, ret);
	if (r < 0)
		return r;
	ret->availability = WEIGHT_DELETING;
	*ret_changed = true;
	return 0;
}

bool weight_import_is_abandoned(const struct weight_metadata *m,
				uint64_t now_ms)
{
	return m->availability == WEIGHT_IMPORTING &&
	       now_ms >= m->updated_at_ms &&
	       now_ms - m->updated_at_ms >= WEIGHT_IMPORT_IDLE_MS;
}

/* ---- Policy ---- */

static int policy_refusal(const struct weight_policy_state *state,
			  uint64_t expected, struct buf *why)
{
	const struct weight_metadata *m = state->metadata;

	if (state->active) {
		EXPLAIN(why,
			"operation %llu is %s the revision to %s; wait for its "
			"end",
			(unsigned long long)state->active->operation_id,
			weight_operation_kind_name(state->active->kind),
			weight_residency_name(state->active->target_residency));
		return log_debug(-EBUSY, "operation");
	}
	if (is_stale(m, expected))
		return stale(m, expected);
	if (is_live(m))
		return 0;
	EXPLAIN(why, "the revision is %s",
		weight_availability_name(m->availability));
	return log_debug(-EINPROGRESS, "availability %d", (int)m->availability);
}

/* The records with the new policy, and with the operation that it brings. */
static int policy_apply(const struct weight_policy_state *state,
			const struct weight_policy *policy, uint64_t now_ms,
			struct weight_operation_outcome *out, struct buf *why)
{
	const struct weight_metadata *m = state->metadata;
	bool moves = m->availability == WEIGHT_READY &&
		     policy->mode == WEIGHT_AUTO &&
		     m->residency != policy->preferred;
	int r;

	if (moves && policy->preferred == WEIGHT_MIXED &&
	    m->affinity_count < 2) {
		EXPLAIN(why, "mixed residency needs at least two tensors to "
			     "tell apart");
		return log_debug(-EPERM, "mixed without units");
	}
	r = advance(m, now_ms, &out->metadata);
	if (r < 0)
		return r;
	out->metadata.policy = *policy;
	return moves ? converge(&out->metadata, state->next_operation_id, out) :
		       0;
}

int weight_decide_policy(const struct weight_policy_state *state,
			 const struct weight_policy *policy,
			 uint64_t expected_metadata_generation, uint64_t now_ms,
			 struct weight_operation_outcome *ret, struct buf *why)
{
	const struct weight_metadata *m = state->metadata;
	struct weight_operation_outcome out = { .changed = true };
	int r;

	r = weight_policy_check(policy, why);
	if (r < 0)
		return r;
	if (!m)
		return log_debug(-ENOENT, "no such revision");
	if (state->fenced) {
		EXPLAIN(why, "the revision is being replaced");
		return log_debug(-EBUSY, "fenced by a replacement");
	}
	if (weight_policy_equal(&m->policy, policy)) {
		if (!is_retry(m, expected_metadata_generation))
			return stale(m, expected_metadata_generation);
		*ret = (struct weight_operation_outcome){ .metadata = *m };
		return 0;
	}
	r = policy_refusal(state, expected_metadata_generation, why);
	if (r == 0)
		r = policy_apply(state, policy, now_ms, &out, why);
	if (r == 0)
		*ret = out;
	return r;
}
