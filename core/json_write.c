/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical JSON text, and strings in sentences. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/buf.h"
#include "core/json.h"
#include "core/log.h"
#include "core/utf8.h"

/* Two of \uXXXX, the longest escape. */
#define ESCAPE_MAX 12

/* clang-format off */
static const char short_escapes[0x60] = {
	['"'] = '"',  ['\\'] = '\\', ['\n'] = 'n', ['\r'] = 'r',
	['\t'] = 't', ['\b'] = 'b',  ['\f'] = 'f',
};
/* clang-format on */

/* Writes \uXXXX; returns its length. */
static size_t escape_unit(char *out, uint32_t unit)
{
	static const char hex[] = "0123456789abcdef";

	out[0] = '\\';
	out[1] = 'u';
	for (unsigned i = 0; i < 4; i++)
		out[2 + i] = hex[unit >> (12 - 4 * i) & 0xf];
	return 6;
}

static size_t escape_point(char out[static ESCAPE_MAX], uint32_t point)
{
	if (point < sizeof(short_escapes) && short_escapes[point]) {
		out[0] = '\\';
		out[1] = short_escapes[point];
		return 2;
	}
	if (point < 0x10000)
		return escape_unit(out, point);
	point -= 0x10000;
	return escape_unit(out, 0xd800 | point >> 10) +
	       escape_unit(out + 6, 0xdc00 | (point & 0x3ff));
}

static bool is_plain(uint32_t point, enum json_dialect dialect)
{
	if (point < 0x20 || point == '"' || point == '\\')
		return false;
	return point < 0x7f || dialect == JSON_UTF8;
}

int json_write_string(struct buf *out, const char *s, size_t len,
		      enum json_dialect dialect)
{
	char escape[ESCAPE_MAX];
	uint32_t point = 0;
	size_t done = 0; /* bytes of s that are in out */
	size_t at = 0;
	int r;

	r = buf_append(out, "\"", 1);
	if (r < 0)
		return r;
	while (at < len) {
		size_t n = utf8_decode(s + at, len - at, &point);

		if (n == 0)
			return log_debug(-EINVAL, "byte %zu is not UTF-8", at);
		if (is_plain(point, dialect)) {
			at += n;
			continue;
		}
		r = buf_append(out, s + done, at - done);
		if (r < 0)
			return r;
		r = buf_append(out, escape, escape_point(escape, point));
		if (r < 0)
			return r;
		at += n;
		done = at;
	}
	r = buf_append(out, s + done, at - done);
	if (r < 0)
		return r;
	return buf_append(out, "\"", 1);
}

int json_write_u64(struct buf *out, uint64_t v)
{
	char digits[24];
	int n = snprintf(digits, sizeof(digits), "%" PRIu64, v);

	return n < 0 ? -EINVAL : buf_append(out, digits, (size_t)n);
}

/* False: something failed before. */
static bool put_key(struct json_object *o, const char *key)
{
	if (o->err == 0)
		o->err = buf_printf(&o->text,
				    "%c\"%s\":", o->text.len ? ',' : '{', key);
	return o->err == 0;
}

void json_put_text(struct json_object *o, const char *key, const char *value)
{
	if (put_key(o, key))
		o->err = json_write_string(&o->text, value, strlen(value),
					   JSON_UTF8);
}

void json_put_u64(struct json_object *o, const char *key, uint64_t value)
{
	if (put_key(o, key))
		o->err = json_write_u64(&o->text, value);
}

void json_put_bool(struct json_object *o, const char *key, bool value)
{
	if (put_key(o, key))
		o->err = buf_printf(&o->text, "%s", value ? "true" : "false");
}

void json_put_ratio(struct json_object *o, const char *key, double value)
{
	if (put_key(o, key))
		o->err = buf_printf(&o->text, "%.6g", value);
}

int json_object_end(struct json_object *o, struct buf *ret)
{
	int r = o->err;

	if (r == 0)
		r = buf_printf(&o->text, "%s}\n", o->text.len ? "" : "{");
	if (r == 0)
		r = buf_append(ret, o->text.data, o->text.len);
	buf_release(&o->text);
	return r;
}

void json_show(struct buf *why, const char *s, size_t len)
{
	size_t shown = len;

	if (len > JSON_SHOWN_MAX) {
		shown = JSON_SHOWN_MAX;
		while (shown && ((uint8_t)s[shown] & 0xc0) == 0x80)
			shown--;
	}
	(void)json_write_string(why, s, shown, JSON_ASCII);
	if (shown < len)
		(void)buf_append(why, "...", 3);
}
