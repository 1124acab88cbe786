/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon arranges for itself as a process.
 *
 * Not thread-safe: called by main() before the first thread.
 */
#ifndef FS_PROCESS_H
#define FS_PROCESS_H

#include <stdbool.h>

#include "core/buf.h"

/*
 * Raises the limit of open files as far as it goes, asks not to be killed for
 * lack of memory, and leaves file modes to those who make files. What could
 * not be had is appended, a line each, for people.
 */
void process_prepare(struct buf *shortcomings);

/*
 * Goes into the background. The parent doesn't return: it waits until the
 * child calls process_ready() or is gone, and ends with 0 or 1. Must come
 * before the first thread. Errors: -EMFILE, -EAGAIN, -ENOMEM.
 */
int process_background(int *ret_fd);

/*
 * Lets the parent end with success, and lets go of the terminal, but for
 * stderr if keep_stderr. fd is what process_background() stored, now closed.
 */
void process_ready(int fd, bool keep_stderr);

/*
 * An absolute path for one that may not exist yet: its directory resolved, its
 * last part as it is. Errors: those of realpath(3), -ENOMEM.
 */
int process_absolute(const char *path, char **ret);

#endif
