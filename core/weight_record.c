/* SPDX-License-Identifier: Apache-2.0 */
#include "core/weight_record.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "core/cursor.h"
#include "core/log.h"

#define FLAG_DURABLE 1u
#define FLAG_COMPLETE 2u
#define FLAGS_KNOWN (FLAG_DURABLE | FLAG_COMPLETE)

static_assert(WEIGHT_RECORD_STRING_MAX <= UINT16_MAX, "lengths are u16");
static_assert(WEIGHT_RECORD_BYTES_MAX > 6 * (2 + (size_t)WEIGHT_COMPONENT_MAX) +
						2 + WEIGHT_MANIFEST_KEY_MAX +
						1024,
	      "the longest record that can be encoded can be decoded");
static_assert(sizeof(double) == sizeof(uint64_t), "a ratio is 8 bytes");

/* Output with a sticky error, so that encoders are straight-line code. */
struct writer {
	struct buf bytes;
	int r;
};

static void put(struct writer *w, const void *bytes, size_t len)
{
	if (w->r == 0)
		w->r = buf_append(&w->bytes, bytes, len);
}

static void put_u8(struct writer *w, unsigned v)
{
	uint8_t byte = (uint8_t)v;

	put(w, &byte, sizeof(byte));
}

static void put_u16(struct writer *w, size_t v)
{
	uint16_t le = htole16((uint16_t)v);

	put(w, &le, sizeof(le));
}

static void put_u64(struct writer *w, uint64_t v)
{
	uint64_t le = htole64(v);

	put(w, &le, sizeof(le));
}

static void put_ratio(struct writer *w, double v)
{
	uint64_t bits;

	memcpy(&bits, &v, sizeof(bits));
	put_u64(w, bits);
}

static void put_digest(struct writer *w, const struct digest *d)
{
	put(w, d->bytes, sizeof(d->bytes));
}

/* The record was checked, so the string is within its limit. */
static void put_string(struct writer *w, const char *s)
{
	size_t len = strlen(s);

	assert(len <= WEIGHT_RECORD_STRING_MAX);
	put_u16(w, len);
	put(w, s, len);
}

static void put_identity(struct writer *w, const struct weight_identity *id)
{
	put_string(w, id->lineage.tenant);
	put_string(w, id->lineage.name_space);
	put_string(w, id->lineage.resource);
	put_string(w, id->lineage.revision);
	put_u64(w, id->generation);
}

/* Appends what was written, all or nothing, and empties the writer. */
static int writer_finish(struct writer *w, struct buf *ret)
{
	int r = w->r;

	if (r == 0)
		r = buf_append(ret, w->bytes.data, w->bytes.len);
	buf_release(&w->bytes);
	return r;
}

/*
 * Input. Strings are copied behind the record, which was allocated with as many
 * bytes more as the input has: each string came with two bytes of length, so
 * there is room for its NUL.
 */
struct reader {
	struct cursor c;
	char *strings;
};

static unsigned get_u8(struct reader *rd)
{
	uint8_t byte;

	cursor_bytes(&rd->c, &byte, sizeof(byte));
	return byte;
}

static double get_ratio(struct reader *rd)
{
	uint64_t bits = cursor_u64(&rd->c);
	double v;

	memcpy(&v, &bits, sizeof(v));
	return v;
}

static void get_digest(struct reader *rd, struct digest *ret)
{
	cursor_bytes(&rd->c, ret->bytes, sizeof(ret->bytes));
}

/* Never NULL. A string with a NUL inside is damage. */
static const char *get_string(struct reader *rd)
{
	size_t len = cursor_u16(&rd->c);
	char *s = rd->strings;

	if (len > rd->c.left || len > WEIGHT_RECORD_STRING_MAX)
		rd->c.bad = true;
	if (rd->c.bad)
		return "";
	cursor_bytes(&rd->c, s, len);
	if (memchr(s, '\0', len))
		rd->c.bad = true;
	s[len] = '\0';
	rd->strings += len + 1;
	return s;
}

static void get_identity(struct reader *rd, struct weight_identity *ret)
{
	ret->lineage.tenant = get_string(rd);
	ret->lineage.name_space = get_string(rd);
	ret->lineage.resource = get_string(rd);
	ret->lineage.revision = get_string(rd);
	ret->generation = cursor_u64(&rd->c);
}

/*
 * Starts reading a record: allocates it, size bytes and room for its strings,
 * and reads the version.
 */
static int reader_begin(const void *bytes, size_t len, size_t size,
			struct reader *rd, void **ret)
{
	struct cursor c = cursor_over(bytes, len);
	uint16_t version = cursor_u16(&c);
	char *record;

