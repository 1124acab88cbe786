/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of kill_steps share: memory that survives kills, the store
 * that a process opens, and what its generations hold.
 *
 * The parent never opens the store. One child after the other lives in it
 * (kill_steps_life.c), is killed, and another one looks at what it left
 * (kill_steps_check.c). A life through the first door does both
 * (kill_steps_door.c), and so does one of replacements (kill_steps_replace.c).
 * A reader maps what it is told to, all the time. What they know of each other
 * is in `shared`.
 *
 * A claim that doesn't hold ends the process that makes it with status 1.
 */
#ifndef TESTS_CRASH_KILL_STEPS_H
#define TESTS_CRASH_KILL_STEPS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "core/weight_store.h"
#include "core/weight_tree.h"
#include "tests/stress/pattern.h"

#define STEPS_MAX 256
#define PATH_LEN 256
#define NAME_LEN 32
/* More than the store takes in one round, so that rounds end in between. */
#define FILES 70
#define KEEPER 1      /* the generation that is there throughout */
#define DEADLINE_S 60 /* for one life */
#define PAUSE_US 1000

/* How far the life of a generation has come, each word before its deed. */
enum fate {
	NOTHING,
	STAGING,
	PUBLISHING,
	PUBLISHED,
	DURABLE,
	COOLING,
	COLD_ASKED, /* the operation was acknowledged */
	COLD,
	WARMING,
	HOT_ASKED,
	HOT,
	DAMAGING, /* bytes change behind the back */
	DEGRADED,
	REPAIRING,
	REPAIRED,
	REMOVING,
	REMOVED,
	FATES,
};

#define DOOR_GENERATIONS 5

/* Of a life of replacements, see kill_steps_replace.c. */
struct replaced {
	_Atomic unsigned life; /* the rest is of this one */
	_Atomic unsigned fate;
	_Atomic unsigned filled_boots; /* when the last target was written */
	_Atomic uint64_t watermark;    /* as it was seen last */
};

/* Names are string constants, so they are the same in all children. */
struct step_count {
	const char *_Atomic name;
	_Atomic unsigned seen;
};

struct shared {
	/* Of the life before last word. */
	_Atomic unsigned fate;
	_Atomic unsigned generation;
	_Atomic unsigned deed; /* line of the source, to say what hangs */

	/* Of a life through the first door, see kill_steps_door.c. */
	_Atomic unsigned door_fate;
	_Atomic uint64_t door_seen[DOOR_GENERATIONS];
	struct replaced replaced;

	struct step_count steps[STEPS_MAX];
	_Atomic unsigned steps_seen; /* of all names */

	/* What the reader is told, and what it says. */
	char order_path[PATH_LEN]; /* "": map nothing */
	unsigned order_generation;
	_Atomic unsigned order;
	_Atomic unsigned obeyed; /* the last order that it followed */
	_Atomic unsigned mapped; /* generation, 0: none */
	_Atomic unsigned passes; /* over all that it has mapped */
	_Atomic unsigned boots;  /* lives with a boot id of their own */
	_Atomic bool is_wrong;   /* it saw a byte that should be another */
};

extern struct shared *shared;
extern char store_path[PATH_LEN / 2];

#define must(ok, what, r)                                                      \
	do {                                                                   \
		atomic_store(&shared->deed, __LINE__);                         \
		if (!(ok))                                                     \
			claim_failed(__FILE__, __LINE__, what, r);             \
	} while (0)

_Noreturn void claim_failed(const char *file, int line, const char *what,
			    int r);

/* ---- The store, in the process that has it open ---- */

extern struct weight_store *store;
extern struct weight_dir *lineage;
extern const struct weight_caller caller;

void open_store(void);
void close_store(void);
void generation_name(unsigned generation, char ret[static NAME_LEN]);
/* Opens the backing inode of a file, as whoever works behind the back. */
int reopen(struct weight_file *f, int flags);
void backing_path(struct weight_file *f, char ret[static PATH_LEN]);
/* Directories of groups in the store. */
unsigned count_groups(void);
/* Until there are so many; the deadline of the process is that of the wait. */
void await_groups(unsigned count);
/* Whether a step of this name was made since the counts were cleared. */
bool step_was_made(const char *part);

/* ---- Generations ---- */

enum { FILE_MODEL, FILE_LARGE, FILE_SMALL }; /* and others that are small */
void file_name(unsigned i, char ret[static NAME_LEN]);
/* Where FILE_LARGE is damaged: in its second chunk. */
#define DAMAGE_OFFSET (((uint64_t)4 << 20) + 4000)
#define DAMAGE_BYTES 64

uint64_t file_size(unsigned i);
struct pattern file_pattern(unsigned generation, unsigned i);
struct weight_group *stage_group(unsigned generation);
/* with_bytes_of: whose pattern the file gets. */
void put_file(struct weight_group *g, unsigned with_bytes_of, unsigned i);
void find_file(struct weight_group *g, unsigned i, struct weight_file **ret);
/* Removes the files that are there, and the staging directory. */
void abort_group(struct weight_group *g, unsigned generation);
void wait_group(struct weight_group *g);
struct weight_metadata *metadata_of(struct weight_group *g);
void repair_group(struct weight_group *g, unsigned generation);
void scrub_group(struct weight_group *g);
/* False while somebody holds it. */
bool remove_group(struct weight_group *g);

/* ---- The reader ---- */

/* Tells it to map a file, or with f NULL nothing, and waits until it does. */
void tell_reader(struct weight_file *f, unsigned generation);

/* ---- Lives, each the whole of a process ---- */

_Noreturn void live_setup(void);   /* makes the keeper */
_Noreturn void live_whole(void);   /* a generation, from staging to removal */
_Noreturn void live_on(void);      /* goes on with what the last one left */
_Noreturn void live_check(void);   /* looks at it, and clears it away */
_Noreturn void live_end(void);     /* removes the keeper */
_Noreturn void live_door(void);    /* goes on, to the end, and is checked */
_Noreturn void live_replace(void); /* likewise */

#endif
