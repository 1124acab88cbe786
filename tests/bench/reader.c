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
 *
 * OFFSET is where in its page the byte is: another one each time, or the lines
 * of the last run are still in the processor's cache. touch, random and read
 * begin with the open file, so what opening costs is not in them.
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

static volatile unsigned char sink;

static uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int open_file(const char *path, size_t *ret_len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) != 0)
		err(1, "%s", path);
	*ret_len = (size_t)st.st_size;
	return fd;
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

static uint64_t run_read(char *const argv[])
{
	size_t len;
	int fd = open_file(argv[0], &len);
	char *buffer = aligned_alloc(PAGE, READ_BYTES);
	uint64_t start;

	if (!buffer)
		err(1, "no memory");
	memset(buffer, 1, READ_BYTES);
	start = now_ns();
	for (size_t at = 0; at < len;) {
		ssize_t n = pread(fd, buffer, READ_BYTES, (off_t)at);

		if (n <= 0)
			err(1, "%s: read at %zu", argv[0], at);
		at += (size_t)n;
	}
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

/* clang-format off */
static const struct {
	const char *name;
	int args;
	uint64_t (*run)(char *const argv[]);
} works[] = {
	{ "touch",  2, run_touch  },
	{ "random", 3, run_random },
	{ "read",   1, run_read   },
	{ "opens",  2, run_opens  },
	{ "first",  2, run_first  },
	{ "copy",   4, run_copy   },
	{ "warm",   1, run_warm   },
};
/* clang-format on */

int main(int argc, char *argv[])
{
	for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++) {
		if (argc < 2 || strcmp(argv[1], works[i].name) != 0 ||
		    argc - 2 != works[i].args)
			continue;
		(void)printf("%llu\n",
			     (unsigned long long)works[i].run(argv + 2));
		return 0;
	}
	errx(2, "see the head of the source");
}
