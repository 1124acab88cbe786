/* SPDX-License-Identifier: Apache-2.0 */
/* Upkeep: into memory and out of it, and the operations that say so. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/pace.h"
#include "core/prefetch.h"
#include "core/step.h"
#include "core/upkeep_priv.h"

#define MIB ((uint64_t)1 << 20)
/* Smaller files are read in one go. */
#define AHEAD_BYTES_MIN ((uint64_t)16 << 20)
/* How far the readers keep ahead, so that pinning doesn't read itself. */
#define AHEAD_BYTES (3 * PREFETCH_WINDOW_BYTES)
#define AHEAD_PAUSE_MS 2
#define SLICE_GRANULES ((size_t)32)

static struct upkeep_round round_begin(const struct upkeep *u)
{
	const struct config *config = u->g->store->config;

	return (struct upkeep_round){
		.members_max = config->migration_round_members,
		.bytes_max = config->migration_round_bytes,
	};
}

/* ---- What the operation's record learns ---- */

static int operation_of(struct upkeep *u, const struct weight_metadata *m,
			struct weight_operation **ret)
{
	return wms_operation_get(u->g->store->records,
				 m->identity.lineage.tenant, m->operation_id,
				 ret);
}

static uint64_t clamp(uint64_t low, uint64_t v, uint64_t high)
{
	return v < low ? low : v > high ? high : v;
}

/* A record isn't written for every piece; a kill may lose a second of it. */
static void save_progress(struct upkeep *u, const struct weight_metadata *m)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	struct weight_operation_progress p = { .cursor = "", .message = "" };
	uint64_t now = clock_monotonic_ms();
	struct weight_residence truth;

	if (!m->operation_id || now < u->saved_ms + UPKEEP_SAVE_MS ||
	    operation_of(u, m, &op) < 0 ||
	    weight_group_residence(u->g, &truth) < 0)
		return;
	p.total_units = op->total_units;
	p.total_bytes = op->total_bytes;
	store_lock(u->g->store);
	p.processed_units = u->done_units;
	p.processed_bytes = u->done_bytes;
	store_unlock(u->g->store);
	p.processed_units =
		clamp(op->processed_units, p.processed_units, op->total_units);
	p.processed_bytes =
		clamp(op->processed_bytes, p.processed_bytes, op->total_bytes);
	p.availability = m->availability;
	p.residency = truth.residency;
	p.hot_ratio = truth.hot_ratio;
	metrics_add(METRIC_METADATA_COMMITS, 1);
	(void)wms_operation_progress(u->g->store->records, &m->identity,
				     m->operation_id, &p, clock_realtime_ms(),
				     NULL);
	step("operation: progress");
	u->saved_ms = now;
}

/* It can't go on: said in the record, in `wait` and in the log, once. */
__attribute__((format(printf, 4, 5))) static int get_stuck(
	struct upkeep *u, const struct weight_metadata *m, bool no_memory,
	const char *fmt, ...)
{
	char sentence[WEIGHT_COMPONENT_MAX + 1];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(sentence, sizeof(sentence), fmt, ap);
	va_end(ap);
	upkeep_give_turn(u);
	u->pin_retry_ms = upkeep_retry_at(u);
	u->at = 0;
	u->granule = 0;
	upkeep_set_stuck(u, no_memory, sentence);
	if (m->operation_id)
		(void)wms_operation_error(u->g->store->records, &m->identity,
					  m->operation_id, sentence,
					  clock_realtime_ms(), NULL);
	return 0;
}

/* ---- Into memory ---- */

/* One object that is being pinned. */
struct pinning {
	struct upkeep *u;
	struct weight_file *file;
	struct upkeep_round *round;
	uint64_t filled; /* what the cache has lacked in all, as last seen */
};

