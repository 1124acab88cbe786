/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a store, settling what its last owner left, and closing it.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/holders.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/pace.h"
#include "core/prefetch.h"
#include "core/store_dir.h"
#include "core/tree_priv.h"
#include "core/weight_key.h"

#define WORKERS 8
#define BULK_WORKERS 4
#define TENDERS 6
#define PREFETCHERS 3
/* Of memory that is to be had, what prefetching leaves alone. */
#define PREFETCH_RESERVE ((uint64_t)256 << 20)
#define HOST_LEN 256
#define KEPT_SHARE 4 /* a quarter */

/* ---- Conditions ---- */

void store_wait_locked(struct weight_store *s, pthread_cond_t *cond,
		       uint64_t ms)
{
	clock_cond_wait(cond, &s->lock, ms);
}

void store_background_begin(struct weight_store *s)
{
	store_lock(s);
	s->background++;
	store_unlock(s);
}

void store_background_end(struct weight_store *s)
{
	store_lock(s);
	assert(s->background > 0);
	s->background--;
	(void)pthread_cond_broadcast(&s->quiet);
	store_unlock(s);
}

void store_pause(struct weight_store *s, uint64_t ms)
{
	uint64_t end = clock_monotonic_ms() + ms;
	uint64_t now;

	store_lock(s);
	while (!s->stopping && (now = clock_monotonic_ms()) < end)
		store_wait_locked(s, &s->quiet, end - now);
	store_unlock(s);
}

void store_pace(struct weight_store *s, struct pace *pace, uint64_t bytes)
{
	uint64_t pause = pace_take(pace, bytes, clock_monotonic_ms());

	if (pause)
		store_pause(s, pause);
}

/* ---- Opening ---- */

static int say(int r, struct buf *why, const char *what, const char *path)
{
	(void)buf_printf(why, "%s '%s': %s", what, path, strerrordesc_np(-r));
	return r;
}

static int refuse_directory(const struct store_dir *d, const char *path,
			    struct buf *why)
{
	(void)buf_printf(
		why, "'%s' is neither a store nor an empty directory%s", path,
		d->foreign ? "" :
			     "; what is left of a store needs its "
			     "meta/data.mdb, or a snapshot (weightfs "
			     "--import)");
	return -EUCLEAN;
}

static int open_directory(struct weight_store *s, const char *path,
			  struct buf *why)
{
	struct store_dir d;
	int r;

	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return say(-errno, why, "making the store", path);
	s->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->fd < 0)
		return say(-errno, why, "opening the store", path);
	r = store_dir_look(s->fd, &d);
	if (r < 0)
		return say(r, why, "reading the store", path);
	if (!d.empty && !store_dir_is_store(&d))
		return refuse_directory(&d, path, why);
	/* The bytes of all tenants lie below: their owner alone goes in. */
	if (fchmod(s->fd, 0700) < 0)
		return say(-errno, why, "making private the store", path);
	return 0;
}

static int take_lock(struct weight_store *s, const char *path, struct buf *why)
{
	bool made;
	int r = store_dir_lock(s->fd, true, &made, &s->lock_fd);

	if (r == -EBUSY) {
		(void)buf_printf(why,
				 "somebody has the store '%s' open, most "
				 "likely another daemon",
				 path);
		return r;
	}
	if (r == 0)
		r = store_dir_drop_unfinished(s->fd);
	return r < 0 ? say(r, why, "locking the store", path) : 0;
}

