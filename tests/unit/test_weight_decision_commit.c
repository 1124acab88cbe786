/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "core/util.h"
#include "core/weight_decision_import.h"
#include "suite.h"
#include "weight_import_fixture.h"

/* ---- Commit ---- */

/* The answer; a refusal touches nothing. 1: it is a repeat. */
static int commit_at(const struct weight_commit_state *state,
		     const struct weight_commit_request *rq, uint64_t now_ms,
		     struct weight_operation_outcome *ret)
{
	struct weight_operation_outcome out = { .operation.operation_id = 99 };
	cleanup(buf_release) struct buf why = BUF_INIT;
	int r = weight_decide_import_commit(state, rq, now_ms, &out, &why);

	ck_assert_int_eq(
		weight_decide_import_commit(state, rq, now_ms, ret, NULL), r);
	if (r < 0) {
		ck_assert_uint_eq(out.operation.operation_id, 99);
		return r;
	}
	ck_assert_uint_eq(why.len, 0);
	ck_assert_int_eq(weight_metadata_check(&out.metadata, NULL), 0);
	ck_assert_uint_eq(out.superseded.operation_id, 0);
	ck_assert_uint_eq(out.operation.operation_id,
			  out.changed ? out.metadata.operation_id : 0);
	same_record(&out.metadata, &ret->metadata);
	if (!out.changed)
		same_record(&out.metadata, state->existing);
	return out.changed ? 0 : 1;
}

static int commit(const struct weight_commit_state *state,
		  const struct weight_commit_request *rq)
{
	struct weight_operation_outcome out;

	return commit_at(state, rq, 4000, &out);
}

/* WeightPolicyState.HotCommitDoesNotCreateMigration */
START_TEST(a_commit_to_where_it_belongs_begins_nothing)
{
	static const struct {
		enum weight_residency residency;
		double ratio;
	} places[] = {
		{ WEIGHT_HOT, 1.0 },
		{ WEIGHT_COLD, 0.0 },
		{ WEIGHT_MIXED, 0.25 }, /* the ratio is not looked at */
	};
	struct weight_metadata m = there(WEIGHT_IMPORTING, 1);
	/* No id is needed, so none has to be left. */
	struct weight_commit_state state = { &m, UINT64_MAX };
	struct weight_commit_request rq = complete(1);
	struct weight_operation_outcome out;

	m.policy.preferred = places[_i].residency;
	rq.residency = places[_i].residency;
	rq.observed_hot_ratio = places[_i].ratio;
	rq.durable = true;
	ck_assert_int_eq(commit_at(&state, &rq, 4000, &out), 0);
	ck_assert_int_eq(out.metadata.availability, WEIGHT_READY);
	ck_assert_int_eq(out.metadata.residency, places[_i].residency);
	ck_assert(out.metadata.observed_hot_ratio == places[_i].ratio);
	ck_assert(out.metadata.durable);
	ck_assert(out.metadata.manifest.complete);
	ck_assert_str_eq(out.metadata.manifest.manifest_key, manifest_key.data);
	ck_assert_uint_eq(out.metadata.metadata_generation, 2);
	ck_assert_uint_eq(out.metadata.operation_id, 0);
	ck_assert_uint_eq(out.metadata.created_at_ms, 1000);
	ck_assert_uint_eq(out.metadata.updated_at_ms, 4000);
	ck_assert_uint_eq(out.metadata.last_accessed_at_ms, 3000);
	/* A clock that went back. */
	ck_assert_int_eq(commit_at(&state, &rq, 10, &out), 0);
	ck_assert_uint_eq(out.metadata.updated_at_ms, 2000);
}
END_TEST

