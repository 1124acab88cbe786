/* SPDX-License-Identifier: Apache-2.0 */
#include "core/manifest.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "core/json.h"
#include "core/log.h"
#include "core/manifest_private.h"
#include "core/utf8.h"

#define GROUP_PREFIX "weight:"

/* The first allocation of a list. */
#define LIST_CAP_MIN 16

/* clang-format off */
const char *const manifest_semantics_words[3] = {
	[MANIFEST_SPLIT]      = "split",
	[MANIFEST_REPLICATED] = "replicated",
	[MANIFEST_OWNERSHIP]  = "ownership",
};
const char *const manifest_axis_words[MANIFEST_AXES_MAX] = {
	[MANIFEST_DP] = "dp",
	[MANIFEST_PP] = "pp",
	[MANIFEST_EP] = "ep",
	[MANIFEST_TP] = "tp",
	[MANIFEST_CP] = "cp",
};
const char *const manifest_kind_words[3] = {
	[MANIFEST_REGULAR]   = "regular",
	[MANIFEST_DIRECTORY] = "directory",
	[MANIFEST_SYMLINK]   = "symlink",
};
/* clang-format on */

int manifest_refuse(struct buf *why, int err, const char *noun,
		    const struct manifest_id *name, const char *what)
{
	if (why) {
		(void)buf_printf(why, "%s", noun);
		if (name) {
			(void)buf_append(why, " ", 1);
			json_show(why, name->data, name->len);
		}
		(void)buf_printf(why, ": %s", what);
	}
	return log_debug(err, "%s: %s", noun, what);
}

int manifest_new_empty(struct manifest **ret)
{
	auto_free struct manifest *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->priv = calloc(1, sizeof(*m->priv));
	if (!m->priv)
		return -ENOMEM;
	atomic_init(&m->priv->refs, 1);
	*ret = take_ptr(m);
	return 0;
}

int manifest_copy_text(struct manifest *m, const char *text, const char *what,
		       const char **ret, struct buf *why)
{
	size_t len = text ? strlen(text) : 0;
	const char *copy;

	if (len == 0)
		return manifest_refuse(why, -EBADMSG, what, NULL, "is empty");
	if (len > MANIFEST_STRING_MAX)
		return manifest_refuse(why, -EFBIG, what, NULL, "is too long");
	if (!utf8_valid(text, len))
		return manifest_refuse(why, -EBADMSG, what, NULL,
				       "is not valid UTF-8");
	copy = arena_copy(&m->priv->arena, text, len);
	if (!copy)
		return -ENOMEM;
	*ret = copy;
	return 0;
}

static bool is_managed_group(const char *group_id)
{
	struct digest hash;
	size_t prefix = strlen(GROUP_PREFIX);

	return strncmp(group_id, GROUP_PREFIX, prefix) == 0 &&
	       digest_from_hex(group_id + prefix, strlen(group_id) - prefix,
			       &hash) == 0;
}

int manifest_check_top(const struct manifest *m, struct buf *why)
{
	const struct manifest_id key = manifest_id_of(m->top.manifest_key);
	const struct manifest_id group = manifest_id_of(m->top.group_id);
	const struct manifest_id suffix = manifest_id_of(MANIFEST_KEY_SUFFIX);

	if (key.len <= suffix.len ||
	    strcmp(key.data + key.len - suffix.len, suffix.data) != 0)
		return manifest_refuse(why, -EBADMSG, "manifest_key", &key,
				       "does not end in '/manifest'");
	if (is_managed_group(group.data))
		return 0;
	if (group.len != key.len - suffix.len ||
	    memcmp(group.data, key.data, group.len) != 0)
		return manifest_refuse(why, -EBADMSG, "group_id", &group,
				       "is neither 'weight:' and a hash nor "
				       "the manifest_key without '/manifest'");
	return 0;
}

