/* SPDX-License-Identifier: Apache-2.0 */
/* The canonical text of a manifest: the keys of each object are sorted. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "core/json.h"
#include "core/manifest.h"
#include "core/manifest_private.h"

/* Appends with a sticky error, so that the text reads straight on. */
struct writer {
	struct buf *out;
	int err;
};

static void put(struct writer *w, const char *text)
{
	if (w->err == 0)
		w->err = buf_append(w->out, text, strlen(text));
}

static void put_u64(struct writer *w, uint64_t v)
{
	if (w->err == 0)
		w->err = json_write_u64(w->out, v);
}

static void put_id(struct writer *w, const struct manifest_id *id)
{
	if (w->err == 0)
		w->err =
			json_write_string(w->out, id->data, id->len, JSON_UTF8);
}

/* NULL becomes null. */
static void put_text(struct writer *w, const char *text)
{
	struct manifest_id id;

	if (!text) {
		put(w, "null");
		return;
	}
	id = manifest_id_of(text);
	put_id(w, &id);
}

static void put_digest(struct writer *w, const struct digest *d)
{
	char hex[DIGEST_HEX_LEN + 1];

	digest_to_hex(d, hex);
	put_text(w, hex);
}

/* layer_id and expert_id */
static void put_number(struct writer *w, int64_t id)
{
	if (id == MANIFEST_NO_ID)
		put(w, "null");
	else
		put_u64(w, (uint64_t)id);
}

/* Goes between elements: before all but the first. */
static void put_comma(struct writer *w, size_t i)
{
	if (i)
		put(w, ",");
}

static void put_u64s(struct writer *w, const uint64_t *v, size_t count)
{
	put(w, "[");
	for (size_t i = 0; i < count; i++) {
		put_comma(w, i);
		put_u64(w, v[i]);
	}
	put(w, "]");
}

static void put_axis(struct writer *w, const struct manifest_axis *a)
{
	put(w, "{");
	if (a->semantics == MANIFEST_SPLIT) {
		put(w, "\"dim\":");
		put_u64(w, a->dim);
		put(w, ",");
	}
	put(w, "\"kind\":");
	put_text(w, manifest_axis_words[a->kind]);
	put(w, ",\"semantics\":");
	put_text(w, manifest_semantics_words[a->semantics]);
	put(w, "}");
}

static void put_tensor(struct writer *w, const struct manifest_tensor *t)
{
	put(w, "{\"dtype\":");
	put_text(w, t->dtype);
	put(w, ",\"expert_id\":");
	put_number(w, t->expert_id);
	put(w, ",\"global_shape\":");
	put_u64s(w, t->global_shape, t->rank);
	put(w, ",\"itemsize\":");
	put_u64(w, t->itemsize);
	put(w, ",\"layer_id\":");
	put_number(w, t->layer_id);
	put(w, ",\"layout_fingerprint\":");
	put_text(w, t->layout_fingerprint);
	put(w, ",\"parallel_axes\":[");
	for (size_t i = 0; i < t->axis_count; i++) {
		put_comma(w, i);
		put_axis(w, &t->axes[i]);
	}
	put(w, "],\"shard_dims\":[");
	for (size_t i = 0; i < t->shard_dim_count; i++) {
		put_comma(w, i);
		put_u64(w, t->shard_dims[i]);
	}
	put(w, "],\"tensor_id\":");
	put_id(w, &t->id);
	put(w, "}");
}

static void put_fragment(struct writer *w, const struct manifest *m,
			 const struct manifest_fragment *f)
{
	const struct manifest_tensor *t = &m->tensors[f->tensor];

	put(w, "{\"aliases\":[");
	for (size_t i = 0; i < f->alias_count; i++) {
		put_comma(w, i);
		put_id(w, &f->aliases[i]);
	}
	put(w, "],\"fragment_id\":");
	put_text(w, f->fragment_id);
	put(w, ",\"global_offset\":");
	put_u64s(w, f->global_offset, t->rank);
	put(w, ",\"local_shape\":");
	put_u64s(w, f->local_shape, t->rank);
	put(w, ",\"nbytes\":");
	put_u64(w, f->nbytes);
	put(w, ",\"object_key\":");
	put_text(w, f->object_key);
	put(w, ",\"object_offset\":");
	put_u64(w, f->object_offset);
	put(w, ",\"tensor_id\":");
	put_id(w, &t->id);
	put(w, "}");
}

