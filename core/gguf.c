/* SPDX-License-Identifier: Apache-2.0 */
#include "core/gguf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/buf.h"
#include "core/cleanup.h"
#include "core/file_reader.h"
#include "core/utf8.h"
#include "core/util.h"

#define ALIGNMENT_KEY "general.alignment"
#define ALIGNMENT_DEFAULT 32

/* The least that a key and a tensor take in the file. */
#define KEY_BYTES_MIN (8 + 1 + 4 + 1)
#define TENSOR_BYTES_MIN (8 + 4 + 4 + 8)

enum value_type {
	VALUE_U32 = 4,
	VALUE_STRING = 8,
	VALUE_ARRAY = 9,
};

/* Bytes of one value of each type; 0 where the file says how many. */
static const uint8_t value_bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

/* clang-format off */
static const struct ggml_type {
	const char *name; /* NULL: never assigned, or withdrawn */
	uint32_t block_elems, block_bytes;
} ggml_types[] = {
	[0]  = { "f32",       1,   4 }, [1]  = { "f16",       1,   2 },
	[2]  = { "q4_0",     32,  18 }, [3]  = { "q4_1",     32,  20 },
	[6]  = { "q5_0",     32,  22 }, [7]  = { "q5_1",     32,  24 },
	[8]  = { "q8_0",     32,  34 }, [9]  = { "q8_1",     32,  36 },
	[10] = { "q2_K",    256,  84 }, [11] = { "q3_K",    256, 110 },
	[12] = { "q4_K",    256, 144 }, [13] = { "q5_K",    256, 176 },
	[14] = { "q6_K",    256, 210 }, [15] = { "q8_K",    256, 292 },
	[16] = { "iq2_xxs", 256,  66 }, [17] = { "iq2_xs",  256,  74 },
	[18] = { "iq3_xxs", 256,  98 }, [19] = { "iq1_s",   256,  50 },
	[20] = { "iq4_nl",   32,  18 }, [21] = { "iq3_s",   256, 110 },
	[22] = { "iq2_s",   256,  82 }, [23] = { "iq4_xs",  256, 136 },
	[24] = { "i8",        1,   1 }, [25] = { "i16",       1,   2 },
	[26] = { "i32",       1,   4 }, [27] = { "i64",       1,   8 },
	[28] = { "f64",       1,   8 }, [29] = { "iq1_m",   256,  56 },
	[30] = { "bf16",      1,   2 },
	[34] = { "tq1_0",   256,  54 }, [35] = { "tq2_0",   256,  66 },
	[39] = { "mxfp4",    32,  17 }, [40] = { "nvfp4",    64,  36 },
	[41] = { "q1_0",    128,  18 },
};
/* clang-format on */

struct text {
	const char *bytes;
	size_t len;
};

struct entry {
	struct text name;
	const struct ggml_type *type;
	unsigned rank;
	uint64_t axes[GGUF_RANK_MAX]; /* as in the file, fastest first */
	uint64_t begin;               /* in the data section */
	uint64_t bytes;
};

struct table {
	struct arena arena; /* keys and names */
	struct text *keys;
	size_t key_count, key_cap;
	size_t key_bytes;
	struct entry *entries;
	size_t count, cap;
	uint32_t alignment;
	uint64_t expected; /* where the next tensor must begin */
};

static void table_release(struct table *t)
{
	arena_release(&t->arena);
	free(t->keys);
	free(t->entries);
}

/* The bytes of a string, in the arena. */
static struct text read_text(struct file_reader *r, struct table *t, size_t max)
{
	uint64_t len = file_reader_u64(r);
	char *bytes;

	if (file_reader_need(r, len) < 0)
		return (struct text){ .len = 0 };
	if (len > max) {
		r->err = file_refuse(-EBADMSG, r->why,
				     "%s at byte %llu has %llu bytes, at most "
				     "%zu are allowed",
				     r->part, (unsigned long long)r->at,
				     (unsigned long long)len, max);
		return (struct text){ .len = 0 };
	}
	bytes = arena_alloc(&t->arena, len);
	if (!bytes) {
		r->err = -ENOMEM;
		return (struct text){ .len = 0 };
	}
	file_reader_bytes(r, bytes, len);
	return (struct text){ .bytes = bytes, .len = len };
}

