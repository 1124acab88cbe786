/* SPDX-License-Identifier: Apache-2.0 */
#include "core/upkeep_decision.h"

/*
 * The truth on record. What was in memory, or may have been before all of it was
 * gone, and is wanted there doesn't get lost by that: it becomes an operation.
 */
static enum upkeep_action record(const struct upkeep_facts *f)
{
	bool comes_back =
		(f->recorded == WEIGHT_HOT || f->recorded == WEIGHT_ABSENT) &&
		f->residency != WEIGHT_HOT && !f->operates && f->prefers_hot &&
		f->can_pin;

	return comes_back ? UPKEEP_START_OPERATION : UPKEEP_RECORD;
}

/* What is served, and whether the record may be believed, goes first. */
static enum upkeep_action decide_health(const struct upkeep_facts *f)
{
	if (f->repair)
		return UPKEEP_REPAIR;
	if (f->suspect)
		return f->check_waits ? UPKEEP_WAIT : UPKEEP_VERIFY;
	if (f->degraded != f->damaged)
		return record(f);
	return UPKEEP_NOTHING;
}

/* What waits may do so for long, and the record be read meanwhile. */
static enum upkeep_action wait_truly(const struct upkeep_facts *f)
{
	return f->recorded != f->residency || f->recorded_ratio != f->ratio ?
		       UPKEEP_RECORD :
		       UPKEEP_WAIT;
}

static enum upkeep_action decide_to_cold(const struct upkeep_facts *f)
{
	/* What is damaged never gets durable, and may leave memory all the same. */
	if (!f->durable && !f->damaged)
		return f->write_back_waits ? UPKEEP_WAIT : UPKEEP_WRITE_BACK;
	if (f->residency == WEIGHT_COLD)
		return UPKEEP_FINISH;
	return f->held ? wait_truly(f) : UPKEEP_UNPIN;
}

static enum upkeep_action decide_operation(const struct upkeep_facts *f)
{
	if (!f->operates)
		return UPKEEP_NOTHING;
	if (f->target == WEIGHT_COLD)
		return decide_to_cold(f);
	if (f->target != WEIGHT_HOT)
		return UPKEEP_WAIT;
	if (f->residency == WEIGHT_HOT)
		return UPKEEP_FINISH;
	if (f->turn_taken)
		return UPKEEP_WAIT;
	if (!f->pin_waits)
		return UPKEEP_PIN;
	/* A part of it would only keep others out. */
	if (f->never_fits && f->residency != WEIGHT_COLD && f->durable &&
	    !f->held)
		return UPKEEP_UNPIN;
	return wait_truly(f);
}

/* Without an operation: a record of before a restart, or of a late pin. */
static enum upkeep_action decide_drift(const struct upkeep_facts *f)
{
	if (f->operates)
		return UPKEEP_NOTHING;
	if (f->recorded == f->residency && f->recorded_ratio == f->ratio)
		return UPKEEP_NOTHING;
	if (f->recorded == WEIGHT_HOT && f->can_pin && !f->pin_waits)
		return f->turn_taken ? UPKEEP_WAIT : UPKEEP_PIN;
	return record(f);
}

static enum upkeep_action decide_durability(const struct upkeep_facts *f)
{
	if (f->durable || f->damaged || !f->must_be_durable)
		return UPKEEP_NOTHING;
	return f->write_back_waits ? UPKEEP_WAIT : UPKEEP_WRITE_BACK;
}

static enum upkeep_action decide_scrub(const struct upkeep_facts *f)
{
	if (!f->scrub)
		return UPKEEP_NOTHING;
	return f->check_waits ? UPKEEP_WAIT : UPKEEP_SCRUB;
}

/*
 * What is lost can be neither read nor verified: it is on record, and when
 * somebody says that it was put back, that is looked at.
 */
static enum upkeep_action decide_lost(const struct upkeep_facts *f)
{
	if (f->repair || f->scrub)
		return UPKEEP_REPAIR;
	if (!f->degraded || f->recorded != f->residency ||
	    f->recorded_ratio != f->ratio)
		return UPKEEP_RECORD;
	return f->operates ? UPKEEP_WAIT : UPKEEP_NOTHING;
}

enum upkeep_action upkeep_decide(const struct upkeep_facts *f)
{
	enum upkeep_action (*const rules[])(const struct upkeep_facts *f) = {
		decide_health,     decide_operation, decide_drift,
		decide_durability, decide_scrub,
	};
	bool waits = false;

	if (f->lost)
		return decide_lost(f);
	/* What has to wait doesn't keep the others from going on. */
	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++) {
		enum upkeep_action action = rules[i](f);

		if (action == UPKEEP_WAIT)
			waits = true;
		else if (action != UPKEEP_NOTHING)
			return action;
	}
	return waits ? UPKEEP_WAIT : UPKEEP_NOTHING;
}

bool upkeep_is_of_operation(const struct upkeep_facts *f,
			    enum upkeep_action action)
{
	switch (action) {
	case UPKEEP_PIN:
	case UPKEEP_UNPIN:
	case UPKEEP_FINISH:
		return f->operates;
	case UPKEEP_WRITE_BACK:
		return f->operates && f->target == WEIGHT_COLD;
	default:
		return false;
	}
}

uint64_t upkeep_round_room(const struct upkeep_round *r, uint64_t piece)
{
	uint64_t room = r->bytes < r->bytes_max ? r->bytes_max - r->bytes : 0;

	return r->bytes == 0 && room < piece ? piece : room;
}

bool upkeep_round_takes(const struct upkeep_round *r, uint64_t bytes)
{
	return r->members < r->members_max &&
	       bytes <= upkeep_round_room(r, bytes);
}
