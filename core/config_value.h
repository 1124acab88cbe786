/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kinds of values that options have, for the table in config.c and nobody
 * else: how each is read, printed and described.
 *
 * Pure functions over constants, any thread.
 */
#ifndef CORE_CONFIG_VALUE_H
#define CORE_CONFIG_VALUE_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/config.h"

/* One of the few words that an option's value may be. */
struct config_choice {
	const char *word; /* NULL ends a list */
	int value;
};

struct config_option {
	const char *name;
	const struct config_type *type;
	size_t offset; /* of the field in struct config */
	const struct config_choice *choices;
	uint64_t min; /* inclusive, of counts, sizes and times */
	uint64_t max;
	const char *initial;
	const char *bare; /* what the name alone means; NULL: nothing */
	const char *help; /* whole sentences */
};

struct config_type {
	/* Stands for the value in the help text; NULL: the choices do. */
	const char *placeholder;

	/* Errors: -EINVAL, and nothing is stored then. */
	int (*parse)(const struct config_option *o, const char *value,
		     struct config *cfg);

	/* What parse() takes. Errors: those of buf_append(). */
	int (*print)(const struct config_option *o, const struct config *cfg,
		     struct buf *out);

	/* What is allowed, as the end of a sentence. Errors: as print(). */
	int (*allowed)(const struct config_option *o, struct buf *out);
};

extern const struct config_type config_type_choice; /* the field is an enum */
extern const struct config_type config_type_switch; /* bool */
extern const struct config_type config_type_count;  /* uint64_t */
extern const struct config_type config_type_size;   /* uint64_t */
extern const struct config_type config_type_time;   /* uint64_t, ms */
extern const struct config_type config_type_ms;     /* as that, or a number */
extern const struct config_type config_type_ratio;  /* double, inside (0,1) */
extern const struct config_type config_type_part;   /* double, 0 to 1 */
extern const struct config_type config_type_path;   /* char[PATH_MAX] */
extern const struct config_type config_type_mode;   /* struct mode_change */
extern const struct config_type config_type_log;    /* log and log_file */

/* Appends the words, with '|' between them. Errors: those of buf_append(). */
int config_choices_print(const struct config_choice *c, struct buf *out);

#endif
