/* SPDX-License-Identifier: Apache-2.0 */
#include "core/digest.h"

#include <assert.h>
#include <errno.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "core/log.h"
#include "core/parse.h"

static_assert(DIGEST_LEN == 32, "SHA-256 is 32 bytes and is stored on disk");
static_assert(sizeof(struct digest) == DIGEST_LEN,
	      "digest_root() hashes an array of digests as it lies in memory");

const struct digest digest_of_nothing = { {
	0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4,
	0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b,
	0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
} };

/* Lists of strings that come to more are hashed string by string. */
#define LV_SHORT 512

struct digest_stream {
	EVP_MD_CTX *ctx;
};

/*
 * Looking an algorithm up by name costs more than hashing a short key, so it is
 * done once and kept for the life of the process.
 */
static EVP_MD *sha256;
static pthread_once_t sha256_once = PTHREAD_ONCE_INIT;
/* Each thread keeps one context: making it costs half of a short digest. */
static pthread_key_t ctx_key;
static bool ctx_keyed;

static void ctx_free(void *ctx)
{
	EVP_MD_CTX_free(ctx);
}

static void sha256_fetch(void)
{
	sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
	ctx_keyed = pthread_key_create(&ctx_key, ctx_free) == 0;
}

/* Borrowed, or NULL when the library has no SHA-256. */
static const EVP_MD *sha256_get(void)
{
	(void)pthread_once(&sha256_once, sha256_fetch);
	return sha256;
}

/* The calling thread's, or NULL where there is no room for one. */
static EVP_MD_CTX *ctx_get(void)
{
	EVP_MD_CTX *ctx;

	if (!ctx_keyed)
		return NULL;
	ctx = pthread_getspecific(ctx_key);
	if (ctx)
		return ctx;
	ctx = EVP_MD_CTX_new();
	if (ctx && pthread_setspecific(ctx_key, ctx) != 0) {
		EVP_MD_CTX_free(ctx);
		return NULL;
	}
	return ctx;
}

static bool hash(const void *data, size_t len, struct digest *ret)
{
	const EVP_MD *md = sha256_get();
	EVP_MD_CTX *ctx = md ? ctx_get() : NULL;

	return ctx && EVP_DigestInit_ex2(ctx, md, NULL) &&
	       EVP_DigestUpdate(ctx, data, len) &&
	       EVP_DigestFinal_ex(ctx, ret->bytes, NULL);
}

int digest_of(const void *data, size_t len, struct digest *ret)
{
	struct digest d;

	if (!hash(data, len, &d))
		return log_debug(-EIO, "hashing %zu bytes", len);
	*ret = d;
	return 0;
}

int digest_root(const struct digest *chunks, size_t count, struct digest *ret)
{
	return digest_of(chunks, count * sizeof(*chunks), ret);
}

bool digest_equal(const struct digest *a, const struct digest *b)
{
	return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

void digest_to_hex(const struct digest *d, char hex[static DIGEST_HEX_LEN + 1])
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < DIGEST_LEN; i++) {
		hex[2 * i] = digits[d->bytes[i] >> 4];
		hex[2 * i + 1] = digits[d->bytes[i] & 0xf];
	}
	hex[DIGEST_HEX_LEN] = '\0';
}

/* One more than the value of a digit: who jumps by digits jumps at random. */
static const uint8_t hex_values[UINT8_MAX + 1] = {
	['0'] = 1,  ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,
	['6'] = 7,  ['7'] = 8,  ['8'] = 9,  ['9'] = 10, ['a'] = 11, ['b'] = 12,
	['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
};

int digest_from_hex(const char *hex, size_t len, struct digest *ret)
{
	struct digest d;

	if (len != DIGEST_HEX_LEN)
		return log_debug(-EINVAL, "%zu digits", len);
	for (size_t i = 0; i < DIGEST_LEN; i++) {
		unsigned hi = hex_values[(uint8_t)hex[2 * i]];
		unsigned lo = hex_values[(uint8_t)hex[2 * i + 1]];

		if (!hi || !lo)
			return log_debug(-EINVAL, "not a lower-case digit");
		d.bytes[i] = (uint8_t)((hi - 1) << 4 | (lo - 1));
	}
	*ret = d;
	return 0;
}

static int stream_begin(struct digest_stream *s)
{
	const EVP_MD *md = sha256_get();

	if (!md || !EVP_DigestInit_ex2(s->ctx, md, NULL))
		return log_debug(-EIO, "starting a digest");
	return 0;
}

int digest_stream_new(struct digest_stream **ret)
{
	cleanup(digest_stream_free_cleanup) struct digest_stream *s = NULL;
	int r;

	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->ctx = EVP_MD_CTX_new();
	if (!s->ctx)
		return -ENOMEM;
	r = stream_begin(s);
	if (r < 0)
		return r;
	*ret = take_ptr(s);
	return 0;
}

void digest_stream_free(struct digest_stream *s)
{
	if (!s)
		return;
	EVP_MD_CTX_free(s->ctx);
	free(s);
}

int digest_stream_add(struct digest_stream *s, const void *data, size_t len)
{
	if (!EVP_DigestUpdate(s->ctx, data, len))
		return log_debug(-EIO, "hashing %zu bytes", len);
	return 0;
}

int digest_stream_finish(struct digest_stream *s, struct digest *ret)
{
	struct digest d;
	int r;

	if (!EVP_DigestFinal_ex(s->ctx, d.bytes, NULL))
		return log_debug(-EIO, "finishing a digest");
	r = stream_begin(s);
	if (r < 0)
		return r;
	*ret = d;
	return 0;
}

int digest_lv_add(struct digest_stream *s, const void *bytes, size_t len)
{
	char prefix[PRINT_U64_MAX + 1];
	size_t n = print_u64(len, prefix);
	int r;

	prefix[n++] = ':';
	r = digest_stream_add(s, prefix, n);
	if (r < 0)
		return r;
	r = digest_stream_add(s, bytes, len);
	if (r < 0)
		return r;
	return digest_stream_add(s, "\n", 1);
}

/* What a short list comes to, all in one piece. */
struct lv {
	size_t len;
	char text[LV_SHORT];
};

static bool lv_put(struct lv *lv, const char *s)
{
	size_t len = strlen(s);

	if (len > sizeof(lv->text) ||
	    sizeof(lv->text) - len < lv->len + PRINT_U64_MAX + 2)
		return false;
	lv->len += print_u64(len, lv->text + lv->len);
	lv->text[lv->len++] = ':';
	memcpy(lv->text + lv->len, s, len);
	lv->len += len;
	lv->text[lv->len++] = '\n';
	return true;
}

static int lv_stream(const char *const *strings, size_t count,
		     struct digest *ret)
{
	cleanup(digest_stream_free_cleanup) struct digest_stream *s = NULL;
	int r = digest_stream_new(&s);

	for (size_t i = 0; r == 0 && i < count; i++)
		r = digest_lv_add(s, strings[i], strlen(strings[i]));
	if (r < 0)
		return r;
	return digest_stream_finish(s, ret);
}

int digest_lv_of(const char *const *strings, size_t count, struct digest *ret)
{
	struct lv lv;

	lv.len = 0;
	for (size_t i = 0; i < count; i++)
		if (!lv_put(&lv, strings[i]))
			return lv_stream(strings, count, ret);
	return digest_of(lv.text, lv.len, ret);
}
