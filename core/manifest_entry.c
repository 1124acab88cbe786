/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One entry of a manifest's text: which keys it has is a table, and each key
 * knows how to read its value.
 */
#include <errno.h>
#include <stdlib.h>

#include "core/json.h"
#include "core/log.h"
#include "core/manifest.h"
#include "core/manifest_entry.h"
#include "core/manifest_private.h"
#include "core/util.h"

typedef int read_fn(struct manifest_entry *e, const struct json_value *v);

struct key_rule {
	const char *key;
	read_fn *read;
};

int manifest_entry_wrong(struct manifest_entry *e, const char *what)
{
	if (e->why)
		(void)buf_printf(e->why, "%s", what);
	return log_debug(-EBADMSG, "%s", what);
}

static int read_object(struct manifest_entry *e, const struct json_value *v,
		       const struct key_rule *rules, size_t count)
{
	const struct json_value *member;
	unsigned seen = 0;

	if (json_kind(v) != JSON_OBJECT)
		return manifest_entry_wrong(e, "not an object");
	for (member = json_first(v); member; member = json_next(member)) {
		struct manifest_id key;
		size_t i = 0;
		int r;

		key.data = json_key(member, &key.len);
		while (i < count && (strlen(rules[i].key) != key.len ||
				     strcmp(rules[i].key, key.data) != 0))
			i++;
		if (i == count)
			return manifest_refuse(e->why, -EBADMSG, "key", &key,
					       "not known here");
		seen |= 1U << i;
		r = rules[i].read(e, member);
		if (r < 0) {
			if (e->why)
				(void)buf_printf(e->why, " (key '%s')",
						 rules[i].key);
			return r;
		}
	}
	for (size_t i = 0; i < count; i++)
		if (!(seen & 1U << i)) {
			struct manifest_id key = manifest_id_of(rules[i].key);

			return manifest_refuse(e->why, -EBADMSG, "key", &key,
					       "missing");
		}
	return 0;
}

/* A string without NUL bytes inside. */
int manifest_entry_text(struct manifest_entry *e, const struct json_value *v,
			const char **ret)
{
	size_t len = 0;
	const char *text = json_string(v, &len);

	if (!text || strlen(text) != len)
		return manifest_entry_wrong(
			e, "not a string, or one with a NUL byte");
	*ret = text;
	return 0;
}

static int read_id(struct manifest_entry *e, const struct json_value *v,
		   struct manifest_id *ret)
{
	struct manifest_id id = { .data = NULL };

	id.data = json_string(v, &id.len);
	if (!id.data)
		return manifest_entry_wrong(e, "not a string");
	*ret = id;
	return 0;
}

int manifest_entry_u64(struct manifest_entry *e, const struct json_value *v,
		       uint64_t *ret)
{
	return json_u64(v, ret) < 0 ?
		       manifest_entry_wrong(e, "not a 64-bit number") :
		       0;
}

static int read_u32(struct manifest_entry *e, const struct json_value *v,
		    uint32_t *ret)
{
	uint64_t wide = 0;

	if (json_u64(v, &wide) < 0 || wide > UINT32_MAX)
		return manifest_entry_wrong(e, "not a 32-bit number");
	*ret = (uint32_t)wide;
	return 0;
}

static int read_layer(struct manifest_entry *e, const struct json_value *v,
		      int64_t *ret)
{
	uint64_t id = 0;

	if (json_kind(v) == JSON_NULL) {
		*ret = MANIFEST_NO_ID;
		return 0;
	}
	if (json_u64(v, &id) < 0 || id > INT64_MAX)
		return manifest_entry_wrong(e, "neither null nor a number");
	*ret = (int64_t)id;
	return 0;
}

static int read_digest(struct manifest_entry *e, const struct json_value *v,
		       struct digest *ret)
{
	size_t len = 0;
	const char *hex = json_string(v, &len);

	if (!hex || digest_from_hex(hex, len, ret) < 0)
		return manifest_entry_wrong(e, "not 64 lower-case hex digits");
	return 0;
}

