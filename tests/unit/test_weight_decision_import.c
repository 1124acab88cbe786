/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "core/util.h"
#include "core/weight_decision_import.h"
#include "core/weight_decision_lineage.h"
#include "suite.h"
#include "weight_import_fixture.h"

/* Generation 7 is being replaced by 8, and went first. */
static struct weight_lineage_record replacement(void)
{
	return (struct weight_lineage_record){
		.lineage = demo.lineage,
		.lineage_metadata_generation = 2,
		.watermark = 7,
		.claimed = true,
		.claim = { .request_id = "request-1",
			   .base = 7,
			   .target = 8,
			   .mode = WEIGHT_DELETE_FIRST,
			   .phase = WEIGHT_TARGET_IMPORTING,
			   .expected_base_metadata_generation = 2,
			   .error = "" },
	};
}

/* ---- Begin ---- */

/* The answer; a refusal touches nothing. 1: it is a repeat. */
static int begin_at(const struct weight_import_state *state,
		    const struct weight_import_request *rq, uint64_t now_ms,
		    struct weight_metadata *ret)
{
	struct weight_metadata m = { .metadata_generation = 99 };
	cleanup(buf_release) struct buf why = BUF_INIT;
	bool changed = true;
	int r = weight_decide_import_begin(state, rq, now_ms, &m, &changed,
					   &why);

	ck_assert_int_eq(weight_decide_import_begin(state, rq, now_ms, ret,
						    &changed, NULL),
			 r);
	if (r < 0) {
		ck_assert_uint_eq(m.metadata_generation, 99);
		ck_assert(changed);
		if (r != -EOVERFLOW)
			ck_assert_uint_gt(why.len, 0);
		return r;
	}
	ck_assert_uint_eq(why.len, 0);
	ck_assert_int_eq(weight_metadata_check(&m, NULL), 0);
	same_record(&m, ret);
	if (!changed)
		same_record(&m, state->existing);
	return changed ? 0 : 1;
}

static int begin(const struct weight_import_state *state,
		 const struct weight_import_request *rq)
{
	struct weight_metadata m;

	return begin_at(state, rq, 4000, &m);
}

/* WeightPolicyState.DefaultsPolicyAndPersistsAffinitySummary */
START_TEST(an_import_begins_with_what_was_announced)
{
	const struct weight_import_state nothing = { NULL };
	struct weight_import_request rq = announced();
	struct weight_metadata m;

	rq.import.policy =
		(struct weight_policy){ WEIGHT_MIXED, 0.25, WEIGHT_MANUAL };
	ck_assert_int_eq(begin_at(&nothing, &rq, 1000, &m), 0);
	ck_assert(weight_identity_equal(&m.identity, &demo));
	ck_assert_int_eq(m.availability, WEIGHT_IMPORTING);
	ck_assert_int_eq(m.residency, WEIGHT_UNKNOWN);
	ck_assert_uint_eq(m.metadata_generation, 1);
	ck_assert_uint_eq(m.operation_id, 0);
	ck_assert(!m.durable && m.observed_hot_ratio == 0);
	ck_assert(!m.manifest.complete);
	ck_assert_str_eq(m.manifest.manifest_key, "");
	ck_assert_str_eq(m.manifest.payload_group_id, group_id);
	ck_assert_uint_eq(m.manifest.payload_count, 3);
	ck_assert_uint_eq(m.manifest.logical_bytes, 1000);
	ck_assert(weight_policy_equal(&m.policy, &rq.import.policy));
	ck_assert_uint_eq(m.affinity_count, 5);
	ck_assert(digest_equal(&m.affinity_digest, &rq.import.affinity_digest));
	ck_assert_uint_eq(m.created_at_ms, 1000);
	ck_assert_uint_eq(m.updated_at_ms, 1000);
	ck_assert_uint_eq(m.last_accessed_at_ms, 1000);
}
END_TEST

enum begin_fault {
	NO_FAULT,
	BAD_TENANT,
	GENERATION_0,
	NO_OBJECTS,
	NO_BYTES,
	NO_UNITS,
	OTHER_GROUP,
	NO_GROUP,
	PREFERRED_ABSENT,
	RATIO_0,
	RATIO_1,
	RATIO_NAN,
	UNKNOWN_MODE,
	ONE_UNIT,
	BEGIN_FAULTS,
};

static void spoil_begin(enum begin_fault fault,
			struct weight_import_request *rq)
{
	struct weight_policy *policy = &rq->import.policy;

