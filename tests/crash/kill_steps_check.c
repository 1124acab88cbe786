/* SPDX-License-Identifier: Apache-2.0 */
/* What must be so after a kill, by how far the life before had come. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/util.h"
#include "kill_steps.h"

/* What a fate allows. Whatever isn't allowed there must not be. */
static const struct expectation {
	bool may_be_absent, may_be_staged, may_be_published;
	bool is_durable;     /* it was said to be */
	bool may_be_damaged; /* FILE_LARGE, by us */
	/* Once nothing is pending; UNKNOWN: HOT or COLD. */
	enum weight_residency residency;
} expectations[FATES] = {
	/* clang-format off */
	[NOTHING]    = { true,  true,  false, false, false, WEIGHT_UNKNOWN },
	[STAGING]    = { true,  true,  false, false, false, WEIGHT_UNKNOWN },
	[PUBLISHING] = { false, true,  true,  false, false, WEIGHT_HOT },
	[PUBLISHED]  = { false, false, true,  false, false, WEIGHT_HOT },
	[DURABLE]    = { false, false, true,  true,  false, WEIGHT_HOT },
	[COOLING]    = { false, false, true,  true,  false, WEIGHT_UNKNOWN },
	[COLD_ASKED] = { false, false, true,  true,  false, WEIGHT_COLD },
	[COLD]       = { false, false, true,  true,  false, WEIGHT_COLD },
	[WARMING]    = { false, false, true,  true,  false, WEIGHT_UNKNOWN },
	[HOT_ASKED]  = { false, false, true,  true,  false, WEIGHT_HOT },
	[HOT]        = { false, false, true,  true,  false, WEIGHT_HOT },
	[DAMAGING]   = { false, false, true,  false, true,  WEIGHT_HOT },
	[DEGRADED]   = { false, false, true,  false, true,  WEIGHT_HOT },
	[REPAIRING]  = { false, false, true,  false, true,  WEIGHT_HOT },
	[REPAIRED]   = { false, false, true,  true,  false, WEIGHT_HOT },
	[REMOVING]   = { true,  false, true,  true,  false, WEIGHT_HOT },
	[REMOVED]    = { true,  false, false, false, false, WEIGHT_UNKNOWN },
	/* clang-format on */
};

/* ---- Bytes ---- */

/* Whether the backing file has the bytes that it should have. */
static bool bytes_are_right(struct weight_file *f, unsigned generation,
			    unsigned i)
{
	const struct pattern p = file_pattern(generation, i);
	auto_free char *found = malloc(p.size + 1);
	auto_fd int fd = reopen(f, O_RDONLY);

	must(found, "memory", 0);
	return pread(fd, found, p.size + 1, 0) == (ssize_t)p.size &&
	       pattern_check(&p, 0, found, p.size) == p.size;
}

/* A file that may be served has the right bytes, whatever was done to it. */
static bool check_file(struct weight_group *g, unsigned generation, unsigned i)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	bool is_right;
	int r;

	find_file(g, i, &f);
	is_right = bytes_are_right(f, generation, i);
	r = weight_file_open(f, O_RDONLY, true);
	if (r == 0) {
		r = weight_file_range_check(f, 0, file_size(i));
		must(is_right || !weight_file_may_pass(f),
		     "wrong bytes may pass", r);
		must(is_right || r == -EIO, "wrong bytes are served", r);
		weight_file_close(f, O_RDONLY);
	}
	must(!is_right || r == 0, "whole, and refused", r);
	return is_right;
}

/* Whether all are right; the ones that nobody damaged must be. */
static bool check_files(struct weight_group *g, unsigned generation,
			bool may_be_damaged)
{
	bool all = true;

	for (unsigned i = 0; i < FILES; i++) {
		bool is_right = check_file(g, generation, i);

		must(is_right || (may_be_damaged && i == FILE_LARGE),
		     "wrong bytes", (int)i);
		all &= is_right;
	}
	return all;
}

