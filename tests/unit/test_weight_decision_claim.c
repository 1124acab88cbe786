/* SPDX-License-Identifier: Apache-2.0 */
/* What a claim needs next and what it keeps others from, and whole lives. */
#include "core/util.h"
#include "core/weight_decision.h"
#include "suite.h"
#include "weight_claim_fixture.h"

/* ---- The next step ---- */

/* clang-format off */
#define NONE (-1)

static const struct {
	int target; /* its availability, or NONE */
	bool durable;
	bool wants_durable;
	bool staged;
	bool described;
	enum weight_claim_step step;
	enum weight_claim_step interrupted; /* after an abort, if that may be */
} target_steps[] = {
	{ WEIGHT_READY, true, true, false, true,
	  WEIGHT_CLAIM_COMMIT, WEIGHT_CLAIM_COMMIT },
	{ WEIGHT_READY, true, false, false, false,
	  WEIGHT_CLAIM_COMMIT, WEIGHT_CLAIM_COMMIT },
	{ WEIGHT_READY, false, false, false, true,
	  WEIGHT_CLAIM_COMMIT, WEIGHT_CLAIM_COMMIT },
	{ WEIGHT_READY, false, true, false, true,
	  WEIGHT_CLAIM_WAITS, WEIGHT_CLAIM_WAITS },
	{ WEIGHT_DEGRADED, true, true, false, true,
	  WEIGHT_CLAIM_WAITS, WEIGHT_CLAIM_WAITS },
	{ WEIGHT_DEGRADED, true, false, false, false,
	  WEIGHT_CLAIM_WAITS, WEIGHT_CLAIM_WAITS },
	{ WEIGHT_IMPORTING, false, false, false, true,
	  WEIGHT_CLAIM_WAITS, WEIGHT_CLAIM_WAITS },
	{ NONE, false, false, true, false,
	  WEIGHT_CLAIM_WAITS, WEIGHT_CLAIM_WAITS },
	{ NONE, false, false, true, true,
	  WEIGHT_CLAIM_WAITS, WEIGHT_CLAIM_WAITS },
	{ WEIGHT_DELETING, false, false, false, true,
	  WEIGHT_CLAIM_CLEAN, WEIGHT_CLAIM_CLEAN },
	{ WEIGHT_DELETING, false, true, false, false,
	  WEIGHT_CLAIM_CLEAN, WEIGHT_CLAIM_CLEAN },
	{ WEIGHT_DELETED, false, false, false, true,
	  WEIGHT_CLAIM_ABORT, WEIGHT_CLAIM_WAITS },
	{ WEIGHT_DELETED, false, true, false, false,
	  WEIGHT_CLAIM_ABORT, WEIGHT_CLAIM_WAITS },
	{ WEIGHT_DELETED, false, false, true, false,
	  WEIGHT_CLAIM_WAITS, WEIGHT_CLAIM_WAITS },
	{ WEIGHT_READY, true, true, true, false,
	  WEIGHT_CLAIM_COMMIT, WEIGHT_CLAIM_COMMIT },
	{ NONE, false, true, false, true,
	  WEIGHT_CLAIM_PREPARE, WEIGHT_CLAIM_WAITS },
	{ NONE, false, true, false, false,
	  WEIGHT_CLAIM_ABORT, WEIGHT_CLAIM_WAITS },
};
/* clang-format on */

static void claim_of_target(struct world *w, int row,
			    enum weight_upsert_mode mode,
			    enum weight_upsert_phase phase)
{
	claim_is(w, mode, phase);
	if (target_steps[row].described)
		return;
	w->lineage.claim.described = false;
	w->lineage.claim.import = (struct weight_import){ .payload_count = 0 };
}

START_TEST(a_claim_follows_its_target)
{
	struct world w;

	world_init(&w);
	w.state.wants_durable = target_steps[_i].wants_durable;
	if (target_steps[_i].staged)
		w.state.staged = &w.staged;
	if (target_steps[_i].target != NONE)
		target_is(&w,
			  (enum weight_availability)target_steps[_i].target);
	w.target.durable = target_steps[_i].durable;
	claim_of_target(&w, _i, WEIGHT_PUT_FIRST, WEIGHT_PREPARING_TARGET);
	/* Whoever uses the base is of no concern yet. */
	w.state.base_leases = 1;
	next_is(&w, target_steps[_i].step);
	w.state.base = NULL;
	claim_of_target(&w, _i, WEIGHT_DELETE_FIRST, WEIGHT_TARGET_IMPORTING);
	next_is(&w, target_steps[_i].step);
	interrupt(&w);
	next_is(&w, target_steps[_i].interrupted);
}
END_TEST

