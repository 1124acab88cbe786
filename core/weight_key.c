/* SPDX-License-Identifier: Apache-2.0 */
#include "core/weight_key.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/cleanup.h"
#include "core/json.h"
#include "core/log.h"
#include "core/parse.h"
#include "core/util.h"

static_assert(WEIGHT_PATH_NAME_MAX == NAME_MAX, "names are names of files");

#define ESCAPE_LEN 3 /* %XX */
#define MANIFEST_SUFFIX "/manifest"

/* Which bytes stand for themselves; first says whether it is a name's first. */
typedef bool plain_fn(unsigned char byte, bool first);

static bool segment_plain(unsigned char byte, bool first)
{
	(void)first;
	return (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') ||
	       (byte >= '0' && byte <= '9') || byte == '-' || byte == '_' ||
	       byte == '.' || byte == '~';
}

static bool path_plain(unsigned char byte, bool first)
{
	return byte != '/' && byte != '%' && !(first && byte == '.');
}

static bool tensor_plain(unsigned char byte, bool first)
{
	return path_plain(byte, first) && byte >= 0x20 && byte != 0x7f;
}

/* Writes byte at out, 1 or ESCAPE_LEN bytes of it, and returns how many. */
static size_t escape(unsigned char byte, bool plain, char out[ESCAPE_LEN])
{
	static const char digits[] = "0123456789ABCDEF";

	if (plain) {
		out[0] = (char)byte;
		return 1;
	}
	out[0] = '%';
	out[1] = digits[byte >> 4];
	out[2] = digits[byte & 0xf];
	return ESCAPE_LEN;
}

static int encode(const char *text, size_t len, plain_fn *plain,
		  struct buf *ret)
{
	auto_free char *out = malloc(len * ESCAPE_LEN + 1);
	size_t n = 0;

	if (!out)
		return -ENOMEM;
	for (size_t i = 0; i < len; i++) {
		unsigned char byte = (unsigned char)text[i];

		n += escape(byte, plain(byte, i == 0), out + n);
	}
	return buf_append(ret, out, n);
}

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -EINVAL;
}

/* Reads one byte, of which used bytes are its text. Errors: -EINVAL. */
static int unescape(const char *text, size_t left, unsigned char *ret,
		    size_t *ret_used)
{
	int hi, lo;

	if (text[0] != '%') {
		*ret = (unsigned char)text[0];
		*ret_used = 1;
		return 0;
	}
	if (left < ESCAPE_LEN)
		return log_debug(-EINVAL, "%% without two digits");
	hi = hex_value(text[1]);
	lo = hex_value(text[2]);
	if (hi < 0 || lo < 0)
		return log_debug(-EINVAL, "%% without two upper-case digits");
	*ret = (unsigned char)(hi << 4 | lo);
	*ret_used = ESCAPE_LEN;
	return 0;
}

/* Accepts only what encode() writes with the same plain. */
static int decode(const char *text, size_t len, plain_fn *plain,
		  struct buf *ret)
{
	auto_free char *out = malloc(len + 1);
	size_t n = 0;
	size_t used = 0;

	if (!out)
		return -ENOMEM;
	for (size_t i = 0; i < len; i += used) {
		unsigned char byte;
		int r = unescape(text + i, len - i, &byte, &used);

		if (r < 0)
			return r;
		if (plain(byte, n == 0) != (used == 1))
			return log_debug(-EINVAL, "byte %u has another form",
					 byte);
		out[n++] = (char)byte;
	}
	return buf_append(ret, out, n);
}

int weight_segment_encode(const char *segment, struct buf *ret)
{
	return encode(segment, strlen(segment), segment_plain, ret);
}

int weight_segment_decode(const char *text, size_t len, struct buf *ret)
{
	return decode(text, len, segment_plain, ret);
}

/* Appends the base and a suffix as one step. */
static int key_append(const struct weight_identity *id, const char *suffix,
		      struct buf *ret)
{
	cleanup(buf_release) struct buf key = BUF_INIT;
	const char *const segments[] = { id->lineage.name_space,
					 id->lineage.resource,
					 id->lineage.revision };
	int r = buf_printf(&key, "%s", WEIGHT_KEY_PREFIX);

	for (size_t i = 0; r == 0 && i < ARRAY_LEN(segments); i++) {
		r = buf_append(&key, "/", 1);
		if (r == 0)
			r = weight_segment_encode(segments[i], &key);
	}
	if (r == 0)
		r = buf_printf(&key, "/%" PRIu64 "%s", id->generation, suffix);
	if (r < 0)
		return r;
	return buf_append(ret, key.data, key.len);
}

