/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control files: what .weights shows, at the mount's root and in a generation.
 * Adding one is adding a row to the table in control.c.
 *
 * Rows are numbered for as long as the program runs, and nodes keep the number.
 */
#ifndef FS_CONTROL_H
#define FS_CONTROL_H

#include "fs/call.h"
#include "fs/node.h"

#define CONTROL_JSON_NAME_MAX (WEIGHT_GENERATION_LEN_MAX + sizeof(".json") - 1)

/* Of what names what is every tenant's: for root alone. */
#define CONTROL_CLOSED_MODE 0400
#define CONTROL_CLOSED_DIR_MODE 0500

/* Whether name is there now, in a ROOT_CONTROL or GROUP_CONTROL. -ENOENT. */
int control_find(const struct node *control, const char *name, size_t *ret);

/* Permissions of a text; those of a generation are less where its root's are. */
mode_t control_mode(const struct node *text);

/* The kind of a row that is a directory: TENSORS, OPERATIONS, NAMES; else 0. */
enum node_kind control_dir(size_t row);
/* Of a row that is NAMES. */
enum weight_tree_names control_names(size_t row);

/*
 * Names of operations and tombstones: "<number>.json", the number in its one
 * text form. Errors: -ENOENT no such name.
 */
int control_json_number(const char *name, uint64_t *ret);
void control_json_name(uint64_t number,
		       char ret[static CONTROL_JSON_NAME_MAX + 1]);

/*
 * The rows that are there now, one after the other: the first one from row
 * *at on, or -ENOENT. *at becomes its number plus 1.
 */
int control_next(const struct node *control, size_t *at, const char **ret_name,
		 mode_t *ret_type);

/* Makes a new node of a row ready: opens what is served from a descriptor. */
int control_prepare(struct node *text);

/* Whether the node is a text that is made when it is read. */
bool control_is_text(const struct node *node);

/*
 * READ of a text by call: makes it if it wasn't, and answers. May wait: tells
 * with control_waits() whether that is for long.
 */
bool control_waits(const struct node *text);
int control_read(struct call *call);

#endif
