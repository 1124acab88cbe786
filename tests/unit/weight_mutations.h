/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every kind of mutation of the weight metadata store, each with what has to be
 * there before it. All of them say what time it is, so that what is done twice
 * gives the same bytes.
 *
 * They return what the store returns, and know nothing of Check: a test of kills
 * uses them, too.
 */
#ifndef TESTS_UNIT_WEIGHT_MUTATIONS_H
#define TESTS_UNIT_WEIGHT_MUTATIONS_H

#include <errno.h>
#include <stdbool.h>

#include "core/oplog.h"
#include "core/util.h"
#include "core/weight_key.h"
#include "core/weight_metadata_store.h"

#define MUTATION static __attribute__((unused))

struct mutation {
	const char *name;
	int (*prepare)(struct weight_metadata_store *s); /* or NULL */
	int (*act)(struct weight_metadata_store *s);
	unsigned entries; /* of the operation log that it adds */
	bool of_lineage;  /* they are of the lineage's type */
	int again;        /* the answer when it is repeated */
};

#define BASE 7
#define TARGET 8

MUTATION struct weight_identity some_id(uint64_t generation)
{
	return (struct weight_identity){
		.lineage = { "default", "ns", "demo", "main" },
		.generation = generation,
	};
}

static const struct weight_policy wants_hot = { WEIGHT_HOT, 0.5, WEIGHT_AUTO };
static const struct weight_policy wants_cold = { WEIGHT_COLD, 0.5,
						 WEIGHT_MANUAL };
static const struct weight_policy wants_mixed = { WEIGHT_MIXED, 0.25,
						  WEIGHT_PINNED };

MUTATION struct weight_import some_import(const struct weight_policy *policy)
{
	return (struct weight_import){
		.payload_count = 3,
		.logical_bytes = 1000,
		.policy = *policy,
		.affinity_count = 5,
		.affinity_digest = { { 3 } },
	};
}

/* The manifest of a generation; key and group have room for its names. */
MUTATION int some_manifest(const struct weight_identity *id, struct buf *key,
			   char group[static WEIGHT_GROUP_ID_LEN + 1],
			   struct weight_manifest_ref *ret)
{
	int r;

	if ((r = weight_group_id(id, group)) < 0 ||
	    (r = weight_manifest_key(id, key)) < 0)
		return r;
	*ret = (struct weight_manifest_ref){
		.manifest_key = key->data,
		.payload_group_id = group,
		.manifest_sha256 = { { 1 } },
		.payload_keys_sha256 = { { 2 } },
		.complete = true,
		.payload_count = 3,
		.logical_bytes = 1000,
	};
	return 0;
}

/* ---- Staging and publishing ---- */

MUTATION int stage_it(struct weight_metadata_store *s)
{
	struct weight_identity id = some_id(BASE);

	return wms_stage(s, &id, 1000, NULL);
}

MUTATION int set_staged_policy(struct weight_metadata_store *s)
{
	struct weight_identity id = some_id(BASE);

	return wms_staged_policy(s, &id, &wants_cold);
}

MUTATION int unstage_it(struct weight_metadata_store *s)
{
	struct weight_identity id = some_id(BASE);

	return wms_unstage(s, &id);
}

MUTATION int publish_so(struct weight_metadata_store *s, uint64_t generation,
			bool converges, uint64_t now_ms)
{
	cleanup(buf_release) struct buf key = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];
	struct weight_publication p = {
		.identity = some_id(generation),
		.policy = wants_hot,
		.affinity_count = 5,
		.affinity_digest = { { 3 } },
		.residency = WEIGHT_COLD,
		.converges = converges,
	};
	int r = some_manifest(&p.identity, &key, group, &p.manifest);

	return r < 0 ? r : wms_publish(s, &p, now_ms, NULL, NULL);
}

MUTATION int publish_it(struct weight_metadata_store *s)
{
	return publish_so(s, BASE, false, 1100);
}

