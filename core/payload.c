/* SPDX-License-Identifier: Apache-2.0 */
#include "core/payload.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/dir.h"
#include "core/log.h"
#include "core/metrics.h"

#define ENTRIES_FIRST 64 /* room of a new list */
#define RESOLVE_TRIES 16 /* after EAGAIN: a rename elsewhere got between */

/* Says in why, which may be NULL, what is wrong, and returns err. */
__attribute__((format(printf, 3, 4))) static int refuse(struct buf *why,
							int err,
							const char *fmt, ...)
{
	char text[PAYLOAD_PATH_MAX + 512];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (why)
		(void)buf_printf(why, "%s", text);
	return log_debug(err, "%s", text);
}

/* What failed on one path. A path that is gone or new means a change. */
static int failed(struct buf *why, int err, const char *what, const char *path)
{
	if (err == -ENOENT || err == -ENOTDIR || err == -ELOOP ||
	    err == -ESTALE)
		return refuse(why, -EBUSY,
			      "'%s' changed while the files were listed; try "
			      "again when nothing writes to them",
			      path);
	return refuse(why, err, "%s '%s': %s", what, path,
		      strerrordesc_np(-err));
}

void payload_free(struct payload *p)
{
	if (!p)
		return;
	for (size_t i = 0; i < p->count; i++) {
		free(p->entries[i].path);
		free(p->entries[i].target);
	}
	free(p->entries);
	free(p->objects);
	free(p);
}

/* --- The walk --- */

/* What a walk in progress needs; lives on the stack of payload_scan(). */
struct walk {
	struct payload *p;
	size_t cap;      /* of p->entries */
	struct buf path; /* of the directory that is read, "" or "a/b" */
	struct buf *why;
};

static int walk_dir(struct walk *w, int parent, const char *name,
		    unsigned depth);

static int add_entry(struct walk *w, const struct payload_entry *entry)
{
	struct payload *p = w->p;

	if (p->count == PAYLOAD_ENTRIES_MAX)
		return refuse(w->why, -EFBIG,
			      "the tree has more than %zu entries; pack small "
			      "files into fewer",
			      PAYLOAD_ENTRIES_MAX);
	p->path_bytes += strlen(entry->path);
	if (entry->target)
		p->path_bytes += strlen(entry->target);
	if (p->path_bytes > PAYLOAD_PATHS_BYTES_MAX)
		return refuse(w->why, -EFBIG,
			      "the paths of the tree have more than %zu bytes; "
			      "shorten the names of its directories",
			      PAYLOAD_PATHS_BYTES_MAX);
	if (p->count == w->cap) {
		size_t cap = w->cap ? 2 * w->cap : ENTRIES_FIRST;
		struct payload_entry *entries;

		entries = realloc(p->entries, cap * sizeof(*entries));
		if (!entries)
			return -ENOMEM;
		p->entries = entries;
		w->cap = cap;
	}
	p->entries[p->count++] = *entry;
	return 0;
}

static int read_target(struct walk *w, int dirfd, const char *name,
		       const char *path, char **ret)
{
	char target[PAYLOAD_PATH_MAX + 1];
	ssize_t n = readlinkat(dirfd, name, target, sizeof(target));

	if (n < 0)
		return failed(w->why, -errno, "reading the symlink", path);
	if ((size_t)n >= sizeof(target))
		return refuse(w->why, -EFBIG,
			      "the symlink '%s' has a target of more than %zu "
			      "bytes",
			      path, PAYLOAD_PATH_MAX);
	target[n] = '\0';
	*ret = strdup(target);
	return *ret ? 0 : -ENOMEM;
}

static int kind_of(struct walk *w, const struct stat *st, const char *path,
		   enum payload_kind *ret)
{
	if (st->st_dev != w->p->dev)
		return refuse(w->why, -EBADMSG,
			      "'%s' is on another filesystem, mounted inside "
			      "the tree; unmount it or copy its files",
			      path);
	if (S_ISREG(st->st_mode))
		*ret = PAYLOAD_FILE;
	else if (S_ISDIR(st->st_mode))
		*ret = PAYLOAD_DIR;
	else if (S_ISLNK(st->st_mode))
		*ret = PAYLOAD_SYMLINK;
	else
		return refuse(w->why, -EBADMSG,
			      "'%s' is neither a file, a directory nor a "
			      "symlink; remove it",
			      path);
	return 0;
}

/* Adds the entry name of the open directory; path is its whole path. */
static int walk_entry(struct walk *w, int dirfd, const char *name,
		      const char *path, enum payload_kind *ret_kind)
{
	struct payload_entry entry = { .object = PAYLOAD_NO_OBJECT };
	auto_free char *own_path = NULL;
	auto_free char *target = NULL;
	struct stat st;
	int r;

	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return failed(w->why, -errno, "looking at", path);
	r = kind_of(w, &st, path, &entry.kind);
	if (r < 0)
		return r;
	if (entry.kind == PAYLOAD_SYMLINK) {
		r = read_target(w, dirfd, name, path, &target);
		if (r < 0)
			return r;
	}
	own_path = strdup(path);
	if (!own_path)
		return -ENOMEM;

	entry.path = own_path;
	entry.target = target;
	entry.mode = st.st_mode & 07777;
	entry.uid = st.st_uid;
	entry.gid = st.st_gid;
	entry.size = (uint64_t)st.st_size;
	entry.ino = st.st_ino;
	entry.nlink = st.st_nlink;
	entry.mtime = st.st_mtim;
	r = add_entry(w, &entry);
	if (r < 0)
		return r;
	(void)take_ptr(own_path);
	(void)take_ptr(target);
	*ret_kind = entry.kind;
	return 0;
}