static void put_file(struct writer *w, const struct manifest *m,
		     const struct manifest_file *f)
{
	char mtime[40];

	/* Bounded: at most 20 characters, a point and 9 digits. */
	(void)snprintf(mtime, sizeof(mtime), "%" PRId64 ".%09" PRIu32,
		       f->mtime_s, f->mtime_nsec);
	put(w, "{\"kind\":");
	put_text(w, manifest_kind_words[f->kind]);
	put(w, ",\"mode\":");
	put_u64(w, f->mode);
	put(w, ",\"mtime\":");
	put_text(w, mtime);
	put(w, ",\"object\":");
	put_text(w, f->kind == MANIFEST_REGULAR ? m->objects[f->object].key :
						  NULL);
	put(w, ",\"path\":");
	put_text(w, f->path);
	put(w, ",\"size\":");
	put_u64(w, f->size);
	put(w, ",\"target\":");
	put_text(w, f->target);
	put(w, "}");
}

static void put_object(struct writer *w, const struct manifest_object *o)
{
	put(w, "{\"chunk_size\":");
	put_u64(w, o->chunk_size);
	put(w, ",\"chunks\":[");
	for (size_t i = 0; i < o->chunk_count; i++) {
		put_comma(w, i);
		put_digest(w, &o->chunks[i]);
	}
	put(w, "],\"digest\":");
	put_digest(w, &o->digest);
	put(w, ",\"key\":");
	put_text(w, o->key);
	put(w, ",\"size\":");
	put_u64(w, o->size);
	put(w, "}");
}

static void put_files(struct writer *w, const struct manifest *m)
{
	put(w, ",\"files\":[");
	for (size_t i = 0; i < m->file_count; i++) {
		put_comma(w, i);
		put_file(w, m, &m->files[i]);
	}
	put(w, "]");
}

static void put_objects(struct writer *w, const struct manifest *m)
{
	put(w, ",\"objects\":[");
	for (size_t i = 0; i < m->object_count; i++) {
		put_comma(w, i);
		put_object(w, &m->objects[i]);
	}
	put(w, "]");
}

int manifest_write(const struct manifest *m, struct buf *out)
{
	struct writer w = { .out = out };

	assert(m->priv->finished);
	put(&w, "{\"created_at\":");
	put_text(&w, m->top.created_at);
	if (m->has_files)
		put_files(&w, m);
	put(&w, ",\"fragments\":[");
	for (size_t i = 0; i < m->fragment_count; i++) {
		put_comma(&w, i);
		put_fragment(&w, m, &m->fragments[i]);
	}
	put(&w, "],\"group_id\":");
	put_text(&w, m->top.group_id);
	put(&w, ",\"manifest_key\":");
	put_text(&w, m->top.manifest_key);
	put(&w, ",\"namespace\":");
	put_text(&w, m->top.name_space);
	if (m->has_objects)
		put_objects(&w, m);
	put(&w, ",\"resource_id\":");
	put_text(&w, m->top.resource_id);
	put(&w, ",\"resource_kind\":\"" MANIFEST_RESOURCE_KIND "\"");
	put(&w, ",\"revision\":");
	put_text(&w, m->top.revision);
	put(&w, ",\"tensors\":[");
	for (size_t i = 0; i < m->tensor_count; i++) {
		put_comma(&w, i);
		put_tensor(&w, &m->tensors[i]);
	}
	put(&w, "],\"weight_generation\":");
	put_u64(&w, m->top.weight_generation);
	put(&w, "}");
	return w.err;
}
