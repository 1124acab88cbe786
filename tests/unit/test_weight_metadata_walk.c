/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random mutations of a few generations, by a clock that sometimes goes back:
 * whatever is made of them, the records fit together, each change has its entry
 * in the log, and who follows the log has the same.
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "suite.h"
#include "weight_follower_fixture.h"

#define STEPS 600
/* After so many steps others are dealt with; what was begun stays as it is. */
#define STEPS_OF_LINEAGES 150
#define STEPS_OF_GENERATIONS 40
#define GENERATIONS 3

static uint64_t seed, now_ms, last_lease;

static unsigned pick(unsigned n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (unsigned)(seed >> 33) % n;
}

static bool often(void)
{
	return pick(4) != 0;
}

static struct weight_policy some_policy(void)
{
	static const enum weight_residency wanted[] = { WEIGHT_HOT, WEIGHT_COLD,
							WEIGHT_MIXED };

	return (struct weight_policy){
		wanted[pick(3)],
		pick(2) ? 0.5 : 0.25,
		(enum weight_migration_mode)pick(3),
	};
}

static struct weight_import some_import(void)
{
	return (struct weight_import){ .payload_count = 2,
				       .logical_bytes = 100,
				       .policy = some_policy(),
				       .affinity_count = 1 + pick(3),
				       .affinity_digest = { { 3 } } };
}

static double ratio_of(enum weight_residency residency)
{
	return residency == WEIGHT_HOT   ? 1.0 :
	       residency == WEIGHT_MIXED ? 0.5 :
					   0.0;
}

/* What the revision is at, or now and then what it may have been at. */
static uint64_t fence_of(const struct weight_identity *id)
{
	struct weight_metadata *m;
	uint64_t g = 1 + pick(3);

	if (wms_get(store, id, &m) < 0)
		return g;
	if (often())
		g = m->metadata_generation;
	weight_metadata_free(m);
	return pick(3) ? g : 0;
}

/* ---- What may happen ---- */

/* Others are no answer of a sound store. */
static bool is_an_answer(int r)
{
	return r == 0 || r == -EINVAL || r == -ENOENT || r == -EEXIST ||
	       r == -ECANCELED || r == -EINPROGRESS || r == -EBUSY ||
	       r == -EKEYEXPIRED || r == -EPERM;
}

typedef int walk_fn(const struct weight_identity *id);

static int walk_stage(const struct weight_identity *id)
{
	return wms_stage(store, id, now_ms, NULL);
}

static int walk_unstage(const struct weight_identity *id)
{
	return often() ? 0 : wms_unstage(store, id);
}

static int walk_publish(const struct weight_identity *id)
{
	struct weight_publication p = publication_of(id);

	p.policy = some_policy();
	p.converges = often();
	return publish_as(store, p, now_ms, NULL);
}

static int walk_begin(const struct weight_identity *id)
{
	const struct weight_import_request rq = { .identity = *id,
						  .payload_group_id = "",
						  .import = some_import() };

	return wms_import_begin(store, &rq, now_ms, NULL, NULL);
}

static int walk_commit(const struct weight_identity *id)
{
	static const enum weight_residency places[] = { WEIGHT_HOT, WEIGHT_HOT,
							WEIGHT_COLD,
							WEIGHT_MIXED };
	enum weight_residency place = places[pick(4)];
	cleanup(buf_release) struct buf key = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];
	struct weight_commit_request rq = {
		.identity = *id,
		.expected_metadata_generation = fence_of(id),
		.residency = place,
		.observed_hot_ratio = ratio_of(place),
		.durable = pick(2),
	};

	ck_assert_int_eq(weight_group_id(id, group), 0);
	ck_assert_int_eq(weight_manifest_key(id, &key), 0);
	rq.manifest = (struct weight_manifest_ref){
		.manifest_key = key.data,
		.payload_group_id = group,
		.manifest_sha256 = { { 1 } },
		.payload_keys_sha256 = { { 2 } },
		.complete = true,
		.payload_count = 2,
		.logical_bytes = 100,
	};
	return wms_import_commit(store, &rq, now_ms, NULL, NULL);
}

