/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replacement on a mount: a staged generation that takes the place of a
 * published one. The claim is on record; what follows from it here is who may
 * open the base, and who has to wait before the target may be filled. The
 * reconciler brings the claim to its end.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/dir.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/step.h"
#include "core/tree_priv.h"
#include "core/weight_key.h"

/* Between two looks at a base that is about to go. */
#define WAIT_MS 20

/* ---- Memory follows the record ---- */

/* Lock held. */
static void apply_locked(struct weight_group *g,
			 const struct weight_lineage_record *l)
{
	const struct weight_claim *c = weight_lineage_live_claim(l);
	uint64_t generation = g->identity->generation;
	bool waits = c && c->target == generation &&
		     c->phase == WEIGHT_DELETING_BASE;

	g->fenced_by = weight_lineage_fences(l, generation) ? c->target : 0;
	if (g->awaits_base && !waits && g->state == WEIGHT_GROUP_STAGED)
		tree_unpark_locked(g);
	g->awaits_base = waits;
	if (!waits)
		g->base_error = 0;
	(void)pthread_cond_broadcast(&g->changed);
}

void tree_claim_apply(struct weight_store *s,
		      const struct weight_lineage_record *l)
{
	const uint64_t named[] = { l->claim.base, l->claim.target };
	struct weight_identity id = { .lineage = l->lineage };
	char hex[DIGEST_HEX_LEN + 1];
	struct weight_group *g;

	for (size_t i = 0; l->claimed && i < ARRAY_LEN(named); i++) {
		id.generation = named[i];
		if (weight_group_hex(&id, hex) < 0)
			continue;
		store_lock(s);
		g = map_find(s->groups, hex, DIGEST_HEX_LEN);
		if (g)
			apply_locked(g, l);
		store_unlock(s);
	}
}

int tree_claim_load(struct weight_group *g)
{
	struct weight_lineage_record *l = NULL;
	int r = wms_lineage_get(g->store->records, &g->identity->lineage, &l);

	if (r < 0 && r != -ENOENT)
		return r;
	store_lock(g->store);
	apply_locked(g, l);
	store_unlock(g->store);
	weight_lineage_record_free(l);
	return 0;
}

void tree_claim_stalled(struct weight_store *s,
			const struct weight_identity *base, int error)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	struct weight_identity target = *base;
	char hex[DIGEST_HEX_LEN + 1];
	const struct weight_claim *c;
	struct weight_group *g;

	if (wms_lineage_get(s->records, &base->lineage, &l) < 0)
		return;
	c = weight_lineage_live_claim(l);
	if (!c || c->base != base->generation)
		return;
	target.generation = c->target;
	if (weight_group_hex(&target, hex) < 0)
		return;
	store_lock(s);
	g = map_find(s->groups, hex, DIGEST_HEX_LEN);
	if (g && g->awaits_base) {
		g->base_error = error;
		g->refs++;
		if (g->state == WEIGHT_GROUP_STAGED)
			tree_unpark_locked(g);
	} else {
		g = NULL;
	}
	store_unlock(s);
	if (g)
		weight_group_set_error(g, "the generation that it replaces "
					  "can't be removed; trying again");
	weight_group_unref(g);
}

/* ---- The announcement ---- */

/* What an announcement has to bring about. */
struct replacing {
	struct weight_group *group; /* the target, staged */
	struct weight_upsert_request request;
	char request_id[WEIGHT_COMPONENT_MAX + 1];
	bool claimed; /* a claim is going on, */
	bool resumes; /* and it is this one */
	struct buf *why;
};

static bool same_claim(const struct weight_claim *c,
		       const struct weight_replacement *rp, uint64_t target)
{
	return c->base == rp->base && c->target == target &&
	       c->mode == rp->mode &&
	       (!rp->request_id ||
		strcmp(rp->request_id, c->request_id) == 0) &&
	       (rp->expected_metadata_generation == 0 ||
		rp->expected_metadata_generation ==
			c->expected_base_metadata_generation);
}

/* The fence that the base has now, where none was given. */
static int base_generation(struct replacing *rp, uint64_t *ret)
{
	struct weight_metadata *m;
	int r = wms_get(rp->group->store->records, &rp->request.base, &m);

	if (r == -ENOENT)
		(void)buf_printf(
			rp->why, "there is no generation %llu to be replaced",
			(unsigned long long)rp->request.base.generation);
	if (r < 0)
		return r;
	*ret = m->metadata_generation;
	weight_metadata_free(m);
	return 0;
}

/*
 * The id that follows from the rest. One that was given up has it already, and
 * who announces anew means a new one.
 */
