/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/attr.h"
#include "fs/ops.h"

static bool starts_with(const char *name, const char *prefix)
{
	return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* Names that users may choose freely. */
static bool is_users(const char *name)
{
	return starts_with(name, "user.") && !attr_is_ours(name);
}

static bool is_staged(const struct node *node)
{
	return node->kind == NODE_FILE && !node_is_published(node);
}

static struct call *call_on_attr(fuse_req_t req, struct node *node,
				 const char *name,
				 int (*act)(struct call *call),
				 void (*reply)(struct call *call))
{
	struct call *call = call_new(req, node, act, reply);

	if (!call || !call_names(call, name, NULL))
		return NULL;
	call->name_is_attr = true;
	return call;
}

/* ---- Reading ---- */

static int act_get_ours(struct call *call)
{
	return attr_get(call, &call->out);
}

static int act_get_users(struct call *call)
{
	return weight_file_getxattr(call->node->file, call->name, &call->out);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct node *node = node_of(fs_of(req), ino);
	bool ours = attr_is_ours(name);
	struct call *call;

	if (!ours && !(is_users(name) && node->kind == NODE_FILE)) {
		/* Never ENOSYS, which would turn attributes off for good. */
		reply_err(req, starts_with(name, "system.") ? -EOPNOTSUPP :
							      -ENODATA);
		return;
	}
	call = call_on_attr(req, node, name,
			    ours ? act_get_ours : act_get_users,
			    call_reply_sized);
	if (!call)
		return;
	call->size = size;
	if (ours && attr_waits(name))
		call_submit_long(call);
	else
		call_submit(call);
}

static int act_list(struct call *call)
{
	int r = attr_list(call, &call->out);

	if (r == 0 && call->node->kind == NODE_FILE)
		r = weight_file_listxattr(call->node->file, &call->out);
	return r;
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct call *call = call_new(req, node_of(fs_of(req), ino), act_list,
				     call_reply_sized);

	if (!call)
		return;
	call->size = size;
	call_submit(call);
}

/* ---- Changing ---- */

static int act_set_users(struct call *call)
{
	return weight_file_setxattr(call->node->file, call->name, call->in.data,
				    call->in.len, (int)call->flags);
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		 const char *value, size_t size, int flags)
{
	struct node *node = node_of(fs_of(req), ino);
	bool ours = attr_is_ours(name);
	struct call *call;

	/* A copy that brings our attributes along neither fails nor acts. */
	if (ours && is_staged(node) &&
	    !(node->group_root && attr_sets_staged(name))) {
		(void)fuse_reply_err(req, 0);
		return;
	}
	if (!ours && !(is_users(name) && node->kind == NODE_FILE)) {
		reply_err(req, -EOPNOTSUPP);
		return;
	}
	call = call_on_attr(req, node, name, ours ? attr_set : act_set_users,
			    NULL);
	if (!call || !call_bytes(call, value, size))
		return;
	call->flags = (unsigned)flags;
	call->enters = ours ? 0 : CALL_ENTERS_NODE;
	call_submit(call);
}

static int act_remove_users(struct call *call)
{
	return weight_file_removexattr(call->node->file, call->name);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct node *node = node_of(fs_of(req), ino);
	struct call *call;

	if (attr_is_ours(name)) {
		/* rsync -X removes what its source lacks. */
		if (is_staged(node))
			(void)fuse_reply_err(req, 0);
		else
			reply_refused(req, -EPERM, node, NULL,
				      "user.weights attributes can't be "
				      "removed");
		return;
	}
	if (!is_users(name) || node->kind != NODE_FILE) {
		reply_err(req, is_users(name) ? -ENODATA : -EOPNOTSUPP);
		return;
	}
	call = call_on_attr(req, node, name, act_remove_users, NULL);
	if (!call)
		return;
	call->enters = CALL_ENTERS_NODE;
	call_submit(call);
}
