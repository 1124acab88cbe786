/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the weight metadata of a store fits together: every record alone, and
 * what records say of each other.
 */
#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/util.h"
#include "core/weight_key.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"

int wms_check_note(struct wms_checking *c, const char *format, ...)
{
	va_list ap;
	int r;

	if (c->bad++ >= WMS_REPORT_LINES_MAX)
		return 0;
	va_start(ap, format);
	r = buf_vprintf(c->report, format, ap);
	va_end(ap);
	return r < 0 ? r : buf_append(c->report, "\n", 1);
}

static int note_revision(struct wms_checking *c,
			 const struct weight_identity *id, const char *what)
{
	return wms_check_note(c, "revision %s/%s/%s/%s/%llu: %s",
			      id->lineage.tenant, id->lineage.name_space,
			      id->lineage.resource, id->lineage.revision,
			      (unsigned long long)id->generation, what);
}

static int note_lineage(struct wms_checking *c, const struct weight_lineage *l,
			const char *what)
{
	return wms_check_note(c, "lineage %s/%s/%s/%s: %s", l->tenant,
			      l->name_space, l->resource, l->revision, what);
}

typedef int entry_fn(struct wms_checking *c, const struct meta_bytes *key,
		     const struct meta_bytes *value);

static int each(struct wms_checking *c, enum meta_db db, entry_fn *fn)
{
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *cursor = NULL;
	struct meta_bytes key, value;
	int r = meta_cursor_open(c->txn, db, NULL, 0, &cursor);

	if (r < 0)
		return r;
	for (r = meta_cursor_seek(cursor, NULL, 0, &key, &value); r == 0;
	     r = meta_cursor_next(cursor, &key, &value)) {
		r = fn(c, &key, &value);
		if (r < 0)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

static bool same_bytes(const struct meta_bytes *b, const void *data, size_t len)
{
	return b->len == len && memcmp(b->data, data, len) == 0;
}

static int has_names(struct wms_checking *c, enum wms_names names,
		     const struct weight_lineage *l, bool *ret)
{
	struct meta_bytes value;
	struct wms_key key;
	int r = wms_names_key(names, l, &key);

	*ret = true;
	if (r == 0 && key.len > 0)
		r = meta_get(c->txn, META_DB_NAME, key.bytes, key.len, &value);
	if (r == -ENOENT) {
		*ret = false;
		return 0;
	}
	return r;
}

/* ---- Revisions ---- */

/* What a revision says about its active operation, and the other way round. */
static int check_active(struct wms_checking *c, const struct weight_metadata *m)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	int r = wms_operation_active(c->txn, m, &op);

	if (wms_is_damage(r))
		return note_revision(c, &m->identity,
				     "its operation is not there, or over");
	if (r < 0 || !op)
		return r;
	if (op->fenced_metadata_generation != m->metadata_generation)
		return note_revision(c, &m->identity,
				     "its operation is fenced at another "
				     "metadata generation");
	return 0;
}

static int check_revision(struct wms_checking *c, const struct meta_bytes *key,
			  const struct meta_bytes *value)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	struct wms_key own;
	bool named = true;
	int r = weight_record_metadata_decode(value->data, value->len, &m);

	if (wms_is_damage(r))
		return wms_check_note(c, "a revision's record of %zu bytes: %s",
				      value->len, strerrordesc_np(-r));
	if (r < 0 || (r = wms_key_of(&m->identity, &own)) < 0)
		return r;
	if (!same_bytes(key, own.bytes, own.len))
		return note_revision(c, &m->identity,
				     "its record is stored as another's");
	if (c->logged && m->availability == WEIGHT_DELETED)
		r = has_names(c, WMS_NAMES_TOMBSTONES, &m->identity.lineage,
			      &named);
	if (r == 0 && !named)
		r = note_revision(c, &m->identity,
				  "its lineage is not listed among those with "
				  "tombstones");
	return r < 0 ? r : check_active(c, m);
}

static int check_staging(struct wms_checking *c, const struct meta_bytes *key,
			 const struct meta_bytes *value)
{
	cleanup(weight_staging_free_cleanup) struct weight_staging *s = NULL;
	struct meta_bytes other;
	struct wms_key own;
	int r = weight_record_staging_decode(value->data, value->len, &s);

	if (wms_is_damage(r))
		return wms_check_note(
			c, "a staged import's record of %zu bytes: %s",
			value->len, strerrordesc_np(-r));
	if (r < 0 || (r = wms_key_of(&s->identity, &own)) < 0)
		return r;
	if (!same_bytes(key, own.bytes, own.len))
		return note_revision(c, &s->identity,
				     "its staging record is stored as "
				     "another's");
	r = meta_get(c->txn, META_DB_REVISION, own.bytes, own.len, &other);
	if (r == 0)
		return note_revision(c, &s->identity,
				     "it is staged and has a record, too");
	return r == -ENOENT ? 0 : r;
}