	switch (fault) {
	case BAD_TENANT:
		rq->identity.lineage.tenant = "_x";
		return;
	case GENERATION_0:
		rq->identity.generation = 0;
		return;
	case NO_OBJECTS:
		rq->import.payload_count = 0;
		return;
	case NO_BYTES:
		rq->import.logical_bytes = 0;
		return;
	case NO_UNITS:
		rq->import.affinity_count = 0;
		return;
	case OTHER_GROUP:
		rq->payload_group_id = "weight:other";
		return;
	case NO_GROUP:
		rq->payload_group_id = "";
		return;
	case PREFERRED_ABSENT:
		policy->preferred = WEIGHT_ABSENT;
		return;
	case RATIO_0:
		policy->mixed_hot_ratio = 0;
		return;
	case RATIO_1:
		policy->mixed_hot_ratio = 1;
		return;
	case RATIO_NAN:
		policy->mixed_hot_ratio = (double)NAN;
		return;
	case UNKNOWN_MODE:
		policy->mode = (enum weight_migration_mode)3;
		return;
	case ONE_UNIT:
		policy->preferred = WEIGHT_MIXED;
		rq->import.affinity_count = 1;
		return;
	default:
		return;
	}
}

START_TEST(each_argument_of_a_beginning_is_looked_at)
{
	const struct weight_import_state nothing = { NULL };
	enum begin_fault fault = (enum begin_fault)_i;
	struct weight_import_request rq = announced();
	int wanted = fault == NO_FAULT ? 0 :
		     fault == ONE_UNIT ? -EPERM :
					 -EINVAL;

	spoil_begin(fault, &rq);
	ck_assert_int_eq(begin(&nothing, &rq), wanted);
	/* Two units can be told apart; and with hot one is enough. */
	if (fault != ONE_UNIT)
		return;
	rq.import.affinity_count = 2;
	ck_assert_int_eq(begin(&nothing, &rq), 0);
	rq.import.affinity_count = 1;
	rq.import.policy.preferred = WEIGHT_COLD;
	ck_assert_int_eq(begin(&nothing, &rq), 0);
}
END_TEST

/*
 * Each case breaks one thing more than the one below it, so that the order of
 * the errors is tested with them.
 */
START_TEST(beginning_looks_for_errors_in_order)
{
	struct weight_metadata deleted = there(WEIGHT_DELETED, LAST);
	struct weight_lineage_record l = replacement();
	struct weight_staging staged = { .identity = demo };
	struct weight_import_state state = { &deleted, &staged, &l };
	struct weight_import_request rq = announced();

	l.claim.target = 9;
	l.watermark = 8;
	spoil_begin(ONE_UNIT, &rq);
	rq.import.logical_bytes = 0;
	ck_assert_int_eq(begin(&state, &rq), -EINVAL);
	rq.import.logical_bytes = 1000;
	ck_assert_int_eq(begin(&state, &rq), -EPERM);
	rq.import.affinity_count = 5;
	ck_assert_int_eq(begin(&state, &rq), -EEXIST);
	state.existing = NULL;
	ck_assert_int_eq(begin(&state, &rq), -EEXIST);
	state.staged = NULL;
	ck_assert_int_eq(begin(&state, &rq), -EBUSY);
	/* By itself, a claim can't get past its own base. */
	l.claim.target = 8;
	l.claim.phase = WEIGHT_DELETING_BASE;
	rq.by_claim = true;
	ck_assert_int_eq(begin(&state, &rq), -EBUSY);
	l.claim.phase = WEIGHT_TARGET_IMPORTING;
	ck_assert_int_eq(begin(&state, &rq), -ECANCELED);
	/* What was there before comes back, if its number can go up. */
	state.existing = &deleted;
	ck_assert_int_eq(begin(&state, &rq), -ECANCELED);
	l.watermark = 7;
	ck_assert_int_eq(begin(&state, &rq), -EOVERFLOW);
	deleted.metadata_generation--;
	ck_assert_int_eq(begin(&state, &rq), 0);
}
END_TEST

/* How one argument may differ from those of before. */
static void differ(int how, struct weight_import_request *rq)
{
	switch (how) {
	case 0:
		rq->import.payload_count++;
		return;
	case 1:
		rq->import.logical_bytes++;
		return;
	case 2:
		rq->import.policy.preferred = WEIGHT_COLD;
		return;
	case 3:
		rq->import.policy.mixed_hot_ratio = 0.25;
		return;
	case 4:
		rq->import.policy.mode = WEIGHT_PINNED;
		return;
	case 5:
		rq->import.affinity_count++;
		return;
	default:
		rq->import.affinity_digest.bytes[31] = 1;
		return;
	}
}
#define WAYS_TO_DIFFER 7

