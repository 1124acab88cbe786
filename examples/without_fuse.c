/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weight store without a mount: a whole life of a revision through the first
 * door, core/weight_store.h, and through nothing else. No FUSE, no privilege.
 *
 * usage: without_fuse [STORE]
 *
 * Publishes two tensors, lists them, reads them back, moves them to the disk and
 * back into memory, replaces them by a newer generation, and removes that. With
 * STORE, a directory that is absent or empty, the newer one stays, and weightfs
 * can be mounted on it.
 */
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/weight_store.h"

#define ROWS 256
#define COLUMNS 1024
#define POLL_NS 10000000

static struct weight_store *store;
static struct buf why = BUF_INIT;

/* ---- What is published ---- */

static const uint64_t matrix[] = { ROWS, COLUMNS };
static const uint64_t vector[] = { COLUMNS };
static const struct weight_description tensors[] = {
	{ .tensor_id = "layers.0.weight",
	  .dtype = "F32",
	  .layout_fingerprint = "example:v1",
	  .global_shape = matrix,
	  .rank = 2,
	  .itemsize = sizeof(float),
	  .len = sizeof(float) * ROWS * COLUMNS,
	  .layer_id = 0,
	  .expert_id = WEIGHT_NO_NUMBER },
	{ .tensor_id = "norm.weight",
	  .dtype = "F32",
	  .layout_fingerprint = "example:v1",
	  .global_shape = vector,
	  .rank = 1,
	  .itemsize = sizeof(float),
	  .len = sizeof(float) * COLUMNS,
	  .layer_id = WEIGHT_NO_NUMBER,
	  .expert_id = WEIGHT_NO_NUMBER },
};
#define TENSORS (sizeof(tensors) / sizeof(tensors[0]))

static struct weight_identity generation(uint64_t n)
{
	return (struct weight_identity){
		.lineage = { .tenant = "default",
			     .name_space = "examples",
			     .resource = "tiny",
			     .revision = "main" },
		.generation = n,
	};
}

/* Numbers that tell tensors and generations apart. */
static float *numbers_of(size_t tensor, uint64_t n)
{
	size_t count = tensors[tensor].len / sizeof(float);
	float *numbers = malloc(tensors[tensor].len);

	for (size_t i = 0; numbers && i < count; i++)
		numbers[i] = (float)(i + 1000 * tensor + n);
	return numbers;
}

/* ---- Saying what happens ---- */

static void must(int r, const char *what)
{
	if (r >= 0)
		return;
	(void)fprintf(stderr, "%s: %s%s%s\n", what, strerror(-r),
		      why.len ? ": " : "", why.data);
	exit(EXIT_FAILURE);
}

static void show(uint64_t n)
{
	const struct weight_identity id = generation(n);
	struct weight_metadata *m = NULL;

	must(weight_get_metadata(store, &id, &m, NULL), "asking");
	printf("  generation %llu is %s and %s, metadata generation %llu\n",
	       (unsigned long long)n, weight_availability_name(m->availability),
	       weight_residency_name(m->residency),
	       (unsigned long long)m->metadata_generation);
	weight_metadata_free(m);
}

static void rest(void)
{
	const struct timespec pause = { .tv_nsec = POLL_NS };

	(void)nanosleep(&pause, NULL);
}

/* ---- The steps ---- */

static void give_all(struct weight_writer *w, uint64_t n)
{
	for (size_t i = 0; i < TENSORS; i++) {
		float *numbers = numbers_of(i, n);

		must(numbers ? 0 : -ENOMEM, "memory");
		must(weight_writer_put_tensor(w, tensors[i].tensor_id, numbers,
					      tensors[i].len, &why),
		     "giving a tensor");
		free(numbers);
	}
	must(weight_writer_commit(w, NULL, &why), "committing");
	weight_writer_free(w);
}

static void publish(uint64_t n)
{
	const struct weight_put_args args = { .identity = generation(n),
					      .tensors = tensors,
					      .count = TENSORS };
	struct weight_writer *w = NULL;

	printf("weight_put: two tensors, committed as one revision\n");
	must(weight_put(store, &args, &w, &why), "beginning");
	show(n);
	give_all(w, n);
	show(n);
}

static void list(void)
{
	struct weight_page *page = NULL;

	printf("weight_list: what there is of the resource\n");
	must(weight_list(store, "default", "examples", "tiny", "", 0, &page,
			 &why),
	     "listing");
	for (size_t i = 0; i < weight_page_count(page); i++) {
		const struct weight_metadata *m = weight_page_at(page, i, NULL);

		printf("  %s/%llu %s, %llu bytes in %llu objects\n",
		       m->identity.lineage.revision,
		       (unsigned long long)m->identity.generation,
		       weight_availability_name(m->availability),
		       (unsigned long long)m->manifest.logical_bytes,
		       (unsigned long long)m->manifest.payload_count);
	}
	weight_page_free(page);
}

