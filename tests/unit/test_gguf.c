/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/file_reader.h"
#include "core/gguf.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

enum { U32 = 4, STRING = 8, ARRAY = 9, U64 = 10 };
enum { F32 = 0, Q4_0 = 2, Q4_K = 12 };

struct seen {
	size_t count;
	struct tensor_info last;
	int answer;
};

static int see(void *arg, const struct tensor_info *t, struct buf *why)
{
	struct seen *s = arg;

	(void)why;
	s->count++;
	s->last = *t;
	return s->answer;
}

static void put(struct buf *b, const void *bytes, size_t len)
{
	ck_assert_int_eq(buf_append(b, bytes, len), 0);
}

static void put_u32(struct buf *b, uint32_t v)
{
	v = htole32(v);
	put(b, &v, sizeof(v));
}

static void put_u64(struct buf *b, uint64_t v)
{
	v = htole64(v);
	put(b, &v, sizeof(v));
}

static void put_text(struct buf *b, const char *s, size_t len)
{
	put_u64(b, len);
	put(b, s, len);
}

static void put_zeros(struct buf *b, size_t len)
{
	while (len--)
		put(b, "", 1);
}

static void put_head(struct buf *b, uint32_t version, uint64_t tensors,
		     uint64_t keys)
{
	put(b, "GGUF", 4);
	put_u32(b, version);
	put_u64(b, tensors);
	put_u64(b, keys);
}

static void put_key(struct buf *b, const char *key, uint32_t type)
{
	put_text(b, key, strlen(key));
	put_u32(b, type);
}

static void put_tensor(struct buf *b, const char *name, uint32_t rank,
		       const uint64_t *axes, uint32_t type, uint64_t offset)
{
	put_text(b, name, strlen(name));
	put_u32(b, rank);
	for (uint32_t i = 0; i < rank; i++)
		put_u64(b, axes[i]);
	put_u32(b, type);
	put_u64(b, offset);
}

static void pad(struct buf *b, size_t alignment)
{
	while (b->len % alignment)
		put_zeros(b, 1);
}

static int file_of(const struct buf *b)
{
	int fd = memfd_create("gguf", MFD_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, b->data, b->len), (ssize_t)b->len);
	return fd;
}

static int read_sized(const struct buf *b, uint64_t size, struct seen *s,
		      struct buf *why)
{
	auto_fd int fd = file_of(b);

	return gguf_read(fd, size, see, s, why);
}

static int read_buf(const struct buf *b, struct seen *s, struct buf *why)
{
	return read_sized(b, b->len, s, why);
}

/* Two keys of every shape, three tensors: 2 x 64 Q4_0, scalar F32, 4 F32. */
static void put_sample(struct buf *b, uint32_t version)
{
	put_head(b, version, 3, 3);
	put_key(b, "general.architecture", STRING);
	put_text(b, "llama", 5);
	put_key(b, "tokens", ARRAY);
	put_u32(b, STRING);
	put_u64(b, 2);
	put_text(b, "", 0);
	put_text(b, "xyz", 3);
	put_key(b, "numbers", ARRAY);
	put_u32(b, U32);
	put_u64(b, 1);
	put_u32(b, 7);
	put_tensor(b, "q", 2, (uint64_t[]){ 64, 2 }, Q4_0, 0);
	put_tensor(b, "s", 0, NULL, F32, 96);
	put_tensor(b, "w", 1, (uint64_t[]){ 4 }, F32, 128);
	pad(b, 32);
	put_zeros(b, 128 + 16);
}

START_TEST(versions_2_and_3_are_read)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };

	put_sample(&b, 2 + (uint32_t)_i);
	ck_assert_msg(read_buf(&b, &s, &why) == 0, "%s", why.data);
	ck_assert_uint_eq(s.count, 3);
	ck_assert_str_eq(s.last.dtype, "f32");
	ck_assert_uint_eq(s.last.end, b.len);
	ck_assert_uint_eq(s.last.begin, b.len - 16);
}
END_TEST

/* Whatever is missing at the end, it is refused and called truncated. */
START_TEST(every_shorter_file_is_refused)
{
	cleanup(buf_release) struct buf b = BUF_INIT;

	put_sample(&b, 3);
	for (size_t len = 4; len < b.len; len++) {
		cleanup(buf_release) struct buf why = BUF_INIT;
		struct buf cut = b;
		struct seen s = { .count = 0 };

		cut.len = len;
		ck_assert_int_eq(read_buf(&cut, &s, &why), -EBADMSG);
		ck_assert_msg(strstr(why.data, "truncated"), "%zu: %s", len,
			      why.data);
		ck_assert_uint_eq(s.count, 0);
	}
}
END_TEST