/* WeightPolicyState.CommitPublishesReadyHotAndMigrationAtomically */
START_TEST(a_commit_elsewhere_brings_an_operation)
{
	static const enum weight_residency wanted[] = { WEIGHT_COLD,
							WEIGHT_MIXED };
	/* Also where nothing moves later: pinned and manual. */
	enum weight_migration_mode mode = (enum weight_migration_mode)(_i / 2);
	enum weight_residency to = wanted[_i % 2];
	struct weight_metadata m = there(WEIGHT_IMPORTING, 1);
	struct weight_commit_state state = { &m, 12 };
	struct weight_commit_request rq = complete(1);
	struct weight_operation_outcome out;

	m.policy = (struct weight_policy){ to, 0.25, mode };
	ck_assert_int_eq(commit_at(&state, &rq, 4000, &out), 0);
	ck_assert_int_eq(out.metadata.availability, WEIGHT_READY);
	ck_assert_int_eq(out.metadata.residency, WEIGHT_HOT);
	ck_assert_uint_eq(out.metadata.metadata_generation, 2);
	ck_assert_uint_eq(out.metadata.operation_id, 12);
	ck_assert_int_eq(weight_operation_check(&out.operation, NULL), 0);
	ck_assert(weight_identity_equal(&out.operation.identity, &demo));
	ck_assert_int_eq(out.operation.kind, WEIGHT_MIGRATING);
	ck_assert_int_eq(out.operation.target_residency, to);
	ck_assert(out.operation.target_hot_ratio ==
		  (to == WEIGHT_MIXED ? 0.25 : 0));
	ck_assert_uint_eq(out.operation.fenced_metadata_generation, 2);
	ck_assert_uint_eq(out.operation.total_units, 5);
	ck_assert_uint_eq(out.operation.total_bytes, 1000);
	ck_assert_uint_eq(out.operation.processed_units, 0);
	ck_assert_uint_eq(out.operation.processed_bytes, 0);
	ck_assert_uint_eq(out.operation.started_at_ms, 4000);
	ck_assert_uint_eq(out.operation.updated_at_ms, 4000);
}
END_TEST

enum commit_fault {
	COMMIT_GENERATION_0 = 1,
	NOT_COMPLETE,
	EMPTY_KEY,
	NULL_KEY,
	EMPTY_GROUP,
	NULL_GROUP,
	NOTHING_IN_IT,
	NO_BYTES_IN_IT,
	RESIDENCY_UNKNOWN,
	RESIDENCY_ABSENT,
	UNKNOWN_RESIDENCY,
	RATIO_OF_ANOTHER,
	RATIO_IS_NAN,
	COMMIT_FAULTS,
};

static void spoil_commit(enum commit_fault fault,
			 struct weight_commit_request *rq)
{
	switch (fault) {
	case COMMIT_GENERATION_0:
		rq->identity.generation = 0;
		return;
	case NOT_COMPLETE:
		rq->manifest.complete = false;
		return;
	case EMPTY_KEY:
	case NULL_KEY:
		rq->manifest.manifest_key = fault == NULL_KEY ? NULL : "";
		return;
	case EMPTY_GROUP:
	case NULL_GROUP:
		rq->manifest.payload_group_id = fault == NULL_GROUP ? NULL : "";
		return;
	case NOTHING_IN_IT:
		rq->manifest.payload_count = 0;
		return;
	case NO_BYTES_IN_IT:
		rq->manifest.logical_bytes = 0;
		return;
	case RESIDENCY_UNKNOWN:
	case RESIDENCY_ABSENT:
		rq->residency = fault == RESIDENCY_ABSENT ? WEIGHT_ABSENT :
							    WEIGHT_UNKNOWN;
		rq->observed_hot_ratio = 0;
		return;
	case UNKNOWN_RESIDENCY:
		rq->residency = (enum weight_residency)5;
		return;
	case RATIO_OF_ANOTHER:
		rq->observed_hot_ratio = 0.5;
		return;
	case RATIO_IS_NAN:
		rq->residency = WEIGHT_MIXED;
		rq->observed_hot_ratio = (double)NAN;
		return;
	default:
		return;
	}
}

START_TEST(each_argument_of_a_commit_is_looked_at)
{
	struct weight_metadata m = there(WEIGHT_IMPORTING, 1);
	struct weight_metadata ready = there(WEIGHT_READY, 2);
	struct weight_commit_state state = { NULL, 1 };
	struct weight_commit_request rq = complete(1);

	spoil_commit((enum commit_fault)_i, &rq);
	ck_assert_int_eq(commit(&state, &rq), -EINVAL);
	state.existing = &m;
	ck_assert_int_eq(commit(&state, &rq), -EINVAL);
	state.existing = &ready;
	ck_assert_int_eq(commit(&state, &rq), -EINVAL);
}
END_TEST

