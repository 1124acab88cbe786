/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_key.h"
#include "core/weight_record.h"
#include "fault.h"
#include "suite.h"

#define GROUP                                                                  \
	"weight:"                                                              \
	"d959bc5c5b651824ad866863c325ebbf49a98a9482863ced2c1f7caac4039d73"

/* Where fields of the layouts are; the header says so. */
#define AT_VERSION 0
#define AT_AVAILABILITY 2
#define AT_RESIDENCY 3
#define AT_PREFERRED 4
#define AT_MODE 5
#define AT_FLAGS 6
#define AT_METADATA_GENERATION 8
#define AT_UPDATED 32
#define AT_POLICY_RATIO 48
#define AT_HOT_RATIO 56
#define AT_TENANT 184
#define AT_RESERVED 2
#define AT_STAGED_POLICY 40
#define AT_LINEAGE_FLAGS 18
#define AT_LINEAGE 20
#define AT_CLAIM 32
#define AT_REQUEST 74
#define AT_IMPORT 80

static const struct weight_metadata metadata = {
	.identity = { { "default", "default", "demo", "main" }, 7 },
	.manifest = {
		.manifest_key = "weights/default/demo/main/7/manifest",
		.payload_group_id = GROUP,
		.manifest_sha256 = { { 1, 2 } },
		.payload_keys_sha256 = { { 3, 4 } },
		.complete = true,
		.payload_count = 3,
		.logical_bytes = 0x1122334455667788,
	},
	.policy = { WEIGHT_HOT, 0.5, WEIGHT_MANUAL },
	.availability = WEIGHT_READY,
	.residency = WEIGHT_MIXED,
	.durable = true,
	.operation_id = 77,
	.affinity_count = 2,
	.affinity_digest = { { 5, 6 } },
	.observed_hot_ratio = 0.123456789,
	.metadata_generation = UINT64_MAX - 1,
	.created_at_ms = 1000,
	.updated_at_ms = 2000,
	.last_accessed_at_ms = 3000,
};

static const struct weight_lease lease = {
	.lease_id = 12,
	.identity = { { "t", "n/x", "r r", "\xc3\xa9" }, UINT64_MAX },
	.holder = "mount:1",
	.expires_at_ms = 34,
	.fenced_metadata_generation = 56,
};

static const struct weight_staging staging = {
	.identity = { { "t", "n", "r", "v" }, 1 },
	.created_at_ms = 78,
	.epoch = 90,
};

static const struct weight_operation operation = {
	.operation_id = 5,
	.identity = { { "t", "n", "r", "v" }, 1 },
	.kind = WEIGHT_REPAIRING,
	.target_residency = WEIGHT_MIXED,
	.target_hot_ratio = 0.5,
	.fenced_metadata_generation = 6,
	.started_at_ms = 7,
	.updated_at_ms = 8,
	.processed_units = 9,
	.total_units = 10,
	.processed_bytes = 11,
	.total_bytes = 12,
	.cursor = "c",
	.message = "m",
};

static const struct weight_staging staging_with_policy = {
	.identity = { { "t", "n", "r", "v" }, 1 },
	.created_at_ms = 78,
	.epoch = 90,
	.has_policy = true,
	.policy = { WEIGHT_MIXED, 0.5, WEIGHT_MANUAL },
};

static const struct weight_lineage_record unclaimed = {
	.lineage = { "t", "n", "r", "v" },
	.lineage_metadata_generation = 2,
	.watermark = 7,
};

static const struct weight_lineage_record described = {
	.lineage = { "t", "n", "r", "v" },
	.lineage_metadata_generation = 2,
	.watermark = 7,
	.claimed = true,
	.claim = { .request_id = "q",
		   .base = 7,
		   .target = 8,
		   .mode = WEIGHT_DELETE_FIRST,
		   .phase = WEIGHT_TARGET_IMPORTING,
		   .expected_base_metadata_generation = 5,
		   .described = true,
		   .import = { .payload_count = 3,
			       .logical_bytes = 4,
			       .policy = { WEIGHT_MIXED, 0.5, WEIGHT_MANUAL },
			       .affinity_count = 6,
			       .affinity_digest = { { 1, 2 } } },
		   .created_at_ms = 9,
		   .updated_at_ms = 10,
		   .error = "e" },
};

/* As it is when the target is staged on a mount, and all goes well. */
static struct weight_lineage_record undescribed(void)
{
	struct weight_lineage_record l = described;

	l.claim.described = false;
	l.claim.import = (struct weight_import){ .payload_count = 0 };
	l.claim.error = "";
	return l;
}

static void encode_metadata(const struct weight_metadata *m, struct buf *ret)
{
	ck_assert_int_eq(weight_record_metadata_encode(m, ret), 0);
}

