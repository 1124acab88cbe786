/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of the attributes user.weights.*: one table of what there is, where,
 * and what it means. How values are read and set is the table of attr.c, which
 * has the same numbers.
 *
 * No FUSE in here, so that other programs can link it.
 *
 * Adding an attribute is adding a number and a row here, and a row there.
 */
#ifndef FS_ATTR_NAMES_H
#define FS_ATTR_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"

#define ATTR_PREFIX "user.weights."

/* What has attributes. */
enum attr_scope {
	ATTR_OF_REVISION = 1, /* a published generation */
	ATTR_OF_STAGED = 2,   /* a generation that is being copied in */
	ATTR_OF_LINEAGE = 4,
	ATTR_OF_FILE = 8, /* of a published generation */
	ATTR_OF_TENSOR = 16,
};

/* In the order in which they are listed. */
enum attr_id {
	ATTR_AVAILABILITY,
	ATTR_RESIDENCY,
	ATTR_HOT_RATIO,
	ATTR_PINNED_BYTES,
	ATTR_PREFERRED,
	ATTR_MIXED_HOT_RATIO,
	ATTR_MODE,
	ATTR_POLICY,
	ATTR_METADATA_GENERATION,
	ATTR_LOGICAL_BYTES,
	ATTR_PAYLOAD_COUNT,
	ATTR_MANIFEST_SHA256,
	ATTR_MANIFEST_KEY,
	ATTR_GROUP_ID,
	ATTR_OPERATION,
	ATTR_LEASES,
	ATTR_DURABLE,
	ATTR_SCRUB,
	ATTR_CREATED,
	ATTR_UPDATED,
	ATTR_LAST_ACCESSED,
	ATTR_ERROR,
	ATTR_PROGRESS,
	ATTR_REPLACES,
	ATTR_WATERMARK,
	ATTR_CLAIM,
	ATTR_DIGEST,
	ATTR_DTYPE,
	ATTR_SHAPE,
	ATTR_EXTENT,
	ATTR_SHA256,
	ATTR_REPAIR,
	ATTR_REMOVE,
	ATTR_COUNT, /* not an attribute */
};

struct attr_name {
	const char *name; /* behind ATTR_PREFIX */
	const char *help; /* a line without a full stop */
	unsigned get;     /* enum attr_scope: where it can be read */
	unsigned set;     /* where it can be set */
	bool unlisted;    /* read by name only */
};

extern const struct attr_name attr_names[ATTR_COUNT];

/* The one with that name, behind ATTR_PREFIX, or ATTR_COUNT. */
enum attr_id attr_names_find(const char *name);

/* A line for each attribute. Errors: those of buf_append(). */
int attr_help(struct buf *ret);

#endif
