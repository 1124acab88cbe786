/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is derived from a published group: its tensors as files of their own,
 * and digests on demand.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/derived.h"
#include "core/log.h"
#include "core/tree_priv.h"
#include "core/weight_key.h"

#define READ_BYTES ((size_t)1 << 20)
#define IDLE_MS 60000
#define KEY_LEN (DIGEST_HEX_LEN + 1 + 20 + 1)

/* ---- The table of tensors ---- */

static void tensors_free(struct weight_tensors *t)
{
	arena_release(&t->strings);
	free(t->entries);
	free(t->files);
	free(t);
}

void weight_tensors_unref(struct weight_tensors *tensors)
{
	bool last;

	if (!tensors)
		return;
	store_lock(tensors->store);
	assert(tensors->refs > 0);
	last = --tensors->refs == 0;
	store_unlock(tensors->store);
	if (last)
		tensors_free(tensors);
}

static int compare_names(const void *a, const void *b)
{
	const struct weight_tensor *x = a;
	const struct weight_tensor *y = b;

	return strcmp(x->file_name, y->file_name);
}

/* NULL when there is no memory. */
static const void *keep(struct weight_tensors *t, const void *bytes, size_t len)
{
	void *copy = arena_alloc(&t->strings, len ? len : 1);

	if (copy && len)
		memcpy(copy, bytes, len);
	return copy;
}

static const char *keep_text(struct weight_tensors *t, const char *text)
{
	return keep(t, text, strlen(text) + 1);
}

static int fill_files(struct weight_tensors *t, const struct manifest *m)
{
	t->files = calloc(m->file_count + 1, sizeof(*t->files));
	if (!t->files)
		return -ENOMEM;
	for (size_t i = 0; i < m->file_count; i++) {
		const struct manifest_file *f = &m->files[i];
		struct listed_file *to = &t->files[t->file_count];

		if (f->kind != MANIFEST_REGULAR)
			continue;
		to->path = keep_text(t, f->path);
		to->size = f->size;
		to->digest = m->objects[f->object].digest;
		if (!to->path)
			return -ENOMEM;
		t->file_count++;
	}
	return 0;
}

/* Where each object's bytes are: the first of its file's names. */
static int paths_of_objects(const struct weight_tensors *t,
			    const struct manifest *m, const char ***ret)
{
	const char **paths = calloc(m->object_count + 1, sizeof(*paths));
	size_t at = 0;

	if (!paths)
		return -ENOMEM;
	for (size_t i = 0; i < m->file_count; i++) {
		if (m->files[i].kind != MANIFEST_REGULAR)
			continue;
		if (!paths[m->files[i].object])
			paths[m->files[i].object] = t->files[at].path;
		at++;
	}
	*ret = paths;
	return 0;
}

/* There are few types and many tensors: neighbours mostly share theirs. */
static const char *keep_dtype(struct weight_tensors *t, size_t i,
			      const char *dtype)
{
	if (i > 0 && strcmp(t->entries[i - 1].dtype, dtype) == 0)
		return t->entries[i - 1].dtype;
	return keep_text(t, dtype);
}

static int fill_entry(struct weight_tensors *t, const struct manifest *m,
		      size_t i)
{
	const struct manifest_tensor *from = &m->tensors[i];
	const struct manifest_fragment *f = manifest_tensor_fragment(m, i, 0);
	struct weight_tensor *to = &t->entries[i];
	char name[WEIGHT_PATH_NAME_MAX + 1];
	int r = weight_tensor_name(from->id.data, from->id.len, name);

	if (r < 0)
		return r;
	to->file_name = keep_text(t, name);
	to->id = strcmp(name, from->id.data) == 0 ? to->file_name :
						    keep_text(t, from->id.data);
	to->dtype = keep_dtype(t, i, from->dtype);
	to->shape = keep(t, from->global_shape,
			 from->rank * sizeof(*from->global_shape));
	to->rank = from->rank;
	to->offset = f->object_offset;
	to->len = f->nbytes;
	return to->file_name && to->id && to->dtype && to->shape ? 0 : -ENOMEM;
}

