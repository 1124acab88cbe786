/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes: what the kernel knows by number. A number is a pointer to its node,
 * but for FUSE_ROOT_ID.
 *
 *	kind		holds			is
 *	DIR		dir			a directory above a revision, or
 *						a user's symlink in a lineage
 *	STAGING		dir (the lineage)	.staging
 *	FILE		file			anything below a generation, and
 *						its root directory
 *	ROOT_CONTROL				.weights of the mount
 *	ROOT_TEXT	index			a row of its table
 *	GROUP_CONTROL	group			.weights of a generation
 *	GROUP_TEXT	group, index		a row of its table
 *	TENSORS		group, tensors		.weights/tensors
 *	TENSOR		group, table, index	one tensor
 *	OPERATIONS				.weights/operations of the mount
 *	OPERATION	index, its id		one operation
 *	NAMES		names			.weights/claims or .weights/tombstones
 *						of the mount, or a directory below
 *	NAMED_TEXT	names			one claim, or one tombstone
 *
 * There is one node for one thing, so hard links and repeated lookups share it
 * and its backing id, and a generation's nodes live on through publishing.
 *
 * Ownership: reference counted; +1 for each reply that tells the kernel about
 * it (entry, create), -n for each FORGET of n, and one for each call that is
 * on its way. The node owns references to what it stands for.
 *
 * Threads: any. The table's lock guards counts and is not held while anything
 * is opened or closed. A node's own lock guards what is marked so; it is
 * taken inside no other but the table's.
 */
#ifndef FS_NODE_H
#define FS_NODE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "core/weight_tree.h"
#include "core/workers.h"
#include "fs/fs.h"

enum node_kind {
	NODE_DIR = 1,
	NODE_STAGING,
	NODE_FILE,
	NODE_ROOT_CONTROL,
	NODE_ROOT_TEXT,
	NODE_GROUP_CONTROL,
	NODE_GROUP_TEXT,
	NODE_TENSORS,
	NODE_TENSOR,
	NODE_OPERATIONS,
	NODE_OPERATION,
	NODE_NAMES,
	NODE_NAMED_TEXT,
};

/* What a tensor looks like, by the file that holds it. */
struct node_like {
	const char *path; /* of the table of tensors */
	struct stat st;
};

/* The parts of a lineage, and a tombstone's file in it. */
#define NODE_NAMES_DEPTH_MAX (WEIGHT_TREE_LINEAGE_DEPTH + 1)

/* A place in claims or tombstones, which is known by its path alone. */
struct node_names {
	enum weight_tree_names kind;
	unsigned depth;
	const char *parts[NODE_NAMES_DEPTH_MAX]; /* in key, as in the path */
	size_t key_len;
	char key[]; /* in the table */
};

struct node {
	enum node_kind kind;
	bool group_root; /* a FILE that is the root of its generation */
	size_t index;
	uint64_t refs; /* under the table's lock */
	uint64_t ino;  /* what stat shows */
	struct weight_dir *dir;
	struct weight_file *file;
	struct weight_group *group;
	struct weight_tensors *tensors; /* of TENSORS */
	struct node *table;             /* of a TENSOR: its TENSORS, a ref */
	struct node_names *names;       /* of NAMES and NAMED_TEXT */
	int fd;                         /* manifest.json, else -1 */
	struct stat like; /* virtual ones: owner, mode and times */

	struct work work; /* frees it */
	struct fs *fs;    /* whose table it is in */

	pthread_mutex_t lock;
	unsigned opens;     /* under lock */
	bool passed;        /* under lock; true only while opens > 0 matters */
	int32_t backing_id; /* under lock; 0: none */
	struct timespec cached; /* under lock; see node_keeps_cache() */
	struct node_like *last; /* under lock; TENSORS: of the last lookup */
	char *error;            /* under lock; DIR: the last refusal, or NULL */
};

/* Errors: -ENOMEM. */
int node_table_new(struct node_table **ret);
void node_table_free(struct fs *fs, struct node_table *table);

