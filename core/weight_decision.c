/* SPDX-License-Identifier: Apache-2.0 */
#include "core/weight_decision.h"

#include <errno.h>
#include <string.h>

#include "core/log.h"
#include "core/weight_decision_lineage.h"
#include "core/weight_decision_priv.h"

static uint64_t add_saturating(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static bool is_going(const struct weight_metadata *m)
{
	return m->availability == WEIGHT_DELETING ||
	       m->availability == WEIGHT_DELETED;
}

/* ---- Import ---- */

int weight_decide_stage(const struct weight_metadata *existing,
			const struct weight_staging *staged,
			const struct weight_identity *identity, struct buf *why)
{
	const char *what = NULL;
	int r;

	r = weight_identity_check(identity, why);
	if (r < 0)
		return r;
	if (staged)
		what = "staged already; publish or remove the staged tree";
	else if (existing && is_going(existing))
		what = "removed, and a removed generation never comes back; "
		       "use a new one";
	else if (existing && existing->availability == WEIGHT_IMPORTING)
		what = "being imported already; use a new generation";
	else if (existing)
		what = "published already; use a new generation";
	if (!what)
		return 0;
	EXPLAIN(why, "generation %llu is %s",
		(unsigned long long)identity->generation, what);
	return log_debug(-EEXIST, "generation %llu",
			 (unsigned long long)identity->generation);
}

static struct weight_metadata publish_record(const struct weight_publication *p,
					     uint64_t now_ms)
{
	return (struct weight_metadata){
		.identity = p->identity,
		.manifest = p->manifest,
		.policy = p->policy,
		.availability = WEIGHT_READY,
		.residency = p->residency,
		.durable = p->durable,
		.affinity_count = p->affinity_count,
		.affinity_digest = p->affinity_digest,
		.observed_hot_ratio = p->observed_hot_ratio,
		.metadata_generation = WEIGHT_PUBLISHED_GENERATION,
		.created_at_ms = now_ms,
		.updated_at_ms = now_ms,
		.last_accessed_at_ms = now_ms,
	};
}

/* Whether what is there lets the generation be published. */
static int publish_conflict(const struct weight_publish_state *state,
			    const struct weight_publication *p, struct buf *why)
{
	unsigned long long generation = p->identity.generation;
	int r;

	if (state->existing && !is_going(state->existing)) {
		EXPLAIN(why, "generation %llu exists already", generation);
		return log_debug(-EEXIST, "exists");
	}
	if (state->existing) {
		EXPLAIN(why,
			"generation %llu was removed and never comes "
			"back; publish a new generation",
			generation);
		return log_debug(-ECANCELED, "tombstone");
	}
	r = weight_decide_beside_claim(state->lineage, p->identity.generation,
				       true, true, why);
	if (r < 0)
		return r;
	if (state->lineage &&
	    p->identity.generation <= state->lineage->watermark) {
		EXPLAIN(why,
			"generation %llu is not above %llu, which the "
			"lineage has reached; publish a higher one",
			generation,
			(unsigned long long)state->lineage->watermark);
		return log_debug(-ECANCELED, "watermark");
	}
	if (!state->staged) {
		EXPLAIN(why, "generation %llu is not staged", generation);
		return log_debug(-ENOENT, "not staged");
	}
	return 0;
}

int weight_decide_publish(const struct weight_publish_state *state,
			  const struct weight_publication *p, uint64_t now_ms,
			  struct weight_metadata *ret, struct buf *why)
{
	struct weight_metadata m;
	int r;

	if (state->staged)
		now_ms = later(now_ms, state->staged->created_at_ms);
	m = publish_record(p, now_ms);
	r = weight_metadata_check(&m, why);
	if (r < 0)
		return r;
	if (p->policy.preferred == WEIGHT_MIXED && p->affinity_count < 2) {
		EXPLAIN(why, "the policy prefers mixed residency, which "
			     "needs at least two tensors to tell apart");
		return log_debug(-EPERM, "mixed without units");
	}
	r = publish_conflict(state, p, why);
	if (r < 0)
		return r;
	if (p->converges && p->residency != p->policy.preferred) {
		if (state->next_operation_id == UINT64_MAX)
			return log_debug(-EOVERFLOW, "no operation id is left");
		m.operation_id = state->next_operation_id;
	}
	*ret = m;
	return 0;
}

void weight_decide_publish_operation(const struct weight_metadata *m,
				     struct weight_operation *ret)
{
	enum weight_residency target = m->policy.preferred;

	*ret = (struct weight_operation){
		.operation_id = m->operation_id,
		.identity = m->identity,
		.kind = WEIGHT_MIGRATING,
		.target_residency = target,
		.target_hot_ratio = target == WEIGHT_MIXED ?
					    m->policy.mixed_hot_ratio :
					    0.0,
		.fenced_metadata_generation = m->metadata_generation,
		.started_at_ms = m->updated_at_ms,
		.updated_at_ms = m->updated_at_ms,
		.total_units = m->affinity_count,
		.total_bytes = m->manifest.logical_bytes,
		.cursor = "",
		.message = "",
	};
}

/* ---- Leases ---- */

static bool ttl_ok(uint64_t ttl_ms)
{
	return ttl_ms >= WEIGHT_LEASE_TTL_MS_MIN &&
	       ttl_ms <= WEIGHT_LEASE_TTL_MS_MAX;
}

/* Whether the revision is in a state to be leased. */
static int lease_refusal(const struct weight_lease_state *state,
			 const struct weight_lease_request *request)
{
	const struct weight_metadata *m = state->metadata;

	if (!m)
		return log_debug(-ENOENT, "no such revision");
	if (is_stale(m, request->expected_metadata_generation))
		return stale(m, request->expected_metadata_generation);
	if (m->availability != WEIGHT_READY &&
	    !(request->degraded_too && m->availability == WEIGHT_DEGRADED))
		return log_debug(-EINPROGRESS, "availability %d",
				 (int)m->availability);
	if (state->fenced)
		return log_debug(-EBUSY, "fenced by a replacement");
	if (state->operation_blocks)
		return log_debug(-EBUSY, "operation %llu",
				 (unsigned long long)m->operation_id);
	return 0;
}

int weight_decide_lease_acquire(const struct weight_lease_state *state,
				const struct weight_identity *identity,
				const struct weight_lease_request *request,
				uint64_t now_ms, struct weight_lease *ret,
				bool *ret_new)
{
	int r;

	r = weight_identity_check(identity, NULL);
	if (r < 0)
		return r;
	if (!weight_component_ok(request->holder) || !ttl_ok(request->ttl_ms))
		return log_debug(-EINVAL, "holder or ttl");
	r = lease_refusal(state, request);
	if (r < 0)
		return r;
	if (state->held) {
		*ret = *state->held;
		*ret_new = false;
		return 0;
	}
	/* The one after must be a number, too. */
	if (state->next_lease_id == UINT64_MAX)
		return log_debug(-EOVERFLOW, "no lease id is left");
	*ret = (struct weight_lease){
		.lease_id = state->next_lease_id,
		.identity = *identity,
		.holder = request->holder,
		.expires_at_ms = add_saturating(now_ms, request->ttl_ms),
		.fenced_metadata_generation =
			state->metadata->metadata_generation,
	};
	*ret_new = true;
	return 0;
}

int weight_decide_lease_renew(const struct weight_lease *lease,
			      const char *tenant, bool fenced, uint64_t ttl_ms,
			      uint64_t now_ms, struct weight_lease *ret)
{
	if (!ttl_ok(ttl_ms))
		return log_debug(-EINVAL, "ttl");
	if (!lease || strcmp(lease->identity.lineage.tenant, tenant) != 0)
		return log_debug(-ENOENT, "no such lease");
	if (lease->expires_at_ms <= now_ms)
		return log_debug(-EKEYEXPIRED, "lease %llu",
				 (unsigned long long)lease->lease_id);
	if (fenced)
		return log_debug(-EBUSY, "fenced by a replacement");
	*ret = *lease;
	ret->expires_at_ms =
		later(lease->expires_at_ms, add_saturating(now_ms, ttl_ms));
	return 0;
}

/* ---- Removal ---- */

/* Whether a live revision may go. */
static int delete_refusal(const struct weight_delete_state *state,
			  uint64_t expected)
{
	const struct weight_metadata *m = state->metadata;

	if (is_stale(m, expected))
		return stale(m, expected);
	if (state->leases > 0)
		return log_debug(-EBUSY, "%llu leases",
				 (unsigned long long)state->leases);
	if (m->operation_id != 0 && state->operation_blocks)
		return log_debug(-EBUSY, "operation %llu",
				 (unsigned long long)m->operation_id);
	if (!is_live(m))
		return log_debug(-EINPROGRESS, "availability %d",
				 (int)m->availability);
	return 0;
}

int weight_decide_delete_begin(const struct weight_delete_state *state,
			       uint64_t expected_metadata_generation,
			       uint64_t now_ms, struct weight_metadata *ret,
			       bool *ret_changed)
{
	const struct weight_metadata *m = state->metadata;
	int r;

	if (!m)
		return log_debug(-ENOENT, "no such revision");
	if (state->claimed)
		return log_debug(-EBUSY, "claimed by a replacement");
	if (is_going(m) && is_retry(m, expected_metadata_generation)) {
		*ret = *m;
		*ret_changed = false;
		return 0;
	}
	r = delete_refusal(state, expected_metadata_generation);
	if (r < 0)
		return r;
	r = advance(m, now_ms, ret);
	if (r < 0)
		return r;
	ret->availability = WEIGHT_DELETING;
	ret->operation_id = 0;
	*ret_changed = true;
	return 0;
}

int weight_decide_delete_finish(const struct weight_metadata *metadata,
				uint64_t expected_metadata_generation,
				uint64_t now_ms, struct weight_metadata *ret,
				bool *ret_changed)
{
	int r;

	if (!metadata)
		return log_debug(-ENOENT, "no such revision");
	if (metadata->availability == WEIGHT_DELETED &&
	    is_retry(metadata, expected_metadata_generation)) {
		*ret = *metadata;
		*ret_changed = false;
		return 0;
	}
	if (is_stale(metadata, expected_metadata_generation))
		return stale(metadata, expected_metadata_generation);
	if (!weight_availability_may(metadata->availability, WEIGHT_DELETED))
		return log_debug(-EEXIST, "availability %d",
				 (int)metadata->availability);
	r = advance(metadata, now_ms, ret);
	if (r < 0)
		return r;
	ret->availability = WEIGHT_DELETED;
	ret->residency = WEIGHT_ABSENT;
	ret->observed_hot_ratio = 0;
	*ret_changed = true;
	return 0;
}

/* ---- Observation ---- */

/* Whether the record says already what was seen, but for `durable`. */
static bool same_state(const struct weight_metadata *m,
		       const struct weight_observation *seen)
{
	return m->availability == seen->availability &&
	       m->residency == seen->residency &&
	       m->observed_hot_ratio == seen->hot_ratio;
}

int weight_observation_check(const struct weight_observation *seen)
{
	if ((seen->availability != WEIGHT_READY &&
	     seen->availability != WEIGHT_DEGRADED) ||
	    !weight_place_ok(seen->availability, seen->residency,
			     seen->hot_ratio))
		return log_debug(-EINVAL, "%d, residency %d, ratio %g",
				 (int)seen->availability, (int)seen->residency,
				 seen->hot_ratio);
	return 0;
}

static int observe_refusal(const struct weight_metadata *m,
			   const struct weight_observation *seen,
			   uint64_t expected)
{
	int r = weight_observation_check(seen);

	if (r < 0)
		return r;
	if (!m)
		return log_debug(-ENOENT, "no such revision");
	if (m->operation_id != 0 && !seen->beside_operation)
		return log_debug(-EBUSY, "operation %llu",
				 (unsigned long long)m->operation_id);
	if (same_state(m, seen) && m->durable == seen->durable &&
	    is_retry(m, expected))
		return 0;
	if (is_stale(m, expected))
		return stale(m, expected);
	if (!is_live(m))
		return log_debug(-EINPROGRESS, "availability %d",
				 (int)m->availability);
	return 0;
}

int weight_decide_observe(const struct weight_metadata *metadata,
			  const struct weight_observation *seen,
			  uint64_t expected_metadata_generation,
			  uint64_t now_ms, struct weight_metadata *ret,
			  bool *ret_changed)
{
	struct weight_metadata next;
	int r;

	r = observe_refusal(metadata, seen, expected_metadata_generation);
	if (r < 0)
		return r;
	next = *metadata;
	if (!same_state(metadata, seen)) {
		r = advance(metadata, now_ms, &next);
		if (r < 0)
			return r;
	}
	next.availability = seen->availability;
	next.residency = seen->residency;
	next.observed_hot_ratio = seen->hot_ratio;
	next.durable = seen->durable;
	r = weight_metadata_check(&next, NULL);
	if (r < 0)
		return r;
	*ret_changed = !same_state(metadata, seen) ||
		       metadata->durable != seen->durable;
	*ret = next;
	return 0;
}

/* ---- The operation beside a revision ---- */

bool weight_operation_blocks(const struct weight_operation *active)
{
	return active && active->kind != WEIGHT_MIGRATING;
}

void weight_decide_operation_follow(const struct weight_operation *active,
				    const struct weight_metadata *next,
				    uint64_t now_ms,
				    struct weight_operation *ret,
				    bool *ret_changed)
{
	struct weight_operation op = *active;

	*ret_changed = true;
	op.updated_at_ms = later(now_ms, active->updated_at_ms);
	if (next->operation_id != active->operation_id) {
		op.cursor = "";
		op.message = WEIGHT_OPERATION_REMOVED;
	} else if (next->metadata_generation !=
		   active->fenced_metadata_generation) {
		op.fenced_metadata_generation = next->metadata_generation;
	} else {
		op = *active;
		*ret_changed = false;
	}
	*ret = op;
}