static int read_word(struct manifest_entry *e, const struct json_value *v,
		     const char *const *words, size_t count, unsigned *ret)
{
	const char *text = NULL;
	int r = manifest_entry_text(e, v, &text);

	if (r < 0)
		return r;
	for (size_t i = 0; i < count; i++)
		if (strcmp(words[i], text) == 0) {
			*ret = (unsigned)i;
			return 0;
		}
	return manifest_entry_wrong(e, "not one of the words that are known");
}

/* Errors: -EBADMSG not an array; -EFBIG more than max elements. */
static int read_count(struct manifest_entry *e, const struct json_value *v,
		      size_t max, size_t *ret)
{
	if (json_kind(v) != JSON_ARRAY)
		return manifest_entry_wrong(e, "not an array");
	if (json_count(v) > max) {
		(void)manifest_entry_wrong(e, "too many elements");
		return -EFBIG;
	}
	*ret = json_count(v);
	return 0;
}

static int read_dims(struct manifest_entry *e, const struct json_value *v,
		     uint64_t dims[static MANIFEST_RANK_MAX], size_t *ret)
{
	size_t i = 0;
	int r = read_count(e, v, MANIFEST_RANK_MAX, ret);

	if (r < 0)
		return r;
	for (v = json_first(v); v; v = json_next(v)) {
		r = manifest_entry_u64(e, v, &dims[i++]);
		if (r < 0)
			return r;
	}
	return 0;
}

/* One reader for each field that only needs its place. */
#define FIELD(name, read, place)                                               \
	static int name(struct manifest_entry *e, const struct json_value *v)  \
	{                                                                      \
		return read(e, v, &e->place);                                  \
	}

FIELD(tensor_id, read_id, tensor.id)
FIELD(tensor_dtype, manifest_entry_text, tensor.dtype)
FIELD(tensor_itemsize, manifest_entry_u64, tensor.itemsize)
FIELD(tensor_layer, read_layer, tensor.layer_id)
FIELD(tensor_expert, read_layer, tensor.expert_id)
FIELD(tensor_layout, manifest_entry_text, tensor.layout_fingerprint)
FIELD(axis_dim, read_u32, axis.dim)
FIELD(fragment_id, manifest_entry_text, fragment.fragment_id)
FIELD(fragment_tensor, read_id, reference.name)
FIELD(fragment_key, manifest_entry_text, fragment.object_key)
FIELD(fragment_offset, manifest_entry_u64, fragment.object_offset)
FIELD(fragment_nbytes, manifest_entry_u64, fragment.nbytes)
FIELD(file_mode, read_u32, file.mode)
FIELD(file_path, manifest_entry_text, file.path)
FIELD(file_size, manifest_entry_u64, file.size)
FIELD(object_key, manifest_entry_text, object.key)
FIELD(object_size, manifest_entry_u64, object.size)
FIELD(object_chunk_size, manifest_entry_u64, object.chunk_size)
FIELD(object_digest, read_digest, object.digest)

static int axis_kind(struct manifest_entry *e, const struct json_value *v)
{
	unsigned kind = 0;
	int r = read_word(e, v, manifest_axis_words,
			  ARRAY_LEN(manifest_axis_words), &kind);

	e->axis.kind = kind;
	return r;
}

static int axis_semantics(struct manifest_entry *e, const struct json_value *v)
{
	unsigned semantics = 0;
	int r = read_word(e, v, manifest_semantics_words,
			  ARRAY_LEN(manifest_semantics_words), &semantics);

	e->axis.semantics = semantics;
	return r;
}

static int tensor_shape(struct manifest_entry *e, const struct json_value *v)
{
	size_t rank = 0;
	int r = read_dims(e, v, e->dims[0], &rank);

	e->tensor.global_shape = e->dims[0];
	e->tensor.rank = (uint32_t)rank;
	return r;
}

static int tensor_shard_dims(struct manifest_entry *e,
			     const struct json_value *v)
{
	size_t count = 0, i = 0;
	int r = read_count(e, v, MANIFEST_RANK_MAX, &count);

	for (v = json_first(v); r == 0 && v; v = json_next(v))
		r = read_u32(e, v, &e->shard_dims[i++]);
	e->tensor.shard_dims = e->shard_dims;
	e->tensor.shard_dim_count = (uint32_t)count;
	return r;
}