int weight_base(const struct weight_identity *id, struct buf *ret)
{
	return key_append(id, "", ret);
}

int weight_manifest_key(const struct weight_identity *id, struct buf *ret)
{
	return key_append(id, MANIFEST_SUFFIX, ret);
}

/* Moves *at behind the len bytes of text, if they stand there. */
static bool skip(const char **at, const char *text, size_t len)
{
	if (strncmp(*at, text, len) != 0)
		return false;
	*at += len;
	return true;
}

static bool skip_segment(const char **at, const char *segment)
{
	char scratch[ESCAPE_LEN];

	for (; *segment; segment++) {
		unsigned char byte = (unsigned char)*segment;

		if (!segment_plain(byte, false)) {
			if (!skip(at, scratch, escape(byte, false, scratch)))
				return false;
		} else if (*(*at)++ != *segment) {
			return false;
		}
	}
	return true;
}

bool weight_manifest_key_is(const struct weight_identity *id, const char *key)
{
	const char *const segments[] = { id->lineage.name_space,
					 id->lineage.resource,
					 id->lineage.revision };
	char generation[PRINT_U64_MAX];
	size_t len = print_u64(id->generation, generation);
	const char *at = key;

	if (!skip(&at, WEIGHT_KEY_PREFIX, strlen(WEIGHT_KEY_PREFIX)))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(segments); i++)
		if (!skip(&at, "/", 1) || !skip_segment(&at, segments[i]))
			return false;
	return skip(&at, "/", 1) && skip(&at, generation, len) &&
	       strcmp(at, MANIFEST_SUFFIX) == 0;
}

int weight_payload_key(const struct weight_identity *id, const char *txid,
		       const char *fragment_id, struct buf *ret)
{
	cleanup(buf_release) struct buf suffix = BUF_INIT;
	int r = buf_printf(&suffix, "/payload/%s/%s", txid, fragment_id);

	if (r < 0)
		return r;
	return key_append(id, suffix.data, ret);
}

int weight_group_hash(const struct weight_identity *id, struct digest *ret)
{
	char generation[WEIGHT_GENERATION_LEN_MAX + 1];
	const struct weight_lineage *l = &id->lineage;
	const char *const strings[] = { l->tenant, l->name_space, l->resource,
					l->revision, generation };

	weight_generation_print(id->generation, generation);
	return digest_lv_of(strings, ARRAY_LEN(strings), ret);
}

int weight_lineage_hash(const struct weight_lineage *l, struct digest *ret)
{
	const char *const strings[] = { l->tenant, l->name_space, l->resource,
					l->revision };

	return digest_lv_of(strings, ARRAY_LEN(strings), ret);
}

/* Writes prefix and the digits of d, which fill ret exactly. */
static void put_prefixed(const char *prefix, const struct digest *d, char *ret,
			 size_t size)
{
	size_t len = strlen(prefix);

	assert(len + DIGEST_HEX_LEN + 1 == size);
	memcpy(ret, prefix, len);
	digest_to_hex(d, ret + len);
}

int weight_group_id(const struct weight_identity *id,
		    char ret[static WEIGHT_GROUP_ID_LEN + 1])
{
	struct digest d;
	int r = weight_group_hash(id, &d);

	if (r < 0)
		return r;
	put_prefixed(WEIGHT_GROUP_ID_PREFIX, &d, ret, WEIGHT_GROUP_ID_LEN + 1);
	return 0;
}

int weight_group_hex(const struct weight_identity *id,
		     char ret[static DIGEST_HEX_LEN + 1])
{
	struct digest d;
	int r = weight_group_hash(id, &d);

	if (r < 0)
		return r;
	digest_to_hex(&d, ret);
	return 0;
}

int weight_metadata_log_key(const struct weight_identity *id,
			    char ret[static WEIGHT_METADATA_LOG_KEY_LEN + 1])
{
	struct digest d;
	int r = weight_group_hash(id, &d);

	if (r < 0)
		return r;
	put_prefixed("weight-revision:", &d, ret,
		     WEIGHT_METADATA_LOG_KEY_LEN + 1);
	return 0;
}

