/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What changes a staged file itself: its attributes, its size, its contents
 * where they go through the daemon, and attributes that are the user's.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/tree_priv.h"

#define XATTR_VALUE_MAX 65536

static_assert(WEIGHT_FILE_BYTES_MAX <= INT64_MAX, "sizes fit off_t");

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
		r = tree_seal_begin(f->store, fd);
	if (r == 0)
		r = errno_of(ftruncate(fd, (off_t)size));
	weight_file_close(f, O_WRONLY);
	return r;
}

static int set_mode(int fd, mode_t mode)
{
	char link[TREE_PROC_FD_LEN];

	tree_proc_fd(fd, link);
	return errno_of(chmod(link, mode & 07777 & ~TREE_SET_ID_BITS));
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
	int r = tree_write_pin(file);

	if (r < 0)
		return r;
	r = set_all(file, set);
	tree_write_unpin(file);
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
	if (tree_file_is_gone(from))
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
	char link[TREE_PROC_FD_LEN];
	int r;

	if (file->type == S_IFLNK)
		return -EPERM;
	r = tree_write_pin(file);
	if (r < 0)
		return r;
	tree_proc_fd(file->fd, link);
	r = errno_of(setxattr(link, name, value, len, flags));
	tree_write_unpin(file);
	return r;
}

int weight_file_removexattr(struct weight_file *file, const char *name)
{
	char link[TREE_PROC_FD_LEN];
	int r;

	if (file->type == S_IFLNK)
		return -ENODATA;
	r = tree_write_pin(file);
	if (r < 0)
		return r;
	tree_proc_fd(file->fd, link);
	r = errno_of(removexattr(link, name));
	tree_write_unpin(file);
	return r;
}

int weight_file_getxattr(struct weight_file *file, const char *name,
			 struct buf *ret)
{
	auto_free char *value = NULL;
	char link[TREE_PROC_FD_LEN];
	ssize_t n;

	if (tree_file_is_gone(file))
		return -ENOENT;
	if (file->type == S_IFLNK)
		return -ENODATA;
	value = malloc(XATTR_VALUE_MAX);
	if (!value)
		return -ENOMEM;
	tree_proc_fd(file->fd, link);
	n = getxattr(link, name, value, XATTR_VALUE_MAX);
	if (n < 0)
		return errno == EOPNOTSUPP ? -ENODATA : -errno;
	return buf_append(ret, value, (size_t)n);
}

int weight_file_listxattr(struct weight_file *file, struct buf *ret)
{
	static const char ours[] = "user.weights.";
	auto_free char *names = NULL;
	char link[TREE_PROC_FD_LEN];
	ssize_t n;
	int r;

	if (tree_file_is_gone(file))
		return -ENOENT;
	if (file->type == S_IFLNK)
		return 0;
	names = malloc(XATTR_VALUE_MAX);
	if (!names)
		return -ENOMEM;
	tree_proc_fd(file->fd, link);
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
