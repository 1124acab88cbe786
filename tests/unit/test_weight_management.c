/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_key.h"
#include "core/weight_management.h"
#include "fault.h"
#include "suite.h"

#define GROUP                                                                  \
	"weight:"                                                              \
	"d959bc5c5b651824ad866863c325ebbf49a98a9482863ced2c1f7caac4039d73"
#define KEY "weights/default/demo/main/7/manifest"

static const struct weight_identity demo = {
	.lineage = { "default", "default", "demo", "main" },
	.generation = 7,
};

/* A valid record that the tests below spoil in one place each. */
static struct weight_metadata ready_metadata(void)
{
	return (struct weight_metadata){
		.identity = demo,
		.manifest = {
			.manifest_key = KEY,
			.payload_group_id = GROUP,
			.manifest_sha256 = { { 1 } },
			.payload_keys_sha256 = { { 2 } },
			.complete = true,
			.payload_count = 3,
			.logical_bytes = 40,
		},
		.policy = WEIGHT_POLICY_DEFAULT,
		.availability = WEIGHT_READY,
		.residency = WEIGHT_HOT,
		.affinity_count = 2,
		.affinity_digest = { { 3 } },
		.observed_hot_ratio = 1.0,
		.metadata_generation = 2,
		.created_at_ms = 1000,
		.updated_at_ms = 1000,
		.last_accessed_at_ms = 1000,
	};
}

static void move_to(struct weight_metadata *m, enum weight_availability to)
{
	m->availability = to;
	if (to == WEIGHT_IMPORTING) {
		m->manifest.complete = false;
		m->manifest.manifest_key = "";
		m->manifest.manifest_sha256 = (struct digest){ { 0 } };
		m->manifest.payload_keys_sha256 = (struct digest){ { 0 } };
		m->residency = WEIGHT_UNKNOWN;
		m->observed_hot_ratio = 0.0;
	}
	if (to == WEIGHT_DELETED) {
		m->residency = WEIGHT_ABSENT;
		m->observed_hot_ratio = 0.0;
	}
}

#define PARSE_BACK(stem, v)                                                    \
	do {                                                                   \
		enum stem back_ = (enum stem)99;                               \
		const char *name_ = stem##_name((enum stem)(v));               \
                                                                               \
		ck_assert_ptr_nonnull(name_);                                  \
		ck_assert_int_eq(stem##_parse(name_, strlen(name_), &back_),   \
				 0);                                           \
		ck_assert_int_eq((int)back_, (int)(v));                        \
	} while (0)

/* weight_upsert_mode_wire_values_are_stable */
START_TEST(every_value_has_a_word_and_back)
{
	for (int v = WEIGHT_IMPORTING; v <= WEIGHT_DELETED; v++)
		PARSE_BACK(weight_availability, v);
	for (int v = WEIGHT_UNKNOWN; v <= WEIGHT_ABSENT; v++)
		PARSE_BACK(weight_residency, v);
	for (int v = WEIGHT_PINNED; v <= WEIGHT_AUTO; v++)
		PARSE_BACK(weight_migration_mode, v);
	for (int v = WEIGHT_MIGRATING; v <= WEIGHT_REPAIRING; v++)
		PARSE_BACK(weight_operation_kind, v);
	for (int v = WEIGHT_PUT_FIRST; v <= WEIGHT_DELETE_FIRST; v++)
		PARSE_BACK(weight_upsert_mode, v);
	for (int v = WEIGHT_PREPARING_TARGET; v <= WEIGHT_ABORTED; v++)
		PARSE_BACK(weight_upsert_phase, v);
}
END_TEST

START_TEST(words_are_the_ones_that_users_see)
{
	ck_assert_str_eq(weight_availability_name(WEIGHT_READY), "ready");
	ck_assert_str_eq(weight_residency_name(WEIGHT_COLD), "cold");
	ck_assert_str_eq(weight_migration_mode_name(WEIGHT_AUTO), "auto");
	ck_assert_str_eq(weight_upsert_mode_name(WEIGHT_PUT_FIRST),
			 "put_first");
	ck_assert_ptr_null(weight_availability_name(5));
	ck_assert_ptr_null(weight_residency_name((enum weight_residency) - 1));
	ck_assert_ptr_null(weight_migration_mode_name(3));
	ck_assert_ptr_null(weight_operation_kind_name(2));
	ck_assert_ptr_null(weight_upsert_mode_name(2));
	ck_assert_ptr_null(weight_upsert_phase_name(6));
}
END_TEST

