/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that concern the store as a whole: its life, its copies, its deaths. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/step.h"
#include "world.h"

/* ---- Boots ---- */

static bool reopen(struct world *w)
{
	store_close(&w->leader);
	model_reopened(&w->model);
	return store_open(&w->leader) && world_compare(w, false);
}

static bool boot(struct world *w, uint64_t number)
{
	bool unclean = false, expected = model_boot(&w->model, number);
	uint64_t epoch = 0;
	int r = store_boot(&w->leader, number, &unclean);

	if (r == 0)
		r = wms_epoch(w->leader.s, &epoch);
	if (r == 0 && unclean == expected && epoch == w->model.epoch)
		return true;
	(void)printf("boot: %d, unclean %d, epoch %" PRIu64
		     "; the model says unclean %d, epoch %" PRIu64 "\n",
		     r, unclean, epoch, expected, w->model.epoch);
	return false;
}

static bool mark_clean(struct world *w)
{
	int r = wms_mark_clean(w->leader.s);

	w->model.is_clean = true;
	if (r < 0)
		(void)printf("mark_clean: %d\n", r);
	return r == 0;
}

static void configure(struct world *w, const struct op *op)
{
	struct wms_options *options = &w->leader.options;
	uint64_t confirms = op->arg[A_CONFIRMS];

	options->replicated = op->arg[A_REPLICATED];
	options->confirms_management = confirms & 1;
	options->confirms_lineages = confirms & 2;
	if (op->arg[A_KEEP])
		options->oplog_keep = op->arg[A_KEEP];
	wms_configure(w->leader.s, options);
	w->model.replicated = options->replicated;
	w->model.confirms_management = options->confirms_management;
	w->model.confirms_lineages = options->confirms_lineages;
	w->model.oplog_keep = options->oplog_keep;
}

/* ---- Copies ---- */

static bool bytes_are(struct store *store, const char *bytes, size_t len)
{
	auto_free char *own = NULL;
	size_t own_len;

	if (!store_export(store, &own, &own_len))
		return false;
	if (own_len == len && memcmp(own, bytes, len) == 0)
		return true;
	(void)printf("two stores with the same metadata differ: snapshots of "
		     "%zu and %zu bytes\n",
		     len, own_len);
	return false;
}

/* A store that is filled from a snapshot of the leader. */
static bool copy_make(struct world *w, struct store *ret, bool elsewhere)
{
	auto_free char *bytes = NULL;
	size_t len;

	*ret = (struct store){ .s = NULL };
	return store_export(&w->leader, &bytes, &len) && store_make(ret) &&
	       store_refuses_damaged(ret, bytes, len,
				     w->model.oplog_next * 131) &&
	       store_import(ret, bytes, len, elsewhere) &&
	       (elsewhere || bytes_are(ret, bytes, len)) && store_is_sound(ret);
}

/* The world goes on with another store. */
static bool take_over(struct world *w, struct store *by, bool elsewhere)
{
	struct store old = w->leader;
	uint64_t number = w->model.boot;

	by->options = old.options;
	w->leader = *by;
	*by = (struct store){ .s = NULL };
	store_remove(&old);
	wms_configure(w->leader.s, &w->leader.options);
	model_moved(&w->model, elsewhere);
	if (!world_compare(w, !elsewhere))
		return false;
	if (wms_is_new(w->leader.s) != w->model.is_new) {
		(void)printf("is_new is wrong\n");
		return false;
	}
	return boot(w, number);
}

static bool move(struct world *w, bool elsewhere)
{
	struct store copy;

	if (!copy_make(w, &copy, elsewhere)) {
		store_remove(&copy);
		return false;
	}
	w->model.oplog_first = w->model.oplog_next;
	w->model.oplog_first_max = w->model.oplog_next;
	/* What it holds to be durable isn't any more, and no entry says so. */
	if (elsewhere)
		store_remove(&w->follower);
	return take_over(w, &copy, elsewhere);
}

/* A follower that is too far behind begins anew, with a snapshot. */
static bool follower_make(struct world *w)
{
	struct wms_oplog_state has = { .next = 0 };

	if (*w->follower.dir) {
		if (wms_oplog_state(w->follower.s, &has) < 0)
			return false;
		if (has.next >= w->model.oplog_first)
			return true;
		store_remove(&w->follower);
	}
	if (w->model.oplog_first == 1) {
		w->follower_first = 1;
		return store_make(&w->follower);
	}
	w->follower_first = w->model.oplog_next;
	return copy_make(w, &w->follower, false);
}

static bool follow(struct world *w)
{
	auto_free char *bytes = NULL;
	size_t len;

	return follower_make(w) && store_follow(&w->follower, &w->leader) &&
	       store_export(&w->leader, &bytes, &len) &&
	       bytes_are(&w->follower, bytes, len) &&
	       store_is_sound(&w->follower) && store_is_sound(&w->leader);
}

