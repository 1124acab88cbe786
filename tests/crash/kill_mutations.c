/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kills a process at each step of each kind of mutation of the weight metadata
 * store, and looks at what the next one finds: the mutation is there as a whole
 * or not at all, the records fit together, and what is done again gets the
 * answer that a repeat is promised.
 *
 * The steps are each write within the transaction, and its end; what LMDB does
 * in between is its own, and met by kill_store at random. Before the end there
 * must be nothing, and from then on all of it.
 *
 * usage: kill_mutations [NAME]
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/step.h"
#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "tests/unit/weight_metadata_dump.h"
#include "tests/unit/weight_mutations.h"

#define PATH_LEN 128
#define PAGE ((size_t)4096)
#define NEVER UINT_MAX

static char dir[PATH_LEN], data_path[PATH_LEN + 16];
static const struct mutation *now; /* that is being tried */

/* What children tell their parent. */
static struct {
	unsigned steps; /* that were made */
	int answer;
} * shared;

/* In the child: the steps until it dies. */
static unsigned steps_left;

static void must(bool ok, const char *what, long r)
{
	if (ok)
		return;
	(void)fprintf(stderr, "to %s: %s: %ld (store left in '%s')\n",
		      now ? now->name : "begin", what, r, dir);
	_exit(1);
}

/* ---- The store, as a file that is kept and brought back ---- */

static void read_file(struct buf *ret)
{
	auto_fd int fd = open(data_path, O_RDONLY | O_CLOEXEC);
	char page[PAGE];
	ssize_t n;

	must(fd >= 0, "open", errno);
	while ((n = read(fd, page, sizeof(page))) > 0)
		must(buf_append(ret, page, (size_t)n) == 0, "buf", 0);
	must(n == 0, "read", errno);
}

/* Room that was only taken ahead stays a hole. */
static void write_file(const struct buf *bytes)
{
	static const char zero[PAGE];
	auto_fd int fd =
		open(data_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	must(fd >= 0, "open", errno);
	for (size_t at = 0; at < bytes->len; at += PAGE) {
		size_t n = bytes->len - at < PAGE ? bytes->len - at : PAGE;

		if (memcmp(bytes->data + at, zero, n) != 0)
			must(pwrite(fd, bytes->data + at, n, (off_t)at) ==
				     (ssize_t)n,
			     "write", errno);
	}
	must(ftruncate(fd, (off_t)bytes->len) == 0, "ftruncate", errno);
}

static struct weight_metadata_store *open_store(void)
{
	struct weight_metadata_store *s = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	int r = wms_open(dir, &s, &why);

	must(r == 0, why.data, r);
	return s;
}

static void dump(struct buf *ret)
{
	int r;

	buf_release(ret);
	r = dump_metadata(dir, true, ret);
	must(r == 0, "dump", r);
}

static void empty_dir(void)
{
	char lock[PATH_LEN + 16];

	(void)snprintf(lock, sizeof(lock), "%s/lock.mdb", dir);
	(void)unlink(lock);
	(void)unlink(data_path);
}

/* ---- The child ---- */

static void on_step(const char *name)
{
	if (strcmp(name, "metadata: write") != 0 &&
	    strcmp(name, "metadata: committed") != 0)
		return;
	shared->steps++;
	if (--steps_left == 0)
		(void)raise(SIGKILL);
}

static _Noreturn void live(unsigned steps)
{
	struct weight_metadata_store *s = open_store();

	steps_left = steps;
	step_hook = on_step;
	shared->answer = now->act(s);
	step_hook = NULL;
	wms_close(s);
	_exit(0);
}

/* Does it in a child, which is killed at a step; whether it was. */
static bool do_until(unsigned steps)
{
	pid_t pid;
	int status;

	shared->steps = 0;
	shared->answer = -ENODATA;
	pid = fork();
	must(pid >= 0, "fork", errno);
	if (pid == 0)
		live(steps);
	must(waitpid(pid, &status, 0) == pid, "waitpid", errno);
	if (WIFSIGNALED(status))
		must(WTERMSIG(status) == SIGKILL, "died", WTERMSIG(status));
	else
		must(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child",
		     status);
	return WIFSIGNALED(status);
}

/* ---- The parent ---- */

static void check(struct weight_metadata_store *s)
{
	cleanup(buf_release) struct buf report = BUF_INIT;
	uint64_t bad = 0;
	int r = wms_check(s, &report, &bad);

	must(r == 0, "check", r);
	must(bad == 0, report.data, (long)bad);
}

/* Opens what was left, and does it again. */
static void do_again(bool was_done, const struct buf *after)
{
	cleanup(buf_release) struct buf again = BUF_INIT;
	struct weight_metadata_store *s = open_store();
	int r;

	check(s);
	r = now->act(s);
	must(r == (was_done ? now->again : 0), "again", r);
	check(s);
	wms_close(s);
	dump(&again);
	must(strcmp(again.data, after->data) == 0, "again is otherwise", 0);
}

static void kill_at(unsigned k, unsigned steps, const struct buf *prepared,
		    const struct buf *before, const struct buf *after)
{
	cleanup(buf_release) struct buf found = BUF_INIT;
	const struct buf *wanted = k < steps ? before : after;

	write_file(prepared);
	must(do_until(k), "wasn't killed at step", k);
	dump(&found);
	must(strcmp(found.data, wanted->data) == 0,
	     k < steps ? "is there in part, after step" :
			 "is not there, after step",
	     k);
	do_again(k == steps, after);
}

/* How many steps it has. */
static unsigned try(const struct mutation *m)
{
	cleanup(buf_release) struct buf prepared = BUF_INIT;
	cleanup(buf_release) struct buf before = BUF_INIT;
	cleanup(buf_release) struct buf after = BUF_INIT;
	struct weight_metadata_store *s;
	unsigned steps;

	now = m;
	empty_dir();
	s = open_store();
	must(!m->prepare || m->prepare(s) == 0, "prepare", 0);
	wms_close(s);
	dump(&before);
	read_file(&prepared);
	must(!do_until(NEVER) && shared->answer == 0, "answer", shared->answer);
	steps = shared->steps;
	must(steps >= 2, "steps", steps); /* one write and the end */
	dump(&after);
	must(strcmp(before.data, after.data) != 0, "changed nothing", 0);
	do_again(true, &after);
	for (unsigned k = 1; k <= steps; k++)
		kill_at(k, steps, &prepared, &before, &after);
	return steps;
}

int main(int argc, char **argv)
{
	unsigned kills = 0, kinds = 0;

	(void)snprintf(dir, sizeof(dir), "/var/tmp/weight-mutations.XXXXXX");
	must(mkdtemp(dir) != NULL, "mkdtemp", errno);
	(void)snprintf(data_path, sizeof(data_path), "%s/data.mdb", dir);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(shared != MAP_FAILED, "mmap", errno);
	for (size_t i = 0; i < ARRAY_LEN(mutations); i++) {
		if (argc > 1 && strcmp(argv[1], mutations[i].name) != 0)
			continue;
		kills += try(&mutations[i]);
		kinds++;
	}
	empty_dir();
	(void)rmdir(dir);
	(void)printf("%u kills in %u kinds of mutations, each done or not\n",
		     kills, kinds);
	return kinds > 0 ? 0 : 1;
}
