/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weight store: the first door to the domain.
 *
 * A store is a directory that holds immutable revisions of model weights and
 * the metadata about them. One process has it open at a time.
 *
 * The door has eleven operations, no more:
 *
 *	weight_put		begins to write a revision
 *	weight_upsert		the same, in place of an older one
 *	weight_get		opens a revision for reading
 *	weight_is_exist		whether it can be read
 *	weight_get_metadata	its record
 *	weight_get_size		its bytes
 *	weight_list		the records of a resource, a page at a time
 *	weight_update_policy	where it should be, and who may move it
 *	weight_migrate		moves it between memory and disk
 *	weight_get_operation	how far that is
 *	weight_remove		takes it away as a whole
 *
 * What three of them give out has accessors: struct weight_writer,
 * weight_reader and weight_page.
 *
 * Ownership: weight_store_open() gives the store to the caller, who closes it
 * with weight_store_close(), after everything that it gave out. Handles are
 * freed with their _free function. Records are handed out as copies and freed
 * with the _free function of their struct. Arguments are borrowed for the call.
 *
 * Threads: every function may be called from any thread, and may wait for the
 * disk unless it says otherwise. A writer or page belongs to one thread at a
 * time; a reader may be used by many.
 *
 * Failures: a negative errno that stands for one error of the contracts
 * (core/weight_management.h has the table). Where a function takes `why`, which
 * is never NULL, a failure appends one sentence for a person to it. Every
 * function that takes an identity fails with -EINVAL for one that breaks a rule,
 * and for another tenant than `default` where tenants=default. All may also
 * answer -ENOMEM, -EIO and -EUCLEAN (metadata that is damaged), and those that
 * change something -ENOSPC and -EDQUOT.
 *
 * Fences: expected_metadata_generation is the metadata generation that the
 * caller has seen. 0 means the one that is current now.
 *
 * Source: weight contracts, sections 3.2, 3.6, 3.7 and 6. What only a
 * filesystem needs is behind the other door, core/weight_tree.h.
 */
#ifndef CORE_WEIGHT_STORE_H
#define CORE_WEIGHT_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/config.h"
#include "core/weight_management.h"

struct weight_store;

/*
 * Opens the store in directory path, makes it if it is absent or an empty
 * directory, and settles what the last owner left: unfinished deletions go on,
 * orphaned payload directories are swept, leases are checked against what is
 * really held. config must outlive the store.
 *
 * No fork() after this call: the database does not survive it.
 *
 * Errors: -EBUSY another process has the store open, -EUCLEAN it is damaged or
 * not a store, -EPROTONOSUPPORT a newer version wrote it, -EACCES, -ENOSPC,
 * -ENOMEM, -EIO.
 */
int weight_store_open(const char *path, const struct config *config,
		      struct weight_store **ret, struct buf *why);

/* Ends all background work and marks the store clean. Accepts NULL. */
void weight_store_close(struct weight_store *store);
DEFINE_CLEANUP(struct weight_store *, weight_store_close)

/* ---- While no daemon runs on it ---- */

/* What is in a store. */
struct weight_store_summary {
	uint64_t revisions; /* in any state, tombstones included */
	uint64_t staged;
	uint64_t leases;
	uint64_t operations;
	uint64_t lineages;
	uint64_t log_first,
		log_last; /* entries of the operation log, or none: */
	uint64_t log_count;
	uint64_t wrong;  /* of a check: how many things */
	bool unreadable; /* of a check: the metadata, so the rest isn't known */
	uint64_t missing; /* of an import: revisions without payload here */
	uint64_t aside;   /* and directories of payload that nobody knows */
};

/* Whoever follows. Each may be NULL. */
struct weight_store_watch {
	void (*found)(void *arg, const char *line); /* without a newline */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *arg;
};

