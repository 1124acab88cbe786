/* SPDX-License-Identifier: Apache-2.0 */
#include "invariants.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_management.h"

/* One revision before and after the step; NULL: it is not there. */
struct change {
	const struct step *step;
	const struct revision *before;
	const struct revision *after;
};

static bool is_published(const struct revision *r)
{
	return r && (r->availability == WEIGHT_READY ||
		     r->availability == WEIGHT_DEGRADED);
}

static bool became(const struct change *c, enum weight_availability state)
{
	return c->after && c->after->availability == state &&
	       (!c->before || c->before->availability != state);
}

static bool is_named(const struct change *c)
{
	const struct revision *r = c->after ? c->after : c->before;
	const struct call *call = c->step->call;

	return r->lineage == call->lineage && r->generation == call->generation;
}

/* The claim that was going on before the step, or NULL. */
static const struct lineage *claim_before(const struct change *c)
{
	const struct revision *r = c->after ? c->after : c->before;
	const struct lineage *l = &c->step->before->lineages[r->lineage];

	return lineage_is_live(l) ? l : NULL;
}

/* ---- Of each revision ---- */

/*
 * "One metadata record, one immutable manifest." The record has the group and
 * manifest key of its own identity, so no two share one; a record never goes
 * away, and keeps its manifest.
 */
static bool one_record_one_manifest(const struct change *c)
{
	const struct revision *a = c->before, *b = c->after;

	if (!b || b->complete == UNKNOWN)
		return false;
	return !a || !a->complete || b->availability == WEIGHT_IMPORTING ||
	       (b->complete && b->manifest_tag == a->manifest_tag);
}

/*
 * "No READY before payloads and manifest are complete and validated." Only a
 * publication or a commit that names a whole manifest leads there. That the
 * group was looked at is shown by tests of publishing.
 */
static bool ready_is_complete(const struct change *c)
{
	const struct call *call = c->step->call;

	if (is_published(c->after) &&
	    (c->after->complete != true || c->after->manifest_tag == TAG_ZERO))
		return false;
	if (!is_published(c->after) || is_published(c->before))
		return true;
	return c->after->availability == WEIGHT_READY &&
	       (call->kind == OP_PUBLISH || call->kind == OP_IMPORT_COMMIT) &&
	       is_named(c) && call->ref == REF_GOOD &&
	       c->after->manifest_tag == call->tag;
}

/* "Reference and payload summary never change after READY." */
static bool ready_is_immutable(const struct change *c)
{
	const struct revision *a = c->before, *b = c->after;

	if (!a || !a->complete || b->availability == WEIGHT_IMPORTING)
		return true;
	return a->keys_tag == b->keys_tag &&
	       a->payload_count == b->payload_count &&
	       a->logical_bytes == b->logical_bytes &&
	       a->affinity_count == b->affinity_count &&
	       a->affinity_tag == b->affinity_tag &&
	       a->created_at_ms == b->created_at_ms;
}

/*
 * "An old generation can never overwrite a newer state." A state changes with
 * the next generation, from the one that the caller named, and times go on.
 */
static bool old_never_overwrites(const struct change *c)
{
	const struct revision *a = c->before, *b = c->after;
	struct revision same = *b;
	uint64_t fence = c->step->call->fence;

	if (!a)
		return b->metadata_generation ==
		       (b->availability == WEIGHT_IMPORTING ? 1 : 2);
	if (b->updated_at_ms < a->updated_at_ms ||
	    b->accessed_at_ms < a->accessed_at_ms)
		return false;
	same.durable = a->durable;
	same.accessed_at_ms = a->accessed_at_ms;
	same.updated_at_ms = a->updated_at_ms;
	if (memcmp(&same, a, sizeof(same)) == 0)
		return true;
	return b->metadata_generation == a->metadata_generation + 1 &&
	       (fence == 0 || fence == a->metadata_generation ||
		kind_family(c->step->call->kind) == FAMILY_OPERATIONS ||
		c->step->call->kind == OP_IMPORT_BEGIN) &&
	       (a->availability == b->availability ||
		weight_availability_may(
			(enum weight_availability)a->availability,
			(enum weight_availability)b->availability) ||
		(a->availability == WEIGHT_DELETED &&
		 c->step->call->kind == OP_IMPORT_BEGIN));
}

/*
 * "A live lease prevents deletion and the release of replicas." The latter is
 * shown by tests of residency: records don't have replicas.
 */
static bool leases_prevent_deletion(const struct change *c)
{
	const struct call *call = c->step->call;

	if (!became(c, WEIGHT_DELETING) || !c->before)
		return true;
	return leases_of(c->step->before, c->before, call->ignore,
			 call->now_ms) == 0;
}

