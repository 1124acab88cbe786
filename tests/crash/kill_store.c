/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kills a process that stages, publishes, aborts and removes, at random
 * instants, and looks at what the next one finds: every generation is whole or
 * not there, and what was acknowledged is so.
 *
 * usage: kill_store [ROUNDS [SEED]]
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/config.h"
#include "core/digest.h"
#include "core/util.h"
#include "core/weight_key.h"
#include "core/weight_store.h"
#include "core/weight_tree.h"

#define ROUNDS 50
#define FRESH_ROUNDS 10 /* of them on a store that isn't made yet */
#define FRESH_US 40000  /* within which those are killed */
#define LIFE_US 400000  /* and the others */
#define GENERATIONS 100000
#define REOPEN_EVERY 5
#define FILES 3
#define PATH_LEN 128
#define NAME_LEN 24
#define SETTLE_TRIES 300
#define SETTLE_US 10000

/* What is so, or is being made so. */
enum fate {
	NOTHING,
	STAGING, /* asked for */
	STAGED,
	FILLED, /* staged, and all files were closed */
	ABORTING,
	PUBLISHING,
	PUBLISHED,
	REMOVING,
	REMOVED,
};

/* What the child says through the pipe, before and after each step. */
struct word {
	unsigned generation;
	enum fate fate;
};

static unsigned char fates[GENERATIONS];
static unsigned top; /* no generation above it was ever named */
static char path[PATH_LEN];
static unsigned long seed;
static struct config config;
static struct weight_store *store;
static struct weight_dir *lineage;
static const struct weight_caller caller;

static void must(bool ok, const char *what, unsigned generation, int r)
{
	if (ok)
		return;
	(void)fprintf(stderr,
		      "generation %u: %s: %d (seed %lu, store left in '%s')\n",
		      generation, what, r, seed, path);
	_exit(1);
}

/* ---- The store ---- */

static void open_store(void)
{
	static const char *const parts[] = { "t", "n", "r", "main" };
	struct buf why = BUF_INIT;
	struct weight_dir *dir;
	int r = weight_store_open(path, &config, &store, &why);

	must(r == 0, why.data, 0, r);
	dir = weight_dir_ref(weight_tree_root(store));
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		struct weight_dir *child = NULL;

		r = weight_dir_mkdir(dir, parts[i], 0755, &caller, &child,
				     &why);
		if (r == -EEXIST)
			r = weight_dir_lookup(dir, parts[i], &child);
		must(r == 0, "making the lineage", 0, r);
		weight_dir_unref(dir);
		dir = child;
	}
	lineage = dir;
	buf_release(&why);
}

static void close_store(void)
{
	weight_dir_unref(take_ptr(lineage));
	weight_store_close(take_ptr(store));
}

static int reopen(struct weight_file *f, int flags)
{
	char link[64];

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d",
		       weight_file_fd(f));
	return open(link, flags | O_CLOEXEC);
}

/* ---- What each generation holds ---- */

static const char *const names[FILES] = { "model.safetensors", "empty",
					  "large.bin" };

static void contents(unsigned generation, unsigned i, struct buf *ret)
{
	static const char head[] = "\x40\0\0\0\0\0\0\0"
				   "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],"
				   "\"data_offsets\":[0,8]}}          ";
	char piece[8];

	(void)snprintf(piece, sizeof(piece), "%07u", generation);
	if (i == 0) {
		must(buf_append(ret, head, sizeof(head) - 1) == 0, "buf", 0, 0);
		must(buf_append(ret, piece, 8) == 0, "buf", 0, 0);
	}
	for (unsigned n = generation % 5000; i == 2 && n > 0; n--)
		must(buf_append(ret, piece, 8) == 0, "buf", 0, 0);
}

/* ---- The child ---- */

static void say(int pipe, unsigned generation, enum fate fate)
{
	const struct word word = { generation, fate };

	must(write(pipe, &word, sizeof(word)) == sizeof(word), "say",
	     generation, errno);
}

static void put(struct weight_group *g, unsigned generation, unsigned i)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	struct buf bytes = BUF_INIT;
	int fd, r;

	contents(generation, i, &bytes);
	r = weight_group_enter(g, NULL);
	must(r == 0, "enter", generation, r);
	r = weight_group_root(g, &root);
	if (r == 0)
		r = weight_file_create(root, names[i], 0644, &caller, &f);
	if (r == 0)
		r = weight_file_open(f, O_WRONLY, true);
	must(r == 0, "create", generation, r);
	weight_group_leave(g);
	fd = reopen(f, O_WRONLY);
	must(write(fd, bytes.data, bytes.len) == (ssize_t)bytes.len, "write",
	     generation, errno);
	(void)close(fd);
	weight_file_close(f, O_WRONLY);
	buf_release(&bytes);
}

