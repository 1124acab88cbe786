/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/payload.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

static char top[] = "payload-XXXXXX";
static int tree = -1; /* O_PATH descriptor of top/tree */

static void remove_all(int fd)
{
	bool empty = false;

	while (!empty)
		ck_assert_int_eq(payload_remove_batch(fd, 1000, &empty, NULL),
				 0);
}

static void make_top(void)
{
	char path[64];

	ck_assert_ptr_nonnull(mkdtemp(top));
	(void)snprintf(path, sizeof(path), "%s/tree", top);
	ck_assert_int_eq(mkdir(path, 0755), 0);
	tree = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(tree, 0);
}

static void remove_top(void)
{
	auto_fd int fd = open(top, O_PATH | O_DIRECTORY | O_CLOEXEC);

	(void)close(tree);
	remove_all(fd);
	ck_assert_int_eq(rmdir(top), 0);
}

/* --- Making trees: one step a string --- */

/*
 * "d PATH" directory, "f PATH" file holding its path, "l PATH TARGET" symlink,
 * "h PATH OLD" hard link, "p PATH" fifo.
 */
static void make_step(const char *step)
{
	char path[512] = "", arg[512] = "";
	int r = -1;

	ck_assert_int_ge(sscanf(step + 2, "%511s %511s", path, arg), 1);
	if (step[0] == 'd')
		r = mkdirat(tree, path, 0750);
	if (step[0] == 'l')
		r = symlinkat(arg, tree, path);
	if (step[0] == 'h')
		r = linkat(tree, arg, tree, path, 0);
	if (step[0] == 'p')
		r = mkfifoat(tree, path, 0600);
	if (step[0] == 'f') {
		auto_fd int fd = openat(tree, path, O_CREAT | O_WRONLY, 0640);

		r = write(fd, path, strlen(path)) < 0;
	}
	ck_assert_msg(r == 0, "%s: %s", step, strerror(errno));
}

#define STEPS_MAX 8

static void make_steps(const char *const steps[STEPS_MAX])
{
	for (size_t i = 0; i < STEPS_MAX && steps[i]; i++)
		make_step(steps[i]);
}

static const char *const model[STEPS_MAX] = {
	"d sub",
	"f sub/b.bin",
	"f a.json",
	"h sub/a2.json a.json",
	"l latest sub",
	"d sub/deep",
	"l sub/deep/up ../../a.json",
};

/* --- What is accepted --- */

START_TEST(a_tree_is_described_completely)
{
	cleanup(payload_free_cleanup) struct payload *p = NULL;
	static const char *const paths[] = { "a.json",     "latest",
					     "sub",        "sub/a2.json",
					     "sub/b.bin",  "sub/deep",
					     "sub/deep/up" };
	const struct payload_entry *e;
	struct buf why = BUF_INIT;

	make_steps(model);
	ck_assert_int_eq(payload_scan(tree, &p, &why), 0);
	ck_assert_uint_eq(why.len, 0);
	ck_assert_uint_eq(p->count, ARRAY_LEN(paths));
	for (size_t i = 0; i < p->count; i++) {
		ck_assert_str_eq(p->entries[i].path, paths[i]);
		ck_assert_ptr_eq(payload_find(p, paths[i]), &p->entries[i]);
	}
	ck_assert_ptr_null(payload_find(p, "sub/absent"));

	ck_assert_uint_eq(p->object_count, 2);
	ck_assert_uint_eq(p->objects[0], 0);
	ck_assert_uint_eq(p->objects[1], 4);
	ck_assert_uint_eq(p->entries[3].object, 0);
	ck_assert_uint_eq(p->entries[4].object, 1);
	ck_assert_uint_eq(p->entries[2].object, PAYLOAD_NO_OBJECT);

	e = payload_find(p, "sub/b.bin");
	ck_assert_int_eq(e->kind, PAYLOAD_FILE);
	ck_assert_uint_eq(e->size, strlen("sub/b.bin"));
	ck_assert_uint_eq(e->mode, 0640);
	ck_assert_uint_eq(e->uid, geteuid());
	e = payload_find(p, "latest");
	ck_assert_int_eq(e->kind, PAYLOAD_SYMLINK);
	ck_assert_str_eq(e->target, "sub");
	ck_assert_int_eq(payload_sync_dirs(tree, p), 0);
}
END_TEST

