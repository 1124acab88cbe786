/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_decision.h"
#include "core/weight_key.h"
#include "fault.h"
#include "suite.h"

static const struct weight_identity demo = {
	.lineage = { "default", "default", "demo", "main" },
	.generation = 7,
};

static char group_id[WEIGHT_GROUP_ID_LEN + 1];
static struct buf manifest_key = BUF_INIT;

static void setup(void)
{
	buf_release(&manifest_key);
	ck_assert_int_eq(weight_group_id(&demo, group_id), 0);
	ck_assert_int_eq(weight_manifest_key(&demo, &manifest_key), 0);
}

static void teardown(void)
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
		.affinity_count = 5,
		.affinity_digest = { { 3 } },
		.residency = WEIGHT_COLD,
	};
}

/* The published record, moved to a state by hand. */
static struct weight_metadata record(enum weight_availability availability,
				     uint64_t metadata_generation)
{
	struct weight_staging staged = { .identity = demo };
	struct weight_publish_state state = { .staged = &staged };
	struct weight_publication p = publication();
	struct weight_metadata m;

	ck_assert_int_eq(weight_decide_publish(&state, &p, 1000, &m, NULL), 0);
	m.availability = availability;
	m.metadata_generation = metadata_generation;
	if (availability == WEIGHT_DELETED)
		m.residency = WEIGHT_ABSENT;
	return m;
}

START_TEST(staging_needs_a_generation_that_never_was)
{
	static const enum weight_availability states[] = {
		WEIGHT_IMPORTING, WEIGHT_READY, WEIGHT_DEGRADED,
		WEIGHT_DELETING, WEIGHT_DELETED
	};
	static const char *const says[] = { "being imported already",
					    "published already",
					    "published already", "removed",
					    "removed" };
	struct weight_staging staged = { .identity = demo };
	struct weight_identity bad = demo;
	struct buf why = BUF_INIT;

	ck_assert_int_eq(weight_decide_stage(NULL, NULL, &demo, &why), 0);
	ck_assert_uint_eq(why.len, 0);
	ck_assert_int_eq(weight_decide_stage(NULL, &staged, &demo, &why),
			 -EEXIST);
	ck_assert_ptr_nonnull(strstr(why.data, "staged already"));
	for (size_t i = 0; i < ARRAY_LEN(states); i++) {
		struct weight_metadata m = record(states[i], 4);

		buf_release(&why);
		ck_assert_int_eq(weight_decide_stage(&m, NULL, &demo, &why),
				 -EEXIST);
		ck_assert_ptr_nonnull(strstr(why.data, says[i]));
	}
	buf_release(&why);
	bad.generation = 0;
	ck_assert_int_eq(weight_decide_stage(NULL, NULL, &bad, NULL), -EINVAL);
}
END_TEST

START_TEST(publishing_gives_a_ready_record)
{
	struct weight_staging staged = { .identity = demo,
					 .created_at_ms = 500 };
	struct weight_publish_state state = { .staged = &staged };
	struct weight_publication p = publication();
	struct weight_metadata m;

	ck_assert_int_eq(weight_decide_publish(&state, &p, 1000, &m, NULL), 0);
	ck_assert_int_eq(m.availability, WEIGHT_READY);
	ck_assert_int_eq(m.residency, WEIGHT_COLD);
	ck_assert_uint_eq(m.metadata_generation, 2);
	ck_assert_uint_eq(m.operation_id, 0);
	ck_assert_uint_eq(m.created_at_ms, 1000);
	ck_assert_uint_eq(m.updated_at_ms, 1000);
	ck_assert_uint_eq(m.last_accessed_at_ms, 1000);
	ck_assert_int_eq(weight_metadata_check(&m, NULL), 0);
	/* A clock that went back since the import began. */
	ck_assert_int_eq(weight_decide_publish(&state, &p, 100, &m, NULL), 0);
	ck_assert_uint_eq(m.created_at_ms, 500);
}
END_TEST

