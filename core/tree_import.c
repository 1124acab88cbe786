/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups that a writer of the first door fills. They are staged like those of
 * the mount, and what publishing needs is done for them in the same way; but
 * their record is an import's, and the mount doesn't show them before they are
 * published.
 *
 * Such a group is in memory exactly as long as its writer. What a writer leaves
 * unfinished is found again by the record, and its files are written anew: so
 * nothing that was staged before counts.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/step.h"
#include "core/tree_priv.h"
#include "core/weight_key.h"

#define ROOT_MODE 0755

static bool has_writer(struct weight_store *s, const char *hex)
{
	const struct weight_group *g;
	bool has;

	store_lock(s);
	g = map_find(s->groups, hex, DIGEST_HEX_LEN);
	has = g && g->hidden;
	store_unlock(s);
	return has;
}

static bool has_files_dir(struct weight_store *s, const char *hex)
{
	char path[2 + 1 + DIGEST_HEX_LEN + 1 + sizeof(TREE_FILES_NAME)];

	(void)snprintf(path, sizeof(path), "%.2s/%s/" TREE_FILES_NAME, hex,
		       hex);
	return faccessat(s->groups_fd, path, F_OK, 0) == 0;
}

/* The namespace lock is held. Half of a directory is what a kill leaves. */
static int make_group(struct weight_store *s, const struct weight_identity *id,
		      const char *hex, enum weight_residency preferred,
		      struct weight_group **ret)
{
	struct weight_group *g = NULL;
	cleanup(weight_dir_unref_cleanup) struct weight_dir *lineage = NULL;
	const struct weight_caller caller = { .uid = geteuid(),
					      .gid = getegid() };
	int r = tree_lineage_find(s, &id->lineage, true, &lineage);

	if (r == -ENAMETOOLONG)
		r = 0;
	if (r == 0 && !has_files_dir(s, hex)) {
		r = tree_group_rmdir(s, hex);
		if (r == 0)
			r = tree_group_mkdir(s, hex, id, ROOT_MODE, &caller);
		step("import: directory");
	}
	if (r == 0)
		r = tree_group_new(s, id, lineage, WEIGHT_GROUP_STAGED, true,
				   &g);
	if (r < 0)
		return r;
	store_lock(s);
	g->preferred = preferred;
	store_unlock(s);
	*ret = g;
	return 0;
}

static int begin_locked(struct weight_store *s,
			const struct weight_import_request *request,
			struct weight_metadata **ret,
			struct weight_group **ret_group, struct buf *why)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	struct weight_group *g = NULL;
	char hex[DIGEST_HEX_LEN + 1];
	int r = weight_group_hex(&request->identity, hex);

	if (r < 0)
		return r;
	if (has_writer(s, hex)) {
		(void)buf_printf(
			why, "generation %llu has a writer",
			(unsigned long long)request->identity.generation);
		return -EBUSY;
	}
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = wms_import_begin(s->records, request, clock_realtime_ms(), &m, why);
	step("import: begun");
	if (r == 0 && m->availability == WEIGHT_IMPORTING) {
		/* Should nobody go on with it, somebody has to end it. */
		r = reconciler_watch_import(s, &request->identity);
		if (r == 0)
			r = make_group(s, &request->identity, hex,
				       m->policy.preferred, &g);
		if (r < 0)
			(void)buf_printf(why,
					 "making the group's directory: %s",
					 strerrordesc_np(-r));
	}
	if (r < 0)
		return r;
	*ret = take_ptr(m);
	*ret_group = g;
	return 0;
}

int tree_import_begin(struct weight_store *s,
		      const struct weight_import_request *request,
		      struct weight_metadata **ret,
		      struct weight_group **ret_group, struct buf *why)
{
	int r;

	(void)pthread_mutex_lock(&s->namespace_lock);
	r = begin_locked(s, request, ret, ret_group, why);
	(void)pthread_mutex_unlock(&s->namespace_lock);
	return r;
}

/* ---- What it is described as ---- */

/* What can't be read as a digest says nothing: a kill may have cut it. */
static bool read_note(struct weight_group *g, struct digest *ret)
{
	auto_fd int fd = openat(g->dirfd, TREE_IMPORT_NAME,
				O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	char hex[DIGEST_HEX_LEN];

	return fd >= 0 && read(fd, hex, sizeof(hex)) == (ssize_t)sizeof(hex) &&
	       digest_from_hex(hex, sizeof(hex), ret) == 0;
}

static int write_note(struct weight_group *g, const struct digest *source)
{
	auto_fd int fd = openat(
		g->dirfd, TREE_IMPORT_NAME,
		O_CREAT | O_TRUNC | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
	char line[DIGEST_HEX_LEN + 1];
	ssize_t n;

	if (fd < 0)
		return -errno;
	digest_to_hex(source, line);
	line[DIGEST_HEX_LEN] = '\n';
	n = write(fd, line, sizeof(line));
	if (n < 0)
		return -errno;
	return n == (ssize_t)sizeof(line) ? 0 : -ENOSPC;
}

int tree_import_claim(struct weight_group *g, const struct digest *source)
{
	struct digest noted;

	if (read_note(g, &noted))
		return digest_equal(&noted, source) ? 0 : -EEXIST;
	return write_note(g, source);
}

void tree_import_settle(struct weight_group *g)
{
	(void)unlinkat(g->dirfd, TREE_IMPORT_NAME, 0);
}

/* ---- What was there before, and what is there after ---- */

int tree_import_clear(struct weight_group *g)
{
	bool empty = false;
	int r = 0;

	(void)unlinkat(g->dirfd, TREE_MANIFEST_NAME ".tmp", 0);
	(void)unlinkat(g->dirfd, TREE_MANIFEST_NAME, 0);
	(void)unlinkat(g->dirfd, TREE_STAMPS_NAME, 0);
	while (r == 0 && !empty)
		r = payload_remove_batch(g->files_fd, WEIGHT_DELETE_BATCH_MAX,
					 &empty, NULL);
	return r;
}

/* A file that is kept for what is known of it, its reference the caller's. */
static struct weight_file *take_kept(struct weight_group *g)
{
	struct weight_file *found = NULL;

	store_lock(g->store);
	for (struct list *at = g->files.next; at != &g->files && !found;
	     at = at->next) {
		struct weight_file *f =
			container_of(at, struct weight_file, in_group);

		if (f->job)
			chunk_job_cancel(f->job);
		if (tree_file_unkeep_locked(f))
			found = f;
	}
	store_unlock(g->store);
	return found;
}

void tree_import_forget(struct weight_group *g)
{
	struct weight_store *s = g->store;
	struct weight_file *f;

	store_lock(s);
	g->state = WEIGHT_GROUP_ABORTED;
	store_unlock(s);
	while ((f = take_kept(g)))
		weight_file_unref(f);
	tree_group_unpin(g, true);
	/* So that their space can be freed, and their inodes are strangers. */
	tree_group_let_go(g);
	store_lock(s);
	if (map_find(s->groups, g->hex, DIGEST_HEX_LEN) == g)
		(void)map_take(s->groups, g->hex, DIGEST_HEX_LEN);
	(void)pthread_cond_broadcast(&g->changed);
	store_unlock(s);
}
