/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/call.h"
#include "fs/listing.h"
#include "fs/ops.h"

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct node *node = node_of(fs, ino);
	struct handle *handle;
	int r = handle_new(fs, node, fi->flags, &handle);

	if (r < 0) {
		reply_err(req, r);
		return;
	}
	fi->fh = (uintptr_t)handle;
	/* Nobody changes these, so one listing is enough for all. */
	fi->cache_readdir =
		node->kind == NODE_TENSORS ||
		(node->kind == NODE_FILE && node_is_published(node));
	fi->keep_cache = fi->cache_readdir;
	if (fuse_reply_open(req, fi) != 0)
		handle_close(handle);
}

/* The handle's lock is held across the disk: only its own readers wait. */
static int act_readdir(struct call *call)
{
	struct handle *handle = call->handle;
	auto_free char *data = malloc(call->size);
	size_t len = 0;
	int r = 0;

	if (!data)
		return -ENOMEM;
	(void)pthread_mutex_lock(&handle->lock);
	if (call->offset == 0 || !handle->listing) {
		listing_free(handle->listing);
		handle->listing = NULL;
		r = listing_new(call->fs, call->node, &handle->listing);
	}
	if (r == 0)
		r = listing_fill(handle->listing, call->req, call->offset, data,
				 call->size, &len);
	(void)pthread_mutex_unlock(&handle->lock);
	return r < 0 ? r : buf_append(&call->out, data, len);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
		struct fuse_file_info *fi)
{
	struct call *call = call_new(req, node_of(fs_of(req), ino), act_readdir,
				     call_reply_out);

	if (!call)
		return;
	call->handle = handle_of(fi);
	call->size = size;
	call->offset = (uint64_t)offset;
	call_submit(call);
}

void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	handle_close(handle_of(fi));
	(void)fuse_reply_err(req, 0);
}
