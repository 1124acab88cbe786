/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clock: the only source of time, so that tests can replace it.
 *
 * Real time counts milliseconds since the Unix epoch and may step in either
 * direction. Monotonic time counts milliseconds from an arbitrary start, never
 * steps back, and goes on while the machine sleeps: a lease that ran out
 * during the night has run out.
 *
 * Every function may be called from any thread, except clock_set(), which
 * belongs before the first thread.
 */
#ifndef CORE_CLOCK_H
#define CORE_CLOCK_H

#include <pthread.h>
#include <stdint.h>

#define CLOCK_BOOT_ID_LEN 36

/* Both functions are required; arg is handed to each. */
struct clock_source {
	uint64_t (*realtime_ms)(void *arg);
	uint64_t (*monotonic_ms)(void *arg);
	void *arg;
};

uint64_t clock_realtime_ms(void);
uint64_t clock_monotonic_ms(void);

/*
 * Makes source the source of time; NULL goes back to the kernel's clocks.
 * source is borrowed until it is replaced.
 */
void clock_set(const struct clock_source *source);

/*
 * Makes a condition whose waits don't depend on the clock of the day, and waits
 * on one for at most ms, by the kernel's clock. Errors: -ENOMEM, -EAGAIN.
 */
int clock_cond_init(pthread_cond_t *cond);
void clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t ms);

/*
 * Stores the id of this boot and a NUL. Monotonic times can be compared only
 * when they were taken under one boot id.
 *
 * Errors:
 *  -EBADMSG	the kernel's file does not hold an id
 *  any other	opening or reading that file failed
 */
int clock_boot_id(char ret[CLOCK_BOOT_ID_LEN + 1]);

#endif
