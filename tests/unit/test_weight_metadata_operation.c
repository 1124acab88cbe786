/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "fault.h"
#include "suite.h"
#include "weight_metadata_fixture.h"

static struct weight_identity published(uint64_t generation)
{
	struct weight_identity id = id_of(generation);

	stage_and_publish(&id);
	return id;
}

static int start_at(const struct weight_identity *id,
		    enum weight_operation_kind kind,
		    enum weight_residency target, uint64_t now_ms)
{
	struct weight_operation_request rq = { .kind = kind,
					       .target_residency = target };

	return wms_operation_start(store, id, &rq, now_ms, NULL, NULL);
}

static int migrate(const struct weight_identity *id, uint64_t now_ms)
{
	return start_at(id, WEIGHT_MIGRATING, WEIGHT_HOT, now_ms);
}

static struct weight_operation *must_get(uint64_t id)
{
	struct weight_operation *op;

	ck_assert_int_eq(wms_operation_get(store, "default", id, &op), 0);
	ck_assert_uint_eq(op->operation_id, id);
	return op;
}

static void assert_sound(void)
{
	ck_assert_int_eq(check_store(store), 0);
}

static const struct weight_operation_progress halfway = {
	.processed_units = 1,
	.total_units = 2,
	.processed_bytes = 50,
	.total_bytes = 100,
	.cursor = "a",
	.message = "",
	.availability = WEIGHT_READY,
	.residency = WEIGHT_MIXED,
	.hot_ratio = 0.5,
};

/*
 * WeightMetadataStore.CompletesResidencyOperationAndRetainsRecord
 * WeightPolicyState.TracksUnitAndByteProgress
 */
START_TEST(an_operation_outlives_restarts)
{
	struct weight_identity id = published(7);
	struct weight_metadata *m;
	struct weight_operation *op;

	ck_assert_int_eq(migrate(&id, 100), 0);
	ck_assert_int_eq(migrate(&id, 110), 0); /* a repeat */
	reopen();
	op = must_get(1);
	ck_assert_uint_eq(op->started_at_ms, 100);
	ck_assert_uint_eq(op->total_units, 2);
	ck_assert_uint_eq(op->total_bytes, 100);
	weight_operation_free(op);
	ck_assert_int_eq(
		wms_operation_progress(store, &id, 1, &halfway, 120, &op), 0);
	ck_assert_uint_eq(op->fenced_metadata_generation, 4);
	weight_operation_free(op);
	ck_assert_int_eq(
		wms_operation_error(store, &id, 1, "no memory", 130, NULL), 0);
	assert_sound();
	reopen();
	op = must_get(1);
	ck_assert_uint_eq(op->processed_units, 1);
	ck_assert_str_eq(op->cursor, "a");
	ck_assert_str_eq(op->message, "no memory");
	weight_operation_free(op);
	ck_assert_int_eq(
		wms_operation_finish(store, &id, 1, WEIGHT_HOT, 1, 140, NULL),
		0);
	ck_assert_int_eq(
		wms_operation_finish(store, &id, 1, WEIGHT_HOT, 1, 150, &op),
		0);
	ck_assert_uint_eq(op->updated_at_ms, 140);
	weight_operation_free(op);
	assert_sound();
	reopen();
	ck_assert_int_eq(wms_get(store, &id, &m), 0);
	ck_assert_uint_eq(m->operation_id, 0);
	ck_assert_int_eq(m->residency, WEIGHT_HOT);
	ck_assert_uint_eq(m->metadata_generation, 5);
	weight_metadata_free(m);
	/* Its id is not given again. */
	ck_assert_int_eq(start_at(&id, WEIGHT_MIGRATING, WEIGHT_COLD, 160), 0);
	weight_operation_free(must_get(2));
	op = must_get(1);
	ck_assert(weight_operation_is_finished(op));
	weight_operation_free(op);
}
END_TEST

START_TEST(an_operation_may_last_for_ever)
{
	struct weight_identity id = published(7);

	ck_assert_int_eq(migrate(&id, 100), 0);
	ck_assert_int_eq(wms_operation_finish(store, &id, 1, WEIGHT_HOT, 1,
					      UINT64_MAX, NULL),
			 0);
	assert_sound();
}
END_TEST

