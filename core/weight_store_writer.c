/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a revision through the first door: from what is described to what is
 * READY, or to nothing.
 *
 * Each tensor goes to a file of the staged tree, in the same way in which a
 * handle of the mount writes one, so that digests and pins begin at its close.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file_io.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/step.h"
#include "core/weight_key.h"
#include "core/weight_store_priv.h"

#define FILE_MODE 0644
#define COMPARE_BYTES ((size_t)1 << 20)
#define NAMES_SHOWN_MAX 3

/* ---- Beginning ---- */

int writer_new(struct weight_store *s, const struct weight_identity *identity,
	       const struct weight_description *tensors, size_t count,
	       struct weight_writer **ret, struct buf *why)
{
	cleanup(weight_writer_free_cleanup) struct weight_writer *w = NULL;
	int r = door_check(s, identity, why);

	if (r < 0)
		return r;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->store = s;
	r = import_plan_new(identity, tensors, count, &w->plan, why);
	if (r < 0)
		return r;
	w->given = calloc(count + 1, sizeof(*w->given));
	if (!w->given)
		return -ENOMEM;
	*ret = take_ptr(w);
	return 0;
}

/* A replacement that is resumed goes on with what it began with. */
static int take_over(struct weight_writer *w, struct buf *why)
{
	int r = w->request_id ? tree_import_claim(w->group, &w->plan->source) :
				0;

	if (r == -EEXIST)
		(void)buf_printf(
			why,
			"the import of generation %llu was begun "
			"with other tensors",
			(unsigned long long)w->plan->identity->generation);
	return r < 0 ? r : tree_import_clear(w->group);
}

int writer_begin(struct weight_writer *w, const struct weight_import *import,
		 struct buf *why)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	const struct weight_import_request request = {
		.identity = *w->plan->identity,
		.payload_group_id = "",
		.import = *import,
		.by_claim = w->request_id != NULL,
	};
	int r = tree_import_begin(w->store, &request, &m, &w->group, why);

	if (r < 0)
		return r;
	w->plan->created_at_ms = m->created_at_ms;
	w->plan->to_the_ms = w->request_id != NULL;
	w->plan->metadata_generation = m->metadata_generation;
	w->plan->policy = m->policy;
	return w->group ? take_over(w, why) : 0;
}

int weight_put(struct weight_store *store, const struct weight_put_args *args,
	       struct weight_writer **ret, struct buf *why)
{
	cleanup(weight_writer_free_cleanup) struct weight_writer *w = NULL;
	struct weight_import import;
	int r = writer_new(store, &args->identity, args->tensors, args->count,
			   &w, why);

	if (r == 0)
		r = weight_transaction_id(w->plan->txid);
	if (r == 0)
		r = import_plan_announce(w->plan, &import);
	if (r < 0)
		return r;
	import.policy = args->policy ? *args->policy : store->config->policy;
	r = writer_begin(w, &import, why);
	if (r == 0 && !w->group) {
		(void)buf_printf(why, "generation %llu is published already",
				 (unsigned long long)args->identity.generation);
		r = -EEXIST;
	}
	if (r < 0)
		return r;
	*ret = take_ptr(w);
	return 0;
}

/* ---- One tensor ---- */

/* The time of the import, so that a writer that is made anew sets the same. */
static int set_time(int fd, uint64_t ms)
{
	const struct timespec at = {
		.tv_sec = (time_t)(ms / 1000),
		.tv_nsec = (long)(ms % 1000) * 1000000,
	};

	return errno_of(futimens(fd, (struct timespec[]){ at, at }));
}

static int create_file(struct weight_group *g, const char *name,
		       struct weight_file **ret)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	const struct weight_caller caller = { .uid = geteuid(),
					      .gid = getegid() };
	int r = weight_group_root(g, &root);

	if (r == 0)
		r = weight_file_create(root, name, FILE_MODE, &caller, &f);
	if (r == 0)
		r = weight_file_open(f, O_WRONLY, true);
	if (r == 0)
		*ret = take_ptr(f);
	return r;
}