static void assert_same(const struct weight_metadata *a,
			const struct weight_metadata *b)
{
	ck_assert(weight_identity_equal(&a->identity, &b->identity));
	ck_assert_str_eq(a->manifest.manifest_key, b->manifest.manifest_key);
	ck_assert_str_eq(a->manifest.payload_group_id,
			 b->manifest.payload_group_id);
	ck_assert(digest_equal(&a->manifest.manifest_sha256,
			       &b->manifest.manifest_sha256));
	ck_assert(digest_equal(&a->manifest.payload_keys_sha256,
			       &b->manifest.payload_keys_sha256));
	ck_assert_int_eq(a->manifest.complete, b->manifest.complete);
	ck_assert_uint_eq(a->manifest.payload_count, b->manifest.payload_count);
	ck_assert_uint_eq(a->manifest.logical_bytes, b->manifest.logical_bytes);
	ck_assert(weight_policy_equal(&a->policy, &b->policy));
	ck_assert_int_eq((int)a->availability, (int)b->availability);
	ck_assert_int_eq((int)a->residency, (int)b->residency);
	ck_assert_int_eq(a->durable, b->durable);
	ck_assert_uint_eq(a->operation_id, b->operation_id);
	ck_assert_uint_eq(a->affinity_count, b->affinity_count);
	ck_assert(digest_equal(&a->affinity_digest, &b->affinity_digest));
	ck_assert(a->observed_hot_ratio == b->observed_hot_ratio);
	ck_assert_uint_eq(a->metadata_generation, b->metadata_generation);
	ck_assert_uint_eq(a->created_at_ms, b->created_at_ms);
	ck_assert_uint_eq(a->updated_at_ms, b->updated_at_ms);
	ck_assert_uint_eq(a->last_accessed_at_ms, b->last_accessed_at_ms);
}

START_TEST(a_revision_comes_back_as_it_was)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	encode_metadata(&metadata, &bytes);
	ck_assert_int_eq(
		weight_record_metadata_decode(bytes.data, bytes.len, &m), 0);
	assert_same(m, &metadata);
}
END_TEST

/* Whatever the bytes are, only the group id is believed. */
static void decode_twice(const struct buf *bytes)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *again =
		NULL;
	char group[WEIGHT_GROUP_ID_LEN + 1];
	int r = weight_record_metadata_decode(bytes->data, bytes->len, &m);
	int r2 = weight_record_metadata_decode_again(bytes->data, bytes->len,
						     &again);

	if (r == 0 && r2 == 0) {
		assert_same(m, again);
	} else if (r2 == 0) {
		ck_assert_int_eq(weight_group_id(&again->identity, group), 0);
		ck_assert_str_ne(again->manifest.payload_group_id, group);
		ck_assert_uint_eq(strlen(again->manifest.payload_group_id),
				  WEIGHT_GROUP_ID_LEN);
	} else {
		ck_assert_int_eq(r, r2);
	}
}

START_TEST(decoding_again_believes_the_group_id_only)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	encode_metadata(&metadata, &bytes);
	for (size_t at = 0; at < bytes.len; at++)
		for (int v = 0; v <= UINT8_MAX; v++) {
			char was = bytes.data[at];

			bytes.data[at] = (char)v;
			decode_twice(&bytes);
			bytes.data[at] = was;
		}
	/* The last digit of the group id is the last byte. */
	bytes.data[bytes.len - 1] ^= 1;
	ck_assert_int_eq(
		weight_record_metadata_decode(bytes.data, bytes.len, &m),
		-EUCLEAN);
	ck_assert_int_eq(
		weight_record_metadata_decode_again(bytes.data, bytes.len, &m),
		0);
}
END_TEST

START_TEST(an_import_and_a_tombstone_come_back_as_they_were)
{
	struct weight_metadata states[2] = { metadata, metadata };

	states[0].availability = WEIGHT_IMPORTING;
	states[0].residency = WEIGHT_UNKNOWN;
	states[0].manifest.complete = false;
	states[0].manifest.manifest_key = "";
	states[0].manifest.manifest_sha256 = (struct digest){ { 0 } };
	states[0].manifest.payload_keys_sha256 = (struct digest){ { 0 } };
	states[1].availability = WEIGHT_DELETED;
	states[1].residency = WEIGHT_ABSENT;
	for (size_t i = 0; i < ARRAY_LEN(states); i++) {
		cleanup(weight_metadata_free_cleanup) struct weight_metadata
			*m = NULL;
		cleanup(buf_release) struct buf bytes = BUF_INIT;

		states[i].durable = false;
		states[i].operation_id = 0;
		states[i].observed_hot_ratio = 0.0;
		encode_metadata(&states[i], &bytes);
		ck_assert_int_eq(weight_record_metadata_decode(bytes.data,
							       bytes.len, &m),
				 0);
		assert_same(m, &states[i]);
	}
}
END_TEST

START_TEST(a_lease_comes_back_as_it_was)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *l = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	ck_assert_int_eq(weight_record_lease_encode(&lease, &bytes), 0);
	ck_assert_int_eq(weight_record_lease_decode(bytes.data, bytes.len, &l),
			 0);
	ck_assert(weight_identity_equal(&l->identity, &lease.identity));
	ck_assert_str_eq(l->holder, lease.holder);
	ck_assert_uint_eq(l->lease_id, 12);
	ck_assert_uint_eq(l->expires_at_ms, 34);
	ck_assert_uint_eq(l->fenced_metadata_generation, 56);
}
END_TEST

START_TEST(a_staged_import_comes_back_as_it_was)
{
	cleanup(weight_staging_free_cleanup) struct weight_staging *s = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	ck_assert_int_eq(weight_record_staging_encode(&staging, &bytes), 0);
	ck_assert_int_eq(
		weight_record_staging_decode(bytes.data, bytes.len, &s), 0);
	ck_assert(weight_identity_equal(&s->identity, &staging.identity));
	ck_assert_uint_eq(s->created_at_ms, 78);
	ck_assert_uint_eq(s->epoch, 90);
}
END_TEST

