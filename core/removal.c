/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removal: the whole revision or nothing of it.
 *
 * The decision is one transaction; from then on the revision is out of sight.
 * Its bytes go in the background in batches, the manifest last, and then the
 * tombstone is written. Each step may be the last one before a kill; the next
 * start goes on from the records.
 */
#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/dir.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/step.h"
#include "core/tree_priv.h"
#include "core/weight_key.h"

#define RETRY_MS 1000
#define SETTLE_MS 50
/* How long a round of upkeep may take to notice that it is in the way. */
#define YIELD_MS 5000

#define FILES_PATH_LEN (2 + 1 + DIGEST_HEX_LEN + 1 + sizeof(TREE_FILES_NAME))

/* A group's files, below STORE/groups. */
static void files_path(const char *hex, char ret[static FILES_PATH_LEN])
{
	(void)snprintf(ret, FILES_PATH_LEN, "%.2s/%s/" TREE_FILES_NAME, hex,
		       hex);
}

/* ---- Deleting what is left of a DELETING revision ---- */

struct deletion {
	struct work work;
	struct weight_store *store;
	struct weight_identity *identity;
	bool is_told; /* that it fails */
};

/* One batch; *ret_done when nothing is left on disk. */
static int delete_batch(struct weight_store *s, const char *hex, bool *ret_done)
{
	char path[FILES_PATH_LEN];
	auto_fd int fd = -1;
	bool empty = true;
	int r;

	files_path(hex, path);
	fd = openat(s->groups_fd, path,
		    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && errno != ENOENT)
		return -errno;
	if (fd >= 0) {
		r = payload_remove_batch(fd, WEIGHT_DELETE_BATCH_MAX, &empty,
					 NULL);
		step("removal: batch");
		if (r < 0)
			return r;
	}
	if (empty) {
		r = tree_group_rmdir(s, hex);
		if (r < 0)
			return r;
	}
	*ret_done = empty;
	return 0;
}

static bool is_stopping(struct weight_store *s)
{
	bool stopping;

	store_lock(s);
	stopping = s->stopping;
	store_unlock(s);
	return stopping;
}

/* One batch, and the tombstone when it was the last one. */
static int delete_some(struct weight_store *s, const struct weight_identity *id,
		       bool *ret_done)
{
	char hex[DIGEST_HEX_LEN + 1];
	int r = weight_group_hex(id, hex);

	if (r == 0)
		r = delete_batch(s, hex, ret_done);
	if (r < 0 || !*ret_done)
		return r;
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = wms_delete_finish(s->records, id, 0, clock_realtime_ms(), NULL);
	step("removal: tombstone");
	return r;
}

/* Room that doesn't come back is the operator's business. */
static void tell_failure(struct deletion *d, int err)
{
	if (!d->is_told)
		log_info("generation %llu is removed, but its files can't be "
			 "deleted: %s; trying again",
			 (unsigned long long)d->identity->generation,
			 strerror(-err));
	d->is_told = true;
}

static void deletion_run(struct work *work)
{
	struct deletion *d = container_of(work, struct deletion, work);
	struct weight_store *s = d->store;
	bool done = false;
	int r = delete_some(s, d->identity, &done);

	if (r < 0) {
		tell_failure(d, r);
		metrics_add(METRIC_RECONCILIATION_FAILURES, 1);
		tree_claim_stalled(s, d->identity, r);
		store_pause(s, RETRY_MS);
	}
	if ((r < 0 || !done) && !is_stopping(s)) {
		workers_submit(s->bulk, &d->work);
		return;
	}
	weight_identity_free(d->identity);
	free(d);
	reconciler_poke(s);
	store_background_end(s);
}

int removal_finish(struct weight_store *s, const struct weight_identity *id)
{
	bool done = false;
	int r = 0;

	while (r == 0 && !done)
		r = delete_some(s, id, &done);
	return r;
}

int removal_start(struct weight_store *s, const struct weight_identity *id)
{
	struct deletion *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return -ENOMEM;
	r = weight_identity_copy(id, &d->identity);
	if (r < 0) {
		free(d);
		return r;
	}
	d->store = s;
	d->work.run = deletion_run;
	d->work.priority = WORK_BULK;
	store_background_begin(s);
	workers_submit(s->bulk, &d->work);
	return 0;
}

/* ---- The decision ---- */

/* Opens wait from here on, so that nobody comes in while we look around. */
int removal_close_door(struct weight_group *g, struct buf *why)
{
	int r = 0;

	store_lock(g->store);
	while (g->unpinning)
		store_wait_locked(g->store, &g->changed, SETTLE_MS);
	if (g->state != WEIGHT_GROUP_PUBLISHED)
		r = -ENOENT;
	else if (g->removing)
		r = -EBUSY;
	else
		g->removing = true;
	store_unlock(g->store);
	if (r == -EBUSY)
		(void)buf_printf(why, "another removal of it is running");
	return r;
}

