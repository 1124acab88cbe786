/* SPDX-License-Identifier: Apache-2.0 */
/* The command policy: where a revision is wanted, and who may move it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cleanup.h"
#include "core/parse.h"
#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_mount.h"
#include "mount-helpers/weightctl_say.h"
#include "mount-helpers/weightctl_wait.h"

struct policy {
	const struct ctl *ctl;
	char *dir;
	char *now;       /* the value of the attribute */
	char *preferred; /* pieces of it */
	char *mode;
	char *ratio;
	uint64_t operation; /* the one that runs, or 0 */
};

static void policy_release(struct policy *p)
{
	free(p->dir);
	free(p->now);
	free(p->preferred);
	free(p->mode);
	free(p->ratio);
}

/* ---- Reading it ---- */

/* Copies what stands behind "KEY=" in a list of pieces. */
static int piece(const char *list, const char *key, char **ret)
{
	size_t len = strlen(key);
	const char *at = list;

	while (at && (strncmp(at, key, len) != 0 || at[len] != '=')) {
		at = strchr(at, ',');
		at = at ? at + 1 : NULL;
	}
	if (!at)
		return -EBADMSG;
	at += len + 1;
	*ret = strndup(at, strcspn(at, ","));
	return *ret ? 0 : -ENOMEM;
}

static int policy_read(struct policy *p)
{
	struct buf value = BUF_INIT;
	int r = attr_read(p->dir, "policy", &value);

	if (r == 0 &&
	    ((r = piece(value.data, "preferred", &p->preferred)) < 0 ||
	     (r = piece(value.data, "ratio", &p->ratio)) < 0 ||
	     (r = piece(value.data, "mode", &p->mode)) < 0))
		buf_release(&value);
	if (r < 0)
		return say_refused(r, p->dir, "policy");
	p->now = value.data;
	if (attr_read_u64(p->dir, "operation", &p->operation) < 0)
		p->operation = 0;
	return 0;
}

/* ---- Changing it ---- */

/* Settings may be one argument or several. */
static int policy_write(const struct policy *p)
{
	const struct ctl *ctl = p->ctl;
	struct buf value = BUF_INIT;
	int r = 0;

	for (int i = 1; i < ctl->argc && r == 0; i++)
		r = buf_printf(&value, "%s%s", i > 1 ? "," : "", ctl->argv[i]);
	if (r == 0 && ctl->fence)
		r = buf_printf(&value, ",if=%s", ctl->fence);
	r = r < 0 ? say_failed(r, p->dir, "policy") :
		    attr_write(p->dir, "policy", value.data);
	buf_release(&value);
	return r;
}

/* Only in this mode does it begin to move by itself. */
static bool moves_by_itself(const struct policy *p)
{
	return p->operation > 0 && strcmp(p->mode, "auto") == 0;
}

/* ---- What is said of it ---- */

static int policy_facts(const struct policy *p)
{
	static const char *const names[] = { "residency", "metadata_generation",
					     NULL };
	struct facts f = FACTS_INIT;
	double ratio;

	facts_text(&f, "path", p->dir);
	facts_text(&f, "preferred", p->preferred);
	if (parse_ratio(p->ratio, &ratio) == 0)
		facts_raw(&f, "ratio", p->ratio);
	facts_text(&f, "mode", p->mode);
	facts_attrs(&f, p->dir, names);
	if (p->operation > 0)
		facts_u64(&f, "operation", p->operation);
	return facts_print(&f);
}

/* What became of a change. Nothing moves what is only staged. */
static void print_outcome(const struct policy *p)
{
	struct buf residency = BUF_INIT;

	if (!attr_is_there(p->dir, "availability"))
		return;
	(void)fputs("; ", stdout);
	if (p->ctl->options & CTL_WAIT &&
	    attr_read(p->dir, "residency", &residency) == 0)
		(void)printf("%s, ", residency.data);
	if (p->operation > 0)
		(void)printf("operation %llu",
			     (unsigned long long)p->operation);
	else
		(void)fputs("no operation runs", stdout);
	buf_release(&residency);
}

static int policy_report(const struct policy *p)
{
	if (p->ctl->options & CTL_JSON)
		return policy_facts(p);
	say_plain(stdout, p->dir);
	(void)fputs(": ", stdout);
	say_plain(stdout, p->now);
	if (p->ctl->argc > 1)
		print_outcome(p);
	(void)putchar('\n');
	return 0;
}

/* ---- The whole ---- */

static int policy(struct policy *p)
{
	const char *path = p->ctl->argv[0];
	bool waits;
	int r;

	if ((r = mount_revision(path, true, &p->dir)) < 0 ||
	    (p->ctl->argc > 1 && (r = policy_write(p)) < 0) ||
	    (r = policy_read(p)) < 0)
		return r;
	waits = p->ctl->options & CTL_WAIT && moves_by_itself(p);
	if (waits)
		r = wait_move(p->ctl, p->dir, p->preferred, p->operation);
	if (r < 0)
		return wait_left(r, path, "the operation goes on");
	r = policy_report(p);
	if (r == 0 && waits)
		r = wait_check_move(p->dir, p->preferred, p->operation);
	return r;
}

int ctl_policy(const struct ctl *ctl)
{
	struct policy p = { .ctl = ctl };
	int r;

	if (ctl->argc == 1 && ctl->options & (CTL_IF | CTL_WAIT)) {
		say_note(ctl->argv[0], "there is nothing to be set, such as "
				       "preferred=cold");
		return CTL_USAGE;
	}
	r = policy(&p);
	policy_release(&p);
	return r < 0 ? CTL_REFUSED : CTL_OK;
}
