/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of very many revisions, and LMDB alone with the same ones.
 *
 *	metadata META BARE FROM COUNT PAIRS
 *
 * META is the meta directory of a store whose lineage bench/bench/many/main
 * has FROM generations of an earlier run, or none. It is filled up to COUNT,
 * each staged and published as by a mount, but without waiting for the disk.
 * BARE becomes a copy of the database, and all records are read once, as by a
 * daemon that starts. Then each work is done PAIRS times and once before, on
 * META through the store and on BARE through LMDB in turn, and a line says how
 * long one of it took on both:
 *
 *	WORK NANOSECONDS NANOSECONDS
 *
 * LMDB alone gets keys and values ready-made: the bytes that the store reads or
 * has just written, in as many transactions on the same maps, each durable. What
 * it reads it gives as heap copies, as the store does.
 */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <lmdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "core/cleanup.h"
#include "core/clock.h"
#include "core/digest.h"
#include "core/util.h"
#include "core/weight_key.h"
#include "core/weight_metadata_store.h"
#include "core/weight_record.h"
#include "tests/bench/unsynced.h"

#define PATH_LEN 4096
#define KEY_LEN 128
#define PUTS_MAX 6
#define GETS 20000 /* of a round */
#define PAGES 200
#define PAGE_ITEMS 100
#define CHANGES 20
#define BARE_BYTES ((size_t)8 << 30)
#define NS 1000000000u
#define POLICY                                                                 \
	((struct weight_policy){ .preferred = WEIGHT_COLD,                     \
				 .mixed_hot_ratio = 0.5,                       \
				 .mode = WEIGHT_MANUAL })

#define RESOURCE "bench", "bench", "many"
static const char *const resource[] = { RESOURCE };

/* The maps that are looked at or written. */
enum { STATE, REVISION, STAGING, OPLOG, DB_COUNT };
static const char *const db_names[DB_COUNT] = { "state", "revision", "staging",
						"oplog" };

static struct weight_metadata_store *store;
static MDB_env *bare;
static MDB_dbi dbi[DB_COUNT];
static struct digest key_start; /* of all keys of revisions */
static uint64_t count;

static _Noreturn void fail(const char *what, const char *why)
{
	(void)fprintf(stderr, "metadata: %s: %s\n", what, why);
	exit(1);
}

static void must(int r, const char *what)
{
	if (r < 0)
		fail(what, strerror(-r));
}

static void must_lmdb(int rc, const char *what)
{
	if (rc)
		fail(what, mdb_strerror(rc));
}

static uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS + (uint64_t)t.tv_nsec;
}

/* Any of the generations, the same ones in each run. */
static uint64_t any(void)
{
	static uint64_t x = 88172645463325252u;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return 1 + x % count;
}

/* ---- What the store does ---- */

static struct weight_identity identity_of(const char *revision, uint64_t n)
{
	return (struct weight_identity){ { RESOURCE, revision }, n };
}

/* A publication of one file of 4 KiB; both texts are borrowed. */
static struct weight_publication publication_of(
	const struct weight_identity *id, const char *manifest_key,
	const char *group)
{
	return (struct weight_publication){
		.identity = *id,
		.manifest = { .manifest_key = manifest_key,
			      .payload_group_id = group,
			      .manifest_sha256 = key_start,
			      .payload_keys_sha256 = key_start,
			      .complete = true,
			      .payload_count = 1,
			      .logical_bytes = 4096 },
		.policy = POLICY,
		.affinity_count = 1,
		.affinity_digest = key_start,
		.residency = WEIGHT_COLD,
		.durable = true,
	};
}

static void stage(const struct weight_identity *id)
{
	must(wms_stage(store, id, clock_realtime_ms(), NULL), "staging");
}

static void publish(const struct weight_identity *id,
		    struct weight_metadata **ret)
{
	cleanup(buf_release) struct buf key = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];
	struct weight_publication p;

	must(weight_manifest_key(id, &key), "a key");
	must(weight_group_id(id, group), "a group");
	p = publication_of(id, key.data, group);
	must(wms_publish(store, &p, clock_realtime_ms(), ret, NULL),
	     "publishing");
}

