/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"
#include "fault.h"
#include "suite.h"
#include "weight_metadata_fixture.h"

/* ---- Staging and publishing ---- */

START_TEST(staging_reserves_an_identity)
{
	struct weight_identity id = id_of(7);
	struct weight_staging *s;
	struct buf why = BUF_INIT;

	ck_assert_int_eq(wms_staged_get(store, &id, &s), -ENOENT);
	ck_assert_int_eq(wms_stage(store, &id, 10, &why), 0);
	ck_assert_int_eq(wms_stage(store, &id, 11, &why), -EEXIST);
	ck_assert_uint_gt(why.len, 0);
	buf_release(&why);
	reopen();
	ck_assert_int_eq(wms_staged_get(store, &id, &s), 0);
	ck_assert_uint_eq(s->created_at_ms, 10);
	ck_assert_uint_eq(s->epoch, 1);
	ck_assert(weight_identity_equal(&s->identity, &id));
	weight_staging_free(s);
	ck_assert_int_eq(availability_of(&id), -ENOENT);
	ck_assert_int_eq(wms_unstage(store, &id), 0);
	ck_assert_int_eq(wms_unstage(store, &id), -ENOENT);
	ck_assert_int_eq(wms_stage(store, &id, 12, NULL), 0);
}
END_TEST

START_TEST(publishing_moves_it_from_staged_to_ready)
{
	struct weight_identity id = id_of(7);
	struct weight_metadata *m;
	struct weight_staging *s;

	ck_assert_int_eq(publish(store, &id, 20, NULL), -ENOENT);
	ck_assert_int_eq(wms_stage(store, &id, 10, NULL), 0);
	ck_assert_int_eq(publish(store, &id, 20, &m), 0);
	ck_assert_uint_eq(m->metadata_generation, 2);
	ck_assert_int_eq(m->availability, WEIGHT_READY);
	weight_metadata_free(m);
	ck_assert_int_eq(wms_staged_get(store, &id, &s), -ENOENT);
	ck_assert_int_eq(publish(store, &id, 20, NULL), -EEXIST);
	ck_assert_int_eq(wms_stage(store, &id, 10, NULL), -EEXIST);
	reopen();
	ck_assert_int_eq(wms_get(store, &id, &m), 0);
	ck_assert_uint_eq(m->created_at_ms, 20);
	ck_assert_uint_eq(m->manifest.payload_count, 2);
	ck_assert_int_eq(m->policy.preferred, WEIGHT_HOT);
	weight_metadata_free(m);
}
END_TEST

/* WeightMetadataStore.DeleteRetainsAbsentTombstone */
START_TEST(a_tombstone_never_comes_back)
{
	struct weight_identity id = id_of(7);

	stage_and_publish(&id);
	ck_assert_int_eq(delete_begin(&id, 0, NULL, 30), 0);
	ck_assert_int_eq(publish(store, &id, 20, NULL), -ECANCELED);
	ck_assert_int_eq(wms_stage(store, &id, 10, NULL), -EEXIST);
	ck_assert_int_eq(wms_delete_finish(store, &id, 0, 40, NULL), 0);
	ck_assert_int_eq(publish(store, &id, 20, NULL), -ECANCELED);
	ck_assert_int_eq(wms_stage(store, &id, 10, NULL), -EEXIST);
	ck_assert_int_eq(availability_of(&id), WEIGHT_DELETED);
}
END_TEST

/* A lineage that has come to 7, written with a version. */
static int watermark_body(struct meta_txn *txn, void *arg)
{
	const struct weight_identity id = id_of(1);
	const struct weight_lineage_record l = {
		.lineage = id.lineage,
		.lineage_metadata_generation = 1,
		.watermark = 7,
	};
	cleanup(buf_release) struct buf b = BUF_INIT;
	struct digest key;

	ck_assert_int_eq(weight_record_lineage_encode(&l, &b), 0);
	b.data[0] = *(const char *)arg;
	ck_assert_int_eq(weight_lineage_hash(&id.lineage, &key), 0);
	return meta_put(txn, META_DB_LINEAGE, key.bytes, sizeof(key.bytes),
			b.data, b.len);
}

