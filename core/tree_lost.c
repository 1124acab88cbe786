/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published groups of which the directory, the manifest or all files are gone:
 * a disk was lost, or the records came from a snapshot and the payload didn't.
 *
 * Directories that are missing are made again, empty. So the group can be asked
 * about, and what was in them can be put back while the daemon runs. Without its
 * manifest nothing of a group can be verified: it is degraded, and what there is
 * of it is served as far as its stamps go. With the manifest, names and sizes are
 * made anew and the bytes count as lost, as after a power loss (tree_verify.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "core/log.h"
#include "core/store_dir.h"
#include "core/tree_priv.h"
#include "core/weight_key.h"

/* ---- Directories ---- */

bool tree_group_has_dir(struct weight_store *s,
			const struct weight_identity *id)
{
	char path[TREE_GROUP_PATH_LEN];
	char hex[DIGEST_HEX_LEN + 1];

	if (weight_group_hex(id, hex) < 0)
		return true;
	tree_group_dir(hex, path);
	return faccessat(s->groups_fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0 ||
	       errno != ENOENT;
}

static int open_dir(int parent, const char *name, int *ret)
{
	*ret = openat(parent, name,
		      O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return errno_of(*ret);
}

/* What is lost may be put back there; whose it is stands beside it. */
static int make_group_dir(struct weight_group *g, const char *path)
{
	char prefix[] = { path[0], path[1], '\0' };
	auto_fd int fd = -1;

	if ((mkdirat(g->store->groups_fd, prefix, 0700) < 0 &&
	     errno != EEXIST) ||
	    mkdirat(g->store->groups_fd, path, 0700) < 0)
		return -errno;
	fd = openat(g->store->groups_fd, path,
		    O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : tree_group_write_identity(fd, g->identity);
}

/* What stamps say of files is void where there is none of them. */
static int make_files_dir(struct weight_group *g)
{
	if (mkdirat(g->dirfd, TREE_FILES_NAME, 0755) < 0)
		return -errno;
	(void)unlinkat(g->dirfd, TREE_STAMPS_NAME, 0);
	return 0;
}

int tree_group_open_dirs(struct weight_group *g, bool published)
{
	char path[TREE_GROUP_PATH_LEN];
	int r;

	tree_group_dir(g->hex, path);
	r = open_dir(g->store->groups_fd, path, &g->dirfd);
	if (r == -ENOENT && published) {
		r = make_group_dir(g, path);
		if (r == 0)
			r = open_dir(g->store->groups_fd, path, &g->dirfd);
	}
	if (r < 0)
		return r;
	r = open_dir(g->dirfd, TREE_FILES_NAME, &g->files_fd);
	if (r == -ENOENT && published) {
		r = make_files_dir(g);
		if (r == 0)
			r = open_dir(g->dirfd, TREE_FILES_NAME, &g->files_fd);
		g->remade = r == 0;
	}
	return r;
}

/* ---- What is lost as a whole ---- */

static int describe(const struct weight_group *g, enum tree_loss loss,
		    struct buf *ret)
{
	return buf_printf(ret,
			  "its %s; copy it back into groups/%.2s/%s of the "
			  "store and set user.weights.repair",
			  loss == TREE_LOSS_ALL ?
				  "payload is missing" :
				  "manifest is missing or damaged",
			  g->hex, g->hex);
}

/* Stores what is lost, and the sentence about it. */
static void set_loss(struct weight_group *g, enum tree_loss loss)
{
	cleanup(buf_release) struct buf text = BUF_INIT;
	char *old = NULL;
	bool changed;

	if (loss != TREE_LOSS_NONE)
		(void)describe(g, loss, &text);
	store_lock(g->store);
	changed = g->loss != loss;
	if (changed) {
		old = g->damage_text;
		g->damage_text = text.len ? strdup(text.data) : NULL;
	}
	g->loss = loss;
	(void)pthread_cond_broadcast(&g->changed);
	store_unlock(g->store);
	free(old);
	/* The record has to say so. */
	if (changed)
		(void)upkeep_want(g);
}

static enum tree_loss without_manifest(struct weight_group *g)
{
	bool empty = false;

	(void)store_dir_is_empty(g->files_fd, ".", &empty);
	return empty ? TREE_LOSS_ALL : TREE_LOSS_MANIFEST;
}

void tree_loss_look(struct weight_group *g)
{
	if (faccessat(g->dirfd, TREE_MANIFEST_NAME, F_OK, AT_SYMLINK_NOFOLLOW) <
		    0 &&
	    errno == ENOENT)
		set_loss(g, without_manifest(g));
	else if (g->remade)
		/* Its names are known, and get made again. */
		(void)weight_group_repair(g, NULL);
}

void tree_loss_note(struct weight_group *g, int r)
{
	if (r == 0)
		set_loss(g, TREE_LOSS_NONE);
	else if (r == -EUCLEAN)
		set_loss(g, without_manifest(g));
}

bool tree_loss_look_again(struct weight_group *g)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;

	return tree_manifest_read(g, &m) < 0;
}

enum tree_loss tree_group_loss(struct weight_group *g)
{
	enum tree_loss loss;

	store_lock(g->store);
	loss = g->loss;
	store_unlock(g->store);
	return loss;
}

bool weight_file_is_absent(struct weight_file *file)
{
	bool absent;

	store_lock(file->store);
	absent = file->group->loss == TREE_LOSS_ALL;
	store_unlock(file->store);
	return absent;
}