static void announce(const struct weight_identity *id,
		     struct weight_metadata **ret)
{
	const struct weight_import_request request = {
		.identity = *id,
		.payload_group_id = "",
		.import = { .payload_count = 1,
			    .logical_bytes = 4096,
			    .policy = POLICY,
			    .affinity_count = 1,
			    .affinity_digest = key_start },
	};

	must(wms_import_begin(store, &request, clock_realtime_ms(), ret, NULL),
	     "announcing");
}

static void commit(const struct weight_identity *id,
		   struct weight_metadata **ret)
{
	cleanup(buf_release) struct buf key = BUF_INIT;
	char group[WEIGHT_GROUP_ID_LEN + 1];
	struct weight_commit_request request;

	must(weight_manifest_key(id, &key), "a key");
	must(weight_group_id(id, group), "a group");
	request = (struct weight_commit_request){
		.identity = *id,
		.manifest = publication_of(id, key.data, group).manifest,
		.residency = WEIGHT_COLD,
		.durable = true,
	};
	must(wms_import_commit(store, &request, clock_realtime_ms(), ret, NULL),
	     "committing");
}

static void change_policy(const struct weight_identity *id,
			  const struct weight_policy *policy,
			  struct weight_metadata **ret)
{
	must(wms_policy_update(store, id, policy, 0, clock_realtime_ms(), ret,
			       NULL),
	     "changing a policy");
}

/* ---- What it has written, for LMDB alone ---- */

struct put {
	unsigned db;
	bool gone; /* it is deleted */
	size_t key_len;
	unsigned char key[KEY_LEN];
	struct buf value;
};

struct transaction {
	size_t count;
	struct put puts[PUTS_MAX];
};

static uint64_t oplog_first, oplog_next;

static struct put *add(struct transaction *t, unsigned db, const void *key,
		       size_t key_len)
{
	struct put *p = &t->puts[t->count++];

	if (t->count > PUTS_MAX || key_len > KEY_LEN)
		fail("a transaction", "too large");
	*p = (struct put){ .db = db, .key_len = key_len, .value = BUF_INIT };
	memcpy(p->key, key, key_len);
	return p;
}

static void forget(struct transaction *t)
{
	for (size_t i = 0; i < t->count; i++)
		buf_release(&t->puts[i].value);
	t->count = 0;
}

/* As the head of core/weight_metadata_store.h has it. */
static size_t revision_key(const struct weight_identity *id,
			   unsigned char ret[static KEY_LEN])
{
	size_t name = strlen(id->lineage.revision) + 1;
	uint64_t be = htobe64(id->generation);
	unsigned char *at = ret;

	memcpy(at, key_start.bytes, sizeof(key_start.bytes));
	at += sizeof(key_start.bytes);
	memcpy(at, id->lineage.revision, name);
	at += name;
	memcpy(at, &be, sizeof(be));
	return (size_t)(at - ret) + sizeof(be);
}

static struct put *add_revision(struct transaction *t, unsigned db,
				const struct weight_identity *id)
{
	unsigned char key[KEY_LEN];

	return add(t, db, key, revision_key(id, key));
}

static void add_state(struct transaction *t, const char *name, uint64_t v)
{
	struct put *p = add(t, STATE, name, strlen(name));
	uint64_t le = htole64(v);

	must(buf_append(&p->value, &le, sizeof(le)), "a value");
}

/* The entry of the log that comes with each change of a revision. */
static void add_log(struct transaction *t)
{
	struct wms_oplog_state log;
	uint64_t be;

	must(wms_oplog_state(store, &log), "the log");
	if (log.next != ++oplog_next)
		fail("the log", "a change is not in it");
	be = htobe64(log.next - 1);
	must(wms_oplog_get(store, log.next - 1,
			   &add(t, OPLOG, &be, sizeof(be))->value),
	     "an entry");
	add_state(t, "oplog_next", log.next);
	if (log.first == oplog_first)
		return;
	if (log.first != oplog_first + 1)
		fail("the log", "more than one entry went");
	be = htobe64(oplog_first);
	add(t, OPLOG, &be, sizeof(be))->gone = true;
	add_state(t, "oplog_first", log.first);
	oplog_first = log.first;
}

