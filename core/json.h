/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict JSON: reading a whole text, reading a large object member by member,
 * and writing canonical text. json.c is the only user of the JSON library.
 *
 * Everything is checked, nothing is trusted: the text must be one complete
 * RFC 8259 value in valid UTF-8, with no NaN, Infinity, comments or trailing
 * text, no lone surrogate escapes, nesting of at most JSON_DEPTH_MAX, and no
 * key twice in one object. Numbers keep their text, so no precision is lost.
 *
 * Ownership: a struct json_doc owns every value reached from it. Values, keys
 * and strings are borrowed: valid until json_doc_free(), or until the callback
 * that json_stream() handed them to returns.
 *
 * No global state. A document is read-only once parsed, so any number of
 * threads may read it.
 *
 * A failure that the author of the text can mend appends one sentence to why.
 * why may be NULL where nobody reads it.
 */
#ifndef CORE_JSON_H
#define CORE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"

/* Containers inside containers; the outermost one counts as 1. */
#define JSON_DEPTH_MAX 32

/* Bytes in the text of one number. */
#define JSON_NUMBER_MAX 64

enum json_kind {
	JSON_NULL,
	JSON_BOOL,
	JSON_NUMBER,
	JSON_STRING,
	JSON_ARRAY,
	JSON_OBJECT,
};

/*
 * The two canonical texts of weight-contracts section 0. They differ only in
 * strings: JSON_ASCII escapes every character beyond 0x7e as \uXXXX (with
 * surrogate pairs), JSON_UTF8 leaves them as they are.
 */
enum json_dialect {
	JSON_ASCII,
	JSON_UTF8,
};

struct json_value;
struct json_doc;

/*
 * Parses text into a document. The caller frees it.
 *
 * Errors: -EBADMSG not strict JSON (see why), -ENOMEM.
 */
int json_parse(const char *text, size_t len, struct json_doc **ret,
	       struct buf *why);

/* Accepts NULL. */
void json_doc_free(struct json_doc *doc);
DEFINE_CLEANUP(struct json_doc *, json_doc_free)

/* Never NULL. */
const struct json_value *json_doc_root(const struct json_doc *doc);

enum json_stream_flags {
	/*
	 * A member whose value is an array is handed over element by element,
	 * with index 0, 1, ..., and then once more as its end: element is
	 * true, value is NULL and index is the number of elements.
	 */
	JSON_STREAM_ELEMENTS = 1 << 0,
};

struct json_item {
	const char *key; /* NUL-terminated; may contain NUL bytes */
	size_t key_len;
	bool element; /* value is one element of the member's array */
	size_t index; /* 0 unless element */
	const struct json_value *value;
};

/* Returns 0 to go on, or a negative errno that ends the stream. */
typedef int json_item_fn(void *arg, const struct json_item *item,
			 struct buf *why);

/*
 * Reads an object and calls fn for each of its members, in the order of the
 * text. Memory is bounded by the largest single item plus the set of the
 * object's keys: a value is gone when its callback returns.
 *
 * fn has seen the members before the place of a mistake, so the caller must be
 * able to drop what it has built.
 *
 * Errors: -EBADMSG not strict JSON, not an object, or a key twice at any
 * depth; -ENOMEM; or what fn returned.
 */
int json_stream(const char *text, size_t len, unsigned flags, json_item_fn *fn,
		void *arg, struct buf *why);

enum json_kind json_kind(const struct json_value *v);

/*
 * The bytes of a string, NULL when v is not one. They are NUL-terminated but
 * may contain NUL bytes, so compare with *ret_len. ret_len may be NULL.
 */
const char *json_string(const struct json_value *v, size_t *ret_len);

/* As json_string(), for the text of a number. */
const char *json_number(const struct json_value *v, size_t *ret_len);

/*
 * Errors: -EBADMSG unless v is a number of plain decimal digits (no sign,
 * point, exponent or leading zero) that fits.
 */
int json_u64(const struct json_value *v, uint64_t *ret);

/* Errors: -EBADMSG unless v is true or false. */
int json_bool(const struct json_value *v, bool *ret);

/* Members or elements; 0 for a scalar. */
size_t json_count(const struct json_value *v);

/*
 * The i-th element or member value, NULL past the end. Takes i steps: walk
 * with json_first() and json_next().
 */
const struct json_value *json_at(const struct json_value *v, size_t i);

/* NULL when there is none (left). */
const struct json_value *json_first(const struct json_value *v);
const struct json_value *json_next(const struct json_value *v);

/* The key of a member of an object, else NULL. As json_string(). */
const char *json_key(const struct json_value *v, size_t *ret_len);

/* The value of a member, NULL when there is none or v is no object. */
const struct json_value *json_find(const struct json_value *object,
				   const char *key);

/*
 * Appends a string with its quotes. s must be valid UTF-8; on failure out may
 * hold a part of it.
 *
 * Errors: -EINVAL s is not valid UTF-8, -ENOMEM, -EOVERFLOW.
 */
int json_write_string(struct buf *out, const char *s, size_t len,
		      enum json_dialect dialect);

/* Errors: -ENOMEM, -EOVERFLOW. */
int json_write_u64(struct buf *out, uint64_t v);

/*
 * An object of plain members that is written for people and programs, on one
 * line, in the order of the calls. It starts as JSON_OBJECT_INIT. A failure is
 * kept until json_object_end(), so that the members read straight on.
 *
 * Keys need no escapes; texts are valid UTF-8 and written in JSON_UTF8.
 */
struct json_object {
	struct buf text;
	int err;
};
#define JSON_OBJECT_INIT                                                       \
	{                                                                      \
		.text = BUF_INIT                                               \
	}
void json_put_text(struct json_object *o, const char *key, const char *value);
void json_put_u64(struct json_object *o, const char *key, uint64_t value);
void json_put_bool(struct json_object *o, const char *key, bool value);
/* Six digits of it. */
void json_put_ratio(struct json_object *o, const char *key, double value);

/*
 * Appends the object and a newline to ret, which is unchanged on failure, and
 * releases it. Errors: -EINVAL a text was no UTF-8, -ENOMEM, -EOVERFLOW.
 */
int json_object_end(struct json_object *o, struct buf *ret);

/*
 * Appends a string to a sentence for people: in quotes, escaped so that it
 * stays on one line, and cut after JSON_SHOWN_MAX bytes. s must be valid UTF-8;
 * a failure leaves the sentence shorter.
 */
#define JSON_SHOWN_MAX 100
void json_show(struct buf *why, const char *s, size_t len);

#endif
