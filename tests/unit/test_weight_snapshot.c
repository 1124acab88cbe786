/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/weight_snapshot.h"
#include "fault.h"
#include "suite.h"
#include "weight_snapshot_fixture.h"

/* ---- What is there comes back ---- */

static void begin_reading(int fd, struct weight_snapshot_head *head,
			  struct weight_snapshot_reader **ret)
{
	struct buf why = BUF_INIT;

	ck_assert_int_eq(lseek(fd, 0, SEEK_SET), 0);
	ck_assert_int_eq(weight_snapshot_read_begin(fd, head, ret, &why), 0);
}

static struct weight_snapshot_item next(struct weight_snapshot_reader *r,
					enum weight_snapshot_kind kind)
{
	struct weight_snapshot_item item;
	struct buf why = BUF_INIT;

	ck_assert_int_eq(weight_snapshot_read_next(r, &item, &why), 0);
	ck_assert_int_eq((int)item.kind, (int)kind);
	ck_assert((kind == WEIGHT_SNAPSHOT_METADATA) == !!item.metadata);
	ck_assert((kind == WEIGHT_SNAPSHOT_LEASE) == !!item.lease);
	ck_assert((kind == WEIGHT_SNAPSHOT_OPERATION) == !!item.operation);
	ck_assert((kind == WEIGHT_SNAPSHOT_LINEAGE) == !!item.lineage);
	return item;
}

static void expect_revisions(struct weight_snapshot_reader *r)
{
	struct weight_snapshot_item item = next(r, WEIGHT_SNAPSHOT_METADATA);

	ck_assert_int_eq((int)item.metadata->availability, WEIGHT_IMPORTING);
	weight_snapshot_item_release(&item);
	ck_assert_ptr_null(item.metadata);
	item = next(r, WEIGHT_SNAPSHOT_METADATA);
	ck_assert_uint_eq(item.metadata->identity.generation, 7);
	ck_assert_uint_eq(item.metadata->metadata_generation, 4);
	ck_assert_uint_eq(item.metadata->operation_id, 3);
	weight_snapshot_item_release(&item);
}

static void expect_lease_and_operations(struct weight_snapshot_reader *r)
{
	struct weight_snapshot_item item = next(r, WEIGHT_SNAPSHOT_LEASE);

	ck_assert_uint_eq(item.lease->lease_id, 5);
	ck_assert_uint_eq(item.lease->fenced_metadata_generation, 2);
	ck_assert_str_eq(item.lease->holder, "mount:1");
	weight_snapshot_item_release(&item);
	item = next(r, WEIGHT_SNAPSHOT_OPERATION);
	ck_assert_uint_eq(item.operation->operation_id, 2);
	ck_assert(weight_operation_is_over(item.operation));
	weight_snapshot_item_release(&item);
	item = next(r, WEIGHT_SNAPSHOT_OPERATION);
	ck_assert_uint_eq(item.operation->operation_id, 3);
	ck_assert_uint_eq(item.operation->processed_bytes, 300);
	weight_snapshot_item_release(&item);
}

static void expect_lineages(struct weight_snapshot_reader *r)
{
	struct weight_snapshot_item item = next(r, WEIGHT_SNAPSHOT_LINEAGE);

	ck_assert_str_eq(item.lineage->claim.request_id, "request");
	ck_assert_uint_eq(item.lineage->watermark, 7);
	weight_snapshot_item_release(&item);
	item = next(r, WEIGHT_SNAPSHOT_LINEAGE);
	ck_assert(!item.lineage->claimed);
	weight_snapshot_item_release(&item);
}

/* StandbyMetadataStore.WeightMetadataSnapshotRoundTripsCompleteState */
START_TEST(everything_comes_back_as_it_was)
{
	cleanup(weight_snapshot_reader_free_cleanup) struct
		weight_snapshot_reader *r = NULL;
	auto_fd int fd = memory_file();
	struct weight_snapshot_head head;

	ck_assert_int_eq(write_whole(fd, &whole_head), 0);
	begin_reading(fd, &head, &r);
	ck_assert_uint_eq(head.schema_version, 3);
	ck_assert_uint_eq(head.cursor, 1234);
	ck_assert_uint_eq(head.next_lease_id, 6);
	ck_assert_uint_eq(head.next_operation_id, 4);
	expect_revisions(r);
	expect_lease_and_operations(r);
	expect_lineages(r);
	(void)next(r, WEIGHT_SNAPSHOT_END);
	(void)next(r, WEIGHT_SNAPSHOT_END);
}
END_TEST

