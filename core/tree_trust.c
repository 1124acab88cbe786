/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trust: whether the bytes of a published file may be served.
 *
 * A file that looks as its stamp says is as it was published, and one that
 * doesn't is read and compared first. Ranges that are lost are remembered as
 * damage of the group, by object; they are not served, the rest is.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/tree_priv.h"

#define RANGES_SHOWN_MAX 3
/* Stamps are written as a whole: after as many of them a ms more seldom. */
#define STAMPS_PER_MS 100
#define TENSORS_SHOWN_MAX 3
/* The value of an attribute has to hold the whole sentence. */
#define OBJECTS_SHOWN_MAX ((size_t)8)

/* ---- Stamps ---- */

/* The stamps as far as they can be believed, or none at all. */
static int read_stamps(struct weight_group *g, struct stamps **ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(stamps_free_cleanup) struct stamps *st = NULL;
	int r = wms_get(g->store->records, g->identity, &m);

	if (r < 0)
		return r;
	r = stamps_read(g->dirfd, TREE_STAMPS_NAME, &st);
	if (r == 0 && st->count != m->manifest.payload_count)
		r = -EUCLEAN;
	if (r == -ENOENT || r == -EUCLEAN || r == -EPROTONOSUPPORT) {
		stamps_free(take_ptr(st));
		r = stamps_new((size_t)m->manifest.payload_count, &st);
	} else if (r == 0 && st->epoch < g->store->epoch && !m->durable) {
		/* A power loss may have taken what they are about. */
		for (size_t i = 0; i < st->count; i++)
			stamps_set(st, i, NULL);
	}
	if (r < 0)
		return r;
	st->epoch = g->store->epoch;
	*ret = take_ptr(st);
	return 0;
}

int tree_stamps_load(struct weight_group *g)
{
	cleanup(stamps_free_cleanup) struct stamps *st = NULL;
	bool loaded;
	int r;

	store_lock(g->store);
	loaded = g->stamps != NULL;
	store_unlock(g->store);
	if (loaded)
		return 0;
	r = read_stamps(g, &st);
	if (r < 0)
		return r;
	store_lock(g->store);
	if (!g->stamps)
		g->stamps = take_ptr(st);
	store_unlock(g->store);
	return 0;
}

int tree_stamps_make(struct weight_group *g, const struct staging_look *look)
{
	cleanup(stamps_free_cleanup) struct stamps *st = NULL;
	struct stat seen;
	int r = stamps_new(look->count, &st);

	if (r < 0)
		return r;
	st->epoch = g->store->epoch;
	for (size_t i = 0; i < look->count; i++) {
		if (fstatat(look->files[i]->fd, "", &seen, AT_EMPTY_PATH) < 0)
			return -errno;
		stamps_set(st, i, &seen);
	}
	r = stamps_write(g->dirfd, TREE_STAMPS_NAME, st, false);
	if (r < 0)
		return r;
	store_lock(g->store);
	stamps_free(g->stamps);
	g->stamps = take_ptr(st);
	/* Who has one open since before is told of its damage, too. */
	for (size_t i = 0; i < look->count; i++)
		look->files[i]->object = i;
	store_unlock(g->store);
	return 0;
}

/* A copy, so that the lock isn't held across the disk. */
static int copy_stamps(struct weight_group *g, struct stamps **ret)
{
	struct stamps *copy;
	size_t count;
	int r;

	store_lock(g->store);
	count = g->stamps ? g->stamps->count : 0;
	store_unlock(g->store);
	r = stamps_new(count, &copy);
	if (r < 0)
		return r;
	store_lock(g->store);
	if (g->stamps && g->stamps->count == count) {
		copy->epoch = g->stamps->epoch;
		copy->scrub_ended_ms = g->stamps->scrub_ended_ms;
		copy->scrub_next = g->stamps->scrub_next;
		copy->scrub_bad = g->stamps->scrub_bad;
		memcpy(copy->entries, g->stamps->entries,
		       count * sizeof(*copy->entries));
	}
	store_unlock(g->store);
	*ret = copy;
	return 0;
}

