/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weight tree: the second door, for what only a filesystem needs.
 *
 *	dir	a directory above a revision (depth 0 the root, 1 tenant,
 *		2 namespace, 3 resource, 4 revision, which is a lineage), or a
 *		symlink that a user made in a lineage (depth 5)
 *	group	one generation of a lineage: staged, published or removed. It
 *		keeps its object and its place on disk through its whole life
 *	file	one inode (file, directory, symlink) below a group. One object
 *		per inode, whatever names it has
 *	tensor	one tensor of a published group
 *
 * Ownership: dir, group and file are reference counted; a function that
 * returns one through ret gives the caller one reference. Names and strings
 * passed in are borrowed for the call. Pointers returned by accessors live as
 * long as the object they came from.
 *
 * Threads: any. Calls marked "fast" never wait for the disk beyond a cached
 * name or inode and may run on a thread that serves requests. All others
 * belong on a worker.
 *
 * Failures: a negative errno as the user is to see it, except where said. The
 * sentence that goes with a refusal is appended to why.
 */
#ifndef CORE_WEIGHT_TREE_H
#define CORE_WEIGHT_TREE_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/weight_management.h"
#include "core/weight_store.h"
#include "core/workers.h"

#define WEIGHT_TREE_LINEAGE_DEPTH 4
#define WEIGHT_TREE_NAME_MAX 255
/* Larger than any real checkpoint shard, small enough that sums don't wrap. */
#define WEIGHT_FILE_BYTES_MAX ((uint64_t)1 << 44)
/* What stat reports as the preferred size of reads and writes. */
#define WEIGHT_FILE_BLKSIZE (2 << 20)

struct weight_dir;
struct weight_group;
struct weight_file;

/* Who asks: new files belong to uid:gid; pid 0 is unknown. */
struct weight_caller {
	uid_t uid;
	gid_t gid;
	pid_t pid;
};

/*
 * How a long call talks to the one who waits. interrupted may be NULL; when it
 * returns true the call ends soon with -EINTR and nothing changed. progress
 * may be NULL; it gets a whole line with its newline, about once a second.
 */
struct weight_waiter {
	bool (*interrupted)(void *arg);
	void (*progress)(void *arg, const char *line);
	void *arg;
};

/* ---- What the running store can do, and what it has to say ---- */

/* The pool for calls that may take long. Borrowed. */
struct workers *weight_tree_workers(struct weight_store *store);

/* Found out by trial when the store was opened. Fast. */
bool weight_tree_can_lease(const struct weight_store *store);

/*
 * Path of the mount, which is copied, and its device as stat() says, or 0 while
 * that is unknown: sentences can name who holds what. May be called again.
 * Errors: -ENOMEM.
 */
int weight_tree_set_mountpoint(struct weight_store *store, const char *path,
			       dev_t dev);

/*
 * Called from a thread of the store's own, with no lock held, when a published
 * generation has left the tree, so that cached names can be dropped.
 */
typedef void weight_removed_fn(void *arg, struct weight_group *group);
/* fn may be NULL: from then on nobody is called. */
void weight_tree_on_removed(struct weight_store *store, weight_removed_fn *fn,
			    void *arg);

/* Texts of the root's service directory. */
int weight_tree_health(struct weight_store *store, struct buf *ret);
int weight_tree_leases(struct weight_store *store, struct buf *ret);
/* Brings the gauges up to date that are only looked at. Fast. */
void weight_tree_gauges(struct weight_store *store);

/* What stands behind the mount in memory and on the disk. */
struct weight_tree_space {
	bool memory_only;         /* the store is on a memory filesystem */
	uint64_t memory_bytes;    /* what memory= allows to be pinned */
	uint64_t pinned_bytes;    /* granules that are */
	uint64_t available_bytes; /* of memory that is left to be had */
};
void weight_tree_space(struct weight_store *store,
		       struct weight_tree_space *ret); /* fast */

/*
 * Waits until no published group has anything pending: its bytes are durable,
 * its operations over. What can't go on doesn't count. Errors: -EINTR.
 */
int weight_tree_wait(struct weight_store *store,
		     const struct weight_waiter *waiter, struct buf *why);

/* ---- Residency operations, running and over ---- */

/* The lowest id above `after`. -ENOENT there is none. */
int weight_tree_operation_next(struct weight_store *store, uint64_t after,
			       uint64_t *ret);
/* The record as JSON, with what a running one has done by now. -ENOENT. */
int weight_tree_operation_json(struct weight_store *store, uint64_t id,
			       struct buf *ret);