MUTATION int publish_and_move(struct weight_metadata_store *s)
{
	return publish_so(s, BASE, true, 1100);
}

/* BASE, READY and COLD at metadata generation 2. */
MUTATION int published_base(struct weight_metadata_store *s)
{
	int r = stage_it(s);

	return r < 0 ? r : publish_it(s);
}

/* With operation 1. */
MUTATION int published_moving(struct weight_metadata_store *s)
{
	int r = stage_it(s);

	return r < 0 ? r : publish_and_move(s);
}

/* ---- Imports and policies ---- */

MUTATION int begin_so(struct weight_metadata_store *s, uint64_t generation,
		      const struct weight_policy *policy, bool by_claim,
		      uint64_t now_ms)
{
	const struct weight_import_request rq = {
		.identity = some_id(generation),
		.payload_group_id = "",
		.import = some_import(policy),
		.by_claim = by_claim,
	};

	return wms_import_begin(s, &rq, now_ms, NULL, NULL);
}

MUTATION int commit_so(struct weight_metadata_store *s, uint64_t generation,
		       uint64_t expected, uint64_t now_ms)
{
	cleanup(buf_release) struct buf key = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];
	struct weight_commit_request rq = {
		.identity = some_id(generation),
		.expected_metadata_generation = expected,
		.residency = WEIGHT_HOT,
		.observed_hot_ratio = 1.0,
	};
	int r = some_manifest(&rq.identity, &key, group, &rq.manifest);

	return r < 0 ? r : wms_import_commit(s, &rq, now_ms, NULL, NULL);
}

MUTATION int begin_cold(struct weight_metadata_store *s)
{
	return begin_so(s, BASE, &wants_cold, false, 1000);
}

MUTATION int begin_hot(struct weight_metadata_store *s)
{
	return begin_so(s, BASE, &wants_hot, false, 1000);
}

MUTATION int commit_it(struct weight_metadata_store *s)
{
	return commit_so(s, BASE, 1, 1100);
}

MUTATION int abort_it(struct weight_metadata_store *s)
{
	struct weight_identity id = some_id(BASE);

	return wms_import_abort(s, &id, 1, 1100, NULL);
}

MUTATION int change_policy(struct weight_metadata_store *s)
{
	struct weight_identity id = some_id(BASE);

	return wms_policy_update(s, &id, &wants_mixed, 2, 1200, NULL, NULL);
}

/* Where it isn't. */
MUTATION int change_policy_and_move(struct weight_metadata_store *s)
{
	const struct weight_policy mixed = { WEIGHT_MIXED, 0.5, WEIGHT_AUTO };
	struct weight_identity id = some_id(BASE);

	return wms_policy_update(s, &id, &mixed, 2, 1200, NULL, NULL);
}

/* ---- Leases ---- */

MUTATION int acquire_so(struct weight_metadata_store *s, const char *holder,
			uint64_t ttl_ms, uint64_t now_ms)
{
	const struct weight_lease_request rq = { .holder = holder,
						 .ttl_ms = ttl_ms };
	struct weight_identity id = some_id(BASE);
	struct weight_lease *l;
	int r = wms_lease_acquire(s, &id, &rq, now_ms, &l);

	if (r == 0)
		weight_lease_free(l);
	return r;
}

MUTATION int acquire_it(struct weight_metadata_store *s)
{
	return acquire_so(s, "mount", 500, 1200);
}

MUTATION int leased_base(struct weight_metadata_store *s)
{
	int r = published_base(s);

	return r < 0 ? r : acquire_it(s);
}

MUTATION int renew_it(struct weight_metadata_store *s)
{
	return wms_lease_renew(s, "default", 1, 800, 1300, NULL);
}

MUTATION int release_it(struct weight_metadata_store *s)
{
	return wms_lease_release(s, "default", 1);
}

