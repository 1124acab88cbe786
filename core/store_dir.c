/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/dir.h"
#include "core/payload.h"
#include "core/util.h"

/* Together two seconds. */
#define LOCK_TRIES 40
#define LOCK_PAUSE_NS 50000000
#define REMOVE_BATCH 64

/* What a store may have beside its lock and its metadata. */
static bool is_of_a_store(const char *name)
{
	static const char *const names[] = { STORE_TREE_NAME, STORE_GROUPS_NAME,
					     STORE_ASIDE_NAME };

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

/* Some filesystems have it in their root. */
static bool is_of_the_filesystem(const char *name)
{
	return strcmp(name, "lost+found") == 0;
}

static void note(struct store_dir *d, const char *name)
{
	if (is_of_the_filesystem(name))
		return;
	d->empty = false;
	if (strcmp(name, STORE_META_NAME) == 0)
		d->metadata = true;
	else if (strcmp(name, STORE_META_NEW_NAME) == 0)
		d->unfinished = true;
	else if (strcmp(name, STORE_LOCK_NAME) == 0)
		d->locked = true;
	else if (!is_of_a_store(name))
		d->foreign = true;
}

int store_dir_look(int fd, struct store_dir *ret)
{
	cleanup(dir_close_cleanup) DIR *d = NULL;
	struct store_dir found = { .empty = true };
	const char *name;
	int r = dir_open(fd, ".", &d);

	while (r == 0 && (r = dir_next(d, &name)) == 0 && name)
		note(&found, name);
	if (r == 0)
		*ret = found;
	return r;
}

int store_dir_is_empty(int fd, const char *name, bool *ret)
{
	cleanup(dir_close_cleanup) DIR *d = NULL;
	const char *entry = NULL;
	int r = dir_open(fd, name, &d);

	while (r == 0 && (r = dir_next(d, &entry)) == 0 && entry &&
	       is_of_the_filesystem(entry))
		;
	if (r == 0)
		*ret = entry == NULL;
	return r;
}

int store_dir_has_data(int fd, bool *ret)
{
	struct stat st;

	*ret = fstatat(fd, STORE_META_NAME "/" STORE_DATA_NAME, &st,
		       AT_SYMLINK_NOFOLLOW) == 0;
	return *ret || errno == ENOENT ? 0 : -errno;
}

/* ---- The lock ---- */

static int open_lock(int fd, bool make, bool *ret_made)
{
	int lock = -1;

	*ret_made = false;
	if (make) {
		lock = openat(fd, STORE_LOCK_NAME,
			      O_CREAT | O_EXCL | O_RDONLY | O_NOFOLLOW |
				      O_CLOEXEC,
			      0600);
		*ret_made = lock >= 0;
		if (lock < 0 && errno != EEXIST)
			return -errno;
	}
	if (lock < 0)
		lock = openat(fd, STORE_LOCK_NAME,
			      O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	return lock < 0 ? -errno : lock;
}

/*
 * umount returns before the daemon behind the mount has closed its store, so a
 * mount right after it has to wait a little.
 */
static int lock_patiently(int lock)
{
	const struct timespec pause = { .tv_nsec = LOCK_PAUSE_NS };

	for (int tries = 0; flock(lock, LOCK_EX | LOCK_NB) < 0; tries++) {
		if (errno != EWOULDBLOCK)
			return -errno;
		if (tries == LOCK_TRIES)
			return -EBUSY;
		(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
	}
	return 0;
}

/* Whether the file that was locked is still the one that others find. */
static bool is_in_place(int fd, int lock)
{
	struct stat mine, there;

	return fstat(lock, &mine) == 0 &&
	       fstatat(fd, STORE_LOCK_NAME, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
	       mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

int store_dir_lock(int fd, bool make, bool *ret_made, int *ret_fd)
{
	bool made = false, ever = false;

	/* Who had made it, and failed, has removed it again. */
	for (int tries = 0; tries < LOCK_TRIES; tries++) {
		auto_fd int lock = open_lock(fd, make, &made);
		int r;

		if (lock < 0)
			return lock;
		ever |= made;
		r = lock_patiently(lock);
		if (r < 0)
			return r;
		if (is_in_place(fd, lock)) {
			*ret_made = ever;
			*ret_fd = take_fd(&lock);
			return 0;
		}
	}
	return -EBUSY;
}

/* ---- What was left ---- */

int store_dir_drop_unfinished(int fd)
{
	auto_fd int dir =
		openat(fd, STORE_META_NEW_NAME,
		       O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	bool empty = false;
	int r = 0;

	if (dir < 0)
		return errno == ENOENT ? 0 : -errno;
	while (r == 0 && !empty)
		r = payload_remove_batch(dir, REMOVE_BATCH, &empty, NULL);
	if (r == 0 && unlinkat(fd, STORE_META_NEW_NAME, AT_REMOVEDIR) < 0)
		r = -errno;
	return r;
}
