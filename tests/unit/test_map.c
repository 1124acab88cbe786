/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/list.h"
#include "core/map.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

static int values[4096]; /* something to point at */

static struct map *new_map(void)
{
	struct map *m = NULL;

	ck_assert_int_eq(map_new(&m), 0);
	return m;
}

START_TEST(the_hash_is_siphash)
{
	/* From the appendix of the paper, and the reference's first vectors. */
	uint8_t secret[16], bytes[64];

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)i;
	memcpy(secret, bytes, sizeof(secret));
	ck_assert(map_hash(secret, bytes, 15) == 0xa129ca6149be45e5);
	ck_assert(map_hash(secret, bytes, 0) == 0x726fdb47dd0e0e31);
	ck_assert(map_hash(secret, bytes, 1) == 0x74f839c593dc67fd);
	ck_assert(map_hash(secret, bytes, 8) == 0x93f5f5799a932462);
	ck_assert(map_hash(secret, bytes, 63) == 0x958a324ceb064572);
}
END_TEST

START_TEST(what_was_added_is_found)
{
	cleanup(map_free_cleanup) struct map *m = new_map();
	const uint64_t pair[2] = { 7, 9 }, other[2] = { 7, 10 };

	ck_assert_ptr_null(map_find(m, "a", 1));
	ck_assert_int_eq(map_add(m, "a", 1, &values[1]), 0);
	ck_assert_int_eq(map_add(m, pair, sizeof(pair), &values[2]), 0);
	ck_assert_int_eq(map_add(m, "", 0, &values[3]), 0);
	ck_assert_ptr_eq(map_find(m, "a", 1), &values[1]);
	ck_assert_ptr_eq(map_find(m, pair, sizeof(pair)), &values[2]);
	ck_assert_ptr_eq(map_find(m, NULL, 0), &values[3]);
	ck_assert_ptr_null(map_find(m, other, sizeof(other)));
	ck_assert_ptr_null(map_find(m, "a", 2)); /* with its NUL */
	ck_assert_uint_eq(map_count(m), 3);
	map_check(m);
}
END_TEST

START_TEST(a_key_is_copied)
{
	cleanup(map_free_cleanup) struct map *m = new_map();
	char small[] = "0123456789abcdef", large[] = "0123456789abcdefg";

	ck_assert_int_eq(map_add(m, small, 16, &values[1]), 0);
	ck_assert_int_eq(map_add(m, large, 17, &values[2]), 0);
	memset(small, 0, sizeof(small));
	memset(large, 0, sizeof(large));
	ck_assert_ptr_eq(map_find(m, "0123456789abcdef", 16), &values[1]);
	ck_assert_ptr_eq(map_find(m, "0123456789abcdefg", 17), &values[2]);
}
END_TEST

START_TEST(adding_twice_is_refused_and_putting_replaces)
{
	cleanup(map_free_cleanup) struct map *m = new_map();
	void *old = &values[0];

	ck_assert_int_eq(map_put(m, "k", 1, &values[1], &old), 0);
	ck_assert_ptr_null(old);
	ck_assert_int_eq(map_add(m, "k", 1, &values[2]), -EEXIST);
	ck_assert_ptr_eq(map_find(m, "k", 1), &values[1]);
	ck_assert_int_eq(map_put(m, "k", 1, &values[3], &old), 0);
	ck_assert_ptr_eq(old, &values[1]);
	ck_assert_int_eq(map_put(m, "k", 1, &values[4], NULL), 0);
	ck_assert_ptr_eq(map_find(m, "k", 1), &values[4]);
	ck_assert_uint_eq(map_count(m), 1);
}
END_TEST

START_TEST(a_key_has_a_limit)
{
	cleanup(map_free_cleanup) struct map *m = new_map();
	char *key = calloc(1, MAP_KEY_BYTES_MAX + 1);

	ck_assert_ptr_nonnull(key);
	ck_assert_int_eq(map_add(m, key, MAP_KEY_BYTES_MAX, &values[0]), 0);
	ck_assert_int_eq(map_add(m, key, MAP_KEY_BYTES_MAX + 1, &values[0]),
			 -EFBIG);
	ck_assert_uint_eq(map_count(m), 1);
	free(key);
}
END_TEST

/* Long keys for every other value, so both ways to keep them are used. */
static size_t key_of(size_t i, char ret[32])
{
	int n = snprintf(ret, 32, i % 2 ? "%zu" : "a rather long key %zu", i);

	return (size_t)n;
}

/* Adds, replaces and takes at random, next to an array that does the same. */
START_TEST(it_agrees_with_a_simple_model)
{
	cleanup(map_free_cleanup) struct map *m = new_map();
	bool present[512] = { false };
	size_t count = 0;
	uint32_t random = 1 + (uint32_t)_i;

	for (unsigned step = 0; step < 20000; step++) {
		size_t i, len;
		char key[32];

		random = random * 1664525 + 1013904223;
		i = (random >> 8) % ARRAY_LEN(present);
		len = key_of(i, key);
		if ((random >> 24) % 128 < (step / 4000 % 2 ? 80 : 48)) {
			void *taken = map_take(m, key, len);

			ck_assert_ptr_eq(taken, present[i] ? &values[i] : NULL);
			count -= present[i];
			present[i] = false;
		} else {
			int r = map_add(m, key, len, &values[i]);

			ck_assert_int_eq(r, present[i] ? -EEXIST : 0);
			count += !present[i];
			present[i] = true;
		}
		ck_assert_uint_eq(map_count(m), count);
		if (step % 64 == 0)
			map_check(m);
	}
	for (size_t i = 0; i < ARRAY_LEN(present); i++) {
		char key[32];
		size_t len = key_of(i, key);

		ck_assert_ptr_eq(map_find(m, key, len),
				 present[i] ? &values[i] : NULL);
	}
}
END_TEST

