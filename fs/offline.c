/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/offline.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/weight_store.h"

#define STANDARD "-"
/* A file on its way; it gets its name when it is complete. */
#define PART_SUFFIX ".part"
#define PROGRESS_MS 500

/* ---- What is told on the way ---- */

struct telling {
	uint64_t next_ms; /* when progress is told of next; 0: to nobody */
	bool told;
};

static void erase_progress(struct telling *t)
{
	if (t->told)
		(void)fprintf(stderr, "\r\033[K");
	t->told = false;
}

static void on_found(void *arg, const char *line)
{
	erase_progress(arg);
	(void)printf("%s\n", line);
}

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
	struct telling *t = arg;
	uint64_t now = clock_monotonic_ms();

	if (t->next_ms == 0 || now < t->next_ms)
		return;
	t->next_ms = now + PROGRESS_MS;
	t->told = true;
	(void)fprintf(stderr, "\r%" PRIu64 " of %" PRIu64 " revisions\033[K",
		      done, total);
}

static struct telling telling_begin(void)
{
	struct telling t = { .next_ms = 0 };

	if (isatty(STDERR_FILENO))
		t.next_ms = clock_monotonic_ms() + PROGRESS_MS;
	return t;
}

static void print_count(FILE *to, uint64_t n, const char *one, const char *many,
			const char *after)
{
	(void)fprintf(to, "%" PRIu64 " %s%s", n, n == 1 ? one : many, after);
}

static void print_summary(FILE *to, const char *did,
			  const struct weight_store_summary *s)
{
	(void)fprintf(to, "%s ", did);
	print_count(to, s->revisions, "revision", "revisions", ", ");
	print_count(to, s->leases, "lease", "leases", ", ");
	print_count(to, s->operations, "operation", "operations", ", ");
	print_count(to, s->lineages, "lineage", "lineages", "");
}

/* ---- Checking ---- */

static int check(const char *store, struct buf *why)
{
	struct telling telling = telling_begin();
	const struct weight_store_watch watch = { on_found, on_progress,
						  &telling };
	struct weight_store_summary s;
	int r = weight_store_check(store, &watch, &s, why);

	erase_progress(&telling);
	if (r < 0)
		return r;
	if (s.unreadable) {
		(void)printf("nothing else was checked\n");
		return OFFLINE_WRONG;
	}
	print_summary(stdout, "checked", &s);
	if (s.log_count > 0)
		(void)printf(", log entries %" PRIu64 " to %" PRIu64,
			     s.log_first, s.log_last);
	if (s.staged > 0)
		(void)printf(", %" PRIu64 " staged", s.staged);
	if (s.wrong == 0)
		(void)printf(": nothing is wrong\n");
	else
		(void)printf(": %" PRIu64 " %s wrong\n", s.wrong,
			     s.wrong == 1 ? "thing is" : "things are");
	return s.wrong ? OFFLINE_WRONG : 0;
}

/* ---- The file of an export ---- */

struct target {
	const char *file;
	char *part;
	int dirfd;
	int fd;
};

static void target_release(struct target *t)
{
	if (t->part)
		(void)unlink(t->part);
	free(t->part);
	if (t->dirfd >= 0)
		(void)close(t->dirfd);
	if (t->fd >= 0)
		(void)close(t->fd);
}

static int say(const char *what, const char *file, int r, struct buf *why)
{
	if (r == -EEXIST)
		(void)buf_printf(why,
				 "'%s' is there already, and is not "
				 "overwritten",
				 file);
	else
		(void)buf_printf(why, "%s '%s': %s", what, file,
				 strerrordesc_np(-r));
	return r;
}

static int open_parent(const char *file, int *ret)
{
	auto_free char *copy = strdup(file);

	if (!copy)
		return -ENOMEM;
	*ret = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return *ret < 0 ? -errno : 0;
}

