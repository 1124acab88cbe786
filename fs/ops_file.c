/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>

#include "core/log.h"
#include "core/metrics.h"
#include "fs/call.h"
#include "fs/control.h"
#include "fs/ops.h"

/* How long fsync(2) of a published directory waits. */
#define SYNC_DIR_MS_MAX 2000

/*
 * Decides who moves the bytes of this open: the kernel, by a backing id, or we,
 * by a descriptor of our own. may block in the second case.
 */
static int open_backing(struct handle *handle, int path_fd,
			struct fuse_file_info *fi)
{
	int32_t id = 0;
	int r = passthrough_attach(handle->fs, handle->node, path_fd, &id);

	if (r < 0)
		return r;
	handle->attached = true;
	fi->noflush = !weight_open_writes(handle->flags);
	metrics_add(METRIC_OPENS, 1);
	if (id > 0) {
		metrics_add(METRIC_PASSTHROUGH_OPENS, 1);
		compat_pass(fi, id);
		return 0;
	}
	fi->keep_cache = node_keeps_cache(handle->node, path_fd);
	/* Where to append is the kernel's to say; alignment isn't ours. */
	return handle_reopen(path_fd,
			     handle->flags & (O_ACCMODE | O_SYNC | O_DSYNC),
			     &handle->fd);
}

/* Why an open of a published file was refused. */
static void explain(const struct node *node, int err, int flags,
		    struct buf *why)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(node);

	if (!group || weight_group_state(group) != WEIGHT_GROUP_PUBLISHED)
		return;
	/* The store has said so already: for the log. */
	if (err == -EINPROGRESS || err == -EBUSY ||
	    (err == -EINVAL && flags & O_DIRECT))
		(void)weight_group_error(group, why);
	else if (err == -EIO)
		(void)weight_group_damage(group, why);
}

static void reply_opened(fuse_req_t req, struct handle *handle,
			 struct fuse_file_info *fi)
{
	fi->fh = (uintptr_t)handle;
	/* Without an answer there will be no RELEASE. */
	if (fuse_reply_open(req, fi) != 0)
		handle_close(handle);
}

static void call_reply_opened(struct call *call)
{
	reply_opened(call->req, take_ptr(call->handle), &call->fi);
}

/*
 * Opens the handle's file in the store. How a published one looks is taken
 * before that, so that no later change is missed.
 */
static int open_in_store(struct handle *handle, bool may_block)
{
	struct weight_file *file = handle->node->file;
	struct stat st;
	int r;

	if (node_is_published(handle->node) && weight_file_stat(file, &st) == 0)
		handle->vouched = st.st_ctim;
	r = weight_file_open(file, handle->flags, may_block);
	handle->opened = r == 0;
	return r;
}

/* On failure the handle may be closed as it is. */
static int open_file(struct handle *handle, bool may_block,
		     struct fuse_file_info *fi)
{
	int r = open_in_store(handle, may_block);

	if (r < 0)
		return r;
	return open_backing(handle, weight_file_fd(handle->node->file), fi);
}

static int act_open(struct call *call)
{
	struct handle *handle;
	int r = handle_new(call->fs, call->node, (int)call->flags, &handle);

	if (r < 0)
		return r;
	r = open_file(handle, true, &call->fi);
	if (r < 0) {
		handle_close(handle);
		explain(call->node, r, (int)call->flags, &call->why);
		return r;
	}
	call->handle = handle;
	return 0;
}

/* The store knows of the handle already. */
static int act_open_rest(struct call *call)
{
	int r = open_backing(call->handle, weight_file_fd(call->node->file),
			     &call->fi);

	if (r < 0) {
		handle_close(take_ptr(call->handle));
		explain(call->node, r, (int)call->flags, &call->why);
	}
	return r;
}

static int act_open_tensor(struct call *call)
{
	struct handle *handle;
	int r = handle_new(call->fs, call->node, O_RDONLY, &handle);

	if (r < 0)
		return r;
	r = weight_tensor_open(call->node->group, call->node->index,
			       &handle->derived);
	if (r == 0)
		r = open_backing(handle, weight_tensor_fd(handle->derived),
				 &call->fi);
	if (r < 0) {
		handle_close(handle);
		explain(call->node, r, O_RDONLY, &call->why);
		return r;
	}
	call->handle = handle;
	return 0;
}

