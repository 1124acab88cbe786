/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scripts: sequences of operations as plain data.
 *
 * An operation is a kind and its arguments. Arguments that depend on what was
 * before ("the current generation", "the lease that I took last") are said in
 * words, and get their values when the operation runs, so that any part of a
 * script is a script.
 *
 * As text: one operation a line, its kind and then ARGUMENT=VALUE for each
 * argument that isn't the first of its words, or 0. '#' begins a comment.
 */
#ifndef TESTS_MODEL_SCRIPT_H
#define TESTS_MODEL_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum kind {
	/* Staged imports, and what becomes of them */
	OP_STAGE,
	OP_STAGED_POLICY,
	OP_UNSTAGE,
	OP_PUBLISH,
	/* Imports that a writer announces */
	OP_IMPORT_BEGIN,
	OP_IMPORT_COMMIT,
	OP_IMPORT_ABORT,
	/* Revisions */
	OP_POLICY,
	OP_DELETE,
	OP_DELETE_FINISH,
	OP_OBSERVE,
	OP_DURABLE,
	/* Leases */
	OP_ACQUIRE,
	OP_RENEW,
	OP_RELEASE,
	OP_SWEEP,
	/* Residency operations */
	OP_START,
	OP_PROGRESS,
	OP_ERROR,
	OP_FINISH,
	/* Claims */
	OP_UPSERT,
	OP_COMMIT,
	OP_ABORT,
	OP_ADVANCE,
	/* Questions */
	OP_GET,
	OP_STAGED_GET,
	OP_STAGED_NEXT,
	OP_REVISION_NEXT,
	OP_IN_USE,
	OP_SUMMARY,
	OP_OPERATION_GET,
	OP_CLAIM_STEP,
	OP_LIST,
	OP_GENERATIONS,
	OP_NAMES,
	OP_IS_NEW,
	/* Of the store as a whole */
	OP_CLOCK,
	OP_BOOT,
	OP_MARK_CLEAN,
	OP_REOPEN,
	OP_MOVE,
	OP_FOLLOW,
	OP_PROMOTE,
	OP_FORGE,
	OP_CONFIGURE,
	OP_CHECK,
	KINDS,
};

/* The kinds stand in the order of their families. */
enum family {
	FAMILY_IMPORTS,
	FAMILY_REVISIONS,
	FAMILY_LEASES,
	FAMILY_OPERATIONS,
	FAMILY_CLAIMS,
	FAMILY_QUESTIONS, /* change nothing */
	FAMILY_WHOLE,
	FAMILIES,
};
enum family kind_family(enum kind kind);

enum arg {
	A_WHO, /* the actor */
	A_LINEAGE,
	A_GENERATION,
	A_FLAW,
	A_FENCE,
	A_POLICY,
	A_LIKE, /* whose arguments it has */
	A_UNITS,
	A_COUNT,
	A_BYTES,
	A_TAG, /* of the manifest */
	A_REF, /* what is wrong with a manifest reference */
	A_AVAILABILITY,
	A_RESIDENCY,
	A_RATIO,
	A_DURABLE,
	A_CONVERGES,
	A_STAYS,
	A_BESIDE,
	A_CLAIM,
	A_HOLDER,
	A_TTL,
	A_DEGRADED,
	A_LEASE,
	A_OPERATION,
	A_TENANT,
	A_LIMIT,
	A_IGNORE,
	A_OPERATION_KIND,
	A_TARGET,
	A_SUPERSEDES,
	A_TOTALS,
	A_CURSOR,
	A_MESSAGE,
	A_REQUEST,
	A_BASE,
	A_MODE,
	A_DESCRIBED,
	A_NAME,
	A_WANTS_DURABLE,
	A_TOKEN,
	A_NAMES,
	A_DEPTH,
	A_MS,
	A_TO,
	A_BOOT,
	A_ELSEWHERE,
	A_REPLICATED,
	A_CONFIRMS,
	A_KEEP,  /* of the log; 0: the usual number */
	A_CRASH, /* die at this step of the mutation; 0: don't */
	ARGS,
};

struct op {
	enum kind kind;
	uint64_t arg[ARGS];
};

/* ---- The words of arguments ---- */

#define ACTORS 3

enum { FENCE_ANY, FENCE_CURRENT, FENCE_LAST, FENCE_NEXT, FENCE_SEEN, FENCE_1 };
enum { LIKE_ARGUMENTS, LIKE_RECORD, LIKE_CLAIM };
enum { REF_GOOD, REF_KEY, REF_GROUP, REF_COUNT, REF_BYTES, REF_PART, REF_NONE };
enum {
	RATIO_FITS,
	RATIO_ONE,
	RATIO_ZERO,
	RATIO_HALF,
	RATIO_QUARTER,
	RATIO_NAN,
	RATIO_ABOVE,
};
/* One's own, by when it was got. */
enum { PICK_LAST, PICK_OLDER, PICK_NEWEST, PICK_ACTIVE, PICK_NONE, PICK_NEXT };
enum { TO_MS, TO_EXPIRY, TO_LAST_MS }; /* of the lease that expires next */
enum { TENANT_OWN, TENANT_OTHER };
enum { TOTALS_RIGHT, TOTALS_MORE, TOTALS_NONE, TOTALS_EXCEEDED };
enum { NAME_LATEST, NAME_REQUEST, NAME_BASE, NAME_TARGET, NAME_SEEN };
enum {
	TOKEN_NONE,
	TOKEN_LAST,
	TOKEN_ITEM,
	TOKEN_NO_GENERATION,
	TOKEN_ZEROS,
	TOKEN_WORD,
	TOKEN_NO_REVISION,
};

/* ---- As text ---- */

const char *kind_name(enum kind kind);

/* Whether the kind has the argument. */
bool kind_has(enum kind kind, enum arg arg);

/* How many words the argument has; 0: it is a number. */
unsigned arg_words(enum arg arg);

void op_print(const struct op *op, FILE *to);

/* Says what is wrong with a line. An empty one gives kind KINDS. */
bool op_parse(const char *line, struct op *ret);

#endif
