/* SPDX-License-Identifier: Apache-2.0 */
/* What the metrics say of records that come, change and go. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/metrics.h"
#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"
#include "suite.h"
#include "weight_metadata_fixture.h"

static struct weight_identity published(uint64_t generation)
{
	struct weight_identity id = id_of(generation);

	stage_and_publish(&id);
	return id;
}

static int move(const struct weight_identity *id, enum weight_residency target,
		bool supersedes, uint64_t now_ms)
{
	const struct weight_operation_request rq = {
		.kind = WEIGHT_MIGRATING,
		.target_residency = target,
		.supersedes = supersedes,
	};

	return wms_operation_start(store, id, &rq, now_ms, NULL, NULL);
}

/* Of the two units and 100 bytes of a revision here. */
static int progress(const struct weight_identity *id, uint64_t operation_id,
		    uint64_t bytes, uint64_t now_ms)
{
	const struct weight_operation_progress p = {
		.processed_units = 1,
		.total_units = 2,
		.processed_bytes = bytes,
		.total_bytes = 100,
		.cursor = "",
		.message = "",
		.availability = WEIGHT_READY,
		.residency = WEIGHT_MIXED,
		.hot_ratio = 0.5,
	};

	return wms_operation_progress(store, id, operation_id, &p, now_ms,
				      NULL);
}

/* In the order of the members: what the metrics are now. */
struct counted {
	uint64_t pending, remaining, processed, failures, finished, duration_ms;
};

static void assert_counted(struct counted c)
{
	ck_assert_uint_eq(metrics_get(METRIC_PENDING_OPERATIONS), c.pending);
	ck_assert_uint_eq(metrics_get(METRIC_MIGRATION_REMAINING_BYTES),
			  c.remaining);
	ck_assert_uint_eq(metrics_get(METRIC_MIGRATION_PROCESSED_BYTES),
			  c.processed);
	ck_assert_uint_eq(metrics_get(METRIC_OPERATION_FAILURES), c.failures);
	ck_assert_uint_eq(metrics_get(METRIC_OPERATIONS_FINISHED), c.finished);
	ck_assert_uint_eq(metrics_get(METRIC_MIGRATION_DURATION_MS),
			  c.duration_ms);
}

/* WeightReconciliation.ProjectsLeaseAndOperationMetrics */
START_TEST(an_operation_is_counted_from_its_start_to_its_end)
{
	struct weight_identity id = published(7);

	ck_assert_int_eq(move(&id, WEIGHT_HOT, false, 100), 0);
	assert_counted((struct counted){ 1, 100, 0, 0, 0, 0 });
	ck_assert_int_eq(progress(&id, 1, 30, 110), 0);
	assert_counted((struct counted){ 1, 70, 30, 0, 0, 0 });
	ck_assert_int_eq(wms_operation_error(store, &id, 1, "m", 120, NULL), 0);
	assert_counted((struct counted){ 1, 70, 30, 1, 0, 0 });
	ck_assert_int_eq(progress(&id, 1, 50, 130), 0);
	assert_counted((struct counted){ 1, 50, 50, 1, 0, 0 });
	ck_assert_int_eq(
		wms_operation_finish(store, &id, 1, WEIGHT_HOT, 1, 140, NULL),
		0);
	assert_counted((struct counted){ 0, 0, 100, 1, 1, 40 });
	/* The next one adds to it. */
	ck_assert_int_eq(move(&id, WEIGHT_COLD, false, 200), 0);
	ck_assert_int_eq(
		wms_operation_finish(store, &id, 2, WEIGHT_COLD, 0, 205, NULL),
		0);
	assert_counted((struct counted){ 0, 0, 200, 1, 2, 45 });
}
END_TEST

