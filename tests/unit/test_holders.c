/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
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

static void hold_at(const struct holding *h, const char *path)
{
	int fd;

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

static void hold(const struct holding *h)
{
	char path[128];

	(void)snprintf(path, sizeof(path), "%s/file", top);
	hold_at(h, path);
}

/* Returns the pid once the child has done what it is to do. */
static pid_t start_child(void (*act)(const struct holding *h),
			 const struct holding *h)
{
	int ready[2];
	pid_t pid;
	char c;

	ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		act(h);
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

static pid_t start_holder(const struct holding *h)
{
	return start_child(hold, h);
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
	n_all = holders_describe(mountpoint, top, false, NULL, &all);
	n_writers = holders_describe(mountpoint, top, true, NULL, &writers);
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
	ck_assert_int_eq(holders_describe(mountpoint, path, false, NULL, &text),
			 1);
	ck_assert_ptr_null(strstr(text.data, "deleted"));
	path[strlen(path) - 1] = '\0';
	ck_assert_int_eq(holders_describe(mountpoint, path, false, NULL, &text),
			 0);
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
	n = holders_describe(dir, "tenant", true, NULL, &text);
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
	n = holders_describe(mountpoint, top, false, NULL, &text);
	for (size_t i = 0; i < ARRAY_LEN(pids); i++)
		stop_holder(pids[i]);
	ck_assert_int_eq(n, HOLDERS_SHOWN_MAX);
	ck_assert_ptr_nonnull(strstr(text.data, " and others"));
	buf_release(&text);
}
END_TEST

/* --- Who, by identity --- */

/* The file among two others, by no path that it has. */
struct known {
	struct holders_file entries[3];
	struct holders_files files;
};

static void know(struct known *k, const char *path, bool device)
{
	struct stat st;

	ck_assert_int_eq(fstat(file, &st), 0);
	/* Real neighbours could be files that other tests have open. */
	k->entries[0] = (struct holders_file){ 1, "d/other" };
	k->entries[1] = (struct holders_file){ st.st_ino, path };
	k->entries[2] = (struct holders_file){ UINT64_MAX, "d/other" };
	k->files = (struct holders_files){ .dev = device ? st.st_dev : 0,
					   .count = ARRAY_LEN(k->entries),
					   .entries = k->entries };
}

static int describe_known(const struct known *k, bool writers_only,
			  struct buf *ret)
{
	return holders_describe("/nowhere/", "rev", writers_only, &k->files,
				ret);
}

static int count_known(const struct known *k)
{
	struct buf text = BUF_INIT;
	int r = describe_known(k, false, &text);

	buf_release(&text);
	return r;
}

/* The number behind key in a file of /proc, or -1. */
static long number_in(const char *path, const char *key)
{
	FILE *f = fopen(path, "re");
	long found = -1;
	char line[4096];

	ck_assert_ptr_nonnull(f);
	while (found < 0 && fgets(line, sizeof(line), f))
		if (strncmp(line, key, strlen(key)) == 0)
			found = strtol(line + strlen(key), NULL, 10);
	(void)fclose(f);
	return found;
}

/* In a chroot the mount that its files are on is not told. */
static bool is_mount_listed(void)
{
	char path[64], id[32];
	long mount;

	(void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", file);
	mount = number_in(path, "mnt_id:");
	(void)snprintf(id, sizeof(id), "%ld ", mount);
	return number_in("/proc/self/mountinfo", id) >= 0;
}

/*
 * Where stat() tells another device than the kernel's tables do, or these tell
 * none.
 */
static bool is_device_hidden(void)
{
	struct statfs fs;

	ck_assert_int_eq(statfs(top, &fs), 0);
	if (fs.f_type == BTRFS_SUPER_MAGIC) {
		(void)fprintf(stderr,
			      "# skipped: btrfs has devices of its own\n");
		return true;
	}
	if (!is_mount_listed()) {
		(void)fprintf(stderr, "# skipped: the root is no mount here\n");
		return true;
	}
	return false;
}

START_TEST(holders_are_known_by_device_and_inode)
{
	const struct holding *h = &holdings[_i];
	struct buf all = BUF_INIT, writers = BUF_INIT;
	struct known k;
	int n_all, n_writers;
	char want[64];
	pid_t pid;

	if (is_device_hidden())
		return;
	know(&k, "d/its name on the mount", true);
	pid = start_holder(h);
	n_all = describe_known(&k, false, &all);
	n_writers = describe_known(&k, true, &writers);
	stop_holder(pid);
	ck_assert_int_eq(n_all, h->any);
	ck_assert_int_eq(n_writers, h->writer);
	(void)snprintf(want, sizeof(want), "(pid %d)", (int)pid);
	ck_assert(
		n_all == 0 ||
		strstr(all.data, "/nowhere/rev/d/its name on the mount by ") ==
			all.data);
	ck_assert(n_all == 0 || strstr(all.data, want) != NULL);
	ck_assert(n_writers == 0 || strstr(writers.data, want) != NULL);
	buf_release(&all);
	buf_release(&writers);
}
END_TEST

START_TEST(the_same_inode_on_another_device_is_another_file)
{
	const struct holding *h = &holdings[_i];
	struct known k;
	pid_t pid;
	int n;

	if (is_device_hidden())
		return;
	pid = start_holder(h);
	know(&k, "d/file", true);
	k.files.dev += 1;
	n = count_known(&k);
	stop_holder(pid);
	ck_assert_int_eq(n, 0);
}
END_TEST

START_TEST(without_a_device_the_last_component_decides)
{
	const struct holding *h = &holdings[_i];
	pid_t pid = start_holder(h);
	struct known same, other;
	int n_same, n_other;

	know(&same, "d/file", false);
	know(&other, "file/d", false);
	n_same = count_known(&same);
	n_other = count_known(&other);
	stop_holder(pid);
	ck_assert_int_eq(n_same, h->any);
	ck_assert_int_eq(n_other, 0);
}
END_TEST

/* Exits where that isn't allowed, and the test is skipped. */
static void leave_namespace(void)
{
	if (unshare(CLONE_NEWNS) < 0 ||
	    (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 &&
	     errno != EINVAL))
		_exit(0);
}

/* As a volume that is one file, under a name of the container's. */
static void hold_in_container(const struct holding *h)
{
	char path[128], name[128];

	(void)snprintf(path, sizeof(path), "%s/file", top);
	(void)snprintf(name, sizeof(name), "%s/volume", top);
	leave_namespace();
	if (mount(path, name, NULL, MS_BIND, NULL) < 0)
		_exit(0);
	hold_at(h, name);
}

/* Its descriptor belongs to a mount that it doesn't have any more. */
static void hold_from_outside(const struct holding *h)
{
	hold(h);
	leave_namespace();
}

static bool may_leave_namespace(void)
{
	pid_t pid = fork();
	int status;

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		leave_namespace();
		_exit(1);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	if (WEXITSTATUS(status) == 0)
		(void)fprintf(stderr, "# skipped: no mounts of its own here\n");
	return WEXITSTATUS(status) != 0;
}

START_TEST(a_holder_in_a_container_is_named)
{
	const struct holding *h = &holdings[_i];
	char name[128];
	struct known k;
	pid_t pid;
	int n;

	if (is_device_hidden() || !may_leave_namespace())
		return;
	know(&k, "d/file", true);
	(void)snprintf(name, sizeof(name), "%s/volume", top);
	ck_assert_int_eq(mknod(name, S_IFREG | 0600, 0), 0);
	pid = start_child(hold_in_container, h);
	n = count_known(&k);
	stop_holder(pid);
	ck_assert_int_eq(unlink(name), 0);
	ck_assert_int_eq(n, h->any);
}
END_TEST

START_TEST(a_descriptor_of_an_unknown_mount_is_judged_by_its_name)
{
	struct known same, other;
	int n_same, n_other;
	pid_t pid;

	if (!may_leave_namespace())
		return;
	know(&same, "d/file", true);
	know(&other, "d/else", true);
	pid = start_child(hold_from_outside, &holdings[1]);
	n_same = count_known(&same);
	n_other = count_known(&other);
	stop_holder(pid);
	ck_assert_int_eq(n_same, 1);
	ck_assert_int_eq(n_other, 0);
}
END_TEST

START_TEST(no_files_are_nobodys)
{
	const struct holders_files none = { .dev = 1 };
	pid_t pid = start_holder(&holdings[1]);
	struct buf text = BUF_INIT;
	int n = holders_describe("/nowhere", "rev", false, &none, &text);

	stop_holder(pid);
	ck_assert_int_eq(n, 0);
	ck_assert_uint_eq(text.len, 0);
	buf_release(&text);
}
END_TEST

static struct known swept;

/* No claims here, as they allocate too. */
static int describe_and_drop(void)
{
	struct buf text = BUF_INIT;
	int r = describe_known(&swept, false, &text);

	buf_release(&text);
	return r < 0 ? r : 0;
}

START_TEST(every_allocation_may_fail)
{
	pid_t pid = start_holder(&holdings[1]);

	know(&swept, "d/file", false);
	ck_assert_int_eq(count_known(&swept), 1);
	fault_sweep(describe_and_drop);
	stop_holder(pid);
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
	tcase_add_loop_test(tc, holders_are_known_by_device_and_inode, 0,
			    (int)ARRAY_LEN(holdings));
	tcase_add_loop_test(tc,
			    the_same_inode_on_another_device_is_another_file, 0,
			    (int)ARRAY_LEN(holdings));
	tcase_add_loop_test(tc, without_a_device_the_last_component_decides, 0,
			    (int)ARRAY_LEN(holdings));
	tcase_add_loop_test(tc, a_holder_in_a_container_is_named, 0,
			    (int)ARRAY_LEN(holdings));
	tcase_add_test(tc,
		       a_descriptor_of_an_unknown_mount_is_judged_by_its_name);
	tcase_add_test(tc, no_files_are_nobodys);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