/*
 * Owner, mode and times for the file that shows it: those of the revision's
 * directory, as far as reading goes; root's alone once that is gone. -ENOENT.
 */
int weight_tree_operation_stat(struct weight_store *store, uint64_t id,
			       struct stat *ret);

/* ---- Claims and tombstones, of the whole store ---- */

enum weight_tree_names {
	WEIGHT_TREE_CLAIMS,     /* lineages of which something was replaced */
	WEIGHT_TREE_TOMBSTONES, /* lineages of which something was removed */
};

/*
 * Level by level, as names in a path: tenants at depth 0, namespaces below
 * parts[0] at depth 1, and so on to revisions at depth 3. Appends the first
 * name behind `after` ("" for the first one). Parts that have no name in a path
 * don't come. -ENOENT there is none.
 */
int weight_tree_names_next(struct weight_store *store,
			   enum weight_tree_names names,
			   const char *const parts[], unsigned depth,
			   const char *after, struct buf *ret);
/* Whether there is something below parts. -ENOENT. */
int weight_tree_names_find(struct weight_store *store,
			   enum weight_tree_names names,
			   const char *const parts[], unsigned depth);

/* The removed generation above `after`. -ENOENT. parts: a lineage's four. */
int weight_tree_tombstone_next(struct weight_store *store,
			       const char *const parts[], uint64_t after,
			       uint64_t *ret);
/* The records as JSON. -ENOENT. */
int weight_tree_tombstone_json(struct weight_store *store,
			       const char *const parts[], uint64_t generation,
			       struct buf *ret);
int weight_tree_claim_json(struct weight_store *store,
			   const char *const parts[], struct buf *ret);

/* ---- Directories above a revision ---- */

struct weight_dir *weight_tree_root(struct weight_store *store); /* borrowed */
struct weight_dir *weight_dir_ref(struct weight_dir *dir);
void weight_dir_unref(struct weight_dir *dir); /* accepts NULL */
DEFINE_CLEANUP(struct weight_dir *, weight_dir_unref)

unsigned weight_dir_depth(const struct weight_dir *dir);
int weight_dir_fd(const struct weight_dir *dir); /* O_PATH, borrowed */

/* Fast. Errors: -ENOENT. A symlink in a lineage has depth 5. */
int weight_dir_lookup(struct weight_dir *dir, const char *name,
		      struct weight_dir **ret);
int weight_dir_stat(struct weight_dir *dir, struct stat *ret); /* fast */
int weight_dir_readlink(struct weight_dir *dir, struct buf *ret);

/*
 * Errors: -EPERM what does not belong there (a directory below a lineage, a
 * symlink above one, a name that is a number for a symlink), -EINVAL a name
 * that is not in canonical encoding, -ENAMETOOLONG, -EEXIST, -ENOTEMPTY a
 * lineage with generations or a directory with entries, -ENOSPC, -EIO.
 */
int weight_dir_mkdir(struct weight_dir *dir, const char *name, mode_t mode,
		     const struct weight_caller *caller,
		     struct weight_dir **ret, struct buf *why);
int weight_dir_symlink(struct weight_dir *dir, const char *name,
		       const char *target, const struct weight_caller *caller,
		       struct weight_dir **ret, struct buf *why);
int weight_dir_rmdir(struct weight_dir *dir, const char *name, struct buf *why);
int weight_dir_unlink(struct weight_dir *dir, const char *name,
		      struct buf *why);
/* Symlinks within and between lineages; directories only while empty. */
int weight_dir_rename(struct weight_dir *dir, const char *name,
		      struct weight_dir *new_dir, const char *new_name,
		      unsigned flags, struct buf *why);

/*
 * Which of the attributes to change, and to what. Times with UTIME_NOW or
 * UTIME_OMIT as for utimensat(2).
 */
struct weight_setattr {
	bool set_mode, set_uid, set_gid, set_size, set_times;
	mode_t mode; /* set-id bits are dropped */
	uid_t uid;
	gid_t gid;
	uint64_t size;
	struct timespec times[2]; /* access, modification */
};
int weight_dir_setattr(struct weight_dir *dir, const struct weight_setattr *set,
		       struct buf *why);

/*
 * Generations of a lineage in numeric order: stores the first one after
 * `after` that is visible (staged ones if staged, else published ones).
 * Errors: -ENOENT when there is none.
 */
int weight_dir_next_generation(struct weight_dir *lineage, bool staged,
			       uint64_t after, uint64_t *ret);

