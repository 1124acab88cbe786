/* SPDX-License-Identifier: Apache-2.0 */
/* The lineages of the weight metadata store: watermarks, claims, and names. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/log.h"
#include "core/weight_key.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"

/* ---- Records ---- */

int wms_lineage_find(struct meta_txn *txn, const struct weight_lineage *lineage,
		     struct weight_lineage_record **ret)
{
	struct weight_lineage_record *l;
	struct meta_bytes value;
	struct digest key;
	int r;

	r = weight_lineage_hash(lineage, &key);
	if (r < 0)
		return r;
	r = meta_get(txn, META_DB_LINEAGE, key.bytes, sizeof(key.bytes),
		     &value);
	if (r == -ENOENT) {
		*ret = NULL;
		return 0;
	}
	if (r < 0)
		return r;
	r = weight_record_lineage_decode(value.data, value.len, &l);
	if (r < 0)
		return r;
	if (!weight_lineage_equal(&l->lineage, lineage)) {
		weight_lineage_record_free(l);
		return log_debug(-EUCLEAN, "record of another lineage");
	}
	*ret = l;
	return 0;
}

int wms_lineage_put(struct meta_txn *txn, const struct weight_lineage_record *l)
{
	cleanup(buf_release) struct buf b = BUF_INIT;
	struct digest key;
	int r;

	r = weight_lineage_hash(&l->lineage, &key);
	if (r == 0)
		r = weight_record_lineage_encode(l, &b);
	return r < 0 ? r :
		       meta_put(txn, META_DB_LINEAGE, key.bytes,
				sizeof(key.bytes), b.data, b.len);
}

int wms_fenced(struct meta_txn *txn, const struct weight_identity *identity,
	       bool *ret)
{
	struct weight_lineage_record *l;
	int r = wms_lineage_find(txn, &identity->lineage, &l);

	if (r < 0)
		return r;
	*ret = weight_lineage_fences(l, identity->generation);
	weight_lineage_record_free(l);
	return 0;
}

int wms_lineage_get(struct weight_metadata_store *store,
		    const struct weight_lineage *lineage,
		    struct weight_lineage_record **ret)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	struct weight_lineage_record *l;
	int r = weight_lineage_check(lineage, NULL);

	if (r == 0)
		r = meta_read_begin(store->meta, &txn);
	if (r == 0)
		r = wms_lineage_find(txn, lineage, &l);
	if (r < 0)
		return r;
	if (!l)
		return -ENOENT;
	*ret = l;
	return 0;
}

static int lineage_decode(const struct meta_bytes *b, void **ret)
{
	struct weight_lineage_record *l;
	int r = weight_record_lineage_decode(b->data, b->len, &l);

	if (r == 0)
		*ret = l;
	return r;
}

static void lineage_free(void *l)
{
	weight_lineage_record_free(l);
}

const struct wms_table wms_lineages = { META_DB_LINEAGE, lineage_decode,
					lineage_free };

int wms_lineage_each(struct weight_metadata_store *store,
		     struct wms_position *position,
		     struct weight_lineage_record **ret)
{
	void *record;
	int r = wms_table_each(store, &wms_lineages, position, &record);

	if (r == 0)
		*ret = record;
	return r;
}

/* ---- Claims ---- */

/* What a decision about a claim sees; owned, but for its borrowed view. */
struct scene {
	struct weight_lineage_record *lineage;
	struct weight_metadata *base, *target;
	struct weight_staging *staged;
	struct weight_lineage_state state;
	bool base_operation_blocks;
};

static void scene_release(struct scene *s)
{
	weight_lineage_record_free(s->lineage);
	weight_metadata_free(s->base);
	weight_metadata_free(s->target);
	weight_staging_free(s->staged);
}

static int scene_base(struct meta_txn *txn,
		      const struct weight_identity *identity,
		      const char *ignore, uint64_t now_ms, struct scene *s)
{
	struct wms_lease_scan scan = { .ignore = ignore, .now_ms = now_ms };
	struct wms_key key;
	void *record = NULL;
	int r = wms_key_of(identity, &key);

	if (r == 0)
		r = wms_table_find(txn, &wms_revisions, &key, identity,
				   &record);
	if (r < 0 || !record)
		return r;
	s->base = record;
	scan.metadata_generation = s->base->metadata_generation;
	r = wms_lease_scan(txn, &key, identity, &scan);
	s->state.base_leases = scan.summary.active;
	return r < 0 ? r :
		       wms_operation_blocks(txn, s->base,
					    &s->base_operation_blocks);
}

