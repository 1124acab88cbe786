/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_decision.h"
#include "core/weight_key.h"
#include "suite.h"

static const struct weight_identity demo = {
	.lineage = { "default", "ns", "demo", "main" },
	.generation = 7,
};

static char group_id[WEIGHT_GROUP_ID_LEN + 1];
static struct buf manifest_key = BUF_INIT;

static void setup_keys(void)
{
	ck_assert_int_eq(weight_group_id(&demo, group_id), 0);
	ck_assert_int_eq(weight_manifest_key(&demo, &manifest_key), 0);
}

static void teardown_keys(void)
{
	buf_release(&manifest_key);
}

static struct weight_publication publication(void)
{
	return (struct weight_publication){
		.identity = demo,
		.manifest = {
			.manifest_key = manifest_key.data,
			.payload_group_id = group_id,
			.manifest_sha256 = { { 1 } },
			.payload_keys_sha256 = { { 2 } },
			.complete = true,
			.payload_count = 3,
			.logical_bytes = 1000,
		},
		.policy = { WEIGHT_HOT, 0.5, WEIGHT_AUTO },
		.affinity_count = 4,
		.affinity_digest = { { 3 } },
		.residency = WEIGHT_COLD,
	};
}

/* A READY and COLD record, updated at 1000. */
static struct weight_metadata record(uint64_t metadata_generation)
{
	struct weight_staging staged = { .identity = demo };
	struct weight_publish_state state = { .staged = &staged };
	struct weight_publication p = publication();
	struct weight_metadata m;

	ck_assert_int_eq(weight_decide_publish(&state, &p, 1000, &m, NULL), 0);
	m.metadata_generation = metadata_generation;
	return m;
}

static int start(const struct weight_operation_state *state,
		 const struct weight_operation_request *rq, uint64_t now_ms,
		 struct weight_operation_outcome *ret)
{
	return weight_decide_operation_start(state, &demo, rq, now_ms, ret,
					     NULL);
}

/* Operation 3 to the target, begun at 2000 on the record at generation 5. */
static struct weight_operation_outcome begun(enum weight_residency target,
					     double ratio)
{
	struct weight_metadata m = record(5);
	struct weight_operation_state state = { .metadata = &m,
						.next_operation_id = 3 };
	struct weight_operation_request rq = { .target_residency = target,
					       .target_hot_ratio = ratio };
	struct weight_operation_outcome out;

	ck_assert_int_eq(start(&state, &rq, 2000, &out), 0);
	return out;
}

static struct weight_operation_state state_of(
	const struct weight_operation_outcome *out)
{
	return (struct weight_operation_state){ .metadata = &out->metadata,
						.operation = &out->operation };
}

static void assert_valid(const struct weight_operation_outcome *out)
{
	ck_assert_int_eq(weight_operation_check(&out->operation, NULL), 0);
	ck_assert_int_eq(weight_metadata_check(&out->metadata, NULL), 0);
}

START_TEST(starting_gives_both_records)
{
	struct weight_operation_outcome out = begun(WEIGHT_MIXED, 0.25);

	assert_valid(&out);
	ck_assert(out.changed);
	ck_assert_uint_eq(out.operation.operation_id, 3);
	ck_assert(weight_identity_equal(&out.operation.identity, &demo));
	ck_assert_int_eq(out.operation.kind, WEIGHT_MIGRATING);
	ck_assert_int_eq(out.operation.target_residency, WEIGHT_MIXED);
	ck_assert(out.operation.target_hot_ratio == 0.25);
	ck_assert_uint_eq(out.operation.fenced_metadata_generation, 6);
	ck_assert_uint_eq(out.operation.started_at_ms, 2000);
	ck_assert_uint_eq(out.operation.updated_at_ms, 2000);
	ck_assert_uint_eq(out.operation.processed_units, 0);
	ck_assert_uint_eq(out.operation.total_units, 4);
	ck_assert_uint_eq(out.operation.processed_bytes, 0);
	ck_assert_uint_eq(out.operation.total_bytes, 1000);
	ck_assert_str_eq(out.operation.cursor, "");
	ck_assert_str_eq(out.operation.message, "");
	ck_assert_uint_eq(out.metadata.metadata_generation, 6);
	ck_assert_uint_eq(out.metadata.operation_id, 3);
	ck_assert_uint_eq(out.metadata.updated_at_ms, 2000);
	ck_assert_int_eq(out.metadata.residency, WEIGHT_COLD);
}
END_TEST

