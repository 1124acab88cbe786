/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/util.h"
#include "core/weight_snapshot.h"
#include "store_record.h"

#define ALL SIZE_MAX

static bool complain(const char *what, int r, const struct buf *why)
{
	(void)printf("%s: %d (%s)%s%s\n", what, r, strerror(-r),
		     why && why->len ? ", " : "", why ? why->data : "");
	return false;
}

/* ---- Life ---- */

/* A commit there costs no disk. */
static const char *parent(void)
{
	struct statfs fs;

	if (statfs("/dev/shm", &fs) == 0 && fs.f_type == TMPFS_MAGIC &&
	    access("/dev/shm", W_OK) == 0)
		return "/dev/shm";
	return "/tmp";
}

static char base[40];

bool stores_begin(void)
{
	(void)snprintf(base, sizeof(base), "%s/weightfs-model-XXXXXX",
		       parent());
	return mkdtemp(base) || complain(base, -errno, NULL);
}

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	if (ftw->level > 0)
		(void)remove(path);
	return 0;
}

void stores_clear(void)
{
	(void)nftw(base, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

void stores_end(void)
{
	stores_clear();
	(void)rmdir(base);
}

bool store_make(struct store *store)
{
	(void)snprintf(store->dir, sizeof(store->dir), "%s/XXXXXX", base);
	if (!mkdtemp(store->dir))
		return complain(store->dir, -errno, NULL);
	store->options.oplog_keep = WMS_OPLOG_KEEP_DEFAULT;
	return store_open(store);
}

bool store_open(struct store *store)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	int r = wms_open(store->dir, &store->s, &why);

	if (r < 0)
		return complain("open", r, &why);
	wms_configure(store->s, &store->options);
	return true;
}

void store_close(struct store *store)
{
	wms_close(take_ptr(store->s));
}

void store_remove(struct store *store)
{
	char path[sizeof(store->dir) + sizeof(((struct dirent *)0)->d_name)];
	struct dirent *e;
	DIR *d;

	store_close(store);
	d = *store->dir ? opendir(store->dir) : NULL;
	while (d && (e = readdir(d))) {
		(void)snprintf(path, sizeof(path), "%s/%s", store->dir,
			       e->d_name);
		(void)unlink(path);
	}
	if (d)
		(void)closedir(d);
	if (*store->dir)
		(void)rmdir(store->dir);
	store->dir[0] = '\0';
}

int store_boot(struct store *store, uint64_t number, bool *ret_unclean)
{
	char id[24];

	(void)snprintf(id, sizeof(id), "boot-%" PRIu64, number);
	return wms_begin_boot(store->s, id, ret_unclean);
}

bool store_is_sound(struct store *store)
{
	cleanup(buf_release) struct buf report = BUF_INIT;
	uint64_t bad = 0;
	int r = wms_check(store->s, &report, &bad);

	if (r < 0 || bad)
		return complain("check", r, &report);
	return true;
}

/* ---- Reading ---- */

static bool read_stagings(struct store *store, uint64_t lineage,
			  struct state *ret)
{
	struct weight_staging *g;
	struct staging got;
	uint64_t after = 0;
	size_t at = state_staging_at(ret, lineage, 0);
	int r;

	while (at < ret->staging_count && ret->stagings[at].lineage == lineage)
		state_drop_staging(ret, &ret->stagings[at]);
	while ((r = wms_staged_next(store->s, &lineage_names[lineage], after,
				    &g)) == 0) {
		staging_from(g, &got);
		weight_staging_free(g);
		if (got.lineage != lineage || got.generation <= after)
			return complain("staged_next: another one", 0, NULL);
		state_put_staging(ret, &got);
		after = got.generation;
	}
	return r == -ENOENT || complain("staged_next", r, NULL);
}

static bool read_revisions(struct store *store, uint64_t lineage,
			   struct state *ret)
{
	struct weight_metadata *m;
	struct revision got;
	uint64_t after = 0;
	size_t at = state_revision_at(ret, lineage, 0), end = at;
	int r;

	while (end < ret->revision_count &&
	       ret->revisions[end].lineage == lineage)
		end++;
	memmove(&ret->revisions[at], &ret->revisions[end],
		(ret->revision_count - end) * sizeof(ret->revisions[0]));
	ret->revision_count -= end - at;
	while ((r = wms_revision_next(store->s, &lineage_names[lineage], after,
				      &m)) == 0) {
		revision_from(m, &got);
		weight_metadata_free(m);
		if (got.lineage != lineage || got.generation <= after)
			return complain("revision_next: another one", 0, NULL);
		state_put_revision(ret, &got);
		after = got.generation;
	}
	return r == -ENOENT || complain("revision_next", r, NULL);
}

bool store_read_lineage(struct store *store, uint64_t lineage,
			struct state *ret)
{
	struct weight_lineage_record *l = NULL;
	int r = wms_lineage_get(store->s, &lineage_names[lineage], &l);

	if (r < 0 && r != -ENOENT)
		return complain("lineage_get", r, NULL);
	lineage_from(l, &ret->lineages[lineage]);
	weight_lineage_record_free(l);
	return read_stagings(store, lineage, ret) &&
	       read_revisions(store, lineage, ret);
}

bool store_read_leases(struct store *store, struct state *ret)
{
	struct weight_lease *l;
	struct lease got = { .id = 0 };
	int r;

	ret->lease_count = 0;
	while ((r = wms_lease_next(store->s, got.id, &l)) == 0) {
		lease_from(l, &got);
		weight_lease_free(l);
		state_put_lease(ret, &got);
	}
	return r == -ENOENT || complain("lease_next", r, NULL);
}

bool store_read_operation(struct store *store, uint64_t id, struct state *ret)
{
	struct weight_operation *op;
	struct operation got;
	int r;

	if (id == 0)
		return true;
	/* The first one above it, of any tenant. */
	r = wms_operation_next(store->s, id - 1, &op);
	if (r == -ENOENT)
		return true;
	if (r < 0)
		return complain("operation_next", r, NULL);
	operation_from(op, &got);
	weight_operation_free(op);
	if (got.id == 0 || got.id > OPERATIONS_MAX ||
	    got.id > ret->operation_count + 1)
		return complain("an operation with another id", 0, NULL);
	if (got.id == id)
		state_put_operation(ret, &got);
	return true;
}

static bool read_operations(struct store *store, struct state *ret)
{
	struct weight_operation *op;
	struct operation got = { .id = 0 };
	int r;

	ret->operation_count = 0;
	while ((r = wms_operation_next(store->s, got.id, &op)) == 0) {
		operation_from(op, &got);
		weight_operation_free(op);
		if (got.id != ret->operation_count + 1)
			return complain("an operation is missing", 0, NULL);
		state_put_operation(ret, &got);
	}
	return r == -ENOENT || complain("operation_next", r, NULL);
}

/* What the iterations over everything give must be what was read otherwise. */
static bool iterate(struct store *store, const struct state *s)
{
	struct wms_position revisions = { .len = 0 }, some = { .len = 0 };
	struct wms_position staged = { .len = 0 }, active = { .len = 0 };
	struct wms_position lineages = { .len = 0 };
	size_t count[5] = { 0 },
	       expected[5] = { s->revision_count, s->revision_count,
			       s->staging_count, 0, 0 };
	struct wms_totals totals = { 0 };
	struct weight_metadata *m;
	struct wms_batch batch;
	struct weight_staging *g;
	struct weight_operation *op;
	struct weight_lineage_record *l;

	for (; wms_revision_each(store->s, &revisions, &m) == 0; count[0]++)
		weight_metadata_free(m);
	while (wms_revisions_read(store->s, &some, &batch) == 0) {
		count[1] += batch.count;
		wms_batch_release(&batch);
	}
	for (; wms_staged_each(store->s, &staged, &g) == 0; count[2]++)
		weight_staging_free(g);
	for (; wms_operation_active_each(store->s, &active, &op) == 0;
	     count[3]++)
		weight_operation_free(op);
	for (; wms_lineage_each(store->s, &lineages, &l) == 0; count[4]++)
		weight_lineage_record_free(l);
	for (size_t i = 0; i < s->revision_count; i++)
		expected[3] += s->revisions[i].operation_id != 0;
	for (size_t i = 0; i < LINEAGES; i++)
		expected[4] += s->lineages[i].there;
	for (size_t i = 0; i < ARRAY_LEN(count); i++)
		if (count[i] != expected[i])
			return complain("an iteration misses something", 0,
					NULL);
	if (wms_totals(store->s, &totals) < 0 ||
	    totals.revisions != s->revision_count ||
	    totals.staged != s->staging_count ||
	    totals.leases != s->lease_count ||
	    totals.operations != s->operation_count ||
	    totals.lineages != expected[4])
		return complain("the totals are wrong", 0, NULL);
	return true;
}

bool store_read_all(struct store *store, struct state *ret)
{
	ret->revision_count = 0;
	ret->staging_count = 0;
	for (uint64_t l = 0; l < LINEAGES; l++)
		if (!store_read_lineage(store, l, ret))
			return false;
	return store_read_leases(store, ret) && read_operations(store, ret) &&
	       iterate(store, ret);
}

/* ---- Snapshots ---- */

bool store_export(struct store *store, char **ret, size_t *ret_len)
{
	auto_fd int fd = memfd_create("snapshot", MFD_CLOEXEC);
	struct stat st;
	int r = fd < 0 ? -errno : wms_export(store->s, fd);

	if (r < 0)
		return complain("export", r, NULL);
	if (fstat(fd, &st) < 0)
		return complain("export", -errno, NULL);
	*ret_len = (size_t)st.st_size;
	*ret = malloc(*ret_len + 1);
	if (!*ret || pread(fd, *ret, *ret_len, 0) != st.st_size)
		return complain("reading a snapshot", -EIO, NULL);
	return true;
}

static int snapshot_fd(const char *bytes, size_t len)
{
	int fd = memfd_create("snapshot", MFD_CLOEXEC);

	if (fd < 0 || pwrite(fd, bytes, len, 0) != (ssize_t)len)
		abort();
	return fd;
}

bool store_import(struct store *store, const char *bytes, size_t len,
		  bool elsewhere)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	auto_fd int fd = snapshot_fd(bytes, len);
	struct wms_totals totals = { 0 };
	int r = wms_import(store->s, fd, elsewhere, &why);

	if (r == 0)
		r = wms_totals(store->s, &totals);
	if (r < 0)
		return complain("import", r, &why);
	/* Once is all that there is room for. */
	if (totals.revisions == 0 || lseek(fd, 0, SEEK_SET) < 0)
		return true;
	r = wms_import(store->s, fd, elsewhere, NULL);
	return r == -ENOTEMPTY || complain("a second import", r, NULL);
}

