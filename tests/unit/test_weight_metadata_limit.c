/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata at its limit: publishing stops and says so, readers and removals go
 * on for as long as they like, and nothing is lost.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "suite.h"
#include "weight_metadata_fixture.h"

#define LIMIT ((size_t)1 << 20)
/* Of one reader after the other, with a name that makes much of each. */
#define LEASES 1800
#define HOLDER_LEN 1000

static void reopen_within(size_t limit)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	int r;

	wms_close(take_ptr(store));
	r = wms_open_within(dir, limit, &store, &why);
	ck_assert_msg(r == 0, "%d: %s", r, why.data);
}

/* Stages and publishes; the first one that finds no room ends it. */
static int put_one(const struct weight_identity *id)
{
	int r = wms_stage(store, id, 10, NULL);

	if (r == 0)
		r = publish(store, id, 20, NULL);
	return r;
}

static uint64_t fill(uint64_t from)
{
	struct weight_identity id = id_of(from);
	int r;

	while ((r = put_one(&id)) == 0)
		id.generation++;
	ck_assert_int_eq(r, -ENOSPC);
	return id.generation - 1;
}

static void all_are_ready(uint64_t first, uint64_t last)
{
	struct weight_identity id = id_of(first);

	for (; id.generation <= last; id.generation++)
		ck_assert_int_eq(availability_of(&id), WEIGHT_READY);
	ck_assert_msg(check_store(store) == 0, "%s", found_wrong);
}

static void lease_and_release(const struct weight_identity *id, uint64_t now_ms)
{
	char holder[HOLDER_LEN + 1];
	struct weight_lease_request rq = { .holder = holder, .ttl_ms = 10 };
	struct weight_lease *l = NULL;
	int r;

	memset(holder, 'h', HOLDER_LEN);
	holder[HOLDER_LEN] = '\0';
	r = wms_lease_acquire(store, id, &rq, now_ms, &l);

	ck_assert_msg(r == 0, "lease at %llu: %d", (unsigned long long)now_ms,
		      r);
	r = wms_lease_release(store, "default", l->lease_id);
	ck_assert_msg(r == 0, "release at %llu: %d", (unsigned long long)now_ms,
		      r);
	weight_lease_free(l);
}

START_TEST(the_limit_is_said)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_identity id;
	uint64_t last;

	reopen_within(LIMIT);
	last = fill(1);
	ck_assert_uint_gt(last, 50);
	id = id_of(last + 2);
	ck_assert_int_eq(put_one(&id), -ENOSPC);
	ck_assert_int_eq(wms_say_no_room(store, -ENOSPC, &why), -ENOSPC);
	ck_assert_ptr_nonnull(strstr(why.data, "limit of 1 MiB"));
	ck_assert_ptr_nonnull(strstr(why.data, "metadata_limit"));
	/* Whoever has said more is right, and others are none of it. */
	ck_assert_int_eq(wms_say_no_room(store, -ENOSPC, &why), -ENOSPC);
	ck_assert_int_eq(wms_say_no_room(store, -EIO, NULL), -EIO);
	ck_assert_ptr_null(strchr(why.data, '\n'));
	all_are_ready(1, last);
}
END_TEST

START_TEST(readers_and_removals_go_on_at_the_limit)
{
	struct weight_identity id = id_of(1);
	struct wms_oplog_state log;
	uint64_t last;

	reopen_within(LIMIT);
	last = fill(1);
	for (uint64_t i = 0; i < LEASES; i++)
		lease_and_release(&id, 1000 + i);
	ck_assert_int_eq(wms_oplog_state(store, &log), 0);
	all_are_ready(1, last);
	/* Also after a start, which is at the limit from the beginning. */
	reopen_within(LIMIT);
	for (uint64_t i = 0; i < 200; i++)
		lease_and_release(&id, 100000 + i);
	for (; id.generation <= last; id.generation++) {
		ck_assert_int_eq(delete_begin(&id, 0, NULL, 200000), 0);
		ck_assert_int_eq(wms_delete_finish(store, &id, 0, 200001, NULL),
				 0);
	}
	ck_assert_msg(check_store(store) == 0, "%s", found_wrong);
}
END_TEST

