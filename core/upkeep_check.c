/* SPDX-License-Identifier: Apache-2.0 */
/* Upkeep: verifying what nobody vouches for, repairing, scrubbing. */
#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/step.h"
#include "core/upkeep_priv.h"

static struct tree_check check_of(struct upkeep *u, struct pace *pace)
{
	return (struct tree_check){
		.group = u->g,
		.content = u->content,
		.pace = pace,
		.go_on = upkeep_go_on,
		.arg = u,
	};
}

/* Once for each pass. Names that were lost are made again. */
int upkeep_check_names(struct upkeep *u)
{
	struct buf why = BUF_INIT;
	int r;

	if (u->names_checked)
		return 0;
	r = tree_check_names(u->g, u->content, &why);
	if (r == 0 && why.len > 0)
		log_info("generation %llu had other names than the manifest: "
			 "%s",
			 (unsigned long long)u->g->identity->generation,
			 why.data);
	buf_release(&why);
	u->names_checked = r == 0;
	return r;
}

/* Whether an object has to be read before anybody gets it. */
static bool is_suspect(struct weight_group *g, size_t object)
{
	struct tree_damage *d = NULL;
	bool known;

	if (tree_damage_copy(g, object, &d) < 0)
		return true;
	store_lock(g->store);
	known = d ||
		(object < g->stamps->count && g->stamps->entries[object].known);
	store_unlock(g->store);
	free(d);
	return !known;
}

/* One round over objects from u->at on; `each` does what there is to do. */
static int round_of(struct upkeep *u, const struct tree_check *check,
		    int (*each)(const struct tree_check *check, size_t object),
		    bool suspects_only)
{
	uint64_t start = u->done_bytes;
	size_t files = 0;
	int r = 0;

	while (u->at < u->content->count && r == 0 &&
	       upkeep_round_lasts(u, start, files)) {
		if (!suspects_only || is_suspect(u->g, u->at)) {
			r = each(check, u->at);
			files++;
		}
		if (r == 0)
			u->at++;
	}
	return r;
}

static int begin_check(struct upkeep *u)
{
	int r;

	if ((r = upkeep_content(u)) < 0 || (r = tree_stamps_load(u->g)) < 0 ||
	    (r = upkeep_check_names(u)) < 0)
		return r;
	if (u->total_bytes == 0)
		upkeep_begin(u, 0, u->content->bytes);
	return 0;
}

/* What came out of a round, for readers and for the next start. */
static int end_round(struct upkeep *u, bool durable)
{
	tree_damage_describe(u->g, u->content);
	return tree_stamps_save(u->g, durable);
}

static int try_later(struct upkeep *u, int r)
{
	u->check_retry_ms = upkeep_retry_at(u);
	return r;
}

int upkeep_verify(struct upkeep *u, const struct weight_metadata *m)
{
	struct tree_check check;
	int r = begin_check(u);

	(void)m;
	if (r < 0)
		return try_later(u, r);
	check = check_of(u, NULL);
	r = round_of(u, &check, tree_verify_object, true);
	if (r == -ECANCELED)
		return r;
	if (r < 0)
		return try_later(u, r);
	r = end_round(u, false);
	step("verify: saved");
	if (r == 0 && u->at < u->content->count)
		return 0;
	u->at = 0;
	if (!tree_trust_is_complete(u->g))
		return try_later(u, -EAGAIN);
	u->failures = 0;
	return r;
}

/* An object that isn't known to be good: read, and mended from anywhere. */
static int repair_object(const struct tree_check *check, size_t object)
{
	int r = 0;

	if (is_suspect(check->group, object))
		r = tree_verify_object(check, object);
	return r < 0 ? r : tree_repair_object(check, object);
}

/* Asked for once: what couldn't be done waits for the next time. */
static void wish_is_done(struct upkeep *u, bool scrub_too)
{
	store_lock(u->g->store);
	u->repair = false;
	u->scrub = u->scrub && !scrub_too;
	store_unlock(u->g->store);
}

int upkeep_repair(struct upkeep *u, const struct weight_metadata *m)
{
	struct tree_check check;
	int r;

	(void)m;
	if (tree_group_loss(u->g) != TREE_LOSS_NONE &&
	    tree_loss_look_again(u->g)) {
		wish_is_done(u, true);
		return 0;
	}
	r = begin_check(u);
	if (r < 0)
		return try_later(u, r);
	check = check_of(u, NULL);
	r = round_of(u, &check, repair_object, false);
	if (r == -ECANCELED)
		return r;
	if (r == 0)
		r = end_round(u, true);
	step("repair: saved");
	if (r == 0 && u->at < u->content->count)
		return 0;
	wish_is_done(u, false);
	u->at = 0;
	return r;
}

/* ---- Scrubbing ---- */

/* Where a scrub is. */
struct scrub_place {
	uint64_t position; /* in chunks through all objects */
	size_t object;
	uint64_t chunk; /* of that object */
};

/* Goes on by some chunks, to the first object that has any left. */
static void move_on(struct scrub_place *at, const struct tree_content *c,
		    uint64_t chunks)
{
	at->position += chunks;
	at->chunk += chunks;
	while (at->object < c->count &&
	       at->chunk >= c->objects[at->object].chunk_count)
		at->chunk -= c->objects[at->object++].chunk_count;
}

