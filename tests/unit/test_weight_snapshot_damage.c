/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a snapshot can't be. Stands for
 * MasterSnapshotCodec.MalformedWeightMetadataFailsClosed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/weight_record.h"
#include "core/weight_snapshot.h"
#include "suite.h"
#include "weight_snapshot_fixture.h"

static struct buf whole = BUF_INIT;

static void setup(void)
{
	whole_bytes(&whole_head, &whole);
	ck_assert_int_eq(verdict(whole.data, whole.len), 0);
}

static void teardown(void)
{
	buf_release(&whole);
}

/* The verdict on the bytes with a right digest. */
static int sealed_verdict(void)
{
	seal(&whole);
	return verdict(whole.data, whole.len);
}

/* Where the nth item begins, from 0. */
static size_t item_at(unsigned n)
{
	size_t at = AT_ITEMS;

	while (n-- > 0) {
		uint32_t len;

		memcpy(&len, whole.data + at + 1, sizeof(len));
		at += ITEM_HEAD_LEN + le32toh(len);
	}
	return at;
}

/* The first of a kind: of the whole one, whose kinds are 1 1 2 3 3 4 4. */
static size_t kind_at(enum weight_snapshot_kind kind)
{
	static const unsigned first[] = { 0, 0, 2, 3, 5 };
	size_t at = item_at(first[kind]);

	ck_assert_int_eq(whole.data[at], (int)kind);
	return at;
}

static size_t tail_at(void)
{
	return whole.len - TAIL_LEN;
}

/* ---- Any damage ---- */

START_TEST(every_changed_byte_is_noticed)
{
	for (size_t at = 0; at < whole.len; at++) {
		char saved = whole.data[at];
		static const unsigned char flips[] = { 0x01, 0x10, 0x80, 0xff };

		for (size_t i = 0; i < ARRAY_LEN(flips); i++) {
			int r;

			whole.data[at] = (char)(saved ^ flips[i]);
			r = verdict(whole.data, whole.len);
			ck_assert_msg(r == -EUCLEAN || r == -EPROTONOSUPPORT,
				      "byte %zu, flip %x: %d", at, flips[i], r);
		}
		whole.data[at] = saved;
	}
}
END_TEST

START_TEST(every_cut_is_noticed)
{
	for (size_t len = 0; len < whole.len; len++)
		ck_assert_int_eq(verdict(whole.data, len), -EUCLEAN);
}
END_TEST

START_TEST(what_follows_is_noticed)
{
	cleanup(buf_release) struct buf again = BUF_INIT;

	whole_bytes(&whole_head, &again);
	/* The NUL behind the contents of a buffer is one byte too many. */
	ck_assert_int_eq(verdict(whole.data, whole.len + 1), -EUCLEAN);
	ck_assert_int_eq(buf_append(&whole, again.data, again.len), 0);
	ck_assert_int_eq(verdict(whole.data, whole.len), -EUCLEAN);
}
END_TEST

/* A reader that has refused something says so from then on. */
START_TEST(damage_is_for_good)
{
	cleanup(weight_snapshot_reader_free_cleanup) struct
		weight_snapshot_reader *r = NULL;
	struct weight_snapshot_item item = { .kind = 77 };
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_snapshot_head head;
	auto_fd int fd = -1;

	whole.data[AT_ITEMS] = 5;
	fd = file_with(whole.data, whole.len);
	ck_assert_int_eq(weight_snapshot_read_begin(fd, &head, &r, &why), 0);
	for (unsigned i = 0; i < 3; i++) {
		buf_release(&why);
		ck_assert_int_eq(weight_snapshot_read_next(r, &item, &why),
				 -EUCLEAN);
		ck_assert_uint_gt(why.len, 0);
		ck_assert_int_eq((int)item.kind, 77);
	}
}
END_TEST

/* ---- Behind a right digest ---- */

/* StandbyMetadataStore.RejectsInvalidWeightMetadataWithoutMutation */
START_TEST(next_ids_are_not_0)
{
	static const size_t at[] = { AT_NEXT_LEASE, AT_NEXT_OPERATION };

	memset(whole.data + at[_i], 0, 8);
	ck_assert_int_eq(sealed_verdict(), -EUCLEAN);
}
END_TEST

