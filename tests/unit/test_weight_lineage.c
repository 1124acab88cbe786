/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_lineage.h"
#include "fault.h"
#include "suite.h"

/* A valid record that the tests below spoil in one place each. */
static struct weight_lineage_record claimed(void)
{
	return (struct weight_lineage_record){
		.lineage = { "default", "default", "demo", "main" },
		.lineage_metadata_generation = 3,
		.watermark = 7,
		.claimed = true,
		.claim = { .request_id = "request-1",
			   .base = 7,
			   .target = 8,
			   .mode = WEIGHT_PUT_FIRST,
			   .phase = WEIGHT_PREPARING_TARGET,
			   .expected_base_metadata_generation = 2,
			   .described = true,
			   .import = { .payload_count = 3,
				       .logical_bytes = 1000,
				       .policy = WEIGHT_POLICY_DEFAULT,
				       .affinity_count = 5,
				       .affinity_digest = { { 1 } } },
			   .created_at_ms = 1000,
			   .updated_at_ms = 2000,
			   .error = "" },
	};
}

static void move_to(struct weight_lineage_record *l,
		    enum weight_upsert_mode mode,
		    enum weight_upsert_phase phase)
{
	l->claim.mode = mode;
	l->claim.phase = phase;
}

static void refused(const struct weight_lineage_record *l)
{
	cleanup(buf_release) struct buf why = BUF_INIT;

	ck_assert_int_eq(weight_lineage_record_check(l, &why), -EINVAL);
	ck_assert_uint_gt(why.len, 0);
	ck_assert_int_eq(weight_lineage_record_check(l, NULL), -EINVAL);
}

START_TEST(equal_imports_are_equal_in_all)
{
	struct weight_import a = claimed().claim.import;
	struct weight_import b = a;

	ck_assert(weight_import_equal(&a, &b));
	/* clang-format off */
	switch (_i) {
	case 0: b.payload_count++; break;
	case 1: b.logical_bytes++; break;
	case 2: b.policy.preferred = WEIGHT_COLD; break;
	case 3: b.policy.mixed_hot_ratio = 0.25; break;
	case 4: b.policy.mode = WEIGHT_PINNED; break;
	case 5: b.affinity_count++; break;
	case 6: b.affinity_digest.bytes[0] ^= 1; break;
	case 7: b.affinity_digest.bytes[31] ^= 1; break;
	}
	/* clang-format on */
	ck_assert(!weight_import_equal(&a, &b));
	ck_assert(!weight_import_equal(&b, &a));
}
END_TEST

START_TEST(good_records_are_good)
{
	struct weight_lineage_record l = claimed();

	ck_assert_int_eq(weight_lineage_record_check(&l, NULL), 0);
	l.claim.described = false;
	l.claim.import = (struct weight_import){ .payload_count = 0 };
	l.claim.error = "no room";
	l.claim.updated_at_ms = l.claim.created_at_ms;
	ck_assert_int_eq(weight_lineage_record_check(&l, NULL), 0);
	l.lineage_metadata_generation = WEIGHT_METADATA_GENERATION_MAX;
	l.claim.expected_base_metadata_generation =
		WEIGHT_METADATA_GENERATION_MAX;
	l.watermark = UINT64_MAX;
	l.claim.target = UINT64_MAX;
	l.claim.base = UINT64_MAX - 1;
	ck_assert_int_eq(weight_lineage_record_check(&l, NULL), 0);
	/* Without a claim nobody looks at one. */
	l.claimed = false;
	l.claim = (struct weight_claim){ .request_id = NULL };
	ck_assert_int_eq(weight_lineage_record_check(&l, NULL), 0);
}
END_TEST

/* clang-format off */
static const bool phases[2][6] = {
	[WEIGHT_PUT_FIRST] = {
		[WEIGHT_PREPARING_TARGET] = true,
		[WEIGHT_RETIRING_BASE] = true,
		[WEIGHT_COMPLETED] = true,
		[WEIGHT_ABORTED] = true,
	},
	[WEIGHT_DELETE_FIRST] = {
		[WEIGHT_DELETING_BASE] = true,
		[WEIGHT_TARGET_IMPORTING] = true,
		[WEIGHT_COMPLETED] = true,
		[WEIGHT_ABORTED] = true,
	},
};
/* clang-format on */

