/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "suite.h"
#include "weight_metadata_fixture.h"

/* WeightRevisionLease.AcquireRetryRenewAndReleaseAreIdempotent */
START_TEST(leases_are_counted_per_revision)
{
	struct weight_identity id = id_of(7), other = id_of(8);
	struct weight_metadata *m;

	stage_and_publish(&id);
	stage_and_publish(&other);
	ck_assert_uint_eq(summary(&id, 100).active, 0);
	ck_assert_uint_eq(summary(&id, 100).nearest_expiry_ms, 0);
	ck_assert_uint_eq(lease(&id, "a", 1000, 100), 1);
	ck_assert_uint_eq(lease(&id, "b", 500, 100), 2);
	ck_assert_uint_eq(lease(&other, "a", 10, 100), 3);
	/* The same again: not renewed. */
	ck_assert_uint_eq(lease(&id, "a", 5000, 200), 1);
	reopen();
	ck_assert_uint_eq(summary(&id, 200).active, 2);
	ck_assert_uint_eq(summary(&id, 200).nearest_expiry_ms, 600);
	ck_assert_uint_eq(summary(&id, 599).active, 2);
	ck_assert_uint_eq(summary(&id, 600).active, 1);
	ck_assert_uint_eq(summary(&id, 600).nearest_expiry_ms, 1100);
	ck_assert_uint_eq(summary(&id, 1100).active, 0);
	/* A holder whose lease has expired gets a new one. */
	ck_assert_uint_eq(lease(&id, "b", 500, 700), 4);
	/* Access is noted, and is no new state. */
	ck_assert_int_eq(wms_get(store, &id, &m), 0);
	ck_assert_uint_eq(m->last_accessed_at_ms, 700);
	ck_assert_uint_eq(m->metadata_generation, 2);
	weight_metadata_free(m);
}
END_TEST

/*
 * WeightMetadataStore.LeaseExpiryIsGenerationFencedAndIdempotent
 * WeightRevisionLease.RejectsStaleGenerationAndExpiredRenewal
 * WeightRevisionLease.OlderFenceProtectsAdvancedMetadataGeneration
 */
START_TEST(a_lease_outlives_changes_of_the_metadata)
{
	struct weight_observation seen = { WEIGHT_DEGRADED, WEIGHT_COLD, 0,
					   false };
	struct weight_identity id = id_of(7);
	struct weight_lease_request rq = { .holder = "b",
					   .ttl_ms = 10,
					   .expected_metadata_generation = 2 };
	struct weight_lease *l;

	stage_and_publish(&id);
	(void)lease(&id, "a", 1000, 100);
	ck_assert_int_eq(wms_observe(store, &id, &seen, 2, 110, NULL), 0);
	ck_assert_uint_eq(summary(&id, 120).active, 1);
	ck_assert_int_eq(wms_lease_acquire(store, &id, &rq, 120, &l),
			 -ECANCELED);
	rq.expected_metadata_generation = 3;
	ck_assert_int_eq(wms_lease_acquire(store, &id, &rq, 120, &l),
			 -EINPROGRESS);
	rq.degraded_too = true;
	ck_assert_int_eq(wms_lease_acquire(store, &id, &rq, 120, &l), 0);
	ck_assert_uint_eq(l->fenced_metadata_generation, 3);
	weight_lease_free(l);
	ck_assert_int_eq(delete_begin(&id, 3, NULL, 121), -EBUSY);
}
END_TEST

/*
 * WeightRevisionLease.AcquireRetryRenewAndReleaseAreIdempotent
 * WeightRevisionLease.RejectsStaleGenerationAndExpiredRenewal
 * MasterServiceWeightManagement.RevisionLeaseLifecycleUsesPublishedMetadataState
 */
START_TEST(a_lease_is_renewed_and_released)
{
	struct weight_identity id = id_of(7);
	struct weight_lease *l;

	stage_and_publish(&id);
	(void)lease(&id, "a", 1000, 100);
	ck_assert_int_eq(wms_lease_renew(store, "default", 2, 10, 100, NULL),
			 -ENOENT);
	ck_assert_int_eq(wms_lease_renew(store, "other", 1, 10, 100, NULL),
			 -ENOENT);
	ck_assert_int_eq(wms_lease_renew(store, "default", 1, 0, 100, NULL),
			 -EINVAL);
	ck_assert_int_eq(wms_lease_renew(store, "default", 1, 10, 100, &l), 0);
	ck_assert_uint_eq(l->expires_at_ms, 1100);
	weight_lease_free(l);
	ck_assert_int_eq(wms_lease_renew(store, "default", 1, 2000, 100, NULL),
			 0);
	reopen();
	ck_assert_uint_eq(summary(&id, 100).nearest_expiry_ms, 2100);
	ck_assert_int_eq(wms_lease_renew(store, "default", 1, 10, 2100, NULL),
			 -EKEYEXPIRED);
	ck_assert_int_eq(wms_lease_release(store, "other", 1), -ENOENT);
	ck_assert_int_eq(wms_lease_release(store, "default", 1), 0);
	ck_assert_int_eq(wms_lease_release(store, "default", 1), 0);
	ck_assert_int_eq(wms_lease_release(store, "default", 99), 0);
	ck_assert_uint_eq(summary(&id, 100).active, 0);
	ck_assert_int_eq(wms_lease_next(store, 0, &l), -ENOENT);
	/* Its id is not given again. */
	ck_assert_uint_eq(lease(&id, "a", 1000, 100), 2);
}
END_TEST

