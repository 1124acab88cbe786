/* SPDX-License-Identifier: Apache-2.0 */
#include "core/chunk_digest.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/chunk_buffer.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/util.h"

void chunk_list_free(struct chunk_list *list)
{
	if (!list)
		return;
	free(list->chunks);
	free(list);
}

static int chunk_list_new(uint64_t size, struct chunk_list **ret)
{
	cleanup(chunk_list_free_cleanup) struct chunk_list *list = NULL;

	list = calloc(1, sizeof(*list));
	if (!list)
		return -ENOMEM;
	list->size = size;
	list->chunk_size = CHUNK_BYTES;
	list->count = chunk_count(size);
	if (list->count) {
		list->chunks = calloc(list->count, sizeof(*list->chunks));
		if (!list->chunks)
			return -ENOMEM;
	}
	*ret = take_ptr(list);
	return 0;
}

/* --- One chunk --- */

static int check_size(int fd, uint64_t size)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return log_debug(-errno, "fstat");
	if ((uint64_t)st.st_size != size)
		return log_debug(-EBUSY, "%llu bytes have become %llu",
				 (unsigned long long)size,
				 (unsigned long long)st.st_size);
	return 0;
}

/* Fills buffer with the len bytes at `at`, whose file ends at size. */
static int read_chunk(int fd, uint64_t size, uint64_t at, unsigned char *buffer,
		      uint32_t len)
{
	size_t got = 0;
	int r = chunk_buffer_read(fd, at, len, buffer, &got);

	if (r < 0 || got == len)
		return r;
	if (got > len)
		return log_debug(-EBUSY, "the file grew");
	r = check_size(fd, size);
	return r < 0 ? r : log_debug(-EBUSY, "the file ended early");
}

int chunk_digest_at(int fd, uint64_t size, size_t i, struct digest *ret)
{
	uint64_t at = (uint64_t)i * CHUNK_BYTES;
	uint32_t len = chunk_len(size, i);
	unsigned char *buffer;
	int r;

	assert(i < chunk_count(size));
	if (chunk_buffer_is_hole(fd, at, len)) {
		r = check_size(fd, size);
		return r < 0 ? r : chunk_buffer_zeros(len, ret);
	}
	r = chunk_buffer_get(0, &buffer);
	if (r < 0)
		return r;
	r = read_chunk(fd, size, at, buffer, len);
	if (r < 0)
		return r;
	metrics_add(METRIC_CHUNKS_HASHED, 1);
	metrics_add(METRIC_BYTES_HASHED, len);
	return digest_of(buffer, len, ret);
}

/* --- Jobs --- */

/* One place in the workers' queue; each takes the next chunk of its job. */
struct lane {
	struct work work;
	struct chunk_job *job;
};

struct chunk_job {
	struct workers *pool;    /* constant */
	chunk_done_fn *done;     /* constant */
	void *arg;               /* constant */
	int fd;                  /* constant until the last lane ends */
	struct chunk_list *list; /* each chunk is written by one lane */
	atomic_uint refs;
	atomic_uint lanes_left;
	atomic_size_t next; /* the next chunk to take */
	atomic_int err;     /* 0, or the first failure */
	atomic_bool canceled;
	atomic_uint_fast64_t bytes_done;
	struct lane lanes[];
};

void chunk_job_unref(struct chunk_job *job)
{
	if (!job || atomic_fetch_sub(&job->refs, 1) > 1)
		return;
	if (job->fd >= 0)
		(void)close(job->fd);
	chunk_list_free(job->list);
	free(job);
}

void chunk_job_cancel(struct chunk_job *job)
{
	atomic_store(&job->canceled, true);
}

uint64_t chunk_job_bytes_done(const struct chunk_job *job)
{
	return atomic_load(&job->bytes_done);
}

static void job_fail(struct chunk_job *job, int err)
{
	int none = 0;

	(void)atomic_compare_exchange_strong(&job->err, &none, err);
}

static int job_result(struct chunk_job *job)
{
	struct chunk_list *list = job->list;
	int r;

	if (atomic_load(&job->canceled))
		return -ECANCELED;
	r = atomic_load(&job->err);
	if (r < 0)
		return r;
	r = check_size(job->fd, list->size);
	if (r < 0)
		return r;
	return digest_root(list->chunks, list->count, &list->root);
}

/* Runs once, in the last lane, when no other touches the job any more. */
static void job_finish(struct chunk_job *job)
{
	int r = job_result(job);

	(void)close(job->fd);
	job->fd = -1;
	job->done(job->arg, r, r < 0 ? NULL : take_ptr(job->list));
	chunk_job_unref(job);
}

/* Digests the next chunk. False when there is nothing left to do. */
static bool job_step(struct chunk_job *job)
{
	struct chunk_list *list = job->list;
	size_t i;
	int r;

	if (atomic_load(&job->canceled) || atomic_load(&job->err))
		return false;
	i = atomic_fetch_add(&job->next, 1);
	if (i >= list->count)
		return false;
	r = chunk_digest_at(job->fd, list->size, i, &list->chunks[i]);
	if (r < 0) {
		job_fail(job, r);
		return false;
	}
	atomic_fetch_add(&job->bytes_done, chunk_len(list->size, i));
	return true;
}

static void lane_run(struct work *work)
{
	struct lane *lane = container_of(work, struct lane, work);
	struct chunk_job *job = lane->job;

	if (job_step(job))
		workers_submit(job->pool, work);
	else if (atomic_fetch_sub(&job->lanes_left, 1) == 1)
		job_finish(job);
}

/* Takes fd over when it succeeds. */
static int job_new(struct workers *pool, int fd, uint64_t size, unsigned lanes,
		   struct chunk_job **ret)
{
	cleanup(chunk_job_unref_cleanup) struct chunk_job *job = NULL;
	int r;

	job = calloc(1, sizeof(*job) + lanes * sizeof(job->lanes[0]));
	if (!job)
		return -ENOMEM;
	job->pool = pool;
	job->fd = -1;
	atomic_init(&job->refs, 1);
	atomic_init(&job->lanes_left, lanes);
	r = chunk_list_new(size, &job->list);
	if (r < 0)
		return r;
	job->fd = fd;
	*ret = take_ptr(job);
	return 0;
}

int chunk_job_start(struct workers *pool, int fd, uint64_t size,
		    chunk_done_fn *done, void *arg, struct chunk_job **ret)
{
	unsigned lanes = workers_count(pool);
	struct chunk_job *job = NULL;
	auto_fd int own = -1;
	int r;

	if (size > CHUNK_FILE_BYTES_MAX)
		return log_debug(-EFBIG, "%llu bytes",
				 (unsigned long long)size);
	if (lanes > chunk_count(size)) /* an empty file needs one to finish */
		lanes = size ? (unsigned)chunk_count(size) : 1;
	own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (own < 0)
		return log_debug(-errno, "duplicating a descriptor");
	r = job_new(pool, own, size, lanes, &job);
	if (r < 0)
		return r;
	(void)take_fd(&own);
	job->done = done;
	job->arg = arg;
	atomic_fetch_add(&job->refs, 1);

	*ret = job;
	for (unsigned i = 0; i < lanes; i++)
		job->lanes[i] = (struct lane){
			.work = { .run = lane_run, .priority = WORK_BULK },
			.job = job,
		};
	/* After the last submit the job may be gone already. */
	for (unsigned i = 0; i < lanes; i++)
		workers_submit(pool, &job->lanes[i].work);
	return 0;
}
