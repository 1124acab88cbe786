/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tree shows of the records of lineages: generations, tombstones,
 * claims. The records are made without the files that belong to them.
 */
#include <pthread.h>
#include <sys/stat.h>

#include "core/tree_priv.h"
#include "core/weight_key.h"
#include "fault.h"
#include "weight_tree_fixture.h"

#define MANY 20000
#define PIECE 256

static const struct weight_lineage home = { "t", "n", "r", "main" };

static struct weight_identity id_of(const struct weight_lineage *l,
				    uint64_t generation)
{
	return (struct weight_identity){ *l, generation };
}

static void stage_record(const struct weight_lineage *l, uint64_t generation)
{
	const struct weight_identity id = id_of(l, generation);

	ck_assert_int_eq(wms_stage(store->records, &id, 1000, NULL), 0);
}

static void publish_record(const struct weight_lineage *l, uint64_t generation)
{
	struct weight_publication p = {
		.identity = id_of(l, generation),
		.policy = WEIGHT_POLICY_DEFAULT,
		.affinity_count = 2,
		.affinity_digest = { { 3 } },
		.residency = WEIGHT_COLD,
		.durable = true,
	};
	cleanup(buf_release) struct buf key = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];

	stage_record(l, generation);
	ck_assert_int_eq(weight_group_id(&p.identity, group), 0);
	ck_assert_int_eq(weight_manifest_key(&p.identity, &key), 0);
	p.manifest = (struct weight_manifest_ref){
		.manifest_key = key.data,
		.payload_group_id = group,
		.complete = true,
		.payload_count = 2,
		.logical_bytes = 100,
	};
	ck_assert_int_eq(wms_publish(store->records, &p, 2000, NULL, NULL), 0);
}

static void delete_record(const struct weight_lineage *l, uint64_t generation,
			  bool wholly)
{
	const struct weight_identity id = id_of(l, generation);
	const struct wms_delete_request request = { 0 };

	ck_assert_int_eq(
		wms_delete_begin(store->records, &id, &request, 3000, NULL), 0);
	if (wholly)
		ck_assert_int_eq(
			wms_delete_finish(store->records, &id, 0, 3000, NULL),
			0);
}

static void bury(const struct weight_lineage *l, uint64_t generation)
{
	publish_record(l, generation);
	delete_record(l, generation, true);
}

/* ---- Generations ---- */

/* All of them, `limit` at a time, as "1 2 3 ". */
static void list(bool staged, size_t limit, struct buf *ret)
{
	uint64_t found[PIECE], after = 0;
	size_t count;

	buf_release(ret);
	do {
		ck_assert_int_eq(weight_dir_generations(lineage, staged, after,
							limit, found, &count),
				 0);
		ck_assert_uint_le(count, limit);
		for (size_t i = 0; i < count; i++) {
			ck_assert_uint_gt(found[i], after);
			after = found[i];
			(void)buf_printf(ret, "%llu ",
					 (unsigned long long)after);
		}
	} while (count > 0);
}

START_TEST(visible_generations_come_in_numeric_order_whatever_the_piece)
{
	static const uint64_t gone[] = { 1, 3, 11, 12, 13, 500 };
	static const uint64_t there[] = { 2, 9, 10, 100, 1000, UINT64_MAX };
	static const size_t limits[] = { 1, 2, 3, 6, 7, PIECE };
	cleanup(buf_release) struct buf seen = BUF_INIT;
	uint64_t next = 0;

	for (size_t i = 0; i < ARRAY_LEN(there); i++)
		publish_record(&home, there[i]);
	for (size_t i = 0; i < ARRAY_LEN(gone); i++) {
		publish_record(&home, gone[i]);
		delete_record(&home, gone[i], i % 2);
	}
	stage_record(&home, 5);
	for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
		list(false, limits[i], &seen);
		ck_assert_str_eq(seen.data,
				 "2 9 10 100 1000 18446744073709551615 ");
		list(true, limits[i], &seen);
		ck_assert_str_eq(seen.data, "5 ");
	}
	ck_assert_int_eq(weight_dir_next_generation(lineage, false, 10, &next),
			 0);
	ck_assert_uint_eq(next, 100);
	ck_assert_int_eq(
		weight_dir_next_generation(lineage, false, UINT64_MAX, &next),
		-ENOENT);
}
END_TEST

START_TEST(those_of_another_lineage_are_not_among_them)
{
	const struct weight_lineage next = { "t", "n", "r", "main2" };
	const struct weight_lineage longer = { "t", "n", "r", "main\xc3\xbf" };
	cleanup(buf_release) struct buf seen = BUF_INIT;

	publish_record(&home, 7);
	publish_record(&next, 6);
	publish_record(&longer, 8);
	list(false, 2, &seen);
	ck_assert_str_eq(seen.data, "7 ");
}
END_TEST

