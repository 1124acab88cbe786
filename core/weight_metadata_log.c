/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operation log of the weight metadata store: what is added with each
 * mutation, and what is done with the entries of another store.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/metrics.h"
#include "core/weight_decision_replay.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"

#define STATE_OPLOG_FIRST "oplog_first"
#define STATE_OPLOG_NEXT "oplog_next"
/* Oldest entries that go with each new one, so that a lower limit is reached. */
#define TRIM_BATCH 2
/* And where there is no room for a new one. */
#define ROOM_BATCH 64

/* ---- Adding ---- */

static int state_read(struct meta_txn *txn, struct wms_oplog_state *ret)
{
	int r = wms_state_get(txn, STATE_OPLOG_FIRST, 1, &ret->first);

	if (r == 0)
		r = wms_state_get(txn, STATE_OPLOG_NEXT, 1, &ret->next);
	if (r == 0 && (ret->first == 0 || ret->first > ret->next))
		return log_debug(-EUCLEAN, "oplog from %llu to %llu",
				 (unsigned long long)ret->first,
				 (unsigned long long)ret->next);
	return r;
}

int wms_oplog_begin(struct meta_txn *txn, uint64_t next)
{
	int r = wms_state_put(txn, STATE_OPLOG_FIRST, next);

	return r < 0 ? r : wms_state_put(txn, STATE_OPLOG_NEXT, next);
}

/* Removes oldest entries until there are no more than `keep`, or some went. */
static int trim(struct meta_txn *txn, uint64_t keep, int batch,
		const struct wms_oplog_state *state)
{
	unsigned char key[WMS_U64_LEN];
	uint64_t first = state->first;
	int r = 0;

	for (int i = 0; i < batch && r == 0 && state->next - first > keep;
	     i++) {
		wms_u64_key(first++, key);
		r = meta_delete(txn, META_DB_OPLOG, key, sizeof(key));
	}
	if (r == -ENOENT)
		return log_debug(-EUCLEAN, "entry %llu of the log is missing",
				 (unsigned long long)first - 1);
	if (r < 0 || first == state->first)
		return r;
	return wms_state_put(txn, STATE_OPLOG_FIRST, first);
}

/*
 * Without room the log gets shorter with each entry, so that what is kept for
 * leases and removals lasts. Who follows a log has to get all of it.
 */
static uint64_t entries_kept(const struct weight_metadata_store *store)
{
	return atomic_load(&store->is_short) && !store->options.replicated ?
		       1 :
		       store->options.oplog_keep;
}

static int make_room_body(struct meta_txn *txn, void *arg)
{
	struct wms_oplog_state state;
	int r = state_read(txn, &state);

	(void)arg;
	if (r == 0 && state.next - state.first <= 1)
		r = -ENOSPC;
	return r < 0 ? r : trim(txn, 1, ROOM_BATCH, &state);
}

int wms_oplog_make_room(struct weight_metadata_store *store)
{
	if (store->options.replicated)
		return -ENOSPC;
	return meta_update(store->meta, META_RESERVED, make_room_body, NULL);
}

/* Adds the bytes of an entry that has the sequence which comes next. */
static int append(const struct weight_metadata_store *store,
		  struct meta_txn *txn, struct wms_oplog_state *state,
		  const void *bytes, size_t len)
{
	unsigned char key[WMS_U64_LEN];
	int r;

	if (state->next == UINT64_MAX)
		return log_debug(-EOVERFLOW, "no sequence is left");
	wms_u64_key(state->next, key);
	r = meta_put(txn, META_DB_OPLOG, key, sizeof(key), bytes, len);
	if (r < 0)
		return r;
	state->next++;
	r = wms_state_put(txn, STATE_OPLOG_NEXT, state->next);
	return r < 0 ? r : trim(txn, entries_kept(store), TRIM_BATCH, state);
}

