/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Needs root for most of it, a memory cgroup to force reclaim (dropping caches
 * evicts nothing that is mapped, locked or not), and a real filesystem.
 */
#include "pins_fixture.h"

/* --- Hot is locked, cold is not --- */

START_TEST(what_is_pinned_survives_reclaim_and_the_rest_does_not)
{
	struct group g;

	if (!can_all() || !group_make(&g, "self", 0))
		skip("no right to lock memory or to make a cgroup");
	group_join(&g);
	bind_file(16 * G);
	ck_assert_int_eq(pin(0, 8), 0);
	for (size_t i = 0; i < 8; i++)
		assert_hot(i);
	group_reclaim(&g);
	for (size_t i = 0; i < 16; i++)
		i < 8 ? assert_hot(i) : assert_cold(i);
	ck_assert_uint_eq(pins_file_pinned_bytes(file), 8 * G);

	/* What is unpinned can go, also without asking for it. */
	ck_assert_int_eq(pins_unpin(file, 0, 8, false), 0);
	ck_assert_uint_eq(see(0).resident, see(0).data);
	group_reclaim(&g);
	for (size_t i = 0; i < 16; i++)
		assert_cold(i);
	group_end(&g);
}
END_TEST

START_TEST(alternating_granules_are_exact)
{
	struct group g;

	if (!can_all() || !group_make(&g, "self", 0))
		skip("no right to lock memory or to make a cgroup");
	group_join(&g);
	bind_file(24 * G);
	for (size_t i = 0; i < 24; i += 2)
		ck_assert_int_eq(pin(i, 1), 0);
	group_reclaim(&g);
	for (size_t i = 0; i < 24; i++)
		i % 2 ? assert_cold(i) : assert_hot(i);

	/* Every second of those goes again. */
	for (size_t i = 0; i < 24; i += 4)
		ck_assert_int_eq(pins_unpin(file, i, 1, true), 0);
	group_reclaim(&g);
	for (size_t i = 0; i < 24; i++)
		i % 4 == 2 ? assert_hot(i) : assert_cold(i);
	ck_assert_uint_eq(stats().pinned_bytes, 6 * G);
	ck_assert_uint_eq(pins_file_pinned_bytes(file), 6 * G);
	group_end(&g);
}
END_TEST

START_TEST(unpinning_with_drop_empties_the_cache)
{
	if (!can_all())
		skip("no right to lock memory");
	bind_file(4 * G);
	ck_assert_int_eq(pin(0, 4), 0);
	drop_cache(path_fd);
	for (size_t i = 0; i < 4; i++)
		assert_hot(i);
	ck_assert_int_eq(pins_unpin(file, 1, 2, true), 0);
	assert_hot(0);
	assert_cold(1);
	assert_cold(2);
	assert_hot(3);
}
END_TEST

START_TEST(doing_it_twice_changes_nothing)
{
	struct pins_stats before;

	if (!can_all())
		skip("no right to lock memory");
	bind_file(4 * G);
	ck_assert_int_eq(pin(1, 2), 0);
	before = stats();
	ck_assert_int_eq(pin(1, 2), 0);
	ck_assert_uint_eq(stats().pinned_bytes, before.pinned_bytes);
	ck_assert_uint_eq(stats().granules_total, before.granules_total);
	ck_assert_int_eq(pin(0, 4), 0);
	ck_assert_uint_eq(stats().pinned_bytes, 4 * G);
	ck_assert_int_eq(pins_unpin(file, 0, 3, false), 0);
	ck_assert_int_eq(pins_unpin(file, 0, 3, false), 0);
	ck_assert_uint_eq(stats().pinned_bytes, G);
	ck_assert(!pins_is_pinned(file, 0, 4));
	ck_assert(pins_is_pinned(file, 3, 1));
}
END_TEST

