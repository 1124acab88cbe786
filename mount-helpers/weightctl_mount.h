/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of a mount: where a path leads, and attributes.
 *
 * What a path is, is told by its attributes, not by its depth, since a mount
 * may be seen through a bind mount of a part of it.
 */
#ifndef MOUNT_HELPERS_WEIGHTCTL_MOUNT_H
#define MOUNT_HELPERS_WEIGHTCTL_MOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "fs/attr_names.h"
#include "mount-helpers/weightctl_say.h"

/*
 * Stores the real path, to be freed, of something that is on a mount of
 * weightfs. Errors: what realpath() answered, -EXDEV it is elsewhere.
 */
int mount_resolve(const char *path, char **ret);

/*
 * As mount_resolve(), for the revision that path is or is below; if staged is
 * true it may be a staged one. Errors: also -ENOENT there is none.
 */
int mount_revision(const char *path, bool staged, char **ret);

/*
 * Stores the mount point that path is below; with NULL that of the working
 * directory, or of the only mount that there is. Says nothing.
 * Errors: -ENOENT there is none, -EEXIST there are several, -ENOMEM, -EIO.
 */
int mount_root(const char *path, char **ret);

/* As mount_root(), and says why there is none. */
int mount_named(const char *path, char **ret);

/*
 * As mount_resolve(), for the lineage that path is or is below.
 * Errors: also -ENOENT there is none.
 */
int mount_lineage(const char *path, char **ret);

/*
 * The text of .weights/NAME below the mount point root, appended to ret. Says
 * nothing. Errors: what open() and read() answer, -EFBIG.
 */
int mount_text(const char *root, const char *name, struct buf *ret);

/*
 * The value of user.weights.NAME, appended to ret, which may be NULL. Says
 * nothing. Errors: -ENODATA, and what getxattr() answers.
 */
int attr_read(const char *path, const char *name, struct buf *ret);
bool attr_is_there(const char *path, const char *name);
/* The value as a number. Errors: also -EINVAL it is none. */
int attr_read_u64(const char *path, const char *name, uint64_t *ret);

/* Whether the revision at path survives a power loss. */
bool revision_is_durable(const char *path);

/* Says nothing. Errors: what setxattr() answers. */
int attr_set(const char *path, const char *name, const char *value);

/* Says why when it is refused. Errors: what setxattr() answers. */
int attr_write(const char *path, const char *name, const char *value);

/* Adds the value of attribute name: numbers as such, durable as a truth. */
void facts_attr(struct facts *f, const char *name, const char *value);
/* Adds those of the attributes that path has; names ends with NULL. */
void facts_attrs(struct facts *f, const char *path, const char *const *names);

/* The number that the last part of path is. Errors: -EINVAL it is none. */
int path_generation(const char *path, uint64_t *ret);

#endif
