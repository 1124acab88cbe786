/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random scripts. What comes next is chosen by what there is, so that claims
 * and operations do get to their end, and now and then by chance alone.
 */
#ifndef TESTS_MODEL_GENERATE_H
#define TESTS_MODEL_GENERATE_H

#include <stddef.h>
#include <stdint.h>

#include "script.h"
#include "world.h"

struct generator {
	uint64_t random;
	uint64_t lineage_count; /* of these, in this order */
	uint64_t lineages[LINEAGES];
	uint64_t generation_max;
	size_t length; /* of the script */
	bool is_replicated;
};

/* A generator of one script; the same seed gives the same. */
void generator_init(struct generator *g, uint64_t seed);

/* The operation with this number, for a world that has done those before. */
void generate(struct generator *g, struct world *w, size_t number,
	      struct op *ret);

#endif
