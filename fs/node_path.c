/* SPDX-License-Identifier: Apache-2.0 */
/* Where nodes are, for messages. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs/node.h"

/* What the kernel calls the file of a descriptor; false: it is unknown. */
static bool path_of_fd(int fd, char ret[static PATH_MAX])
{
	char link[sizeof("/proc/self/fd/") + 11];
	ssize_t n;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, ret, PATH_MAX - 1);
	if (n < 0)
		return false;
	ret[n] = '\0';
	return true;
}

/* Appends the path of one descriptor's file below that of another. */
static void path_below(int fd, int top_fd, struct buf *ret)
{
	char path[PATH_MAX], top[PATH_MAX];
	size_t len;

	if (!path_of_fd(fd, path) || !path_of_fd(top_fd, top))
		return;
	len = strlen(top);
	if (strncmp(path, top, len) == 0 && path[len] == '/')
		(void)buf_printf(ret, "%s", path + len + 1);
}

int node_path_in_group(const struct node *node, struct buf *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(node);
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	int r = weight_group_root(group, &root);

	if (r == 0)
		path_below(weight_file_fd(node->file), weight_file_fd(root),
			   ret);
	return r;
}

static void path_of_dir(struct fs *fs, struct weight_dir *dir, struct buf *ret)
{
	path_below(weight_dir_fd(dir),
		   weight_dir_fd(weight_tree_root(fs->store)), ret);
}

static void path_of_group(struct fs *fs, struct weight_group *group,
			  struct buf *ret)
{
	path_of_dir(fs, weight_group_lineage(group), ret);
	(void)buf_printf(
		ret, "/%s%llu",
		weight_group_state(group) == WEIGHT_GROUP_PUBLISHED ?
			"" :
			FS_STAGING_NAME "/",
		(unsigned long long)weight_group_identity(group)->generation);
}

/* The service directory, or something in it. */
static bool is_below_control(const struct node *node)
{
	switch (node->kind) {
	case NODE_DIR:
	case NODE_STAGING:
	case NODE_FILE:
		return false;
	default:
		return true;
	}
}

static void path_of_names(const struct node_names *names, struct buf *ret)
{
	(void)buf_printf(ret, "/%s",
			 names->kind == WEIGHT_TREE_CLAIMS ? "claims" :
							     "tombstones");
	for (unsigned i = 0; i < names->depth; i++)
		(void)buf_printf(ret, "/%s", names->parts[i]);
}

void node_path(struct fs *fs, const struct node *node, const char *name,
	       struct buf *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(node);

	if (group)
		path_of_group(fs, group, ret);
	else if (node->dir)
		path_of_dir(fs, node->dir, ret);
	if (node->kind == NODE_STAGING)
		(void)buf_printf(ret, "/" FS_STAGING_NAME);
	if (node->file && !node->group_root) {
		(void)buf_printf(ret, "/");
		(void)node_path_in_group(node, ret);
	}
	if (is_below_control(node))
		(void)buf_printf(ret, "/" FS_CONTROL_NAME);
	if (node->kind == NODE_TENSOR)
		(void)buf_printf(ret, "/tensors/%s",
				 node_tensor(node)->file_name);
	if (node->kind == NODE_OPERATIONS || node->kind == NODE_OPERATION)
		(void)buf_printf(ret, "/operations");
	if (node->kind == NODE_OPERATION)
		(void)buf_printf(ret, "/%zu.json", node->index);
	if (node->names)
		path_of_names(node->names, ret);
	if (name)
		(void)buf_printf(ret, "/%s", name);
}
