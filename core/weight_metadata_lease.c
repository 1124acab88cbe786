/* SPDX-License-Identifier: Apache-2.0 */
/* The lease records of the weight metadata store. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/metrics.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"

#define STATE_NEXT_LEASE_ID "next_lease_id"

/* ---- Records ---- */

int wms_lease_read(struct meta_txn *txn, uint64_t id, struct weight_lease **ret)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *lease = NULL;
	unsigned char key[WMS_U64_LEN];
	struct meta_bytes value;
	int r;

	wms_u64_key(id, key);
	r = meta_get(txn, META_DB_LEASE, key, sizeof(key), &value);
	if (r < 0)
		return r;
	r = weight_record_lease_decode(value.data, value.len, &lease);
	if (r < 0)
		return r;
	if (lease->lease_id != id)
		return log_debug(-EUCLEAN, "record of another lease");
	*ret = take_ptr(lease);
	return 0;
}

struct wms_key wms_lease_index_key(const struct wms_key *revision, uint64_t id)
{
	struct wms_key key = *revision;

	assert(key.len <= sizeof(key.bytes) - WMS_U64_LEN);
	wms_u64_key(id, key.bytes + key.len);
	key.len += WMS_U64_LEN;
	return key;
}

int wms_lease_next_id(struct meta_txn *txn, uint64_t *ret)
{
	uint64_t id;
	int r = wms_state_get(txn, STATE_NEXT_LEASE_ID, 1, &id);

	if (r < 0)
		return r;
	if (id == 0)
		return log_debug(-EUCLEAN, "next lease id");
	*ret = id;
	return 0;
}

int wms_next_ids_put(struct meta_txn *txn, uint64_t next_lease_id,
		     uint64_t next_operation_id)
{
	int r = wms_state_put(txn, STATE_NEXT_LEASE_ID, next_lease_id);

	return r < 0 ? r :
		       wms_state_put(txn, WMS_STATE_NEXT_OPERATION_ID,
				     next_operation_id);
}

int wms_lease_put(struct meta_txn *txn, const struct wms_key *revision,
		  const struct weight_lease *lease)
{
	struct wms_key index = wms_lease_index_key(revision, lease->lease_id);
	cleanup(buf_release) struct buf b = BUF_INIT;
	unsigned char key[WMS_U64_LEN];
	uint64_t next;
	int r;

	wms_u64_key(lease->lease_id, key);
	if ((r = weight_record_lease_encode(lease, &b)) < 0 ||
	    (r = meta_put(txn, META_DB_LEASE, key, sizeof(key), b.data,
			  b.len)) < 0 ||
	    (r = wms_lease_next_id(txn, &next)) < 0 || lease->lease_id < next)
		return r;
	/* A new one. */
	r = meta_put(txn, META_DB_LEASE_OF_REVISION, index.bytes, index.len, "",
		     0);
	return r < 0 ? r :
		       wms_state_put(txn, STATE_NEXT_LEASE_ID,
				     lease->lease_id + 1);
}

int wms_lease_drop(struct meta_txn *txn, const struct wms_key *revision,
		   uint64_t id)
{
	struct wms_key index = wms_lease_index_key(revision, id);
	unsigned char key[WMS_U64_LEN];
	int r;

	wms_u64_key(id, key);
	r = meta_delete(txn, META_DB_LEASE, key, sizeof(key));
	if (r < 0)
		return r;
	r = meta_delete(txn, META_DB_LEASE_OF_REVISION, index.bytes, index.len);
	return r == -ENOENT ? log_debug(-EUCLEAN, "lease without index") : r;
}

/*
 * The lowest lease id above `after` of a revision. Keys of another revision get
 * in the way where one begins the other; they are longer.
 */
static int index_next(struct meta_cursor *c, const struct wms_key *revision,
		      uint64_t after, uint64_t *ret)
{
	struct meta_bytes key, value;
	struct wms_key from;
	uint64_t be;
	int r;

	if (after == UINT64_MAX)
		return -ENOENT;
	from = wms_lease_index_key(revision, after + 1);
	r = meta_cursor_seek(c, from.bytes, from.len, &key, &value);
	while (r == 0 && key.len != from.len)
		r = meta_cursor_next(c, &key, &value);
	if (r < 0)
		return r;
	memcpy(&be, (const unsigned char *)key.data + revision->len,
	       sizeof(be));
	*ret = be64toh(be);
	return 0;
}

/* Opens a cursor over the leases of one revision. */
static int index_open(struct meta_txn *txn, const struct wms_key *revision,
		      struct meta_cursor **ret)
{
	return meta_cursor_open(txn, META_DB_LEASE_OF_REVISION, revision->bytes,
				revision->len, ret);
}

