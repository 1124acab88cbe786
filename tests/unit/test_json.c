/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "core/buf.h"
#include "core/json.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

static int parse(const char *text, struct json_doc **ret)
{
	return json_parse(text, strlen(text), ret, NULL);
}

START_TEST(every_kind_of_value_is_read)
{
	cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;
	const struct json_value *v;
	uint64_t n = 0;
	size_t len = 0;
	bool truth = false;

	ck_assert_int_eq(parse("\t{\"a\": [null, true, 18446744073709551615,"
			       " \"x\\u0000y\", -1.5e3],\r\n \"b\": {}} ",
			       &doc),
			 0);
	v = json_doc_root(doc);
	ck_assert_int_eq(json_kind(v), JSON_OBJECT);
	ck_assert_uint_eq(json_count(v), 2);
	ck_assert_ptr_null(json_key(v, &len));
	ck_assert_ptr_null(json_find(v, "c"));
	ck_assert_int_eq(json_kind(json_find(v, "b")), JSON_OBJECT);
	ck_assert_uint_eq(json_count(json_find(v, "b")), 0);
	ck_assert_ptr_null(json_next(json_find(v, "b")));

	v = json_find(v, "a");
	ck_assert_str_eq(json_key(v, &len), "a");
	ck_assert_uint_eq(len, 1);
	ck_assert_uint_eq(json_count(v), 5);
	ck_assert_int_eq(json_kind(json_first(v)), JSON_NULL);
	ck_assert_ptr_eq(json_at(v, 1), json_next(json_first(v)));
	ck_assert_int_eq(json_bool(json_at(v, 1), &truth), 0);
	ck_assert(truth);
	ck_assert_int_eq(json_bool(json_at(v, 0), &truth), -EBADMSG);
	ck_assert_int_eq(json_u64(json_at(v, 2), &n), 0);
	ck_assert_uint_eq(n, UINT64_MAX);
	ck_assert_ptr_null(json_string(json_at(v, 2), &len));
	ck_assert_mem_eq(json_string(json_at(v, 3), &len), "x\0y", 4);
	ck_assert_uint_eq(len, 3);
	ck_assert_int_eq(json_u64(json_at(v, 3), &n), -EBADMSG);
	ck_assert_str_eq(json_number(json_at(v, 4), NULL), "-1.5e3");
	ck_assert_ptr_null(json_at(v, 5));
	ck_assert_ptr_null(json_first(json_at(v, 3)));
	ck_assert_ptr_null(json_find(json_at(v, 3), "a"));
}
END_TEST

/* clang-format off */
static const struct {
	const char *text;
	size_t len; /* 0: a C string */
} refused[] = {
	{ "" }, { " " }, { "{" }, { "[1" }, { "\"a" }, { "{\"a\":1" },
	{ "[1,]" }, { "{\"a\":1,}" }, { "{,}" }, { "{1:2}" }, { "{\"a\" 1}" },
	{ "[1 2]" }, { "[1]]" }, { "{}{}" }, { "1 2" }, { "{} x" },
	{ "nul" }, { "True" }, { "'a'" }, { "NaN" }, { "[NaN]" },
	{ "Infinity" }, { "-Infinity" }, { "[1e999999x]" },
	{ "01" }, { "-01" }, { "+1" }, { ".5" }, { "1." }, { "1e" },
	{ "-" }, { "0x10" }, { "1_000" }, { "truefalse" },
	{ "[1] // no" }, { "/* no */ 1" }, { "# no\n1" },
	{ "\v1" }, { "\f1" }, { "[1,\f2]" }, { "\xc2\xa0" "1" },
	{ "\xef\xbb\xbf{}" }, { "1\0", 2 }, { "\"\0\"", 3 },
	{ "\"a\nb\"" }, { "\"\x1f\"" }, { "\x7f" },
	{ "\"\\x\"" }, { "\"\\u12\"" }, { "\"\\u12g4\"" }, { "\"\\" },
	{ "\"\\ud800\"" }, { "\"\\udc00\"" }, { "\"\\ud800\\u0041\"" },
	{ "\"\\ud800x\"" }, { "\"\\udbff\\udbff\"" }, { "\"\\ud800\\" },
	{ "\"\x80\"" }, { "\"\xc3\"" }, { "\"\xc0\x80\"" },
	{ "\"\xe0\x80\x80\"" }, { "\"\xed\xa0\x80\"" },
	{ "\"\xf0\x80\x80\x80\"" }, { "\"\xf4\x90\x80\x80\"" },
	{ "\"\xf8\x88\x80\x80\x80\"" }, { "\"\xff\"" },
	{ "{\"a\":1,\"a\":1}" }, { "{\"a\":1,\"\\u0061\":2}" },
	{ "[{\"x\":{\"b\":1,\"c\":2,\"b\":3}}]" },
	{ "{\"1\":0,\"2\":0,\"3\":0,\"4\":0,\"5\":0,\"6\":0,\"7\":0,\"8\":0,"
	  "\"9\":0,\"1\":0}" },
};
/* clang-format on */