/* Fails closed: who follows the log may not know such entries. */
static int gate(const struct weight_metadata_store *store, enum oplog_type type)
{
	const struct wms_options *o = &store->options;
	bool confirmed = type == OPLOG_LINEAGE_UPSERT ? o->confirms_lineages :
							o->confirms_management;

	if (!o->replicated || confirmed)
		return 0;
	return log_debug(-EIO, "not confirmed for entries of type %d",
			 (int)type);
}

int wms_log(const struct weight_metadata_store *store, struct meta_txn *txn,
	    const struct oplog_change *change)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct wms_oplog_state state;
	int r = gate(store, change->type);

	if (r < 0)
		return r;
	r = state_read(txn, &state);
	if (r == 0)
		r = oplog_encode(change, state.next, &bytes);
	return r < 0 ? r : append(store, txn, &state, bytes.data, bytes.len);
}

int wms_revision_write(const struct weight_metadata_store *store,
		       struct meta_txn *txn, const struct wms_key *key,
		       const struct weight_metadata *m,
		       const struct weight_operation *const ops[],
		       size_t op_count)
{
	struct oplog_change change = {
		.type = OPLOG_METADATA_UPSERT,
		.timestamp_ms = m->updated_at_ms,
		.metadata = m,
		.operation_count = op_count,
	};
	int r;

	assert(op_count <= OPLOG_OPERATIONS_MAX);
	r = wms_revision_put(txn, key, m);
	for (size_t i = 0; i < op_count && r == 0; i++) {
		change.operations[i] = ops[i];
		if (ops[i]->updated_at_ms > change.timestamp_ms)
			change.timestamp_ms = ops[i]->updated_at_ms;
		r = wms_operation_put(txn, ops[i]);
	}
	return r < 0 ? r : wms_log(store, txn, &change);
}

/* ---- Reading ---- */

int wms_oplog_read(struct meta_txn *txn, uint64_t sequence,
		   struct meta_bytes *ret)
{
	unsigned char key[WMS_U64_LEN];

	wms_u64_key(sequence, key);
	return meta_get(txn, META_DB_OPLOG, key, sizeof(key), ret);
}

int wms_oplog_state_get(struct meta_txn *txn, struct wms_oplog_state *ret)
{
	return state_read(txn, ret);
}

int wms_oplog_state(struct weight_metadata_store *store,
		    struct wms_oplog_state *ret)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	int r = meta_read_begin(store->meta, &txn);

	return r < 0 ? r : state_read(txn, ret);
}

int wms_oplog_get(struct weight_metadata_store *store, uint64_t sequence,
		  struct buf *ret)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	struct meta_bytes bytes;
	int r = meta_read_begin(store->meta, &txn);

	if (r == 0)
		r = wms_oplog_read(txn, sequence, &bytes);
	return r < 0 ? r : buf_append(ret, bytes.data, bytes.len);
}

/* ---- Replay ---- */

struct replay {
	const struct weight_metadata_store *store;
	const void *bytes;
	size_t len;
	const struct oplog_entry *entry;
	/* For the metrics. */
	struct wms_shape before, after;
	struct weight_claim claim; /* before; its strings are gone */
	bool was_claimed;
	struct buf *why;
};

/* What there is of what an entry names; owned. */
struct present {
	struct weight_metadata *metadata;
	struct weight_lineage_record *lineage;
	struct weight_lease *lease;
	struct weight_operation *operations[OPLOG_OPERATIONS_MAX];
	struct weight_operation *active;
};

static void present_release(struct present *p)
{
	weight_metadata_free(p->metadata);
	weight_lineage_record_free(p->lineage);
	weight_lease_free(p->lease);
	for (size_t i = 0; i < OPLOG_OPERATIONS_MAX; i++)
		weight_operation_free(p->operations[i]);
	weight_operation_free(p->active);
}

/* The revision that an entry is about; NULL: it is about a lineage. */
static const struct weight_identity *identity_of(const struct oplog_change *c)
{
	switch (c->type) {
	case OPLOG_METADATA_UPSERT:
		return &c->metadata->identity;
	case OPLOG_LEASE_UPSERT:
		return &c->lease->identity;
	case OPLOG_METADATA_DELETE:
	case OPLOG_LEASE_DELETE:
		return &c->identity;
	case OPLOG_LINEAGE_UPSERT:
		break;
	}
	return NULL;
}

