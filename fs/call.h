/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls: a request that another thread answers.
 *
 * The thread that serves requests never waits, so whatever may is copied into
 * a call and handed over: to the workers, or to a thread of its own where it
 * may wait long, so that those who wait never keep workers from others.
 *
 * A call's act() does the work and returns 0, a negative errno or CALL_AGAIN.
 * Then reply() answers, or an answer without data goes out, or the refusal
 * does. Exactly one answer goes out and the call is gone.
 *
 * A call that changes a staged group says so in enters. It may be parked while
 * the group is being published and runs from the start after that, so act()
 * never sees half of an attempt. While what the group replaces is removed first
 * it is parked, too, and then it can be interrupted.
 *
 * Ownership: a call owns its nodes' references, copies of names, and buffers.
 */
#ifndef FS_CALL_H
#define FS_CALL_H

#include "core/list.h"
#include "core/weight_tree.h"
#include "core/workers.h"
#include "fs/compat.h"
#include "fs/handle.h"
#include "fs/node.h"

/* Calls that go on at once with a thread of their own. */
#define CALL_LONG_MAX 1024
/* Those of one user but root: nobody keeps all others from waiting. */
#define CALL_LONG_USER_MAX 384

/*
 * act() returns this when it would wait and may not: it is called again from
 * the start, on a thread of the call's own, where it may.
 */
#define CALL_AGAIN 1

/* Groups of which nodes the call changes. */
#define CALL_ENTERS_NODE 1u
#define CALL_ENTERS_OTHER 2u

struct call {
	struct weight_parked parked; /* its work runs the call */
	struct list in_long;         /* fs->calls_long */
	struct fs *fs;
	fuse_req_t req;
	int (*act)(struct call *call);
	void (*reply)(struct call *call); /* NULL: nothing but success */
	unsigned enters;
	bool hears;    /* when it is interrupted */
	bool may_wait; /* not one of the workers runs it */

	/* What was asked. */
	struct node *node;
	struct node *other; /* or NULL */
	struct weight_caller caller;
	char *name;        /* in node, or NULL */
	char *new_name;    /* in other, a link's target, or NULL */
	bool name_is_attr; /* name is that of an attribute of node */
	struct buf in;
	struct fuse_file_info fi;
	struct handle *handle;       /* the kernel's, or made by act() */
	struct handle *other_handle; /* the kernel's */
	struct weight_setattr set;
	mode_t mode;
	unsigned flags;
	int whence;
	uint64_t offset, new_offset;
	size_t size;

	/* What came out. */
	struct node *made; /* one reference, for the kernel */
	struct buf out;
	char *data; /* READ: count bytes, from malloc() */
	struct buf why;
	uint64_t count;
	bool enough; /* a wait has something to say before it is over */
};

/*
 * A call about node, which is borrowed. When there is no memory, answers so
 * and returns NULL.
 */
struct call *call_new(fuse_req_t req, struct node *node,
		      int (*act)(struct call *call),
		      void (*reply)(struct call *call));

/* Fills in a part; on failure answers, frees the call and returns false. */
bool call_names(struct call *call, const char *name, const char *new_name);
bool call_bytes(struct call *call, const void *bytes, size_t len);

void call_submit(struct call *call);
/* What may wait for other people: -EMFILE when too many wait already. */
void call_submit_long(struct call *call);
/* What may keep a disk busy for long: a worker does it when all else fails. */
void call_submit_slow(struct call *call);

/* For what a call waits for; progress may be NULL. */
struct weight_waiter call_waiter(struct call *call,
				 void (*progress)(void *arg, const char *line));

/* ---- Answers. Each ends the request. ---- */

struct fs *fs_of(fuse_req_t req);

/* The one way to fail without a sentence. err is negative. */
void reply_err(fuse_req_t req, int err);

/*
 * Fails with a sentence: it is logged once, kept in user.weights.error of the
 * object that name (or NULL) in node belongs to, and counted if it guards a
 * published group. why may be empty, then err speaks for itself.
 */
void reply_refused(fuse_req_t req, int err, struct node *node, const char *name,
		   const char *why);

/* Takes over one reference to node. */
void reply_entry(fuse_req_t req, struct node *node);
void reply_attr(fuse_req_t req, struct node *node);
/* Of getxattr and listxattr: size 0 asks for the length. */
void reply_sized(fuse_req_t req, const struct buf *b, size_t size);

/* The same as the end of a call. */
void call_reply_entry(struct call *call);
void call_reply_attr(struct call *call);
void call_reply_out(struct call *call);   /* the bytes of out */
void call_reply_sized(struct call *call); /* out, as asked by size */
void call_reply_count(struct call *call); /* as of WRITE */

#endif
