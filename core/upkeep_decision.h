/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Upkeep decisions: what a published revision needs next.
 *
 * A function from facts to one action. Each action does a bounded piece of
 * work, after which the facts are gathered again, so nothing has to be undone
 * or remembered when a kill comes in between.
 *
 * Source: weight contracts, sections 6.9 and 6.11, as far as whole revisions
 * go: an operation may also have a MIXED target, which waits.
 */
#ifndef CORE_UPKEEP_DECISION_H
#define CORE_UPKEEP_DECISION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/weight_management.h"

enum upkeep_action {
	UPKEEP_NOTHING,         /* all is as it should be */
	UPKEEP_WAIT,            /* for somebody, or for a time */
	UPKEEP_RECORD,          /* make the record say what is true */
	UPKEEP_VERIFY,          /* read what nobody vouches for */
	UPKEEP_REPAIR,          /* mend what is lost */
	UPKEEP_PIN,             /* more of it into memory */
	UPKEEP_UNPIN,           /* out of it */
	UPKEEP_FINISH,          /* the operation has reached its target */
	UPKEEP_START_OPERATION, /* to the residency that its policy prefers */
	UPKEEP_WRITE_BACK,      /* to the device, and read back */
	UPKEEP_SCRUB,           /* check a piece of it */
};

struct upkeep_facts {
	/* What the record says. */
	enum weight_residency recorded;
	double recorded_ratio;
	bool degraded;
	bool durable;
	bool operates;                /* an operation is active, */
	enum weight_residency target; /* and where it goes */
	bool prefers_hot;             /* its policy, if it may move */

	/* What is true. */
	enum weight_residency residency;
	double ratio;
	bool damaged; /* something of it is lost */
	bool lost;    /* its manifest is, or all of it: nothing can be done */
	bool suspect; /* something of it has to be read first */
	bool held;    /* somebody reads it, or has a lease */

	/* What is wanted. */
	bool repair;
	bool scrub;
	bool must_be_durable; /* by itself; moving to COLD needs it, too */

	/* Until a retry is due. */
	bool pin_waits;
	bool turn_taken; /* another one is taking memory */
	bool never_fits; /* it is larger than all that may be pinned */
	bool write_back_waits;
	bool check_waits;
	bool can_pin; /* memory can be locked at all */
};

enum upkeep_action upkeep_decide(const struct upkeep_facts *f);

/* Whether a round of this action is one of the operation that is active. */
bool upkeep_is_of_operation(const struct upkeep_facts *f,
			    enum upkeep_action action);

/* How much one round of a move takes before others have their turn. */
struct upkeep_round {
	uint64_t members_max; /* 1 or more, */
	uint64_t bytes_max;   /* as this */
	uint64_t members;     /* taken so far */
	uint64_t bytes;
};

/*
 * How many more bytes the round takes. While it has none, that is at least
 * `piece`, so that what can't be split further moves whatever its size.
 */
uint64_t upkeep_round_room(const struct upkeep_round *r, uint64_t piece);

/* Whether it takes one more member, with so many bytes at once. */
bool upkeep_round_takes(const struct upkeep_round *r, uint64_t bytes);

#endif
