/* SPDX-License-Identifier: Apache-2.0 */
/* What wms_check() says of a store whose records don't fit together. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"
#include "suite.h"
#include "weight_metadata_fixture.h"

#define REMOVED 1 /* a tombstone */
#define MOVING 7  /* with operation 1, and leases 1 and 2 */
#define MOVED 8   /* with operation 2, which is finished */
#define STAGED 9
/* In the lineage of id_of(): nothing but these. In "dev": 7, to be replaced. */
#define RELEASED_LEASE 3

static struct weight_identity dev_of(uint64_t generation)
{
	struct weight_identity id = id_of(generation);

	id.lineage.revision = "dev";
	return id;
}

static void migrate(uint64_t generation)
{
	struct weight_operation_request rq = { .target_residency = WEIGHT_HOT };
	struct weight_identity id = id_of(generation);

	ck_assert_int_eq(wms_operation_start(store, &id, &rq, 30, NULL, NULL),
			 0);
}

static void replace(void)
{
	struct weight_upsert_request rq = {
		.request_id = "request",
		.base = dev_of(7),
		.target = dev_of(8),
		.expected_base_metadata_generation = 2,
		.described = true,
		.import = { .payload_count = 1,
			    .logical_bytes = 1,
			    .policy = { WEIGHT_HOT, 0.5, WEIGHT_AUTO },
			    .affinity_count = 1,
			    .affinity_digest = { { 1 } } },
	};

	stage_and_publish(&rq.base);
	ck_assert_int_eq(wms_upsert_begin(store, &rq, 50, NULL, NULL), 0);
}

/* A bit of everything, and all of it in the log. */
static void fill_store(void)
{
	struct weight_identity id = id_of(REMOVED);

	stage_and_publish(&id);
	ck_assert_int_eq(delete_begin(&id, 0, NULL, 30), 0);
	ck_assert_int_eq(wms_delete_finish(store, &id, 0, 40, NULL), 0);
	id = id_of(MOVING);
	stage_and_publish(&id);
	migrate(MOVING);
	ck_assert_uint_eq(lease(&id, "a", 1000, 100), 1);
	ck_assert_uint_eq(lease(&id, "b", 1000, 100), 2);
	ck_assert_uint_eq(lease(&id, "c", 1000, 100), RELEASED_LEASE);
	ck_assert_int_eq(wms_lease_release(store, "default", RELEASED_LEASE),
			 0);
	id = id_of(MOVED);
	stage_and_publish(&id);
	migrate(MOVED);
	ck_assert_int_eq(
		wms_operation_finish(store, &id, 2, WEIGHT_HOT, 1, 40, NULL),
		0);
	id = id_of(STAGED);
	ck_assert_int_eq(wms_stage(store, &id, 10, NULL), 0);
	replace();
}

/* ---- Records, taken out and put back otherwise ---- */

static struct wms_key key_of(uint64_t generation)
{
	struct weight_identity id = id_of(generation);
	struct wms_key key;

	ck_assert_int_eq(wms_key_of(&id, &key), 0);
	return key;
}

static struct weight_metadata *take_revision(struct meta_txn *txn,
					     uint64_t generation)
{
	struct wms_key key = key_of(generation);
	struct weight_identity id = id_of(generation);
	struct weight_metadata *m;

	ck_assert_int_eq(wms_revision_get(txn, &key, &id, &m), 0);
	return m;
}

/* Takes the record over. */
static void put_revision(struct meta_txn *txn, uint64_t at,
			 struct weight_metadata *m)
{
	struct wms_key key = key_of(at);

	ck_assert_int_eq(wms_revision_put(txn, &key, m), 0);
	weight_metadata_free(m);
}

static struct weight_lease *take_lease(struct meta_txn *txn, uint64_t id)
{
	struct weight_lease *l;

	ck_assert_int_eq(wms_lease_read(txn, id, &l), 0);
	return l;
}

