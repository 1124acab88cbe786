/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes: the names user.weights.*, one table in attr.c. Adding one is
 * adding a row; listing, reading, writing and the help text follow.
 *
 * Threads: any. Everything here may read the disk or wait.
 */
#ifndef FS_ATTR_H
#define FS_ATTR_H

#include "fs/call.h"

#define ATTR_PREFIX "user.weights."

/* Whether the name is one of ours, known or not. */
bool attr_is_ours(const char *name);

/* Whether reading it may take so long that it needs a thread of its own. */
bool attr_waits(const char *name);

/*
 * Value of the attribute call->name of call->node. Errors: -ENODATA not there,
 * -EINTR, -EIO.
 */
int attr_get(struct call *call, struct buf *ret);

/* Names, each with its NUL, of what is there now. */
int attr_list(struct call *call, struct buf *ret);

/*
 * Sets call->name to call->in. Errors: -EPERM nothing to be set (why says so),
 * -EINVAL a bad value, and what the action answers.
 */
int attr_set(struct call *call);

/* A line for each attribute. Errors: those of buf_append(). */
int attr_help(struct buf *ret);

#endif