/* clang-format off */
static const struct {
	uint32_t version;
	int err;
} schemas[] = {
	{ 0, -EUCLEAN }, { 1, -EUCLEAN }, { 2, -EUCLEAN }, { 3, 0 },
	{ 4, -EPROTONOSUPPORT }, { UINT32_MAX, -EPROTONOSUPPORT },
};
/* clang-format on */

/* Schema 2 can't have the lineages that are in it. */
START_TEST(other_schemas_are_refused)
{
	uint32_t le = htole32(schemas[_i].version);

	memcpy(whole.data + AT_SCHEMA, &le, sizeof(le));
	ck_assert_int_eq(sealed_verdict(), schemas[_i].err);
}
END_TEST

START_TEST(the_reserved_field_is_0)
{
	whole.data[AT_ZERO] = 1;
	ck_assert_int_eq(sealed_verdict(), -EUCLEAN);
}
END_TEST

START_TEST(counts_are_right)
{
	size_t at = tail_at() + 1 + (size_t)_i * sizeof(uint64_t);

	whole.data[at]++;
	ck_assert_int_eq(sealed_verdict(), -EUCLEAN);
	whole.data[at] = (char)(whole.data[at] - 2);
	ck_assert_int_eq(sealed_verdict(), -EUCLEAN);
	whole.data[at]++;
	whole.data[at + 7] = 1;
	ck_assert_int_eq(sealed_verdict(), -EUCLEAN);
}
END_TEST

START_TEST(kinds_that_nobody_knows_are_refused)
{
	static const unsigned char kinds[] = { 5, 6, 0x80, 0xff };

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		whole.data[kind_at(WEIGHT_SNAPSHOT_LINEAGE)] = (char)kinds[i];
		ck_assert_int_eq(sealed_verdict(), -EUCLEAN);
		whole.data[item_at(5)] = WEIGHT_SNAPSHOT_LINEAGE;
	}
}
END_TEST

/* Swaps two items that follow on each other, counts and digest are right. */
static void swap_items(unsigned n)
{
	size_t a = item_at(n), b = item_at(n + 1), end = item_at(n + 2);
	auto_free char *first = malloc(b - a);

	ck_assert_ptr_nonnull(first);
	memcpy(first, whole.data + a, b - a);
	memmove(whole.data + a, whole.data + b, end - b);
	memcpy(whole.data + a + (end - b), first, b - a);
}

START_TEST(kinds_come_in_their_order)
{
	static const unsigned last_of_a_kind[] = { 1, 2, 4 };

	for (size_t i = 0; i < ARRAY_LEN(last_of_a_kind); i++) {
		swap_items(last_of_a_kind[i]);
		ck_assert_int_eq(sealed_verdict(), -EUCLEAN);
		swap_items(last_of_a_kind[i]);
		ck_assert_int_eq(sealed_verdict(), 0);
	}
}
END_TEST

START_TEST(an_end_in_the_middle_is_none)
{
	whole.data[item_at(3)] = WEIGHT_SNAPSHOT_END;
	ck_assert_int_eq(sealed_verdict(), -EUCLEAN);
}
END_TEST

static void set_length(size_t item, uint32_t len)
{
	uint32_t le = htole32(len);

	memcpy(whole.data + item + 1, &le, sizeof(le));
}

START_TEST(lengths_are_bounded)
{
	static const uint32_t lengths[] = { 0, 1, WEIGHT_RECORD_BYTES_MAX,
					    WEIGHT_RECORD_BYTES_MAX + 1,
					    UINT32_MAX };
	size_t at = item_at((unsigned)_i);

	for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
		set_length(at, lengths[i]);
		ck_assert_int_eq(sealed_verdict(), -EUCLEAN);
	}
}
END_TEST

/* The longest length that is read: there are the bytes, but no such record. */
START_TEST(a_record_of_the_largest_size_is_looked_at)
{
	auto_free char *zeros = calloc(1, WEIGHT_RECORD_BYTES_MAX + TAIL_LEN);

	ck_assert_ptr_nonnull(zeros);
	whole.len = AT_ITEMS + ITEM_HEAD_LEN;
	set_length(AT_ITEMS, WEIGHT_RECORD_BYTES_MAX);
	ck_assert_int_eq(
		buf_append(&whole, zeros, WEIGHT_RECORD_BYTES_MAX + TAIL_LEN),
		0);
	ck_assert_int_eq(sealed_verdict(), -EUCLEAN);
}
END_TEST