static int open_subdir(int dirfd, const char *name, int *ret)
{
	if (mkdirat(dirfd, name, 0700) < 0 && errno != EEXIST)
		return -errno;
	*ret = openat(dirfd, name,
		      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return *ret < 0 ? -errno : 0;
}

static int open_subdirs(struct weight_store *s, const char *path,
			struct buf *why)
{
	int r;

	if ((r = open_subdir(s->fd, STORE_TREE_NAME, &s->tree_fd)) < 0 ||
	    (r = open_subdir(s->fd, STORE_GROUPS_NAME, &s->groups_fd)) < 0)
		return say(r, why, "opening directories of the store", path);
	/* What users make below the root has their modes; the root is fixed. */
	if (fchmod(s->tree_fd, 0755) < 0)
		return say(-errno, why, "opening directories of the store",
			   path);
	return 0;
}

/* Payload without metadata: that got lost, and what is there is no rubbish. */
static int must_be_empty(struct weight_store *s, const char *path,
			 struct buf *why)
{
	bool empty;
	int r = store_dir_is_empty(s->groups_fd, ".", &empty);

	if (r < 0)
		return say(r, why, "reading the store", path);
	if (empty)
		return 0;
	(void)buf_printf(why,
			 "the store '%s' has payload and no metadata; put "
			 "meta/data.mdb back, or bring a snapshot in with "
			 "weightfs --import",
			 path);
	return -EUCLEAN;
}

static_assert(CONFIG_METADATA_LIMIT_MAX <= META_BYTES_MAX, "it can be had");

static int open_database(struct weight_store *s, const char *path,
			 struct buf *why)
{
	struct buf meta = BUF_INIT;
	bool there;
	int r = store_dir_has_data(s->fd, &there);

	if (r < 0)
		return say(r, why, "reading the store", path);
	if (!there) {
		r = must_be_empty(s, path, why);
		if (r < 0)
			return r;
	}
	r = buf_printf(&meta, "%s/" STORE_META_NAME, path);
	if (r == 0)
		r = wms_open_within(meta.data, s->config->metadata_limit_bytes,
				    &s->records, why);
	buf_release(&meta);
	if (r == 0 && wms_is_new(s->records))
		r = must_be_empty(s, path, why);
	return r;
}

static int open_records(struct weight_store *s, const char *path,
			struct buf *why)
{
	/* Nobody follows the log of one machine. */
	const struct wms_options options = {
		.confirms_management = s->config->management_oplog_confirmed,
		.confirms_lineages = s->config->lineage_oplog_confirmed,
		.oplog_keep = s->config->oplog_keep,
	};
	char boot_id[CLOCK_BOOT_ID_LEN + 1];
	bool unclean = false;
	int r = open_database(s, path, why);

	if (r < 0)
		return r;
	wms_configure(s->records, &options);
	if ((r = clock_boot_id(boot_id)) < 0 ||
	    (r = wms_begin_boot(s->records, boot_id, &unclean)) < 0 ||
	    (r = wms_epoch(s->records, &s->epoch)) < 0)
		return say(r, why, "reading the records of", path);
	if (unclean)
		log_info("the machine went down while the store was in use: "
			 "what was staged before has to prove itself");
	return 0;
}

static void try_filesystem(struct weight_store *s)
{
	int r = store_trial(s->fd, &s->abilities);

	if (r < 0)
		(void)log_debug(r, "trying what the filesystem can do");
	if (s->abilities.objection)
		log_info("the store is on %s, %s", s->abilities.filesystem,
			 s->abilities.objection);
	s->can_lease = s->abilities.leases;
	s->scratch = s->abilities.memory_only;
}

/* Bytes that may be brought in ahead without hurting anybody. */
static uint64_t prefetch_room(void *arg)
{
	uint64_t available;

	(void)arg;
	if (prefetch_available_memory("", &available) < 0 ||
	    available < PREFETCH_RESERVE)
		return 0;
	return available - PREFETCH_RESERVE;
}

static uint64_t lower_rate(uint64_t a, uint64_t b)
{
	return a == 0 ? b : b == 0 ? a : a < b ? a : b;
}

/* What holds files in memory, and moves their bytes in the background. */
static int make_movers(struct weight_store *s, uint64_t usable)
{
	const struct config *c = s->config;
	struct prefetch_limits limits = { .room = prefetch_room };
	struct buf status = BUF_INIT;
	int r;

	if ((r = pace_new(c->io_limit, &s->pace)) < 0 ||
	    (r = pace_new(lower_rate(c->scrub_rate, c->io_limit),
			  &s->scrub_pace)) < 0 ||
	    (r = pins_new(config_memory_bytes(c, usable), &s->pins)) < 0 ||
	    (r = pins_status(s->pins, &status)) < 0)
		return r;
	s->can_pin = status.data[0] == 'y';
	buf_release(&status);
	limits.pace = s->pace;
	if ((r = prefetcher_new(PREFETCHERS, &limits, &s->prefetcher)) < 0 ||
	    (r = workers_new("tender", TENDERS, WORKERS_NICE_BULK,
			     &s->tenders)) < 0)
		return r;
	if ((r = upkeep_new(s)) < 0)
		return r;
	return reconciler_new(s);
}

static int make_parts(struct weight_store *s)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned hashers = cores < 1                 ? 1 :
			   cores > WORKERS_COUNT_MAX ? WORKERS_COUNT_MAX :
						       (unsigned)cores;
	uint64_t usable;
	int r;

	if ((r = config_usable_memory("", &usable)) < 0 ||
	    (r = map_new(&s->dirs)) < 0 || (r = map_new(&s->files)) < 0 ||
	    (r = map_new(&s->groups)) < 0 ||
	    (r = workers_new("worker", WORKERS, 0, &s->workers)) < 0 ||
	    (r = workers_new("bulk", BULK_WORKERS, 0, &s->bulk)) < 0 ||
	    (r = workers_new("hasher", hashers, WORKERS_NICE_BULK,
			     &s->hashers)) < 0 ||
	    (r = derived_new(config_derived_bytes(s->config, usable),
			     &s->derived)) < 0 ||
	    (r = make_movers(s, usable)) < 0)
		return r;
	return tree_dir_open_root(s);
}

