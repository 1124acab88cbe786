/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model test of the weight metadata store: random scripts run against the
 * store and a model of it, see tests/model/README.md.
 *
 * usage: model_store [--steps N] [--seed S] [--script FILE] [--statistics]
 *	[--no-shrink]
 *
 * A script that fails is made as short as it can be and printed, in the form
 * that --script runs again. Exits with 1 then.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/log.h"
#include "generate.h"
#include "script.h"
#include "world.h"

#define STEPS_DEFAULT 20000
#define SCRIPT_MAX 6000
#define SECONDS_MAX 300 /* of one script, by far */
#define LINE_BYTES 1024

/* What the processes that run scripts leave for the one that waits for them. */
struct shared {
	struct op ops[SCRIPT_MAX];
	size_t op_count; /* that were generated */
	size_t done;     /* that were right */
	uint64_t results[KINDS][2];
};

static struct shared *shared;

/* ---- One script in a process of its own ---- */

static bool step(struct world *w, const struct op *op)
{
	bool ok = world_step(w, op);

	shared->done += ok;
	return ok;
}

static bool run(struct generator *g)
{
	static struct world w;
	bool ok = world_make(&w);

	shared->done = 0;
	for (size_t i = 0; ok && g && i < g->length; i++) {
		generate(g, &w, i, &shared->ops[i]);
		shared->op_count = i + 1;
		ok = step(&w, &shared->ops[i]);
	}
	for (size_t i = 0; ok && !g && i < shared->op_count; i++)
		ok = step(&w, &shared->ops[i]);
	ok = ok && world_end(&w);
	world_remove(&w);
	for (unsigned k = 0; k < KINDS; k++)
		for (unsigned failed = 0; failed < 2; failed++)
			shared->results[k][failed] += w.results[k][failed];
	return ok;
}

static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	stopped = signal;
}

/* How the process ended; when this one is stopped, it goes first. */
static int wait_for(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0) {
		if (errno != EINTR)
			abort();
		if (stopped)
			(void)kill(pid, SIGKILL);
	}
	/* Its own children, too, may have a store open. */
	while (stopped && wait(NULL) > 0)
		;
	if (stopped) {
		stores_end();
		exit(2);
	}
	return status;
}

/* Without a generator the script that is there. quiet: its words are lost. */
static bool run_apart(struct generator *g, bool quiet)
{
	int status;
	pid_t pid;

	(void)fflush(stdout);
	pid = fork();
	if (pid == 0) {
		(void)signal(SIGTERM, SIG_DFL);
		(void)signal(SIGINT, SIG_DFL);
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (quiet && !freopen("/dev/null", "w", stdout))
			_exit(2);
		if (quiet && !freopen("/dev/null", "w", stderr))
			_exit(2);
		(void)alarm(SECONDS_MAX);
		/* Not _exit(): a sanitizer has its word at the end. */
		exit(run(g) ? 0 : 1);
	}
	if (pid < 0)
		abort();
	status = wait_for(pid);
	if (status == 0)
		return true;
	stores_clear();
	if (!quiet && WIFSIGNALED(status))
		(void)printf("killed by signal %d\n", WTERMSIG(status));
	return false;
}

/* ---- Shrinking ---- */

struct script {
	struct op ops[SCRIPT_MAX];
	size_t count;
	enum kind fails_at;
};

/* The kind of the operation that was the last one, or KINDS: the very end. */
static enum kind failed_kind(void)
{
	return shared->done < shared->op_count ?
		       shared->ops[shared->done].kind :
		       KINDS;
}

/* Whether it fails, and at an operation of the kind that it failed at first. */
static bool fails(const struct script *s)
{
	memcpy(shared->ops, s->ops, s->count * sizeof(s->ops[0]));
	shared->op_count = s->count;
	return !run_apart(NULL, true) && failed_kind() == s->fails_at;
}

static bool fails_without(const struct script *s, size_t from, size_t count,
			  struct script *ret)
{
	memcpy(ret->ops, s->ops, from * sizeof(s->ops[0]));
	memcpy(&ret->ops[from], &s->ops[from + count],
	       (s->count - from - count) * sizeof(s->ops[0]));
	ret->count = s->count - count;
	ret->fails_at = s->fails_at;
	if (!fails(ret))
		return false;
	/* What comes after the step that fails is not needed. */
	if (shared->done < ret->count)
		ret->count = shared->done + 1;
	return true;
}

