/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replacing a revision through the first door: the claim of the lineage, and
 * what its writer brings about beside the import. Each step may be the last one
 * before a kill; the same request goes on from the records.
 */
#include <errno.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/step.h"
#include "core/weight_key.h"
#include "core/weight_store_priv.h"

/* While its bytes get durable, how often it is asked whether they can. */
#define SYNC_MS 1000
/* Whether somebody else is about to remove the base shows within this. */
#define HELD_MS 1000
#define RETRY_MS 20

/* ---- What was asked for ---- */

static int check_args(const struct weight_store *s,
		      const struct weight_upsert_args *args, struct buf *why)
{
	int r = door_check(s, &args->base, why);

	if (r == 0)
		r = door_check(s, &args->target, why);
	if (r < 0)
		return r;
	if (!weight_upsert_mode_name(args->mode))
		(void)buf_printf(why, "the mode must be put_first or "
				      "delete_first");
	else if (!weight_lineage_equal(&args->base.lineage,
				       &args->target.lineage))
		(void)buf_printf(why, "base and target must use same lineage");
	else if (args->request_id && !weight_component_ok(args->request_id))
		(void)buf_printf(why,
				 "the request id must be 1 to %d bytes of "
				 "UTF-8 without control characters",
				 WEIGHT_COMPONENT_MAX);
	else if (args->expected_base_metadata_generation == 0)
		(void)buf_printf(why, "the metadata generation of the base "
				      "must be given");
	else
		return 0;
	return -EINVAL;
}

static int choose_request_id(const struct weight_upsert_args *args, char **ret)
{
	char derived[DIGEST_HEX_LEN + 1];
	const char *id = args->request_id;

	if (!id) {
		int r = weight_request_id(
			&args->base, &args->target, args->mode,
			args->expected_base_metadata_generation, derived);

		if (r < 0)
			return r;
		id = derived;
	}
	*ret = strdup(id);
	return *ret ? 0 : -ENOMEM;
}

/* Everything that can be known before anything happens. */
static int prepare(struct weight_store *s,
		   const struct weight_upsert_args *args,
		   struct weight_import *ret_import, struct weight_writer **ret,
		   struct buf *why)
{
	cleanup(weight_writer_free_cleanup) struct weight_writer *w = NULL;
	int r = check_args(s, args, why);

	if (r == 0 && args->target.generation <= args->base.generation) {
		(void)buf_printf(why, "generation must increase");
		r = -ECANCELED;
	}
	if (r == 0)
		r = writer_new(s, &args->target, args->tensors, args->count, &w,
			       why);
	if (r == 0)
		r = import_plan_announce(w->plan, ret_import);
	if (r == 0)
		r = choose_request_id(args, &w->request_id);
	if (r == 0)
		r = weight_upsert_transaction_id(&args->target, w->request_id,
						 &w->plan->source,
						 w->plan->txid);
	if (r < 0)
		return r;
	ret_import->policy = args->policy ? *args->policy : s->config->policy;
	w->base = args->base.generation;
	w->mode = args->mode;
	*ret = take_ptr(w);
	return 0;
}

/* ---- The claim ---- */

/* The record alone; writer_begin() goes on from there. */
static int restart_target(struct weight_writer *w,
			  const struct weight_import *import, struct buf *why)
{
	const struct weight_import_request request = {
		.identity = *w->plan->identity,
		.payload_group_id = "",
		.import = *import,
		.by_claim = true,
	};

	metrics_add(METRIC_METADATA_COMMITS, 1);
	return wms_import_begin(w->store->records, &request,
				clock_realtime_ms(), NULL, why);
}

static int begin_claim(struct weight_writer *w,
		       const struct weight_upsert_args *args,
		       const struct weight_import *import,
		       enum weight_upsert_phase *ret, struct buf *why)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	const struct weight_upsert_request request = {
		.request_id = w->request_id,
		.base = args->base,
		.target = args->target,
		.mode = args->mode,
		.expected_base_metadata_generation =
			args->expected_base_metadata_generation,
		.described = true,
		.import = *import,
	};
	struct weight_store *s = w->store;
	int r;

	(void)pthread_mutex_lock(&s->namespace_lock);
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = wms_upsert_begin(s->records, &request, clock_realtime_ms(), &l,
			     why);
	if (r == 0)
		tree_claim_apply(s, l);
	/* One that was interrupted must not be found without a target again. */
	if (r == 0 && l->claim.phase == WEIGHT_TARGET_IMPORTING)
		r = restart_target(w, import, why);
	(void)pthread_mutex_unlock(&s->namespace_lock);
	step("claim: begun");
	if (r < 0)
		return r;
	*ret = l->claim.phase;
	return weight_lineage_live_claim(l) ?
		       reconciler_watch_claim(s, &l->lineage) :
		       0;
}