/* WeightMetadataStore.BeginIsIdempotentAndRejectsConflicts */
START_TEST(beginning_again_is_beginning_once)
{
	static const int again[] = { 1, 1, -EEXIST, -EEXIST, -EEXIST };
	enum weight_availability availability = (enum weight_availability)_i;
	struct weight_metadata m = there(availability, 5);
	struct weight_lineage_record l = replacement();
	struct weight_import_state state = { .existing = &m };
	struct weight_import_request rq = announced();

	ck_assert_int_eq(begin(&state, &rq), again[_i]);
	for (int how = 0; how < WAYS_TO_DIFFER; how++) {
		struct weight_import_request other = announced();

		differ(how, &other);
		ck_assert_msg(begin(&state, &other) == -EEXIST, "way %d", how);
	}
	/* A repeat meets neither the watermark nor another claim. */
	l.claim.target = 9;
	l.watermark = 8;
	state.lineage = &l;
	ck_assert_int_eq(begin(&state, &rq), again[_i]);
}
END_TEST

START_TEST(a_refused_beginning_says_what_is_there)
{
	struct weight_metadata m = there(WEIGHT_DELETING, 5);
	struct weight_staging staged = { .identity = demo };
	struct weight_import_state state = { .existing = &m };
	struct weight_import_request rq = announced();
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_metadata ret;
	bool changed;

	ck_assert_int_eq(weight_decide_import_begin(&state, &rq, 1, &ret,
						    &changed, &why),
			 -EEXIST);
	ck_assert_str_eq(why.data, "generation 8 is deleting already");
	buf_release(&why);
	state = (struct weight_import_state){ .staged = &staged };
	ck_assert_int_eq(weight_decide_import_begin(&state, &rq, 1, &ret,
						    &changed, &why),
			 -EEXIST);
	ck_assert_str_eq(why.data, "generation 8 is staged already");
}
END_TEST

/* clang-format off */
static const struct {
	uint64_t watermark;
	bool claimed;
	uint64_t target;
	enum weight_upsert_mode mode;
	enum weight_upsert_phase phase;
	bool by_claim;
	int answer;
} lineages[] = {
	{ 7, false, 0, 0, 0, false, 0 },
	{ 8, false, 0, 0, 0, false, -ECANCELED },
	{ 9, false, 0, 0, 0, true,  -ECANCELED },
	/* Its target may begin, once the base is out of the way. */
	{ 7, true, 8, WEIGHT_PUT_FIRST, WEIGHT_PREPARING_TARGET, true, 0 },
	{ 7, true, 8, WEIGHT_DELETE_FIRST, WEIGHT_DELETING_BASE, true, -EBUSY },
	{ 7, true, 8, WEIGHT_DELETE_FIRST, WEIGHT_DELETING_BASE, false, -EBUSY },
	{ 7, true, 8, WEIGHT_DELETE_FIRST, WEIGHT_TARGET_IMPORTING, true, 0 },
	/* Nothing else goes past it, whoever asks. */
	{ 7, true, 9, WEIGHT_PUT_FIRST, WEIGHT_PREPARING_TARGET, false, -EBUSY },
	{ 7, true, 9, WEIGHT_PUT_FIRST, WEIGHT_PREPARING_TARGET, true, -EBUSY },
	{ 9, true, 9, WEIGHT_PUT_FIRST, WEIGHT_RETIRING_BASE, false, -EBUSY },
	{ 7, true, 9, WEIGHT_DELETE_FIRST, WEIGHT_DELETING_BASE, false, -EBUSY },
	/* A claim that has ended is in nobody's way. */
	{ 7, true, 9, WEIGHT_PUT_FIRST, WEIGHT_ABORTED, false, 0 },
	{ 9, true, 9, WEIGHT_PUT_FIRST, WEIGHT_COMPLETED, false, -ECANCELED },
};
/* clang-format on */

START_TEST(a_lineage_lets_only_so_much_begin)
{
	struct weight_lineage_record l = replacement();
	struct weight_import_state state = { .lineage = &l };
	struct weight_import_request rq = announced();

	l.watermark = lineages[_i].watermark;
	l.claimed = lineages[_i].claimed;
	l.claim.target = lineages[_i].target;
	l.claim.mode = lineages[_i].mode;
	l.claim.phase = lineages[_i].phase;
	rq.by_claim = lineages[_i].by_claim;
	ck_assert_int_eq(begin(&state, &rq), lineages[_i].answer);
}
END_TEST

