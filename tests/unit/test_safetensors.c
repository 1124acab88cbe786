/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/safetensors.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

#define ENTRY(dtype, shape, range)                                             \
	"{\"dtype\":\"" dtype "\",\"shape\":[" shape                           \
	"],\"data_offsets\":[" range "]}"

struct seen {
	size_t count;
	char names[256]; /* "a,b," in the order of the calls */
	struct tensor_info last;
	int answer;
};

static int see(void *arg, const struct tensor_info *t, struct buf *why)
{
	struct seen *s = arg;
	size_t used = strlen(s->names);

	(void)why;
	s->count++;
	s->last = *t;
	if (t->name_len + used + 2 < sizeof(s->names))
		(void)snprintf(s->names + used, sizeof(s->names) - used,
			       "%.*s,", (int)t->name_len, t->name);
	return s->answer;
}

/* A file in memory: the length field, the header, then data_len zeros. */
static int file_of(uint64_t len_field, const char *header, size_t header_len,
		   size_t data_len)
{
	uint64_t le = htole64(len_field);
	int fd = memfd_create("safetensors", MFD_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, &le, sizeof(le)), sizeof(le));
	ck_assert_int_eq(write(fd, header, header_len), (ssize_t)header_len);
	ck_assert_int_eq(
		ftruncate(fd, (off_t)(sizeof(le) + header_len + data_len)), 0);
	return fd;
}

static int read_fd(int fd, struct seen *s, struct buf *why)
{
	off_t size = lseek(fd, 0, SEEK_END);

	ck_assert_int_ge(size, 0);
	return safetensors_read(fd, (uint64_t)size, see, s, why);
}

static int read_text(const char *header, size_t data_len, struct seen *s,
		     struct buf *why)
{
	auto_fd int fd =
		file_of(strlen(header), header, strlen(header), data_len);

	return read_fd(fd, s, why);
}

/* clang-format off */
static const struct {
	const char *why;
	const char *header;
	size_t data_len;
	const char *names;
	uint64_t begin, end; /* of the last one, in the data */
} accepted[] = {
	{ "nothing", "{}", 0, "", 0, 0 },
	{ "trailing white space", "{} \n\t\r ", 0, "", 0, 0 },
	{ "metadata only", "{\"__metadata__\":{\"a\":\"1\"}}", 0, "", 0, 0 },
	{ "empty metadata", "{\"__metadata__\":{}}", 0, "", 0, 0 },
	{ "null metadata", "{\"__metadata__\":null}", 0, "", 0, 0 },
	{ "a scalar", "{\"s\":" ENTRY("I64", "", "0,8") "}", 8, "s,", 0, 8 },
	{ "empty tensor first",
	  "{\"w\":" ENTRY("F32", "2,2", "0,16") ","
	  "\"e\":" ENTRY("F8_E4M3", "0", "0,0") "}", 16, "e,w,", 0, 16 },
	{ "empty tensor in the middle, in reverse",
	  "{\"b\":" ENTRY("F32", "2", "8,16") ","
	  "\"e\":" ENTRY("F32", "3,0", "8,8") ","
	  "\"a\":" ENTRY("F32", "2", "0,8") "}", 16, "a,e,b,", 8, 16 },
	{ "empty tensor last",
	  "{\"e\":" ENTRY("BF16", "0,7", "5,5") ","
	  "\"a\":" ENTRY("U8", "5", "0,5") "}", 5, "a,e,", 5, 5 },
	{ "zero before a huge axis",
	  "{\"e\":" ENTRY("F32", "0,9223372036854775807,4", "0,0") "}", 0,
	  "e,", 0, 0 },
	{ "empty name", "{\"\":" ENTRY("U8", "1", "0,1") "}", 1, ",", 0, 1 },
	{ "half bytes", "{\"a\":" ENTRY("F4", "3,2", "0,3") "}", 3, "a,", 0, 3 },
	{ "six bits", "{\"a\":" ENTRY("F6_E2M3", "2,4", "0,6") "}", 6, "a,",
	  0, 6 },
	{ "an unknown field",
	  "{\"a\":{\"x\":{},\"data_offsets\":[0,2],\"shape\":[2],"
	  "\"dtype\":\"U8\"}}", 2, "a,", 0, 2 },
};

