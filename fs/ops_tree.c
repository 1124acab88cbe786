/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <sys/statvfs.h>

#include "fs/call.h"
#include "fs/control.h"
#include "fs/ops.h"

/* ---- LOOKUP ---- */

static bool is_generation(const char *name)
{
	uint64_t generation;

	return weight_generation_parse(name, strlen(name), &generation) == 0;
}

static int act_lookup_generation(struct call *call)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group = NULL;
	struct weight_file *file = NULL;
	int r;

	if (call->node->kind == NODE_STAGING)
		r = weight_dir_staged(call->node->dir, call->name, &group);
	else
		r = weight_dir_published(call->node->dir, call->name, &group);
	if (r == 0)
		r = weight_group_root(group, &file);
	if (r < 0)
		return r;
	return node_of_file(call->fs, file, true, &call->made);
}

static int act_lookup_control(struct call *call)
{
	size_t row;
	int r = control_find(call->node, call->name, &row);

	if (r < 0)
		return r;
	switch (control_dir(row)) {
	case NODE_TENSORS:
		return node_of_tensors(call->fs, call->node, &call->made);
	case NODE_OPERATIONS:
		return node_of_operations(call->fs, call->node, &call->made);
	case NODE_NAMES:
		return node_of_names(call->fs, call->node, control_names(row),
				     &call->made);
	default:
		return node_of_text(call->fs, call->node, row, &call->made);
	}
}

static int act_lookup_operation(struct call *call)
{
	uint64_t id;
	int r = control_json_number(call->name, &id);

	if (r < 0)
		return r;
	return node_of_operation(call->fs, call->node, id, &call->made);
}

static int find_tombstone(struct fs *fs, const struct node_names *names,
			  const char *name)
{
	uint64_t generation, found;
	int r = control_json_number(name, &generation);

	if (r == 0)
		r = weight_tree_tombstone_next(fs->store, names->parts,
					       generation - 1, &found);
	return r == 0 && found != generation ? -ENOENT : r;
}

static int find_name(struct fs *fs, const struct node_names *names,
		     const char *name)
{
	const char *parts[WEIGHT_TREE_LINEAGE_DEPTH];

	memcpy(parts, names->parts, names->depth * sizeof(*parts));
	parts[names->depth] = name;
	return weight_tree_names_find(fs->store, names->kind, parts,
				      names->depth + 1);
}

static int act_lookup_name(struct call *call)
{
	const struct node_names *names = call->node->names;
	int r = names->depth == WEIGHT_TREE_LINEAGE_DEPTH ?
			find_tombstone(call->fs, names, call->name) :
			find_name(call->fs, names, call->name);

	return r < 0 ? r :
		       node_of_name(call->fs, call->node, call->name,
				    &call->made);
}

static int lookup_tensor(struct fs *fs, struct node *parent, const char *name,
			 struct node **ret)
{
	size_t i;
	int r = weight_tensors_find(parent->tensors, name, &i);

	if (r < 0)
		return r;
	return node_of_tensor(fs, parent, i, ret);
}

/* Hands the lookup to a worker, since it may read the disk. */
static void lookup_later(fuse_req_t req, struct node *parent, const char *name,
			 int (*act)(struct call *call))
{
	struct call *call = call_new(req, parent, act, call_reply_entry);

	if (call && call_names(call, name, NULL))
		call_submit(call);
}

/* Names that exist in a directory above revisions. */
static int lookup_in_dir(struct fs *fs, struct node *parent, const char *name,
			 struct node **ret)
{
	struct weight_dir *dir;
	int r;

	if (strcmp(name, FS_CONTROL_NAME) == 0)
		return parent == fs->root ? node_of_control(fs, parent, ret) :
					    -ENOENT;
	if (node_is_lineage(parent) && strcmp(name, FS_STAGING_NAME) == 0)
		return node_of_staging(fs, parent, ret);
	r = weight_dir_lookup(parent->dir, name, &dir);
	if (r < 0)
		return r;
	return node_of_dir(fs, dir, ret);
}

static int lookup_in_file(struct fs *fs, struct node *parent, const char *name,
			  struct node **ret)
{
	struct weight_file *file;
	int r;

	if (strcmp(name, FS_CONTROL_NAME) == 0)
		return parent->group_root ? node_of_control(fs, parent, ret) :
					    -ENOENT;
	r = weight_file_lookup(parent->file, name, &file);
	if (r < 0)
		return r;
	return node_of_file(fs, file, false, ret);
}

void op_lookup(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct fs *fs = fs_of(req);
	struct node *parent = node_of(fs, ino);
	struct node *found = NULL;
	int r = -ENOENT;

	switch (parent->kind) {
	case NODE_DIR:
		if (node_is_lineage(parent) && is_generation(name)) {
			lookup_later(req, parent, name, act_lookup_generation);
			return;
		}
		r = lookup_in_dir(fs, parent, name, &found);
		break;
	case NODE_STAGING:
		lookup_later(req, parent, name, act_lookup_generation);
		return;
	case NODE_FILE:
		r = lookup_in_file(fs, parent, name, &found);
		break;
	case NODE_ROOT_CONTROL:
	case NODE_GROUP_CONTROL:
		lookup_later(req, parent, name, act_lookup_control);
		return;
	case NODE_OPERATIONS:
		lookup_later(req, parent, name, act_lookup_operation);
		return;
	case NODE_NAMES:
		lookup_later(req, parent, name, act_lookup_name);
		return;
	case NODE_TENSORS:
		r = lookup_tensor(fs, parent, name, &found);
		break;
	default:
		r = -ENOTDIR;
	}
	if (r < 0)
		reply_err(req, r);
	else
		reply_entry(req, found);
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	struct fs *fs = fs_of(req);

	if (ino != FUSE_ROOT_ID)
		node_unref(fs, node_of(fs, ino), nlookup);
	fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t count,
		     struct fuse_forget_data *forgets)
{
	struct fs *fs = fs_of(req);

