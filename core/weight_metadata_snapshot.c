/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of the weight metadata store: all of it out, and all of it in. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"
#include "core/weight_snapshot.h"

/* ---- Out ---- */

typedef int out_fn(struct weight_snapshot_writer *w,
		   const struct meta_bytes *value);

static int out_metadata(struct weight_snapshot_writer *w,
			const struct meta_bytes *value)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	int r = weight_record_metadata_decode(value->data, value->len, &m);

	return r < 0 ? r : weight_snapshot_write_metadata(w, m);
}

static int out_lease(struct weight_snapshot_writer *w,
		     const struct meta_bytes *value)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *lease = NULL;
	int r = weight_record_lease_decode(value->data, value->len, &lease);

	return r < 0 ? r : weight_snapshot_write_lease(w, lease);
}

static int out_operation(struct weight_snapshot_writer *w,
			 const struct meta_bytes *value)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	int r = weight_record_operation_decode(value->data, value->len, &op);

	return r < 0 ? r : weight_snapshot_write_operation(w, op);
}

static int out_lineage(struct weight_snapshot_writer *w,
		       const struct meta_bytes *value)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	int r = weight_record_lineage_decode(value->data, value->len, &l);

	return r < 0 ? r : weight_snapshot_write_lineage(w, l);
}

static int out_each(struct meta_txn *txn, enum meta_db db, out_fn *out,
		    struct weight_snapshot_writer *w)
{
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	struct meta_bytes key, value;
	int r = meta_cursor_open(txn, db, NULL, 0, &c);

