/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refusals: what a user is told when a request is not done.
 *
 * errno says little, so a sentence is kept where user.weights.error finds it
 * (on the generation, or on the directory above), and one line is logged.
 */
#ifndef FS_REFUSAL_H
#define FS_REFUSAL_H

#include "fs/node.h"

/*
 * Notes that a request on name (or NULL) in node failed with err. Plain
 * failures of a filesystem (no such file, not empty, ...) that come without a
 * sentence leave no trace.
 */
void refusal_note(struct fs *fs, int err, struct node *node, const char *name,
		  const char *why);

/* The sentence of the last refusal; empty when there was none. */
int refusal_get(struct node *node, struct buf *ret);

/* What is said of every change to a published generation. */
extern const char refusal_published[];

#endif