/* Three that expire, and one that doesn't. */
MUTATION int much_leased_base(struct weight_metadata_store *s)
{
	int r = leased_base(s);

	if (r < 0 || (r = acquire_so(s, "b", 500, 1200)) < 0 ||
	    (r = acquire_so(s, "c", 9000, 1200)) < 0)
		return r;
	return acquire_so(s, "d", 500, 1200);
}

MUTATION int sweep_it(struct weight_metadata_store *s)
{
	size_t removed;

	return wms_lease_sweep(s, 1700, 10, &removed);
}

/* ---- Removal and observation ---- */

MUTATION int delete_it(struct weight_metadata_store *s)
{
	const struct wms_delete_request rq = {
		.expected_metadata_generation = 2,
		.ignore_lease_holder = "mount",
	};
	struct weight_identity id = some_id(BASE);

	return wms_delete_begin(s, &id, &rq, 1400, NULL);
}

/* With an operation and two leases that go with it: its own, and an old one. */
MUTATION int moving_leased_base(struct weight_metadata_store *s)
{
	int r = published_moving(s);

	if (r < 0 || (r = acquire_it(s)) < 0)
		return r;
	return acquire_so(s, "old", 1, 1200);
}

MUTATION int deleting_base(struct weight_metadata_store *s)
{
	int r = published_base(s);

	return r < 0 ? r : delete_it(s);
}

MUTATION int finish_delete(struct weight_metadata_store *s)
{
	struct weight_identity id = some_id(BASE);

	return wms_delete_finish(s, &id, 3, 1500, NULL);
}

MUTATION int observe_it(struct weight_metadata_store *s)
{
	const struct weight_observation seen = { .availability =
							 WEIGHT_DEGRADED,
						 .residency = WEIGHT_MIXED,
						 .hot_ratio = 0.5,
						 .beside_operation = true };
	struct weight_identity id = some_id(BASE);

	return wms_observe(s, &id, &seen, 2, 1300, NULL);
}

MUTATION int mark_durable(struct weight_metadata_store *s)
{
	struct weight_identity id = some_id(BASE);

	return wms_mark_durable(s, &id, 1300, NULL);
}

/* ---- Operations ---- */

MUTATION int start_so(struct weight_metadata_store *s,
		      enum weight_residency target, uint64_t expected,
		      bool supersedes)
{
	const struct weight_operation_request rq = {
		.kind = WEIGHT_MIGRATING,
		.target_residency = target,
		.expected_metadata_generation = expected,
		.supersedes = supersedes,
	};
	struct weight_identity id = some_id(BASE);

	return wms_operation_start(s, &id, &rq, 1200, NULL, NULL);
}

MUTATION int start_it(struct weight_metadata_store *s)
{
	return start_so(s, WEIGHT_HOT, 2, false);
}

MUTATION int supersede_it(struct weight_metadata_store *s)
{
	return start_so(s, WEIGHT_COLD, 2, true);
}

MUTATION int progress_so(struct weight_metadata_store *s,
			 enum weight_residency residency, double hot_ratio)
{
	const struct weight_operation_progress p = {
		.processed_units = 2,
		.total_units = 5,
		.processed_bytes = 300,
		.total_bytes = 1000,
		.cursor = "c",
		.message = "",
		.availability = WEIGHT_READY,
		.residency = residency,
		.hot_ratio = hot_ratio,
	};
	struct weight_identity id = some_id(BASE);

	return wms_operation_progress(s, &id, 1, &p, 1300, NULL);
}

MUTATION int count_progress(struct weight_metadata_store *s)
{
	return progress_so(s, WEIGHT_COLD, 0);
}

MUTATION int see_progress(struct weight_metadata_store *s)
{
	return progress_so(s, WEIGHT_MIXED, 0.3);
}

MUTATION int note_error(struct weight_metadata_store *s)
{
	struct weight_identity id = some_id(BASE);

	return wms_operation_error(s, &id, 1, "no memory", 1300, NULL);
}

