/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/call.h"

#include <assert.h>
#include <signal.h>

#include "core/log.h"
#include "core/metrics.h"
#include "core/util.h"
#include "fs/refusal.h"

#define LONG_STACK_BYTES ((size_t)1 << 20)

struct fs *fs_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/* Whether the call may have a thread of its own; then it is counted. */
static bool long_begin(struct call *call)
{
	struct fs *fs = call->fs;
	unsigned all = 0, own = 0;
	bool room;

	(void)pthread_mutex_lock(&fs->calls_lock);
	for (struct list *at = fs->calls_long.next; at != &fs->calls_long;
	     at = at->next) {
		all++;
		own += container_of(at, struct call, in_long)->caller.uid ==
		       call->caller.uid;
	}
	room = all < CALL_LONG_MAX &&
	       (call->caller.uid == 0 || own < CALL_LONG_USER_MAX);
	if (room)
		list_add_tail(&fs->calls_long, &call->in_long);
	(void)pthread_mutex_unlock(&fs->calls_lock);
	return room;
}

static void long_end(struct call *call)
{
	(void)pthread_mutex_lock(&call->fs->calls_lock);
	list_remove(&call->in_long);
	(void)pthread_mutex_unlock(&call->fs->calls_lock);
}

static void call_free(struct call *call)
{
	struct fs *fs = call->fs;

	long_end(call);
	node_unref(fs, call->node, 1);
	node_unref(fs, call->other, 1);
	node_unref(fs, call->made, 1);
	free(call->name);
	free(call->new_name);
	buf_release(&call->in);
	buf_release(&call->out);
	free(call->data);
	buf_release(&call->why);
	free(call);
	fs_end(fs);
}

/* Enters the group of one node. The reference comes back in *ret. */
static int enter(struct call *call, struct node *node,
		 struct weight_group **ret)
{
	for (;;) {
		cleanup(weight_group_unref_cleanup) struct weight_group *group =
			node_group(node);
		cleanup(weight_group_unref_cleanup) struct weight_group *now =
			NULL;
		int r = group ? weight_group_enter(group, &call->parked) :
				-EPERM;

		if (r != 0)
			return r;
		/* A file may have moved to another staging tree meanwhile. */
		now = node_group(node);
		if (now == group) {
			*ret = take_ptr(group);
			return 0;
		}
		weight_group_leave(group);
	}
}

struct entered {
	struct weight_group *group[2];
};

static void leave_all(struct entered *in)
{
	for (size_t i = ARRAY_LEN(in->group); i-- > 0;) {
		if (!in->group[i])
			continue;
		weight_group_leave(in->group[i]);
		weight_group_unref(in->group[i]);
	}
}

/*
 * Enters what the call changes, always in the same order, so that two calls
 * never wait for each other. As weight_group_enter(): after 1 the call is no
 * longer ours.
 */
static int enter_all(struct call *call, struct entered *in)
{
	struct node *first =
		call->enters & CALL_ENTERS_NODE ? call->node : NULL;
	struct node *second =
		call->enters & CALL_ENTERS_OTHER ? call->other : NULL;
	cleanup(weight_group_unref_cleanup) struct weight_group *a =
		first ? node_group(first) : NULL;
	cleanup(weight_group_unref_cleanup) struct weight_group *b =
		second ? node_group(second) : NULL;
	int r = 0;

	if (first && second && (uintptr_t)b < (uintptr_t)a) {
		struct node *swap = first;

		first = second;
		second = swap;
	}
	if (first)
		r = enter(call, first, &in->group[0]);
	if (r != 0 || !second || (first && a == b))
		return r;
	r = enter(call, second, &in->group[1]);
	if (r != 0)
		leave_all(in);
	return r;
}

static void hear(fuse_req_t req, void *data)
{
	struct call *call = data;

	(void)req;
	weight_parked_give_up(call->fs->store, &call->parked);
}

static void listen(struct call *call)
{
	if (call->hears || !call->enters)
		return;
	call->hears = true;
	fuse_req_interrupt_func(call->req, hear, call);
}

static void call_finish(struct call *call, int r)
{
	/* Nobody is in hear() after this. */
	if (call->hears)
		fuse_req_interrupt_func(call->req, NULL, NULL);
	if (r < 0)
		reply_refused(call->req, r, call->node,
			      call->name_is_attr ? NULL : call->name,
			      call->why.data);
	else if (call->reply)
		call->reply(call);
	else
		(void)fuse_reply_err(call->req, 0);
	call_free(call);
}

static void call_run(struct work *work)
{
	struct call *call = container_of(work, struct call, parked.work);
	struct entered in = { 0 };
	int r;

	listen(call);
	r = enter_all(call, &in);

	if (r > 0)
		return; /* parked, and perhaps running again already */
	if (r == 0) {
		r = call->act(call);
		leave_all(&in);
	}
	if (r == CALL_AGAIN)
		call_submit_slow(call);
	else
		call_finish(call, r);
}

