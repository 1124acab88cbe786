/* SPDX-License-Identifier: Apache-2.0 */
/* The two doors on a real store, without FUSE. */
#include "core/derived.h"
#include "weight_tree_fixture.h"

START_TEST(what_was_staged_is_published_whole)
{
	struct weight_group *g = published("7");
	struct weight_group *again = NULL;
	struct weight_metadata *m = NULL;
	uint64_t generation = 0;

	ck_assert_int_eq(weight_group_state(g), WEIGHT_GROUP_PUBLISHED);
	ck_assert_int_eq(weight_dir_published(lineage, "7", &again), 0);
	ck_assert_ptr_eq(again, g);
	ck_assert_int_eq(
		weight_dir_next_generation(lineage, false, 0, &generation), 0);
	ck_assert_uint_eq(generation, 7);
	ck_assert_int_eq(
		weight_dir_next_generation(lineage, true, 0, &generation),
		-ENOENT);
	ck_assert_int_eq(weight_group_metadata(g, &m), 0);
	ck_assert_int_eq(m->availability, WEIGHT_READY);
	ck_assert_int_eq(m->residency, can_pin() ? WEIGHT_HOT : WEIGHT_COLD);
	ck_assert_uint_eq(m->metadata_generation, 2);
	ck_assert_uint_eq(m->manifest.payload_count, 1);
	ck_assert_uint_eq(m->manifest.logical_bytes, sizeof(model) - 1);
	weight_metadata_free(m);
	weight_group_unref(again);
	weight_group_unref(g);
}
END_TEST

/* MasterService.ManagedWeightGroupIsSkippedByEvictionAndGenericRemoval */
START_TEST(a_published_tree_takes_no_change)
{
	struct weight_group *g = published("7");
	struct weight_file *root = root_of(g);
	struct weight_file *f = NULL;

	ck_assert_int_eq(weight_group_enter(g, NULL), -EROFS);
	ck_assert_int_eq(weight_file_lookup(root, "model.safetensors", &f), 0);
	weight_file_unref(f);
	weight_file_unref(root);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_malformed_file_refuses_the_publish_and_can_be_mended)
{
	struct weight_group *g = stage("3");
	struct weight_file *root = root_of(g);
	int r;

	weight_file_unref(put(g, "model.safetensors", "nonsense", 8));
	r = weight_group_publish(g, lineage, "3", false, NULL, &why);
	ck_assert_int_eq(r, -EBADMSG);
	ck_assert_ptr_nonnull(strstr(why.data, "model.safetensors"));
	ck_assert_int_eq(weight_group_state(g), WEIGHT_GROUP_STAGED);
	ck_assert_int_eq(weight_group_enter(g, NULL), 0);
	ck_assert_int_eq(weight_file_unlink(root, "model.safetensors"), 0);
	weight_group_leave(g);
	weight_file_unref(
		put(g, "model.safetensors", model, sizeof(model) - 1));
	r = weight_group_publish(g, lineage, "3", false, NULL, &why);
	ck_assert_int_eq(r, 0);
	weight_file_unref(root);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_writer_keeps_it_from_being_published)
{
	struct weight_group *g = stage("3");
	struct weight_file *f =
		put(g, "model.safetensors", model, sizeof(model) - 1);

	ck_assert_int_eq(weight_group_enter(g, NULL), 0);
	ck_assert_int_eq(weight_file_open(f, O_RDWR, true), 0);
	weight_group_leave(g);
	ck_assert_int_eq(
		weight_group_publish(g, lineage, "3", false, NULL, &why),
		-EBUSY);
	weight_file_close(f, O_RDWR);
	ck_assert_int_eq(
		weight_group_publish(g, lineage, "3", false, NULL, &why), 0);
	weight_file_unref(f);
	weight_group_unref(g);
}
END_TEST

START_TEST(the_target_has_one_place_and_one_life)
{
	struct weight_group *g = published("7");
	struct weight_group *h = stage("8");
	struct weight_group *none = NULL;

	ck_assert_int_eq(
		weight_group_publish(h, lineage, "9", false, NULL, &why),
		-EPERM);
	ck_assert_int_eq(
		weight_dir_stage(lineage, "7", 0755, &caller, &none, &why),
		-EEXIST);
	ck_assert_int_eq(weight_group_remove(g, 0, &why), 0);
	ck_assert_int_eq(weight_dir_published(lineage, "7", &none), -ENOENT);
	ck_assert_int_eq(
		weight_dir_stage(lineage, "7", 0755, &caller, &none, &why),
		-EEXIST);
	weight_group_unref(h);
	weight_group_unref(g);
}
END_TEST