MUTATION int finish_it(struct weight_metadata_store *s)
{
	struct weight_identity id = some_id(BASE);

	return wms_operation_finish(s, &id, 1, WEIGHT_HOT, 1.0, 1400, NULL);
}

/* ---- Claims ---- */

MUTATION int claim_so(struct weight_metadata_store *s,
		      enum weight_upsert_mode mode, uint64_t now_ms)
{
	const struct weight_upsert_request rq = {
		.request_id = "request",
		.base = some_id(BASE),
		.target = some_id(TARGET),
		.mode = mode,
		.expected_base_metadata_generation = 2,
		.described = true,
		.import = some_import(&wants_hot),
	};

	return wms_upsert_begin(s, &rq, now_ms, NULL, NULL);
}

MUTATION int claim_put_first(struct weight_metadata_store *s)
{
	return claim_so(s, WEIGHT_PUT_FIRST, 2000);
}

MUTATION int claim_delete_first(struct weight_metadata_store *s)
{
	return claim_so(s, WEIGHT_DELETE_FIRST, 2000);
}

MUTATION int begin_target(struct weight_metadata_store *s)
{
	return begin_so(s, TARGET, &wants_hot, true, 2100);
}

MUTATION int ready_target(struct weight_metadata_store *s)
{
	int r = begin_target(s);

	return r < 0 ? r : commit_so(s, TARGET, 1, 2200);
}

MUTATION int remove_so(struct weight_metadata_store *s, uint64_t generation,
		       uint64_t now_ms)
{
	const struct wms_delete_request rq = { .by_claim = true };
	struct weight_identity id = some_id(generation);
	int r = wms_delete_begin(s, &id, &rq, now_ms, NULL);

	return r < 0 ? r : wms_delete_finish(s, &id, 0, now_ms, NULL);
}

MUTATION struct wms_claim_request claim_name(const struct weight_identity *id)
{
	return (struct wms_claim_request){
		.lineage = &id->lineage,
		.name = { "request", BASE, TARGET },
	};
}

MUTATION int commit_claim(struct weight_metadata_store *s)
{
	const struct weight_identity id = some_id(TARGET);
	const struct wms_claim_request rq = claim_name(&id);

	return wms_upsert_commit(s, &rq, 2400, NULL, NULL);
}

MUTATION int abort_claim(struct weight_metadata_store *s)
{
	const struct weight_identity id = some_id(TARGET);
	const struct wms_claim_request rq = claim_name(&id);

	return wms_upsert_abort(s, &rq, 2400, NULL, NULL);
}

MUTATION int advance_claim(struct weight_metadata_store *s)
{
	const struct weight_identity id = some_id(TARGET);

	return wms_claim_advance(s, &id.lineage, 2600, NULL);
}

MUTATION int put_first_claimed(struct weight_metadata_store *s)
{
	int r = published_base(s);

	return r < 0 ? r : claim_put_first(s);
}

MUTATION int put_first_ready(struct weight_metadata_store *s)
{
	int r = put_first_claimed(s);

	return r < 0 ? r : ready_target(s);
}

MUTATION int put_first_base_gone(struct weight_metadata_store *s)
{
	int r = put_first_ready(s);

	if (r < 0 || (r = commit_claim(s)) < 0)
		return r;
	return remove_so(s, BASE, 2500);
}

MUTATION int delete_first_claimed(struct weight_metadata_store *s)
{
	int r = published_base(s);

	return r < 0 ? r : claim_delete_first(s);
}

MUTATION int delete_first_base_gone(struct weight_metadata_store *s)
{
	int r = delete_first_claimed(s);

	return r < 0 ? r : remove_so(s, BASE, 2050);
}

