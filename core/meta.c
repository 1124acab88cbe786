/* SPDX-License-Identifier: Apache-2.0 */
#include "core/meta.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/log.h"
#include "core/meta_disk.h"
#include "core/step.h"

#define DATA_NAME META_DISK_DATA
#define LOCK_NAME "lock.mdb"
/* A multiple of the page size, above META_READERS_MAX slots of 64 bytes. */
#define LOCK_BYTES ((uint64_t)128 << 10)
/* Where a new database is made; renamed from there when it is complete. */
#define NEW_NAME "new"

/* A handle that LMDB keeps for itself. */
#define DBI_ABSENT 0

/* Tells our files from other LMDB files. The number is the layout's version. */
#define FORMAT_KEY "format"
#define FORMAT_WORD "weightfs-metadata "
#define FORMAT_VALUE FORMAT_WORD "1"

static const char *const db_names[META_DB_COUNT] = {
	[META_DB_STATE] = "state",
	[META_DB_REVISION] = "revision",
	[META_DB_STAGING] = "staging",
	[META_DB_LEASE] = "lease",
	[META_DB_LEASE_OF_REVISION] = "lease_of_revision",
	[META_DB_LINEAGE] = "lineage",
	[META_DB_OPERATION] = "operation",
	[META_DB_OPLOG] = "oplog",
	[META_DB_NAME] = "name",
};

/*
 * Lock order: write_lock, map_lock, LMDB's own writer mutex. A transaction
 * holds map_lock for reading; moving the mapping takes it for writing.
 */
struct meta {
	MDB_env *env;
	MDB_dbi dbi[META_DB_COUNT];
	pthread_mutex_t write_lock; /* one update, its retries included */
	pthread_rwlock_t map_lock;
	size_t bytes_max;
	size_t mapped;      /* changed under both locks */
	uint64_t allocated; /* under write_lock */
	bool limited;       /* by bytes_max, the last update; likewise */
	bool unmapped;      /* the mapping was lost; under map_lock */
	bool read_only;
};

struct meta_txn {
	struct meta *m;
	MDB_txn *txn;
	bool map_full;
};

struct meta_cursor {
	struct meta_txn *txn;
	MDB_cursor *cursor;
	size_t prefix_len;
	unsigned char prefix[META_KEY_MAX];
};

/*
 * LMDB returns 0, a positive errno, or a negative MDB_ code. This is the one
 * place that turns those into ours, so no MDB_ code leaves this file.
 */
static int meta_err(int rc)
{
	switch (rc) {
	case 0:
		return 0;
	case MDB_NOTFOUND:
		return -ENOENT;
	case MDB_MAP_FULL:
	case MDB_TXN_FULL:
		return log_debug(-ENOSPC, "%s", mdb_strerror(rc));
	case MDB_BAD_VALSIZE:
		return log_debug(-ENAMETOOLONG, "%s", mdb_strerror(rc));
	case MDB_READERS_FULL:
		return log_debug(-EBUSY, "%s", mdb_strerror(rc));
	case MDB_INVALID:
	case MDB_VERSION_MISMATCH:
	case MDB_CORRUPTED:
	case MDB_PAGE_NOTFOUND:
	case MDB_INCOMPATIBLE:
		return log_debug(-EUCLEAN, "%s", mdb_strerror(rc));
	case ENOENT:
	case EACCES:
	case EROFS:
	case ENOMEM:
	case ENOSPC:
	case EDQUOT:
		return log_debug(-rc, "%s", mdb_strerror(rc));
	default:
		return log_debug(-EIO, "%s", mdb_strerror(rc));
	}
}

static MDB_val val_of(const void *data, size_t len)
{
	return (MDB_val){ .mv_size = len, .mv_data = (void *)data };
}

static struct meta_bytes bytes_of(const MDB_val *v)
{
	return (struct meta_bytes){ .data = v->mv_data, .len = v->mv_size };
}

static void txn_abort(MDB_txn *txn)
{
	mdb_txn_abort(txn);
}
DEFINE_CLEANUP(MDB_txn *, txn_abort)