/* The answer; a refusal says why and touches nothing. */
static int try_publish(const struct weight_publish_state *state,
		       const struct weight_publication *p)
{
	struct weight_metadata m = { .metadata_generation = 99 };
	cleanup(buf_release) struct buf why = BUF_INIT;
	int r = weight_decide_publish(state, p, 1, &m, &why);

	if (r < 0)
		ck_assert_uint_eq(m.metadata_generation, 99);
	ck_assert_int_eq(r<0, why.len> 0);
	return r;
}

/*
 * Each case breaks one thing more than the one below it, so the order of the
 * errors is tested with them.
 */
START_TEST(publishing_looks_for_errors_in_order)
{
	struct weight_staging staged = { .identity = demo };
	struct weight_metadata ready = record(WEIGHT_READY, 2);
	struct weight_metadata deleting = record(WEIGHT_DELETING, 3);
	struct weight_metadata deleted = record(WEIGHT_DELETED, 4);
	struct weight_lineage_record lineage = {
		.lineage = demo.lineage,
		.lineage_metadata_generation = 2,
		.watermark = 7,
		.claimed = true,
		.claim = { .request_id = "r",
			   .base = 6,
			   .target = 9,
			   .mode = WEIGHT_DELETE_FIRST,
			   .phase = WEIGHT_DELETING_BASE,
			   .error = "" },
	};
	struct weight_publish_state state = { .existing = &ready,
					      .lineage = &lineage };
	struct weight_publication p = publication();

	p.policy.preferred = WEIGHT_MIXED;
	p.affinity_count = 1;
	p.manifest.complete = false;
	ck_assert_int_eq(try_publish(&state, &p), -EINVAL);
	p.manifest.complete = true;
	p.manifest.payload_group_id = "weight:other";
	ck_assert_int_eq(try_publish(&state, &p), -EINVAL);
	p.manifest.payload_group_id = group_id;
	ck_assert_int_eq(try_publish(&state, &p), -EPERM);
	p.affinity_count = 2;
	ck_assert_int_eq(try_publish(&state, &p), -EEXIST);
	state.existing = &deleting;
	ck_assert_int_eq(try_publish(&state, &p), -ECANCELED);
	state.existing = &deleted;
	ck_assert_int_eq(try_publish(&state, &p), -ECANCELED);
	state.existing = NULL;
	ck_assert_int_eq(try_publish(&state, &p), -EBUSY);
	/* Its target, but the base is to go first. */
	lineage.claim.target = 7;
	ck_assert_int_eq(try_publish(&state, &p), -EBUSY);
	lineage.claim.phase = WEIGHT_TARGET_IMPORTING;
	ck_assert_int_eq(try_publish(&state, &p), -ECANCELED);
	lineage.watermark = 6;
	ck_assert_int_eq(try_publish(&state, &p), -ENOENT);
	state.staged = &staged;
	ck_assert_int_eq(try_publish(&state, &p), 0);
}
END_TEST

/* ---- Leases ---- */

static int acquire(const struct weight_lease_state *state,
		   const struct weight_lease_request *rq, uint64_t now_ms,
		   struct weight_lease *ret, bool *ret_new)
{
	return weight_decide_lease_acquire(state, &demo, rq, now_ms, ret,
					   ret_new);
}