int tree_stamps_save(struct weight_group *g, bool durable)
{
	cleanup(stamps_free_cleanup) struct stamps *copy = NULL;
	int r = tree_stamps_load(g);

	if (r < 0)
		return r;
	/* In the order in which they were copied, and one at a time. */
	(void)pthread_mutex_lock(&g->store->stamps_lock);
	r = copy_stamps(g, &copy);
	if (r == 0)
		r = stamps_write(g->dirfd, TREE_STAMPS_NAME, copy, durable);
	(void)pthread_mutex_unlock(&g->store->stamps_lock);
	store_lock(g->store);
	g->stamps_saved_ms = clock_monotonic_ms();
	store_unlock(g->store);
	return r;
}

/* ---- Damage ---- */

int tree_damage_new(const struct tree_object *o, size_t object,
		    struct tree_damage **ret)
{
	size_t bytes = o->chunk_count / 8 + 1;
	struct tree_damage *d = calloc(1, sizeof(*d) + bytes);

	if (!d)
		return -ENOMEM;
	list_init(&d->in_group);
	d->object = object;
	d->size = o->size;
	d->chunk_size = o->chunk_size;
	d->chunks = o->chunk_count;
	*ret = d;
	return 0;
}

bool tree_damage_has(const struct tree_damage *d, size_t chunk)
{
	return d->bits[chunk / 8] & 1u << chunk % 8;
}

void tree_damage_add(struct tree_damage *d, size_t chunk)
{
	assert(chunk < d->chunks);
	if (tree_damage_has(d, chunk))
		return;
	d->bits[chunk / 8] |= (unsigned char)(1u << chunk % 8);
	d->bad++;
}

void tree_damage_remove(struct tree_damage *d, size_t chunk)
{
	if (!tree_damage_has(d, chunk))
		return;
	d->bits[chunk / 8] &= (unsigned char)~(1u << chunk % 8);
	d->bad--;
}

/* Lock held. */
static struct tree_damage *damage_of_locked(const struct weight_group *g,
					    size_t object)
{
	for (struct list *at = g->damages.next; at != &g->damages;
	     at = at->next) {
		struct tree_damage *d =
			container_of(at, struct tree_damage, in_group);

		if (d->object == object)
			return d;
	}
	return NULL;
}

int tree_damage_copy(struct weight_group *g, size_t object,
		     struct tree_damage **ret)
{
	const struct tree_damage *d;
	struct tree_damage *copy = NULL;
	bool there;

	store_lock(g->store);
	d = damage_of_locked(g, object);
	there = d != NULL;
	if (d)
		copy = malloc(sizeof(*d) + d->chunks / 8 + 1);
	if (copy) {
		memcpy(copy, d, sizeof(*d) + d->chunks / 8 + 1);
		list_init(&copy->in_group);
	}
	store_unlock(g->store);
	if (there && !copy)
		return -ENOMEM;
	*ret = copy;
	return 0;
}

bool tree_group_is_damaged(struct weight_group *g)
{
	bool damaged;

	store_lock(g->store);
	damaged = !list_empty(&g->damages) || g->loss != TREE_LOSS_NONE;
	store_unlock(g->store);
	return damaged;
}

/* Each open file of the object learns what it is. Lock held. */
static void tell_files_locked(struct weight_group *g, size_t object,
			      enum tree_trust trust)
{
	for (struct list *at = g->files.next; at != &g->files; at = at->next) {
		struct weight_file *f =
			container_of(at, struct weight_file, in_group);

		if (f->object == object && f->type == S_IFREG)
			f->trust = trust;
	}
}