static void env_close(MDB_env *env)
{
	mdb_env_close(env);
}
DEFINE_CLEANUP(MDB_env *, env_close)

/* ---- Space in the file ---- */

static uint64_t env_used_bytes(MDB_env *env)
{
	MDB_envinfo info;
	MDB_stat stat;

	/* Neither can fail on an open environment. */
	(void)mdb_env_info(env, &info);
	(void)mdb_env_stat(env, &stat);
	return ((uint64_t)info.me_last_pgno + 1) * stat.ms_psize;
}

static int env_fd(MDB_env *env)
{
	mdb_filehandle_t fd = -1;

	(void)mdb_env_get_fd(env, &fd);
	return fd;
}

/*
 * Keeps room allocated past what is used. Takes at most a quarter of what the
 * disk has left, but always tries for what removal needs.
 *
 * The file is kept at least as long as what LMDB counts as used, also where no
 * disk space is behind it: LMDB leaves out trailing pages that a transaction
 * took and gave back, and a file that is too short counts as cut.
 *
 * Errors: why there is less than META_RESERVE_BYTES_MIN.
 */
static int reserve_locked(struct meta *m)
{
	uint64_t used = env_used_bytes(m->env);
	int fd = env_fd(m->env);
	int r = 0;

	if (m->allocated >= used + META_RESERVE_BYTES / 2)
		return 0;
	for (uint64_t want = META_RESERVE_BYTES; want >= META_RESERVE_BYTES_MIN;
	     want /= 2) {
		if (m->allocated >= used + want)
			return 0;
		if (want > META_RESERVE_BYTES_MIN &&
		    meta_disk_free_bytes(fd) / 4 < want)
			continue;
		r = meta_disk_allocate(fd, 0, used, want);
		if (r == 0 || r == -EOPNOTSUPP) {
			meta_disk_extend(fd, used + want);
			m->allocated = used + want;
			return 0;
		}
	}
	meta_disk_extend(fd, used + META_RESERVE_BYTES);
	return r;
}

/*
 * LMDB reports a short write as EIO. Whether a full disk was behind it shows
 * when more is asked for; after that the room that the failed transaction took
 * is given back, since nothing refers to it.
 */
static int commit_failed_locked(struct meta *m, int err)
{
	uint64_t used = env_used_bytes(m->env);
	uint64_t end = m->allocated > used ? m->allocated : used;
	int fd = env_fd(m->env);
	struct stat st;
	int r;

	if (fstat(fd, &st) < 0)
		return err;
	if (err == -EIO) {
		uint64_t at =
			(uint64_t)st.st_size > end ? (uint64_t)st.st_size : end;

		r = meta_disk_allocate(fd, FALLOC_FL_KEEP_SIZE, at,
				       META_RESERVE_BYTES_MIN);
		if (meta_disk_is_full(r) ||
		    (r < 0 &&
		     meta_disk_free_bytes(fd) < META_RESERVE_BYTES_MIN))
			err = r == -EDQUOT ? r : -ENOSPC;
	}
	/* Also where the size stays: blocks may be kept past the end. */
	if (ftruncate(fd, (off_t)end) < 0)
		(void)log_debug(-errno, "giving back room");
	return err;
}

/* ---- The mapping ---- */

/* size 0: whatever the file says. Caller holds write_lock and no map_lock. */
static int remap_locked(struct meta *m, size_t size)
{
	MDB_envinfo info;
	int rc;

	pthread_rwlock_wrlock(&m->map_lock);
	rc = m->unmapped ? EIO : mdb_env_set_mapsize(m->env, size);
	if (rc) {
		m->unmapped = true;
	} else {
		(void)mdb_env_info(m->env, &info);
		m->mapped = info.me_mapsize;
	}
	pthread_rwlock_unlock(&m->map_lock);
	return meta_err(rc);
}

/*
 * mdb_env_set_mapsize() unmaps first, so it must not fail after that.
 *
 * Errors: -ENOSPC the limit is reached, -ENOMEM the address space, -EIO.
 */