/* Whatever brings it further. */
static int walk_bring(const struct weight_identity *id)
{
	struct weight_metadata *m;
	int r = wms_get(store, id, &m);
	bool imports = r == 0 && m->availability == WEIGHT_IMPORTING;

	if (r == 0)
		weight_metadata_free(m);
	if (r == 0)
		return imports ? walk_commit(id) : 0;
	r = walk_publish(id);
	if (r != -ENOENT)
		return r;
	return often() ? walk_stage(id) : walk_begin(id);
}

static int walk_abort(const struct weight_identity *id)
{
	return often() ?
		       0 :
		       wms_import_abort(store, id, fence_of(id), now_ms, NULL);
}

static int walk_policy(const struct weight_identity *id)
{
	const struct weight_policy policy = some_policy();

	return wms_policy_update(store, id, &policy, fence_of(id), now_ms, NULL,
				 NULL);
}

static int walk_acquire(const struct weight_identity *id)
{
	static const char *const holders[] = { "mount", "b", "c" };
	const struct weight_lease_request rq = {
		.holder = holders[pick(3)],
		.ttl_ms = 1 + pick(300),
		.expected_metadata_generation = fence_of(id),
		.degraded_too = pick(2),
	};
	struct weight_lease *l;
	int r = wms_lease_acquire(store, id, &rq, now_ms, &l);

	if (r < 0)
		return r;
	last_lease = l->lease_id > last_lease ? l->lease_id : last_lease;
	weight_lease_free(l);
	return 0;
}

static uint64_t a_lease(void)
{
	return last_lease + 1 - pick(last_lease < 6 ? 1 : 6);
}

static int walk_renew(const struct weight_identity *id)
{
	(void)id;
	return wms_lease_renew(store, "default", a_lease(), 1 + pick(500),
			       now_ms, NULL);
}

static int walk_release(const struct weight_identity *id)
{
	(void)id;
	return wms_lease_release(store, "default", a_lease());
}

static int walk_delete(const struct weight_identity *id)
{
	const struct wms_delete_request rq = {
		.expected_metadata_generation = fence_of(id),
		.ignore_lease_holder = pick(2) ? "mount" : NULL,
	};

	return often() ? 0 : wms_delete_begin(store, id, &rq, now_ms, NULL);
}

static int walk_finish_delete(const struct weight_identity *id)
{
	return wms_delete_finish(store, id, fence_of(id), now_ms, NULL);
}

static int walk_observe(const struct weight_identity *id)
{
	static const enum weight_residency places[] = { WEIGHT_HOT, WEIGHT_COLD,
							WEIGHT_MIXED,
							WEIGHT_ABSENT };
	enum weight_residency place = places[pick(4)];
	const struct weight_observation seen = {
		.availability = pick(3) ? WEIGHT_READY : WEIGHT_DEGRADED,
		.residency = place,
		.hot_ratio = ratio_of(place),
		.durable = pick(2),
		.beside_operation = pick(2),
	};

	return wms_observe(store, id, &seen, fence_of(id), now_ms, NULL);
}

static int walk_durable(const struct weight_identity *id)
{
	return wms_mark_durable(store, id, now_ms, NULL);
}

static int walk_start(const struct weight_identity *id)
{
	const struct weight_policy to = some_policy();
	const struct weight_operation_request rq = {
		.kind = often() ? WEIGHT_MIGRATING : WEIGHT_REPAIRING,
		.target_residency = to.preferred,
		.target_hot_ratio =
			to.preferred == WEIGHT_MIXED ? to.mixed_hot_ratio : 0,
		.expected_metadata_generation = fence_of(id),
		.supersedes = pick(2),
	};

	return wms_operation_start(store, id, &rq, now_ms, NULL, NULL);
}

/* The one that runs, or any that may not. */
static struct weight_operation *an_operation(const struct weight_identity *id)
{
	struct weight_operation *op = NULL;
	struct weight_metadata *m;
	uint64_t n = 0;

	if (wms_get(store, id, &m) == 0) {
		n = m->operation_id;
		weight_metadata_free(m);
	}
	(void)wms_operation_get(store, "default", n ? n : 1 + pick(30), &op);
	return op;
}

