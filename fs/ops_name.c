/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/fs.h>
#include <stdio.h>

#include "fs/call.h"
#include "fs/ops.h"

static const char not_here[] =
	"files belong in a staging directory, "
	"TENANT/NAMESPACE/RESOURCE/REVISION/.staging/GENERATION";
static const char make_generation[] =
	"a generation is made in .staging and published by renaming it";
static const char reserved[] = "the name .weights is reserved";
static const char ours[] = "what is in .weights belongs to the filesystem";

/*
 * Answers for what can't be a place to make or remove names in, and for the
 * names that nobody may make. True when it has answered.
 */
static bool refuse_place(fuse_req_t req, struct node *parent, const char *name)
{
	switch (parent->kind) {
	case NODE_FILE:
	case NODE_DIR:
		if (strcmp(name, FS_CONTROL_NAME) != 0)
			return false;
		if (node_is_published(parent))
			reply_refused(req, -EROFS, parent, name, "");
		else
			reply_refused(req, -EPERM, parent, name, reserved);
		return true;
	case NODE_STAGING:
		return false;
	default:
		if (node_is_published(parent))
			reply_refused(req, -EROFS, parent, name, "");
		else
			reply_refused(req, -EPERM, parent, name, ours);
		return true;
	}
}

static bool is_generation(const char *name)
{
	uint64_t generation;

	return weight_generation_parse(name, strlen(name), &generation) == 0;
}

/* The first of two names, the parent's group entered where it has one. */
static struct call *call_on_name(fuse_req_t req, struct node *parent,
				 const char *name,
				 int (*act)(struct call *call),
				 void (*reply)(struct call *call))
{
	struct call *call = call_new(req, parent, act, reply);

	if (!call || !call_names(call, name, NULL))
		return NULL;
	call->enters = parent->kind == NODE_FILE ? CALL_ENTERS_NODE : 0;
	return call;
}

/* ---- Making ---- */

static int act_create(struct call *call)
{
	struct weight_file *file;
	int r = weight_file_create(call->node->file, call->name, call->mode,
				   &call->caller, &file);

	if (r < 0)
		return r;
	return node_of_file(call->fs, file, false, &call->made);
}

void op_mknod(fuse_req_t req, fuse_ino_t ino, const char *name, mode_t mode,
	      dev_t rdev)
{
	struct node *parent = node_of(fs_of(req), ino);
	struct call *call;

	(void)rdev;
	if (refuse_place(req, parent, name))
		return;
	if (parent->kind != NODE_FILE) {
		reply_refused(req, -EPERM, parent, name, not_here);
		return;
	}
	if (!S_ISREG(mode) && (mode & S_IFMT) != 0 &&
	    !node_is_published(parent)) {
		reply_refused(req, -EPERM, parent, name,
			      "a generation holds regular files, directories "
			      "and symlinks only");
		return;
	}
	call = call_on_name(req, parent, name, act_create, call_reply_entry);
	if (!call)
		return;
	call->mode = mode & 07777;
	call_submit(call);
}

static int act_mkdir(struct call *call)
{
	struct weight_dir *dir;
	int r = weight_dir_mkdir(call->node->dir, call->name, call->mode,
				 &call->caller, &dir, &call->why);

	if (r < 0)
		return r;
	return node_of_dir(call->fs, dir, &call->made);
}

static int act_mkdir_file(struct call *call)
{
	struct weight_file *file;
	int r = weight_file_mkdir(call->node->file, call->name, call->mode,
				  &call->caller, &file);

	if (r < 0)
		return r;
	return node_of_file(call->fs, file, false, &call->made);
}

static int act_stage(struct call *call)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group = NULL;
	struct weight_file *root = NULL;
	int r = weight_dir_stage(call->node->dir, call->name, call->mode,
				 &call->caller, &group, &call->why);

	if (r == 0)
		r = weight_group_root(group, &root);
	if (r < 0)
		return r;
	return node_of_file(call->fs, root, true, &call->made);
}

void op_mkdir(fuse_req_t req, fuse_ino_t ino, const char *name, mode_t mode)
{
	struct node *parent = node_of(fs_of(req), ino);
	int (*act)(struct call * call) = act_mkdir_file;
	struct call *call;

	if (refuse_place(req, parent, name))
		return;
	if (node_is_lineage(parent)) {
		if (strcmp(name, FS_STAGING_NAME) == 0)
			reply_err(req, -EEXIST);
		else
			reply_refused(req, -EPERM, parent, name,
				      make_generation);
		return;
	}
	if (parent->kind == NODE_DIR)
		act = act_mkdir;
	else if (parent->kind == NODE_STAGING)
		act = act_stage;
	call = call_on_name(req, parent, name, act, call_reply_entry);
	if (!call)
		return;
	call->mode = mode & 07777;
	call_submit(call);
}