/* MasterSnapshotCodec.OldSnapshotWithoutWeightMetadataRestoresEmpty */
START_TEST(an_old_one_has_no_lineages)
{
	cleanup(weight_snapshot_reader_free_cleanup) struct
		weight_snapshot_reader *r = NULL;
	struct weight_snapshot_head old = whole_head;
	auto_fd int fd = memory_file();
	struct weight_snapshot_head head;

	old.schema_version = 2;
	ck_assert_int_eq(write_whole(fd, &old), 0);
	begin_reading(fd, &head, &r);
	ck_assert_uint_eq(head.schema_version, 2);
	expect_revisions(r);
	expect_lease_and_operations(r);
	(void)next(r, WEIGHT_SNAPSHOT_END);
}
END_TEST

START_TEST(one_of_nothing_comes_back)
{
	cleanup(weight_snapshot_writer_free_cleanup) struct
		weight_snapshot_writer *w = NULL;
	cleanup(weight_snapshot_reader_free_cleanup) struct
		weight_snapshot_reader *r = NULL;
	const struct weight_snapshot_head first = {
		.schema_version = WEIGHT_SNAPSHOT_SCHEMA,
		.next_lease_id = 1,
		.next_operation_id = 1,
	};
	auto_fd int fd = memory_file();
	struct weight_snapshot_head head;

	ck_assert_int_eq(weight_snapshot_write_begin(fd, &first, &w), 0);
	ck_assert_int_eq(weight_snapshot_write_end(w), 0);
	begin_reading(fd, &head, &r);
	ck_assert_uint_eq(head.cursor, 0);
	(void)next(r, WEIGHT_SNAPSHOT_END);
}
END_TEST

/* More than fits in a window, so that records lie across its end. */
START_TEST(a_long_one_comes_back)
{
	cleanup(weight_snapshot_writer_free_cleanup) struct
		weight_snapshot_writer *w = NULL;
	auto_fd int fd = memory_file();
	struct weight_lease lease = demo_lease();
	struct weight_snapshot_head head;
	struct tally t = { { 0 } };

	ck_assert_int_eq(weight_snapshot_write_begin(fd, &whole_head, &w), 0);
	for (uint64_t id = 1; id <= 3000; id++) {
		lease.lease_id = id;
		ck_assert_int_eq(weight_snapshot_write_lease(w, &lease), 0);
	}
	ck_assert_int_eq(weight_snapshot_write_end(w), 0);
	ck_assert_int_gt(lseek(fd, 0, SEEK_CUR), 200000);
	ck_assert_int_eq(lseek(fd, 0, SEEK_SET), 0);
	ck_assert_int_eq(read_whole(fd, &head, &t), 0);
	ck_assert_uint_eq(t.counts[WEIGHT_SNAPSHOT_LEASE], 3000);
}
END_TEST

START_TEST(the_same_gives_the_same_bytes)
{
	cleanup(buf_release) struct buf a = BUF_INIT;
	cleanup(buf_release) struct buf b = BUF_INIT;

	whole_bytes(&whole_head, &a);
	whole_bytes(&whole_head, &b);
	ck_assert_uint_eq(a.len, b.len);
	ck_assert_mem_eq(a.data, b.data, a.len);
}
END_TEST

