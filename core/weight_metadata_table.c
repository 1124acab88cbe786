/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The maps of the weight metadata store: keys, state, records that are found by
 * identity, and operations.
 */
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "core/cursor.h"
#include "core/digest.h"
#include "core/log.h"
#include "core/step.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"

/* How much of the digest of a revision tells cut ones apart. */
#define CUT_DIGEST_LEN 8

/* ---- Keys and state ---- */

void wms_u64_key(uint64_t v, unsigned char ret[static WMS_U64_LEN])
{
	uint64_t be = htobe64(v);

	memcpy(ret, &be, WMS_U64_LEN);
}

void wms_key_add(struct wms_key *key, const void *bytes, size_t len)
{
	assert(len <= sizeof(key->bytes) - key->len);
	memcpy(key->bytes + key->len, bytes, len);
	key->len += len;
}

void wms_key_add_u64(struct wms_key *key, uint64_t v)
{
	unsigned char bytes[WMS_U64_LEN];

	wms_u64_key(v, bytes);
	wms_key_add(key, bytes, sizeof(bytes));
}

int wms_key_of_resource(const char *const parts[static 3], struct wms_key *ret)
{
	struct wms_key key = { .len = 0 };
	struct digest d;
	int r;

	r = digest_lv_of(parts, 3, &d);
	if (r < 0)
		return r;
	wms_key_add(&key, d.bytes, sizeof(d.bytes));
	*ret = key;
	return 0;
}

int wms_key_of_lineage(const struct weight_lineage *l, struct wms_key *ret)
{
	const char *parent[] = { l->tenant, l->name_space, l->resource };
	size_t len = strlen(l->revision);
	struct wms_key key;
	struct digest d;
	int r;

	r = wms_key_of_resource(parent, &key);
	if (r < 0)
		return r;
	wms_key_add(&key, l->revision,
		    len > WMS_KEY_REVISION_MAX ? WMS_KEY_REVISION_MAX : len);
	wms_key_add(&key, "", 1);
	if (len > WMS_KEY_REVISION_MAX) {
		r = digest_of(l->revision, len, &d);
		if (r < 0)
			return r;
		wms_key_add(&key, d.bytes, CUT_DIGEST_LEN);
	}
	*ret = key;
	return 0;
}

int wms_key_of(const struct weight_identity *identity, struct wms_key *ret)
{
	int r;

	r = weight_identity_check(identity, NULL);
	if (r < 0)
		return r;
	r = wms_key_of_lineage(&identity->lineage, ret);
	if (r < 0)
		return r;
	wms_key_add_u64(ret, identity->generation);
	return 0;
}

int wms_state_get(struct meta_txn *txn, const char *name, uint64_t absent,
		  uint64_t *ret)
{
	struct meta_bytes value;
	struct cursor c;
	uint64_t v;
	int r;

	r = meta_get(txn, META_DB_STATE, name, strlen(name), &value);
	if (r == -ENOENT) {
		*ret = absent;
		return 0;
	}
	if (r < 0)
		return r;
	c = cursor_over(value.data, value.len);
	v = cursor_u64(&c);
	if (cursor_done(&c) < 0)
		return log_debug(-EUCLEAN, "state '%s'", name);
	*ret = v;
	return 0;
}

int wms_state_put(struct meta_txn *txn, const char *name, uint64_t value)
{
	uint64_t le = htole64(value);

	return meta_put(txn, META_DB_STATE, name, strlen(name), &le,
			sizeof(le));
}

static bool is_full(int r)
{
	return r == -ENOSPC || r == -EDQUOT;
}

int wms_update(struct weight_metadata_store *store, enum meta_purpose purpose,
	       meta_body_fn *body, void *arg)
{
	int r = meta_update(store->meta, purpose, body, arg);

	/* What serves readers, or makes room, goes before what was. */
	if (is_full(r) && purpose == META_RESERVED &&
	    wms_oplog_make_room(store) == 0)
		r = meta_update(store->meta, purpose, body, arg);
	if (is_full(r) || (r == 0 && purpose == META_NORMAL))
		atomic_store(&store->is_short, is_full(r));
	step("metadata: committed");
	return r == WMS_NOTHING_TO_WRITE ? 0 : r;
}

/* ---- The two maps whose records are found by identity ---- */

/* Both kinds of records begin with their identity. */
static_assert(offsetof(struct weight_metadata, identity) == 0, "layout");
static_assert(offsetof(struct weight_staging, identity) == 0, "layout");

static int revision_decode(const struct meta_bytes *b, void **ret)
{
	struct weight_metadata *m;
	int r = weight_record_metadata_decode(b->data, b->len, &m);

	if (r == 0)
		*ret = m;
	return r;
}