START_TEST(other_words_are_refused)
{
	static const char *const bad[] = { "", "Hot", "hot ", "ho", "hott" };
	enum weight_residency r = WEIGHT_ABSENT;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		ck_assert_int_eq(
			weight_residency_parse(bad[i], strlen(bad[i]), &r),
			-EINVAL);
		ck_assert_int_eq((int)r, WEIGHT_ABSENT);
	}
	ck_assert_int_eq(weight_residency_parse("hot,x", 3, &r), 0);
	ck_assert_int_eq((int)r, WEIGHT_HOT);
}
END_TEST

/* error_mapping_retains_domain_code */
START_TEST(every_error_has_its_own_errno)
{
	for (int e = WEIGHT_INVALID_ARGUMENT; e <= WEIGHT_POLICY_UNSATISFIABLE;
	     e++) {
		int r = weight_error_errno((enum weight_error)e);

		ck_assert_ptr_nonnull(weight_error_name((enum weight_error)e));
		ck_assert_int_lt(r, 0);
		ck_assert_int_eq((int)weight_error_of_errno(r), e);
	}
	ck_assert_str_eq(weight_error_name(WEIGHT_NOT_READY), "NOT_READY");
	ck_assert_int_eq(weight_error_errno(WEIGHT_NOT_READY), -EINPROGRESS);
	ck_assert_int_eq(weight_error_errno(WEIGHT_STALE_GENERATION),
			 -ECANCELED);
	ck_assert_ptr_null(weight_error_name(0));
	ck_assert_ptr_null(weight_error_name(11));
	ck_assert_int_eq(weight_error_errno(11), -EIO);
	ck_assert_int_eq((int)weight_error_of_errno(0), 0);
	ck_assert_int_eq((int)weight_error_of_errno(-ENOMEM), 0);
}
END_TEST

START_TEST(two_phases_end_a_claim)
{
	for (int v = WEIGHT_PREPARING_TARGET; v <= WEIGHT_ABORTED; v++)
		ck_assert_int_eq(weight_upsert_phase_is_terminal(
					 (enum weight_upsert_phase)v),
				 v == WEIGHT_COMPLETED || v == WEIGHT_ABORTED);
}
END_TEST

/* clang-format off */
static const struct {
	const char *text;
	bool component;
	bool tenant;
} components[] = {
	{ "default",              true,  true },
	{ "a",                    true,  true },
	{ "a/b c",                true,  true },
	{ ".hidden",              true,  true },
	{ "..",                   true,  true },
	{ "\xc3\xa9\xe4\xb8\x96\xf0\x9f\x98\x80", true, true },
	{ "_system",              true,  false },
	{ "a_",                   true,  true },
	{ "\xc2\x80",             true,  true },  /* U+0080 */
	{ "\xed\x9f\xbf",         true,  true },  /* U+D7FF */
	{ "\xf4\x8f\xbf\xbf",     true,  true },  /* U+10FFFF */
	{ "",                     false, false },
	{ "a\nb",                 false, false },
	{ "\x1f",                 false, false },
	{ "a\x7f",                false, false },
	{ "\xff",                 false, false },
	{ "\x80",                 false, false },
	{ "\xc3",                 false, false },
	{ "a\xe4\xb8",            false, false },
	{ "\xc0\x80",             false, false },  /* NUL, too long */
	{ "\xc1\xbf",             false, false },
	{ "\xe0\x9f\xbf",         false, false },
	{ "\xed\xa0\x80",         false, false },  /* a surrogate */
	{ "\xf0\x8f\xbf\xbf",     false, false },
	{ "\xf4\x90\x80\x80",     false, false },  /* U+110000 */
	{ "\xf5\x80\x80\x80",     false, false },
};
/* clang-format on */

