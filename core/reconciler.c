/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reconciler: brings to an end what needs more than one step, or somebody who
 * is not there any more: claims of lineages, announced imports that nobody goes
 * on with, leases that ran out, staged trees that nobody wants.
 *
 * A thread keeps a list of what there is to watch, filled from the records at
 * the start and by those who begin something. It asks the records what comes
 * next, does that one step, and asks anew; a kill at any instant leaves nothing
 * to be undone.
 *
 * Source: weight contracts, section 6.11.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/step.h"
#include "core/tree_priv.h"
#include "core/weight_key.h"

/* Between two looks at what is watched, */
#define LOOK_MS 1000
/* and at what is looked for in the records. */
#define SWEEP_MS 10000
#define SWEEP_BATCH 1000
#define STAGING_LOOK_MS_MIN 1000
#define STAGING_LOOK_MS_MAX 60000
/* How long a writer may take between two calls. */
#define BEGIN_MS 3000
/* Steps of one claim in one go; it has fewer. */
#define STEPS_MAX 8

/* A lineage with a claim, or a revision that is IMPORTING. */
struct watched {
	struct list in_list;
	struct weight_identity *identity;
	bool is_import;
	bool was_left;     /* by the last daemon */
	bool is_again;     /* [lock] it was begun anew since the last look */
	uint64_t alive_ms; /* monotonic; an import: when it last had a writer */
};

struct reconciler {
	struct weight_store *store;
	pthread_t thread;
	bool runs;
	bool poked;          /* [lock] */
	struct list watched; /* [lock] */
	pthread_cond_t wakes;
	uint64_t sweep_ms;   /* the thread's own */
	uint64_t staging_ms; /* likewise */
};

/* ---- What is watched ---- */

static void watched_free(struct watched *w)
{
	if (!w)
		return;
	weight_identity_free(w->identity);
	free(w);
}

/* What is watched already is looked at again, however often it is announced. */
static void add_locked(struct reconciler *rc, struct watched *w)
{
	for (struct list *at = rc->watched.next; at != &rc->watched;
	     at = at->next) {
		struct watched *other =
			container_of(at, struct watched, in_list);

		if (other->is_import == w->is_import &&
		    weight_identity_equal(other->identity, w->identity)) {
			other->is_again = true;
			watched_free(w);
			return;
		}
	}
	list_add_tail(&rc->watched, &w->in_list);
}

static int watch(struct weight_store *s, const struct weight_identity *identity,
		 bool is_import, bool was_left)
{
	struct watched *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	r = weight_identity_copy(identity, &w->identity);
	if (r < 0) {
		free(w);
		return r;
	}
	list_init(&w->in_list);
	w->is_import = is_import;
	w->was_left = was_left;
	w->alive_ms = clock_monotonic_ms();
	store_lock(s);
	add_locked(s->reconciler, w);
	store_unlock(s);
	reconciler_poke(s);
	return 0;
}

int reconciler_watch_claim(struct weight_store *s,
			   const struct weight_lineage *lineage)
{
	const struct weight_identity id = { .lineage = *lineage };

	return watch(s, &id, false, false);
}

int reconciler_watch_import(struct weight_store *s,
			    const struct weight_identity *identity)
{
	return watch(s, identity, true, false);
}

void reconciler_poke_locked(struct weight_store *s)
{
	s->reconciler->poked = true;
	(void)pthread_cond_signal(&s->reconciler->wakes);
}

void reconciler_poke(struct weight_store *s)
{
	store_lock(s);
	reconciler_poke_locked(s);
	store_unlock(s);
}

/* ---- Claims ---- */

static int removal_on_record(struct weight_store *s,
			     const struct weight_identity *id)
{
	const struct wms_delete_request rq = {
		.ignore_lease_holder = s->holder,
		.by_claim = true,
	};
	int r;

	(void)pthread_mutex_lock(&s->namespace_lock);
	r = wms_delete_begin(s->records, id, &rq, clock_realtime_ms(), NULL);
	(void)pthread_mutex_unlock(&s->namespace_lock);
	return r < 0 ? r : removal_start(s, id);
}

