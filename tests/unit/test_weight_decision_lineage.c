/* SPDX-License-Identifier: Apache-2.0 */
#include "core/util.h"
#include "core/weight_key.h"
#include "suite.h"
#include "weight_claim_fixture.h"

/* ---- Begin ---- */

START_TEST(the_first_claim_makes_the_record)
{
	struct weight_upsert_request rq = request((enum weight_upsert_mode)_i);
	const struct weight_claim *c;
	struct world w;

	world_init(&w);
	ck_assert(does(&w, BEGIN, &rq, NULL));
	ck_assert(weight_lineage_equal(&w.lineage.lineage, &rq.base.lineage));
	ck_assert_uint_eq(w.lineage.lineage_metadata_generation, 1);
	ck_assert(w.lineage.claimed);
	phase_is(&w,
		 rq.mode == WEIGHT_PUT_FIRST ? WEIGHT_PREPARING_TARGET :
					       WEIGHT_DELETING_BASE,
		 7);
	c = &w.lineage.claim;
	ck_assert_str_eq(c->request_id, "request-1");
	ck_assert_uint_eq(c->base, 7);
	ck_assert_uint_eq(c->target, 8);
	ck_assert_int_eq(c->mode, rq.mode);
	ck_assert_uint_eq(c->expected_base_metadata_generation, 2);
	ck_assert(c->described);
	ck_assert(weight_import_equal(&c->import, &rq.import));
	ck_assert_uint_eq(c->created_at_ms, 3000);
	ck_assert_uint_eq(c->updated_at_ms, 3000);
	ck_assert_str_eq(c->error, "");
}
END_TEST

START_TEST(a_staged_target_needs_no_description)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct world w;

	world_init(&w);
	rq.described = false;
	rq.import = (struct weight_import){ .payload_count = 0 };
	w.state.staged = &w.staged;
	ck_assert(does(&w, BEGIN, &rq, NULL));
	ck_assert(!w.lineage.claim.described);
	next_is(&w, WEIGHT_CLAIM_WAITS);
	/* A repeat asks no more whether it is staged. */
	w.state.staged = NULL;
	ck_assert(!does(&w, BEGIN, &rq, NULL));
}
END_TEST

/* What no request may have. */
static void spoil(struct weight_upsert_request *rq, int how)
{
	struct weight_import *import = &rq->import;

	/* clang-format off */
	switch (how) {
	case 0: rq->base.lineage.tenant = "_t"; break;
	case 1: rq->base.generation = 0; break;
	case 2: rq->target.lineage.name_space = ""; break;
	case 3: rq->target.generation = 0; break;
	case 4: rq->mode = (enum weight_upsert_mode)2; break;
	case 5: rq->request_id = ""; break;
	case 6: rq->request_id = "a\nb"; break;
	case 7: rq->expected_base_metadata_generation = 0; break;
	case 8: rq->expected_base_metadata_generation = UINT64_MAX; break;
	case 9: rq->target.lineage.tenant = "other"; break;
	case 10: rq->target.lineage.revision = "other"; break;
	case 11: import->payload_count = 0; break;
	case 12: import->logical_bytes = 0; break;
	case 13: import->affinity_count = 0; break;
	case 14: import->affinity_digest = (struct digest){ { 0 } }; break;
	case 15: import->policy.preferred = WEIGHT_ABSENT; break;
	case 16: import->policy.mixed_hot_ratio = 1.0; break;
	case 17: rq->described = false; break;
	}
	/* clang-format on */
}
#define SPOILS 18

/*
 * upsert_rejects_non_enum_mode_before_mutation, ...explicit_empty_request_id,
 * upsert_requires_same_lineage_and_increasing_generation
 * upsert_rejects_explicit_empty_request_id
 */
START_TEST(a_request_is_looked_at_before_anything_else)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct world w;

	world_init(&w);
	spoil(&rq, _i);
	refuses(&w, BEGIN, &rq, NULL, -EINVAL, "");
	/* Also where it would be stale, impossible or in the way. */
	claim_is(&w, WEIGHT_DELETE_FIRST, WEIGHT_DELETING_BASE);
	if (_i != 3)
		rq.target.generation = 7;
	if (_i < 11 || _i > 15) {
		rq.import.policy.preferred = WEIGHT_MIXED;
		rq.import.affinity_count = 1;
	}
	w.state.base = NULL;
	refuses(&w, BEGIN, &rq, NULL, -EINVAL, "");
}
END_TEST

