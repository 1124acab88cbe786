/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/refusal.h"

#include "core/cleanup.h"
#include "core/log.h"
#include "core/metrics.h"

const char refusal_published[] =
	"a published generation never changes; stage another one, or remove "
	"this one as a whole with user.weights.remove";

static const char no_descriptor[] =
	"the daemon has no descriptor left: raise its limit of open files "
	"(LimitNOFILE, ulimit -n)";

/* These mean that something is wrong with the machine, not the request. */
static bool is_trouble(int err)
{
	return err == -EIO || err == -ENOSPC || err == -EDQUOT ||
	       err == -EUCLEAN || err == -ENOMEM || err == -EMFILE ||
	       err == -ENFILE;
}

static void set_dir_error(struct node *node, const char *why)
{
	char *copy = strdup(why);
	char *old;

	if (!copy)
		return;
	(void)pthread_mutex_lock(&node->lock);
	old = node->error;
	node->error = copy;
	(void)pthread_mutex_unlock(&node->lock);
	free(old);
}

static void keep(struct fs *fs, struct node *node, const char *why)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(node);
	struct node *dir;

	if (group) {
		weight_group_set_error(group, why);
		return;
	}
	dir = node->dir ? node_find_dir(fs, node->dir) : NULL;
	if (!dir)
		return;
	set_dir_error(dir, why);
	node_unref(fs, dir, 1);
}

/* For the log: `error` says so anyway, for as long as it is true. */
static void describe_damage(struct node *node, struct buf *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(node);

	if (group && weight_group_state(group) == WEIGHT_GROUP_PUBLISHED)
		(void)weight_group_damage(group, ret);
}

void refusal_note(struct fs *fs, int err, struct node *node, const char *name,
		  const char *why)
{
	cleanup(buf_release) struct buf damage = BUF_INIT;
	struct buf path = BUF_INIT;

	if (err == -EROFS)
		metrics_add(METRIC_GROUP_GUARD_REFUSALS, 1);
	if (why[0] == '\0' && err == -EROFS)
		why = refusal_published;
	if (why[0] == '\0' && err == -EMFILE)
		why = no_descriptor;
	if (why[0] == '\0' && !is_trouble(err))
		return;
	node_path(fs, node, name, &path);
	if (why[0] != '\0')
		keep(fs, node, why);
	else if (err == -EIO || err == -EUCLEAN)
		describe_damage(node, &damage);
	if (damage.len > 0)
		why = damage.data;
	if (is_trouble(err))
		log_warn(err, "'%s'%s%s", path.data, why[0] ? ": " : "", why);
	else
		log_info("refused '%s': %s (%s)", path.data, why,
			 strerror(-err));
	buf_release(&path);
}

int refusal_get(struct node *node, struct buf *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(node);
	int r = 0;

	if (group)
		return weight_group_error(group, ret);
	(void)pthread_mutex_lock(&node->lock);
	if (node->error)
		r = buf_printf(ret, "%s", node->error);
	(void)pthread_mutex_unlock(&node->lock);
	return r;
}