static int fill_entries(struct weight_tensors *t, const struct manifest *m)
{
	auto_free const char **paths = NULL;
	int r = paths_of_objects(t, m, &paths);

	if (r < 0)
		return r;
	t->entries = calloc(m->tensor_count + 1, sizeof(*t->entries));
	if (!t->entries)
		return -ENOMEM;
	for (size_t i = 0; i < m->tensor_count; i++) {
		const struct manifest_fragment *f =
			manifest_tensor_fragment(m, i, 0);

		r = fill_entry(t, m, i);
		if (r < 0)
			return r;
		if (f->object == MANIFEST_NO_OBJECT || !paths[f->object])
			return log_debug(-EUCLEAN, "no file for tensor %zu", i);
		t->entries[i].path = paths[f->object];
		t->count++;
	}
	qsort(t->entries, t->count, sizeof(*t->entries), compare_names);
	return 0;
}

static int tensors_new(struct weight_group *g, struct weight_tensors **ret)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	struct weight_tensors *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return -ENOMEM;
	t->refs = 1;
	t->store = g->store;
	if ((r = tree_manifest_read(g, &m)) < 0 || (r = fill_files(t, m)) < 0 ||
	    (r = fill_entries(t, m)) < 0) {
		tensors_free(t);
		return r;
	}
	*ret = t;
	return 0;
}

int weight_group_tensors_cached(struct weight_group *group,
				struct weight_tensors **ret)
{
	struct weight_store *s = group->store;
	int r = -EWOULDBLOCK;

	store_lock(s);
	if (group->state != WEIGHT_GROUP_PUBLISHED) {
		r = -ENODATA;
	} else if (group->tensors) {
		group->tensors->refs++;
		group->tensors_used_ms = clock_monotonic_ms();
		*ret = group->tensors;
		r = 0;
	}
	store_unlock(s);
	return r;
}

int weight_group_tensors(struct weight_group *group,
			 struct weight_tensors **ret)
{
	struct weight_store *s = group->store;
	struct weight_tensors *fresh = NULL;
	struct weight_tensors *drop = NULL;
	int r = weight_group_tensors_cached(group, ret);

	if (r != -EWOULDBLOCK)
		return r;
	r = tensors_new(group, &fresh);
	if (r < 0)
		return r;
	store_lock(s);
	if (group->tensors) { /* somebody else was faster */
		drop = fresh;
		fresh = group->tensors;
		fresh->refs++;
	} else {
		fresh->refs++;
		group->tensors = fresh;
		list_add_tail(&s->cached, &group->in_cached);
	}
	group->tensors_used_ms = clock_monotonic_ms();
	store_unlock(s);
	weight_tensors_unref(drop);
	*ret = fresh;
	return 0;
}

struct weight_tensors *tree_tensors_take_locked(struct weight_group *g)
{
	list_remove(&g->in_cached);
	return take_ptr(g->tensors);
}

struct weight_tensors *tree_tensors_idle_locked(struct weight_store *s,
						uint64_t now)
{
	for (struct list *at = s->cached.next; at != &s->cached;
	     at = at->next) {
		struct weight_group *g =
			container_of(at, struct weight_group, in_cached);

		if (g->tensors_used_ms + IDLE_MS <= now)
			return tree_tensors_take_locked(g);
	}
	return NULL;
}

size_t weight_tensors_count(const struct weight_tensors *tensors)
{
	return tensors->count;
}

const struct weight_tensor *weight_tensors_at(const struct weight_tensors *t,
					      size_t i)
{
	assert(i < t->count);
	return &t->entries[i];
}

int weight_tensors_find(const struct weight_tensors *tensors, const char *name,
			size_t *ret)
{
	const struct weight_tensor key = { .file_name = name };
	const struct weight_tensor *found =
		bsearch(&key, tensors->entries, tensors->count,
			sizeof(*tensors->entries), compare_names);

	if (!found)
		return -ENOENT;
	*ret = (size_t)(found - tensors->entries);
	return 0;
}

/* ---- Tensors as files ---- */

