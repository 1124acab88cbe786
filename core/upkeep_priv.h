/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of upkeep: what its kinds of work share.
 *
 *	upkeep.c		who is due, facts, and what is decided of them
 *	upkeep_residency.c	into memory and out of it
 *	upkeep_durable.c	to the device, and read back
 *	upkeep_check.c		verifying, repairing, scrubbing
 *	upkeep_line.c		what people are told
 *
 * A group has an upkeep while something is pending for it. One piece of its
 * work runs at a time, on the tenders. What isn't marked [lock] belongs to that
 * piece.
 */
#ifndef CORE_UPKEEP_PRIV_H
#define CORE_UPKEEP_PRIV_H

#include "core/tree_priv.h"
#include "core/upkeep_decision.h"

/* One piece of work that checks or writes back. Moves have options for it. */
#define UPKEEP_ROUND_FILES 64
#define UPKEEP_ROUND_BYTES ((uint64_t)1 << 30)
/* Groups whose work advances in turn; the others come after them. */
#define UPKEEP_ACTIVE_MAX 8
/* Some tenders are always left for opens that wait for a verification. */
#define UPKEEP_RUNNING_MAX 4
#define UPKEEP_RETRY_MS_MIN 500
#define UPKEEP_RETRY_MS_MAX 30000
/* A record learns about progress as often. */
#define UPKEEP_SAVE_MS 1000
/* One that waits for readers is told when they go; this is for the rest. */
#define UPKEEP_HELD_MS 5000

enum upkeep_phase {
	PHASE_SYNC,
	PHASE_DIRECTORIES,
	PHASE_READ_BACK,
};

struct upkeep {
	struct work work;
	struct weight_group *g; /* a reference */
	struct list in_waiting; /* [lock] while it doesn't run */
	struct list in_at_work; /* [lock] while it does */
	uint64_t due_ms;        /* [lock] monotonic */
	bool running;           /* [lock] */
	uint64_t freed_seen;    /* [lock] of the upkeeper, when it began to */
	bool again;             /* [lock] asked for while it ran */
	bool active;            /* [lock] counts as one of those in turn */
	bool wants_turn;        /* [lock] waits for who takes memory now */
	bool repair, scrub;     /* [lock] asked for */

	enum upkeep_action doing;     /* [lock] */
	struct tree_content *content; /* NULL until something needs it */
	size_t at;                    /* object where it goes on */
	size_t granule;               /* of it, when pinning */
	struct prefetch *ahead;       /* of that object, or NULL */
	enum upkeep_phase phase;      /* of write-back */
	bool names_checked;
	uint64_t left_granules; /* that others pay for, in this pass */
	uint64_t saved_ms;
	unsigned failures;         /* in a row */
	enum upkeep_action failed; /* what did and wasn't tried again yet */
	uint64_t pin_retry_ms;     /* 0: now */
	bool never_fits;           /* as was seen when there was no room */
	uint64_t write_back_retry_ms;
	bool write_back_failed; /* and the group's sentence says so */
	bool round_failed;      /* and `stuck` says so */
	uint64_t check_retry_ms;

	/* [lock] For people. */
	uint64_t operation_id; /* 0: none */
	enum weight_residency target;
	uint64_t started_ms;              /* of the operation, real time */
	uint64_t done_bytes, total_bytes; /* of what it does */
	uint64_t ahead_bytes;             /* read already, to be done next */
	uint64_t done_units;
	uint64_t begun_ms;    /* monotonic; when this kind of work began, */
	uint64_t begun_bytes; /* and how much was done then */
	char *stuck;          /* why it can't go on, or NULL */
	bool no_memory;       /* that is why */
	bool failing; /* or this: something failed, and is tried again */
};

/* Somebody is in the way, which is no failure. */
#define UPKEEP_NOT_NOW 1

/* Each does one round. The record is as it was a moment ago. */
typedef int upkeep_act_fn(struct upkeep *u, const struct weight_metadata *m);
upkeep_act_fn upkeep_pin, upkeep_unpin, upkeep_finish, upkeep_start_operation,
	upkeep_record, upkeep_write_back, upkeep_verify, upkeep_repair,
	upkeep_scrub;

/*
 * As upkeep_want(), with what is asked for. Errors: -ENOENT it isn't published
 * any more, or the store is stopping; -ENOMEM.
 */
int upkeep_ask(struct weight_group *g, bool repair, bool scrub);

/* Whether the round may go on; bytes more are done. For tree_check. */
bool upkeep_go_on(void *arg, uint64_t bytes);

/* Whether there is room for one more file in a round that began at start. */
static inline bool upkeep_round_lasts(const struct upkeep *u, uint64_t start,
				      size_t files)
{
	return files < UPKEEP_ROUND_FILES &&
	       u->done_bytes - start < UPKEEP_ROUND_BYTES;
}

/* This kind of work begins anew, with as much to do. */
void upkeep_begin(struct upkeep *u, uint64_t done, uint64_t total);

/* The objects of the group. */
int upkeep_content(struct upkeep *u);

/* Once for each kind of work: names that were lost are made again. */
int upkeep_check_names(struct upkeep *u);

/* When to try again after a failure. */
uint64_t upkeep_retry_at(struct upkeep *u);

/* It can't go on, for this reason; NULL: it can. */
void upkeep_set_stuck(struct upkeep *u, bool no_memory, const char *sentence);
/* The same, because something failed. */
void upkeep_set_failing(struct upkeep *u, const char *sentence);

/* Nothing is read ahead of it any more. */
void upkeep_end_ahead(struct upkeep *u);

/* Only one takes memory at a time, so that two don't end with half each. */
bool upkeep_take_turn(struct upkeep *u);
void upkeep_give_turn(struct upkeep *u);

#endif