/* In phase TARGET_IMPORTING. */
MUTATION int delete_first_importing(struct weight_metadata_store *s)
{
	const struct weight_identity id = some_id(TARGET);
	int r = delete_first_base_gone(s);

	return r < 0 ? r : wms_claim_advance(s, &id.lineage, 2060, NULL);
}

MUTATION int delete_first_ready(struct weight_metadata_store *s)
{
	int r = delete_first_importing(s);

	return r < 0 ? r : ready_target(s);
}

/* Its target is a tombstone, and the claim waits for its own request. */
MUTATION int delete_first_interrupted(struct weight_metadata_store *s)
{
	struct weight_identity id = some_id(TARGET);
	int r = delete_first_importing(s);

	if (r < 0 || (r = begin_target(s)) < 0 ||
	    (r = wms_import_abort(s, &id, 1, 2200, NULL)) < 0 ||
	    (r = wms_delete_finish(s, &id, 2, 2300, NULL)) < 0)
		return r;
	return abort_claim(s);
}

MUTATION int delete_first_resumed(struct weight_metadata_store *s)
{
	int r = delete_first_interrupted(s);

	return r < 0 ? r : claim_delete_first(s);
}

/* ---- Replay, each entry the first one after what was prepared ---- */

MUTATION int replay_so(struct weight_metadata_store *s,
		       const struct oplog_change *change, uint64_t sequence)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	int r = oplog_encode(change, sequence, &bytes);

	return r < 0 ? r : wms_replay(s, bytes.data, bytes.len, NULL);
}

MUTATION int replay_import(struct weight_metadata_store *s)
{
	const struct weight_import import = some_import(&wants_hot);
	char group[WEIGHT_GROUP_ID_LEN + 1];
	const struct weight_metadata m = {
		.identity = some_id(BASE),
		.manifest = { .manifest_key = "",
			      .payload_group_id = group,
			      .payload_count = import.payload_count,
			      .logical_bytes = import.logical_bytes },
		.policy = import.policy,
		.affinity_count = import.affinity_count,
		.affinity_digest = import.affinity_digest,
		.metadata_generation = 1,
	};
	const struct oplog_change change = { .type = OPLOG_METADATA_UPSERT,
					     .metadata = &m };
	int r = weight_group_id(&m.identity, group);

	return r < 0 ? r : replay_so(s, &change, 1);
}

MUTATION int replay_tombstone(struct weight_metadata_store *s)
{
	const struct oplog_change change = { .type = OPLOG_METADATA_DELETE,
					     .timestamp_ms = 1500,
					     .identity = some_id(BASE),
					     .metadata_generation = 4 };

	return replay_so(s, &change, 3);
}

MUTATION int replay_lease(struct weight_metadata_store *s)
{
	const struct weight_lease lease = {
		.lease_id = 5,
		.identity = some_id(BASE),
		.holder = "h",
		.expires_at_ms = 5000,
		.fenced_metadata_generation = 2,
	};
	const struct oplog_change change = { .type = OPLOG_LEASE_UPSERT,
					     .lease = &lease,
					     .last_accessed_at_ms = 1300 };

	return replay_so(s, &change, 2);
}

MUTATION int replay_release(struct weight_metadata_store *s)
{
	const struct oplog_change change = { .type = OPLOG_LEASE_DELETE,
					     .lease_id = 1,
					     .identity = some_id(BASE),
					     .metadata_generation = 2 };

	return replay_so(s, &change, 3);
}

MUTATION int replay_claim(struct weight_metadata_store *s)
{
	const struct weight_lineage_record l = {
		.lineage = some_id(1).lineage,
		.lineage_metadata_generation = 1,
		.watermark = BASE,
		.claimed = true,
		.claim = { .request_id = "request",
			   .base = BASE,
			   .target = TARGET,
			   .expected_base_metadata_generation = 2,
			   .created_at_ms = 1300,
			   .updated_at_ms = 1300,
			   .error = "" },
	};
	const struct oplog_change change = { .type = OPLOG_LINEAGE_UPSERT,
					     .lineage = &l };

	return replay_so(s, &change, 2);
}