static int scene_target(struct meta_txn *txn,
			const struct weight_identity *identity, struct scene *s)
{
	struct wms_key key;
	void *record = NULL;
	int r = wms_key_of(identity, &key);

	if (r == 0)
		r = wms_table_find(txn, &wms_revisions, &key, identity,
				   &record);
	if (r < 0)
		return r;
	s->target = record;
	r = wms_table_find(txn, &wms_stagings, &key, identity, &record);
	if (r == 0)
		s->staged = record;
	return r;
}

/* base or target 0: those of the claim that the lineage has. */
static int scene_get(struct meta_txn *txn, const struct weight_lineage *lineage,
		     uint64_t base, uint64_t target, const char *ignore,
		     uint64_t now_ms, struct scene *s)
{
	struct weight_identity id = { .lineage = *lineage };
	int r = wms_lineage_find(txn, lineage, &s->lineage);

	if (r < 0)
		return r;
	if (base == 0 && s->lineage && s->lineage->claimed) {
		base = s->lineage->claim.base;
		target = s->lineage->claim.target;
	}
	id.generation = base;
	if (base != 0)
		r = scene_base(txn, &id, ignore, now_ms, s);
	id.generation = target;
	if (r == 0 && target != 0)
		r = scene_target(txn, &id, s);
	s->state.lineage = s->lineage;
	s->state.base = s->base;
	s->state.target = s->target;
	s->state.staged = s->staged;
	return r;
}

/* A change of a lineage: decide() gets what is there. */
struct claim_change {
	const struct weight_metadata_store *store;
	const struct weight_lineage *lineage;
	uint64_t base, target; /* 0: those of its claim */
	uint64_t now_ms;
	bool wants_durable;
	int (*decide)(const struct claim_change *c,
		      const struct weight_lineage_state *state,
		      struct weight_lineage_record *ret, bool *ret_changed);
	/* What one of the kinds of changes takes. */
	const struct weight_upsert_request *request;
	const struct weight_claim_name *name;
	struct buf *why;
	struct weight_lineage_record *result;
	struct weight_claim before; /* for the metrics; its strings are gone */
	bool was_claimed;
};

static int claim_write(const struct weight_metadata_store *store,
		       struct meta_txn *txn,
		       const struct weight_lineage_record *next)
{
	const struct oplog_change change = {
		.type = OPLOG_LINEAGE_UPSERT,
		.timestamp_ms = next->claim.updated_at_ms,
		.lineage = next,
	};
	int r = wms_lineage_put(txn, next);

	if (r == 0)
		r = wms_names_add(txn, WMS_NAMES_CLAIMS, &next->lineage);
	return r < 0 ? r : wms_log(store, txn, &change);
}

static int claim_body(struct meta_txn *txn, void *arg)
{
	cleanup(scene_release) struct scene scene = { NULL };
	struct claim_change *c = arg;
	struct weight_lineage_record next;
	bool changed;
	int r;

	weight_lineage_record_free(take_ptr(c->result));
	r = scene_get(txn, c->lineage, c->base, c->target, NULL, c->now_ms,
		      &scene);
	if (r < 0)
		return r;
	scene.state.wants_durable = c->wants_durable;
	c->was_claimed = scene.lineage && scene.lineage->claimed;
	if (c->was_claimed)
		c->before = scene.lineage->claim;
	r = c->decide(c, &scene.state, &next, &changed);
	if (r < 0)
		return r;
	r = weight_lineage_record_copy(&next, &c->result);
	if (r < 0)
		return r;
	return changed ? claim_write(c->store, txn, &next) :
			 WMS_NOTHING_TO_WRITE;
}

static int claim_apply(struct weight_metadata_store *store,
		       enum meta_purpose purpose, struct claim_change *c,
		       struct weight_lineage_record **ret)
{
	int r = weight_lineage_check(c->lineage, c->why);

	if (r < 0)
		return r;
	c->store = store;
	r = wms_update(store, purpose, claim_body, c);
	if (r == 0)
		wms_count_claim(c->was_claimed ? &c->before : NULL,
				&c->result->claim);
	if (r == 0 && ret)
		*ret = take_ptr(c->result);
	weight_lineage_record_free(c->result);
	return r;
}