static void add_change(struct transaction *t, struct weight_metadata *m)
{
	struct put *p = add_revision(t, REVISION, &m->identity);

	must(weight_record_metadata_encode(m, &p->value), "a record");
	add_log(t);
	weight_metadata_free(m);
}

static uint64_t apply(const struct transaction *t)
{
	uint64_t begun = now_ns();
	MDB_txn *txn;

	must_lmdb(mdb_txn_begin(bare, NULL, 0, &txn), "a transaction");
	for (size_t i = 0; i < t->count; i++) {
		const struct put *p = &t->puts[i];
		MDB_val k = { p->key_len, (void *)p->key };
		MDB_val v = { p->value.len, p->value.data };

		must_lmdb(p->gone ? mdb_del(txn, dbi[p->db], &k, NULL) :
				    mdb_put(txn, dbi[p->db], &k, &v, 0),
			  "a change");
	}
	must_lmdb(mdb_txn_commit(txn), "a commit");
	return now_ns() - begun;
}

/* ---- Works: nanoseconds of each round on one side, or on both ---- */

static uint64_t get_ours(const uint64_t generations[static GETS])
{
	struct weight_identity id = identity_of("main", 0);
	uint64_t begun = now_ns();

	for (size_t i = 0; i < GETS; i++) {
		struct weight_metadata *m;

		id.generation = generations[i];
		must(wms_get(store, &id, &m), "reading");
		weight_metadata_free(m);
	}
	return now_ns() - begun;
}

static void *copy_of(const MDB_val *v)
{
	void *copy = malloc(v->mv_size);

	if (!copy)
		fail("a copy", strerror(ENOMEM));
	return memcpy(copy, v->mv_data, v->mv_size);
}

static uint64_t get_bare(const uint64_t generations[static GETS])
{
	struct weight_identity id = identity_of("main", 0);
	unsigned char key[KEY_LEN];
	size_t len = revision_key(&id, key);
	uint64_t begun = now_ns();

	for (size_t i = 0; i < GETS; i++) {
		uint64_t be = htobe64(generations[i]);
		MDB_val k = { len, key }, v;
		MDB_txn *txn;
		void *copy;

		memcpy(key + len - sizeof(be), &be, sizeof(be));
		must_lmdb(mdb_txn_begin(bare, NULL, MDB_RDONLY, &txn),
			  "a transaction");
		must_lmdb(mdb_get(txn, dbi[REVISION], &k, &v), "reading");
		copy = copy_of(&v);
		mdb_txn_abort(txn);
		free(copy);
	}
	return now_ns() - begun;
}

static uint64_t list_ours(const uint64_t generations[static PAGES])
{
	uint64_t begun = now_ns();

	for (size_t i = 0; i < PAGES; i++) {
		char token[WMS_PAGE_TOKEN_MAX + 1];
		struct wms_page page;

		(void)snprintf(token, sizeof(token), "main\x1f%" PRIu64,
			       generations[i]);
		must(wms_list(store, resource[0], resource[1], resource[2],
			      token, PAGE_ITEMS, &page),
		     "listing");
		if (page.count != PAGE_ITEMS)
			fail("listing", "a short page");
		wms_page_release(&page);
	}
	return now_ns() - begun;
}

static void page_bare(MDB_val *k, void *copies[static PAGE_ITEMS])
{
	MDB_cursor *c;
	MDB_txn *txn;
	MDB_val v;

	must_lmdb(mdb_txn_begin(bare, NULL, MDB_RDONLY, &txn), "reading");
	must_lmdb(mdb_cursor_open(txn, dbi[REVISION], &c), "a cursor");
	must_lmdb(mdb_cursor_get(c, k, &v, MDB_SET_RANGE), "seeking");
	for (size_t i = 0; i < PAGE_ITEMS; i++) {
		copies[i] = copy_of(&v);
		must_lmdb(mdb_cursor_get(c, k, &v, MDB_NEXT), "going on");
	}
	mdb_cursor_close(c);
	mdb_txn_abort(txn);
}

