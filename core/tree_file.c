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

#include "core/tree_priv.h"

#define SEAL_VERSION 1
#define SEAL_LEN (2 + 8 + 2 + 8 + DIGEST_LEN)

static void file_free(struct weight_file *f)
{
	assert(!f->pin && !f->prefetch);
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
	f->object = TREE_NO_OBJECT;
	f->prefetch_fd = -1;
	list_init(&f->in_pinned);
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
	struct inode_key key;
	struct weight_file *f;
	struct stat st;
	int r = inode_key_of(mine, &st, &key);

	if (r < 0)
		return r;

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
bool tree_file_is_gone(struct weight_file *f)
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
	if (tree_file_is_gone(dir))
		return -ENOENT;
	if (strcmp(name, TREE_CONTROL_NAME) == 0)
		return -ENOENT;
	fd = openat(dir->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	/* What was published may well have had it. */
	if (fd < 0 && errno == ENOENT && weight_file_is_absent(dir))
		return -EIO;
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
	char link[TREE_PROC_FD_LEN];
	ssize_t n;

	tree_proc_fd(fd, link);
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
	char link[TREE_PROC_FD_LEN];
	int fd;

	tree_proc_fd(f->fd, link);
	fd = open(link, flags | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

int weight_file_stat(struct weight_file *file, struct stat *ret)
{
	struct stat st;

	if (tree_file_is_gone(file))
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
	return tree_file_is_gone(file) ? -ENOENT : readlink_fd(file->fd, ret);
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
	char link[TREE_PROC_FD_LEN];
	struct cursor c;
	struct tree_seal seal;
	ssize_t n;

	tree_proc_fd(f->fd, link);
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
int tree_seal_begin(struct weight_store *s, int fd)
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
int tree_write_pin(struct weight_file *f)
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

void tree_write_unpin(struct weight_file *f)
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
