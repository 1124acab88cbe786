/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Upkeep: brings published groups to where they should be. Their bytes on the
 * device, in memory or out of it as operations say, verified, scrubbed, and the
 * records true.
 *
 * A thread knows which groups are due and hands them to the tenders, a round
 * each, so that all of them advance. After every round the facts are asked
 * anew; a kill at any instant leaves nothing to be undone.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/step.h"
#include "core/upkeep_priv.h"

#define IDLE_MS 60000
/* Between two looks for revisions that are due to be scrubbed. */
#define SCRUB_LOOK_MS 3600000
#define SCRUB_FIRST_LOOK_MS 60000
/* More often than that where scrubs are wanted more often, but not than this. */
#define SCRUB_LOOK_MS_MIN 10000
#define SCAN_BATCH 256
#define YIELD_MS 10
/* Upkeeps keep directories open: so many of all descriptors, */
#define COUNT_SHARE 16
/* and the others that wait for memory are looked for again after this. */
#define RESUME_MS 30000

struct upkeeper {
	struct weight_store *store;
	pthread_t thread;
	bool runs;
	pthread_cond_t wakes;
	struct list waiting; /* [lock] upkeeps that don't run */
	struct list at_work; /* [lock] and those that do */
	unsigned active;     /* [lock] */
	unsigned running;    /* [lock] */
	uint64_t freed;      /* [lock] goes up when memory is given back */
	struct upkeep *turn; /* [lock] the one that takes memory */

	bool resuming; /* [lock] not all is known of what has to be done */
	size_t count;  /* [lock] upkeeps that there are; each has descriptors */
	size_t count_max;   /* above it, those that wait for memory go, */
	uint64_t resume_ms; /* [lock] and are looked for again; 0: none */

	/* The thread's own. */
	struct wms_position resume_at;
	bool looking; /* for revisions that are due to be scrubbed */
	struct wms_position look_at;
	uint64_t look_ms;
};

/* ---- One group ---- */

/* Lock held. It is on no list, and the caller deletes it. */
static void detach_locked(struct upkeep *u)
{
	u->g->upkeep = NULL;
	u->g->store->upkeeper->count--;
}

static void upkeep_delete(struct upkeep *u)
{
	upkeep_end_ahead(u);
	tree_content_put(u->content);
	weight_group_unref(u->g);
	free(u->stuck);
	free(u);
}

void upkeep_poke_locked(struct weight_group *g)
{
	struct upkeep *u = g->upkeep;

	if (!u)
		return;
	u->due_ms = clock_monotonic_ms();
	u->again = u->running;
	(void)pthread_cond_signal(&g->store->upkeeper->wakes);
}

int upkeep_ask(struct weight_group *g, bool repair, bool scrub)
{
	struct weight_store *s = g->store;
	struct upkeep *fresh = calloc(1, sizeof(*fresh));
	struct upkeep *u;
	bool asked;

	if (!fresh)
		return -ENOMEM;
	store_lock(s);
	u = g->upkeep;
	if (!u && !s->stopping && g->state == WEIGHT_GROUP_PUBLISHED) {
		u = take_ptr(fresh);
		list_init(&u->in_waiting);
		list_init(&u->in_at_work);
		u->g = g;
		g->refs++;
		g->upkeep = u;
		s->upkeeper->count++;
		list_add_tail(&s->upkeeper->waiting, &u->in_waiting);
	}
	/* Of what is removed one may still be about to end. */
	asked = u && g->state == WEIGHT_GROUP_PUBLISHED;
	if (u) {
		/* With the lock still held: what has nothing to do is over soon. */
		u->repair |= repair;
		u->scrub |= scrub;
		upkeep_poke_locked(g);
	}
	store_unlock(s);
	free(fresh);
	return asked ? 0 : -ENOENT;
}

int upkeep_want(struct weight_group *g)
{
	int r = upkeep_ask(g, false, false);

	return r == -ENOENT ? 0 : r;
}

void upkeep_poke_all(struct weight_store *s)
{
	uint64_t now = clock_monotonic_ms();

	store_lock(s);
	s->upkeeper->freed++; /* for those that run */
	for (struct list *at = s->upkeeper->waiting.next;
	     at != &s->upkeeper->waiting; at = at->next) {
		struct upkeep *u = container_of(at, struct upkeep, in_waiting);

		if (!u->no_memory)
			continue;
		u->pin_retry_ms = 0;
		u->due_ms = now;
	}
	(void)pthread_cond_signal(&s->upkeeper->wakes);
	store_unlock(s);
}

