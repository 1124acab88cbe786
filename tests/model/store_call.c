/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the model, as calls of the store. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cleanup.h"
#include "core/weight_key.h"
#include "store.h"
#include "store_record.h"

#define OTHER_GENERATION 99

/* ---- Arguments ---- */

static struct weight_policy policy_of(const struct import *i)
{
	return (struct weight_policy){
		.preferred = (enum weight_residency)i->preferred,
		.mixed_hot_ratio = i->policy_ratio,
		.mode = (enum weight_migration_mode)i->mode,
	};
}

static struct weight_import import_of(const struct import *i)
{
	return (struct weight_import){
		.payload_count = i->payload_count,
		.logical_bytes = i->logical_bytes,
		.policy = policy_of(i),
		.affinity_count = i->affinity_count,
		.affinity_digest = digest_of_tag(i->affinity_tag),
	};
}

/* A manifest reference, and the strings that it borrows. */
struct reference {
	char group[WEIGHT_GROUP_ID_LEN + 1];
	struct buf key;
	struct weight_manifest_ref ref;
};

static void reference_release(struct reference *r)
{
	buf_release(&r->key);
}

static void reference_of(const struct call *c, struct reference *ret)
{
	struct weight_identity own = identity_of(c->lineage, c->generation, 0);
	struct weight_identity other = own;

	if (own.generation == 0)
		own.generation = 1;
	other.generation = OTHER_GENERATION;
	if (weight_group_id(c->ref == REF_GROUP ? &other : &own, ret->group) <
		    0 ||
	    weight_manifest_key(c->ref == REF_KEY ? &other : &own, &ret->key) <
		    0)
		abort();
	ret->ref = (struct weight_manifest_ref){
		.manifest_key = c->ref == REF_NONE ? "" : ret->key.data,
		.payload_group_id = ret->group,
		.manifest_sha256 = digest_of_tag(c->tag),
		.payload_keys_sha256 = digest_of_tag(c->tag),
		.complete = c->ref != REF_PART,
		.payload_count = c->import.payload_count,
		.logical_bytes = c->import.logical_bytes,
	};
}

static const char *holder_or_null(uint64_t holder)
{
	return holder == HOLDER_NONE ? NULL : holder_names[holder];
}

/* ---- Outcomes; each takes the record, which may be NULL ---- */

static void take_revision(struct weight_metadata *m, struct outcome *ret)
{
	if (!m)
		return;
	ret->has_revision = true;
	revision_from(m, &ret->revision);
	weight_metadata_free(m);
}

static void take_lease(struct weight_lease *l, struct outcome *ret)
{
	if (!l)
		return;
	ret->has_lease = true;
	lease_from(l, &ret->lease);
	weight_lease_free(l);
}

static void take_operation(struct weight_operation *op, struct outcome *ret)
{
	if (!op)
		return;
	ret->has_operation = true;
	operation_from(op, &ret->operation);
	weight_operation_free(op);
}

static void take_staging(struct weight_staging *g, struct outcome *ret)
{
	if (!g)
		return;
	ret->has_staging = true;
	staging_from(g, &ret->staging);
	weight_staging_free(g);
}

static void take_lineage(struct weight_lineage_record *l, struct outcome *ret)
{
	if (!l)
		return;
	ret->has_lineage = true;
	lineage_from(l, &ret->lineage);
	weight_lineage_record_free(l);
}

/* ---- Imports ---- */

static int publish(struct weight_metadata_store *s, const struct call *c,
		   const struct weight_identity *id, struct outcome *ret)
{
	cleanup(reference_release) struct reference ref = { .key = BUF_INIT };
	struct weight_metadata *m = NULL;
	struct weight_publication p;
	int r;

	reference_of(c, &ref);
	p = (struct weight_publication){
		.identity = *id,
		.manifest = ref.ref,
		.policy = policy_of(&c->import),
		.affinity_count = c->import.affinity_count,
		.affinity_digest = digest_of_tag(c->import.affinity_tag),
		.residency = (enum weight_residency)c->residency,
		.observed_hot_ratio = c->ratio,
		.durable = c->durable,
		.converges = c->converges,
	};
	r = wms_publish(s, &p, c->now_ms, &m, NULL);
	take_revision(m, ret);
	return r;
}