START_TEST(the_slowest_axis_comes_first_and_blocks_count)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };

	put_head(&b, 3, 1, 0);
	put_tensor(&b, "q", 3, (uint64_t[]){ 256, 3, 2 }, Q4_K, 0);
	pad(&b, 32);
	put_zeros(&b, (size_t)6 * 144);
	ck_assert_int_eq(read_buf(&b, &s, &why), 0);
	ck_assert_uint_eq(s.last.rank, 3);
	ck_assert_uint_eq(s.last.shape[0], 2);
	ck_assert_uint_eq(s.last.shape[1], 3);
	ck_assert_uint_eq(s.last.shape[2], 256);
	ck_assert_uint_eq(s.last.block_elems, 256);
	ck_assert_uint_eq(s.last.block_bytes, 144);
	ck_assert_str_eq(s.last.dtype, "q4_K");
	ck_assert_uint_eq(s.last.end - s.last.begin, 6 * 144);
}
END_TEST

/* clang-format off */
static const struct {
	const char *why;
	const char *name;
	uint64_t axes[4];
	uint32_t rank, type;
	uint64_t offset;
	size_t data_len;
	int err;
} tensors[] = {
	{ "",               "w", { 4 },             1, F32,  0, 16, 0 },
	{ "",               "",  { 4 },             1, F32,  0, 16, 0 },
	{ "",               "e", { 0 },             1, F32,  0,  0, 0 },
	{ "",               "e", { 0, 1ULL << 62 }, 2, F32,  0,  0, 0 },
	{ "",               "w", { 1, 1, 1, 1 },    4, F32,  0,  4, 0 },
	{ "",               "more", { 4 },          1, F32,  0, 99, 0 },
	{ "truncated",      "w", { 4 },             1, F32,  0, 15, -EBADMSG },
	{ "leaves a hole",  "w", { 4 },             1, F32, 32, 64, -EBADMSG },
	{ "multiple of the alignment 32",
			    "w", { 4 },             1, F32,  4, 64, -EBADMSG },
	{ "leaves a hole",  "w", { 4 },             1, F32, -32ULL, 64, -EBADMSG },
	{ "overflow",       "w", { -1ULL },         1, F32,  0, 64, -EBADMSG },
	{ "overflow",       "w", { 1ULL << 63 },    1, 24,   0, 64, -EBADMSG },
	{ "overflow",       "w", { 1ULL << 62 },    1, F32,  0, 64, -EBADMSG },
	{ "overflow",       "w", { 1ULL << 32, 1ULL << 32 }, 2, F32, 0, 64,
	  -EBADMSG },
	{ "overflow",       "w", { 1ULL << 62, 4, 0 }, 3, F32, 0, 64, -EBADMSG },
	{ "overflow",       "w", { 0, 4, 1ULL << 62 }, 3, F32, 0, 64, -EBADMSG },
	{ "a row of 33",    "w", { 33 },            1, Q4_0, 0, 64, -EBADMSG },
	{ "a row of 1 ",    "w", { 0 },             0, Q4_0, 0, 64, -EBADMSG },
	{ "type 4",         "w", { 32 },            1, 4,    0, 64, -EBADMSG },
	{ "type 36",        "w", { 32 },            1, 36,   0, 64, -EBADMSG },
	{ "type 42",        "w", { 32 },            1, 42,   0, 64, -EBADMSG },
	{ "type 4294967295", "w", { 32 },           1, -1U,  0, 64, -EBADMSG },
	{ "UTF-8",          "\xff", { 4 },          1, F32,  0, 64, -EBADMSG },
};
/* clang-format on */

START_TEST(a_tensor_is_checked)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };
	int r;

	put_head(&b, 3, 1, 0);
	put_tensor(&b, tensors[_i].name, tensors[_i].rank, tensors[_i].axes,
		   tensors[_i].type, tensors[_i].offset);
	pad(&b, 32);
	put_zeros(&b, tensors[_i].data_len);
	r = read_buf(&b, &s, &why);
	ck_assert_msg(r == tensors[_i].err, "%d: got %d, %s", _i, r, why.data);
	ck_assert_msg(strstr(why.data, tensors[_i].why), "%s", why.data);
	ck_assert_uint_eq(s.count, r == 0);
}
END_TEST

START_TEST(more_than_four_axes_are_refused)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };

	put_head(&b, 3, 1, 0);
	put_tensor(&b, "w", 5, (uint64_t[]){ 1, 1, 1, 1, 1 }, F32, 0);
	put_zeros(&b, 64);
	ck_assert_int_eq(read_buf(&b, &s, &why), -EBADMSG);
	ck_assert_ptr_nonnull(strstr(why.data, "5 axes"));
}
END_TEST