/*
 * With nobody coming in, so that who has the base is known when the claim
 * begins. What isn't there, or not any more, the records tell better.
 */
static int begin_delete_first(struct weight_writer *w,
			      const struct weight_upsert_args *args,
			      const struct weight_import *import,
			      enum weight_upsert_phase *ret, struct buf *why)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	bool held = false;
	int r = tree_group_of(w->store, &args->base, &g);

	if (r == 0)
		r = removal_close_door(g, why);
	if (r == -ENOENT)
		return begin_claim(w, args, import, ret, why);
	if (r < 0)
		return r;
	r = removal_look(g, &held, why);
	if (r == 0) {
		/* What lingers is nobody. */
		keeper_lease_give_up(g);
		r = begin_claim(w, args, import, ret, why);
	}
	removal_open_door(g, false);
	if (held) {
		(void)buf_printf(why, "generation %llu is open or mapped",
				 (unsigned long long)args->base.generation);
		tree_group_who(g, false, why);
	}
	return r;
}

/* Whether the claim that is there is this very request, so that it goes on. */
static bool is_resumed(struct weight_writer *w)
{
	struct weight_lineage_record *l = NULL;
	bool resumed;

	if (wms_lineage_get(w->store->records, &w->plan->identity->lineage,
			    &l) < 0)
		return false;
	resumed = l->claimed && strcmp(l->claim.request_id, w->request_id) == 0;
	weight_lineage_record_free(l);
	return resumed;
}

static int begin(struct weight_writer *w, const struct weight_upsert_args *args,
		 const struct weight_import *import,
		 enum weight_upsert_phase *ret, struct buf *why)
{
	return args->mode == WEIGHT_DELETE_FIRST && !is_resumed(w) ?
		       begin_delete_first(w, args, import, ret, why) :
		       begin_claim(w, args, import, ret, why);
}

/* ---- The base of DELETE_FIRST ---- */

static bool is_going(struct weight_store *s, const struct weight_identity *base)
{
	struct weight_metadata *m = NULL;
	bool going = true;
	int r = wms_get(s->records, base, &m);

	if (r == 0)
		going = m->availability != WEIGHT_READY &&
			m->availability != WEIGHT_DEGRADED;
	weight_metadata_free(m);
	return going && (r == 0 || r == -ENOENT);
}

/*
 * Decides that it goes, unless the reconciler is faster. While that one looks
 * around, it is in our way just as somebody is who has the base open.
 */
static int retire_base(struct weight_store *s,
		       const struct weight_identity *base, struct buf *why)
{
	cleanup(buf_release) struct buf said = BUF_INIT;
	uint64_t end = clock_monotonic_ms() + HELD_MS;
	int r;

	do {
		cleanup(weight_group_unref_cleanup) struct weight_group *g =
			NULL;

		buf_release(&said);
		r = tree_group_of(s, base, &g);
		if (r == 0)
			r = tree_group_remove(g, 0, true, &said);
		step("claim: base retired");
		if (r < 0 && is_going(s, base))
			r = 0;
		if (r == -EBUSY)
			store_pause(s, RETRY_MS);
	} while (r == -EBUSY && clock_monotonic_ms() < end);
	if (r == -EBUSY)
		(void)buf_printf(why,
				 "generation %llu is open or mapped; ask "
				 "again when it is free",
				 (unsigned long long)base->generation);
	else if (r < 0)
		(void)buf_append(why, said.data, said.len);
	return r;
}

/* To the last byte of it, and then the target may come. */
static int delete_base(struct weight_writer *w,
		       const struct weight_identity *base, struct buf *why)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	struct weight_store *s = w->store;
	int r = retire_base(s, base, why);

	if (r == 0)
		r = removal_finish(s, base);
	if (r < 0)
		return r;
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = wms_claim_advance(s->records, &base->lineage, clock_realtime_ms(),
			      &l);
	if (r == 0)
		tree_claim_apply(s, l);
	step("claim: advanced");
	return r;
}

/* ---- The target ---- */

