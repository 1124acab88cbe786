/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of attributes: what the text means that somebody sets one to, and the
 * text of what was set, which can be set again.
 *
 * A value is pieces with commas between them. Those that are KEY=WORD come in
 * any order, each once at most, and no word holds a comma.
 *
 * Pure functions, any thread. No FUSE in here.
 *
 * Trust: a value comes from anybody.
 *
 * Errors of those that read one: -EINVAL, and *ret is then of no use. What was
 * wrong is appended to why, as a clause and without a byte of the value.
 */
#ifndef FS_ATTR_VALUE_H
#define FS_ATTR_VALUE_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/weight_tree.h"

/*
 * "WORD[,if=METADATA_GENERATION]": the word is the first *ret_len bytes of the
 * value, whatever they are; without a fence *ret_expected is 0.
 */
int attr_value_fenced(const char *value, size_t *ret_len,
		      uint64_t *ret_expected);

/*
 * "preferred=hot|cold|mixed,ratio=RATIO,mode=pinned|manual|auto", one of them
 * at least, and perhaps "if=METADATA_GENERATION", which else is 0.
 */
int attr_value_policy(const char *value, struct weight_policy_change *ret,
		      uint64_t *ret_expected, struct buf *why);

/* All of it, without a fence. Errors: as buf_append(). */
int attr_value_policy_print(const struct weight_policy *policy,
			    struct buf *ret);

/* Not to be copied: the replacement points into it. */
struct attr_replaces {
	struct weight_replacement replacement;
	char request_id[WEIGHT_COMPONENT_MAX + 1];
};

/*
 * "BASE[,mode=put_first|delete_first][,request_id=ID][,if=METADATA_GENERATION]".
 * The mode is put_first if none is given.
 */
int attr_value_replaces(const char *value, struct attr_replaces *ret,
			struct buf *why);

#endif
