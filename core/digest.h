/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SHA-256: values, their text form, and three ways to hash.
 *
 * digest_of() hashes one piece of memory, a digest_stream takes pieces one
 * after the other, and the digest_lv functions hash a list of strings so that
 * no two different lists give the same bytes to the hash.
 *
 * struct digest is a plain value: copy it, compare it with digest_equal().
 * Functions are thread-safe; one stream belongs to one thread at a time.
 *
 * No other module may call the crypto library. Every function that hashes
 * fails with -EIO when that library fails, which is not expected.
 */
#ifndef CORE_DIGEST_H
#define CORE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/cleanup.h"

#define DIGEST_LEN ((size_t)32)
#define DIGEST_HEX_LEN (2 * DIGEST_LEN)

struct digest {
	uint8_t bytes[DIGEST_LEN];
};

/* The digest of no bytes at all, and of an empty list of strings. */
extern const struct digest digest_of_nothing;

/* data may be NULL when len is 0. Errors: -EIO. */
int digest_of(const void *data, size_t len, struct digest *ret);

/*
 * The digest of an object that was hashed in chunks: SHA-256 over the raw
 * digests of its chunks, joined in order. No chunks give digest_of_nothing.
 *
 * Errors: -EIO.
 */
int digest_root(const struct digest *chunks, size_t count, struct digest *ret);

bool digest_equal(const struct digest *a, const struct digest *b);

/* Writes DIGEST_HEX_LEN lower-case digits and a NUL. */
void digest_to_hex(const struct digest *d, char hex[static DIGEST_HEX_LEN + 1]);

/*
 * Reads exactly DIGEST_HEX_LEN lower-case digits, so that a digest has one
 * text form only. hex need not be NUL-terminated.
 *
 * Errors: -EINVAL.
 */
int digest_from_hex(const char *hex, size_t len, struct digest *ret);

/*
 * Hashing in pieces. After digest_stream_finish() the stream is empty again
 * and can be used for the next digest. After an error it can only be freed.
 */
struct digest_stream;

/* Errors: -ENOMEM, -EIO. */
int digest_stream_new(struct digest_stream **ret);
void digest_stream_free(struct digest_stream *s); /* accepts NULL */
DEFINE_CLEANUP(struct digest_stream *, digest_stream_free)

/* data may be NULL when len is 0. Errors: -EIO. */
int digest_stream_add(struct digest_stream *s, const void *data, size_t len);

/* Errors: -EIO. */
int digest_stream_finish(struct digest_stream *s, struct digest *ret);

/*
 * Length-value hashing: each string enters the hash as its length in decimal,
 * ':', its bytes and '\n' (weight-contracts 4.4).
 *
 * Adds one string to a stream. Errors: -EIO.
 */
int digest_lv_add(struct digest_stream *s, const void *bytes, size_t len);

/* Hashes count NUL-terminated strings in order. Errors: -ENOMEM, -EIO. */
int digest_lv_of(const char *const *strings, size_t count, struct digest *ret);

#endif
