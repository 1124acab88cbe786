/* SPDX-License-Identifier: Apache-2.0 */
#include "core/oplog.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/cursor.h"
#include "core/log.h"
#include "core/util.h"
#include "core/weight_key.h"
#include "core/weight_record.h"

#define HASH_SEED 0

/* What the head checksum covers, beside the tenant. */
#define HEAD_LEN 28

#define KEY_LEN_MAX WEIGHT_METADATA_LOG_KEY_LEN
#define U32_LEN ((size_t)4)

static_assert(WEIGHT_LINEAGE_LOG_KEY_LEN <= KEY_LEN_MAX &&
		      WEIGHT_LEASE_LOG_KEY_LEN_MAX <= KEY_LEN_MAX &&
		      KEY_LEN_MAX <= OPLOG_KEY_MAX,
	      "every key that is written can be read");
static_assert(1 + (1 + OPLOG_OPERATIONS_MAX) *
				      (U32_LEN + WEIGHT_RECORD_BYTES_MAX) <=
		      OPLOG_PAYLOAD_MAX,
	      "every payload that is written can be read");

static uint32_t hash(const void *bytes, size_t len)
{
	return XXH32(bytes, len, HASH_SEED);
}

/* head is HEAD_LEN bytes, tenant at most WEIGHT_COMPONENT_MAX. */
static uint32_t head_hash(const void *head, const void *tenant, size_t len)
{
	uint8_t joined[HEAD_LEN + WEIGHT_COMPONENT_MAX];

	assert(len <= WEIGHT_COMPONENT_MAX);
	memcpy(joined, head, HEAD_LEN);
	memcpy(joined + HEAD_LEN, tenant, len);
	return hash(joined, HEAD_LEN + len);
}

/* ---- What all types have ---- */

/* The operations of an entry are of its revision, and none comes twice. */
static int operations_check(const struct oplog_change *c)
{
	for (size_t i = 0; i < c->operation_count; i++) {
		const struct weight_operation *op = c->operations[i];

		if (!weight_identity_equal(&op->identity,
					   &c->metadata->identity))
			return log_debug(-EINVAL,
					 "operation of another revision");
		for (size_t k = 0; k < i; k++)
			if (c->operations[k]->operation_id == op->operation_id)
				return log_debug(-EINVAL, "operation twice");
	}
	return 0;
}

/* What no record says of itself. Errors: -EINVAL. */
static int change_check(const struct oplog_change *c)
{
	switch (c->type) {
	case OPLOG_METADATA_UPSERT:
		return operations_check(c);
	case OPLOG_METADATA_DELETE:
		if (c->metadata_generation == 0 ||
		    c->metadata_generation > WEIGHT_METADATA_GENERATION_MAX)
			return log_debug(-EINVAL, "generation of a tombstone");
		return weight_identity_check(&c->identity, NULL);
	case OPLOG_LEASE_DELETE:
		if (c->lease_id == 0 || c->metadata_generation == 0)
			return log_debug(-EINVAL, "lease or fence 0");
		return weight_identity_check(&c->identity, NULL);
	case OPLOG_LEASE_UPSERT:
	case OPLOG_LINEAGE_UPSERT:
		return 0;
	}
	return log_debug(-EINVAL, "type %u", (unsigned)c->type);
}

/* The tenant, borrowed, and the key of a change whose records are valid. */
static int names_of(const struct oplog_change *c, const char **ret_tenant,
		    char key[static KEY_LEN_MAX + 1])
{
	switch (c->type) {
	case OPLOG_METADATA_UPSERT:
		*ret_tenant = c->metadata->identity.lineage.tenant;
		return weight_metadata_log_key(&c->metadata->identity, key);
	case OPLOG_METADATA_DELETE:
		*ret_tenant = c->identity.lineage.tenant;
		return weight_metadata_log_key(&c->identity, key);
	case OPLOG_LEASE_UPSERT:
		*ret_tenant = c->lease->identity.lineage.tenant;
		return weight_lease_log_key(c->lease->lease_id, key);
	case OPLOG_LEASE_DELETE:
		*ret_tenant = c->identity.lineage.tenant;
		return weight_lease_log_key(c->lease_id, key);
	case OPLOG_LINEAGE_UPSERT:
		*ret_tenant = c->lineage->lineage.tenant;
		return weight_lineage_log_key(&c->lineage->lineage, key);
	}
	return log_debug(-EINVAL, "type %u", (unsigned)c->type);
}

/* ---- Encoding ---- */