static void put_lease(struct meta_txn *txn, uint64_t at, struct weight_lease *l)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	unsigned char key[WMS_U64_LEN];

	wms_u64_key(at, key);
	ck_assert_int_eq(weight_record_lease_encode(l, &b), 0);
	ck_assert_int_eq(
		meta_put(txn, META_DB_LEASE, key, sizeof(key), b.data, b.len),
		0);
	weight_lease_free(l);
}

static struct weight_operation *take_operation(struct meta_txn *txn,
					       uint64_t id)
{
	struct weight_operation *op;

	ck_assert_int_eq(wms_operation_read(txn, id, &op), 0);
	return op;
}

static void put_operation(struct meta_txn *txn, uint64_t at,
			  struct weight_operation *op)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	unsigned char key[WMS_U64_LEN];

	wms_u64_key(at, key);
	ck_assert_int_eq(weight_record_operation_encode(op, &b), 0);
	ck_assert_int_eq(meta_put(txn, META_DB_OPERATION, key, sizeof(key),
				  b.data, b.len),
			 0);
	weight_operation_free(op);
}

static struct weight_lineage_record *take_lineage(struct meta_txn *txn)
{
	struct weight_identity id = dev_of(1);
	struct weight_lineage_record *l;

	ck_assert_int_eq(wms_lineage_find(txn, &id.lineage, &l), 0);
	ck_assert_ptr_nonnull(l);
	return l;
}

static void put_lineage(struct meta_txn *txn, struct weight_lineage_record *l)
{
	ck_assert_int_eq(wms_lineage_put(txn, l), 0);
	weight_lineage_record_free(l);
}

static void put_raw(struct meta_txn *txn, enum meta_db db, const void *key,
		    size_t key_len, const void *value, size_t value_len)
{
	ck_assert_int_eq(meta_put(txn, db, key, key_len, value, value_len), 0);
}

static void put_state(struct meta_txn *txn, const char *name, uint64_t v)
{
	ck_assert_int_eq(wms_state_put(txn, name, v), 0);
}

static void drop_number(struct meta_txn *txn, enum meta_db db, uint64_t n)
{
	unsigned char key[WMS_U64_LEN];

	wms_u64_key(n, key);
	ck_assert_int_eq(meta_delete(txn, db, key, sizeof(key)), 0);
}

static void garble_number(struct meta_txn *txn, enum meta_db db, uint64_t n)
{
	unsigned char key[WMS_U64_LEN];

	wms_u64_key(n, key);
	put_raw(txn, db, key, sizeof(key), "\1\0garbage", 9);
}

static void drop_names(struct meta_txn *txn, enum wms_names names,
		       const struct weight_lineage *lineage)
{
	struct wms_key key;

	ck_assert_int_eq(wms_names_key(names, lineage, &key), 0);
	ck_assert_int_eq(meta_delete(txn, META_DB_NAME, key.bytes, key.len), 0);
}

/* The bytes of an entry, to be put elsewhere. */
static void move_entry(struct meta_txn *txn, uint64_t from, uint64_t to)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	unsigned char key[WMS_U64_LEN];
	struct meta_bytes bytes;

	ck_assert_int_eq(wms_oplog_read(txn, from, &bytes), 0);
	ck_assert_int_eq(buf_append(&b, bytes.data, bytes.len), 0);
	wms_u64_key(to, key);
	put_raw(txn, META_DB_OPLOG, key, sizeof(key), b.data, b.len);
}

/* ---- What may be wrong with revisions and staged imports ---- */

static void garbled_revision(struct meta_txn *txn)
{
	struct wms_key key = key_of(MOVED);

	put_raw(txn, META_DB_REVISION, key.bytes, key.len, "\1\0garbage", 9);
}

static void misplaced_revision(struct meta_txn *txn)
{
	put_revision(txn, 20, take_revision(txn, MOVED));
}

static void unlisted_tombstone(struct meta_txn *txn)
{
	struct weight_identity id = id_of(REMOVED);

	drop_names(txn, WMS_NAMES_TOMBSTONES, &id.lineage);
}

static void lost_operation(struct meta_txn *txn)
{
	drop_number(txn, META_DB_OPERATION, 1);
}