/* One name of the directory whose path is w->path, and what is below it. */
static int walk_name(struct walk *w, int dirfd, const char *name,
		     unsigned depth)
{
	size_t len = w->path.len;
	enum payload_kind kind = PAYLOAD_FILE;
	int r;

	if (strcmp(name, PAYLOAD_RESERVED_NAME) == 0)
		return refuse(w->why, -EBADMSG,
			      "'%s%s%s' has a reserved name; rename it",
			      w->path.data, len ? "/" : "", name);
	r = buf_printf(&w->path, "%s%s", len ? "/" : "", name);
	if (r < 0)
		return r;
	if (w->path.len > PAYLOAD_PATH_MAX)
		return refuse(w->why, -EFBIG,
			      "the path '%.200s...' has more than %zu bytes",
			      w->path.data, PAYLOAD_PATH_MAX);
	r = walk_entry(w, dirfd, name, w->path.data, &kind);
	if (r == 0 && kind == PAYLOAD_DIR)
		r = walk_dir(w, dirfd, name, depth);
	w->path.len = len;
	w->path.data[len] = '\0';
	return r;
}

/* Walks the directory parent/name, which is depth components deep. */
static int walk_dir(struct walk *w, int parent, const char *name,
		    unsigned depth)
{
	cleanup(dir_close_cleanup) DIR *dir = NULL;
	const char *child;
	int r;

	r = dir_open(parent, name, &dir);
	if (r < 0)
		return failed(w->why, r, "opening",
			      w->path.len ? w->path.data : ".");
	for (;;) {
		r = dir_next(dir, &child);
		if (r < 0)
			return failed(w->why, r, "listing",
				      w->path.len ? w->path.data : ".");
		if (!child)
			return 0;
		if (depth == PAYLOAD_DEPTH_MAX)
			return refuse(w->why, -EFBIG,
				      "'%s' is %d directories deep and not "
				      "empty; flatten the tree",
				      w->path.data, PAYLOAD_DEPTH_MAX);
		r = walk_name(w, dirfd(dir), child, depth + 1);
		if (r < 0)
			return r;
	}
}

/* --- What is checked once all entries are known --- */

static int compare_paths(const void *a, const void *b)
{
	const struct payload_entry *x = a;
	const struct payload_entry *y = b;

	return strcmp(x->path, y->path); /* unsigned bytes, as memcmp */
}

