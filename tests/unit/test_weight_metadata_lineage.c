/* SPDX-License-Identifier: Apache-2.0 */
/* Replacements in the metadata store, from their claim to their end. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "fault.h"
#include "suite.h"
#include "weight_metadata_fixture.h"
#include "weight_mutations.h"

/* ---- What there is ---- */

/* Whether the store is opened anew between any two steps. */
static bool reopens;

static void between(void)
{
	if (reopens)
		reopen();
	ck_assert_msg(check_store(store) == 0, "%s", found_wrong);
}

static struct weight_lineage_record *the_lineage(void)
{
	struct weight_identity id = some_id(BASE);
	struct weight_lineage_record *l = NULL;

	ck_assert_int_eq(wms_lineage_get(store, &id.lineage, &l), 0);
	return l;
}

static void phase_is(enum weight_upsert_phase phase, uint64_t watermark,
		     const char *error)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = the_lineage();

	ck_assert(l->claimed);
	ck_assert_str_eq(weight_upsert_phase_name(l->claim.phase),
			 weight_upsert_phase_name(phase));
	ck_assert_uint_eq(l->watermark, watermark);
	ck_assert_str_eq(l->claim.error, error);
	ck_assert_str_eq(l->claim.request_id, "request");
}

static void next_is(enum weight_claim_step wanted)
{
	struct weight_lineage_record *l = NULL;
	struct weight_identity id = some_id(BASE);
	enum weight_claim_step step;

	ck_assert_int_eq(wms_claim_step(store, &id.lineage, false, NULL, 1200,
					&step, &l),
			 0);
	weight_lineage_record_free(l);
	ck_assert_int_eq((int)step, (int)wanted);
}

static void generation_is(uint64_t generation, int availability)
{
	struct weight_identity id = some_id(generation);

	ck_assert_int_eq(availability_of(&id), availability);
}

/* Each would be refused for another reason, if it wasn't for the fence. */
static void base_is_fenced(bool fenced)
{
	struct weight_operation_request rq = { .target_residency = WEIGHT_HOT,
					       .expected_metadata_generation =
						       99 };
	struct weight_identity id = some_id(BASE);

	ck_assert_int_eq(wms_policy_update(store, &id, &wants_cold, 99, 1200,
					   NULL, NULL),
			 fenced ? -EBUSY : -ECANCELED);
	ck_assert_int_eq(wms_operation_start(store, &id, &rq, 1200, NULL, NULL),
			 fenced ? -EBUSY : -ECANCELED);
}

/* Of the reader that has lease 1. */
static void reader_is_fenced(bool fenced)
{
	ck_assert_int_eq(acquire_so(store, "mount", 500, 1200),
			 fenced ? -EBUSY : 0);
	ck_assert_int_eq(acquire_so(store, "new", 500, 1200),
			 fenced ? -EBUSY : 0);
	ck_assert_int_eq(wms_lease_renew(store, "default", 1, 500, 1200, NULL),
			 fenced ? -EBUSY : 0);
}

static int delete_of(uint64_t generation, bool by_claim)
{
	const struct wms_delete_request rq = { .by_claim = by_claim };
	struct weight_identity id = some_id(generation);

	return wms_delete_begin(store, &id, &rq, 1200, NULL);
}

static int finish_of(uint64_t generation)
{
	struct weight_identity id = some_id(generation);

	return wms_delete_finish(store, &id, 0, 1200, NULL);
}

static int import_of(uint64_t generation, bool by_claim)
{
	return begin_so(store, generation, &wants_hot, by_claim, 2100);
}

/* A claim with another request id. */
static int compete(uint64_t base, uint64_t target)
{
	struct weight_upsert_request rq = {
		.request_id = "competitor",
		.base = some_id(base),
		.target = some_id(target),
		.expected_base_metadata_generation = 2,
		.described = true,
		.import = some_import(&wants_hot),
	};

	return wms_upsert_begin(store, &rq, 2000, NULL, NULL);
}

/* Nobody gets past a claim that is going on. */
static void others_are_kept_out(void)
{
	ck_assert_int_eq(compete(BASE, TARGET), -EBUSY);
	ck_assert_int_eq(compete(BASE, TARGET + 1), -EBUSY);
	ck_assert_int_eq(import_of(TARGET + 1, false), -EBUSY);
	ck_assert_int_eq(delete_of(BASE, false), -EBUSY);
}

/* ---- PUT_FIRST ---- */