START_TEST(a_repeat_and_a_refusal_count_nothing)
{
	struct weight_identity id = published(7);

	ck_assert_int_eq(move(&id, WEIGHT_HOT, false, 100), 0);
	ck_assert_int_eq(progress(&id, 1, 50, 110), 0);
	ck_assert_int_eq(wms_operation_error(store, &id, 1, "m", 120, NULL), 0);
	ck_assert_int_eq(move(&id, WEIGHT_HOT, false, 130), 0);
	ck_assert_int_eq(move(&id, WEIGHT_COLD, false, 130), -EBUSY);
	ck_assert_int_eq(wms_operation_error(store, &id, 1, "m", 130, NULL), 0);
	ck_assert_int_eq(progress(&id, 1, 40, 130), -EEXIST);
	ck_assert_int_eq(progress(&id, 2, 60, 130), -ENOENT);
	ck_assert_int_eq(
		wms_operation_finish(store, &id, 1, WEIGHT_COLD, 0, 130, NULL),
		-EINPROGRESS);
	assert_counted((struct counted){ 1, 50, 50, 1, 0, 0 });
	for (uint64_t i = 0; i < 2; i++)
		ck_assert_int_eq(wms_operation_finish(store, &id, 1, WEIGHT_HOT,
						      1, 140 + i, NULL),
				 0);
	assert_counted((struct counted){ 0, 0, 100, 1, 1, 40 });
}
END_TEST

START_TEST(what_ends_unfinished_leaves_nothing_to_be_done)
{
	struct weight_identity id = published(7), other = published(8);

	ck_assert_int_eq(move(&id, WEIGHT_HOT, false, 100), 0);
	ck_assert_int_eq(move(&other, WEIGHT_HOT, false, 100), 0);
	ck_assert_int_eq(progress(&id, 1, 30, 110), 0);
	assert_counted((struct counted){ 2, 170, 30, 0, 0, 0 });
	/* Another one that takes its place begins anew. */
	ck_assert_int_eq(move(&id, WEIGHT_COLD, true, 120), 0);
	assert_counted((struct counted){ 2, 200, 30, 0, 0, 0 });
	ck_assert_int_eq(progress(&id, 3, 60, 130), 0);
	assert_counted((struct counted){ 2, 140, 90, 0, 0, 0 });
	ck_assert_int_eq(delete_begin(&id, 0, NULL, 140), 0);
	assert_counted((struct counted){ 1, 100, 90, 0, 0, 0 });
	ck_assert_int_eq(delete_begin(&id, 0, NULL, 150), 0);
	assert_counted((struct counted){ 1, 100, 90, 0, 0, 0 });
}
END_TEST

START_TEST(a_publication_may_bring_one)
{
	struct weight_identity id = id_of(7);
	struct weight_publication p = publication_of(&id);
	struct weight_observation seen = { WEIGHT_DEGRADED, WEIGHT_MIXED, 0.5,
					   .beside_operation = true };

	p.converges = true;
	ck_assert_int_eq(wms_stage(store, &id, 10, NULL), 0);
	ck_assert_int_eq(publish_as(store, p, 20, NULL), 0);
	assert_counted((struct counted){ 1, 100, 0, 0, 0, 0 });
	/* What is seen of the revision meanwhile is none of its progress. */
	ck_assert_int_eq(wms_observe(store, &id, &seen, 0, 30, NULL), 0);
	ck_assert_int_eq(wms_mark_durable(store, &id, 40, NULL), 0);
	assert_counted((struct counted){ 1, 100, 0, 0, 0, 0 });
}
END_TEST

START_TEST(what_is_found_at_a_start_is_what_was_left)
{
	struct weight_identity id = published(7), other = published(8);
	struct wms_position at = { .len = 0 };
	struct weight_metadata *m;

	ck_assert_int_eq(move(&id, WEIGHT_HOT, false, 100), 0);
	ck_assert_int_eq(progress(&id, 1, 30, 110), 0);
	ck_assert_int_eq(move(&other, WEIGHT_HOT, false, 100), 0);
	ck_assert_int_eq(wms_operation_finish(store, &other, 2, WEIGHT_HOT, 1,
					      140, NULL),
			 0);
	reopen();
	metrics_reset();
	while (wms_revision_each(store, &at, &m) == 0) {
		wms_count_found(store, m);
		weight_metadata_free(m);
	}
	ck_assert_uint_eq(metrics_get(METRIC_REVISIONS_READY), 2);
	assert_counted((struct counted){ 1, 70, 0, 0, 0, 0 });
	ck_assert_int_eq(
		wms_operation_finish(store, &id, 1, WEIGHT_HOT, 1, 140, NULL),
		0);
	assert_counted((struct counted){ 0, 0, 70, 0, 1, 40 });
}
END_TEST

