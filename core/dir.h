/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories as lists of names.
 *
 * A thin layer over readdir(3) with our errors. Names come from users and may
 * hold any byte but '/' and NUL; symlinks are never followed.
 */
#ifndef CORE_DIR_H
#define CORE_DIR_H

#include <dirent.h>

#include "core/cleanup.h"

/*
 * Opens the directory name in the directory parent, not through a symlink.
 * Errors: what openat() answered, -ENOMEM.
 */
int dir_open(int parent, const char *name, DIR **ret);

void dir_close(DIR *dir);
DEFINE_CLEANUP(DIR *, dir_close)

/*
 * Stores the next name, borrowed until the next call, or NULL at the end. "."
 * and ".." are left out. Errors: what readdir() answered.
 */
int dir_next(DIR *dir, const char **ret);

#endif