/* What is on disks can't change by accident: the bytes of version 1. */
START_TEST(the_layout_of_a_staged_import_is_fixed)
{
	static const char expected[] = "\x01\0\0\0"
				       "\x4e\0\0\0\0\0\0\0"
				       "\x5a\0\0\0\0\0\0\0"
				       "\x01\0t\x01\0n\x01\0r\x01\0v"
				       "\x01\0\0\0\0\0\0";
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	ck_assert_int_eq(weight_record_staging_encode(&staging, &bytes), 0);
	ck_assert_uint_eq(bytes.len, sizeof(expected));
	ck_assert_mem_eq(bytes.data, expected, sizeof(expected));
}
END_TEST

START_TEST(a_policy_of_a_staged_import_comes_back)
{
	cleanup(weight_staging_free_cleanup) struct weight_staging *s = NULL;
	cleanup(weight_staging_free_cleanup) struct weight_staging *none = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	cleanup(buf_release) struct buf old = BUF_INIT;

	ck_assert_int_eq(
		weight_record_staging_encode(&staging_with_policy, &bytes), 0);
	ck_assert_int_eq(
		weight_record_staging_decode(bytes.data, bytes.len, &s), 0);
	ck_assert(weight_identity_equal(&s->identity, &staging.identity));
	ck_assert_uint_eq(s->created_at_ms, 78);
	ck_assert_uint_eq(s->epoch, 90);
	ck_assert(s->has_policy);
	ck_assert(weight_policy_equal(&s->policy, &staging_with_policy.policy));
	ck_assert_int_eq(weight_record_staging_encode(&staging, &old), 0);
	ck_assert_int_eq(weight_record_staging_decode(old.data, old.len, &none),
			 0);
	ck_assert(!none->has_policy);
}
END_TEST

START_TEST(the_layout_of_a_staged_policy_is_fixed)
{
	static const char expected[] = "\x02\0\0\0"
				       "\x4e\0\0\0\0\0\0\0"
				       "\x5a\0\0\0\0\0\0\0"
				       "\x01\0t\x01\0n\x01\0r\x01\0v"
				       "\x01\0\0\0\0\0\0\0"
				       "\x03\x01\0\0\0\0\0\0\xe0\x3f";
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	ck_assert_int_eq(
		weight_record_staging_encode(&staging_with_policy, &bytes), 0);
	ck_assert_uint_eq(bytes.len, sizeof(expected) - 1);
	ck_assert_mem_eq(bytes.data, expected, sizeof(expected) - 1);
}
END_TEST

static void assert_same_claim(const struct weight_claim *a,
			      const struct weight_claim *b)
{
	ck_assert_str_eq(a->request_id, b->request_id);
	ck_assert_uint_eq(a->base, b->base);
	ck_assert_uint_eq(a->target, b->target);
	ck_assert_int_eq((int)a->mode, (int)b->mode);
	ck_assert_int_eq((int)a->phase, (int)b->phase);
	ck_assert_uint_eq(a->expected_base_metadata_generation,
			  b->expected_base_metadata_generation);
	ck_assert_int_eq(a->described, b->described);
	ck_assert(weight_import_equal(&a->import, &b->import));
	ck_assert_uint_eq(a->created_at_ms, b->created_at_ms);
	ck_assert_uint_eq(a->updated_at_ms, b->updated_at_ms);
	ck_assert_str_eq(a->error, b->error);
}

START_TEST(a_lineage_comes_back_as_it_was)
{
	const struct weight_lineage_record states[] = { unclaimed,
							undescribed(),
							described };

	for (size_t i = 0; i < ARRAY_LEN(states); i++) {
		cleanup(weight_lineage_record_free_cleanup) struct
			weight_lineage_record *l = NULL;
		cleanup(buf_release) struct buf bytes = BUF_INIT;

		ck_assert_int_eq(
			weight_record_lineage_encode(&states[i], &bytes), 0);
		ck_assert_int_eq(
			weight_record_lineage_decode(bytes.data, bytes.len, &l),
			0);
		ck_assert(
			weight_lineage_equal(&l->lineage, &states[i].lineage));
		ck_assert_uint_eq(l->lineage_metadata_generation, 2);
		ck_assert_uint_eq(l->watermark, 7);
		ck_assert_int_eq(l->claimed, states[i].claimed);
		if (l->claimed)
			assert_same_claim(&l->claim, &states[i].claim);
	}
}
END_TEST

