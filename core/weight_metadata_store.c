/* SPDX-License-Identifier: Apache-2.0 */
#include "core/weight_metadata_store.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/cursor.h"
#include "core/digest.h"
#include "core/log.h"
#include "core/util.h"
#include "core/weight_key.h"
#include "core/weight_metadata_store_priv.h"

#define STATE_SCHEMA "schema"
#define STATE_EPOCH "epoch"
#define STATE_CLEAN "clean"
#define STATE_BOOT_ID "boot_id"

/* ---- Opening ---- */

/* Errors: -EPROTONOSUPPORT. */
static int schema_read(struct meta_txn *txn,
		       struct weight_metadata_store *store)
{
	struct meta_bytes boot_id;
	int r = wms_state_get(txn, STATE_SCHEMA, 0, &store->schema);

	if (r < 0)
		return r;
	if (store->schema > WMS_SCHEMA_VERSION)
		return log_debug(-EPROTONOSUPPORT, "schema %llu",
				 (unsigned long long)store->schema);
	r = meta_get(txn, META_DB_STATE, STATE_BOOT_ID, strlen(STATE_BOOT_ID),
		     &boot_id);
	if (r < 0 && r != -ENOENT)
		return r;
	store->is_new = r == -ENOENT;
	return 0;
}

static int schema_body(struct meta_txn *txn, void *arg)
{
	struct weight_metadata_store *store = arg;
	int r = schema_read(txn, store);

	if (r < 0)
		return r;
	if (store->schema == WMS_SCHEMA_VERSION)
		return WMS_NOTHING_TO_WRITE;
	r = wms_state_put(txn, STATE_SCHEMA, WMS_SCHEMA_VERSION);
	if (r < 0)
		return r;
	if (store->schema == 0)
		return wms_state_put(txn, STATE_EPOCH, 1);
	/* What was there before there was a log stands for its first entry. */
	r = wms_oplog_begin(txn, 2);
	/* And nobody kept a list of tombstones then. */
	return r < 0 ? r : wms_names_add_tombstones(txn);
}

static int schema_look(struct weight_metadata_store *store)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	int r = meta_read_begin(store->meta, &txn);

	return r < 0 ? r : schema_read(txn, store);
}

static int open_as(const char *dir, bool read_only, size_t bytes_max,
		   struct weight_metadata_store **ret, struct buf *why)
{
	cleanup(wms_close_cleanup) struct weight_metadata_store *store = NULL;
	struct meta_space space;
	int r;

	store = calloc(1, sizeof(*store));
	if (!store)
		return -ENOMEM;
	store->options.oplog_keep = WMS_OPLOG_KEEP_DEFAULT;
	r = read_only ? meta_open_read(dir, &store->meta, why) :
			meta_open(dir, bytes_max, &store->meta, why);
	if (r < 0)
		return r;
	r = read_only ? schema_look(store) :
			wms_update(store, META_RESERVED, schema_body, store);
	if (r < 0) {
		(void)buf_printf(
			why, "the metadata in '%s' can't be used: %s", dir,
			r == -EPROTONOSUPPORT ? "a newer version wrote it" :
						strerror(-r));
		return r;
	}
	if (!read_only)
		store->schema = WMS_SCHEMA_VERSION;
	meta_space_get(store->meta, &space);
	atomic_init(&store->is_short, space.tight);
	*ret = take_ptr(store);
	return 0;
}

int wms_open(const char *dir, struct weight_metadata_store **ret,
	     struct buf *why)
{
	return open_as(dir, false, META_BYTES_MAX, ret, why);
}

int wms_open_within(const char *dir, size_t bytes_max,
		    struct weight_metadata_store **ret, struct buf *why)
{
	return open_as(dir, false, bytes_max, ret, why);
}

int wms_open_read(const char *dir, struct weight_metadata_store **ret,
		  struct buf *why)
{
	return open_as(dir, true, META_BYTES_MAX, ret, why);
}

void wms_close(struct weight_metadata_store *store)
{
	if (!store)
		return;
	meta_close(store->meta);
	free(store);
}

void wms_configure(struct weight_metadata_store *store,
		   const struct wms_options *options)
{
	assert(options->oplog_keep > 0);
	store->options = *options;
}

int wms_say_no_room(struct weight_metadata_store *store, int r, struct buf *why)
{
	struct meta_space space;

	if ((r != -ENOSPC && r != -EDQUOT) || !why || why->len > 0)
		return r;
	meta_space_get(store->meta, &space);
	if (space.limited)
		(void)buf_printf(why,
				 "the metadata has reached its limit of %llu "
				 "MiB; remove revisions, or raise the option "
				 "metadata_limit and mount again",
				 (unsigned long long)(space.limit_bytes >> 20));
	else
		(void)buf_printf(why,
				 "the %s of the store's disk leaves no room "
				 "for its record",
				 r == -EDQUOT ? "quota" : "size");
	return r;
}

