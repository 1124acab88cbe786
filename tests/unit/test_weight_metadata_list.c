/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of revisions, page by page, and of generations. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"
#include "fault.h"
#include "suite.h"
#include "weight_metadata_fixture.h"

#define TAIL 8 /* of a long name, behind what all have in common */
#define NAME_ROOM (WEIGHT_COMPONENT_MAX + 1)

/* ---- Revisions, written in one transaction ---- */

struct item {
	char revision[NAME_ROOM];
	uint64_t generation;
	enum weight_availability availability;
};

struct items {
	struct item *all;
	size_t count;
};

static struct weight_identity identity_of(const struct item *item)
{
	struct weight_identity id = id_of(item->generation);

	id.lineage.revision = item->revision;
	return id;
}

static int put_item(struct meta_txn *txn, const struct item *item)
{
	bool imports = item->availability == WEIGHT_IMPORTING;
	bool is_gone = item->availability == WEIGHT_DELETED;
	cleanup(buf_release) struct buf manifest = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];
	struct weight_metadata m = {
		.identity = identity_of(item),
		.policy = { WEIGHT_HOT, 0.5, WEIGHT_AUTO },
		.availability = item->availability,
		.residency = imports ? WEIGHT_UNKNOWN :
			     is_gone ? WEIGHT_ABSENT :
				       WEIGHT_COLD,
		.affinity_count = 1,
		.metadata_generation = 5,
	};
	struct wms_key key;

	ck_assert_int_eq(weight_group_id(&m.identity, group), 0);
	ck_assert_int_eq(weight_manifest_key(&m.identity, &manifest), 0);
	m.manifest = (struct weight_manifest_ref){
		.manifest_key = imports ? "" : manifest.data,
		.payload_group_id = group,
		.complete = !imports,
		.payload_count = 1,
		.logical_bytes = 1,
	};
	ck_assert_int_eq(wms_key_of(&m.identity, &key), 0);
	return wms_revision_put(txn, &key, &m);
}

static int put_body(struct meta_txn *txn, void *arg)
{
	const struct items *items = arg;
	int r = 0;

	for (size_t i = 0; r == 0 && i < items->count; i++)
		r = put_item(txn, &items->all[i]);
	return r;
}

static void put_items(struct item *all, size_t count)
{
	struct items items = { all, count };

	meddle(put_body, &items);
	store = must_open();
}

static int compare(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	int c = strcmp(x->revision, y->revision);

	if (c != 0)
		return c;
	return x->generation < y->generation ? -1 :
					       x->generation > y->generation;
}

static void sort_items(struct item *all, size_t count)
{
	qsort(all, count, sizeof(*all), compare);
}

/* ---- Pages ---- */

static int list(const char *token, size_t limit, struct wms_page *ret)
{
	return wms_list(store, "default", "ns", "demo", token, limit, ret);
}

static void is_item(const struct weight_metadata *m, const struct item *item)
{
	struct weight_identity id = identity_of(item);

	ck_assert_str_eq(m->identity.lineage.revision, item->revision);
	ck_assert_uint_eq(m->identity.generation, item->generation);
	ck_assert(weight_identity_equal(&m->identity, &id));
	ck_assert_int_eq(m->availability, item->availability);
}

/* What the token behind an item has to be. */
static void is_token_of(const char *token, const struct item *item)
{
	char wanted[WMS_PAGE_TOKEN_MAX + 1];

	(void)snprintf(wanted, sizeof(wanted), "%s\x1f%llu", item->revision,
		       (unsigned long long)item->generation);
	ck_assert_str_eq(token, wanted);
}

