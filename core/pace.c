/* SPDX-License-Identifier: Apache-2.0 */
#include "core/pace.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#define NS_PER_MS ((uint64_t)1000000)
#define NS_PER_S ((uint64_t)1000000000)

/*
 * All bytes are laid end to end on a line of time, each as long as the rate
 * gives it. The line may begin PACE_BURST_MS in the past, not earlier; whoever
 * is ahead of now waits.
 */
struct pace {
	pthread_mutex_t lock;
	uint64_t bytes_per_s; /* constant */
	uint64_t end_ns;      /* of the last byte; guarded by lock */
};

int pace_new(uint64_t bytes_per_s, struct pace **ret)
{
	struct pace *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	(void)pthread_mutex_init(&p->lock, NULL);
	p->bytes_per_s = bytes_per_s;
	*ret = p;
	return 0;
}

void pace_free(struct pace *p)
{
	if (!p)
		return;
	(void)pthread_mutex_destroy(&p->lock);
	free(p);
}

/* Stays at the largest value where it would overflow. */
static uint64_t add(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t span_ns(const struct pace *p, uint64_t bytes)
{
	__extension__ unsigned __int128 ns = bytes;

	ns = ns * NS_PER_S / p->bytes_per_s;
	return ns > UINT64_MAX ? UINT64_MAX : (uint64_t)ns;
}

uint64_t pace_take(struct pace *p, uint64_t bytes, uint64_t now_ms)
{
	uint64_t now_ns, begin_ns, ahead_ns;

	if (p->bytes_per_s == 0)
		return 0;
	now_ns = now_ms > UINT64_MAX / NS_PER_MS ? UINT64_MAX :
						   now_ms * NS_PER_MS;
	begin_ns = now_ns > PACE_BURST_MS * NS_PER_MS ?
			   now_ns - PACE_BURST_MS * NS_PER_MS :
			   0;
	(void)pthread_mutex_lock(&p->lock);
	if (p->end_ns < begin_ns)
		p->end_ns = begin_ns;
	p->end_ns = add(p->end_ns, span_ns(p, bytes));
	ahead_ns = p->end_ns > now_ns ? p->end_ns - now_ns : 0;
	(void)pthread_mutex_unlock(&p->lock);
	return ahead_ns / NS_PER_MS + (ahead_ns % NS_PER_MS != 0);
}
