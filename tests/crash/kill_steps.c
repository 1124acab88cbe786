/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kills a process at each named step (core/step.h) of what a store does with a
 * revision: write-back, verification, pinning, unpinning, repair, deletion,
 * while a reader has files of it mapped, and looks at what the next one finds.
 *
 * Some of those that follow believe that the machine was started anew.
 *
 * The steps aren't listed here: a first life that nobody kills shows which
 * there are, and how often. Every kind that a life is to have must be among them.
 *
 * usage: kill_steps [OCCURRENCES [PART]]
 *	OCCURRENCES	of one name: the first ones, and the last; default 3
 *	PART		only steps with this in their name
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/log.h"
#include "core/step.h"
#include "core/util.h"
#include "kill_steps.h"

#define OCCURRENCES 3
#define GENERATIONS_APART 10
#define AGAIN_STEPS 7 /* a second kill comes at one of the first so many */
#define SKIP 77
#define READER_PAUSE_US 2000

/* What is lived, what follows on a kill, and what looks at all that. */
static const struct life {
	void (*whole)(void);
	void (*on)(void);
	void (*check)(void);
	const char *kinds[8]; /* of steps */
} lives[] = {
	{ live_whole,
	  live_on,
	  live_check,
	  { "publish", "write-back", "verify", "pin", "unpin", "operation",
	    "repair", "removal" } },
	{ live_door,
	  live_door,
	  live_door,
	  { "import", "claim", "publish", "write-back", "removal" } },
	{ live_replace,
	  live_replace,
	  live_replace,
	  { "claim", "metadata", "publish", "write-back", "removal" } },
};

static const char *const fate_names[FATES] = {
	[NOTHING] = "nothing",
	[STAGING] = "staging",
	[PUBLISHING] = "publishing",
	[PUBLISHED] = "published",
	[DURABLE] = "durable",
	[COOLING] = "cooling",
	[COLD_ASKED] = "cold asked",
	[COLD] = "cold",
	[WARMING] = "warming",
	[HOT_ASKED] = "hot asked",
	[HOT] = "hot",
	[DAMAGING] = "damaging",
	[DEGRADED] = "degraded",
	[REPAIRING] = "repairing",
	[REPAIRED] = "repaired",
	[REMOVING] = "removing",
	[REMOVED] = "removed",
};

struct shared *shared;
char store_path[PATH_LEN / 2];
static pid_t reader;
static bool boots_anew; /* the children of the moment */

/* Where the child of the moment dies; name NULL: at any step. */
static struct {
	bool is_set;
	const char *name;
	unsigned nth;
} target;

/* Where the first of two kills is to come. */
static const char *killed_at;
static unsigned killed_nth;

/* The steps of the first life. */
static struct step_count found[STEPS_MAX];

void claim_failed(const char *file, int line, const char *what, int r)
{
	(void)fprintf(stderr, "%s:%d: %s: %d\n", strrchr(file, '/') + 1, line,
		      what, r);
	_exit(1);
}

/* ---- Steps ---- */

static unsigned count_step(const char *name)
{
	for (size_t i = 0; i < STEPS_MAX; i++) {
		struct step_count *s = &shared->steps[i];
		const char *there = NULL;

		if (atomic_compare_exchange_strong(&s->name, &there, name) ||
		    strcmp(there, name) == 0)
			return atomic_fetch_add(&s->seen, 1) + 1;
	}
	claim_failed(__FILE__, __LINE__, "too many names of steps", 0);
}

static void on_step(const char *name)
{
	unsigned nth = count_step(name);
	unsigned any = atomic_fetch_add(&shared->steps_seen, 1) + 1;

	if (!target.is_set)
		return;
	if (target.name ? strcmp(name, target.name) == 0 && nth == target.nth :
			  any == target.nth)
		(void)kill(getpid(), SIGKILL);
}

bool step_was_made(const char *part)
{
	for (size_t i = 0; i < STEPS_MAX; i++) {
		const char *name = atomic_load(&shared->steps[i].name);

		if (name && strstr(name, part))
			return true;
	}
	return false;
}

static void clear_steps(void)
{
	for (size_t i = 0; i < STEPS_MAX; i++) {
		atomic_store(&shared->steps[i].name, NULL);
		atomic_store(&shared->steps[i].seen, 0);
	}
	atomic_store(&shared->steps_seen, 0);
}

/* ---- The reader ---- */

struct mapping {
	char *at;
	struct pattern pattern;
};

