/* SPDX-License-Identifier: Apache-2.0 */
/* The model: what its parts share, and the store as a whole. */
#include "model.h"

#include <errno.h>
#include <string.h>

void model_init(struct model *m)
{
	memset(m, 0, sizeof(*m));
	m->next_lease_id = 1;
	m->next_operation_id = 1;
	m->oplog_first = 1;
	m->oplog_next = 1;
	m->oplog_keep = WMS_OPLOG_KEEP_DEFAULT;
	m->epoch = 1;
	m->is_new = true;
}

void model_copy(struct model *to, const struct model *from)
{
	size_t rest = offsetof(struct model, next_lease_id);

	state_copy(&to->s, &from->s, true);
	memcpy((char *)to + rest, (const char *)from + rest,
	       sizeof(*to) - rest);
}

/* A refusal tells nothing else. */
void outcome_clear(struct outcome *o)
{
	int err = o->err;

	memset(o, 0, offsetof(struct outcome, items));
	o->err = err;
}

void model_apply(struct model *m, const struct call *c, struct outcome *ret)
{
	static void (*const families[FAMILIES])(
		struct model *, const struct call *, struct outcome *) = {
		[FAMILY_IMPORTS] = model_import,
		[FAMILY_REVISIONS] = model_revision,
		[FAMILY_LEASES] = model_lease,
		[FAMILY_OPERATIONS] = model_operation,
		[FAMILY_CLAIMS] = model_claim,
		[FAMILY_QUESTIONS] = model_question,
	};

	memset(ret, 0, offsetof(struct outcome, items));
	families[kind_family(c->kind)](m, c, ret);
	if (ret->err)
		outcome_clear(ret);
}

/* ---- The store as a whole ---- */

void model_reopened(struct model *m)
{
	m->is_new = m->boot == 0;
}

bool model_boot(struct model *m, uint64_t boot)
{
	bool unclean = m->boot != 0 && m->boot != boot && !m->is_clean;

	m->epoch += unclean;
	m->boot = boot;
	m->is_clean = false;
	return unclean;
}

void model_moved(struct model *m, bool elsewhere)
{
	m->s.staging_count = 0;
	m->epoch = 1;
	m->boot = 0;
	m->is_clean = false;
	m->is_new = true;
	for (size_t i = 0; elsewhere && i < m->s.revision_count; i++)
		m->s.revisions[i].durable = false;
}

int model_may_log(const struct model *m, bool of_lineages)
{
	bool confirmed =
		of_lineages ? m->confirms_lineages : m->confirms_management;

	return m->replicated && !confirmed ? -EIO : 0;
}

void model_logged(struct model *m, size_t entries)
{
	m->oplog_next += entries;
	if (entries == 0 || m->oplog_next - m->oplog_first <= m->oplog_keep)
		return;
	/* A log that is much too long becomes shorter bit by bit. */
	m->oplog_first_max = m->oplog_next - m->oplog_keep;
	m->oplog_first += entries;
	if (m->oplog_first > m->oplog_first_max)
		m->oplog_first = m->oplog_first_max;
}

bool model_log_is(struct model *m, uint64_t first, uint64_t next)
{
	if (next != m->oplog_next || first < m->oplog_first ||
	    first > later(m->oplog_first, m->oplog_first_max))
		return false;
	m->oplog_first = first;
	m->oplog_first_max = first;
	return true;
}

/* ---- Arguments ---- */

bool identity_is_bad(const struct call *c)
{
	return c->flaw != FLAW_NONE || c->generation == 0;
}

bool policy_is_bad(const struct import *i)
{
	bool target = i->preferred == WEIGHT_HOT ||
		      i->preferred == WEIGHT_COLD ||
		      i->preferred == WEIGHT_MIXED;

	return !target || !(i->policy_ratio > 0 && i->policy_ratio < 1) ||
	       i->mode > WEIGHT_AUTO;
}

bool ratio_fits(uint64_t residency, double ratio)
{
	switch (residency) {
	case WEIGHT_HOT:
		return ratio == 1.0;
	case WEIGHT_MIXED:
		return ratio > 0 && ratio < 1;
	case WEIGHT_UNKNOWN:
	case WEIGHT_COLD:
	case WEIGHT_ABSENT:
		return ratio == 0;
	default:
		return false;
	}
}

/* ---- Generations and times ---- */

bool fence_fits(uint64_t current, uint64_t expected)
{
	return expected == 0 || expected == current;
}

bool fence_is_retry(uint64_t current, uint64_t expected)
{
	return fence_fits(current, expected) || current == expected + 1;
}

uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

int advance(uint64_t generation, uint64_t *ret)
{
	if (generation == 0 || generation >= UINT64_MAX - 1)
		return -EOVERFLOW;
	*ret = generation + 1;
	return 0;
}