static int grow_locked(struct meta *m, enum meta_purpose purpose)
{
	size_t limit = m->bytes_max;
	size_t more;

	if (purpose == META_RESERVED)
		limit += META_RESERVE_BYTES_MIN;
	m->limited = m->mapped >= limit;
	if (m->limited)
		return log_debug(-ENOSPC, "limit of %zu bytes", limit);

	more = limit - m->mapped;
	if (more > m->mapped)
		more = m->mapped;
	while (meta_disk_address_space(more) < 0) {
		if (more / 2 < META_RESERVE_BYTES_MIN)
			return log_debug(-ENOMEM, "mapping %zu more bytes",
					 more);
		more /= 2;
	}
	return remap_locked(m, m->mapped + more);
}

/* ---- Transactions ---- */

/* Takes map_lock for reading when it succeeds. */
static int txn_begin_once(struct meta *m, unsigned flags, MDB_txn **ret,
			  bool *ret_resized)
{
	int rc;

	pthread_rwlock_rdlock(&m->map_lock);
	rc = m->unmapped ? MDB_PANIC : mdb_txn_begin(m->env, NULL, flags, ret);
	if (rc)
		pthread_rwlock_unlock(&m->map_lock);
	*ret_resized = rc == MDB_MAP_RESIZED;
	return meta_err(rc);
}

/* write_locked: the caller holds write_lock already. */
static int txn_begin(struct meta *m, unsigned flags, bool write_locked,
		     MDB_txn **ret)
{
	bool resized;
	int r;

	r = txn_begin_once(m, flags, ret, &resized);
	if (!resized)
		return r;
	if (!write_locked)
		pthread_mutex_lock(&m->write_lock);
	r = remap_locked(m, 0);
	if (!write_locked)
		pthread_mutex_unlock(&m->write_lock);
	if (r < 0)
		return r;
	return txn_begin_once(m, flags, ret, &resized);
}

int meta_read_begin(struct meta *m, struct meta_txn **ret)
{
	auto_free struct meta_txn *txn = NULL;
	int r;

	txn = calloc(1, sizeof(*txn));
	if (!txn)
		return -ENOMEM;
	txn->m = m;
	r = txn_begin(m, MDB_RDONLY, false, &txn->txn);
	if (r < 0)
		return r;
	*ret = take_ptr(txn);
	return 0;
}

void meta_read_end(struct meta_txn *txn)
{
	if (!txn)
		return;
	mdb_txn_abort(txn->txn);
	pthread_rwlock_unlock(&txn->m->map_lock);
	free(txn);
}

static int update_once_locked(struct meta *m, meta_body_fn *body, void *arg,
			      bool *ret_map_full)
{
	struct meta_txn txn = { .m = m };
	bool commit_failed = false;
	int r, rc;

	*ret_map_full = false;
	r = txn_begin(m, 0, true, &txn.txn);
	if (r < 0)
		return r;
	r = body(&txn, arg);
	if (r != 0 || txn.map_full) {
		mdb_txn_abort(txn.txn);
	} else {
		rc = mdb_txn_commit(txn.txn);
		commit_failed = rc != 0;
		txn.map_full = rc == MDB_MAP_FULL;
		r = meta_err(rc);
	}
	pthread_rwlock_unlock(&m->map_lock);
	*ret_map_full = txn.map_full;
	if (commit_failed && !txn.map_full)
		r = commit_failed_locked(m, r);
	return r;
}

static int update_locked(struct meta *m, enum meta_purpose purpose,
			 meta_body_fn *body, void *arg)
{
	bool map_full;
	int r;

	m->limited = false;
	r = reserve_locked(m);
	if (meta_disk_is_full(r) && purpose == META_NORMAL)
		return log_debug(r, "the rest is for removals");
	for (;;) {
		r = update_once_locked(m, body, arg, &map_full);
		if (!map_full)
			break;
		r = grow_locked(m, purpose);
		if (r < 0)
			return r;
	}
	/* Now, while there is room, rather than at the next update. */
	if (r == 0)
		(void)reserve_locked(m);
	return r;
}