static void ended_operation(struct meta_txn *txn)
{
	struct weight_operation *op = take_operation(txn, 1);

	op->message = WEIGHT_OPERATION_REMOVED;
	put_operation(txn, 1, op);
}

static void fenced_operation(struct meta_txn *txn)
{
	struct weight_operation *op = take_operation(txn, 1);

	op->fenced_metadata_generation--;
	put_operation(txn, 1, op);
}

static void garbled_staging(struct meta_txn *txn)
{
	struct wms_key key = key_of(STAGED);

	put_raw(txn, META_DB_STAGING, key.bytes, key.len, "\1\0garbage", 9);
}

static void put_staging(struct meta_txn *txn, uint64_t at, uint64_t generation)
{
	struct weight_staging s = { .identity = id_of(generation), .epoch = 1 };
	cleanup(buf_release) struct buf b = BUF_INIT;
	struct wms_key key = key_of(at);

	ck_assert_int_eq(weight_record_staging_encode(&s, &b), 0);
	put_raw(txn, META_DB_STAGING, key.bytes, key.len, b.data, b.len);
}

static void misplaced_staging(struct meta_txn *txn)
{
	put_staging(txn, 21, 22);
}

static void staged_and_there(struct meta_txn *txn)
{
	put_staging(txn, MOVED, MOVED);
}

/* ---- Leases ---- */

static void lease_on_nothing(struct meta_txn *txn)
{
	struct weight_lease *l = take_lease(txn, 1);
	struct wms_key key = key_of(REMOVED);

	l->identity.generation = REMOVED;
	l->lease_id = 4;
	ck_assert_int_eq(wms_lease_put(txn, &key, l), 0);
	weight_lease_free(l);
}

static void lease_on_nobody(struct meta_txn *txn)
{
	struct weight_lease *l = take_lease(txn, 1);
	struct wms_key key = key_of(30);

	l->identity.generation = 30;
	l->lease_id = 4;
	ck_assert_int_eq(wms_lease_put(txn, &key, l), 0);
	weight_lease_free(l);
}

static void fenced_lease(struct meta_txn *txn)
{
	struct weight_lease *l = take_lease(txn, 1);

	l->fenced_metadata_generation = 4;
	put_lease(txn, 1, l);
}

static void garbled_lease(struct meta_txn *txn)
{
	garble_number(txn, META_DB_LEASE, 1);
}

static void misplaced_lease(struct meta_txn *txn)
{
	put_lease(txn, RELEASED_LEASE, take_lease(txn, 1));
}

static void next_lease_behind(struct meta_txn *txn)
{
	put_state(txn, "next_lease_id", 2);
}

static void unlisted_lease(struct meta_txn *txn)
{
	struct wms_key revision = key_of(MOVING);
	struct wms_key key = wms_lease_index_key(&revision, 1);

	ck_assert_int_eq(
		meta_delete(txn, META_DB_LEASE_OF_REVISION, key.bytes, key.len),
		0);
}

static void short_index(struct meta_txn *txn)
{
	put_raw(txn, META_DB_LEASE_OF_REVISION, "12345678", 8, "", 0);
}

static void lost_lease(struct meta_txn *txn)
{
	drop_number(txn, META_DB_LEASE, 1);
}

static void lease_listed_elsewhere(struct meta_txn *txn)
{
	struct wms_key revision = key_of(MOVED);
	struct wms_key key = wms_lease_index_key(&revision, 1);

	put_raw(txn, META_DB_LEASE_OF_REVISION, key.bytes, key.len, "", 0);
}

static void no_next_lease(struct meta_txn *txn)
{
	put_raw(txn, META_DB_STATE, "next_lease_id", 13, "x", 1);
}

/* ---- Operations ---- */

static void put_third_operation(struct meta_txn *txn, uint64_t generation)
{
	struct weight_operation *op = take_operation(txn, 1);

	op->identity.generation = generation;
	op->operation_id = 3;
	put_operation(txn, 3, op);
	put_state(txn, "next_operation_id", 4);
}

