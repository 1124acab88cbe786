/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mode changes in the language of chmod(1): octal numbers, and clauses such as
 * "u=rwX,go-w", "+x" or "g=u".
 *
 * A text is compiled once and applied to many files. The outcome is that of
 * GNU chmod under a umask of 0: a clause that names nobody means everybody,
 * since a daemon's umask is no wish of the person who wrote the text.
 *
 * A plain value: copy it freely. Pure functions, any thread.
 */
#ifndef CORE_MODE_CHANGE_H
#define CORE_MODE_CHANGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define MODE_CHANGE_TEXT_MAX 127
#define MODE_CHANGE_STEPS_MAX 32

/* Where the bits that a step works with come from. */
enum mode_change_source {
	MODE_CHANGE_BITS,      /* the step names them */
	MODE_CHANGE_BITS_OR_X, /* X: and x, where it makes sense */
	MODE_CHANGE_COPY,      /* from what the user, group or others have */
};

struct mode_change_step {
	char op; /* '+', '-' or '=' */
	enum mode_change_source source;
	uint16_t affected; /* bits of those the clause is about */
	uint16_t bits;
	uint16_t named; /* set-id bits of directories that may change */
};

/* No steps, as in a zeroed one: leave every mode as it is. */
struct mode_change {
	char text[MODE_CHANGE_TEXT_MAX + 1]; /* as it was given */
	unsigned count;
	struct mode_change_step steps[MODE_CHANGE_STEPS_MAX];
};

/*
 * Compiles text; "" compiles to no steps.
 *
 * Errors:
 *  -EINVAL	chmod would refuse it
 *  -EFBIG	above one of the limits
 */
int mode_change_compile(const char *text, struct mode_change *ret);

/* The mode that mode becomes. Only the lowest 12 bits change. */
mode_t mode_change_apply(const struct mode_change *c, mode_t mode, bool is_dir);

#endif