/* As with beginning. */
START_TEST(committing_looks_for_errors_in_order)
{
	struct weight_metadata m = there(WEIGHT_IMPORTING, LAST);
	struct weight_metadata degraded = there(WEIGHT_DEGRADED, LAST);
	struct weight_commit_state state = { NULL, UINT64_MAX };
	struct weight_commit_request rq = complete(LAST - 2);

	m.policy.preferred = WEIGHT_COLD;
	rq.manifest.manifest_key = "weights/of/another/1/manifest";
	rq.manifest.logical_bytes = 0;
	ck_assert_int_eq(commit(&state, &rq), -EINVAL);
	rq.manifest.logical_bytes = 999;
	ck_assert_int_eq(commit(&state, &rq), -ENOENT);
	state.existing = &degraded;
	ck_assert_int_eq(commit(&state, &rq), -ECANCELED);
	/* One before is for repeats, and this is none. */
	rq.expected_metadata_generation = LAST - 1;
	ck_assert_int_eq(commit(&state, &rq), -ECANCELED);
	rq.expected_metadata_generation = LAST;
	ck_assert_int_eq(commit(&state, &rq), -EEXIST);
	state.existing = &m;
	ck_assert_int_eq(commit(&state, &rq), -EEXIST); /* the bytes */
	rq.manifest.logical_bytes = 1000;
	ck_assert_int_eq(commit(&state, &rq), -EEXIST); /* the key */
	rq.manifest.manifest_key = manifest_key.data;
	ck_assert_int_eq(commit(&state, &rq), -EOVERFLOW);
	m.metadata_generation--;
	rq.expected_metadata_generation--;
	ck_assert_int_eq(commit(&state, &rq), -EOVERFLOW); /* the operation */
	state.next_operation_id--;
	ck_assert_int_eq(commit(&state, &rq), 0);
	/* 0: whatever it has. */
	rq.expected_metadata_generation = 0;
	ck_assert_int_eq(commit(&state, &rq), 0);
}
END_TEST

START_TEST(a_commit_is_that_of_the_import_that_was_begun)
{
	static const enum weight_availability others[] = { WEIGHT_DEGRADED,
							   WEIGHT_DELETING,
							   WEIGHT_DELETED };
	struct weight_metadata m = there(WEIGHT_IMPORTING, 1);
	struct weight_commit_state state = { &m, 1 };
	struct weight_commit_request rq = complete(1);

	rq.manifest.payload_count++;
	ck_assert_int_eq(commit(&state, &rq), -EEXIST);
	rq = complete(1);
	rq.manifest.logical_bytes++;
	ck_assert_int_eq(commit(&state, &rq), -EEXIST);
	rq = complete(1);
	rq.manifest.payload_group_id = "weight:other";
	ck_assert_int_eq(commit(&state, &rq), -EEXIST);
	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		m = there(others[i], 3);
		rq = complete(3);
		ck_assert_int_eq(commit(&state, &rq), -EEXIST);
		/* The same manifest is a repeat only where it is READY. */
		rq.expected_metadata_generation = 2;
		ck_assert_int_eq(commit(&state, &rq), -ECANCELED);
	}
}
END_TEST

/* WeightMetadataStore.CommitUsesCasAndIsRetryableAfterResponseLoss */
START_TEST(committing_again_is_committing_once)
{
	/* clang-format off */
	static const struct { uint64_t expected; int answer; } retries[] = {
		{ 1, -ECANCELED }, { 2, 1 }, { 3, 1 }, { 4, -ECANCELED },
		{ 0, 1 },
	};
	/* clang-format on */
	struct weight_metadata m = there(WEIGHT_READY, 3);
	struct weight_commit_state state = { &m, UINT64_MAX };
	struct weight_commit_request rq = complete(retries[_i].expected);

	m.policy.preferred = WEIGHT_COLD;
	ck_assert_int_eq(commit(&state, &rq), retries[_i].answer);
	/* Where it has gone meanwhile is no matter. */
	m.residency = WEIGHT_COLD;
	m.observed_hot_ratio = 0;
	m.durable = true;
	ck_assert_int_eq(commit(&state, &rq), retries[_i].answer);
	/* Another manifest is told before another generation. */
	rq.manifest.manifest_sha256.bytes[31] = 1;
	ck_assert_int_eq(commit(&state, &rq), -EEXIST);
}
END_TEST