/*
 * "The last memory copy goes only after a cold copy was verified." Here: where
 * a payload is follows from nothing but what somebody saw and said, and what is
 * READY is somewhere. Who looks before saying so is shown by tests of moves.
 */
static bool residency_is_seen(const struct change *c)
{
	const struct revision *a = c->before, *b = c->after;

	if (b->availability == WEIGHT_READY && b->residency != WEIGHT_HOT &&
	    b->residency != WEIGHT_COLD && b->residency != WEIGHT_MIXED)
		return false;
	if (a && a->residency == b->residency && a->hot_ratio == b->hot_ratio)
		return true;
	switch (c->step->call->kind) {
	case OP_PUBLISH:
	case OP_IMPORT_COMMIT:
	case OP_OBSERVE:
	case OP_PROGRESS:
	case OP_FINISH:
		return is_named(c) &&
		       b->residency == c->step->call->residency &&
		       b->hot_ratio == c->step->call->ratio;
	case OP_IMPORT_BEGIN:
		return b->residency == WEIGHT_UNKNOWN;
	case OP_DELETE_FINISH:
		return b->availability == WEIGHT_DELETED;
	default:
		return false;
	}
}

/*
 * "Generic paths never process part of a managed group." Here: a call changes
 * the revision that it names, and no other. That ordinary tools can't take a
 * published tree apart is shown by tests of the mount.
 */
static bool only_the_named_changes(const struct change *c)
{
	return is_named(c) || (c->before && memcmp(c->before, c->after,
						   sizeof(*c->before)) == 0);
}

/* "A terminal state has no live lease and no active operation." */
static bool terminal_is_idle(const struct change *c)
{
	const struct revision *r = c->after;
	struct state *s = c->step->after;

	if (!is_published(r)) {
		if (r->operation_id)
			return false;
		for (size_t i = 0; i < s->lease_count; i++)
			if (s->leases[i].lineage == r->lineage &&
			    s->leases[i].generation == r->generation)
				return false;
	}
	if (r->operation_id) {
		const struct operation *op =
			state_operation(s, r->operation_id);

		return op && !operation_is_over(op) &&
		       op->fence == r->metadata_generation;
	}
	return !c->before || !c->before->operation_id ||
	       operation_is_over(state_operation(s, c->before->operation_id));
}

/*
 * "PUT_FIRST never retires the base before the target is READY; DELETE_FIRST
 * never deletes the base while there are leases or operations, and never lets
 * target payloads in before the base is gone."
 */
static bool claims_keep_their_order(const struct change *c)
{
	const struct revision *r = c->after;
	const struct lineage *l = claim_before(c);
	const struct revision *base;

	if (!l)
		return true;
	if (r->generation == l->base && became(c, WEIGHT_DELETING))
		return (l->phase == WEIGHT_RETIRING_BASE ||
			l->phase == WEIGHT_DELETING_BASE) &&
		       c->step->call->by_claim;
	if (r->generation != l->target ||
	    (!became(c, WEIGHT_IMPORTING) && !became(c, WEIGHT_READY)))
		return true;
	base = state_revision(c->step->before, r->lineage, l->base);
	return l->upsert_mode == WEIGHT_PUT_FIRST || !base ||
	       base->availability == WEIGHT_DELETED;
}

/* ---- Of a step ---- */

/*
 * "Metadata holds no tensors, fragments or addresses." Records have no room for
 * them: what the store gives back for each of them is made of the fields of
 * state.h, whose strings are those that the callers gave.
 */
static bool strings_are_known(const struct step *step)
{
	const struct state *s = step->after;

	for (size_t i = 0; i < s->revision_count; i++)
		if (s->revisions[i].lineage == UNKNOWN ||
		    s->revisions[i].affinity_tag == UNKNOWN ||
		    s->revisions[i].manifest_tag == UNKNOWN)
			return false;
	for (size_t i = 0; i < s->lease_count; i++)
		if (s->leases[i].lineage == UNKNOWN ||
		    s->leases[i].holder == UNKNOWN)
			return false;
	return true;
}

/*
 * "After a restart the next action comes from persisted state and observed
 * replicas." What is active is found in the records alone, whatever a daemon
 * remembered: each running operation is the one of its revision, and the other
 * way round. That records are the same after a restart is compared as a whole.
 */
