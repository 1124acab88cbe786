/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a file in the way of one row and prints the nanoseconds it took.
 *
 *	reader touch FILE OFFSET       maps it, one byte of every page
 *	reader random FILE COUNT SEED  maps it, first touches of random pages
 *	reader read FILE               preads of 1 MiB, in order
 *	reader opens FILE COUNT        open and close; for one of them
 *	reader first FILE OFFSET       open, map, one byte of every page
 *	reader copy FILE AT LEN OFFSET copies a range into huge pages of memory
 *	reader warm BYTES              takes memory and gives it back
 *	reader hold FILE OFFSET        as touch, then keeps the map till stdin ends
 *	reader sync FILE...            fsync
 *	reader direct FILE...          reads past the cache, in order
 *	reader drop FILE...            out of the cache, as far as it is clean
 *	reader pin FILE...             locks them in memory
 *	reader unpin FILE...           takes that back
 *
 * A second number is the same with the open of the last file in it.
 *
 * OFFSET is where in its page the byte is: another one each time, or the lines
 * of the last run are still in the processor's cache. touch, random and read
 * begin with the open file, so what opening costs is not in the first number.
 */
#include <err.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define READ_BYTES ((size_t)1 << 20)
#define HUGE_BYTES ((size_t)2 << 20)
#define DIRECT_BYTES ((size_t)4 << 20)

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

static volatile unsigned char sink;
static uint64_t begun; /* to open the last file */

static uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int open_with(const char *path, int flags, size_t *ret_len)
{
	struct stat st;
	int fd;

	begun = now_ns();
	fd = open(path, O_RDONLY | O_CLOEXEC | flags);
	if (fd < 0 || fstat(fd, &st) != 0)
		err(1, "%s", path);
	*ret_len = (size_t)st.st_size;
	return fd;
}

static int open_file(const char *path, size_t *ret_len)
{
	return open_with(path, 0, ret_len);
}

static const unsigned char *map_file(int fd, size_t len)
{
	void *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		err(1, "mmap");
	return map;
}

static void touch_pages(const unsigned char *p, size_t len, size_t offset)
{
	unsigned char sum = 0;

	for (size_t at = offset % PAGE; at < len; at += PAGE)
		sum = (unsigned char)(sum + p[at]);
	sink = sum;
}

static uint64_t run_touch(char *const argv[])
{
	size_t len;
	int fd = open_file(argv[0], &len);
	uint64_t start = now_ns();

	touch_pages(map_file(fd, len), len, strtoul(argv[1], NULL, 0));
	return now_ns() - start;
}

/* xorshift64 */
static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static uint64_t run_random(char *const argv[])
{
	size_t len;
	int fd = open_file(argv[0], &len);
	size_t count = strtoul(argv[1], NULL, 0);
	uint64_t state = strtoul(argv[2], NULL, 0) * 2654435761 + 1;
	const unsigned char *p = map_file(fd, len);
	unsigned char sum = 0;
	uint64_t start = now_ns();

	for (size_t i = 0; i < count; i++)
		sum = (unsigned char)(sum + p[next_random(&state) % len]);
	sink = sum;
	return now_ns() - start;
}

static char *new_buffer(size_t len)
{
	char *buffer = aligned_alloc(PAGE, len);

	if (!buffer)
		err(1, "no memory");
	memset(buffer, 1, len);
	return buffer;
}

static void read_all(int fd, size_t len, char *buffer, size_t piece)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = pread(fd, buffer, piece, (off_t)at);

		if (n <= 0)
			err(1, "read at %zu", at);
		at += (size_t)n;
	}
}

static uint64_t run_read(char *const argv[])
{
	char *buffer = new_buffer(READ_BYTES);
	size_t len;
	int fd = open_file(argv[0], &len);
	uint64_t start = now_ns();

	read_all(fd, len, buffer, READ_BYTES);
	return now_ns() - start;
}

static uint64_t run_opens(char *const argv[])
{
	size_t count = strtoul(argv[1], NULL, 0);
	uint64_t start = now_ns();

	for (size_t i = 0; i < count; i++) {
		int fd = open(argv[0], O_RDONLY | O_CLOEXEC);

		if (fd < 0)
			err(1, "%s", argv[0]);
		(void)close(fd);
	}
	return (now_ns() - start) / count;
}

static uint64_t run_first(char *const argv[])
{
	uint64_t start = now_ns();
	size_t len;
	int fd = open_file(argv[0], &len);

	touch_pages(map_file(fd, len), len, strtoul(argv[1], NULL, 0));
	return now_ns() - start;
}

