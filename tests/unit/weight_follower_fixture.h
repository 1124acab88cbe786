/* SPDX-License-Identifier: Apache-2.0 */
/* A store, and another one that follows its log. */
#ifndef TESTS_UNIT_WEIGHT_FOLLOWER_FIXTURE_H
#define TESTS_UNIT_WEIGHT_FOLLOWER_FIXTURE_H

#include <check.h>
#include <stdio.h>
#include <unistd.h>

#include "weight_metadata_dump.h"
#include "weight_metadata_fixture.h"

static char other_dir[64]; /* of who follows */
static struct weight_metadata_store *follower;

static inline struct weight_metadata_store *open_in(const char *directory)
{
	struct weight_metadata_store *s = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;

	ck_assert_msg(wms_open(directory, &s, &why) == 0, "%s", why.data);
	return s;
}

static inline void setup_both(void)
{
	setup();
	wms_close(take_ptr(store));
	(void)snprintf(other_dir, sizeof(other_dir), "%s", dir);
	setup();
	follower = open_in(other_dir);
}

static inline void teardown_both(void)
{
	wms_close(take_ptr(follower));
	teardown();
	(void)snprintf(dir, sizeof(dir), "%s", other_dir);
	empty_dir();
	(void)rmdir(dir);
}

static inline uint64_t next_of(struct weight_metadata_store *s)
{
	struct wms_oplog_state state;

	ck_assert_int_eq(wms_oplog_state(s, &state), 0);
	return state.next;
}

/* Everything that is in the log and not there yet. */
static inline void follow(void)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	uint64_t end = next_of(store);

	for (uint64_t at = next_of(follower); at < end; at++) {
		cleanup(buf_release) struct buf bytes = BUF_INIT;
		int r;

		ck_assert_int_eq(wms_oplog_get(store, at, &bytes), 0);
		r = wms_replay(follower, bytes.data, bytes.len, &why);
		ck_assert_msg(r == 0, "entry %llu: %d, %s",
			      (unsigned long long)at, r, why.data);
	}
}

static inline void assert_sound(struct weight_metadata_store *s)
{
	ck_assert_msg(check_store(s) == 0, "%s", found_wrong);
}

/* Both have the same, but for what is each one's own. */
static inline void assert_same(void)
{
	cleanup(buf_release) struct buf ours = BUF_INIT;
	cleanup(buf_release) struct buf theirs = BUF_INIT;

	assert_sound(store);
	assert_sound(follower);
	wms_close(take_ptr(store));
	wms_close(take_ptr(follower));
	ck_assert_int_eq(dump_metadata(dir, false, &ours), 0);
	ck_assert_int_eq(dump_metadata(other_dir, false, &theirs), 0);
	store = open_in(dir);
	follower = open_in(other_dir);
	ck_assert_str_eq(ours.data, theirs.data);
}

#endif
