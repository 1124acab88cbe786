/* SPDX-License-Identifier: Apache-2.0 */
/* Stores that are only read, and those that an older version wrote. */
#include <check.h>
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "fault.h"
#include "suite.h"
#include "weight_metadata_fixture.h"

static struct weight_metadata_store *must_open_read(void)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_metadata_store *s = NULL;
	int r = wms_open_read(dir, &s, &why);

	ck_assert_msg(r == 0, "open: %d, %s", r, why.data);
	return s;
}

/* A ready one with a lease, a tombstone, and one that is staged. */
static void fill(void)
{
	struct weight_identity ready = id_of(7), gone = id_of(6),
			       staged = id_of(8);

	stage_and_publish(&gone);
	ck_assert_int_eq(delete_begin(&gone, 0, NULL, 30), 0);
	ck_assert_int_eq(wms_delete_finish(store, &gone, 0, 31, NULL), 0);
	stage_and_publish(&ready);
	(void)lease(&ready, "h", 1000, 40);
	ck_assert_int_eq(wms_stage(store, &staged, 50, NULL), 0);
}

START_TEST(who_only_reads_sees_all_and_changes_nothing)
{
	struct weight_identity ready = id_of(7), fresh = id_of(9);
	struct weight_lease_request rq = { .holder = "x", .ttl_ms = 1 };
	struct wms_totals totals;
	struct weight_lease *l;

	fill();
	wms_close(store);
	store = must_open_read();
	ck_assert_int_eq(availability_of(&ready), WEIGHT_READY);
	ck_assert_int_eq(wms_totals(store, &totals), 0);
	ck_assert_uint_eq(totals.revisions, 2);
	ck_assert_uint_eq(totals.staged, 1);
	ck_assert_uint_eq(totals.leases, 1);
	ck_assert_uint_eq(totals.operations, 0);
	ck_assert_uint_eq(totals.lineages, 0);
	ck_assert_int_eq(check_store(store), 0);
	ck_assert_int_eq(wms_stage(store, &fresh, 60, NULL), -EROFS);
	ck_assert_int_eq(wms_lease_acquire(store, &ready, &rq, 60, &l), -EROFS);
	ck_assert_int_eq(wms_mark_clean(store), -EROFS);
	reopen();
	ck_assert_int_eq(check_store(store), 0);
}
END_TEST

START_TEST(what_is_not_there_is_not_made)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_metadata_store *s = NULL;

	wms_close(take_ptr(store));
	empty_dir();
	ck_assert_int_eq(wms_open_read(dir, &s, &why), -ENOENT);
	ck_assert_ptr_null(s);
	ck_assert_uint_gt(why.len, 0);
}
END_TEST

static int drop_all(struct meta_txn *txn, enum meta_db db)
{
	int r = 0;

	while (r == 0) {
		struct meta_cursor *c = NULL;
		struct meta_bytes key, value;

		r = meta_cursor_open(txn, db, NULL, 0, &c);
		if (r == 0)
			r = meta_cursor_seek(c, NULL, 0, &key, &value);
		meta_cursor_close(c);
		if (r == 0)
			r = meta_delete(txn, db, key.data, key.len);
	}
	return r == -ENOENT ? 0 : r;
}

/* As the first schema had it: no log, and no lists of names. */
static int age_body(struct meta_txn *txn, void *arg)
{
	uint64_t version = htole64(1);
	int r;

	(void)arg;
	if ((r = drop_all(txn, META_DB_OPLOG)) < 0 ||
	    (r = drop_all(txn, META_DB_NAME)) < 0 ||
	    (r = meta_delete(txn, META_DB_STATE, "oplog_next", 10)) < 0)
		return r;
	r = meta_delete(txn, META_DB_STATE, "oplog_first", 11);
	if (r < 0 && r != -ENOENT)
		return r;
	return meta_put(txn, META_DB_STATE, "schema", 6, &version,
			sizeof(version));
}

START_TEST(an_older_schema_can_be_read_as_it_is)
{
	struct wms_oplog_state log;
	struct wms_totals totals;

	fill();
	meddle(age_body, NULL);
	for (int i = 0; i < 2; i++) {
		store = must_open_read();
		ck_assert_int_eq(check_store(store), 0);
		ck_assert_int_eq(wms_totals(store, &totals), 0);
		ck_assert_uint_eq(totals.revisions, 2);
		/* It is as it was, and has no log. */
		ck_assert_int_eq(wms_oplog_state(store, &log), 0);
		ck_assert_uint_eq(log.next, 1);
		wms_close(take_ptr(store));
	}
	store = must_open();
	ck_assert_int_eq(check_store(store), 0);
	ck_assert_int_eq(wms_oplog_state(store, &log), 0);
	ck_assert_uint_eq(log.first, 2);
	ck_assert_uint_eq(log.next, 2);
}
END_TEST