	if (c.bad || version == 0 || len > WEIGHT_RECORD_BYTES_MAX)
		return log_debug(-EUCLEAN, "%zu bytes, version %u", len,
				 version);
	if (version > WEIGHT_RECORD_VERSION)
		return log_debug(-EPROTONOSUPPORT, "version %u", version);
	record = calloc(1, size + len);
	if (!record)
		return -ENOMEM;
	*rd = (struct reader){ .c = c, .strings = record + size };
	*ret = record;
	return 0;
}

/* What a check says about a record that we wrote ourselves. */
static int stored(int checked)
{
	return checked == -EINVAL ? -EUCLEAN : checked;
}

int weight_record_metadata_encode(const struct weight_metadata *m,
				  struct buf *ret)
{
	struct writer w = { .bytes = BUF_INIT };
	int r = weight_metadata_check(m, NULL);

	if (r < 0)
		return r;
	put_u16(&w, WEIGHT_RECORD_VERSION);
	put_u8(&w, m->availability);
	put_u8(&w, m->residency);
	put_u8(&w, m->policy.preferred);
	put_u8(&w, m->policy.mode);
	put_u16(&w, (m->durable ? FLAG_DURABLE : 0) |
			    (m->manifest.complete ? FLAG_COMPLETE : 0));
	put_u64(&w, m->metadata_generation);
	put_u64(&w, m->operation_id);
	put_u64(&w, m->created_at_ms);
	put_u64(&w, m->updated_at_ms);
	put_u64(&w, m->last_accessed_at_ms);
	put_ratio(&w, m->policy.mixed_hot_ratio);
	put_ratio(&w, m->observed_hot_ratio);
	put_u64(&w, m->manifest.payload_count);
	put_u64(&w, m->manifest.logical_bytes);
	put_u64(&w, m->affinity_count);
	put_digest(&w, &m->affinity_digest);
	put_digest(&w, &m->manifest.manifest_sha256);
	put_digest(&w, &m->manifest.payload_keys_sha256);
	put_identity(&w, &m->identity);
	put_string(&w, m->manifest.manifest_key);
	put_string(&w, m->manifest.payload_group_id);
	return writer_finish(&w, ret);
}

/* Reads what follows the version. Errors: -EUCLEAN. */
static int metadata_read(struct reader *rd, struct weight_metadata *m)
{
	unsigned flags;

	m->availability = get_u8(rd);
	m->residency = get_u8(rd);
	m->policy.preferred = get_u8(rd);
	m->policy.mode = get_u8(rd);
	flags = cursor_u16(&rd->c);
	m->durable = flags & FLAG_DURABLE;
	m->manifest.complete = flags & FLAG_COMPLETE;
	m->metadata_generation = cursor_u64(&rd->c);
	m->operation_id = cursor_u64(&rd->c);
	m->created_at_ms = cursor_u64(&rd->c);
	m->updated_at_ms = cursor_u64(&rd->c);
	m->last_accessed_at_ms = cursor_u64(&rd->c);
	m->policy.mixed_hot_ratio = get_ratio(rd);
	m->observed_hot_ratio = get_ratio(rd);
	m->manifest.payload_count = cursor_u64(&rd->c);
	m->manifest.logical_bytes = cursor_u64(&rd->c);
	m->affinity_count = cursor_u64(&rd->c);
	get_digest(rd, &m->affinity_digest);
	get_digest(rd, &m->manifest.manifest_sha256);
	get_digest(rd, &m->manifest.payload_keys_sha256);
	get_identity(rd, &m->identity);
	m->manifest.manifest_key = get_string(rd);
	m->manifest.payload_group_id = get_string(rd);
	if (cursor_done(&rd->c) < 0 || (flags & ~FLAGS_KNOWN))
		return log_debug(-EUCLEAN, "length or flags %x", flags);
	return 0;
}

int weight_record_metadata_decode(const void *bytes, size_t len,
				  struct weight_metadata **ret)
{
	auto_free void *record = NULL;
	struct weight_metadata *m;
	struct reader rd;
	int r = reader_begin(bytes, len, sizeof(*m), &rd, &record);

	if (r < 0)
		return r;
	m = record;
	r = metadata_read(&rd, m);
	if (r < 0)
		return r;
	r = stored(weight_metadata_check(m, NULL));
	if (r < 0)
		return r;
	*ret = take_ptr(record);
	return 0;
}

int weight_record_lease_encode(const struct weight_lease *lease,
			       struct buf *ret)
{
	struct writer w = { .bytes = BUF_INIT };
	int r = weight_lease_check(lease, NULL);

	if (r < 0)
		return r;
	put_u16(&w, WEIGHT_RECORD_VERSION);
	put_u16(&w, 0);
	put_u64(&w, lease->lease_id);
	put_u64(&w, lease->expires_at_ms);
	put_u64(&w, lease->fenced_metadata_generation);
	put_identity(&w, &lease->identity);
	put_string(&w, lease->holder);
	return writer_finish(&w, ret);
}