START_TEST(the_largest_arguments_are_taken)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	char id[WEIGHT_COMPONENT_MAX + 1];
	struct world w;

	world_init(&w);
	memset(id, 'x', WEIGHT_COMPONENT_MAX);
	id[WEIGHT_COMPONENT_MAX] = '\0';
	rq.request_id = id;
	rq.expected_base_metadata_generation = WEIGHT_METADATA_GENERATION_MAX;
	w.base.metadata_generation = WEIGHT_METADATA_GENERATION_MAX;
	rq.target.generation = UINT64_MAX;
	ck_assert(does(&w, BEGIN, &rq, NULL));
}
END_TEST

/*
 * All is wrong, and one thing after the other is put right: each refusal comes
 * before all that follow it.
 * upsert_requires_same_lineage_and_increasing_generation
 */
START_TEST(beginning_looks_for_errors_in_order)
{
	struct weight_upsert_request rq = request(WEIGHT_DELETE_FIRST);
	struct world w;

	world_init(&w);
	claim_is(&w, WEIGHT_PUT_FIRST, WEIGHT_RETIRING_BASE);
	w.lineage.lineage_metadata_generation = WEIGHT_METADATA_GENERATION_MAX;
	w.lineage.watermark = 9;
	w.state.base = NULL;
	target_is(&w, WEIGHT_DELETED);
	rq.request_id = "";
	rq.target.generation = 7;
	rq.import.policy.preferred = WEIGHT_MIXED;
	rq.import.affinity_count = 1;
	refuses(&w, BEGIN, &rq, NULL, -EINVAL, "request id");
	rq.request_id = "request-2";
	refuses(&w, BEGIN, &rq, NULL, -ECANCELED, "choose a higher one");
	rq.target.generation = 9;
	refuses(&w, BEGIN, &rq, NULL, -EPERM, "mixed");
	rq.import.affinity_count = 2;
	refuses(&w, BEGIN, &rq, NULL, -EBUSY, "(request request-1)");
	w.lineage.claim.phase = WEIGHT_COMPLETED;
	refuses(&w, BEGIN, &rq, NULL, -ECANCELED, "is not above 9");
	rq.target.generation = 10;
	refuses(&w, BEGIN, &rq, NULL, -ECANCELED, "reached generation 9");
	w.lineage.watermark = 7;
	refuses(&w, BEGIN, &rq, NULL, -ENOENT, "no generation 7");
	w.state.base = &w.base;
	w.base.availability = WEIGHT_DEGRADED;
	w.base.metadata_generation = 3;
	w.base.operation_id = 4;
	w.state.base_leases = 6;
	refuses(&w, BEGIN, &rq, NULL, -ECANCELED, "metadata generation 3");
	rq.expected_base_metadata_generation = 3;
	refuses(&w, BEGIN, &rq, NULL, -EINPROGRESS, "is degraded");
	w.base.availability = WEIGHT_READY;
	refuses(&w, BEGIN, &rq, NULL, -EBUSY, "6 leases");
	w.state.base_leases = 0;
	refuses(&w, BEGIN, &rq, NULL, -EBUSY, "operation 4");
	w.base.operation_id = 0;
	refuses(&w, BEGIN, &rq, NULL, -EEXIST, "never comes back");
	w.state.target = NULL;
	refuses(&w, BEGIN, &rq, NULL, -EOVERFLOW, "used up");
	w.lineage.lineage_metadata_generation--;
	ck_assert(does(&w, BEGIN, &rq, NULL));
}
END_TEST

/* clang-format off */
static const struct {
	const char *says; /* NULL: it begins */
	bool described;
	bool staged;
	int target; /* its availability, -1: there is no record */
} preparations[] = {
	{ NULL,            true,  false, -1 },
	{ NULL,            false, true,  -1 },
	{ "is staged",     true,  true,  -1 },
	{ "is not staged", false, false, -1 },
	{ "there already", true,  false, WEIGHT_IMPORTING },
	{ "there already", true,  false, WEIGHT_READY },
	{ "there already", false, false, WEIGHT_READY },
	{ "there already", true,  false, WEIGHT_DEGRADED },
	{ "removed",       true,  false, WEIGHT_DELETING },
	{ "removed",       true,  false, WEIGHT_DELETED },
	{ "removed",       false, true,  WEIGHT_DELETED },
};
/* clang-format on */

/*
 * WeightGroupLifecycle.ConflictingTargetDoesNotLeaveBlockingLineageClaim: after
 * a refusal the next request begins as if nothing had been.
 */
