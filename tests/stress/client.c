/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of the stress: makes generations, and reads them without end, in
 * every way in which a process can hold a file. See stress.py.
 *
 *	client write DIRECTORY GENERATION
 *	client read LINEAGE BOARD SLOT
 *
 * A reader looks at every byte that it gets. At the end, when the board says
 * stop, it prints how often it did what. It exits with 1, and a sentence, when
 * a byte is wrong, when a call fails that should not, or when a generation goes
 * while it holds it.
 *
 * The board is a file that all map; see struct board.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/util.h"
#include "pattern.h"

#define SLOTS 64
#define GENERATIONS 65536
#define PATH_LEN 4096
#define PIECE ((size_t)1 << 20)
#define ALIGN 4096
#define HOLD_MS_MAX 1000
#define NOTHING_THERE_US 10000
#define FILES 3
#define FAILED 1

static const uint64_t sizes[FILES] = { (24 << 20) + 1234, (6 << 20) + 5, 300 };

/* Same layout in stress.py. */
struct slot {
	_Atomic uint64_t held;  /* the generation that must not go; or 0 */
	_Atomic uint64_t since; /* ms, when what it does began; 0: nothing */
	_Atomic uint64_t way;   /* index in ways */
	_Atomic uint64_t rounds;
};

#define AVOID 1 /* begin nothing new with it */
#define GONE 2  /* its removal has succeeded */

struct board {
	_Atomic uint64_t stop;
	uint64_t reserved[3];
	struct slot slots[SLOTS];
	_Atomic unsigned char generations[GENERATIONS];
};

static struct board *board;
static struct slot *slot;
static const char *lineage;
static char *piece; /* PIECE bytes, aligned */

/* What is read at the moment. */
static struct pattern now;
static uint64_t base; /* offset of the opened file's byte 0 in the pattern */
static char path[PATH_LEN];
static uint64_t bytes_seen;

static void fail(const char *what)
{
	int err = errno;

	(void)fprintf(stderr, "%s: %s (errno %d, %s)\n", path, what, err,
		      strerror(err));
	exit(FAILED);
}

