/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on one real store. What is published must be one of the whole
 * contents that somebody wrote, with the digest that its manifest says, and
 * must stay what it was when it was first seen.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/config.h"
#include "core/digest.h"
#include "core/util.h"
#include "core/weight_store.h"
#include "core/weight_tree.h"
#include "suite.h"

#define THREADS 6
#define STEPS 400 /* of each thread */
#define WINDOW 6  /* generations that are in play at once */
#define AHEAD 3   /* of them not published yet, or only just */
#define GENERATIONS 4096
#define PATH_LEN 128
#define NAME_LEN 24
#define HEAD_LEN 72

static struct config config;
static char path[PATH_LEN];
static struct weight_store *store;
static struct weight_dir *lineage;
static const struct weight_caller caller;
static atomic_uint newest = 1;
static atomic_char seen[GENERATIONS]; /* the letter that was published */
static atomic_uint published_total, removed_total, moved_total;

static const char head[] = "\x40\0\0\0\0\0\0\0"
			   "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],"
			   "\"data_offsets\":[0,8]}}          ";

static_assert(sizeof(head) - 1 == HEAD_LEN, "the header is as it says");

static void must(bool ok, const char *what, int r)
{
	if (ok)
		return;
	(void)fprintf(stderr, "%s: %d\n", what, r);
	abort();
}

/* ---- Entering as a request does ---- */

struct parked {
	struct weight_parked parked;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool runs;
};

static void parked_run(struct work *work)
{
	struct parked *p = container_of(work, struct parked, parked.work);

	(void)pthread_mutex_lock(&p->lock);
	p->runs = true;
	(void)pthread_cond_signal(&p->cond);
	(void)pthread_mutex_unlock(&p->lock);
}

static int enter(struct weight_group *g)
{
	struct parked p = {
		.parked.work.run = parked_run,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.cond = PTHREAD_COND_INITIALIZER,
	};
	int r;

	while ((r = weight_group_enter(g, &p.parked)) == 1) {
		(void)pthread_mutex_lock(&p.lock);
		while (!p.runs)
			(void)pthread_cond_wait(&p.cond, &p.lock);
		p.runs = false;
		(void)pthread_mutex_unlock(&p.lock);
	}
	return r;
}

/* ---- Steps ---- */

struct player {
	pthread_t thread;
	unsigned seed;
	struct buf why;
};

static unsigned draw(struct player *p, unsigned below)
{
	p->seed = p->seed * 1664525 + 1013904223;
	return (p->seed >> 16) % below;
}

static void pick(struct player *p, char name[static NAME_LEN])
{
	unsigned top = atomic_load(&newest) + AHEAD;
	unsigned back = draw(p, WINDOW);

	(void)snprintf(name, NAME_LEN, "%u", top > back ? top - back : 1);
}

static int reopen(struct weight_file *f, int flags)
{
	char link[64];

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d",
		       weight_file_fd(f));
	return open(link, flags | O_CLOEXEC);
}

static void write_letter(int fd, char letter)
{
	char body[8];

	memset(body, letter, sizeof(body));
	must(pwrite(fd, head, HEAD_LEN, 0) == HEAD_LEN, "write", errno);
	must(pwrite(fd, body, 4, HEAD_LEN) == 4, "write", errno);
	must(pwrite(fd, body, 4, HEAD_LEN + 4) == 4, "write", errno);
}

/* Opens for writing inside the group, as one request does. */
static int open_write(struct weight_group *g, const char *name,
		      struct weight_file **ret)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	int r = enter(g);

	if (r < 0)
		return r;
	r = weight_group_root(g, &root);
	if (r == 0)
		r = weight_file_create(root, name, 0644, &caller, &f);
	if (r == -EEXIST)
		r = weight_file_lookup(root, name, &f);
	if (r == 0)
		r = weight_file_open(f, O_RDWR, true);
	weight_group_leave(g);
	if (r == 0)
		*ret = take_ptr(f);
	return r;
}