/* All pages of some size, put together, are all items in their order. */
static void pages_are(const struct item *all, size_t count, size_t limit)
{
	char token[WMS_PAGE_TOKEN_MAX + 1] = "";
	size_t seen = 0;

	do {
		size_t wanted = count - seen < limit ? count - seen : limit;
		struct wms_page page;

		ck_assert_int_eq(list(token, limit, &page), 0);
		ck_assert_uint_eq(page.count, wanted);
		for (size_t i = 0; i < page.count; i++)
			is_item(page.items[i], &all[seen + i]);
		seen += page.count;
		if (seen < count)
			is_token_of(page.next, &all[seen - 1]);
		else
			ck_assert_str_eq(page.next, "");
		(void)snprintf(token, sizeof(token), "%s", page.next);
		wms_page_release(&page);
		ck_assert_ptr_null(page.items);
	} while (token[0]);
	ck_assert_uint_eq(seen, count);
}

START_TEST(an_empty_list_has_one_empty_page)
{
	struct wms_page page;

	ck_assert_int_eq(list("", 1, &page), 0);
	ck_assert_uint_eq(page.count, 0);
	ck_assert_str_eq(page.next, "");
	wms_page_release(&page);
	ck_assert_int_eq(list("main\x1f"
			      "1",
			      1, &page),
			 0);
	ck_assert_uint_eq(page.count, 0);
	wms_page_release(&page);
}
END_TEST

/* WeightMetadataStore.LookupAndPaginationAreExactAndDeterministic */
START_TEST(a_list_is_in_order_of_bytes_and_numbers)
{
	static struct item all[] = {
		{ "b", 10, WEIGHT_READY },
		{ "a", UINT64_MAX, WEIGHT_DELETED },
		{ "a", 1, WEIGHT_IMPORTING },
		{ "\xc3\xa4", 1, WEIGHT_READY },
		{ "a", 256, WEIGHT_DEGRADED },
		{ "ab", 1, WEIGHT_READY },
		{ "a b", 1, WEIGHT_DELETING },
		{ "a/b", 3, WEIGHT_READY },
		{ "A", 7, WEIGHT_READY },
		{ "b", 9, WEIGHT_READY },
		{ "\xf0\x9f\x8c\x8a", 1, WEIGHT_READY },
		{ "~", 1, WEIGHT_READY },
	};

	put_items(all, ARRAY_LEN(all));
	sort_items(all, ARRAY_LEN(all));
	ck_assert_str_eq(all[0].revision, "A");
	ck_assert_uint_eq(all[3].generation, UINT64_MAX);
	for (size_t limit = 1; limit <= ARRAY_LEN(all) + 1; limit++)
		pages_are(all, ARRAY_LEN(all), limit);
}
END_TEST

/* Names that begin with the same bytes; those of a key end before they do. */
static void long_item(struct item *item, size_t len, const char *tail)
{
	memset(item->revision, 'r', NAME_ROOM - 1);
	item->revision[len] = '\0';
	if (len > WMS_KEY_REVISION_MAX)
		memcpy(item->revision + len - strlen(tail), tail, strlen(tail));
}

START_TEST(names_that_share_a_key_are_in_order_too)
{
	static struct item all[60];
	size_t n = 0;

	/* Around where keys end: one below, just there, one above, and longest. */
	for (uint64_t g = 1; g <= 3; g++) {
		static const size_t lens[] = { 398, 399, 400, 401, 1024 };

		for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
			/* Larger than most digests, and smaller. */
			all[n].generation = g % 2 ? g : UINT64_MAX - g;
			all[n].availability = WEIGHT_READY;
			long_item(&all[n++], lens[i], "");
		}
	}
	/* By their digests these come in another order. */
	for (unsigned i = 0; i < 40; i++) {
		char tail[TAIL + 1];

		(void)snprintf(tail, sizeof(tail), "%08u", i / 2);
		all[n].generation = 1 + i % 2;
		all[n].availability = WEIGHT_READY;
		long_item(&all[n++], 500, tail);
	}
	/* And these are before and behind all of those. */
	for (unsigned i = 0; i < 2; i++) {
		all[n].generation = 1;
		all[n].availability = WEIGHT_READY;
		(void)snprintf(all[n++].revision, NAME_ROOM, "%c", "qs"[i]);
	}
	put_items(all, n);
	sort_items(all, n);
	for (size_t limit = 1; limit <= n + 1; limit++)
		pages_are(all, n, limit);
}
END_TEST

