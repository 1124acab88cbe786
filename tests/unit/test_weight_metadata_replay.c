/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who follows the log of a store comes to the same records, whatever was done;
 * and takes nothing that doesn't follow.
 */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/metrics.h"
#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"
#include "fault.h"
#include "suite.h"
#include "weight_follower_fixture.h"
#include "weight_mutations.h"

/* ---- What each mutation says is done likewise ---- */

static void act_out(const struct mutation *m)
{
	ck_assert_msg((!m->prepare || m->prepare(store) == 0) &&
			      m->act(store) == 0,
		      "to %s", m->name);
}

START_TEST(each_mutation_is_followed)
{
	act_out(&mutations[_i]);
	follow();
	assert_same();
}
END_TEST

static const enum metric gauges[] = {
	METRIC_REVISIONS_IMPORTING,
	METRIC_REVISIONS_READY,
	METRIC_REVISIONS_DEGRADED,
	METRIC_REVISIONS_DELETING,
	METRIC_REVISIONS_DELETED,
	METRIC_RESIDENCY_UNKNOWN,
	METRIC_RESIDENCY_HOT,
	METRIC_RESIDENCY_COLD,
	METRIC_RESIDENCY_MIXED,
	METRIC_RESIDENCY_ABSENT,
	METRIC_PENDING_OPERATIONS,
	METRIC_MIGRATION_REMAINING_BYTES,
	METRIC_CLAIMS_PUT_FIRST_PREPARING_TARGET,
	METRIC_CLAIMS_PUT_FIRST_RETIRING_BASE,
	METRIC_CLAIMS_PUT_FIRST_COMPLETED,
	METRIC_CLAIMS_PUT_FIRST_ABORTED,
	METRIC_CLAIMS_DELETE_FIRST_DELETING_BASE,
	METRIC_CLAIMS_DELETE_FIRST_TARGET_IMPORTING,
	METRIC_CLAIMS_DELETE_FIRST_COMPLETED,
	METRIC_CLAIMS_DELETE_FIRST_ABORTED,
};

/* The gauges are the same whether it was done here or elsewhere. */
START_TEST(what_is_followed_is_counted_as_if_it_was_done)
{
	uint64_t done[ARRAY_LEN(gauges)];

	metrics_reset();
	act_out(&mutations[_i]);
	for (size_t i = 0; i < ARRAY_LEN(gauges); i++)
		done[i] = metrics_get(gauges[i]);
	metrics_reset();
	follow();
	for (size_t i = 0; i < ARRAY_LEN(gauges); i++)
		ck_assert_msg(metrics_get(gauges[i]) == done[i],
			      "to %s: gauge %zu is %llu, not %llu",
			      mutations[_i].name, i,
			      (unsigned long long)metrics_get(gauges[i]),
			      (unsigned long long)done[i]);
}
END_TEST

/* ---- What doesn't follow ---- */

/* Both stores have a READY base, with a lease. */
static void both_leased(void)
{
	ck_assert_int_eq(leased_base(store), 0);
	follow();
}

/* It is refused so, says why, and nothing has changed. */
static void refuses(const struct buf *bytes, int err, const char *says)
{
	cleanup(buf_release) struct buf before = BUF_INIT;
	cleanup(buf_release) struct buf after = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;

	wms_close(take_ptr(follower));
	ck_assert_int_eq(dump_metadata(other_dir, true, &before), 0);
	follower = open_in(other_dir);
	ck_assert_int_eq(wms_replay(follower, bytes->data, bytes->len, &why),
			 err);
	ck_assert_msg(strstr(why.data, says) != NULL, "\"%s\" not in \"%s\"",
		      says, why.data);
	ck_assert_int_eq(wms_replay(follower, bytes->data, bytes->len, NULL),
			 err);
	wms_close(take_ptr(follower));
	ck_assert_int_eq(dump_metadata(other_dir, true, &after), 0);
	follower = open_in(other_dir);
	ck_assert_str_eq(before.data, after.data);
}

static void entry_of(struct weight_metadata_store *s, uint64_t sequence,
		     struct buf *ret)
{
	buf_release(ret);
	ck_assert_int_eq(wms_oplog_get(s, sequence, ret), 0);
}

