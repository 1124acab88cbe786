/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory limit: what the kernel says about memory, for the whole machine and
 * for the control group of this process with those above it. The lowest counts.
 * Both versions of control groups are understood, also side by side.
 *
 * root stands before the paths that are read, and is "" but in tests. Nothing
 * is kept between calls; any thread.
 *
 * Trust: the files are the kernel's, but inside a container others may have put
 * something in their place: what isn't understood about a group is no limit.
 *
 * Errors: -EBADMSG when the account of the machine is not understood, and those
 * of reading it.
 */
#ifndef CORE_MEMORY_LIMIT_H
#define CORE_MEMORY_LIMIT_H

#include <stdint.h>

/* The bytes of memory that this process may use at all. */
int memory_limit_total(const char *root, uint64_t *ret);

/*
 * The bytes that can be had now without taking them from a process: of the
 * machine the kernel's estimate, of a group what its limit leaves. Both count
 * the page cache as available, so filling it changes little.
 */
int memory_limit_available(const char *root, uint64_t *ret);

#endif