int meta_update(struct meta *m, enum meta_purpose purpose, meta_body_fn *body,
		void *arg)
{
	int r;

	if (m->read_only)
		return -EROFS;
	pthread_mutex_lock(&m->write_lock);
	r = update_locked(m, purpose, body, arg);
	pthread_mutex_unlock(&m->write_lock);
	return r;
}

int meta_get(struct meta_txn *txn, enum meta_db db, const void *key,
	     size_t key_len, struct meta_bytes *ret)
{
	MDB_val k = val_of(key, key_len);
	MDB_val v;
	int rc;

	if (txn->m->dbi[db] == DBI_ABSENT)
		return -ENOENT;
	rc = mdb_get(txn->txn, txn->m->dbi[db], &k, &v);
	if (rc)
		return meta_err(rc);
	*ret = bytes_of(&v);
	return 0;
}

/* Remembers a full map, which the caller of body has to know. */
static int write_err(struct meta_txn *txn, int rc)
{
	if (rc == MDB_MAP_FULL)
		txn->map_full = true;
	return meta_err(rc);
}

int meta_put(struct meta_txn *txn, enum meta_db db, const void *key,
	     size_t key_len, const void *value, size_t value_len)
{
	MDB_val k = val_of(key, key_len);
	MDB_val v = val_of(value, value_len);

	step("metadata: write");
	return write_err(txn, mdb_put(txn->txn, txn->m->dbi[db], &k, &v, 0));
}

int meta_delete(struct meta_txn *txn, enum meta_db db, const void *key,
		size_t key_len)
{
	MDB_val k = val_of(key, key_len);

	step("metadata: write");
	return write_err(txn, mdb_del(txn->txn, txn->m->dbi[db], &k, NULL));
}

int meta_count(struct meta_txn *txn, enum meta_db db, uint64_t *ret)
{
	MDB_stat stat = { .ms_entries = 0 };
	int r = 0;

	if (txn->m->dbi[db] != DBI_ABSENT)
		r = meta_err(mdb_stat(txn->txn, txn->m->dbi[db], &stat));
	if (r < 0)
		return r;
	*ret = stat.ms_entries;
	return 0;
}

/* ---- Cursors ---- */

int meta_cursor_open(struct meta_txn *txn, enum meta_db db, const void *prefix,
		     size_t prefix_len, struct meta_cursor **ret)
{
	auto_free struct meta_cursor *c = NULL;
	int r = 0;

	if (prefix_len > META_KEY_MAX)
		return log_debug(-ENAMETOOLONG, "prefix of %zu", prefix_len);
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->txn = txn;
	c->prefix_len = prefix_len;
	if (prefix_len)
		memcpy(c->prefix, prefix, prefix_len);
	/* Without a cursor inside there is nothing to be found. */
	if (txn->m->dbi[db] != DBI_ABSENT)
		r = meta_err(
			mdb_cursor_open(txn->txn, txn->m->dbi[db], &c->cursor));
	if (r < 0)
		return r;
	*ret = take_ptr(c);
	return 0;
}

void meta_cursor_close(struct meta_cursor *c)
{
	if (!c)
		return;
	if (c->cursor)
		mdb_cursor_close(c->cursor);
	free(c);
}

static int cursor_move(struct meta_cursor *c, MDB_val *k, MDB_cursor_op op,
		       struct meta_bytes *ret_key, struct meta_bytes *ret_value)
{
	MDB_val v;
	int rc;

	if (!c->cursor)
		return -ENOENT;
	rc = mdb_cursor_get(c->cursor, k, &v, op);
	if (rc)
		return meta_err(rc);
	if (k->mv_size < c->prefix_len ||
	    memcmp(k->mv_data, c->prefix, c->prefix_len) != 0)
		return -ENOENT;
	*ret_key = bytes_of(k);
	*ret_value = bytes_of(&v);
	return 0;
}

int meta_cursor_seek(struct meta_cursor *c, const void *key, size_t key_len,
		     struct meta_bytes *ret_key, struct meta_bytes *ret_value)
{
	size_t common = key_len < c->prefix_len ? key_len : c->prefix_len;
	MDB_val k = val_of(key, key_len);
	int order;

