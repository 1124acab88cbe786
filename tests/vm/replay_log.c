/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the log that the kernel's dm-log-writes target keeps of a disk, and
 * makes from it what the disk may hold after a power loss.
 *
 * usage: replay_log LOG list
 *        replay_log LOG points COUNT SEED
 *        replay_log LOG marks END
 *        replay_log LOG write DISK FROM END [SEED]
 *
 * Entries are numbered from 0; END is the first that did not happen.
 *
 * points	ends to look at, as lines "FLUSHED END SEED WHAT": each mark from
 *		"begin" on and COUNT others, flushes and any entries. All before
 *		FLUSHED is on the disk for certain
 * marks	the texts of the marks before END, one a line
 * write	does the entries from FROM up to END. With a SEED other than 0,
 *		writes that no flush and no FUA made safe happen, or not, or
 *		only their first pages do, as in a disk's cache
 *
 * The log is a sector with the number of entries, then for each entry a
 * sector that describes it and the sectors that it wrote. It has a write only
 * when that was flushed, so before a mark stands what was safe by then and
 * nothing else.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cleanup.h"

#define LOG_MAGIC UINT64_C(0x6a736677736872)
#define LOG_VERSION 1
#define LOG_ENTRIES_MAX (1 << 20)
#define SECTOR_MIN 512
#define SECTOR_MAX 4096
#define PAGE 4096 /* what a disk writes whole or not at all */
#define WRITE_MAX (64 << 20)
#define POINTS_MAX 10000
#define EXIT_USAGE 2

enum {
	FLAG_FLUSH = 1 << 0,
	FLAG_FUA = 1 << 1,
	FLAG_DISCARD = 1 << 2,
	FLAG_MARK = 1 << 3,
};

/* As the kernel writes them, little-endian. */
struct disk_super {
	uint64_t magic, version, entries;
	uint32_t sector_bytes;
};

struct disk_entry {
	uint64_t sector, sectors, flags, text_len;
};

struct entry {
	off_t data; /* where its bytes are in the log */
	uint64_t sector, sectors, flags;
	char *mark; /* NULL if it is none */
};

struct log {
	int fd;
	uint32_t sector_bytes;
	size_t len;
	struct entry *entries;
};

struct point {
	size_t end;
	unsigned seed;
	const char *what;
};

static _Noreturn void die(const char *what)
{
	(void)fprintf(stderr, "replay_log: %s: %s\n", what, strerror(errno));
	exit(EXIT_FAILURE);
}

static _Noreturn void damaged(const char *what)
{
	(void)fprintf(stderr, "replay_log: not a log: %s\n", what);
	exit(EXIT_FAILURE);
}

static void *must_alloc(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	if (!p)
		die("memory");
	return p;
}

static void must_read(int fd, void *to, size_t len, off_t at)
{
	for (ssize_t n; len > 0; len -= (size_t)n, at += n) {
		n = pread(fd, to, len, at);
		if (n < 0)
			die("read");
		if (n == 0)
			damaged("it ends too early");
		to = (char *)to + n;
	}
}

static void must_write(int fd, const void *from, size_t len, off_t at)
{
	for (ssize_t n; len > 0; len -= (size_t)n, at += n) {
		n = pwrite(fd, from, len, at);
		if (n <= 0)
			die("write");
		from = (const char *)from + n;
	}
}

static uint64_t number(const char *text)
{
	char *end;
	uint64_t n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || end == text || *end) {
		(void)fprintf(stderr, "replay_log: no number: %s\n", text);
		exit(EXIT_USAGE);
	}
	return n;
}

/* ---- Reading the log ---- */

/* Reads the entry at offset `at` and returns where the next one is. */
static off_t read_entry(struct log *log, struct entry *ret, off_t at)
{
	char sector[SECTOR_MAX];
	struct disk_entry raw;
	uint64_t text_len;

	must_read(log->fd, sector, log->sector_bytes, at);
	memcpy(&raw, sector, sizeof(raw));
	text_len = le64toh(raw.text_len);
	ret->sector = le64toh(raw.sector);
	ret->sectors = le64toh(raw.sectors);
	ret->flags = le64toh(raw.flags);
	ret->data = at + log->sector_bytes;
	if (ret->flags & FLAG_MARK) {
		if (text_len > log->sector_bytes - sizeof(raw))
			damaged("a mark that is too long");
		ret->mark = strndup(sector + sizeof(raw), text_len);
		if (!ret->mark)
			die("memory");
	}
	if (ret->flags & FLAG_DISCARD)
		return ret->data;
	if (ret->sectors > WRITE_MAX / log->sector_bytes)
		damaged("a write that is too long");
	return ret->data + (off_t)(ret->sectors * log->sector_bytes);
}

static void read_log(struct log *log, const char *path)
{
	struct disk_super super;
	off_t at;

	log->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (log->fd < 0)
		die(path);
	must_read(log->fd, &super, sizeof(super), 0);
	if (le64toh(super.magic) != LOG_MAGIC ||
	    le64toh(super.version) != LOG_VERSION)
		damaged("another beginning");
	log->sector_bytes = le32toh(super.sector_bytes);
	if (log->sector_bytes < SECTOR_MIN || log->sector_bytes > SECTOR_MAX)
		damaged("the size of its sectors");
	if (le64toh(super.entries) > LOG_ENTRIES_MAX)
		damaged("the number of its entries");
	log->len = (size_t)le64toh(super.entries);
	log->entries = must_alloc(log->len, sizeof(*log->entries));
	at = log->sector_bytes;
	for (size_t i = 0; i < log->len; i++)
		at = read_entry(log, &log->entries[i], at);
}

