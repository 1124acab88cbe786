/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A life of replacements on the tree: one by PUT_FIRST while its base is read,
 * one by DELETE_FIRST, one that is given up, one that is interrupted and taken
 * up again. Whoever comes after a kill sees what the last deed allows, does that
 * deed again from where it was, and goes on to the end.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/util.h"
#include "core/workers.h"
#include "kill_steps.h"

#define FEW 3 /* files of those that aren't removed in several rounds */

/* Its generations, and what may be so of each. */
enum { A, B, C, D, E, NAMED };
enum { NONE = 1, STAGED = 2, READY = 4, DELETING = 8, DELETED = 16 };
#define NEW (NONE | STAGED)
#define MOVES (STAGED | READY)
#define GOES (READY | DELETING | DELETED)

/* What may be so of the latest claim. */
#define IN(phase) (1u << WEIGHT_##phase)
#define NO_CLAIM (1u << (WEIGHT_ABORTED + 1))
#define RETIRES (IN(PREPARING_TARGET) | IN(RETIRING_BASE))
#define DELETES (IN(DELETING_BASE) | IN(TARGET_IMPORTING))

/* The deed that was begun last, 2d + 1, or ended last, 2d + 2. */
enum {
	PUT,
	ANNOUNCE,
	FILL,
	PUBLISH,
	LET_GO, /* the reader of the base */
	ANNOUNCE_NEXT,
	FILL_NEXT,
	PUBLISH_NEXT,
	GIVE_UP,
	BREAK_OFF,
	TAKE_UP,
	FILL_LAST,
	PUBLISH_LAST,
	TAKE_AWAY,
	DEEDS,
};

/* clang-format off */
static const struct {
	unsigned named[NAMED]; /* A, B, C, D, E */
	unsigned phase;
} allowed[2 * DEEDS + 1] = {
#define WHILE(deed) [2 * deed + 1]
#define AFTER(deed) [2 * deed + 2]
	[0]                  = {{ NONE,       NONE,    NONE,    NONE,  NONE }, NO_CLAIM },
	WHILE(PUT)           = {{ NEW | READY, NONE,   NONE,    NONE,  NONE }, NO_CLAIM },
	AFTER(PUT)           = {{ READY,      NONE,    NONE,    NONE,  NONE }, NO_CLAIM },
	WHILE(ANNOUNCE)      = {{ READY,      NEW,     NONE,    NONE,  NONE }, NO_CLAIM | IN(PREPARING_TARGET) },
	AFTER(ANNOUNCE)      = {{ READY,      STAGED,  NONE,    NONE,  NONE }, IN(PREPARING_TARGET) },
	WHILE(FILL)          = {{ READY,      STAGED,  NONE,    NONE,  NONE }, IN(PREPARING_TARGET) },
	AFTER(FILL)          = {{ READY,      STAGED,  NONE,    NONE,  NONE }, IN(PREPARING_TARGET) },
	WHILE(PUBLISH)       = {{ READY,      MOVES,   NONE,    NONE,  NONE }, RETIRES },
	AFTER(PUBLISH)       = {{ READY,      READY,   NONE,    NONE,  NONE }, RETIRES },
	WHILE(LET_GO)        = {{ GOES,       READY,   NONE,    NONE,  NONE }, RETIRES | IN(COMPLETED) },
	AFTER(LET_GO)        = {{ DELETED,    READY,   NONE,    NONE,  NONE }, IN(COMPLETED) },
	WHILE(ANNOUNCE_NEXT) = {{ DELETED,    GOES,    NEW,     NONE,  NONE }, IN(COMPLETED) | DELETES },
	AFTER(ANNOUNCE_NEXT) = {{ DELETED,    GOES,    STAGED,  NONE,  NONE }, DELETES },
	WHILE(FILL_NEXT)     = {{ DELETED,    GOES,    STAGED,  NONE,  NONE }, DELETES },
	AFTER(FILL_NEXT)     = {{ DELETED,    DELETED, STAGED,  NONE,  NONE }, IN(TARGET_IMPORTING) },
	WHILE(PUBLISH_NEXT)  = {{ DELETED,    DELETED, MOVES,   NONE,  NONE }, IN(TARGET_IMPORTING) | IN(COMPLETED) },
	AFTER(PUBLISH_NEXT)  = {{ DELETED,    DELETED, READY,   NONE,  NONE }, IN(COMPLETED) },
	WHILE(GIVE_UP)       = {{ DELETED,    DELETED, READY,   NEW,   NONE }, IN(COMPLETED) | IN(PREPARING_TARGET) | IN(ABORTED) },
	AFTER(GIVE_UP)       = {{ DELETED,    DELETED, READY,   NONE,  NONE }, IN(ABORTED) },
	WHILE(BREAK_OFF)     = {{ DELETED,    DELETED, GOES,    NONE,  NEW },  IN(ABORTED) | DELETES },
	AFTER(BREAK_OFF)     = {{ DELETED,    DELETED, DELETED, NONE,  NONE }, IN(TARGET_IMPORTING) },
	WHILE(TAKE_UP)       = {{ DELETED,    DELETED, DELETED, NONE,  NEW },  IN(TARGET_IMPORTING) },
	AFTER(TAKE_UP)       = {{ DELETED,    DELETED, DELETED, NONE,  STAGED }, IN(TARGET_IMPORTING) },
	WHILE(FILL_LAST)     = {{ DELETED,    DELETED, DELETED, NONE,  STAGED }, IN(TARGET_IMPORTING) },
	AFTER(FILL_LAST)     = {{ DELETED,    DELETED, DELETED, NONE,  STAGED }, IN(TARGET_IMPORTING) },
	WHILE(PUBLISH_LAST)  = {{ DELETED,    DELETED, DELETED, NONE,  MOVES }, IN(TARGET_IMPORTING) | IN(COMPLETED) },
	AFTER(PUBLISH_LAST)  = {{ DELETED,    DELETED, DELETED, NONE,  READY }, IN(COMPLETED) },
	WHILE(TAKE_AWAY)     = {{ DELETED,    DELETED, DELETED, NONE,  GOES }, IN(COMPLETED) },
	AFTER(TAKE_AWAY)     = {{ DELETED,    DELETED, DELETED, NONE,  DELETED }, IN(COMPLETED) },
#undef WHILE
#undef AFTER
};
/* clang-format on */