static void operation_on_nobody(struct meta_txn *txn)
{
	put_third_operation(txn, 30);
}

static void second_operation(struct meta_txn *txn)
{
	put_third_operation(txn, MOVED);
}

static void fenced_end(struct meta_txn *txn)
{
	struct weight_operation *op = take_operation(txn, 2);

	op->fenced_metadata_generation++;
	put_operation(txn, 2, op);
}

static void target_not_reached(struct meta_txn *txn)
{
	struct weight_metadata *m = take_revision(txn, MOVED);

	m->residency = WEIGHT_COLD;
	m->observed_hot_ratio = 0;
	put_revision(txn, MOVED, m);
}

static void garbled_operation(struct meta_txn *txn)
{
	garble_number(txn, META_DB_OPERATION, 2);
}

static void misplaced_operation(struct meta_txn *txn)
{
	put_operation(txn, 5, take_operation(txn, 2));
}

static void next_operation_behind(struct meta_txn *txn)
{
	put_state(txn, "next_operation_id", 2);
}

static void no_next_operation(struct meta_txn *txn)
{
	put_state(txn, "next_operation_id", 0);
}

/* ---- Lineages ---- */

static void garbled_lineage(struct meta_txn *txn)
{
	struct weight_identity id = dev_of(1);
	struct digest key;

	ck_assert_int_eq(weight_lineage_hash(&id.lineage, &key), 0);
	put_raw(txn, META_DB_LINEAGE, key.bytes, sizeof(key.bytes),
		"\1\0garbage", 9);
}

static void misplaced_lineage(struct meta_txn *txn)
{
	struct weight_lineage_record *l = take_lineage(txn);
	cleanup(buf_release) struct buf b = BUF_INIT;
	struct weight_identity id = id_of(1);
	struct digest key;

	ck_assert_int_eq(weight_record_lineage_encode(l, &b), 0);
	ck_assert_int_eq(weight_lineage_hash(&id.lineage, &key), 0);
	put_raw(txn, META_DB_LINEAGE, key.bytes, sizeof(key.bytes), b.data,
		b.len);
	weight_lineage_record_free(l);
}

static void watermark_below_base(struct meta_txn *txn)
{
	struct weight_lineage_record *l = take_lineage(txn);

	l->watermark = 6;
	put_lineage(txn, l);
}

static void watermark_behind_retiring(struct meta_txn *txn)
{
	struct weight_lineage_record *l = take_lineage(txn);

	l->claim.phase = WEIGHT_RETIRING_BASE;
	put_lineage(txn, l);
}

static void watermark_behind_completed(struct meta_txn *txn)
{
	struct weight_lineage_record *l = take_lineage(txn);

	l->claim.phase = WEIGHT_COMPLETED;
	put_lineage(txn, l);
}

static void unlisted_claim(struct meta_txn *txn)
{
	struct weight_identity id = dev_of(1);

	drop_names(txn, WMS_NAMES_CLAIMS, &id.lineage);
}

/* ---- The log ---- */

static void other_operation(struct meta_txn *txn)
{
	struct weight_operation *op = take_operation(txn, 2);

	op->updated_at_ms++;
	put_operation(txn, 2, op);
}

static void lost_revision(struct meta_txn *txn)
{
	struct wms_key key = key_of(MOVED);

	ck_assert_int_eq(meta_delete(txn, META_DB_REVISION, key.bytes, key.len),
			 0);
}

static void other_revision(struct meta_txn *txn)
{
	struct weight_metadata *m = take_revision(txn, MOVED);

	m->durable = true;
	put_revision(txn, MOVED, m);
}

static void other_tombstone(struct meta_txn *txn)
{
	struct weight_metadata *m = take_revision(txn, REMOVED);

	m->metadata_generation++;
	put_revision(txn, REMOVED, m);
}

static void other_lease(struct meta_txn *txn)
{
	struct weight_lease *l = take_lease(txn, 1);

	l->expires_at_ms++;
	put_lease(txn, 1, l);
}

