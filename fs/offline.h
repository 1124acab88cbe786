/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon's program does with a store instead of serving it: --check,
 * --export, --import. Prints what it did, or found.
 *
 * Not thread-safe: called by main() before there is a thread.
 */
#ifndef FS_OFFLINE_H
#define FS_OFFLINE_H

#include "core/buf.h"

enum offline_command {
	OFFLINE_NONE,
	OFFLINE_CHECK,
	OFFLINE_EXPORT,
	OFFLINE_IMPORT,
};

/* What a check answers when it found something. */
#define OFFLINE_WRONG 2

/*
 * file is that of --export and --import; "-" is stdout or stdin. One that is
 * there is not overwritten.
 *
 * Returns 0, OFFLINE_WRONG, or an errno with a sentence in why.
 */
int offline_run(enum offline_command command, const char *file,
		const char *store, struct buf *why);

#endif
