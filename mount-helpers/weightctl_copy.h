/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of trees and files into a mount: bytes, modes, times, symlinks, hard
 * links and holes are kept; owners are those of the caller.
 *
 * A file that changes while it is copied is a failure. All functions say what
 * failed. Symlinks are copied as they are unless follow is set; the source
 * itself may be one in any case.
 */
#ifndef MOUNT_HELPERS_WEIGHTCTL_COPY_H
#define MOUNT_HELPERS_WEIGHTCTL_COPY_H

#include <stdbool.h>
#include <stdint.h>

struct bar;

/* Directories within directories; more than a revision may have. */
#define COPY_DEPTH_MAX 128

struct copy_totals {
	uint64_t bytes; /* of files, each inode once, holes included */
	uint64_t files; /* names of regular files */
};

/*
 * Adds up what copy_tree() would copy. Errors: -EPERM something that is neither
 * file, directory nor symlink, -ELOOP too deep, -EINTR, and what reading
 * answers.
 */
int copy_count(const char *source, bool follow, struct copy_totals *ret);

/*
 * Copies what is in the directory source into the directory target, or the
 * file source under its own name. target is there already and gets mode and
 * times of a source that is a directory. bar goes from 0 to totals.
 *
 * Errors: as copy_count(), -EBUSY a file changed, and what writing answers.
 */
int copy_tree(const char *source, const char *target, bool follow,
	      const struct copy_totals *totals, struct bar *bar);

/*
 * Copies the file source to target/path and makes the directories between.
 * bar is moved on by its bytes. Errors: as copy_tree().
 */
int copy_file(const char *source, const char *target, const char *path,
	      struct bar *bar);

/* rm -r, not interrupted by a signal. Says nothing. Errors: the first one. */
int copy_remove(const char *path);
/* The same, of what is in the directory path. */
int copy_empty(const char *path);

#endif
