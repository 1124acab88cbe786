/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories above a revision, and the symlinks that users keep in lineages.
 * They are real directories and symlinks below STORE/tree with the names that
 * the mount shows.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "core/log.h"
#include "core/tree_priv.h"
#include "core/weight_key.h"

#define SYMLINK_DEPTH (WEIGHT_TREE_LINEAGE_DEPTH + 1)

struct weight_dir *weight_dir_ref(struct weight_dir *dir)
{
	store_lock(dir->store);
	dir->refs++;
	store_unlock(dir->store);
	return dir;
}

static void dir_free(struct weight_dir *dir)
{
	if (dir->fd >= 0)
		(void)close(dir->fd);
	free(dir->name);
	free(dir);
}

void weight_dir_unref(struct weight_dir *dir)
{
	while (dir) {
		struct weight_dir *parent = NULL;
		struct weight_store *s = dir->store;
		bool last;

		store_lock(s);
		assert(dir->refs > 0);
		last = --dir->refs == 0;
		if (last) {
			(void)map_take(s->dirs, &dir->key, sizeof(dir->key));
			parent = dir->parent;
		}
		store_unlock(s);
		if (!last)
			return;
		dir_free(dir);
		dir = parent;
	}
}

unsigned weight_dir_depth(const struct weight_dir *dir)
{
	return dir->depth;
}

int weight_dir_fd(const struct weight_dir *dir)
{
	return dir->fd;
}

struct weight_dir *weight_tree_root(struct weight_store *store)
{
	return store->root;
}

static int dir_new(struct weight_store *s, struct weight_dir *parent,
		   const char *name, int fd, const struct stat *st,
		   struct weight_dir **ret)
{
	struct weight_dir *dir = calloc(1, sizeof(*dir));

	if (!dir)
		return -ENOMEM;
	if (name && !(dir->name = strdup(name))) {
		free(dir);
		return -ENOMEM;
	}
	dir->refs = 1;
	dir->store = s;
	dir->parent = parent;
	dir->key.dev = st->st_dev;
	dir->key.ino = st->st_ino;
	dir->type = st->st_mode & S_IFMT;
	dir->depth = parent ? parent->depth + 1 : 0;
	dir->fd = fd;
	*ret = dir;
	return 0;
}

/* As tree_file_adopt(): the descriptor keeps the inode from being reused. */
static int dir_adopt(struct weight_store *s, struct weight_dir *parent,
		     const char *name, int fd, struct weight_dir **ret)
{
	auto_fd int mine = fd;
	struct inode_key key;
	struct weight_dir *dir;
	struct stat st;
	int r = inode_key_of(mine, &st, &key);

	if (r < 0)
		return r;
	store_lock(s);
	dir = map_find(s->dirs, &key, sizeof(key));
	if (dir) {
		dir->refs++;
	} else if ((r = dir_new(s, parent, name, mine, &st, &dir)) == 0) {
		mine = -1;
		r = map_add(s->dirs, &dir->key, sizeof(dir->key), dir);
		if (r < 0)
			dir_free(dir);
		else if (parent)
			parent->refs++;
	}
	store_unlock(s);
	if (r == 0)
		*ret = dir;
	return r;
}