/* What is on disks can't change by accident. */
START_TEST(the_layout_is_fixed)
{
	static const char expected[] =
		"wfsnap\r\n\x03\0\0\0\0\0\0\0"
		"\x08\x07\x06\x05\x04\x03\x02\x01"
		"\x06\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0"
		"\x02\x33\0\0\0"
		"\x01\0\0\0\x05\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0"
		"\x02\0\0\0\0\0\0\0"
		"\x01\0t\x01\0n\x01\0r\x01\0v\x01\0\0\0\0\0\0\0\x01\0h"
		"\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"
		"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
		"\x3f\xcf\x8b\x52\x41\x37\x9a\xf5\x39\x64\xc4\xe4"
		"\x7e\x38\x97\x60\x18\x8e\x92\xdb\xbc\x16\xd9\x20"
		"\xfd\xc9\x77\xb4\x2b\x44\x6a\x6a";
	cleanup(weight_snapshot_writer_free_cleanup) struct
		weight_snapshot_writer *w = NULL;
	cleanup(buf_release) struct buf b = BUF_INIT;
	struct weight_snapshot_head head = whole_head;
	const struct weight_lease lease = {
		.lease_id = 5,
		.identity = { { "t", "n", "r", "v" }, 1 },
		.holder = "h",
		.expires_at_ms = 9,
		.fenced_metadata_generation = 2,
	};
	auto_fd int fd = memory_file();

	head.cursor = 0x0102030405060708;
	ck_assert_int_eq(weight_snapshot_write_begin(fd, &head, &w), 0);
	ck_assert_int_eq(weight_snapshot_write_lease(w, &lease), 0);
	ck_assert_int_eq(weight_snapshot_write_end(w), 0);
	file_bytes(fd, &b);
	ck_assert_uint_eq(b.len, sizeof(expected) - 1);
	ck_assert_mem_eq(b.data, expected, b.len);
}
END_TEST

/* It begins where the descriptor is, and leaves it where it ends. */
START_TEST(the_descriptor_is_where_the_stream_is)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	auto_fd int fd = file_with("before", 6);
	struct weight_snapshot_head head;
	struct tally t = { { 0 } };

	ck_assert_int_eq(lseek(fd, 6, SEEK_SET), 6);
	ck_assert_int_eq(write_whole(fd, &whole_head), 0);
	file_bytes(fd, &b);
	ck_assert_int_eq(lseek(fd, 0, SEEK_CUR), (off_t)b.len);
	ck_assert_int_eq(lseek(fd, 6, SEEK_SET), 6);
	ck_assert_int_eq(read_whole(fd, &head, &t), 0);
	ck_assert_int_eq(lseek(fd, 0, SEEK_CUR), (off_t)b.len);
}
END_TEST

/* Each packet ends a read, however much was asked for. */
START_TEST(short_reads_are_no_end)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	struct weight_snapshot_head head;
	struct tally t = { { 0 } };
	int pair[2];

	whole_bytes(&whole_head, &b);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	for (size_t at = 0; at < b.len; at += 37) {
		size_t n = b.len - at < 37 ? b.len - at : 37;

		ck_assert_int_eq(send(pair[1], b.data + at, n, MSG_DONTWAIT),
				 (ssize_t)n);
	}
	(void)close(pair[1]);
	ck_assert_int_eq(read_whole(pair[0], &head, &t), 0);
	ck_assert_uint_eq(t.counts[WEIGHT_SNAPSHOT_LINEAGE], 2);
	(void)close(pair[0]);
}
END_TEST

/* ---- What is not written ---- */

/* clang-format off */
static const struct weight_snapshot_head bad_heads[] = {
	{ 0, 1, 1, 1 }, { 1, 1, 1, 1 }, { 4, 1, 1, 1 }, { 3, 1, 0, 1 },
	{ 3, 1, 1, 0 },
};
/* clang-format on */

START_TEST(a_bad_head_is_not_written)
{
	struct weight_snapshot_writer *w = NULL;
	auto_fd int fd = memory_file();

	ck_assert_int_eq(weight_snapshot_write_begin(fd, &bad_heads[_i], &w),
			 -EINVAL);
	ck_assert_ptr_null(w);
	ck_assert_int_eq(lseek(fd, 0, SEEK_CUR), 0);
}
END_TEST

static int write_kind(struct weight_snapshot_writer *w, int kind)
{
	const struct weight_metadata metadata = demo_metadata();
	const struct weight_lease lease = demo_lease();
	const struct weight_operation operation = demo_operation();
	const struct weight_lineage_record lineage = demo_lineage();

	return kind == WEIGHT_SNAPSHOT_METADATA ?
		       weight_snapshot_write_metadata(w, &metadata) :
	       kind == WEIGHT_SNAPSHOT_LEASE ?
		       weight_snapshot_write_lease(w, &lease) :
	       kind == WEIGHT_SNAPSHOT_OPERATION ?
		       weight_snapshot_write_operation(w, &operation) :
		       weight_snapshot_write_lineage(w, &lineage);
}