START_TEST(each_mode_has_its_phases)
{
	for (unsigned mode = 0; mode < 4; mode++) {
		for (unsigned phase = 0; phase < 10; phase++) {
			struct weight_lineage_record l = claimed();

			move_to(&l, (enum weight_upsert_mode)mode,
				(enum weight_upsert_phase)phase);
			if (mode < 2 && phase < 6 && phases[mode][phase])
				ck_assert_int_eq(
					weight_lineage_record_check(&l, NULL),
					0);
			else
				refused(&l);
		}
	}
	/* Numbers that a shift by them would make something else of. */
	for (unsigned phase = 31; phase < 100; phase++) {
		struct weight_lineage_record l = claimed();

		move_to(&l, WEIGHT_PUT_FIRST, (enum weight_upsert_phase)phase);
		refused(&l);
	}
}
END_TEST

START_TEST(each_rule_is_looked_at)
{
	static char too_long[WEIGHT_COMPONENT_MAX + 2];
	struct weight_lineage_record l = claimed();
	struct weight_claim *c = &l.claim;

	memset(too_long, 'x', sizeof(too_long) - 1);
	/* clang-format off */
	switch (_i) {
	case 0: l.lineage.tenant = "_t"; break;
	case 1: l.lineage.name_space = ""; break;
	case 2: l.lineage.resource = too_long; break;
	case 3: l.lineage.revision = "\x7f"; break;
	case 4: l.lineage_metadata_generation = 0; break;
	case 5: l.lineage_metadata_generation = UINT64_MAX; break;
	case 6: l.watermark = 0; break;
	case 7: c->request_id = ""; break;
	case 8: c->request_id = too_long; break;
	case 9: c->request_id = "\xff"; break;
	case 10: c->base = 0; break;
	case 11: c->target = 7; break;
	case 12: c->target = 6; break;
	case 13: c->target = 0; break;
	case 14: c->expected_base_metadata_generation = 0; break;
	case 15: c->expected_base_metadata_generation = UINT64_MAX; break;
	case 16: c->updated_at_ms = 999; break;
	case 17: c->error = NULL; break;
	case 18: c->error = "\n"; break;
	case 19: c->error = too_long; break;
	case 20: c->import.policy.preferred = WEIGHT_UNKNOWN; break;
	case 21: c->import.policy.mixed_hot_ratio = (double)NAN; break;
	case 22: c->import.policy.mode = (enum weight_migration_mode)3; break;
	case 23: c->described = false; break;
	case 24: c->described = false;
		c->import = (struct weight_import){ .affinity_count = 1 };
		break;
	case 25: c->described = false;
		c->import = (struct weight_import){ .affinity_digest = { { 1 } } };
		break;
	}
	/* clang-format on */
	refused(&l);
}
END_TEST
#define RULES 26

static void same(const struct weight_lineage_record *a,
		 const struct weight_lineage_record *b)
{
	ck_assert(weight_lineage_equal(&a->lineage, &b->lineage));
	ck_assert_uint_eq(a->lineage_metadata_generation,
			  b->lineage_metadata_generation);
	ck_assert_uint_eq(a->watermark, b->watermark);
	ck_assert_int_eq(a->claimed, b->claimed);
	if (!a->claimed)
		return;
	ck_assert_str_eq(a->claim.request_id, b->claim.request_id);
	ck_assert_uint_eq(a->claim.base, b->claim.base);
	ck_assert_uint_eq(a->claim.target, b->claim.target);
	ck_assert_int_eq((int)a->claim.mode, (int)b->claim.mode);
	ck_assert_int_eq((int)a->claim.phase, (int)b->claim.phase);
	ck_assert_uint_eq(a->claim.expected_base_metadata_generation,
			  b->claim.expected_base_metadata_generation);
	ck_assert_int_eq(a->claim.described, b->claim.described);
	ck_assert(weight_import_equal(&a->claim.import, &b->claim.import));
	ck_assert_uint_eq(a->claim.created_at_ms, b->claim.created_at_ms);
	ck_assert_uint_eq(a->claim.updated_at_ms, b->claim.updated_at_ms);
	ck_assert_str_eq(a->claim.error, b->claim.error);
}