/* From the claim until the target is READY: the base is as it was. */
static void put_first_prepares(void)
{
	ck_assert_int_eq(leased_base(store), 0);
	ck_assert_int_eq(claim_put_first(store), 0);
	between();
	phase_is(WEIGHT_PREPARING_TARGET, BASE, "");
	next_is(WEIGHT_CLAIM_PREPARE);
	others_are_kept_out();
	base_is_fenced(false);
	reader_is_fenced(false);
	ck_assert_int_eq(commit_claim(store), -EINPROGRESS);
	ck_assert_int_eq(import_of(TARGET, true), 0);
	between();
	next_is(WEIGHT_CLAIM_WAITS);
	ck_assert_int_eq(commit_claim(store), -EINPROGRESS);
	ck_assert_int_eq(commit_so(store, TARGET, 1, 2200), 0);
	between();
	next_is(WEIGHT_CLAIM_COMMIT);
	phase_is(WEIGHT_PREPARING_TARGET, BASE, "");
	generation_is(BASE, WEIGHT_READY);
	base_is_fenced(false);
	reader_is_fenced(false);
	/* What is READY is not given up. */
	ck_assert_int_eq(abort_claim(store), -EEXIST);
	ck_assert_int_eq(delete_of(TARGET, false), -EBUSY);
}

/* From the commit until nobody reads the base. */
static void put_first_retires(void)
{
	ck_assert_int_eq(commit_claim(store), 0);
	between();
	phase_is(WEIGHT_RETIRING_BASE, TARGET, "");
	ck_assert_int_eq(commit_claim(store), 0);
	ck_assert_int_eq(abort_claim(store), -EEXIST);
	others_are_kept_out();
	base_is_fenced(true);
	reader_is_fenced(true);
	generation_is(BASE, WEIGHT_READY);
	next_is(WEIGHT_CLAIM_WAITS);
	ck_assert_int_eq(delete_of(BASE, true), -EBUSY);
	/* Who reads on may always go. */
	ck_assert_int_eq(release_it(store), 0);
	next_is(WEIGHT_CLAIM_WAITS);
	ck_assert_int_eq(wms_lease_release(store, "default", 2), 0);
	between();
	next_is(WEIGHT_CLAIM_DELETE);
	ck_assert_int_eq(advance_claim(store), -EBUSY);
}

/*
 * put_first_publishes_target_before_retiring_base
 * WeightRevisionLease.PutFirstFencesBaseAfterTargetCommit
 * put_first_commit_retry_reuses_request_after_uncertain_response
 */
START_TEST(put_first_from_its_claim_to_its_end)
{
	reopens = _i;
	put_first_prepares();
	put_first_retires();
	ck_assert_int_eq(delete_of(BASE, true), 0);
	between();
	generation_is(BASE, WEIGHT_DELETING);
	next_is(WEIGHT_CLAIM_WAITS);
	ck_assert_int_eq(advance_claim(store), -EBUSY);
	ck_assert_int_eq(finish_of(BASE), 0);
	between();
	next_is(WEIGHT_CLAIM_ADVANCE);
	phase_is(WEIGHT_RETIRING_BASE, TARGET, "");
	ck_assert_int_eq(advance_claim(store), 0);
	between();
	phase_is(WEIGHT_COMPLETED, TARGET, "");
	next_is(WEIGHT_CLAIM_DONE);
	/* All of it again is nothing new. */
	ck_assert_int_eq(claim_put_first(store), 0);
	ck_assert_int_eq(commit_claim(store), 0);
	ck_assert_int_eq(advance_claim(store), 0);
	ck_assert_int_eq(abort_claim(store), -EEXIST);
	phase_is(WEIGHT_COMPLETED, TARGET, "");
	/* And the lineage goes on from there. */
	ck_assert_int_eq(compete(BASE, TARGET + 1), -ECANCELED);
	ck_assert_int_eq(import_of(TARGET - 2, false), -ECANCELED);
	ck_assert_int_eq(compete(TARGET, TARGET + 1), 0);
}
END_TEST

/*
 * WeightGroupLifecycle.ReconciliationFinishesPutFirstAbortAfterLineagePublishGap
 * upsert_abort_keeps_put_first_base_and_releases_claim
 * put_first_abort_retries_after_claim_abort_was_not_delivered
 * put_first_payload_failure_keeps_base_ready
 */
START_TEST(put_first_that_is_given_up_leaves_the_base)
{
	struct weight_identity id = some_id(TARGET);

	reopens = _i;
	ck_assert_int_eq(leased_base(store), 0);
	ck_assert_int_eq(claim_put_first(store), 0);
	ck_assert_int_eq(import_of(TARGET, true), 0);
	between();
	/* As its writer does it: first the import, then the claim. */
	ck_assert_int_eq(wms_import_abort(store, &id, 1, 2200, NULL), 0);
	between();
	next_is(WEIGHT_CLAIM_CLEAN);
	ck_assert_int_eq(finish_of(TARGET), 0);
	between();
	/* Were the rest forgotten, it would be done. */
	next_is(WEIGHT_CLAIM_ABORT);
	ck_assert_int_eq(abort_claim(store), 0);
	between();
	phase_is(WEIGHT_ABORTED, BASE, "");
	next_is(WEIGHT_CLAIM_DONE);
	ck_assert_int_eq(abort_claim(store), 0);
	ck_assert_int_eq(commit_claim(store), -EEXIST);
	ck_assert_int_eq(claim_put_first(store), 0);
	phase_is(WEIGHT_ABORTED, BASE, "");
	generation_is(BASE, WEIGHT_READY);
	base_is_fenced(false);
	reader_is_fenced(false);
	/* A tombstone is no target; the next number is one. */
	ck_assert_int_eq(compete(BASE, TARGET), -EEXIST);
	ck_assert_int_eq(compete(BASE, TARGET + 1), 0);
}
END_TEST

