/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes: reading and setting what is named user.weights.*. Adding one is
 * adding a row in attr_names.c and one in attr.c; listing, reading, writing and
 * the help text follow.
 *
 * Threads: any. Everything here may read the disk or wait.
 */
#ifndef FS_ATTR_H
#define FS_ATTR_H

#include "fs/attr_names.h"
#include "fs/call.h"

/* Whether the name is one of ours, known or not. */
bool attr_is_ours(const char *name);

/* Whether reading it may take so long that it needs a thread of its own. */
bool attr_waits(const char *name);

/*
 * Whether it can be set on a staged generation. No copy brings one of these
 * along, since they are not listed; all others are taken there and ignored.
 */
bool attr_sets_staged(const char *name);

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

#endif
