/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/util.h"
#include "fault.h"
#include "fs/log_sink.h"
#include "suite.h"

static char folder[] = "/tmp/test_log_sink.XXXXXX";
static char path[64], old_path[64];
static char text[1 << 16]; /* of the file, read last */
static uint64_t now_ms;

static uint64_t fake_now(void *arg)
{
	(void)arg;
	return now_ms;
}

static const struct clock_source fake_clock = { fake_now, fake_now, NULL };

static void setup(void)
{
	ck_assert_ptr_nonnull(mkdtemp(folder));
	(void)snprintf(path, sizeof(path), "%s/log", folder);
	(void)snprintf(old_path, sizeof(old_path), "%s/log.1", folder);
	now_ms = 1769903999123; /* 2026-01-31T23:59:59.123Z */
	clock_set(&fake_clock);
}

static void teardown(void)
{
	clock_set(NULL);
	(void)unlink(path);
	(void)unlink(old_path);
	(void)rmdir(folder);
}

static struct log_sink *new_sink(void)
{
	struct log_sink *sink = NULL;

	ck_assert_int_eq(log_sink_open(LOG_SINK_FILE, path, &sink), 0);
	return sink;
}

static const char *read_back(const char *from)
{
	int fd = open(from, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	ck_assert_int_ge(fd, 0);
	n = read(fd, text, sizeof(text) - 1);
	ck_assert_int_ge(n, 0);
	text[n] = '\0';
	(void)close(fd);
	return text;
}

static size_t count(const char *needle)
{
	size_t n = 0;

	for (const char *at = text; (at = strstr(at, needle)); at++)
		n++;
	return n;
}

START_TEST(a_line_has_time_process_and_level)
{
	struct log_sink *sink = new_sink();
	char expected[128];

	log_sink_write(LOG_LEVEL_ERROR, "reading 'a.bin': no", sink);
	log_sink_write(LOG_LEVEL_INFO, "fine", sink);
	log_sink_close(sink);
	(void)snprintf(expected, sizeof(expected),
		       "2026-01-31T23:59:59.123Z weightfs[%d]: error: "
		       "reading 'a.bin': no\n"
		       "2026-01-31T23:59:59.123Z weightfs[%d]: info: fine\n",
		       (int)getpid(), (int)getpid());
	ck_assert_str_eq(read_back(path), expected);
}
END_TEST

START_TEST(a_file_is_appended_to)
{
	for (int i = 0; i < 2; i++) {
		struct log_sink *sink = new_sink();

		log_sink_write(LOG_LEVEL_WARN, "again", sink);
		log_sink_close(sink);
	}
	(void)read_back(path);
	ck_assert_uint_eq(count(": warning: again\n"), 2);
}
END_TEST

START_TEST(a_rotated_file_is_opened_anew)
{
	struct log_sink *sink = new_sink();

	log_sink_write(LOG_LEVEL_INFO, "one", sink);
	ck_assert_int_eq(rename(path, old_path), 0);
	log_sink_write(LOG_LEVEL_INFO, "two", sink);
	log_sink_reopen(sink);
	log_sink_write(LOG_LEVEL_INFO, "three", sink);
	log_sink_close(sink);
	(void)read_back(old_path);
	ck_assert_uint_eq(count("info"), 2);
	(void)read_back(path);
	ck_assert_uint_eq(count("info"), 1);
	ck_assert_uint_eq(count("three"), 1);
}
END_TEST

START_TEST(without_a_new_file_the_old_one_goes_on)
{
	struct log_sink *sink = new_sink();

	ck_assert_int_eq(rename(path, old_path), 0);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	log_sink_reopen(sink);
	log_sink_write(LOG_LEVEL_INFO, "one", sink);
	log_sink_close(sink);
	(void)read_back(old_path);
	ck_assert_uint_eq(count("one"), 1);
	ck_assert_int_eq(rmdir(path), 0);
}
END_TEST

START_TEST(a_line_cannot_forge_another)
{
	struct log_sink *sink = new_sink();

	log_sink_write(LOG_LEVEL_INFO, "'a\nb\033[2J\x7f\xc3\xa9'", sink);
	log_sink_close(sink);
	(void)read_back(path);
	ck_assert_uint_eq(count("\n"), 1);
	ck_assert_uint_eq(count(": 'a?b?[2J?\xc3\xa9'\n"), 1);
}
END_TEST

START_TEST(a_long_line_is_cut)
{
	struct log_sink *sink = new_sink();
	char line[2 * LOG_SINK_LINE_MAX];

	memset(line, 'x', sizeof(line));
	line[sizeof(line) - 1] = '\0';
	for (int i = 0; i <= LOG_SINK_BURST; i++)
		log_sink_write(LOG_LEVEL_WARN, line, sink);
	log_sink_close(sink);
	(void)read_back(path);
	ck_assert_uint_eq(count("\n"), LOG_SINK_BURST + 1);
	ck_assert_uint_eq(count("1 more times: xxx"), 1);
}
END_TEST

START_TEST(a_repeated_line_is_held_back_and_counted)
{
	struct log_sink *sink = new_sink();

	for (int i = 0; i < 100; i++) {
		char other[16];

		log_sink_write(LOG_LEVEL_ERROR, "same", sink);
		(void)snprintf(other, sizeof(other), "other %d", i % 10);
		log_sink_write(LOG_LEVEL_ERROR, other, sink);
	}
	(void)read_back(path);
	ck_assert_uint_eq(count(": same\n"), LOG_SINK_BURST);
	ck_assert_uint_eq(count(": other"), 10 * LOG_SINK_BURST);
	ck_assert_uint_eq(count("more times"), 0);

	now_ms += LOG_SINK_WINDOW_MS;
	log_sink_write(LOG_LEVEL_INFO, "same", sink); /* another level */
	log_sink_write(LOG_LEVEL_ERROR, "same", sink);
	(void)read_back(path);
	ck_assert_uint_eq(count(": error: 95 more times: same\n"), 1);
	ck_assert_uint_eq(count(": error: 5 more times: other 3\n"), 1);
	ck_assert_uint_eq(count("error: same\n"), LOG_SINK_BURST + 1);
	ck_assert_uint_eq(count("info: same\n"), 1);
	log_sink_close(sink);
}
END_TEST

START_TEST(many_different_lines_are_all_written)
{
	struct log_sink *sink = new_sink();

	for (int i = 0; i < 3 * LOG_SINK_REMEMBERED_MAX; i++) {
		char line[32];

		(void)snprintf(line, sizeof(line), "line %d", i);
		log_sink_write(LOG_LEVEL_INFO, line, sink);
		now_ms++;
	}
	log_sink_close(sink);
	(void)read_back(path);
	ck_assert_uint_eq(count(": line "), 3 * LOG_SINK_REMEMBERED_MAX);
	ck_assert_uint_eq(count("more times"), 0);
}
END_TEST

static void *write_many(void *sink)
{
	for (int i = 0; i < 200; i++) {
		char line[32];

		(void)snprintf(line, sizeof(line), "%p %d", sink, i);
		log_sink_write(LOG_LEVEL_INFO, line, sink);
		if (i % 50 == 0)
			log_sink_reopen(sink);
	}
	return NULL;
}

START_TEST(threads_write_whole_lines)
{
	struct log_sink *sink = new_sink();
	pthread_t threads[4];

	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, write_many, sink), 0);
	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
	log_sink_close(sink);
	(void)read_back(path);
	ck_assert_uint_eq(count("\n"), 800);
	ck_assert_uint_eq(count(": info: 0x"), 800);
}
END_TEST

