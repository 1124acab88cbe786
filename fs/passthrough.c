/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/passthrough.h"

#include <assert.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/vfs.h>

#include "core/cleanup.h"
#include "core/log.h"
#include "fs/fs.h"
#include "fs/node.h"

void passthrough_init(struct fs *fs)
{
	struct statfs st;

	atomic_init(&fs->passthrough.on, false);
	atomic_init(&fs->passthrough.error, 0);
	/*
	 * On a memory filesystem a buffer that was registered with io_uring
	 * goes on writing after unmap and close, unseen by every probe.
	 */
	if (fstatfs(weight_dir_fd(weight_tree_root(fs->store)), &st) == 0)
		fs->passthrough.staged = st.f_type != TMPFS_MAGIC;
}

void passthrough_offer(struct fs *fs, bool offered)
{
	fs->passthrough.offered = offered;
	/* Without leases nobody could tell that a mapping is left. */
	atomic_store(&fs->passthrough.on,
		     offered && weight_tree_can_lease(fs->store) &&
			     fs->config->passthrough != CONFIG_PASSTHROUGH_OFF);
}

/* Errors: those of the ioctl; the kernel numbers ids from 1. */
static int backing_open(struct fs *fs, int fd, int32_t *ret)
{
	struct compat_backing_map map = { .fd = fd };
	int id = ioctl(fuse_session_fd(fs->session), COMPAT_IOC_BACKING_OPEN,
		       &map);

	if (id <= 0)
		return id < 0 ? -errno : -EIO;
	*ret = id;
	return 0;
}

static void backing_close(struct fs *fs, int32_t id)
{
	uint32_t arg = (uint32_t)id;

	/* After unmounting there is no descriptor and nothing to close. */
	if (ioctl(fuse_session_fd(fs->session), COMPAT_IOC_BACKING_CLOSE,
		  &arg) != 0)
		log_debug(-errno, "closing backing id %d", (int)id);
}

/* These say that no file will be passed through, not that this one can't. */
static bool means_never(int err)
{
	return err == -EPERM || err == -ELOOP || err == -EOPNOTSUPP ||
	       err == -ENOTTY || err == -EINVAL || err == -ENOSYS;
}

static void note_failure(struct fs *fs, int err)
{
	if (!means_never(err)) {
		log_warn(err, "registering a file for passthrough");
		return;
	}
	atomic_store(&fs->passthrough.error, err);
	if (atomic_exchange(&fs->passthrough.on, false))
		log_warn(err, "files are served without passthrough");
}

void passthrough_try(struct fs *fs)
{
	char path[sizeof("/proc/self/fd/") + 11];
	auto_fd int fd = -1;
	int32_t id = 0;
	int r;

	if (!atomic_load(&fs->passthrough.on))
		return;
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d",
		       weight_dir_fd(weight_tree_root(fs->store)));
	fd = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0) {
		log_debug(-errno, "no nameless file to try passthrough with");
		return;
	}
	r = backing_open(fs, fd, &id);
	if (r < 0)
		note_failure(fs, r);
	else
		backing_close(fs, id);
}

int passthrough_describe(const struct fs *fs, struct buf *ret)
{
	int err = atomic_load(&fs->passthrough.error);

	if (atomic_load(&fs->passthrough.on))
		return buf_printf(ret, "passthrough: %s\n",
				  fs->passthrough.staged ?
					  "yes" :
					  "published files only (the store is "
					  "on a memory filesystem)");
	if (fs->config->passthrough == CONFIG_PASSTHROUGH_OFF)
		return buf_printf(ret, "passthrough: no (passthrough=off)\n");
	if (!COMPAT_CAN_PASS)
		return buf_printf(ret, "passthrough: no (built with a libfuse "
				       "older than 3.17)\n");
	if (!fs->passthrough.offered)
		return buf_printf(ret,
				  "passthrough: no (not in this kernel)\n");
	if (err == 0)
		return buf_printf(ret,
				  "passthrough: no (the store's filesystem "
				  "has no leases)\n");
	return buf_printf(ret, "passthrough: no (%s)\n",
			  err == -ELOOP ?
				  "the store is on a stacked filesystem" :
				  strerror(-err));
}

/* The kernel would serve what is damaged like all the rest. */
static bool is_whole(const struct node *node)
{
	return node->kind != NODE_FILE || !node_is_published(node) ||
	       weight_file_may_pass(node->file);
}

/* Whether an idle node would be passed through. */
static bool eligible(struct fs *fs, const struct node *node)
{
	if (!atomic_load(&fs->passthrough.on) || !is_whole(node))
		return false;
	if (node->kind != NODE_FILE || fs->passthrough.staged)
		return true;
	return node_is_published(node);
}

bool passthrough_wanted(struct fs *fs, struct node *node)
{
	bool wanted;

	(void)pthread_mutex_lock(&node->lock);
	wanted = node->opens > 0 ? node->passed : eligible(fs, node);
	(void)pthread_mutex_unlock(&node->lock);
	return wanted;
}

/*
 * Decides how the opens of an idle node are served. An id that is no longer
 * of use is stored in *ret_idle. Lock held.
 */
static int decide_locked(struct fs *fs, struct node *node, int fd,
			 int32_t *ret_idle)
{
	int r = 0;

	node->passed = eligible(fs, node);
	if (!node->passed) {
		*ret_idle = node->backing_id;
		node->backing_id = 0;
	} else if (node->backing_id == 0) {
		r = backing_open(fs, fd, &node->backing_id);
		node->passed = r == 0;
	}
	return r;
}

int passthrough_attach(struct fs *fs, struct node *node, int fd,
		       int32_t *ret_id)
{
	int32_t idle = 0;
	int r = 0, err = 0;

	(void)pthread_mutex_lock(&node->lock);
	if (node->opens == 0)
		err = decide_locked(fs, node, fd, &idle);
	else if (node->passed && !is_whole(node))
		r = -EIO;
	if (r == 0) {
		node->opens++;
		*ret_id = node->passed ? node->backing_id : 0;
	}
	(void)pthread_mutex_unlock(&node->lock);
	if (idle > 0)
		backing_close(fs, idle);
	if (err < 0)
		note_failure(fs, err);
	return r;
}

void passthrough_detach(struct fs *fs, struct node *node, bool keep)
{
	int32_t id = 0;

	(void)pthread_mutex_lock(&node->lock);
	assert(node->opens > 0);
	if (--node->opens == 0 && !keep) {
		id = node->backing_id;
		node->backing_id = 0;
	}
	(void)pthread_mutex_unlock(&node->lock);
	if (id > 0)
		backing_close(fs, id);
}

void passthrough_drop(struct fs *fs, struct node *node)
{
	int32_t id = 0;

	(void)pthread_mutex_lock(&node->lock);
	if (node->opens == 0) {
		id = node->backing_id;
		node->backing_id = 0;
	}
	(void)pthread_mutex_unlock(&node->lock);
	if (id > 0)
		backing_close(fs, id);
}
