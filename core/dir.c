/* SPDX-License-Identifier: Apache-2.0 */
#include "core/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>

int dir_open(int parent, const char *name, DIR **ret)
{
	auto_fd int fd = openat(
		parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *dir;

	if (fd < 0)
		return -errno;
	dir = fdopendir(fd);
	if (!dir)
		return -errno;
	(void)take_fd(&fd);
	*ret = dir;
	return 0;
}

void dir_close(DIR *dir)
{
	(void)closedir(dir);
}

static bool is_dots(const char *name)
{
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

int dir_next(DIR *dir, const char **ret)
{
	const struct dirent *d;

	do {
		errno = 0;
		d = readdir(dir);
	} while (d && is_dots(d->d_name));
	if (!d && errno)
		return -errno;
	*ret = d ? d->d_name : NULL;
	return 0;
}