static int walk_progress(const struct weight_identity *id)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		an_operation(id);
	static const enum weight_residency places[] = { WEIGHT_HOT, WEIGHT_COLD,
							WEIGHT_MIXED };
	struct weight_operation_progress p = { .message = "" };

	if (!op)
		return 0;
	p.total_units = op->total_units;
	p.total_bytes = op->total_bytes;
	p.processed_units = op->processed_units + pick(2);
	p.processed_bytes = op->processed_bytes + pick(30);
	p.cursor = pick(2) ? op->cursor : "next";
	p.availability = often() ? WEIGHT_READY : WEIGHT_DEGRADED;
	p.residency = places[pick(3)];
	p.hot_ratio = ratio_of(p.residency);
	return wms_operation_progress(store, id, op->operation_id, &p, now_ms,
				      NULL);
}

static int walk_error(const struct weight_identity *id)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		an_operation(id);

	return op ? wms_operation_error(store, id, op->operation_id,
					pick(2) ? "no memory" : "no disk",
					now_ms, NULL) :
		    0;
}

static int walk_finish(const struct weight_identity *id)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		an_operation(id);
	enum weight_residency to;

	if (!op)
		return 0;
	to = often() ? op->target_residency : WEIGHT_HOT;
	return wms_operation_finish(store, id, op->operation_id, to,
				    ratio_of(to), now_ms, NULL);
}

static struct weight_lineage_record *claimed(const struct weight_identity *id)
{
	struct weight_lineage_record *l = NULL;

	(void)wms_lineage_get(store, &id->lineage, &l);
	return l;
}

static int walk_claim(const struct weight_identity *id)
{
	static const char *const requests[] = { "r1", "r2", "r3" };
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = claimed(id);
	struct weight_upsert_request rq = {
		.request_id = requests[pick(3)],
		.base = *id,
		.target = *id,
		.mode = (enum weight_upsert_mode)pick(2),
		.described = often(),
	};

	if (l && often())
		rq.base.generation = l->watermark;
	rq.expected_base_metadata_generation = fence_of(&rq.base);
	if (rq.target.generation <= rq.base.generation)
		rq.target.generation = rq.base.generation + 1 + pick(2);
	if (rq.described)
		rq.import = some_import();
	return wms_upsert_begin(store, &rq, now_ms, NULL, NULL);
}

static struct wms_claim_request name_of(const struct weight_lineage_record *l)
{
	return (struct wms_claim_request){
		.lineage = &l->lineage,
		.name = { l->claim.request_id, l->claim.base, l->claim.target },
	};
}

/* Its own request comes once more, and its writer begins the target. */
static int walk_resume(const struct weight_identity *id)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = claimed(id);
	struct weight_upsert_request rq = { .base = *id, .target = *id };
	struct weight_import_request import = { .payload_group_id = "",
						.by_claim = true };
	int r;

	if (!l)
		return 0;
	rq.request_id = l->claim.request_id;
	rq.base.generation = l->claim.base;
	rq.target.generation = l->claim.target;
	rq.mode = l->claim.mode;
	rq.expected_base_metadata_generation =
		l->claim.expected_base_metadata_generation;
	rq.described = l->claim.described;
	rq.import = l->claim.import;
	r = wms_upsert_begin(store, &rq, now_ms, NULL, NULL);
	ck_assert_int_eq(r, 0);
	if (!l->claim.described)
		return 0;
	import.identity = rq.target;
	import.import = rq.import;
	r = wms_import_begin(store, &import, now_ms, NULL, NULL);
	/* The request has been heard, whatever becomes of this. */
	ck_assert_msg(is_an_answer(r), "%d", r);
	return 0;
}

static int walk_commit_claim(const struct weight_identity *id)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = claimed(id);
	struct wms_claim_request rq;

	if (!l)
		return 0;
	rq = name_of(l);
	rq.wants_durable = pick(2);
	return wms_upsert_commit(store, &rq, now_ms, NULL, NULL);
}

static int walk_abort_claim(const struct weight_identity *id)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = claimed(id);
	struct wms_claim_request rq;

	if (!l || often())
		return 0;
	rq = name_of(l);
	return wms_upsert_abort(store, &rq, now_ms, NULL, NULL);
}

