/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first door: writing, reading, listing, moving and removing revisions.
 * Comments name scenarios of the contracts, sections 10.2 and 10.4.
 */
#include "core/publish_import.h"
#include "weight_door_fixture.h"

/* ---- Writing ---- */

/*
 * PublishesReadyAndRetriesAfterResponseLoss,
 * managed_revision_public_workflow_end_to_end
 */
START_TEST(what_was_given_is_ready_whole_and_a_commit_repeats_itself)
{
	struct weight_writer *w = begin_put(7);
	struct weight_metadata *m = NULL, *again = NULL;

	assert_is(7, IMPORTING);
	ck_assert(!exists(7));
	give_norm(w);
	assert_is(7, IMPORTING);
	give_matrix(w);
	assert_ok(weight_writer_commit(w, &m, &why));
	ck_assert_int_eq(m->availability, WEIGHT_READY);
	ck_assert_int_eq(m->residency, can_pin() ? WEIGHT_HOT : WEIGHT_COLD);
	ck_assert_uint_eq(m->metadata_generation, 2);
	ck_assert_uint_eq(m->manifest.payload_count, 2);
	ck_assert_uint_eq(m->manifest.logical_bytes, 40);
	ck_assert_uint_eq(m->affinity_count, 2);
	ck_assert(exists(7));
	assert_ok(weight_writer_commit(w, &again, &why));
	ck_assert(digest_equal(&m->manifest.manifest_sha256,
			       &again->manifest.manifest_sha256));
	ck_assert_uint_eq(again->metadata_generation, 2);
	weight_writer_free(w);
	assert_both(7);
	weight_metadata_free(again);
	weight_metadata_free(m);
}
END_TEST

/* The keys and ids are the golden ones of section 4.5, where they can be. */
START_TEST(the_manifest_has_the_keys_of_the_contracts)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	cleanup(buf_release) struct buf text = BUF_INIT;
	char name[2 * PATH_LEN];

	put_generation(7);
	group_file(7, "manifest.json", name);
	read_file(name, &text);
	assert_ok(manifest_parse(text.data, text.len, &m, &why));
	ck_assert_str_eq(m->top.group_id,
			 "weight:d959bc5c5b651824ad866863c325ebbf49a98a9482863"
			 "ced2c1f7caac4039d73");
	ck_assert_str_eq(m->top.manifest_key,
			 "weights/default/demo/main/7/manifest");
	ck_assert_uint_eq(m->fragment_count, 2);
	ck_assert_str_eq(m->tensors[0].id.data, "layers.0/w");
	ck_assert_str_eq(m->fragments[1].fragment_id,
			 "1b98455b86b61477f168b245");
	ck_assert_ptr_nonnull(strstr(m->fragments[1].object_key,
				     "weights/default/demo/main/7/payload/"));
	ck_assert_ptr_nonnull(strstr(m->fragments[1].object_key,
				     "/1b98455b86b61477f168b245"));
	/* To the second, as of a put. */
	ck_assert_uint_eq(strlen(m->top.created_at),
			  strlen("2026-01-01T00:00:00Z"));
}
END_TEST

/* Section 3.7: duplicate, foreign, of another size. */
START_TEST(what_does_not_belong_aborts_the_import)
{
	static const struct {
		const char *id;
		uint64_t len;
		int error;
		const char *word;
	} wrongs[] = {
		{ "norm", 8, -EEXIST, "given before" },
		{ "other", 8, -ENOENT, "no tensor 'other'" },
		{ "layers.0/w", 31, -EINVAL, "32 bytes and not 31" },
	};

	for (size_t i = 0; i < ARRAY_LEN(wrongs); i++) {
		struct weight_writer *w = begin_put(i + 1);

		give_norm(w);
		assert_refused(weight_writer_put_tensor(w, wrongs[i].id,
							norm_bytes,
							wrongs[i].len, &why),
			       wrongs[i].error, wrongs[i].word);
		assert_is(i + 1, DELETED);
		assert_refused(weight_writer_put_tensor(w, "layers.0/w",
							matrix_bytes, 32, &why),
			       -EEXIST, "aborted");
		assert_refused(weight_writer_commit(w, NULL, &why), -EEXIST,
			       "aborted");
		assert_ok(weight_writer_abort(w, &why));
		weight_writer_free(w);
	}
}
END_TEST

/* Section 3.7 */
START_TEST(a_commit_with_missing_tensors_aborts)
{
	struct weight_writer *w = begin_put(7);
	char name[2 * PATH_LEN];

	give_norm(w);
	assert_refused(weight_writer_commit(w, NULL, &why), -EINVAL,
		       "missing required fragments: 'layers.0/w'");
	assert_is(7, DELETED);
	group_file(7, "", name);
	ck_assert_int_eq(access(name, F_OK), -1);
	weight_writer_free(w);
}
END_TEST

