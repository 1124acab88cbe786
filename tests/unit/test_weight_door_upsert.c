/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first door: replacing a revision by a newer one. Comments name scenarios
 * of the contracts, sections 10.2 and 10.4.
 */
#include "weight_door_fixture.h"

static struct weight_upsert_args upsert_args(uint64_t base, uint64_t target,
					     enum weight_upsert_mode mode)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m =
		door_record(base);

	return (struct weight_upsert_args){
		.base = generation(base),
		.target = generation(target),
		.mode = mode,
		.expected_base_metadata_generation =
			m ? m->metadata_generation : 1,
		.tensors = two_tensors,
		.count = ARRAY_LEN(two_tensors),
	};
}

static struct weight_writer *begin_upsert(const struct weight_upsert_args *args)
{
	struct weight_writer *w = NULL;

	assert_ok(weight_upsert(store, args, &w, &why));
	return w;
}

static void refuse_upsert(const struct weight_upsert_args *args, int error,
			  const char *word)
{
	struct weight_writer *w = NULL;

	assert_refused(weight_upsert(store, args, &w, &why), error, word);
}

static struct weight_lineage_record *lineage_record(void)
{
	const struct weight_identity id = generation(1);
	struct weight_lineage_record *l = NULL;
	int r = wms_lineage_get(store->records, &id.lineage, &l);

	ck_assert(r == 0 || r == -ENOENT);
	return l;
}

static enum weight_upsert_phase phase(void)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = lineage_record();

	ck_assert_ptr_nonnull(l);
	return l->claim.phase;
}

/* In the background, once nobody has the base. */
static void await_completed(uint64_t base)
{
	wait_until(phase() == WEIGHT_COMPLETED);
	assert_is(base, DELETED);
}

static uint64_t watermark(void)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = lineage_record();

	return l ? l->watermark : 0;
}

/* ---- What is refused before anything happens ---- */

/*
 * upsert_rejects_noncanonical_prefix_before_claim (there is no other prefix),
 * …non_enum_mode_before_mutation, …explicit_empty_request_id,
 * upsert_requires_same_lineage_and_increasing_generation
 */
START_TEST(a_request_that_makes_no_sense_changes_nothing)
{
	const struct weight_upsert_args good =
		upsert_args(7, 8, WEIGHT_PUT_FIRST);
	struct weight_upsert_args args;

	put_generation(7);
	args = good;
	args.mode = (enum weight_upsert_mode)2;
	refuse_upsert(&args, -EINVAL, "mode");
	args = good;
	args.request_id = "";
	refuse_upsert(&args, -EINVAL, "request id");
	args = good;
	args.target.lineage.revision = "other";
	refuse_upsert(&args, -EINVAL, "must use same lineage");
	args = good;
	args.expected_base_metadata_generation = 0;
	refuse_upsert(&args, -EINVAL, "metadata generation");
	args = good;
	args.target.generation = 7;
	refuse_upsert(&args, -ECANCELED, "generation must increase");
	args = good;
	args.count = 0;
	refuse_upsert(&args, -EINVAL, "at least one object");
	ck_assert_ptr_null(lineage_record());
	ck_assert_ptr_null(door_record(8));
	assert_is(7, READY);
}
END_TEST

/*
 * NewLineageClaimRevalidatesCurrentBase, weight_upsert_tcp_e2e: the old
 * generation
 */
START_TEST(the_base_is_as_it_was_seen)
{
	struct weight_upsert_args args;

	args = upsert_args(7, 8, WEIGHT_PUT_FIRST);
	refuse_upsert(&args, -ENOENT, "no generation 7");
	put_generation(7);
	args = upsert_args(7, 8, WEIGHT_PUT_FIRST);
	args.expected_base_metadata_generation = 1;
	refuse_upsert(&args, -ECANCELED, "metadata generation 2");
	ck_assert_ptr_null(lineage_record());
}
END_TEST

/* ConflictingTargetDoesNotLeaveBlockingLineageClaim */
START_TEST(a_target_that_cannot_be_prepared_leaves_no_claim)
{
	struct weight_upsert_args args;
	struct weight_writer *w;

	put_generation(7);
	put_generation(8);
	args = upsert_args(7, 8, WEIGHT_PUT_FIRST);
	refuse_upsert(&args, -EEXIST, "there already");
	ck_assert_ptr_null(lineage_record());
	args.target.generation = 9;
	w = begin_upsert(&args);
	assert_ok(weight_writer_abort(w, &why));
	weight_writer_free(w);
}
END_TEST