static int import_begin(struct weight_metadata_store *s, const struct call *c,
			const struct weight_identity *id, struct outcome *ret)
{
	cleanup(reference_release) struct reference ref = { .key = BUF_INIT };
	struct weight_import_request rq = { .identity = *id,
					    .import = import_of(&c->import),
					    .by_claim = c->by_claim };
	struct weight_metadata *m = NULL;
	int r;

	reference_of(c, &ref);
	rq.payload_group_id = c->ref == REF_NONE ? "" : ref.group;
	r = wms_import_begin(s, &rq, c->now_ms, &m, NULL);
	take_revision(m, ret);
	return r;
}

static int import_commit(struct weight_metadata_store *s, const struct call *c,
			 const struct weight_identity *id, struct outcome *ret)
{
	cleanup(reference_release) struct reference ref = { .key = BUF_INIT };
	struct weight_commit_request rq = {
		.identity = *id,
		.expected_metadata_generation = c->fence,
		.residency = (enum weight_residency)c->residency,
		.observed_hot_ratio = c->ratio,
		.durable = c->durable,
		.stays = c->stays,
	};
	struct weight_metadata *m = NULL;
	int r;

	reference_of(c, &ref);
	rq.manifest = ref.ref;
	r = wms_import_commit(s, &rq, c->now_ms, &m, NULL);
	take_revision(m, ret);
	return r;
}

static int apply_import(struct weight_metadata_store *s, const struct call *c,
			const struct weight_identity *id, struct outcome *ret)
{
	struct weight_policy policy = policy_of(&c->import);
	struct weight_metadata *m = NULL;
	int r;

	switch (c->kind) {
	case OP_STAGE:
		return wms_stage(s, id, c->now_ms, NULL);
	case OP_STAGED_POLICY:
		return wms_staged_policy(s, id, c->has_policy ? &policy : NULL);
	case OP_UNSTAGE:
		return wms_unstage(s, id);
	case OP_PUBLISH:
		return publish(s, c, id, ret);
	case OP_IMPORT_BEGIN:
		return import_begin(s, c, id, ret);
	case OP_IMPORT_COMMIT:
		return import_commit(s, c, id, ret);
	default:
		r = wms_import_abort(s, id, c->fence, c->now_ms, &m);
		take_revision(m, ret);
		return r;
	}
}

/* ---- Revisions ---- */

static int apply_revision(struct weight_metadata_store *s, const struct call *c,
			  const struct weight_identity *id, struct outcome *ret)
{
	const struct weight_policy policy = policy_of(&c->import);
	const struct wms_delete_request delete = {
		.expected_metadata_generation = c->fence,
		.ignore_lease_holder = holder_or_null(c->ignore),
		.by_claim = c->by_claim,
	};
	const struct weight_observation seen = {
		.availability = (enum weight_availability)c->availability,
		.residency = (enum weight_residency)c->residency,
		.hot_ratio = c->ratio,
		.durable = c->durable,
		.beside_operation = c->beside,
	};
	struct weight_metadata *m = NULL;
	int r;

	switch (c->kind) {
	case OP_POLICY:
		r = wms_policy_update(s, id, &policy, c->fence, c->now_ms, &m,
				      NULL);
		break;
	case OP_DELETE:
		r = wms_delete_begin(s, id, &delete, c->now_ms, &m);
		break;
	case OP_DELETE_FINISH:
		r = wms_delete_finish(s, id, c->fence, c->now_ms, &m);
		break;
	case OP_OBSERVE:
		r = wms_observe(s, id, &seen, c->fence, c->now_ms, &m);
		break;
	default:
		r = wms_mark_durable(s, id, c->now_ms, &m);
	}
	take_revision(m, ret);
	return r;
}

/* ---- Leases and operations ---- */

static int apply_lease(struct weight_metadata_store *s, const struct call *c,
		       const struct weight_identity *id, struct outcome *ret)
{
	const struct weight_lease_request rq = {
		.holder = holder_names[c->holder],
		.ttl_ms = c->ttl_ms,
		.expected_metadata_generation = c->fence,
		.degraded_too = c->degraded_too,
	};
	const char *tenant = tenant_names[c->tenant];
	struct weight_lease *l = NULL;
	size_t removed = 0;
	int r;

	switch (c->kind) {
	case OP_ACQUIRE:
		r = wms_lease_acquire(s, id, &rq, c->now_ms, &l);
		break;
	case OP_RENEW:
		r = wms_lease_renew(s, tenant, c->lease, c->ttl_ms, c->now_ms,
				    &l);
		break;
	case OP_RELEASE:
		return wms_lease_release(s, tenant, c->lease);
	default:
		r = wms_lease_sweep(s, c->now_ms, (size_t)c->limit, &removed);
		ret->numbers[0] = removed;
	}
	take_lease(l, ret);
	return r;
}

