/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What core/meta.c asks of files, disks and the address space. Nothing here
 * knows what is in the files. Used by core/meta.c alone.
 *
 * Errors are those of the system calls, unless said otherwise. Thread-safe.
 */
#ifndef CORE_META_DISK_H
#define CORE_META_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"

#define META_DISK_DATA "data.mdb"

/* -ENOSPC and -EDQUOT. */
bool meta_disk_is_full(int err);
/* UINT64_MAX when it can't be known. */
uint64_t meta_disk_free_bytes(int fd);
/* fallocate(2) that signals don't interrupt. */
int meta_disk_allocate(int fd, int mode, uint64_t offset, uint64_t len);
/* Makes the file at least that long, with a hole. Best effort. */
void meta_disk_extend(int fd, uint64_t size);
/* Makes the file if it is absent and gives it disk space from its start on. */
int meta_disk_file(const char *path, uint64_t len);

/* -ENOMEM: so many more bytes can't be mapped. */
int meta_disk_address_space(size_t more);
/*
 * Where the file is mapped to be written, the mapping becomes memory of this
 * process, with the same bytes. On a full disk that copies what it writes, a
 * write to the mapping of a file is SIGBUS, whatever was allocated. Nobody
 * writes there meanwhile. -ENOENT: it isn't mapped so; -ENOMEM.
 */
int meta_disk_unmap_file(const char *path);

int meta_disk_sync(int fd);
int meta_disk_sync_parent(int dirfd);

/* Opens the directory; with make, makes it (mode 0700) if absent. -EUCLEAN. */
int meta_disk_dir(const char *dir, bool make, int *ret_fd);

/* Joins both, for the caller to free. -ENOMEM. */
int meta_disk_path(const char *dir, const char *name, char **ret);

/* Appends why the database in dir can't be opened. Silent for -ENOMEM. */
void meta_disk_explain(const char *dir, int err, bool read_only,
		       struct buf *why);

#endif
