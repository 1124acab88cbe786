/* SPDX-License-Identifier: Apache-2.0 */
/* Announced imports and policies in the metadata store. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "fault.h"
#include "suite.h"
#include "weight_metadata_fixture.h"
#include "weight_mutations.h"

static struct weight_metadata *must_get(const struct weight_identity *id)
{
	struct weight_metadata *m;

	ck_assert_int_eq(wms_get(store, id, &m), 0);
	return m;
}

static uint64_t log_next(void)
{
	struct wms_oplog_state s;

	ck_assert_int_eq(wms_oplog_state(store, &s), 0);
	return s.next;
}

static void assert_sound(void)
{
	ck_assert_msg(check_store(store) == 0, "%s", found_wrong);
}

/* ---- Imports ---- */

/* Nothing but its own writer does anything with it. */
static void is_left_alone(const struct weight_identity *id)
{
	const struct weight_lease_request lease = { .holder = "h",
						    .ttl_ms = 10 };
	const struct weight_operation_request rq = { .target_residency =
							     WEIGHT_HOT };
	const struct weight_observation seen = { .availability = WEIGHT_READY,
						 .residency = WEIGHT_HOT,
						 .hot_ratio = 1 };
	struct weight_lease *l;

	ck_assert_int_eq(wms_lease_acquire(store, id, &lease, 1, &l),
			 -EINPROGRESS);
	ck_assert_int_eq(delete_begin(id, 0, NULL, 1), -EINPROGRESS);
	ck_assert_int_eq(wms_delete_finish(store, id, 0, 1, NULL), -EEXIST);
	ck_assert_int_eq(wms_operation_start(store, id, &rq, 1, NULL, NULL),
			 -EINPROGRESS);
	ck_assert_int_eq(wms_observe(store, id, &seen, 0, 1, NULL),
			 -EINPROGRESS);
	ck_assert_int_eq(wms_mark_durable(store, id, 1, NULL), -EINPROGRESS);
	ck_assert_int_eq(
		wms_policy_update(store, id, &wants_mixed, 0, 1, NULL, NULL),
		-EINPROGRESS);
	ck_assert_int_eq(wms_stage(store, id, 1, NULL), -EEXIST);
	ck_assert_int_eq(publish(store, id, 1, NULL), -EEXIST);
}

/*
 * MasterServiceWeightManagement.PublishesReadyAndRetriesAfterResponseLoss
 * WeightMetadataStore.BeginIsIdempotentAndRejectsConflicts
 * WeightMetadataStore.CommitUsesCasAndIsRetryableAfterResponseLoss
 * WeightManagementRpc.RegistersEveryApiAndBindsTenant
 */
START_TEST(an_import_is_announced_and_committed)
{
	struct weight_identity id = some_id(BASE);
	struct weight_metadata *m;

	ck_assert_int_eq(commit_it(store), -ENOENT);
	ck_assert_int_eq(abort_it(store), -ENOENT);
	ck_assert_int_eq(begin_hot(store), 0);
	ck_assert_int_eq(begin_hot(store), 0);
	assert_sound();
	reopen();
	m = must_get(&id);
	ck_assert_int_eq(m->availability, WEIGHT_IMPORTING);
	ck_assert_uint_eq(m->metadata_generation, 1);
	ck_assert_uint_eq(m->manifest.payload_count, 3);
	ck_assert_uint_eq(m->affinity_count, 5);
	weight_metadata_free(m);
	is_left_alone(&id);
	ck_assert_int_eq(commit_it(store), 0);
	ck_assert_int_eq(commit_it(store), 0); /* its answer was lost */
	reopen();
	ck_assert_int_eq(commit_it(store), 0);
	m = must_get(&id);
	ck_assert_int_eq(m->availability, WEIGHT_READY);
	ck_assert_int_eq(m->residency, WEIGHT_HOT);
	ck_assert_uint_eq(m->metadata_generation, 2);
	ck_assert_uint_eq(m->operation_id, 0);
	ck_assert_uint_eq(m->updated_at_ms, 1100);
	weight_metadata_free(m);
	ck_assert_uint_eq(log_next(), 3);
	/* The same import again is no mistake, another one is. */
	ck_assert_int_eq(begin_hot(store), 0);
	ck_assert_int_eq(begin_cold(store), -EEXIST);
	ck_assert_int_eq(abort_it(store), -ECANCELED);
	ck_assert_int_eq(wms_import_abort(store, &id, 2, 1200, NULL), -EEXIST);
	assert_sound();
}
END_TEST

