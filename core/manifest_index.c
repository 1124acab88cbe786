/* SPDX-License-Identifier: Apache-2.0 */
/* How the entries of a manifest are found: orders of indexes, bisected. */
#include <errno.h>
#include <stdlib.h>

#include "core/manifest.h"
#include "core/manifest_private.h"

typedef struct manifest_id name_fn(const struct manifest *m, uint32_t i);

static struct manifest_id tensor_name(const struct manifest *m, uint32_t i)
{
	return m->tensors[i].id;
}

static struct manifest_id file_name(const struct manifest *m, uint32_t i)
{
	return manifest_id_of(m->files[i].path);
}

static struct manifest_id object_name(const struct manifest *m, uint32_t i)
{
	return manifest_id_of(m->objects[i].key);
}

static struct manifest_id fragment_name(const struct manifest *m, uint32_t i)
{
	return manifest_id_of(m->fragments[i].fragment_id);
}

struct naming {
	const struct manifest *m;
	name_fn *name;
};

static int compare_names(const void *a, const void *b, void *arg)
{
	const struct naming *n = arg;
	struct manifest_id x = n->name(n->m, *(const uint32_t *)a);
	struct manifest_id y = n->name(n->m, *(const uint32_t *)b);

	return manifest_id_compare(&x, &y);
}

int manifest_order_new(size_t count, uint32_t **ret)
{
	uint32_t *order = malloc((count + 1) * sizeof(*order));

	if (!order)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++)
		order[i] = (uint32_t)i;
	*ret = order;
	return 0;
}

/* Sorts entries by name; no two may have the same one. */
static int order_by_name(const struct manifest *m, size_t count, name_fn *name,
			 const char *noun, uint32_t **ret, struct buf *why)
{
	struct naming n = { .m = m, .name = name };
	auto_free uint32_t *order = NULL;
	int r = manifest_order_new(count, &order);

	if (r < 0)
		return r;
	qsort_r(order, count, sizeof(*order), compare_names, &n);
	for (size_t i = 1; i < count; i++) {
		struct manifest_id id = name(m, order[i]);

		if (compare_names(&order[i - 1], &order[i], &n) == 0)
			return manifest_refuse(why, -EBADMSG, noun, &id,
					       "it is there twice");
	}
	*ret = take_ptr(order);
	return 0;
}

/* The index of the entry of that name, or MANIFEST_NONE. */
static uint32_t find_name(const struct manifest *m, const uint32_t *order,
			  size_t count, name_fn *name,
			  const struct manifest_id *wanted)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		struct manifest_id id = name(m, order[mid]);
		int c = manifest_id_compare(&id, wanted);

		if (c == 0)
			return order[mid];
		if (c < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return MANIFEST_NONE;
}

int manifest_index_names(struct manifest *m, struct buf *why)
{
	struct manifest_private *p = m->priv;
	int r;

	if (!p->tensor_order) {
		r = order_by_name(m, m->tensor_count, tensor_name, "tensor",
				  &p->tensor_order, why);
		if (r < 0)
			return r;
	}
	if (p->object_order)
		return 0;
	return order_by_name(m, m->object_count, object_name, "object",
			     &p->object_order, why);
}

