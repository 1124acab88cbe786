/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/caps.h"

#include "core/log.h"
#include "core/util.h"
#include "fs/compat.h"

/* Features are asked for by name, never guessed from a kernel version. */
/* clang-format off */
static const struct cap {
	uint64_t flag; /* 0: not in this libfuse */
	const char *name;
	bool want;
} caps[] = {
	{ FUSE_CAP_ASYNC_READ,         "async_read",         true },
	{ FUSE_CAP_ASYNC_DIO,          "async_dio",          true },
	{ FUSE_CAP_PARALLEL_DIROPS,    "parallel_dirops",    true },
	{ FUSE_CAP_ATOMIC_O_TRUNC,     "atomic_o_trunc",     true },
	{ FUSE_CAP_CACHE_SYMLINKS,     "cache_symlinks",     true },
	/* Without it every write of 4 KiB asks for security.capability. */
	{ FUSE_CAP_HANDLE_KILLPRIV_V2, "handle_killpriv_v2", true },
	{ FUSE_CAP_PASSTHROUGH,        "passthrough",        true },
	/* Reading requests without splice is faster when they are small. */
	{ FUSE_CAP_SPLICE_READ,        "splice_read",        false },
	{ FUSE_CAP_WRITEBACK_CACHE,    "writeback_cache",    false },
	{ FUSE_CAP_READDIRPLUS,        "readdirplus",        false },
	/* Locks are between processes of one machine: the kernel's business. */
	{ FUSE_CAP_POSIX_LOCKS,        "posix_locks",        false },
	{ FUSE_CAP_FLOCK_LOCKS,        "flock_locks",        false },
	{ FUSE_CAP_OVER_IO_URING,      "over_io_uring",      false },
};
/* clang-format on */

bool caps_negotiate(struct fuse_conn_info *conn)
{
	bool passthrough = false;

	for (size_t i = 0; i < ARRAY_LEN(caps); i++) {
		bool has = false;

		if (caps[i].flag == 0)
			continue;
		if (!caps[i].want) {
			fuse_unset_feature_flag(conn, caps[i].flag);
			continue;
		}
		has = fuse_set_feature_flag(conn, caps[i].flag);
		if (!has)
			log_debug(0, "without FUSE %s", caps[i].name);
		if (caps[i].flag == FUSE_CAP_PASSTHROUGH)
			passthrough = has;
	}
	return passthrough && COMPAT_CAN_PASS;
}
