/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/listing.h"

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>

#include "core/dir.h"
#include "fs/control.h"

/* What a directory says of an inode number that it doesn't know. */
#define UNKNOWN_INO 0xffffffff
/* Generations that are asked for at once. */
#define AHEAD_MAX 256

struct listing_entry {
	size_t name; /* where it starts in names */
	uint64_t ino;
	mode_t type; /* S_IFMT bits, 0: unknown */
};

struct listing {
	struct fs *fs;
	struct node *node;
	struct buf names;
	struct buf entries; /* array of struct listing_entry */
	size_t count;

	/* Of the real directory behind the node, where that is streamed. */
	DIR *real;
	uint64_t real_at; /* its own position */

	/* In a stream: what comes at position count + next is behind this. */
	uint64_t next;
	uint64_t after_number;
	char after_name[WEIGHT_TREE_NAME_MAX + 1];

	/* The numbers that come then, as far as they were asked for. */
	size_t ahead_at, ahead_count;
	uint64_t ahead[AHEAD_MAX];
};

static int add(struct listing *l, const char *name, uint64_t ino, mode_t type)
{
	struct listing_entry e = {
		.name = l->names.len,
		.ino = ino,
		.type = type,
	};
	int r = buf_append(&l->names, name, strlen(name) + 1);

	if (r == 0)
		r = buf_append(&l->entries, &e, sizeof(e));
	if (r == 0)
		l->count++;
	return r;
}

/* Names of the real directory behind the node. */
static int add_real(struct listing *l, int path_fd)
{
	cleanup(dir_close_cleanup) DIR *dir = NULL;
	const struct dirent *d;
	int r = dir_open(path_fd, ".", &dir);

	/* A removed one has become something else. */
	if (r == -ENOTDIR)
		return -ENOENT;
	if (r < 0)
		return r;
	for (;;) {
		errno = 0;
		d = readdir(dir);
		if (!d)
			return -errno;
		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		r = add(l, d->d_name, d->d_ino, DTTOIF(d->d_type));
		if (r < 0)
			return r;
	}
}

