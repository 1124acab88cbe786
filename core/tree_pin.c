/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files in memory: pins of files, and prefetching for who reads what is not
 * pinned.
 *
 * A pin hangs on the open object of a file, from its staging to its removal,
 * whatever happens to its names. The daemon has at most one open file of a
 * payload file for long, that of its pin or that of its prefetch, and asks for
 * holders on that one, so it doesn't see itself.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/holders.h"
#include "core/log.h"
#include "core/prefetch.h"
#include "core/tree_priv.h"

#define WAIT_MS 100
#define PROBE_PAUSE_MS 5
/* A file is not looked at for prefetching more often than this. */
#define PREFETCH_EVERY_MS 10000
/* Smaller files are read in one go anyway. */
#define PREFETCH_BYTES_MIN ((uint64_t)1 << 20)

/* ---- The pin of a file ---- */

static bool is_there_locked(const struct weight_file *f)
{
	return f->group->state != WEIGHT_GROUP_REMOVED &&
	       f->group->state != WEIGHT_GROUP_ABORTED && !f->store->stopping;
}

/* Waits until nobody binds or drops it. Lock held. */
static void wait_pin_locked(struct weight_file *f)
{
	while (f->pin_goes)
		store_wait_locked(f->store, &f->group->changed, WAIT_MS);
}

static int bind(struct weight_file *f)
{
	struct weight_store *s = f->store;
	struct pin_file *pin = NULL;
	uint64_t version;
	int r;

	store_lock(s);
	version = f->version;
	store_unlock(s);
	/* One open file of ours, so that we don't see ourselves. */
	tree_prefetch_stop(f);
	r = pins_file_open(s->pins, f->fd, &pin);
	store_lock(s);
	f->pin_goes = false;
	if (r == 0) {
		f->pin = pin;
		f->pin_version = version;
		f->pin_users++;
		f->refs++;
	}
	(void)pthread_cond_broadcast(&f->group->changed);
	store_unlock(s);
	return r;
}

int tree_pin_get(struct weight_file *f, bool may_bind, struct pin_file **ret)
{
	struct weight_store *s = f->store;
	int r = 0;

	store_lock(s);
	wait_pin_locked(f);
	if (f->pin)
		f->pin_users++;
	else if (!may_bind || !is_there_locked(f) || f->type != S_IFREG)
		r = -ENOENT;
	else
		f->pin_goes = true; /* until it is bound */
	may_bind = f->pin_goes;
	store_unlock(s);
	if (r == 0 && may_bind)
		r = bind(f);
	if (r < 0)
		return r;
	*ret = f->pin;
	return 0;
}

void tree_pin_put(struct weight_file *f)
{
	store_lock(f->store);
	assert(f->pin_users > 0);
	if (--f->pin_users == 0)
		(void)pthread_cond_broadcast(&f->group->changed);
	store_unlock(f->store);
}

void tree_pin_drop(struct weight_file *f, bool drop)
{
	struct weight_store *s = f->store;
	struct pin_file *pin;

	store_lock(s);
	wait_pin_locked(f);
	if (!f->pin) {
		store_unlock(s);
		return;
	}
	f->pin_goes = true; /* whoever pins is told so, and stops */
	while (f->pin_users > 0)
		store_wait_locked(s, &f->group->changed, WAIT_MS);
	pin = take_ptr(f->pin);
	list_remove(&f->in_pinned);
	store_unlock(s);

	if (drop)
		(void)pins_unpin(pin, 0, pins_file_granules(pin), true);
	pins_file_close(pin);
	store_lock(s);
	f->pin_goes = false;
	(void)pthread_cond_broadcast(&f->group->changed);
	store_unlock(s);
	weight_file_unref(f);
	upkeep_poke_all(s);
}

static struct weight_file *next_pinned(struct weight_group *g)
{
	struct weight_file *found = NULL;

	store_lock(g->store);
	for (struct list *at = g->files.next; at != &g->files && !found;
	     at = at->next) {
		found = container_of(at, struct weight_file, in_group);
		if (!found->pin)
			found = NULL;
	}
	if (found)
		found->refs++;
	store_unlock(g->store);
	return found;
}