void tree_trust_settle(struct weight_group *g, size_t object,
		       const struct stat *st, struct tree_damage *damage)
{
	struct tree_damage *old;
	bool bad = damage && damage->bad > 0;
	bool drop_ref = false;

	store_lock(g->store);
	old = damage_of_locked(g, object);
	if (old)
		list_remove(&old->in_group);
	if (bad) {
		damage->seen = st ? stamp_of(st) : (struct stamp){ 0 };
		list_add_tail(&g->damages, &damage->in_group);
	}
	/* The stamp of what is damaged says nothing, for the next start. */
	if (g->stamps && object < g->stamps->count)
		stamps_set(g->stamps, object, bad ? NULL : st);
	tell_files_locked(g, object, bad ? TREE_DAMAGED : TREE_GOOD);
	if (!g->damage_ref && bad) {
		g->damage_ref = true;
		g->refs++;
	} else if (g->damage_ref && list_empty(&g->damages)) {
		g->damage_ref = false;
		drop_ref = true;
	}
	(void)pthread_cond_broadcast(&g->changed);
	store_unlock(g->store);
	free(old);
	if (!bad)
		free(damage);
	if (drop_ref)
		weight_group_unref(g);
}

void tree_trust_forget(struct weight_group *g)
{
	struct list *at;
	bool drop_ref;

	store_lock(g->store);
	while ((at = list_take_first(&g->damages)))
		free(container_of(at, struct tree_damage, in_group));
	drop_ref = g->damage_ref;
	g->damage_ref = false;
	store_unlock(g->store);
	if (drop_ref)
		weight_group_unref(g);
}

void tree_trust_stop(struct weight_store *s)
{
	for (;;) {
		struct weight_group *g = NULL;
		struct map_entry e;
		size_t at;

		store_lock(s);
		at = map_count(s->groups);
		while (!g && map_next(s->groups, &at, &e)) {
			g = e.value;
			if (list_empty(&g->damages))
				g = NULL;
		}
		if (g)
			g->refs++;
		store_unlock(s);
		if (!g)
			return;
		tree_trust_forget(g);
		weight_group_unref(g);
	}
}

/* ---- What is lost, in words ---- */

static bool overlaps(const struct tree_damage *d, uint64_t from, uint64_t len)
{
	uint64_t first, last;

	if (d->bad == 0)
		return false;
	if (len == 0 || from >= d->size)
		return false;
	if (len > d->size - from)
		len = d->size - from;
	first = from / d->chunk_size;
	last = (from + len - 1) / d->chunk_size;
	for (uint64_t i = first; i <= last; i++)
		if (tree_damage_has(d, (size_t)i))
			return true;
	return false;
}

/* "'a' and 3 more tensors" that lie in lost ranges. */
static int describe_tensors(const struct tree_damage *d,
			    const struct tree_content *c, struct buf *ret)
{
	const struct manifest *m = c->manifest;
	size_t count = 0;
	int r = 0;

	for (size_t i = 0; i < m->fragment_count && r == 0; i++) {
		const struct manifest_fragment *f = &m->fragments[i];

		if (f->object != d->object ||
		    !overlaps(d, f->object_offset, f->nbytes))
			continue;
		if (count++ < TENSORS_SHOWN_MAX)
			r = buf_printf(ret, "%s'%s'",
				       count == 1 ? ", of tensor " : ", ",
				       m->tensors[f->tensor].id.data);
	}
	if (r == 0 && count > TENSORS_SHOWN_MAX)
		r = buf_printf(ret, " and %zu more", count - TENSORS_SHOWN_MAX);
	return r;
}