/* A target that is staged on a mount, and described by what is there. */
START_TEST(put_first_with_a_staged_target)
{
	struct weight_upsert_request rq = {
		.request_id = "request",
		.base = some_id(BASE),
		.target = some_id(TARGET),
		.expected_base_metadata_generation = 2,
	};

	reopens = _i;
	ck_assert_int_eq(published_base(store), 0);
	ck_assert_int_eq(wms_upsert_begin(store, &rq, 2000, NULL, NULL),
			 -EEXIST);
	ck_assert_int_eq(wms_stage(store, &rq.target, 2000, NULL), 0);
	ck_assert_int_eq(wms_upsert_begin(store, &rq, 2000, NULL, NULL), 0);
	between();
	next_is(WEIGHT_CLAIM_WAITS);
	ck_assert_int_eq(import_of(TARGET, true), -EEXIST);
	ck_assert_int_eq(publish_so(store, TARGET, false, 2100), 0);
	between();
	next_is(WEIGHT_CLAIM_COMMIT);
	ck_assert_int_eq(commit_claim(store), 0);
	between();
	phase_is(WEIGHT_RETIRING_BASE, TARGET, "");
}
END_TEST

START_TEST(a_staged_target_that_is_gone_ends_its_claim)
{
	struct weight_upsert_request rq = {
		.request_id = "request",
		.base = some_id(BASE),
		.target = some_id(TARGET),
		.expected_base_metadata_generation = 2,
	};

	ck_assert_int_eq(published_base(store), 0);
	ck_assert_int_eq(wms_stage(store, &rq.target, 2000, NULL), 0);
	ck_assert_int_eq(wms_upsert_begin(store, &rq, 2000, NULL, NULL), 0);
	ck_assert_int_eq(wms_unstage(store, &rq.target), 0);
	next_is(WEIGHT_CLAIM_ABORT);
}
END_TEST

/* ---- DELETE_FIRST ---- */

/* delete_first_busy_fails_before_target_import */
START_TEST(delete_first_waits_for_nobody)
{
	struct weight_identity id = some_id(BASE);
	struct weight_lineage_record *l;

	ck_assert_int_eq(published_base(store), 0);
	ck_assert_int_eq(acquire_so(store, "mount", 9000, 1200), 0);
	ck_assert_int_eq(claim_delete_first(store), -EBUSY);
	ck_assert_int_eq(wms_lineage_get(store, &id.lineage, &l), -ENOENT);
	ck_assert_int_eq(release_it(store), 0);
	ck_assert_int_eq(start_it(store), 0);
	ck_assert_int_eq(compete(BASE, TARGET), -ECANCELED);
	ck_assert_int_eq(
		wms_upsert_begin(store,
				 &(struct weight_upsert_request){
					 .request_id = "r",
					 .base = id,
					 .target = some_id(TARGET),
					 .mode = WEIGHT_DELETE_FIRST,
					 .expected_base_metadata_generation = 3,
					 .described = true,
					 .import = some_import(&wants_hot) },
				 2000, NULL, NULL),
		-EBUSY);
	ck_assert_int_eq(wms_lineage_get(store, &id.lineage, &l), -ENOENT);
	generation_is(BASE, WEIGHT_READY);
	generation_is(TARGET, -ENOENT);
}
END_TEST

/* From the claim until the base is gone: no target, no way back but one. */
static void delete_first_deletes(void)
{
	ck_assert_int_eq(published_base(store), 0);
	ck_assert_int_eq(claim_delete_first(store), 0);
	between();
	phase_is(WEIGHT_DELETING_BASE, BASE, "");
	next_is(WEIGHT_CLAIM_DELETE);
	others_are_kept_out();
	base_is_fenced(true);
	ck_assert_int_eq(acquire_it(store), -EBUSY);
	ck_assert_int_eq(import_of(TARGET, false), -EBUSY);
	ck_assert_int_eq(import_of(TARGET, true), -EBUSY);
	ck_assert_int_eq(commit_claim(store), -EINPROGRESS);
	ck_assert_int_eq(delete_of(BASE, true), 0);
	between();
	next_is(WEIGHT_CLAIM_WAITS);
	ck_assert_int_eq(import_of(TARGET, true), -EBUSY);
	ck_assert_int_eq(finish_of(BASE), 0);
	between();
	next_is(WEIGHT_CLAIM_ADVANCE);
	ck_assert_int_eq(import_of(TARGET, true), -EBUSY);
	ck_assert_int_eq(advance_claim(store), 0);
	between();
	phase_is(WEIGHT_TARGET_IMPORTING, BASE, "");
	next_is(WEIGHT_CLAIM_PREPARE);
	generation_is(BASE, WEIGHT_DELETED);
}