static void lease_gone_astray(struct meta_txn *txn)
{
	lost_lease(txn);
	unlisted_lease(txn);
}

static void lease_come_back(struct meta_txn *txn)
{
	struct weight_lease *l = take_lease(txn, 1);

	l->lease_id = RELEASED_LEASE;
	put_lease(txn, RELEASED_LEASE, l);
}

static void lost_lineage(struct meta_txn *txn)
{
	struct weight_identity id = dev_of(1);
	struct digest key;

	ck_assert_int_eq(weight_lineage_hash(&id.lineage, &key), 0);
	ck_assert_int_eq(
		meta_delete(txn, META_DB_LINEAGE, key.bytes, sizeof(key.bytes)),
		0);
}

static void other_lineage(struct meta_txn *txn)
{
	struct weight_lineage_record *l = take_lineage(txn);

	l->claim.updated_at_ms++;
	put_lineage(txn, l);
}

static void missing_entry(struct meta_txn *txn)
{
	drop_number(txn, META_DB_OPLOG, 2);
}

static void missing_entries(struct meta_txn *txn)
{
	drop_number(txn, META_DB_OPLOG, 1);
	drop_number(txn, META_DB_OPLOG, 2);
}

/* A walk from number to number would never end. */
static void log_without_end(struct meta_txn *txn)
{
	put_state(txn, "oplog_next", UINT64_MAX);
}

static void entry_outside(struct meta_txn *txn)
{
	move_entry(txn, 2, 99);
}

static void entry_before(struct meta_txn *txn)
{
	put_state(txn, "oplog_first", 2);
}

static void odd_number(struct meta_txn *txn)
{
	put_raw(txn, META_DB_OPLOG, "odd", 3, "", 0);
}

static void garbled_entry(struct meta_txn *txn)
{
	garble_number(txn, META_DB_OPLOG, 2);
}

static void newer_entry(struct meta_txn *txn)
{
	unsigned char key[WMS_U64_LEN];

	wms_u64_key(2, key);
	put_raw(txn, META_DB_OPLOG, key, sizeof(key), "\2\0garbage", 9);
}

static void misplaced_entry(struct meta_txn *txn)
{
	move_entry(txn, 3, 2);
}

static void log_ends_crossed(struct meta_txn *txn)
{
	put_state(txn, "oplog_first", 99);
}

#define REVISION "revision default/ns/demo/main/"
#define LINEAGE_DEV "lineage default/ns/demo/dev: "

