/* SPDX-License-Identifier: Apache-2.0 */
#include "core/weight_snapshot.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cursor.h"
#include "core/digest.h"
#include "core/file_io.h"
#include "core/util.h"
#include "core/weight_management_priv.h"
#include "core/weight_record.h"

#define MAGIC "wfsnap\r\n"
#define MAGIC_LEN (sizeof(MAGIC) - 1)
#define HEAD_LEN (MAGIC_LEN + 2 * 4 + 3 * 8)
#define KINDS WEIGHT_SNAPSHOT_LINEAGE
#define WINDOW ((size_t)64 << 10)

static_assert(MAGIC_LEN == 8, "it is 8 bytes in the file");

static const char *const kind_names[] = {
	[WEIGHT_SNAPSHOT_METADATA] = "revision",
	[WEIGHT_SNAPSHOT_LEASE] = "lease",
	[WEIGHT_SNAPSHOT_OPERATION] = "operation",
	[WEIGHT_SNAPSHOT_LINEAGE] = "lineage",
};
static_assert(ARRAY_LEN(kind_names) == KINDS + 1, "each kind has a name");

/* Schema 2 has no lineages. */
static bool schema_has(unsigned schema_version, enum weight_snapshot_kind kind)
{
	return kind != WEIGHT_SNAPSHOT_LINEAGE || schema_version >= 3;
}

/* ---- Writing ---- */

struct weight_snapshot_writer {
	int fd;
	int err; /* what stopped it, for good */
	unsigned schema_version;
	enum weight_snapshot_kind at; /* of the last record */
	uint64_t counts[KINDS];
	struct digest_stream *digest;
	size_t len; /* of what waits in the window */
	uint8_t window[WINDOW];
};

void weight_snapshot_writer_free(struct weight_snapshot_writer *w)
{
	if (!w)
		return;
	digest_stream_free(w->digest);
	free(w);
}

static int flush(struct weight_snapshot_writer *w)
{
	int r = file_io_write(w->fd, w->window, w->len);

	if (r < 0)
		return r;
	w->len = 0;
	return 0;
}

static int put(struct weight_snapshot_writer *w, const void *bytes, size_t len)
{
	const uint8_t *at = bytes;
	int r = digest_stream_add(w->digest, bytes, len);

	while (r == 0 && len > 0) {
		size_t room = WINDOW - w->len;
		size_t n = len < room ? len : room;

		memcpy(w->window + w->len, at, n);
		w->len += n;
		at += n;
		len -= n;
		if (w->len == WINDOW)
			r = flush(w);
	}
	return r;
}

/* Writes the lowest size bytes of v. */
static int put_number(struct weight_snapshot_writer *w, uint64_t v, size_t size)
{
	uint64_t le = htole64(v);

	return put(w, &le, size);
}

static int put_head(struct weight_snapshot_writer *w,
		    const struct weight_snapshot_head *head)
{
	int r;

	if ((r = put(w, MAGIC, MAGIC_LEN)) < 0 ||
	    (r = put_number(w, head->schema_version, 4)) < 0 ||
	    (r = put_number(w, 0, 4)) < 0 ||
	    (r = put_number(w, head->cursor, 8)) < 0 ||
	    (r = put_number(w, head->next_lease_id, 8)) < 0)
		return r;
	return put_number(w, head->next_operation_id, 8);
}

int weight_snapshot_write_begin(int fd, const struct weight_snapshot_head *head,
				struct weight_snapshot_writer **ret)
{
	cleanup(weight_snapshot_writer_free_cleanup) struct
		weight_snapshot_writer *w = NULL;
	int r;

	if (head->schema_version < WEIGHT_SNAPSHOT_SCHEMA_OLDEST ||
	    head->schema_version > WEIGHT_SNAPSHOT_SCHEMA ||
	    head->next_lease_id == 0 || head->next_operation_id == 0)
		return log_debug(-EINVAL, "head of a snapshot");
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->fd = fd;
	w->schema_version = head->schema_version;
	r = digest_stream_new(&w->digest);
	if (r < 0)
		return r;
	r = put_head(w, head);
	if (r < 0)
		return r;
	*ret = take_ptr(w);
	return 0;
}

