/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes of every kind, and entries of the operation log that are put together
 * by hand, as core/oplog.h says.
 */
#ifndef TESTS_UNIT_OPLOG_FIXTURE_H
#define TESTS_UNIT_OPLOG_FIXTURE_H

#include <check.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/oplog.h"
#include "core/weight_key.h"
#include "core/weight_record.h"
#include "weight_log_fixture.h"

#define SEQUENCE 9
#define TIMESTAMP 2345

/* ---- Changes of every kind ---- */

static struct weight_metadata metadata;
static struct weight_metadata import;
static struct weight_operation operation;
static struct weight_operation superseded;
static struct weight_lease lease;
static struct weight_lineage_record lineage;
static struct weight_lineage_record unclaimed;
static struct weight_lineage_record undescribed;

static char revision_key[WEIGHT_METADATA_LOG_KEY_LEN + 1];
static char lineage_key[WEIGHT_LINEAGE_LOG_KEY_LEN + 1];

static inline void setup(void)
{
	metadata = demo_metadata();
	import = demo_import();
	operation = demo_operation();
	superseded = demo_operation();
	superseded.operation_id = 2;
	superseded.fenced_metadata_generation = 3;
	superseded.cursor = "";
	superseded.message = WEIGHT_OPERATION_SUPERSEDED;
	lease = demo_lease();
	lineage = demo_lineage();
	unclaimed = (struct weight_lineage_record){
		.lineage = lineage.lineage,
		.lineage_metadata_generation = 1,
		.watermark = 7,
	};
	undescribed = lineage;
	undescribed.claim.described = false;
	undescribed.claim.import = (struct weight_import){ 0 };
	ck_assert_int_eq(
		weight_metadata_log_key(&metadata.identity, revision_key), 0);
	ck_assert_int_eq(
		weight_lineage_log_key(&metadata.identity.lineage, lineage_key),
		0);
}

static inline struct oplog_change upsert(const struct weight_metadata *m)
{
	return (struct oplog_change){ .type = OPLOG_METADATA_UPSERT,
				      .timestamp_ms = TIMESTAMP,
				      .metadata = m };
}

static inline struct oplog_change upsert_with(size_t operation_count)
{
	struct oplog_change c = upsert(&metadata);

	c.operation_count = operation_count;
	c.operations[0] = &operation;
	c.operations[1] = &superseded;
	return c;
}

static inline struct oplog_change tombstone(void)
{
	return (struct oplog_change){ .type = OPLOG_METADATA_DELETE,
				      .timestamp_ms = TIMESTAMP,
				      .identity = metadata.identity,
				      .metadata_generation = 6 };
}

static inline struct oplog_change lease_upsert(void)
{
	return (struct oplog_change){ .type = OPLOG_LEASE_UPSERT,
				      .timestamp_ms = TIMESTAMP,
				      .lease = &lease,
				      .last_accessed_at_ms = 3456 };
}

static inline struct oplog_change lease_delete(void)
{
	return (struct oplog_change){ .type = OPLOG_LEASE_DELETE,
				      .timestamp_ms = TIMESTAMP,
				      .lease_id = 5,
				      .identity = metadata.identity,
				      .metadata_generation = 2 };
}

static inline struct oplog_change lineage_upsert(
	const struct weight_lineage_record *l)
{
	return (struct oplog_change){ .type = OPLOG_LINEAGE_UPSERT,
				      .timestamp_ms = TIMESTAMP,
				      .lineage = l };
}

#define SAMPLES 10

static inline struct oplog_change sample(int i)
{
	const struct oplog_change samples[SAMPLES] = {
		upsert(&import),
		upsert_with(0),
		upsert_with(1),
		upsert_with(2),
		tombstone(),
		lease_upsert(),
		lease_delete(),
		lineage_upsert(&unclaimed),
		lineage_upsert(&lineage),
		lineage_upsert(&undescribed),
	};

	return samples[i];
}

static inline void encode(const struct oplog_change *c, struct buf *ret)
{
	ck_assert_int_eq(oplog_encode(c, SEQUENCE, ret), 0);
}

/* Decodes a private copy, so that the sanitizer sees a read past its end. */
static inline int decode(const char *bytes, size_t len,
			 struct oplog_entry **ret)
{
	auto_free char *copy = malloc(len ? len : 1);
	int r;