/* WeightManagementContract.ValidatesIdentityComponentsStrictly */
START_TEST(a_component_is_text_without_control_characters)
{
	const char *text = components[_i].text;

	ck_assert_int_eq(weight_component_ok(text), components[_i].component);
	ck_assert_int_eq(weight_tenant_ok(text), components[_i].tenant);
}
END_TEST

/* WeightManagementContract.ValidatesIdentityComponentsStrictly */
START_TEST(a_component_has_at_most_1024_bytes)
{
	char text[WEIGHT_COMPONENT_MAX + 2];

	memset(text, 'a', sizeof(text));
	text[WEIGHT_COMPONENT_MAX + 1] = '\0';
	ck_assert(!weight_component_ok(text));
	ck_assert(!weight_tenant_ok(text));
	text[WEIGHT_COMPONENT_MAX] = '\0';
	ck_assert(weight_component_ok(text));
	ck_assert(weight_tenant_ok(text));
	ck_assert(!weight_component_ok(NULL));
	ck_assert(!weight_tenant_ok(NULL));
}
END_TEST

/* clang-format off */
static const struct {
	const char *says;
	struct weight_identity id;
} bad_identities[] = {
	{ "tenant starts with '_'", { { "_t", "n", "r", "v" }, 1 } },
	{ "tenant is empty",        { { "", "n", "r", "v" }, 1 } },
	{ "namespace is empty",     { { "t", "", "r", "v" }, 1 } },
	{ "resource holds a cont",  { { "t", "n", "\n", "v" }, 1 } },
	{ "revision is not UTF-8",  { { "t", "n", "r", "\xff" }, 1 } },
	{ "revision is empty",      { { "t", "n", "r", NULL }, 1 } },
	{ "generation 0",           { { "t", "n", "r", "v" }, 0 } },
};
/* clang-format on */

/* WeightManagementContract.ValidatesIdentityComponentsStrictly */
START_TEST(a_bad_identity_is_refused_in_words)
{
	cleanup(buf_release) struct buf why = BUF_INIT;

	ck_assert_int_eq(weight_identity_check(&bad_identities[_i].id, &why),
			 -EINVAL);
	ck_assert_msg(strstr(why.data, bad_identities[_i].says) != NULL,
		      "says: %s", why.data);
	ck_assert_int_eq(weight_identity_check(&bad_identities[_i].id, NULL),
			 -EINVAL);
}
END_TEST

START_TEST(a_good_identity_passes_without_a_word)
{
	cleanup(buf_release) struct buf why = BUF_INIT;

	ck_assert_int_eq(weight_identity_check(&demo, &why), 0);
	ck_assert_uint_eq(why.len, 0);
}
END_TEST

START_TEST(a_copied_identity_stands_alone)
{
	cleanup(weight_identity_free_cleanup) struct weight_identity *copy =
		NULL;
	char tenant[] = "tenant";
	struct weight_identity id = demo;

	id.lineage.tenant = tenant;
	ck_assert_int_eq(weight_identity_copy(&id, &copy), 0);
	ck_assert(weight_identity_equal(copy, &id));
	tenant[0] = 'T';
	ck_assert(!weight_identity_equal(copy, &id));
	ck_assert_str_eq(copy->lineage.tenant, "tenant");
	ck_assert_str_eq(copy->lineage.revision, "main");
}
END_TEST

START_TEST(identities_differ_in_any_part)
{
	static const struct weight_identity others[] = {
		{ { "x", "default", "demo", "main" }, 7 },
		{ { "default", "x", "demo", "main" }, 7 },
		{ { "default", "default", "x", "main" }, 7 },
		{ { "default", "default", "demo", "x" }, 7 },
		{ { "default", "default", "demo", "main" }, 8 },
	};

	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		ck_assert(!weight_identity_equal(&demo, &others[i]));
	ck_assert(weight_identity_equal(&demo, &demo));
	ck_assert(weight_lineage_equal(&demo.lineage, &others[4].lineage));
}
END_TEST

