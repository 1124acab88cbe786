/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/mode_change.h"
#include "core/util.h"
#include "suite.h"

static const char *const accepted[] = {
	"a+rX",
	"u=rwX,go=rX",
	"go-w",
	"+x",
	"-x",
	"=",
	"+",
	"=r",
	"a=",
	"u=",
	"+X",
	"-X",
	"=X",
	"=rX",
	"a-x+X",
	"g=u",
	"o=g-w",
	"u=o",
	"+u",
	"-g",
	"=o",
	"u+s",
	"g+s",
	"u-s",
	"ug-s",
	"+s",
	"-s",
	"=s",
	"o+s",
	"+t",
	"u+t",
	"o=t",
	"a=rwxst",
	"u=rws,g=rxs,o=t",
	"ug+rw-x",
	"ugo=rwx",
	"u+rw,g-x=r,o+",
	"uu+r",
	"+rr",
	"644",
	"0755",
	"00755",
	"000755",
	"2755",
	"02755",
	"4711",
	"1777",
	"0",
	"00000",
	"7777",
	"+111",
	"-1",
	"-022",
	"=640",
	"=0640",
	"+2000",
	"-6000",
	"u+r,=640",
	"+1,-2,=3",
};

static const char *const refused[] = {
	"u",   "r",    "8",   "7778", "10000", "77777",  "1+x",
	"u+8", "u+7",  "+8",  "+7u",  "+7+7",  "+77777", "a+r,",
	",",   ",a+r", "a r", " a+r", "a+r ",  "u+gr",   "u+rg",
	"+rz", "x+r",  "0x1", "+-7u", "64 4",  "a+r\n",
};

static const mode_t before[] = {
	0,    0400,  0600,  0644,  0755,  0711,  0077,  0111,
	0200, 04755, 02755, 06750, 01777, 07777, 07000, 02070,
};

static char scratch[] = "/tmp/test_mode_change.XXXXXX";

static void make_scratch(void)
{
	ck_assert_ptr_nonnull(mkdtemp(scratch));
	ck_assert_int_eq(chdir(scratch), 0);
	(void)umask(0);
}

static void name_of(size_t i, bool is_dir, char ret[8])
{
	(void)snprintf(ret, 8, "%c%02zu", is_dir ? 'd' : 'f', i);
}

static void drop_scratch(void)
{
	for (size_t i = 0; i < ARRAY_LEN(before); i++) {
		char name[8];

		name_of(i, false, name);
		(void)unlink(name);
		name_of(i, true, name);
		(void)rmdir(name);
	}
	(void)chdir("/");
	(void)rmdir(scratch);
}

static void make_files(void)
{
	for (size_t i = 0; i < ARRAY_LEN(before); i++) {
		char name[8];
		int fd;

		name_of(i, false, name);
		fd = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
		ck_assert_int_ge(fd, 0);
		ck_assert_int_eq(fchmod(fd, before[i]), 0);
		(void)close(fd);
		name_of(i, true, name);
		ck_assert_int_eq(mkdir(name, 0700), 0);
		ck_assert_int_eq(chmod(name, before[i]), 0);
	}
}

/* Runs chmod on everything that make_files() made; returns its status. */
static int run_chmod(const char *text)
{
	static char names[2 * ARRAY_LEN(before)][8];
	char *argv[3 + ARRAY_LEN(names) + 1];
	size_t n = 0;
	int status;
	pid_t pid;

	argv[n++] = strdup("chmod");
	argv[n++] = strdup("--");
	argv[n++] = strdup(text);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		name_of(i / 2, i % 2, names[i]);
		argv[n++] = names[i];
	}
	argv[n] = NULL;
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

		(void)dup2(null, STDERR_FILENO);
		(void)execvp(argv[0], argv);
		_exit(127);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	for (size_t i = 0; i < 3; i++)
		free(argv[i]);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) != 127);
	return WEXITSTATUS(status);
}

