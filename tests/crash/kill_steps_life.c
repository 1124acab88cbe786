/* SPDX-License-Identifier: Apache-2.0 */
/* The store as a process of kill_steps has it open, and the lives to kill. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/config.h"
#include "core/util.h"
#include "kill_steps.h"

#define COPY 1 /* added to a generation: where good files are staged */

struct weight_store *store;
struct weight_dir *lineage;
const struct weight_caller caller;
static struct config config;

/* ---- The store ---- */

void open_store(void)
{
	static const char *const parts[] = { "t", "n", "r", "main" };
	struct buf why = BUF_INIT;
	struct weight_dir *dir;
	int r;

	config_init(&config);
	r = weight_store_open(store_path, &config, &store, &why);
	must(r == 0, why.data, r);
	dir = weight_dir_ref(weight_tree_root(store));
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		struct weight_dir *child = NULL;

		r = weight_dir_mkdir(dir, parts[i], 0755, &caller, &child,
				     &why);
		if (r == -EEXIST)
			r = weight_dir_lookup(dir, parts[i], &child);
		must(r == 0, "making the lineage", r);
		weight_dir_unref(dir);
		dir = child;
	}
	lineage = dir;
	buf_release(&why);
}

void close_store(void)
{
	weight_dir_unref(take_ptr(lineage));
	weight_store_close(take_ptr(store));
}

void generation_name(unsigned generation, char ret[static NAME_LEN])
{
	(void)snprintf(ret, NAME_LEN, "%u", generation);
}

int reopen(struct weight_file *f, int flags)
{
	char link[64];
	int fd;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d",
		       weight_file_fd(f));
	fd = open(link, flags | O_CLOEXEC);
	must(fd >= 0, "opening a backing file", errno);
	return fd;
}

void backing_path(struct weight_file *f, char ret[static PATH_LEN])
{
	char link[64];
	ssize_t n;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d",
		       weight_file_fd(f));
	n = readlink(link, ret, PATH_LEN - 1);
	must(n > 0, "readlink", errno);
	ret[n] = '\0';
}

static unsigned count_entries(const char *path, unsigned depth)
{
	DIR *dir = opendir(path);
	struct dirent *e;
	unsigned count = 0;

	while (dir && (e = readdir(dir))) {
		char below[2 * PATH_LEN];

		if (e->d_name[0] == '.')
			continue;
		(void)snprintf(below, sizeof(below), "%s/%.40s", path,
			       e->d_name);
		count += depth == 0 ? 1 : count_entries(below, depth - 1);
	}
	if (dir)
		(void)closedir(dir);
	return count;
}

unsigned count_groups(void)
{
	char path[PATH_LEN];

	(void)snprintf(path, sizeof(path), "%s/groups", store_path);
	return count_entries(path, 1);
}

void await_groups(unsigned count)
{
	must(true, "deletion", 0);
	while (count_groups() != count)
		(void)usleep(PAUSE_US);
}

/* ---- Generations ---- */

void file_name(unsigned i, char ret[static NAME_LEN])
{
	(void)snprintf(ret, NAME_LEN, "model-%02u.safetensors", i);
}

/* Several granules and chunks, not whole ones; less than a page. */
uint64_t file_size(unsigned i)
{
	switch (i) {
	case FILE_MODEL:
		return (9 << 20) + 77;
	case FILE_LARGE:
		return (5 << 20) + 3;
	default:
		return 1000;
	}
}

struct pattern file_pattern(unsigned generation, unsigned i)
{
	return (struct pattern){ generation, i, file_size(i) };
}

struct weight_group *stage_group(unsigned generation)
{
	struct weight_group *g = NULL;
	struct buf why = BUF_INIT;
	char name[NAME_LEN];
	int r;

	generation_name(generation, name);
	r = weight_dir_stage(lineage, name, 0755, &caller, &g, &why);
	must(r == 0, why.data, r);
	buf_release(&why);
	return g;
}

static void write_pattern(int fd, const struct pattern *p)
{
	auto_free char *bytes = malloc(p->size);

	must(bytes, "memory", 0);
	pattern_fill(p, 0, bytes, p->size);
	must(pwrite(fd, bytes, p->size, 0) == (ssize_t)p->size, "write", errno);
}

void put_file(struct weight_group *g, unsigned with_bytes_of, unsigned i)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	const struct pattern p = file_pattern(with_bytes_of, i);
	char name[NAME_LEN];
	int fd, r;

	file_name(i, name);
	r = weight_group_enter(g, NULL);
	must(r == 0, "enter", r);
	r = weight_group_root(g, &root);
	if (r == 0)
		r = weight_file_create(root, name, 0644, &caller, &f);
	if (r == 0)
		r = weight_file_open(f, O_WRONLY, true);
	must(r == 0, "create", r);
	weight_group_leave(g);
	fd = reopen(f, O_WRONLY);
	write_pattern(fd, &p);
	(void)close(fd);
	weight_file_close(f, O_WRONLY);
}

