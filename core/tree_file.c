/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files below a group: finding them, and what staging may do to them.
 *
 * The backing tree is private to the daemon, so its names can be used one
 * component at a time below a descriptor. An O_PATH descriptor is opened anew
 * through /proc/self/fd, which reaches that very inode whatever its names.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/log.h"
#include "core/tree_priv.h"

#define SET_ID_BITS ((mode_t)(S_ISUID | S_ISGID))
#define PROC_FD_LEN 40
#define SEAL_VERSION 1
#define SEAL_LEN (2 + 8 + 2 + 8 + DIGEST_LEN)
#define XATTR_VALUE_MAX 65536
#define RENAME_FLAGS (RENAME_NOREPLACE | RENAME_EXCHANGE)

static_assert(WEIGHT_FILE_BYTES_MAX <= INT64_MAX, "sizes fit off_t");

static void proc_fd(int fd, char ret[static PROC_FD_LEN])
{
	(void)snprintf(ret, PROC_FD_LEN, "/proc/self/fd/%d", fd);
}

/* What the kernel said, or 0. */
static int errno_of(int rc)
{
	return rc < 0 ? -errno : 0;
}

struct weight_file *weight_file_ref(struct weight_file *file)
{
	store_lock(file->store);
	file->refs++;
	store_unlock(file->store);
	return file;
}

static void file_free(struct weight_file *f)
{
	if (f->fd >= 0)
		(void)close(f->fd);
	chunk_list_free(f->chunks);
	chunk_job_unref(f->job);
	weight_group_unref(f->group);
	free(f);
}

void weight_file_unref(struct weight_file *file)
{
	struct weight_store *s;
	bool last;

	if (!file)
		return;
	s = file->store;
	store_lock(s);
	assert(file->refs > 0);
	last = --file->refs == 0;
	if (last) {
		/* One that was let go has made room for another file. */
		if (map_find(s->files, &file->key, sizeof(file->key)) == file)
			(void)map_take(s->files, &file->key, sizeof(file->key));
		list_remove(&file->in_group);
	}
	store_unlock(s);
	if (last)
		file_free(file);
}

static int file_new(struct weight_group *g, int fd, const struct stat *st,
		    struct weight_file **ret)
{
	struct weight_file *f = calloc(1, sizeof(*f));

	if (!f)
		return -ENOMEM;
	f->refs = 1;
	f->store = g->store;
	f->key.dev = st->st_dev;
	f->key.ino = st->st_ino;
	f->type = st->st_mode & S_IFMT;
	f->fd = fd;
	f->version = 1;
	list_init(&f->in_group);
	list_init(&f->in_queue);
	list_init(&f->in_kept);
	*ret = f;
	return 0;
}

/*
 * While an object lives its descriptor keeps the inode, so the number can't
 * come to mean another file.
 */
int tree_file_adopt(struct weight_group *g, int fd, struct weight_file **ret)
{
	struct weight_store *s = g->store;
	auto_fd int mine = fd;
	struct inode_key key = { 0 };
	struct weight_file *f;
	struct stat st;
	int r = 0;

	if (fstatat(mine, "", &st, AT_EMPTY_PATH) < 0)
		return -errno;
	key.dev = st.st_dev;
	key.ino = st.st_ino;

	store_lock(s);
	f = map_find(s->files, &key, sizeof(key));
	if (f) {
		f->refs++;
	} else if ((r = file_new(g, mine, &st, &f)) == 0) {
		r = map_add(s->files, &f->key, sizeof(f->key), f);
		if (r == 0) {
			mine = -1;
			g->refs++;
			f->group = g;
			list_add_tail(&g->files, &f->in_group);
		} else {
			free(f);
		}
	}
	store_unlock(s);
	if (r == 0)
		*ret = f;
	return r;
}

int weight_file_fd(const struct weight_file *file)
{
	return file->fd;
}

mode_t weight_file_type(const struct weight_file *file)
{
	return file->type;
}

