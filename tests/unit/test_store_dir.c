/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/payload.h"
#include "core/store_dir.h"
#include "core/util.h"
#include "suite.h"

static char path[64]; /* a private directory, removed after each test */
static int fd;

static void setup(void)
{
	(void)snprintf(path, sizeof(path), "/tmp/weightfs-dir-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(path));
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
}

static void teardown(void)
{
	bool empty = false;

	ck_assert_int_eq(payload_remove_batch(fd, 1000, &empty, NULL), 0);
	(void)close(fd);
	(void)rmdir(path);
}

/* A name that ends in "/" is a directory. */
static void make(const char *name)
{
	size_t len = strlen(name);
	char copy[64];

	(void)snprintf(copy, sizeof(copy), "%s", name);
	if (copy[len - 1] == '/') {
		copy[len - 1] = '\0';
		ck_assert_int_eq(mkdirat(fd, copy, 0700), 0);
	} else {
		ck_assert_int_eq(
			close(openat(fd, copy, O_CREAT | O_WRONLY, 0600)), 0);
	}
}

/* clang-format off */
static const struct {
	const char *names[6];
	bool empty, store, foreign, unfinished;
} lookings[] = {
	{ { NULL },                                 true, false, false, false },
	{ { "lost+found/" },                        true, false, false, false },
	{ { "lock" },                               false, true, false, false },
	{ { "lock", "tree/", "groups/" },           false, true, false, false },
	{ { "lock", "tree/", "groups/", "meta/", "aside/" },
						    false, true, false, false },
	{ { "meta/", "photo.jpg" },                 false, true, true, false },
	{ { "lock", "meta.new/" },                  false, true, false, true },
	{ { "groups/" },                            false, false, false, false },
	{ { "groups/", "tree/" },                   false, false, false, false },
	{ { "meta.new/", "groups/" },               false, false, false, true },
	{ { "photo.jpg" },                          false, false, true, false },
	{ { "lock", "photo.jpg" },                  false, false, true, false },
	{ { "metal/" },                             false, false, true, false },
};
/* clang-format on */

START_TEST(a_look_tells_stores_from_others)
{
	struct store_dir d;

	for (size_t i = 0; i < 6 && lookings[_i].names[i]; i++)
		make(lookings[_i].names[i]);
	ck_assert_int_eq(store_dir_look(fd, &d), 0);
	ck_assert_int_eq(d.empty, lookings[_i].empty);
	ck_assert_int_eq(d.foreign, lookings[_i].foreign);
	ck_assert_int_eq(d.unfinished, lookings[_i].unfinished);
	ck_assert_int_eq(store_dir_is_store(&d), lookings[_i].store);
}
END_TEST

START_TEST(only_what_is_in_it_makes_it_full)
{
	bool empty = false;

	ck_assert_int_eq(store_dir_is_empty(fd, "groups", &empty), -ENOENT);
	make("groups/");
	ck_assert_int_eq(store_dir_is_empty(fd, "groups", &empty), 0);
	ck_assert(empty);
	make("groups/lost+found/");
	ck_assert_int_eq(store_dir_is_empty(fd, "groups", &empty), 0);
	ck_assert(empty);
	make("groups/ab/");
	ck_assert_int_eq(store_dir_is_empty(fd, "groups", &empty), 0);
	ck_assert(!empty);
}
END_TEST

START_TEST(one_has_the_lock)
{
	auto_fd int mine = -1, other = -1;
	bool made = false;

	ck_assert_int_eq(store_dir_lock(fd, false, &made, &mine), -ENOENT);
	ck_assert_int_eq(store_dir_lock(fd, true, &made, &mine), 0);
	ck_assert(made);
	/* Also within one process, and after a wait. */
	ck_assert_int_eq(store_dir_lock(fd, true, &made, &other), -EBUSY);
	ck_assert_int_eq(store_dir_lock(fd, false, &made, &other), -EBUSY);
	(void)close(take_fd(&mine));
	ck_assert_int_eq(store_dir_lock(fd, true, &made, &other), 0);
	ck_assert(!made);
}
END_TEST

static void *wait_for_it(void *arg)
{
	bool made;
	int got = -1;

	ck_assert_int_eq(store_dir_lock(fd, true, &made, &got), 0);
	*(bool *)arg = made;
	return (void *)(intptr_t)got;
}

/* Who made the file and failed removes it: others don't lock what is gone. */
START_TEST(a_lock_that_is_removed_is_none)
{
	auto_fd int mine = -1, theirs = -1;
	struct stat locked, there;
	bool made, made_again = false;
	pthread_t waiter;
	void *got;

	ck_assert_int_eq(store_dir_lock(fd, true, &made, &mine), 0);
	ck_assert_int_eq(
		pthread_create(&waiter, NULL, wait_for_it, &made_again), 0);
	/* It has the file open by then, most of the time. */
	(void)usleep(100000);
	ck_assert_int_eq(unlinkat(fd, STORE_LOCK_NAME, 0), 0);
	(void)close(take_fd(&mine));
	ck_assert_int_eq(pthread_join(waiter, &got), 0);
	theirs = (int)(intptr_t)got;
	ck_assert_int_eq(fstat(theirs, &locked), 0);
	ck_assert_int_eq(fstatat(fd, STORE_LOCK_NAME, &there, 0), 0);
	ck_assert_uint_eq(locked.st_ino, there.st_ino);
	ck_assert(made_again);
}
END_TEST

START_TEST(what_was_left_is_removed)
{
	struct store_dir d;

	ck_assert_int_eq(store_dir_drop_unfinished(fd), 0);
	make("meta.new/");
	make("meta.new/data.mdb");
	make("meta.new/new/");
	make("meta.new/new/data.mdb");
	ck_assert_int_eq(store_dir_drop_unfinished(fd), 0);
	ck_assert_int_eq(store_dir_look(fd, &d), 0);
	ck_assert(d.empty);
	/* A link to somewhere else is not followed. */
	ck_assert_int_eq(symlinkat("/tmp", fd, "meta.new"), 0);
	ck_assert_int_lt(store_dir_drop_unfinished(fd), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("store_dir");
	TCase *tc = tcase_create("core");

	tcase_set_timeout(tc, 30);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, a_look_tells_stores_from_others, 0,
			    (int)ARRAY_LEN(lookings));
	tcase_add_test(tc, only_what_is_in_it_makes_it_full);
	tcase_add_test(tc, one_has_the_lock);
	tcase_add_test(tc, a_lock_that_is_removed_is_none);
	tcase_add_test(tc, what_was_left_is_removed);
	suite_add_tcase(s, tc);
	return s;
}