START_TEST(the_group_of_an_import_is_canonical)
{
	char group[WEIGHT_GROUP_ID_LEN + 1], other[WEIGHT_GROUP_ID_LEN + 1];
	struct weight_identity id = some_id(BASE), next = some_id(TARGET);
	struct weight_import_request rq = {
		.identity = id,
		.payload_group_id = other,
		.import = some_import(&wants_hot),
	};
	struct weight_metadata *m;

	ck_assert_int_eq(weight_group_id(&id, group), 0);
	ck_assert_int_eq(weight_group_id(&next, other), 0);
	ck_assert_int_eq(wms_import_begin(store, &rq, 1, &m, NULL), -EINVAL);
	rq.payload_group_id = "";
	ck_assert_int_eq(wms_import_begin(store, &rq, 1, &m, NULL), 0);
	ck_assert_str_eq(m->manifest.payload_group_id, group);
	weight_metadata_free(m);
	rq.payload_group_id = group;
	ck_assert_int_eq(wms_import_begin(store, &rq, 1, &m, NULL), 0);
	weight_metadata_free(m);
	ck_assert_uint_eq(log_next(), 2);
	id.generation = 0;
	rq.identity = id;
	ck_assert_int_eq(wms_import_begin(store, &rq, 1, &m, NULL), -EINVAL);
}
END_TEST

/*
 * MasterServiceWeightManagement.RejectsStaleGeneration
 * MasterServiceWeightManagement.RejectsMismatchedSummaryAndDigest
 */
START_TEST(a_commit_has_to_fit)
{
	cleanup(buf_release) struct buf key = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];
	struct weight_commit_request rq = { .identity = some_id(BASE),
					    .residency = WEIGHT_HOT,
					    .observed_hot_ratio = 1 };
	struct weight_commit_request other;

	ck_assert_int_eq(some_manifest(&rq.identity, &key, group, &rq.manifest),
			 0);
	ck_assert_int_eq(begin_hot(store), 0);
	ck_assert_int_eq(commit_so(store, BASE, 2, 1100), -ECANCELED);
	other = rq;
	other.manifest.payload_count++;
	ck_assert_int_eq(wms_import_commit(store, &other, 1, NULL, &why),
			 -EEXIST);
	ck_assert_uint_gt(why.len, 0);
	other = rq;
	other.manifest.logical_bytes--;
	ck_assert_int_eq(wms_import_commit(store, &other, 1, NULL, NULL),
			 -EEXIST);
	other = rq;
	other.manifest.manifest_key = "weights/ns/demo/main/8/manifest";
	ck_assert_int_eq(wms_import_commit(store, &other, 1, NULL, NULL),
			 -EEXIST);
	other = rq;
	other.manifest.complete = false;
	ck_assert_int_eq(wms_import_commit(store, &other, 1, NULL, NULL),
			 -EINVAL);
	ck_assert_int_eq(availability_of(&rq.identity), WEIGHT_IMPORTING);
	ck_assert_int_eq(wms_import_commit(store, &rq, 1100, NULL, NULL), 0);
	/* What was published with one digest is that for good. */
	other = rq;
	other.manifest.payload_keys_sha256.bytes[0]++;
	ck_assert_int_eq(wms_import_commit(store, &other, 1, NULL, NULL),
			 -EEXIST);
	ck_assert_uint_eq(log_next(), 3);
}
END_TEST