/*
 * managed_writer_abort_before_first_tensor_cleans_import,
 * weight_put_abort_still_deletes_importing_revision
 */
START_TEST(an_aborted_import_leaves_a_tombstone_and_nothing_else)
{
	for (uint64_t n = 1; n <= 2; n++) {
		struct weight_writer *w = begin_put(n);
		const struct weight_put_args args = put_args(n);
		struct weight_writer *other = NULL;
		char name[2 * PATH_LEN];

		if (n == 2)
			give_norm(w);
		assert_ok(weight_writer_abort(w, &why));
		assert_ok(weight_writer_abort(w, &why));
		weight_writer_free(w);
		assert_is(n, DELETED);
		group_file(n, "", name);
		ck_assert_int_eq(access(name, F_OK), -1);
		assert_refused(weight_put(store, &args, &other, &why), -EEXIST,
			       "deleted");
	}
}
END_TEST

/* BeginIsIdempotentAndRejectsConflicts, at the door. */
START_TEST(an_import_is_resumed_by_the_same_put_only)
{
	struct weight_put_args args = put_args(7);
	struct weight_writer *w = begin_put(7);
	struct weight_writer *other = NULL;

	give_norm(w);
	assert_refused(weight_put(store, &args, &other, &why), -EBUSY,
		       "has a writer");
	weight_writer_free(w);
	assert_is(7, IMPORTING);
	args.count = 1;
	assert_refused(weight_put(store, &args, &other, &why), -EEXIST,
		       "importing");
	w = begin_put(7);
	/* What the last writer gave doesn't count. */
	commit_both(w);
	weight_writer_free(w);
	assert_both(7);
	args.count = 2;
	assert_refused(weight_put(store, &args, &other, &why), -EEXIST,
		       "published already");
}
END_TEST

START_TEST(a_restart_keeps_an_import_for_its_put)
{
	struct weight_writer *w = begin_put(7);

	give_matrix(w);
	weight_writer_free(w);
	door_reopen();
	assert_is(7, IMPORTING);
	put_generation(7);
	assert_both(7);
	door_reopen();
	assert_both(7);
}
END_TEST

/* Minutes that the clocks are ahead. */
static _Atomic uint64_t ahead;