static int act_symlink(struct call *call)
{
	struct weight_file *file;
	struct weight_dir *dir;
	int r;

	if (call->node->kind == NODE_FILE) {
		r = weight_file_symlink(call->node->file, call->name,
					call->new_name, &call->caller, &file);
		if (r < 0)
			return r;
		return node_of_file(call->fs, file, false, &call->made);
	}
	r = weight_dir_symlink(call->node->dir, call->name, call->new_name,
			       &call->caller, &dir, &call->why);
	if (r < 0)
		return r;
	return node_of_dir(call->fs, dir, &call->made);
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t ino,
		const char *name)
{
	struct node *parent = node_of(fs_of(req), ino);
	struct call *call;

	if (refuse_place(req, parent, name))
		return;
	if (parent->kind == NODE_STAGING) {
		reply_refused(req, -EPERM, parent, name,
			      "only generations are staged here");
		return;
	}
	call = call_new(req, parent, act_symlink, call_reply_entry);
	if (!call || !call_names(call, name, target))
		return;
	call->enters = parent->kind == NODE_FILE ? CALL_ENTERS_NODE : 0;
	call_submit(call);
}

static int act_link(struct call *call)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *from =
		node_group(call->other);
	cleanup(weight_group_unref_cleanup) struct weight_group *to =
		node_group(call->node);
	int r;

	if (from != to)
		return -EXDEV;
	r = weight_file_link(call->other->file, call->node->file, call->name);
	if (r < 0)
		return r;
	call->made = node_ref(call->fs, call->other);
	return 0;
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent,
	     const char *new_name)
{
	struct fs *fs = fs_of(req);
	struct node *node = node_of(fs, ino);
	struct node *parent = node_of(fs, new_parent);
	struct call *call;

	if (refuse_place(req, parent, new_name))
		return;
	if (node_is_published(node) || node_is_published(parent)) {
		reply_refused(req, -EROFS, parent, new_name, "");
		return;
	}
	if (node->kind != NODE_FILE || parent->kind != NODE_FILE) {
		reply_refused(req, -EPERM, parent, new_name,
			      "hard links stay within one staging directory");
		return;
	}
	call = call_on_name(req, parent, new_name, act_link, call_reply_entry);
	if (!call)
		return;
	call->other = node_ref(fs, node);
	call_submit(call);
}

/* ---- Removing ---- */

static int act_unlink(struct call *call)
{
	if (call->node->kind == NODE_FILE)
		return weight_file_unlink(call->node->file, call->name);
	return weight_dir_unlink(call->node->dir, call->name, &call->why);
}

void op_unlink(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct node *parent = node_of(fs_of(req), ino);
	struct call *call;

	if (refuse_place(req, parent, name))
		return;
	if (parent->kind == NODE_STAGING) {
		reply_err(req, -EISDIR);
		return;
	}
	call = call_on_name(req, parent, name, act_unlink, NULL);
	if (call)
		call_submit(call);
}

static int act_rmdir(struct call *call)
{
	switch (call->node->kind) {
	case NODE_FILE:
		return weight_file_rmdir(call->node->file, call->name);
	case NODE_STAGING:
		return weight_dir_unstage(call->node->dir, call->name,
					  &call->why);
	default:
		return weight_dir_rmdir(call->node->dir, call->name,
					&call->why);
	}
}

/* rmdir of a lineage's .staging: it is always there, empty or not. */
static int act_rmdir_staging(struct call *call)
{
	uint64_t generation;
	int r = weight_dir_next_generation(call->node->dir, true, 0,
					   &generation);

	if (r == -ENOENT)
		return 0;
	return r < 0 ? r : -ENOTEMPTY;
}

/* rmdir of a generation: no habit of a cleaning tool may remove one. */
static int act_rmdir_generation(struct call *call)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group = NULL;
	int r = weight_dir_published(call->node->dir, call->name, &group);

	return r < 0 ? r : -ENOTEMPTY;
}