START_TEST(a_watermark_fences_generations)
{
	struct weight_identity id = id_of(7), next = id_of(8), other = id_of(7);
	char version = 1;

	meddle(watermark_body, &version);
	store = must_open();
	other.lineage.revision = "dev";
	ck_assert_int_eq(wms_stage(store, &id, 10, NULL), 0);
	ck_assert_int_eq(publish(store, &id, 20, NULL), -ECANCELED);
	stage_and_publish(&next);
	stage_and_publish(&other);
	version = 2;
	meddle(watermark_body, &version);
	store = must_open();
	ck_assert_int_eq(publish(store, &id, 20, NULL), -EPROTONOSUPPORT);
	version = 0;
	meddle(watermark_body, &version);
	store = must_open();
	ck_assert_int_eq(publish(store, &id, 20, NULL), -EUCLEAN);
}
END_TEST

/* clang-format off */
static const struct weight_identity bad_ids[] = {
	{ { "default", "ns", "demo", "main" },  0 },
	{ { "",        "ns", "demo", "main" },  1 },
	{ { "_x",      "ns", "demo", "main" },  1 },
	{ { "default", "",   "demo", "main" },  1 },
	{ { "default", "ns", "\n",   "main" },  1 },
	{ { "default", "ns", "demo", "\x7f" },  1 },
};
/* clang-format on */

START_TEST(a_bad_identity_is_refused_everywhere)
{
	const struct weight_identity *id = &bad_ids[_i];
	struct weight_lease_request rq = { .holder = "h", .ttl_ms = 1 };
	struct wms_lease_summary sum;
	struct weight_metadata *m;
	struct weight_staging *s;
	struct weight_lease *l;

	ck_assert_int_eq(wms_stage(store, id, 1, NULL), -EINVAL);
	ck_assert_int_eq(wms_unstage(store, id), -EINVAL);
	ck_assert_int_eq(wms_staged_get(store, id, &s), -EINVAL);
	ck_assert_int_eq(wms_get(store, id, &m), -EINVAL);
	ck_assert_int_eq(delete_begin(id, 0, NULL, 1), -EINVAL);
	ck_assert_int_eq(wms_delete_finish(store, id, 0, 1, NULL), -EINVAL);
	ck_assert_int_eq(wms_lease_acquire(store, id, &rq, 1, &l), -EINVAL);
	ck_assert_int_eq(wms_lease_summary(store, id, 1, &sum), -EINVAL);
	ck_assert_int_eq(publish(store, id, 1, NULL), -EINVAL);
}
END_TEST

/* ---- Iteration ---- */

/* Revisions whose keys share all that they can share. */
static char long_names[4][600];

static void make_long_names(void)
{
	for (size_t i = 0; i < ARRAY_LEN(long_names); i++) {
		size_t len = WMS_KEY_REVISION_MAX + (i ? 100 : 0);

		memset(long_names[i], 'r', len);
		long_names[i][len] = '\0';
		if (i)
			long_names[i][len - 1] = (char)('0' + i);
	}
}

/* clang-format off */
static const uint64_t in_order[] = {
	1, 2, 9, 10, 256, 4294967296, UINT64_MAX
};
static const uint64_t as_made[] = {
	10, 256, UINT64_MAX, 1, 2, 9, 4294967296
};
/* clang-format on */

static void walk_lineage(const struct weight_lineage *l)
{
	struct weight_metadata *m;
	uint64_t after = 0;

	for (size_t i = 0; i < ARRAY_LEN(in_order); i++) {
		ck_assert_int_eq(wms_revision_next(store, l, after, &m), 0);
		ck_assert_uint_eq(m->identity.generation, in_order[i]);
		ck_assert(weight_lineage_equal(&m->identity.lineage, l));
		after = m->identity.generation;
		weight_metadata_free(m);
	}
	ck_assert_int_eq(wms_revision_next(store, l, after, &m), -ENOENT);
	ck_assert_int_eq(wms_revision_next(store, l, after - 1, &m), 0);
	ck_assert_uint_eq(m->identity.generation, UINT64_MAX);
	weight_metadata_free(m);
}

START_TEST(a_lineage_is_walked_in_numeric_order)
{
	struct weight_identity id = id_of(1);

	make_long_names();
	for (size_t n = 0; n < ARRAY_LEN(long_names); n++)
		for (size_t i = 0; i < ARRAY_LEN(as_made); i++) {
			id = id_of(as_made[i]);
			id.lineage.revision = long_names[n];
			stage_and_publish(&id);
		}
	for (size_t n = 0; n < ARRAY_LEN(long_names); n++) {
		id.lineage.revision = long_names[n];
		walk_lineage(&id.lineage);
	}
}
END_TEST