/* Every third one goes, and as many come in behind all. */
static void *change_many(void *arg)
{
	(void)arg;
	for (uint64_t g = 3; g <= MANY; g += 3) {
		delete_record(&home, g, g % 2);
		publish_record(&home, MANY + g);
	}
	return NULL;
}

START_TEST(many_generations_come_once_each_while_others_come_and_go)
{
	uint64_t found[PIECE], after = 0, seen = 0;
	pthread_t thread;
	size_t count;

	for (uint64_t g = 1; g <= MANY; g++)
		publish_record(&home, g);
	ck_assert_int_eq(pthread_create(&thread, NULL, change_many, NULL), 0);
	do {
		ck_assert_int_eq(weight_dir_generations(lineage, false, after,
							PIECE, found, &count),
				 0);
		for (size_t i = 0; i < count; i++) {
			ck_assert_uint_gt(found[i], after);
			after = found[i];
			seen += after <= MANY && after % 3;
		}
		(void)usleep(1000);
	} while (count > 0);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	ck_assert_uint_eq(seen, MANY - MANY / 3);
}
END_TEST

/* ---- Names of what has tombstones ---- */

/* All names at a place, with a blank behind each. */
static void list_names(enum weight_tree_names names, const char *const parts[],
		       unsigned depth, struct buf *ret)
{
	cleanup(buf_release) struct buf at = BUF_INIT;
	int r = 0;

	buf_release(ret);
	while (r == 0) {
		struct buf next = BUF_INIT;

		r = weight_tree_names_next(store, names, parts, depth, at.data,
					   &next);
		buf_release(&at);
		at = next;
		if (r == 0)
			(void)buf_printf(ret, "%s ", at.data);
	}
	ck_assert_int_eq(r, -ENOENT);
}

static int find(enum weight_tree_names names, unsigned depth, const char *a,
		const char *b, const char *c, const char *d)
{
	const char *const parts[] = { a, b, c, d };

	return weight_tree_names_find(store, names, parts, depth);
}

START_TEST(tombstones_are_found_level_by_level)
{
	static const struct weight_lineage lineages[] = {
		{ "b", "n", "r", "main" },
		{ "a b", "n/m", ".r", "50%" },
		{ "a b", "n/m", ".r", "v" },
		{ "a b", "o", "r", "v" },
	};
	static const char *const parts[] = { "a b", "n%2Fm", "%2Er", "50%25" };
	cleanup(buf_release) struct buf seen = BUF_INIT;
	const enum weight_tree_names t = WEIGHT_TREE_TOMBSTONES;

	list_names(t, NULL, 0, &seen);
	ck_assert_str_eq(seen.data, "");
	for (size_t i = 0; i < ARRAY_LEN(lineages); i++)
		bury(&lineages[i], 7);
	publish_record(&home, 7);
	list_names(t, parts, 0, &seen);
	ck_assert_str_eq(seen.data, "a b b ");
	list_names(t, parts, 1, &seen);
	ck_assert_str_eq(seen.data, "n%2Fm o ");
	list_names(t, parts, 2, &seen);
	ck_assert_str_eq(seen.data, "%2Er ");
	list_names(t, parts, 3, &seen);
	ck_assert_str_eq(seen.data, "50%25 v ");
	list_names(WEIGHT_TREE_CLAIMS, parts, 0, &seen);
	ck_assert_str_eq(seen.data, "");

	ck_assert_int_eq(find(t, 1, "a b", "", "", ""), 0);
	ck_assert_int_eq(find(t, 4, "a b", "n%2Fm", "%2Er", "50%25"), 0);
	ck_assert_int_eq(find(t, 3, "b", "n", "r", ""), 0);
	ck_assert_int_eq(find(t, 1, "t", "", "", ""), -ENOENT);
	ck_assert_int_eq(find(t, 1, "a", "", "", ""), -ENOENT);
	ck_assert_int_eq(find(t, 4, "t", "n", "r", "main"), -ENOENT);
	ck_assert_int_eq(find(t, 4, "b", "n", "r", "other"), -ENOENT);
	ck_assert_int_eq(find(t, 2, "a b", "n%2fm", "", ""), -ENOENT);
	ck_assert_int_eq(find(t, 2, "a b", "n%20m", "", ""), -ENOENT);
	ck_assert_int_eq(find(WEIGHT_TREE_CLAIMS, 1, "b", "", "", ""), -ENOENT);
}
END_TEST