START_TEST(a_target_that_cant_be_prepared_leaves_no_claim)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct weight_upsert_request next = request(WEIGHT_PUT_FIRST);
	struct world w;

	world_init(&w);
	rq.described = preparations[_i].described;
	if (!rq.described)
		rq.import = (struct weight_import){ .payload_count = 0 };
	if (preparations[_i].staged)
		w.state.staged = &w.staged;
	if (preparations[_i].target >= 0)
		target_is(&w,
			  (enum weight_availability)preparations[_i].target);
	if (!preparations[_i].says) {
		ck_assert(does(&w, BEGIN, &rq, NULL));
		return;
	}
	refuses(&w, BEGIN, &rq, NULL, -EEXIST, preparations[_i].says);
	ck_assert_ptr_null(w.state.lineage);
	w.state.target = NULL;
	w.state.staged = NULL;
	next.request_id = "request-2";
	next.target.generation = 9;
	ck_assert(does(&w, BEGIN, &next, NULL));
}
END_TEST

/*
 * WeightGroupLifecycle.NewLineageClaimRevalidatesCurrentBase,
 * weight_upsert_tcp_e2e: a base that has changed since it was looked at, or is
 * no more the newest, or isn't READY.
 */
START_TEST(a_new_claim_looks_at_the_base_again)
{
	static const int of_state[] = { -EINPROGRESS, 0, -EINPROGRESS,
					-EINPROGRESS, -EINPROGRESS };
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct world w;

	world_init(&w);
	w.base.metadata_generation = 3;
	refuses(&w, BEGIN, &rq, NULL, -ECANCELED, "look at it again");
	w.base.metadata_generation = 2;
	w.base.availability = (enum weight_availability)_i;
	if (of_state[_i] < 0)
		refuses(&w, BEGIN, &rq, NULL, of_state[_i],
			weight_availability_name(w.base.availability));
	else
		ck_assert(does(&w, BEGIN, &rq, NULL));
	/* The lineage has gone on without this base. */
	claim_is(&w, WEIGHT_PUT_FIRST, WEIGHT_COMPLETED);
	rq.request_id = "request-2";
	rq.target.generation = 9;
	refuses(&w, BEGIN, &rq, NULL, -ECANCELED, "reached generation 8");
	rq.target.generation = 8;
	refuses(&w, BEGIN, &rq, NULL, -ECANCELED, "is not above 8");
}
END_TEST

/* Nobody has claimed yet, but the lineage has a record. */
START_TEST(a_record_without_a_claim_has_a_watermark)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct world w;

	world_init(&w);
	w.lineage = (struct weight_lineage_record){
		.lineage = LINEAGE,
		.lineage_metadata_generation = 1,
		.watermark = 6,
	};
	w.state.lineage = &w.lineage;
	refuses(&w, BEGIN, &rq, NULL, -ECANCELED, "reached generation 6");
	refuses(&w, COMMIT, NULL, &request_1, -ENOENT, "being replaced");
	refuses(&w, ABORT, NULL, &request_1, -ENOENT, "being replaced");
	refuses(&w, ADVANCE, NULL, NULL, -ENOENT, "");
	next_is(&w, WEIGHT_CLAIM_DONE);
	w.lineage.watermark = 7;
	ck_assert(does_at(&w, BEGIN, &rq, NULL, 10));
	ck_assert_uint_eq(w.lineage.lineage_metadata_generation, 2);
	ck_assert_uint_eq(w.lineage.claim.created_at_ms, 10);
}
END_TEST

/* delete_first_busy_fails_before_target_import */
START_TEST(only_delete_first_minds_who_uses_the_base)
{
	struct weight_upsert_request rq = request(WEIGHT_DELETE_FIRST);
	struct world w;

	world_init(&w);
	w.state.base_leases = 1;
	refuses(&w, BEGIN, &rq, NULL, -EBUSY, "(1 leases)");
	w.state.base_leases = 0;
	w.base.operation_id = 1;
	refuses(&w, BEGIN, &rq, NULL, -EBUSY, "put_first");
	ck_assert_ptr_null(w.state.lineage);
	ck_assert_int_eq(w.base.availability, WEIGHT_READY);
	ck_assert_int_eq(weight_decide_beside_claim(w.state.lineage, 8, true,
						    false, NULL),
			 0);
	w.state.base_leases = 1;
	rq.mode = WEIGHT_PUT_FIRST;
	ck_assert(does(&w, BEGIN, &rq, NULL));
}
END_TEST

/* ---- Requests that are the same, and others ---- */

/* The argument number `which` is another one. */
static void differ(struct weight_upsert_request *rq, int which)
{
	struct weight_import *import = &rq->import;

	/* clang-format off */
	switch (which) {
	case 0: rq->request_id = "request-2"; break;
	case 1: rq->target.generation = 9; break;
	case 2: rq->mode = WEIGHT_DELETE_FIRST; break;
	case 3: rq->expected_base_metadata_generation = 3; break;
	case 4: import->payload_count++; break;
	case 5: import->logical_bytes++; break;
	case 6: import->policy.preferred = WEIGHT_COLD; break;
	case 7: import->policy.mixed_hot_ratio = 0.25; break;
	case 8: import->policy.mode = WEIGHT_MANUAL; break;
	case 9: import->affinity_count++; break;
	case 10: import->affinity_digest.bytes[31] ^= 1; break;
	case 11:
		rq->described = false;
		*import = (struct weight_import){ .payload_count = 0 };
		break;
	}
	/* clang-format on */
}
#define DIFFERENCES 12