/* ---- Random lists ---- */

static uint64_t seed;

static unsigned pick(unsigned n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (unsigned)(seed >> 33) % n;
}

static void random_item(struct item *item)
{
	static const size_t lens[] = { 1, 2, 399, 400, 401, 402, 410, 1024 };
	size_t len = lens[pick(ARRAY_LEN(lens))];

	memset(item->revision, 'a', len);
	item->revision[len] = '\0';
	/* Of few letters, so that many of them agree in their first bytes. */
	for (size_t i = 0; i < 3; i++) {
		size_t at = pick(2) ? len - 1 - pick(len < 4 ? 1 : 3) :
				      pick(2) * (len > 400 ? 400 : 0);

		item->revision[at < len ? at : 0] = "abc"[pick(3)];
	}
	item->generation = 1 + pick(300);
	item->availability = (enum weight_availability)pick(5);
}

static size_t without_repeats(struct item *all, size_t count)
{
	size_t n = 0;

	for (size_t i = 0; i < count; i++)
		if (n == 0 || compare(&all[n - 1], &all[i]) != 0)
			all[n++] = all[i];
	return n;
}

START_TEST(any_list_comes_page_by_page)
{
	static struct item all[300];
	size_t n;

	seed = 0x9e3779b97f4a7c15 * (uint64_t)(_i + 1);
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		random_item(&all[i]);
	sort_items(all, ARRAY_LEN(all));
	n = without_repeats(all, ARRAY_LEN(all));
	put_items(all, n);
	for (size_t limit = 1; limit < 2 * n; limit = 2 * limit + pick(3))
		pages_are(all, n, limit);
}
END_TEST

/* A token may name what is not there: it stands for a place. */
START_TEST(a_page_begins_behind_its_token)
{
	static struct item all[200];
	size_t n, from;

	seed = 77;
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		random_item(&all[i]);
	sort_items(all, ARRAY_LEN(all));
	n = without_repeats(all, ARRAY_LEN(all));
	put_items(all, n);
	for (unsigned i = 0; i < 200; i++) {
		cleanup(buf_release) struct buf token = BUF_INIT;
		struct weight_metadata m = { .metadata_generation = 1 };
		struct wms_page page;
		struct item at;

		random_item(&at);
		m.identity = identity_of(&at);
		ck_assert_int_eq(wms_page_token(&m, &token), 0);
		is_token_of(token.data, &at);
		for (from = 0; from < n && compare(&all[from], &at) <= 0;)
			from++;
		ck_assert_int_eq(list(token.data, 3, &page), 0);
		ck_assert_uint_eq(page.count, n - from < 3 ? n - from : 3);
		for (size_t k = 0; k < page.count; k++)
			is_item(page.items[k], &all[from + k]);
		wms_page_release(&page);
	}
}
END_TEST

/* ---- Limits ---- */

/*
 * WeightManagementRpc.RejectsUnboundedPaginationExactly
 * backend_converts_bounded_list_page
 */
START_TEST(a_page_has_a_limit)
{
	static struct item all[WEIGHT_LIST_LIMIT_MAX + 1];
	struct wms_page page;

	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		(void)snprintf(all[i].revision, NAME_ROOM, "%05zu", i / 10);
		all[i].generation = 1 + i % 10;
		all[i].availability = WEIGHT_READY;
	}
	put_items(all, ARRAY_LEN(all));
	ck_assert_int_eq(list("", 0, &page), 0);
	ck_assert_uint_eq(page.count, WEIGHT_LIST_LIMIT_DEFAULT);
	is_token_of(page.next, &all[WEIGHT_LIST_LIMIT_DEFAULT - 1]);
	wms_page_release(&page);
	ck_assert_int_eq(list("", 1, &page), 0);
	ck_assert_uint_eq(page.count, 1);
	is_token_of(page.next, &all[0]);
	wms_page_release(&page);
	ck_assert_int_eq(list("", 1000, &page), 0);
	ck_assert_uint_eq(page.count, 1000);
	is_token_of(page.next, &all[999]);
	wms_page_release(&page);
	ck_assert_int_eq(list("", 1001, &page), -EINVAL);
	ck_assert_int_eq(list("", SIZE_MAX, &page), -EINVAL);
	/* Behind the first item there is just a page. */
	ck_assert_int_eq(list("00000\x1f"
			      "1",
			      1000, &page),
			 0);
	ck_assert_uint_eq(page.count, 1000);
	ck_assert_str_eq(page.next, "");
	wms_page_release(&page);
}
END_TEST

