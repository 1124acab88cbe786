/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The publish attempt: from STAGED to READY, or back to STAGED with a reason.
 *
 * While an attempt runs, new mutations are parked and new writers wait, so what
 * was checked is what is committed. It ends within publish_wait whatever
 * happens, since the kernel keeps directory locks for as long as the rename
 * is unanswered. The single step that counts is one database transaction.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/checkpoint.h"
#include "core/clock.h"
#include "core/file_io.h"
#include "core/holders.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/publish_import.h"
#include "core/step.h"
#include "core/tree_priv.h"

#define POLL_MS 20
#define NAMES_SHOWN_MAX 5

/* Beyond the deadline, for a step that is nearly done. */
#define GRACE_MS 100

/*
 * An attempt has a thread of its own, since some of its steps can neither be
 * bounded nor interrupted. Who asked for it waits as long as he may and then
 * gives it up; an attempt that was given up changes nothing.
 */
struct attempt {
	unsigned refs;          /* [lock] its thread, and the one who waits */
	struct weight_group *g; /* a reference */
	const struct import_plan *plan; /* NULL: it was staged on the mount */
	uint64_t drained_ms;            /* writers have to be gone by then */
	uint64_t deadline_ms;
	struct staging_look look;
	mode_t root_mode; /* as it was staged */
	struct weight_policy policy;
	bool decided; /* the records were asked to change */
	bool held;    /* refused for a writer, who is to be named */
	struct buf sentence;
	struct buf *why; /* of sentence */

	bool given_up;   /* [lock] */
	bool committing; /* [lock] can't be given up any more */
	bool done;       /* [lock] result is set */
	int result;      /* [lock] */
};

static bool is_given_up(struct attempt *a)
{
	bool given_up;

	store_lock(a->g->store);
	given_up = a->given_up;
	store_unlock(a->g->store);
	return given_up;
}

/* ---- Before the first step ---- */

/* What stands at the target already, by the record. 0: nothing. */
static int check_target(struct weight_store *s,
			const struct weight_identity *target, bool noreplace,
			struct buf *why)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	unsigned long long n = target->generation;
	int r = wms_get(s->records, target, &m);

	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return r;
	if (m->availability == WEIGHT_DELETING ||
	    m->availability == WEIGHT_DELETED) {
		(void)buf_printf(why,
				 "generation %llu was published and removed "
				 "before; take a new number",
				 n);
		return -ECANCELED;
	}
	(void)buf_printf(why, "generation %llu is published already", n);
	return noreplace ? -EEXIST : -ENOTEMPTY;
}

/* A staged generation has one place to go; others may be taken on top. */
static int check_place(struct weight_group *g, struct weight_dir *new_dir,
		       const char *new_name, bool noreplace, struct buf *why)
{
	struct weight_identity target = *g->identity;
	char number[WEIGHT_GENERATION_LEN_MAX + 1];
	int r = 0;

	if (new_dir == g->lineage &&
	    weight_generation_parse(new_name, strlen(new_name),
				    &target.generation) == 0)
		r = check_target(g->store, &target, noreplace, why);
	else
		target.generation = 0;
	if (r < 0 || target.generation == g->identity->generation)
		return r;
	weight_generation_print(g->identity->generation, number);
	(void)buf_printf(why,
			 "generation %s is published as '%s' in its own "
			 "lineage, beside .staging, and nowhere else",
			 number, number);
	return -EPERM;
}

static int begin(struct weight_group *g, struct buf *why)
{
	int r = 0;

	store_lock(g->store);
	switch (g->state) {
	case WEIGHT_GROUP_STAGED:
		g->state = WEIGHT_GROUP_PUBLISHING;
		break;
	case WEIGHT_GROUP_PUBLISHING:
		(void)buf_printf(why, g->given_up ? "the last attempt is still "
						    "winding up; try again" :
						    "another publish of it is "
						    "running");
		r = g->given_up ? -EAGAIN : -EBUSY;
		break;
	default:
		r = -ENOENT;
	}
	store_unlock(g->store);
	return r;
}

static void end(struct weight_group *g, bool published)
{
	store_lock(g->store);
	assert(g->state == WEIGHT_GROUP_PUBLISHING);
	g->state = published ? WEIGHT_GROUP_PUBLISHED : WEIGHT_GROUP_STAGED;
	if (published)
		g->hidden = false;
	g->given_up = false;
	tree_unpark_locked(g);
	(void)pthread_cond_broadcast(&g->changed);
	store_unlock(g->store);
}

