/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the decisions of core/weight_decision.h make of a revision, from its
 * publication to its tombstone, is what a follower accepts.
 */
#include <string.h>

#include "core/weight_decision.h"
#include "core/weight_decision_replay.h"
#include "suite.h"
#include "weight_log_fixture.h"

/* What is there (was), and what the entry says (is). */
static struct weight_metadata was, is;
static struct weight_operation op_was, op_is, next_is;
static struct weight_lease lease_was, lease_is;
static struct weight_replay_state state;
static struct oplog_change change;

/* The entry is a valid one, and follows. */
static int replay(void)
{
	cleanup(buf_release) struct buf entry = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	int r = weight_decide_replay(&state, &change, &why);

	ck_assert_msg(r == 0, "%s", why.data);
	return oplog_encode(&change, 1, &entry);
}

/* Says that the revision has become `next`, and makes it what is there. */
static void follow(const struct weight_metadata *next)
{
	is = *next;
	change.type = OPLOG_METADATA_UPSERT;
	change.metadata = &is;
	change.timestamp_ms = next->updated_at_ms;
	ck_assert_int_eq(replay(), 0);
	was = is;
	state.metadata = &was;
	change.operation_count = 0;
	memset(state.operations, 0, sizeof(state.operations));
}

/* Puts an operation into the entry; `there` says that there is one before. */
static void with(size_t i, bool there, const struct weight_operation *op)
{
	op_is = i == 0 ? *op : op_is;
	next_is = i == 1 ? *op : next_is;
	change.operations[i] = i == 0 ? &op_is : &next_is;
	state.operations[i] = there ? state.active : NULL;
	change.operation_count = i + 1;
}

static void now_active(const struct weight_operation *op)
{
	op_was = *op;
	state.active = &op_was;
	if (state.next_operation_id <= op->operation_id)
		state.next_operation_id = op->operation_id + 1;
}

static void follow_publication(void)
{
	struct weight_metadata published_as = demo_metadata();
	const struct weight_publication p = {
		.identity = published_as.identity,
		.manifest = published_as.manifest,
		.policy = published_as.policy,
		.affinity_count = published_as.affinity_count,
		.affinity_digest = published_as.affinity_digest,
		.residency = WEIGHT_COLD,
		.converges = true,
	};
	const struct weight_staging staged = { .identity = p.identity };
	const struct weight_publish_state there = { .staged = &staged,
						    .next_operation_id = 1 };
	struct weight_metadata m;
	struct weight_operation op;

	state.next_lease_id = state.next_operation_id = 1;
	ck_assert_int_eq(weight_decide_publish(&there, &p, 100, &m, NULL), 0);
	weight_decide_publish_operation(&m, &op);
	with(0, false, &op);
	follow(&m);
	now_active(&op);
}

/* What is seen of it beside its operation, whose fence follows. */
static void follow_observation(double hot_ratio, bool durable)
{
	const struct weight_observation seen = {
		.availability = WEIGHT_READY,
		.residency = hot_ratio > 0 ? WEIGHT_MIXED : WEIGHT_COLD,
		.hot_ratio = hot_ratio,
		.durable = durable,
		.beside_operation = true,
	};
	struct weight_operation op;
	struct weight_metadata m;
	bool changed, op_changed;

	ck_assert_int_eq(
		weight_decide_observe(&was, &seen, 0, 200, &m, &changed), 0);
	weight_decide_operation_follow(state.active, &m, 200, &op, &op_changed);
	if (op_changed)
		with(0, true, &op);
	follow(&m);
	now_active(&op);
}

static void follow_progress(void)
{
	const struct weight_operation_state there = { .metadata = &was,
						      .operation =
							      state.active };
	const struct weight_operation_progress p = {
		.processed_units = 1,
		.total_units = state.active->total_units,
		.processed_bytes = 10,
		.total_bytes = state.active->total_bytes,
		.cursor = "c",
		.message = "",
		.availability = WEIGHT_DEGRADED,
		.residency = WEIGHT_MIXED,
		.hot_ratio = 0.25,
	};
	struct weight_operation_outcome out;

	ck_assert_int_eq(
		weight_decide_operation_progress(
			&there, state.active->operation_id, &p, 300, &out),
		0);
	with(0, true, &out.operation);
	follow(&out.metadata);
	now_active(&out.operation);
	ck_assert_int_eq(weight_decide_operation_error(
				 &there, state.active->operation_id, "no room",
				 310, &out),
			 0);
	with(0, true, &out.operation);
	follow(&out.metadata);
	now_active(&out.operation);
}