START_TEST(an_empty_tree_has_no_entries)
{
	cleanup(payload_free_cleanup) struct payload *p = NULL;

	ck_assert_int_eq(payload_scan(tree, &p, NULL), 0);
	ck_assert_uint_eq(p->count, 0);
	ck_assert_uint_eq(p->object_count, 0);
	ck_assert_ptr_null(payload_find(p, ""));
	ck_assert_int_eq(payload_sync_dirs(tree, p), 0);
}
END_TEST

START_TEST(a_missing_directory_cannot_be_made_durable)
{
	cleanup(payload_free_cleanup) struct payload *p = NULL;

	make_step("d sub");
	ck_assert_int_eq(payload_scan(tree, &p, NULL), 0);
	ck_assert_int_eq(unlinkat(tree, "sub", AT_REMOVEDIR), 0);
	ck_assert_int_eq(payload_sync_dirs(tree, p), -ENOENT);
}
END_TEST

/* --- What is refused --- */

/* clang-format off */
static const struct {
	const char *steps[STEPS_MAX];
	const char *names; /* must be in the sentence */
} refused[] = {
	{ { "p pipe" },                                    "'pipe'" },
	{ { "d a", "d a/.weights" },                       "'a/.weights'" },
	{ { "f .weights" },                                "'.weights'" },
	{ { "l x /etc/passwd" },                           "absolute" },
	{ { "l x nowhere" },                               "not there" },
	{ { "f f", "l x f/y" },                            "not there" },
	{ { "l x y", "l y x" },                            "circle" },
	{ { "l x x" },                                     "circle" },
	{ { "l x .." },                                    "out of the tree" },
	{ { "d a", "l a/x ../../tree/a" },                 "out of the tree" },
	{ { "f f", "h ../outside f" },                     "2 names" },
	{ { "f f", "h g f", "h ../outside f" },            "3 names" },
};
/* clang-format on */

START_TEST(what_cannot_be_published_is_refused_with_a_sentence)
{
	struct payload *untouched = NULL;
	struct buf why = BUF_INIT;

	make_steps(refused[_i].steps);
	ck_assert_int_eq(payload_scan(tree, &untouched, &why), -EBADMSG);
	ck_assert_ptr_null(untouched);
	ck_assert_msg(strstr(why.data, refused[_i].names) != NULL, "%s",
		      why.data);
	ck_assert_ptr_null(strchr(why.data, '\n'));
	buf_release(&why);
	ck_assert_int_eq(payload_scan(tree, &untouched, NULL), -EBADMSG);
}
END_TEST

START_TEST(a_mount_inside_is_refused)
{
	struct payload *untouched = NULL;
	struct buf why = BUF_INIT;
	char path[64];
	int r;

	make_step("d sub");
	(void)snprintf(path, sizeof(path), "%s/tree/sub", top);
	if (mount("none", path, "tmpfs", 0, NULL) < 0) {
		(void)fprintf(stderr, "# skipped: mounting needs root\n");
		return;
	}
	r = payload_scan(tree, &untouched, &why);
	ck_assert_int_eq(umount(path), 0);
	ck_assert_int_eq(r, -EBADMSG);
	ck_assert_ptr_nonnull(strstr(why.data, "another filesystem"));
	buf_release(&why);
}
END_TEST

/* Makes a chain of count directories "d/d/..." and returns the last. */
static int make_chain(unsigned count)
{
	int fd = dup(tree);

	for (unsigned i = 0; i < count; i++) {
		int next;

		ck_assert_int_eq(mkdirat(fd, "d", 0755), 0);
		next = openat(fd, "d", O_PATH | O_DIRECTORY | O_CLOEXEC);
		ck_assert_int_ge(next, 0);
		(void)close(fd);
		fd = next;
	}
	return fd;
}

START_TEST(the_deepest_tree_is_accepted_and_one_more_is_not)
{
	cleanup(payload_free_cleanup) struct payload *p = NULL;
	struct payload *untouched = NULL;
	auto_fd int last = make_chain(PAYLOAD_DEPTH_MAX);
	struct buf why = BUF_INIT;

	ck_assert_int_eq(payload_scan(tree, &p, &why), 0);
	ck_assert_uint_eq(p->count, PAYLOAD_DEPTH_MAX);
	ck_assert_int_eq(mkdirat(last, "d", 0755), 0);
	ck_assert_int_eq(payload_scan(tree, &untouched, &why), -EFBIG);
	ck_assert_ptr_nonnull(strstr(why.data, "64"));
	buf_release(&why);
}
END_TEST

