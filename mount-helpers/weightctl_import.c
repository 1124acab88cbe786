/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-helpers/weightctl_import.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/clock.h"
#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_bar.h"
#include "mount-helpers/weightctl_mount.h"
#include "mount-helpers/weightctl_wait.h"

/* A rename that was too early or met a last writer is tried again. */
#define RENAMES_MAX 10
#define RENAME_PAUSE_MS 500

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
static int parse_target(struct import *im, const char *path)
{
	char *slash;
	int r;

	im->lineage = strdup(path);
	if (!im->lineage)
		return say_failed(-ENOMEM, path, "importing");
	while ((slash = strrchr(im->lineage, '/')) && slash[1] == '\0' &&
	       slash > im->lineage)
		*slash = '\0';
	r = path_generation(im->lineage, &im->generation);
	if (r < 0) {
		say_note(path, "its last part must be a generation, a number "
			       "from 1 on");
		return r;
	}
	if (slash == im->lineage) {
		say_note(path, "a generation is in a lineage");
		return -EINVAL;
	}
	if (slash)
		*slash = '\0';
	else
		(void)snprintf(im->lineage, 2, ".");
	if ((r = join(im->lineage, "/.staging", im->generation, &im->stage)) <
		    0 ||
	    (r = join(im->lineage, "", im->generation, &im->target)) < 0)
		return say_failed(r, path, "importing");
	return 0;
}

int import_init(struct import *ret, const struct ctl *ctl, const char *source,
		const char *target)
{
	*ret = (struct import){ .ctl = ctl,
				.source = source,
				.began_ms = clock_monotonic_ms() };
	return parse_target(ret, target);
}

void import_release(struct import *im)
{
	free(im->lineage);
	free(im->stage);
	free(im->target);
}

int import_count(struct import *im)
{
	return copy_count(im->source, im->ctl->options & CTL_FOLLOW,
			  &im->totals);
}

/* Nothing is made where no weightfs is: the nearest thing there must be one. */
static int check_place(const char *lineage)
{
	auto_free char *path = strdup(lineage);
	auto_free char *real = NULL;
	struct stat st;
	char *slash;

	if (!path)
		return say_failed(-ENOMEM, lineage, "importing");
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
		return say_failed(-ENOMEM, lineage, "importing");
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
static int stage_refused(const struct import *im, int err)
{
	auto_free char *staging = strdup(im->stage);

	if (err == -EEXIST && access(im->stage, F_OK) == 0)
		say_note(im->stage,
			 "an import of this generation is there "
			 "already; end it, or give it up with rm -r");
	else if (err == -ENOENT && staging &&
		 access(dirname(staging), F_OK) < 0)
		say_note(im->lineage,
			 "this is no lineage, which is a directory "
			 "TENANT/NAMESPACE/RESOURCE/REVISION of the mount");
	else
		say_refusal(err, im->lineage,
			    im->stage + strlen(im->lineage) + 1);
	return err;
}

/* A tree that holds the place where it goes would be copied into itself. */
static int check_apart(const struct import *im)
{
	auto_free char *source = realpath(im->source, NULL);
	auto_free char *stage = realpath(im->stage, NULL);
	size_t n = source ? strlen(source) : 0;

	if (!stage || n == 0 || strncmp(stage, source, n) != 0 ||
	    (stage[n] != '/' && n > 1))
		return 0;
	say_note(im->source, "it can't be copied into itself");
	return -EINVAL;
}

int import_stage(struct import *im)
{
	int r = check_place(im->lineage);

	if (r == 0)
		r = make_lineage(im->lineage);
	if (r < 0)
		return r;
	if (mkdir(im->stage, 0777) < 0)
		return stage_refused(im, -errno);
	im->staged = true;
	return check_apart(im);
}

int import_take(struct import *im)
{
	int r = check_apart(im);

	im->staged = r == 0;
	return r;
}

/* ---- Copying and publishing ---- */

int import_empty(struct import *im)
{
	int r = copy_empty(im->stage);

	return r < 0 ? say_refused(r, im->stage, "removing what is there") : 0;
}

int import_copy(struct import *im)
{
	bool follow = im->ctl->options & CTL_FOLLOW;
	struct bar bar;
	int r;

	bar_begin(&bar, "copying", im->ctl->options & CTL_QUIET);
	r = copy_tree(im->source, im->stage, follow, &im->totals, &bar);
	bar_end(&bar, r == 0);
	im->copied = r == 0;
	return r;
}

int import_publish(struct import *im)
{
	bool quiet = im->ctl->options & CTL_QUIET;
	int r = 0;

	for (unsigned i = 0; i < RENAMES_MAX; i++) {
		r = wait_for(im->stage, "waiting", quiet, NULL, NULL);
		if (r < 0)
			return r;
		r = renameat2(AT_FDCWD, im->stage, AT_FDCWD, im->target,
			      RENAME_NOREPLACE) < 0 ?
			    -errno :
			    0;
		if (r != -EAGAIN && r != -EBUSY)
			break;
		if (ctl_interrupted())
			return -EINTR;
		wait_pause(RENAME_PAUSE_MS);
	}
	if (r < 0 && r != -EINTR)
		say_refusal(r, im->stage, "publishing");
	return r;
}

void import_give_up(struct import *im)
{
	int r;

	if (!im->staged)
		return;
	if (im->ctl->options & CTL_KEEP) {
		say_note(im->stage, "what was copied stays there");
		return;
	}
	r = copy_remove(im->stage);
	if (r < 0)
		say_refusal(r, im->stage, "removing what was copied");
}

/* ---- What is said at the end ---- */

void import_facts(const struct import *im, struct facts *f)
{
	static const char *const names[] = { "availability", "residency",
					     "durable", NULL };

	facts_text(f, "path", im->target);
	facts_u64(f, "generation", im->generation);
	if (im->copied) {
		facts_u64(f, "files", im->totals.files);
		facts_u64(f, "bytes", im->totals.bytes);
	}
	facts_u64(f, "duration_ms", clock_monotonic_ms() - im->began_ms);
	facts_attrs(f, im->target, names);
}

void import_print(const struct import *im)
{
	struct buf residency = BUF_INIT;
	char size[SAY_SIZE_MAX];

	(void)attr_read(im->target, "residency", &residency);
	say_size(im->totals.bytes, size);
	say_plain(stdout, im->target);
	(void)fputs(": published", stdout);
	if (im->copied)
		(void)printf(", %llu files, %s",
			     (unsigned long long)im->totals.files, size);
	(void)printf(", %s, %s", residency.data,
		     revision_is_durable(im->target) ? "durable" :
						       "not durable yet");
	buf_release(&residency);
}