START_TEST(an_operation_is_found_by_its_tenant_only)
{
	struct weight_identity id = published(7), other = published(8);
	struct weight_operation *op = NULL;

	ck_assert_int_eq(wms_operation_get(store, "default", 0, &op), -EINVAL);
	ck_assert_int_eq(wms_operation_get(store, "default", 1, &op), -ENOENT);
	ck_assert_int_eq(migrate(&id, 100), 0);
	ck_assert_int_eq(wms_operation_get(store, "x", 1, &op), -ENOENT);
	weight_operation_free(must_get(1));
	/* And is changed through its own revision only. */
	ck_assert_int_eq(
		wms_operation_progress(store, &other, 1, &halfway, 1, &op),
		-ENOENT);
	ck_assert_int_eq(wms_operation_error(store, &other, 1, "m", 1, &op),
			 -ENOENT);
	ck_assert_int_eq(
		wms_operation_finish(store, &other, 1, WEIGHT_HOT, 1, 1, &op),
		-ENOENT);
	id.generation = 9;
	ck_assert_int_eq(migrate(&id, 100), -ENOENT);
	ck_assert_int_eq(wms_operation_error(store, &id, 1, "m", 1, &op),
			 -ENOENT);
	id.generation = 0;
	ck_assert_int_eq(migrate(&id, 100), -EINVAL);
	ck_assert_ptr_null(op);
}
END_TEST

START_TEST(a_start_finds_what_has_to_go_on)
{
	struct wms_position at = { .len = 0 };
	struct weight_operation *op;
	struct weight_identity id;
	uint64_t after = 0;

	for (uint64_t g = 1; g <= 6; g++) {
		id = published(g);
		if (g % 2 == 0)
			ck_assert_int_eq(migrate(&id, g * 100), 0);
	}
	id.generation = 4;
	ck_assert_int_eq(
		wms_operation_finish(store, &id, 2, WEIGHT_HOT, 1, 900, NULL),
		0);
	reopen();
	for (uint64_t g = 2; g <= 6; g += 4) {
		ck_assert_int_eq(wms_operation_active_each(store, &at, &op), 0);
		ck_assert_uint_eq(op->identity.generation, g);
		ck_assert_uint_eq(op->operation_id, g / 2);
		weight_operation_free(op);
	}
	ck_assert_int_eq(wms_operation_active_each(store, &at, &op), -ENOENT);
	while (wms_operation_next(store, after, &op) == 0) {
		ck_assert_uint_eq(op->operation_id, ++after);
		ck_assert_int_eq(weight_operation_is_finished(op), after == 2);
		weight_operation_free(op);
	}
	ck_assert_uint_eq(after, 3);
	ck_assert_int_eq(wms_operation_next(store, UINT64_MAX, &op), -ENOENT);
}
END_TEST

START_TEST(publishing_and_its_operation_are_one_step)
{
	struct weight_identity id = id_of(7), next = id_of(8);
	struct weight_publication p = publication_of(&id);
	struct weight_operation *op;
	struct weight_metadata *m;

	p.converges = true;
	p.policy.mode = WEIGHT_PINNED;
	ck_assert_int_eq(publish_as(store, p, 20, NULL), -ENOENT);
	ck_assert_int_eq(wms_operation_get(store, "default", 1, &op), -ENOENT);
	ck_assert_int_eq(wms_stage(store, &id, 10, NULL), 0);
	ck_assert_int_eq(publish_as(store, p, 20, &m), 0);
	ck_assert_uint_eq(m->metadata_generation, 2);
	ck_assert_uint_eq(m->operation_id, 1);
	weight_metadata_free(m);
	assert_sound();
	reopen();
	op = must_get(1);
	ck_assert(weight_identity_equal(&op->identity, &id));
	ck_assert_int_eq(op->target_residency, WEIGHT_HOT);
	ck_assert_uint_eq(op->fenced_metadata_generation, 2);
	ck_assert_uint_eq(op->started_at_ms, 20);
	ck_assert_uint_eq(op->total_units, 2);
	ck_assert_uint_eq(op->total_bytes, 100);
	weight_operation_free(op);
	ck_assert_int_eq(
		wms_operation_finish(store, &id, 1, WEIGHT_HOT, 1, 30, NULL),
		0);
	/* Once it has converged, it stays. */
	ck_assert_int_eq(start_at(&id, WEIGHT_MIGRATING, WEIGHT_COLD, 40),
			 -EPERM);
	p.identity = next;
	ck_assert_int_eq(wms_stage(store, &next, 10, NULL), 0);
	ck_assert_int_eq(publish_as(store, p, 50, NULL), 0);
	weight_operation_free(must_get(2));
	assert_sound();
}
END_TEST