/* WeightMetadataStore.OperationTimestampsRemainMonotonic */
START_TEST(times_never_go_back)
{
	struct weight_metadata m = record(5);
	struct weight_operation_state state = { .metadata = &m,
						.next_operation_id = 1 };
	struct weight_operation_request rq = { .target_residency = WEIGHT_HOT };
	struct weight_operation_outcome out;

	ck_assert_int_eq(start(&state, &rq, 1, &out), 0);
	ck_assert_uint_eq(out.operation.started_at_ms, 1000);
	state = state_of(&out);
	ck_assert_int_eq(weight_decide_operation_error(&state, 1, "m", 1, &out),
			 0);
	ck_assert_uint_eq(out.operation.updated_at_ms, 1000);
	ck_assert_int_eq(weight_decide_operation_finish(&state, 1, WEIGHT_HOT,
							1.0, 1, &out),
			 0);
	ck_assert_uint_eq(out.operation.updated_at_ms, 1000);
	ck_assert_uint_eq(out.metadata.updated_at_ms, 1000);
	assert_valid(&out);
}
END_TEST

/* clang-format off */
static const struct {
	const char *why;
	struct weight_operation_request rq;
} bad_requests[] = {
	{ "unknown kind",      { (enum weight_operation_kind)2, WEIGHT_HOT,
				 0.0, 0 } },
	{ "nowhere",           { WEIGHT_MIGRATING, WEIGHT_ABSENT,  0.0, 0 } },
	{ "anywhere",          { WEIGHT_MIGRATING, WEIGHT_UNKNOWN, 0.0, 0 } },
	{ "unknown target",    { WEIGHT_MIGRATING, (enum weight_residency)5,
				 0.0, 0 } },
	{ "hot with ratio",    { WEIGHT_MIGRATING, WEIGHT_HOT,     0.5, 0 } },
	{ "cold with ratio",   { WEIGHT_MIGRATING, WEIGHT_COLD,    0.5, 0 } },
	{ "mixed without",     { WEIGHT_MIGRATING, WEIGHT_MIXED,   0.0, 0 } },
	{ "mixed with all",    { WEIGHT_MIGRATING, WEIGHT_MIXED,   1.0, 0 } },
	{ "mixed with less",   { WEIGHT_MIGRATING, WEIGHT_MIXED,  -0.5, 0 } },
	{ "mixed with a NaN",  { WEIGHT_MIGRATING, WEIGHT_MIXED, (double)NAN,
				 0 } },
};
/* clang-format on */

/* mixed_operation_requires_target_ratio */
START_TEST(a_request_that_means_nothing_is_refused)
{
	struct weight_operation_state state = { .fenced = true };
	struct weight_operation_outcome out = { .changed = true };
	struct buf why = BUF_INIT;
	int r;

	r = weight_decide_operation_start(&state, &demo, &bad_requests[_i].rq,
					  1, &out, &why);
	ck_assert_msg(r == -EINVAL, "%s: %d", bad_requests[_i].why, r);
	ck_assert_uint_gt(why.len, 0);
	ck_assert_uint_eq(out.operation.operation_id, 0);
	buf_release(&why);
}
END_TEST

/*
 * Each step mends what the one before was refused for.
 * WeightMetadataStore.ExcludesConcurrentResidencyOperations
 */
START_TEST(starting_looks_for_errors_in_order)
{
	struct weight_metadata m = record(WEIGHT_METADATA_GENERATION_MAX);
	struct weight_operation active = begun(WEIGHT_HOT, 0.0).operation;
	struct weight_operation_state state = { .operation = &active,
						.fenced = true };
	struct weight_operation_request rq = { .target_residency = WEIGHT_MIXED,
					       .target_hot_ratio = 2.0 };
	struct weight_identity bad = demo;
	struct weight_operation_outcome out;
	struct buf why = BUF_INIT;

	m.availability = WEIGHT_DELETING;
	m.policy.mode = WEIGHT_PINNED;
	m.affinity_count = 1;
	state.next_operation_id = UINT64_MAX;
	rq.expected_metadata_generation = 3;
	bad.generation = 0;
	ck_assert_int_eq(start(&state, &rq, 1, &out), -EINVAL);
	rq.target_hot_ratio = 0.5;
	ck_assert_int_eq(
		weight_decide_operation_start(&state, &bad, &rq, 1, &out, NULL),
		-EINVAL);
	ck_assert_int_eq(start(&state, &rq, 1, &out), -ENOENT);
	state.metadata = &m;
	ck_assert_int_eq(start(&state, &rq, 1, &out), -EBUSY);
	state.fenced = false;
	ck_assert_int_eq(weight_decide_operation_start(&state, &demo, &rq, 1,
						       &out, &why),
			 -EBUSY);
	ck_assert_ptr_nonnull(strstr(why.data, "operation 3"));
	buf_release(&why);
	state.operation = NULL;
	ck_assert_int_eq(start(&state, &rq, 1, &out), -ECANCELED);
	rq.expected_metadata_generation = m.metadata_generation;
	ck_assert_int_eq(start(&state, &rq, 1, &out), -EINPROGRESS);
	m.availability = WEIGHT_DEGRADED;
	ck_assert_int_eq(weight_decide_operation_start(&state, &demo, &rq, 1,
						       &out, &why),
			 -EPERM);
	ck_assert_ptr_nonnull(strstr(why.data, "pinned"));
	buf_release(&why);
	m.policy.mode = WEIGHT_MANUAL;
	ck_assert_int_eq(start(&state, &rq, 1, &out), -EPERM);
	m.affinity_count = 2;
	ck_assert_int_eq(start(&state, &rq, 1, &out), -EOVERFLOW);
	m.metadata_generation--;
	rq.expected_metadata_generation = 0;
	ck_assert_int_eq(start(&state, &rq, 1, &out), -EOVERFLOW);
	state.next_operation_id--;
	ck_assert_int_eq(start(&state, &rq, 1, &out), 0);
	assert_valid(&out);
}
END_TEST

