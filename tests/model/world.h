/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world: a store, its model, a follower of its log, a clock, and actors, each
 * of whom remembers what it has seen, which may be long over.
 */
#ifndef TESTS_MODEL_WORLD_H
#define TESTS_MODEL_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "model.h"
#include "script.h"
#include "store.h"

#define KEPT 4

struct actor {
	uint64_t generations[LINEAGES][GENERATIONS_MAX + 1];
	uint64_t leases[KEPT]; /* the last one first */
	uint64_t operations[KEPT];
	struct {
		uint64_t request, base, target;
	} claims[LINEAGES];
	char token[WMS_PAGE_TOKEN_MAX + 8];
};

struct world {
	struct model model;
	struct store leader;
	struct store follower;   /* dir is "": there is none */
	uint64_t follower_first; /* the oldest entry that it can have */
	struct state seen;       /* what the store said last */
	struct state before;     /* and what before the step, less operations */
	struct actor actors[ACTORS];
	uint64_t now_ms;
	uint64_t steps;
	uint64_t results[KINDS][2]; /* how many steps of it failed, or not */
};

/* All say what went wrong when they are false. */
bool world_make(struct world *w);
void world_remove(struct world *w);

/* Does one operation of a script and checks everything about it. */
bool world_step(struct world *w, const struct op *op);

/* The last of all: what is there is read as a whole, and followed. */
bool world_end(struct world *w);

/* ---- Shared by its parts ---- */

/* Gives an operation its values. */
void world_resolve(const struct world *w, const struct op *op,
		   struct call *ret);
/* What the actor learns from an outcome. */
void world_learn(struct world *w, const struct op *op, const struct call *c,
		 const struct outcome *o);

/* Operations of the store as a whole. */
bool world_whole(struct world *w, const struct op *op);
/* A mutation that a kill interrupts. */
bool world_crash(struct world *w, const struct op *op, const struct call *c);
/* Gives so many old entries to a copy of the leader. */
bool world_forge(struct world *w, struct store *copy, uint64_t count);
/* Reads everything and compares it; snapshot: that, too. */
bool world_compare(struct world *w, bool snapshot);

bool outcome_equal(const struct outcome *store, const struct outcome *model);

#endif
