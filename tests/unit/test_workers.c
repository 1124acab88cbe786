/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "core/util.h"
#include "core/workers.h"
#include "fault.h"
#include "suite.h"

#define ITEMS 1000

struct item {
	struct work work;
	struct workers *pool;
	unsigned left; /* how often it submits itself again */
};

static atomic_uint runs;

static void count_run(struct work *work)
{
	struct item *item = container_of(work, struct item, work);

	atomic_fetch_add(&runs, 1);
	if (item->left && item->left--)
		workers_submit(item->pool, work);
}

START_TEST(every_item_runs_once_before_the_pool_is_gone)
{
	static struct item items[ITEMS];
	struct workers *w = NULL;

	ck_assert_int_eq(workers_new("test", 4, 0, &w), 0);
	ck_assert_uint_eq(workers_count(w), 4);
	for (size_t i = 0; i < ITEMS; i++) {
		items[i].work.run = count_run;
		items[i].work.priority = i % 2 ? WORK_BULK : WORK_SERVING;
		workers_submit(w, &items[i].work);
	}
	workers_free(w);
	ck_assert_uint_eq(atomic_load(&runs), ITEMS);
}
END_TEST

START_TEST(what_work_submits_runs_too)
{
	struct item item = { .work.run = count_run, .left = 99 };

	ck_assert_int_eq(workers_new("test", 3, 0, &item.pool), 0);
	workers_submit(item.pool, &item.work);
	workers_free(item.pool);
	ck_assert_uint_eq(atomic_load(&runs), 100);
}
END_TEST

/* A gate that holds the only thread until everything is queued. */
static pthread_barrier_t gate;
static char order[16];
static atomic_uint order_len;

struct letter {
	struct work work;
	char c;
};

static void wait_at_gate(struct work *work)
{
	(void)work;
	(void)pthread_barrier_wait(&gate);
}

static void write_letter(struct work *work)
{
	order[atomic_fetch_add(&order_len, 1)] =
		container_of(work, struct letter, work)->c;
}

START_TEST(serving_goes_before_bulk_and_each_in_order)
{
	struct letter letters[] = {
		{ { write_letter, WORK_BULK, NULL }, 'a' },
		{ { write_letter, WORK_BULK, NULL }, 'b' },
		{ { write_letter, WORK_SERVING, NULL }, 'c' },
		{ { write_letter, WORK_SERVING, NULL }, 'd' },
	};
	struct work first = { .run = wait_at_gate };
	struct workers *w = NULL;

	(void)pthread_barrier_init(&gate, NULL, 2);
	ck_assert_int_eq(workers_new("test", 1, 0, &w), 0);
	workers_submit(w, &first);
	for (size_t i = 0; i < ARRAY_LEN(letters); i++)
		workers_submit(w, &letters[i].work);
	(void)pthread_barrier_wait(&gate);
	workers_free(w);
	ck_assert_str_eq(order, "cdab");
}
END_TEST

static char seen_name[16];
static int seen_nice, seen_unblocked;

static void look_at_thread(struct work *work)
{
	sigset_t blocked;

	(void)work;
	(void)pthread_getname_np(pthread_self(), seen_name, sizeof(seen_name));
	seen_nice = getpriority(PRIO_PROCESS, 0);
	(void)pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	seen_unblocked = !sigismember(&blocked, SIGTERM) ||
			 !sigismember(&blocked, SIGIO);
}

START_TEST(threads_have_name_and_nice_value_and_block_signals)
{
	struct work item = { .run = look_at_thread };
	int before = getpriority(PRIO_PROCESS, 0);
	struct workers *w = NULL;

	ck_assert_int_eq(workers_new("digest", 1, 11, &w), 0);
	workers_submit(w, &item);
	workers_free(w);
	ck_assert_str_eq(seen_name, "digest0");
	ck_assert_int_eq(seen_nice, 11);
	ck_assert_int_eq(seen_unblocked, 0);
	ck_assert_int_eq(getpriority(PRIO_PROCESS, 0), before);
}
END_TEST

/* clang-format off */
static const struct {
	const char *name;
	unsigned count;
} rejected[] = {
	{ "none",          0 },
	{ "too many",      WORKERS_COUNT_MAX + 1 },
	{ "thirteenchars", 1 },
};
/* clang-format on */

START_TEST(bad_arguments_are_rejected)
{
	struct workers *w = NULL;

	ck_assert_int_eq(
		workers_new(rejected[_i].name, rejected[_i].count, 0, &w),
		-EINVAL);
	ck_assert_ptr_null(w);
}
END_TEST

START_TEST(the_largest_pool_starts)
{
	struct workers *w = NULL;

	ck_assert_int_eq(workers_new("twelve_chars", WORKERS_COUNT_MAX, 0, &w),
			 0);
	workers_free(w);
	workers_free(NULL);
}
END_TEST

static int make_and_drop(void)
{
	cleanup(workers_free_cleanup) struct workers *w = NULL;

	return workers_new("sweep", 2, 0, &w);
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(make_and_drop);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("workers");
	TCase *tc = tcase_create("pool");

	tcase_add_test(tc, every_item_runs_once_before_the_pool_is_gone);
	tcase_add_test(tc, what_work_submits_runs_too);
	tcase_add_test(tc, serving_goes_before_bulk_and_each_in_order);
	tcase_add_test(tc, threads_have_name_and_nice_value_and_block_signals);
	tcase_add_loop_test(tc, bad_arguments_are_rejected, 0,
			    (int)ARRAY_LEN(rejected));
	tcase_add_test(tc, the_largest_pool_starts);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