static int delete_base(struct weight_store *s,
		       const struct weight_lineage_record *l)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	const struct weight_identity base = { l->lineage, l->claim.base };
	int r = tree_group_of(s, &base, &g);

	/* Without a place in the tree nobody can have it open. */
	if (r == -ENOENT || r == -ENAMETOOLONG)
		return removal_on_record(s, &base);
	if (r == 0)
		r = tree_group_remove(g, 0, true, &why);
	return r;
}

/* The import that its writer had begun, or was about to begin. */
static int prepare_target(struct weight_store *s,
			  const struct weight_lineage_record *l)
{
	const struct weight_import_request rq = {
		.identity = { l->lineage, l->claim.target },
		.payload_group_id = "",
		.import = l->claim.import,
		.by_claim = true,
	};
	int r = wms_import_begin(s->records, &rq, clock_realtime_ms(), NULL,
				 NULL);

	return r < 0 ? r : reconciler_watch_import(s, &rq.identity);
}

static int take_step(struct weight_store *s,
		     const struct weight_lineage_record *l,
		     enum weight_claim_step what)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*after = NULL;
	const struct wms_claim_request rq = {
		.lineage = &l->lineage,
		.name = { l->claim.request_id, l->claim.base, l->claim.target },
		.wants_durable = store_is_kept(s),
	};
	uint64_t now = clock_realtime_ms();
	int r;

	switch (what) {
	case WEIGHT_CLAIM_PREPARE:
		return prepare_target(s, l);
	case WEIGHT_CLAIM_DELETE:
		return delete_base(s, l);
	case WEIGHT_CLAIM_COMMIT:
		r = wms_upsert_commit(s->records, &rq, now, &after, NULL);
		break;
	case WEIGHT_CLAIM_ABORT:
		r = wms_upsert_abort(s->records, &rq, now, &after, NULL);
		break;
	case WEIGHT_CLAIM_ADVANCE:
		r = wms_claim_advance(s->records, &l->lineage, now, &after);
		break;
	default:
		return -EAGAIN;
	}
	if (r == 0)
		tree_claim_apply(s, after);
	return r;
}

/* Somebody, or the disk, is waited for. */
static bool is_patient(int r)
{
	return r == -EBUSY || r == -EINPROGRESS || r == -EAGAIN ||
	       r == -ECANCELED || r == -ENOENT;
}

static void count_step(const struct watched *w, const struct weight_claim *c,
		       enum weight_claim_step what, int r)
{
	/* Nobody but us would have taken it. */
	bool recovers = w->was_left || what == WEIGHT_CLAIM_PREPARE ||
			what == WEIGHT_CLAIM_ABORT;

	if (r == 0 && recovers)
		metrics_add(wms_claim_recovery_metric(c->mode), 1);
	if (r < 0 && !is_patient(r)) {
		metrics_add(wms_claim_failure_metric(c->mode), 1);
		metrics_add(METRIC_RECONCILIATION_FAILURES, 1);
	}
}

/*
 * A writer has just announced a target, or resumed it, and begins its import
 * with its next call. Until it did, the target looks like one that is gone.
 */
static bool is_about_to_begin(const struct weight_claim *c,
			      enum weight_claim_step what)
{
	uint64_t now = clock_realtime_ms();

	return what == WEIGHT_CLAIM_ABORT && c->described &&
	       now >= c->updated_at_ms && now - c->updated_at_ms < BEGIN_MS;
}

/* Whether the claim is still to be watched. */
static bool look_at_claim(struct weight_store *s, struct watched *w)
{
	for (unsigned i = 0; i < STEPS_MAX; i++) {
		cleanup(weight_lineage_record_free_cleanup) struct
			weight_lineage_record *l = NULL;
		enum weight_claim_step what;
		int r = wms_claim_step(s->records, &w->identity->lineage,
				       store_is_kept(s), s->holder,
				       clock_realtime_ms(), &what, &l);

		if (r == -ENOENT || (r == 0 && what == WEIGHT_CLAIM_DONE))
			return false;
		if (r < 0) {
			metrics_add(METRIC_RECONCILIATION_FAILURES, 1);
			return true;
		}
		if (what == WEIGHT_CLAIM_WAITS || what == WEIGHT_CLAIM_CLEAN ||
		    is_about_to_begin(&l->claim, what))
			return true;
		r = take_step(s, l, what);
		step("claim: step");
		count_step(w, &l->claim, what, r);
		if (r < 0) {
			(void)log_debug(r, "step %d of a claim", (int)what);
			return true;
		}
		/* Deleting goes on in the background. */
		if (what == WEIGHT_CLAIM_DELETE)
			return true;
	}
	return true;
}

