/* SPDX-License-Identifier: Apache-2.0 */
/* What an entry of the operation log can't be. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/oplog.h"
#include "core/util.h"
#include "core/weight_key.h"
#include "core/weight_record.h"
#include "oplog_fixture.h"
#include "suite.h"

/* Where fields of an entry are; the header says so. */
#define AT_VERSION 0
#define AT_TYPE 2
#define AT_ZERO 3
#define AT_SEQUENCE 4
#define AT_CHECKSUM 20
#define AT_KEY_HASH 24
#define AT_HEAD_CHECKSUM 28
#define AT_TENANT_LEN 32

/* Makes the head checksum of a changed entry of the tenant right again. */
static void seal_head(struct buf *entry, const char *tenant)
{
	struct buf covered = BUF_INIT;
	uint32_t le;

	put_bytes(&covered, entry->data, AT_HEAD_CHECKSUM);
	put_bytes(&covered, tenant, strlen(tenant));
	le = htole32(XXH32(covered.data, covered.len, 0));
	memcpy(entry->data + AT_HEAD_CHECKSUM, &le, sizeof(le));
	buf_release(&covered);
}

/* ---- Damage ---- */

/* OpLogTypes.ChecksumRoundTrips */
START_TEST(checksums_are_what_their_vectors_say)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	static const size_t at[] = { AT_CHECKSUM, AT_KEY_HASH,
				     AT_HEAD_CHECKSUM };
	struct oplog_change c = sample(_i);

	ck_assert_uint_eq(XXH32("", 0, 0), 0x02cc5d05);
	ck_assert_uint_eq(XXH32("abc", 3, 0), 0x32d153ff);
	encode(&c, &bytes);
	ck_assert_int_eq(verdict(&bytes), 0);
	for (size_t i = 0; i < ARRAY_LEN(at); i++) {
		bytes.data[at[i]] ^= 1;
		ck_assert_int_eq(verdict(&bytes), -EUCLEAN);
		bytes.data[at[i]] ^= 1;
	}
}
END_TEST

/* Also when the head checksum, which covers the two others, is right. */
START_TEST(each_checksum_counts)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	static const size_t at[] = { AT_CHECKSUM, AT_KEY_HASH };
	struct oplog_change c = sample(_i);

	encode(&c, &bytes);
	for (size_t i = 0; i < ARRAY_LEN(at); i++) {
		bytes.data[at[i]] ^= 1;
		seal_head(&bytes, "default");
		ck_assert_int_eq(verdict(&bytes), -EUCLEAN);
		bytes.data[at[i]] ^= 1;
	}
	seal_head(&bytes, "default");
	ck_assert_int_eq(verdict(&bytes), 0);
}
END_TEST

START_TEST(every_changed_byte_is_noticed)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct oplog_change c = sample(_i);

	encode(&c, &bytes);
	for (size_t at = 0; at < bytes.len; at++) {
		unsigned char saved = (unsigned char)bytes.data[at];

		for (unsigned flip = 1; flip < 256; flip++) {
			int r;

			bytes.data[at] = (char)(saved ^ flip);
			r = verdict(&bytes);
			ck_assert_msg(r == -EUCLEAN || (at < AT_TYPE &&
							r == -EPROTONOSUPPORT),
				      "byte %zu, flip %x: %d", at, flip, r);
		}
		bytes.data[at] = (char)saved;
	}
}
END_TEST

START_TEST(an_entry_of_another_length_is_damaged)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;
	struct oplog_change c = sample(_i);

	encode(&c, &bytes);
	for (size_t len = 0; len < bytes.len; len++)
		ck_assert_int_eq(decode(bytes.data, len, &e), -EUCLEAN);
	/* The NUL behind the contents of a buffer is one byte too many. */
	ck_assert_int_eq(decode(bytes.data, bytes.len + 1, &e), -EUCLEAN);
}
END_TEST

/* clang-format off */
static const struct {
	const char *why;
	size_t at;
	unsigned char byte;
	int err;
} heads[] = {
	{ "version 0",     AT_VERSION,  0,  -EUCLEAN },
	{ "version 2",     AT_VERSION,  2,  -EPROTONOSUPPORT },
	{ "type 0",        AT_TYPE,     0,  -EPROTONOSUPPORT },
	{ "type 7",        AT_TYPE,     7,  -EPROTONOSUPPORT },
	{ "type 13",       AT_TYPE,     13, -EPROTONOSUPPORT },
	{ "another type",  AT_TYPE,     8,  -EUCLEAN },
	{ "reserved byte", AT_ZERO,     1,  -EUCLEAN },
	{ "sequence 0",    AT_SEQUENCE, 0,  -EUCLEAN },
	{ "tenant",        AT_TENANT_LEN, 6, -EUCLEAN },
	{ "long tenant",   AT_TENANT_LEN + 1, 4, -EUCLEAN },
};
/* clang-format on */