static int lease_find(struct meta_txn *txn, const struct oplog_change *c,
		      struct weight_lease **ret)
{
	uint64_t id = c->type == OPLOG_LEASE_UPSERT ? c->lease->lease_id :
		      c->type == OPLOG_LEASE_DELETE ? c->lease_id :
						      0;
	int r = id ? wms_lease_read(txn, id, ret) : 0;

	return r == -ENOENT ? 0 : r;
}

static int present_get(struct meta_txn *txn, const struct oplog_change *c,
		       const struct wms_key *key, struct present *ret)
{
	const struct weight_identity *identity = identity_of(c);
	void *record = NULL;
	int r;

	r = wms_lineage_find(
		txn, identity ? &identity->lineage : &c->lineage->lineage,
		&ret->lineage);
	if (r < 0 || !identity)
		return r;
	r = wms_table_find(txn, &wms_revisions, key, identity, &record);
	if (r < 0)
		return r;
	ret->metadata = record;
	if (ret->metadata)
		r = wms_operation_active(txn, ret->metadata, &ret->active);
	for (size_t i = 0; r == 0 && i < c->operation_count; i++) {
		r = wms_operation_read(txn, c->operations[i]->operation_id,
				       &ret->operations[i]);
		if (r == -ENOENT)
			r = 0;
	}
	return r < 0 ? r : lease_find(txn, c, &ret->lease);
}

static int replay_decide(struct meta_txn *txn, const struct replay *rp,
			 const struct present *there)
{
	struct weight_replay_state state = {
		.metadata = there->metadata,
		.lineage = there->lineage,
		.lease = there->lease,
		.active = there->active,
	};
	int r;

	for (size_t i = 0; i < OPLOG_OPERATIONS_MAX; i++)
		state.operations[i] = there->operations[i];
	if ((r = wms_lease_next_id(txn, &state.next_lease_id)) < 0 ||
	    (r = wms_operation_next_id(txn, &state.next_operation_id)) < 0)
		return r;
	return weight_decide_replay(&state, &rp->entry->change, rp->why);
}

static int replay_upsert(struct meta_txn *txn, const struct oplog_change *c,
			 const struct wms_key *key)
{
	int r = wms_revision_put(txn, key, c->metadata);

	for (size_t i = 0; i < c->operation_count && r == 0; i++)
		r = wms_operation_put(txn, c->operations[i]);
	/* What goes, or is gone, has no leases. */
	if (r == 0 && (c->metadata->availability == WEIGHT_DELETING ||
		       c->metadata->availability == WEIGHT_DELETED))
		r = wms_lease_drop_all(txn, key);
	return r;
}

static int replay_delete(struct meta_txn *txn, const struct oplog_change *c,
			 const struct wms_key *key, struct weight_metadata *m)
{
	int r;

	if (m->availability != WEIGHT_DELETED) {
		m->availability = WEIGHT_DELETED;
		m->residency = WEIGHT_ABSENT;
		m->observed_hot_ratio = 0;
		m->metadata_generation = c->metadata_generation;
		m->updated_at_ms = c->timestamp_ms;
	}
	r = wms_revision_put(txn, key, m);
	if (r == 0)
		r = wms_names_add(txn, WMS_NAMES_TOMBSTONES,
				  &c->identity.lineage);
	return r;
}

static int replay_lease(struct meta_txn *txn, const struct oplog_change *c,
			const struct wms_key *key, struct weight_metadata *m)
{
	int r = wms_lease_put(txn, key, c->lease);

	if (r < 0 || !m || c->last_accessed_at_ms <= m->last_accessed_at_ms)
		return r;
	m->last_accessed_at_ms = c->last_accessed_at_ms;
	return wms_revision_put(txn, key, m);
}

