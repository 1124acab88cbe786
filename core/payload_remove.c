/* SPDX-License-Identifier: Apache-2.0 */
/* The half of payload.h that takes trees away. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/dir.h"
#include "core/log.h"
#include "core/payload.h"

static int failed(struct buf *why, int err, const char *what, const char *name)
{
	if (why)
		(void)buf_printf(why, "%s '%s' of a tree: %s", what, name,
				 strerrordesc_np(-err));
	return log_debug(err, "%s '%s'", what, name);
}

/* How a pass over one directory ended. */
enum sweep {
	SWEEP_EMPTY,  /* nothing was there */
	SWEEP_FILES,  /* names were removed; look again */
	SWEEP_SUBDIR, /* a directory is in the way */
};

/*
 * Unlinks what isn't a directory, at most *left names, up to the first
 * directory, whose name it stores.
 */
static int sweep_files(DIR *dir, unsigned *left, char subdir[NAME_MAX + 1],
		       enum sweep *ret, struct buf *why)
{
	enum sweep found = SWEEP_EMPTY;
	const char *name = NULL;

	while (*left) {
		int r = dir_next(dir, &name);

		if (r < 0)
			return failed(why, r, "listing", ".");
		if (!name)
			break;
		if (unlinkat(dirfd(dir), name, 0) == 0) {
			(*left)--;
			found = SWEEP_FILES;
		} else if (errno == EISDIR) {
			(void)snprintf(subdir, NAME_MAX + 1, "%s", name);
			found = SWEEP_SUBDIR;
			break;
		} else if (errno != ENOENT) {
			return failed(why, -errno, "removing", name);
		}
	}
	*ret = found;
	return 0;
}

/*
 * Goes down to the first directory without directories, removing files on the
 * way, and removes it if it is empty. Holds two directories open at any depth,
 * and starts again at the root each time, so that there is no deepest tree.
 */
static int remove_some(int root, unsigned *left, bool *ret_empty,
		       struct buf *why)
{
	cleanup(dir_close_cleanup) DIR *parent = NULL;
	cleanup(dir_close_cleanup) DIR *dir = NULL;
	char name[NAME_MAX + 1] = ".";
	enum sweep found = SWEEP_EMPTY;
	int r;

	r = dir_open(root, name, &dir);
	if (r < 0)
		return failed(why, r, "opening", name);
	while (r == 0) {
		char subdir[NAME_MAX + 1] = "";

		r = sweep_files(dir, left, subdir, &found, why);
		if (r < 0 || found != SWEEP_SUBDIR)
			break;
		if (parent)
			(void)closedir(parent);
		parent = take_ptr(dir);
		memcpy(name, subdir, sizeof(name));
		r = dir_open(dirfd(parent), name, &dir);
		if (r == -ENOENT)
			return 0; /* somebody else removed it */
		if (r < 0)
			return failed(why, r, "opening", name);
	}
	if (r < 0 || found != SWEEP_EMPTY)
		return r;
	*ret_empty = !parent;
	if (!parent)
		return 0;
	if (unlinkat(dirfd(parent), name, AT_REMOVEDIR) < 0 &&
	    errno != ENOENT && errno != ENOTEMPTY)
		return failed(why, -errno, "removing", name);
	(*left)--;
	return 0;
}

int payload_remove_batch(int dirfd, unsigned max, bool *ret_empty,
			 struct buf *why)
{
	unsigned left = max;
	bool empty = false;

	while (left && !empty) {
		int r = remove_some(dirfd, &left, &empty, why);

		if (r < 0)
			return r;
	}
	*ret_empty = empty;
	return 0;
}