START_TEST(acquiring_looks_for_errors_in_order)
{
	struct weight_metadata m = record(WEIGHT_DEGRADED, 5);
	struct weight_lease_state state = { .fenced = true,
					    .operation_blocks = true,
					    .next_lease_id = UINT64_MAX };
	struct weight_lease_request rq = { .holder = "",
					   .ttl_ms = 0,
					   .expected_metadata_generation = 4 };
	struct weight_lease l;
	bool is_new;

	ck_assert_int_eq(acquire(&state, &rq, 1000, &l, &is_new), -EINVAL);
	rq.holder = "mount";
	ck_assert_int_eq(acquire(&state, &rq, 1000, &l, &is_new), -EINVAL);
	rq.ttl_ms = WEIGHT_LEASE_TTL_MS_MAX + (uint64_t)1;
	ck_assert_int_eq(acquire(&state, &rq, 1000, &l, &is_new), -EINVAL);
	rq.ttl_ms = WEIGHT_LEASE_TTL_MS_MAX;
	ck_assert_int_eq(acquire(&state, &rq, 1000, &l, &is_new), -ENOENT);
	state.metadata = &m;
	ck_assert_int_eq(acquire(&state, &rq, 1000, &l, &is_new), -ECANCELED);
	rq.expected_metadata_generation = 6;
	ck_assert_int_eq(acquire(&state, &rq, 1000, &l, &is_new), -ECANCELED);
	rq.expected_metadata_generation = 5;
	ck_assert_int_eq(acquire(&state, &rq, 1000, &l, &is_new), -EINPROGRESS);
	rq.degraded_too = true;
	ck_assert_int_eq(acquire(&state, &rq, 1000, &l, &is_new), -EBUSY);
	m.availability = WEIGHT_READY;
	rq.degraded_too = false;
	state.fenced = false;
	ck_assert_int_eq(acquire(&state, &rq, 1000, &l, &is_new), -EBUSY);
	state.operation_blocks = false;
	ck_assert_int_eq(acquire(&state, &rq, 1000, &l, &is_new), -EOVERFLOW);
	state.next_lease_id--;
	ck_assert_int_eq(acquire(&state, &rq, 1000, &l, &is_new), 0);
	ck_assert(is_new);
	ck_assert_uint_eq(l.lease_id, UINT64_MAX - 1);
	ck_assert_uint_eq(l.expires_at_ms, 1000 + WEIGHT_LEASE_TTL_MS_MAX);
	ck_assert_uint_eq(l.fenced_metadata_generation, 5);
	ck_assert_int_eq(weight_lease_check(&l, NULL), 0);
}
END_TEST

START_TEST(only_readable_states_are_leased)
{
	static const int wanted[] = { -EINPROGRESS, 0, -EINPROGRESS,
				      -EINPROGRESS, -EINPROGRESS };
	struct weight_lease_state state = { .next_lease_id = 1 };
	struct weight_lease_request rq = { .holder = "h", .ttl_ms = 1 };
	struct weight_metadata m = record((enum weight_availability)_i, 3);
	struct weight_lease l;
	bool is_new;

	state.metadata = &m;
	ck_assert_int_eq(acquire(&state, &rq, 1, &l, &is_new), wanted[_i]);
	rq.degraded_too = true;
	ck_assert_int_eq(acquire(&state, &rq, 1, &l, &is_new),
			 _i == WEIGHT_DEGRADED ? 0 : wanted[_i]);
	/* A stale fence is told even of a tombstone. */
	rq.expected_metadata_generation = 2;
	ck_assert_int_eq(acquire(&state, &rq, 1, &l, &is_new), -ECANCELED);
}
END_TEST

START_TEST(a_holder_gets_its_live_lease_back)
{
	struct weight_metadata m = record(WEIGHT_READY, 5);
	struct weight_lease held = { .lease_id = 3,
				     .identity = demo,
				     .holder = "h",
				     .expires_at_ms = 50,
				     .fenced_metadata_generation = 2 };
	struct weight_lease_state state = { .metadata = &m,
					    .held = &held,
					    .next_lease_id = UINT64_MAX };
	struct weight_lease_request rq = { .holder = "h", .ttl_ms = 1000 };
	struct weight_lease l;
	bool is_new = true;

	ck_assert_int_eq(acquire(&state, &rq, 10, &l, &is_new), 0);
	ck_assert(!is_new);
	ck_assert_uint_eq(l.lease_id, 3);
	ck_assert_uint_eq(l.expires_at_ms, 50);
	/* An operation or a fence comes before. */
	state.fenced = true;
	ck_assert_int_eq(acquire(&state, &rq, 10, &l, &is_new), -EBUSY);
}
END_TEST

START_TEST(expiry_saturates)
{
	struct weight_metadata m = record(WEIGHT_READY, 5);
	struct weight_lease_state state = { .metadata = &m,
					    .next_lease_id = 1 };
	struct weight_lease_request rq = { .holder = "h", .ttl_ms = 10 };
	struct weight_lease l;
	bool is_new;

	ck_assert_int_eq(acquire(&state, &rq, UINT64_MAX - 1, &l, &is_new), 0);
	ck_assert_uint_eq(l.expires_at_ms, UINT64_MAX);
}
END_TEST

