/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weight store: the first door to the domain.
 *
 * A store is a directory that holds immutable revisions of model weights and
 * the metadata about them. One process has it open at a time.
 *
 * Ownership: weight_store_open() gives the store to the caller, who closes it
 * with weight_store_close(). Records are handed out as copies and freed with
 * weight_metadata_free(). Identities are borrowed for the call.
 *
 * Threads: every function may be called from any thread, and may wait for the
 * disk unless it says otherwise.
 *
 * Failures: a negative errno that stands for one error of the contracts
 * (core/weight_management.h has the table). Where a function takes `why`, a
 * failure appends one sentence for a person to it.
 *
 * Source: weight contracts, sections 6.10, 6.12 and 6.16. What only a
 * filesystem needs is behind the other door, core/weight_tree.h.
 */
#ifndef CORE_WEIGHT_STORE_H
#define CORE_WEIGHT_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/config.h"
#include "core/weight_management.h"

struct weight_store;

/*
 * Opens the store in directory path, makes it if it is absent or an empty
 * directory, and settles what the last owner left: unfinished deletions go on,
 * orphaned payload directories are swept, leases are checked against what is
 * really held. config must outlive the store.
 *
 * No fork() after this call: the database does not survive it.
 *
 * Errors: -EBUSY another process has the store open, -EUCLEAN it is damaged or
 * not a store, -EPROTONOSUPPORT a newer version wrote it, -EACCES, -ENOSPC,
 * -ENOMEM, -EIO.
 */
int weight_store_open(const char *path, const struct config *config,
		      struct weight_store **ret, struct buf *why);

/* Ends all background work and marks the store clean. Accepts NULL. */
void weight_store_close(struct weight_store *store);
DEFINE_CLEANUP(struct weight_store *, weight_store_close)

/* True for READY only. Errors: -EINVAL a bad identity, -EIO. */
int weight_is_exist(struct weight_store *store,
		    const struct weight_identity *identity, bool *ret);

/*
 * The record of a revision in any state, a tombstone included. Never reads the
 * manifest. Errors: -EINVAL, -ENOENT, -ENOMEM, -EIO.
 */
int weight_get_metadata(struct weight_store *store,
			const struct weight_identity *identity,
			struct weight_metadata **ret);

/* Bytes of the payload. Errors: as above, and -EINPROGRESS unless READY. */
int weight_get_size(struct weight_store *store,
		    const struct weight_identity *identity, uint64_t *ret);

/*
 * Removes the whole revision. Returns when the decision is durable and the
 * revision is out of sight; its bytes go in the background.
 * expected_metadata_generation 0 means the one that is current now.
 *
 * Errors: -ENOENT, -ECANCELED another metadata generation, -EBUSY somebody
 * holds or maps it (why says who), -EINPROGRESS not in a state to be removed.
 */
int weight_remove(struct weight_store *store,
		  const struct weight_identity *identity,
		  uint64_t expected_metadata_generation, struct buf *why);

#endif