/* The three are each the beginning of the next, but for their flags. */
START_TEST(the_layout_of_a_lineage_is_fixed)
{
	static const char expected[] = "\x01\0"
				       "\x07\0\0\0\0\0\0\0"
				       "\x02\0\0\0\0\0\0\0"
				       "\x03\0"
				       "\x01\0t\x01\0n\x01\0r\x01\0v"
				       "\x01\x03"
				       "\x07\0\0\0\0\0\0\0"
				       "\x08\0\0\0\0\0\0\0"
				       "\x05\0\0\0\0\0\0\0"
				       "\x09\0\0\0\0\0\0\0"
				       "\x0a\0\0\0\0\0\0\0"
				       "\x01\0q\x01\0e"
				       "\x03\0\0\0\0\0\0\0"
				       "\x04\0\0\0\0\0\0\0"
				       "\x03\x01\0\0\0\0\0\0\xe0\x3f"
				       "\x06\0\0\0\0\0\0\0"
				       "\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
				       "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
	struct weight_lineage_record claim_only = undescribed();
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	cleanup(buf_release) struct buf shorter = BUF_INIT;
	cleanup(buf_release) struct buf shortest = BUF_INIT;

	ck_assert_int_eq(weight_record_lineage_encode(&described, &bytes), 0);
	ck_assert_uint_eq(bytes.len, sizeof(expected));
	ck_assert_mem_eq(bytes.data, expected, sizeof(expected));
	claim_only.claim.error = "e";
	ck_assert_int_eq(weight_record_lineage_encode(&claim_only, &shorter),
			 0);
	bytes.data[AT_LINEAGE_FLAGS] = 1;
	ck_assert_uint_eq(shorter.len, AT_IMPORT);
	ck_assert_mem_eq(bytes.data, shorter.data, shorter.len);
	ck_assert_int_eq(weight_record_lineage_encode(&unclaimed, &shortest),
			 0);
	bytes.data[AT_LINEAGE_FLAGS] = 0;
	ck_assert_uint_eq(shortest.len, AT_CLAIM);
	ck_assert_mem_eq(bytes.data, shortest.data, shortest.len);
}
END_TEST

START_TEST(an_operation_comes_back_as_it_was)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	cleanup(weight_operation_free_cleanup) struct weight_operation *copy =
		NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	cleanup(buf_release) struct buf again = BUF_INIT;

	ck_assert_int_eq(weight_record_operation_encode(&operation, &bytes), 0);
	ck_assert_int_eq(
		weight_record_operation_decode(bytes.data, bytes.len, &op), 0);
	ck_assert(weight_identity_equal(&op->identity, &operation.identity));
	ck_assert_uint_eq(op->operation_id, 5);
	ck_assert_int_eq((int)op->kind, WEIGHT_REPAIRING);
	ck_assert_int_eq((int)op->target_residency, WEIGHT_MIXED);
	ck_assert(op->target_hot_ratio == 0.5);
	ck_assert_uint_eq(op->fenced_metadata_generation, 6);
	ck_assert_uint_eq(op->started_at_ms, 7);
	ck_assert_uint_eq(op->updated_at_ms, 8);
	ck_assert_uint_eq(op->processed_units, 9);
	ck_assert_uint_eq(op->total_units, 10);
	ck_assert_uint_eq(op->processed_bytes, 11);
	ck_assert_uint_eq(op->total_bytes, 12);
	ck_assert_str_eq(op->cursor, "c");
	ck_assert_str_eq(op->message, "m");
	ck_assert_int_eq(weight_operation_copy(op, &copy), 0);
	weight_operation_free(take_ptr(op));
	ck_assert_int_eq(weight_record_operation_encode(copy, &again), 0);
	ck_assert_uint_eq(again.len, bytes.len);
	ck_assert_mem_eq(again.data, bytes.data, bytes.len);
}
END_TEST

START_TEST(operations_that_are_over_come_back_as_they_were)
{
	static const char *const messages[] = { WEIGHT_OPERATION_COMPLETED,
						WEIGHT_OPERATION_REMOVED };
	struct weight_operation over = operation;

	over.cursor = "";
	over.processed_units = over.total_units;
	over.processed_bytes = over.total_bytes;
	for (size_t i = 0; i < ARRAY_LEN(messages); i++) {
		cleanup(weight_operation_free_cleanup) struct weight_operation
			*op = NULL;
		cleanup(buf_release) struct buf bytes = BUF_INIT;

		over.message = messages[i];
		ck_assert_int_eq(weight_record_operation_encode(&over, &bytes),
				 0);
		ck_assert_int_eq(weight_record_operation_decode(bytes.data,
								bytes.len, &op),
				 0);
		ck_assert(weight_operation_is_over(op));
		ck_assert_int_eq(weight_operation_is_finished(op), i == 0);
	}
}
END_TEST

START_TEST(the_layout_of_an_operation_is_fixed)
{
	static const char expected[] = "\x01\0\x01\x03"
				       "\x05\0\0\0\0\0\0\0"
				       "\0\0\0\0\0\0\xe0\x3f"
				       "\x06\0\0\0\0\0\0\0"
				       "\x07\0\0\0\0\0\0\0"
				       "\x08\0\0\0\0\0\0\0"
				       "\x09\0\0\0\0\0\0\0"
				       "\x0a\0\0\0\0\0\0\0"
				       "\x0b\0\0\0\0\0\0\0"
				       "\x0c\0\0\0\0\0\0\0"
				       "\x01\0t\x01\0n\x01\0r\x01\0v"
				       "\x01\0\0\0\0\0\0\0"
				       "\x01\0c\x01\0m";
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	ck_assert_int_eq(weight_record_operation_encode(&operation, &bytes), 0);
	ck_assert_uint_eq(bytes.len, sizeof(expected) - 1);
	ck_assert_mem_eq(bytes.data, expected, sizeof(expected) - 1);
}
END_TEST