static void check_staged(struct weight_group *g, unsigned generation,
			 enum fate fate)
{
	for (unsigned i = 0; fate == PUBLISHING && i < FILES; i++) {
		cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;

		find_file(g, i, &f);
		must(bytes_are_right(f, generation, i), "staged bytes", (int)i);
	}
	abort_group(g, generation);
}

/* ---- Memory ---- */

/*
 * Bytes of files below a directory that this process holds in locked mappings,
 * as the kernel says.
 */
static uint64_t locked_below(const char *dir)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	unsigned long long rss = 0;
	uint64_t sum = 0;
	bool is_below = false;
	char line[2 * PATH_LEN];

	must(f, "smaps", errno);
	while (fgets(line, sizeof(line), f)) {
		const char *path = strchr(line, '/');

		if (strchr("0123456789abcdef", line[0]) && strchr(line, '-'))
			is_below = path && strncmp(path, dir, strlen(dir)) == 0;
		else if (strncmp(line, "Rss:", 4) == 0)
			rss = strtoull(line + 4, NULL, 10);
		else if (strncmp(line, "VmFlags:", 8) == 0 && is_below &&
			 strstr(line, " lo"))
			sum += rss << 10;
	}
	(void)fclose(f);
	return sum;
}

static uint64_t locked_of(struct weight_group *g)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	char path[PATH_LEN];

	find_file(g, FILE_MODEL, &f);
	backing_path(f, path);
	*(strrchr(path, '/') + 1) = '\0';
	return locked_below(path);
}

static uint64_t bytes_in_pages(void)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t sum = 0;

	for (unsigned i = 0; i < FILES; i++)
		sum += (file_size(i) + page - 1) / page * page;
	return sum;
}

/* The record, what the store says, and what the kernel says are one. */
static void check_residence(struct weight_group *g,
			    enum weight_residency expected)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m =
		metadata_of(g);
	struct weight_residence residence;
	uint64_t locked = locked_of(g);
	int r = weight_group_residence(g, &residence);

	must(r == 0, "residence", r);
	must(m->operation_id == 0, "an operation doesn't end", 0);
	must(m->residency == residence.residency,
	     "the record says something else", (int)m->residency);
	if (residence.residency != expected && expected != WEIGHT_UNKNOWN)
		(void)fprintf(stderr,
			      "generation %llu, metadata generation %llu, %s "
			      "on record, really %s, should be %s\n",
			      (unsigned long long)m->identity.generation,
			      (unsigned long long)m->metadata_generation,
			      weight_residency_name(m->residency),
			      weight_residency_name(residence.residency),
			      weight_residency_name(expected));
	must(residence.residency == expected ||
		     (expected == WEIGHT_UNKNOWN &&
		      (residence.residency == WEIGHT_HOT ||
		       residence.residency == WEIGHT_COLD)),
	     "another residence", (int)residence.residency);
	if (residence.residency == WEIGHT_HOT)
		must(locked >= bytes_in_pages(), "HOT, and not all is locked",
		     (int)(locked >> 10));
	else
		must(locked == 0, "COLD, and something is locked",
		     (int)(locked >> 10));
}

/* ---- A generation ---- */

/* The record says it only if it is so, and what was said stays said. */
static void check_durable(struct weight_group *g, bool was_said)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m =
		metadata_of(g);

	must(m->durable || !was_said, "it is not durable any more", 0);
	must(!m->durable || step_was_made("read back"),
	     "durable, and was never read back", 0);
}

/* Damage that there is gets known, and good files mend it. */
static void check_damage(struct weight_group *g, unsigned generation,
			 bool is_whole)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *then =
		NULL;

	scrub_group(g);
	m = metadata_of(g);
	must(m->availability == (is_whole ? WEIGHT_READY : WEIGHT_DEGRADED),
	     "a scrub that finds something else", (int)m->availability);
	(void)check_files(g, generation, true);
	repair_group(g, generation);
	then = metadata_of(g);
	must(then->availability == WEIGHT_READY, "it was repaired",
	     (int)then->availability);
	must(check_files(g, generation, false), "repaired bytes", 0);
}

