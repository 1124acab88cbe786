/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How revisions come into the weight metadata store: staged and published at
 * once, or announced and committed. And their policies.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/weight_key.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"

/* ---- Publishing what was staged ---- */

struct publish {
	const struct weight_metadata_store *store;
	const struct weight_publication *publication;
	struct wms_key key;
	uint64_t now_ms;
	struct weight_metadata *result;
	struct buf *why;
};

/* Writes the record that was decided on, and the operation that it has. */
static int publish_write(struct meta_txn *txn, const struct publish *p,
			 const struct weight_metadata *m)
{
	struct weight_operation op;
	const struct weight_operation *ops[] = { &op };
	int r;

	r = meta_delete(txn, META_DB_STAGING, p->key.bytes, p->key.len);
	if (r < 0)
		return r;
	if (m->operation_id != 0)
		weight_decide_publish_operation(m, &op);
	return wms_revision_write(p->store, txn, &p->key, m, ops,
				  m->operation_id != 0);
}

static int publish_body(struct meta_txn *txn, void *arg)
{
	cleanup(wms_found_release) struct wms_found found = { NULL };
	struct publish *p = arg;
	struct weight_publish_state state = { .existing = NULL };
	struct weight_metadata m;
	int r;

	weight_metadata_free(take_ptr(p->result));
	r = wms_found_get(txn, &p->key, &p->publication->identity, &found);
	if (r < 0)
		return r;
	state.existing = found.revision;
	state.staged = found.staged;
	state.lineage = found.lineage;
	r = wms_operation_next_id(txn, &state.next_operation_id);
	if (r < 0)
		return r;
	r = weight_decide_publish(&state, p->publication, p->now_ms, &m,
				  p->why);
	if (r < 0)
		return r;
	r = publish_write(txn, p, &m);
	if (r < 0)
		return r;
	return weight_metadata_copy(&m, &p->result);
}

static void count_publish(const struct weight_metadata *m)
{
	const struct wms_shape before = { .there = false };
	struct weight_operation op = { .operation_id = 0 };
	struct wms_shape after;

	if (m->operation_id != 0)
		weight_decide_publish_operation(m, &op);
	after = wms_shape_of(m, &op);
	wms_count_change(&before, &after);
}

int wms_publish(struct weight_metadata_store *store,
		const struct weight_publication *publication, uint64_t now_ms,
		struct weight_metadata **ret, struct buf *why)
{
	struct publish p = { .store = store,
			     .publication = publication,
			     .now_ms = now_ms,
			     .why = why };
	int r;

	r = weight_identity_check(&publication->identity, why);
	if (r < 0)
		return r;
	r = wms_key_of(&publication->identity, &p.key);
	if (r < 0)
		return r;
	r = wms_update(store, META_NORMAL, publish_body, &p);
	if (r == 0)
		count_publish(p.result);
	if (r == 0 && ret)
		*ret = take_ptr(p.result);
	weight_metadata_free(p.result);
	return r;
}

/* ---- Announced imports ---- */

/* A change that may bring an operation with it: decide() gets what is there. */
struct bring {
	const struct weight_metadata_store *store;
	const struct weight_identity *identity;
	struct wms_key key;
	uint64_t now_ms;
	int (*decide)(const struct bring *b, const struct wms_found *found,
		      const struct weight_operation *active,
		      uint64_t next_operation_id,
		      struct weight_operation_outcome *ret);
	/* What one of the kinds of changes takes. */
	const struct weight_import_request *import;
	const struct weight_commit_request *commit;
	const struct weight_policy *policy;
	uint64_t expected;
	struct buf *why;
	struct weight_metadata *result;
	struct wms_shape before, after;
};

static int bring_body(struct meta_txn *txn, void *arg)
{
	cleanup(wms_found_release) struct wms_found found = { NULL };
	cleanup(weight_operation_free_cleanup) struct weight_operation *active =
		NULL;
	struct bring *b = arg;
	struct weight_operation_outcome out = { .changed = false };
	const struct weight_operation *ops[] = { &out.operation };
	uint64_t next_id;
	int r;

	weight_metadata_free(take_ptr(b->result));
	if ((r = wms_found_get(txn, &b->key, b->identity, &found)) < 0 ||
	    (r = wms_operation_next_id(txn, &next_id)) < 0 ||
	    (found.revision &&
	     (r = wms_operation_active(txn, found.revision, &active)) < 0) ||
	    (r = b->decide(b, &found, active, next_id, &out)) < 0 ||
	    (r = weight_metadata_copy(&out.metadata, &b->result)) < 0)
		return r;
	b->before = wms_shape_of(found.revision, active);
	b->after = wms_shape_of(&out.metadata, out.operation.operation_id ?
						       &out.operation :
						       active);
	if (!out.changed)
		return WMS_NOTHING_TO_WRITE;
	return wms_revision_write(b->store, txn, &b->key, &out.metadata, ops,
				  out.operation.operation_id != 0);
}

