/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "core/digest.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

#define ABC "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define NOTHING                                                                \
	"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static void assert_hex(const struct digest *d, const char *expected)
{
	char hex[DIGEST_HEX_LEN + 1];

	digest_to_hex(d, hex);
	ck_assert_str_eq(hex, expected);
}

START_TEST(known_inputs_have_known_digests)
{
	struct digest d;

	ck_assert_int_eq(digest_of("abc", 3, &d), 0);
	assert_hex(&d, ABC);
	ck_assert_int_eq(digest_of(NULL, 0, &d), 0);
	assert_hex(&d, NOTHING);
	ck_assert(digest_equal(&d, &digest_of_nothing));
	assert_hex(&digest_of_nothing, NOTHING);
}
END_TEST

START_TEST(hex_gives_the_digest_back)
{
	struct digest d, back;
	char hex[DIGEST_HEX_LEN + 1];

	for (size_t i = 0; i < DIGEST_LEN; i++)
		d.bytes[i] = (uint8_t)(i * 37 + 200);
	digest_to_hex(&d, hex);
	ck_assert_int_eq(digest_from_hex(hex, DIGEST_HEX_LEN, &back), 0);
	ck_assert(digest_equal(&d, &back));
	back.bytes[31] ^= 1;
	ck_assert(!digest_equal(&d, &back));
}
END_TEST

/* clang-format off */
static const struct {
	const char *why;
	const char *hex;
} rejected[] = {
	{ "empty",           "" },
	{ "one digit short", "a7816bf8f01cfea414140de5dae2223b00361a396177a9cb410"
			     "ff61f20015ad" },
	{ "one digit more",  ABC "0" },
	{ "upper case",      "BA7816bf8f01cfea414140de5dae2223b00361a396177a9cb41"
			     "0ff61f20015ad" },
	{ "not hex",         "ga7816bf8f01cfea414140de5dae2223b00361a396177a9cb41"
			     "0ff61f20015ad" },
	{ "a space",         "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb41"
			     "0ff61f20015 d" },
	{ "prefixed",        "sha256:ba7816bf8f01cfea414140de5dae2223b00361a39617"
			     "7a9cb410ff61f20015" },
};
/* clang-format on */

/*
 * WeightManagementContract.ValidatesSha256AndGeneration
 * manifest_digest_must_be_canonical_sha256
 */
START_TEST(bad_hex_is_rejected)
{
	struct digest d = digest_of_nothing;
	const char *hex = rejected[_i].hex;
	int r = digest_from_hex(hex, strlen(hex), &d);

	ck_assert_msg(r == -EINVAL, "%s: got %d", rejected[_i].why, r);
	ck_assert(digest_equal(&d, &digest_of_nothing));
}
END_TEST

START_TEST(a_stream_hashes_pieces_as_the_whole)
{
	cleanup(digest_stream_free_cleanup) struct digest_stream *s = NULL;
	struct digest d;

	ck_assert_int_eq(digest_stream_new(&s), 0);
	ck_assert_int_eq(digest_stream_add(s, "a", 1), 0);
	ck_assert_int_eq(digest_stream_add(s, NULL, 0), 0);
	ck_assert_int_eq(digest_stream_add(s, "bc", 2), 0);
	ck_assert_int_eq(digest_stream_finish(s, &d), 0);
	assert_hex(&d, ABC);
}
END_TEST

START_TEST(a_finished_stream_starts_anew)
{
	cleanup(digest_stream_free_cleanup) struct digest_stream *s = NULL;
	struct digest d;

	ck_assert_int_eq(digest_stream_new(&s), 0);
	ck_assert_int_eq(digest_stream_finish(s, &d), 0);
	assert_hex(&d, NOTHING);
	ck_assert_int_eq(digest_stream_add(s, "abc", 3), 0);
	ck_assert_int_eq(digest_stream_finish(s, &d), 0);
	assert_hex(&d, ABC);
}
END_TEST