/* Other arguments: in the way of a live claim, and a new request after it. */
START_TEST(every_argument_makes_another_request)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct world w;

	world_init(&w);
	differ(&rq, _i);
	w.base.metadata_generation = rq.expected_base_metadata_generation;
	if (!rq.described)
		w.state.staged = &w.staged;
	claim_is(&w, WEIGHT_PUT_FIRST, WEIGHT_PREPARING_TARGET);
	refuses(&w, BEGIN, &rq, NULL, -EBUSY,
		_i == 0 ? "wait for its end, or abort it" : "other arguments");
	claim_is(&w, WEIGHT_PUT_FIRST, WEIGHT_ABORTED);
	ck_assert(does(&w, BEGIN, &rq, NULL));
	ck_assert_uint_eq(w.lineage.claim.created_at_ms, 3000);
	ck_assert(!does(&w, BEGIN, &rq, NULL));
}
END_TEST

/* A base of another generation can't be replaced by a repeat either. */
START_TEST(another_base_makes_another_request)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct world w;

	world_init(&w);
	rq.base.generation = 6;
	claim_is(&w, WEIGHT_PUT_FIRST, WEIGHT_PREPARING_TARGET);
	refuses(&w, BEGIN, &rq, NULL, -EBUSY, "other arguments");
	claim_is(&w, WEIGHT_PUT_FIRST, WEIGHT_ABORTED);
	refuses(&w, BEGIN, &rq, NULL, -ECANCELED, "reached generation 7");
}
END_TEST

/* clang-format off */
static const struct {
	enum weight_upsert_mode mode;
	enum weight_upsert_phase phase;
	bool interrupted;
	const char *says;
} competitions[] = {
	{ WEIGHT_PUT_FIRST,    WEIGHT_PREPARING_TARGET, false, "or abort it" },
	{ WEIGHT_PUT_FIRST,    WEIGHT_RETIRING_BASE,    false, "; wait for its end" },
	{ WEIGHT_DELETE_FIRST, WEIGHT_DELETING_BASE,    false, "or abort it" },
	{ WEIGHT_DELETE_FIRST, WEIGHT_TARGET_IMPORTING, false, "; wait for its end" },
	{ WEIGHT_DELETE_FIRST, WEIGHT_TARGET_IMPORTING, true,  "interrupted" },
};
/* clang-format on */

START_TEST(a_competitor_hears_who_is_first)
{
	struct weight_upsert_request rq = request(WEIGHT_PUT_FIRST);
	struct world w;

	world_init(&w);
	rq.request_id = "request-2";
	claim_is(&w, competitions[_i].mode, competitions[_i].phase);
	if (competitions[_i].interrupted)
		interrupt(&w);
	refuses(&w, BEGIN, &rq, NULL, -EBUSY, competitions[_i].says);
	refuses(&w, BEGIN, &rq, NULL, -EBUSY,
		"generation 7 is being replaced by 8 (request request-1)");
}
END_TEST

/*
 * delete_first_begin_response_loss_retries_with_derived_request_id
 * upsert_derives_stable_request_id_from_immutable_arguments
 */
START_TEST(a_derived_request_id_resumes)
{
	struct weight_upsert_request rq = request(WEIGHT_DELETE_FIRST);
	char first[DIGEST_HEX_LEN + 1];
	char again[DIGEST_HEX_LEN + 1];
	struct world w;

	world_init(&w);
	ck_assert_int_eq(
		weight_request_id(&rq.base, &rq.target, rq.mode, 2, first), 0);
	ck_assert_int_eq(
		weight_request_id(&rq.base, &rq.target, rq.mode, 2, again), 0);
	rq.request_id = first;
	ck_assert(does(&w, BEGIN, &rq, NULL));
	rq.request_id = again;
	ck_assert(!does_at(&w, BEGIN, &rq, NULL, 4000));
	phase_is(&w, WEIGHT_DELETING_BASE, 7);
	ck_assert_uint_eq(w.lineage.claim.updated_at_ms, 3000);
}
END_TEST

/* ---- All phases, all events ---- */

enum setting {
	WRITING, /* the base is READY, the target IMPORTING */
	THROUGH, /* the base is DELETED, the target READY */
	EMPTY,   /* the base is READY, nothing is there of the target */
};