/*
 * These three lock the store while they run.
 *
 * Errors, with a sentence in why: -EBUSY somebody has the store open, -ENOENT
 * there is none, or nothing was ever stored in it, -EPROTONOSUPPORT a newer
 * version wrote it, -EACCES, -ENOMEM, -EIO.
 */

/*
 * Checks that the metadata fits together and that the payload is there: of each
 * revision the directory, the manifest that its digest names, and files of the
 * size that it says. What is in the files is for a scrub to find out. Each thing
 * that is wrong is a line, also that the metadata is damaged. Nothing on the
 * disk changes.
 */
int weight_store_check(const char *path, const struct weight_store_watch *watch,
		       struct weight_store_summary *ret, struct buf *why);

/*
 * Writes all metadata as a snapshot to fd: of one instant, what is staged not
 * included. Nothing of the store changes. Errors: also -EUCLEAN it doesn't fit
 * together, and those of write(2).
 */
int weight_store_export(const char *path, int fd,
			struct weight_store_summary *ret, struct buf *why);

/*
 * Brings the snapshot in fd, a file, into a store without metadata: a directory
 * that is absent or empty, or one that has the payload. All or nothing, also
 * after a kill. Payload of which the snapshot knows nothing is put aside, into
 * aside/, where the next daemon doesn't take it for rubbish.
 *
 * Errors: also -EEXIST it has metadata; -EUCLEAN not a store, or the snapshot is
 * damaged; -EINVAL fd is not a file; -ENOSPC, -EROFS.
 */
int weight_store_import(const char *path, int fd,
			const struct weight_store_watch *watch,
			struct weight_store_summary *ret, struct buf *why);

/* ---- Tensors, as they are described ---- */

/* layer_id and expert_id of a tensor that has none. */
#define WEIGHT_NO_NUMBER (-1)

/*
 * One tensor and how its bytes are laid out. They are len bytes, which is the
 * product of the shape and the itemsize.
 *
 * aliases are the ids of the tensors that are declared to be one, this one
 * among them, sorted by their bytes; two or more, or none. Each member of a
 * group names the same group, and is described like the others but for its id.
 * Aliases move between memory and disk as one, and are stored once for each.
 */
struct weight_description {
	const char *tensor_id; /* UTF-8; may be "" */
	const char *dtype;     /* not empty; compared, never interpreted */
	const char *layout_fingerprint; /* not empty */
	const uint64_t *global_shape;   /* rank extents; NULL for rank 0 */
	const char *const *aliases;     /* alias_count of them */
	uint64_t len;                   /* bytes */
	uint64_t itemsize;              /* bytes, 1 or more */
	int64_t layer_id;               /* or WEIGHT_NO_NUMBER */
	int64_t expert_id;
	size_t alias_count;
	uint32_t rank;
};

/* ---- Writing a revision ---- */

/*
 * An import: every tensor is announced first, then each is given once, in any
 * order, and then all of them are committed together or not at all.
 *
 * From the beginning on the revision is IMPORTING: known to
 * weight_get_metadata() and weight_list(), and to nobody else. The bytes go to
 * one file for each tensor, named by weight_tensor_name() (core/weight_key.h); so
 * there can't be more tensors than the process may have open files.
 */
struct weight_writer;

struct weight_put_args {
	struct weight_identity identity;
	const struct weight_policy *policy;       /* NULL: the store's own */
	const struct weight_description *tensors; /* in any order */
	size_t count;                             /* 1 or more */
};

/*
 * Begins an import. The same call again resumes one that is IMPORTING, for
 * example after its writer was freed or its process died: then all tensors are
 * given anew. One that has no writer for 5 minutes is given up by the store.
 *
 * Errors:
 *  -EINVAL	a bad policy; descriptions that break a rule; no tensors, or no
 *		bytes in them
 *  -EFBIG	descriptions above a limit, see core/manifest.h
 *  -EPERM	preferred MIXED with fewer than two units
 *  -EBUSY	it has a writer; or the lineage is being replaced
 *  -EEXIST	it is there in another state, staged on a mount, or IMPORTING
 *		with other arguments
 *  -ECANCELED	the generation is not above what the lineage has reached
 */
