/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that only look: stat, ls. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "core/cleanup.h"
#include "core/dir.h"
#include "core/parse.h"
#include "core/util.h"
#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_mount.h"
#include "mount-helpers/weightctl_say.h"

/* Of all names together; the kernel's limit. */
#define NAMES_MAX ((size_t)64 << 10)

/* ---- stat ---- */

static void print_value(const char *name, const char *value)
{
	(void)printf("%-20s ", name);
	say_plain(stdout, value);
	(void)putchar('\n');
}

/* Shows all that list names. */
static int show_values(const char *path, const char *list, size_t len,
		       struct facts *f)
{
	const size_t prefix = sizeof(ATTR_PREFIX) - 1;
	struct buf value = BUF_INIT;
	int r = 0;

	for (const char *n = list; n < list + len && r == 0;
	     n += strlen(n) + 1) {
		if (strncmp(n, ATTR_PREFIX, prefix) != 0)
			continue;
		buf_release(&value);
		r = attr_read(path, n + prefix, &value);
		/* It may have gone since it was listed. */
		if (r == -ENODATA) {
			r = 0;
			continue;
		}
		if (r == 0 && f)
			facts_attr(f, n + prefix, value.data);
		else if (r == 0)
			print_value(n + prefix, value.data);
	}
	buf_release(&value);
	return r;
}

static int stat_path(const struct ctl *ctl, const char *path)
{
	auto_free char *list = malloc(NAMES_MAX);
	auto_free char *real = NULL;
	struct facts f = FACTS_INIT;
	bool json = ctl->options & CTL_JSON;
	ssize_t len;
	int r = mount_resolve(path, &real);

	if (r < 0)
		return r;
	if (!list)
		return say_failed(-ENOMEM, path, "stat");
	len = listxattr(real, list, NAMES_MAX);
	if (len < 0)
		return say_failed(-errno, path, "stat");
	if (json)
		facts_text(&f, "path", real);
	else if (ctl->argc > 1)
		print_value("path", real);
	r = show_values(real, list, (size_t)len, json ? &f : NULL);
	if (r < 0) {
		buf_release(&f.text);
		return say_failed(r, path, "stat");
	}
	return json ? facts_print(&f) : 0;
}

int ctl_stat(const struct ctl *ctl)
{
	int status = CTL_OK;

	for (int i = 0; i < ctl->argc; i++)
		if (stat_path(ctl, ctl->argv[i]) < 0)
			status = CTL_REFUSED;
	return status;
}

/* ---- ls ---- */

struct generation {
	uint64_t number;
	bool staged;
	struct buf names; /* of symlinks that point to it, each with its NUL */
};

struct lineage {
	const char *path;
	struct generation *all;
	size_t count, cap;
};

static void lineage_release(struct lineage *l)
{
	for (size_t i = 0; i < l->count; i++)
		buf_release(&l->all[i].names);
	free(l->all);
}

static int add_generation(struct lineage *l, uint64_t number, bool staged)
{
	struct generation *all = l->all;

	if (l->count == l->cap) {
		l->cap = l->cap > 0 ? 2 * l->cap : 16;
		all = reallocarray(l->all, l->cap, sizeof(*all));
		if (!all)
			return -ENOMEM;
		l->all = all;
	}
	all[l->count++] = (struct generation){ number, staged, BUF_INIT };
	return 0;
}

static int by_number(const void *a, const void *b)
{
	const struct generation *x = a, *y = b;

	if (x->number != y->number)
		return x->number < y->number ? -1 : 1;
	return (int)x->staged - (int)y->staged;
}

static int list_numbers(struct lineage *l, const char *below, bool staged)
{
	cleanup(dir_close_cleanup) DIR *dir = NULL;
	struct buf path = BUF_INIT;
	const char *name = NULL;
	uint64_t number;
	int r = buf_printf(&path, "%s%s", l->path, below);

	if (r == 0)
		r = dir_open(AT_FDCWD, path.data, &dir);
	buf_release(&path);
	/* A lineage in which nothing was ever staged may have no such place. */
	if (r == -ENOENT && staged)
		return 0;
	while (r == 0) {
		r = dir_next(dir, &name);
		if (r < 0 || !name)
			break;
		if (path_generation(name, &number) == 0)
			r = add_generation(l, number, staged);
	}
	return r;
}

static int add_name(struct lineage *l, const char *name, const char *to)
{
	uint64_t number;
	int r = 0;

	if (path_generation(to, &number) < 0)
		return 0;
	for (size_t i = 0; i < l->count && r == 0; i++)
		if (l->all[i].number == number && !l->all[i].staged)
			r = buf_append(&l->all[i].names, name,
				       strlen(name) + 1);
	return r;
}

/* Which symlinks stand beside the generations. */
static int list_names(struct lineage *l)
{
	cleanup(dir_close_cleanup) DIR *dir = NULL;
	const char *name = NULL;
	char to[PATH_MAX];
	ssize_t n;
	int r = dir_open(AT_FDCWD, l->path, &dir);

	while (r == 0) {
		r = dir_next(dir, &name);
		if (r < 0 || !name)
			break;
		n = readlinkat(dirfd(dir), name, to, sizeof(to) - 1);
		if (n < 0 || memchr(to, '/', (size_t)n))
			continue;
		to[n] = '\0';
		r = add_name(l, name, to);
	}
	return r;
}