START_TEST(the_layout_of_a_revision_is_fixed)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	char hex[DIGEST_HEX_LEN + 1];
	struct digest d;

	encode_metadata(&metadata, &bytes);
	ck_assert_int_eq(digest_of(bytes.data, bytes.len, &d), 0);
	digest_to_hex(&d, hex);
	ck_assert_str_eq(hex, "ea90647638aaa0736d395aefd82ce9d318a9b6f71206dc99"
			      "bf12a89cd3812161");
}
END_TEST

START_TEST(the_longest_record_fits)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	cleanup(buf_release) struct buf key = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];
	char part[WEIGHT_COMPONENT_MAX + 1];
	struct weight_metadata longest = metadata;

	memset(part, '/', WEIGHT_COMPONENT_MAX);
	part[WEIGHT_COMPONENT_MAX] = '\0';
	longest.identity = (struct weight_identity){ { part, part, part, part },
						     UINT64_MAX };
	ck_assert_int_eq(weight_manifest_key(&longest.identity, &key), 0);
	ck_assert_int_eq(weight_group_id(&longest.identity, group), 0);
	longest.manifest.manifest_key = key.data;
	longest.manifest.payload_group_id = group;
	encode_metadata(&longest, &bytes);
	ck_assert_uint_le(bytes.len, WEIGHT_RECORD_BYTES_MAX);
	ck_assert_int_eq(
		weight_record_metadata_decode(bytes.data, bytes.len, &m), 0);
	assert_same(m, &longest);
}
END_TEST

START_TEST(the_longest_lineage_fits)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	char part[WEIGHT_COMPONENT_MAX + 1];
	struct weight_lineage_record longest = described;

	memset(part, '/', WEIGHT_COMPONENT_MAX);
	part[WEIGHT_COMPONENT_MAX] = '\0';
	longest.lineage = (struct weight_lineage){ part, part, part, part };
	longest.claim.request_id = part;
	longest.claim.error = part;
	ck_assert_int_eq(weight_record_lineage_encode(&longest, &bytes), 0);
	ck_assert_uint_le(bytes.len, WEIGHT_RECORD_BYTES_MAX);
	ck_assert_int_eq(
		weight_record_lineage_decode(bytes.data, bytes.len, &l), 0);
	ck_assert(weight_lineage_equal(&l->lineage, &longest.lineage));
	assert_same_claim(&l->claim, &longest.claim);
}
END_TEST

START_TEST(an_invalid_record_is_not_written)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct weight_metadata m = metadata;
	struct weight_lease l = lease;
	struct weight_staging s = staging;
	struct weight_staging with_policy = staging_with_policy;
	struct weight_operation op = operation;
	struct weight_lineage_record first = unclaimed;
	struct weight_lineage_record last = described;

	m.observed_hot_ratio = 2.0;
	l.holder = "\n";
	s.identity.generation = 0;
	with_policy.policy.mixed_hot_ratio = 0.0;
	op.message = WEIGHT_OPERATION_COMPLETED;
	first.watermark = 0;
	last.claim.phase = WEIGHT_RETIRING_BASE;
	ck_assert_int_eq(weight_record_metadata_encode(&m, &bytes), -EINVAL);
	ck_assert_int_eq(weight_record_lease_encode(&l, &bytes), -EINVAL);
	ck_assert_int_eq(weight_record_staging_encode(&s, &bytes), -EINVAL);
	ck_assert_int_eq(weight_record_staging_encode(&with_policy, &bytes),
			 -EINVAL);
	ck_assert_int_eq(weight_record_operation_encode(&op, &bytes), -EINVAL);
	ck_assert_int_eq(weight_record_lineage_encode(&first, &bytes), -EINVAL);
	ck_assert_int_eq(weight_record_lineage_encode(&last, &bytes), -EINVAL);
	ck_assert_uint_eq(bytes.len, 0);
}
END_TEST

/* What records there are, by what they hold. */
enum {
	REVISION,
	LEASE,
	STAGED,
	OPERATION,
	STAGED_POLICY,
	LINEAGE,
	CLAIM,
	DESCRIBED,
	KINDS
};

/* Reads one and writes it again. */
static int metadata_again(const char *data, size_t len, struct buf *ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	int r = weight_record_metadata_decode(data, len, &m);

	ck_assert(r == 0 || !m);
	return r < 0 ? r : weight_record_metadata_encode(m, ret);
}

static int lease_again(const char *data, size_t len, struct buf *ret)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *l = NULL;
	int r = weight_record_lease_decode(data, len, &l);

	ck_assert(r == 0 || !l);
	return r < 0 ? r : weight_record_lease_encode(l, ret);
}

static int staging_again(const char *data, size_t len, struct buf *ret)
{
	cleanup(weight_staging_free_cleanup) struct weight_staging *s = NULL;
	int r = weight_record_staging_decode(data, len, &s);

	ck_assert(r == 0 || !s);
	return r < 0 ? r : weight_record_staging_encode(s, ret);
}

static int operation_again(const char *data, size_t len, struct buf *ret)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	int r = weight_record_operation_decode(data, len, &op);

	ck_assert(r == 0 || !op);
	return r < 0 ? r : weight_record_operation_encode(op, ret);
}

