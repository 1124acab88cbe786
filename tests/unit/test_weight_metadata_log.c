/* SPDX-License-Identifier: Apache-2.0 */
/* What mutations of the metadata store leave in its operation log. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"
#include "suite.h"
#include "weight_metadata_dump.h"
#include "weight_metadata_fixture.h"
#include "weight_mutations.h"

static struct wms_oplog_state log_state(void)
{
	struct wms_oplog_state s;

	ck_assert_int_eq(wms_oplog_state(store, &s), 0);
	return s;
}

/* All that there is; the store is closed for it, and opened again. */
static void dump(struct buf *ret)
{
	wms_close(take_ptr(store));
	ck_assert_int_eq(dump_metadata(dir, true, ret), 0);
	store = must_open();
}

static void prepare(const struct mutation *m)
{
	if (m->prepare)
		ck_assert_msg(m->prepare(store) == 0, "preparing to %s",
			      m->name);
}

static int act(const struct mutation *m)
{
	return m->act(store);
}

/* ---- One entry for each mutation ---- */

static void assert_entry(uint64_t sequence, bool of_lineage)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	ck_assert_int_eq(wms_oplog_get(store, sequence, &bytes), 0);
	ck_assert_int_eq(oplog_decode(bytes.data, bytes.len, &e), 0);
	ck_assert_uint_eq(e->sequence, sequence);
	ck_assert_int_eq(e->change.type == OPLOG_LINEAGE_UPSERT, of_lineage);
}

/* WeightMetadataStore.UnchangedOperationProgressIsIdempotent */
START_TEST(each_mutation_adds_its_entries_and_a_repeat_adds_none)
{
	const struct mutation *m = &mutations[_i];
	cleanup(buf_release) struct buf after = BUF_INIT;
	cleanup(buf_release) struct buf again = BUF_INIT;
	struct wms_oplog_state before;

	prepare(m);
	before = log_state();
	ck_assert_uint_eq(before.first, 1);
	ck_assert_msg(act(m) == 0, "to %s", m->name);
	ck_assert_uint_eq(log_state().next, before.next + m->entries);
	ck_assert_uint_eq(log_state().first, 1);
	for (unsigned i = 0; i < m->entries; i++)
		assert_entry(before.next + i, m->of_lineage);
	dump(&after);
	ck_assert_msg(act(m) == m->again, "to %s again", m->name);
	dump(&again);
	ck_assert_msg(strcmp(after.data, again.data) == 0, "to %s again",
		      m->name);
	ck_assert_msg(check_store(store) == 0, "to %s: %s", m->name,
		      found_wrong);
}
END_TEST

START_TEST(a_log_begins_empty)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	ck_assert_uint_eq(log_state().first, 1);
	ck_assert_uint_eq(log_state().next, 1);
	ck_assert_int_eq(wms_oplog_get(store, 0, &bytes), -ENOENT);
	ck_assert_int_eq(wms_oplog_get(store, 1, &bytes), -ENOENT);
	ck_assert_int_eq(published_base(store), 0);
	ck_assert_int_eq(wms_oplog_get(store, 1, &bytes), 0);
	ck_assert_int_eq(wms_oplog_get(store, 2, &bytes), -ENOENT);
	ck_assert_uint_gt(bytes.len, 0);
	reopen();
	ck_assert_uint_eq(log_state().next, 2);
}
END_TEST

START_TEST(a_sweep_adds_one_for_each_lease)
{
	size_t removed = 9;

	ck_assert_int_eq(much_leased_base(store), 0);
	ck_assert_uint_eq(log_state().next, 6);
	/* Nothing has expired yet. */
	ck_assert_int_eq(wms_lease_sweep(store, 1699, 10, &removed), 0);
	ck_assert_uint_eq(removed, 0);
	ck_assert_uint_eq(log_state().next, 6);
	ck_assert_int_eq(wms_lease_sweep(store, 1700, 2, &removed), 0);
	ck_assert_uint_eq(removed, 2);
	ck_assert_uint_eq(log_state().next, 8);
	ck_assert_int_eq(wms_lease_sweep(store, 1700, 2, &removed), 0);
	ck_assert_uint_eq(removed, 1);
	ck_assert_uint_eq(log_state().next, 9);
	ck_assert_int_eq(wms_lease_sweep(store, 1700, 0, &removed), 0);
	ck_assert_uint_eq(removed, 0);
	ck_assert_uint_eq(log_state().next, 9);
	ck_assert_int_eq(check_store(store), 0);
}
END_TEST