/*
 * WeightPolicyState.PinnedPolicyRejectsExplicitMigration: it converges once,
 * and stays.
 * WeightPolicyState.CommitPublishesReadyHotAndMigrationAtomically
 */
START_TEST(a_commit_and_its_operation_are_one_step)
{
	struct weight_identity id = some_id(BASE);
	struct weight_operation *op;
	struct weight_metadata *m;

	ck_assert_int_eq(begin_so(store, BASE, &wants_mixed, false, 1000), 0);
	ck_assert_int_eq(commit_it(store), 0);
	ck_assert_uint_eq(log_next(), 3);
	assert_sound();
	reopen();
	m = must_get(&id);
	ck_assert_int_eq(m->availability, WEIGHT_READY);
	ck_assert_int_eq(m->residency, WEIGHT_HOT);
	ck_assert_uint_eq(m->operation_id, 1);
	weight_metadata_free(m);
	ck_assert_int_eq(wms_operation_get(store, "default", 1, &op), 0);
	ck_assert_int_eq(op->target_residency, WEIGHT_MIXED);
	ck_assert(op->target_hot_ratio == 0.25);
	ck_assert_uint_eq(op->fenced_metadata_generation, 2);
	ck_assert_uint_eq(op->total_units, 5);
	ck_assert_uint_eq(op->total_bytes, 1000);
	weight_operation_free(op);
	ck_assert_int_eq(wms_operation_finish(store, &id, 1, WEIGHT_MIXED, 0.3,
					      1200, NULL),
			 0);
	ck_assert_int_eq(start_so(store, WEIGHT_COLD, 3, false), -EPERM);
	assert_sound();
}
END_TEST

/*
 * WeightMetadataStore.AbortRetryRequiresAdjacentGeneration
 * weight_put_abort_still_deletes_importing_revision
 */
START_TEST(an_aborted_import_goes_to_a_tombstone)
{
	struct weight_identity id = some_id(BASE);
	struct weight_metadata *m;

	ck_assert_int_eq(begin_hot(store), 0);
	ck_assert_int_eq(wms_import_abort(store, &id, 2, 1100, NULL),
			 -ECANCELED);
	ck_assert_int_eq(wms_import_abort(store, &id, 1, 1100, &m), 0);
	ck_assert_int_eq(m->availability, WEIGHT_DELETING);
	ck_assert_uint_eq(m->metadata_generation, 2);
	weight_metadata_free(m);
	ck_assert_int_eq(abort_it(store), 0); /* its answer was lost */
	ck_assert_int_eq(commit_it(store), -ECANCELED);
	ck_assert_int_eq(commit_so(store, BASE, 2, 1100), -EEXIST);
	ck_assert_int_eq(begin_hot(store), -EEXIST);
	reopen();
	ck_assert_int_eq(wms_delete_finish(store, &id, 2, 1200, NULL), 0);
	ck_assert_int_eq(wms_import_abort(store, &id, 3, 1300, NULL), -EEXIST);
	ck_assert_int_eq(begin_hot(store), -EEXIST);
	ck_assert_int_eq(availability_of(&id), WEIGHT_DELETED);
	ck_assert_uint_eq(log_next(), 4);
	assert_sound();
}
END_TEST

START_TEST(what_is_staged_is_not_announced)
{
	struct weight_identity id = some_id(BASE);
	bool used = false;

	ck_assert_int_eq(stage_it(store), 0);
	ck_assert_int_eq(begin_hot(store), -EEXIST);
	ck_assert_int_eq(unstage_it(store), 0);
	ck_assert_int_eq(begin_hot(store), 0);
	ck_assert_int_eq(stage_it(store), -EEXIST);
	/* And the lineage is in use by it. */
	ck_assert_int_eq(wms_lineage_in_use(store, &id.lineage, &used), 0);
	ck_assert(used);
	ck_assert_int_eq(abort_it(store), 0);
	ck_assert_int_eq(wms_lineage_in_use(store, &id.lineage, &used), 0);
	ck_assert(!used);
}
END_TEST