/* The target gets lost, and nobody but its own request can go on. */
static void delete_first_is_interrupted(void)
{
	struct weight_identity id = some_id(TARGET);

	ck_assert_int_eq(wms_import_abort(store, &id, 1, 2200, NULL), 0);
	between();
	next_is(WEIGHT_CLAIM_CLEAN);
	ck_assert_int_eq(finish_of(TARGET), 0);
	between();
	next_is(WEIGHT_CLAIM_ABORT);
	ck_assert_int_eq(abort_claim(store), 0);
	between();
	phase_is(WEIGHT_TARGET_IMPORTING, BASE, WEIGHT_CLAIM_INTERRUPTED);
	next_is(WEIGHT_CLAIM_WAITS);
	ck_assert_int_eq(compete(BASE, TARGET + 1), -EBUSY);
	ck_assert_int_eq(import_of(TARGET + 1, false), -EBUSY);
	ck_assert_int_eq(import_of(TARGET, false), -EEXIST);
	ck_assert_int_eq(abort_claim(store), 0);
	phase_is(WEIGHT_TARGET_IMPORTING, BASE, WEIGHT_CLAIM_INTERRUPTED);
	generation_is(TARGET, WEIGHT_DELETED);
}

/*
 * delete_first_reclaims_base_before_returning_writer
 * delete_first_payload_failure_recovers_with_same_request
 */
START_TEST(delete_first_from_its_claim_to_its_end)
{
	struct weight_identity id = some_id(TARGET);
	struct weight_metadata *m;

	reopens = _i;
	delete_first_deletes();
	ck_assert_int_eq(import_of(TARGET, true), 0);
	between();
	next_is(WEIGHT_CLAIM_WAITS);
	delete_first_is_interrupted();
	ck_assert_int_eq(claim_delete_first(store), 0);
	between();
	phase_is(WEIGHT_TARGET_IMPORTING, BASE, "");
	/* From its tombstone, with the next metadata generation. */
	ck_assert_int_eq(import_of(TARGET, true), 0);
	between();
	ck_assert_int_eq(wms_get(store, &id, &m), 0);
	ck_assert_int_eq(m->availability, WEIGHT_IMPORTING);
	ck_assert_uint_eq(m->metadata_generation, 4);
	weight_metadata_free(m);
	next_is(WEIGHT_CLAIM_WAITS);
	ck_assert_int_eq(commit_so(store, TARGET, 4, 2300), 0);
	between();
	next_is(WEIGHT_CLAIM_COMMIT);
	phase_is(WEIGHT_TARGET_IMPORTING, BASE, "");
	ck_assert_int_eq(commit_claim(store), 0);
	between();
	phase_is(WEIGHT_COMPLETED, TARGET, "");
	next_is(WEIGHT_CLAIM_DONE);
	ck_assert_int_eq(commit_claim(store), 0);
	ck_assert_int_eq(claim_delete_first(store), 0);
	ck_assert_int_eq(abort_claim(store), -EEXIST);
	/* What is replaced stays replaced. */
	ck_assert_int_eq(import_of(BASE, false), -EEXIST);
	ck_assert_int_eq(acquire_it(store), -EINPROGRESS);
}
END_TEST

START_TEST(delete_first_can_be_given_up_while_the_base_is_there)
{
	reopens = _i;
	ck_assert_int_eq(delete_first_claimed(store), 0);
	between();
	ck_assert_int_eq(abort_claim(store), 0);
	between();
	phase_is(WEIGHT_ABORTED, BASE, "");
	base_is_fenced(false);
	ck_assert_int_eq(acquire_it(store), 0);
	ck_assert_int_eq(release_it(store), 0);
	ck_assert_int_eq(compete(BASE, TARGET), 0);
}
END_TEST

/* ---- Claims that are not to be ---- */

/*
 * WeightGroupLifecycle.ConflictingTargetDoesNotLeaveBlockingLineageClaim
 * WeightGroupLifecycle.NewLineageClaimRevalidatesCurrentBase
 */
