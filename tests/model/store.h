/* SPDX-License-Identifier: Apache-2.0 */
/* The store under test: calls, and its records in the form of the model's. */
#ifndef TESTS_MODEL_STORE_H
#define TESTS_MODEL_STORE_H

#include <stdbool.h>

#include "core/oplog.h"
#include "core/weight_metadata_store.h"
#include "model.h"
#include "state.h"

/*
 * One store in a directory of its own. Opening applies the options, as a daemon
 * does, and says so and is false when something fails.
 */
struct store {
	char dir[64];
	struct weight_metadata_store *s; /* NULL: closed */
	struct wms_options options;
};

/*
 * All stores of a run are below one directory, so that also those go with it
 * whose process died.
 */
bool stores_begin(void);
void stores_clear(void);
void stores_end(void);

bool store_make(struct store *store); /* an empty one */
bool store_open(struct store *store);
void store_close(struct store *store);
void store_remove(struct store *store); /* with its directory */

/* Says boot `number` begins. */
int store_boot(struct store *store, uint64_t number, bool *ret_unclean);

void store_apply(struct store *store, const struct call *c,
		 struct outcome *ret);

/* ---- Reading what is there, by all that iterates; false says why ---- */

/* Revisions, stagings and the record of one lineage take the place of those
 * in ret. */
bool store_read_lineage(struct store *store, uint64_t lineage,
			struct state *ret);
bool store_read_leases(struct store *store, struct state *ret);
bool store_read_operation(struct store *store, uint64_t id, struct state *ret);
bool store_read_all(struct store *store, struct state *ret);

/*
 * The same from a snapshot of it, but for what is not in one. Its head is
 * compared with the model.
 */
bool store_read_snapshot(struct store *store, const struct model *m,
			 struct state *ret);

/* ---- Snapshots and the log ---- */

/* The bytes of a snapshot; the caller frees them. */
bool store_export(struct store *store, char **ret, size_t *ret_len);
/* Fills an empty store. */
bool store_import(struct store *store, const char *bytes, size_t len,
		  bool elsewhere);

/* A snapshot with another byte is refused; `where` says which one. */
bool store_refuses_damaged(struct store *store, const char *bytes, size_t len,
			   uint64_t where);

/*
 * Brings a follower up to the log of a leader. False, and says so, when an entry
 * is missing or refused, or when one is taken that is damaged or not the next.
 */
bool store_follow(struct store *follower, struct store *leader);

/* Whether an entry is of the type, and from a time between these two. */
bool store_log_says(struct store *store, uint64_t sequence,
		    enum oplog_type type, uint64_t from_ms, uint64_t to_ms);

/* Says what wms_check() has found. */
bool store_is_sound(struct store *store);

#endif
