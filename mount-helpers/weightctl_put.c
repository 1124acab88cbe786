/* SPDX-License-Identifier: Apache-2.0 */
/* The command put: a tree of files becomes a revision. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/clock.h"
#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_bar.h"
#include "mount-helpers/weightctl_copy.h"
#include "mount-helpers/weightctl_mount.h"
#include "mount-helpers/weightctl_say.h"
#include "mount-helpers/weightctl_wait.h"

/* A rename that was too early or met a last writer is tried again. */
#define RENAMES_MAX 10
#define RENAME_PAUSE_MS 500

struct put {
	const struct ctl *ctl;
	const char *source;
	char *lineage;
	char *stage;  /* LINEAGE/.staging/GENERATION */
	char *target; /* LINEAGE/GENERATION */
	uint64_t generation;
	struct copy_totals totals;
	uint64_t began_ms;
	bool staged; /* the staging directory is ours */
};

static void put_release(struct put *p)
{
	free(p->lineage);
	free(p->stage);
	free(p->target);
}

/* ---- Where it goes ---- */

static int join(const char *dir, const char *middle, uint64_t generation,
		char **ret)
{
	struct buf path = BUF_INIT;
	int r = buf_printf(&path, "%s%s/%llu", dir, middle,
			   (unsigned long long)generation);

	if (r == 0)
		*ret = path.data;
	return r;
}

/* Takes LINEAGE/GENERATION apart. */
static int parse_target(struct put *p, const char *path)
{
	char *slash;
	int r;

	p->lineage = strdup(path);
	if (!p->lineage)
		return say_failed(-ENOMEM, path, "put");
	while ((slash = strrchr(p->lineage, '/')) && slash[1] == '\0' &&
	       slash > p->lineage)
		*slash = '\0';
	r = path_generation(p->lineage, &p->generation);
	if (r < 0) {
		say_note(path, "its last part must be a generation, a number "
			       "from 1 on");
		return r;
	}
	if (slash == p->lineage) {
		say_note(path, "a generation is in a lineage");
		return -EINVAL;
	}
	if (slash)
		*slash = '\0';
	else
		(void)snprintf(p->lineage, 2, ".");
	if ((r = join(p->lineage, "/.staging", p->generation, &p->stage)) < 0 ||
	    (r = join(p->lineage, "", p->generation, &p->target)) < 0)
		return say_failed(r, path, "put");
	return 0;
}

/* Nothing is made where no weightfs is: the nearest thing there must be one. */
static int check_place(const char *lineage)
{
	auto_free char *path = strdup(lineage);
	auto_free char *real = NULL;
	struct stat st;
	char *slash;

	if (!path)
		return say_failed(-ENOMEM, lineage, "put");
	while (stat(path, &st) < 0 && errno == ENOENT) {
		slash = strrchr(path, '/');
		if (slash == path)
			slash++;
		if (slash)
			*slash = '\0';
		else
			(void)snprintf(path, 2, ".");
	}
	return mount_resolve(path, &real);
}

/* A refusal's sentence is with the directory above. */
static int make_dir(const char *path)
{
	auto_free char *copy = strdup(path);
	int err = mkdir(path, 0777) < 0 ? -errno : 0;

	/* What is there may answer EROFS or EACCES as well. */
	if (err == 0 || access(path, F_OK) == 0)
		return 0;
	return say_refused(err, copy ? dirname(copy) : path, path);
}

/* mkdir -p. */
static int make_lineage(const char *lineage)
{
	auto_free char *path = strdup(lineage);
	int r = 0;

	if (!path)
		return say_failed(-ENOMEM, lineage, "put");
	for (char *s = strchr(path + 1, '/'); s; s = strchr(s + 1, '/')) {
		*s = '\0';
		r = make_dir(path);
		*s = '/';
		if (r < 0)
			return r;
	}
	return make_dir(path);
}

/*
 * What the kernel refuses by itself has no sentence: what the lineage keeps
 * would be that of another request.
 */
static int stage_refused(const struct put *p, int err)
{
	auto_free char *staging = strdup(p->stage);

	if (err == -EEXIST && access(p->stage, F_OK) == 0)
		say_note(p->stage, "an import of this generation is there "
				   "already; end it, or give it up with rm -r");
	else if (err == -ENOENT && staging &&
		 access(dirname(staging), F_OK) < 0)
		say_note(p->lineage,
			 "this is no lineage, which is a directory "
			 "TENANT/NAMESPACE/RESOURCE/REVISION of the mount");
	else
		say_refusal(err, p->lineage, p->stage + strlen(p->lineage) + 1);
	return err;
}

/* A tree that holds the place where it goes would be copied into itself. */
static int check_apart(const struct put *p)
{
	auto_free char *source = realpath(p->source, NULL);
	auto_free char *stage = realpath(p->stage, NULL);
	size_t n = source ? strlen(source) : 0;

	if (!stage || n == 0 || strncmp(stage, source, n) != 0 ||
	    (stage[n] != '/' && n > 1))
		return 0;
	say_note(p->source, "it can't be copied into itself");
	return -EINVAL;
}