START_TEST(each_part_of_a_manifest_counts)
{
	struct weight_metadata m = there(WEIGHT_READY, 2);
	struct weight_commit_state state = { &m, 1 };

	for (int part = 0; part < 6; part++) {
		struct weight_commit_request rq = complete(1);
		struct weight_manifest_ref *ref = &rq.manifest;

		if (part == 0)
			ref->manifest_key = "k";
		else if (part == 1)
			ref->payload_group_id = "g";
		else if (part == 2)
			ref->manifest_sha256.bytes[0] ^= 1;
		else if (part == 3)
			ref->payload_keys_sha256.bytes[31] ^= 1;
		else if (part == 4)
			ref->payload_count++;
		else
			ref->logical_bytes++;
		ck_assert_msg(commit(&state, &rq) == -EEXIST, "part %d", part);
	}
}
END_TEST

/* ---- Policy ---- */

static const struct weight_operation running = {
	.operation_id = 4,
	.kind = WEIGHT_MIGRATING,
	.target_residency = WEIGHT_COLD,
	.cursor = "",
	.message = "",
};

/* The answer; a refusal touches nothing. 1: it is a repeat. */
static int change_at(const struct weight_policy_state *state,
		     const struct weight_policy *policy, uint64_t expected,
		     uint64_t now_ms, struct weight_operation_outcome *ret)
{
	struct weight_operation_outcome out = { .operation.operation_id = 99 };
	cleanup(buf_release) struct buf why = BUF_INIT;
	int r = weight_decide_policy(state, policy, expected, now_ms, &out,
				     &why);

	ck_assert_int_eq(weight_decide_policy(state, policy, expected, now_ms,
					      ret, NULL),
			 r);
	if (r < 0) {
		ck_assert_uint_eq(out.operation.operation_id, 99);
		return r;
	}
	ck_assert_uint_eq(why.len, 0);
	ck_assert_int_eq(weight_metadata_check(&out.metadata, NULL), 0);
	ck_assert_uint_eq(out.superseded.operation_id, 0);
	if (!out.changed) {
		same_record(&out.metadata, state->metadata);
		ck_assert_uint_eq(out.operation.operation_id, 0);
		return 1;
	}
	ck_assert(weight_policy_equal(&out.metadata.policy, policy));
	ck_assert_uint_eq(out.metadata.metadata_generation,
			  state->metadata->metadata_generation + 1);
	ck_assert_uint_eq(out.metadata.operation_id,
			  out.operation.operation_id);
	return 0;
}

static int change(const struct weight_policy_state *state,
		  const struct weight_policy *policy, uint64_t expected)
{
	struct weight_operation_outcome out;

	return change_at(state, policy, expected, 4000, &out);
}

START_TEST(a_bad_policy_is_refused_first)
{
	static const struct weight_policy bad[] = {
		{ WEIGHT_UNKNOWN, 0.5, WEIGHT_AUTO },
		{ WEIGHT_ABSENT, 0.5, WEIGHT_AUTO },
		{ WEIGHT_HOT, 0, WEIGHT_AUTO },
		{ WEIGHT_HOT, 1, WEIGHT_AUTO },
		{ WEIGHT_COLD, -0.1, WEIGHT_PINNED },
		{ WEIGHT_HOT, 0.5, (enum weight_migration_mode)3 },
	};
	struct weight_policy_state nothing = { NULL };

	ck_assert_int_eq(change(&nothing, &bad[_i], 2), -EINVAL);
}
END_TEST

/*
 * As with beginning.
 * WeightPolicyState.UpdatePolicyIsCasFencedIdempotentAndExclusive
 */