const struct payload_entry *payload_find(const struct payload *p,
					 const char *path)
{
	size_t low = 0, high = p->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(path, p->entries[middle].path);

		if (order == 0)
			return &p->entries[middle];
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

/* openat2() that stays below dirfd. Returns the descriptor. */
static int open_beneath(int dirfd, const char *path, uint64_t flags,
			uint64_t resolve)
{
	struct open_how how = {
		.flags = flags | O_CLOEXEC,
		.resolve = resolve | RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS |
			   RESOLVE_NO_XDEV,
	};
	long fd = -1;

	for (int i = 0; i < RESOLVE_TRIES; i++) {
		fd = syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
		if (fd >= 0)
			return (int)fd;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
	}
	return -EBUSY;
}

static int check_symlink(int dirfd, const struct payload_entry *e,
			 struct buf *why)
{
	auto_fd int fd = -1;

	if (e->target[0] == '/')
		return refuse(why, -EBADMSG,
			      "the symlink '%s' has the absolute target '%s'; "
			      "make it relative, or copy what it points to",
			      e->path, e->target);
	fd = open_beneath(dirfd, e->path, O_PATH, 0);
	switch (fd) {
	case -ENOENT:
	case -ENOTDIR:
	case -ENAMETOOLONG:
		return refuse(why, -EBADMSG,
			      "the symlink '%s' points to '%s', which is not "
			      "there; remove it, or copy what it points to",
			      e->path, e->target);
	case -ELOOP:
		return refuse(why, -EBADMSG,
			      "the symlink '%s' to '%s' leads in a circle; "
			      "remove it",
			      e->path, e->target);
	case -EXDEV:
		return refuse(why, -EBADMSG,
			      "the symlink '%s' to '%s' leads out of the tree; "
			      "copy what it points to (cp -rL)",
			      e->path, e->target);
	default:
		return fd < 0 ? failed(why, fd, "following the symlink",
				       e->path) :
				0;
	}
}

static int check_symlinks(int dirfd, const struct payload *p, struct buf *why)
{
	for (size_t i = 0; i < p->count; i++) {
		int r = p->entries[i].kind != PAYLOAD_SYMLINK ?
				0 :
				check_symlink(dirfd, &p->entries[i], why);

		if (r < 0)
			return r;
	}
	return 0;
}

/* --- Objects --- */

/* A file with several names. */
struct linked {
	uint64_t ino;
	size_t entry;
};

static int compare_linked(const void *a, const void *b)
{
	const struct linked *x = a;
	const struct linked *y = b;

	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return x->entry < y->entry ? -1 : x->entry > y->entry;
}

/* Lists the files with several names, sorted by inode, then by path. */
static int list_linked(const struct payload *p, struct linked **ret,
		       size_t *ret_count)
{
	auto_free struct linked *list = NULL;
	size_t count = 0;

	for (size_t i = 0; i < p->count; i++)
		count += p->entries[i].kind == PAYLOAD_FILE &&
			 p->entries[i].nlink > 1;
	if (count) {
		list = calloc(count, sizeof(*list));
		if (!list)
			return -ENOMEM;
	}
	count = 0;
	for (size_t i = 0; i < p->count; i++)
		if (p->entries[i].kind == PAYLOAD_FILE &&
		    p->entries[i].nlink > 1)
			list[count++] = (struct linked){ p->entries[i].ino, i };
	if (count)
		qsort(list, count, sizeof(*list), compare_linked);
	*ret = take_ptr(list);
	*ret_count = count;
	return 0;
}

/*
 * Points the object of each file at the entry that is its first name, and
 * makes sure that no name is elsewhere.
 */
static int join_links(struct payload *p, struct buf *why)
{
	auto_free struct linked *list = NULL;
	size_t count, end;
	int r;

	r = list_linked(p, &list, &count);
	if (r < 0)
		return r;
	for (size_t i = 0; i < p->count; i++)
		if (p->entries[i].kind == PAYLOAD_FILE)
			p->entries[i].object = i;
	for (size_t i = 0; i < count; i = end) {
		const struct payload_entry *e = &p->entries[list[i].entry];

		for (end = i; end < count && list[end].ino == e->ino; end++)
			p->entries[list[end].entry].object = list[i].entry;
		if (end - i < e->nlink)
			return refuse(why, -EBADMSG,
				      "the file '%s' has %llu names (hard "
				      "links), but only %zu are in the tree; "
				      "copy it instead of linking it",
				      e->path, (unsigned long long)e->nlink,
				      end - i);
		if (end - i > e->nlink)
			return failed(why, -ENOENT, "looking at", e->path);
	}
	return 0;
}

/* Numbers the objects in the order of their first entries. */
static int number_objects(struct payload *p, struct buf *why)
{
	size_t files = 0;
	int r;

	r = join_links(p, why);
	if (r < 0)
		return r;
	for (size_t i = 0; i < p->count; i++)
		files += p->entries[i].object == i;
	if (files) {
		p->objects = calloc(files, sizeof(*p->objects));
		if (!p->objects)
			return -ENOMEM;
	}
	for (size_t i = 0; i < p->count; i++) {
		struct payload_entry *e = &p->entries[i];

		if (e->kind != PAYLOAD_FILE)
			continue;
		if (e->object !=
		    i) { /* the first name has its number already */
			e->object = p->entries[e->object].object;
			continue;
		}
		p->objects[p->object_count] = i;
		e->object = p->object_count++;
	}
	assert(p->object_count == files);
	return 0;
}

int payload_scan(int dirfd, struct payload **ret, struct buf *why)
{
	cleanup(payload_free_cleanup) struct payload *p = NULL;
	struct walk w = { .path = BUF_INIT, .why = why };
	struct stat st;
	int r;

	if (fstat(dirfd, &st) < 0)
		return refuse(why, -errno, "looking at the tree: %s",
			      strerrordesc_np(errno));
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->dev = st.st_dev;
	w.p = p;
	r = walk_dir(&w, dirfd, ".", 0);
	buf_release(&w.path);
	if (r < 0)
		return r;
	if (p->count)
		qsort(p->entries, p->count, sizeof(*p->entries), compare_paths);
	r = check_symlinks(dirfd, p, why);
	if (r < 0)
		return r;
	r = number_objects(p, why);
	if (r < 0)
		return r;

	*ret = take_ptr(p);
	return 0;
}

/* --- Making directories durable --- */

static int sync_dir(int dirfd, const char *path)
{
	auto_fd int fd =
		open_beneath(dirfd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW,
			     RESOLVE_NO_SYMLINKS);

	if (fd < 0)
		return log_debug(fd, "opening '%s'", path);
	metrics_add(METRIC_FSYNCS, 1);
	if (fsync(fd) < 0)
		return log_debug(-errno, "fsync of '%s'", path);
	return 0;
}

int payload_sync_dirs(int dirfd, const struct payload *p)
{
	/* A directory sorts before what is in it, so backwards is upwards. */
	for (size_t i = p->count; i-- > 0;) {
		int r = p->entries[i].kind != PAYLOAD_DIR ?
				0 :
				sync_dir(dirfd, p->entries[i].path);

		if (r < 0)
			return r;
	}
	return sync_dir(dirfd, ".");
}