	for (size_t i = 0; i < count; i++)
		if (forgets[i].ino != FUSE_ROOT_ID)
			node_unref(fs, node_of(fs, forgets[i].ino),
				   forgets[i].nlookup);
	fuse_reply_none(req);
}

/* ---- Attributes of files ---- */

static int act_nothing(struct call *call)
{
	(void)call;
	return 0;
}

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct node *node = node_of(fs_of(req), ino);
	struct call *call;

	(void)fi;
	if (node->kind != NODE_OPERATION) {
		reply_attr(req, node);
		return;
	}
	/* Its revision has to be found. */
	call = call_new(req, node, act_nothing, call_reply_attr);
	if (call)
		call_submit(call);
}

static struct timespec time_to_set(int to_set, int set, int now,
				   struct timespec given)
{
	if (to_set & now)
		return (struct timespec){ .tv_nsec = UTIME_NOW };
	if (to_set & set)
		return given;
	return (struct timespec){ .tv_nsec = UTIME_OMIT };
}

static struct weight_setattr setattr_of(const struct stat *attr, int to_set)
{
	const int times = FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME |
			  FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME_NOW;

	return (struct weight_setattr){
		.set_mode = to_set & FUSE_SET_ATTR_MODE,
		.set_uid = to_set & FUSE_SET_ATTR_UID,
		.set_gid = to_set & FUSE_SET_ATTR_GID,
		.set_size = to_set & FUSE_SET_ATTR_SIZE,
		.set_times = to_set & times,
		.mode = attr->st_mode,
		.uid = attr->st_uid,
		.gid = attr->st_gid,
		.size = (uint64_t)attr->st_size,
		.times = {
			time_to_set(to_set, FUSE_SET_ATTR_ATIME,
				    FUSE_SET_ATTR_ATIME_NOW, attr->st_atim),
			time_to_set(to_set, FUSE_SET_ATTR_MTIME,
				    FUSE_SET_ATTR_MTIME_NOW, attr->st_mtim),
		},
	};
}

static int act_setattr(struct call *call)
{
	if (call->node->kind == NODE_DIR)
		return weight_dir_setattr(call->node->dir, &call->set,
					  &call->why);
	return weight_file_setattr(call->node->file, &call->set);
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		struct fuse_file_info *fi)
{
	struct node *node = node_of(fs_of(req), ino);
	struct call *call;

	(void)fi;
	if (node->kind != NODE_DIR && node->kind != NODE_FILE) {
		if (node_is_published(node))
			reply_refused(req, -EROFS, node, NULL, "");
		else
			reply_refused(req, -EPERM, node, NULL,
				      "this file belongs to the filesystem");
		return;
	}
	call = call_new(req, node, act_setattr, call_reply_attr);
	if (!call)
		return;
	call->enters = node->kind == NODE_FILE ? CALL_ENTERS_NODE : 0;
	call->set = setattr_of(attr, to_set);
	call_submit(call);
}

static int act_readlink(struct call *call)
{
	if (call->node->kind == NODE_FILE)
		return weight_file_readlink(call->node->file, &call->out);
	if (call->node->kind == NODE_DIR)
		return weight_dir_readlink(call->node->dir, &call->out);
	return -EINVAL;
}

static void reply_link(struct call *call)
{
	(void)fuse_reply_readlink(call->req, call->out.data);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct node *node = node_of(fs_of(req), ino);
	struct call *call = call_new(req, node, act_readlink, reply_link);

	if (call)
		call_submit(call);
}

/* A memory filesystem promises its size, whatever memory there is. */
static void bound_by_memory(struct statvfs *st, uint64_t available_bytes)
{
	fsblkcnt_t left = available_bytes / st->f_frsize;

	if (st->f_bfree > left) {
		st->f_blocks -= st->f_bfree - left;
		st->f_bfree = left;
	}
	if (st->f_bavail > left)
		st->f_bavail = left;
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct fs *fs = fs_of(req);
	struct weight_tree_space space;
	struct statvfs st;

	(void)ino;
	if (fstatvfs(weight_dir_fd(weight_tree_root(fs->store)), &st) != 0) {
		reply_err(req, -errno);
		return;
	}
	/* One that leaves out the latter means the former. */
	if (!st.f_frsize)
		st.f_frsize = st.f_bsize;
	weight_tree_space(fs->store, &space);
	if (space.memory_only)
		bound_by_memory(&st, space.available_bytes);
	st.f_namemax = WEIGHT_TREE_NAME_MAX;
	(void)fuse_reply_statfs(req, &st);
}
