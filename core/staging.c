/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What publishing needs of staged files, made in the background: chunk digests
 * from the moment that nobody writes to a file any more, and the bytes on the
 * disk. Both are facts about one version of the bytes and void with the next.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/holders.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/tree_priv.h"

/* How often a waiter looks at the tree anew for what was added meanwhile. */
#define LOOK_AGAIN_MS 5000
#define PROGRESS_MS 1000
/* How soon one who follows notices that it was interrupted. */
#define FOLLOW_MS 50
/* Before a digest that couldn't begin is tried again. */
#define RETRY_MS 100
/* A look costs time by the file, so one at large trees is taken less often. */
#define FILES_PER_PAUSE_MS 256
#define MIB (1024.0 * 1024.0)

static bool is_digested(const struct weight_file *f)
{
	return f->chunks && f->chunks_version == f->version;
}

/* Whether publishing waits for the disk; else that comes after it. */
static bool must_sync(const struct weight_store *s)
{
	return s->config->durability == CONFIG_DURABILITY_WRITETHROUGH &&
	       !s->scratch;
}

static bool is_synced(const struct weight_file *f)
{
	return f->synced_version == f->version || !must_sync(f->store);
}

static void sync_start(struct weight_file *f);

/* ---- Digests ---- */

struct digest_ctx {
	struct weight_file *file; /* a reference */
	uint64_t version;
};

static void digest_done(void *arg, int r, struct chunk_list *list)
{
	struct digest_ctx *ctx = arg;
	struct weight_file *f = ctx->file;
	struct weight_store *s = f->store;
	struct chunk_list *drop = list;
	struct chunk_job *job;
	bool sealing, pin = false;

	store_lock(s);
	sealing = f->seal_wanted;
	job = take_ptr(f->job);
	if (f->version == ctx->version && r == 0) {
		drop = f->chunks;
		f->chunks = list;
		f->chunks_version = f->version;
		pin = tree_pin_expect_locked(f);
	} else if (f->version == ctx->version && r != -ECANCELED) {
		f->job_error = r;
	} else if (f->writers == 0 && f->kept) {
		keeper_queue_locked(f, TREE_PROBE_MS_MIN);
	}
	s->jobs--;
	(void)pthread_cond_broadcast(&f->group->changed);
	(void)pthread_cond_broadcast(&s->quiet);
	(void)pthread_cond_broadcast(&s->keeper_wakes);
	store_unlock(s);
	if (job)
		chunk_job_unref(job);
	chunk_list_free(drop);
	if (pin)
		tree_pin_staged(f);
	if (r == 0 && sealing)
		sync_start(f);
	weight_file_unref(f);
	free(ctx);
}

/* Counts the job and its references before it can end. Lock held. */
static bool job_begin_locked(struct weight_file *f, struct digest_ctx *ctx,
			     struct weight_file **ret_drop)
{
	enum weight_group_state state = f->group->state;

	if (f->type != S_IFREG || f->writers > 0 || f->job || is_digested(f) ||
	    (state != WEIGHT_GROUP_STAGED && state != WEIGHT_GROUP_PUBLISHING))
		return false;
	ctx->file = f;
	ctx->version = f->version;
	f->refs++;
	f->store->jobs++;
	*ret_drop = tree_file_keep_locked(f);
	return true;
}

static void job_failed(struct weight_file *f, int r)
{
	store_lock(f->store);
	f->store->jobs--;
	/* Neither says anything about the file: try again. */
	if (r == -EBUSY || r == -EMFILE || r == -ENFILE)
		keeper_queue_locked(f, RETRY_MS);
	else
		f->job_error = r;
	(void)pthread_cond_broadcast(&f->group->changed);
	(void)pthread_cond_broadcast(&f->store->quiet);
	store_unlock(f->store);
	weight_file_unref(f);
}