/* Unknown, another's, live already, or long enough: nothing is to be said. */
START_TEST(what_changes_nothing_adds_nothing)
{
	struct weight_identity id = some_id(BASE);
	struct weight_lease_request rq = { .holder = "mount", .ttl_ms = 900 };
	struct weight_lease *l;

	ck_assert_int_eq(leased_base(store), 0);
	ck_assert_uint_eq(log_state().next, 3);
	ck_assert_int_eq(wms_lease_acquire(store, &id, &rq, 1250, &l), 0);
	ck_assert_uint_eq(l->expires_at_ms, 1700);
	weight_lease_free(l);
	ck_assert_int_eq(wms_lease_renew(store, "default", 1, 1, 1250, NULL),
			 0);
	ck_assert_int_eq(wms_lease_release(store, "other", 1), -ENOENT);
	ck_assert_int_eq(wms_lease_release(store, "default", 99), 0);
	ck_assert_int_eq(finish_it(store), -ENOENT);
	ck_assert_int_eq(advance_claim(store), -ENOENT);
	ck_assert_int_eq(wms_delete_finish(store, &id, 0, 1, NULL), -EEXIST);
	ck_assert_uint_eq(log_state().next, 3);
}
END_TEST

static void assert_time(uint64_t sequence, uint64_t timestamp_ms)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	ck_assert_int_eq(wms_oplog_get(store, sequence, &bytes), 0);
	ck_assert_int_eq(oplog_decode(bytes.data, bytes.len, &e), 0);
	ck_assert_uint_eq(e->change.timestamp_ms, timestamp_ms);
}

START_TEST(an_entry_has_the_time_of_its_change)
{
	size_t removed;

	ck_assert_int_eq(published_moving(store), 0);
	assert_time(1, 1100);
	/* Of an operation, where only that has changed. */
	ck_assert_int_eq(count_progress(store), 0);
	assert_time(2, 1300);
	ck_assert_int_eq(acquire_it(store), 0);
	assert_time(3, 1200);
	ck_assert_int_eq(wms_lease_sweep(store, 1700, 1, &removed), 0);
	assert_time(4, 1700);
	ck_assert_int_eq(acquire_so(store, "h", 500, 2000), 0);
	/* Nobody asks when it ended that did so early. */
	ck_assert_int_eq(wms_lease_release(store, "default", 2), 0);
	assert_time(6, 2500);
	ck_assert_int_eq(delete_it(store), 0);
	ck_assert_int_eq(finish_delete(store), 0);
	assert_time(7, 1400);
	assert_time(8, 1500);
}
END_TEST

/* ---- Gates ---- */

static struct wms_options confirmed(bool management, bool lineages)
{
	return (struct wms_options){
		.replicated = true,
		.confirms_management = management,
		.confirms_lineages = lineages,
		.oplog_keep = WMS_OPLOG_KEEP_DEFAULT,
	};
}

/* A follower adds what it is told, whoever follows itself. */
static bool is_replay(const struct mutation *m)
{
	return m->again == -ESPIPE;
}