static void step_write(struct player *p, struct weight_group *g)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	char *map = MAP_FAILED;
	int fd;

	if (open_write(g, "m.safetensors", &f) < 0)
		return;
	fd = reopen(f, O_RDWR);
	must(fd >= 0, "reopen", errno);
	write_letter(fd, (char)('a' + draw(p, 26)));
	/* Some go on writing through a mapping when all is closed. */
	if (draw(p, 3) == 0)
		map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			   0);
	(void)close(fd);
	weight_file_close(f, O_RDWR);
	if (map == MAP_FAILED)
		return;
	(void)usleep(draw(p, 8000));
	memset(map + HEAD_LEN, 'A' + (int)draw(p, 26), 8);
	(void)munmap(map, 4096);
}

/* Cuts the file through no handle and writes it anew. */
static void step_truncate(struct player *p, struct weight_group *g)
{
	const struct weight_setattr cut = {
		.set_size = true,
		.size = HEAD_LEN + draw(p, 9),
	};
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;

	if (enter(g) < 0)
		return;
	if (weight_group_root(g, &root) == 0 &&
	    weight_file_lookup(root, "m.safetensors", &f) == 0)
		(void)weight_file_setattr(f, &cut);
	weight_group_leave(g);
	step_write(p, g);
}

/* Moves a file that is open for reading to another staging tree, and closes. */
static void move_open(struct weight_group *from, struct weight_group *to)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *a = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *b = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	bool opened = false;

	if (weight_group_root(from, &a) == 0 &&
	    weight_group_root(to, &b) == 0 &&
	    weight_file_lookup(a, "m.safetensors", &f) == 0) {
		opened = weight_file_open(f, O_RDONLY, true) == 0;
		if (weight_file_rename(a, "m.safetensors", b, "m.safetensors",
				       0) == 0)
			atomic_fetch_add(&moved_total, 1);
	}
	if (opened)
		weight_file_close(f, O_RDONLY);
}

static void step_move(struct player *p, struct weight_group *g)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *to = NULL;
	char name[NAME_LEN];

	pick(p, name);
	if (weight_dir_staged(lineage, name, &to) < 0)
		(void)weight_dir_stage(lineage, name, 0755, &caller, &to,
				       &p->why);
	if (!to || to == g)
		return;
	/* In one order, so that nobody waits for each other. */
	if (enter(g < to ? g : to) < 0)
		return;
	if (enter(g < to ? to : g) == 0) {
		move_open(g, to);
		weight_group_leave(g < to ? to : g);
	}
	weight_group_leave(g < to ? g : to);
}

static void step_abort(struct player *p, struct weight_group *g,
		       const char *name)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;

	if (enter(g) < 0)
		return;
	if (weight_group_root(g, &root) == 0)
		(void)weight_file_unlink(root, "m.safetensors");
	weight_group_leave(g);
	(void)weight_dir_unstage(lineage, name, &p->why);
}

static void step_publish(struct player *p, struct weight_group *g,
			 const char *name)
{
	int r = weight_group_publish(g, lineage, name, false, NULL, &p->why);

	/* Busy, malformed, nothing in it, or somebody was faster. */
	must(r == 0 || r == -EBUSY || r == -EBADMSG || r == -ENOTEMPTY ||
		     r == -ECANCELED || r == -EAGAIN || r == -ENOENT ||
		     r == -EIO,
	     "publish", r);
	if (r == 0) {
		atomic_fetch_add(&published_total, 1);
		atomic_fetch_add(&newest, 1);
	}
}

/* ---- What is published ---- */

static void check_digest(struct weight_file *f, const char *bytes, size_t len)
{
	struct digest chunk, root, said;
	int r = weight_file_digest(f, &said);

	/* It may be removed while it is looked at. */
	if (r == -ENOENT || r == -ENODATA)
		return;
	must(r == 0, "digest", r);
	must(digest_of(bytes, len, &chunk) == 0 &&
		     digest_root(&chunk, 1, &root) == 0,
	     "hash", 0);
	must(digest_equal(&root, &said), "the manifest's digest", 0);
}

static void check_bytes(struct weight_file *f, unsigned generation)
{
	char bytes[HEAD_LEN + 9] = { 0 };
	int fd = reopen(f, O_RDONLY);
	char none = 0;
	ssize_t n;

	must(fd >= 0, "open what is published", errno);
	n = read(fd, bytes, sizeof(bytes));
	(void)close(fd);
	must(n == HEAD_LEN + 8, "size of what is published", (int)n);
	must(memcmp(bytes, head, HEAD_LEN) == 0, "its header", 0);
	if (!atomic_compare_exchange_strong(&seen[generation], &none,
					    bytes[HEAD_LEN]))
		must(none == bytes[HEAD_LEN], "what was seen before", none);
	check_digest(f, bytes, (size_t)n);
}

