/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's list of mounts, as far as it matters here. */
#ifndef FS_MOUNTINFO_H
#define FS_MOUNTINFO_H

#include <stdbool.h>

/*
 * Whether the topmost mount at path, an absolute path without symlinks, is a
 * weightfs, dead or alive. False too when the list can't be read.
 */
bool mountinfo_is_ours(const char *path);

/*
 * Whether a line of mountinfo is a mount at path, and of which type: the type
 * is borrowed from line, which is changed. NULL: another place. Here for tests.
 */
const char *mountinfo_type_at(char *line, const char *path);

#endif
