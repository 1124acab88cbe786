/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/oplog.h"
#include "core/util.h"
#include "core/weight_key.h"
#include "fault.h"
#include "oplog_fixture.h"
#include "suite.h"

/* ---- What is there comes back ---- */

/* OpLogTypes.WeightOperationNumbersAppendWithoutRenumbering */
START_TEST(numbers_are_appended_and_never_change)
{
	ck_assert_int_eq(OPLOG_METADATA_UPSERT, 8);
	ck_assert_int_eq(OPLOG_METADATA_DELETE, 9);
	ck_assert_int_eq(OPLOG_LEASE_UPSERT, 10);
	ck_assert_int_eq(OPLOG_LEASE_DELETE, 11);
	ck_assert_int_eq(OPLOG_LINEAGE_UPSERT, 12);
	ck_assert_str_eq(oplog_type_name(8), "metadata_upsert");
	ck_assert_str_eq(oplog_type_name(9), "metadata_delete");
	ck_assert_str_eq(oplog_type_name(10), "lease_upsert");
	ck_assert_str_eq(oplog_type_name(11), "lease_delete");
	ck_assert_str_eq(oplog_type_name(12), "lineage_upsert");
	ck_assert_ptr_null(oplog_type_name(0));
	ck_assert_ptr_null(oplog_type_name(7));
	ck_assert_ptr_null(oplog_type_name(13));
	ck_assert_ptr_null(oplog_type_name((enum oplog_type)UINT32_MAX));
}
END_TEST

START_TEST(every_change_comes_back_as_it_was)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	cleanup(buf_release) struct buf again = BUF_INIT;
	struct oplog_change c = sample(_i);

	encode(&c, &bytes);
	ck_assert_int_eq(decode(bytes.data, bytes.len, &e), 0);
	ck_assert_uint_eq(e->sequence, SEQUENCE);
	ck_assert_uint_eq(e->change.timestamp_ms, TIMESTAMP);
	ck_assert_int_eq((int)e->change.type, (int)c.type);
	ck_assert_str_eq(e->tenant, "default");
	ck_assert_int_eq(oplog_encode(&e->change, e->sequence, &again), 0);
	ck_assert_uint_eq(again.len, bytes.len);
	ck_assert_mem_eq(again.data, bytes.data, bytes.len);
}
END_TEST

START_TEST(a_revision_comes_with_its_operations)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct oplog_change c = upsert_with(2);

	encode(&c, &bytes);
	ck_assert_int_eq(decode(bytes.data, bytes.len, &e), 0);
	ck_assert_str_eq(e->key, revision_key);
	ck_assert_uint_eq(e->change.metadata->metadata_generation, 4);
	ck_assert_uint_eq(e->change.operation_count, 2);
	ck_assert_uint_eq(e->change.operations[0]->operation_id, 3);
	ck_assert_uint_eq(e->change.operations[1]->operation_id, 2);
	ck_assert_str_eq(e->change.operations[1]->message,
			 WEIGHT_OPERATION_SUPERSEDED);
}
END_TEST

/* OpLogTypes.WeightDeleteTombstonesRoundTrip */
START_TEST(a_tombstone_comes_back_as_it_was)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct oplog_change c = tombstone();

	encode(&c, &bytes);
	ck_assert_int_eq(decode(bytes.data, bytes.len, &e), 0);
	ck_assert_str_eq(e->key, revision_key);
	ck_assert(
		weight_identity_equal(&e->change.identity, &metadata.identity));
	ck_assert_uint_eq(e->change.metadata_generation, 6);
	ck_assert_ptr_null(e->change.metadata);
}
END_TEST

/* OpLogTypes.WeightLeaseAccessRoundTrips */
START_TEST(a_lease_comes_with_the_last_access)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct oplog_change c = lease_upsert();

	encode(&c, &bytes);
	ck_assert_int_eq(decode(bytes.data, bytes.len, &e), 0);
	ck_assert_str_eq(e->key, "weight-lease:5");
	ck_assert_uint_eq(e->change.last_accessed_at_ms, 3456);
	ck_assert_uint_eq(e->change.lease->lease_id, 5);
	ck_assert_str_eq(e->change.lease->holder, "mount:1");
	ck_assert_uint_eq(e->change.lease->expires_at_ms, 60000);
}
END_TEST

START_TEST(the_end_of_a_lease_comes_back_as_it_was)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct oplog_change c = lease_delete();

	encode(&c, &bytes);
	ck_assert_int_eq(decode(bytes.data, bytes.len, &e), 0);
	ck_assert_str_eq(e->key, "weight-lease:5");
	ck_assert_uint_eq(e->change.lease_id, 5);
	ck_assert_uint_eq(e->change.metadata_generation, 2);
	ck_assert(
		weight_identity_equal(&e->change.identity, &metadata.identity));
}
END_TEST

