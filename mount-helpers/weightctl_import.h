/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tree of files on its way into a revision: its staging directory, the copy,
 * the rename. The calls come in the order in which they stand here.
 *
 * All say what failed, but for interruptions. Errors: -EINTR, and what the
 * system calls answer.
 */
#ifndef MOUNT_HELPERS_WEIGHTCTL_IMPORT_H
#define MOUNT_HELPERS_WEIGHTCTL_IMPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "mount-helpers/weightctl_copy.h"
#include "mount-helpers/weightctl_say.h"

struct ctl;

struct import {
	const struct ctl *ctl; /* borrowed, as is source */
	const char *source;
	char *lineage;
	char *stage;  /* LINEAGE/.staging/GENERATION */
	char *target; /* LINEAGE/GENERATION */
	uint64_t generation;
	struct copy_totals totals;
	uint64_t began_ms;
	bool staged; /* the staging directory is ours */
	bool copied; /* the totals are of what is in it */
};

/*
 * Takes target, which is LINEAGE/GENERATION, apart. ret is to be released in
 * any case. Errors: -EINVAL, -ENOMEM.
 */
int import_init(struct import *ret, const struct ctl *ctl, const char *source,
		const char *target);
void import_release(struct import *im);

/* Adds up what there is to copy. */
int import_count(struct import *im);

/* Makes the lineage and the staging directory. Errors: also -EEXIST. */
int import_stage(struct import *im);

/* As import_stage(), of a staging directory that is there and to be ours. */
int import_take(struct import *im);

/* Takes away what is in the staging directory already. */
int import_empty(struct import *im);

int import_copy(struct import *im);

/* Waits until it is ready, and renames it. */
int import_publish(struct import *im);

/* What was staged goes, unless it is to be kept. */
void import_give_up(struct import *im);

/* Path, generation, what was copied, and what became of it. */
void import_facts(const struct import *im, struct facts *f);
/* The same for people, without the end of the line. */
void import_print(const struct import *im);

#endif