/* clang-format off */
static const struct {
	enum weight_operation_kind kind;
	enum weight_residency target;
	double ratio;
	uint64_t expected;
	int err; /* beside migrating to mixed 0.5, at generation 6 */
} repeats[] = {
	{ WEIGHT_MIGRATING, WEIGHT_MIXED, 0.5,  0, 0 },
	{ WEIGHT_MIGRATING, WEIGHT_MIXED, 0.5,  6, 0 },
	{ WEIGHT_MIGRATING, WEIGHT_MIXED, 0.5,  5, 0 },
	{ WEIGHT_MIGRATING, WEIGHT_MIXED, 0.5,  4, -ECANCELED },
	{ WEIGHT_MIGRATING, WEIGHT_MIXED, 0.5,  7, -ECANCELED },
	{ WEIGHT_MIGRATING, WEIGHT_MIXED, 0.25, 6, -EBUSY },
	{ WEIGHT_MIGRATING, WEIGHT_HOT,   0.0,  5, -EBUSY },
	{ WEIGHT_MIGRATING, WEIGHT_COLD,  0.0,  4, -EBUSY },
	{ WEIGHT_REPAIRING, WEIGHT_MIXED, 0.5,  6, -EBUSY },
};
/* clang-format on */

START_TEST(starting_twice_is_starting_once)
{
	struct weight_operation_outcome first = begun(WEIGHT_MIXED, 0.5);
	struct weight_operation_state state = state_of(&first);
	struct weight_operation_request rq = { repeats[_i].kind,
					       repeats[_i].target,
					       repeats[_i].ratio,
					       repeats[_i].expected };
	struct weight_operation_outcome out;

	state.next_operation_id = 9;
	first.metadata.policy.mode = WEIGHT_PINNED; /* comes later */
	ck_assert_int_eq(start(&state, &rq, 3000, &out), repeats[_i].err);
	if (repeats[_i].err)
		return;
	ck_assert(!out.changed);
	ck_assert_uint_eq(out.operation.operation_id, 3);
	ck_assert_uint_eq(out.operation.updated_at_ms, 2000);
	ck_assert_uint_eq(out.metadata.metadata_generation, 6);
}
END_TEST

/* WeightPolicyState.PinnedPolicyRejectsExplicitMigration */
START_TEST(a_pinned_revision_can_still_be_repaired)
{
	struct weight_metadata m = record(5);
	struct weight_operation_state state = { .metadata = &m,
						.next_operation_id = 1 };
	struct weight_operation_request rq = { .target_residency = WEIGHT_HOT };
	struct weight_operation_outcome out;

	m.policy.mode = WEIGHT_PINNED;
	ck_assert_int_eq(start(&state, &rq, 1, &out), -EPERM);
	rq.kind = WEIGHT_REPAIRING;
	ck_assert_int_eq(start(&state, &rq, 1, &out), 0);
	ck_assert(weight_operation_blocks(&out.operation));
	out.operation.kind = WEIGHT_MIGRATING;
	ck_assert(!weight_operation_blocks(&out.operation));
	ck_assert(!weight_operation_blocks(NULL));
}
END_TEST

/* What was seen of a cold revision after one of four units went to memory. */
static struct weight_operation_progress progress_of(uint64_t units,
						    uint64_t bytes,
						    const char *cursor)
{
	return (struct weight_operation_progress){
		.processed_units = units,
		.total_units = 4,
		.processed_bytes = bytes,
		.total_bytes = 1000,
		.cursor = cursor,
		.message = "",
		.availability = WEIGHT_READY,
		.residency = WEIGHT_COLD,
	};
}