/*
 * At most `limit` of them in one go, from the first one after `after` on.
 * *ret_count is 0 at the end.
 */
int weight_dir_generations(struct weight_dir *lineage, bool staged,
			   uint64_t after, size_t limit, uint64_t *ret,
			   size_t *ret_count);

/*
 * How far a lineage has come, and the latest replacement in it as one line:
 * "7 by 8, mode=put_first, phase=retiring_base, request_id=...", with ",
 * error=..." where it doesn't go on. -ENODATA nothing of it was ever replaced.
 */
int weight_dir_watermark(struct weight_dir *lineage, uint64_t *ret);
int weight_dir_claim(struct weight_dir *lineage, struct buf *ret);

/* ---- Groups ---- */

enum weight_group_state {
	WEIGHT_GROUP_STAGED = 1,
	WEIGHT_GROUP_PUBLISHING, /* a publish attempt is running */
	WEIGHT_GROUP_PUBLISHED,
	WEIGHT_GROUP_REMOVED, /* published before, now gone or going */
	WEIGHT_GROUP_ABORTED, /* staged before, now gone */
};

struct weight_group *weight_group_ref(struct weight_group *group);
void weight_group_unref(struct weight_group *group); /* accepts NULL */
DEFINE_CLEANUP(struct weight_group *, weight_group_unref)

/*
 * Finds generation `name` of a lineage. name is as in a path; one that is no
 * canonical number is -ENOENT. Fast once the group is in memory, one database
 * read before that.
 */
int weight_dir_staged(struct weight_dir *lineage, const char *name,
		      struct weight_group **ret);
int weight_dir_published(struct weight_dir *lineage, const char *name,
			 struct weight_group **ret);

/*
 * mkdir of .staging/<name>: reserves the generation. Errors: -EPERM not a
 * generation number, -EEXIST it is staged, published or a tombstone (why says
 * which), -ENOSPC, -EIO.
 */
int weight_dir_stage(struct weight_dir *lineage, const char *name, mode_t mode,
		     const struct weight_caller *caller,
		     struct weight_group **ret, struct buf *why);

/* rmdir of .staging/<name>: abort. Errors: -ENOENT, -ENOTEMPTY, -EBUSY. */
int weight_dir_unstage(struct weight_dir *lineage, const char *name,
		       struct buf *why);

const struct weight_identity *weight_group_identity(
	const struct weight_group *group);
enum weight_group_state weight_group_state(const struct weight_group *group);
struct weight_dir *weight_group_lineage(struct weight_group *group);
/* The directory that was staged, +1 reference. Fast. Errors: -ENOENT, -EMFILE. */
int weight_group_root(struct weight_group *group, struct weight_file **ret);

/* Who wants to enter a group, and may have to wait. Only work is its own. */
struct weight_parked {
	struct work work;
	struct weight_group *in; /* [lock] where it waits, or NULL */
	bool gives_up;           /* [lock] */
};

/*
 * A mutation below a staged group is bracketed by enter and leave, so that a
 * publish attempt sees either all of it or nothing.
 *
 * weight_group_enter() returns 0 when the caller may go on; 1 when an attempt
 * is running, or what the group replaces is being removed first: then the work
 * of parked will be submitted to weight_tree_workers() when that is over, and
 * the caller starts again from there; -EROFS when the group is published;
 * -ENOENT when it is gone; -EINTR for who has given up; the error when the
 * removing fails. Fast.
 */
int weight_group_enter(struct weight_group *group,
		       struct weight_parked *parked);
void weight_group_leave(struct weight_group *group);

/*
 * An attempt is over soon. Removing takes as long as it takes, so who waits for
 * that can give up: it is submitted now, and enters nothing that has to wait
 * for it. weight_tree_give_up() is for all, now and later, before the end. Any
 * thread, fast. parked stays until the call has returned.
 */
void weight_parked_give_up(struct weight_store *store,
			   struct weight_parked *parked);
void weight_tree_give_up(struct weight_store *store);

/* The sentence of the last refusal, or empty. Both fast. */
int weight_group_error(struct weight_group *group, struct buf *ret);
void weight_group_set_error(struct weight_group *group, const char *sentence);

/*
 * Waits until everything that publishing needs is done (digests, bytes on the
 * disk), or until nothing is pending on a published group: what it replaces is
 * gone, too. Holds no lock. Returns 0, or 1 when waiting on won't help, for lack
 * of memory, because something of it is lost, or because somebody reads what it
 * replaces; why then says so.
 * Errors: -EINTR, -EIO, -ENOSPC, -ENOENT the group went away, -EBUSY with who
 * still writes.
 */