static int lineage_again(const char *data, size_t len, struct buf *ret)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	int r = weight_record_lineage_decode(data, len, &l);

	ck_assert(r == 0 || !l);
	return r < 0 ? r : weight_record_lineage_encode(l, ret);
}

/* Decodes a private copy, so that the sanitizer sees a read past its end. */
static int decode_each(const char *data, size_t len, int which)
{
	static int (*const again[KINDS])(const char *, size_t, struct buf *) = {
		[REVISION] = metadata_again,     [LEASE] = lease_again,
		[STAGED] = staging_again,        [OPERATION] = operation_again,
		[STAGED_POLICY] = staging_again, [LINEAGE] = lineage_again,
		[CLAIM] = lineage_again,         [DESCRIBED] = lineage_again,
	};
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	auto_free char *copy = malloc(len ? len : 1);
	int r;

	ck_assert_ptr_nonnull(copy);
	memcpy(copy, data, len);
	r = again[which](copy, len, &bytes);
	/* What is taken is what was meant, to the byte. */
	if (r == 0) {
		ck_assert_uint_eq(bytes.len, len);
		ck_assert_mem_eq(bytes.data, data, len);
	}
	return r;
}

static void encode_each(int which, struct buf *ret)
{
	struct weight_lineage_record claim_only = undescribed();
	int r = -ENOSYS;

	/* clang-format off */
	switch (which) {
	case REVISION: r = weight_record_metadata_encode(&metadata, ret); break;
	case LEASE: r = weight_record_lease_encode(&lease, ret); break;
	case STAGED: r = weight_record_staging_encode(&staging, ret); break;
	case OPERATION: r = weight_record_operation_encode(&operation, ret); break;
	case STAGED_POLICY: r = weight_record_staging_encode(&staging_with_policy, ret); break;
	case LINEAGE: r = weight_record_lineage_encode(&unclaimed, ret); break;
	case CLAIM: r = weight_record_lineage_encode(&claim_only, ret); break;
	case DESCRIBED: r = weight_record_lineage_encode(&described, ret); break;
	}
	/* clang-format on */
	ck_assert_int_eq(r, 0);
}

START_TEST(a_record_of_another_length_is_damaged)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	encode_each(_i, &bytes);
	for (size_t len = 0; len < bytes.len; len++)
		ck_assert_int_eq(decode_each(bytes.data, len, _i), -EUCLEAN);
	ck_assert_int_eq(decode_each(bytes.data, bytes.len, _i), 0);
	/* The NUL behind the contents of a buffer is one byte too many. */
	ck_assert_int_eq(decode_each(bytes.data, bytes.len + 1, _i), -EUCLEAN);
}
END_TEST

START_TEST(other_versions_are_told_from_damage)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	encode_each(_i, &bytes);
	bytes.data[AT_VERSION] = 3;
	ck_assert_int_eq(decode_each(bytes.data, bytes.len, _i),
			 -EPROTONOSUPPORT);
	ck_assert_int_eq(decode_each(bytes.data, 2, _i), -EPROTONOSUPPORT);
	/* Only staged imports have a second one. */
	bytes.data[AT_VERSION] = 2;
	if (_i != STAGED && _i != STAGED_POLICY)
		ck_assert_int_eq(decode_each(bytes.data, bytes.len, _i),
				 -EPROTONOSUPPORT);
	bytes.data[AT_VERSION] = 0;
	ck_assert_int_eq(decode_each(bytes.data, bytes.len, _i), -EUCLEAN);
}
END_TEST

START_TEST(more_than_a_record_can_have_is_damaged)
{
	auto_free char *data = calloc(1, WEIGHT_RECORD_BYTES_MAX + 1);

	ck_assert_ptr_nonnull(data);
	data[AT_VERSION] = WEIGHT_RECORD_VERSION;
	ck_assert_int_eq(decode_each(data, WEIGHT_RECORD_BYTES_MAX + 1, _i),
			 -EUCLEAN);
}
END_TEST