int manifest_new(const struct manifest_top *top, struct manifest **ret,
		 struct buf *why)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	int r;

	r = manifest_new_empty(&m);
	if (r < 0)
		return r;
	m->top.weight_generation = top->weight_generation;
	if ((r = manifest_copy_text(m, top->name_space, "namespace",
				    &m->top.name_space, why)) < 0 ||
	    (r = manifest_copy_text(m, top->resource_id, "resource_id",
				    &m->top.resource_id, why)) < 0 ||
	    (r = manifest_copy_text(m, top->revision, "revision",
				    &m->top.revision, why)) < 0 ||
	    (r = manifest_copy_text(m, top->group_id, "group_id",
				    &m->top.group_id, why)) < 0 ||
	    (r = manifest_copy_text(m, top->manifest_key, "manifest_key",
				    &m->top.manifest_key, why)) < 0 ||
	    (r = manifest_copy_text(m, top->created_at, "created_at",
				    &m->top.created_at, why)) < 0)
		return r;
	r = manifest_check_top(m, why);
	if (r < 0)
		return r;
	*ret = take_ptr(m);
	return 0;
}

struct manifest *manifest_ref(struct manifest *m)
{
	unsigned refs = atomic_fetch_add(&m->priv->refs, 1);

	assert(refs > 0);
	return m;
}

void manifest_unref(struct manifest *m)
{
	if (!m || atomic_fetch_sub(&m->priv->refs, 1) > 1)
		return;
	free(m->priv->fragment_start);
	free(m->priv->fragment_order);
	free(m->priv->object_order);
	free(m->priv->file_order);
	free(m->priv->tensor_order);
	free(m->objects);
	free(m->files);
	free(m->fragments);
	free(m->tensors);
	arena_release(&m->priv->arena);
	free(m->priv);
	free(m);
}

/*
 * Room for one more entry in *list, whose type the caller knows. Errors:
 * -EFBIG, -ENOMEM.
 */
static int list_reserve(void **list, size_t *cap, size_t count, size_t size,
			const char *noun, struct buf *why)
{
	size_t wanted = *cap ? 2 * *cap : LIST_CAP_MIN;
	void *grown;

	if (count == MANIFEST_ENTRIES_MAX)
		return manifest_refuse(why, -EFBIG, noun, NULL,
				       "the list is too long");
	if (count < *cap)
		return 0;
	grown = realloc(*list, wanted * size);
	if (!grown)
		return -ENOMEM;
	*list = grown;
	*cap = wanted;
	return 0;
}

/* Calls list_reserve() for a list of any type. */
#define LIST_RESERVE(list, cap, count, noun, why)                              \
	({                                                                     \
		void *list_ = (list);                                          \
		int r_ = list_reserve(&list_, (cap), (count), sizeof(*(list)), \
				      (noun), (why));                          \
		(list) = list_;                                                \
		r_;                                                            \
	})

/* Copies bytes into the arena; *ret is NULL for none. */
static int copy_array(struct manifest *m, const void *from, size_t size,
		      const void **ret)
{
	void *copy = NULL;

	if (size) {
		copy = arena_alloc(&m->priv->arena, size);
		if (!copy)
			return -ENOMEM;
		memcpy(copy, from, size);
	}
	*ret = copy;
	return 0;
}

#define COPY_ARRAY(m, from, count, to)                                         \
	({                                                                     \
		const void *copy_ = NULL;                                      \
		int r_ = copy_array((m), (from), (count) * sizeof(*(from)),    \
				    &copy_);                                   \
		(to) = copy_;                                                  \
		r_;                                                            \
	})

static int copy_id(struct manifest *m, const struct manifest_id *id,
		   struct manifest_id *ret, struct buf *why)
{
	const char *copy;

	if (id->len > MANIFEST_STRING_MAX)
		return manifest_refuse(why, -EFBIG, "tensor_id", NULL,
				       "is too long");
	if (!utf8_valid(id->data, id->len))
		return manifest_refuse(why, -EBADMSG, "tensor_id", id,
				       "is not valid UTF-8");
	copy = arena_copy(&m->priv->arena, id->data, id->len);
	if (!copy)
		return -ENOMEM;
	*ret = (struct manifest_id){ .data = copy, .len = id->len };
	return 0;
}