/* upsert_derives_stable_request_id_from_immutable_arguments */
START_TEST(the_request_id_follows_from_the_request)
{
	struct weight_upsert_args args;
	struct weight_writer *w;
	char first[DIGEST_HEX_LEN + 1];

	put_generation(7);
	args = upsert_args(7, 8, WEIGHT_PUT_FIRST);
	w = begin_upsert(&args);
	/* The golden one of section 6.13. */
	ck_assert_str_eq(weight_writer_request_id(w),
			 "7719a95b8fe8c9a20bbc7a2ad8f1cdae3076415249b0197873bb"
			 "1ff6cbb547df");
	(void)snprintf(first, sizeof(first), "%s", weight_writer_request_id(w));
	weight_writer_free(w);
	w = begin_upsert(&args);
	ck_assert_str_eq(weight_writer_request_id(w), first);
	assert_ok(weight_writer_abort(w, &why));
	weight_writer_free(w);
	args.target.generation = 9;
	args.request_id = "mine";
	w = begin_upsert(&args);
	ck_assert_str_eq(weight_writer_request_id(w), "mine");
	assert_ok(weight_writer_abort(w, &why));
	weight_writer_free(w);
	w = begin_put(10);
	ck_assert_ptr_null(weight_writer_request_id(w));
	weight_writer_free(w);
}
END_TEST

/* ---- PUT_FIRST ---- */

/* What the records said when the claim was committed. */
static struct {
	_Atomic bool once;
	bool target_is_ready;
	bool target_is_durable;
	bool base_stands;
} seen;

/* The writer commits it or the reconciler, who deletes the base next. */
static void watch(const char *name)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;

	if ((strcmp(name, "claim: committed") != 0 &&
	     strcmp(name, "claim: step") != 0) ||
	    phase() != WEIGHT_RETIRING_BASE || seen.once)
		return;
	m = door_record(8);
	seen.target_is_ready = m->availability == WEIGHT_READY;
	seen.target_is_durable = m->durable;
	seen.base_stands = door_availability(7) == WEIGHT_READY;
	seen.once = true;
}

/* put_first_publishes_target_before_retiring_base */
START_TEST(put_first_retires_the_base_when_the_target_is_ready_and_durable)
{
	struct weight_upsert_args args;
	struct weight_writer *w;
	struct weight_metadata *m = NULL;

	weight_store_close(take_ptr(store));
	step_hook = watch;
	door_open();
	put_generation(7);
	args = upsert_args(7, 8, WEIGHT_PUT_FIRST);
	w = begin_upsert(&args);
	ck_assert_int_eq(phase(), WEIGHT_PREPARING_TARGET);
	ck_assert_uint_eq(watermark(), 7);
	assert_is(8, IMPORTING);
	assert_both(7);
	give_norm(w);
	give_matrix(w);
	assert_ok(weight_writer_commit(w, &m, &why));
	ck_assert(seen.target_is_ready);
	ck_assert(seen.target_is_durable || !can_pin());
	ck_assert(seen.base_stands);
	ck_assert_int_eq(m->availability, WEIGHT_READY);
	weight_metadata_free(m);
	weight_writer_free(w);
	ck_assert_uint_eq(watermark(), 8);
	await_completed(7);
	assert_both(8);
}
END_TEST

/* PutFirstFencesBaseAfterTargetCommit */
START_TEST(a_base_that_is_read_stays_for_its_reader_and_takes_no_other)
{
	const struct weight_identity base = generation(7);
	struct weight_upsert_args args;
	struct weight_reader *r, *late = NULL;
	struct weight_writer *w;

	put_generation(7);
	args = upsert_args(7, 8, WEIGHT_PUT_FIRST);
	w = begin_upsert(&args);
	r = begin_get(7);
	commit_both(w);
	ck_assert_int_eq(phase(), WEIGHT_RETIRING_BASE);
	ck_assert_uint_eq(watermark(), 8);
	assert_is(7, READY);
	assert_tensor(r, "norm", norm_bytes, 8);
	ck_assert_int_eq(weight_remove(store, &base, 0, &why), -EBUSY);
	buf_release(&why);
	assert_refused(weight_get(store, &base, &late, &why), -EBUSY,
		       "being replaced");
	weight_reader_free(r);
	/* The same request, again, goes on where it is. */
	weight_writer_free(w);
	w = begin_upsert(&args);
	commit_both(w);
	weight_writer_free(w);
	await_completed(7);
	ck_assert_int_eq(weight_get(store, &base, &late, &why), -EINPROGRESS);
}
END_TEST

