/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operation log entries: what each mutation of the weight metadata leaves for
 * those who follow it, as bytes. Pure functions, thread-safe; where the entries
 * are kept is the metadata store's business.
 *
 * An entry is little-endian:
 *	u16	version, OPLOG_VERSION
 *	u8	type
 *	u8	zero
 *	u64	sequence, counts from 1 without a gap
 *	u64	timestamp, ms: that of the record that changed
 *	u32	checksum: 32-bit xxHash with seed 0 of the payload
 *	u32	key hash: the same of the key
 *	u32	head checksum: the same of all bytes before it, and of the tenant
 *	u16	length of the tenant; its bytes
 *	u16	length of the key; its bytes
 *	u32	length of the payload; its bytes
 *
 * The key of an entry names what it changes, see core/weight_key.h: the
 * metadata log key, the lease log key or the lineage log key.
 *
 * Payloads, each made of records as core/weight_record.h encodes them, with a
 * u32 length before each record:
 *	METADATA_UPSERT	revision; u8 count of operations that changed with it,
 *			at most OPLOG_OPERATIONS_MAX; those
 *	METADATA_DELETE	the tombstone of a revision. identity; u64 metadata
 *			generation. It became DELETED at the entry's timestamp
 *	LEASE_UPSERT	lease; u64 last access of its revision, ms
 *	LEASE_DELETE	u64 lease id; identity; u64 fenced metadata generation
 *	LINEAGE_UPSERT	lineage
 *
 * Ownership: what is decoded belongs to the caller with all it points to, for
 * its _free function, which frees it as a whole.
 *
 * Errors of encoding: -EINVAL a record breaks a rule, an unknown type, an
 * operation that doesn't belong to the revision or comes twice; -EFBIG more
 * operations than OPLOG_OPERATIONS_MAX; -ENOMEM, -EOVERFLOW, -EIO. Of decoding:
 * -EUCLEAN damaged or above a limit, -EPROTONOSUPPORT a newer version or an
 * unknown type, -ENOMEM, -EIO.
 *
 * Source: weight contracts, sections 8.1 and 8.4. The numbers never change.
 */
#ifndef CORE_OPLOG_H
#define CORE_OPLOG_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/weight_lineage.h"
#include "core/weight_management.h"

#define OPLOG_VERSION 1
#define OPLOG_KEY_MAX 4096
#define OPLOG_PAYLOAD_MAX ((size_t)10 << 20)
/* One that begins, and the one whose place it takes. */
#define OPLOG_OPERATIONS_MAX 2

enum oplog_type {
	OPLOG_METADATA_UPSERT = 8,
	OPLOG_METADATA_DELETE = 9,
	OPLOG_LEASE_UPSERT = 10,
	OPLOG_LEASE_DELETE = 11,
	OPLOG_LINEAGE_UPSERT = 12,
};

/* "metadata_upsert" and so on, or NULL for a number that is not listed. */
const char *oplog_type_name(enum oplog_type type);

/* A change of the metadata. Which members count, the type says. */
struct oplog_change {
	enum oplog_type type;
	uint64_t timestamp_ms;
	/* METADATA_UPSERT */
	const struct weight_metadata *metadata;
	size_t operation_count;
	const struct weight_operation *operations[OPLOG_OPERATIONS_MAX];
	/* METADATA_DELETE and LEASE_DELETE */
	struct weight_identity identity;
	uint64_t metadata_generation; /* of the tombstone, or the fence */
	uint64_t lease_id;
	/* LEASE_UPSERT */
	const struct weight_lease *lease;
	uint64_t last_accessed_at_ms;
	/* LINEAGE_UPSERT */
	const struct weight_lineage_record *lineage;
};

/* Appends the entry of a change; ret is unchanged on failure. */
int oplog_encode(const struct oplog_change *change, uint64_t sequence,
		 struct buf *ret);

struct oplog_entry {
	uint64_t sequence;
	const char *tenant;
	const char *key;
	struct oplog_change change;
};

/*
 * Checks everything: checksums, that tenant and key are those of the payload,
 * the rules of each record, and that operations belong to their revision.
 */
int oplog_decode(const void *bytes, size_t len, struct oplog_entry **ret);
void oplog_entry_free(struct oplog_entry *e); /* accepts NULL */
DEFINE_CLEANUP(struct oplog_entry *, oplog_entry_free)

#endif