int tree_dir_open_root(struct weight_store *s)
{
	int fd = openat(s->tree_fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : dir_adopt(s, NULL, NULL, fd, &s->root);
}

static bool is_place(const struct weight_dir *dir)
{
	return dir->type == S_IFDIR && dir->depth <= WEIGHT_TREE_LINEAGE_DEPTH;
}

/* Whether a name still is the directory's that was found under it. */
static bool is_named(const struct weight_dir *parent, const char *name,
		     const struct weight_dir *dir)
{
	struct stat st;

	return fstatat(parent->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       st.st_dev == dir->key.dev && st.st_ino == dir->key.ino;
}

int weight_dir_lookup(struct weight_dir *dir, const char *name,
		      struct weight_dir **ret)
{
	struct weight_dir *found = NULL;
	int fd, r;

	if (!is_place(dir))
		return -ENOTDIR;
	fd = openat(dir->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	r = dir_adopt(dir->store, dir, name, fd, &found);
	if (r < 0)
		return r;
	/*
	 * A rename in between would have left the object with the old name,
	 * and so with another identity. From here on it would change it.
	 */
	if (!is_named(dir, name, found)) {
		weight_dir_unref(found);
		return -ENOENT;
	}
	*ret = found;
	return 0;
}

int weight_dir_stat(struct weight_dir *dir, struct stat *ret)
{
	struct stat st;

	if (fstatat(dir->fd, "", &st, AT_EMPTY_PATH) < 0)
		return -errno;
	*ret = st;
	return 0;
}

int weight_dir_readlink(struct weight_dir *dir, struct buf *ret)
{
	auto_free char *target = malloc(PATH_MAX);
	ssize_t n;

	if (!target)
		return -ENOMEM;
	n = readlinkat(dir->fd, "", target, PATH_MAX);
	if (n < 0)
		return -errno;
	return buf_append(ret, target, (size_t)n);
}

/* ---- Identity ---- */

/* Names from the tree down to dir, borrowed. Lock held. */
static void names_locked(const struct weight_dir *dir,
			 const char *ret[WEIGHT_TREE_LINEAGE_DEPTH])
{
	for (; dir->parent; dir = dir->parent)
		if (dir->depth <= WEIGHT_TREE_LINEAGE_DEPTH)
			ret[dir->depth - 1] = dir->name;
}

int tree_dir_path(struct weight_dir *dir, struct buf *ret)
{
	const char *names[WEIGHT_TREE_LINEAGE_DEPTH] = { NULL };
	int r = 0;

	store_lock(dir->store);
	names_locked(dir, names);
	for (size_t i = 0; i < ARRAY_LEN(names) && names[i] && r == 0; i++)
		r = buf_printf(ret, "%s%s", i ? "/" : "", names[i]);
	store_unlock(dir->store);
	return r;
}

int tree_lineage_of(struct weight_dir *lineage, uint64_t generation,
		    struct weight_identity **ret)
{
	const char *names[WEIGHT_TREE_LINEAGE_DEPTH] = { NULL };
	struct buf parts[WEIGHT_TREE_LINEAGE_DEPTH];
	struct weight_identity id;
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		parts[i] = (struct buf)BUF_INIT;
	store_lock(lineage->store);
	names_locked(lineage, names);
	for (size_t i = 0; i < ARRAY_LEN(parts) && r == 0; i++)
		r = names[i] ? weight_path_decode(names[i], strlen(names[i]),
						  &parts[i]) :
			       -EPERM;
	store_unlock(lineage->store);
	if (r == 0) {
		id = (struct weight_identity){
			.lineage = { parts[0].data, parts[1].data,
				     parts[2].data, parts[3].data },
			.generation = generation,
		};
		r = weight_identity_copy(&id, ret);
	}
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		buf_release(&parts[i]);
	return r;
}

static int step_down(struct weight_dir **dir, const char *part, bool make)
{
	struct buf name = BUF_INIT;
	struct weight_dir *child = NULL;
	int r = weight_path_encode(part, &name);

	if (r == 0 && make && mkdirat((*dir)->fd, name.data, 0755) < 0 &&
	    errno != EEXIST)
		r = -errno;
	if (r == 0)
		r = weight_dir_lookup(*dir, name.data, &child);
	buf_release(&name);
	if (r < 0)
		return r;
	weight_dir_unref(*dir);
	*dir = child;
	return 0;
}

int tree_lineage_find(struct weight_store *s, const struct weight_lineage *l,
		      bool make, struct weight_dir **ret)
{
	const char *parts[] = { l->tenant, l->name_space, l->resource,
				l->revision };
	cleanup(weight_dir_unref_cleanup) struct weight_dir *dir =
		weight_dir_ref(s->root);
	int r;

	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		r = step_down(&dir, parts[i], make);
		if (r < 0)
			return r;
	}
	*ret = take_ptr(dir);
	return 0;
}

static int sync_dir(int opath_fd)
{
	auto_fd int fd =
		openat(opath_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	return errno_of(fsync(fd));
}

int tree_dir_sync(struct weight_dir *lineage)
{
	for (struct weight_dir *d = lineage; d; d = d->parent) {
		int r = sync_dir(d->fd);

		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- Changes; all under the namespace lock ---- */

static void namespace_lock(struct weight_store *s)
{
	(void)pthread_mutex_lock(&s->namespace_lock);
}

static void namespace_unlock(struct weight_store *s)
{
	(void)pthread_mutex_unlock(&s->namespace_lock);
}

static bool is_number(const char *name)
{
	return name[0] && strspn(name, "0123456789") == strlen(name);
}

/* Whether name can stand for a part of an identity at this depth. */
static int part_check(struct weight_dir *dir, const char *name, struct buf *why)
{
	struct buf part = BUF_INIT;
	bool ok;
	int r;

	r = weight_path_decode(name, strlen(name), &part);
	if (r == -EINVAL)
		(void)buf_printf(why,
				 "'%s' is no name for a part of an identity: "
				 "write '/' as %%2F, '%%' as %%25 and a "
				 "leading '.' as %%2E",
				 name);
	if (r < 0)
		goto out;
	ok = dir->depth > 0 || weight_tenant_ok(part.data);
	if (!ok) {
		(void)buf_printf(why, "a tenant may not start with '_'");
		r = -EINVAL;
	} else if (dir->depth == 0 &&
		   dir->store->config->tenants == CONFIG_TENANTS_DEFAULT &&
		   strcmp(part.data, "default") != 0) {
		(void)buf_printf(why,
				 "this mount has the tenant 'default' only "
				 "(option tenants)");
		r = -EINVAL;
	}
out:
	buf_release(&part);
	return r;
}

static int own_and_adopt(struct weight_dir *dir, const char *name,
			 const struct weight_caller *caller,
			 struct weight_dir **ret)
{
	if (fchownat(dir->fd, name, caller->uid, caller->gid,
		     AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	return weight_dir_lookup(dir, name, ret);
}

int weight_dir_mkdir(struct weight_dir *dir, const char *name, mode_t mode,
		     const struct weight_caller *caller,
		     struct weight_dir **ret, struct buf *why)
{
	int r;

	if (dir->depth >= WEIGHT_TREE_LINEAGE_DEPTH) {
		(void)buf_printf(why,
				 "a lineage holds generations and symlinks "
				 "only: make a generation in .staging and "
				 "publish it by a rename");
		return -EPERM;
	}
	r = part_check(dir, name, why);
	if (r < 0)
		return r;
	namespace_lock(dir->store);
	r = errno_of(mkdirat(dir->fd, name, 0700));
	if (r == 0) {
		r = errno_of(fchmodat(dir->fd, name,
				      mode & 07777 & ~TREE_SET_ID_BITS, 0));
		if (r == 0)
			r = own_and_adopt(dir, name, caller, ret);
		if (r < 0)
			(void)unlinkat(dir->fd, name, AT_REMOVEDIR);
	}
	namespace_unlock(dir->store);
	return r;
}

static int symlink_check(struct weight_dir *dir, const char *name,
			 struct buf *why)
{
	if (dir->depth != WEIGHT_TREE_LINEAGE_DEPTH) {
		(void)buf_printf(why,
				 "symlinks belong in a lineage, beside its "
				 "generations");
		return -EPERM;
	}
	if (is_number(name) || strcmp(name, TREE_STAGING_NAME) == 0 ||
	    strcmp(name, TREE_CONTROL_NAME) == 0) {
		(void)buf_printf(why,
				 "'%s' is a name of generations or of the "
				 "filesystem, not for a symlink",
				 name);
		return -EPERM;
	}
	return 0;
}

int weight_dir_symlink(struct weight_dir *dir, const char *name,
		       const char *target, const struct weight_caller *caller,
		       struct weight_dir **ret, struct buf *why)
{
	int r = symlink_check(dir, name, why);

	if (r < 0)
		return r;
	namespace_lock(dir->store);
	r = errno_of(symlinkat(target, dir->fd, name));
	if (r == 0) {
		r = own_and_adopt(dir, name, caller, ret);
		if (r < 0)
			(void)unlinkat(dir->fd, name, 0);
	}
	namespace_unlock(dir->store);
	return r;
}

/* What a writer of the first door imports is in no list of the mount's. */
static int no_import(struct weight_dir *dir, struct buf *why)
{
	cleanup(weight_identity_free_cleanup) struct weight_identity *id = NULL;
	bool used = false;
	int r = tree_lineage_of(dir, 1, &id);

	if (r == 0)
		r = wms_lineage_in_use(dir->store->records, &id->lineage,
				       &used);
	if (r == 0 && used) {
		(void)buf_printf(why, "an import into it is going on");
		r = -ENOTEMPTY;
	}
	return r;
}

/* Generations keep a lineage from going; tombstones don't. */
static int lineage_is_free(struct weight_dir *dir, struct buf *why)
{
	uint64_t g;
	int r;

	for (int staged = 0; staged < 2; staged++) {
		r = weight_dir_next_generation(dir, staged, 0, &g);
		if (r == 0) {
			(void)buf_printf(why, "it has the %s generation %llu",
					 staged ? "staged" : "published",
					 (unsigned long long)g);
			return -ENOTEMPTY;
		}
		if (r != -ENOENT)
			return r;
	}
	return no_import(dir, why);
}

int weight_dir_rmdir(struct weight_dir *dir, const char *name, struct buf *why)
{
	cleanup(weight_dir_unref_cleanup) struct weight_dir *child = NULL;
	int r;

	namespace_lock(dir->store);
	r = weight_dir_lookup(dir, name, &child);
	if (r == 0 && child->type != S_IFDIR)
		r = -ENOTDIR;
	if (r == 0 && child->depth == WEIGHT_TREE_LINEAGE_DEPTH)
		r = lineage_is_free(child, why);
	if (r == 0)
		r = errno_of(unlinkat(dir->fd, name, AT_REMOVEDIR));
	namespace_unlock(dir->store);
	return r;
}

int weight_dir_unlink(struct weight_dir *dir, const char *name, struct buf *why)
{
	(void)why;
	if (!is_place(dir))
		return -ENOTDIR;
	return errno_of(unlinkat(dir->fd, name, 0));
}

static bool has_entries(int opath_fd)
{
	int fd = openat(opath_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;
	bool found = false;

	if (!d) {
		if (fd >= 0)
			(void)close(fd);
		return true;
	}
	while (!found && (e = readdir(d)))
		found = strcmp(e->d_name, ".") != 0 &&
			strcmp(e->d_name, "..") != 0;
	(void)closedir(d);
	return found;
}

static int rename_check(struct weight_dir *dir, struct weight_dir *moved,
			struct weight_dir *new_dir, const char *new_name,
			struct buf *why)
{
	int r;

	if (moved->type == S_IFLNK)
		return symlink_check(new_dir, new_name, why);
	if (dir->depth != new_dir->depth) {
		(void)buf_printf(why, "it belongs %u levels below the root",
				 moved->depth);
		return -EPERM;
	}
	if (has_entries(moved->fd)) {
		(void)buf_printf(why, "a directory above a revision can be "
				      "renamed only while it is empty");
		return -EPERM;
	}
	if (moved->depth == WEIGHT_TREE_LINEAGE_DEPTH &&
	    (r = lineage_is_free(moved, why)) < 0)
		return r == -ENOTEMPTY ? -EPERM : r;
	return part_check(new_dir, new_name, why);
}

/* A lineage without symlinks looks empty on disk; its generations count. */
static int replace_check(const struct weight_dir *moved,
			 struct weight_dir *new_dir, const char *new_name,
			 struct buf *why)
{
	cleanup(weight_dir_unref_cleanup) struct weight_dir *old = NULL;
	int r = weight_dir_lookup(new_dir, new_name, &old);

	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (old == moved || old->type != S_IFDIR ||
	    old->depth != WEIGHT_TREE_LINEAGE_DEPTH)
		return 0;
	return lineage_is_free(old, why);
}

static void move_locked(struct weight_dir *moved, struct weight_dir *new_dir,
			char *name, struct weight_dir **ret_old_parent,
			char **ret_old_name)
{
	*ret_old_parent = moved->parent;
	*ret_old_name = moved->name;
	new_dir->refs++;
	moved->parent = new_dir;
	moved->name = name;
}

int weight_dir_rename(struct weight_dir *dir, const char *name,
		      struct weight_dir *new_dir, const char *new_name,
		      unsigned flags, struct buf *why)
{
	cleanup(weight_dir_unref_cleanup) struct weight_dir *moved = NULL;
	cleanup(weight_dir_unref_cleanup) struct weight_dir *parent = NULL;
	auto_free char *fresh = strdup(new_name);
	auto_free char *old = NULL;
	int r;

	if (!fresh)
		return -ENOMEM;
	if (flags & ~(unsigned)RENAME_NOREPLACE)
		return -EINVAL;
	namespace_lock(dir->store);
	r = weight_dir_lookup(dir, name, &moved);
	if (r == 0)
		r = rename_check(dir, moved, new_dir, new_name, why);
	if (r == 0 && !(flags & RENAME_NOREPLACE))
		r = replace_check(moved, new_dir, new_name, why);
	if (r == 0)
		r = errno_of(
			renameat2(dir->fd, name, new_dir->fd, new_name, flags));
	if (r == 0) {
		store_lock(dir->store);
		move_locked(moved, new_dir, take_ptr(fresh), &parent, &old);
		store_unlock(dir->store);
	}
	namespace_unlock(dir->store);
	return r;
}

int weight_dir_setattr(struct weight_dir *dir, const struct weight_setattr *set,
		       struct buf *why)
{
	uid_t uid = set->set_uid ? set->uid : (uid_t)-1;
	gid_t gid = set->set_gid ? set->gid : (gid_t)-1;
	int r = 0;

	if (set->set_size)
		return -EISDIR;
	(void)why;
	if (set->set_uid || set->set_gid)
		r = errno_of(fchownat(dir->fd, "", uid, gid, AT_EMPTY_PATH));
	if (r == 0 && set->set_mode && dir->type == S_IFDIR)
		r = errno_of(fchmodat(dir->fd, ".",
				      set->mode & 07777 & ~TREE_SET_ID_BITS,
				      0));
	if (r == 0 && set->set_times)
		r = errno_of(utimensat(dir->fd, "", set->times, AT_EMPTY_PATH));
	return r;
}