static void step_read(struct player *p, struct weight_group *g,
		      unsigned generation)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	char *map;
	int fd, r;

	if (weight_group_root(g, &root) < 0 ||
	    weight_file_lookup(root, "m.safetensors", &f) < 0)
		return;
	r = weight_file_open(f, O_RDONLY, draw(p, 2));
	if (r < 0) {
		must(r == -ENOENT || r == -EWOULDBLOCK, "open", r);
		return;
	}
	must(weight_group_enter(g, NULL) == -EROFS, "enter", 0);
	check_bytes(f, generation);
	fd = reopen(f, O_RDONLY);
	map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	(void)close(fd);
	weight_file_close(f, O_RDONLY);
	must(map != MAP_FAILED, "map", errno);
	r = weight_group_remove(g, 0, &p->why);
	must(r == -EBUSY || r == -ENOENT, "removal of what is mapped", r);
	must(map[HEAD_LEN] == atomic_load(&seen[generation]), "the map", 0);
	(void)munmap(map, 4096);
}

static void step_published(struct player *p, const char *name)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	int r;

	if (weight_dir_published(lineage, name, &g) < 0)
		return;
	if (draw(p, 4) > 0) {
		step_read(p, g, (unsigned)atoi(name));
		return;
	}
	r = weight_group_remove(g, 0, &p->why);
	must(r == 0 || r == -EBUSY || r == -ENOENT, "remove", r);
	if (r == 0)
		atomic_fetch_add(&removed_total, 1);
}

static void step_staged(struct player *p, const char *name)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	int r = weight_dir_staged(lineage, name, &g);

	if (r == -ENOENT)
		r = weight_dir_stage(lineage, name, 0755, &caller, &g, &p->why);
	if (r < 0)
		return;
	switch (draw(p, 12)) {
	case 0:
		step_abort(p, g, name);
		break;
	case 1:
	case 7:
	case 8:
		step_write(p, g);
		step_move(p, g);
		break;
	case 2:
		(void)weight_group_progress(g, &p->why);
		break;
	case 3:
	case 4:
		step_truncate(p, g);
		break;
	case 5:
	case 6:
		step_write(p, g);
		break;
	default:
		step_write(p, g);
		step_publish(p, g, name);
	}
}

static void *play(void *arg)
{
	struct player *p = arg;
	char name[NAME_LEN];

	for (int i = 0; i < STEPS; i++) {
		pick(p, name);
		if (draw(p, 2))
			step_published(p, name);
		else
			step_staged(p, name);
		buf_release(&p->why);
	}
	return NULL;
}

/* ---- The store ---- */

static void open_store(void)
{
	static const char *const parts[] = { "t", "n", "r", "main" };
	struct buf why = BUF_INIT;
	struct weight_dir *dir;
	int r = weight_store_open(path, &config, &store, &why);

	ck_assert_msg(r == 0, "%d: %s", r, why.data);
	dir = weight_dir_ref(weight_tree_root(store));
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		struct weight_dir *child = NULL;

		r = weight_dir_mkdir(dir, parts[i], 0755, &caller, &child,
				     &why);
		if (r == -EEXIST)
			r = weight_dir_lookup(dir, parts[i], &child);
		ck_assert_int_eq(r, 0);
		weight_dir_unref(dir);
		dir = child;
	}
	lineage = dir;
}

static void close_store(void)
{
	weight_dir_unref(take_ptr(lineage));
	weight_store_close(take_ptr(store));
}

