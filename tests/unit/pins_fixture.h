/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of core/pins.h share: a file, its cache, memory cgroups. */
#ifndef TESTS_UNIT_PINS_FIXTURE_H
#define TESTS_UNIT_PINS_FIXTURE_H

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/holders.h"
#include "core/pins.h"
#include "core/pins_priv.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

/* Not every file of tests needs all of it. */
#define FIXTURE static __attribute__((unused))

#define G PIN_GRANULE_BYTES
#define MIB ((size_t)1 << 20)
#define PLENTY ((uint64_t)1 << 40)
#define NOBODY 65534
#define PIECE (4 * MIB) /* as large as pieces of the cache can be */

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif

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

static size_t page;
static struct pins *pins;
static int path_fd = -1; /* O_PATH */
static struct pin_file *file;

/* --- Files --- */

/* Real enough: its cache can be dropped, and it knows holes. */
FIXTURE bool has_disk(void)
{
	struct statfs st;

	return statfs("/var/tmp", &st) == 0 &&
	       (st.f_type == EXT4_SUPER_MAGIC || st.f_type == XFS_SUPER_MAGIC ||
		st.f_type == BTRFS_SUPER_MAGIC);
}

FIXTURE bool can_lock(void)
{
	struct buf why = BUF_INIT;
	bool can;

	ck_assert_int_eq(pins_status(pins, &why), 0);
	can = strcmp(why.data, "yes") == 0;
	buf_release(&why);
	return can;
}

FIXTURE bool can_all(void)
{
	return geteuid() == 0 && has_disk() && can_lock();
}

/* Bytes [from, to) of a file, none of them zero. */
FIXTURE void write_range(int fd, uint64_t from, uint64_t to)
{
	static char piece[PIECE];

	if (!piece[0])
		for (size_t i = 0; i < PIECE; i++)
			piece[i] = (char)(1 + i % 251);
	while (from < to) {
		size_t n = to - from < PIECE ? (size_t)(to - from) : PIECE;

		ck_assert_int_eq(pwrite(fd, piece, n, (off_t)from), (ssize_t)n);
		from += n;
	}
}

/* A new file without a name, in which is nothing yet; open for both. */
FIXTURE int make_empty(void)
{
	int fd = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	ck_assert_msg(fd >= 0, "/var/tmp: %s", strerror(errno));
	return fd;
}

/* Leaves only an O_PATH descriptor behind, which doesn't count as a holder. */
FIXTURE int only_path(int fd)
{
	char path[64];
	int opath;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	opath = open(path, O_PATH | O_CLOEXEC);
	ck_assert_int_ge(opath, 0);
	(void)close(fd);
	return opath;
}

FIXTURE int reopen(int fd, int flags)
{
	char path[64];
	int again;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, flags | O_CLOEXEC);
	ck_assert_int_ge(again, 0);
	return again;
}

/* Makes the file of the test, synced, and binds it. */
FIXTURE void bind_file(uint64_t size)
{
	int fd = make_empty();

	write_range(fd, 0, size);
	ck_assert_int_eq(fsync(fd), 0);
	path_fd = only_path(fd);
	ck_assert_int_eq(pins_file_open(pins, path_fd, &file), 0);
}

FIXTURE void drop_cache(int fd)
{
	auto_fd int again = reopen(fd, O_RDONLY);

	ck_assert_int_eq(posix_fadvise(again, 0, 0, POSIX_FADV_DONTNEED), 0);
}

FIXTURE void set_up(void)
{
	page = (size_t)sysconf(_SC_PAGESIZE);
	ck_assert_int_eq(holders_init(), 0);
	ck_assert_int_eq(pins_new(PLENTY, &pins), 0);
}

FIXTURE void tear_down(void)
{
	struct pins_stats s;

	pins_file_close(take_ptr(file));
	pins_stats(pins, &s);
	ck_assert_uint_eq(s.files, 0);
	ck_assert_uint_eq(s.pinned_bytes, 0);
	pins_free(pins);
	if (path_fd >= 0)
		(void)close(take_fd(&path_fd));
}

/* --- Asking --- */

FIXTURE struct pins_stats stats(void)
{
	struct pins_stats s;

	pins_stats(pins, &s);
	return s;
}

FIXTURE struct pin_seen see(size_t granule)
{
	struct pin_seen seen;

	ck_assert_int_eq(pins_verify(file, granule, 1, &seen), 0);
	return seen;
}

FIXTURE int pin(size_t first, size_t count)
{
	size_t left = SIZE_MAX;
	int r = pins_pin(file, first, count, NULL, NULL, &left);

	if (r == 0)
		ck_assert_uint_eq(left, 0);
	return r;
}

FIXTURE void assert_hot(size_t granule)
{
	struct pin_seen seen = see(granule);

	ck_assert_msg(seen.resident == seen.data && seen.locked == seen.data,
		      "granule %zu: %u of %u resident, %u locked", granule,
		      seen.resident, seen.data, seen.locked);
	ck_assert(pins_is_pinned(file, granule, 1));
}

