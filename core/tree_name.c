/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making, linking, renaming and removing names below a staged group. The caller
 * is between weight_group_enter() and weight_group_leave().
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "core/tree_priv.h"

#define RENAME_FLAGS (RENAME_NOREPLACE | RENAME_EXCHANGE)

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
	char link[TREE_PROC_FD_LEN];
	int fd;

	tree_proc_fd(made_fd, link);
	fd = open(link, O_PATH | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	g = weight_file_group(dir);
	return tree_file_adopt(g, fd, ret);
}

static int begin_file(struct weight_file *f, int fd, mode_t mode,
		      const struct weight_caller *caller)
{
	int r = tree_write_pin(f);

	if (r < 0)
		return r;
	if ((r = errno_of(fchown(fd, caller->uid, caller->gid))) == 0 &&
	    (r = errno_of(fchmod(fd, mode & 07777 & ~TREE_SET_ID_BITS))) == 0)
		r = tree_seal_begin(f->store, fd);
	tree_write_unpin(f);
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
	    fchmodat(fd, ".", mode & 07777 & ~TREE_SET_ID_BITS, 0) < 0)
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
		r = tree_write_pin(f);
	if (r < 0)
		return r;
	r = errno_of(
		fchownat(f->fd, "", caller->uid, caller->gid, AT_EMPTY_PATH));
	tree_write_unpin(f);
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
	char link[TREE_PROC_FD_LEN];
	int r = name_check(name);

	if (r < 0)
		return r;
	if (file->type == S_IFDIR)
		return -EPERM;
	r = tree_write_pin(file);
	if (r < 0)
		return r;
	tree_proc_fd(file->fd, link);
	r = !same_group(file, dir) ? -EPERM :
				     errno_of(linkat(AT_FDCWD, link, dir->fd,
						     name, AT_SYMLINK_FOLLOW));
	tree_write_unpin(file);
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
	tree_pin_drop(f, false);
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
