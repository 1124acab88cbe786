/* SPDX-License-Identifier: Apache-2.0 */
/* The residency operations of the weight metadata store. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/metrics.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"

/* ---- Changes ---- */

/* A change of an operation: decide() gets what is there. */
struct operate {
	const struct weight_metadata_store *store;
	const struct weight_identity *identity;
	struct wms_key key;
	uint64_t operation_id;
	uint64_t now_ms;
	int (*decide)(const struct operate *o,
		      const struct weight_operation_state *state,
		      struct weight_operation_outcome *ret);
	/* What one of the kinds of changes takes. */
	const struct weight_operation_request *request; /* starts one */
	const struct weight_operation_progress *progress;
	const char *message;
	enum weight_residency residency;
	double hot_ratio;
	struct buf *why;
	struct weight_operation *result;
	/* For the metrics. */
	struct wms_shape before, after;
	bool changed;
	uint64_t processed_bytes; /* before */
};

/* The operation that the id names, or NULL if the revision has none such. */
static int named(struct meta_txn *txn, const struct operate *o,
		 struct weight_operation **ret)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	int r;

	r = wms_operation_read(txn, o->operation_id, &op);
	if (r < 0 && r != -ENOENT)
		return r;
	if (op && !weight_identity_equal(&op->identity, o->identity))
		weight_operation_free(take_ptr(op));
	*ret = take_ptr(op);
	return 0;
}

/* Reads what there is. Both results are the caller's, and may be NULL. */
static int operate_state(struct meta_txn *txn, const struct operate *o,
			 struct weight_metadata **ret_metadata,
			 struct weight_operation **ret_operation)
{
	void *record;
	int r;

	r = wms_table_find(txn, &wms_revisions, &o->key, o->identity, &record);
	if (r < 0)
		return r;
	*ret_metadata = record;
	if (!o->request)
		return named(txn, o, ret_operation);
	return *ret_metadata ?
		       wms_operation_active(txn, *ret_metadata, ret_operation) :
		       0;
}

static int operate_write(struct meta_txn *txn, const struct operate *o,
			 const struct weight_operation_outcome *out)
{
	const struct weight_operation *ops[OPLOG_OPERATIONS_MAX];
	size_t n = 0;

	if (out->superseded.operation_id)
		ops[n++] = &out->superseded;
	ops[n++] = &out->operation;
	return wms_revision_write(o->store, txn, &o->key, &out->metadata, ops,
				  n);
}

static int operate_body(struct meta_txn *txn, void *arg)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	struct weight_operation_state state = { .metadata = NULL };
	struct weight_operation_outcome out;
	struct operate *o = arg;
	int r;

	weight_operation_free(take_ptr(o->result));
	r = operate_state(txn, o, &m, &op);
	if (r < 0)
		return r;
	state.metadata = m;
	state.operation = op;
	r = wms_operation_next_id(txn, &state.next_operation_id);
	if (r == 0)
		r = wms_fenced(txn, o->identity, &state.fenced);
	if (r < 0)
		return r;
	r = o->decide(o, &state, &out);
	if (r < 0)
		return r;
	o->before = wms_shape_of(m, op);
	o->after = wms_shape_of(&out.metadata, &out.operation);
	o->changed = out.changed;
	o->processed_bytes = op ? op->processed_bytes : 0;
	r = weight_operation_copy(&out.operation, &o->result);
	if (r < 0)
		return r;
	return out.changed ? operate_write(txn, o, &out) : WMS_NOTHING_TO_WRITE;
}

/* Bytes and times are what callers say, and so may be of any size. */
static int64_t as_delta(uint64_t n)
{
	return n > INT64_MAX ? INT64_MAX : (int64_t)n;
}

/* A change that was committed. */
static void count(const struct operate *o)
{
	const struct weight_operation *op = o->result;

	wms_count_change(&o->before, &o->after);
	if (!o->changed || o->request)
		return;
	metrics_add(METRIC_MIGRATION_PROCESSED_BYTES,
		    as_delta(op->processed_bytes - o->processed_bytes));
	if (o->message)
		metrics_add(METRIC_OPERATION_FAILURES, 1);
	if (!weight_operation_is_finished(op))
		return;
	metrics_add(METRIC_OPERATIONS_FINISHED, 1);
	metrics_add(METRIC_MIGRATION_DURATION_MS,
		    as_delta(op->updated_at_ms - op->started_at_ms));
}

static int operate_apply(struct weight_metadata_store *store,
			 enum meta_purpose purpose, struct operate *o,
			 struct weight_operation **ret)
{
	int r;

	o->store = store;
	r = weight_identity_check(o->identity, o->why);
	if (r < 0)
		return r;
	r = wms_key_of(o->identity, &o->key);
	if (r < 0)
		return r;
	r = wms_update(store, purpose, operate_body, o);
	if (r == 0)
		count(o);
	if (r == 0 && ret)
		*ret = take_ptr(o->result);
	weight_operation_free(o->result);
	return r;
}

static int decide_start(const struct operate *o,
			const struct weight_operation_state *state,
			struct weight_operation_outcome *ret)
{
	return weight_decide_operation_start(state, o->identity, o->request,
					     o->now_ms, ret, o->why);
}