static uint64_t clock_ahead(clockid_t id)
{
	struct timespec now;

	(void)clock_gettime(id, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000 +
	       ahead * 60000;
}

static uint64_t realtime_ahead(void *arg)
{
	(void)arg;
	return clock_ahead(CLOCK_REALTIME);
}

static uint64_t monotonic_ahead(void *arg)
{
	(void)arg;
	return clock_ahead(CLOCK_MONOTONIC);
}

/* Passes that nothing happens in. */
static void look_twice(void)
{
	for (int i = 0; i < 2; i++) {
		reconciler_poke(store);
		(void)usleep(20000);
	}
}

/* ExpiresLeasesAndAbortsAbandonedImports: the rule of 5 minutes */
START_TEST(an_import_that_nobody_has_for_five_minutes_is_given_up)
{
	static const struct clock_source source = {
		.realtime_ms = realtime_ahead, .monotonic_ms = monotonic_ahead
	};
	struct weight_writer *w;

	weight_store_close(take_ptr(store));
	clock_set(&source);
	door_open();
	w = begin_put(7);
	give_norm(w);
	ahead = 6;
	look_twice();
	assert_is(7, IMPORTING);
	/* However old it is, its next writer has as long to come. */
	weight_writer_free(w);
	door_reopen();
	ahead = 10;
	look_twice();
	assert_is(7, IMPORTING);
	ahead = 12;
	reconciler_poke(store);
	wait_until(door_availability(7) == WEIGHT_DELETED);
}
END_TEST

/* RejectsStaleGeneration: the import was given up behind the writer. */
START_TEST(a_writer_whose_import_is_gone_commits_nothing)
{
	const struct weight_identity id = generation(7);
	struct weight_writer *w = begin_put(7);

	give_norm(w);
	give_matrix(w);
	assert_ok(wms_import_abort(store->records, &id, 1, 2, NULL));
	ck_assert_int_eq(weight_writer_commit(w, NULL, &why), -ECANCELED);
	assert_is(7, DELETING);
	assert_ok(weight_writer_abort(w, &why));
	assert_is(7, DELETED);
	weight_writer_free(w);
}
END_TEST

/* Section 3.7: "retry commit instead". */
START_TEST(what_may_be_committed_is_committed_again_and_not_aborted)
{
	struct weight_writer *w = begin_put(7);
	int r;

	give_norm(w);
	give_matrix(w);
	fail_from("publish: manifest");
	r = weight_writer_commit(w, NULL, &why);
	fail_no_more();
	ck_assert_int_eq(r, -ENOMEM);
	buf_release(&why);
	assert_refused(weight_writer_abort(w, &why), -EEXIST, "commit it");
	assert_refused(weight_writer_put_tensor(w, "norm", norm_bytes, 8, &why),
		       -EEXIST, "commit it");
	assert_ok(weight_writer_commit(w, NULL, &why));
	assert_refused(weight_writer_abort(w, &why), -EEXIST, "committed");
	weight_writer_free(w);
	assert_both(7);
}
END_TEST

/* CommitsPercentEncodedIdentity */
START_TEST(parts_of_an_identity_may_be_any_text)
{
	char long_part[WEIGHT_COMPONENT_MAX + 1];
	struct weight_put_args args = put_args(1);
	const struct weight_lineage lineages[] = {
		{ "default", "production + staging", "llama/70b", "step:100" },
		{ "default", "n", long_part, ".staging" },
	};

	memset(long_part, 'x', WEIGHT_COMPONENT_MAX);
	long_part[WEIGHT_COMPONENT_MAX] = '\0';
	for (size_t i = 0; i < ARRAY_LEN(lineages); i++) {
		struct weight_writer *w = NULL;
		struct weight_reader *r = NULL;

		args.identity.lineage = lineages[i];
		assert_ok(weight_put(store, &args, &w, &why));
		commit_both(w);
		weight_writer_free(w);
		door_reopen();
		assert_ok(weight_get(store, &args.identity, &r, &why));
		assert_tensor(r, "norm", norm_bytes, 8);
		weight_reader_free(r);
		remove_revision(&args.identity);
	}
}
END_TEST

/*
 * RejectsNonDefaultTenantWhenMultiTenancyIsDisabled,
 * PreservesTenantIdentityWhenMultiTenancyIsEnabled
 */
START_TEST(tenants_are_apart_or_not_there_at_all)
{
	struct weight_put_args args = put_args(7);
	struct weight_metadata *m = NULL;
	struct weight_operation *op = NULL;
	struct weight_page *page = NULL;
	struct weight_writer *w = NULL;
	bool found;

	put_generation(7);
	args.identity.lineage.tenant = "other";
	ck_assert_int_eq(weight_is_exist(store, &args.identity, &found), 0);
	ck_assert(!found);
	assert_ok(weight_put(store, &args, &w, &why));
	commit_both(w);
	weight_writer_free(w);
	assert_ok(weight_list(store, "other", "default", "demo", "", 0, &page,
			      &why));
	ck_assert_uint_eq(weight_page_count(page), 1);
	ck_assert_str_eq(weight_page_at(page, 0, NULL)->identity.lineage.tenant,
			 "other");
	weight_page_free(take_ptr(page));

	config.tenants = CONFIG_TENANTS_DEFAULT;
	door_reopen();
	ck_assert_int_eq(weight_is_exist(store, &args.identity, &found),
			 -EINVAL);
	ck_assert_int_eq(weight_get_metadata(store, &args.identity, &m, NULL),
			 -EINVAL);
	assert_refused(weight_put(store, &args, &w, &why), -EINVAL, "tenant");
	assert_refused(weight_remove(store, &args.identity, 0, &why), -EINVAL,
		       "tenant");
	assert_refused(weight_list(store, "other", "default", "demo", "", 0,
				   &page, &why),
		       -EINVAL, "tenant");
	ck_assert_int_eq(weight_get_operation(store, "other", 1, &op), -EINVAL);
	assert_both(7);
}
END_TEST

START_TEST(descriptions_that_break_a_rule_are_refused_before_anything)
{
	static const char *const pair[] = { "a", "b" };
	static const char *const one[] = { "norm" };
	static const char *const strange[] = { "norm", "other" };
	static const uint64_t huge[] = { UINT64_MAX, 2 };
	struct weight_description t[] = { two_tensors[0], two_tensors[1] };
	struct weight_put_args args = put_args(7);
	struct weight_writer *w = NULL;

	args.tensors = t;
#define refuses(member, value, word)                                           \
	do {                                                                   \
		t[0] = two_tensors[0];                                         \
		t[0].member = value;                                           \
		assert_refused(weight_put(store, &args, &w, &why), -EINVAL,    \
			       word);                                          \
	} while (0)
	refuses(len, 9, "itemsize");
	refuses(itemsize, 0, "itemsize");
	refuses(dtype, "", "dtype");
	refuses(dtype, NULL, "dtype");
	refuses(layout_fingerprint, "", "layout_fingerprint");
	refuses(tensor_id, "layers.0/w", "layers.0/w");
	refuses(tensor_id, "\xff", "UTF-8");
	refuses(layer_id, -2, "layer_id");
	t[0] = two_tensors[0];
	t[0].alias_count = 1;
	t[0].aliases = one;
	assert_refused(weight_put(store, &args, &w, &why), -EINVAL, "two");
	t[0].alias_count = 2;
	t[0].aliases = pair;
	assert_refused(weight_put(store, &args, &w, &why), -EINVAL, "alias");
	t[0].aliases = strange;
	assert_refused(weight_put(store, &args, &w, &why), -EINVAL, "alias");
	t[0] = two_tensors[0];
	t[0].global_shape = huge;
	t[0].rank = 2;
	assert_refused(weight_put(store, &args, &w, &why), -EINVAL, "64 bits");
	args.count = 0;
	assert_refused(weight_put(store, &args, &w, &why), -EINVAL, "nothing");
	ck_assert_ptr_null(door_record(7));
}
END_TEST

/* What real checkpoints have: ids that are no names, scalars, nothing at all. */
START_TEST(tensors_have_files_whatever_their_ids)
{
	static const uint64_t none[] = { 0, 4 };
	static const char *const ids[] = { "", ".weights", "a/b", "%", "." };
	struct weight_description t[ARRAY_LEN(ids) + 1];
	struct weight_put_args args = put_args(7);
	struct weight_writer *w = NULL;
	struct weight_reader *r;

	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		t[i] = two_tensors[0];
		t[i].tensor_id = ids[i];
		t[i].rank = 0;
		t[i].global_shape = NULL;
		t[i].itemsize = 8;
	}
	t[ARRAY_LEN(ids)] = two_tensors[0];
	t[ARRAY_LEN(ids)].tensor_id = "empty";
	t[ARRAY_LEN(ids)].global_shape = none;
	t[ARRAY_LEN(ids)].rank = 2;
	t[ARRAY_LEN(ids)].len = 0;
	args.tensors = t;
	args.count = ARRAY_LEN(t);
	assert_ok(weight_put(store, &args, &w, &why));
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		assert_ok(weight_writer_put_tensor(w, ids[i], norm_bytes, 8,
						   &why));
	assert_ok(weight_writer_put_tensor(w, "empty", NULL, 0, &why));
	assert_ok(weight_writer_commit(w, NULL, &why));
	weight_writer_free(w);
	r = begin_get(7);
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		assert_tensor(r, ids[i], norm_bytes, 8);
	assert_tensor(r, "empty", "", 0);
	weight_reader_free(r);
}
END_TEST