/* A cut revision whose digest is the generation of one that ends where it is
 * cut has that one's key as the beginning of its own. */
START_TEST(keys_that_begin_others_are_told_apart)
{
	struct weight_lease_request rq = { .holder = "h", .ttl_ms = 100 };
	struct weight_identity a = id_of(1), b = id_of(5);
	struct wms_lease_summary sum;
	struct weight_metadata *m;
	struct weight_lease *l;
	struct digest d;
	uint64_t be;

	make_long_names();
	b.lineage.revision = long_names[1];
	ck_assert_int_eq(digest_of(long_names[1], strlen(long_names[1]), &d),
			 0);
	memcpy(&be, d.bytes, sizeof(be));
	a.generation = be64toh(be);
	a.lineage.revision = long_names[0];
	stage_and_publish(&b);
	ck_assert_int_eq(wms_revision_next(store, &a.lineage, 0, &m), -ENOENT);
	ck_assert_int_eq(wms_lease_acquire(store, &b, &rq, 20, &l), 0);
	weight_lease_free(l);
	stage_and_publish(&a);
	ck_assert_int_eq(wms_lease_summary(store, &a, 20, &sum), 0);
	ck_assert_uint_eq(sum.active, 0);
	ck_assert_int_eq(delete_begin(&a, 0, NULL, 30), 0);
	ck_assert_int_eq(wms_lease_summary(store, &b, 20, &sum), 0);
	ck_assert_uint_eq(sum.active, 1);
	ck_assert_int_eq(availability_of(&b), WEIGHT_READY);
}
END_TEST

