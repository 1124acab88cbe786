/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/meta.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

static char root[64]; /* a private directory, removed after each test */
static char dir[80];  /* the database, below it */

static void path_in(char *ret, size_t size, const char *a, const char *b)
{
	ck_assert_int_lt(snprintf(ret, size, "%s/%s", a, b), (int)size);
}

static void remove_tree(const char *path)
{
	char child[512];
	struct dirent *e;
	DIR *d = opendir(path);

	if (!d) {
		(void)unlink(path);
		return;
	}
	while ((e = readdir(d))) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		(void)snprintf(child, sizeof(child), "%s/%s", path, e->d_name);
		remove_tree(child);
	}
	(void)closedir(d);
	(void)rmdir(path);
}

static void setup(void)
{
	(void)snprintf(root, sizeof(root), "/tmp/weightfs-meta-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(root));
	path_in(dir, sizeof(dir), root, "meta");
}

static void teardown(void)
{
	remove_tree(root);
}

static struct meta *must_open(void)
{
	struct buf why = BUF_INIT;
	struct meta *m = NULL;
	int r = meta_open(dir, META_BYTES_MAX, &m, &why);

	ck_assert_msg(r == 0, "open: %d, %s", r, why.data);
	ck_assert_uint_eq(why.len, 0);
	return m;
}

/* Expects a refusal with a sentence. */
static void must_refuse(int err)
{
	struct buf why = BUF_INIT;
	struct meta *untouched = NULL;
	int r = meta_open(dir, META_BYTES_MAX, &untouched, &why);

	ck_assert_msg(r == err, "got %d, %s", r, why.data);
	ck_assert_ptr_null(untouched);
	ck_assert_uint_gt(why.len, 0);
	ck_assert(strchr(why.data, '\n') == NULL);
	buf_release(&why);
}

struct put {
	enum meta_db db;
	const char *key;
	const char *value; /* NULL: delete */
	int result;        /* of the body after the put */
};

static int put_body(struct meta_txn *txn, void *arg)
{
	const struct put *p = arg;
	int r;

	if (p->value)
		r = meta_put(txn, p->db, p->key, strlen(p->key), p->value,
			     strlen(p->value));
	else
		r = meta_delete(txn, p->db, p->key, strlen(p->key));
	return r < 0 ? r : p->result;
}

static int put(struct meta *m, const char *key, const char *value)
{
	struct put p = { META_DB_REVISION, key, value, 0 };

	return meta_update(m, META_NORMAL, put_body, &p);
}

/* Whether key has that value; NULL: is absent. */
static bool holds(struct meta *m, const char *key, const char *value)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	struct meta_bytes b;
	int r;

	ck_assert_int_eq(meta_read_begin(m, &txn), 0);
	r = meta_get(txn, META_DB_REVISION, key, strlen(key), &b);
	if (!value)
		return r == -ENOENT;
	return r == 0 && b.len == strlen(value) &&
	       memcmp(b.data, value, b.len) == 0;
}

START_TEST(what_was_put_is_there_after_a_reopen)
{
	struct meta *m = must_open();
	struct stat st;
	char path[128];

	ck_assert_int_eq(put(m, "a", "1"), 0);
	ck_assert_int_eq(put(m, "b", ""), 0);
	ck_assert_int_eq(put(m, "a", "2"), 0);
	ck_assert(holds(m, "a", "2"));
	meta_close(m);

	m = must_open();
	ck_assert(holds(m, "a", "2"));
	ck_assert(holds(m, "b", ""));
	ck_assert_int_eq(put(m, "a", NULL), 0);
	ck_assert_int_eq(put(m, "a", NULL), -ENOENT);
	ck_assert(holds(m, "a", NULL));
	meta_close(m);

	path_in(path, sizeof(path), dir, "data.mdb");
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0600);
	ck_assert_int_eq(stat(dir, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0700);
	path_in(path, sizeof(path), dir, "new");
	ck_assert_int_eq(access(path, F_OK), -1);
}
END_TEST

