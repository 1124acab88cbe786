/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weight metadata store: the durable records of staged imports, revisions,
 * leases and residency operations.
 *
 * Each mutation is one transaction: it reads the records that matter, lets
 * core/weight_decision.h decide, and writes the outcome. When it returns 0 the
 * outcome is durable and visible to all; after a failure, or a kill at any
 * instant, nothing has changed.
 *
 * Ownership: the store belongs to who opened it. Records come back as heap
 * copies, for the _free function of their struct. Arguments are borrowed for
 * the call. ret may be NULL where it is called optional, and so may why but in
 * wms_open() and wms_check().
 *
 * Threads: any, but no call may be made with a struct meta_txn open. Calls wait
 * for the disk, reads at most for a page of it.
 *
 * Time: the caller says what time it is. Times in records never go back.
 *
 * Errors of every function, not repeated below: -EINVAL a bad identity,
 * -ENOMEM, -EUCLEAN a damaged record, -EPROTONOSUPPORT one of a newer version,
 * -EIO; and of every mutation -ENOSPC or -EDQUOT. Staging, publishing and
 * starting an operation leave the last bytes of a full disk to the others,
 * which go on working.
 *
 * Keys, in order of bytes:
 *	revision, staging	SHA-256 over the length-value form of tenant,
 *		namespace and resource; the first WMS_KEY_REVISION_MAX bytes of
 *		the revision; 0; where the revision was cut, the first 8 bytes
 *		of its SHA-256; the generation, 8 bytes big-endian
 *	lease	the lease id, 8 bytes big-endian
 *	lease_of_revision	the key of the revision, the lease id; no value
 *	lineage	SHA-256 of the lineage, see weight_lineage_hash(). Its value
 *		begins with u16 WMS_LINEAGE_VERSION and u64 watermark
 *	operation	the operation id, 8 bytes big-endian
 *	state	schema, epoch, next_lease_id, next_operation_id, clean: u64;
 *		boot_id: text
 * All integers in values are little-endian.
 *
 * Source: weight contracts, sections 6.5, 6.6, 6.8 to 6.10 and 6.12.
 */
#ifndef CORE_WEIGHT_METADATA_STORE_H
#define CORE_WEIGHT_METADATA_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/meta.h"
#include "core/weight_decision.h"
#include "core/weight_management.h"
#include "core/weight_record.h"

#define WMS_SCHEMA_VERSION 1
#define WMS_LINEAGE_VERSION 1
#define WMS_KEY_REVISION_MAX 400
#define WMS_BOOT_ID_LEN_MAX 64

struct weight_metadata_store;

/* Opens the store in directory dir. Errors: as meta_open(). */
int wms_open(const char *dir, struct weight_metadata_store **ret,
	     struct buf *why);
void wms_close(struct weight_metadata_store *store); /* accepts NULL */
DEFINE_CLEANUP(struct weight_metadata_store *, wms_close)

/*
 * Whether no boot had begun with it when it was opened. When payload is there
 * all the same, the metadata got lost, and what looks like an orphan isn't one;
 * who refuses to begin then will be told so again next time.
 */
bool wms_is_new(const struct weight_metadata_store *store);

/* Reads every record. Errors: -EUCLEAN with a sentence for the first bad one. */
int wms_check(struct weight_metadata_store *store, struct buf *why);

/* ---- Boots ---- */

/*
 * Says that a daemon begins to work under this boot id. *ret_unclean is true
 * when the machine went down before the last daemon had said wms_mark_clean():
 * then a new epoch begins, and what was not durable has to be verified. The
 * mere death of a daemon within one boot loses nothing and counts as clean.
 *
 * Errors: -EINVAL boot_id is empty or too long.
 */
int wms_begin_boot(struct weight_metadata_store *store, const char *boot_id,
		   bool *ret_unclean);
int wms_mark_clean(struct weight_metadata_store *store);

