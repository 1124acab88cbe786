/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of a lineage beside its revisions: how far it has come, and the
 * replacement of one generation by a newer one that was claimed last.
 *
 * Plain values and pure functions, thread-safe. Ownership, trust and units are
 * those of core/weight_management.h.
 *
 * Source: weight contracts, sections 6.1, 6.3 and 6.13.
 */
#ifndef CORE_WEIGHT_LINEAGE_H
#define CORE_WEIGHT_LINEAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/digest.h"
#include "core/weight_management.h"

/* What a writer says of a revision before the first byte of it. */
struct weight_import {
	uint64_t payload_count;
	uint64_t logical_bytes;
	struct weight_policy policy;
	uint64_t affinity_count;
	struct digest affinity_digest;
};

bool weight_import_equal(const struct weight_import *a,
			 const struct weight_import *b);

/*
 * The claim to replace `base` by `target`, both of one lineage.
 *
 * A target that is staged on a mount is described by nobody before it is
 * published: then `described` is false and `import` is zero.
 */
struct weight_claim {
	const char *request_id;
	uint64_t base; /* weight generations, target above base */
	uint64_t target;
	enum weight_upsert_mode mode;
	enum weight_upsert_phase phase;
	uint64_t expected_base_metadata_generation; /* 1 or more */
	bool described;
	struct weight_import import;
	uint64_t created_at_ms;
	uint64_t updated_at_ms;
	const char *error; /* why it doesn't go on, or "" */
};

struct weight_lineage_record {
	struct weight_lineage lineage;
	uint64_t lineage_metadata_generation; /* 1 or more, as of revisions */
	uint64_t watermark; /* the weight generation that it has reached */
	bool claimed;       /* there was a claim; the rest is the latest one */
	struct weight_claim claim;
};

/* Errors: -EINVAL. */
int weight_lineage_record_check(const struct weight_lineage_record *l,
				struct buf *why);

/* Errors: -ENOMEM. */
int weight_lineage_record_copy(const struct weight_lineage_record *l,
			       struct weight_lineage_record **ret);
/* Accepts NULL. */
void weight_lineage_record_free(struct weight_lineage_record *l);
DEFINE_CLEANUP(struct weight_lineage_record *, weight_lineage_record_free)

/* The claim that is going on, or NULL; l may be NULL. */
const struct weight_claim *weight_lineage_live_claim(
	const struct weight_lineage_record *l);

/* Whether a claim that is going on names the generation; l may be NULL. */
bool weight_lineage_claims(const struct weight_lineage_record *l,
			   uint64_t generation);

/*
 * Whether a claim that is going on keeps everybody from the generation: it is
 * the base, and is being deleted or about to be. l may be NULL.
 */
bool weight_lineage_fences(const struct weight_lineage_record *l,
			   uint64_t generation);

#endif