bool upkeep_yield(struct weight_group *g, uint64_t ms)
{
	uint64_t end = clock_monotonic_ms() + ms;
	bool free;

	store_lock(g->store);
	while (g->tending > 0 && clock_monotonic_ms() < end)
		store_wait_locked(g->store, &g->changed, YIELD_MS);
	free = g->tending == 0;
	store_unlock(g->store);
	return free;
}

static bool may_run_locked(struct upkeep *u)
{
	return !u->g->store->stopping && !u->g->removing &&
	       u->g->state == WEIGHT_GROUP_PUBLISHED;
}

bool upkeep_go_on(void *arg, uint64_t bytes)
{
	struct upkeep *u = arg;
	struct weight_group *g = u->g;
	bool on;

	store_lock(g->store);
	u->done_bytes += bytes;
	u->ahead_bytes -= bytes < u->ahead_bytes ? bytes : u->ahead_bytes;
	on = may_run_locked(u);
	store_unlock(g->store);
	return on;
}

void upkeep_begin(struct upkeep *u, uint64_t done, uint64_t total)
{
	store_lock(u->g->store);
	u->done_bytes = u->begun_bytes = done;
	u->ahead_bytes = 0;
	u->total_bytes = total;
	u->begun_ms = clock_monotonic_ms();
	store_unlock(u->g->store);
}

int upkeep_content(struct upkeep *u)
{
	return u->content ? 0 : tree_content_get(u->g, &u->content);
}

uint64_t upkeep_retry_at(struct upkeep *u)
{
	uint64_t pause = UPKEEP_RETRY_MS_MIN;

	for (unsigned i = 0; i < u->failures && pause < UPKEEP_RETRY_MS_MAX;
	     i++)
		pause *= 2;
	if (pause > UPKEEP_RETRY_MS_MAX)
		pause = UPKEEP_RETRY_MS_MAX;
	u->failures++;
	u->failed = u->doing;
	return clock_monotonic_ms() + pause;
}

void upkeep_set_stuck(struct upkeep *u, bool no_memory, const char *sentence)
{
	char *fresh = sentence ? strdup(sentence) : NULL;
	char *old;

	store_lock(u->g->store);
	old = u->stuck;
	u->stuck = fresh;
	u->no_memory = sentence && no_memory;
	u->failing = false;
	(void)pthread_cond_broadcast(&u->g->changed);
	store_unlock(u->g->store);
	free(old);
}

void upkeep_set_failing(struct upkeep *u, const char *sentence)
{
	upkeep_set_stuck(u, false, sentence);
	store_lock(u->g->store);
	u->failing = true;
	store_unlock(u->g->store);
}

bool upkeep_take_turn(struct upkeep *u)
{
	struct upkeeper *k = u->g->store->upkeeper;
	bool mine;

	store_lock(k->store);
	if (!k->turn)
		k->turn = u;
	mine = k->turn == u;
	store_unlock(k->store);
	return mine;
}

/* One: if all of many were, each would ask for all facts each time. */
static void wake_next_in_turn_locked(struct upkeeper *k)
{
	for (struct list *at = k->waiting.next; at != &k->waiting;
	     at = at->next) {
		struct upkeep *u = container_of(at, struct upkeep, in_waiting);

		if (!u->wants_turn)
			continue;
		u->wants_turn = false;
		u->due_ms = clock_monotonic_ms();
		(void)pthread_cond_signal(&k->wakes);
		return;
	}
}

void upkeep_give_turn(struct upkeep *u)
{
	struct upkeeper *k = u->g->store->upkeeper;

	store_lock(k->store);
	if (k->turn == u) {
		k->turn = NULL;
		wake_next_in_turn_locked(k);
	}
	store_unlock(k->store);
}

/* ---- Facts ---- */

static bool is_held(struct weight_group *g)
{
	struct wms_lease_summary leases = { 0 };
	bool own, held;

	(void)wms_lease_summary(g->store->records, g->identity,
				clock_realtime_ms(), &leases);
	store_lock(g->store);
	/* A record of ours that lingers holds nothing. */
	own = g->lease_id != 0 && g->lease_expires_ms > clock_realtime_ms();
	held = g->holders > 0;
	store_unlock(g->store);
	return held || leases.active > own;
}