/* ---- Nobody writes ---- */

/* Who it is may be hidden from us, so the file is named in any case. */
static void say_written(struct attempt *a, unsigned writers)
{
	struct weight_group *g = a->g;
	struct weight_file *file = NULL;
	struct buf path = BUF_INIT;

	store_lock(g->store);
	for (struct list *at = g->files.next; at != &g->files && !file;
	     at = at->next) {
		file = container_of(at, struct weight_file, in_group);
		if (file->writers > 0)
			file->refs++;
		else
			file = NULL;
	}
	store_unlock(g->store);
	if (file && tree_file_path(file, &path) == 0)
		(void)buf_printf(a->why, "'%s' is open for writing", path.data);
	else
		(void)buf_printf(a->why, "a file is open for writing");
	if (writers > 1)
		(void)buf_printf(a->why, " (%u descriptors in all)", writers);
	buf_release(&path);
	weight_file_unref(file);
}

static int drain(struct attempt *a)
{
	struct weight_group *g = a->g;
	unsigned writers, mutations;

	for (;;) {
		uint64_t now = clock_monotonic_ms();

		store_lock(g->store);
		writers = g->writers;
		mutations = g->mutations;
		if ((writers && now < a->drained_ms) ||
		    (mutations && now < a->deadline_ms))
			store_wait_locked(g->store, &g->changed, POLL_MS);
		else
			now = UINT64_MAX;
		store_unlock(g->store);
		if (now == UINT64_MAX)
			break;
		if (is_given_up(a))
			return -EINTR;
	}
	if (mutations) {
		(void)buf_printf(a->why, "a change of the tree is still "
					 "going on; try again");
		return -EAGAIN;
	}
	if (!writers)
		return 0;
	say_written(a, writers);
	a->held = true;
	return -EBUSY;
}

static int probe_file(struct attempt *a, size_t i)
{
	const struct payload *p = a->look.payload;
	int fd = a->look.files[i]->fd;
	int r = holders_writer(fd);

	/* Right after a close the answer is often still "busy". */
	if (r > 0)
		r = holders_writer_settle(fd, a->drained_ms);
	if (r > 0) {
		(void)buf_printf(a->why, "'%s' is open or mapped for writing",
				 p->entries[p->objects[i]].path);
		a->held = true;
		return -EBUSY;
	}
	return r == -EOPNOTSUPP ? 0 : r;
}

static int probe_all(struct attempt *a)
{
	for (size_t i = 0; i < a->look.count; i++) {
		int r = probe_file(a, i);

		if (r < 0)
			return r;
		if (is_given_up(a))
			return -EINTR;
	}
	return 0;
}

/* ---- Everything is known and on the disk ---- */

/*
 * What is on its way into memory may arrive, but no rename waits long for it.
 * It always ends.
 */
static bool is_late(const struct attempt *a)
{
	return !a->plan && clock_monotonic_ms() >= a->drained_ms;
}

static int prepare(struct attempt *a)
{
	struct staging_need need;

	for (;;) {
		staging_need(a->g, &a->look, &need);
		if (need.failed)
			break;
		if (staging_need_nothing(&need) &&
		    (!staging_need_only_pins(&need) || is_late(a)))
			return staging_sync_dirs(a->g, &a->look);
		if (is_given_up(a))
			return -EINTR;
		if (clock_monotonic_ms() >= a->deadline_ms) {
			(void)buf_printf(a->why, "not ready yet (");
			(void)staging_progress_line(&need, a->why);
			(void)buf_printf(a->why, "): read .weights/wait in "
						 "it, then rename again");
			return -EAGAIN;
		}
		staging_kick(a->g, &a->look);
		store_lock(a->g->store);
		store_wait_locked(a->g->store, &a->g->changed, POLL_MS);
		store_unlock(a->g->store);
	}
	(void)buf_printf(a->why, "reading or writing back failed: %s",
			 strerrordesc_np(-need.error));
	store_lock(a->g->store);
	need.failed->job_error = 0;
	store_unlock(a->g->store);
	return need.error;
}

/* Whether what f holds may be what a power cut left of it. */
static bool is_suspect(const struct weight_file *f, uint64_t staged_epoch)
{
	struct tree_seal seal = { .epoch = staged_epoch };

	(void)tree_seal_read(f, &seal);
	if (seal.epoch >= f->store->epoch)
		return false;
	return !seal.sealed || seal.size != f->chunks->size ||
	       !digest_equal(&seal.root, &f->chunks->root);
}

