/* SPDX-License-Identifier: Apache-2.0 */
/* All that a metadata store has on the disk, as lines of text to compare. */
#ifndef TESTS_UNIT_WEIGHT_METADATA_DUMP_H
#define TESTS_UNIT_WEIGHT_METADATA_DUMP_H

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "core/buf.h"
#include "core/meta.h"
#include "core/util.h"

static inline int dump_bytes(const struct meta_bytes *b, struct buf *ret)
{
	const unsigned char *at = b->data;
	int r = buf_append(ret, " ", 1);

	for (size_t i = 0; r == 0 && i < b->len; i++)
		r = buf_printf(ret, "%02x", at[i]);
	return r;
}

/* What a follower has of its own. */
static inline bool dump_is_local(enum meta_db db, const struct meta_bytes *key)
{
	static const char *const names[] = { "schema", "epoch", "clean",
					     "boot_id", "format" };

	if (db != META_DB_STATE)
		return db == META_DB_STAGING;
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (key->len == strlen(names[i]) &&
		    memcmp(key->data, names[i], key->len) == 0)
			return true;
	return false;
}

static inline int dump_map(struct meta_txn *txn, enum meta_db db,
			   bool local_too, struct buf *ret)
{
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	struct meta_bytes key, value;
	int r = meta_cursor_open(txn, db, NULL, 0, &c);

	if (r < 0)
		return r;
	for (r = meta_cursor_seek(c, NULL, 0, &key, &value); r == 0;
	     r = meta_cursor_next(c, &key, &value)) {
		if (!local_too && dump_is_local(db, &key))
			continue;
		if ((r = buf_printf(ret, "%d", (int)db)) < 0 ||
		    (r = dump_bytes(&key, ret)) < 0 ||
		    (r = dump_bytes(&value, ret)) < 0 ||
		    (r = buf_append(ret, "\n", 1)) < 0)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

/* Nobody has it open. local_too: with what is not in the operation log. */
static inline int dump_metadata(const char *directory, bool local_too,
				struct buf *ret)
{
	cleanup(meta_close_cleanup) struct meta *m = NULL;
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	int r = meta_open(directory, META_BYTES_MAX, &m, &why);

	if (r == 0)
		r = meta_read_begin(m, &txn);
	for (int db = 0; r == 0 && db < META_DB_COUNT; db++)
		r = dump_map(txn, (enum meta_db)db, local_too, ret);
	return r;
}

#endif
