/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weight metadata store: the durable records of staged imports, revisions,
 * leases and residency operations.
 *
 * Each mutation is one transaction: it reads the records that matter, lets
 * core/weight_decision*.h decide, writes the outcome, and adds the entry of the
 * operation log that says so (core/oplog.h). When it returns 0 the outcome is
 * durable and visible to all; after a failure, or a kill at any instant, nothing
 * has changed. Staged imports and boots are this machine's own: they are not in
 * the log, nor in snapshots.
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
 * -EIO; and of every mutation -ENOSPC or -EDQUOT. Staging, importing,
 * publishing, claiming, changing a policy, starting an operation and replaying
 * leave the last bytes of a full disk to the others, which go on working.
 *
 * Keys, in order of bytes:
 *	revision, staging	SHA-256 over the length-value form of tenant,
 *		namespace and resource; the first WMS_KEY_REVISION_MAX bytes of
 *		the revision; 0; where the revision was cut, the first 8 bytes
 *		of its SHA-256; the generation, 8 bytes big-endian
 *	lease	the lease id, 8 bytes big-endian
 *	lease_of_revision	the key of the revision, the lease id; no value
 *	lineage	SHA-256 of the lineage, see weight_lineage_hash()
 *	operation	the operation id, 8 bytes big-endian
 *	oplog	the sequence, 8 bytes big-endian
 *	name	what there are claims and tombstones of, level by level: the
 *		byte of enum wms_names; SHA-256 over the length-value form of
 *		the parts above; the name. No value
 *	state	schema, epoch, next_lease_id, next_operation_id, clean,
 *		oplog_first, oplog_next: u64; boot_id: text
 * All integers in values are little-endian.
 *
 * Source: weight contracts, sections 6.4 to 6.14 and 8.
 */
#ifndef CORE_WEIGHT_METADATA_STORE_H
#define CORE_WEIGHT_METADATA_STORE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/meta.h"
#include "core/metrics.h"
#include "core/weight_decision.h"
#include "core/weight_decision_import.h"
#include "core/weight_decision_lineage.h"
#include "core/weight_management.h"
#include "core/weight_record.h"

/* 2: with an operation log, and names */
#define WMS_SCHEMA_VERSION 2
#define WMS_KEY_REVISION_MAX 400
#define WMS_BOOT_ID_LEN_MAX 64

/* Whether an error says that something stored is damaged, or of a newer version. */
static inline bool wms_is_damage(int r)
{
	return r == -EUCLEAN || r == -EPROTONOSUPPORT;
}

struct weight_metadata_store;

/* Opens the store in directory dir. Errors: as meta_open(). */
int wms_open(const char *dir, struct weight_metadata_store **ret,
	     struct buf *why);
/* With another limit of the data file than META_BYTES_MAX. */
int wms_open_within(const char *dir, size_t bytes_max,
		    struct weight_metadata_store **ret, struct buf *why);
/*
 * Opens it to be read only. Nothing on the disk changes, and one that an older
 * version wrote stays as it is. Errors: as meta_open_read(); of every mutation
 * -EROFS.
 */
int wms_open_read(const char *dir, struct weight_metadata_store **ret,
		  struct buf *why);
void wms_close(struct weight_metadata_store *store); /* accepts NULL */
DEFINE_CLEANUP(struct weight_metadata_store *, wms_close)

/* Before there are other threads. */
struct wms_options {
	/*
	 * Others follow the operation log. Then a mutation is refused with -EIO
	 * until it was confirmed that all of them can read its entries: of
	 * revisions, leases and operations, and of lineages. What has nothing to
	 * write is not refused.
	 */
	bool replicated;
	bool confirms_management;
	bool confirms_lineages;
	uint64_t oplog_keep; /* entries; the oldest ones go. 1 or more */
};
#define WMS_OPLOG_KEEP_DEFAULT 65536
void wms_configure(struct weight_metadata_store *store,
		   const struct wms_options *options);

/*
 * A mutation has answered r. Where that is for want of room, and nobody has
 * said more about it, appends whether it is the disk or the limit. Returns r.
 */
int wms_say_no_room(struct weight_metadata_store *store, int r,
		    struct buf *why);

/*
 * Whether no boot had begun with it when it was opened. When payload is there
 * all the same, the metadata got lost, and what looks like an orphan isn't one;
 * who refuses to begin then will be told so again next time.
 */
bool wms_is_new(const struct weight_metadata_store *store);

/* How many there are of each. */
struct wms_totals {
	uint64_t revisions; /* in any state */
	uint64_t staged;
	uint64_t leases;
	uint64_t operations;
	uint64_t lineages;
};
int wms_totals(struct weight_metadata_store *store, struct wms_totals *ret);

/*
 * Reads everything and checks that it fits together: each record and index, ids,
 * fences, claims, and the operation log. Appends one line for each thing that is
 * wrong to report, the first WMS_REPORT_LINES_MAX of them, and stores how many
 * there are. Errors: -ENOMEM, -EIO; -EUCLEAN only where reading can't go on.
 */
