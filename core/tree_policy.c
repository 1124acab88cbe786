/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies: of published groups, and those that staged ones will have.
 *
 * Changes of them take namespace_lock, so that of two that set a part each
 * both are heard.
 */
#include <errno.h>

#include "core/clock.h"
#include "core/metrics.h"
#include "core/step.h"
#include "core/tree_priv.h"

/* The record may change for other reasons while its policy is changed. */
#define TRIES_MAX 16

static void apply(const struct weight_policy_change *change,
		  struct weight_policy *policy)
{
	if (change->set_preferred)
		policy->preferred = change->policy.preferred;
	if (change->set_mixed_hot_ratio)
		policy->mixed_hot_ratio = change->policy.mixed_hot_ratio;
	if (change->set_mode)
		policy->mode = change->policy.mode;
}

static bool is_staged(enum weight_group_state state)
{
	return state == WEIGHT_GROUP_STAGED || state == WEIGHT_GROUP_PUBLISHING;
}

static int staged_policy(struct weight_group *g, struct weight_policy *ret)
{
	cleanup(weight_staging_free_cleanup) struct weight_staging *st = NULL;
	int r = wms_staged_get(g->store->records, g->identity, &st);

	if (r == 0)
		*ret = st->has_policy ? st->policy : g->store->config->policy;
	return r;
}

int weight_group_policy(struct weight_group *group, struct weight_policy *ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	int r = -ENOENT;

	if (is_staged(weight_group_state(group)))
		r = staged_policy(group, ret);
	/* Perhaps it was published a moment ago. */
	if (r != -ENOENT)
		return r;
	r = weight_group_metadata(group, &m);
	if (r == 0)
		*ret = m->policy;
	return r;
}

/* ---- Of staged ones ---- */

/* 1: it is published. No attempt looks at it until weight_group_leave(). */
static int hold_staged(struct weight_group *g, struct buf *why)
{
	int r = 0;

	store_lock(g->store);
	switch (g->state) {
	case WEIGHT_GROUP_STAGED:
		g->mutations++;
		break;
	case WEIGHT_GROUP_PUBLISHING:
		(void)buf_printf(why, "it is being published; try again when "
				      "that is over");
		r = -EBUSY;
		break;
	case WEIGHT_GROUP_PUBLISHED:
		r = 1;
		break;
	case WEIGHT_GROUP_REMOVED:
	case WEIGHT_GROUP_ABORTED:
		r = -ENOENT;
		break;
	}
	store_unlock(g->store);
	return r;
}

static int set_staged(struct weight_group *g,
		      const struct weight_policy_change *change,
		      uint64_t expected, struct buf *why)
{
	struct weight_policy policy;
	int r;

	if (expected) {
		(void)buf_printf(why, "what is staged has no "
				      "metadata_generation yet that could be "
				      "asked for");
		return -EINVAL;
	}
	r = staged_policy(g, &policy);
	if (r < 0)
		return r;
	apply(change, &policy);
	r = weight_policy_check(&policy, why);
	if (r < 0)
		return r;
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = wms_staged_policy(g->store->records, g->identity, &policy);
	if (r < 0)
		return r;
	store_lock(g->store);
	g->preferred = policy.preferred;
	store_unlock(g->store);
	return 0;
}

/* ---- Of published ones ---- */

static int set_once(struct weight_group *g,
		    const struct weight_policy_change *change,
		    uint64_t expected, struct buf *why)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	struct weight_store *s = g->store;
	struct weight_policy policy;
	int r = wms_get(s->records, g->identity, &m);

	if (r < 0)
		return r;
	policy = m->policy;
	apply(change, &policy);
	/* An operation begins with it, which would never end. */
	if (policy.mode == WEIGHT_AUTO &&
	    !weight_policy_equal(&policy, &m->policy))
		r = tree_may_move(s, policy.preferred, why);
	if (r < 0)
		return r;
	metrics_add(METRIC_METADATA_COMMITS, 1);
	r = wms_policy_update(s->records, g->identity, &policy,
			      expected ? expected : m->metadata_generation,
			      clock_realtime_ms(), NULL, why);
	step("policy: updated");
	return r;
}

static int set_published(struct weight_group *g,
			 const struct weight_policy_change *change,
			 uint64_t expected, struct buf *why)
{
	int r = -ECANCELED;

	for (unsigned i = 0; i < TRIES_MAX && r == -ECANCELED; i++) {
		r = set_once(g, change, expected, why);
		if (expected)
			break;
	}
	if (r == -ECANCELED && why->len == 0)
		(void)buf_printf(why, expected ? "its metadata_generation is "
						 "another one than was asked "
						 "for" :
						 "its record changes all the "
						 "time; try again");
	/* On record it goes on in any case, at the next start at the latest. */
	if (r == 0)
		(void)upkeep_want(g);
	return r;
}

int weight_group_set_policy(struct weight_group *group,
			    const struct weight_policy_change *change,
			    uint64_t expected_metadata_generation,
			    struct buf *why)
{
	struct weight_store *s = group->store;
	int r;

	(void)pthread_mutex_lock(&s->namespace_lock);
	r = hold_staged(group, why);
	if (r == 0) {
		r = set_staged(group, change, expected_metadata_generation,
			       why);
		weight_group_leave(group);
	} else if (r > 0) {
		r = set_published(group, change, expected_metadata_generation,
				  why);
	}
	(void)pthread_mutex_unlock(&s->namespace_lock);
	return r;
}