/* MasterServiceConfig.WeightCapabilityConfirmationPropagates */
START_TEST(what_is_not_confirmed_is_not_done)
{
	const struct mutation *m = &mutations[_i / 2];
	struct wms_options open = confirmed(_i % 2 == 0, _i % 2 == 1);
	bool passes = m->entries == 0 || is_replay(m) ||
		      (m->of_lineage ? open.confirms_lineages :
				       open.confirms_management);
	cleanup(buf_release) struct buf before = BUF_INIT;
	cleanup(buf_release) struct buf after = BUF_INIT;

	prepare(m);
	dump(&before);
	wms_configure(store, &open);
	ck_assert_msg(act(m) == (passes ? 0 : -EIO), "to %s", m->name);
	dump(&after);
	/* All of it, or nothing. */
	ck_assert_msg((strcmp(before.data, after.data) != 0) == passes, "to %s",
		      m->name);
}
END_TEST

START_TEST(a_repeat_needs_no_confirmation)
{
	const struct wms_options shut = confirmed(false, false);
	const struct mutation *m = &mutations[_i];

	prepare(m);
	ck_assert_int_eq(act(m), 0);
	wms_configure(store, &shut);
	ck_assert_msg(act(m) == m->again, "to %s again", m->name);
}
END_TEST

START_TEST(reading_needs_no_confirmation)
{
	const struct wms_options shut = confirmed(false, false);
	struct weight_identity id = some_id(BASE);
	struct weight_lineage_record *l;
	struct wms_page page;

	ck_assert_int_eq(put_first_claimed(store), 0);
	wms_configure(store, &shut);
	ck_assert_int_eq(availability_of(&id), WEIGHT_READY);
	ck_assert_int_eq(wms_lineage_get(store, &id.lineage, &l), 0);
	weight_lineage_record_free(l);
	ck_assert_int_eq(wms_list(store, "default", "ns", "demo", "", 1, &page),
			 0);
	ck_assert_uint_eq(page.count, 1);
	wms_page_release(&page);
	ck_assert_uint_eq(summary(&id, 1).active, 0);
	ck_assert_int_eq(check_store(store), 0);
	/* Staging is this machine's own. */
	id.generation = 9;
	ck_assert_int_eq(wms_stage(store, &id, 1, NULL), 0);
	ck_assert_int_eq(wms_staged_policy(store, &id, &wants_cold), 0);
	ck_assert_int_eq(wms_unstage(store, &id), 0);
}
END_TEST

START_TEST(without_followers_nothing_has_to_be_confirmed)
{
	const struct wms_options alone = { .oplog_keep = 10 };

	wms_configure(store, &alone);
	ck_assert_int_eq(put_first_base_gone(store), 0);
	ck_assert_int_eq(advance_claim(store), 0);
}
END_TEST

/* ---- Trimming ---- */

static void keep(uint64_t entries)
{
	const struct wms_options o = { .oplog_keep = entries };

	wms_configure(store, &o);
}

/* n entries, by a lease that is acquired and released. */
static void add_entries(unsigned n)
{
	struct weight_identity id = some_id(BASE);
	struct weight_lease_request rq = { .holder = "h", .ttl_ms = 10 };
	struct weight_lease *l = NULL;
	uint64_t next = log_state().next;

	for (unsigned i = 0; i < n; i++) {
		if (i % 2 == 0) {
			weight_lease_free(take_ptr(l));
			ck_assert_int_eq(
				wms_lease_acquire(store, &id, &rq, 1, &l), 0);
		} else {
			ck_assert_int_eq(wms_lease_release(store, "default",
							   l->lease_id),
					 0);
		}
	}
	if (n % 2 == 1)
		ck_assert_int_eq(
			wms_lease_release(store, "default", l->lease_id), 0);
	weight_lease_free(l);
	ck_assert_uint_eq(log_state().next, next + n + n % 2);
}

static void assert_log(uint64_t first, uint64_t next)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	ck_assert_uint_eq(log_state().first, first);
	ck_assert_uint_eq(log_state().next, next);
	for (uint64_t i = first - 1; i <= next; i++)
		ck_assert_int_eq(wms_oplog_get(store, i, &bytes),
				 i >= first && i < next ? 0 : -ENOENT);
	ck_assert_msg(check_store(store) == 0, "%s", found_wrong);
}

