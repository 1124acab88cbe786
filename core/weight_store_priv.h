/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the first door: what its files share. */
#ifndef CORE_WEIGHT_STORE_PRIV_H
#define CORE_WEIGHT_STORE_PRIV_H

#include "core/publish_import.h"
#include "core/tree_priv.h"
#include "core/weight_store.h"

/* ---- weight_store_door.c ---- */

/* Whether the store has such a tenant at all. -EINVAL. */
int door_check_tenant(const struct weight_store *s, const char *tenant,
		      struct buf *why);
/* Both: -EINVAL. why may be NULL. */
int door_check(const struct weight_store *s, const struct weight_identity *id,
	       struct buf *why);

/* ---- weight_store_reader.c ---- */

const struct manifest *reader_manifest(const struct weight_reader *reader);

/* ---- weight_store_writer.c ---- */

enum writer_state {
	WRITER_OPEN,
	WRITER_UNSURE, /* it may be committed, in whole or in part */
	WRITER_COMMITTED,
	WRITER_ABORTING, /* in part */
	WRITER_ABORTED,
};

struct weight_writer {
	struct weight_store *store;
	struct import_plan *plan;
	/* NULL once the import is gone, or when there is a reader. */
	struct weight_group *group;
	/* Of a target that was READY before: bytes are compared with it. */
	struct weight_reader *reader;
	bool *given;
	size_t given_count;
	enum writer_state state;
	bool imported; /* it is READY */

	/* Of a replacement; request_id NULL: it is none. */
	char *request_id;
	uint64_t base;
	enum weight_upsert_mode mode;
};

/* Checks what is described. Errors: as weight_put(). */
int writer_new(struct weight_store *s, const struct weight_identity *identity,
	       const struct weight_description *tensors, size_t count,
	       struct weight_writer **ret, struct buf *why);

/*
 * Begins the import, or goes on with it; where the revision is READY by this
 * very request, there is no group. The transaction id is set before. Errors: as
 * tree_import_begin(); -EEXIST the replacement was described otherwise.
 */
int writer_begin(struct weight_writer *w, const struct weight_import *import,
		 struct buf *why);

/* ---- weight_store_upsert.c ---- */

/* The revision is READY, or its import is gone. Both may be repeated. */
int upsert_commit(struct weight_writer *w, struct buf *why);
int upsert_abort(struct weight_writer *w, struct buf *why);

#endif
