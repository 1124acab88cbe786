/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a writer describes, checked by the rules of the manifest that it is to
 * become, and that manifest once the bytes are there.
 */
#include "core/publish_import.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/publish_priv.h"
#include "core/weight_key.h"

/* ---- From descriptions ---- */

/* Points at descriptions in the order of their ids. */
static int compare_descriptions(const void *a, const void *b)
{
	const struct weight_description *const *x = a;
	const struct weight_description *const *y = b;

	return strcmp((*x)->tensor_id, (*y)->tensor_id);
}

static int sort_descriptions(const struct weight_description *tensors,
			     size_t count,
			     const struct weight_description ***ret,
			     struct buf *why)
{
	const struct weight_description **order =
		calloc(count + 1, sizeof(*order));

	if (!order)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		order[i] = &tensors[i];
		if (tensors[i].tensor_id && tensors[i].dtype &&
		    tensors[i].layout_fingerprint)
			continue;
		free(order);
		(void)buf_printf(why,
				 "tensor %zu lacks an id, a dtype or a layout "
				 "fingerprint",
				 i);
		return -EINVAL;
	}
	qsort(order, count, sizeof(*order), compare_descriptions);
	*ret = order;
	return 0;
}

static int begin_manifest(struct import_plan *plan, struct buf *why)
{
	const struct weight_identity *id = plan->identity;
	cleanup(buf_release) struct buf key = BUF_INIT;
	char group_id[WEIGHT_GROUP_ID_LEN + 1];
	struct manifest_top top = {
		.name_space = id->lineage.name_space,
		.resource_id = id->lineage.resource,
		.revision = id->lineage.revision,
		.group_id = group_id,
		.created_at = IMPORT_NO_TIME,
		.weight_generation = id->generation,
	};
	int r;

	if ((r = weight_group_id(id, group_id)) < 0 ||
	    (r = weight_manifest_key(id, &key)) < 0)
		return r;
	top.manifest_key = key.data;
	return manifest_new(&top, &plan->described, why);
}

static int copy_aliases(const struct weight_description *t,
			struct manifest_id **ret)
{
	struct manifest_id *aliases =
		calloc(t->alias_count + 1, sizeof(*aliases));

	if (!aliases)
		return -ENOMEM;
	for (size_t i = 0; i < t->alias_count; i++)
		aliases[i] = (struct manifest_id){ t->aliases[i],
						   strlen(t->aliases[i]) };
	*ret = aliases;
	return 0;
}

/* The one fragment of a tensor: all of it, an object of its own. */
static int add_fragment(struct import_plan *plan,
			const struct weight_description *t, struct buf *why)
{
	static const uint64_t origin[MANIFEST_RANK_MAX];
	cleanup(buf_release) struct buf key = BUF_INIT;
	auto_free struct manifest_id *aliases = NULL;
	char id[WEIGHT_FRAGMENT_ID_LEN + 1];
	struct manifest_fragment fragment = {
		.fragment_id = id,
		.global_offset = origin,
		.local_shape = t->global_shape,
		.alias_count = (uint32_t)t->alias_count,
		.nbytes = t->len,
		.tensor = (uint32_t)plan->described->tensor_count - 1,
	};
	int r;

	if ((r = copy_aliases(t, &aliases)) < 0 ||
	    (r = weight_fragment_id(t->tensor_id, strlen(t->tensor_id), origin,
				    t->global_shape, t->rank, id)) < 0 ||
	    (r = weight_payload_key(plan->identity, IMPORT_NO_TXID, id, &key)) <
		    0)
		return r;
	fragment.object_key = key.data;
	fragment.aliases = aliases;
	return manifest_add_fragment(plan->described, &fragment, why);
}

static int add_tensor(struct import_plan *plan,
		      const struct weight_description *t, struct buf *why)
{
	const struct manifest_tensor tensor = {
		.id = { t->tensor_id, strlen(t->tensor_id) },
		.global_shape = t->global_shape,
		.dtype = t->dtype,
		.layout_fingerprint = t->layout_fingerprint,
		.itemsize = t->itemsize,
		.layer_id = t->layer_id,
		.expert_id = t->expert_id,
		.rank = t->rank,
	};
	int r;

	if (t->len > WEIGHT_FILE_BYTES_MAX ||
	    t->alias_count > MANIFEST_ALIASES_MAX) {
		(void)buf_printf(why, "tensor '%s' is too large", t->tensor_id);
		return -EFBIG;
	}
	r = manifest_add_tensor(plan->described, &tensor, why);
	return r < 0 ? r : add_fragment(plan, t, why);
}

