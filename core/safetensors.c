/* SPDX-License-Identifier: Apache-2.0 */
#include "core/safetensors.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/buf.h"
#include "core/cleanup.h"
#include "core/json.h"
#include "core/util.h"

#define LENGTH_BYTES 8
#define METADATA_KEY "__metadata__"

/* clang-format off */
static const struct dtype {
	const char *name;
	uint32_t block_elems, block_bytes; /* this many elements, these bytes */
} dtypes[] = {
	{ "BOOL",        1, 1 }, { "U8",          1, 1 }, { "I8",  1, 1 },
	{ "F8_E5M2",     1, 1 }, { "F8_E4M3",     1, 1 }, { "F8_E8M0", 1, 1 },
	{ "F8_E4M3FNUZ", 1, 1 }, { "F8_E5M2FNUZ", 1, 1 },
	{ "I16",         1, 2 }, { "U16",         1, 2 },
	{ "F16",         1, 2 }, { "BF16",        1, 2 },
	{ "I32",         1, 4 }, { "U32",         1, 4 }, { "F32", 1, 4 },
	{ "I64",         1, 8 }, { "U64",         1, 8 }, { "F64", 1, 8 },
	{ "C64",         1, 8 },
	{ "F4",          2, 1 }, { "F6_E2M3",     4, 3 }, { "F6_E3M2", 4, 3 },
};
/* clang-format on */

struct entry {
	const char *name;
	size_t name_len;
	const struct dtype *dtype;
	const uint64_t *shape;
	unsigned rank;
	uint64_t begin, end; /* in the data section */
};

struct table {
	struct arena arena; /* names and shapes */
	struct entry *entries;
	size_t count, cap;
	bool own_reason; /* why already says what is wrong */
};

static void table_release(struct table *t)
{
	arena_release(&t->arena);
	free(t->entries);
}

static int table_grow(struct table *t)
{
	size_t cap = t->cap ? 2 * t->cap : 64;
	struct entry *entries;

	if (t->count < t->cap)
		return 0;
	entries = realloc(t->entries, cap * sizeof(*entries));
	if (!entries)
		return -ENOMEM;
	t->entries = entries;
	t->cap = cap;
	return 0;
}

static int metadata_check(const struct json_value *v, struct buf *why)
{
	if (json_kind(v) == JSON_NULL)
		return 0;
	if (json_kind(v) != JSON_OBJECT)
		return file_refuse(-EBADMSG, why,
				   METADATA_KEY " of the header is no object");
	for (const struct json_value *m = json_first(v); m; m = json_next(m)) {
		size_t len;
		const char *key = json_key(m, &len);

		if (json_kind(m) == JSON_STRING)
			continue;
		(void)buf_append(why, METADATA_KEY " entry ",
				 strlen(METADATA_KEY " entry "));
		tensor_show_name(why, key, len);
		return file_refuse(-EBADMSG, why, " is no string");
	}
	return 0;
}

static int dtype_read(struct entry *e, const struct json_value *v,
		      struct buf *why)
{
	size_t len;
	const char *name = v ? json_string(v, &len) : NULL;

	if (!name)
		return tensor_refuse(-EBADMSG, why, e->name, e->name_len,
				     "its dtype is missing or no string");
	for (size_t i = 0; i < ARRAY_LEN(dtypes); i++)
		if (strlen(dtypes[i].name) == len &&
		    memcmp(dtypes[i].name, name, len) == 0)
			e->dtype = &dtypes[i];
	if (!e->dtype)
		return tensor_refuse(-EBADMSG, why, e->name, e->name_len,
				     "unknown dtype '%.32s'", name);
	return 0;
}

static int shape_read(struct table *t, struct entry *e,
		      const struct json_value *v, struct buf *why)
{
	uint64_t *shape;
	size_t rank;

	if (!v || json_kind(v) != JSON_ARRAY)
		return tensor_refuse(-EBADMSG, why, e->name, e->name_len,
				     "its shape is missing or no list");
	rank = json_count(v);
	if (rank > TENSOR_RANK_MAX)
		return tensor_refuse(-EFBIG, why, e->name, e->name_len,
				     "its shape has %zu axes, at most %d are "
				     "supported",
				     rank, TENSOR_RANK_MAX);
	shape = arena_alloc(&t->arena, rank * sizeof(*shape));
	if (!shape)
		return -ENOMEM;
	e->shape = shape;
	e->rank = (unsigned)rank;
	for (v = json_first(v); v; v = json_next(v))
		if (json_u64(v, shape++) < 0)
			return tensor_refuse(-EBADMSG, why, e->name,
					     e->name_len,
					     "its shape holds something that "
					     "is no plain unsigned number");
	return 0;
}

static int offsets_read(struct entry *e, const struct json_value *v,
			struct buf *why)
{
	const struct json_value *first;