static int operation_facts(struct upkeep *u, const struct weight_metadata *m,
			   struct upkeep_facts *f)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	bool another, starved;
	int r;

	f->operates = m->operation_id != 0;
	if (f->operates) {
		r = wms_operation_get(u->g->store->records,
				      m->identity.lineage.tenant,
				      m->operation_id, &op);
		if (r < 0)
			return r;
		f->target = op->target_residency;
	}
	store_lock(u->g->store);
	another = u->operation_id != m->operation_id;
	starved = u->no_memory;
	u->operation_id = m->operation_id;
	u->target = f->target;
	u->started_ms = op ? op->started_at_ms : 0;
	store_unlock(u->g->store);
	/* What the one before had no memory for isn't wanted any more. */
	if (another && starved)
		upkeep_set_stuck(u, false, NULL);
	if (another)
		u->failed = UPKEEP_NOTHING;
	/* It came with the records of another store. */
	if (f->operates && f->target == WEIGHT_MIXED)
		upkeep_set_stuck(u, true, "nothing moves single tensors yet");
	return 0;
}

static bool is_later(uint64_t ms)
{
	return ms > clock_monotonic_ms();
}

static void wish_facts(struct upkeep *u, struct upkeep_facts *f)
{
	struct weight_store *s = u->g->store;

	store_lock(s);
	f->repair = u->repair;
	f->scrub = u->scrub;
	f->turn_taken = s->upkeeper->turn && s->upkeeper->turn != u;
	store_unlock(s);
	/*
	 * Write-back begins anew after other work. One that is longer than a
	 * retry is away would never end.
	 */
	f->pin_waits = is_later(u->pin_retry_ms) ||
		       (u->pin_retry_ms && u->doing == UPKEEP_WRITE_BACK);
	f->never_fits = u->never_fits;
	f->write_back_waits = is_later(u->write_back_retry_ms);
	f->check_waits = is_later(u->check_retry_ms);
	f->can_pin = s->can_pin;
	f->must_be_durable = store_is_kept(s);
}

static int gather(struct upkeep *u, struct weight_metadata **ret_m,
		  struct upkeep_facts *ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	struct upkeep_facts f = { 0 };
	struct weight_residence truth;
	int r = wms_get(u->g->store->records, u->g->identity, &m);

	if (r < 0)
		return r;
	if (m->availability != WEIGHT_READY &&
	    m->availability != WEIGHT_DEGRADED)
		return -ENOENT;
	if ((r = weight_group_residence(u->g, &truth)) < 0 ||
	    (r = operation_facts(u, m, &f)) < 0)
		return r;
	f.recorded = m->residency;
	f.recorded_ratio = m->observed_hot_ratio;
	f.degraded = m->availability == WEIGHT_DEGRADED;
	f.durable = m->durable;
	f.prefers_hot = m->policy.preferred == WEIGHT_HOT &&
			m->policy.mode != WEIGHT_PINNED;
	f.residency = truth.residency;
	f.ratio = truth.hot_ratio;
	f.damaged = tree_group_is_damaged(u->g);
	f.lost = tree_group_loss(u->g) != TREE_LOSS_NONE;
	/* What is durable is believed until somebody opens it. */
	f.suspect =
		(!m->durable || f.degraded) && !tree_trust_is_complete(u->g);
	f.held = is_held(u->g);
	wish_facts(u, &f);
	*ret_m = take_ptr(m);
	*ret = f;
	return 0;
}

/* ---- A round ---- */

static upkeep_act_fn *const acts[] = {
	[UPKEEP_RECORD] = upkeep_record,
	[UPKEEP_VERIFY] = upkeep_verify,
	[UPKEEP_REPAIR] = upkeep_repair,
	[UPKEEP_PIN] = upkeep_pin,
	[UPKEEP_UNPIN] = upkeep_unpin,
	[UPKEEP_FINISH] = upkeep_finish,
	[UPKEEP_START_OPERATION] = upkeep_start_operation,
	[UPKEEP_WRITE_BACK] = upkeep_write_back,
	[UPKEEP_SCRUB] = upkeep_scrub,
};

