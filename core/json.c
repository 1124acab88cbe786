/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parser of the JSON library reports events; this file turns them into
 * values. The library is lenient in places, so check_text() first refuses what
 * it would let pass: weak UTF-8, lone surrogates, other white space.
 */
#include "core/json.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <yajl/yajl_parse.h>

#include "core/arena.h"
#include "core/buf.h"
#include "core/json_keys.h"
#include "core/log.h"
#include "core/utf8.h"

/* Below this, comparing all pairs of keys is cheaper than a set. */
#define PAIRWISE_KEYS_MAX 8

struct json_value {
	struct json_value *next;
	const char *key; /* NULL unless a member of an object */
	size_t key_len;
	union {
		const char *text;         /* string, number */
		struct json_value *first; /* array, object */
	};
	struct json_value *last;
	size_t count; /* bytes of text, or members */
	enum json_kind kind;
	bool truth;
};

struct json_doc {
	struct arena arena;
	struct json_value *root;
};

/*
 * State between events. The containers that are open are on a stack. The
 * outermost `flat` of them are not built: the values right inside them are
 * units, each complete in itself. A document is one unit with flat 0; in a
 * stream flat is 1, or 2 inside an array that is delivered by element.
 */
struct parser {
	struct arena *arena; /* of the units */
	struct json_value *open[JSON_DEPTH_MAX];
	unsigned depth;
	unsigned flat;
	const char *key; /* of the next value, if in an object */
	size_t key_len;
	struct json_value *unit;
	struct json_value outer[2]; /* stand in for containers not built */
	bool streaming;
	unsigned flags;
	json_item_fn *fn;
	void *fn_arg;
	struct json_item item;
	struct arena key_arena; /* keys of the top level */
	struct json_keys keys;
	struct buf *why;
	int err; /* why an event stopped the parser */
};

static int refuse(struct buf *why, size_t at, const char *what)
{
	if (why)
		(void)buf_printf(why, "not strict JSON at byte %zu: %s", at,
				 what);
	return log_debug(-EBADMSG, "%s at byte %zu", what, at);
}

static int refuse_duplicate(struct buf *why, const char *key, size_t len)
{
	if (why) {
		(void)buf_printf(why, "duplicate key ");
		json_show(why, key, len);
		(void)buf_printf(why, " in a JSON object");
	}
	return log_debug(-EBADMSG, "duplicate key of %zu bytes", len);
}

/* The XXXX of \uXXXX at text[at], or -1. */
static int32_t hex_unit(const char *text, size_t len, size_t at)
{
	int32_t unit = 0;

	if (len - at < 6 || text[at] != '\\' || text[at + 1] != 'u')
		return -1;
	for (size_t i = at + 2; i < at + 6; i++) {
		char c = text[i];

		if (c >= '0' && c <= '9')
			unit = unit << 4 | (c - '0');
		else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
			unit = unit << 4 | ((c | 0x20) - 'a' + 10);
		else
			return -1;
	}
	return unit;
}

/* Bytes of the escape at text[at], or 0. */
static size_t escape_len(const char *text, size_t len, size_t at)
{
	int32_t unit, low;

	if (len - at < 2)
		return 0;
	if (text[at + 1] != 'u')
		return 2; /* the parser knows which letters may follow */
	unit = hex_unit(text, len, at);
	if (unit < 0 || (unit >= 0xdc00 && unit <= 0xdfff))
		return 0;
	if (unit < 0xd800 || unit > 0xdfff)
		return 6;
	low = hex_unit(text, len, at + 6);
	return low >= 0xdc00 && low <= 0xdfff ? 12 : 0;
}

/* Moves *at from behind the opening quote to behind the closing one. */
static int check_string(const char *text, size_t len, size_t *at,
			struct buf *why)
{
	size_t i = *at;
	uint32_t point;

	while (i < len && text[i] != '"') {
		uint8_t c = (uint8_t)text[i];
		size_t n = 1;

		if (c < 0x20)
			return refuse(why, i, "a control byte in a string");
		if (c == '\\')
			n = escape_len(text, len, i);
		else if (c >= 0x80)
			n = utf8_decode(text + i, len - i, &point);
		if (n == 0)
			return refuse(why, i,
				      c == '\\' ? "a broken escape" :
						  "not valid UTF-8");
		i += n;
	}
	if (i >= len)
		return refuse(why, len, "the text ends inside a string");
	*at = i + 1;
	return 0;
}

