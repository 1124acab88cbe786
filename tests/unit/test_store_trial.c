/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What filesystems can do, on each that can be had: that of /var/tmp, tmpfs,
 * and images that are made here, in a mount namespace of the test's own.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/holders.h"
#include "core/store_trial.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

#define NOBODY 65534

/* A line in the log of the run: Check knows no skipped tests. */
#define skip(...)                                                              \
	do {                                                                   \
		printf("# %.*s: skipped, ", (int)strlen(__func__) - 3,         \
		       __func__);                                              \
		printf(__VA_ARGS__);                                           \
		printf("\n");                                                  \
		(void)fflush(stdout);                                          \
		return;                                                        \
	} while (0)

static char top[] = "/var/tmp/store-trial.XXXXXX";

/* Below top, which the tests work in. */
static const char place[] = "place";
static const char image[] = "image";

/* --- Kernels and filesystems that lack something --- */

static bool refuses_leases;
static bool refuses_nameless;

/* Stand before those of the C library. */
int fcntl64(int fd, int cmd, ...);
int openat64(int dirfd, const char *path, int flags, ...);

int fcntl64(int fd, int cmd, ...)
{
	va_list ap;
	long arg;

	va_start(ap, cmd);
	arg = va_arg(ap, long);
	va_end(ap);
	if (cmd == F_SETLEASE && refuses_leases) {
		errno = EINVAL;
		return -1;
	}
	return (int)syscall(SYS_fcntl, fd, cmd, arg);
}

int openat64(int dirfd, const char *path, int flags, ...)
{
	va_list ap;
	mode_t mode;

	va_start(ap, flags);
	mode = va_arg(ap, mode_t);
	va_end(ap);
	if ((flags & O_TMPFILE) == O_TMPFILE && refuses_nameless) {
		errno = EOPNOTSUPP;
		return -1;
	}
	return (int)syscall(SYS_openat, dirfd, path, flags, mode);
}

/* --- Places --- */

static void setup(void)
{
	ck_assert_int_eq(holders_init(), 0);
	ck_assert_ptr_nonnull(mkdtemp(top));
	ck_assert_int_eq(chdir(top), 0);
	ck_assert_int_eq(mkdir(place, 0700), 0);
}

static void teardown(void)
{
	(void)umount2(place, MNT_DETACH);
	(void)unlink(image);
	ck_assert_int_eq(rmdir(place), 0);
	ck_assert_int_eq(chdir("/"), 0);
	ck_assert_int_eq(rmdir(top), 0);
}

/* Mounts of this test's own from here on, gone with it. */
static bool own_mounts(void)
{
	if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0)
		return false;
	/* Refused in a chroot, where nothing is shared. */
	(void)mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
	return true;
}

static bool mount_tmpfs(const char *options)
{
	return own_mounts() && mount("none", place, "tmpfs", 0, options) == 0;
}

static bool mount_image(const char *kind)
{
	char command[256];

	if (!own_mounts())
		return false;
	(void)snprintf(command, sizeof(command),
		       "exec >/dev/null 2>&1; PATH=$PATH:/sbin:/usr/sbin; "
		       "truncate -s 320M image && mkfs.%s image && "
		       "mount -t %s -o loop image place",
		       kind, kind);
	return system(command) == 0;
}

static struct store_abilities try_place(void)
{
	auto_fd int fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct store_abilities a;

	ck_assert_int_ge(fd, 0);
	memset(&a, 0xff, sizeof(a));
	ck_assert_int_eq(store_trial(fd, &a), 0);
	return a;
}

static void assert_empty(const char *path)
{
	DIR *dir = opendir(path);

	ck_assert_ptr_nonnull(dir);
	for (struct dirent *e; (e = readdir(dir));)
		ck_assert_msg(e->d_name[0] == '.' &&
				      (!e->d_name[1] || e->d_name[1] == '.'),
			      "'%s' was left in %s", e->d_name, path);
	(void)closedir(dir);
}

static bool shows_frames(void)
{
	return geteuid() == 0 && access("/proc/kpageflags", R_OK) == 0;
}

/* --- What is there --- */

