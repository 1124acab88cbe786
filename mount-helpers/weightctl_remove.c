/* SPDX-License-Identifier: Apache-2.0 */
/* rm -r of a staged tree, which may be all there was time for. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/dir.h"
#include "mount-helpers/weightctl_copy.h"

static int remove_at(int parent, const char *name, unsigned depth);

static int remove_names(int fd, unsigned depth)
{
	cleanup(dir_close_cleanup) DIR *dir = NULL;
	const char *name = NULL;
	int first = 0;
	int one;
	int r = dir_open(fd, ".", &dir);

	while (r == 0) {
		r = dir_next(dir, &name);
		if (r < 0 || !name)
			break;
		/* One that stays is no reason to leave the others. */
		one = remove_at(fd, name, depth);
		if (first == 0)
			first = one;
	}
	return r < 0 ? r : first;
}

/* What the listing of a changing directory missed is there the next time. */
#define ROUNDS_MAX 4

/* A copied directory may be one that its owner can't write to. */
static int remove_dir(int parent, const char *name, unsigned depth)
{
	auto_fd int fd = -1;
	int r;

	if (depth > COPY_DEPTH_MAX)
		return -ELOOP;
	(void)fchmodat(parent, name, 0700, 0);
	fd = openat(parent, name,
		    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	for (unsigned i = 0; i < ROUNDS_MAX; i++) {
		r = remove_names(fd, depth + 1);
		if (unlinkat(parent, name, AT_REMOVEDIR) == 0)
			return 0;
		if (r < 0 || errno != ENOTEMPTY)
			return r < 0 ? r : -errno;
	}
	return -ENOTEMPTY;
}

static int remove_at(int parent, const char *name, unsigned depth)
{
	struct stat st;
	int r;

	if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (S_ISDIR(st.st_mode))
		return remove_dir(parent, name, depth);
	do {
		r = unlinkat(parent, name, 0) < 0 ? -errno : 0;
	} while (r == -EINTR);
	return r;
}

int copy_empty(const char *path)
{
	auto_fd int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : remove_names(fd, 1);
}

int copy_remove(const char *path)
{
	return remove_at(AT_FDCWD, path, 0);
}