START_TEST(each_map_is_its_own)
{
	struct meta *m = must_open();
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	struct meta_bytes b;
	uint64_t count;
	char value[2] = "a";

	for (unsigned i = 0; i < META_DB_COUNT; i++) {
		struct put p = { (enum meta_db)i, "key", value, 0 };

		value[0] = (char)('a' + i);
		ck_assert_int_eq(meta_update(m, META_NORMAL, put_body, &p), 0);
	}
	ck_assert_int_eq(meta_read_begin(m, &txn), 0);
	for (unsigned i = 0; i < META_DB_COUNT; i++) {
		ck_assert_int_eq(meta_get(txn, (enum meta_db)i, "key", 3, &b),
				 0);
		ck_assert_uint_eq(b.len, 1);
		ck_assert_int_eq(*(const char *)b.data, (int)('a' + i));
		ck_assert_int_eq(meta_count(txn, (enum meta_db)i, &count), 0);
		/* The state has the format's own entry. */
		ck_assert_uint_eq(count, i == META_DB_STATE ? 2 : 1);
	}
	meta_read_end(take_ptr(txn));
	meta_close(m);
}
END_TEST

START_TEST(a_body_that_fails_changes_nothing)
{
	struct meta *m = must_open();
	struct put p = { META_DB_REVISION, "a", "2", -EBUSY };

	ck_assert_int_eq(put(m, "a", "1"), 0);
	ck_assert_int_eq(meta_update(m, META_NORMAL, put_body, &p), -EBUSY);
	ck_assert(holds(m, "a", "1"));
	p.result = 7;
	ck_assert_int_eq(meta_update(m, META_NORMAL, put_body, &p), 7);
	ck_assert(holds(m, "a", "1"));
	meta_close(m);
}
END_TEST

START_TEST(keys_have_a_limit)
{
	struct meta *m = must_open();
	char key[META_KEY_MAX + 2];

	memset(key, 'k', sizeof(key));
	key[META_KEY_MAX + 1] = '\0';
	ck_assert_int_eq(put(m, key, "v"), -ENAMETOOLONG);
	ck_assert_int_eq(put(m, "", "v"), -ENAMETOOLONG);
	key[META_KEY_MAX] = '\0';
	ck_assert_int_eq(put(m, key, "v"), 0);
	ck_assert(holds(m, key, "v"));
	meta_close(m);
}
END_TEST

static void *put_two(void *m)
{
	return put(m, "a", "2") == 0 ? m : NULL;
}

START_TEST(a_reader_sees_the_state_of_its_beginning)
{
	struct meta *m = must_open();
	struct meta_txn *txn;
	struct meta_bytes b;
	pthread_t thread;
	void *done;

	ck_assert_int_eq(put(m, "a", "1"), 0);
	ck_assert_int_eq(meta_read_begin(m, &txn), 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, put_two, m), 0);
	ck_assert_int_eq(pthread_join(thread, &done), 0);
	ck_assert_ptr_eq(done, m);
	ck_assert_int_eq(meta_get(txn, META_DB_REVISION, "a", 1, &b), 0);
	ck_assert_int_eq(*(const char *)b.data, '1');
	meta_read_end(txn);
	ck_assert(holds(m, "a", "2"));
	meta_close(m);
}
END_TEST

/* clang-format off */
static const struct {
	const char *prefix;
	const char *from; /* NULL: the first */
	const char *found; /* joined by spaces */
} walks[] = {
	{ "",    NULL,   "a ab abc abd b c\xff d" },
	{ "",    "abc",  "abc abd b c\xff d" },
	{ "",    "abca", "abd b c\xff d" },
	{ "",    "e",    "" },
	{ "ab",  NULL,   "ab abc abd" },
	{ "ab",  "a",    "ab abc abd" },
	{ "ab",  "abc",  "abc abd" },
	{ "ab",  "abe",  "" },
	{ "ab",  "b",    "" },
	{ "c",   NULL,   "c\xff" },
	{ "x",   NULL,   "" },
};
/* clang-format on */

