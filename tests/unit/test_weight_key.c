/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_key.h"
#include "fault.h"
#include "suite.h"

#define TXID "00000000000000000000000000000001"
#define BASE "weights/default/demo/main/7"
#define GROUP "d959bc5c5b651824ad866863c325ebbf49a98a9482863ced2c1f7caac4039d73"
#define LINEAGE                                                                \
	"c97b27192bf3dde2e1f8a42aef6207faa7859503c8452a659c6205878f877ffb"

/* The example that the contracts compute their golden values from. */
static const struct weight_identity demo = {
	.lineage = { "default", "default", "demo", "main" },
	.generation = 7,
};

/* A literal with its length, which may hold NUL bytes. */
#define TEXT(s)                                                                \
	{                                                                      \
		(s), sizeof(s) - 1                                             \
	}

static void assert_hex(const struct digest *d, const char *expected)
{
	char hex[DIGEST_HEX_LEN + 1];

	digest_to_hex(d, hex);
	ck_assert_str_eq(hex, expected);
}

/* clang-format off */
static const struct {
	const char *segment;
	const char *encoded;
} segments[] = {
	{ "main",              "main" },
	{ "AZaz09-_.~",        "AZaz09-_.~" },
	{ "a/b",               "a%2Fb" },
	{ "a b",               "a%20b" },
	{ "a:b",               "a%3Ab" },
	{ "100%",              "100%25" },
	{ "\xc3\xa9",          "%C3%A9" },
	{ "\xf0\x9f\x98\x80",  "%F0%9F%98%80" },
	{ "..",                ".." },
	{ "!*'();@&=+$,?#[]",  "%21%2A%27%28%29%3B%40%26%3D%2B%24%2C%3F%23%5B%5D" },
};

static const char *const bad_segments[] = {
	"%", "%2", "a%2", "%2f", "%41", "%GG", "a/b", "a b", "\xc3\xa9", "%c3",
	"% 2", "%%",
};
/* clang-format on */

START_TEST(a_segment_keeps_only_safe_bytes_and_comes_back)
{
	cleanup(buf_release) struct buf out = BUF_INIT;
	cleanup(buf_release) struct buf back = BUF_INIT;

	ck_assert_int_eq(weight_segment_encode(segments[_i].segment, &out), 0);
	ck_assert_str_eq(out.data, segments[_i].encoded);
	ck_assert_int_eq(weight_segment_decode(out.data, out.len, &back), 0);
	ck_assert_str_eq(back.data, segments[_i].segment);
}
END_TEST

START_TEST(a_segment_has_one_encoded_form)
{
	cleanup(buf_release) struct buf out = BUF_INIT;
	const char *bad = bad_segments[_i];

	ck_assert_int_eq(weight_segment_decode(bad, strlen(bad), &out),
			 -EINVAL);
	ck_assert_uint_eq(out.len, 0);
}
END_TEST

START_TEST(keys_of_the_example_are_the_golden_ones)
{
	cleanup(buf_release) struct buf base = BUF_INIT;
	cleanup(buf_release) struct buf key = BUF_INIT;
	cleanup(buf_release) struct buf payload = BUF_INIT;

	ck_assert_int_eq(weight_base(&demo, &base), 0);
	ck_assert_str_eq(base.data, BASE);
	ck_assert_int_eq(weight_manifest_key(&demo, &key), 0);
	ck_assert_str_eq(key.data, BASE "/manifest");
	ck_assert_int_eq(weight_payload_key(&demo, TXID,
					    "09bf561dd285601ea35dace2",
					    &payload),
			 0);
	ck_assert_str_eq(payload.data,
			 BASE "/payload/" TXID "/09bf561dd285601ea35dace2");
}
END_TEST

static void check_manifest_key(const struct weight_identity *id)
{
	cleanup(buf_release) struct buf key = BUF_INIT;

	ck_assert_int_eq(weight_manifest_key(id, &key), 0);
	ck_assert(weight_manifest_key_is(id, key.data));
	/* No beginning of it is it, nor anything longer or with another byte. */
	for (size_t len = 0; len < key.len; len++) {
		char byte = key.data[len];

		key.data[len] = '\0';
		ck_assert(!weight_manifest_key_is(id, key.data));
		key.data[len] = byte == 'x' ? 'y' : 'x';
		ck_assert(!weight_manifest_key_is(id, key.data));
		key.data[len] = byte;
	}
	ck_assert_int_eq(buf_append(&key, "x", 1), 0);
	ck_assert(!weight_manifest_key_is(id, key.data));
}