/* WeightReconciliation.ProjectsLeaseAndOperationMetrics */
START_TEST(swept_leases_are_counted)
{
	struct weight_identity id = published(7);
	size_t removed = 0;

	(void)lease(&id, "a", 10, 100);
	(void)lease(&id, "b", 10, 100);
	(void)lease(&id, "c", 1000, 100);
	ck_assert_int_eq(wms_lease_sweep(store, 109, 9, &removed), 0);
	ck_assert_uint_eq(metrics_get(METRIC_EXPIRED_LEASES), 0);
	ck_assert_int_eq(wms_lease_sweep(store, 110, 1, &removed), 0);
	ck_assert_int_eq(wms_lease_sweep(store, 110, 9, &removed), 0);
	ck_assert_int_eq(wms_lease_sweep(store, 110, 9, &removed), 0);
	ck_assert_uint_eq(metrics_get(METRIC_EXPIRED_LEASES), 2);
}
END_TEST

/* ---- Claims ---- */

static void assert_line(const char *line)
{
	cleanup(buf_release) struct buf text = BUF_INIT;

	ck_assert_int_eq(metrics_write(&text), 0);
	ck_assert_msg(strstr(text.data, line), "no line '%s'", line);
}

START_TEST(a_claim_is_counted_by_mode_and_phase)
{
	enum weight_upsert_mode mode = (enum weight_upsert_mode)(_i % 2);
	enum weight_upsert_phase phase = (enum weight_upsert_phase)(_i / 2);
	char line[128];

	metrics_add(wms_claim_metric(mode, phase), 1);
	(void)snprintf(line, sizeof(line),
		       "\nweightfs_weight_claims{mode=\"%s\",phase=\"%s\"} 1\n",
		       weight_upsert_mode_name(mode),
		       weight_upsert_phase_name(phase));
	assert_line(line);
}
END_TEST

START_TEST(what_befalls_claims_is_counted_by_mode)
{
	metrics_add(wms_claim_failure_metric(WEIGHT_PUT_FIRST), 1);
	metrics_add(wms_claim_failure_metric(WEIGHT_DELETE_FIRST), 2);
	metrics_add(wms_claim_recovery_metric(WEIGHT_PUT_FIRST), 3);
	metrics_add(wms_claim_recovery_metric(WEIGHT_DELETE_FIRST), 4);
	assert_line("claim_failures_total{mode=\"put_first\"} 1\n");
	assert_line("claim_failures_total{mode=\"delete_first\"} 2\n");
	assert_line("claim_recoveries_total{mode=\"put_first\"} 3\n");
	assert_line("claim_recoveries_total{mode=\"delete_first\"} 4\n");
}
END_TEST

START_TEST(a_phase_that_there_is_not_is_a_mistake)
{
	(void)wms_claim_metric(WEIGHT_PUT_FIRST,
			       (enum weight_upsert_phase)(WEIGHT_ABORTED + 1));
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_metadata_count");
	TCase *tc = tcase_create("weight_metadata_count");

	tcase_add_checked_fixture(tc, metrics_reset, NULL);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, an_operation_is_counted_from_its_start_to_its_end);
	tcase_add_test(tc, a_repeat_and_a_refusal_count_nothing);
	tcase_add_test(tc, what_ends_unfinished_leaves_nothing_to_be_done);
	tcase_add_test(tc, a_publication_may_bring_one);
	tcase_add_test(tc, what_is_found_at_a_start_is_what_was_left);
	tcase_add_test(tc, swept_leases_are_counted);
	suite_add_tcase(s, tc);

	tc = tcase_create("claims");
	tcase_add_checked_fixture(tc, metrics_reset, NULL);
	tcase_add_loop_test(tc, a_claim_is_counted_by_mode_and_phase, 0,
			    2 * (WEIGHT_ABORTED + 1));
	tcase_add_test(tc, what_befalls_claims_is_counted_by_mode);
	tcase_add_test_raise_signal(tc, a_phase_that_there_is_not_is_a_mistake,
				    SIGABRT);
	suite_add_tcase(s, tc);
	return s;
}