START_TEST(a_lineage_comes_back_as_it_was)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct oplog_change c = lineage_upsert(&lineage);

	encode(&c, &bytes);
	ck_assert_int_eq(decode(bytes.data, bytes.len, &e), 0);
	ck_assert_str_eq(e->key, lineage_key);
	ck_assert_uint_eq(e->change.lineage->watermark, 7);
	ck_assert_str_eq(e->change.lineage->claim.request_id, "request");
	ck_assert(weight_import_equal(&e->change.lineage->claim.import,
				      &lineage.claim.import));
}
END_TEST

START_TEST(entries_are_appended)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;
	struct oplog_change c = tombstone();
	size_t len;

	encode(&c, &bytes);
	len = bytes.len;
	encode(&c, &bytes);
	ck_assert_uint_eq(bytes.len, 2 * len);
	ck_assert_int_eq(decode(bytes.data + len, len, &e), 0);
}
END_TEST

START_TEST(the_longest_entry_fits)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	cleanup(buf_release) struct buf key = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];
	char part[WEIGHT_COMPONENT_MAX + 1];
	struct oplog_change c = upsert_with(2);

	memset(part, '/', WEIGHT_COMPONENT_MAX);
	part[WEIGHT_COMPONENT_MAX] = '\0';
	metadata.identity =
		(struct weight_identity){ { part, part, part, part },
					  UINT64_MAX };
	ck_assert_int_eq(weight_manifest_key(&metadata.identity, &key), 0);
	ck_assert_int_eq(weight_group_id(&metadata.identity, group), 0);
	metadata.manifest.manifest_key = key.data;
	metadata.manifest.payload_group_id = group;
	operation.identity = superseded.identity = metadata.identity;
	operation.cursor = operation.message = part;
	encode(&c, &bytes);
	ck_assert_int_eq(verdict(&bytes), 0);
}
END_TEST

/* ---- Layout ---- */

/* What is on disks can't change by accident. */
START_TEST(the_layout_of_an_entry_is_fixed)
{
	static const char expected[] =
		"\x01\0\x09\0"
		"\x08\x07\x06\x05\x04\x03\x02\x01"
		"\x18\x17\x16\x15\x14\x13\x12\x11"
		"\xf5\x5b\x6d\x55\xac\x5d\xd2\x85\xe8\xff\xc7\x34"
		"\x01\0t"
		"\x50\0weight-revision:6bb2c2be67ecfe9e8b9aff771c657f5d"
		"39742d7cb54bfdf45f14e4f415e1ded9"
		"\x1c\0\0\0"
		"\x01\0t\x01\0n\x01\0r\x01\0v\x01\0\0\0\0\0\0\0"
		"\x05\0\0\0\0\0\0";
	const struct oplog_change c = {
		.type = OPLOG_METADATA_DELETE,
		.timestamp_ms = 0x1112131415161718,
		.identity = { { "t", "n", "r", "v" }, 1 },
		.metadata_generation = 5,
	};
	cleanup(buf_release) struct buf bytes = BUF_INIT;

	ck_assert_int_eq(oplog_encode(&c, 0x0102030405060708, &bytes), 0);
	ck_assert_uint_eq(bytes.len, sizeof(expected));
	ck_assert_mem_eq(bytes.data, expected, sizeof(expected));
}
END_TEST

START_TEST(entries_are_as_the_header_says)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	cleanup(buf_release) struct buf expected = BUF_INIT;
	struct buf payload = BUF_INIT;
	struct oplog_change c = sample(_i);
	const char *key = payload_of(&c, &payload);

	encode(&c, &bytes);
	craft(c.type, "default", key, &payload, &expected);
	ck_assert_uint_eq(bytes.len, expected.len);
	ck_assert_mem_eq(bytes.data, expected.data, bytes.len);
}
END_TEST

/* ---- What is not written ---- */

#define SPOIL(name, make, statements)                                          \
	static void name(struct oplog_change *c)                               \
	{                                                                      \
		*c = make;                                                     \
		statements;                                                    \
	}