static struct buf why = BUF_INIT;

/* ---- Its lineage, and what the generations hold ---- */

static void begin_life(void)
{
	unsigned life = atomic_load(&shared->generation);
	struct replaced *r = &shared->replaced;

	if (atomic_load(&r->life) == life)
		return;
	atomic_store(&r->fate, 0);
	atomic_store(&r->filled_boots, 0);
	atomic_store(&r->watermark, 0);
	atomic_store(&r->life, life);
}

/* Each life has a lineage of its own, in which nothing was replaced yet. */
static void enter_lineage(void)
{
	char revision[NAME_LEN];
	const char *const parts[] = { "t", "replace", "r", revision };
	struct weight_dir *dir = weight_dir_ref(weight_tree_root(store));

	(void)snprintf(revision, sizeof(revision), "life-%u",
		       atomic_load(&shared->generation));
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		struct weight_dir *child = NULL;
		int r = weight_dir_mkdir(dir, parts[i], 0755, &caller, &child,
					 &why);

		if (r == -EEXIST)
			r = weight_dir_lookup(dir, parts[i], &child);
		must(r == 0, "making the lineage", r);
		buf_release(&why);
		weight_dir_unref(dir);
		dir = child;
	}
	weight_dir_unref(lineage);
	lineage = dir;
}

static unsigned generation_of(unsigned named)
{
	return named + 1;
}

static unsigned pattern_of(unsigned named)
{
	return atomic_load(&shared->generation) + named;
}

/* The first of them is removed in more than one round. */
static unsigned files_of(unsigned named)
{
	return named == A ? FILES : FEW;
}

/* ---- What is there ---- */

static struct weight_group *group_of(unsigned named, bool staged)
{
	struct weight_group *g = NULL;
	char name[NAME_LEN];
	int r;

	generation_name(generation_of(named), name);
	r = staged ? weight_dir_staged(lineage, name, &g) :
		     weight_dir_published(lineage, name, &g);
	must(r == 0 || r == -ENOENT, name, r);
	return g;
}

