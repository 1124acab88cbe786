/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/config.h"
#include "suite.h"

static char root[] = "/tmp/test_config_memory.XXXXXX";

static void setup(void)
{
	ck_assert_ptr_nonnull(mkdtemp(root));
}

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void teardown(void)
{
	(void)nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Makes a file below root, and the folders that it is in. */
static void put(const char *name, const char *text)
{
	char path[256];
	int fd;

	(void)snprintf(path, sizeof(path), "%s%s", root, name);
	for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		ck_assert(mkdir(path, 0700) == 0 || errno == EEXIST);
		*at = '/';
	}
	fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	(void)close(fd);
}

static void assert_usable(uint64_t expected)
{
	uint64_t usable = 0;

	ck_assert_int_eq(config_usable_memory(root, &usable), 0);
	ck_assert_uint_eq(usable, expected);
}

#define MEMINFO "MemTotal:        1000 kB\nMemFree:            7 kB\n"
#define V2 "/sys/fs/cgroup"
#define V1 "/sys/fs/cgroup/memory"

START_TEST(without_limits_it_is_the_memory_of_the_machine)
{
	put("/proc/meminfo", MEMINFO);
	assert_usable(1024000);
	put("/proc/self/cgroup", "0::/\n");
	assert_usable(1024000);
	put(V2 "/memory.max", "max\n");
	assert_usable(1024000);
	put(V2 "/memory.max", "1024001\n");
	assert_usable(1024000);
}
END_TEST

START_TEST(the_lowest_limit_on_the_way_up_counts)
{
	put("/proc/meminfo", MEMINFO);
	put("/proc/self/cgroup", "0::/a/b\n");
	put(V2 "/a/b/memory.max", "5000\n");
	assert_usable(5000);
	put(V2 "/a/memory.max", "4000\n");
	assert_usable(4000);
	put(V2 "/memory.max", "3000\n");
	assert_usable(3000);
	put(V2 "/c/memory.max", "1\n");
	assert_usable(3000);
}
END_TEST

START_TEST(the_older_version_is_understood)
{
	put("/proc/meminfo", MEMINFO);
	put("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/u\n");
	put(V1 "/a/memory.limit_in_bytes", "5000\n");
	put(V1 "/memory.limit_in_bytes", "9223372036854771712\n");
	assert_usable(5000);
}
END_TEST

START_TEST(a_group_out_of_sight_leaves_the_topmost)
{
	put("/proc/meminfo", MEMINFO);
	put("/proc/self/cgroup", "0::/../../x\n");
	put("/sys/x/memory.max", "1\n");
	put(V2 "/memory.max", "5000\n");
	assert_usable(5000);
}
END_TEST

START_TEST(a_limit_that_is_no_number_is_none)
{
	put("/proc/meminfo", MEMINFO);
	put("/proc/self/cgroup", "0::/\n\nnonsense\n");
	put(V2 "/memory.max", "-5\n");
	assert_usable(1024000);
}
END_TEST

START_TEST(an_account_that_is_not_understood_is_an_error)
{
	uint64_t usable = 7;

	ck_assert_int_eq(config_usable_memory(root, &usable), -ENOENT);
	put("/proc/meminfo", "MemFree: 1 kB\n");
	ck_assert_int_eq(config_usable_memory(root, &usable), -EBADMSG);
	put("/proc/meminfo", "MemTotal: many kB\n");
	ck_assert_int_eq(config_usable_memory(root, &usable), -EBADMSG);
	put("/proc/meminfo", "MemTotal: 18446744073709551615 kB\n");
	ck_assert_int_eq(config_usable_memory(root, &usable), -EBADMSG);
	ck_assert_uint_eq(usable, 7);
}
END_TEST

START_TEST(this_machine_has_memory)
{
	uint64_t usable = 0;

	ck_assert_int_eq(config_usable_memory("", &usable), 0);
	ck_assert_uint_gt(usable, 1 << 20);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("config_memory");
	TCase *tc = tcase_create("core");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, without_limits_it_is_the_memory_of_the_machine);
	tcase_add_test(tc, the_lowest_limit_on_the_way_up_counts);
	tcase_add_test(tc, the_older_version_is_understood);
	tcase_add_test(tc, a_group_out_of_sight_leaves_the_topmost);
	tcase_add_test(tc, a_limit_that_is_no_number_is_none);
	tcase_add_test(tc, an_account_that_is_not_understood_is_an_error);
	tcase_add_test(tc, this_machine_has_memory);
	suite_add_tcase(s, tc);
	return s;
}