struct node *node_of(struct fs *fs, fuse_ino_t ino); /* borrowed */
fuse_ino_t node_id(const struct fs *fs, const struct node *node);

/*
 * The node for a thing, with one reference for the caller. The reference to
 * the thing is taken over, also on failure. Errors: -ENOMEM and what asking
 * for its attributes answered.
 */
int node_of_dir(struct fs *fs, struct weight_dir *dir, struct node **ret);
int node_of_file(struct fs *fs, struct weight_file *file, bool group_root,
		 struct node **ret);

/* The virtual ones, found from the node that they are in. */
int node_of_staging(struct fs *fs, struct node *lineage, struct node **ret);
int node_of_control(struct fs *fs, struct node *parent, struct node **ret);
int node_of_text(struct fs *fs, struct node *control, size_t index,
		 struct node **ret);
int node_of_tensors(struct fs *fs, struct node *control, struct node **ret);
int node_of_tensor(struct fs *fs, struct node *tensors, size_t index,
		   struct node **ret);
int node_of_operations(struct fs *fs, struct node *control, struct node **ret);
/* Whether there is such an operation is not looked at: node_stat() does. */
int node_of_operation(struct fs *fs, struct node *operations, uint64_t id,
		      struct node **ret);

/* claims or tombstones itself. */
int node_of_names(struct fs *fs, struct node *control,
		  enum weight_tree_names kind, struct node **ret);
/* A directory or a text in NAMES. Whether there is one is not looked at. */
int node_of_name(struct fs *fs, struct node *names, const char *name,
		 struct node **ret);
/* Whether what is in NAMES are texts. */
bool node_has_texts(const struct node *names);

/* What the tensor table says; lives as long as the node. */
const struct weight_tensor *node_tensor(const struct node *node);
/* The file that holds it, with a reference. Errors: as weight_file_lookup(). */
int node_tensor_file(const struct node *node, struct weight_file **ret);

/* The DIR node of a directory if there is one, with a reference, or NULL. */
struct node *node_find_dir(struct fs *fs, struct weight_dir *dir);

struct node *node_ref(struct fs *fs, struct node *node);
void node_unref(struct fs *fs, struct node *node, uint64_t count);

/* The group that the node is in, with a reference, or NULL above groups. */
struct weight_group *node_group(const struct node *node);
bool node_is_published(const struct node *node);
bool node_is_lineage(const struct node *node);
/* Whether the kernel may keep what it knows of the node. */
double node_timeout(const struct node *node);

/* Fast for all kinds but OPERATION. Errors: what the thing answers. */
int node_stat(struct node *node, struct stat *ret);

/*
 * For an open that is served by reading: whether the kernel may keep what it
 * has cached of the file behind the descriptor. Not what it got before the
 * bytes changed, which for a published file means that they were mended; nor
 * while they are damaged, since it may have some of the bad ones.
 */
bool node_keeps_cache(struct node *node, int fd);

/* Gives up the idle backing ids and descriptors of a group that is gone. */
void node_drop_group(struct fs *fs, const struct weight_group *group);

/*
 * Appends the path of name in the node, or of the node itself if name is NULL,
 * as seen from the mount's root. For messages.
 */
void node_path(struct fs *fs, const struct node *node, const char *name,
	       struct buf *ret);

/*
 * Appends the path of a FILE below the root of its group; nothing when it has
 * no name any more. Errors: as weight_group_root().
 */
int node_path_in_group(const struct node *node, struct buf *ret);

/*
 * Nodes of files have a descriptor each, and the kernel forgets them when it
 * likes. Up to count of those that nobody has open, each with a reference;
 * other ones each time, until all were seen.
 */
size_t node_idle_files(struct fs *fs, struct node **ret, size_t count);
/* The FILE node if there is one, with a reference, or NULL. */
struct node *node_find_file(struct fs *fs, struct weight_file *file);

#endif