static const struct {
	const char *why; /* words of the sentence */
	const char *header;
	size_t data_len;
	int err;
} rejected[] = {
	{ "does not begin with {", "[]",                       0, -EBADMSG },
	{ "does not begin with {", " {}",                      0, -EBADMSG },
	{ "header: ",              "{",                        0, -EBADMSG },
	{ "header: ",              "{},\"a\":{}",              0, -EBADMSG },
	{ "header: ",              "{\"a\":\xff}",             0, -EBADMSG },
	{ "no object",             "{\"a\":[]}",               0, -EBADMSG },
	{ "no object",             "{\"__metadata__\":[]}",    0, -EBADMSG },
	{ "'k' is no string",      "{\"__metadata__\":{\"k\":1}}", 0, -EBADMSG },
	{ "duplicate tensor name",
	  "{\"a\":" ENTRY("U8", "1", "0,1") ",\"a\":"
	  ENTRY("U8", "1", "0,1") "}", 1, -EBADMSG },
	{ "duplicate", "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0,
	  -EBADMSG },
	{ "dtype",  "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
	  -EBADMSG },
	{ "unknown dtype 'U7'", "{\"a\":" ENTRY("U7", "1", "0,1") "}", 1,
	  -EBADMSG },
	{ "shape",  "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1,
	  -EBADMSG },
	{ "shape",  "{\"a\":" ENTRY("U8", "-1", "0,1") "}",   1, -EBADMSG },
	{ "shape",  "{\"a\":" ENTRY("U8", "1.0", "0,1") "}",  1, -EBADMSG },
	{ "data_offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1,
	  -EBADMSG },
	{ "data_offsets", "{\"a\":" ENTRY("U8", "1", "0") "}",     1, -EBADMSG },
	{ "data_offsets", "{\"a\":" ENTRY("U8", "1", "0,1,2") "}", 1, -EBADMSG },
	{ "data_offsets",
	  "{\"a\":" ENTRY("U8", "1", "0,18446744073709551617") "}", 1,
	  -EBADMSG },
	{ "after its end",  "{\"a\":" ENTRY("U8", "1", "1,0") "}", 1, -EBADMSG },
	{ "overflows",
	  "{\"a\":" ENTRY("I32", "2,9223372036854775807", "0,16") "}", 16,
	  -EBADMSG },
	{ "overflows",
	  "{\"a\":" ENTRY("F32", "9223372036854775807,4,0", "0,0") "}", 0,
	  -EBADMSG },
	{ "whole bytes",    "{\"a\":" ENTRY("F4", "3", "0,1") "}", 1, -EBADMSG },
	{ "whole bytes",    "{\"a\":" ENTRY("F6_E3M2", "2", "0,1") "}", 1,
	  -EBADMSG },
	{ "need 4",         "{\"a\":" ENTRY("F32", "1", "0,0") "}", 0, -EBADMSG },
	{ "need 4",         "{\"a\":" ENTRY("F32", "1", "0,8") "}", 8, -EBADMSG },
	{ "4 bytes before", "{\"a\":" ENTRY("U8", "4", "4,8") "}", 8, -EBADMSG },
	{ "overlap those of tensor 'a'",
	  "{\"a\":" ENTRY("U8", "4", "0,4") ",\"b\":"
	  ENTRY("U8", "4", "0,4") "}", 4, -EBADMSG },
	{ "overlap those of tensor 'a'",
	  "{\"a\":" ENTRY("U8", "4", "0,4") ",\"e\":"
	  ENTRY("U8", "0", "2,2") "}", 4, -EBADMSG },
	{ "truncated: its tensors need 4 bytes of data, 1 ",
	  "{\"a\":" ENTRY("U8", "4", "0,4") "}", 3, -EBADMSG },
	{ "1 bytes after the last tensor",
	  "{\"a\":" ENTRY("U8", "4", "0,4") "}", 5, -EBADMSG },
};