/* clang-format off */
static const struct {
	int base; /* its availability, or NONE */
	uint64_t leases;
	bool operates;
	bool blocks;
	enum weight_claim_step step;
} base_steps[] = {
	{ NONE,            0, false, false, WEIGHT_CLAIM_ADVANCE },
	{ WEIGHT_DELETED,  0, false, false, WEIGHT_CLAIM_ADVANCE },
	{ WEIGHT_READY,    1, false, false, WEIGHT_CLAIM_WAITS },
	{ WEIGHT_DEGRADED, 2, false, false, WEIGHT_CLAIM_WAITS },
	{ WEIGHT_READY,    0, true,  true,  WEIGHT_CLAIM_WAITS },
	{ WEIGHT_READY,    1, true,  true,  WEIGHT_CLAIM_WAITS },
	{ WEIGHT_READY,    0, true,  false, WEIGHT_CLAIM_DELETE },
	{ WEIGHT_READY,    1, true,  false, WEIGHT_CLAIM_WAITS },
	{ WEIGHT_READY,    0, false, false, WEIGHT_CLAIM_DELETE },
	{ WEIGHT_DEGRADED, 0, false, false, WEIGHT_CLAIM_DELETE },
	{ WEIGHT_DELETING, 0, false, false, WEIGHT_CLAIM_WAITS },
};
/* clang-format on */

START_TEST(a_claim_follows_its_base)
{
	struct world w;

	world_init(&w);
	w.state.base_leases = base_steps[_i].leases;
	if (base_steps[_i].base == NONE)
		w.state.base = NULL;
	else
		w.base.availability =
			(enum weight_availability)base_steps[_i].base;
	if (base_steps[_i].operates)
		w.base.operation_id = 3;
	claim_is(&w, WEIGHT_DELETE_FIRST, WEIGHT_DELETING_BASE);
	ck_assert_int_eq(
		(int)weight_decide_claim_step(&w.state, base_steps[_i].blocks),
		(int)base_steps[_i].step);
	/* The target has nothing to say here. */
	target_is(&w, WEIGHT_READY);
	claim_is(&w, WEIGHT_PUT_FIRST, WEIGHT_RETIRING_BASE);
	ck_assert_int_eq(
		(int)weight_decide_claim_step(&w.state, base_steps[_i].blocks),
		(int)base_steps[_i].step);
}
END_TEST

START_TEST(what_has_ended_needs_nothing)
{
	struct world w;

	world_init(&w);
	next_is(&w, WEIGHT_CLAIM_DONE);
	for (int mode = 0; mode < 2; mode++) {
		claim_is(&w, (enum weight_upsert_mode)mode, WEIGHT_COMPLETED);
		next_is(&w, WEIGHT_CLAIM_DONE);
		claim_is(&w, (enum weight_upsert_mode)mode, WEIGHT_ABORTED);
		next_is(&w, WEIGHT_CLAIM_DONE);
	}
}
END_TEST

/* ---- Beside a claim ---- */

/* clang-format off */
#define CLAIM(mode, phase) WEIGHT_##mode, WEIGHT_##phase

static const struct {
	enum weight_upsert_mode mode;
	enum weight_upsert_phase phase;
	/* Of generations 6 to 9: whether an import may begin, or a removal. */
	bool import[4];
	bool removal[4];
	bool removal_by_claim[4];
} neighbours[] = {
	{ CLAIM(PUT_FIRST, PREPARING_TARGET),
	  { 0, 0, 1, 0 }, { 1, 0, 0, 1 }, { 1, 1, 1, 1 } },
	{ CLAIM(PUT_FIRST, RETIRING_BASE),
	  { 0, 0, 1, 0 }, { 1, 0, 0, 1 }, { 1, 1, 1, 1 } },
	{ CLAIM(PUT_FIRST, COMPLETED),
	  { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 } },
	{ CLAIM(PUT_FIRST, ABORTED),
	  { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 } },
	{ CLAIM(DELETE_FIRST, DELETING_BASE),
	  { 0, 0, 0, 0 }, { 1, 0, 0, 1 }, { 1, 1, 1, 1 } },
	{ CLAIM(DELETE_FIRST, TARGET_IMPORTING),
	  { 0, 0, 1, 0 }, { 1, 0, 0, 1 }, { 1, 1, 1, 1 } },
	{ CLAIM(DELETE_FIRST, COMPLETED),
	  { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 } },
	{ CLAIM(DELETE_FIRST, ABORTED),
	  { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 } },
};
/* clang-format on */