void staging_digest_start(struct weight_file *f)
{
	struct weight_store *s = f->store;
	struct digest_ctx *ctx = calloc(1, sizeof(*ctx));
	struct weight_file *drop = NULL;
	auto_fd int fd = -1;
	struct stat st;
	bool begun;
	int r;

	if (!ctx)
		return;
	store_lock(s);
	begun = job_begin_locked(f, ctx, &drop);
	store_unlock(s);
	weight_file_unref(drop);
	if (!begun) {
		free(ctx);
		return;
	}
	/*
	 * Whoever opens it from here on makes another version of it. So what
	 * counts is that nobody is left now, which is asked before reading.
	 */
	r = s->can_lease ? holders_writer(f->fd) : 0;
	if (r > 0)
		r = -EBUSY;
	else if (r != -EMFILE && r != -ENFILE)
		r = tree_file_reopen(f, O_RDONLY, &fd);
	if (r == 0 && fstat(fd, &st) < 0)
		r = -errno;
	if (r == 0) {
		/* Under the lock, so that the end can't come before f->job. */
		store_lock(s);
		r = chunk_job_start(s->hashers, fd, (uint64_t)st.st_size,
				    digest_done, ctx, &f->job);
		store_unlock(s);
	}
	if (r < 0) {
		free(ctx);
		job_failed(f, log_debug(r, "starting a digest"));
	}
}

/* ---- Write-back ---- */

struct sync_work {
	struct work work;
	struct weight_file *file; /* a reference; syncing is set */
	uint64_t version;
	struct tree_seal seal;
};

/*
 * A seal changes the times that a published file is known by, so publishing
 * waits for it, and one that comes later is not written any more: only where
 * the sync is waited for, too, it can come as late as that.
 */
static bool seal_begin(struct weight_file *f)
{
	enum weight_group_state state;
	bool may;

	store_lock(f->store);
	state = f->group->state;
	may = state == WEIGHT_GROUP_STAGED ||
	      (state == WEIGHT_GROUP_PUBLISHING && must_sync(f->store));
	f->sealing += may;
	store_unlock(f->store);
	return may;
}

static void seal_end(struct weight_file *f)
{
	store_lock(f->store);
	f->sealing--;
	(void)pthread_cond_broadcast(&f->group->changed);
	store_unlock(f->store);
}

/*
 * The seal first, so that the same fsync makes both durable. A file from
 * before an unclean boot keeps its old seal: what it holds now is no proof of
 * what was written.
 */
static int sync_and_seal(struct weight_file *f, const struct tree_seal *seal)
{
	auto_fd int fd = -1;
	struct tree_seal old;
	int r = tree_file_reopen(f, O_RDONLY, &fd);

	if (r < 0)
		return r;
	if (seal_begin(f)) {
		if (tree_seal_read(f, &old) == 0 && old.epoch == seal->epoch)
			r = tree_seal_write(fd, seal);
		seal_end(f);
		if (r < 0)
			return r;
	}
	metrics_add(METRIC_FSYNCS, 1);
	return fsync(fd) < 0 ? -errno : 0;
}

/* What the device gives has to be what was digested. */
static int read_back(struct weight_file *f, const struct tree_seal *seal)
{
	struct weight_store *s = f->store;
	cleanup(chunk_list_free_cleanup) struct chunk_list *list = NULL;
	auto_fd int fd = -1;
	int r;

	if (!s->abilities.direct)
		return 0;
	r = tree_file_reopen(f, O_RDONLY | O_DIRECT, &fd);
	if (r == 0)
		r = tree_digest_wait(s, fd, seal->size, NULL, NULL, &list);
	if (r < 0)
		return r;
	metrics_add(METRIC_BYTES_READ_BACK, (int64_t)seal->size);
	return digest_equal(&list->root, &seal->root) ?
		       0 :
		       log_debug(-EIO, "the device has other bytes");
}

static void sync_run(struct work *work)
{
	struct sync_work *w = container_of(work, struct sync_work, work);
	struct weight_file *f = w->file;
	struct weight_store *s = f->store;
	int r = sync_and_seal(f, &w->seal);

	if (r == 0 && must_sync(s))
		r = read_back(f, &w->seal);
	if (r < 0)
		metrics_add(METRIC_WRITE_BACK_FAILURES, 1);

	store_lock(s);
	f->syncing = false;
	/* An attribute may have changed since it began. */
	if (r == 0 && f->synced_version == 0)
		f->synced_version = w->version;
	else if (r < 0 && f->version == w->version && must_sync(s))
		f->job_error = r;
	(void)pthread_cond_broadcast(&f->group->changed);
	store_unlock(s);
	weight_file_unref(f);
	store_background_end(s);
	free(w);
}