/* clang-format off */
static const struct {
	void (*damage)(struct meta_txn *txn);
	const char *line; /* the beginning of it */
} cases[] = {
	{ garbled_revision, "a revision's record of 9 bytes: " },
	{ misplaced_revision,
	  REVISION "8: its record is stored as another's\n" },
	{ unlisted_tombstone,
	  REVISION "1: its lineage is not listed among those with "
		   "tombstones\n" },
	{ lost_operation, REVISION "7: its operation is not there, or over\n" },
	{ ended_operation,
	  REVISION "7: its operation is not there, or over\n" },
	{ fenced_operation,
	  REVISION "7: its operation is fenced at another metadata "
		   "generation\n" },
	{ garbled_staging, "a staged import's record of 9 bytes: " },
	{ misplaced_staging,
	  REVISION "22: its staging record is stored as another's\n" },
	{ staged_and_there,
	  REVISION "8: it is staged and has a record, too\n" },

	{ lease_on_nothing,
	  "lease 4: its revision is neither ready nor degraded\n" },
	{ lease_on_nobody,
	  "lease 4: its revision is neither ready nor degraded\n" },
	{ fenced_lease, "lease 1: fenced above the metadata generation\n" },
	{ garbled_lease, "a lease's record of 9 bytes: " },
	{ misplaced_lease, "lease 1: stored as another\n" },
	{ next_lease_behind, "lease 2: the next id is 2\n" },
	{ unlisted_lease, "lease 1: not among those of its revision\n" },
	{ short_index, "an index entry of a lease of 8 bytes\n" },
	{ lost_lease, "an index entry of a lease that is not there\n" },
	{ lease_listed_elsewhere,
	  "lease 1: among those of another revision\n" },
	{ no_next_lease, "the next lease id can't be read\n" },

	{ operation_on_nobody, "operation 3: its revision is not there\n" },
	{ second_operation,
	  "operation 3: it is not over, and its revision has another or "
	  "none\n" },
	{ fenced_end,
	  "operation 2: it is finished, but fenced at the metadata "
	  "generation\n" },
	{ target_not_reached,
	  "operation 2: it is finished, but its target was not reached\n" },
	{ garbled_operation, "an operation's record of 9 bytes: " },
	{ misplaced_operation, "operation 2: stored as another\n" },
	{ next_operation_behind, "operation 2: the next id is 2\n" },
	{ no_next_operation, "the next operation id can't be read\n" },

	{ garbled_lineage, "a lineage's record of 9 bytes: " },
	{ misplaced_lineage,
	  LINEAGE_DEV "its record is stored as another's\n" },
	{ watermark_below_base,
	  LINEAGE_DEV "its watermark is below the base of its claim\n" },
	{ watermark_behind_retiring,
	  LINEAGE_DEV "its watermark is below the target that was reached\n" },
	{ watermark_behind_completed,
	  LINEAGE_DEV "its watermark is below the target that was reached\n" },
	{ unlisted_claim,
	  LINEAGE_DEV "it is not listed among those with claims\n" },

	{ lost_operation, "entry 5 of the log (metadata_upsert): its operation "
			  "has no such record\n" },
	{ other_operation, "entry 12 of the log (metadata_upsert): the record "
			   "of its operation is another\n" },
	{ lost_revision, "entry 12 of the log (metadata_upsert): its revision "
			 "has no record\n" },
	{ other_revision, "entry 12 of the log (metadata_upsert): the record "
			  "of its revision is another\n" },
	{ other_tombstone, "entry 3 of the log (metadata_delete): there is no "
			   "such tombstone\n" },
	{ other_lease, "entry 6 of the log (lease_upsert): the record of its "
		       "lease is another\n" },
	{ lease_gone_astray, "entry 6 of the log (lease_upsert): its lease has "
			     "no record\n" },
	{ lease_come_back, "entry 9 of the log (lease_delete): its lease is "
			   "still there\n" },
	{ lost_lineage, "entry 14 of the log (lineage_upsert): its lineage has "
			"no record\n" },
	{ other_lineage, "entry 14 of the log (lineage_upsert): the record of "
			 "its lineage is another\n" },
	{ missing_entry, "entry 2 of the log is missing\n" },
	{ missing_entries, "entries 1 to 2 of the log are missing\n" },
	{ log_without_end, "entries 15 to 18446744073709551614 of the log are "
			   "missing\n" },
	{ entry_outside, "entry 99 of the log is outside of it, from 1 to "
			 "14\n" },
	{ entry_before, "entry 1 of the log is outside of it, from 2 to 14\n" },
	{ odd_number, "a number of 3 bytes in the log\n" },
	{ garbled_entry, "entry 2 of the log: " },
	{ newer_entry, "entry 2 of the log: " },
	{ misplaced_entry, "entry 2 of the log has number 3\n" },
	{ log_ends_crossed, "the ends of the log can't be read\n" },
};
/* clang-format on */

static int damage_body(struct meta_txn *txn, void *arg)
{
	cases[*(const int *)arg].damage(txn);
	return 0;
}

static uint64_t lines_in(const struct buf *report)
{
	uint64_t n = 0;

	for (size_t i = 0; i < report->len; i++)
		n += report->data[i] == '\n';
	return n;
}

static bool has_line(const struct buf *report, const char *line)
{
	const char *at = report->len ? strstr(report->data, line) : NULL;

	return at && (at == report->data || at[-1] == '\n');
}