START_TEST(a_local_disk_has_leases_and_says_its_name)
{
	struct store_abilities a = try_place();
	struct statfs st;

	ck_assert_int_eq(statfs(place, &st), 0);
	if (st.f_type != EXT4_SUPER_MAGIC)
		skip("/var/tmp is %s", a.filesystem);
	ck_assert_str_eq(a.filesystem, "ext4");
	ck_assert(!a.memory_only);
	ck_assert(a.leases);
	ck_assert(a.direct);
	ck_assert(a.attributes);
	ck_assert(!a.large_folios || a.folios_known);
	assert_empty(place);
}
END_TEST

/* clang-format off */
static const struct {
	const char *kind;
	bool direct_sure; /* btrfs: where it has checksums, it depends */
} images[] = {
	{ "ext4",  true },
	{ "xfs",   true },
	{ "btrfs", false },
};
/* clang-format on */

START_TEST(an_image_can_do_what_its_kind_can)
{
	const char *kind = images[_i].kind;
	struct store_abilities a;

	if (!mount_image(kind))
		skip("no loop device, no mkfs.%s, or not root", kind);
	a = try_place();
	ck_assert_str_eq(a.filesystem, kind);
	ck_assert(!a.memory_only);
	ck_assert(a.leases);
	ck_assert(a.attributes);
	if (images[_i].direct_sure)
		ck_assert(a.direct);
	if (shows_frames())
		ck_assert(a.folios_known);
	printf("# %s: direct reads %d, large folios %d\n", kind, a.direct,
	       a.large_folios);
	(void)rmdir("place/lost+found"); /* as mkfs.ext4 made it */
	assert_empty(place);
}
END_TEST

START_TEST(a_memory_filesystem_is_in_memory_only)
{
	struct store_abilities a;

	if (!mount_tmpfs("size=16m"))
		skip("not root");
	a = try_place();
	ck_assert_str_eq(a.filesystem, "tmpfs");
	ck_assert(a.memory_only);
	ck_assert(a.leases);
	ck_assert(!a.direct);
	assert_empty(place);
}
END_TEST

START_TEST(large_folios_are_seen_where_they_are_asked_for)
{
	struct store_abilities a;

	if (!shows_frames() || !mount_tmpfs("size=16m,huge=always"))
		skip("not root, or no huge pages");
	a = try_place();
	ck_assert(a.folios_known);
	ck_assert(a.large_folios);
	(void)umount2(place, MNT_DETACH);
	ck_assert_int_eq(mount("none", place, "tmpfs", 0, "huge=never"), 0);
	a = try_place();
	ck_assert(a.folios_known);
	ck_assert(!a.large_folios);
}
END_TEST

/* --- What is not --- */

START_TEST(without_leases_the_rest_is_there)
{
	struct store_abilities with = try_place(), without;

	refuses_leases = true;
	without = try_place();
	refuses_leases = false;
	ck_assert(!without.leases);
	with.leases = false;
	with.large_folios = without.large_folios; /* as memory allows */
	ck_assert_int_eq(memcmp(&with, &without, sizeof(with)), 0);
}
END_TEST

START_TEST(without_nameless_files_it_is_the_same_and_nothing_stays)
{
	struct store_abilities with = try_place(), without;

	ck_assert_int_eq(mknod("place/.trial", S_IFREG | 0600, 0), 0);
	refuses_nameless = true;
	without = try_place();
	refuses_nameless = false;
	with.large_folios = without.large_folios; /* as memory allows */
	ck_assert_int_eq(memcmp(&with, &without, sizeof(with)), 0);
	assert_empty(place);
}
END_TEST

START_TEST(a_full_disk_lacks_what_needs_room)
{
	struct store_abilities a;

	if (!mount_tmpfs("size=1m"))
		skip("not root");
	a = try_place();
	ck_assert_str_eq(a.filesystem, "tmpfs");
	ck_assert(a.leases);
	ck_assert(!a.folios_known);
	ck_assert(!a.large_folios);
}
END_TEST

