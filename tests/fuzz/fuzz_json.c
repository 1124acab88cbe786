/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes. If they are JSON, writing the value and parsing that gives the
 * same text again, in both dialects; and a stream accepts exactly the objects.
 */
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/json.h"
#include "fuzz.h"

#define REQUIRE(cond)                                                          \
	do {                                                                   \
		if (!(cond))                                                   \
			abort();                                               \
	} while (0)

static void put(struct buf *out, const char *bytes, size_t len)
{
	REQUIRE(buf_append(out, bytes, len) == 0);
}

static void put_string(struct buf *out, const char *s, size_t len,
		       enum json_dialect dialect)
{
	REQUIRE(s && s[len] == '\0');
	REQUIRE(json_write_string(out, s, len, dialect) == 0);
}

static void put_scalar(struct buf *out, const struct json_value *v,
		       enum json_dialect dialect)
{
	const char *text;
	size_t len = 0;
	bool truth = false;

	switch (json_kind(v)) {
	case JSON_NULL:
		put(out, "null", 4);
		break;
	case JSON_BOOL:
		REQUIRE(json_bool(v, &truth) == 0);
		put(out, truth ? "true" : "false", truth ? 4 : 5);
		break;
	case JSON_NUMBER:
		text = json_number(v, &len);
		REQUIRE(text && len <= JSON_NUMBER_MAX);
		put(out, text, len);
		break;
	default:
		text = json_string(v, &len);
		put_string(out, text, len, dialect);
	}
}

/* Recursion is bounded by JSON_DEPTH_MAX. */
static unsigned put_value(struct buf *out, const struct json_value *v,
			  enum json_dialect dialect)
{
	bool object = json_kind(v) == JSON_OBJECT;
	const struct json_value *at;
	unsigned deepest = 0;
	size_t count = 0, len = 0;

	if (json_kind(v) != JSON_ARRAY && !object) {
		put_scalar(out, v, dialect);
		return 0;
	}
	put(out, object ? "{" : "[", 1);
	for (at = json_first(v); at; at = json_next(at)) {
		const char *key = json_key(at, &len);
		unsigned depth;

		if (count++)
			put(out, ",", 1);
		REQUIRE((key != NULL) == object);
		if (object) {
			put_string(out, key, len, dialect);
			put(out, ":", 1);
		}
		depth = put_value(out, at, dialect);
		deepest = depth > deepest ? depth : deepest;
	}
	put(out, object ? "}" : "]", 1);
	REQUIRE(count == json_count(v));
	REQUIRE(json_at(v, count) == NULL);
	REQUIRE(deepest < JSON_DEPTH_MAX);
	return deepest + 1;
}

static void check_writing(const struct json_value *root,
			  enum json_dialect dialect)
{
	cleanup(buf_release) struct buf first = BUF_INIT;
	cleanup(buf_release) struct buf second = BUF_INIT;
	cleanup(json_doc_free_cleanup) struct json_doc *again = NULL;

	(void)put_value(&first, root, dialect);
	REQUIRE(json_parse(first.data, first.len, &again, NULL) == 0);
	(void)put_value(&second, json_doc_root(again), dialect);
	REQUIRE(first.len == second.len);
	REQUIRE(memcmp(first.data, second.data, first.len) == 0);
}

static int count_items(void *arg, const struct json_item *item, struct buf *why)
{
	size_t *count = arg;

	(void)why;
	REQUIRE(item->key && item->key[item->key_len] == '\0');
	*count += !item->element || !item->value;
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	const char *text = (const char *)data;
	const struct json_value *root = NULL;
	bool object = false;

	if (json_parse(text, size, &doc, &why) == 0) {
		root = json_doc_root(doc);
		object = json_kind(root) == JSON_OBJECT;
		check_writing(root, JSON_ASCII);
		check_writing(root, JSON_UTF8);
	} else {
		REQUIRE(!doc && why.len && !strchr(why.data, '\n'));
	}
	for (unsigned flags = 0; flags <= JSON_STREAM_ELEMENTS; flags++) {
		size_t count = 0;
		int r = json_stream(text, size, flags, count_items, &count,
				    NULL);

		REQUIRE((r == 0) == object);
		REQUIRE(!object || count == json_count(root));
	}
	return 0;
}