	if (key_len > META_KEY_MAX)
		return log_debug(-ENAMETOOLONG, "key of %zu", key_len);
	order = common ? memcmp(key, c->prefix, common) : 0;
	if (order < 0 || (order == 0 && key_len < c->prefix_len))
		k = val_of(c->prefix, c->prefix_len);
	return cursor_move(c, &k, k.mv_size ? MDB_SET_RANGE : MDB_FIRST,
			   ret_key, ret_value);
}

int meta_cursor_next(struct meta_cursor *c, struct meta_bytes *ret_key,
		     struct meta_bytes *ret_value)
{
	MDB_val k;

	return cursor_move(c, &k, MDB_NEXT, ret_key, ret_value);
}

/* ---- Checking ---- */

/* Reads every byte, so that a page that can't be read is met here. */
static unsigned touch(struct meta_bytes b)
{
	const unsigned char *p = b.data;
	unsigned sum = 0;

	for (size_t i = 0; i < b.len; i++)
		sum += p[i];
	return sum;
}

static int check_map(struct meta_txn *txn, enum meta_db db, bool values)
{
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	volatile unsigned sum = 0;
	struct meta_bytes key, value;
	uint64_t count, seen = 0;
	int r;

	if (txn->m->dbi[db] == DBI_ABSENT)
		return 0;
	r = meta_count(txn, db, &count);
	if (r < 0)
		return r;
	r = meta_cursor_open(txn, db, NULL, 0, &c);
	if (r < 0)
		return r;
	for (r = meta_cursor_seek(c, NULL, 0, &key, &value); r == 0;
	     r = meta_cursor_next(c, &key, &value)) {
		sum = sum + touch(key);
		if (values)
			sum = sum + touch(value);
		seen++;
	}
	if (r != -ENOENT)
		return r;
	if (seen != count)
		return log_debug(-EUCLEAN, "%s: %llu of %llu entries",
				 db_names[db], (unsigned long long)seen,
				 (unsigned long long)count);
	return 0;
}

static int check_maps(struct meta *m, bool values)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	int r;

	r = meta_read_begin(m, &txn);
	for (unsigned db = 0; r == 0 && db < META_DB_COUNT; db++)
		r = check_map(txn, (enum meta_db)db, values);
	return r;
}

int meta_check(struct meta *m)
{
	return check_maps(m, true);
}

void meta_space_get(struct meta *m, struct meta_space *ret)
{
	pthread_mutex_lock(&m->write_lock);
	ret->used_bytes = env_used_bytes(m->env);
	ret->allocated_bytes = m->allocated;
	ret->limit_bytes = m->bytes_max;
	ret->limited = m->limited;
	ret->tight = ret->used_bytes >= m->bytes_max ||
		     m->allocated < ret->used_bytes + META_RESERVE_BYTES_MIN;
	ret->mapped_bytes = m->mapped;
	pthread_mutex_unlock(&m->write_lock);
}

/* ---- Opening ---- */

/*
 * The lock file is written through a mapping, so it must have all of its disk
 * space before: a hole in it on a full disk would be a signal. LMDB takes the
 * length that it finds. What is in it already stays.
 */
static int lock_allocate(const char *dir)
{
	auto_free char *path = NULL;
	int r;

	r = meta_disk_path(dir, LOCK_NAME, &path);
	return r < 0 ? r : meta_disk_file(path, LOCK_BYTES);
}

/*
 * This process is the only one: nobody else has to see its locks and readers,
 * and a full disk can't hit them.
 */
static int lock_detach(const char *dir)
{
	auto_free char *path = NULL;
	int r;

	r = meta_disk_path(dir, LOCK_NAME, &path);
	return r < 0 ? r : meta_disk_unmap_file(path);
}

/*
 * mdb_env_open() makes a file that is absent and fills one that is empty, so
 * the caller has looked before. Who only reads, and alone, needs no locks.
 */