/* What an older version removed is found among the tombstones. */
START_TEST(tombstones_of_an_older_schema_are_listed)
{
	const char *const parts[] = { "default", "ns", "demo" };
	cleanup(buf_release) struct buf name = BUF_INIT;
	struct weight_identity more = id_of(1);

	fill();
	/* Several of one lineage, and of others. */
	for (uint64_t i = 1; i <= 3; i++) {
		more.generation = i;
		more.lineage.revision = i == 3 ? "zz" : "main";
		stage_and_publish(&more);
		ck_assert_int_eq(delete_begin(&more, 0, NULL, 30), 0);
		ck_assert_int_eq(wms_delete_finish(store, &more, 0, 31, NULL),
				 0);
	}
	meddle(age_body, NULL);
	store = must_open();
	ck_assert_int_eq(check_store(store), 0);
	ck_assert_int_eq(wms_names_next(store, WMS_NAMES_TOMBSTONES, parts, 3,
					"", &name),
			 0);
	ck_assert_str_eq(name.data, "main");
	buf_release(&name);
	ck_assert_int_eq(wms_names_next(store, WMS_NAMES_TOMBSTONES, parts, 3,
					"main", &name),
			 0);
	ck_assert_str_eq(name.data, "zz");
	buf_release(&name);
	ck_assert_int_eq(wms_names_next(store, WMS_NAMES_TOMBSTONES, parts, 3,
					"zz", &name),
			 -ENOENT);
}
END_TEST

static int damage_body(struct meta_txn *txn, void *arg)
{
	struct meta_cursor *c = NULL;
	struct meta_bytes key, value;
	int r = age_body(txn, arg);

	if (r == 0)
		r = meta_cursor_open(txn, META_DB_REVISION, NULL, 0, &c);
	if (r == 0)
		r = meta_cursor_seek(c, NULL, 0, &key, &value);
	meta_cursor_close(c);
	return r < 0 ? r :
		       meta_put(txn, META_DB_REVISION, key.data, key.len, "x",
				1);
}

/* One record that can't be read is no reason not to open the others. */
START_TEST(a_damaged_record_does_not_keep_an_older_schema_closed)
{
	struct weight_identity ready = id_of(7);

	fill();
	meddle(damage_body, NULL);
	store = must_open_read();
	ck_assert_int_eq(check_store(store), -EUCLEAN);
	wms_close(take_ptr(store));
	store = must_open();
	ck_assert_int_eq(availability_of(&ready), WEIGHT_READY);
	ck_assert_int_eq(check_store(store), -EUCLEAN);
}
END_TEST

static int newer_body(struct meta_txn *txn, void *arg)
{
	uint64_t version = htole64(WMS_SCHEMA_VERSION + 1);

	(void)arg;
	return meta_put(txn, META_DB_STATE, "schema", 6, &version,
			sizeof(version));
}

START_TEST(a_newer_schema_is_not_read)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_metadata_store *s = NULL;

	meddle(newer_body, NULL);
	ck_assert_int_eq(wms_open_read(dir, &s, &why), -EPROTONOSUPPORT);
	ck_assert_ptr_null(s);
	ck_assert_uint_gt(why.len, 0);
}
END_TEST

static int sweep_body(void)
{
	cleanup(wms_close_cleanup) struct weight_metadata_store *s = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct wms_totals totals;
	int r = wms_open_read(dir, &s, &why);

	return r < 0 ? r : wms_totals(s, &totals);
}

/* What a child allocates is none of the sweep's business. */
static void disarm(void)
{
	(void)fault_disarm();
}

START_TEST(every_allocation_may_fail)
{
	ck_assert_int_eq(pthread_atfork(NULL, NULL, disarm), 0);
	fill();
	wms_close(take_ptr(store));
	fault_sweep(sweep_body);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_metadata_read");
	TCase *tc = tcase_create("core");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, who_only_reads_sees_all_and_changes_nothing);
	tcase_add_test(tc, what_is_not_there_is_not_made);
	tcase_add_test(tc, an_older_schema_can_be_read_as_it_is);
	tcase_add_test(tc, tombstones_of_an_older_schema_are_listed);
	tcase_add_test(tc,
		       a_damaged_record_does_not_keep_an_older_schema_closed);
	tcase_add_test(tc, a_newer_schema_is_not_read);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