/* ---- Announced imports ---- */

/*
 * Whoever writes it has its group in memory. What the record says of its age
 * counts from when it was begun, and a large one takes longer than that: so it
 * is idle when nobody has had it since then, and since the start.
 */
static bool is_being_written(struct weight_store *s,
			     const struct weight_identity *id)
{
	char hex[DIGEST_HEX_LEN + 1];
	bool found;

	if (weight_group_hex(id, hex) < 0)
		return true;
	store_lock(s);
	found = map_find(s->groups, hex, DIGEST_HEX_LEN) != NULL;
	store_unlock(s);
	return found;
}

/* With the namespace lock: no writer comes in between. */
static int abandon(struct weight_store *s, const struct weight_metadata *m,
		   uint64_t now)
{
	int r = -EBUSY;

	(void)pthread_mutex_lock(&s->namespace_lock);
	if (!is_being_written(s, &m->identity))
		r = wms_import_abort(s->records, &m->identity,
				     m->metadata_generation, now, NULL);
	(void)pthread_mutex_unlock(&s->namespace_lock);
	return r;
}

static bool look_at_import(struct weight_store *s, struct watched *w)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	uint64_t now = clock_realtime_ms();
	uint64_t monotonic = clock_monotonic_ms();
	int r = wms_get(s->records, w->identity, &m);

	if (r < 0 && r != -ENOENT)
		return true;
	if (r == -ENOENT || m->availability != WEIGHT_IMPORTING)
		return false;
	if (is_being_written(s, w->identity))
		w->alive_ms = monotonic;
	if (!weight_import_is_abandoned(m, now) ||
	    monotonic - w->alive_ms < WEIGHT_IMPORT_IDLE_MS)
		return true;
	r = abandon(s, m, now);
	if (r == 0) {
		log_info("generation %llu: nobody went on with its import",
			 (unsigned long long)w->identity->generation);
		metrics_add(METRIC_ABANDONED_IMPORTS, 1);
		r = removal_start(s, w->identity);
	}
	return r < 0;
}

/* ---- Leases and staged trees ---- */

static void sweep_leases(struct weight_store *s)
{
	size_t swept = SWEEP_BATCH;

	while (swept == SWEEP_BATCH &&
	       wms_lease_sweep(s->records, clock_realtime_ms(), SWEEP_BATCH,
			       &swept) == 0)
		;
}

static void expire_one(struct weight_store *s, const struct weight_staging *st)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	uint64_t ttl = s->config->staging_ttl_ms;
	uint64_t now = clock_realtime_ms();

	if (now < st->created_at_ms || now - st->created_at_ms < ttl ||
	    tree_group_of(s, &st->identity, &g) < 0)
		return;
	if (tree_group_expire(g, ttl) == 0)
		log_info("generation %llu was staged and not touched for %llu "
			 "s: it is gone (option staging_ttl)",
			 (unsigned long long)st->identity.generation,
			 (unsigned long long)ttl / 1000);
}

static void expire_staged(struct weight_store *s)
{
	struct wms_position at = { 0 };
	struct weight_staging *st;
	bool stopping = false;
	int r;

	while (!stopping &&
	       (r = wms_staged_each(s->records, &at, &st)) != -ENOENT) {
		if (r == 0) {
			expire_one(s, st);
			weight_staging_free(st);
		} else if (r != -EUCLEAN) {
			return;
		}
		store_lock(s);
		stopping = s->stopping;
		store_unlock(s);
	}
}

/* The leases of before were compared with who really holds what. */
static bool is_settled(struct weight_store *s)
{
	bool settled;

	store_lock(s);
	settled = s->settled;
	store_unlock(s);
	return settled;
}

