/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/clock.h"
#include "core/holders.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

#define FILE_BYTES 8192

static char top[64];
static int file = -1; /* O_PATH, so that it doesn't count itself */

static void make_file(void)
{
	char here[4096], path[4096 + 128];
	auto_fd int fd = -1;

	ck_assert_int_eq(holders_init(), 0);
	(void)snprintf(top, sizeof(top), "holders-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(top));
	ck_assert_ptr_nonnull(getcwd(here, sizeof(here)));
	(void)snprintf(path, sizeof(path), "%s/file", top);
	fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, FILE_BYTES), 0);
	file = open(path, O_PATH | O_CLOEXEC);
	ck_assert_int_ge(file, 0);
}

static void remove_file(void)
{
	char path[128];

	(void)close(file);
	(void)snprintf(path, sizeof(path), "%s/file", top);
	(void)unlink(path);
	(void)rmdir(top);
}

/* --- A child that holds the file in one way --- */

/* clang-format off */
static const struct holding {
	const char *how;
	int flags; /* of open; -1: doesn't */
	int prot;  /* of mmap; 0: doesn't */
	int share;
	bool closes; /* the descriptor, after mapping */
	int writer, any; /* what the probes say */
} holdings[] = {
	{ "nothing",               -1,       0,                      0,           false, 0, 0 },
	{ "open for reading",      O_RDONLY, 0,                      0,           false, 0, 1 },
	{ "open for writing",      O_WRONLY, 0,                      0,           false, 1, 1 },
	{ "open for both",         O_RDWR,   0,                      0,           false, 1, 1 },
	{ "O_PATH",                O_PATH,   0,                      0,           false, 0, 0 },
	{ "mapped, closed",        O_RDONLY, PROT_READ,              MAP_SHARED,  true,  0, 1 },
	{ "mapped private",        O_RDONLY, PROT_READ | PROT_WRITE, MAP_PRIVATE, true,  0, 1 },
	{ "mapped for writing",    O_RDWR,   PROT_READ | PROT_WRITE, MAP_SHARED,  true,  1, 1 },
};
/* clang-format on */

static void hold(const struct holding *h)
{
	char path[128];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/file", top);
	if (h->flags < 0)
		return;
	fd = open(path, h->flags);
	if (fd < 0)
		_exit(1);
	if (h->prot &&
	    mmap(NULL, FILE_BYTES, h->prot, h->share, fd, 0) == MAP_FAILED)
		_exit(1);
	if (h->closes)
		(void)close(fd);
}