static int describe_ranges(const struct tree_damage *d, struct buf *ret)
{
	size_t shown = 0;
	int r = 0;

	for (size_t i = 0; i < d->chunks && r == 0; i++) {
		size_t from = i;
		uint64_t end;

		if (!tree_damage_has(d, i))
			continue;
		while (i + 1 < d->chunks && tree_damage_has(d, i + 1))
			i++;
		end = (i + 1) * d->chunk_size;
		if (end > d->size)
			end = d->size;
		if (shown++ == RANGES_SHOWN_MAX)
			return buf_printf(ret, " and more");
		r = buf_printf(ret, "%s%llu..%llu", shown > 1 ? ", " : "",
			       (unsigned long long)(from * d->chunk_size),
			       (unsigned long long)end);
	}
	return r;
}

static int describe(struct weight_group *g, const struct tree_content *c,
		    size_t object, struct buf *ret)
{
	struct tree_damage *d = NULL;
	int r = tree_damage_copy(g, object, &d);

	if (r == 0 && d) {
		if ((r = buf_printf(ret, "%s'%s': bytes ", ret->len ? "; " : "",
				    c->objects[object].path)) == 0 &&
		    (r = describe_ranges(d, ret)) == 0 &&
		    (r = buf_printf(ret, " are lost")) == 0)
			r = describe_tensors(d, c, ret);
	}
	free(d);
	return r;
}

static void put_in_order(size_t object, size_t list[OBJECTS_SHOWN_MAX],
			 size_t count)
{
	size_t i = count < OBJECTS_SHOWN_MAX ? count : OBJECTS_SHOWN_MAX - 1;

	if (count >= OBJECTS_SHOWN_MAX && object > list[i])
		return;
	for (; i > 0 && list[i - 1] > object; i--)
		list[i] = list[i - 1];
	list[i] = object;
}

/* The first objects that are damaged, in order; returns how many there are. */
static size_t first_damages(struct weight_group *g,
			    size_t ret[OBJECTS_SHOWN_MAX])
{
	size_t count = 0;

	store_lock(g->store);
	for (struct list *at = g->damages.next; at != &g->damages;
	     at = at->next)
		put_in_order(
			container_of(at, struct tree_damage, in_group)->object,
			ret, count++);
	store_unlock(g->store);
	return count;
}

void tree_damage_describe(struct weight_group *g, const struct tree_content *c)
{
	size_t objects[OBJECTS_SHOWN_MAX];
	size_t count = first_damages(g, objects);
	struct buf text = BUF_INIT;
	char *old, *fresh = NULL;
	int r = 0;

	for (size_t i = 0; i < count && i < OBJECTS_SHOWN_MAX && r == 0; i++)
		r = describe(g, c, objects[i], &text);
	if (r == 0 && count > OBJECTS_SHOWN_MAX)
		r = buf_printf(&text, "; and %zu more files",
			       count - OBJECTS_SHOWN_MAX);
	if (r == 0 && text.len > 0)
		fresh = strdup(text.data);
	buf_release(&text);
	store_lock(g->store);
	old = g->damage_text;
	g->damage_text = fresh;
	store_unlock(g->store);
	if (fresh && (!old || strcmp(old, fresh) != 0))
		log_info("generation %llu is damaged: %s",
			 (unsigned long long)g->identity->generation, fresh);
	free(old);
}

int weight_group_damage(struct weight_group *group, struct buf *ret)
{
	int r = 0;

	store_lock(group->store);
	if (group->damage_text)
		r = buf_printf(ret, "%s%s", group->damage_text,
			       group->loss != TREE_LOSS_NONE ?
				       "" :
				       "; put good files back with weightctl "
				       "repair");
	store_unlock(group->store);
	return r;
}

/* ---- Serving ---- */

bool weight_file_may_pass(struct weight_file *file)
{
	bool may;

	store_lock(file->store);
	may = file->group->state != WEIGHT_GROUP_PUBLISHED ||
	      file->type != S_IFREG ||
	      (file->trust != TREE_DAMAGED && file->trust != TREE_FOREIGN);
	store_unlock(file->store);
	return may;
}