START_TEST(kinds_are_written_in_their_order)
{
	for (int first = 1; first <= 4; first++)
		for (int second = 1; second <= 4; second++) {
			cleanup(weight_snapshot_writer_free_cleanup) struct
				weight_snapshot_writer *w = NULL;
			struct weight_snapshot_head head = whole_head;
			int fits = second >= first ? 0 : -EINVAL;
			auto_fd int fd = memory_file();

			ck_assert_int_eq(
				weight_snapshot_write_begin(fd, &head, &w), 0);
			ck_assert_int_eq(write_kind(w, first), 0);
			ck_assert_int_eq(write_kind(w, second), fits);
			/* What was refused left nothing behind. */
			ck_assert_int_eq(weight_snapshot_write_end(w), 0);
			ck_assert_int_eq(lseek(fd, 0, SEEK_SET), 0);
			ck_assert_int_eq(
				read_whole(fd, &head, &(struct tally){ { 0 } }),
				0);
		}
}
END_TEST

START_TEST(schema_2_takes_no_lineage)
{
	cleanup(weight_snapshot_writer_free_cleanup) struct
		weight_snapshot_writer *w = NULL;
	struct weight_snapshot_head old = whole_head;
	auto_fd int fd = memory_file();

	old.schema_version = 2;
	ck_assert_int_eq(weight_snapshot_write_begin(fd, &old, &w), 0);
	ck_assert_int_eq(write_kind(w, WEIGHT_SNAPSHOT_LINEAGE), -EINVAL);
	ck_assert_int_eq(weight_snapshot_write_end(w), 0);
}
END_TEST

START_TEST(invalid_records_are_not_written)
{
	cleanup(weight_snapshot_writer_free_cleanup) struct
		weight_snapshot_writer *w = NULL;
	struct weight_metadata metadata = demo_metadata();
	struct weight_lease lease = demo_lease();
	struct weight_operation operation = demo_operation();
	struct weight_lineage_record lineage = demo_lineage();
	struct weight_snapshot_head head;
	auto_fd int fd = memory_file();
	struct tally t = { { 0 } };

	metadata.observed_hot_ratio = 2;
	lease.lease_id = 0;
	operation.operation_id = 0;
	lineage.watermark = 0;
	ck_assert_int_eq(weight_snapshot_write_begin(fd, &whole_head, &w), 0);
	ck_assert_int_eq(weight_snapshot_write_metadata(w, &metadata), -EINVAL);
	ck_assert_int_eq(weight_snapshot_write_lease(w, &lease), -EINVAL);
	ck_assert_int_eq(weight_snapshot_write_operation(w, &operation),
			 -EINVAL);
	ck_assert_int_eq(weight_snapshot_write_lineage(w, &lineage), -EINVAL);
	ck_assert_int_eq(write_records(w, true), 0);
	ck_assert_int_eq(lseek(fd, 0, SEEK_SET), 0);
	ck_assert_int_eq(read_whole(fd, &head, &t), 0);
}
END_TEST

START_TEST(nothing_is_written_behind_the_end)
{
	cleanup(weight_snapshot_writer_free_cleanup) struct
		weight_snapshot_writer *w = NULL;
	auto_fd int fd = memory_file();
	off_t size;

	ck_assert_int_eq(weight_snapshot_write_begin(fd, &whole_head, &w), 0);
	ck_assert_int_eq(write_records(w, true), 0);
	size = lseek(fd, 0, SEEK_CUR);
	ck_assert_int_eq(write_kind(w, WEIGHT_SNAPSHOT_LINEAGE), -EINVAL);
	ck_assert_int_eq(weight_snapshot_write_end(w), -EINVAL);
	ck_assert_int_eq(lseek(fd, 0, SEEK_CUR), size);
}
END_TEST

/* ---- Disks and memory ---- */

START_TEST(a_full_disk_is_noticed_at_the_end)
{
	cleanup(weight_snapshot_writer_free_cleanup) struct
		weight_snapshot_writer *w = NULL;
	auto_fd int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(weight_snapshot_write_begin(fd, &whole_head, &w), 0);
	ck_assert_int_eq(write_records(w, true), -ENOSPC);
	ck_assert_int_eq(write_kind(w, WEIGHT_SNAPSHOT_LINEAGE), -ENOSPC);
	ck_assert_int_eq(weight_snapshot_write_end(w), -ENOSPC);
}
END_TEST