static void name_holder(struct weight_store *s)
{
	char host[HOST_LEN] = "localhost";

	(void)gethostname(host, sizeof(host) - 1);
	(void)snprintf(s->holder, sizeof(s->holder), TREE_HOLDER_PREFIX "%s",
		       host);
}

size_t tree_descriptors(unsigned share)
{
	struct rlimit limit = { .rlim_cur = share };

	(void)getrlimit(RLIMIT_NOFILE, &limit);
	return (size_t)(limit.rlim_cur / share);
}

static int store_init(struct weight_store *s, const struct config *config)
{
	int r;

	s->config = config;
	s->fd = s->lock_fd = s->tree_fd = s->groups_fd = -1;
	list_init(&s->queue);
	list_init(&s->mapped);
	list_init(&s->holds);
	list_init(&s->leased);
	list_init(&s->cached);
	list_init(&s->kept);
	list_init(&s->staged_pins);
	/* Facts about staged files leave most to whoever needs one. */
	s->kept_max = tree_descriptors(KEPT_SHARE);
	(void)pthread_mutex_init(&s->namespace_lock, NULL);
	(void)pthread_mutex_init(&s->stamps_lock, NULL);
	(void)pthread_mutex_init(&s->lock, NULL);
	name_holder(s);
	if ((r = clock_cond_init(&s->keeper_wakes)) < 0 ||
	    (r = clock_cond_init(&s->quiet)) < 0)
		return r;
	return holders_init();
}

/* Behind the first requests: who holds what. */
struct settling {
	struct work work;
	struct weight_store *store;
};

static void settle_run(struct work *work)
{
	struct settling *settling = container_of(work, struct settling, work);
	struct weight_store *s = settling->store;

	keeper_settle(s);
	/* From now on those that ran out may go. */
	store_lock(s);
	s->settled = true;
	store_unlock(s);
	free(settling);
	store_background_end(s);
}

static int settle_start(struct weight_store *s)
{
	struct settling *settling = calloc(1, sizeof(*settling));

	if (!settling)
		return -ENOMEM;
	settling->work.run = settle_run;
	settling->store = s;
	store_background_begin(s);
	workers_submit(s->workers, &settling->work);
	return 0;
}

int weight_store_open(const char *path, const struct config *config,
		      struct weight_store **ret, struct buf *why)
{
	cleanup(weight_store_close_cleanup) struct weight_store *s =
		calloc(1, sizeof(*s));
	cleanup(removal_left_release) struct removal_left left = { NULL };
	int r;