/* clang-format off */
static const struct {
	const char *text;
	uint64_t generation; /* 0: refused */
} generations[] = {
	{ "1",                     1 },
	{ "7",                     7 },
	{ "10",                    10 },
	{ "18446744073709551615",  UINT64_MAX },
	{ "18446744073709551616",  0 },
	{ "99999999999999999999",  0 },
	{ "184467440737095516150", 0 },
	{ "",   0 }, { "0",   0 }, { "01",  0 }, { "+1",   0 }, { "-1", 0 },
	{ " 1", 0 }, { "1 ",  0 }, { "1a",  0 }, { "0x1",  0 }, { "1\n", 0 },
};
/* clang-format on */

/* WeightManagementContract.ValidatesSha256AndGeneration */
START_TEST(a_generation_has_one_text_form)
{
	char text[WEIGHT_GENERATION_LEN_MAX + 1];
	uint64_t g = 0;
	int r = weight_generation_parse(generations[_i].text,
					strlen(generations[_i].text), &g);

	ck_assert_int_eq(r, generations[_i].generation ? 0 : -EINVAL);
	ck_assert_uint_eq(g, generations[_i].generation);
	if (r < 0)
		return;
	weight_generation_print(g, text);
	ck_assert_str_eq(text, generations[_i].text);
}
END_TEST

/* WeightManagementContract.ValidatesSha256AndGeneration */
START_TEST(a_metadata_generation_advances_to_its_end)
{
	uint64_t g = 42;

	ck_assert_int_eq(weight_generation_advance(0, &g), -EOVERFLOW);
	ck_assert_int_eq(weight_generation_advance(UINT64_MAX, &g), -EOVERFLOW);
	ck_assert_int_eq(weight_generation_advance(UINT64_MAX - 1, &g),
			 -EOVERFLOW);
	ck_assert_uint_eq(g, 42);
	ck_assert_int_eq(weight_generation_advance(1, &g), 0);
	ck_assert_uint_eq(g, 2);
	ck_assert_int_eq(weight_generation_advance(UINT64_MAX - 2, &g), 0);
	ck_assert_uint_eq(g, UINT64_MAX - 1);
}
END_TEST

START_TEST(a_retry_is_fenced_now_or_one_before)
{
	ck_assert(weight_generation_is_retry(5, 5));
	ck_assert(weight_generation_is_retry(5, 4));
	ck_assert(!weight_generation_is_retry(5, 3));
	ck_assert(!weight_generation_is_retry(5, 6));
	ck_assert(!weight_generation_is_retry(0, UINT64_MAX));
}
END_TEST

/* clang-format off */
static const struct weight_policy bad_policies[] = {
	{ WEIGHT_UNKNOWN, 0.5, WEIGHT_AUTO },
	{ WEIGHT_ABSENT,  0.5, WEIGHT_AUTO },
	{ 5,              0.5, WEIGHT_AUTO },
	{ WEIGHT_MIXED,   0.0, WEIGHT_AUTO },
	{ WEIGHT_MIXED,   1.0, WEIGHT_AUTO },
	{ WEIGHT_HOT,     1.0, WEIGHT_AUTO }, /* whatever is preferred */
	{ WEIGHT_COLD,    -0.1, WEIGHT_AUTO },
	{ WEIGHT_HOT,     (double)NAN, WEIGHT_AUTO },
	{ WEIGHT_HOT,     (double)INFINITY, WEIGHT_AUTO },
	{ WEIGHT_HOT,     0.5, 3 },
};
/* clang-format on */

/* mixed_policy_requires_strict_interior_ratio */
START_TEST(a_bad_policy_is_refused_in_words)
{
	cleanup(buf_release) struct buf why = BUF_INIT;

	ck_assert_int_eq(weight_policy_check(&bad_policies[_i], &why), -EINVAL);
	ck_assert_uint_gt(why.len, 0);
}
END_TEST

/*
 * WeightPolicyState.DefaultsPolicyAndPersistsAffinitySummary
 * storage_policy_defaults_to_mixed_auto
 */