int weight_group_wait(struct weight_group *group,
		      const struct weight_waiter *waiter, struct buf *why);

/* What weight_group_wait() would still have to do, as one line. */
int weight_group_progress(struct weight_group *group, struct buf *ret);

/*
 * Publishes a staged group as new_name in lineage new_dir.
 *
 * Errors, as the rename answers: -EPERM a wrong place or another number,
 * -ENOTEMPTY the target exists (-EEXIST with noreplace), -ECANCELED a
 * tombstone, a fenced generation or staged data that a power loss may have
 * damaged, -EBUSY somebody still writes, -EBADMSG malformed content, -EAGAIN
 * not ready within publish_wait, -EINTR, -ENOSPC, -EIO. The group is then as it
 * was, and its error sentence says why.
 */
int weight_group_publish(struct weight_group *group, struct weight_dir *new_dir,
			 const char *new_name, bool noreplace,
			 const struct weight_waiter *waiter, struct buf *why);

/*
 * Removes a published group. expected_metadata_generation 0: no fence.
 * Errors: -EBUSY with who holds it, -ECANCELED fenced, -EINPROGRESS.
 */
int weight_group_remove(struct weight_group *group,
			uint64_t expected_metadata_generation, struct buf *why);

/* ---- Policy and replacement ---- */

/* A change of a policy: what is not set stays as it is. */
struct weight_policy_change {
	bool set_preferred, set_mixed_hot_ratio, set_mode;
	struct weight_policy policy;
};

/* The policy of a published group, or the one that a staged one will have. */
int weight_group_policy(struct weight_group *group, struct weight_policy *ret);

/*
 * Changes it. expected_metadata_generation 0: no fence; a staged group has no
 * generation, and a fence is -EINVAL. Errors: -EINVAL; -EBUSY an operation runs
 * or it is being replaced; -ECANCELED fenced; -EINPROGRESS; -EPERM mixed is
 * wanted of a revision with fewer than two tensors; -ENOSPC, -EIO.
 */
int weight_group_set_policy(struct weight_group *group,
			    const struct weight_policy_change *change,
			    uint64_t expected_metadata_generation,
			    struct buf *why);

struct weight_replacement {
	uint64_t base; /* a generation of the same lineage */
	enum weight_upsert_mode mode;
	const char *request_id; /* NULL: it follows from the rest */
	uint64_t expected_metadata_generation; /* of the base; 0: as it is */
};

/*
 * Announces that a staged group will replace a published one. With PUT_FIRST
 * the base stays until the group is published and durable; with DELETE_FIRST it
 * is removed first, and what would change the staged tree waits for that. The
 * same announcement again goes on where it is.
 *
 * Errors: -EINVAL; -EPERM files are there already and the base is to go first;
 * -ECANCELED another generation of the base, or not above the watermark;
 * -EBUSY another replacement, or the base is held and is to go first; -EEXIST
 * the request was given up, another one has another id; -EINPROGRESS the base
 * is not READY; -ENOENT no such base; -EOVERFLOW, -ENOSPC, -EIO.
 */
int weight_group_replace(struct weight_group *group,
			 const struct weight_replacement *replacement,
			 struct buf *why);
/* "7,mode=put_first,request_id=..." of a staged one. -ENODATA. */
int weight_group_replaces(struct weight_group *group, struct buf *ret);

/* ---- Where the bytes of a published group are ---- */

/* What is true now, whatever the record says. */
struct weight_residence {
	enum weight_residency residency; /* HOT, COLD or MIXED */
	double hot_ratio;      /* the share of the bytes that is pinned */
	uint64_t pinned_bytes; /* granules; may be more than its bytes */
};
int weight_group_residence(struct weight_group *group,
			   struct weight_residence *ret); /* fast */
int weight_file_residence(struct weight_file *file,
			  struct weight_residence *ret); /* fast */

/*
 * Begins to move the whole revision to HOT or COLD; returns when the operation
 * is on record. An operation that can't go on, for lack of memory or because of
 * readers, gives way to another target. expected_metadata_generation 0: no
 * fence. Errors: -EINVAL another target, -EBUSY another operation runs, -ECANCELED
 * fenced, -EPERM its policy pins it, or the store is in memory only and the
 * target COLD; -EINPROGRESS, -ENOSPC, -EIO.
 */
int weight_group_migrate(struct weight_group *group,
			 enum weight_residency target,
			 uint64_t expected_metadata_generation,
			 struct buf *why);