START_TEST(what_the_cache_lacks_is_read)
{
	if (!can_all())
		skip("no right to lock memory");
	bind_file(3 * G + 12345);
	drop_cache(path_fd);
	for (size_t i = 0; i < 4; i++)
		assert_cold(i);
	ck_assert_int_eq(pin(0, 4), 0);
	for (size_t i = 0; i < 4; i++)
		assert_hot(i);
	ck_assert_uint_eq(stats().filled_bytes_total,
			  3 * G + (12345 + page - 1) / page * page);
}
END_TEST

/* How much of what this process maps is mapped in pieces of a granule. */
static size_t huge_bytes(void)
{
	cleanup(free_cleanup) char *line = NULL;
	FILE *f = fopen("/proc/self/smaps_rollup", "re");
	unsigned long kib = 0;
	size_t cap = 0;

	while (f && getline(&line, &cap, f) > 0)
		if (strncmp(line, "FilePmdMapped:", 14) == 0)
			kib = strtoul(line + 14, NULL, 10);
	if (f)
		(void)fclose(f);
	return (size_t)kib << 10;
}

START_TEST(what_is_read_is_mapped_in_large_pieces)
{
	if (!can_all())
		skip("no right to lock memory");
	bind_file(20 * G);
	ck_assert_int_eq(pin(0, 20), 0);
	/* Writing makes them where the filesystem has them at all. */
	if (huge_bytes() < 20 * G)
		skip("no large folios");
	ck_assert_int_eq(pins_unpin(file, 0, 20, true), 0);
	assert_cold(0);
	ck_assert_int_eq(pin(0, 20), 0);
	ck_assert_uint_ge(huge_bytes(), 20 * G);
}
END_TEST

START_TEST(after_a_restart_what_is_cached_only_has_to_be_locked)
{
	if (!can_all() || !stats().knows_payers)
		skip("who pays is unknown");
	bind_file(8 * G);
	ck_assert_int_eq(pin(0, 8), 0);
	pins_file_close(file);
	ck_assert_int_eq(pins_file_open(pins, path_fd, &file), 0);
	for (size_t i = 0; i < 8; i++) {
		struct pin_seen seen = see(i);

		ck_assert_uint_eq(seen.resident, seen.data);
		ck_assert_uint_eq(seen.locked, 0);
	}
	ck_assert_int_eq(pin(0, 8), 0);
	ck_assert_uint_eq(stats().filled_bytes_total, 0);
	ck_assert_uint_eq(stats().reread_total, 0);
	assert_hot(7);
}
END_TEST

/* --- Sizes and shapes --- */

/* clang-format off */
static const struct {
	uint64_t size;
	size_t granules;
	size_t tail_pages; /* of 4 KiB, of the last granule */
} sizes[] = {
	{ 0,                0, 0 },
	{ 1,                1, 1 },
	{ 4096,             1, 1 },
	{ 4097,             1, 2 },
	{ G - 1,            1, 512 },
	{ G,                1, 512 },
	{ G + 1,            2, 1 },
	{ 2 * G + 5000,     3, 2 },
	{ 33 * G - 4096,   33, 511 },
};
/* clang-format on */

START_TEST(a_file_of_any_size_is_pinned_to_its_last_page)
{
	size_t n = sizes[_i].granules;
	uint64_t want = n ? (n - 1) * G + sizes[_i].tail_pages * 4096 : 0;

	if (!can_all() || page != 4096)
		skip("no right to lock memory");
	bind_file(sizes[_i].size);
	ck_assert_uint_eq(pins_file_size(file), sizes[_i].size);
	ck_assert_uint_eq(pins_file_granules(file), n);
	drop_cache(path_fd);
	ck_assert_int_eq(pin(0, n), 0);
	ck_assert_uint_eq(stats().pinned_bytes, want);
	ck_assert(pins_is_pinned(file, 0, n));
	drop_cache(path_fd);
	for (size_t i = 0; i < n; i++)
		assert_hot(i);
	ck_assert_int_eq(pins_unpin(file, 0, n, true), 0);
	ck_assert_uint_eq(stats().pinned_bytes, 0);
	for (size_t i = 0; i < n; i++)
		assert_cold(i);
}
END_TEST