static void beside(const struct weight_lineage_record *l, uint64_t generation,
		   bool is_import, bool by_claim, bool allowed)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	int r = weight_decide_beside_claim(l, generation, is_import, by_claim,
					   &why);

	ck_assert_msg(r == (allowed ? 0 : -EBUSY), "%s of generation %d%s: %d",
		      is_import ? "import" : "removal", (int)generation,
		      by_claim ? " by the claim" : "", r);
	ck_assert_int_eq(why.len == 0, allowed);
	ck_assert_int_eq(weight_decide_beside_claim(l, generation, is_import,
						    by_claim, NULL),
			 r);
}

START_TEST(a_claim_keeps_others_out)
{
	struct world w;

	world_init(&w);
	for (size_t i = 0; i < 4; i++) {
		uint64_t generation = 6 + i;

		beside(NULL, generation, true, false, true);
		beside(NULL, generation, false, false, true);
		claim_is(&w, neighbours[_i].mode, neighbours[_i].phase);
		beside(&w.lineage, generation, true, false,
		       neighbours[_i].import[i]);
		beside(&w.lineage, generation, true, true,
		       neighbours[_i].import[i]);
		beside(&w.lineage, generation, false, false,
		       neighbours[_i].removal[i]);
		beside(&w.lineage, generation, false, true,
		       neighbours[_i].removal_by_claim[i]);
		w.lineage.claimed = false;
		beside(&w.lineage, generation, true, false, true);
	}
}
END_TEST

START_TEST(what_was_interrupted_waits_for_its_request)
{
	struct world w;

	world_init(&w);
	claim_is(&w, WEIGHT_DELETE_FIRST, WEIGHT_TARGET_IMPORTING);
	beside(&w.lineage, 8, true, true, true);
	interrupt(&w);
	beside(&w.lineage, 8, true, true, false);
}
END_TEST

/* ---- Whole lives ---- */

static struct weight_upsert_request competitor(enum weight_upsert_mode mode)
{
	struct weight_upsert_request rq = request(mode);

	rq.request_id = "request-2";
	rq.target.generation = 9;
	return rq;
}

/* As the store deletes a revision: by the decisions about that. */
static void remove_revision(struct weight_metadata *m)
{
	struct weight_delete_state state = { .metadata = m };
	struct weight_metadata next;
	bool changed;

	ck_assert_int_eq(
		weight_decide_delete_begin(&state, 0, 3000, &next, &changed),
		0);
	*m = next;
	ck_assert_int_eq(
		weight_decide_delete_finish(m, 0, 3000, &next, &changed), 0);
	*m = next;
}

/* What a new reader of the base, and one that goes on, are told. */
static void readers_of_base_get(const struct world *w, int err)
{
	struct weight_lease held = { .lease_id = 1,
				     .identity = w->base.identity,
				     .holder = "h",
				     .expires_at_ms = 9000,
				     .fenced_metadata_generation = 1 };
	bool fenced = weight_lineage_fences(w->state.lineage, 7);
	struct weight_lease_state state = { .metadata = &w->base,
					    .fenced = fenced,
					    .next_lease_id = 2 };
	struct weight_lease_request rq = { .holder = "new", .ttl_ms = 1 };
	struct weight_lease l;
	bool is_new;

	ck_assert_int_eq(weight_decide_lease_acquire(&state, &w->base.identity,
						     &rq, 3000, &l, &is_new),
			 err);
	ck_assert_int_eq(weight_decide_lease_renew(&held, "default", fenced, 1,
						   3000, &l),
			 err);
}

/*
 * put_first_publishes_target_before_retiring_base,
 * WeightRevisionLease.PutFirstFencesBaseAfterTargetCommit,
 * put_first_commit_retry_reuses_request_after_uncertain_response
 */
