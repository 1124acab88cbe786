/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots: all weight metadata of a store as one file, written and read as a
 * stream in bounded memory. What is in it is checked record by record here, and
 * as a whole by who restores it.
 *
 * The file is little-endian:
 *	u8[8]	"wfsnap\r\n"
 *	u32	schema version: WEIGHT_SNAPSHOT_SCHEMA, or 2, which has no lineages
 *	u32	zero
 *	u64	cursor: sequence of the last entry of the operation log that is
 *		in it, 0 for none
 *	u64	next lease id, 1 or more
 *	u64	next operation id, 1 or more
 *	items, each u8 kind, u32 length, and the record as core/weight_record.h
 *		encodes it; in the order of their kinds
 *	u8	0
 *	u64[4]	how many revisions, leases, operations, lineages
 *	u8[32]	SHA-256 of all bytes before it
 *
 * Two stores with the same metadata give the same bytes: revisions and lineages
 * come in the order of the metadata store's keys, leases and operations by id.
 *
 * Ownership: a writer or reader belongs to who made it; the descriptor is
 * borrowed and is left where the stream ends. A snapshot is read to the end of
 * its file. One thread at a time.
 *
 * Errors of writing: those of write(2) and of encoding a record. What write(2)
 * has refused once, the writer refuses from then on. Errors of reading, with a
 * sentence in why but for -ENOMEM at the beginning; they, too, stay:
 *  -EUCLEAN	not a snapshot, cut, damaged, or a record that breaks its rules
 *  -EPROTONOSUPPORT	a newer schema, or a newer record
 *  -ENOMEM, -EIO
 *
 * Source: weight contracts, sections 6.14 and 8.5.
 */
#ifndef CORE_WEIGHT_SNAPSHOT_H
#define CORE_WEIGHT_SNAPSHOT_H

#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/weight_lineage.h"
#include "core/weight_management.h"

#define WEIGHT_SNAPSHOT_SCHEMA 3
#define WEIGHT_SNAPSHOT_SCHEMA_OLDEST 2

enum weight_snapshot_kind {
	WEIGHT_SNAPSHOT_END = 0,
	WEIGHT_SNAPSHOT_METADATA = 1,
	WEIGHT_SNAPSHOT_LEASE = 2,
	WEIGHT_SNAPSHOT_OPERATION = 3,
	WEIGHT_SNAPSHOT_LINEAGE = 4,
};

struct weight_snapshot_head {
	unsigned schema_version;
	uint64_t cursor;
	uint64_t next_lease_id;
	uint64_t next_operation_id;
};

struct weight_snapshot_writer;

/* Errors also: -EINVAL a schema or next id that no snapshot has. */
int weight_snapshot_write_begin(int fd, const struct weight_snapshot_head *head,
				struct weight_snapshot_writer **ret);
/* In the order of the kinds and as the schema has them, else -EINVAL. */
int weight_snapshot_write_metadata(struct weight_snapshot_writer *w,
				   const struct weight_metadata *m);
int weight_snapshot_write_lease(struct weight_snapshot_writer *w,
				const struct weight_lease *lease);
int weight_snapshot_write_operation(struct weight_snapshot_writer *w,
				    const struct weight_operation *op);
int weight_snapshot_write_lineage(struct weight_snapshot_writer *w,
				  const struct weight_lineage_record *l);
/* Writes the end and what is still buffered. No fsync. Then comes no more. */
int weight_snapshot_write_end(struct weight_snapshot_writer *w);
void weight_snapshot_writer_free(struct weight_snapshot_writer *w);
DEFINE_CLEANUP(struct weight_snapshot_writer *, weight_snapshot_writer_free)

/* One record; which member is set, the kind says. The caller frees it. */
struct weight_snapshot_item {
	enum weight_snapshot_kind kind;
	struct weight_metadata *metadata;
	struct weight_lease *lease;
	struct weight_operation *operation;
	struct weight_lineage_record *lineage;
};
void weight_snapshot_item_release(struct weight_snapshot_item *item);

struct weight_snapshot_reader;

int weight_snapshot_read_begin(int fd, struct weight_snapshot_head *ret_head,
			       struct weight_snapshot_reader **ret,
			       struct buf *why);
/*
 * The next record. WEIGHT_SNAPSHOT_END says that the counts and the digest were
 * right and nothing follows: only then may anything of it be believed.
 */
int weight_snapshot_read_next(struct weight_snapshot_reader *r,
			      struct weight_snapshot_item *ret,
			      struct buf *why);
void weight_snapshot_reader_free(struct weight_snapshot_reader *r);
DEFINE_CLEANUP(struct weight_snapshot_reader *, weight_snapshot_reader_free)

#endif
