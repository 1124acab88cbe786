/* SPDX-License-Identifier: Apache-2.0 */
/* A store in a private directory, and short ways to fill it. */
#ifndef TESTS_UNIT_WEIGHT_METADATA_FIXTURE_H
#define TESTS_UNIT_WEIGHT_METADATA_FIXTURE_H

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/weight_key.h"
#include "core/weight_metadata_store.h"

static char dir[64]; /* a private directory, removed after each test */
static struct weight_metadata_store *store;

static inline struct weight_metadata_store *must_open(void)
{
	struct weight_metadata_store *s = NULL;
	struct buf why = BUF_INIT;
	int r = wms_open(dir, &s, &why);

	ck_assert_msg(r == 0, "open: %d, %s", r, why.data);
	return s;
}

static inline void empty_dir(void)
{
	char path[400];
	struct dirent *e;
	DIR *d = opendir(dir);

	while (d && (e = readdir(d))) {
		(void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		(void)unlink(path);
	}
	if (d)
		(void)closedir(d);
}

static inline void setup(void)
{
	(void)snprintf(dir, sizeof(dir), "/tmp/weightfs-wms-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	store = must_open();
}

static inline void teardown(void)
{
	wms_close(store);
	empty_dir();
	(void)rmdir(dir);
}

static inline void reopen(void)
{
	wms_close(store);
	store = must_open();
}

static inline struct weight_identity id_of(uint64_t generation)
{
	return (struct weight_identity){
		.lineage = { "default", "ns", "demo", "main" },
		.generation = generation,
	};
}

static inline struct weight_publication publication_of(
	const struct weight_identity *id)
{
	return (struct weight_publication){
		.identity = *id,
		.policy = { WEIGHT_HOT, 0.5, WEIGHT_AUTO },
		.affinity_count = 2,
		.affinity_digest = { { 3 } },
		.residency = WEIGHT_COLD,
	};
}

/* Publishes so, with a manifest; ret may be NULL. */
static inline int publish_as(struct weight_metadata_store *s,
			     struct weight_publication p, uint64_t now_ms,
			     struct weight_metadata **ret)
{
	cleanup(buf_release) struct buf key = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];
	int r;

	r = weight_group_id(&p.identity, group);
	if (r < 0)
		return r;
	r = weight_manifest_key(&p.identity, &key);
	if (r < 0)
		return r;
	p.manifest = (struct weight_manifest_ref){
		.manifest_key = key.data,
		.payload_group_id = group,
		.complete = true,
		.payload_count = 2,
		.logical_bytes = 100,
		.manifest_sha256 = { { 1 } },
		.payload_keys_sha256 = { { 2 } },
	};
	return wms_publish(s, &p, now_ms, ret, NULL);
}

/* Publishes with what a publication needs; ret may be NULL. */
static inline int publish(struct weight_metadata_store *s,
			  const struct weight_identity *id, uint64_t now_ms,
			  struct weight_metadata **ret)
{
	return publish_as(s, publication_of(id), now_ms, ret);
}

static inline void stage_and_publish(const struct weight_identity *id)
{
	ck_assert_int_eq(wms_stage(store, id, 10, NULL), 0);
	ck_assert_int_eq(publish(store, id, 20, NULL), 0);
}

static char found_wrong[400]; /* the beginning of the last report */

/* Whether all of a store fits together: 0, -EUCLEAN or another error. */
static inline int check_store(struct weight_metadata_store *s)
{
	cleanup(buf_release) struct buf report = BUF_INIT;
	uint64_t bad = 0;
	int r = wms_check(s, &report, &bad);

	(void)snprintf(found_wrong, sizeof(found_wrong), "%s", report.data);
	if (r < 0)
		return r;
	return bad > 0 || report.len > 0 ? -EUCLEAN : 0;
}

/* The state of a revision, or the error. */
static inline int availability_of(const struct weight_identity *id)
{
	struct weight_metadata *m;
	int r = wms_get(store, id, &m);

	if (r < 0)
		return r;
	ck_assert(weight_identity_equal(&m->identity, id));
	r = (int)m->availability;
	weight_metadata_free(m);
	return r;
}

static inline int delete_begin(const struct weight_identity *id,
			       uint64_t expected, const char *ignore,
			       uint64_t now_ms)
{
	struct wms_delete_request rq = { expected, ignore };

	return wms_delete_begin(store, id, &rq, now_ms, NULL);
}

/* Opens the database below the store and changes it. */
static inline void meddle(meta_body_fn *body, void *arg)
{
	struct buf why = BUF_INIT;
	struct meta *m;

	wms_close(take_ptr(store));
	ck_assert_int_eq(meta_open(dir, META_BYTES_MAX, &m, &why), 0);
	ck_assert_int_eq(meta_update(m, META_NORMAL, body, arg), 0);
	meta_close(m);
}

static inline uint64_t lease(const struct weight_identity *id,
			     const char *holder, uint64_t ttl_ms,
			     uint64_t now_ms)
{
	struct weight_lease_request rq = { .holder = holder, .ttl_ms = ttl_ms };
	struct weight_lease *l;
	uint64_t lease_id;

	ck_assert_int_eq(wms_lease_acquire(store, id, &rq, now_ms, &l), 0);
	ck_assert_str_eq(l->holder, holder);
	ck_assert(weight_identity_equal(&l->identity, id));
	lease_id = l->lease_id;
	weight_lease_free(l);
	return lease_id;
}

static inline struct wms_lease_summary summary(const struct weight_identity *id,
					       uint64_t now_ms)
{
	struct wms_lease_summary s;

	ck_assert_int_eq(wms_lease_summary(store, id, now_ms, &s), 0);
	return s;
}

#endif
