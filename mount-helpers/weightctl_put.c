/* SPDX-License-Identifier: Apache-2.0 */
/* The command put: a tree of files becomes a revision. */
#include <errno.h>
#include <stdio.h>

#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_import.h"
#include "mount-helpers/weightctl_mount.h"
#include "mount-helpers/weightctl_say.h"
#include "mount-helpers/weightctl_wait.h"

static int report(const struct import *im)
{
	struct facts f = FACTS_INIT;

	if (im->ctl->options & CTL_JSON) {
		import_facts(im, &f);
		return facts_print(&f);
	}
	import_print(im);
	(void)putchar('\n');
	return 0;
}

/* What else may be pending, such as a move that lacks memory, goes on. */
static bool is_durable(void *arg, struct bar *bar)
{
	(void)bar;
	return revision_is_durable(arg);
}

static int wait_durable(struct import *im)
{
	bool quiet = im->ctl->options & CTL_QUIET;
	int r = wait_left(
		wait_for(im->target, "waiting", quiet, is_durable, im->target),
		im->target, "it is published, and what is pending goes on");

	if (r < 0 || revision_is_durable(im->target))
		return r;
	say_note(im->target, "it is published, and nothing makes it durable on "
			     "this mount");
	return -EOPNOTSUPP;
}

static int put(struct import *im)
{
	int r;

	if ((r = import_count(im)) < 0 || (r = import_stage(im)) < 0 ||
	    (r = import_copy(im)) < 0 || (r = import_publish(im)) < 0) {
		if (r == -EINTR)
			say_note(im->target,
				 "interrupted; nothing was published");
		import_give_up(im);
		return r;
	}
	if (im->ctl->options & CTL_DURABLE)
		r = wait_durable(im);
	return r < 0 ? r : report(im);
}

int ctl_put(const struct ctl *ctl)
{
	struct import im;
	int r = import_init(&im, ctl, ctl->argv[0], ctl->argv[1]);

	if (r == 0)
		r = put(&im);
	import_release(&im);
	return r < 0 ? CTL_REFUSED : CTL_OK;
}