/* Section 4.4: aliases are one unit, and are stored once for each. */
START_TEST(aliases_are_one_unit)
{
	static const char *const tied[] = { "head", "norm" };
	struct weight_description t[] = { two_tensors[0], two_tensors[0],
					  two_tensors[1] };
	struct weight_put_args args = put_args(7);
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	struct weight_writer *w = NULL;
	struct weight_reader *r;
	size_t i = 0;

	t[0].tensor_id = "head";
	t[0].aliases = t[1].aliases = tied;
	t[0].alias_count = t[1].alias_count = 2;
	args.tensors = t;
	args.count = ARRAY_LEN(t);
	assert_ok(weight_put(store, &args, &w, &why));
	assert_ok(weight_writer_put_tensor(w, "head", norm_bytes, 8, &why));
	give_norm(w);
	give_matrix(w);
	assert_ok(weight_writer_commit(w, &m, &why));
	weight_writer_free(w);
	ck_assert_uint_eq(m->affinity_count, 2);
	ck_assert_uint_eq(m->manifest.payload_count, 3);
	r = begin_get(7);
	assert_ok(weight_reader_find(r, "norm", &i));
	ck_assert_uint_eq(weight_reader_tensor(r, i)->alias_count, 2);
	ck_assert_str_eq(weight_reader_tensor(r, i)->aliases[0], "head");
	weight_reader_free(r);
}
END_TEST

static int describe_and_drop(void)
{
	static const char *const tied[] = { "head", "norm" };
	struct weight_description t[] = { two_tensors[0], two_tensors[0],
					  two_tensors[1] };
	const struct weight_identity id = generation(7);
	cleanup(import_plan_free_cleanup) struct import_plan *plan = NULL;
	cleanup(buf_release) struct buf said = BUF_INIT;
	struct weight_import import;
	size_t i;
	int r;

	t[0].tensor_id = tied[0];
	t[0].aliases = t[1].aliases = tied;
	t[0].alias_count = t[1].alias_count = 2;
	if ((r = import_plan_new(&id, t, ARRAY_LEN(t), &plan, &said)) < 0 ||
	    (r = import_plan_announce(plan, &import)) < 0 ||
	    (r = import_plan_find(plan, "norm", &i)) < 0)
		return r;
	/* Check's own assertions take memory, too. */
	return import.affinity_count == 2 && import_plan_len(plan, i) == 8 ?
		       0 :
		       -EINVAL;
}

START_TEST(without_memory_nothing_is_described)
{
	fault_sweep(describe_and_drop);
}
END_TEST