static int decide_begin(const struct claim_change *c,
			const struct weight_lineage_state *state,
			struct weight_lineage_record *ret, bool *ret_changed)
{
	return weight_decide_upsert_begin(state, c->request, c->now_ms, ret,
					  ret_changed, c->why);
}

int wms_upsert_begin(struct weight_metadata_store *store,
		     const struct weight_upsert_request *request,
		     uint64_t now_ms, struct weight_lineage_record **ret,
		     struct buf *why)
{
	struct claim_change c = {
		.lineage = &request->base.lineage,
		.base = request->base.generation,
		.target = request->target.generation,
		.now_ms = now_ms,
		.decide = decide_begin,
		.request = request,
		.why = why,
	};

	return claim_apply(store, META_NORMAL, &c, ret);
}

static int decide_commit(const struct claim_change *c,
			 const struct weight_lineage_state *state,
			 struct weight_lineage_record *ret, bool *ret_changed)
{
	return weight_decide_upsert_commit(state, c->name, c->now_ms, ret,
					   ret_changed, c->why);
}

static int decide_abort(const struct claim_change *c,
			const struct weight_lineage_state *state,
			struct weight_lineage_record *ret, bool *ret_changed)
{
	return weight_decide_upsert_abort(state, c->name, c->now_ms, ret,
					  ret_changed, c->why);
}

int wms_upsert_commit(struct weight_metadata_store *store,
		      const struct wms_claim_request *request, uint64_t now_ms,
		      struct weight_lineage_record **ret, struct buf *why)
{
	struct claim_change c = {
		.lineage = request->lineage,
		.now_ms = now_ms,
		.wants_durable = request->wants_durable,
		.decide = decide_commit,
		.name = &request->name,
		.why = why,
	};

	return claim_apply(store, META_RESERVED, &c, ret);
}

int wms_upsert_abort(struct weight_metadata_store *store,
		     const struct wms_claim_request *request, uint64_t now_ms,
		     struct weight_lineage_record **ret, struct buf *why)
{
	struct claim_change c = {
		.lineage = request->lineage,
		.now_ms = now_ms,
		.decide = decide_abort,
		.name = &request->name,
		.why = why,
	};

	return claim_apply(store, META_RESERVED, &c, ret);
}

static int decide_advance(const struct claim_change *c,
			  const struct weight_lineage_state *state,
			  struct weight_lineage_record *ret, bool *ret_changed)
{
	return weight_decide_claim_advance(state, c->now_ms, ret, ret_changed);
}

int wms_claim_advance(struct weight_metadata_store *store,
		      const struct weight_lineage *lineage, uint64_t now_ms,
		      struct weight_lineage_record **ret)
{
	struct claim_change c = {
		.lineage = lineage,
		.now_ms = now_ms,
		.decide = decide_advance,
	};

	return claim_apply(store, META_RESERVED, &c, ret);
}

int wms_claim_step(struct weight_metadata_store *store,
		   const struct weight_lineage *lineage, bool wants_durable,
		   const char *ignore_lease_holder, uint64_t now_ms,
		   enum weight_claim_step *ret_step,
		   struct weight_lineage_record **ret)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	cleanup(scene_release) struct scene scene = { NULL };
	int r = weight_lineage_check(lineage, NULL);

	if (r == 0)
		r = meta_read_begin(store->meta, &txn);
	if (r == 0)
		r = scene_get(txn, lineage, 0, 0, ignore_lease_holder, now_ms,
			      &scene);
	if (r < 0)
		return r;
	if (!scene.lineage)
		return -ENOENT;
	scene.state.wants_durable = wants_durable;
	*ret_step = weight_decide_claim_step(&scene.state,
					     scene.base_operation_blocks);
	*ret = take_ptr(scene.lineage);
	return 0;
}

/* ---- Names ---- */

#define NAME_LEVELS 4

/* What the keys of all names at one place begin with. */
static int names_prefix(enum wms_names names, const char *const parts[],
			unsigned depth, struct wms_key *ret)
{
	unsigned char kind = (unsigned char)names;
	struct wms_key key = { .len = 0 };
	struct digest d;
	int r = digest_lv_of(parts, depth, &d);

	if (r < 0)
		return r;
	wms_key_add(&key, &kind, sizeof(kind));
	wms_key_add(&key, d.bytes, sizeof(d.bytes));
	*ret = key;
	return 0;
}