static int revision_decode_again(const struct meta_bytes *b, void **ret)
{
	struct weight_metadata *m;
	int r = weight_record_metadata_decode_again(b->data, b->len, &m);

	if (r == 0)
		*ret = m;
	return r;
}

static int staging_decode(const struct meta_bytes *b, void **ret)
{
	struct weight_staging *s;
	int r = weight_record_staging_decode(b->data, b->len, &s);

	if (r == 0)
		*ret = s;
	return r;
}

static void revision_free(void *m)
{
	weight_metadata_free(m);
}

static void staging_free(void *s)
{
	weight_staging_free(s);
}

const struct wms_table wms_revisions = { META_DB_REVISION, revision_decode,
					 revision_free };
static const struct wms_table known_revisions = { META_DB_REVISION,
						  revision_decode_again,
						  revision_free };
const struct wms_table wms_stagings = { META_DB_STAGING, staging_decode,
					staging_free };

const struct wms_table *wms_revisions_of(
	const struct weight_metadata_store *store)
{
	return store->all_checked ? &known_revisions : &wms_revisions;
}

int wms_table_get(struct meta_txn *txn, const struct wms_table *t,
		  const struct wms_key *key,
		  const struct weight_identity *identity, void **ret)
{
	struct meta_bytes value;
	void *record;
	int r;

	r = meta_get(txn, t->db, key->bytes, key->len, &value);
	if (r < 0)
		return r;
	r = t->decode(&value, &record);
	if (r < 0)
		return r;
	if (!weight_identity_equal(record, identity)) {
		t->free(record);
		return log_debug(-EUCLEAN, "record of another identity");
	}
	*ret = record;
	return 0;
}

int wms_table_read(struct weight_metadata_store *store,
		   const struct wms_table *t,
		   const struct weight_identity *identity, void **ret)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	struct wms_key key;
	int r;

	r = wms_key_of(identity, &key);
	if (r < 0)
		return r;
	r = meta_read_begin(store->meta, &txn);
	if (r < 0)
		return r;
	return wms_table_get(txn, t, &key, identity, ret);
}

/*
 * Goes on until a record of the lineage comes. Keys of another lineage get in
 * the way when one revision is cut just where the other ends, or when the
 * digests of two cut ones agree; the records tell.
 */
static int lineage_step(struct meta_cursor *c, const struct wms_table *t,
			const struct weight_lineage *lineage, size_t key_len,
			const struct wms_key *from, void **ret)
{
	struct meta_bytes key, value;
	struct weight_identity *id;
	void *record;
	int r;

	for (r = meta_cursor_seek(c, from->bytes, from->len, &key, &value);
	     r == 0; r = meta_cursor_next(c, &key, &value)) {
		if (key.len != key_len)
			continue;
		r = t->decode(&value, &record);
		if (r < 0)
			return r;
		id = record;
		if (weight_lineage_equal(&id->lineage, lineage)) {
			*ret = record;
			return 0;
		}
		t->free(record);
	}
	return r;
}

int wms_table_next(struct weight_metadata_store *store,
		   const struct wms_table *t,
		   const struct weight_lineage *lineage, uint64_t after,
		   void **ret)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	struct wms_key prefix, from;
	int r;

	r = weight_lineage_check(lineage, NULL);
	if (r < 0)
		return r;
	if (after == UINT64_MAX)
		return -ENOENT;
	r = wms_key_of_lineage(lineage, &prefix);
	if (r < 0)
		return r;
	from = prefix;
	wms_key_add_u64(&from, after + 1);
	r = meta_read_begin(store->meta, &txn);
	if (r < 0)
		return r;
	r = meta_cursor_open(txn, t->db, prefix.bytes, prefix.len, &c);
	if (r < 0)
		return r;
	return lineage_step(c, t, lineage, from.len, &from, ret);
}

int wms_table_some(struct weight_metadata_store *store,
		   const struct wms_table *t, struct wms_position *position,
		   size_t limit, void *ret[], size_t *ret_count)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	struct meta_bytes key, value;
	size_t n = 0;
	int r;

	if ((r = meta_read_begin(store->meta, &txn)) < 0 ||
	    (r = meta_cursor_open(txn, t->db, NULL, 0, &c)) < 0) {
		position->missed = true;
		return r;
	}
	r = meta_cursor_seek(c, position->key, position->len, &key, &value);
	if (r == 0 && key.len == position->len &&
	    memcmp(key.data, position->key, key.len) == 0)
		r = meta_cursor_next(c, &key, &value);
	while (r == 0) {
		r = t->decode(&value, &ret[n]);
		if (r < 0 && n > 0)
			break;
		position->len = key.len;
		memcpy(position->key, key.data, key.len);
		if (r == 0 && ++n < limit)
			r = meta_cursor_next(c, &key, &value);
		else
			break;
	}
	if (r < 0 && n == 0) {
		position->missed |= r != -ENOENT;
		return r;
	}
	*ret_count = n;
	return 0;
}