static int replay_lineage(struct meta_txn *txn, const struct oplog_change *c)
{
	int r = wms_lineage_put(txn, c->lineage);

	if (r < 0 || !c->lineage->claimed)
		return r;
	return wms_names_add(txn, WMS_NAMES_CLAIMS, &c->lineage->lineage);
}

static int replay_write(struct meta_txn *txn, const struct oplog_change *c,
			const struct wms_key *key, const struct present *there)
{
	int r;

	switch (c->type) {
	case OPLOG_METADATA_UPSERT:
		return replay_upsert(txn, c, key);
	case OPLOG_METADATA_DELETE:
		return replay_delete(txn, c, key, there->metadata);
	case OPLOG_LEASE_UPSERT:
		return replay_lease(txn, c, key, there->metadata);
	case OPLOG_LEASE_DELETE:
		r = there->lease ? wms_lease_drop(txn, key, c->lease_id) : 0;
		return r == -ENOENT ? -EUCLEAN : r;
	case OPLOG_LINEAGE_UPSERT:
		return replay_lineage(txn, c);
	}
	return log_debug(-EUCLEAN, "type %d", (int)c->type);
}

/* Of a revision as it has become. */
static int shape_now(struct meta_txn *txn, const struct wms_key *key,
		     const struct weight_identity *identity,
		     struct wms_shape *ret)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *active =
		NULL;
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	int r = wms_revision_get(txn, key, identity, &m);

	if (r == 0)
		r = wms_operation_active(txn, m, &active);
	if (r == 0)
		*ret = wms_shape_of(m, active);
	return r;
}

static void count_replay(const struct replay *rp)
{
	const struct oplog_change *c = &rp->entry->change;

	wms_count_change(&rp->before, &rp->after);
	if (c->type == OPLOG_LINEAGE_UPSERT && c->lineage->claimed)
		wms_count_claim(rp->was_claimed ? &rp->claim : NULL,
				&c->lineage->claim);
}

static int replay_body(struct meta_txn *txn, void *arg)
{
	cleanup(present_release) struct present there = { NULL };
	struct replay *rp = arg;
	const struct oplog_change *c = &rp->entry->change;
	const struct weight_identity *identity = identity_of(c);
	struct wms_oplog_state state;
	struct wms_key key = { .len = 0 };
	int r;

	if ((r = state_read(txn, &state)) < 0 ||
	    (identity && (r = wms_key_of(identity, &key)) < 0))
		return r;
	if (rp->entry->sequence != state.next) {
		(void)buf_printf(rp->why,
				 "entry %llu can't follow, %llu comes next",
				 (unsigned long long)rp->entry->sequence,
				 (unsigned long long)state.next);
		return log_debug(-ESPIPE, "sequence");
	}
	if ((r = present_get(txn, c, &key, &there)) < 0 ||
	    (r = replay_decide(txn, rp, &there)) < 0)
		return r;
	rp->before = wms_shape_of(there.metadata, there.active);
	rp->was_claimed = there.lineage && there.lineage->claimed;
	if (rp->was_claimed)
		rp->claim = there.lineage->claim;
	if ((r = replay_write(txn, c, &key, &there)) < 0)
		return r;
	rp->after = rp->before;
	if (identity && (r = shape_now(txn, &key, identity, &rp->after)) < 0)
		return r;
	return append(rp->store, txn, &state, rp->bytes, rp->len);
}

int wms_replay(struct weight_metadata_store *store, const void *bytes,
	       size_t len, struct buf *why)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *entry = NULL;
	cleanup(buf_release) struct buf unheard = BUF_INIT;
	struct replay rp = { .store = store,
			     .bytes = bytes,
			     .len = len,
			     .why = why ? why : &unheard };
	int r = oplog_decode(bytes, len, &entry);

	if (r < 0) {
		(void)buf_printf(rp.why, "the entry can't be read: %s",
				 strerrordesc_np(-r));
		return r;
	}
	rp.entry = entry;
	r = wms_update(store, META_NORMAL, replay_body, &rp);
	if (r == 0)
		count_replay(&rp);
	return r;
}