START_TEST(where_nothing_can_be_written_all_is_missing)
{
	struct store_abilities a;

	if (!mount_tmpfs("ro"))
		skip("not root");
	a = try_place();
	ck_assert_str_eq(a.filesystem, "tmpfs");
	ck_assert(a.memory_only);
	ck_assert(!a.leases && !a.direct && !a.attributes);
	ck_assert(!a.folios_known && !a.large_folios);
}
END_TEST

START_TEST(who_is_not_root_does_not_know_about_folios)
{
	struct store_abilities a;

	if (geteuid() != 0)
		skip("not root");
	ck_assert_int_eq(chmod(top, 0711), 0);
	ck_assert_int_eq(chown(place, NOBODY, NOBODY), 0);
	ck_assert_int_eq(seteuid(NOBODY), 0);
	(void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	a = try_place();
	ck_assert_int_eq(seteuid(0), 0);
	ck_assert(a.leases);
	ck_assert(!a.folios_known);
}
END_TEST

START_TEST(only_a_directory_that_is_none_is_an_error)
{
	struct store_abilities a, untouched;

	memset(&a, 0x5a, sizeof(a));
	untouched = a;
	ck_assert_int_eq(store_trial(-1, &a), -EBADF);
	ck_assert_int_eq(memcmp(&a, &untouched, sizeof(a)), 0);
}
END_TEST

/* --- In words --- */

/* clang-format off */
static const struct {
	struct store_abilities a;
	const char *text;
} texts[] = {
	{ { .filesystem = "ext4", .leases = true, .direct = true,
	    .large_folios = true, .folios_known = true, .attributes = true },
	  "filesystem: ext4\n"
	  "survives a power loss: yes\n"
	  "file leases: yes\n"
	  "direct reads: yes\n"
	  "large folios: yes\n"
	  "user attributes: yes\n" },
	{ { .filesystem = "tmpfs", .memory_only = true, .leases = true,
	    .folios_known = true, .attributes = true },
	  "filesystem: tmpfs\n"
	  "survives a power loss: no, it is in memory only\n"
	  "file leases: yes\n"
	  "direct reads: no, there is no disk behind the cache\n"
	  "large folios: no, files are cached and mapped page by page\n"
	  "user attributes: yes\n" },
	{ { .filesystem = "0x6969" },
	  "filesystem: 0x6969\n"
	  "survives a power loss: yes\n"
	  "file leases: no, the kernel can't tell who reads: files are served "
	  "without passthrough\n"
	  "direct reads: no, they go through the page cache\n"
	  "large folios: unknown, the kernel tells root only\n"
	  "user attributes: no, user.* attributes of files can't be kept\n" },
};
/* clang-format on */

START_TEST(every_lack_says_what_it_means)
{
	struct buf out = BUF_INIT;

	ck_assert_int_eq(store_abilities_print(&texts[_i].a, &out), 0);
	ck_assert_str_eq(out.data, texts[_i].text);
	buf_release(&out);
}
END_TEST

static int print(void)
{
	struct buf out = BUF_INIT;
	int r = store_abilities_print(&texts[0].a, &out);

	buf_release(&out);
	return r;
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(print);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("store_trial");
	TCase *tc = tcase_create("core");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_local_disk_has_leases_and_says_its_name);
	tcase_add_loop_test(tc, an_image_can_do_what_its_kind_can, 0,
			    ARRAY_LEN(images));
	tcase_add_test(tc, a_memory_filesystem_is_in_memory_only);
	tcase_add_test(tc, large_folios_are_seen_where_they_are_asked_for);
	tcase_add_test(tc, without_leases_the_rest_is_there);
	tcase_add_test(tc,
		       without_nameless_files_it_is_the_same_and_nothing_stays);
	tcase_add_test(tc, a_full_disk_lacks_what_needs_room);
	tcase_add_test(tc, where_nothing_can_be_written_all_is_missing);
	tcase_add_test(tc, who_is_not_root_does_not_know_about_folios);
	tcase_add_test(tc, only_a_directory_that_is_none_is_an_error);
	tcase_add_loop_test(tc, every_lack_says_what_it_means, 0,
			    ARRAY_LEN(texts));
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