void find_file(struct weight_group *g, unsigned i, struct weight_file **ret)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	int r = weight_group_root(g, &root);
	char name[NAME_LEN];

	file_name(i, name);
	if (r == 0)
		r = weight_file_lookup(root, name, ret);
	must(r == 0, name, r);
}

void abort_group(struct weight_group *g, unsigned generation)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	struct buf why = BUF_INIT;
	char name[NAME_LEN];
	int r = weight_group_root(g, &root);

	must(r == 0 && weight_group_enter(g, NULL) == 0, "enter", r);
	for (unsigned i = 0; i < FILES; i++) {
		file_name(i, name);
		r = weight_file_unlink(root, name);
		must(r == 0 || r == -ENOENT, "unlink", r);
	}
	weight_group_leave(g);
	generation_name(generation, name);
	r = weight_dir_unstage(lineage, name, &why);
	must(r == 0, why.data, r);
	buf_release(&why);
}

void wait_group(struct weight_group *g)
{
	struct buf why = BUF_INIT, damage = BUF_INIT;
	int r;

	must(true, "wait", 0);
	r = weight_group_wait(g, NULL, &why);
	/* 1: waiting on won't help, as with what is lost. */
	must(r == 0 || (r == 1 && weight_group_damage(g, &damage) == 0 &&
			damage.len > 0),
	     why.data, r);
	buf_release(&why);
	buf_release(&damage);
}

struct weight_metadata *metadata_of(struct weight_group *g)
{
	struct weight_metadata *m = NULL;
	int r = weight_group_metadata(g, &m);

	must(r == 0, "metadata", r);
	return m;
}

void scrub_group(struct weight_group *g)
{
	struct buf why = BUF_INIT;
	int r = weight_group_scrub(g, &why);

	must(r == 0, why.data, r);
	wait_group(g);
	buf_release(&why);
}

void repair_group(struct weight_group *g, unsigned generation)
{
	struct weight_group *copy = stage_group(generation + COPY);
	struct buf why = BUF_INIT;
	int r;

	put_file(copy, generation, FILE_LARGE);
	wait_group(copy);
	r = weight_group_repair(g, &why);
	must(r == 0, why.data, r);
	wait_group(g);
	abort_group(copy, generation + COPY);
	weight_group_unref(copy);
	buf_release(&why);
}

/* ---- The reader ---- */

void tell_reader(struct weight_file *f, unsigned generation)
{
	unsigned order;

	shared->order_path[0] = '\0';
	if (f)
		backing_path(f, shared->order_path);
	shared->order_generation = f ? generation : 0;
	order = atomic_fetch_add(&shared->order, 1) + 1;
	must(true, "the reader obeys", 0);
	while (atomic_load(&shared->obeyed) != order)
		(void)usleep(PAUSE_US);
	must(atomic_load(&shared->mapped) == shared->order_generation,
	     "the reader maps what it should", 0);
}

/* ---- The deeds of a life ---- */

static void say(enum fate fate)
{
	atomic_store(&shared->fate, fate);
}

static void expect_residence(struct weight_group *g,
			     enum weight_residency expected)
{
	struct weight_residence residence;
	int r = weight_group_residence(g, &residence);

	must(r == 0, "residence", r);
	must(residence.residency == expected, "another residence",
	     (int)residence.residency);
}

static void expect_availability(struct weight_group *g,
				enum weight_availability expected)
{
	struct weight_metadata *m = metadata_of(g);

	must(m->availability == expected, "another availability",
	     (int)m->availability);
	weight_metadata_free(m);
}

static void publish(struct weight_group *g, unsigned generation)
{
	struct buf why = BUF_INIT;
	char name[NAME_LEN];
	int r;

	generation_name(generation, name);
	say(PUBLISHING);
	r = weight_group_publish(g, lineage, name, false, NULL, &why);
	must(r == 0, why.data, r);
	say(PUBLISHED);
	buf_release(&why);
}

static void make_durable(struct weight_group *g)
{
	struct weight_metadata *m;

	wait_group(g);
	m = metadata_of(g);
	must(m->durable, "it is not durable after the wait", 0);
	weight_metadata_free(m);
	say(DURABLE);
}

/* The reader must have let go of it, or it stays in memory. */
static void move(struct weight_group *g, enum weight_residency to,
		 enum fate before, enum fate asked, enum fate after)
{
	struct buf why = BUF_INIT;
	int r;

	say(before);
	r = weight_group_migrate(g, to, 0, &why);
	must(r == 0, why.data, r);
	say(asked);
	wait_group(g);
	expect_residence(g, to);
	say(after);
	buf_release(&why);
}

/* A user who opens and closes it, as the mount does. */
static void visit(struct weight_group *g, unsigned i)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	int r;

	find_file(g, i, &f);
	r = weight_file_open(f, O_RDONLY, true);
	must(r == 0, "opening a whole file", r);
	must(weight_file_may_pass(f), "a whole file may not pass", 0);
	must(weight_file_range_check(f, 0, file_size(i)) == 0, "its range", 0);
	weight_file_close(f, O_RDONLY);
}

