/* SPDX-License-Identifier: Apache-2.0 */
/* An identity alone as bytes, as entries of the operation log hold it. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_record.h"
#include "fault.h"
#include "suite.h"

static const struct weight_identity identity = {
	{ "t", "n/x", "r r", "\xc3\xa9" }, UINT64_MAX
};
static const char layout[] = "\x01\0t\x03\0n/x\x03\0r r"
			     "\x02\0\xc3\xa9"
			     "\xff\xff\xff\xff\xff\xff\xff\xff";
#define LAYOUT_LEN (sizeof(layout) - 1)

/* Decodes a private copy, so that the sanitizer sees a read past its end. */
static int decode(const char *data, size_t len)
{
	cleanup(weight_identity_free_cleanup) struct weight_identity *id = NULL;
	auto_free char *copy = malloc(len ? len : 1);
	int r;

	ck_assert_ptr_nonnull(copy);
	memcpy(copy, data, len);
	r = weight_record_identity_decode(copy, len, &id);
	ck_assert_int_eq(r == 0, id != NULL);
	return r;
}

/* native_metadata_conversion_preserves_exact_identity */
START_TEST(an_identity_comes_back_as_it_was)
{
	cleanup(weight_identity_free_cleanup) struct weight_identity *id = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	ck_assert_int_eq(weight_record_identity_encode(&identity, &bytes), 0);
	ck_assert_uint_eq(bytes.len, LAYOUT_LEN);
	ck_assert_mem_eq(bytes.data, layout, bytes.len);
	ck_assert_int_eq(
		weight_record_identity_decode(bytes.data, bytes.len, &id), 0);
	ck_assert(weight_identity_equal(id, &identity));
}
END_TEST

START_TEST(an_invalid_identity_is_not_written)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct weight_identity id = identity;

	id.generation = 0;
	ck_assert_int_eq(weight_record_identity_encode(&id, &bytes), -EINVAL);
	ck_assert_uint_eq(bytes.len, 0);
}
END_TEST

START_TEST(an_identity_of_another_length_is_damaged)
{
	char longer[LAYOUT_LEN + 1] = { 0 };

	memcpy(longer, layout, LAYOUT_LEN);
	for (size_t len = 0; len <= sizeof(longer); len++)
		ck_assert_int_eq(decode(longer, len),
				 len == LAYOUT_LEN ? 0 : -EUCLEAN);
}
END_TEST

/* clang-format off */
static const struct {
	size_t at;
	char byte;
} damages[] = {
	{ 2, '_' },   /* a tenant that is none */
	{ 5, '\0' },  /* a NUL in the namespace */
	{ 0, '\xff' } /* a length beyond the end */
};
/* clang-format on */

START_TEST(a_damaged_identity_is_noticed)
{
	char bytes[LAYOUT_LEN];

	memcpy(bytes, layout, LAYOUT_LEN);
	bytes[damages[_i].at] = damages[_i].byte;
	ck_assert_int_eq(decode(bytes, LAYOUT_LEN), -EUCLEAN);
	memset(bytes + LAYOUT_LEN - 8, 0, 8);
	ck_assert_int_eq(decode(bytes, LAYOUT_LEN), -EUCLEAN);
}
END_TEST

static int write_and_read(void)
{
	cleanup(weight_identity_free_cleanup) struct weight_identity *id = NULL;
	cleanup(buf_release) struct buf b = BUF_INIT;
	int r = weight_record_identity_encode(&identity, &b);

	return r < 0 ? r : weight_record_identity_decode(b.data, b.len, &id);
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(write_and_read);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_record_identity");
	TCase *tc = tcase_create("core");

	tcase_add_test(tc, an_identity_comes_back_as_it_was);
	tcase_add_test(tc, an_invalid_identity_is_not_written);
	tcase_add_test(tc, an_identity_of_another_length_is_damaged);
	tcase_add_loop_test(tc, a_damaged_identity_is_noticed, 0,
			    (int)ARRAY_LEN(damages));
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
