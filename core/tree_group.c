/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: one generation of a lineage each, from mkdir to the tombstone.
 *
 * A group's directory is STORE/groups/<2 hex>/<hash>/ for its whole life. What
 * it is stands in the records alone.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/dir.h"
#include "core/holders.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/tree_priv.h"
#include "core/weight_key.h"

#define FILES_NEW_NAME TREE_FILES_NAME ".new"

struct weight_group *weight_group_ref(struct weight_group *group)
{
	store_lock(group->store);
	group->refs++;
	store_unlock(group->store);
	return group;
}

static void group_free(struct weight_group *g)
{
	assert(!g->upkeep && !g->content && list_empty(&g->damages));
	pins_file_close(g->manifest_pin);
	stamps_free(g->stamps);
	free(g->damage_text);
	weight_tensors_unref(g->tensors);
	if (g->dirfd >= 0)
		(void)close(g->dirfd);
	if (g->files_fd >= 0)
		(void)close(g->files_fd);
	(void)pthread_cond_destroy(&g->changed);
	(void)pthread_cond_destroy(&g->wait_over);
	weight_dir_unref(g->lineage);
	weight_identity_free(g->identity);
	buf_release(&g->error);
	free(g->sha256sums);
	free(g);
}

void weight_group_unref(struct weight_group *group)
{
	bool last;

	if (!group)
		return;
	store_lock(group->store);
	assert(group->refs > 0);
	last = --group->refs == 0;
	if (last &&
	    map_find(group->store->groups, group->hex, DIGEST_HEX_LEN) == group)
		(void)map_take(group->store->groups, group->hex,
			       DIGEST_HEX_LEN);
	if (last)
		list_remove(&group->in_cached);
	store_unlock(group->store);
	if (last)
		group_free(group);
}

static int group_init(struct weight_group *g, struct weight_store *s,
		      const struct weight_identity *id,
		      struct weight_dir *lineage, enum weight_group_state state)
{
	int r;

	g->refs = 1;
	g->state = state;
	g->store = s;
	g->preferred = s->config->policy.preferred;
	g->dirfd = -1;
	g->files_fd = -1;
	g->error = (struct buf)BUF_INIT;
	list_init(&g->files);
	list_init(&g->in_leased);
	list_init(&g->in_cached);
	list_init(&g->damages);
	if ((r = clock_cond_init(&g->changed)) < 0 ||
	    (r = clock_cond_init(&g->wait_over)) < 0)
		return r;
	g->lineage = lineage ? weight_dir_ref(lineage) : NULL;
	if ((r = weight_identity_copy(id, &g->identity)) < 0 ||
	    (r = weight_group_hex(id, g->hex)) < 0)
		return r;
	return tree_group_open_dirs(g, state == WEIGHT_GROUP_PUBLISHED);
}

int tree_group_new(struct weight_store *s, const struct weight_identity *id,
		   struct weight_dir *lineage, enum weight_group_state state,
		   bool hidden, struct weight_group **ret)
{
	struct weight_group *g = calloc(1, sizeof(*g));
	struct weight_group *other;
	int r;

	if (!g)
		return -ENOMEM;
	r = group_init(g, s, id, lineage, state);
	if (r < 0) {
		group_free(g);
		return r;
	}
	g->hidden = hidden;
	store_lock(s);
	other = map_find(s->groups, g->hex, DIGEST_HEX_LEN);
	if (other)
		other->refs++;
	else
		r = map_add(s->groups, g->hex, DIGEST_HEX_LEN, g);
	store_unlock(s);
	if (other || r < 0)
		group_free(g);
	if (r < 0)
		return r;
	*ret = other ? other : g;
	return 0;
}