/* Only what had to be read counts against a pace. */
static uint64_t newly_read(struct pinning *p, uint64_t bytes)
{
	struct pins_stats stats;
	uint64_t read;

	pins_stats(p->file->store->pins, &stats);
	read = stats.filled_bytes_total - p->filled;
	p->filled = stats.filled_bytes_total;
	return read < bytes ? read : bytes;
}

static int pin_progress(void *arg, uint64_t bytes)
{
	struct pinning *p = arg;
	struct weight_store *s = p->file->store;
	bool goes;

	if (!upkeep_go_on(p->u, bytes))
		return -ECANCELED;
	store_lock(s);
	goes = p->file->pin_goes;
	store_unlock(s);
	if (goes)
		return -ECANCELED;
	store_pace(s, s->pace, newly_read(p, bytes));
	return 0;
}

/* What of the revision isn't in memory yet, in bytes. */
static uint64_t missing_bytes(struct upkeep *u)
{
	struct weight_residence truth;
	uint64_t total = u->content->bytes;
	uint64_t hot;

	if (weight_group_residence(u->g, &truth) < 0)
		return total;
	hot = truth.pinned_bytes;
	return hot < total ? total - hot : 0;
}

static bool has_room(struct upkeep *u, uint64_t bytes)
{
	struct weight_store *s = u->g->store;

	return tree_pin_make_room(s, bytes + s->config->headroom_bytes);
}

static int no_room(struct upkeep *u, const struct weight_metadata *m,
		   uint64_t bytes)
{
	cleanup(buf_release) struct buf status = BUF_INIT;
	const char *bound = "option memory";
	struct pins_stats stats;

	/* "yes", and how much of it where that is less. */
	(void)pins_status(u->g->store->pins, &status);
	if (status.len > strlen("yes"))
		bound = "RLIMIT_MEMLOCK; CAP_IPC_LOCK lifts it";
	else if (u->g->store->config->headroom_bytes)
		bound = "options memory, headroom";
	pins_stats(u->g->store->pins, &stats);
	if (stats.files >= stats.files_max)
		return get_stuck(u, m, true,
				 "%llu files are pinned, and no more may be; "
				 "raise the daemon's limit of open files",
				 (unsigned long long)stats.files);
	u->never_fits =
		u->content->bytes + u->g->store->config->headroom_bytes >
		stats.budget_bytes;
	return get_stuck(
		u, m, true,
		"there is no room in memory: %llu MiB are needed, %llu of "
		"%llu MiB are taken (%s)",
		(unsigned long long)(bytes / MIB + 1),
		(unsigned long long)((stats.pinned_bytes +
				      u->g->store->config->headroom_bytes) /
				     MIB),
		(unsigned long long)(stats.budget_bytes / MIB), bound);
}

/* Before the first piece: does all of it fit? */
static int begin_pinning(struct upkeep *u, const struct weight_metadata *m)
{
	uint64_t missing = missing_bytes(u);
	int r;

	if (!has_room(u, missing)) {
		r = no_room(u, m, missing);
		return r < 0 ? r : 1;
	}
	upkeep_set_stuck(u, false, NULL);
	upkeep_begin(u, u->content->bytes - missing, u->content->bytes);
	u->left_granules = 0;
	return 0;
}

/* What pinning one object answered, if it isn't for the next round. */
static int pin_failed(struct upkeep *u, const struct weight_metadata *m, int r)
{
	const char *path = u->content->objects[u->at].path;

	switch (r) {
	case -ENOSPC:
	case -EMFILE:
		return no_room(u, m, u->content->objects[u->at].size);
	case -EPERM: {
		cleanup(buf_release) struct buf why = BUF_INIT;

		/* "no (reason)" */
		(void)pins_status(u->g->store->pins, &why);
		return get_stuck(u, m, true, "memory can't be locked here%s",
				 why.data && why.data[0] == 'n' ?
					 why.data + strlen("no") :
					 "");
	}
	case -ENOENT:
	case -EUCLEAN:
	case -EIO:
		/* Reading all of it finds out what is wrong. */
		store_lock(u->g->store);
		u->scrub = true;
		store_unlock(u->g->store);
		return get_stuck(u, m, false, "'%s' can't be read: %s", path,
				 strerrordesc_np(-r));
	default:
		return r;
	}
}