/* What a claim needs next is done. */
static int do_step(const struct weight_lineage_record *l,
		   enum weight_claim_step step)
{
	const struct wms_delete_request del = { .ignore_lease_holder = "mount",
						.by_claim = true };
	const struct wms_claim_request name = name_of(l);
	struct weight_identity base = { l->lineage, l->claim.base };
	struct weight_identity target = { l->lineage, l->claim.target };
	const struct weight_import_request import = {
		.identity = target,
		.payload_group_id = "",
		.import = l->claim.import,
		.by_claim = true,
	};

	switch (step) {
	case WEIGHT_CLAIM_DONE:
		return 0;
	case WEIGHT_CLAIM_WAITS:
		/* Perhaps for the disk. */
		(void)wms_delete_finish(store, &base, 0, now_ms, NULL);
		return 0;
	case WEIGHT_CLAIM_PREPARE:
		return wms_import_begin(store, &import, now_ms, NULL, NULL);
	case WEIGHT_CLAIM_CLEAN:
		return wms_delete_finish(store, &target, 0, now_ms, NULL);
	case WEIGHT_CLAIM_COMMIT:
		return wms_upsert_commit(store, &name, now_ms, NULL, NULL);
	case WEIGHT_CLAIM_ABORT:
		return wms_upsert_abort(store, &name, now_ms, NULL, NULL);
	case WEIGHT_CLAIM_DELETE:
		return wms_delete_begin(store, &base, &del, now_ms, NULL);
	case WEIGHT_CLAIM_ADVANCE:
		return wms_claim_advance(store, &l->lineage, now_ms, NULL);
	}
	return -EINVAL;
}

static int walk_step(const struct weight_identity *id)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	enum weight_claim_step step;
	int r = wms_claim_step(store, &id->lineage, false, "mount", now_ms,
			       &step, &l);

	if (r == -ENOENT)
		return 0;
	ck_assert_int_eq(r, 0);
	r = do_step(l, step);
	/* What is said to be next can be done. */
	ck_assert_msg(r == 0, "step %d: %d", (int)step, r);
	return 0;
}

static walk_fn *const ways[] = {
	walk_bring,       walk_bring,   walk_bring,         walk_bring,
	walk_bring,       walk_bring,   walk_bring,         walk_stage,
	walk_unstage,     walk_publish, walk_begin,         walk_commit,
	walk_abort,       walk_policy,  walk_acquire,       walk_renew,
	walk_release,     walk_delete,  walk_finish_delete, walk_observe,
	walk_durable,     walk_start,   walk_progress,      walk_progress,
	walk_error,       walk_finish,  walk_claim,         walk_claim,
	walk_claim,       walk_resume,  walk_step,          walk_step,
	walk_step,        walk_step,    walk_step,          walk_commit_claim,
	walk_abort_claim,
};

static void walk_on(unsigned step)
{
	uint64_t next = next_of(store);
	unsigned way = pick(ARRAY_LEN(ways));
	unsigned age = step % STEPS_OF_LINEAGES;
	struct weight_identity id =
		id_of(1 + age / STEPS_OF_GENERATIONS + pick(GENERATIONS));
	char revision[32];
	int r;

	(void)snprintf(revision, sizeof(revision), "%c%u",
		       "ab"[often() ? 0 : 1], step / STEPS_OF_LINEAGES);
	id.lineage.revision = revision;
	now_ms = pick(20) ? now_ms + pick(40) : now_ms - pick(200);
	r = ways[way](&id);
	ck_assert_msg(is_an_answer(r), "way %u: %d", way, r);
	if (r < 0)
		ck_assert_uint_eq(next_of(store), next);
	else
		ck_assert_uint_le(next_of(store), next + 2);
}

START_TEST(whatever_happens_is_followed)
{
	size_t removed;

	seed = 0x9e3779b97f4a7c15 * (uint64_t)(_i + 1);
	now_ms = 100000;
	for (unsigned i = 0; i < STEPS; i++) {
		walk_on(i);
		if (i % 50 == 49)
			ck_assert_int_eq(
				wms_lease_sweep(store, now_ms, 3, &removed), 0);
		if (i % 100 == 99) {
			follow();
			assert_same();
		}
	}
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_metadata_walk");
	TCase *tc = tcase_create("weight_metadata_walk");

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup_both, teardown_both);
	tcase_add_loop_test(tc, whatever_happens_is_followed, 0, 6);
	suite_add_tcase(s, tc);
	return s;
}
