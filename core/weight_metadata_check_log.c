/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the operation log of a store is whole, and says the same as its
 * records: the newest entry about each of them is what is there.
 */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/map.h"
#include "core/weight_key.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"

#define OPERATION_KEY_LEN (sizeof("operation:") + WEIGHT_GENERATION_LEN_MAX)

/* An entry, and what a line of the report begins with. */
struct looking {
	struct wms_checking *c;
	struct map *seen; /* keys of records of which the newest entry came */
	const struct oplog_entry *entry;
};

static int note(struct looking *l, const char *what)
{
	return wms_check_note(l->c, "entry %llu of the log (%s): %s",
			      (unsigned long long)l->entry->sequence,
			      oplog_type_name(l->entry->change.type), what);
}

/* Whether no later entry is about this; says so from now on. */
static int is_newest(struct looking *l, const char *key, bool *ret)
{
	*ret = !map_find(l->seen, key, strlen(key));
	return *ret ? map_put(l->seen, key, strlen(key), l->seen, NULL) : 0;
}

static int same_revision(const struct weight_metadata *a,
			 const struct weight_metadata *b, bool *ret)
{
	cleanup(buf_release) struct buf x = BUF_INIT;
	cleanup(buf_release) struct buf y = BUF_INIT;
	struct weight_metadata m = *a;
	int r;

	/* Leases move it on with entries of their own. */
	m.last_accessed_at_ms = b->last_accessed_at_ms;
	if ((r = weight_record_metadata_encode(&m, &x)) < 0 ||
	    (r = weight_record_metadata_encode(b, &y)) < 0)
		return r;
	*ret = x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
	return 0;
}

static int revision_of(struct looking *l, const struct weight_identity *id,
		       struct weight_metadata **ret)
{
	struct wms_key key;
	void *record = NULL;
	int r = wms_key_of(id, &key);

	if (r == 0)
		r = wms_table_find(l->c->txn, &wms_revisions, &key, id,
				   &record);
	/* What is damaged has a line already. */
	if (wms_is_damage(r))
		r = 0;
	*ret = record;
	return r;
}

static int check_operation(struct looking *l, const struct weight_operation *op)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *there =
		NULL;
	cleanup(buf_release) struct buf x = BUF_INIT;
	cleanup(buf_release) struct buf y = BUF_INIT;
	char key[OPERATION_KEY_LEN];
	bool newest;
	int r;

	(void)snprintf(key, sizeof(key), "operation:%llu",
		       (unsigned long long)op->operation_id);
	r = is_newest(l, key, &newest);
	if (r < 0 || !newest)
		return r;
	r = wms_operation_read(l->c->txn, op->operation_id, &there);
	if (r < 0 && r != -ENOENT && r != -EUCLEAN && r != -EPROTONOSUPPORT)
		return r;
	if (!there)
		return note(l, "its operation has no such record");
	if ((r = weight_record_operation_encode(op, &x)) < 0 ||
	    (r = weight_record_operation_encode(there, &y)) < 0)
		return r;
	if (x.len != y.len || memcmp(x.data, y.data, x.len) != 0)
		return note(l, "the record of its operation is another");
	return 0;
}

static int check_upsert(struct looking *l, const struct oplog_change *change,
			bool newest)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	bool same = false;
	int r = 0;

	for (size_t i = 0; i < change->operation_count && r == 0; i++)
		r = check_operation(l, change->operations[i]);
	if (r < 0 || !newest)
		return r;
	r = revision_of(l, &change->metadata->identity, &m);
	if (r < 0)
		return r;
	if (!m)
		return note(l, "its revision has no record");
	r = same_revision(change->metadata, m, &same);
	if (r == 0 && !same)
		r = note(l, "the record of its revision is another");
	return r;
}

static int check_delete(struct looking *l, const struct oplog_change *change)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	int r = revision_of(l, &change->identity, &m);

	if (r < 0)
		return r;
	if (!m || m->availability != WEIGHT_DELETED ||
	    m->metadata_generation != change->metadata_generation)
		return note(l, "there is no such tombstone");
	return 0;
}

static int check_lease(struct looking *l, const struct oplog_change *change)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *lease = NULL;
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	bool live;
	int r = wms_lease_read(l->c->txn, change->lease->lease_id, &lease);

	if (r < 0 && r != -ENOENT && r != -EUCLEAN && r != -EPROTONOSUPPORT)
		return r;
	if (lease)
		return lease->expires_at_ms == change->lease->expires_at_ms ?
			       0 :
			       note(l, "the record of its lease is another");
	r = revision_of(l, &change->lease->identity, &m);
	if (r < 0)
		return r;
	/* The leases of a revision go with it. */
	live = m && (m->availability == WEIGHT_READY ||
		     m->availability == WEIGHT_DEGRADED);
	return live ? note(l, "its lease has no record") : 0;
}

static int check_lease_gone(struct looking *l,
			    const struct oplog_change *change)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *lease = NULL;
	int r = wms_lease_read(l->c->txn, change->lease_id, &lease);

	if (r == 0)
		return note(l, "its lease is still there");
	return r == -ENOENT || wms_is_damage(r) ? 0 : r;
}