START_TEST(a_name_that_is_too_long_for_a_path_is_passed_over)
{
	static char long_name[WEIGHT_PATH_NAME_MAX + 2];
	static char full_name[WEIGHT_PATH_NAME_MAX + 1];
	const struct weight_lineage too_long = { "t", "n", "r", long_name };
	const struct weight_lineage full = { "t", "n", "r", full_name };
	const struct weight_lineage last = { "t", "n", "r", "z" };
	static const char *const parts[] = { "t", "n", "r" };
	cleanup(buf_release) struct buf seen = BUF_INIT;
	cleanup(buf_release) struct buf want = BUF_INIT;

	memset(long_name, 'l', sizeof(long_name) - 1);
	memset(full_name, 'f', sizeof(full_name) - 1);
	bury(&last, 1);
	bury(&too_long, 1);
	bury(&full, 1);
	list_names(WEIGHT_TREE_TOMBSTONES, parts, 3, &seen);
	(void)buf_printf(&want, "%s z ", full_name);
	ck_assert_str_eq(seen.data, want.data);
}
END_TEST

START_TEST(tombstones_of_a_lineage_come_in_numeric_order)
{
	static const uint64_t gone[] = { 3, 7, 12, 200, UINT64_MAX };
	static const char *const parts[] = { "t", "n", "r", "main" };
	cleanup(buf_release) struct buf seen = BUF_INIT;
	uint64_t at = 0;
	int r;

	for (uint64_t g = 20; g < 20 + 2 * PIECE; g++)
		if (g != 200)
			publish_record(&home, g);
	for (size_t i = 0; i < ARRAY_LEN(gone); i++)
		bury(&home, gone[i]);
	/* On its way, not there yet. */
	delete_record(&home, 21, false);
	while ((r = weight_tree_tombstone_next(store, parts, at, &at)) == 0)
		(void)buf_printf(&seen, "%llu ", (unsigned long long)at);
	ck_assert_int_eq(r, -ENOENT);
	ck_assert_str_eq(seen.data, "3 7 12 200 18446744073709551615 ");
}
END_TEST

static void must_say(const struct buf *text, const char *member)
{
	ck_assert_msg(strstr(text->data, member), "%s not in %s", member,
		      text->data);
}

START_TEST(a_tombstone_is_told_of_as_the_revision_was)
{
	const struct weight_lineage l = { "t", "n/m", "r", "\xc3\xa9\"" };
	static const char *const parts[] = { "t", "n%2Fm", "r", "\xc3\xa9\"" };
	cleanup(buf_release) struct buf text = BUF_INIT;

	bury(&l, 7);
	publish_record(&l, 8);
	publish_record(&l, 9);
	delete_record(&l, 9, false);
	ck_assert_int_eq(weight_tree_tombstone_json(store, parts, 7, &text), 0);
	must_say(&text, "{\"tenant_id\":\"t\",\"namespace\":\"n/m\",");
	must_say(&text, "\"revision\":\"\xc3\xa9\\\"\"");
	must_say(&text, "\"weight_generation\":7,");
	must_say(&text, "\"availability\":\"deleted\"");
	must_say(&text, "\"residency\":\"absent\"");
	must_say(&text, "\"metadata_generation\":4,");
	must_say(&text, "\"payload_count\":2,");
	for (uint64_t g = 8; g <= 10; g++)
		ck_assert_int_eq(
			weight_tree_tombstone_json(store, parts, g, &text),
			-ENOENT);
}
END_TEST

/* ---- Claims ---- */

static void claim(const struct weight_lineage *l, uint64_t base,
		  uint64_t target)
{
	const struct weight_upsert_request request = {
		.request_id = "a request, \"quoted\"",
		.base = id_of(l, base),
		.target = id_of(l, target),
		.mode = WEIGHT_PUT_FIRST,
		.expected_base_metadata_generation = 2,
	};
	struct buf sentence = BUF_INIT;
	int r;

	publish_record(l, base);
	stage_record(l, target);
	r = wms_upsert_begin(store->records, &request, 4000, NULL, &sentence);
	ck_assert_msg(r == 0, "%d: %s", r, sentence.data);
	buf_release(&sentence);
}

START_TEST(a_lineage_tells_of_its_replacement)
{
	cleanup(buf_release) struct buf text = BUF_INIT;
	uint64_t watermark = 0;

	publish_record(&home, 3);
	ck_assert_int_eq(weight_dir_watermark(lineage, &watermark), -ENODATA);
	ck_assert_int_eq(weight_dir_claim(lineage, &text), -ENODATA);
	claim(&home, 7, 8);
	ck_assert_int_eq(weight_dir_watermark(lineage, &watermark), 0);
	ck_assert_uint_eq(watermark, 7);
	ck_assert_int_eq(weight_dir_claim(lineage, &text), 0);
	ck_assert_str_eq(text.data,
			 "7 by 8, mode=put_first, phase=preparing_target, "
			 "request_id=a request, \"quoted\"");
}
END_TEST