/* clang-format off */
static const struct {
	const char *why;
	int which;
	size_t at;
	unsigned char byte;
} damages[] = {
	{ "unknown availability",      REVISION, AT_AVAILABILITY, 5 },
	{ "state without an operation", REVISION, AT_AVAILABILITY, WEIGHT_DELETING },
	{ "unknown residency",         REVISION, AT_RESIDENCY, 5 },
	{ "residency against ratio",   REVISION, AT_RESIDENCY, WEIGHT_HOT },
	{ "unknown preferred",         REVISION, AT_PREFERRED, WEIGHT_ABSENT },
	{ "unknown mode",              REVISION, AT_MODE, 3 },
	{ "unknown flag",              REVISION, AT_FLAGS, 7 },
	{ "unknown high flag",         REVISION, AT_FLAGS + 1, 0x80 },
	{ "not complete",              REVISION, AT_FLAGS, 1 },
	{ "last metadata generation",  REVISION, AT_METADATA_GENERATION, 0xff },
	{ "updated before created",    REVISION, AT_UPDATED + 1, 0 },
	{ "policy ratio",              REVISION, AT_POLICY_RATIO + 7, 0x40 },
	{ "hot ratio",                 REVISION, AT_HOT_RATIO + 7, 0xbf },
	{ "length of the tenant",      REVISION, AT_TENANT, 8 },
	{ "length beyond the end",     REVISION, AT_TENANT + 1, 0xff },
	{ "another tenant",            REVISION, AT_TENANT + 2, 'D' },
	{ "NUL in the tenant",         REVISION, AT_TENANT + 3, '\0' },
	{ "control in the tenant",     REVISION, AT_TENANT + 3, '\n' },
	{ "lease: reserved field",     LEASE, AT_RESERVED, 1 },
	{ "lease: id 0",               LEASE, 4, 0 },
	{ "lease: expiry 0",           LEASE, 12, 0 },
	{ "lease: generation 0",       LEASE, 20, 0 },
	{ "lease: tenant",             LEASE, 30, '_' },
	{ "staging: reserved field",   STAGED, AT_RESERVED + 1, 1 },
	{ "staging: tenant",           STAGED, 22, '_' },
	{ "staging: generation 0",     STAGED, 32, 0 },
	{ "operation: unknown kind",   OPERATION, 2, 2 },
	{ "operation: unknown target", OPERATION, 3, WEIGHT_ABSENT },
	{ "operation: target without ratio", OPERATION, 3, WEIGHT_HOT },
	{ "operation: id 0",           OPERATION, 4, 0 },
	{ "operation: ratio",          OPERATION, 19, 0xbf },
	{ "operation: generation 0",   OPERATION, 20, 0 },
	{ "operation: went back",      OPERATION, 36, 6 },
	{ "operation: units",          OPERATION, 44, 11 },
	{ "operation: bytes",          OPERATION, 60, 13 },
	{ "operation: tenant",         OPERATION, 78, '_' },
	{ "operation: generation",     OPERATION, 88, 0 },
	{ "operation: cursor",         OPERATION, 98, '\n' },
	{ "operation: no message",     OPERATION, 99, 0 },
	{ "staged policy: preferred",  STAGED_POLICY, AT_STAGED_POLICY, 0 },
	{ "staged policy: mode",       STAGED_POLICY, AT_STAGED_POLICY + 1, 3 },
	{ "staged policy: ratio",      STAGED_POLICY, AT_STAGED_POLICY + 9, 0xbf },
	{ "staged policy: reserved",   STAGED_POLICY, AT_RESERVED, 1 },
	{ "staged policy: none in version 1", STAGED_POLICY, AT_VERSION, 1 },
	{ "staged: no policy in version 2", STAGED, AT_VERSION, 2 },
	{ "lineage: watermark 0",      LINEAGE, 2, 0 },
	{ "lineage: generation 0",     LINEAGE, 10, 0 },
	{ "lineage: unknown flag",     LINEAGE, AT_LINEAGE_FLAGS, 4 },
	{ "lineage: unknown high flag", LINEAGE, AT_LINEAGE_FLAGS + 1, 1 },
	{ "lineage: described, but no claim", LINEAGE, AT_LINEAGE_FLAGS, 2 },
	{ "lineage: a claim is missing", LINEAGE, AT_LINEAGE_FLAGS, 1 },
	{ "lineage: tenant",           LINEAGE, AT_LINEAGE + 2, '_' },
	{ "lineage: revision",         LINEAGE, AT_LINEAGE + 11, '\0' },
	{ "claim: none by its flags",  CLAIM, AT_LINEAGE_FLAGS, 0 },
	{ "claim: a description is missing", CLAIM, AT_LINEAGE_FLAGS, 3 },
	{ "claim: unknown mode",       CLAIM, AT_CLAIM, 2 },
	{ "claim: phase of another mode", CLAIM, AT_CLAIM + 1, WEIGHT_RETIRING_BASE },
	{ "claim: mode of another phase", CLAIM, AT_CLAIM, WEIGHT_PUT_FIRST },
	{ "claim: unknown phase",      CLAIM, AT_CLAIM + 1, 6 },
	{ "claim: phase beyond a shift", CLAIM, AT_CLAIM + 1, 0xff },
	{ "claim: base 0",             CLAIM, AT_CLAIM + 2, 0 },
	{ "claim: base above target",  CLAIM, AT_CLAIM + 2, 9 },
	{ "claim: target is base",     CLAIM, AT_CLAIM + 10, 7 },
	{ "claim: generation 0",       CLAIM, AT_CLAIM + 18, 0 },
	{ "claim: went back",          CLAIM, AT_CLAIM + 34, 8 },
	{ "claim: no request id",      CLAIM, AT_REQUEST, 0 },
	{ "claim: long request id",    CLAIM, AT_REQUEST + 1, 0xff },
	{ "claim: request id",         CLAIM, AT_REQUEST + 2, '\n' },
	{ "claim: error",              DESCRIBED, AT_REQUEST + 5, '\n' },
	{ "claim: error is missing",   CLAIM, AT_REQUEST + 3, 1 },
	{ "described: not by its flags", DESCRIBED, AT_LINEAGE_FLAGS, 1 },
	{ "described: no claim",       DESCRIBED, AT_LINEAGE_FLAGS, 2 },
	{ "described: preferred",      DESCRIBED, AT_IMPORT + 16, WEIGHT_ABSENT },
	{ "described: mode",           DESCRIBED, AT_IMPORT + 17, 3 },
	{ "described: ratio",          DESCRIBED, AT_IMPORT + 25, 0xbf },
};
/* clang-format on */

