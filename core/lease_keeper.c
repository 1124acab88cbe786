/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lease keeper: knows who still reads, and keeps the lease records that say so.
 *
 * A group has holders: open read handles, and files that were closed but may
 * still be mapped. While there are holders the group has a lease record. The
 * last holder gone, the record lingers for a while and blocks nothing.
 *
 * One thread looks at closed files: of a published group whether anybody maps
 * them, of a staged one whether anybody still writes, so that its digest can
 * begin. At a release the answer is often too pessimistic, so it is asked again
 * with growing pauses.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/holders.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/tree_priv.h"
#include "core/weight_key.h"

#define IDLE_MS 1000 /* longest sleep of the keeper */

/* ---- Queue ---- */

/* Digests are bounded in number, looks for mappings must not wait for them. */
static struct list *queue_of_locked(struct weight_file *f)
{
	return f->group->state == WEIGHT_GROUP_PUBLISHED ? &f->store->mapped :
							   &f->store->queue;
}

void keeper_queue_locked(struct weight_file *f, uint64_t in_ms)
{
	uint64_t due = clock_monotonic_ms() + in_ms;

	if (f->store->stopping)
		return;
	if (list_empty(&f->in_queue)) {
		f->refs++;
		f->due_ms = due;
		f->pause_ms = TREE_PROBE_MS_MIN;
		list_add_tail(queue_of_locked(f), &f->in_queue);
	} else if (due < f->due_ms) {
		f->due_ms = due;
	}
	(void)pthread_cond_signal(&f->store->keeper_wakes);
}

void keeper_hold_locked(struct weight_group *g)
{
	g->holders++;
}

void keeper_drop_locked(struct weight_group *g)
{
	assert(g->holders > 0);
	if (--g->holders == 0) {
		g->idle_since_ms = clock_monotonic_ms();
		upkeep_poke_locked(g);
		if (g->fenced_by)
			reconciler_poke_locked(g->store);
	}
	(void)pthread_cond_broadcast(&g->changed);
}

/* ---- Lease records ---- */

static bool lease_is_live_locked(const struct weight_group *g)
{
	return g->lease_id != 0 && g->lease_expires_ms > clock_realtime_ms();
}

/* The record is this thread's to change until lease_unlock(). */
static void lease_lock(struct weight_group *g)
{
	store_lock(g->store);
	while (g->lease_busy)
		store_wait_locked(g->store, &g->changed, IDLE_MS);
	g->lease_busy = true;
	store_unlock(g->store);
}

static void lease_unlock(struct weight_group *g, uint64_t id,
			 uint64_t expires_ms)
{
	struct weight_store *s = g->store;
	bool drop = false;

	store_lock(s);
	g->lease_busy = false;
	g->lease_id = id;
	g->lease_expires_ms = expires_ms;
	/* Who took it has no hold yet: the linger begins only now. */
	if (id && g->holders == 0)
		g->idle_since_ms = clock_monotonic_ms();
	/* Who settles what was left may come after all leases were dropped. */
	if (id && list_empty(&g->in_leased) && !s->stopping) {
		g->refs++;
		list_add_tail(&s->leased, &g->in_leased);
		metrics_add(METRIC_ACTIVE_LEASES, 1);
	} else if (!id && !list_empty(&g->in_leased)) {
		list_remove(&g->in_leased);
		metrics_add(METRIC_ACTIVE_LEASES, -1);
		drop = true;
	}
	(void)pthread_cond_broadcast(&g->changed);
	(void)pthread_cond_signal(&s->keeper_wakes);
	store_unlock(s);
	if (drop)
		weight_group_unref(g);
}

static int lease_acquire(struct weight_group *g, struct weight_lease **ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	struct weight_lease_request request = {
		.holder = g->store->holder,
		.ttl_ms = g->store->config->lease_ttl_ms,
		.degraded_too = true,
	};
	int r;

	/* The generation may move between the two calls: ask again. */
	for (int tries = 0; tries < 3; tries++) {
		weight_metadata_free(take_ptr(m));
		r = wms_get(g->store->records, g->identity, &m);
		if (r < 0)
			return r;
		request.expected_metadata_generation = m->metadata_generation;
		metrics_add(METRIC_LEASE_WRITES, 1);
		r = wms_lease_acquire(g->store->records, g->identity, &request,
				      clock_realtime_ms(), ret);
		if (r != -ECANCELED)
			return r;
	}
	return r;
}