static void check_published(struct weight_group *g, unsigned generation,
			    enum fate fate)
{
	const struct expectation *e = &expectations[fate];
	bool is_mapped = atomic_load(&shared->mapped) == generation;
	bool is_whole;

	check_durable(g, e->is_durable);
	is_whole = check_files(g, generation, e->may_be_damaged);
	wait_group(g);
	if (e->may_be_damaged)
		check_damage(g, generation, is_whole);
	wait_group(g);
	check_durable(g, true);
	check_residence(g, e->residency);
	if (is_mapped) {
		must(!remove_group(g), "removed under a reader", 0);
		tell_reader(NULL, 0);
	}
	must(true, "removal", 0);
	while (!remove_group(g))
		(void)usleep(PAUSE_US);
}

/* What a repair left behind in staging. */
static void clear_copies(unsigned generation)
{
	uint64_t at = 0;

	while (weight_dir_next_generation(lineage, true, at, &at) == 0) {
		struct weight_group *g = NULL;
		char name[NAME_LEN];

		must(at > generation, "staged, and nobody did it", (int)at);
		generation_name((unsigned)at, name);
		must(weight_dir_staged(lineage, name, &g) == 0, "staged", 0);
		abort_group(g, (unsigned)at);
		weight_group_unref(g);
	}
}

static void check_tombstone(const char *name)
{
	struct weight_group *g = NULL;
	struct buf why = BUF_INIT;
	int r = weight_dir_stage(lineage, name, 0755, &caller, &g, &why);

	must(r == -EEXIST, "a removed generation can be staged", r);
	buf_release(&why);
}

static void check_generation(unsigned generation, enum fate fate)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *staged = NULL;
	cleanup(weight_group_unref_cleanup) struct weight_group *ready = NULL;
	const struct expectation *e = &expectations[fate];
	char name[NAME_LEN];
	int r;

	generation_name(generation, name);
	r = weight_dir_staged(lineage, name, &staged);
	must(r == 0 || r == -ENOENT, "staged", r);
	r = weight_dir_published(lineage, name, &ready);
	must(r == 0 || r == -ENOENT, "published", r);
	must(!staged || !ready, "is staged and published", 0);
	must(!staged || e->may_be_staged, "is staged", (int)fate);
	must(!ready || e->may_be_published, "is published", (int)fate);
	must(staged || ready || e->may_be_absent, "is not there", (int)fate);
	if (staged) {
		check_staged(staged, generation, fate);
	} else {
		clear_copies(generation);
		if (ready)
			check_published(ready, generation, fate);
		if (ready || fate >= REMOVING)
			check_tombstone(name);
	}
}

static void check_keeper(void)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	char name[NAME_LEN];
	int r;

	generation_name(KEEPER, name);
	r = weight_dir_published(lineage, name, &g);
	must(r == 0, "the revision that nobody touches", r);
	m = metadata_of(g);
	must(m->durable, "it is not durable any more", 0);
	must(!remove_group(g), "removed under its reader", 0);
	must(check_files(g, KEEPER, false), "its bytes", 0);
	wait_group(g);
	check_residence(g, WEIGHT_HOT);
}

/* ---- Lives ---- */

void live_check(void)
{
	unsigned generation = atomic_load(&shared->generation);
	struct buf why = BUF_INIT;
	int r;

	open_store();
	check_generation(generation, atomic_load(&shared->fate));
	check_keeper();
	must(true, "the wait for all", 0);
	r = weight_tree_wait(store, NULL, &why);
	must(r == 0, why.data, r);
	await_groups(1);
	buf_release(&why);
	close_store();
	_exit(0);
}

void live_end(void)
{
	struct weight_group *g = NULL;
	char name[NAME_LEN];

	open_store();
	generation_name(KEEPER, name);
	must(weight_dir_published(lineage, name, &g) == 0, "the keeper", 0);
	must(true, "its removal", 0);
	while (!remove_group(g))
		(void)usleep(PAUSE_US);
	weight_group_unref(g);
	await_groups(0);
	close_store();
	_exit(0);
}