START_TEST(two_tensors_may_not_share_name_or_bytes)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };

	put_head(&b, 3, 2, 0);
	put_tensor(&b, "a", 1, (uint64_t[]){ 8 }, F32, 0);
	put_tensor(&b, _i ? "b" : "a", 1, (uint64_t[]){ 8 }, F32, 0);
	pad(&b, 32);
	put_zeros(&b, 64);
	ck_assert_int_eq(read_buf(&b, &s, &why), -EBADMSG);
	ck_assert_ptr_nonnull(
		strstr(why.data, _i ? "tensor 'b': its offset 0 overlaps" :
				      "duplicate tensor name 'a'"));
}
END_TEST

/* clang-format off */
static const struct {
	const char *why;
	uint32_t type;
	uint64_t value;
	int err;
} alignments[] = {
	{ "",              U32, 1,         0 },
	{ "",              U32, 8,         0 },
	{ "",              U32, 64,        0 },
	{ "",              U32, 4096,      0 },
	{ "power of two",  U32, 0,         -EBADMSG },
	{ "power of two",  U32, 3,         -EBADMSG },
	{ "power of two",  U32, 2ULL * GGUF_ALIGNMENT_MAX, -EBADMSG },
	{ "truncated",     U32, GGUF_ALIGNMENT_MAX, -EBADMSG },
	{ "value type 10", U64, 32,        -EBADMSG },
};
/* clang-format on */

START_TEST(the_declared_alignment_counts)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	uint64_t value = alignments[_i].value;
	struct seen s = { .count = 0 };
	int r;

	put_head(&b, 3, 1, 1);
	put_key(&b, "general.alignment", alignments[_i].type);
	if (alignments[_i].type == U32)
		put_u32(&b, (uint32_t)value);
	else
		put_u64(&b, value);
	put_tensor(&b, "w", 1, (uint64_t[]){ 4 }, F32, 0);
	if (alignments[_i].err == 0)
		pad(&b, value);
	put_zeros(&b, 16);
	r = read_buf(&b, &s, &why);
	ck_assert_msg(r == alignments[_i].err, "%d: got %d", _i, r);
	ck_assert_msg(strstr(why.data, alignments[_i].why), "%s", why.data);
	if (r == 0)
		ck_assert_uint_eq(s.last.begin, b.len - 16);
}
END_TEST

/* clang-format off */
static const struct {
	const char *why;
	uint32_t version;
	uint64_t tensors, keys;
	int err;
} heads[] = {
	{ "",               3,          0,          0,          0 },
	{ "version 1",      1,          0,          0,          -EBADMSG },
	{ "version 4",      4,          0,          0,          -EBADMSG },
	{ "version 65536",  0x10000,    0,          0,          -EBADMSG },
	{ "byte order",     0x03000000, 0,          0,          -EBADMSG },
	{ "byte order",     0x02000000, 0,          0,          -EBADMSG },
	{ "tensors are announced", 3,   1ULL << 63, 0,          -EBADMSG },
	{ "tensors are announced", 3,   1ULL << 40, 0,          -EBADMSG },
	{ "keys are announced",    3,   0,          1ULL << 63, -EBADMSG },
};
/* clang-format on */

START_TEST(the_head_is_checked)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };
	int r;

	put_head(&b, heads[_i].version, heads[_i].tensors, heads[_i].keys);
	put_zeros(&b, 100);
	r = read_buf(&b, &s, &why);
	ck_assert_msg(r == heads[_i].err, "%d: got %d", _i, r);
	ck_assert_msg(strstr(why.data, heads[_i].why), "%s", why.data);
}
END_TEST

/* Counts that fit a (sparse) file, but are above what we take. */
START_TEST(counts_are_limited)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };

	put_head(&b, 3, _i ? GGUF_TENSORS_MAX + 1 : 0,
		 _i ? 0 : GGUF_KEYS_MAX + 1);
	put_zeros(&b, FILE_READER_WINDOW);
	ck_assert_int_eq(read_sized(&b, 1 << 30, &s, &why), -EFBIG);
}
END_TEST

/* One key with the length, type and bytes of value that are given. */
/* clang-format off */
static const struct {
	const char *why;
	uint64_t key_len;
	uint32_t type;
	uint64_t value[3];
	int err;
} keys[] = {
	{ "",             3, STRING, { 8 },            0 },
	{ "is empty",     0, STRING, { 8 },            -EBADMSG },
	{ "truncated",    -1ULL, STRING, { 8 },        -EBADMSG },
	{ "truncated",    3, STRING, { 1 << 30 },      -EBADMSG },
	{ "truncated",    3, STRING, { -1ULL },        -EBADMSG },
	{ "type 13",      3, 13,     { 8 },            -EBADMSG },
	/* An array: type in the low half, then the count across the middle. */
	{ "",             3, ARRAY,  { U32 },          0 },
	{ "values of type 9",  3, ARRAY, { ARRAY },    -EBADMSG },
	{ "values of type 13", 3, ARRAY, { 13 },       -EBADMSG },
	{ "too short",    3, ARRAY,  { U64, 1U << 29 },        -EBADMSG },
	{ "too short",    3, ARRAY,  { U64 | 1ULL << 32, 1U << 29 }, -EBADMSG },
	{ "too short",    3, ARRAY,  { STRING, 1U << 29 },     -EBADMSG },
	{ "too short",    3, ARRAY,  { U32, 1U << 30 },        -EBADMSG },
};
/* clang-format on */