/* The group if it is in memory; a gone one is taken out of the table. */
static struct weight_group *find_in_memory(struct weight_store *s,
					   const char *hex)
{
	struct weight_group *g;

	store_lock(s);
	g = map_find(s->groups, hex, DIGEST_HEX_LEN);
	if (g && (g->state == WEIGHT_GROUP_REMOVED ||
		  g->state == WEIGHT_GROUP_ABORTED)) {
		(void)map_take(s->groups, hex, DIGEST_HEX_LEN);
		g = NULL;
	}
	if (g)
		g->refs++;
	store_unlock(s);
	return g;
}

static int state_on_record(struct weight_store *s,
			   const struct weight_identity *id,
			   enum weight_group_state *ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(weight_staging_free_cleanup) struct weight_staging *st = NULL;
	int r = wms_get(s->records, id, &m);

	if (r == 0) {
		if (m->availability != WEIGHT_READY &&
		    m->availability != WEIGHT_DEGRADED)
			return -ENOENT;
		*ret = WEIGHT_GROUP_PUBLISHED;
		return 0;
	}
	if (r != -ENOENT)
		return r;
	r = wms_staged_get(s->records, id, &st);
	if (r == 0)
		*ret = WEIGHT_GROUP_STAGED;
	return r;
}

/* A group that is on record, with what its lineage says of it. */
static int group_load(struct weight_store *s, const struct weight_identity *id,
		      struct weight_dir *lineage, enum weight_group_state state,
		      struct weight_group **ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	struct weight_policy policy;
	int r = tree_group_new(s, id, lineage, state, false, &g);

	if (r == 0)
		r = tree_claim_load(g);
	if (r == 0 && state == WEIGHT_GROUP_STAGED)
		r = weight_group_policy(g, &policy);
	if (r == 0 && state == WEIGHT_GROUP_STAGED) {
		store_lock(s);
		g->preferred = policy.preferred;
		store_unlock(s);
	}
	if (r < 0)
		return r;
	if (state == WEIGHT_GROUP_PUBLISHED)
		tree_loss_look(g);
	*ret = take_ptr(g);
	return 0;
}

int tree_group_find(struct weight_store *s, const struct weight_identity *id,
		    struct weight_dir *lineage, struct weight_group **ret)
{
	enum weight_group_state state = WEIGHT_GROUP_STAGED;
	char hex[DIGEST_HEX_LEN + 1];
	struct weight_group *g;
	int r = weight_group_hex(id, hex);

	if (r < 0)
		return r;
	g = find_in_memory(s, hex);
	if (g) {
		*ret = g;
		return 0;
	}
	/* Else it could be published between the reading and the adding. */
	(void)pthread_mutex_lock(&s->namespace_lock);
	r = state_on_record(s, id, &state);
	if (r == 0)
		r = group_load(s, id, lineage, state, ret);
	(void)pthread_mutex_unlock(&s->namespace_lock);
	return r;
}

int tree_group_of(struct weight_store *s, const struct weight_identity *id,
		  struct weight_group **ret)
{
	cleanup(weight_dir_unref_cleanup) struct weight_dir *lineage = NULL;
	int r = tree_lineage_find(s, &id->lineage, false, &lineage);

	/* What is too long for a path has no directory. */
	if (r < 0 && r != -ENAMETOOLONG)
		return r;
	return tree_group_find(s, id, lineage, ret);
}

/* Parses a generation's name; what is none can't be there. */
static int identity_of_name(struct weight_dir *lineage, const char *name,
			    struct weight_identity **ret)
{
	uint64_t generation;

	if (lineage->depth != WEIGHT_TREE_LINEAGE_DEPTH ||
	    weight_generation_parse(name, strlen(name), &generation) < 0)
		return -ENOENT;
	return tree_lineage_of(lineage, generation, ret);
}

/* Whether the mount shows it, there or below .staging. */
static bool is_shown(struct weight_group *g, bool published)
{
	bool shown;

	store_lock(g->store);
	shown = published ? g->state == WEIGHT_GROUP_PUBLISHED :
			    !g->hidden && (g->state == WEIGHT_GROUP_STAGED ||
					   g->state == WEIGHT_GROUP_PUBLISHING);
	store_unlock(g->store);
	return shown;
}