START_TEST(a_policy_looks_for_errors_in_order)
{
	struct weight_policy same = { WEIGHT_HOT, 0.5, WEIGHT_AUTO };
	struct weight_policy mixed = { WEIGHT_MIXED, 0.5, WEIGHT_AUTO };
	struct weight_metadata importing = there(WEIGHT_IMPORTING, LAST);
	struct weight_metadata m = there(WEIGHT_READY, LAST);
	struct weight_policy_state state = { NULL, &running, true, UINT64_MAX };

	m.affinity_count = 1;
	ck_assert_int_eq(change(&state, &same, LAST - 2), -ENOENT);
	state.metadata = &importing;
	ck_assert_int_eq(change(&state, &same, LAST - 2), -EBUSY);
	state.fenced = false;
	ck_assert_int_eq(change(&state, &same, LAST - 2), -ECANCELED);
	ck_assert_int_eq(change(&state, &same, LAST - 1), 1);
	ck_assert_int_eq(change(&state, &mixed, LAST - 1), -EBUSY);
	state.active = NULL;
	ck_assert_int_eq(change(&state, &mixed, LAST - 1), -ECANCELED);
	ck_assert_int_eq(change(&state, &mixed, LAST), -EINPROGRESS);
	state.metadata = &m;
	ck_assert_int_eq(change(&state, &mixed, LAST), -EPERM);
	m.affinity_count = 2;
	ck_assert_int_eq(change(&state, &mixed, LAST), -EOVERFLOW);
	m.metadata_generation--;
	ck_assert_int_eq(change(&state, &mixed, LAST - 1), -EOVERFLOW);
	state.next_operation_id--;
	ck_assert_int_eq(change(&state, &mixed, LAST - 1), 0);
	ck_assert_int_eq(change(&state, &mixed, 0), 0);
}
END_TEST

START_TEST(the_same_policy_is_no_change)
{
	struct weight_policy same = { WEIGHT_HOT, 0.5, WEIGHT_AUTO };
	struct weight_metadata m = there((enum weight_availability)_i, 3);
	struct weight_policy_state state = { .metadata = &m,
					     .active = &running };

	/* In any state, and whatever goes on. */
	ck_assert_int_eq(change(&state, &same, 0), 1);
	ck_assert_int_eq(change(&state, &same, 1), -ECANCELED);
	ck_assert_int_eq(change(&state, &same, 2), 1);
	ck_assert_int_eq(change(&state, &same, 3), 1);
	ck_assert_int_eq(change(&state, &same, 4), -ECANCELED);
	/* It has been there at once, though it isn't where it belongs. */
	m.residency = m.residency == WEIGHT_HOT ? WEIGHT_COLD : m.residency;
	m.observed_hot_ratio = 0;
	ck_assert_int_eq(change(&state, &same, 3), 1);
}
END_TEST

/* clang-format off */
static const struct {
	enum weight_availability availability;
	enum weight_residency residency;
	struct weight_policy policy;
	bool moves;
} moves[] = {
	{ WEIGHT_READY, WEIGHT_HOT, { WEIGHT_COLD, 0.5, WEIGHT_AUTO }, true },
	{ WEIGHT_READY, WEIGHT_HOT, { WEIGHT_MIXED, 0.25, WEIGHT_AUTO }, true },
	{ WEIGHT_READY, WEIGHT_COLD, { WEIGHT_HOT, 0.25, WEIGHT_AUTO }, true },
	{ WEIGHT_READY, WEIGHT_HOT, { WEIGHT_COLD, 0.5, WEIGHT_MANUAL }, false },
	{ WEIGHT_READY, WEIGHT_HOT, { WEIGHT_COLD, 0.5, WEIGHT_PINNED }, false },
	{ WEIGHT_READY, WEIGHT_HOT, { WEIGHT_HOT, 0.25, WEIGHT_AUTO }, false },
	{ WEIGHT_READY, WEIGHT_MIXED, { WEIGHT_MIXED, 0.25, WEIGHT_AUTO },
	  false },
	/* What lost something is mended first. */
	{ WEIGHT_DEGRADED, WEIGHT_HOT, { WEIGHT_COLD, 0.5, WEIGHT_AUTO },
	  false },
	{ WEIGHT_DEGRADED, WEIGHT_ABSENT, { WEIGHT_HOT, 0.25, WEIGHT_AUTO },
	  false },
};
/* clang-format on */