/* Counts from 1; goes up with every unclean boot. */
int wms_epoch(struct weight_metadata_store *store, uint64_t *ret);

/* ---- Staged imports ---- */

/* Reserves the identity. Errors: as weight_decide_stage(). */
int wms_stage(struct weight_metadata_store *store,
	      const struct weight_identity *identity, uint64_t now_ms,
	      struct buf *why);

/* Both: -ENOENT it isn't staged. */
int wms_unstage(struct weight_metadata_store *store,
		const struct weight_identity *identity);
int wms_staged_get(struct weight_metadata_store *store,
		   const struct weight_identity *identity,
		   struct weight_staging **ret);

/* The lowest staged generation above `after`. -ENOENT there is none. */
int wms_staged_next(struct weight_metadata_store *store,
		    const struct weight_lineage *lineage, uint64_t after,
		    struct weight_staging **ret);

/*
 * A place in an iteration over everything. Starts zeroed. It stays good
 * whatever changes meanwhile, and has moved on also when a call fails with
 * -EUCLEAN, so that one damaged record doesn't hide the others.
 */
struct wms_position {
	size_t len;
	unsigned char key[META_KEY_MAX];
};

/* -ENOENT at the end. */
int wms_staged_each(struct weight_metadata_store *store,
		    struct wms_position *position, struct weight_staging **ret);

/* ---- Revisions ---- */

/*
 * Makes a staged import a READY revision, with an operation that runs when the
 * publication says so. ret is optional.
 * Errors: as weight_decide_publish().
 */
int wms_publish(struct weight_metadata_store *store,
		const struct weight_publication *publication, uint64_t now_ms,
		struct weight_metadata **ret, struct buf *why);

/* In any state, tombstones included. -ENOENT. */
int wms_get(struct weight_metadata_store *store,
	    const struct weight_identity *identity,
	    struct weight_metadata **ret);

/* The lowest generation above `after`, in any state. -ENOENT. */
int wms_revision_next(struct weight_metadata_store *store,
		      const struct weight_lineage *lineage, uint64_t after,
		      struct weight_metadata **ret);

/* -ENOENT at the end. wms_deleting_each() gives the DELETING ones only. */
int wms_revision_each(struct weight_metadata_store *store,
		      struct wms_position *position,
		      struct weight_metadata **ret);
int wms_deleting_each(struct weight_metadata_store *store,
		      struct wms_position *position,
		      struct weight_metadata **ret);

/* Whether a generation of the lineage is staged, READY or DEGRADED. */
int wms_lineage_in_use(struct weight_metadata_store *store,
		       const struct weight_lineage *lineage, bool *ret);

/* ret is optional. Errors: as weight_decide_observe(). */
int wms_observe(struct weight_metadata_store *store,
		const struct weight_identity *identity,
		const struct weight_observation *seen,
		uint64_t expected_metadata_generation, uint64_t now_ms,
		struct weight_metadata **ret);

/*
 * Records that the payload survives a power loss. Leaves the metadata
 * generation as it is. ret is optional. Errors: -ENOENT; -EINPROGRESS neither
 * READY nor DEGRADED.
 */
int wms_mark_durable(struct weight_metadata_store *store,
		     const struct weight_identity *identity, uint64_t now_ms,
		     struct weight_metadata **ret);

/*
 * Counts a revision that is there when the store is opened; what changes from
 * then on is counted by the mutations themselves.
 */
void wms_count_found(struct weight_metadata_store *store,
		     const struct weight_metadata *m);

/* ---- Removal ---- */

struct wms_delete_request {
	uint64_t expected_metadata_generation; /* 0: the current one */
	/* Leases of this holder don't count; the caller answers for them. */
	const char *ignore_lease_holder; /* or NULL */
};

/*
 * To DELETING. The leases that didn't count, and those that expired, go with
 * it, and an operation that only pins or unpins ends; another one is -EBUSY.
 * ret is optional. Errors: as weight_decide_delete_begin().
 */