START_TEST(a_manifest_key_is_known_without_making_it)
{
	struct weight_identity id = demo;

	check_manifest_key(&id);
	id.generation = UINT64_MAX;
	id.lineage.name_space = "a/b c%2F";
	id.lineage.resource = "\xc3\xa4.~_-";
	check_manifest_key(&id);
}
END_TEST

START_TEST(the_longest_identity_fits_the_longest_key)
{
	cleanup(buf_release) struct buf key = BUF_INIT;
	char longest[WEIGHT_COMPONENT_MAX + 1];
	struct weight_identity id = {
		.lineage = { "t", longest, longest, longest },
		.generation = UINT64_MAX,
	};

	memset(longest, '/', WEIGHT_COMPONENT_MAX);
	longest[WEIGHT_COMPONENT_MAX] = '\0';
	ck_assert_int_eq(weight_manifest_key(&id, &key), 0);
	ck_assert_uint_eq(key.len, WEIGHT_MANIFEST_KEY_MAX);
	ck_assert_int_eq(weight_base(&id, &key), 0);
	ck_assert_uint_eq(key.len, WEIGHT_MANIFEST_KEY_MAX + WEIGHT_BASE_MAX);
}
END_TEST

START_TEST(ids_of_the_example_are_the_golden_ones)
{
	char group[WEIGHT_GROUP_ID_LEN + 1];
	char metadata_log[WEIGHT_METADATA_LOG_KEY_LEN + 1];
	char lineage_log[WEIGHT_LINEAGE_LOG_KEY_LEN + 1];
	char lease_log[WEIGHT_LEASE_LOG_KEY_LEN_MAX + 1];
	char hex[DIGEST_HEX_LEN + 1];
	struct digest d;

	ck_assert_int_eq(weight_group_id(&demo, group), 0);
	ck_assert_str_eq(group, "weight:" GROUP);
	ck_assert_int_eq(weight_group_hex(&demo, hex), 0);
	ck_assert_str_eq(hex, GROUP);
	ck_assert_int_eq(weight_metadata_log_key(&demo, metadata_log), 0);
	ck_assert_str_eq(metadata_log, "weight-revision:" GROUP);
	ck_assert_int_eq(weight_lineage_hash(&demo.lineage, &d), 0);
	assert_hex(&d, LINEAGE);
	ck_assert_int_eq(weight_lineage_log_key(&demo.lineage, lineage_log), 0);
	ck_assert_str_eq(lineage_log, "weight-lineage:" LINEAGE);
	ck_assert_int_eq(weight_lease_log_key(UINT64_MAX, lease_log), 0);
	ck_assert_str_eq(lease_log, "weight-lease:18446744073709551615");
	ck_assert_int_eq(weight_lease_log_key(0, lease_log), -EINVAL);
}
END_TEST

START_TEST(a_transaction_id_is_random_lower_case_hex)
{
	char a[WEIGHT_TRANSACTION_ID_LEN + 1];
	char b[WEIGHT_TRANSACTION_ID_LEN + 1];

	ck_assert_int_eq(weight_transaction_id(a), 0);
	ck_assert_int_eq(weight_transaction_id(b), 0);
	ck_assert_uint_eq(strspn(a, "0123456789abcdef"),
			  WEIGHT_TRANSACTION_ID_LEN);
	ck_assert_uint_eq(strlen(a), WEIGHT_TRANSACTION_ID_LEN);
	ck_assert_str_ne(a, b);
}
END_TEST

/* clang-format off */
static const struct {
	const char *tensor_id;
	uint64_t offset[2];
	uint64_t shape[2];
	unsigned rank;
	const char *id;
} fragments[] = {
	{ "layers.0.w", { 0, 0 }, { 2, 4 }, 2, "09bf561dd285601ea35dace2" },
	{ "layers.0.w", { 2, 0 }, { 2, 4 }, 2, "ad739dc3df5ebc17dd1954c5" },
	{ "norm",       { 0 },    { 4 },    1, "1b98455b86b61477f168b245" },
	/* SHA-256 of "s|()|()" and of "|(0,)|(0,)" */
	{ "s",          { 0 },    { 0 },    0, "37ca53d51323127a3eebe4b8" },
	{ "",           { 0 },    { 0 },    1, "dc78d3968844666362423b28" },
};
/* clang-format on */