static void scan_count(struct wms_lease_scan *scan,
		       const struct weight_lease *lease)
{
	struct wms_lease_summary *s = &scan->summary;

	if (!weight_lease_is_active(lease, scan->now_ms,
				    scan->metadata_generation))
		return;
	if (scan->ignore && strcmp(scan->ignore, lease->holder) == 0)
		return;
	s->active++;
	if (s->nearest_expiry_ms == 0 ||
	    lease->expires_at_ms < s->nearest_expiry_ms)
		s->nearest_expiry_ms = lease->expires_at_ms;
}

static bool scan_wants(const struct wms_lease_scan *scan,
		       const struct weight_lease *lease)
{
	return scan->holder && !scan->held &&
	       strcmp(scan->holder, lease->holder) == 0 &&
	       weight_lease_is_active(lease, scan->now_ms,
				      scan->metadata_generation);
}

static int scan_one(struct meta_txn *txn, uint64_t id,
		    const struct weight_identity *identity,
		    struct wms_lease_scan *scan)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *lease = NULL;
	int r;

	r = wms_lease_read(txn, id, &lease);
	if (r == -ENOENT)
		return log_debug(-EUCLEAN, "index without lease");
	if (r < 0)
		return r;
	if (!weight_identity_equal(&lease->identity, identity))
		return log_debug(-EUCLEAN, "lease of another revision");
	scan_count(scan, lease);
	if (scan_wants(scan, lease))
		scan->held = take_ptr(lease);
	return 0;
}

int wms_lease_scan(struct meta_txn *txn, const struct wms_key *key,
		   const struct weight_identity *identity,
		   struct wms_lease_scan *scan)
{
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	uint64_t id = 0;
	int r;