static int progress(const struct weight_operation_state *state,
		    const struct weight_operation_progress *p, uint64_t now_ms,
		    struct weight_operation_outcome *ret)
{
	return weight_decide_operation_progress(state, 3, p, now_ms, ret);
}

/* WeightMetadataStore.UnchangedOperationProgressIsIdempotent */
START_TEST(counters_alone_are_no_new_generation)
{
	struct weight_operation_outcome first = begun(WEIGHT_HOT, 0.0), out;
	struct weight_operation_state state = state_of(&first);
	struct weight_operation_progress p = progress_of(1, 200, "unit.1");

	ck_assert_int_eq(progress(&state, &p, 3000, &out), 0);
	assert_valid(&out);
	ck_assert(out.changed);
	ck_assert_uint_eq(out.operation.processed_units, 1);
	ck_assert_uint_eq(out.operation.processed_bytes, 200);
	ck_assert_str_eq(out.operation.cursor, "unit.1");
	ck_assert_uint_eq(out.operation.updated_at_ms, 3000);
	ck_assert_uint_eq(out.operation.started_at_ms, 2000);
	ck_assert_uint_eq(out.operation.fenced_metadata_generation, 6);
	ck_assert_uint_eq(out.metadata.metadata_generation, 6);
	ck_assert_uint_eq(out.metadata.updated_at_ms, 2000);
	/* The same again. */
	first = out;
	ck_assert_int_eq(progress(&state, &p, 4000, &out), 0);
	ck_assert(!out.changed);
	ck_assert_uint_eq(out.operation.updated_at_ms, 3000);
	/* Another message is news, and needs no progress. */
	p.message = "waits for memory";
	ck_assert_int_eq(progress(&state, &p, 4000, &out), 0);
	ck_assert(out.changed);
	ck_assert_str_eq(out.operation.message, "waits for memory");
	ck_assert_uint_eq(out.metadata.metadata_generation, 6);
}
END_TEST

START_TEST(what_is_seen_is_a_new_generation_and_the_fence_follows)
{
	struct weight_operation_outcome first = begun(WEIGHT_HOT, 0.0), out;
	struct weight_operation_state state = state_of(&first);
	struct weight_operation_progress p = progress_of(1, 200, "unit.1");

	p.residency = WEIGHT_MIXED;
	p.hot_ratio = 0.2;
	ck_assert_int_eq(progress(&state, &p, 3000, &out), 0);
	assert_valid(&out);
	ck_assert_uint_eq(out.metadata.metadata_generation, 7);
	ck_assert_uint_eq(out.operation.fenced_metadata_generation, 7);
	ck_assert_int_eq(out.metadata.residency, WEIGHT_MIXED);
	ck_assert(out.metadata.observed_hot_ratio == 0.2);
	ck_assert_uint_eq(out.metadata.operation_id, 3);
	first = out;
	ck_assert_int_eq(progress(&state, &p, 4000, &out), 0);
	ck_assert(!out.changed);
	/* A loss; the operation and what it has done stay. */
	p.availability = WEIGHT_DEGRADED;
	p.residency = WEIGHT_ABSENT;
	p.hot_ratio = 0.0;
	ck_assert_int_eq(progress(&state, &p, 5000, &out), 0);
	assert_valid(&out);
	ck_assert_int_eq(out.metadata.availability, WEIGHT_DEGRADED);
	ck_assert_uint_eq(out.metadata.metadata_generation, 8);
	ck_assert_uint_eq(out.operation.fenced_metadata_generation, 8);
	ck_assert_uint_eq(out.operation.processed_units, 1);
	/* But READY needs its payload. */
	first = out;
	p.availability = WEIGHT_READY;
	ck_assert_int_eq(progress(&state, &p, 6000, &out), -EINVAL);
	p.residency = WEIGHT_COLD;
	ck_assert_int_eq(progress(&state, &p, 6000, &out), 0);
	ck_assert_int_eq(out.metadata.availability, WEIGHT_READY);
}
END_TEST

#define COLD WEIGHT_READY, WEIGHT_COLD, 0.0