START_TEST(fragment_ids_are_the_golden_ones)
{
	char id[WEIGHT_FRAGMENT_ID_LEN + 1];

	ck_assert_int_eq(weight_fragment_id(fragments[_i].tensor_id,
					    strlen(fragments[_i].tensor_id),
					    fragments[_i].offset,
					    fragments[_i].shape,
					    fragments[_i].rank, id),
			 0);
	ck_assert_str_eq(id, fragments[_i].id);
}
END_TEST

START_TEST(payload_keys_are_hashed_sorted_and_once)
{
	const char *keys[] = {
		BASE "/payload/" TXID "/ad739dc3df5ebc17dd1954c5",
		BASE "/payload/" TXID "/1b98455b86b61477f168b245",
		BASE "/payload/" TXID "/ad739dc3df5ebc17dd1954c5",
		BASE "/payload/" TXID "/09bf561dd285601ea35dace2",
	};
	uint64_t distinct = 0;
	struct digest d;

	ck_assert_int_eq(weight_payload_keys_digest(keys, ARRAY_LEN(keys), &d,
						    &distinct),
			 0);
	assert_hex(&d, "0496999d5452c83b317d0ec443dff2b6"
		       "34f036dcd94fa8b8f4120a786b601806");
	ck_assert_uint_eq(distinct, 3);
	ck_assert_int_eq(weight_payload_keys_digest(NULL, 0, &d, NULL), 0);
	ck_assert(digest_equal(&d, &digest_of_nothing));
}
END_TEST

static const struct weight_text norm[] = { TEXT("norm") };
static const struct weight_text layer[] = { TEXT("layers.0.w") };
static const struct weight_text pair[] = { TEXT("layers.0.w"), TEXT("norm") };

START_TEST(units_are_hashed_sorted_and_once)
{
	struct weight_affinity_unit units[] = {
		{ norm, 1 },
		{ layer, 1 },
		{ norm, 1 },
	};
	uint64_t distinct = 0;
	struct digest d;

	ck_assert_int_eq(
		weight_affinity_digest(units, ARRAY_LEN(units), &d, &distinct),
		0);
	assert_hex(&d, "c83c6598e3e5c6d40090e7975ce00439"
		       "cda9e3836cfddae72b8d600f4dd336bf");
	ck_assert_uint_eq(distinct, 2);
	ck_assert_int_eq(weight_affinity_digest(NULL, 0, &d, &distinct), 0);
	ck_assert(digest_equal(&d, &digest_of_nothing));
	ck_assert_uint_eq(distinct, 0);
}
END_TEST

/* ("layers.0.w",) < ("layers.0.w", "norm") < ("norm",), as tuples sort. */
START_TEST(units_sort_member_by_member)
{
	static const char plain[] = "10:layers.0.w\n"
				    "15:layers.0.w\0norm\n"
				    "4:norm\n";
	struct weight_affinity_unit units[] = {
		{ norm, 1 },
		{ pair, 2 },
		{ layer, 1 },
	};
	struct digest d, expected;

	ck_assert_int_eq(digest_of(plain, sizeof(plain) - 1, &expected), 0);
	ck_assert_int_eq(
		weight_affinity_digest(units, ARRAY_LEN(units), &d, NULL), 0);
	ck_assert(digest_equal(&d, &expected));
}
END_TEST

START_TEST(texts_order_by_unsigned_bytes_then_length)
{
	static const struct weight_text sorted[] = {
		TEXT(""),     TEXT("\0"), TEXT("a"),    TEXT("a\0"),
		TEXT("a\0b"), TEXT("ab"), TEXT("\x7f"), TEXT("\xc3\xa9"),
	};

	for (size_t i = 0; i < ARRAY_LEN(sorted); i++)
		for (size_t j = 0; j < ARRAY_LEN(sorted); j++) {
			int order = weight_text_compare(&sorted[i], &sorted[j]);

			ck_assert_int_eq((order > 0) - (order < 0),
					 (i > j) - (i < j));
		}
}
END_TEST

START_TEST(affinity_ids_of_the_example_are_the_golden_ones)
{
	const struct weight_affinity_unit alone = { norm, 1 };
	const struct weight_affinity_unit other = { layer, 1 };
	const struct weight_affinity_unit both = { pair, 2 };
	struct digest d, expected;

	ck_assert_int_eq(weight_residency_affinity_id(&other, &d), 0);
	assert_hex(&d, "a737963adb3032eebc832221c1000f59"
		       "76befc3259737e3ffdf2c24fd3117851");
	ck_assert_int_eq(weight_residency_affinity_id(&alone, &d), 0);
	assert_hex(&d, "733859c1fc6b9331793b2952dde66f89"
		       "cdd4d513d04d59d7b07bd3912098e79b");
	ck_assert_int_eq(weight_residency_affinity_id(&both, &d), 0);
	ck_assert_int_eq(digest_of("layers.0.w\0norm", 15, &expected), 0);
	ck_assert(digest_equal(&d, &expected));
}
END_TEST