/* Returns the pid once the child holds the file. */
static pid_t start_holder(const struct holding *h)
{
	int ready[2];
	pid_t pid;
	char c;

	ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		hold(h);
		if (write(ready[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			(void)pause();
	}
	(void)close(ready[1]);
	ck_assert_int_eq(read(ready[0], &c, 1), 1);
	(void)close(ready[0]);
	return pid;
}

static void stop_holder(pid_t pid)
{
	(void)kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

START_TEST(the_probes_see_who_holds_the_file)
{
	const struct holding *h = &holdings[_i];
	pid_t pid = start_holder(h);
	int writer = holders_writer(file);
	int any = holders_any(file);

	stop_holder(pid);
	ck_assert_msg(writer == h->writer, "%s: writer %d", h->how, writer);
	ck_assert_msg(any == h->any, "%s: any %d", h->how, any);
	ck_assert_int_eq(holders_writer(file), 0);
	ck_assert_int_eq(holders_any(file), 0);
}
END_TEST

START_TEST(the_own_descriptor_and_its_mappings_can_be_left_out)
{
	char path[128];
	auto_fd int fd = -1;
	void *map;
	pid_t pid;

	(void)snprintf(path, sizeof(path), "%s/file", top);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(map, MAP_FAILED);
	ck_assert_int_eq(holders_any(file), 1);
	ck_assert_int_eq(holders_any_but(fd), 0);
	pid = start_holder(&holdings[1]);
	ck_assert_int_eq(holders_any_but(fd), 1);
	stop_holder(pid);
	(void)munmap(map, FILE_BYTES);
}
END_TEST

START_TEST(settling_waits_for_the_last_user)
{
	pid_t pid = start_holder(&holdings[3]);
	uint64_t now = clock_monotonic_ms();

	ck_assert_int_eq(holders_writer_settle(file, now + 30), 1);
	ck_assert_uint_ge(clock_monotonic_ms(), now + 30);
	(void)kill(pid, SIGKILL); /* and not waited for */
	now = clock_monotonic_ms();
	ck_assert_int_eq(holders_writer_settle(file, now + 10000), 0);
	ck_assert_int_eq(holders_any_settle(file, now + 10000), 0);
	stop_holder(pid);
}
END_TEST

START_TEST(what_has_no_leases_says_so)
{
	/* The kernel answers for a directory as for a filesystem without. */
	auto_fd int fd = open(top, O_PATH | O_DIRECTORY | O_CLOEXEC);

	ck_assert_int_eq(holders_any(fd), -EOPNOTSUPP);
	ck_assert_int_eq(holders_writer(fd), -EOPNOTSUPP);
	ck_assert_int_eq(holders_any(-1), -ENOENT);
}
END_TEST

START_TEST(breaking_a_lease_does_not_kill_us)
{
	char path[128];
	auto_fd int fd = -1;
	pid_t pid;

	(void)snprintf(path, sizeof(path), "%s/file", top);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(fcntl(fd, F_SETLEASE, F_RDLCK), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		_exit(open(path, O_WRONLY | O_NONBLOCK) < 0 &&
				      errno == EWOULDBLOCK ?
			      0 :
			      1);
	ck_assert_int_eq(waitpid(pid, &(int){ 0 }, 0), pid);
	ck_assert_int_eq(fcntl(fd, F_SETLEASE, F_UNLCK), 0);
}
END_TEST

/* --- Who --- */

static void here(char path[4096])
{
	ck_assert_ptr_nonnull(getcwd(path, 4096));
}

START_TEST(holders_are_named_with_file_and_program)
{
	const struct holding *h = &holdings[_i];
	pid_t pid = start_holder(h);
	struct buf all = BUF_INIT, writers = BUF_INIT;
	char mountpoint[4096], want[8192];
	int n_all, n_writers;

	here(mountpoint);
	n_all = holders_describe(mountpoint, top, false, &all);
	n_writers = holders_describe(mountpoint, top, true, &writers);
	stop_holder(pid);
	ck_assert_int_eq(n_all, h->any);
	ck_assert_int_eq(n_writers, h->writer);
	(void)snprintf(want, sizeof(want), "%s/%s/file by ", mountpoint, top);
	ck_assert(n_all == 0 || strstr(all.data, want) == all.data);
	(void)snprintf(want, sizeof(want), "(pid %d)", (int)pid);
	ck_assert(n_all == 0 || strstr(all.data, want) != NULL);
	ck_assert(n_writers == 0 || strstr(writers.data, want) != NULL);
	buf_release(&all);
	buf_release(&writers);
}
END_TEST

START_TEST(an_unlinked_file_is_found_and_a_longer_name_is_not)
{
	pid_t pid = start_holder(&holdings[5]);
	struct buf text = BUF_INIT;
	char mountpoint[4096], path[128];

	here(mountpoint);
	(void)snprintf(path, sizeof(path), "%s/file", top);
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(holders_describe(mountpoint, path, false, &text), 1);
	ck_assert_ptr_null(strstr(text.data, "deleted"));
	path[strlen(path) - 1] = '\0';
	ck_assert_int_eq(holders_describe(mountpoint, path, false, &text), 0);
	stop_holder(pid);
	buf_release(&text);
}
END_TEST

START_TEST(files_of_a_detached_mount_are_found)
{
	struct buf text = BUF_INIT;
	char mountpoint[4096], dir[4096 + 128];
	pid_t pid;
	int fd, n;

	here(mountpoint);
	if (mount("none", top, "tmpfs", 0, NULL) < 0) {
		(void)fprintf(stderr, "# skipped: mounting needs root\n");
		return;
	}
	(void)snprintf(dir, sizeof(dir), "%s/tenant", top);
	(void)mkdir(dir, 0755);
	(void)snprintf(dir, sizeof(dir), "%s/tenant/file", top);
	fd = open(dir, O_CREAT | O_RDWR, 0600);
	pid = start_holder(&holdings[0]); /* inherits fd */
	(void)close(fd);
	ck_assert_int_eq(umount2(top, MNT_DETACH), 0);
	(void)snprintf(dir, sizeof(dir), "%s/%s", mountpoint, top);
	n = holders_describe(dir, "tenant", true, &text);
	stop_holder(pid);
	ck_assert_int_eq(n, 1);
	buf_release(&text);
}
END_TEST

START_TEST(many_holders_are_cut_short)
{
	pid_t pids[HOLDERS_SHOWN_MAX + 2];
	struct buf text = BUF_INIT;
	char mountpoint[4096];
	int n;

	here(mountpoint);
	for (size_t i = 0; i < ARRAY_LEN(pids); i++)
		pids[i] = start_holder(&holdings[1]);
	n = holders_describe(mountpoint, top, false, &text);
	for (size_t i = 0; i < ARRAY_LEN(pids); i++)
		stop_holder(pids[i]);
	ck_assert_int_eq(n, HOLDERS_SHOWN_MAX);
	ck_assert_ptr_nonnull(strstr(text.data, " and others"));
	buf_release(&text);
}
END_TEST

static int describe_and_drop(void)
{
	struct buf text = BUF_INIT;
	int r = holders_describe("/nowhere", "at/all", false, &text);

	buf_release(&text);
	return r;
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(describe_and_drop);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("holders");
	TCase *tc = tcase_create("probes");

	tcase_add_checked_fixture(tc, make_file, remove_file);
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, the_probes_see_who_holds_the_file, 0,
			    (int)ARRAY_LEN(holdings));
	tcase_add_test(tc, the_own_descriptor_and_its_mappings_can_be_left_out);
	tcase_add_test(tc, settling_waits_for_the_last_user);
	tcase_add_test(tc, what_has_no_leases_says_so);
	tcase_add_test(tc, breaking_a_lease_does_not_kill_us);
	tcase_add_loop_test(tc, holders_are_named_with_file_and_program, 0,
			    (int)ARRAY_LEN(holdings));
	tcase_add_test(tc, an_unlinked_file_is_found_and_a_longer_name_is_not);
	tcase_add_test(tc, files_of_a_detached_mount_are_found);
	tcase_add_test(tc, many_holders_are_cut_short);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