START_TEST(claims_are_found_level_by_level_and_told_of)
{
	static const char *const parts[] = { "t", "n", "r", "main" };
	static const char *const other[] = { "t", "n", "r", "other" };
	cleanup(buf_release) struct buf text = BUF_INIT;
	const enum weight_tree_names c = WEIGHT_TREE_CLAIMS;

	ck_assert_int_eq(weight_tree_claim_json(store, parts, &text), -ENOENT);
	claim(&home, 7, 8);
	for (unsigned depth = 0; depth < 4; depth++) {
		list_names(c, parts, depth, &text);
		ck_assert_str_eq(text.data, depth == 0 ? "t " :
					    depth == 1 ? "n " :
					    depth == 2 ? "r " :
							 "main ");
		ck_assert_int_eq(
			weight_tree_names_find(store, c, parts, depth + 1), 0);
	}
	ck_assert_int_eq(weight_tree_names_find(store, c, other, 4), -ENOENT);
	buf_release(&text);
	ck_assert_int_eq(weight_tree_claim_json(store, other, &text), -ENOENT);
	ck_assert_int_eq(weight_tree_claim_json(store, parts, &text), 0);
	must_say(&text, "{\"tenant_id\":\"t\",");
	must_say(&text, "\"lineage_metadata_generation\":1,");
	must_say(&text, "\"committed_weight_generation\":7,");
	must_say(&text, "\"request_id\":\"a request, \\\"quoted\\\"\",");
	must_say(&text, "\"mode\":\"put_first\",");
	must_say(&text, "\"phase\":\"preparing_target\",");
	must_say(&text, "\"base\":7,\"target\":8,");
	must_say(&text, "\"expected_base_metadata_generation\":2,");
	must_say(&text, "\"created_at_ms\":4000,");
	must_say(&text, "\"error\":\"\"");
}
END_TEST

/* ---- Without memory ---- */

static const char *const home_names[] = { "t", "n", "r", "main" };

static int next_and_drop(void)
{
	cleanup(buf_release) struct buf name = BUF_INIT;
	int r = weight_tree_names_next(store, WEIGHT_TREE_TOMBSTONES,
				       home_names, 3, "l", &name);

	return r < 0 && name.len > 0 ? -EIO : r;
}

static int find_and_drop(void)
{
	return weight_tree_names_find(store, WEIGHT_TREE_CLAIMS, home_names, 4);
}

static int tell_and_drop(void)
{
	cleanup(buf_release) struct buf text = BUF_INIT;
	int r = weight_tree_tombstone_json(store, home_names, 5, &text);

	if (r < 0 && text.len > 0)
		return -EIO;
	return r == 0 ? weight_tree_claim_json(store, home_names, &text) : r;
}

static int show_and_drop(void)
{
	cleanup(buf_release) struct buf text = BUF_INIT;
	uint64_t found[PIECE];
	size_t count;
	int r = weight_dir_generations(lineage, false, 0, PIECE, found, &count);

	if (r == 0)
		r = weight_dir_generations(lineage, true, 0, PIECE, found,
					   &count);
	return r == 0 ? weight_dir_claim(lineage, &text) : r;
}

START_TEST(every_allocation_may_fail)
{
	bury(&home, 5);
	claim(&home, 7, 8);
	fault_sweep(next_and_drop);
	fault_sweep(find_and_drop);
	fault_sweep(tell_and_drop);
	fault_sweep(show_and_drop);
}
END_TEST

/* ---- The suite ---- */

/* Thousands of commits are too many for a disk. */
static void setup_in_memory(void)
{
	struct stat st;

	setup();
	if (stat("/dev/shm", &st) < 0)
		return;
	teardown();
	(void)snprintf(path, sizeof(path), "/dev/shm/weight-tree.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(path));
	open_store();
}

Suite *suite(void)
{
	Suite *s = suite_create("weight_tree_lineage");
	TCase *t = tcase_create("records");
	TCase *many = tcase_create("many");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(
		t,
		visible_generations_come_in_numeric_order_whatever_the_piece);
	tcase_add_test(t, those_of_another_lineage_are_not_among_them);
	tcase_add_test(t, tombstones_are_found_level_by_level);
	tcase_add_test(t, a_name_that_is_too_long_for_a_path_is_passed_over);
	tcase_add_test(t, tombstones_of_a_lineage_come_in_numeric_order);
	tcase_add_test(t, a_tombstone_is_told_of_as_the_revision_was);
	tcase_add_test(t, a_lineage_tells_of_its_replacement);
	tcase_add_test(t, claims_are_found_level_by_level_and_told_of);
	tcase_add_test(t, every_allocation_may_fail);
	suite_add_tcase(s, t);

	tcase_add_checked_fixture(many, setup_in_memory, teardown);
	tcase_set_timeout(many, 100);
	tcase_add_test(
		many, many_generations_come_once_each_while_others_come_and_go);
	suite_add_tcase(s, many);
	return s;
}