static void setup(void)
{
	(void)snprintf(path, sizeof(path), "/var/tmp/weight-stress.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(path));
	config_init(&config);
	/* Short, so that an attempt that can't succeed ends soon. */
	config.publish_wait_ms = 100;
	open_store();
}

static void teardown(void)
{
	char command[PATH_LEN + 16];

	if (store)
		close_store();
	(void)snprintf(command, sizeof(command), "rm -rf '%s'", path);
	ck_assert_int_eq(system(command), 0);
}

static void play_all(void)
{
	struct player players[THREADS];

	for (unsigned i = 0; i < THREADS; i++) {
		players[i] = (struct player){ .seed = i + 1, .why = BUF_INIT };
		ck_assert_int_eq(pthread_create(&players[i].thread, NULL, play,
						&players[i]),
				 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_join(players[i].thread, NULL), 0);
}

START_TEST(whatever_happens_at_once_what_is_published_is_whole_and_stays)
{
	struct player p = { .seed = 1, .why = BUF_INIT };
	uint64_t at = 0;
	unsigned left = 0;

	play_all();
	(void)fprintf(stderr, "%u published, %u removed, %u moved\n",
		      atomic_load(&published_total),
		      atomic_load(&removed_total), atomic_load(&moved_total));
	ck_assert_uint_gt(atomic_load(&published_total), 10);
	ck_assert_uint_gt(atomic_load(&removed_total), 0);
	ck_assert_uint_gt(atomic_load(&moved_total), 0);
	close_store();
	open_store();
	while (weight_dir_next_generation(lineage, false, at, &at) == 0) {
		struct weight_group *g = NULL;
		char name[NAME_LEN];

		(void)snprintf(name, sizeof(name), "%u", (unsigned)at);
		ck_assert_int_eq(weight_dir_published(lineage, name, &g), 0);
		step_read(&p, g, (unsigned)at);
		weight_group_unref(g);
		left++;
	}
	buf_release(&p.why);
	ck_assert_uint_eq(left, atomic_load(&published_total) -
					atomic_load(&removed_total));
}
END_TEST

/* ---- What threads seldom hit, one at a time ---- */

static struct weight_group *filled(const char *name)
{
	struct player p = { .seed = 3, .why = BUF_INIT };
	struct weight_group *g = NULL;

	ck_assert_int_eq(
		weight_dir_stage(lineage, name, 0755, &caller, &g, &p.why), 0);
	step_write(&p, g);
	buf_release(&p.why);
	return g;
}

START_TEST(a_file_that_moves_takes_its_readers_along)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *a =
		filled("1");
	cleanup(weight_group_unref_cleanup) struct weight_group *b = NULL;
	struct buf why = BUF_INIT;
	uint64_t leases = 9;

	ck_assert_int_eq(
		weight_dir_stage(lineage, "2", 0755, &caller, &b, &why), 0);
	ck_assert_int_eq(enter(a), 0);
	ck_assert_int_eq(enter(b), 0);
	move_open(a, b);
	weight_group_leave(b);
	weight_group_leave(a);
	ck_assert_uint_eq(atomic_load(&moved_total), 1);
	ck_assert_int_eq(weight_dir_unstage(lineage, "1", &why), 0);
	ck_assert_int_eq(
		weight_group_publish(b, lineage, "2", false, NULL, &why), 0);
	/* The hold of the last close goes when nobody is seen to map it. */
	while (leases > 0) {
		ck_assert_int_eq(weight_group_leases(b, &leases), 0);
		(void)usleep(1000);
	}
	buf_release(&why);
}
END_TEST

/*
 * Who still refers to a removed file doesn't keep its inode, whose number the
 * next file gets.
 */
START_TEST(a_new_file_is_never_taken_for_a_removed_one)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *old =
		filled("1");
	cleanup(weight_group_unref_cleanup) struct weight_group *fresh = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	struct buf why = BUF_INIT;
	struct stat st;

	ck_assert_int_eq(weight_group_root(old, &root), 0);
	ck_assert_int_eq(weight_file_lookup(root, "m.safetensors", &f), 0);
	ck_assert_int_eq(
		weight_group_publish(old, lineage, "1", false, NULL, &why), 0);
	ck_assert_int_eq(weight_group_remove(old, 0, &why), 0);
	ck_assert_int_eq(weight_file_stat(f, &st), -ENOENT);
	weight_file_unref(take_ptr(root));
	fresh = filled("2");
	ck_assert_int_eq(weight_group_root(fresh, &root), 0);
	for (unsigned i = 0; i < 200; i++) {
		cleanup(weight_file_unref_cleanup) struct weight_file *new =
			NULL;
		cleanup(weight_group_unref_cleanup) struct weight_group *of =
			NULL;
		char name[NAME_LEN];

		(void)snprintf(name, sizeof(name), "%u", i);
		ck_assert_int_eq(enter(fresh), 0);
		ck_assert_int_eq(
			weight_file_create(root, name, 0644, &caller, &new), 0);
		weight_group_leave(fresh);
		of = weight_file_group(new);
		ck_assert_ptr_eq(of, fresh);
		ck_assert_int_eq(weight_file_stat(new, &st), 0);
		(void)usleep(100);
	}
	buf_release(&why);
}
END_TEST