static int env_open(const char *path, size_t mapsize, bool read_only,
		    MDB_env **ret)
{
	unsigned flags = read_only ? MDB_RDONLY | MDB_NOLOCK : 0;
	cleanup(env_close_cleanup) MDB_env *env = NULL;
	int r, rc;

	r = read_only ? 0 : lock_allocate(path);
	if (r < 0)
		return r;
	if ((rc = mdb_env_create(&env)) ||
	    (rc = mdb_env_set_maxdbs(env, META_DB_COUNT)) ||
	    (rc = mdb_env_set_maxreaders(env, META_READERS_MAX)) ||
	    (rc = mdb_env_set_mapsize(env, mapsize)) ||
	    (rc = mdb_env_open(env, path, MDB_NOTLS | flags, 0600)))
		return meta_err(rc);
	r = read_only ? 0 : lock_detach(path);
	if (r == -ENOMEM)
		return r;
	if (r < 0)
		(void)log_debug(r, "the lock file stays mapped");
	*ret = take_ptr(env);
	return 0;
}

enum dbs_how {
	DBS_READ,   /* changes nothing; absent maps get DBI_ABSENT */
	DBS_CREATE, /* makes absent ones */
	DBS_FORMAT, /* and writes the format's entry */
};

static int dbs_open(MDB_env *env, MDB_dbi dbi[META_DB_COUNT], enum dbs_how how)
{
	cleanup(txn_abort_cleanup) MDB_txn *txn = NULL;
	MDB_val k = val_of(FORMAT_KEY, strlen(FORMAT_KEY));
	MDB_val v = val_of(FORMAT_VALUE, strlen(FORMAT_VALUE));
	bool read = how == DBS_READ;
	int rc;

	rc = mdb_txn_begin(env, NULL, read ? MDB_RDONLY : 0, &txn);
	for (unsigned i = 0; rc == 0 && i < META_DB_COUNT; i++) {
		rc = mdb_dbi_open(txn, db_names[i], read ? 0 : MDB_CREATE,
				  &dbi[i]);
		if (rc == MDB_NOTFOUND && read) {
			dbi[i] = DBI_ABSENT;
			rc = 0;
		}
	}
	if (rc == 0 && how == DBS_FORMAT)
		rc = mdb_put(txn, dbi[META_DB_STATE], &k, &v, 0);
	if (rc)
		return meta_err(rc);
	/* Writes nothing when every map was there. */
	return meta_err(mdb_txn_commit(take_ptr(txn)));
}

/* Errors: -EUCLEAN not one of ours, -EPROTONOSUPPORT, -ENOMEM, -EIO. */
static int format_check(MDB_env *env)
{
	cleanup(txn_abort_cleanup) MDB_txn *txn = NULL;
	MDB_val k = val_of(FORMAT_KEY, strlen(FORMAT_KEY));
	size_t word_len = strlen(FORMAT_WORD);
	MDB_dbi dbi;
	MDB_val v;
	int rc;

	if ((rc = mdb_txn_begin(env, NULL, MDB_RDONLY, &txn)) ||
	    (rc = mdb_dbi_open(txn, db_names[META_DB_STATE], 0, &dbi)) ||
	    (rc = mdb_get(txn, dbi, &k, &v)))
		return rc == MDB_NOTFOUND ? log_debug(-EUCLEAN, "foreign") :
					    meta_err(rc);
	if (v.mv_size <= word_len ||
	    memcmp(v.mv_data, FORMAT_WORD, word_len) != 0)
		return log_debug(-EUCLEAN, "foreign format");
	if (v.mv_size != strlen(FORMAT_VALUE) ||
	    memcmp(v.mv_data, FORMAT_VALUE, v.mv_size) != 0)
		return log_debug(-EPROTONOSUPPORT, "another format");
	return 0;
}

/* Reading a mapping past the end of its file would be a signal. */
static int length_check(MDB_env *env)
{
	struct stat st;

	if (fstat(env_fd(env), &st) < 0)
		return log_debug(-EIO, "%s", strerror(errno));
	if ((uint64_t)st.st_size < env_used_bytes(env))
		return log_debug(-EUCLEAN, "%lld of %llu bytes are there",
				 (long long)st.st_size,
				 (unsigned long long)env_used_bytes(env));
	return 0;
}