/* The follower becomes the leader, with as much of the log as it has. */
static bool promote(struct world *w)
{
	struct wms_oplog_state has;

	if (!follow(w) || wms_oplog_state(w->follower.s, &has) < 0)
		return false;
	if (has.first !=
	    later(w->follower_first, has.next > WMS_OPLOG_KEEP_DEFAULT ?
					     has.next - WMS_OPLOG_KEEP_DEFAULT :
					     1)) {
		(void)printf("a follower has its log from %" PRIu64 " on\n",
			     has.first);
		return false;
	}
	w->model.oplog_first = has.first;
	w->model.oplog_first_max = has.first;
	return take_over(w, &w->follower, false);
}

static bool forge(struct world *w, uint64_t count)
{
	struct store copy;
	bool ok = copy_make(w, &copy, false) && world_forge(w, &copy, count);

	store_remove(&copy);
	return ok;
}

/* ---- A kill ---- */

/* How the process that is killed ends. */
enum end {
	END_DONE,
	END_DIFFERENT,
	END_NOT_OPENED,
	END_BEFORE, /* nothing may have happened */
	END_AFTER,  /* all of it must have */
};

static uint64_t steps_left;

static void die_at_step(const char *name)
{
	if (--steps_left > 0)
		return;
	_exit(strcmp(name, "metadata: committed") == 0 ? END_AFTER :
							 END_BEFORE);
}

static enum end run_and_die(struct world *w, const struct call *c,
			    const struct outcome *expected, uint64_t at_step)
{
	static struct outcome got;

	if (!store_open(&w->leader))
		return END_NOT_OPENED;
	steps_left = at_step;
	step_hook = die_at_step;
	store_apply(&w->leader, c, &got);
	step_hook = NULL;
	return outcome_equal(&got, expected) ? END_DONE : END_DIFFERENT;
}

bool world_crash(struct world *w, const struct op *op, const struct call *c)
{
	static struct model before;
	static struct outcome expected;
	int status = -1;
	pid_t pid;

	model_copy(&before, &w->model);
	model_apply(&w->model, c, &expected);
	store_close(&w->leader);
	(void)fflush(stdout);
	pid = fork();
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		enum end end = run_and_die(w, c, &expected, op->arg[A_CRASH]);

		(void)fflush(stdout);
		_exit(end);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status) ||
	    WEXITSTATUS(status) == END_DIFFERENT ||
	    WEXITSTATUS(status) == END_NOT_OPENED) {
		(void)printf("the process that was to die: status %#x\n",
			     (unsigned)status);
		return false;
	}
	if (WEXITSTATUS(status) == END_BEFORE)
		model_copy(&w->model, &before);
	w->results[op->kind][expected.err != 0]++;
	model_reopened(&w->model);
	return store_open(&w->leader) && world_compare(w, true);
}

/* The end of the lease that expires next, or now. */
static uint64_t next_expiry(const struct world *w)
{
	const struct state *s = &w->model.s;
	uint64_t next = UINT64_MAX;

	for (size_t i = 0; i < s->lease_count; i++)
		if (s->leases[i].expires_at_ms > w->now_ms &&
		    s->leases[i].expires_at_ms < next)
			next = s->leases[i].expires_at_ms;
	return next == UINT64_MAX ? w->now_ms : next;
}

static void clock_step(struct world *w, const struct op *op)
{
	int64_t ms = (int64_t)op->arg[A_MS];

	if (op->arg[A_TO] != TO_MS)
		w->now_ms = next_expiry(w) - (op->arg[A_TO] == TO_LAST_MS);
	else if (ms < 0)
		w->now_ms = (uint64_t)-ms < w->now_ms ?
				    w->now_ms - (uint64_t)-ms :
				    1;
	else
		w->now_ms = w->now_ms > UINT64_MAX - (uint64_t)ms ?
				    UINT64_MAX :
				    w->now_ms + (uint64_t)ms;
}

bool world_whole(struct world *w, const struct op *op)
{
	switch (op->kind) {
	case OP_CLOCK:
		clock_step(w, op);
		return true;
	case OP_BOOT:
		return reopen(w) && boot(w, op->arg[A_BOOT]);
	case OP_MARK_CLEAN:
		return mark_clean(w);
	case OP_REOPEN:
		return reopen(w);
	case OP_MOVE:
		return move(w, op->arg[A_ELSEWHERE]);
	case OP_FOLLOW:
		return follow(w);
	case OP_PROMOTE:
		return promote(w);
	case OP_FORGE:
		return forge(w, op->arg[A_LIMIT]);
	case OP_CONFIGURE:
		configure(w, op);
		return true;
	default:
		return store_is_sound(&w->leader);
	}
}