struct outcome {
	int err;
	int phase; /* -1: it stays as it is */
};

/* clang-format off */
#define CLAIM(mode, phase) WEIGHT_##mode, WEIGHT_##phase
#define KEPT     { 0, -1 }
#define TO(p)    { 0, WEIGHT_##p }
#define BUSY     { -EBUSY, -1 }
#define STALE    { -ECANCELED, -1 }
#define CONFLICT { -EEXIST, -1 }
#define EARLY    { -EINPROGRESS, -1 }

static const struct {
	enum setting setting;
	enum weight_upsert_mode mode;
	enum weight_upsert_phase phase;
	bool interrupted;
	/* begin as before, with another id, with other arguments; the rest */
	struct outcome same, other, args, commit, abort, advance;
	enum weight_claim_step step;
} pairs[] = {
	{ WRITING, CLAIM(PUT_FIRST, PREPARING_TARGET), false,
	  KEPT, BUSY, BUSY, EARLY, TO(ABORTED), KEPT, WEIGHT_CLAIM_WAITS },
	{ WRITING, CLAIM(PUT_FIRST, RETIRING_BASE), false,
	  KEPT, BUSY, BUSY, KEPT, CONFLICT, BUSY, WEIGHT_CLAIM_DELETE },
	{ WRITING, CLAIM(PUT_FIRST, COMPLETED), false,
	  KEPT, STALE, STALE, KEPT, CONFLICT, KEPT, WEIGHT_CLAIM_DONE },
	{ WRITING, CLAIM(PUT_FIRST, ABORTED), false,
	  KEPT, CONFLICT, CONFLICT, CONFLICT, KEPT, KEPT, WEIGHT_CLAIM_DONE },
	{ WRITING, CLAIM(DELETE_FIRST, DELETING_BASE), false,
	  KEPT, BUSY, BUSY, EARLY, TO(ABORTED), BUSY, WEIGHT_CLAIM_DELETE },
	{ WRITING, CLAIM(DELETE_FIRST, TARGET_IMPORTING), false,
	  KEPT, BUSY, BUSY, EARLY, TO(TARGET_IMPORTING), KEPT,
	  WEIGHT_CLAIM_WAITS },
	{ WRITING, CLAIM(DELETE_FIRST, TARGET_IMPORTING), true,
	  TO(TARGET_IMPORTING), BUSY, BUSY, EARLY, KEPT, KEPT,
	  WEIGHT_CLAIM_WAITS },
	{ WRITING, CLAIM(DELETE_FIRST, COMPLETED), false,
	  KEPT, STALE, STALE, KEPT, CONFLICT, KEPT, WEIGHT_CLAIM_DONE },
	{ WRITING, CLAIM(DELETE_FIRST, ABORTED), false,
	  KEPT, CONFLICT, CONFLICT, CONFLICT, KEPT, KEPT, WEIGHT_CLAIM_DONE },

	{ THROUGH, CLAIM(PUT_FIRST, PREPARING_TARGET), false,
	  KEPT, BUSY, BUSY, TO(RETIRING_BASE), CONFLICT, KEPT,
	  WEIGHT_CLAIM_COMMIT },
	{ THROUGH, CLAIM(PUT_FIRST, RETIRING_BASE), false,
	  KEPT, BUSY, BUSY, KEPT, CONFLICT, TO(COMPLETED),
	  WEIGHT_CLAIM_ADVANCE },
	{ THROUGH, CLAIM(PUT_FIRST, COMPLETED), false,
	  KEPT, STALE, STALE, KEPT, CONFLICT, KEPT, WEIGHT_CLAIM_DONE },
	{ THROUGH, CLAIM(PUT_FIRST, ABORTED), false,
	  KEPT, EARLY, EARLY, CONFLICT, KEPT, KEPT, WEIGHT_CLAIM_DONE },
	{ THROUGH, CLAIM(DELETE_FIRST, DELETING_BASE), false,
	  KEPT, BUSY, BUSY, EARLY, CONFLICT, TO(TARGET_IMPORTING),
	  WEIGHT_CLAIM_ADVANCE },
	{ THROUGH, CLAIM(DELETE_FIRST, TARGET_IMPORTING), false,
	  KEPT, BUSY, BUSY, TO(COMPLETED), CONFLICT, KEPT,
	  WEIGHT_CLAIM_COMMIT },
	{ THROUGH, CLAIM(DELETE_FIRST, TARGET_IMPORTING), true,
	  TO(TARGET_IMPORTING), BUSY, BUSY, TO(COMPLETED), CONFLICT, KEPT,
	  WEIGHT_CLAIM_COMMIT },
	{ THROUGH, CLAIM(DELETE_FIRST, COMPLETED), false,
	  KEPT, STALE, STALE, KEPT, CONFLICT, KEPT, WEIGHT_CLAIM_DONE },
	{ THROUGH, CLAIM(DELETE_FIRST, ABORTED), false,
	  KEPT, EARLY, EARLY, CONFLICT, KEPT, KEPT, WEIGHT_CLAIM_DONE },

	{ EMPTY, CLAIM(PUT_FIRST, PREPARING_TARGET), false,
	  KEPT, BUSY, BUSY, EARLY, TO(ABORTED), KEPT, WEIGHT_CLAIM_PREPARE },
	{ EMPTY, CLAIM(PUT_FIRST, RETIRING_BASE), false,
	  KEPT, BUSY, BUSY, KEPT, CONFLICT, BUSY, WEIGHT_CLAIM_DELETE },
	{ EMPTY, CLAIM(PUT_FIRST, COMPLETED), false,
	  KEPT, STALE, STALE, KEPT, CONFLICT, KEPT, WEIGHT_CLAIM_DONE },
	{ EMPTY, CLAIM(PUT_FIRST, ABORTED), false,
	  KEPT, TO(PREPARING_TARGET), TO(PREPARING_TARGET), CONFLICT, KEPT,
	  KEPT, WEIGHT_CLAIM_DONE },
	{ EMPTY, CLAIM(DELETE_FIRST, DELETING_BASE), false,
	  KEPT, BUSY, BUSY, EARLY, TO(ABORTED), BUSY, WEIGHT_CLAIM_DELETE },
	{ EMPTY, CLAIM(DELETE_FIRST, TARGET_IMPORTING), false,
	  KEPT, BUSY, BUSY, EARLY, TO(TARGET_IMPORTING), KEPT,
	  WEIGHT_CLAIM_PREPARE },
	{ EMPTY, CLAIM(DELETE_FIRST, TARGET_IMPORTING), true,
	  TO(TARGET_IMPORTING), BUSY, BUSY, EARLY, KEPT, KEPT,
	  WEIGHT_CLAIM_WAITS },
	{ EMPTY, CLAIM(DELETE_FIRST, COMPLETED), false,
	  KEPT, STALE, STALE, KEPT, CONFLICT, KEPT, WEIGHT_CLAIM_DONE },
	{ EMPTY, CLAIM(DELETE_FIRST, ABORTED), false,
	  KEPT, TO(DELETING_BASE), TO(DELETING_BASE), CONFLICT, KEPT, KEPT,
	  WEIGHT_CLAIM_DONE },
};
/* clang-format on */

