/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that wait for what the mount does: wait, migrate, scrub, rm. */
#include "mount-helpers/weightctl_wait.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "core/cleanup.h"
#include "core/util.h"
#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_mount.h"
#include "mount-helpers/weightctl_operation.h"
#include "mount-helpers/weightctl_say.h"

#define WAIT_NAME "/.weights/wait"
/* What a wait that came to its end says last. */
#define READY "ready"
/* The mount gives whole lines, each far shorter. */
#define READ_BYTES 4096

/* ---- Reading wait ---- */

struct waiting {
	struct bar bar;
	wait_over_fn *over;
	void *arg;
	struct buf text; /* read, but not yet a whole line */
	struct buf last; /* the last line */
	bool enough;     /* over said so */
};

static int take_line(struct waiting *w, const char *line, size_t len)
{
	buf_release(&w->last);
	if (buf_append(&w->last, line, len) < 0)
		return -ENOMEM;
	w->enough = w->over && w->over(w->arg, &w->bar);
	if (!w->enough && strcmp(w->last.data, READY) != 0)
		bar_note(&w->bar, w->last.data);
	return 0;
}

/* Takes the lines out of what was read. */
static int take_lines(struct waiting *w)
{
	struct buf rest = BUF_INIT;
	const char *at = w->text.data;
	const char *end;
	int r = 0;

	while (r == 0 && !w->enough && (end = strchr(at, '\n')) != NULL) {
		r = take_line(w, at, (size_t)(end - at));
		at = end + 1;
	}
	if (r == 0)
		r = buf_append(&rest, at, strlen(at));
	buf_release(&w->text);
	w->text = rest;
	return r;
}

static int read_lines(struct waiting *w, int fd)
{
	char chunk[READ_BYTES];
	ssize_t n;
	int r;

	while (!w->enough) {
		n = read(fd, chunk, sizeof(chunk));
		if (ctl_interrupted())
			return -EINTR;
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : 0;
		r = buf_append(&w->text, chunk, (size_t)n);
		if (r == 0)
			r = take_lines(w);
		if (r < 0)
			return r;
	}
	return 0;
}

int wait_for(const char *dir, const char *title, bool quiet, wait_over_fn *over,
	     void *arg)
{
	struct waiting w = {
		.over = over, .arg = arg, .text = BUF_INIT, .last = BUF_INIT
	};
	struct buf path = BUF_INIT;
	auto_fd int fd = -1;
	bool ended;
	int r;

	bar_begin(&w.bar, title, quiet);
	r = buf_printf(&path, "%s" WAIT_NAME, dir);
	if (r == 0) {
		fd = open(path.data, O_RDONLY | O_CLOEXEC);
		r = fd < 0 ? -errno : read_lines(&w, fd);
	}
	ended = r == 0 && (w.enough || strcmp(w.last.data, READY) == 0);
	bar_end(&w.bar, ended);
	if (r < 0 && r != -EINTR) {
		say_refusal(r, dir, "waiting");
	} else if (r == 0 && !ended) {
		say_note(dir, "%s",
			 w.last.len > 0 ? w.last.data : "the wait broke off");
		r = -EAGAIN;
	}
	buf_release(&path);
	buf_release(&w.text);
	buf_release(&w.last);
	return r;
}

int wait_sentence(const char *dir, struct buf *ret)
{
	struct waiting w = { .text = BUF_INIT, .last = BUF_INIT };
	struct buf path = BUF_INIT;
	auto_fd int fd = -1;
	int r;

	bar_begin(&w.bar, "", true);
	r = buf_printf(&path, "%s" WAIT_NAME, dir);
	if (r == 0) {
		fd = open(path.data, O_RDONLY | O_CLOEXEC);
		r = fd < 0 ? -errno : read_lines(&w, fd);
	}
	bar_end(&w.bar, true);
	if (r == 0 && w.last.len > 0 && strcmp(w.last.data, READY) != 0)
		r = buf_append(ret, w.last.data, w.last.len) < 0 ? -ENOMEM : 1;
	buf_release(&path);
	buf_release(&w.text);
	buf_release(&w.last);
	return r;
}

int wait_left(int err, const char *path, const char *what)
{
	if (err == -EINTR)
		say_note(path, "interrupted; %s", what);
	return err;
}

void wait_pause(unsigned ms)
{
	const struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };

	(void)nanosleep(&t, NULL);
}

/* ---- Moves ---- */

struct migration {
	const char *dir;
	char *root; /* of the mount; NULL when it is not seen */
	uint64_t id;
};