static int add_control(struct listing *l)
{
	const char *name;
	mode_t type;
	size_t at = 0;
	int r;

	while ((r = control_next(l->node, &at, &name, &type)) == 0) {
		r = add(l, name, UNKNOWN_INO, type);
		if (r < 0)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

/*
 * There may be a million tenants, namespaces, resources or revisions. In a
 * lineage the real names are its users' few symlinks.
 */
static bool streams_real(const struct node *node)
{
	return node->kind == NODE_DIR && !node_is_lineage(node);
}

static int add_dir(struct listing *l)
{
	uint64_t generation;
	int r;

	if (streams_real(l->node)) {
		r = dir_open(weight_dir_fd(l->node->dir), ".", &l->real);
		if (r == -ENOTDIR)
			r = -ENOENT;
		return r == 0 && l->node == l->fs->root ?
			       add(l, FS_CONTROL_NAME, UNKNOWN_INO, S_IFDIR) :
			       r;
	}
	r = add_real(l, weight_dir_fd(l->node->dir));
	if (r < 0)
		return r;
	r = weight_dir_next_generation(l->node->dir, true, 0, &generation);
	if (r == -ENOENT)
		return 0;
	return r < 0 ? r : add(l, FS_STAGING_NAME, UNKNOWN_INO, S_IFDIR);
}

static int add_file(struct listing *l)
{
	int r = weight_file_is_absent(l->node->file) ?
			-EIO :
			add_real(l, weight_file_fd(l->node->file));

	if (r == 0 && l->node->group_root &&
	    l->fs->config->control == CONFIG_CONTROL_VISIBLE &&
	    node_is_published(l->node))
		r = add(l, FS_CONTROL_NAME, UNKNOWN_INO, S_IFDIR);
	return r;
}

static int copy_names(struct listing *l)
{
	int r = add(l, ".", l->node->ino, S_IFDIR);

	if (r == 0)
		r = add(l, "..", UNKNOWN_INO, S_IFDIR);
	if (r < 0)
		return r;
	switch (l->node->kind) {
	case NODE_DIR:
		return add_dir(l);
	case NODE_FILE:
		return add_file(l);
	case NODE_ROOT_CONTROL:
	case NODE_GROUP_CONTROL:
		return add_control(l);
	default:
		return 0;
	}
}

int listing_new(struct fs *fs, struct node *node, struct listing **ret)
{
	cleanup(listing_free_cleanup) struct listing *l = NULL;
	int r;

	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->fs = fs;
	l->node = node_ref(fs, node);
	l->names = (struct buf)BUF_INIT;
	l->entries = (struct buf)BUF_INIT;
	r = copy_names(l);
	if (r < 0)
		return r;
	*ret = take_ptr(l);
	return 0;
}

void listing_free(struct listing *l)
{
	if (!l)
		return;
	node_unref(l->fs, l->node, 1);
	if (l->real)
		dir_close(l->real);
	buf_release(&l->names);
	buf_release(&l->entries);
	free(l);
}

/* One entry to be shown, whatever it comes from. */
struct shown {
	const char *name;
	uint64_t ino;
	mode_t type;
	uint64_t next; /* the position behind it */
	bool streamed;
	uint64_t number; /* 0: it is no number */
	char printed[WEIGHT_TREE_NAME_MAX + 1];
};
static_assert(WEIGHT_TREE_NAME_MAX >= CONTROL_JSON_NAME_MAX, "room for all");

static bool has_tombstones(const struct node *node)
{
	return node->kind == NODE_NAMES &&
	       node->names->depth == WEIGHT_TREE_LINEAGE_DEPTH;
}

/* What is too many to copy, and asked for piece by piece, in numeric order. */
static bool has_numbers(const struct node *node)
{
	return node->kind == NODE_STAGING || node->kind == NODE_OPERATIONS ||
	       has_tombstones(node) || node_is_lineage(node);
}

static int read_ahead(struct listing *l)
{
	struct node *node = l->node;
	int r;

	l->ahead_at = 0;
	l->ahead_count = 1;
	if (node->kind == NODE_OPERATIONS)
		r = weight_tree_operation_next(l->fs->store, l->after_number,
					       l->ahead);
	else if (has_tombstones(node))
		r = weight_tree_tombstone_next(l->fs->store, node->names->parts,
					       l->after_number, l->ahead);
	else
		r = weight_dir_generations(
			node->dir, node->kind == NODE_STAGING, l->after_number,
			AHEAD_MAX, l->ahead, &l->ahead_count);
	if (r < 0)
		l->ahead_count = 0;
	return r;
}

static int next_number(struct listing *l, struct shown *ret)
{
	bool is_dir = l->node->dir != NULL;
	int r = l->ahead_at < l->ahead_count ? 0 : read_ahead(l);

	if (r < 0)
		return r;
	if (l->ahead_count == 0)
		return -ENOENT;
	ret->number = l->ahead[l->ahead_at];
	if (is_dir)
		weight_generation_print(ret->number, ret->printed);
	else
		control_json_name(ret->number, ret->printed);
	ret->type = is_dir ? S_IFDIR : S_IFREG;
	return 0;
}

static int next_name(struct listing *l, struct shown *ret)
{
	const struct node_names *names = l->node->names;
	struct buf name = BUF_INIT;
	int r = weight_tree_names_next(l->fs->store, names->kind, names->parts,
				       names->depth, l->after_name, &name);

	if (r == 0 && name.len >= sizeof(ret->printed))
		r = -EIO;
	if (r == 0)
		memcpy(ret->printed, name.data, name.len + 1);
	buf_release(&name);
	ret->type = node_has_texts(l->node) ? S_IFREG : S_IFDIR;
	return r;
}

/* The stream goes on behind what was shown. */
static void take(struct listing *l, const struct shown *shown)
{
	l->next++;
	if (shown->number) {
		l->ahead_at++;
		l->after_number = shown->number;
	} else {
		memcpy(l->after_name, shown->printed, sizeof(l->after_name));
	}
}

static void rewind_stream(struct listing *l)
{
	l->next = 0;
	l->after_number = 0;
	l->after_name[0] = '\0';
	l->ahead_at = 0;
	l->ahead_count = 0;
}

/* Errors: -ENOENT at the end. */
static int show_streamed(struct listing *l, uint64_t ordinal, struct shown *ret)
{
	if (ordinal < l->next)
		rewind_stream(l);
	ret->streamed = true;
	ret->ino = UNKNOWN_INO;
	ret->name = ret->printed;
	for (;;) {
		int r = has_numbers(l->node) ? next_number(l, ret) :
					       next_name(l, ret);

		if (r < 0 || l->next == ordinal)
			return r;
		take(l, ret);
	}
}

static int show_tensor(struct listing *l, uint64_t ordinal, struct shown *ret)
{
	if (ordinal >= weight_tensors_count(l->node->tensors))
		return -ENOENT;
	ret->name =
		weight_tensors_at(l->node->tensors, (size_t)ordinal)->file_name;
	ret->ino = UNKNOWN_INO;
	ret->type = S_IFREG;
	return 0;
}

/*
 * Positions are those of the directory itself, behind what was copied. A
 * directory that has the whole range for them ends at the last one.
 */
static int show_real(struct listing *l, uint64_t at, struct shown *ret)
{
	uint64_t last = INT64_MAX - l->count;
	const struct dirent *d;

	if (at >= last)
		return -ENOENT;
	if (at != l->real_at)
		seekdir(l->real, (long)at);
	do {
		errno = 0;
		d = readdir(l->real);
	} while (d &&
		 (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0));
	if (!d) {
		l->real_at = UINT64_MAX;
		return errno ? -errno : -ENOENT;
	}
	l->real_at = (uint64_t)d->d_off;
	ret->name = d->d_name;
	ret->ino = d->d_ino;
	ret->type = DTTOIF(d->d_type);
	ret->next = l->count + (l->real_at < last ? l->real_at : last);
	return 0;
}

static int show(struct listing *l, uint64_t position, struct shown *ret)
{
	struct listing_entry e;

	ret->next = position + 1;
	if (position < l->count) {
		memcpy(&e, l->entries.data + position * sizeof(e), sizeof(e));
		ret->name = l->names.data + e.name;
		ret->ino = e.ino;
		ret->type = e.type;
		return 0;
	}
	if (l->real)
		return show_real(l, position - l->count, ret);
	if (l->node->kind == NODE_TENSORS)
		return show_tensor(l, position - l->count, ret);
	if (has_numbers(l->node) || l->node->kind == NODE_NAMES)
		return show_streamed(l, position - l->count, ret);
	return -ENOENT;
}

int listing_fill(struct listing *l, fuse_req_t req, uint64_t position,
		 char *data, size_t size, size_t *ret_len)
{
	size_t used = 0;

	for (;;) {
		struct shown shown = { 0 };
		struct stat st = { 0 };
		size_t need;
		int r = show(l, position, &shown);

		if (r == -ENOENT)
			break;
		if (r < 0)
			return r;
		st.st_ino = shown.ino;
		st.st_mode = shown.type;
		need = fuse_add_direntry(req, data + used, size - used,
					 shown.name, &st, (off_t)shown.next);
		if (need > size - used && used == 0)
			return -EINVAL;
		if (need > size - used)
			break;
		used += need;
		if (shown.streamed)
			take(l, &shown);
		position = shown.next;
	}
	*ret_len = used;
	return 0;
}