START_TEST(a_walk_sees_each_entry_once_and_may_take_it)
{
	cleanup(map_free_cleanup) struct map *m = new_map();
	bool seen[1000] = { false };
	struct map_entry e;
	size_t at;

	for (size_t i = 0; i < ARRAY_LEN(seen); i++) {
		char key[32];
		size_t len = key_of(i, key);

		ck_assert_int_eq(map_add(m, key, len, &values[i]), 0);
	}
	at = map_count(m);
	while (map_next(m, &at, &e)) {
		size_t i = (size_t)((int *)e.value - values);

		ck_assert(!seen[i]);
		seen[i] = true;
		if (i % 3 != 0)
			ck_assert_ptr_eq(map_take(m, e.key, e.len), e.value);
	}
	for (size_t i = 0; i < ARRAY_LEN(seen); i++)
		ck_assert(seen[i]);
	ck_assert_uint_eq(map_count(m), 334);
	map_check(m);
	at = map_count(m);
	while (map_next(m, &at, &e))
		ck_assert_ptr_eq(map_take(m, e.key, e.len), e.value);
	ck_assert_uint_eq(map_count(m), 0);
	at = map_count(m);
	ck_assert(!map_next(m, &at, &e));
}
END_TEST

START_TEST(a_hundred_thousand_numbers_fit)
{
	cleanup(map_free_cleanup) struct map *m = new_map();

	for (uint64_t i = 0; i < 100000; i++) {
		const uint64_t pair[2] = { i / 1000, i << 32 };

		ck_assert_int_eq(map_add(m, pair, sizeof(pair),
					 &values[i % ARRAY_LEN(values)]),
				 0);
	}
	map_check(m);
	ck_assert_uint_eq(map_count(m), 100000);
}
END_TEST

/* Asserts nothing, since assertions allocate, too. */
static int fill(void)
{
	cleanup(map_free_cleanup) struct map *m = NULL;
	int r = map_new(&m);

	for (size_t i = 0; r == 0 && i < 40; i++) {
		char key[32];
		size_t len = key_of(i, key);

		r = map_put(m, key, len, &values[i], NULL);
		if (map_count(m) != (r == 0 ? i + 1 : i))
			return -EUCLEAN;
	}
	if (m)
		map_check(m);
	return r;
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(fill);
}
END_TEST

struct item {
	int number;
	struct list link;
};

static void assert_order(const struct list *head, const char *expected)
{
	for (struct list *at = head->next; at != head; at = at->next) {
		struct item *item = container_of(at, struct item, link);

		ck_assert_int_eq(item->number, *expected++ - '0');
		ck_assert_ptr_eq(at->next->prev, at);
	}
	ck_assert_int_eq(*expected, '\0');
}

START_TEST(a_list_keeps_the_order)
{
	struct list head = LIST_INIT(head);
	struct item items[4];

	ck_assert(list_empty(&head));
	ck_assert_ptr_null(list_first(&head));
	ck_assert_ptr_null(list_last(&head));
	ck_assert_ptr_null(list_take_first(&head));
	for (int i = 0; i < 4; i++) {
		items[i].number = i;
		list_init(&items[i].link);
	}
	list_add_tail(&head, &items[1].link);
	list_add_tail(&head, &items[2].link);
	list_add_head(&head, &items[0].link);
	list_add_after(&items[1].link, &items[3].link);
	assert_order(&head, "0132");
	list_move_tail(&head, &items[0].link);
	assert_order(&head, "1320");
	ck_assert_ptr_eq(list_first(&head), &items[1].link);
	ck_assert_ptr_eq(list_last(&head), &items[0].link);
	list_remove(&items[3].link);
	list_remove(&items[3].link);
	assert_order(&head, "120");
	ck_assert(list_empty(&items[3].link));
	ck_assert_ptr_eq(list_take_first(&head), &items[1].link);
	assert_order(&head, "20");
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("map");
	TCase *tc = tcase_create("core");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, the_hash_is_siphash);
	tcase_add_test(tc, what_was_added_is_found);
	tcase_add_test(tc, a_key_is_copied);
	tcase_add_test(tc, adding_twice_is_refused_and_putting_replaces);
	tcase_add_test(tc, a_key_has_a_limit);
	tcase_add_loop_test(tc, it_agrees_with_a_simple_model, 0, 4);
	tcase_add_test(tc, a_walk_sees_each_entry_once_and_may_take_it);
	tcase_add_test(tc, a_hundred_thousand_numbers_fit);
	tcase_add_test(tc, every_allocation_may_fail);
	tcase_add_test(tc, a_list_keeps_the_order);
	suite_add_tcase(s, tc);
	return s;
}
