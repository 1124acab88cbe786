/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of published groups are, as users see it: residency, the
 * operations that change it, and waiting for what is pending.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/prefetch.h"
#include "core/step.h"
#include "core/tree_priv.h"

#define POLL_MS 50
#define PROGRESS_MS 1000

/* ---- What is true now ---- */

struct pinned {
	uint64_t granules; /* in bytes */
	uint64_t bytes;    /* of files, that lie in them */
};

/* Lock held. */
static void add_file_locked(struct weight_file *f, struct pinned *sum)
{
	uint64_t size, pinned;

	if (!f->pin)
		return;
	size = pins_file_size(f->pin);
	pinned = pins_file_pinned_bytes(f->pin);
	sum->granules += pinned;
	if (tree_file_is_hot_locked(f))
		sum->bytes += size;
	else
		sum->bytes += pinned < size ? pinned : size - 1;
}

static void conclude(const struct pinned *sum, uint64_t total,
		     struct weight_residence *ret)
{
	uint64_t hot = sum->bytes;

	ret->pinned_bytes = sum->granules;
	if (hot == 0) {
		ret->residency = WEIGHT_COLD;
		ret->hot_ratio = 0.0;
	} else if (hot >= total) {
		ret->residency = WEIGHT_HOT;
		ret->hot_ratio = 1.0;
	} else {
		ret->residency = WEIGHT_MIXED;
		ret->hot_ratio = (double)hot / (double)total;
	}
}

/* Of nothing, all is where the record says, or where it is to be. */
static void reside_by_record(struct weight_store *s,
			     const struct weight_metadata *m,
			     struct weight_residence *ret)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;

	ret->residency = m->residency;
	ret->hot_ratio = m->observed_hot_ratio;
	if (m->operation_id == 0 ||
	    wms_operation_get(s->records, m->identity.lineage.tenant,
			      m->operation_id, &op) < 0 ||
	    op->target_residency == WEIGHT_MIXED)
		return;
	ret->residency = op->target_residency;
	ret->hot_ratio = op->target_residency == WEIGHT_HOT ? 1.0 : 0.0;
}

static int learn_size(struct weight_group *g, struct weight_residence *ret)
{
	struct weight_metadata *m = NULL;
	int r = wms_get(g->store->records, g->identity, &m);

	if (r < 0)
		return r == -ENOENT ? -ENODATA : r;
	reside_by_record(g->store, m, ret);
	store_lock(g->store);
	g->logical_bytes = m->manifest.logical_bytes;
	store_unlock(g->store);
	weight_metadata_free(m);
	return 0;
}

int weight_group_residence(struct weight_group *group,
			   struct weight_residence *ret)
{
	struct weight_store *s = group->store;
	struct weight_residence found = { 0 };
	struct pinned sum = { 0 };
	uint64_t total;
	bool absent;
	int r = 0;

	store_lock(s);
	total = group->logical_bytes;
	store_unlock(s);
	if (total == 0)
		r = learn_size(group, &found);
	if (r < 0)
		return r;
	store_lock(s);
	total = group->logical_bytes;
	for (struct list *at = group->files.next; at != &group->files;
	     at = at->next)
		add_file_locked(container_of(at, struct weight_file, in_group),
				&sum);
	if (group->manifest_pin)
		sum.granules += pins_file_pinned_bytes(group->manifest_pin);
	absent = group->loss == TREE_LOSS_ALL;
	store_unlock(s);
	if (absent)
		found.residency = WEIGHT_ABSENT;
	else if (total > 0)
		conclude(&sum, total, &found);
	*ret = found;
	return 0;
}

int weight_file_residence(struct weight_file *file,
			  struct weight_residence *ret)
{
	struct pinned sum = { 0 };
	uint64_t size = 1;

	if (file->type != S_IFREG)
		return -ENODATA;
	store_lock(file->store);
	add_file_locked(file, &sum);
	if (file->pin)
		size = pins_file_size(file->pin);
	store_unlock(file->store);
	conclude(&sum, size, ret);
	return 0;
}

void weight_tree_space(struct weight_store *store,
		       struct weight_tree_space *ret)
{
	struct pins_stats pins;
	uint64_t available;