/* clang-format off */
static const struct {
	const char *why;
	int err;
	struct weight_operation_progress p; /* after 2 of 4, 500 of 1000, "b" */
} bad_progress[] = {
	{ "no units in all",     -EINVAL,  { 0, 0, 500, 1000, "b", "", COLD } },
	{ "no bytes in all",     -EINVAL,  { 2, 4, 0, 0, "b", "", COLD } },
	{ "too many units",      -EINVAL,  { 5, 4, 500, 1000, "b", "", COLD } },
	{ "too many bytes",      -EINVAL,  { 2, 4, 1001, 1000, "b",
	  "", COLD } },
	{ "bad cursor",          -EINVAL,  { 3, 4, 600, 1000, "\n",
	  "", COLD } },
	{ "bad message",         -EINVAL,  { 3, 4, 600, 1000, "c",
	  "\x7f", COLD } },
	{ "says completed",      -EINVAL,  { 3, 4, 600, 1000, "c",
	  "completed", COLD } },
	{ "says removed",        -EINVAL,  { 3, 4, 600, 1000, "c",
	  WEIGHT_OPERATION_REMOVED, COLD } },
	{ "seen deleting",       -EINVAL,  { 3, 4, 600, 1000, "c",
	  "", WEIGHT_DELETING, WEIGHT_COLD, 0.0 } },
	{ "seen importing",      -EINVAL,  { 3, 4, 600, 1000, "c",
	  "", WEIGHT_IMPORTING, WEIGHT_UNKNOWN, 0.0 } },
	{ "seen nowhere",        -EINVAL,  { 3, 4, 600, 1000, "c",
	  "", WEIGHT_READY, WEIGHT_ABSENT, 0.0 } },
	{ "not known where",     -EINVAL,  { 3, 4, 600, 1000, "c",
	  "", WEIGHT_READY, WEIGHT_UNKNOWN, 0.0 } },
	{ "hot in part",         -EINVAL,  { 3, 4, 600, 1000, "c",
	  "", WEIGHT_READY, WEIGHT_HOT, 0.5 } },
	{ "mixed in all",        -EINVAL,  { 3, 4, 600, 1000, "c",
	  "", WEIGHT_READY, WEIGHT_MIXED, 1.0 } },
	{ "unknown residency",   -EINVAL,  { 3, 4, 600, 1000, "c",
	  "", WEIGHT_READY, (enum weight_residency)5, 0.0 } },
	{ "other units in all",  -EEXIST,  { 3, 5, 600, 1000, "c", "", COLD } },
	{ "other bytes in all",  -EEXIST,  { 3, 4, 600, 1001, "c", "", COLD } },
	{ "fewer units",         -EEXIST,  { 1, 4, 600, 1000, "c", "", COLD } },
	{ "fewer bytes",         -EEXIST,  { 3, 4, 499, 1000, "c", "", COLD } },
	{ "only a cursor",       -EEXIST,  { 2, 4, 500, 1000, "c", "", COLD } },
	{ "only no cursor",      -EEXIST,  { 2, 4, 500, 1000, "", "", COLD } },
	{ "more units",          0,        { 3, 4, 500, 1000, "c", "", COLD } },
	{ "more bytes",          0,        { 2, 4, 501, 1000, "c", "", COLD } },
	{ "all",                 0,        { 4, 4, 1000, 1000, "", "", COLD } },
	{ "the same",            0,        { 2, 4, 500, 1000, "b", "", COLD } },
};
/* clang-format on */

/* WeightMetadataStore.OperationProgressRejectsRegression */
START_TEST(progress_follows_its_rules)
{
	struct weight_operation_outcome first = begun(WEIGHT_HOT, 0.0), out;
	struct weight_operation_progress p = progress_of(2, 500, "b");
	struct weight_operation_state state = state_of(&first);
	int r;

	ck_assert_int_eq(progress(&state, &p, 3000, &out), 0);
	first = out;
	out.operation.operation_id = 99;
	r = progress(&state, &bad_progress[_i].p, 4000, &out);
	ck_assert_msg(r == bad_progress[_i].err, "%s: %d", bad_progress[_i].why,
		      r);
	if (r == 0)
		assert_valid(&out);
	else
		ck_assert_uint_eq(out.operation.operation_id, 99);
}
END_TEST

START_TEST(progress_looks_for_errors_in_order)
{
	struct weight_operation_outcome first = begun(WEIGHT_HOT, 0.0), out;
	struct weight_operation_progress p = progress_of(1, 1, "c");
	struct weight_operation_state state = { .metadata = NULL };
	struct weight_metadata m = first.metadata;
	struct weight_operation op = first.operation;

	p.processed_units = 9;
	p.total_bytes = 2000;
	ck_assert_int_eq(
		weight_decide_operation_progress(&state, 0, &p, 1, &out),
		-EINVAL);
	ck_assert_int_eq(progress(&state, &p, 1, &out), -EINVAL);
	p.processed_units = 1;
	p.residency = WEIGHT_ABSENT; /* and READY */
	ck_assert_int_eq(progress(&state, &p, 1, &out), -EINVAL);
	p.residency = (enum weight_residency)5;
	ck_assert_int_eq(progress(&state, &p, 1, &out), -EINVAL);
	p.residency = WEIGHT_COLD;
	ck_assert_int_eq(progress(&state, &p, 1, &out), -ENOENT);
	state.metadata = &m;
	ck_assert_int_eq(progress(&state, &p, 1, &out), -ENOENT);
	state.operation = &op;
	m.operation_id = 4;
	ck_assert_int_eq(progress(&state, &p, 1, &out), -EEXIST);
	m.operation_id = 3;
	op.message = WEIGHT_OPERATION_REMOVED;
	ck_assert_int_eq(progress(&state, &p, 1, &out), -EEXIST);
	op.message = "";
	ck_assert_int_eq(progress(&state, &p, 1, &out), -EEXIST);
	p.total_bytes = 1000;
	p.residency = WEIGHT_MIXED;
	p.hot_ratio = 0.5;
	m.metadata_generation = WEIGHT_METADATA_GENERATION_MAX;
	ck_assert_int_eq(progress(&state, &p, 1, &out), -EOVERFLOW);
	p.residency = WEIGHT_COLD;
	p.hot_ratio = 0.0;
	ck_assert_int_eq(progress(&state, &p, 1, &out), 0);
}
END_TEST