START_TEST(the_default_policy_is_mixed_half_auto)
{
	struct weight_policy p = WEIGHT_POLICY_DEFAULT;
	struct weight_policy hot = p;

	ck_assert_int_eq(weight_policy_check(&p, NULL), 0);
	ck_assert_int_eq((int)p.preferred, WEIGHT_MIXED);
	ck_assert_int_eq((int)p.mode, WEIGHT_AUTO);
	ck_assert(weight_policy_equal(&p, &hot));
	hot.preferred = WEIGHT_HOT;
	ck_assert_int_eq(weight_policy_check(&hot, NULL), 0);
	ck_assert(!weight_policy_equal(&p, &hot));
	p.mixed_hot_ratio = DBL_MIN;
	ck_assert_int_eq(weight_policy_check(&p, NULL), 0);
}
END_TEST

/* WeightManagementContract.RestrictsAvailabilityTransitions */
START_TEST(availability_moves_along_seven_arrows)
{
	static const char may[5][6] = {
		/* from IMPORTING, READY, DEGRADED, DELETING, DELETED */
		"-R-x-", "--Dx-", "-R-x-", "----x", "-----",
	};

	for (int from = -1; from <= 5; from++)
		for (int to = -1; to <= 5; to++) {
			bool known = from >= 0 && from < 5 && to >= 0 && to < 5;
			bool expected = known && may[from][to] != '-';

			ck_assert_int_eq(weight_availability_may(
						 (enum weight_availability)from,
						 (enum weight_availability)to),
					 expected);
		}
}
END_TEST

START_TEST(records_of_every_state_are_valid)
{
	for (int v = WEIGHT_IMPORTING; v <= WEIGHT_DELETED; v++) {
		cleanup(buf_release) struct buf why = BUF_INIT;
		struct weight_metadata m = ready_metadata();

		move_to(&m, (enum weight_availability)v);
		ck_assert_msg(weight_metadata_check(&m, &why) == 0, "%d: %s", v,
			      why.data);
		ck_assert_uint_eq(why.len, 0);
	}
}
END_TEST

START_TEST(a_revision_may_have_no_tensors_and_no_bytes)
{
	struct weight_metadata m = ready_metadata();

	m.manifest.payload_count = 0;
	m.manifest.logical_bytes = 0;
	m.manifest.payload_keys_sha256 = digest_of_nothing;
	m.affinity_count = 0;
	m.affinity_digest = digest_of_nothing;
	ck_assert_int_eq(weight_metadata_check(&m, NULL), 0);
	m.manifest.payload_count = 2;
	ck_assert_int_eq(weight_metadata_check(&m, NULL), 0);
}
END_TEST

/*
 * Which residencies go with which state, all others being refused.
 * WeightManagementContract.EnforcesStateCombinationAndOperationIds
 * WeightMetadataStore.RejectsReadyRevisionWithoutReadableResidency
 */
START_TEST(a_state_allows_certain_residencies)
{
	static const char may[5][6] = {
		/* UNKNOWN, HOT, COLD, MIXED, ABSENT */
		"u----", "-hcm-", "-hcma", "uhcma", "----a",
	};

	for (int a = 0; a < 5; a++)
		for (int r = 0; r < 5; r++) {
			struct weight_metadata m = ready_metadata();

			move_to(&m, (enum weight_availability)a);
			m.residency = (enum weight_residency)r;
			m.observed_hot_ratio = r == WEIGHT_HOT   ? 1.0 :
					       r == WEIGHT_MIXED ? 0.25 :
								   0.0;
			ck_assert_int_eq(weight_metadata_check(&m, NULL),
					 may[a][r] == '-' ? -EINVAL : 0);
		}
}
END_TEST

START_TEST(a_place_is_a_residency_and_its_ratio)
{
	ck_assert(weight_place_ok(WEIGHT_READY, WEIGHT_HOT, 1.0));
	ck_assert(weight_place_ok(WEIGHT_READY, WEIGHT_COLD, 0.0));
	ck_assert(weight_place_ok(WEIGHT_READY, WEIGHT_MIXED, 0.5));
	ck_assert(weight_place_ok(WEIGHT_DEGRADED, WEIGHT_ABSENT, 0.0));
	ck_assert(weight_place_ok(WEIGHT_IMPORTING, WEIGHT_UNKNOWN, 0.0));
	ck_assert(!weight_place_ok(WEIGHT_READY, WEIGHT_ABSENT, 0.0));
	ck_assert(!weight_place_ok(WEIGHT_READY, WEIGHT_UNKNOWN, 0.0));
	ck_assert(!weight_place_ok(WEIGHT_READY, WEIGHT_HOT, 0.0));
	ck_assert(!weight_place_ok(WEIGHT_READY, WEIGHT_MIXED, 1.0));
	ck_assert(!weight_place_ok(WEIGHT_READY, WEIGHT_COLD, (double)NAN));
	ck_assert(!weight_place_ok(WEIGHT_READY, (enum weight_residency)5, 0));
	ck_assert(!weight_place_ok((enum weight_availability)5, WEIGHT_HOT, 1));
}
END_TEST

