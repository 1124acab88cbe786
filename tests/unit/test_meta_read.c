/* SPDX-License-Identifier: Apache-2.0 */
/* Databases that are only read: whatever is there, it stays as it is. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/meta.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

static char dir[64];  /* a private directory, removed after each test */
static char data[80]; /* the data file in it */

static void empty_dir(void)
{
	char path[400];
	struct dirent *e;
	DIR *d = opendir(dir);

	while (d && (e = readdir(d))) {
		(void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		if (unlink(path) < 0)
			(void)rmdir(path);
	}
	if (d)
		(void)closedir(d);
}

static void setup(void)
{
	(void)snprintf(dir, sizeof(dir), "/tmp/weightfs-meta-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	(void)snprintf(data, sizeof(data), "%s/data.mdb", dir);
}

static void teardown(void)
{
	empty_dir();
	(void)rmdir(dir);
}

static int body(struct meta_txn *txn, void *arg)
{
	const unsigned *count = arg;
	char value[200] = "v";
	int r = 0;

	for (unsigned i = 0; r == 0 && i < *count; i++)
		r = meta_put(txn, META_DB_REVISION, &i, sizeof(i), value,
			     sizeof(value));
	return r;
}

static void make(unsigned count)
{
	struct buf why = BUF_INIT;
	struct meta *m;

	ck_assert_int_eq(meta_open(dir, META_BYTES_MAX, &m, &why), 0);
	ck_assert_int_eq(meta_update(m, META_NORMAL, body, &count), 0);
	meta_close(m);
}

/* The error of opening it, which has a sentence. */
static int verdict(void)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct meta *m = NULL;
	int r = meta_open_read(dir, &m, &why);

	ck_assert((m != NULL) == (r == 0));
	ck_assert((why.len > 0) == (r < 0));
	meta_close(m);
	return r;
}

static uint64_t count_in(struct meta *m, enum meta_db db)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	uint64_t count;

	ck_assert_int_eq(meta_read_begin(m, &txn), 0);
	ck_assert_int_eq(meta_count(txn, db, &count), 0);
	return count;
}

/* Names, sizes and times of all that is there. */
static void facts(struct buf *ret)
{
	char path[400];
	struct dirent *e;
	struct stat st;
	DIR *d = opendir(dir);

	ck_assert_ptr_nonnull(d);
	while ((e = readdir(d))) {
		/* What happens above it is others' business. */
		if (strcmp(e->d_name, "..") == 0)
			continue;
		(void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		ck_assert_int_eq(lstat(path, &st), 0);
		(void)buf_printf(ret, "%s %llu %lld %lld.%09ld %lld\n",
				 e->d_name, (unsigned long long)st.st_ino,
				 (long long)st.st_size,
				 (long long)st.st_ctim.tv_sec,
				 st.st_ctim.tv_nsec, (long long)st.st_blocks);
	}
	(void)closedir(d);
}

START_TEST(reading_changes_nothing_on_the_disk)
{
	cleanup(buf_release) struct buf before = BUF_INIT;
	cleanup(buf_release) struct buf after = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	unsigned count = 1;
	struct meta *m;

	make(5000);
	/* Of a copy of the data file alone, too. */
	(void)snprintf(data, sizeof(data), "%s/lock.mdb", dir);
	ck_assert_int_eq(unlink(data), 0);
	facts(&before);
	ck_assert_int_eq(meta_open_read(dir, &m, &why), 0);
	ck_assert_uint_eq(count_in(m, META_DB_REVISION), 5000);
	ck_assert_int_eq(meta_check(m), 0);
	ck_assert_int_eq(meta_update(m, META_RESERVED, body, &count), -EROFS);
	meta_close(m);
	facts(&after);
	ck_assert_str_eq(before.data, after.data);
}
END_TEST

/* What `opens` says to a user who is neither root nor the owner. */
static int verdict_of_others(int (*opens)(void))
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		if (geteuid() == 0 && (setgid(65534) < 0 || setuid(65534) < 0))
			_exit(255);
		_exit(-opens());
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFEXITED(status));
	return -WEXITSTATUS(status);
}

static int write_verdict(void)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct meta *m = NULL;
	int r = meta_open(dir, META_BYTES_MAX, &m, &why);

	if (r == -EACCES && !strstr(why.data, "permission is denied"))
		return -EINVAL;
	meta_close(m);
	return r;
}

START_TEST(whoever_may_read_it_is_enough)
{
	char lock[80];

	if (geteuid() != 0)
		return; /* nobody could be the owner */
	make(10);
	(void)snprintf(lock, sizeof(lock), "%s/lock.mdb", dir);
	ck_assert_int_eq(unlink(lock), 0);
	ck_assert_int_eq(chmod(dir, 0755), 0);
	ck_assert_int_eq(chmod(data, 0444), 0);
	ck_assert_int_eq(verdict_of_others(verdict), 0);
	ck_assert_int_eq(verdict_of_others(write_verdict), -EACCES);
	ck_assert_int_eq(chmod(dir, 0777), 0);
	ck_assert_int_eq(verdict_of_others(write_verdict), -EACCES);
	ck_assert_int_eq(chmod(data, 0000), 0);
	ck_assert_int_eq(verdict_of_others(verdict), -EACCES);
}
END_TEST

