/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the decisions: fences, states and times, as all of them see them.
 * Pure functions, thread-safe.
 */
#ifndef CORE_WEIGHT_DECISION_PRIV_H
#define CORE_WEIGHT_DECISION_PRIV_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/log.h"
#include "core/weight_decision.h"

/* why may be NULL. */
#define EXPLAIN(why, ...)                                                      \
	do {                                                                   \
		if (why)                                                       \
			(void)buf_printf(why, __VA_ARGS__);                    \
	} while (0)

static inline uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static inline bool is_live(const struct weight_metadata *m)
{
	return m->availability == WEIGHT_READY ||
	       m->availability == WEIGHT_DEGRADED;
}

static inline bool is_stale(const struct weight_metadata *m, uint64_t expected)
{
	return expected != 0 && expected != m->metadata_generation;
}

/* A repeat of a mutation that is found applied. */
static inline bool is_retry(const struct weight_metadata *m, uint64_t expected)
{
	return expected == 0 ||
	       weight_generation_is_retry(m->metadata_generation, expected);
}

static inline int stale(const struct weight_metadata *m, uint64_t expected)
{
	return log_debug(-ECANCELED, "at %llu, expected %llu",
			 (unsigned long long)m->metadata_generation,
			 (unsigned long long)expected);
}

/* Whether a residency can have the hot ratio. False for NaN. */
static inline bool ratio_fits(enum weight_residency residency, double ratio)
{
	if (residency == WEIGHT_MIXED)
		return ratio > 0.0 && ratio < 1.0;
	return ratio == (residency == WEIGHT_HOT ? 1.0 : 0.0);
}

/* The record after a change of state. Errors: -EOVERFLOW. */
static inline int advance(const struct weight_metadata *m, uint64_t now_ms,
			  struct weight_metadata *ret)
{
	struct weight_metadata next = *m;
	int r;

	r = weight_generation_advance(m->metadata_generation,
				      &next.metadata_generation);
	if (r < 0)
		return r;
	next.updated_at_ms = later(now_ms, m->updated_at_ms);
	*ret = next;
	return 0;
}

#endif
