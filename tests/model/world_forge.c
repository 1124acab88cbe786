/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries that are long over, given to a follower once more as if they were the
 * next ones: whatever it takes of them, nothing becomes older than it is.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/oplog.h"
#include "world.h"

/* An old entry of the leader, with the sequence that comes next. */
static int forged(struct store *leader, uint64_t sequence, uint64_t as,
		  struct buf *ret)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *entry = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	int r = wms_oplog_get(leader->s, sequence, &bytes);

	if (r == 0)
		r = oplog_decode(bytes.data, bytes.len, &entry);
	return r < 0 ? r : oplog_encode(&entry->change, as, ret);
}

/* A state may say again what is durable, and when it was looked at. */
static bool revision_is_no_older(const struct revision *a,
				 const struct revision *b)
{
	struct revision same = *b;

	same.durable = a->durable;
	same.updated_at_ms = a->updated_at_ms;
	same.accessed_at_ms = a->accessed_at_ms;
	return memcmp(a, &same, sizeof(same)) == 0 &&
	       b->updated_at_ms >= a->updated_at_ms &&
	       b->accessed_at_ms >= a->accessed_at_ms;
}

/* One that runs may say again what keeps it, and where it is. */
static bool operation_is_no_older(const struct operation *a,
				  const struct operation *b)
{
	struct operation same = *b;

	if (operation_is_over(a))
		return memcmp(a, b, sizeof(*a)) == 0;
	same.updated_at_ms = a->updated_at_ms;
	same.cursor = a->cursor;
	same.message = a->message;
	return memcmp(a, &same, sizeof(same)) == 0 &&
	       b->updated_at_ms >= a->updated_at_ms;
}

static bool is_no_older(const struct state *a, const struct state *b)
{
	if (a->revision_count != b->revision_count ||
	    a->lease_count != b->lease_count ||
	    a->operation_count != b->operation_count ||
	    memcmp(a->leases, b->leases,
		   a->lease_count * sizeof(a->leases[0])) != 0 ||
	    memcmp(a->lineages, b->lineages, sizeof(a->lineages)) != 0)
		return false;
	for (size_t i = 0; i < a->revision_count; i++)
		if (!revision_is_no_older(&a->revisions[i], &b->revisions[i])) {
			record_print_difference(RECORD_REVISION,
						&b->revisions[i],
						&a->revisions[i]);
			return false;
		}
	for (size_t i = 0; i < a->operation_count; i++)
		if (!operation_is_no_older(&a->operations[i],
					   &b->operations[i])) {
			record_print_difference(RECORD_OPERATION,
						&b->operations[i],
						&a->operations[i]);
			return false;
		}
	return true;
}

bool world_forge(struct world *w, struct store *copy, uint64_t count)
{
	static struct state before, after;
	uint64_t first = w->model.oplog_first, next = w->model.oplog_next;

	if (first == next || !store_read_all(copy, &before))
		return first == next;
	for (uint64_t i = 0, as = next; i < count; i++) {
		cleanup(buf_release) struct buf entry = BUF_INIT;
		cleanup(buf_release) struct buf why = BUF_INIT;
		/* The last one first: saying it again is no news. */
		uint64_t old = next - 1 - i * 7919 % (next - first);
		int r = forged(&w->leader, old, as, &entry);

		if (r == 0)
			r = wms_replay(copy->s, entry.data, entry.len, &why);
		if (r < 0 && (i == 0 || r != -EUCLEAN || why.len == 0)) {
			(void)printf("entry %d once more: %d, %s\n", (int)old,
				     r, why.data);
			return false;
		}
		as += r == 0;
		if (!store_read_all(copy, &after) ||
		    !is_no_older(&before, &after)) {
			(void)printf("entry %d was taken for a new one\n",
				     (int)old);
			return false;
		}
		state_copy(&before, &after, true);
	}
	return store_is_sound(copy);
}