START_TEST(what_is_not_there_is_not_made)
{
	ck_assert_int_eq(verdict(), -ENOENT);
	ck_assert_int_eq(access(data, F_OK), -1);
	ck_assert_int_eq(rmdir(dir), 0);
	ck_assert_int_eq(verdict(), -ENOENT);
	ck_assert_int_eq(access(dir, F_OK), -1);
}
END_TEST

static void damage_zeroed(void)
{
	struct stat st;

	ck_assert_int_eq(stat(data, &st), 0);
	ck_assert_int_eq(truncate(data, 0), 0);
	ck_assert_int_eq(truncate(data, st.st_size), 0);
}

static void damage_cut(void)
{
	ck_assert_int_eq(truncate(data, 200 << 10), 0);
}

static void damage_empty(void)
{
	ck_assert_int_eq(truncate(data, 0), 0);
}

static void damage_directory(void)
{
	ck_assert_int_eq(unlink(data), 0);
	ck_assert_int_eq(mkdir(data, 0700), 0);
}

/* A page in the middle that the tree can't do without. */
static void damage_page(void)
{
	char junk[4096];
	int fd = open(data, O_WRONLY | O_CLOEXEC);

	memset(junk, 0xa5, sizeof(junk));
	for (off_t page = 2; page < 60; page++)
		ck_assert_int_eq(pwrite(fd, junk, sizeof(junk), page * 4096),
				 sizeof(junk));
	(void)close(fd);
}

static void (*const damages[])(void) = {
	damage_zeroed, damage_cut, damage_empty, damage_directory, damage_page,
};

START_TEST(damage_is_refused_and_left_as_it_is)
{
	cleanup(buf_release) struct buf before = BUF_INIT;
	cleanup(buf_release) struct buf after = BUF_INIT;

	make(5000);
	damages[_i]();
	facts(&before);
	ck_assert_int_eq(verdict(), -EUCLEAN);
	facts(&after);
	ck_assert_str_eq(before.data, after.data);
}
END_TEST

/* As a version made it that did not know this map yet. */
static void remove_map(const char *name)
{
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi dbi;

	ck_assert_int_eq(mdb_env_create(&env), 0);
	ck_assert_int_eq(mdb_env_set_maxdbs(env, META_DB_COUNT), 0);
	ck_assert_int_eq(mdb_env_open(env, dir, 0, 0600), 0);
	ck_assert_int_eq(mdb_txn_begin(env, NULL, 0, &txn), 0);
	ck_assert_int_eq(mdb_dbi_open(txn, name, 0, &dbi), 0);
	ck_assert_int_eq(mdb_drop(txn, dbi, 1), 0);
	ck_assert_int_eq(mdb_txn_commit(txn), 0);
	mdb_env_close(env);
}

START_TEST(a_map_that_is_not_there_is_empty)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct meta_cursor *c = NULL;
	struct meta_bytes key, value;
	uint64_t count = 77;
	struct meta *m;

	make(10);
	remove_map("oplog");
	ck_assert_int_eq(meta_open_read(dir, &m, &why), 0);
	ck_assert_int_eq(meta_check(m), 0);
	ck_assert_int_eq(meta_read_begin(m, &txn), 0);
	ck_assert_int_eq(meta_get(txn, META_DB_OPLOG, "a", 1, &value), -ENOENT);
	ck_assert_int_eq(meta_count(txn, META_DB_OPLOG, &count), 0);
	ck_assert_uint_eq(count, 0);
	ck_assert_int_eq(meta_cursor_open(txn, META_DB_OPLOG, "p", 1, &c), 0);
	ck_assert_int_eq(meta_cursor_seek(c, NULL, 0, &key, &value), -ENOENT);
	ck_assert_int_eq(meta_cursor_next(c, &key, &value), -ENOENT);
	meta_cursor_close(c);
	meta_read_end(take_ptr(txn));
	ck_assert_uint_eq(count_in(m, META_DB_REVISION), 10);
	meta_close(m);
}
END_TEST

static int sweep_body(void)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct meta *m = NULL;
	int r = meta_open_read(dir, &m, &why);

	meta_close(m);
	return r;
}

/* What a child allocates is none of the sweep's business. */
static void disarm(void)
{
	(void)fault_disarm();
}

START_TEST(every_allocation_may_fail)
{
	ck_assert_int_eq(pthread_atfork(NULL, NULL, disarm), 0);
	make(10);
	fault_sweep(sweep_body);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("meta_read");
	TCase *tc = tcase_create("core");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, reading_changes_nothing_on_the_disk);
	tcase_add_test(tc, whoever_may_read_it_is_enough);
	tcase_add_test(tc, what_is_not_there_is_not_made);
	tcase_add_loop_test(tc, damage_is_refused_and_left_as_it_is, 0,
			    (int)ARRAY_LEN(damages));
	tcase_add_test(tc, a_map_that_is_not_there_is_empty);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