/*
 * Begins to check names, sizes and all bytes against the manifest, and to mend
 * what can be mended; weight_group_wait() waits for it. One that runs already
 * is not begun anew. Errors: -ENOENT, -EIO.
 */
int weight_group_scrub(struct weight_group *group, struct buf *why);
/*
 * As above, at once and without a pace, of what is known or suspected to be
 * damaged; takes bytes from staged files of the lineage that have the same
 * path. Errors: as above.
 */
int weight_group_repair(struct weight_group *group, struct buf *why);
/* "never", "running, 3 of 9 files", "2026-01-31T12:00:00.000Z, 0 bad". */
int weight_group_scrub_text(struct weight_group *group, struct buf *ret);
/* What is wrong with a DEGRADED one, as a sentence; nothing when whole. Fast. */
int weight_group_damage(struct weight_group *group, struct buf *ret);

/*
 * Waits until the whole revision is durable, for at most wait_ms.
 * Errors: -EAGAIN not yet, -EIO writing back fails (why says what), -EINTR.
 */
int weight_group_sync(struct weight_group *group, uint64_t wait_ms,
		      const struct weight_waiter *waiter, struct buf *why);

/* A copy of the record. Errors: -ENODATA while staged, -ENOENT, -EIO. */
int weight_group_metadata(struct weight_group *group,
			  struct weight_metadata **ret);
/* Number of live leases: 0 or 1 for this mount, and those of others. */
int weight_group_leases(struct weight_group *group, uint64_t *ret);

/* The files of .weights/. All may take long on first use. */
int weight_group_metadata_json(struct weight_group *group, struct buf *ret);
int weight_group_manifest_open(struct weight_group *group, int *ret_fd);
int weight_group_sha256sums(struct weight_group *group,
			    const struct weight_waiter *waiter,
			    struct buf *ret);

/* ---- Files below a group ---- */

void weight_file_unref(struct weight_file *file); /* accepts NULL; fast */
DEFINE_CLEANUP(struct weight_file *, weight_file_unref)

/* O_PATH|O_NOFOLLOW descriptor of the backing inode, borrowed. */
int weight_file_fd(const struct weight_file *file);
mode_t weight_file_type(const struct weight_file *file); /* S_IFREG, … */
/* The group it is in. Changes only by a rename between staging trees. */
struct weight_group *weight_file_group(struct weight_file *file); /* +1 ref */

/*
 * Whether all of the payload that it belongs to is gone, so that an empty
 * directory isn't what was published. Fast.
 */
bool weight_file_is_absent(struct weight_file *file);
/* Fast. Errors: -ENOENT, -ENOTDIR, -EMFILE; -EIO it is absent. */
int weight_file_lookup(struct weight_file *dir, const char *name,
		       struct weight_file **ret);
int weight_file_stat(struct weight_file *file, struct stat *ret); /* fast */
int weight_file_readlink(struct weight_file *file, struct buf *ret);

/*
 * The following need weight_group_enter() on the group of every file named.
 * Errors: -EPERM a reserved or unwanted name or kind, -EEXIST, -ENOENT,
 * -ENOTEMPTY, -ENOSPC, -EDQUOT, -EFBIG, -EIO and what the disk says.
 */
int weight_file_create(struct weight_file *dir, const char *name, mode_t mode,
		       const struct weight_caller *caller,
		       struct weight_file **ret);
int weight_file_mkdir(struct weight_file *dir, const char *name, mode_t mode,
		      const struct weight_caller *caller,
		      struct weight_file **ret);
int weight_file_symlink(struct weight_file *dir, const char *name,
			const char *target, const struct weight_caller *caller,
			struct weight_file **ret);
int weight_file_link(struct weight_file *file, struct weight_file *dir,
		     const char *name);
int weight_file_unlink(struct weight_file *dir, const char *name);
int weight_file_rmdir(struct weight_file *dir, const char *name);
int weight_file_rename(struct weight_file *dir, const char *name,
		       struct weight_file *new_dir, const char *new_name,
		       unsigned flags);
int weight_file_setattr(struct weight_file *file,
			const struct weight_setattr *set);
int weight_file_fallocate(struct weight_file *file, int mode, uint64_t offset,
			  uint64_t len);
/* Both in groups; only the target is written and needs enter. */
int weight_file_copy_range(struct weight_file *from, uint64_t from_offset,
			   struct weight_file *to, uint64_t to_offset,
			   size_t len, size_t *ret_copied);