/* Shows the operation's own numbers, and ends the wait with it. */
static bool follow_operation(void *arg, struct bar *bar)
{
	struct migration *m = arg;
	struct operation_state state;
	uint64_t id;

	if (attr_read_u64(m->dir, "operation", &id) < 0 || id != m->id)
		return true;
	if (m->root && operation_state(m->root, m->id, &state) == 0 &&
	    state.total_bytes > 0)
		bar_bytes(bar, state.processed_bytes, state.total_bytes);
	return false;
}

int wait_move(const struct ctl *ctl, const char *dir, const char *target,
	      uint64_t id)
{
	struct migration m = { .dir = dir, .id = id };
	char title[32];
	int r;

	(void)mount_root(dir, &m.root);
	(void)snprintf(title, sizeof(title), "moving to %s", target);
	r = wait_for(dir, title, ctl->options & CTL_QUIET, follow_operation,
		     &m);
	free(m.root);
	return r;
}

static bool is_at(const char *dir, const char *target)
{
	struct buf residency = BUF_INIT;
	bool same = attr_read(dir, "residency", &residency) == 0 &&
		    strcasecmp(residency.data, target) == 0;

	buf_release(&residency);
	return same;
}

/* Why the operation did not come to its end: its own word, if it has one. */
int wait_check_move(const char *dir, const char *target, uint64_t id)
{
	auto_free char *root = NULL;
	struct buf message = BUF_INIT;

	if (is_at(dir, target))
		return 0;
	if (mount_root(dir, &root) == 0)
		(void)operation_message(root, id, &message);
	if (message.len > 0)
		say_note(dir, "%s", message.data);
	else
		say_refusal(-EAGAIN, dir, "it did not get there");
	buf_release(&message);
	return -EAGAIN;
}

/* ---- Over all arguments ---- */

typedef int path_fn(const struct ctl *ctl, const char *path);

static int each_path(const struct ctl *ctl, path_fn *fn)
{
	int status = CTL_OK;
	int r = 0;

	for (int i = 0; i < ctl->argc && r != -EINTR; i++) {
		r = fn(ctl, ctl->argv[i]);
		if (r < 0)
			status = CTL_REFUSED;
	}
	return status;
}

/* ---- wait ---- */

/* The revision that path is in, or what else has a wait: the mount itself. */
static int waitable(const char *path, char **ret)
{
	auto_free char *real = NULL;
	auto_free char *root = NULL;
	int r = mount_resolve(path, &real);

	if (r < 0)
		return r;
	r = mount_root(real, &root);
	if (r == 0 && strcmp(root, real) == 0) {
		*ret = take_ptr(real);
		return 0;
	}
	return mount_revision(path, true, ret);
}

static int wait_path(const struct ctl *ctl, const char *path)
{
	auto_free char *dir = NULL;
	int r = waitable(path, &dir);

	if (r < 0)
		return r;
	r = wait_for(dir, "waiting", ctl->options & CTL_QUIET, NULL, NULL);
	return wait_left(r, path, "what is pending goes on");
}

int ctl_wait(const struct ctl *ctl)
{
	return each_path(ctl, wait_path);
}

/* ---- migrate ---- */

static int migration_report(const struct ctl *ctl, const char *dir, uint64_t id)
{
	static const char *const names[] = { "residency", "hot_ratio",
					     "pinned_bytes", NULL };
	struct facts f = FACTS_INIT;
	struct buf residency = BUF_INIT;
	int r = 0;

	if (ctl->options & CTL_JSON) {
		facts_text(&f, "path", dir);
		facts_attrs(&f, dir, names);
		if (id > 0)
			facts_u64(&f, "operation", id);
		return facts_print(&f);
	}
	r = attr_read(dir, "residency", &residency);
	if (r < 0) {
		say_refusal(r, dir, "residency");
	} else {
		say_plain(stdout, dir);
		(void)printf(": %s", residency.data);
		if (id > 0)
			(void)printf(", operation %llu",
				     (unsigned long long)id);
		(void)putchar('\n');
	}
	buf_release(&residency);
	return r;
}

/* "cold", or with the fence "cold,if=4". */
static int with_fence(const struct ctl *ctl, const char *value, struct buf *ret)
{
	return ctl->fence ? buf_printf(ret, "%s,if=%s", value, ctl->fence) :
			    buf_printf(ret, "%s", value);
}