/*
 * MasterServiceWeightManagement.CommitsPercentEncodedIdentity
 * MasterServiceWeightManagement.PreservesTenantIdentityWhenMultiTenancyIsEnabled
 */
START_TEST(names_of_any_kind_are_kept_apart)
{
	static const struct weight_lineage lineages[] = {
		{ "t", "production + staging", "llama/70b", "step:100" },
		{ "t", "production", "llama", "70b/step:100" },
		{ "other", "production + staging", "llama/70b", "step:100" },
		{ "t", "\xc3\xa4", "\xe2\x82\xac", ".." },
	};
	struct weight_metadata *m;
	cleanup(buf_release) struct buf key = BUF_INIT;

	for (size_t i = 0; i < ARRAY_LEN(lineages); i++) {
		struct weight_import_request rq = {
			.identity = { lineages[i], i + 1 },
			.payload_group_id = "",
			.import = some_import(&wants_hot),
		};
		struct weight_commit_request commit = {
			.identity = rq.identity,
			.residency = WEIGHT_HOT,
			.observed_hot_ratio = 1,
		};
		char group[WEIGHT_GROUP_ID_LEN + 1];

		buf_release(&key);
		ck_assert_int_eq(wms_import_begin(store, &rq, 1, NULL, NULL),
				 0);
		ck_assert_int_eq(some_manifest(&rq.identity, &key, group,
					       &commit.manifest),
				 0);
		ck_assert_int_eq(
			wms_import_commit(store, &commit, 2, NULL, NULL), 0);
	}
	for (size_t i = 0; i < ARRAY_LEN(lineages); i++)
		for (size_t g = 1; g <= ARRAY_LEN(lineages); g++) {
			struct weight_identity id = { lineages[i], g };

			ck_assert_int_eq(availability_of(&id),
					 g == i + 1 ? WEIGHT_READY : -ENOENT);
		}
	m = must_get(&(struct weight_identity){ lineages[0], 1 });
	ck_assert_str_eq(m->manifest.manifest_key,
			 "weights/production%20%2B%20staging/llama%2F70b/"
			 "step%3A100/1/manifest");
	weight_metadata_free(m);
	assert_sound();
}
END_TEST

struct racer {
	pthread_t thread;
	unsigned char digest; /* of the manifest */
	int result;
};

static void *race(void *arg)
{
	struct racer *rc = arg;
	struct buf key = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];
	struct weight_commit_request rq = {
		.identity = some_id(BASE),
		.expected_metadata_generation = 1,
		.residency = WEIGHT_HOT,
		.observed_hot_ratio = 1,
	};

	rc->result = some_manifest(&rq.identity, &key, group, &rq.manifest);
	rq.manifest.manifest_sha256.bytes[0] = rc->digest;
	if (rc->result == 0)
		rc->result = wms_import_commit(store, &rq, 1100, NULL, NULL);
	buf_release(&key);
	return NULL;
}

/* WeightMetadataStore.OnlyOneConcurrentCasCandidatePublishes */
START_TEST(one_of_many_commits_wins)
{
	struct weight_identity id = some_id(BASE);
	struct racer racers[8];
	struct weight_metadata *m;
	unsigned won = 0;

	ck_assert_int_eq(begin_hot(store), 0);
	for (size_t i = 0; i < ARRAY_LEN(racers); i++) {
		racers[i].digest = (unsigned char)(i + 1);
		ck_assert_int_eq(pthread_create(&racers[i].thread, NULL, race,
						&racers[i]),
				 0);
	}
	for (size_t i = 0; i < ARRAY_LEN(racers); i++)
		ck_assert_int_eq(pthread_join(racers[i].thread, NULL), 0);
	m = must_get(&id);
	for (size_t i = 0; i < ARRAY_LEN(racers); i++) {
		bool is_it = m->manifest.manifest_sha256.bytes[0] ==
			     racers[i].digest;

		ck_assert_int_eq(racers[i].result, is_it ? 0 : -EEXIST);
		won += is_it;
	}
	weight_metadata_free(m);
	ck_assert_uint_eq(won, 1);
	ck_assert_uint_eq(log_next(), 3);
}
END_TEST

