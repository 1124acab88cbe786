/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/cleanup.h"
#include "core/util.h"
#include "fault.h"
#include "fs/attr_value.h"
#include "suite.h"

/* clang-format off */
static const struct {
	const char *value;
	size_t len; /* 0: refused */
	uint64_t expected;
} fenced[] = {
	{ "cold", 4, 0 },
	{ "cold,if=7", 4, 7 },
	{ "c,if=18446744073709551615", 1, UINT64_MAX },
	{ "cold,", 0 },
	{ "cold,if=", 0 },
	{ "cold,if=0", 0 },
	{ "cold,if=07", 0 },
	{ "cold,if=7,", 0 },
	{ "cold,if=7,if=7", 0 },
	{ "cold, if=7", 0 },
	{ "cold,IF=7", 0 },
	{ "cold,if=18446744073709551616", 0 },
};

static const struct {
	const char *value;
	bool set_preferred, set_ratio, set_mode;
	struct weight_policy policy;
	uint64_t expected;
} policies[] = {
	{ "preferred=hot", true, false, false, { .preferred = WEIGHT_HOT }, 0 },
	{ "preferred=mixed,if=3", true, false, false,
	  { .preferred = WEIGHT_MIXED }, 3 },
	{ "ratio=0.25", false, true, false, { .mixed_hot_ratio = 0.25 }, 0 },
	{ "mode=pinned", false, false, true, { .mode = WEIGHT_PINNED }, 0 },
	{ "if=9,mode=auto,preferred=cold,ratio=0.000000000000001",
	  true, true, true, { WEIGHT_COLD, 1e-15, WEIGHT_AUTO }, 9 },
	{ "ratio=0.99999999999999900000,mode=manual", false, true, true,
	  { .mixed_hot_ratio = 0.999999999999999, .mode = WEIGHT_MANUAL }, 0 },
};

static const struct {
	const char *value;
	const char *why;
} bad_policies[] = {
	{ "", "beside preferred=, ratio=, mode= and if=" },
	{ ",", "beside" },
	{ "hot", "beside" },
	{ "preferred", "beside" },
	{ "preferred=hot,", "beside" },
	{ ",preferred=hot", "beside" },
	{ "preferred=hot,,mode=auto", "beside" },
	{ "preferred=hot, mode=auto", "beside" },
	{ "preferred =hot", "beside" },
	{ "Preferred=hot", "beside" },
	{ "preferred=hot,color=red", "beside" },
	{ "preferred=", "preferred= takes hot, cold or mixed" },
	{ "preferred=HOT", "preferred= takes" },
	{ "preferred=hot ", "preferred= takes" },
	{ "preferred=hot\n", "preferred= takes" },
	{ "preferred=hott", "preferred= takes" },
	{ "preferred=unknown", "preferred= takes" },
	{ "preferred=absent", "preferred= takes" },
	{ "ratio=", "ratio= takes a number between 0 and 1" },
	{ "ratio=0", "ratio= takes" },
	{ "ratio=1", "ratio= takes" },
	{ "ratio=1.0", "ratio= takes" },
	{ "ratio=0.00000000000000000001", "ratio= takes" },
	{ "ratio=0.000000000000000000001", "ratio= takes" },
	{ "ratio=-0.5", "ratio= takes" },
	{ "ratio=.5", "ratio= takes" },
	{ "ratio=5e-1", "ratio= takes" },
	{ "ratio=nan", "ratio= takes" },
	{ "ratio=0,5", "ratio= takes" },
	{ "mode=", "mode= takes pinned, manual or auto" },
	{ "mode=automatic", "mode= takes" },
	{ "mode=0", "mode= takes" },
	{ "mode=auto,if=0", "if= takes a metadata_generation" },
	{ "mode=auto,if=-1", "if= takes" },
	{ "if=3", "alone changes nothing" },
	{ "mode=auto,mode=auto", "mode= is there twice" },
	{ "if=1,mode=auto,if=1", "if= is there twice" },
	{ "preferred=hot,preferred=cold", "preferred= is there twice" },
	{ "ratio=0.5,ratio=0.5", "ratio= is there twice" },
};