static unsigned state_of(unsigned named)
{
	struct weight_identity id = {
		.lineage = { "t", "replace", "r", NULL },
		.generation = generation_of(named),
	};
	char revision[NAME_LEN];
	struct weight_group *staged = group_of(named, true);
	struct weight_metadata *m = NULL;
	unsigned state = staged ? STAGED : NONE;
	int r;

	(void)snprintf(revision, sizeof(revision), "life-%u",
		       atomic_load(&shared->generation));
	id.lineage.revision = revision;
	r = weight_get_metadata(store, &id, &m, NULL);
	must(r == 0 || r == -ENOENT, "metadata", r);
	must(r != 0 || !staged, "staged, and there is a record",
	     r == 0 ? (int)m->availability : 0);
	if (r == 0)
		state = m->availability == WEIGHT_READY    ? READY :
			m->availability == WEIGHT_DELETING ? DELETING :
			m->availability == WEIGHT_DELETED  ? DELETED :
							     0;
	weight_metadata_free(m);
	weight_group_unref(staged);
	return state;
}

/* Copies a word of what the lineage says of its claim, or "". */
static void claim_word(const char *key, char ret[static NAME_LEN])
{
	struct buf text = BUF_INIT;
	int r = weight_dir_claim(lineage, &text);
	const char *at = r == 0 ? strstr(text.data, key) : NULL;

	must(r == 0 || r == -ENODATA, "the claim", r);
	ret[0] = '\0';
	if (at)
		(void)snprintf(ret, NAME_LEN, "%.*s",
			       (int)strcspn(at + strlen(key), ","),
			       at + strlen(key));
	buf_release(&text);
}

static unsigned claim_phase(void)
{
	enum weight_upsert_phase phase;
	char word[NAME_LEN];

	claim_word("phase=", word);
	if (!word[0])
		return NO_CLAIM;
	must(weight_upsert_phase_parse(word, strlen(word), &phase) == 0, word,
	     0);
	return 1u << phase;
}

/* "7 by 8, ...". Only where there is a claim. */
static unsigned claim_base(void)
{
	struct buf text = BUF_INIT;
	int r = weight_dir_claim(lineage, &text);
	unsigned base = r == 0 ? (unsigned)atoi(text.data) : 0;

	must(base > 0, "the base of the claim", r);
	buf_release(&text);
	return base;
}

static bool is_interrupted(void)
{
	char word[NAME_LEN];

	claim_word("error=", word);
	return strstr(word, "interrupted") != NULL;
}

/* What the lineage has come to never goes back. */
static void check_watermark(void)
{
	_Atomic uint64_t *seen = &shared->replaced.watermark;
	uint64_t now = 0;
	int r = weight_dir_watermark(lineage, &now);

	must(r == 0 || r == -ENODATA, "the watermark", r);
	must(now >= atomic_load(seen), "the watermark went back", (int)now);
	atomic_store(seen, now);
}

static void check_file(struct weight_group *g, unsigned named, unsigned i)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	const struct pattern p = file_pattern(pattern_of(named), i);
	auto_free char *bytes = malloc(p.size + 1);
	auto_fd int fd = -1;

	must(bytes, "memory", 0);
	find_file(g, i, &f);
	fd = reopen(f, O_RDONLY);
	must(pread(fd, bytes, p.size + 1, 0) == (ssize_t)p.size &&
		     pattern_check(&p, 0, bytes, p.size) == p.size,
	     "wrong bytes", (int)i);
}

/* Of what is READY. */
static void check_files(unsigned named, bool is_fenced)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		group_of(named, false);
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	int r;

	/* It goes, now that its state was looked at. */
	if (!g)
		return;
	find_file(g, FILE_MODEL, &f);
	r = weight_file_open(f, O_RDONLY, true);
	if (r == -EBUSY || r == -ENOENT)
		return;
	must(!is_fenced, "somebody came to a base that goes", (int)named);
	must(r == 0, "a generation that is READY can't be read", r);
	for (unsigned i = 0; i < files_of(named); i++)
		check_file(g, named, i);
	weight_file_close(f, O_RDONLY);
}