START_TEST(a_root_is_the_digest_of_the_raw_digests)
{
	struct digest chunks[3], root, expected;
	uint8_t joined[3 * DIGEST_LEN];

	for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
		ck_assert_int_eq(digest_of(&i, sizeof(i), &chunks[i]), 0);
		memcpy(joined + i * DIGEST_LEN, chunks[i].bytes, DIGEST_LEN);
	}
	ck_assert_int_eq(digest_root(chunks, 3, &root), 0);
	ck_assert_int_eq(digest_of(joined, sizeof(joined), &expected), 0);
	ck_assert(digest_equal(&root, &expected));
	ck_assert_int_eq(digest_root(NULL, 0, &root), 0);
	ck_assert(digest_equal(&root, &digest_of_nothing));
}
END_TEST

START_TEST(length_values_hash_length_and_bytes)
{
	static const char *const strings[] = { "abc", "", "0123456789" };
	static const char plain[] = "3:abc\n0:\n10:0123456789\n";
	struct digest d, expected;

	ck_assert_int_eq(digest_lv_of(strings, ARRAY_LEN(strings), &d), 0);
	ck_assert_int_eq(digest_of(plain, sizeof(plain) - 1, &expected), 0);
	ck_assert(digest_equal(&d, &expected));
	ck_assert_int_eq(digest_lv_of(NULL, 0, &d), 0);
	ck_assert(digest_equal(&d, &digest_of_nothing));
}
END_TEST

START_TEST(length_values_tell_lists_apart)
{
	static const char *const one[] = { "ab", "c" };
	static const char *const other[] = { "a", "bc" };
	struct digest a, b;

	ck_assert_int_eq(digest_lv_of(one, 2, &a), 0);
	ck_assert_int_eq(digest_lv_of(other, 2, &b), 0);
	ck_assert(!digest_equal(&a, &b));
}
END_TEST

START_TEST(length_values_of_any_length_hash_alike)
{
	static char text[2000];

	memset(text, 'x', sizeof(text) - 1);
	for (size_t len = 0; len < sizeof(text); len++) {
		cleanup(digest_stream_free_cleanup) struct digest_stream *s =
			NULL;
		const char *end = text + sizeof(text) - 1;
		const char *const strings[] = { "a", end - len, "b" };
		struct digest d, expected;

		ck_assert_int_eq(digest_stream_new(&s), 0);
		for (size_t i = 0; i < ARRAY_LEN(strings); i++)
			ck_assert_int_eq(digest_lv_add(s, strings[i],
						       strlen(strings[i])),
					 0);
		ck_assert_int_eq(digest_stream_finish(s, &expected), 0);
		ck_assert_int_eq(digest_lv_of(strings, ARRAY_LEN(strings), &d),
				 0);
		ck_assert(digest_equal(&d, &expected));
	}
}
END_TEST

static void *hash_in_a_thread(void *arg)
{
	ck_assert_int_eq(digest_of("abc", 3, arg), 0);
	return NULL;
}

START_TEST(each_thread_hashes_by_itself)
{
	struct digest other, own;
	pthread_t thread;

	ck_assert_int_eq(
		pthread_create(&thread, NULL, hash_in_a_thread, &other), 0);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	ck_assert_int_eq(digest_of("abc", 3, &own), 0);
	ck_assert(digest_equal(&own, &other));
}
END_TEST

static int hash_a_list(void)
{
	static char text[2000];
	const char *const strings[] = { "a", text };
	struct digest d;

	memset(text, 'x', sizeof(text) - 1);
	return digest_lv_of(strings, ARRAY_LEN(strings), &d);
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(hash_a_list);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("digest");
	TCase *tc = tcase_create("core");

	tcase_add_test(tc, known_inputs_have_known_digests);
	tcase_add_test(tc, hex_gives_the_digest_back);
	tcase_add_loop_test(tc, bad_hex_is_rejected, 0,
			    (int)ARRAY_LEN(rejected));
	tcase_add_test(tc, a_stream_hashes_pieces_as_the_whole);
	tcase_add_test(tc, a_finished_stream_starts_anew);
	tcase_add_test(tc, a_root_is_the_digest_of_the_raw_digests);
	tcase_add_test(tc, length_values_hash_length_and_bytes);
	tcase_add_test(tc, length_values_tell_lists_apart);
	tcase_add_test(tc, length_values_of_any_length_hash_alike);
	tcase_add_test(tc, each_thread_hashes_by_itself);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