START_TEST(a_damaged_field_is_noticed)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	int r;

	encode_each(damages[_i].which, &bytes);
	ck_assert_uint_lt(damages[_i].at, bytes.len);
	ck_assert_int_ne((unsigned char)bytes.data[damages[_i].at],
			 damages[_i].byte);
	bytes.data[damages[_i].at] = (char)damages[_i].byte;
	r = decode_each(bytes.data, bytes.len, damages[_i].which);
	ck_assert_msg(r == -EUCLEAN, "%s: got %d", damages[_i].why, r);
}
END_TEST

/* Whatever one byte becomes: an error, or a record of exactly those bytes. */
START_TEST(any_changed_byte_gives_an_error_or_another_record)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	encode_each(_i, &bytes);
	for (size_t i = 0; i < bytes.len; i++) {
		char saved = bytes.data[i];

		for (unsigned bits = 1; bits < 256; bits <<= 1) {
			int r;

			bytes.data[i] = (char)(saved ^ (char)bits);
			r = decode_each(bytes.data, bytes.len, _i);
			ck_assert(r == 0 || r == -EUCLEAN ||
				  (i < 2 && r == -EPROTONOSUPPORT));
		}
		bytes.data[i] = saved;
	}
}
END_TEST

static int write_and_read(void)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(weight_lease_free_cleanup) struct weight_lease *l = NULL;
	cleanup(weight_staging_free_cleanup) struct weight_staging *s = NULL;
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	cleanup(weight_operation_free_cleanup) struct weight_operation *copy =
		NULL;
	cleanup(buf_release) struct buf a = BUF_INIT;
	cleanup(buf_release) struct buf b = BUF_INIT;
	cleanup(buf_release) struct buf c = BUF_INIT;
	cleanup(buf_release) struct buf d = BUF_INIT;
	int r;

	if ((r = weight_record_metadata_encode(&metadata, &a)) < 0 ||
	    (r = weight_record_lease_encode(&lease, &b)) < 0 ||
	    (r = weight_record_staging_encode(&staging, &c)) < 0 ||
	    (r = weight_record_operation_encode(&operation, &d)) < 0 ||
	    (r = weight_record_metadata_decode(a.data, a.len, &m)) < 0 ||
	    (r = weight_record_lease_decode(b.data, b.len, &l)) < 0 ||
	    (r = weight_record_operation_decode(d.data, d.len, &op)) < 0 ||
	    (r = weight_operation_copy(op, &copy)) < 0)
		return r;
	return weight_record_staging_decode(c.data, c.len, &s);
}

static int write_and_read_lineage(void)
{
	cleanup(weight_staging_free_cleanup) struct weight_staging *s = NULL;
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*copy = NULL;
	cleanup(buf_release) struct buf a = BUF_INIT;
	cleanup(buf_release) struct buf b = BUF_INIT;
	int r;

	if ((r = weight_record_lineage_encode(&described, &a)) < 0 ||
	    (r = weight_record_staging_encode(&staging_with_policy, &b)) < 0 ||
	    (r = weight_record_lineage_decode(a.data, a.len, &l)) < 0 ||
	    (r = weight_lineage_record_copy(l, &copy)) < 0)
		return r;
	return weight_record_staging_decode(b.data, b.len, &s);
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(write_and_read);
	fault_sweep(write_and_read_lineage);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_record");
	TCase *tc = tcase_create("core");

	tcase_add_test(tc, a_revision_comes_back_as_it_was);
	tcase_add_test(tc, decoding_again_believes_the_group_id_only);
	tcase_add_test(tc, an_import_and_a_tombstone_come_back_as_they_were);
	tcase_add_test(tc, a_lease_comes_back_as_it_was);
	tcase_add_test(tc, a_staged_import_comes_back_as_it_was);
	tcase_add_test(tc, the_layout_of_a_staged_import_is_fixed);
	tcase_add_test(tc, a_policy_of_a_staged_import_comes_back);
	tcase_add_test(tc, the_layout_of_a_staged_policy_is_fixed);
	tcase_add_test(tc, a_lineage_comes_back_as_it_was);
	tcase_add_test(tc, the_layout_of_a_lineage_is_fixed);
	tcase_add_test(tc, an_operation_comes_back_as_it_was);
	tcase_add_test(tc, operations_that_are_over_come_back_as_they_were);
	tcase_add_test(tc, the_layout_of_an_operation_is_fixed);
	tcase_add_test(tc, the_layout_of_a_revision_is_fixed);
	tcase_add_test(tc, the_longest_record_fits);
	tcase_add_test(tc, the_longest_lineage_fits);
	tcase_add_test(tc, an_invalid_record_is_not_written);
	tcase_add_loop_test(tc, a_record_of_another_length_is_damaged, 0,
			    KINDS);
	tcase_add_loop_test(tc, other_versions_are_told_from_damage, 0, KINDS);
	tcase_add_loop_test(tc, more_than_a_record_can_have_is_damaged, 0,
			    KINDS);
	tcase_add_loop_test(tc, a_damaged_field_is_noticed, 0,
			    (int)ARRAY_LEN(damages));
	tcase_add_loop_test(tc,
			    any_changed_byte_gives_an_error_or_another_record,
			    0, KINDS);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