void tree_group_unpin(struct weight_group *g, bool drop)
{
	struct pin_file *manifest;
	struct weight_file *f;

	while ((f = next_pinned(g))) {
		tree_pin_drop(f, drop);
		weight_file_unref(f);
	}
	store_lock(g->store);
	manifest = take_ptr(g->manifest_pin);
	store_unlock(g->store);
	pins_file_close(manifest);
}

bool tree_file_is_hot_locked(struct weight_file *f)
{
	return f->pin && pins_is_pinned(f->pin, 0, pins_file_granules(f->pin));
}

/* ---- Staged files ---- */

struct pin_work {
	struct work work;
	struct weight_file *file; /* a reference */
	uint64_t version;
};

static int staged_progress(void *arg, uint64_t bytes)
{
	struct pin_work *w = arg;
	struct weight_file *f = w->file;
	bool stop;

	(void)bytes;
	store_lock(f->store);
	stop = f->pin_goes || f->version != w->version || !is_there_locked(f);
	store_unlock(f->store);
	return stop ? -ECANCELED : 0;
}

/* A pin of what the file was before is of another size, perhaps. */
static void drop_stale(struct weight_file *f)
{
	bool stale;

	store_lock(f->store);
	stale = f->pin && f->pin_version != f->version;
	store_unlock(f->store);
	if (stale)
		tree_pin_drop(f, false);
}

/* Whether all of it is pinned as it is now. */
static bool pin_staged(struct pin_work *w)
{
	struct pin_file *pin;
	size_t left = 0;
	int r;

	drop_stale(w->file);
	r = tree_pin_get(w->file, true, &pin);
	if (r < 0)
		return false;
	r = w->file->pin_version == w->version ?
		    pins_pin(pin, 0, pins_file_granules(pin), staged_progress,
			     w, &left) :
		    -ECANCELED;
	tree_pin_put(w->file);
	return r == 0 && left == 0;
}

/* Whoever took its last name, or its group, found no pin yet to drop. */
static bool is_gone(struct weight_file *f)
{
	struct stat st;

	return tree_file_is_gone(f) ||
	       fstatat(f->fd, "", &st, AT_EMPTY_PATH) < 0 || st.st_nlink == 0;
}

static void pin_staged_run(struct work *work)
{
	struct pin_work *w = container_of(work, struct pin_work, work);
	struct weight_file *f = w->file;
	struct weight_store *s = f->store;
	bool keep = pin_staged(w);
	bool gone = is_gone(f);
	bool published;

	store_lock(s);
	f->pin_pending = false;
	(void)pthread_cond_broadcast(&f->group->changed);
	published = f->group->state == WEIGHT_GROUP_PUBLISHED;
	keep &= f->version == w->version && !gone;
	if (keep && f->pin && !published && list_empty(&f->in_pinned))
		list_add_tail(&s->staged_pins, &f->in_pinned);
	store_unlock(s);
	/* Half of a file is worth nothing yet; a publish goes on with it. */
	if (gone || (!keep && !published))
		tree_pin_drop(f, false);
	weight_file_unref(f);
	free(w);
	store_background_end(s);
}

static bool has_room(struct weight_store *s, uint64_t bytes)
{
	struct pins_stats stats;

	pins_stats(s->pins, &stats);
	return stats.files < stats.files_max &&
	       stats.budget_bytes - stats.pinned_bytes >= bytes;
}

bool tree_pin_expect_locked(struct weight_file *f)
{
	if (f->pin_pending || f->group->preferred != WEIGHT_HOT)
		return false;
	f->pin_pending = true;
	return true;
}

/* Lock held. It goes on its way, or isn't any more. */
static bool begin_staged_locked(struct weight_file *f, struct pin_work *w)
{
	f->pin_pending =
		w && f->chunks && f->chunks_version == f->version &&
		f->chunks->size > 0 && has_room(f->store, f->chunks->size) &&
		is_there_locked(f) && !(f->pin && f->pin_version == f->version);
	if (!f->pin_pending) {
		(void)pthread_cond_broadcast(&f->group->changed);
		return false;
	}
	w->version = f->version;
	w->file = f;
	f->refs++;
	return true;
}