static void set(struct world *w, int row)
{
	world_init(w);
	claim_is(w, pairs[row].mode, pairs[row].phase);
	if (pairs[row].interrupted)
		interrupt(w);
	if (pairs[row].setting == THROUGH)
		w->base.availability = WEIGHT_DELETED;
	if (pairs[row].setting != EMPTY)
		target_is(w, pairs[row].setting == WRITING ? WEIGHT_IMPORTING :
							     WEIGHT_READY);
}

/* Does it in the setting of the row, and leaves in w what came of it. */
static void meets(int row, enum act act, const struct weight_upsert_request *rq,
		  const struct outcome *wanted, struct world *w)
{
	set(w, row);
	if (wanted->err < 0) {
		refuses(w, act, rq, &request_1, wanted->err, "");
		return;
	}
	ck_assert_int_eq(does(w, act, rq, &request_1), wanted->phase >= 0);
	if (wanted->phase >= 0)
		ck_assert_int_eq((int)w->lineage.claim.phase, wanted->phase);
}

START_TEST(every_phase_meets_every_event)
{
	struct weight_upsert_request rq = request(pairs[_i].mode);
	struct weight_claim *c;
	struct world w;

	meets(_i, BEGIN, &rq, &pairs[_i].same, &w);
	c = &w.lineage.claim;
	ck_assert_str_eq(c->error, "");
	ck_assert_uint_eq(c->created_at_ms, 1000);
	rq.request_id = "request-2";
	meets(_i, BEGIN, &rq, &pairs[_i].other, &w);
	rq = request(pairs[_i].mode);
	rq.import.logical_bytes++;
	meets(_i, BEGIN, &rq, &pairs[_i].args, &w);
	meets(_i, COMMIT, NULL, &pairs[_i].commit, &w);
	if (pairs[_i].commit.phase >= 0) {
		ck_assert_uint_eq(w.lineage.watermark, 8);
		ck_assert_str_eq(c->error, "");
	}
	meets(_i, ABORT, NULL, &pairs[_i].abort, &w);
	if (pairs[_i].abort.phase == WEIGHT_TARGET_IMPORTING)
		ck_assert_str_eq(c->error, WEIGHT_CLAIM_INTERRUPTED);
	if (pairs[_i].abort.phase >= 0)
		ck_assert_uint_eq(w.lineage.watermark, 7);
	meets(_i, ADVANCE, NULL, &pairs[_i].advance, &w);
	if (pairs[_i].advance.phase >= 0)
		ck_assert_uint_eq(c->created_at_ms, 1000);
	set(&w, _i);
	next_is(&w, pairs[_i].step);
}
END_TEST