static int apply_operation(struct weight_metadata_store *s,
			   const struct call *c,
			   const struct weight_identity *id,
			   struct outcome *ret)
{
	const struct weight_operation_request rq = {
		.kind = (enum weight_operation_kind)c->operation_kind,
		.target_residency = (enum weight_residency)c->target,
		.target_hot_ratio = c->ratio,
		.expected_metadata_generation = c->fence,
		.supersedes = c->supersedes,
	};
	const struct weight_operation_progress p = {
		.processed_units = c->processed_units,
		.total_units = c->total_units,
		.processed_bytes = c->processed_bytes,
		.total_bytes = c->total_bytes,
		.cursor = cursor_names[c->cursor],
		.message = message_names[c->message],
		.availability = (enum weight_availability)c->availability,
		.residency = (enum weight_residency)c->residency,
		.hot_ratio = c->ratio,
	};
	struct weight_operation *op = NULL;
	int r;

	switch (c->kind) {
	case OP_START:
		r = wms_operation_start(s, id, &rq, c->now_ms, &op, NULL);
		break;
	case OP_PROGRESS:
		r = wms_operation_progress(s, id, c->operation, &p, c->now_ms,
					   &op);
		break;
	case OP_ERROR:
		r = wms_operation_error(s, id, c->operation,
					message_names[c->message], c->now_ms,
					&op);
		break;
	default:
		r = wms_operation_finish(s, id, c->operation,
					 (enum weight_residency)c->residency,
					 c->ratio, c->now_ms, &op);
	}
	take_operation(op, ret);
	return r;
}

/* ---- Claims ---- */

static int apply_claim(struct weight_metadata_store *s, const struct call *c,
		       const struct weight_identity *id, struct outcome *ret)
{
	struct weight_identity base = *id;
	const struct wms_claim_request claim = {
		.lineage = &id->lineage,
		.name = { request_names[c->request], c->base, c->generation },
		.wants_durable = c->wants_durable,
	};
	struct weight_upsert_request rq = {
		.request_id = request_names[c->request],
		.target = *id,
		.mode = (enum weight_upsert_mode)c->upsert_mode,
		.expected_base_metadata_generation = c->fence,
		.described = c->described,
	};
	struct weight_lineage_record *l = NULL;
	int r;

	base.generation = c->base;
	rq.base = base;
	if (c->described)
		rq.import = import_of(&c->import);
	switch (c->kind) {
	case OP_UPSERT:
		r = wms_upsert_begin(s, &rq, c->now_ms, &l, NULL);
		break;
	case OP_COMMIT:
		r = wms_upsert_commit(s, &claim, c->now_ms, &l, NULL);
		break;
	case OP_ABORT:
		r = wms_upsert_abort(s, &claim, c->now_ms, &l, NULL);
		break;
	default:
		r = wms_claim_advance(s, &id->lineage, c->now_ms, &l);
	}
	take_lineage(l, ret);
	return r;
}

/* ---- Questions ---- */

static int claim_step(struct weight_metadata_store *s, const struct call *c,
		      const struct weight_identity *id, struct outcome *ret)
{
	struct weight_lineage_record *l = NULL;
	enum weight_claim_step step = WEIGHT_CLAIM_DONE;
	int r = wms_claim_step(s, &id->lineage, c->wants_durable,
			       holder_or_null(c->ignore), c->now_ms, &step, &l);

	ret->numbers[0] = step;
	take_lineage(l, ret);
	return r;
}

static int list(struct weight_metadata_store *s, const struct call *c,
		const struct weight_identity *id, struct outcome *ret)
{
	struct wms_page page;
	int r = wms_list(s, id->lineage.tenant, id->lineage.name_space,
			 id->lineage.resource, c->token, (size_t)c->limit,
			 &page);

	if (r < 0)
		return r;
	for (; ret->count < page.count && ret->count < REVISIONS_MAX;
	     ret->count++)
		revision_from(page.items[ret->count], &ret->items[ret->count]);
	(void)snprintf(ret->text, sizeof(ret->text), "%s", page.next);
	wms_page_release(&page);
	return 0;
}