int wms_operation_start(struct weight_metadata_store *store,
			const struct weight_identity *identity,
			const struct weight_operation_request *request,
			uint64_t now_ms, struct weight_operation **ret,
			struct buf *why)
{
	struct operate o = {
		.identity = identity,
		.now_ms = now_ms,
		.decide = decide_start,
		.request = request,
		.why = why,
	};

	return operate_apply(store, META_NORMAL, &o, ret);
}

static int decide_progress(const struct operate *o,
			   const struct weight_operation_state *state,
			   struct weight_operation_outcome *ret)
{
	return weight_decide_operation_progress(state, o->operation_id,
						o->progress, o->now_ms, ret);
}

int wms_operation_progress(struct weight_metadata_store *store,
			   const struct weight_identity *identity,
			   uint64_t operation_id,
			   const struct weight_operation_progress *progress,
			   uint64_t now_ms, struct weight_operation **ret)
{
	struct operate o = {
		.identity = identity,
		.operation_id = operation_id,
		.now_ms = now_ms,
		.decide = decide_progress,
		.progress = progress,
	};

	return operate_apply(store, META_RESERVED, &o, ret);
}

static int decide_error(const struct operate *o,
			const struct weight_operation_state *state,
			struct weight_operation_outcome *ret)
{
	return weight_decide_operation_error(state, o->operation_id, o->message,
					     o->now_ms, ret);
}

int wms_operation_error(struct weight_metadata_store *store,
			const struct weight_identity *identity,
			uint64_t operation_id, const char *message,
			uint64_t now_ms, struct weight_operation **ret)
{
	struct operate o = {
		.identity = identity,
		.operation_id = operation_id,
		.now_ms = now_ms,
		.decide = decide_error,
		.message = message,
	};

	return operate_apply(store, META_RESERVED, &o, ret);
}

static int decide_finish(const struct operate *o,
			 const struct weight_operation_state *state,
			 struct weight_operation_outcome *ret)
{
	return weight_decide_operation_finish(state, o->operation_id,
					      o->residency, o->hot_ratio,
					      o->now_ms, ret);
}

int wms_operation_finish(struct weight_metadata_store *store,
			 const struct weight_identity *identity,
			 uint64_t operation_id, enum weight_residency residency,
			 double hot_ratio, uint64_t now_ms,
			 struct weight_operation **ret)
{
	struct operate o = {
		.identity = identity,
		.operation_id = operation_id,
		.now_ms = now_ms,
		.decide = decide_finish,
		.residency = residency,
		.hot_ratio = hot_ratio,
	};

	return operate_apply(store, META_RESERVED, &o, ret);
}

/* ---- Reading ---- */

int wms_operation_get(struct weight_metadata_store *store, const char *tenant,
		      uint64_t operation_id, struct weight_operation **ret)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	int r;

	if (operation_id == 0)
		return log_debug(-EINVAL, "operation 0");
	r = meta_read_begin(store->meta, &txn);
	if (r < 0)
		return r;
	r = wms_operation_read(txn, operation_id, &op);
	if (r < 0)
		return r;
	if (strcmp(op->identity.lineage.tenant, tenant) != 0)
		return log_debug(-ENOENT, "operation of another tenant");
	*ret = take_ptr(op);
	return 0;
}

int wms_operation_next(struct weight_metadata_store *store, uint64_t after,
		       struct weight_operation **ret)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	unsigned char from[WMS_U64_LEN];
	struct meta_bytes key, value;
	int r;

	if (after == UINT64_MAX)
		return -ENOENT;
	r = meta_read_begin(store->meta, &txn);
	if (r < 0)
		return r;
	r = meta_cursor_open(txn, META_DB_OPERATION, NULL, 0, &c);
	if (r < 0)
		return r;
	wms_u64_key(after + 1, from);
	r = meta_cursor_seek(c, from, sizeof(from), &key, &value);
	if (r < 0)
		return r;
	return weight_record_operation_decode(value.data, value.len, ret);
}

/*
 * The active operation of a revision as it is now, which may be another one
 * than the caller has seen, or none: NULL.
 */
static int active_now(struct weight_metadata_store *store,
		      const struct weight_identity *identity,
		      struct weight_operation **ret)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	struct wms_key key;
	int r;

	r = wms_key_of(identity, &key);
	if (r < 0)
		return r;
	r = meta_read_begin(store->meta, &txn);
	if (r < 0)
		return r;
	r = wms_revision_get(txn, &key, identity, &m);
	return r < 0 ? r : wms_operation_active(txn, m, ret);
}

int wms_operation_active_each(struct weight_metadata_store *store,
			      struct wms_position *position,
			      struct weight_operation **ret)
{
	struct weight_operation *op = NULL;
	struct weight_metadata *m;
	int r;

	while ((r = wms_revision_each(store, position, &m)) == 0) {
		if (m->operation_id != 0)
			r = active_now(store, &m->identity, &op);
		weight_metadata_free(m);
		if (r < 0)
			return r;
		if (op) {
			*ret = op;
			return 0;
		}
	}
	return r;
}