static int text_cmp(const void *a, const void *b)
{
	const struct text *x = a;
	const struct text *y = b;
	size_t n = x->len < y->len ? x->len : y->len;
	int r = n ? memcmp(x->bytes, y->bytes, n) : 0;

	return r ? r : (x->len > y->len) - (x->len < y->len);
}

static bool text_is(struct text t, const char *s)
{
	return t.len == strlen(s) && memcmp(t.bytes, s, t.len) == 0;
}

/* Sorts texts. Two equal ones are refused: "duplicate key 'x'". */
static int distinct_check(struct text *texts, size_t count, const char *what,
			  struct buf *why)
{
	if (count)
		qsort(texts, count, sizeof(*texts), text_cmp);
	for (size_t i = 1; i < count; i++) {
		if (text_cmp(&texts[i - 1], &texts[i]) != 0)
			continue;
		(void)file_refuse(-EBADMSG, why, "duplicate %s ", what);
		tensor_show_name(why, texts[i].bytes, texts[i].len);
		return -EBADMSG;
	}
	return 0;
}

/* "key 'x': WHAT N" */
static int value_refuse(struct file_reader *r, struct text key,
			const char *what, uint64_t n)
{
	(void)buf_printf(r->why, "key ");
	tensor_show_name(r->why, key.bytes, key.len);
	return file_refuse(-EBADMSG, r->why, ": %s %llu", what,
			   (unsigned long long)n);
}

static void array_skip(struct file_reader *r, struct text key)
{
	uint32_t type = file_reader_u32(r);
	uint64_t count = file_reader_u64(r);
	size_t each;

	if (r->err)
		return;
	if (type >= ARRAY_LEN(value_bytes) || type == VALUE_ARRAY) {
		r->err = value_refuse(r, key, "an array of values of type",
				      type);
		return;
	}
	/* The least that one element takes: a string has its length. */
	each = type == VALUE_STRING ? 8 : value_bytes[type];
	if (count > file_reader_left(r) / each) {
		r->err = value_refuse(r, key,
				      "truncated: the file is too short for an "
				      "array whose number of elements is",
				      count);
		return;
	}
	if (type != VALUE_STRING)
		file_reader_skip(r, count * each);
	else
		for (uint64_t i = 0; i < count && !r->err; i++)
			file_reader_skip(r, file_reader_u64(r));
}

static void alignment_read(struct file_reader *r, struct table *t,
			   uint32_t type)
{
	uint32_t a = file_reader_u32(r);

	if (r->err)
		return;
	if (type != VALUE_U32) {
		r->err = file_refuse(-EBADMSG, r->why,
				     ALIGNMENT_KEY " has value type %u instead "
						   "of %d",
				     type, VALUE_U32);
		return;
	}
	if (a == 0 || (a & (a - 1)) || a > GGUF_ALIGNMENT_MAX) {
		r->err = file_refuse(-EBADMSG, r->why,
				     ALIGNMENT_KEY " is %u, not a power of two "
						   "up to %u",
				     a, GGUF_ALIGNMENT_MAX);
		return;
	}
	t->alignment = a;
}

static void value_read(struct file_reader *r, struct table *t, struct text key)
{
	uint32_t type = file_reader_u32(r);

	if (r->err)
		return;
	if (text_is(key, ALIGNMENT_KEY))
		alignment_read(r, t, type);
	else if (type >= ARRAY_LEN(value_bytes))
		r->err = value_refuse(r, key, "unknown value type", type);
	else if (type == VALUE_ARRAY)
		array_skip(r, key);
	else if (type == VALUE_STRING)
		file_reader_skip(r, file_reader_u64(r));
	else
		file_reader_skip(r, value_bytes[type]);
}

