/* SPDX-License-Identifier: Apache-2.0 */
/* Every combination of facts there is, and what must hold for all of them. */
#include <string.h>

#include "core/upkeep_decision.h"
#include "core/util.h"
#include "suite.h"

/* Actions in a row, before there is nothing left to do. */
#define STEPS_MAX 12

/* ---- One fact after the other ---- */

/* Whole, durable, where it should be: the others differ from it. */
static struct upkeep_facts good_facts(void)
{
	return (struct upkeep_facts){
		.recorded = WEIGHT_HOT,
		.recorded_ratio = 1.0,
		.durable = true,
		.target = WEIGHT_COLD,
		.prefers_hot = true,
		.residency = WEIGHT_HOT,
		.ratio = 1.0,
		.must_be_durable = true,
		.can_pin = true,
	};
}

static void is_cold(struct upkeep_facts *f)
{
	f->residency = WEIGHT_COLD;
	f->ratio = 0.0;
}

static void recorded_cold(struct upkeep_facts *f)
{
	f->recorded = WEIGHT_COLD;
	f->recorded_ratio = 0.0;
}

#define RULE(name, statements)                                                 \
	static void name(struct upkeep_facts *f)                               \
	{                                                                      \
		statements;                                                    \
	}

/* clang-format off */
RULE(good, (void)f)
RULE(not_durable, f->durable = false)
RULE(not_durable_yet, f->durable = false; f->write_back_waits = true)
RULE(scratch, f->durable = false; f->must_be_durable = false)
RULE(suspect, f->suspect = true; f->durable = false)
RULE(suspect_later, f->suspect = true; f->check_waits = true)
RULE(suspect_later_not_durable,
     f->suspect = true; f->check_waits = true; f->durable = false)
RULE(damaged, f->damaged = true)
RULE(damaged_and_out_of_memory, f->damaged = true; is_cold(f))
RULE(known_damage, f->damaged = true; f->degraded = true; f->durable = false)
RULE(mended, f->degraded = true; f->durable = false)
RULE(repair, f->repair = true; f->suspect = true; f->damaged = true)
RULE(to_cold, f->operates = true)
RULE(to_cold_held, f->operates = true; f->held = true)
RULE(to_cold_held_and_half_there,
     f->operates = true; f->held = true; f->residency = WEIGHT_MIXED;
     f->ratio = 0.5)
RULE(to_cold_not_durable, f->operates = true; f->durable = false)
RULE(to_cold_scratch,
     f->operates = true; f->durable = false; f->must_be_durable = false)
RULE(to_cold_failing,
     f->operates = true; f->durable = false; f->write_back_waits = true)
RULE(to_cold_damaged,
     f->operates = true; f->degraded = f->damaged = true; f->durable = false)
RULE(to_cold_reached, f->operates = true; is_cold(f))
RULE(to_hot, f->operates = true; f->target = WEIGHT_HOT; is_cold(f))
RULE(to_hot_no_room,
     f->operates = true; f->target = WEIGHT_HOT; is_cold(f);
     f->pin_waits = true)
RULE(to_hot_no_room_recorded, to_hot_no_room(f); recorded_cold(f))
RULE(to_hot_no_room_not_durable,
     to_hot_no_room_recorded(f); f->durable = false)
RULE(to_hot_others_first, to_hot(f); f->turn_taken = true)
RULE(to_hot_others_first_not_durable,
     to_hot(f); f->turn_taken = true; f->durable = false)
RULE(to_hot_held,
     f->operates = true; f->target = WEIGHT_HOT; is_cold(f); f->held = true)
RULE(to_hot_reached, f->operates = true; f->target = WEIGHT_HOT)
RULE(to_mixed, f->operates = true; f->target = WEIGHT_MIXED)
RULE(restarted, is_cold(f))
RULE(restarted_others_first, is_cold(f); f->turn_taken = true)
RULE(restarted_no_room, is_cold(f); f->pin_waits = true)
RULE(restarted_no_room_manual,
     is_cold(f); f->pin_waits = true; f->prefers_hot = false)
RULE(restarted_no_locking, is_cold(f); f->can_pin = false)
RULE(pinned_late, recorded_cold(f))
RULE(half_pinned,
     f->residency = WEIGHT_MIXED; f->ratio = 0.5; recorded_cold(f))
