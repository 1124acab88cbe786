/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-helpers/weightctl_copy.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/dir.h"
#include "core/map.h"
#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_bar.h"
#include "mount-helpers/weightctl_data.h"
#include "mount-helpers/weightctl_say.h"

#define CHANGED "it changed meanwhile"

/* Of a walk over the source; also of the count that goes before it. */
struct copy {
	const char *source;
	const char *target; /* NULL: only counting */
	bool follow;
	int target_fd;
	struct data_copy data;
	struct buf path;   /* of the entry, below source */
	struct map *links; /* inode to the first of its names, owned */
	const struct level *level;
	struct copy_totals sum;
	const struct copy_totals *totals;
	struct bar *bar;
};

static int moved(void *arg, uint64_t bytes);

struct inode_key {
	uint64_t dev, ino;
};

/* A directory that the walk is in. */
struct level {
	struct inode_key key;
	const struct level *up;
};

/* ---- What is said ---- */

/* Reading the source failed. */
static int source_failed(struct copy *c, int err, const char *what)
{
	struct buf path = BUF_INIT;

	if (err == -EINTR)
		return err;
	(void)buf_printf(&path, "%s%s%s", c->source, c->path.len > 0 ? "/" : "",
			 c->path.data);
	say_error(err, path.data, what);
	buf_release(&path);
	return err;
}

/* The source is not as it should be, whatever the errno is called. */
static int source_refused(struct copy *c, int err, const char *sentence)
{
	struct buf path = BUF_INIT;

	(void)buf_printf(&path, "%s%s%s", c->source, c->path.len > 0 ? "/" : "",
			 c->path.data);
	say_note(path.data, "%s", sentence);
	buf_release(&path);
	return err;
}

/* Writing the target failed: the mount may have a sentence for it. */
static int target_failed(struct copy *c, int err)
{
	if (err == -EINTR)
		return err;
	return say_refused(err, c->target,
			   c->path.len > 0 ? c->path.data : "copying");
}

/* ---- Set up and gone ---- */

static int copy_init(struct copy *c, const char *source, bool follow)
{
	int r;

	*c = (struct copy){ .source = source,
			    .follow = follow,
			    .target_fd = -1,
			    .path = BUF_INIT };
	data_copy_init(&c->data, moved, c);
	r = map_new(&c->links);
	return r < 0 ? say_failed(r, source, "copying") : 0;
}

static void copy_release(struct copy *c)
{
	size_t at = c->links ? map_count(c->links) : 0;
	struct map_entry e;

	while (c->links && map_next(c->links, &at, &e))
		free(e.value);
	map_free(c->links);
	buf_release(&c->path);
	data_copy_release(&c->data);
	if (c->target_fd >= 0)
		(void)close(c->target_fd);
}

/* Enters name: returns what leave() needs to undo it, or a negative errno. */
static int enter(struct copy *c, const char *name, size_t *ret_len)
{
	size_t len = c->path.len;
	int r = buf_printf(&c->path, "%s%s", len > 0 ? "/" : "", name);

	*ret_len = len;
	return r;
}

static void leave(struct copy *c, size_t len)
{
	if (len < c->path.len) {
		c->path.data[len] = '\0';
		c->path.len = len;
	}
}

/* ---- Files, links, directories ---- */

static int moved(void *arg, uint64_t bytes)
{
	struct copy *c = arg;

	c->sum.bytes += bytes;
	if (c->bar)
		bar_bytes(c->bar, c->sum.bytes, c->totals->bytes);
	return ctl_interrupted() ? -EINTR : 0;
}

static int copy_data(struct copy *c, int in, int out, uint64_t size)
{
	int r = data_copy(&c->data, in, out, size);

	if (r == 0 || r == -EINTR)
		return r;
	if (!c->data.at_source)
		return target_failed(c, r);
	return r == -EBUSY ? source_refused(c, r, CHANGED) :
			     source_failed(c, r, "reading");
}