/*
 * upsert_abort_keeps_put_first_base_and_releases_claim,
 * put_first_abort_retries_after_claim_abort_was_not_delivered
 */
START_TEST(an_aborted_put_first_keeps_its_base_and_frees_the_lineage)
{
	struct weight_upsert_args args;
	struct weight_writer *w;
	int r;

	put_generation(7);
	args = upsert_args(7, 8, WEIGHT_PUT_FIRST);
	w = begin_upsert(&args);
	give_norm(w);
	fail_from("removal: tombstone");
	r = weight_writer_abort(w, &why);
	fail_no_more();
	ck_assert_int_eq(r, -ENOMEM);
	assert_is(8, DELETED);
	assert_ok(weight_writer_abort(w, &why));
	ck_assert_int_eq(phase(), WEIGHT_ABORTED);
	ck_assert_uint_eq(watermark(), 7);
	weight_writer_free(w);
	assert_both(7);
	buf_release(&why);
	refuse_upsert(&args, -EEXIST, "was aborted");
	args.target.generation = 9;
	w = begin_upsert(&args);
	commit_both(w);
	weight_writer_free(w);
	assert_both(9);
}
END_TEST

/* put_first_payload_failure_keeps_base_ready */
START_TEST(a_payload_that_fails_ends_the_claim_by_itself)
{
	struct weight_upsert_args args;
	struct weight_writer *w;

	put_generation(7);
	args = upsert_args(7, 8, WEIGHT_PUT_FIRST);
	w = begin_upsert(&args);
	assert_refused(weight_writer_put_tensor(w, "norm", norm_bytes, 7, &why),
		       -EINVAL, "given up");
	weight_writer_free(w);
	assert_is(8, DELETED);
	ck_assert_int_eq(phase(), WEIGHT_ABORTED);
	assert_both(7);
}
END_TEST

/* put_first_commit_retry_reuses_request_after_uncertain_response */
START_TEST(a_commit_whose_answer_is_uncertain_is_repeated)
{
	struct weight_upsert_args args;
	struct weight_metadata *m = NULL;
	struct digest manifest;
	struct weight_writer *w;
	int r;

	put_generation(7);
	args = upsert_args(7, 8, WEIGHT_PUT_FIRST);
	w = begin_upsert(&args);
	give_norm(w);
	give_matrix(w);
	fail_from("publish: manifest");
	r = weight_writer_commit(w, NULL, &why);
	fail_no_more();
	ck_assert_int_eq(r, -ENOMEM);
	assert_is(8, IMPORTING);
	buf_release(&why);
	/* This time it gets as far as the claim. */
	fail_from("publish: decided");
	r = weight_writer_commit(w, NULL, &why);
	fail_no_more();
	ck_assert_int_eq(r, -ENOMEM);
	assert_is(8, READY);
	m = door_record(8);
	manifest = m->manifest.manifest_sha256;
	weight_metadata_free(take_ptr(m));
	buf_release(&why);
	assert_refused(weight_writer_abort(w, &why), -EEXIST, "commit it");
	assert_ok(weight_writer_commit(w, &m, &why));
	ck_assert(digest_equal(&manifest, &m->manifest.manifest_sha256));
	weight_metadata_free(m);
	weight_writer_free(w);
	await_completed(7);
}
END_TEST

/* ---- DELETE_FIRST ---- */

/* delete_first_reclaims_base_before_returning_writer */
START_TEST(delete_first_has_no_base_any_more_when_there_is_a_writer)
{
	struct weight_upsert_args args;
	struct weight_writer *w;
	char name[2 * PATH_LEN];

	put_generation(7);
	/* What it lingers for is nobody. */
	assert_both(7);
	args = upsert_args(7, 8, WEIGHT_DELETE_FIRST);
	w = begin_upsert(&args);
	assert_is(7, DELETED);
	group_file(7, "", name);
	ck_assert_int_eq(access(name, F_OK), -1);
	assert_is(8, IMPORTING);
	ck_assert_int_eq(phase(), WEIGHT_TARGET_IMPORTING);
	ck_assert_uint_eq(watermark(), 7);
	commit_both(w);
	weight_writer_free(w);
	ck_assert_int_eq(phase(), WEIGHT_COMPLETED);
	ck_assert_uint_eq(watermark(), 8);
	assert_both(8);
}
END_TEST