int wms_table_each(struct weight_metadata_store *store,
		   const struct wms_table *t, struct wms_position *position,
		   void **ret)
{
	size_t n;

	return wms_table_some(store, t, position, 1, ret, &n);
}

int wms_table_find(struct meta_txn *txn, const struct wms_table *t,
		   const struct wms_key *key,
		   const struct weight_identity *identity, void **ret)
{
	int r = wms_table_get(txn, t, key, identity, ret);

	if (r != -ENOENT)
		return r;
	*ret = NULL;
	return 0;
}

int wms_revision_get(struct meta_txn *txn, const struct wms_key *key,
		     const struct weight_identity *identity,
		     struct weight_metadata **ret)
{
	void *record;
	int r = wms_table_get(txn, &wms_revisions, key, identity, &record);

	if (r == 0)
		*ret = record;
	return r;
}

int wms_found_get(struct meta_txn *txn, const struct wms_key *key,
		  const struct weight_identity *identity, struct wms_found *ret)
{
	void *record = NULL;
	int r;

	r = wms_table_find(txn, &wms_revisions, key, identity, &record);
	if (r < 0)
		return r;
	ret->revision = record;
	r = wms_table_find(txn, &wms_stagings, key, identity, &record);
	if (r < 0)
		return r;
	ret->staged = record;
	return wms_lineage_find(txn, &identity->lineage, &ret->lineage);
}

void wms_found_release(struct wms_found *f)
{
	weight_metadata_free(f->revision);
	weight_staging_free(f->staged);
	weight_lineage_record_free(f->lineage);
}

int wms_revision_put(struct meta_txn *txn, const struct wms_key *key,
		     const struct weight_metadata *m)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	int r;

	r = weight_record_metadata_encode(m, &b);
	if (r < 0)
		return r;
	return meta_put(txn, META_DB_REVISION, key->bytes, key->len, b.data,
			b.len);
}

/* ---- Operations ---- */

static int operation_decode(uint64_t id, const struct meta_bytes *b,
			    struct weight_operation **ret)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	int r = weight_record_operation_decode(b->data, b->len, &op);

	if (r < 0)
		return r;
	if (op->operation_id != id)
		return log_debug(-EUCLEAN, "record of another operation");
	*ret = take_ptr(op);
	return 0;
}

int wms_operation_read(struct meta_txn *txn, uint64_t id,
		       struct weight_operation **ret)
{
	unsigned char key[WMS_U64_LEN];
	struct meta_bytes value;
	int r;

	wms_u64_key(id, key);
	r = meta_get(txn, META_DB_OPERATION, key, sizeof(key), &value);
	return r < 0 ? r : operation_decode(id, &value, ret);
}

int wms_operation_put(struct meta_txn *txn, const struct weight_operation *op)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	unsigned char key[WMS_U64_LEN];
	uint64_t next;
	int r;

	r = weight_record_operation_encode(op, &b);
	if (r < 0)
		return r;
	wms_u64_key(op->operation_id, key);
	r = meta_put(txn, META_DB_OPERATION, key, sizeof(key), b.data, b.len);
	if (r == 0)
		r = wms_operation_next_id(txn, &next);
	if (r < 0 || op->operation_id < next)
		return r;
	return wms_state_put(txn, WMS_STATE_NEXT_OPERATION_ID,
			     op->operation_id + 1);
}

int wms_operation_next_id(struct meta_txn *txn, uint64_t *ret)
{
	uint64_t id;
	int r;

	r = wms_state_get(txn, WMS_STATE_NEXT_OPERATION_ID, 1, &id);
	if (r < 0)
		return r;
	if (id == 0)
		return log_debug(-EUCLEAN, "next operation id");
	*ret = id;
	return 0;
}

int wms_operation_active(struct meta_txn *txn, const struct weight_metadata *m,
			 struct weight_operation **ret)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	int r;

	if (m->operation_id == 0) {
		*ret = NULL;
		return 0;
	}
	r = wms_operation_read(txn, m->operation_id, &op);
	if (r == -ENOENT)
		return log_debug(-EUCLEAN, "active operation without record");
	if (r < 0)
		return r;
	if (!weight_identity_equal(&op->identity, &m->identity) ||
	    weight_operation_is_over(op))
		return log_debug(-EUCLEAN, "active operation of another or "
					   "over");
	*ret = take_ptr(op);
	return 0;
}

int wms_operation_blocks(struct meta_txn *txn, const struct weight_metadata *m,
			 bool *ret)
{
	struct weight_operation *op;
	int r;

	r = wms_operation_active(txn, m, &op);
	if (r < 0)
		return r;
	*ret = weight_operation_blocks(op);
	weight_operation_free(op);
	return 0;
}