static void open_later(fuse_req_t req, struct node *node,
		       int (*act)(struct call *call), struct fuse_file_info *fi,
		       bool slow)
{
	struct call *call = call_new(req, node, act, call_reply_opened);

	if (!call)
		return;
	call->fi = *fi;
	call->flags = (unsigned)fi->flags;
	if (node->kind == NODE_FILE && weight_open_writes(fi->flags))
		call->enters = CALL_ENTERS_NODE;
	if (slow)
		call_submit_slow(call);
	else
		call_submit(call);
}

static void open_rest_later(fuse_req_t req, struct handle *handle,
			    struct fuse_file_info *fi)
{
	struct call *call =
		call_new(req, handle->node, act_open_rest, call_reply_opened);

	if (!call) {
		handle_close(handle);
		return;
	}
	call->handle = handle;
	call->fi = *fi;
	call->flags = (unsigned)fi->flags;
	call_submit(call);
}

static void reply_explained(fuse_req_t req, int err, struct node *node,
			    int flags)
{
	struct buf why = BUF_INIT;

	explain(node, err, flags, &why);
	reply_refused(req, err, node, NULL, why.data);
	buf_release(&why);
}

/*
 * Reading a file that is in use or leased already takes no other thread, where
 * the kernel reads it.
 */
static void open_now(fuse_req_t req, struct node *node,
		     struct fuse_file_info *fi)
{
	struct handle *handle;
	int r = handle_new(fs_of(req), node, fi->flags, &handle);

	if (r < 0) {
		reply_err(req, r);
		return;
	}
	r = open_in_store(handle, false);
	if (r == 0 && !passthrough_wanted(handle->fs, node)) {
		open_rest_later(req, handle, fi);
		return;
	}
	if (r == 0)
		r = open_backing(handle, weight_file_fd(node->file), fi);
	if (r == 0) {
		reply_opened(req, handle, fi);
		return;
	}
	handle_close(handle);
	/* Its bytes may have to be verified, which takes more than a moment. */
	if (r == -EWOULDBLOCK)
		open_later(req, node, act_open, fi, true);
	else
		reply_explained(req, r, node, fi->flags);
}

static void open_text(fuse_req_t req, struct node *node,
		      struct fuse_file_info *fi)
{
	struct handle *handle;
	int r = handle_new(fs_of(req), node, O_RDONLY, &handle);

	if (r < 0) {
		reply_err(req, r);
		return;
	}
	if (node->fd >= 0) {
		r = open_backing(handle, node->fd, fi);
	} else {
		fi->direct_io = 1;
		fi->noflush = 1;
		/* Newer kernels would end a sendfile(2) at its size of 0. */
		fi->nonseekable = 1;
	}
	if (r < 0) {
		handle_close(handle);
		reply_err(req, r);
	} else {
		reply_opened(req, handle, fi);
	}
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct node *node = node_of(fs, ino);

	fi->fh = 0;
	if (weight_open_writes(fi->flags) && node_is_published(node)) {
		reply_refused(req, -EROFS, node, NULL, "");
		return;
	}
	switch (node->kind) {
	case NODE_FILE:
		if (weight_open_writes(fi->flags))
			open_later(req, node, act_open, fi, false);
		else
			open_now(req, node, fi);
		return;
	case NODE_TENSOR:
		/* It is copied, and its file may have to be verified. */
		open_later(req, node, act_open_tensor, fi, true);
		return;
	case NODE_ROOT_TEXT:
	case NODE_GROUP_TEXT:
	case NODE_OPERATION:
	case NODE_NAMED_TEXT:
		if (weight_open_writes(fi->flags))
			reply_refused(req, -EPERM, node, NULL,
				      "this file belongs to the filesystem");
		else
			open_text(req, node, fi);
		return;
	default:
		reply_err(req, -EISDIR);
	}
}

/* ---- CREATE ---- */

/*
 * Makes the file and opens it, both or neither. When somebody else made it a
 * moment ago it is opened, unless that was to be excluded.
 */