/* A checkpoint without any tensor, or with tensors of no size, is real. */
START_TEST(an_operation_on_nothing_makes_progress_too)
{
	struct weight_operation_outcome first = begun(WEIGHT_HOT, 0.0), out;
	struct weight_operation_state state = state_of(&first);
	struct weight_operation_progress p = progress_of(0, 10, "c");

	first.operation.total_units = 0;
	p.total_units = 0;
	ck_assert_int_eq(progress(&state, &p, 3000, &out), 0);
	first.operation.total_bytes = 0;
	p = progress_of(0, 0, "");
	p.total_units = p.total_bytes = 0;
	p.message = "waits";
	ck_assert_int_eq(progress(&state, &p, 3000, &out), 0);
	ck_assert_int_eq(weight_decide_operation_finish(&state, 3, WEIGHT_HOT,
							1.0, 1, &out),
			 0);
	assert_valid(&out);
}
END_TEST

/*
 * WeightMetadataStore.RecordsRetryableOperationErrorWithoutChangingAvailability
 */
START_TEST(an_error_is_noted_and_nothing_else_changes)
{
	struct weight_operation_outcome first = begun(WEIGHT_COLD, 0.0), out;
	struct weight_operation_state state = state_of(&first);
	const char *failed = "cold replica write failed";

	ck_assert_int_eq(
		weight_decide_operation_error(&state, 3, failed, 3000, &out),
		0);
	assert_valid(&out);
	ck_assert(out.changed);
	ck_assert_str_eq(out.operation.message, failed);
	ck_assert_uint_eq(out.operation.updated_at_ms, 3000);
	ck_assert_int_eq(out.metadata.availability, WEIGHT_READY);
	ck_assert_uint_eq(out.metadata.metadata_generation, 6);
	ck_assert_uint_eq(out.metadata.operation_id, 3);
	first = out;
	ck_assert_int_eq(
		weight_decide_operation_error(&state, 3, failed, 4000, &out),
		0);
	ck_assert(!out.changed);
	ck_assert_uint_eq(out.operation.updated_at_ms, 3000);
}
END_TEST

START_TEST(an_error_is_refused_in_order)
{
	static const char *const bad[] = { "", "a\nb", "completed",
					   WEIGHT_OPERATION_REMOVED };
	struct weight_operation_outcome first = begun(WEIGHT_COLD, 0.0), out;
	struct weight_operation_state state = { .metadata = NULL };

	ck_assert_int_eq(weight_decide_operation_error(&state, 0, "m", 1, &out),
			 -EINVAL);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		ck_assert_int_eq(weight_decide_operation_error(&state, 3,
							       bad[i], 1, &out),
				 -EINVAL);
	ck_assert_int_eq(weight_decide_operation_error(&state, 3, "m", 1, &out),
			 -ENOENT);
	state = state_of(&first);
	first.metadata.operation_id = 0;
	ck_assert_int_eq(weight_decide_operation_error(&state, 3, "m", 1, &out),
			 -EEXIST);
}
END_TEST

static int finish(const struct weight_operation_state *state,
		  enum weight_residency residency, double ratio,
		  struct weight_operation_outcome *ret)
{
	return weight_decide_operation_finish(state, 3, residency, ratio, 3000,
					      ret);
}