	pins_stats(store->pins, &pins);
	*ret = (struct weight_tree_space){
		.memory_only = store->abilities.memory_only,
		.memory_bytes = pins.budget_bytes,
		.pinned_bytes = pins.pinned_bytes,
	};
	if (prefetch_available_memory("", &available) == 0)
		ret->available_bytes = available;
}

void weight_tree_gauges(struct weight_store *store)
{
	struct prefetch_stats prefetch;
	uint64_t now = clock_realtime_ms();
	uint64_t oldest = upkeep_oldest_ms(store);
	struct wms_oplog_state log;
	struct pins_stats pins;

	pins_stats(store->pins, &pins);
	prefetch_stats(store->prefetcher, &prefetch);
	metrics_set(METRIC_MEMORY_BYTES, pins.budget_bytes);
	metrics_set(METRIC_PINNED_BYTES, pins.pinned_bytes);
	metrics_set(METRIC_PINNED_FILES, pins.files);
	metrics_raise(METRIC_PREFETCHED_BYTES, prefetch.read_bytes_total);
	metrics_set(METRIC_OLDEST_OPERATION_AGE_MS,
		    oldest && oldest < now ? now - oldest : 0);
	/* One that can't be read is told by who needs it. */
	if (wms_oplog_state(store->records, &log) < 0)
		return;
	metrics_set(METRIC_OPLOG_ENTRIES, log.next - log.first);
	metrics_raise(METRIC_OPLOG_APPENDS, log.next - 1);
}

/* ---- Operations ---- */

int tree_may_move(struct weight_store *s, enum weight_residency target,
		  struct buf *why)
{
	if (target == WEIGHT_MIXED) {
		(void)buf_printf(why, "nothing moves single tensors yet, so "
				      "that mixed can be wanted with "
				      "mode=manual or mode=pinned only");
		return -EPERM;
	}
	if (target == WEIGHT_COLD && s->abilities.memory_only) {
		(void)buf_printf(why, "the store is in memory only, there is "
				      "no disk to move it to");
		return -EPERM;
	}
	if (target == WEIGHT_HOT && !s->can_pin) {
		(void)buf_printf(why, "memory can't be locked here: ");
		(void)pins_status(s->pins, why);
		return -EPERM;
	}
	return 0;
}

int tree_group_migrate(struct weight_group *group, enum weight_residency target,
		       uint64_t expected_metadata_generation,
		       uint64_t *ret_operation_id, struct buf *why)
{
	struct weight_operation *op = NULL;
	struct weight_operation_request request = {
		.kind = WEIGHT_MIGRATING,
		.target_residency = target,
		.expected_metadata_generation = expected_metadata_generation,
	};
	struct weight_store *s = group->store;
	int r;

	if (target != WEIGHT_HOT && target != WEIGHT_COLD) {
		(void)buf_printf(why, "a revision is moved to hot or to cold");
		return -EINVAL;
	}
	if (weight_group_state(group) != WEIGHT_GROUP_PUBLISHED)
		return -ENOENT;
	if (tree_group_loss(group) != TREE_LOSS_NONE) {
		(void)weight_group_damage(group, why);
		return -EIO;
	}
	r = tree_may_move(s, target, why);
	if (r < 0)
		return r;
	/* One that waits for memory or for readers may never end by itself. */
	store_lock(s);
	request.supersedes = upkeep_may_give_way_locked(group);
	store_unlock(s);
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = wms_operation_start(s->records, group->identity, &request,
				clock_realtime_ms(), &op, why);
	step("operation: started");
	if (r == 0 && ret_operation_id)
		*ret_operation_id = op->operation_id;
	weight_operation_free(op);
	(void)wms_say_no_room(s->records, r, why);
	if (r == -ECANCELED && why->len == 0)
		(void)buf_printf(why, "its metadata_generation is another one "
				      "than was asked for");
	/* On record it goes on in any case, at the next start at the latest. */
	if (r == 0)
		(void)upkeep_want(group);
	return r;
}

int weight_group_migrate(struct weight_group *group,
			 enum weight_residency target,
			 uint64_t expected_metadata_generation, struct buf *why)
{
	return tree_group_migrate(group, target, expected_metadata_generation,
				  NULL, why);
}