/* Several reads at the device at once, ahead of the one that pins. */
static void read_ahead(struct upkeep *u, struct pin_file *pin)
{
	if (u->granule == 0 && pins_file_size(pin) >= AHEAD_BYTES_MIN)
		(void)prefetch_start(u->g->store->prefetcher, pins_file_fd(pin),
				     pins_file_size(pin), &u->ahead);
}

void upkeep_end_ahead(struct upkeep *u)
{
	prefetch_stop(take_ptr(u->ahead));
	store_lock(u->g->store);
	u->ahead_bytes = 0;
	store_unlock(u->g->store);
}

/* How far it is, for people. */
static void tell_ahead(struct upkeep *u)
{
	uint64_t pinned = u->granule * PIN_GRANULE_BYTES;
	uint64_t read = prefetch_read_bytes(u->ahead);

	store_lock(u->g->store);
	u->ahead_bytes = read > pinned ? read - pinned : 0;
	store_unlock(u->g->store);
}

/* Waits until what comes next has been read; what hasn't is read by pinning. */
static int follow_ahead(struct upkeep *u, struct pinning *p, size_t granule)
{
	uint64_t want = granule * PIN_GRANULE_BYTES + AHEAD_BYTES;

	while (u->ahead && !prefetch_is_over(u->ahead) &&
	       prefetch_position(u->ahead) < want) {
		int r = pin_progress(p, 0);

		if (r < 0)
			return r;
		tell_ahead(u);
		store_pause(p->file->store, AHEAD_PAUSE_MS);
	}
	return 0;
}

/* The bytes of granules, of which the last one of a file may have fewer. */
static uint64_t granule_bytes(const struct pin_file *pin, size_t from,
			      size_t to)
{
	uint64_t size = pins_file_size(pin);
	uint64_t end = to * PIN_GRANULE_BYTES;

	return (end < size ? end : size) - from * PIN_GRANULE_BYTES;
}

/* Where a round that goes on with this file has to stop. */
static size_t last_granule(const struct upkeep *u, const struct pinning *p,
			   const struct pin_file *pin)
{
	size_t all = pins_file_granules(pin);
	uint64_t room = upkeep_round_room(p->round, PIN_GRANULE_BYTES);

	if (granule_bytes(pin, u->granule, all) <= room)
		return all;
	return u->granule + (size_t)(room / PIN_GRANULE_BYTES);
}

/* Granules from u->granule on. */
static int pin_granules(struct upkeep *u, struct pinning *p,
			struct pin_file *pin, size_t end, size_t *left)
{
	int r = 0;

	while (u->granule < end && r == 0) {
		size_t count = end - u->granule;
		size_t more = 0;

		if (count > SLICE_GRANULES)
			count = SLICE_GRANULES;
		r = follow_ahead(u, p, u->granule + count);
		if (r == 0)
			r = pins_pin(pin, u->granule, count, pin_progress, p,
				     &more);
		*left += more;
		if (r < 0)
			break;
		p->round->bytes +=
			granule_bytes(pin, u->granule, u->granule + count);
		u->granule += count;
	}
	return r;
}

static int pin_file(struct upkeep *u, struct weight_file *f,
		    struct upkeep_round *round, size_t *left)
{
	struct pinning p = { .u = u, .file = f, .round = round };
	struct pin_file *pin;
	size_t granules, end;
	int r = tree_pin_get(f, true, &pin);

	if (r < 0)
		return r;
	(void)newly_read(&p, 0);
	granules = pins_file_granules(pin);
	end = last_granule(u, &p, pin);
	if (u->granule < end)
		read_ahead(u, pin);
	r = pin_granules(u, &p, pin, end, left);
	tree_pin_put(f);
	if (r < 0 || u->granule >= granules)
		upkeep_end_ahead(u);
	return r < 0 ? r : u->granule < granules;
}

