/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The twelve safety invariants of the contracts, as far as records can say
 * them, looked at after each step: on what the store said before it, and says
 * after it. The model has no part in them.
 *
 * Source: weight contracts, section 6.17.
 */
#ifndef TESTS_MODEL_INVARIANTS_H
#define TESTS_MODEL_INVARIANTS_H

#include <stdbool.h>

#include "model.h"
#include "state.h"

struct step {
	const struct call *call;
	int err;
	struct state *before; /* without operations */
	struct state *after;
};

/* Says which one is broken. */
bool invariants_hold(const struct step *step);

#endif