/* The strings of the first are gone when the copy is looked at. */
START_TEST(a_copy_owns_its_strings)
{
	char names[6][16] = { "default", "default", "demo",
			      "main",    "request", "error" };
	struct weight_lineage_record l = claimed();
	struct weight_lineage_record *copy;
	struct weight_lineage_record wanted = claimed();

	l.lineage = (struct weight_lineage){ names[0], names[1], names[2],
					     names[3] };
	l.claim.request_id = names[4];
	l.claim.error = names[5];
	ck_assert_int_eq(weight_lineage_record_copy(&l, &copy), 0);
	memset(names, 'x', sizeof(names));
	wanted.claim.request_id = "request";
	wanted.claim.error = "error";
	same(copy, &wanted);
	weight_lineage_record_free(copy);
	/* One that has no claim may have anything in its place. */
	l = claimed();
	l.claimed = false;
	l.claim.request_id = NULL;
	l.claim.error = NULL;
	wanted.claimed = false;
	ck_assert_int_eq(weight_lineage_record_copy(&l, &copy), 0);
	same(copy, &wanted);
	weight_lineage_record_free(copy);
	weight_lineage_record_free(NULL);
}
END_TEST

/* clang-format off */
#define CLAIM(mode, phase) WEIGHT_##mode, WEIGHT_##phase

static const struct {
	enum weight_upsert_mode mode;
	enum weight_upsert_phase phase;
	bool live;
	bool fences; /* the base */
} lives[] = {
	{ CLAIM(PUT_FIRST, PREPARING_TARGET),    true,  false },
	{ CLAIM(PUT_FIRST, RETIRING_BASE),       true,  true },
	{ CLAIM(PUT_FIRST, COMPLETED),           false, false },
	{ CLAIM(PUT_FIRST, ABORTED),             false, false },
	{ CLAIM(DELETE_FIRST, DELETING_BASE),    true,  true },
	{ CLAIM(DELETE_FIRST, TARGET_IMPORTING), true,  true },
	{ CLAIM(DELETE_FIRST, COMPLETED),        false, false },
	{ CLAIM(DELETE_FIRST, ABORTED),          false, false },
};
/* clang-format on */

START_TEST(a_claim_is_live_until_its_last_phase)
{
	struct weight_lineage_record l = claimed();

	move_to(&l, lives[_i].mode, lives[_i].phase);
	ck_assert_ptr_eq(weight_lineage_live_claim(&l),
			 lives[_i].live ? &l.claim : NULL);
	for (uint64_t g = 6; g < 10; g++) {
		bool named = g == 7 || g == 8;

		ck_assert_int_eq(weight_lineage_claims(&l, g),
				 lives[_i].live && named);
		ck_assert_int_eq(weight_lineage_fences(&l, g),
				 lives[_i].fences && g == 7);
	}
	l.claimed = false;
	ck_assert_ptr_null(weight_lineage_live_claim(&l));
	ck_assert(!weight_lineage_claims(&l, 7));
	ck_assert(!weight_lineage_fences(&l, 7));
}
END_TEST

START_TEST(what_has_no_record_has_no_claim)
{
	ck_assert_ptr_null(weight_lineage_live_claim(NULL));
	ck_assert(!weight_lineage_claims(NULL, 7));
	ck_assert(!weight_lineage_fences(NULL, 7));
}
END_TEST

static int copy_both(void)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*a = NULL;
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*b = NULL;
	struct weight_lineage_record l = claimed();
	int r = weight_lineage_record_copy(&l, &a);

	if (r < 0)
		return r;
	l.claimed = false;
	return weight_lineage_record_copy(&l, &b);
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(copy_both);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_lineage");
	TCase *tc = tcase_create("core");

	tcase_add_loop_test(tc, equal_imports_are_equal_in_all, 0, 8);
	tcase_add_test(tc, good_records_are_good);
	tcase_add_test(tc, each_mode_has_its_phases);
	tcase_add_loop_test(tc, each_rule_is_looked_at, 0, RULES);
	tcase_add_test(tc, a_copy_owns_its_strings);
	tcase_add_loop_test(tc, a_claim_is_live_until_its_last_phase, 0,
			    (int)ARRAY_LEN(lives));
	tcase_add_test(tc, what_has_no_record_has_no_claim);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
