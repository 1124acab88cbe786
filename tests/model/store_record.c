/* SPDX-License-Identifier: Apache-2.0 */
#include "store_record.h"

#include <string.h>

#include "core/weight_key.h"
#include "names.h"

/* Whether group and manifest key are those of the identity. */
static bool names_are_canonical(const struct weight_metadata *m)
{
	cleanup(buf_release) struct buf key = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];

	if (weight_group_id(&m->identity, group) < 0 ||
	    strcmp(group, m->manifest.payload_group_id) != 0)
		return false;
	if (!m->manifest.complete)
		return *m->manifest.manifest_key == '\0';
	return weight_manifest_key(&m->identity, &key) == 0 &&
	       strcmp(key.data, m->manifest.manifest_key) == 0;
}

void revision_from(const struct weight_metadata *m, struct revision *ret)
{
	*ret = (struct revision){
		.lineage = lineage_number(&m->identity.lineage),
		.generation = m->identity.generation,
		.availability = m->availability,
		.residency = m->residency,
		.hot_ratio = m->observed_hot_ratio,
		.durable = m->durable,
		.complete =
			names_are_canonical(m) ? m->manifest.complete : UNKNOWN,
		.preferred = m->policy.preferred,
		.policy_ratio = m->policy.mixed_hot_ratio,
		.mode = m->policy.mode,
		.operation_id = m->operation_id,
		.payload_count = m->manifest.payload_count,
		.logical_bytes = m->manifest.logical_bytes,
		.affinity_count = m->affinity_count,
		.affinity_tag = tag_of_digest(&m->affinity_digest),
		.manifest_tag = tag_of_digest(&m->manifest.manifest_sha256),
		.keys_tag = tag_of_digest(&m->manifest.payload_keys_sha256),
		.metadata_generation = m->metadata_generation,
		.created_at_ms = m->created_at_ms,
		.updated_at_ms = m->updated_at_ms,
		.accessed_at_ms = m->last_accessed_at_ms,
	};
}

void lease_from(const struct weight_lease *l, struct lease *ret)
{
	*ret = (struct lease){
		.id = l->lease_id,
		.lineage = lineage_number(&l->identity.lineage),
		.generation = l->identity.generation,
		.holder = holder_number(l->holder),
		.expires_at_ms = l->expires_at_ms,
		.fence = l->fenced_metadata_generation,
	};
}

void operation_from(const struct weight_operation *op, struct operation *ret)
{
	*ret = (struct operation){
		.id = op->operation_id,
		.lineage = lineage_number(&op->identity.lineage),
		.generation = op->identity.generation,
		.kind = op->kind,
		.target = op->target_residency,
		.target_ratio = op->target_hot_ratio,
		.fence = op->fenced_metadata_generation,
		.started_at_ms = op->started_at_ms,
		.updated_at_ms = op->updated_at_ms,
		.processed_units = op->processed_units,
		.total_units = op->total_units,
		.processed_bytes = op->processed_bytes,
		.total_bytes = op->total_bytes,
		.cursor = cursor_number(op->cursor),
		.message = message_number(op->message),
	};
}

void staging_from(const struct weight_staging *g, struct staging *ret)
{
	*ret = (struct staging){
		.lineage = lineage_number(&g->identity.lineage),
		.generation = g->identity.generation,
		.created_at_ms = g->created_at_ms,
		.epoch = g->epoch,
		.has_policy = g->has_policy,
	};
	if (!g->has_policy)
		return;
	ret->preferred = g->policy.preferred;
	ret->policy_ratio = g->policy.mixed_hot_ratio;
	ret->mode = g->policy.mode;
}

static void claim_from(const struct weight_claim *c, struct lineage *ret)
{
	ret->claimed = true;
	ret->request = request_number(c->request_id);
	ret->base = c->base;
	ret->target = c->target;
	ret->upsert_mode = c->mode;
	ret->phase = c->phase;
	ret->expected = c->expected_base_metadata_generation;
	ret->described = c->described;
	ret->created_at_ms = c->created_at_ms;
	ret->updated_at_ms = c->updated_at_ms;
	ret->error = claim_error_number(c->error);
	if (!c->described)
		return;
	ret->payload_count = c->import.payload_count;
	ret->logical_bytes = c->import.logical_bytes;
	ret->preferred = c->import.policy.preferred;
	ret->policy_ratio = c->import.policy.mixed_hot_ratio;
	ret->mode = c->import.policy.mode;
	ret->affinity_count = c->import.affinity_count;
	ret->affinity_tag = tag_of_digest(&c->import.affinity_digest);
}

void lineage_from(const struct weight_lineage_record *l, struct lineage *ret)
{
	*ret = (struct lineage){ .there = false };
	if (!l)
		return;
	ret->there = true;
	ret->metadata_generation = l->lineage_metadata_generation;
	ret->watermark = l->watermark;
	if (l->claimed)
		claim_from(&l->claim, ret);
}