/* What the seal of a digested file says. Lock held. */
static struct tree_seal seal_of_locked(const struct weight_file *f)
{
	return (struct tree_seal){
		.epoch = f->store->epoch,
		.sealed = true,
		.size = f->chunks->size,
		.root = f->chunks->root,
	};
}

static void sync_start(struct weight_file *f)
{
	struct weight_store *s = f->store;
	struct sync_work *w = calloc(1, sizeof(*w));
	bool due;

	if (!w)
		return;
	store_lock(s);
	due = is_digested(f) && (f->seal_wanted || !is_synced(f)) &&
	      !f->syncing && f->job_error == 0;
	if (due) {
		f->seal_wanted = false;
		w->work.run = sync_run;
		w->file = f;
		w->version = f->version;
		w->seal = seal_of_locked(f);
		f->syncing = true;
		f->synced_version = 0;
		f->refs++;
	}
	store_unlock(s);
	if (!due) {
		free(w);
		return;
	}
	store_background_begin(s);
	workers_submit(s->bulk, &w->work);
}

/* What is durable is on the disk, and nothing waits for one in vain. */
static int sync_published(struct weight_file *f, struct weight_group *g)
{
	struct weight_store *s = f->store;
	struct weight_metadata *m = NULL;
	auto_fd int fd = -1;
	bool durable;
	int r;

	if (!store_is_kept(s))
		return 0;
	r = wms_get(s->records, g->identity, &m);
	if (r < 0)
		return r;
	durable = m->durable;
	weight_metadata_free(m);
	if (durable)
		return 0;
	r = tree_file_reopen(f, O_RDONLY, &fd);
	if (r < 0)
		return r;
	metrics_add(METRIC_FSYNCS, 1);
	return errno_of(fsync(fd));
}

int weight_file_sync(struct weight_file *file, bool data_only)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		weight_file_group(file);
	struct tree_seal seal;
	uint64_t version;
	auto_fd int fd = -1;
	bool known;
	int r;

	if (weight_group_state(g) == WEIGHT_GROUP_PUBLISHED)
		return sync_published(file, g);
	store_lock(file->store);
	version = file->version;
	known = file->type == S_IFREG && file->writers == 0 &&
		is_digested(file) && !file->syncing;
	/* Without a digest there is no seal yet, and it follows. */
	file->seal_wanted = file->type == S_IFREG && !known;
	if (known) {
		seal = seal_of_locked(file);
		file->synced_version = 0;
	}
	store_unlock(file->store);

	if (known) {
		r = sync_and_seal(file, &seal);
		if (r < 0)
			return r;
		store_lock(file->store);
		/* Where publishing waits for the disk it is read back first. */
		if (file->synced_version == 0 && !must_sync(file->store))
			file->synced_version = version;
		store_unlock(file->store);
		return 0;
	}
	r = tree_file_reopen(file, O_RDONLY, &fd);
	if (r < 0)
		return r;
	metrics_add(METRIC_FSYNCS, 1);
	return (data_only ? fdatasync(fd) : fsync(fd)) < 0 ? -errno : 0;
}

int staging_sync_dirs(struct weight_group *g, const struct staging_look *look)
{
	bool synced;
	int r;

	store_lock(g->store);
	synced = g->tree_synced == g->tree_version + 1;
	store_unlock(g->store);
	if (synced || !must_sync(g->store))
		return 0;
	r = payload_sync_dirs(g->files_fd, look->payload);
	if (r < 0)
		return r;
	/* What changed since the look, or during it, isn't in its list. */
	if (look->tree_version) {
		store_lock(g->store);
		g->tree_synced = look->tree_version;
		store_unlock(g->store);
	}
	return 0;
}