START_TEST(put_first_retires_the_base_when_the_target_is_ready)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct world w;

	world_init(&w);
	w.state.wants_durable = true;
	w.state.base_leases = 1;
	ck_assert(does(&w, BEGIN, &rq, NULL));
	target_is(&w, WEIGHT_IMPORTING);
	w.target.durable = false;
	next_is(&w, WEIGHT_CLAIM_WAITS);
	readers_of_base_get(&w, 0);
	target_is(&w, WEIGHT_READY);
	next_is(&w, WEIGHT_CLAIM_WAITS);
	refuses(&w, COMMIT, NULL, &request_1, -EINPROGRESS, "durable");
	phase_is(&w, WEIGHT_PREPARING_TARGET, 7);
	w.target.durable = true;
	next_is(&w, WEIGHT_CLAIM_COMMIT);
	ck_assert(does(&w, COMMIT, NULL, &request_1));
	phase_is(&w, WEIGHT_RETIRING_BASE, 8);
	readers_of_base_get(&w, -EBUSY);
	ck_assert(!does(&w, COMMIT, NULL, &request_1));
	/* Who reads it still is waited for. */
	next_is(&w, WEIGHT_CLAIM_WAITS);
	w.state.base_leases = 0;
	next_is(&w, WEIGHT_CLAIM_DELETE);
	remove_revision(&w.base);
	next_is(&w, WEIGHT_CLAIM_ADVANCE);
	ck_assert(does(&w, ADVANCE, NULL, NULL));
	phase_is(&w, WEIGHT_COMPLETED, 8);
	next_is(&w, WEIGHT_CLAIM_DONE);
	ck_assert(!does(&w, COMMIT, NULL, &request_1));
	ck_assert(!does(&w, BEGIN, &rq, NULL));
}
END_TEST

/* delete_first_reclaims_base_before_returning_writer */
START_TEST(delete_first_lets_the_target_in_when_the_base_is_gone)
{
	struct weight_upsert_request rq = request(WEIGHT_DELETE_FIRST);
	struct world w;

	world_init(&w);
	ck_assert(does(&w, BEGIN, &rq, NULL));
	readers_of_base_get(&w, -EBUSY);
	beside(&w.lineage, 8, true, true, false);
	next_is(&w, WEIGHT_CLAIM_DELETE);
	refuses(&w, ADVANCE, NULL, NULL, -EBUSY, "");
	remove_revision(&w.base);
	next_is(&w, WEIGHT_CLAIM_ADVANCE);
	ck_assert(does(&w, ADVANCE, NULL, NULL));
	phase_is(&w, WEIGHT_TARGET_IMPORTING, 7);
	beside(&w.lineage, 8, true, true, true);
	next_is(&w, WEIGHT_CLAIM_PREPARE);
	target_is(&w, WEIGHT_IMPORTING);
	refuses(&w, COMMIT, NULL, &request_1, -EINPROGRESS, "is importing");
	target_is(&w, WEIGHT_READY);
	ck_assert(does(&w, COMMIT, NULL, &request_1));
	phase_is(&w, WEIGHT_COMPLETED, 8);
	ck_assert(!does(&w, COMMIT, NULL, &request_1));
}
END_TEST

/*
 * upsert_abort_keeps_put_first_base_and_releases_claim,
 * put_first_payload_failure_keeps_base_ready, weight_upsert_tcp_e2e,
 * put_first_abort_retries_after_claim_abort_was_not_delivered
 */
START_TEST(an_abort_of_put_first_keeps_the_base)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct weight_upsert_request next = competitor(WEIGHT_PUT_FIRST);
	struct world w;

	world_init(&w);
	ck_assert(does(&w, BEGIN, &rq, NULL));
	target_is(&w, WEIGHT_IMPORTING);
	refuses(&w, BEGIN, &next, NULL, -EBUSY, "request-1");
	ck_assert(does(&w, ABORT, NULL, &request_1));
	phase_is(&w, WEIGHT_ABORTED, 7);
	readers_of_base_get(&w, 0);
	ck_assert(!does(&w, ABORT, NULL, &request_1));
	refuses(&w, COMMIT, NULL, &request_1, -EEXIST, "another id");
	/* Who repeats the request hears of its end. */
	ck_assert(!does(&w, BEGIN, &rq, NULL));
	w.state.target = NULL;
	ck_assert(does(&w, BEGIN, &next, NULL));
	phase_is(&w, WEIGHT_PREPARING_TARGET, 7);
}
END_TEST