static int open_source(struct weight_group *g, const struct weight_tensor *t,
		       int *ret_fd)
{
	int fd =
		openat(g->files_fd, t->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

/* Bytes that may be others than those published are not copied. */
static int check_source(struct weight_group *g, const struct weight_tensor *t)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	int r = tree_file_at(g, t->path, &f);

	if (r == 0)
		r = tree_trust_open(f, true);
	return r < 0 ? r : weight_file_range_check(f, t->offset, t->len);
}

int weight_tensor_open(struct weight_group *group, size_t i,
		       struct derived_file **ret)
{
	cleanup(weight_tensors_unref_cleanup) struct weight_tensors *t = NULL;
	auto_fd int fd = -1;
	char key[KEY_LEN];
	int r = weight_group_tensors(group, &t);

	if (r < 0)
		return r == -ENODATA ? -ENOENT : r;
	if (i >= t->count)
		return -ENOENT;
	r = keeper_hold(group);
	if (r < 0)
		return r;
	(void)snprintf(key, sizeof(key), "%s/%zu", group->hex, i);
	r = check_source(group, &t->entries[i]);
	if (r == 0)
		r = open_source(group, &t->entries[i], &fd);
	if (r == 0)
		r = derived_open(group->store->derived, key, fd,
				 t->entries[i].offset, t->entries[i].len, ret);
	if (r < 0)
		keeper_release(group);
	return r;
}

int weight_tensor_fd(const struct derived_file *file)
{
	return derived_file_fd(file);
}

void weight_tensor_close(struct weight_group *group, struct derived_file *file)
{
	struct weight_store *s = group->store;
	struct tensor_hold *h = calloc(1, sizeof(*h));

	if (!h) { /* better a lease too short by a mapping than one for ever */
		derived_release(file);
		keeper_release(group);
		return;
	}
	store_lock(s);
	group->refs++;
	h->group = group;
	h->file = file;
	h->pause_ms = TREE_PROBE_MS_MIN;
	h->due_ms = clock_monotonic_ms() + h->pause_ms;
	list_init(&h->in_queue);
	list_add_tail(&s->holds, &h->in_queue);
	(void)pthread_cond_signal(&s->keeper_wakes);
	store_unlock(s);
}

/* ---- Digests on demand ---- */

int tree_hash_range(int fd, uint64_t offset, uint64_t len,
		    const struct weight_waiter *waiter, struct digest *ret)
{
	cleanup(digest_stream_free_cleanup) struct digest_stream *d = NULL;
	auto_free char *piece = malloc(READ_BYTES);
	int r = digest_stream_new(&d);

	if (r < 0)
		return r;
	if (!piece)
		return -ENOMEM;
	while (len > 0) {
		size_t want = len < READ_BYTES ? (size_t)len : READ_BYTES;
		ssize_t n = pread(fd, piece, want, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		r = digest_stream_add(d, piece, (size_t)n);
		if (r < 0)
			return r;
		offset += (uint64_t)n;
		len -= (uint64_t)n;
		if (waiter_interrupted(waiter))
			return -EINTR;
	}
	return digest_stream_finish(d, ret);
}

int weight_file_sha256(struct weight_file *file,
		       const struct weight_waiter *waiter, struct digest *ret)
{
	auto_fd int fd = -1;
	struct stat st;
	int r;

	if (file->type != S_IFREG)
		return -ENODATA;
	r = tree_file_reopen(file, O_RDONLY, &fd);
	if (r < 0)
		return r;
	if (fstat(fd, &st) < 0)
		return -errno;
	return tree_hash_range(fd, 0, (uint64_t)st.st_size, waiter, ret);
}

int weight_tensor_sha256(struct weight_group *group, size_t i,
			 const struct weight_waiter *waiter, struct digest *ret)
{
	cleanup(weight_tensors_unref_cleanup) struct weight_tensors *t = NULL;
	auto_fd int fd = -1;
	int r = weight_group_tensors(group, &t);

	if (r < 0)
		return r;
	if (i >= t->count)
		return -ENODATA;
	r = open_source(group, &t->entries[i], &fd);
	if (r < 0)
		return r;
	return tree_hash_range(fd, t->entries[i].offset, t->entries[i].len,
			       waiter, ret);
}

static int compare_paths(const void *a, const void *b)
{
	const struct listed_file *x = a;
	const struct listed_file *y = b;

	return strcmp(x->path, y->path);
}

int weight_file_digest(struct weight_file *file, struct digest *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		weight_file_group(file);
	cleanup(weight_tensors_unref_cleanup) struct weight_tensors *t = NULL;
	const struct listed_file *found = NULL;
	struct listed_file key = { 0 };
	struct buf path = BUF_INIT;
	int r;

	if (file->type != S_IFREG)
		return -ENODATA;
	if ((r = weight_group_tensors(g, &t)) == 0 &&
	    (r = tree_file_path(file, &path)) == 0) {
		key.path = path.data;
		found = bsearch(&key, t->files, t->file_count,
				sizeof(*t->files), compare_paths);
		r = found ? 0 : -ENODATA;
	}
	if (found)
		*ret = found->digest;
	buf_release(&path);
	return r;
}