/*
 * A record that ran out and was replaced: a clock that is set back would bring
 * it to life again, and nobody would end it.
 */
static void lease_forget(struct weight_group *g, uint64_t id)
{
	if (!id)
		return;
	metrics_add(METRIC_LEASE_WRITES, 1);
	(void)wms_lease_release(g->store->records, g->identity->lineage.tenant,
				id);
}

int keeper_lease_take(struct weight_group *g)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *lease = NULL;
	uint64_t id, expires;
	bool live;
	int r;

	lease_lock(g);
	store_lock(g->store);
	live = lease_is_live_locked(g);
	id = g->lease_id;
	expires = g->lease_expires_ms;
	store_unlock(g->store);
	if (live) {
		lease_unlock(g, id, expires);
		return 0;
	}
	r = lease_acquire(g, &lease);
	if (r == 0)
		lease_forget(g, id);
	/* Who asked holds it in a moment: it is not idle since ever. */
	store_lock(g->store);
	if (g->holders == 0)
		g->idle_since_ms = clock_monotonic_ms();
	store_unlock(g->store);
	if (r < 0)
		lease_unlock(g, id, expires);
	else
		lease_unlock(g, lease->lease_id, lease->expires_at_ms);
	/* A removal that came first: for the reader it is gone. */
	return r == -EINPROGRESS ? -ENOENT : r;
}

/* Ends the record, if nobody holds the group. */
static void lease_release(struct weight_group *g)
{
	uint64_t id;

	lease_lock(g);
	store_lock(g->store);
	id = g->holders == 0 ? g->lease_id : 0;
	if (id)
		g->lease_expires_ms = 0; /* opens must not rely on it now */
	store_unlock(g->store);
	if (!id) {
		store_lock(g->store);
		g->lease_busy = false;
		(void)pthread_cond_broadcast(&g->changed);
		store_unlock(g->store);
		return;
	}
	metrics_add(METRIC_LEASE_WRITES, 1);
	(void)wms_lease_release(g->store->records, g->identity->lineage.tenant,
				id);
	lease_unlock(g, 0, 0);
}

void keeper_lease_give_up(struct weight_group *g)
{
	lease_release(g);
}

/* Extends the record; one that ran out is replaced, the holders are real. */
static void lease_renew(struct weight_group *g)
{
	struct weight_lease *lease = NULL;
	struct weight_store *s = g->store;
	uint64_t id, expires;
	int r;

	lease_lock(g);
	store_lock(s);
	id = g->lease_id;
	expires = g->lease_expires_ms;
	store_unlock(s);
	metrics_add(METRIC_LEASE_WRITES, 1);
	r = wms_lease_renew(s->records, g->identity->lineage.tenant, id,
			    s->config->lease_ttl_ms, clock_realtime_ms(),
			    &lease);
	if (r == -EKEYEXPIRED || r == -ENOENT) {
		r = lease_acquire(g, &lease);
		if (r == 0)
			lease_forget(g, id);
	}
	if (r < 0) {
		store_lock(s);
		g->idle_since_ms = clock_monotonic_ms();
		store_unlock(s);
	}
	if (r == 0)
		lease_unlock(g, lease->lease_id, lease->expires_at_ms);
	else
		lease_unlock(g, id, expires);
	weight_lease_free(lease);
}

/* ---- Handles ---- */

static void say_fenced(struct weight_group *g)
{
	uint64_t by;
	char text[128];

	store_lock(g->store);
	by = g->fenced_by;
	store_unlock(g->store);
	(void)snprintf(text, sizeof(text),
		       "generation %llu is being replaced by %llu, and nobody "
		       "comes to it any more; open that one",
		       (unsigned long long)g->identity->generation,
		       (unsigned long long)by);
	weight_group_set_error(g, text);
}