void removal_open_door(struct weight_group *g, bool removed)
{
	struct weight_store *s = g->store;

	store_lock(s);
	g->removing = false;
	if (removed) {
		g->state = WEIGHT_GROUP_REMOVED;
		if (map_find(s->groups, g->hex, DIGEST_HEX_LEN) == g)
			(void)map_take(s->groups, g->hex, DIGEST_HEX_LEN);
	}
	(void)pthread_cond_broadcast(&g->changed);
	store_unlock(s);
}

/* Handles that are open, and closed files that were still mapped just now. */
static int check_handles(struct weight_group *g)
{
	uint64_t end = clock_monotonic_ms() + SETTLE_MS;
	unsigned readers, holders;

	for (;;) {
		readers = 0;
		store_lock(g->store);
		for (struct list *at = g->files.next; at != &g->files;
		     at = at->next)
			readers +=
				container_of(at, struct weight_file, in_group)
					->readers;
		holders = g->holders;
		/* A file that was closed a moment ago is being looked at. */
		if (!readers && holders && clock_monotonic_ms() < end)
			store_wait_locked(g->store, &g->changed, 5);
		else
			end = 0;
		store_unlock(g->store);
		if (end == 0)
			return readers || holders ? -EBUSY : 0;
	}
}

static int check_mappings(struct weight_group *g, struct buf *why)
{
	struct staging_look look = { 0 };
	int held = 0;
	int r = staging_look(g, &look, why);

	/* A tree that can't be walked is no reason to keep it for ever. */
	if (r < 0 && !is_short(r)) {
		buf_release(why);
		return 0;
	}
	for (size_t i = 0; r == 0 && i < look.count; i++) {
		held = tree_file_held(look.files[i], SETTLE_MS);
		if (held > 0 || is_short(held))
			break;
	}
	staging_look_release(&look);
	if (r < 0)
		return r;
	if (is_short(held))
		return held;
	return held > 0 ? -EBUSY : 0;
}

int removal_look(struct weight_group *g, bool *ret_held, struct buf *why)
{
	int r;

	/* What the daemon itself does with the files ends first. */
	tree_group_prefetch_stop(g);
	if (!upkeep_yield(g, YIELD_MS)) {
		(void)buf_printf(why, "it is being written to the disk; try "
				      "again");
		return -EBUSY;
	}
	r = check_handles(g);
	if (r == 0)
		r = check_mappings(g, why);
	*ret_held = r == -EBUSY;
	return r;
}

/* Why the records say that it is busy. */
static void say_busy(struct weight_group *g, struct buf *why)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;

	if (wms_lineage_get(g->store->records, &g->identity->lineage, &l) ==
		    0 &&
	    weight_lineage_claims(l, g->identity->generation))
		(void)buf_printf(why,
				 "it takes part in the replacement of "
				 "generation %llu by %llu; wait for the end of "
				 "that",
				 (unsigned long long)l->claim.base,
				 (unsigned long long)l->claim.target);
	else
		(void)buf_printf(why, "somebody else has a lease on it, or an "
				      "operation runs");
}

static int decide(struct weight_group *g, uint64_t expected, bool by_claim,
		  bool *ret_held, struct buf *why)
{
	const struct wms_delete_request request = {
		.expected_metadata_generation = expected,
		.ignore_lease_holder = g->store->holder,
		.by_claim = by_claim,
	};
	struct weight_store *s = g->store;
	int r = removal_look(g, ret_held, why);

	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&s->namespace_lock);
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = wms_delete_begin(s->records, g->identity, &request,
			     clock_realtime_ms(), NULL);
	(void)pthread_mutex_unlock(&s->namespace_lock);
	if (r == -EBUSY)
		say_busy(g, why);
	else if (r == -ECANCELED)
		(void)buf_printf(why, "its metadata_generation is another one "
				      "than was asked for");
	return r;
}

/* The record went with the revision. */
static void forget_lease(struct weight_group *g)
{
	struct weight_store *s = g->store;
	struct weight_tensors *drop;
	bool leased;

	store_lock(s);
	leased = !list_empty(&g->in_leased);
	list_remove(&g->in_leased);
	g->lease_id = 0;
	drop = tree_tensors_take_locked(g);
	store_unlock(s);
	weight_tensors_unref(drop);
	if (leased) {
		metrics_add(METRIC_ACTIVE_LEASES, -1);
		weight_group_unref(g);
	}
}

int tree_group_remove(struct weight_group *group,
		      uint64_t expected_metadata_generation, bool by_claim,
		      struct buf *why)
{
	struct weight_store *s = group->store;
	bool held = false;
	int r = removal_close_door(group, why);

