/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon asks of the kernel's FUSE module, and what it declines. */
#ifndef FS_CAPS_H
#define FS_CAPS_H

#include <stdbool.h>

struct fuse_conn_info;

/*
 * Call from init. Sets every feature of the table in caps.c as it says, as far
 * as it is offered. Returns whether passthrough is.
 */
bool caps_negotiate(struct fuse_conn_info *conn);

#endif