void tree_pin_staged(struct weight_file *f)
{
	struct weight_store *s = f->store;
	struct pin_work *w = calloc(1, sizeof(*w));
	bool due;

	drop_stale(f); /* it takes the room that the new one needs */
	store_lock(s);
	due = begin_staged_locked(f, w);
	store_unlock(s);
	if (!due) {
		free(w);
		return;
	}
	w->work.run = pin_staged_run;
	w->work.priority = WORK_BULK;
	store_background_begin(s);
	workers_submit(s->tenders, &w->work);
}

bool tree_pin_settle(struct weight_file *f)
{
	struct weight_store *s = f->store;
	struct pin_file *pin;
	size_t left = 0;
	bool current, hot;
	int r;

	store_lock(s);
	list_remove(&f->in_pinned);
	current = f->pin && f->pin_version == f->version;
	hot = f->chunks && f->chunks->size == 0;
	store_unlock(s);
	/* Also of a file that is empty now, the pin of what it was. */
	if (!current)
		tree_pin_drop(f, false);
	if (hot || !current || tree_pin_get(f, false, &pin) < 0)
		return hot;
	r = pins_again(pin, &left);
	hot = r == 0 && left == 0 &&
	      pins_is_pinned(pin, 0, pins_file_granules(pin));
	tree_pin_put(f);
	if (r == -EUCLEAN)
		tree_pin_drop(f, false);
	return hot;
}

void tree_pin_unsettle(struct weight_group *g)
{
	struct weight_store *s = g->store;

	store_lock(s);
	for (struct list *at = g->files.next; at != &g->files; at = at->next) {
		struct weight_file *f =
			container_of(at, struct weight_file, in_group);

		if (f->pin && list_empty(&f->in_pinned))
			list_add_tail(&s->staged_pins, &f->in_pinned);
	}
	store_unlock(s);
}

/* The staged file that has been pinned for longest and isn't written to. */
static struct weight_file *take_idle(struct weight_store *s)
{
	struct weight_file *found = NULL;

	store_lock(s);
	for (struct list *at = s->staged_pins.next;
	     at != &s->staged_pins && !found; at = at->next) {
		found = container_of(at, struct weight_file, in_pinned);
		if (found->group->state != WEIGHT_GROUP_STAGED ||
		    found->group->writers > 0)
			found = NULL;
	}
	if (found) {
		list_remove(&found->in_pinned);
		found->refs++;
	}
	store_unlock(s);
	return found;
}

bool tree_pin_make_room(struct weight_store *s, uint64_t bytes)
{
	struct pins_stats stats;
	struct weight_file *f;

	/* Nobody has to give way for what won't fit all the same. */
	pins_stats(s->pins, &stats);
	if (bytes > stats.budget_bytes)
		return false;
	while (!has_room(s, bytes)) {
		f = take_idle(s);
		if (!f)
			return false;
		tree_pin_drop(f, false);
		weight_file_unref(f);
	}
	return true;
}

/* ---- Who holds a file, beside ourselves ---- */

static int probe(struct weight_file *f)
{
	auto_fd int own = -1;
	int fd;

	store_lock(f->store);
	fd = f->pin ? pins_file_fd(f->pin) : f->prefetch_fd;
	if (fd >= 0)
		own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	store_unlock(f->store);
	if (fd >= 0 && own < 0)
		return -EMFILE;
	return own >= 0 ? holders_any_but(own) : holders_any(f->fd);
}

int tree_file_held(struct weight_file *f, uint64_t settle_ms)
{
	uint64_t end = clock_monotonic_ms() + settle_ms;
	int r;

	while ((r = probe(f)) > 0 && clock_monotonic_ms() < end)
		store_pause(f->store, PROBE_PAUSE_MS);
	return r;
}

/* ---- Prefetching ---- */

struct prefetch_work {
	struct work work;
	struct weight_file *file; /* a reference; prefetching is set */
};

/* Lock held. Somebody may still be about to read. */
static bool is_read_locked(const struct weight_file *f)
{
	return (f->readers > 0 || f->maybe_mapped) && is_there_locked(f) &&
	       !f->pin_goes;
}