int weight_lineage_log_key(const struct weight_lineage *l,
			   char ret[static WEIGHT_LINEAGE_LOG_KEY_LEN + 1])
{
	struct digest d;
	int r = weight_lineage_hash(l, &d);

	if (r < 0)
		return r;
	put_prefixed("weight-lineage:", &d, ret,
		     WEIGHT_LINEAGE_LOG_KEY_LEN + 1);
	return 0;
}

int weight_lease_log_key(uint64_t lease_id,
			 char ret[static WEIGHT_LEASE_LOG_KEY_LEN_MAX + 1])
{
	int n;

	if (lease_id == 0)
		return log_debug(-EINVAL, "lease 0");
	n = snprintf(ret, WEIGHT_LEASE_LOG_KEY_LEN_MAX + 1,
		     "weight-lease:%" PRIu64, lease_id);
	assert(n > 0 && (size_t)n <= WEIGHT_LEASE_LOG_KEY_LEN_MAX);
	return 0;
}

int weight_transaction_id(char ret[static WEIGHT_TRANSACTION_ID_LEN + 1])
{
	uint64_t bits[2];
	int n;

	/* Requests of up to 256 bytes are never cut short: getrandom(2). */
	if (getrandom(bits, sizeof(bits), 0) != (ssize_t)sizeof(bits))
		return log_debug(-EIO, "getrandom: %s", strerror(errno));
	n = snprintf(ret, WEIGHT_TRANSACTION_ID_LEN + 1,
		     "%016" PRIx64 "%016" PRIx64, bits[0], bits[1]);
	assert(n == WEIGHT_TRANSACTION_ID_LEN);
	return 0;
}

/* "()", "(4,)", "(2, 4)" and so on. */
static int tuple_append(struct buf *b, const uint64_t *numbers, unsigned rank)
{
	int r = buf_append(b, "(", 1);

	for (unsigned i = 0; r == 0 && i < rank; i++)
		r = buf_printf(b, "%s%" PRIu64, i ? ", " : "", numbers[i]);
	if (r < 0)
		return r;
	return rank == 1 ? buf_append(b, ",)", 2) : buf_append(b, ")", 1);
}

int weight_fragment_id(const char *tensor_id, size_t len,
		       const uint64_t *offset, const uint64_t *shape,
		       unsigned rank,
		       char ret[static WEIGHT_FRAGMENT_ID_LEN + 1])
{
	cleanup(buf_release) struct buf text = BUF_INIT;
	char hex[DIGEST_HEX_LEN + 1];
	struct digest d;
	int r;

	if ((r = buf_append(&text, tensor_id, len)) < 0 ||
	    (r = buf_append(&text, "|", 1)) < 0 ||
	    (r = tuple_append(&text, offset, rank)) < 0 ||
	    (r = buf_append(&text, "|", 1)) < 0 ||
	    (r = tuple_append(&text, shape, rank)) < 0 ||
	    (r = digest_of(text.data, text.len, &d)) < 0)
		return r;
	digest_to_hex(&d, hex);
	memcpy(ret, hex, WEIGHT_FRAGMENT_ID_LEN);
	ret[WEIGHT_FRAGMENT_ID_LEN] = '\0';
	return 0;
}

static int key_compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int weight_payload_keys_digest(const char **keys, size_t count,
			       struct digest *ret, uint64_t *ret_distinct)
{
	cleanup(digest_stream_free_cleanup) struct digest_stream *s = NULL;
	uint64_t distinct = 0;
	int r = digest_stream_new(&s);

	if (r == 0 && count > 1)
		qsort(keys, count, sizeof(*keys), key_compare);
	for (size_t i = 0; r == 0 && i < count; i++) {
		if (i > 0 && strcmp(keys[i], keys[i - 1]) == 0)
			continue;
		distinct++;
		r = digest_lv_add(s, keys[i], strlen(keys[i]));
	}
	if (r == 0)
		r = digest_stream_finish(s, ret);
	if (r < 0)
		return r;
	if (ret_distinct)
		*ret_distinct = distinct;
	return 0;
}

int weight_text_compare(const struct weight_text *a,
			const struct weight_text *b)
{
	size_t shared = a->len < b->len ? a->len : b->len;
	int order = shared ? memcmp(a->bytes, b->bytes, shared) : 0;

	if (order != 0)
		return order;
	return (a->len > b->len) - (a->len < b->len);
}

static int unit_compare(const void *left, const void *right)
{
	const struct weight_affinity_unit *a = left;
	const struct weight_affinity_unit *b = right;

	for (size_t i = 0; i < a->count && i < b->count; i++) {
		int order = weight_text_compare(&a->members[i], &b->members[i]);

		if (order != 0)
			return order;
	}
	return (a->count > b->count) - (a->count < b->count);
}