/* Appends the lowest size bytes of v. */
static int put(struct buf *b, uint64_t v, size_t size)
{
	uint64_t le = htole64(v);

	return buf_append(b, &le, size);
}

/* The length before a record: room for it, and what it has become. */
static int record_begin(struct buf *payload, size_t *ret_at)
{
	*ret_at = payload->len;
	return put(payload, 0, U32_LEN);
}

static void record_end(struct buf *payload, size_t at)
{
	uint32_t le = htole32((uint32_t)(payload->len - at - U32_LEN));

	memcpy(payload->data + at, &le, U32_LEN);
}

static int put_operation(const struct weight_operation *op, struct buf *ret)
{
	size_t at;
	int r;

	if ((r = record_begin(ret, &at)) < 0 ||
	    (r = weight_record_operation_encode(op, ret)) < 0)
		return r;
	record_end(ret, at);
	return 0;
}

static int put_metadata_upsert(const struct oplog_change *c, struct buf *ret)
{
	size_t at;
	int r;

	if (c->operation_count > OPLOG_OPERATIONS_MAX)
		return log_debug(-EFBIG, "%zu operations", c->operation_count);
	if ((r = record_begin(ret, &at)) < 0 ||
	    (r = weight_record_metadata_encode(c->metadata, ret)) < 0)
		return r;
	record_end(ret, at);
	r = put(ret, c->operation_count, 1);
	for (size_t i = 0; r == 0 && i < c->operation_count; i++)
		r = put_operation(c->operations[i], ret);
	return r;
}

static int put_metadata_delete(const struct oplog_change *c, struct buf *ret)
{
	int r = weight_record_identity_encode(&c->identity, ret);

	return r < 0 ? r : put(ret, c->metadata_generation, 8);
}

static int put_lease_upsert(const struct oplog_change *c, struct buf *ret)
{
	size_t at;
	int r;

	if ((r = record_begin(ret, &at)) < 0 ||
	    (r = weight_record_lease_encode(c->lease, ret)) < 0)
		return r;
	record_end(ret, at);
	return put(ret, c->last_accessed_at_ms, 8);
}

static int put_lease_delete(const struct oplog_change *c, struct buf *ret)
{
	int r;

	if ((r = put(ret, c->lease_id, 8)) < 0 ||
	    (r = weight_record_identity_encode(&c->identity, ret)) < 0)
		return r;
	return put(ret, c->metadata_generation, 8);
}

static int put_lineage_upsert(const struct oplog_change *c, struct buf *ret)
{
	size_t at;
	int r;

	if ((r = record_begin(ret, &at)) < 0 ||
	    (r = weight_record_lineage_encode(c->lineage, ret)) < 0)
		return r;
	record_end(ret, at);
	return 0;
}

static int put_head(const struct oplog_change *c, uint64_t sequence,
		    const struct buf *payload, const char *key, struct buf *ret)
{
	int r;

	if ((r = put(ret, OPLOG_VERSION, 2)) < 0 ||
	    (r = put(ret, c->type, 1)) < 0 || (r = put(ret, 0, 1)) < 0 ||
	    (r = put(ret, sequence, 8)) < 0 ||
	    (r = put(ret, c->timestamp_ms, 8)) < 0 ||
	    (r = put(ret, hash(payload->data, payload->len), U32_LEN)) < 0)
		return r;
	return put(ret, hash(key, strlen(key)), U32_LEN);
}

static int put_string(const char *s, struct buf *ret)
{
	int r = put(ret, strlen(s), 2);

	return r < 0 ? r : buf_append(ret, s, strlen(s));
}

static int put_entry(const struct oplog_change *c, uint64_t sequence,
		     const struct buf *payload, struct buf *ret)
{
	char key[KEY_LEN_MAX + 1];
	const char *tenant;
	int r;

	if ((r = names_of(c, &tenant, key)) < 0 ||
	    (r = put_head(c, sequence, payload, key, ret)) < 0 ||
	    (r = put(ret, head_hash(ret->data, tenant, strlen(tenant)),
		     U32_LEN)) < 0 ||
	    (r = put_string(tenant, ret)) < 0 ||
	    (r = put_string(key, ret)) < 0 ||
	    (r = put(ret, payload->len, U32_LEN)) < 0)
		return r;
	return buf_append(ret, payload->data, payload->len);
}

/* ---- Decoding ---- */