START_TEST(what_is_listed_is_named_in_full)
{
	static const char *const bad[][3] = {
		{ "", "ns", "demo" },          { "default", "", "demo" },
		{ "default", "ns", "" },       { "_x", "ns", "demo" },
		{ "default", "n\ns", "demo" }, { "default", "ns", "\xff" },
	};
	static const char *const others[][3] = {
		{ "default", "ns", "dem" },
		{ "default", "n", "sdemo" },
		{ "defaultns", "demo", "main" },
		{ "other", "ns", "demo" },
	};
	struct weight_identity id = id_of(1);
	struct wms_page page;

	stage_and_publish(&id);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		ck_assert_int_eq(wms_list(store, bad[i][0], bad[i][1],
					  bad[i][2], "", 1, &page),
				 -EINVAL);
	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		ck_assert_int_eq(wms_list(store, others[i][0], others[i][1],
					  others[i][2], "", 1, &page),
				 0);
		ck_assert_uint_eq(page.count, 0);
		wms_page_release(&page);
	}
	/* What is staged is no revision yet. */
	id.generation = 2;
	ck_assert_int_eq(wms_stage(store, &id, 1, NULL), 0);
	ck_assert_int_eq(list("", 0, &page), 0);
	ck_assert_uint_eq(page.count, 1);
	wms_page_release(&page);
}
END_TEST

/* ---- Tokens ---- */

/* clang-format off */
static const struct {
	const char *token;
	size_t len; /* 0: of the text */
} bad_tokens[] = {
	{ "main", 0 },
	{ "1", 0 },
	{ "\x1f", 0 },
	{ "\x1f" "1", 0 },
	{ "main\x1f", 0 },
	{ "main\x1f" "0", 0 },
	{ "main\x1f" "01", 0 },
	{ "main\x1f" "-1", 0 },
	{ "main\x1f" "+1", 0 },
	{ "main\x1f" " 1", 0 },
	{ "main\x1f" "1 ", 0 },
	{ "main\x1f" "1x", 0 },
	{ "main\x1f" "0x1", 0 },
	{ "main\x1f" "1.0", 0 },
	{ "main\x1f" "18446744073709551616", 0 },
	{ "main\x1f" "99999999999999999999", 0 },
	{ "main\x1f" "1\x1f" "2", 0 },
	{ "\x1f" "main\x1f" "1", 0 },
	{ "ma\tin\x1f" "1", 0 },
	{ "ma\x7fin\x1f" "1", 0 },
	{ "main\xff\x1f" "1", 0 },
	{ "\xc3\x1f" "1", 0 },
	{ "ma\0in\x1f" "1", 7 },
	{ "main\x1f" "1\0", 7 },
	{ "main\x1f" "1", 5 },
};
/* clang-format on */

/* WeightMetadataStore.LookupAndPaginationAreExactAndDeterministic */
START_TEST(a_token_that_nobody_gave_is_refused)
{
	const char *token = bad_tokens[_i].token;
	size_t len = bad_tokens[_i].len ? bad_tokens[_i].len : strlen(token);
	char revision[NAME_ROOM] = "untouched";
	uint64_t generation = 99;
	struct wms_page page;

	ck_assert_int_eq(
		wms_page_token_parse(token, len, revision, &generation),
		-EINVAL);
	ck_assert_str_eq(revision, "untouched");
	ck_assert_uint_eq(generation, 99);
	if (!bad_tokens[_i].len)
		ck_assert_int_eq(list(token, 1, &page), -EINVAL);
}
END_TEST

