/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot with something of each kind, in memory, to be changed by hand. */
#ifndef TESTS_UNIT_WEIGHT_SNAPSHOT_FIXTURE_H
#define TESTS_UNIT_WEIGHT_SNAPSHOT_FIXTURE_H

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/digest.h"
#include "core/util.h"
#include "core/weight_snapshot.h"
#include "weight_log_fixture.h"

/* Where things are in the file; the header says so. */
#define AT_SCHEMA 8
#define AT_ZERO 12
#define AT_NEXT_LEASE 24
#define AT_NEXT_OPERATION 32
#define AT_ITEMS 40
#define ITEM_HEAD_LEN 5
#define COUNTS_LEN 32
#define TAIL_LEN (1 + COUNTS_LEN + DIGEST_LEN)

/* Lease 5 with fence 2 at generation 4, operation 3: next are 6 and 4. */
static const struct weight_snapshot_head whole_head = {
	.schema_version = WEIGHT_SNAPSHOT_SCHEMA,
	.cursor = 1234,
	.next_lease_id = 6,
	.next_operation_id = 4,
};

static inline struct weight_operation demo_over(void)
{
	struct weight_operation op = demo_operation();

	op.operation_id = 2;
	op.fenced_metadata_generation = 3;
	op.cursor = "";
	op.message = WEIGHT_OPERATION_SUPERSEDED;
	return op;
}

static inline struct weight_lineage_record demo_unclaimed(void)
{
	return (struct weight_lineage_record){
		.lineage = { "default", "default", "demo", "other" },
		.lineage_metadata_generation = 1,
		.watermark = 3,
	};
}

/* All records of a whole snapshot, but the lineages where there are none. */
static inline int write_records(struct weight_snapshot_writer *w,
				bool has_lineages)
{
	const struct weight_metadata metadata = demo_metadata();
	const struct weight_metadata import = demo_import();
	const struct weight_operation operation = demo_operation();
	const struct weight_operation over = demo_over();
	const struct weight_lease lease = demo_lease();
	const struct weight_lineage_record lineage = demo_lineage();
	const struct weight_lineage_record unclaimed = demo_unclaimed();
	int r;

	if ((r = weight_snapshot_write_metadata(w, &import)) < 0 ||
	    (r = weight_snapshot_write_metadata(w, &metadata)) < 0 ||
	    (r = weight_snapshot_write_lease(w, &lease)) < 0 ||
	    (r = weight_snapshot_write_operation(w, &over)) < 0 ||
	    (r = weight_snapshot_write_operation(w, &operation)) < 0)
		return r;
	if (has_lineages &&
	    ((r = weight_snapshot_write_lineage(w, &lineage)) < 0 ||
	     (r = weight_snapshot_write_lineage(w, &unclaimed)) < 0))
		return r;
	return weight_snapshot_write_end(w);
}

/* Writes the whole of it to fd. */
static inline int write_whole(int fd, const struct weight_snapshot_head *head)
{
	cleanup(weight_snapshot_writer_free_cleanup) struct
		weight_snapshot_writer *w = NULL;
	int r = weight_snapshot_write_begin(fd, head, &w);

	return r < 0 ? r :
		       write_records(w, head->schema_version >=
						WEIGHT_SNAPSHOT_SCHEMA);
}

static inline int memory_file(void)
{
	int fd = memfd_create("snapshot", MFD_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	return fd;
}

/* Everything that is in fd. */
static inline void file_bytes(int fd, struct buf *ret)
{
	off_t size = lseek(fd, 0, SEEK_END);
	auto_free char *bytes = malloc((size_t)size + 1);

	ck_assert(size >= 0 && bytes);
	ck_assert_int_eq(pread(fd, bytes, (size_t)size, 0), size);
	ck_assert_int_eq(buf_append(ret, bytes, (size_t)size), 0);
}

static inline void whole_bytes(const struct weight_snapshot_head *head,
			       struct buf *ret)
{
	auto_fd int fd = memory_file();

	ck_assert_int_eq(write_whole(fd, head), 0);
	file_bytes(fd, ret);
}

/* Makes the digest at the end of changed bytes right again. */
static inline void seal(struct buf *b)
{
	size_t covered = b->len - DIGEST_LEN;
	struct digest d;

	ck_assert_int_eq(digest_of(b->data, covered, &d), 0);
	memcpy(b->data + covered, d.bytes, DIGEST_LEN);
}

/* What was found of each kind before the end, or before the error. */
struct tally {
	size_t counts[WEIGHT_SNAPSHOT_LINEAGE + 1];
};

/* Reads to the end. Sentences come with errors, and only with them. */
static inline int read_whole(int fd, struct weight_snapshot_head *ret_head,
			     struct tally *ret)
{
	cleanup(weight_snapshot_reader_free_cleanup) struct
		weight_snapshot_reader *r = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_snapshot_item item = { .kind = 77 };
	int err = weight_snapshot_read_begin(fd, ret_head, &r, &why);

	ck_assert((r != NULL) == (err == 0));
	while (err == 0) {
		err = weight_snapshot_read_next(r, &item, &why);
		if (err < 0)
			break;
		ret->counts[item.kind]++;
		if (item.kind == WEIGHT_SNAPSHOT_END)
			break;
		weight_snapshot_item_release(&item);
	}
	ck_assert((why.len > 0) == (err < 0));
	ck_assert_ptr_null(strchr(why.data, '\n'));
	return err;
}

static inline int file_with(const char *bytes, size_t len)
{
	int fd = memory_file();

	ck_assert_int_eq(pwrite(fd, bytes, len, 0), (ssize_t)len);
	return fd;
}

/* The error of reading these bytes, or 0. */
static inline int verdict(const char *bytes, size_t len)
{
	auto_fd int fd = file_with(bytes, len);
	struct weight_snapshot_head head;
	struct tally t = { { 0 } };

	return read_whole(fd, &head, &t);
}

#endif