static void new_dir_remove(int dirfd)
{
	(void)unlinkat(dirfd, NEW_NAME "/" DATA_NAME, 0);
	(void)unlinkat(dirfd, NEW_NAME "/" LOCK_NAME, 0);
	(void)unlinkat(dirfd, NEW_NAME, AT_REMOVEDIR);
}

static int new_fill(const char *path, size_t mapsize)
{
	cleanup(env_close_cleanup) MDB_env *env = NULL;
	MDB_dbi dbi[META_DB_COUNT];
	int r;

	r = env_open(path, mapsize, false, &env);
	if (r < 0)
		return r;
	return dbs_open(env, dbi, DBS_FORMAT);
}

/*
 * Makes the database beside its place and moves it there when it is complete.
 * So an empty or half-made data file is never a start that was interrupted,
 * but always damage.
 */
static int data_create(const char *dir, int dirfd, size_t mapsize)
{
	auto_free char *path = NULL;
	int r;

	r = meta_disk_path(dir, NEW_NAME, &path);
	if (r < 0)
		return r;
	new_dir_remove(dirfd);
	if (mkdirat(dirfd, NEW_NAME, 0700) < 0)
		return log_debug(-errno, "making '%s'", path);
	r = new_fill(path, mapsize);
	if (r == 0 &&
	    renameat(dirfd, NEW_NAME "/" DATA_NAME, dirfd, DATA_NAME) < 0)
		r = log_debug(-errno, "moving the new database");
	new_dir_remove(dirfd);
	if (r == 0)
		r = meta_disk_sync(dirfd);
	return r == 0 ? meta_disk_sync_parent(dirfd) : r;
}