/* ---- The order of errors after the beginning ---- */

START_TEST(each_part_of_a_name_counts)
{
	static const struct weight_claim_name others[] = {
		{ "request-2", 7, 8 }, { "request-1", 6, 8 },
		{ "request-1", 7, 9 }, { "request-1", 8, 7 },
		{ "", 0, 0 },
	};
	struct world w;

	world_init(&w);
	target_is(&w, WEIGHT_READY);
	claim_is(&w, WEIGHT_PUT_FIRST, WEIGHT_PREPARING_TARGET);
	refuses(&w, COMMIT, NULL, &others[_i], -EEXIST,
		"is request-1, to replace generation 7 by 8");
	target_is(&w, WEIGHT_IMPORTING);
	refuses(&w, ABORT, NULL, &others[_i], -EEXIST,
		"is request-1, to replace generation 7 by 8");
}
END_TEST

START_TEST(committing_looks_for_errors_in_order)
{
	struct world w;

	world_init(&w);
	w.state.wants_durable = true;
	refuses(&w, COMMIT, NULL, &request_1, -ENOENT, "being replaced");
	claim_is(&w, WEIGHT_DELETE_FIRST, WEIGHT_ABORTED);
	w.lineage.lineage_metadata_generation = WEIGHT_METADATA_GENERATION_MAX;
	refuses(&w, COMMIT, NULL, &request_2, -EEXIST, "latest request");
	refuses(&w, COMMIT, NULL, &request_1, -EEXIST, "aborted");
	w.lineage.claim.phase = WEIGHT_DELETING_BASE;
	refuses(&w, COMMIT, NULL, &request_1, -EINPROGRESS, "not gone yet");
	w.lineage.claim.phase = WEIGHT_TARGET_IMPORTING;
	refuses(&w, COMMIT, NULL, &request_1, -EINPROGRESS, "not there yet");
	target_is(&w, WEIGHT_DEGRADED);
	w.target.durable = false;
	refuses(&w, COMMIT, NULL, &request_1, -EINPROGRESS, "is degraded");
	target_is(&w, WEIGHT_READY);
	refuses(&w, COMMIT, NULL, &request_1, -EINPROGRESS, "not durable");
	w.state.wants_durable = false;
	refuses(&w, COMMIT, NULL, &request_1, -EOVERFLOW, "used up");
	w.lineage.lineage_metadata_generation--;
	ck_assert(does(&w, COMMIT, NULL, &request_1));
	/* A repeat needs no generation. */
	ck_assert(!does(&w, COMMIT, NULL, &request_1));
}
END_TEST

START_TEST(aborting_looks_for_errors_in_order)
{
	struct world w;

	world_init(&w);
	refuses(&w, ABORT, NULL, &request_1, -ENOENT, "being replaced");
	target_is(&w, WEIGHT_READY);
	claim_is(&w, WEIGHT_PUT_FIRST, WEIGHT_COMPLETED);
	w.lineage.lineage_metadata_generation = WEIGHT_METADATA_GENERATION_MAX;
	refuses(&w, ABORT, NULL, &request_2, -EEXIST, "latest request");
	refuses(&w, ABORT, NULL, &request_1, -EEXIST, "taken the place");
	w.lineage.claim.phase = WEIGHT_PREPARING_TARGET;
	refuses(&w, ABORT, NULL, &request_1, -EEXIST, "commit instead");
	target_is(&w, WEIGHT_DEGRADED);
	refuses(&w, ABORT, NULL, &request_1, -EEXIST, "commit instead");
	target_is(&w, WEIGHT_DELETING);
	refuses(&w, ABORT, NULL, &request_1, -EOVERFLOW, "used up");
	w.lineage.lineage_metadata_generation--;
	ck_assert(does(&w, ABORT, NULL, &request_1));
	ck_assert(!does(&w, ABORT, NULL, &request_1));
	/* Whatever has become of the target since. */
	target_is(&w, WEIGHT_READY);
	ck_assert(!does(&w, ABORT, NULL, &request_1));
}
END_TEST

