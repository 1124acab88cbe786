/* SPDX-License-Identifier: Apache-2.0 */
/* Records of operations, as the mount shows them. */
#ifndef MOUNT_HELPERS_WEIGHTCTL_OPERATION_H
#define MOUNT_HELPERS_WEIGHTCTL_OPERATION_H

#include <stdint.h>

#include "core/buf.h"

struct operation_state {
	uint64_t processed_bytes;
	uint64_t total_bytes;
};

/*
 * The text of .weights/operations/<id>.json below the mount point root,
 * appended to ret. Says nothing. Errors: what open() and read() answer.
 */
int operation_text(const char *root, uint64_t id, struct buf *ret);

/* Errors: as operation_text(), -EBADMSG. Says nothing. */
int operation_state(const char *root, uint64_t id, struct operation_state *ret);

/* What the record says in words, appended to ret. Errors: as above. */
int operation_message(const char *root, uint64_t id, struct buf *ret);

#endif
