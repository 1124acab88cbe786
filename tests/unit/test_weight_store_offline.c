/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores that no daemon has open: what a check finds, and an import that fails
 * or is killed anywhere. What the program says is in tests/integration.
 */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "core/meta.h"
#include "core/step.h"
#include "core/weight_metadata_store.h"
#include "fault.h"
#include "weight_tree_fixture.h"

static char snapshot[PATH_LEN + 8]; /* of the store, beside it */
static char *found_lines;           /* all lines of the last run, joined */
static size_t progress_calls;
static uint64_t progress_last;

static void on_found(void *arg, const char *line)
{
	char *joined = NULL;

	(void)arg;
	ck_assert_ptr_null(strchr(line, '\n'));
	ck_assert_int_ge(asprintf(&joined, "%s%s\n",
				  found_lines ? found_lines : "", line),
			 0);
	free(found_lines);
	found_lines = joined;
}

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
	(void)arg;
	ck_assert_uint_le(done, total);
	progress_calls++;
	progress_last = done;
}

static const struct weight_store_watch watch = { on_found, on_progress, NULL };
static const struct weight_store_watch nobody = { .found = NULL };

static void in_store(char ret[static 3 * PATH_LEN], const char *name)
{
	(void)snprintf(ret, (size_t)3 * PATH_LEN, "%s/%s", path, name);
}

__attribute__((format(printf, 1, 2))) static void shell(const char *format, ...)
{
	char command[8 * PATH_LEN];
	va_list ap;

	va_start(ap, format);
	(void)vsnprintf(command, sizeof(command), format, ap);
	va_end(ap);
	ck_assert_int_eq(system(command), 0);
}

static struct weight_store_summary must_check(uint64_t wrong)
{
	cleanup(buf_release) struct buf sentence = BUF_INIT;
	struct weight_store_summary s;
	int r;

	free(take_ptr(found_lines));
	r = weight_store_check(path, &watch, &s, &sentence);
	ck_assert_msg(r == 0, "%d: %s", r, sentence.data);
	ck_assert_msg(s.wrong == wrong, "%llu wrong: %s",
		      (unsigned long long)s.wrong,
		      found_lines ? found_lines : "");
	return s;
}

static void must_find(const char *text)
{
	ck_assert_ptr_nonnull(found_lines);
	ck_assert_msg(strstr(found_lines, text) != NULL, "no '%s' in '%s'",
		      text, found_lines);
}

static void must_export(void)
{
	cleanup(buf_release) struct buf sentence = BUF_INIT;
	struct weight_store_summary s;
	auto_fd int fd = open(snapshot, O_CREAT | O_TRUNC | O_WRONLY, 0600);
	int r = weight_store_export(path, fd, &s, &sentence);

	ck_assert_msg(r == 0, "%d: %s", r, sentence.data);
	ck_assert_uint_eq(s.revisions, 2);
}