/* What the last deed allows, whatever goes on in the background. */
static void check_all(unsigned fate)
{
	unsigned phase = claim_phase(), fenced = 0;
	unsigned found[NAMED];

	/* A target before its base: that goes when the other is there. */
	for (unsigned i = NAMED; i-- > 0;) {
		found[i] = state_of(i);
		must(allowed[fate].named[i] & found[i],
		     "a generation is what it can't be",
		     (int)(fate * 1000 + i * 100 + found[i]));
	}
	must(allowed[fate].phase & phase, "the claim can't be in that phase",
	     (int)(fate * 1000 + phase));
	must(found[A] == READY || found[B] != NONE || fate <= 2 * PUT + 1,
	     "PUT_FIRST, and neither is there", (int)fate);
	must(found[C] != READY || found[B] == DELETED,
	     "DELETE_FIRST, and both are there", (int)fate);
	must(found[E] != READY || found[C] == DELETED,
	     "DELETE_FIRST, and both are there", (int)fate);
	check_watermark();
	if (phase & (IN(RETIRING_BASE) | IN(DELETING_BASE)))
		fenced = claim_base();
	for (unsigned i = 0; i < NAMED; i++)
		if (found[i] == READY)
			check_files(i, fenced == generation_of(i));
}

static void await_phase(unsigned phases)
{
	must(true, "a phase", 0);
	while (!(claim_phase() & phases))
		(void)usleep(PAUSE_US);
}

static void await_state(unsigned named, unsigned state)
{
	must(true, "a state", 0);
	while (state_of(named) != state)
		(void)usleep(PAUSE_US);
}

/* ---- What deeds are made of ---- */

static struct weight_group *staged(unsigned named)
{
	struct weight_group *g = group_of(named, true);

	return g ? g : stage_group(generation_of(named));
}

static atomic_bool has_run;
static void run_parked(struct work *work)
{
	(void)work;
	atomic_store(&has_run, true);
}

/* Until the base has gone, as any call of the mount does. */
static void await_entry(struct weight_group *g)
{
	struct weight_parked parked = { .work = { .run = run_parked } };
	int r;

	must(true, "entering", 0);
	for (;;) {
		atomic_store(&has_run, false);
		r = weight_group_enter(g, &parked);
		must(r >= 0, "entering", r);
		if (r == 0)
			break;
		while (!atomic_load(&has_run))
			(void)usleep(PAUSE_US);
	}
	weight_group_leave(g);
}

/* Writes each file anew, whatever the last one wrote of it. */
static void fill(unsigned named)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		staged(named);
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	char name[NAME_LEN];
	int r;

	await_entry(g);
	must(weight_group_root(g, &root) == 0, "root", 0);
	for (unsigned i = 0; i < files_of(named); i++) {
		file_name(i, name);
		must(weight_group_enter(g, NULL) == 0, "enter", 0);
		r = weight_file_unlink(root, name);
		weight_group_leave(g);
		must(r == 0 || r == -ENOENT, "unlink", r);
		put_file(g, pattern_of(named), i);
	}
	atomic_store(&shared->replaced.filled_boots,
		     atomic_load(&shared->boots));
}

/* Of before a start of the machine it has to be written again. */
static void publish(unsigned named)
{
	struct weight_group *g = group_of(named, true);
	char name[NAME_LEN];
	int r;

	if (!g)
		return;
	if (atomic_load(&shared->replaced.filled_boots) !=
	    atomic_load(&shared->boots))
		fill(named);
	generation_name(generation_of(named), name);
	do {
		buf_release(&why);
		r = weight_group_publish(g, lineage, name, false, NULL, &why);
	} while (r == -EAGAIN);
	must(r == 0, why.data, r);
	weight_group_unref(g);
}

/*
 * The base may be written back or looked at by the daemon itself, and what it
 * was held by has just let go.
 */
static void announce(unsigned base, unsigned target,
		     enum weight_upsert_mode mode)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		staged(target);
	char id[NAME_LEN];
	const struct weight_replacement rp = { .base = generation_of(base),
					       .mode = mode,
					       .request_id = id };
	int r;

	(void)snprintf(id, sizeof(id), "request-%u", target);
	do {
		buf_release(&why);
		r = weight_group_replace(g, &rp, &why);
		if (r == -EBUSY)
			(void)usleep(PAUSE_US);
	} while (r == -EBUSY);
	must(r == 0, why.data, r);
}

static void hold(unsigned named)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		group_of(named, false);
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;

	if (atomic_load(&shared->mapped) == pattern_of(named))
		return;
	must(g, "nothing to be read", 0);
	find_file(g, FILE_MODEL, &f);
	tell_reader(f, pattern_of(named));
}