/* Beside its place, for nobody else to read: it names all that there is. */
static int target_open(struct target *t)
{
	struct buf part = BUF_INIT;
	struct stat st;
	int r;

	if (lstat(t->file, &st) == 0)
		return -EEXIST;
	r = open_parent(t->file, &t->dirfd);
	if (r == 0)
		r = buf_printf(&part, "%s" PART_SUFFIX, t->file);
	if (r < 0)
		return r;
	/* What another one left that was killed. */
	(void)unlink(part.data);
	t->fd = open(part.data,
		     O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC,
		     0600);
	r = t->fd < 0 ? -errno : 0;
	if (r == 0)
		t->part = strdup(part.data);
	if (r == 0 && !t->part)
		r = -ENOMEM;
	buf_release(&part);
	return r;
}

/* Not where the filesystem can't: then it was looked for a moment ago. */
static int rename_new(const char *from, const char *to)
{
	if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	return rename(from, to) < 0 ? -errno : 0;
}

static int target_finish(struct target *t)
{
	int r;

	if (fsync(t->fd) < 0)
		return -errno;
	r = rename_new(t->part, t->file);
	if (r < 0)
		return r;
	free(take_ptr(t->part));
	return fsync(t->dirfd) < 0 ? -errno : 0;
}

static int export_to_file(const char *file, const char *store,
			  struct weight_store_summary *ret, struct buf *why)
{
	cleanup(target_release) struct target t = { .file = file,
						    .dirfd = -1,
						    .fd = -1 };
	int r = target_open(&t);

	if (r < 0)
		return say("making", file, r, why);
	r = weight_store_export(store, t.fd, ret, why);
	if (r < 0)
		return r;
	r = target_finish(&t);
	return r < 0 ? say("writing", file, r, why) : 0;
}

static int export(const char *file, const char *store, struct buf *why)
{
	struct weight_store_summary s;
	bool is_standard = strcmp(file, STANDARD) == 0;
	int r;

	if (is_standard && isatty(STDOUT_FILENO)) {
		(void)buf_printf(why, "a snapshot is not for a terminal");
		return -EINVAL;
	}
	r = is_standard ? weight_store_export(store, STDOUT_FILENO, &s, why) :
			  export_to_file(file, store, &s, why);
	if (r < 0)
		return r;
	print_summary(is_standard ? stderr : stdout, "exported", &s);
	(void)fprintf(is_standard ? stderr : stdout,
		      " as of log entry %" PRIu64 "\n", s.log_last);
	return 0;
}

/* ---- Importing ---- */

static int import(const char *file, const char *store, struct buf *why)
{
	const struct weight_store_watch watch = {
		.found = on_found, .arg = &(struct telling){ .told = false }
	};
	struct weight_store_summary s;
	auto_fd int fd = -1;
	int r;

	fd = strcmp(file, STANDARD) == 0 ? dup(STDIN_FILENO) :
					   open(file, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return say("opening", file, -errno, why);
	r = weight_store_import(store, fd, &watch, &s, why);
	if (r < 0)
		return r;
	print_summary(stdout, "imported", &s);
	(void)printf(" as of log entry %" PRIu64 "\n", s.log_last);
	if (s.missing > 0)
		(void)printf("%" PRIu64 " %s no payload here; put %s "
			     "back into groups/, weightfs --check says which\n",
			     s.missing, s.missing == 1 ? "has" : "have",
			     s.missing == 1 ? "it" : "them");
	if (s.aside > 0)
		(void)printf("%" PRIu64 " %s of groups/ %s not in the "
			     "snapshot and %s moved to aside/\n",
			     s.aside,
			     s.aside == 1 ? "directory" : "directories",
			     s.aside == 1 ? "is" : "are",
			     s.aside == 1 ? "was" : "were");
	return 0;
}

/* Everything was said, and all of it has arrived. */
static int finish_output(int r, struct buf *why)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return r;
	(void)buf_printf(why, "standard output: %s", strerror(errno));
	return -EIO;
}

int offline_run(enum offline_command command, const char *file,
		const char *store, struct buf *why)
{
	int r = -EINVAL;

	switch (command) {
	case OFFLINE_CHECK:
		r = check(store, why);
		break;
	case OFFLINE_EXPORT:
		r = export(file, store, why);
		break;
	case OFFLINE_IMPORT:
		r = import(file, store, why);
		break;
	case OFFLINE_NONE:
		break;
	}
	return r < 0 ? r : finish_output(r, why);
}