/* ---- On the mount ---- */

START_TEST(an_import_is_on_no_mount_before_it_is_published)
{
	struct weight_writer *w = begin_put(7);
	struct weight_group *g = NULL;
	struct weight_dir *dir = weight_dir_ref(weight_tree_root(store));
	static const char *const parts[] = { "default", "default", "demo",
					     "main" };
	struct weight_dir *above = NULL;
	struct weight_tensors *t = NULL;
	uint64_t n;

	give_norm(w);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		weight_dir_unref(above);
		above = dir;
		assert_ok(weight_dir_lookup(above, parts[i], &dir));
	}
	ck_assert_int_eq(weight_dir_staged(dir, "7", &g), -ENOENT);
	ck_assert_int_eq(weight_dir_published(dir, "7", &g), -ENOENT);
	ck_assert_int_eq(weight_dir_next_generation(dir, true, 0, &n), -ENOENT);
	ck_assert_int_eq(weight_dir_next_generation(dir, false, 0, &n),
			 -ENOENT);
	ck_assert_int_eq(weight_dir_stage(dir, "7", 0755, &caller, &g, &why),
			 -EEXIST);
	buf_release(&why);
	assert_refused(weight_dir_rmdir(above, "main", &why), -ENOTEMPTY,
		       "import");
	give_matrix(w);
	assert_ok(weight_writer_commit(w, NULL, &why));
	weight_writer_free(w);
	assert_ok(weight_dir_published(dir, "7", &g));
	weight_file_unref(find_file(g, "norm"));
	weight_file_unref(find_file(g, "layers.0%2Fw"));
	assert_ok(weight_group_tensors(g, &t));
	ck_assert_uint_eq(weight_tensors_count(t), 2);
	ck_assert_str_eq(weight_tensors_at(t, 0)->path, "layers.0%2Fw");
	weight_tensors_unref(t);
	assert_ok(weight_group_scrub(g, &why));
	settle(g);
	ck_assert_int_eq(availability_of(g), WEIGHT_READY);
	ck_assert(is_durable(g));
	weight_group_unref(g);
	weight_dir_unref(dir);
	weight_dir_unref(above);
}
END_TEST

/* ---- Reading ---- */

static uint64_t active_leases(uint64_t n)
{
	const struct weight_identity id = generation(n);
	struct weight_lease_count leases;
	struct weight_metadata *m = NULL;

	assert_ok(weight_get_metadata(store, &id, &m, &leases));
	weight_metadata_free(m);
	return leases.active;
}

/*
 * managed_revision_publish_resolve_load_and_release_lease,
 * RevisionLeaseLifecycleUsesPublishedMetadataState
 */
START_TEST(a_reader_holds_the_revision_until_it_is_freed)
{
	const struct weight_identity id = generation(7);
	struct weight_reader *first, *second;
	const struct weight_description *t;
	char bytes[4];
	size_t i = 9;

	put_generation(7);
	ck_assert_uint_eq(active_leases(7), 0);
	first = begin_get(7);
	second = begin_get(7);
	ck_assert_uint_eq(active_leases(7), 1);
	ck_assert(weight_identity_equal(weight_reader_identity(first), &id));
	assert_ok(weight_reader_find(first, "layers.0/w", &i));
	ck_assert_uint_eq(i, 0);
	t = weight_reader_tensor(first, i);
	ck_assert_str_eq(t->dtype, "float16");
	ck_assert_uint_eq(t->rank, 2);
	ck_assert_uint_eq(t->global_shape[1], 4);
	ck_assert_int_eq(t->layer_id, 0);
	ck_assert_int_eq(t->expert_id, WEIGHT_NO_NUMBER);
	assert_ok(weight_reader_read(first, i, 28, bytes, 4));
	ck_assert_mem_eq(bytes, "CDEF", 4);
	ck_assert_int_eq(weight_reader_read(first, i, 29, bytes, 4), -EINVAL);
	ck_assert_int_eq(weight_reader_read(first, i, UINT64_MAX, bytes, 4),
			 -EINVAL);
	ck_assert_int_eq(weight_reader_find(first, "other", &i), -ENOENT);
	weight_reader_free(first);
	ck_assert_int_eq(weight_remove(store, &id, 0, &why), -EBUSY);
	buf_release(&why);
	weight_reader_free(second);
	ck_assert_uint_eq(active_leases(7), 0);
	remove_revision(&id);
}
END_TEST

