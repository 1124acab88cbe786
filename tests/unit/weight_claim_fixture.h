/* SPDX-License-Identifier: Apache-2.0 */
/* A generation that is replaced by another: what there is, and what is done. */
#ifndef TESTS_UNIT_WEIGHT_CLAIM_FIXTURE_H
#define TESTS_UNIT_WEIGHT_CLAIM_FIXTURE_H

#include <check.h>
#include <errno.h>
#include <string.h>

#include "core/weight_decision_lineage.h"

#define LINEAGE                                                                \
	{                                                                      \
		"default", "default", "demo", "main"                           \
	}

static const struct weight_claim_name request_1 = { "request-1", 7, 8 };
static const struct weight_claim_name request_2 = { "request-2", 7, 8 };

/* What there is: generation 7, which 8 shall replace. */
struct world {
	struct weight_lineage_record lineage;
	struct weight_metadata base;
	struct weight_metadata target;
	struct weight_staging staged;
	struct weight_lineage_state state;
};

static inline struct weight_metadata revision(
	uint64_t generation, enum weight_availability availability)
{
	return (struct weight_metadata){
		.identity = { LINEAGE, generation },
		.availability = availability,
		.durable = true,
		.metadata_generation = 2,
		.created_at_ms = 100,
		.updated_at_ms = 100,
	};
}

/* Generation 7 is READY, and nothing else is there. */
static inline void world_init(struct world *w)
{
	*w = (struct world){
		.base = revision(7, WEIGHT_READY),
		.target = revision(8, WEIGHT_IMPORTING),
		.staged = { .identity = { LINEAGE, 8 } },
	};
	w->state.base = &w->base;
}

static inline void target_is(struct world *w,
			     enum weight_availability availability)
{
	w->target.availability = availability;
	w->state.target = &w->target;
}

static inline struct weight_upsert_request request(enum weight_upsert_mode mode)
{
	return (struct weight_upsert_request){
		.request_id = "request-1",
		.base = { LINEAGE, 7 },
		.target = { LINEAGE, 8 },
		.mode = mode,
		.expected_base_metadata_generation = 2,
		.described = true,
		.import = {
			.payload_count = 3,
			.logical_bytes = 1000,
			.policy = { WEIGHT_HOT, 0.5, WEIGHT_AUTO },
			.affinity_count = 5,
			.affinity_digest = { { 1 } },
		},
	};
}

/* The claim of that request, brought to a phase by hand. */
static inline void claim_is(struct world *w, enum weight_upsert_mode mode,
			    enum weight_upsert_phase phase)
{
	struct weight_upsert_request rq = request(mode);
	bool reached =
		phase == WEIGHT_RETIRING_BASE || phase == WEIGHT_COMPLETED;

	w->lineage = (struct weight_lineage_record){
		.lineage = LINEAGE,
		.lineage_metadata_generation = 5,
		.watermark = reached ? 8 : 7,
		.claimed = true,
		.claim = { .request_id = rq.request_id,
			   .base = 7,
			   .target = 8,
			   .mode = mode,
			   .phase = phase,
			   .expected_base_metadata_generation = 2,
			   .described = true,
			   .import = rq.import,
			   .created_at_ms = 1000,
			   .updated_at_ms = 2000,
			   .error = "" },
	};
	w->state.lineage = &w->lineage;
	ck_assert_int_eq(weight_lineage_record_check(&w->lineage, NULL), 0);
}

static inline void interrupt(struct world *w)
{
	w->lineage.claim.error = WEIGHT_CLAIM_INTERRUPTED;
}

/* ---- Doing it: what is decided is stored ---- */

enum act { BEGIN, COMMIT, ABORT, ADVANCE };

/* The arguments that an act doesn't have are NULL. */
static inline int decide(enum act act, const struct weight_lineage_state *state,
			 const struct weight_upsert_request *rq,
			 const struct weight_claim_name *name, uint64_t now_ms,
			 struct weight_lineage_record *ret, bool *ret_changed,
			 struct buf *why)
{
	switch (act) {
	case BEGIN:
		return weight_decide_upsert_begin(state, rq, now_ms, ret,
						  ret_changed, why);
	case COMMIT:
		return weight_decide_upsert_commit(state, name, now_ms, ret,
						   ret_changed, why);
	case ABORT:
		return weight_decide_upsert_abort(state, name, now_ms, ret,
						  ret_changed, why);
	case ADVANCE:
		return weight_decide_claim_advance(state, now_ms, ret,
						   ret_changed);
	}
	return -ENOSYS;
}