static void give_up(unsigned named)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g =
		group_of(named, true);

	if (g)
		abort_group(g, generation_of(named));
}

/* ---- The deeds; each goes on where it was ---- */

static void put(void)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;

	if (state_of(A) != READY) {
		fill(A);
		publish(A);
	}
	g = group_of(A, false);
	wait_group(g);
	hold(A);
}

static void announce_first(void)
{
	announce(A, B, WEIGHT_PUT_FIRST);
}

static void fill_first(void)
{
	fill(B);
}

/* It is read all the while, so it stays. */
static void publish_first(void)
{
	publish(B);
	await_phase(IN(RETIRING_BASE));
}

static void let_go(void)
{
	if (atomic_load(&shared->mapped) == pattern_of(A)) {
		must(state_of(A) == READY, "removed under its reader", 0);
		tell_reader(NULL, 0);
	}
	await_phase(IN(COMPLETED));
	await_state(A, DELETED);
}

static void announce_next(void)
{
	announce(B, C, WEIGHT_DELETE_FIRST);
}

static void fill_next(void)
{
	fill(C);
	must(state_of(B) == DELETED, "filled beside the base", 0);
}

static void publish_next(void)
{
	publish(C);
	await_phase(IN(COMPLETED));
}

static void give_up_one(void)
{
	char word[NAME_LEN];

	claim_word("request_id=", word);
	if (strcmp(word, "request-3") != 0) {
		announce(C, D, WEIGHT_PUT_FIRST);
		fill(D);
	}
	give_up(D);
	await_phase(IN(ABORTED));
}

static void break_off(void)
{
	if (!(claim_phase() & DELETES))
		announce(C, E, WEIGHT_DELETE_FIRST);
	/* Before the base has gone it would be given up, and that would be it. */
	await_phase(IN(TARGET_IMPORTING));
	give_up(E);
	must(true, "the interruption", 0);
	while (!is_interrupted())
		(void)usleep(PAUSE_US);
}

/* By its own request only. */
static void take_up(void)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = staged(E);
	const struct weight_replacement other = {
		.base = generation_of(C),
		.mode = WEIGHT_DELETE_FIRST,
		.request_id = "another",
	};
	int r = weight_group_replace(g, &other, &why);

	must(r == -EBUSY, "another request took it up", r);
	buf_release(&why);
	announce(C, E, WEIGHT_DELETE_FIRST);
	must(!is_interrupted(), "it is still interrupted", 0);
}

static void fill_last(void)
{
	fill(E);
}

static void publish_last(void)
{
	publish(E);
	await_phase(IN(COMPLETED));
}

static void take_away(void)
{
	struct weight_group *g = group_of(E, false);

	must(true, "removal", 0);
	while (g && state_of(E) == READY && !remove_group(g))
		(void)usleep(PAUSE_US);
	weight_group_unref(g);
	await_state(E, DELETED);
}

static void (*const deeds[DEEDS])(void) = {
	[PUT] = put,
	[ANNOUNCE] = announce_first,
	[FILL] = fill_first,
	[PUBLISH] = publish_first,
	[LET_GO] = let_go,
	[ANNOUNCE_NEXT] = announce_next,
	[FILL_NEXT] = fill_next,
	[PUBLISH_NEXT] = publish_next,
	[GIVE_UP] = give_up_one,
	[BREAK_OFF] = break_off,
	[TAKE_UP] = take_up,
	[FILL_LAST] = fill_last,
	[PUBLISH_LAST] = publish_last,
	[TAKE_AWAY] = take_away,
};

/* ---- Lives ---- */

/* From where the last one was. */
void live_replace(void)
{
	_Atomic unsigned *fate = &shared->replaced.fate;

	begin_life();
	open_store();
	enter_lineage();
	check_all(atomic_load(fate));
	for (unsigned d = atomic_load(fate) / 2; d < DEEDS; d++) {
		atomic_store(fate, 2 * d + 1);
		deeds[d]();
		atomic_store(fate, 2 * d + 2);
		check_all(2 * d + 2);
	}
	await_groups(1);
	buf_release(&why);
	close_store();
	_exit(0);
}
