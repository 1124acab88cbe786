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

/* Of a staged import that has a policy of its own; else it is 1. */
#define STAGING_VERSION_POLICY 2

#define LINEAGE_CLAIMED 1u
#define LINEAGE_DESCRIBED 2u
#define LINEAGE_FLAGS_KNOWN (LINEAGE_CLAIMED | LINEAGE_DESCRIBED)

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

static void put_lineage(struct writer *w, const struct weight_lineage *l)
{
	put_string(w, l->tenant);
	put_string(w, l->name_space);
	put_string(w, l->resource);
	put_string(w, l->revision);
}

static void put_identity(struct writer *w, const struct weight_identity *id)
{
	put_lineage(w, &id->lineage);
	put_u64(w, id->generation);
}

static void put_policy(struct writer *w, const struct weight_policy *p)
{
	put_u8(w, p->preferred);
	put_u8(w, p->mode);
	put_ratio(w, p->mixed_hot_ratio);
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
	unsigned version;
};

static unsigned get_u8(struct reader *rd)
{
	return cursor_u8(&rd->c);
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
	const uint8_t *bytes = cursor_take(&rd->c, len);
	char *s = rd->strings;

	/* Looked at where they were: what was just written is slow to read. */
	if (!bytes || len > WEIGHT_RECORD_STRING_MAX ||
	    memchr(bytes, '\0', len)) {
		rd->c.bad = true;
		return "";
	}
	memcpy(s, bytes, len);
	s[len] = '\0';
	rd->strings += len + 1;
	return s;
}

static void get_lineage(struct reader *rd, struct weight_lineage *ret)
{
	ret->tenant = get_string(rd);
	ret->name_space = get_string(rd);
	ret->resource = get_string(rd);
	ret->revision = get_string(rd);
}

static void get_identity(struct reader *rd, struct weight_identity *ret)
{
	get_lineage(rd, &ret->lineage);
	ret->generation = cursor_u64(&rd->c);
}

static void get_policy(struct reader *rd, struct weight_policy *ret)
{
	ret->preferred = get_u8(rd);
	ret->mode = get_u8(rd);
	ret->mixed_hot_ratio = get_ratio(rd);
}

/*
 * Starts reading a record: allocates it, size bytes and room for its strings,
 * and reads the version.
 */