/* clang-format off */
static const struct key_rule axis_keys[] = {
	{ "kind",      axis_kind },
	{ "semantics", axis_semantics },
	{ "dim",       axis_dim }, /* of a split axis only, so it is last */
};
/* clang-format on */

static int tensor_axes(struct manifest_entry *e, const struct json_value *v)
{
	size_t count = 0, i = 0;
	int r = read_count(e, v, MANIFEST_AXES_MAX, &count);

	for (v = json_first(v); r == 0 && v; v = json_next(v)) {
		bool split = json_kind(v) == JSON_OBJECT && json_find(v, "dim");

		e->axis = (struct manifest_axis){ .dim = 0 };
		r = read_object(e, v, axis_keys, ARRAY_LEN(axis_keys) - !split);
		if (r == 0 && split != (e->axis.semantics == MANIFEST_SPLIT))
			r = manifest_entry_wrong(
				e, "a split axis, and nothing else, has a "
				   "dim");
		e->axes[i++] = e->axis;
	}
	e->tensor.axes = e->axes;
	e->tensor.axis_count = (uint32_t)count;
	return r;
}

static int fragment_place(struct manifest_entry *e, const struct json_value *v)
{
	e->fragment.global_offset = e->dims[0];
	return read_dims(e, v, e->dims[0], &e->reference.rank);
}

static int fragment_shape(struct manifest_entry *e, const struct json_value *v)
{
	e->fragment.local_shape = e->dims[1];
	return read_dims(e, v, e->dims[1], &e->shape_rank);
}

static int fragment_aliases(struct manifest_entry *e,
			    const struct json_value *v)
{
	size_t count = 0, i = 0;
	int r = read_count(e, v, MANIFEST_ALIASES_MAX, &count);

	if (r < 0)
		return r;
	if (count && !e->aliases) {
		e->aliases = calloc(MANIFEST_ALIASES_MAX, sizeof(*e->aliases));
		if (!e->aliases)
			return -ENOMEM;
	}
	for (v = json_first(v); r == 0 && v; v = json_next(v))
		r = read_id(e, v, &e->aliases[i++]);
	e->fragment.aliases = e->aliases;
	e->fragment.alias_count = (uint32_t)count;
	return r;
}

static int file_kind(struct manifest_entry *e, const struct json_value *v)
{
	unsigned kind = 0;
	int r = read_word(e, v, manifest_kind_words,
			  ARRAY_LEN(manifest_kind_words), &kind);

	e->file.kind = kind;
	return r;
}

/* Plain digits up to max, the first of which is not a 0 unless alone. */
static bool digits(const char *text, size_t len, uint64_t max, uint64_t *ret)
{
	uint64_t n = 0;

	if (len == 0 || (len > 1 && *text == '0'))
		return false;
	for (size_t i = 0; i < len; i++)
		if (text[i] < '0' || text[i] > '9' ||
		    __builtin_mul_overflow(n, 10, &n) ||
		    __builtin_add_overflow(n, (uint64_t)(text[i] - '0'), &n))
			return false;
	*ret = n;
	return n <= max;
}

/* "<seconds>.<nine digits>"; -0 is not a number of seconds. */
static int file_mtime(struct manifest_entry *e, const struct json_value *v)
{
	uint64_t s = 0, nsec = 0;
	const char *text = NULL, *dot;
	bool negative;
	char padded[11] = "1";
	int r = manifest_entry_text(e, v, &text);

	if (r < 0)
		return r;
	negative = *text == '-';
	text += negative;
	dot = strchr(text, '.');
	if (!dot || strlen(dot + 1) != 9 ||
	    !digits(text, (size_t)(dot - text), (uint64_t)INT64_MAX + negative,
		    &s) ||
	    (negative && s == 0))
		return manifest_entry_wrong(
			e, "not seconds, a point and nine digits");
	memcpy(padded + 1, dot + 1, 9);
	if (!digits(padded, 10, UINT64_MAX, &nsec))
		return manifest_entry_wrong(
			e, "not seconds, a point and nine digits");
	e->file.mtime_s = (int64_t)(negative ? -s : s);
	e->file.mtime_nsec = (uint32_t)(nsec - 1000000000);
	return 0;
}

