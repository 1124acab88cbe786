/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>

#include "core/file_io.h"
#include "core/log.h"
#include "fs/call.h"
#include "fs/control.h"
#include "fs/ops.h"

/* So that an interrupted copy ends soon. */
#define COPY_BYTES_MAX ((size_t)64 << 20)
/* Of one range of a file that changes while it is read. */
#define READ_TRIES_MAX 8

/* ---- READ, where the kernel doesn't do it itself ---- */

static bool is_vouched(struct handle *handle, const struct stat *st)
{
	const struct timespec *t = &handle->vouched;
	bool same;

	(void)pthread_mutex_lock(&handle->lock);
	same = t->tv_sec == st->st_ctim.tv_sec &&
	       t->tv_nsec == st->st_ctim.tv_nsec;
	(void)pthread_mutex_unlock(&handle->lock);
	return same;
}

/*
 * Makes sure that the bytes of a published file are those that were published,
 * or known to be damaged; stores what the file looks like then. It may have
 * been changed behind our back since it was opened. Opening it looks, and
 * verifies if need be.
 */
static int vouch(struct call *call, struct stat *ret)
{
	struct handle *handle = call->handle;
	struct weight_file *file = call->node->file;
	int r;

	if (fstat(handle->fd, ret) != 0)
		return -errno;
	if (is_vouched(handle, ret))
		return 0;
	r = weight_file_open(file, O_RDONLY, call->may_wait);
	if (r == -EWOULDBLOCK)
		return CALL_AGAIN;
	if (r < 0)
		return r == -EINPROGRESS ? -EIO : r;
	weight_file_close(file, O_RDONLY);
	(void)pthread_mutex_lock(&handle->lock);
	handle->vouched = ret->st_ctim;
	(void)pthread_mutex_unlock(&handle->lock);
	return 0;
}

/* Errors: -EAGAIN it changed meanwhile, as when another range is mended. */
static int read_once(struct call *call)
{
	int fd = call->handle->fd;
	struct stat before, after;
	uint64_t len = 0;
	int r = vouch(call, &before);

	if (r == 0)
		r = weight_file_range_check(call->node->file, call->offset,
					    call->size);
	if (r != 0)
		return r;
	if (call->offset < (uint64_t)before.st_size)
		len = (uint64_t)before.st_size - call->offset;
	if (len > call->size)
		len = call->size;
	r = file_io_read_at(fd, call->data, (size_t)len, call->offset);
	if (r < 0)
		return r;
	if (fstat(fd, &after) != 0)
		return -errno;
	if (!is_vouched(call->handle, &after))
		return -EAGAIN;
	call->count = len;
	return weight_file_range_check(call->node->file, call->offset,
				       call->size);
}

/*
 * All bytes that there are or an error: the kernel takes a short answer for
 * the end of the file and fills up with zeros.
 */
static int read_published(struct call *call)
{
	int r = -EAGAIN;

	if (!call->data)
		call->data = malloc(call->size + 1);
	if (!call->data)
		return -ENOMEM;
	for (unsigned i = 0; i < READ_TRIES_MAX && r == -EAGAIN; i++)
		r = read_once(call);
	return r == -EAGAIN ? log_debug(-EIO, "it goes on changing") : r;
}

static void reply_data(struct call *call)
{
	(void)fuse_reply_buf(call->req, call->data, (size_t)call->count);
}

static int act_read(struct call *call)
{
	/* The kernel reads these by their backing id. */
	if (call->handle->fd < 0)
		return -EIO;
	if (call->node->kind != NODE_FILE || !node_is_published(call->node))
		return 0;
	call->reply = reply_data;
	return read_published(call);
}

static void reply_read(struct call *call)
{
	struct fuse_bufvec data = FUSE_BUFVEC_INIT(call->size);

	data.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	data.buf[0].fd = call->handle->fd;
	data.buf[0].pos = (off_t)call->offset;
	/* Pages stay where they are: the store's cache is the one copy. */
	(void)fuse_reply_data(call->req, &data, FUSE_BUF_NO_SPLICE);
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
	     struct fuse_file_info *fi)
{
	struct node *node = node_of(fs_of(req), ino);
	bool text = control_is_text(node);
	struct call *call = call_new(req, node, text ? control_read : act_read,
				     text ? call_reply_out : reply_read);

	if (!call)
		return;
	call->handle = handle_of(fi);
	call->size = size;
	call->offset = (uint64_t)offset;
	if (text && control_waits(node))
		call_submit_long(call);
	else
		call_submit(call);
}

/* ---- WRITE ---- */