/* An entry with what it owns. */
struct decoded {
	struct oplog_entry entry;
	char key[KEY_LEN_MAX + 1];
	struct weight_metadata *metadata;
	struct weight_operation *operations[OPLOG_OPERATIONS_MAX];
	struct weight_identity *identity;
	struct weight_lease *lease;
	struct weight_lineage_record *lineage;
};

void oplog_entry_free(struct oplog_entry *e)
{
	struct decoded *d;

	if (!e)
		return;
	d = container_of(e, struct decoded, entry);
	weight_metadata_free(d->metadata);
	for (size_t i = 0; i < ARRAY_LEN(d->operations); i++)
		weight_operation_free(d->operations[i]);
	weight_identity_free(d->identity);
	weight_lease_free(d->lease);
	weight_lineage_record_free(d->lineage);
	free(d);
}

struct slice {
	const uint8_t *at;
	size_t len;
};

/* No more than max bytes; none when that is damage. */
static struct slice take(struct cursor *c, size_t len, size_t max)
{
	struct slice s = { .len = len };

	if (len > max)
		c->bad = true;
	s.at = cursor_take(c, len);
	if (!s.at)
		s.len = 0;
	return s;
}

static struct slice take_record(struct cursor *c)
{
	return take(c, cursor_u32(c), WEIGHT_RECORD_BYTES_MAX);
}

static int get_metadata_upsert(struct cursor *c, struct decoded *d)
{
	struct oplog_change *change = &d->entry.change;
	struct slice record = take_record(c);
	size_t count;
	int r;

	r = weight_record_metadata_decode(record.at, record.len, &d->metadata);
	if (r < 0)
		return r;
	change->metadata = d->metadata;
	count = cursor_u8(c);
	if (count > OPLOG_OPERATIONS_MAX)
		return log_debug(-EUCLEAN, "%zu operations", count);
	for (size_t i = 0; i < count; i++) {
		record = take_record(c);
		r = weight_record_operation_decode(record.at, record.len,
						   &d->operations[i]);
		if (r < 0)
			return r;
		change->operations[i] = d->operations[i];
	}
	change->operation_count = count;
	return 0;
}

/* An identity, and the u64 behind it that ends the payload. */
static int get_identity(struct cursor *c, struct decoded *d)
{
	struct oplog_change *change = &d->entry.change;
	struct slice bytes = { .len = 0 };
	int r;

	if (c->left > sizeof(uint64_t))
		bytes = take(c, c->left - sizeof(uint64_t),
			     WEIGHT_RECORD_BYTES_MAX);
	r = weight_record_identity_decode(bytes.at, bytes.len, &d->identity);
	if (r < 0)
		return r;
	change->identity = *d->identity;
	change->metadata_generation = cursor_u64(c);
	return 0;
}

static int get_lease_delete(struct cursor *c, struct decoded *d)
{
	d->entry.change.lease_id = cursor_u64(c);
	return get_identity(c, d);
}

static int get_lease_upsert(struct cursor *c, struct decoded *d)
{
	struct slice record = take_record(c);
	int r;

	r = weight_record_lease_decode(record.at, record.len, &d->lease);
	if (r < 0)
		return r;
	d->entry.change.lease = d->lease;
	d->entry.change.last_accessed_at_ms = cursor_u64(c);
	return 0;
}

static int get_lineage_upsert(struct cursor *c, struct decoded *d)
{
	struct slice record = take_record(c);
	int r;

	r = weight_record_lineage_decode(record.at, record.len, &d->lineage);
	if (r < 0)
		return r;
	d->entry.change.lineage = d->lineage;
	return 0;
}

/* clang-format off */
static const struct kind {
	const char *name;
	int (*put)(const struct oplog_change *c, struct buf *ret);
	int (*get)(struct cursor *c, struct decoded *d);
} kinds[] = {
	[OPLOG_METADATA_UPSERT] = { "metadata_upsert", put_metadata_upsert,
				    get_metadata_upsert },
	[OPLOG_METADATA_DELETE] = { "metadata_delete", put_metadata_delete,
				    get_identity },
	[OPLOG_LEASE_UPSERT]    = { "lease_upsert",    put_lease_upsert,
				    get_lease_upsert },
	[OPLOG_LEASE_DELETE]    = { "lease_delete",    put_lease_delete,
				    get_lease_delete },
	[OPLOG_LINEAGE_UPSERT]  = { "lineage_upsert",  put_lineage_upsert,
				    get_lineage_upsert },
};
/* clang-format on */

