/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command upsert: a tree of files takes the place of a revision.
 *
 * What was begun once is gone on with: a staging directory that was announced
 * for the same replacement is filled anew, and what is published already is
 * waited for.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/clock.h"
#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_bar.h"
#include "mount-helpers/weightctl_claim.h"
#include "mount-helpers/weightctl_import.h"
#include "mount-helpers/weightctl_mount.h"
#include "mount-helpers/weightctl_say.h"
#include "mount-helpers/weightctl_wait.h"

#define POLL_MS 100
/* The claim moves on about that long after its target is durable. */
#define CLAIM_LAG_MS 5000
/* Looking for holders is work for the daemon, so seldom, but soon at first. */
#define WHO_MS_MIN 1000
#define WHO_MS_MAX 30000

struct upsert {
	const struct ctl *ctl;
	struct import im;
	uint64_t base;
	char *base_path;
	enum weight_upsert_mode mode;
	bool announced;
	int lock_fd;
};

static void unlock_stage(struct upsert *u)
{
	if (u->lock_fd >= 0)
		(void)close(u->lock_fd);
	u->lock_fd = -1;
}

static void upsert_release(struct upsert *u)
{
	import_release(&u->im);
	free(u->base_path);
	unlock_stage(u);
}

static unsigned long long base_of(const struct upsert *u)
{
	return (unsigned long long)u->base;
}

/* ---- The command line ---- */

static int parse_options(struct upsert *u)
{
	const char *mode = u->ctl->mode ? u->ctl->mode : "put_first";
	const char *base = u->ctl->replaces;

	if (!base || weight_generation_parse(base, strlen(base), &u->base) < 0)
		say_note(u->ctl->argv[1], "--replaces takes the generation of "
					  "its lineage that goes");
	else if (weight_upsert_mode_parse(mode, strlen(mode), &u->mode) < 0)
		say_note(u->ctl->argv[1],
			 "--mode takes put_first or delete_first");
	else if (u->ctl->request_id && strchr(u->ctl->request_id, ','))
		say_note(u->ctl->argv[1], "a request id holds no comma");
	else
		return 0;
	return -EINVAL;
}

static int find_base(struct upsert *u)
{
	struct buf path = BUF_INIT;
	int r = buf_printf(&path, "%s/%llu", u->im.lineage, base_of(u));

	if (r < 0)
		return say_failed(r, u->im.lineage, "upsert");
	u->base_path = path.data;
	return 0;
}

/* ---- Whether it was begun already ---- */

static bool is_ours(const struct upsert *u, const struct claim *c)
{
	const char *id = u->ctl->request_id;

	return c->base == u->base && c->target == u->im.generation &&
	       c->mode == u->mode &&
	       (!id || strcmp(id, c->request_id.data) == 0);
}

/* Whether the latest replacement in the lineage is this one, going on or done. */
static bool is_claimed(const struct upsert *u)
{
	struct claim c = CLAIM_INIT;
	bool ours = claim_read(u->im.lineage, &c) == 0 && is_ours(u, &c) &&
		    c.phase != WEIGHT_ABORTED;

	claim_release(&c);
	return ours;
}

