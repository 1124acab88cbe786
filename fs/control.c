/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/control.h"

#include <assert.h>
#include <stdio.h>

#include "config.h"
#include "core/clock.h"
#include "core/metrics.h"
#include "core/util.h"

/* A reader of wait gets a line about as often. */
#define LINE_MS 900

enum where {
	AT_ROOT = 1,
	IN_STAGED = 2,
	IN_PUBLISHED = 4,
};

/* The text of a file, once for each open; or a step of it for wait. */
static int make_version(struct call *call, struct buf *ret);
static int make_config(struct call *call, struct buf *ret);
static int make_health(struct call *call, struct buf *ret);
static int make_metrics(struct call *call, struct buf *ret);
static int make_leases(struct call *call, struct buf *ret);
static int make_metadata(struct call *call, struct buf *ret);
static int make_sums(struct call *call, struct buf *ret);
static int make_operation(struct call *call, struct buf *ret);
static int make_named(struct call *call, struct buf *ret);
static int wait_step(struct call *call, struct buf *ret);

/* clang-format off */
static const struct row {
	const char *name;
	int (*make)(struct call *call, struct buf *ret); /* NULL: no text */
	unsigned where;
	bool waits;    /* perhaps for long */
	bool manifest; /* served from a descriptor */
	bool closed;   /* names what is every tenant's: for root alone */
	enum node_kind dir; /* a directory of that kind; 0: a file */
	enum weight_tree_names names; /* of NAMES */
} rows[] = {
	{ "version",       make_version,  AT_ROOT },
	{ "config",        make_config,   AT_ROOT },
	{ "health",        make_health,   AT_ROOT },
	{ "metrics",       make_metrics,  AT_ROOT },
	{ "leases",        make_leases,   AT_ROOT, .closed = true },
	{ "wait",          wait_step,     AT_ROOT, .waits = true, .closed = true },
	{ "wait",          wait_step,     IN_STAGED | IN_PUBLISHED,
	  .waits = true },
	{ "operations",    NULL,          AT_ROOT, .dir = NODE_OPERATIONS },
	{ "claims",        NULL,          AT_ROOT, .dir = NODE_NAMES,
	  .names = WEIGHT_TREE_CLAIMS },
	{ "tombstones",    NULL,          AT_ROOT, .dir = NODE_NAMES,
	  .names = WEIGHT_TREE_TOMBSTONES },
	{ "metadata.json", make_metadata, IN_PUBLISHED },
	{ "manifest.json", NULL,          IN_PUBLISHED, .manifest = true },
	{ "sha256sums",    make_sums,     IN_PUBLISHED, .waits = true },
	{ "tensors",       NULL,          IN_PUBLISHED, .dir = NODE_TENSORS },
};
/* clang-format on */

/* No rows of a table, but as such: what there are many of. */
static const struct row operation_row = { .make = make_operation };
static const struct row named_row = { .make = make_named, .closed = true };

static const struct row *row_of(const struct node *text)
{
	if (text->kind == NODE_OPERATION)
		return &operation_row;
	if (text->kind == NODE_NAMED_TEXT)
		return &named_row;
	assert(text->index < ARRAY_LEN(rows));
	return &rows[text->index];
}

static unsigned where_is(const struct node *control)
{
	if (!control->group)
		return AT_ROOT;
	switch (weight_group_state(control->group)) {
	case WEIGHT_GROUP_STAGED:
	case WEIGHT_GROUP_PUBLISHING:
		return IN_STAGED;
	case WEIGHT_GROUP_PUBLISHED:
		return IN_PUBLISHED;
	default:
		return 0;
	}
}

int control_find(const struct node *control, const char *name, size_t *ret)
{
	unsigned where = where_is(control);

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (!(rows[i].where & where) || strcmp(rows[i].name, name) != 0)
			continue;
		*ret = i;
		return 0;
	}
	return -ENOENT;
}

mode_t control_mode(const struct node *text)
{
	return row_of(text)->closed ? CONTROL_CLOSED_MODE : 0444;
}

enum node_kind control_dir(size_t row)
{
	assert(row < ARRAY_LEN(rows));
	return rows[row].dir;
}

enum weight_tree_names control_names(size_t row)
{
	assert(row < ARRAY_LEN(rows) && rows[row].dir == NODE_NAMES);
	return rows[row].names;
}

static const char json_suffix[] = ".json";

int control_json_number(const char *name, uint64_t *ret)
{
	const size_t suffix_len = sizeof(json_suffix) - 1;
	size_t len = strlen(name);
	int r = -EINVAL;

	if (len > suffix_len &&
	    strcmp(name + len - suffix_len, json_suffix) == 0)
		r = weight_generation_parse(name, len - suffix_len, ret);
	return r < 0 ? -ENOENT : 0;
}

void control_json_name(uint64_t number,
		       char ret[static CONTROL_JSON_NAME_MAX + 1])
{
	(void)snprintf(ret, CONTROL_JSON_NAME_MAX + 1, "%llu%s",
		       (unsigned long long)number, json_suffix);
}

int control_next(const struct node *control, size_t *at, const char **ret_name,
		 mode_t *ret_type)
{
	unsigned where = where_is(control);

	for (size_t i = *at; i < ARRAY_LEN(rows); i++) {
		if (!(rows[i].where & where))
			continue;
		*at = i + 1;
		*ret_name = rows[i].name;
		*ret_type = rows[i].dir ? S_IFDIR : S_IFREG;
		return 0;
	}
	return -ENOENT;
}