START_TEST(a_key_is_checked)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };
	int r;

	put_head(&b, 3, 0, 1);
	put_u64(&b, keys[_i].key_len);
	put(&b, "key", keys[_i].key_len == 3 ? 3 : 0);
	put_u32(&b, keys[_i].type);
	for (size_t i = 0; i < ARRAY_LEN(keys[_i].value); i++)
		put_u64(&b, keys[_i].value[i]);
	r = read_buf(&b, &s, &why);
	ck_assert_msg(r == keys[_i].err, "%d: got %d, %s", _i, r, why.data);
	ck_assert_msg(strstr(why.data, keys[_i].why), "%s", why.data);
}
END_TEST

START_TEST(two_equal_keys_are_refused)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };

	put_head(&b, 3, 0, 3);
	for (int i = 0; i < 3; i++) {
		put_key(&b, i == 1 ? "k.l" : "k", U32);
		put_u32(&b, 1);
	}
	ck_assert_int_eq(read_buf(&b, &s, &why), -EBADMSG);
	ck_assert_str_eq(why.data, "duplicate key 'k'");
}
END_TEST

/* Strings that lie across the edge of the window, or fill it. */
START_TEST(metadata_may_be_larger_than_the_window)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };

	put_head(&b, 3, 1, 2);
	put_key(&b, "big", STRING);
	put_u64(&b, FILE_READER_WINDOW);
	put_zeros(&b, FILE_READER_WINDOW);
	put_key(&b, "words", ARRAY);
	put_u32(&b, STRING);
	put_u64(&b, 20000);
	for (int i = 0; i < 20000; i++)
		put_text(&b, "four", 4);
	put_tensor(&b, "w", 1, (uint64_t[]){ 4 }, F32, 0);
	pad(&b, 32);
	put_zeros(&b, 16);
	ck_assert_msg(read_buf(&b, &s, &why) == 0, "%s", why.data);
	ck_assert_uint_eq(s.last.begin, b.len - 16);
}
END_TEST

START_TEST(a_read_error_and_an_error_of_the_callback_are_handed_on)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .answer = -ENOSPC };

	ck_assert_int_eq(gguf_read(-1, 100, see, &s, &why), -EBADF);
	put_sample(&b, 3);
	ck_assert_int_eq(read_buf(&b, &s, &why), -ENOSPC);
	ck_assert_uint_eq(s.count, 1);
}
END_TEST

static int sample = -1;
static uint64_t sample_size;

/* Asserts nothing: Check allocates, too. */
static int read_and_drop(void)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };

	return gguf_read(sample, sample_size, see, &s, &why);
}

START_TEST(every_allocation_may_fail)
{
	cleanup(buf_release) struct buf b = BUF_INIT;

	put_sample(&b, 3);
	sample = file_of(&b);
	sample_size = b.len;
	fault_sweep(read_and_drop);
	(void)close(sample);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("gguf");
	TCase *tc = tcase_create("gguf");

	tcase_add_loop_test(tc, versions_2_and_3_are_read, 0, 2);
	tcase_add_test(tc, every_shorter_file_is_refused);
	tcase_add_test(tc, the_slowest_axis_comes_first_and_blocks_count);
	tcase_add_loop_test(tc, a_tensor_is_checked, 0, ARRAY_LEN(tensors));
	tcase_add_test(tc, more_than_four_axes_are_refused);
	tcase_add_loop_test(tc, two_tensors_may_not_share_name_or_bytes, 0, 2);
	tcase_add_loop_test(tc, the_declared_alignment_counts, 0,
			    ARRAY_LEN(alignments));
	tcase_add_loop_test(tc, the_head_is_checked, 0, ARRAY_LEN(heads));
	tcase_add_loop_test(tc, counts_are_limited, 0, 2);
	tcase_add_loop_test(tc, a_key_is_checked, 0, ARRAY_LEN(keys));
	tcase_add_test(tc, two_equal_keys_are_refused);
	tcase_add_test(tc, metadata_may_be_larger_than_the_window);
	tcase_add_test(tc,
		       a_read_error_and_an_error_of_the_callback_are_handed_on);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