static int describe(struct import_plan *plan,
		    const struct weight_description *tensors, size_t count,
		    struct buf *why)
{
	auto_free const struct weight_description **order = NULL;
	cleanup(buf_release) struct buf text = BUF_INIT;
	int r = sort_descriptions(tensors, count, &order, why);

	if (r == 0)
		r = begin_manifest(plan, why);
	for (size_t i = 0; i < count && r == 0; i++)
		r = add_tensor(plan, order[i], why);
	if (r < 0 || (r = manifest_finish(plan->described, why)) < 0 ||
	    (r = manifest_write(plan->described, &text)) < 0)
		return r;
	return manifest_digest(text.data, text.len, &plan->source);
}

/* ---- Files ---- */

static int compare_names(const void *a, const void *b, void *arg)
{
	const struct import_plan *plan = arg;

	return strcmp(plan->names[*(const size_t *)a],
		      plan->names[*(const size_t *)b]);
}

static int name_files(struct import_plan *plan, struct buf *why)
{
	char name[WEIGHT_PATH_NAME_MAX + 1];

	plan->names = calloc(plan->count + 1, sizeof(*plan->names));
	plan->by_name = calloc(plan->count + 1, sizeof(*plan->by_name));
	if (!plan->names || !plan->by_name)
		return -ENOMEM;
	for (size_t i = 0; i < plan->count; i++) {
		const struct manifest_id *id = &plan->described->tensors[i].id;
		int r = weight_tensor_name(id->data, id->len, name);

		if (r < 0)
			return r;
		plan->by_name[i] = i;
		plan->names[i] = strdup(name);
		if (!plan->names[i])
			return -ENOMEM;
	}
	qsort_r(plan->by_name, plan->count, sizeof(*plan->by_name),
		compare_names, plan);
	for (size_t i = 1; i < plan->count; i++)
		if (compare_names(&plan->by_name[i - 1], &plan->by_name[i],
				  plan) == 0) {
			(void)buf_printf(why, "two tensors have files of one "
					      "name");
			return -EINVAL;
		}
	return 0;
}