static int act_write(struct call *call)
{
	call->count = 0;
	while (call->count < call->in.len) {
		ssize_t n =
			pwrite(call->handle->fd, call->in.data + call->count,
			       call->in.len - call->count,
			       (off_t)(call->offset + call->count));

		if (n < 0 && errno == EINTR)
			continue;
		/* What went before an error counts; the rest meets it again. */
		if (n < 0)
			return call->count > 0 ? 0 : -errno;
		call->count += (uint64_t)n;
	}
	return 0;
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *bytes, size_t size,
	      off_t offset, struct fuse_file_info *fi)
{
	struct node *node = node_of(fs_of(req), ino);
	struct call *call;

	if (handle_of(fi)->fd < 0) {
		reply_err(req, -EBADF);
		return;
	}
	/*
	 * No entering: an open handle counts as a writer, which no attempt
	 * gets past. And a close waits for what is dirty to be written, so
	 * parking it would keep the handle from going away.
	 */
	call = call_new(req, node, act_write, call_reply_count);
	if (!call || !call_bytes(call, bytes, size))
		return;
	call->handle = handle_of(fi);
	call->offset = (uint64_t)offset;
	call_submit(call);
}

/* ---- Others that move or ask for ranges ---- */

static int act_fallocate(struct call *call)
{
	return weight_file_fallocate(call->node->file, (int)call->mode,
				     call->offset, call->size);
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset,
		  off_t length, struct fuse_file_info *fi)
{
	struct node *node = node_of(fs_of(req), ino);
	struct call *call;

	(void)fi;
	if (node->kind != NODE_FILE) {
		reply_err(req, node_is_published(node) ? -EROFS : -EPERM);
		return;
	}
	call = call_new(req, node, act_fallocate, NULL);
	if (!call)
		return;
	call->enters = CALL_ENTERS_NODE;
	call->mode = (mode_t)mode;
	call->offset = (uint64_t)offset;
	call->size = (size_t)length;
	call_submit(call);
}

/* Where there are no holes there is one, at the end. */
static int seek_dense(struct call *call)
{
	struct stat st;
	int r = node_stat(call->node, &st);

	if (r < 0)
		return r;
	if (call->offset >= (uint64_t)st.st_size)
		return -ENXIO;
	call->count =
		call->whence == SEEK_DATA ? call->offset : (uint64_t)st.st_size;
	return 0;
}

static int act_lseek(struct call *call)
{
	auto_fd int own = -1;
	int fd = call->handle->fd;
	off_t at;
	int r;

	if (call->node->kind != NODE_FILE)
		return seek_dense(call);
	if (fd < 0) {
		r = handle_reopen(weight_file_fd(call->node->file), O_RDONLY,
				  &own);
		if (r < 0)
			return r;
		fd = own;
	}
	at = lseek(fd, (off_t)call->offset, call->whence);
	if (at < 0)
		return -errno;
	call->count = (uint64_t)at;
	return 0;
}

static void reply_lseek(struct call *call)
{
	(void)fuse_reply_lseek(call->req, (off_t)call->count);
}

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence,
	      struct fuse_file_info *fi)
{
	struct node *node = node_of(fs_of(req), ino);
	struct call *call;

	if (whence != SEEK_DATA && whence != SEEK_HOLE) {
		reply_err(req, -EINVAL);
		return;
	}
	call = call_new(req, node, act_lseek, reply_lseek);
	if (!call)
		return;
	call->handle = handle_of(fi);
	call->offset = (uint64_t)offset;
	call->whence = whence;
	call_submit(call);
}

/* What is damaged stays where it is, and what nobody vouches for. */
static int check_copy(struct call *call, struct weight_file *from)
{
	int r = weight_file_open(from, O_RDONLY, call->may_wait);

	if (r == -EWOULDBLOCK)
		return CALL_AGAIN;
	if (r < 0)
		return r == -EINPROGRESS ? -EIO : r;
	weight_file_close(from, O_RDONLY);
	return weight_file_range_check(from, call->offset, call->size);
}

static int act_copy(struct call *call)
{
	struct node *from = call->other;
	size_t copied = 0;
	int r = 0;

	if (node_is_published(from))
		r = check_copy(call, from->file);
	if (r != 0)
		return r;
	r = weight_file_copy_range(from->file, call->offset, call->node->file,
				   call->new_offset, call->size, &copied);
	call->count = copied;
	return r;
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t ino, off_t offset,
			struct fuse_file_info *fi, fuse_ino_t new_ino,
			off_t new_offset, struct fuse_file_info *new_fi,
			size_t len, int flags)
{
	struct fs *fs = fs_of(req);
	struct node *from = node_of(fs, ino), *to = node_of(fs, new_ino);
	struct call *call;

	(void)fi;
	(void)new_fi;
	if (flags != 0) {
		reply_err(req, -EINVAL);
		return;
	}
	/* The kernel then copies by reading and writing. */
	if (from->kind != NODE_FILE || to->kind != NODE_FILE) {
		reply_err(req, -EXDEV);
		return;
	}
	call = call_new(req, to, act_copy, call_reply_count);
	if (!call)
		return;
	call->other = node_ref(fs, from);
	call->enters = CALL_ENTERS_NODE;
	call->offset = (uint64_t)offset;
	call->new_offset = (uint64_t)new_offset;
	call->size = len < COPY_BYTES_MAX ? len : COPY_BYTES_MAX;
	call_submit(call);
}