bool wms_is_new(const struct weight_metadata_store *store)
{
	return store->is_new;
}

int wms_totals(struct weight_metadata_store *store, struct wms_totals *ret)
{
	const struct {
		enum meta_db db;
		uint64_t *count;
	} maps[] = {
		{ META_DB_REVISION, &ret->revisions },
		{ META_DB_STAGING, &ret->staged },
		{ META_DB_LEASE, &ret->leases },
		{ META_DB_OPERATION, &ret->operations },
		{ META_DB_LINEAGE, &ret->lineages },
	};
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	int r = meta_read_begin(store->meta, &txn);

	for (size_t i = 0; i < ARRAY_LEN(maps) && r == 0; i++)
		r = meta_count(txn, maps[i].db, maps[i].count);
	return r;
}

/* ---- Boots ---- */

struct boot {
	const char *id;
	bool unclean;
};

static int boot_begin_body(struct meta_txn *txn, void *arg)
{
	struct boot *boot = arg;
	struct meta_bytes last;
	uint64_t clean, epoch;
	int r;

	r = wms_state_get(txn, STATE_CLEAN, 0, &clean);
	if (r < 0)
		return r;
	r = wms_state_get(txn, STATE_EPOCH, 1, &epoch);
	if (r < 0)
		return r;
	r = meta_get(txn, META_DB_STATE, STATE_BOOT_ID, strlen(STATE_BOOT_ID),
		     &last);
	if (r < 0 && r != -ENOENT)
		return r;
	boot->unclean = r == 0 && !clean &&
			(last.len != strlen(boot->id) ||
			 memcmp(last.data, boot->id, last.len) != 0);
	if (boot->unclean) {
		r = wms_state_put(txn, STATE_EPOCH, epoch + 1);
		if (r < 0)
			return r;
	}
	r = wms_state_put(txn, STATE_CLEAN, 0);
	if (r < 0)
		return r;
	return meta_put(txn, META_DB_STATE, STATE_BOOT_ID,
			strlen(STATE_BOOT_ID), boot->id, strlen(boot->id));
}

int wms_begin_boot(struct weight_metadata_store *store, const char *boot_id,
		   bool *ret_unclean)
{
	struct boot boot = { .id = boot_id };
	int r;

	if (!boot_id[0] || strlen(boot_id) > WMS_BOOT_ID_LEN_MAX)
		return log_debug(-EINVAL, "boot id");
	r = wms_update(store, META_RESERVED, boot_begin_body, &boot);
	if (r < 0)
		return r;
	*ret_unclean = boot.unclean;
	return 0;
}

static int mark_clean_body(struct meta_txn *txn, void *arg)
{
	(void)arg;
	return wms_state_put(txn, STATE_CLEAN, 1);
}

int wms_mark_clean(struct weight_metadata_store *store)
{
	return wms_update(store, META_RESERVED, mark_clean_body, NULL);
}

int wms_epoch(struct weight_metadata_store *store, uint64_t *ret)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	int r;

	r = meta_read_begin(store->meta, &txn);
	if (r < 0)
		return r;
	return wms_state_get(txn, STATE_EPOCH, 1, ret);
}

/* ---- Staged imports ---- */

static int staging_put(struct meta_txn *txn, const struct wms_key *key,
		       const struct weight_staging *s)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	int r = weight_record_staging_encode(s, &b);

	return r < 0 ? r :
		       meta_put(txn, META_DB_STAGING, key->bytes, key->len,
				b.data, b.len);
}

struct stage {
	const struct weight_identity *identity;
	const struct weight_policy *policy;
	struct wms_key key;
	uint64_t now_ms;
	struct buf *why;
};

static int stage_body(struct meta_txn *txn, void *arg)
{
	cleanup(wms_found_release) struct wms_found found = { NULL };
	const struct stage *st = arg;
	struct weight_staging record = { .identity = *st->identity,
					 .created_at_ms = st->now_ms };
	int r;

	r = wms_found_get(txn, &st->key, st->identity, &found);
	if (r < 0)
		return r;
	r = weight_decide_stage(found.revision, found.staged, st->identity,
				st->why);
	if (r < 0)
		return r;
	r = wms_state_get(txn, STATE_EPOCH, 1, &record.epoch);
	if (r < 0)
		return r;
	return staging_put(txn, &st->key, &record);
}