/* ---- Policies ---- */

/* WeightPolicyState.UpdatePolicyIsCasFencedIdempotentAndExclusive */
START_TEST(a_policy_is_changed_once)
{
	struct weight_identity id = some_id(BASE);
	struct weight_metadata *m;

	ck_assert_int_eq(change_policy(store), -ENOENT);
	ck_assert_int_eq(published_base(store), 0);
	ck_assert_int_eq(
		wms_policy_update(store, &id, &wants_cold, 3, 1, NULL, NULL),
		-ECANCELED);
	ck_assert_int_eq(change_policy(store), 0);
	ck_assert_int_eq(change_policy(store), 0); /* its answer was lost */
	ck_assert_int_eq(
		wms_policy_update(store, &id, &wants_mixed, 3, 1, &m, NULL), 0);
	ck_assert_uint_eq(m->metadata_generation, 3);
	ck_assert_int_eq(m->policy.mode, WEIGHT_PINNED);
	ck_assert_uint_eq(m->operation_id, 0);
	weight_metadata_free(m);
	ck_assert_int_eq(
		wms_policy_update(store, &id, &wants_mixed, 1, 1, NULL, NULL),
		-ECANCELED);
	reopen();
	m = must_get(&id);
	ck_assert(weight_policy_equal(&m->policy, &wants_mixed));
	weight_metadata_free(m);
	/* What is pinned stays; what isn't any more may go. */
	ck_assert_int_eq(start_so(store, WEIGHT_HOT, 3, false), -EPERM);
	ck_assert_int_eq(
		wms_policy_update(store, &id, &wants_cold, 3, 1300, NULL, NULL),
		0);
	ck_assert_int_eq(start_so(store, WEIGHT_HOT, 4, false), 0);
	ck_assert_int_eq(
		wms_policy_update(store, &id, &wants_hot, 5, 1400, NULL, NULL),
		-EBUSY);
	assert_sound();
}
END_TEST

START_TEST(a_policy_and_its_operation_are_one_step)
{
	struct weight_identity id = some_id(BASE);
	struct weight_operation *op;

	ck_assert_int_eq(published_base(store), 0);
	ck_assert_int_eq(change_policy_and_move(store), 0);
	ck_assert_int_eq(change_policy_and_move(store), 0);
	ck_assert_uint_eq(log_next(), 3);
	assert_sound();
	reopen();
	ck_assert_int_eq(wms_operation_get(store, "default", 1, &op), 0);
	ck_assert(weight_identity_equal(&op->identity, &id));
	ck_assert_int_eq(op->target_residency, WEIGHT_MIXED);
	ck_assert_uint_eq(op->fenced_metadata_generation, 3);
	ck_assert_uint_eq(op->started_at_ms, 1200);
	weight_operation_free(op);
}
END_TEST

/*
 * WeightMetadataStore.ActiveLeaseAllowsMigrationButBlocksDelete
 * WeightPolicyState.LeaseRemainsAvailableDuringMigration
 */
START_TEST(a_reader_lets_it_move_and_not_go)
{
	struct weight_identity id = some_id(BASE);

	ck_assert_int_eq(leased_base(store), 0);
	ck_assert_int_eq(change_policy_and_move(store), 0);
	ck_assert_int_eq(acquire_so(store, "another", 500, 1200), 0);
	ck_assert_int_eq(renew_it(store), 0);
	ck_assert_uint_eq(summary(&id, 1200).active, 2);
	ck_assert_int_eq(delete_begin(&id, 3, NULL, 1300), -EBUSY);
	ck_assert_int_eq(delete_begin(&id, 3, "mount", 1300), -EBUSY);
	ck_assert_int_eq(wms_operation_finish(store, &id, 1, WEIGHT_MIXED, 0.5,
					      1300, NULL),
			 0);
	/* An older fence protects it all the same. */
	ck_assert_int_eq(delete_begin(&id, 4, NULL, 1300), -EBUSY);
	ck_assert_int_eq(delete_begin(&id, 4, NULL, 2100), 0);
	assert_sound();
}
END_TEST