/* Leaves out pieces, big ones first, as long as it goes on failing. */
static void drop_operations(struct script *s)
{
	static struct script shorter;

	for (size_t piece = s->count / 2; piece > 0; piece /= 2) {
		for (size_t end = s->count; end > 0;) {
			size_t from = end > piece ? end - piece : 0;

			if (fails_without(s, from, end - from, &shorter)) {
				memcpy(s, &shorter, sizeof(*s));
				end = from < s->count ? from : s->count;
			} else {
				end = from;
			}
		}
	}
}

/* Puts arguments to 0, one after the other. */
static void drop_arguments(struct script *s)
{
	for (size_t i = 0; i < s->count; i++)
		for (unsigned a = 0; a < ARGS; a++) {
			uint64_t was = s->ops[i].arg[a];

			if (!was)
				continue;
			s->ops[i].arg[a] = 0;
			if (kind_has(s->ops[i].kind, a) && !fails(s))
				s->ops[i].arg[a] = was;
		}
}

static void report(void)
{
	static struct script s;

	s.count = shared->done < shared->op_count ? shared->done + 1 :
						    shared->op_count;
	memcpy(s.ops, shared->ops, s.count * sizeof(s.ops[0]));
	s.fails_at = failed_kind();
	(void)printf("it fails at step %zu, and is made shorter\n", s.count);
	if (!fails(&s)) {
		(void)printf("# it doesn't fail when it is run again\n");
	} else {
		drop_operations(&s);
		drop_arguments(&s);
		drop_operations(&s);
	}
	(void)printf("# the script, for --script:\n");
	for (size_t i = 0; i < s.count; i++)
		op_print(&s.ops[i], stdout);
	(void)printf("# and what it says:\n");
	memcpy(shared->ops, s.ops, s.count * sizeof(s.ops[0]));
	shared->op_count = s.count;
	(void)run_apart(NULL, false);
}

/* ---- Main ---- */

static int run_script(const char *path)
{
	FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
	char line[LINE_BYTES];

	if (!f) {
		(void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
		return 2;
	}
	while (fgets(line, sizeof(line), f) && shared->op_count < SCRIPT_MAX) {
		struct op *op = &shared->ops[shared->op_count];

		if (!op_parse(line, op))
			return 2;
		shared->op_count += op->kind != KINDS;
	}
	if (f != stdin)
		(void)fclose(f);
	if (run_apart(NULL, false))
		return 0;
	(void)printf("line %zu of it fails\n", shared->done + 1);
	return 1;
}

static int run_seed(uint64_t seed, uint64_t steps, bool shrinks)
{
	uint64_t done = 0;
	struct generator g;

	for (uint64_t i = 0; done < steps; i++) {
		generator_init(&g, seed * UINT64_C(1000000007) + i);
		if (!run_apart(&g, false)) {
			(void)printf("seed %" PRIu64 ", script %" PRIu64 ": ",
				     seed, i);
			if (shrinks)
				report();
			return 1;
		}
		done += g.length;
	}
	(void)printf("seed %" PRIu64 ": %" PRIu64 " steps\n", seed, done);
	return 0;
}

static void print_statistics(void)
{
	(void)printf("%-16s %10s %10s\n", "", "done", "refused");
	for (unsigned k = 0; k < KINDS; k++)
		(void)printf("%-16s %10" PRIu64 " %10" PRIu64 "\n",
			     kind_name(k), shared->results[k][0],
			     shared->results[k][1]);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "steps", required_argument, NULL, 'n' },
		{ "seed", required_argument, NULL, 's' },
		{ "script", required_argument, NULL, 'f' },
		{ "statistics", no_argument, NULL, 't' },
		{ "no-shrink", no_argument, NULL, 'l' },
		{ NULL, 0, NULL, 0 },
	};
	/* No SA_RESTART: waiting ends. */
	const struct sigaction stops = { .sa_handler = stop };
	uint64_t steps = STEPS_DEFAULT, seed = 1;
	const char *script = NULL;
	bool statistics = false, shrinks = true;
	int c, r;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 'n')
			steps = strtoull(optarg, NULL, 10);
		else if (c == 's')
			seed = strtoull(optarg, NULL, 10);
		else if (c == 'f')
			script = optarg;
		else if (c == 't')
			statistics = true;
		else if (c == 'l')
			shrinks = false;
		else
			return 2;
	}
	log_set_level(LOG_LEVEL_ERROR);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || !stores_begin())
		return 2;
	(void)prctl(PR_SET_CHILD_SUBREAPER, 1);
	(void)sigaction(SIGTERM, &stops, NULL);
	(void)sigaction(SIGINT, &stops, NULL);
	r = script ? run_script(script) : run_seed(seed, steps, shrinks);
	stores_end();
	if (statistics)
		print_statistics();
	return r;
}