/* Another kind of work than before starts with the first object. */
static void switch_to(struct upkeep *u, enum upkeep_action action)
{
	bool other = u->doing != action;

	if (other && action != UPKEEP_PIN)
		upkeep_give_turn(u);
	store_lock(u->g->store);
	u->doing = action;
	store_unlock(u->g->store);
	if (!other || action == UPKEEP_WAIT || action == UPKEEP_NOTHING)
		return;
	upkeep_end_ahead(u);
	u->at = 0;
	u->granule = 0;
	u->phase = PHASE_SYNC;
	u->names_checked = false;
	u->left_granules = 0;
	/* What is over in no time isn't told of on the way. */
	u->saved_ms = clock_monotonic_ms();
	upkeep_begin(u, 0, 0);
}

static uint64_t earliest(uint64_t a, uint64_t b)
{
	return b && b < a ? b : a;
}

/* When a group that waits is looked at again. */
static uint64_t wait_until(const struct upkeep *u)
{
	uint64_t now = clock_monotonic_ms();
	uint64_t at = now + UPKEEP_HELD_MS;

	if (u->pin_retry_ms > now)
		at = earliest(at, u->pin_retry_ms);
	if (u->write_back_retry_ms > now)
		at = earliest(at, u->write_back_retry_ms);
	if (u->check_retry_ms > now)
		at = earliest(at, u->check_retry_ms);
	return at;
}

/* It failed, and others get its place and its turn until it is tried again. */
static uint64_t round_failed(struct upkeep *u, int r)
{
	char sentence[WEIGHT_COMPONENT_MAX + 1];
	uint64_t retry = upkeep_retry_at(u);

	(void)log_debug(r, "upkeep of '%s', %d", u->g->hex, (int)u->doing);
	metrics_add(METRIC_RECONCILIATION_FAILURES, 1);
	(void)snprintf(sentence, sizeof(sentence),
		       "looking after it failed: %s; trying again",
		       strerrordesc_np(-r));
	switch_to(u, UPKEEP_WAIT);
	upkeep_set_failing(u, sentence);
	u->round_failed = true;
	return retry;
}

static void round_succeeded(struct upkeep *u)
{
	if (u->round_failed)
		upkeep_set_stuck(u, false, NULL);
	u->round_failed = false;
}

/* Whether it would go on if nobody else took memory just now. */
static void note_turn(struct upkeep *u, struct upkeep_facts facts)
{
	bool taken = facts.turn_taken;
	bool wants;

	facts.turn_taken = false;
	wants = taken && upkeep_decide(&facts) == UPKEEP_PIN;
	store_lock(u->g->store);
	u->wants_turn = wants;
	store_unlock(u->g->store);
}

static void note_retry(struct upkeep *u, const struct upkeep_facts *f,
		       enum upkeep_action action)
{
	if (action != u->failed)
		return;
	u->failed = UPKEEP_NOTHING;
	if (upkeep_is_of_operation(f, action))
		metrics_add(METRIC_OPERATION_RETRIES, 1);
}

/* What to do next and when: 0 never again. */
static uint64_t round_once(struct upkeep *u)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	enum upkeep_action action;
	struct upkeep_facts facts;
	int r = gather(u, &m, &facts);

	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return round_failed(u, r);
	action = upkeep_decide(&facts);
	note_turn(u, facts);
	switch_to(u, action);
	if (action == UPKEEP_NOTHING)
		return 0;
	if (action == UPKEEP_WAIT)
		return wait_until(u);
	note_retry(u, &facts, action);
	r = acts[action](u, m);
	if (r < 0 && r != -ECANCELED)
		return round_failed(u, r);
	round_succeeded(u);
	if (r <= 0)
		return clock_monotonic_ms();
	switch_to(u, UPKEEP_WAIT); /* UPKEEP_NOT_NOW */
	return clock_monotonic_ms() + UPKEEP_RETRY_MS_MIN;
}