int keeper_hold(struct weight_group *g)
{
	for (;;) {
		int r = 0;

		store_lock(g->store);
		while (g->removing || g->unpinning)
			store_wait_locked(g->store, &g->changed, IDLE_MS);
		if (g->state != WEIGHT_GROUP_PUBLISHED)
			r = -ENOENT;
		else if (g->fenced_by)
			r = -EBUSY;
		else if (!g->lease_busy && lease_is_live_locked(g))
			keeper_hold_locked(g);
		else
			r = 1;
		store_unlock(g->store);
		if (r == -EBUSY)
			say_fenced(g);
		if (r <= 0)
			return r;
		r = keeper_lease_take(g);
		if (r < 0)
			return r;
	}
}

void keeper_release(struct weight_group *g)
{
	store_lock(g->store);
	keeper_drop_locked(g);
	store_unlock(g->store);
}

static int open_write(struct weight_file *f, int flags)
{
	struct weight_setattr empty = { .set_size = true };
	int r;

	store_lock(f->store);
	r = tree_write_check_locked(f);
	if (r == 0) {
		tree_file_touch_locked(f);
		f->writers++;
		f->group->writers++;
	}
	store_unlock(f->store);
	if (r == 0 && (flags & O_TRUNC)) {
		r = weight_file_setattr(f, &empty);
		if (r < 0)
			weight_file_close(f, flags);
	}
	return r;
}

/* Lock held. 0 opened, 1 the lease record has to be taken first. */
static int open_read_locked(struct weight_file *f)
{
	struct weight_group *g = f->group;

	switch (g->state) {
	case WEIGHT_GROUP_PUBLISHED:
		if (g->fenced_by)
			return -EBUSY;
		if (g->removing || g->unpinning || !lease_is_live_locked(g))
			return 1;
		break;
	case WEIGHT_GROUP_STAGED:
	case WEIGHT_GROUP_PUBLISHING:
		break;
	case WEIGHT_GROUP_REMOVED:
	case WEIGHT_GROUP_ABORTED:
		return -ENOENT;
	}
	f->readers++;
	keeper_hold_locked(g);
	if (f->trust == TREE_GOOD && f->type == S_IFREG &&
	    g->state == WEIGHT_GROUP_PUBLISHED)
		tree_prefetch_want_locked(f);
	return 0;
}

/* Loaders that meet it read through the cache instead, which is memory. */
static int check_direct(struct weight_file *f, int flags)
{
	struct weight_store *s = f->store;
	bool hot;

	if (!(flags & O_DIRECT) || s->config->direct == CONFIG_DIRECT_ALLOW)
		return 0;
	store_lock(s);
	hot = f->group->state == WEIGHT_GROUP_PUBLISHED &&
	      tree_file_is_hot_locked(f);
	store_unlock(s);
	if (hot)
		weight_group_set_error(f->group,
				       "the file is all in memory, so reading "
				       "it past the cache is refused (option "
				       "direct)");
	return hot ? -EINVAL : 0;
}

int weight_file_open(struct weight_file *file, int flags, bool may_block)
{
	struct weight_group *g;
	int r;

	if (weight_open_writes(flags))
		return open_write(file, flags);
	r = check_direct(file, flags);
	if (r == 0)
		r = tree_trust_open(file, may_block);
	if (r < 0)
		return r;
	for (;;) {
		store_lock(file->store);
		r = open_read_locked(file);
		g = file->group;
		if (r == 1 && may_block)
			g->refs++;
		while (r == 1 && may_block && (g->removing || g->unpinning))
			store_wait_locked(g->store, &g->changed, IDLE_MS);
		store_unlock(file->store);
		if (r == -EBUSY)
			say_fenced(g);
		if (r <= 0)
			return r;
		if (!may_block)
			return -EWOULDBLOCK;
		r = keeper_lease_take(g);
		weight_group_unref(g);
		if (r < 0)
			return r;
	}
}

