/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is derived from a published group: its tensors as files of their own,
 * digests on demand, and the texts of its service directory.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/derived.h"
#include "core/json.h"
#include "core/log.h"
#include "core/tree_priv.h"
#include "core/weight_key.h"

#define READ_BYTES ((size_t)1 << 20)
#define IDLE_MS 60000
#define KEY_LEN (DIGEST_HEX_LEN + 1 + 20 + 1)

struct weight_tensors {
	unsigned refs; /* [lock] */
	struct weight_store *store;
	struct manifest *manifest;
	struct weight_tensor *entries; /* by file_name */
	char *names;                   /* all file names, each with its NUL */
	size_t count;
};

/* ---- The manifest ---- */

int weight_group_manifest_open(struct weight_group *group, int *ret_fd)
{
	int fd;

	if (weight_group_state(group) != WEIGHT_GROUP_PUBLISHED)
		return -ENOENT;
	fd = openat(group->dirfd, TREE_MANIFEST_NAME,
		    O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

static int read_all(int fd, struct buf *ret)
{
	auto_free char *piece = malloc(READ_BYTES);
	ssize_t n;
	int r;

	if (!piece)
		return -ENOMEM;
	while ((n = read(fd, piece, READ_BYTES)) > 0) {
		r = buf_append(ret, piece, (size_t)n);
		if (r < 0)
			return r;
	}
	return n < 0 ? -errno : 0;
}

/* The manifest that the record names, or -EUCLEAN. */
static int read_manifest(struct weight_group *g, struct manifest **ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	struct buf text = BUF_INIT;
	struct digest digest;
	auto_fd int fd = -1;
	int r;

	if ((r = weight_group_metadata(g, &m)) < 0 ||
	    (r = weight_group_manifest_open(g, &fd)) < 0)
		return r;
	r = read_all(fd, &text);
	if (r == 0)
		r = manifest_digest(text.data, text.len, &digest);
	if (r == 0 && !digest_equal(&digest, &m->manifest.manifest_sha256))
		r = log_debug(-EUCLEAN,
			      "the manifest of '%s' is not the one "
			      "that was published",
			      g->hex);
	if (r == 0)
		r = manifest_parse(text.data, text.len, ret, NULL);
	buf_release(&text);
	return r == -EBADMSG ? -EUCLEAN : r;
}

/* ---- The table of tensors ---- */

static void tensors_free(struct weight_tensors *t)
{
	manifest_unref(t->manifest);
	free(t->entries);
	free(t->names);
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

/* Where each object's bytes are: the first of its file's names. */
static int paths_of_objects(const struct manifest *m, const char ***ret)
{
	const char **paths = calloc(m->object_count + 1, sizeof(*paths));

	if (!paths)
		return -ENOMEM;
	for (size_t i = 0; i < m->file_count; i++)
		if (m->files[i].kind == MANIFEST_REGULAR &&
		    !paths[m->files[i].object])
			paths[m->files[i].object] = m->files[i].path;
	*ret = paths;
	return 0;
}

static int fill_names(struct weight_tensors *t)
{
	const struct manifest *m = t->manifest;
	struct buf names = BUF_INIT;
	size_t at = 0;
	int r = 0;

	for (size_t i = 0; i < m->tensor_count && r == 0; i++) {
		char name[WEIGHT_PATH_NAME_MAX + 1];

		r = weight_tensor_name(m->tensors[i].id.data,
				       m->tensors[i].id.len, name);
		if (r == 0)
			r = buf_append(&names, name, strlen(name) + 1);
	}
	if (r < 0) {
		buf_release(&names);
		return r;
	}
	if (names.cap) {
		t->names = names.data;
		for (size_t i = 0; i < t->count; i++) {
			t->entries[i].file_name = t->names + at;
			at += strlen(t->names + at) + 1;
		}
	}
	return 0;
}

static int fill_entries(struct weight_tensors *t)
{
	const struct manifest *m = t->manifest;
	auto_free const char **paths = NULL;
	int r = paths_of_objects(m, &paths);

	if (r < 0)
		return r;
	for (size_t i = 0; i < t->count; i++) {
		const struct manifest_fragment *f =
			manifest_tensor_fragment(m, i, 0);
		struct weight_tensor *e = &t->entries[i];

		e->id = m->tensors[i].id.data;
		e->dtype = m->tensors[i].dtype;
		e->shape = m->tensors[i].global_shape;
		e->rank = m->tensors[i].rank;
		e->offset = f->object_offset;
		e->len = f->nbytes;
		e->path = f->object == MANIFEST_NO_OBJECT ? NULL :
							    paths[f->object];
		if (!e->path)
			return log_debug(-EUCLEAN, "no file for '%s'", e->id);
	}
	return fill_names(t);
}

static int tensors_new(struct weight_group *g, struct weight_tensors **ret)
{
	struct weight_tensors *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return -ENOMEM;
	t->refs = 1;
	t->store = g->store;
	r = read_manifest(g, &t->manifest);
	if (r == 0) {
		t->count = t->manifest->tensor_count;
		t->entries = calloc(t->count + 1, sizeof(*t->entries));
		r = t->entries ? fill_entries(t) : -ENOMEM;
	}
	if (r < 0) {
		tensors_free(t);
		return r;
	}
	qsort(t->entries, t->count, sizeof(*t->entries), compare_names);
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

/* Takes a hold as an open handle does; given back by keeper_drop_locked(). */
static int hold_group(struct weight_group *g)
{
	for (;;) {
		int r = 0;

		store_lock(g->store);
		while (g->removing)
			store_wait_locked(g->store, &g->changed, 1000);
		if (g->state != WEIGHT_GROUP_PUBLISHED)
			r = -ENOENT;
		else if (g->lease_id && !g->lease_busy &&
			 g->lease_expires_ms > clock_realtime_ms())
			keeper_hold_locked(g);
		else
			r = 1;
		store_unlock(g->store);
		if (r <= 0)
			return r;
		r = keeper_lease_take(g);
		if (r < 0)
			return r;
	}
}

static void drop_group(struct weight_group *g)
{
	store_lock(g->store);
	keeper_drop_locked(g);
	store_unlock(g->store);
}

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
	r = hold_group(group);
	if (r < 0)
		return r;
	(void)snprintf(key, sizeof(key), "%s/%zu", group->hex, i);
	r = open_source(group, &t->entries[i], &fd);
	if (r == 0)
		r = derived_open(group->store->derived, key, fd,
				 t->entries[i].offset, t->entries[i].len, ret);
	if (r < 0)
		drop_group(group);
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
		drop_group(group);
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

static bool is_interrupted(const struct weight_waiter *waiter)
{
	return waiter && waiter->interrupted &&
	       waiter->interrupted(waiter->arg);
}

static int hash_range(int fd, uint64_t offset, uint64_t len,
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
		if (is_interrupted(waiter))
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
	return hash_range(fd, 0, (uint64_t)st.st_size, waiter, ret);
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
	return hash_range(fd, t->entries[i].offset, t->entries[i].len, waiter,
			  ret);
}

int weight_file_digest(struct weight_file *file, struct digest *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		weight_file_group(file);
	cleanup(weight_tensors_unref_cleanup) struct weight_tensors *t = NULL;
	const struct manifest_file *f;
	struct buf path = BUF_INIT;
	int r;

	if (file->type != S_IFREG)
		return -ENODATA;
	r = weight_group_tensors(g, &t);
	if (r == 0)
		r = tree_file_path(file, &path);
	if (r == 0) {
		f = manifest_file_find(t->manifest, path.data);
		if (f && f->kind == MANIFEST_REGULAR)
			*ret = t->manifest->objects[f->object].digest;
		else
			r = -ENODATA;
	}
	buf_release(&path);
	return r;
}

/* One line as sha256sum(1) writes it, odd names escaped as it does. */
static int sum_line(const char *path, const struct digest *d, struct buf *ret)
{
	char hex[DIGEST_HEX_LEN + 1];
	bool odd = strpbrk(path, "\\\n\r") != NULL;
	int r;

	digest_to_hex(d, hex);
	r = buf_printf(ret, "%s%s  ", odd ? "\\" : "", hex);
	for (const char *p = path; *p && r == 0; p++) {
		if (*p == '\\')
			r = buf_append(ret, "\\\\", 2);
		else if (*p == '\n')
			r = buf_append(ret, "\\n", 2);
		else if (*p == '\r')
			r = buf_append(ret, "\\r", 2);
		else
			r = buf_append(ret, p, 1);
	}
	return r < 0 ? r : buf_append(ret, "\n", 1);
}

static int sum_files(struct weight_group *g, const struct manifest *m,
		     const struct weight_waiter *waiter, struct buf *ret)
{
	for (size_t i = 0; i < m->file_count; i++) {
		const struct manifest_file *f = &m->files[i];
		struct digest digest;
		auto_fd int fd = -1;
		int r;

		if (f->kind != MANIFEST_REGULAR)
			continue;
		fd = openat(g->files_fd, f->path,
			    O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			return -errno;
		if ((r = hash_range(fd, 0, f->size, waiter, &digest)) < 0 ||
		    (r = sum_line(f->path, &digest, ret)) < 0)
			return r;
	}
	return 0;
}

int weight_group_sha256sums(struct weight_group *group,
			    const struct weight_waiter *waiter, struct buf *ret)
{
	cleanup(weight_tensors_unref_cleanup) struct weight_tensors *t = NULL;
	struct weight_store *s = group->store;
	struct buf text = BUF_INIT;
	bool known;
	int r;

	store_lock(s);
	known = group->sha256sums != NULL;
	r = known ? buf_append(ret, group->sha256sums,
			       strlen(group->sha256sums)) :
		    0;
	store_unlock(s);
	if (known)
		return r;
	r = weight_group_tensors(group, &t);
	if (r == 0)
		r = sum_files(group, t->manifest, waiter, &text);
	if (r == 0)
		r = buf_append(ret, text.data, text.len);
	if (r == 0 && text.cap) {
		store_lock(s);
		if (!group->sha256sums)
			group->sha256sums = take_ptr(text.data);
		store_unlock(s);
		if (!text.data)
			text = (struct buf)BUF_INIT;
	}
	buf_release(&text);
	return r;
}

/* ---- metadata.json ---- */

struct text_field {
	const char *key;
	const char *value;
};

static int put_texts(struct buf *out, const struct text_field *fields,
		     size_t count)
{
	int r = 0;

	for (size_t i = 0; i < count && r == 0; i++) {
		r = buf_printf(out, "%s\"%s\":", out->len > 1 ? "," : "",
			       fields[i].key);
		if (r == 0)
			r = json_write_string(out, fields[i].value,
					      strlen(fields[i].value),
					      JSON_UTF8);
	}
	return r;
}

static int put_numbers(struct buf *out, const struct weight_metadata *m)
{
	const struct {
		const char *key;
		uint64_t value;
	} fields[] = {
		{ "weight_generation", m->identity.generation },
		{ "payload_count", m->manifest.payload_count },
		{ "logical_bytes", m->manifest.logical_bytes },
		{ "affinity_count", m->affinity_count },
		{ "metadata_generation", m->metadata_generation },
		{ "created_at_ms", m->created_at_ms },
		{ "updated_at_ms", m->updated_at_ms },
		{ "last_accessed_at_ms", m->last_accessed_at_ms },
	};
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(fields) && r == 0; i++)
		r = buf_printf(out, ",\"%s\":%llu", fields[i].key,
			       (unsigned long long)fields[i].value);
	if (r == 0 && m->operation_id)
		r = buf_printf(out, ",\"operation_id\":%llu",
			       (unsigned long long)m->operation_id);
	return r < 0 ? r :
		       buf_printf(out,
				  ",\"mixed_hot_ratio\":%.6g"
				  ",\"observed_hot_ratio\":%.6g"
				  ",\"durable\":%s}\n",
				  m->policy.mixed_hot_ratio,
				  m->observed_hot_ratio,
				  m->durable ? "true" : "false");
}

int weight_group_metadata_json(struct weight_group *group, struct buf *ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	char manifest[DIGEST_HEX_LEN + 1];
	char keys[DIGEST_HEX_LEN + 1];
	char affinity[DIGEST_HEX_LEN + 1];
	struct buf text = BUF_INIT;
	int r = weight_group_metadata(group, &m);

	if (r < 0)
		return r;
	digest_to_hex(&m->manifest.manifest_sha256, manifest);
	digest_to_hex(&m->manifest.payload_keys_sha256, keys);
	digest_to_hex(&m->affinity_digest, affinity);
	const struct text_field fields[] = {
		{ "tenant_id", m->identity.lineage.tenant },
		{ "namespace", m->identity.lineage.name_space },
		{ "resource_id", m->identity.lineage.resource },
		{ "revision", m->identity.lineage.revision },
		{ "manifest_key", m->manifest.manifest_key },
		{ "manifest_sha256", manifest },
		{ "payload_group_id", m->manifest.payload_group_id },
		{ "payload_keys_sha256", keys },
		{ "affinity_digest", affinity },
		{ "availability", weight_availability_name(m->availability) },
		{ "residency", weight_residency_name(m->residency) },
		{ "preferred_residency",
		  weight_residency_name(m->policy.preferred) },
		{ "migration_mode",
		  weight_migration_mode_name(m->policy.mode) },
	};
	r = buf_append(&text, "{", 1);
	if (r == 0)
		r = put_texts(&text, fields, ARRAY_LEN(fields));
	if (r == 0)
		r = put_numbers(&text, m);
	if (r == 0)
		r = buf_append(ret, text.data, text.len);
	buf_release(&text);
	return r;
}