START_TEST(entries_come_one_after_the_other)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	ck_assert_int_eq(leased_base(store), 0);
	ck_assert_int_eq(renew_it(store), 0);
	entry_of(store, 2, &bytes);
	refuses(&bytes, -ESPIPE, "entry 2 can't follow, 1 comes next");
	entry_of(store, 1, &bytes);
	ck_assert_int_eq(wms_replay(follower, bytes.data, bytes.len, NULL), 0);
	refuses(&bytes, -ESPIPE, "entry 1 can't follow, 2 comes next");
	entry_of(store, 3, &bytes);
	refuses(&bytes, -ESPIPE, "entry 3 can't follow, 2 comes next");
	/* And then all is well. */
	follow();
	assert_same();
}
END_TEST

START_TEST(a_damaged_entry_is_refused)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	both_leased();
	ck_assert_int_eq(renew_it(store), 0);
	entry_of(store, 3, &bytes);
	for (size_t i = 0; i < bytes.len; i += 7) {
		int r;

		bytes.data[i] ^= 1;
		r = wms_replay(follower, bytes.data, bytes.len, NULL);
		ck_assert(r == -EUCLEAN || r == -EPROTONOSUPPORT);
		ck_assert_int_eq(wms_replay(follower, bytes.data, i, NULL),
				 -EUCLEAN);
		bytes.data[i] ^= 1;
	}
	bytes.data[bytes.len - 1] ^= 1;
	refuses(&bytes, -EUCLEAN, "can't be read");
	bytes.data[0] = 2; /* its version */
	refuses(&bytes, -EPROTONOSUPPORT, "can't be read");
	ck_assert_uint_eq(next_of(follower), 3);
	follow();
	assert_same();
}
END_TEST

static void encode(const struct oplog_change *change, struct buf *ret)
{
	buf_release(ret);
	ck_assert_int_eq(oplog_encode(change, next_of(follower), ret), 0);
}

/* Valid entries, of which none follows on a READY base with a lease. */
START_TEST(an_entry_that_does_not_follow_is_refused)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct oplog_change change = { .type = OPLOG_METADATA_DELETE,
				       .timestamp_ms = 9000,
				       .identity = some_id(BASE),
				       .metadata_generation = 3 };
	struct weight_lease lease = { .lease_id = 1,
				      .identity = some_id(BASE),
				      .holder = "mount",
				      .expires_at_ms = 1,
				      .fenced_metadata_generation = 2 };
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	struct weight_identity id = some_id(BASE);
	struct weight_lineage_record l = {
		.lineage = id.lineage,
		.lineage_metadata_generation = 2,
		.watermark = BASE,
	};

	both_leased();
	encode(&change, &bytes);
	refuses(&bytes, -EUCLEAN, "tombstone");
	change = (struct oplog_change){ .type = OPLOG_LEASE_UPSERT,
					.lease = &lease,
					.last_accessed_at_ms = 9000 };
	encode(&change, &bytes);
	refuses(&bytes, -EUCLEAN, "lease 1 gets shorter");
	lease.lease_id = 2;
	lease.expires_at_ms = 9000;
	lease.fenced_metadata_generation = 1;
	encode(&change, &bytes);
	refuses(&bytes, -EUCLEAN, "lease 2 is fenced at 1");
	change = (struct oplog_change){ .type = OPLOG_LEASE_DELETE,
					.lease_id = 7,
					.identity = id,
					.metadata_generation = 2 };
	encode(&change, &bytes);
	refuses(&bytes, -EUCLEAN, "lease 7 ends, but never began");
	ck_assert_int_eq(wms_get(follower, &id, &m), 0);
	m->metadata_generation = 4;
	change = (struct oplog_change){ .type = OPLOG_METADATA_UPSERT,
					.metadata = m };
	encode(&change, &bytes);
	refuses(&bytes, -EUCLEAN, "metadata generation 4 follows on 2");
	change = (struct oplog_change){ .type = OPLOG_LINEAGE_UPSERT,
					.lineage = &l };
	encode(&change, &bytes);
	refuses(&bytes, -EUCLEAN, "lineage metadata generation 2 follows on 0");
	/* What comes next has lost nothing by it. */
	ck_assert_int_eq(renew_it(store), 0);
	follow();
	assert_same();
}
END_TEST