START_TEST(holes_are_never_pinned)
{
	struct stat before, after;
	int fd;

	if (!can_all() || page != 4096)
		skip("no right to lock memory");
	fd = make_empty();
	ck_assert_int_eq(ftruncate(fd, (off_t)(40 * G + 10)), 0);
	write_range(fd, 64 << 10, 128 << 10);        /* within granule 0 */
	write_range(fd, 5 * G - 8192, 5 * G + 4096); /* across two */
	write_range(fd, 30 * G, 31 * G);
	ck_assert_int_eq(fsync(fd), 0);
	ck_assert_int_eq(fstat(fd, &before), 0);
	path_fd = only_path(fd);
	drop_cache(path_fd);
	ck_assert_int_eq(pins_file_open(pins, path_fd, &file), 0);
	ck_assert_int_eq(pin(0, pins_file_granules(file)), 0);
	ck_assert_uint_eq(stats().pinned_bytes, (64 << 10) + 12288 + G);
	ck_assert(pins_is_pinned(file, 0, 41));
	ck_assert_uint_eq(see(0).locked, 16);
	ck_assert_uint_eq(see(4).locked, 2);
	ck_assert_uint_eq(see(5).locked, 1);
	ck_assert_uint_eq(see(10).data, 0);
	ck_assert_uint_eq(stats().granules_total, 4);
	ck_assert_uint_eq(stats().filled_bytes_total, (64 << 10) + 12288 + G);
	ck_assert_int_eq(fstat(pins_file_fd(file), &after), 0);
	ck_assert_int_eq(before.st_blocks, after.st_blocks);
	ck_assert_int_eq(pins_unpin(file, 0, 41, true), 0);
	ck_assert(!pins_is_pinned(file, 10, 1));
	ck_assert_uint_eq(stats().pinned_bytes, 0);
}
END_TEST

/* clang-format off */
static const struct {
	size_t first, count;
} beyond[] = {
	{ 0, 4 }, { 3, 1 }, { 4, 0 }, { 1, SIZE_MAX }, { SIZE_MAX, 1 },
};
/* clang-format on */

START_TEST(a_range_beyond_the_end_is_refused)
{
	struct pin_seen seen[4];
	size_t left = 99;

	if (!has_disk() || !can_lock())
		skip("no right to lock memory");
	bind_file(2 * G + 1);
	ck_assert_int_eq(pins_pin(file, beyond[_i].first, beyond[_i].count,
				  NULL, NULL, &left),
			 -EINVAL);
	ck_assert_int_eq(
		pins_unpin(file, beyond[_i].first, beyond[_i].count, true),
		-EINVAL);
	ck_assert_int_eq(
		pins_verify(file, beyond[_i].first, beyond[_i].count, seen),
		-EINVAL);
	ck_assert_uint_eq(left, 99);
}
END_TEST

START_TEST(only_regular_files_are_bound)
{
	struct pin_file *untouched = NULL;
	auto_fd int dir = open("/var/tmp", O_RDONLY | O_CLOEXEC);
	int ends[2];

	if (!can_lock())
		skip("no right to lock memory");
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	ck_assert_int_eq(pins_file_open(pins, dir, &untouched), -EINVAL);
	ck_assert_int_eq(pins_file_open(pins, ends[0], &untouched), -EINVAL);
	ck_assert_int_eq(pins_file_open(pins, -1, &untouched), -EBADF);
	ck_assert_ptr_null(untouched);
	(void)close(ends[0]);
	(void)close(ends[1]);
}
END_TEST

