/* SPDX-License-Identifier: Apache-2.0 */
#include "core/holders.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/clock.h"
#include "core/dir.h"
#include "core/log.h"

#define SETTLE_STEP_MS_MAX 16
#define DELETED " (deleted)" /* the kernel's mark on unlinked names */

int holders_init(void)
{
	if (signal(SIGIO, SIG_IGN) == SIG_ERR)
		return log_debug(-errno, "ignoring SIGIO");
	return 0;
}

/* --- Probes --- */

static int probe(int fd, int type)
{
	if (fcntl(fd, F_SETLEASE, type) == 0) {
		(void)fcntl(fd, F_SETLEASE, F_UNLCK);
		return 0;
	}
	if (errno == EAGAIN || errno == EBUSY)
		return 1;
	return log_debug(errno == EINVAL ? -EOPNOTSUPP : -errno, "F_SETLEASE");
}

static int probe_anew(int fd, int type)
{
	char path[32];
	auto_fd int own = -1;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	own = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (own < 0 && errno == EAGAIN)
		return 1; /* somebody else's lease is being broken */
	if (own < 0)
		return log_debug(-errno, "opening '%s'", path);
	return probe(own, type);
}

int holders_writer(int fd)
{
	return probe_anew(fd, F_RDLCK);
}

int holders_any(int fd)
{
	return probe_anew(fd, F_WRLCK);
}

int holders_any_but(int fd)
{
	return probe(fd, F_WRLCK);
}

static int settle(int (*ask)(int fd), int fd, uint64_t deadline_ms)
{
	uint64_t step_ms = 1;

	for (;;) {
		uint64_t now_ms;
		int r = ask(fd);

		if (r != 1)
			return r;
		now_ms = clock_monotonic_ms();
		if (now_ms >= deadline_ms)
			return 1;
		if (step_ms > deadline_ms - now_ms)
			step_ms = deadline_ms - now_ms;
		(void)poll(NULL, 0, (int)step_ms);
		if (step_ms < SETTLE_STEP_MS_MAX)
			step_ms *= 2;
	}
}

int holders_writer_settle(int fd, uint64_t deadline_ms)
{
	return settle(holders_writer, fd, deadline_ms);
}

int holders_any_settle(int fd, uint64_t deadline_ms)
{
	return settle(holders_any, fd, deadline_ms);
}

/* --- Who --- */

/* One search through /proc. */
struct search {
	const char *full;  /* the path as it is now */
	const char *alone; /* as a detached mount shows it; NULL: don't look */
	bool writers_only;
	uint64_t deadline_ms;
	unsigned found;
	struct buf *out;
};

static void file_close(FILE *f)
{
	(void)fclose(f);
}
DEFINE_CLEANUP(FILE *, file_close)

static bool is_below(const char *path, const char *top)
{
	size_t len = strlen(top);

	return strncmp(path, top, len) == 0 &&
	       (path[len] == '\0' || path[len] == '/');
}

/* Cuts off the mark of an unlinked file and compares. */
static bool path_matches(const struct search *s, char *path)
{
	size_t len = strlen(path);
	size_t mark = strlen(DELETED);

	if (len > mark && strcmp(path + len - mark, DELETED) == 0)
		path[len - mark] = '\0';
	return is_below(path, s->full) ||
	       (s->alone && is_below(path, s->alone));
}

static bool is_late(const struct search *s)
{
	return clock_monotonic_ms() >= s->deadline_ms;
}

/* What a user controls goes into a log line: no control characters. */
static void make_printable(char *text)
{
	for (; *text; text++)
		if (iscntrl((unsigned char)*text))
			*text = '?';
}

static void program_name(int proc, char name[NAME_MAX + 1])
{
	auto_fd int fd = openat(proc, "comm", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, name, NAME_MAX);

	if (n > 0 && name[n - 1] == '\n')
		n--;
	name[n > 0 ? n : 0] = '\0';
	make_printable(name);
}

static int add_entry(struct search *s, int proc, const char *pid, char *path)
{
	char name[NAME_MAX + 1];

	if (++s->found > HOLDERS_SHOWN_MAX)
		return buf_printf(s->out, " and others");
	program_name(proc, name);
	make_printable(path);
	return buf_printf(s->out, "%s%s by %s (pid %s)",
			  s->found > 1 ? ", " : "", path, name, pid);
}

/* Whether a line of maps is one of a file that counts; stores its path. */
static bool map_matches(const struct search *s, char *line, char **ret_path)
{
	const char *access = strchr(line, ' '); /* " rw-s " */
	char *path = strchr(line, '/');

	if (!access || !path)
		return false;
	path[strcspn(path, "\n")] = '\0';
	if (s->writers_only &&
	    (strlen(access) < 5 || access[2] != 'w' || access[4] != 's'))
		return false;
	*ret_path = path;
	return path_matches(s, path);
}