/* Foreign user.* attributes; names user.weights.* never get here. */
int weight_file_setxattr(struct weight_file *file, const char *name,
			 const void *value, size_t len, int flags);
int weight_file_removexattr(struct weight_file *file, const char *name);
int weight_file_getxattr(struct weight_file *file, const char *name,
			 struct buf *ret);
/* NUL-terminated names, without those that weightfs keeps for itself. */
int weight_file_listxattr(struct weight_file *file, struct buf *ret);

/* fsync(2) and its directory form; may take long. */
int weight_file_sync(struct weight_file *file, bool data_only);

/*
 * An open handle, whoever moves the bytes. flags as for open(2). A handle that
 * can write needs weight_group_enter() around the call. A read handle on a
 * published group takes or shares the revision's lease; where that needs the
 * disk and may_block is false, nothing is done and -EWOULDBLOCK returned: call
 * again from a worker. Every success is paired with weight_file_close(), which
 * is fast, frees nothing of the caller's and starts what a close starts
 * (digests, the search for mappings that live on).
 *
 * Bytes of a published file that may be others than those published are not
 * served: an open waits for open_wait= at most while they are verified.
 *
 * Errors: -EROFS writing to what is published, -ENOENT removed, -EINVAL with
 * O_DIRECT a file that is all in memory (direct=refuse), -EINPROGRESS it is
 * still being verified, -EIO nothing of it can be served.
 */
int weight_file_open(struct weight_file *file, int flags, bool may_block);
void weight_file_close(struct weight_file *file, int flags);

/*
 * Whether the kernel may move the bytes of this published file itself: false
 * while a range of it is damaged, which it would serve. Fast.
 */
bool weight_file_may_pass(struct weight_file *file);
/* Whether a range may be served. Errors: -EIO it is damaged. Fast. */
int weight_file_range_check(struct weight_file *file, uint64_t offset,
			    uint64_t len);

/* Whether a handle with these flags counts as a writer. */
static inline bool weight_open_writes(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC);
}

/* Root of the chunk digests, of a published file. -ENODATA while staged. */
int weight_file_digest(struct weight_file *file, struct digest *ret);
/* Plain SHA-256, computed now, interruptible. */
int weight_file_sha256(struct weight_file *file,
		       const struct weight_waiter *waiter, struct digest *ret);

/* ---- Tensors of a published group ---- */

struct weight_tensors;

/* dtype and shape are those of the manifest. */
struct weight_tensor {
	const char *file_name; /* below tensors/, at most 255 bytes */
	const char *id;        /* may hold any byte but NUL; may be empty */
	const char *dtype;
	const uint64_t *shape;
	unsigned rank;
	const char *path; /* of the file that holds it, in the revision */
	uint64_t offset, len;
};

/*
 * The table of a group, sorted by file_name. Reads the manifest the first
 * time; keep the reference while using entries.
 * Errors: -ENODATA not published, -EUCLEAN a damaged manifest, -ENOMEM, -EIO.
 */
int weight_group_tensors(struct weight_group *group,
			 struct weight_tensors **ret);
/* As above, but -EWOULDBLOCK instead of reading the manifest. Fast. */
int weight_group_tensors_cached(struct weight_group *group,
				struct weight_tensors **ret);
void weight_tensors_unref(struct weight_tensors *tensors); /* accepts NULL */
DEFINE_CLEANUP(struct weight_tensors *, weight_tensors_unref)
size_t weight_tensors_count(const struct weight_tensors *tensors);
const struct weight_tensor *weight_tensors_at(const struct weight_tensors *t,
					      size_t i);
/* -ENOENT when there is none of that file_name. O(log n). Fast. */
int weight_tensors_find(const struct weight_tensors *tensors, const char *name,
			size_t *ret);

struct derived_file;

/*
 * Opens tensor i as a file of its own: derives it if it is not there yet,
 * takes the lease as weight_file_open() does. Give it back with
 * weight_tensor_close(). weight_tensor_fd() is an O_PATH descriptor.
 * Errors: -ENOSPC no room within derived=, -ENOENT removed, -EIO.
 */
int weight_tensor_open(struct weight_group *group, size_t i,
		       struct derived_file **ret);
int weight_tensor_fd(const struct derived_file *file);
void weight_tensor_close(struct weight_group *group, struct derived_file *file);
/* Root over the tensor's own bytes: computed on demand. */
int weight_tensor_sha256(struct weight_group *group, size_t i,
			 const struct weight_waiter *waiter,
			 struct digest *ret);

#endif