/* Whether there is a data file that could be ours. -ENOENT. */
static int data_look(int dirfd)
{
	struct stat st;

	if (fstatat(dirfd, DATA_NAME, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return log_debug(-errno, "stat");
	if (!S_ISREG(st.st_mode) || st.st_size == 0)
		return log_debug(-EUCLEAN, "mode %o, %lld bytes", st.st_mode,
				 (long long)st.st_size);
	return 0;
}

/* Sees to it that there is one. */
static int data_prepare(const char *dir, size_t mapsize, bool *ret_made)
{
	auto_fd int dirfd = -1;
	int r;

	r = meta_disk_dir(dir, true, &dirfd);
	if (r < 0)
		return r;
	r = data_look(dirfd);
	*ret_made = r == -ENOENT;
	return *ret_made ? data_create(dir, dirfd, mapsize) : r;
}

/* Opens the file that is there, and its maps. */
static int file_open(struct meta *m, const char *dir, size_t mapsize,
		     enum dbs_how how)
{
	MDB_envinfo info;
	int r;

	r = env_open(dir, mapsize, m->read_only, &m->env);
	/* It is there, so a strange errno is about what it is. */
	if (r == -ENOENT)
		return -EUCLEAN;
	if (r < 0)
		return r;
	r = length_check(m->env);
	if (r < 0)
		return r;
	r = format_check(m->env);
	if (r < 0)
		return r;
	r = dbs_open(m->env, m->dbi, how);
	if (r < 0)
		return r;
	(void)mdb_env_info(m->env, &info);
	m->mapped = info.me_mapsize;
	return 0;
}

/* The child's answer to its parent; larger than any status of a sanitizer's. */
#define CHILD_STATUS_BASE 100

static _Noreturn void child_check(struct meta *m, const char *dir,
				  size_t mapsize)
{
	static const struct rlimit no_core = { 0, 0 };
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	int r;

	(void)setrlimit(RLIMIT_CORE, &no_core);
	if (null >= 0)
		(void)dup2(null, STDERR_FILENO);
	(void)signal(SIGABRT, SIG_DFL);
	(void)signal(SIGBUS, SIG_DFL);
	(void)signal(SIGSEGV, SIG_DFL);
	r = file_open(m, dir, mapsize, DBS_READ);
	if (r == 0)
		r = check_maps(m, false);
	assert(r <= 0 && r > CHILD_STATUS_BASE - 256);
	_exit(CHILD_STATUS_BASE - r);
}

/*
 * LMDB trusts its file: on a bad page it aborts, or reads astray. So a child
 * goes through all of it first, and dies in our place.
 */
static int file_check(struct meta *m, const char *dir, size_t mapsize)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		return log_debug(-ENOMEM, "fork: %s", strerror(errno));
	if (child == 0)
		child_check(m, dir, mapsize);
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return log_debug(-EIO, "waitpid: %s", strerror(errno));
	if (WIFEXITED(status) && WEXITSTATUS(status) >= CHILD_STATUS_BASE)
		return CHILD_STATUS_BASE - WEXITSTATUS(status);
	/* Killed by somebody, which says nothing about the file. */
	if (WIFSIGNALED(status) &&
	    (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM ||
	     WTERMSIG(status) == SIGINT))
		return log_debug(-EIO, "the check was killed");
	return log_debug(-EUCLEAN, "the check ended with %x", status);
}

static int setup_read(struct meta *m, const char *dir)
{
	auto_fd int dirfd = -1;
	int r;

	if ((r = meta_disk_dir(dir, false, &dirfd)) < 0 ||
	    (r = data_look(dirfd)) < 0 ||
	    (r = file_check(m, dir, META_BYTES_START)) < 0)
		return r;
	return file_open(m, dir, META_BYTES_START, DBS_READ);
}

static int setup_write(struct meta *m, const char *dir)
{
	size_t mapsize = m->bytes_max < META_BYTES_START ? m->bytes_max :
							   META_BYTES_START;
	bool made;
	int dead, r;

	r = data_prepare(dir, mapsize, &made);
	if (r < 0)
		return r;
	if (!made) {
		r = file_check(m, dir, mapsize);
		if (r < 0)
			return r;
	}
	r = file_open(m, dir, mapsize, DBS_CREATE);
	if (r < 0)
		return r;
	/* What is there already may go, which needs room, too. */
	if (m->bytes_max < env_used_bytes(m->env))
		m->bytes_max = env_used_bytes(m->env);
	/* Slots of readers that were killed would keep pages from reuse. */
	(void)mdb_reader_check(m->env, &dead);
	/* A full disk is no reason not to start. */
	(void)reserve_locked(m);
	return 0;
}

static int locks_init(struct meta *m)
{
	pthread_rwlockattr_t attr;
	int rc;

	rc = pthread_rwlockattr_init(&attr);
	if (rc)
		return -rc;
	/* Or readers that come and go could keep the mapping from growing. */
	(void)pthread_rwlockattr_setkind_np(
		&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	rc = pthread_rwlock_init(&m->map_lock, &attr);
	(void)pthread_rwlockattr_destroy(&attr);
	if (rc)
		return -rc;
	rc = pthread_mutex_init(&m->write_lock, NULL);
	if (rc)
		(void)pthread_rwlock_destroy(&m->map_lock);
	return -rc;
}

static int open_as(const char *dir, size_t bytes_max, bool read_only,
		   struct meta **ret, struct buf *why)
{
	struct meta *m;
	int r;

	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->bytes_max = bytes_max;
	m->read_only = read_only;
	r = locks_init(m);
	if (r < 0) {
		free(m);
		return r;
	}
	r = read_only ? setup_read(m, dir) : setup_write(m, dir);
	if (r < 0) {
		meta_disk_explain(dir, r, read_only, why);
		meta_close(m);
		return r;
	}
	*ret = m;
	return 0;
}

int meta_open(const char *dir, size_t bytes_max, struct meta **ret,
	      struct buf *why)
{
	assert(bytes_max > 0 && bytes_max <= META_BYTES_MAX);
	return open_as(dir, bytes_max, false, ret, why);
}

int meta_open_read(const char *dir, struct meta **ret, struct buf *why)
{
	return open_as(dir, META_BYTES_MAX, true, ret, why);
}

void meta_close(struct meta *m)
{
	if (!m)
		return;
	if (m->env)
		mdb_env_close(m->env);
	(void)pthread_mutex_destroy(&m->write_lock);
	(void)pthread_rwlock_destroy(&m->map_lock);
	free(m);
}