static int derive_id(struct replacing *rp,
		     const struct weight_lineage_record *l)
{
	const struct weight_upsert_request *rq = &rp->request;
	char hex[DIGEST_HEX_LEN + 1];
	int r = weight_request_id(&rq->base, &rq->target, rq->mode,
				  rq->expected_base_metadata_generation, hex);
	bool again;

	if (r < 0)
		return r;
	again = l && l->claimed &&
		weight_upsert_phase_is_terminal(l->claim.phase) &&
		strncmp(l->claim.request_id, hex, DIGEST_HEX_LEN) == 0;
	if (again)
		(void)snprintf(
			rp->request_id, sizeof(rp->request_id), "%s-%llu", hex,
			(unsigned long long)l->lineage_metadata_generation);
	else
		(void)snprintf(rp->request_id, sizeof(rp->request_id), "%s",
			       hex);
	return 0;
}

static int request_make(struct replacing *rp,
			const struct weight_replacement *given)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	struct weight_upsert_request *rq = &rp->request;
	struct weight_store *s = rp->group->store;
	const struct weight_claim *c;
	int r = wms_lineage_get(s->records, &rq->base.lineage, &l);

	if (r < 0 && r != -ENOENT)
		return r;
	c = weight_lineage_live_claim(l);
	rp->claimed = c;
	rp->resumes = c && same_claim(c, given, rq->target.generation);
	rq->request_id = rp->request_id;
	rq->expected_base_metadata_generation =
		rp->resumes ? c->expected_base_metadata_generation :
			      given->expected_metadata_generation;
	if (!rq->expected_base_metadata_generation &&
	    (r = base_generation(rp, &rq->expected_base_metadata_generation)) <
		    0)
		return r;
	if (!rp->resumes && !given->request_id)
		return derive_id(rp, l);
	(void)snprintf(rp->request_id, sizeof(rp->request_id), "%s",
		       rp->resumes ? c->request_id : given->request_id);
	return 0;
}

/* A request that was given up is over for good, and repeating it does nothing. */
static int check_lives(struct replacing *rp,
		       const struct weight_lineage_record *l)
{
	if (!weight_upsert_phase_is_terminal(l->claim.phase))
		return 0;
	(void)buf_printf(rp->why,
			 "request %s was given up; announce it under another "
			 "request_id, or without one",
			 rp->request_id);
	return -EEXIST;
}

static int begin_claim(struct replacing *rp)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	struct weight_store *s = rp->group->store;
	int r;

	(void)pthread_mutex_lock(&s->namespace_lock);
	r = wms_upsert_begin(s->records, &rp->request, clock_realtime_ms(), &l,
			     rp->why);
	if (r == 0)
		r = check_lives(rp, l);
	if (r == 0)
		tree_claim_apply(s, l);
	(void)pthread_mutex_unlock(&s->namespace_lock);
	step("claim: begun");
	return r < 0 ? r : reconciler_watch_claim(s, &l->lineage);
}

/* Whether nothing is in the staged tree yet. Nobody can enter it now. */
static int check_empty(struct replacing *rp)
{
	cleanup(dir_close_cleanup) DIR *d = NULL;
	const char *name = NULL;
	int r = dir_open(rp->group->files_fd, ".", &d);

	if (r == 0)
		r = dir_next(d, &name);
	if (r < 0 || !name)
		return r;
	(void)buf_printf(
		rp->why,
		"files are there already, and generation %llu is to be "
		"removed first; announce it before the first file",
		(unsigned long long)rp->request.base.generation);
	return -EPERM;
}

/* From here on who would change the staged tree waits. */
static int shut_target(struct replacing *rp)
{
	struct weight_group *g = rp->group;
	int r = 0;

	store_lock(g->store);
	if (g->state != WEIGHT_GROUP_STAGED || g->mutations > 0 ||
	    g->writers > 0)
		r = -EBUSY;
	else
		g->awaits_base = true;
	store_unlock(g->store);
	if (r < 0) {
		(void)buf_printf(rp->why, "the staged tree is being changed");
		return r;
	}
	return check_empty(rp);
}

/* The base goes first: nobody may hold it when the claim begins. */
static int begin_delete_first(struct replacing *rp)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *base = NULL;
	bool held = false;
	int r = tree_group_of(rp->group->store, &rp->request.base, &base);

	/* The records say what has become of it. */
	if (r == -ENOENT)
		return begin_claim(rp);
	if (r == 0)
		r = removal_close_door(base, rp->why);
	if (r < 0)
		return r;
	r = removal_look(base, &held, rp->why);
	if (r == 0) {
		keeper_lease_give_up(base);
		r = begin_claim(rp);
	}
	removal_open_door(base, false);
	if (held) {
		(void)buf_printf(
			rp->why, "generation %llu is open or mapped",
			(unsigned long long)rp->request.base.generation);
		tree_group_who(base, false, rp->why);
	}
	return r;
}