	if (!v || json_kind(v) != JSON_ARRAY || json_count(v) != 2)
		return tensor_refuse(-EBADMSG, why, e->name, e->name_len,
				     "its data_offsets are missing or no list "
				     "of two");
	first = json_first(v);
	if (json_u64(first, &e->begin) < 0 ||
	    json_u64(json_next(first), &e->end) < 0)
		return tensor_refuse(-EBADMSG, why, e->name, e->name_len,
				     "its data_offsets are no plain unsigned "
				     "64-bit numbers");
	if (e->begin > e->end)
		return tensor_refuse(-EBADMSG, why, e->name, e->name_len,
				     "it begins at %llu, after its end %llu",
				     (unsigned long long)e->begin,
				     (unsigned long long)e->end);
	return 0;
}

/* The range must be exactly as long as dtype and shape say. */
static int extent_check(const struct entry *e, struct buf *why)
{
	uint64_t elems, bytes;

	if (tensor_elements(e->shape, e->rank, &elems) < 0 ||
	    __builtin_mul_overflow(elems / e->dtype->block_elems,
				   e->dtype->block_bytes, &bytes))
		return tensor_refuse(-EBADMSG, why, e->name, e->name_len,
				     "its shape overflows 64 bits");
	if (elems % e->dtype->block_elems)
		return tensor_refuse(-EBADMSG, why, e->name, e->name_len,
				     "%llu elements of %s do not fill whole "
				     "bytes",
				     (unsigned long long)elems, e->dtype->name);
	if (e->end - e->begin != bytes)
		return tensor_refuse(-EBADMSG, why, e->name, e->name_len,
				     "its range holds %llu bytes, its dtype "
				     "and shape need %llu",
				     (unsigned long long)(e->end - e->begin),
				     (unsigned long long)bytes);
	return 0;
}

static int entry_read(struct table *t, const struct json_item *item,
		      struct buf *why)
{
	const struct json_value *v = item->value;
	struct entry e = { .name = item->key, .name_len = item->key_len };
	int r;

	if (json_kind(v) != JSON_OBJECT)
		return tensor_refuse(-EBADMSG, why, e.name, e.name_len,
				     "its header entry is no object");
	if ((r = dtype_read(&e, json_find(v, "dtype"), why)) < 0 ||
	    (r = shape_read(t, &e, json_find(v, "shape"), why)) < 0 ||
	    (r = offsets_read(&e, json_find(v, "data_offsets"), why)) < 0 ||
	    (r = extent_check(&e, why)) < 0 || (r = table_grow(t)) < 0)
		return r;
	e.name = arena_copy(&t->arena, item->key, item->key_len);
	if (!e.name)
		return -ENOMEM;
	t->entries[t->count++] = e;
	return 0;
}

static int member_read(void *arg, const struct json_item *item, struct buf *why)
{
	struct table *t = arg;
	int r;

	if (item->key_len == strlen(METADATA_KEY) &&
	    memcmp(item->key, METADATA_KEY, item->key_len) == 0)
		r = metadata_check(item->value, why);
	else
		r = entry_read(t, item, why);
	t->own_reason = r < 0;
	return r;
}

static int bytes_cmp(const char *a, size_t a_len, const char *b, size_t b_len)
{
	int r = memcmp(a, b, a_len < b_len ? a_len : b_len);

	return r ? r : (a_len > b_len) - (a_len < b_len);
}

/* A tensor without bytes sorts before the one that begins where it lies. */
static int entry_cmp(const void *a, const void *b)
{
	const struct entry *x = a;
	const struct entry *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	if (x->end != y->end)
		return x->end < y->end ? -1 : 1;
	return bytes_cmp(x->name, x->name_len, y->name, y->name_len);
}

static int overlap_refuse(const struct entry *e, const struct entry *before,
			  struct buf *why)
{
	(void)tensor_refuse(-EBADMSG, why, e->name, e->name_len,
			    "its bytes %llu to %llu overlap those of tensor ",
			    (unsigned long long)e->begin,
			    (unsigned long long)e->end);
	tensor_show_name(why, before->name, before->name_len);
	return -EBADMSG;
}

/* Every byte of the data belongs to exactly one tensor. */
static int coverage_check(struct table *t, uint64_t data_size, struct buf *why)
{
	uint64_t at = 0;

	if (t->count)
		qsort(t->entries, t->count, sizeof(*t->entries), entry_cmp);
	for (size_t i = 0; i < t->count; i++) {
		const struct entry *e = &t->entries[i];

		if (e->begin < at)
			return overlap_refuse(e, e - 1, why);
		if (e->begin > at)
			return tensor_refuse(
				-EBADMSG, why, e->name, e->name_len,
				"the %llu bytes before it belong "
				"to no tensor",
				(unsigned long long)(e->begin - at));
		at = e->end;
	}
	if (at > data_size)
		return file_refuse(-EBADMSG, why,
				   "truncated: its tensors need %llu bytes of "
				   "data, %llu of them are missing",
				   (unsigned long long)at,
				   (unsigned long long)(at - data_size));
	if (at < data_size)
		return file_refuse(-EBADMSG, why,
				   "%llu bytes after the last tensor belong to "
				   "no tensor",
				   (unsigned long long)(data_size - at));
	return 0;
}