/* WeightManagementContract.EnforcesStateCombinationAndOperationIds */
START_TEST(only_a_readable_revision_may_be_operated_on)
{
	for (int a = 0; a < 5; a++) {
		struct weight_metadata m = ready_metadata();
		bool may = a == WEIGHT_READY || a == WEIGHT_DEGRADED;

		move_to(&m, (enum weight_availability)a);
		m.operation_id = 9;
		ck_assert_int_eq(weight_metadata_check(&m, NULL),
				 may ? 0 : -EINVAL);
	}
}
END_TEST

/* clang-format off */
#define SPOIL(name, change)                                                    \
	static void name(struct weight_metadata *m)                            \
	{                                                                      \
		change;                                                        \
	}
SPOIL(no_tenant,        m->identity.lineage.tenant = "")
SPOIL(generation_zero,  m->identity.generation = 0)
SPOIL(other_group,      m->identity.generation = 8)
SPOIL(no_group,         m->manifest.payload_group_id = NULL)
SPOIL(empty_group,      m->manifest.payload_group_id = "")
SPOIL(other_key,        m->manifest.manifest_key = "weights/x/manifest")
SPOIL(no_key,           m->manifest.manifest_key = NULL)
SPOIL(empty_key,        m->manifest.manifest_key = "")
SPOIL(incomplete,       m->manifest.complete = false)
SPOIL(bad_policy,       m->policy.mixed_hot_ratio = 1.0)
SPOIL(no_state,         m->availability = 5)
SPOIL(no_residency,     m->residency = 5)
SPOIL(ratio_of_hot,     m->observed_hot_ratio = 0.5)
SPOIL(ratio_of_cold,    m->residency = WEIGHT_COLD)
SPOIL(ratio_of_mixed,   m->residency = WEIGHT_MIXED)
SPOIL(ratio_nan,        m->observed_hot_ratio = (double)NAN)
SPOIL(ratio_above_one,  m->observed_hot_ratio = 1.5)
SPOIL(metadata_zero,    m->metadata_generation = 0)
SPOIL(metadata_max,     m->metadata_generation = UINT64_MAX)
SPOIL(updated_before,   m->updated_at_ms = 999)
SPOIL(no_units,         m->affinity_count = 0)
SPOIL(bytes_in_nothing, m->manifest.payload_count = 0)
SPOIL(key_too_early,    move_to(m, WEIGHT_IMPORTING);
			m->manifest.manifest_key = KEY)
SPOIL(digest_too_early, move_to(m, WEIGHT_IMPORTING);
			m->manifest.manifest_sha256.bytes[31] = 1)
SPOIL(keys_too_early,   move_to(m, WEIGHT_IMPORTING);
			m->manifest.payload_keys_sha256.bytes[0] = 1)
SPOIL(import_complete,  m->availability = WEIGHT_IMPORTING;
			m->residency = WEIGHT_UNKNOWN;
			m->observed_hot_ratio = 0.0)

static void (*const spoilers[])(struct weight_metadata *m) = {
	no_tenant, generation_zero, other_group, no_group, empty_group,
	other_key, no_key, empty_key, incomplete, bad_policy, no_state,
	no_residency, ratio_of_hot, ratio_of_cold, ratio_of_mixed, ratio_nan,
	ratio_above_one, metadata_zero, metadata_max, updated_before, no_units,
	bytes_in_nothing, key_too_early, digest_too_early, keys_too_early,
	import_complete,
};
/* clang-format on */