START_TEST(a_claim_that_is_refused_leaves_nothing)
{
	struct weight_identity id = some_id(BASE), target = some_id(TARGET);
	cleanup(buf_release) struct buf name = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_lineage_record *l;
	struct wms_oplog_state state;
	struct weight_upsert_request rq = {
		.request_id = "request",
		.base = id,
		.target = target,
		.expected_base_metadata_generation = 2,
		.described = true,
		.import = some_import(&wants_hot),
	};

	ck_assert_int_eq(claim_put_first(store), -ENOENT);
	ck_assert_int_eq(published_base(store), 0);
	ck_assert_int_eq(begin_so(store, TARGET, &wants_hot, false, 1500), 0);
	ck_assert_int_eq(wms_upsert_begin(store, &rq, 2000, NULL, &why),
			 -EEXIST);
	ck_assert_ptr_nonnull(strstr(why.data, "generation 8 is there"));
	rq.expected_base_metadata_generation = 1;
	ck_assert_int_eq(wms_upsert_begin(store, &rq, 2000, NULL, NULL),
			 -ECANCELED);
	rq.expected_base_metadata_generation = 2;
	rq.base = target;
	ck_assert_int_eq(wms_upsert_begin(store, &rq, 2000, NULL, NULL),
			 -ECANCELED);
	rq.target.generation = 9;
	ck_assert_int_eq(wms_upsert_begin(store, &rq, 2000, NULL, NULL),
			 -ECANCELED); /* it is at metadata generation 1 */
	rq.expected_base_metadata_generation = 1;
	ck_assert_int_eq(wms_upsert_begin(store, &rq, 2000, NULL, NULL),
			 -EINPROGRESS);
	rq.base.lineage.revision = "";
	ck_assert_int_eq(wms_upsert_begin(store, &rq, 2000, NULL, NULL),
			 -EINVAL);
	ck_assert_int_eq(wms_lineage_get(store, &id.lineage, &l), -ENOENT);
	ck_assert_int_eq(
		wms_names_next(store, WMS_NAMES_CLAIMS, NULL, 0, "", &name),
		-ENOENT);
	/* Publishing and beginning, and nothing else. */
	ck_assert_int_eq(wms_oplog_state(store, &state), 0);
	ck_assert_uint_eq(state.next, 3);
	ck_assert_int_eq(compete(BASE, TARGET + 1), 0);
}
END_TEST

/* WeightGroupLifecycle.InvalidAbortCannotMutateTargetImport */
START_TEST(only_who_knows_a_claim_ends_it)
{
	static const struct weight_claim_name others[] = {
		{ "other", BASE, TARGET },
		{ "request", BASE - 1, TARGET },
		{ "request", BASE, TARGET + 1 },
	};
	struct weight_identity id = some_id(TARGET);
	struct wms_claim_request rq = { .lineage = &id.lineage };

	ck_assert_int_eq(put_first_claimed(store), 0);
	ck_assert_int_eq(begin_target(store), 0);
	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		rq.name = others[i];
		ck_assert_int_eq(wms_upsert_abort(store, &rq, 2400, NULL, NULL),
				 -EEXIST);
		ck_assert_int_eq(
			wms_upsert_commit(store, &rq, 2400, NULL, NULL),
			-EEXIST);
	}
	generation_is(TARGET, WEIGHT_IMPORTING);
	phase_is(WEIGHT_PREPARING_TARGET, BASE, "");
}
END_TEST

START_TEST(a_target_may_have_to_be_durable)
{
	struct weight_identity id = some_id(TARGET);
	struct wms_claim_request rq = claim_name(&id);
	struct weight_lineage_record *l;
	enum weight_claim_step step;

	rq.wants_durable = true;
	ck_assert_int_eq(put_first_ready(store), 0);
	ck_assert_int_eq(
		wms_claim_step(store, &id.lineage, true, NULL, 1, &step, &l),
		0);
	weight_lineage_record_free(l);
	ck_assert_int_eq(step, WEIGHT_CLAIM_WAITS);
	ck_assert_int_eq(wms_upsert_commit(store, &rq, 2400, NULL, NULL),
			 -EINPROGRESS);
	ck_assert_int_eq(wms_mark_durable(store, &id, 2400, NULL), 0);
	ck_assert_int_eq(wms_upsert_commit(store, &rq, 2400, &l, NULL), 0);
	ck_assert_int_eq(l->claim.phase, WEIGHT_RETIRING_BASE);
	weight_lineage_record_free(l);
}
END_TEST