START_TEST(a_token_may_be_so_long)
{
	static struct item longest;
	char token[WMS_PAGE_TOKEN_MAX + 3], revision[NAME_ROOM];
	struct wms_page page;
	uint64_t generation;
	int len;

	longest.generation = UINT64_MAX;
	long_item(&longest, WEIGHT_COMPONENT_MAX, "");
	len = snprintf(token, sizeof(token), "%s\x1f%llu", longest.revision,
		       (unsigned long long)UINT64_MAX);
	ck_assert_int_eq(len, WMS_PAGE_TOKEN_MAX);
	ck_assert_int_eq(
		wms_page_token_parse(token, (size_t)len, revision, &generation),
		0);
	ck_assert_str_eq(revision, longest.revision);
	ck_assert_uint_eq(generation, UINT64_MAX);
	len = snprintf(token, sizeof(token), "%sr\x1f%llu", longest.revision,
		       (unsigned long long)UINT64_MAX);
	ck_assert_int_eq(
		wms_page_token_parse(token, (size_t)len, revision, &generation),
		-EINVAL);
	ck_assert_int_eq(list(token, 1, &page), -EINVAL);
}
END_TEST

/* ---- While others change it ---- */

static void add(const struct item *item)
{
	struct weight_identity id = identity_of(item);

	stage_and_publish(&id);
}

/*
 * What was there before the first page is met once, in order; what comes
 * meanwhile is met if it comes behind, and never twice.
 */
START_TEST(pages_go_on_while_the_list_changes)
{
	static struct item all[40], added[40];
	char token[WMS_PAGE_TOKEN_MAX + 1] = "";
	struct item last = { .generation = 0 };
	size_t seen = 0, next = 0;

	seed = 0x9e3779b97f4a7c15 * (uint64_t)(_i + 1);
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		random_item(&all[i]);
		random_item(&added[i]);
		all[i].generation = 2 * i + 1;
		added[i].generation = 2 * i + 2;
		all[i].availability = WEIGHT_READY;
	}
	put_items(all, ARRAY_LEN(all));
	sort_items(all, ARRAY_LEN(all));
	do {
		struct wms_page page;

		ck_assert_int_eq(list(token, 3, &page), 0);
		for (size_t i = 0; i < page.count; i++) {
			const struct weight_identity *id =
				&page.items[i]->identity;
			struct item at = { .generation = id->generation };

			(void)snprintf(at.revision, NAME_ROOM, "%s",
				       id->lineage.revision);
			ck_assert_int_lt(compare(&last, &at), 0);
			last = at;
			if (id->generation % 2 == 1)
				ck_assert_int_eq(compare(&all[seen++], &at), 0);
		}
		(void)snprintf(token, sizeof(token), "%s", page.next);
		/* One comes, one goes, which only is another state. */
		if (next < ARRAY_LEN(added))
			add(&added[next++]);
		ck_assert_int_eq(
			delete_begin(&page.items[0]->identity, 0, NULL, 50), 0);
		wms_page_release(&page);
	} while (token[0]);
	ck_assert_uint_eq(seen, ARRAY_LEN(all));
}
END_TEST

/* ---- What it costs ---- */

/* The most memory blocks that one page of 10 takes, out of so many. */
static long blocks_for_a_page(size_t count, const char *token)
{
	struct wms_page page;
	long blocks;

	(void)fault_peak();
	ck_assert_int_eq(list(token, 10, &page), 0);
	blocks = fault_peak();
	ck_assert_uint_eq(page.count, 10);
	ck_assert_uint_gt(count, 10);
	wms_page_release(&page);
	return blocks;
}

