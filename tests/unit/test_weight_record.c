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

/* Where fields of the layouts are; the headers say so. */
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

START_TEST(an_invalid_record_is_not_written)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct weight_metadata m = metadata;
	struct weight_lease l = lease;
	struct weight_staging s = staging;
	struct weight_operation op = operation;
	struct weight_identity id = { { "t", "n", "r", "v" }, 0 };

	m.observed_hot_ratio = 2.0;
	l.holder = "\n";
	s.identity.generation = 0;
	op.message = WEIGHT_OPERATION_COMPLETED;
	ck_assert_int_eq(weight_record_metadata_encode(&m, &bytes), -EINVAL);
	ck_assert_int_eq(weight_record_lease_encode(&l, &bytes), -EINVAL);
	ck_assert_int_eq(weight_record_staging_encode(&s, &bytes), -EINVAL);
	ck_assert_int_eq(weight_record_operation_encode(&op, &bytes), -EINVAL);
	ck_assert_int_eq(weight_record_identity_encode(&id, &bytes), -EINVAL);
	ck_assert_uint_eq(bytes.len, 0);
}
END_TEST

START_TEST(an_identity_comes_back_as_it_was)
{
	static const char expected[] = "\x01\0t\x03\0n/x\x03\0r r"
				       "\x02\0\xc3\xa9"
				       "\xff\xff\xff\xff\xff\xff\xff\xff";
	cleanup(weight_identity_free_cleanup) struct weight_identity *id = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	ck_assert_int_eq(weight_record_identity_encode(&lease.identity, &bytes),
			 0);
	ck_assert_uint_eq(bytes.len, sizeof(expected) - 1);
	ck_assert_mem_eq(bytes.data, expected, bytes.len);
	ck_assert_int_eq(
		weight_record_identity_decode(bytes.data, bytes.len, &id), 0);
	ck_assert(weight_identity_equal(id, &lease.identity));
}
END_TEST

/* Decodes a private copy, so that the sanitizer sees a read past its end. */
static int decode_each(const char *data, size_t len, int which)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(weight_lease_free_cleanup) struct weight_lease *l = NULL;
	cleanup(weight_staging_free_cleanup) struct weight_staging *s = NULL;
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	cleanup(weight_identity_free_cleanup) struct weight_identity *id = NULL;
	auto_free char *copy = malloc(len ? len : 1);
	int r;

	ck_assert_ptr_nonnull(copy);
	memcpy(copy, data, len);
	r = which == 0 ? weight_record_metadata_decode(copy, len, &m) :
	    which == 1 ? weight_record_lease_decode(copy, len, &l) :
	    which == 2 ? weight_record_staging_decode(copy, len, &s) :
	    which == 3 ? weight_record_operation_decode(copy, len, &op) :
			 weight_record_identity_decode(copy, len, &id);
	ck_assert(r == 0 || (!m && !l && !s && !op && !id));
	return r;
}