/* One object, or as much of it as a round takes. 1: there is more of it. */
static int pin_object(struct upkeep *u, struct upkeep_round *round)
{
	const struct tree_object *o = &u->content->objects[u->at];
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	size_t left = 0;
	bool hot;
	int r;

	if (o->size == 0)
		return 0;
	r = tree_file_at(u->g, o->path, &f);
	if (r < 0)
		return r;
	store_lock(u->g->store);
	hot = u->granule == 0 && tree_file_is_hot_locked(f);
	store_unlock(u->g->store);
	if (!hot)
		r = pin_file(u, f, round, &left);
	u->left_granules += left;
	step("pin: some");
	return r;
}

/* Where everything starts: it is small, and always wanted. */
static void pin_manifest(struct weight_group *g)
{
	struct pin_file *pin = NULL;
	auto_fd int fd = -1;
	size_t left;
	bool there;

	store_lock(g->store);
	there = g->manifest_pin != NULL;
	store_unlock(g->store);
	if (there || weight_group_manifest_open(g, &fd) < 0 ||
	    pins_file_open(g->store->pins, fd, &pin) < 0)
		return;
	(void)pins_pin(pin, 0, pins_file_granules(pin), NULL, NULL, &left);
	store_lock(g->store);
	if (!g->manifest_pin && g->state == WEIGHT_GROUP_PUBLISHED)
		g->manifest_pin = take_ptr(pin);
	store_unlock(g->store);
	pins_file_close(pin);
}

/* All objects were taken. Those that others pay for come again later. */
static int end_pinning(struct upkeep *u, const struct weight_metadata *m)
{
	uint64_t left = u->left_granules;

	pin_manifest(u->g);
	upkeep_give_turn(u);
	u->at = 0;
	u->granule = 0;
	u->left_granules = 0;
	if (left > 0)
		return get_stuck(
			u, m, false,
			"up to %llu MiB of it are in use by another "
			"memory control group, which would pay for "
			"them; trying again",
			(unsigned long long)(left * PIN_GRANULE_BYTES / MIB));
	u->failures = 0;
	/* What is in memory no more is taken up again only after a while. */
	u->pin_retry_ms = clock_monotonic_ms() + UPKEEP_RETRY_MS_MIN;
	return 0;
}

int upkeep_pin(struct upkeep *u, const struct weight_metadata *m)
{
	struct upkeep_round round = round_begin(u);
	int r;

	if (!upkeep_take_turn(u))
		return 0;
	r = upkeep_content(u);
	if (r < 0)
		return r;
	if (u->at == 0 && u->granule == 0) {
		r = begin_pinning(u, m);
		if (r != 0)
			return r < 0 ? r : 0;
	}
	while (u->at < u->content->count && upkeep_round_takes(&round, 1)) {
		r = pin_object(u, &round);
		if (r < 0)
			return r == -ECANCELED ? r : pin_failed(u, m, r);
		if (r > 0)
			break;
		store_lock(u->g->store);
		u->done_units += u->content->objects[u->at].units;
		store_unlock(u->g->store);
		u->at++;
		u->granule = 0;
		round.members++;
	}
	save_progress(u, m);
	return u->at < u->content->count ? 0 : end_pinning(u, m);
}

/* ---- Out of memory ---- */

/*
 * Files that leave memory in one round. Letting their cache go takes longer
 * than unpinning, and nobody waits for it.
 */
struct drop_work {
	struct work work;
	struct weight_store *store;
	size_t count;
	size_t room;
	struct weight_file *files[]; /* references */
};