START_TEST(only_so_many_entries_are_kept)
{
	ck_assert_int_eq(published_base(store), 0);
	keep(5);
	add_entries(4);
	assert_log(1, 6);
	add_entries(2);
	assert_log(3, 8);
	add_entries(20);
	assert_log(23, 28);
	/* Those of one transaction are counted one by one. */
	reopen();
	keep(1);
	add_entries(2);
	assert_log(27, 30);
	add_entries(2);
	assert_log(31, 32);
	/* More again: they aren't brought back. */
	keep(10);
	add_entries(4);
	assert_log(31, 36);
}
END_TEST

START_TEST(a_lower_limit_is_reached_step_by_step)
{
	ck_assert_int_eq(published_base(store), 0);
	add_entries(20);
	assert_log(1, 22);
	keep(3);
	add_entries(2);
	assert_log(5, 24);
	add_entries(30);
	assert_log(51, 54);
}
END_TEST

START_TEST(a_sweep_keeps_no_more_than_others)
{
	size_t removed;

	ck_assert_int_eq(much_leased_base(store), 0);
	keep(2);
	ck_assert_int_eq(wms_lease_sweep(store, 1700, 10, &removed), 0);
	ck_assert_uint_eq(removed, 3);
	assert_log(7, 9);
}
END_TEST

static int hole_body(struct meta_txn *txn, void *arg)
{
	unsigned char key[WMS_U64_LEN];

	(void)arg;
	wms_u64_key(1, key);
	return meta_delete(txn, META_DB_OPLOG, key, sizeof(key));
}

START_TEST(a_log_with_a_hole_takes_nothing_when_it_gets_there)
{
	ck_assert_int_eq(published_base(store), 0);
	meddle(hole_body, NULL);
	store = must_open();
	ck_assert_int_eq(acquire_it(store), 0);
	keep(1);
	ck_assert_int_eq(release_it(store), -EUCLEAN);
	ck_assert_uint_eq(log_state().next, 3);
	ck_assert_int_eq(check_store(store), -EUCLEAN);
	ck_assert_ptr_nonnull(
		strstr(found_wrong, "entry 1 of the log is missing"));
}
END_TEST

static int last_number_body(struct meta_txn *txn, void *arg)
{
	(void)arg;
	return wms_oplog_begin(txn, UINT64_MAX);
}

START_TEST(numbers_come_to_an_end)
{
	cleanup(buf_release) struct buf before = BUF_INIT;
	cleanup(buf_release) struct buf after = BUF_INIT;

	meddle(last_number_body, NULL);
	store = must_open();
	ck_assert_int_eq(stage_it(store), 0);
	dump(&before);
	ck_assert_int_eq(publish_it(store), -EOVERFLOW);
	dump(&after);
	ck_assert_str_eq(before.data, after.data);
	ck_assert_int_eq(check_store(store), 0);
}
END_TEST

/* ---- Stores of before there was a log ---- */

static int drop_all(struct meta_txn *txn, enum meta_db db)
{
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	unsigned char copy[META_KEY_MAX];
	struct meta_bytes key, value;
	size_t len;
	int r = meta_cursor_open(txn, db, NULL, 0, &c);

	while (r == 0 &&
	       (r = meta_cursor_seek(c, NULL, 0, &key, &value)) == 0) {
		len = key.len;
		memcpy(copy, key.data, len);
		r = meta_delete(txn, db, copy, len);
	}
	return r == -ENOENT ? 0 : r;
}

/* Also garbles a record: that is no reason not to open. */
static int schema_1_body(struct meta_txn *txn, void *arg)
{
	const struct weight_identity *garbled = arg;
	struct wms_key key;

	ck_assert_int_eq(drop_all(txn, META_DB_OPLOG), 0);
	ck_assert_int_eq(drop_all(txn, META_DB_NAME), 0);
	ck_assert_int_eq(meta_delete(txn, META_DB_STATE, "oplog_next", 10), 0);
	if (garbled) {
		ck_assert_int_eq(wms_key_of(garbled, &key), 0);
		ck_assert_int_eq(meta_put(txn, META_DB_REVISION, key.bytes,
					  key.len, "\1\0garbage", 9),
				 0);
	}
	return wms_state_put(txn, "schema", 1);
}