static int reader_begin(const void *bytes, size_t len, unsigned version_max,
			size_t size, struct reader *rd, void **ret)
{
	struct cursor c = cursor_over(bytes, len);
	uint16_t version = cursor_u16(&c);
	char *record;

	if (c.bad || version == 0 || len > WEIGHT_RECORD_BYTES_MAX)
		return log_debug(-EUCLEAN, "%zu bytes, version %u", len,
				 version);
	if (version > version_max)
		return log_debug(-EPROTONOSUPPORT, "version %u", version);
	record = malloc(size + len);
	if (!record)
		return -ENOMEM;
	memset(record, 0, size);
	*rd = (struct reader){ .c = c,
			       .strings = record + size,
			       .version = version };
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

typedef int metadata_check_fn(const struct weight_metadata *m, struct buf *why);

static int metadata_decode(const void *bytes, size_t len,
			   metadata_check_fn *check,
			   struct weight_metadata **ret)
{
	auto_free void *record = NULL;
	struct weight_metadata *m;
	struct reader rd;
	int r = reader_begin(bytes, len, WEIGHT_RECORD_VERSION, sizeof(*m), &rd,
			     &record);

	if (r < 0)
		return r;
	m = record;
	r = metadata_read(&rd, m);
	if (r < 0)
		return r;
	r = stored(check(m, NULL));
	if (r < 0)
		return r;
	*ret = take_ptr(record);
	return 0;
}

int weight_record_metadata_decode(const void *bytes, size_t len,
				  struct weight_metadata **ret)
{
	return metadata_decode(bytes, len, weight_metadata_check, ret);
}

int weight_record_metadata_decode_again(const void *bytes, size_t len,
					struct weight_metadata **ret)
{
	return metadata_decode(bytes, len, weight_metadata_check_again, ret);
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
	int r = reader_begin(bytes, len, WEIGHT_RECORD_VERSION, sizeof(*lease),
			     &rd, &record);

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

static int staging_check(const struct weight_staging *s)
{
	int r = weight_identity_check(&s->identity, NULL);

	if (r < 0 || !s->has_policy)
		return r;
	return weight_policy_check(&s->policy, NULL);
}

int weight_record_staging_encode(const struct weight_staging *s,
				 struct buf *ret)
{
	struct writer w = { .bytes = BUF_INIT };
	int r = staging_check(s);

	if (r < 0)
		return r;
	put_u16(&w,
		s->has_policy ? STAGING_VERSION_POLICY : WEIGHT_RECORD_VERSION);
	put_u16(&w, 0);
	put_u64(&w, s->created_at_ms);
	put_u64(&w, s->epoch);
	put_identity(&w, &s->identity);
	if (s->has_policy)
		put_policy(&w, &s->policy);
	return writer_finish(&w, ret);
}

/* Reads what follows the version. Errors: -EUCLEAN. */
static int staging_read(struct reader *rd, struct weight_staging *s)
{
	uint16_t zero = cursor_u16(&rd->c);

	s->created_at_ms = cursor_u64(&rd->c);
	s->epoch = cursor_u64(&rd->c);
	get_identity(rd, &s->identity);
	s->has_policy = rd->version >= STAGING_VERSION_POLICY;
	if (s->has_policy)
		get_policy(rd, &s->policy);
	if (cursor_done(&rd->c) < 0 || zero != 0)
		return log_debug(-EUCLEAN, "length or reserved field");
	return 0;
}

int weight_record_staging_decode(const void *bytes, size_t len,
				 struct weight_staging **ret)
{
	auto_free void *record = NULL;
	struct weight_staging *s;
	struct reader rd;
	int r = reader_begin(bytes, len, STAGING_VERSION_POLICY, sizeof(*s),
			     &rd, &record);

	if (r < 0)
		return r;
	s = record;
	r = staging_read(&rd, s);
	if (r < 0)
		return r;
	r = stored(staging_check(s));
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
	int r = reader_begin(bytes, len, WEIGHT_RECORD_VERSION, sizeof(*op),
			     &rd, &record);

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

static void put_claim(struct writer *w, const struct weight_claim *c)
{
	put_u8(w, c->mode);
	put_u8(w, c->phase);
	put_u64(w, c->base);
	put_u64(w, c->target);
	put_u64(w, c->expected_base_metadata_generation);
	put_u64(w, c->created_at_ms);
	put_u64(w, c->updated_at_ms);
	put_string(w, c->request_id);
	put_string(w, c->error);
	if (!c->described)
		return;
	put_u64(w, c->import.payload_count);
	put_u64(w, c->import.logical_bytes);
	put_policy(w, &c->import.policy);
	put_u64(w, c->import.affinity_count);
	put_digest(w, &c->import.affinity_digest);
}

int weight_record_lineage_encode(const struct weight_lineage_record *l,
				 struct buf *ret)
{
	struct writer w = { .bytes = BUF_INIT };
	bool described = l->claimed && l->claim.described;
	int r = weight_lineage_record_check(l, NULL);

	if (r < 0)
		return r;
	put_u16(&w, WEIGHT_RECORD_VERSION);
	put_u64(&w, l->watermark);
	put_u64(&w, l->lineage_metadata_generation);
	put_u16(&w, (l->claimed ? LINEAGE_CLAIMED : 0) |
			    (described ? LINEAGE_DESCRIBED : 0));
	put_lineage(&w, &l->lineage);
	if (l->claimed)
		put_claim(&w, &l->claim);
	return writer_finish(&w, ret);
}

static void get_claim(struct reader *rd, struct weight_claim *c)
{
	c->mode = get_u8(rd);
	c->phase = get_u8(rd);
	c->base = cursor_u64(&rd->c);
	c->target = cursor_u64(&rd->c);
	c->expected_base_metadata_generation = cursor_u64(&rd->c);
	c->created_at_ms = cursor_u64(&rd->c);
	c->updated_at_ms = cursor_u64(&rd->c);
	c->request_id = get_string(rd);
	c->error = get_string(rd);
	if (!c->described)
		return;
	c->import.payload_count = cursor_u64(&rd->c);
	c->import.logical_bytes = cursor_u64(&rd->c);
	get_policy(rd, &c->import.policy);
	c->import.affinity_count = cursor_u64(&rd->c);
	get_digest(rd, &c->import.affinity_digest);
}

/* Reads what follows the version. Errors: -EUCLEAN. */
static int lineage_read(struct reader *rd, struct weight_lineage_record *l)
{
	unsigned flags;

	l->watermark = cursor_u64(&rd->c);
	l->lineage_metadata_generation = cursor_u64(&rd->c);
	flags = cursor_u16(&rd->c);
	l->claimed = flags & LINEAGE_CLAIMED;
	l->claim.described = flags & LINEAGE_DESCRIBED;
	get_lineage(rd, &l->lineage);
	if (l->claimed)
		get_claim(rd, &l->claim);
	if (cursor_done(&rd->c) < 0 || (flags & ~LINEAGE_FLAGS_KNOWN) ||
	    (l->claim.described && !l->claimed))
		return log_debug(-EUCLEAN, "length or flags %x", flags);
	return 0;
}

int weight_record_lineage_decode(const void *bytes, size_t len,
				 struct weight_lineage_record **ret)
{
	auto_free void *record = NULL;
	struct weight_lineage_record *l;
	struct reader rd;
	int r = reader_begin(bytes, len, WEIGHT_RECORD_VERSION, sizeof(*l), &rd,
			     &record);

	if (r < 0)
		return r;
	l = record;
	r = lineage_read(&rd, l);
	if (r < 0)
		return r;
	r = stored(weight_lineage_record_check(l, NULL));
	if (r < 0)
		return r;
	*ret = take_ptr(record);
	return 0;
}

int weight_record_identity_encode(const struct weight_identity *id,
				  struct buf *ret)
{
	struct writer w = { .bytes = BUF_INIT };
	int r = weight_identity_check(id, NULL);

	if (r < 0)
		return r;
	put_identity(&w, id);
	return writer_finish(&w, ret);
}

int weight_record_identity_decode(const void *bytes, size_t len,
				  struct weight_identity **ret)
{
	auto_free struct weight_identity *id = NULL;
	struct reader rd = { .c = cursor_over(bytes, len) };
	int r;

	if (len > WEIGHT_RECORD_BYTES_MAX)
		return log_debug(-EUCLEAN, "%zu bytes", len);
	id = malloc(sizeof(*id) + len);
	if (!id)
		return -ENOMEM;
	rd.strings = (char *)(id + 1);
	get_identity(&rd, id);
	if (cursor_done(&rd.c) < 0)
		return log_debug(-EUCLEAN, "length");
	r = stored(weight_identity_check(id, NULL));
	if (r < 0)
		return r;
	*ret = take_ptr(id);
	return 0;
}