START_TEST(a_file_that_became_shorter_is_an_error_not_a_signal)
{
	auto_fd int fd = -1;
	size_t left = 99;

	if (!can_all())
		skip("no right to lock memory");
	bind_file(8 * G);
	ck_assert_int_eq(pin(0, 2), 0);
	fd = reopen(path_fd, O_RDWR);
	ck_assert_int_eq(ftruncate(fd, (off_t)(3 * G + 100)), 0);
	ck_assert_int_eq(pin(2, 6), -EUCLEAN);
	ck_assert_int_eq(pin(5, 1), -EUCLEAN);
	ck_assert_int_eq(pins_again(file, &left), -EUCLEAN);
	ck_assert_uint_eq(left, 99);
	ck_assert_uint_eq(stats().pinned_bytes, 2 * G);
	ck_assert_int_eq(pins_unpin(file, 0, 8, true), 0);
}
END_TEST

START_TEST(what_a_direct_write_threw_out_is_pinned_again)
{
	auto_free void *bytes = NULL;
	auto_fd int fd = -1;
	unsigned locked = 0;
	size_t left;

	if (!can_all())
		skip("no right to lock memory");
	bind_file(20 * G);
	ck_assert_int_eq(pin(0, 4), 0);
	ck_assert_int_eq(pin(6, 14), 0);
	ck_assert_int_eq(posix_memalign(&bytes, 4096, 4 * G), 0);
	memset(bytes, 7, 4 * G);
	fd = reopen(path_fd, O_RDWR | O_DIRECT);
	ck_assert_int_eq(pwrite(fd, bytes, 4 * G, (off_t)(2 * G)),
			 (ssize_t)(4 * G));
	for (size_t i = 0; i < 4; i++)
		locked += see(i).locked;
	ck_assert_uint_lt(locked, 4 * G / page);
	ck_assert_int_eq(pins_again(file, &left), 0);
	ck_assert_uint_eq(left, 0);
	for (size_t i = 0; i < 20; i++)
		if (i < 4 || i > 5)
			assert_hot(i);
	ck_assert(!pins_is_pinned(file, 4, 1));
	ck_assert_uint_eq(stats().pinned_bytes, 18 * G);
}
END_TEST

/* --- Limits --- */

START_TEST(the_budget_is_kept_to_the_byte)
{
	struct pins *small = NULL;
	struct pin_file *f = NULL;
	struct pins_stats s;
	size_t left = 99;

	if (!can_all())
		skip("no right to lock memory");
	bind_file(20 * G + 1);
	ck_assert_int_eq(pins_new(3 * G + page, &small), 0);
	ck_assert_int_eq(pins_file_open(small, path_fd, &f), 0);
	ck_assert_int_eq(pins_pin(f, 0, 21, NULL, NULL, &left), -ENOSPC);
	ck_assert_uint_eq(left, 99);
	ck_assert(pins_is_pinned(f, 0, 3));
	ck_assert(!pins_is_pinned(f, 3, 1));
	/* The tail is one page, and there is room for that. */
	ck_assert_int_eq(pins_pin(f, 20, 1, NULL, NULL, &left), 0);
	ck_assert_uint_eq(left, 0);
	pins_stats(small, &s);
	ck_assert_uint_eq(s.pinned_bytes, s.budget_bytes);
	ck_assert_int_eq(pins_pin(f, 4, 1, NULL, NULL, &left), -ENOSPC);
	/* Somebody gives way. */
	ck_assert_int_eq(pins_unpin(f, 1, 1, true), 0);
	ck_assert_int_eq(pins_pin(f, 4, 1, NULL, NULL, &left), 0);
	ck_assert_int_eq(pins_pin(f, 0, 1, NULL, NULL, &left), 0);
	ck_assert_int_eq(pins_pin(f, 1, 1, NULL, NULL, &left), -ENOSPC);
	pins_file_close(f);
	pins_stats(small, &s);
	ck_assert_uint_eq(s.pinned_bytes, 0);
	pins_free(small);
}
END_TEST