void op_rmdir(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct node *parent = node_of(fs_of(req), ino);
	int (*act)(struct call * call) = act_rmdir;
	struct call *call;

	if (refuse_place(req, parent, name))
		return;
	if (node_is_lineage(parent)) {
		if (strcmp(name, FS_STAGING_NAME) == 0)
			act = act_rmdir_staging;
		else if (is_generation(name))
			act = act_rmdir_generation;
	}
	call = call_on_name(req, parent, name, act, NULL);
	if (call)
		call_submit(call);
}

/* ---- Renaming ---- */

/*
 * Some answers make mv(1) try again, mislead its user, or copy and delete. A
 * place where a name can't go is EPERM instead.
 */
static int rename_error(int r, unsigned flags)
{
	switch (r) {
	case -EINVAL:
		return flags & RENAME_EXCHANGE ? r : -EPERM;
	case -EOPNOTSUPP:
	case -ENOSYS:
	case -ESTALE:
	case -EXDEV:
		return -EPERM;
	default:
		return r;
	}
}

static int act_rename_file(struct call *call)
{
	int r = weight_file_rename(call->node->file, call->name,
				   call->other->file, call->new_name,
				   call->flags);

	return rename_error(r, call->flags);
}

static int act_rename_dir(struct call *call)
{
	int r;

	if (node_is_lineage(call->node) && is_generation(call->name)) {
		cleanup(weight_group_unref_cleanup) struct weight_group *group =
			NULL;

		/* Moving a generation away would be changing it. */
		if (weight_dir_published(call->node->dir, call->name, &group) ==
		    0)
			return -EROFS;
	}
	r = weight_dir_rename(call->node->dir, call->name, call->other->dir,
			      call->new_name, call->flags, &call->why);
	return rename_error(r, call->flags);
}

static int act_publish(struct call *call)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group = NULL;
	struct weight_waiter waiter = call_waiter(call, NULL);
	int r = weight_dir_staged(call->node->dir, call->name, &group);

	if (r < 0)
		return r;
	r = weight_group_publish(group, call->other->dir, call->new_name,
				 call->flags & RENAME_NOREPLACE, &waiter,
				 &call->why);
	/* The sentence belongs to the staged generation, and stays there. */
	if (r < 0 && call->why.len > 0)
		weight_group_set_error(group, call->why.data);
	return rename_error(r, 0);
}

static const char *rename_refusal(const struct node *from,
				  const struct node *to)
{
	if (from->kind == NODE_DIR && to->kind == NODE_DIR)
		return "the directory .staging stays where it is";
	if (from->kind == NODE_STAGING && to->kind == NODE_STAGING)
		return "a staged generation keeps its number";
	if (from->kind == NODE_STAGING)
		return "a staged generation is published into the directory "
		       "above its .staging and nowhere else";
	if (to->kind == NODE_STAGING)
		return "a generation is staged with mkdir in .staging";
	return not_here;
}

void op_rename(fuse_req_t req, fuse_ino_t ino, const char *name,
	       fuse_ino_t new_ino, const char *new_name, unsigned flags)
{
	struct fs *fs = fs_of(req);
	struct node *from = node_of(fs, ino), *to = node_of(fs, new_ino);
	int (*act)(struct call * call) = NULL;
	unsigned enters = 0;
	struct call *call;

	if (refuse_place(req, from, name) || refuse_place(req, to, new_name))
		return;
	if (node_is_published(from) || node_is_published(to)) {
		reply_refused(req, -EROFS, node_is_published(from) ? from : to,
			      node_is_published(from) ? name : new_name, "");
		return;
	}
	if (strcmp(name, FS_STAGING_NAME) == 0 && node_is_lineage(from)) {
		/* Refused below: it is no thing of its own. */
	} else if (from->kind == NODE_FILE && to->kind == NODE_FILE) {
		act = act_rename_file;
		enters = CALL_ENTERS_NODE | CALL_ENTERS_OTHER;
	} else if (from->kind == NODE_DIR && to->kind == NODE_DIR) {
		act = act_rename_dir;
	} else if (from->kind == NODE_STAGING && to->kind == NODE_DIR) {
		act = act_publish;
	}
	if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE) ||
	    (act == act_publish && flags & RENAME_EXCHANGE)) {
		reply_err(req, -EINVAL);
		return;
	}
	if (!act) {
		reply_refused(req, -EPERM, from, name,
			      rename_refusal(from, to));
		return;
	}
	call = call_new(req, from, act, NULL);
	if (!call || !call_names(call, name, new_name))
		return;
	call->other = node_ref(fs, to);
	call->flags = flags;
	call->enters = enters;
	if (act == act_publish)
		call_submit_long(call);
	else
		call_submit(call);
}