void weight_file_close(struct weight_file *file, int flags)
{
	struct weight_group *g;

	store_lock(file->store);
	g = file->group;
	if (weight_open_writes(flags)) {
		assert(file->writers > 0);
		file->writers--;
		g->writers--;
		/* Also what was written through this handle is new. */
		tree_file_touch_locked(file);
		if (file->writers == 0)
			keeper_queue_locked(file, TREE_PROBE_MS_MIN);
		(void)pthread_cond_broadcast(&g->changed);
	} else {
		assert(file->readers > 0);
		file->readers--;
		if (file->readers == 0 && !file->maybe_mapped &&
		    file->type == S_IFREG) {
			/* The handle's hold goes on as the mapping's. */
			file->maybe_mapped = true;
			keeper_queue_locked(file, TREE_PROBE_MS_MIN);
		} else {
			keeper_drop_locked(g);
			/* A look that is going on may be too early for it. */
			if (file->readers == 0 && file->maybe_mapped)
				keeper_queue_locked(file, TREE_PROBE_MS_MIN);
		}
	}
	store_unlock(file->store);
}

/* ---- Looking at files ---- */

static unsigned longer_pause(unsigned ms)
{
	return ms * 2 > TREE_PROBE_MS_MAX ? TREE_PROBE_MS_MAX : ms * 2;
}

/* Lock held. The next look at a file that is still held. */
static void look_again_locked(struct weight_file *f)
{
	f->pause_ms = longer_pause(f->pause_ms);
	f->due_ms = clock_monotonic_ms() + f->pause_ms;
	if (list_empty(&f->in_queue)) {
		f->refs++;
		list_add_tail(queue_of_locked(f), &f->in_queue);
	}
}

/*
 * A mapping that was there when the file was closed. readers may have come
 * back meanwhile; then its own close will ask again.
 */
static void look_for_readers(struct weight_file *f)
{
	struct weight_store *s = f->store;
	struct weight_group *unleased = NULL;
	bool asked, opened;
	int r = 0;

	store_lock(s);
	asked = f->maybe_mapped;
	opened = f->readers > 0;
	store_unlock(s);
	if (!asked)
		return;
	if (!opened)
		r = tree_file_held(f, 0);
	if (r == 0 && !opened)
		tree_prefetch_stop(f);
	store_lock(s);
	if (r > 0 || is_short(r)) {
		look_again_locked(f);
		/* It was mapped while staged, and is published now. */
		if (f->group->state == WEIGHT_GROUP_PUBLISHED &&
		    f->group->lease_id == 0 && !f->group->lease_busy) {
			unleased = f->group;
			unleased->refs++;
		}
	} else if (f->readers > 0 || list_empty(&f->in_queue)) {
		f->maybe_mapped = false;
		keeper_drop_locked(f->group);
	} /* else it was opened and closed meanwhile, and is asked again */
	store_unlock(s);
	if (unleased)
		(void)keeper_lease_take(unleased);
	weight_group_unref(unleased);
}

static void look_for_writers(struct weight_file *f)
{
	struct weight_store *s = f->store;
	bool due;
	int r;

	store_lock(s);
	due = f->writers == 0 && !f->job && f->type == S_IFREG &&
	      (f->group->state == WEIGHT_GROUP_STAGED ||
	       f->group->state == WEIGHT_GROUP_PUBLISHING);
	store_unlock(s);
	if (!due)
		return;
	r = s->can_lease ? holders_writer(f->fd) : 0;
	if (r > 0 || is_short(r)) {
		store_lock(s);
		look_again_locked(f);
		store_unlock(s);
		return;
	}
	staging_digest_start(f);
}

static void look_at(struct weight_file *f)
{
	struct stat st;

	/* Nobody can open, digest or publish what has no name any more. */
	if (fstatat(f->fd, "", &st, AT_EMPTY_PATH) == 0 && st.st_nlink > 0)
		look_for_writers(f);
	look_for_readers(f);
}

static void look_at_hold(struct tensor_hold *h)
{
	struct weight_store *s = h->group->store;

	if (holders_any(derived_file_fd(h->file)) > 0) {
		h->pause_ms = longer_pause(h->pause_ms);
		h->due_ms = clock_monotonic_ms() + h->pause_ms;
		store_lock(s);
		list_add_tail(&s->holds, &h->in_queue);
		store_unlock(s);
		return;
	}
	derived_release(h->file);
	store_lock(s);
	keeper_drop_locked(h->group);
	store_unlock(s);
	weight_group_unref(h->group);
	free(h);
}

/* ---- The thread ---- */