int manifest_volume(const uint64_t *shape, size_t rank, uint64_t *ret)
{
	uint64_t volume = 1;

	for (size_t i = 0; i < rank; i++)
		if (shape[i] == 0) {
			*ret = 0;
			return 0;
		}
	for (size_t i = 0; i < rank; i++)
		if (__builtin_mul_overflow(volume, shape[i], &volume))
			return -EOVERFLOW;
	*ret = volume;
	return 0;
}

/* Returns what is wrong with the axes, or NULL; *ret has the split dims. */
static const char *check_axes(const struct manifest_tensor *t, uint64_t *ret)
{
	uint64_t split = 0;

	for (size_t i = 0; i < t->axis_count; i++) {
		const struct manifest_axis *a = &t->axes[i];

		if (a->semantics > MANIFEST_OWNERSHIP || a->kind > MANIFEST_CP)
			return "a parallel axis is of no known kind";
		if (i && a[-1].kind >= a->kind)
			return "parallel_axes are not in the order dp, pp, ep, "
			       "tp, cp, or one is there twice";
		if (a->semantics != MANIFEST_SPLIT) {
			if (a->dim)
				return "an axis that is not split has a dim";
			continue;
		}
		if (a->kind < MANIFEST_EP)
			return "dp and pp can't split a tensor";
		if (a->dim >= t->rank)
			return "a split axis has a dim beyond the shape";
		if (a->kind == MANIFEST_EP && a->dim != 0)
			return "ep can split dim 0 only";
		if (a->kind == MANIFEST_EP && t->expert_id >= 0)
			return "a tensor with an expert_id can't be split "
			       "by ep";
		if (split & UINT64_C(1) << a->dim)
			return "two axes split the same dim";
		split |= UINT64_C(1) << a->dim;
	}
	*ret = split;
	return NULL;
}

static const char *check_tensor(const struct manifest_tensor *t)
{
	uint64_t elements, bytes, split = 0;
	const char *wrong;

	if (t->rank > MANIFEST_RANK_MAX)
		return "the shape has too many dimensions";
	if (t->axis_count > MANIFEST_AXES_MAX)
		return "too many parallel axes";
	if (t->itemsize == 0)
		return "itemsize is 0";
	if (t->layer_id < MANIFEST_NO_ID || t->expert_id < MANIFEST_NO_ID)
		return "layer_id or expert_id is negative";
	if (manifest_volume(t->global_shape, t->rank, &elements) < 0 ||
	    __builtin_mul_overflow(elements, t->itemsize, &bytes))
		return "its size in bytes does not fit 64 bits";
	wrong = check_axes(t, &split);
	if (wrong)
		return wrong;
	for (size_t i = 0; i < t->shard_dim_count; i++) {
		uint32_t dim = t->shard_dims[i];

		if (dim >= t->rank || !(split & UINT64_C(1) << dim) ||
		    (i && t->shard_dims[i - 1] >= dim))
			return "shard_dims are not the sorted dims of the "
			       "split axes";
	}
	if (t->shard_dim_count != (size_t)__builtin_popcountll(split))
		return "shard_dims are not the sorted dims of the split axes";
	return NULL;
}

/* Most tensors share a few texts: takes that of the last one if equal. */
static int copy_shared_text(struct manifest *m, const char *text,
			    const char *last, const char *what,
			    const char **ret, struct buf *why)
{
	if (text && last && strcmp(text, last) == 0) {
		*ret = last;
		return 0;
	}
	return manifest_copy_text(m, text, what, ret, why);
}

int manifest_add_tensor(struct manifest *m, const struct manifest_tensor *t,
			struct buf *why)
{
	const struct manifest_tensor *last =
		m->tensor_count ? &m->tensors[m->tensor_count - 1] : NULL;
	struct manifest_tensor copy = *t;
	const char *wrong = check_tensor(t);
	int r;