START_TEST(leases_and_operations_of_the_base_are_minded)
{
	struct weight_identity id = some_id(BASE);
	struct weight_operation_request repair = {
		.kind = WEIGHT_REPAIRING,
		.target_residency = WEIGHT_HOT,
	};
	struct weight_lineage_record *l;
	enum weight_claim_step step;

	ck_assert_int_eq(leased_base(store), 0);
	ck_assert_int_eq(
		wms_operation_start(store, &id, &repair, 1200, NULL, NULL), 0);
	ck_assert_int_eq(
		wms_upsert_begin(store,
				 &(struct weight_upsert_request){
					 .request_id = "request",
					 .base = id,
					 .target = some_id(TARGET),
					 .expected_base_metadata_generation = 3,
					 .described = true,
					 .import = some_import(&wants_hot) },
				 2000, NULL, NULL),
		0);
	ck_assert_int_eq(ready_target(store), 0);
	ck_assert_int_eq(commit_claim(store), 0);
	next_is(WEIGHT_CLAIM_WAITS);
	/* The caller's own leases are none, but a repair still is. */
	ck_assert_int_eq(wms_claim_step(store, &id.lineage, false, "mount",
					1200, &step, &l),
			 0);
	weight_lineage_record_free(l);
	ck_assert_int_eq(step, WEIGHT_CLAIM_WAITS);
	ck_assert_int_eq(
		wms_operation_finish(store, &id, 1, WEIGHT_HOT, 1, 1300, NULL),
		0);
	next_is(WEIGHT_CLAIM_WAITS);
	ck_assert_int_eq(wms_claim_step(store, &id.lineage, false, "mount",
					1200, &step, &l),
			 0);
	weight_lineage_record_free(l);
	ck_assert_int_eq(step, WEIGHT_CLAIM_DELETE);
	/* One that has expired is none either. */
	ck_assert_int_eq(wms_claim_step(store, &id.lineage, false, NULL, 1700,
					&step, &l),
			 0);
	weight_lineage_record_free(l);
	ck_assert_int_eq(step, WEIGHT_CLAIM_DELETE);
}
END_TEST

struct racer {
	pthread_t thread;
	char request_id[16];
	int result;
};

static void *race(void *arg)
{
	struct racer *rc = arg;
	const struct weight_upsert_request rq = {
		.request_id = rc->request_id,
		.base = some_id(BASE),
		.target = some_id(TARGET),
		.expected_base_metadata_generation = 2,
		.described = true,
		.import = some_import(&wants_hot),
	};

	rc->result = wms_upsert_begin(store, &rq, 2000, NULL, NULL);
	return NULL;
}

/* WeightMetadataStore.OnlyOneConcurrentCasCandidatePublishes */
START_TEST(one_of_many_claims_wins)
{
	struct racer racers[8];
	unsigned won = 0;

	ck_assert_int_eq(published_base(store), 0);
	for (size_t i = 0; i < ARRAY_LEN(racers); i++) {
		(void)snprintf(racers[i].request_id,
			       sizeof(racers[i].request_id), "r%zu", i);
		ck_assert_int_eq(pthread_create(&racers[i].thread, NULL, race,
						&racers[i]),
				 0);
	}
	for (size_t i = 0; i < ARRAY_LEN(racers); i++) {
		ck_assert_int_eq(pthread_join(racers[i].thread, NULL), 0);
		ck_assert(racers[i].result == 0 || racers[i].result == -EBUSY);
		won += racers[i].result == 0;
	}
	ck_assert_uint_eq(won, 1);
	ck_assert_int_eq(check_store(store), 0);
}
END_TEST

/* ---- Finding lineages ---- */

START_TEST(lineages_are_found_one_by_one)
{
	struct weight_identity id = some_id(BASE);
	struct wms_position at = { .len = 0 };
	struct weight_lineage_record *l;
	enum weight_claim_step step;
	unsigned seen = 0;

	ck_assert_int_eq(wms_lineage_each(store, &at, &l), -ENOENT);
	ck_assert_int_eq(wms_lineage_get(store, &id.lineage, &l), -ENOENT);
	ck_assert_int_eq(
		wms_claim_step(store, &id.lineage, false, NULL, 1, &step, &l),
		-ENOENT);
	ck_assert_int_eq(commit_claim(store), -ENOENT);
	ck_assert_int_eq(abort_claim(store), -ENOENT);
	ck_assert_int_eq(advance_claim(store), -ENOENT);
	ck_assert_int_eq(put_first_claimed(store), 0);
	id.lineage.revision = "";
	ck_assert_int_eq(wms_lineage_get(store, &id.lineage, &l), -EINVAL);
	ck_assert_int_eq(
		wms_claim_step(store, &id.lineage, false, NULL, 1, &step, &l),
		-EINVAL);
	ck_assert_int_eq(wms_claim_advance(store, &id.lineage, 1, NULL),
			 -EINVAL);
	for (at.len = 0; wms_lineage_each(store, &at, &l) == 0; seen++)
		weight_lineage_record_free(l);
	ck_assert_uint_eq(seen, 1);
}
END_TEST

static int garble_body(struct meta_txn *txn, void *arg)
{
	const struct weight_identity id = some_id(BASE);
	struct digest key;

	(void)arg;
	ck_assert_int_eq(weight_lineage_hash(&id.lineage, &key), 0);
	return meta_put(txn, META_DB_LINEAGE, key.bytes, sizeof(key.bytes),
			"\1\0garbage", 9);
}