static int bring_apply(struct weight_metadata_store *store, struct bring *b,
		       struct weight_metadata **ret)
{
	int r = weight_identity_check(b->identity, b->why);

	if (r < 0)
		return r;
	b->store = store;
	r = wms_key_of(b->identity, &b->key);
	if (r == 0)
		r = wms_update(store, META_NORMAL, bring_body, b);
	if (r == 0)
		wms_count_change(&b->before, &b->after);
	if (r == 0 && ret)
		*ret = take_ptr(b->result);
	weight_metadata_free(b->result);
	return r;
}

static int decide_begin(const struct bring *b, const struct wms_found *found,
			const struct weight_operation *active,
			uint64_t next_operation_id,
			struct weight_operation_outcome *ret)
{
	const struct weight_import_state state = {
		.existing = found->revision,
		.staged = found->staged,
		.lineage = found->lineage,
	};

	(void)active;
	(void)next_operation_id;
	return weight_decide_import_begin(&state, b->import, b->now_ms,
					  &ret->metadata, &ret->changed,
					  b->why);
}

int wms_import_begin(struct weight_metadata_store *store,
		     const struct weight_import_request *request,
		     uint64_t now_ms, struct weight_metadata **ret,
		     struct buf *why)
{
	struct weight_import_request rq = *request;
	struct bring b = { .identity = &rq.identity,
			   .now_ms = now_ms,
			   .decide = decide_begin,
			   .import = &rq,
			   .why = why };
	char group[WEIGHT_GROUP_ID_LEN + 1];
	int r = weight_identity_check(&rq.identity, why);

	if (r == 0)
		r = weight_group_id(&rq.identity, group);
	if (r < 0)
		return r;
	if (!rq.payload_group_id[0])
		rq.payload_group_id = group;
	return bring_apply(store, &b, ret);
}

static int decide_commit(const struct bring *b, const struct wms_found *found,
			 const struct weight_operation *active,
			 uint64_t next_operation_id,
			 struct weight_operation_outcome *ret)
{
	const struct weight_commit_state state = {
		.existing = found->revision,
		.next_operation_id = next_operation_id,
	};

	(void)active;
	return weight_decide_import_commit(&state, b->commit, b->now_ms, ret,
					   b->why);
}

int wms_import_commit(struct weight_metadata_store *store,
		      const struct weight_commit_request *request,
		      uint64_t now_ms, struct weight_metadata **ret,
		      struct buf *why)
{
	struct bring b = { .identity = &request->identity,
			   .now_ms = now_ms,
			   .decide = decide_commit,
			   .commit = request,
			   .why = why };

	return bring_apply(store, &b, ret);
}

/* ---- Policies ---- */

static int decide_policy(const struct bring *b, const struct wms_found *found,
			 const struct weight_operation *active,
			 uint64_t next_operation_id,
			 struct weight_operation_outcome *ret)
{
	const struct weight_policy_state state = {
		.metadata = found->revision,
		.active = active,
		.fenced = weight_lineage_fences(found->lineage,
						b->identity->generation),
		.next_operation_id = next_operation_id,
	};

	return weight_decide_policy(&state, b->policy, b->expected, b->now_ms,
				    ret, b->why);
}

int wms_policy_update(struct weight_metadata_store *store,
		      const struct weight_identity *identity,
		      const struct weight_policy *policy,
		      uint64_t expected_metadata_generation, uint64_t now_ms,
		      struct weight_metadata **ret, struct buf *why)
{
	struct bring b = { .identity = identity,
			   .now_ms = now_ms,
			   .decide = decide_policy,
			   .policy = policy,
			   .expected = expected_metadata_generation,
			   .why = why };

	return bring_apply(store, &b, ret);
}