static const struct {
	const char *why;
	const char *bytes;
	size_t len;
} foreign[] = {
#define BYTES(s) s, sizeof(s) - 1
	{ "empty file (0 bytes)", BYTES("") },
	{ "truncated: 7 bytes",   BYTES("\2\0\0\0\0\0\1") },
	{ "zeros",                BYTES("\0\0\0\0\0\0\0\0\0\0") },
	{ "git-lfs pointer",      BYTES("version https://git-lfs.github.com") },
	{ "web page",             BYTES("\n <!DOCTYPE html><html></html>") },
	{ "web page",             BYTES("\xef\xbb\xbf<HTML>") },
	{ "XML",                  BYTES("<?xml version=\"1.0\"?>") },
	{ "zip",                  BYTES("PK\3\4\0\0\0\0\0\0\0\0\0") },
	{ "AppleDouble",          BYTES("\0\5\x16\7\0\2\0\0Mac OS X") },
	{ "GGUF",                 BYTES("GGUF\3\0\0\0\0\0\0\0\0\0") },
	{ "JSON",                 BYTES("{\"a\":1, \"b\":2}") },
	{ "announced",            BYTES("\xff\xff\xff\xff\xff\xff\xff\xff{}") },
	{ "announced",            BYTES("\xf8\xff\xff\xff\xff\xff\xff\xff{}") },
	{ "truncated: its header has 3 bytes, 1 ",
				  BYTES("\3\0\0\0\0\0\0\0{}") },
};
/* clang-format on */

START_TEST(good_files_are_read)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	const char *header = accepted[_i].header;
	uint64_t base = 8 + strlen(header);
	struct seen s = { .count = 0 };

	ck_assert_msg(read_text(header, accepted[_i].data_len, &s, &why) == 0,
		      "%s: %s", accepted[_i].why, why.data);
	ck_assert_str_eq(s.names, accepted[_i].names);
	ck_assert_str_eq(why.data, "");
	if (s.count == 0)
		return;
	ck_assert_uint_eq(s.last.begin, base + accepted[_i].begin);
	ck_assert_uint_eq(s.last.end, base + accepted[_i].end);
}
END_TEST

START_TEST(bad_files_are_refused_with_a_reason_and_no_tensor)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };
	int r = read_text(rejected[_i].header, rejected[_i].data_len, &s, &why);

	ck_assert_msg(r == rejected[_i].err, "%s: got %d", rejected[_i].header,
		      r);
	ck_assert_msg(strstr(why.data, rejected[_i].why), "%s: says %s",
		      rejected[_i].why, why.data);
	ck_assert_uint_eq(s.count, 0);
}
END_TEST

START_TEST(other_files_are_called_what_they_are)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	auto_fd int fd = memfd_create("foreign", MFD_CLOEXEC);
	struct seen s = { .count = 0 };

	ck_assert_int_eq(write(fd, foreign[_i].bytes, foreign[_i].len),
			 (ssize_t)foreign[_i].len);
	ck_assert_int_eq(read_fd(fd, &s, &why), -EBADMSG);
	ck_assert_msg(strstr(why.data, foreign[_i].why), "%s: says %s",
		      foreign[_i].why, why.data);
}
END_TEST

START_TEST(a_name_may_hold_any_character)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	const char *header =
		"{\"../\\u0000\\ud83d\\ude00\":" ENTRY("U8", "1", "0,1") "}";
	auto_fd int fd = file_of(strlen(header), header, strlen(header), 1);
	struct seen s = { .count = 0 };

	ck_assert_int_eq(read_fd(fd, &s, &why), 0);
	ck_assert_uint_eq(s.last.name_len, 8);
}
END_TEST