START_TEST(a_claim_begins_its_removed_target_again)
{
	struct weight_metadata m = there(WEIGHT_DELETED, 4), next;
	struct weight_lineage_record l = replacement();
	struct weight_import_state state = { &m, NULL, &l };
	struct weight_import_request rq = announced();

	rq.by_claim = true;
	/* With a description of its own. */
	differ(0, &rq);
	ck_assert_int_eq(begin_at(&state, &rq, 4000, &next), 0);
	ck_assert_int_eq(next.availability, WEIGHT_IMPORTING);
	ck_assert_int_eq(next.residency, WEIGHT_UNKNOWN);
	ck_assert(!next.manifest.complete);
	ck_assert_uint_eq(next.manifest.payload_count, 4);
	ck_assert_uint_eq(next.metadata_generation, 5);
	ck_assert_uint_eq(next.created_at_ms, 1000);
	ck_assert_uint_eq(next.updated_at_ms, 4000);
	ck_assert_uint_eq(next.last_accessed_at_ms, 4000);
	/* Whatever the clock says. */
	ck_assert_int_eq(begin_at(&state, &rq, 10, &next), 0);
	ck_assert_uint_eq(next.updated_at_ms, 2000);
	ck_assert_uint_eq(next.last_accessed_at_ms, 3000);
}
END_TEST

START_TEST(a_target_is_what_its_claim_says)
{
	struct weight_lineage_record l = replacement();
	struct weight_import_state state = { .lineage = &l };
	struct weight_import_request rq = announced();
	struct weight_metadata next;

	l.claim.described = true;
	l.claim.import = rq.import;
	/* An ordinary import doesn't go past the one that replaces. */
	ck_assert_int_eq(begin_at(&state, &rq, 4000, &next), -EBUSY);
	rq.by_claim = true;
	ck_assert_int_eq(begin_at(&state, &rq, 4000, &next), 0);
	l.claim.import.payload_count++;
	ck_assert_int_eq(begin_at(&state, &rq, 4000, &next), -EEXIST);
	/* One that isn't described can be anything. */
	l.claim.described = false;
	ck_assert_int_eq(begin_at(&state, &rq, 4000, &next), 0);
	/* Nobody goes on with what was interrupted but its own request. */
	l.claim.error = WEIGHT_CLAIM_INTERRUPTED;
	ck_assert_int_eq(begin_at(&state, &rq, 4000, &next), -EBUSY);
}
END_TEST

START_TEST(no_other_tombstone_comes_back)
{
	struct weight_metadata m = there(WEIGHT_DELETED, 4);
	struct weight_lineage_record l = replacement();
	struct weight_import_state state = { &m, NULL, &l };
	struct weight_import_request rq = announced();

	/* Not by itself. */
	ck_assert_int_eq(begin(&state, &rq), -EEXIST);
	rq.by_claim = true;
	state.lineage = NULL;
	ck_assert_int_eq(begin(&state, &rq), -EEXIST);
	state.lineage = &l;
	l.claim.target = 9;
	ck_assert_int_eq(begin(&state, &rq), -EEXIST);
	l.claim.target = 8;
	l.claim.phase = WEIGHT_DELETING_BASE;
	ck_assert_int_eq(begin(&state, &rq), -EEXIST);
	l.claim.phase = WEIGHT_COMPLETED;
	ck_assert_int_eq(begin(&state, &rq), -EEXIST);
	l.claim.phase = WEIGHT_TARGET_IMPORTING;
	/* It has to be a tombstone by now. */
	m = there(WEIGHT_DELETING, 4);
	ck_assert_int_eq(begin(&state, &rq), -EEXIST);
	m = there(WEIGHT_DELETED, 4);
	ck_assert_int_eq(begin(&state, &rq), 0);
}
END_TEST

/* ---- Abort ---- */

/* The answer; a refusal touches nothing. 1: it is a repeat. */
static int abort_at(const struct weight_metadata *m, uint64_t expected,
		    uint64_t now_ms, struct weight_metadata *ret)
{
	bool changed = true;
	int r;

	*ret = (struct weight_metadata){ .metadata_generation = 99 };
	r = weight_decide_import_abort(m, expected, now_ms, ret, &changed);
	if (r < 0) {
		ck_assert_uint_eq(ret->metadata_generation, 99);
		ck_assert(changed);
		return r;
	}
	ck_assert_int_eq(weight_metadata_check(ret, NULL), 0);
	if (!changed)
		same_record(m, ret);
	return changed ? 0 : 1;
}

static int abort_import(const struct weight_metadata *m, uint64_t expected)
{
	struct weight_metadata ret;

	return abort_at(m, expected, 4000, &ret);
}