/* Room for one more of size bytes at the end of *items. */
static int grow(void *items, size_t count, size_t *cap, size_t size)
{
	void **slot = items;
	size_t more = *cap ? 2 * *cap : 64;
	void *p;

	if (count < *cap)
		return 0;
	p = realloc(*slot, more * size);
	if (!p)
		return -ENOMEM;
	*slot = p;
	*cap = more;
	return 0;
}

static int head_bytes_check(struct file_reader *r)
{
	if (r->err || r->at <= GGUF_HEAD_BYTES_MAX)
		return r->err;
	return file_refuse(-EFBIG, r->why,
			   "more than %llu bytes of keys and tensor table",
			   (unsigned long long)GGUF_HEAD_BYTES_MAX);
}

static int keys_read(struct file_reader *r, struct table *t, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		struct text key;
		int e;

		r->part = "a key";
		key = read_text(r, t, GGUF_KEY_MAX);
		if (r->err)
			return r->err;
		if (key.len == 0)
			return file_refuse(-EBADMSG, r->why,
					   "key number %llu is empty",
					   (unsigned long long)i + 1);
		t->key_bytes += key.len;
		if (t->key_bytes > GGUF_KEY_BYTES_MAX)
			return file_refuse(-EFBIG, r->why,
					   "more than %zu bytes of keys",
					   GGUF_KEY_BYTES_MAX);
		r->part = "the value of a key";
		value_read(r, t, key);
		e = head_bytes_check(r);
		if (e < 0)
			return e;
		e = grow(&t->keys, t->key_count, &t->key_cap, sizeof(*t->keys));
		if (e < 0)
			return e;
		t->keys[t->key_count++] = key;
	}
	return distinct_check(t->keys, t->key_count, "key", r->why);
}

static int name_check(struct text name, struct buf *why)
{
	if (utf8_valid(name.bytes, name.len) &&
	    !(name.len && memchr(name.bytes, '\0', name.len)))
		return 0;
	return tensor_refuse(-EBADMSG, why, name.bytes, name.len,
			     "its name is not valid UTF-8 without NUL bytes");
}

static void axes_reverse(const struct entry *e, uint64_t *shape)
{
	for (unsigned i = 0; i < e->rank; i++)
		shape[i] = e->axes[e->rank - 1 - i];
}

/* The number of bytes, from type and axes. */
static int extent_set(struct entry *e, struct buf *why)
{
	uint64_t row = e->rank ? e->axes[0] : 1;
	uint64_t shape[GGUF_RANK_MAX];
	uint64_t elems;

	axes_reverse(e, shape);
	if (tensor_elements(e->axes, e->rank, &elems) < 0 ||
	    tensor_elements(shape, e->rank, &elems) < 0 ||
	    __builtin_mul_overflow(elems / e->type->block_elems,
				   e->type->block_bytes, &e->bytes) ||
	    e->bytes > INT64_MAX)
		return tensor_refuse(-EBADMSG, why, e->name.bytes, e->name.len,
				     "its axes overflow 63 bits");
	if (row % e->type->block_elems)
		return tensor_refuse(-EBADMSG, why, e->name.bytes, e->name.len,
				     "a row of %llu elements is no multiple of "
				     "the %u of a %s block",
				     (unsigned long long)row,
				     e->type->block_elems, e->type->name);
	return 0;
}

static int offset_check(struct table *t, const struct entry *e, struct buf *why)
{
	uint64_t pad = t->alignment - 1;
	uint64_t end;

	if (e->begin & pad)
		return tensor_refuse(-EBADMSG, why, e->name.bytes, e->name.len,
				     "its offset %llu is no multiple of the "
				     "alignment %u",
				     (unsigned long long)e->begin,
				     t->alignment);
	if (e->begin != t->expected)
		return tensor_refuse(-EBADMSG, why, e->name.bytes, e->name.len,
				     "its offset %llu %s: %llu is where the "
				     "data before it ends",
				     (unsigned long long)e->begin,
				     e->begin < t->expected ? "overlaps" :
							      "leaves a hole",
				     (unsigned long long)t->expected);
	if (__builtin_add_overflow(e->begin, e->bytes, &end) ||
	    __builtin_add_overflow(end, pad, &end))
		return tensor_refuse(-EBADMSG, why, e->name.bytes, e->name.len,
				     "offset and size overflow 64 bits");
	t->expected = end & ~pad;
	return 0;
}