static const struct {
	const char *value;
	uint64_t base;
	enum weight_upsert_mode mode;
	const char *request_id;
	uint64_t expected;
} replacements[] = {
	{ "7", 7, WEIGHT_PUT_FIRST, NULL, 0 },
	{ "18446744073709551615,mode=put_first", UINT64_MAX, WEIGHT_PUT_FIRST,
	  NULL, 0 },
	{ "7,mode=delete_first,request_id=a=b if=3,if=12", 7,
	  WEIGHT_DELETE_FIRST, "a=b if=3", 12 },
	{ "1,if=1,request_id=\xc3\xa9,mode=put_first", 1, WEIGHT_PUT_FIRST,
	  "\xc3\xa9", 1 },
};

static const struct {
	const char *value;
	const char *why;
} bad_replacements[] = {
	{ "", "the first piece is the generation" },
	{ "0", "the first piece" },
	{ "07", "the first piece" },
	{ " 7", "the first piece" },
	{ "7 ", "the first piece" },
	{ "-7", "the first piece" },
	{ "18446744073709551616", "the first piece" },
	{ "base=7", "the first piece" },
	{ "mode=put_first,7", "the first piece" },
	{ "7,", "beside mode=, request_id= and if=" },
	{ "7,8", "beside" },
	{ "7,mode=put_first,", "beside" },
	{ "7,request_id=a,b", "beside" },
	{ "7,preferred=hot", "beside" },
	{ "7,mode=", "mode= takes put_first or delete_first" },
	{ "7,mode=0", "mode= takes" },
	{ "7,mode=PUT_FIRST", "mode= takes" },
	{ "7,request_id=", "request_id= takes" },
	{ "7,request_id=\x01", "request_id= takes" },
	{ "7,request_id=\x7f", "request_id= takes" },
	{ "7,request_id=\xff", "request_id= takes" },
	{ "7,request_id=a,request_id=a", "request_id= is there twice" },
	{ "7,mode=put_first,mode=put_first", "mode= is there twice" },
	{ "7,if=", "if= takes" },
	{ "7,if=1,if=1", "if= is there twice" },
};
/* clang-format on */

START_TEST(a_fence_stands_behind_one_word)
{
	const char *value = fenced[_i].value;
	uint64_t expected = 77;
	size_t len = 77;
	int r = attr_value_fenced(value, &len, &expected);

	if (fenced[_i].len == 0) {
		ck_assert_msg(r == -EINVAL && len == 77 && expected == 77,
			      "'%s': %d", value, r);
		return;
	}
	ck_assert_msg(r == 0 && len == fenced[_i].len &&
			      expected == fenced[_i].expected,
		      "'%s': %d", value, r);
}
END_TEST

START_TEST(a_policy_has_some_of_its_keys_in_any_order)
{
	const struct weight_policy *want = &policies[_i].policy;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_policy_change change;
	uint64_t expected;

	ck_assert_int_eq(
		attr_value_policy(policies[_i].value, &change, &expected, &why),
		0);
	ck_assert_str_eq(why.data, "");
	ck_assert_uint_eq(expected, policies[_i].expected);
	ck_assert_int_eq(change.set_preferred, policies[_i].set_preferred);
	ck_assert_int_eq(change.set_mixed_hot_ratio, policies[_i].set_ratio);
	ck_assert_int_eq(change.set_mode, policies[_i].set_mode);
	ck_assert(weight_policy_equal(&change.policy, want));
}
END_TEST

START_TEST(a_bad_policy_is_told_what_is_wrong)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_policy_change change;
	uint64_t expected;

	ck_assert_int_eq(attr_value_policy(bad_policies[_i].value, &change,
					   &expected, &why),
			 -EINVAL);
	ck_assert_msg(strstr(why.data, bad_policies[_i].why),
		      "'%s': '%s' without '%s'", bad_policies[_i].value,
		      why.data, bad_policies[_i].why);
}
END_TEST

START_TEST(a_printed_policy_can_be_set_again)
{
	static const double ratios[] = {
		0.5, 0.1, 0.25, 1e-15, 1 - 1e-15, 0.003
	};
	struct weight_policy p = { .preferred = WEIGHT_HOT };

	for (size_t i = 0; i < ARRAY_LEN(ratios); i++) {
		cleanup(buf_release) struct buf text = BUF_INIT;
		cleanup(buf_release) struct buf why = BUF_INIT;
		struct weight_policy_change change;
		uint64_t expected;

		p.mixed_hot_ratio = ratios[i];
		p.preferred = i % 3 + WEIGHT_HOT;
		p.mode = i % 3 + WEIGHT_PINNED;
		ck_assert_int_eq(attr_value_policy_print(&p, &text), 0);
		ck_assert_int_eq(
			attr_value_policy(text.data, &change, &expected, &why),
			0);
		ck_assert(weight_policy_equal(&change.policy, &p));
	}
}
END_TEST