int weight_file_range_check(struct weight_file *file, uint64_t offset,
			    uint64_t len)
{
	struct weight_group *g;
	const struct tree_damage *d = NULL;
	int r = 0;

	store_lock(file->store);
	g = file->group;
	if (g->state == WEIGHT_GROUP_PUBLISHED && file->type == S_IFREG) {
		if (!list_empty(&g->damages))
			d = damage_of_locked(g, file->object);
		if (file->trust == TREE_FOREIGN ||
		    (d && overlaps(d, offset, len)))
			r = -EIO;
	}
	store_unlock(file->store);
	return r;
}

bool tree_trust_is_complete(struct weight_group *g)
{
	bool complete = false;

	if (tree_stamps_load(g) < 0)
		return false;
	store_lock(g->store);
	if (list_empty(&g->damages)) {
		complete = g->stamps->known_count == g->stamps->count;
	} else {
		size_t known = g->stamps->known_count;

		for (struct list *at = g->damages.next; at != &g->damages;
		     at = at->next)
			known++;
		complete = known == g->stamps->count;
	}
	store_unlock(g->store);
	return complete;
}

/* Lock held. 0 it is known to be as it was published, 1 it isn't known. */
static int compare_locked(struct weight_file *f, const struct stat *st)
{
	struct stamps *stamps = f->group->stamps;
	const struct tree_damage *d = NULL;

	if (f->object == TREE_NO_OBJECT &&
	    stamps_find(stamps, f->key.ino, &f->object) < 0)
		f->object = TREE_NO_OBJECT;
	if (f->trust == TREE_FOREIGN)
		return 0;
	if (f->object != TREE_NO_OBJECT && !list_empty(&f->group->damages))
		d = damage_of_locked(f->group, f->object);
	if (d) {
		f->trust = TREE_DAMAGED;
		/* What was whole of it may not be any more. */
		return d->seen.known && !stamp_matches(&d->seen, st);
	}
	if (f->object != TREE_NO_OBJECT &&
	    stamp_matches(&stamps->entries[f->object], st)) {
		f->trust = TREE_GOOD;
		return 0;
	}
	return 1;
}

/* ---- Opening what nobody vouches for ---- */

struct trust_work {
	struct work work;
	struct weight_file *file; /* a reference; trust is TREE_CHECKING */
	uint64_t number;          /* the next may begin before this has ended */
};

/* Which object it is, by the first of its names that is found. */
static int find_object(struct weight_file *f, const struct tree_content *c)
{
	struct buf path = BUF_INIT;
	size_t object;
	int r = tree_file_path(f, &path);

	if (r == 0) {
		object = tree_content_object(c, path.data);
		store_lock(f->store);
		f->object = object;
		if (object == TREE_NO_OBJECT)
			f->trust = TREE_FOREIGN;
		store_unlock(f->store);
		if (object == TREE_NO_OBJECT)
			log_info("'%s' in generation %llu is not of the "
				 "revision, and is not served",
				 path.data,
				 (unsigned long long)
					 f->group->identity->generation);
	}
	buf_release(&path);
	return r;
}

static bool go_on(void *arg, uint64_t bytes)
{
	struct weight_file *f = arg;
	bool on;

	(void)bytes;
	store_lock(f->store);
	on = !f->store->stopping && f->group->state == WEIGHT_GROUP_PUBLISHED;
	store_unlock(f->store);
	return on;
}

/*
 * After one of many files was verified, of which others are going to be. What
 * isn't saved is verified once more after a restart.
 */
static void save_now_and_then(struct weight_group *g)
{
	uint64_t next;

	store_lock(g->store);
	next = g->stamps_saved_ms + g->stamps->count / STAMPS_PER_MS;
	store_unlock(g->store);
	if (clock_monotonic_ms() >= next)
		(void)tree_stamps_save(g, false);
}