/* For one round of a revision. */
static struct drop_work *drop_new(struct upkeep *u,
				  const struct weight_metadata *m,
				  const struct upkeep_round *round)
{
	uint64_t room = m->manifest.payload_count < round->members_max ?
				m->manifest.payload_count :
				round->members_max;
	struct drop_work *w =
		calloc(1, sizeof(*w) + room * sizeof(w->files[0]));

	if (w) {
		w->store = u->g->store;
		w->room = (size_t)room;
	}
	return w;
}

static void drop_free(struct drop_work *w)
{
	for (size_t i = 0; i < w->count; i++)
		weight_file_unref(w->files[i]);
	free(w);
}
DEFINE_CLEANUP(struct drop_work *, drop_free)

/* One that is all holes is in memory without a byte of it. */
static bool is_in_memory_locked(struct weight_file *f)
{
	return f->pin && (pins_file_pinned_bytes(f->pin) > 0 ||
			  tree_file_is_hot_locked(f));
}

/* Files of the group that are in memory, as many as the round takes. */
static void choose_pinned(struct weight_group *g, struct upkeep_round *round,
			  struct drop_work *w)
{
	store_lock(g->store);
	for (struct list *at = g->files.next;
	     at != &g->files && w->count < w->room; at = at->next) {
		struct weight_file *f =
			container_of(at, struct weight_file, in_group);

		if (!is_in_memory_locked(f))
			continue;
		if (!upkeep_round_takes(round, pins_file_size(f->pin)))
			break;
		round->members++;
		round->bytes += pins_file_size(f->pin);
		f->refs++;
		w->files[w->count++] = f;
	}
	store_unlock(g->store);
}

/* Opens wait from here on for as long as it takes to look and to unpin. */
static bool close_door(struct weight_group *g)
{
	bool closed;

	store_lock(g->store);
	closed = !g->removing && g->holders == 0 &&
		 g->state == WEIGHT_GROUP_PUBLISHED;
	for (struct list *at = g->files.next; at != &g->files && closed;
	     at = at->next)
		closed = container_of(at, struct weight_file, in_group)
				 ->readers == 0;
	g->unpinning = closed;
	store_unlock(g->store);
	return closed;
}

static void open_door(struct weight_group *g)
{
	store_lock(g->store);
	g->unpinning = false;
	(void)pthread_cond_broadcast(&g->changed);
	store_unlock(g->store);
}

/* Nobody has any of them mapped; a probe that can't tell means somebody. */
static bool nobody_holds(struct weight_store *s, struct weight_file **files,
			 size_t count)
{
	for (size_t i = 0; s->can_lease && i < count; i++)
		if (tree_file_held(files[i], 0) != 0)
			return false;
	return true;
}

static uint64_t unpin_all(struct weight_file **files, size_t count)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < count; i++) {
		struct pin_file *pin;

		if (tree_pin_get(files[i], false, &pin) < 0)
			continue;
		bytes += pins_file_size(pin);
		(void)pins_unpin(pin, 0, pins_file_granules(pin), false);
		tree_pin_put(files[i]);
	}
	return bytes;
}

/*
 * Takes the reference over. It may have been wanted in memory again since: if
 * that comes out now, whoever brought it there is told.
 */
static void drop_one(struct weight_file *f)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		weight_file_group(f);
	bool back;

	store_lock(f->store);
	back = f->pin && (f->pin_users > 0 || tree_file_is_hot_locked(f));
	store_unlock(f->store);
	if (!back) {
		tree_pin_drop(f, true);
		(void)upkeep_want(g);
	}
	weight_file_unref(f);
}

static void drop_run(struct work *work)
{
	struct drop_work *w = container_of(work, struct drop_work, work);
	struct weight_store *s = w->store;

	for (size_t i = 0; i < w->count; i++)
		drop_one(w->files[i]);
	free(w);
	store_background_end(s);
}

/* Takes it over. */
static void drop_later(struct drop_work *w)
{
	w->work.run = drop_run;
	w->work.priority = WORK_BULK;
	store_background_begin(w->store);
	workers_submit(w->store->tenders, &w->work);
}