#define WMS_REPORT_LINES_MAX 1000
int wms_check(struct weight_metadata_store *store, struct buf *report,
	      uint64_t *ret_bad);

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

/*
 * The policy that it will be published with; NULL: the store's own again.
 * Errors: -EINVAL; -ENOENT it isn't staged.
 */
int wms_staged_policy(struct weight_metadata_store *store,
		      const struct weight_identity *identity,
		      const struct weight_policy *policy);

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
	bool missed; /* one couldn't be read */
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

/* ---- Imports that a writer announces ---- */

/*
 * ret is optional in all three. The group id of a request may be "": the
 * canonical one is filled in. Errors: as the weight_decide_ function of each.
 */
int wms_import_begin(struct weight_metadata_store *store,
		     const struct weight_import_request *request,
		     uint64_t now_ms, struct weight_metadata **ret,
		     struct buf *why);
int wms_import_commit(struct weight_metadata_store *store,
		      const struct weight_commit_request *request,
		      uint64_t now_ms, struct weight_metadata **ret,
		      struct buf *why);
int wms_import_abort(struct weight_metadata_store *store,
		     const struct weight_identity *identity,
		     uint64_t expected_metadata_generation, uint64_t now_ms,
		     struct weight_metadata **ret);

/* ret is optional. Errors: as weight_decide_policy(). */
int wms_policy_update(struct weight_metadata_store *store,
		      const struct weight_identity *identity,
		      const struct weight_policy *policy,
		      uint64_t expected_metadata_generation, uint64_t now_ms,
		      struct weight_metadata **ret, struct buf *why);

/* ---- Lists ---- */

/* A revision's name in a page token, its separator, and its generation. */
#define WMS_PAGE_TOKEN_MAX                                                     \
	(WEIGHT_COMPONENT_MAX + 1 + WEIGHT_GENERATION_LEN_MAX)

struct wms_page {
	struct weight_metadata **items;
	size_t count;
	char next[WMS_PAGE_TOKEN_MAX + 1]; /* "" on the last page */
};

/*
 * The revisions of a resource in any state, in the order of revision and
 * generation, at most `limit` from behind `token` on ("" from the start). One
 * page costs memory for its own items only.
 *
 * Errors: -EINVAL a bad part, limit (1 to WEIGHT_LIST_LIMIT_MAX; 0 is
 * WEIGHT_LIST_LIMIT_DEFAULT) or token.
 */
int wms_list(struct weight_metadata_store *store, const char *tenant,
	     const char *name_space, const char *resource, const char *token,
	     size_t limit, struct wms_page *ret);
void wms_page_release(struct wms_page *page);

/*
 * The token of an item, and back: revision has room for a component and its
 * NUL. Errors of parsing: -EINVAL.
 */
int wms_page_token(const struct weight_metadata *m, struct buf *ret);
int wms_page_token_parse(const char *token, size_t len,
			 char revision[static WEIGHT_COMPONENT_MAX + 1],
			 uint64_t *ret_generation);

/*
 * At most `limit` generations of a lineage above `after`, in any state, read in
 * one go. *ret_count is 0 at the end.
 */
struct wms_generation {
	uint64_t generation;
	enum weight_availability availability;
};
int wms_generations(struct weight_metadata_store *store,
		    const struct weight_lineage *lineage, uint64_t after,
		    size_t limit, struct wms_generation *ret,
		    size_t *ret_count);

/* ---- Lineages ---- */

/* -ENOENT it has no record: nothing of it was ever replaced. */
int wms_lineage_get(struct weight_metadata_store *store,
		    const struct weight_lineage *lineage,
		    struct weight_lineage_record **ret);

/* -ENOENT at the end. */
int wms_lineage_each(struct weight_metadata_store *store,
		     struct wms_position *position,
		     struct weight_lineage_record **ret);

/*
 * The life of a claim; what it does to revisions are mutations of their own,
 * which its writer and wms_claim_step() bring about. ret is optional. Errors: as
 * the weight_decide_ function of each.
 */
int wms_upsert_begin(struct weight_metadata_store *store,
		     const struct weight_upsert_request *request,
		     uint64_t now_ms, struct weight_lineage_record **ret,
		     struct buf *why);
struct wms_claim_request {
	const struct weight_lineage *lineage;
	struct weight_claim_name name;
	bool wants_durable; /* a target that isn't durable isn't READY enough */
};
int wms_upsert_commit(struct weight_metadata_store *store,
		      const struct wms_claim_request *request, uint64_t now_ms,
		      struct weight_lineage_record **ret, struct buf *why);
int wms_upsert_abort(struct weight_metadata_store *store,
		     const struct wms_claim_request *request, uint64_t now_ms,
		     struct weight_lineage_record **ret, struct buf *why);