	if (!s)
		return -ENOMEM;
	if ((r = store_init(s, config)) < 0 ||
	    (r = open_directory(s, path, why)) < 0 ||
	    (r = take_lock(s, path, why)) < 0 ||
	    (r = open_subdirs(s, path, why)) < 0 ||
	    (r = open_records(s, path, why)) < 0)
		return r;
	try_filesystem(s);
	r = make_parts(s);
	if (r == 0)
		r = removal_sweep(s, &left);
	if (r == 0)
		r = keeper_start(s);
	if (r == 0)
		r = settle_start(s);
	if (r == 0)
		r = upkeep_start(s);
	if (r == 0)
		r = reconciler_start(s);
	if (r < 0)
		return say(r, why, "starting on the store", path);
	/* Before anybody can begin another deletion of the same. */
	removal_resume(s, &left);
	*ret = take_ptr(s);
	return 0;
}

/* ---- Closing ---- */

/* Digests of staged files are worth nothing to the next daemon. */
static void drop_kept(struct weight_store *s)
{
	for (;;) {
		struct weight_file *found = NULL;
		struct map_entry e;
		size_t at;

		store_lock(s);
		at = map_count(s->files);
		while (!found && map_next(s->files, &at, &e)) {
			struct weight_file *f = e.value;

			if (f->job)
				chunk_job_cancel(f->job);
			if (!f->job && tree_file_unkeep_locked(f))
				found = f;
		}
		store_unlock(s);
		if (!found)
			return;
		weight_file_unref(found);
	}
}

static void wait_quiet(struct weight_store *s)
{
	drop_kept(s);
	store_lock(s);
	while (s->jobs > 0 || s->background > 0)
		store_wait_locked(s, &s->quiet, 100);
	store_unlock(s);
	drop_kept(s);
}

/* A clean end promises that staged bytes are where their names are. */
static void mark_clean(struct weight_store *s)
{
	if (!s->records || s->epoch == 0 || s->scratch)
		return;
	/* Staged files, and revisions that are not durable yet. */
	if (syncfs(s->fd) < 0)
		return;
	(void)wms_mark_clean(s->records);
}

static void close_fd(int fd)
{
	if (fd >= 0)
		(void)close(fd);
}

void weight_store_close(struct weight_store *store)
{
	if (!store)
		return;
	if (store->reconciler) {
		keeper_stop(store);
		reconciler_stop(store);
		upkeep_stop(store);
		wait_quiet(store);
		tree_pin_stop(store);
		tree_trust_stop(store);
	}
	workers_free(store->workers);
	workers_free(store->bulk);
	workers_free(store->tenders);
	workers_free(store->hashers);
	upkeep_free(store);
	reconciler_free(store);
	prefetcher_free(store->prefetcher);
	weight_dir_unref(store->root);
	derived_free(store->derived);
	pins_free(store->pins);
	pace_free(store->pace);
	pace_free(store->scrub_pace);
	mark_clean(store);
	wms_close(store->records);
	map_free(store->dirs);
	map_free(store->files);
	map_free(store->groups);
	close_fd(store->groups_fd);
	close_fd(store->tree_fd);
	close_fd(store->lock_fd);
	close_fd(store->fd);
	(void)pthread_cond_destroy(&store->quiet);
	(void)pthread_cond_destroy(&store->keeper_wakes);
	(void)pthread_mutex_destroy(&store->lock);
	(void)pthread_mutex_destroy(&store->stamps_lock);
	(void)pthread_mutex_destroy(&store->namespace_lock);
	free(store->mountpoint);
	free(store);
}

/* ---- What the running store can do, and what it has to say ---- */

struct workers *weight_tree_workers(struct weight_store *store)
{
	return store->workers;
}

bool weight_tree_can_lease(const struct weight_store *store)
{
	return store->can_lease;
}

int weight_tree_set_mountpoint(struct weight_store *store, const char *path,
			       dev_t dev)
{
	char *copy = strdup(path);
	char *old;

	if (!copy)
		return -ENOMEM;
	store_lock(store);
	old = store->mountpoint;
	store->mountpoint = copy;
	store->mount_dev = dev;
	store_unlock(store);
	free(old);
	return 0;
}

void weight_tree_on_removed(struct weight_store *store, weight_removed_fn *fn,
			    void *arg)
{
	store->removed_arg = arg;
	store->removed = fn;
}