static void follow_start(enum weight_residency target)
{
	const struct weight_operation_state there = {
		.metadata = &was,
		.operation = was.operation_id ? state.active : NULL,
		.next_operation_id = state.next_operation_id,
	};
	const struct weight_operation_request rq = {
		.kind = WEIGHT_MIGRATING,
		.target_residency = target,
		.supersedes = true,
	};
	struct weight_operation_outcome out;

	ck_assert_int_eq(weight_decide_operation_start(&there, &was.identity,
						       &rq, 400, &out, NULL),
			 0);
	with(0, false, &out.operation);
	if (out.superseded.operation_id)
		with(1, true, &out.superseded);
	follow(&out.metadata);
	now_active(&out.operation);
}

static void follow_finish(void)
{
	const struct weight_operation_state there = { .metadata = &was,
						      .operation =
							      state.active };
	struct weight_operation_outcome out;

	ck_assert_int_eq(weight_decide_operation_finish(
				 &there, state.active->operation_id,
				 WEIGHT_COLD, 0, 500, &out),
			 0);
	with(0, true, &out.operation);
	follow(&out.metadata);
}

static void follow_lease(void)
{
	const struct weight_lease_request rq = { .holder = "h",
						 .ttl_ms = 10,
						 .degraded_too = true };
	const struct weight_lease_state there = { .metadata = &was,
						  .next_lease_id =
							  state.next_lease_id };
	bool is_new;

	ck_assert_int_eq(weight_decide_lease_acquire(&there, &was.identity, &rq,
						     600, &lease_is, &is_new),
			 0);
	change = (struct oplog_change){ .type = OPLOG_LEASE_UPSERT,
					.lease = &lease_is,
					.last_accessed_at_ms = 600 };
	ck_assert_int_eq(replay(), 0);
	was.last_accessed_at_ms = 600;
	lease_was = lease_is;
	state.lease = &lease_was;
	state.next_lease_id = lease_was.lease_id + 1;
	ck_assert_int_eq(weight_decide_lease_renew(&lease_was, "default", false,
						   20, 605, &lease_is),
			 0);
	ck_assert_int_eq(replay(), 0);
	change = (struct oplog_change){
		.type = OPLOG_LEASE_DELETE,
		.lease_id = lease_was.lease_id,
		.identity = was.identity,
		.metadata_generation = lease_was.fenced_metadata_generation,
	};
	ck_assert_int_eq(replay(), 0);
	state.lease = NULL;
	ck_assert_int_eq(replay(), 0);
}

static void follow_removal(void)
{
	const struct weight_delete_state there = { .metadata = &was };
	struct weight_operation op;
	struct weight_metadata m;
	bool changed;

	ck_assert_int_eq(
		weight_decide_delete_begin(&there, 0, 700, &m, &changed), 0);
	weight_decide_operation_follow(state.active, &m, 700, &op, &changed);
	with(0, true, &op);
	follow(&m);
	ck_assert_int_eq(
		weight_decide_delete_finish(&was, 0, 800, &m, &changed), 0);
	change = (struct oplog_change){
		.type = OPLOG_METADATA_DELETE,
		.timestamp_ms = m.updated_at_ms,
		.identity = m.identity,
		.metadata_generation = m.metadata_generation,
	};
	ck_assert_int_eq(replay(), 0);
	was = m;
	ck_assert_int_eq(replay(), 0);
}

START_TEST(what_is_decided_is_followed)
{
	struct weight_metadata m;

	follow_publication();
	follow_observation(0.5, false);
	follow_observation(0.5, true);
	/* wms_mark_durable() moves the time, and no generation. */
	m = was;
	m.durable = true;
	m.updated_at_ms = 250;
	follow(&m);
	follow_progress();
	follow_start(WEIGHT_COLD);
	follow_finish();
	follow_lease();
	follow_start(WEIGHT_HOT);
	follow_removal();
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_replay");
	TCase *tc = tcase_create("core");

	tcase_add_test(tc, what_is_decided_is_followed);
	suite_add_tcase(s, tc);
	return s;
}
