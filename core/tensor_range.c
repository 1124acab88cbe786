/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor_range.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/log.h"
#include "core/utf8.h"
#include "core/util.h"

#define SENTENCE_MAX 512

int tensor_elements(const uint64_t *shape, unsigned rank, uint64_t *ret)
{
	uint64_t n = 1;

	for (unsigned i = 0; i < rank; i++)
		if (shape[i] > INT64_MAX ||
		    __builtin_mul_overflow(n, shape[i], &n) || n > INT64_MAX)
			return -EOVERFLOW;
	*ret = n;
	return 0;
}

void tensor_show_name(struct buf *out, const char *name, size_t len)
{
	char text[TENSOR_NAME_SHOWN_MAX + 4];
	size_t used = 0;
	size_t i = 0;

	while (i < len) {
		uint32_t point = 0;
		size_t n = utf8_decode(name + i, len - i, &point);
		bool fit = n && point >= ' ' && point != 0x7f;

		if (used + (fit ? n : 1) > TENSOR_NAME_SHOWN_MAX)
			break;
		if (fit)
			memcpy(text + used, name + i, n);
		else
			text[used] = '?';
		used += fit ? n : 1;
		i += n ? n : 1;
	}
	text[used] = '\0';
	(void)buf_printf(out, "'%s%s'", text, i < len ? "..." : "");
}

void tensor_say(int err, struct buf *why, const char *name, size_t len,
		const char *fmt, ...)
{
	char text[SENTENCE_MAX];
	size_t from = why->len;
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	(void)buf_append(why, "tensor ", strlen("tensor "));
	tensor_show_name(why, name, len);
	(void)buf_printf(why, ": %s", text);
	(void)log_debug(err, "%s", why->data + from);
}

void file_say(int err, struct buf *why, const char *fmt, ...)
{
	char text[SENTENCE_MAX];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	(void)buf_append(why, text, strlen(text));
	(void)log_debug(err, "%s", text);
}

int file_read_exact(int fd, void *dst, size_t len, uint64_t offset,
		    struct buf *why)
{
	uint8_t *at = dst;

	while (len) {
		ssize_t n = pread(fd, at, len, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return file_refuse(-errno, why,
					   "reading %zu bytes at %llu failed: "
					   "%m",
					   len, (unsigned long long)offset);
		if (n == 0)
			return file_refuse(-EBADMSG, why,
					   "truncated: it ended at byte %llu "
					   "while it was read",
					   (unsigned long long)offset);
		at += n;
		len -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

/* clang-format off */
static const struct {
	size_t at;
	const char *bytes;
	size_t len;
	const char *what;
} foreign[] = {
#define BYTES(s) s, sizeof(s) - 1
	{ 0, BYTES("version https://git-lfs"),
	  "a git-lfs pointer, which stands for weights that were not fetched" },
	{ 0, BYTES("version http://git-media"),
	  "a git-lfs pointer, which stands for weights that were not fetched" },
	{ 0, BYTES("PK\3\4"),
	  "a zip archive, such as a torch checkpoint under another name" },
	{ 0, BYTES("PK\5\6"), "an empty zip archive" },
	{ 0, BYTES("\0\5\x16\7"),
	  "a macOS companion file (AppleDouble), which holds no weights" },
	{ 0, BYTES("GGUF"), "a GGUF file under another name" },
	{ 0, BYTES("\x80\2"), "a Python pickle" },
	{ 0, BYTES("\x80\4"), "a Python pickle" },
	{ 0, BYTES("\x1f\x8b"), "a gzip archive" },
	{ 0, BYTES("\x28\xb5\x2f\xfd"), "a zstd archive" },
	{ 0, BYTES("\xfd" "7zXZ"), "an xz archive" },
	{ 0, BYTES("BZh"), "a bzip2 archive" },
	{ 0, BYTES("\x89HDF\r\n"), "an HDF5 file" },
	{ 0, BYTES("\x7f" "ELF"), "a program" },
	{ 0, BYTES("\x93NUMPY"), "a NumPy array" },
	{ 0, BYTES("#!"), "a script" },
	{ 257, BYTES("ustar"), "a tar archive" },
	{ 8, BYTES("{\""), "a safetensors file under another name" },
};

/* Compared without case, behind a byte order mark and white space. */
static const struct {
	const char *text;
	const char *what;
} markup[] = {
	{ "<!doctype html", "a web page" },
	{ "<html",          "a web page" },
	{ "<head",          "a web page" },
	{ "<!--",           "a web page" },
	{ "<?xml",          "an XML text, such as the error of an object store" },
	{ "<error",         "an XML text, such as the error of an object store" },
	{ "{",              "a JSON text" },
};
/* clang-format on */

static const char *markup_looks_like(const char *text, size_t len)
{
	size_t skip = 0;

	if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
		skip = 3;
	while (skip < len && text[skip] && strchr(" \t\r\n", text[skip]))
		skip++;
	for (size_t i = 0; i < ARRAY_LEN(markup); i++) {
		size_t n = strlen(markup[i].text);

		if (len - skip >= n &&
		    strncasecmp(text + skip, markup[i].text, n) == 0)
			return markup[i].what;
	}
	return NULL;
}

const char *file_looks_like(const void *head, size_t len)
{
	const char *bytes = head;
	size_t zeros = 0;

	if (len == 0)
		return "an empty file";
	while (zeros < len && bytes[zeros] == 0)
		zeros++;
	if (zeros == len)
		return "nothing but zeros, as if reserved and never written";
	for (size_t i = 0; i < ARRAY_LEN(foreign); i++)
		if (len >= foreign[i].at + foreign[i].len &&
		    memcmp(bytes + foreign[i].at, foreign[i].bytes,
			   foreign[i].len) == 0)
			return foreign[i].what;
	return markup_looks_like(bytes, len);
}