	assert(!m->priv->finished);
	if (wrong)
		return manifest_refuse(why, -EBADMSG, "tensor", &t->id, wrong);
	if ((r = copy_id(m, &t->id, &copy.id, why)) < 0 ||
	    (r = copy_shared_text(m, t->dtype, last ? last->dtype : NULL,
				  "dtype", &copy.dtype, why)) < 0 ||
	    (r = copy_shared_text(m, t->layout_fingerprint,
				  last ? last->layout_fingerprint : NULL,
				  "layout_fingerprint",
				  &copy.layout_fingerprint, why)) < 0 ||
	    (r = COPY_ARRAY(m, t->global_shape, t->rank, copy.global_shape)) <
		    0 ||
	    (r = COPY_ARRAY(m, t->shard_dims, t->shard_dim_count,
			    copy.shard_dims)) < 0 ||
	    (r = COPY_ARRAY(m, t->axes, t->axis_count, copy.axes)) < 0 ||
	    (r = LIST_RESERVE(m->tensors, &m->priv->tensor_cap, m->tensor_count,
			      "tensors", why)) < 0)
		return r;
	m->tensors[m->tensor_count++] = copy;
	return 0;
}

static int copy_aliases(struct manifest *m, const struct manifest_fragment *f,
			const struct manifest_id **ret, struct buf *why)
{
	struct manifest_id *copy;
	int r;

	if (f->alias_count > MANIFEST_ALIASES_MAX)
		return manifest_refuse(why, -EFBIG, "aliases", NULL,
				       "the list is too long");
	if (f->alias_count == 1)
		return manifest_refuse(why, -EBADMSG, "aliases", &f->aliases[0],
				       "a group has at least two members");
	copy = arena_alloc(&m->priv->arena, f->alias_count * sizeof(*copy));
	if (!copy)
		return -ENOMEM;
	for (size_t i = 0; i < f->alias_count; i++) {
		r = copy_id(m, &f->aliases[i], &copy[i], why);
		if (r < 0)
			return r;
		if (i && manifest_id_compare(&copy[i - 1], &copy[i]) >= 0)
			return manifest_refuse(why, -EBADMSG, "aliases",
					       &copy[i],
					       "not sorted, or there twice");
	}
	*ret = copy;
	return 0;
}

int manifest_put_fragment(struct manifest *m, const struct manifest_fragment *f,
			  size_t rank, struct buf *why)
{
	const struct manifest_fragment *last =
		m->fragment_count ? &m->fragments[m->fragment_count - 1] : NULL;
	struct manifest_fragment copy = *f;
	int r;

	assert(!m->priv->finished);
	copy.aliases = NULL;
	copy.object = MANIFEST_NO_OBJECT;
	if ((r = manifest_copy_text(m, f->fragment_id, "fragment_id",
				    &copy.fragment_id, why)) < 0 ||
	    (r = copy_shared_text(m, f->object_key,
				  last ? last->object_key : NULL, "object_key",
				  &copy.object_key, why)) < 0 ||
	    (r = COPY_ARRAY(m, f->global_offset, rank, copy.global_offset)) <
		    0 ||
	    (r = COPY_ARRAY(m, f->local_shape, rank, copy.local_shape)) < 0 ||
	    (f->alias_count &&
	     (r = copy_aliases(m, f, &copy.aliases, why)) < 0) ||
	    (r = LIST_RESERVE(m->fragments, &m->priv->fragment_cap,
			      m->fragment_count, "fragments", why)) < 0)
		return r;
	m->fragments[m->fragment_count++] = copy;
	return 0;
}

int manifest_add_fragment(struct manifest *m, const struct manifest_fragment *f,
			  struct buf *why)
{
	if (f->tensor >= m->tensor_count)
		return manifest_refuse(why, -EBADMSG, "fragment", NULL,
				       "its tensor has not been added");
	return manifest_put_fragment(m, f, m->tensors[f->tensor].rank, why);
}