static int find_by_name(struct weight_dir *lineage, const char *name,
			bool published, struct weight_group **ret)
{
	cleanup(weight_identity_free_cleanup) struct weight_identity *id = NULL;
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	int r = identity_of_name(lineage, name, &id);

	if (r == 0)
		r = tree_group_find(lineage->store, id, lineage, &g);
	if (r < 0)
		return r;
	if (!is_shown(g, published))
		return -ENOENT;
	*ret = take_ptr(g);
	return 0;
}

int weight_dir_staged(struct weight_dir *lineage, const char *name,
		      struct weight_group **ret)
{
	return find_by_name(lineage, name, false, ret);
}

int weight_dir_published(struct weight_dir *lineage, const char *name,
			 struct weight_group **ret)
{
	return find_by_name(lineage, name, true, ret);
}

/* ---- What users may ask of a group ---- */

const struct weight_identity *weight_group_identity(
	const struct weight_group *group)
{
	return group->identity;
}

enum weight_group_state weight_group_state(const struct weight_group *group)
{
	enum weight_group_state state;

	store_lock(group->store);
	state = group->state;
	store_unlock(group->store);
	return state;
}

struct weight_dir *weight_group_lineage(struct weight_group *group)
{
	return group->lineage;
}

int weight_group_root(struct weight_group *group, struct weight_file **ret)
{
	int fd = openat(group->files_fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : tree_file_adopt(group, fd, ret);
}

int tree_group_path(struct weight_group *g, struct buf *ret)
{
	enum weight_group_state state = weight_group_state(g);
	bool staged = state != WEIGHT_GROUP_PUBLISHED &&
		      state != WEIGHT_GROUP_REMOVED;
	int r = g->lineage ? tree_dir_path(g->lineage, ret) : -ENAMETOOLONG;

	if (r < 0)
		return r;
	return buf_printf(ret, "/%s%llu", staged ? ".staging/" : "",
			  (unsigned long long)g->identity->generation);
}

static int compare_holders_files(const void *a, const void *b)
{
	const struct holders_file *x = a;
	const struct holders_file *y = b;

	return x->ino < y->ino ? -1 : x->ino > y->ino;
}

/* The files of p, each once; paths stay those of p. */
static int list_files(const struct payload *p, struct holders_file **ret)
{
	struct holders_file *list = calloc(p->object_count + 1, sizeof(*list));

	if (!list)
		return -ENOMEM;
	for (size_t i = 0; i < p->object_count; i++) {
		const struct payload_entry *e = &p->entries[p->objects[i]];

		list[i] = (struct holders_file){ e->ino, e->path };
	}
	qsort(list, p->object_count, sizeof(*list), compare_holders_files);
	*ret = list;
	return 0;
}

/*
 * Describes who holds files of the group below the mountpoint. A file there has
 * the inode number of its backing file. A tree that can't be scanned is looked
 * for by its path alone.
 */
static int describe_holders(struct weight_group *g, const char *mountpoint,
			    dev_t dev, bool writers_only, struct buf *ret)
{
	cleanup(payload_free_cleanup) struct payload *payload = NULL;
	struct holders_files files = { .dev = dev };
	auto_free struct holders_file *list = NULL;
	struct buf below = BUF_INIT;
	int r = tree_group_path(g, &below);

	if (r == 0 && payload_scan(g->files_fd, &payload, NULL) == 0 &&
	    list_files(payload, &list) == 0) {
		files.entries = list;
		files.count = payload->object_count;
	}
	if (r == 0)
		r = holders_describe(mountpoint, below.data, writers_only,
				     &files, ret);
	buf_release(&below);
	return r;
}

void tree_group_who(struct weight_group *g, bool writers_only, struct buf *why)
{
	struct weight_store *s = g->store;
	auto_free char *mountpoint = NULL;
	struct buf who = BUF_INIT;
	dev_t dev;

	store_lock(s);
	if (s->mountpoint)
		mountpoint = strdup(s->mountpoint);
	dev = s->mount_dev;
	store_unlock(s);
	if (mountpoint &&
	    describe_holders(g, mountpoint, dev, writers_only, &who) > 0)
		(void)buf_printf(why, ": %s", who.data);
	buf_release(&who);
}

int weight_group_error(struct weight_group *group, struct buf *ret)
{
	int r;

	store_lock(group->store);
	r = buf_append(ret, group->error.data, group->error.len);
	store_unlock(group->store);
	return r;
}

void weight_group_set_error(struct weight_group *group, const char *sentence)
{
	struct buf fresh = BUF_INIT;
	struct buf old;

	if (buf_append(&fresh, sentence, strlen(sentence)) < 0)
		return;
	store_lock(group->store);
	old = group->error;
	group->error = fresh;
	store_unlock(group->store);
	buf_release(&old);
}

int weight_group_metadata(struct weight_group *group,
			  struct weight_metadata **ret)
{
	int r = wms_get(group->store->records, group->identity, ret);

	return r == -ENOENT ? -ENODATA : r;
}

/* ---- The gate of mutations ---- */

static void park_locked(struct weight_group *g, struct weight_parked *parked)
{
	parked->in = g;
	parked->work.next = g->parked;
	g->parked = &parked->work;
}

int weight_group_enter(struct weight_group *group, struct weight_parked *parked)
{
	int r = 0;

	store_lock(group->store);
	switch (group->state) {
	case WEIGHT_GROUP_STAGED:
		if (!group->awaits_base) {
			group->mutations++;
			group->tree_version++;
		} else if (group->base_error < 0) {
			r = group->base_error;
		} else if (parked->gives_up || group->store->gives_up) {
			r = -EINTR;
		} else {
			park_locked(group, parked);
			r = 1;
		}
		break;
	case WEIGHT_GROUP_PUBLISHING:
		park_locked(group, parked);
		r = 1;
		break;
	case WEIGHT_GROUP_PUBLISHED:
		r = -EROFS;
		break;
	case WEIGHT_GROUP_REMOVED:
	case WEIGHT_GROUP_ABORTED:
		r = -ENOENT;
		break;
	}
	store_unlock(group->store);
	return r;
}

void weight_group_leave(struct weight_group *group)
{
	store_lock(group->store);
	assert(group->mutations > 0);
	if (--group->mutations == 0)
		(void)pthread_cond_broadcast(&group->changed);
	store_unlock(group->store);
}

static void submit_locked(struct weight_store *s, struct work *work)
{
	container_of(work, struct weight_parked, work)->in = NULL;
	work->next = NULL;
	workers_submit(s->workers, work);
}

void tree_unpark_locked(struct weight_group *g)
{
	struct work *at = take_ptr(g->parked);

	while (at) {
		struct work *next = at->next;

		submit_locked(g->store, at);
		at = next;
	}
}

/* Whether what waits to enter waits for what is replaced. */
static bool awaits_base_locked(const struct weight_group *g)
{
	return g->awaits_base && g->state == WEIGHT_GROUP_STAGED;
}

void weight_parked_give_up(struct weight_store *store,
			   struct weight_parked *parked)
{
	struct work **at;

	store_lock(store);
	parked->gives_up = true;
	if (parked->in && awaits_base_locked(parked->in)) {
		at = &parked->in->parked;
		while (*at != &parked->work)
			at = &(*at)->next;
		*at = parked->work.next;
		submit_locked(store, &parked->work);
	}
	store_unlock(store);
}

void weight_tree_give_up(struct weight_store *store)
{
	struct map_entry e;
	size_t at;

	store_lock(store);
	store->gives_up = true;
	at = map_count(store->groups);
	while (map_next(store->groups, &at, &e))
		if (awaits_base_locked(e.value))
			tree_unpark_locked(e.value);
	store_unlock(store);
}

/* ---- Staging and aborting ---- */

static int write_file(int dirfd, const char *name, const struct buf *text)
{
	auto_fd int fd = openat(dirfd, name,
				O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = write(fd, text->data, text->len);
	if (n < 0)
		return -errno;
	return (size_t)n == text->len ? 0 : -ENOSPC;
}

static int identity_text(const struct weight_identity *id, struct buf *out)
{
	struct json_object o = JSON_OBJECT_INIT;

	json_put_text(&o, "tenant", id->lineage.tenant);
	json_put_text(&o, "namespace", id->lineage.name_space);
	json_put_text(&o, "resource", id->lineage.resource);
	json_put_text(&o, "revision", id->lineage.revision);
	json_put_u64(&o, "weight_generation", id->generation);
	return json_object_end(&o, out);
}

int tree_group_write_identity(int dirfd, const struct weight_identity *id)
{
	struct buf text = BUF_INIT;
	int r = identity_text(id, &text);

	if (r == 0)
		r = write_file(dirfd, TREE_IDENTITY_NAME, &text);
	buf_release(&text);
	return r;
}

int tree_group_mkdir(struct weight_store *s, const char *hex,
		     const struct weight_identity *id, mode_t mode,
		     const struct weight_caller *caller)
{
	char path[TREE_GROUP_PATH_LEN];
	auto_fd int dirfd = -1;
	int r;

	tree_group_dir(hex, path);
	path[2] = '\0';
	if (mkdirat(s->groups_fd, path, 0700) < 0 && errno != EEXIST)
		return -errno;
	path[2] = '/';
	if (mkdirat(s->groups_fd, path, 0700) < 0)
		return -errno;
	dirfd = openat(s->groups_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dirfd < 0)
		return -errno;
	r = tree_group_write_identity(dirfd, id);
	if (r < 0)
		return r;
	/* Its name comes last: what has it is staged, and whole. */
	if (mkdirat(dirfd, FILES_NEW_NAME, 0700) < 0 ||
	    fchownat(dirfd, FILES_NEW_NAME, caller->uid, caller->gid, 0) < 0 ||
	    fchmodat(dirfd, FILES_NEW_NAME, mode & 07777 & ~TREE_SET_ID_BITS,
		     0) < 0 ||
	    renameat(dirfd, FILES_NEW_NAME, dirfd, TREE_FILES_NAME) < 0)
		return -errno;
	return 0;
}

int tree_group_rmdir(struct weight_store *s, const char *hex)
{
	char path[TREE_GROUP_PATH_LEN];
	auto_fd int dirfd = -1;

	tree_group_dir(hex, path);
	dirfd = openat(s->groups_fd, path,
		       O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dirfd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (unlinkat(dirfd, TREE_FILES_NAME, AT_REMOVEDIR) < 0 &&
	    errno != ENOENT)
		return -errno;
	(void)unlinkat(dirfd, FILES_NEW_NAME, AT_REMOVEDIR);
	(void)unlinkat(dirfd, TREE_STAMPS_NAME ".tmp", 0);
	(void)unlinkat(dirfd, TREE_STAMPS_NAME, 0);
	(void)unlinkat(dirfd, TREE_MANIFEST_NAME ".tmp", 0);
	(void)unlinkat(dirfd, TREE_MANIFEST_NAME, 0);
	(void)unlinkat(dirfd, TREE_IMPORT_NAME, 0);
	(void)unlinkat(dirfd, TREE_IDENTITY_NAME, 0);
	if (unlinkat(s->groups_fd, path, AT_REMOVEDIR) < 0 && errno != ENOENT)
		return -errno;
	return 0;
}

int tree_group_sync_places(struct weight_group *g)
{
	char prefix[] = { g->hex[0], g->hex[1], '\0' };
	auto_fd int fd = -1;
	bool synced;
	int r;

	store_lock(g->store);
	synced = g->places_synced;
	store_unlock(g->store);
	if (synced)
		return 0;
	fd = openat(g->store->groups_fd, prefix,
		    O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0 || fsync(g->store->groups_fd) < 0)
		return -errno;
	metrics_add(METRIC_FSYNCS, 2 + WEIGHT_TREE_LINEAGE_DEPTH + 1);
	r = g->lineage ? tree_dir_sync(g->lineage) : 0;
	store_lock(g->store);
	g->places_synced = r == 0;
	store_unlock(g->store);
	return r;
}

/* The lineage may have been removed since the caller looked it up. */
static int lineage_check(const struct weight_dir *lineage)
{
	struct stat st;

	if (fstatat(lineage->fd, "", &st, AT_EMPTY_PATH) < 0)
		return -errno;
	return st.st_nlink > 0 ? 0 : -ENOENT;
}

static int stage_locked(struct weight_dir *lineage,
			const struct weight_identity *id, mode_t mode,
			const struct weight_caller *caller,
			struct weight_group **ret, struct buf *why)
{
	struct weight_store *s = lineage->store;
	char hex[DIGEST_HEX_LEN + 1];
	int r;

	if ((r = weight_group_hex(id, hex)) < 0 ||
	    (r = lineage_check(lineage)) < 0 ||
	    (r = wms_stage(s->records, id, clock_realtime_ms(), why)) < 0)
		return wms_say_no_room(s->records, r, why);
	r = tree_group_mkdir(s, hex, id, mode, caller);
	if (r == 0)
		r = group_load(s, id, lineage, WEIGHT_GROUP_STAGED, ret);
	if (r < 0) {
		(void)buf_printf(why, "making the group's directory: %s",
				 strerrordesc_np(-r));
		(void)tree_group_rmdir(s, hex);
		(void)wms_unstage(s->records, id);
	}
	return r;
}

int weight_dir_stage(struct weight_dir *lineage, const char *name, mode_t mode,
		     const struct weight_caller *caller,
		     struct weight_group **ret, struct buf *why)
{
	cleanup(weight_identity_free_cleanup) struct weight_identity *id = NULL;
	struct weight_store *s = lineage->store;
	bool named;
	int r;

	/* The lineage keeps its name from here on. */
	(void)pthread_mutex_lock(&s->namespace_lock);
	r = identity_of_name(lineage, name, &id);
	named = r != -ENOENT;
	if (r == 0)
		r = stage_locked(lineage, id, mode, caller, ret, why);
	(void)pthread_mutex_unlock(&s->namespace_lock);
	if (named)
		return r;
	(void)buf_printf(why,
			 "'%s' is no generation: it takes a whole "
			 "number from 1, without leading zeros",
			 name);
	return -EPERM;
}

/* Nobody enters from here on. -EBUSY: it is published, or changed just now. */
static int abort_begin(struct weight_group *g)
{
	int r = 0;

	store_lock(g->store);
	if (g->state != WEIGHT_GROUP_STAGED || g->mutations > 0)
		r = -EBUSY;
	else
		g->state = WEIGHT_GROUP_PUBLISHING;
	store_unlock(g->store);
	return r;
}

/* It is gone when r is 0, else as it was. */
static void abort_end(struct weight_group *g, int r)
{
	struct weight_store *s = g->store;

	store_lock(s);
	g->state = r == 0 ? WEIGHT_GROUP_ABORTED : WEIGHT_GROUP_STAGED;
	if (r == 0 && map_find(s->groups, g->hex, DIGEST_HEX_LEN) == g)
		(void)map_take(s->groups, g->hex, DIGEST_HEX_LEN);
	if (r == 0 || !g->awaits_base)
		tree_unpark_locked(g);
	(void)pthread_cond_broadcast(&g->changed);
	store_unlock(s);
	if (r == 0)
		tree_claim_unstaged(g);
}

/*
 * Its directories are empty. Files of it that somebody has open live on without
 * a name.
 */
static int abort_rmdir(struct weight_group *g)
{
	struct weight_store *s = g->store;
	int r = 0;

	/* It is gone already when the record was what failed last time. */
	if (unlinkat(g->dirfd, TREE_FILES_NAME, AT_REMOVEDIR) < 0 &&
	    errno != ENOENT)
		r = errno == EEXIST ? -ENOTEMPTY : -errno;
	if (r == 0)
		r = tree_group_rmdir(s, g->hex);
	return r < 0 ? r : wms_unstage(s->records, g->identity);
}

static int abort_locked(struct weight_group *g, struct buf *why)
{
	int r = abort_begin(g);

	if (r < 0) {
		(void)buf_printf(why, "it is being published");
		return r;
	}
	r = abort_rmdir(g);
	abort_end(g, r);
	return r;
}

int weight_dir_unstage(struct weight_dir *lineage, const char *name,
		       struct buf *why)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	struct weight_store *s = lineage->store;
	int r = weight_dir_staged(lineage, name, &g);

	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&s->namespace_lock);
	r = abort_locked(g, why);
	(void)pthread_mutex_unlock(&s->namespace_lock);
	return r;
}

/* ---- Staged trees that nobody wants ---- */

/* The latest change of anything from at/name on, in real time. */
static int last_change(int at, const char *name, unsigned depth,
		       uint64_t *latest_ms)
{
	cleanup(dir_close_cleanup) DIR *d = NULL;
	const char *entry = NULL;
	struct stat st;
	uint64_t ms;
	int r;

	if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	ms = (uint64_t)st.st_ctim.tv_sec * 1000 +
	     (uint64_t)st.st_ctim.tv_nsec / 1000000;
	if (ms > *latest_ms)
		*latest_ms = ms;
	if (!S_ISDIR(st.st_mode) || depth == 0)
		return 0;
	r = dir_open(at, name, &d);
	while (r == 0 && (r = dir_next(d, &entry)) == 0 && entry)
		r = last_change(dirfd(d), entry, depth - 1, latest_ms);
	return r;
}

/* Nobody enters any more. Whether nobody has anything of it, or had lately. */
static int check_idle(struct weight_group *g, uint64_t idle_ms)
{
	uint64_t now = clock_realtime_ms();
	uint64_t latest = 0;
	unsigned users = 0;
	int r;

	store_lock(g->store);
	for (struct list *at = g->files.next; at != &g->files; at = at->next) {
		struct weight_file *f =
			container_of(at, struct weight_file, in_group);

		users += f->readers + f->writers;
	}
	store_unlock(g->store);
	if (users > 0)
		return -EBUSY;
	r = last_change(g->dirfd, TREE_FILES_NAME, PAYLOAD_DEPTH_MAX, &latest);
	if (r < 0)
		return r;
	return now >= latest && now - latest >= idle_ms ? 0 : -EBUSY;
}

static int remove_all(struct weight_group *g)
{
	auto_fd int fd = openat(g->dirfd, TREE_FILES_NAME,
				O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool empty = false;
	int r = fd < 0 ? -errno : 0;

	while (r == 0 && !empty)
		r = payload_remove_batch(fd, WEIGHT_DELETE_BATCH_MAX, &empty,
					 NULL);
	return r;
}

int tree_group_expire(struct weight_group *g, uint64_t idle_ms)
{
	struct weight_store *s = g->store;
	int r;

	(void)pthread_mutex_lock(&s->namespace_lock);
	r = abort_begin(g);
	if (r == 0) {
		r = check_idle(g, idle_ms);
		if (r == 0)
			r = remove_all(g);
		if (r == 0)
			r = abort_rmdir(g);
		abort_end(g, r);
	}
	(void)pthread_mutex_unlock(&s->namespace_lock);
	if (r == 0 && s->removed)
		s->removed(s->removed_arg, g);
	return r;
}
