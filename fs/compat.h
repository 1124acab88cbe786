/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one place where fs/ looks at HAVE_ macros: what the installed libfuse
 * lacks is defined here under its real name, or wrapped where it has none.
 */
#ifndef FS_COMPAT_H
#define FS_COMPAT_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "config.h"

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

/* Capabilities that older libraries don't know: never offered there. */
#ifndef FUSE_CAP_HANDLE_KILLPRIV_V2
#define FUSE_CAP_HANDLE_KILLPRIV_V2 0
#endif
#ifndef FUSE_CAP_PASSTHROUGH
#define FUSE_CAP_PASSTHROUGH 0
#endif
#ifndef FUSE_CAP_OVER_IO_URING
#define FUSE_CAP_OVER_IO_URING 0
#endif

#if !HAVE_FUSE_SET_FEATURE_FLAG /* added in libfuse 3.17 */
static inline bool fuse_set_feature_flag(struct fuse_conn_info *conn,
					 uint64_t flag)
{
	if (!(conn->capable & flag))
		return false;
	conn->want |= (unsigned)flag;
	return true;
}

static inline void fuse_unset_feature_flag(struct fuse_conn_info *conn,
					   uint64_t flag)
{
	conn->want &= ~(unsigned)flag;
}
#endif

#if !HAVE_FUSE_INCREMENT_EPOCH /* added in libfuse 3.18 */
static inline int fuse_lowlevel_notify_increment_epoch(struct fuse_session *se)
{
	(void)se;
	return -ENOSYS;
}
#endif

/*
 * The library's own calls for backing ids lose the errno and need a request,
 * so the two ioctls are made here. Their numbers are kernel ABI.
 */
struct compat_backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};
#define COMPAT_IOC_BACKING_OPEN _IOW(229, 1, struct compat_backing_map)
#define COMPAT_IOC_BACKING_CLOSE _IOW(229, 2, uint32_t)

/*
 * No library knows this notification yet: the kernel (6.18 or newer) forgets
 * inodes that nobody uses, without waiting for any lock. Kernel ABI, too.
 */
#define COMPAT_PRUNE_MAX 256
#define COMPAT_NOTIFY_PRUNE 9
struct compat_prune {
	uint32_t len; /* a fuse_out_header: of all */
	int32_t code;
	uint64_t unique; /* 0: a notification */
	uint32_t count;  /* a fuse_notify_prune_out */
	uint32_t padding;
	uint64_t spare;
	uint64_t ids[COMPAT_PRUNE_MAX];
};

/* Errors: -EINVAL not in this kernel. */
static inline int compat_notify_prune(struct fuse_session *se,
				      struct compat_prune *prune,
				      uint32_t count)
{
	prune->len = (uint32_t)(offsetof(struct compat_prune, ids) +
				count * sizeof(prune->ids[0]));
	prune->code = COMPAT_NOTIFY_PRUNE;
	prune->count = count;
	return write(fuse_session_fd(se), prune, prune->len) < 0 ? -errno : 0;
}

#if HAVE_FUSE_PASSTHROUGH /* added in libfuse 3.17 */
#define COMPAT_CAN_PASS true

static inline void compat_pass(struct fuse_file_info *fi, int32_t backing_id)
{
	fi->backing_id = backing_id;
}

/* Backing files are on no stacked filesystem; one may be stacked on us. */
static inline void compat_stack_depth(struct fuse_conn_info *conn)
{
	conn->max_backing_stack_depth = 0;
}
#else
#define COMPAT_CAN_PASS false

static inline void compat_pass(struct fuse_file_info *fi, int32_t backing_id)
{
	(void)fi;
	(void)backing_id;
}

static inline void compat_stack_depth(struct fuse_conn_info *conn)
{
	(void)conn;
}
#endif

#endif
