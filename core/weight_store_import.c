/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot into a store without metadata.
 *
 * The database is filled as meta.new/, payload that it doesn't know is put
 * aside, and only then does its file become meta/data.mdb. Until that instant
 * there is no metadata, and the same can be done again.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/step.h"
#include "core/store_dir.h"
#include "core/weight_key.h"
#include "core/weight_store_offline_priv.h"

struct import {
	struct offline offline;
	const struct weight_store_watch *watch;
	struct weight_store_summary summary;
	struct payload_names names;
	int aside_fd;   /* -1: nothing was put there */
	bool made_dir;  /* the store's own directory */
	bool made_lock; /* its lock file */
	bool done;
};

/* Of what fails nothing is left, so that it is as if nobody had tried. */
static void undo(struct import *in)
{
	struct offline *o = &in->offline;

	wms_close(take_ptr(o->records));
	if (o->lock_fd < 0)
		return;
	(void)store_dir_drop_unfinished(o->fd);
	if (in->made_lock)
		(void)unlinkat(o->fd, STORE_LOCK_NAME, 0);
}

static void import_release(struct import *in)
{
	if (!in->done)
		undo(in);
	if (!in->done && in->made_dir)
		(void)rmdir(in->offline.path);
	if (in->aside_fd >= 0)
		(void)close(in->aside_fd);
	payload_names_release(&in->names);
	offline_release(&in->offline);
}

/* ---- Where it goes ---- */

/* A start that was refused may have left one that nobody worked with. */
static int must_be_new(struct offline *o, struct buf *why)
{
	cleanup(wms_close_cleanup) struct weight_metadata_store *there = NULL;
	cleanup(buf_release) struct buf ignored = BUF_INIT;
	struct buf meta = BUF_INIT;
	int r = buf_printf(&meta, "%s/" STORE_META_NAME, o->path);

	if (r == 0)
		r = wms_open_read(meta.data, &there, &ignored);
	buf_release(&meta);
	if (r == -ENOMEM || (r == 0 && wms_is_new(there)))
		return r;
	(void)buf_printf(why,
			 "the store '%s' has metadata; a snapshot goes into a "
			 "store without",
			 o->path);
	return -EEXIST;
}

static int must_be_without_metadata(struct offline *o, struct buf *why)
{
	bool there;
	int r = store_dir_has_data(o->fd, &there);

	if (r < 0)
		return offline_say(o, r, "reading the store", why);
	return there ? must_be_new(o, why) : 0;
}

/* Nothing is made in what may be somebody else's. */
static int must_not_be_foreign(struct offline *o, struct buf *why)
{
	struct store_dir d;
	int r = store_dir_look(o->fd, &d);

	if (r < 0)
		return offline_say(o, r, "reading the store", why);
	if (!d.foreign)
		return 0;
	(void)buf_printf(why, "'%s' is neither a store nor an empty directory",
			 o->path);
	return -EUCLEAN;
}

