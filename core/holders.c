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
#include <sys/sysmacros.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/clock.h"
#include "core/dir.h"
#include "core/log.h"

#define SETTLE_STEP_MS_MAX 16
#define DELETED " (deleted)" /* the kernel's mark on unlinked names */
#define MOUNTS_KEPT 64       /* whose device is remembered during a search */
/* What is asked for is in the first lines; locks may follow, without end. */
#define FDINFO_BYTES 256

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

struct mount_device {
	uint64_t id;
	dev_t dev;
};

/* One search through /proc. */
struct search {
	const char *full;  /* the path as it is now */
	const char *alone; /* as a detached mount shows it; NULL: don't look */
	const struct holders_files *files; /* or NULL */
	bool writers_only;
	uint64_t deadline_ms;
	struct mount_device mounts[MOUNTS_KEPT]; /* a ring */
	unsigned mount_count;                    /* ever put there */
	unsigned found;
	struct buf *out;
};

/* What counts: one of the files, else by its path. */
struct match {
	const struct holders_file *file; /* or NULL */
	char *path;
};

static void file_close(FILE *f)
{
	(void)fclose(f);
}
DEFINE_CLEANUP(FILE *, file_close)

static int open_text(int dirfd, const char *name, FILE **ret)
{
	auto_fd int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
	FILE *f;

	if (fd < 0)
		return -errno;
	f = fdopen(fd, "re");
	if (!f)
		return -ENOMEM;
	(void)take_fd(&fd);
	*ret = f;
	return 0;
}

static bool is_below(const char *path, const char *top)
{
	size_t len = strlen(top);

	return strncmp(path, top, len) == 0 &&
	       (path[len] == '\0' || path[len] == '/');
}

/* Cuts off the mark of an unlinked file. */
static void unmark(char *path)
{
	size_t len = strlen(path);
	size_t mark = strlen(DELETED);

	if (len > mark && strcmp(path + len - mark, DELETED) == 0)
		path[len - mark] = '\0';
}