/* The tensor whose file has this name, or -ENOENT. */
static int find_name(const struct import_plan *plan, const char *name,
		     size_t *ret)
{
	size_t low = 0, high = plan->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int c = strcmp(plan->names[plan->by_name[mid]], name);

		if (c == 0) {
			*ret = plan->by_name[mid];
			return 0;
		}
		if (c < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return -ENOENT;
}

int import_plan_new(const struct weight_identity *identity,
		    const struct weight_description *tensors, size_t count,
		    struct import_plan **ret, struct buf *why)
{
	cleanup(import_plan_free_cleanup) struct import_plan *plan =
		calloc(1, sizeof(*plan));
	int r;

	if (!plan)
		return -ENOMEM;
	if ((r = weight_identity_copy(identity, &plan->identity)) < 0)
		return r;
	r = describe(plan, tensors, count, why);
	if (r == 0) {
		plan->count = plan->described->tensor_count;
		r = name_files(plan, why);
	}
	if (r < 0)
		return r == -EBADMSG ? -EINVAL : r;
	*ret = take_ptr(plan);
	return 0;
}

void import_plan_free(struct import_plan *plan)
{
	if (!plan)
		return;
	for (size_t i = 0; plan->names && i < plan->count; i++)
		free(plan->names[i]);
	free(plan->names);
	free(plan->by_name);
	manifest_unref(plan->described);
	weight_identity_free(plan->identity);
	free(plan);
}

/* ---- What follows from it ---- */

static const struct manifest_fragment *fragment_of(
	const struct import_plan *plan, size_t i)
{
	return &plan->described->fragments[i];
}

static size_t count_members(const struct import_plan *plan)
{
	size_t count = 0;

	for (size_t i = 0; i < plan->count; i++) {
		uint32_t aliases = fragment_of(plan, i)->alias_count;

		count += aliases ? aliases : 1;
	}
	return count;
}

/* The unit that tensor i belongs to; returns how many members it has. */
static size_t put_unit(const struct import_plan *plan, size_t i,
		       struct weight_text *members,
		       struct weight_affinity_unit *unit)
{
	const struct manifest_fragment *f = fragment_of(plan, i);
	const struct manifest_id *own = &plan->described->tensors[i].id;
	const struct manifest_id *ids = f->alias_count ? f->aliases : own;
	size_t count = f->alias_count ? f->alias_count : 1;

	for (size_t k = 0; k < count; k++)
		members[k] = (struct weight_text){ ids[k].data, ids[k].len };
	*unit = (struct weight_affinity_unit){ members, count };
	return count;
}

int import_plan_announce(const struct import_plan *plan,
			 struct weight_import *ret)
{
	auto_free struct weight_affinity_unit *units = NULL;
	auto_free struct weight_text *members = NULL;
	struct weight_import import = { .payload_count = plan->count };
	size_t at = 0;
	int r;

	units = calloc(plan->count + 1, sizeof(*units));
	members = calloc(count_members(plan) + 1, sizeof(*members));
	if (!units || !members)
		return -ENOMEM;
	for (size_t i = 0; i < plan->count; i++) {
		at += put_unit(plan, i, members + at, &units[i]);
		import.logical_bytes += import_plan_len(plan, i);
	}
	r = weight_affinity_digest(units, plan->count, &import.affinity_digest,
				   &import.affinity_count);
	if (r == 0)
		*ret = import;
	return r;
}

int import_plan_find(const struct import_plan *plan, const char *tensor_id,
		     size_t *ret)
{
	const struct manifest_tensor *t = manifest_tensor_find(
		plan->described, tensor_id, strlen(tensor_id));

	if (!t)
		return -ENOENT;
	*ret = (size_t)(t - plan->described->tensors);
	return 0;
}

uint64_t import_plan_len(const struct import_plan *plan, size_t i)
{
	return fragment_of(plan, i)->nbytes;
}

static int key_of(const struct import_plan *plan, size_t i, struct buf *ret)
{
	return weight_payload_key(plan->identity, plan->txid,
				  fragment_of(plan, i)->fragment_id, ret);
}

bool import_plan_made(const struct import_plan *plan, const struct manifest *m)
{
	bool made = m->object_count == plan->count;

	for (size_t i = 0; i < plan->count && made; i++) {
		cleanup(buf_release) struct buf key = BUF_INIT;

		made = key_of(plan, i, &key) == 0 &&
		       manifest_object_find(m, key.data) != NULL;
	}
	return made;
}

/* ---- The manifest ---- */

/* Gives each object its key, and finds the object of each tensor. */
static int draft_keys(struct publish_draft *d, const struct import_plan *plan,
		      size_t *objects)
{
	const struct payload *p = d->look->payload;
	size_t tensor = 0;

	if (p->count != plan->count || p->object_count != plan->count) {
		(void)buf_printf(d->why, "there are %zu files of %zu tensors",
				 p->count, plan->count);
		return -EBADMSG;
	}
	for (size_t i = 0; i < p->object_count; i++) {
		const char *path = p->entries[p->objects[i]].path;
		int r = find_name(plan, path, &tensor);

		if (r == 0 && d->look->files[i]->chunks->size !=
				      import_plan_len(plan, tensor))
			r = -EBADMSG;
		if (r == -ENOENT || r == -EBADMSG) {
			(void)buf_printf(d->why,
					 "'%s' is not what a tensor was "
					 "written to",
					 path);
			return -EBADMSG;
		}
		objects[tensor] = i;
		r = publish_draft_key(d, i, plan->txid,
				      fragment_of(plan, tensor)->fragment_id);
		if (r < 0)
			return r;
	}
	return 0;
}

static int draft_tensors(struct publish_draft *d,
			 const struct import_plan *plan, const size_t *objects)
{
	const struct manifest *from = plan->described;
	int r = 0;

	for (size_t i = 0; i < plan->count && r == 0; i++) {
		struct manifest_fragment fragment = *fragment_of(plan, i);

		fragment.object_key = d->keys[objects[i]];
		r = manifest_add_tensor(d->m, &from->tensors[i], d->why);
		if (r == 0)
			r = manifest_add_fragment(d->m, &fragment, d->why);
	}
	return r;
}

int import_plan_manifest(const struct import_plan *plan, struct weight_group *g,
			 const struct staging_look *look,
			 struct publish_result *ret, struct buf *why)
{
	struct publish_draft d = { g, look, why };
	struct publish_result result = { .text = BUF_INIT };
	auto_free size_t *objects = NULL;
	char created[PUBLISH_CREATED_LEN];
	int r;

	objects = calloc(plan->count + 1, sizeof(*objects));
	if (!objects)
		return -ENOMEM;
	publish_created_at(plan->created_at_ms, plan->to_the_ms, created);
	if ((r = publish_draft_begin(&d, created)) == 0 &&
	    (r = draft_keys(&d, plan, objects)) == 0 &&
	    (r = publish_draft_objects(&d)) == 0 &&
	    (r = draft_tensors(&d, plan, objects)) == 0 &&
	    (r = publish_draft_files(&d)) == 0)
		r = publish_draft_end(&d, &result);
	result.manifest = d.m;
	publish_draft_release(&d);
	if (r < 0)
		publish_result_release(&result);
	else
		*ret = result;
	return r;
}