bool store_refuses_damaged(struct store *store, const char *bytes, size_t len,
			   uint64_t where)
{
	auto_free char *damaged = malloc(len);
	auto_fd int fd = -1;
	int r;

	if (!damaged)
		return false;
	memcpy(damaged, bytes, len);
	damaged[where % len] ^= 0x10;
	fd = snapshot_fd(damaged, len);
	r = wms_import(store->s, fd, false, NULL);
	return r == -EUCLEAN || r == -EPROTONOSUPPORT ||
	       complain("a damaged snapshot", r, NULL);
}

static void item_into(const struct weight_snapshot_item *item,
		      struct state *ret)
{
	struct revision revision;
	struct lease lease;
	struct operation operation;
	struct lineage lineage;
	uint64_t number;

	switch (item->kind) {
	case WEIGHT_SNAPSHOT_METADATA:
		revision_from(item->metadata, &revision);
		state_put_revision(ret, &revision);
		break;
	case WEIGHT_SNAPSHOT_LEASE:
		lease_from(item->lease, &lease);
		state_put_lease(ret, &lease);
		break;
	case WEIGHT_SNAPSHOT_OPERATION:
		operation_from(item->operation, &operation);
		state_put_operation(ret, &operation);
		break;
	case WEIGHT_SNAPSHOT_LINEAGE:
		lineage_from(item->lineage, &lineage);
		number = lineage_number(&item->lineage->lineage);
		if (number < LINEAGES)
			ret->lineages[number] = lineage;
		break;
	case WEIGHT_SNAPSHOT_END:
		break;
	}
}