	if (r < 0)
		return r;
	r = decide(group, expected_metadata_generation, by_claim, &held, why);
	removal_open_door(group, r == 0);
	/* Looking for names takes long, and no open need wait for it. */
	if (held && !by_claim) {
		(void)buf_printf(why, "it is open or mapped");
		tree_group_who(group, false, why);
	}
	if (r < 0)
		return r;
	metrics_add(METRIC_REMOVALS, 1);
	forget_lease(group);
	tree_group_prefetch_stop(group);
	tree_group_unpin(group, true);
	tree_trust_forget(group);
	derived_forget(s->derived, group->hex);
	if (s->removed)
		s->removed(s->removed_arg, group);
	tree_group_let_go(group);
	/* It is removed; what can't be deleted now is at the next start. */
	r = removal_start(s, group->identity);
	if (r < 0)
		(void)log_debug(r, "deleting the bytes of '%s'", group->hex);
	return 0;
}

int weight_group_remove(struct weight_group *group,
			uint64_t expected_metadata_generation, struct buf *why)
{
	return tree_group_remove(group, expected_metadata_generation, false,
				 why);
}

/* ---- At the start ---- */

/*
 * Groups that have, or may have, a directory: the first bytes of their digests,
 * in order, with the lowest bit set where one has to be there. A directory that
 * shares them with another group's stays.
 */
struct known {
	uint64_t *items;
	size_t count, room;
	uint64_t expected, seen; /* directories that have to be there */
};
#define EXPECTED 1u

/* What was found of all revisions. */
struct found {
	struct known known;
	struct removal_left *left;
	struct weight_metadata *last; /* the last one whose lineage is there */
};

static int known_of(const char *hex, size_t len, uint64_t *ret)
{
	struct digest d;
	uint64_t be;
	int r = digest_from_hex(hex, len, &d);

	if (r < 0)
		return r;
	memcpy(&be, d.bytes, sizeof(be));
	*ret = be64toh(be) & ~(uint64_t)EXPECTED;
	return 0;
}

static int note(struct known *known, const char *hex, bool expected)
{
	size_t room = known->room ? 2 * known->room : 1024;
	uint64_t *items;

	if (known->count == known->room) {
		items = realloc(known->items, room * sizeof(*items));
		if (!items)
			return -ENOMEM;
		known->items = items;
		known->room = room;
	}
	if (known_of(hex, DIGEST_HEX_LEN, &known->items[known->count]) < 0)
		return -EUCLEAN;
	if (expected)
		known->items[known->count] |= EXPECTED;
	known->count++;
	known->expected += expected;
	return 0;
}

static int known_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a & ~(uint64_t)EXPECTED;
	uint64_t y = *(const uint64_t *)b & ~(uint64_t)EXPECTED;

	return (x > y) - (x < y);
}

/* Whether a directory belongs to a group. One that has to be there is seen. */
static bool is_known(struct known *known, const char *name)
{
	const uint64_t *found = NULL;
	uint64_t item;

	if (known->count > 0 && known_of(name, strlen(name), &item) == 0)
		found = bsearch(&item, known->items, known->count, sizeof(item),
				known_compare);
	known->seen += found && (*found & EXPECTED);
	return found;
}

static bool is_visible(const struct weight_metadata *m)
{
	return m->availability == WEIGHT_READY ||
	       m->availability == WEIGHT_DEGRADED;
}

/* A lineage that a power loss took is made again, as root's. */
static int restore_lineage(struct weight_store *s,
			   const struct weight_identity *id)
{
	cleanup(weight_dir_unref_cleanup) struct weight_dir *lineage = NULL;
	int r = tree_lineage_find(s, &id->lineage, true, &lineage);

	/* Parts too long for a path exist for the store's own door only. */
	return r == -ENAMETOOLONG ? 0 : r;
}

static int left_add(struct removal_left *left, const struct weight_identity *id)
{
	size_t room = left->room ? 2 * left->room : 16;
	struct weight_identity **items;
	int r;

	if (left->count == left->room) {
		items = realloc(left->items, room * sizeof(*items));
		if (!items)
			return -ENOMEM;
		left->items = items;
		left->room = room;
	}
	r = weight_identity_copy(id, &left->items[left->count]);
	if (r == 0)
		left->count++;
	return r;
}

void removal_left_release(struct removal_left *left)
{
	for (size_t i = 0; i < left->count; i++)
		weight_identity_free(left->items[i]);
	free(left->items);
	*left = (struct removal_left){ .items = NULL };
}

/* Those of one lineage stand together: once for all. *m may be taken over. */
static int note_lineage(struct weight_store *s, struct found *f,
			struct weight_metadata **m)
{
	const struct weight_identity *id = &(*m)->identity;
	int r;

	if (f->last &&
	    weight_lineage_equal(&f->last->identity.lineage, &id->lineage))
		return 0;
	r = restore_lineage(s, id);
	if (r < 0)
		return r;
	weight_metadata_free(f->last);
	f->last = take_ptr(*m);
	return 0;
}