static int import(struct weight_store_summary *ret, struct buf *sentence)
{
	auto_fd int fd = open(snapshot, O_RDONLY | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	return weight_store_import(path, fd, &watch, ret, sentence);
}

static struct weight_store_summary must_import(void)
{
	cleanup(buf_release) struct buf sentence = BUF_INIT;
	struct weight_store_summary s;
	int r = import(&s, &sentence);

	ck_assert_msg(r == 0, "%d: %s", r, sentence.data);
	return s;
}

/* Two durable revisions in a store that was closed in order, and a snapshot. */
static void setup_closed(void)
{
	setup();
	config.durability = CONFIG_DURABILITY_WRITETHROUGH;
	(void)snprintf(snapshot, sizeof(snapshot), "%s.snap", path);
	for (int i = 0; i < 2; i++) {
		struct weight_group *g = published(i ? "8" : "7");

		settle(g);
		weight_group_unref(g);
	}
	close_store();
	must_export();
	progress_calls = 0;
}

static void teardown_closed(void)
{
	free(take_ptr(found_lines));
	(void)unlink(snapshot);
	teardown();
}

static void lose_metadata(void)
{
	shell("rm -r '%s/meta'", path);
}

/* It is the store that it was, also for who works with it. */
static void is_whole(void)
{
	struct weight_group *g;

	(void)must_check(0);
	open_store();
	for (int i = 0; i < 2; i++) {
		cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;

		g = find_published(i ? "8" : "7");
		ck_assert_int_eq(availability_of(g), WEIGHT_READY);
		f = find_file(g, "model.safetensors");
		settle(g);
		ck_assert(is_durable(g));
		weight_group_unref(g);
	}
	close_store();
	(void)must_check(0);
}

START_TEST(a_sound_store_has_no_lines)
{
	struct weight_store_summary s = must_check(0);

	ck_assert_ptr_null(found_lines);
	ck_assert_uint_eq(s.revisions, 2);
	ck_assert_uint_eq(s.staged, 0);
	ck_assert_uint_ge(s.log_last, 2);
	ck_assert_uint_eq(s.log_count, s.log_last - s.log_first + 1);
	ck_assert(!s.unreadable);
	ck_assert_uint_eq(progress_calls, 2);
	ck_assert_uint_eq(progress_last, 2);
	/* Nobody has to listen. */
	ck_assert_int_eq(weight_store_check(path, &nobody, &s, &why), 0);
}
END_TEST

/* ---- What a check finds in the metadata ---- */

static void change_metadata(meta_body_fn *body)
{
	char dir[3 * PATH_LEN];
	struct meta *m = NULL;

	in_store(dir, "meta");
	ck_assert_int_eq(meta_open(dir, META_BYTES_MAX, &m, &why), 0);
	ck_assert_int_eq(meta_update(m, META_NORMAL, body, NULL), 0);
	meta_close(m);
}

static int first_key(struct meta_txn *txn, enum meta_db db, char *ret,
		     size_t *ret_len)
{
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	struct meta_bytes key, value;
	int r = meta_cursor_open(txn, db, NULL, 0, &c);

	if (r == 0)
		r = meta_cursor_seek(c, NULL, 0, &key, &value);
	if (r < 0)
		return r;
	memcpy(ret, key.data, key.len);
	*ret_len = key.len;
	return 0;
}

static int spoil_record(struct meta_txn *txn, void *arg)
{
	char key[META_KEY_MAX];
	size_t len;
	int r = first_key(txn, META_DB_REVISION, key, &len);

	(void)arg;
	return r < 0 ? r : meta_put(txn, META_DB_REVISION, key, len, "x", 1);
}

static int spoil_log(struct meta_txn *txn, void *arg)
{
	(void)arg;
	return meta_put(txn, META_DB_STATE, "oplog_next", 10, "x", 1);
}

static int lose_log_entry(struct meta_txn *txn, void *arg)
{
	char key[META_KEY_MAX];
	size_t len;
	int r = first_key(txn, META_DB_OPLOG, key, &len);

	(void)arg;
	return r < 0 ? r : meta_delete(txn, META_DB_OPLOG, key, len);
}

/* What is damaged doesn't hide the rest, and is in no snapshot. */
START_TEST(damage_in_the_metadata_is_found)
{
	static const struct {
		meta_body_fn *body;
		const char *line;
		uint64_t wrong;
	} damages[] = {
		/* The directory of whose record is gone, and the log. */
		{ spoil_record, "a revision's record of 1 bytes", 3 },
		{ spoil_log, "the ends of the log can't be read", 1 },
		{ lose_log_entry, "of the log is missing", 1 },
	};
	struct weight_store_summary s;
	auto_fd int sink = open("/dev/null", O_WRONLY | O_CLOEXEC);

	change_metadata(damages[_i].body);
	(void)must_check(damages[_i].wrong);
	must_find(damages[_i].line);
	ck_assert_int_eq(weight_store_export(path, sink, &s, &why), -EUCLEAN);
	ck_assert_ptr_nonnull(strstr(why.data, "--check"));
}
END_TEST

START_TEST(a_database_that_cant_be_read_is_a_finding)
{
	struct weight_store_summary s;
	char data[3 * PATH_LEN];

	in_store(data, "meta/data.mdb");
	ck_assert_int_eq(truncate(data, 5000), 0);
	s = must_check(1);
	ck_assert(s.unreadable);
	must_find("is damaged");
	/* And it isn't overwritten. */
	buf_release(&why);
	ck_assert_int_eq(import(&s, &why), -EEXIST);
	ck_assert_ptr_nonnull(strstr(why.data, "has metadata"));
}
END_TEST

/* ---- What it finds in the payload ---- */

START_TEST(names_make_no_second_line)
{
	shell("mkdir \"$(printf '%s/groups/a\\nb')\" && "
	      "mkdir \"$(printf '%s/groups/a\\nb/c\\td')\"",
	      path, path);
	(void)must_check(1);
	must_find("groups/a?b/c?d: no record knows it");
}
END_TEST

START_TEST(what_was_removed_and_came_back_is_named)
{
	struct weight_group *g;

	shell("cp -a '%s/groups' '%s/groups.copy'", path, path);
	open_store();
	g = find_published("7");
	ck_assert_int_eq(weight_group_remove(g, 0, &why), 0);
	weight_group_unref(g);
	close_store();
	shell("rm -r '%s/groups' && mv '%s/groups.copy' '%s/groups'", path,
	      path, path);
	(void)must_check(1);
	must_find("what is left of a revision that was removed; it was {");
}
END_TEST

START_TEST(of_many_files_a_few_are_named)
{
	struct weight_group *g;
	char name[16];

	open_store();
	g = stage("9");
	for (int i = 0; i < 12; i++) {
		(void)snprintf(name, sizeof(name), "f%d.txt", i);
		weight_file_unref(put(g, name, "text", 4));
	}
	publish(g, "9");
	weight_group_unref(g);
	close_store();
	shell("find '%s/groups' -name 'f*.txt' -delete", path);
	(void)must_check(6);
	must_find("main/9: its file 'f0.txt': No such file");
	must_find("main/9: 7 more of its files are wrong");
}
END_TEST

/* ---- Importing ---- */

START_TEST(an_import_brings_it_back)
{
	struct weight_store_summary s;

	lose_metadata();
	s = must_import();
	ck_assert_uint_eq(s.revisions, 2);
	ck_assert_uint_eq(s.missing, 0);
	ck_assert_uint_eq(s.aside, 0);
	is_whole();
}
END_TEST

/* An earlier version made an empty database before it refused to start. */
START_TEST(a_database_that_nobody_worked_with_is_in_nobodys_way)
{
	struct weight_metadata_store *records = NULL;
	struct weight_store_summary s;
	char dir[3 * PATH_LEN];

	lose_metadata();
	in_store(dir, "meta");
	ck_assert_int_eq(wms_open(dir, &records, &why), 0);
	wms_close(records);
	/* It is no metadata either. */
	s = must_check(1);
	ck_assert(s.unreadable);
	must_find("has payload and no metadata");
	(void)must_import();
	is_whole();
}
END_TEST

/* Where there is one of that name, there is a number behind it. */
START_TEST(what_is_put_aside_replaces_nothing)
{
	static const char name[] = "ffffffffffffffffffffffffffffffff"
				   "ffffffffffffffffffffffffffffffff";
	struct weight_store_summary s;

	for (int i = 0; i < 3; i++) {
		shell("mkdir -p '%s/groups/ff/%s' && "
		      "echo %d >'%s/groups/ff/%s/n'",
		      path, name, i, path, name);
		lose_metadata();
		s = must_import();
		ck_assert_uint_eq(s.aside, 1);
	}
	shell("test \"$(cat '%s/aside/%s/n' '%s/aside/%s.1/n' "
	      "'%s/aside/%s.2/n' | tr -d '\\n')\" = 012",
	      path, name, path, name, path, name);
	is_whole();
}
END_TEST

/* Payload of a revision that the snapshot calls removed goes at the start. */
START_TEST(what_was_removed_is_not_put_aside)
{
	struct weight_store_summary s;
	struct weight_group *g;

	shell("cp -a '%s/groups' '%s/groups.copy'", path, path);
	open_store();
	g = find_published("7");
	ck_assert_int_eq(weight_group_remove(g, 0, &why), 0);
	weight_group_unref(g);
	close_store();
	must_export();
	lose_metadata();
	shell("rm -r '%s/groups' && mv '%s/groups.copy' '%s/groups'", path,
	      path, path);
	s = must_import();
	ck_assert_uint_eq(s.aside, 0);
	open_store();
	close_store();
	(void)must_check(0);
}
END_TEST

/* It is as it was before, and the next one succeeds. */
static void must_be_untouched(void)
{
	shell("test ! -e '%s/meta' && test ! -e '%s/meta.new'", path, path);
	shell("rm -f '%s/aside'", path);
	(void)must_import();
	is_whole();
}

START_TEST(one_that_fails_at_the_end_leaves_nothing)
{
	struct weight_store_summary s;

	lose_metadata();
	shell("mkdir -p '%s/groups/ff/%064d' && touch '%s/aside'", path, 0,
	      path);
	ck_assert_int_eq(import(&s, &why), -ENOTDIR);
	ck_assert_uint_gt(why.len, 0);
	must_be_untouched();
}
END_TEST

static const char *die_at; /* NULL: at the nth step */
static unsigned die_after;

static void on_step(const char *name)
{
	if (die_at ? strcmp(name, die_at) == 0 : die_after-- == 0)
		(void)kill(getpid(), SIGKILL);
}

/* Imports in a child that is killed there. False: it came to its end. */
static bool import_killed(void)
{
	struct weight_store_summary s;
	pid_t child = fork();
	int status;

	if (child == 0) {
		step_hook = on_step;
		_exit(import(&s, &why) == 0 ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	if (WIFEXITED(status)) {
		ck_assert_int_eq(WEXITSTATUS(status), 0);
		return false;
	}
	return true;
}

/* There is metadata, all of it, or there is none. */
static void after_a_kill(void)
{
	char data[3 * PATH_LEN];

	in_store(data, "meta/data.mdb");
	if (access(data, F_OK) < 0) {
		ck_assert_int_eq(weight_store_open(path, &config, &store, &why),
				 -EUCLEAN);
		ck_assert_ptr_nonnull(strstr(why.data, "--import"));
		buf_release(&why);
		(void)must_import();
	}
	is_whole();
	lose_metadata();
}

START_TEST(a_kill_leaves_all_or_nothing)
{
	static const char *const steps[] = {
		"restore: filled",
		"restore: put aside",
		"restore: about to be in place",
		"restore: in place",
	};
	bool killed = true;

	lose_metadata();
	for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
		die_at = steps[i];
		ck_assert(import_killed());
		after_a_kill();
	}
	die_at = NULL;
	for (unsigned n = 0; killed; n++) {
		die_after = n;
		killed = import_killed();
		if (killed)
			after_a_kill();
	}
	is_whole();
}
END_TEST

/* ---- Memory ---- */

static int check_swept(void)
{
	cleanup(buf_release) struct buf sentence = BUF_INIT;
	struct weight_store_summary s;

	return weight_store_check(path, &nobody, &s, &sentence);
}

static int export_swept(void)
{
	cleanup(buf_release) struct buf sentence = BUF_INIT;
	auto_fd int sink = open("/dev/null", O_WRONLY | O_CLOEXEC);
	struct weight_store_summary s;

	return weight_store_export(path, sink, &s, &sentence);
}

/* Into a directory of its own, which is made and removed again. */
static int import_swept(void)
{
	cleanup(buf_release) struct buf sentence = BUF_INIT;
	auto_fd int fd = open(snapshot, O_RDONLY | O_CLOEXEC);
	struct weight_store_summary s;
	char dir[PATH_LEN + 8], command[PATH_LEN + 24];
	int r;

	(void)snprintf(dir, sizeof(dir), "%s.made", path);
	r = weight_store_import(dir, fd, &nobody, &s, &sentence);
	/* Without an assertion, which takes memory itself. */
	if (r < 0)
		return access(dir, F_OK) < 0 ? r : -EEXIST;
	(void)snprintf(command, sizeof(command), "rm -r '%s'", dir);
	return system(command) == 0 ? 0 : -EIO;
}

/* What a child allocates is none of the sweep's business. */
static void disarm(void)
{
	(void)fault_disarm();
}

START_TEST(every_allocation_may_fail)
{
	ck_assert_int_eq(pthread_atfork(NULL, NULL, disarm), 0);
	fault_sweep(check_swept);
	fault_sweep(export_swept);
	fault_sweep(import_swept);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_store_offline");
	TCase *tc = tcase_create("core");

	tcase_set_timeout(tc, 100);
	tcase_add_checked_fixture(tc, setup_closed, teardown_closed);
	tcase_add_test(tc, a_sound_store_has_no_lines);
	tcase_add_loop_test(tc, damage_in_the_metadata_is_found, 0, 3);
	tcase_add_test(tc, a_database_that_cant_be_read_is_a_finding);
	tcase_add_test(tc, names_make_no_second_line);
	tcase_add_test(tc, what_was_removed_and_came_back_is_named);
	tcase_add_test(tc, of_many_files_a_few_are_named);
	tcase_add_test(tc, an_import_brings_it_back);
	tcase_add_test(tc,
		       a_database_that_nobody_worked_with_is_in_nobodys_way);
	tcase_add_test(tc, what_is_put_aside_replaces_nothing);
	tcase_add_test(tc, what_was_removed_is_not_put_aside);
	tcase_add_test(tc, one_that_fails_at_the_end_leaves_nothing);
	tcase_add_test(tc, a_kill_leaves_all_or_nothing);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
