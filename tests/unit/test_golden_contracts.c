/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers that others have written down, or will: a renumbered enum passes all
 * tests that use its names, so here they stand as digits.
 *
 * Source: weight contracts, sections 3.2, 5.5, 6.1, 6.6 to 6.14, 8.1 and 9.2.
 */
#include <errno.h>
#include <string.h>

#include "core/config.h"
#include "core/manifest.h"
#include "core/oplog.h"
#include "core/util.h"
#include "core/weight_decision_import.h"
#include "core/weight_key.h"
#include "core/weight_management.h"
#include "core/weight_snapshot.h"
#include "suite.h"

/* ---- Enums ---- */

/* clang-format off */
#define NAME_OF(stem)                                                          \
	static const char *name_of_##stem(int v)                               \
	{                                                                      \
		return stem##_name((enum stem)v);                              \
	}
NAME_OF(weight_availability)
NAME_OF(weight_residency)
NAME_OF(weight_migration_mode)
NAME_OF(weight_operation_kind)
NAME_OF(weight_upsert_mode)
NAME_OF(weight_error)
NAME_OF(oplog_type)
#undef NAME_OF

static const struct {
	int symbol;
	int number;
	const char *(*name)(int v);
	const char *word;
} numbers[] = {
#define IS(stem, symbol, number, word)                                         \
	{ symbol, number, name_of_##stem, word }
	IS(weight_availability, WEIGHT_IMPORTING, 0, "importing"),
	IS(weight_availability, WEIGHT_READY,     1, "ready"),
	IS(weight_availability, WEIGHT_DEGRADED,  2, "degraded"),
	IS(weight_availability, WEIGHT_DELETING,  3, "deleting"),
	IS(weight_availability, WEIGHT_DELETED,   4, "deleted"),

	IS(weight_residency, WEIGHT_UNKNOWN, 0, "unknown"),
	IS(weight_residency, WEIGHT_HOT,     1, "hot"),
	IS(weight_residency, WEIGHT_COLD,    2, "cold"),
	IS(weight_residency, WEIGHT_MIXED,   3, "mixed"),
	IS(weight_residency, WEIGHT_ABSENT,  4, "absent"),

	IS(weight_migration_mode, WEIGHT_PINNED, 0, "pinned"),
	IS(weight_migration_mode, WEIGHT_MANUAL, 1, "manual"),
	IS(weight_migration_mode, WEIGHT_AUTO,   2, "auto"),

	IS(weight_operation_kind, WEIGHT_MIGRATING, 0, "migrating"),
	IS(weight_operation_kind, WEIGHT_REPAIRING, 1, "repairing"),

	IS(weight_upsert_mode, WEIGHT_PUT_FIRST,    0, "put_first"),
	IS(weight_upsert_mode, WEIGHT_DELETE_FIRST, 1, "delete_first"),

#define ERROR(symbol, number) IS(weight_error, WEIGHT_##symbol, number, #symbol)
	ERROR(INVALID_ARGUMENT,     1),
	ERROR(NOT_FOUND,            2),
	ERROR(CONFLICT,             3),
	ERROR(STALE_GENERATION,     4),
	ERROR(NOT_READY,            5),
	ERROR(BUSY,                 6),
	ERROR(LEASE_EXPIRED,        7),
	ERROR(GENERATION_EXHAUSTED, 8),
	ERROR(DURABILITY_FAILED,    9),
	ERROR(POLICY_UNSATISFIABLE, 10),
#undef ERROR

	IS(oplog_type, OPLOG_METADATA_UPSERT, 8,  "metadata_upsert"),
	IS(oplog_type, OPLOG_METADATA_DELETE, 9,  "metadata_delete"),
	IS(oplog_type, OPLOG_LEASE_UPSERT,    10, "lease_upsert"),
	IS(oplog_type, OPLOG_LEASE_DELETE,    11, "lease_delete"),
	IS(oplog_type, OPLOG_LINEAGE_UPSERT,  12, "lineage_upsert"),
#undef IS
};
/* clang-format on */

START_TEST(a_number_on_the_wire_never_changes)
{
	ck_assert_int_eq(numbers[_i].symbol, numbers[_i].number);
	ck_assert_str_eq(numbers[_i].name(numbers[_i].number),
			 numbers[_i].word);
}
END_TEST

/* One behind the last of each, and one before the first. */
START_TEST(other_numbers_mean_nothing)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		bool is_first =
			i == 0 || numbers[i - 1].name != numbers[i].name;
		bool is_last = i + 1 == ARRAY_LEN(numbers) ||
			       numbers[i + 1].name != numbers[i].name;

		if (is_first)
			ck_assert_ptr_null(
				numbers[i].name(numbers[i].number - 1));
		if (is_last)
			ck_assert_ptr_null(
				numbers[i].name(numbers[i].number + 1));
	}
}
END_TEST