int weight_tree_health(struct weight_store *store, struct buf *ret)
{
	struct derived_stats derived;
	struct pins_stats pins;
	size_t staged_files;
	int r;

	derived_stats(store->derived, &derived);
	metrics_set(METRIC_DERIVED_BYTES, derived.used_bytes);
	store_lock(store);
	staged_files = map_count(store->files);
	store_unlock(store);
	pins_stats(store->pins, &pins);
	if ((r = store_abilities_print(&store->abilities, ret)) < 0 ||
	    (r = buf_printf(ret, "memory can be locked: ")) < 0 ||
	    (r = pins_status(store->pins, ret)) < 0)
		return r;
	return buf_printf(
		ret,
		"\npinned: %llu of %llu MiB, %llu of at most %llu files\n"
		"who pays for a page is known: %s\n"
		"tensor files: %s, %llu of %llu MiB in use\n"
		"files in memory tables: %zu\n"
		"unclean boots: %llu\n",
		(unsigned long long)(pins.pinned_bytes >> 20),
		(unsigned long long)(pins.budget_bytes >> 20),
		(unsigned long long)pins.files,
		(unsigned long long)pins.files_max,
		pins.knows_payers ? "yes" :
				    "no, what is cached is read again before "
				    "it is pinned",
		derived_kind_text(derived_kind(store->derived)),
		(unsigned long long)(derived.used_bytes >> 20),
		(unsigned long long)(derived.limit_bytes >> 20), staged_files,
		(unsigned long long)(store->epoch - 1));
}

/* Whether the mount's own lease on a revision has anybody behind it. */
static bool is_held(struct weight_store *s, const struct weight_identity *id)
{
	char hex[DIGEST_HEX_LEN + 1];
	struct weight_group *g;
	bool held;

	if (weight_group_hex(id, hex) < 0)
		return false;
	store_lock(s);
	g = map_find(s->groups, hex, DIGEST_HEX_LEN);
	held = g && g->holders > 0;
	store_unlock(s);
	return held;
}

static bool lease_counts(struct weight_store *s, const struct weight_lease *l)
{
	if (strcmp(l->holder, s->holder) == 0)
		return is_held(s, &l->identity);
	return l->expires_at_ms > clock_realtime_ms();
}

static int lease_line(const struct weight_lease *l, struct buf *ret)
{
	const char *parts[] = { l->identity.lineage.tenant,
				l->identity.lineage.name_space,
				l->identity.lineage.resource,
				l->identity.lineage.revision };
	int r = buf_printf(ret, "%llu ", (unsigned long long)l->lease_id);

	for (size_t i = 0; i < ARRAY_LEN(parts) && r == 0; i++) {
		r = weight_path_encode(parts[i], ret);
		if (r == 0)
			r = buf_append(ret, "/", 1);
	}
	return r < 0 ? r :
		       buf_printf(ret, "%llu %s expires_at_ms=%llu\n",
				  (unsigned long long)l->identity.generation,
				  l->holder,
				  (unsigned long long)l->expires_at_ms);
}

int weight_tree_leases(struct weight_store *store, struct buf *ret)
{
	uint64_t after = 0;
	int r = 0;

	while (r == 0) {
		struct weight_lease *l = NULL;

		r = wms_lease_next(store->records, after, &l);
		if (r == -ENOENT)
			return 0;
		if (r < 0)
			return r;
		after = l->lease_id;
		if (lease_counts(store, l))
			r = lease_line(l, ret);
		weight_lease_free(l);
	}
	return r;
}

int weight_group_leases(struct weight_group *group, uint64_t *ret)
{
	struct weight_store *s = group->store;
	struct wms_lease_summary summary;
	bool own, held;
	int r = wms_lease_summary(s->records, group->identity,
				  clock_realtime_ms(), &summary);

	if (r < 0)
		return r;
	store_lock(s);
	own = group->lease_id != 0 &&
	      group->lease_expires_ms > clock_realtime_ms();
	/* The record may have run out a moment ago; the holders are real. */
	held = group->lease_id != 0 && group->holders > 0;
	store_unlock(s);
	if (own && summary.active > 0)
		summary.active--;
	*ret = summary.active + held;
	return 0;
}