/* Some of the group, with nobody coming in meanwhile. False: it is held. */
static bool unpin_some(struct upkeep *u, struct weight_file **files,
		       size_t count)
{
	struct weight_group *g = u->g;
	uint64_t bytes = 0;
	bool free;

	if (!close_door(g))
		return false;
	free = nobody_holds(g->store, files, count);
	if (free)
		bytes = unpin_all(files, count);
	open_door(g);
	(void)upkeep_go_on(u, bytes);
	return free;
}

int upkeep_unpin(struct upkeep *u, const struct weight_metadata *m)
{
	struct upkeep_round round = round_begin(u);
	cleanup(drop_free_cleanup) struct drop_work *w = drop_new(u, m, &round);

	if (!w)
		return -ENOMEM;
	if (u->total_bytes == 0)
		upkeep_begin(u, 0, m->manifest.logical_bytes);
	choose_pinned(u->g, &round, w);
	if (!unpin_some(u, w->files, w->count))
		return UPKEEP_NOT_NOW;
	step("unpin: some");
	drop_later(take_ptr(w));
	save_progress(u, m);
	return 0;
}

/* ---- The operation ---- */

static void unpin_manifest(struct weight_group *g)
{
	struct pin_file *pin;

	store_lock(g->store);
	pin = take_ptr(g->manifest_pin);
	store_unlock(g->store);
	pins_file_close(pin);
}

int upkeep_finish(struct upkeep *u, const struct weight_metadata *m)
{
	struct weight_residence truth;
	int r = weight_group_residence(u->g, &truth);

	if (r < 0)
		return r;
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = wms_operation_finish(u->g->store->records, &m->identity,
				 m->operation_id, truth.residency,
				 truth.hot_ratio, clock_realtime_ms(), NULL);
	step("operation: finished");
	if (truth.residency == WEIGHT_COLD)
		unpin_manifest(u->g);
	upkeep_set_stuck(u, false, NULL);
	u->failures = 0;
	return r;
}

int upkeep_start_operation(struct upkeep *u, const struct weight_metadata *m)
{
	const struct weight_operation_request request = {
		.kind = WEIGHT_MIGRATING,
		.target_residency = m->policy.preferred,
	};
	int r;

	/*
	 * First: once the record says the truth, nothing else would remember
	 * that it was in memory.
	 */
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = wms_operation_start(u->g->store->records, &m->identity, &request,
				clock_realtime_ms(), NULL, NULL);
	step("operation: started again");
	return r < 0 ? r : upkeep_record(u, m);
}

/* Damage to single files has been told of where it was found. */
static void tell_of_loss(struct weight_group *g)
{
	cleanup(buf_release) struct buf text = BUF_INIT;

	if (tree_group_loss(g) != TREE_LOSS_NONE &&
	    weight_group_damage(g, &text) == 0)
		log_info("generation %llu is damaged: %s",
			 (unsigned long long)g->identity->generation,
			 text.data);
}

int upkeep_record(struct upkeep *u, const struct weight_metadata *m)
{
	struct weight_observation seen = {
		.availability = tree_group_is_damaged(u->g) ? WEIGHT_DEGRADED :
							      WEIGHT_READY,
		.beside_operation = true,
	};
	struct weight_residence truth;
	int r = weight_group_residence(u->g, &truth);

	if (r < 0)
		return r;
	seen.residency = truth.residency;
	seen.hot_ratio = truth.hot_ratio;
	/* What has to be mended has to be made durable anew. */
	seen.durable = m->durable && seen.availability == WEIGHT_READY;
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = wms_observe(u->g->store->records, &m->identity, &seen, 0,
			clock_realtime_ms(), NULL);
	step("record: observed");
	if (r == 0 && m->availability != seen.availability)
		tell_of_loss(u->g);
	return r;
}