/* It is refused so, with a sentence that has `says` in it, and no result. */
static inline void refuses(const struct world *w, enum act act,
			   const struct weight_upsert_request *rq,
			   const struct weight_claim_name *name, int err,
			   const char *says)
{
	struct weight_lineage_record ret = { .watermark = 99 };
	cleanup(buf_release) struct buf why = BUF_INIT;
	bool changed = true;
	int r;

	r = decide(act, &w->state, rq, name, 3000, &ret, &changed, &why);
	ck_assert_msg(r == err, "%d instead of %d: %s", r, err, why.data);
	ck_assert_uint_eq(ret.watermark, 99);
	ck_assert(!ret.claimed && changed);
	if (act == ADVANCE)
		return;
	ck_assert_uint_gt(why.len, 0);
	ck_assert_msg(strstr(why.data, says) != NULL, "\"%s\" not in \"%s\"",
		      says, why.data);
	/* Whoever doesn't want to know gets the same answer. */
	changed = false;
	ck_assert_int_eq(
		decide(act, &w->state, rq, name, 3000, &ret, &changed, NULL),
		err);
	ck_assert(!changed);
}

static inline void same_record(const struct weight_lineage_record *a,
			       const struct weight_lineage_record *b)
{
	cleanup(buf_release) struct buf x = BUF_INIT;
	cleanup(buf_release) struct buf y = BUF_INIT;

	ck_assert_int_eq(weight_record_lineage_encode(a, &x), 0);
	ck_assert_int_eq(weight_record_lineage_encode(b, &y), 0);
	ck_assert_uint_eq(x.len, y.len);
	ck_assert_mem_eq(x.data, y.data, x.len);
}

/* Stores what comes out, and checks what is true of every outcome. */
static inline bool does_at(struct world *w, enum act act,
			   const struct weight_upsert_request *rq,
			   const struct weight_claim_name *name,
			   uint64_t now_ms)
{
	const struct weight_lineage_record *was = w->state.lineage;
	struct weight_lineage_record ret;
	cleanup(buf_release) struct buf why = BUF_INIT;
	bool changed = true;
	bool again = false;
	int r;

	r = decide(act, &w->state, rq, name, now_ms, &ret, &changed, &why);
	ck_assert_msg(r == 0, "%d: %s", r, why.data);
	ck_assert_int_eq(
		decide(act, &w->state, rq, name, now_ms, &ret, &again, NULL),
		0);
	ck_assert_int_eq(changed, again);
	ck_assert_uint_eq(why.len, 0);
	ck_assert_int_eq(weight_lineage_record_check(&ret, NULL), 0);
	if (was && !changed)
		same_record(was, &ret);
	if (was && changed) {
		ck_assert_uint_eq(ret.lineage_metadata_generation,
				  was->lineage_metadata_generation + 1);
		ck_assert_uint_ge(ret.watermark, was->watermark);
		ck_assert_uint_ge(ret.claim.updated_at_ms,
				  was->claim.updated_at_ms);
		ck_assert_uint_ge(ret.claim.updated_at_ms, now_ms);
	}
	w->lineage = ret;
	w->state.lineage = &w->lineage;
	return changed;
}

static inline bool does(struct world *w, enum act act,
			const struct weight_upsert_request *rq,
			const struct weight_claim_name *name)
{
	return does_at(w, act, rq, name, 3000);
}

static inline void phase_is(const struct world *w,
			    enum weight_upsert_phase phase, uint64_t watermark)
{
	ck_assert_str_eq(weight_upsert_phase_name(w->lineage.claim.phase),
			 weight_upsert_phase_name(phase));
	ck_assert_uint_eq(w->lineage.watermark, watermark);
}

static inline void next_is(const struct world *w, enum weight_claim_step step)
{
	ck_assert_int_eq((int)weight_decide_claim_step(&w->state, false),
			 (int)step);
}

#endif