/* What the library would not refuse, or not always. */
static int check_text(const char *text, size_t len, struct buf *why)
{
	size_t at = 0;

	while (at < len) {
		uint8_t c = (uint8_t)text[at++];
		int r;

		if (c == '"') {
			r = check_string(text, len, &at, why);
			if (r < 0)
				return r;
		} else if (c >= 0x7f ||
			   (c < 0x20 && c != '\t' && c != '\n' && c != '\r')) {
			return refuse(why, at - 1,
				      "a byte that may only be in "
				      "a string, if at all");
		}
	}
	return 0;
}

/* Stops the parser, whose callbacks return 0 for that. */
static int stop(struct parser *p, int err)
{
	p->err = err;
	return 0;
}

static int stop_because(struct parser *p, const char *what)
{
	if (p->why)
		(void)buf_printf(p->why, "not acceptable as JSON: %s", what);
	return stop(p, log_debug(-EBADMSG, "%s", what));
}

static int deliver(struct parser *p)
{
	int r;

	p->item.value = p->unit;
	r = p->fn(p->fn_arg, &p->item, p->why);
	if (r < 0)
		return stop(p, r);
	if (p->item.element)
		p->item.index++;
	p->unit = NULL;
	arena_reset(p->arena);
	return 1;
}

/* Adds a value to the open container. NULL: the parser has been stopped. */
static struct json_value *value_add(struct parser *p, enum json_kind kind)
{
	struct json_value *v, *parent;

	if (p->streaming && p->depth == 0) {
		(void)stop_because(p, "not an object");
		return NULL;
	}
	v = arena_alloc(p->arena, sizeof(*v));
	if (!v) {
		(void)stop(p, -ENOMEM);
		return NULL;
	}
	*v = (struct json_value){ .kind = kind };
	if (p->depth == p->flat) {
		p->unit = v;
		return v;
	}
	parent = p->open[p->depth - 1];
	if (parent->kind == JSON_OBJECT) {
		v->key = p->key;
		v->key_len = p->key_len;
	}
	if (parent->last)
		parent->last->next = v;
	else
		parent->first = v;
	parent->last = v;
	parent->count++;
	return v;
}

/* v and all that is in it is there. */
static int value_end(struct parser *p)
{
	if (p->streaming && p->depth == p->flat)
		return deliver(p);
	return 1;
}

static int on_null(void *ctx)
{
	return value_add(ctx, JSON_NULL) ? value_end(ctx) : 0;
}

static int on_boolean(void *ctx, int truth)
{
	struct json_value *v = value_add(ctx, JSON_BOOL);

	if (!v)
		return 0;
	v->truth = truth != 0;
	return value_end(ctx);
}

static int text_add(struct parser *p, enum json_kind kind, const char *text,
		    size_t len)
{
	struct json_value *v = value_add(p, kind);

	if (!v)
		return 0;
	v->text = arena_copy(p->arena, text, len);
	if (!v->text)
		return stop(p, -ENOMEM);
	v->count = len;
	return value_end(p);
}

static int on_number(void *ctx, const char *text, size_t len)
{
	if (len > JSON_NUMBER_MAX)
		return stop_because(ctx, "a number is too long");
	return text_add(ctx, JSON_NUMBER, text, len);
}

static int on_string(void *ctx, const unsigned char *text, size_t len)
{
	return text_add(ctx, JSON_STRING, (const char *)text, len);
}

static int container_start(struct parser *p, enum json_kind kind)
{
	struct json_value *v;
	bool flat = p->streaming && p->depth == p->flat &&
		    (kind == JSON_OBJECT ?
			     p->depth == 0 :
			     p->depth == 1 && p->flags & JSON_STREAM_ELEMENTS);

	if (p->depth == JSON_DEPTH_MAX)
		return stop_because(p, "nested too deeply");
	if (flat) {
		v = &p->outer[p->flat++];
		v->kind = kind;
		p->item.element = kind == JSON_ARRAY;
		p->item.index = 0;
	} else {
		v = value_add(p, kind);
	}
	if (!v)
		return 0;
	p->open[p->depth++] = v;
	return 1;
}

