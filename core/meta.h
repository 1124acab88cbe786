/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata database: the only module that includes lmdb.h.
 *
 * A handful of named ordered maps from bytes to bytes in one file,
 * DIR/data.mdb, with transactions across all of them. A change is durable when
 * meta_update() returns 0, and then readers see all of it; after a failure or a
 * kill at any instant they see none of it.
 *
 * The file starts small and its mapping grows by doubling. It is never written
 * through the mapping, so a full disk is -ENOSPC and never a signal. Some room
 * is kept allocated ahead for updates that make room or that reading needs
 * (META_RESERVED), so these work on a full disk.
 *
 * Threads: any number of readers, one writer at a time; a second writer waits.
 * A transaction stays in the thread that began it, and a thread has at most
 * one: while the mapping grows everybody has to be out, so a second one in the
 * same thread could wait for itself. Hold none across a disk or network wait.
 *
 * Processes: one process has a directory open, once; the caller sees to it
 * with a lock file of its own. No fork() while it is open. The directory must
 * be on a local disk.
 *
 * Ownership: what a transaction hands out is borrowed. It lives until the
 * transaction ends, in an update only until that update's next change.
 *
 * Trust: the directory is private to the owner of the store. A file that is
 * damaged by accident, cut, or of another kind is refused and left as it is.
 */
#ifndef CORE_META_H
#define CORE_META_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"

/* Upper limit of the data file, and so of all metadata together. */
#define META_BYTES_MAX ((size_t)64 << 30)
/* What is mapped at first; small enough for a limited address space. */
#define META_BYTES_START ((size_t)64 << 20)
/* Allocated ahead when the disk has room for it. */
#define META_RESERVE_BYTES ((size_t)16 << 20)
/* The part of that which only META_RESERVED may use up. */
#define META_RESERVE_BYTES_MIN ((size_t)1 << 20)
#define META_KEY_MAX 511
#define META_READERS_MAX 1024

/* The named maps. Adding one is adding a row here and to the table of names. */
enum meta_db {
	META_DB_STATE,
	META_DB_REVISION,
	META_DB_STAGING,
	META_DB_LEASE,
	META_DB_LEASE_OF_REVISION,
	META_DB_LINEAGE,
	META_DB_OPERATION,
	META_DB_OPLOG,
	META_DB_NAME,
	META_DB_COUNT,
};

enum meta_purpose {
	META_NORMAL,
	META_RESERVED, /* makes room or serves readers: may use the reserve */
};

struct meta;
struct meta_txn;
struct meta_cursor;

struct meta_bytes {
	const void *data;
	size_t len;
};

/*
 * Opens the database in directory dir, which is made (mode 0700) when it is
 * absent. A database is made when there is none, as a whole or not at all.
 * bytes_max is the limit of the data file, at most META_BYTES_MAX; one that is
 * larger already doesn't grow. A database
 * that is there is first read by a child process, since LMDB ends a process
 * that meets a bad page. So call this before there are other threads.
 *
 * Errors, all but -ENOMEM with a sentence in why:
 *  -EUCLEAN	damaged, cut, or not one of ours; nothing was changed
 *  -EPROTONOSUPPORT	written by a newer version
 *  -ENOENT	the parent of dir is absent
 *  -EACCES, -EROFS, -ENOSPC, -EDQUOT, -ENOMEM, -EIO
 */
int meta_open(const char *dir, size_t bytes_max, struct meta **ret,
	      struct buf *why);
/*
 * Opens one that is there to be read, and changes nothing on the disk: no file
 * is made, no map that it lacks either (it is empty then). An update is -EROFS.
 * Errors: as above; -ENOENT also when there is no database.
 */
int meta_open_read(const char *dir, struct meta **ret, struct buf *why);

void meta_close(struct meta *m); /* accepts NULL; no transaction is open */
DEFINE_CLEANUP(struct meta *, meta_close)

/*
 * Reads every key and value once. What meta_open() has checked is that all keys
 * can be reached; a file that went bad under a running process may also end it.
 * Errors: -EUCLEAN, -ENOMEM, -EIO.
 */
int meta_check(struct meta *m);

/* Begins a read of the state as it is now. Errors: -ENOMEM, -EBUSY, -EIO. */
int meta_read_begin(struct meta *m, struct meta_txn **ret);
void meta_read_end(struct meta_txn *txn); /* accepts NULL */
DEFINE_CLEANUP(struct meta_txn *, meta_read_end)

/*
 * Changes the database: calls body with a transaction and commits when it
 * returns 0. Any other value aborts and is returned.
 *
 * body may be called more than once, each time on the unchanged database: it
 * must give the same result each time and touch nothing outside that it does
 * not set anew. It must return a failure of meta_put() and meta_delete().
 *
 * Errors: of body; -ENOSPC or -EDQUOT the disk or the limit is reached, -ENOMEM
 * also when the address space is, -EUCLEAN, -EIO.
 */
typedef int meta_body_fn(struct meta_txn *txn, void *arg);
int meta_update(struct meta *m, enum meta_purpose purpose, meta_body_fn *body,
		void *arg);

/* Errors: -ENOENT, -ENAMETOOLONG, -EUCLEAN, -EIO. */
int meta_get(struct meta_txn *txn, enum meta_db db, const void *key,
	     size_t key_len, struct meta_bytes *ret);

/*
 * In an update only. meta_delete() of what is not there is -ENOENT. Errors:
 * -ENAMETOOLONG key_len is 0 or above META_KEY_MAX, -ENOSPC, -EUCLEAN, -EIO.
 */
int meta_put(struct meta_txn *txn, enum meta_db db, const void *key,
	     size_t key_len, const void *value, size_t value_len);
int meta_delete(struct meta_txn *txn, enum meta_db db, const void *key,
		size_t key_len);

/* Number of entries. */
int meta_count(struct meta_txn *txn, enum meta_db db, uint64_t *ret);

/*
 * A cursor over the keys that begin with prefix, in the order of memcmp().
 * prefix_len may be 0. It must be closed before its transaction ends, and a
 * change made during an update makes it invalid until the next seek.
 *
 * meta_cursor_seek() finds the first key at or after `key` (NULL: the first
 * one), meta_cursor_next() the one after the last found. Both: -ENOENT there
 * is none, -ENAMETOOLONG, -EUCLEAN, -EIO.
 */
int meta_cursor_open(struct meta_txn *txn, enum meta_db db, const void *prefix,
		     size_t prefix_len, struct meta_cursor **ret);
void meta_cursor_close(struct meta_cursor *c); /* accepts NULL */
DEFINE_CLEANUP(struct meta_cursor *, meta_cursor_close)

int meta_cursor_seek(struct meta_cursor *c, const void *key, size_t key_len,
		     struct meta_bytes *ret_key, struct meta_bytes *ret_value);
int meta_cursor_next(struct meta_cursor *c, struct meta_bytes *ret_key,
		     struct meta_bytes *ret_value);

/* For metrics and tests. */
struct meta_space {
	uint64_t used_bytes;      /* of the file, free pages inside included */
	uint64_t allocated_bytes; /* known to be allocated ahead */
	uint64_t mapped_bytes;
	uint64_t limit_bytes;
	bool limited; /* the last update failed since the limit is reached */
	bool tight;   /* what is left is for META_RESERVED, or nearly so */
};
void meta_space_get(struct meta *m, struct meta_space *ret);

#endif