static void obey(struct mapping *m)
{
	auto_fd int fd = -1;

	if (m->at)
		(void)munmap(m->at, m->pattern.size);
	m->at = NULL;
	atomic_store(&shared->mapped, 0);
	m->pattern = file_pattern(shared->order_generation, FILE_MODEL);
	if (!shared->order_path[0])
		return;
	fd = open(shared->order_path, O_RDONLY | O_CLOEXEC);
	m->at = mmap(NULL, m->pattern.size, PROT_READ, MAP_SHARED, fd, 0);
	if (m->at == MAP_FAILED)
		m->at = NULL;
	else
		atomic_store(&shared->mapped, shared->order_generation);
}

static void look_at(const struct mapping *m)
{
	size_t good;

	if (!m->at)
		return;
	good = pattern_check(&m->pattern, 0, m->at, m->pattern.size);
	if (good == m->pattern.size)
		return;
	(void)fprintf(stderr, "the reader sees a wrong byte at %zu of %u\n",
		      good, (unsigned)m->pattern.generation);
	atomic_store(&shared->is_wrong, true);
}

_Noreturn static void read_for_ever(void)
{
	struct mapping kept = { 0 }, other = { 0 };

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		unsigned order = atomic_load(&shared->order);

		if (order != atomic_load(&shared->obeyed)) {
			obey(shared->order_generation == KEEPER ? &kept :
								  &other);
			atomic_store(&shared->obeyed, order);
		}
		look_at(&kept);
		look_at(&other);
		(void)atomic_fetch_add(&shared->passes, 1);
		(void)usleep(READER_PAUSE_US);
	}
}

/* Until it has looked at everything once more, from begin to end. */
static void await_reader(void)
{
	unsigned before = atomic_load(&shared->passes);

	while (atomic_load(&shared->passes) - before < 2)
		must(waitpid(reader, NULL, WNOHANG) == 0 &&
			     usleep(PAUSE_US) == 0,
		     "the reader died", 0);
	must(!atomic_load(&shared->is_wrong), "the reader saw wrong bytes", 0);
}

/* ---- Lives ---- */

static bool have_own_mounts(void)
{
	char line[2 * PATH_LEN];
	bool is_shared = false;
	FILE *f;

	if (unshare(CLONE_NEWNS) < 0)
		return false;
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
		return true;
	/* In a chroot that is refused; nothing else may see what we mount. */
	f = fopen("/proc/self/mountinfo", "r");
	while (f && fgets(line, sizeof(line), f))
		is_shared |= strstr(line, " shared:") != NULL;
	if (f)
		(void)fclose(f);
	return f && !is_shared;
}

/* For this process the machine has another boot id. False: it can't be. */
static bool boot_anew(void)
{
	static const char real[] = "/proc/sys/kernel/random/boot_id";
	char path[PATH_LEN];
	FILE *f;

	if (!have_own_mounts())
		return false;
	(void)snprintf(path, sizeof(path), "%s.boot", store_path);
	f = fopen(path, "w");
	must(f &&
		     fprintf(f, "00000000-0000-4000-8000-%012u\n",
			     atomic_load(&shared->generation)) > 0 &&
		     fclose(f) == 0,
	     "a boot id", errno);
	return mount(path, real, NULL, MS_BIND, NULL) == 0;
}