START_TEST(a_file_that_cannot_be_opened_is_an_error)
{
	struct log_sink *sink = NULL;

	ck_assert_int_eq(log_sink_open(LOG_SINK_FILE, "/nowhere/x", &sink),
			 -ENOENT);
	ck_assert_int_eq(log_sink_open(LOG_SINK_FILE, "/", &sink), -EISDIR);
	ck_assert_ptr_null(sink);
	log_sink_close(NULL);
}
END_TEST

START_TEST(stderr_stays_open)
{
	struct log_sink *sink = NULL;
	int ends[2], saved = dup(STDERR_FILENO);
	char line[128];
	ssize_t n;

	ck_assert_int_eq(pipe(ends), 0);
	ck_assert_int_eq(log_sink_open(LOG_SINK_STDERR, NULL, &sink), 0);
	(void)dup2(ends[1], STDERR_FILENO);
	log_sink_reopen(sink);
	log_sink_write(LOG_LEVEL_DEBUG, "hello", sink);
	log_sink_close(sink);
	n = write(STDERR_FILENO, "!", 1);
	(void)dup2(saved, STDERR_FILENO);
	ck_assert_int_eq(n, 1);
	n = read(ends[0], line, sizeof(line) - 1);
	ck_assert_int_gt(n, 0);
	line[n] = '\0';
	ck_assert_ptr_nonnull(strstr(line, ": debug: hello\n!"));
	(void)close(ends[0]);
	(void)close(ends[1]);
	(void)close(saved);
}
END_TEST

START_TEST(syslog_takes_lines)
{
	struct log_sink *sink = NULL;

	ck_assert_int_eq(log_sink_open(LOG_SINK_SYSLOG, NULL, &sink), 0);
	log_sink_write(LOG_LEVEL_INFO, "100%s", sink);
	log_sink_close(sink);
}
END_TEST

static int open_and_close(void)
{
	struct log_sink *sink = NULL;
	int r = log_sink_open(LOG_SINK_FILE, path, &sink);

	if (r == 0)
		log_sink_write(LOG_LEVEL_INFO, "line", sink);
	log_sink_close(sink);
	return r;
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(open_and_close);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("log_sink");
	TCase *tc = tcase_create("fs");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_line_has_time_process_and_level);
	tcase_add_test(tc, a_file_is_appended_to);
	tcase_add_test(tc, a_rotated_file_is_opened_anew);
	tcase_add_test(tc, without_a_new_file_the_old_one_goes_on);
	tcase_add_test(tc, a_line_cannot_forge_another);
	tcase_add_test(tc, a_long_line_is_cut);
	tcase_add_test(tc, a_repeated_line_is_held_back_and_counted);
	tcase_add_test(tc, many_different_lines_are_all_written);
	tcase_add_test(tc, threads_write_whole_lines);
	tcase_add_test(tc, a_file_that_cannot_be_opened_is_an_error);
	tcase_add_test(tc, stderr_stays_open);
	tcase_add_test(tc, syslog_takes_lines);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