START_TEST(a_mapping_outlives_its_reader_and_holds_as_one)
{
	const struct weight_identity id = generation(7);
	struct weight_extent extent = { .fd = -1 };
	struct weight_reader *r;
	size_t i = 0;
	char *map;

	put_generation(7);
	r = begin_get(7);
	assert_ok(weight_reader_find(r, "norm", &i));
	assert_ok(weight_reader_extent(r, i, &extent));
	ck_assert_uint_eq(extent.len, 8);
	map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, extent.fd, 0);
	ck_assert_ptr_ne(map, MAP_FAILED);
	(void)close(extent.fd);
	weight_reader_free(r);
	ck_assert_mem_eq(map + extent.offset, norm_bytes, 8);
	ck_assert_int_eq(weight_remove(store, &id, 0, &why), -EBUSY);
	(void)munmap(map, 4096);
	remove_revision(&id);
}
END_TEST

static void overwrite(const char *name, off_t at, const char *bytes)
{
	auto_fd int fd = open(name, O_WRONLY | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pwrite(fd, bytes, strlen(bytes), at),
			 (ssize_t)strlen(bytes));
}

/* managed_load_releases_lease_after_digest_rejection */
START_TEST(another_manifest_than_the_published_one_gives_nothing)
{
	const struct weight_identity id = generation(7);
	struct weight_reader *r = NULL;
	char name[2 * PATH_LEN];

	put_generation(7);
	/* What goes on with it has read the right one. */
	assert_ok(weight_tree_wait(store, NULL, &why));
	door_reopen();
	assert_ok(weight_tree_wait(store, NULL, &why));
	group_file(7, "manifest.json", name);
	ck_assert_int_eq(chmod(name, 0600), 0);
	overwrite(name, 2, "X");
	assert_refused(weight_get(store, &id, &r, &why), -EUCLEAN,
		       "digest mismatch");
	ck_assert_uint_eq(active_leases(7), 0);
	remove_revision(&id);
}
END_TEST

/* managed_load_renews_short_lease_until_transfer_finishes */
START_TEST(a_short_lease_is_renewed_while_there_is_a_reader)
{
	const struct weight_identity id = generation(7);
	struct wms_lease_summary first, summary;
	struct weight_reader *r;

	config.lease_ttl_ms = 60000;
	door_reopen();
	put_generation(7);
	config.lease_ttl_ms = 3000;
	door_reopen();
	r = begin_get(7);
	assert_ok(wms_lease_summary(store->records, &id, clock_realtime_ms(),
				    &first));
	ck_assert_uint_eq(first.active, 1);
	wait_until(wms_lease_summary(store->records, &id, clock_realtime_ms(),
				     &summary) == 0 &&
		   summary.nearest_expiry_ms > first.nearest_expiry_ms);
	ck_assert_uint_eq(summary.active, 1);
	weight_reader_free(r);
}
END_TEST

START_TEST(lost_bytes_are_not_given_out)
{
	struct weight_reader *r;
	char name[2 * PATH_LEN], bytes[8];
	size_t lost = 0, whole = 0;

	put_generation(7);
	assert_ok(weight_tree_wait(store, NULL, &why));
	door_reopen();
	assert_ok(weight_tree_wait(store, NULL, &why));
	group_file(7, "files/norm", name);
	overwrite(name, 0, "?");
	r = begin_get(7);
	assert_ok(weight_reader_find(r, "norm", &lost));
	ck_assert_int_eq(weight_reader_read(r, lost, 0, bytes, 8), -EIO);
	assert_ok(weight_reader_find(r, "layers.0/w", &whole));
	assert_ok(weight_reader_read(r, whole, 0, bytes, 8));
	weight_reader_free(r);
}
END_TEST

START_TEST(what_is_not_ready_has_no_reader)
{
	const struct weight_identity id = generation(7);
	struct weight_reader *r = NULL;
	struct weight_writer *w;

	ck_assert_int_eq(weight_get(store, &id, &r, &why), -ENOENT);
	w = begin_put(7);
	assert_refused(weight_get(store, &id, &r, &why), -EINPROGRESS,
		       "importing");
	assert_ok(weight_writer_abort(w, &why));
	assert_refused(weight_get(store, &id, &r, &why), -EINPROGRESS,
		       "deleted");
	weight_writer_free(w);
}
END_TEST

/* ---- Asking, moving, removing ---- */

/*
 * LookupAndPaginationAreExactAndDeterministic, at the door;
 * RejectsUnboundedPaginationExactly
 */
