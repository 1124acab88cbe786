/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/checkpoint.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

#define FILES_MAX 8

static char top[] = "checkpoint-XXXXXX";
static int top_fd = -1;
static struct checkpoint_file files[FILES_MAX];
static size_t file_count;

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void setup(void)
{
	ck_assert_ptr_nonnull(mkdtemp(top));
	top_fd = open(top, O_PATH | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(top_fd, 0);
	file_count = 0;
}

static void teardown(void)
{
	(void)close(top_fd);
	(void)nftw(top, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	memcpy(top + strlen(top) - 6, "XXXXXX", 6);
}

/* Writes a file and adds it to files; call in the order of the paths. */
static void put_file(const char *path, const void *bytes, size_t len)
{
	char dir[64];

	for (const char *s = path; (s = strchr(s, '/')); s++) {
		(void)snprintf(dir, sizeof(dir), "%.*s", (int)(s - path), path);
		(void)mkdirat(top_fd, dir, 0755);
	}
	{
		auto_fd int fd = openat(top_fd, path,
					O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

		ck_assert_int_ge(fd, 0);
		ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
	}
	ck_assert_uint_lt(file_count, FILES_MAX);
	files[file_count++] = (struct checkpoint_file){ path, len };
}

static void put_text(const char *path, const char *text)
{
	put_file(path, text, strlen(text));
}

/* A safetensors file of one tensor that is zeros. */
static void put_tensor(const char *path, const char *name, const char *dtype,
		       const char *shape, unsigned nbytes)
{
	cleanup(buf_release) struct buf header = BUF_INIT;
	cleanup(buf_release) struct buf all = BUF_INIT;
	uint64_t len;

	ck_assert_int_eq(buf_printf(&header,
				    "{\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],"
				    "\"data_offsets\":[0,%u]}}",
				    name, dtype, shape, nbytes),
			 0);
	len = htole64(header.len);
	ck_assert_int_eq(buf_append(&all, &len, sizeof(len)), 0);
	ck_assert_int_eq(buf_append(&all, header.data, header.len), 0);
	while (nbytes--)
		ck_assert_int_eq(buf_append(&all, "", 1), 0);
	put_file(path, all.data, all.len);
}

static void put_byte(const char *path, const char *name)
{
	put_tensor(path, name, "U8", "1", 1);
}

/* A GGUF file of one Q4_0 tensor of 2 x 64 elements, or of none. */
static void put_gguf(const char *path, const char *name)
{
	uint8_t bytes[256] = "GGUF\3";
	size_t len = 24;

	if (name) {
		bytes[8] = 1; /* tensors */
		bytes[len] = (uint8_t)strlen(name);
		memcpy(bytes + len + 8, name, strlen(name));
		len += 8 + strlen(name);
		bytes[len] = 2; /* axes */
		bytes[len + 4] = 64;
		bytes[len + 12] = 2;
		bytes[len + 20] = 2; /* Q4_0 */
		len = (len + 4 + 16 + 4 + 8 + 31) / 32 * 32 + 72;
	}
	put_file(path, bytes, len);
}

static int read_all(struct checkpoint **ret, struct buf *why)
{
	return checkpoint_read(top_fd, files, file_count, ret, why);
}

static struct checkpoint *read_good(void)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct checkpoint *c = NULL;
	int r = read_all(&c, &why);

	ck_assert_msg(r == 0, "got %d: %s", r, why.data);
	ck_assert_str_eq(why.data, "");
	return c;
}

static void expect_refusal(int err, const char *first, const char *then)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct checkpoint *c = NULL;
	int r = read_all(&c, &why);

	ck_assert_int_eq(r, err);
	ck_assert_ptr_null(c);
	ck_assert_msg(strncmp(why.data, first, strlen(first)) == 0, "%s",
		      why.data);
	ck_assert_msg(strstr(why.data, then), "%s", why.data);
}

static void expect_ids(const char *const *ids, size_t count)
{
	cleanup(checkpoint_free_cleanup) struct checkpoint *c = read_good();

	ck_assert_uint_eq(checkpoint_tensor_count(c), count);
	for (size_t i = 0; i < count; i++) {
		const struct checkpoint_tensor *t = checkpoint_tensor_at(c, i);

		ck_assert_uint_eq(t->id_len, strlen(ids[i]));
		ck_assert_msg(memcmp(t->id, ids[i], t->id_len) == 0,
			      "%.*s is not %s", (int)t->id_len, t->id, ids[i]);
		ck_assert_ptr_eq(
			checkpoint_tensor_find(c, ids[i], strlen(ids[i])), t);
	}
	ck_assert_ptr_null(checkpoint_tensor_find(c, "absent", 6));
}

#define EXPECT_IDS(...)                                                        \
	do {                                                                   \
		static const char *const ids_[] = { __VA_ARGS__ };             \
                                                                               \
		expect_ids(ids_, ARRAY_LEN(ids_));                             \
	} while (0)

START_TEST(a_tree_without_weights_has_no_tensors)
{
	cleanup(checkpoint_free_cleanup) struct checkpoint *c = NULL;

	put_text("config.json", "{}");
	put_text("model.safetensors.incomplete", "x");
	put_text("model.safetensors~", "x");
	c = read_good();
	ck_assert_uint_eq(checkpoint_tensor_count(c), 0);
	ck_assert_uint_eq(checkpoint_weight_file_count(c), 0);
	ck_assert_ptr_null(checkpoint_tensor_find(c, "", 0));
}
END_TEST

START_TEST(companions_are_never_read)
{
	cleanup(checkpoint_free_cleanup) struct checkpoint *c = NULL;

	put_text("._model.safetensors", "x");
	put_text(".cache/model.gguf", "x");
	put_text(".x.safetensors.index.json", "x");
	put_byte("model.safetensors", "w");
	put_text("sub/.git/model.safetensors", "x");
	c = read_good();
	ck_assert_uint_eq(checkpoint_weight_file_count(c), 1);
	ck_assert_uint_eq(checkpoint_tensor_at(c, 0)->file, 3);
}
END_TEST

START_TEST(a_bad_file_is_named)
{
	put_byte("a.safetensors", "w");
	put_text("sub/b.safetensors", "version https://git-lfs.github.com\n");
	expect_refusal(-EBADMSG, "sub/b.safetensors: ", "git-lfs pointer");
}
END_TEST

START_TEST(names_become_ids)
{
	put_byte("a.safetensors", "z");
	put_gguf("b.gguf", "b");
	put_byte("c.safetensors", "");
	EXPECT_IDS("", "b", "z");
}
END_TEST

START_TEST(shared_names_get_their_directory)
{
	put_byte("model.safetensors", "w");
	put_byte("text/model.safetensors", "w");
	put_byte("unet/model.safetensors", "w");
	put_byte("vae/model.safetensors", "v");
	EXPECT_IDS("text/w", "unet/w", "v", "w");
}
END_TEST

START_TEST(shared_directories_give_the_path)
{
	put_byte("a.safetensors", "w");
	put_byte("b.safetensors", "w");
	put_byte("sub/c.safetensors", "w");
	EXPECT_IDS("a.safetensors/w", "b.safetensors/w", "sub/w");
}
END_TEST

/* "sub/w" is the name of one tensor and the id of another. */
START_TEST(a_name_that_looks_like_an_id_is_told_apart)
{
	put_byte("a.safetensors", "sub/w");
	put_byte("b.safetensors", "w");
	put_byte("sub/c.safetensors", "w");
	EXPECT_IDS("a.safetensors/sub/w", "sub/c.safetensors/w", "w");
}
END_TEST

START_TEST(when_even_paths_meet_all_tensors_get_theirs)
{
	put_byte("a.safetensors", "w");
	put_byte("b.safetensors", "w");
	put_byte("c.safetensors", "a.safetensors/w");
	put_byte("d.safetensors", "other");
	EXPECT_IDS("a.safetensors/w", "b.safetensors/w",
		   "c.safetensors/a.safetensors/w", "d.safetensors/other");
}
END_TEST

/* clang-format off */
static const struct {
	const char *dtype, *shape;
	unsigned nbytes;
	uint32_t itemsize;
	unsigned rank;
	uint64_t first, last;
} storage[] = {
	{ "F32",     "2,3",  24, 4, 2, 2, 3 },
	{ "F32",     "",      4, 4, 0, 0, 0 },
	{ "F32",     "0,3",   0, 4, 2, 0, 3 },
	{ "F4",      "3,4",   6, 1, 2, 3, 2 },
	{ "F4",      "4,3",   6, 1, 1, 6, 6 },
	{ "F6_E2M3", "2,8",  12, 3, 2, 2, 2 },
	{ "F6_E3M2", "4,2",   6, 3, 1, 2, 2 },
	{ "F4",      "3,0",   0, 1, 2, 3, 0 },
};
/* clang-format on */

START_TEST(the_storage_shape_accounts_for_every_byte)
{
	cleanup(checkpoint_free_cleanup) struct checkpoint *c = NULL;
	const struct checkpoint_tensor *t;
	uint64_t product = 1;

	put_tensor("m.safetensors", "w", storage[_i].dtype, storage[_i].shape,
		   storage[_i].nbytes);
	c = read_good();
	t = checkpoint_tensor_at(c, 0);
	ck_assert_str_eq(t->dtype, storage[_i].dtype);
	ck_assert_str_eq(t->layout, "safetensors:v1");
	ck_assert_uint_eq(t->itemsize, storage[_i].itemsize);
	ck_assert_uint_eq(t->rank, storage[_i].rank);
	for (unsigned i = 0; i < t->rank; i++)
		product *= t->shape[i];
	ck_assert_uint_eq(product * t->itemsize, t->end - t->begin);
	if (t->rank == 0)
		return;
	ck_assert_uint_eq(t->shape[0], storage[_i].first);
	ck_assert_uint_eq(t->shape[t->rank - 1], storage[_i].last);
}
END_TEST

START_TEST(quantised_rows_count_in_blocks)
{
	cleanup(checkpoint_free_cleanup) struct checkpoint *c = NULL;
	const struct checkpoint_tensor *t;

	put_gguf("m.gguf", "w");
	c = read_good();
	t = checkpoint_tensor_at(c, 0);
	ck_assert_str_eq(t->dtype, "q4_0");
	ck_assert_str_eq(t->layout, "gguf:v1");
	ck_assert_uint_eq(t->itemsize, 18);
	ck_assert_uint_eq(t->rank, 2);
	ck_assert_uint_eq(t->shape[0], 2);
	ck_assert_uint_eq(t->shape[1], 2);
	ck_assert_uint_eq(t->end - t->begin, 72);
}
END_TEST

#define INDEX "model.safetensors.index.json"
#define SHARDS(map) "{\"metadata\":{},\"weight_map\":{" map "}}"

/* clang-format off */
static const struct {
	const char *then; /* NULL: fine */
	const char *index;
} indexes[] = {
	{ NULL, SHARDS("\"a\":\"a.safetensors\",\"b\":\"b/b.safetensors\"") },
	{ NULL, SHARDS("") },
	{ "'c.safetensors' is missing", SHARDS("\"c\":\"c.safetensors\"") },
	{ "tensor 'x': it is not in its shard 'a.safetensors'",
	  SHARDS("\"x\":\"a.safetensors\"") },
	{ "no path beside it", SHARDS("\"a\":\"../a.safetensors\"") },
	{ "no path beside it", SHARDS("\"a\":\"b/../a.safetensors\"") },
	{ "no path beside it", SHARDS("\"a\":\"./a.safetensors\"") },
	{ "no path beside it", SHARDS("\"a\":\"/a.safetensors\"") },
	{ "no path beside it", SHARDS("\"a\":\"a.safetensors\\u0000\"") },
	{ "no path beside it", SHARDS("\"a\":\"\"") },
	{ "not read as a safetensors file", SHARDS("\"a\":\"" INDEX "\"") },
	{ "no string",         SHARDS("\"a\":1") },
	{ "no object",         "{\"weight_map\":[]}" },
	{ "no weight_map",     "{}" },
	{ "duplicate",         SHARDS("\"a\":\"a.safetensors\","
				      "\"a\":\"a.safetensors\"") },
	{ "JSON",              "{\"weight_map\":{\"a\"" },
	{ "JSON",              "{\"weight_map\":{}}\n}\n" },
	{ "",                  "" },
	{ "",                  "[]" },
};
/* clang-format on */

START_TEST(an_index_is_checked)
{
	put_byte("a.safetensors", "a");
	put_byte("b/b.safetensors", "b");
	put_text(INDEX, indexes[_i].index);
	if (indexes[_i].then)
		expect_refusal(-EBADMSG, INDEX ": ", indexes[_i].then);
	else
		EXPECT_IDS("a", "b");
}
END_TEST

START_TEST(an_index_speaks_of_its_own_directory)
{
	put_byte("unet/m.safetensors", "a");
	put_text("unet/" INDEX, SHARDS("\"a\":\"m.safetensors\""));
	EXPECT_IDS("a");
}
END_TEST

START_TEST(a_large_index_is_refused_unread)
{
	put_text(INDEX, "{}");
	files[0].size = CHECKPOINT_INDEX_BYTES_MAX + 1;
	expect_refusal(-EFBIG, INDEX ": ", "at most");
}
END_TEST

/* clang-format off */
static const struct {
	const char *paths[3];
	const char *missing;
} splits[] = {
	{ { "m-00001-of-00002.gguf", "m-00002-of-00002.gguf" }, NULL },
	{ { "m-00001-of-00001.gguf" }, NULL },
	{ { "m-00000-of-00002.gguf" }, NULL },
	{ { "m-00003-of-00002.gguf" }, NULL },
	{ { "m-0001-of-0002.gguf", "m.gguf" }, NULL },
	{ { "m-00001-of-00003.gguf", "m-00003-of-00003.gguf" },
	  "m-00002-of-00003.gguf: " },
	{ { "m-00002-of-00002.gguf" }, "m-00001-of-00002.gguf: " },
	{ { "m-00001-of-00002.gguf", "n-00002-of-00002.gguf" },
	  "m-00002-of-00002.gguf: " },
	{ { "a/m-00001-of-00002.gguf", "b/m-00002-of-00002.gguf" },
	  "a/m-00002-of-00002.gguf: " },
};
/* clang-format on */

START_TEST(a_split_must_be_complete)
{
	for (size_t i = 0; i < ARRAY_LEN(splits[_i].paths); i++)
		if (splits[_i].paths[i])
			put_gguf(splits[_i].paths[i], NULL);
	if (splits[_i].missing)
		expect_refusal(-EBADMSG, splits[_i].missing, "it is missing");
	else
		checkpoint_free(read_good());
}
END_TEST

START_TEST(what_is_no_regular_file_is_not_opened)
{
	put_byte("real", "w");
	file_count = 0;
	ck_assert_int_eq(symlinkat("real", top_fd, "link.safetensors"), 0);
	files[file_count++] = (struct checkpoint_file){ "link.safetensors", 9 };
	expect_refusal(-ELOOP, "link.safetensors: ", "cannot be opened");

	ck_assert_int_eq(mkfifoat(top_fd, "pipe.gguf", 0600), 0);
	files[0].path = "pipe.gguf";
	expect_refusal(-EBADMSG, "pipe.gguf: ", "no regular file");

	files[0].path = "gone.gguf";
	expect_refusal(-ENOENT, "gone.gguf: ", "No such file");
}
END_TEST

START_TEST(a_directory_that_became_a_link_is_not_followed)
{
	put_byte("sub/m.safetensors", "w");
	ck_assert_int_eq(symlinkat("sub", top_fd, "link"), 0);
	files[0].path = "link/m.safetensors";
	expect_refusal(-ENOTDIR, "link/m.safetensors: ", "cannot be opened");
}
END_TEST

START_TEST(a_file_of_another_size_is_refused)
{
	put_byte("m.safetensors", "w");
	files[0].size++;
	expect_refusal(-EBADMSG, "m.safetensors: ", "its size changed");
}
END_TEST

START_TEST(unsorted_files_are_a_mistake_of_the_caller)
{
	put_text("b", "");
	put_text(_i ? "a" : "b", "");
	expect_refusal(-EINVAL, "", "");
}
END_TEST

/* Asserts nothing: Check allocates, too. */
static int read_and_drop(void)
{
	cleanup(checkpoint_free_cleanup) struct checkpoint *c = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;

	return read_all(&c, &why);
}

START_TEST(every_allocation_may_fail)
{
	put_byte("a.safetensors", "w");
	put_byte("b.safetensors", "w");
	put_byte("c.safetensors", "a.safetensors/w");
	put_gguf("g-00001-of-00002.gguf", NULL);
	put_gguf("g-00002-of-00002.gguf", "w");
	put_text(INDEX, SHARDS("\"w\":\"a.safetensors\""));
	fault_sweep(read_and_drop);
}
END_TEST

static TCase *tree_case(void)
{
	TCase *tc = tcase_create("tree");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_tree_without_weights_has_no_tensors);
	tcase_add_test(tc, companions_are_never_read);
	tcase_add_test(tc, a_bad_file_is_named);
	tcase_add_loop_test(tc, an_index_is_checked, 0, ARRAY_LEN(indexes));
	tcase_add_test(tc, an_index_speaks_of_its_own_directory);
	tcase_add_test(tc, a_large_index_is_refused_unread);
	tcase_add_loop_test(tc, a_split_must_be_complete, 0, ARRAY_LEN(splits));
	tcase_add_test(tc, what_is_no_regular_file_is_not_opened);
	tcase_add_test(tc, a_directory_that_became_a_link_is_not_followed);
	tcase_add_test(tc, a_file_of_another_size_is_refused);
	tcase_add_loop_test(tc, unsorted_files_are_a_mistake_of_the_caller, 0,
			    2);
	tcase_add_test(tc, every_allocation_may_fail);
	return tc;
}

static TCase *tensor_case(void)
{
	TCase *tc = tcase_create("tensors");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, names_become_ids);
	tcase_add_test(tc, shared_names_get_their_directory);
	tcase_add_test(tc, shared_directories_give_the_path);
	tcase_add_test(tc, a_name_that_looks_like_an_id_is_told_apart);
	tcase_add_test(tc, when_even_paths_meet_all_tensors_get_theirs);
	tcase_add_loop_test(tc, the_storage_shape_accounts_for_every_byte, 0,
			    ARRAY_LEN(storage));
	tcase_add_test(tc, quantised_rows_count_in_blocks);
	return tc;
}

Suite *suite(void)
{
	Suite *s = suite_create("checkpoint");

	suite_add_tcase(s, tree_case());
	suite_add_tcase(s, tensor_case());
	return s;
}