static void assert_tombstones(const struct weight_lineage *l)
{
	const char *const parts[] = { l->tenant, l->name_space, l->resource };
	cleanup(buf_release) struct buf name = BUF_INIT;

	ck_assert_int_eq(wms_names_next(store, WMS_NAMES_TOMBSTONES, parts, 3,
					"", &name),
			 0);
	ck_assert_str_eq(name.data, l->revision);
	ck_assert_int_eq(wms_names_next(store, WMS_NAMES_TOMBSTONES, parts, 3,
					name.data, &name),
			 -ENOENT);
	buf_release(&name);
	ck_assert_int_eq(
		wms_names_next(store, WMS_NAMES_TOMBSTONES, NULL, 0, "", &name),
		0);
	ck_assert_str_eq(name.data, l->tenant);
}

START_TEST(a_store_of_before_the_log_is_upgraded)
{
	struct weight_identity id = some_id(BASE);
	struct weight_identity garbled = some_id(BASE - 1);
	int r;

	for (uint64_t g = 1; g <= 3; g++) {
		id.generation = g;
		stage_and_publish(&id);
		ck_assert_int_eq(delete_begin(&id, 0, NULL, 30), 0);
		ck_assert_int_eq(wms_delete_finish(store, &id, 0, 40, NULL), 0);
	}
	ck_assert_int_eq(moving_leased_base(store), 0);
	if (_i == 1)
		stage_and_publish(&garbled);
	meddle(schema_1_body, _i == 1 ? &garbled : NULL);
	store = must_open();
	/* What was there stands for the first entry. */
	ck_assert_uint_eq(log_state().first, 2);
	ck_assert_uint_eq(log_state().next, 2);
	assert_tombstones(&id.lineage);
	r = check_store(store);
	ck_assert_msg(r == (_i == 1 ? -EUCLEAN : 0), "%s", found_wrong);
	if (_i == 1)
		return;
	ck_assert_int_eq(delete_it(store), 0);
	ck_assert_int_eq(finish_delete(store), 0);
	assert_log(2, 4);
	reopen();
	assert_log(2, 4);
	id.generation = 9;
	stage_and_publish(&id);
	assert_log(2, 5);
}
END_TEST

static void add_ends(Suite *s)
{
	TCase *tc = tcase_create("ends");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, only_so_many_entries_are_kept);
	tcase_add_test(tc, a_lower_limit_is_reached_step_by_step);
	tcase_add_test(tc, a_sweep_keeps_no_more_than_others);
	tcase_add_test(tc, a_log_with_a_hole_takes_nothing_when_it_gets_there);
	tcase_add_test(tc, numbers_come_to_an_end);
	tcase_add_loop_test(tc, a_store_of_before_the_log_is_upgraded, 0, 2);
	suite_add_tcase(s, tc);
}

Suite *suite(void)
{
	Suite *s = suite_create("weight_metadata_log");
	TCase *tc = tcase_create("entries");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(
		tc, each_mutation_adds_its_entries_and_a_repeat_adds_none, 0,
		ARRAY_LEN(mutations));
	tcase_add_test(tc, a_log_begins_empty);
	tcase_add_test(tc, a_sweep_adds_one_for_each_lease);
	tcase_add_test(tc, what_changes_nothing_adds_nothing);
	tcase_add_test(tc, an_entry_has_the_time_of_its_change);
	tcase_add_loop_test(tc, what_is_not_confirmed_is_not_done, 0,
			    2 * ARRAY_LEN(mutations));
	tcase_add_loop_test(tc, a_repeat_needs_no_confirmation, 0,
			    ARRAY_LEN(mutations));
	tcase_add_test(tc, reading_needs_no_confirmation);
	tcase_add_test(tc, without_followers_nothing_has_to_be_confirmed);
	suite_add_tcase(s, tc);
	add_ends(s);
	return s;
}