/* Whether a record of the kind may come now. */
static int record_may(const struct weight_snapshot_writer *w,
		      enum weight_snapshot_kind kind)
{
	if (w->err < 0)
		return w->err;
	if (kind < w->at || !schema_has(w->schema_version, kind))
		return log_debug(-EINVAL, "a %s in the wrong place",
				 kind_names[kind]);
	return 0;
}

/* A failure is for good: part of the record may have been written. */
static int record_put(struct weight_snapshot_writer *w,
		      enum weight_snapshot_kind kind, const struct buf *record)
{
	int r;

	w->at = kind;
	w->counts[kind - 1]++;
	if ((r = put_number(w, kind, 1)) < 0 ||
	    (r = put_number(w, record->len, 4)) < 0 ||
	    (r = put(w, record->data, record->len)) < 0)
		w->err = r;
	return r;
}

int weight_snapshot_write_metadata(struct weight_snapshot_writer *w,
				   const struct weight_metadata *m)
{
	cleanup(buf_release) struct buf record = BUF_INIT;
	int r;

	if ((r = record_may(w, WEIGHT_SNAPSHOT_METADATA)) < 0 ||
	    (r = weight_record_metadata_encode(m, &record)) < 0)
		return r;
	return record_put(w, WEIGHT_SNAPSHOT_METADATA, &record);
}

int weight_snapshot_write_lease(struct weight_snapshot_writer *w,
				const struct weight_lease *lease)
{
	cleanup(buf_release) struct buf record = BUF_INIT;
	int r;

	if ((r = record_may(w, WEIGHT_SNAPSHOT_LEASE)) < 0 ||
	    (r = weight_record_lease_encode(lease, &record)) < 0)
		return r;
	return record_put(w, WEIGHT_SNAPSHOT_LEASE, &record);
}

int weight_snapshot_write_operation(struct weight_snapshot_writer *w,
				    const struct weight_operation *op)
{
	cleanup(buf_release) struct buf record = BUF_INIT;
	int r;

	if ((r = record_may(w, WEIGHT_SNAPSHOT_OPERATION)) < 0 ||
	    (r = weight_record_operation_encode(op, &record)) < 0)
		return r;
	return record_put(w, WEIGHT_SNAPSHOT_OPERATION, &record);
}

int weight_snapshot_write_lineage(struct weight_snapshot_writer *w,
				  const struct weight_lineage_record *l)
{
	cleanup(buf_release) struct buf record = BUF_INIT;
	int r;

	if ((r = record_may(w, WEIGHT_SNAPSHOT_LINEAGE)) < 0 ||
	    (r = weight_record_lineage_encode(l, &record)) < 0)
		return r;
	return record_put(w, WEIGHT_SNAPSHOT_LINEAGE, &record);
}

static int put_end(struct weight_snapshot_writer *w)
{
	struct digest d;
	int r = put_number(w, WEIGHT_SNAPSHOT_END, 1);

	for (size_t i = 0; r == 0 && i < KINDS; i++)
		r = put_number(w, w->counts[i], 8);
	if (r < 0 || (r = digest_stream_finish(w->digest, &d)) < 0 ||
	    (r = put(w, d.bytes, sizeof(d.bytes))) < 0)
		return r;
	return flush(w);
}

int weight_snapshot_write_end(struct weight_snapshot_writer *w)
{
	int r;

	if (w->err < 0)
		return w->err;
	r = put_end(w);
	/* Nothing may follow on an end. */
	w->err = r < 0 ? r : -EINVAL;
	return r;
}

/* ---- Reading ---- */

struct weight_snapshot_reader {
	int fd;
	int err;    /* what stopped it, for good */
	bool ended; /* all was read, and was right */
	unsigned schema_version;
	enum weight_snapshot_kind at; /* of the last record */
	uint64_t counts[KINDS];
	struct digest_stream *digest;
	size_t window_at, window_len;
	uint8_t window[WINDOW];
	uint8_t record[WEIGHT_RECORD_BYTES_MAX];
};

void weight_snapshot_reader_free(struct weight_snapshot_reader *r)
{
	if (!r)
		return;
	digest_stream_free(r->digest);
	free(r);
}