START_TEST(an_abort_of_delete_first_in_time_keeps_the_base)
{
	struct weight_upsert_request rq = request(WEIGHT_DELETE_FIRST);
	struct world w;

	world_init(&w);
	ck_assert(does(&w, BEGIN, &rq, NULL));
	ck_assert(does(&w, ABORT, NULL, &request_1));
	phase_is(&w, WEIGHT_ABORTED, 7);
	readers_of_base_get(&w, 0);
	next_is(&w, WEIGHT_CLAIM_DONE);
}
END_TEST

/* delete_first_payload_failure_recovers_with_same_request */
START_TEST(an_interrupted_import_is_resumed_by_its_own_request)
{
	struct weight_upsert_request rq = request(WEIGHT_DELETE_FIRST);
	struct weight_upsert_request other = competitor(WEIGHT_DELETE_FIRST);
	struct world w;

	world_init(&w);
	ck_assert(does(&w, BEGIN, &rq, NULL));
	remove_revision(&w.base);
	ck_assert(does(&w, ADVANCE, NULL, NULL));
	/* Part of the payload came, and was cleaned up. */
	target_is(&w, WEIGHT_DELETING);
	next_is(&w, WEIGHT_CLAIM_CLEAN);
	target_is(&w, WEIGHT_DELETED);
	next_is(&w, WEIGHT_CLAIM_ABORT);
	ck_assert(does(&w, ABORT, NULL, &request_1));
	phase_is(&w, WEIGHT_TARGET_IMPORTING, 7);
	ck_assert_str_eq(w.lineage.claim.error, WEIGHT_CLAIM_INTERRUPTED);
	next_is(&w, WEIGHT_CLAIM_WAITS);
	ck_assert(!does(&w, ABORT, NULL, &request_1));
	refuses(&w, BEGIN, &other, NULL, -EBUSY, "only the same request");
	beside(&w.lineage, 9, true, false, false);
	ck_assert(does(&w, BEGIN, &rq, NULL));
	ck_assert_str_eq(w.lineage.claim.error, "");
	ck_assert(!does(&w, BEGIN, &rq, NULL));
	target_is(&w, WEIGHT_IMPORTING);
	next_is(&w, WEIGHT_CLAIM_WAITS);
	target_is(&w, WEIGHT_READY);
	ck_assert(does(&w, COMMIT, NULL, &request_1));
	phase_is(&w, WEIGHT_COMPLETED, 8);
}
END_TEST

/*
 * WeightGroupLifecycle.ReconciliationFinishesPutFirstAbortAfterLineagePublishGap:
 * the import was aborted, and a crash kept the claim from hearing of it.
 */
START_TEST(an_abort_that_the_claim_didnt_hear_of_is_finished)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct weight_upsert_request next = competitor(WEIGHT_PUT_FIRST);
	struct world w;

	world_init(&w);
	ck_assert(does(&w, BEGIN, &rq, NULL));
	target_is(&w, WEIGHT_DELETING);
	next_is(&w, WEIGHT_CLAIM_CLEAN);
	target_is(&w, WEIGHT_DELETED);
	next_is(&w, WEIGHT_CLAIM_ABORT);
	ck_assert(does(&w, ABORT, NULL, &request_1));
	phase_is(&w, WEIGHT_ABORTED, 7);
	ck_assert_int_eq(w.base.availability, WEIGHT_READY);
	next_is(&w, WEIGHT_CLAIM_DONE);
	w.state.target = NULL;
	ck_assert(does(&w, BEGIN, &next, NULL));
}
END_TEST

/*
 * WeightGroupLifecycle.InvalidAbortCannotMutateTargetImport: it is refused by
 * its name, before anybody would touch the target.
 */
START_TEST(an_abort_of_another_claim_changes_nothing)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct world w;

	world_init(&w);
	ck_assert(does(&w, BEGIN, &rq, NULL));
	target_is(&w, WEIGHT_IMPORTING);
	refuses(&w, ABORT, NULL, &request_2, -EEXIST, "request-1");
	phase_is(&w, WEIGHT_PREPARING_TARGET, 7);
	next_is(&w, WEIGHT_CLAIM_WAITS);
	/* Nor one that comes too late. */
	target_is(&w, WEIGHT_READY);
	refuses(&w, ABORT, NULL, &request_1, -EEXIST, "commit");
	ck_assert(does(&w, COMMIT, NULL, &request_1));
	refuses(&w, ABORT, NULL, &request_1, -EEXIST, "place of 7");
	phase_is(&w, WEIGHT_RETIRING_BASE, 8);
}
END_TEST

