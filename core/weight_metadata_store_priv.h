/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the weight metadata store: what its parts (records and boots,
 * leases, operations) share. Errors are those of the functions in the public
 * header.
 */
#ifndef CORE_WEIGHT_METADATA_STORE_PRIV_H
#define CORE_WEIGHT_METADATA_STORE_PRIV_H

#include "core/metrics.h"
#include "core/weight_metadata_store.h"

struct weight_metadata_store {
	struct meta *meta;
	bool is_new;
};

/* A body that found nothing to write; the transaction is dropped. */
#define WMS_NOTHING_TO_WRITE 1

#define WMS_U64_LEN 8

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

/* -ENOENT. wms_table_find() stores NULL instead. */
int wms_table_get(struct meta_txn *txn, const struct wms_table *t,
		  const struct wms_key *key,
		  const struct weight_identity *identity, void **ret);
int wms_table_find(struct meta_txn *txn, const struct wms_table *t,
		   const struct wms_key *key,
		   const struct weight_identity *identity, void **ret);

/*
 * In transactions of their own: by identity, the lowest generation above
 * `after`, and all from a position on. -ENOENT there is none.
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

/* Writes one that began, or one that is there already. */
int wms_operation_add(struct meta_txn *txn, const struct weight_operation *op);
int wms_operation_put(struct meta_txn *txn, const struct weight_operation *op);

/* The active one of a revision, which must be there; NULL when m has none. */
int wms_operation_active(struct meta_txn *txn, const struct weight_metadata *m,
			 struct weight_operation **ret);

/* As weight_operation_blocks(), of the active one. */
int wms_operation_blocks(struct meta_txn *txn, const struct weight_metadata *m,
			 bool *ret);

/*
 * Does for a change of its revision what weight_decide_operation_follow() says.
 * op is the active one, or NULL.
 */
int wms_operation_follow(struct meta_txn *txn,
			 const struct weight_operation *op,
			 const struct weight_metadata *next, uint64_t now_ms);

/* All of them, and that the active ones of all revisions are there. */
int wms_operation_check_all(struct meta_txn *txn);

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

/* The metric for what a claim is or does. Any mode and phase that there is. */
enum metric wms_claim_metric(enum weight_upsert_mode mode,
			     enum weight_upsert_phase phase);
enum metric wms_claim_failure_metric(enum weight_upsert_mode mode);
enum metric wms_claim_recovery_metric(enum weight_upsert_mode mode);

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

int wms_lease_check_all(struct meta_txn *txn);

#endif