/* ---- Looking at a whole tree ---- */

void staging_look_release(struct staging_look *look)
{
	for (size_t i = 0; i < look->count; i++)
		weight_file_unref(look->files[i]);
	free(look->files);
	payload_free(look->payload);
	*look = (struct staging_look){ 0 };
}

static const char *look_failure(int r)
{
	switch (r) {
	case -EBUSY:
		return "it changed meanwhile";
	case -EMFILE:
	case -ENFILE:
		return "there are more files than the daemon may have open; "
		       "raise its limit of open files (LimitNOFILE, ulimit -n)";
	default:
		return strerrordesc_np(-r);
	}
}

static int look_files(struct weight_group *g, struct staging_look *look,
		      struct buf *why)
{
	const struct payload *p = look->payload;

	look->files = calloc(p->object_count ? p->object_count : 1,
			     sizeof(struct weight_file *));
	if (!look->files)
		return -ENOMEM;
	for (size_t i = 0; i < p->object_count; i++) {
		const struct payload_entry *e = &p->entries[p->objects[i]];
		int r = tree_file_at(g, e->path, &look->files[i]);

		if (r == -ENOENT)
			r = -EBUSY;
		if (r < 0) {
			(void)buf_printf(why, "looking at '%s': %s", e->path,
					 look_failure(r));
			return r;
		}
		look->count = i + 1;
	}
	return 0;
}

int staging_look(struct weight_group *g, struct staging_look *ret,
		 struct buf *why)
{
	struct staging_look look = { 0 };
	int r;

	store_lock(g->store);
	if (g->mutations == 0)
		look.tree_version = g->tree_version + 1;
	store_unlock(g->store);
	r = payload_scan(g->files_fd, &look.payload, why);
	if (r == 0)
		r = look_files(g, &look, why);
	if (r < 0)
		staging_look_release(&look);
	else
		*ret = look;
	return r;
}

static void need_of_locked(struct weight_file *f, uint64_t size,
			   struct staging_need *need)
{
	assert(f); /* the look has one for each object */
	need->files++;
	need->bytes += size;
	if (f->writers > 0)
		need->written++;
	if (is_digested(f)) {
		need->digested_bytes += size;
	} else {
		need->undigested++;
		if (f->job)
			need->digested_bytes += chunk_job_bytes_done(f->job);
	}
	if (!is_synced(f) || f->sealing > 0)
		need->unsynced++;
	if (f->pin_pending)
		need->pinning++;
	if (f->job_error < 0 && !need->failed) {
		need->failed = f;
		need->error = f->job_error;
	}
}

void staging_need(struct weight_group *g, const struct staging_look *look,
		  struct staging_need *ret)
{
	const struct payload *p = look->payload;
	struct staging_need need = { 0 };

	store_lock(g->store);
	for (size_t i = 0; i < look->count; i++)
		need_of_locked(look->files[i], p->entries[p->objects[i]].size,
			       &need);
	store_unlock(g->store);
	*ret = need;
}

bool staging_need_nothing(const struct staging_need *need)
{
	return need->undigested == 0 && need->unsynced == 0 &&
	       need->written == 0;
}

bool staging_need_only_pins(const struct staging_need *need)
{
	return staging_need_nothing(need) && need->pinning > 0;
}

void staging_kick(struct weight_group *g, const struct staging_look *look)
{
	for (size_t i = 0; i < look->count; i++) {
		struct weight_file *f = look->files[i];
		bool digested;

		store_lock(g->store);
		digested = is_digested(f);
		if (!digested && !f->job && f->writers == 0 &&
		    list_empty(&f->in_queue))
			keeper_queue_locked(f, 0);
		store_unlock(g->store);
		if (digested)
			sync_start(f);
	}
}