static int act_create_open(struct call *call)
{
	struct weight_file *file;
	struct node *node;
	int r = weight_file_create(call->node->file, call->name, call->mode,
				   &call->caller, &file);

	if (r == 0)
		call->flags &= ~(unsigned)O_TRUNC;
	else if (r == -EEXIST && !(call->flags & O_EXCL))
		r = weight_file_lookup(call->node->file, call->name, &file);
	if (r < 0)
		return r;
	r = node_of_file(call->fs, file, false, &node);
	if (r < 0)
		return r;
	call->flags &= ~(unsigned)(O_CREAT | O_EXCL);
	r = handle_new(call->fs, node, (int)call->flags, &call->handle);
	if (r == 0)
		r = open_file(call->handle, true, &call->fi);
	if (r < 0) {
		handle_close(take_ptr(call->handle));
		node_unref(call->fs, node, 1);
		return r;
	}
	call->made = node;
	return 0;
}

static void reply_created(struct call *call)
{
	struct node *node = take_ptr(call->made);
	struct handle *handle = take_ptr(call->handle);
	struct fs *fs = call->fs;
	struct fuse_entry_param e = {
		.ino = node_id(fs, node),
		.attr_timeout = node_timeout(node),
		.entry_timeout = node_timeout(node),
	};
	int r = node_stat(node, &e.attr);

	call->fi.fh = (uintptr_t)handle;
	if (r < 0)
		reply_err(call->req, r);
	else
		r = fuse_reply_create(call->req, &e, &call->fi);
	if (r != 0) {
		handle_close(handle);
		node_unref(fs, node, 1);
	}
}

void op_create(fuse_req_t req, fuse_ino_t ino, const char *name, mode_t mode,
	       struct fuse_file_info *fi)
{
	struct node *parent = node_of(fs_of(req), ino);
	struct call *call;

	if (parent->kind != NODE_FILE) {
		/* Refuses with the same words as making a node would. */
		op_mknod(req, ino, name, S_IFREG | (mode & 07777), 0);
		return;
	}
	if (strcmp(name, FS_CONTROL_NAME) == 0) {
		reply_refused(req, node_is_published(parent) ? -EROFS : -EPERM,
			      parent, name, "the name .weights is reserved");
		return;
	}
	call = call_new(req, parent, act_create_open, reply_created);
	if (!call || !call_names(call, name, NULL))
		return;
	call->enters = CALL_ENTERS_NODE;
	call->mode = mode & 07777;
	call->fi = *fi;
	call->fi.fh = 0;
	call->flags = (unsigned)fi->flags;
	call_submit(call);
}

/* ---- Closing and syncing ---- */

static int act_release(struct call *call)
{
	handle_close(call->handle);
	return 0;
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct handle *handle = handle_of(fi);
	struct call *call;

	(void)ino;
	if (handle->fd < 0 && !handle->derived) {
		handle_close(handle);
		(void)fuse_reply_err(req, 0);
		return;
	}
	call = call_new(req, handle->node, act_release, NULL);
	if (!call) {
		handle_close(handle);
		return;
	}
	call->handle = handle;
	call_submit(call);
}

/* Never ENOSYS: that would turn it off for good. Errors come from write. */
void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	(void)fi;
	(void)fuse_reply_err(req, 0);
}

/* The kernel holds a lock of the directory meanwhile: not for long. */
static int sync_revision(struct call *call)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(call->node);
	struct weight_waiter waiter = call_waiter(call, NULL);

	return weight_group_sync(group, SYNC_DIR_MS_MAX, &waiter, &call->why);
}

static int act_sync(struct call *call)
{
	struct node *node = call->node;
	auto_fd int fd = -1;
	int r;

	if (node->kind == NODE_FILE && node_is_published(node) &&
	    S_ISDIR(weight_file_type(node->file)))
		return sync_revision(call);
	if (node->kind == NODE_FILE)
		return weight_file_sync(node->file, call->flags != 0);
	if (node->kind != NODE_DIR && node->kind != NODE_STAGING)
		return 0;
	r = handle_reopen(weight_dir_fd(node->dir), O_RDONLY | O_DIRECTORY,
			  &fd);
	if (r < 0)
		return r;
	return fsync(fd) == 0 ? 0 : -errno;
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
	      struct fuse_file_info *fi)
{
	struct call *call =
		call_new(req, node_of(fs_of(req), ino), act_sync, NULL);

	(void)fi;
	if (!call)
		return;
	call->flags = datasync != 0;
	call_submit_slow(call);
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync,
		 struct fuse_file_info *fi)
{
	op_fsync(req, ino, datasync, fi);
}