/* WeightMetadataStore.RejectsReadyRevisionWithoutReadableResidency */
START_TEST(what_is_ready_can_be_read)
{
	struct weight_observation seen = { .availability = WEIGHT_READY,
					   .residency = WEIGHT_ABSENT };
	struct weight_identity id = some_id(BASE);

	ck_assert_int_eq(published_base(store), 0);
	ck_assert_int_eq(wms_observe(store, &id, &seen, 2, 1200, NULL),
			 -EINVAL);
	seen.residency = WEIGHT_UNKNOWN;
	ck_assert_int_eq(wms_observe(store, &id, &seen, 2, 1200, NULL),
			 -EINVAL);
	seen.availability = WEIGHT_DEGRADED;
	ck_assert_int_eq(wms_observe(store, &id, &seen, 2, 1200, NULL),
			 -EINVAL);
	seen.residency = WEIGHT_ABSENT;
	ck_assert_int_eq(wms_observe(store, &id, &seen, 2, 1200, NULL), 0);
	ck_assert_int_eq(availability_of(&id), WEIGHT_DEGRADED);
}
END_TEST

/*
 * WeightReconciliation.PublicPayloadLossRetainsPartialHotCoverage
 * WeightReconciliation.PublicPayloadLossRetainsColdResidency
 * WeightReconciliation.PublicAllPayloadLossBecomesAbsent
 * WeightReconciliation.PublicManifestReplicaClearReconcilesToDegraded
 */
START_TEST(what_was_lost_is_noted_beside_what_is_left)
{
	static const struct weight_observation seen[] = {
		{ WEIGHT_DEGRADED, WEIGHT_MIXED, 0.5, true, false },
		{ WEIGHT_DEGRADED, WEIGHT_COLD, 0, true, false },
		{ WEIGHT_DEGRADED, WEIGHT_ABSENT, 0, false, false },
		/* The manifest only. */
		{ WEIGHT_DEGRADED, WEIGHT_HOT, 1, true, false },
		/* And all of it is there again. */
		{ WEIGHT_READY, WEIGHT_HOT, 1, true, false },
	};
	struct weight_identity id = some_id(BASE);
	struct weight_metadata *m;

	ck_assert_int_eq(published_base(store), 0);
	for (uint64_t i = 0; i < ARRAY_LEN(seen); i++) {
		ck_assert_int_eq(
			wms_observe(store, &id, &seen[i], 2 + i, 1200, NULL),
			0);
		reopen();
		m = must_get(&id);
		ck_assert_int_eq(m->availability, seen[i].availability);
		ck_assert_int_eq(m->residency, seen[i].residency);
		ck_assert(m->observed_hot_ratio == seen[i].hot_ratio);
		ck_assert(m->durable == seen[i].durable);
		ck_assert_uint_eq(m->metadata_generation, 3 + i);
		weight_metadata_free(m);
	}
	assert_sound();
}
END_TEST

/* ---- How large it gets ---- */

/* The bytes of its record and of all its entries in the log. */
static size_t bytes_of(uint64_t generation, uint64_t tensors)
{
	struct weight_import_request rq = {
		.identity = some_id(generation),
		.payload_group_id = "",
		.import = some_import(&wants_cold),
	};
	cleanup(buf_release) struct buf all = BUF_INIT;
	cleanup(buf_release) struct buf key = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];
	struct weight_commit_request commit = { .identity = rq.identity,
						.residency = WEIGHT_HOT,
						.observed_hot_ratio = 1 };
	uint64_t at = log_next();
	struct weight_metadata *m;

	rq.import.affinity_count = tensors;
	rq.import.payload_count = tensors;
	rq.import.logical_bytes = tensors * 4096;
	ck_assert_int_eq(
		some_manifest(&rq.identity, &key, group, &commit.manifest), 0);
	commit.manifest.payload_count = tensors;
	commit.manifest.logical_bytes = tensors * 4096;
	ck_assert_int_eq(wms_import_begin(store, &rq, 1000, NULL, NULL), 0);
	ck_assert_int_eq(wms_import_commit(store, &commit, 1100, NULL, NULL),
			 0);
	m = must_get(&rq.identity);
	ck_assert_int_eq(wms_operation_finish(store, &rq.identity,
					      m->operation_id, WEIGHT_COLD, 0,
					      1200, NULL),
			 0);
	ck_assert_int_eq(weight_record_metadata_encode(m, &all), 0);
	weight_metadata_free(m);
	for (; at < log_next(); at++)
		ck_assert_int_eq(wms_oplog_get(store, at, &all), 0);
	return all.len;
}

