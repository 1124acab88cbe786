/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the two doors share: a store in a directory of its own, one
 * lineage, and revisions as a mount would make them.
 */
#ifndef TESTS_UNIT_WEIGHT_TREE_FIXTURE_H
#define TESTS_UNIT_WEIGHT_TREE_FIXTURE_H

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/clock.h"
#include "core/config.h"
#include "core/metrics.h"
#include "core/util.h"
#include "core/weight_store.h"
#include "core/weight_tree.h"
#include "suite.h"

/* Not every file of tests needs all of it. */
#define FIXTURE static __attribute__((unused))

#define PATH_LEN 128
#define DEADLINE_MS 30000
#define MIB ((size_t)1 << 20)

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

static struct config config;
static char path[PATH_LEN];
static struct weight_store *store;
static struct weight_dir *lineage;
static struct buf why = BUF_INIT;
static const struct weight_caller caller;

/* ---- The store ---- */

FIXTURE void make_lineage(void)
{
	static const char *const parts[] = { "t", "n", "r", "main" };
	struct weight_dir *dir = weight_dir_ref(weight_tree_root(store));

	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		struct weight_dir *child = NULL;
		int r = weight_dir_mkdir(dir, parts[i], 0755, &caller, &child,
					 &why);

		if (r == -EEXIST)
			r = weight_dir_lookup(dir, parts[i], &child);
		ck_assert_int_eq(r, 0);
		weight_dir_unref(dir);
		dir = child;
	}
	lineage = dir;
}

FIXTURE void open_store(void)
{
	int r = weight_store_open(path, &config, &store, &why);

	ck_assert_msg(r == 0, "%d: %s", r, why.data);
	make_lineage();
}

FIXTURE void close_store(void)
{
	weight_dir_unref(take_ptr(lineage));
	weight_store_close(take_ptr(store));
}

/* With the options as they are now; nobody has a reference to anything. */
FIXTURE void reopen_store(void)
{
	close_store();
	open_store();
}

FIXTURE void setup(void)
{
	(void)snprintf(path, sizeof(path), "/var/tmp/weight-tree.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(path));
	config_init(&config);
	config.memory_bytes = 256 * MIB;
	open_store();
}

FIXTURE void teardown(void)
{
	char command[PATH_LEN + 16];

	close_store();
	buf_release(&why);
	(void)snprintf(command, sizeof(command), "rm -rf '%s'", path);
	ck_assert_int_eq(system(command), 0);
}

/* Whether files can be held in memory here, and leave it. */
FIXTURE bool can_pin(void)
{
	struct weight_tree_space space;
	struct buf health = BUF_INIT;
	bool can;

	ck_assert_int_eq(weight_tree_health(store, &health), 0);
	weight_tree_space(store, &space);
	can = strstr(health.data, "memory can be locked: yes") &&
	      !space.memory_only;
	buf_release(&health);
	return can;
}

/* ---- Staging and publishing ---- */

FIXTURE struct weight_group *stage(const char *name)
{
	struct weight_group *g = NULL;
	int r = weight_dir_stage(lineage, name, 0755, &caller, &g, &why);

	ck_assert_msg(r == 0, "%d: %s", r, why.data);
	return g;
}

FIXTURE struct weight_file *root_of(struct weight_group *g)
{
	struct weight_file *root = NULL;

	ck_assert_int_eq(weight_group_root(g, &root), 0);
	return root;
}

/* The file itself, whatever its names. */
FIXTURE int reopen_file(const struct weight_file *f, int flags)
{
	char link[64];
	int fd;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d",
		       weight_file_fd(f));
	fd = open(link, flags | O_CLOEXEC);
	ck_assert_msg(fd >= 0, "%s", strerror(errno));
	return fd;
}

FIXTURE struct weight_file *create(struct weight_group *g, const char *name)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *root =
		root_of(g);
	struct weight_file *f = NULL;

	ck_assert_int_eq(weight_group_enter(g, NULL), 0);
	ck_assert_int_eq(weight_file_create(root, name, 0644, &caller, &f), 0);
	ck_assert_int_eq(weight_file_open(f, O_WRONLY, true), 0);
	weight_group_leave(g);
	return f;
}

/* Writes a file as a handle of the mount does. */
FIXTURE struct weight_file *put(struct weight_group *g, const char *name,
				const void *bytes, size_t len)
{
	struct weight_file *f = create(g, name);
	auto_fd int fd = reopen_file(f, O_WRONLY);

	ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
	(void)close(take_fd(&fd));
	weight_file_close(f, O_WRONLY);
	return f;
}

/* One F32 tensor "w" of two elements. */
static const char model[] = "\x40\0\0\0\0\0\0\0"
			    "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],"
			    "\"data_offsets\":[0,8]}}          "
			    "abcdefgh";

FIXTURE void publish(struct weight_group *g, const char *name)
{
	int r;

	/* What a file needs is done in the background. */
	ck_assert_int_eq(weight_group_wait(g, NULL, &why), 0);
	r = weight_group_publish(g, lineage, name, false, NULL, &why);
	ck_assert_msg(r == 0, "%d: %s", r, why.data);
}

FIXTURE struct weight_group *published(const char *name)
{
	struct weight_group *g = stage(name);

	weight_file_unref(
		put(g, "model.safetensors", model, sizeof(model) - 1));
	publish(g, name);
	return g;
}

