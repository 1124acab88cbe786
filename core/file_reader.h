/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File reader: the bytes of a file in order, through a window of fixed size.
 *
 * The first failure sticks in err; from then on reads yield zeros and nothing
 * is left. A decoder is then straight-line code with a check of err where it
 * matters, as with core/cursor.h for bytes in memory.
 *
 * Trust: a length is compared with what is left of the file before anything is
 * done with it.
 *
 * Large: lives on the heap. Not thread-safe: one owner at a time. Does not own
 * fd, part or why.
 */
#ifndef CORE_FILE_READER_H
#define CORE_FILE_READER_H

#include <stddef.h>
#include <stdint.h>

struct buf;

#define FILE_READER_WINDOW ((size_t)64 << 10)

struct file_reader {
	int fd;
	int err;       /* 0, or what stopped it; may be set by the user, too */
	uint64_t size; /* of the file */
	uint64_t at;   /* of the next byte */
	const char *part; /* what is being read: "a key"; for sentences */
	struct buf *why;  /* receives a sentence with the first failure */
	uint64_t window_at;
	size_t window_len;
	uint8_t window[FILE_READER_WINDOW];
};

/* Starts at byte 0 of a file of size bytes. */
void file_reader_init(struct file_reader *r, int fd, uint64_t size,
		      struct buf *why);

static inline uint64_t file_reader_left(const struct file_reader *r)
{
	return r->err ? 0 : r->size - r->at;
}

/*
 * The next bytes without moving on: fewer than FILE_READER_WINDOW only at the
 * end of the file. Borrowed until the next call.
 */
const uint8_t *file_reader_peek(struct file_reader *r, size_t *ret_len);

/*
 * Whether len bytes are left; if not, that is a failure.
 *
 * Errors, of this and all below, in err: -EBADMSG the file is too short;
 * what pread() sets.
 */
int file_reader_need(struct file_reader *r, uint64_t len);

void file_reader_bytes(struct file_reader *r, void *dst, size_t len);
uint32_t file_reader_u32(struct file_reader *r); /* little-endian */
uint64_t file_reader_u64(struct file_reader *r); /* little-endian */
void file_reader_skip(struct file_reader *r, uint64_t len);

#endif