static int table_deliver(const struct table *t, uint64_t base, tensor_fn *fn,
			 void *arg, struct buf *why)
{
	for (size_t i = 0; i < t->count; i++) {
		const struct entry *e = &t->entries[i];
		struct tensor_info info = {
			.name = e->name,
			.name_len = e->name_len,
			.dtype = e->dtype->name,
			.rank = e->rank,
			.begin = base + e->begin,
			.end = base + e->end,
			.block_elems = e->dtype->block_elems,
			.block_bytes = e->dtype->block_bytes,
		};
		int r;

		if (e->rank)
			memcpy(info.shape, e->shape,
			       e->rank * sizeof(*e->shape));
		r = fn(arg, &info, why);
		if (r < 0)
			return r;
	}
	return 0;
}

/*
 * The length of the header, after a look at what can be seen without memory
 * for it: whatever is no safetensors file mostly fails here.
 */
static int frame_check(int fd, uint64_t size, uint64_t *ret, struct buf *why)
{
	uint8_t head[FILE_HEAD_LEN];
	size_t have = size < sizeof(head) ? (size_t)size : sizeof(head);
	const char *looks = NULL;
	uint64_t len = 0;
	int r;

	r = file_read_exact(fd, head, have, 0, why);
	if (r < 0)
		return r;
	if (have >= LENGTH_BYTES) {
		memcpy(&len, head, sizeof(len));
		len = le64toh(len);
	}
	if (have > LENGTH_BYTES && len > 0 && len <= SAFETENSORS_HEADER_MAX &&
	    len <= size - LENGTH_BYTES && head[LENGTH_BYTES] == '{') {
		*ret = len;
		return 0;
	}

	if (have <= LENGTH_BYTES || head[LENGTH_BYTES] != '{')
		looks = file_looks_like(head, have);
	if (looks)
		return file_refuse(-EBADMSG, why,
				   "not a safetensors file: it looks like %s "
				   "(%llu bytes)",
				   looks, (unsigned long long)size);
	if (have < LENGTH_BYTES)
		return file_refuse(-EBADMSG, why,
				   "truncated: %llu bytes are less than the 8 "
				   "that hold the header's length",
				   (unsigned long long)size);
	if (len > SAFETENSORS_HEADER_MAX)
		return file_refuse(-EBADMSG, why,
				   "not a safetensors file: a header of %llu "
				   "bytes is announced, at most %llu are "
				   "allowed",
				   (unsigned long long)len,
				   (unsigned long long)SAFETENSORS_HEADER_MAX);
	if (len > size - LENGTH_BYTES)
		return file_refuse(
			-EBADMSG, why,
			"truncated: its header has %llu bytes, %llu "
			"of them are missing",
			(unsigned long long)len,
			(unsigned long long)(len - (size - LENGTH_BYTES)));
	return file_refuse(-EBADMSG, why,
			   "not a safetensors file: its header of %llu bytes "
			   "does not begin with {",
			   (unsigned long long)len);
}

/*
 * Adds what a mistake that the JSON gate found means here. It knows keys only;
 * at this depth they are the names of tensors.
 */
static int header_parse(struct table *t, const char *text, size_t len,
			struct buf *why)
{
	static const char duplicate[] = "duplicate key";
	struct buf reason = BUF_INIT;
	int r;

	r = json_stream(text, len, 0, member_read, t, &reason);
	if (r < 0 && r != -ENOMEM && !t->own_reason)
		(void)buf_printf(why, "header: ");
	if (r == -EBADMSG && !t->own_reason &&
	    strncmp(reason.data, duplicate, strlen(duplicate)) == 0)
		(void)buf_printf(why, "duplicate tensor name or field: ");
	if (r < 0 && r != -ENOMEM)
		(void)buf_append(why, reason.data, reason.len);
	buf_release(&reason);
	return r;
}

int safetensors_read(int fd, uint64_t size, tensor_fn *fn, void *arg,
		     struct buf *why)
{
	cleanup(table_release) struct table t = { .arena = ARENA_INIT };
	auto_free char *text = NULL;
	uint64_t len = 0;
	int r;

	r = frame_check(fd, size, &len, why);
	if (r < 0)
		return r;
	text = malloc(len);
	if (!text)
		return -ENOMEM;
	r = file_read_exact(fd, text, len, LENGTH_BYTES, why);
	if (r < 0)
		return r;
	r = header_parse(&t, text, len, why);
	if (r < 0)
		return r;
	free(take_ptr(text));

	r = coverage_check(&t, size - LENGTH_BYTES - len, why);
	if (r < 0)
		return r;
	return table_deliver(&t, LENGTH_BYTES + len, fn, arg, why);
}