static int make_stage(struct put *p)
{
	int r = check_place(p->lineage);

	if (r == 0)
		r = make_lineage(p->lineage);
	if (r < 0)
		return r;
	if (mkdir(p->stage, 0777) < 0)
		return stage_refused(p, -errno);
	p->staged = true;
	return 0;
}

/* ---- Publishing ---- */

static void pause_ms(unsigned ms)
{
	const struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };

	(void)nanosleep(&t, NULL);
}

static int publish(struct put *p)
{
	bool quiet = p->ctl->options & CTL_QUIET;
	int r = 0;

	for (unsigned i = 0; i < RENAMES_MAX; i++) {
		r = wait_for(p->stage, "waiting", quiet, NULL, NULL);
		if (r < 0)
			return r;
		r = renameat2(AT_FDCWD, p->stage, AT_FDCWD, p->target,
			      RENAME_NOREPLACE) < 0 ?
			    -errno :
			    0;
		if (r != -EAGAIN && r != -EBUSY)
			break;
		if (ctl_interrupted())
			return -EINTR;
		pause_ms(RENAME_PAUSE_MS);
	}
	if (r < 0 && r != -EINTR)
		say_refusal(r, p->stage, "publishing");
	return r;
}

static int copy(struct put *p)
{
	bool follow = p->ctl->options & CTL_FOLLOW;
	struct bar bar;
	int r;

	bar_begin(&bar, "copying", p->ctl->options & CTL_QUIET);
	r = copy_tree(p->source, p->stage, follow, &p->totals, &bar);
	bar_end(&bar, r == 0);
	return r;
}

/* ---- What is said at the end ---- */

static int report_facts(struct put *p)
{
	static const char *const names[] = { "availability", "residency",
					     "durable", NULL };
	struct facts f = FACTS_INIT;

	facts_text(&f, "path", p->target);
	facts_u64(&f, "generation", p->generation);
	facts_u64(&f, "files", p->totals.files);
	facts_u64(&f, "bytes", p->totals.bytes);
	facts_u64(&f, "duration_ms", clock_monotonic_ms() - p->began_ms);
	facts_attrs(&f, p->target, names);
	return facts_print(&f);
}

static int report(struct put *p)
{
	struct buf residency = BUF_INIT;
	struct buf durable = BUF_INIT;
	char size[SAY_SIZE_MAX];

	if (p->ctl->options & CTL_JSON)
		return report_facts(p);
	(void)attr_read(p->target, "residency", &residency);
	(void)attr_read(p->target, "durable", &durable);
	say_size(p->totals.bytes, size);
	say_plain(stdout, p->target);
	(void)printf(": published, %llu files, %s, %s, %s\n",
		     (unsigned long long)p->totals.files, size, residency.data,
		     strcmp(durable.data, "yes") == 0 ? "durable" :
							"not durable yet");
	buf_release(&residency);
	buf_release(&durable);
	return 0;
}

/* What was staged goes, unless it is to be kept. */
static void give_up(struct put *p, int err)
{
	int r;

	if (err == -EINTR)
		say_note(p->target, "interrupted; nothing was published");
	if (!p->staged)
		return;
	if (p->ctl->options & CTL_KEEP) {
		say_note(p->stage, "what was copied stays there");
		return;
	}
	r = copy_remove(p->stage);
	if (r < 0)
		say_refusal(r, p->stage, "removing what was copied");
}

/* What else may be pending, such as a move that lacks memory, goes on. */
static bool is_durable(void *arg, struct bar *bar)
{
	struct buf said = BUF_INIT;
	bool durable;

	(void)bar;
	durable = attr_read(arg, "durable", &said) == 0 &&
		  strcmp(said.data, "yes") == 0;
	buf_release(&said);
	return durable;
}

static int wait_durable(struct put *p)
{
	bool quiet = p->ctl->options & CTL_QUIET;
	int r = wait_left(
		wait_for(p->target, "waiting", quiet, is_durable, p->target),
		p->target, "it is published, and what is pending goes on");

	if (r < 0 || is_durable(p->target, NULL))
		return r;
	say_note(p->target, "it is published, and nothing makes it durable on "
			    "this mount");
	return -EOPNOTSUPP;
}

static int put(struct put *p, const char *target)
{
	bool follow = p->ctl->options & CTL_FOLLOW;
	int r;

	if ((r = parse_target(p, target)) < 0)
		return r;
	if ((r = copy_count(p->source, follow, &p->totals)) < 0 ||
	    (r = make_stage(p)) < 0 || (r = check_apart(p)) < 0 ||
	    (r = copy(p)) < 0 || (r = publish(p)) < 0) {
		give_up(p, r);
		return r;
	}
	if (p->ctl->options & CTL_DURABLE)
		r = wait_durable(p);
	return r < 0 ? r : report(p);
}

int ctl_put(const struct ctl *ctl)
{
	struct put p = { .ctl = ctl,
			 .source = ctl->argv[0],
			 .began_ms = clock_monotonic_ms() };
	int r = put(&p, ctl->argv[1]);

	put_release(&p);
	return r < 0 ? CTL_REFUSED : CTL_OK;
}