/* Returns 1 when the process maps such a file, 0 when not. */
static int search_maps(struct search *s, int proc, const char *pid)
{
	cleanup(file_close_cleanup) FILE *f = NULL;
	auto_free char *line = NULL;
	auto_fd int fd = openat(proc, "maps", O_RDONLY | O_CLOEXEC);
	size_t cap = 0;

	/* Processes end, and some may not be looked at. */
	if (fd < 0)
		return 0;
	f = fdopen(fd, "re");
	if (!f)
		return -ENOMEM;
	(void)take_fd(&fd);
	while (!is_late(s) && getline(&line, &cap, f) > 0) {
		char *path;

		if (map_matches(s, line, &path)) {
			int r = add_entry(s, proc, pid, path);

			return r < 0 ? r : 1;
		}
	}
	return 0;
}

static bool fd_matches(const struct search *s, int fds, const char *name,
		       char path[PATH_MAX])
{
	struct stat st;
	ssize_t n;

	/* The link's mode tells how the descriptor is open: O_PATH has none. */
	if (fstatat(fds, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !(st.st_mode & (s->writers_only ? S_IWUSR : S_IRUSR | S_IWUSR)))
		return false;
	n = readlinkat(fds, name, path, PATH_MAX - 1);
	if (n < 0)
		return false;
	path[n] = '\0';
	return path_matches(s, path);
}

/* Returns 1 when the process has such a file open, 0 when not. */
static int search_fds(struct search *s, int proc, const char *pid)
{
	cleanup(dir_close_cleanup) DIR *dir = NULL;
	char path[PATH_MAX];
	const char *name;

	if (dir_open(proc, "fd", &dir) < 0)
		return 0;
	while (!is_late(s) && dir_next(dir, &name) == 0 && name) {
		if (fd_matches(s, dirfd(dir), name, path)) {
			int r = add_entry(s, proc, pid, path);

			return r < 0 ? r : 1;
		}
	}
	return 0;
}

static int search_process(struct search *s, int all, const char *pid)
{
	auto_fd int proc = openat(all, pid, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int r;

	if (proc < 0)
		return 0; /* it has ended */
	r = search_fds(s, proc, pid);
	return r ? r : search_maps(s, proc, pid);
}

static int compare_pids(const void *a, const void *b)
{
	const long *x = a;
	const long *y = b;

	return *x < *y ? 1 : *x > *y ? -1 : 0;
}

/* The processes that there are, but for this one, as an array of long. */
static int list_pids(DIR *dir, struct buf *ret)
{
	const char *name;
	int r;

	while ((r = dir_next(dir, &name)) == 0 && name) {
		long pid = isdigit((unsigned char)name[0]) ?
				   strtol(name, NULL, 10) :
				   0;

		if (pid <= 0 || pid == getpid())
			continue;
		r = buf_append(ret, &pid, sizeof(pid));
		if (r < 0)
			return r;
	}
	return r;
}

/* Those that hold something came late as a rule, so they are asked first. */
static int search_all(struct search *s)
{
	cleanup(dir_close_cleanup) DIR *dir = NULL;
	struct buf pids = BUF_INIT;
	int r;

	r = dir_open(AT_FDCWD, "/proc", &dir);
	if (r < 0)
		return log_debug(r, "opening /proc");
	r = list_pids(dir, &pids);
	if (r == 0)
		qsort(pids.data, pids.len / sizeof(long), sizeof(long),
		      compare_pids);
	for (size_t at = 0; r >= 0 && at < pids.len &&
			    s->found <= HOLDERS_SHOWN_MAX && !is_late(s);
	     at += sizeof(long)) {
		char name[sizeof("-9223372036854775808")];
		long pid;

		memcpy(&pid, pids.data + at, sizeof(pid));
		(void)snprintf(name, sizeof(name), "%ld", pid);
		r = search_process(s, dirfd(dir), name);
	}
	buf_release(&pids);
	return r < 0 ? r : 0;
}

int holders_describe(const char *mountpoint, const char *below,
		     bool writers_only, struct buf *ret)
{
	struct buf full = BUF_INIT, out = BUF_INIT;
	struct search s = { .writers_only = writers_only, .out = &out };
	size_t len = strlen(mountpoint);
	int r;

	while (len && mountpoint[len - 1] == '/')
		len--;
	r = buf_printf(&full, "%.*s%s%s", (int)len, mountpoint,
		       *below ? "/" : "", below);
	if (r == 0) {
		s.full = full.data;
		s.alone = *below ? full.data + len : NULL;
		s.deadline_ms = clock_monotonic_ms() + HOLDERS_DESCRIBE_MS_MAX;
		r = search_all(&s);
	}
	if (r == 0)
		r = buf_append(ret, out.data, out.len);
	buf_release(&full);
	buf_release(&out);
	if (r < 0)
		return r;
	return s.found < HOLDERS_SHOWN_MAX ? (int)s.found : HOLDERS_SHOWN_MAX;
}