int weight_tree_operation_next(struct weight_store *store, uint64_t after,
			       uint64_t *ret)
{
	struct weight_operation *op = NULL;
	int r = wms_operation_next(store->records, after, &op);

	if (r == 0)
		*ret = op->operation_id;
	weight_operation_free(op);
	return r;
}

/* Whose it is isn't known by its number: the one at or after it. */
static int operation_get(struct weight_store *s, uint64_t id,
			 struct weight_operation **ret)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	int r;

	if (id == 0)
		return -ENOENT;
	r = wms_operation_next(s->records, id - 1, &op);
	if (r < 0)
		return r;
	if (op->operation_id != id)
		return -ENOENT;
	*ret = take_ptr(op);
	return 0;
}

void tree_operation_overlay(struct weight_store *s, struct weight_operation *op)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	uint64_t bytes, units;

	if (weight_operation_is_over(op) ||
	    tree_group_of(s, &op->identity, &g) < 0 ||
	    !upkeep_progress(g, op->operation_id, &bytes, &units))
		return;
	if (bytes > op->processed_bytes)
		op->processed_bytes =
			bytes < op->total_bytes ? bytes : op->total_bytes;
	if (units > op->processed_units)
		op->processed_units =
			units < op->total_units ? units : op->total_units;
}

static void put_operation(struct json_object *o,
			  const struct weight_operation *op)
{
	tree_put_lineage(o, &op->identity.lineage);
	json_put_text(o, "kind", weight_operation_kind_name(op->kind));
	json_put_text(o, "target_residency",
		      weight_residency_name(op->target_residency));
	json_put_text(o, "cursor", op->cursor);
	json_put_text(o, "message", op->message);
	json_put_u64(o, "operation_id", op->operation_id);
	json_put_u64(o, "weight_generation", op->identity.generation);
	json_put_u64(o, "fenced_metadata_generation",
		     op->fenced_metadata_generation);
	json_put_u64(o, "started_at_ms", op->started_at_ms);
	json_put_u64(o, "updated_at_ms", op->updated_at_ms);
	json_put_u64(o, "processed_units", op->processed_units);
	json_put_u64(o, "total_units", op->total_units);
	json_put_u64(o, "processed_bytes", op->processed_bytes);
	json_put_u64(o, "total_bytes", op->total_bytes);
	json_put_ratio(o, "target_hot_ratio", op->target_hot_ratio);
}

int weight_tree_operation_json(struct weight_store *store, uint64_t id,
			       struct buf *ret)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	struct json_object o = JSON_OBJECT_INIT;
	int r = operation_get(store, id, &op);

	if (r < 0)
		return r;
	tree_operation_overlay(store, op);
	put_operation(&o, op);
	return json_object_end(&o, ret);
}

int weight_tree_operation_stat(struct weight_store *store, uint64_t id,
			       struct stat *ret)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	struct stat root, st = { .st_mode = S_IFREG | 0400 };
	int r = operation_get(store, id, &op);

	if (r < 0)
		return r;
	if (tree_group_of(store, &op->identity, &g) == 0 &&
	    fstatat(g->files_fd, "", &root, AT_EMPTY_PATH) == 0) {
		st.st_uid = root.st_uid;
		st.st_gid = root.st_gid;
		st.st_mode |= root.st_mode & 0444;
	}
	st.st_mtim.tv_sec = (time_t)(op->updated_at_ms / 1000);
	st.st_mtim.tv_nsec = (long)(op->updated_at_ms % 1000) * 1000000;
	st.st_atim = st.st_ctim = st.st_mtim;
	*ret = st;
	return 0;
}

/* ---- Waiting ---- */

static void tell(struct weight_group *g, const struct weight_waiter *waiter,
		 uint64_t *next_ms)
{
	struct buf line = BUF_INIT;

	if (!waiter || !waiter->progress || clock_monotonic_ms() < *next_ms)
		return;
	*next_ms = clock_monotonic_ms() + PROGRESS_MS;
	if (upkeep_line(g, &line) == 0 && buf_append(&line, "\n", 1) == 0)
		waiter->progress(waiter->arg, line.data);
	buf_release(&line);
}

