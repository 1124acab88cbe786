/* SPDX-License-Identifier: Apache-2.0 */
/* Records of one revision and its lineage, as a log or a snapshot has them. */
#ifndef TESTS_UNIT_WEIGHT_LOG_FIXTURE_H
#define TESTS_UNIT_WEIGHT_LOG_FIXTURE_H

#include "core/weight_lineage.h"
#include "core/weight_management.h"

#define DEMO_GROUP                                                             \
	"weight:"                                                              \
	"d959bc5c5b651824ad866863c325ebbf49a98a9482863ced2c1f7caac4039d73"
#define DEMO_LINEAGE                                                           \
	{                                                                      \
		"default", "default", "demo", "main"                           \
	}

/* Operation 3 takes it from memory to disk. */
static inline struct weight_metadata demo_metadata(void)
{
	return (struct weight_metadata){
		.identity = { DEMO_LINEAGE, 7 },
		.manifest = {
			.manifest_key = "weights/default/demo/main/7/manifest",
			.payload_group_id = DEMO_GROUP,
			.manifest_sha256 = { { 1 } },
			.payload_keys_sha256 = { { 2 } },
			.complete = true,
			.payload_count = 3,
			.logical_bytes = 1000,
		},
		.policy = { WEIGHT_HOT, 0.5, WEIGHT_AUTO },
		.availability = WEIGHT_READY,
		.residency = WEIGHT_HOT,
		.operation_id = 3,
		.affinity_count = 5,
		.affinity_digest = { { 3 } },
		.observed_hot_ratio = 1.0,
		.metadata_generation = 4,
		.created_at_ms = 1000,
		.updated_at_ms = 2000,
		.last_accessed_at_ms = 3000,
	};
}

static inline struct weight_metadata demo_import(void)
{
	struct weight_metadata m = demo_metadata();

	m.manifest.complete = false;
	m.manifest.manifest_key = "";
	m.manifest.manifest_sha256 = (struct digest){ { 0 } };
	m.manifest.payload_keys_sha256 = (struct digest){ { 0 } };
	m.availability = WEIGHT_IMPORTING;
	m.residency = WEIGHT_UNKNOWN;
	m.operation_id = 0;
	m.observed_hot_ratio = 0.0;
	m.metadata_generation = 1;
	m.updated_at_ms = m.created_at_ms;
	m.last_accessed_at_ms = m.created_at_ms;
	return m;
}

static inline struct weight_operation demo_operation(void)
{
	return (struct weight_operation){
		.operation_id = 3,
		.identity = { DEMO_LINEAGE, 7 },
		.kind = WEIGHT_MIGRATING,
		.target_residency = WEIGHT_COLD,
		.fenced_metadata_generation = 4,
		.started_at_ms = 1900,
		.updated_at_ms = 2100,
		.processed_units = 2,
		.total_units = 5,
		.processed_bytes = 300,
		.total_bytes = 1000,
		.cursor = "c",
		.message = "",
	};
}

static inline struct weight_lease demo_lease(void)
{
	return (struct weight_lease){
		.lease_id = 5,
		.identity = { DEMO_LINEAGE, 7 },
		.holder = "mount:1",
		.expires_at_ms = 60000,
		.fenced_metadata_generation = 2,
	};
}

/* Generation 7 is being replaced by 8. */
static inline struct weight_lineage_record demo_lineage(void)
{
	return (struct weight_lineage_record){
		.lineage = DEMO_LINEAGE,
		.lineage_metadata_generation = 2,
		.watermark = 7,
		.claimed = true,
		.claim = {
			.request_id = "request",
			.base = 7,
			.target = 8,
			.mode = WEIGHT_PUT_FIRST,
			.phase = WEIGHT_PREPARING_TARGET,
			.expected_base_metadata_generation = 4,
			.described = true,
			.import = {
				.payload_count = 3,
				.logical_bytes = 1000,
				.policy = { WEIGHT_HOT, 0.5, WEIGHT_AUTO },
				.affinity_count = 5,
				.affinity_digest = { { 3 } },
			},
			.created_at_ms = 2500,
			.updated_at_ms = 2600,
			.error = "",
		},
	};
}

#endif