	if (r < 0)
		return r;
	for (r = meta_cursor_seek(c, NULL, 0, &key, &value); r == 0;
	     r = meta_cursor_next(c, &key, &value)) {
		r = out(w, &value);
		if (r < 0)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

static int head_read(struct meta_txn *txn, struct weight_snapshot_head *ret)
{
	struct wms_oplog_state log;
	int r;

	ret->schema_version = WEIGHT_SNAPSHOT_SCHEMA;
	if ((r = wms_oplog_state_get(txn, &log)) < 0 ||
	    (r = wms_lease_next_id(txn, &ret->next_lease_id)) < 0 ||
	    (r = wms_operation_next_id(txn, &ret->next_operation_id)) < 0)
		return r;
	ret->cursor = log.next - 1;
	return 0;
}

int wms_export(struct weight_metadata_store *store, int fd)
{
	cleanup(weight_snapshot_writer_free_cleanup) struct
		weight_snapshot_writer *w = NULL;
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	struct weight_snapshot_head head;
	int r;

	if ((r = meta_read_begin(store->meta, &txn)) < 0 ||
	    (r = head_read(txn, &head)) < 0 ||
	    (r = weight_snapshot_write_begin(fd, &head, &w)) < 0 ||
	    (r = out_each(txn, META_DB_REVISION, out_metadata, w)) < 0 ||
	    (r = out_each(txn, META_DB_LEASE, out_lease, w)) < 0 ||
	    (r = out_each(txn, META_DB_OPERATION, out_operation, w)) < 0 ||
	    (r = out_each(txn, META_DB_LINEAGE, out_lineage, w)) < 0)
		return r;
	return weight_snapshot_write_end(w);
}

/* ---- In ---- */

struct restore {
	int fd;
	off_t start; /* where the snapshot begins */
	bool elsewhere;
	uint64_t count; /* of records */
	struct buf *why;
};

static int refuse(struct restore *in, const char *what)
{
	buf_release(in->why);
	(void)buf_printf(in->why, "the snapshot doesn't fit together: %s",
			 what);
	return log_debug(-EUCLEAN, "%s", what);
}

static int in_metadata(struct meta_txn *txn, struct restore *in,
		       struct weight_metadata *m)
{
	struct meta_bytes there;
	struct wms_key key;
	int r = wms_key_of(&m->identity, &key);

	if (r == 0)
		r = meta_get(txn, META_DB_REVISION, key.bytes, key.len, &there);
	if (r == 0)
		return refuse(in, "a revision comes twice");
	if (r != -ENOENT)
		return r;
	if (in->elsewhere)
		m->durable = false;
	r = wms_revision_put(txn, &key, m);
	if (r == 0 && m->availability == WEIGHT_DELETED)
		r = wms_names_add(txn, WMS_NAMES_TOMBSTONES,
				  &m->identity.lineage);
	return r;
}

/* Ids come in order, so that one which doesn't exceed all before comes twice. */
static int in_lease(struct meta_txn *txn, struct restore *in,
		    const struct weight_lease *lease)
{
	struct wms_key key;
	uint64_t next;
	int r = wms_lease_next_id(txn, &next);

	if (r < 0)
		return r;
	if (lease->lease_id < next || lease->lease_id == UINT64_MAX)
		return refuse(in, "a lease comes twice, or not in order");
	r = wms_key_of(&lease->identity, &key);
	return r < 0 ? r : wms_lease_put(txn, &key, lease);
}

static int in_operation(struct meta_txn *txn, struct restore *in,
			const struct weight_operation *op)
{
	uint64_t next;
	int r = wms_operation_next_id(txn, &next);

	if (r < 0)
		return r;
	if (op->operation_id < next || op->operation_id == UINT64_MAX)
		return refuse(in, "an operation comes twice, or not in order");
	return wms_operation_put(txn, op);
}

static int in_lineage(struct meta_txn *txn, struct restore *in,
		      const struct weight_lineage_record *l)
{
	struct weight_lineage_record *there;
	int r = wms_lineage_find(txn, &l->lineage, &there);

	if (r < 0)
		return r;
	if (there) {
		weight_lineage_record_free(there);
		return refuse(in, "a lineage comes twice");
	}
	r = wms_lineage_put(txn, l);
	if (r == 0 && l->claimed)
		r = wms_names_add(txn, WMS_NAMES_CLAIMS, &l->lineage);
	return r;
}

static int in_item(struct meta_txn *txn, struct restore *in,
		   const struct weight_snapshot_item *item)
{
	in->count++;
	switch (item->kind) {
	case WEIGHT_SNAPSHOT_METADATA:
		return in_metadata(txn, in, item->metadata);
	case WEIGHT_SNAPSHOT_LEASE:
		return in_lease(txn, in, item->lease);
	case WEIGHT_SNAPSHOT_OPERATION:
		return in_operation(txn, in, item->operation);
	case WEIGHT_SNAPSHOT_LINEAGE:
		return in_lineage(txn, in, item->lineage);
	case WEIGHT_SNAPSHOT_END:
		break;
	}
	return 0;
}

static int in_all(struct meta_txn *txn, struct restore *in,
		  struct weight_snapshot_reader *reader)
{
	struct weight_snapshot_item item;
	int r;

	while ((r = weight_snapshot_read_next(reader, &item, in->why)) == 0 &&
	       item.kind != WEIGHT_SNAPSHOT_END) {
		r = in_item(txn, in, &item);
		weight_snapshot_item_release(&item);
		if (r < 0)
			return r;
	}
	return r;
}

/* The ids and the place in the log that the store goes on with. */
static int in_head(struct meta_txn *txn, struct restore *in,
		   const struct weight_snapshot_head *head)
{
	uint64_t lease, operation;
	int r;

	if ((r = wms_lease_next_id(txn, &lease)) < 0 ||
	    (r = wms_operation_next_id(txn, &operation)) < 0)
		return r;
	if (head->next_lease_id < lease || head->next_operation_id < operation)
		return refuse(in, "a next id is not above all that were given");
	if (head->cursor == UINT64_MAX)
		return refuse(in, "its place in the log");
	if ((r = wms_next_ids_put(txn, head->next_lease_id,
				  head->next_operation_id)) < 0)
		return r;
	return wms_oplog_begin(txn, head->cursor + 1);
}

static int is_empty(struct meta_txn *txn, struct restore *in)
{
	static const enum meta_db maps[] = { META_DB_REVISION,  META_DB_STAGING,
					     META_DB_LEASE,     META_DB_LINEAGE,
					     META_DB_OPERATION, META_DB_OPLOG };
	uint64_t count = 0;
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(maps) && r == 0 && count == 0; i++)
		r = meta_count(txn, maps[i], &count);
	if (r < 0 || count == 0)
		return r;
	(void)buf_printf(in->why, "the store has metadata already; a snapshot "
				  "goes into an empty one");
	return -ENOTEMPTY;
}

static int restore_body(struct meta_txn *txn, void *arg)
{
	cleanup(weight_snapshot_reader_free_cleanup) struct
		weight_snapshot_reader *reader = NULL;
	cleanup(buf_release) struct buf report = BUF_INIT;
	struct wms_checking c = { .txn = txn,
				  .report = &report,
				  .logged = true };
	struct weight_snapshot_head head;
	struct restore *in = arg;
	int r;

	buf_release(in->why);
	in->count = 0;
	if (lseek(in->fd, in->start, SEEK_SET) < 0)
		return log_debug(-EIO, "seeking");
	if ((r = is_empty(txn, in)) < 0 ||
	    (r = weight_snapshot_read_begin(in->fd, &head, &reader, in->why)) <
		    0 ||
	    (r = in_all(txn, in, reader)) < 0 ||
	    (r = in_head(txn, in, &head)) < 0 ||
	    (r = wms_check_records(&c)) < 0)
		return r;
	if (c.bad == 0)
		return 0;
	report.data[strcspn(report.data, "\n")] = '\0';
	return refuse(in, report.data);
}

int wms_import(struct weight_metadata_store *store, int fd, bool elsewhere,
	       struct buf *why)
{
	cleanup(buf_release) struct buf sentence = BUF_INIT;
	struct restore in = { .fd = fd,
			      .start = lseek(fd, 0, SEEK_CUR),
			      .elsewhere = elsewhere,
			      .why = &sentence };
	int r;

	if (in.start < 0) {
		(void)buf_printf(why, "a snapshot can be read from a file "
				      "only, not from a pipe");
		return -EINVAL;
	}
	r = wms_update(store, META_NORMAL, restore_body, &in);
	if (r < 0 && why)
		(void)buf_printf(why, "%s",
				 sentence.len ? sentence.data :
						strerrordesc_np(-r));
	return r;
}