const char *oplog_type_name(enum oplog_type type)
{
	return (unsigned)type < ARRAY_LEN(kinds) ? kinds[type].name : NULL;
}

int oplog_encode(const struct oplog_change *change, uint64_t sequence,
		 struct buf *ret)
{
	cleanup(buf_release) struct buf payload = BUF_INIT;
	cleanup(buf_release) struct buf entry = BUF_INIT;
	int r;

	if (!oplog_type_name(change->type) || sequence == 0)
		return log_debug(-EINVAL, "type %u or sequence 0",
				 (unsigned)change->type);
	if ((r = kinds[change->type].put(change, &payload)) < 0 ||
	    (r = change_check(change)) < 0 ||
	    (r = put_entry(change, sequence, &payload, &entry)) < 0)
		return r;
	return buf_append(ret, entry.data, entry.len);
}

/* The parts of an entry as they lie in its bytes. */
struct parts {
	unsigned type;
	uint64_t sequence;
	uint64_t timestamp_ms;
	struct slice tenant;
	struct slice key;
	struct slice payload;
};

/*
 * Errors: -EUCLEAN; -EPROTONOSUPPORT. Nothing is believed of another version,
 * not even where its checksums are.
 */
static int parts_read(const void *bytes, size_t len, struct parts *ret)
{
	struct cursor c = cursor_over(bytes, len);
	uint32_t checksum, key_hash, head_checksum;
	uint16_t version = cursor_u16(&c);
	struct parts p;
	uint8_t zero;

	if (c.bad || version == 0)
		return log_debug(-EUCLEAN, "%zu bytes, version %u", len,
				 version);
	if (version > OPLOG_VERSION)
		return log_debug(-EPROTONOSUPPORT, "version %u", version);
	p.type = cursor_u8(&c);
	zero = cursor_u8(&c);
	p.sequence = cursor_u64(&c);
	p.timestamp_ms = cursor_u64(&c);
	checksum = cursor_u32(&c);
	key_hash = cursor_u32(&c);
	head_checksum = cursor_u32(&c);
	p.tenant = take(&c, cursor_u16(&c), WEIGHT_COMPONENT_MAX);
	p.key = take(&c, cursor_u16(&c), OPLOG_KEY_MAX);
	p.payload = take(&c, cursor_u32(&c), OPLOG_PAYLOAD_MAX);
	if (cursor_done(&c) < 0)
		return log_debug(-EUCLEAN, "length");
	if (head_checksum != head_hash(bytes, p.tenant.at, p.tenant.len) ||
	    key_hash != hash(p.key.at, p.key.len) ||
	    checksum != hash(p.payload.at, p.payload.len))
		return log_debug(-EUCLEAN, "checksum");
	if (zero != 0 || p.sequence == 0)
		return log_debug(-EUCLEAN, "reserved field or sequence 0");
	*ret = p;
	return 0;
}

static bool slice_is(const struct slice *s, const char *text)
{
	return s->len == strlen(text) && memcmp(s->at, text, s->len) == 0;
}

/* Everything behind the checksums. Errors also: -EINVAL, for damage. */
static int change_read(const struct parts *p, struct decoded *d)
{
	struct oplog_change *change = &d->entry.change;
	struct cursor c = cursor_over(p->payload.at, p->payload.len);
	int r;

	change->type = p->type;
	change->timestamp_ms = p->timestamp_ms;
	if (!oplog_type_name(change->type))
		return log_debug(-EPROTONOSUPPORT, "type %u", p->type);
	r = kinds[p->type].get(&c, d);
	if (r < 0)
		return r;
	if (cursor_done(&c) < 0)
		return log_debug(-EUCLEAN, "length of the payload");
	r = change_check(change);
	if (r < 0)
		return r;
	r = names_of(change, &d->entry.tenant, d->key);
	if (r < 0)
		return r;
	if (!slice_is(&p->tenant, d->entry.tenant) ||
	    !slice_is(&p->key, d->key))
		return log_debug(-EUCLEAN, "tenant or key of something else");
	d->entry.sequence = p->sequence;
	d->entry.key = d->key;
	return 0;
}

int oplog_decode(const void *bytes, size_t len, struct oplog_entry **ret)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;
	struct decoded *d;
	struct parts p;
	int r = parts_read(bytes, len, &p);

	if (r < 0)
		return r;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	e = &d->entry;
	r = change_read(&p, d);
	if (r < 0)
		return r == -EINVAL ? -EUCLEAN : r;
	*ret = take_ptr(e);
	return 0;
}