/* Puts it back among those who wait, or ends it. Lock held. */
static bool put_back_locked(struct upkeep *u, uint64_t due)
{
	struct weight_group *g = u->g;
	struct upkeeper *k = g->store->upkeeper;

	list_remove(&u->in_at_work);
	u->running = false;
	k->running--;
	g->tending--;
	(void)pthread_cond_broadcast(&g->changed);
	/* Memory became free while this one was finding that there is none. */
	if (u->no_memory && u->freed_seen != k->freed) {
		u->pin_retry_ms = 0;
		u->again = true;
	}
	if (u->again || (due != 0 && u->wants_turn && !k->turn))
		due = clock_monotonic_ms();
	u->again = false;
	u->due_ms = g->store->stopping ? 0 : due;
	if (u->due_ms != 0 && u->doing != UPKEEP_WAIT) {
		list_add_tail(&k->waiting, &u->in_waiting);
		(void)pthread_cond_signal(&k->wakes);
		return true;
	}
	/* Who waits takes no place among those in turn. */
	if (u->active)
		k->active--;
	u->active = false;
	if (u->due_ms != 0 && u->no_memory && k->count > k->count_max) {
		u->due_ms = 0;
		if (!k->resume_ms)
			k->resume_ms = clock_monotonic_ms() + RESUME_MS;
	}
	if (u->due_ms != 0)
		list_add_tail(&k->waiting, &u->in_waiting);
	else
		detach_locked(u);
	(void)pthread_cond_signal(&k->wakes);
	return u->due_ms != 0;
}

static void upkeep_run(struct work *work)
{
	struct upkeep *u = container_of(work, struct upkeep, work);
	struct weight_store *s = u->g->store;
	uint64_t due = 0;
	bool may, more;

	store_lock(s);
	may = may_run_locked(u);
	if (!may && u->g->state == WEIGHT_GROUP_PUBLISHED)
		due = clock_monotonic_ms() + YIELD_MS;
	store_unlock(s);
	if (may)
		due = round_once(u);
	/* What waits, or is over, needs no manifest in memory. */
	if (due == 0 || u->doing == UPKEEP_WAIT)
		tree_content_put(take_ptr(u->content));
	if (due == 0)
		upkeep_give_turn(u);
	store_lock(s);
	more = put_back_locked(u, due);
	store_unlock(s);
	if (!more)
		upkeep_delete(u);
	store_background_end(s);
}

/* ---- Who is due ---- */

/* Takes the one that is due first, or says when one will be. Lock held. */
static struct upkeep *take_due_locked(struct upkeeper *k, uint64_t now,
				      uint64_t *next)
{
	if (k->running >= UPKEEP_RUNNING_MAX)
		return NULL; /* who ends wakes us */
	for (struct list *at = k->waiting.next; at != &k->waiting;
	     at = at->next) {
		struct upkeep *u = container_of(at, struct upkeep, in_waiting);

		if (!u->active && k->active >= UPKEEP_ACTIVE_MAX)
			continue;
		if (u->due_ms <= now) {
			list_remove(&u->in_waiting);
			return u;
		}
		*next = earliest(*next, u->due_ms);
	}
	return NULL;
}

static void submit_locked(struct upkeeper *k, struct upkeep *u)
{
	if (!u->active) {
		u->active = true;
		k->active++;
	}
	list_add_tail(&k->at_work, &u->in_at_work);
	u->running = true;
	u->freed_seen = k->freed;
	k->running++;
	u->g->tending++;
	u->work.run = upkeep_run;
	u->work.priority = WORK_BULK;
	k->store->background++;
	workers_submit(k->store->tenders, &u->work);
}

static bool needs_upkeep(struct weight_store *s,
			 const struct weight_metadata *m)
{
	if (m->availability != WEIGHT_READY &&
	    m->availability != WEIGHT_DEGRADED)
		return false;
	return m->availability == WEIGHT_DEGRADED || m->operation_id != 0 ||
	       m->residency != WEIGHT_COLD ||
	       (!m->durable && store_is_kept(s)) ||
	       (s->payload_missing && !tree_group_has_dir(s, &m->identity));
}

static int want_identity(struct weight_store *s,
			 const struct weight_identity *id, bool scrub)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	int r = tree_group_of(s, id, &g);

	if (r < 0)
		return r;
	return scrub ? weight_group_scrub(g, NULL) : upkeep_want(g);
}

static void end_resuming(struct upkeeper *k)
{
	store_lock(k->store);
	k->resuming = false;
	(void)pthread_cond_broadcast(&k->store->quiet);
	store_unlock(k->store);
	k->resume_at = (struct wms_position){ 0 };
}