/* What is wrong with a path, or NULL. */
static const char *check_path(const char *path)
{
	size_t len = path ? strlen(path) : 0;

	if (len == 0 || len > MANIFEST_PATH_MAX)
		return "the path is empty or too long";
	for (const char *at = path;; at++) {
		size_t part = strcspn(at, "/");

		if (part == 0 || part > MANIFEST_NAME_MAX ||
		    (part == 1 && at[0] == '.') ||
		    (part == 2 && at[0] == '.' && at[1] == '.'))
			return "a part of the path is empty, '.', '..' or too "
			       "long";
		at += part;
		if (!*at)
			return NULL;
	}
}

static const char *check_file(const struct manifest_file *f)
{
	const char *wrong = check_path(f->path);
	size_t target = f->target ? strlen(f->target) : 0;

	if (wrong)
		return wrong;
	if (f->kind > MANIFEST_SYMLINK)
		return "is of no known kind";
	if (f->mode > MANIFEST_MODE_MAX)
		return "mode has more than permission bits";
	if (f->mtime_nsec > MANIFEST_NSEC_MAX)
		return "mtime has a second of nanoseconds or more";
	if ((f->kind == MANIFEST_SYMLINK) != (target > 0))
		return "a symbolic link, and nothing else, has a target";
	if (target > MANIFEST_PATH_MAX)
		return "the target is too long";
	if ((f->kind == MANIFEST_REGULAR) != (f->object != MANIFEST_NO_OBJECT))
		return "a regular file, and nothing else, has an object";
	if (f->kind != MANIFEST_REGULAR && f->size != target)
		return "the size is not that of its kind";
	return NULL;
}

int manifest_add_file(struct manifest *m, const struct manifest_file *f,
		      struct buf *why)
{
	struct manifest_id path = manifest_id_of(f->path ? f->path : "");
	const char *wrong = check_file(f);
	struct manifest_file copy = *f;
	int r;

	assert(!m->priv->finished);
	if (wrong)
		return manifest_refuse(why, -EBADMSG, "file", &path, wrong);
	copy.target = NULL;
	if ((r = manifest_copy_text(m, f->path, "path", &copy.path, why)) < 0 ||
	    (f->target && *f->target &&
	     (r = manifest_copy_text(m, f->target, "target", &copy.target,
				     why)) < 0) ||
	    (r = LIST_RESERVE(m->files, &m->priv->file_cap, m->file_count,
			      "files", why)) < 0)
		return r;
	m->has_files = true;
	m->files[m->file_count++] = copy;
	return 0;
}

static int check_object(const struct manifest_object *o, struct buf *why)
{
	struct manifest_id key = manifest_id_of(o->key ? o->key : "");
	struct digest root;
	int r;

	if (o->chunk_count > MANIFEST_CHUNKS_MAX)
		return manifest_refuse(why, -EFBIG, "object", &key,
				       "it has too many chunks");
	if (o->chunk_size == 0)
		return manifest_refuse(why, -EBADMSG, "object", &key,
				       "chunk_size is 0");
	if (o->chunk_count !=
	    o->size / o->chunk_size + (o->size % o->chunk_size != 0))
		return manifest_refuse(why, -EBADMSG, "object", &key,
				       "the number of chunks does not fit its "
				       "size");
	r = digest_root(o->chunks, o->chunk_count, &root);
	if (r < 0)
		return r;
	if (!digest_equal(&root, &o->digest))
		return manifest_refuse(why, -EBADMSG, "object", &key,
				       "the digest is not that of its chunks");
	return 0;
}

int manifest_add_object(struct manifest *m, const struct manifest_object *o,
			struct buf *why)
{
	struct manifest_object copy = *o;
	int r;

	assert(!m->priv->finished);
	if ((r = check_object(o, why)) < 0 ||
	    (r = manifest_copy_text(m, o->key, "key", &copy.key, why)) < 0 ||
	    (r = COPY_ARRAY(m, o->chunks, o->chunk_count, copy.chunks)) < 0 ||
	    (r = LIST_RESERVE(m->objects, &m->priv->object_cap, m->object_count,
			      "objects", why)) < 0)
		return r;
	m->has_objects = true;
	m->objects[m->object_count++] = copy;
	return 0;
}

int manifest_digest(const char *text, size_t len, struct digest *ret)
{
	return digest_of(text, len, ret);
}