START_TEST(removal_ends_an_operation_that_only_pins)
{
	struct weight_identity id = published(7);
	struct weight_operation *op;

	ck_assert_int_eq(migrate(&id, 100), 0);
	ck_assert_int_eq(
		wms_operation_progress(store, &id, 1, &halfway, 110, NULL), 0);
	ck_assert_int_eq(delete_begin(&id, 3, NULL, 120), -ECANCELED);
	(void)lease(&id, "h", 1000, 120);
	ck_assert_int_eq(delete_begin(&id, 4, NULL, 120), -EBUSY);
	op = must_get(1);
	ck_assert(!weight_operation_is_over(op));
	weight_operation_free(op);
	ck_assert_int_eq(delete_begin(&id, 4, "h", 120), 0);
	ck_assert_int_eq(delete_begin(&id, 4, "h", 130), 0); /* a repeat */
	assert_sound();
	reopen();
	op = must_get(1);
	ck_assert(weight_operation_is_over(op));
	ck_assert_str_eq(op->message, WEIGHT_OPERATION_REMOVED);
	ck_assert_str_eq(op->cursor, "");
	ck_assert_uint_eq(op->processed_units, 1);
	ck_assert_uint_eq(op->updated_at_ms, 120);
	ck_assert_uint_eq(op->fenced_metadata_generation, 4);
	weight_operation_free(op);
	ck_assert_int_eq(
		wms_operation_progress(store, &id, 1, &halfway, 140, NULL),
		-EEXIST);
	ck_assert_int_eq(wms_operation_error(store, &id, 1, "m", 140, NULL),
			 -EEXIST);
	ck_assert_int_eq(wms_operation_finish(store, &id, 1, WEIGHT_MIXED, 0.5,
					      140, NULL),
			 -EEXIST);
	ck_assert_int_eq(migrate(&id, 140), -EINPROGRESS);
	ck_assert_int_eq(wms_delete_finish(store, &id, 5, 150, NULL), 0);
	weight_operation_free(must_get(1));
}
END_TEST

/* WeightMetadataStore.LeasePublicationFencesPreparedResidencyOperation */
START_TEST(a_repair_is_in_the_way_of_removal_and_leases)
{
	struct weight_identity id = published(7), other = published(8);
	struct weight_lease_request rq = { .holder = "h", .ttl_ms = 10 };
	struct weight_lease *l;

	ck_assert_int_eq(start_at(&id, WEIGHT_REPAIRING, WEIGHT_HOT, 100), 0);
	ck_assert_int_eq(wms_lease_acquire(store, &id, &rq, 100, &l), -EBUSY);
	ck_assert_int_eq(delete_begin(&id, 0, NULL, 100), -EBUSY);
	ck_assert_int_eq(availability_of(&id), WEIGHT_READY);
	ck_assert_int_eq(migrate(&id, 100), -EBUSY);
	ck_assert_int_eq(
		wms_operation_finish(store, &id, 1, WEIGHT_HOT, 1, 110, NULL),
		0);
	(void)lease(&id, "h", 10, 110);
	ck_assert_int_eq(delete_begin(&id, 0, NULL, 120), 0);
	/* Migrating is not. */
	ck_assert_int_eq(migrate(&other, 100), 0);
	(void)lease(&other, "h", 10, 110);
	assert_sound();
}
END_TEST