	r = index_open(txn, key, &c);
	if (r < 0)
		return r;
	while ((r = index_next(c, key, id, &id)) == 0) {
		r = scan_one(txn, id, identity, scan);
		if (r < 0)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

int wms_lease_drop_all(struct meta_txn *txn, const struct wms_key *key)
{
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	uint64_t id = 0;
	int r;

	r = index_open(txn, key, &c);
	if (r < 0)
		return r;
	while ((r = index_next(c, key, id, &id)) == 0) {
		r = wms_lease_drop(txn, key, id);
		if (r < 0)
			return r == -ENOENT ? -EUCLEAN : r;
	}
	return r == -ENOENT ? 0 : r;
}

/* -ENOENT at the end. */
static int lease_next(struct meta_cursor *c, uint64_t after,
		      struct weight_lease **ret)
{
	unsigned char from[WMS_U64_LEN];
	struct meta_bytes key, value;
	int r;

	if (after == UINT64_MAX)
		return -ENOENT;
	wms_u64_key(after + 1, from);
	r = meta_cursor_seek(c, from, sizeof(from), &key, &value);
	if (r < 0)
		return r;
	return weight_record_lease_decode(value.data, value.len, ret);
}

/* ---- Acquire ---- */

/* Logs a lease that was written, for a revision that was accessed then. */
static int lease_log(const struct weight_metadata_store *store,
		     struct meta_txn *txn, const struct weight_lease *lease,
		     uint64_t last_accessed_at_ms, uint64_t now_ms)
{
	const struct oplog_change change = {
		.type = OPLOG_LEASE_UPSERT,
		.timestamp_ms = now_ms,
		.lease = lease,
		.last_accessed_at_ms = last_accessed_at_ms,
	};

	return wms_log(store, txn, &change);
}

struct acquire {
	const struct weight_metadata_store *store;
	const struct weight_identity *identity;
	const struct weight_lease_request *request;
	struct wms_key key;
	uint64_t now_ms;
	struct weight_lease *result;
};

/*
 * Reads what the decision needs. *ret_metadata and scan->held are the caller's.
 */
static int acquire_state(struct meta_txn *txn, const struct acquire *a,
			 struct wms_lease_scan *scan,
			 struct weight_lease_state *state,
			 struct weight_metadata **ret_metadata)
{
	int r;

	r = wms_lease_next_id(txn, &state->next_lease_id);
	if (r < 0)
		return r;
	r = wms_revision_get(txn, &a->key, a->identity, ret_metadata);
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return r;
	if ((r = wms_operation_blocks(txn, *ret_metadata,
				      &state->operation_blocks)) < 0 ||
	    (r = wms_fenced(txn, a->identity, &state->fenced)) < 0)
		return r;
	*scan = (struct wms_lease_scan){
		.holder = a->request->holder,
		.now_ms = a->now_ms,
		.metadata_generation = (*ret_metadata)->metadata_generation,
	};
	return wms_lease_scan(txn, &a->key, a->identity, scan);
}

static int acquire_write(struct meta_txn *txn, const struct acquire *a,
			 struct weight_metadata *m,
			 const struct weight_lease *lease)
{
	int r = wms_lease_put(txn, &a->key, lease);

	if (r == 0 && a->now_ms > m->last_accessed_at_ms) {
		m->last_accessed_at_ms = a->now_ms;
		r = wms_revision_put(txn, &a->key, m);
	}
	return r < 0 ? r :
		       lease_log(a->store, txn, lease, m->last_accessed_at_ms,
				 a->now_ms);
}

static int acquire_body(struct meta_txn *txn, void *arg)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(weight_lease_free_cleanup) struct weight_lease *held = NULL;
	struct weight_lease_state state = { .metadata = NULL };
	struct wms_lease_scan scan = { .holder = NULL };
	struct acquire *a = arg;
	struct weight_lease lease;
	bool is_new;
	int r;

	weight_lease_free(take_ptr(a->result));
	r = acquire_state(txn, a, &scan, &state, &m);
	held = scan.held;
	if (r < 0)
		return r;
	state.metadata = m;
	state.held = held;
	r = weight_decide_lease_acquire(&state, a->identity, a->request,
					a->now_ms, &lease, &is_new);
	if (r < 0)
		return r;
	r = weight_lease_copy(&lease, &a->result);
	if (r < 0)
		return r;
	return is_new ? acquire_write(txn, a, m, &lease) : WMS_NOTHING_TO_WRITE;
}

int wms_lease_acquire(struct weight_metadata_store *store,
		      const struct weight_identity *identity,
		      const struct weight_lease_request *request,
		      uint64_t now_ms, struct weight_lease **ret)
{
	struct acquire a = { .store = store,
			     .identity = identity,
			     .request = request,
			     .now_ms = now_ms };
	int r;

	r = wms_key_of(identity, &a.key);
	if (r < 0)
		return r;
	r = wms_update(store, META_RESERVED, acquire_body, &a);
	if (r == 0)
		*ret = take_ptr(a.result);
	weight_lease_free(a.result);
	return r;
}

/* ---- Renew, release, sweep ---- */

struct renew {
	const struct weight_metadata_store *store;
	const char *tenant;
	uint64_t lease_id;
	uint64_t ttl_ms;
	uint64_t now_ms;
	struct weight_lease *result;
};

/* What the renewal of a lease has to know of its revision. */
static int renew_state(struct meta_txn *txn, const struct weight_lease *lease,
		       struct wms_key *ret_key, bool *ret_fenced,
		       uint64_t *ret_accessed)
{
	struct weight_metadata *m;
	int r;

	if ((r = wms_key_of(&lease->identity, ret_key)) < 0 ||
	    (r = wms_fenced(txn, &lease->identity, ret_fenced)) < 0)
		return r;
	r = wms_revision_get(txn, ret_key, &lease->identity, &m);
	if (r == -ENOENT)
		return log_debug(-EUCLEAN, "lease of no revision");
	if (r < 0)
		return r;
	*ret_accessed = m->last_accessed_at_ms;
	weight_metadata_free(m);
	return 0;
}

static int renew_body(struct meta_txn *txn, void *arg)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *lease = NULL;
	struct renew *rn = arg;
	struct weight_lease next;
	struct wms_key key = { .len = 0 };
	uint64_t accessed = 0;
	bool fenced = false;
	int r;

	weight_lease_free(take_ptr(rn->result));
	r = wms_lease_read(txn, rn->lease_id, &lease);
	if (r == 0)
		r = renew_state(txn, lease, &key, &fenced, &accessed);
	if (r < 0 && r != -ENOENT)
		return r;
	r = weight_decide_lease_renew(lease, rn->tenant, fenced, rn->ttl_ms,
				      rn->now_ms, &next);
	if (r < 0)
		return r;
	assert(lease); /* or it was refused */
	r = weight_lease_copy(&next, &rn->result);
	if (r < 0)
		return r;
	if (next.expires_at_ms == lease->expires_at_ms)
		return WMS_NOTHING_TO_WRITE;
	r = wms_lease_put(txn, &key, &next);
	return r < 0 ? r :
		       lease_log(rn->store, txn, &next, accessed, rn->now_ms);
}

int wms_lease_renew(struct weight_metadata_store *store, const char *tenant,
		    uint64_t lease_id, uint64_t ttl_ms, uint64_t now_ms,
		    struct weight_lease **ret)
{
	struct renew rn = { .store = store,
			    .tenant = tenant,
			    .lease_id = lease_id,
			    .ttl_ms = ttl_ms,
			    .now_ms = now_ms };
	int r;