/* upsert_derives_stable_request_id_from_immutable_arguments */
START_TEST(the_request_id_of_the_example_is_the_golden_one)
{
	struct weight_identity target = demo;
	char id[DIGEST_HEX_LEN + 1];
	char other[DIGEST_HEX_LEN + 1];

	target.generation = 8;
	ck_assert_int_eq(
		weight_request_id(&demo, &target, WEIGHT_PUT_FIRST, 2, id), 0);
	ck_assert_str_eq(id, "7719a95b8fe8c9a20bbc7a2ad8f1cdae"
			     "3076415249b0197873bb1ff6cbb547df");
	ck_assert_int_eq(weight_request_id(&demo, &target, WEIGHT_DELETE_FIRST,
					   2, other),
			 0);
	ck_assert_str_ne(id, other);
}
END_TEST

/* Contracts 3.6, of the placement of 1.5. */
START_TEST(the_transaction_id_of_a_replacement_is_the_golden_one)
{
	static const char source_hex[] = "5c50686b02a5e62fea69ede5974530b4447e"
					 "742cffe6cb95bce80529c86886f1";
	struct weight_identity target = demo;
	char id[DIGEST_HEX_LEN + 1];
	struct digest source;

	target.generation = 8;
	ck_assert_int_eq(digest_from_hex(source_hex, DIGEST_HEX_LEN, &source),
			 0);
	ck_assert_int_eq(
		weight_upsert_transaction_id(&target, "req-1", &source, id), 0);
	ck_assert_str_eq(id, "6d1faf9d795ad66690174fbfd405e9cdcd640e51a91b3313"
			     "cef8a0cf5ae6403b");
}
END_TEST

/* clang-format off */
static const struct {
	const char *component;
	const char *name;
} paths[] = {
	{ "main",        "main" },
	{ "a/b",         "a%2Fb" },
	{ "/",           "%2F" },
	{ "100%",        "100%25" },
	{ "%2F",         "%252F" },
	{ ".",           "%2E" },
	{ "..",          "%2E." },
	{ ".weights",    "%2Eweights" },
	{ ".staging",    "%2Estaging" },
	{ "a.b",         "a.b" },
	{ "/.x",         "%2F.x" },
	{ "two words",   "two words" },
	{ "\xc3\xa9:*?", "\xc3\xa9:*?" },
	{ "7",           "7" },
};

static const char *const bad_names[] = {
	"", ".", "..", ".weights", "a/b", "/", "%", "%2", "%2f", "%2e", "a%2E",
	"%41", "%00", "%0A", "a\nb", "\x7f", "\xff", "%C3%A9", "%GG", "a%",
	"%2Fa%2Ex",
};
/* clang-format on */

START_TEST(a_part_of_an_identity_is_a_file_name_and_back)
{
	cleanup(buf_release) struct buf name = BUF_INIT;
	cleanup(buf_release) struct buf back = BUF_INIT;

	ck_assert_int_eq(weight_path_encode(paths[_i].component, &name), 0);
	ck_assert_str_eq(name.data, paths[_i].name);
	ck_assert_int_eq(weight_path_decode(name.data, name.len, &back), 0);
	ck_assert_str_eq(back.data, paths[_i].component);
}
END_TEST

START_TEST(a_part_of_an_identity_has_one_file_name)
{
	cleanup(buf_release) struct buf out = BUF_INIT;
	const char *bad = bad_names[_i];
	int r = weight_path_decode(bad, strlen(bad), &out);

	ck_assert_msg(r == -EINVAL, "\"%s\": got %d", bad, r);
	ck_assert_uint_eq(out.len, 0);
}
END_TEST

/* Every name of up to two bytes either is refused or is the only one. */
START_TEST(short_names_decode_one_to_one)
{
	cleanup(buf_release) struct buf out = BUF_INIT;
	cleanup(buf_release) struct buf name = BUF_INIT;

	for (unsigned v = 0; v < 0x10000; v++) {
		char text[2] = { (char)(v >> 8), (char)v };
		size_t skip = text[0] ? 0 : 1;

		out.len = name.len = 0;
		if (weight_path_decode(text + skip, 2 - skip, &out) < 0)
			continue;
		ck_assert_int_eq(weight_path_encode(out.data, &name), 0);
		ck_assert_uint_eq(name.len, 2 - skip);
		ck_assert_mem_eq(name.data, text + skip, name.len);
	}
}
END_TEST