START_TEST(a_policy_may_bring_an_operation)
{
	const struct weight_policy *policy = &moves[_i].policy;
	struct weight_metadata m = there(moves[_i].availability, 3);
	struct weight_policy_state state = { .metadata = &m,
					     .next_operation_id = 6 };
	struct weight_operation_outcome out;

	m.residency = moves[_i].residency;
	m.observed_hot_ratio = m.residency == WEIGHT_HOT   ? 1.0 :
			       m.residency == WEIGHT_MIXED ? 0.5 :
							     0.0;
	ck_assert_int_eq(change_at(&state, policy, 3, 4000, &out), 0);
	ck_assert_int_eq(out.metadata.residency, m.residency);
	ck_assert_uint_eq(out.metadata.updated_at_ms, 4000);
	ck_assert_uint_eq(out.operation.operation_id, moves[_i].moves ? 6 : 0);
	if (!moves[_i].moves)
		return;
	ck_assert_int_eq(weight_operation_check(&out.operation, NULL), 0);
	ck_assert_int_eq(out.operation.kind, WEIGHT_MIGRATING);
	ck_assert_int_eq(out.operation.target_residency, policy->preferred);
	ck_assert(out.operation.target_hot_ratio ==
		  (policy->preferred == WEIGHT_MIXED ? 0.25 : 0));
	ck_assert_uint_eq(out.operation.fenced_metadata_generation, 4);
	ck_assert_uint_eq(out.operation.started_at_ms, 4000);
	ck_assert_uint_eq(out.operation.total_units, 5);
}
END_TEST

/* What begins nothing needs no units, and no id. */
START_TEST(a_policy_that_moves_nothing_asks_for_nothing)
{
	struct weight_policy mixed = { WEIGHT_MIXED, 0.5, WEIGHT_MANUAL };
	struct weight_metadata m = there(WEIGHT_READY, 3);
	struct weight_policy_state state = { .metadata = &m,
					     .next_operation_id = UINT64_MAX };

	m.affinity_count = 1;
	ck_assert_int_eq(change(&state, &mixed, 3), 0);
	mixed.mode = WEIGHT_AUTO;
	m.availability = WEIGHT_DEGRADED;
	ck_assert_int_eq(change(&state, &mixed, 3), 0);
	m.availability = WEIGHT_READY;
	m.residency = WEIGHT_MIXED;
	m.observed_hot_ratio = 0.5;
	ck_assert_int_eq(change(&state, &mixed, 3), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_decision_commit");
	TCase *tc = tcase_create("commit");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, a_commit_to_where_it_belongs_begins_nothing, 0,
			    3);
	tcase_add_loop_test(tc, a_commit_elsewhere_brings_an_operation, 0,
			    2 * (WEIGHT_AUTO + 1));
	tcase_add_loop_test(tc, each_argument_of_a_commit_is_looked_at, 1,
			    COMMIT_FAULTS);
	tcase_add_test(tc, committing_looks_for_errors_in_order);
	tcase_add_test(tc, a_commit_is_that_of_the_import_that_was_begun);
	tcase_add_loop_test(tc, committing_again_is_committing_once, 0, 5);
	tcase_add_test(tc, each_part_of_a_manifest_counts);
	suite_add_tcase(s, tc);

	tc = tcase_create("policy");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, a_bad_policy_is_refused_first, 0, 6);
	tcase_add_test(tc, a_policy_looks_for_errors_in_order);
	tcase_add_loop_test(tc, the_same_policy_is_no_change, 0,
			    WEIGHT_DELETED + 1);
	tcase_add_loop_test(tc, a_policy_may_bring_an_operation, 0,
			    ARRAY_LEN(moves));
	tcase_add_test(tc, a_policy_that_moves_nothing_asks_for_nothing);
	suite_add_tcase(s, tc);
	return s;
}