RULE(cold, recorded_cold(f); is_cold(f))
RULE(scrub, f->scrub = true)
RULE(scrub_later, f->scrub = true; f->check_waits = true)
RULE(scrub_not_durable, f->scrub = true; f->durable = false)
RULE(lost, f->lost = f->damaged = f->suspect = true)
RULE(lost_and_gone, lost(f); f->residency = WEIGHT_ABSENT; f->ratio = 0.0;
     f->degraded = true)
RULE(lost_on_record, lost(f); f->degraded = true; f->durable = false)
RULE(lost_moving, lost_on_record(f); f->operates = true)
RULE(lost_put_back, lost_on_record(f); f->repair = true)
RULE(found_again,
     f->degraded = true; f->durable = false; is_cold(f);
     f->recorded = WEIGHT_ABSENT; f->recorded_ratio = 0.0)
RULE(found_again_manual, found_again(f); f->prefers_hot = false)
RULE(lost_scrub, lost_on_record(f); f->scrub = true)

static const struct {
	const char *name;
	void (*set)(struct upkeep_facts *f);
	enum upkeep_action action;
} rules[] = {
#define ROW(name, action) { #name, name, UPKEEP_##action }
	ROW(good, NOTHING),
	ROW(not_durable, WRITE_BACK),
	ROW(not_durable_yet, WAIT),
	ROW(scratch, NOTHING),
	ROW(suspect, VERIFY),
	ROW(suspect_later, WAIT),
	ROW(suspect_later_not_durable, WRITE_BACK),
	ROW(damaged, RECORD),
	ROW(damaged_and_out_of_memory, START_OPERATION),
	ROW(known_damage, NOTHING),
	ROW(mended, RECORD),
	ROW(lost, RECORD),
	ROW(lost_and_gone, RECORD),
	ROW(lost_on_record, NOTHING),
	ROW(lost_moving, WAIT),
	ROW(lost_put_back, REPAIR),
	ROW(lost_scrub, REPAIR),
	ROW(found_again, START_OPERATION),
	ROW(found_again_manual, RECORD),
	ROW(repair, REPAIR),
	ROW(to_cold, UNPIN),
	ROW(to_cold_held, WAIT),
	ROW(to_cold_held_and_half_there, RECORD),
	ROW(to_cold_not_durable, WRITE_BACK),
	ROW(to_cold_scratch, WRITE_BACK),
	ROW(to_cold_failing, WAIT),
	ROW(to_cold_damaged, UNPIN),
	ROW(to_cold_reached, FINISH),
	ROW(to_hot, PIN),
	ROW(to_hot_no_room, RECORD),
	ROW(to_hot_no_room_recorded, WAIT),
	ROW(to_hot_no_room_not_durable, WRITE_BACK),
	ROW(to_hot_others_first, WAIT),
	ROW(to_hot_others_first_not_durable, WRITE_BACK),
	ROW(to_hot_held, PIN),
	ROW(to_hot_reached, FINISH),
	ROW(to_mixed, WAIT),
	ROW(restarted, PIN),
	ROW(restarted_others_first, WAIT),
	ROW(restarted_no_room, START_OPERATION),
	ROW(restarted_no_room_manual, RECORD),
	ROW(restarted_no_locking, RECORD),
	ROW(pinned_late, RECORD),
	ROW(half_pinned, RECORD),
	ROW(cold, NOTHING),
	ROW(scrub, SCRUB),
	ROW(scrub_later, WAIT),
	ROW(scrub_not_durable, WRITE_BACK),
};

static const char *const names[] = {
	[UPKEEP_NOTHING] = "nothing", [UPKEEP_WAIT] = "wait",
	[UPKEEP_RECORD] = "record", [UPKEEP_VERIFY] = "verify",
	[UPKEEP_REPAIR] = "repair", [UPKEEP_PIN] = "pin",
	[UPKEEP_UNPIN] = "unpin", [UPKEEP_FINISH] = "finish",
	[UPKEEP_START_OPERATION] = "start an operation",
	[UPKEEP_WRITE_BACK] = "write back", [UPKEEP_SCRUB] = "scrub",
};
/* clang-format on */