int wms_stage(struct weight_metadata_store *store,
	      const struct weight_identity *identity, uint64_t now_ms,
	      struct buf *why)
{
	struct stage st = { .identity = identity,
			    .now_ms = now_ms,
			    .why = why };
	int r;

	r = weight_identity_check(identity, why);
	if (r < 0)
		return r;
	r = wms_key_of(identity, &st.key);
	if (r < 0)
		return r;
	return wms_update(store, META_NORMAL, stage_body, &st);
}

static int staged_policy_body(struct meta_txn *txn, void *arg)
{
	cleanup(weight_staging_free_cleanup) struct weight_staging *s = NULL;
	const struct stage *st = arg;
	void *record;
	int r = wms_table_get(txn, &wms_stagings, &st->key, st->identity,
			      &record);

	if (r < 0)
		return r;
	s = record;
	s->has_policy = st->policy != NULL;
	if (st->policy)
		s->policy = *st->policy;
	return staging_put(txn, &st->key, s);
}

int wms_staged_policy(struct weight_metadata_store *store,
		      const struct weight_identity *identity,
		      const struct weight_policy *policy)
{
	struct stage st = { .identity = identity, .policy = policy };
	int r = wms_key_of(identity, &st.key);

	if (r == 0 && policy)
		r = weight_policy_check(policy, NULL);
	return r < 0 ? r :
		       wms_update(store, META_NORMAL, staged_policy_body, &st);
}

static int unstage_body(struct meta_txn *txn, void *arg)
{
	const struct wms_key *key = arg;

	return meta_delete(txn, META_DB_STAGING, key->bytes, key->len);
}

int wms_unstage(struct weight_metadata_store *store,
		const struct weight_identity *identity)
{
	struct wms_key key;
	int r;

	r = wms_key_of(identity, &key);
	if (r < 0)
		return r;
	return wms_update(store, META_RESERVED, unstage_body, &key);
}

int wms_staged_get(struct weight_metadata_store *store,
		   const struct weight_identity *identity,
		   struct weight_staging **ret)
{
	void *record;
	int r = wms_table_read(store, &wms_stagings, identity, &record);

	if (r == 0)
		*ret = record;
	return r;
}

int wms_staged_next(struct weight_metadata_store *store,
		    const struct weight_lineage *lineage, uint64_t after,
		    struct weight_staging **ret)
{
	void *record;
	int r = wms_table_next(store, &wms_stagings, lineage, after, &record);

	if (r == 0)
		*ret = record;
	return r;
}

int wms_staged_each(struct weight_metadata_store *store,
		    struct wms_position *position, struct weight_staging **ret)
{
	void *record;
	int r = wms_table_each(store, &wms_stagings, position, &record);

	if (r == 0)
		*ret = record;
	return r;
}

/* ---- Revisions ---- */

int wms_get(struct weight_metadata_store *store,
	    const struct weight_identity *identity,
	    struct weight_metadata **ret)
{
	void *record;
	int r = wms_table_read(store, wms_revisions_of(store), identity,
			       &record);

	if (r == 0)
		*ret = record;
	return r;
}

int wms_revision_next(struct weight_metadata_store *store,
		      const struct weight_lineage *lineage, uint64_t after,
		      struct weight_metadata **ret)
{
	void *record;
	int r = wms_table_next(store, wms_revisions_of(store), lineage, after,
			       &record);

	if (r == 0)
		*ret = record;
	return r;
}

/* Who has come to the end has read all of them, and others were written. */
static int revisions_some(struct weight_metadata_store *store,
			  struct wms_position *position, size_t limit,
			  void *ret[], size_t *ret_count)
{
	int r = wms_table_some(store, wms_revisions_of(store), position, limit,
			       ret, ret_count);

	if (r == -ENOENT && !position->missed)
		store->all_checked = true;
	return r;
}

int wms_revision_each(struct weight_metadata_store *store,
		      struct wms_position *position,
		      struct weight_metadata **ret)
{
	void *record;
	size_t n;
	int r = revisions_some(store, position, 1, &record, &n);

	if (r == 0)
		*ret = record;
	return r;
}

int wms_revisions_read(struct weight_metadata_store *store,
		       struct wms_position *position, struct wms_batch *ret)
{
	void *records[WMS_BATCH_MAX];
	size_t n;
	int r = revisions_some(store, position, WMS_BATCH_MAX, records, &n);

	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++)
		ret->items[i] = records[i];
	ret->count = n;
	return 0;
}

void wms_batch_release(struct wms_batch *batch)
{
	for (size_t i = 0; i < batch->count; i++)
		weight_metadata_free(batch->items[i]);
	batch->count = 0;
}