/* The base is gone. Errors: as weight_decide_claim_advance(). */
int wms_claim_advance(struct weight_metadata_store *store,
		      const struct weight_lineage *lineage, uint64_t now_ms,
		      struct weight_lineage_record **ret);

/*
 * What the claim of a lineage needs next, and the lineage as it is then.
 * ignore_lease_holder: as in wms_delete_request. Errors: -ENOENT no record.
 */
int wms_claim_step(struct weight_metadata_store *store,
		   const struct weight_lineage *lineage, bool wants_durable,
		   const char *ignore_lease_holder, uint64_t now_ms,
		   enum weight_claim_step *ret_step,
		   struct weight_lineage_record **ret);

/*
 * Counts a lineage that is there when the store is opened, as
 * wms_count_found() does a revision; and what to count when the reconciler
 * fails at a claim of a mode, or takes a step that nobody else would have.
 */
void wms_count_lineage_found(const struct weight_lineage_record *l);
enum metric wms_claim_failure_metric(enum weight_upsert_mode mode);
enum metric wms_claim_recovery_metric(enum weight_upsert_mode mode);

/*
 * Names of what there are claims or tombstones of, in the order of bytes: of
 * tenants with depth 0, of namespaces below parts[0] with depth 1, and so on to
 * revisions. The first one behind `after` ("" for the first one) is appended.
 * Lineages with a part longer than WMS_NAME_MAX aren't here. -ENOENT.
 */
enum wms_names {
	WMS_NAMES_CLAIMS = 1,
	WMS_NAMES_TOMBSTONES = 2,
};
#define WMS_NAME_MAX 400
int wms_names_next(struct weight_metadata_store *store, enum wms_names names,
		   const char *const parts[], unsigned depth, const char *after,
		   struct buf *ret);

/* ---- The operation log, and snapshots ---- */

struct wms_oplog_state {
	uint64_t
		first; /* the oldest entry that is kept; next if there is none */
	uint64_t next; /* what the next one gets; counts from 1 */
};
int wms_oplog_state(struct weight_metadata_store *store,
		    struct wms_oplog_state *ret);

/* The entry as its bytes. -ENOENT it isn't kept, or not there yet. */
int wms_oplog_get(struct weight_metadata_store *store, uint64_t sequence,
		  struct buf *ret);

/*
 * Does what an entry of another store's log says, and adds it to the own log.
 * One transaction; nothing happens on a refusal.
 *
 * Errors: -EUCLEAN damaged, or it doesn't follow on what is there, and why says
 * so; -ESPIPE not the sequence that comes next.
 */
int wms_replay(struct weight_metadata_store *store, const void *bytes,
	       size_t len, struct buf *why);

/* Writes all metadata as of one instant to fd, see core/weight_snapshot.h. */
int wms_export(struct weight_metadata_store *store, int fd);

/*
 * Fills a store that has no metadata, all or nothing. elsewhere: the payload was
 * brought here some other way, so nothing counts as durable before it was read.
 *
 * Errors, with a sentence in why: -ENOTEMPTY; -EUCLEAN damaged, or its records
 * don't fit together; -EPROTONOSUPPORT.
 */
int wms_import(struct weight_metadata_store *store, int fd, bool elsewhere,
	       struct buf *why);

/* ---- Revisions, whatever they came from ---- */

/*
 * Reading checks every rule of a record. When a pass over all revisions has come
 * to its end without an error, reading no longer computes their group ids: all
 * were right, and none is written that isn't. wms_check() always does.
 */

/* In any state, tombstones included. -ENOENT. */
int wms_get(struct weight_metadata_store *store,
	    const struct weight_identity *identity,
	    struct weight_metadata **ret);

/* The lowest generation above `after`, in any state. -ENOENT. */
int wms_revision_next(struct weight_metadata_store *store,
		      const struct weight_lineage *lineage, uint64_t after,
		      struct weight_metadata **ret);

/* -ENOENT at the end. */
int wms_revision_each(struct weight_metadata_store *store,
		      struct wms_position *position,
		      struct weight_metadata **ret);

/* The same for who goes through all of them: several are read in one go. */
#define WMS_BATCH_MAX 64
struct wms_batch {
	struct weight_metadata *items[WMS_BATCH_MAX];
	size_t count; /* 1 or more */
};
int wms_revisions_read(struct weight_metadata_store *store,
		       struct wms_position *position, struct wms_batch *ret);
void wms_batch_release(struct wms_batch *batch);

/* Whether a generation of the lineage is staged, IMPORTING, READY or DEGRADED. */
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
	bool by_claim;                   /* the replacement deletes its base */
};

/*
 * To DELETING. The leases that didn't count, and those that expired, go with
 * it, and an operation that only pins or unpins ends; another one is -EBUSY.
 * ret is optional. Errors: as weight_decide_delete_begin(); -ECANCELED by_claim,
 * but no claim is about to delete it.
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