/* Puts the members of unit, joined by NUL, in place of what b holds. */
static int unit_join(const struct weight_affinity_unit *unit, struct buf *b)
{
	int r = 0;

	if (b->len > 0) {
		b->len = 0;
		b->data[0] = '\0';
	}
	for (size_t i = 0; r == 0 && i < unit->count; i++) {
		if (i > 0)
			r = buf_append(b, "", 1);
		if (r == 0)
			r = buf_append(b, unit->members[i].bytes,
				       unit->members[i].len);
	}
	return r;
}

int weight_affinity_digest(struct weight_affinity_unit *units, size_t count,
			   struct digest *ret, uint64_t *ret_distinct)
{
	cleanup(digest_stream_free_cleanup) struct digest_stream *s = NULL;
	cleanup(buf_release) struct buf joined = BUF_INIT;
	uint64_t distinct = 0;
	int r = digest_stream_new(&s);

	if (r == 0 && count > 1)
		qsort(units, count, sizeof(*units), unit_compare);
	for (size_t i = 0; r == 0 && i < count; i++) {
		if (i > 0 && unit_compare(&units[i], &units[i - 1]) == 0)
			continue;
		distinct++;
		r = unit_join(&units[i], &joined);
		if (r == 0)
			r = digest_lv_add(s, joined.data, joined.len);
	}
	if (r == 0)
		r = digest_stream_finish(s, ret);
	if (r < 0)
		return r;
	if (ret_distinct)
		*ret_distinct = distinct;
	return 0;
}

int weight_residency_affinity_id(const struct weight_affinity_unit *unit,
				 struct digest *ret)
{
	cleanup(buf_release) struct buf joined = BUF_INIT;
	int r = unit_join(unit, &joined);

	if (r < 0)
		return r;
	return digest_of(joined.data, joined.len, ret);
}

/* Adds a field as its length, 8 bytes big-endian, and its bytes. */
static int request_add(struct digest_stream *s, const char *text)
{
	uint64_t len = htobe64(strlen(text));
	int r = digest_stream_add(s, &len, sizeof(len));

	if (r < 0)
		return r;
	return digest_stream_add(s, text, strlen(text));
}

static int request_add_number(struct digest_stream *s, uint64_t number)
{
	char text[WEIGHT_GENERATION_LEN_MAX + 1];

	weight_generation_print(number, text);
	return request_add(s, text);
}

static int request_add_identity(struct digest_stream *s,
				const struct weight_identity *id)
{
	int r;

	if ((r = request_add(s, id->lineage.tenant)) < 0 ||
	    (r = request_add(s, id->lineage.name_space)) < 0 ||
	    (r = request_add(s, id->lineage.resource)) < 0 ||
	    (r = request_add(s, id->lineage.revision)) < 0)
		return r;
	return request_add_number(s, id->generation);
}

int weight_request_id(const struct weight_identity *base,
		      const struct weight_identity *target,
		      enum weight_upsert_mode mode,
		      uint64_t expected_metadata_generation,
		      char ret[static DIGEST_HEX_LEN + 1])
{
	cleanup(digest_stream_free_cleanup) struct digest_stream *s = NULL;
	struct digest d;
	int r;

	if ((r = digest_stream_new(&s)) < 0 ||
	    (r = request_add(s, "weight-upsert-request-v1")) < 0 ||
	    (r = request_add_identity(s, base)) < 0 ||
	    (r = request_add_identity(s, target)) < 0 ||
	    (r = request_add_number(s, mode)) < 0 ||
	    (r = request_add_number(s, expected_metadata_generation)) < 0 ||
	    (r = digest_stream_finish(s, &d)) < 0)
		return r;
	digest_to_hex(&d, ret);
	return 0;
}

/* The array is spaced as Python's json writes it: ", " between elements. */
static int transaction_text(const struct weight_identity *target,
			    const char *request_id, const struct digest *source,
			    struct buf *ret)
{
	const struct weight_lineage *l = &target->lineage;
	char hex[DIGEST_HEX_LEN + 1];
	const char *const texts[] = { "weight-upsert-upload-v1",
				      l->tenant,
				      l->name_space,
				      l->resource,
				      l->revision,
				      NULL, /* the generation, a number */
				      request_id,
				      hex };
	int r = 0;

