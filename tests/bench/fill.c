/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a store of very many small revisions for the row that starts on one:
 * COLD and durable, as a mount leaves them that nobody has used for long.
 *
 *	fill STORE FROM TO GENERATIONS [names]
 *
 * Lineage i, from FROM to below TO, is fill/fill/<i>/main. Each revision is
 * published as on a mount. What would make that slow is waiting for the disk
 * some times each, so here nothing waits for it; the caller syncs when all is
 * there.
 *
 * With "names" a revision has its record and, where its directory would be, a
 * name: a link to an empty file. That is what a start reads of one, and a
 * million of them can be made, and removed again, in a minute.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/clock.h"
#include "core/config.h"
#include "core/util.h"
#include "core/weight_key.h"
#include "core/weight_metadata_store.h"
#include "core/weight_store.h"
#include "core/weight_tree.h"
#include "tests/bench/unsynced.h"

#define NAME_LEN 24
#define PATH_LEN 4096
#define BEHIND 32       /* revisions of a thread that may have work pending */
#define THREADS 16      /* a publish is handed from thread to thread */
#define LINKS_MAX 60000 /* of one file; ext4 has room for 65000 */
#define OPTIONS                                                                \
	"durability=none,default_weight_preferred_residency="                  \
	"cold,memory=64M,log=stderr"

static struct config config;
static struct weight_store *store;
static const struct weight_caller caller;
static unsigned lineages_end, generations;
static atomic_uint next_lineage;

static const char shard[] = "\x40\0\0\0\0\0\0\0"
			    "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],"
			    "\"data_offsets\":[0,8]}}          "
			    "weights.";

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
		if (m->availability == WEIGHT_READY && !m->durable)
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
	while ((i = atomic_fetch_add(&next_lineage, 1)) < lineages_end) {
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

/* ---- Names only ---- */

static void publish_record(struct weight_metadata_store *records,
			   const struct weight_identity *id, const char *group)
{
	struct buf key = BUF_INIT, why = BUF_INIT;
	struct weight_publication p = {
		.identity = *id,
		.policy = { WEIGHT_COLD, 0.5, WEIGHT_AUTO },
		.affinity_count = 1,
		.residency = WEIGHT_COLD,
		.durable = true,
	};

	must(weight_manifest_key(id, &key), "a key", NULL);
	p.manifest = (struct weight_manifest_ref){
		.manifest_key = key.data,
		.payload_group_id = group,
		.complete = true,
		.payload_count = 1,
		.logical_bytes = sizeof(shard) - 1,
	};
	must(wms_stage(records, id, clock_realtime_ms(), &why), "staging",
	     &why);
	must(wms_publish(records, &p, clock_realtime_ms(), NULL, &why),
	     "publishing", &why);
	buf_release(&key);
	buf_release(&why);
}

static void make_name(const char *path)
{
	static char source[PATH_LEN];
	static unsigned links;
	int fd;

	if (links++ % LINKS_MAX != 0) {
		must(link(source, path) < 0 ? -errno : 0, path, NULL);
		return;
	}
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	must(fd < 0 ? -errno : 0, path, NULL);
	(void)close(fd);
	(void)snprintf(source, sizeof(source), "%s", path);
}

static void put_name(struct weight_metadata_store *records, const char *path,
		     const struct weight_identity *id)
{
	char group[WEIGHT_GROUP_ID_LEN + 1];
	const char *hex = group + strlen(WEIGHT_GROUP_ID_PREFIX);
	char name[PATH_LEN];

	must(weight_group_id(id, group), "a group", NULL);
	publish_record(records, id, group);
	(void)snprintf(name, sizeof(name), "%s/groups/%.2s", path, hex);
	if (mkdir(name, 0700) < 0 && errno != EEXIST)
		must(-errno, name, NULL);
	(void)snprintf(name, sizeof(name), "%s/groups/%.2s/%s", path, hex, hex);
	make_name(name);
}

static void fill_names(const char *path)
{
	cleanup(wms_close_cleanup) struct weight_metadata_store *records = NULL;
	struct buf why = BUF_INIT;
	char meta[PATH_LEN], resource[NAME_LEN];

	(void)snprintf(meta, sizeof(meta), "%s/meta", path);
	must(wms_open(meta, &records, &why), "opening the records", &why);
	for (unsigned i = next_lineage; i < lineages_end; i++) {
		struct weight_identity id = {
			.lineage = { "fill", "fill", resource, "main" },
		};

		(void)snprintf(resource, sizeof(resource), "%u", i);
		while (id.generation++ < generations)
			put_name(records, path, &id);
	}
	buf_release(&why);
}

/* ---- All of it ---- */

static void fill_all(const char *path, bool names)
{
	if (!names)
		fill();
	for (unsigned i = next_lineage; names && i < lineages_end; i++)
		weight_dir_unref(make_lineage(i));
	weight_store_close(store);
	if (names)
		fill_names(path);
	else
		mark_durable(path);
}

int main(int argc, char *argv[])
{
	struct buf why = BUF_INIT;

	if (argc != 5 && argc != 6) {
		(void)fprintf(stderr, "see the head of the source\n");
		return 2;
	}
	next_lineage = (unsigned)strtoul(argv[2], NULL, 10);
	lineages_end = (unsigned)strtoul(argv[3], NULL, 10);
	generations = (unsigned)strtoul(argv[4], NULL, 10);
	config_init(&config);
	must(config_parse_list(&config, OPTIONS, &why), "options", &why);
	must(weight_store_open(argv[1], &config, &store, &why), argv[1], &why);
	fill_all(argv[1], argc == 6);
	buf_release(&why);
	return 0;
}