static int on_start_map(void *ctx)
{
	return container_start(ctx, JSON_OBJECT);
}

static int on_start_array(void *ctx)
{
	return container_start(ctx, JSON_ARRAY);
}

/* A key of the top level, which outlives the item and must be new. */
static int top_key(struct parser *p, const char *key, size_t len)
{
	int r;

	p->item.key = arena_copy(&p->key_arena, key, len);
	p->item.key_len = len;
	if (!p->item.key)
		return stop(p, -ENOMEM);
	r = json_keys_add(&p->keys, p->item.key, len);
	if (r == -EEXIST)
		r = refuse_duplicate(p->why, p->item.key, len);
	return r < 0 ? stop(p, r) : 1;
}

static int on_map_key(void *ctx, const unsigned char *key, size_t len)
{
	struct parser *p = ctx;

	if (p->depth == p->flat)
		return top_key(p, (const char *)key, len);
	p->key = arena_copy(p->arena, key, len);
	p->key_len = len;
	return p->key ? 1 : stop(p, -ENOMEM);
}

static int check_few_keys(struct parser *p, const struct json_value *object)
{
	const struct json_value *a, *b;

	for (a = object->first; a; a = a->next)
		for (b = a->next; b; b = b->next)
			if (a->key_len == b->key_len &&
			    memcmp(a->key, b->key, a->key_len) == 0)
				return refuse_duplicate(p->why, a->key,
							a->key_len);
	return 0;
}

static int check_keys(struct parser *p, const struct json_value *object)
{
	cleanup(json_keys_release) struct json_keys keys = JSON_KEYS_INIT;
	const struct json_value *v;
	int r = 0;

	if (object->count <= PAIRWISE_KEYS_MAX)
		return check_few_keys(p, object);
	for (v = object->first; v && r == 0; v = v->next) {
		r = json_keys_add(&keys, v->key, v->key_len);
		if (r == -EEXIST)
			r = refuse_duplicate(p->why, v->key, v->key_len);
	}
	return r;
}

static int on_end_map(void *ctx)
{
	struct parser *p = ctx;
	int r;

	if (p->depth == p->flat) { /* the end of a stream */
		p->depth = p->flat = 0;
		return 1;
	}
	r = check_keys(p, p->open[--p->depth]);
	return r < 0 ? stop(p, r) : value_end(p);
}

static int on_end_array(void *ctx)
{
	struct parser *p = ctx;

	if (p->depth-- > p->flat)
		return value_end(p);
	p->flat--;
	if (!deliver(p))
		return 0;
	p->item.element = false;
	p->item.index = 0;
	return 1;
}

static const yajl_callbacks events = {
	.yajl_null = on_null,
	.yajl_boolean = on_boolean,
	.yajl_number = on_number,
	.yajl_string = on_string,
	.yajl_start_map = on_start_map,
	.yajl_map_key = on_map_key,
	.yajl_end_map = on_end_map,
	.yajl_start_array = on_start_array,
	.yajl_end_array = on_end_array,
};

/* Puts the library's own sentence into why, in one line. */
static int syntax_error(struct parser *p, yajl_handle h)
{
	unsigned char *said = yajl_get_error(h, 0, NULL, 0);
	size_t at = yajl_get_bytes_consumed(h);
	int r;

	if (said)
		said[strcspn((char *)said, "\n")] = '\0';
	r = refuse(p->why, at, said ? (char *)said : "syntax error");
	if (said)
		yajl_free_error(h, said);
	return r;
}

static int parser_run(struct parser *p, const char *text, size_t len)
{
	yajl_status status;
	yajl_handle h;
	int r = check_text(text, len, p->why);

	if (r < 0)
		return r;
	h = yajl_alloc(&events, NULL, p);
	if (!h)
		return -ENOMEM;
	status = yajl_parse(h, (const unsigned char *)text, len);
	if (status == yajl_status_ok)
		status = yajl_complete_parse(h);
	if (status == yajl_status_client_canceled)
		r = p->err;
	else if (status != yajl_status_ok)
		r = syntax_error(p, h);
	yajl_free(h);
	return r;
}