START_TEST(advancing_looks_for_errors_in_order)
{
	struct world w;

	world_init(&w);
	refuses(&w, ADVANCE, NULL, NULL, -ENOENT, "");
	claim_is(&w, WEIGHT_PUT_FIRST, WEIGHT_RETIRING_BASE);
	w.lineage.lineage_metadata_generation = WEIGHT_METADATA_GENERATION_MAX;
	refuses(&w, ADVANCE, NULL, NULL, -EBUSY, "");
	w.base.availability = WEIGHT_DELETING;
	refuses(&w, ADVANCE, NULL, NULL, -EBUSY, "");
	w.state.base = NULL;
	refuses(&w, ADVANCE, NULL, NULL, -EOVERFLOW, "");
	w.lineage.lineage_metadata_generation--;
	ck_assert(does(&w, ADVANCE, NULL, NULL));
	ck_assert(!does(&w, ADVANCE, NULL, NULL));
}
END_TEST

/* A clock that went back since the claim was written last, at 2000. */
START_TEST(times_never_go_back)
{
	static const enum act acts[] = { ADVANCE, ABORT, BEGIN, COMMIT };
	struct weight_upsert_request rq = request(WEIGHT_DELETE_FIRST);
	struct world w;

	world_init(&w);
	claim_is(&w, WEIGHT_PUT_FIRST, WEIGHT_ABORTED);
	ck_assert(does_at(&w, BEGIN, &rq, NULL, 1));
	ck_assert_uint_eq(w.lineage.claim.created_at_ms, 2000);
	ck_assert_uint_eq(w.lineage.claim.updated_at_ms, 2000);
	w.state.base = NULL;
	for (size_t i = 0; i < ARRAY_LEN(acts); i++) {
		if (acts[i] == COMMIT)
			target_is(&w, WEIGHT_READY);
		ck_assert(does_at(&w, acts[i], &rq, &request_1, 1));
		ck_assert_uint_eq(w.lineage.claim.created_at_ms, 2000);
		ck_assert_uint_eq(w.lineage.claim.updated_at_ms, 2000);
	}
	phase_is(&w, WEIGHT_COMPLETED, 8);
}
END_TEST

START_TEST(resuming_needs_a_generation)
{
	struct weight_upsert_request rq = request(WEIGHT_DELETE_FIRST);
	struct world w;

	world_init(&w);
	claim_is(&w, WEIGHT_DELETE_FIRST, WEIGHT_TARGET_IMPORTING);
	w.lineage.lineage_metadata_generation = WEIGHT_METADATA_GENERATION_MAX;
	ck_assert(!does(&w, BEGIN, &rq, NULL));
	refuses(&w, ABORT, NULL, &request_1, -EOVERFLOW, "used up");
	interrupt(&w);
	ck_assert(!does(&w, ABORT, NULL, &request_1));
	refuses(&w, BEGIN, &rq, NULL, -EOVERFLOW, "used up");
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_decision_lineage");
	TCase *tc = tcase_create("core");

	tcase_add_loop_test(tc, the_first_claim_makes_the_record, 0, 2);
	tcase_add_test(tc, a_staged_target_needs_no_description);
	tcase_add_loop_test(tc, a_request_is_looked_at_before_anything_else, 0,
			    SPOILS);
	tcase_add_test(tc, the_largest_arguments_are_taken);
	tcase_add_test(tc, beginning_looks_for_errors_in_order);
	tcase_add_loop_test(tc, a_target_that_cant_be_prepared_leaves_no_claim,
			    0, (int)ARRAY_LEN(preparations));
	tcase_add_loop_test(tc, a_new_claim_looks_at_the_base_again, 0, 5);
	tcase_add_test(tc, a_record_without_a_claim_has_a_watermark);
	tcase_add_test(tc, only_delete_first_minds_who_uses_the_base);
	tcase_add_loop_test(tc, every_argument_makes_another_request, 0,
			    DIFFERENCES);
	tcase_add_test(tc, another_base_makes_another_request);
	tcase_add_loop_test(tc, a_competitor_hears_who_is_first, 0,
			    (int)ARRAY_LEN(competitions));
	tcase_add_test(tc, a_derived_request_id_resumes);
	tcase_add_loop_test(tc, every_phase_meets_every_event, 0,
			    (int)ARRAY_LEN(pairs));
	tcase_add_loop_test(tc, each_part_of_a_name_counts, 0, 5);
	tcase_add_test(tc, committing_looks_for_errors_in_order);
	tcase_add_test(tc, aborting_looks_for_errors_in_order);
	tcase_add_test(tc, advancing_looks_for_errors_in_order);
	tcase_add_test(tc, times_never_go_back);
	tcase_add_test(tc, resuming_needs_a_generation);
	suite_add_tcase(s, tc);
	return s;
}
