/* SPDX-License-Identifier: Apache-2.0 */
/* The rules between entries of a manifest. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "core/manifest.h"
#include "core/manifest_private.h"

/* Whether a key is one of a payload of this revision. */
static bool is_payload_key(const struct manifest *m, const char *key)
{
	size_t base = strlen(m->top.manifest_key) - strlen(MANIFEST_KEY_SUFFIX);

	return strncmp(key, m->top.manifest_key, base) == 0 &&
	       strncmp(key + base, MANIFEST_PAYLOAD,
		       strlen(MANIFEST_PAYLOAD)) == 0;
}

static const char not_payload[] =
	"the key does not start with the manifest_key without '/manifest' "
	"and '/payload/'";

/* What is wrong with the box and size of a fragment, or NULL. */
static const char *check_geometry(const struct manifest_tensor *t,
				  const struct manifest_fragment *f)
{
	uint64_t end, elements, bytes;

	for (size_t i = 0; i < t->rank; i++)
		if (__builtin_add_overflow(f->global_offset[i],
					   f->local_shape[i], &end) ||
		    end > t->global_shape[i])
			return "it reaches beyond the shape of its tensor";
	if (manifest_volume(f->local_shape, t->rank, &elements) < 0 ||
	    __builtin_mul_overflow(elements, t->itemsize, &bytes) ||
	    bytes != f->nbytes)
		return "nbytes is not its shape times itemsize";
	if (__builtin_add_overflow(f->object_offset, f->nbytes, &end))
		return "its range in the object does not fit 64 bits";
	return NULL;
}