START_TEST(each_fact_has_its_action)
{
	struct upkeep_facts f = good_facts();
	enum upkeep_action action;

	rules[_i].set(&f);
	action = upkeep_decide(&f);
	ck_assert_msg(action == rules[_i].action, "%s: %s, not %s",
		      rules[_i].name, names[action], names[rules[_i].action]);
}
END_TEST

/* ---- All of them ---- */

static const enum weight_residency residencies[] = { WEIGHT_HOT, WEIGHT_COLD,
						     WEIGHT_MIXED };
static const double ratios[] = { 1.0, 0.0, 0.5 };

/* Takes a digit of n off. */
static unsigned digit(unsigned *n, unsigned base)
{
	unsigned d = *n % base;

	*n /= base;
	return d;
}

static void set_flags(struct upkeep_facts *f, unsigned *n)
{
	bool *const flags[] = {
		&f->degraded,    &f->durable,         &f->operates,
		&f->prefers_hot, &f->damaged,         &f->suspect,
		&f->held,        &f->repair,          &f->scrub,
		&f->pin_waits,   &f->check_waits,     &f->write_back_waits,
		&f->can_pin,     &f->must_be_durable, &f->turn_taken,
		&f->lost,
	};

	for (size_t i = 0; i < ARRAY_LEN(flags); i++)
		*flags[i] = digit(n, 2);
	f->damaged |= f->lost;
}

/* The nth combination; false: there are no more. */
static bool nth_facts(unsigned n, struct upkeep_facts *f)
{
	unsigned recorded, residency;

	memset(f, 0, sizeof(*f));
	set_flags(f, &n);
	recorded = digit(&n, 3);
	residency = digit(&n, 3);
	f->recorded = residencies[recorded];
	f->recorded_ratio = ratios[recorded];
	f->residency = residencies[residency];
	f->ratio = ratios[residency];
	f->target = residencies[digit(&n, 3)];
	/* Half of it, but another half. */
	if (digit(&n, 2) && f->residency == WEIGHT_MIXED)
		f->ratio = 0.25;
	return n == 0;
}

static bool is_recorded(const struct upkeep_facts *f)
{
	return f->recorded == f->residency && f->recorded_ratio == f->ratio;
}

/* Why an action is right, or at least not wrong. */
static bool is_allowed(const struct upkeep_facts *f, enum upkeep_action action)
{
	if (f->lost && action > UPKEEP_RECORD && action != UPKEEP_REPAIR)
		return false;
	switch (action) {
	case UPKEEP_NOTHING:
	case UPKEEP_WAIT:
		return true;
	case UPKEEP_RECORD:
		return f->degraded != f->damaged || !is_recorded(f);
	case UPKEEP_VERIFY:
		return f->suspect && !f->check_waits;
	case UPKEEP_REPAIR:
		return f->repair || (f->scrub && f->lost);
	case UPKEEP_PIN:
		return !f->pin_waits && !f->turn_taken &&
		       f->residency != WEIGHT_HOT &&
		       (f->operates ? f->target == WEIGHT_HOT :
				      f->recorded == WEIGHT_HOT && f->can_pin);
	case UPKEEP_UNPIN:
		return f->operates && f->target == WEIGHT_COLD && !f->held &&
		       f->residency != WEIGHT_COLD &&
		       (f->durable || f->damaged);
	case UPKEEP_FINISH:
		return f->operates && f->target == f->residency &&
		       (f->target == WEIGHT_HOT || f->durable || f->damaged);
	case UPKEEP_START_OPERATION:
		return !f->operates && f->prefers_hot && f->can_pin &&
		       f->recorded == WEIGHT_HOT && f->residency != WEIGHT_HOT;
	case UPKEEP_WRITE_BACK:
		return !f->durable && !f->damaged && !f->write_back_waits &&
		       (f->must_be_durable ||
			(f->operates && f->target == WEIGHT_COLD));
	case UPKEEP_SCRUB:
		return f->scrub && !f->check_waits;
	}
	return false;
}