/* Makes sure that the window has bytes, but at the end of the file. */
static int fill(struct weight_snapshot_reader *rd, struct buf *why)
{
	ssize_t n;

	if (rd->window_at < rd->window_len)
		return 0;
	do
		n = read(rd->fd, rd->window, WINDOW);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return refuse(why, -EIO, "the snapshot can't be read: %s",
			      strerror(errno));
	rd->window_at = 0;
	rd->window_len = (size_t)n;
	return 0;
}

/* The next len bytes, which the digest doesn't cover. */
static int get_plain(struct weight_snapshot_reader *rd, void *dst, size_t len,
		     struct buf *why)
{
	uint8_t *to = dst;

	while (len > 0) {
		int r = fill(rd, why);
		size_t left = rd->window_len - rd->window_at;
		size_t n = len < left ? len : left;

		if (r < 0)
			return r;
		if (left == 0)
			return refuse(why, -EUCLEAN,
				      "the snapshot is cut short");
		memcpy(to, rd->window + rd->window_at, n);
		rd->window_at += n;
		to += n;
		len -= n;
	}
	return 0;
}

static int get(struct weight_snapshot_reader *rd, void *dst, size_t len,
	       struct buf *why)
{
	int r = get_plain(rd, dst, len, why);

	if (r < 0)
		return r;
	r = digest_stream_add(rd->digest, dst, len);
	if (r < 0)
		return refuse(why, r, "the digest can't be computed");
	return 0;
}

static int schema_check(unsigned schema_version, struct buf *why)
{
	if (schema_version > WEIGHT_SNAPSHOT_SCHEMA)
		return refuse(why, -EPROTONOSUPPORT,
			      "the snapshot has schema %u, which is newer "
			      "than %u",
			      schema_version, WEIGHT_SNAPSHOT_SCHEMA);
	if (schema_version < WEIGHT_SNAPSHOT_SCHEMA_OLDEST)
		return refuse(
			why, -EUCLEAN,
			"the snapshot has schema %u, and %u is the oldest "
			"that can be read",
			schema_version, WEIGHT_SNAPSHOT_SCHEMA_OLDEST);
	return 0;
}

static int head_get(struct weight_snapshot_reader *rd,
		    struct weight_snapshot_head *ret, struct buf *why)
{
	uint8_t bytes[HEAD_LEN];
	struct weight_snapshot_head head;
	struct cursor c = cursor_over(bytes, sizeof(bytes));
	uint32_t zero;
	int r = get(rd, bytes, sizeof(bytes), why);

	if (r < 0)
		return r;
	if (memcmp(cursor_take(&c, MAGIC_LEN), MAGIC, MAGIC_LEN) != 0)
		return refuse(why, -EUCLEAN, "this is not a snapshot");
	head.schema_version = cursor_u32(&c);
	zero = cursor_u32(&c);
	head.cursor = cursor_u64(&c);
	head.next_lease_id = cursor_u64(&c);
	head.next_operation_id = cursor_u64(&c);
	r = schema_check(head.schema_version, why);
	if (r < 0)
		return r;
	if (zero != 0 || head.next_lease_id == 0 || head.next_operation_id == 0)
		return refuse(why, -EUCLEAN,
			      "the head of the snapshot is damaged");
	*ret = head;
	return 0;
}

int weight_snapshot_read_begin(int fd, struct weight_snapshot_head *ret_head,
			       struct weight_snapshot_reader **ret,
			       struct buf *why)
{
	cleanup(weight_snapshot_reader_free_cleanup) struct
		weight_snapshot_reader *rd = NULL;
	struct weight_snapshot_head head;
	int r;

	rd = calloc(1, sizeof(*rd));
	if (!rd)
		return -ENOMEM;
	rd->fd = fd;
	r = digest_stream_new(&rd->digest);
	if (r < 0)
		return r;
	r = head_get(rd, &head, why);
	if (r < 0)
		return r;
	rd->schema_version = head.schema_version;
	*ret_head = head;
	*ret = take_ptr(rd);
	return 0;
}

void weight_snapshot_item_release(struct weight_snapshot_item *item)
{
	weight_metadata_free(item->metadata);
	weight_lease_free(item->lease);
	weight_operation_free(item->operation);
	weight_lineage_record_free(item->lineage);
	*item = (struct weight_snapshot_item){ .kind = WEIGHT_SNAPSHOT_END };
}