START_TEST(a_ratio_from_elsewhere_is_printed_as_one_that_can_be_set)
{
	static const double ratios[] = { 1e-300, 4e-16, 1 - 1e-16 };
	struct weight_policy p = WEIGHT_POLICY_DEFAULT;

	for (size_t i = 0; i < ARRAY_LEN(ratios); i++) {
		cleanup(buf_release) struct buf text = BUF_INIT;
		cleanup(buf_release) struct buf why = BUF_INIT;
		struct weight_policy_change change;
		uint64_t expected;

		p.mixed_hot_ratio = ratios[i];
		ck_assert_int_eq(attr_value_policy_print(&p, &text), 0);
		ck_assert_msg(attr_value_policy(text.data, &change, &expected,
						&why) == 0,
			      "'%s': %s", text.data, why.data);
	}
}
END_TEST

START_TEST(a_replacement_names_its_base_first)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct attr_replaces replaces;
	const struct weight_replacement *r = &replaces.replacement;

	ck_assert_int_eq(
		attr_value_replaces(replacements[_i].value, &replaces, &why),
		0);
	ck_assert_uint_eq(r->base, replacements[_i].base);
	ck_assert_int_eq(r->mode, replacements[_i].mode);
	ck_assert_uint_eq(r->expected_metadata_generation,
			  replacements[_i].expected);
	if (replacements[_i].request_id)
		ck_assert_str_eq(r->request_id, replacements[_i].request_id);
	else
		ck_assert_ptr_null(r->request_id);
}
END_TEST

START_TEST(a_bad_replacement_is_told_what_is_wrong)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct attr_replaces replaces;

	ck_assert_int_eq(attr_value_replaces(bad_replacements[_i].value,
					     &replaces, &why),
			 -EINVAL);
	ck_assert_msg(strstr(why.data, bad_replacements[_i].why),
		      "'%s': '%s' without '%s'", bad_replacements[_i].value,
		      why.data, bad_replacements[_i].why);
}
END_TEST

START_TEST(a_request_id_has_a_limit)
{
	static char value[WEIGHT_COMPONENT_MAX + 64];
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct attr_replaces replaces;
	char *id = value + strlen("7,request_id=");

	(void)strcpy(value, "7,request_id=");
	memset(id, 'x', WEIGHT_COMPONENT_MAX + 1);
	ck_assert_int_eq(attr_value_replaces(value, &replaces, &why), -EINVAL);
	id[WEIGHT_COMPONENT_MAX] = '\0';
	ck_assert_int_eq(attr_value_replaces(value, &replaces, &why), 0);
	ck_assert_str_eq(replaces.replacement.request_id, id);
}
END_TEST

static int print_and_drop(void)
{
	const struct weight_policy p = WEIGHT_POLICY_DEFAULT;
	cleanup(buf_release) struct buf text = BUF_INIT;
	int r = attr_value_policy_print(&p, &text);

	return r < 0 && text.len > 0 ? -EIO : r;
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(print_and_drop);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("attr_value");
	TCase *t = tcase_create("attr_value");

	suite_add_tcase(s, t);
	tcase_add_loop_test(t, a_fence_stands_behind_one_word, 0,
			    ARRAY_LEN(fenced));
	tcase_add_loop_test(t, a_policy_has_some_of_its_keys_in_any_order, 0,
			    ARRAY_LEN(policies));
	tcase_add_loop_test(t, a_bad_policy_is_told_what_is_wrong, 0,
			    ARRAY_LEN(bad_policies));
	tcase_add_test(t, a_printed_policy_can_be_set_again);
	tcase_add_test(
		t, a_ratio_from_elsewhere_is_printed_as_one_that_can_be_set);
	tcase_add_loop_test(t, a_replacement_names_its_base_first, 0,
			    ARRAY_LEN(replacements));
	tcase_add_loop_test(t, a_bad_replacement_is_told_what_is_wrong, 0,
			    ARRAY_LEN(bad_replacements));
	tcase_add_test(t, a_request_id_has_a_limit);
	tcase_add_test(t, every_allocation_may_fail);
	return s;
}
