/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One entry of a manifest's text, turned into the arguments of
 * manifest_add_*(). For manifest_read.c.
 *
 * An entry starts zeroed, with why set, and can be used again and again. What
 * was read is borrowed: valid until the JSON value is gone or the next entry is
 * read.
 */
#ifndef CORE_MANIFEST_ENTRY_H
#define CORE_MANIFEST_ENTRY_H

#include <stddef.h>
#include <stdint.h>

#include "core/manifest.h"

struct json_value;

/* A name that stands for an index. data is NULL where there is none. */
struct manifest_reference {
	struct manifest_id name;
	size_t rank; /* of a fragment's box */
};

struct manifest_entry {
	struct buf *why;
	/* Results, by kind of entry. */
	struct manifest_tensor tensor;
	struct manifest_fragment fragment; /* but for tensor */
	struct manifest_file file;         /* but for object */
	struct manifest_object object;
	/* The tensor of a fragment, the object of a file. */
	struct manifest_reference reference;

	/* Scratch, which the results point into. */
	struct manifest_axis axis;
	size_t shape_rank;
	uint64_t dims[2][MANIFEST_RANK_MAX];
	uint32_t shard_dims[MANIFEST_RANK_MAX];
	struct manifest_axis axes[MANIFEST_AXES_MAX];
	struct manifest_id *aliases; /* MANIFEST_ALIASES_MAX, on demand */
	struct digest *chunks;
	size_t chunk_cap;
};

void manifest_entry_release(struct manifest_entry *e);

/* Errors: -EBADMSG, -EFBIG, -ENOMEM. */
int manifest_entry_tensor(struct manifest_entry *e, const struct json_value *v);
int manifest_entry_fragment(struct manifest_entry *e,
			    const struct json_value *v);
int manifest_entry_file(struct manifest_entry *e, const struct json_value *v);
int manifest_entry_object(struct manifest_entry *e, const struct json_value *v);

/* A string without NUL bytes inside. Errors: -EBADMSG. */
int manifest_entry_text(struct manifest_entry *e, const struct json_value *v,
			const char **ret);
int manifest_entry_u64(struct manifest_entry *e, const struct json_value *v,
		       uint64_t *ret);

/* Says what is wrong with a value. Returns -EBADMSG. */
int manifest_entry_wrong(struct manifest_entry *e, const char *what);

#endif
