/* SPDX-License-Identifier: Apache-2.0 */
/* What is going on with a group, in one line for people. */
#include <stdio.h>

#include "core/clock.h"
#include "core/upkeep_priv.h"

static const struct {
	const char *text;
	bool bytes;
} doings[] = {
	[UPKEEP_NOTHING] = { "being looked at", false },
	[UPKEEP_WAIT] = { "waiting", false },
	[UPKEEP_RECORD] = { "being recorded", false },
	[UPKEEP_VERIFY] = { "verifying", true },
	[UPKEEP_REPAIR] = { "repairing", true },
	[UPKEEP_PIN] = { "into memory", true },
	[UPKEEP_UNPIN] = { "out of memory", true },
	[UPKEEP_FINISH] = { "being recorded", false },
	[UPKEEP_START_OPERATION] = { "being recorded", false },
	[UPKEEP_WRITE_BACK] = { "writing back and reading it again", true },
	[UPKEEP_SCRUB] = { "scrubbing", true },
};

struct look {
	enum upkeep_action doing;
	uint64_t operation_id, done, total, rate;
	enum weight_residency target;
	unsigned holders;
	bool beside; /* what it does is none of the operation's business */
};

/* False: nothing is pending. Copies the reason why it is stuck. */
static bool look(struct weight_group *g, struct look *ret, struct buf *stuck)
{
	struct upkeep *u;
	uint64_t ms, done;

	store_lock(g->store);
	u = g->upkeep;
	if (u) {
		ms = clock_monotonic_ms() - u->begun_ms;
		done = u->done_bytes + u->ahead_bytes;
		*ret = (struct look){
			.doing = u->doing,
			.operation_id = u->operation_id,
			.target = u->target,
			.done = done < u->total_bytes ? done : u->total_bytes,
			.total = u->total_bytes,
			.holders = g->holders,
		};
		/* An estimate from next to nothing would be none. */
		if (ms > 0 && done > u->begun_bytes &&
		    done - u->begun_bytes >= u->total_bytes / 128)
			ret->rate = (done - u->begun_bytes) * 1000 / ms;
		/* One that lacks memory doesn't keep the others from it. */
		ret->beside = u->no_memory && u->doing != UPKEEP_PIN &&
			      doings[u->doing].bytes;
		if (g->loss != TREE_LOSS_NONE && g->damage_text)
			(void)buf_printf(stuck, "%s", g->damage_text);
		else if (u->stuck)
			(void)buf_printf(stuck, "%s", u->stuck);
	}
	store_unlock(g->store);
	return u != NULL;
}

int upkeep_line(struct weight_group *g, struct buf *ret)
{
	const double mib = 1024.0 * 1024.0;
	cleanup(buf_release) struct buf stuck = BUF_INIT;
	struct look seen;
	int r = 0;

	if (!look(g, &seen, &stuck))
		return buf_printf(ret, "nothing is pending");
	if (seen.operation_id && !seen.beside)
		r = buf_printf(ret, "operation %llu to %s: ",
			       (unsigned long long)seen.operation_id,
			       weight_residency_name(seen.target));
	if (r == 0 && stuck.len > 0 && !seen.beside)
		return buf_printf(ret, "%s", stuck.data);
	if (r == 0 && seen.doing == UPKEEP_WAIT && seen.holders > 0)
		return buf_printf(ret, "waiting for those who read it (%u)",
				  seen.holders);
	if (r == 0)
		r = buf_printf(ret, "%s", doings[seen.doing].text);
	if (r == 0 && doings[seen.doing].bytes && seen.total > 0)
		r = buf_printf(ret, ", %.1f of %.1f MiB",
			       (double)seen.done / mib,
			       (double)seen.total / mib);
	if (r == 0 && doings[seen.doing].bytes && seen.rate > 0)
		r = buf_printf(ret, ", %.1f MiB/s, %llu s left",
			       (double)seen.rate / mib,
			       (unsigned long long)((seen.total - seen.done) /
						    seen.rate));
	return r;
}

bool upkeep_is_failing(struct weight_group *g, struct buf *why)
{
	bool failing;

	store_lock(g->store);
	failing = g->upkeep && g->upkeep->failing;
	if (failing && g->upkeep->stuck)
		(void)buf_printf(why, "%s", g->upkeep->stuck);
	store_unlock(g->store);
	return failing;
}