static int check_file(struct weight_file *f, struct weight_group *g)
{
	cleanup(tree_content_put_cleanup) struct tree_content *c = NULL;
	struct tree_check check = {
		.group = g,
		.go_on = go_on,
		.arg = f,
	};
	int r = tree_content_get(g, &c);

	if (r == 0 && f->object == TREE_NO_OBJECT)
		r = find_object(f, c);
	if (r < 0 || f->object == TREE_NO_OBJECT)
		return r;
	check.content = c;
	r = tree_verify_object(&check, f->object);
	if (r == 0)
		tree_damage_describe(g, c);
	if (r == 0)
		save_now_and_then(g);
	return r;
}

static void trust_run(struct work *work)
{
	struct trust_work *w = container_of(work, struct trust_work, work);
	struct weight_file *f = w->file;
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		weight_file_group(f);
	struct weight_store *s = f->store;
	int r = check_file(f, g);

	if (r < 0)
		(void)log_debug(r, "verifying a file of '%s'", g->hex);
	store_lock(s);
	if (f->trust == TREE_CHECKING && f->checks == w->number)
		f->trust = TREE_UNKNOWN;
	(void)pthread_cond_broadcast(&g->changed);
	store_unlock(s);
	/* The record has to say what was found. */
	(void)upkeep_want(g);
	weight_file_unref(f);
	free(w);
	store_background_end(s);
}

/* Begins to verify it, unless that is going on. Lock held. */
static int begin_check_locked(struct weight_file *f)
{
	struct weight_store *s = f->store;
	struct trust_work *w;

	if (f->trust == TREE_CHECKING)
		return 0;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	f->trust = TREE_CHECKING;
	f->refs++;
	s->background++;
	w->file = f;
	w->number = ++f->checks;
	w->work.run = trust_run;
	w->work.priority = WORK_SERVING;
	workers_submit(s->tenders, &w->work);
	return 0;
}

/* Waits while it is verified. Lock held. */
static int wait_check_locked(struct weight_file *f)
{
	struct weight_store *s = f->store;
	uint64_t end = clock_monotonic_ms() + s->config->open_wait_ms;
	int r = begin_check_locked(f);

	while (r == 0 && f->trust == TREE_CHECKING) {
		uint64_t now = clock_monotonic_ms();

		if (now >= end)
			return -EINPROGRESS;
		store_wait_locked(s, &f->group->changed, end - now);
	}
	/* It could be read neither as good nor as bad. */
	return r == 0 && f->trust == TREE_UNKNOWN ? -EIO : r;
}

static void say_waiting(struct weight_file *f)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		weight_file_group(f);
	struct buf why = BUF_INIT;
	struct buf path = BUF_INIT;

	(void)tree_file_path(f, &path);
	if (buf_printf(&why,
		       "'%s' is being verified, since it may have "
		       "changed; try again (option open_wait)",
		       path.data ? path.data : "") == 0)
		weight_group_set_error(g, why.data);
	buf_release(&path);
	buf_release(&why);
}

int tree_trust_open(struct weight_file *f, bool may_block)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		weight_file_group(f);
	struct weight_store *s = f->store;
	struct stat st;
	bool look;
	int r;

	if (f->type != S_IFREG ||
	    weight_group_state(g) != WEIGHT_GROUP_PUBLISHED)
		return 0;
	store_lock(s);
	look = g->stamps != NULL;
	store_unlock(s);
	if (!look) {
		if (!may_block)
			return -EWOULDBLOCK;
		r = tree_stamps_load(g);
		if (r < 0)
			return r;
	}
	if (fstatat(f->fd, "", &st, AT_EMPTY_PATH) < 0)
		return -errno;
	store_lock(s);
	r = f->trust == TREE_CHECKING ? 1 : compare_locked(f, &st);
	if (r > 0)
		r = may_block ? wait_check_locked(f) : -EWOULDBLOCK;
	if (r == 0 && f->trust == TREE_FOREIGN)
		r = -EIO;
	store_unlock(s);
	if (r == -EINPROGRESS)
		say_waiting(f);
	return r;
}
