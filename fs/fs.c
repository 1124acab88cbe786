/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fs.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>

#include "core/log.h"
#include "core/util.h"
#include "fs/caps.h"
#include "fs/handle.h"
#include "fs/node.h"
#include "fs/notify.h"
#include "fs/ops.h"

/* Requests that the kernel may have on their way without a waiter each. */
#define BACKGROUND_MAX 64

void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fs *fs = userdata;

	passthrough_offer(fs, caps_negotiate(conn));
	compat_stack_depth(conn);
	conn->max_background = BACKGROUND_MAX;
}

void fs_begin(struct fs *fs)
{
	(void)pthread_mutex_lock(&fs->calls_lock);
	fs->calls++;
	(void)pthread_mutex_unlock(&fs->calls_lock);
}

void fs_end(struct fs *fs)
{
	(void)pthread_mutex_lock(&fs->calls_lock);
	assert(fs->calls > 0);
	if (--fs->calls == 0)
		(void)pthread_cond_broadcast(&fs->calls_idle);
	(void)pthread_mutex_unlock(&fs->calls_lock);
}

static void on_removed(void *arg, struct weight_group *group)
{
	struct fs *fs = arg;

	notifier_removed(fs->notifier, group);
}

/* Each has a descriptor; the other half is for what is open or staged. */
static size_t files_max(void)
{
	struct rlimit have;

	if (getrlimit(RLIMIT_NOFILE, &have) != 0 ||
	    have.rlim_cur == RLIM_INFINITY)
		return SIZE_MAX;
	return (size_t)have.rlim_cur / 2 + 1;
}

int fs_new(struct weight_store *store, const struct config *config,
	   struct fs **ret)
{
	cleanup(fs_free_cleanup) struct fs *fs = calloc(1, sizeof(*fs));
	int r;

	if (!fs)
		return -ENOMEM;
	fs->store = store;
	fs->config = config;
	fs->workers = weight_tree_workers(store);
	fs->shortcomings = (struct buf)BUF_INIT;
	fs->files_max = files_max();
	atomic_init(&fs->stopping, false);
	(void)clock_gettime(CLOCK_REALTIME, &fs->started);
	(void)pthread_mutex_init(&fs->calls_lock, NULL);
	(void)pthread_cond_init(&fs->calls_idle, NULL);
	list_init(&fs->calls_long);
	list_init(&fs->handles);
	passthrough_init(fs);
	r = node_table_new(&fs->nodes);
	if (r == 0)
		r = node_of_dir(fs, weight_dir_ref(weight_tree_root(store)),
				&fs->root);
	if (r == 0)
		r = notifier_new(fs, &fs->notifier);
	if (r < 0)
		return r;
	weight_tree_on_removed(store, on_removed, fs);
	*ret = take_ptr(fs);
	return 0;
}

static void wait_idle(struct fs *fs)
{
	(void)pthread_mutex_lock(&fs->calls_lock);
	while (fs->calls > 0)
		(void)pthread_cond_wait(&fs->calls_idle, &fs->calls_lock);
	(void)pthread_mutex_unlock(&fs->calls_lock);
}

void fs_stop(struct fs *fs)
{
	atomic_store(&fs->stopping, true);
	weight_tree_give_up(fs->store);
	wait_idle(fs);
	weight_tree_on_removed(fs->store, NULL, NULL);
	notifier_free(take_ptr(fs->notifier));
}

void fs_cut(struct fs *fs)
{
	char path[64];
	auto_fd int fd = -1;

	(void)snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/abort",
		       fs->device_minor);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "1", 1) != 1)
		log_debug(-errno, "cutting connection %u", fs->device_minor);
}

/* What was open when the kernel stopped asking gets no RELEASE. */
static void close_handles(struct fs *fs)
{
	struct list *at;

	while ((at = list_first(&fs->handles)))
		handle_close(container_of(at, struct handle, in_open));
	/* Some of their nodes go on a worker. */
	wait_idle(fs);
}

void fs_free(struct fs *fs)
{
	if (!fs)
		return;
	weight_tree_on_removed(fs->store, NULL, NULL);
	notifier_free(fs->notifier);
	close_handles(fs);
	node_table_free(fs, fs->nodes);
	buf_release(&fs->shortcomings);
	(void)pthread_cond_destroy(&fs->calls_idle);
	(void)pthread_mutex_destroy(&fs->calls_lock);
	free(fs);
}