static uint64_t list_bare(const uint64_t generations[static PAGES])
{
	uint64_t begun = now_ns();

	for (size_t i = 0; i < PAGES; i++) {
		struct weight_identity id =
			identity_of("main", generations[i] + 1);
		unsigned char key[KEY_LEN];
		void *copies[PAGE_ITEMS];
		MDB_val k = { revision_key(&id, key), key };

		page_bare(&k, copies);
		for (size_t n = 0; n < PAGE_ITEMS; n++)
			free(copies[n]);
	}
	return now_ns() - begun;
}

static void get_round(uint64_t *ours, uint64_t *limit)
{
	static uint64_t generations[GETS];

	for (size_t i = 0; i < GETS; i++)
		generations[i] = any();
	*ours = get_ours(generations) / GETS;
	*limit = get_bare(generations) / GETS;
}

/* Behind the pages there are always more revisions. */
static void list_round(uint64_t *ours, uint64_t *limit)
{
	static uint64_t generations[PAGES];

	for (size_t i = 0; i < PAGES; i++)
		generations[i] = 1 + any() * (count - 2 * PAGE_ITEMS) / count;
	*ours = list_ours(generations) / (PAGES * PAGE_ITEMS);
	*limit = list_bare(generations) / (PAGES * PAGE_ITEMS);
}

/* What LMDB alone has must be what the store has. */
static void compare(const struct transaction *t)
{
	const struct put *p = &t->puts[0];
	MDB_val k = { p->key_len, (void *)p->key }, v;
	MDB_txn *txn;

	must_lmdb(mdb_txn_begin(bare, NULL, MDB_RDONLY, &txn), "reading");
	must_lmdb(mdb_get(txn, dbi[p->db], &k, &v), "reading");
	if (v.mv_size != p->value.len ||
	    memcmp(v.mv_data, p->value.data, v.mv_size) != 0)
		fail("comparing", "LMDB alone has another record");
	mdb_txn_abort(txn);
}

static void policy_round(uint64_t *ours, uint64_t *limit)
{
	static uint64_t n;
	struct transaction t = { 0 };

	*ours = *limit = 0;
	for (size_t i = 0; i < CHANGES; i++) {
		struct weight_identity id = identity_of("main", any());
		struct weight_policy policy = POLICY;
		struct weight_metadata *m;
		uint64_t begun = now_ns();

		/* One that was never there, or nothing is written. */
		policy.mixed_hot_ratio = 1.0 / (double)(count + ++n);
		change_policy(&id, &policy, &m);
		*ours += (now_ns() - begun) / CHANGES;
		add_change(&t, m);
		*limit += apply(&t) / CHANGES;
		compare(&t);
		forget(&t);
	}
}

/* Staged and published. */
static void publish_round(uint64_t *ours, uint64_t *limit)
{
	static uint64_t next;
	struct transaction t = { 0 };

	*ours = *limit = 0;
	for (size_t i = 0; i < CHANGES; i++) {
		struct weight_identity id =
			identity_of("published", count + ++next);
		cleanup(weight_staging_free_cleanup) struct weight_staging *s =
			NULL;
		struct weight_metadata *m;
		uint64_t begun = now_ns();

		stage(&id);
		*ours += (now_ns() - begun) / CHANGES;
		must(wms_staged_get(store, &id, &s), "what was staged");
		must(weight_record_staging_encode(
			     s, &add_revision(&t, STAGING, &id)->value),
		     "a record");
		*limit += apply(&t) / CHANGES;
		forget(&t);

		begun = now_ns();
		publish(&id, &m);
		*ours += (now_ns() - begun) / CHANGES;
		add_change(&t, m);
		add_revision(&t, STAGING, &id)->gone = true;
		*limit += apply(&t) / CHANGES;
		forget(&t);
	}
}

/* Announced and committed. */
static void import_round(uint64_t *ours, uint64_t *limit)
{
	static uint64_t next;
	struct transaction t = { 0 };

	*ours = *limit = 0;
	for (size_t i = 0; i < CHANGES; i++) {
		struct weight_identity id =
			identity_of("announced", count + ++next);
		struct weight_metadata *m;
		uint64_t begun = now_ns();

		announce(&id, &m);
		*ours += (now_ns() - begun) / CHANGES;
		add_change(&t, m);
		*limit += apply(&t) / CHANGES;
		forget(&t);

		begun = now_ns();
		commit(&id, &m);
		*ours += (now_ns() - begun) / CHANGES;
		add_change(&t, m);
		*limit += apply(&t) / CHANGES;
		forget(&t);
	}
}