int weight_put(struct weight_store *store, const struct weight_put_args *args,
	       struct weight_writer **ret, struct buf *why);

struct weight_upsert_args {
	struct weight_identity base;   /* READY */
	struct weight_identity target; /* of the same lineage, and above it */
	enum weight_upsert_mode mode;
	const char *request_id; /* not ""; NULL: see weight_request_id() */
	uint64_t expected_base_metadata_generation; /* 1 or more */
	const struct weight_policy *policy;
	const struct weight_description *tensors;
	size_t count;
};

/*
 * Begins to replace base by target.
 *
 *	PUT_FIRST	base stays until target is committed and, where the store
 *			outlives the machine, durable; then nobody can open it any
 *			more, and it is removed when its last reader is gone
 *	DELETE_FIRST	base is removed before this returns
 *
 * The same call again, from any process, resumes where it is, with a writer that
 * makes the same manifest to the byte. Its transaction id is that of
 * weight_upsert_transaction_id(). In place of the digest of a source placement,
 * which descriptions don't have, stands the SHA-256 of the stored manifest of
 * target in its strict form, with a transaction id of 32 zeros and created_at
 * "1970-01-01T00:00:00Z". created_at is that of the import, to the millisecond.
 * Where target is READY already, the writer compares what it is given instead of
 * writing it, and needs no more of it to commit.
 *
 * Errors; but with the last, nothing has happened:
 *  -EINVAL	another mode; base and target of different lineages; an empty
 *		request id; no expected generation; as weight_put()
 *  -ECANCELED	target is not above base
 *  -EPERM, -EFBIG	as weight_put()
 *  -EBUSY	another replacement is going on
 *  -ECANCELED	base is not what the lineage has reached, or has another
 *		metadata generation
 *  -ENOENT	there is no base
 *  -EINPROGRESS	base is not READY
 *  -EBUSY	DELETE_FIRST, and base is held, or an operation is at it
 *  -EEXIST	target was there before; or it is IMPORTING or READY from this
 *		request, and described otherwise; or the request was aborted
 *  -EOVERFLOW
 *  -EBUSY	target has a writer; or somebody opened the base of a
 *		DELETE_FIRST while this began: the same call again goes on
 */
int weight_upsert(struct weight_store *store,
		  const struct weight_upsert_args *args,
		  struct weight_writer **ret, struct buf *why);

/*
 * Gives the whole of one tensor. A failure of any kind aborts the import, as
 * weight_writer_abort() does.
 *
 * Errors: -ENOENT no such tensor was described; -EINVAL it has another length;
 * -EEXIST it was given before, target is READY with other bytes, or the writer
 * is past its commit or abort; -ENOSPC, -EDQUOT, -EFBIG, -EIO and what else the
 * disk says.
 */
int weight_writer_put_tensor(struct weight_writer *writer,
			     const char *tensor_id, const void *bytes,
			     uint64_t len, struct buf *why);

/*
 * Makes the revision READY: all of it at once. Waits until its bytes are
 * digested and as far in memory as they can be, and of a PUT_FIRST replacement
 * until they are durable. ret, which may be NULL, gets the record.
 *
 * May be called again after a failure, and is a repeat after a success. Once an
 * attempt may have decided, nothing else is possible any more.
 *
 * Errors: -EINVAL tensors are missing, and the import is aborted; -EBUSY a file
 * of it is open for writing elsewhere; -EEXIST the writer was aborted; -EEXIST
 * or -ECANCELED the import was given up behind it; -EINPROGRESS target is READY
 * no more; -EMFILE there are more tensors than files may be open; -ENOSPC; -EIO,
 * also when the bytes can't get durable.
 */
int weight_writer_commit(struct weight_writer *writer,
			 struct weight_metadata **ret, struct buf *why);

