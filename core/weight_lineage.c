/* SPDX-License-Identifier: Apache-2.0 */
#include "core/weight_lineage.h"

#include <errno.h>
#include <string.h>

#include "core/weight_management_priv.h"

bool weight_import_equal(const struct weight_import *a,
			 const struct weight_import *b)
{
	return a->payload_count == b->payload_count &&
	       a->logical_bytes == b->logical_bytes &&
	       weight_policy_equal(&a->policy, &b->policy) &&
	       a->affinity_count == b->affinity_count &&
	       digest_equal(&a->affinity_digest, &b->affinity_digest);
}

#define IN(phase) (1u << WEIGHT_##phase)

/* The phases that a claim of each mode goes through. */
static const unsigned phases_of[] = {
	[WEIGHT_PUT_FIRST] = IN(PREPARING_TARGET) | IN(RETIRING_BASE) |
			     IN(COMPLETED) | IN(ABORTED),
	[WEIGHT_DELETE_FIRST] = IN(DELETING_BASE) | IN(TARGET_IMPORTING) |
				IN(COMPLETED) | IN(ABORTED),
};

static int claim_state_check(const struct weight_claim *c, struct buf *why)
{
	if (!weight_upsert_mode_name(c->mode) ||
	    !weight_upsert_phase_name(c->phase) ||
	    !(phases_of[c->mode] & 1u << c->phase))
		return refuse(why, -EINVAL,
			      "a claim of mode %u can't be in phase %u",
			      (unsigned)c->mode, (unsigned)c->phase);
	if (!c->base || c->target <= c->base)
		return refuse(why, -EINVAL,
			      "the target of a claim must be above its base");
	if (!c->expected_base_metadata_generation ||
	    c->expected_base_metadata_generation >
		    WEIGHT_METADATA_GENERATION_MAX)
		return refuse(why, -EINVAL,
			      "the metadata generation of a claim's base");
	if (c->updated_at_ms < c->created_at_ms)
		return refuse(why, -EINVAL,
			      "the claim was updated before it was created");
	return 0;
}

static int claim_check(const struct weight_claim *c, struct buf *why)
{
	static const struct weight_import none;
	int r = claim_state_check(c, why);

	if (r < 0)
		return r;
	if (!weight_component_ok(c->request_id))
		return refuse(why, -EINVAL, "bad request id of a claim");
	if (!c->error || (c->error[0] && !weight_component_ok(c->error)))
		return refuse(why, -EINVAL, "bad error of a claim");
	if (c->described)
		return weight_policy_check(&c->import.policy, why);
	if (!weight_import_equal(&c->import, &none))
		return refuse(why, -EINVAL,
			      "a target that nobody described has a size");
	return 0;
}

int weight_lineage_record_check(const struct weight_lineage_record *l,
				struct buf *why)
{
	int r = weight_lineage_check(&l->lineage, why);

	if (r < 0)
		return r;
	if (!l->lineage_metadata_generation ||
	    l->lineage_metadata_generation > WEIGHT_METADATA_GENERATION_MAX ||
	    !l->watermark)
		return refuse(why, -EINVAL,
			      "the generations of a lineage can't be 0");
	return l->claimed ? claim_check(&l->claim, why) : 0;
}

int weight_lineage_record_copy(const struct weight_lineage_record *l,
			       struct weight_lineage_record **ret)
{
	struct weight_lineage_record *copy;
	size_t size = lineage_size(&l->lineage);
	char *at;

	if (l->claimed)
		size += strlen(l->claim.request_id) + strlen(l->claim.error) +
			2;
	copy = malloc(sizeof(*copy) + size);
	if (!copy)
		return -ENOMEM;
	*copy = *l;
	at = (char *)(copy + 1);
	lineage_pack(&at, &copy->lineage);
	if (l->claimed) {
		copy->claim.request_id = pack(&at, l->claim.request_id);
		copy->claim.error = pack(&at, l->claim.error);
	}
	*ret = copy;
	return 0;
}

void weight_lineage_record_free(struct weight_lineage_record *l)
{
	free(l);
}

const struct weight_claim *weight_lineage_live_claim(
	const struct weight_lineage_record *l)
{
	if (!l || !l->claimed ||
	    weight_upsert_phase_is_terminal(l->claim.phase))
		return NULL;
	return &l->claim;
}

bool weight_lineage_claims(const struct weight_lineage_record *l,
			   uint64_t generation)
{
	const struct weight_claim *c = weight_lineage_live_claim(l);

	return c && (c->base == generation || c->target == generation);
}

bool weight_lineage_fences(const struct weight_lineage_record *l,
			   uint64_t generation)
{
	const struct weight_claim *c = weight_lineage_live_claim(l);

	return c && c->base == generation &&
	       c->phase != WEIGHT_PREPARING_TARGET;
}