/* clang-format off */
static const struct {
	const char *why;
	const char *tenant;
	bool there;
	bool fenced;
	uint64_t ttl_ms;
	uint64_t now_ms;
	int err;
	uint64_t expires_at_ms;
} renewals[] = { /* of a lease that ends at 100 */
	{ "ttl 0",             "x", false, true,  0,    500, -EINVAL, 0 },
	{ "ttl too long",      "x", false, true,  86400001, 500, -EINVAL, 0 },
	{ "unknown",           "default", false, true,  1, 500, -ENOENT, 0 },
	{ "other tenant",      "x", true,  true,  1,    500, -ENOENT, 0 },
	{ "expired just now",  "default", true, true,  1, 100, -EKEYEXPIRED, 0 },
	{ "expired long ago",  "default", true, true,  1, 500, -EKEYEXPIRED, 0 },
	{ "fenced",            "default", true, true,  1,  99, -EBUSY, 0 },
	{ "never shortens",    "default", true, false, 1,  50, 0, 100 },
	{ "extends",           "default", true, false, 51, 50, 0, 101 },
	{ "longest",           "default", true, false, 86400000, 99, 0, 86400099 },
};
/* clang-format on */

START_TEST(renewing_follows_its_rules)
{
	const struct weight_lease lease = { .lease_id = 1,
					    .identity = demo,
					    .holder = "h",
					    .expires_at_ms = 100,
					    .fenced_metadata_generation = 2 };
	struct weight_lease l = { .lease_id = 77 };
	int r;

	r = weight_decide_lease_renew(renewals[_i].there ? &lease : NULL,
				      renewals[_i].tenant, renewals[_i].fenced,
				      renewals[_i].ttl_ms, renewals[_i].now_ms,
				      &l);
	ck_assert_msg(r == renewals[_i].err, "%s: %d", renewals[_i].why, r);
	if (r == 0)
		ck_assert_uint_eq(l.expires_at_ms, renewals[_i].expires_at_ms);
	else
		ck_assert_uint_eq(l.lease_id, 77);
}
END_TEST

/* ---- Removal ---- */

START_TEST(deleting_looks_for_errors_in_order)
{
	struct weight_metadata m = record(WEIGHT_IMPORTING, 5);
	struct weight_delete_state state = { .claimed = true,
					     .leases = 2,
					     .operation_blocks = true };
	struct weight_metadata next;
	bool changed;

	m.operation_id = 9;
	ck_assert_int_eq(
		weight_decide_delete_begin(&state, 4, 2000, &next, &changed),
		-ENOENT);
	state.metadata = &m;
	ck_assert_int_eq(
		weight_decide_delete_begin(&state, 4, 2000, &next, &changed),
		-EBUSY);
	state.claimed = false;
	ck_assert_int_eq(
		weight_decide_delete_begin(&state, 4, 2000, &next, &changed),
		-ECANCELED);
	ck_assert_int_eq(
		weight_decide_delete_begin(&state, 5, 2000, &next, &changed),
		-EBUSY);
	state.leases = 0;
	ck_assert_int_eq(
		weight_decide_delete_begin(&state, 5, 2000, &next, &changed),
		-EBUSY);
	state.operation_blocks = false;
	ck_assert_int_eq(
		weight_decide_delete_begin(&state, 5, 2000, &next, &changed),
		-EINPROGRESS);
	m.availability = WEIGHT_DEGRADED;
	ck_assert_int_eq(
		weight_decide_delete_begin(&state, 5, 2000, &next, &changed),
		0);
	ck_assert(changed);
	ck_assert_int_eq(next.availability, WEIGHT_DELETING);
	ck_assert_uint_eq(next.metadata_generation, 6);
	ck_assert_uint_eq(next.operation_id, 0);
	ck_assert_uint_eq(next.updated_at_ms, 2000);
	ck_assert_int_eq(weight_metadata_check(&next, NULL), 0);
}
END_TEST