int staging_progress_line(const struct staging_need *need, struct buf *ret)
{
	int r = buf_printf(ret, "digests: %.1f of %.1f MiB, %zu of %zu files",
			   (double)need->digested_bytes / MIB,
			   (double)need->bytes / MIB,
			   need->files - need->undigested, need->files);

	if (r == 0 && need->unsynced)
		r = buf_printf(ret, "; written back: %zu of %zu files",
			       need->files - need->unsynced, need->files);
	if (r == 0 && need->pinning)
		r = buf_printf(ret, "; into memory: %zu files left",
			       need->pinning);

	if (r == 0 && need->written)
		r = buf_printf(ret, "; waiting for %zu open for writing",
			       need->written);
	return r;
}

static const char awaits_base[] =
	"the generation that it replaces is being removed first";

static bool is_awaiting(struct weight_group *g)
{
	bool awaits;

	store_lock(g->store);
	awaits = g->awaits_base && g->state == WEIGHT_GROUP_STAGED;
	store_unlock(g->store);
	return awaits;
}

int weight_group_progress(struct weight_group *group, struct buf *ret)
{
	struct staging_look look = { 0 };
	struct staging_need need;
	struct buf why = BUF_INIT;
	int r;

	if (weight_group_state(group) == WEIGHT_GROUP_PUBLISHED)
		return upkeep_line(group, ret);
	if (is_awaiting(group))
		return buf_printf(ret, "%s", awaits_base);
	r = staging_look(group, &look, &why);
	if (r == 0) {
		staging_need(group, &look, &need);
		r = staging_progress_line(&need, ret);
		staging_look_release(&look);
	} else if (r != -ENOMEM) {
		r = buf_printf(ret, "%s", why.data);
	}
	buf_release(&why);
	return r;
}

/* ---- Waiting ---- */

static void tell(const struct weight_waiter *waiter,
		 const struct staging_need *need)
{
	struct buf line = BUF_INIT;

	if (waiter && waiter->progress &&
	    staging_progress_line(need, &line) == 0 &&
	    buf_append(&line, "\n", 1) == 0)
		waiter->progress(waiter->arg, line.data);
	buf_release(&line);
}

static int say_failed(const struct staging_need *need, struct buf *why)
{
	struct buf path = BUF_INIT;
	int r = need->error;

	(void)tree_file_path(need->failed, &path);
	(void)buf_printf(why, "'%s' can't be read or written back: %s",
			 path.data, strerrordesc_np(-r));
	buf_release(&path);
	/* Said once; the next attempt tries again. */
	store_lock(need->failed->store);
	need->failed->job_error = 0;
	store_unlock(need->failed->store);
	return r;
}

/*
 * Watches one look until nothing is needed (0), it got old (1), or an error.
 */
static int wait_for_look(struct weight_group *g, struct staging_look *look,
			 const struct weight_waiter *waiter,
			 uint64_t *next_line_ms, struct buf *why)
{
	uint64_t end = clock_monotonic_ms() + LOOK_AGAIN_MS;
	struct staging_need need;

	for (;;) {
		uint64_t now = clock_monotonic_ms();

		staging_need(g, look, &need);
		if (need.failed)
			return say_failed(&need, why);
		if (staging_need_nothing(&need) && need.pinning == 0)
			return 0;
		store_lock(g->store);
		g->wait_need = need;
		store_unlock(g->store);
		if (waiter_interrupted(waiter))
			return -EINTR;
		if (now >= *next_line_ms) {
			tell(waiter, &need);
			*next_line_ms = now + PROGRESS_MS;
		}
		if (now >= end)
			return 1;
		staging_kick(g, look);
		store_lock(g->store);
		store_wait_locked(g->store, &g->changed, 50);
		store_unlock(g->store);
		store_pause(g->store, look->count / FILES_PER_PAUSE_MS);
	}
}

static int wait_check_state(struct weight_group *g)
{
	switch (weight_group_state(g)) {
	case WEIGHT_GROUP_STAGED:
	case WEIGHT_GROUP_PUBLISHING:
		return 1;
	case WEIGHT_GROUP_PUBLISHED:
		return 0;
	case WEIGHT_GROUP_REMOVED:
	case WEIGHT_GROUP_ABORTED:
		break;
	}
	return -ENOENT;
}