struct call *call_new(fuse_req_t req, struct node *node,
		      int (*act)(struct call *call),
		      void (*reply)(struct call *call))
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct call *call = calloc(1, sizeof(*call));

	if (!call) {
		reply_err(req, -ENOMEM);
		return NULL;
	}
	call->parked.work.run = call_run;
	call->parked.work.priority = WORK_SERVING;
	list_init(&call->in_long);
	call->fs = fs_of(req);
	call->req = req;
	call->act = act;
	call->reply = reply;
	call->node = node_ref(call->fs, node);
	call->caller = (struct weight_caller){
		.uid = ctx->uid,
		.gid = ctx->gid,
		.pid = ctx->pid,
	};
	call->in = (struct buf)BUF_INIT;
	call->out = (struct buf)BUF_INIT;
	call->why = (struct buf)BUF_INIT;
	fs_begin(call->fs);
	return call;
}

static bool fail_early(struct call *call, int r)
{
	reply_err(call->req, r);
	call_free(call);
	return false;
}

bool call_names(struct call *call, const char *name, const char *new_name)
{
	call->name = name ? strdup(name) : NULL;
	call->new_name = new_name ? strdup(new_name) : NULL;
	if ((name && !call->name) || (new_name && !call->new_name))
		return fail_early(call, -ENOMEM);
	return true;
}

bool call_bytes(struct call *call, const void *bytes, size_t len)
{
	int r = buf_append(&call->in, bytes, len);

	return r < 0 ? fail_early(call, r) : true;
}

void call_submit(struct call *call)
{
	workers_submit(call->fs->workers, &call->parked.work);
}

static void *long_main(void *arg)
{
	struct call *call = arg;
	struct fs *fs = call->fs;

	call_run(&call->parked.work);
	fs_end(fs);
	return NULL;
}

static int start_thread(struct call *call)
{
	sigset_t all, old;
	pthread_attr_t attr;
	pthread_t thread;
	int err;

	(void)sigfillset(&all);
	(void)pthread_attr_init(&attr);
	(void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	(void)pthread_attr_setstacksize(&attr, LONG_STACK_BYTES);
	(void)pthread_sigmask(SIG_BLOCK, &all, &old);
	err = pthread_create(&thread, &attr, long_main, call);
	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
	(void)pthread_attr_destroy(&attr);
	return -err;
}

/* False: the call is still the caller's. */
static bool go_alone(struct call *call)
{
	struct fs *fs = call->fs;

	if (!long_begin(call))
		return false;
	fs_begin(fs);
	if (start_thread(call) == 0)
		return true;
	fs_end(fs);
	long_end(call);
	return false;
}

void call_submit_long(struct call *call)
{
	call->may_wait = true;
	if (go_alone(call))
		return;
	(void)buf_printf(&call->why, "too many requests wait at once");
	call_finish(call, -EMFILE);
}

void call_submit_slow(struct call *call)
{
	call->may_wait = true;
	if (!go_alone(call))
		call_submit(call);
}

/* Also true when the daemon is about to end. */
static bool is_interrupted(void *arg)
{
	struct call *call = arg;

	return call->enough || fuse_req_interrupted(call->req) ||
	       atomic_load(&call->fs->stopping);
}

struct weight_waiter call_waiter(struct call *call,
				 void (*progress)(void *arg, const char *line))
{
	return (struct weight_waiter){
		.interrupted = is_interrupted,
		.progress = progress,
		.arg = call,
	};
}

void reply_err(fuse_req_t req, int err)
{
	assert(err < 0);
	(void)fuse_reply_err(req, -err);
}

void reply_refused(fuse_req_t req, int err, struct node *node, const char *name,
		   const char *why)
{
	refusal_note(fs_of(req), err, node, name, why);
	reply_err(req, err);
}

void reply_entry(fuse_req_t req, struct node *node)
{
	struct fs *fs = fs_of(req);
	struct fuse_entry_param e = { .ino = node_id(fs, node) };
	int r = node_stat(node, &e.attr);

	e.attr_timeout = node_timeout(node);
	e.entry_timeout =
		e.attr_timeout > 0 ? e.attr_timeout : FS_TIMEOUT_SHORT_S;
	if (r < 0)
		reply_err(req, r);
	else
		r = fuse_reply_entry(req, &e);
	/* The kernel counts only what it has got. */
	if (r != 0)
		node_unref(fs, node, 1);
}

void reply_attr(fuse_req_t req, struct node *node)
{
	struct stat st;
	int r = node_stat(node, &st);

	if (r < 0)
		reply_err(req, r);
	else
		(void)fuse_reply_attr(req, &st, node_timeout(node));
}

void reply_sized(fuse_req_t req, const struct buf *b, size_t size)
{
	if (size == 0)
		(void)fuse_reply_xattr(req, b->len);
	else if (size < b->len)
		reply_err(req, -ERANGE);
	else
		(void)fuse_reply_buf(req, b->data, b->len);
}

void call_reply_entry(struct call *call)
{
	reply_entry(call->req, take_ptr(call->made));
}

void call_reply_attr(struct call *call)
{
	reply_attr(call->req, call->node);
}

void call_reply_out(struct call *call)
{
	(void)fuse_reply_buf(call->req, call->out.data, call->out.len);
}

void call_reply_sized(struct call *call)
{
	reply_sized(call->req, &call->out, call->size);
}

void call_reply_count(struct call *call)
{
	(void)fuse_reply_write(call->req, (size_t)call->count);
}