static int open_store(struct import *in, struct buf *why)
{
	struct offline *o = &in->offline;
	int r;

	in->made_dir = mkdir(o->path, 0700) == 0;
	if (!in->made_dir && errno != EEXIST)
		return offline_say(o, -errno, "making the store", why);
	o->fd = open(o->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (o->fd < 0)
		return offline_say(o, -errno, "opening the store", why);
	r = must_not_be_foreign(o, why);
	if (r < 0)
		return r;
	r = store_dir_lock(o->fd, true, &in->made_lock, &o->lock_fd);
	if (r == 0)
		r = store_dir_drop_unfinished(o->fd);
	if (r < 0)
		return offline_say(o, r, "locking the store", why);
	r = must_be_without_metadata(o, why);
	return r < 0 ? r : offline_open_groups(o, why);
}

/* ---- The database ---- */

/* It has been in use: what lies beside it belongs to it. */
static int begin_life(struct weight_metadata_store *records)
{
	char boot_id[CLOCK_BOOT_ID_LEN + 1];
	bool unclean;
	int r = clock_boot_id(boot_id);

	if (r == 0)
		r = wms_begin_boot(records, boot_id, &unclean);
	return r < 0 ? r : wms_mark_clean(records);
}

static int fill(struct import *in, int fd, struct buf *why)
{
	struct offline *o = &in->offline;
	struct buf meta = BUF_INIT;
	int r = buf_printf(&meta, "%s/" STORE_META_NEW_NAME, o->path);

	if (r == 0)
		r = wms_open(meta.data, &o->records, why);
	buf_release(&meta);
	if (r == 0)
		r = wms_import(o->records, fd, true, why);
	if (r < 0)
		return r;
	step("restore: filled");
	r = begin_life(o->records);
	return r < 0 ? offline_say(o, r, "filling the metadata of", why) :
		       offline_summary(o, &in->summary, why);
}

static int sync_names(const struct import *in, int meta_fd)
{
	auto_fd int parent = -1;

	if (fsync(meta_fd) < 0 || fsync(in->offline.fd) < 0)
		return -errno;
	if (!in->made_dir)
		return 0;
	parent = openat(in->offline.fd, "..",
			O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return parent < 0 || fsync(parent) < 0 ? -errno : 0;
}

/* The rename is the instant from which on there is metadata. */
static int put_in_place(struct import *in)
{
	struct offline *o = &in->offline;
	auto_fd int meta = -1;

	wms_close(take_ptr(o->records));
	/* The bytes of all tenants lie below: their owner alone goes in. */
	if (fchmod(o->fd, 0700) < 0 ||
	    (mkdirat(o->fd, STORE_META_NAME, 0700) < 0 && errno != EEXIST))
		return -errno;
	meta = openat(o->fd, STORE_META_NAME,
		      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (meta < 0)
		return -errno;
	step("restore: about to be in place");
	if (renameat(o->fd, STORE_META_NEW_NAME "/" STORE_DATA_NAME, meta,
		     STORE_DATA_NAME) < 0)
		return -errno;
	step("restore: in place");
	in->done = true;
	(void)store_dir_drop_unfinished(o->fd);
	return sync_names(in, meta);
}

/* ---- Payload ---- */

static int count_missing(struct import *in)
{
	struct wms_position at = { 0 };
	int r = 0;

	while (r == 0) {
		cleanup(weight_metadata_free_cleanup) struct weight_metadata
			*m = NULL;
		char hex[DIGEST_HEX_LEN + 1], path[OFFLINE_GROUP_PATH_LEN];

		r = wms_revision_each(in->offline.records, &at, &m);
		if (r < 0 || (m->availability != WEIGHT_READY &&
			      m->availability != WEIGHT_DEGRADED))
			continue;
		r = weight_group_hex(&m->identity, hex);
		if (r < 0)
			return r;
		offline_group_path(hex, path);
		in->summary.missing += in->offline.groups_fd < 0 ||
				       faccessat(in->offline.groups_fd, path,
						 F_OK, AT_SYMLINK_NOFOLLOW) < 0;
	}
	return r == -ENOENT ? 0 : r;
}

static int open_aside(struct import *in)
{
	if (in->aside_fd >= 0)
		return 0;
	if (mkdirat(in->offline.fd, STORE_ASIDE_NAME, 0700) < 0 &&
	    errno != EEXIST)
		return -errno;
	in->aside_fd = openat(in->offline.fd, STORE_ASIDE_NAME,
			      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return in->aside_fd < 0 ? -errno : 0;
}

/* Under its own name, or where there is one already, with a number. */
static int move_aside(struct import *in, const char *from, const char *name)
{
	char to[NAME_MAX + 1];

	for (unsigned i = 0; i < 1000; i++) {
		(void)snprintf(to, sizeof(to), i ? "%.240s.%u" : "%.240s", name,
			       i);
		if (renameat2(in->offline.groups_fd, from, in->aside_fd, to,
			      RENAME_NOREPLACE) == 0)
			return 0;
		if (errno != EEXIST)
			return -errno;
	}
	return -EEXIST;
}

/*
 * Only what looks like a group is moved, since nothing else is removed at a
 * start; what was removed before the snapshot goes then.
 */
static int put_aside(void *arg, const char *path)
{
	struct import *in = arg;
	const char *slash = strchr(path, '/');
	struct buf line = BUF_INIT;
	int r;

	if (!slash || strlen(slash + 1) != DIGEST_HEX_LEN ||
	    map_find(in->names.gone, slash + 1, DIGEST_HEX_LEN))
		return 0;
	r = open_aside(in);
	if (r == 0)
		r = move_aside(in, path, slash + 1);
	if (r < 0)
		return r;
	in->summary.aside++;
	if (in->watch->found &&
	    buf_printf(&line,
		       STORE_GROUPS_NAME
		       "/%s: not in the snapshot, moved to " STORE_ASIDE_NAME
		       "/%s",
		       path, slash + 1) == 0)
		in->watch->found(in->watch->arg, line.data);
	buf_release(&line);
	return 0;
}

static int settle_payload(struct import *in, struct buf *why)
{
	int r = count_missing(in);

	if (r == 0 && in->offline.groups_fd >= 0)
		r = payload_names_read(in->offline.records, &in->names);
	if (r == 0 && in->offline.groups_fd >= 0)
		r = payload_strays(in->offline.groups_fd, &in->names, put_aside,
				   in);
	if (r == 0 && in->aside_fd >= 0 &&
	    (fsync(in->aside_fd) < 0 || fsync(in->offline.groups_fd) < 0))
		r = -errno;
	step("restore: put aside");
	return r < 0 ? offline_say(&in->offline, r, "looking at the payload of",
				   why) :
		       0;
}

int weight_store_import(const char *path, int fd,
			const struct weight_store_watch *watch,
			struct weight_store_summary *ret, struct buf *why)
{
	cleanup(import_release) struct import in = {
		.offline = OFFLINE_INIT(path),
		.watch = watch,
		.aside_fd = -1,
	};
	int r;

	if ((r = payload_names_new(&in.names)) < 0 ||
	    (r = open_store(&in, why)) < 0 || (r = fill(&in, fd, why)) < 0 ||
	    (r = settle_payload(&in, why)) < 0)
		return r;
	r = put_in_place(&in);
	if (r < 0)
		return offline_say(&in.offline, r, "putting the metadata in",
				   why);
	*ret = in.summary;
	return 0;
}