static void fill_run(size_t from, size_t to)
{
	struct item *all = calloc(to - from, sizeof(*all));

	ck_assert_ptr_nonnull(all);
	for (size_t i = from; i < to; i++) {
		char tail[TAIL + 1];

		(void)snprintf(tail, sizeof(tail), "%08zu", i);
		all[i - from].generation = 1;
		all[i - from].availability = WEIGHT_READY;
		long_item(&all[i - from], 420, tail);
	}
	put_items(all, to - from);
	free(all);
}

START_TEST(a_page_takes_memory_for_itself_only)
{
	struct item middle = { .generation = 1 };
	char token[WMS_PAGE_TOKEN_MAX + 1];
	long few, many;

	long_item(&middle, 420, "00000015");
	(void)snprintf(token, sizeof(token),
		       "%s\x1f"
		       "1",
		       middle.revision);
	fill_run(0, 30);
	few = blocks_for_a_page(30, "");
	ck_assert_int_eq(blocks_for_a_page(30, token), few);
	/* All of them have one key prefix, and are looked through. */
	fill_run(30, 3000);
	many = blocks_for_a_page(3000, "");
	ck_assert_int_eq(many, few);
	ck_assert_int_eq(blocks_for_a_page(3000, token), few);
	/* The items, one more, the one that is read, and what reading takes. */
	ck_assert_int_le(few, 10 + 1 + 1 + 8);
}
END_TEST

/* ---- Generations ---- */

START_TEST(generations_come_in_one_go)
{
	static struct item all[] = {
		{ "main", 1, WEIGHT_DELETED },
		{ "main", 2, WEIGHT_DELETING },
		{ "main", 9, WEIGHT_DEGRADED },
		{ "main", 10, WEIGHT_READY },
		{ "main", 256, WEIGHT_IMPORTING },
		{ "main", UINT64_MAX, WEIGHT_READY },
		{ "mai", 3, WEIGHT_READY },
		{ "main2", 4, WEIGHT_READY },
	};
	struct weight_lineage l = id_of(1).lineage;
	struct wms_generation got[8];
	size_t n = 99;

	put_items(all, ARRAY_LEN(all));
	ck_assert_int_eq(wms_generations(store, &l, 0, 8, got, &n), 0);
	ck_assert_uint_eq(n, 6);
	for (size_t i = 0; i < n; i++) {
		ck_assert_uint_eq(got[i].generation, all[i].generation);
		ck_assert_int_eq(got[i].availability, all[i].availability);
	}
	ck_assert_int_eq(wms_generations(store, &l, 2, 2, got, &n), 0);
	ck_assert_uint_eq(n, 2);
	ck_assert_uint_eq(got[0].generation, 9);
	ck_assert_uint_eq(got[1].generation, 10);
	ck_assert_int_eq(wms_generations(store, &l, 256, 8, got, &n), 0);
	ck_assert_uint_eq(n, 1);
	ck_assert_int_eq(wms_generations(store, &l, UINT64_MAX - 1, 8, got, &n),
			 0);
	ck_assert_uint_eq(n, 1);
	ck_assert_int_eq(wms_generations(store, &l, UINT64_MAX, 8, got, &n), 0);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(wms_generations(store, &l, 0, 0, got, &n), 0);
	ck_assert_uint_eq(n, 0);
	l.revision = "other";
	ck_assert_int_eq(wms_generations(store, &l, 0, 8, got, &n), 0);
	ck_assert_uint_eq(n, 0);
	l.revision = "";
	ck_assert_int_eq(wms_generations(store, &l, 0, 8, got, &n), -EINVAL);
}
END_TEST

/* One revision is cut where the other ends, so their keys begin alike. */
START_TEST(generations_of_others_are_told_apart)
{
	static struct item all[5];
	struct wms_generation got[8];
	struct weight_lineage l;
	size_t n;

	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		all[i].generation = 10 + i;
		all[i].availability = WEIGHT_READY;
		long_item(&all[i], i ? 450 : WMS_KEY_REVISION_MAX,
			  i < 3 ? "1" : "2");
	}
	put_items(all, ARRAY_LEN(all));
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		l = identity_of(&all[i]).lineage;
		ck_assert_int_eq(wms_generations(store, &l, 0, 8, got, &n), 0);
		ck_assert_uint_eq(n, i ? 2 : 1);
		ck_assert_uint_eq(got[0].generation, i < 1 ? 10 :
						     i < 3 ? 11 :
							     13);
	}
}
END_TEST