static void walk(struct meta_cursor *c, const char *from, struct buf *found)
{
	struct meta_bytes k, v;
	int r = meta_cursor_seek(c, from, from ? strlen(from) : 0, &k, &v);

	for (; r == 0; r = meta_cursor_next(c, &k, &v)) {
		if (found->len)
			(void)buf_append(found, " ", 1);
		(void)buf_append(found, k.data, k.len);
	}
	ck_assert_int_eq(r, -ENOENT);
}

START_TEST(a_cursor_walks_a_prefix_in_order)
{
	static const char *const keys[] = { "b",   "abc", "a",    "d",
					    "abd", "ab",  "c\xff" };
	struct meta *m = must_open();
	struct meta_txn *txn;
	struct meta_cursor *c;
	struct buf found = BUF_INIT;

	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		ck_assert_int_eq(put(m, keys[i], "v"), 0);
	ck_assert_int_eq(meta_read_begin(m, &txn), 0);
	ck_assert_int_eq(meta_cursor_open(txn, META_DB_REVISION,
					  walks[_i].prefix,
					  strlen(walks[_i].prefix), &c),
			 0);
	walk(c, walks[_i].from, &found);
	ck_assert_str_eq(found.data, walks[_i].found);
	meta_cursor_close(c);
	meta_read_end(txn);
	buf_release(&found);
	meta_close(m);
}
END_TEST

/* ---- Growth ---- */

#define BIG_VALUE_LEN ((size_t)64 << 10)
#define BATCH 40

struct batch {
	unsigned from;
	unsigned count;
	size_t value_len;
	unsigned runs;
};

static int batch_body(struct meta_txn *txn, void *arg)
{
	struct batch *b = arg;
	auto_free char *value = malloc(b->value_len);
	int r = 0;

	b->runs++;
	memset(value, 'v', b->value_len);
	for (unsigned i = b->from; r == 0 && i < b->from + b->count; i++) {
		char key[16];
		int n = snprintf(key, sizeof(key), "%08u", i);

		r = meta_put(txn, META_DB_REVISION, key, (size_t)n, value,
			     b->value_len);
	}
	return r;
}

static uint64_t count_of(struct meta *m)
{
	struct meta_txn *txn;
	uint64_t count;

	ck_assert_int_eq(meta_read_begin(m, &txn), 0);
	ck_assert_int_eq(meta_count(txn, META_DB_REVISION, &count), 0);
	meta_read_end(txn);
	return count;
}

struct reader {
	struct meta *m;
	atomic_bool *stop;
	unsigned long rounds;
};

/* What it counts by walking is what the map says it holds. */
static void *reader_run(void *arg)
{
	struct reader *rd = arg;

	while (!atomic_load(rd->stop)) {
		struct meta_bytes k, v;
		struct meta_txn *txn;
		struct meta_cursor *c;
		uint64_t count, seen = 0;
		int r;

		if (meta_read_begin(rd->m, &txn) < 0)
			abort();
		if (meta_count(txn, META_DB_REVISION, &count) < 0 ||
		    meta_cursor_open(txn, META_DB_REVISION, NULL, 0, &c) < 0)
			abort();
		for (r = meta_cursor_seek(c, NULL, 0, &k, &v); r == 0;
		     r = meta_cursor_next(c, &k, &v)) {
			if (((const char *)v.data)[v.len - 1] != 'v')
				abort();
			seen++;
		}
		meta_cursor_close(c);
		meta_read_end(txn);
		if (seen != count)
			abort();
		rd->rounds++;
	}
	return NULL;
}