	r = wms_update(store, META_RESERVED, renew_body, &rn);
	if (r == 0 && ret)
		*ret = take_ptr(rn.result);
	weight_lease_free(rn.result);
	return r;
}

struct release {
	const struct weight_metadata_store *store;
	const char *tenant;
	uint64_t lease_id;
};

/* Removes a lease that was read, with its index. */
static int lease_remove(const struct weight_metadata_store *store,
			struct meta_txn *txn, const struct weight_lease *lease,
			uint64_t now_ms)
{
	const struct oplog_change change = {
		.type = OPLOG_LEASE_DELETE,
		.timestamp_ms = now_ms,
		.lease_id = lease->lease_id,
		.identity = lease->identity,
		.metadata_generation = lease->fenced_metadata_generation,
	};
	struct wms_key key;
	int r = wms_key_of(&lease->identity, &key);

	if (r == 0)
		r = wms_lease_drop(txn, &key, lease->lease_id);
	if (r == -ENOENT)
		return log_debug(-EUCLEAN, "lease without its record");
	return r < 0 ? r : wms_log(store, txn, &change);
}

static int release_body(struct meta_txn *txn, void *arg)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *lease = NULL;
	const struct release *rl = arg;
	int r;

	r = wms_lease_read(txn, rl->lease_id, &lease);
	if (r == -ENOENT)
		return WMS_NOTHING_TO_WRITE;
	if (r < 0)
		return r;
	if (strcmp(lease->identity.lineage.tenant, rl->tenant) != 0)
		return log_debug(-ENOENT, "lease of another tenant");
	/* When it ends early, nobody asks when that was. */
	return lease_remove(rl->store, txn, lease, lease->expires_at_ms);
}

int wms_lease_release(struct weight_metadata_store *store, const char *tenant,
		      uint64_t lease_id)
{
	struct release rl = { .store = store,
			      .tenant = tenant,
			      .lease_id = lease_id };

	return wms_update(store, META_RESERVED, release_body, &rl);
}

struct sweep {
	const struct weight_metadata_store *store;
	uint64_t now_ms;
	size_t limit;
	size_t removed;
};

static int sweep_body(struct meta_txn *txn, void *arg)
{
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	struct sweep *s = arg;
	struct weight_lease *lease;
	uint64_t id = 0;
	int r;

	s->removed = 0;
	r = meta_cursor_open(txn, META_DB_LEASE, NULL, 0, &c);
	if (r < 0)
		return r;
	while (s->removed < s->limit) {
		r = lease_next(c, id, &lease);
		if (r == -ENOENT)
			break;
		if (r < 0)
			return r;
		id = lease->lease_id;
		if (lease->expires_at_ms <= s->now_ms) {
			r = lease_remove(s->store, txn, lease, s->now_ms);
			s->removed++;
		}
		weight_lease_free(lease);
		if (r < 0)
			return r;
	}
	return s->removed ? 0 : WMS_NOTHING_TO_WRITE;
}

int wms_lease_sweep(struct weight_metadata_store *store, uint64_t now_ms,
		    size_t limit, size_t *ret_removed)
{
	struct sweep s = { .store = store, .now_ms = now_ms, .limit = limit };
	int r;

	r = wms_update(store, META_RESERVED, sweep_body, &s);
	if (r < 0)
		return r;
	metrics_add(METRIC_EXPIRED_LEASES, (int64_t)s.removed);
	*ret_removed = s.removed;
	return 0;
}

/* ---- Reading ---- */

int wms_lease_next(struct weight_metadata_store *store, uint64_t after,
		   struct weight_lease **ret)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	int r;

	r = meta_read_begin(store->meta, &txn);
	if (r < 0)
		return r;
	r = meta_cursor_open(txn, META_DB_LEASE, NULL, 0, &c);
	if (r < 0)
		return r;
	return lease_next(c, after, ret);
}

int wms_lease_summary(struct weight_metadata_store *store,
		      const struct weight_identity *identity, uint64_t now_ms,
		      struct wms_lease_summary *ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	struct wms_lease_scan scan = { .now_ms = now_ms };
	struct wms_key key;
	int r;

	r = wms_key_of(identity, &key);
	if (r < 0)
		return r;
	r = meta_read_begin(store->meta, &txn);
	if (r < 0)
		return r;
	r = wms_revision_get(txn, &key, identity, &m);
	if (r < 0)
		return r;
	scan.metadata_generation = m->metadata_generation;
	r = wms_lease_scan(txn, &key, identity, &scan);
	if (r < 0)
		return r;
	*ret = scan.summary;
	return 0;
}
