/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of publishing: the manifest of a tree of files while it is made. What
 * the tensors are comes from the files (publish_manifest.c) or from a writer
 * (publish_import.c); the rest is the same.
 */
#ifndef CORE_PUBLISH_PRIV_H
#define CORE_PUBLISH_PRIV_H

#include "core/tree_priv.h"

#define PUBLISH_CREATED_LEN sizeof("YYYYYY-MM-DDTHH:MM:SS.mmmZ")

/* Starts zeroed but for the first three. */
struct publish_draft {
	struct weight_group *g;
	const struct staging_look *look;
	struct buf *why;
	struct manifest *m;
	char **keys; /* one for each object */
};

/* A time as manifests have it, to the second or to the millisecond. */
void publish_created_at(uint64_t ms, bool to_the_ms,
			char ret[static PUBLISH_CREATED_LEN]);

/*
 * In this order, with tensors and their fragments in between. Errors: -EBADMSG
 * and -EFBIG with a sentence, -ENOMEM, -EIO.
 */
int publish_draft_begin(struct publish_draft *d, const char *created_at);
/* The key of object i. */
int publish_draft_key(struct publish_draft *d, size_t i, const char *txid,
		      const char *fragment_id);
/* All objects, which have keys by now. */
int publish_draft_objects(struct publish_draft *d);
int publish_draft_files(struct publish_draft *d);
/* Finishes it and says what the record needs, but for the affinity. */
int publish_draft_end(struct publish_draft *d, struct publish_result *ret);
/* The manifest is the result's, also after a failure. */
void publish_draft_release(struct publish_draft *d);

#endif