/* The file ends in the middle of a window: a short write, then the error. */
START_TEST(a_short_write_is_noticed)
{
	cleanup(weight_snapshot_writer_free_cleanup) struct
		weight_snapshot_writer *w = NULL;
	const struct rlimit limit = { 100000, 100000 };
	auto_fd int fd = memory_file();
	int r = 0;

	(void)signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	ck_assert_int_eq(weight_snapshot_write_begin(fd, &whole_head, &w), 0);
	for (unsigned i = 0; r == 0 && i < 5000; i++)
		r = write_kind(w, WEIGHT_SNAPSHOT_LEASE);
	ck_assert_int_eq(r, -EFBIG);
	ck_assert_int_eq(write_kind(w, WEIGHT_SNAPSHOT_LEASE), -EFBIG);
	ck_assert_int_eq(weight_snapshot_write_end(w), -EFBIG);
	ck_assert_int_eq(lseek(fd, 0, SEEK_CUR), 100000);
}
END_TEST

START_TEST(what_cant_be_read_is_no_damage)
{
	auto_fd int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	auto_fd int dir = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct weight_snapshot_head head;
	struct tally t = { { 0 } };

	ck_assert_int_eq(read_whole(fd, &head, &t), -EIO);
	ck_assert_int_eq(read_whole(dir, &head, &t), -EIO);
}
END_TEST

static int swept_fd;

static int write_it(void)
{
	return write_whole(swept_fd, &whole_head);
}

static int read_all(struct weight_snapshot_reader *r)
{
	struct weight_snapshot_item item;
	bool more = true;

	while (more) {
		int err = weight_snapshot_read_next(r, &item, NULL);

		if (err < 0)
			return err;
		more = item.kind != WEIGHT_SNAPSHOT_END;
		weight_snapshot_item_release(&item);
	}
	return 0;
}

static int read_it(void)
{
	cleanup(weight_snapshot_reader_free_cleanup) struct
		weight_snapshot_reader *r = NULL;
	struct weight_snapshot_head head;
	int err;

	if (lseek(swept_fd, 0, SEEK_SET) != 0)
		return -EIO;
	err = weight_snapshot_read_begin(swept_fd, &head, &r, NULL);
	return err < 0 ? err : read_all(r);
}

START_TEST(every_allocation_may_fail)
{
	auto_fd int fd = memory_file();
	auto_fd int sink = open("/dev/null", O_WRONLY | O_CLOEXEC);

	swept_fd = sink;
	fault_sweep(write_it);
	ck_assert_int_eq(write_whole(fd, &whole_head), 0);
	swept_fd = fd;
	fault_sweep(read_it);
}
END_TEST

START_TEST(freeing_nothing_is_fine)
{
	struct weight_snapshot_item nothing = { .kind = WEIGHT_SNAPSHOT_END };

	weight_snapshot_writer_free(NULL);
	weight_snapshot_reader_free(NULL);
	weight_snapshot_item_release(&nothing);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_snapshot");
	TCase *tc = tcase_create("core");

	tcase_add_test(tc, everything_comes_back_as_it_was);
	tcase_add_test(tc, an_old_one_has_no_lineages);
	tcase_add_test(tc, one_of_nothing_comes_back);
	tcase_add_test(tc, a_long_one_comes_back);
	tcase_add_test(tc, the_same_gives_the_same_bytes);
	tcase_add_test(tc, the_layout_is_fixed);
	tcase_add_test(tc, the_descriptor_is_where_the_stream_is);
	tcase_add_test(tc, short_reads_are_no_end);
	tcase_add_loop_test(tc, a_bad_head_is_not_written, 0,
			    (int)ARRAY_LEN(bad_heads));
	tcase_add_test(tc, kinds_are_written_in_their_order);
	tcase_add_test(tc, schema_2_takes_no_lineage);
	tcase_add_test(tc, invalid_records_are_not_written);
	tcase_add_test(tc, nothing_is_written_behind_the_end);
	tcase_add_test(tc, a_full_disk_is_noticed_at_the_end);
	tcase_add_test(tc, a_short_write_is_noticed);
	tcase_add_test(tc, what_cant_be_read_is_no_damage);
	tcase_add_test(tc, every_allocation_may_fail);
	tcase_add_test(tc, freeing_nothing_is_fine);
	suite_add_tcase(s, tc);
	return s;
}