START_TEST(finishing_tells_what_was_reached)
{
	struct weight_operation_outcome first = begun(WEIGHT_MIXED, 0.5), out;
	struct weight_operation_state state = state_of(&first);

	first.operation.cursor = "c";
	first.operation.message = "m";
	/* Whole units rarely make the very ratio. */
	ck_assert_int_eq(finish(&state, WEIGHT_MIXED, 0.4, &out), 0);
	assert_valid(&out);
	ck_assert(out.changed);
	ck_assert(weight_operation_is_finished(&out.operation));
	ck_assert_uint_eq(out.operation.processed_units, 4);
	ck_assert_uint_eq(out.operation.processed_bytes, 1000);
	ck_assert_str_eq(out.operation.cursor, "");
	ck_assert(out.operation.target_hot_ratio == 0.5);
	ck_assert_uint_eq(out.operation.updated_at_ms, 3000);
	ck_assert_uint_eq(out.operation.fenced_metadata_generation, 6);
	ck_assert_uint_eq(out.metadata.metadata_generation, 7);
	ck_assert_uint_eq(out.metadata.operation_id, 0);
	ck_assert_int_eq(out.metadata.residency, WEIGHT_MIXED);
	ck_assert(out.metadata.observed_hot_ratio == 0.4);
	/* A repeat, and what is none. */
	first = out;
	ck_assert_int_eq(finish(&state, WEIGHT_MIXED, 0.4, &out), 0);
	ck_assert(!out.changed);
	ck_assert_uint_eq(out.metadata.metadata_generation, 7);
	ck_assert_int_eq(finish(&state, WEIGHT_MIXED, 0.5, &out), -EEXIST);
	ck_assert_int_eq(finish(&state, WEIGHT_HOT, 1.0, &out), -EEXIST);
	first.metadata.operation_id = 4;
	ck_assert_int_eq(finish(&state, WEIGHT_MIXED, 0.4, &out), -EEXIST);
}
END_TEST

/* WeightGroupLifecycle.OperationRemainsPendingUntilTargetObserved */
START_TEST(finishing_looks_for_errors_in_order)
{
	struct weight_operation_outcome first = begun(WEIGHT_HOT, 0.0), out;
	struct weight_operation_state state = { .metadata = NULL };

	first.metadata.metadata_generation = WEIGHT_METADATA_GENERATION_MAX;
	ck_assert_int_eq(weight_decide_operation_finish(&state, 0, WEIGHT_HOT,
							1.0, 1, &out),
			 -EINVAL);
	ck_assert_int_eq(finish(&state, WEIGHT_HOT, 0.0, &out), -EINVAL);
	ck_assert_int_eq(finish(&state, WEIGHT_MIXED, (double)NAN, &out),
			 -EINVAL);
	ck_assert_int_eq(finish(&state, (enum weight_residency)5, 0.0, &out),
			 -EINVAL);
	ck_assert_int_eq(finish(&state, WEIGHT_COLD, 0.0, &out), -ENOENT);
	state.metadata = &first.metadata;
	ck_assert_int_eq(finish(&state, WEIGHT_COLD, 0.0, &out), -ENOENT);
	state.operation = &first.operation;
	first.metadata.operation_id = 4;
	ck_assert_int_eq(finish(&state, WEIGHT_COLD, 0.0, &out), -EEXIST);
	first.metadata.operation_id = 3;
	ck_assert_int_eq(finish(&state, WEIGHT_COLD, 0.0, &out), -EINPROGRESS);
	ck_assert_int_eq(finish(&state, WEIGHT_MIXED, 0.9, &out), -EINPROGRESS);
	ck_assert_int_eq(finish(&state, WEIGHT_HOT, 1.0, &out), -EOVERFLOW);
	first.metadata.metadata_generation--;
	ck_assert_int_eq(finish(&state, WEIGHT_HOT, 1.0, &out), 0);
	assert_valid(&out);
}
END_TEST

START_TEST(an_operation_follows_its_revision)
{
	struct weight_operation_outcome out = begun(WEIGHT_COLD, 0.0);
	struct weight_operation op;
	bool changed = true;

	out.operation.cursor = "c";
	weight_decide_operation_follow(&out.operation, &out.metadata, 3000, &op,
				       &changed);
	ck_assert(!changed);
	ck_assert_uint_eq(op.updated_at_ms, 2000);
	out.metadata.metadata_generation++;
	weight_decide_operation_follow(&out.operation, &out.metadata, 3000, &op,
				       &changed);
	ck_assert(changed);
	ck_assert_uint_eq(op.fenced_metadata_generation, 7);
	ck_assert_uint_eq(op.updated_at_ms, 3000);
	ck_assert_str_eq(op.cursor, "c");
	out.metadata.operation_id = 0;
	weight_decide_operation_follow(&out.operation, &out.metadata, 1, &op,
				       &changed);
	ck_assert(changed);
	ck_assert(weight_operation_is_over(&op));
	ck_assert(!weight_operation_is_finished(&op));
	ck_assert_uint_eq(op.fenced_metadata_generation, 6);
	ck_assert_uint_eq(op.updated_at_ms, 2000);
	ck_assert_int_eq(weight_operation_check(&op, NULL), 0);
	/* Even where it had got there, nobody finished it. */
	out.operation = op;
	ck_assert_int_eq(
		finish(&(struct weight_operation_state){ .metadata =
								 &out.metadata,
							 .operation = &op },
		       WEIGHT_COLD, 0.0, &out),
		-EEXIST);
}
END_TEST