static void close_log(struct log *log)
{
	for (size_t i = 0; i < log->len; i++)
		free(log->entries[i].mark);
	free(log->entries);
	(void)close(log->fd);
}

static const char *kind(const struct entry *e)
{
	if (e->mark)
		return e->mark;
	if (e->flags & FLAG_DISCARD)
		return "discard";
	if (e->flags & FLAG_FLUSH)
		return "flush";
	return e->flags & FLAG_FUA ? "fua" : "write";
}

static void list(const struct log *log)
{
	for (size_t i = 0; i < log->len; i++) {
		const struct entry *e = &log->entries[i];

		(void)printf("%zu %s %" PRIu64 " %" PRIu64 "\n", i, kind(e),
			     e->sector, e->sectors);
	}
}

static void marks(const struct log *log, size_t end)
{
	for (size_t i = 0; i < end && i < log->len; i++)
		if (log->entries[i].mark)
			(void)puts(log->entries[i].mark);
}

/* ---- Choosing points ---- */

static int compare_points(const void *a, const void *b)
{
	const struct point *p = a, *q = b;

	return p->end < q->end ? -1 : p->end > q->end;
}

static size_t first_entry(const struct log *log)
{
	for (size_t i = 0; i < log->len; i++)
		if (log->entries[i].mark &&
		    strcmp(log->entries[i].mark, "begin") == 0)
			return i;
	damaged("no mark \"begin\"");
}

static size_t flushed_before(const struct log *log, size_t end)
{
	while (end > 0 && !(log->entries[end - 1].flags & FLAG_FLUSH))
		end--;
	return end;
}

static size_t between(size_t low, size_t high)
{
	return low + (size_t)random() % (high - low);
}

/* The first flush or FUA at or after entry i, else the last entry. */
static size_t next_safe(const struct log *log, size_t i)
{
	while (i + 1 < log->len &&
	       !(log->entries[i].flags & (FLAG_FLUSH | FLAG_FUA)))
		i++;
	return i;
}

static void points(const struct log *log, size_t count, unsigned seed)
{
	auto_free struct point *all =
		must_alloc(log->len + count, sizeof(*all));
	size_t first = first_entry(log), n = 0, last = 0;

	srandom(seed);
	for (size_t i = first; i < log->len; i++)
		if (log->entries[i].mark)
			all[n++] = (struct point){ i + 1, 0, "mark" };
	for (size_t i = 0; i < count && first + 1 < log->len; i++) {
		size_t at = between(first, log->len);

		if (i % 3 == 0)
			all[n++] = (struct point){ next_safe(log, at) + 1, 0,
						   "safe" };
		else
			all[n++] = (struct point){ at + 1,
						   (unsigned)between(1, 1000),
						   "entry" };
	}
	qsort(all, n, sizeof(*all), compare_points);
	for (size_t i = 0; i < n; last = all[i++].end)
		if (all[i].end != last)
			(void)printf("%zu %zu %u %s\n",
				     flushed_before(log, all[i].end),
				     all[i].end, all[i].seed, all[i].what);
}

/* ---- Writing what happened ---- */

/* How many of the bytes of an unsafe write get to the disk. */
static size_t lucky(size_t len)
{
	switch (random() % 3) {
	case 0:
		return 0;
	case 1:
		return len / PAGE ? between(0, len / PAGE) * PAGE : 0;
	default:
		return len;
	}
}

static void write_entry(const struct log *log, const struct entry *e, int disk,
			bool unsafe)
{
	size_t len = (size_t)e->sectors * log->sector_bytes;
	auto_free char *bytes = NULL;

	if (e->mark || len == 0)
		return;
	if (unsafe && !(e->flags & FLAG_FUA))
		len = lucky(len);
	bytes = must_alloc(len, 1);
	if (!(e->flags & FLAG_DISCARD))
		must_read(log->fd, bytes, len, e->data);
	must_write(disk, bytes, len, (off_t)(e->sector * log->sector_bytes));
}

static void write_entries(const struct log *log, const char *path, size_t from,
			  size_t end, unsigned seed)
{
	auto_fd int disk = open(path, O_WRONLY | O_CLOEXEC);
	size_t flushed = flushed_before(log, end < log->len ? end : log->len);

	if (disk < 0)
		die(path);
	srandom(seed);
	for (size_t i = from; i < end && i < log->len; i++)
		write_entry(log, &log->entries[i], disk,
			    seed != 0 && i >= flushed);
	if (fsync(disk) < 0)
		die(path);
}

static bool run(const struct log *log, int argc, char **argv)
{
	const char *what = argv[0];

	if (argc == 1 && strcmp(what, "list") == 0)
		list(log);
	else if (argc == 3 && strcmp(what, "points") == 0 &&
		 number(argv[1]) <= POINTS_MAX)
		points(log, (size_t)number(argv[1]), (unsigned)number(argv[2]));
	else if (argc == 2 && strcmp(what, "marks") == 0)
		marks(log, (size_t)number(argv[1]));
	else if ((argc == 4 || argc == 5) && strcmp(what, "write") == 0)
		write_entries(log, argv[1], (size_t)number(argv[2]),
			      (size_t)number(argv[3]),
			      argc == 5 ? (unsigned)number(argv[4]) : 0);
	else
		return false;
	return true;
}

int main(int argc, char **argv)
{
	struct log log = { .fd = -1 };
	bool known;

	if (argc < 3) {
		(void)fputs("usage: replay_log LOG COMMAND [ARGUMENT...]\n",
			    stderr);
		return EXIT_USAGE;
	}
	read_log(&log, argv[1]);
	known = run(&log, argc - 2, argv + 2);
	close_log(&log);
	if (fflush(stdout) != 0)
		die("output");
	return known ? EXIT_SUCCESS : EXIT_USAGE;
}