START_TEST(each_thing_that_is_wrong_has_its_line)
{
	cleanup(buf_release) struct buf report = BUF_INIT;
	uint64_t bad = 0;
	int i = _i;

	fill_store();
	ck_assert_int_eq(check_store(store), 0);
	meddle(damage_body, &i);
	store = must_open();
	ck_assert_int_eq(wms_check(store, &report, &bad), 0);
	ck_assert_uint_gt(bad, 0);
	ck_assert_uint_eq(lines_in(&report), bad);
	ck_assert_msg(has_line(&report, cases[i].line), "no line '%s' in\n%s",
		      cases[i].line, report.data);
}
END_TEST

START_TEST(what_is_wrong_with_one_is_not_said_of_others)
{
	int i = 0;

	fill_store();
	meddle(damage_body, &i); /* a revision's record */
	store = must_open();
	ck_assert_int_eq(check_store(store), -EUCLEAN);
	ck_assert_ptr_null(strstr(found_wrong, "lease"));
	ck_assert_ptr_null(strstr(found_wrong, "lineage"));
	ck_assert_ptr_null(strstr(found_wrong, "staged"));
}
END_TEST

static int many_body(struct meta_txn *txn, void *arg)
{
	unsigned n = *(const unsigned *)arg;

	for (unsigned i = 0; i < n; i++)
		put_raw(txn, META_DB_STAGING, &i, sizeof(i), "\1\0garbage", 9);
	return 0;
}

START_TEST(a_report_has_its_limit_and_the_count_goes_on)
{
	cleanup(buf_release) struct buf report = BUF_INIT;
	unsigned n = WMS_REPORT_LINES_MAX + (unsigned)_i;
	uint64_t bad = 0;

	meddle(many_body, &n);
	store = must_open();
	ck_assert_int_eq(wms_check(store, &report, &bad), 0);
	ck_assert_uint_eq(bad, n);
	ck_assert_uint_eq(lines_in(&report), WMS_REPORT_LINES_MAX);
}
END_TEST

/*
 * Raises the number of entries that the database itself keeps of a map with
 * three, in the file, behind whoever has it open. Behind the name of a map
 * comes what LMDB knows of it.
 */
static unsigned raise_count(const char *map)
{
	const size_t at_count = strlen(map) + 4 + 2 + 2 + 3 * sizeof(uint64_t);
	static char bytes[1 << 20];
	unsigned changed = 0;
	char path[80];
	uint64_t n;
	ssize_t len;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/data.mdb", dir);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	len = pread(fd, bytes, sizeof(bytes), 0);
	for (ssize_t i = 0; i + 64 < len; i++) {
		if (memcmp(bytes + i, map, strlen(map)) != 0)
			continue;
		memcpy(&n, bytes + i + at_count, sizeof(n));
		if (n++ != 3)
			continue;
		ck_assert_int_eq(
			pwrite(fd, &n, sizeof(n), i + (ssize_t)at_count),
			sizeof(n));
		changed++;
	}
	(void)close(fd);
	return changed;
}

START_TEST(a_database_that_is_damaged_is_told_too)
{
	for (uint64_t g = 1; g <= 3; g++) {
		struct weight_identity id = id_of(g);

		ck_assert_int_eq(wms_stage(store, &id, 1, NULL), 0);
	}
	ck_assert_int_eq(check_store(store), 0);
	ck_assert_uint_gt(raise_count("staging"), 0);
	ck_assert_int_eq(check_store(store), -EUCLEAN);
	ck_assert_ptr_nonnull(
		strstr(found_wrong, "the database can't be read through: "));
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_metadata_check");
	TCase *tc = tcase_create("weight_metadata_check");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, each_thing_that_is_wrong_has_its_line, 0,
			    ARRAY_LEN(cases));
	tcase_add_test(tc, what_is_wrong_with_one_is_not_said_of_others);
	tcase_add_loop_test(tc, a_report_has_its_limit_and_the_count_goes_on, 0,
			    3);
	tcase_add_test(tc, a_database_that_is_damaged_is_told_too);
	suite_add_tcase(s, tc);
	return s;
}
