/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the first door share: two small tensors, generations of one
 * lineage, and a writer for them.
 */
#ifndef TESTS_UNIT_WEIGHT_DOOR_FIXTURE_H
#define TESTS_UNIT_WEIGHT_DOOR_FIXTURE_H

#include "core/step.h"
#include "core/tree_priv.h"
#include "core/weight_key.h"
#include "fault.h"
#include "weight_tree_fixture.h"

/* Given in an order that isn't that of their ids. */
static const uint64_t matrix_shape[] = { 4, 4 };
static const uint64_t norm_shape[] = { 4 };
static const struct weight_description two_tensors[] = {
	{ .tensor_id = "norm",
	  .dtype = "float16",
	  .layout_fingerprint = "demo:v1",
	  .global_shape = norm_shape,
	  .rank = 1,
	  .itemsize = 2,
	  .len = 8,
	  .layer_id = WEIGHT_NO_NUMBER,
	  .expert_id = WEIGHT_NO_NUMBER },
	{ .tensor_id = "layers.0/w",
	  .dtype = "float16",
	  .layout_fingerprint = "demo:v1",
	  .global_shape = matrix_shape,
	  .rank = 2,
	  .itemsize = 2,
	  .len = 32,
	  .layer_id = 0,
	  .expert_id = WEIGHT_NO_NUMBER },
};
static const char norm_bytes[] = "12345678";
static const char matrix_bytes[] = "abcdefghijklmnopqrstuvwxyzABCDEF";

FIXTURE struct weight_identity generation(uint64_t n)
{
	return (struct weight_identity){
		.lineage = { "default", "default", "demo", "main" },
		.generation = n,
	};
}

FIXTURE void assert_ok(int r)
{
	ck_assert_msg(r == 0, "%d: %s", r, why.data);
}

/* A failure, with a sentence that says so. */
FIXTURE void assert_refused(int r, int expected, const char *word)
{
	ck_assert_msg(r == expected, "%d, not %d: %s", r, expected, why.data);
	ck_assert_msg(strstr(why.data, word) != NULL, "no '%s' in '%s'", word,
		      why.data);
	buf_release(&why);
}

FIXTURE struct weight_put_args put_args(uint64_t n)
{
	return (struct weight_put_args){
		.identity = generation(n),
		.tensors = two_tensors,
		.count = ARRAY_LEN(two_tensors),
	};
}

FIXTURE struct weight_writer *begin_put(uint64_t n)
{
	const struct weight_put_args args = put_args(n);
	struct weight_writer *w = NULL;

	assert_ok(weight_put(store, &args, &w, &why));
	return w;
}

FIXTURE void give_norm(struct weight_writer *w)
{
	assert_ok(weight_writer_put_tensor(w, "norm", norm_bytes, 8, &why));
}

FIXTURE void give_matrix(struct weight_writer *w)
{
	assert_ok(weight_writer_put_tensor(w, "layers.0/w", matrix_bytes, 32,
					   &why));
}

FIXTURE void commit_both(struct weight_writer *w)
{
	give_matrix(w);
	give_norm(w);
	assert_ok(weight_writer_commit(w, NULL, &why));
}

FIXTURE void put_generation(uint64_t n)
{
	struct weight_writer *w = begin_put(n);

	commit_both(w);
	weight_writer_free(w);
}

/* The record, or NULL. */
FIXTURE struct weight_metadata *door_record(uint64_t n)
{
	const struct weight_identity id = generation(n);
	struct weight_metadata *m = NULL;
	int r = weight_get_metadata(store, &id, &m, NULL);

	ck_assert(r == 0 || r == -ENOENT);
	return m;
}

/* WEIGHT_DELETED + 1: there is no record. */
FIXTURE enum weight_availability door_availability(uint64_t n)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m =
		door_record(n);

	return m ? m->availability : WEIGHT_DELETED + 1;
}

