/* SPDX-License-Identifier: Apache-2.0 */
#include "core/workers.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "core/log.h"
#include "core/util.h"

#define TASK_NAME_SIZE 16 /* the kernel's, with the NUL */

static_assert(WORKERS_NAME_MAX + 3 < TASK_NAME_SIZE,
	      "a name and three digits fit a thread's name");
static_assert(WORKERS_COUNT_MAX <= 1000, "a number has at most three digits");

struct queue {
	struct work *first;
	struct work **last; /* where the next item is linked */
};

struct worker {
	struct workers *pool; /* constant */
	unsigned number;      /* constant */
	pthread_t thread;     /* constant */
};

struct workers {
	pthread_mutex_t lock;
	pthread_cond_t wake;    /* an item came, or the pool ends */
	struct queue queues[2]; /* by priority; guarded by lock */
	unsigned running;       /* threads inside run(); guarded by lock */
	bool ending;            /* guarded by lock */
	int nice;               /* constant */
	char name[WORKERS_NAME_MAX + 1]; /* constant */
	unsigned count;                  /* constant once workers_new is done */
	struct worker threads[];
};

static void queue_push(struct queue *q, struct work *item)
{
	item->next = NULL;
	*q->last = item;
	q->last = &item->next;
}

static struct work *queue_pop(struct queue *q)
{
	struct work *item = q->first;

	if (!item)
		return NULL;
	q->first = item->next;
	if (!q->first)
		q->last = &q->first;
	return item;
}

static struct work *pop_locked(struct workers *w)
{
	for (size_t i = 0; i < ARRAY_LEN(w->queues); i++) {
		struct work *item = queue_pop(&w->queues[i]);

		if (item)
			return item;
	}
	return NULL;
}

/*
 * Waits for the next item. NULL when the pool ends: nothing is queued and
 * nobody is left who could still submit something.
 */
static struct work *next_locked(struct workers *w)
{
	for (;;) {
		struct work *item = pop_locked(w);

		if (item)
			return item;
		if (w->ending && w->running == 0)
			return NULL;
		(void)pthread_cond_wait(&w->wake, &w->lock);
	}
}

static void thread_dress(const struct worker *me)
{
	char name[TASK_NAME_SIZE];

	(void)snprintf(name, sizeof(name), "%s%u", me->pool->name,
		       me->number % 1000);
	(void)pthread_setname_np(pthread_self(), name);
	/* On Linux "the process 0" is the calling thread alone. */
	if (me->pool->nice && setpriority(PRIO_PROCESS, 0, me->pool->nice) < 0)
		(void)log_debug(-errno, "nice of '%s', ignoring", name);
}

static void *thread_main(void *arg)
{
	struct worker *me = arg;
	struct workers *w = me->pool;
	struct work *item;

	thread_dress(me);
	(void)pthread_mutex_lock(&w->lock);
	while ((item = next_locked(w))) {
		w->running++;
		(void)pthread_mutex_unlock(&w->lock);
		item->run(item);
		(void)pthread_mutex_lock(&w->lock);
		w->running--;
	}
	(void)pthread_cond_broadcast(&w->wake);
	(void)pthread_mutex_unlock(&w->lock);
	return NULL;
}

void workers_free(struct workers *w)
{
	if (!w)
		return;
	(void)pthread_mutex_lock(&w->lock);
	w->ending = true;
	(void)pthread_cond_broadcast(&w->wake);
	(void)pthread_mutex_unlock(&w->lock);
	for (unsigned i = 0; i < w->count; i++)
		(void)pthread_join(w->threads[i].thread, NULL);
	(void)pthread_cond_destroy(&w->wake);
	(void)pthread_mutex_destroy(&w->lock);
	free(w);
}

/* Starts the threads with every signal blocked: those are for the caller. */
static int start_threads(struct workers *w, unsigned count)
{
	sigset_t all, before;
	int err = 0;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	while (w->count < count) {
		struct worker *t = &w->threads[w->count];

		t->pool = w;
		t->number = w->count;
		err = pthread_create(&t->thread, NULL, thread_main, t);
		if (err)
			break;
		w->count++;
	}
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return err ? log_debug(-err, "thread %u of '%s'", w->count, w->name) :
		     0;
}

int workers_new(const char *name, unsigned count, int nice,
		struct workers **ret)
{
	cleanup(workers_free_cleanup) struct workers *w = NULL;
	int r;

	if (count == 0 || count > WORKERS_COUNT_MAX ||
	    strlen(name) > WORKERS_NAME_MAX)
		return log_debug(-EINVAL, "%u threads named '%s'", count, name);
	w = calloc(1, sizeof(*w) + count * sizeof(w->threads[0]));
	if (!w)
		return -ENOMEM;
	(void)pthread_mutex_init(&w->lock, NULL);
	(void)pthread_cond_init(&w->wake, NULL);
	for (size_t i = 0; i < ARRAY_LEN(w->queues); i++)
		w->queues[i].last = &w->queues[i].first;
	(void)snprintf(w->name, sizeof(w->name), "%s", name);
	w->nice = nice;
	r = start_threads(w, count);
	if (r < 0)
		return r;

	*ret = take_ptr(w);
	return 0;
}

void workers_submit(struct workers *w, struct work *item)
{
	assert(item->run);
	assert((size_t)item->priority < ARRAY_LEN(w->queues));
	(void)pthread_mutex_lock(&w->lock);
	queue_push(&w->queues[item->priority], item);
	(void)pthread_cond_signal(&w->wake);
	(void)pthread_mutex_unlock(&w->lock);
}

unsigned workers_count(const struct workers *w)
{
	return w->count;
}
