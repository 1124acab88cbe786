/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store_trial.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/file_io.h"
#include "core/holders.h"
#include "core/log.h"
#include "core/util.h"

/* Large enough that a cache which takes larger pieces does so here. */
#define TRIAL_BYTES ((size_t)4 << 20)
#define PAGE_BYTES_MIN ((size_t)4096)
#define TRIAL_PAGES_MAX (TRIAL_BYTES / PAGE_BYTES_MIN)

/* What one read past the cache takes; a multiple of any block's size. */
#define DIRECT_BYTES ((size_t)64 << 10)

/* Where nameless files can't be had. What a kill leaves is made anew. */
#define TRIAL_NAME ".trial"
#define TRIAL_ATTRIBUTE "user.trial"

/* Of entries of /proc/self/pagemap and /proc/kpageflags. */
#define PAGE_IS_PRESENT ((uint64_t)1 << 63)
#define PAGE_FRAME ((PAGE_IS_PRESENT >> 8) - 1)
#define PAGE_IS_OF_FOLIO ((uint64_t)3 << 15) /* its head, or in its tail */

#define BCACHEFS_MAGIC 0xca451a4e
#define CEPH_MAGIC 0x00c36400
#define ZFS_MAGIC 0x2fc12fc1

#define REMOTE "not a local disk: its metadata may get damaged there"
#define LAYER "a layer: put the store on the filesystem below it"

/* clang-format off */
static const struct {
	const char *name;
	uint32_t magic;
	bool memory_only;
	const char *objection; /* NULL: it is what a store wants */
} kinds[] = {
	{ "9p",       V9FS_MAGIC,            false, REMOTE },
	{ "bcachefs", BCACHEFS_MAGIC,        false, NULL },
	{ "btrfs",    BTRFS_SUPER_MAGIC,     false, NULL },
	{ "ceph",     CEPH_MAGIC,            false, REMOTE },
	{ "cifs",     CIFS_SUPER_MAGIC,      false, REMOTE },
	{ "ext4",     EXT4_SUPER_MAGIC,      false, NULL },
	{ "f2fs",     F2FS_SUPER_MAGIC,      false, NULL },
	{ "fuse",     FUSE_SUPER_MAGIC,      false, REMOTE },
	{ "nfs",      NFS_SUPER_MAGIC,       false, REMOTE },
	{ "overlay",  OVERLAYFS_SUPER_MAGIC, false, LAYER },
	{ "ramfs",    RAMFS_MAGIC,           true,  NULL },
	{ "smb2",     SMB2_SUPER_MAGIC,      false, REMOTE },
	{ "tmpfs",    TMPFS_MAGIC,           true,  NULL },
	{ "xfs",      XFS_SUPER_MAGIC,       false, NULL },
	{ "zfs",      ZFS_MAGIC,             false, NULL },
};
/* clang-format on */

static int name_filesystem(int dirfd, struct store_abilities *a)
{
	struct statfs st;
	uint32_t magic;

	if (fstatfs(dirfd, &st) != 0)
		return log_debug(-errno, "statfs of the store");
	magic = (uint32_t)st.f_type;
	(void)snprintf(a->filesystem, sizeof(a->filesystem), "0x%x", magic);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		if (kinds[i].magic != magic)
			continue;
		(void)snprintf(a->filesystem, sizeof(a->filesystem), "%s",
			       kinds[i].name);
		a->memory_only = kinds[i].memory_only;
		a->objection = kinds[i].objection;
	}
	return 0;
}

/* An empty file without a name. Returns its descriptor. */
static int open_trial(int dirfd)
{
	int fd = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	if (fd >= 0)
		return fd;
	(void)unlinkat(dirfd, TRIAL_NAME, 0);
	fd = openat(dirfd, TRIAL_NAME, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC,
		    0600);
	if (fd < 0)
		return log_debug(-errno, "making a file in the store");
	(void)unlinkat(dirfd, TRIAL_NAME, 0);
	return fd;
}

/* Another open file of what fd refers to. Returns a descriptor, or -1. */
static int open_anew(int fd, int flags)
{
	char path[32];

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, flags | O_CLOEXEC);
}

static bool try_attributes(int fd)
{
	char value[2];

	return fsetxattr(fd, TRIAL_ATTRIBUTE, "1", 1, 0) == 0 &&
	       fgetxattr(fd, TRIAL_ATTRIBUTE, value, sizeof(value)) == 1 &&
	       value[0] == '1';
}

/* Consumes fd, the only one, open for writing. */
static bool try_leases(int fd)
{
	auto_fd int path_fd = open_anew(fd, O_PATH);
	auto_fd int read_fd = -1;
	bool sees_writer, sees_nobody, sees_mapping;
	void *map;

	sees_writer = path_fd >= 0 && holders_writer(path_fd) == 1;
	(void)close(fd);
	if (!sees_writer)
		return false;
	sees_nobody = holders_any(path_fd) == 0;
	read_fd = open_anew(path_fd, O_RDONLY);
	map = mmap(NULL, PAGE_BYTES_MIN, PROT_READ, MAP_SHARED, read_fd, 0);
	if (map == MAP_FAILED)
		return false;
	(void)close(take_fd(&read_fd));
	sees_mapping = holders_any(path_fd) == 1;
	(void)munmap(map, PAGE_BYTES_MIN);
	return sees_nobody && sees_mapping;
}

/* Bytes that no filesystem can store as fewer. */
static void fill(unsigned char *bytes, size_t len)
{
	uint64_t x = 0x9e3779b97f4a7c15;

	for (size_t i = 0; i < len; i += sizeof(x)) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(bytes + i, &x, sizeof(x));
	}
}