/* What is kept counts from 1; 0: none runs. */
static struct scrub_place saved_place(struct upkeep *u)
{
	struct scrub_place at = { .position = 0 };
	uint64_t next;

	store_lock(u->g->store);
	next = u->g->stamps->scrub_next;
	store_unlock(u->g->store);
	move_on(&at, u->content, next > 0 ? next - 1 : 0);
	return at;
}

static void save_place(struct upkeep *u, const struct scrub_place *at)
{
	store_lock(u->g->store);
	u->g->stamps->scrub_next = at->position + 1;
	store_unlock(u->g->store);
}

static uint64_t bad_chunks(struct weight_group *g)
{
	uint64_t bad = 0;

	store_lock(g->store);
	for (struct list *at = g->damages.next; at != &g->damages;
	     at = at->next)
		bad += container_of(at, struct tree_damage, in_group)->bad;
	store_unlock(g->store);
	return bad;
}

static int end_scrub(struct upkeep *u)
{
	struct weight_group *g = u->g;
	uint64_t bad = bad_chunks(g);

	store_lock(g->store);
	g->stamps->scrub_next = 0;
	g->stamps->scrub_ended_ms = clock_realtime_ms();
	g->stamps->scrub_bad = bad;
	u->scrub = false;
	store_unlock(g->store);
	metrics_add(METRIC_SCRUBS, 1);
	u->failures = 0;
	return end_round(u, true);
}

static uint64_t bytes_before(const struct tree_content *c,
			     const struct scrub_place *at)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < at->object; i++)
		bytes += c->objects[i].size;
	return bytes + (at->object < c->count ?
				at->chunk * c->objects[at->object].chunk_size :
				0);
}

/* One object's piece. */
static int scrub_piece(struct upkeep *u, struct scrub_place *at)
{
	struct tree_check check = check_of(u, u->g->store->scrub_pace);
	size_t first = (size_t)at->chunk;
	size_t next = first;
	int r;

	check.device = true;
	r = tree_scrub_object(&check, at->object, first, UPKEEP_ROUND_BYTES,
			      &next);
	if (r < 0)
		return r;
	move_on(at, u->content, next - first);
	save_place(u, at);
	return 0;
}

/* Its only good copy may be the one in memory: it has to be written again. */
static int is_not_durable(struct upkeep *u, const struct weight_metadata *m)
{
	const struct weight_observation seen = {
		.availability = m->availability,
		.residency = m->residency,
		.hot_ratio = m->observed_hot_ratio,
		.beside_operation = true,
	};

	store_lock(u->g->store);
	u->g->durable = false;
	store_unlock(u->g->store);
	metrics_add(METRIC_METADATA_COMMITS, 1);
	return wms_observe(u->g->store->records, &m->identity, &seen, 0,
			   clock_realtime_ms(), NULL);
}

int upkeep_scrub(struct upkeep *u, const struct weight_metadata *m)
{
	struct scrub_place at;
	size_t files = 0;
	uint64_t start;
	int r = begin_check(u);

	if (r < 0)
		return try_later(u, r);
	at = saved_place(u);
	if (u->done_bytes == 0)
		upkeep_begin(u, bytes_before(u->content, &at),
			     u->content->bytes);
	start = u->done_bytes;
	while (at.object < u->content->count && r == 0 &&
	       upkeep_round_lasts(u, start, files++)) {
		r = scrub_piece(u, &at);
		if (r == 0 && !upkeep_go_on(u, 0))
			r = -ECANCELED;
	}
	if ((r == -EIO || r == -ENOSPC) && m->durable)
		return is_not_durable(u, m);
	if (r < 0 && r != -ECANCELED)
		return try_later(u, r);
	if (at.object >= u->content->count && r == 0)
		return end_scrub(u);
	r = end_round(u, false);
	step("scrub: saved");
	return r;
}

/* ---- As users ask for it ---- */

int weight_group_scrub(struct weight_group *group, struct buf *why)
{
	(void)why;
	return upkeep_ask(group, false, true);
}

int weight_group_repair(struct weight_group *group, struct buf *why)
{
	(void)why;
	return upkeep_ask(group, true, false);
}

static int print_ended(uint64_t ms, uint64_t bad, struct buf *ret)
{
	time_t s = (time_t)(ms / 1000);
	char text[32];
	struct tm tm;

	if (!gmtime_r(&s, &tm) ||
	    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm) == 0)
		return -EIO;
	return buf_printf(ret, "%s.%03uZ, %llu bad", text,
			  (unsigned)(ms % 1000), (unsigned long long)bad);
}

int weight_group_scrub_text(struct weight_group *group, struct buf *ret)
{
	uint64_t ended, bad, done = 0, total = 0;
	bool running;
	int r = tree_stamps_load(group);

	if (r < 0)
		return r;
	store_lock(group->store);
	running = group->upkeep && group->upkeep->scrub;
	if (running && group->upkeep->doing == UPKEEP_SCRUB) {
		done = group->upkeep->done_bytes;
		total = group->upkeep->total_bytes;
	}
	ended = group->stamps->scrub_ended_ms;
	bad = group->stamps->scrub_bad;
	store_unlock(group->store);
	if (running)
		return buf_printf(ret, "running, %llu of %llu bytes",
				  (unsigned long long)done,
				  (unsigned long long)total);
	return ended == 0 ? buf_printf(ret, "never") :
			    print_ended(ended, bad, ret);
}