static void check_one(const char *text, const struct mode_change *c, size_t i,
		      bool is_dir)
{
	struct stat st;
	char name[8];
	mode_t ours = mode_change_apply(c, before[i], is_dir);

	name_of(i, is_dir, name);
	ck_assert_int_eq(stat(name, &st), 0);
	ck_assert_msg(ours == (st.st_mode & 07777),
		      "'%s' on a %s of mode %04o: chmod makes it %04o, we %04o",
		      text, is_dir ? "directory" : "file", before[i],
		      st.st_mode & 07777, ours);
}

START_TEST(the_outcome_is_that_of_chmod)
{
	struct mode_change c;

	make_scratch();
	make_files();
	ck_assert_int_eq(mode_change_compile(accepted[_i], &c), 0);
	ck_assert_str_eq(c.text, accepted[_i]);
	ck_assert_msg(run_chmod(accepted[_i]) == 0, "chmod refuses '%s'",
		      accepted[_i]);
	for (size_t i = 0; i < ARRAY_LEN(before); i++) {
		check_one(accepted[_i], &c, i, false);
		check_one(accepted[_i], &c, i, true);
	}
	drop_scratch();
}
END_TEST

START_TEST(what_chmod_refuses_is_refused)
{
	struct mode_change c = { .count = 77 };
	int r = mode_change_compile(refused[_i], &c);

	ck_assert_msg(r == -EINVAL, "'%s': got %d", refused[_i], r);
	ck_assert_uint_eq(c.count, 77);
	make_scratch();
	make_files();
	ck_assert_msg(run_chmod(refused[_i]) != 0, "chmod takes '%s'",
		      refused[_i]);
	drop_scratch();
}
END_TEST

START_TEST(an_empty_text_changes_nothing)
{
	struct mode_change c;

	ck_assert_int_eq(mode_change_compile("", &c), 0);
	ck_assert_uint_eq(mode_change_apply(&c, 07654, true), 07654);
}
END_TEST

START_TEST(the_type_of_the_file_stays)
{
	struct mode_change c;

	ck_assert_int_eq(mode_change_compile("=", &c), 0);
	ck_assert_uint_eq(mode_change_apply(&c, S_IFREG | 0644, false),
			  S_IFREG);
}
END_TEST

START_TEST(there_is_room_for_the_limits_and_no_more)
{
	char text[MODE_CHANGE_TEXT_MAX + 2];
	struct mode_change c;

	memset(text, 'a', sizeof(text));
	memcpy(text + MODE_CHANGE_TEXT_MAX - 2, "+r", 3);
	ck_assert_int_eq(mode_change_compile(text, &c), 0);
	memcpy(text + MODE_CHANGE_TEXT_MAX - 2, "a+r", 4);
	ck_assert_int_eq(mode_change_compile(text, &c), -EFBIG);

	memset(text, '+', MODE_CHANGE_STEPS_MAX);
	text[MODE_CHANGE_STEPS_MAX] = '\0';
	ck_assert_int_eq(mode_change_compile(text, &c), 0);
	ck_assert_uint_eq(c.count, MODE_CHANGE_STEPS_MAX);
	text[MODE_CHANGE_STEPS_MAX] = '+';
	text[MODE_CHANGE_STEPS_MAX + 1] = '\0';
	ck_assert_int_eq(mode_change_compile(text, &c), -EFBIG);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("mode_change");
	TCase *tc = tcase_create("core");

	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, the_outcome_is_that_of_chmod, 0,
			    ARRAY_LEN(accepted));
	tcase_add_loop_test(tc, what_chmod_refuses_is_refused, 0,
			    ARRAY_LEN(refused));
	tcase_add_test(tc, an_empty_text_changes_nothing);
	tcase_add_test(tc, the_type_of_the_file_stays);
	tcase_add_test(tc, there_is_room_for_the_limits_and_no_more);
	suite_add_tcase(s, tc);
	return s;
}
