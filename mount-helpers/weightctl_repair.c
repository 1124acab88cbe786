/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command repair: good copies of damaged files are staged at the same paths
 * beside the revision, where the mount looks for them.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/dir.h"
#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_bar.h"
#include "mount-helpers/weightctl_copy.h"
#include "mount-helpers/weightctl_mount.h"
#include "mount-helpers/weightctl_say.h"
#include "mount-helpers/weightctl_wait.h"

#define CONTROL_NAME ".weights"
/* A number may have been used and removed before. */
#define NUMBERS_TRIED_MAX 1000

/* One good file and its place in the revision. */
struct item {
	const char *source;
	char *path;
	uint64_t bytes;
};

struct repair {
	const struct ctl *ctl;
	char *dir;     /* the revision */
	char *lineage; /* the directory above it */
	char *stage;   /* NULL until it is made */
	struct item *items;
	size_t count;
	uint64_t bytes;
};

static void repair_release(struct repair *p)
{
	for (size_t i = 0; i < p->count; i++)
		free(p->items[i].path);
	free(p->items);
	free(p->stage);
	free(p->lineage);
	free(p->dir);
}

/* ---- Which file of the revision ---- */

struct search {
	const char *name;
	struct buf path;  /* of where the search is */
	struct buf found; /* the first one */
	unsigned count;
};

static int search_dir(struct search *s, int parent, const char *name,
		      unsigned depth);

static int search_entry(struct search *s, int parent, const char *name,
			unsigned depth)
{
	size_t len = s->path.len;
	struct stat st;
	int r = 0;

	if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	r = buf_printf(&s->path, "%s%s", len > 0 ? "/" : "", name);
	if (r < 0)
		return r;
	if (S_ISDIR(st.st_mode)) {
		r = search_dir(s, parent, name, depth + 1);
	} else if (S_ISREG(st.st_mode) && strcmp(name, s->name) == 0) {
		if (s->count++ == 0)
			r = buf_append(&s->found, s->path.data, s->path.len);
	}
	s->path.len = len;
	if (s->path.cap > 0)
		s->path.data[len] = '\0';
	return r;
}

static int search_dir(struct search *s, int parent, const char *name,
		      unsigned depth)
{
	cleanup(dir_close_cleanup) DIR *dir = NULL;
	const char *entry = NULL;
	int r;

	if (depth > COPY_DEPTH_MAX)
		return -ELOOP;
	r = dir_open(parent, name, &dir);
	while (r == 0) {
		r = dir_next(dir, &entry);
		if (r < 0 || !entry)
			break;
		if (depth == 0 && strcmp(entry, CONTROL_NAME) == 0)
			continue;
		r = search_entry(s, dirfd(dir), entry, depth);
	}
	return r;
}

/* The only file of the revision that is called as source is. */
static int find_by_name(struct repair *p, const char *source, char **ret)
{
	struct search s = { .path = BUF_INIT, .found = BUF_INIT };
	auto_free char *copy = strdup(source);
	int r;

	if (!copy)
		return say_failed(-ENOMEM, source, "repair");
	s.name = basename(copy);
	r = search_dir(&s, AT_FDCWD, p->dir, 0);
	if (r < 0) {
		say_error(r, p->dir, "reading");
	} else if (s.count != 1) {
		say_note(source,
			 s.count == 0 ?
				 "no file of the revision has that name; "
				 "PATH=FILE says which one it is" :
				 "several files of the revision have that "
				 "name; PATH=FILE says which one it is");
		r = -EINVAL;
	}
	buf_release(&s.path);
	if (r == 0)
		*ret = s.found.data;
	else
		buf_release(&s.found);
	return r;
}

/* A path that is given must stay inside, since it is staged as it is. */
static bool is_inside(const char *path)
{
	const char *part = path;

	while (true) {
		size_t len = strcspn(part, "/");

		if (len == 0 || (len == 1 && part[0] == '.') ||
		    (len == 2 && part[0] == '.' && part[1] == '.'))
			return false;
		if (part[len] == '\0')
			return true;
		part += len + 1;
	}
}

/* FILE, or PATH=FILE where no file has that whole name. */
static int item_parse(struct repair *p, const char *arg, struct item *ret)
{
	const char *sign = strchr(arg, '=');

	if (!sign || access(arg, F_OK) == 0) {
		ret->source = arg;
		return find_by_name(p, arg, &ret->path);
	}
	ret->source = sign + 1;
	ret->path = strndup(arg, (size_t)(sign - arg));
	if (!ret->path)
		return say_failed(-ENOMEM, arg, "repair");
	if (!is_inside(ret->path)) {
		say_note(arg, "the part before = must be a path in the "
			      "revision");
		return -EINVAL;
	}
	return 0;
}

/* A file of another size is not the good one; that is seen at once. */
static int item_check(struct repair *p, struct item *item)
{
	struct buf path = BUF_INIT;
	struct stat good, bad;
	int r = buf_printf(&path, "%s/%s", p->dir, item->path);

	if (r < 0)
		say_error(r, item->source, "repair");
	else if (stat(item->source, &good) < 0)
		r = say_failed(-errno, item->source, "reading");
	else if (lstat(path.data, &bad) < 0)
		r = say_failed(-errno, path.data, "finding it");
	else if (!S_ISREG(good.st_mode) || !S_ISREG(bad.st_mode) ||
		 good.st_size != bad.st_size) {
		say_note(item->source,
			 "this is not '%s' of the revision, which has %lld "
			 "bytes",
			 item->path, (long long)bad.st_size);
		r = -EINVAL;
	} else {
		item->bytes = (uint64_t)good.st_size;
	}
	buf_release(&path);
	return r;
}