/* Anonymous memory of huge pages, as far as the machine gives them. */
static unsigned char *huge_memory(size_t len)
{
	unsigned char *p = mmap(NULL, len + HUGE_BYTES, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t skip;

	if (p == MAP_FAILED)
		err(1, "mmap");
	skip = HUGE_BYTES - (uintptr_t)p % HUGE_BYTES;
	(void)madvise(p + skip, len, MADV_HUGEPAGE);
	return p + skip;
}

static uint64_t run_copy(char *const argv[])
{
	size_t whole;
	int fd = open_file(argv[0], &whole);
	size_t at = strtoul(argv[1], NULL, 0);
	size_t len = strtoul(argv[2], NULL, 0);
	const unsigned char *from = map_file(fd, whole);
	unsigned char *to;
	uint64_t start;

	if (at > whole || len > whole - at)
		errx(1, "%s has no such range", argv[0]);
	touch_pages(from + at, len, 0);
	start = now_ns();
	to = huge_memory(len);
	memcpy(to, from + at, len);
	touch_pages(to, len, strtoul(argv[3], NULL, 0));
	return now_ns() - start;
}

static uint64_t run_warm(char *const argv[])
{
	size_t len = strtoul(argv[0], NULL, 0);
	uint64_t start = now_ns();
	unsigned char *p = huge_memory(len);

	for (size_t at = 0; at < len; at += PAGE)
		p[at] = 1;
	return now_ns() - start;
}

static uint64_t run_hold(char *const argv[])
{
	uint64_t took = run_touch(argv);

	(void)printf("held\n");
	(void)fflush(stdout);
	(void)getchar();
	return took;
}

static uint64_t run_sync(char *const argv[])
{
	uint64_t start = now_ns();
	size_t len;

	for (; *argv; argv++) {
		int fd = open_file(*argv, &len);

		if (fsync(fd) != 0)
			err(1, "%s", *argv);
		(void)close(fd);
	}
	return now_ns() - start;
}

static uint64_t run_direct(char *const argv[])
{
	/* In small pages no request would be longer than 1 MiB. */
	char *buffer = (char *)huge_memory(DIRECT_BYTES);
	uint64_t start;
	size_t len;

	memset(buffer, 1, DIRECT_BYTES);
	start = now_ns();

	for (; *argv; argv++) {
		int fd = open_with(*argv, O_DIRECT, &len);

		read_all(fd, len, buffer, DIRECT_BYTES);
		(void)close(fd);
	}
	return now_ns() - start;
}

static uint64_t run_drop(char *const argv[])
{
	uint64_t start = now_ns();
	size_t len;

	for (; *argv; argv++) {
		int fd = open_file(*argv, &len);

		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		(void)close(fd);
	}
	return now_ns() - start;
}

/* What is locked or not, and the time it takes, for all files together. */
static uint64_t advise(char *const argv[], int first, int then)
{
	uint64_t took = 0;
	size_t len;

	for (; *argv; argv++) {
		int fd = open_file(*argv, &len);
		void *p = (void *)(uintptr_t)map_file(fd, len);
		uint64_t start;

		if (mlock2(p, len, MLOCK_ONFAULT) != 0 ||
		    (first && madvise(p, len, first) != 0))
			err(1, "%s: locking", *argv);
		start = now_ns();
		if (madvise(p, len, then) != 0)
			err(1, "%s", *argv);
		took += now_ns() - start;
		(void)close(fd);
	}
	return took;
}

static uint64_t run_pin(char *const argv[])
{
	return advise(argv, 0, MADV_POPULATE_READ);
}

static uint64_t run_unpin(char *const argv[])
{
	return advise(argv, MADV_POPULATE_READ, MADV_DONTNEED_LOCKED);
}

#define MANY (-1) /* one or more */

/* clang-format off */
static const struct {
	const char *name;
	int args;
	uint64_t (*run)(char *const argv[]);
} works[] = {
	{ "touch",  2,    run_touch  },
	{ "random", 3,    run_random },
	{ "read",   1,    run_read   },
	{ "opens",  2,    run_opens  },
	{ "first",  2,    run_first  },
	{ "copy",   4,    run_copy   },
	{ "warm",   1,    run_warm   },
	{ "hold",   2,    run_hold   },
	{ "sync",   MANY, run_sync   },
	{ "direct", MANY, run_direct },
	{ "drop",   MANY, run_drop   },
	{ "pin",    MANY, run_pin    },
	{ "unpin",  MANY, run_unpin  },
};
/* clang-format on */

int main(int argc, char *argv[])
{
	for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++) {
		uint64_t took;

		if (argc < 3 || strcmp(argv[1], works[i].name) != 0 ||
		    (works[i].args != MANY && argc - 2 != works[i].args))
			continue;
		took = works[i].run(argv + 2);
		(void)printf("%llu %llu\n", (unsigned long long)took,
			     (unsigned long long)(now_ns() - begun));
		return 0;
	}
	errx(2, "see the head of the source");
}