START_TEST(the_map_grows_under_readers)
{
	struct reader readers[4];
	pthread_t threads[ARRAY_LEN(readers)];
	struct meta *m = must_open();
	struct batch b = { .count = BATCH, .value_len = BIG_VALUE_LEN };
	struct meta_space space;
	atomic_bool stop = false;
	unsigned batches = 0;

	for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
		readers[i] = (struct reader){ .m = m, .stop = &stop };
		ck_assert_int_eq(pthread_create(&threads[i], NULL, reader_run,
						&readers[i]),
				 0);
	}
	for (; batches < 60; batches++, b.from += BATCH)
		ck_assert_int_eq(meta_update(m, META_NORMAL, batch_body, &b),
				 0);
	atomic_store(&stop, true);
	for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
		ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
		ck_assert_uint_gt(readers[i].rounds, 0);
	}
	meta_space_get(m, &space);
	ck_assert_uint_gt(space.used_bytes, 2 * META_BYTES_START);
	ck_assert_uint_gt(space.mapped_bytes, 2 * META_BYTES_START);
	ck_assert_uint_gt(b.runs, batches); /* some ran again */
	ck_assert_uint_eq(count_of(m), batches * BATCH);
	meta_close(m);

	m = must_open();
	ck_assert_uint_eq(count_of(m), batches * BATCH);
	ck_assert_int_eq(meta_check(m), 0);
	ck_assert_int_eq(put(m, "a", "1"), 0);
	meta_close(m);
}
END_TEST

static int delete_all_body(struct meta_txn *txn, void *arg)
{
	struct meta_cursor *c;
	struct meta_bytes k, v;
	char key[META_KEY_MAX];
	unsigned *left = arg;
	int r;

	r = meta_cursor_open(txn, META_DB_REVISION, NULL, 0, &c);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < 10 && r == 0; i++) {
		r = meta_cursor_seek(c, NULL, 0, &k, &v);
		if (r == 0) {
			memcpy(key, k.data, k.len);
			r = meta_delete(txn, META_DB_REVISION, key, k.len);
		}
	}
	*left = r == 0;
	meta_cursor_close(c);
	return r == -ENOENT ? 0 : r;
}

/* Ten at a time, as a store that makes room does. */
static void delete_all(struct meta *m)
{
	unsigned left = 1;

	while (left)
		ck_assert_int_eq(
			meta_update(m, META_RESERVED, delete_all_body, &left),
			0);
	ck_assert_uint_eq(count_of(m), 0);
}

START_TEST(the_limit_leaves_room_for_removal)
{
	struct batch b = { .count = 1, .value_len = BIG_VALUE_LEN };
	struct buf why = BUF_INIT;
	struct meta *m;
	int r;

	ck_assert_int_eq(meta_open(dir, (size_t)4 << 20, &m, &why), 0);
	while ((r = meta_update(m, META_NORMAL, batch_body, &b)) == 0)
		b.from++;
	ck_assert_int_eq(r, -ENOSPC);
	ck_assert_uint_gt(b.from, 40);
	ck_assert_uint_eq(count_of(m), b.from);
	delete_all(m);
	/* And there is room again. */
	ck_assert_int_eq(meta_update(m, META_NORMAL, batch_body, &b), 0);
	meta_close(m);
}
END_TEST

START_TEST(an_address_space_that_is_small_is_enough)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	(void)fprintf(stderr, "# skipped under a sanitizer\n");
#else
	struct rlimit limit = { 1000000 << 10, 1000000 << 10 };
	struct batch b = { .count = BATCH, .value_len = BIG_VALUE_LEN };
	struct meta *m;

	ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
	m = must_open();
	for (unsigned i = 0; i < 60; i++, b.from += BATCH)
		ck_assert_int_eq(meta_update(m, META_NORMAL, batch_body, &b),
				 0);
	ck_assert_uint_eq(count_of(m), 60 * BATCH);

	/* When there is no more, it says so and goes on with what it has. */
	limit.rlim_cur = 1 << 20;
	ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
	b.count = 1;
	b.value_len = (size_t)1 << 20;
	while (meta_update(m, META_NORMAL, batch_body, &b) == 0)
		b.from++;
	ck_assert_int_eq(meta_update(m, META_NORMAL, batch_body, &b), -ENOMEM);
	ck_assert_uint_eq(count_of(m), b.from);
	meta_close(m);