static int check_boot(struct attempt *a)
{
	const struct payload *p = a->look.payload;
	struct weight_staging *staged = NULL;
	struct buf names = BUF_INIT;
	size_t suspects = 0;
	int r = wms_staged_get(a->g->store->records, a->g->identity, &staged);

	for (size_t i = 0; r == 0 && i < a->look.count; i++) {
		if (!is_suspect(a->look.files[i], staged->epoch))
			continue;
		if (suspects++ < NAMES_SHOWN_MAX)
			r = buf_printf(&names, "%s'%s'",
				       suspects > 1 ? ", " : "",
				       p->entries[p->objects[i]].path);
	}
	if (r == 0 && suspects) {
		(void)buf_printf(a->why,
				 "the machine went down after %s%s had been "
				 "written and before it was safe on the disk; "
				 "write %s again",
				 names.data,
				 suspects > NAMES_SHOWN_MAX ? " and others" :
							      "",
				 suspects > 1 ? "them" : "it");
		r = -ECANCELED;
	}
	buf_release(&names);
	weight_staging_free(staged);
	return r;
}

/* ---- What it is ---- */

static int read_checkpoint(struct attempt *a, struct checkpoint **ret)
{
	const struct payload *p = a->look.payload;
	auto_free struct checkpoint_file *files = NULL;
	size_t n = 0;

	files = calloc(p->count + 1, sizeof(*files));
	if (!files)
		return -ENOMEM;
	for (size_t i = 0; i < p->count; i++) {
		if (p->entries[i].kind != PAYLOAD_FILE)
			continue;
		files[n].path = p->entries[i].path;
		files[n++].size = p->entries[i].size;
	}
	return checkpoint_read(a->g->files_fd, files, n, ret, a->why);
}

/* That of the staged tree, else that of the store. */
static int choose_policy(struct attempt *a)
{
	struct weight_store *s = a->g->store;
	struct weight_staging *staged;
	int r = wms_staged_get(s->records, a->g->identity, &staged);

	if (r < 0)
		return r;
	a->policy = staged->has_policy ? staged->policy : s->config->policy;
	weight_staging_free(staged);
	return 0;
}

/* The files say it, or who wrote them. */
static int describe(struct attempt *a, struct publish_result *ret)
{
	cleanup(checkpoint_free_cleanup) struct checkpoint *ckpt = NULL;
	int r;

	if (a->plan) {
		a->policy = a->plan->policy;
		return import_plan_manifest(a->plan, a->g, &a->look, ret,
					    a->why);
	}
	r = check_boot(a);
	if (r == 0)
		r = choose_policy(a);
	if (r == 0)
		r = read_checkpoint(a, &ckpt);
	return r < 0 ? r : publish_manifest(a->g, &a->look, ckpt, ret, a->why);
}

/* ---- Commit ---- */