static uint64_t now_ms(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static uint64_t random_below(uint64_t n)
{
	return (uint64_t)random() % n;
}

static void check_bytes(uint64_t offset, const void *bytes, size_t len)
{
	size_t good = pattern_check(&now, base + offset, bytes, len);

	bytes_seen += len;
	if (good == len)
		return;
	(void)fprintf(stderr, "%s: byte %llu is %02x\n", path,
		      (unsigned long long)(offset + good),
		      ((const unsigned char *)bytes)[good]);
	exit(FAILED);
}

/* ---- Holding ---- */

/* The generation is still there, whatever was tried meanwhile. */
static void check_held(void)
{
	char dir[PATH_LEN], value[32];
	ssize_t n;

	(void)snprintf(dir, sizeof(dir), "%s/%llu", lineage,
		       (unsigned long long)now.generation);
	if (atomic_load(&board->generations[now.generation]) & GONE)
		fail("removed while it is held");
	n = getxattr(dir, "user.weights.availability", value, sizeof(value));
	if (n != 5 || memcmp(value, "ready", 5) != 0)
		fail("not ready while it is held");
}

static void hold(void)
{
	atomic_store(&slot->held, now.generation);
}

static void let_go(void)
{
	check_held();
	atomic_store(&slot->held, 0);
}

/* False when the generation went before it could be opened. */
static bool open_file(int flags, int *ret)
{
	int fd = open(path, flags | O_CLOEXEC);

	if (fd < 0 && errno == ENOENT)
		return false;
	if (fd < 0)
		fail("open");
	hold();
	*ret = fd;
	return true;
}

static uint64_t length_of(void)
{
	return now.size - base;
}

/* ---- Ways to read; false: it was gone ---- */

static void *map_file(int fd, int flags)
{
	void *map = mmap(NULL, length_of(), PROT_READ, flags, fd, 0);

	if (map == MAP_FAILED)
		fail("mmap");
	return map;
}

static bool by_map(void)
{
	int flags = random_below(2) ? MAP_SHARED : MAP_PRIVATE | MAP_POPULATE;
	void *map;
	int fd;

	if (!open_file(O_RDONLY, &fd))
		return false;
	map = map_file(fd, flags);
	(void)close(fd);
	check_bytes(0, map, length_of());
	let_go();
	(void)munmap(map, length_of());
	return true;
}

/* Mapped for a while, with nothing else left of the open. */
static bool by_long_map(void)
{
	useconds_t pause = (useconds_t)random_below(HOLD_MS_MAX) * 1000;
	void *map;
	int fd;

	if (!open_file(O_RDONLY, &fd))
		return false;
	map = map_file(fd, MAP_SHARED);
	(void)close(fd);
	(void)usleep(pause);
	check_bytes(0, map, length_of());
	check_held();
	(void)usleep(pause / 4);
	check_bytes(0, map, length_of());
	let_go();
	(void)munmap(map, length_of());
	return true;
}

static void read_all(int fd)
{
	uint64_t at = 0;

	while (at < length_of()) {
		ssize_t n =
			pread(fd, piece, 1 + random_below(PIECE), (off_t)at);

		if (n <= 0)
			fail("read");
		check_bytes(at, piece, (size_t)n);
		at += (uint64_t)n;
	}
	if (pread(fd, piece, PIECE, (off_t)at) != 0)
		fail("more than there should be");
}

static bool by_read(void)
{
	int fd;

	if (!open_file(O_RDONLY, &fd))
		return false;
	read_all(fd);
	let_go();
	(void)close(fd);
	return true;
}

static bool by_direct_read(void)
{
	int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	uint64_t at = 0;

	/* What is all in memory answers so. */
	if (fd < 0 && errno == EINVAL)
		return true;
	if (fd < 0 && errno == ENOENT)
		return false;
	if (fd < 0)
		fail("open with O_DIRECT");
	hold();
	while (at < length_of()) {
		ssize_t n = pread(fd, piece, PIECE, (off_t)at);

		if (n <= 0)
			fail("direct read");
		check_bytes(at, piece, (size_t)n);
		at += (uint64_t)n;
		if (at % ALIGN != 0 && at != length_of())
			fail("a short direct read");
	}
	let_go();
	(void)close(fd);
	return true;
}

static size_t fill_pipe(int fd, int to, uint64_t at)
{
	off_t offset = (off_t)at;
	ssize_t n = splice(fd, &offset, to, NULL, PIECE, SPLICE_F_NONBLOCK);

	if (n <= 0)
		fail("splice");
	return (size_t)n;
}

static void empty_pipe(int from, uint64_t at, size_t len)
{
	while (len > 0) {
		ssize_t n = read(from, piece, len);

		if (n <= 0)
			fail("reading a pipe");
		check_bytes(at, piece, (size_t)n);
		at += (uint64_t)n;
		len -= (size_t)n;
	}
}

static void make_pipe(int ret[2])
{
	if (pipe2(ret, O_CLOEXEC) < 0)
		fail("pipe");
	/* More pages at once; the default will do as well. */
	(void)fcntl(ret[1], F_SETPIPE_SZ, PIECE);
}

static bool by_splice(void)
{
	uint64_t at = 0;
	int fd, ends[2];

	if (!open_file(O_RDONLY, &fd))
		return false;
	make_pipe(ends);
	while (at < length_of()) {
		size_t n = fill_pipe(fd, ends[1], at);

		empty_pipe(ends[0], at, n);
		at += n;
	}
	let_go();
	(void)close(fd);
	(void)close(ends[0]);
	(void)close(ends[1]);
	return true;
}

/* Pages in a pipe hold nothing, and must stay what they are all the same. */
static bool by_late_pipe(void)
{
	uint64_t at = random_below(length_of());
	int fd, ends[2];
	size_t n;

	if (!open_file(O_RDONLY, &fd))
		return false;
	make_pipe(ends);
	n = fill_pipe(fd, ends[1], at);
	let_go();
	(void)close(fd);
	(void)usleep((useconds_t)random_below(HOLD_MS_MAX) * 1000);
	empty_pipe(ends[0], at, n);
	(void)close(ends[0]);
	(void)close(ends[1]);
	return true;
}

static bool by_open_alone(void)
{
	int fd;

	if (!open_file(O_RDONLY, &fd))
		return false;
	let_go();
	(void)close(fd);
	return true;
}

static void name_tensor(void)
{
	(void)snprintf(path, sizeof(path), "%s/%llu/.weights/tensors/t%u",
		       lineage, (unsigned long long)now.generation, now.file);
	base = PATTERN_HEAD;
}

static bool by_tensor_map(void)
{
	name_tensor();
	return by_map();
}

static bool by_tensor_read(void)
{
	name_tensor();
	return by_read();
}

static const struct way {
	const char *name;
	bool (*go)(void);
	unsigned weight;
} ways[] = {
	{ "maps", by_map, 12 },
	{ "long maps", by_long_map, 2 },
	{ "reads", by_read, 8 },
	{ "direct reads", by_direct_read, 4 },
	{ "splices", by_splice, 6 },
	{ "late pipes", by_late_pipe, 2 },
	{ "opens", by_open_alone, 4 },
	{ "tensor maps", by_tensor_map, 4 },
	{ "tensor reads", by_tensor_read, 2 },
};
static uint64_t done[ARRAY_LEN(ways)];
static uint64_t came_late; /* the generation had gone */

static size_t choose_way(void)
{
	unsigned sum = 0;
	uint64_t left;
	size_t i;

	for (i = 0; i < ARRAY_LEN(ways); i++)
		sum += ways[i].weight;
	left = random_below(sum);
	for (i = 0; left >= ways[i].weight; i++)
		left -= ways[i].weight;
	return i;
}

/* Any that is there and isn't to be avoided. False: there is none. */
static bool choose_generation(void)
{
	DIR *dir = opendir(lineage);
	unsigned seen = 0;
	struct dirent *e;

	if (!dir)
		fail("opendir");
	while ((e = readdir(dir))) {
		uint64_t generation = strtoull(e->d_name, NULL, 10);

		if (generation == 0 || generation >= GENERATIONS ||
		    atomic_load(&board->generations[generation]))
			continue;
		if (random_below(++seen) == 0)
			now.generation = generation;
	}
	(void)closedir(dir);
	return seen > 0;
}

static void read_once(void)
{
	size_t way = choose_way();

	now.file = (unsigned)random_below(FILES);
	now.size = sizes[now.file];
	base = 0;
	(void)snprintf(path, sizeof(path), "%s/%llu/model-%u.safetensors",
		       lineage, (unsigned long long)now.generation, now.file);
	atomic_store(&slot->way, way);
	if (ways[way].go())
		done[way]++;
	else
		came_late++;
}

static void on_bus_error(int signal)
{
	static const char text[] = "bus error: a mapped page is gone\n";

	(void)signal;
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(FAILED);
}

static void print_counts(void)
{
	for (size_t i = 0; i < ARRAY_LEN(ways); i++)
		(void)printf("%s=%llu\n", ways[i].name,
			     (unsigned long long)done[i]);
	(void)printf("came late=%llu\nbytes=%llu\n",
		     (unsigned long long)came_late,
		     (unsigned long long)bytes_seen);
}

static void read_without_end(const char *board_path, unsigned long index)
{
	int fd = open(board_path, O_RDWR | O_CLOEXEC);

	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED,
		     fd, 0);
	piece = aligned_alloc(ALIGN, PIECE);
	if (board == MAP_FAILED || !piece || index >= SLOTS)
		fail("no board");
	(void)close(fd);
	slot = &board->slots[index];
	srandom((unsigned)index * 7919 + (unsigned)now_ms());
	(void)signal(SIGBUS, on_bus_error);
	while (!atomic_load(&board->stop)) {
		atomic_store(&slot->since, now_ms());
		if (choose_generation())
			read_once();
		else
			(void)usleep(NOTHING_THERE_US);
		(void)atomic_fetch_add(&slot->rounds, 1);
	}
	atomic_store(&slot->since, 0);
	print_counts();
}