START_TEST(a_damaged_lineage_is_told_and_does_not_hide_others)
{
	struct weight_identity id = some_id(BASE);
	struct wms_position at = { .len = 0 };
	struct weight_upsert_request rq = {
		.request_id = "request",
		.base = some_id(1),
		.target = some_id(2),
		.expected_base_metadata_generation = 2,
		.described = true,
		.import = some_import(&wants_hot),
	};
	struct weight_lineage_record *l;
	unsigned good = 0, bad = 0;
	int r;

	ck_assert_int_eq(put_first_claimed(store), 0);
	for (unsigned i = 0; i < 2; i++) {
		rq.base.lineage.revision = i ? "a" : "b";
		rq.target.lineage = rq.base.lineage;
		stage_and_publish(&rq.base);
		ck_assert_int_eq(wms_upsert_begin(store, &rq, 1, NULL, NULL),
				 0);
	}
	meddle(garble_body, NULL);
	store = must_open();
	while ((r = wms_lineage_each(store, &at, &l)) != -ENOENT) {
		if (r == 0)
			weight_lineage_record_free(l);
		good += r == 0;
		bad += r == -EUCLEAN;
	}
	ck_assert_uint_eq(good, 2);
	ck_assert_uint_eq(bad, 1);
	/* Nobody knows what its claim allows, so nobody gets past it. */
	ck_assert_int_eq(wms_lineage_get(store, &id.lineage, &l), -EUCLEAN);
	ck_assert_int_eq(acquire_it(store), -EUCLEAN);
	ck_assert_int_eq(import_of(TARGET, false), -EUCLEAN);
	ck_assert_int_eq(delete_of(BASE, false), -EUCLEAN);
	ck_assert_int_eq(commit_claim(store), -EUCLEAN);
}
END_TEST

/* ---- Names ---- */

static char long_name[WMS_NAME_MAX + 2];

static void make_tombstone(const struct weight_lineage *l)
{
	struct weight_identity id = { *l, 1 };

	stage_and_publish(&id);
	ck_assert_int_eq(delete_begin(&id, 0, NULL, 30), 0);
	ck_assert_int_eq(wms_delete_finish(store, &id, 0, 40, NULL), 0);
}

/* All names at one place, in their order, with a space after each. */
static void names_are(enum wms_names names, const char *const parts[],
		      unsigned depth, const char *wanted)
{
	cleanup(buf_release) struct buf all = BUF_INIT;
	char after[WMS_NAME_MAX + 1] = "";
	int r;

	for (;;) {
		cleanup(buf_release) struct buf name = BUF_INIT;

		r = wms_names_next(store, names, parts, depth, after, &name);
		if (r < 0)
			break;
		ck_assert_uint_lt(name.len, sizeof(after));
		(void)snprintf(after, sizeof(after), "%s", name.data);
		ck_assert_int_eq(buf_printf(&all, "%s ", name.data), 0);
	}
	ck_assert_int_eq(r, -ENOENT);
	ck_assert_str_eq(all.data, wanted);
}

START_TEST(names_are_listed_level_by_level)
{
	static const struct weight_lineage lineages[] = {
		{ "t", "n", "r", "b" },
		{ "t", "n", "r", "a" },
		{ "t", "n", "r", "ab" },
		{ "t", "n", "r", "a/\xc3\xa4" },
		{ "t", "n", "q", "main" },
		{ "t", "m", "r", "main" },
		{ "s", "n", "r", "main" },
		{ "t", "n", "r", "A" },
		/* Joined, this would be another one. */
		{ "tn", "r", "b", "x" },
	};
	const char *const at[] = { "t", "n", "r" };
	const char *const elsewhere[] = { "t", "n", "x" };

	for (size_t i = 0; i < ARRAY_LEN(lineages); i++)
		make_tombstone(&lineages[i]);
	make_tombstone(&(struct weight_lineage){ "t", "n", "r", "abc" });
	reopen();
	names_are(WMS_NAMES_TOMBSTONES, NULL, 0, "s t tn ");
	names_are(WMS_NAMES_TOMBSTONES, at, 1, "m n ");
	names_are(WMS_NAMES_TOMBSTONES, at, 2, "q r ");
	names_are(WMS_NAMES_TOMBSTONES, at, 3, "A a a/\xc3\xa4 ab abc b ");
	names_are(WMS_NAMES_TOMBSTONES, elsewhere, 3, "");
	/* Tombstones are no claims. */
	names_are(WMS_NAMES_CLAIMS, NULL, 0, "");
}
END_TEST

START_TEST(claims_are_listed_whatever_became_of_them)
{
	const char *const at[] = { "default", "ns", "demo" };

	ck_assert_int_eq(put_first_claimed(store), 0);
	names_are(WMS_NAMES_CLAIMS, NULL, 0, "default ");
	names_are(WMS_NAMES_CLAIMS, at, 3, "main ");
	ck_assert_int_eq(abort_claim(store), 0);
	reopen();
	names_are(WMS_NAMES_CLAIMS, at, 1, "ns ");
	names_are(WMS_NAMES_CLAIMS, at, 2, "demo ");
	names_are(WMS_NAMES_CLAIMS, at, 3, "main ");
	names_are(WMS_NAMES_TOMBSTONES, NULL, 0, "");
}
END_TEST