/* As whoever sets a file's times: what is behind it must be verified. */
static void touch(struct weight_group *g, unsigned i)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	auto_fd int fd = -1;

	find_file(g, i, &f);
	fd = reopen(f, O_RDONLY);
	must(futimens(fd, NULL) == 0, "futimens", errno);
}

static void damage(struct weight_group *g)
{
	static const char junk[DAMAGE_BYTES] = "not what was published";
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	auto_fd int fd = -1;
	int r;

	find_file(g, FILE_LARGE, &f);
	fd = reopen(f, O_WRONLY);
	say(DAMAGING);
	must(pwrite(fd, junk, sizeof(junk), (off_t)DAMAGE_OFFSET) ==
			     sizeof(junk) &&
		     fsync(fd) == 0,
	     "damaging", errno);
	(void)close(take_fd(&fd));
	/* Already the next open knows. */
	r = weight_file_open(f, O_RDONLY, true);
	if (r == 0) {
		must(!weight_file_may_pass(f), "damaged, and may pass", 0);
		r = weight_file_range_check(f, 0, file_size(FILE_LARGE));
		weight_file_close(f, O_RDONLY);
	}
	must(r == -EIO, "damaged, and is served", r);
}

static void expect_damage(struct weight_group *g)
{
	struct buf why = BUF_INIT;
	char name[NAME_LEN];

	expect_availability(g, WEIGHT_DEGRADED);
	must(weight_group_damage(g, &why) == 0 && why.len > 0,
	     "no sentence about the damage", 0);
	file_name(FILE_LARGE, name);
	must(strstr(why.data, name) || strstr(why.data, "t1"), why.data, 0);
	buf_release(&why);
	say(DEGRADED);
}

/* A mapping that has just gone is seen to be gone a little later. */
bool remove_group(struct weight_group *g)
{
	struct buf why = BUF_INIT;
	int r = weight_group_remove(g, 0, &why);

	must(r == 0 || r == -EBUSY, why.data, r);
	buf_release(&why);
	return r == 0;
}

static void take_away(struct weight_group *g)
{
	say(REMOVING);
	while (!remove_group(g))
		(void)usleep(PAUSE_US);
	say(REMOVED);
}

/* ---- Lives ---- */

static struct weight_group *bring_in(unsigned generation)
{
	struct weight_group *g = stage_group(generation);

	for (unsigned i = 0; i < FILES; i++)
		put_file(g, generation, i);
	publish(g, generation);
	return g;
}

void live_setup(void)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	struct weight_group *g;

	open_store();
	g = bring_in(KEEPER);
	find_file(g, FILE_MODEL, &f);
	tell_reader(f, KEEPER);
	make_durable(g);
	expect_residence(g, WEIGHT_HOT);
	weight_file_unref(take_ptr(f));
	weight_group_unref(g);
	close_store();
	_exit(0);
}

void live_whole(void)
{
	unsigned generation = atomic_load(&shared->generation);
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	struct weight_group *g;

	say(STAGING);
	open_store();
	g = bring_in(generation);
	find_file(g, FILE_MODEL, &f);
	tell_reader(f, generation);
	make_durable(g);
	visit(g, FILE_MODEL);
	tell_reader(NULL, 0);
	move(g, WEIGHT_COLD, COOLING, COLD_ASKED, COLD);
	visit(g, FILE_SMALL);
	tell_reader(f, generation);
	move(g, WEIGHT_HOT, WARMING, HOT_ASKED, HOT);
	touch(g, FILE_LARGE);
	visit(g, FILE_LARGE);
	damage(g);
	scrub_group(g);
	expect_damage(g);
	say(REPAIRING);
	repair_group(g, generation);
	expect_availability(g, WEIGHT_READY);
	visit(g, FILE_LARGE);
	say(REPAIRED);
	tell_reader(NULL, 0);
	take_away(g);
	weight_file_unref(take_ptr(f));
	weight_group_unref(g);
	await_groups(1);
	close_store();
	_exit(0);
}

/* Who waits for all, right after a start, waits for this one, too. */
void live_on(void)
{
	struct weight_group *g = NULL;
	struct buf why = BUF_INIT;
	char name[NAME_LEN];
	int r;

	open_store();
	must(true, "the wait for all", 0);
	r = weight_tree_wait(store, NULL, &why);
	must(r == 0, why.data, r);
	generation_name(atomic_load(&shared->generation), name);
	if (weight_dir_published(lineage, name, &g) == 0) {
		struct weight_metadata *m = metadata_of(g);

		must(m->operation_id == 0, "an operation runs after the wait",
		     0);
		must(m->durable || m->availability == WEIGHT_DEGRADED,
		     "not durable after the wait", 0);
		weight_metadata_free(m);
	}
	weight_group_unref(g);
	buf_release(&why);
	close_store();
	_exit(0);
}