static bool head_fits(const struct weight_snapshot_head *head,
		      const struct model *m)
{
	if (head->schema_version == WEIGHT_SNAPSHOT_SCHEMA &&
	    head->cursor == m->oplog_next - 1 &&
	    head->next_lease_id == m->next_lease_id &&
	    head->next_operation_id == m->next_operation_id)
		return true;
	(void)printf("head of a snapshot: cursor %" PRIu64
		     ", next lease %" PRIu64 ", next operation %" PRIu64
		     "; the model has %" PRIu64 ", %" PRIu64 ", %" PRIu64 "\n",
		     head->cursor, head->next_lease_id, head->next_operation_id,
		     m->oplog_next - 1, m->next_lease_id, m->next_operation_id);
	return false;
}

bool store_read_snapshot(struct store *store, const struct model *m,
			 struct state *ret)
{
	cleanup(weight_snapshot_reader_free_cleanup) struct
		weight_snapshot_reader *reader = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct weight_snapshot_item item;
	struct weight_snapshot_head head;
	auto_free char *bytes = NULL;
	auto_fd int fd = -1;
	size_t len;
	int r;

	if (!store_export(store, &bytes, &len))
		return false;
	fd = snapshot_fd(bytes, len);
	r = weight_snapshot_read_begin(fd, &head, &reader, &why);
	if (r < 0)
		return complain("snapshot", r, &why);
	ret->revision_count = 0;
	ret->lease_count = 0;
	ret->operation_count = 0;
	memset(ret->lineages, 0, sizeof(ret->lineages));
	while ((r = weight_snapshot_read_next(reader, &item, &why)) == 0 &&
	       item.kind != WEIGHT_SNAPSHOT_END) {
		item_into(&item, ret);
		weight_snapshot_item_release(&item);
	}
	if (r < 0)
		return complain("snapshot", r, &why);
	return head_fits(&head, m);
}