/* A few more of those that the last daemon left something to do with. */
static void resume_some(struct upkeeper *k)
{
	struct weight_metadata *m;

	for (unsigned i = 0; i < SCAN_BATCH; i++) {
		int r = wms_revision_each(k->store->records, &k->resume_at, &m);

		if (r == -ENOENT) {
			end_resuming(k);
			return;
		}
		if (r < 0) {
			store_pause(k->store, YIELD_MS);
			continue;
		}
		if (needs_upkeep(k->store, m) &&
		    want_identity(k->store, &m->identity, false) == 0)
			i = SCAN_BATCH; /* one at a time */
		weight_metadata_free(m);
	}
}

/* After at most that long. */
static void look_later(struct upkeeper *k, uint64_t ms)
{
	uint64_t every = k->store->config->scrub_every_ms;

	if (every < SCRUB_LOOK_MS_MIN)
		every = SCRUB_LOOK_MS_MIN;
	k->look_ms = clock_monotonic_ms() + (ms < every ? ms : every);
}

static bool scrub_is_due(struct weight_store *s,
			 const struct weight_metadata *m)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	uint64_t last, now = clock_realtime_ms();
	bool unfinished;

	if ((m->availability != WEIGHT_READY &&
	     m->availability != WEIGHT_DEGRADED) ||
	    tree_group_of(s, &m->identity, &g) < 0 || tree_stamps_load(g) < 0)
		return false;
	store_lock(s);
	last = g->stamps->scrub_ended_ms;
	unfinished = g->stamps->scrub_next > 0;
	store_unlock(s);
	if (last < m->created_at_ms)
		last = m->created_at_ms;
	return unfinished || now >= last + s->config->scrub_every_ms;
}

/* Looks at a few more; one of them is enough at a time. */
static void look_for_scrubs(struct upkeeper *k)
{
	struct weight_metadata *m;

	for (unsigned i = 0; i < SCAN_BATCH; i++) {
		int r = wms_revision_each(k->store->records, &k->look_at, &m);

		if (r == -ENOENT) {
			k->looking = false;
			look_later(k, SCRUB_LOOK_MS);
			return;
		}
		if (r < 0) {
			store_pause(k->store, YIELD_MS);
			continue;
		}
		if (scrub_is_due(k->store, m) &&
		    want_identity(k->store, &m->identity, true) == 0)
			i = SCAN_BATCH;
		weight_metadata_free(m);
	}
}

static bool is_crowded_locked(const struct upkeeper *k)
{
	/* What is found costs descriptors from then on. */
	return k->active >= UPKEEP_ACTIVE_MAX ||
	       k->running >= UPKEEP_RUNNING_MAX;
}

/* What there is to find while nobody is due. True: something was done. */
static bool scan(struct upkeeper *k, uint64_t now, uint64_t *next)
{
	bool crowded, resuming;

	store_lock(k->store);
	if (k->resume_ms && now >= k->resume_ms) {
		k->resume_ms = 0;
		k->resuming = true;
	}
	crowded = is_crowded_locked(k);
	resuming = k->resuming;
	*next = earliest(*next, k->resume_ms);
	store_unlock(k->store);
	if (resuming) {
		if (crowded)
			return false;
		resume_some(k);
		return true;
	}
	if (k->store->config->scrub_every_ms == 0)
		return false;
	if (!k->looking && now >= k->look_ms) {
		k->looking = true;
		k->look_at = (struct wms_position){ 0 };
	}
	if (k->looking && !crowded) {
		look_for_scrubs(k);
		return true;
	}
	*next = earliest(*next, k->look_ms);
	return false;
}

static void *upkeep_main(void *arg)
{
	struct upkeeper *k = arg;
	struct weight_store *s = k->store;

	(void)prctl(PR_SET_NAME, "upkeep");
	store_lock(s);
	while (!s->stopping) {
		uint64_t now = clock_monotonic_ms();
		uint64_t next = now + IDLE_MS;
		struct upkeep *u = take_due_locked(k, now, &next);
		bool found;

		if (u) {
			submit_locked(k, u);
			continue;
		}
		store_unlock(s);
		found = scan(k, now, &next);
		store_lock(s);
		u = found ? NULL : take_due_locked(k, now, &next);
		if (u)
			submit_locked(k, u);
		else if (!found && !s->stopping && next > now)
			store_wait_locked(s, &k->wakes, next - now);
	}
	store_unlock(s);
	return NULL;
}

int upkeep_start(struct weight_store *s)
{
	struct upkeeper *k = s->upkeeper;
	int r;

	k->resuming = true;
	look_later(k, SCRUB_FIRST_LOOK_MS);
	r = -pthread_create(&k->thread, NULL, upkeep_main, k);
	k->runs = r == 0;
	return r;
}