/* What comes twice, under a number of its own. */
START_TEST(the_same_again_changes_nothing)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct weight_identity id = some_id(BASE);
	struct weight_metadata *m;
	struct weight_lineage_record *l;
	struct oplog_change change = { .type = OPLOG_METADATA_UPSERT };
	struct wms_lease_summary sum;

	ck_assert_int_eq(put_first_claimed(store), 0);
	ck_assert_int_eq(acquire_it(store), 0);
	follow();
	ck_assert_int_eq(wms_get(follower, &id, &m), 0);
	change.metadata = m;
	encode(&change, &bytes);
	ck_assert_int_eq(wms_replay(follower, bytes.data, bytes.len, NULL), 0);
	weight_metadata_free(m);
	ck_assert_int_eq(wms_lineage_get(follower, &id.lineage, &l), 0);
	change = (struct oplog_change){ .type = OPLOG_LINEAGE_UPSERT,
					.lineage = l };
	encode(&change, &bytes);
	ck_assert_int_eq(wms_replay(follower, bytes.data, bytes.len, NULL), 0);
	weight_lineage_record_free(l);
	/* A lease that is released twice. */
	change = (struct oplog_change){ .type = OPLOG_LEASE_DELETE,
					.lease_id = 1,
					.identity = id,
					.metadata_generation = 2 };
	for (int i = 0; i < 2; i++) {
		encode(&change, &bytes);
		ck_assert_int_eq(
			wms_replay(follower, bytes.data, bytes.len, NULL), 0);
	}
	ck_assert_int_eq(wms_lease_summary(follower, &id, 1, &sum), 0);
	ck_assert_uint_eq(sum.active, 0);
	ck_assert_uint_eq(next_of(follower), next_of(store) + 4);
	assert_sound(follower);
}
END_TEST

/* ---- Ids go on from the highest one that was given ---- */

static void follow_operation(uint64_t operation_id, int wanted)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct weight_identity id = some_id(BASE);
	struct weight_operation op;
	struct oplog_change change = { .type = OPLOG_METADATA_UPSERT,
				       .operation_count = 1,
				       .operations = { &op } };

	ck_assert_int_eq(wms_get(follower, &id, &m), 0);
	m->metadata_generation++;
	m->operation_id = operation_id;
	weight_decide_publish_operation(m, &op);
	change.metadata = m;
	encode(&change, &bytes);
	ck_assert_int_eq(wms_replay(follower, bytes.data, bytes.len, NULL),
			 wanted);
}

static void follow_lease(uint64_t lease_id, int wanted)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	const struct weight_lease lease = {
		.lease_id = lease_id,
		.identity = some_id(BASE),
		.holder = "elsewhere",
		.expires_at_ms = 9000,
		.fenced_metadata_generation = 2,
	};
	const struct oplog_change change = { .type = OPLOG_LEASE_UPSERT,
					     .lease = &lease,
					     .last_accessed_at_ms = 1200 };

	encode(&change, &bytes);
	ck_assert_int_eq(wms_replay(follower, bytes.data, bytes.len, NULL),
			 wanted);
}

START_TEST(ids_that_were_given_elsewhere_are_not_given_again)
{
	struct weight_identity id = some_id(BASE);
	struct weight_lease_request lease = { .holder = "h", .ttl_ms = 10 };
	struct weight_operation_request rq = { .target_residency =
						       WEIGHT_COLD };
	struct weight_operation *op;
	struct weight_lease *l;

	ck_assert_int_eq(published_base(store), 0);
	follow();
	follow_lease(5, 0);
	follow_operation(9, 0);
	/* The last one of all leaves no next one. */
	follow_lease(UINT64_MAX, -EUCLEAN);
	follow_operation(UINT64_MAX, -EUCLEAN);
	wms_close(take_ptr(follower));
	follower = open_in(other_dir);
	ck_assert_int_eq(wms_lease_acquire(follower, &id, &lease, 1300, &l), 0);
	ck_assert_uint_eq(l->lease_id, 6);
	weight_lease_free(l);
	ck_assert_int_eq(wms_operation_finish(follower, &id, 9, WEIGHT_HOT, 1,
					      1300, NULL),
			 0);
	ck_assert_int_eq(
		wms_operation_start(follower, &id, &rq, 1300, &op, NULL), 0);
	ck_assert_uint_eq(op->operation_id, 10);
	weight_operation_free(op);
	assert_sound(follower);
}
END_TEST

