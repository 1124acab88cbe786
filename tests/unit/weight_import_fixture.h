/* SPDX-License-Identifier: Apache-2.0 */
/* An import that is announced and committed: what is asked, and what is there. */
#ifndef TESTS_UNIT_WEIGHT_IMPORT_FIXTURE_H
#define TESTS_UNIT_WEIGHT_IMPORT_FIXTURE_H

#include <check.h>
#include <errno.h>
#include <string.h>

#include "core/weight_decision_import.h"
#include "core/weight_key.h"

#define LAST WEIGHT_METADATA_GENERATION_MAX

static const struct weight_identity demo = {
	.lineage = { "default", "default", "demo", "main" },
	.generation = 8,
};

static char group_id[WEIGHT_GROUP_ID_LEN + 1];
static struct buf manifest_key = BUF_INIT;

static inline void setup(void)
{
	ck_assert_int_eq(weight_group_id(&demo, group_id), 0);
	ck_assert_int_eq(weight_manifest_key(&demo, &manifest_key), 0);
}

static inline void teardown(void)
{
	buf_release(&manifest_key);
}

static inline struct weight_import_request announced(void)
{
	return (struct weight_import_request){
		.identity = demo,
		.payload_group_id = group_id,
		.import = {
			.payload_count = 3,
			.logical_bytes = 1000,
			.policy = { WEIGHT_HOT, 0.5, WEIGHT_AUTO },
			.affinity_count = 5,
			.affinity_digest = { { 3 } },
		},
	};
}

static inline struct weight_commit_request complete(uint64_t expected)
{
	return (struct weight_commit_request){
		.identity = demo,
		.expected_metadata_generation = expected,
		.manifest = {
			.manifest_key = manifest_key.data,
			.payload_group_id = group_id,
			.manifest_sha256 = { { 1 } },
			.payload_keys_sha256 = { { 2 } },
			.complete = true,
			.payload_count = 3,
			.logical_bytes = 1000,
		},
		.residency = WEIGHT_HOT,
		.observed_hot_ratio = 1.0,
	};
}

/* A generation that is there, in a state that was given it by hand. */
static inline struct weight_metadata there(
	enum weight_availability availability, uint64_t metadata_generation)
{
	struct weight_import_request rq = announced();
	struct weight_metadata m = {
		.identity = demo,
		.manifest = complete(0).manifest,
		.policy = rq.import.policy,
		.availability = availability,
		.residency = WEIGHT_HOT,
		.affinity_count = rq.import.affinity_count,
		.affinity_digest = rq.import.affinity_digest,
		.observed_hot_ratio = 1.0,
		.metadata_generation = metadata_generation,
		.created_at_ms = 1000,
		.updated_at_ms = 2000,
		.last_accessed_at_ms = 3000,
	};

	if (availability == WEIGHT_IMPORTING) {
		m.manifest = (struct weight_manifest_ref){
			.manifest_key = "",
			.payload_group_id = group_id,
			.payload_count = 3,
			.logical_bytes = 1000,
		};
		m.residency = WEIGHT_UNKNOWN;
		m.observed_hot_ratio = 0;
	}
	if (availability == WEIGHT_DELETED) {
		m.residency = WEIGHT_ABSENT;
		m.observed_hot_ratio = 0;
	}
	ck_assert_int_eq(weight_metadata_check(&m, NULL), 0);
	return m;
}

static inline void same_record(const struct weight_metadata *a,
			       const struct weight_metadata *b)
{
	cleanup(buf_release) struct buf x = BUF_INIT;
	cleanup(buf_release) struct buf y = BUF_INIT;

	ck_assert_int_eq(weight_record_metadata_encode(a, &x), 0);
	ck_assert_int_eq(weight_record_metadata_encode(b, &y), 0);
	ck_assert_uint_eq(x.len, y.len);
	ck_assert_mem_eq(x.data, y.data, x.len);
}

#endif