static bool is_going(const struct weight_metadata *m)
{
	return m->availability == WEIGHT_DELETING ||
	       m->availability == WEIGHT_DELETED;
}

int wms_lineage_in_use(struct weight_metadata_store *store,
		       const struct weight_lineage *lineage, bool *ret)
{
	struct weight_staging *staged;
	struct weight_metadata *m;
	uint64_t generation = 0;
	bool live = false;
	int r;

	r = wms_staged_next(store, lineage, 0, &staged);
	if (r == 0) {
		weight_staging_free(staged);
		*ret = true;
		return 0;
	}
	if (r != -ENOENT)
		return r;
	do {
		r = wms_revision_next(store, lineage, generation, &m);
		if (r != 0)
			break;
		generation = m->identity.generation;
		live = !is_going(m);
		weight_metadata_free(m);
	} while (!live);
	if (r < 0 && r != -ENOENT)
		return r;
	*ret = live;
	return 0;
}

/* ---- Changes of one revision ---- */

/*
 * A change of one record: decide() gets what is there and gives what shall be.
 * Its ret_changed is false when there is nothing to write.
 */
struct change {
	const struct weight_metadata_store *store;
	const struct weight_identity *identity;
	struct wms_key key;
	uint64_t expected;
	uint64_t now_ms;
	const struct weight_observation *seen;
	const char *ignore_lease_holder;
	bool by_claim;
	int (*decide)(struct meta_txn *txn, const struct change *change,
		      const struct weight_metadata *m,
		      struct weight_metadata *ret, bool *ret_changed);
	bool drops_leases;
	struct weight_metadata *result;
	struct wms_shape before, after;
};

/* Writes the revision, and what becomes of its active operation. */
static int change_write(struct meta_txn *txn, struct change *change,
			const struct weight_metadata *before,
			const struct weight_metadata *next)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *active =
		NULL;
	struct weight_operation after;
	const struct weight_operation *ops[] = { &after };
	bool follows = false;
	int r = wms_operation_active(txn, before, &active);

	if (r < 0)
		return r;
	if (active)
		weight_decide_operation_follow(active, next, change->now_ms,
					       &after, &follows);
	change->before = wms_shape_of(before, active);
	change->after = wms_shape_of(next, active);
	return wms_revision_write(change->store, txn, &change->key, next, ops,
				  follows);
}

/* The end of a revision has an entry of its own kind. */
static int finish_write(struct meta_txn *txn, const struct change *change,
			const struct weight_metadata *next)
{
	const struct oplog_change entry = {
		.type = OPLOG_METADATA_DELETE,
		.timestamp_ms = next->updated_at_ms,
		.identity = next->identity,
		.metadata_generation = next->metadata_generation,
	};
	int r = wms_revision_put(txn, &change->key, next);

	if (r == 0)
		r = wms_names_add(txn, WMS_NAMES_TOMBSTONES,
				  &next->identity.lineage);
	return r < 0 ? r : wms_log(change->store, txn, &entry);
}

static int change_body(struct meta_txn *txn, void *arg)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	struct change *change = arg;
	struct weight_metadata next;
	bool changed;
	int r;

	weight_metadata_free(take_ptr(change->result));
	r = wms_revision_get(txn, &change->key, change->identity, &m);
	if (r < 0)
		return r;
	change->before = change->after = wms_shape_of(m, NULL);
	r = change->decide(txn, change, m, &next, &changed);
	if (r < 0)
		return r;
	r = weight_metadata_copy(&next, &change->result);
	if (r < 0)
		return r;
	if (!changed)
		return WMS_NOTHING_TO_WRITE;
	change->after = wms_shape_of(&next, NULL);
	if (next.availability == WEIGHT_DELETED)
		return finish_write(txn, change, &next);
	if (change->drops_leases) {
		r = wms_lease_drop_all(txn, &change->key);
		if (r < 0)
			return r;
	}
	return change_write(txn, change, m, &next);
}

static int change_apply(struct weight_metadata_store *store,
			struct change *change, struct weight_metadata **ret)
{
	int r;

	change->store = store;
	r = wms_key_of(change->identity, &change->key);
	if (r < 0)
		return r;
	r = wms_update(store, META_RESERVED, change_body, change);
	if (r == 0)
		wms_count_change(&change->before, &change->after);
	if (r == 0 && ret)
		*ret = take_ptr(change->result);
	weight_metadata_free(change->result);
	return r;
}

static int decide_observe(struct meta_txn *txn, const struct change *change,
			  const struct weight_metadata *m,
			  struct weight_metadata *ret, bool *ret_changed)
{
	(void)txn;
	return weight_decide_observe(m, change->seen, change->expected,
				     change->now_ms, ret, ret_changed);
}