/* ---- Writing ---- */

static void write_file(const char *dir, unsigned i)
{
	auto_free char *bytes = malloc(PIECE);
	uint64_t at = 0;
	int fd;

	now.file = i;
	now.size = sizes[i];
	(void)snprintf(path, sizeof(path), "%s/model-%u.safetensors", dir, i);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0 || !bytes)
		fail("create");
	while (at < now.size) {
		size_t n =
			now.size - at < PIECE ? (size_t)(now.size - at) : PIECE;

		pattern_fill(&now, at, bytes, n);
		if (write(fd, bytes, n) != (ssize_t)n)
			fail("write");
		at += n;
	}
	if (close(fd) < 0)
		fail("close");
}

int main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "write") == 0) {
		now.generation = strtoull(argv[3], NULL, 10);
		for (unsigned i = 0; i < FILES; i++)
			write_file(argv[2], i);
		return 0;
	}
	if (argc == 5 && strcmp(argv[1], "read") == 0) {
		lineage = argv[2];
		read_without_end(argv[3], strtoul(argv[4], NULL, 10));
		return 0;
	}
	(void)fprintf(stderr,
		      "usage: %s write DIRECTORY GENERATION\n"
		      "       %s read LINEAGE BOARD SLOT\n",
		      argv[0], argv[0]);
	return 2;
}