int control_prepare(struct node *text)
{
	int fd, r;

	if (!row_of(text)->manifest)
		return 0;
	r = weight_group_manifest_open(text->group, &fd);
	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&text->lock);
	if (text->fd < 0)
		text->fd = take_fd(&fd);
	(void)pthread_mutex_unlock(&text->lock);
	if (fd >= 0)
		(void)close(fd);
	return 0;
}

bool control_is_text(const struct node *node)
{
	switch (node->kind) {
	case NODE_ROOT_TEXT:
	case NODE_GROUP_TEXT:
		return node->fd < 0;
	case NODE_OPERATION:
	case NODE_NAMED_TEXT:
		return true;
	default:
		return false;
	}
}

bool control_waits(const struct node *text)
{
	return row_of(text)->waits;
}

static int make_version(struct call *call, struct buf *ret)
{
	(void)call;
	return buf_printf(ret, "weightfs " WEIGHTFS_VERSION "\n");
}

static int make_config(struct call *call, struct buf *ret)
{
	return config_print(call->fs->config, ret);
}

static int make_health(struct call *call, struct buf *ret)
{
	struct fs *fs = call->fs;
	int r = weight_tree_health(fs->store, ret);

	if (r == 0)
		r = passthrough_describe(fs, ret);
	if (r == 0)
		r = buf_append(ret, fs->shortcomings.data,
			       fs->shortcomings.len);
	return r;
}

static int make_metrics(struct call *call, struct buf *ret)
{
	weight_tree_gauges(call->fs->store);
	return metrics_write(ret);
}

static int make_leases(struct call *call, struct buf *ret)
{
	return weight_tree_leases(call->fs->store, ret);
}

static int make_metadata(struct call *call, struct buf *ret)
{
	return weight_group_metadata_json(call->node->group, ret);
}

static int make_sums(struct call *call, struct buf *ret)
{
	struct weight_waiter waiter = call_waiter(call, NULL);

	return weight_group_sha256sums(call->node->group, &waiter, ret);
}

static int make_operation(struct call *call, struct buf *ret)
{
	return weight_tree_operation_json(call->fs->store, call->node->index,
					  ret);
}

static int make_named(struct call *call, struct buf *ret)
{
	const struct node_names *names = call->node->names;
	uint64_t generation;
	int r;

	if (names->kind == WEIGHT_TREE_CLAIMS)
		return weight_tree_claim_json(call->fs->store, names->parts,
					      ret);
	r = control_json_number(names->parts[WEIGHT_TREE_LINEAGE_DEPTH],
				&generation);
	return r < 0 ? r :
		       weight_tree_tombstone_json(call->fs->store, names->parts,
						  generation, ret);
}

/* Ends this step of a wait with its line; the next READ goes on waiting. */
static void on_progress(void *arg, const char *line)
{
	struct call *call = arg;
	struct handle *handle = call->handle;
	uint64_t now = clock_monotonic_ms();
	bool due;

	(void)pthread_mutex_lock(&handle->lock);
	due = handle->line_ms == 0 || now - handle->line_ms >= LINE_MS;
	if (due)
		handle->line_ms = now;
	(void)pthread_mutex_unlock(&handle->lock);
	if (due && buf_printf(&call->out, "%s", line) == 0)
		call->enough = true;
}

static int wait_step(struct call *call, struct buf *ret)
{
	struct weight_waiter waiter = call_waiter(call, on_progress);
	struct handle *handle = call->handle;
	bool over;
	int r;

	(void)pthread_mutex_lock(&handle->lock);
	over = handle->over;
	(void)pthread_mutex_unlock(&handle->lock);
	if (over)
		return 0;

	if (call->node->group)
		r = weight_group_wait(call->node->group, &waiter, &call->why);
	else
		r = weight_tree_wait(call->fs->store, &waiter, &call->why);
	if (r == -EINTR && call->enough)
		return 0;
	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&handle->lock);
	handle->over = true;
	(void)pthread_mutex_unlock(&handle->lock);
	/* Waiting on is of no use, for that reason. */
	return buf_printf(ret, "%s\n", r > 0 ? call->why.data : "ready");
}

static int read_wait(struct call *call)
{
	int r = wait_step(call, &call->out);

	/* A line is far shorter than any buffer but a malicious one. */
	if (r == 0 && call->out.len > call->size)
		call->out.len = call->size;
	return r;
}

/* Makes the text of this open, unless another READ of it just did. */
static int make_text(struct call *call)
{
	struct handle *handle = call->handle;
	struct buf text = BUF_INIT;
	int r = row_of(call->node)->make(call, &text);

	(void)pthread_mutex_lock(&handle->lock);
	if (r == 0 && !handle->text_made) {
		handle->text = text;
		text = (struct buf)BUF_INIT;
		handle->text_made = true;
	}
	(void)pthread_mutex_unlock(&handle->lock);
	buf_release(&text);
	return r;
}

int control_read(struct call *call)
{
	struct handle *handle = call->handle;
	size_t at, n;
	int r = 0;

	if (row_of(call->node)->make == wait_step)
		return read_wait(call);
	if (!row_of(call->node)->make)
		return -EISDIR;
	(void)pthread_mutex_lock(&handle->lock);
	if (!handle->text_made) {
		(void)pthread_mutex_unlock(&handle->lock);
		r = make_text(call);
		(void)pthread_mutex_lock(&handle->lock);
	}
	if (r == 0) {
		at = call->offset < handle->text.len ? (size_t)call->offset :
						       handle->text.len;
		n = handle->text.len - at;
		r = buf_append(&call->out, handle->text.data + at,
			       n < call->size ? n : call->size);
	}
	(void)pthread_mutex_unlock(&handle->lock);
	return r;
}
