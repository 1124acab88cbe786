/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holders: who has a backing file open or mapped.
 *
 * A mapping made through passthrough outlives the close that the daemon hears
 * of. The kernel knows: it grants a file lease only when nobody conflicts. A
 * probe takes a lease and gives it back at once. For some microseconds an open
 * that conflicts waits, or fails with EWOULDBLOCK if it is non-blocking.
 *
 * What a probe can't see: pages that sit in a pipe or a socket after close, and
 * buffers that were registered with io_uring on a memory filesystem. So never
 * punch, truncate or overwrite on the strength of a probe; unlinking is safe.
 *
 * The daemon's own descriptors count as well, O_PATH ones excepted. A duplicate
 * (dup) is the same open file; its mappings belong to it.
 *
 * Threads: any. Needs CAP_LEASE or ownership of the file.
 */
#ifndef CORE_HOLDERS_H
#define CORE_HOLDERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/buf.h"

#define HOLDERS_SHOWN_MAX 8
#define HOLDERS_DESCRIBE_MS_MAX 1000

/*
 * Ignores SIGIO, which would kill the process when somebody breaks a lease.
 * Process-wide; to be called before the first probe. Errors: none expected.
 */
int holders_init(void);

/*
 * All probes answer 0 when nobody holds the file, 1 when somebody does, and
 * else
 *  -EOPNOTSUPP	the filesystem has no leases, or fs.leases-enable is 0
 *  -EACCES	neither owner nor CAP_LEASE
 *  others	what opening the file answered
 *
 * fd may be an O_PATH descriptor.
 *
 * holders_writer(): does anybody have the file open for writing, or mapped
 * shared and writable? holders_any(): does anybody have it open or mapped at
 * all? The latter also sees every other open descriptor of the daemon itself.
 */
int holders_writer(int fd);
int holders_any(int fd);

/*
 * As holders_any(), on fd itself, which is open for reading and the daemon's
 * only one: fd and the mappings made from it don't count.
 */
int holders_any_but(int fd);

/*
 * The same, asked again for a while: at RELEASE, and shortly after, the last
 * user's descriptor is often still on its way out. Sleeps in steps of some
 * milliseconds until the answer is 0 or clock_monotonic_ms() has reached
 * deadline_ms, so not for session threads.
 */
int holders_writer_settle(int fd, uint64_t deadline_ms);
int holders_any_settle(int fd, uint64_t deadline_ms);

/*
 * Files by their identity, which a bind mount or another mount namespace
 * doesn't change. Borrowed by the call. Several names of one file are one
 * entry, and which of them is shown is up to the caller.
 */
struct holders_file {
	uint64_t ino;     /* as stat() on the mount says */
	const char *path; /* from the path that is asked about */
};

struct holders_files {
	dev_t dev; /* of the mount; 0: unknown */
	size_t count;
	const struct holders_file *entries; /* by ino, rising */
};

/*
 * Who holds files below one path of the mount: appends up to
 * HOLDERS_SHOWN_MAX entries "PATH by PROGRAM (pid N)", one a process, separated
 * by ", ", and " and others" if there are more. below is the path from
 * the mountpoint, without a leading slash, or "" for the whole mount.
 * With writers_only, only descriptors open for writing and writable shared
 * mappings count.
 *
 * A file counts if its path is below, or if it is one of files, which may be
 * NULL. The latter finds whoever came through a bind mount, a container as a
 * rule; PATH is the one on the mount even then. A descriptor of which only the
 * inode can be had, not the device, is taken for one of files if its last
 * component is the same, too; so is everything while dev is unknown.
 *
 * This is for messages; the probes decide. Not seen: processes that /proc
 * doesn't show, as it is with a daemon in a container of its own; those not
 * found within HOLDERS_DESCRIBE_MS_MAX; and, of those who came through a bind
 * mount, who holds what is not in files, or holds it through a mount of another
 * dev, such as a dead daemon's, or, before Linux 5.14, has it open only. Files
 * of a dead daemon's mount, which was detached, are seen by their path from the
 * mountpoint. Open directories below are listed too. The caller itself is left
 * out.
 *
 * Asks the kernel's tables only, never a filesystem, so a mount that hangs
 * doesn't stop it. May have to wait for a process that faults on a file that
 * the daemon serves, so it must not be called from a thread that such a fault
 * waits for.
 *
 * Returns the number of entries. Errors: -ENOMEM, what opening /proc answered.
 */
int holders_describe(const char *mountpoint, const char *below,
		     bool writers_only, const struct holders_files *files,
		     struct buf *ret);

#endif
