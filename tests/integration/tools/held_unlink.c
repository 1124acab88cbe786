/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loaded before a program (LD_PRELOAD), makes its unlinkat(2) of a config.json
 * wait for as long as the file $HOLD_FILE is there, as a slow disk would.
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAUSE_US 10000

static bool is_held(const char *path)
{
	const char *hold = getenv("HOLD_FILE");

	return hold && strcmp(path, "config.json") == 0 &&
	       access(hold, F_OK) == 0;
}

int unlinkat(int dirfd, const char *path, int flags)
{
	while (is_held(path))
		(void)usleep(PAUSE_US);
	return (int)syscall(SYS_unlinkat, dirfd, path, flags);
}