START_TEST(what_is_not_strict_is_refused_with_a_reason)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct json_doc *untouched = NULL;
	const char *text = refused[_i].text;
	size_t len = refused[_i].len ? refused[_i].len : strlen(text);

	ck_assert_msg(json_parse(text, len, &untouched, &why) == -EBADMSG,
		      "accepted: %s", text);
	ck_assert_ptr_null(untouched);
	ck_assert_uint_gt(why.len, 0);
	ck_assert_ptr_null(strchr(why.data, '\n'));
}
END_TEST

START_TEST(a_reason_names_the_place_or_the_key)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct json_doc *none = NULL;

	ck_assert_int_eq(json_parse("[\"\xff\"]", 5, &none, &why), -EBADMSG);
	ck_assert_str_eq(why.data,
			 "not strict JSON at byte 2: not valid UTF-8");
	buf_release(&why);
	ck_assert_int_eq(json_parse("{\"\\n\":1,\"\\n\":1}", 15, &none, &why),
			 -EBADMSG);
	ck_assert_str_eq(why.data, "duplicate key \"\\n\" in a JSON object");
}
END_TEST

START_TEST(keys_that_differ_in_a_nul_byte_are_two_keys)
{
	cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;

	ck_assert_int_eq(parse("{\"a\":1,\"a\\u0000\":2,\"\":3}", &doc), 0);
	ck_assert_uint_eq(json_count(json_doc_root(doc)), 3);
	ck_assert_ptr_eq(json_find(json_doc_root(doc), "a"),
			 json_first(json_doc_root(doc)));
}
END_TEST

/* count times "[", then as many "]" */
static void nested(struct buf *b, size_t count, const char *open,
		   const char *close)
{
	for (size_t i = 0; i < count; i++)
		ck_assert_int_eq(buf_printf(b, "%s", open), 0);
	for (size_t i = 0; i < count; i++)
		ck_assert_int_eq(buf_printf(b, "%s", close), 0);
}

static int count_items(void *arg, const struct json_item *item, struct buf *why)
{
	size_t *count = arg;

	(void)item;
	(void)why;
	++*count;
	return 0;
}

START_TEST(depth_has_a_limit)
{
	cleanup(buf_release) struct buf text = BUF_INIT;
	cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;
	struct json_doc *none = NULL;
	size_t items = 0;

	nested(&text, JSON_DEPTH_MAX, "[", "]");
	ck_assert_int_eq(parse(text.data, &doc), 0);
	buf_release(&text);
	nested(&text, JSON_DEPTH_MAX + 1, "[", "]");
	ck_assert_int_eq(parse(text.data, &none), -EBADMSG);

	for (unsigned over = 0; over < 2; over++) {
		buf_release(&text);
		ck_assert_int_eq(buf_printf(&text, "{\"a\":"), 0);
		nested(&text, JSON_DEPTH_MAX - 1 + over, "[", "]");
		ck_assert_int_eq(buf_printf(&text, "}"), 0);
		for (unsigned flags = 0; flags < 2; flags++)
			ck_assert_int_eq(json_stream(text.data, text.len, flags,
						     count_items, &items, NULL),
					 over ? -EBADMSG : 0);
	}
}
END_TEST