/* delete_first_busy_fails_before_target_import */
START_TEST(delete_first_of_a_base_that_is_read_changes_nothing)
{
	struct weight_upsert_args args;
	struct weight_reader *r;
	struct weight_writer *w;

	put_generation(7);
	args = upsert_args(7, 8, WEIGHT_DELETE_FIRST);
	r = begin_get(7);
	refuse_upsert(&args, -EBUSY, "open");
	assert_is(7, READY);
	ck_assert_ptr_null(door_record(8));
	ck_assert_ptr_null(lineage_record());
	weight_reader_free(r);
	w = begin_upsert(&args);
	assert_ok(weight_writer_abort(w, &why));
	weight_writer_free(w);
}
END_TEST

/* delete_first_payload_failure_recovers_with_same_request */
START_TEST(delete_first_recovers_with_the_same_request_and_no_other)
{
	struct weight_upsert_args args, other;
	struct weight_put_args put;
	struct weight_writer *w = NULL;

	put_generation(7);
	args = upsert_args(7, 8, WEIGHT_DELETE_FIRST);
	w = begin_upsert(&args);
	give_norm(w);
	assert_refused(weight_writer_put_tensor(w, "norm", norm_bytes, 8, &why),
		       -EEXIST, "given up");
	weight_writer_free(w);
	assert_is(8, DELETED);
	ck_assert_int_eq(phase(), WEIGHT_TARGET_IMPORTING);
	other = args;
	other.target.generation = 9;
	refuse_upsert(&other, -EBUSY, "interrupted");
	put = put_args(9);
	assert_refused(weight_put(store, &put, &w, &why), -EBUSY, "replaced");
	door_reopen();
	w = begin_upsert(&args);
	commit_both(w);
	weight_writer_free(w);
	ck_assert_int_eq(phase(), WEIGHT_COMPLETED);
	assert_both(8);
}
END_TEST

/* ---- The same request again ---- */

static uint64_t one(void *arg)
{
	(void)arg;
	return 1;
}