int wms_observe(struct weight_metadata_store *store,
		const struct weight_identity *identity,
		const struct weight_observation *seen,
		uint64_t expected_metadata_generation, uint64_t now_ms,
		struct weight_metadata **ret)
{
	struct change change = {
		.identity = identity,
		.seen = seen,
		.expected = expected_metadata_generation,
		.now_ms = now_ms,
		.decide = decide_observe,
	};
	int r = weight_observation_check(seen);

	return r < 0 ? r : change_apply(store, &change, ret);
}

static int decide_durable(struct meta_txn *txn, const struct change *change,
			  const struct weight_metadata *m,
			  struct weight_metadata *ret, bool *ret_changed)
{
	(void)txn;
	(void)change;
	if (m->availability != WEIGHT_READY &&
	    m->availability != WEIGHT_DEGRADED)
		return log_debug(-EINPROGRESS, "availability %d",
				 (int)m->availability);
	*ret = *m;
	ret->durable = true;
	*ret_changed = !m->durable;
	return 0;
}

int wms_mark_durable(struct weight_metadata_store *store,
		     const struct weight_identity *identity, uint64_t now_ms,
		     struct weight_metadata **ret)
{
	struct change change = { .identity = identity,
				 .now_ms = now_ms,
				 .decide = decide_durable };

	return change_apply(store, &change, ret);
}

static int decide_delete(struct meta_txn *txn, const struct change *change,
			 const struct weight_metadata *m,
			 struct weight_metadata *ret, bool *ret_changed)
{
	struct wms_lease_scan scan = {
		.ignore = change->ignore_lease_holder,
		.now_ms = change->now_ms,
		.metadata_generation = m->metadata_generation,
	};
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*lineage = NULL;
	struct weight_delete_state state = { .metadata = m };
	int r;

	r = wms_lease_scan(txn, &change->key, change->identity, &scan);
	if (r < 0)
		return r;
	state.leases = scan.summary.active;
	r = wms_operation_blocks(txn, m, &state.operation_blocks);
	if (r == 0)
		r = wms_lineage_find(txn, &m->identity.lineage, &lineage);
	if (r < 0)
		return r;
	/* The claim was given up meanwhile. */
	if (change->by_claim &&
	    !weight_lineage_fences(lineage, m->identity.generation))
		return log_debug(-ECANCELED, "not claimed any more");
	state.claimed =
		weight_decide_beside_claim(lineage, m->identity.generation,
					   false, change->by_claim, NULL) < 0;
	return weight_decide_delete_begin(&state, change->expected,
					  change->now_ms, ret, ret_changed);
}

int wms_delete_begin(struct weight_metadata_store *store,
		     const struct weight_identity *identity,
		     const struct wms_delete_request *request, uint64_t now_ms,
		     struct weight_metadata **ret)
{
	struct change change = {
		.identity = identity,
		.expected = request->expected_metadata_generation,
		.ignore_lease_holder = request->ignore_lease_holder,
		.by_claim = request->by_claim,
		.now_ms = now_ms,
		.decide = decide_delete,
		.drops_leases = true,
	};

	return change_apply(store, &change, ret);
}

static int decide_finish(struct meta_txn *txn, const struct change *change,
			 const struct weight_metadata *m,
			 struct weight_metadata *ret, bool *ret_changed)
{
	(void)txn;
	return weight_decide_delete_finish(m, change->expected, change->now_ms,
					   ret, ret_changed);
}

int wms_delete_finish(struct weight_metadata_store *store,
		      const struct weight_identity *identity,
		      uint64_t expected_metadata_generation, uint64_t now_ms,
		      struct weight_metadata **ret)
{
	struct change change = {
		.identity = identity,
		.expected = expected_metadata_generation,
		.now_ms = now_ms,
		.decide = decide_finish,
	};

	return change_apply(store, &change, ret);
}

static int decide_import_abort(struct meta_txn *txn,
			       const struct change *change,
			       const struct weight_metadata *m,
			       struct weight_metadata *ret, bool *ret_changed)
{
	(void)txn;
	return weight_decide_import_abort(m, change->expected, change->now_ms,
					  ret, ret_changed);
}

int wms_import_abort(struct weight_metadata_store *store,
		     const struct weight_identity *identity,
		     uint64_t expected_metadata_generation, uint64_t now_ms,
		     struct weight_metadata **ret)
{
	struct change change = {
		.identity = identity,
		.expected = expected_metadata_generation,
		.now_ms = now_ms,
		.decide = decide_import_abort,
	};

	return change_apply(store, &change, ret);
}