#endif
}
END_TEST

/* ---- A full disk ---- */

/* Puts a small disk at `root`. False where that isn't permitted. */
static bool small_disk(const char *size)
{
	char options[64];

	(void)snprintf(options, sizeof(options), "size=%s", size);
	if (unshare(CLONE_NEWNS) == 0 &&
	    mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	    mount("none", root, "tmpfs", 0, options) == 0)
		return true;
	(void)fprintf(stderr, "# skipped: mounting isn't permitted\n");
	return false;
}

/* Takes all that the disk has left. */
static void fill_disk(void)
{
	char path[128];
	char block[4096] = { 1 };
	int fd;

	path_in(path, sizeof(path), root, "filler");
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	while (write(fd, block, sizeof(block)) > 0)
		;
	ck_assert_int_eq(errno, ENOSPC);
	(void)close(fd);
}

START_TEST(a_full_disk_refuses_and_lets_removal_go_on)
{
	struct batch b = { .count = 1, .value_len = 1000 };
	struct meta *m;
	char path[128];
	int r = 0;

	if (!small_disk(_i ? "64m" : "8m"))
		return;
	m = must_open();
	for (; r == 0 && b.from < 500; b.from++)
		r = meta_update(m, META_NORMAL, batch_body, &b);
	ck_assert_int_eq(r, 0);
	fill_disk();
	while ((r = meta_update(m, META_NORMAL, batch_body, &b)) == 0)
		b.from++;
	ck_assert_int_eq(r, -ENOSPC);
	ck_assert_uint_eq(count_of(m), b.from);
	meta_close(m);

	/* It opens, too, and everything can go. */
	m = must_open();
	ck_assert_uint_eq(count_of(m), b.from);
	ck_assert_int_eq(meta_update(m, META_NORMAL, batch_body, &b), -ENOSPC);
	ck_assert_int_eq(meta_check(m), 0);
	delete_all(m);

	path_in(path, sizeof(path), root, "filler");
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(meta_update(m, META_NORMAL, batch_body, &b), 0);
	meta_close(m);
	(void)umount2(root, MNT_DETACH);
}
END_TEST

START_TEST(a_transaction_larger_than_the_disk_leaves_no_trace)
{
	struct batch b = { .count = 300, .value_len = BIG_VALUE_LEN };
	struct meta *m;

	if (!small_disk("8m"))
		return;
	m = must_open();
	ck_assert_int_eq(put(m, "a", "1"), 0);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(meta_update(m, META_NORMAL, batch_body, &b),
				 -ENOSPC);
	ck_assert(holds(m, "a", "1"));
	ck_assert_uint_eq(count_of(m), 1);
	/* The room it took is free again. */
	b.count = 20;
	ck_assert_int_eq(meta_update(m, META_NORMAL, batch_body, &b), 0);
	ck_assert_int_eq(meta_check(m), 0);
	meta_close(m);
	(void)umount2(root, MNT_DETACH);
}
END_TEST

START_TEST(no_room_to_begin_leaves_nothing)
{
	char path[128];

	if (!small_disk("256k"))
		return;
	ck_assert_int_eq(mkdir(dir, 0700), 0);
	fill_disk();
	must_refuse(-ENOSPC);
	path_in(path, sizeof(path), dir, "data.mdb");
	ck_assert_int_eq(access(path, F_OK), -1);
	path_in(path, sizeof(path), dir, "new");
	ck_assert_int_eq(access(path, F_OK), -1);
	path_in(path, sizeof(path), root, "filler");
	ck_assert_int_eq(unlink(path), 0);
	meta_close(must_open());
	(void)umount2(root, MNT_DETACH);
}
END_TEST

/* ---- Damage ---- */

#define FILL_KEYS 4000