/* *m may be taken over. */
static int note_revision(struct weight_store *s, struct found *f,
			 struct weight_metadata **m)
{
	const struct weight_metadata *v = *m;
	int r = 0;

	wms_count_found(s->records, v);
	if (v->availability != WEIGHT_DELETED)
		r = note(&f->known,
			 v->manifest.payload_group_id +
				 strlen(WEIGHT_GROUP_ID_PREFIX),
			 is_visible(v));
	if (r < 0)
		return r;
	switch (v->availability) {
	case WEIGHT_IMPORTING:
		return reconciler_watch_import(s, &v->identity);
	case WEIGHT_READY:
	case WEIGHT_DEGRADED:
		return note_lineage(s, f, m);
	case WEIGHT_DELETING:
		return left_add(f->left, &v->identity);
	case WEIGHT_DELETED:
		break;
	}
	return 0;
}

static int note_revisions(struct weight_store *s, struct found *f)
{
	struct wms_position at = { 0 };
	struct wms_batch batch;
	int r;

	while ((r = wms_revisions_read(s->records, &at, &batch)) == 0) {
		for (size_t i = 0; i < batch.count && r == 0; i++)
			r = note_revision(s, f, &batch.items[i]);
		wms_batch_release(&batch);
		if (r < 0)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

static bool has_files(struct weight_store *s, const struct weight_identity *id)
{
	char path[FILES_PATH_LEN];
	char hex[DIGEST_HEX_LEN + 1];
	struct stat st;

	if (weight_group_hex(id, hex) < 0)
		return true;
	files_path(hex, path);
	return fstatat(s->groups_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0 ||
	       errno != ENOENT;
}

/* The record comes before the directory and goes after it. */
static int note_staged(struct weight_store *s, struct known *known)
{
	struct wms_position at = { 0 };
	struct weight_staging *st = NULL;
	char hex[DIGEST_HEX_LEN + 1];
	int r;

	while ((r = wms_staged_each(s->records, &at, &st)) == 0) {
		if (!has_files(s, &st->identity)) {
			r = wms_unstage(s->records, &st->identity);
		} else {
			if ((r = weight_group_hex(&st->identity, hex)) == 0 &&
			    (r = note(known, hex, false)) == 0)
				r = restore_lineage(s, &st->identity);
		}
		weight_staging_free(st);
		if (r < 0)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

static int sweep_group(struct weight_store *s, const char *hex)
{
	bool done = false;
	int r = 0;

	while (r == 0 && !done)
		r = delete_batch(s, hex, &done);
	return r;
}

static int sweep_prefix(struct weight_store *s, const char *prefix,
			struct known *known)
{
	cleanup(dir_close_cleanup) DIR *d = NULL;
	const char *name;
	int r = dir_open(s->groups_fd, prefix, &d);

	if (r < 0)
		return r;
	while ((r = dir_next(d, &name)) == 0 && name) {
		if (strlen(name) != DIGEST_HEX_LEN || is_known(known, name))
			continue;
		r = sweep_group(s, name);
		if (r < 0)
			return r;
	}
	return r;
}

/* Revisions whose directory was not seen: upkeep puts that on record. */
static void note_missing(struct weight_store *s, const struct known *known)
{
	uint64_t missing = known->expected > known->seen ?
				   known->expected - known->seen :
				   0;

	s->payload_missing = missing > 0;
	if (missing > 0)
		log_info("the payload of %llu revision%s is missing: degraded "
			 "until it is put back, weightfs --check says which",
			 (unsigned long long)missing, missing == 1 ? "" : "s");
}

static int sweep(struct weight_store *s, struct known *known)
{
	cleanup(dir_close_cleanup) DIR *d = NULL;
	const char *name;
	int r = dir_open(s->groups_fd, ".", &d);

	if (r < 0)
		return r;
	if (known->count > 0)
		qsort(known->items, known->count, sizeof(*known->items),
		      known_compare);
	while ((r = dir_next(d, &name)) == 0 && name) {
		if (strlen(name) != 2)
			continue;
		r = sweep_prefix(s, name, known);
		if (r < 0)
			return r;
	}
	if (r == 0)
		note_missing(s, known);
	return r;
}

int removal_sweep(struct weight_store *s, struct removal_left *ret)
{
	struct found f = { .left = ret };
	int r = note_revisions(s, &f);

	if (r == 0)
		r = note_staged(s, &f.known);
	if (r == 0)
		r = sweep(s, &f.known);
	weight_metadata_free(f.last);
	free(f.known.items);
	return r;
}

void removal_resume(struct weight_store *s, const struct removal_left *left)
{
	for (size_t i = 0; i < left->count; i++)
		if (removal_start(s, left->items[i]) < 0)
			return;
}