/* Takes the due file that waited longest, or tells when one will be due. */
static struct weight_file *take_due_locked(struct list *queue, uint64_t now,
					   uint64_t *next)
{
	for (struct list *at = queue->next; at != queue; at = at->next) {
		struct weight_file *f =
			container_of(at, struct weight_file, in_queue);

		if (f->due_ms <= now) {
			list_remove(&f->in_queue);
			return f;
		}
		if (f->due_ms < *next)
			*next = f->due_ms;
	}
	return NULL;
}

static struct tensor_hold *take_hold_locked(struct weight_store *s,
					    uint64_t now, uint64_t *next)
{
	for (struct list *at = s->holds.next; at != &s->holds; at = at->next) {
		struct tensor_hold *h =
			container_of(at, struct tensor_hold, in_queue);

		if (h->due_ms <= now) {
			list_remove(&h->in_queue);
			return h;
		}
		if (h->due_ms < *next)
			*next = h->due_ms;
	}
	return NULL;
}

/* Lock held. Whether the lease of g wants a write now, and when it will. */
static bool lease_is_due_locked(struct weight_group *g, uint64_t now,
				uint64_t *next)
{
	uint64_t ttl = g->store->config->lease_ttl_ms;
	uint64_t left, at;

	if (g->lease_busy)
		return false;
	if (g->holders == 0) {
		at = g->idle_since_ms + TREE_LEASE_LINGER_MS;
	} else {
		uint64_t real = clock_realtime_ms();

		left = g->lease_expires_ms > real ? g->lease_expires_ms - real :
						    0;
		/* A clock that was set back must not stretch the record. */
		if (left > 2 * ttl)
			left = 0;
		at = now + (left > ttl / 3 * 2 ? left - ttl / 3 * 2 : 0);
		/* Set by a renewal that failed: not again at once. */
		if (at < g->idle_since_ms + IDLE_MS)
			at = g->idle_since_ms + IDLE_MS;
	}
	if (at <= now)
		return true;
	if (at < *next)
		*next = at;
	return false;
}

static struct weight_group *take_lease_locked(struct weight_store *s,
					      uint64_t now, uint64_t *next)
{
	for (struct list *at = s->leased.next; at != &s->leased;
	     at = at->next) {
		struct weight_group *g =
			container_of(at, struct weight_group, in_leased);

		if (lease_is_due_locked(g, now, next)) {
			g->refs++;
			return g;
		}
	}
	return NULL;
}

static void serve_lease(struct weight_group *g)
{
	bool idle;

	store_lock(g->store);
	idle = g->holders == 0;
	store_unlock(g->store);
	if (idle)
		lease_release(g);
	else
		lease_renew(g);
	weight_group_unref(g);
}

static void serve_file(struct weight_file *f)
{
	if (!f)
		return;
	look_at(f);
	weight_file_unref(f);
}

static void *keeper_main(void *arg)
{
	struct weight_store *s = arg;

	(void)prctl(PR_SET_NAME, "lease-keeper");
	store_lock(s);
	while (!s->stopping) {
		uint64_t now = clock_monotonic_ms();
		uint64_t next = now + IDLE_MS;
		struct weight_file *m = take_due_locked(&s->mapped, now, &next);
		struct weight_file *f =
			s->jobs < TREE_JOBS_MAX ?
				take_due_locked(&s->queue, now, &next) :
				NULL;
		struct tensor_hold *h = take_hold_locked(s, now, &next);
		struct weight_group *g = take_lease_locked(s, now, &next);
		struct weight_tensors *t = tree_tensors_idle_locked(s, now);

		if (!m && !f && !h && !g && !t) {
			store_wait_locked(s, &s->keeper_wakes, next - now);
			continue;
		}
		store_unlock(s);
		serve_file(m);
		serve_file(f);
		weight_tensors_unref(t);
		if (h)
			look_at_hold(h);
		if (g)
			serve_lease(g);
		store_lock(s);
	}
	store_unlock(s);
	return NULL;
}

int keeper_start(struct weight_store *s)
{
	int r = pthread_create(&s->keeper, NULL, keeper_main, s);

	if (r)
		return -r;
	s->keeper_runs = true;
	return 0;
}