/* ---- Errors ---- */

/* clang-format off */
static const struct {
	enum weight_error error;
	int err;
} errnos[] = {
	{ WEIGHT_INVALID_ARGUMENT,     EINVAL },
	{ WEIGHT_NOT_FOUND,            ENOENT },
	{ WEIGHT_CONFLICT,             EEXIST },
	{ WEIGHT_STALE_GENERATION,     ECANCELED },
	{ WEIGHT_NOT_READY,            EINPROGRESS },
	{ WEIGHT_BUSY,                 EBUSY },
	{ WEIGHT_LEASE_EXPIRED,        EKEYEXPIRED },
	{ WEIGHT_GENERATION_EXHAUSTED, EOVERFLOW },
	{ WEIGHT_DURABILITY_FAILED,    EIO },
	{ WEIGHT_POLICY_UNSATISFIABLE, EPERM },
};
/* clang-format on */

START_TEST(an_error_is_one_errno_and_back)
{
	ck_assert_int_eq(weight_error_errno(errnos[_i].error), -errnos[_i].err);
	ck_assert_int_eq((int)weight_error_of_errno(-errnos[_i].err),
			 (int)errnos[_i].error);
}
END_TEST

/* ---- Limits ---- */

START_TEST(limits_are_the_agreed_ones)
{
	ck_assert_uint_eq(WEIGHT_COMPONENT_MAX, 1024);
	ck_assert_uint_eq(WEIGHT_LEASE_TTL_MS_MIN, 1);
	ck_assert_uint_eq(WEIGHT_LEASE_TTL_MS_MAX, 86400000);
	ck_assert_uint_eq(WEIGHT_LIST_LIMIT_DEFAULT, 100);
	ck_assert_uint_eq(WEIGHT_LIST_LIMIT_MAX, 1000);
	ck_assert_uint_eq(WEIGHT_DELETE_BATCH_MAX, 64);
	ck_assert_uint_eq(WEIGHT_IMPORT_IDLE_MS, 5 * 60 * 1000);
	ck_assert(WEIGHT_METADATA_GENERATION_MAX == UINT64_MAX - 1);
	ck_assert_uint_eq(OPLOG_KEY_MAX, 4096);
	ck_assert_uint_eq(OPLOG_PAYLOAD_MAX, 10485760);
	ck_assert_uint_eq(MANIFEST_PAIRS_MAX, 1000000);
	ck_assert_int_eq(WEIGHT_SNAPSHOT_SCHEMA, 3);
	ck_assert_int_eq(WEIGHT_SNAPSHOT_SCHEMA_OLDEST, 2);
	ck_assert_str_eq(WEIGHT_OPERATION_COMPLETED, "completed");
	ck_assert_str_eq(WEIGHT_KEY_PREFIX, "weights");
}
END_TEST