FIXTURE void assert_cold(size_t granule)
{
	struct pin_seen seen = see(granule);

	ck_assert_msg(seen.resident == 0 && seen.locked == 0,
		      "granule %zu: %u of %u resident, %u locked", granule,
		      seen.resident, seen.data, seen.locked);
	ck_assert(!pins_is_pinned(file, granule, 1));
}

/* --- Memory cgroups of both versions --- */

static const struct version {
	const char *root;
	const char *limit;
	const char *usage;
	const char *reclaim, *reclaim_text;
} versions[] = {
	{ "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
	  "memory.usage_in_bytes", "memory.force_empty", "0" },
	{ "/sys/fs/cgroup", "memory.max", "memory.current", "memory.reclaim",
	  "4G" },
};

struct group {
	const struct version *version;
	char path[128];
};

FIXTURE bool put(const char *dir, const char *name, const char *text)
{
	char path[256];
	auto_fd int fd = -1;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	return fd >= 0 &&
	       write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

/* limit 0: none. False where there are no cgroups for us. */
FIXTURE bool group_make(struct group *g, const char *name, size_t limit)
{
	static int serial;

	for (size_t i = 0; i < ARRAY_LEN(versions); i++) {
		char text[32], knob[256];

		g->version = &versions[i];
		(void)snprintf(g->path, sizeof(g->path), "%s/pins-%s-%d-%d",
			       g->version->root, name, (int)getpid(), serial++);
		if (mkdir(g->path, 0755) < 0)
			continue;
		(void)snprintf(knob, sizeof(knob), "%s/%s", g->path,
			       g->version->reclaim);
		(void)snprintf(text, sizeof(text), "%zu", limit);
		if (access(knob, W_OK) == 0 &&
		    (!limit || put(g->path, g->version->limit, text)))
			return true;
		(void)rmdir(g->path);
	}
	return false;
}

FIXTURE void group_join(const struct group *g)
{
	ck_assert(put(g->path, "cgroup.procs", "0"));
}

FIXTURE size_t group_usage(const struct group *g)
{
	char path[256], text[32];
	auto_fd int fd = -1;
	ssize_t n;

	(void)snprintf(path, sizeof(path), "%s/%s", g->path, g->version->usage);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = read(fd, text, sizeof(text) - 1);
	ck_assert_int_gt(n, 0);
	text[n] = '\0';
	return (size_t)strtoull(text, NULL, 10);
}

/* Throws out of memory whatever of this group can be. */
FIXTURE void group_reclaim(const struct group *g)
{
	for (int i = 0; i < 3; i++)
		(void)put(g->path, g->version->reclaim,
			  g->version->reclaim_text);
}

/* This process leaves, if it is in there, and the group is gone. */
FIXTURE void group_end(const struct group *g)
{
	(void)put(g->version->root, "cgroup.procs", "0");
	for (int i = 0; i < 100 && rmdir(g->path) < 0 && errno == EBUSY; i++)
		(void)usleep(10000);
}

/* --- Somebody else, in a group of their own --- */

struct other {
	pid_t pid;
	int orders; /* one letter each, see other_obey() */
	int answers;
};

#define EATEN (128 * MIB)

FIXTURE bool other_obey(char order, int fd, uint64_t size, void **map)
{
	auto_free char *bytes = NULL;

	switch (order) {
	case 'r': /* read all of the file */
		bytes = malloc(PIECE);
		for (uint64_t at = 0; at < size; at += PIECE)
			if (pread(fd, bytes, PIECE, (off_t)at) < 0)
				return false;
		return true;
	case 'm': /* map all of it */
		*map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
		return *map != MAP_FAILED &&
		       madvise(*map, (size_t)size, MADV_POPULATE_READ) == 0;
	case 'u':
		return munmap(*map, (size_t)size) == 0;
	case 'w': /* write all of it, without syncing */
		write_range(fd, 0, size);
		return true;
	case 'e': /* use memory of its own */
		bytes = mmap(NULL, EATEN, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		return take_ptr(bytes) != MAP_FAILED;
	default:
		return false;
	}
}

FIXTURE void other_start(struct other *o, const struct group *g, int fd,
			 uint64_t size)
{
	int to[2], from[2];

	ck_assert_int_eq(pipe2(to, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(from, O_CLOEXEC), 0);
	o->pid = fork();
	ck_assert_int_ge(o->pid, 0);
	if (o->pid == 0) {
		void *map = NULL;
		char order;
		int own;

		(void)close(to[1]);
		(void)close(from[0]);
		group_join(g);
		own = reopen(fd, O_RDWR);
		while (read(to[0], &order, 1) == 1)
			if (!other_obey(order, own, size, &map) ||
			    write(from[1], "k", 1) != 1)
				_exit(1);
		_exit(0);
	}
	(void)close(to[0]);
	(void)close(from[1]);
	o->orders = to[1];
	o->answers = from[0];
}

/* False when the other one has died of it. */
FIXTURE bool other_does(const struct other *o, char order)
{
	char c;

	return write(o->orders, &order, 1) == 1 && read(o->answers, &c, 1) == 1;
}

FIXTURE void other_end(const struct other *o)
{
	(void)close(o->orders);
	(void)close(o->answers);
	ck_assert_int_eq(waitpid(o->pid, NULL, 0), o->pid);
}

#endif
