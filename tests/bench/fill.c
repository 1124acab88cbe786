/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a store of very many small revisions for the row that starts on one:
 * COLD and durable, as a mount leaves them that nobody has used for long.
 *
 *	fill STORE LINEAGES GENERATIONS
 *
 * Lineage i is fill/fill/<i>/main. Each revision is published as on a mount.
 * What would make that slow is waiting for the disk some times each, so here
 * nothing waits for it; the caller syncs when all is there.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/clock.h"
#include "core/config.h"
#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "core/weight_store.h"
#include "core/weight_tree.h"

#define NAME_LEN 24
#define PATH_LEN 4096
#define BEHIND 32  /* revisions of a thread that may have work pending */
#define THREADS 16 /* a publish is handed from thread to thread */
#define OPTIONS                                                                \
	"durability=none,default_weight_preferred_residency="                  \
	"cold,memory=64M,log=stderr"

static struct config config;
static struct weight_store *store;
static const struct weight_caller caller;
static unsigned lineages, generations;
static atomic_uint next_lineage;

static const char shard[] = "\x40\0\0\0\0\0\0\0"
			    "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],"
			    "\"data_offsets\":[0,8]}}          "
			    "weights.";

/* ---- Instead of those of the C library ---- */

int fsync(int fd)
{
	(void)fd;
	return 0;
}

int fdatasync(int fd)
{
	(void)fd;
	return 0;
}

int syncfs(int fd)
{
	(void)fd;
	return 0;
}

/* The database has a descriptor whose writes are synchronous. */
static int open_unsynced(const char *path, int flags, va_list more)
{
	mode_t mode = 0;

	if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE)
		mode = va_arg(more, mode_t);
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags & ~O_SYNC, mode);
}

int open64(const char *path, int flags, ...)
{
	va_list more;
	int fd;

	va_start(more, flags);
	fd = open_unsynced(path, flags, more);
	va_end(more);
	return fd;
}

int open(const char *path, int flags, ...)
{
	va_list more;
	int fd;

	va_start(more, flags);
	fd = open_unsynced(path, flags, more);
	va_end(more);
	return fd;
}

/* ---- Filling ---- */

static void must(int r, const char *what, const struct buf *why)
{
	if (r >= 0)
		return;
	(void)fprintf(stderr, "fill: %s: %s%s%s\n", what, strerror(-r),
		      why && why->len ? ": " : "",
		      why && why->len ? why->data : "");
	exit(1);
}

static struct weight_dir *make_lineage(unsigned i)
{
	struct weight_dir *dir = weight_dir_ref(weight_tree_root(store));
	struct buf why = BUF_INIT;
	char resource[NAME_LEN];
	const char *parts[] = { "fill", "fill", resource, "main" };

	(void)snprintf(resource, sizeof(resource), "%u", i);
	for (size_t n = 0; n < ARRAY_LEN(parts); n++) {
		struct weight_dir *child = NULL;
		int r = weight_dir_mkdir(dir, parts[n], 0755, &caller, &child,
					 &why);

		if (r == -EEXIST)
			r = weight_dir_lookup(dir, parts[n], &child);
		must(r, "making a lineage", &why);
		weight_dir_unref(dir);
		dir = child;
	}
	buf_release(&why);
	return dir;
}

static void write_shard(struct weight_file *f)
{
	char link[64];
	int fd;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d",
		       weight_file_fd(f));
	fd = open(link, O_WRONLY | O_CLOEXEC);
	must(fd < 0 ? -errno : 0, "opening a file", NULL);
	if (write(fd, shard, sizeof(shard) - 1) != (ssize_t)sizeof(shard) - 1)
		must(-EIO, "writing a file", NULL);
	(void)close(fd);
}

static struct weight_group *put(struct weight_dir *lineage, unsigned generation)
{
	struct weight_group *g = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	struct buf why = BUF_INIT;
	char name[NAME_LEN];

	(void)snprintf(name, sizeof(name), "%u", generation);
	must(weight_dir_stage(lineage, name, 0755, &caller, &g, &why),
	     "staging", &why);
	must(weight_group_enter(g, NULL), "entering", NULL);
	must(weight_group_root(g, &root), "the root", NULL);
	must(weight_file_create(root, "model.safetensors", 0644, &caller, &f),
	     "creating a file", NULL);
	must(weight_file_open(f, O_WRONLY, true), "opening a file", NULL);
	weight_group_leave(g);
	write_shard(f);
	weight_file_close(f, O_WRONLY);
	must(weight_group_publish(g, lineage, name, false, NULL, &why),
	     "publishing", &why);
	buf_release(&why);
	return g;
}

/* What is pending for a revision has descriptors, and they run out. */
static void let_go(struct weight_group *g)
{
	struct buf why = BUF_INIT;

	if (g)
		must(weight_group_wait(g, NULL, &why), "waiting", &why);
	weight_group_unref(g);
	buf_release(&why);
}

/* As the daemon records it when it has read everything back. */
static void mark_durable(const char *path)
{
	cleanup(wms_close_cleanup) struct weight_metadata_store *records = NULL;
	struct wms_position at = { 0 };
	struct weight_metadata *m = NULL;
	struct buf why = BUF_INIT;
	char meta[PATH_LEN];
	int r;

	(void)snprintf(meta, sizeof(meta), "%s/meta", path);
	must(wms_open(meta, &records, &why), "opening the records", &why);
	while ((r = wms_revision_each(records, &at, &m)) == 0) {
		must(wms_mark_durable(records, &m->identity,
				      clock_realtime_ms(), NULL),
		     "marking a revision", NULL);
		weight_metadata_free(m);
	}
	if (r != -ENOENT)
		must(r, "reading the records", NULL);
	buf_release(&why);
}

/* Takes the next lineage as long as there is one. */
static void *fill_run(void *arg)
{
	struct weight_group *last[BEHIND] = { NULL };
	unsigned i;

	(void)arg;
	while ((i = atomic_fetch_add(&next_lineage, 1)) < lineages) {
		struct weight_dir *lineage = make_lineage(i);

		for (unsigned n = 1; n <= generations; n++) {
			let_go(last[n % BEHIND]);
			last[n % BEHIND] = put(lineage, n);
		}
		weight_dir_unref(lineage);
	}
	for (i = 0; i < BEHIND; i++)
		let_go(last[i]);
	return NULL;
}

static void fill(void)
{
	pthread_t threads[THREADS];

	for (size_t i = 0; i < THREADS; i++)
		must(-pthread_create(&threads[i], NULL, fill_run, NULL),
		     "a thread", NULL);
	for (size_t i = 0; i < THREADS; i++)
		(void)pthread_join(threads[i], NULL);
}

int main(int argc, char *argv[])
{
	struct buf why = BUF_INIT;

	if (argc != 4) {
		(void)fprintf(stderr, "see the head of the source\n");
		return 2;
	}
	lineages = (unsigned)strtoul(argv[2], NULL, 10);
	generations = (unsigned)strtoul(argv[3], NULL, 10);
	config_init(&config);
	must(config_parse_list(&config, OPTIONS, &why), "options", &why);
	must(weight_store_open(argv[1], &config, &store, &why), argv[1], &why);
	fill();
	weight_store_close(store);
	mark_durable(argv[1]);
	buf_release(&why);
	return 0;
}