	digest_to_hex(source, hex);
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(texts); i++) {
		r = buf_printf(ret, "%s", i ? ", " : "[");
		if (r < 0)
			return r;
		r = texts[i] ? json_write_string(ret, texts[i],
						 strlen(texts[i]), JSON_ASCII) :
			       json_write_u64(ret, target->generation);
	}
	return r < 0 ? r : buf_append(ret, "]", 1);
}

int weight_upsert_transaction_id(const struct weight_identity *target,
				 const char *request_id,
				 const struct digest *source,
				 char ret[static DIGEST_HEX_LEN + 1])
{
	cleanup(buf_release) struct buf text = BUF_INIT;
	struct digest d;
	int r;

	if ((r = transaction_text(target, request_id, source, &text)) < 0 ||
	    (r = digest_of(text.data, text.len, &d)) < 0)
		return r;
	digest_to_hex(&d, ret);
	return 0;
}

int weight_path_encode(const char *component, struct buf *ret)
{
	size_t len = strlen(component);
	size_t encoded = 0;
	char scratch[ESCAPE_LEN];

	if (!weight_component_ok(component))
		return log_debug(-EINVAL, "not a component");
	for (size_t i = 0; i < len; i++) {
		unsigned char byte = (unsigned char)component[i];

		encoded += escape(byte, path_plain(byte, i == 0), scratch);
	}
	if (encoded > WEIGHT_PATH_NAME_MAX)
		return log_debug(-ENAMETOOLONG, "%zu bytes", encoded);
	return encode(component, len, path_plain, ret);
}

int weight_path_decode(const char *name, size_t len, struct buf *ret)
{
	cleanup(buf_release) struct buf component = BUF_INIT;
	int r;

	if (len > WEIGHT_PATH_NAME_MAX)
		return log_debug(-ENAMETOOLONG, "%zu bytes", len);
	if (memchr(name, '\0', len))
		return log_debug(-EINVAL, "NUL in a name");
	r = decode(name, len, path_plain, &component);
	if (r < 0)
		return r;
	if (!weight_component_ok(component.data))
		return log_debug(-EINVAL, "not a component");
	return buf_append(ret, component.data, component.len);
}

/* How a short name ends: "%~" and this many digits. */
#define SHORT_HEX_LEN 32
#define SHORT_SUFFIX_LEN (2 + SHORT_HEX_LEN)
#define SHORT_PREFIX_MAX (WEIGHT_PATH_NAME_MAX - SHORT_SUFFIX_LEN)

/* Whether a name may be cut before byte i: not inside a UTF-8 character. */
static bool may_cut(const char *id, size_t i)
{
	return ((unsigned char)id[i] & 0xc0) != 0x80;
}

/*
 * Writes as much of the encoded id as fits in a name and returns its length.
 * When not all fits, *ret_cut is the last place before SHORT_PREFIX_MAX where
 * the text may be cut, else it is the length.
 */
static size_t tensor_encode(const char *id, size_t len,
			    char ret[static WEIGHT_PATH_NAME_MAX],
			    size_t *ret_cut)
{
	char piece[ESCAPE_LEN];
	size_t n = 0;
	size_t cut = 0;

	for (size_t i = 0; i < len; i++) {
		unsigned char byte = (unsigned char)id[i];
		size_t size = escape(byte, tensor_plain(byte, i == 0), piece);

		if (n <= SHORT_PREFIX_MAX && may_cut(id, i))
			cut = n;
		if (n + size > WEIGHT_PATH_NAME_MAX) {
			*ret_cut = cut;
			return n;
		}
		memcpy(ret + n, piece, size);
		n += size;
	}
	*ret_cut = n;
	return n;
}

int weight_tensor_name(const char *tensor_id, size_t len,
		       char ret[static WEIGHT_PATH_NAME_MAX + 1])
{
	char name[WEIGHT_PATH_NAME_MAX + 1];
	char hex[DIGEST_HEX_LEN + 1];
	struct digest d;
	size_t n, cut;
	int r;

	n = tensor_encode(tensor_id, len, name, &cut);
	if (len == 0)
		name[n++] = '%';
	else if (cut < n) {
		r = digest_of(tensor_id, len, &d);
		if (r < 0)
			return r;
		digest_to_hex(&d, hex);
		n = cut;
		name[n++] = '%';
		name[n++] = '~';
		memcpy(name + n, hex, SHORT_HEX_LEN);
		n += SHORT_HEX_LEN;
	}
	memcpy(ret, name, n);
	ret[n] = '\0';
	return 0;
}
