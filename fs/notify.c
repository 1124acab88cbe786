/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/notify.h"

#include <signal.h>

#include "core/list.h"
#include "core/log.h"
#include "core/util.h"
#include "fs/node.h"

#define JOIN_S 1

struct notice {
	struct list in_queue;
	struct weight_group *group; /* a reference */
};

struct notifier {
	struct fs *fs;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wakes;
	pthread_cond_t sent;
	struct list queue;     /* under lock */
	uint64_t count_queued; /* under lock; ever */
	uint64_t count_sent;   /* under lock; ever */
	size_t to_forget;      /* under lock; files, when asked for */
	bool cannot_prune;     /* the thread's; not in this kernel */
	bool stopping;         /* under lock */
};

static void notice_free(struct notice *notice)
{
	weight_group_unref(notice->group);
	free(notice);
}

static void forget_name(struct fs *fs, struct weight_group *group)
{
	struct node *lineage = node_find_dir(fs, weight_group_lineage(group));
	char name[WEIGHT_GENERATION_LEN_MAX + 1];
	int r;

	if (!lineage)
		return; /* the kernel doesn't know the directory */
	weight_generation_print(weight_group_identity(group)->generation, name);
	r = fuse_lowlevel_notify_inval_entry(fs->session, node_id(fs, lineage),
					     name, strlen(name));
	if (r < 0 && r != -ENOENT)
		log_debug(r, "invalidating '%s'", name);
	node_unref(fs, lineage, 1);
}

static void send_notice(struct fs *fs, struct notice *notice)
{
	/* Takes no lock in the kernel, so it also works during a rename. */
	if (fuse_lowlevel_notify_increment_epoch(fs->session) < 0)
		forget_name(fs, notice->group);
	node_drop_group(fs, notice->group);
}

/* The node of the directory that a FILE is in, with a reference, or NULL. */
static struct node *parent_of(struct fs *fs, const struct node *node,
			      char *path, const char **ret_name)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(node);
	cleanup(weight_file_unref_cleanup) struct weight_file *at = NULL;
	char *name = path;
	int r = weight_group_root(group, &at);

	for (char *slash; r == 0 && (slash = strchr(name, '/'));
	     name = slash + 1) {
		struct weight_file *next;

		*slash = '\0';
		r = weight_file_lookup(at, name, &next);
		if (r == 0) {
			weight_file_unref(at);
			at = next;
		}
	}
	*ret_name = name;
	return r == 0 ? node_find_file(fs, at) : NULL;
}

/* What has several names is forgotten by one of them at a time. */
static void forget_file(struct fs *fs, struct node *node)
{
	struct buf path = BUF_INIT;
	struct node *parent = NULL;
	const char *name;

	if (node_path_in_group(node, &path) == 0 && path.len > 0)
		parent = parent_of(fs, node, path.data, &name);
	if (parent)
		(void)fuse_lowlevel_notify_inval_entry(
			fs->session, node_id(fs, parent), name, strlen(name));
	node_unref(fs, parent, 1);
	buf_release(&path);
}

static void forget_files(struct notifier *n, struct node **nodes, size_t count)
{
	struct compat_prune prune = { 0 };
	int r = -EINVAL;

	for (size_t i = 0; i < count; i++)
		prune.ids[i] = node_id(n->fs, nodes[i]);
	if (!n->cannot_prune)
		r = compat_notify_prune(n->fs->session, &prune,
					(uint32_t)count);
	n->cannot_prune = r == -EINVAL;
	for (size_t i = 0; i < count; i++) {
		if (n->cannot_prune)
			forget_file(n->fs, nodes[i]);
		node_unref(n->fs, nodes[i], 1);
	}
}

/* A few at a time, since removals don't wait for long. Lock held. */
static void shrink_locked(struct notifier *n)
{
	struct node *nodes[COMPAT_PRUNE_MAX];
	size_t count = n->to_forget < COMPAT_PRUNE_MAX ? n->to_forget :
							 COMPAT_PRUNE_MAX;

	n->to_forget -= count;
	(void)pthread_mutex_unlock(&n->lock);
	count = node_idle_files(n->fs, nodes, count);
	if (count > 0)
		forget_files(n, nodes, count);
	(void)pthread_mutex_lock(&n->lock);
}