START_TEST(a_number_has_a_limit)
{
	cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;
	struct json_doc *none = NULL;
	char text[JSON_NUMBER_MAX + 2];

	memset(text, '1', sizeof(text));
	text[JSON_NUMBER_MAX] = '\0';
	ck_assert_int_eq(parse(text, &doc), 0);
	ck_assert_str_eq(json_number(json_doc_root(doc), NULL), text);
	text[JSON_NUMBER_MAX] = '1';
	text[JSON_NUMBER_MAX + 1] = '\0';
	ck_assert_int_eq(parse(text, &none), -EBADMSG);
}
END_TEST

/* clang-format off */
static const struct {
	const char *text;
	bool ok;
	uint64_t value;
} numbers[] = {
	{ "0", true, 0 }, { "7", true, 7 },
	{ "18446744073709551615", true, UINT64_MAX },
	{ "18446744073709551616", false, 0 },
	{ "99999999999999999999999", false, 0 },
	{ "-0", false, 0 }, { "-1", false, 0 }, { "1.0", false, 0 },
	{ "1e3", false, 0 }, { "1E0", false, 0 },
	{ "true", false, 0 }, { "\"1\"", false, 0 }, { "null", false, 0 },
};
/* clang-format on */

START_TEST(only_plain_digits_are_a_u64)
{
	cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;
	uint64_t n = 42;

	ck_assert_int_eq(parse(numbers[_i].text, &doc), 0);
	ck_assert_int_eq(json_u64(json_doc_root(doc), &n),
			 numbers[_i].ok ? 0 : -EBADMSG);
	ck_assert_uint_eq(n, numbers[_i].ok ? numbers[_i].value : 42);
}
END_TEST

/* clang-format off */
static const struct {
	const char *in;
	size_t len;
	const char *ascii;
	const char *utf8;
} strings[] = {
	{ "",          0, "\"\"",                   "\"\"" },
	{ "a/b",       3, "\"a/b\"",                "\"a/b\"" },
	{ "\"\\",      2, "\"\\\"\\\\\"",           "\"\\\"\\\\\"" },
	{ "\n\r\t\b\f", 5, "\"\\n\\r\\t\\b\\f\"",   "\"\\n\\r\\t\\b\\f\"" },
	{ "\0\x1f",    2, "\"\\u0000\\u001f\"",     "\"\\u0000\\u001f\"" },
	{ "a\x7f",     2, "\"a\\u007f\"",           "\"a\x7f\"" },
	{ "\xc3\xa9",  2, "\"\\u00e9\"",            "\"\xc3\xa9\"" },
	{ "\xe4\xb8\xad!", 4, "\"\\u4e2d!\"",       "\"\xe4\xb8\xad!\"" },
	{ "\xf0\x9f\x98\x80", 4, "\"\\ud83d\\ude00\"",
	  "\"\xf0\x9f\x98\x80\"" },
	{ "\xf4\x8f\xbf\xbf", 4, "\"\\udbff\\udfff\"",
	  "\"\xf4\x8f\xbf\xbf\"" },
};
/* clang-format on */

START_TEST(strings_are_canonical_in_both_dialects_and_read_back)
{
	for (unsigned d = JSON_ASCII; d <= JSON_UTF8; d++) {
		cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;
		cleanup(buf_release) struct buf out = BUF_INIT;
		size_t len = 0;

		ck_assert_int_eq(json_write_string(&out, strings[_i].in,
						   strings[_i].len, d),
				 0);
		ck_assert_str_eq(out.data, d == JSON_ASCII ? strings[_i].ascii :
							     strings[_i].utf8);
		ck_assert_int_eq(parse(out.data, &doc), 0);
		ck_assert_mem_eq(json_string(json_doc_root(doc), &len),
				 strings[_i].in, strings[_i].len);
		ck_assert_uint_eq(len, strings[_i].len);
	}
}
END_TEST

START_TEST(writing_refuses_what_is_not_utf8)
{
	cleanup(buf_release) struct buf out = BUF_INIT;

	ck_assert_int_eq(json_write_string(&out, "a\xff", 2, JSON_UTF8),
			 -EINVAL);
	ck_assert_int_eq(json_write_string(&out, "\xed\xa0\x80", 3, JSON_ASCII),
			 -EINVAL);
}
END_TEST