START_TEST(nothing_is_pinned_without_a_budget)
{
	struct pins *none = NULL;
	struct pin_file *f = NULL;
	size_t left = 99;

	if (!can_all())
		skip("no right to lock memory");
	bind_file(G);
	ck_assert_int_eq(pins_new(0, &none), 0);
	ck_assert_int_eq(pins_file_open(none, path_fd, &f), 0);
	ck_assert_int_eq(pins_pin(f, 0, 1, NULL, NULL, &left), -ENOSPC);
	pins_file_close(f);
	pins_free(none);
}
END_TEST

#define MANY 5000

START_TEST(thousands_of_files_are_bound)
{
	struct pin_file **all = calloc(MANY, sizeof(struct pin_file *));
	size_t left;

	if (!can_all() || stats().files_max < MANY) {
		free(all);
		skip("no right to lock memory, or few descriptors");
	}
	for (size_t i = 0; i < MANY; i++) {
		int fd = make_empty();

		write_range(fd, 0, 100);
		ck_assert_int_eq(pins_file_open(pins, fd, &all[i]), 0);
		(void)close(fd);
		ck_assert_int_eq(pins_pin(all[i], 0, 1, NULL, NULL, &left), 0);
	}
	ck_assert_uint_eq(stats().files, MANY);
	ck_assert_uint_eq(stats().pinned_bytes, MANY * page);
	for (size_t i = 0; i < MANY; i++)
		pins_file_close(all[i]);
	free(all);
}
END_TEST

START_TEST(the_number_of_files_is_bounded)
{
	const struct rlimit few = { 64, 64 };
	struct pin_file *all[64] = { NULL };
	struct pins *bounded = NULL;
	struct pins_stats s;
	size_t n = 0;
	int r;

	if (!can_all())
		skip("no right to lock memory");
	bind_file(page);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	ck_assert_int_eq(pins_new(PLENTY, &bounded), 0);
	while ((r = pins_file_open(bounded, path_fd, &all[n])) == 0)
		n++;
	ck_assert_int_eq(r, -EMFILE);
	ck_assert_uint_eq(n, 64 / PINS_DESCRIPTORS_SHARE);
	pins_stats(bounded, &s);
	ck_assert_uint_eq(s.files_max, n);
	/* One goes, another one comes. */
	pins_file_close(all[0]);
	ck_assert_int_eq(pins_file_open(bounded, path_fd, &all[0]), 0);
	while (n)
		pins_file_close(all[--n]);
	pins_free(bounded);
}
END_TEST

/* --- Progress --- */

struct told {
	uint64_t bytes;
	unsigned steps;
	unsigned stop_after;
};

static int tell(void *arg, uint64_t bytes)
{
	struct told *t = arg;

	t->bytes += bytes;
	t->steps++;
	return t->steps == t->stop_after ? -ECANCELED : 0;
}

START_TEST(progress_is_told_and_can_stop)
{
	struct told t = { 0 }, stopped = { .stop_after = 2 };
	size_t left = 99;

	if (!can_all())
		skip("no right to lock memory");
	bind_file(40 * G + 1);
	ck_assert_int_eq(pins_pin(file, 0, 41, tell, &stopped, &left),
			 -ECANCELED);
	ck_assert_uint_eq(left, 99);
	ck_assert_uint_eq(stopped.bytes, stats().pinned_bytes);
	ck_assert_uint_lt(stopped.bytes, 40 * G);
	ck_assert_int_eq(pins_pin(file, 0, 41, tell, &t, &left), 0);
	ck_assert_uint_eq(left, 0);
	ck_assert_uint_eq(stopped.bytes + t.bytes, 40 * G + page);
	ck_assert_uint_eq(stats().pinned_bytes, 40 * G + page);
}
END_TEST

/* --- System calls, counted --- */

#define UNITS 100000
#define COUNT_GRANULES ((size_t)64)
#define MARK_CALLS_MAX 16 /* of raising the signal that ends a count */

static void mark(void)
{
	(void)raise(SIGSTOP);
}