static void *notifier_main(void *arg)
{
	struct notifier *n = arg;

	(void)pthread_mutex_lock(&n->lock);
	while (!n->stopping) {
		struct list *at = list_take_first(&n->queue);
		struct notice *notice;

		if (!at && n->to_forget) {
			shrink_locked(n);
			continue;
		}
		if (!at) {
			(void)pthread_cond_wait(&n->wakes, &n->lock);
			continue;
		}
		(void)pthread_mutex_unlock(&n->lock);
		notice = container_of(at, struct notice, in_queue);
		send_notice(n->fs, notice);
		notice_free(notice);
		(void)pthread_mutex_lock(&n->lock);
		n->count_sent++;
		(void)pthread_cond_broadcast(&n->sent);
	}
	(void)pthread_mutex_unlock(&n->lock);
	return NULL;
}

static void cond_init_monotonic(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	(void)pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	(void)pthread_cond_init(cond, &attr);
	(void)pthread_condattr_destroy(&attr);
}

int notifier_new(struct fs *fs, struct notifier **ret)
{
	struct notifier *n = calloc(1, sizeof(*n));
	sigset_t all, old;
	int err;

	if (!n)
		return -ENOMEM;
	n->fs = fs;
	list_init(&n->queue);
	(void)pthread_mutex_init(&n->lock, NULL);
	(void)pthread_cond_init(&n->wakes, NULL);
	cond_init_monotonic(&n->sent);

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_BLOCK, &all, &old);
	err = pthread_create(&n->thread, NULL, notifier_main, n);
	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (err != 0) {
		free(n);
		return -err;
	}
	(void)pthread_setname_np(n->thread, "notify");
	*ret = n;
	return 0;
}

/*
 * A notification may wait for a lock of a request that nobody answers any
 * more; then the connection is cut, which is about to happen anyway.
 */
static void join(struct notifier *n)
{
	struct timespec until;

	(void)clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += JOIN_S;
	if (pthread_timedjoin_np(n->thread, NULL, &until) == 0)
		return;
	fs_cut(n->fs);
	(void)pthread_join(n->thread, NULL);
}

void notifier_free(struct notifier *n)
{
	if (!n)
		return;
	(void)pthread_mutex_lock(&n->lock);
	n->stopping = true;
	(void)pthread_cond_broadcast(&n->wakes);
	(void)pthread_mutex_unlock(&n->lock);
	join(n);

	for (struct list *at = list_take_first(&n->queue); at;
	     at = list_take_first(&n->queue))
		notice_free(container_of(at, struct notice, in_queue));
	(void)pthread_cond_destroy(&n->wakes);
	(void)pthread_cond_destroy(&n->sent);
	(void)pthread_mutex_destroy(&n->lock);
	free(n);
}

void notifier_shrink(struct notifier *n)
{
	(void)pthread_mutex_lock(&n->lock);
	n->to_forget = n->fs->files_max / 2;
	(void)pthread_cond_signal(&n->wakes);
	(void)pthread_mutex_unlock(&n->lock);
}

/* Returns the number of the notice, to wait for, or 0 when there is none. */
static uint64_t queue_notice(struct notifier *n, struct weight_group *group)
{
	struct notice *notice = calloc(1, sizeof(*notice));
	uint64_t number;

	/* Without memory the names die by their timeout. */
	if (!notice)
		return 0;
	notice->group = weight_group_ref(group);
	list_init(&notice->in_queue);
	(void)pthread_mutex_lock(&n->lock);
	list_add_tail(&n->queue, &notice->in_queue);
	number = ++n->count_queued;
	(void)pthread_cond_signal(&n->wakes);
	(void)pthread_mutex_unlock(&n->lock);
	return number;
}

void notifier_removed(struct notifier *n, struct weight_group *group)
{
	(void)queue_notice(n, group);
}

void notifier_removed_wait(struct notifier *n, struct weight_group *group,
			   unsigned ms)
{
	uint64_t number = queue_notice(n, group);
	struct timespec until;
	int err = 0;

	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += (long)ms * 1000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	(void)pthread_mutex_lock(&n->lock);
	while (n->count_sent < number && err == 0)
		err = pthread_cond_timedwait(&n->sent, &n->lock, &until);
	(void)pthread_mutex_unlock(&n->lock);
}