START_TEST(a_list_has_all_states_in_order_and_goes_on_by_token)
{
	struct weight_page *page = NULL;
	struct weight_lease_count leases;
	struct weight_reader *r;
	struct weight_writer *w;
	char token[2000];

	put_generation(10);
	put_generation(9);
	w = begin_put(2);
	r = begin_get(9);
	assert_ok(weight_list(store, "default", "default", "demo", "", 2, &page,
			      &why));
	ck_assert_uint_eq(weight_page_count(page), 2);
	ck_assert_int_eq(weight_page_at(page, 0, NULL)->availability,
			 WEIGHT_IMPORTING);
	ck_assert_uint_eq(weight_page_at(page, 1, &leases)->identity.generation,
			  9);
	ck_assert_uint_eq(leases.active, 1);
	ck_assert_uint_gt(leases.nearest_expiry_ms, clock_realtime_ms());
	(void)snprintf(token, sizeof(token), "%s", weight_page_next(page));
	ck_assert_str_eq(token, "main\x1f"
				"9");
	weight_page_free(take_ptr(page));
	assert_ok(weight_list(store, "default", "default", "demo", token, 2,
			      &page, &why));
	ck_assert_uint_eq(weight_page_count(page), 1);
	ck_assert_uint_eq(weight_page_at(page, 0, &leases)->identity.generation,
			  10);
	ck_assert_uint_eq(leases.active, 0);
	ck_assert_str_eq(weight_page_next(page), "");
	weight_page_free(take_ptr(page));
	assert_refused(weight_list(store, "default", "default", "demo", "",
				   1001, &page, &why),
		       -EINVAL, "limit");
	assert_refused(weight_list(store, "default", "default", "demo", "main",
				   1, &page, &why),
		       -EINVAL, "token");
	weight_reader_free(r);
	weight_writer_free(w);
}
END_TEST

/* RegistersEveryApiAndBindsTenant, as far as there is no wire. */
START_TEST(every_operation_answers_for_what_it_finds)
{
	const struct weight_policy policy = { WEIGHT_COLD, 0.5, WEIGHT_MANUAL };
	const struct weight_identity id = generation(7);
	struct weight_operation *op = NULL;
	struct weight_metadata *m = NULL;
	struct weight_writer *w;
	uint64_t size;

	ck_assert_int_eq(weight_get_metadata(store, &id, &m, NULL), -ENOENT);
	ck_assert_int_eq(weight_get_size(store, &id, &size), -ENOENT);
	ck_assert_int_eq(weight_remove(store, &id, 0, &why), -ENOENT);
	ck_assert_int_eq(weight_update_policy(store, &id, &policy, 0, &why),
			 -ENOENT);
	ck_assert_int_eq(
		weight_migrate(store, &id, WEIGHT_COLD, 0, 0, NULL, &why),
		-ENOENT);
	ck_assert_int_eq(weight_get_operation(store, "default", 0, &op),
			 -EINVAL);
	ck_assert_int_eq(weight_get_operation(store, "default", 1, &op),
			 -ENOENT);
	w = begin_put(7);
	ck_assert_int_eq(weight_get_size(store, &id, &size), -EINPROGRESS);
	assert_refused(weight_remove(store, &id, 0, &why), -EINPROGRESS,
		       "importing");
	assert_refused(weight_update_policy(store, &id, &policy, 0, &why),
		       -EINPROGRESS, "importing");
	assert_refused(
		weight_migrate(store, &id, WEIGHT_COLD, 0, 0, NULL, &why),
		-EINPROGRESS, "importing");
	commit_both(w);
	weight_writer_free(w);
	assert_ok(weight_get_size(store, &id, &size));
	ck_assert_uint_eq(size, 40);
	ck_assert_int_eq(weight_remove(store, &id, 1, &why), -ECANCELED);
	buf_release(&why);
	remove_revision(&id);
	/* A repeat, and one of long ago. */
	assert_ok(weight_remove(store, &id, 0, &why));
	ck_assert_int_eq(weight_remove(store, &id, 1, &why), -ECANCELED);
	ck_assert(!exists(7));
	wait_until(door_availability(7) == WEIGHT_DELETED);
	assert_ok(weight_remove(store, &id, 0, &why));
}
END_TEST

static struct weight_operation *finished(uint64_t id)
{
	struct weight_operation *op = NULL;

	wait_until(weight_get_operation(store, "default", id, &op) == 0 &&
		   (weight_operation_is_over(op) ||
		    (weight_operation_free(take_ptr(op)), false)));
	return op;
}

/* OperationRemainsPendingUntilTargetObserved, ColdOperation…, Rehydrate… */
START_TEST(a_revision_moves_to_the_disk_and_back)
{
	const struct weight_identity id = generation(7);
	struct weight_operation *op = NULL;
	uint64_t cold = 0, hot = 0;

	if (!can_pin())
		skip("memory can't be locked");
	put_generation(7);
	assert_ok(weight_migrate(store, &id, WEIGHT_COLD, 0, 2, &cold, &why));
	ck_assert_uint_gt(cold, 0);
	op = finished(cold);
	ck_assert_int_eq(op->target_residency, WEIGHT_COLD);
	ck_assert_uint_eq(op->processed_bytes, 40);
	weight_operation_free(op);
	ck_assert_int_eq(weight_get_operation(store, "other", cold, &op),
			 -ENOENT);
	assert_refused(
		weight_migrate(store, &id, WEIGHT_COLD, 0.5, 0, NULL, &why),
		-EINVAL, "ratio");
	assert_refused(
		weight_migrate(store, &id, WEIGHT_MIXED, 0.5, 0, NULL, &why),
		-EINVAL, "hot or to cold");
	assert_refused(
		weight_migrate(store, &id, WEIGHT_MIXED, 1.0, 0, NULL, &why),
		-EINVAL, "ratio");
	ck_assert_int_eq(
		weight_migrate(store, &id, WEIGHT_HOT, 0, 1, NULL, &why),
		-ECANCELED);
	assert_ok(weight_migrate(store, &id, WEIGHT_HOT, 0, 0, &hot, &why));
	weight_operation_free(finished(hot));
	ck_assert_uint_gt(hot, cold);
	assert_both(7);
}
END_TEST

