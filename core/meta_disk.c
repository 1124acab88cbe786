/* SPDX-License-Identifier: Apache-2.0 */
#include "core/meta_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/log.h"
#include "core/util.h"

bool meta_disk_is_full(int err)
{
	return err == -ENOSPC || err == -EDQUOT;
}

uint64_t meta_disk_free_bytes(int fd)
{
	struct statvfs s;

	if (fstatvfs(fd, &s) < 0)
		return UINT64_MAX;
	return (uint64_t)s.f_bavail * s.f_frsize;
}

int meta_disk_allocate(int fd, int mode, uint64_t offset, uint64_t len)
{
	int r;

	do
		r = fallocate(fd, mode, (off_t)offset, (off_t)len);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}

void meta_disk_extend(int fd, uint64_t size)
{
	struct stat st;

	if (fstat(fd, &st) == 0 && (uint64_t)st.st_size < size &&
	    ftruncate(fd, (off_t)size) < 0)
		(void)log_debug(-errno, "extending the file");
}

int meta_disk_address_space(size_t more)
{
	void *p = mmap(NULL, more, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return -ENOMEM;
	(void)munmap(p, more);
	return 0;
}

/* ---- Mappings ---- */

static void file_close(FILE *f)
{
	(void)fclose(f);
}
DEFINE_CLEANUP(FILE *, file_close)

/* The name that the kernel shows for the file. */
static int kernel_name(const char *path, char ret[static PATH_MAX])
{
	char link[32];
	auto_fd int fd = open(path, O_PATH | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, ret, PATH_MAX - 1);
	if (n < 0)
		return -errno;
	ret[n] = '\0';
	return 0;
}

/* A line of proc(5)'s maps: the mapping is shared, writable, of that name. */
static bool is_mapping(const char *line, const char *name, uintptr_t *ret_from,
		       uintptr_t *ret_to)
{
	char *end;
	int at = 0;

	*ret_from = strtoul(line, &end, 16);
	if (*end != '-')
		return false;
	*ret_to = strtoul(end + 1, &end, 16);
	if (strncmp(end, " rw-s ", strlen(" rw-s ")) != 0)
		return false;
	/* Permissions, offset, device, inode. */
	(void)sscanf(end, " %*s %*s %*s %*s %n", &at);
	return at > 0 && strcmp(end + at, name) == 0;
}

/* Puts memory where a file is mapped. */
static int replace(void *at, size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int r;

	if (p == MAP_FAILED)
		return -errno;
	memcpy(p, at, len);
	if (mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, at) !=
	    MAP_FAILED)
		return 0;
	r = -errno;
	(void)munmap(p, len);
	return r;
}

int meta_disk_unmap_file(const char *path)
{
	cleanup(file_close_cleanup) FILE *f = NULL;
	auto_free char *line = NULL;
	char name[PATH_MAX];
	uintptr_t from, to;
	size_t cap = 0;
	ssize_t n;
	int r = kernel_name(path, name);

	if (r < 0)
		return r;
	f = fopen("/proc/self/maps", "re");
	if (!f)
		return -errno;
	while ((n = getline(&line, &cap, f)) > 0) {
		if (line[n - 1] == '\n')
			line[n - 1] = '\0';
		if (is_mapping(line, name, &from, &to))
			return replace((void *)from, to - from);
	}
	return -ENOENT;
}

int meta_disk_path(const char *dir, const char *name, char **ret)
{
	size_t size = strlen(dir) + 1 + strlen(name) + 1;
	char *path = malloc(size);

	if (!path)
		return -ENOMEM;
	(void)snprintf(path, size, "%s/%s", dir, name);
	*ret = path;
	return 0;
}

int meta_disk_sync(int fd)
{
	return fsync(fd) < 0 ? log_debug(-errno, "fsync") : 0;
}

int meta_disk_sync_parent(int dirfd)
{
	auto_fd int parent =
		openat(dirfd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return parent < 0 ? -errno : meta_disk_sync(parent);
}

/*
 * For files that are made in it: btrfs writes what they have where it is, so
 * that their reserve is one when the disk is full. The database copies by
 * itself what it writes. Elsewhere this is refused or means nothing.
 */
static void write_in_place(int fd)
{
	int flags = 0;

	if (ioctl(fd, FS_IOC_GETFLAGS, &flags) < 0)
		return;
	flags |= FS_NOCOW_FL;
	(void)ioctl(fd, FS_IOC_SETFLAGS, &flags);
}

int meta_disk_dir(const char *dir, bool make, int *ret_fd)
{
	bool made = make && mkdir(dir, 0700) == 0;
	int fd;

	if (make && !made && errno != EEXIST)
		return log_debug(-errno, "making '%s'", dir);
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return log_debug(errno == ENOTDIR ? -EUCLEAN : -errno,
				 "opening '%s'", dir);
	if (made)
		write_in_place(fd);
	*ret_fd = fd;
	return 0;
}

/* clang-format off */
static const struct {
	int err;
	bool writing; /* not of who only reads */
	const char *sentence; /* goes on after the path */
} reasons[] = {
	{ -EUCLEAN, false, "is damaged or not a metadata database of weightfs; "
			   "it was left as it is, restore it from a copy or a "
			   "snapshot" },
	{ -EPROTONOSUPPORT, false, "was written by a newer version of "
				   "weightfs; use that version" },
	{ -ENOSPC, true, "can't be made, the disk is full" },
	{ -EDQUOT, true, "can't be made, the disk quota is used up" },
	{ -EACCES, true, "can't be opened for writing, permission is denied" },
	{ -EROFS, true, "can't be opened for writing, its filesystem is "
			"read-only" },
	{ -ENOENT, true, "can't be made, a directory above it is absent" },
};
/* clang-format on */

void meta_disk_explain(const char *dir, int err, bool read_only,
		       struct buf *why)
{
	const char *sentence = NULL;

	if (err == -ENOMEM)
		return;
	for (size_t i = 0; i < ARRAY_LEN(reasons); i++)
		if (reasons[i].err == err && !(reasons[i].writing && read_only))
			sentence = reasons[i].sentence;
	if (sentence)
		(void)buf_printf(why, "'%s/" META_DISK_DATA "' %s", dir,
				 sentence);
	else
		(void)buf_printf(why,
				 "'%s/" META_DISK_DATA "' can't be opened: %s",
				 dir, strerror(-err));
}

int meta_disk_file(const char *path, uint64_t len)
{
	auto_fd int fd =
		open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	int r;

	if (fd < 0)
		return log_debug(-errno, "opening '%s'", path);
	/* Where the filesystem can't, the C library writes; what is in stays. */
	r = posix_fallocate(fd, 0, (off_t)len);
	return r ? log_debug(-r, "allocating '%s'", path) : 0;
}