	ck_assert_ptr_nonnull(copy);
	memcpy(copy, bytes, len);
	r = oplog_decode(copy, len, ret);
	ck_assert(r == 0 || !*ret);
	return r;
}

/* The error, or 0 for what is accepted. */
static inline int verdict(const struct buf *entry)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;

	return decode(entry->data, entry->len, &e);
}

/* ---- Entries by hand, after the header ---- */

static inline void put(struct buf *b, uint64_t v, size_t size)
{
	uint64_t le = htole64(v);

	ck_assert_int_eq(buf_append(b, &le, size), 0);
}

static inline void put_bytes(struct buf *b, const void *bytes, size_t len)
{
	ck_assert_int_eq(buf_append(b, bytes, len), 0);
}

static inline void put_identity(struct buf *b, const struct weight_identity *id)
{
	ck_assert_int_eq(weight_record_identity_encode(id, b), 0);
}

static inline void put_record(struct buf *b, struct buf *record)
{
	put(b, record->len, 4);
	put_bytes(b, record->data, record->len);
	buf_release(record);
}

static inline void put_metadata(struct buf *b, const struct weight_metadata *m)
{
	struct buf record = BUF_INIT;

	ck_assert_int_eq(weight_record_metadata_encode(m, &record), 0);
	put_record(b, &record);
}

static inline void put_operation(struct buf *b,
				 const struct weight_operation *op)
{
	struct buf record = BUF_INIT;

	ck_assert_int_eq(weight_record_operation_encode(op, &record), 0);
	put_record(b, &record);
}

static inline void put_lease(struct buf *b, const struct weight_lease *l)
{
	struct buf record = BUF_INIT;

	ck_assert_int_eq(weight_record_lease_encode(l, &record), 0);
	put_record(b, &record);
}

static inline void put_lineage(struct buf *b,
			       const struct weight_lineage_record *l)
{
	struct buf record = BUF_INIT;

	ck_assert_int_eq(weight_record_lineage_encode(l, &record), 0);
	put_record(b, &record);
}

/* Releases payload. */
static inline void craft(unsigned type, const char *tenant, const char *key,
			 struct buf *payload, struct buf *ret)
{
	struct buf covered = BUF_INIT;

	put(ret, 1, 2);
	put(ret, type, 1);
	put(ret, 0, 1);
	put(ret, SEQUENCE, 8);
	put(ret, TIMESTAMP, 8);
	put(ret, XXH32(payload->data, payload->len, 0), 4);
	put(ret, XXH32(key, strlen(key), 0), 4);
	put_bytes(&covered, ret->data, ret->len);
	put_bytes(&covered, tenant, strlen(tenant));
	put(ret, XXH32(covered.data, covered.len, 0), 4);
	put(ret, strlen(tenant), 2);
	put_bytes(ret, tenant, strlen(tenant));
	put(ret, strlen(key), 2);
	put_bytes(ret, key, strlen(key));
	put(ret, payload->len, 4);
	put_bytes(ret, payload->data, payload->len);
	buf_release(&covered);
	buf_release(payload);
}

/* The payload of a sample, written after the header. */
static inline const char *payload_of(const struct oplog_change *c,
				     struct buf *ret)
{
	switch (c->type) {
	case OPLOG_METADATA_UPSERT:
		put_metadata(ret, c->metadata);
		put(ret, c->operation_count, 1);
		for (size_t i = 0; i < c->operation_count; i++)
			put_operation(ret, c->operations[i]);
		return revision_key;
	case OPLOG_METADATA_DELETE:
		put_identity(ret, &c->identity);
		put(ret, c->metadata_generation, 8);
		return revision_key;
	case OPLOG_LEASE_UPSERT:
		put_lease(ret, c->lease);
		put(ret, c->last_accessed_at_ms, 8);
		return "weight-lease:5";
	case OPLOG_LEASE_DELETE:
		put(ret, c->lease_id, 8);
		put_identity(ret, &c->identity);
		put(ret, c->metadata_generation, 8);
		return "weight-lease:5";
	default:
		put_lineage(ret, c->lineage);
		return lineage_key;
	}
}

#endif
