/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All of it or an error: reading and writing that goes on after signals and
 * after short answers.
 *
 * Pure system calls, thread-safe; descriptors stay the caller's.
 */
#ifndef CORE_FILE_IO_H
#define CORE_FILE_IO_H

#include <stddef.h>
#include <stdint.h>

/* Writes len bytes where fd stands. Errors: what write() answered; -EIO nothing. */
int file_io_write(int fd, const void *bytes, size_t len);

/*
 * Reads len bytes at offset. Errors: what pread() answered; -EIO the file ends
 * before.
 */
int file_io_read_at(int fd, void *bytes, size_t len, uint64_t offset);

#endif