/* Nobody waits for nothing. */
static bool may_wait(const struct upkeep_facts *f)
{
	return (f->lost && f->operates) || f->pin_waits || f->turn_taken ||
	       f->check_waits || f->write_back_waits ||
	       (f->operates && (f->target == WEIGHT_MIXED ||
				(f->target == WEIGHT_COLD && f->held)));
}

static bool is_settled(const struct upkeep_facts *f)
{
	return !f->operates && !f->repair && !f->scrub &&
	       (!f->suspect || f->lost) && f->degraded == f->damaged &&
	       is_recorded(f) &&
	       (f->durable || f->damaged || !f->must_be_durable);
}

START_TEST(no_action_is_taken_that_may_not_be)
{
	struct upkeep_facts f;

	for (unsigned n = 0; nth_facts(n, &f); n++) {
		enum upkeep_action action = upkeep_decide(&f);

		if (!is_allowed(&f, action))
			ck_abort_msg("combination %u: %s", n, names[action]);
	}
}
END_TEST

START_TEST(nothing_is_left_undone_without_a_reason)
{
	struct upkeep_facts f;

	for (unsigned n = 0; nth_facts(n, &f); n++) {
		enum upkeep_action action = upkeep_decide(&f);

		if (action == UPKEEP_NOTHING && !is_settled(&f))
			ck_abort_msg("combination %u is not settled", n);
		if (action == UPKEEP_WAIT && !may_wait(&f))
			ck_abort_msg("combination %u waits for nothing", n);
	}
}
END_TEST

/* What the disk and the memory do is not to be tried before its time. */
START_TEST(when_everything_waits_only_records_are_written)
{
	struct upkeep_facts f;

	for (unsigned n = 0; nth_facts(n, &f); n++) {
		enum upkeep_action action = upkeep_decide(&f);

		if (!f.pin_waits || !f.check_waits || !f.write_back_waits ||
		    !f.held || f.repair || (f.lost && f.scrub))
			continue;
		if (action != UPKEEP_NOTHING && action != UPKEEP_WAIT &&
		    action != UPKEEP_RECORD && action != UPKEEP_FINISH &&
		    action != UPKEEP_START_OPERATION)
			ck_abort_msg("combination %u: %s", n, names[action]);
	}
}
END_TEST

/* ---- Where it leads ---- */

/* What an action does when it goes well. */
static void apply(struct upkeep_facts *f, enum upkeep_action action)
{
	switch (action) {
	case UPKEEP_NOTHING:
	case UPKEEP_WAIT:
		break;
	case UPKEEP_RECORD:
		f->degraded = f->damaged;
		f->durable &= !f->damaged;
		f->recorded = f->residency;
		f->recorded_ratio = f->ratio;
		break;
	case UPKEEP_VERIFY:
		f->suspect = false;
		break;
	case UPKEEP_REPAIR:
		f->repair = f->suspect = f->damaged = f->lost = false;
		break;
	case UPKEEP_PIN:
		f->residency = WEIGHT_HOT;
		f->ratio = 1.0;
		break;
	case UPKEEP_UNPIN:
		is_cold(f);
		break;
	case UPKEEP_START_OPERATION:
		f->operates = true;
		f->target = WEIGHT_HOT;
		break;
	case UPKEEP_FINISH:
		f->operates = false;
		f->recorded = f->residency;
		f->recorded_ratio = f->ratio;
		break;
	case UPKEEP_WRITE_BACK:
		f->durable = true;
		break;
	case UPKEEP_SCRUB:
		f->scrub = false;
		break;
	}
}

START_TEST(from_everywhere_it_comes_to_rest)
{
	struct upkeep_facts f;

	for (unsigned n = 0; nth_facts(n, &f); n++) {
		enum upkeep_action action;
		unsigned steps = 0;

		while ((action = upkeep_decide(&f)) != UPKEEP_NOTHING &&
		       action != UPKEEP_WAIT && steps++ < STEPS_MAX)
			apply(&f, action);
		if (steps > STEPS_MAX)
			ck_abort_msg("combination %u: %s without end", n,
				     names[action]);
	}
}
END_TEST