/* ---- Leases ---- */

/* What a lease says of its revision. */
static int check_leased(struct wms_checking *c, const struct wms_key *key,
			const struct weight_lease *l)
{
	struct weight_metadata *m = NULL;
	bool live;
	int r = wms_revision_get(c->txn, key, &l->identity, &m);

	if (r < 0 && r != -ENOENT && !wms_is_damage(r))
		return r;
	live = m && (m->availability == WEIGHT_READY ||
		     m->availability == WEIGHT_DEGRADED);
	if (!live)
		r = wms_check_note(
			c,
			"lease %llu: its revision is neither ready nor "
			"degraded",
			(unsigned long long)l->lease_id);
	else if (l->fenced_metadata_generation > m->metadata_generation)
		r = wms_check_note(
			c, "lease %llu: fenced above the metadata generation",
			(unsigned long long)l->lease_id);
	weight_metadata_free(m);
	return r;
}

static int check_lease(struct wms_checking *c, const struct meta_bytes *key,
		       const struct meta_bytes *value)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *l = NULL;
	unsigned char own[WMS_U64_LEN];
	struct wms_key revision, index;
	struct meta_bytes nothing;
	int r = weight_record_lease_decode(value->data, value->len, &l);

	if (wms_is_damage(r))
		return wms_check_note(c, "a lease's record of %zu bytes: %s",
				      value->len, strerrordesc_np(-r));
	if (r < 0 || (r = wms_key_of(&l->identity, &revision)) < 0)
		return r;
	wms_u64_key(l->lease_id, own);
	if (!same_bytes(key, own, sizeof(own)))
		return wms_check_note(c, "lease %llu: stored as another",
				      (unsigned long long)l->lease_id);
	if (l->lease_id >= c->next_lease_id)
		r = wms_check_note(c, "lease %llu: the next id is %llu",
				   (unsigned long long)l->lease_id,
				   (unsigned long long)c->next_lease_id);
	index = wms_lease_index_key(&revision, l->lease_id);
	if (r == 0)
		r = meta_get(c->txn, META_DB_LEASE_OF_REVISION, index.bytes,
			     index.len, &nothing);
	if (r == -ENOENT)
		r = wms_check_note(
			c, "lease %llu: not among those of its revision",
			(unsigned long long)l->lease_id);
	return r < 0 ? r : check_leased(c, &revision, l);
}

static int check_lease_index(struct wms_checking *c,
			     const struct meta_bytes *key,
			     const struct meta_bytes *value)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *l = NULL;
	struct wms_key revision, own;
	uint64_t be;
	int r;

	(void)value;
	if (key->len <= WMS_U64_LEN)
		return wms_check_note(
			c, "an index entry of a lease of %zu bytes", key->len);
	memcpy(&be, (const char *)key->data + key->len - WMS_U64_LEN,
	       sizeof(be));
	r = wms_lease_read(c->txn, be64toh(be), &l);
	if (r == -ENOENT)
		return wms_check_note(
			c, "an index entry of a lease that is not there");
	/* What is damaged has a line already. */
	if (wms_is_damage(r))
		return 0;
	if (r < 0 || (r = wms_key_of(&l->identity, &revision)) < 0)
		return r;
	own = wms_lease_index_key(&revision, l->lease_id);
	if (!same_bytes(key, own.bytes, own.len))
		r = wms_check_note(c,
				   "lease %llu: among those of another "
				   "revision",
				   (unsigned long long)l->lease_id);
	return r;
}

/* ---- Operations ---- */

/* What an operation that runs, or is finished, says of its revision. */
static const char *operation_fault(const struct weight_operation *op,
				   const struct weight_metadata *m)
{
	bool idle = m && m->operation_id == 0;

	if (!m)
		return "its revision is not there";
	if (!weight_operation_is_over(op))
		return m->operation_id == op->operation_id ?
			       NULL :
			       "it is not over, and its revision has another "
			       "or none";
	if (!weight_operation_is_finished(op))
		return NULL;
	if (op->fenced_metadata_generation >= m->metadata_generation)
		return "it is finished, but fenced at the metadata generation";
	if (op->fenced_metadata_generation + 1 == m->metadata_generation &&
	    idle && m->residency != op->target_residency)
		return "it is finished, but its target was not reached";
	return NULL;
}

