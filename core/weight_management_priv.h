/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the contracts: how a check refuses, and how a record is copied as
 * one block together with its strings.
 */
#ifndef CORE_WEIGHT_MANAGEMENT_PRIV_H
#define CORE_WEIGHT_MANAGEMENT_PRIV_H

#include <string.h>

#include "core/log.h"
#include "core/weight_management.h"

/* Tells the user through why, if there is one, and the log; evaluates to err. */
#define refuse(why, err, ...)                                                  \
	({                                                                     \
		if (why)                                                       \
			(void)buf_printf(why, __VA_ARGS__);                    \
		log_debug(err, __VA_ARGS__);                                   \
	})

/* Copies s with its NUL to *at, moves *at behind it and returns the copy. */
static inline const char *pack(char **at, const char *s)
{
	size_t size = strlen(s) + 1;
	char *copy = memcpy(*at, s, size);

	*at += size;
	return copy;
}

static inline size_t lineage_size(const struct weight_lineage *l)
{
	return strlen(l->tenant) + strlen(l->name_space) + strlen(l->resource) +
	       strlen(l->revision) + 4;
}

static inline void lineage_pack(char **at, struct weight_lineage *l)
{
	l->tenant = pack(at, l->tenant);
	l->name_space = pack(at, l->name_space);
	l->resource = pack(at, l->resource);
	l->revision = pack(at, l->revision);
}

#endif