/* What is due by the clock. */
static void look_around(struct reconciler *rc)
{
	uint64_t ttl = rc->store->config->staging_ttl_ms;
	uint64_t now = clock_monotonic_ms();
	uint64_t pause = ttl / 4;

	if (now >= rc->sweep_ms && is_settled(rc->store)) {
		sweep_leases(rc->store);
		rc->sweep_ms = now + SWEEP_MS;
	}
	if (ttl == 0 || now < rc->staging_ms)
		return;
	expire_staged(rc->store);
	if (pause < STAGING_LOOK_MS_MIN)
		pause = STAGING_LOOK_MS_MIN;
	if (pause > STAGING_LOOK_MS_MAX)
		pause = STAGING_LOOK_MS_MAX;
	rc->staging_ms = now + pause;
}

/* ---- The thread ---- */

/* The one behind at in the list, to be looked at, or NULL. */
static struct watched *next_locked(struct reconciler *rc, struct list *at)
{
	struct watched *w;

	if (at->next == &rc->watched)
		return NULL;
	w = container_of(at->next, struct watched, in_list);
	w->is_again = false;
	return w;
}

/* Looks at each that is watched, once. Nobody else takes one off the list. */
static void look_at_all(struct reconciler *rc)
{
	struct weight_store *s = rc->store;
	struct watched *w, *next;

	store_lock(s);
	w = next_locked(rc, &rc->watched);
	store_unlock(s);
	for (; w; w = next) {
		bool stays = w->is_import ? look_at_import(s, w) :
					    look_at_claim(s, w);

		store_lock(s);
		next = next_locked(rc, &w->in_list);
		stays |= w->is_again;
		if (!stays)
			list_remove(&w->in_list);
		store_unlock(s);
		if (!stays)
			watched_free(w);
	}
}

static void *reconciler_main(void *arg)
{
	struct reconciler *rc = arg;
	struct weight_store *s = rc->store;

	(void)prctl(PR_SET_NAME, "reconciler");
	store_lock(s);
	while (!s->stopping) {
		rc->poked = false;
		store_unlock(s);
		look_at_all(rc);
		look_around(rc);
		store_lock(s);
		if (!rc->poked && !s->stopping)
			store_wait_locked(s, &rc->wakes,
					  list_empty(&rc->watched) ? SWEEP_MS :
								     LOOK_MS);
	}
	store_unlock(s);
	return NULL;
}

/* Claims and imports that the last daemon left. */
static int find_left(struct weight_store *s)
{
	struct weight_lineage_record *l;
	struct wms_position at = { 0 };
	int r;

	while ((r = wms_lineage_each(s->records, &at, &l)) != -ENOENT) {
		if (r < 0 && r != -EUCLEAN)
			return r;
		if (r < 0)
			continue;
		wms_count_lineage_found(l);
		r = 0;
		if (weight_lineage_live_claim(l)) {
			const struct weight_identity id = { l->lineage, 0 };

			r = watch(s, &id, false, true);
		}
		weight_lineage_record_free(l);
		if (r < 0)
			return r;
	}
	return 0;
}

int reconciler_new(struct weight_store *s)
{
	struct reconciler *rc = calloc(1, sizeof(*rc));
	int r;

	if (!rc)
		return -ENOMEM;
	r = clock_cond_init(&rc->wakes);
	if (r < 0) {
		free(rc);
		return r;
	}
	rc->store = s;
	list_init(&rc->watched);
	s->reconciler = rc;
	return 0;
}

int reconciler_start(struct weight_store *s)
{
	struct reconciler *rc = s->reconciler;
	int r = find_left(s);

	if (r < 0)
		return r;
	rc->sweep_ms = clock_monotonic_ms();
	rc->staging_ms = clock_monotonic_ms() + STAGING_LOOK_MS_MIN;
	r = -pthread_create(&rc->thread, NULL, reconciler_main, rc);
	rc->runs = r == 0;
	return r;
}

void reconciler_stop(struct weight_store *s)
{
	struct reconciler *rc = s->reconciler;

	if (!rc)
		return;
	reconciler_poke(s);
	if (rc->runs)
		(void)pthread_join(rc->thread, NULL);
	rc->runs = false;
}

void reconciler_free(struct weight_store *s)
{
	struct reconciler *rc = s->reconciler;
	struct list *at;

	if (!rc)
		return;
	while ((at = list_take_first(&rc->watched)))
		watched_free(container_of(at, struct watched, in_list));
	(void)pthread_cond_destroy(&rc->wakes);
	free(rc);
	s->reconciler = NULL;
}