START_TEST(a_name_of_255_bytes_is_the_longest)
{
	cleanup(buf_release) struct buf out = BUF_INIT;
	char component[258];

	memset(component, 'a', sizeof(component));
	component[255] = '\0';
	ck_assert_int_eq(weight_path_encode(component, &out), 0);
	ck_assert_uint_eq(out.len, WEIGHT_PATH_NAME_MAX);
	ck_assert_int_eq(weight_path_decode(component, 255, &out), 0);
	component[0] = '/';
	ck_assert_int_eq(weight_path_encode(component, &out), -ENAMETOOLONG);
	component[253] = '\0';
	ck_assert_int_eq(weight_path_encode(component, &out), 0);
	memset(component, 'a', sizeof(component));
	ck_assert_int_eq(weight_path_decode(component, 256, &out),
			 -ENAMETOOLONG);
	ck_assert_int_eq(weight_path_decode("a\0b", 3, &out), -EINVAL);
	ck_assert_int_eq(weight_path_encode("a\nb", &out), -EINVAL);
	ck_assert_int_eq(weight_path_encode("", &out), -EINVAL);
}
END_TEST

/* clang-format off */
static const struct {
	struct weight_text id;
	const char *name;
} tensors[] = {
	{ TEXT("model.layers.0.weight"), "model.layers.0.weight" },
	{ TEXT(""),                      "%" },
	{ TEXT("%"),                     "%25" },
	{ TEXT("."),                     "%2E" },
	{ TEXT(".."),                    "%2E." },
	{ TEXT(".weights"),              "%2Eweights" },
	{ TEXT("a/b"),                   "a%2Fb" },
	{ TEXT("/a"),                    "%2Fa" },
	{ TEXT("a\0b"),                  "a%00b" },
	{ TEXT("a\nb\x7f"),              "a%0Ab%7F" },
	{ TEXT("\xc3\xa9 \xff"),         "\xc3\xa9 \xff" },
	{ TEXT("%~x"),                   "%25~x" },
};
/* clang-format on */

START_TEST(a_tensor_id_of_any_bytes_is_a_file_name)
{
	char name[WEIGHT_PATH_NAME_MAX + 1];

	ck_assert_int_eq(weight_tensor_name(tensors[_i].id.bytes,
					    tensors[_i].id.len, name),
			 0);
	ck_assert_str_eq(name, tensors[_i].name);
}
END_TEST

/* The name must be bytes of id, "%~" and the digest's first half. */
static void assert_short(const char *id, size_t len, const char *name,
			 size_t prefix)
{
	char hex[DIGEST_HEX_LEN + 1];
	struct digest d;

	ck_assert_int_eq(digest_of(id, len, &d), 0);
	digest_to_hex(&d, hex);
	hex[32] = '\0';
	ck_assert_uint_eq(strlen(name), prefix + 34);
	ck_assert_mem_eq(name + prefix, "%~", 2);
	ck_assert_str_eq(name + prefix + 2, hex);
}

START_TEST(a_long_tensor_id_has_a_short_name)
{
	char name[WEIGHT_PATH_NAME_MAX + 1];
	char id[4096];

	memset(id, 'x', sizeof(id));
	ck_assert_int_eq(weight_tensor_name(id, 255, name), 0);
	ck_assert_mem_eq(name, id, 255);
	ck_assert_int_eq(weight_tensor_name(id, 256, name), 0);
	ck_assert_mem_eq(name, id, 221);
	assert_short(id, 256, name, 221);
	ck_assert_int_eq(weight_tensor_name(id, sizeof(id), name), 0);
	assert_short(id, sizeof(id), name, 221);
}
END_TEST