START_TEST(a_loss_is_noted_beside_an_operation)
{
	struct weight_observation seen = { WEIGHT_DEGRADED, WEIGHT_MIXED, 0.5,
					   false };
	struct weight_identity id = published(7);
	struct weight_metadata *m;
	struct weight_operation *op;

	ck_assert_int_eq(migrate(&id, 100), 0);
	ck_assert_int_eq(
		wms_operation_progress(store, &id, 1, &halfway, 110, NULL), 0);
	ck_assert_int_eq(wms_observe(store, &id, &seen, 0, 120, NULL), -EBUSY);
	seen.beside_operation = true;
	ck_assert_int_eq(wms_observe(store, &id, &seen, 3, 120, NULL),
			 -ECANCELED);
	ck_assert_int_eq(wms_observe(store, &id, &seen, 4, 120, &m), 0);
	ck_assert_int_eq(m->availability, WEIGHT_DEGRADED);
	ck_assert_uint_eq(m->metadata_generation, 5);
	ck_assert_uint_eq(m->operation_id, 1);
	weight_metadata_free(m);
	assert_sound();
	op = must_get(1);
	ck_assert_uint_eq(op->fenced_metadata_generation, 5);
	ck_assert_uint_eq(op->processed_units, 1);
	ck_assert_str_eq(op->cursor, "a");
	weight_operation_free(op);
	/* Durability is no new generation for it either. */
	ck_assert_int_eq(wms_mark_durable(store, &id, 130, NULL), 0);
	assert_sound();
	ck_assert_int_eq(
		wms_operation_finish(store, &id, 1, WEIGHT_HOT, 1, 140, NULL),
		0);
	ck_assert_int_eq(availability_of(&id), WEIGHT_DEGRADED);
	/* Where none is active it makes no difference. */
	seen.availability = WEIGHT_READY;
	ck_assert_int_eq(wms_observe(store, &id, &seen, 6, 150, NULL), 0);
	ck_assert_int_eq(availability_of(&id), WEIGHT_READY);
}
END_TEST

struct racer {
	pthread_t thread;
	double ratio;
	int result;
};

static void *race(void *arg)
{
	struct racer *rc = arg;
	struct weight_identity id = id_of(7);
	struct weight_operation_request rq = {
		.target_residency = WEIGHT_MIXED,
		.target_hot_ratio = rc->ratio,
		.expected_metadata_generation = 2,
	};

	rc->result = wms_operation_start(store, &id, &rq, 100, NULL, NULL);
	return NULL;
}

/* WeightMetadataStore.ExcludesConcurrentResidencyOperations */
START_TEST(one_of_many_starts_wins)
{
	struct racer racers[8];
	struct weight_operation *op;
	unsigned won = 0;

	(void)published(7);
	for (size_t i = 0; i < ARRAY_LEN(racers); i++) {
		racers[i].ratio = 0.1 * (double)(i + 1);
		ck_assert_int_eq(pthread_create(&racers[i].thread, NULL, race,
						&racers[i]),
				 0);
	}
	for (size_t i = 0; i < ARRAY_LEN(racers); i++) {
		ck_assert_int_eq(pthread_join(racers[i].thread, NULL), 0);
		ck_assert(racers[i].result == 0 || racers[i].result == -EBUSY);
		won += racers[i].result == 0;
	}
	ck_assert_uint_eq(won, 1);
	ck_assert_int_eq(wms_operation_next(store, 1, &op), -ENOENT);
	assert_sound();
}
END_TEST

/* Drops, garbles or moves the record of operation 1, or the next id. */
static int damage_body(struct meta_txn *txn, void *arg)
{
	static const unsigned char one[8] = { [7] = 1 }, two[8] = { [7] = 2 };
	static const unsigned char next[8] = { 1 };
	struct meta_bytes value;
	char copy[1024];
	int r;

	switch (*(const int *)arg) {
	case 0:
		return meta_delete(txn, META_DB_OPERATION, one, sizeof(one));
	case 1:
		return meta_put(txn, META_DB_OPERATION, one, sizeof(one),
				"\1\0garbage", 9);
	case 2:
		return meta_put(txn, META_DB_STATE, "next_operation_id", 17,
				next, sizeof(next));
	default:
		r = meta_get(txn, META_DB_OPERATION, two, sizeof(two), &value);
		ck_assert_int_eq(r, 0);
		ck_assert_uint_le(value.len, sizeof(copy));
		memcpy(copy, value.data, value.len);
		return meta_put(txn, META_DB_OPERATION, one, sizeof(one), copy,
				value.len);
	}
}