START_TEST(a_number_is_written_in_digits)
{
	cleanup(buf_release) struct buf out = BUF_INIT;

	ck_assert_int_eq(json_write_u64(&out, 0), 0);
	ck_assert_int_eq(json_write_u64(&out, UINT64_MAX), 0);
	ck_assert_str_eq(out.data, "018446744073709551615");
}
END_TEST

START_TEST(a_shown_string_is_cut_between_characters)
{
	cleanup(buf_release) struct buf out = BUF_INIT;
	char text[JSON_SHOWN_MAX + 8];

	memset(text, 'a', sizeof(text));
	memcpy(text + JSON_SHOWN_MAX - 1, "\xc3\xa9", 2);
	json_show(&out, text, sizeof(text));
	ck_assert_uint_eq(out.len, JSON_SHOWN_MAX - 1 + 2 + 3);
	ck_assert_str_eq(out.data + out.len - 5, "a\"...");
}
END_TEST

/* Writes what it is given as one line. */
static int note(void *arg, const struct json_item *item, struct buf *why)
{
	struct buf *out = arg;
	size_t len;

	(void)why;
	ck_assert_uint_eq(strlen(item->key), item->key_len);
	if (item->element)
		return buf_printf(out, "%s[%zu]%s ", item->key, item->index,
				  item->value ? "" : " end");
	if (json_string(item->value, &len) &&
	    strcmp(json_string(item->value, &len), "stop") == 0)
		return -ECANCELED;
	return buf_printf(out, "%s:%d:%zu ", item->key, json_kind(item->value),
			  json_count(item->value));
}

/* clang-format off */
static const struct {
	const char *text;
	unsigned flags;
	const char *seen;
	int r;
} streams[] = {
	{ "{}", 0, "", 0 },
	{ "{\"a\":1,\"b\":[1,2],\"c\":{\"x\":[],\"y\":{}}}", 0,
	  "a:2:0 b:4:2 c:5:2 ", 0 },
	{ "{\"a\":1,\"b\":[[1],{\"a\":[2]},3],\"c\":[],\"d\":{\"e\":[1]}}",
	  JSON_STREAM_ELEMENTS,
	  "a:2:0 b[0] b[1] b[2] b[3] end c[0] end d:5:1 ", 0 },
	{ "[]", 0, "", -EBADMSG },
	{ "[{}]", JSON_STREAM_ELEMENTS, "", -EBADMSG },
	{ "1", 0, "", -EBADMSG },
	{ "null", JSON_STREAM_ELEMENTS, "", -EBADMSG },
	{ "{} {}", 0, "", -EBADMSG },
	{ "{\"a\":[1,", JSON_STREAM_ELEMENTS, "a[0] ", -EBADMSG },
	{ "{\"a\":1,\"a\":2}", 0, "a:2:0 ", -EBADMSG },
	{ "{\"a\":[],\"\\u0061\":[]}", JSON_STREAM_ELEMENTS, "a[0] end ",
	  -EBADMSG },
	{ "{\"a\":[{\"b\":1,\"b\":2}]}", JSON_STREAM_ELEMENTS, "", -EBADMSG },
	{ "{\"a\":{\"b\":1,\"b\":2}}", 0, "", -EBADMSG },
	{ "{\"a\":\"stop\",\"b\":1}", 0, "", -ECANCELED },
};
/* clang-format on */

START_TEST(a_stream_hands_over_one_item_at_a_time)
{
	cleanup(buf_release) struct buf seen = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	const char *text = streams[_i].text;

	ck_assert_int_eq(json_stream(text, strlen(text), streams[_i].flags,
				     note, &seen, &why),
			 streams[_i].r);
	ck_assert_str_eq(seen.data, streams[_i].seen);
	ck_assert_int_eq(why.len > 0, streams[_i].r == -EBADMSG);
}
END_TEST

START_TEST(a_stream_of_many_keys_finds_the_one_that_is_there_twice)
{
	cleanup(buf_release) struct buf text = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	size_t items = 0;

	for (unsigned i = 0; i < 5000; i++)
		ck_assert_int_eq(buf_printf(&text, "%c\"key %u\":%u",
					    i ? ',' : '{', i, i),
				 0);
	ck_assert_int_eq(buf_printf(&text, ",\"key 77\":0}"), 0);
	ck_assert_int_eq(
		json_stream(text.data, text.len, 0, count_items, &items, &why),
		-EBADMSG);
	ck_assert_uint_eq(items, 5000);
	ck_assert_str_eq(why.data, "duplicate key \"key 77\" in a JSON object");
}
END_TEST