START_TEST(an_open_handle_or_a_mapping_holds_off_the_removal)
{
	struct weight_group *g = published("7");
	struct weight_file *root = root_of(g);
	struct weight_file *f = NULL;
	void *map;
	int fd, r;

	ck_assert_int_eq(weight_file_lookup(root, "model.safetensors", &f), 0);
	ck_assert_int_eq(weight_file_open(f, O_RDONLY, true), 0);
	ck_assert_int_eq(weight_group_remove(g, 0, &why), -EBUSY);
	fd = reopen_file(f, O_RDONLY);
	map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(map, MAP_FAILED);
	(void)close(fd);
	weight_file_close(f, O_RDONLY);
	ck_assert_int_eq(weight_group_remove(g, 0, &why), -EBUSY);
	(void)munmap(map, 4096);
	while ((r = weight_group_remove(g, 0, &why)) == -EBUSY)
		(void)usleep(1000);
	ck_assert_int_eq(r, 0);
	weight_file_unref(f);
	weight_file_unref(root);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_tensor_is_a_file_of_its_own)
{
	struct weight_group *g = published("7");
	struct weight_tensors *t = NULL;
	struct derived_file *file = NULL;
	char link[64], bytes[16];
	size_t i = 9;
	int fd;

	ck_assert_int_eq(weight_group_tensors_cached(g, &t), -EWOULDBLOCK);
	ck_assert_int_eq(weight_group_tensors(g, &t), 0);
	ck_assert_uint_eq(weight_tensors_count(t), 1);
	ck_assert_int_eq(weight_tensors_find(t, "v", &i), -ENOENT);
	ck_assert_int_eq(weight_tensors_find(t, "w", &i), 0);
	ck_assert_str_eq(weight_tensors_at(t, i)->path, "model.safetensors");
	ck_assert_uint_eq(weight_tensors_at(t, i)->offset, 72);
	ck_assert_int_eq(weight_tensor_open(g, i, &file), 0);
	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d",
		       weight_tensor_fd(file));
	fd = open(link, O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(read(fd, bytes, sizeof(bytes)), 8);
	(void)close(fd);
	ck_assert_mem_eq(bytes, "abcdefgh", 8);
	weight_tensor_close(g, file);
	weight_tensors_unref(t);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_restart_finds_what_was_published_and_what_was_staged)
{
	struct weight_group *g = published("7");
	struct weight_group *h = stage("8");
	struct weight_file *root;
	struct weight_file *f = NULL;

	weight_file_unref(put(h, "note", "x", 1));
	weight_group_unref(g);
	weight_group_unref(h);
	reopen_store();
	g = find_published("7");
	ck_assert_int_eq(weight_dir_staged(lineage, "8", &h), 0);
	root = root_of(h);
	ck_assert_int_eq(weight_file_lookup(root, "note", &f), 0);
	weight_file_unref(f);
	weight_file_unref(root);
	weight_group_unref(g);
	weight_group_unref(h);
}
END_TEST

START_TEST(an_emptied_staging_tree_leaves_nothing)
{
	struct weight_group *g = stage("8");
	struct weight_file *root = root_of(g);

	weight_file_unref(put(g, "note", "x", 1));
	ck_assert_int_eq(weight_dir_unstage(lineage, "8", &why), -ENOTEMPTY);
	ck_assert_int_eq(weight_group_enter(g, NULL), 0);
	ck_assert_int_eq(weight_file_unlink(root, "note"), 0);
	weight_group_leave(g);
	ck_assert_int_eq(weight_dir_unstage(lineage, "8", &why), 0);
	weight_file_unref(root);
	weight_group_unref(g);
	g = stage("8");
	weight_group_unref(g);
}
END_TEST

/* WeightGroupLifecycle.DeleteRemovesPayloadAndManifestThenTombstones */
START_TEST(the_other_door_tells_and_removes_the_same)
{
	struct weight_group *g = published("7");
	const struct weight_identity *id = weight_group_identity(g);
	struct weight_metadata *m = NULL;
	uint64_t size = 0;
	bool exists = false;

	ck_assert_int_eq(weight_is_exist(store, id, &exists), 0);
	ck_assert(exists);
	ck_assert_int_eq(weight_get_size(store, id, &size), 0);
	ck_assert_uint_eq(size, sizeof(model) - 1);
	ck_assert_int_eq(weight_remove(store, id, 1, &why), -ECANCELED);
	ck_assert_int_eq(weight_remove(store, id, 2, &why), 0);
	ck_assert_int_eq(weight_is_exist(store, id, &exists), 0);
	ck_assert(!exists);
	ck_assert_int_eq(weight_get_size(store, id, &size), -EINPROGRESS);
	ck_assert_int_eq(weight_get_metadata(store, id, &m, NULL), 0);
	ck_assert_int_ne(m->availability, WEIGHT_READY);
	weight_metadata_free(m);
	weight_group_unref(g);
}
END_TEST

START_TEST(a_second_owner_is_refused)
{
	struct weight_store *second = NULL;

	ck_assert_int_eq(weight_store_open(path, &config, &second, &why),
			 -EBUSY);
	ck_assert_ptr_null(second);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_tree");
	TCase *t = tcase_create("tree");

	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, what_was_staged_is_published_whole);
	tcase_add_test(t, a_published_tree_takes_no_change);
	tcase_add_test(t,
		       a_malformed_file_refuses_the_publish_and_can_be_mended);
	tcase_add_test(t, a_writer_keeps_it_from_being_published);
	tcase_add_test(t, the_target_has_one_place_and_one_life);
	tcase_add_test(t, an_open_handle_or_a_mapping_holds_off_the_removal);
	tcase_add_test(t, a_tensor_is_a_file_of_its_own);
	tcase_add_test(t,
		       a_restart_finds_what_was_published_and_what_was_staged);
	tcase_add_test(t, an_emptied_staging_tree_leaves_nothing);
	tcase_add_test(t, the_other_door_tells_and_removes_the_same);
	tcase_add_test(t, a_second_owner_is_refused);
	suite_add_tcase(s, t);
	return s;
}