/*
 * Of one revision, one after the other; here and at who follows.
 * WeightMetadataStore.RestoresMultipleCompletedOperations
 */
START_TEST(finished_operations_stay_for_good)
{
	static const enum weight_residency ways[] = { WEIGHT_HOT, WEIGHT_COLD,
						      WEIGHT_HOT };
	struct weight_identity id = some_id(BASE);
	struct weight_operation *op;

	ck_assert_int_eq(published_base(store), 0);
	for (uint64_t i = 1; i <= ARRAY_LEN(ways); i++) {
		enum weight_residency to = ways[i - 1];

		ck_assert_int_eq(start_so(store, to, 0, false), 0);
		ck_assert_int_eq(wms_operation_finish(store, &id, i, to,
						      to == WEIGHT_HOT, 1300,
						      NULL),
				 0);
	}
	follow();
	assert_same();
	for (uint64_t i = 1; i <= ARRAY_LEN(ways); i++) {
		ck_assert_int_eq(wms_operation_get(follower, "default", i, &op),
				 0);
		ck_assert(weight_operation_is_finished(op));
		ck_assert_int_eq(op->target_residency, ways[i - 1]);
		ck_assert_uint_eq(op->processed_bytes, 1000);
		weight_operation_free(op);
	}
	ck_assert_int_eq(wms_operation_get(follower, "default", 4, &op),
			 -ENOENT);
}
END_TEST

/* ---- What fails ---- */

static struct buf entries[32];
static size_t entry_count;

static int replay_all(void)
{
	cleanup(wms_close_cleanup) struct weight_metadata_store *s = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	int r;

	empty_dir();
	r = wms_open(dir, &s, &why);
	for (size_t i = 0; r == 0 && i < entry_count; i++)
		r = wms_replay(s, entries[i].data, entries[i].len, &why);
	return r < 0 ? r : check_store(s);
}

/* What a child allocates is none of the sweep's business. */
static void disarm(void)
{
	(void)fault_disarm();
}

START_TEST(every_allocation_may_fail)
{
	ck_assert_int_eq(supersede_it(store), -ENOENT);
	ck_assert_int_eq(delete_first_resumed(store), 0);
	ck_assert_int_eq(ready_target(store), -ECANCELED);
	ck_assert_int_eq(commit_so(store, TARGET, 0, 2200), 0);
	ck_assert_int_eq(commit_claim(store), 0);
	entry_count = next_of(store) - 1;
	ck_assert_uint_le(entry_count, ARRAY_LEN(entries));
	for (size_t i = 0; i < entry_count; i++)
		ck_assert_int_eq(wms_oplog_get(store, i + 1, &entries[i]), 0);
	wms_close(take_ptr(store));
	ck_assert_int_eq(pthread_atfork(NULL, NULL, disarm), 0);
	fault_sweep(replay_all);
	for (size_t i = 0; i < entry_count; i++)
		buf_release(&entries[i]);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_metadata_replay");
	TCase *tc = tcase_create("weight_metadata_replay");

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup_both, teardown_both);
	tcase_add_loop_test(tc, each_mutation_is_followed, 0,
			    ARRAY_LEN(mutations));
	tcase_add_loop_test(tc, what_is_followed_is_counted_as_if_it_was_done,
			    0, ARRAY_LEN(mutations));
	tcase_add_test(tc, entries_come_one_after_the_other);
	tcase_add_test(tc, a_damaged_entry_is_refused);
	tcase_add_test(tc, an_entry_that_does_not_follow_is_refused);
	tcase_add_test(tc, the_same_again_changes_nothing);
	tcase_add_test(tc, ids_that_were_given_elsewhere_are_not_given_again);
	tcase_add_test(tc, finished_operations_stay_for_good);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
