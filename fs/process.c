/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/process.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "core/cleanup.h"

#define MMAP_THRESHOLD_BYTES (128 << 10)
#define MALLOC_ARENAS 2
#define NR_OPEN "/proc/sys/fs/nr_open"
#define OOM_SCORE_ADJ "/proc/self/oom_score_adj"
/* A node has a descriptor, so this bounds what can be in use at a time. */
#define FILES_MAX ((rlim_t)1 << 20)
#define FILES_WANTED ((rlim_t)65536)

static rlim_t read_nr_open(void)
{
	auto_fd int fd = open(NR_OPEN, O_RDONLY | O_CLOEXEC);
	char text[32];
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	unsigned long long value;

	if (n <= 0)
		return FILES_MAX;
	text[n] = '\0';
	value = strtoull(text, NULL, 10);
	return value < FILES_MAX ? (rlim_t)value : FILES_MAX;
}

static void raise_files(struct buf *shortcomings)
{
	struct rlimit have;
	struct rlimit want;

	if (getrlimit(RLIMIT_NOFILE, &have) != 0)
		return;
	want.rlim_cur = read_nr_open();
	want.rlim_max =
		want.rlim_cur > have.rlim_max ? want.rlim_cur : have.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &want) == 0)
		return;
	want.rlim_max = have.rlim_max;
	if (want.rlim_cur > have.rlim_max)
		want.rlim_cur = have.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &want);
	if (want.rlim_cur < FILES_WANTED)
		(void)buf_printf(shortcomings, "open files: limited to %llu\n",
				 (unsigned long long)want.rlim_cur);
}

void process_prepare(struct buf *shortcomings)
{
	static const char adj[] = "-1000";
	auto_fd int fd = open(OOM_SCORE_ADJ, O_WRONLY | O_CLOEXEC);

	(void)umask(0);
	/*
	 * Large pieces go back to the kernel when they are freed. Left alone,
	 * the threshold grows with the first of them and keeps them all.
	 */
	(void)mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
	(void)mallopt(M_ARENA_MAX, MALLOC_ARENAS);
	raise_files(shortcomings);
	if (fd < 0 || write(fd, adj, sizeof(adj) - 1) < 0)
		(void)buf_printf(shortcomings,
				 "protected from the OOM killer: no (%s)\n",
				 strerror(errno));
}

/* Waits for the child's word, or for its end. */
static _Noreturn void parent(pid_t child, int fd)
{
	char word;
	ssize_t n;
	int status;

	do
		n = read(fd, &word, 1);
	while (n < 0 && errno == EINTR);
	if (n == 1)
		_exit(EXIT_SUCCESS);
	/* It has said why. */
	(void)waitpid(child, &status, 0);
	_exit(EXIT_FAILURE);
}

int process_background(int *ret_fd)
{
	int fds[2];
	pid_t child;

	if (pipe2(fds, O_CLOEXEC) != 0)
		return -errno;
	child = fork();
	if (child < 0) {
		int err = errno;

		(void)close(fds[0]);
		(void)close(fds[1]);
		return -err;
	}
	if (child > 0) {
		(void)close(fds[1]);
		parent(child, fds[0]);
	}
	(void)close(fds[0]);
	(void)setsid();
	if (chdir("/") != 0) {
		(void)close(fds[1]);
		return -errno;
	}
	*ret_fd = fds[1];
	return 0;
}

void process_ready(int fd, bool keep_stderr)
{
	auto_fd int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	auto_fd int pipe_end = fd;

	if (null >= 0) {
		(void)dup2(null, STDIN_FILENO);
		(void)dup2(null, STDOUT_FILENO);
		if (!keep_stderr)
			(void)dup2(null, STDERR_FILENO);
	}
	if (write(pipe_end, "R", 1) != 1)
		return; /* the parent is gone, so nobody waits */
}

int process_absolute(const char *path, char **ret)
{
	auto_free char *for_dir = strdup(path);
	auto_free char *for_base = strdup(path);
	char resolved[PATH_MAX];
	const char *base;
	char *joined;

	if (!for_dir || !for_base)
		return -ENOMEM;
	base = basename(for_base);
	/* "." and ".." and "/" name no part of their own. */
	if (strcmp(base, ".") == 0 || strcmp(base, "..") == 0 ||
	    strcmp(base, "/") == 0) {
		joined = realpath(path, NULL);
		if (!joined)
			return -errno;
		*ret = joined;
		return 0;
	}
	if (!realpath(dirname(for_dir), resolved))
		return -errno;
	if (asprintf(&joined, "%s/%s",
		     strcmp(resolved, "/") == 0 ? "" : resolved, base) < 0)
		return -ENOMEM;
	*ret = joined;
	return 0;
}