static uint64_t monotonic(void *arg)
{
	struct timespec now;

	(void)arg;
	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Steps from which on nothing more succeeds, nearly as after a kill. */
static const char *const stops[] = {
	"claim: begun",      "claim: base retired", "claim: advanced",
	"import: begun",     "import: directory",   "import: tensor",
	"publish: manifest",
};

/*
 * delete_first_begin_response_loss_retries_with_derived_request_id,
 * upsert_reconstructed_writer_resumes_upload: not published
 */
START_TEST(wherever_it_stopped_the_same_request_goes_on)
{
	put_generation(1);
	for (size_t i = 0; i < 2 * ARRAY_LEN(stops); i++) {
		uint64_t base = i + 1;
		struct weight_upsert_args args = upsert_args(
			base, base + 1, (enum weight_upsert_mode)(i % 2));
		struct weight_writer *w = NULL;

		fail_from(stops[i / 2]);
		if (weight_upsert(store, &args, &w, &why) == 0 &&
		    weight_writer_put_tensor(w, "norm", norm_bytes, 8, &why) ==
			    0 &&
		    weight_writer_put_tensor(w, "layers.0/w", matrix_bytes, 32,
					     &why) == 0)
			(void)weight_writer_commit(w, NULL, &why);
		fail_no_more();
		weight_writer_free(w);
		buf_release(&why);
		door_reopen();
		w = begin_upsert(&args);
		commit_both(w);
		weight_writer_free(w);
		ck_assert_uint_eq(watermark(), base + 1);
		await_completed(base);
		assert_both(base + 1);
	}
}
END_TEST

static void manifest_of(uint64_t n, struct buf *ret)
{
	char name[2 * PATH_LEN];

	group_file(n, "manifest.json", name);
	read_file(name, ret);
}

/*
 * upsert_reconstructed_writer_resumes_upload: the same bytes, to the
 * millisecond of the import's beginning
 */
START_TEST(a_writer_that_is_made_anew_makes_the_same_manifest)
{
	cleanup(buf_release) struct buf first = BUF_INIT;
	cleanup(buf_release) struct buf second = BUF_INIT;
	static const struct clock_source standing = { .realtime_ms = one,
						      .monotonic_ms =
							      monotonic };
	char kept[PATH_LEN];

	weight_store_close(take_ptr(store));
	clock_set(&standing);
	door_open();
	for (int again = 0; again < 2; again++) {
		struct weight_upsert_args args;
		struct weight_writer *w;

		put_generation(7);
		args = upsert_args(7, 8, WEIGHT_DELETE_FIRST);
		w = begin_upsert(&args);
		if (again) {
			give_matrix(w);
			weight_writer_free(w);
			door_reopen();
			w = begin_upsert(&args);
		}
		commit_both(w);
		weight_writer_free(w);
		manifest_of(8, again ? &second : &first);
		if (again)
			break;
		/* Another store, with the same history. */
		weight_store_close(take_ptr(store));
		(void)snprintf(kept, sizeof(kept), "%s", path);
		(void)snprintf(path, sizeof(path),
			       "/var/tmp/weight-door.XXXXXX");
		ck_assert_ptr_nonnull(mkdtemp(path));
		door_open();
	}
	ck_assert_str_eq(first.data, second.data);
	ck_assert_ptr_nonnull(strstr(
		first.data, "\"created_at\":\"1970-01-01T00:00:00.001Z\""));
	(void)snprintf(first.data, first.len, "rm -rf '%s'", kept);
	ck_assert_int_eq(system(first.data), 0);
}
END_TEST

/* upsert_reconstructed_writer_resumes_upload: the source changed */
START_TEST(another_description_is_a_conflict_and_the_target_stays)
{
	struct weight_description t[] = { two_tensors[0], two_tensors[1] };
	struct weight_upsert_args args, changed;
	struct weight_writer *w;

	put_generation(7);
	args = upsert_args(7, 8, WEIGHT_PUT_FIRST);
	changed = args;
	changed.tensors = t;
	t[0].dtype = "bfloat16";
	w = begin_upsert(&args);
	give_norm(w);
	weight_writer_free(w);
	refuse_upsert(&changed, -EEXIST, "other tensors");
	assert_is(8, IMPORTING);
	ck_assert_int_eq(phase(), WEIGHT_PREPARING_TARGET);
	w = begin_upsert(&args);
	commit_both(w);
	weight_writer_free(w);
	/* Published, and asked for with other tensors. */
	refuse_upsert(&changed, -EEXIST, "other tensors");
	assert_both(8);
}
END_TEST

/* upsert_reconstructed_writer_resumes_upload: published */
START_TEST(a_writer_of_what_is_published_compares)
{
	struct weight_upsert_args args;
	struct weight_metadata *m = NULL, *again = NULL;
	char other[sizeof(matrix_bytes)] = "other";
	struct weight_writer *w;

	put_generation(7);
	args = upsert_args(7, 8, WEIGHT_PUT_FIRST);
	w = begin_upsert(&args);
	commit_both(w);
	assert_ok(weight_writer_commit(w, &m, &why));
	weight_writer_free(w);
	w = begin_upsert(&args);
	give_norm(w);
	assert_refused(
		weight_writer_put_tensor(w, "layers.0/w", other, 32, &why),
		-EEXIST, "other bytes");
	assert_refused(weight_writer_abort(w, &why), -EEXIST, "READY");
	give_matrix(w);
	assert_ok(weight_writer_commit(w, &again, &why));
	ck_assert(digest_equal(&m->manifest.manifest_sha256,
			       &again->manifest.manifest_sha256));
	weight_writer_free(w);
	weight_metadata_free(again);
	weight_metadata_free(m);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_door_upsert");
	TCase *t = tcase_create("upsert");

	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, door_setup, teardown);
	tcase_add_test(t, a_request_that_makes_no_sense_changes_nothing);
	tcase_add_test(t, the_base_is_as_it_was_seen);
	tcase_add_test(t, a_target_that_cannot_be_prepared_leaves_no_claim);
	tcase_add_test(t, the_request_id_follows_from_the_request);
	tcase_add_test(
		t,
		put_first_retires_the_base_when_the_target_is_ready_and_durable);
	tcase_add_test(
		t, a_base_that_is_read_stays_for_its_reader_and_takes_no_other);
	tcase_add_test(
		t, an_aborted_put_first_keeps_its_base_and_frees_the_lineage);
	tcase_add_test(t, a_payload_that_fails_ends_the_claim_by_itself);
	tcase_add_test(t, a_commit_whose_answer_is_uncertain_is_repeated);
	tcase_add_test(
		t, delete_first_has_no_base_any_more_when_there_is_a_writer);
	tcase_add_test(t, delete_first_of_a_base_that_is_read_changes_nothing);
	tcase_add_test(
		t, delete_first_recovers_with_the_same_request_and_no_other);
	tcase_add_test(t, wherever_it_stopped_the_same_request_goes_on);
	tcase_add_test(t, a_writer_that_is_made_anew_makes_the_same_manifest);
	tcase_add_test(t,
		       another_description_is_a_conflict_and_the_target_stays);
	tcase_add_test(t, a_writer_of_what_is_published_compares);
	suite_add_tcase(s, t);
	return s;
}