static void make_filled(void)
{
	struct batch b = { .count = FILL_KEYS, .value_len = 100 };
	struct meta *m = must_open();

	ck_assert_int_eq(meta_update(m, META_NORMAL, batch_body, &b), 0);
	meta_close(m);
}

static void overwrite(const char *path, const void *bytes, size_t len, off_t at)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pwrite(fd, bytes, len, at), (ssize_t)len);
	(void)close(fd);
}

static void damage_header(const char *path)
{
	char zeros[8192] = { 0 };

	overwrite(path, zeros, sizeof(zeros), 0);
}

static void damage_all(const char *path)
{
	struct stat st;

	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq(truncate(path, 0), 0);
	ck_assert_int_eq(truncate(path, st.st_size), 0);
}

static void damage_empty(const char *path)
{
	ck_assert_int_eq(truncate(path, 0), 0);
}

static void damage_one_page(const char *path)
{
	ck_assert_int_eq(truncate(path, 4096), 0);
}

static void damage_half(const char *path)
{
	ck_assert_int_eq(truncate(path, 200 << 10), 0);
}

static void damage_directory(const char *path)
{
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(mkdir(path, 0700), 0);
}

static void damage_symlink(const char *path)
{
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(symlink("/dev/null", path), 0);
}

static void damage_text(const char *path)
{
	static const char text[] = "these are the notes of somebody";

	ck_assert_int_eq(truncate(path, 0), 0);
	overwrite(path, text, sizeof(text), 0);
}

/* clang-format off */
static const struct {
	const char *what;
	void (*damage)(const char *path);
} damages[] = {
	{ "header zeroed",     damage_header },
	{ "all zeroed",        damage_all },
	{ "empty",             damage_empty },
	{ "cut to one page",   damage_one_page },
	{ "cut in the middle", damage_half },
	{ "a directory",       damage_directory },
	{ "a symlink",         damage_symlink },
	{ "some text",         damage_text },
};
/* clang-format on */

START_TEST(a_damaged_file_is_refused_and_left_as_it_is)
{
	struct stat before, after;
	char path[128];

	make_filled();
	path_in(path, sizeof(path), dir, "data.mdb");
	damages[_i].damage(path);
	ck_assert_int_eq(lstat(path, &before), 0);
	must_refuse(-EUCLEAN);
	ck_assert_int_eq(lstat(path, &after), 0);
	ck_assert_msg(before.st_size == after.st_size &&
			      before.st_ino == after.st_ino &&
			      before.st_mtim.tv_sec == after.st_mtim.tv_sec &&
			      before.st_mtim.tv_nsec == after.st_mtim.tv_nsec,
		      "%s: changed", damages[_i].what);
}
END_TEST

START_TEST(a_directory_that_cannot_be_is_refused)
{
	ck_assert_int_eq(mknod(dir, S_IFREG | 0600, 0), 0);
	must_refuse(-EUCLEAN);
	path_in(dir, sizeof(dir), root, "absent/meta");
	must_refuse(-ENOENT);
}
END_TEST

/* Changes the format's entry, as another program or version would have it. */
static void put_format(const char *value)
{
	struct put p = { META_DB_STATE, "format", value, 0 };
	struct meta *m = must_open();

	ck_assert_int_eq(meta_update(m, META_NORMAL, put_body, &p), 0);
	meta_close(m);
}

/* clang-format off */
static const struct {
	const char *format; /* NULL: none */
	int err;
} formats[] = {
	{ "weightfs-metadata 2",  -EPROTONOSUPPORT },
	{ "weightfs-metadata 10", -EPROTONOSUPPORT },
	{ "weightfs-metadata ",   -EUCLEAN },
	{ "of another program",   -EUCLEAN },
	{ NULL,                   -EUCLEAN },
};
/* clang-format on */

START_TEST(a_newer_or_foreign_format_is_refused)
{
	put_format(formats[_i].format);
	must_refuse(formats[_i].err);
}
END_TEST