static bool same_version(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Mode and times of st, for the open file or directory fd. */
static int set_facts(struct copy *c, int fd, const struct stat *st)
{
	const struct timespec times[] = { st->st_atim, st->st_mtim };

	if (fchmod(fd, st->st_mode & 07777) < 0 || futimens(fd, times) < 0)
		return target_failed(c, -errno);
	return 0;
}

/* Copies the open file in to a new file name in the directory dst. */
static int copy_open_file(struct copy *c, int in, int dst, const char *name)
{
	auto_fd int out = openat(dst, name,
				 O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	struct stat before, after;
	int r;

	if (out < 0)
		return target_failed(c, -errno);
	if (fstat(in, &before) < 0)
		return source_failed(c, -errno, "reading");
	(void)posix_fadvise(in, 0, 0, POSIX_FADV_SEQUENTIAL);
	r = copy_data(c, in, out, (uint64_t)before.st_size);
	if (r < 0)
		return r;
	if (fstat(in, &after) < 0)
		return source_failed(c, -errno, "reading");
	if (!same_version(&before, &after))
		return source_refused(c, -EBUSY, CHANGED);
	r = set_facts(c, out, &before);
	if (r == 0 && close(take_fd(&out)) < 0 && errno != EINTR)
		r = target_failed(c, -errno);
	return r;
}

/*
 * Returns 1 when this inode has been there before: *ret is its first name.
 * Otherwise 0, and the next time it will have been.
 */
static int seen(struct copy *c, const struct stat *st, const char **ret)
{
	const struct inode_key key = { st->st_dev, st->st_ino };
	auto_free char *name = NULL;
	int r;

	if (st->st_nlink < 2 && !c->follow)
		return 0;
	*ret = map_find(c->links, &key, sizeof(key));
	if (*ret)
		return 1;
	name = strdup(c->path.data);
	r = name ? map_add(c->links, &key, sizeof(key), name) : -ENOMEM;
	if (r < 0)
		return source_failed(c, r, "copying");
	(void)take_ptr(name);
	return 0;
}

static int visit_file(struct copy *c, int src, int dst, const char *name,
		      const struct stat *st)
{
	const char *first = NULL;
	auto_fd int in = -1;
	int r = seen(c, st, &first);

	if (r < 0)
		return r;
	c->sum.files++;
	if (!c->target) {
		if (r == 0)
			c->sum.bytes += (uint64_t)st->st_size;
		return 0;
	}
	if (r > 0)
		return linkat(c->target_fd, first, dst, name, 0) < 0 ?
			       target_failed(c, -errno) :
			       0;
	in = openat(src, name,
		    O_RDONLY | O_CLOEXEC | O_NOCTTY |
			    (c->follow ? 0 : O_NOFOLLOW));
	if (in < 0)
		return source_failed(c, -errno, "reading");
	return copy_open_file(c, in, dst, name);
}

static int visit_symlink(struct copy *c, int src, int dst, const char *name,
			 const struct stat *st)
{
	const struct timespec times[] = { st->st_atim, st->st_mtim };
	char to[PATH_MAX];
	ssize_t n;

	if (!c->target)
		return 0;
	n = readlinkat(src, name, to, sizeof(to) - 1);
	if (n < 0)
		return source_failed(c, -errno, "reading");
	to[n] = '\0';
	if (symlinkat(to, dst, name) < 0)
		return target_failed(c, -errno);
	/* Its time is a nicety that not every filesystem has. */
	(void)utimensat(dst, name, times, AT_SYMLINK_NOFOLLOW);
	return 0;
}

static int visit(struct copy *c, int src, int dst, const char *name,
		 unsigned depth);

/* Copies what is in the directory src into dst, which is then -1 to count. */
static int visit_names(struct copy *c, int src, int dst, unsigned depth)
{
	cleanup(dir_close_cleanup) DIR *dir = NULL;
	const char *name = NULL;
	size_t len;
	int r;

	if (depth > COPY_DEPTH_MAX)
		return source_refused(c, -ELOOP,
				      "too many directories within others");
	r = dir_open(src, ".", &dir);
	while (r == 0) {
		r = dir_next(dir, &name);
		if (r < 0 || !name)
			break;
		r = enter(c, name, &len);
		if (r < 0)
			break;
		r = visit(c, src, dst, name, depth);
		leave(c, len);
		if (r < 0)
			return r;
	}
	return r < 0 ? source_failed(c, r, "reading") : 0;
}

/* As visit_names(), of the directory with st, unless we are in it already. */
static int visit_inside(struct copy *c, int src, int dst, const struct stat *st,
			unsigned depth)
{
	const struct level here = { { st->st_dev, st->st_ino }, c->level };
	int r;

	for (const struct level *l = c->level; l; l = l->up)
		if (l->key.dev == here.key.dev && l->key.ino == here.key.ino)
			return source_refused(c, -ELOOP,
					      "a symlink leads back to it");
	c->level = &here;
	r = visit_names(c, src, dst, depth);
	c->level = here.up;
	return r;
}

static int visit_dir(struct copy *c, int src, int dst, const char *name,
		     const struct stat *st, unsigned depth)
{
	auto_fd int from = openat(src, name,
				  O_RDONLY | O_DIRECTORY | O_CLOEXEC |
					  (c->follow ? 0 : O_NOFOLLOW));
	auto_fd int to = -1;
	int r;

	if (from < 0)
		return source_failed(c, -errno, "reading");
	if (!c->target)
		return visit_inside(c, from, -1, st, depth + 1);
	if (mkdirat(dst, name, 0700) < 0)
		return target_failed(c, -errno);
	to = openat(dst, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (to < 0)
		return target_failed(c, -errno);
	r = visit_inside(c, from, to, st, depth + 1);
	return r < 0 ? r : set_facts(c, to, st);
}

static int visit(struct copy *c, int src, int dst, const char *name,
		 unsigned depth)
{
	struct stat st;

	if (ctl_interrupted())
		return -EINTR;
	if (fstatat(src, name, &st, c->follow ? 0 : AT_SYMLINK_NOFOLLOW) < 0)
		return source_failed(c, -errno, "reading");
	switch (st.st_mode & S_IFMT) {
	case S_IFDIR:
		return visit_dir(c, src, dst, name, &st, depth);
	case S_IFREG:
		return visit_file(c, src, dst, name, &st);
	case S_IFLNK:
		return visit_symlink(c, src, dst, name, &st);
	default:
		return source_refused(c, -EPERM,
				      "this is neither a file nor a directory "
				      "nor a symlink");
	}
}

/* ---- The whole ---- */

/* The last part of a path, without what trails it. */
static int last_part(const char *path, struct buf *ret)
{
	size_t end = strlen(path);
	size_t start;

	while (end > 1 && path[end - 1] == '/')
		end--;
	for (start = end; start > 0 && path[start - 1] != '/'; start--)
		;
	return buf_append(ret, path + start, end - start);
}

/* The source is a single file. */
static int walk_file(struct copy *c, int src, const struct stat *st)
{
	int r;

	c->sum.files++;
	if (!c->target) {
		c->sum.bytes += (uint64_t)st->st_size;
		return 0;
	}
	r = last_part(c->source, &c->path);
	return r < 0 ? source_failed(c, r, "copying") :
		       copy_open_file(c, src, c->target_fd, c->path.data);
}

static int walk(struct copy *c)
{
	auto_fd int src =
		open(c->source, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;
	int r;

	if (src < 0 || fstat(src, &st) < 0)
		return source_failed(c, -errno, "reading");
	if (S_ISREG(st.st_mode))
		return walk_file(c, src, &st);
	if (!S_ISDIR(st.st_mode))
		return source_refused(c, -EPERM,
				      "this is neither a file nor a directory");
	r = visit_inside(c, src, c->target_fd, &st, 1);
	if (r == 0 && c->target)
		r = set_facts(c, c->target_fd, &st);
	return r;
}

int copy_count(const char *source, bool follow, struct copy_totals *ret)
{
	struct copy c;
	int r = copy_init(&c, source, follow);

	if (r == 0)
		r = walk(&c);
	if (r == 0)
		*ret = c.sum;
	copy_release(&c);
	return r;
}

static int open_target(struct copy *c, const char *target)
{
	c->target = target;
	c->target_fd = open(target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return c->target_fd < 0 ? say_failed(-errno, target, "opening") : 0;
}

int copy_tree(const char *source, const char *target, bool follow,
	      const struct copy_totals *totals, struct bar *bar)
{
	struct copy c;
	int r = copy_init(&c, source, follow);

	c.totals = totals;
	c.bar = bar;
	if (r == 0)
		r = open_target(&c, target);
	if (r == 0)
		r = walk(&c);
	copy_release(&c);
	return r;
}

/* Makes the directories above path, below target. */
static int make_parents(struct copy *c, const char *path)
{
	auto_free char *dir = strdup(path);

	if (!dir)
		return source_failed(c, -ENOMEM, "copying");
	for (char *s = strchr(dir, '/'); s; s = strchr(s + 1, '/')) {
		*s = '\0';
		if (mkdirat(c->target_fd, dir, 0755) < 0 && errno != EEXIST)
			return target_failed(c, -errno);
		*s = '/';
	}
	return 0;
}

int copy_file(const char *source, const char *target, const char *path,
	      struct bar *bar)
{
	const struct copy_totals totals = { .bytes = bar->total };
	auto_fd int in = open(source, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	struct copy c;
	int r = copy_init(&c, source, true);

	c.totals = &totals;
	c.bar = bar;
	c.sum.bytes = bar->done;
	if (r == 0 && in < 0)
		r = source_failed(&c, -errno, "reading");
	if (r == 0)
		r = open_target(&c, target);
	if (r == 0)
		r = make_parents(&c, path);
	if (r == 0)
		r = copy_open_file(&c, in, c.target_fd, path);
	copy_release(&c);
	return r;
}