/* clang-format off */
static const struct {
	const char *why;
	enum weight_snapshot_kind kind;
	size_t at; /* in the record, see core/weight_record.h */
	unsigned char value;
	int err;
} fields[] = {
	{ "availability",         WEIGHT_SNAPSHOT_METADATA,  2, 5, -EUCLEAN },
	{ "residency",            WEIGHT_SNAPSHOT_METADATA,  3, 5, -EUCLEAN },
	{ "preferred residency",  WEIGHT_SNAPSHOT_METADATA,  4, 5, -EUCLEAN },
	{ "migration mode",       WEIGHT_SNAPSHOT_METADATA,  5, 3, -EUCLEAN },
	{ "flags",                WEIGHT_SNAPSHOT_METADATA,  6, 4, -EUCLEAN },
	{ "operation kind",       WEIGHT_SNAPSHOT_OPERATION, 2, 2, -EUCLEAN },
	{ "target residency",     WEIGHT_SNAPSHOT_OPERATION, 3, 5, -EUCLEAN },
	{ "lineage flags",        WEIGHT_SNAPSHOT_LINEAGE,  18, 7, -EUCLEAN },
	{ "upsert mode",          WEIGHT_SNAPSHOT_LINEAGE,  50, 2, -EUCLEAN },
	{ "upsert phase",         WEIGHT_SNAPSHOT_LINEAGE,  51, 6, -EUCLEAN },
	{ "phase of another mode", WEIGHT_SNAPSHOT_LINEAGE, 51,
	  WEIGHT_DELETING_BASE,   -EUCLEAN },
	{ "newer revision",       WEIGHT_SNAPSHOT_METADATA,  0, 2,
	  -EPROTONOSUPPORT },
	{ "newer lease",          WEIGHT_SNAPSHOT_LEASE,     0, 2,
	  -EPROTONOSUPPORT },
	{ "newer operation",      WEIGHT_SNAPSHOT_OPERATION, 0, 2,
	  -EPROTONOSUPPORT },
	{ "newer lineage",        WEIGHT_SNAPSHOT_LINEAGE,   0, 2,
	  -EPROTONOSUPPORT },
};
/* clang-format on */

/* WeightMetadataStore.RejectsUnknownSnapshotEnums */
START_TEST(numbers_that_nobody_knows_are_refused)
{
	size_t at = kind_at(fields[_i].kind) + ITEM_HEAD_LEN + fields[_i].at;
	int r;

	ck_assert_int_ne((unsigned char)whole.data[at], fields[_i].value);
	whole.data[at] = (char)fields[_i].value;
	r = sealed_verdict();
	ck_assert_msg(r == fields[_i].err, "%s: %d", fields[_i].why, r);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_snapshot_damage");
	TCase *tc = tcase_create("core");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, every_changed_byte_is_noticed);
	tcase_add_test(tc, every_cut_is_noticed);
	tcase_add_test(tc, what_follows_is_noticed);
	tcase_add_test(tc, damage_is_for_good);
	tcase_add_loop_test(tc, next_ids_are_not_0, 0, 2);
	tcase_add_loop_test(tc, other_schemas_are_refused, 0,
			    (int)ARRAY_LEN(schemas));
	tcase_add_test(tc, the_reserved_field_is_0);
	tcase_add_loop_test(tc, counts_are_right, 0, 4);
	tcase_add_test(tc, kinds_that_nobody_knows_are_refused);
	tcase_add_test(tc, kinds_come_in_their_order);
	tcase_add_test(tc, an_end_in_the_middle_is_none);
	tcase_add_loop_test(tc, lengths_are_bounded, 0, 7);
	tcase_add_test(tc, a_record_of_the_largest_size_is_looked_at);
	tcase_add_loop_test(tc, numbers_that_nobody_knows_are_refused, 0,
			    (int)ARRAY_LEN(fields));
	suite_add_tcase(s, tc);
	return s;
}