struct weight_group *weight_file_group(struct weight_file *file)
{
	struct weight_group *g;

	store_lock(file->store);
	g = file->group;
	g->refs++;
	store_unlock(file->store);
	return g;
}

/* A removed group has no files any more, whoever still has a reference. */
static bool file_is_gone(struct weight_file *f)
{
	enum weight_group_state state;

	store_lock(f->store);
	state = f->group->state;
	store_unlock(f->store);
	return state == WEIGHT_GROUP_REMOVED || state == WEIGHT_GROUP_ABORTED;
}

int weight_file_lookup(struct weight_file *dir, const char *name,
		       struct weight_file **ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	int fd;

	if (dir->type != S_IFDIR)
		return -ENOTDIR;
	if (file_is_gone(dir))
		return -ENOENT;
	if (strcmp(name, TREE_CONTROL_NAME) == 0)
		return -ENOENT;
	fd = openat(dir->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	g = weight_file_group(dir);
	return tree_file_adopt(g, fd, ret);
}

int tree_file_at(struct weight_group *g, const char *path,
		 struct weight_file **ret)
{
	int fd = openat(g->files_fd, path, O_PATH | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? -errno : tree_file_adopt(g, fd, ret);
}

/* The path of a descriptor as the kernel knows it. */
static int fd_path(int fd, char ret[static PATH_MAX])
{
	char link[PROC_FD_LEN];
	ssize_t n;

	proc_fd(fd, link);
	n = readlink(link, ret, PATH_MAX - 1);
	if (n < 0)
		return -errno;
	ret[n] = '\0';
	return 0;
}

int tree_file_path(struct weight_file *f, struct buf *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		weight_file_group(f);
	auto_free char *root = malloc(PATH_MAX);
	auto_free char *path = malloc(PATH_MAX);
	size_t len;
	int r;

	if (!root || !path)
		return -ENOMEM;
	if ((r = fd_path(g->files_fd, root)) < 0 ||
	    (r = fd_path(f->fd, path)) < 0)
		return r;
	len = strlen(root);
	if (strncmp(path, root, len) != 0)
		return -ENOENT;
	if (path[len] == '/')
		len++;
	return buf_append(ret, path + len, strlen(path + len));
}

/*
 * Blocking, since a probe for holders may be going on, which refuses others for
 * the microseconds that it takes.
 */
int tree_file_reopen(const struct weight_file *f, int flags, int *ret_fd)
{
	char link[PROC_FD_LEN];
	int fd;

	proc_fd(f->fd, link);
	fd = open(link, flags | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

int weight_file_stat(struct weight_file *file, struct stat *ret)
{
	struct stat st;

	if (file_is_gone(file))
		return -ENOENT;
	if (fstatat(file->fd, "", &st, AT_EMPTY_PATH) < 0)
		return -errno;
	st.st_blksize = WEIGHT_FILE_BLKSIZE;
	*ret = st;
	return 0;
}

static int readlink_fd(int fd, struct buf *ret)
{
	auto_free char *target = malloc(PATH_MAX);
	ssize_t n;

	if (!target)
		return -ENOMEM;
	n = readlinkat(fd, "", target, PATH_MAX);
	if (n < 0)
		return -errno;
	return buf_append(ret, target, (size_t)n);
}

int weight_file_readlink(struct weight_file *file, struct buf *ret)
{
	return file_is_gone(file) ? -ENOENT : readlink_fd(file->fd, ret);
}

/* ---- What is known about the bytes ---- */

int tree_write_check_locked(const struct weight_file *f)
{
	switch (f->group->state) {
	case WEIGHT_GROUP_STAGED:
		return 0;
	case WEIGHT_GROUP_PUBLISHING:
		/* While somebody is inside the attempt still waits. */
		return f->group->mutations > 0 ? 0 : -EBUSY;
	case WEIGHT_GROUP_PUBLISHED:
		return -EROFS;
	case WEIGHT_GROUP_REMOVED:
	case WEIGHT_GROUP_ABORTED:
		break;
	}
	return -ENOENT;
}

void tree_file_touch_locked(struct weight_file *f)
{
	f->version++;
	f->job_error = 0;
	if (f->job)
		chunk_job_cancel(f->job);
}

struct weight_file *tree_file_keep_locked(struct weight_file *f)
{
	struct weight_store *s = f->store;
	struct weight_file *oldest;

	if (f->kept) {
		list_move_tail(&s->kept, &f->in_kept);
		return NULL;
	}
	f->kept = true;
	f->refs++;
	list_add_tail(&s->kept, &f->in_kept);
	if (++s->kept_count <= s->kept_max)
		return NULL;
	oldest =
		container_of(list_first(&s->kept), struct weight_file, in_kept);
	(void)tree_file_unkeep_locked(oldest);
	return oldest;
}

bool tree_file_unkeep_locked(struct weight_file *f)
{
	bool kept = f->kept;

	if (kept) {
		list_remove(&f->in_kept);
		f->store->kept_count--;
	}
	f->kept = false;
	return kept;
}

/*
 * The seal is an attribute of the backing inode, so it follows the file under
 * every name and goes with it:
 *	0	u16	SEAL_VERSION
 *	2	u64	epoch
 *	10	u16	1 when sealed, else 0 and the rest is zero
 *	12	u64	size
 *	20	u8[32]	root of the chunk digests
 */
int tree_seal_write(int fd, const struct tree_seal *seal)
{
	uint8_t bytes[SEAL_LEN] = { 0 };
	uint16_t version = htole16(SEAL_VERSION);
	uint64_t epoch = htole64(seal->epoch);
	uint16_t sealed = htole16(seal->sealed);
	uint64_t size = htole64(seal->size);

	memcpy(bytes, &version, 2);
	memcpy(bytes + 2, &epoch, 8);
	memcpy(bytes + 10, &sealed, 2);
	if (seal->sealed) {
		memcpy(bytes + 12, &size, 8);
		memcpy(bytes + 20, seal->root.bytes, DIGEST_LEN);
	}
	if (fsetxattr(fd, TREE_SEAL_XATTR, bytes, sizeof(bytes), 0) == 0)
		return 0;
	/* Without attributes the store can't outlive a boot anyway. */
	return errno == EOPNOTSUPP ? 0 : -errno;
}

int tree_seal_read(const struct weight_file *f, struct tree_seal *ret)
{
	uint8_t bytes[SEAL_LEN];
	char link[PROC_FD_LEN];
	struct cursor c;
	struct tree_seal seal;
	ssize_t n;

	proc_fd(f->fd, link);
	n = getxattr(link, TREE_SEAL_XATTR, bytes, sizeof(bytes));
	if (n < 0)
		return errno == ENODATA ? -ENODATA : -errno;
	c = cursor_over(bytes, (size_t)n);
	if (cursor_u16(&c) != SEAL_VERSION)
		return -ENODATA;
	seal.epoch = cursor_u64(&c);
	seal.sealed = cursor_u16(&c) == 1;
	seal.size = cursor_u64(&c);
	cursor_bytes(&c, seal.root.bytes, DIGEST_LEN);
	if (cursor_done(&c) < 0)
		return -ENODATA;
	*ret = seal;
	return 0;
}

/* The file's bytes begin in this boot: nothing of before can be left. */
static int seal_begin(struct weight_store *s, int fd)
{
	struct tree_seal seal = { .epoch = s->epoch };

	return tree_seal_write(fd, &seal);
}

/*
 * The caller is inside enter/leave of the group that the file was in when it
 * asked. A rename can have moved it to another staging tree since. So who
 * changes a file counts as its writer for as long: that goes with the file, and
 * keeps any group from being published meanwhile.
 */
static int pin(struct weight_file *f)
{
	int r;

	store_lock(f->store);
	r = tree_write_check_locked(f);
	if (r == 0) {
		f->writers++;
		f->group->writers++;
	}
	store_unlock(f->store);
	return r;
}

static void unpin(struct weight_file *f)
{
	store_lock(f->store);
	assert(f->writers > 0);
	f->writers--;
	f->group->writers--;
	/* What an fsync that is going on will say is not about this change. */
	f->synced_version = TREE_NEVER_SYNCED;
	if (f->type == S_IFREG && f->writers == 0)
		keeper_queue_locked(f, TREE_PROBE_MS_MIN);
	(void)pthread_cond_broadcast(&f->group->changed);
	store_unlock(f->store);
}

/* ---- Making and removing names; the caller is inside enter/leave ---- */

static int name_check(const char *name)
{
	return strcmp(name, TREE_CONTROL_NAME) == 0 ? -EPERM : 0;
}

static int adopt_name(struct weight_file *dir, const char *name,
		      struct weight_file **ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	int fd = openat(dir->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	g = weight_file_group(dir);
	return tree_file_adopt(g, fd, ret);
}

/* Of what was just made, reached by a descriptor: its name may be gone. */
static int adopt_new(struct weight_file *dir, int made_fd,
		     struct weight_file **ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	char link[PROC_FD_LEN];
	int fd;

	proc_fd(made_fd, link);
	fd = open(link, O_PATH | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	g = weight_file_group(dir);
	return tree_file_adopt(g, fd, ret);
}

static int begin_file(struct weight_file *f, int fd, mode_t mode,
		      const struct weight_caller *caller)
{
	int r = pin(f);

	if (r < 0)
		return r;
	if ((r = errno_of(fchown(fd, caller->uid, caller->gid))) == 0 &&
	    (r = errno_of(fchmod(fd, mode & 07777 & ~SET_ID_BITS))) == 0)
		r = seal_begin(f->store, fd);
	unpin(f);
	return r;
}

int weight_file_create(struct weight_file *dir, const char *name, mode_t mode,
		       const struct weight_caller *caller,
		       struct weight_file **ret)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	auto_fd int fd = -1;
	int r = name_check(name);

	if (r < 0)
		return r;
	fd = openat(dir->fd, name,
		    O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = adopt_new(dir, fd, &f);
	if (r == 0)
		r = begin_file(f, fd, mode, caller);
	if (r < 0) {
		(void)unlinkat(dir->fd, name, 0);
		return r;
	}
	*ret = take_ptr(f);
	return 0;
}

/* Never by the name: it could lead to what somebody else put there. */
static int begin_dir(struct weight_file *dir, const char *name, mode_t mode,
		     const struct weight_caller *caller,
		     struct weight_file **ret)
{
	auto_fd int fd = openat(dir->fd, name,
				O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 ||
	    fchownat(fd, "", caller->uid, caller->gid, AT_EMPTY_PATH) < 0 ||
	    fchmodat(fd, ".", mode & 07777 & ~SET_ID_BITS, 0) < 0)
		return -errno;
	return adopt_new(dir, fd, ret);
}

int weight_file_mkdir(struct weight_file *dir, const char *name, mode_t mode,
		      const struct weight_caller *caller,
		      struct weight_file **ret)
{
	int r = name_check(name);

	if (r < 0)
		return r;
	if (mkdirat(dir->fd, name, 0700) < 0)
		return -errno;
	r = begin_dir(dir, name, mode, caller, ret);
	if (r < 0)
		(void)unlinkat(dir->fd, name, AT_REMOVEDIR);
	return r;
}

static int begin_symlink(struct weight_file *dir, const char *name,
			 const struct weight_caller *caller,
			 struct weight_file **ret)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	int r = adopt_name(dir, name, &f);

	if (r == 0 && f->type != S_IFLNK)
		r = -ENOENT;
	if (r == 0)
		r = pin(f);
	if (r < 0)
		return r;
	r = errno_of(
		fchownat(f->fd, "", caller->uid, caller->gid, AT_EMPTY_PATH));
	unpin(f);
	if (r == 0)
		*ret = take_ptr(f);
	return r;
}

int weight_file_symlink(struct weight_file *dir, const char *name,
			const char *target, const struct weight_caller *caller,
			struct weight_file **ret)
{
	int r = name_check(name);

	if (r < 0)
		return r;
	if (symlinkat(target, dir->fd, name) < 0)
		return -errno;
	r = begin_symlink(dir, name, caller, ret);
	if (r < 0 && r != -ENOENT)
		(void)unlinkat(dir->fd, name, 0);
	return r;
}

static bool same_group(struct weight_file *a, struct weight_file *b)
{
	bool same;

	store_lock(a->store);
	same = a->group == b->group;
	store_unlock(a->store);
	return same;
}

int weight_file_link(struct weight_file *file, struct weight_file *dir,
		     const char *name)
{
	char link[PROC_FD_LEN];
	int r = name_check(name);

	if (r < 0)
		return r;
	if (file->type == S_IFDIR)
		return -EPERM;
	r = pin(file);
	if (r < 0)
		return r;
	proc_fd(file->fd, link);
	r = !same_group(file, dir) ? -EPERM :
				     errno_of(linkat(AT_FDCWD, link, dir->fd,
						     name, AT_SYMLINK_FOLLOW));
	unpin(file);
	return r;
}

/* Facts about a file whose last name is gone are of no use to anybody. */
static void forget_if_nameless(struct weight_file *f)
{
	struct stat st;
	bool drop;

	if (fstatat(f->fd, "", &st, AT_EMPTY_PATH) < 0 || st.st_nlink > 0)
		return;
	store_lock(f->store);
	if (f->job)
		chunk_job_cancel(f->job);
	drop = tree_file_unkeep_locked(f);
	store_unlock(f->store);
	if (drop)
		weight_file_unref(f);
}

int weight_file_unlink(struct weight_file *dir, const char *name)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	int r = adopt_name(dir, name, &f);

	if (r < 0)
		return r;
	if (unlinkat(dir->fd, name, 0) < 0)
		return -errno;
	forget_if_nameless(f);
	return 0;
}

int weight_file_rmdir(struct weight_file *dir, const char *name)
{
	return errno_of(unlinkat(dir->fd, name, AT_REMOVEDIR));
}

/* A file has one group: all of its names move, so it may only have one. */
static int may_change_group(const struct weight_file *f)
{
	struct stat st;

	if (f->type == S_IFDIR)
		return -EPERM;
	if (fstatat(f->fd, "", &st, AT_EMPTY_PATH) < 0)
		return -errno;
	return st.st_nlink > 1 ? -EPERM : 0;
}

static void change_group(struct weight_file *f, struct weight_group *to)
{
	struct weight_group *from;
	unsigned holds;

	store_lock(f->store);
	from = f->group;
	from->writers -= f->writers;
	to->writers += f->writers;
	/* What weight_file_close() will give back, it gives back there. */
	holds = f->readers + f->maybe_mapped;
	for (unsigned i = 0; i < holds; i++) {
		keeper_hold_locked(to);
		keeper_drop_locked(from);
	}
	to->refs++;
	f->group = to;
	list_move_tail(&to->files, &f->in_group);
	(void)pthread_cond_broadcast(&from->changed);
	store_unlock(f->store);
	weight_group_unref(from);
}

int weight_file_rename(struct weight_file *dir, const char *name,
		       struct weight_file *new_dir, const char *new_name,
		       unsigned flags)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *to =
		weight_file_group(new_dir);
	cleanup(weight_file_unref_cleanup) struct weight_file *moved = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *old = NULL;
	bool crosses = !same_group(dir, new_dir);
	int r;

	if (flags & ~(unsigned)RENAME_FLAGS)
		return -EINVAL;
	if ((r = name_check(name)) < 0 || (r = name_check(new_name)) < 0 ||
	    (r = adopt_name(dir, name, &moved)) < 0)
		return r;
	r = adopt_name(new_dir, new_name, &old);
	if (r < 0 && r != -ENOENT)
		return r;
	if (crosses && (flags & RENAME_EXCHANGE))
		return -EPERM;
	if (crosses && (r = may_change_group(moved)) < 0)
		return r;
	if (renameat2(dir->fd, name, new_dir->fd, new_name, flags) < 0)
		return -errno;
	if (crosses)
		change_group(moved, to);
	if (old && old != moved && !(flags & RENAME_EXCHANGE))
		forget_if_nameless(old);
	return 0;
}

/* ---- Attributes and contents ---- */

static int set_owner(int fd, const struct weight_setattr *set)
{
	uid_t uid = set->set_uid ? set->uid : (uid_t)-1;
	gid_t gid = set->set_gid ? set->gid : (gid_t)-1;

	if (!set->set_uid && !set->set_gid)
		return 0;
	return errno_of(fchownat(fd, "", uid, gid, AT_EMPTY_PATH));
}

static int set_size(struct weight_file *f, uint64_t size)
{
	auto_fd int fd = -1;
	int r;

	if (size > WEIGHT_FILE_BYTES_MAX)
		return -EFBIG;
	r = tree_file_reopen(f, O_WRONLY, &fd);
	if (r < 0)
		return r;
	/* No digest may begin before the bytes are what they will be. */
	r = weight_file_open(f, O_WRONLY, true);
	if (r < 0)
		return r;
	if (size == 0)
		r = seal_begin(f->store, fd);
	if (r == 0)
		r = errno_of(ftruncate(fd, (off_t)size));
	weight_file_close(f, O_WRONLY);
	return r;
}

static int set_mode(int fd, mode_t mode)
{
	char link[PROC_FD_LEN];

	proc_fd(fd, link);
	return errno_of(chmod(link, mode & 07777 & ~SET_ID_BITS));
}

static int set_all(struct weight_file *file, const struct weight_setattr *set)
{
	int r = 0;

	if (set->set_size)
		r = set_size(file, set->size);
	if (r == 0)
		r = set_owner(file->fd, set);
	if (r == 0 && set->set_mode && file->type != S_IFLNK)
		r = set_mode(file->fd, set->mode);
	if (r == 0 && set->set_times)
		r = errno_of(
			utimensat(file->fd, "", set->times, AT_EMPTY_PATH));
	return r;
}

int weight_file_setattr(struct weight_file *file,
			const struct weight_setattr *set)
{
	int r = pin(file);

	if (r < 0)
		return r;
	r = set_all(file, set);
	unpin(file);
	return r;
}

/*
 * Opens f for a change of its bytes that goes through the daemon. Paired with
 * weight_file_close(f, O_WRONLY).
 */
static int open_to_change(struct weight_file *f, int *ret_fd)
{
	int r = weight_file_open(f, O_WRONLY, true);

	if (r < 0)
		return r;
	r = tree_file_reopen(f, O_RDWR, ret_fd);
	if (r < 0)
		weight_file_close(f, O_WRONLY);
	return r;
}

int weight_file_fallocate(struct weight_file *file, int mode, uint64_t offset,
			  uint64_t len)
{
	auto_fd int fd = -1;
	int r;

	if (offset > WEIGHT_FILE_BYTES_MAX ||
	    len > WEIGHT_FILE_BYTES_MAX - offset)
		return -EFBIG;
	r = open_to_change(file, &fd);
	if (r < 0)
		return r;
	r = errno_of(fallocate(fd, mode, (off_t)offset, (off_t)len));
	weight_file_close(file, O_WRONLY);
	return r;
}

int weight_file_copy_range(struct weight_file *from, uint64_t from_offset,
			   struct weight_file *to, uint64_t to_offset,
			   size_t len, size_t *ret_copied)
{
	auto_fd int in = -1;
	auto_fd int out = -1;
	off_t in_at = (off_t)from_offset;
	off_t out_at = (off_t)to_offset;
	ssize_t n;
	int r;

	if (to_offset > WEIGHT_FILE_BYTES_MAX ||
	    from_offset > WEIGHT_FILE_BYTES_MAX)
		return -EFBIG;
	if (len > WEIGHT_FILE_BYTES_MAX - to_offset)
		len = (size_t)(WEIGHT_FILE_BYTES_MAX - to_offset);
	if (file_is_gone(from))
		return -ENOENT;
	if ((r = tree_file_reopen(from, O_RDONLY, &in)) < 0 ||
	    (r = open_to_change(to, &out)) < 0)
		return r;
	n = copy_file_range(in, &in_at, out, &out_at, len, 0);
	r = n < 0 ? -errno : 0;
	weight_file_close(to, O_WRONLY);
	if (r == 0)
		*ret_copied = (size_t)n;
	return r;
}

int weight_file_setxattr(struct weight_file *file, const char *name,
			 const void *value, size_t len, int flags)
{
	char link[PROC_FD_LEN];
	int r;

	if (file->type == S_IFLNK)
		return -EPERM;
	r = pin(file);
	if (r < 0)
		return r;
	proc_fd(file->fd, link);
	r = errno_of(setxattr(link, name, value, len, flags));
	unpin(file);
	return r;
}

int weight_file_removexattr(struct weight_file *file, const char *name)
{
	char link[PROC_FD_LEN];
	int r;

	if (file->type == S_IFLNK)
		return -ENODATA;
	r = pin(file);
	if (r < 0)
		return r;
	proc_fd(file->fd, link);
	r = errno_of(removexattr(link, name));
	unpin(file);
	return r;
}

int weight_file_getxattr(struct weight_file *file, const char *name,
			 struct buf *ret)
{
	auto_free char *value = NULL;
	char link[PROC_FD_LEN];
	ssize_t n;

	if (file_is_gone(file))
		return -ENOENT;
	if (file->type == S_IFLNK)
		return -ENODATA;
	value = malloc(XATTR_VALUE_MAX);
	if (!value)
		return -ENOMEM;
	proc_fd(file->fd, link);
	n = getxattr(link, name, value, XATTR_VALUE_MAX);
	if (n < 0)
		return errno == EOPNOTSUPP ? -ENODATA : -errno;
	return buf_append(ret, value, (size_t)n);
}

int weight_file_listxattr(struct weight_file *file, struct buf *ret)
{
	static const char ours[] = "user.weights.";
	auto_free char *names = NULL;
	char link[PROC_FD_LEN];
	ssize_t n;
	int r;

	if (file_is_gone(file))
		return -ENOENT;
	if (file->type == S_IFLNK)
		return 0;
	names = malloc(XATTR_VALUE_MAX);
	if (!names)
		return -ENOMEM;
	proc_fd(file->fd, link);
	n = listxattr(link, names, XATTR_VALUE_MAX);
	if (n < 0)
		return errno == EOPNOTSUPP ? 0 : -errno;
	for (const char *p = names; p < names + n; p += strlen(p) + 1) {
		if (strncmp(p, "user.", 5) != 0 ||
		    strncmp(p, ours, sizeof(ours) - 1) == 0)
			continue;
		r = buf_append(ret, p, strlen(p) + 1);
		if (r < 0)
			return r;
	}
	return 0;
}

void tree_group_let_go(struct weight_group *g)
{
	struct weight_store *s = g->store;
	auto_fd int null = open("/dev/null", O_PATH | O_CLOEXEC);

	if (null < 0)
		return;
	store_lock(s);
	for (struct list *at = g->files.next; at != &g->files; at = at->next) {
		struct weight_file *f =
			container_of(at, struct weight_file, in_group);

		/*
		 * Replaced, not closed: a thread that is about to use the
		 * number finds a file that holds nothing. From here on the
		 * inode's number may come to mean another file.
		 */
		(void)dup3(null, f->fd, O_CLOEXEC);
		if (map_find(s->files, &f->key, sizeof(f->key)) == f)
			(void)map_take(s->files, &f->key, sizeof(f->key));
	}
	store_unlock(s);
}