static int migrate(const struct ctl *ctl, const char *path, const char *target)
{
	auto_free char *dir = NULL;
	struct buf value = BUF_INIT;
	bool waits = !(ctl->options & CTL_NO_WAIT);
	uint64_t id = 0;
	int r = mount_revision(path, false, &dir);

	if (r == 0)
		r = with_fence(ctl, target, &value);
	if (r == 0)
		r = attr_write(dir, "residency", value.data);
	buf_release(&value);
	if (r < 0)
		return r;
	if (attr_read_u64(dir, "operation", &id) < 0)
		id = 0;
	if (waits && id > 0)
		r = wait_move(ctl, dir, target, id);
	if (r < 0)
		return wait_left(r, path, "the operation goes on");
	r = migration_report(ctl, dir, id);
	if (r == 0 && waits)
		r = wait_check_move(dir, target, id);
	return r;
}

int ctl_migrate(const struct ctl *ctl)
{
	static const char *const targets[] = { "hot", "cold" };

	for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
		if (strcmp(ctl->argv[1], targets[i]) != 0)
			continue;
		return migrate(ctl, ctl->argv[0], targets[i]) < 0 ?
			       CTL_REFUSED :
			       CTL_OK;
	}
	say_note(ctl->argv[1], "a revision is moved to hot or cold");
	return CTL_USAGE;
}

/* ---- scrub ---- */

static int scrub_report(const struct ctl *ctl, const char *dir)
{
	static const char *const names[] = { "scrub", "availability", "error",
					     NULL };
	struct facts f = FACTS_INIT;
	struct buf said = BUF_INIT;
	int r;

	if (ctl->options & CTL_JSON) {
		facts_text(&f, "path", dir);
		facts_attrs(&f, dir, names);
		return facts_print(&f);
	}
	r = attr_read(dir, "scrub", &said);
	if (r < 0) {
		say_refusal(r, dir, "scrub");
	} else {
		say_plain(stdout, dir);
		(void)fputs(": ", stdout);
		say_plain(stdout, said.data);
		(void)putchar('\n');
	}
	buf_release(&said);
	return r;
}

/* An operation that lacks memory is none of a scrub's business. */
static bool scrub_is_over(void *arg, struct bar *bar)
{
	static const char running[] = "running";
	struct buf said = BUF_INIT;
	bool over;

	(void)bar;
	over = attr_read(arg, "scrub", &said) == 0 &&
	       strncmp(said.data, running, strlen(running)) != 0;
	buf_release(&said);
	return over;
}

static int scrub_path(const struct ctl *ctl, const char *path)
{
	auto_free char *dir = NULL;
	int r = mount_revision(path, false, &dir);

	if (r == 0)
		r = attr_write(dir, "scrub", "1");
	if (r < 0 || ctl->options & CTL_NO_WAIT)
		return r;
	r = wait_for(dir, "scrubbing", ctl->options & CTL_QUIET, scrub_is_over,
		     dir);
	if (r < 0)
		return wait_left(r, path, "the scrub goes on");
	r = scrub_report(ctl, dir);
	return r < 0 ? r : wait_check_whole(dir);
}

int wait_check_whole(const char *dir)
{
	struct buf availability = BUF_INIT;
	int r = attr_read(dir, "availability", &availability);

	if (r < 0)
		say_refusal(r, dir, "availability");
	else if (strcasecmp(availability.data, "ready") != 0)
		r = say_refused(-EIO, dir, availability.data);
	buf_release(&availability);
	return r;
}

int ctl_scrub(const struct ctl *ctl)
{
	return each_path(ctl, scrub_path);
}

/* ---- rm ---- */

/*
 * The number has to be in the path as it was given: what a symlink such as
 * serving points to is not removed by that name.
 */
static int rm_path(const struct ctl *ctl, const char *path)
{
	auto_free char *copy = strdup(path);
	auto_free char *dir = NULL;
	struct buf value = BUF_INIT;
	uint64_t generation = 0;
	char *end;
	int r;

	if (!copy)
		return say_failed(-ENOMEM, path, "remove");
	end = copy + strlen(copy);
	while (end > copy + 1 && end[-1] == '/')
		*--end = '\0';
	r = path_generation(copy, &generation);
	if (r < 0) {
		say_note(path, "name the generation itself, by its number");
		return r;
	}
	r = mount_resolve(copy, &dir);
	if (r == 0 && !attr_is_there(dir, "availability")) {
		say_note(path, "this is not a published revision; an import is "
			       "given up with rm -r");
		r = -EINVAL;
	}
	if (r < 0)
		return r;
	(void)buf_printf(&value, "%llu", (unsigned long long)generation);
	if (ctl->fence)
		(void)buf_printf(&value, ",if=%s", ctl->fence);
	r = attr_write(dir, "remove", value.data);
	buf_release(&value);
	return r;
}

int ctl_rm(const struct ctl *ctl)
{
	return each_path(ctl, rm_path);
}
