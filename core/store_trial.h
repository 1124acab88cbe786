/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store trial: what the filesystem of a store can do, found out by trying.
 *
 * Each start tries it anew, in a nameless or quickly removed file below the
 * store, since a store may be copied elsewhere, and kernels change.
 *
 * Threads: one at a time.
 */
#ifndef CORE_STORE_TRIAL_H
#define CORE_STORE_TRIAL_H

#include <stdbool.h>

#include "core/buf.h"

#define STORE_FS_NAME_MAX 32

struct store_abilities {
	char filesystem[STORE_FS_NAME_MAX]; /* "ext4", "xfs", or "0x1234" */
	const char *objection; /* to a store on such a one, or NULL */
	bool memory_only;      /* nothing of it survives a power loss (tmpfs) */
	bool leases;           /* tells who has a file open or mapped */
	bool direct;           /* can be read past the page cache (O_DIRECT) */
	bool large_folios;     /* caches files in pieces larger than a page */
	bool folios_known;     /* else this process may not look */
	bool attributes;       /* keeps user.* attributes of files */
};

/*
 * Tries everything in directory dirfd and leaves nothing behind. What can't be
 * tried for want of space or rights is taken as missing, but for direct reads:
 * on a full disk, that they can be opened is enough. holders_init() comes
 * before. Errors: none that would keep a store from opening: it returns 0, or
 * the negative errno with which nothing at all could be tried.
 */
int store_trial(int dirfd, struct store_abilities *ret);

/*
 * Appends a line for each ability ("file leases: yes"), with what its lack
 * means. Errors: those of buf_append().
 */
int store_abilities_print(const struct store_abilities *a, struct buf *out);

#endif