/* UpdatePolicyIsCasFencedIdempotentAndExclusive, at the door. */
START_TEST(a_policy_that_prefers_another_place_brings_it_there)
{
	const struct weight_policy manual = { WEIGHT_HOT, 0.5, WEIGHT_MANUAL };
	const struct weight_policy cold = { WEIGHT_COLD, 0.5, WEIGHT_AUTO };
	const struct weight_policy bad = { WEIGHT_COLD, 1.0, WEIGHT_AUTO };
	const struct weight_identity id = generation(7);
	struct weight_metadata *m;

	put_generation(7);
	assert_refused(weight_update_policy(store, &id, &bad, 0, &why), -EINVAL,
		       "ratio");
	ck_assert_int_eq(weight_update_policy(store, &id, &manual, 1, &why),
			 -ECANCELED);
	assert_ok(weight_update_policy(store, &id, &manual, 2, &why));
	assert_ok(weight_update_policy(store, &id, &manual, 2, &why));
	m = door_record(7);
	ck_assert_uint_eq(m->metadata_generation, 3);
	ck_assert_int_eq(m->policy.mode, WEIGHT_MANUAL);
	weight_metadata_free(m);
	if (!can_pin())
		skip("memory can't be locked");
	assert_ok(weight_update_policy(store, &id, &cold, 0, &why));
	wait_until((m = door_record(7)) && (m->residency == WEIGHT_COLD ||
					    (weight_metadata_free(m), false)));
	weight_metadata_free(m);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_door");
	TCase *t = tcase_create("writing");

	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, door_setup, teardown);
	tcase_add_test(
		t, what_was_given_is_ready_whole_and_a_commit_repeats_itself);
	tcase_add_test(t, the_manifest_has_the_keys_of_the_contracts);
	tcase_add_test(t, what_does_not_belong_aborts_the_import);
	tcase_add_test(t, a_commit_with_missing_tensors_aborts);
	tcase_add_test(t,
		       an_aborted_import_leaves_a_tombstone_and_nothing_else);
	tcase_add_test(t, an_import_is_resumed_by_the_same_put_only);
	tcase_add_test(t, a_restart_keeps_an_import_for_its_put);
	tcase_add_test(t,
		       an_import_that_nobody_has_for_five_minutes_is_given_up);
	tcase_add_test(t, a_writer_whose_import_is_gone_commits_nothing);
	tcase_add_test(
		t, what_may_be_committed_is_committed_again_and_not_aborted);
	tcase_add_test(t, parts_of_an_identity_may_be_any_text);
	tcase_add_test(t, tenants_are_apart_or_not_there_at_all);
	tcase_add_test(
		t, descriptions_that_break_a_rule_are_refused_before_anything);
	tcase_add_test(t, tensors_have_files_whatever_their_ids);
	tcase_add_test(t, aliases_are_one_unit);
	tcase_add_test(t, an_import_is_on_no_mount_before_it_is_published);
	suite_add_tcase(s, t);
	t = tcase_create("the rest");
	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, door_setup, teardown);
	tcase_add_test(t, a_reader_holds_the_revision_until_it_is_freed);
	tcase_add_test(t, a_mapping_outlives_its_reader_and_holds_as_one);
	tcase_add_test(t,
		       another_manifest_than_the_published_one_gives_nothing);
	tcase_add_test(t, a_short_lease_is_renewed_while_there_is_a_reader);
	tcase_add_test(t, lost_bytes_are_not_given_out);
	tcase_add_test(t, what_is_not_ready_has_no_reader);
	tcase_add_test(t, a_list_has_all_states_in_order_and_goes_on_by_token);
	tcase_add_test(t, every_operation_answers_for_what_it_finds);
	tcase_add_test(t, a_revision_moves_to_the_disk_and_back);
	tcase_add_test(t, a_policy_that_prefers_another_place_brings_it_there);
	suite_add_tcase(s, t);
	t = tcase_create("memory");
	tcase_add_test(t, without_memory_nothing_is_described);
	suite_add_tcase(s, t);
	return s;
}