/* ---- All of it ---- */

static void fill(const char *meta, uint64_t from)
{
	struct buf why = BUF_INIT;

	must(wms_open(meta, &store, &why), meta);
	for (uint64_t n = from + 1; n <= count; n++) {
		struct weight_identity id = identity_of("main", n);

		stage(&id);
		publish(&id, NULL);
	}
	wms_close(store);
	buf_release(&why);
}

static void copy(const char *meta, const char *other)
{
	static char block[1 << 20];
	char from[PATH_LEN], to[PATH_LEN];
	int in, out;
	ssize_t n;

	(void)snprintf(from, sizeof(from), "%s/data.mdb", meta);
	(void)snprintf(to, sizeof(to), "%s/data.mdb", other);
	in = open(from, O_RDONLY | O_CLOEXEC);
	out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	must(in < 0 || out < 0 ? -errno : 0, "copying");
	while ((n = read(in, block, sizeof(block))) > 0)
		if (write(out, block, (size_t)n) != n)
			fail(to, strerror(errno));
	must(n < 0 ? -errno : 0, from);
	must(fsync(out) < 0 || fsync(in) < 0 ? -errno : 0, "syncing");
	(void)close(in);
	(void)close(out);
}

static void open_ours(const char *meta)
{
	struct wms_position at = { 0 };
	struct wms_oplog_state log;
	struct buf why = BUF_INIT;
	struct wms_batch batch;
	int r;

	must(wms_open(meta, &store, &why), meta);
	must(wms_oplog_state(store, &log), "the log");
	oplog_first = log.first;
	oplog_next = log.next;
	while ((r = wms_revisions_read(store, &at, &batch)) == 0)
		wms_batch_release(&batch);
	if (r != -ENOENT)
		must(r, "reading all");
	buf_release(&why);
}

static void open_bare(const char *other)
{
	MDB_txn *txn;

	must_lmdb(mdb_env_create(&bare), "LMDB");
	must_lmdb(mdb_env_set_maxdbs(bare, DB_COUNT), "LMDB");
	must_lmdb(mdb_env_set_mapsize(bare, BARE_BYTES), "LMDB");
	must_lmdb(mdb_env_open(bare, other, 0, 0600), other);
	must_lmdb(mdb_txn_begin(bare, NULL, 0, &txn), "LMDB");
	for (unsigned i = 0; i < DB_COUNT; i++)
		must_lmdb(mdb_dbi_open(txn, db_names[i], 0, &dbi[i]),
			  db_names[i]);
	must_lmdb(mdb_txn_commit(txn), "LMDB");
}

static void measure(unsigned pairs)
{
	static const struct {
		const char *name;
		void (*round)(uint64_t *ours, uint64_t *limit);
	} works[] = {
		{ "get", get_round },         { "list", list_round },
		{ "policy", policy_round },   { "publish", publish_round },
		{ "announce", import_round },
	};
	uint64_t ours, limit;

	for (size_t i = 0; i < ARRAY_LEN(works); i++) {
		works[i].round(&ours, &limit);
		for (unsigned n = 0; n < pairs; n++) {
			works[i].round(&ours, &limit);
			(void)printf("%s %" PRIu64 " %" PRIu64 "\n",
				     works[i].name, ours, limit);
		}
	}
}

int main(int argc, char *argv[])
{
	if (argc != 6) {
		(void)fprintf(stderr, "see the head of the source\n");
		return 2;
	}
	count = strtoull(argv[4], NULL, 10);
	must(digest_lv_of(resource, ARRAY_LEN(resource), &key_start), "a key");
	fill(argv[1], strtoull(argv[3], NULL, 10));
	unsynced = false;
	if (mkdir(argv[2], 0700) < 0 && errno != EEXIST)
		fail(argv[2], strerror(errno));
	copy(argv[1], argv[2]);
	open_ours(argv[1]);
	open_bare(argv[2]);
	measure((unsigned)strtoul(argv[5], NULL, 10));
	mdb_env_close(bare);
	wms_close(store);
	return 0;
}