/*
 * WeightGroupLifecycle.ReconciliationRecreatesMissingUpsertTarget: the claim was
 * stored, and a crash kept its target from being.
 */
START_TEST(a_described_target_that_is_missing_is_begun_again)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct world w;

	world_init(&w);
	ck_assert(does(&w, BEGIN, &rq, NULL));
	next_is(&w, WEIGHT_CLAIM_PREPARE);
	beside(&w.lineage, 8, true, true, true);
	ck_assert(weight_import_equal(&w.lineage.claim.import, &rq.import));
	target_is(&w, WEIGHT_IMPORTING);
	next_is(&w, WEIGHT_CLAIM_WAITS);
	ck_assert(!does(&w, BEGIN, &rq, NULL));
	/* The same once more, with the base gone for good. */
	world_init(&w);
	rq.mode = WEIGHT_DELETE_FIRST;
	ck_assert(does(&w, BEGIN, &rq, NULL));
	w.state.base = NULL;
	ck_assert(does(&w, ADVANCE, NULL, NULL));
	next_is(&w, WEIGHT_CLAIM_PREPARE);
}
END_TEST

/* One replacement after the other: the watermark only goes up. */
START_TEST(a_lineage_goes_on_from_target_to_target)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct weight_claim_name name = request_1;
	struct world w;

	world_init(&w);
	for (uint64_t g = 7; g < 20; g++) {
		rq.mode = (enum weight_upsert_mode)(g % 2);
		rq.base.generation = name.base = g;
		rq.target.generation = name.target = g + 1;
		w.base = revision(g, WEIGHT_READY);
		w.state.base = &w.base;
		w.state.target = NULL;
		ck_assert(does(&w, BEGIN, &rq, NULL));
		ck_assert_uint_eq(w.lineage.watermark, g);
		w.state.base = NULL;
		(void)does(&w, ADVANCE, NULL, NULL);
		target_is(&w, WEIGHT_READY);
		ck_assert(does(&w, COMMIT, NULL, &name));
		(void)does(&w, ADVANCE, NULL, NULL);
		phase_is(&w, WEIGHT_COMPLETED, g + 1);
	}
}
END_TEST

/* A record that says so was not made by us, and still isn't taken back. */
START_TEST(a_watermark_never_goes_down)
{
	struct world w;

	world_init(&w);
	claim_is(&w, WEIGHT_PUT_FIRST, WEIGHT_PREPARING_TARGET);
	w.lineage.watermark = 9;
	target_is(&w, WEIGHT_READY);
	ck_assert(does(&w, COMMIT, NULL, &request_1));
	phase_is(&w, WEIGHT_RETIRING_BASE, 9);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_decision_claim");
	TCase *tc = tcase_create("core");

	tcase_add_loop_test(tc, a_claim_follows_its_target, 0,
			    (int)ARRAY_LEN(target_steps));
	tcase_add_loop_test(tc, a_claim_follows_its_base, 0,
			    (int)ARRAY_LEN(base_steps));
	tcase_add_test(tc, what_has_ended_needs_nothing);
	tcase_add_test(tc, what_was_interrupted_waits_for_its_request);
	tcase_add_loop_test(tc, a_claim_keeps_others_out, 0,
			    (int)ARRAY_LEN(neighbours));
	tcase_add_test(tc, put_first_retires_the_base_when_the_target_is_ready);
	tcase_add_test(tc,
		       delete_first_lets_the_target_in_when_the_base_is_gone);
	tcase_add_test(tc, an_abort_of_put_first_keeps_the_base);
	tcase_add_test(tc, an_abort_of_delete_first_in_time_keeps_the_base);
	tcase_add_test(tc, an_interrupted_import_is_resumed_by_its_own_request);
	tcase_add_test(tc, an_abort_that_the_claim_didnt_hear_of_is_finished);
	tcase_add_test(tc, an_abort_of_another_claim_changes_nothing);
	tcase_add_test(tc, a_described_target_that_is_missing_is_begun_again);
	tcase_add_test(tc, a_lineage_goes_on_from_target_to_target);
	tcase_add_test(tc, a_watermark_never_goes_down);
	suite_add_tcase(s, tc);
	return s;
}