static int type_set(struct entry *e, uint32_t type, struct buf *why)
{
	if (type >= ARRAY_LEN(ggml_types) || !ggml_types[type].name)
		return tensor_refuse(-EBADMSG, why, e->name.bytes, e->name.len,
				     "unknown or withdrawn type %u", type);
	e->type = &ggml_types[type];
	return 0;
}

static int entry_read(struct file_reader *r, struct table *t)
{
	struct entry e = { .rank = 0 };
	uint32_t rank, type;
	int err;

	e.name = read_text(r, t, GGUF_NAME_MAX);
	rank = file_reader_u32(r);
	if (r->err)
		return r->err;
	err = name_check(e.name, r->why);
	if (err < 0)
		return err;
	if (rank > GGUF_RANK_MAX)
		return tensor_refuse(-EBADMSG, r->why, e.name.bytes, e.name.len,
				     "it has %u axes, at most %d are allowed",
				     rank, GGUF_RANK_MAX);
	e.rank = rank;
	for (unsigned i = 0; i < rank; i++)
		e.axes[i] = file_reader_u64(r);
	type = file_reader_u32(r);
	e.begin = file_reader_u64(r);
	err = head_bytes_check(r);
	if (err < 0)
		return err;

	if ((err = type_set(&e, type, r->why)) < 0 ||
	    (err = extent_set(&e, r->why)) < 0 ||
	    (err = grow(&t->entries, t->count, &t->cap, sizeof(e))) < 0)
		return err;
	t->entries[t->count++] = e;
	return 0;
}

static int names_check(const struct table *t, struct buf *why)
{
	auto_free struct text *names = NULL;

	if (t->count < 2)
		return 0;
	names = malloc(t->count * sizeof(*names));
	if (!names)
		return -ENOMEM;
	for (size_t i = 0; i < t->count; i++)
		names[i] = t->entries[i].name;
	return distinct_check(names, t->count, "tensor name", why);
}

/* Names before offsets: of two like-named tensors the name is what is wrong. */
static int entries_read(struct file_reader *r, struct table *t, uint64_t count)
{
	int err;

	r->part = "the tensor table";
	for (uint64_t i = 0; i < count; i++) {
		err = entry_read(r, t);
		if (err < 0)
			return err;
	}
	err = names_check(t, r->why);
	for (size_t i = 0; err == 0 && i < t->count; i++)
		err = offset_check(t, &t->entries[i], r->why);
	return err;
}

static int magic_check(struct file_reader *r)
{
	unsigned long long size = r->size;
	size_t len;
	const uint8_t *head = file_reader_peek(r, &len);
	const char *looks;

	if (r->err || (len >= 4 && memcmp(head, "GGUF", 4) == 0))
		return r->err;
	looks = file_looks_like(head,
				len < FILE_HEAD_LEN ? len : FILE_HEAD_LEN);
	if (looks)
		return file_refuse(-EBADMSG, r->why,
				   "not a GGUF file: it looks like %s (%llu "
				   "bytes)",
				   looks, size);
	return file_refuse(-EBADMSG, r->why,
			   "not a GGUF file: it does not begin with GGUF "
			   "(%llu bytes)",
			   size);
}

static int version_check(struct file_reader *r, uint32_t version)
{
	uint32_t swapped = __builtin_bswap32(version);

	if (version == 2 || version == 3)
		return 0;
	if (swapped >= 1 && swapped <= 3)
		return file_refuse(-EBADMSG, r->why,
				   "big-endian byte order (version %u): only "
				   "little-endian GGUF files can be read",
				   swapped);
	return file_refuse(-EBADMSG, r->why,
			   "GGUF version %u is not supported, only 2 and 3 are",
			   version);
}