static int parse_items(struct repair *p)
{
	size_t count = (size_t)p->ctl->argc - 1;
	int r = 0;

	p->items = calloc(count, sizeof(*p->items));
	if (!p->items)
		return say_failed(-ENOMEM, p->dir, "repair");
	for (size_t i = 0; i < count && r == 0; i++) {
		struct item *item = &p->items[i];

		r = item_parse(p, p->ctl->argv[i + 1], item);
		p->count = i + 1;
		if (r == 0)
			r = item_check(p, item);
		p->bytes += item->bytes;
	}
	return r;
}

/* ---- Staging them ---- */

/* Raises *max to the largest generation in a directory, if it is there. */
static int raise_max(const char *path, uint64_t *max)
{
	cleanup(dir_close_cleanup) DIR *dir = NULL;
	const char *name = NULL;
	uint64_t n;
	int r = dir_open(AT_FDCWD, path, &dir);

	while (r == 0) {
		r = dir_next(dir, &name);
		if (r < 0 || !name)
			break;
		if (path_generation(name, &n) == 0 && n > *max)
			*max = n;
	}
	return r;
}

/* Makes .staging/<number> with the first number that is free. */
static int make_stage(struct repair *p)
{
	struct buf path = BUF_INIT;
	uint64_t max = 0;
	int r = buf_printf(&path, "%s/.staging", p->lineage);

	if ((r < 0) || (r = raise_max(p->lineage, &max)) < 0 ||
	    (r = raise_max(path.data, &max)) < 0)
		max = UINT64_MAX;
	for (unsigned i = 0; i < NUMBERS_TRIED_MAX && max < UINT64_MAX; i++) {
		buf_release(&path);
		r = buf_printf(&path, "%s/.staging/%llu", p->lineage,
			       (unsigned long long)++max);
		if (r == 0 && mkdir(path.data, 0700) < 0)
			r = -errno;
		if (r != -EEXIST)
			break;
	}
	if (r == 0 && !p->stage && max == UINT64_MAX)
		r = -EOVERFLOW;
	if (r == 0)
		p->stage = path.data;
	else
		buf_release(&path);
	return r < 0 ? say_refused(r, p->lineage, "staging") : 0;
}

static int stage_items(struct repair *p)
{
	struct bar bar;
	int r = 0;

	bar_begin(&bar, "copying", p->ctl->options & CTL_QUIET);
	bar_bytes(&bar, 0, p->bytes);
	for (size_t i = 0; i < p->count && r == 0; i++)
		r = copy_file(p->items[i].source, p->stage, p->items[i].path,
			      &bar);
	bar_end(&bar, r == 0);
	return r;
}

/* ---- The whole ---- */

/* What else may be pending, such as a move that lacks memory, goes on. */
static bool is_whole(void *arg, struct bar *bar)
{
	struct buf availability = BUF_INIT;
	bool whole;

	(void)bar;
	whole = attr_read(arg, "availability", &availability) == 0 &&
		strcasecmp(availability.data, "ready") == 0;
	buf_release(&availability);
	return whole;
}

static int mend(struct repair *p)
{
	int r = stage_items(p);

	if (r == 0)
		r = attr_write(p->dir, "repair", "1");
	if (r == 0)
		r = wait_for(p->dir, "repairing", p->ctl->options & CTL_QUIET,
			     is_whole, p->dir);
	return wait_left(r, p->dir, "it may be repaired in part");
}

static int report(struct repair *p)
{
	struct buf availability = BUF_INIT;
	struct facts f = FACTS_INIT;
	int r = attr_read(p->dir, "availability", &availability);

	if (r < 0) {
		say_refusal(r, p->dir, "availability");
	} else if (p->ctl->options & CTL_JSON) {
		facts_text(&f, "path", p->dir);
		facts_text(&f, "availability", availability.data);
		r = facts_print(&f);
	} else {
		say_plain(stdout, p->dir);
		(void)printf(": %s\n", availability.data);
	}
	buf_release(&availability);
	return r < 0 ? r : wait_check_whole(p->dir);
}

static int repair(struct repair *p)
{
	int r, gone;

	if ((r = mount_revision(p->ctl->argv[0], false, &p->dir)) < 0)
		return r;
	p->lineage = strdup(p->dir);
	if (!p->lineage)
		return say_failed(-ENOMEM, p->dir, "repair");
	(void)dirname(p->lineage);
	if ((r = parse_items(p)) < 0 || (r = make_stage(p)) < 0)
		return r;
	r = mend(p);
	gone = copy_remove(p->stage);
	if (gone < 0)
		say_refusal(gone, p->stage, "removing what was copied");
	return r < 0 ? r : report(p);
}

int ctl_repair(const struct ctl *ctl)
{
	struct repair p = { .ctl = ctl };
	int r = repair(&p);

	repair_release(&p);
	return r < 0 ? CTL_REFUSED : CTL_OK;
}
