/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pace: keeps the bytes per second of background work below a limit.
 *
 * Who moved bytes says so and is told how long to pause before the next ones.
 * Several may share one pace; what one doesn't use, up to PACE_BURST_MS worth,
 * is there for the others. Nothing sleeps in here.
 *
 * Threads: any; one lock of its own, innermost.
 */
#ifndef CORE_PACE_H
#define CORE_PACE_H

#include <stdint.h>

#include "core/cleanup.h"

#define PACE_BURST_MS 200

struct pace;

/* bytes_per_s 0: no limit. Errors: -ENOMEM. */
int pace_new(uint64_t bytes_per_s, struct pace **ret);
void pace_free(struct pace *p); /* accepts NULL */
DEFINE_CLEANUP(struct pace *, pace_free)

/*
 * Counts bytes that were moved just now, at now_ms of clock_monotonic_ms().
 * Returns for how many milliseconds the caller should pause; 0 without a limit.
 */
uint64_t pace_take(struct pace *p, uint64_t bytes, uint64_t now_ms);

#endif