/* Lock held while looking; waits a little unless it is over. */
static enum upkeep_pending look(struct weight_group *g, bool *ret_gone)
{
	struct weight_store *s = g->store;
	enum upkeep_pending pending;

	store_lock(s);
	*ret_gone = g->state != WEIGHT_GROUP_PUBLISHED;
	pending = upkeep_pending_locked(g);
	if (pending == UPKEEP_BUSY && !*ret_gone)
		store_wait_locked(s, &g->changed, POLL_MS);
	store_unlock(s);
	return pending;
}

/* Nothing is pending; 1 when something is wrong for good. */
static int say_damage(struct weight_group *g, struct buf *why)
{
	int r;

	if (!tree_group_is_damaged(g))
		return 0;
	r = weight_group_damage(g, why);
	return r < 0 ? r : 1;
}

int tree_wait_published(struct weight_group *g,
			const struct weight_waiter *waiter, struct buf *why)
{
	uint64_t next_line_ms = clock_monotonic_ms() + PROGRESS_MS;
	int r = upkeep_want(g);

	while (r == 0) {
		bool gone;
		enum upkeep_pending pending = look(g, &gone);

		if (gone)
			return -ENOENT;
		if (pending == UPKEEP_IDLE)
			break;
		if (pending == UPKEEP_STUCK)
			return (r = upkeep_line(g, why)) < 0 ? r : 1;
		if (waiter_interrupted(waiter))
			return -EINTR;
		tell(g, waiter, &next_line_ms);
	}
	if (r == 0)
		r = say_damage(g, why);
	return r == 0 ? tree_claim_wait(g, waiter, why) : r;
}

/* A group that has something pending, with a reference, or NULL. */
static struct weight_group *next_pending(struct weight_store *s)
{
	struct weight_group *g = NULL;
	struct map_entry e;
	size_t at;

	store_lock(s);
	at = map_count(s->groups);
	while (!g && map_next(s->groups, &at, &e)) {
		struct weight_group *found = e.value;

		if (found->state == WEIGHT_GROUP_PUBLISHED &&
		    upkeep_pending_locked(found) == UPKEEP_BUSY &&
		    !upkeep_is_waiting_locked(found))
			g = found;
	}
	if (g)
		g->refs++;
	store_unlock(s);
	return g;
}

int weight_tree_wait(struct weight_store *store,
		     const struct weight_waiter *waiter, struct buf *why)
{
	uint64_t next_line_ms = clock_monotonic_ms() + PROGRESS_MS;
	struct weight_group *g;

	(void)why;
	for (;;) {
		bool gone;

		g = next_pending(store);
		if (!g && !upkeep_is_resuming(store))
			return 0;
		if (g) {
			(void)look(g, &gone);
			tell(g, waiter, &next_line_ms);
			weight_group_unref(g);
		} else {
			store_pause(store, POLL_MS);
		}
		if (waiter_interrupted(waiter))
			return -EINTR;
	}
}

static bool is_durable(struct weight_group *g)
{
	struct weight_metadata *m = NULL;
	bool durable;

	store_lock(g->store);
	durable = g->durable;
	store_unlock(g->store);
	if (durable || wms_get(g->store->records, g->identity, &m) < 0)
		return durable;
	durable = m->durable;
	weight_metadata_free(m);
	return durable;
}

int weight_group_sync(struct weight_group *group, uint64_t wait_ms,
		      const struct weight_waiter *waiter, struct buf *why)
{
	struct weight_store *s = group->store;
	uint64_t end = clock_monotonic_ms() + wait_ms;
	int r;

	/* Nothing waits for a disk where that was not wanted, or isn't one. */
	if (!store_is_kept(s))
		return 0;
	r = upkeep_want(group);
	while (r == 0 && !is_durable(group)) {
		bool gone;

		if (look(group, &gone) == UPKEEP_IDLE || gone)
			r = is_durable(group) ? 0 : -EIO;
		else if (waiter_interrupted(waiter))
			r = -EINTR;
		else if (clock_monotonic_ms() >= end)
			r = -EAGAIN;
	}
	if (r == -EIO)
		(void)weight_group_damage(group, why);
	else if (r == -EAGAIN)
		(void)buf_printf(why, "not durable yet; read .weights/wait in "
				      "it");
	return r > 0 ? 0 : r;
}