static int write_manifest(struct weight_group *g, const struct buf *text)
{
	bool durable = store_is_kept(g->store);
	auto_fd int dir =
		openat(g->dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_fd int fd = -1;
	int r;

	if (dir < 0)
		return -errno;
	fd = openat(dir, TREE_MANIFEST_NAME ".tmp",
		    O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0400);
	if (fd < 0)
		return -errno;
	r = file_io_write(fd, text->data, text->len);
	if (r == 0 && durable && fsync(fd) < 0)
		r = -errno;
	if (r == 0 && renameat(dir, TREE_MANIFEST_NAME ".tmp", dir,
			       TREE_MANIFEST_NAME) < 0)
		r = -errno;
	if (r == 0 && durable && fsync(dir) < 0)
		r = -errno;
	if (durable)
		metrics_add(METRIC_FSYNCS, 2);
	step("publish: manifest");
	return r;
}

static int sync_entry(int dir, const char *path)
{
	auto_fd int fd = openat(dir, path,
				O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	metrics_add(METRIC_FSYNCS, 1);
	return errno_of(fsync(fd));
}

/* Changes modes as publish_mode= says, or back again; the root's, too. */
static void set_modes(struct attempt *a, bool undo)
{
	const struct mode_change *change = &a->g->store->config->publish_mode;
	const struct payload *p = a->look.payload;
	int root = a->g->files_fd;
	struct stat st;

	if (!undo && fstatat(root, "", &st, AT_EMPTY_PATH) == 0)
		a->root_mode = st.st_mode & 07777;
	(void)fchmodat(root, ".",
		       undo ? a->root_mode :
			      mode_change_apply(change, a->root_mode, true),
		       0);
	for (size_t i = 0; i < p->count; i++) {
		const struct payload_entry *e = &p->entries[i];
		bool is_dir = e->kind == PAYLOAD_DIR;
		uint32_t mode;

		if (e->kind == PAYLOAD_SYMLINK)
			continue;
		mode = mode_change_apply(change, e->mode, is_dir);
		if (mode != e->mode)
			(void)fchmodat(root, e->path, undo ? e->mode : mode, 0);
	}
}

/* Where publishing waits for the disk, for what it changed, too. */
static int sync_modes(struct attempt *a)
{
	const struct payload *p = a->look.payload;
	int root = a->g->files_fd;
	int r = sync_entry(root, ".");

	for (size_t i = 0; i < p->count && r == 0; i++)
		if (p->entries[i].kind != PAYLOAD_SYMLINK)
			r = sync_entry(root, p->entries[i].path);
	return r;
}

/* From here on the attempt can't be given up. */
static bool begin_commit(struct attempt *a)
{
	struct weight_store *s = a->g->store;
	bool may;

	store_lock(s);
	may = !a->given_up;
	a->committing = may;
	store_unlock(s);
	return may;
}

/* Whether there is a way to where the policy wants it: none to MIXED yet. */
static bool may_converge(const struct weight_store *s,
			 enum weight_residency preferred)
{
	if (preferred == WEIGHT_HOT)
		return s->can_pin;
	return preferred == WEIGHT_COLD && !s->abilities.memory_only;
}

/* The residency that is true, and whether it has to become another. */
static void settle_pins(struct attempt *a, struct weight_publication *p)
{
	struct weight_group *g = a->g;
	struct weight_store *s = g->store;
	struct weight_residence truth = { .residency = WEIGHT_COLD };
	bool hot = s->can_pin;

	store_lock(s);
	g->logical_bytes = p->manifest.logical_bytes;
	store_unlock(s);
	for (size_t i = 0; i < a->look.count; i++)
		hot &= tree_pin_settle(a->look.files[i]);
	if (p->manifest.logical_bytes > 0)
		(void)weight_group_residence(g, &truth);
	else if (hot && p->policy.preferred == WEIGHT_HOT)
		truth = (struct weight_residence){ .residency = WEIGHT_HOT,
						   .hot_ratio = 1.0 };
	p->residency = truth.residency;
	p->observed_hot_ratio = truth.hot_ratio;
	p->converges = may_converge(s, p->policy.preferred);
	p->durable = store_is_kept(s) &&
		     s->config->durability == CONFIG_DURABILITY_WRITETHROUGH;
}

static int decide_import(struct attempt *a, const struct weight_publication *p)
{
	const struct weight_commit_request request = {
		.identity = p->identity,
		.expected_metadata_generation = a->plan->metadata_generation,
		.manifest = p->manifest,
		.residency = p->residency,
		.observed_hot_ratio = p->observed_hot_ratio,
		.durable = p->durable,
		.stays = !p->converges,
	};

	return wms_import_commit(a->g->store->records, &request,
				 clock_realtime_ms(), NULL, a->why);
}

/* The step that counts. */
static int decide(struct attempt *a, const struct weight_publication *p)
{
	struct weight_store *s = a->g->store;
	int r;

	a->decided = true;
	(void)pthread_mutex_lock(&s->namespace_lock);
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = a->plan ? decide_import(a, p) :
		      wms_publish(s->records, p, clock_realtime_ms(), NULL,
				  a->why);
	(void)pthread_mutex_unlock(&s->namespace_lock);
	step("publish: decided");
	return wms_say_no_room(s->records, r, a->why);
}

static int commit(struct attempt *a, const struct publish_result *result)
{
	struct weight_group *g = a->g;
	struct weight_store *s = g->store;
	struct weight_publication publication = {
		.identity = *g->identity,
		.manifest = result->ref,
		.policy = a->policy,
		.affinity_count = result->affinity_count,
		.affinity_digest = result->affinity_digest,
	};
	int r = write_manifest(g, &result->text);

	if (r == 0 && store_is_kept(s))
		r = tree_group_sync_places(g);
	if (r < 0) {
		(void)buf_printf(a->why, "its manifest can't be written: %s",
				 strerrordesc_np(-r));
		return r;
	}
	settle_pins(a, &publication);
	if (!begin_commit(a)) {
		tree_pin_unsettle(g);
		return -EINTR;
	}
	if (s->config->publish_mode.count > 0)
		set_modes(a, false);
	/* What isn't on the disk now is brought there afterwards. */
	if (publication.durable && s->config->publish_mode.count > 0)
		publication.durable = sync_modes(a) == 0;
	/* Without them all is verified once more, and that is all. */
	(void)tree_stamps_make(g, &a->look);
	r = decide(a, &publication);
	if (r < 0 && s->config->publish_mode.count > 0)
		set_modes(a, true);
	if (r < 0)
		tree_pin_unsettle(g);
	return r;
}

static int attempt(struct attempt *a)
{
	struct publish_result result = { .text = BUF_INIT };
	int r;

	if ((r = drain(a)) == 0 &&
	    (r = staging_look(a->g, &a->look, a->why)) == 0 &&
	    (r = probe_all(a)) == 0 && (r = prepare(a)) == 0 &&
	    (r = describe(a, &result)) == 0)
		r = commit(a, &result);
	/*
	 * A commit whose failure was one of the disk may be found done by the
	 * next start, so its manifest stays. One of a staged tree harms nobody.
	 */
	if (r < 0 && !a->decided) {
		(void)unlinkat(a->g->dirfd, TREE_MANIFEST_NAME ".tmp", 0);
		(void)unlinkat(a->g->dirfd, TREE_MANIFEST_NAME, 0);
	}
	publish_result_release(&result);
	return r;
}

/* ---- After it ---- */

/*
 * Digests are in the manifest now; read handles from before take the lease. A
 * mapping that is left takes it when the keeper has seen it: most files were
 * just closed, and nobody has them.
 */
static void settle(struct attempt *a)
{
	struct weight_group *g = a->g;
	unsigned readers = 0;

	for (size_t i = 0; i < a->look.count; i++) {
		struct weight_file *f = a->look.files[i];
		struct chunk_list *chunks;
		bool drop;

		store_lock(g->store);
		chunks = take_ptr(f->chunks);
		drop = tree_file_unkeep_locked(f);
		readers += f->readers;
		store_unlock(g->store);
		chunk_list_free(chunks);
		if (drop)
			weight_file_unref(f);
	}
	if (readers)
		(void)keeper_lease_take(g);
}

/* A file that only its owner can read is published as it is, with a word. */
static void warn_private(struct attempt *a)
{
	const struct mode_change *change = &a->g->store->config->publish_mode;
	const struct payload *p = a->look.payload;
	const char *example = NULL;
	size_t n = 0;

	for (size_t i = 0; i < p->count; i++) {
		const struct payload_entry *e = &p->entries[i];

		if (e->kind == PAYLOAD_FILE &&
		    !(mode_change_apply(change, e->mode, false) & 0044) &&
		    n++ == 0)
			example = e->path;
	}
	if (n)
		log_info("generation %llu: %zu files can be read by their "
			 "owner only, such as '%s' (option publish_mode)",
			 (unsigned long long)a->g->identity->generation, n,
			 example);
}

/* All of it, in the thread that calls. */
static int attempt_run(struct attempt *a)
{
	struct weight_group *g = a->g;
	int r = attempt(a);

	end(g, r == 0);
	/* Looking may wait for processes that wait for the attempt's end. */
	if (a->held)
		tree_group_who(g, true, a->why);
	if (r < 0) {
		metrics_add(METRIC_PUBLISH_FAILURES, 1);
		return r;
	}
	warn_private(a);
	settle(a);
	(void)upkeep_want(g);
	reconciler_poke(g->store);
	metrics_add(METRIC_PUBLISHES, 1);
	weight_group_set_error(g, "");
	return 0;
}

/* A rename must not answer what makes mv retry, mislead or copy. */
static int rename_errno(int r)
{
	switch (r) {
	case -EINVAL:
		return -EPERM;
	case -EEXIST: /* somebody was faster */
		return -ENOTEMPTY;
	case -EUCLEAN:
	case -EOPNOTSUPP:
	case -ENOSYS:
	case -ESTALE:
	case -EXDEV:
		return -EIO;
	default:
		return r;
	}
}

/* ---- The attempt and the one who waits for it ---- */

static void attempt_unref(struct attempt *a)
{
	struct weight_store *s = a->g->store;
	bool last;

	store_lock(s);
	last = --a->refs == 0;
	store_unlock(s);
	if (!last)
		return;
	staging_look_release(&a->look);
	weight_group_unref(a->g);
	buf_release(&a->sentence);
	free(a);
}

static void *attempt_main(void *arg)
{
	struct attempt *a = arg;
	struct weight_group *g = a->g;
	struct weight_store *s = g->store;
	int r;

	(void)prctl(PR_SET_NAME, "publish");
	r = attempt_run(a);
	store_lock(s);
	a->result = r;
	a->done = true;
	(void)pthread_cond_broadcast(&g->changed);
	store_unlock(s);
	attempt_unref(a);
	store_background_end(s);
	return NULL;
}

static int attempt_start(struct weight_group *g, struct attempt **ret)
{
	uint64_t wait_ms = g->store->config->publish_wait_ms;
	uint64_t now = clock_monotonic_ms();
	struct attempt *a = calloc(1, sizeof(*a));
	pthread_t thread;
	int r;

	if (!a)
		return -ENOMEM;
	a->refs = 2;
	a->g = weight_group_ref(g);
	a->deadline_ms = now + wait_ms;
	a->drained_ms =
		now + (wait_ms < TREE_DRAIN_MS ? wait_ms : TREE_DRAIN_MS);
	a->sentence = (struct buf)BUF_INIT;
	a->why = &a->sentence;
	store_background_begin(g->store);
	r = -pthread_create(&thread, NULL, attempt_main, a);
	if (r < 0) {
		store_background_end(g->store);
		a->refs = 1;
		attempt_unref(a);
		return r;
	}
	(void)pthread_detach(thread);
	*ret = a;
	return 0;
}

/* Too late once it commits: that takes one more write and no longer. */
static bool give_up_locked(struct attempt *a)
{
	if (a->done || a->committing)
		return false;
	a->given_up = true;
	a->g->given_up = true;
	return true;
}

/* The result, or -EINTR or -EAGAIN when the waiting was over before it. */
static int attempt_wait(struct attempt *a, const struct weight_waiter *waiter,
			struct buf *why)
{
	struct weight_store *s = a->g->store;
	int r = 1;

	while (r > 0) {
		bool interrupted = waiter_interrupted(waiter);
		bool late = clock_monotonic_ms() > a->deadline_ms + GRACE_MS;

		store_lock(s);
		if (!a->done && !interrupted && !late)
			store_wait_locked(s, &a->g->changed, POLL_MS);
		if (a->done)
			r = a->result;
		else if ((interrupted || late) && give_up_locked(a))
			r = interrupted ? -EINTR : -EAGAIN;
		else if (interrupted || late)
			store_wait_locked(s, &a->g->changed, POLL_MS);
		if (r <= 0 && a->done)
			(void)buf_append(why, a->sentence.data,
					 a->sentence.len);
		store_unlock(s);
	}
	if (r == -EAGAIN && why->len == 0)
		(void)buf_printf(why, "not ready within publish_wait; read "
				      ".weights/wait in it, then rename again");
	return r;
}

int weight_group_publish(struct weight_group *group, struct weight_dir *new_dir,
			 const char *new_name, bool noreplace,
			 const struct weight_waiter *waiter, struct buf *why)
{
	struct attempt *a = NULL;
	int r;

	if ((r = check_place(group, new_dir, new_name, noreplace, why)) < 0 ||
	    (r = begin(group, why)) < 0)
		return r;
	r = attempt_start(group, &a);
	if (r < 0) {
		end(group, false);
		return r;
	}
	r = attempt_wait(a, waiter, why);
	attempt_unref(a);
	return rename_errno(r);
}

/* ---- Without a mount ---- */

int publish_import(struct weight_group *g, const struct import_plan *plan,
		   bool *ret_decided, struct buf *why)
{
	struct attempt a = {
		.refs = 1,
		.g = g,
		.plan = plan,
		.drained_ms = clock_monotonic_ms() + TREE_DRAIN_MS,
		.deadline_ms = UINT64_MAX, /* nobody keeps locks meanwhile */
		.why = why,
	};
	int r = begin(g, why);

	if (r < 0)
		return r;
	r = attempt_run(&a);
	*ret_decided = a.decided;
	staging_look_release(&a.look);
	return r;
}