START_TEST(a_short_name_is_cut_between_characters)
{
	char name[WEIGHT_PATH_NAME_MAX + 1];
	char id[300];

	/* 220 bytes, then escapes of 3: 220 + 3 is beyond the cut. */
	memset(id, 'x', sizeof(id));
	memset(id + 220, '/', 80);
	ck_assert_int_eq(weight_tensor_name(id, sizeof(id), name), 0);
	assert_short(id, sizeof(id), name, 220);
	/* A character of two bytes that lies across the cut. */
	memset(id, 'x', sizeof(id));
	memcpy(id + 220, "\xc3\xa9", 2);
	ck_assert_int_eq(weight_tensor_name(id, sizeof(id), name), 0);
	assert_short(id, sizeof(id), name, 220);
	/* Bytes that are no text at all have no place to cut but the start. */
	memset(id, 0x80, sizeof(id));
	ck_assert_int_eq(weight_tensor_name(id, sizeof(id), name), 0);
	assert_short(id, sizeof(id), name, 0);
}
END_TEST

static int derive_everything(void)
{
	cleanup(buf_release) struct buf out = BUF_INIT;
	struct weight_affinity_unit units[] = { { norm, 1 }, { pair, 2 } };
	const char *keys[] = { "b", "a" };
	const uint64_t numbers[] = { 1, 2 };
	char id[DIGEST_HEX_LEN + 1];
	struct digest d;
	int r;

	if ((r = weight_manifest_key(&demo, &out)) < 0 ||
	    (r = weight_payload_key(&demo, TXID, "f", &out)) < 0 ||
	    (r = weight_segment_decode("a%2F", 4, &out)) < 0 ||
	    (r = weight_path_encode("a/b", &out)) < 0 ||
	    (r = weight_path_decode("a%2F", 4, &out)) < 0 ||
	    (r = weight_group_hex(&demo, id)) < 0 ||
	    (r = weight_upsert_transaction_id(&demo, "r", &digest_of_nothing,
					      id)) < 0 ||
	    (r = weight_fragment_id("t", 1, numbers, numbers, 2, id)) < 0 ||
	    (r = weight_payload_keys_digest(keys, 2, &d, NULL)) < 0 ||
	    (r = weight_affinity_digest(units, 2, &d, NULL)) < 0 ||
	    (r = weight_residency_affinity_id(&units[0], &d)) < 0)
		return r;
	return weight_request_id(&demo, &demo, WEIGHT_PUT_FIRST, 1, id);
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(derive_everything);
}
END_TEST

static void add_store_tests(TCase *tc)
{
	tcase_add_loop_test(tc, a_segment_keeps_only_safe_bytes_and_comes_back,
			    0, (int)ARRAY_LEN(segments));
	tcase_add_loop_test(tc, a_segment_has_one_encoded_form, 0,
			    (int)ARRAY_LEN(bad_segments));
	tcase_add_test(tc, keys_of_the_example_are_the_golden_ones);
	tcase_add_test(tc, a_manifest_key_is_known_without_making_it);
	tcase_add_test(tc, the_longest_identity_fits_the_longest_key);
	tcase_add_test(tc, ids_of_the_example_are_the_golden_ones);
	tcase_add_test(tc, a_transaction_id_is_random_lower_case_hex);
	tcase_add_loop_test(tc, fragment_ids_are_the_golden_ones, 0,
			    (int)ARRAY_LEN(fragments));
	tcase_add_test(tc, payload_keys_are_hashed_sorted_and_once);
	tcase_add_test(tc, units_are_hashed_sorted_and_once);
	tcase_add_test(tc, units_sort_member_by_member);
	tcase_add_test(tc, texts_order_by_unsigned_bytes_then_length);
	tcase_add_test(tc, affinity_ids_of_the_example_are_the_golden_ones);
	tcase_add_test(tc, the_request_id_of_the_example_is_the_golden_one);
	tcase_add_test(tc,
		       the_transaction_id_of_a_replacement_is_the_golden_one);
}

static void add_tree_tests(TCase *tc)
{
	tcase_add_loop_test(tc, a_part_of_an_identity_is_a_file_name_and_back,
			    0, (int)ARRAY_LEN(paths));
	tcase_add_loop_test(tc, a_part_of_an_identity_has_one_file_name, 0,
			    (int)ARRAY_LEN(bad_names));
	tcase_add_test(tc, short_names_decode_one_to_one);
	tcase_add_test(tc, a_name_of_255_bytes_is_the_longest);
	tcase_add_loop_test(tc, a_tensor_id_of_any_bytes_is_a_file_name, 0,
			    (int)ARRAY_LEN(tensors));
	tcase_add_test(tc, a_long_tensor_id_has_a_short_name);
	tcase_add_test(tc, a_short_name_is_cut_between_characters);
}

Suite *suite(void)
{
	Suite *s = suite_create("weight_key");
	TCase *tc = tcase_create("core");

	add_store_tests(tc);
	add_tree_tests(tc);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