static void empty_and_abort(struct weight_group *g, unsigned generation,
			    const char *name)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	struct buf why = BUF_INIT;
	int r = weight_group_root(g, &root);

	must(r == 0 && weight_group_enter(g, NULL) == 0, "enter", generation,
	     r);
	for (unsigned i = 0; i < FILES; i++) {
		r = weight_file_unlink(root, names[i]);
		must(r == 0, "unlink", generation, r);
	}
	weight_group_leave(g);
	r = weight_dir_unstage(lineage, name, &why);
	must(r == 0, "abort", generation, r);
	buf_release(&why);
}

static void bring_in(int pipe, unsigned generation)
{
	struct weight_group *g = NULL;
	struct buf why = BUF_INIT;
	char name[NAME_LEN];
	int r;

	(void)snprintf(name, sizeof(name), "%u", generation);
	say(pipe, generation, STAGING);
	r = weight_dir_stage(lineage, name, 0755, &caller, &g, &why);
	must(r == 0, "stage", generation, r);
	say(pipe, generation, STAGED);
	for (unsigned i = 0; i < FILES; i++)
		put(g, generation, i);
	say(pipe, generation, FILLED);
	if (generation % 4 == 1) {
		say(pipe, generation, ABORTING);
		empty_and_abort(g, generation, name);
		say(pipe, generation, NOTHING);
	} else if (generation % 4 != 2) {
		say(pipe, generation, PUBLISHING);
		r = weight_group_publish(g, lineage, name, false, NULL, &why);
		must(r == 0, why.data, generation, r);
		say(pipe, generation, PUBLISHED);
	}
	weight_group_unref(g);
	buf_release(&why);
}

static void take_away(int pipe, unsigned generation)
{
	struct weight_group *g = NULL;
	struct buf why = BUF_INIT;
	char name[NAME_LEN];
	int r;

	(void)snprintf(name, sizeof(name), "%u", generation);
	if (weight_dir_published(lineage, name, &g) < 0)
		return;
	say(pipe, generation, REMOVING);
	r = weight_group_remove(g, 0, &why);
	must(r == 0, "remove", generation, r);
	say(pipe, generation, REMOVED);
	weight_group_unref(g);
	buf_release(&why);
}

static void live(int pipe)
{
	open_store();
	for (unsigned n = top + 1;; n++) {
		bring_in(pipe, n);
		if (n > 3)
			take_away(pipe, n - 3);
		if (n % REOPEN_EVERY == 0) {
			close_store();
			open_store();
		}
	}
}

/* ---- The parent ---- */

static void check_file(struct weight_group *g, struct weight_file *root,
		       unsigned generation, unsigned i)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	struct buf bytes = BUF_INIT;
	auto_free char *found = NULL;
	int r = weight_file_lookup(root, names[i], &f);
	int fd;

	must(r == 0, names[i], generation, r);
	contents(generation, i, &bytes);
	found = malloc(bytes.len + 1);
	fd = reopen(f, O_RDONLY);
	must(found && fd >= 0, "open", generation, errno);
	must(read(fd, found, bytes.len + 1) == (ssize_t)bytes.len, "size",
	     generation, errno);
	must(memcmp(found, bytes.data, bytes.len) == 0, "bytes", generation, 0);
	(void)close(fd);
	if (weight_group_state(g) == WEIGHT_GROUP_PUBLISHED) {
		struct digest chunk, root_said, root_is;

		r = weight_file_digest(f, &root_said);
		must(r == 0, "digest", generation, r);
		must(digest_of(bytes.data, bytes.len, &chunk) == 0 &&
			     digest_root(&chunk, bytes.len > 0, &root_is) == 0,
		     "hash", generation, 0);
		must(digest_equal(&root_said, &root_is), "wrong digest",
		     generation, 0);
	}
	buf_release(&bytes);
}

static void check_files(struct weight_group *g, unsigned generation)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	int r = weight_group_root(g, &root);

	must(r == 0, "root", generation, r);
	for (unsigned i = 0; i < FILES; i++)
		check_file(g, root, generation, i);
}

/* Stores what is so now as the fate. */
static void check_generation(unsigned generation)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *staged = NULL;
	cleanup(weight_group_unref_cleanup) struct weight_group *ready = NULL;
	enum fate was = fates[generation];
	char name[NAME_LEN];
	int r;

	(void)snprintf(name, sizeof(name), "%u", generation);
	r = weight_dir_staged(lineage, name, &staged);
	must(r == 0 || r == -ENOENT, "staged", generation, r);
	r = weight_dir_published(lineage, name, &ready);
	must(r == 0 || r == -ENOENT, "published", generation, r);
	must(!staged || !ready, "is staged and published", generation, 0);
	if (ready) {
		must(was == PUBLISHING || was == PUBLISHED || was == REMOVING,
		     "is published", generation, was);
		check_files(ready, generation);
		fates[generation] = PUBLISHED;
	} else if (staged) {
		must(was >= STAGING && was <= PUBLISHING, "is staged",
		     generation, was);
		if (was == FILLED || was == PUBLISHING)
			check_files(staged, generation);
		/* It may have been half filled or half emptied: so it stays. */
		fates[generation] = was == PUBLISHING ? FILLED :
				    was == FILLED     ? FILLED :
							STAGED;
	} else {
		must(was == NOTHING || was == STAGING || was == ABORTING ||
			     was == REMOVING || was == REMOVED,
		     "is not there", generation, was);
		fates[generation] = was >= REMOVING ? REMOVED : NOTHING;
	}
}