/* Each page but the two headers; not all of them are in use. */
START_TEST(a_zeroed_or_garbled_page_is_refused_or_harmless)
{
	char path[128], junk[4096];
	unsigned refused = 0;
	struct stat st;

	memset(junk, _i ? 0xa5 : 0, sizeof(junk));
	make_filled();
	path_in(path, sizeof(path), dir, "data.mdb");
	ck_assert_int_eq(stat(path, &st), 0);
	for (off_t page = 2; page < 140; page += 3) {
		char saved[4096];
		struct buf why = BUF_INIT;
		struct meta *m = NULL;
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		int r;

		ck_assert_int_eq(pread(fd, saved, sizeof(saved), page * 4096),
				 sizeof(saved));
		(void)close(fd);
		overwrite(path, junk, sizeof(junk), page * 4096);
		r = meta_open(dir, META_BYTES_MAX, &m, &why);
		if (r == 0) {
			ck_assert_uint_eq(count_of(m), FILL_KEYS);
			meta_close(m);
		} else {
			ck_assert_int_eq(r, -EUCLEAN);
			ck_assert_uint_gt(why.len, 0);
			refused++;
		}
		buf_release(&why);
		overwrite(path, saved, sizeof(saved), page * 4096);
	}
	ck_assert_uint_gt(refused, 30);
	meta_close(must_open());
}
END_TEST

START_TEST(what_a_start_left_half_made_is_cleared)
{
	char path[128];

	ck_assert_int_eq(mkdir(dir, 0700), 0);
	path_in(path, sizeof(path), dir, "new");
	ck_assert_int_eq(mkdir(path, 0700), 0);
	path_in(path, sizeof(path), dir, "new/data.mdb");
	ck_assert_int_eq(close(open(path, O_CREAT | O_WRONLY, 0600)), 0);
	meta_close(must_open());
	path_in(path, sizeof(path), dir, "new");
	ck_assert_int_eq(access(path, F_OK), -1);
}
END_TEST

/* ---- Death in the middle ---- */

static int die_body(struct meta_txn *txn, void *arg)
{
	(void)arg;
	(void)meta_put(txn, META_DB_REVISION, "a", 1, "2", 1);
	_exit(0);
}