static int generations(struct weight_metadata_store *s, const struct call *c,
		       const struct weight_identity *id, struct outcome *ret)
{
	struct wms_generation found[GENERATIONS_MAX];
	int r = wms_generations(s, &id->lineage, id->generation,
				(size_t)c->limit, found, &ret->count);

	for (size_t i = 0; r == 0 && i < ret->count; i++)
		ret->items[i] = (struct revision){
			.lineage = c->lineage,
			.generation = found[i].generation,
			.availability = found[i].availability,
		};
	return r;
}

static int names(struct weight_metadata_store *s, const struct call *c,
		 struct outcome *ret)
{
	const struct weight_lineage *l = &lineage_names[c->lineage];
	const char *const parts[] = { l->tenant, l->name_space, l->resource,
				      l->revision };
	cleanup(buf_release) struct buf last = BUF_INIT;
	size_t len = 0;
	int r;

	for (;;) {
		cleanup(buf_release) struct buf next = BUF_INIT;

		r = wms_names_next(s, (enum wms_names)c->names, parts,
				   (unsigned)c->depth, last.data, &next);
		if (r < 0)
			return r == -ENOENT ? 0 : r;
		len += (size_t)snprintf(ret->text + len,
					sizeof(ret->text) - len, "%s|",
					next.data);
		if (len >= sizeof(ret->text))
			return -EFBIG;
		buf_release(&last);
		last = next;
		next = (struct buf)BUF_INIT;
	}
}

static int lease_summary(struct weight_metadata_store *s, const struct call *c,
			 const struct weight_identity *id, struct outcome *ret)
{
	struct wms_lease_summary summary = { 0, 0 };
	int r = wms_lease_summary(s, id, c->now_ms, &summary);

	ret->numbers[0] = summary.active;
	ret->numbers[1] = summary.nearest_expiry_ms;
	return r;
}

static int apply_question(struct weight_metadata_store *s, const struct call *c,
			  const struct weight_identity *id, struct outcome *ret)
{
	struct weight_metadata *m = NULL;
	struct weight_operation *op = NULL;
	struct weight_staging *g = NULL;
	bool used = false;
	int r = 0;

	switch (c->kind) {
	case OP_GET:
		r = wms_get(s, id, &m);
		break;
	case OP_REVISION_NEXT:
		r = wms_revision_next(s, &id->lineage, id->generation, &m);
		break;
	case OP_STAGED_GET:
		r = wms_staged_get(s, id, &g);
		break;
	case OP_STAGED_NEXT:
		r = wms_staged_next(s, &id->lineage, id->generation, &g);
		break;
	case OP_OPERATION_GET:
		r = wms_operation_get(s, tenant_names[c->tenant], c->operation,
				      &op);
		break;
	case OP_IN_USE:
		r = wms_lineage_in_use(s, &id->lineage, &used);
		ret->numbers[0] = used;
		break;
	case OP_SUMMARY:
		return lease_summary(s, c, id, ret);
	case OP_CLAIM_STEP:
		return claim_step(s, c, id, ret);
	case OP_LIST:
		return list(s, c, id, ret);
	case OP_GENERATIONS:
		return generations(s, c, id, ret);
	case OP_NAMES:
		return names(s, c, ret);
	default:
		ret->numbers[0] = wms_is_new(s);
	}
	take_revision(m, ret);
	take_operation(op, ret);
	take_staging(g, ret);
	return r;
}

void store_apply(struct store *store, const struct call *c, struct outcome *ret)
{
	static int (*const families[FAMILIES])(
		struct weight_metadata_store *, const struct call *,
		const struct weight_identity *, struct outcome *) = {
		[FAMILY_IMPORTS] = apply_import,
		[FAMILY_REVISIONS] = apply_revision,
		[FAMILY_LEASES] = apply_lease,
		[FAMILY_OPERATIONS] = apply_operation,
		[FAMILY_CLAIMS] = apply_claim,
		[FAMILY_QUESTIONS] = apply_question,
	};
	struct weight_identity id =
		identity_of(c->lineage, c->generation, c->flaw);

	memset(ret, 0, offsetof(struct outcome, items));
	ret->err = families[kind_family(c->kind)](store->s, c, &id, ret);
	if (ret->err)
		outcome_clear(ret);
}