/* Between two marks each: see what is asserted below. */
static void traced(void)
{
	size_t left;
	int bad = 0;

	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
		_exit(2);
	mark();
	for (size_t i = 0; i < UNITS; i++)
		bad |= pins_pin(file, i * COUNT_GRANULES / UNITS, 1, NULL, NULL,
				&left);
	mark();
	for (size_t i = 0; i < UNITS; i++)
		bad |= pins_unpin(file, i * COUNT_GRANULES / UNITS, 1, false);
	mark();
	bad |= pins_pin(file, 0, COUNT_GRANULES, NULL, NULL, &left);
	mark();
	bad |= pins_unpin(file, 0, COUNT_GRANULES, false);
	mark();
	_exit(bad ? 1 : 0);
}

/* Lets the child run to its next mark; -1 when it has ended. */
static long calls_to_mark(pid_t pid, int *status)
{
	long stops = 0;

	for (;;) {
		ck_assert_int_eq(ptrace(PTRACE_SYSCALL, pid, NULL, NULL), 0);
		ck_assert_int_eq(waitpid(pid, status, 0), pid);
		if (!WIFSTOPPED(*status))
			return -1;
		if (WSTOPSIG(*status) == SIGSTOP)
			return stops / 2;
		stops++;
	}
}

START_TEST(pinning_100000_units_takes_few_system_calls)
{
	long pins_each, unpins_each, pin_whole, unpin_whole;
	int status;
	pid_t pid;

	if (!can_all() || !stats().knows_payers)
		skip("no right to lock memory");
	bind_file(COUNT_GRANULES * G);
	pins_file_close(take_ptr(file));
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		/* Locks are not inherited, and who pays is asked for anew. */
		if (pins_new(PLENTY, &pins) < 0 ||
		    pins_file_open(pins, path_fd, &file) < 0)
			_exit(1);
		traced();
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
		skip("no right to trace");
	ck_assert(WIFSTOPPED(status));
	pins_each = calls_to_mark(pid, &status);
	unpins_each = calls_to_mark(pid, &status);
	pin_whole = calls_to_mark(pid, &status);
	unpin_whole = calls_to_mark(pid, &status);
	printf("# %zu granules: pin %ld, unpin %ld, at once %ld and %ld "
	       "calls\n",
	       COUNT_GRANULES, pins_each, unpins_each, pin_whole, unpin_whole);
	ck_assert_int_eq(calls_to_mark(pid, &status), -1);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);

	/*
	 * Units cost nothing, granules do: 100,000 units of 40 KiB are 2,000
	 * granules, and those of 2 MiB as many granules, pinned in one go.
	 * Sanitizers make some calls of their own.
	 */
	ck_assert_int_le(pins_each, 40 * (long)COUNT_GRANULES + MARK_CALLS_MAX);
	ck_assert_int_le(unpins_each,
			 2 * (long)COUNT_GRANULES + MARK_CALLS_MAX);
	ck_assert_int_le(pin_whole, 6 * (long)COUNT_GRANULES + MARK_CALLS_MAX);
	ck_assert_int_le(unpin_whole, 2 + MARK_CALLS_MAX);
}
END_TEST

/* --- Threads --- */

#define ROUNDS 40

static void *pin_and_unpin(void *arg)
{
	struct pin_file *f = arg;
	struct pin_seen seen[8];
	size_t left;

	for (int i = 0; i < ROUNDS; i++) {
		ck_assert_int_eq(pins_pin(f, 0, 8, NULL, NULL, &left), 0);
		ck_assert_int_eq(pins_verify(f, 0, 8, seen), 0);
		(void)pins_is_pinned(f, 0, 8);
		(void)pins_file_pinned_bytes(f);
		(void)stats();
		ck_assert_int_eq(pins_again(f, &left), 0);
		ck_assert_int_eq(pins_unpin(f, (size_t)i % 8, 1, i % 3 == 0),
				 0);
	}
	return NULL;
}