static bool has_alias(const struct manifest_fragment *f,
		      const struct manifest_id *id)
{
	size_t low = 0, high = f->alias_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int c = manifest_id_compare(&f->aliases[mid], id);

		if (c == 0)
			return true;
		if (c < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return false;
}

static const char *check_fragment(struct manifest *m,
				  struct manifest_fragment *f)
{
	const struct manifest_tensor *t = &m->tensors[f->tensor];
	struct manifest_id key = manifest_id_of(f->object_key);
	const char *wrong = check_geometry(t, f);

	if (wrong)
		return wrong;
	if (!is_payload_key(m, f->object_key))
		return not_payload;
	if (f->alias_count && !has_alias(f, &t->id))
		return "its tensor is not in its alias group";
	f->object = MANIFEST_NO_OBJECT;
	if (!m->has_objects)
		return NULL;
	f->object = manifest_find_object(m, &key);
	if (f->object == MANIFEST_NO_OBJECT)
		return "its object is not in objects";
	if (f->object_offset + f->nbytes > m->objects[f->object].size)
		return "its range reaches beyond the end of its object";
	return NULL;
}

static int check_fragments(struct manifest *m, struct buf *why)
{
	for (size_t i = 0; i < m->fragment_count; i++) {
		struct manifest_fragment *f = &m->fragments[i];
		struct manifest_id id = manifest_id_of(f->fragment_id);
		const char *wrong = check_fragment(m, f);

		if (wrong)
			return manifest_refuse(why, -EBADMSG, "fragment", &id,
					       wrong);
	}
	return 0;
}

/* The fragments of one tensor, while it is checked that they tile it. */
struct tiling {
	const struct manifest *m;
	const struct manifest_tensor *t;
	uint32_t *order; /* sorted along dim */
	size_t count;
	uint32_t dim;
};

static const struct manifest_fragment *tile(const struct tiling *ti, size_t i)
{
	return &ti->m->fragments[ti->order[i]];
}

static int compare_along(const void *a, const void *b, void *arg)
{
	const struct tiling *ti = arg;
	uint64_t x =
		ti->m->fragments[*(const uint32_t *)a].global_offset[ti->dim];
	uint64_t y =
		ti->m->fragments[*(const uint32_t *)b].global_offset[ti->dim];

	return (x > y) - (x < y);
}

/* Sorts along the dimension in which the fewest fragments start together. */
static void sort_along_best(struct tiling *ti)
{
	size_t most = 0;
	uint32_t best = 0;

	for (ti->dim = 0; ti->dim < ti->t->rank; ti->dim++) {
		size_t distinct = 1;

		qsort_r(ti->order, ti->count, sizeof(*ti->order), compare_along,
			ti);
		for (size_t i = 1; i < ti->count; i++)
			distinct += tile(ti, i)->global_offset[ti->dim] !=
				    tile(ti, i - 1)->global_offset[ti->dim];
		if (distinct > most) {
			most = distinct;
			best = ti->dim;
		}
	}
	ti->dim = best;
	qsort_r(ti->order, ti->count, sizeof(*ti->order), compare_along, ti);
}

static bool boxes_overlap(const struct manifest_fragment *a,
			  const struct manifest_fragment *b, size_t rank)
{
	for (size_t i = 0; i < rank; i++) {
		uint64_t a_end = a->global_offset[i] + a->local_shape[i];
		uint64_t b_end = b->global_offset[i] + b->local_shape[i];

		if (a_end <= b->global_offset[i] ||
		    b_end <= a->global_offset[i] || a->local_shape[i] == 0 ||
		    b->local_shape[i] == 0)
			return false;
	}
	return true;
}

static int check_overlap(struct tiling *ti, struct buf *why)
{
	size_t pairs = 0;

	for (size_t i = 0; i < ti->count; i++) {
		const struct manifest_fragment *a = tile(ti, i);
		uint64_t end =
			a->global_offset[ti->dim] + a->local_shape[ti->dim];

		for (size_t j = i + 1;
		     j < ti->count && tile(ti, j)->global_offset[ti->dim] < end;
		     j++) {
			if (++pairs > MANIFEST_PAIRS_MAX)
				return manifest_refuse(
					why, -EFBIG, "tensor", &ti->t->id,
					"its fragments are too many to check");
			if (boxes_overlap(a, tile(ti, j), ti->t->rank))
				return manifest_refuse(
					why, -EBADMSG, "tensor", &ti->t->id,
					"two of its fragments overlap");
		}
	}
	return 0;
}

/* Whether boxes that don't overlap fill the whole tensor, is all in volumes. */
static int check_cover(const struct tiling *ti, struct buf *why)
{
	uint64_t whole = 0, sum = 0, part = 0;

	if (ti->count == 0)
		return manifest_refuse(why, -EBADMSG, "tensor", &ti->t->id,
				       "it has no fragment");
	for (size_t i = 1; i < ti->count; i++)
		if (manifest_compare_boxes(tile(ti, i - 1), tile(ti, i),
					   ti->t->rank) == 0)
			return manifest_refuse(why, -EBADMSG, "tensor",
					       &ti->t->id,
					       "two of its fragments have the "
					       "same place and shape");
	/* None of these overflows: the tensor's size fits, boxes are inside. */
	(void)manifest_volume(ti->t->global_shape, ti->t->rank, &whole);
	for (size_t i = 0; i < ti->count; i++) {
		(void)manifest_volume(tile(ti, i)->local_shape, ti->t->rank,
				      &part);
		if (__builtin_add_overflow(sum, part, &sum))
			sum = UINT64_MAX;
		if (sum > whole)
			return manifest_refuse(why, -EBADMSG, "tensor",
					       &ti->t->id,
					       "its fragments overlap");
	}
	if (sum != whole)
		return manifest_refuse(why, -EBADMSG, "tensor", &ti->t->id,
				       "its fragments don't cover it");
	return 0;
}

static int check_tiling(const struct manifest *m, size_t tensor,
			struct buf *why)
{
	const uint32_t *start = m->priv->fragment_start;
	struct tiling ti = {
		.m = m,
		.t = &m->tensors[tensor],
		.order = m->priv->fragment_order + start[tensor],
		.count = start[tensor + 1] - start[tensor],
	};
	auto_free uint32_t *sorted = NULL;
	int r;

	r = check_cover(&ti, why);
	if (r < 0 || ti.count < 2)
		return r;
	sorted = malloc(ti.count * sizeof(*sorted));
	if (!sorted)
		return -ENOMEM;
	memcpy(sorted, ti.order, ti.count * sizeof(*sorted));
	ti.order = sorted;
	sort_along_best(&ti);
	return check_overlap(&ti, why);
}

static bool same_group(const struct manifest_fragment *a,
		       const struct manifest_fragment *b)
{
	if (a->alias_count != b->alias_count)
		return false;
	for (size_t i = 0; i < a->alias_count; i++)
		if (manifest_id_compare(&a->aliases[i], &b->aliases[i]) != 0)
			return false;
	return true;
}

/* Whether two tensors are the same but for their ids. */
static bool same_descriptor(const struct manifest_tensor *a,
			    const struct manifest_tensor *b)
{
	if (a->rank != b->rank || a->itemsize != b->itemsize ||
	    a->layer_id != b->layer_id || a->expert_id != b->expert_id ||
	    a->axis_count != b->axis_count ||
	    manifest_compare_u64s(a->global_shape, b->global_shape, a->rank) !=
		    0 ||
	    strcmp(a->dtype, b->dtype) != 0 ||
	    strcmp(a->layout_fingerprint, b->layout_fingerprint) != 0)
		return false;
	/* The axes give the shard dims. */
	for (size_t i = 0; i < a->axis_count; i++)
		if (a->axes[i].semantics != b->axes[i].semantics ||
		    a->axes[i].kind != b->axes[i].kind ||
		    a->axes[i].dim != b->axes[i].dim)
			return false;
	return true;
}

/*
 * Compares whole groups with the fragment of the first member only, which in
 * turn looks whether each member is there: linear in the size of the text.
 */
static const char *check_aliases(const struct manifest *m,
				 const struct manifest_fragment *f)
{
	const struct manifest_tensor *own = &m->tensors[f->tensor];
	bool leads = manifest_id_compare(&f->aliases[0], &own->id) == 0;

	for (size_t i = 0; i < (leads ? f->alias_count : 1); i++) {
		uint32_t tensor = manifest_find_tensor(m, &f->aliases[i]);
		const struct manifest_fragment *twin;

		if (tensor == MANIFEST_NONE)
			return "its alias group names a tensor that does not "
			       "exist";
		if (!same_descriptor(own, &m->tensors[tensor]))
			return "tensors of its alias group differ in more "
			       "than their id";
		twin = manifest_find_box(m, tensor, f);
		if (!twin || twin->alias_count != f->alias_count ||
		    manifest_id_compare(&twin->aliases[0], &f->aliases[0]) !=
			    0 ||
		    (!leads && !same_group(twin, f)))
			return "its alias group is not complete";
	}
	return NULL;
}

static int compare_ranges(const void *a, const void *b, void *arg)
{
	const struct manifest *m = arg;
	const struct manifest_fragment *x = &m->fragments[*(const uint32_t *)a];
	const struct manifest_fragment *y = &m->fragments[*(const uint32_t *)b];
	int c = x->object_key == y->object_key ?
			0 :
			strcmp(x->object_key, y->object_key);

	if (c)
		return c;
	if (x->object_offset != y->object_offset)
		return x->object_offset < y->object_offset ? -1 : 1;
	return (x->nbytes > y->nbytes) - (x->nbytes < y->nbytes);
}

/* The one way to share bytes: members of one group, same box, same range. */
static bool may_share(const struct manifest *m,
		      const struct manifest_fragment *a,
		      const struct manifest_fragment *b)
{
	size_t rank = m->tensors[a->tensor].rank;

	return a->alias_count && a->tensor != b->tensor &&
	       a->object_offset == b->object_offset && a->nbytes == b->nbytes &&
	       same_group(a, b) && rank == m->tensors[b->tensor].rank &&
	       manifest_compare_boxes(a, b, rank) == 0;
}

static int check_ranges(const struct manifest *m, struct buf *why)
{
	const struct manifest_fragment *last = NULL; /* that is not empty */
	auto_free uint32_t *order = NULL;
	int r = manifest_order_new(m->fragment_count, &order);

	if (r < 0)
		return r;
	qsort_r(order, m->fragment_count, sizeof(*order), compare_ranges,
		(void *)m);
	for (size_t i = 0; i < m->fragment_count; i++) {
		const struct manifest_fragment *f = &m->fragments[order[i]];
		struct manifest_id id = manifest_id_of(f->fragment_id);

		if (f->nbytes == 0)
			continue;
		if (last && strcmp(last->object_key, f->object_key) == 0 &&
		    f->object_offset < last->object_offset + last->nbytes &&
		    !may_share(m, last, f))
			return manifest_refuse(why, -EBADMSG, "fragment", &id,
					       "its range in the object "
					       "overlaps another one");
		last = f;
	}
	return 0;
}

static int check_tensors(const struct manifest *m, struct buf *why)
{
	for (size_t i = 0; i < m->tensor_count; i++) {
		int r = check_tiling(m, i, why);

		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < m->fragment_count; i++) {
		const struct manifest_fragment *f = &m->fragments[i];
		struct manifest_id id = manifest_id_of(f->fragment_id);
		const char *wrong = f->alias_count ? check_aliases(m, f) : NULL;

		if (wrong)
			return manifest_refuse(why, -EBADMSG, "fragment", &id,
					       wrong);
	}
	return 0;
}

/* Every listed file above another one must be a directory. */
static const char *check_parents(const struct manifest *m, const char *path)
{
	for (const char *slash = strchr(path, '/'); slash;
	     slash = strchr(slash + 1, '/')) {
		struct manifest_id parent = {
			.data = path,
			.len = (size_t)(slash - path),
		};
		uint32_t i = manifest_find_file(m, &parent);

		if (i != MANIFEST_NONE &&
		    m->files[i].kind != MANIFEST_DIRECTORY)
			return "it is below a file that is not a directory";
	}
	return NULL;
}

static int check_files(struct manifest *m, struct buf *why)
{
	int r = manifest_index_files(m, why);

	if (r < 0)
		return r;
	for (size_t i = 0; i < m->file_count; i++) {
		const struct manifest_file *f = &m->files[i];
		struct manifest_id path = manifest_id_of(f->path);
		const char *wrong = check_parents(m, f->path);

		if (!wrong && f->kind == MANIFEST_REGULAR) {
			if (f->object >= m->object_count)
				wrong = "its object is not in objects";
			else if (f->size != m->objects[f->object].size)
				wrong = "its size is not that of its object";
		}
		if (wrong)
			return manifest_refuse(why, -EBADMSG, "file", &path,
					       wrong);
	}
	return 0;
}

static int check_objects(const struct manifest *m, struct buf *why)
{
	for (size_t i = 0; i < m->object_count; i++) {
		struct manifest_id key = manifest_id_of(m->objects[i].key);

		if (!is_payload_key(m, key.data))
			return manifest_refuse(why, -EBADMSG, "object", &key,
					       not_payload);
	}
	return 0;
}

int manifest_finish(struct manifest *m, struct buf *why)
{
	int r;

	assert(!m->priv->finished);
	if ((r = manifest_index_names(m, why)) < 0 ||
	    (r = check_objects(m, why)) < 0 || (r = check_files(m, why)) < 0 ||
	    (r = check_fragments(m, why)) < 0 ||
	    (r = manifest_index_fragments(m, why)) < 0 ||
	    (r = check_tensors(m, why)) < 0 || (r = check_ranges(m, why)) < 0)
		return r;
	m->priv->finished = true;
	return 0;
}
