/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Upkeep: to the device, and read back.
 *
 * A revision is durable when every file and every directory above it was
 * synced, and a read of all of it past the cache had the right digests. An
 * fsync alone isn't proof: after one that failed, the next one succeeds.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/pace.h"
#include "core/step.h"
#include "core/upkeep_priv.h"

/* Between two questions whether to go on. */
#define SLICE_BYTES ((uint64_t)64 << 20)

static struct pace *io_pace(const struct upkeep *u)
{
	const struct weight_store *s = u->g->store;

	return s->config->io_limit ? s->pace : NULL;
}

/* It failed: said, counted, and tried again. */
static int failed(struct upkeep *u, const char *what, const char *path, int r)
{
	struct buf why = BUF_INIT;

	metrics_add(METRIC_WRITE_BACK_FAILURES, 1);
	u->write_back_retry_ms = upkeep_retry_at(u);
	u->at = 0;
	u->phase = PHASE_SYNC;
	if (buf_printf(&why, "'%s' can't be %s: %s; trying again", path, what,
		       strerrordesc_np(-r)) == 0) {
		upkeep_set_failing(u, why.data);
		weight_group_set_error(u->g, why.data);
		u->write_back_failed = true;
		(void)log_debug(r, "%s", why.data);
	}
	buf_release(&why);
	return 0;
}

/*
 * A failure of the device is told to one call only. What this one can't do is
 * left to fsync.
 */
static int write_slice(int fd, uint64_t at, uint64_t len)
{
	if (sync_file_range(fd, (off64_t)at, (off64_t)len,
			    SYNC_FILE_RANGE_WAIT_BEFORE |
				    SYNC_FILE_RANGE_WRITE |
				    SYNC_FILE_RANGE_WAIT_AFTER) == 0)
		return 0;
	return errno == EIO || errno == ENOSPC || errno == EDQUOT ? -errno : 0;
}

/* Writes in slices, so that a removal needn't wait for all of it. */
static int write_out(struct upkeep *u, int fd, uint64_t size)
{
	int r;

	/* All of it is on its way while the first slice is waited for. */
	if (!io_pace(u))
		(void)sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
	for (uint64_t at = 0; at < size; at += SLICE_BYTES) {
		uint64_t len =
			size - at < SLICE_BYTES ? size - at : SLICE_BYTES;

		r = write_slice(fd, at, len);
		if (r < 0)
			return r;
		if (!upkeep_go_on(u, len))
			return -ECANCELED;
		if (io_pace(u))
			store_pace(u->g->store, io_pace(u), len);
	}
	return 0;
}

static int sync_object(struct upkeep *u, const struct tree_object *o)
{
	auto_fd int fd = openat(u->g->files_fd, o->path,
				O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	int r;

	if (fd < 0)
		return -errno;
	r = write_out(u, fd, o->size);
	if (r < 0)
		return r;
	metrics_add(METRIC_FSYNCS, 1);
	return errno_of(fsync(fd));
}

/* As sync_object(). What isn't there is for the reading back to find. */
static int sync_what_is_there(struct upkeep *u, const struct tree_object *o)
{
	int r = sync_object(u, o);

	if (r == -ENOENT && !u->names_checked) {
		r = upkeep_check_names(u);
		if (r == 0)
			r = sync_object(u, o);
	}
	return r == -ENOENT || r == -ENOTDIR || r == -ELOOP || r == -ENXIO ? 0 :
									     r;
}

static int sync_round(struct upkeep *u)
{
	uint64_t start = u->done_bytes;
	size_t files = 0;

	while (u->at < u->content->count &&
	       upkeep_round_lasts(u, start, files)) {
		const struct tree_object *o = &u->content->objects[u->at];
		int r = sync_what_is_there(u, o);

		if (r == -ECANCELED || r == -EMFILE || r == -ENFILE)
			return r;
		if (r < 0)
			return failed(u, "written back", o->path, r);
		u->at++;
		files++;
	}
	if (u->at < u->content->count)
		return 0;
	u->at = 0;
	u->phase = PHASE_DIRECTORIES;
	step("write-back: synced");
	return 0;
}

static int sync_directories(struct upkeep *u)
{
	struct weight_group *g = u->g;
	auto_fd int dir =
		openat(g->dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r;

	if (dir < 0)
		return -errno;
	if ((r = tree_sync_dirs(g, u->content)) < 0 ||
	    (r = errno_of(fsync(dir))) < 0 ||
	    (r = tree_group_sync_places(g)) < 0)
		return failed(u, "written back", "its directories", r);
	metrics_add(METRIC_FSYNCS, 1);
	u->phase = PHASE_READ_BACK;
	step("write-back: directories");
	return 0;
}

/* The proof. What is wrong there and right in memory is written again. */
static int read_back_round(struct upkeep *u)
{
	const struct tree_check check = {
		.group = u->g,
		.content = u->content,
		.device = true,
		.pace = io_pace(u),
		.go_on = upkeep_go_on,
		.arg = u,
	};
	uint64_t start = u->done_bytes;
	size_t files = 0;

	while (u->at < u->content->count &&
	       upkeep_round_lasts(u, start, files)) {
		const struct tree_object *o = &u->content->objects[u->at];
		int r = tree_verify_object(&check, u->at);

		if (r == -ECANCELED || r == -EMFILE || r == -ENFILE ||
		    r == -ENOMEM)
			return r;
		if (r < 0)
			return failed(u, "read back", o->path, r);
		metrics_add(METRIC_BYTES_READ_BACK, (int64_t)o->size);
		u->at++;
		files++;
	}
	return 0;
}

/* Everything is there, and was seen to be. */
static int mark_durable(struct upkeep *u)
{
	struct weight_group *g = u->g;
	int r;

	step("write-back: read back");
	if (tree_group_is_damaged(g)) {
		tree_damage_describe(g, u->content);
		return tree_stamps_save(g, true);
	}
	store_lock(g->store);
	g->stamps->scrub_ended_ms = clock_realtime_ms();
	store_unlock(g->store);
	r = tree_stamps_save(g, true);
	step("write-back: stamped");
	if (r == 0) {
		metrics_add(METRIC_METADATA_COMMITS, 1);
		r = wms_mark_durable(g->store->records, g->identity,
				     clock_realtime_ms(), NULL);
	}
	if (r < 0)
		return failed(u, "marked", "its record", r);
	step("write-back: marked");
	store_lock(g->store);
	g->durable = true;
	/* What it replaces may have waited for that. */
	reconciler_poke_locked(g->store);
	store_unlock(g->store);
	metrics_add(METRIC_WRITE_BACKS, 1);
	if (u->write_back_failed)
		weight_group_set_error(g, "");
	u->write_back_failed = false;
	upkeep_set_stuck(u, false, NULL);
	u->failures = 0;
	return 0;
}

int upkeep_write_back(struct upkeep *u, const struct weight_metadata *m)
{
	int r = upkeep_content(u);

	(void)m;
	if (r < 0)
		return r;
	if (u->total_bytes == 0)
		upkeep_begin(u, 0, 2 * u->content->bytes);
	switch (u->phase) {
	case PHASE_SYNC:
		return sync_round(u);
	case PHASE_DIRECTORIES:
		return sync_directories(u);
	case PHASE_READ_BACK:
		break;
	}
	r = read_back_round(u);
	if (r < 0 || u->phase != PHASE_READ_BACK || u->at < u->content->count)
		return r;
	u->at = 0;
	u->phase = PHASE_SYNC;
	return mark_durable(u);
}
