/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-helpers/weightctl_say.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "core/json.h"
#include "core/utf8.h"
#include "core/util.h"
#include "mount-helpers/weightctl_mount.h"

/*
 * Answers that come from the kernel or from a daemon that is not there: the
 * sentence of the object is about something else.
 */
static bool has_no_sentence(int err)
{
	switch (err) {
	case -EACCES:
	case -ENOENT:
	case -ENOTDIR:
	case -ENAMETOOLONG:
	case -ELOOP:
	case -EINTR:
	case -ENOTCONN:
	case -ECONNABORTED:
	case -EOPNOTSUPP:
	case -EXDEV:
		return true;
	default:
		return false;
	}
}

/* C1 control characters (U+0080 to U+009F) are obeyed by terminals, too. */
void say_plain(FILE *to, const char *text)
{
	size_t len = strlen(text);

	while (len > 0) {
		uint32_t point = 0;
		size_t n = utf8_decode(text, len, &point);
		bool bad = n == 0 || point < 0x20 ||
			   (point >= 0x7f && point < 0xa0);

		if (n == 0)
			n = 1;
		if (bad)
			(void)fputc('?', to);
		else
			(void)fwrite(text, 1, n, to);
		text += n;
		len -= n;
	}
}

static void say(const char *path, const char *what, const char *sentence)
{
	(void)fputs("weightctl: ", stderr);
	say_plain(stderr, path);
	if (what[0] != '\0') {
		(void)fputs(": ", stderr);
		say_plain(stderr, what);
	}
	(void)fputs(": ", stderr);
	say_plain(stderr, sentence);
	(void)fputc('\n', stderr);
}

void say_error(int err, const char *path, const char *what)
{
	say(path, what, strerror(-err));
}

void say_answer(int err, const char *path, const char *what)
{
	struct buf sentence = BUF_INIT;

	(void)attr_read(path, "error", &sentence);
	if (sentence.len > 0)
		say(path, what, sentence.data);
	else
		say_error(err, path, what);
	buf_release(&sentence);
}

void say_refusal(int err, const char *path, const char *what)
{
	if (has_no_sentence(err))
		say_error(err, path, what);
	else
		say_answer(err, path, what);
}

void say_note(const char *path, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	say(path, "", text);
}

void say_size(uint64_t bytes, char ret[static SAY_SIZE_MAX])
{
	static const char *const units[] = { "B",   "KiB", "MiB", "GiB",
					     "TiB", "PiB", "EiB" };
	double value = (double)bytes;
	size_t i = 0;

	while (value >= 1024 && i + 1 < ARRAY_LEN(units)) {
		value /= 1024;
		i++;
	}
	(void)snprintf(ret, SAY_SIZE_MAX, i > 0 ? "%.1f %s" : "%.0f %s", value,
		       units[i]);
}

/* ---- Facts ---- */

static void note_err(struct facts *f, int r)
{
	if (r < 0 && f->err == 0)
		f->err = r;
}

static void key_put(struct facts *f, const char *key)
{
	note_err(f, buf_append(&f->text, f->text.len > 0 ? "," : "{", 1));
	note_err(f, json_write_string(&f->text, key, strlen(key), JSON_UTF8));
	note_err(f, buf_append(&f->text, ":", 1));
}

static int copy_valid(const char *value, struct buf *ret)
{
	size_t len = strlen(value);
	uint32_t point;
	int r = 0;

	while (len > 0 && r == 0) {
		size_t n = utf8_decode(value, len, &point);

		r = n > 0 ? buf_append(ret, value, n) : buf_append(ret, "?", 1);
		n = n > 0 ? n : 1;
		value += n;
		len -= n;
	}
	return r;
}

static void value_put(struct facts *f, const char *value)
{
	struct buf valid = BUF_INIT;

	note_err(f, copy_valid(value, &valid));
	note_err(f,
		 json_write_string(&f->text, valid.data, valid.len, JSON_UTF8));
	buf_release(&valid);
}

void facts_text(struct facts *f, const char *key, const char *value)
{
	key_put(f, key);
	value_put(f, value);
}

void facts_list(struct facts *f, const char *key, const struct buf *values)
{
	const char *end = values->data + values->len;

	key_put(f, key);
	note_err(f, buf_append(&f->text, "[", 1));
	for (const char *v = values->data; v < end; v += strlen(v) + 1) {
		if (v > values->data)
			note_err(f, buf_append(&f->text, ",", 1));
		value_put(f, v);
	}
	note_err(f, buf_append(&f->text, "]", 1));
}

void facts_u64(struct facts *f, const char *key, uint64_t value)
{
	key_put(f, key);
	note_err(f, json_write_u64(&f->text, value));
}

void facts_raw(struct facts *f, const char *key, const char *value)
{
	key_put(f, key);
	note_err(f, buf_append(&f->text, value, strlen(value)));
}

void facts_bool(struct facts *f, const char *key, bool value)
{
	facts_raw(f, key, value ? "true" : "false");
}

int facts_take(struct facts *f, struct buf *ret)
{
	int r;

	if (f->text.len == 0)
		note_err(f, buf_append(&f->text, "{", 1));
	note_err(f, buf_append(&f->text, "}", 1));
	r = f->err;
	if (r == 0)
		r = buf_append(ret, f->text.data, f->text.len);
	buf_release(&f->text);
	f->err = 0;
	return r;
}

int facts_print(struct facts *f)
{
	struct buf line = BUF_INIT;
	int r = facts_take(f, &line);

	if (r == 0 && puts(line.data) == EOF)
		r = -EIO;
	buf_release(&line);
	return r < 0 ? say_failed(r, "standard output", "writing facts") : 0;
}