/* WeightManagementContract.MetadataDoesNotDuplicateManifestChildren */
START_TEST(a_revision_costs_the_same_whatever_it_holds)
{
	size_t few = bytes_of(1, 2);

	ck_assert_uint_eq(bytes_of(2, 300), few);
	ck_assert_uint_eq(bytes_of(3, 1000000), few);
	ck_assert_uint_eq(bytes_of(4, (uint64_t)1 << 40), few);
	/* Three entries, two of them with an operation. */
	ck_assert_uint_eq(log_next(), 13);
	ck_assert_uint_lt(few, 3000);
}
END_TEST

/* ---- What fails ---- */

static int whole_life(void)
{
	cleanup(wms_close_cleanup) struct weight_metadata_store *s = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_identity id = some_id(BASE);
	const struct weight_import_request rq = {
		.identity = some_id(TARGET),
		.payload_group_id = "",
		.import = some_import(&wants_hot),
	};
	struct weight_metadata *m = NULL;
	int r;

	empty_dir();
	if ((r = wms_open(dir, &s, &why)) < 0 || (r = begin_cold(s)) < 0 ||
	    (r = commit_it(s)) < 0 ||
	    (r = wms_operation_finish(s, &id, 1, WEIGHT_COLD, 0, 1200, NULL)) <
		    0 ||
	    (r = wms_policy_update(s, &id, &wants_hot, 3, 1300, &m, &why)) < 0)
		return r;
	weight_metadata_free(take_ptr(m));
	r = wms_import_begin(s, &rq, 1400, &m, &why);
	if (r < 0)
		return r;
	weight_metadata_free(m);
	r = wms_import_abort(s, &rq.identity, 1, 1500, NULL);
	return r < 0 ? r : check_store(s);
}

/* What a child allocates is none of the sweep's business. */
static void disarm(void)
{
	(void)fault_disarm();
}

START_TEST(every_allocation_may_fail)
{
	wms_close(take_ptr(store));
	ck_assert_int_eq(pthread_atfork(NULL, NULL, disarm), 0);
	fault_sweep(whole_life);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_metadata_import");
	TCase *tc = tcase_create("weight_metadata_import");

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, an_import_is_announced_and_committed);
	tcase_add_test(tc, the_group_of_an_import_is_canonical);
	tcase_add_test(tc, a_commit_has_to_fit);
	tcase_add_test(tc, a_commit_and_its_operation_are_one_step);
	tcase_add_test(tc, an_aborted_import_goes_to_a_tombstone);
	tcase_add_test(tc, what_is_staged_is_not_announced);
	tcase_add_test(tc, names_of_any_kind_are_kept_apart);
	tcase_add_test(tc, one_of_many_commits_wins);
	tcase_add_test(tc, a_policy_is_changed_once);
	tcase_add_test(tc, a_policy_and_its_operation_are_one_step);
	tcase_add_test(tc, a_reader_lets_it_move_and_not_go);
	tcase_add_test(tc, what_is_ready_can_be_read);
	tcase_add_test(tc, what_was_lost_is_noted_beside_what_is_left);
	tcase_add_test(tc, a_revision_costs_the_same_whatever_it_holds);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