/* clang-format off */
SPOIL(type_0,              tombstone(), c->type = 0)
SPOIL(type_7,              tombstone(), c->type = 7)
SPOIL(type_13,             tombstone(), c->type = 13)
SPOIL(invalid_revision,    upsert(&metadata), metadata.observed_hot_ratio = 2)
SPOIL(invalid_operation,   upsert_with(1), operation.operation_id = 0)
SPOIL(foreign_operation,   upsert_with(2), superseded.identity.generation = 8)
SPOIL(operation_twice,     upsert_with(2), superseded.operation_id = 3)
SPOIL(many_operations,     upsert_with(3), (void)c)
SPOIL(tombstone_of_nobody, tombstone(), c->identity.generation = 0)
SPOIL(tombstone_at_0,      tombstone(), c->metadata_generation = 0)
SPOIL(tombstone_at_end,    tombstone(), c->metadata_generation = UINT64_MAX)
SPOIL(invalid_lease,       lease_upsert(), lease.holder = "\n")
SPOIL(end_of_lease_0,      lease_delete(), c->lease_id = 0)
SPOIL(end_without_fence,   lease_delete(), c->metadata_generation = 0)
SPOIL(end_of_nobodys,      lease_delete(), c->identity.lineage.tenant = "_")
SPOIL(invalid_lineage,     lineage_upsert(&lineage), lineage.watermark = 0)

static const struct {
	const char *name;
	void (*spoil)(struct oplog_change *c);
	int err;
} invalid[] = {
#define ROW(name, err) { #name, name, err }
	ROW(type_0,              -EINVAL),
	ROW(type_7,              -EINVAL),
	ROW(type_13,             -EINVAL),
	ROW(invalid_revision,    -EINVAL),
	ROW(invalid_operation,   -EINVAL),
	ROW(foreign_operation,   -EINVAL),
	ROW(operation_twice,     -EINVAL),
	/* OpLogTypes.RejectsOversizedEntry */
	ROW(many_operations,     -EFBIG),
	ROW(tombstone_of_nobody, -EINVAL),
	ROW(tombstone_at_0,      -EINVAL),
	ROW(tombstone_at_end,    -EINVAL),
	ROW(invalid_lease,       -EINVAL),
	ROW(end_of_lease_0,      -EINVAL),
	ROW(end_without_fence,   -EINVAL),
	ROW(end_of_nobodys,      -EINVAL),
	ROW(invalid_lineage,     -EINVAL),
#undef ROW
};
/* clang-format on */

START_TEST(an_invalid_change_is_not_written)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct oplog_change c;
	int r;

	invalid[_i].spoil(&c);
	r = oplog_encode(&c, SEQUENCE, &bytes);
	ck_assert_msg(r == invalid[_i].err, "%s: got %d", invalid[_i].name, r);
	ck_assert_uint_eq(bytes.len, 0);
}
END_TEST

START_TEST(the_sequence_begins_with_1)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct oplog_change c = tombstone();

	ck_assert_int_eq(oplog_encode(&c, 0, &bytes), -EINVAL);
	ck_assert_int_eq(oplog_encode(&c, 1, &bytes), 0);
	ck_assert_int_eq(verdict(&bytes), 0);
}
END_TEST

/* ---- Memory ---- */

static int swept;

static int write_and_read(void)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct oplog_change c = sample(swept);
	int r;

	r = oplog_encode(&c, SEQUENCE, &bytes);
	if (r < 0)
		return bytes.len ? -EIO : r;
	r = oplog_decode(bytes.data, bytes.len, &e);
	return r < 0 && e ? -EIO : r;
}

START_TEST(every_allocation_may_fail)
{
	swept = _i;
	fault_sweep(write_and_read);
}
END_TEST

START_TEST(freeing_nothing_is_fine)
{
	oplog_entry_free(NULL);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("oplog");
	TCase *tc = tcase_create("core");

	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_test(tc, numbers_are_appended_and_never_change);
	tcase_add_loop_test(tc, every_change_comes_back_as_it_was, 0, SAMPLES);
	tcase_add_test(tc, a_revision_comes_with_its_operations);
	tcase_add_test(tc, a_tombstone_comes_back_as_it_was);
	tcase_add_test(tc, a_lease_comes_with_the_last_access);
	tcase_add_test(tc, the_end_of_a_lease_comes_back_as_it_was);
	tcase_add_test(tc, a_lineage_comes_back_as_it_was);
	tcase_add_test(tc, entries_are_appended);
	tcase_add_test(tc, the_longest_entry_fits);
	tcase_add_test(tc, the_layout_of_an_entry_is_fixed);
	tcase_add_loop_test(tc, entries_are_as_the_header_says, 0, SAMPLES);
	tcase_add_loop_test(tc, an_invalid_change_is_not_written, 0,
			    (int)ARRAY_LEN(invalid));
	tcase_add_test(tc, the_sequence_begins_with_1);
	tcase_add_loop_test(tc, every_allocation_may_fail, 0, SAMPLES);
	tcase_add_test(tc, freeing_nothing_is_fine);
	suite_add_tcase(s, tc);
	return s;
}
