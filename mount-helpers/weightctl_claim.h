/* SPDX-License-Identifier: Apache-2.0 */
/* What a lineage tells of the latest replacement of one of its generations. */
#ifndef MOUNT_HELPERS_WEIGHTCTL_CLAIM_H
#define MOUNT_HELPERS_WEIGHTCTL_CLAIM_H

#include <stdint.h>

#include "core/buf.h"
#include "core/weight_management.h"
#include "mount-helpers/weightctl_say.h"

/* Starts as CLAIM_INIT. */
struct claim {
	uint64_t base, target;
	enum weight_upsert_mode mode;
	enum weight_upsert_phase phase;
	struct buf request_id;
	struct buf error; /* why it doesn't go on, or empty */
};
#define CLAIM_INIT                                                             \
	{                                                                      \
		.request_id = BUF_INIT, .error = BUF_INIT                      \
	}
void claim_release(struct claim *c);

/*
 * Reads that of lineage into ret, which holds none. Says nothing.
 * Errors: -ENODATA nothing was replaced there; -EBADMSG; what getxattr()
 * answers.
 */
int claim_read(const char *lineage, struct claim *ret);

/* Adds its members. */
void claim_facts(const struct claim *c, struct facts *f);

#endif