/* ---- Boots ---- */

MUTATION int begin_boot(struct weight_metadata_store *s)
{
	bool unclean;

	return wms_begin_boot(s, "boot", &unclean);
}

/* clang-format off */
static const struct mutation mutations[] = {
	{ "stage", NULL, stage_it, 0, false, -EEXIST },
	{ "staged policy", stage_it, set_staged_policy, 0, false, 0 },
	{ "unstage", stage_it, unstage_it, 0, false, -ENOENT },
	{ "publish", stage_it, publish_it, 1, false, -EEXIST },
	{ "publish and move", stage_it, publish_and_move, 1, false, -EEXIST },

	{ "begin an import", NULL, begin_cold, 1, false, 0 },
	{ "begin it again", delete_first_resumed, begin_target, 1, false, 0 },
	{ "commit", begin_hot, commit_it, 1, false, 0 },
	{ "commit and move", begin_cold, commit_it, 1, false, 0 },
	{ "abort", begin_hot, abort_it, 1, false, 0 },
	{ "policy", published_base, change_policy, 1, false, 0 },
	{ "policy and move", published_base, change_policy_and_move, 1, false,
	  0 },

	{ "acquire", published_base, acquire_it, 1, false, 0 },
	{ "renew", leased_base, renew_it, 1, false, 0 },
	{ "release", leased_base, release_it, 1, false, 0 },
	{ "sweep", much_leased_base, sweep_it, 3, false, 0 },

	{ "begin to delete", moving_leased_base, delete_it, 1, false, 0 },
	{ "finish to delete", deleting_base, finish_delete, 1, false, 0 },
	{ "observe", published_base, observe_it, 1, false, 0 },
	{ "observe a move", published_moving, observe_it, 1, false, 0 },
	{ "mark durable", published_base, mark_durable, 1, false, 0 },

	{ "start an operation", published_base, start_it, 1, false, 0 },
	{ "supersede", published_moving, supersede_it, 1, false, 0 },
	{ "count progress", published_moving, count_progress, 1, false, 0 },
	{ "see progress", published_moving, see_progress, 1, false, 0 },
	{ "error", published_moving, note_error, 1, false, 0 },
	{ "finish an operation", published_moving, finish_it, 1, false, 0 },

	{ "claim, put first", published_base, claim_put_first, 1, true, 0 },
	{ "claim, delete first", published_base, claim_delete_first, 1, true,
	  0 },
	{ "commit, put first", put_first_ready, commit_claim, 1, true, 0 },
	{ "commit, delete first", delete_first_ready, commit_claim, 1, true,
	  0 },
	{ "abort, put first", put_first_claimed, abort_claim, 1, true, 0 },
	{ "abort, delete first", delete_first_claimed, abort_claim, 1, true,
	  0 },
	{ "interrupt", delete_first_importing, abort_claim, 1, true, 0 },
	{ "resume", delete_first_interrupted, claim_delete_first, 1, true, 0 },
	{ "advance, put first", put_first_base_gone, advance_claim, 1, true,
	  0 },
	{ "advance, delete first", delete_first_base_gone, advance_claim, 1,
	  true, 0 },

	{ "replay an import", NULL, replay_import, 1, false, -ESPIPE },
	{ "replay a tombstone", deleting_base, replay_tombstone, 1, false,
	  -ESPIPE },
	{ "replay a lease", published_base, replay_lease, 1, false, -ESPIPE },
	{ "replay a release", leased_base, replay_release, 1, false,
	  -ESPIPE },
	{ "replay a claim", published_base, replay_claim, 1, true, -ESPIPE },

	{ "begin a boot", NULL, begin_boot, 0, false, 0 },
	{ "mark clean", begin_boot, wms_mark_clean, 0, false, 0 },
};
/* clang-format on */

#endif