START_TEST(a_path_above_the_limit_is_refused)
{
	struct payload *untouched = NULL;
	struct buf why = BUF_INIT;
	int fd = dup(tree);
	char name[256];

	memset(name, 'n', 255);
	name[255] = '\0';
	for (int i = 0; i < 16; i++) {
		int next;

		ck_assert_int_eq(mkdirat(fd, name, 0755), 0);
		next = openat(fd, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
		(void)close(fd);
		fd = next;
	}
	(void)close(fd);
	ck_assert_int_eq(payload_scan(tree, &untouched, &why), -EFBIG);
	ck_assert_ptr_nonnull(strstr(why.data, "4000 bytes"));
	buf_release(&why);
}
END_TEST

/* --- Removing --- */

/* The number of entries, whatever they are. */
static size_t count_entries(void)
{
	cleanup(payload_free_cleanup) struct payload *p = NULL;

	ck_assert_int_eq(payload_scan(tree, &p, NULL), 0);
	return p->count;
}

START_TEST(a_batch_removes_no_more_than_asked)
{
	bool empty = false;
	size_t left;

	make_steps(model);
	/* A removed target would leave a dangling link behind. */
	ck_assert_int_eq(unlinkat(tree, "latest", 0), 0);
	ck_assert_int_eq(unlinkat(tree, "sub/deep/up", 0), 0);
	ck_assert_int_eq(unlinkat(tree, "sub/a2.json", 0), 0);
	for (left = count_entries(); left > 0; left--) {
		ck_assert_uint_eq(count_entries(), left);
		ck_assert_int_eq(payload_remove_batch(tree, 1, &empty, NULL),
				 0);
		ck_assert(!empty);
	}
	ck_assert_int_eq(payload_remove_batch(tree, 1, &empty, NULL), 0);
	ck_assert(empty);
}
END_TEST

START_TEST(removing_never_follows_a_link)
{
	auto_fd int fd = -1;

	make_step("d ../kept");
	make_step("f ../kept/file");
	make_step("l x ../kept");
	make_step("d sub");
	make_step("l sub/x ../../kept/file");
	remove_all(tree);
	fd = openat(tree, "../kept/file", O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_uint_eq(count_entries(), 0);
}
END_TEST

START_TEST(any_tree_can_be_removed)
{
	auto_fd int last = make_chain(300);

	for (unsigned i = 0; i < 2000; i++) {
		char step[32];

		(void)snprintf(step, sizeof(step), "%c n%u", "fdp"[i % 3], i);
		make_step(step);
	}
	ck_assert_int_eq(symlinkat("loop", last, "loop"), 0);
	remove_all(tree);
	ck_assert_uint_eq(count_entries(), 0);
}
END_TEST

START_TEST(what_cannot_be_removed_is_named)
{
	struct buf why = BUF_INIT;
	bool empty = false;
	char path[64];
	int r;

	make_step("d busy");
	(void)snprintf(path, sizeof(path), "%s/tree/busy", top);
	if (mount("none", path, "tmpfs", 0, NULL) < 0) {
		(void)fprintf(stderr, "# skipped: mounting needs root\n");
		return;
	}
	r = payload_remove_batch(tree, 10, &empty, &why);
	ck_assert_int_eq(umount(path), 0);
	ck_assert_int_eq(r, -EBUSY);
	ck_assert_ptr_nonnull(strstr(why.data, "'busy'"));
	buf_release(&why);
}
END_TEST

/* --- Memory --- */

static int scan_and_drop(void)
{
	cleanup(payload_free_cleanup) struct payload *p = NULL;
	struct buf why = BUF_INIT;
	int r = payload_scan(tree, &p, &why);

	buf_release(&why);
	return r;
}

START_TEST(every_allocation_may_fail)
{
	make_steps(model);
	fault_sweep(scan_and_drop);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("payload");
	TCase *tc = tcase_create("trees");

	tcase_add_checked_fixture(tc, make_top, remove_top);
	tcase_add_test(tc, a_tree_is_described_completely);
	tcase_add_test(tc, an_empty_tree_has_no_entries);
	tcase_add_test(tc, a_missing_directory_cannot_be_made_durable);
	tcase_add_loop_test(tc,
			    what_cannot_be_published_is_refused_with_a_sentence,
			    0, (int)ARRAY_LEN(refused));
	tcase_add_test(tc, a_mount_inside_is_refused);
	tcase_add_test(tc, the_deepest_tree_is_accepted_and_one_more_is_not);
	tcase_add_test(tc, a_path_above_the_limit_is_refused);
	tcase_add_test(tc, a_batch_removes_no_more_than_asked);
	tcase_add_test(tc, removing_never_follows_a_link);
	tcase_add_test(tc, any_tree_can_be_removed);
	tcase_add_test(tc, what_cannot_be_removed_is_named);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