static bool actions_are_persisted(const struct step *step)
{
	struct state *s = step->after;
	uint64_t id = s->operation_count;
	const struct operation *last = state_operation(s, id);
	const struct revision *r;

	if (!last || operation_is_over(last))
		return true;
	r = state_revision(s, last->lineage, last->generation);
	return r && r->operation_id == id;
}

/*
 * "Claim and watermark are not a serving pointer." What happens to a claim
 * changes no revision, lease or staging, and nothing else changes a claim.
 */
static bool claims_are_apart(const struct step *step)
{
	const struct state *a = step->before, *b = step->after;
	bool lineages_differ =
		memcmp(a->lineages, b->lineages, sizeof(a->lineages)) != 0;

	if (kind_family(step->call->kind) != FAMILY_CLAIMS)
		return !lineages_differ;
	return a->revision_count == b->revision_count &&
	       memcmp(a->revisions, b->revisions,
		      a->revision_count * sizeof(a->revisions[0])) == 0 &&
	       a->lease_count == b->lease_count &&
	       memcmp(a->leases, b->leases,
		      a->lease_count * sizeof(a->leases[0])) == 0 &&
	       a->staging_count == b->staging_count;
}

/* And of the watermark itself: it goes up, to a target that was READY. */
static bool watermark_follows_ready(const struct step *step)
{
	for (uint64_t i = 0; i < LINEAGES; i++) {
		const struct lineage *a = &step->before->lineages[i];
		const struct lineage *b = &step->after->lineages[i];
		const struct revision *target;

		if (!a->there || a->watermark == b->watermark)
			continue;
		target = state_revision(step->before, i, b->watermark);
		if (b->watermark < a->watermark || b->watermark != a->target ||
		    !target || target->availability != WEIGHT_READY)
			return false;
	}
	return true;
}

/* ---- All ---- */

static const struct {
	unsigned number;
	const char *text;
	bool (*of_revision)(const struct change *c);
	bool (*of_step)(const struct step *step);
} invariants[] = {
	{ 1, "one metadata record, one immutable manifest",
	  one_record_one_manifest, NULL },
	{ 2, "no READY before payloads and manifest are complete",
	  ready_is_complete, NULL },
	{ 3, "reference and payload summary never change after READY",
	  ready_is_immutable, NULL },
	{ 4, "an old generation never overwrites a newer state",
	  old_never_overwrites, NULL },
	{ 5, "a live lease prevents deletion", leases_prevent_deletion, NULL },
	{ 6, "where a payload is was seen by somebody", residency_is_seen,
	  NULL },
	{ 7, "nothing but what a call names is processed",
	  only_the_named_changes, NULL },
	{ 8, "a terminal state has no live lease and no active operation",
	  terminal_is_idle, NULL },
	{ 9, "metadata holds what callers said of it, and nothing more", NULL,
	  strings_are_known },
	{ 10, "the next action comes from persisted state", NULL,
	  actions_are_persisted },
	{ 11, "a claim is not a serving pointer", NULL, claims_are_apart },
	{ 11, "the watermark follows what was READY", NULL,
	  watermark_follows_ready },
	{ 12, "a base goes, and a target comes, when the mode says so",
	  claims_keep_their_order, NULL },
};

static bool fail(size_t i, const struct revision *r)
{
	(void)printf("invariant %u is broken: %s", invariants[i].number,
		     invariants[i].text);
	if (r)
		(void)printf(" (lineage %" PRIu64 ", generation %" PRIu64 ")",
			     r->lineage, r->generation);
	(void)printf("\n");
	return false;
}

/* Both are sorted: *at goes along the revisions that were there before. */
static bool revision_holds(const struct step *step, const struct revision *r,
			   size_t *at)
{
	struct state *a = step->before;
	struct change c = { step, NULL, r };

	if (*at < a->revision_count &&
	    a->revisions[*at].lineage == r->lineage &&
	    a->revisions[*at].generation == r->generation)
		c.before = &a->revisions[(*at)++];
	for (size_t i = 0; i < ARRAY_LEN(invariants); i++)
		if (invariants[i].of_revision && !invariants[i].of_revision(&c))
			return fail(i, r);
	return true;
}

bool invariants_hold(const struct step *step)
{
	const struct state *a = step->before, *b = step->after;
	size_t at = 0;

	for (size_t i = 0; i < b->revision_count; i++)
		if (!revision_holds(step, &b->revisions[i], &at))
			return false;
	if (at < a->revision_count)
		return fail(0, &a->revisions[at]);
	for (size_t i = 0; i < ARRAY_LEN(invariants); i++)
		if (invariants[i].of_step && !invariants[i].of_step(step))
			return fail(i, NULL);
	return true;
}