START_TEST(many_threads_keep_the_sums_right)
{
	struct pin_file *second = NULL;
	pthread_t threads[4];
	int fd;

	if (!can_all())
		skip("no right to lock memory");
	bind_file(8 * G);
	fd = make_empty();
	write_range(fd, 0, 8 * G);
	ck_assert_int_eq(fsync(fd), 0);
	ck_assert_int_eq(pins_file_open(pins, fd, &second), 0);
	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL,
						pin_and_unpin,
						i % 2 ? second : file),
				 0);
	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
	ck_assert_uint_eq(stats().pinned_bytes,
			  pins_file_pinned_bytes(file) +
				  pins_file_pinned_bytes(second));
	ck_assert_int_eq(pin(0, 8), 0);
	ck_assert_uint_eq(pins_file_pinned_bytes(file), 8 * G);
	pins_file_close(second);
	ck_assert_uint_eq(stats().pinned_bytes, 8 * G);
	(void)close(fd);
}
END_TEST

/* --- Memory for ourselves --- */

static int reader = -1;

/* Asserts nothing: the library that asserts allocates as well. */
static int whole_life(void)
{
	cleanup(pins_free_cleanup) struct pins *p = NULL;
	cleanup(pins_file_close_cleanup) struct pin_file *f = NULL;
	struct pin_seen seen;
	size_t left;
	int r;

	(void)posix_fadvise(reader, 0, 0, POSIX_FADV_DONTNEED);
	if ((r = pins_new(PLENTY, &p)) < 0 ||
	    (r = pins_file_open(p, path_fd, &f)) < 0 ||
	    (r = pins_pin(f, 0, 3, NULL, NULL, &left)) < 0 ||
	    (r = pins_verify(f, 0, 1, &seen)) < 0 ||
	    (r = pins_again(f, &left)) < 0)
		return r;
	return pins_unpin(f, 0, 3, true);
}

START_TEST(every_allocation_may_fail)
{
	if (!has_disk() || !can_lock())
		skip("no right to lock memory");
	bind_file(2 * G + 77);
	pins_file_close(take_ptr(file));
	reader = reopen(path_fd, O_RDONLY);
	fault_sweep(whole_life);
	(void)close(take_fd(&reader));
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("pins");
	TCase *tc = tcase_create("pins");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc,
		       what_is_pinned_survives_reclaim_and_the_rest_does_not);
	tcase_add_test(tc, alternating_granules_are_exact);
	tcase_add_test(tc, unpinning_with_drop_empties_the_cache);
	tcase_add_test(tc, doing_it_twice_changes_nothing);
	tcase_add_test(tc, what_the_cache_lacks_is_read);
	tcase_add_test(tc, what_is_read_is_mapped_in_large_pieces);
	tcase_add_test(tc,
		       after_a_restart_what_is_cached_only_has_to_be_locked);
	tcase_add_loop_test(tc, a_file_of_any_size_is_pinned_to_its_last_page,
			    0, ARRAY_LEN(sizes));
	tcase_add_test(tc, holes_are_never_pinned);
	tcase_add_loop_test(tc, a_range_beyond_the_end_is_refused, 0,
			    ARRAY_LEN(beyond));
	tcase_add_test(tc, only_regular_files_are_bound);
	tcase_add_test(tc, a_file_that_became_shorter_is_an_error_not_a_signal);
	tcase_add_test(tc, what_a_direct_write_threw_out_is_pinned_again);
	tcase_add_test(tc, the_budget_is_kept_to_the_byte);
	tcase_add_test(tc, nothing_is_pinned_without_a_budget);
	tcase_add_test(tc, thousands_of_files_are_bound);
	tcase_add_test(tc, the_number_of_files_is_bounded);
	tcase_add_test(tc, progress_is_told_and_can_stop);
	tcase_add_test(tc, pinning_100000_units_takes_few_system_calls);
	tcase_add_test(tc, many_threads_keep_the_sums_right);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