/* Two of us at one place would take away each other's files. */
static int lock_stage(struct upsert *u)
{
	u->lock_fd = open(u->im.stage, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (u->lock_fd < 0)
		return say_failed(-errno, u->im.stage, "opening");
	if (flock(u->lock_fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	if (errno != EWOULDBLOCK)
		return say_failed(-errno, u->im.stage, "locking");
	say_note(u->im.stage, "somebody else is filling it");
	return -EBUSY;
}

/* ---- Bringing it in ---- */

static int announcement(const struct upsert *u, struct buf *ret)
{
	int r = buf_printf(ret, "%llu,mode=%s", base_of(u),
			   weight_upsert_mode_name(u->mode));

	if (r == 0 && u->ctl->request_id)
		r = buf_printf(ret, ",request_id=%s", u->ctl->request_id);
	if (r == 0 && u->ctl->fence)
		r = buf_printf(ret, ",if=%s", u->ctl->fence);
	return r < 0 ? say_failed(r, u->im.stage, "upsert") : 0;
}

static int announce(struct upsert *u)
{
	struct buf value = BUF_INIT;
	int r = announcement(u, &value);

	if (r == 0)
		r = attr_write(u->im.stage, "replaces", value.data);
	buf_release(&value);
	if (r == 0)
		u->announced = true;
	return r;
}

/* Goes on in a staging directory that is there. */
static int resume_stage(struct upsert *u)
{
	int r;

	if (!attr_is_there(u->im.stage, "replaces") || !is_claimed(u))
		return import_stage(&u->im);
	if ((r = lock_stage(u)) < 0 || (r = import_take(&u->im)) < 0)
		return r;
	r = announce(u);
	/* What goes on there goes on without us. */
	u->im.staged = r == 0;
	return r;
}

static int stage(struct upsert *u)
{
	int r;

	if (access(u->im.stage, F_OK) == 0)
		return resume_stage(u);
	if ((r = import_stage(&u->im)) < 0 || (r = lock_stage(u)) < 0)
		return r;
	return announce(u);
}

/* What would be written waits until the base is gone, so that goes first. */
static int make_room(struct upsert *u)
{
	bool quiet = u->ctl->options & CTL_QUIET;
	int r = 0;

	if (u->mode == WEIGHT_DELETE_FIRST)
		r = wait_for(u->im.stage, "waiting", quiet, NULL, NULL);
	return r < 0 ? r : import_empty(&u->im);
}

/* How things are left when it was not published. */
static void say_outlook(const struct upsert *u)
{
	bool stays = attr_is_there(u->base_path, "availability");
	const char *how = "the same command goes on";
	struct claim c = CLAIM_INIT;

	if (claim_read(u->im.lineage, &c) < 0 ||
	    (is_ours(u, &c) && c.phase == WEIGHT_ABORTED))
		how = u->ctl->request_id ?
			      "it can be asked for anew, with another "
			      "--request-id" :
			      "the same command begins anew";
	claim_release(&c);
	say_note(u->im.target, "generation %llu %s; %s", base_of(u),
		 stays ? "stays" : "is gone", how);
}

static int bring(struct upsert *u)
{
	int r;

	if ((r = import_count(&u->im)) == 0 && (r = stage(u)) == 0 &&
	    (r = make_room(u)) == 0 && (r = import_copy(&u->im)) == 0 &&
	    (r = import_publish(&u->im)) == 0) {
		unlock_stage(u);
		return 0;
	}
	if (r == -EINTR)
		say_note(u->im.target, "interrupted; nothing was published");
	import_give_up(&u->im);
	if (u->announced)
		say_outlook(u);
	return r;
}

/* ---- Until the base is gone ---- */

enum place {
	AT_TARGET, /* which is not yet durable, or not yet known to be */
	AT_BASE,   /* which somebody may read */
	AT_END,
	ENDED_OTHERWISE,
};

/* Where a replacement is that the lineage tells of, perhaps not any more. */
static enum place place_of(const struct upsert *u, const struct claim *c)
{
	/* The next one begins when this one has come to its end. */
	if (!is_ours(u, c))
		return c->base >= u->im.generation ? AT_END : ENDED_OTHERWISE;
	switch (c->phase) {
	case WEIGHT_RETIRING_BASE:
		return AT_BASE;
	case WEIGHT_COMPLETED:
		return AT_END;
	case WEIGHT_ABORTED:
		return ENDED_OTHERWISE;
	default:
		return AT_TARGET;
	}
}

/* Says how it ended when that is not as it should. */
static int look(const struct upsert *u, enum place *ret)
{
	struct claim c = CLAIM_INIT;
	int r = claim_read(u->im.lineage, &c);

	if (r < 0)
		return say_failed(r, u->im.lineage, "claim");
	*ret = place_of(u, &c);
	if (*ret == ENDED_OTHERWISE) {
		say_note(u->im.target,
			 "it is published, but does not replace generation "
			 "%llu any more: %s%s%s",
			 base_of(u),
			 is_ours(u, &c) ? weight_upsert_phase_name(c.phase) :
					  "another replacement took its place",
			 c.error.len > 0 ? ": " : "", c.error.data);
		r = -ECANCELED;
	}
	claim_release(&c);
	return r;
}

static bool has_left_target(void *arg, struct bar *bar)
{
	const struct upsert *u = arg;
	struct claim c = CLAIM_INIT;
	bool left = revision_is_durable(u->im.target);

	(void)bar;
	if (!left && claim_read(u->im.lineage, &c) == 0)
		left = place_of(u, &c) != AT_TARGET;
	claim_release(&c);
	return left;
}

/* Until the replacement leaves it; what keeps it from being durable is said. */
static int wait_for_target(struct upsert *u, enum place *at)
{
	bool quiet = u->ctl->options & CTL_QUIET;
	uint64_t end = UINT64_MAX;
	int r;

	while ((r = look(u, at)) == 0 && *at == AT_TARGET) {
		if (end == UINT64_MAX)
			r = wait_for(u->im.target, "waiting", quiet,
				     has_left_target, u);
		if (r < 0 && r != -EAGAIN)
			return r;
		if (r == -EAGAIN)
			end = clock_monotonic_ms() + CLAIM_LAG_MS;
		if (clock_monotonic_ms() >= end) {
			say_note(u->im.target,
				 "it is published; generation %llu stays until "
				 "it is durable",
				 base_of(u));
			return -EAGAIN;
		}
		if (ctl_interrupted())
			return -EINTR;
		wait_pause(POLL_MS);
	}
	return r;
}

/*
 * Says who holds the base, if said is another sentence: waiting for the target
 * ends with it.
 */
static void say_holders(const struct upsert *u, struct bar *bar,
			struct buf *said)
{
	struct buf sentence = BUF_INIT;

	if (wait_sentence(u->im.target, &sentence) <= 0 ||
	    strcmp(sentence.data, said->data) == 0) {
		buf_release(&sentence);
		return;
	}
	bar_step_aside(bar);
	say_note(u->im.target, "%s", sentence.data);
	buf_release(said);
	*said = sentence;
}

/* When the next look for holders is due, and how long after that another. */
struct who {
	uint64_t next_ms, pause_ms;
	struct buf said;
};

static void look_for_holders(const struct upsert *u, struct bar *bar,
			     struct who *who)
{
	if (bar->quiet || clock_monotonic_ms() < who->next_ms)
		return;
	say_holders(u, bar, &who->said);
	who->pause_ms *= 2;
	if (who->pause_ms > WHO_MS_MAX)
		who->pause_ms = WHO_MS_MAX;
	who->next_ms = clock_monotonic_ms() + who->pause_ms;
}

/* Until nobody reads it any more and it is gone. */
static int wait_for_base(struct upsert *u, enum place *at)
{
	struct who who = { .next_ms = clock_monotonic_ms() + WHO_MS_MIN,
			   .pause_ms = WHO_MS_MIN,
			   .said = BUF_INIT };
	struct bar bar;
	char note[64];
	int r;

	(void)snprintf(note, sizeof(note), "until generation %llu is gone",
		       base_of(u));
	bar_begin(&bar, "waiting", u->ctl->options & CTL_QUIET);
	while ((r = look(u, at)) == 0 && *at == AT_BASE) {
		look_for_holders(u, &bar, &who);
		bar_note(&bar, note);
		if (ctl_interrupted()) {
			r = -EINTR;
			break;
		}
		wait_pause(POLL_MS);
	}
	bar_end(&bar, r == 0);
	buf_release(&who.said);
	return r;
}

static int wait_replaced(struct upsert *u)
{
	enum place at = AT_TARGET;
	int r = 0;

	while (r == 0 && at != AT_END)
		r = at == AT_BASE ? wait_for_base(u, &at) :
				    wait_for_target(u, &at);
	if (r == -EINTR)
		say_note(u->im.target,
			 "interrupted; it is published, and generation %llu "
			 "goes without us; the same command waits for that",
			 base_of(u));
	return r;
}

/* ---- The whole ---- */

static int report(const struct upsert *u)
{
	struct claim c = CLAIM_INIT;
	struct facts f = FACTS_INIT;
	bool gone = !attr_is_there(u->base_path, "availability");
	int r = claim_read(u->im.lineage, &c);

	if (r < 0) {
		say_error(r, u->im.lineage, "claim");
	} else if (u->ctl->options & CTL_JSON) {
		import_facts(&u->im, &f);
		claim_facts(&c, &f);
		r = facts_print(&f);
	} else {
		import_print(&u->im);
		(void)printf("; generation %llu %s\n", base_of(u),
			     gone ? "is gone" : "goes when it can");
	}
	claim_release(&c);
	return r;
}

static int upsert(struct upsert *u)
{
	int r = find_base(u);

	if (r == 0 &&
	    !(attr_is_there(u->im.target, "availability") && is_claimed(u)))
		r = bring(u);
	if (r == 0 && !(u->ctl->options & CTL_NO_WAIT))
		r = wait_replaced(u);
	return r < 0 ? r : report(u);
}

int ctl_upsert(const struct ctl *ctl)
{
	struct upsert u = { .ctl = ctl, .lock_fd = -1 };
	int r;

	if (parse_options(&u) < 0)
		return CTL_USAGE;
	r = import_init(&u.im, ctl, ctl->argv[0], ctl->argv[1]);
	if (r == 0)
		r = upsert(&u);
	upsert_release(&u);
	return r < 0 ? CTL_REFUSED : CTL_OK;
}