/* The pauses over, the readers gone: then all of it is as it should be. */
START_TEST(what_waits_goes_on_when_it_may)
{
	struct upkeep_facts f;

	for (unsigned n = 0; nth_facts(n, &f); n++) {
		f.pin_waits = f.check_waits = f.write_back_waits = false;
		f.held = f.turn_taken = false;
		if (f.operates && (f.target == WEIGHT_MIXED || f.lost))
			continue;
		for (unsigned i = 0; i < STEPS_MAX; i++)
			apply(&f, upkeep_decide(&f));
		if (upkeep_decide(&f) != UPKEEP_NOTHING || !is_settled(&f))
			ck_abort_msg("combination %u isn't settled: %s", n,
				     names[upkeep_decide(&f)]);
	}
}
END_TEST

START_TEST(only_what_an_operation_needs_is_of_it)
{
	struct upkeep_facts f = good_facts();

	for (int a = UPKEEP_NOTHING; a <= UPKEEP_SCRUB; a++)
		ck_assert(!upkeep_is_of_operation(&f, (enum upkeep_action)a));
	f.operates = true;
	for (int a = UPKEEP_NOTHING; a <= UPKEEP_SCRUB; a++)
		ck_assert_int_eq(
			upkeep_is_of_operation(&f, (enum upkeep_action)a),
			a == UPKEEP_PIN || a == UPKEEP_UNPIN ||
				a == UPKEEP_FINISH || a == UPKEEP_WRITE_BACK);
	f.target = WEIGHT_HOT;
	ck_assert(!upkeep_is_of_operation(&f, UPKEEP_WRITE_BACK));
	ck_assert(upkeep_is_of_operation(&f, UPKEEP_PIN));
}
END_TEST

/* ---- How much a round takes ---- */

/*
 * WeightGroupLifecycle.MigrationBatchLimitsKeepOversizedAffinityWholeAndMakeProgress
 */
START_TEST(the_first_piece_goes_whatever_its_size)
{
	struct upkeep_round r = { .members_max = 2, .bytes_max = 10 };

	ck_assert_uint_eq(upkeep_round_room(&r, 4), 10);
	ck_assert_uint_eq(upkeep_round_room(&r, 10), 10);
	ck_assert_uint_eq(upkeep_round_room(&r, 11), 11);
	ck_assert(upkeep_round_takes(&r, 0));
	ck_assert(upkeep_round_takes(&r, 10));
	ck_assert(upkeep_round_takes(&r, UINT64_MAX));
	/* What has no bytes leaves that to the next. */
	r.members = 1;
	ck_assert(upkeep_round_takes(&r, 11));
}
END_TEST

START_TEST(a_round_is_full_of_bytes_or_of_members)
{
	struct upkeep_round r = { .members_max = 3, .bytes_max = 10 };

	r.members = 1;
	r.bytes = 4;
	ck_assert_uint_eq(upkeep_round_room(&r, 7), 6);
	ck_assert(upkeep_round_takes(&r, 6));
	ck_assert(!upkeep_round_takes(&r, 7));
	r.members = 2;
	r.bytes = 10;
	ck_assert_uint_eq(upkeep_round_room(&r, 1), 0);
	ck_assert(upkeep_round_takes(&r, 0));
	ck_assert(!upkeep_round_takes(&r, 1));
	r.bytes = UINT64_MAX; /* after one that was larger */
	ck_assert_uint_eq(upkeep_round_room(&r, 1), 0);
	ck_assert(!upkeep_round_takes(&r, 1));
	r.members = 3;
	r.bytes = 1;
	ck_assert(!upkeep_round_takes(&r, 0));
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("upkeep_decision");
	TCase *tc = tcase_create("core");

	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, each_fact_has_its_action, 0, ARRAY_LEN(rules));
	tcase_add_test(tc, no_action_is_taken_that_may_not_be);
	tcase_add_test(tc, nothing_is_left_undone_without_a_reason);
	tcase_add_test(tc, when_everything_waits_only_records_are_written);
	tcase_add_test(tc, from_everywhere_it_comes_to_rest);
	tcase_add_test(tc, what_waits_goes_on_when_it_may);
	tcase_add_test(tc, only_what_an_operation_needs_is_of_it);
	tcase_add_test(tc, the_first_piece_goes_whatever_its_size);
	tcase_add_test(tc, a_round_is_full_of_bytes_or_of_members);
	suite_add_tcase(s, tc);
	return s;
}