static int check_operation(struct wms_checking *c, const struct meta_bytes *key,
			   const struct meta_bytes *value)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	unsigned char own[WMS_U64_LEN];
	struct wms_key revision;
	const char *fault;
	int r = weight_record_operation_decode(value->data, value->len, &op);

	if (wms_is_damage(r))
		return wms_check_note(c,
				      "an operation's record of %zu bytes: %s",
				      value->len, strerrordesc_np(-r));
	if (r < 0 || (r = wms_key_of(&op->identity, &revision)) < 0)
		return r;
	wms_u64_key(op->operation_id, own);
	if (!same_bytes(key, own, sizeof(own)))
		return wms_check_note(c, "operation %llu: stored as another",
				      (unsigned long long)op->operation_id);
	if (op->operation_id >= c->next_operation_id)
		r = wms_check_note(c, "operation %llu: the next id is %llu",
				   (unsigned long long)op->operation_id,
				   (unsigned long long)c->next_operation_id);
	if (r == 0)
		r = wms_revision_get(c->txn, &revision, &op->identity, &m);
	if (r < 0 && r != -ENOENT && !wms_is_damage(r))
		return r;
	fault = operation_fault(op, m);
	return fault ? wms_check_note(c, "operation %llu: %s",
				      (unsigned long long)op->operation_id,
				      fault) :
		       0;
}

/* ---- Lineages ---- */

static int check_lineage(struct wms_checking *c, const struct meta_bytes *key,
			 const struct meta_bytes *value)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	struct digest own;
	bool named = true;
	int r = weight_record_lineage_decode(value->data, value->len, &l);

	if (wms_is_damage(r))
		return wms_check_note(c, "a lineage's record of %zu bytes: %s",
				      value->len, strerrordesc_np(-r));
	if (r < 0 || (r = weight_lineage_hash(&l->lineage, &own)) < 0)
		return r;
	if (!same_bytes(key, own.bytes, sizeof(own.bytes)))
		return note_lineage(c, &l->lineage,
				    "its record is stored as another's");
	if (!l->claimed)
		return 0;
	if (l->watermark < l->claim.base)
		r = note_lineage(c, &l->lineage,
				 "its watermark is below the base of its "
				 "claim");
	if (r == 0 &&
	    (l->claim.phase == WEIGHT_RETIRING_BASE ||
	     l->claim.phase == WEIGHT_COMPLETED) &&
	    l->watermark < l->claim.target)
		r = note_lineage(c, &l->lineage,
				 "its watermark is below the target that was "
				 "reached");
	if (r == 0 && c->logged)
		r = has_names(c, WMS_NAMES_CLAIMS, &l->lineage, &named);
	if (r == 0 && !named)
		r = note_lineage(c, &l->lineage,
				 "it is not listed among those with claims");
	return r;
}

/* ---- All of it ---- */

static int next_ids(struct wms_checking *c)
{
	int r = wms_lease_next_id(c->txn, &c->next_lease_id);

	if (wms_is_damage(r))
		r = wms_check_note(c, "the next lease id can't be read");
	if (r == 0)
		r = wms_operation_next_id(c->txn, &c->next_operation_id);
	if (wms_is_damage(r))
		r = wms_check_note(c, "the next operation id can't be read");
	return r;
}

int wms_check_records(struct wms_checking *c)
{
	static const struct {
		enum meta_db db;
		entry_fn *fn;
	} maps[] = {
		{ META_DB_REVISION, check_revision },
		{ META_DB_STAGING, check_staging },
		{ META_DB_LEASE, check_lease },
		{ META_DB_LEASE_OF_REVISION, check_lease_index },
		{ META_DB_OPERATION, check_operation },
		{ META_DB_LINEAGE, check_lineage },
	};
	int r = next_ids(c);

	for (size_t i = 0; i < ARRAY_LEN(maps) && r == 0; i++)
		r = each(c, maps[i].db, maps[i].fn);
	return r;
}

int wms_check(struct weight_metadata_store *store, struct buf *report,
	      uint64_t *ret_bad)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	struct wms_checking c = {
		.report = report,
		.logged = store->schema >= WMS_SCHEMA_WITH_LOG,
	};
	int r = meta_check(store->meta);

	if (wms_is_damage(r))
		r = wms_check_note(&c, "the database can't be read through: %s",
				   strerrordesc_np(-r));
	if (r == 0)
		r = meta_read_begin(store->meta, &txn);
	c.txn = txn;
	if (r == 0)
		r = wms_check_records(&c);
	if (r == 0 && c.logged)
		r = wms_check_log(&c);
	if (r == 0)
		*ret_bad = c.bad;
	return r;
}