/* Target is READY: its writer compares what it is given. */
static int open_published(struct weight_writer *w, struct buf *why)
{
	int r = weight_get(w->store, w->plan->identity, &w->reader, why);

	if (r == 0 && !import_plan_made(w->plan, reader_manifest(w->reader))) {
		(void)buf_printf(
			why,
			"generation %llu was published with "
			"other tensors",
			(unsigned long long)w->plan->identity->generation);
		r = -EEXIST;
	}
	if (r < 0)
		return r;
	w->imported = true;
	return 0;
}

/* What can't be prepared leaves no claim. Only one whose base stays can go. */
static int begin_target(struct weight_writer *w,
			const struct weight_import *import, struct buf *why)
{
	cleanup(buf_release) struct buf more = BUF_INIT;
	struct weight_metadata *m = NULL;
	int r = writer_begin(w, import, why);

	if (r == 0)
		return w->group ? 0 : open_published(w, why);
	if (w->group || r == -EBUSY ||
	    wms_get(w->store->records, w->plan->identity, &m) == 0) {
		weight_metadata_free(m);
		return r;
	}
	(void)upsert_abort(w, &more);
	return r;
}

static int go_on(struct weight_writer *w, const struct weight_upsert_args *args,
		 const struct weight_import *import,
		 enum weight_upsert_phase phase, struct buf *why)
{
	int r = 0;

	switch (phase) {
	case WEIGHT_DELETING_BASE:
		r = delete_base(w, &args->base, why);
		return r < 0 ? r : begin_target(w, import, why);
	case WEIGHT_PREPARING_TARGET:
	case WEIGHT_TARGET_IMPORTING:
		return begin_target(w, import, why);
	case WEIGHT_RETIRING_BASE:
	case WEIGHT_COMPLETED:
		return open_published(w, why);
	case WEIGHT_ABORTED:
		break;
	}
	(void)buf_printf(why, "this replacement was aborted; begin again with "
			      "another target");
	return -EEXIST;
}

int weight_upsert(struct weight_store *store,
		  const struct weight_upsert_args *args,
		  struct weight_writer **ret, struct buf *why)
{
	cleanup(weight_writer_free_cleanup) struct weight_writer *w = NULL;
	enum weight_upsert_phase phase;
	struct weight_import import;
	int r = prepare(store, args, &import, &w, why);

	if (r == 0)
		r = begin(w, args, &import, &phase, why);
	if (r == 0)
		r = go_on(w, args, &import, phase, why);
	if (r < 0)
		return r;
	*ret = take_ptr(w);
	return 0;
}

/* ---- The end ---- */

/* A power loss must not take both. What fails meanwhile may do so for ever. */
static int make_durable(struct weight_writer *w, struct buf *why)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	int r = tree_group_of(w->store, w->plan->identity, &g);

	if (r < 0)
		return r;
	do {
		cleanup(buf_release) struct buf said = BUF_INIT;

		r = weight_group_sync(g, SYNC_MS, NULL, &said);
		if (r == -EAGAIN && upkeep_is_failing(g, why))
			return -EIO;
		if (r < 0 && r != -EAGAIN)
			(void)buf_append(why, said.data, said.len);
	} while (r == -EAGAIN);
	return r;
}

static struct wms_claim_request claim_of(const struct weight_writer *w)
{
	return (struct wms_claim_request){
		.lineage = &w->plan->identity->lineage,
		.name = { .request_id = w->request_id,
			  .base = w->base,
			  .target = w->plan->identity->generation },
		.wants_durable =
			w->mode == WEIGHT_PUT_FIRST && store_is_kept(w->store),
	};
}

/* The reconciler goes on with the claim: it may delete the base now. */
static int settle_claim(struct weight_writer *w, bool commits, struct buf *why)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	const struct wms_claim_request request = claim_of(w);
	struct weight_store *s = w->store;
	uint64_t now = clock_realtime_ms();
	int r;

	(void)pthread_mutex_lock(&s->namespace_lock);
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = commits ? wms_upsert_commit(s->records, &request, now, &l, why) :
		      wms_upsert_abort(s->records, &request, now, &l, why);
	if (r == 0)
		tree_claim_apply(s, l);
	step(commits ? "claim: committed" : "claim: aborted");
	(void)pthread_mutex_unlock(&s->namespace_lock);
	reconciler_poke(s);
	return r;
}

int upsert_commit(struct weight_writer *w, struct buf *why)
{
	int r = claim_of(w).wants_durable ? make_durable(w, why) : 0;

	return r < 0 ? r : settle_claim(w, true, why);
}

int upsert_abort(struct weight_writer *w, struct buf *why)
{
	return settle_claim(w, false, why);
}