/* ---- The log ---- */

static bool replay_is(struct store *follower, const struct buf *entry,
		      int expected)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	int r = wms_replay(follower->s, entry->data, entry->len, &why);

	return r == expected || complain("replay", r, &why);
}

/* The next entry, and before it the same with another byte. */
static bool follow_entry(struct store *follower, struct store *leader,
			 uint64_t sequence)
{
	cleanup(buf_release) struct buf entry = BUF_INIT;
	size_t where;
	int r = wms_oplog_get(leader->s, sequence, &entry);

	if (r < 0)
		return complain("oplog_get", r, NULL);
	where = sequence % entry.len;
	entry.data[where] ^= 0x10;
	r = wms_replay(follower->s, entry.data, entry.len, NULL);
	if (r != -EUCLEAN && r != -EPROTONOSUPPORT)
		return complain("replay of a damaged entry", r, NULL);
	entry.data[where] ^= 0x10;
	/* Once is enough. */
	return replay_is(follower, &entry, 0) &&
	       replay_is(follower, &entry, -ESPIPE);
}

bool store_follow(struct store *follower, struct store *leader)
{
	struct wms_oplog_state from, to;
	int r = wms_oplog_state(leader->s, &to);

	if (r == 0)
		r = wms_oplog_state(follower->s, &from);
	if (r < 0)
		return complain("oplog_state", r, NULL);
	for (uint64_t seq = from.next; seq < to.next; seq++)
		if (!follow_entry(follower, leader, seq))
			return false;
	return true;
}

bool store_log_says(struct store *store, uint64_t sequence,
		    enum oplog_type type, uint64_t from_ms, uint64_t to_ms)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *entry = NULL;
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	int r = wms_oplog_get(store->s, sequence, &bytes);

	if (r == 0)
		r = oplog_decode(bytes.data, bytes.len, &entry);
	if (r < 0)
		return complain("the entry that was added", r, NULL);
	if (entry->sequence == sequence && entry->change.type == type &&
	    entry->change.timestamp_ms >= from_ms &&
	    entry->change.timestamp_ms <= to_ms)
		return true;
	(void)printf("entry %" PRIu64 " is a %s at %" PRIu64
		     ", not a %s at %" PRIu64 "\n",
		     entry->sequence, oplog_type_name(entry->change.type),
		     entry->change.timestamp_ms, oplog_type_name(type),
		     from_ms);
	return false;
}