START_TEST(a_bad_head_is_noticed_behind_its_checksum)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	struct oplog_change c = tombstone();
	int r;

	encode(&c, &bytes);
	bytes.data[heads[_i].at] = (char)heads[_i].byte;
	seal_head(&bytes, "default");
	r = verdict(&bytes);
	ck_assert_msg(r == heads[_i].err, "%s: got %d", heads[_i].why, r);
}
END_TEST

/* OpLogApplier: key mismatch refused */
START_TEST(names_of_something_else_are_noticed)
{
	static const char *const tenants[] = { "", "d", "Default", "default2" };
	char long_key[OPLOG_KEY_MAX + 2];
	const char *const keys[] = {
		"",           "weight-lease:5", "weight-lease:6",
		revision_key, lineage_key,      long_key
	};
	struct oplog_change c = sample(_i);
	struct buf payload = BUF_INIT;
	const char *own = payload_of(&c, &payload);

	memset(long_key, 'k', sizeof(long_key));
	long_key[sizeof(long_key) - 1] = '\0';
	buf_release(&payload);
	for (size_t i = 0; i < ARRAY_LEN(tenants); i++) {
		cleanup(buf_release) struct buf entry = BUF_INIT;

		(void)payload_of(&c, &payload);
		craft(c.type, tenants[i], own, &payload, &entry);
		ck_assert_int_eq(verdict(&entry), -EUCLEAN);
	}
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		cleanup(buf_release) struct buf entry = BUF_INIT;
		int expected = strcmp(keys[i], own) == 0 ? 0 : -EUCLEAN;

		(void)payload_of(&c, &payload);
		craft(c.type, "default", keys[i], &payload, &entry);
		ck_assert_int_eq(verdict(&entry), expected);
	}
}
END_TEST

/* Payloads that encoding refuses, or couldn't make at all. */
static void count_of_3(struct buf *b)
{
	put_metadata(b, &metadata);
	put(b, 3, 1);
	for (unsigned i = 0; i < 3; i++) {
		operation.operation_id = 3 + i;
		put_operation(b, &operation);
	}
}

static void count_without_operation(struct buf *b)
{
	put_metadata(b, &metadata);
	put(b, 1, 1);
}

static void operation_without_count(struct buf *b)
{
	put_metadata(b, &metadata);
	put(b, 0, 1);
	put_operation(b, &operation);
}

static void no_count(struct buf *b)
{
	put_metadata(b, &metadata);
}

static void operation_of_another(struct buf *b)
{
	put_metadata(b, &metadata);
	put(b, 1, 1);
	operation.identity.generation = 8;
	put_operation(b, &operation);
}

static void the_same_operation_twice(struct buf *b)
{
	put_metadata(b, &metadata);
	put(b, 2, 1);
	put_operation(b, &operation);
	put_operation(b, &operation);
}

static void long_record(struct buf *b)
{
	auto_free char *zeros = calloc(1, WEIGHT_RECORD_BYTES_MAX + 1);

	ck_assert_ptr_nonnull(zeros);
	put(b, WEIGHT_RECORD_BYTES_MAX + 1, 4);
	put_bytes(b, zeros, WEIGHT_RECORD_BYTES_MAX + 1);
}

static void newer_record(struct buf *b)
{
	put_metadata(b, &metadata);
	b->data[4] = 2;
	put(b, 0, 1);
}

static void unknown_availability(struct buf *b)
{
	put_metadata(b, &metadata);
	b->data[4 + 2] = 5;
	put(b, 0, 1);
}

static void tombstone_of_generation(struct buf *b, uint64_t generation)
{
	put_identity(b, &metadata.identity);
	put(b, generation, 8);
}

static void deleted_at_0(struct buf *b)
{
	tombstone_of_generation(b, 0);
}

static void deleted_at_the_end(struct buf *b)
{
	tombstone_of_generation(b, UINT64_MAX);
}

static void deleted_and_more(struct buf *b)
{
	tombstone_of_generation(b, 6);
	put(b, 0, 1);
}

static void no_identity(struct buf *b)
{
	put(b, 6, 8);
}

static void generation_0(struct buf *b)
{
	put_bytes(b, "\1\0t\1\0n\1\0r\1\0v\0\0\0\0\0\0\0\0", 20);
	put(b, 6, 8);
}

static void lease_without_access(struct buf *b)
{
	put_lease(b, &lease);
}

static void released_0(struct buf *b)
{
	put(b, 0, 8);
	tombstone_of_generation(b, 2);
}

static void released_without_fence(struct buf *b)
{
	put(b, 5, 8);
	tombstone_of_generation(b, 0);
}