static int count_check(struct file_reader *r, uint64_t count, uint64_t each,
		       uint64_t max, const char *what)
{
	if (count > file_reader_left(r) / each)
		return file_refuse(-EBADMSG, r->why,
				   "truncated or damaged: %llu %s are "
				   "announced, more than fit in the file",
				   (unsigned long long)count, what);
	if (count > max)
		return file_refuse(-EFBIG, r->why,
				   "%llu %s, at most %llu are supported",
				   (unsigned long long)count, what,
				   (unsigned long long)max);
	return 0;
}

/* All before the data; *ret_base is where that begins. */
static int head_read(struct file_reader *r, struct table *t, uint64_t *ret_base)
{
	uint64_t tensors, keys, base;
	char magic[4];
	int err;

	err = magic_check(r);
	if (err < 0)
		return err;
	r->part = "the fixed header";
	file_reader_bytes(r, magic, sizeof(magic));
	err = version_check(r, file_reader_u32(r));
	tensors = file_reader_u64(r);
	keys = file_reader_u64(r);
	if (r->err || err)
		return r->err ? r->err : err;

	if ((err = count_check(r, tensors, TENSOR_BYTES_MIN, GGUF_TENSORS_MAX,
			       "tensors")) < 0 ||
	    (err = count_check(r, keys, KEY_BYTES_MIN, GGUF_KEYS_MAX, "keys")) <
		    0 ||
	    (err = keys_read(r, t, keys)) < 0 ||
	    (err = entries_read(r, t, tensors)) < 0)
		return err;
	base = (r->at + t->alignment - 1) & ~(uint64_t)(t->alignment - 1);
	if (t->count && base > r->size)
		return file_refuse(-EBADMSG, r->why,
				   "truncated: its data begins at byte %llu, "
				   "the file has %llu",
				   (unsigned long long)base,
				   (unsigned long long)r->size);
	*ret_base = base;
	return 0;
}

/* The tensors are in the order of the data: the last one ends last. */
static int bounds_check(const struct table *t, uint64_t base, uint64_t size,
			struct buf *why)
{
	const struct entry *last;
	uint64_t end;

	if (t->count == 0)
		return 0;
	last = &t->entries[t->count - 1];
	end = last->begin + last->bytes; /* fits: offset_check() */
	if (end <= size - base)
		return 0;
	for (last = t->entries; last->begin + last->bytes <= size - base;)
		last++;
	return tensor_refuse(-EBADMSG, why, last->name.bytes, last->name.len,
			     "truncated: the tensors need %llu bytes of data, "
			     "%llu of them are missing",
			     (unsigned long long)end,
			     (unsigned long long)(end - (size - base)));
}

static int table_deliver(const struct table *t, uint64_t base, tensor_fn *fn,
			 void *arg, struct buf *why)
{
	for (size_t i = 0; i < t->count; i++) {
		const struct entry *e = &t->entries[i];
		struct tensor_info info = {
			.name = e->name.bytes,
			.name_len = e->name.len,
			.dtype = e->type->name,
			.rank = e->rank,
			.begin = base + e->begin,
			.end = base + e->begin + e->bytes,
			.block_elems = e->type->block_elems,
			.block_bytes = e->type->block_bytes,
		};
		int r;

		axes_reverse(e, info.shape);
		r = fn(arg, &info, why);
		if (r < 0)
			return r;
	}
	return 0;
}

int gguf_read(int fd, uint64_t size, tensor_fn *fn, void *arg, struct buf *why)
{
	cleanup(table_release) struct table t = {
		.arena = ARENA_INIT,
		.alignment = ALIGNMENT_DEFAULT,
	};
	auto_free struct file_reader *r = NULL;
	uint64_t base = 0;
	int err;

	r = malloc(sizeof(*r));
	if (!r)
		return -ENOMEM;
	file_reader_init(r, fd, size, why);
	err = head_read(r, &t, &base);
	if (err < 0)
		return err;
	err = bounds_check(&t, base, size, why);
	if (err < 0)
		return err;
	return table_deliver(&t, base, fn, arg, why);
}
