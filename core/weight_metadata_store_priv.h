/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the weight metadata store: what its parts (records and boots,
 * leases, operations) share. Errors are those of the functions in the public
 * header.
 */
#ifndef CORE_WEIGHT_METADATA_STORE_PRIV_H
#define CORE_WEIGHT_METADATA_STORE_PRIV_H

#include <stdatomic.h>

#include "core/metrics.h"
#include "core/oplog.h"
#include "core/weight_metadata_store.h"

struct weight_metadata_store {
	struct meta *meta;
	bool is_new;
	uint64_t schema; /* of what is on the disk; 0: nothing ever was */
	/* Every revision was decoded since it was opened, or encoded. */
	atomic_bool all_checked;
	struct wms_options options;
	/* The last change found no room, or only what is kept for others. */
	atomic_bool is_short;
};

/* A body that found nothing to write; the transaction is dropped. */
#define WMS_NOTHING_TO_WRITE 1

/* From it on there are a log, and lists of names. */
#define WMS_SCHEMA_WITH_LOG 2

#define WMS_U64_LEN 8
#define WMS_STATE_NEXT_OPERATION_ID "next_operation_id"

struct wms_key {
	size_t len;
	unsigned char bytes[META_KEY_MAX];
};

/* Keys sort as numbers. */
void wms_u64_key(uint64_t v, unsigned char ret[static WMS_U64_LEN]);

/* The key of a revision and of its staging record. */
int wms_key_of(const struct weight_identity *identity, struct wms_key *ret);

/* name is absent: *ret is `absent`. */
int wms_state_get(struct meta_txn *txn, const char *name, uint64_t absent,
		  uint64_t *ret);
int wms_state_put(struct meta_txn *txn, const char *name, uint64_t value);

/*
 * A map whose keys are those of wms_key_of() and whose records begin with their
 * identity.
 */
struct wms_table {
	enum meta_db db;
	int (*decode)(const struct meta_bytes *bytes, void **ret);
	void (*free)(void *record);
};

extern const struct wms_table wms_revisions; /* struct weight_metadata */
extern const struct wms_table wms_stagings;  /* struct weight_staging */
/* For reading, when they may have been checked already. */
const struct wms_table *wms_revisions_of(
	const struct weight_metadata_store *store);

/* -ENOENT. wms_table_find() stores NULL instead. */
int wms_table_get(struct meta_txn *txn, const struct wms_table *t,
		  const struct wms_key *key,
		  const struct weight_identity *identity, void **ret);
int wms_table_find(struct meta_txn *txn, const struct wms_table *t,
		   const struct wms_key *key,
		   const struct weight_identity *identity, void **ret);

/*
 * In transactions of their own: by identity, the lowest generation above
 * `after`, and one, or at most `limit`, from a position on. -ENOENT there is
 * none. Where some are read, an error in one of them waits until it is the
 * first.
 */
int wms_table_read(struct weight_metadata_store *store,
		   const struct wms_table *t,
		   const struct weight_identity *identity, void **ret);
int wms_table_next(struct weight_metadata_store *store,
		   const struct wms_table *t,
		   const struct weight_lineage *lineage, uint64_t after,
		   void **ret);
int wms_table_each(struct weight_metadata_store *store,
		   const struct wms_table *t, struct wms_position *position,
		   void **ret);
int wms_table_some(struct weight_metadata_store *store,
		   const struct wms_table *t, struct wms_position *position,
		   size_t limit, void *ret[], size_t *ret_count);

/* What all keys of a lineage's revisions begin with. */
int wms_key_of_lineage(const struct weight_lineage *l, struct wms_key *ret);
/* What all keys of a resource's revisions begin with. */
int wms_key_of_resource(const char *const parts[static 3], struct wms_key *ret);
void wms_key_add(struct wms_key *key, const void *bytes, size_t len);
void wms_key_add_u64(struct wms_key *key, uint64_t v);

/* What a mutation of one identity finds. */
struct wms_found {
	struct weight_metadata *revision; /* or NULL, and so on */
	struct weight_staging *staged;
	struct weight_lineage_record *lineage;
};
int wms_found_get(struct meta_txn *txn, const struct wms_key *key,
		  const struct weight_identity *identity,
		  struct wms_found *ret);
void wms_found_release(struct wms_found *f);

/* -ENOENT. */
int wms_revision_get(struct meta_txn *txn, const struct wms_key *key,
		     const struct weight_identity *identity,
		     struct weight_metadata **ret);
int wms_revision_put(struct meta_txn *txn, const struct wms_key *key,
		     const struct weight_metadata *m);

/* ---- Residency operations, inside a transaction ---- */

/* -ENOENT. */
int wms_operation_read(struct meta_txn *txn, uint64_t id,
		       struct weight_operation **ret);

/* The id that the next operation gets. */
int wms_operation_next_id(struct meta_txn *txn, uint64_t *ret);

/* Writes one, and raises the next id above its own. */
int wms_operation_put(struct meta_txn *txn, const struct weight_operation *op);

/* The active one of a revision, which must be there; NULL when m has none. */
int wms_operation_active(struct meta_txn *txn, const struct weight_metadata *m,
			 struct weight_operation **ret);

/* As weight_operation_blocks(), of the active one. */
int wms_operation_blocks(struct meta_txn *txn, const struct weight_metadata *m,
			 bool *ret);

/* ---- Lineages, inside a transaction ---- */