/* clang-format off */
static const struct {
	struct weight_policy policy;
	enum weight_residency residency;
	double ratio;
	bool begins;
} publications[] = {
	{ { WEIGHT_HOT,   0.5, WEIGHT_AUTO },   WEIGHT_HOT,  1.0, false },
	{ { WEIGHT_HOT,   0.5, WEIGHT_AUTO },   WEIGHT_COLD, 0.0, true },
	{ { WEIGHT_COLD,  0.5, WEIGHT_MANUAL }, WEIGHT_HOT,  1.0, true },
	{ { WEIGHT_COLD,  0.5, WEIGHT_PINNED }, WEIGHT_HOT,  1.0, true },
	{ { WEIGHT_COLD,  0.5, WEIGHT_PINNED }, WEIGHT_COLD, 0.0, false },
	{ { WEIGHT_MIXED, 0.3, WEIGHT_PINNED }, WEIGHT_HOT,  1.0, true },
};
/* clang-format on */

START_TEST(publishing_begins_what_its_policy_wants)
{
	struct weight_staging staged = { .identity = demo };
	struct weight_publish_state state = { .staged = &staged,
					      .next_operation_id = 8 };
	struct weight_publication p = publication();
	bool mixed = publications[_i].policy.preferred == WEIGHT_MIXED;
	struct weight_operation_outcome out;

	p.policy = publications[_i].policy;
	p.residency = publications[_i].residency;
	p.observed_hot_ratio = publications[_i].ratio;
	/* Only when asked to. */
	ck_assert_int_eq(
		weight_decide_publish(&state, &p, 1, &out.metadata, NULL), 0);
	ck_assert_uint_eq(out.metadata.operation_id, 0);
	p.converges = true;
	ck_assert_int_eq(
		weight_decide_publish(&state, &p, 1, &out.metadata, NULL), 0);
	ck_assert_uint_eq(out.metadata.metadata_generation, 2);
	ck_assert_uint_eq(out.metadata.operation_id,
			  publications[_i].begins ? 8 : 0);
	if (!publications[_i].begins)
		return;
	weight_decide_publish_operation(&out.metadata, &out.operation);
	assert_valid(&out);
	ck_assert_int_eq(out.operation.kind, WEIGHT_MIGRATING);
	ck_assert_int_eq(out.operation.target_residency, p.policy.preferred);
	ck_assert(out.operation.target_hot_ratio == (mixed ? 0.3 : 0.0));
	ck_assert_uint_eq(out.operation.fenced_metadata_generation, 2);
	ck_assert_uint_eq(out.operation.total_units, 4);
	ck_assert_uint_eq(out.operation.total_bytes, 1000);
	state.next_operation_id = UINT64_MAX;
	ck_assert_int_eq(
		weight_decide_publish(&state, &p, 1, &out.metadata, NULL),
		-EOVERFLOW);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_operation");
	TCase *tc = tcase_create("weight_operation");

	tcase_add_checked_fixture(tc, setup_keys, teardown_keys);
	tcase_add_test(tc, starting_gives_both_records);
	tcase_add_test(tc, times_never_go_back);
	tcase_add_loop_test(tc, a_request_that_means_nothing_is_refused, 0,
			    ARRAY_LEN(bad_requests));
	tcase_add_test(tc, starting_looks_for_errors_in_order);
	tcase_add_loop_test(tc, starting_twice_is_starting_once, 0,
			    ARRAY_LEN(repeats));
	tcase_add_test(tc, a_pinned_revision_can_still_be_repaired);
	tcase_add_test(tc, counters_alone_are_no_new_generation);
	tcase_add_test(tc,
		       what_is_seen_is_a_new_generation_and_the_fence_follows);
	tcase_add_loop_test(tc, progress_follows_its_rules, 0,
			    ARRAY_LEN(bad_progress));
	tcase_add_test(tc, progress_looks_for_errors_in_order);
	tcase_add_test(tc, an_operation_on_nothing_makes_progress_too);
	tcase_add_test(tc, an_error_is_noted_and_nothing_else_changes);
	tcase_add_test(tc, an_error_is_refused_in_order);
	tcase_add_test(tc, finishing_tells_what_was_reached);
	tcase_add_test(tc, finishing_looks_for_errors_in_order);
	tcase_add_test(tc, an_operation_follows_its_revision);
	tcase_add_loop_test(tc, publishing_begins_what_its_policy_wants, 0,
			    ARRAY_LEN(publications));
	suite_add_tcase(s, tc);
	return s;
}