static int write_tensor(struct weight_writer *w, size_t i, const void *bytes)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	auto_fd int fd = -1;
	/* Only a commit of this writer's would park it. */
	int r = weight_group_enter(w->group, NULL);

	assert(r <= 0);
	if (r < 0)
		return r;
	r = create_file(w->group, w->plan->names[i], &f);
	weight_group_leave(w->group);
	if (r < 0)
		return r;
	r = tree_file_reopen(f, O_WRONLY, &fd);
	if (r == 0)
		r = file_io_write(fd, bytes, import_plan_len(w->plan, i));
	if (r == 0)
		r = set_time(fd, w->plan->created_at_ms);
	/* Before the handle: who looks for writers sees this one, too. */
	if (fd >= 0)
		(void)close(take_fd(&fd));
	weight_file_close(f, O_WRONLY);
	step("import: tensor");
	return r;
}

static int compare_tensor(struct weight_writer *w, size_t i, const char *bytes)
{
	uint64_t len = import_plan_len(w->plan, i);
	auto_free char *piece = malloc(COMPARE_BYTES);
	int r = piece ? 0 : -ENOMEM;

	for (uint64_t at = 0; at < len && r == 0; at += COMPARE_BYTES) {
		size_t n = len - at < COMPARE_BYTES ? (size_t)(len - at) :
						      COMPARE_BYTES;

		r = weight_reader_read(w->reader, i, at, piece, n);
		if (r == 0 && memcmp(piece, bytes + at, n) != 0)
			r = -EEXIST;
	}
	return r;
}

static int check_open(const struct weight_writer *w, struct buf *why)
{
	switch (w->state) {
	case WRITER_OPEN:
		return 0;
	case WRITER_UNSURE:
		(void)buf_printf(why, "it may have been committed; commit it "
				      "again");
		return -EEXIST;
	case WRITER_COMMITTED:
		(void)buf_printf(why, "it was committed");
		return -EEXIST;
	case WRITER_ABORTING:
	case WRITER_ABORTED:
		break;
	}
	(void)buf_printf(why, "it was aborted");
	return -EEXIST;
}

/* What one tensor has to be, before any of its bytes is taken. */
static int check_tensor(struct weight_writer *w, const char *id, uint64_t len,
			size_t *ret, struct buf *why)
{
	int r = import_plan_find(w->plan, id, ret);

	if (r < 0) {
		(void)buf_printf(why, "no tensor '%s' was described", id);
	} else if (w->given[*ret]) {
		(void)buf_printf(why, "tensor '%s' was given before", id);
		r = -EEXIST;
	} else if (len != import_plan_len(w->plan, *ret)) {
		(void)buf_printf(
			why, "tensor '%s' has %llu bytes and not %llu", id,
			(unsigned long long)import_plan_len(w->plan, *ret),
			(unsigned long long)len);
		r = -EINVAL;
	}
	return r;
}

/* An import that can't become whole doesn't stay. What is READY does. */
static int give_up(struct weight_writer *w, int r, struct buf *why)
{
	cleanup(buf_release) struct buf more = BUF_INIT;
	int aborted;

	if (w->reader)
		return r;
	aborted = weight_writer_abort(w, &more);
	if (aborted < 0)
		(void)buf_printf(why, "; giving the import up failed: %s",
				 more.len ? more.data :
					    strerrordesc_np(-aborted));
	else
		(void)buf_printf(why, "; the import was given up");
	return r;
}

int weight_writer_put_tensor(struct weight_writer *writer,
			     const char *tensor_id, const void *bytes,
			     uint64_t len, struct buf *why)
{
	struct weight_writer *w = writer;
	size_t i = 0;
	int r = check_open(w, why);

	if (r < 0)
		return r;
	r = check_tensor(w, tensor_id, len, &i, why);
	if (r < 0)
		return give_up(w, r, why);
	r = w->reader ? compare_tensor(w, i, bytes) : write_tensor(w, i, bytes);
	if (r == -EEXIST && w->reader)
		(void)buf_printf(why,
				 "tensor '%s' was published with other "
				 "bytes",
				 tensor_id);
	else if (r < 0)
		(void)buf_printf(why, "tensor '%s': %s", tensor_id,
				 strerrordesc_np(-r));
	if (r < 0)
		return give_up(w, r, why);
	w->given[i] = true;
	w->given_count++;
	return 0;
}

/* ---- All of them ---- */