int upkeep_new(struct weight_store *s)
{
	struct upkeeper *k = calloc(1, sizeof(*k));
	int r;

	if (!k)
		return -ENOMEM;
	r = clock_cond_init(&k->wakes);
	if (r < 0) {
		free(k);
		return r;
	}
	k->store = s;
	k->count_max = tree_descriptors(COUNT_SHARE);
	list_init(&k->waiting);
	list_init(&k->at_work);
	s->upkeeper = k;
	return 0;
}

/* The store is stopping. Those that run end by themselves. */
void upkeep_stop(struct weight_store *s)
{
	struct upkeeper *k = s->upkeeper;
	struct list *at;

	if (!k)
		return;
	store_lock(s);
	(void)pthread_cond_broadcast(&k->wakes);
	store_unlock(s);
	if (k->runs)
		(void)pthread_join(k->thread, NULL);
	k->runs = false;
	for (;;) {
		struct upkeep *u;

		store_lock(s);
		at = list_take_first(&k->waiting);
		u = at ? container_of(at, struct upkeep, in_waiting) : NULL;
		if (u)
			detach_locked(u);
		store_unlock(s);
		if (!u)
			return;
		upkeep_delete(u);
	}
}

void upkeep_free(struct weight_store *s)
{
	struct upkeeper *k = s->upkeeper;

	if (!k)
		return;
	assert(list_empty(&k->waiting));
	(void)pthread_cond_destroy(&k->wakes);
	free(k);
	s->upkeeper = NULL;
}

/* ---- As users see it ---- */

enum upkeep_pending upkeep_pending_locked(struct weight_group *g)
{
	const struct upkeep *u = g->upkeep;

	if (!u)
		return UPKEEP_IDLE;
	/* One that is due is about to find out whether it still is. */
	return (u->no_memory || g->loss != TREE_LOSS_NONE) &&
			       u->doing == UPKEEP_WAIT && !u->running &&
			       u->due_ms > clock_monotonic_ms() ?
		       UPKEEP_STUCK :
		       UPKEEP_BUSY;
}

bool upkeep_is_resuming(struct weight_store *s)
{
	bool resuming;

	store_lock(s);
	resuming = s->upkeeper->resuming && !s->stopping;
	store_unlock(s);
	return resuming;
}

bool upkeep_may_give_way_locked(struct weight_group *g)
{
	return g->upkeep &&
	       (g->upkeep->doing == UPKEEP_WAIT || g->upkeep->no_memory);
}

bool upkeep_is_waiting_locked(struct weight_group *g)
{
	const struct upkeep *u = g->upkeep;

	/*
	 * Now and then it looks whether there is memory by now. What isn't
	 * durable yet goes on after that.
	 */
	return u && (u->doing == UPKEEP_WAIT ||
		     (u->no_memory && g->durable &&
		      (u->doing == UPKEEP_PIN || u->doing == UPKEEP_RECORD)));
}

bool upkeep_progress(struct weight_group *g, uint64_t operation_id,
		     uint64_t *ret_bytes, uint64_t *ret_units)
{
	struct upkeep *u;
	bool known;

	store_lock(g->store);
	u = g->upkeep;
	known = u && u->operation_id == operation_id &&
		(u->doing == UPKEEP_PIN || u->doing == UPKEEP_UNPIN);
	if (known) {
		*ret_bytes = u->done_bytes;
		*ret_units = u->done_units;
	}
	store_unlock(g->store);
	return known;
}

/* The earlier start of two operations. 0: none. */
static uint64_t older(uint64_t a, const struct upkeep *u)
{
	return u->started_ms && (!a || u->started_ms < a) ? u->started_ms : a;
}

uint64_t upkeep_oldest_ms(struct weight_store *s)
{
	struct upkeeper *k = s->upkeeper;
	uint64_t oldest = 0;

	store_lock(s);
	for (struct list *at = k->waiting.next; at != &k->waiting;
	     at = at->next)
		oldest = older(oldest,
			       container_of(at, struct upkeep, in_waiting));
	for (struct list *at = k->at_work.next; at != &k->at_work;
	     at = at->next)
		oldest = older(oldest,
			       container_of(at, struct upkeep, in_at_work));
	store_unlock(s);
	return oldest;
}