/* Whether the cache has any of the bytes that one direct read takes. */
static bool is_cached(int fd)
{
	unsigned char seen[DIRECT_BYTES / PAGE_BYTES_MIN] = { 0 };
	void *map = mmap(NULL, DIRECT_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	bool any = false;

	if (map == MAP_FAILED)
		return true;
	(void)mincore(map, DIRECT_BYTES, seen);
	(void)munmap(map, DIRECT_BYTES);
	for (size_t i = 0; i < ARRAY_LEN(seen); i++)
		any |= seen[i] & 1;
	return any;
}

/*
 * Some filesystems take O_DIRECT and read through the cache all the same; then
 * it is filled by that. Into holds DIRECT_BYTES, in whole pages.
 */
static bool try_direct(int fd, const unsigned char *written,
		       unsigned char *into)
{
	auto_fd int direct = open_anew(fd, O_RDONLY | O_DIRECT);
	bool was_cached;
	ssize_t n;

	if (direct < 0)
		return false;
	was_cached = is_cached(fd);
	n = pread(direct, into, DIRECT_BYTES, 0);
	if (n < 0 && errno == EIO)
		return true; /* the device was asked, and isn't well */
	return n == (ssize_t)DIRECT_BYTES &&
	       memcmp(written, into, DIRECT_BYTES) == 0 &&
	       (was_cached || !is_cached(fd));
}

/*
 * Looks for a page that is part of something larger. Returns 1 or 0; -ENODATA
 * if the kernel doesn't say.
 */
static int find_large_folio(const unsigned char *map)
{
	auto_fd int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	auto_fd int flags = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint64_t entries[TRIAL_PAGES_MAX] = { 0 };
	size_t bytes = TRIAL_BYTES / page * sizeof(*entries);
	off_t at = (off_t)((uintptr_t)map / page * sizeof(*entries));
	int r = -ENODATA;

	if (pagemap < 0 || flags < 0 || bytes > sizeof(entries) ||
	    pread(pagemap, entries, bytes, at) != (ssize_t)bytes)
		return -ENODATA;
	for (size_t i = 0; i < TRIAL_BYTES / page && r < 1; i++) {
		uint64_t frame = entries[i] & PAGE_FRAME, what;

		if (!(entries[i] & PAGE_IS_PRESENT) || !frame ||
		    pread(flags, &what, sizeof(what),
			  (off_t)(frame * sizeof(what))) != sizeof(what))
			continue;
		r = (what & PAGE_IS_OF_FOLIO) != 0;
	}
	return r;
}

/*
 * On a full or failing disk there is nothing to read. To believe what the cache
 * says of it would be the worse mistake, so what can be opened counts.
 */
static bool opens_direct(int fd)
{
	auto_fd int direct = open_anew(fd, O_RDONLY | O_DIRECT);

	return direct >= 0;
}

/* Brings the file into the cache as pinning does, and looks there. */
static void try_folios(int fd, struct store_abilities *a)
{
	void *map = mmap(NULL, TRIAL_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	int r;

	if (map == MAP_FAILED)
		return;
	(void)madvise(map, TRIAL_BYTES, MADV_HUGEPAGE);
	if (madvise(map, TRIAL_BYTES, MADV_POPULATE_READ) == 0) {
		r = find_large_folio(map);
		a->folios_known = r >= 0;
		a->large_folios = r == 1;
	}
	(void)munmap(map, TRIAL_BYTES);
}

static void try_content(int fd, struct store_abilities *a)
{
	size_t len = TRIAL_BYTES + DIRECT_BYTES;
	unsigned char *bytes = mmap(NULL, len, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool written;

	if (bytes == MAP_FAILED)
		return;
	fill(bytes, TRIAL_BYTES);
	written = file_io_write(fd, bytes, TRIAL_BYTES) == 0;
	if (!a->memory_only && written && fdatasync(fd) == 0) {
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		a->direct = try_direct(fd, bytes, bytes + TRIAL_BYTES);
	} else if (!a->memory_only) {
		a->direct = opens_direct(fd);
	}
	if (written)
		try_folios(fd, a);
	(void)munmap(bytes, len);
}

int store_trial(int dirfd, struct store_abilities *ret)
{
	struct store_abilities a = { 0 };
	auto_fd int fd = -1;
	int r = name_filesystem(dirfd, &a);

	if (r < 0)
		return r;
	fd = open_trial(dirfd);
	if (fd >= 0) {
		a.attributes = try_attributes(fd);
		try_content(fd, &a);
		a.leases = try_leases(take_fd(&fd));
	}
	*ret = a;
	return 0;
}

int store_abilities_print(const struct store_abilities *a, struct buf *out)
{
	const char *direct = "no, they go through the page cache";
	const char *folios = "unknown, the kernel tells root only";

	if (a->memory_only)
		direct = "no, there is no disk behind the cache";
	if (a->direct)
		direct = "yes";
	if (a->folios_known)
		folios = a->large_folios ? "yes" :
					   "no, files are cached and mapped "
					   "page by page";
	return buf_printf(out,
			  "filesystem: %s%s%s\n"
			  "survives a power loss: %s\n"
			  "file leases: %s\n"
			  "direct reads: %s\n"
			  "large folios: %s\n"
			  "user attributes: %s\n",
			  a->filesystem, a->objection ? ", " : "",
			  a->objection ? a->objection : "",
			  a->memory_only ? "no, it is in memory only" : "yes",
			  a->leases ? "yes" :
				      "no, the kernel can't tell who reads: "
				      "files are served without passthrough",
			  direct, folios,
			  a->attributes ? "yes" :
					  "no, user.* attributes of files "
					  "can't be kept");
}