#define assert_is(n, availability)                                             \
	ck_assert_int_eq(door_availability(n), WEIGHT_##availability)

FIXTURE bool exists(uint64_t n)
{
	const struct weight_identity id = generation(n);
	bool found = false;

	assert_ok(weight_is_exist(store, &id, &found));
	return found;
}

FIXTURE struct weight_reader *begin_get(uint64_t n)
{
	const struct weight_identity id = generation(n);
	struct weight_reader *r = NULL;

	assert_ok(weight_get(store, &id, &r, &why));
	return r;
}

FIXTURE void assert_tensor(struct weight_reader *r, const char *id,
			   const char *bytes, size_t len)
{
	auto_free char *found = malloc(len + 1);
	size_t i = 0;

	ck_assert_ptr_nonnull(found);
	assert_ok(weight_reader_find(r, id, &i));
	ck_assert_uint_eq(weight_reader_tensor(r, i)->len, len);
	assert_ok(weight_reader_read(r, i, 0, found, len));
	ck_assert_mem_eq(found, bytes, len);
}

/* The bytes are those that commit_both() gave. */
FIXTURE void assert_both(uint64_t n)
{
	struct weight_reader *r = begin_get(n);

	ck_assert_uint_eq(weight_reader_tensor_count(r), 2);
	assert_tensor(r, "norm", norm_bytes, 8);
	assert_tensor(r, "layers.0/w", matrix_bytes, 32);
	weight_reader_free(r);
}

/* Who has just let go of it is seen to be gone a little later. */
FIXTURE void remove_revision(const struct weight_identity *id)
{
	int r;

	while ((r = weight_remove(store, id, 0, &why)) == -EBUSY)
		(void)usleep(1000);
	ck_assert_int_eq(r, 0);
	buf_release(&why);
}

/* A file of the group's directory, as a path. */
FIXTURE void group_file(uint64_t n, const char *name,
			char ret[static 2 * PATH_LEN])
{
	const struct weight_identity id = generation(n);
	char hex[DIGEST_HEX_LEN + 1];

	assert_ok(weight_group_hex(&id, hex));
	(void)snprintf(ret, 2 * PATH_LEN, "%s/groups/%.2s/%s/%s", path, hex,
		       hex, name);
}

FIXTURE void read_file(const char *name, struct buf *ret)
{
	auto_fd int fd = open(name, O_RDONLY | O_CLOEXEC);
	char bytes[4096];
	ssize_t n;

	ck_assert_msg(fd >= 0, "%s: %s", name, strerror(errno));
	while ((n = read(fd, bytes, sizeof(bytes))) > 0)
		assert_ok(buf_append(ret, bytes, (size_t)n));
	ck_assert_int_eq(n, 0);
}

/* ---- Failures ---- */

/*
 * From this step on there is no memory for the thread that makes it, which is
 * none in the background; NULL: there is.
 */
static const char *_Atomic fails_from;
static pthread_t test_thread;

FIXTURE void on_step(const char *name)
{
	const char *from = fails_from;

	if (from && strcmp(name, from) == 0 &&
	    pthread_equal(pthread_self(), test_thread))
		fault_thread(true);
}

FIXTURE void fail_from(const char *name)
{
	fails_from = name;
}

FIXTURE void fail_no_more(void)
{
	fails_from = NULL;
	fault_thread(false);
}

/* ---- The store ---- */

/* A store that only the door has looked into. */
FIXTURE void door_open(void)
{
	assert_ok(weight_store_open(path, &config, &store, &why));
}

FIXTURE void door_reopen(void)
{
	weight_store_close(take_ptr(store));
	door_open();
}

FIXTURE void door_setup(void)
{
	test_thread = pthread_self();
	step_hook = on_step;
	(void)snprintf(path, sizeof(path), "/var/tmp/weight-door.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(path));
	config_init(&config);
	config.memory_bytes = 256 * MIB;
	door_open();
}

#endif