static bool has_names(const char *const parts[static NAME_LEVELS])
{
	for (unsigned i = 0; i < NAME_LEVELS; i++)
		if (strlen(parts[i]) > WMS_NAME_MAX)
			return false;
	return true;
}

int wms_names_key(enum wms_names names, const struct weight_lineage *lineage,
		  struct wms_key *ret)
{
	const char *const parts[NAME_LEVELS] = { lineage->tenant,
						 lineage->name_space,
						 lineage->resource,
						 lineage->revision };
	int r;

	ret->len = 0;
	if (!has_names(parts))
		return 0;
	r = names_prefix(names, parts, NAME_LEVELS - 1, ret);
	if (r == 0)
		wms_key_add(ret, parts[NAME_LEVELS - 1],
			    strlen(parts[NAME_LEVELS - 1]));
	return r;
}

int wms_names_add(struct meta_txn *txn, enum wms_names names,
		  const struct weight_lineage *lineage)
{
	const char *const parts[NAME_LEVELS] = { lineage->tenant,
						 lineage->name_space,
						 lineage->resource,
						 lineage->revision };
	struct meta_bytes value;
	struct wms_key key;
	int r = 0;

	if (!has_names(parts))
		return 0;
	/* What has its last level has the others, too. */
	for (unsigned depth = NAME_LEVELS; depth-- > 0;) {
		r = names_prefix(names, parts, depth, &key);
		if (r < 0)
			return r;
		wms_key_add(&key, parts[depth], strlen(parts[depth]));
		r = meta_get(txn, META_DB_NAME, key.bytes, key.len, &value);
		if (r != -ENOENT)
			return r;
		r = meta_put(txn, META_DB_NAME, key.bytes, key.len, "", 0);
		if (r < 0)
			return r;
	}
	return r;
}

/* Of one record; what is damaged is no reason not to look at the others. */
static int names_add_tombstone(struct meta_txn *txn,
			       const struct meta_bytes *record)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	int r = weight_record_metadata_decode(record->data, record->len, &m);

	if (wms_is_damage(r))
		return 0;
	if (r < 0 || m->availability != WEIGHT_DELETED)
		return r;
	return wms_names_add(txn, WMS_NAMES_TOMBSTONES, &m->identity.lineage);
}

int wms_names_add_tombstones(struct meta_txn *txn)
{
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	struct meta_bytes key, value;
	struct wms_key at = { .len = 0 };
	int r = meta_cursor_open(txn, META_DB_REVISION, NULL, 0, &c);

	while (r == 0) {
		/* Each time anew: what was added may have moved the rest. */
		r = meta_cursor_seek(c, at.bytes, at.len, &key, &value);
		if (r == 0 && key.len == at.len &&
		    memcmp(key.data, at.bytes, at.len) == 0)
			r = meta_cursor_next(c, &key, &value);
		if (r < 0)
			break;
		at.len = 0;
		wms_key_add(&at, key.data, key.len);
		r = names_add_tombstone(txn, &value);
	}
	return r == -ENOENT ? 0 : r;
}

int wms_names_next(struct weight_metadata_store *store, enum wms_names names,
		   const char *const parts[], unsigned depth, const char *after,
		   struct buf *ret)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	struct meta_bytes key, value;
	struct wms_key prefix, from;
	int r;

	if (depth >= NAME_LEVELS || strlen(after) > WMS_NAME_MAX)
		return log_debug(-EINVAL, "depth %u", depth);
	r = names_prefix(names, parts, depth, &prefix);
	if (r < 0)
		return r;
	from = prefix;
	/* The least name behind it. */
	wms_key_add(&from, after, strlen(after));
	wms_key_add(&from, "", 1);
	if ((r = meta_read_begin(store->meta, &txn)) < 0 ||
	    (r = meta_cursor_open(txn, META_DB_NAME, prefix.bytes, prefix.len,
				  &c)) < 0)
		return r;
	r = meta_cursor_seek(c, from.bytes, from.len, &key, &value);
	if (r < 0)
		return r;
	return buf_append(ret, (const char *)key.data + prefix.len,
			  key.len - prefix.len);
}