int wms_delete_begin(struct weight_metadata_store *store,
		     const struct weight_identity *identity,
		     const struct wms_delete_request *request, uint64_t now_ms,
		     struct weight_metadata **ret);

/*
 * From DELETING to the tombstone, when no payload is left. ret is optional.
 * Errors: as weight_decide_delete_finish().
 */
int wms_delete_finish(struct weight_metadata_store *store,
		      const struct weight_identity *identity,
		      uint64_t expected_metadata_generation, uint64_t now_ms,
		      struct weight_metadata **ret);

/* ---- Leases ---- */

/* Errors: as weight_decide_lease_acquire(). */
int wms_lease_acquire(struct weight_metadata_store *store,
		      const struct weight_identity *identity,
		      const struct weight_lease_request *request,
		      uint64_t now_ms, struct weight_lease **ret);

/* ret is optional. Errors: as weight_decide_lease_renew(). */
int wms_lease_renew(struct weight_metadata_store *store, const char *tenant,
		    uint64_t lease_id, uint64_t ttl_ms, uint64_t now_ms,
		    struct weight_lease **ret);

/* An unknown lease is released. -ENOENT: of another tenant. */
int wms_lease_release(struct weight_metadata_store *store, const char *tenant,
		      uint64_t lease_id);

/* Removes at most `limit` expired leases, in the order of their ids. */
int wms_lease_sweep(struct weight_metadata_store *store, uint64_t now_ms,
		    size_t limit, size_t *ret_removed);

/* The lease with the lowest id above `after`, live or not. -ENOENT. */
int wms_lease_next(struct weight_metadata_store *store, uint64_t after,
		   struct weight_lease **ret);

struct wms_lease_summary {
	uint64_t active;
	uint64_t nearest_expiry_ms; /* 0 when there is none */
};

/* -ENOENT no such revision. */
int wms_lease_summary(struct weight_metadata_store *store,
		      const struct weight_identity *identity, uint64_t now_ms,
		      struct wms_lease_summary *ret);

/* ---- Residency operations ---- */

/*
 * A revision has at most one active operation. Records are kept for ever, and
 * their ids are not given again. ret is optional in the four mutations: the
 * operation as it is then.
 */

/* Errors: as weight_decide_operation_start(). */
int wms_operation_start(struct weight_metadata_store *store,
			const struct weight_identity *identity,
			const struct weight_operation_request *request,
			uint64_t now_ms, struct weight_operation **ret,
			struct buf *why);

/* Errors: as weight_decide_operation_progress(). */
int wms_operation_progress(struct weight_metadata_store *store,
			   const struct weight_identity *identity,
			   uint64_t operation_id,
			   const struct weight_operation_progress *progress,
			   uint64_t now_ms, struct weight_operation **ret);

/* Errors: as weight_decide_operation_error(). */
int wms_operation_error(struct weight_metadata_store *store,
			const struct weight_identity *identity,
			uint64_t operation_id, const char *message,
			uint64_t now_ms, struct weight_operation **ret);

/* Errors: as weight_decide_operation_finish(). */
int wms_operation_finish(struct weight_metadata_store *store,
			 const struct weight_identity *identity,
			 uint64_t operation_id, enum weight_residency residency,
			 double hot_ratio, uint64_t now_ms,
			 struct weight_operation **ret);

/* Active or over. -EINVAL id 0; -ENOENT, also when of another tenant. */
int wms_operation_get(struct weight_metadata_store *store, const char *tenant,
		      uint64_t operation_id, struct weight_operation **ret);

/* The operation with the lowest id above `after`, active or over. -ENOENT. */
int wms_operation_next(struct weight_metadata_store *store, uint64_t after,
		       struct weight_operation **ret);

/*
 * The active operations, in the order of their revisions: what has to go on
 * when a daemon starts. -ENOENT at the end.
 */
int wms_operation_active_each(struct weight_metadata_store *store,
			      struct wms_position *position,
			      struct weight_operation **ret);

#endif
