/* SPDX-License-Identifier: Apache-2.0 */
/* The command leases: which revisions are in use. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/cleanup.h"
#include "core/parse.h"
#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_mount.h"
#include "mount-helpers/weightctl_say.h"

/* A line of .weights/leases, cut into its pieces. */
struct lease {
	uint64_t id;
	const char *revision; /* below the mount point */
	const char *holder;
	uint64_t expires_at_ms;
};

/*
 * Cuts "ID TENANT/NAMESPACE/RESOURCE/REVISION/GENERATION HOLDER
 * expires_at_ms=N". Parts and holders may hold blanks, but a part no slash.
 */
static int lease_parse(char *line, struct lease *ret)
{
	static const char expires[] = " expires_at_ms=";
	char *blank = strchr(line, ' ');
	char *at = blank ? blank + 1 : NULL;
	char *next;
	int r;

	ret->revision = at;
	for (unsigned slashes = 0; at && slashes < 4; slashes++) {
		at = strchr(at, '/');
		at = at ? at + 1 : NULL;
	}
	at = at ? strchr(at, ' ') : NULL;
	if (!at)
		return -EBADMSG;
	*blank = '\0';
	*at++ = '\0';
	ret->holder = at;
	for (next = strstr(at, expires); next; next = strstr(at, expires))
		at = next + 1;
	if (at == ret->holder)
		return -EBADMSG;
	at[-1] = '\0';
	r = parse_u64(line, &ret->id);
	return r < 0 ? r :
		       parse_u64(at + sizeof(expires) - 2, &ret->expires_at_ms);
}

static void lease_print(const struct lease *l, bool first)
{
	time_t s = (time_t)(l->expires_at_ms / 1000);
	char when[32] = "-";
	struct tm tm;

	if (gmtime_r(&s, &tm))
		(void)strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm);
	if (first)
		(void)printf("%-8s %-20s %-20s %s\n", "LEASE", "EXPIRES",
			     "HOLDER", "REVISION");
	(void)printf("%-8llu %-20s ", (unsigned long long)l->id, when);
	say_plain(stdout, l->holder);
	(void)printf("%*s ",
		     (int)(strlen(l->holder) < 20 ? 20 - strlen(l->holder) : 0),
		     "");
	say_plain(stdout, l->revision);
	(void)putchar('\n');
}

static int lease_facts(const struct lease *l, const char *root, struct buf *ret)
{
	struct buf path = BUF_INIT;
	struct facts f = FACTS_INIT;
	int r = buf_printf(&path, "%s/%s", root, l->revision);

	if (r == 0) {
		facts_u64(&f, "lease_id", l->id);
		facts_text(&f, "path", path.data);
		facts_text(&f, "holder", l->holder);
		facts_u64(&f, "expires_at_ms", l->expires_at_ms);
		r = facts_take(&f, ret);
	}
	buf_release(&path);
	return r;
}

/* json: facts are appended to it, else they are printed. */
static int show_lines(char *text, const char *root, struct buf *json)
{
	struct lease l;
	bool first = true;
	char *end;
	int r = 0;

	for (char *line = text; *line != '\0' && r == 0; line = end) {
		end = line + strcspn(line, "\n");
		if (*end != '\0')
			*end++ = '\0';
		r = lease_parse(line, &l);
		if (r == 0 && json && !first)
			r = buf_append(json, ",", 1);
		if (r == 0 && json)
			r = lease_facts(&l, root, json);
		if (r == 0 && !json)
			lease_print(&l, first);
		first = false;
	}
	return r;
}

static int show(const struct ctl *ctl, const char *root, struct buf *text)
{
	struct buf rows = BUF_INIT;
	struct facts f = FACTS_INIT;
	int r;

	if (!(ctl->options & CTL_JSON)) {
		r = show_lines(text->data, root, NULL);
		return r < 0 ? say_failed(r, root, "leases") : 0;
	}
	if ((r = buf_append(&rows, "[", 1)) < 0 ||
	    (r = show_lines(text->data, root, &rows)) < 0 ||
	    (r = buf_append(&rows, "]", 1)) < 0) {
		say_error(r, root, "leases");
	} else {
		facts_text(&f, "path", root);
		facts_raw(&f, "leases", rows.data);
		r = facts_print(&f);
	}
	buf_release(&rows);
	return r;
}

int ctl_leases(const struct ctl *ctl)
{
	auto_free char *root = NULL;
	struct buf text = BUF_INIT;
	int r = mount_named(ctl->argc > 0 ? ctl->argv[0] : NULL, &root);

	if (r < 0)
		return CTL_REFUSED;
	r = mount_text(root, "leases", &text);
	r = r < 0 ? say_failed(r, root, "leases") : show(ctl, root, &text);
	buf_release(&text);
	return r < 0 ? CTL_REFUSED : CTL_OK;
}
