/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of core/chunk_check.h share: files whose pages all differ,
 * their cache, and disks that can be damaged behind the filesystem's back.
 */
#ifndef TESTS_UNIT_CHUNK_CHECK_FIXTURE_H
#define TESTS_UNIT_CHUNK_CHECK_FIXTURE_H

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/chunk_check.h"
#include "core/cleanup.h"
#include "core/util.h"
#include "suite.h"

#define PAGE ((size_t)4096)
#define PAGES (CHUNK_BYTES / PAGE)
#define MOUNT "/mnt"
#define IMAGE_BYTES ((off_t)320 << 20)

/*
 * A line in the log of the run: Check knows no skipped tests. Its functions are
 * named like the test, with _fn behind.
 */
#define skip(why)                                                              \
	do {                                                                   \
		printf("# %.*s: skipped, %s\n", (int)strlen(__func__) - 3,     \
		       __func__, why);                                         \
		(void)fflush(stdout);                                          \
		return;                                                        \
	} while (0)

/* --- Files --- */

/* Chunk 0 is data, chunk 1 a hole, chunk 2 has both and an odd end. */
#define DATA_IN_2 (300 * 1024)
#define HOLE_IN_2 (200 * 1024)
#define TAIL_IN_2 (100 * 1024 + 1234)
#define SIZE (2 * (uint64_t)CHUNK_BYTES + DATA_IN_2 + HOLE_IN_2 + TAIL_IN_2)
#define LAST_PAGE (SIZE / PAGE)

static struct digest digests[3];

/* What stands in a page; no two are equal in any 16 bytes. */
static inline void page_bytes(uint64_t page, unsigned char bytes[PAGE])
{
	uint64_t x = 0x9e3779b97f4a7c15 * (page + 1);

	for (size_t i = 0; i < PAGE; i += 8) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(bytes + i, &x, 8);
	}
}

/* Both ends are multiples of pages, or the file's end. */
static inline void write_data(int fd, uint64_t from, uint64_t to)
{
	unsigned char bytes[PAGE];

	for (; from < to; from += PAGE) {
		size_t n = to - from < PAGE ? (size_t)(to - from) : PAGE;

		page_bytes(from / PAGE, bytes);
		ck_assert_int_eq(pwrite(fd, bytes, n, (off_t)from), (ssize_t)n);
	}
}

static inline int reopen(int fd, int flags)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, flags | O_CLOEXEC);
}

/* An empty file without a name in that directory. */
static inline int make_empty(const char *where)
{
	char path[64];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/chunks-XXXXXX", where);
	fd = mkostemp(path, O_CLOEXEC);
	ck_assert_msg(fd >= 0, "%s: %s", where, strerror(errno));
	(void)unlink(path);
	return fd;
}

/* The file of the tests; synced. */
static inline int make_file(const char *where)
{
	int fd = make_empty(where);

	write_data(fd, 0, CHUNK_BYTES);
	write_data(fd, 2 * CHUNK_BYTES, 2 * CHUNK_BYTES + DATA_IN_2);
	write_data(fd, SIZE - TAIL_IN_2, SIZE);
	ck_assert_int_eq(fsync(fd), 0);
	for (size_t i = 0; i < ARRAY_LEN(digests); i++)
		ck_assert_int_eq(chunk_digest_at(fd, SIZE, i, &digests[i]), 0);
	return fd;
}

static inline struct chunk_target target(int fd)
{
	return (struct chunk_target){
		.fd = fd,
		.device_fd = reopen(fd, O_RDONLY | O_DIRECT),
		.size = SIZE,
		.chunk_size = CHUNK_BYTES,
		.chunks = digests,
	};
}

static inline void flip(int fd, uint64_t at)
{
	unsigned char c;

	ck_assert_int_eq(pread(fd, &c, 1, (off_t)at), 1);
	c ^= 0x20;
	ck_assert_int_eq(pwrite(fd, &c, 1, (off_t)at), 1);
}

/* --- Their cache --- */

static inline void drop_cache(int fd)
{
	ck_assert_int_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
}

static inline size_t resident_pages(int fd)
{
	static unsigned char pages[SIZE / PAGE + 1];
	void *map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
	size_t count = 0;

	ck_assert_ptr_ne(map, MAP_FAILED);
	ck_assert_int_eq(mincore(map, SIZE, pages), 0);
	for (size_t i = 0; i < sizeof(pages); i++)
		count += pages[i] & 1;
	(void)munmap(map, SIZE);
	return count;
}

/* Reads [from, to) into the cache and nothing else, and holes not at all. */
static inline void fill_cache(int fd, uint64_t from, uint64_t to)
{
	unsigned char *map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);

	ck_assert_ptr_ne(map, MAP_FAILED);
	ck_assert_int_eq(madvise(map, SIZE, MADV_RANDOM), 0);
	for (; from < to; from += PAGE)
		if (lseek(fd, (off_t)from, SEEK_DATA) == (off_t)from)
			(void)*(volatile unsigned char *)(map + from);
	(void)munmap(map, SIZE);
}

/* --- Looking --- */

static inline enum chunk_verdict look(const struct chunk_target *t, size_t i,
				      int device_error)
{
	enum chunk_verdict verdict = (enum chunk_verdict)99;
	int error = 1;

	ck_assert_int_eq(chunk_check(t, i, &verdict, &error), 0);
	ck_assert_int_eq(error, device_error);
	return verdict;
}

