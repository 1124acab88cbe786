/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model: what a weight metadata store has to answer, and to know then,
 * computed from the contracts alone. It shares no decision with the store: only
 * the values of enums, the rules of a name, and the limits are common.
 *
 * A call is an operation of a script with all its values; the same call goes to
 * the model and to the store, and both outcomes have to be the same.
 *
 * Where the contracts leave something open, the header of the store decides;
 * such places say "as the header says".
 *
 * Source: weight contracts, sections 6.1 to 6.17 and 8.2.
 */
#ifndef TESTS_MODEL_MODEL_H
#define TESTS_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/weight_metadata_store.h"
#include "names.h"
#include "script.h"
#include "state.h"

struct import {
	uint64_t payload_count, logical_bytes;
	uint64_t preferred;
	double policy_ratio;
	uint64_t mode;
	uint64_t affinity_count, affinity_tag;
};

/* Which members count, the kind says. */
struct call {
	enum kind kind;
	uint64_t now_ms;
	uint64_t lineage, generation, flaw;
	uint64_t fence;
	struct import import;
	bool has_policy;
	uint64_t tag, ref;
	uint64_t availability, residency;
	double ratio;
	bool durable, converges, stays, beside, by_claim;
	uint64_t holder, ttl_ms;
	bool degraded_too;
	uint64_t lease, tenant;
	uint64_t limit, ignore;
	uint64_t operation, operation_kind, target;
	bool supersedes;
	uint64_t processed_units, total_units, processed_bytes, total_bytes;
	uint64_t cursor, message;
	uint64_t request, base, upsert_mode;
	bool described;
	bool wants_durable;
	char token[WMS_PAGE_TOKEN_MAX + 8];
	uint64_t names, depth;
};

/* All is zero but err when that isn't 0. */
struct outcome {
	int err;
	bool has_revision, has_lease, has_operation, has_lineage, has_staging;
	struct revision revision;
	struct lease lease;
	struct operation operation;
	struct lineage lineage;
	struct staging staging;
	uint64_t numbers[2];
	char text[WMS_PAGE_TOKEN_MAX + 8];
	size_t count;
	struct revision items[REVISIONS_MAX];
};

void outcome_clear(struct outcome *o);

struct model {
	struct state s;
	uint64_t next_lease_id, next_operation_id;
	/* The oldest entry is one of those from first to first_max. */
	uint64_t oplog_first, oplog_first_max, oplog_next, oplog_keep;
	bool replicated, confirms_management, confirms_lineages;
	uint64_t epoch;
	uint64_t boot; /* 0: none has begun */
	bool is_clean;
	bool is_new; /* no boot had begun when it was opened */
};

void model_init(struct model *m);
void model_copy(struct model *to, const struct model *from);

/* What the store has to answer; m becomes what it has to know then. */
void model_apply(struct model *m, const struct call *c, struct outcome *ret);

/* ---- Of the store as a whole ---- */

void model_reopened(struct model *m);
/* Whether the machine went down. */
bool model_boot(struct model *m, uint64_t boot);
/*
 * The metadata as another store has it, that followed the log or was filled
 * from a snapshot: without what is the machine's own.
 */
void model_moved(struct model *m, bool elsewhere);

/* ---- Shared by its parts ---- */

/* A mutation that has something to write, of so many log entries. */
int model_may_log(const struct model *m, bool of_lineages);
void model_logged(struct model *m, size_t entries);
/* Whether the log may reach from first to before next; it does from then on. */
bool model_log_is(struct model *m, uint64_t first, uint64_t next);

bool identity_is_bad(const struct call *c);
bool policy_is_bad(const struct import *i);
bool ratio_fits(uint64_t residency, double ratio);
bool fence_fits(uint64_t current, uint64_t expected);
/* A repeat of what was applied may come with the generation before. */
bool fence_is_retry(uint64_t current, uint64_t expected);
uint64_t later(uint64_t a, uint64_t b);
/* The next metadata generation; -EOVERFLOW. */
int advance(uint64_t generation, uint64_t *ret);

/*
 * Whether there may be an import, or a deletion, beside the claim that goes on.
 */
int beside_claim(const struct lineage *l, uint64_t generation, bool is_import,
		 bool by_claim);

/* The active operation of a revision, or NULL. */
struct operation *active_operation(struct state *s, const struct revision *r);
/* A new one, of a revision as it is from now on. */
struct operation operation_begin(struct model *m, struct revision *r,
				 uint64_t kind, uint64_t target, double ratio,
				 uint64_t now_ms);
/* It ends, or its fence follows the revision. */
void operation_end(struct operation *op, uint64_t message, uint64_t now_ms);
void operation_follow(struct operation *op, const struct revision *r,
		      uint64_t now_ms);

/* How many active leases a revision has, but for those of a holder. */
uint64_t leases_of(struct state *s, const struct revision *r, uint64_t ignore,
		   uint64_t now_ms);

/* The kinds of calls, by the file that has them. */
void model_import(struct model *m, const struct call *c, struct outcome *ret);
void model_revision(struct model *m, const struct call *c, struct outcome *ret);
void model_lease(struct model *m, const struct call *c, struct outcome *ret);
void model_operation(struct model *m, const struct call *c,
		     struct outcome *ret);
void model_claim(struct model *m, const struct call *c, struct outcome *ret);
void model_question(struct model *m, const struct call *c, struct outcome *ret);

#endif