static void encode_each(int which, struct buf *ret)
{
	int r = which == 0 ? weight_record_metadata_encode(&metadata, ret) :
		which == 1 ? weight_record_lease_encode(&lease, ret) :
		which == 2 ? weight_record_staging_encode(&staging, ret) :
		which == 3 ? weight_record_operation_encode(&operation, ret) :
			     weight_record_identity_encode(&operation.identity,
							   ret);

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
	{ "unknown availability",      0, AT_AVAILABILITY, 5 },
	{ "state without an operation", 0, AT_AVAILABILITY, WEIGHT_DELETING },
	{ "unknown residency",         0, AT_RESIDENCY, 5 },
	{ "residency against ratio",   0, AT_RESIDENCY, WEIGHT_HOT },
	{ "unknown preferred",         0, AT_PREFERRED, WEIGHT_ABSENT },
	{ "unknown mode",              0, AT_MODE, 3 },
	{ "unknown flag",              0, AT_FLAGS, 7 },
	{ "unknown high flag",         0, AT_FLAGS + 1, 0x80 },
	{ "not complete",              0, AT_FLAGS, 1 },
	{ "last metadata generation",  0, AT_METADATA_GENERATION, 0xff },
	{ "updated before created",    0, AT_UPDATED + 1, 0 },
	{ "policy ratio",              0, AT_POLICY_RATIO + 7, 0x40 },
	{ "hot ratio",                 0, AT_HOT_RATIO + 7, 0xbf },
	{ "length of the tenant",      0, AT_TENANT, 8 },
	{ "length beyond the end",     0, AT_TENANT + 1, 0xff },
	{ "another tenant",            0, AT_TENANT + 2, 'D' },
	{ "NUL in the tenant",         0, AT_TENANT + 3, '\0' },
	{ "control in the tenant",     0, AT_TENANT + 3, '\n' },
	{ "lease: reserved field",     1, AT_RESERVED, 1 },
	{ "lease: id 0",               1, 4, 0 },
	{ "lease: expiry 0",           1, 12, 0 },
	{ "lease: generation 0",       1, 20, 0 },
	{ "lease: tenant",             1, 30, '_' },
	{ "staging: reserved field",   2, AT_RESERVED + 1, 1 },
	{ "staging: tenant",           2, 22, '_' },
	{ "staging: generation 0",     2, 32, 0 },
	{ "operation: unknown kind",   3, 2, 2 },
	{ "operation: unknown target", 3, 3, WEIGHT_ABSENT },
	{ "operation: target without ratio", 3, 3, WEIGHT_HOT },
	{ "operation: id 0",           3, 4, 0 },
	{ "operation: ratio",          3, 19, 0xbf },
	{ "operation: generation 0",   3, 20, 0 },
	{ "operation: went back",      3, 36, 6 },
	{ "operation: units",          3, 44, 11 },
	{ "operation: bytes",          3, 60, 13 },
	{ "operation: tenant",         3, 78, '_' },
	{ "operation: generation",     3, 88, 0 },
	{ "operation: cursor",         3, 98, '\n' },
	{ "operation: no message",     3, 99, 0 },
	{ "identity: tenant",          4, 2, '_' },
	{ "identity: NUL",             4, 5, '\0' },
	{ "identity: generation 0",    4, 12, 0 },
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

	encode_metadata(&metadata, &bytes);
	for (size_t i = 0; i < bytes.len; i++) {
		cleanup(weight_metadata_free_cleanup) struct weight_metadata
			*m = NULL;
		cleanup(buf_release) struct buf again = BUF_INIT;
		char saved = bytes.data[i];

		bytes.data[i] = (char)(saved ^ 0x11);
		if (weight_record_metadata_decode(bytes.data, bytes.len, &m) ==
		    0) {
			encode_metadata(m, &again);
			ck_assert_uint_eq(again.len, bytes.len);
			ck_assert_mem_eq(again.data, bytes.data, bytes.len);
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
	cleanup(buf_release) struct buf e = BUF_INIT;
	cleanup(weight_identity_free_cleanup) struct weight_identity *id = NULL;
	int r;

	if ((r = weight_record_metadata_encode(&metadata, &a)) < 0 ||
	    (r = weight_record_lease_encode(&lease, &b)) < 0 ||
	    (r = weight_record_staging_encode(&staging, &c)) < 0 ||
	    (r = weight_record_operation_encode(&operation, &d)) < 0 ||
	    (r = weight_record_identity_encode(&lease.identity, &e)) < 0 ||
	    (r = weight_record_identity_decode(e.data, e.len, &id)) < 0 ||
	    (r = weight_record_metadata_decode(a.data, a.len, &m)) < 0 ||
	    (r = weight_record_lease_decode(b.data, b.len, &l)) < 0 ||
	    (r = weight_record_operation_decode(d.data, d.len, &op)) < 0 ||
	    (r = weight_operation_copy(op, &copy)) < 0)
		return r;
	return weight_record_staging_decode(c.data, c.len, &s);
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(write_and_read);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_record");
	TCase *tc = tcase_create("core");

	tcase_add_test(tc, a_revision_comes_back_as_it_was);
	tcase_add_test(tc, an_import_and_a_tombstone_come_back_as_they_were);
	tcase_add_test(tc, a_lease_comes_back_as_it_was);
	tcase_add_test(tc, a_staged_import_comes_back_as_it_was);
	tcase_add_test(tc, the_layout_of_a_staged_import_is_fixed);
	tcase_add_test(tc, an_operation_comes_back_as_it_was);
	tcase_add_test(tc, operations_that_are_over_come_back_as_they_were);
	tcase_add_test(tc, the_layout_of_an_operation_is_fixed);
	tcase_add_test(tc, the_layout_of_a_revision_is_fixed);
	tcase_add_test(tc, the_longest_record_fits);
	tcase_add_test(tc, an_invalid_record_is_not_written);
	tcase_add_test(tc, an_identity_comes_back_as_it_was);
	tcase_add_loop_test(tc, a_record_of_another_length_is_damaged, 0, 5);
	tcase_add_loop_test(tc, other_versions_are_told_from_damage, 0, 4);
	tcase_add_loop_test(tc, more_than_a_record_can_have_is_damaged, 0, 5);
	tcase_add_loop_test(tc, a_damaged_field_is_noticed, 0,
			    (int)ARRAY_LEN(damages));
	tcase_add_test(tc, any_changed_byte_gives_an_error_or_another_record);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