static inline void assert_all_good(const struct chunk_target *t)
{
	for (size_t i = 0; i < ARRAY_LEN(digests); i++)
		ck_assert_int_eq(look(t, i, 0), CHUNK_GOOD);
}

/* How often this thread called read() and its like. */
static inline unsigned long long reads(void)
{
	auto_fd int fd = open("/proc/thread-self/io", O_RDONLY | O_CLOEXEC);
	char text[1024];
	ssize_t n = read(fd, text, sizeof(text) - 1);
	const char *at;

	ck_assert_int_gt(n, 0);
	text[n] = '\0';
	at = strstr(text, "syscr: ");
	ck_assert_ptr_nonnull(at);
	return strtoull(at + 7, NULL, 10);
}

/* --- Disks --- */

struct disk {
	int image; /* the bytes of the disk */
	int loop;
};

struct disk_kind {
	const char *fs;
	const char *mkfs[8];
	bool sums; /* the filesystem itself notices other bytes */
};

/* clang-format off */
static const struct disk_kind disk_kinds[] = {
	{ "ext4",  { "mkfs.ext4", "-q", "-F", "-b", "4096" }, false },
	{ "xfs",   { "mkfs.xfs", "-q", "-f" }, false },
	{ "btrfs", { "mkfs.btrfs", "-q", "-f" }, true },
};
/* All that isn't data lies before the data. */
static const struct disk_kind plain_ext4 =
	{ "ext4",  { "mkfs.ext4", "-q", "-F", "-b", "4096", "-O",
		    "^has_journal" }, false };
/* clang-format on */

static inline int loop_attach(int image, char name[static 32])
{
	auto_fd int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	struct loop_config config = {
		.fd = (unsigned)image,
		.info = { .lo_flags = LO_FLAGS_AUTOCLEAR },
	};

	for (int try = 0; control >= 0 && try < 20; try++) {
		auto_fd int loop = -1;
		int n = ioctl(control, LOOP_CTL_GET_FREE);

		if (n < 0)
			return -1;
		(void)snprintf(name, 32, "/dev/loop%d", n);
		loop = open(name, O_RDWR | O_CLOEXEC);
		if (loop < 0)
			return -1;
		if (ioctl(loop, LOOP_CONFIGURE, &config) == 0)
			return take_fd(&loop);
		if (errno != EBUSY) /* else somebody was faster */
			return -1;
	}
	return -1;
}

static inline bool run_mkfs(const struct disk_kind *kind, const char *dev)
{
	char *args[ARRAY_LEN(kind->mkfs) + 1] = { 0 };
	size_t n = 0;
	pid_t pid;
	int status;

	for (; kind->mkfs[n]; n++)
		args[n] = strdup(kind->mkfs[n]);
	args[n] = strdup(dev);
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		(void)dup2(null, STDOUT_FILENO);
		(void)dup2(null, STDERR_FILENO);
		(void)setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
		(void)execvp(args[0], args);
		_exit(127);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	for (n = 0; args[n]; n++)
		free(args[n]);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/*
 * Mounts a new disk on MOUNT, in a mount namespace of this process, with which
 * it goes away. image_fd is where its bytes are. NULL, or why it can't be.
 */
static inline const char *disk_mount(struct disk *d,
				     const struct disk_kind *kind, int image)
{
	char dev[32];

	ck_assert_int_eq(ftruncate(image, IMAGE_BYTES), 0);
	d->image = image;
	d->loop = loop_attach(image, dev);
	if (d->loop < 0)
		return "no loop devices";
	if (!run_mkfs(kind, dev))
		return "no mkfs for it";
	return mount(dev, MOUNT, kind->fs, MS_NODEV | MS_NOSUID, NULL) < 0 ?
		       "the kernel can't mount it" :
		       NULL;
}

static inline const char *disk_privately(void)
{
	if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 ||
	    mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return "mounting needs root";
	return NULL;
}

static inline const char *disk_make(struct disk *d,
				    const struct disk_kind *kind)
{
	const char *why = disk_privately();

	return why ? why : disk_mount(d, kind, make_empty("/var/tmp"));
}

/* Where on the disk, from `at` on, a page of data lies; -1: nowhere. */
static inline off_t disk_find(const struct disk *d, uint64_t page, off_t at)
{
	unsigned char bytes[PAGE], there[16];

	page_bytes(page, bytes);
	while ((at = lseek(d->image, at, SEEK_DATA)) >= 0) {
		off_t end = lseek(d->image, at, SEEK_HOLE);

		for (; at < end; at += (off_t)PAGE) {
			ck_assert_int_eq(pread(d->image, there, 16, at), 16);
			if (memcmp(there, bytes, 16) == 0)
				return at;
		}
	}
	return -1;
}

/* A byte of that page, also where it lay before it was written anew. */
static inline void disk_flip(const struct disk *d, uint64_t page)
{
	off_t at = disk_find(d, page, 0);

	ck_assert_msg(at >= 0, "page %llu isn't on the disk",
		      (unsigned long long)page);
	for (; at >= 0; at = disk_find(d, page, at + (off_t)PAGE))
		flip(d->image, (uint64_t)at + 100);
}

/* From that page on reading answers EIO; writing goes. */
static inline void disk_cut(const struct disk *d, uint64_t page)
{
	ck_assert_int_eq(ftruncate(d->image, disk_find(d, page, 0)), 0);
}

#endif