static void drop_file(struct weight_file *f)
{
	store_lock(f->store);
	if (f->maybe_mapped) {
		f->maybe_mapped = false;
		keeper_drop_locked(f->group);
	}
	store_unlock(f->store);
	weight_file_unref(f);
}

static void drop_hold(struct tensor_hold *h)
{
	derived_release(h->file);
	store_lock(h->group->store);
	keeper_drop_locked(h->group);
	store_unlock(h->group->store);
	weight_group_unref(h->group);
	free(h);
}

/*
 * The records of leases whose readers live on stay, for the next daemon to
 * find; those of nobody go.
 */
static void drop_lease(struct weight_group *g, bool held)
{
	struct weight_store *s = g->store;

	if (!held) {
		lease_release(g);
	} else {
		store_lock(s);
		list_remove(&g->in_leased);
		store_unlock(s);
		weight_group_unref(g);
	}
}

static void drop_leases(struct weight_store *s)
{
	for (;;) {
		struct list *first;
		struct weight_group *g;
		bool held;

		store_lock(s);
		first = list_first(&s->leased);
		g = first ? container_of(first, struct weight_group,
					 in_leased) :
			    NULL;
		held = g && g->holders > 0;
		if (g)
			g->refs++;
		store_unlock(s);
		if (!g)
			return;
		drop_lease(g, held);
		weight_group_unref(g);
	}
}

void keeper_stop(struct weight_store *s)
{
	struct list *at;

	store_lock(s);
	s->stopping = true;
	(void)pthread_cond_broadcast(&s->keeper_wakes);
	(void)pthread_cond_broadcast(&s->quiet);
	store_unlock(s);
	if (s->keeper_runs)
		(void)pthread_join(s->keeper, NULL);
	s->keeper_runs = false;
	drop_leases(s);
	while ((at = list_take_first(&s->queue)) ||
	       (at = list_take_first(&s->mapped)))
		drop_file(container_of(at, struct weight_file, in_queue));
	while ((at = list_take_first(&s->holds)))
		drop_hold(container_of(at, struct tensor_hold, in_queue));
}

/* ---- After a start ---- */

/* Puts every file that somebody holds back on the queue, with its hold. */
static int settle_files(struct weight_group *g)
{
	struct staging_look look = { 0 };
	struct buf why = BUF_INIT;
	int held = 0;
	int r = staging_look(g, &look, &why);

	buf_release(&why);
	if (r < 0)
		return r;
	for (size_t i = 0; i < look.count; i++) {
		struct weight_file *f = look.files[i];

		if (tree_file_held(f, 0) <= 0)
			continue;
		store_lock(g->store);
		if (!f->maybe_mapped) {
			f->maybe_mapped = true;
			keeper_hold_locked(g);
		}
		keeper_queue_locked(f, TREE_PROBE_MS_MAX);
		store_unlock(g->store);
		held++;
	}
	staging_look_release(&look);
	return held;
}

/*
 * The record becomes the group's, since somebody who opens a file just now may
 * have been given it too. One that nobody is behind goes as idle ones do.
 */
static void settle_lease(struct weight_store *s, const struct weight_lease *l)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	uint64_t id, expires;

	if (tree_group_of(s, &l->identity, &g) < 0) {
		(void)wms_lease_release(s->records, l->identity.lineage.tenant,
					l->lease_id);
		return;
	}
	(void)settle_files(g);
	lease_lock(g);
	store_lock(s);
	id = g->lease_id ? g->lease_id : l->lease_id;
	expires = g->lease_id ? g->lease_expires_ms : l->expires_at_ms;
	store_unlock(s);
	lease_unlock(g, id, expires);
	if (id != l->lease_id)
		(void)wms_lease_release(s->records, l->identity.lineage.tenant,
					l->lease_id);
}

void keeper_settle(struct weight_store *s)
{
	uint64_t after = 0;

	for (;;) {
		struct weight_lease *l = NULL;

		if (wms_lease_next(s->records, after, &l) < 0)
			return;
		after = l->lease_id;
		if (strcmp(l->holder, s->holder) == 0)
			settle_lease(s, l);
		weight_lease_free(l);
	}
}