int manifest_compare_u64s(const uint64_t *a, const uint64_t *b, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

int manifest_compare_boxes(const struct manifest_fragment *a,
			   const struct manifest_fragment *b, size_t rank)
{
	int c = manifest_compare_u64s(a->global_offset, b->global_offset, rank);

	return c ? c :
		   manifest_compare_u64s(a->local_shape, b->local_shape, rank);
}

static int compare_places(const void *a, const void *b, void *arg)
{
	const struct manifest *m = arg;
	const struct manifest_fragment *x = &m->fragments[*(const uint32_t *)a];
	const struct manifest_fragment *y = &m->fragments[*(const uint32_t *)b];

	if (x->tensor != y->tensor)
		return x->tensor < y->tensor ? -1 : 1;
	return manifest_compare_boxes(x, y, m->tensors[x->tensor].rank);
}

int manifest_index_files(struct manifest *m, struct buf *why)
{
	return order_by_name(m, m->file_count, file_name, "file",
			     &m->priv->file_order, why);
}

/* Whether no id is there twice. */
static int check_fragment_ids(const struct manifest *m, struct buf *why)
{
	auto_free uint32_t *order = NULL;

	return order_by_name(m, m->fragment_count, fragment_name, "fragment",
			     &order, why);
}

int manifest_index_fragments(struct manifest *m, struct buf *why)
{
	struct manifest_private *p = m->priv;
	size_t at = 0;
	int r;

	r = check_fragment_ids(m, why);
	if (r < 0)
		return r;
	r = manifest_order_new(m->fragment_count, &p->fragment_order);
	if (r < 0)
		return r;
	qsort_r(p->fragment_order, m->fragment_count, sizeof(uint32_t),
		compare_places, m);
	r = manifest_order_new(m->tensor_count + 1, &p->fragment_start);
	if (r < 0)
		return r;
	for (size_t t = 0; t <= m->tensor_count; t++) {
		while (at < m->fragment_count &&
		       m->fragments[p->fragment_order[at]].tensor < t)
			at++;
		p->fragment_start[t] = (uint32_t)at;
	}
	return 0;
}

const struct manifest_fragment *manifest_find_box(
	const struct manifest *m, uint32_t tensor,
	const struct manifest_fragment *like)
{
	size_t low = m->priv->fragment_start[tensor];
	size_t high = m->priv->fragment_start[tensor + 1];
	size_t rank = m->tensors[tensor].rank;

	if (rank != m->tensors[like->tensor].rank)
		return NULL;
	while (low < high) {
		size_t mid = low + (high - low) / 2;
		const struct manifest_fragment *f =
			&m->fragments[m->priv->fragment_order[mid]];
		int c = manifest_compare_boxes(f, like, rank);

		if (c == 0)
			return f;
		if (c < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return NULL;
}

uint32_t manifest_find_tensor(const struct manifest *m,
			      const struct manifest_id *id)
{
	return find_name(m, m->priv->tensor_order, m->tensor_count, tensor_name,
			 id);
}

uint32_t manifest_find_file(const struct manifest *m,
			    const struct manifest_id *path)
{
	return find_name(m, m->priv->file_order, m->file_count, file_name,
			 path);
}

uint32_t manifest_find_object(const struct manifest *m,
			      const struct manifest_id *key)
{
	return find_name(m, m->priv->object_order, m->object_count, object_name,
			 key);
}

const struct manifest_tensor *manifest_tensor_find(const struct manifest *m,
						   const char *id, size_t len)
{
	struct manifest_id wanted = { .data = id, .len = len };
	uint32_t i = manifest_find_tensor(m, &wanted);

	return i == MANIFEST_NONE ? NULL : &m->tensors[i];
}

const struct manifest_file *manifest_file_find(const struct manifest *m,
					       const char *path)
{
	struct manifest_id wanted = manifest_id_of(path);
	uint32_t i = manifest_find_file(m, &wanted);

	return i == MANIFEST_NONE ? NULL : &m->files[i];
}

const struct manifest_object *manifest_object_find(const struct manifest *m,
						   const char *key)
{
	struct manifest_id wanted = manifest_id_of(key);
	uint32_t i = manifest_find_object(m, &wanted);

	return i == MANIFEST_NONE ? NULL : &m->objects[i];
}

const struct manifest_object *manifest_object_of(
	const struct manifest *m, const struct manifest_fragment *f)
{
	return f->object == MANIFEST_NO_OBJECT ? NULL : &m->objects[f->object];
}

size_t manifest_tensor_fragment_count(const struct manifest *m, size_t tensor)
{
	const uint32_t *start = m->priv->fragment_start;

	return start[tensor + 1] - start[tensor];
}

const struct manifest_fragment *manifest_tensor_fragment(
	const struct manifest *m, size_t tensor, size_t i)
{
	const struct manifest_private *p = m->priv;

	return &m->fragments[p->fragment_order[p->fragment_start[tensor] + i]];
}
