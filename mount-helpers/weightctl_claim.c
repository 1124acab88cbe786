/* SPDX-License-Identifier: Apache-2.0 */
/* The command claim, and what others ask about replacements. */
#include "mount-helpers/weightctl_claim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/cleanup.h"
#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_mount.h"

void claim_release(struct claim *c)
{
	buf_release(&c->request_id);
	buf_release(&c->error);
}

/* ---- "7 by 8, mode=put_first, phase=completed, request_id=x, error=y" ---- */

/* Steps over word, if it is there. */
static bool take(const char **at, const char *word)
{
	size_t len = strlen(word);

	if (strncmp(*at, word, len) != 0)
		return false;
	*at += len;
	return true;
}

static int take_number(const char **at, uint64_t *ret)
{
	size_t len = strspn(*at, "0123456789");
	int r = weight_generation_parse(*at, len, ret);

	*at += len;
	return r;
}

/* What comes first has one form only; an id or a sentence may hold anything. */
static int parse(const char *at, struct claim *ret)
{
	static const char error[] = ", error=";
	const char *end;
	size_t len;
	int r;

	if ((r = take_number(&at, &ret->base)) < 0 || !take(&at, " by ") ||
	    (r = take_number(&at, &ret->target)) < 0 || !take(&at, ", mode="))
		return -EBADMSG;
	len = strcspn(at, ",");
	if (weight_upsert_mode_parse(at, len, &ret->mode) < 0)
		return -EBADMSG;
	at += len;
	if (!take(&at, ", phase="))
		return -EBADMSG;
	len = strcspn(at, ",");
	if (weight_upsert_phase_parse(at, len, &ret->phase) < 0)
		return -EBADMSG;
	at += len;
	if (!take(&at, ", request_id="))
		return -EBADMSG;
	end = strstr(at, error);
	len = end ? (size_t)(end - at) : strlen(at);
	r = buf_append(&ret->request_id, at, len);
	if (r == 0 && end)
		r = buf_printf(&ret->error, "%s", end + sizeof(error) - 1);
	return r;
}

int claim_read(const char *lineage, struct claim *ret)
{
	struct claim c = CLAIM_INIT;
	struct buf value = BUF_INIT;
	int r = attr_read(lineage, "claim", &value);

	if (r == 0)
		r = parse(value.data, &c);
	buf_release(&value);
	if (r < 0)
		claim_release(&c);
	else
		*ret = c;
	return r;
}

/* ---- As facts ---- */

void claim_facts(const struct claim *c, struct facts *f)
{
	facts_u64(f, "base", c->base);
	facts_u64(f, "target", c->target);
	facts_text(f, "mode", weight_upsert_mode_name(c->mode));
	facts_text(f, "phase", weight_upsert_phase_name(c->phase));
	facts_text(f, "request_id", c->request_id.data);
	if (c->error.len > 0)
		facts_text(f, "error", c->error.data);
}

static void print_text(const char *name, const char *value)
{
	(void)printf("%-12s ", name);
	say_plain(stdout, value);
	(void)putchar('\n');
}

static void print_number(const char *name, uint64_t value)
{
	(void)printf("%-12s %llu\n", name, (unsigned long long)value);
}

static void print_claim(const struct claim *c)
{
	print_number("base", c->base);
	print_number("target", c->target);
	print_text("mode", weight_upsert_mode_name(c->mode));
	print_text("phase", weight_upsert_phase_name(c->phase));
	print_text("request_id", c->request_id.data);
	if (c->error.len > 0)
		print_text("error", c->error.data);
}

/* c is NULL when nothing was replaced; a watermark of 0 is none. */
static int show(const struct ctl *ctl, const char *lineage,
		const struct claim *c, uint64_t watermark)
{
	struct facts f = FACTS_INIT;

	if (ctl->options & CTL_JSON) {
		facts_text(&f, "path", lineage);
		if (c)
			claim_facts(c, &f);
		if (watermark > 0)
			facts_u64(&f, "watermark", watermark);
		return facts_print(&f);
	}
	if (c)
		print_claim(c);
	if (watermark > 0)
		print_number("watermark", watermark);
	if (!c && watermark == 0) {
		say_plain(stdout, lineage);
		(void)puts(": nothing was replaced");
	}
	return 0;
}

static int claim(const struct ctl *ctl, const char *path)
{
	auto_free char *lineage = NULL;
	struct claim c = CLAIM_INIT;
	uint64_t watermark = 0;
	bool there;
	int r = mount_lineage(path, &lineage);

	if (r < 0)
		return r;
	r = claim_read(lineage, &c);
	if (r < 0 && r != -ENODATA)
		return say_failed(r, path, "claim");
	there = r == 0;
	r = attr_read_u64(lineage, "watermark", &watermark);
	r = r < 0 && r != -ENODATA ?
		    say_failed(r, path, "watermark") :
		    show(ctl, lineage, there ? &c : NULL, watermark);
	claim_release(&c);
	return r;
}

int ctl_claim(const struct ctl *ctl)
{
	return claim(ctl, ctl->argv[0]) < 0 ? CTL_REFUSED : CTL_OK;
}