START_TEST(a_spoiled_record_is_refused_in_words)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_metadata m = ready_metadata();

	spoilers[_i](&m);
	ck_assert_int_eq(weight_metadata_check(&m, &why), -EINVAL);
	ck_assert_uint_gt(why.len, 0);
	ck_assert_int_ne(why.data[why.len - 1], '.');
}
END_TEST

START_TEST(a_copied_record_stands_alone)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *copy =
		NULL;
	struct weight_metadata m = ready_metadata();
	char key[] = KEY;

	m.manifest.manifest_key = key;
	ck_assert_int_eq(weight_metadata_copy(&m, &copy), 0);
	memset(key, 'x', sizeof(key) - 1);
	ck_assert_str_eq(copy->manifest.manifest_key, KEY);
	ck_assert_int_eq(weight_metadata_check(copy, NULL), 0);
	ck_assert_uint_eq(copy->metadata_generation, 2);
}
END_TEST

static const struct weight_lease lease = {
	.lease_id = 1,
	.identity = { { "t", "n", "r", "v" }, 1 },
	.holder = "mount",
	.expires_at_ms = 100,
	.fenced_metadata_generation = 2,
};

START_TEST(a_lease_has_rules)
{
	struct weight_lease bad[6];

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		bad[i] = lease;
	bad[0].lease_id = 0;
	bad[1].expires_at_ms = 0;
	bad[2].fenced_metadata_generation = 0;
	bad[3].holder = "";
	bad[4].identity.generation = 0;
	bad[5].holder = NULL;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		cleanup(buf_release) struct buf why = BUF_INIT;

		ck_assert_int_eq(weight_lease_check(&bad[i], &why), -EINVAL);
		ck_assert_uint_gt(why.len, 0);
	}
	ck_assert_int_eq(weight_lease_check(&lease, NULL), 0);
}
END_TEST

START_TEST(a_lease_protects_until_it_expires)
{
	ck_assert(weight_lease_is_active(&lease, 99, 2));
	ck_assert(!weight_lease_is_active(&lease, 100, 2));
	ck_assert(weight_lease_is_active(&lease, 99, 3));
	ck_assert(!weight_lease_is_active(&lease, 99, 1));
}
END_TEST

START_TEST(a_copied_lease_stands_alone)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *copy = NULL;

	ck_assert_int_eq(weight_lease_copy(&lease, &copy), 0);
	ck_assert_str_eq(copy->holder, "mount");
	ck_assert_ptr_ne(copy->holder, lease.holder);
	ck_assert(weight_identity_equal(&copy->identity, &lease.identity));
}
END_TEST

static const struct weight_operation operation = {
	.operation_id = 1,
	.identity = { { "t", "n", "r", "v" }, 1 },
	.kind = WEIGHT_MIGRATING,
	.target_residency = WEIGHT_COLD,
	.fenced_metadata_generation = 2,
	.started_at_ms = 10,
	.updated_at_ms = 10,
	.processed_units = 1,
	.total_units = 2,
	.processed_bytes = 4,
	.total_bytes = 40,
	.cursor = "a",
	.message = "",
};

/*
 * operation_has_kind_target_and_byte_progress
 * mixed_operation_requires_target_ratio
 */
START_TEST(an_operation_has_rules)
{
	struct weight_operation bad[13];

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		bad[i] = operation;
	bad[0].operation_id = 0;
	bad[1].fenced_metadata_generation = 0;
	bad[2].kind = 2;
	bad[3].target_residency = WEIGHT_ABSENT;
	bad[4].target_hot_ratio = 0.5;
	bad[5].target_residency = WEIGHT_MIXED;
	bad[6].processed_units = 3;
	bad[7].processed_bytes = 41;
	bad[8].updated_at_ms = 9;
	bad[9].message = WEIGHT_OPERATION_COMPLETED;
	bad[10].cursor = "\n";
	bad[11].message = NULL;
	bad[12].identity.lineage.revision = "";
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		cleanup(buf_release) struct buf why = BUF_INIT;

		ck_assert_int_eq(weight_operation_check(&bad[i], &why),
				 -EINVAL);
		ck_assert_uint_gt(why.len, 0);
	}
	ck_assert_int_eq(weight_operation_check(&operation, NULL), 0);
}
END_TEST