START_TEST(a_death_in_an_update_changes_nothing)
{
	struct meta *m = must_open();
	pid_t child;
	int status;

	ck_assert_int_eq(put(m, "a", "1"), 0);
	meta_close(m);
	child = fork();
	if (child == 0) {
		m = must_open();
		(void)meta_update(m, META_NORMAL, die_body, NULL);
		_exit(1);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	m = must_open();
	ck_assert(holds(m, "a", "1"));
	ck_assert_int_eq(put(m, "a", "3"), 0);
	meta_close(m);
}
END_TEST

/* Writes one number to two maps, over and over. */
static int pair_body(struct meta_txn *txn, void *arg)
{
	const uint64_t *n = arg;
	int r = meta_put(txn, META_DB_LEASE, "n", 1, n, sizeof(*n));

	return r < 0 ? r :
		       meta_put(txn, META_DB_LINEAGE, "n", 1, n, sizeof(*n));
}

static void count_until_killed(int acknowledge)
{
	struct meta *m = must_open();

	for (uint64_t n = 1;; n++) {
		if (meta_update(m, META_NORMAL, pair_body, &n) < 0)
			_exit(1);
		if (write(acknowledge, &n, sizeof(n)) != sizeof(n))
			_exit(1);
	}
}

START_TEST(a_kill_at_any_instant_keeps_what_was_acknowledged)
{
	for (unsigned round = 0; round < 10; round++) {
		uint64_t n, last = 0, a, b;
		struct meta_bytes v;
		struct meta_txn *txn;
		struct meta *m;
		int fds[2], status;
		pid_t child;

		ck_assert_int_eq(pipe(fds), 0);
		child = fork();
		if (child == 0)
			count_until_killed(fds[1]);
		(void)close(fds[1]);
		for (unsigned i = 0; i <= round * 3; i++)
			ck_assert_int_eq(read(fds[0], &last, sizeof(last)),
					 sizeof(last));
		ck_assert_int_eq(kill(child, SIGKILL), 0);
		ck_assert_int_eq(waitpid(child, &status, 0), child);
		while (read(fds[0], &n, sizeof(n)) == sizeof(n))
			last = n;
		(void)close(fds[0]);

		m = must_open();
		ck_assert_int_eq(meta_read_begin(m, &txn), 0);
		ck_assert_int_eq(meta_get(txn, META_DB_LEASE, "n", 1, &v), 0);
		memcpy(&a, v.data, sizeof(a));
		ck_assert_int_eq(meta_get(txn, META_DB_LINEAGE, "n", 1, &v), 0);
		memcpy(&b, v.data, sizeof(b));
		ck_assert_uint_eq(a, b);
		ck_assert(a == last || a == last + 1);
		meta_read_end(txn);
		meta_close(m);
	}
}
END_TEST

static int open_put_and_read(void)
{
	cleanup(meta_close_cleanup) struct meta *m = NULL;
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	struct buf why = BUF_INIT;
	struct meta_bytes k, v;
	int r;

	r = meta_open(dir, META_BYTES_MAX, &m, &why);
	buf_release(&why);
	if (r < 0)
		return r;
	r = put(m, "a", "1");
	if (r < 0)
		return r;
	r = meta_read_begin(m, &txn);
	if (r < 0)
		return r;
	r = meta_cursor_open(txn, META_DB_REVISION, NULL, 0, &c);
	if (r < 0)
		return r;
	r = meta_cursor_seek(c, NULL, 0, &k, &v);
	meta_cursor_close(take_ptr(c));
	return r;
}

/* The first run also makes the database, and clears it on failure. */
static int make_put_and_read(void)
{
	remove_tree(dir);
	return open_put_and_read();
}

/* What a child allocates is none of the sweep's business. */
static void disarm(void)
{
	(void)fault_disarm();
}

START_TEST(every_allocation_may_fail)
{
	ck_assert_int_eq(pthread_atfork(NULL, NULL, disarm), 0);
	fault_sweep(make_put_and_read);
	fault_sweep(open_put_and_read);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("meta");
	TCase *tc = tcase_create("meta");

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, what_was_put_is_there_after_a_reopen);
	tcase_add_test(tc, each_map_is_its_own);
	tcase_add_test(tc, a_body_that_fails_changes_nothing);
	tcase_add_test(tc, keys_have_a_limit);
	tcase_add_test(tc, a_reader_sees_the_state_of_its_beginning);
	tcase_add_loop_test(tc, a_cursor_walks_a_prefix_in_order, 0,
			    ARRAY_LEN(walks));
	tcase_add_test(tc, the_map_grows_under_readers);
	tcase_add_test(tc, the_limit_leaves_room_for_removal);
	tcase_add_test(tc, an_address_space_that_is_small_is_enough);
	tcase_add_loop_test(tc, a_full_disk_refuses_and_lets_removal_go_on, 0,
			    2);
	tcase_add_test(tc, a_transaction_larger_than_the_disk_leaves_no_trace);
	tcase_add_test(tc, no_room_to_begin_leaves_nothing);
	tcase_add_loop_test(tc, a_damaged_file_is_refused_and_left_as_it_is, 0,
			    ARRAY_LEN(damages));
	tcase_add_test(tc, a_directory_that_cannot_be_is_refused);
	tcase_add_loop_test(tc, a_newer_or_foreign_format_is_refused, 0,
			    ARRAY_LEN(formats));
	tcase_add_loop_test(tc, a_zeroed_or_garbled_page_is_refused_or_harmless,
			    0, 2);
	tcase_add_test(tc, what_a_start_left_half_made_is_cleared);
	tcase_add_test(tc, a_death_in_an_update_changes_nothing);
	tcase_add_test(tc, a_kill_at_any_instant_keeps_what_was_acknowledged);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
