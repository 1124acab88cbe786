/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/log_sink.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"

#define PROGRAM "weightfs"
#define FILE_MODE 0640
#define STAMP_MAX 32

/* A line that was written not long ago. */
struct repeated {
	enum log_level level;
	uint64_t since_ms; /* start of its window; monotonic */
	unsigned written;  /* 0: this place is free */
	unsigned left_out;
	char line[LOG_SINK_LINE_MAX + 1];
};

struct log_sink {
	enum log_sink_target target;
	int fd; /* of the file, or stderr, which is not ours to close */
	atomic_bool reopen;
	pthread_mutex_t lock; /* guards what follows, and the order of lines */
	struct repeated repeated[LOG_SINK_REMEMBERED_MAX];
	char path[]; /* "" unless target is LOG_SINK_FILE */
};

/* clang-format off */
static const struct {
	const char *name;
	int priority;
} levels[] = {
	[LOG_LEVEL_ERROR] = { "error",   LOG_ERR },
	[LOG_LEVEL_WARN]  = { "warning", LOG_WARNING },
	[LOG_LEVEL_INFO]  = { "info",    LOG_INFO },
	[LOG_LEVEL_DEBUG] = { "debug",   LOG_DEBUG },
};
/* clang-format on */

static int file_open(const char *path)
{
	int fd =
		open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY,
		     FILE_MODE);

	return fd < 0 ? -errno : fd;
}

int log_sink_open(enum log_sink_target target, const char *path,
		  struct log_sink **ret)
{
	size_t len = target == LOG_SINK_FILE ? strlen(path) : 0;
	auto_free struct log_sink *sink = calloc(1, sizeof(*sink) + len + 1);

	if (!sink)
		return -ENOMEM;
	sink->target = target;
	sink->fd = STDERR_FILENO;
	memcpy(sink->path, path ? path : "", len);
	if (target == LOG_SINK_FILE) {
		sink->fd = file_open(sink->path);
		if (sink->fd < 0)
			return sink->fd;
	}
	if (target == LOG_SINK_SYSLOG)
		openlog(PROGRAM, LOG_PID, LOG_DAEMON);
	atomic_init(&sink->reopen, false);
	(void)pthread_mutex_init(&sink->lock, NULL);

	*ret = take_ptr(sink);
	return 0;
}

void log_sink_reopen(struct log_sink *sink)
{
	atomic_store(&sink->reopen, true);
}

static void reopen_if_asked(struct log_sink *sink)
{
	int fd;

	if (!atomic_exchange(&sink->reopen, false) ||
	    sink->target != LOG_SINK_FILE)
		return;
	fd = file_open(sink->path);
	if (fd < 0)
		return;
	(void)close(sink->fd);
	sink->fd = fd;
}

/* The time in UTC, as 2026-01-31T23:59:59.123Z. */
static void stamp(char ret[STAMP_MAX])
{
	uint64_t now_ms = clock_realtime_ms();
	time_t seconds = (time_t)(now_ms / 1000);
	struct tm tm;
	size_t n = 0;

	if (gmtime_r(&seconds, &tm))
		n = strftime(ret, STAMP_MAX, "%Y-%m-%dT%H:%M:%S", &tm);
	(void)snprintf(ret + n, STAMP_MAX - n, ".%03uZ",
		       (unsigned)(now_ms % 1000));
}

/*
 * One write() a line, so that lines of two processes don't mix. A line that
 * can't be written is lost: there is nobody left to tell.
 */
static void emit(struct log_sink *sink, enum log_level level, const char *line)
{
	char text[STAMP_MAX + LOG_SINK_LINE_MAX + 64];
	char time_text[STAMP_MAX];
	ssize_t written;
	int n;

	if (sink->target == LOG_SINK_SYSLOG) {
		syslog(levels[level].priority, "%s", line);
		return;
	}
	stamp(time_text);
	n = snprintf(text, sizeof(text), "%s " PROGRAM "[%ld]: %s: %s\n",
		     time_text, (long)getpid(), levels[level].name, line);
	assert(n > 0 && (size_t)n < sizeof(text));
	do
		written = write(sink->fd, text, (size_t)n);
	while (written < 0 && errno == EINTR);
}

/* Ends the window of a line: says how often it was left out. */
static void forget(struct log_sink *sink, struct repeated *line)
{
	char text[LOG_SINK_LINE_MAX + 1];

	if (line->written && line->left_out) {
		(void)snprintf(text, sizeof(text), "%u more times: %.900s",
			       line->left_out, line->line);
		emit(sink, line->level, text);
	}
	line->written = 0;
	line->left_out = 0;
}

static void forget_old(struct log_sink *sink, uint64_t now_ms)
{
	for (size_t i = 0; i < LOG_SINK_REMEMBERED_MAX; i++) {
		struct repeated *line = &sink->repeated[i];

		if (line->written &&
		    now_ms - line->since_ms >= LOG_SINK_WINDOW_MS)
			forget(sink, line);
	}
}

/* The place of this line, or else a free one, or else the oldest. */
static struct repeated *find(struct log_sink *sink, enum log_level level,
			     const char *text)
{
	struct repeated *best = &sink->repeated[0];

	for (size_t i = 0; i < LOG_SINK_REMEMBERED_MAX; i++) {
		struct repeated *line = &sink->repeated[i];

		if (line->written && line->level == level &&
		    strcmp(line->line, text) == 0)
			return line;
		if (!best->written)
			continue;
		if (!line->written || line->since_ms < best->since_ms)
			best = line;
	}
	return best;
}

/* Whether the line may be written, which is remembered. */
static bool admit(struct log_sink *sink, enum log_level level, const char *text)
{
	uint64_t now_ms = clock_monotonic_ms();
	struct repeated *line;

	forget_old(sink, now_ms);
	line = find(sink, level, text);
	if (!line->written || line->level != level ||
	    strcmp(line->line, text) != 0) {
		forget(sink, line);
		line->level = level;
		line->since_ms = now_ms;
		memcpy(line->line, text, strlen(text) + 1);
	}
	if (line->written == LOG_SINK_BURST) {
		line->left_out++;
		return false;
	}
	line->written++;
	return true;
}

static void sanitize(const char *line, char ret[LOG_SINK_LINE_MAX + 1])
{
	size_t len = strnlen(line, LOG_SINK_LINE_MAX);

	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)line[i];

		ret[i] = line[i];
		if (c < ' ' || c == 0x7f)
			ret[i] = '?';
	}
	ret[len] = '\0';
}

void log_sink_write(enum log_level level, const char *line, void *arg)
{
	struct log_sink *sink = arg;
	char text[LOG_SINK_LINE_MAX + 1];

	sanitize(line, text);
	(void)pthread_mutex_lock(&sink->lock);
	reopen_if_asked(sink);
	if (admit(sink, level, text))
		emit(sink, level, text);
	(void)pthread_mutex_unlock(&sink->lock);
}

void log_sink_close(struct log_sink *sink)
{
	if (!sink)
		return;
	for (size_t i = 0; i < LOG_SINK_REMEMBERED_MAX; i++)
		forget(sink, &sink->repeated[i]);
	if (sink->target == LOG_SINK_FILE)
		(void)close(sink->fd);
	if (sink->target == LOG_SINK_SYSLOG)
		closelog();
	(void)pthread_mutex_destroy(&sink->lock);
	free(sink);
}