/* NULL when it has none. */
int wms_lineage_find(struct meta_txn *txn, const struct weight_lineage *lineage,
		     struct weight_lineage_record **ret);
int wms_lineage_put(struct meta_txn *txn,
		    const struct weight_lineage_record *l);
/* Whether a replacement keeps everybody from the revision. */
int wms_fenced(struct meta_txn *txn, const struct weight_identity *identity,
	       bool *ret);
/* Makes the lineage one of those that wms_names_next() finds. */
int wms_names_add(struct meta_txn *txn, enum wms_names names,
		  const struct weight_lineage *lineage);
/* Does so for each tombstone that is there. */
int wms_names_add_tombstones(struct meta_txn *txn);
/* The key of the lineage itself among them; its len is 0 where it has none. */
int wms_names_key(enum wms_names names, const struct weight_lineage *lineage,
		  struct wms_key *ret);

/* ---- The log, inside a transaction ---- */

/*
 * Adds the entry of what a body has written. Errors: -EIO not confirmed, see
 * struct wms_options.
 */
int wms_log(const struct weight_metadata_store *store, struct meta_txn *txn,
	    const struct oplog_change *change);

/* -ENOENT. Borrowed from the transaction. */
int wms_oplog_read(struct meta_txn *txn, uint64_t sequence,
		   struct meta_bytes *ret);
int wms_oplog_state_get(struct meta_txn *txn, struct wms_oplog_state *ret);
/*
 * Removes some of the oldest entries, in a transaction of its own. -ENOSPC: there
 * are none, or somebody needs them.
 */
int wms_oplog_make_room(struct weight_metadata_store *store);
/* The log begins, empty, with this sequence. */
int wms_oplog_begin(struct meta_txn *txn, uint64_t next);

/*
 * Writes a revision with the operations that changed with it, at most
 * OPLOG_OPERATIONS_MAX, and their entry.
 */
int wms_revision_write(const struct weight_metadata_store *store,
		       struct meta_txn *txn, const struct wms_key *key,
		       const struct weight_metadata *m,
		       const struct weight_operation *const ops[],
		       size_t op_count);

/* ---- Checking, inside a transaction ---- */

struct wms_checking {
	struct meta_txn *txn;
	bool logged;        /* it has a log, and lists of names */
	struct buf *report; /* a line for each thing that is wrong */
	uint64_t bad;       /* how many there are */
	uint64_t next_lease_id, next_operation_id;
};
/* Adds a line. One too many is counted, not kept. Errors: -ENOMEM. */
__attribute__((format(printf, 2, 3))) int wms_check_note(struct wms_checking *c,
							 const char *format,
							 ...);
/* All records, and what they say of each other; then the log. */
int wms_check_records(struct wms_checking *c);
int wms_check_log(struct wms_checking *c);

/* What a store goes on with that was filled from elsewhere. */
int wms_next_ids_put(struct meta_txn *txn, uint64_t next_lease_id,
		     uint64_t next_operation_id);

/*
 * What the metrics count of a revision. Both may be NULL; of an operation that
 * is not the active one nothing is counted.
 */
struct wms_shape {
	bool there;
	bool operates;
	enum weight_availability availability;
	enum weight_residency residency;
	uint64_t remaining_bytes; /* of the operation */
};
struct wms_shape wms_shape_of(const struct weight_metadata *m,
			      const struct weight_operation *op);
/* After a change was committed. */
void wms_count_change(const struct wms_shape *before,
		      const struct wms_shape *after);
/* Likewise of the claim of a lineage; before may be NULL. */
void wms_count_claim(const struct weight_claim *before,
		     const struct weight_claim *after);

/* The metric for what a claim is. Any mode and phase that there is. */
enum metric wms_claim_metric(enum weight_upsert_mode mode,
			     enum weight_upsert_phase phase);

/* Calls meta_update(); what has nothing to write is a success. */
int wms_update(struct weight_metadata_store *store, enum meta_purpose purpose,
	       meta_body_fn *body, void *arg);

/* ---- Leases, inside a transaction ---- */

/*
 * What the leases of one revision say. Counts active ones of other holders
 * than `ignore` (or NULL), and finds the live one of `holder` (or NULL), for
 * the caller to free.
 */
struct wms_lease_scan {
	const char *ignore;
	const char *holder;
	uint64_t now_ms;
	uint64_t metadata_generation;
	struct wms_lease_summary summary;
	struct weight_lease *held;
};
int wms_lease_scan(struct meta_txn *txn, const struct wms_key *key,
		   const struct weight_identity *identity,
		   struct wms_lease_scan *scan);

/* Removes all leases of a revision. */
int wms_lease_drop_all(struct meta_txn *txn, const struct wms_key *key);

/* -ENOENT. */
int wms_lease_read(struct meta_txn *txn, uint64_t id,
		   struct weight_lease **ret);
/* Writes one with its index, and raises the next id above its own. */
int wms_lease_put(struct meta_txn *txn, const struct wms_key *revision,
		  const struct weight_lease *lease);
int wms_lease_drop(struct meta_txn *txn, const struct wms_key *revision,
		   uint64_t id);
/* The id that the next lease gets. */
int wms_lease_next_id(struct meta_txn *txn, uint64_t *ret);
/* The key of a lease among those of its revision. */
struct wms_key wms_lease_index_key(const struct wms_key *revision, uint64_t id);

#endif