/* True when it was killed at its target; false when it ended well. */
static bool run_life(void (*life)(void))
{
	int status;
	pid_t pid = fork();

	must(pid >= 0, "fork", errno);
	if (pid == 0) {
		(void)alarm(DEADLINE_S);
		if (boots_anew && boot_anew())
			(void)atomic_fetch_add(&shared->boots, 1);
		log_set_level(LOG_LEVEL_ERROR);
		step_hook = on_step;
		life();
	}
	must(waitpid(pid, &status, 0) == pid, "waitpid", errno);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return false;
	if (target.is_set && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		return true;
	(void)fprintf(stderr, "%s (status %x, last claim in line %u)\n",
		      WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ?
			      "it hangs" :
			      "it failed",
		      (unsigned)status, atomic_load(&shared->deed));
	(void)fprintf(stderr,
		      "generation %u, which was %s, at the door %u, of "
		      "replacements %u; store in '%s'\n",
		      atomic_load(&shared->generation),
		      fate_names[atomic_load(&shared->fate)],
		      atomic_load(&shared->door_fate),
		      atomic_load(&shared->replaced.fate), store_path);
	if (killed_at)
		(void)fprintf(stderr, "the first kill was to come at '%s' %u\n",
			      killed_at, killed_nth);
	if (target.is_set && !target.name)
		(void)fprintf(stderr, "the second one at step %u of all\n",
			      target.nth);
	exit(1);
}

static void next_generation(void)
{
	(void)atomic_fetch_add(&shared->generation, GENERATIONS_APART);
	atomic_store(&shared->fate, NOTHING);
	atomic_store(&shared->door_fate, 0);
	for (size_t i = 0; i < DOOR_GENERATIONS; i++)
		atomic_store(&shared->door_seen[i], 0);
	clear_steps();
}

/* Counts kills. */
static unsigned kill_at(const struct life *life, const char *name, unsigned nth,
			unsigned round)
{
	unsigned kills = 0;

	next_generation();
	target.is_set = true;
	target.name = killed_at = name;
	target.nth = killed_nth = nth;
	kills += run_life(life->whole);
	await_reader();
	boots_anew = round % 4 >= 2;
	/* What comes back is killed, too. */
	if (kills && round % 2 == 1) {
		target.name = NULL;
		target.nth = atomic_load(&shared->steps_seen) + 1 +
			     round / 2 % AGAIN_STEPS;
		kills += run_life(life->on);
	}
	target.is_set = false;
	(void)run_life(life->check);
	boots_anew = false;
	await_reader();
	return kills;
}

/* ---- All of it ---- */

/* A life that nobody kills, to see the steps. False: some kind is missing. */
static bool find_steps(const struct life *life)
{
	bool all = true;

	target.is_set = false;
	next_generation();
	(void)run_life(life->whole);
	await_reader();
	for (size_t i = 0; i < STEPS_MAX; i++) {
		struct step_count *s = &shared->steps[i];

		atomic_store(&found[i].name, atomic_load(&s->name));
		atomic_store(&found[i].seen, atomic_load(&s->seen));
	}
	for (size_t i = 0; i < ARRAY_LEN(life->kinds) && life->kinds[i]; i++) {
		size_t len = strlen(life->kinds[i]);
		bool is_there = false;

		for (size_t k = 0; k < STEPS_MAX && found[k].name; k++)
			is_there |= strncmp(found[k].name, life->kinds[i],
					    len) == 0 &&
				    found[k].name[len] == ':';
		if (!is_there)
			(void)fprintf(stderr, "no step of the kind '%s'\n",
				      life->kinds[i]);
		all &= is_there;
	}
	(void)run_life(life->check);
	return all;
}

static void kill_at_all(const struct life *life, unsigned occurrences,
			const char *part)
{
	unsigned kills = 0, round = 0, missed = 0;

	for (size_t i = 0; i < STEPS_MAX && found[i].name; i++) {
		const char *name = found[i].name;
		unsigned count = found[i].seen, hit = 0;

		if (!strstr(name, part))
			continue;
		for (unsigned n = 1; n <= count; n++) {
			unsigned now;

			if (n > occurrences && n < count)
				continue;
			now = kill_at(life, name, n, round++);
			hit += now > 0;
			missed += now == 0;
			kills += now;
		}
		(void)printf("%-32s %4u times, killed at %u\n", name, count,
			     hit);
		(void)fflush(stdout);
		must(hit > 0, "a step that came once and never again", 0);
	}
	(void)printf("%u kills and %u boots, all as it should be; "
		     "%u came to no kill\n",
		     kills, atomic_load(&shared->boots), missed);
}

static void share_memory(void)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(shared != MAP_FAILED, "shared memory", errno);
}

static void remove_store(void)
{
	char command[2 * PATH_LEN];

	(void)snprintf(command, sizeof(command), "rm -rf '%s' '%s.boot'",
		       store_path, store_path);
	must(system(command) == 0, "rm", errno);
}

static bool can_run(void)
{
	struct statfs st;

	if (geteuid() != 0)
		(void)printf("SKIP: not root\n");
	else if (statfs("/var/tmp", &st) < 0 || st.f_type == TMPFS_MAGIC)
		(void)printf("SKIP: /var/tmp is in memory\n");
	else
		return true;
	return false;
}

int main(int argc, char **argv)
{
	int occurrences = argc > 1 ? atoi(argv[1]) : OCCURRENCES;
	const char *part = argc > 2 ? argv[2] : "";
	bool has_all = true;

	if (!can_run())
		return SKIP;
	share_memory();
	(void)snprintf(store_path, sizeof(store_path),
		       "/var/tmp/weight-steps.XXXXXX");
	must(mkdtemp(store_path) != NULL, "mkdtemp", errno);
	reader = fork();
	must(reader >= 0, "fork", errno);
	if (reader == 0)
		read_for_ever();
	(void)run_life(live_setup);
	for (size_t i = 0; i < ARRAY_LEN(lives) && (has_all || *part); i++) {
		has_all &= find_steps(&lives[i]);
		if (has_all || *part)
			kill_at_all(&lives[i], (unsigned)occurrences, part);
	}
	(void)kill(reader, SIGKILL);
	(void)waitpid(reader, NULL, 0);
	if (has_all)
		(void)run_life(live_end);
	remove_store();
	return has_all ? 0 : 1;
}