int json_parse(const char *text, size_t len, struct json_doc **ret,
	       struct buf *why)
{
	cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;
	struct parser p = { .why = why };
	int r;

	doc = calloc(1, sizeof(*doc));
	if (!doc)
		return -ENOMEM;
	p.arena = &doc->arena;
	r = parser_run(&p, text, len);
	if (r < 0)
		return r;
	assert(p.unit);
	doc->root = p.unit;
	*ret = take_ptr(doc);
	return 0;
}

void json_doc_free(struct json_doc *doc)
{
	if (!doc)
		return;
	arena_release(&doc->arena);
	free(doc);
}

const struct json_value *json_doc_root(const struct json_doc *doc)
{
	return doc->root;
}

int json_stream(const char *text, size_t len, unsigned flags, json_item_fn *fn,
		void *arg, struct buf *why)
{
	cleanup(arena_release) struct arena arena = ARENA_INIT;
	struct parser p = {
		.arena = &arena,
		.streaming = true,
		.flags = flags,
		.fn = fn,
		.fn_arg = arg,
		.key_arena = ARENA_INIT,
		.keys = JSON_KEYS_INIT,
		.why = why,
	};
	int r = parser_run(&p, text, len);

	json_keys_release(&p.keys);
	arena_release(&p.key_arena);
	return r;
}

enum json_kind json_kind(const struct json_value *v)
{
	return v->kind;
}

static const char *text_of(const struct json_value *v, enum json_kind kind,
			   size_t *ret_len)
{
	if (v->kind == kind && ret_len)
		*ret_len = v->count;
	return v->kind == kind ? v->text : NULL;
}

const char *json_string(const struct json_value *v, size_t *ret_len)
{
	return text_of(v, JSON_STRING, ret_len);
}

const char *json_number(const struct json_value *v, size_t *ret_len)
{
	return text_of(v, JSON_NUMBER, ret_len);
}

int json_u64(const struct json_value *v, uint64_t *ret)
{
	uint64_t n = 0;

	if (v->kind != JSON_NUMBER)
		return log_debug(-EBADMSG, "not a number");
	/* The grammar has no leading zeros, so digits are all to look for. */
	for (const char *c = v->text; *c; c++)
		if (*c < '0' || *c > '9' || __builtin_mul_overflow(n, 10, &n) ||
		    __builtin_add_overflow(n, (uint64_t)(*c - '0'), &n))
			return log_debug(-EBADMSG, "%s is no u64", v->text);
	*ret = n;
	return 0;
}

int json_bool(const struct json_value *v, bool *ret)
{
	if (v->kind != JSON_BOOL)
		return log_debug(-EBADMSG, "neither true nor false");
	*ret = v->truth;
	return 0;
}

static bool is_container(const struct json_value *v)
{
	return v->kind == JSON_ARRAY || v->kind == JSON_OBJECT;
}

size_t json_count(const struct json_value *v)
{
	return is_container(v) ? v->count : 0;
}

const struct json_value *json_first(const struct json_value *v)
{
	return is_container(v) ? v->first : NULL;
}

const struct json_value *json_next(const struct json_value *v)
{
	return v->next;
}

const struct json_value *json_at(const struct json_value *v, size_t i)
{
	const struct json_value *at = json_first(v);

	while (at && i--)
		at = at->next;
	return at;
}

const char *json_key(const struct json_value *v, size_t *ret_len)
{
	if (v->key && ret_len)
		*ret_len = v->key_len;
	return v->key;
}

const struct json_value *json_find(const struct json_value *object,
				   const char *key)
{
	const struct json_value *v;
	size_t len = strlen(key);

	if (object->kind != JSON_OBJECT)
		return NULL;
	for (v = object->first; v; v = v->next)
		if (v->key_len == len && memcmp(v->key, key, len) == 0)
			return v;
	return NULL;
}