/* Nothing was lost, and all of it gets where it belongs. */
static void check_settled(unsigned generation)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	struct weight_residence seen;
	struct buf why = BUF_INIT;
	char name[NAME_LEN];
	int r;

	if (fates[generation] != PUBLISHED)
		return;
	(void)snprintf(name, sizeof(name), "%u", generation);
	r = weight_dir_published(lineage, name, &g);
	if (r == 0)
		r = weight_group_wait(g, NULL, &why);
	must(r >= 0, "wait", generation, r);
	r = weight_group_metadata(g, &m);
	must(r == 0, "metadata", generation, r);
	must(m->availability == WEIGHT_READY, "is damaged", generation,
	     (int)m->availability);
	must(m->durable, "isn't durable", generation, 0);
	r = weight_group_residence(g, &seen);
	must(r == 0 && seen.residency == m->residency, "is elsewhere",
	     generation, r);
	buf_release(&why);
}

/* Directories of groups, once the deletions in the background are over. */
static unsigned count_groups(unsigned expected)
{
	char command[2 * PATH_LEN];
	unsigned count = 0;

	(void)snprintf(command, sizeof(command),
		       "find '%s/groups' -mindepth 2 -maxdepth 2 | wc -l",
		       path);
	for (int i = 0; i < SETTLE_TRIES; i++) {
		FILE *f = popen(command, "r");

		must(f && fscanf(f, "%u", &count) == 1, "find", 0, errno);
		(void)pclose(f);
		if (count == expected)
			break;
		(void)usleep(SETTLE_US);
	}
	return count;
}

static void check_store(bool thorough)
{
	unsigned expected = 0;
	uint64_t at = 0;
	unsigned n;

	open_store();
	for (n = 1; n <= top; n++) {
		check_generation(n);
		expected += fates[n] != NOTHING && fates[n] != REMOVED;
	}
	while (weight_dir_next_generation(lineage, false, at, &at) == 0)
		must(at <= top && fates[at] == PUBLISHED, "is listed",
		     (unsigned)at, 0);
	at = 0;
	while (weight_dir_next_generation(lineage, true, at, &at) == 0)
		must(at <= top && (fates[at] == STAGED || fates[at] == FILLED),
		     "is listed as staged", (unsigned)at, 0);
	if (thorough) {
		n = count_groups(expected);
		must(n == expected, "directories of groups", expected, (int)n);
		for (n = 1; n <= top; n++)
			check_settled(n);
	}
	close_store();
}

static void hear(int pipe)
{
	struct word word;

	while (read(pipe, &word, sizeof(word)) == sizeof(word)) {
		must(word.generation < GENERATIONS, "too many", 0, 0);
		fates[word.generation] = (unsigned char)word.fate;
		if (word.generation > top)
			top = word.generation;
	}
}

static void kill_one(useconds_t within)
{
	int ends[2], status;
	pid_t pid;

	must(pipe(ends) == 0, "pipe", 0, errno);
	pid = fork();
	must(pid >= 0, "fork", 0, errno);
	if (pid == 0) {
		(void)close(ends[0]);
		live(ends[1]);
	}
	(void)close(ends[1]);
	(void)usleep((useconds_t)(rand() % (int)within));
	(void)kill(pid, SIGKILL);
	must(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status),
	     "the child ended by itself", 0, status);
	hear(ends[0]);
	(void)close(ends[0]);
}

static void remove_store(void)
{
	char command[2 * PATH_LEN];

	(void)snprintf(command, sizeof(command), "rm -rf '%s'", path);
	must(system(command) == 0, "rm", 0, errno);
	memset(fates, 0, sizeof(fates));
	top = 0;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS;

	seed = argc > 2 ? strtoul(argv[2], NULL, 10) : (unsigned long)getpid();
	srand((unsigned)seed);
	config_init(&config);
	(void)snprintf(path, sizeof(path), "/var/tmp/weight-kill.XXXXXX");
	must(mkdtemp(path) != NULL, "mkdtemp", 0, errno);
	for (int i = 0; i < rounds; i++) {
		kill_one(i < FRESH_ROUNDS ? FRESH_US : LIFE_US);
		check_store(i < FRESH_ROUNDS || i % 8 == 7 || i == rounds - 1);
		if (i < FRESH_ROUNDS)
			remove_store();
	}
	(void)printf("%d kills, %u generations, all whole or not there\n",
		     rounds, top);
	remove_store();
	return 0;
}