static int path_of(const struct lineage *l, const struct generation *g,
		   struct buf *ret)
{
	return buf_printf(ret, "%s%s/%llu", l->path,
			  g->staged ? "/.staging" : "",
			  (unsigned long long)g->number);
}

/* The value, or "-" where there is none. */
static int value_or_dash(const char *path, const char *name, struct buf *ret)
{
	int r = attr_read(path, name, ret);

	if (r == -ENODATA || (r == 0 && ret->len == 0))
		r = buf_printf(ret, "-");
	return r;
}

struct row {
	struct buf availability, residency, bytes, durable;
};

static void row_release(struct row *row)
{
	buf_release(&row->availability);
	buf_release(&row->residency);
	buf_release(&row->bytes);
	buf_release(&row->durable);
}

static int row_read(const struct lineage *l, const struct generation *g,
		    struct row *row)
{
	struct buf path = BUF_INIT;
	const char *p;
	int r = path_of(l, g, &path);

	p = path.data;
	if (r == 0)
		r = g->staged ?
			    buf_printf(&row->availability, "staged") :
			    attr_read(p, "availability", &row->availability);
	if (r == 0)
		r = value_or_dash(p, "residency", &row->residency);
	if (r == 0)
		r = value_or_dash(p, "logical_bytes", &row->bytes);
	if (r == 0)
		r = value_or_dash(p, "durable", &row->durable);
	buf_release(&path);
	return r;
}

static void row_print(const struct generation *g, const struct row *row)
{
	char size[SAY_SIZE_MAX] = "-";
	uint64_t bytes;

	if (parse_u64(row->bytes.data, &bytes) == 0)
		say_size(bytes, size);
	(void)printf("%-12llu %-12s %-9s %10s %-7s",
		     (unsigned long long)g->number, row->availability.data,
		     row->residency.data, size, row->durable.data);
	for (const char *n = g->names.data; n < g->names.data + g->names.len;
	     n += strlen(n) + 1) {
		(void)putchar(' ');
		say_plain(stdout, n);
	}
	(void)putchar('\n');
}

static int row_facts(const struct generation *g, const struct row *row,
		     struct buf *ret)
{
	struct facts f = FACTS_INIT;

	facts_u64(&f, "generation", g->number);
	facts_text(&f, "availability", row->availability.data);
	if (!g->staged) {
		facts_text(&f, "residency", row->residency.data);
		facts_attr(&f, "logical_bytes", row->bytes.data);
		facts_attr(&f, "durable", row->durable.data);
	}
	facts_list(&f, "names", &g->names);
	return facts_take(&f, ret);
}

/* Rows in the order of numbers; what went away meanwhile is left out. */
static int show_rows(const struct lineage *l, struct buf *json)
{
	bool first = true;
	int r = 0;

	for (size_t i = 0; i < l->count && r == 0; i++) {
		const struct generation *g = &l->all[i];
		struct row row = { BUF_INIT, BUF_INIT, BUF_INIT, BUF_INIT };

		r = row_read(l, g, &row);
		if (r == 0 && json && !first)
			r = buf_append(json, ",", 1);
		if (r == 0 && json)
			r = row_facts(g, &row, json);
		if (r == 0 && !json && first)
			(void)printf("%-12s %-12s %-9s %10s %-7s %s\n",
				     "GENERATION", "AVAILABILITY", "RESIDENCY",
				     "SIZE", "DURABLE", "NAMES");
		if (r == 0 && !json)
			row_print(g, &row);
		if (r == 0)
			first = false;
		if (r == -ENODATA || r == -ENOENT)
			r = 0;
		row_release(&row);
	}
	return r;
}

static int show_lineage(const struct ctl *ctl, const struct lineage *l)
{
	struct buf rows = BUF_INIT;
	struct facts f = FACTS_INIT;
	int r;

	if (!(ctl->options & CTL_JSON)) {
		r = show_rows(l, NULL);
		return r < 0 ? say_failed(r, l->path, "ls") : 0;
	}
	if ((r = buf_append(&rows, "[", 1)) < 0 ||
	    (r = show_rows(l, &rows)) < 0 ||
	    (r = buf_append(&rows, "]", 1)) < 0) {
		say_error(r, l->path, "ls");
	} else {
		facts_text(&f, "path", l->path);
		facts_raw(&f, "generations", rows.data);
		r = facts_print(&f);
	}
	buf_release(&rows);
	return r;
}

int ctl_ls(const struct ctl *ctl)
{
	auto_free char *path = NULL;
	struct lineage l = { 0 };
	int r = mount_resolve(ctl->argv[0], &path);

	if (r < 0)
		return CTL_REFUSED;
	l.path = path;
	if (attr_is_there(path, "availability")) {
		say_note(ctl->argv[0], "this is a revision; ls takes the "
				       "directory above it");
		return CTL_REFUSED;
	}
	if ((r = list_numbers(&l, "", false)) == 0 &&
	    (r = list_numbers(&l, "/.staging", true)) == 0) {
		if (l.count > 0)
			qsort(l.all, l.count, sizeof(*l.all), by_number);
		r = list_names(&l);
	}
	if (r < 0)
		say_error(r, ctl->argv[0], "ls");
	else
		r = show_lineage(ctl, &l);
	lineage_release(&l);
	return r < 0 ? CTL_REFUSED : CTL_OK;
}
