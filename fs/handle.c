/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/handle.h"

#include <fcntl.h>
#include <stdio.h>

#include "core/cleanup.h"
#include "fs/listing.h"
#include "fs/node.h"

int handle_new(struct fs *fs, struct node *node, int flags, struct handle **ret)
{
	struct handle *handle = calloc(1, sizeof(*handle));

	if (!handle)
		return -ENOMEM;
	handle->fs = fs;
	handle->node = node_ref(fs, node);
	handle->flags = flags;
	handle->fd = -1;
	handle->text = (struct buf)BUF_INIT;
	(void)pthread_mutex_init(&handle->lock, NULL);
	list_init(&handle->in_open);
	(void)pthread_mutex_lock(&fs->calls_lock);
	list_add_tail(&fs->handles, &handle->in_open);
	(void)pthread_mutex_unlock(&fs->calls_lock);
	*ret = handle;
	return 0;
}

int handle_reopen(int path_fd, int flags, int *ret)
{
	char path[sizeof("/proc/self/fd/") + 11];
	int fd;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", path_fd);
	fd = open(path, flags | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		return -errno;
	*ret = fd;
	return 0;
}

/*
 * Whether a backing id is worth keeping when the last handle closes: a
 * published file is opened again soon and never changes. A tensor's id would
 * hold its memory.
 */
static bool keeps_id(const struct handle *handle)
{
	return handle->node->kind != NODE_TENSOR &&
	       node_is_published(handle->node);
}

void handle_close(struct handle *handle)
{
	if (!handle)
		return;
	(void)pthread_mutex_lock(&handle->fs->calls_lock);
	list_remove(&handle->in_open);
	(void)pthread_mutex_unlock(&handle->fs->calls_lock);
	/* Our descriptor and id go first: the store looks for other holders. */
	if (handle->fd >= 0)
		(void)close(handle->fd);
	if (handle->attached)
		passthrough_detach(handle->fs, handle->node, keeps_id(handle));
	if (handle->derived)
		weight_tensor_close(handle->node->group, handle->derived);
	if (handle->opened)
		weight_file_close(handle->node->file, handle->flags);
	listing_free(handle->listing);
	node_unref(handle->fs, handle->node, 1);
	buf_release(&handle->text);
	(void)pthread_mutex_destroy(&handle->lock);
	free(handle);
}