/*
 * Gives the import up: what was written is deleted, and its record stays as a
 * tombstone. May be called again after a failure, and is a repeat after a
 * success. Of a replacement with PUT_FIRST base stays as it was. With
 * DELETE_FIRST base is gone; the same request, and no other, may begin target
 * anew.
 *
 * Errors: -EEXIST it was committed, or may have been: then commit it again.
 */
int weight_writer_abort(struct weight_writer *writer, struct buf *why);

/* Borrowed from the writer. Neither waits. */
const struct weight_identity *weight_writer_identity(
	const struct weight_writer *writer);
/* NULL unless weight_upsert() gave it. */
const char *weight_writer_request_id(const struct weight_writer *writer);

/*
 * Frees the writer. What it has neither committed nor aborted stays IMPORTING,
 * as after a kill. Accepts NULL.
 */
void weight_writer_free(struct weight_writer *writer);
DEFINE_CLEANUP(struct weight_writer *, weight_writer_free)

/* ---- Reading a revision ---- */

/*
 * As long as there is a reader the revision can be neither removed nor taken out
 * of memory. The lease that says so is the store's: one for a revision, however
 * many read it, for lease_ttl= and renewed in the background when a third of
 * that is over. When the last reader is gone its record may linger for 30 s,
 * which holds nobody up.
 */
struct weight_reader;

/*
 * Opens a READY or DEGRADED revision. Its manifest is read, and that it is the
 * published one of this identity is verified, before anything is given out.
 *
 * Errors: -ENOENT; -EINPROGRESS neither READY nor DEGRADED; -EBUSY it is being
 * replaced; -EUCLEAN the manifest is another one.
 */
int weight_get(struct weight_store *store,
	       const struct weight_identity *identity,
	       struct weight_reader **ret, struct buf *why);

/* Borrowed from the reader, as all that it describes. */
const struct weight_identity *weight_reader_identity(
	const struct weight_reader *reader);
/* Those three don't wait. Tensors come in the order of the manifest. */
size_t weight_reader_tensor_count(const struct weight_reader *reader);
/* i is below the count. An id with a NUL byte inside ends there. */
const struct weight_description *weight_reader_tensor(
	const struct weight_reader *reader, size_t i);
/* -ENOENT. O(log n). */
int weight_reader_find(const struct weight_reader *reader,
		       const char *tensor_id, size_t *ret);

/*
 * Reads len bytes of tensor i from offset on. All of them or none.
 *
 * Errors: -EINVAL they reach beyond the tensor; -EIO some of them are lost;
 * -EINPROGRESS they are still being verified; -EOPNOTSUPP the tensor is stored
 * in several pieces; -EMFILE.
 */
int weight_reader_read(struct weight_reader *reader, size_t i, uint64_t offset,
		       void *bytes, size_t len);

/* Where the bytes of a tensor are, to be read or mapped. */
struct weight_extent {
	int fd; /* open for reading; the caller's, who closes it */
	uint64_t offset;
	uint64_t len;
};

/*
 * The descriptor, and mappings of it, hold the revision like a reader, also when
 * the reader is gone. Errors: as weight_reader_read().
 */
int weight_reader_extent(struct weight_reader *reader, size_t i,
			 struct weight_extent *ret);

/* Gives up the hold. Accepts NULL. */
void weight_reader_free(struct weight_reader *reader);
DEFINE_CLEANUP(struct weight_reader *, weight_reader_free)

/* ---- Asking ---- */

/* True for READY only. */
int weight_is_exist(struct weight_store *store,
		    const struct weight_identity *identity, bool *ret);

/* Leases that protect a revision, those of other machines included. */
struct weight_lease_count {
	uint64_t active;
	uint64_t nearest_expiry_ms; /* since the epoch; 0 when there is none */
};

/*
 * The record of a revision in any state, a tombstone included. Never reads the
 * manifest. ret_leases may be NULL. Errors: -ENOENT.
 */
