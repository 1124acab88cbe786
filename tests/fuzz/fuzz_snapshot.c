/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a snapshot, as they are and with a digest that is made right:
 * what is read to its end gives the same bytes when it is written again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/digest.h"
#include "core/weight_snapshot.h"
#include "fuzz.h"

#define REQUIRE(cond)                                                          \
	do {                                                                   \
		if (!(cond))                                                   \
			abort();                                               \
	} while (0)

/* Files in memory that stay open from run to run, emptied in between. */
static int emptied(int *fd)
{
	if (*fd <= 0)
		*fd = memfd_create("fuzz", MFD_CLOEXEC);
	REQUIRE(*fd > 0 && ftruncate(*fd, 0) == 0);
	REQUIRE(lseek(*fd, 0, SEEK_SET) == 0);
	return *fd;
}

static void write_item(struct weight_snapshot_writer *w,
		       const struct weight_snapshot_item *item)
{
	switch (item->kind) {
	case WEIGHT_SNAPSHOT_METADATA:
		REQUIRE(weight_snapshot_write_metadata(w, item->metadata) == 0);
		return;
	case WEIGHT_SNAPSHOT_LEASE:
		REQUIRE(weight_snapshot_write_lease(w, item->lease) == 0);
		return;
	case WEIGHT_SNAPSHOT_OPERATION:
		REQUIRE(weight_snapshot_write_operation(w, item->operation) ==
			0);
		return;
	case WEIGHT_SNAPSHOT_LINEAGE:
		REQUIRE(weight_snapshot_write_lineage(w, item->lineage) == 0);
		return;
	case WEIGHT_SNAPSHOT_END:
		REQUIRE(weight_snapshot_write_end(w) == 0);
		return;
	}
	abort();
}

/* Writes what is read; whether it came to its end. */
static bool copy(int from, int to)
{
	cleanup(weight_snapshot_reader_free_cleanup) struct
		weight_snapshot_reader *r = NULL;
	cleanup(weight_snapshot_writer_free_cleanup) struct
		weight_snapshot_writer *w = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_snapshot_item item = { .kind = WEIGHT_SNAPSHOT_LINEAGE };
	struct weight_snapshot_head head;
	int err = weight_snapshot_read_begin(from, &head, &r, &why);
	bool ended = false;

	REQUIRE((err == 0) == (r != NULL));
	if (err == 0)
		REQUIRE(weight_snapshot_write_begin(to, &head, &w) == 0);
	while (err == 0 && !ended) {
		err = weight_snapshot_read_next(r, &item, &why);
		if (err < 0)
			break;
		write_item(w, &item);
		ended = item.kind == WEIGHT_SNAPSHOT_END;
		weight_snapshot_item_release(&item);
	}
	REQUIRE(err == 0 || err == -EUCLEAN || err == -EPROTONOSUPPORT);
	REQUIRE((why.len > 0) == (err < 0) && !strchr(why.data, '\n'));
	return ended;
}

static void check(const uint8_t *data, size_t size)
{
	static int from, to;
	auto_free uint8_t *again = malloc(size + 1);

	REQUIRE(again);
	REQUIRE(pwrite(emptied(&from), data, size, 0) == (ssize_t)size);
	if (!copy(from, emptied(&to)))
		return;
	REQUIRE(pread(to, again, size + 1, 0) == (ssize_t)size);
	REQUIRE(memcmp(again, data, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_free uint8_t *sealed = malloc(size + 1);
	struct digest d;

	check(data, size);
	if (size < DIGEST_LEN)
		return 0;
	REQUIRE(sealed);
	REQUIRE(digest_of(data, size - DIGEST_LEN, &d) == 0);
	memcpy(sealed, data, size - DIGEST_LEN);
	memcpy(sealed + size - DIGEST_LEN, d.bytes, DIGEST_LEN);
	check(sealed, size);
	return 0;
}
