/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log sink: where the lines of core/log.h end up, which is stderr, a file that
 * is opened anew when it was rotated, or syslog.
 *
 * Lines that come again and again are held back: the same line is written
 * LOG_SINK_BURST times within LOG_SINK_WINDOW_MS, and after that window it is
 * said how often it was left out.
 *
 * Control characters in a line are replaced, so a file name can't forge one.
 *
 * log_sink_write() may be called from any thread. A sink outlives the last
 * line: take it away with log_set_sink() before it is closed.
 */
#ifndef FS_LOG_SINK_H
#define FS_LOG_SINK_H

#include "core/cleanup.h"
#include "core/log.h"

#define LOG_SINK_BURST 5
#define LOG_SINK_WINDOW_MS 10000
#define LOG_SINK_REMEMBERED_MAX 32 /* different lines that are watched */
#define LOG_SINK_LINE_MAX 1024     /* bytes; the rest of a line is cut */

enum log_sink_target {
	LOG_SINK_STDERR,
	LOG_SINK_FILE,
	LOG_SINK_SYSLOG,
};

struct log_sink;

/*
 * path is used for LOG_SINK_FILE only; the file is made if it is not there.
 *
 * Errors: -ENOMEM, and those of opening the file.
 */
int log_sink_open(enum log_sink_target target, const char *path,
		  struct log_sink **ret);
void log_sink_close(struct log_sink *sink); /* accepts NULL */
DEFINE_CLEANUP(struct log_sink *, log_sink_close)

/* For log_set_sink(log_sink_write, sink). */
void log_sink_write(enum log_level level, const char *line, void *sink);

/*
 * The next line goes to a file of the same name that is opened then; if that
 * fails, to the file as before. For a handler of SIGHUP: async-signal-safe.
 */
void log_sink_reopen(struct log_sink *sink);

#endif