/* clang-format off */
static const struct {
	enum weight_availability availability;
	uint64_t expected;
	int begin;  /* of a record at generation 5 */
	int finish;
} retries[] = {
	{ WEIGHT_DELETING, 0, 0,          0 },
	{ WEIGHT_DELETING, 5, 0,          0 },
	{ WEIGHT_DELETING, 4, 0,          -ECANCELED },
	{ WEIGHT_DELETING, 3, -ECANCELED, -ECANCELED },
	{ WEIGHT_DELETING, 6, -ECANCELED, -ECANCELED },
	{ WEIGHT_DELETED,  0, 0,          0 },
	{ WEIGHT_DELETED,  5, 0,          0 },
	{ WEIGHT_DELETED,  4, 0,          0 },
	{ WEIGHT_DELETED,  3, -ECANCELED, -ECANCELED },
	{ WEIGHT_READY,    4, -ECANCELED, -ECANCELED },
	{ WEIGHT_READY,    5, 0,          -EEXIST },
	{ WEIGHT_DEGRADED, 0, 0,          -EEXIST },
	{ WEIGHT_IMPORTING, 0, -EINPROGRESS, -EEXIST },
};
/* clang-format on */

START_TEST(deleting_twice_is_deleting_once)
{
	struct weight_metadata m = record(retries[_i].availability, 5);
	struct weight_delete_state state = { .metadata = &m };
	bool going = m.availability == WEIGHT_DELETING ||
		     m.availability == WEIGHT_DELETED;
	struct weight_metadata next;
	bool changed;
	int r;

	r = weight_decide_delete_begin(&state, retries[_i].expected, 1, &next,
				       &changed);
	ck_assert_int_eq(r, retries[_i].begin);
	if (r == 0) {
		ck_assert_int_eq(changed, !going);
		ck_assert_uint_eq(next.metadata_generation, going ? 5 : 6);
		ck_assert_uint_ge(next.updated_at_ms, 1000);
	}
	r = weight_decide_delete_finish(&m, retries[_i].expected, 1, &next,
					&changed);
	ck_assert_int_eq(r, retries[_i].finish);
	if (r < 0)
		return;
	ck_assert_int_eq(next.availability, WEIGHT_DELETED);
	ck_assert_int_eq(next.residency, WEIGHT_ABSENT);
	ck_assert_int_eq(weight_metadata_check(&next, NULL), 0);
	ck_assert_int_eq(changed, m.availability == WEIGHT_DELETING);
	ck_assert_uint_eq(next.metadata_generation, changed ? 6 : 5);
	ck_assert_uint_eq(next.updated_at_ms, 1000);
}
END_TEST

START_TEST(generations_come_to_an_end)
{
	struct weight_metadata m =
		record(WEIGHT_READY, WEIGHT_METADATA_GENERATION_MAX);
	struct weight_delete_state state = { .metadata = &m };
	struct weight_metadata next;
	bool changed;

	ck_assert_int_eq(
		weight_decide_delete_begin(&state, 0, 1, &next, &changed),
		-EOVERFLOW);
	m.availability = WEIGHT_DELETING;
	ck_assert_int_eq(weight_decide_delete_finish(&m, 0, 1, &next, &changed),
			 -EOVERFLOW);
	ck_assert_int_eq(
		weight_decide_delete_finish(NULL, 0, 1, &next, &changed),
		-ENOENT);
}
END_TEST

/* ---- Observation ---- */

START_TEST(an_observation_changes_what_differs)
{
	struct weight_observation seen = { WEIGHT_DEGRADED, WEIGHT_COLD, 0.0,
					   true };
	struct weight_metadata m = record(WEIGHT_READY, 5);
	struct weight_metadata next;
	bool changed;

	ck_assert_int_eq(
		weight_decide_observe(&m, &seen, 0, 2000, &next, &changed), 0);
	ck_assert(changed);
	ck_assert_int_eq(next.availability, WEIGHT_DEGRADED);
	ck_assert(next.durable);
	ck_assert_uint_eq(next.metadata_generation, 6);
	m = next;
	ck_assert_int_eq(
		weight_decide_observe(&m, &seen, 5, 3000, &next, &changed), 0);
	ck_assert(!changed);
	ck_assert_uint_eq(next.metadata_generation, 6);
	ck_assert_uint_eq(next.updated_at_ms, 2000);
	/* Durability alone is no new generation, and no repeat. */
	seen.durable = false;
	ck_assert_int_eq(
		weight_decide_observe(&m, &seen, 5, 3000, &next, &changed),
		-ECANCELED);
	ck_assert_int_eq(
		weight_decide_observe(&m, &seen, 6, 3000, &next, &changed), 0);
	ck_assert(changed);
	ck_assert_uint_eq(next.metadata_generation, 6);
	/* And back, in memory. */
	seen = (struct weight_observation){ WEIGHT_READY, WEIGHT_HOT, 1.0,
					    true };
	ck_assert_int_eq(
		weight_decide_observe(&m, &seen, 6, 3000, &next, &changed), 0);
	ck_assert_int_eq(next.availability, WEIGHT_READY);
	ck_assert_uint_eq(next.metadata_generation, 7);
}
END_TEST

