/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From text to manifest, one entry at a time. Entries name others that may come
 * later in the text, so those names are kept aside until all are known.
 */
#include <errno.h>
#include <stdlib.h>

#include "core/arena.h"
#include "core/json.h"
#include "core/manifest.h"
#include "core/manifest_entry.h"
#include "core/manifest_private.h"
#include "core/util.h"

struct pending_list {
	struct manifest_reference *items;
	size_t count;
	size_t cap;
};

struct reader {
	struct manifest *m;
	unsigned seen; /* bits of top_keys */
	struct arena names;
	struct pending_list fragment_tensors;
	struct pending_list file_objects;
	struct manifest_entry entry;
	struct buf *why;
};

typedef int read_fn(struct reader *rd, const struct json_value *v);

static int pending_add(struct reader *rd, struct pending_list *list)
{
	struct manifest_reference p = rd->entry.reference;

	if (list->count == list->cap) {
		size_t cap = list->cap ? 2 * list->cap : 16;
		struct manifest_reference *grown =
			realloc(list->items, cap * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		list->items = grown;
		list->cap = cap;
	}
	if (p.name.data) {
		p.name.data = arena_copy(&rd->names, p.name.data, p.name.len);
		if (!p.name.data)
			return -ENOMEM;
	}
	list->items[list->count++] = p;
	return 0;
}

static int read_tensor(struct reader *rd, const struct json_value *v)
{
	int r = manifest_entry_tensor(&rd->entry, v);

	return r < 0 ? r :
		       manifest_add_tensor(rd->m, &rd->entry.tensor, rd->why);
}

static int read_fragment(struct reader *rd, const struct json_value *v)
{
	int r = manifest_entry_fragment(&rd->entry, v);

	if (r < 0)
		return r;
	rd->entry.fragment.tensor = 0;
	r = manifest_put_fragment(rd->m, &rd->entry.fragment,
				  rd->entry.reference.rank, rd->why);
	return r < 0 ? r : pending_add(rd, &rd->fragment_tensors);
}

static int read_file(struct reader *rd, const struct json_value *v)
{
	struct manifest_file *f = &rd->entry.file;
	int r = manifest_entry_file(&rd->entry, v);

	if (r < 0)
		return r;
	/* Any index does until the object is known. */
	f->object = rd->entry.reference.name.data ? 0 : MANIFEST_NO_OBJECT;
	r = manifest_add_file(rd->m, f, rd->why);
	return r < 0 ? r : pending_add(rd, &rd->file_objects);
}

static int read_stored_object(struct reader *rd, const struct json_value *v)
{
	int r = manifest_entry_object(&rd->entry, v);

	return r < 0 ? r :
		       manifest_add_object(rd->m, &rd->entry.object, rd->why);
}

/* One reader for each text at the top. */
#define TOP_TEXT(name, member, key)                                            \
	static int name(struct reader *rd, const struct json_value *v)         \
	{                                                                      \
		const char *text = NULL;                                       \
		int r = manifest_entry_text(&rd->entry, v, &text);             \
                                                                               \
		return r < 0 ? r :                                             \
			       manifest_copy_text(rd->m, text, key,            \
						  &rd->m->top.member,          \
						  rd->why);                    \
	}

TOP_TEXT(top_namespace, name_space, "namespace")
TOP_TEXT(top_resource, resource_id, "resource_id")
TOP_TEXT(top_revision, revision, "revision")
TOP_TEXT(top_group, group_id, "group_id")
TOP_TEXT(top_key, manifest_key, "manifest_key")
TOP_TEXT(top_created, created_at, "created_at")

static int top_generation(struct reader *rd, const struct json_value *v)
{
	return manifest_entry_u64(&rd->entry, v, &rd->m->top.weight_generation);
}

static int top_kind(struct reader *rd, const struct json_value *v)
{
	const char *kind = NULL;
	int r = manifest_entry_text(&rd->entry, v, &kind);

	if (r == 0 && strcmp(kind, MANIFEST_RESOURCE_KIND) != 0)
		return manifest_entry_wrong(&rd->entry, "not the resource_kind "
							"of a manifest");
	return r;
}

/* clang-format off */
static const struct top_rule {
	const char *key;
	read_fn *read;
	bool list; /* of what read reads */
	bool optional;
} top_keys[] = {
	{ "created_at",        top_created,        false, false },
	{ "files",             read_file,          true,  true  },
	{ "fragments",         read_fragment,      true,  false },
	{ "group_id",          top_group,          false, false },
	{ "manifest_key",      top_key,            false, false },
	{ "namespace",         top_namespace,      false, false },
	{ "objects",           read_stored_object, true,  true  },
	{ "resource_id",       top_resource,       false, false },
	{ "resource_kind",     top_kind,           false, false },
	{ "revision",          top_revision,       false, false },
	{ "tensors",           read_tensor,        true,  false },
	{ "weight_generation", top_generation,     false, false },
};
/* clang-format on */

static int read_item(void *arg, const struct json_item *item, struct buf *why)
{
	struct manifest_id key = { .data = item->key, .len = item->key_len };
	struct reader *rd = arg;
	size_t i = 0;
	int r;

	while (i < ARRAY_LEN(top_keys) &&
	       (strlen(top_keys[i].key) != key.len ||
		strcmp(top_keys[i].key, key.data) != 0))
		i++;
	if (i == ARRAY_LEN(top_keys))
		return manifest_refuse(why, -EBADMSG, "key", &key,
				       "not known in a manifest");
	if (item->element != top_keys[i].list)
		return manifest_refuse(why, -EBADMSG, "key", &key,
				       item->element ? "must not be a list" :
						       "must be a list");
	rd->seen |= 1U << i;
	if (!item->value)
		return 0;
	r = top_keys[i].read(rd, item->value);
	if (r == -EBADMSG && why && item->element)
		(void)buf_printf(why, ", in element %zu of '%s'", item->index,
				 item->key);
	return r;
}

static int check_seen(struct reader *rd)
{
	for (size_t i = 0; i < ARRAY_LEN(top_keys); i++) {
		struct manifest_id key = manifest_id_of(top_keys[i].key);
		bool seen = rd->seen & 1U << i;

		if (!seen && !top_keys[i].optional)
			return manifest_refuse(rd->why, -EBADMSG, "key", &key,
					       "missing in the manifest");
		if (seen && top_keys[i].read == read_file)
			rd->m->has_files = true;
		if (seen && top_keys[i].read == read_stored_object)
			rd->m->has_objects = true;
	}
	return 0;
}

/* Replaces the names that were kept aside by indexes. */
static int resolve(struct reader *rd)
{
	struct manifest *m = rd->m;

	for (size_t i = 0; i < m->fragment_count; i++) {
		const struct manifest_reference *p =
			&rd->fragment_tensors.items[i];
		struct manifest_id id =
			manifest_id_of(m->fragments[i].fragment_id);
		const struct manifest_tensor *t =
			manifest_tensor_find(m, p->name.data, p->name.len);

		if (!t)
			return manifest_refuse(rd->why, -EBADMSG, "fragment",
					       &id,
					       "its tensor is not in tensors");
		if (t->rank != p->rank)
			return manifest_refuse(rd->why, -EBADMSG, "fragment",
					       &id,
					       "it has another number of "
					       "dimensions than its tensor");
		m->fragments[i].tensor = (uint32_t)(t - m->tensors);
	}
	for (size_t i = 0; i < m->file_count; i++) {
		const struct manifest_reference *p = &rd->file_objects.items[i];
		struct manifest_id path = manifest_id_of(m->files[i].path);
		const struct manifest_object *o = NULL;

		if (!p->name.data)
			continue;
		o = manifest_object_find(m, p->name.data);
		if (!o)
			return manifest_refuse(rd->why, -EBADMSG, "file", &path,
					       "its object is not in objects");
		m->files[i].object = (uint32_t)(o - m->objects);
	}
	return 0;
}

static int read_all(struct reader *rd, const char *text, size_t len)
{
	int r;

	if ((r = json_stream(text, len, JSON_STREAM_ELEMENTS, read_item, rd,
			     rd->why)) < 0 ||
	    (r = check_seen(rd)) < 0 ||
	    (r = manifest_check_top(rd->m, rd->why)) < 0 ||
	    (r = manifest_index_names(rd->m, rd->why)) < 0 ||
	    (r = resolve(rd)) < 0)
		return r;
	return manifest_finish(rd->m, rd->why);
}

int manifest_parse(const char *text, size_t len, struct manifest **ret,
		   struct buf *why)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	auto_free struct reader *rd = NULL; /* too large for a stack */
	int r;

	if (len > MANIFEST_BYTES_MAX)
		return manifest_refuse(why, -EFBIG, "manifest", NULL,
				       "the text is too long");
	rd = calloc(1, sizeof(*rd));
	if (!rd)
		return -ENOMEM;
	r = manifest_new_empty(&m);
	if (r < 0)
		return r;
	rd->m = m;
	rd->why = why;
	rd->entry.why = why;
	r = read_all(rd, text, len);
	manifest_entry_release(&rd->entry);
	free(rd->fragment_tensors.items);
	free(rd->file_objects.items);
	arena_release(&rd->names);
	if (r < 0)
		return r;
	*ret = take_ptr(m);
	return 0;
}