/* One look at the tree, for as long as it is worth something. */
static int wait_lead(struct weight_group *g, const struct weight_waiter *waiter,
		     uint64_t *next_line_ms, struct buf *why)
{
	struct staging_look look = { 0 };
	int r = staging_look(g, &look, why);

	if (r == -EBUSY) { /* the tree moves under the walk */
		buf_release(why);
		store_pause(g->store, FOLLOW_MS);
		return waiter_interrupted(waiter) ? -EINTR : 1;
	}
	if (r == 0)
		r = wait_for_look(g, &look, waiter, next_line_ms, why);
	if (r == 0)
		r = staging_sync_dirs(g, &look);
	/* They don't change any more, so the rename needn't do it. */
	if (r == 0 && store_is_kept(g->store))
		r = tree_group_sync_places(g);
	staging_look_release(&look);
	return r;
}

/*
 * Hundreds may wait, and a look costs time and memory by the file: so one of
 * them looks. Its answer is good for those who came before its look began.
 * Returns 1 when the caller has to look, in round *ret, 0 when all is ready,
 * and -EINPROGRESS to be called again.
 */
static int wait_follow(struct weight_group *g,
		       const struct weight_waiter *waiter, uint64_t came,
		       uint64_t *next_line_ms, uint64_t *ret)
{
	struct weight_store *s = g->store;
	struct staging_need need;
	int r = -EINPROGRESS;

	store_lock(s);
	if (g->wait_ready > came) {
		r = 0;
	} else if (!g->wait_led) {
		g->wait_led = true;
		*ret = ++g->wait_rounds;
		r = 1;
	} else {
		store_wait_locked(s, &g->wait_over, FOLLOW_MS);
		need = g->wait_need;
	}
	store_unlock(s);
	if (r >= 0)
		return r;
	if (waiter_interrupted(waiter))
		return -EINTR;
	if (clock_monotonic_ms() >= *next_line_ms) {
		tell(waiter, &need);
		*next_line_ms = clock_monotonic_ms() + PROGRESS_MS;
	}
	return r;
}

static void wait_end(struct weight_group *g, uint64_t round, bool ready)
{
	store_lock(g->store);
	g->wait_led = false;
	if (ready)
		g->wait_ready = round;
	(void)pthread_cond_broadcast(&g->wait_over);
	store_unlock(g->store);
}

/* Until what is replaced has gone. Errors: -EINTR, -ENOENT. */
static int wait_for_base(struct weight_group *g,
			 const struct weight_waiter *waiter,
			 uint64_t *next_line_ms)
{
	while (is_awaiting(g)) {
		uint64_t now = clock_monotonic_ms();

		if (waiter_interrupted(waiter))
			return -EINTR;
		if (now >= *next_line_ms && waiter && waiter->progress) {
			char line[sizeof(awaits_base) + 1];

			(void)snprintf(line, sizeof(line), "%s\n", awaits_base);
			waiter->progress(waiter->arg, line);
			*next_line_ms = now + PROGRESS_MS;
		}
		store_lock(g->store);
		store_wait_locked(g->store, &g->changed, FOLLOW_MS);
		store_unlock(g->store);
	}
	return 0;
}

int weight_group_wait(struct weight_group *group,
		      const struct weight_waiter *waiter, struct buf *why)
{
	uint64_t next_line_ms = clock_monotonic_ms() + PROGRESS_MS;
	uint64_t came, round = 0;
	int r;

	if (weight_group_state(group) == WEIGHT_GROUP_PUBLISHED)
		return tree_wait_published(group, waiter, why);
	store_lock(group->store);
	came = group->wait_rounds;
	store_unlock(group->store);
	for (;;) {
		r = wait_check_state(group);
		if (r <= 0)
			return r;
		r = wait_for_base(group, waiter, &next_line_ms);
		if (r < 0)
			return r;
		r = wait_follow(group, waiter, came, &next_line_ms, &round);
		if (r == -EINPROGRESS)
			continue;
		if (r <= 0)
			return r;
		r = wait_lead(group, waiter, &next_line_ms, why);
		wait_end(group, round, r == 0);
		if (r <= 0)
			return r;
	}
}
