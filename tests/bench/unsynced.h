/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that wait for the disk, instead of those of the C library. A program
 * that includes this makes what would take hours with a wait for each of very
 * many revisions; it, or its caller, syncs when all is there.
 *
 * What is opened while unsynced is true never waits. What is opened later
 * does, and so do the calls themselves.
 */
#ifndef BENCH_UNSYNCED_H
#define BENCH_UNSYNCED_H

#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool unsynced = true;

int fsync(int fd)
{
	return unsynced ? 0 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
	return unsynced ? 0 : (int)syscall(SYS_fdatasync, fd);
}

int syncfs(int fd)
{
	return unsynced ? 0 : (int)syscall(SYS_syncfs, fd);
}

/* The database has a descriptor whose writes are synchronous. */
static int unsynced_open(const char *path, int flags, va_list more)
{
	mode_t mode = 0;

	if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE)
		mode = va_arg(more, mode_t);
	if (unsynced)
		flags &= ~O_SYNC;
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
	va_list more;
	int fd;

	va_start(more, flags);
	fd = unsynced_open(path, flags, more);
	va_end(more);
	return fd;
}

int open(const char *path, int flags, ...)
{
	va_list more;
	int fd;

	va_start(more, flags);
	fd = unsynced_open(path, flags, more);
	va_end(more);
	return fd;
}

#endif