static int check_all_given(struct weight_writer *w, struct buf *why)
{
	size_t missing = w->plan->count - w->given_count;
	size_t shown = 0;

	if (missing == 0)
		return 0;
	(void)buf_printf(why, "missing required fragments: ");
	for (size_t i = 0; i < w->plan->count && shown < NAMES_SHOWN_MAX; i++)
		if (!w->given[i])
			(void)buf_printf(
				why, "%s'%s'", shown++ ? ", " : "",
				w->plan->described->tensors[i].id.data);
	if (missing > shown)
		(void)buf_printf(why, " and %zu more", missing - shown);
	return -EINVAL;
}

/* The records have answered, so nothing was written. */
static bool is_refusal(int r)
{
	return weight_error_of_errno(r) != 0 && r != -EIO;
}

static int import_all(struct weight_writer *w, struct buf *why)
{
	bool decided = false;
	int r = check_all_given(w, why);

	if (r < 0)
		return give_up(w, r, why);
	r = publish_import(w->group, w->plan, &decided, why);
	if (r == 0 || (decided && !is_refusal(r)))
		w->state = WRITER_UNSURE;
	if (r < 0)
		return r;
	w->imported = true;
	tree_import_settle(w->group);
	return 0;
}

int weight_writer_commit(struct weight_writer *writer,
			 struct weight_metadata **ret, struct buf *why)
{
	struct weight_writer *w = writer;
	int r = 0;

	if (w->state == WRITER_ABORTING || w->state == WRITER_ABORTED)
		return check_open(w, why);
	if (!w->imported)
		r = import_all(w, why);
	if (r == 0 && w->state != WRITER_COMMITTED && w->request_id)
		r = upsert_commit(w, why);
	if (r < 0)
		return r;
	w->state = WRITER_COMMITTED;
	return ret ? wms_get(w->store->records, w->plan->identity, ret) : 0;
}

/* ---- Nothing of it ---- */

/* Whether somebody else has given it up: then it is on its way, or gone. */
static bool is_going(struct weight_writer *w)
{
	struct weight_metadata *m = NULL;
	bool going;

	if (wms_get(w->store->records, w->plan->identity, &m) < 0)
		return false;
	going = m->availability == WEIGHT_DELETING ||
		m->availability == WEIGHT_DELETED;
	weight_metadata_free(m);
	return going;
}

static int end_import(struct weight_writer *w, struct buf *why)
{
	struct weight_store *s = w->store;
	int r;

	(void)pthread_mutex_lock(&s->namespace_lock);
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = wms_import_abort(s->records, w->plan->identity,
			     w->plan->metadata_generation, clock_realtime_ms(),
			     NULL);
	(void)pthread_mutex_unlock(&s->namespace_lock);
	step("import: aborted");
	if (r < 0 && is_refusal(r) && is_going(w))
		r = 0;
	if (r == 0 && w->group) {
		tree_import_forget(w->group);
		weight_group_unref(take_ptr(w->group));
	}
	if (r == 0)
		r = removal_finish(s, w->plan->identity);
	if (r < 0)
		(void)buf_printf(why, "deleting what was written: %s",
				 strerrordesc_np(-r));
	return r;
}

int weight_writer_abort(struct weight_writer *writer, struct buf *why)
{
	struct weight_writer *w = writer;
	int r;

	if (w->state == WRITER_ABORTED)
		return 0;
	if (w->state != WRITER_ABORTING) {
		r = check_open(w, why);
		if (r < 0)
			return r;
		if (w->reader) {
			(void)buf_printf(why, "it is READY; commit it again");
			return -EEXIST;
		}
	}
	w->state = WRITER_ABORTING;
	r = end_import(w, why);
	if (r == 0 && w->request_id)
		r = upsert_abort(w, why);
	if (r < 0)
		return r;
	w->state = WRITER_ABORTED;
	return 0;
}

/* ---- Asking, and the end ---- */

const struct weight_identity *weight_writer_identity(
	const struct weight_writer *writer)
{
	return writer->plan->identity;
}

const char *weight_writer_request_id(const struct weight_writer *writer)
{
	return writer->request_id;
}

void weight_writer_free(struct weight_writer *writer)
{
	if (!writer)
		return;
	if (writer->group && !writer->imported)
		tree_import_forget(writer->group);
	weight_group_unref(writer->group);
	weight_reader_free(writer->reader);
	import_plan_free(writer->plan);
	free(writer->given);
	free(writer->request_id);
	free(writer);
}