START_TEST(an_observation_that_cannot_be_is_refused)
{
	struct weight_metadata m = record(WEIGHT_READY, 5);
	struct weight_observation seen = { WEIGHT_DELETED, WEIGHT_COLD, 0.0,
					   false };
	struct weight_metadata next;
	bool changed;

	ck_assert_int_eq(
		weight_decide_observe(NULL, &seen, 0, 1, &next, &changed),
		-EINVAL);
	seen.availability = WEIGHT_READY;
	seen.residency = WEIGHT_UNKNOWN;
	ck_assert_int_eq(
		weight_decide_observe(&m, &seen, 0, 1, &next, &changed),
		-EINVAL);
	seen.residency = WEIGHT_ABSENT; /* and READY */
	ck_assert_int_eq(
		weight_decide_observe(NULL, &seen, 0, 1, &next, &changed),
		-EINVAL);
	seen.residency = (enum weight_residency)5;
	ck_assert_int_eq(
		weight_decide_observe(NULL, &seen, 0, 1, &next, &changed),
		-EINVAL);
	seen.residency = WEIGHT_MIXED; /* with a ratio of 0 */
	ck_assert_int_eq(
		weight_decide_observe(NULL, &seen, 0, 1, &next, &changed),
		-EINVAL);
	seen.hot_ratio = 0.5;
	ck_assert_int_eq(
		weight_decide_observe(NULL, &seen, 0, 1, &next, &changed),
		-ENOENT);
	m.operation_id = 1;
	ck_assert_int_eq(
		weight_decide_observe(&m, &seen, 4, 1, &next, &changed),
		-EBUSY);
	m.operation_id = 0;
	ck_assert_int_eq(
		weight_decide_observe(&m, &seen, 4, 1, &next, &changed),
		-ECANCELED);
	m.availability = WEIGHT_DELETING;
	ck_assert_int_eq(
		weight_decide_observe(&m, &seen, 5, 1, &next, &changed),
		-EINPROGRESS);
}
END_TEST

static int decide_publish(void)
{
	struct weight_staging staged = { .identity = demo };
	struct weight_publish_state state = { .staged = &staged };
	struct weight_publication p = publication();
	struct weight_metadata m;

	return weight_decide_publish(&state, &p, 1000, &m, NULL);
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(decide_publish);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_decision");
	TCase *tc = tcase_create("weight_decision");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, staging_needs_a_generation_that_never_was);
	tcase_add_test(tc, publishing_gives_a_ready_record);
	tcase_add_test(tc, publishing_looks_for_errors_in_order);
	tcase_add_test(tc, acquiring_looks_for_errors_in_order);
	tcase_add_loop_test(tc, only_readable_states_are_leased, 0, 5);
	tcase_add_test(tc, a_holder_gets_its_live_lease_back);
	tcase_add_test(tc, expiry_saturates);
	tcase_add_loop_test(tc, renewing_follows_its_rules, 0,
			    ARRAY_LEN(renewals));
	tcase_add_test(tc, deleting_looks_for_errors_in_order);
	tcase_add_loop_test(tc, deleting_twice_is_deleting_once, 0,
			    ARRAY_LEN(retries));
	tcase_add_test(tc, generations_come_to_an_end);
	tcase_add_test(tc, an_observation_changes_what_differs);
	tcase_add_test(tc, an_observation_that_cannot_be_is_refused);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