START_TEST(a_lineage_with_generations_is_replaced_by_none)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		filled("1");
	cleanup(weight_dir_unref_cleanup) struct weight_dir *root =
		weight_dir_ref(weight_tree_root(store));
	struct weight_dir *empty = NULL;
	struct buf why = BUF_INIT;

	for (const char *part = "t"; part; part = *part == 't' ? "n" :
						  *part == 'n' ? "r" :
								 NULL) {
		struct weight_dir *child = NULL;

		ck_assert_int_eq(weight_dir_lookup(root, part, &child), 0);
		weight_dir_unref(root);
		root = child;
	}
	ck_assert_int_eq(
		weight_dir_mkdir(root, "other", 0755, &caller, &empty, &why),
		0);
	weight_dir_unref(empty);
	ck_assert_int_eq(
		weight_dir_rename(root, "other", root, "main", 0, &why),
		-ENOTEMPTY);
	ck_assert_int_eq(weight_dir_rename(root, "main", root, "new", 0, &why),
			 -EPERM);
	ck_assert_int_eq(weight_dir_rename(root, "other", root, "new", 0, &why),
			 0);
	buf_release(&why);
}
END_TEST

/* A kill while the store is being made leaves some of these. */
START_TEST(a_store_that_was_only_begun_is_made_whole)
{
	static const char *const later[] = { "meta", "groups", "tree" };
	char command[PATH_LEN + 32];

	close_store();
	for (size_t i = 0; i < ARRAY_LEN(later); i++) {
		for (size_t k = 0; k <= i; k++) {
			(void)snprintf(command, sizeof(command),
				       "rm -rf '%s/%s'", path, later[k]);
			ck_assert_int_eq(system(command), 0);
		}
		open_store();
		close_store();
	}
}
END_TEST

START_TEST(a_change_finds_out_that_the_file_was_published_meanwhile)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		filled("1");
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	const struct weight_setattr set = { .set_mode = true };
	struct buf why = BUF_INIT;

	ck_assert_int_eq(weight_group_root(g, &root), 0);
	ck_assert_int_eq(weight_file_lookup(root, "m.safetensors", &f), 0);
	ck_assert_int_eq(
		weight_group_publish(g, lineage, "1", false, NULL, &why), 0);
	ck_assert_int_eq(weight_file_open(f, O_WRONLY, true), -EROFS);
	ck_assert_int_eq(weight_file_open(f, O_RDONLY | O_TRUNC, true), -EROFS);
	ck_assert_int_eq(weight_file_setattr(f, &set), -EROFS);
	ck_assert_int_eq(weight_file_fallocate(f, 0, 0, 1), -EROFS);
	ck_assert_int_eq(weight_file_setxattr(f, "user.x", "", 0, 0), -EROFS);
	ck_assert_int_eq(weight_file_removexattr(f, "user.x"), -EROFS);
	ck_assert_int_eq(weight_file_link(f, root, "second"), -EROFS);
	buf_release(&why);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_tree_stress");
	TCase *t = tcase_create("stress");

	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(
		t,
		whatever_happens_at_once_what_is_published_is_whole_and_stays);
	tcase_add_test(t, a_file_that_moves_takes_its_readers_along);
	tcase_add_test(t, a_new_file_is_never_taken_for_a_removed_one);
	tcase_add_test(t, a_lineage_with_generations_is_replaced_by_none);
	tcase_add_test(t, a_store_that_was_only_begun_is_made_whole);
	tcase_add_test(
		t, a_change_finds_out_that_the_file_was_published_meanwhile);
	suite_add_tcase(s, t);
	return s;
}
