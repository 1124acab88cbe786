/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An import that a writer describes: which tensors it has, what follows from
 * that, and how it is published.
 *
 * A plan is made from descriptions and doesn't change after its writer has set
 * the transaction and the time. It owns all it points to.
 */
#ifndef CORE_PUBLISH_IMPORT_H
#define CORE_PUBLISH_IMPORT_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/digest.h"
#include "core/manifest.h"
#include "core/weight_lineage.h"
#include "core/weight_management.h"
#include "core/weight_store.h"

struct weight_group;
struct staging_look;
struct publish_result;

struct import_plan {
	struct weight_identity *identity;
	/*
	 * The stored manifest in its strict form, with IMPORT_NO_TXID and
	 * IMPORT_NO_TIME: tensors by id, one fragment for each, in that order.
	 */
	struct manifest *described;
	struct digest source; /* of the text of that */
	char **names;    /* of the tensors' files, below the group's root */
	size_t *by_name; /* tensors in the order of their names */
	size_t count;

	/* Its writer's: set once the import is on record. */
	char txid[DIGEST_HEX_LEN + 1];
	uint64_t created_at_ms;
	bool to_the_ms; /* created_at says so */
	struct weight_policy policy;
	uint64_t metadata_generation;
};

#define IMPORT_NO_TXID "00000000000000000000000000000000"
#define IMPORT_NO_TIME "1970-01-01T00:00:00Z"

/*
 * Errors: -EINVAL the descriptions break a rule, and why says which; -EFBIG,
 * -ENOMEM, -EIO.
 */
int import_plan_new(const struct weight_identity *identity,
		    const struct weight_description *tensors, size_t count,
		    struct import_plan **ret, struct buf *why);
void import_plan_free(struct import_plan *plan); /* accepts NULL */
DEFINE_CLEANUP(struct import_plan *, import_plan_free)

/* What is announced of it, but for the policy. Errors: -ENOMEM, -EIO. */
int import_plan_announce(const struct import_plan *plan,
			 struct weight_import *ret);

/* The tensor of an id, or -ENOENT. */
int import_plan_find(const struct import_plan *plan, const char *tensor_id,
		     size_t *ret);
uint64_t import_plan_len(const struct import_plan *plan, size_t i);

/*
 * Whether a published manifest is that of this plan, as far as the transaction
 * says. Not of one whose transaction id is random.
 */
bool import_plan_made(const struct import_plan *plan, const struct manifest *m);

/*
 * The manifest of the files, which are exactly those of the plan. Errors:
 * -EBADMSG they aren't, -ENOMEM, -EIO.
 */
int import_plan_manifest(const struct import_plan *plan, struct weight_group *g,
			 const struct staging_look *look,
			 struct publish_result *ret, struct buf *why);

/*
 * Publishes the group, whose files are all there, in the calling thread. Waits
 * for what publishing needs. *ret_decided is true when the record was asked to
 * change: whatever this returns, it may have.
 *
 * Errors: as wms_import_commit(); -EBUSY a file of it is open for writing;
 * -ENOSPC, -EIO and such.
 */
int publish_import(struct weight_group *g, const struct import_plan *plan,
		   bool *ret_decided, struct buf *why);

#endif