int weight_group_replace(struct weight_group *group,
			 const struct weight_replacement *replacement,
			 struct buf *why)
{
	struct replacing rp = {
		.group = group,
		.request = { .base = *group->identity,
			     .target = *group->identity,
			     .mode = replacement->mode },
		.why = why,
	};
	int r;

	rp.request.base.generation = replacement->base;
	if (weight_group_state(group) != WEIGHT_GROUP_STAGED)
		return -EBUSY;
	if (replacement->request_id &&
	    !weight_component_ok(replacement->request_id)) {
		(void)buf_printf(why, "the request id is empty, too long, or "
				      "holds control characters");
		return -EINVAL;
	}
	r = request_make(&rp, replacement);
	if (r < 0)
		return r;
	/* Another claim refuses it before anything is shut for it. */
	if (rp.claimed || replacement->mode == WEIGHT_PUT_FIRST)
		return begin_claim(&rp);
	r = shut_target(&rp);
	if (r == 0)
		r = begin_delete_first(&rp);
	if (r < 0)
		(void)tree_claim_load(group);
	return r;
}

int weight_group_replaces(struct weight_group *group, struct buf *ret)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	const struct weight_claim *c;
	int r = wms_lineage_get(group->store->records,
				&group->identity->lineage, &l);

	if (r < 0 && r != -ENOENT)
		return r;
	c = weight_lineage_live_claim(l);
	if (!c || c->target != group->identity->generation)
		return -ENODATA;
	return buf_printf(ret, "%llu,mode=%s,request_id=%s",
			  (unsigned long long)c->base,
			  weight_upsert_mode_name(c->mode), c->request_id);
}

/* ---- Waiting for its end ---- */

/* The base, while the claim of which g is the target isn't at its end. */
static int base_of(struct weight_group *g, struct weight_identity *ret,
		   struct weight_lineage_record **ret_record)
{
	struct weight_lineage_record *l = NULL;
	const struct weight_claim *c;
	int r = wms_lineage_get(g->store->records, &g->identity->lineage, &l);

	c = weight_lineage_live_claim(l);
	if (r == 0 && (!c || c->target != g->identity->generation))
		r = -ENOENT;
	if (r < 0) {
		weight_lineage_record_free(l);
		return r;
	}
	*ret = (struct weight_identity){ l->lineage, c->base };
	*ret_record = l;
	return 0;
}

/* 1: somebody has it, and why says who. */
static int say_held(struct weight_store *s, const struct weight_identity *base,
		    struct buf *why)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	uint64_t leases;
	bool fenced;

	/* What is gone is held by nobody. */
	if (tree_group_of(s, base, &g) < 0)
		return 0;
	store_lock(s);
	fenced = g->fenced_by;
	store_unlock(s);
	if (!fenced || weight_group_leases(g, &leases) < 0 || leases == 0)
		return 0;
	(void)buf_printf(why,
			 "generation %llu, which it replaces, is still open or "
			 "mapped",
			 (unsigned long long)base->generation);
	tree_group_who(g, false, why);
	return 1;
}

int tree_claim_wait(struct weight_group *g, const struct weight_waiter *waiter,
		    struct buf *why)
{
	for (;;) {
		cleanup(weight_lineage_record_free_cleanup) struct
			weight_lineage_record *l = NULL;
		struct weight_identity base;
		int r = base_of(g, &base, &l);

		if (r == -ENOENT)
			return 0;
		if (r == 0)
			r = say_held(g->store, &base, why);
		if (r != 0)
			return r;
		if (waiter_interrupted(waiter))
			return -EINTR;
		store_pause(g->store, WAIT_MS);
	}
}

/* ---- Its end by another way ---- */

void tree_claim_unstaged(struct weight_group *g)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*after = NULL;
	struct weight_metadata_store *records = g->store->records;
	struct wms_claim_request rq = { .lineage = &g->identity->lineage };
	const struct weight_claim *c;

	if (wms_lineage_get(records, rq.lineage, &l) < 0)
		return;
	c = weight_lineage_live_claim(l);
	if (!c || c->target != g->identity->generation)
		return;
	rq.name =
		(struct weight_claim_name){ c->request_id, c->base, c->target };
	/* What fails here the reconciler finds. */
	if (wms_upsert_abort(records, &rq, clock_realtime_ms(), &after, NULL) ==
	    0)
		tree_claim_apply(g->store, after);
	reconciler_poke(g->store);
}