static void lineage_and_more(struct buf *b)
{
	put_lineage(b, &lineage);
	put(b, 0, 1);
}

static void nothing(struct buf *b)
{
	(void)b;
}

/* clang-format off */
static const struct {
	const char *name;
	void (*make)(struct buf *payload);
	unsigned type;
	int err;
} payloads[] = {
#define ROW(name, type, err) { #name, name, OPLOG_##type, err }
	ROW(count_of_3,               METADATA_UPSERT, -EUCLEAN),
	ROW(count_without_operation,  METADATA_UPSERT, -EUCLEAN),
	ROW(operation_without_count,  METADATA_UPSERT, -EUCLEAN),
	ROW(no_count,                 METADATA_UPSERT, -EUCLEAN),
	ROW(operation_of_another,     METADATA_UPSERT, -EUCLEAN),
	ROW(the_same_operation_twice, METADATA_UPSERT, -EUCLEAN),
	ROW(long_record,              METADATA_UPSERT, -EUCLEAN),
	ROW(newer_record,             METADATA_UPSERT, -EPROTONOSUPPORT),
	ROW(unknown_availability,     METADATA_UPSERT, -EUCLEAN),
	ROW(nothing,                  METADATA_UPSERT, -EUCLEAN),
	ROW(deleted_at_0,             METADATA_DELETE, -EUCLEAN),
	ROW(deleted_at_the_end,       METADATA_DELETE, -EUCLEAN),
	ROW(deleted_and_more,         METADATA_DELETE, -EUCLEAN),
	ROW(no_identity,              METADATA_DELETE, -EUCLEAN),
	ROW(generation_0,             METADATA_DELETE, -EUCLEAN),
	ROW(nothing,                  METADATA_DELETE, -EUCLEAN),
	ROW(long_record,              METADATA_DELETE, -EUCLEAN),
	ROW(lease_without_access,     LEASE_UPSERT,    -EUCLEAN),
	ROW(nothing,                  LEASE_UPSERT,    -EUCLEAN),
	ROW(released_0,               LEASE_DELETE,    -EUCLEAN),
	ROW(released_without_fence,   LEASE_DELETE,    -EUCLEAN),
	ROW(nothing,                  LEASE_DELETE,    -EUCLEAN),
	ROW(lineage_and_more,         LINEAGE_UPSERT,  -EUCLEAN),
	ROW(nothing,                  LINEAGE_UPSERT,  -EUCLEAN),
#undef ROW
};
/* clang-format on */

/* OpLogApplier: malformed payload refused */
START_TEST(a_bad_payload_is_noticed_behind_its_checksum)
{
	cleanup(buf_release) struct buf entry = BUF_INIT;
	struct buf payload = BUF_INIT;
	int r;

	payloads[_i].make(&payload);
	craft(payloads[_i].type, "default",
	      payloads[_i].type == OPLOG_LINEAGE_UPSERT ? lineage_key :
							  revision_key,
	      &payload, &entry);
	r = verdict(&entry);
	ck_assert_msg(r == payloads[_i].err, "%s: got %d", payloads[_i].name,
		      r);
}
END_TEST

/* OpLogTypes.RejectsOversizedEntry */
START_TEST(a_payload_above_the_limit_is_refused)
{
	cleanup(buf_release) struct buf entry = BUF_INIT;
	auto_free char *zeros = calloc(1, OPLOG_PAYLOAD_MAX + 1);
	struct buf payload = BUF_INIT;

	ck_assert_ptr_nonnull(zeros);
	put_bytes(&payload, zeros, OPLOG_PAYLOAD_MAX + 1);
	craft(OPLOG_METADATA_UPSERT, "default", revision_key, &payload, &entry);
	ck_assert_int_eq(verdict(&entry), -EUCLEAN);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("oplog_damage");
	TCase *tc = tcase_create("core");

	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_loop_test(tc, checksums_are_what_their_vectors_say, 0,
			    SAMPLES);
	tcase_add_loop_test(tc, each_checksum_counts, 0, SAMPLES);
	tcase_add_loop_test(tc, every_changed_byte_is_noticed, 0, SAMPLES);
	tcase_add_loop_test(tc, an_entry_of_another_length_is_damaged, 0,
			    SAMPLES);
	tcase_add_loop_test(tc, a_bad_head_is_noticed_behind_its_checksum, 0,
			    (int)ARRAY_LEN(heads));
	tcase_add_loop_test(tc, names_of_something_else_are_noticed, 0,
			    SAMPLES);
	tcase_add_loop_test(tc, a_bad_payload_is_noticed_behind_its_checksum, 0,
			    (int)ARRAY_LEN(payloads));
	tcase_add_test(tc, a_payload_above_the_limit_is_refused);
	suite_add_tcase(s, tc);
	return s;
}