START_TEST(a_name_may_be_so_long)
{
	struct weight_lineage l = { "t", "n", "r", long_name };
	const char *const at[] = { "t", "n", "r" };
	cleanup(buf_release) struct buf name = BUF_INIT;

	memset(long_name, 'x', WMS_NAME_MAX);
	long_name[WMS_NAME_MAX] = '\0';
	make_tombstone(&l);
	ck_assert_int_eq(
		wms_names_next(store, WMS_NAMES_TOMBSTONES, at, 3, "", &name),
		0);
	ck_assert_str_eq(name.data, long_name);
	ck_assert_int_eq(wms_names_next(store, WMS_NAMES_TOMBSTONES, at, 3,
					long_name, &name),
			 -ENOENT);
	/* What is appended to stays in front of it. */
	buf_release(&name);
	ck_assert_int_eq(buf_append(&name, "in/", 3), 0);
	ck_assert_int_eq(
		wms_names_next(store, WMS_NAMES_TOMBSTONES, NULL, 0, "", &name),
		0);
	ck_assert_str_eq(name.data, "in/t");
	long_name[WMS_NAME_MAX] = 'x';
	ck_assert_int_eq(wms_names_next(store, WMS_NAMES_TOMBSTONES, at, 3,
					long_name, &name),
			 -EINVAL);
	ck_assert_int_eq(
		wms_names_next(store, WMS_NAMES_TOMBSTONES, at, 4, "", &name),
		-EINVAL);
	/* A lineage with a longer part is not listed, and no fault. */
	l.resource = long_name;
	l.revision = "main";
	make_tombstone(&l);
	names_are(WMS_NAMES_TOMBSTONES, at, 2, "r ");
	ck_assert_msg(check_store(store) == 0, "%s", found_wrong);
}
END_TEST

/* ---- What fails ---- */

static int short_life(void)
{
	cleanup(wms_close_cleanup) struct weight_metadata_store *s = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	const char *const at[] = { "default", "ns", "demo" };
	struct weight_lineage_record *l = NULL;
	struct wms_position position = { .len = 0 };
	struct weight_identity id = some_id(BASE);
	enum weight_claim_step step;
	int r;

	empty_dir();
	if ((r = wms_open(dir, &s, &why)) < 0 ||
	    (r = put_first_claimed(s)) < 0 || (r = begin_target(s)) < 0 ||
	    (r = abort_claim(s)) < 0 ||
	    (r = wms_names_next(s, WMS_NAMES_CLAIMS, at, 3, "", &why)) < 0 ||
	    (r = wms_claim_step(s, &id.lineage, true, "h", 1, &step, &l)) < 0)
		return r;
	weight_lineage_record_free(l);
	r = wms_lineage_each(s, &position, &l);
	if (r < 0)
		return r;
	weight_lineage_record_free(l);
	return check_store(s);
}

/* What a child allocates is none of the sweep's business. */
static void disarm(void)
{
	(void)fault_disarm();
}

START_TEST(every_allocation_may_fail)
{
	wms_close(take_ptr(store));
	ck_assert_int_eq(pthread_atfork(NULL, NULL, disarm), 0);
	fault_sweep(short_life);
}
END_TEST

static void add_names(Suite *s)
{
	TCase *tc = tcase_create("names");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, lineages_are_found_one_by_one);
	tcase_add_test(tc, a_damaged_lineage_is_told_and_does_not_hide_others);
	tcase_add_test(tc, names_are_listed_level_by_level);
	tcase_add_test(tc, claims_are_listed_whatever_became_of_them);
	tcase_add_test(tc, a_name_may_be_so_long);
	suite_add_tcase(s, tc);
}

Suite *suite(void)
{
	Suite *s = suite_create("weight_metadata_lineage");
	TCase *tc = tcase_create("claims");

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, put_first_from_its_claim_to_its_end, 0, 2);
	tcase_add_loop_test(tc, put_first_that_is_given_up_leaves_the_base, 0,
			    2);
	tcase_add_loop_test(tc, put_first_with_a_staged_target, 0, 2);
	tcase_add_test(tc, a_staged_target_that_is_gone_ends_its_claim);
	tcase_add_test(tc, delete_first_waits_for_nobody);
	tcase_add_loop_test(tc, delete_first_from_its_claim_to_its_end, 0, 2);
	tcase_add_loop_test(
		tc, delete_first_can_be_given_up_while_the_base_is_there, 0, 2);
	tcase_add_test(tc, a_claim_that_is_refused_leaves_nothing);
	tcase_add_test(tc, only_who_knows_a_claim_ends_it);
	tcase_add_test(tc, a_target_may_have_to_be_durable);
	tcase_add_test(tc, leases_and_operations_of_the_base_are_minded);
	tcase_add_test(tc, one_of_many_claims_wins);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	add_names(s);
	return s;
}