/* WeightMetadataStore.LookupAndPaginationAreExactAndDeterministic */
START_TEST(identities_that_look_alike_are_different)
{
	struct weight_identity ids[] = { id_of(1), id_of(1), id_of(1),
					 id_of(1) };

	/* Joined, these would be the same. */
	ids[1].lineage =
		(struct weight_lineage){ "defaultn", "s", "demo", "main" };
	ids[2].lineage =
		(struct weight_lineage){ "default", "ns", "dem", "omain" };
	ids[3].lineage.revision = "mai";
	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		ck_assert_int_eq(availability_of(&ids[i]), -ENOENT);
		stage_and_publish(&ids[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		ck_assert_int_eq(availability_of(&ids[i]), WEIGHT_READY);
}
END_TEST

START_TEST(all_records_are_met_once_while_they_change)
{
	struct wms_position at = { .len = 0 };
	struct weight_metadata *m;
	struct weight_staging *s;
	unsigned seen = 0;

	for (uint64_t g = 1; g <= 50; g++) {
		struct weight_identity id = id_of(g);

		id.lineage.revision = g % 2 ? "odd" : "even";
		stage_and_publish(&id);
		id.lineage.resource = "staged";
		ck_assert_int_eq(wms_stage(store, &id, 1, NULL), 0);
	}
	while (wms_revision_each(store, &at, &m) == 0) {
		if (seen % 5 == 0)
			ck_assert_int_eq(delete_begin(&m->identity, 0, NULL, 3),
					 0);
		weight_metadata_free(m);
		seen++;
	}
	ck_assert_uint_eq(seen, 50);
	at = (struct wms_position){ .len = 0 };
	for (seen = 0; wms_revision_each(store, &at, &m) == 0;) {
		if (m->availability == WEIGHT_DELETING) {
			ck_assert_int_eq(wms_delete_finish(store, &m->identity,
							   0, 4, NULL),
					 0);
			seen++;
		}
		weight_metadata_free(m);
	}
	ck_assert_uint_eq(seen, 10);
	at = (struct wms_position){ .len = 0 };
	for (seen = 0; wms_staged_each(store, &at, &s) == 0; seen++) {
		ck_assert_int_eq(wms_unstage(store, &s->identity), 0);
		weight_staging_free(s);
	}
	ck_assert_uint_eq(seen, 50);
	at = (struct wms_position){ .len = 0 };
	ck_assert_int_eq(wms_staged_each(store, &at, &s), -ENOENT);
}
END_TEST

START_TEST(only_what_lives_keeps_a_lineage)
{
	struct weight_identity id = id_of(3), next = id_of(4);
	struct weight_staging *s;
	bool used = true;

	ck_assert_int_eq(wms_lineage_in_use(store, &id.lineage, &used), 0);
	ck_assert(!used);
	ck_assert_int_eq(wms_stage(store, &id, 1, NULL), 0);
	ck_assert_int_eq(wms_lineage_in_use(store, &id.lineage, &used), 0);
	ck_assert(used);
	ck_assert_int_eq(wms_staged_next(store, &id.lineage, 0, &s), 0);
	ck_assert_uint_eq(s->identity.generation, 3);
	weight_staging_free(s);
	ck_assert_int_eq(wms_staged_next(store, &id.lineage, 3, &s), -ENOENT);
	ck_assert_int_eq(publish(store, &id, 2, NULL), 0);
	ck_assert_int_eq(wms_lineage_in_use(store, &id.lineage, &used), 0);
	ck_assert(used);
	ck_assert_int_eq(delete_begin(&id, 0, NULL, 3), 0);
	ck_assert_int_eq(wms_lineage_in_use(store, &id.lineage, &used), 0);
	ck_assert(!used);
	ck_assert_int_eq(wms_delete_finish(store, &id, 0, 3, NULL), 0);
	ck_assert_int_eq(wms_lineage_in_use(store, &id.lineage, &used), 0);
	ck_assert(!used);
	stage_and_publish(&next);
	ck_assert_int_eq(wms_lineage_in_use(store, &id.lineage, &used), 0);
	ck_assert(used);
	id.lineage.revision = "";
	ck_assert_int_eq(wms_lineage_in_use(store, &id.lineage, &used),
			 -EINVAL);
}
END_TEST

/* ---- Removal ---- */

/* WeightMetadataStore.DeleteRetainsAbsentTombstone */
START_TEST(deletion_goes_to_a_tombstone)
{
	struct wms_delete_request rq = { .expected_metadata_generation = 2 };
	struct weight_identity id = id_of(7), absent = id_of(8);
	struct weight_metadata *m;

	stage_and_publish(&id);
	ck_assert_int_eq(delete_begin(&absent, 0, NULL, 30), -ENOENT);
	ck_assert_int_eq(wms_delete_finish(store, &absent, 0, 30, NULL),
			 -ENOENT);
	ck_assert_int_eq(wms_delete_finish(store, &id, 2, 30, NULL), -EEXIST);
	ck_assert_int_eq(delete_begin(&id, 1, NULL, 30), -ECANCELED);
	ck_assert_int_eq(wms_delete_begin(store, &id, &rq, 5, &m), 0);
	ck_assert_uint_eq(m->metadata_generation, 3);
	ck_assert_uint_eq(m->updated_at_ms, 20); /* never back */
	weight_metadata_free(m);
	ck_assert_int_eq(wms_delete_begin(store, &id, &rq, 30, &m), 0);
	ck_assert_uint_eq(m->metadata_generation, 3);
	weight_metadata_free(m);
	ck_assert_int_eq(delete_begin(&id, 1, NULL, 30), -ECANCELED);
	reopen();
	ck_assert_int_eq(wms_delete_finish(store, &id, 3, 40, &m), 0);
	ck_assert_int_eq(m->availability, WEIGHT_DELETED);
	ck_assert_int_eq(m->residency, WEIGHT_ABSENT);
	ck_assert_uint_eq(m->metadata_generation, 4);
	weight_metadata_free(m);
	ck_assert_int_eq(wms_delete_finish(store, &id, 3, 50, &m), 0);
	ck_assert_uint_eq(m->metadata_generation, 4);
	ck_assert_uint_eq(m->updated_at_ms, 40);
	weight_metadata_free(m);
	ck_assert_int_eq(wms_mark_durable(store, &id, 60, NULL), -EINPROGRESS);
}
END_TEST

START_TEST(durability_is_noted_without_a_new_generation)
{
	struct weight_identity id = id_of(7);
	struct weight_metadata *m;

	stage_and_publish(&id);
	ck_assert_int_eq(wms_mark_durable(store, &id, 60, &m), 0);
	ck_assert(m->durable);
	ck_assert_uint_eq(m->metadata_generation, 2);
	weight_metadata_free(m);
	reopen();
	ck_assert_int_eq(wms_get(store, &id, &m), 0);
	ck_assert(m->durable);
	weight_metadata_free(m);
	id.generation = 8;
	ck_assert_int_eq(wms_mark_durable(store, &id, 60, NULL), -ENOENT);
}
END_TEST

/* ---- What is seen ---- */

START_TEST(what_cannot_be_seen_is_refused_first)
{
	struct weight_observation seen = { WEIGHT_READY, WEIGHT_ABSENT, 0.0,
					   false };
	struct weight_identity id = id_of(7);

	ck_assert_int_eq(wms_observe(store, &id, &seen, 0, 30, NULL), -EINVAL);
	seen.availability = WEIGHT_DEGRADED;
	ck_assert_int_eq(wms_observe(store, &id, &seen, 0, 30, NULL), -ENOENT);
}
END_TEST

/* ---- Snapshots ---- */

START_TEST(a_snapshot_brings_every_record)
{
	struct weight_identity id = id_of(7), other = id_of(8);
	auto_fd int fd = memfd_create("snapshot", MFD_CLOEXEC);
	struct weight_lease *l;

	stage_and_publish(&id);
	stage_and_publish(&other);
	(void)lease(&id, "h", 1000, 100);
	ck_assert_int_eq(wms_export(store, fd), 0);
	wms_close(take_ptr(store));
	empty_dir();
	store = must_open();
	ck_assert(lseek(fd, 0, SEEK_SET) == 0);
	ck_assert_int_eq(wms_import(store, fd, false, NULL), 0);
	ck_assert_int_eq(availability_of(&id), WEIGHT_READY);
	ck_assert_int_eq(availability_of(&other), WEIGHT_READY);
	ck_assert_int_eq(wms_lease_next(store, 0, &l), 0);
	weight_lease_free(l);
}
END_TEST

/* ---- Boots ---- */

/* clang-format off */
static const struct {
	const char *boot_id;
	bool marks_clean;
	bool unclean;
	uint64_t epoch;
} boots[] = { /* one after the other */
	{ "a",   false, false, 1 }, /* the first ever */
	{ "a",   false, false, 1 }, /* the daemon died, the machine didn't */
	{ "b",   false, true,  2 }, /* the machine went down */
	{ "b",   true,  false, 2 },
	{ "c",   true,  false, 2 }, /* a clean reboot */
	{ "c",   false, false, 2 },
	{ "cc",  false, true,  3 }, /* ids of different length */
	{ "c",   true,  true,  4 },
};
/* clang-format on */

START_TEST(an_unclean_boot_begins_an_epoch)
{
	struct weight_identity id;
	struct weight_staging *s;
	uint64_t epoch;

	for (size_t i = 0; i < ARRAY_LEN(boots); i++) {
		bool unclean = !boots[i].unclean;

		reopen();
		ck_assert_int_eq(
			wms_begin_boot(store, boots[i].boot_id, &unclean), 0);
		ck_assert_msg(unclean == boots[i].unclean, "boot %zu", i);
		ck_assert_int_eq(wms_epoch(store, &epoch), 0);
		ck_assert_uint_eq(epoch, boots[i].epoch);
		id = id_of(i + 1);
		ck_assert_int_eq(wms_stage(store, &id, 1, NULL), 0);
		ck_assert_int_eq(wms_staged_get(store, &id, &s), 0);
		ck_assert_uint_eq(s->epoch, epoch);
		weight_staging_free(s);
		if (boots[i].marks_clean)
			ck_assert_int_eq(wms_mark_clean(store), 0);
	}
}
END_TEST

/* Who refuses to go on with a new one can do so each time. */
START_TEST(a_store_is_new_until_a_boot_begins)
{
	bool unclean;

	ck_assert(wms_is_new(store));
	reopen();
	ck_assert(wms_is_new(store));
	ck_assert_int_eq(wms_begin_boot(store, "a", &unclean), 0);
	ck_assert(wms_is_new(store));
	reopen();
	ck_assert(!wms_is_new(store));
}
END_TEST

START_TEST(a_boot_id_has_a_length)
{
	char long_id[WMS_BOOT_ID_LEN_MAX + 2];
	bool unclean;

	memset(long_id, 'x', sizeof(long_id));
	long_id[WMS_BOOT_ID_LEN_MAX + 1] = '\0';
	ck_assert_int_eq(wms_begin_boot(store, "", &unclean), -EINVAL);
	ck_assert_int_eq(wms_begin_boot(store, long_id, &unclean), -EINVAL);
	long_id[WMS_BOOT_ID_LEN_MAX] = '\0';
	ck_assert_int_eq(wms_begin_boot(store, long_id, &unclean), 0);
}
END_TEST

/* ---- Damage, death, load ---- */

static int newer_schema_body(struct meta_txn *txn, void *arg)
{
	static const uint64_t newer = WMS_SCHEMA_VERSION + 1;

	(void)arg;
	return meta_put(txn, META_DB_STATE, "schema", 6, &newer, sizeof(newer));
}

START_TEST(a_newer_schema_is_refused)
{
	struct buf why = BUF_INIT;

	meddle(newer_schema_body, NULL);
	ck_assert_int_eq(wms_open(dir, &store, &why), -EPROTONOSUPPORT);
	ck_assert_ptr_null(store);
	ck_assert_uint_gt(why.len, 0);
	buf_release(&why);
}
END_TEST

/* Garbles a record of a map, counted in the order of their keys. */
struct garble {
	enum meta_db db;
	unsigned at; /* 0: the lowest key */
};

static int garble_body(struct meta_txn *txn, void *arg)
{
	const struct garble *garble = arg;
	enum meta_db db = garble->db;
	struct meta_cursor *c;
	struct meta_bytes k, v;
	unsigned char key[META_KEY_MAX];
	size_t len;
	int r;

	r = meta_cursor_open(txn, db, NULL, 0, &c);
	if (r < 0)
		return r;
	r = meta_cursor_seek(c, NULL, 0, &k, &v);
	for (unsigned i = 0; i < garble->at && r == 0; i++)
		r = meta_cursor_next(c, &k, &v);
	len = k.len;
	memcpy(key, k.data, len);
	meta_cursor_close(c);
	return r < 0 ? r : meta_put(txn, db, key, len, "\1\0garbage", 9);
}

static const enum meta_db record_maps[] = { META_DB_REVISION, META_DB_STAGING,
					    META_DB_LEASE };

START_TEST(a_damaged_record_is_told_and_does_not_hide_others)
{
	enum meta_db db = record_maps[_i];
	struct garble garble = { .db = db };
	struct wms_position at = { .len = 0 };
	struct weight_metadata *m;
	unsigned good = 0, bad = 0;
	int r;

	for (uint64_t g = 1; g <= 3; g++) {
		struct weight_identity id = id_of(g);

		stage_and_publish(&id);
		(void)lease(&id, "h", 100, 100);
		id.generation += 10;
		ck_assert_int_eq(wms_stage(store, &id, 1, NULL), 0);
	}
	ck_assert_int_eq(check_store(store), 0);
	meddle(garble_body, &garble);
	store = must_open();
	ck_assert_int_eq(check_store(store), -EUCLEAN);
	ck_assert_uint_gt(strlen(found_wrong), 0);
	while ((r = wms_revision_each(store, &at, &m)) != -ENOENT) {
		if (r == 0)
			weight_metadata_free(m);
		good += r == 0;
		bad += r == -EUCLEAN;
	}
	ck_assert_uint_eq(good, db == META_DB_REVISION ? 2 : 3);
	ck_assert_uint_eq(bad, db == META_DB_REVISION ? 1 : 0);
}
END_TEST

START_TEST(all_records_are_read_in_batches_but_the_damaged_ones)
{
	static const unsigned damaged[] = { 0, WMS_BATCH_MAX - 1,
					    WMS_BATCH_MAX + 5 };
	const uint64_t revisions = 3 * WMS_BATCH_MAX;
	struct wms_position at = { .len = 0 };
	struct wms_batch batch;
	uint64_t last = 0;
	unsigned good = 0, bad = 0;
	int r;

	for (uint64_t g = 1; g <= revisions; g++) {
		struct weight_identity id = id_of(g);

		stage_and_publish(&id);
	}
	for (size_t i = 0; i < ARRAY_LEN(damaged); i++) {
		struct garble garble = { META_DB_REVISION, damaged[i] };

		meddle(garble_body, &garble);
		store = must_open();
	}
	while ((r = wms_revisions_read(store, &at, &batch)) != -ENOENT) {
		if (r == -EUCLEAN) {
			bad++;
			last++;
			continue;
		}
		ck_assert_int_eq(r, 0);
		ck_assert_uint_le(batch.count, WMS_BATCH_MAX);
		for (size_t i = 0; i < batch.count; i++, good++)
			ck_assert_uint_eq(batch.items[i]->identity.generation,
					  ++last);
		wms_batch_release(&batch);
	}
	ck_assert_uint_eq(bad, ARRAY_LEN(damaged));
	ck_assert_uint_eq(good + bad, revisions);
}
END_TEST

/* Gives the record with the lowest key another group id. */
static int another_group_body(struct meta_txn *txn, void *arg)
{
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	unsigned char key[META_KEY_MAX], value[1024];
	struct meta_bytes k, v;
	int r;

	(void)arg;
	r = meta_cursor_open(txn, META_DB_REVISION, NULL, 0, &c);
	if (r == 0)
		r = meta_cursor_seek(c, NULL, 0, &k, &v);
	if (r < 0)
		return r;
	ck_assert_uint_le(v.len, sizeof(value));
	memcpy(key, k.data, k.len);
	memcpy(value, v.data, v.len);
	value[v.len - 1] ^= 1;
	return meta_put(txn, META_DB_REVISION, key, k.len, value, v.len);
}

static int read_all(void)
{
	struct wms_position at = { .len = 0 };
	struct weight_metadata *m;
	int r, bad = 0;

	while ((r = wms_revision_each(store, &at, &m)) != -ENOENT) {
		if (r == 0)
			weight_metadata_free(m);
		else
			bad++;
	}
	return bad;
}

START_TEST(every_rule_is_checked_until_all_records_were_read)
{
	struct weight_identity first = id_of(1), second = id_of(2);

	stage_and_publish(&first);
	stage_and_publish(&second);
	ck_assert_int_eq(availability_of(&first), WEIGHT_READY);
	meddle(another_group_body, NULL);
	store = must_open();
	ck_assert_int_eq(availability_of(&first), -EUCLEAN);
	ck_assert_int_eq(availability_of(&second), WEIGHT_READY);
	/* It doesn't become good by having been met. */
	ck_assert_int_eq(read_all(), 1);
	ck_assert_int_eq(availability_of(&first), -EUCLEAN);
	ck_assert_int_eq(check_store(store), -EUCLEAN);
	/* Back again. */
	meddle(another_group_body, NULL);
	store = must_open();
	ck_assert_int_eq(read_all(), 0);
	ck_assert_int_eq(availability_of(&first), WEIGHT_READY);
	/* From then on only who checks all would notice; it is the disk's. */
	ck_assert_int_eq(
		meta_update(store->meta, META_NORMAL, another_group_body, NULL),
		0);
	ck_assert_int_eq(availability_of(&first), WEIGHT_READY);
	ck_assert_int_eq(check_store(store), -EUCLEAN);
}
END_TEST

/* Stages and publishes generation after generation until it is killed. */
static void publish_until_killed(int acknowledge)
{
	struct weight_metadata_store *s = must_open();

	for (uint64_t g = 1;; g++) {
		struct weight_identity id = id_of(g);

		if (wms_stage(s, &id, g, NULL) < 0 ||
		    publish(s, &id, g, NULL) < 0 ||
		    write(acknowledge, &g, sizeof(g)) != sizeof(g))
			_exit(1);
	}
}

START_TEST(a_kill_leaves_each_generation_staged_or_published)
{
	struct weight_lineage lineage = id_of(1).lineage;
	struct weight_metadata *m;
	struct weight_staging *s;
	uint64_t g, last = 0, next = 0;
	int fds[2], status;
	pid_t child;

	wms_close(take_ptr(store));
	ck_assert_int_eq(pipe(fds), 0);
	child = fork();
	if (child == 0)
		publish_until_killed(fds[1]);
	(void)close(fds[1]);
	while (last < (uint64_t)(10 + _i * 7))
		ck_assert_int_eq(read(fds[0], &last, sizeof(last)),
				 sizeof(last));
	ck_assert_int_eq(kill(child, SIGKILL), 0);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	while (read(fds[0], &g, sizeof(g)) == sizeof(g))
		last = g;
	(void)close(fds[0]);

	store = must_open();
	ck_assert_int_eq(check_store(store), 0);
	for (g = 1; wms_revision_next(store, &lineage, g - 1, &m) == 0; g++) {
		ck_assert_uint_eq(m->identity.generation, g);
		ck_assert_int_eq(m->availability, WEIGHT_READY);
		weight_metadata_free(m);
	}
	/* All that was acknowledged, and at most one more. */
	ck_assert(g - 1 == last || g - 1 == last + 1);
	if (wms_staged_next(store, &lineage, 0, &s) == 0) {
		next = s->identity.generation;
		ck_assert_uint_eq(next, g);
		weight_staging_free(s);
	}
}
END_TEST

START_TEST(hundreds_of_large_records_are_kept)
{
	struct weight_identity id = id_of(1);
	char name[WEIGHT_COMPONENT_MAX + 1];
	struct weight_metadata *m;
	uint64_t after = 0;
	unsigned count = 0;

	/* Every byte of these takes three in a manifest key. */
	memset(name, '/', WEIGHT_COMPONENT_MAX);
	name[WEIGHT_COMPONENT_MAX] = '\0';
	id.lineage = (struct weight_lineage){ "default", name, name, name };
	for (; id.generation <= 400; id.generation++)
		stage_and_publish(&id);
	reopen();
	while (wms_revision_next(store, &id.lineage, after, &m) == 0) {
		after = m->identity.generation;
		weight_metadata_free(m);
		count++;
	}
	ck_assert_uint_eq(count, 400);
}
END_TEST

static int whole_life(void)
{
	cleanup(wms_close_cleanup) struct weight_metadata_store *s = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_lease_request rq = { .holder = "h", .ttl_ms = 10 };
	struct wms_delete_request del = { .ignore_lease_holder = "h" };
	struct weight_identity id = id_of(7);
	struct weight_metadata *m = NULL;
	struct weight_lease *l = NULL;
	bool unclean, used;
	int r;

	empty_dir();
	if ((r = wms_open(dir, &s, &why)) < 0 ||
	    (r = wms_begin_boot(s, "boot", &unclean)) < 0 ||
	    (r = wms_stage(s, &id, 1, NULL)) < 0 ||
	    (r = publish(s, &id, 2, NULL)) < 0 ||
	    (r = wms_lease_acquire(s, &id, &rq, 3, &l)) < 0)
		return r;
	weight_lease_free(l);
	if ((r = wms_lease_renew(s, "default", 1, 20, 3, NULL)) < 0 ||
	    (r = wms_lineage_in_use(s, &id.lineage, &used)) < 0 ||
	    (r = wms_mark_durable(s, &id, 3, NULL)) < 0 ||
	    (r = wms_delete_begin(s, &id, &del, 4, &m)) < 0)
		return r;
	weight_metadata_free(m);
	r = wms_delete_finish(s, &id, 0, 5, NULL);
	return r < 0 ? r : check_store(s);
}

/* What a child allocates is none of the sweep's business. */
static void disarm(void)
{
	(void)fault_disarm();
}

START_TEST(every_allocation_may_fail)
{
	wms_close(take_ptr(store));
	ck_assert_int_eq(pthread_atfork(NULL, NULL, disarm), 0);
	fault_sweep(whole_life);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_metadata_store");
	TCase *tc = tcase_create("weight_metadata_store");

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, staging_reserves_an_identity);
	tcase_add_test(tc, publishing_moves_it_from_staged_to_ready);
	tcase_add_test(tc, a_tombstone_never_comes_back);
	tcase_add_test(tc, a_watermark_fences_generations);
	tcase_add_loop_test(tc, a_bad_identity_is_refused_everywhere, 0,
			    ARRAY_LEN(bad_ids));
	tcase_add_test(tc, a_lineage_is_walked_in_numeric_order);
	tcase_add_test(tc, keys_that_begin_others_are_told_apart);
	tcase_add_test(tc, identities_that_look_alike_are_different);
	tcase_add_test(tc, all_records_are_met_once_while_they_change);
	tcase_add_test(tc,
		       all_records_are_read_in_batches_but_the_damaged_ones);
	tcase_add_test(tc, every_rule_is_checked_until_all_records_were_read);
	tcase_add_test(tc, only_what_lives_keeps_a_lineage);
	tcase_add_test(tc, deletion_goes_to_a_tombstone);
	tcase_add_test(tc, durability_is_noted_without_a_new_generation);
	tcase_add_test(tc, an_unclean_boot_begins_an_epoch);
	tcase_add_test(tc, a_store_is_new_until_a_boot_begins);
	tcase_add_test(tc, what_cannot_be_seen_is_refused_first);
	tcase_add_test(tc, a_snapshot_brings_every_record);
	tcase_add_test(tc, a_boot_id_has_a_length);
	tcase_add_test(tc, a_newer_schema_is_refused);
	tcase_add_loop_test(tc,
			    a_damaged_record_is_told_and_does_not_hide_others,
			    0, ARRAY_LEN(record_maps));
	tcase_add_loop_test(
		tc, a_kill_leaves_each_generation_staged_or_published, 0, 5);
	tcase_add_test(tc, hundreds_of_large_records_are_kept);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
