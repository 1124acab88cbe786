/* SPDX-License-Identifier: Apache-2.0 */
#include "core/file_reader.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "core/tensor_range.h"

void file_reader_init(struct file_reader *r, int fd, uint64_t size,
		      struct buf *why)
{
	r->fd = fd;
	r->err = 0;
	r->size = size;
	r->at = 0;
	r->part = "the file";
	r->why = why;
	r->window_at = 0;
	r->window_len = 0;
}

int file_reader_need(struct file_reader *r, uint64_t len)
{
	if (r->err || len <= file_reader_left(r))
		return r->err;
	r->err = file_refuse(-EBADMSG, r->why,
			     "truncated: %s at byte %llu needs %llu bytes, the "
			     "file has %llu left",
			     r->part, (unsigned long long)r->at,
			     (unsigned long long)len,
			     (unsigned long long)file_reader_left(r));
	return r->err;
}

static void window_fill(struct file_reader *r)
{
	uint64_t rest = r->size - r->at;
	size_t len =
		rest < FILE_READER_WINDOW ? (size_t)rest : FILE_READER_WINDOW;

	r->err = file_read_exact(r->fd, r->window, len, r->at, r->why);
	r->window_at = r->at;
	r->window_len = r->err ? 0 : len;
}

const uint8_t *file_reader_peek(struct file_reader *r, size_t *ret_len)
{
	if (!r->err)
		window_fill(r);
	*ret_len = r->err ? 0 : r->window_len;
	return r->window;
}

void file_reader_bytes(struct file_reader *r, void *dst, size_t len)
{
	uint8_t *to = dst;

	if (file_reader_need(r, len) < 0) {
		memset(dst, 0, len);
		return;
	}
	while (len) {
		uint64_t in = r->at - r->window_at;
		size_t n;

		if (in >= r->window_len) {
			window_fill(r);
			in = 0;
		}
		if (r->err) {
			memset(to, 0, len);
			return;
		}
		n = r->window_len - (size_t)in;
		n = n < len ? n : len;
		memcpy(to, r->window + in, n);
		to += n;
		len -= n;
		r->at += n;
	}
}

uint32_t file_reader_u32(struct file_reader *r)
{
	uint32_t v;

	file_reader_bytes(r, &v, sizeof(v));
	return le32toh(v);
}

uint64_t file_reader_u64(struct file_reader *r)
{
	uint64_t v;

	file_reader_bytes(r, &v, sizeof(v));
	return le64toh(v);
}

void file_reader_skip(struct file_reader *r, uint64_t len)
{
	if (file_reader_need(r, len) == 0)
		r->at += len;
}