/* ---- What fails ---- */

static int garble_body(struct meta_txn *txn, void *arg)
{
	struct weight_identity id = id_of(2);
	struct wms_key key;

	(void)arg;
	ck_assert_int_eq(wms_key_of(&id, &key), 0);
	return meta_put(txn, META_DB_REVISION, key.bytes, key.len,
			"\1\0garbage", 9);
}

START_TEST(a_damaged_record_is_told)
{
	static struct item all[] = { { "main", 1, WEIGHT_READY },
				     { "main", 2, WEIGHT_READY },
				     { "main", 3, WEIGHT_READY },
				     { "main", 4, WEIGHT_READY } };
	struct weight_lineage l = id_of(1).lineage;
	struct wms_generation got[4];
	struct wms_page page;
	size_t n;

	put_items(all, ARRAY_LEN(all));
	meddle(garble_body, NULL);
	store = must_open();
	ck_assert_int_eq(list("", 10, &page), -EUCLEAN);
	ck_assert_int_eq(wms_generations(store, &l, 0, 4, got, &n), -EUCLEAN);
	/* Behind it, all is well. */
	ck_assert_int_eq(list("main\x1f"
			      "3",
			      10, &page),
			 0);
	ck_assert_uint_eq(page.count, 1);
	wms_page_release(&page);
	ck_assert_int_eq(wms_generations(store, &l, 2, 4, got, &n), 0);
	ck_assert_uint_eq(n, 2);
}
END_TEST

static int read_lists(void)
{
	struct weight_lineage l = id_of(1).lineage;
	struct wms_generation got[8];
	struct wms_page page;
	size_t n;
	int r = list("", 2, &page);

	if (r < 0)
		return r;
	wms_page_release(&page);
	return wms_generations(store, &l, 0, 8, got, &n);
}

START_TEST(every_allocation_may_fail)
{
	static struct item all[5];

	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		all[i].generation = 1 + i;
		all[i].availability = WEIGHT_READY;
		(void)snprintf(all[i].revision, NAME_ROOM, "main");
		if (i > 2)
			long_item(&all[i], 500, "x");
	}
	put_items(all, ARRAY_LEN(all));
	fault_sweep(read_lists);
}
END_TEST

static void add_others(Suite *s)
{
	TCase *tc = tcase_create("generations");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, generations_come_in_one_go);
	tcase_add_test(tc, generations_of_others_are_told_apart);
	tcase_add_test(tc, a_damaged_record_is_told);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
}

Suite *suite(void)
{
	Suite *s = suite_create("weight_metadata_list");
	TCase *tc = tcase_create("pages");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, an_empty_list_has_one_empty_page);
	tcase_add_test(tc, a_list_is_in_order_of_bytes_and_numbers);
	tcase_add_test(tc, names_that_share_a_key_are_in_order_too);
	tcase_add_loop_test(tc, any_list_comes_page_by_page, 0, 4);
	tcase_add_test(tc, a_page_begins_behind_its_token);
	tcase_add_test(tc, a_page_has_a_limit);
	tcase_add_test(tc, what_is_listed_is_named_in_full);
	tcase_add_loop_test(tc, a_token_that_nobody_gave_is_refused, 0,
			    ARRAY_LEN(bad_tokens));
	tcase_add_test(tc, a_token_may_be_so_long);
	tcase_add_loop_test(tc, pages_go_on_while_the_list_changes, 0, 3);
	tcase_add_test(tc, a_page_takes_memory_for_itself_only);
	suite_add_tcase(s, tc);
	add_others(s);
	return s;
}
