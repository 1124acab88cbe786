/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verifying published files against their manifest, and mending them. This is
 * the one place that writes below a published group: names and sizes that were
 * lost, and chunks whose digest was checked before they are written.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/chunk_check.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/pace.h"
#include "core/step.h"
#include "core/tree_priv.h"

#define POLL_MS 20
/* A file that is changed while it is read is read again as often. */
#define TRIES_MAX 3
#define NAMES_SHOWN_MAX 5
#define SOURCES_MAX 16
/* Longer than a tick of any kernel's clock. */
#define TICK_MS 20

/* ---- Opening ---- */

/* Below dirfd, through nothing but directories. */
static int open_below(int dirfd, const char *path, uint64_t flags, int *ret)
{
	const struct open_how how = {
		.flags = flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
			   RESOLVE_NO_MAGICLINKS,
	};
	long fd = syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
	struct stat st;

	if (fd < 0)
		return -errno;
	if (fstat((int)fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		(void)close((int)fd);
		return -EBADMSG;
	}
	*ret = (int)fd;
	return 0;
}

/* An object that is being verified. */
struct subject {
	const struct tree_check *check;
	const struct tree_object *object;
	size_t index;
	int fd;
	int device_fd;              /* or -1 */
	int write_fd;               /* -1 until something has to be mended */
	struct tree_damage *damage; /* NULL: none so far */
	bool mended;
};

static struct subject subject_of(const struct tree_check *check, size_t object)
{
	return (struct subject){
		.check = check,
		.object = &check->content->objects[object],
		.index = object,
		.fd = -1,
		.device_fd = -1,
		.write_fd = -1,
	};
}

static void subject_release(struct subject *s)
{
	if (s->fd >= 0)
		(void)close(s->fd);
	if (s->device_fd >= 0)
		(void)close(s->device_fd);
	if (s->write_fd >= 0)
		(void)close(s->write_fd);
	free(s->damage);
}

static int files_fd(const struct subject *s)
{
	return s->check->group->files_fd;
}

static int writable(struct subject *s)
{
	if (s->write_fd >= 0)
		return 0;
	return open_below(files_fd(s), s->object->path, O_RDWR, &s->write_fd);
}

static struct chunk_target target_of(const struct subject *s)
{
	return (struct chunk_target){
		.fd = s->fd,
		.device_fd = s->device_fd,
		.size = s->object->size,
		.chunk_size = s->object->chunk_size,
		.chunks = s->object->chunks,
	};
}

static int add_damage(struct subject *s, size_t chunk)
{
	int r = 0;

	if (!s->damage)
		r = tree_damage_new(s->object, s->index, &s->damage);
	if (r == 0)
		tree_damage_add(s->damage, chunk);
	return r;
}

/* ---- Names that a power loss took ---- */

static const struct manifest_file *first_name(const struct tree_content *c,
					      size_t object)
{
	return manifest_file_find(c->manifest, c->objects[object].path);
}

static int make_file(struct weight_group *g, const struct manifest_file *f)
{
	auto_fd int fd = openat(
		g->files_fd, f->path,
		O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
	struct stat root;

	if (fd < 0)
		return -errno;
	/* Whose it was isn't known any more; the root's owner put it here. */
	if (fstatat(g->files_fd, "", &root, AT_EMPTY_PATH) < 0 ||
	    fchown(fd, root.st_uid, root.st_gid) < 0 ||
	    fchmod(fd, f->mode) < 0 || ftruncate(fd, (off_t)f->size) < 0)
		return -errno;
	return 0;
}

/* A name that is gone: as much of it as the manifest knows. */
static int make_name(struct weight_group *g, const struct tree_content *c,
		     const struct manifest_file *f)
{
	const char *first;

	switch (f->kind) {
	case MANIFEST_DIRECTORY:
		if (mkdirat(g->files_fd, f->path, 0700) < 0 ||
		    fchmodat(g->files_fd, f->path, f->mode, 0) < 0)
			return -errno;
		return 0;
	case MANIFEST_SYMLINK:
		return errno_of(symlinkat(f->target, g->files_fd, f->path));
	case MANIFEST_REGULAR:
		break;
	}
	first = c->objects[f->object].path;
	if (strcmp(first, f->path) != 0 &&
	    linkat(g->files_fd, first, g->files_fd, f->path, 0) == 0)
		return 0;
	return make_file(g, f);
}

/* 1 it wasn't there, or not as it was, and has been made; 0 it is there. */
static int restore_name(struct weight_group *g, const struct tree_content *c,
			const struct manifest_file *f)
{
	struct stat st;
	int r;

	if (fstatat(g->files_fd, f->path, &st, AT_SYMLINK_NOFOLLOW) == 0) {
		if (f->kind == MANIFEST_SYMLINK ||
		    (st.st_mode & 07777) == f->mode)
			return 0;
		r = errno_of(fchmodat(g->files_fd, f->path, f->mode, 0));
		return r < 0 ? r : 1;
	}
	if (errno != ENOENT)
		return -errno;
	r = make_name(g, c, f);
	return r < 0 ? r : 1;
}

static void say_name(struct buf *why, const char *what, const char *path,
		     size_t count)
{
	if (count <= NAMES_SHOWN_MAX)
		(void)buf_printf(why, "%s%s'%s'", why->len ? ", " : "", what,
				 path);
	else if (count == NAMES_SHOWN_MAX + 1)
		(void)buf_printf(why, " and others");
}

static void find_foreign(struct weight_group *g, const struct tree_content *c,
			 struct buf *why)
{
	cleanup(payload_free_cleanup) struct payload *p = NULL;
	size_t count = 0;

	if (payload_scan(g->files_fd, &p, NULL) < 0)
		return;
	for (size_t i = 0; i < p->count; i++)
		if (!manifest_file_find(c->manifest, p->entries[i].path))
			say_name(why, "foreign ", p->entries[i].path, ++count);
}

/* One that isn't there has lost what was in it, which is found by reading. */
static int sync_dir(struct weight_group *g, const char *path)
{
	auto_fd int fd =
		openat(g->files_fd, path,
		       O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ?
			       0 :
			       -errno;
	metrics_add(METRIC_FSYNCS, 1);
	return errno_of(fsync(fd));
}

int tree_sync_dirs(struct weight_group *g, const struct tree_content *c)
{
	const struct manifest *m = c->manifest;
	int r = sync_dir(g, ".");

	for (size_t i = 0; i < m->file_count && r == 0; i++)
		if (m->files[i].kind == MANIFEST_DIRECTORY)
			r = sync_dir(g, m->files[i].path);
	return r;
}

int tree_check_names(struct weight_group *g, const struct tree_content *c,
		     struct buf *why)
{
	const struct manifest *m = c->manifest;
	size_t count = 0;

	for (size_t i = 0; i < m->file_count; i++) {
		int r = restore_name(g, c, &m->files[i]);

		if (r < 0)
			return r;
		if (r > 0)
			say_name(why, "lost ", m->files[i].path, ++count);
	}
	find_foreign(g, c, why);
	/* What was made again lasts, also in what counts as durable. */
	return count > 0 ? tree_sync_dirs(g, c) : 0;
}

/* ---- Getting at an object ---- */

/* A file of another size gets the one that it was published with. */
static int right_size(struct subject *s)
{
	struct stat st;
	int r;

	if (fstat(s->fd, &st) < 0)
		return -errno;
	if ((uint64_t)st.st_size == s->object->size)
		return 0;
	r = writable(s);
	if (r == 0 && (ftruncate(s->write_fd, (off_t)s->object->size) < 0 ||
		       fsync(s->write_fd) < 0))
		r = -errno;
	s->mended = true;
	return r;
}

/* Where the device is to be seen, the cache must not stand in for it. */
static int open_device(struct subject *s)
{
	int r = open_below(files_fd(s), s->object->path, O_RDONLY | O_DIRECT,
			   &s->device_fd);

	return s->check->device && r != -EINVAL ? r : 0;
}

static int subject_open(struct subject *s)
{
	const struct tree_content *c = s->check->content;
	const char *path = s->object->path;
	int r = open_below(files_fd(s), path, O_RDONLY, &s->fd);

	if (r == -ENOENT) {
		r = restore_name(s->check->group, c, first_name(c, s->index));
		if (r >= 0)
			r = open_below(files_fd(s), path, O_RDONLY, &s->fd);
	}
	if (r == 0 && s->check->group->store->abilities.direct)
		r = open_device(s);
	return r < 0 ? r : right_size(s);
}

/* What is there can't be the file that was published, and can't be read. */
static bool is_no_file(int r)
{
	return r == -ENOENT || r == -EBADMSG || r == -ELOOP || r == -ENOTDIR ||
	       r == -ENXIO || r == -EIO || r == -EUCLEAN;
}

/* All of it is lost, which is known for sure; the others may be served. */
static int settle_lost(struct subject *s, int r)
{
	if (s->object->chunk_count == 0)
		return r;
	for (size_t i = 0; i < s->object->chunk_count; i++) {
		r = add_damage(s, i);
		if (r < 0)
			return r;
	}
	tree_trust_settle(s->check->group, s->index, NULL, take_ptr(s->damage));
	return 0;
}

/* How it looks now; a file that was mended keeps the times it came with. */
static int look_at_end(struct subject *s, struct stat *ret)
{
	const struct manifest_file *f = first_name(s->check->content, s->index);
	const struct timespec times[] = {
		{ .tv_nsec = UTIME_OMIT },
		{ .tv_sec = f->mtime_s, .tv_nsec = f->mtime_nsec },
	};

	if (s->mended)
		(void)futimens(s->fd, times);
	return errno_of(fstat(s->fd, ret));
}

/* ---- Reading all of it ---- */

struct job_wait {
	pthread_mutex_t lock;
	pthread_cond_t over;
	bool done;
	int result;
	struct chunk_list *list;
};

static void job_done(void *arg, int r, struct chunk_list *list)
{
	struct job_wait *w = arg;

	(void)pthread_mutex_lock(&w->lock);
	w->done = true;
	w->result = r;
	w->list = list;
	(void)pthread_cond_signal(&w->over);
	(void)pthread_mutex_unlock(&w->lock);
}

struct follow {
	bool (*go_on)(void *arg, uint64_t bytes);
	void *arg;
};

/* Follows a job to its end, which always comes. */
static void follow(const struct follow *f, struct chunk_job *job,
		   struct job_wait *w)
{
	uint64_t told = 0;
	bool done = false;

	while (!done) {
		uint64_t now = chunk_job_bytes_done(job);

		if (f->go_on && !f->go_on(f->arg, now - told))
			chunk_job_cancel(job);
		told = now;
		(void)pthread_mutex_lock(&w->lock);
		if (!w->done)
			clock_cond_wait(&w->over, &w->lock, POLL_MS);
		done = w->done;
		(void)pthread_mutex_unlock(&w->lock);
	}
	if (f->go_on)
		(void)f->go_on(f->arg, chunk_job_bytes_done(job) - told);
}

int tree_digest_wait(struct weight_store *s, int fd, uint64_t size,
		     bool (*go_on)(void *arg, uint64_t bytes), void *arg,
		     struct chunk_list **ret)
{
	cleanup(chunk_job_unref_cleanup) struct chunk_job *job = NULL;
	const struct follow f = { go_on, arg };
	struct job_wait w = { .lock = PTHREAD_MUTEX_INITIALIZER };
	int r = clock_cond_init(&w.over);

	if (r < 0)
		return r;
	r = chunk_job_start(s->hashers, fd, size, job_done, &w, &job);
	if (r == 0) {
		follow(&f, job, &w);
		r = w.result;
	}
	(void)pthread_cond_destroy(&w.over);
	(void)pthread_mutex_destroy(&w.lock);
	if (r == 0)
		*ret = w.list;
	return r;
}

static int digest_all(struct subject *s, struct chunk_list **ret)
{
	const struct tree_check *check = s->check;
	int fd = check->device && s->device_fd >= 0 ? s->device_fd : s->fd;

	/* What isn't pinned is then read from the device all the same. */
	if (check->device && s->device_fd < 0)
		(void)posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED);
	return tree_digest_wait(check->group->store, fd, s->object->size,
				check->go_on, check->arg, ret);
}

static int step_on(const struct tree_check *check, uint64_t bytes)
{
	if (check->pace)
		store_pace(check->group->store, check->pace, bytes);
	return !check->go_on || check->go_on(check->arg, bytes) ? 0 :
								  -ECANCELED;
}

static void note_mended(struct subject *s, size_t i)
{
	step("repair: written");
	s->mended = true;
	metrics_add(METRIC_MENDED_CHUNKS, 1);
	if (s->damage)
		tree_damage_remove(s->damage, i);
}

/* Looks at one chunk everywhere, and mends it or counts it as lost. */
static int check_chunk(struct subject *s, size_t i)
{
	const struct chunk_target t = target_of(s);
	enum chunk_verdict verdict;
	int r = chunk_check(&t, i, &verdict, NULL);

	if (r == 0 && verdict == CHUNK_GOOD) {
		if (s->damage)
			tree_damage_remove(s->damage, i);
		return 0;
	}
	metrics_add(METRIC_BAD_CHUNKS, 1);
	if (r == 0 && verdict != CHUNK_LOST) {
		r = writable(s);
		if (r == 0)
			r = chunk_mend(&t, i, s->write_fd, -1);
		if (r == 0) {
			note_mended(s, i);
			return 0;
		}
		/* The device doesn't take it yet; it isn't lost while it is
		 * in memory. */
		if (verdict == CHUNK_BAD_ON_DEVICE && s->check->device &&
		    r != -ENODATA)
			return r;
	}
	if (r < 0 && r != -ENODATA && r != -EIO && r != -ENOSPC)
		return r;
	return add_damage(s, i);
}

static int compare_chunks(struct subject *s, const struct chunk_list *list)
{
	int r = 0;

	for (size_t i = 0; i < s->object->chunk_count && r == 0; i++)
		if (i >= list->count ||
		    !digest_equal(&list->chunks[i], &s->object->chunks[i]))
			r = check_chunk(s, i);
	return r;
}

/* One chunk after the other: slower, but within a pace, and past errors. */
static int check_chunks(struct subject *s)
{
	const struct chunk_target t = target_of(s);
	int r = 0;

	for (size_t i = 0; i < s->object->chunk_count && r == 0; i++) {
		r = check_chunk(s, i);
		if (r == 0)
			r = step_on(s->check, chunk_target_len(&t, i));
	}
	return r;
}

static bool same_times(const struct stat *a, const struct stat *b)
{
	struct stamp stamp = stamp_of(a);

	return stamp_matches(&stamp, b);
}

/* A failure that isn't one of ours: devices have several. */
static bool is_of_the_device(int r)
{
	return r < 0 && r != -ECANCELED && r != -EBUSY && !is_short(r);
}

static int read_subject(struct subject *s)
{
	cleanup(chunk_list_free_cleanup) struct chunk_list *list = NULL;
	int r;

	if (s->check->pace || s->object->chunk_size != CHUNK_BYTES)
		return check_chunks(s);
	r = digest_all(s, &list);
	if (is_of_the_device(r))
		return check_chunks(s); /* which of them can't be read? */
	return r < 0 ? r : compare_chunks(s, list);
}

/*
 * Times of files go on in ticks. What changes after it was read has to look
 * different, so the tick of the last change has to be over before.
 */
static void wait_for_tick(struct weight_store *s, const struct stat *st)
{
	uint64_t changed = (uint64_t)st->st_ctim.tv_sec * 1000 +
			   (uint64_t)st->st_ctim.tv_nsec / 1000000;
	uint64_t now = clock_realtime_ms();

	if (now >= changed && now < changed + TICK_MS)
		store_pause(s, changed + TICK_MS - now);
}

/* Once; -EAGAIN it changed meanwhile. */
static int verify_once(const struct tree_check *check, size_t object)
{
	cleanup(subject_release) struct subject s = subject_of(check, object);
	struct stat before, after;
	int r = subject_open(&s);

	if (is_no_file(r))
		return settle_lost(&s, r);
	if (r < 0)
		return r;
	if (fstat(s.fd, &before) < 0)
		return -errno;
	wait_for_tick(check->group->store, &before);
	r = read_subject(&s);
	if (r == 0)
		r = look_at_end(&s, &after);
	if (r < 0)
		return r;
	if (!s.mended && !same_times(&before, &after))
		return -EAGAIN;
	step("verify: read");
	tree_trust_settle(check->group, object, &after, take_ptr(s.damage));
	return 0;
}

int tree_verify_object(const struct tree_check *check, size_t object)
{
	int r = -EAGAIN;

	for (int i = 0; i < TRIES_MAX && (r == -EAGAIN || r == -EBUSY); i++)
		r = verify_once(check, object);
	return r;
}

/* ---- Scrubbing ---- */

static int scrub_chunks(struct subject *s, size_t first, uint64_t bytes,
			size_t *ret_next)
{
	const struct chunk_target t = target_of(s);
	uint64_t done = 0;
	size_t i = first;
	int r = 0;

	while (r == 0 && i < s->object->chunk_count && done < bytes) {
		uint64_t len = chunk_target_len(&t, i);

		r = check_chunk(s, i);
		if (r == 0) {
			i++;
			done += len;
			r = step_on(s->check, len);
		}
	}
	*ret_next = i;
	return r == -ECANCELED ? 0 : r;
}

static bool is_as_stamped(struct weight_group *g, size_t object,
			  const struct stat *st)
{
	bool is;

	store_lock(g->store);
	is = g->stamps && object < g->stamps->count &&
	     stamp_matches(&g->stamps->entries[object], st);
	store_unlock(g->store);
	return is;
}

/* What was known of a file when a piece of it began to be looked at. */
struct scrubbed {
	struct stat before;
	bool lost;    /* some of it was lost */
	bool trusted; /* it was as its stamp says */
	bool whole;   /* the piece is all of it */
	bool last;    /* and nothing of it is left */
};

/*
 * A piece says nothing about the others, which may have changed since they were
 * looked at: then all of it is read. What is lost is known at once, what is
 * good when all was read.
 */
static int settle_scrubbed(struct subject *s, const struct scrubbed *b)
{
	bool bad = s->damage && s->damage->bad > 0;
	struct stat st;
	bool sure;
	int r = look_at_end(s, &st);

	if (r < 0 || (!b->lost && !s->damage && !s->mended && !b->last))
		return r;
	sure = b->trusted || b->whole;
	sure = bad ? sure || b->lost :
		     sure && (s->mended || same_times(&b->before, &st));
	if (!sure)
		return tree_verify_object(s->check, s->index);
	tree_trust_settle(s->check->group, s->index, &st, take_ptr(s->damage));
	return 0;
}

int tree_scrub_object(const struct tree_check *check, size_t object,
		      size_t first, uint64_t bytes, size_t *ret_next)
{
	cleanup(subject_release) struct subject s = subject_of(check, object);
	struct scrubbed b = { .lost = false };
	int r = tree_damage_copy(check->group, object, &s.damage);

	b.lost = s.damage != NULL;
	if (r == 0)
		r = subject_open(&s);
	if (is_no_file(r)) {
		*ret_next = s.object->chunk_count;
		return settle_lost(&s, r);
	}
	if (r == 0)
		r = errno_of(fstat(s.fd, &b.before));
	if (r == 0) {
		b.trusted = is_as_stamped(check->group, object, &b.before);
		r = scrub_chunks(&s, first, bytes, ret_next);
	}
	if (r < 0)
		return r;
	b.last = *ret_next >= s.object->chunk_count;
	b.whole = first == 0 && b.last;
	return settle_scrubbed(&s, &b);
}

/* ---- Repair ---- */

struct sources {
	int fds[SOURCES_MAX];
	size_t count;
};

static void sources_release(struct sources *src)
{
	for (size_t i = 0; i < src->count; i++)
		(void)close(src->fds[i]);
}

/* Staged files of the lineage with the same path: digests decide on them. */
static void find_sources(struct weight_group *g, const char *path,
			 struct sources *src)
{
	struct weight_store *s = g->store;
	uint64_t after = 0;

	while (src->count < SOURCES_MAX) {
		cleanup(weight_staging_free_cleanup) struct weight_staging *st =
			NULL;
		cleanup(weight_group_unref_cleanup) struct weight_group *from =
			NULL;

		if (wms_staged_next(s->records, &g->identity->lineage, after,
				    &st) < 0)
			return;
		after = st->identity.generation;
		if (tree_group_find(s, &st->identity, g->lineage, &from) == 0 &&
		    open_below(from->files_fd, path, O_RDONLY,
			       &src->fds[src->count]) == 0)
			src->count++;
	}
}

static int repair_chunk(struct subject *s, const struct sources *src, size_t i)
{
	const struct chunk_target t = target_of(s);
	int r = check_chunk(s, i);

	for (size_t k = 0; k < src->count && r == 0 && s->damage &&
			   tree_damage_has(s->damage, i);
	     k++) {
		r = writable(s);
		if (r == 0)
			r = chunk_mend(&t, i, s->write_fd, src->fds[k]);
		if (r == 0)
			note_mended(s, i);
		else if (r == -ENODATA)
			r = 0;
	}
	return r;
}

int tree_repair_object(const struct tree_check *check, size_t object)
{
	cleanup(subject_release) struct subject s = subject_of(check, object);
	cleanup(sources_release) struct sources src = { .count = 0 };
	struct stat st;
	int r = tree_damage_copy(check->group, object, &s.damage);

	if (r < 0 || !s.damage)
		return r;
	r = subject_open(&s);
	if (r < 0)
		return is_no_file(r) ? 0 : r; /* it stays lost */
	find_sources(check->group, s.object->path, &src);
	for (size_t i = 0; i < s.object->chunk_count && r == 0; i++)
		if (tree_damage_has(s.damage, i)) {
			r = repair_chunk(&s, &src, i);
			if (r == 0)
				r = step_on(check, s.object->chunk_size);
		}
	if (look_at_end(&s, &st) < 0)
		return -EIO;
	/* What wasn't lost may have changed since, and nobody looked. */
	if (r == 0 && s.damage->bad == 0)
		return tree_verify_object(check, object);
	tree_trust_settle(check->group, object, &st, take_ptr(s.damage));
	return r;
}