int weight_get_metadata(struct weight_store *store,
			const struct weight_identity *identity,
			struct weight_metadata **ret,
			struct weight_lease_count *ret_leases);

/* Bytes of the payload. Errors: -ENOENT, -EINPROGRESS unless READY. */
int weight_get_size(struct weight_store *store,
		    const struct weight_identity *identity, uint64_t *ret);

struct weight_page;

/*
 * The records of a resource in any state, in the order of revision and
 * generation: at most `limit` (1 to WEIGHT_LIST_LIMIT_MAX; 0 stands for
 * WEIGHT_LIST_LIMIT_DEFAULT) from behind `token` on, "" from the start. Never
 * reads a manifest.
 *
 * Errors: -EINVAL a bad part, limit or token.
 */
int weight_list(struct weight_store *store, const char *tenant,
		const char *name_space, const char *resource, const char *token,
		size_t limit, struct weight_page **ret, struct buf *why);

/* None of these waits. What they return is borrowed from the page. */
size_t weight_page_count(const struct weight_page *page);
/* i is below the count. ret_leases may be NULL. */
const struct weight_metadata *weight_page_at(
	const struct weight_page *page, size_t i,
	struct weight_lease_count *ret_leases);
/* The token of the next page, "" on the last one. */
const char *weight_page_next(const struct weight_page *page);
void weight_page_free(struct weight_page *page); /* accepts NULL */
DEFINE_CLEANUP(struct weight_page *, weight_page_free)

/* ---- Changing what is there ---- */

/*
 * Another policy. One that is AUTO begins to bring the revision where it prefers
 * it.
 *
 * Errors: -EINVAL a bad policy; -ENOENT; -EBUSY it is being replaced, or an
 * operation is at it; -ECANCELED another metadata generation; -EINPROGRESS
 * neither READY nor DEGRADED; -EPERM it is AUTO, and there is no way to where it
 * prefers the revision.
 */
int weight_update_policy(struct weight_store *store,
			 const struct weight_identity *identity,
			 const struct weight_policy *policy,
			 uint64_t expected_metadata_generation,
			 struct buf *why);

/*
 * Begins to move the whole revision, and returns when the operation is on
 * record. hot_ratio is inside (0,1) for MIXED, else 0. ret_operation_id, which
 * may be NULL, gets the id for weight_get_operation(). What is being done
 * already is not begun anew.
 *
 * Errors: -EINVAL another target or ratio, or MIXED, which is not to be had yet;
 * -ENOENT; -EBUSY it is being replaced, or another operation is at it;
 * -ECANCELED another metadata generation; -EINPROGRESS neither READY nor
 * DEGRADED; -EPERM its policy pins it, there is no disk to move it to, or memory
 * can't be locked here.
 */
int weight_migrate(struct weight_store *store,
		   const struct weight_identity *identity,
		   enum weight_residency target, double hot_ratio,
		   uint64_t expected_metadata_generation,
		   uint64_t *ret_operation_id, struct buf *why);

/*
 * An operation, running or over, with what a running one has done by now. Kept
 * for ever; weight_operation_is_over() tells. Errors: -EINVAL id 0; -ENOENT,
 * also when it is another tenant's.
 */
int weight_get_operation(struct weight_store *store, const char *tenant,
			 uint64_t operation_id, struct weight_operation **ret);

/*
 * Removes the whole revision. Returns when the decision is durable and the
 * revision is out of sight; its bytes go in the background. The record stays as
 * a tombstone, of which the removal is a repeat.
 *
 * Errors: -ENOENT; -ECANCELED another metadata generation; -EBUSY somebody
 * holds or maps it (why says who), it is being replaced, or an operation that
 * can't just end is at it; -EINPROGRESS not in a state to be removed.
 */
int weight_remove(struct weight_store *store,
		  const struct weight_identity *identity,
		  uint64_t expected_metadata_generation, struct buf *why);

#endif