static int record_decode(const uint8_t *bytes, size_t len,
			 struct weight_snapshot_item *item)
{
	switch (item->kind) {
	case WEIGHT_SNAPSHOT_METADATA:
		return weight_record_metadata_decode(bytes, len,
						     &item->metadata);
	case WEIGHT_SNAPSHOT_LEASE:
		return weight_record_lease_decode(bytes, len, &item->lease);
	case WEIGHT_SNAPSHOT_OPERATION:
		return weight_record_operation_decode(bytes, len,
						      &item->operation);
	case WEIGHT_SNAPSHOT_LINEAGE:
		return weight_record_lineage_decode(bytes, len, &item->lineage);
	case WEIGHT_SNAPSHOT_END:
		break;
	}
	return log_debug(-EUCLEAN, "kind %u", (unsigned)item->kind);
}

static int record_get(struct weight_snapshot_reader *rd,
		      enum weight_snapshot_kind kind,
		      struct weight_snapshot_item *ret, struct buf *why)
{
	struct weight_snapshot_item item = { .kind = kind };
	uint32_t le;
	size_t len;
	int r = get(rd, &le, sizeof(le), why);

	if (r < 0)
		return r;
	len = le32toh(le);
	if (len > sizeof(rd->record))
		return refuse(why, -EUCLEAN,
			      "the snapshot has a %s of %zu bytes",
			      kind_names[kind], len);
	r = get(rd, rd->record, len, why);
	if (r < 0)
		return r;
	rd->counts[kind - 1]++;
	r = record_decode(rd->record, len, &item);
	if (r < 0)
		return refuse(why, r,
			      "%s %" PRIu64 " of the snapshot can't be read: "
			      "%s",
			      kind_names[kind], rd->counts[kind - 1],
			      r == -EPROTONOSUPPORT ?
				      "a newer version wrote it" :
				      strerror(-r));
	*ret = item;
	return 0;
}

/* The counts, the digest, and that nothing follows. */
static int end_get(struct weight_snapshot_reader *rd, struct buf *why)
{
	struct digest right, there;
	uint64_t counts[KINDS];
	int r = get(rd, counts, sizeof(counts), why);

	if (r < 0)
		return r;
	for (size_t i = 0; i < KINDS; i++)
		if (le64toh(counts[i]) != rd->counts[i])
			return refuse(why, -EUCLEAN,
				      "the snapshot has another number of %ss "
				      "than it says",
				      kind_names[i + 1]);
	r = digest_stream_finish(rd->digest, &right);
	if (r < 0)
		return refuse(why, r, "the digest can't be computed");
	r = get_plain(rd, there.bytes, sizeof(there.bytes), why);
	if (r < 0)
		return r;
	if (!digest_equal(&right, &there))
		return refuse(why, -EUCLEAN,
			      "the snapshot is damaged: its digest is another");
	r = fill(rd, why);
	if (r < 0)
		return r;
	if (rd->window_at < rd->window_len)
		return refuse(why, -EUCLEAN,
			      "something follows behind the snapshot");
	return 0;
}

static int next_get(struct weight_snapshot_reader *rd,
		    struct weight_snapshot_item *ret, struct buf *why)
{
	uint8_t kind;
	int r = get(rd, &kind, sizeof(kind), why);

	if (r < 0)
		return r;
	if (kind == WEIGHT_SNAPSHOT_END) {
		r = end_get(rd, why);
		if (r < 0)
			return r;
		rd->ended = true;
		*ret = (struct weight_snapshot_item){ .kind = kind };
		return 0;
	}
	if (kind > KINDS)
		return refuse(why, -EUCLEAN,
			      "the snapshot has a record of kind %u", kind);
	if (kind < rd->at || !schema_has(rd->schema_version, kind))
		return refuse(why, -EUCLEAN,
			      "the snapshot has a %s in the wrong place",
			      kind_names[kind]);
	rd->at = kind;
	return record_get(rd, kind, ret, why);
}

int weight_snapshot_read_next(struct weight_snapshot_reader *r,
			      struct weight_snapshot_item *ret, struct buf *why)
{
	if (r->err < 0)
		return refuse(why, r->err,
			      "an earlier part of the snapshot was refused");
	if (r->ended) {
		*ret = (struct weight_snapshot_item){
			.kind = WEIGHT_SNAPSHOT_END
		};
		return 0;
	}
	r->err = next_get(r, ret, why);
	return r->err;
}
