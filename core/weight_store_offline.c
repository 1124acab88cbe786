/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that no daemon has open: its metadata out as a snapshot, and what
 * checking and importing share.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/dir.h"
#include "core/log.h"
#include "core/store_dir.h"
#include "core/weight_key.h"
#include "core/weight_store_offline_priv.h"

/* ---- Opening ---- */

void offline_release(struct offline *o)
{
	wms_close(o->records);
	if (o->groups_fd >= 0)
		(void)close(o->groups_fd);
	if (o->lock_fd >= 0)
		(void)close(o->lock_fd);
	if (o->fd >= 0)
		(void)close(o->fd);
}

int offline_say(const struct offline *o, int r, const char *what,
		struct buf *why)
{
	if (r == -EBUSY)
		(void)buf_printf(why,
				 "the store '%s' is open: a daemon runs on it, "
				 "unmount it first",
				 o->path);
	else
		(void)buf_printf(why, "%s '%s': %s", what, o->path,
				 strerrordesc_np(-r));
	return log_debug(r, "%s", what);
}

int offline_open_groups(struct offline *o, struct buf *why)
{
	o->groups_fd = openat(o->fd, STORE_GROUPS_NAME,
			      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (o->groups_fd < 0 && errno != ENOENT)
		return offline_say(o, -errno, "opening the payload of", why);
	return 0;
}

/* Nobody ever worked with it, or it isn't there: was there never any? */
static int say_no_metadata(const struct offline *o, struct buf *why)
{
	bool empty = true;
	int r = 0;

	buf_release(why);
	if (o->groups_fd >= 0)
		r = store_dir_is_empty(o->groups_fd, ".", &empty);
	if (r < 0)
		return offline_say(o, r, "reading", why);
	if (empty) {
		(void)buf_printf(why,
				 "'%s' has no metadata: nothing was ever "
				 "stored in it",
				 o->path);
		return -ENOENT;
	}
	(void)buf_printf(why,
			 "the store '%s' has payload and no metadata; put "
			 "meta/data.mdb back, or bring a snapshot in with "
			 "weightfs --import",
			 o->path);
	return -EUCLEAN;
}

static int open_records(struct offline *o, struct buf *why)
{
	struct buf meta = BUF_INIT;
	int r = buf_printf(&meta, "%s/" STORE_META_NAME, o->path);

	if (r == 0)
		r = wms_open_read(meta.data, &o->records, why);
	buf_release(&meta);
	if (r == -ENOENT || (r == 0 && wms_is_new(o->records)))
		return say_no_metadata(o, why);
	return r;
}

int offline_open(struct offline *o, struct buf *why)
{
	struct store_dir d;
	bool made;
	int r;

	o->fd = open(o->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (o->fd < 0)
		return offline_say(o, -errno, "opening the store", why);
	r = store_dir_look(o->fd, &d);
	if (r < 0)
		return offline_say(o, r, "reading the store", why);
	if (!store_dir_is_store(&d)) {
		(void)buf_printf(why, "'%s' is not a store", o->path);
		return -ENOENT;
	}
	/* A copy without a lock file is open to nobody. */
	r = store_dir_lock(o->fd, false, &made, &o->lock_fd);
	if (r < 0 && r != -ENOENT)
		return offline_say(o, r, "locking the store", why);
	r = offline_open_groups(o, why);
	return r < 0 ? r : open_records(o, why);
}

int offline_summary(struct offline *o, struct weight_store_summary *ret,
		    struct buf *why)
{
	struct wms_oplog_state log = { .first = 1, .next = 1 };
	struct wms_totals totals;
	int r = wms_totals(o->records, &totals);

	if (r == 0)
		r = wms_oplog_state(o->records, &log);
	/* A check has told of it. */
	if (r == -EUCLEAN)
		r = 0;
	if (r < 0)
		return offline_say(o, r, "reading the metadata of", why);
	ret->revisions = totals.revisions;
	ret->staged = totals.staged;
	ret->leases = totals.leases;
	ret->operations = totals.operations;
	ret->lineages = totals.lineages;
	ret->log_first = log.first;
	ret->log_last = log.next - 1;
	ret->log_count = log.next - log.first;
	return 0;
}

/* ---- Whose directories there may be ---- */

void offline_group_path(const char *hex,
			char ret[static OFFLINE_GROUP_PATH_LEN])
{
	(void)snprintf(ret, OFFLINE_GROUP_PATH_LEN, "%.2s/%s", hex, hex);
}

int payload_names_new(struct payload_names *ret)
{
	struct payload_names n = { NULL, NULL };
	int r = map_new(&n.live);

	if (r == 0)
		r = map_new(&n.gone);
	if (r < 0)
		payload_names_release(&n);
	else
		*ret = n;
	return r;
}

void payload_names_release(struct payload_names *n)
{
	map_free(n->live);
	map_free(n->gone);
}

int payload_names_add(struct map *to, const struct weight_identity *id)
{
	char hex[DIGEST_HEX_LEN + 1];
	int r = weight_group_hex(id, hex);

	return r < 0 ? r : map_put(to, hex, DIGEST_HEX_LEN, to, NULL);
}

static int read_revisions(struct weight_metadata_store *records,
			  struct payload_names *n)
{
	struct wms_position at = { 0 };
	int r = 0;

	/* A record that is damaged is one of the check's own findings. */
	while (r == 0 || wms_is_damage(r)) {
		cleanup(weight_metadata_free_cleanup) struct weight_metadata
			*m = NULL;

		r = wms_revision_each(records, &at, &m);
		if (r == 0)
			r = payload_names_add(
				m->availability == WEIGHT_DELETED ? n->gone :
								    n->live,
				&m->identity);
	}
	return r == -ENOENT ? 0 : r;
}

static int read_staged(struct weight_metadata_store *records,
		       struct payload_names *n)
{
	struct wms_position at = { 0 };
	int r = 0;

	while (r == 0 || wms_is_damage(r)) {
		cleanup(weight_staging_free_cleanup) struct weight_staging *st =
			NULL;

		r = wms_staged_each(records, &at, &st);
		if (r == 0)
			r = payload_names_add(n->live, &st->identity);
	}
	return r == -ENOENT ? 0 : r;
}

int payload_names_read(struct weight_metadata_store *records,
		       struct payload_names *n)
{
	int r = read_revisions(records, n);

	return r < 0 ? r : read_staged(records, n);
}

/* What stands in one of the directories of groups/. */
static int strays_below(int groups_fd, const char *prefix,
			const struct payload_names *n, stray_fn *fn, void *arg)
{
	cleanup(dir_close_cleanup) DIR *d = NULL;
	char path[2 * NAME_MAX + 2];
	const char *name = NULL;
	int r = dir_open(groups_fd, prefix, &d);

	/* A file of that name is a stray itself. */
	if (r == -ENOTDIR || r == -ELOOP)
		return fn(arg, prefix);
	while (r == 0 && (r = dir_next(d, &name)) == 0 && name) {
		if (strlen(prefix) == 2 && strncmp(name, prefix, 2) == 0 &&
		    map_find(n->live, name, strlen(name)))
			continue;
		(void)snprintf(path, sizeof(path), "%s/%s", prefix, name);
		r = fn(arg, path);
	}
	return r;
}

int payload_strays(int groups_fd, const struct payload_names *n, stray_fn *fn,
		   void *arg)
{
	cleanup(dir_close_cleanup) DIR *d = NULL;
	const char *name = NULL;
	int r = dir_open(groups_fd, ".", &d);

	while (r == 0 && (r = dir_next(d, &name)) == 0 && name)
		if (strcmp(name, "lost+found") != 0)
			r = strays_below(groups_fd, name, n, fn, arg);
	return r;
}

/* ---- Out ---- */

/* A snapshot that can't be brought in again would be none. */
static int must_fit_together(struct offline *o, struct buf *why)
{
	cleanup(buf_release) struct buf report = BUF_INIT;
	uint64_t bad = 0;
	int r = wms_check(o->records, &report, &bad);

	if (r < 0)
		return offline_say(o, r, "checking the metadata of", why);
	if (bad == 0)
		return 0;
	report.data[strcspn(report.data, "\n")] = '\0';
	(void)buf_printf(why,
			 "the metadata of '%s' is damaged, see weightfs "
			 "--check: %s",
			 o->path, report.data);
	return log_debug(-EUCLEAN, "%llu things are wrong",
			 (unsigned long long)bad);
}

int weight_store_export(const char *path, int fd,
			struct weight_store_summary *ret, struct buf *why)
{
	cleanup(offline_release) struct offline o = OFFLINE_INIT(path);
	struct weight_store_summary found = { 0 };
	int r;

	if ((r = offline_open(&o, why)) < 0 ||
	    (r = offline_summary(&o, &found, why)) < 0 ||
	    (r = must_fit_together(&o, why)) < 0)
		return r;
	r = wms_export(o.records, fd);
	if (r < 0) {
		(void)buf_printf(why, "writing the snapshot: %s",
				 strerrordesc_np(-r));
		return r;
	}
	*ret = found;
	return 0;
}