/* Where nothing was ever refused, and readers alone have used up the room. */
START_TEST(the_log_gives_way_to_readers)
{
	struct weight_identity id = id_of(1);
	struct wms_oplog_state log;

	reopen_within(LIMIT);
	stage_and_publish(&id);
	for (uint64_t i = 0; i < LEASES; i++)
		lease_and_release(&id, 1000 + i);
	ck_assert_int_eq(wms_oplog_state(store, &log), 0);
	ck_assert_uint_eq(log.next, 2 * LEASES + 2);
	ck_assert_uint_gt(log.first, 2);
	all_are_ready(1, 1);
	/* Publishing, which may not have what is kept for others, has room. */
	(void)wms_stage(store, &id, 10, NULL);
	id.generation = 2;
	(void)put_one(&id);
	for (uint64_t i = 0; i < 500; i++)
		lease_and_release(&id, 100000 + i);
	id.generation = 3;
	ck_assert_int_eq(put_one(&id), 0);
}
END_TEST

/* Who follows a log needs all of it: then leases are refused at last. */
START_TEST(a_log_that_is_followed_stays)
{
	struct wms_options options = {
		.replicated = true,
		.confirms_management = true,
		.oplog_keep = 100000,
	};
	struct weight_lease_request rq = { .ttl_ms = 10 };
	struct weight_identity id = id_of(1);
	struct weight_lease *l = NULL;
	struct wms_oplog_state log;
	char holder[HOLDER_LEN + 1];
	int r = 0;

	reopen_within(LIMIT);
	stage_and_publish(&id);
	wms_configure(store, &options);
	memset(holder, 'h', HOLDER_LEN);
	holder[HOLDER_LEN] = '\0';
	rq.holder = holder;
	for (uint64_t i = 0; r == 0 && i < LEASES; i++) {
		r = wms_lease_acquire(store, &id, &rq, 1000 + 20 * i, &l);
		if (r == 0)
			weight_lease_free(l);
	}
	ck_assert_int_eq(r, -ENOSPC);
	ck_assert_int_eq(wms_oplog_state(store, &log), 0);
	ck_assert_uint_eq(log.first, 1);
	all_are_ready(1, 1);
}
END_TEST

/* With a higher limit it goes on where it was; with a lower one it stays. */
START_TEST(another_limit_is_taken_at_the_next_start)
{
	struct weight_identity id;
	uint64_t last, more;

	reopen_within(LIMIT);
	last = fill(1);
	reopen_within(2 * LIMIT);
	/* What may have been staged when there was no room. */
	id = id_of(last + 1);
	(void)wms_stage(store, &id, 10, NULL);
	ck_assert_int_eq(publish(store, &id, 20, NULL), 0);
	more = fill(last + 2);
	ck_assert_uint_gt(more, last + 50);
	reopen_within(LIMIT);
	all_are_ready(1, more);
	id = id_of(more + 2);
	ck_assert_int_eq(put_one(&id), -ENOSPC);
	id = id_of(1);
	for (uint64_t i = 0; i < 2000; i++)
		lease_and_release(&id, 1000 + i);
	id = id_of(more + 2);
	reopen();
	all_are_ready(1, more);
	(void)wms_stage(store, &id, 10, NULL);
	ck_assert_int_eq(publish(store, &id, 20, NULL), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_metadata_limit");
	TCase *tc = tcase_create("core");

	tcase_set_timeout(tc, 100);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, the_limit_is_said);
	tcase_add_test(tc, readers_and_removals_go_on_at_the_limit);
	tcase_add_test(tc, the_log_gives_way_to_readers);
	tcase_add_test(tc, a_log_that_is_followed_stays);
	tcase_add_test(tc, another_limit_is_taken_at_the_next_start);
	suite_add_tcase(s, tc);
	return s;
}
