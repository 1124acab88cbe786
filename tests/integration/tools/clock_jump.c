/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loaded before a program (LD_PRELOAD), moves its wall clock by the seconds
 * that the file $CLOCK_FILE holds at that moment. Other clocks run on.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long offset(void)
{
	const char *path = getenv("CLOCK_FILE");
	char text[32] = "0";
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	if (fd >= 0) {
		ssize_t n = read(fd, text, sizeof(text) - 1);

		text[n > 0 ? n : 0] = '\0';
		(void)close(fd);
	}
	return strtol(text, NULL, 10);
}

int clock_gettime(clockid_t clock, struct timespec *ts)
{
	int r = (int)syscall(SYS_clock_gettime, clock, ts);

	if (r == 0 && clock == CLOCK_REALTIME)
		ts->tv_sec += offset();
	return r;
}