static bool path_matches(const struct search *s, const char *path)
{
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

static int add_path(struct search *s, int proc, const char *pid, char *path)
{
	char name[NAME_MAX + 1];

	if (++s->found > HOLDERS_SHOWN_MAX)
		return buf_printf(s->out, " and others");
	program_name(proc, name);
	make_printable(path);
	return buf_printf(s->out, "%s%s by %s (pid %s)",
			  s->found > 1 ? ", " : "", path, name, pid);
}

static int add_entry(struct search *s, int proc, const char *pid,
		     const struct match *m)
{
	struct buf path = BUF_INIT;
	int r;

	if (!m->file)
		return add_path(s, proc, pid, m->path);
	r = buf_printf(&path, "%s/%s", s->full, m->file->path);
	if (r == 0)
		r = add_path(s, proc, pid, path.data);
	buf_release(&path);
	return r;
}

/* --- By identity --- */

static int compare_inos(const void *key, const void *entry)
{
	const uint64_t *ino = key;
	const struct holders_file *file = entry;

	return *ino < file->ino ? -1 : *ino > file->ino;
}

static const struct holders_file *file_of_ino(const struct search *s,
					      uint64_t ino)
{
	if (!s->files || !s->files->count)
		return NULL;
	return bsearch(&ino, s->files->entries, s->files->count,
		       sizeof(s->files->entries[0]), compare_inos);
}

static const char *last_component(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* dev is that of the file at path, or 0 when nobody can tell. */
static bool is_same_file(const struct search *s,
			 const struct holders_file *file, dev_t dev,
			 const char *path)
{
	if (dev && s->files->dev)
		return dev == s->files->dev;
	return strcmp(last_component(path), last_component(file->path)) == 0;
}

/*
 * Reads a number of the kernel's that ends with after, and goes on behind it.
 */
static bool next_number(char **at, int base, char after, uint64_t *ret)
{
	char *end;
	unsigned long long n = strtoull(*at, &end, base);

	if (end == *at || *end != after)
		return false;
	*at = end + 1;
	*ret = n;
	return true;
}

/* --- Mappings --- */

/* The file of a line of maps, which is "FROM-TO rw-s OFFSET 08:01 INO PATH". */
static const struct holders_file *map_file(const struct search *s,
					   const char *line, const char *path)
{
	uint64_t offset, dev_major, dev_minor, ino;
	const struct holders_file *file;
	char *at = strchr(line, ' ');

	at = at ? strchr(at + 1, ' ') : NULL;
	if (!at || !next_number(&at, 16, ' ', &offset) ||
	    !next_number(&at, 16, ':', &dev_major) ||
	    !next_number(&at, 16, ' ', &dev_minor) ||
	    !next_number(&at, 10, ' ', &ino))
		return NULL;
	file = file_of_ino(s, ino);
	if (!file ||
	    !is_same_file(s, file,
			  makedev((unsigned)dev_major, (unsigned)dev_minor),
			  path))
		return NULL;
	return file;
}

/* Whether a line of maps is one of a file that counts. */
static bool map_matches(const struct search *s, char *line, struct match *ret)
{
	const char *access = strchr(line, ' '); /* " rw-s " */
	char *path = strchr(line, '/');

	if (!access || !path)
		return false;
	path[strcspn(path, "\n")] = '\0';
	if (s->writers_only &&
	    (strlen(access) < 5 || access[2] != 'w' || access[4] != 's'))
		return false;
	unmark(path);
	ret->path = path;
	ret->file = NULL;
	if (path_matches(s, path))
		return true;
	ret->file = map_file(s, line, path);
	return ret->file != NULL;
}

/* Returns 1 when the process maps such a file, 0 when not. */
static int search_maps(struct search *s, int proc, const char *pid)
{
	cleanup(file_close_cleanup) FILE *f = NULL;
	auto_free char *line = NULL;
	size_t cap = 0;
	int r = open_text(proc, "maps", &f);

	/* Processes end, and some may not be looked at. */
	if (r < 0)
		return r == -ENOMEM ? r : 0;
	while (!is_late(s) && getline(&line, &cap, f) > 0) {
		struct match m;

		if (map_matches(s, line, &m)) {
			r = add_entry(s, proc, pid, &m);
			return r < 0 ? r : 1;
		}
	}
	return 0;
}

/* --- Descriptors --- */

/*
 * Looks a mount up among those of the process: 0 when it isn't there, which is
 * so for a descriptor that came from another namespace.
 */
static dev_t read_mount_device(const struct search *s, int proc, uint64_t id)
{
	cleanup(file_close_cleanup) FILE *f = NULL;
	auto_free char *line = NULL;
	size_t cap = 0;

	if (open_text(proc, "mountinfo", &f) < 0)
		return 0;
	while (!is_late(s) && getline(&line, &cap, f) > 0) {
		uint64_t own, parent, dev_major, dev_minor;
		char *at = line;

		if (next_number(&at, 10, ' ', &own) && own == id &&
		    next_number(&at, 10, ' ', &parent) &&
		    next_number(&at, 10, ':', &dev_major) &&
		    next_number(&at, 10, ' ', &dev_minor))
			return makedev((unsigned)dev_major,
				       (unsigned)dev_minor);
	}
	return 0;
}

/* Numbers of mounts are the system's, so processes share what was found. */
static dev_t mount_device(struct search *s, int proc, uint64_t id)
{
	dev_t dev;

	for (unsigned i = 0; i < s->mount_count && i < MOUNTS_KEPT; i++)
		if (s->mounts[i].id == id)
			return s->mounts[i].dev;
	dev = read_mount_device(s, proc, id);
	/* Another process may know the mount that this one doesn't. */
	if (dev)
		s->mounts[s->mount_count++ % MOUNTS_KEPT] =
			(struct mount_device){ id, dev };
	return dev;
}

static bool fdinfo_number(char *text, const char *name, uint64_t *ret)
{
	char *at = strstr(text, name);

	if (!at)
		return false;
	at += strlen(name);
	return next_number(&at, 10, '\n', ret);
}

static const struct holders_file *fd_file(struct search *s, int proc,
					  const char *fd, const char *path)
{
	const struct holders_file *file;
	char text[FDINFO_BYTES];
	uint64_t ino, mount;
	auto_fd int info = -1;
	dev_t dev;
	ssize_t n;

	(void)snprintf(text, sizeof(text), "fdinfo/%s", fd);
	info = openat(proc, text, O_RDONLY | O_CLOEXEC);
	n = info < 0 ? -1 : read(info, text, sizeof(text) - 1);
	if (n < 0)
		return NULL;
	text[n] = '\0';
	if (!fdinfo_number(text, "\nino:", &ino) ||
	    !fdinfo_number(text, "\nmnt_id:", &mount))
		return NULL;
	file = file_of_ino(s, ino);
	if (!file)
		return NULL;
	dev = s->files->dev ? mount_device(s, proc, mount) : 0;
	return is_same_file(s, file, dev, path) ? file : NULL;
}

static bool fd_matches(struct search *s, int proc, int fds, const char *name,
		       char path[PATH_MAX], struct match *ret)
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
	unmark(path);
	ret->path = path;
	ret->file = NULL;
	if (path_matches(s, path))
		return true;
	/* Sockets and the like have no path. */
	if (!s->files || path[0] != '/')
		return false;
	ret->file = fd_file(s, proc, name, path);
	return ret->file != NULL;
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
		struct match m;

		if (fd_matches(s, proc, dirfd(dir), name, path, &m)) {
			int r = add_entry(s, proc, pid, &m);

			return r < 0 ? r : 1;
		}
	}
	return 0;
}

/* --- Processes --- */

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
		     bool writers_only, const struct holders_files *files,
		     struct buf *ret)
{
	struct buf full = BUF_INIT, out = BUF_INIT;
	struct search s = { .files = files,
			    .writers_only = writers_only,
			    .out = &out };
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