static int file_object(struct manifest_entry *e, const struct json_value *v)
{
	const char *key = NULL;
	int r = 0;

	e->reference = (struct manifest_reference){ .rank = 0 };
	if (json_kind(v) == JSON_NULL)
		return 0;
	r = manifest_entry_text(e, v, &key);
	if (r == 0)
		e->reference.name = manifest_id_of(key);
	return r;
}

static int file_target(struct manifest_entry *e, const struct json_value *v)
{
	if (json_kind(v) == JSON_NULL) {
		e->file.target = NULL;
		return 0;
	}
	return manifest_entry_text(e, v, &e->file.target);
}

static int object_chunks(struct manifest_entry *e, const struct json_value *v)
{
	size_t count = 0, i = 0;
	int r = read_count(e, v, MANIFEST_CHUNKS_MAX, &count);

	if (r < 0)
		return r;
	if (count > e->chunk_cap) {
		free(e->chunks);
		e->chunk_cap = 0;
		e->chunks = calloc(count, sizeof(*e->chunks));
		if (!e->chunks)
			return -ENOMEM;
		e->chunk_cap = count;
	}
	for (v = json_first(v); r == 0 && v; v = json_next(v))
		r = read_digest(e, v, &e->chunks[i++]);
	e->object.chunks = e->chunks;
	e->object.chunk_count = count;
	return r;
}

/* clang-format off */
static const struct key_rule tensor_keys[] = {
	{ "dtype",              tensor_dtype },
	{ "expert_id",          tensor_expert },
	{ "global_shape",       tensor_shape },
	{ "itemsize",           tensor_itemsize },
	{ "layer_id",           tensor_layer },
	{ "layout_fingerprint", tensor_layout },
	{ "parallel_axes",      tensor_axes },
	{ "shard_dims",         tensor_shard_dims },
	{ "tensor_id",          tensor_id },
};

static const struct key_rule fragment_keys[] = {
	{ "aliases",       fragment_aliases },
	{ "fragment_id",   fragment_id },
	{ "global_offset", fragment_place },
	{ "local_shape",   fragment_shape },
	{ "nbytes",        fragment_nbytes },
	{ "object_key",    fragment_key },
	{ "object_offset", fragment_offset },
	{ "tensor_id",     fragment_tensor },
};

static const struct key_rule file_keys[] = {
	{ "kind",   file_kind },
	{ "mode",   file_mode },
	{ "mtime",  file_mtime },
	{ "object", file_object },
	{ "path",   file_path },
	{ "size",   file_size },
	{ "target", file_target },
};

static const struct key_rule object_keys[] = {
	{ "chunk_size", object_chunk_size },
	{ "chunks",     object_chunks },
	{ "digest",     object_digest },
	{ "key",        object_key },
	{ "size",       object_size },
};
/* clang-format on */

void manifest_entry_release(struct manifest_entry *e)
{
	free(e->aliases);
	free(e->chunks);
}

int manifest_entry_tensor(struct manifest_entry *e, const struct json_value *v)
{
	return read_object(e, v, tensor_keys, ARRAY_LEN(tensor_keys));
}

int manifest_entry_fragment(struct manifest_entry *e,
			    const struct json_value *v)
{
	int r = read_object(e, v, fragment_keys, ARRAY_LEN(fragment_keys));

	if (r == 0 && e->shape_rank != e->reference.rank)
		return manifest_entry_wrong(e, "global_offset and local_shape "
					       "differ in their number of "
					       "dimensions");
	return r;
}

int manifest_entry_file(struct manifest_entry *e, const struct json_value *v)
{
	return read_object(e, v, file_keys, ARRAY_LEN(file_keys));
}

int manifest_entry_object(struct manifest_entry *e, const struct json_value *v)
{
	return read_object(e, v, object_keys, ARRAY_LEN(object_keys));
}