/* Both at the limit: accepted, and one over it. */
START_TEST(the_number_of_axes_is_limited)
{
	static const char head[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1";
	static const char tail[] = "],\"data_offsets\":[0,1]}}";
	cleanup(buf_release) struct buf header = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };

	ck_assert_int_eq(buf_append(&header, head, strlen(head)), 0);
	for (int i = 1; i < TENSOR_RANK_MAX + _i; i++)
		ck_assert_int_eq(buf_append(&header, ",1", 2), 0);
	ck_assert_int_eq(buf_append(&header, tail, strlen(tail)), 0);
	ck_assert_int_eq(read_text(header.data, 1, &s, &why), _i ? -EFBIG : 0);
}
END_TEST

START_TEST(the_length_of_the_header_is_limited)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	uint64_t len = SAFETENSORS_HEADER_MAX + 1;
	auto_fd int fd = file_of(len, "{}", 2, len);
	struct seen s = { .count = 0 };

	ck_assert_int_eq(read_fd(fd, &s, &why), -EBADMSG);
	ck_assert_ptr_nonnull(strstr(why.data, "at most 100000000"));
}
END_TEST

START_TEST(a_file_that_shrinks_while_it_is_read_is_truncated)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	auto_fd int fd = file_of(100, "{}", 2, 0);
	struct seen s = { .count = 0 };

	ck_assert_int_eq(safetensors_read(fd, 108, see, &s, &why), -EBADMSG);
	ck_assert_ptr_nonnull(strstr(why.data, "truncated"));
}
END_TEST

START_TEST(a_read_error_is_handed_on)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };

	ck_assert_int_eq(safetensors_read(-1, 100, see, &s, &why), -EBADF);
	ck_assert_ptr_nonnull(strstr(why.data, "Bad file descriptor"));
}
END_TEST

START_TEST(an_error_of_the_callback_ends_it)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .answer = -ENOSPC };

	ck_assert_int_eq(
		read_text(accepted[6].header, accepted[6].data_len, &s, &why),
		-ENOSPC);
	ck_assert_uint_eq(s.count, 1);
}
END_TEST

START_TEST(a_long_name_is_shown_in_part)
{
	cleanup(buf_release) struct buf header = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };

	ck_assert_int_eq(buf_printf(&header, "{\"\\n%05000d\":[]}", 1), 0);
	ck_assert_int_eq(read_text(header.data, 0, &s, &why), -EBADMSG);
	ck_assert_uint_lt(why.len, 2 * TENSOR_NAME_SHOWN_MAX);
	ck_assert_ptr_nonnull(strstr(why.data, "'?000"));
	ck_assert_ptr_nonnull(strstr(why.data, "000...'"));
}
END_TEST

static int sample = -1;
static uint64_t sample_size;

/* Asserts nothing: Check allocates, too. */
static int read_and_drop(void)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct seen s = { .count = 0 };

	return safetensors_read(sample, sample_size, see, &s, &why);
}

START_TEST(every_allocation_may_fail)
{
	const char *header = accepted[7].header;

	sample = file_of(strlen(header), header, strlen(header),
			 accepted[7].data_len);
	sample_size = 8 + strlen(header) + accepted[7].data_len;
	fault_sweep(read_and_drop);
	(void)close(sample);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("safetensors");
	TCase *tc = tcase_create("safetensors");

	tcase_add_loop_test(tc, good_files_are_read, 0, ARRAY_LEN(accepted));
	tcase_add_loop_test(tc,
			    bad_files_are_refused_with_a_reason_and_no_tensor,
			    0, ARRAY_LEN(rejected));
	tcase_add_loop_test(tc, other_files_are_called_what_they_are, 0,
			    ARRAY_LEN(foreign));
	tcase_add_test(tc, a_name_may_hold_any_character);
	tcase_add_loop_test(tc, the_number_of_axes_is_limited, 0, 2);
	tcase_add_test(tc, the_length_of_the_header_is_limited);
	tcase_add_test(tc, a_file_that_shrinks_while_it_is_read_is_truncated);
	tcase_add_test(tc, a_read_error_is_handed_on);
	tcase_add_test(tc, an_error_of_the_callback_ends_it);
	tcase_add_test(tc, a_long_name_is_shown_in_part);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