int weight_record_lease_decode(const void *bytes, size_t len,
			       struct weight_lease **ret)
{
	auto_free void *record = NULL;
	struct weight_lease *lease;
	uint16_t zero;
	struct reader rd;
	int r = reader_begin(bytes, len, sizeof(*lease), &rd, &record);

	if (r < 0)
		return r;
	lease = record;
	zero = cursor_u16(&rd.c);
	lease->lease_id = cursor_u64(&rd.c);
	lease->expires_at_ms = cursor_u64(&rd.c);
	lease->fenced_metadata_generation = cursor_u64(&rd.c);
	get_identity(&rd, &lease->identity);
	lease->holder = get_string(&rd);
	if (cursor_done(&rd.c) < 0 || zero != 0)
		return log_debug(-EUCLEAN, "length or reserved field");
	r = stored(weight_lease_check(lease, NULL));
	if (r < 0)
		return r;
	*ret = take_ptr(record);
	return 0;
}

void weight_staging_free(struct weight_staging *s)
{
	free(s);
}

int weight_record_staging_encode(const struct weight_staging *s,
				 struct buf *ret)
{
	struct writer w = { .bytes = BUF_INIT };
	int r = weight_identity_check(&s->identity, NULL);

	if (r < 0)
		return r;
	put_u16(&w, WEIGHT_RECORD_VERSION);
	put_u16(&w, 0);
	put_u64(&w, s->created_at_ms);
	put_u64(&w, s->epoch);
	put_identity(&w, &s->identity);
	return writer_finish(&w, ret);
}

int weight_record_staging_decode(const void *bytes, size_t len,
				 struct weight_staging **ret)
{
	auto_free void *record = NULL;
	struct weight_staging *s;
	uint16_t zero;
	struct reader rd;
	int r = reader_begin(bytes, len, sizeof(*s), &rd, &record);

	if (r < 0)
		return r;
	s = record;
	zero = cursor_u16(&rd.c);
	s->created_at_ms = cursor_u64(&rd.c);
	s->epoch = cursor_u64(&rd.c);
	get_identity(&rd, &s->identity);
	if (cursor_done(&rd.c) < 0 || zero != 0)
		return log_debug(-EUCLEAN, "length or reserved field");
	r = stored(weight_identity_check(&s->identity, NULL));
	if (r < 0)
		return r;
	*ret = take_ptr(record);
	return 0;
}

int weight_record_operation_encode(const struct weight_operation *op,
				   struct buf *ret)
{
	struct writer w = { .bytes = BUF_INIT };
	int r = weight_operation_check(op, NULL);

	if (r < 0)
		return r;
	put_u16(&w, WEIGHT_RECORD_VERSION);
	put_u8(&w, op->kind);
	put_u8(&w, op->target_residency);
	put_u64(&w, op->operation_id);
	put_ratio(&w, op->target_hot_ratio);
	put_u64(&w, op->fenced_metadata_generation);
	put_u64(&w, op->started_at_ms);
	put_u64(&w, op->updated_at_ms);
	put_u64(&w, op->processed_units);
	put_u64(&w, op->total_units);
	put_u64(&w, op->processed_bytes);
	put_u64(&w, op->total_bytes);
	put_identity(&w, &op->identity);
	put_string(&w, op->cursor);
	put_string(&w, op->message);
	return writer_finish(&w, ret);
}

/* Reads what follows the version. Errors: -EUCLEAN. */
static int operation_read(struct reader *rd, struct weight_operation *op)
{
	op->kind = get_u8(rd);
	op->target_residency = get_u8(rd);
	op->operation_id = cursor_u64(&rd->c);
	op->target_hot_ratio = get_ratio(rd);
	op->fenced_metadata_generation = cursor_u64(&rd->c);
	op->started_at_ms = cursor_u64(&rd->c);
	op->updated_at_ms = cursor_u64(&rd->c);
	op->processed_units = cursor_u64(&rd->c);
	op->total_units = cursor_u64(&rd->c);
	op->processed_bytes = cursor_u64(&rd->c);
	op->total_bytes = cursor_u64(&rd->c);
	get_identity(rd, &op->identity);
	op->cursor = get_string(rd);
	op->message = get_string(rd);
	if (cursor_done(&rd->c) < 0)
		return log_debug(-EUCLEAN, "length");
	return 0;
}

int weight_record_operation_decode(const void *bytes, size_t len,
				   struct weight_operation **ret)
{
	auto_free void *record = NULL;
	struct weight_operation *op;
	struct reader rd;
	int r = reader_begin(bytes, len, sizeof(*op), &rd, &record);

	if (r < 0)
		return r;
	op = record;
	r = operation_read(&rd, op);
	if (r < 0)
		return r;
	r = stored(weight_operation_check(op, NULL));
	if (r < 0)
		return r;
	*ret = take_ptr(record);
	return 0;
}