/*
 * WeightMetadataStore.LeaseExpiryIsGenerationFencedAndIdempotent
 * WeightReconciliation.ExpiresLeasesAndAbortsAbandonedImports
 */
START_TEST(expired_leases_are_swept_in_order)
{
	struct weight_identity id = id_of(7), other = id_of(8);
	static const char *const holders[] = { "a", "b", "c", "d", "e" };
	struct weight_lease *l;
	uint64_t after = 0;
	size_t removed = 9;

	stage_and_publish(&id);
	stage_and_publish(&other);
	for (size_t i = 0; i < ARRAY_LEN(holders); i++)
		(void)lease(i % 2 ? &id : &other, holders[i],
			    i == 2 ? 1000 : 10, 100);
	ck_assert_int_eq(wms_lease_sweep(store, 109, 10, &removed), 0);
	ck_assert_uint_eq(removed, 0);
	ck_assert_int_eq(wms_lease_sweep(store, 110, 3, &removed), 0);
	ck_assert_uint_eq(removed, 3);
	ck_assert_int_eq(wms_lease_next(store, 0, &l), 0);
	ck_assert_uint_eq(l->lease_id, 3);
	after = l->lease_id;
	weight_lease_free(l);
	ck_assert_int_eq(wms_lease_next(store, after, &l), 0);
	ck_assert_uint_eq(l->lease_id, 5);
	weight_lease_free(l);
	ck_assert_int_eq(wms_lease_sweep(store, 110, 3, &removed), 0);
	ck_assert_uint_eq(removed, 1);
	ck_assert_uint_eq(summary(&other, 110).active, 1);
	ck_assert_uint_eq(summary(&id, 110).active, 0);
	ck_assert_int_eq(wms_lease_next(store, UINT64_MAX, &l), -ENOENT);
	ck_assert_int_eq(check_store(store), 0);
}
END_TEST

/* WeightGroupLifecycle.LeaseBlocksOperationAndDelete */
START_TEST(leases_of_others_prevent_deletion)
{
	struct weight_identity id = id_of(7);
	struct weight_lease *l;

	stage_and_publish(&id);
	(void)lease(&id, "mount", 1000, 100);
	ck_assert_int_eq(delete_begin(&id, 0, NULL, 100), -EBUSY);
	ck_assert_int_eq(delete_begin(&id, 0, "other", 100), -EBUSY);
	(void)lease(&id, "other", 50, 100);
	ck_assert_int_eq(delete_begin(&id, 0, "mount", 100), -EBUSY);
	ck_assert_int_eq(availability_of(&id), WEIGHT_READY);
	/* Expired, and the mount's own doesn't count. */
	ck_assert_int_eq(delete_begin(&id, 0, "mount", 150), 0);
	ck_assert_int_eq(availability_of(&id), WEIGHT_DELETING);
	/* What is going has no lease left, and gets none. */
	ck_assert_int_eq(wms_lease_next(store, 0, &l), -ENOENT);
	ck_assert_int_eq(wms_lease_acquire(store, &id,
					   &(struct weight_lease_request){
						   .holder = "h", .ttl_ms = 1 },
					   150, &l),
			 -EINPROGRESS);
}
END_TEST

struct racer {
	pthread_t thread;
	char holder[16];
	uint64_t lease_id;
	int result;
};

static void *race(void *arg)
{
	struct racer *rc = arg;
	struct weight_identity id = id_of(7);
	struct weight_lease_request rq = { .holder = rc->holder,
					   .ttl_ms = 1000 };
	struct weight_lease *l;

	rc->result = wms_lease_acquire(store, &id, &rq, 100, &l);
	if (rc->result == 0) {
		rc->lease_id = l->lease_id;
		weight_lease_free(l);
	}
	return NULL;
}

/* WeightMetadataStore.LeasePublicationFencesPreparedDeletion */
START_TEST(either_the_lease_or_the_deletion_wins)
{
	struct weight_identity id = id_of(7);
	struct racer racers[8];
	unsigned won = 0;
	int r;

	stage_and_publish(&id);
	for (size_t i = 0; i < ARRAY_LEN(racers); i++) {
		(void)snprintf(racers[i].holder, sizeof(racers[i].holder),
			       "h%zu", i);
		ck_assert_int_eq(pthread_create(&racers[i].thread, NULL, race,
						&racers[i]),
				 0);
	}
	r = delete_begin(&id, 0, NULL, 100);
	for (size_t i = 0; i < ARRAY_LEN(racers); i++) {
		ck_assert_int_eq(pthread_join(racers[i].thread, NULL), 0);
		ck_assert(racers[i].result == 0 ||
			  racers[i].result == -EINPROGRESS);
		won += racers[i].result == 0;
	}
	ck_assert_int_eq(r, won ? -EBUSY : 0);
	ck_assert_uint_eq(summary(&id, 100).active, won);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_metadata_lease");
	TCase *tc = tcase_create("weight_metadata_lease");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, leases_are_counted_per_revision);
	tcase_add_test(tc, a_lease_outlives_changes_of_the_metadata);
	tcase_add_test(tc, a_lease_is_renewed_and_released);
	tcase_add_test(tc, expired_leases_are_swept_in_order);
	tcase_add_test(tc, leases_of_others_prevent_deletion);
	tcase_add_test(tc, either_the_lease_or_the_deletion_wins);
	suite_add_tcase(s, tc);
	return s;
}