static int check_lineage(struct looking *l, const struct oplog_change *change)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*there = NULL;
	cleanup(buf_release) struct buf x = BUF_INIT;
	cleanup(buf_release) struct buf y = BUF_INIT;
	int r = wms_lineage_find(l->c->txn, &change->lineage->lineage, &there);

	if (r < 0 && r != -EUCLEAN && r != -EPROTONOSUPPORT)
		return r;
	if (!there)
		return note(l, "its lineage has no record");
	if ((r = weight_record_lineage_encode(change->lineage, &x)) < 0 ||
	    (r = weight_record_lineage_encode(there, &y)) < 0)
		return r;
	if (x.len != y.len || memcmp(x.data, y.data, x.len) != 0)
		return note(l, "the record of its lineage is another");
	return 0;
}

static int check_entry(struct looking *l)
{
	const struct oplog_change *change = &l->entry->change;
	bool newest;
	int r = is_newest(l, l->entry->key, &newest);

	if (r < 0)
		return r;
	if (change->type == OPLOG_METADATA_UPSERT)
		return check_upsert(l, change, newest);
	if (!newest)
		return 0;
	switch (change->type) {
	case OPLOG_METADATA_DELETE:
		return check_delete(l, change);
	case OPLOG_LEASE_UPSERT:
		return check_lease(l, change);
	case OPLOG_LEASE_DELETE:
		return check_lease_gone(l, change);
	default:
		return check_lineage(l, change);
	}
}

static int check_at(struct looking *l, uint64_t sequence)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *entry = NULL;
	struct meta_bytes bytes;
	int r = wms_oplog_read(l->c->txn, sequence, &bytes);

	if (r < 0)
		return r;
	r = oplog_decode(bytes.data, bytes.len, &entry);
	if (wms_is_damage(r))
		return wms_check_note(l->c, "entry %llu of the log: %s",
				      (unsigned long long)sequence,
				      strerrordesc_np(-r));
	if (r < 0)
		return r;
	if (entry->sequence != sequence)
		return wms_check_note(l->c,
				      "entry %llu of the log has number %llu",
				      (unsigned long long)sequence,
				      (unsigned long long)entry->sequence);
	l->entry = entry;
	return check_entry(l);
}

/* The numbers of the entries that are there, whether they belong there or not. */
struct numbers {
	uint64_t *all;
	size_t count;
};

static void numbers_release(struct numbers *n)
{
	free(n->all);
}

static int numbers_get(struct wms_checking *c, struct numbers *ret)
{
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *cursor = NULL;
	struct meta_bytes key, value;
	uint64_t count, be;
	int r = meta_count(c->txn, META_DB_OPLOG, &count);

	if (r < 0 || count == 0)
		return r;
	ret->all = calloc(count, sizeof(*ret->all));
	if (!ret->all)
		return -ENOMEM;
	r = meta_cursor_open(c->txn, META_DB_OPLOG, NULL, 0, &cursor);
	if (r == 0)
		r = meta_cursor_seek(cursor, NULL, 0, &key, &value);
	while (r == 0 && ret->count < count) {
		if (key.len == sizeof(be)) {
			memcpy(&be, key.data, sizeof(be));
			ret->all[ret->count++] = be64toh(be);
		} else {
			r = wms_check_note(
				c, "a number of %zu bytes in the log", key.len);
		}
		if (r == 0)
			r = meta_cursor_next(cursor, &key, &value);
	}
	return r == -ENOENT ? 0 : r;
}

/* Whether there is none to be missed from `first` up to `next`. */
static int check_gap(struct wms_checking *c, uint64_t first, uint64_t next)
{
	if (first >= next)
		return 0;
	if (next - first == 1)
		return wms_check_note(c, "entry %llu of the log is missing",
				      (unsigned long long)first);
	return wms_check_note(c, "entries %llu to %llu of the log are missing",
			      (unsigned long long)first,
			      (unsigned long long)next - 1);
}

/* From the newest one back. */
static int check_numbers(struct looking *l, const struct numbers *n,
			 const struct wms_oplog_state *state)
{
	uint64_t next = state->next;
	int r = 0;

	for (size_t i = n->count; r == 0 && i > 0; i--) {
		uint64_t at = n->all[i - 1];

		if (at < state->first || at >= state->next) {
			r = wms_check_note(
				l->c,
				"entry %llu of the log is outside of it, from "
				"%llu to %llu",
				(unsigned long long)at,
				(unsigned long long)state->first,
				(unsigned long long)state->next - 1);
			continue;
		}
		r = check_gap(l->c, at + 1, next);
		if (r == 0)
			r = check_at(l, at);
		next = at;
	}
	return r < 0 ? r : check_gap(l->c, state->first, next);
}

int wms_check_log(struct wms_checking *c)
{
	cleanup(map_free_cleanup) struct map *seen = NULL;
	cleanup(numbers_release) struct numbers numbers = { NULL };
	struct looking l = { .c = c };
	struct wms_oplog_state state;
	int r = wms_oplog_state_get(c->txn, &state);

	if (r == -EUCLEAN)
		return wms_check_note(c, "the ends of the log can't be read");
	if (r < 0 || (r = map_new(&seen)) < 0 ||
	    (r = numbers_get(c, &numbers)) < 0)
		return r;
	l.seen = seen;
	return check_numbers(&l, &numbers, &state);
}