START_TEST(a_finished_operation_has_nothing_left)
{
	struct weight_operation op = operation;

	ck_assert(!weight_operation_is_finished(&op));
	op.message = "completed";
	op.processed_units = op.total_units;
	op.processed_bytes = op.total_bytes;
	ck_assert(weight_operation_is_finished(&op));
	ck_assert_int_eq(weight_operation_check(&op, NULL), -EINVAL);
	op.cursor = "";
	ck_assert_int_eq(weight_operation_check(&op, NULL), 0);
	op.target_residency = WEIGHT_MIXED;
	op.target_hot_ratio = 0.25;
	ck_assert_int_eq(weight_operation_check(&op, NULL), 0);
}
END_TEST

static int copy_everything(void)
{
	cleanup(weight_identity_free_cleanup) struct weight_identity *id = NULL;
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(weight_lease_free_cleanup) struct weight_lease *l = NULL;
	struct weight_metadata ready = ready_metadata();
	int r;

	if ((r = weight_identity_copy(&demo, &id)) < 0 ||
	    (r = weight_metadata_copy(&ready, &m)) < 0 ||
	    (r = weight_lease_copy(&lease, &l)) < 0)
		return r;
	return weight_metadata_check(m, NULL);
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(copy_everything);
}
END_TEST

static void add_word_tests(TCase *tc)
{
	tcase_add_test(tc, every_value_has_a_word_and_back);
	tcase_add_test(tc, words_are_the_ones_that_users_see);
	tcase_add_test(tc, other_words_are_refused);
	tcase_add_test(tc, every_error_has_its_own_errno);
	tcase_add_test(tc, two_phases_end_a_claim);
}

static void add_identity_tests(TCase *tc)
{
	tcase_add_loop_test(tc, a_component_is_text_without_control_characters,
			    0, (int)ARRAY_LEN(components));
	tcase_add_test(tc, a_component_has_at_most_1024_bytes);
	tcase_add_loop_test(tc, a_bad_identity_is_refused_in_words, 0,
			    (int)ARRAY_LEN(bad_identities));
	tcase_add_test(tc, a_good_identity_passes_without_a_word);
	tcase_add_test(tc, a_copied_identity_stands_alone);
	tcase_add_test(tc, identities_differ_in_any_part);
	tcase_add_loop_test(tc, a_generation_has_one_text_form, 0,
			    (int)ARRAY_LEN(generations));
	tcase_add_test(tc, a_metadata_generation_advances_to_its_end);
	tcase_add_test(tc, a_retry_is_fenced_now_or_one_before);
}

static void add_record_tests(TCase *tc)
{
	tcase_add_loop_test(tc, a_bad_policy_is_refused_in_words, 0,
			    (int)ARRAY_LEN(bad_policies));
	tcase_add_test(tc, the_default_policy_is_mixed_half_auto);
	tcase_add_test(tc, availability_moves_along_seven_arrows);
	tcase_add_test(tc, records_of_every_state_are_valid);
	tcase_add_test(tc, a_revision_may_have_no_tensors_and_no_bytes);
	tcase_add_test(tc, a_state_allows_certain_residencies);
	tcase_add_test(tc, a_place_is_a_residency_and_its_ratio);
	tcase_add_test(tc, only_a_readable_revision_may_be_operated_on);
	tcase_add_loop_test(tc, a_spoiled_record_is_refused_in_words, 0,
			    (int)ARRAY_LEN(spoilers));
	tcase_add_test(tc, a_copied_record_stands_alone);
	tcase_add_test(tc, a_lease_has_rules);
	tcase_add_test(tc, a_lease_protects_until_it_expires);
	tcase_add_test(tc, a_copied_lease_stands_alone);
	tcase_add_test(tc, an_operation_has_rules);
	tcase_add_test(tc, a_finished_operation_has_nothing_left);
}

Suite *suite(void)
{
	Suite *s = suite_create("weight_management");
	TCase *tc = tcase_create("core");

	add_word_tests(tc);
	add_identity_tests(tc);
	add_record_tests(tc);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