FIXTURE struct weight_group *find_published(const char *name)
{
	struct weight_group *g = NULL;

	ck_assert_int_eq(weight_dir_published(lineage, name, &g), 0);
	return g;
}

FIXTURE struct weight_file *find_file(struct weight_group *g, const char *name)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *root =
		root_of(g);
	struct weight_file *f = NULL;

	ck_assert_int_eq(weight_file_lookup(root, name, &f), 0);
	return f;
}

/* ---- Large revisions: tensors "a" and "b" of half the size each ---- */

FIXTURE void fill(unsigned char *bytes, size_t len, uint64_t seed)
{
	uint64_t x = 0x9e3779b97f4a7c15 * (seed + 1);

	for (size_t i = 0; i < len; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		bytes[i] = (unsigned char)(x >> 32);
	}
}

#define LARGE_HEADER_LEN 4096

/* len bytes in all, of which the header is LARGE_HEADER_LEN. */
FIXTURE unsigned char *large_model(size_t len, uint64_t seed)
{
	unsigned char *bytes = malloc(len);
	uint64_t text = LARGE_HEADER_LEN - 8;
	size_t half = (len - LARGE_HEADER_LEN) / 2;
	int n;

	ck_assert_ptr_nonnull(bytes);
	memset(bytes, ' ', LARGE_HEADER_LEN);
	for (size_t i = 0; i < 8; i++)
		bytes[i] = (unsigned char)(text >> 8 * i);
	n = snprintf((char *)bytes + 8, LARGE_HEADER_LEN - 8,
		     "{\"a\":{\"dtype\":\"U8\",\"shape\":[%zu],"
		     "\"data_offsets\":[0,%zu]},\"b\":{\"dtype\":\"U8\","
		     "\"shape\":[%zu],\"data_offsets\":[%zu,%zu]}}",
		     half, half, half, half, 2 * half);
	bytes[8 + n] = ' ';
	fill(bytes + LARGE_HEADER_LEN, len - LARGE_HEADER_LEN, seed);
	return bytes;
}

FIXTURE struct weight_group *staged_large(const char *name, size_t len)
{
	struct weight_group *g = stage(name);
	auto_free unsigned char *bytes = large_model(len, 1);

	weight_file_unref(put(g, "model.safetensors", bytes, len));
	return g;
}

FIXTURE struct weight_group *published_large(const char *name, size_t len)
{
	struct weight_group *g = staged_large(name, len);

	publish(g, name);
	return g;
}

/* ---- Asking ---- */

FIXTURE struct weight_metadata *record_of(struct weight_group *g)
{
	struct weight_metadata *m = NULL;

	ck_assert_int_eq(weight_group_metadata(g, &m), 0);
	return m;
}

FIXTURE bool is_durable(struct weight_group *g)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m =
		record_of(g);

	return m->durable;
}

FIXTURE uint64_t operation_of(struct weight_group *g)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m =
		record_of(g);

	return m->operation_id;
}

FIXTURE enum weight_availability availability_of(struct weight_group *g)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m =
		record_of(g);

	return m->availability;
}

FIXTURE struct weight_residence residence_of(struct weight_group *g)
{
	struct weight_residence seen;

	ck_assert_int_eq(weight_group_residence(g, &seen), 0);
	return seen;
}

/* The record and the truth say the same. */
FIXTURE void assert_residency(struct weight_group *g,
			      enum weight_residency expected)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m =
		record_of(g);
	struct weight_residence seen = residence_of(g);

	ck_assert_int_eq(seen.residency, expected);
	ck_assert_int_eq(m->residency, expected);
	ck_assert(m->observed_hot_ratio == seen.hot_ratio);
	if (expected == WEIGHT_COLD)
		ck_assert_uint_eq(seen.pinned_bytes, 0);
}

/* Everything that is pending gets done, and can be. */
FIXTURE void settle(struct weight_group *g)
{
	int r;

	buf_release(&why);
	r = weight_group_wait(g, NULL, &why);
	ck_assert_msg(r == 0, "%d: %s", r, why.data);
}

FIXTURE void move(struct weight_group *g, enum weight_residency target)
{
	int r;

	buf_release(&why);
	r = weight_group_migrate(g, target, 0, &why);
	ck_assert_msg(r == 0, "%d: %s", r, why.data);
}

FIXTURE size_t resident_bytes(struct weight_group *g, const char *name)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f =
		find_file(g, name);
	auto_fd int fd = reopen_file(f, O_RDONLY);
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t len = (size_t)lseek(fd, 0, SEEK_END);
	size_t pages = (len + page - 1) / page, count = 0;
	auto_free unsigned char *seen = malloc(pages);
	void *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);

	ck_assert_ptr_ne(map, MAP_FAILED);
	ck_assert_int_eq(mincore(map, len, seen), 0);
	(void)munmap(map, len);
	for (size_t i = 0; i < pages; i++)
		count += seen[i] & 1;
	return count * page;
}

/* Polls until it is true; what is waited for has no other way to be told. */
#define wait_until(condition)                                                  \
	do {                                                                   \
		uint64_t end = clock_monotonic_ms() + DEADLINE_MS;             \
                                                                               \
		while (!(condition)) {                                         \
			ck_assert_msg(clock_monotonic_ms() < end, "never: %s", \
				      #condition);                             \
			(void)usleep(1000);                                    \
		}                                                              \
	} while (0)

#endif