static void compare(struct weight_reader *r, size_t tensor, uint64_t n)
{
	float *expected = numbers_of(tensor, n);
	float *found = malloc(tensors[tensor].len);
	const struct weight_description *t;
	size_t i = 0;

	must(expected && found ? 0 : -ENOMEM, "memory");
	must(weight_reader_find(r, tensors[tensor].tensor_id, &i),
	     "finding a tensor");
	t = weight_reader_tensor(r, i);
	must(weight_reader_read(r, i, 0, found, t->len), "reading");
	must(memcmp(expected, found, t->len) == 0 ? 0 : -EIO, "comparing");
	printf("  %s: %llu bytes of %s, as they were given\n", t->tensor_id,
	       (unsigned long long)t->len, t->dtype);
	free(found);
	free(expected);
}

static void read_back(uint64_t n)
{
	const struct weight_identity id = generation(n);
	struct weight_reader *r = NULL;

	printf("weight_get: under a lease, verified against the manifest\n");
	must(weight_get(store, &id, &r, &why), "opening");
	for (size_t i = 0; i < TENSORS; i++)
		compare(r, i, n);
	must(weight_remove(store, &id, 0, &why) == -EBUSY ? 0 : -EIO,
	     "removing what is read");
	printf("  removing it meanwhile is refused: %s\n", why.data);
	buf_release(&why);
	weight_reader_free(r);
}

/* True when there is nothing more to wait for. */
static bool show_operation(uint64_t id)
{
	struct weight_operation *op = NULL;
	bool over;

	must(weight_get_operation(store, "default", id, &op),
	     "asking for the operation");
	/* One that can't go on for now says why. */
	over = weight_operation_is_over(op) || op->message[0];
	if (over)
		printf("  operation %llu: %s, %llu of %llu bytes\n",
		       (unsigned long long)id, op->message,
		       (unsigned long long)op->processed_bytes,
		       (unsigned long long)op->total_bytes);
	weight_operation_free(op);
	return over;
}

static void move_to(uint64_t n, enum weight_residency target)
{
	const struct weight_identity id = generation(n);
	uint64_t operation = 0;
	int r;

	printf("weight_migrate: to %s\n", weight_residency_name(target));
	r = weight_migrate(store, &id, target, 0, 0, &operation, &why);
	if (r == -EPERM) { /* no lockable memory, or no disk */
		printf("  not here: %s\n", why.data);
		buf_release(&why);
		return;
	}
	must(r, "moving");
	while (!show_operation(operation))
		rest();
	show(n);
}

static void await_removal(uint64_t n)
{
	const struct weight_identity id = generation(n);
	struct weight_metadata *m = NULL;
	bool gone = false;

	while (!gone) {
		must(weight_get_metadata(store, &id, &m, NULL), "asking");
		gone = m->availability == WEIGHT_DELETED;
		weight_metadata_free(m);
		if (!gone)
			rest();
	}
	show(n);
}

static void replace(uint64_t base, uint64_t target)
{
	const struct weight_identity id = generation(base);
	struct weight_upsert_args args = { .base = id,
					   .target = generation(target),
					   .mode = WEIGHT_PUT_FIRST,
					   .tensors = tensors,
					   .count = TENSORS };
	struct weight_metadata *m = NULL;
	struct weight_writer *w = NULL;

	printf("weight_upsert: generation %llu in place of %llu\n",
	       (unsigned long long)target, (unsigned long long)base);
	must(weight_get_metadata(store, &id, &m, NULL), "asking");
	args.expected_base_metadata_generation = m->metadata_generation;
	weight_metadata_free(m);
	must(weight_upsert(store, &args, &w, &why), "beginning");
	printf("  request %.16s…\n", weight_writer_request_id(w));
	give_all(w, target);
	show(target);
	await_removal(base);
}

static void take_away(uint64_t n)
{
	const struct weight_identity id = generation(n);

	printf("weight_remove: the whole revision\n");
	must(weight_remove(store, &id, 0, &why), "removing");
	await_removal(n);
}

/* ---- Where ---- */

static int remove_entry(const char *path, const struct stat *st, int type,
			struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

int main(int argc, char **argv)
{
	char own[] = "/var/tmp/without-fuse.XXXXXX";
	const char *path = argc > 1 ? argv[1] : mkdtemp(own);
	struct config config;

	must(path ? 0 : -errno, "making a directory");
	config_init(&config);
	must(weight_store_open(path, &config, &store, &why), "opening");
	printf("the store is %s\n", path);
	publish(1);
	list();
	read_back(1);
	move_to(1, WEIGHT_COLD);
	move_to(1, WEIGHT_HOT);
	replace(1, 2);
	read_back(2);
	if (argc <= 1)
		take_away(2);
	weight_store_close(store);
	if (argc <= 1)
		(void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	return EXIT_SUCCESS;
}