START_TEST(an_object_is_written_member_by_member)
{
	cleanup(buf_release) struct buf out = BUF_INIT;
	struct json_object empty = JSON_OBJECT_INIT;
	struct json_object bad = JSON_OBJECT_INIT;
	struct json_object o = JSON_OBJECT_INIT;

	json_put_text(&o, "a", "\"\n\xc3\xa9");
	json_put_u64(&o, "b", UINT64_MAX);
	json_put_bool(&o, "c", false);
	json_put_ratio(&o, "d", 0.25);
	ck_assert_int_eq(json_object_end(&o, &out), 0);
	ck_assert_str_eq(out.data, "{\"a\":\"\\\"\\n\xc3\xa9\","
				   "\"b\":18446744073709551615,"
				   "\"c\":false,\"d\":0.25}\n");
	json_put_text(&bad, "a", "\xff");
	json_put_u64(&bad, "b", 1);
	out.len = 0;
	ck_assert_int_eq(json_object_end(&bad, &out), -EINVAL);
	ck_assert_uint_eq(out.len, 0);
	ck_assert_int_eq(json_object_end(&empty, &out), 0);
	ck_assert_str_eq(out.data, "{}\n");
}
END_TEST

static int parse_and_drop(void)
{
	cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;

	return parse("{\"1\":0,\"2\":0,\"3\":0,\"4\":0,\"5\":0,\"6\":0,"
		     "\"7\":0,\"8\":0,\"9\":[\"a\",{\"b\":true}]}",
		     &doc);
}

static int stream_and_drop(void)
{
	static const char text[] = "{\"a\":[1,\"two\"],\"b\":{\"c\":[null]}}";
	size_t items = 0;

	return json_stream(text, strlen(text), JSON_STREAM_ELEMENTS,
			   count_items, &items, NULL);
}

static int write_and_drop(void)
{
	cleanup(buf_release) struct buf out = BUF_INIT;

	return json_write_string(&out, "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n", 17,
				 JSON_ASCII);
}

static int put_and_drop(void)
{
	cleanup(buf_release) struct buf out = BUF_INIT;
	struct json_object o = JSON_OBJECT_INIT;

	json_put_text(&o, "key", "a text that is longer than a first piece");
	json_put_u64(&o, "number", 1);
	return json_object_end(&o, &out);
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(parse_and_drop);
	fault_sweep(stream_and_drop);
	fault_sweep(write_and_drop);
	fault_sweep(put_and_drop);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("json");
	TCase *t = tcase_create("json");

	suite_add_tcase(s, t);
	tcase_add_test(t, every_kind_of_value_is_read);
	tcase_add_loop_test(t, what_is_not_strict_is_refused_with_a_reason, 0,
			    ARRAY_LEN(refused));
	tcase_add_test(t, a_reason_names_the_place_or_the_key);
	tcase_add_test(t, keys_that_differ_in_a_nul_byte_are_two_keys);
	tcase_add_test(t, depth_has_a_limit);
	tcase_add_test(t, a_number_has_a_limit);
	tcase_add_loop_test(t, only_plain_digits_are_a_u64, 0,
			    ARRAY_LEN(numbers));
	tcase_add_loop_test(
		t, strings_are_canonical_in_both_dialects_and_read_back, 0,
		ARRAY_LEN(strings));
	tcase_add_test(t, writing_refuses_what_is_not_utf8);
	tcase_add_test(t, a_number_is_written_in_digits);
	tcase_add_test(t, an_object_is_written_member_by_member);
	tcase_add_test(t, a_shown_string_is_cut_between_characters);
	tcase_add_loop_test(t, a_stream_hands_over_one_item_at_a_time, 0,
			    ARRAY_LEN(streams));
	tcase_add_test(t,
		       a_stream_of_many_keys_finds_the_one_that_is_there_twice);
	tcase_add_test(t, every_allocation_may_fail);
	return s;
}