/* An open file of ours: that of the pin, or a new one. */
static int prefetch_open(struct weight_file *f, int *ret)
{
	int fd = -1;

	store_lock(f->store);
	if (f->pin)
		fd = fcntl(pins_file_fd(f->pin), F_DUPFD_CLOEXEC, 0);
	store_unlock(f->store);
	if (fd < 0)
		return tree_file_reopen(f, O_RDONLY, ret);
	*ret = fd;
	return 0;
}

static void prefetch_run(struct work *work)
{
	struct prefetch_work *w =
		container_of(work, struct prefetch_work, work);
	struct weight_file *f = w->file;
	struct weight_store *s = f->store;
	struct prefetch *job = NULL;
	auto_fd int fd = -1;
	struct stat st;
	int r = prefetch_open(f, &fd);

	if (r == 0 && fstat(fd, &st) == 0 &&
	    (uint64_t)st.st_size >= PREFETCH_BYTES_MIN)
		(void)prefetch_start(s->prefetcher, fd, (uint64_t)st.st_size,
				     &job);
	store_lock(s);
	f->prefetching = false;
	if (job && is_read_locked(f) && !f->prefetch) {
		f->prefetch = take_ptr(job);
		f->prefetch_fd = take_fd(&fd);
		f->refs++;
	}
	(void)pthread_cond_broadcast(&f->group->changed);
	store_unlock(s);
	prefetch_stop(job);
	weight_file_unref(f);
	free(w);
	store_background_end(s);
}

void tree_prefetch_want_locked(struct weight_file *f)
{
	struct weight_store *s = f->store;
	uint64_t now = clock_monotonic_ms();
	struct prefetch_work *w;

	if (f->prefetch || f->prefetching || f->pin_goes ||
	    (f->prefetched_ms && now < f->prefetched_ms + PREFETCH_EVERY_MS) ||
	    tree_file_is_hot_locked(f))
		return;
	w = calloc(1, sizeof(*w));
	if (!w)
		return;
	f->prefetched_ms = now;
	f->prefetching = true;
	f->refs++;
	w->file = f;
	w->work.run = prefetch_run;
	w->work.priority = WORK_BULK;
	s->background++;
	workers_submit(s->workers, &w->work);
}

void tree_prefetch_stop(struct weight_file *f)
{
	struct weight_store *s = f->store;
	struct prefetch *job;
	int fd;

	store_lock(s);
	while (f->prefetching)
		store_wait_locked(s, &f->group->changed, WAIT_MS);
	job = take_ptr(f->prefetch);
	fd = take_fd(&f->prefetch_fd);
	f->prefetching = job != NULL;
	store_unlock(s);
	if (!job)
		return;
	prefetch_stop(job);
	(void)close(fd);
	store_lock(s);
	f->prefetching = false;
	(void)pthread_cond_broadcast(&f->group->changed);
	store_unlock(s);
	weight_file_unref(f);
}

static struct weight_file *next_prefetched(struct weight_group *g)
{
	struct weight_file *found = NULL;

	store_lock(g->store);
	for (struct list *at = g->files.next; at != &g->files && !found;
	     at = at->next) {
		found = container_of(at, struct weight_file, in_group);
		if (!found->prefetch && !found->prefetching)
			found = NULL;
	}
	if (found)
		found->refs++;
	store_unlock(g->store);
	return found;
}

void tree_group_prefetch_stop(struct weight_group *g)
{
	struct weight_file *f;

	while ((f = next_prefetched(g))) {
		tree_prefetch_stop(f);
		weight_file_unref(f);
	}
}

/* ---- The end ---- */

static struct weight_group *next_in_memory(struct weight_store *s)
{
	struct weight_group *g = NULL;
	struct map_entry e;
	size_t at;

	store_lock(s);
	at = map_count(s->files);
	while (!g && map_next(s->files, &at, &e)) {
		struct weight_file *f = e.value;

		if (f->pin || f->prefetch || f->prefetching)
			g = f->group;
	}
	if (g)
		g->refs++;
	store_unlock(s);
	return g;
}

void tree_pin_stop(struct weight_store *s)
{
	struct weight_group *g;

	while ((g = next_in_memory(s))) {
		tree_group_prefetch_stop(g);
		tree_group_unpin(g, false);
		weight_group_unref(g);
	}
}