START_TEST(a_damaged_operation_is_told)
{
	struct weight_identity id = published(7), other = published(8);
	struct wms_position at = { .len = 0 };
	struct weight_operation *op;
	int kind = _i;

	ck_assert_int_eq(migrate(&id, 100), 0);
	ck_assert_int_eq(migrate(&other, 100), 0);
	meddle(damage_body, &kind);
	store = must_open();
	ck_assert_int_eq(check_store(store), -EUCLEAN);
	ck_assert_ptr_nonnull(strstr(found_wrong, "operation"));
	if (kind == 2)
		return;
	ck_assert_int_eq(migrate(&id, 100), -EUCLEAN);
	ck_assert_int_eq(delete_begin(&id, 0, NULL, 100), -EUCLEAN);
	/* It doesn't hide the other one. */
	ck_assert_int_eq(wms_operation_active_each(store, &at, &op), -EUCLEAN);
	ck_assert_int_eq(wms_operation_active_each(store, &at, &op), 0);
	ck_assert_uint_eq(op->operation_id, 2);
	weight_operation_free(op);
	ck_assert_int_eq(wms_operation_active_each(store, &at, &op), -ENOENT);
}
END_TEST

static int whole_life(void)
{
	cleanup(wms_close_cleanup) struct weight_metadata_store *s = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_observation seen = { .availability = WEIGHT_DEGRADED,
					   .residency = WEIGHT_COLD,
					   .beside_operation = true };
	struct weight_operation_request rq = { .target_residency = WEIGHT_HOT };
	struct wms_delete_request del = { .ignore_lease_holder = NULL };
	struct weight_identity id = id_of(7);
	struct weight_publication p = publication_of(&id);
	struct wms_position at = { .len = 0 };
	struct weight_operation *op = NULL;
	int r;

	p.converges = true;
	empty_dir();
	if ((r = wms_open(dir, &s, &why)) < 0 ||
	    (r = wms_stage(s, &id, 1, NULL)) < 0 ||
	    (r = publish_as(s, p, 2, NULL)) < 0 ||
	    (r = wms_operation_progress(s, &id, 1, &halfway, 3, NULL)) < 0 ||
	    (r = wms_operation_error(s, &id, 1, "m", 4, NULL)) < 0 ||
	    (r = wms_observe(s, &id, &seen, 0, 5, NULL)) < 0 ||
	    (r = wms_operation_finish(s, &id, 1, WEIGHT_HOT, 1, 6, NULL)) < 0 ||
	    (r = wms_operation_start(s, &id, &rq, 7, &op, NULL)) < 0)
		return r;
	weight_operation_free(take_ptr(op));
	r = wms_operation_active_each(s, &at, &op);
	if (r < 0)
		return r;
	weight_operation_free(take_ptr(op));
	r = wms_operation_get(s, "default", 1, &op);
	if (r < 0)
		return r;
	weight_operation_free(op);
	r = wms_delete_begin(s, &id, &del, 8, NULL);
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
	Suite *s = suite_create("weight_metadata_operation");
	TCase *tc = tcase_create("weight_metadata_operation");

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, an_operation_outlives_restarts);
	tcase_add_test(tc, an_operation_may_last_for_ever);
	tcase_add_test(tc, an_operation_is_found_by_its_tenant_only);
	tcase_add_test(tc, a_start_finds_what_has_to_go_on);
	tcase_add_test(tc, publishing_and_its_operation_are_one_step);
	tcase_add_test(tc, removal_ends_an_operation_that_only_pins);
	tcase_add_test(tc, a_repair_is_in_the_way_of_removal_and_leases);
	tcase_add_test(tc, a_loss_is_noted_beside_an_operation);
	tcase_add_test(tc, one_of_many_starts_wins);
	tcase_add_loop_test(tc, a_damaged_operation_is_told, 0, 4);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