/* A mount prefers HOT; all else of its defaults is as agreed. */
START_TEST(defaults_are_the_agreed_ones)
{
	const struct weight_policy policy = WEIGHT_POLICY_DEFAULT;
	struct config cfg;

	ck_assert_int_eq((int)policy.preferred, WEIGHT_MIXED);
	ck_assert(policy.mixed_hot_ratio == 0.5);
	ck_assert_int_eq((int)policy.mode, WEIGHT_AUTO);
	config_init(&cfg);
	ck_assert(cfg.policy.mixed_hot_ratio == 0.5);
	ck_assert_int_eq((int)cfg.policy.mode, WEIGHT_AUTO);
	ck_assert(!cfg.management_oplog_confirmed);
	ck_assert(!cfg.lineage_oplog_confirmed);
	ck_assert_uint_eq(cfg.migration_cooldown_ms, 30000);
	ck_assert_uint_eq(cfg.migration_round_members, 64);
	ck_assert_uint_eq(cfg.migration_round_bytes, 1073741824);
	ck_assert(cfg.eviction_ratio == 0.05);
	ck_assert(cfg.eviction_high_watermark_ratio == 0.90);
	ck_assert_uint_eq(cfg.lease_ttl_ms, 86400000);
}
END_TEST

/* ---- Keys ---- */

/* The byte alone and what it becomes; all other bytes stand for themselves. */
static bool is_plain(unsigned c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
	       (c >= '0' && c <= '9') || (c && strchr("-_.~", (int)c));
}

START_TEST(a_key_has_upper_case_escapes_for_all_but_66_bytes)
{
	static const char digits[] = "0123456789ABCDEF";
	unsigned plain = 0;

	for (unsigned c = 1; c < 256; c++) {
		cleanup(buf_release) struct buf out = BUF_INIT;
		const char text[] = { (char)c, '\0' };
		const char escape[] = { '%', digits[c / 16], digits[c % 16],
					'\0' };

		ck_assert_int_eq(weight_segment_encode(text, &out), 0);
		ck_assert_str_eq(out.data, is_plain(c) ? text : escape);
		plain += is_plain(c);
	}
	ck_assert_uint_eq(plain, 66);
}
END_TEST

/* clang-format off */
static const struct {
	const char *in, *out;
} examples[] = {
	{ "/",         "%2F" },
	{ " ",         "%20" },
	{ ":",         "%3A" },
	{ "%",         "%25" },
	{ "\xc3\xa9",  "%C3%A9" },
};
/* clang-format on */

START_TEST(the_examples_of_escapes_are_the_golden_ones)
{
	cleanup(buf_release) struct buf out = BUF_INIT;

	ck_assert_int_eq(weight_segment_encode(examples[_i].in, &out), 0);
	ck_assert_str_eq(out.data, examples[_i].out);
}
END_TEST

/* MasterServiceWeightManagement.CommitsPercentEncodedIdentity */
START_TEST(each_part_of_a_key_is_one_segment)
{
	static const struct weight_identity id = {
		.lineage = { "default", "production + staging", "llama/70b",
			     "step:100" },
		.generation = 7,
	};
	cleanup(buf_release) struct buf key = BUF_INIT;

	ck_assert_int_eq(weight_manifest_key(&id, &key), 0);
	ck_assert_str_eq(key.data, "weights/production%20%2B%20staging/"
				   "llama%2F70b/step%3A100/7/manifest");
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("golden_contracts");
	TCase *tc = tcase_create("golden_contracts");

	tcase_add_loop_test(tc, a_number_on_the_wire_never_changes, 0,
			    (int)ARRAY_LEN(numbers));
	tcase_add_test(tc, other_numbers_mean_nothing);
	tcase_add_loop_test(tc, an_error_is_one_errno_and_back, 0,
			    (int)ARRAY_LEN(errnos));
	tcase_add_test(tc, limits_are_the_agreed_ones);
	tcase_add_test(tc, defaults_are_the_agreed_ones);
	tcase_add_test(tc, a_key_has_upper_case_escapes_for_all_but_66_bytes);
	tcase_add_loop_test(tc, the_examples_of_escapes_are_the_golden_ones, 0,
			    (int)ARRAY_LEN(examples));
	tcase_add_test(tc, each_part_of_a_key_is_one_segment);
	suite_add_tcase(s, tc);
	return s;
}