START_TEST(aborting_looks_for_errors_in_order)
{
	struct weight_metadata ready = there(WEIGHT_READY, LAST);
	struct weight_metadata m = there(WEIGHT_IMPORTING, LAST);
	struct weight_metadata next;

	ck_assert_int_eq(abort_import(NULL, 1), -ENOENT);
	ck_assert_int_eq(abort_import(&ready, LAST - 1), -ECANCELED);
	ck_assert_int_eq(abort_import(&ready, LAST), -EEXIST);
	ck_assert_int_eq(abort_import(&m, LAST - 1), -ECANCELED);
	ck_assert_int_eq(abort_import(&m, LAST), -EOVERFLOW);
	m.metadata_generation--;
	ck_assert_int_eq(abort_at(&m, LAST - 1, 4000, &next), 0);
	ck_assert_int_eq(next.availability, WEIGHT_DELETING);
	ck_assert_int_eq(next.residency, WEIGHT_UNKNOWN);
	ck_assert_uint_eq(next.metadata_generation, LAST);
	ck_assert_uint_eq(next.updated_at_ms, 4000);
	ck_assert_int_eq(abort_at(&m, 0, 10, &next), 0);
	ck_assert_uint_eq(next.updated_at_ms, 2000);
}
END_TEST

/* WeightMetadataStore.AbortRetryRequiresAdjacentGeneration */
START_TEST(aborting_again_is_aborting_once)
{
	struct weight_metadata m = there(WEIGHT_DELETING, 3);

	ck_assert_int_eq(abort_import(&m, 1), -ECANCELED);
	ck_assert_int_eq(abort_import(&m, 2), 1);
	ck_assert_int_eq(abort_import(&m, 3), 1);
	ck_assert_int_eq(abort_import(&m, 4), -ECANCELED);
	ck_assert_int_eq(abort_import(&m, 0), 1);
	/* There is nothing left to be aborted. */
	m = there(WEIGHT_DELETED, 3);
	ck_assert_int_eq(abort_import(&m, 2), -ECANCELED);
	ck_assert_int_eq(abort_import(&m, 3), -EEXIST);
	m = there(WEIGHT_DEGRADED, 3);
	ck_assert_int_eq(abort_import(&m, 3), -EEXIST);
}
END_TEST

/* WeightReconciliation.ExpiresLeasesAndAbortsAbandonedImports */
START_TEST(an_import_is_given_up_after_five_minutes)
{
	struct weight_metadata m = there(WEIGHT_IMPORTING, 1);
	uint64_t limit = m.updated_at_ms + (uint64_t)5 * 60 * 1000;

	ck_assert(!weight_import_is_abandoned(&m, m.updated_at_ms));
	ck_assert(!weight_import_is_abandoned(&m, limit - 1));
	ck_assert(weight_import_is_abandoned(&m, limit));
	ck_assert(weight_import_is_abandoned(&m, UINT64_MAX));
	/* A clock that went back makes nothing old. */
	ck_assert(!weight_import_is_abandoned(&m, 0));
	ck_assert(!weight_import_is_abandoned(&m, m.updated_at_ms - 1));
	m.updated_at_ms = UINT64_MAX - 1;
	ck_assert(!weight_import_is_abandoned(&m, UINT64_MAX));
	for (int a = WEIGHT_READY; a <= WEIGHT_DELETED; a++) {
		m = there((enum weight_availability)a, 3);
		ck_assert(!weight_import_is_abandoned(&m, UINT64_MAX));
	}
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_decision_import");
	TCase *tc = tcase_create("weight_decision_import");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, an_import_begins_with_what_was_announced);
	tcase_add_loop_test(tc, each_argument_of_a_beginning_is_looked_at, 0,
			    BEGIN_FAULTS);
	tcase_add_test(tc, beginning_looks_for_errors_in_order);
	tcase_add_loop_test(tc, beginning_again_is_beginning_once, 0,
			    WEIGHT_DELETED + 1);
	tcase_add_test(tc, a_refused_beginning_says_what_is_there);
	tcase_add_loop_test(tc, a_lineage_lets_only_so_much_begin, 0,
			    ARRAY_LEN(lineages));
	tcase_add_test(tc, a_claim_begins_its_removed_target_again);
	tcase_add_test(tc, a_target_is_what_its_claim_says);
	tcase_add_test(tc, no_other_tombstone_comes_back);
	tcase_add_test(tc, aborting_looks_for_errors_in_order);
	tcase_add_test(tc, aborting_again_is_aborting_once);
	tcase_add_test(tc, an_import_is_given_up_after_five_minutes);
	suite_add_tcase(s, tc);
	return s;
}
