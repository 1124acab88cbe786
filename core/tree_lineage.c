/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the records say of lineages: the generations of one, how far it has
 * come, its replacement, and which ones have claims and tombstones.
 */
#include <errno.h>

#include "core/tree_priv.h"
#include "core/weight_key.h"

/* Generations that are read at once when most of them are passed over. */
#define READ_MAX 128

#define IN(availability) (1u << WEIGHT_##availability)
#define VISIBLE (IN(READY) | IN(DEGRADED))
#define REMOVED IN(DELETED)

/* ---- Generations ---- */

/* At most `limit` of those whose availability is one of `states`. */
static int collect(struct weight_metadata_store *records,
		   const struct weight_lineage *lineage, unsigned states,
		   uint64_t after, size_t limit, uint64_t *ret,
		   size_t *ret_count)
{
	struct wms_generation found[READ_MAX];
	size_t take = limit < READ_MAX ? limit : READ_MAX;
	size_t count = 0, n;

	while (count < limit) {
		int r = wms_generations(records, lineage, after, take, found,
					&n);

		if (r < 0)
			return r;
		if (n == 0)
			break;
		after = found[n - 1].generation;
		for (size_t i = 0; i < n && count < limit; i++)
			if (states & 1u << found[i].availability)
				ret[count++] = found[i].generation;
		take = READ_MAX;
	}
	*ret_count = count;
	return 0;
}

static int collect_staged(struct weight_metadata_store *records,
			  const struct weight_lineage *lineage, uint64_t after,
			  size_t limit, uint64_t *ret, size_t *ret_count)
{
	size_t count = 0;
	int r = 0;

	while (count < limit && r == 0) {
		struct weight_staging *st = NULL;

		r = wms_staged_next(records, lineage, after, &st);
		if (r == 0)
			after = ret[count++] = st->identity.generation;
		weight_staging_free(st);
	}
	if (r < 0 && r != -ENOENT)
		return r;
	*ret_count = count;
	return 0;
}

int weight_dir_generations(struct weight_dir *lineage, bool staged,
			   uint64_t after, size_t limit, uint64_t *ret,
			   size_t *ret_count)
{
	cleanup(weight_identity_free_cleanup) struct weight_identity *id = NULL;
	struct weight_metadata_store *records = lineage->store->records;
	int r = tree_lineage_of(lineage, 1, &id);

	if (r < 0)
		return r;
	if (staged)
		return collect_staged(records, &id->lineage, after, limit, ret,
				      ret_count);
	return collect(records, &id->lineage, VISIBLE, after, limit, ret,
		       ret_count);
}

int weight_dir_next_generation(struct weight_dir *lineage, bool staged,
			       uint64_t after, uint64_t *ret)
{
	size_t count;
	int r = weight_dir_generations(lineage, staged, after, 1, ret, &count);

	return r < 0 ? r : count ? 0 : -ENOENT;
}

/* ---- The record of a lineage ---- */

static int record_of_dir(struct weight_dir *lineage,
			 struct weight_lineage_record **ret)
{
	cleanup(weight_identity_free_cleanup) struct weight_identity *id = NULL;
	int r = tree_lineage_of(lineage, 1, &id);

	if (r == 0)
		r = wms_lineage_get(lineage->store->records, &id->lineage, ret);
	return r == -ENOENT ? -ENODATA : r;
}

int weight_dir_watermark(struct weight_dir *lineage, uint64_t *ret)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	int r = record_of_dir(lineage, &l);

	if (r == 0)
		*ret = l->watermark;
	return r;
}

int weight_dir_claim(struct weight_dir *lineage, struct buf *ret)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	int r = record_of_dir(lineage, &l);

	if (r < 0)
		return r;
	if (!l->claimed)
		return -ENODATA;
	r = buf_printf(ret, "%llu by %llu, mode=%s, phase=%s, request_id=%s",
		       (unsigned long long)l->claim.base,
		       (unsigned long long)l->claim.target,
		       weight_upsert_mode_name(l->claim.mode),
		       weight_upsert_phase_name(l->claim.phase),
		       l->claim.request_id);
	if (r == 0 && l->claim.error[0])
		r = buf_printf(ret, ", error=%s", l->claim.error);
	return r;
}

/* ---- Names of what there is ---- */

/* Parts of a lineage as they are in records. */
struct parts {
	const char *at[WEIGHT_TREE_LINEAGE_DEPTH];
	struct buf bytes[WEIGHT_TREE_LINEAGE_DEPTH];
};

static void parts_release(struct parts *p)
{
	for (unsigned i = 0; i < WEIGHT_TREE_LINEAGE_DEPTH; i++)
		buf_release(&p->bytes[i]);
}

/* From names in a path. -ENOENT what is none, and so nobody has. */
static int parts_decode(const char *const names[], unsigned depth,
			struct parts *ret)
{
	int r = 0;

	for (unsigned i = 0; i < WEIGHT_TREE_LINEAGE_DEPTH; i++)
		ret->bytes[i] = (struct buf)BUF_INIT;
	for (unsigned i = 0; i < depth && r == 0; i++) {
		r = weight_path_decode(names[i], strlen(names[i]),
				       &ret->bytes[i]);
		ret->at[i] = ret->bytes[i].data;
	}
	if (r < 0)
		parts_release(ret);
	return r == -EINVAL || r == -ENAMETOOLONG ? -ENOENT : r;
}

static struct weight_lineage lineage_of(const struct parts *p)
{
	return (struct weight_lineage){ p->at[0], p->at[1], p->at[2],
					p->at[3] };
}

static enum wms_names kind_of(enum weight_tree_names names)
{
	return names == WEIGHT_TREE_CLAIMS ? WMS_NAMES_CLAIMS :
					     WMS_NAMES_TOMBSTONES;
}

/* Those that are too long for a path are passed over. */
static int next_encoded(struct weight_store *s, enum wms_names kind,
			const struct parts *p, unsigned depth,
			const char *after, struct buf *ret)
{
	struct buf at = BUF_INIT;
	int r = buf_append(&at, after, strlen(after));

	while (r == 0) {
		struct buf next = BUF_INIT;

		r = wms_names_next(s->records, kind, p->at, depth, at.data,
				   &next);
		buf_release(&at);
		at = next;
		if (r == 0)
			r = weight_path_encode(at.data, ret);
		if (r == 0)
			break;
		if (r == -ENAMETOOLONG)
			r = 0;
	}
	buf_release(&at);
	return r;
}

int weight_tree_names_next(struct weight_store *store,
			   enum weight_tree_names names,
			   const char *const parts[], unsigned depth,
			   const char *after, struct buf *ret)
{
	struct buf from = BUF_INIT;
	struct parts p;
	int r = parts_decode(parts, depth, &p);

	if (r < 0)
		return r;
	if (after[0] != '\0')
		r = weight_path_decode(after, strlen(after), &from);
	if (r == 0)
		r = next_encoded(store, kind_of(names), &p, depth, from.data,
				 ret);
	buf_release(&from);
	parts_release(&p);
	return r;
}

/* What a lineage has is looked for itself. */
static int find_lineage(struct weight_store *s, enum weight_tree_names names,
			const struct parts *p)
{
	const struct weight_lineage lineage = lineage_of(p);
	struct weight_lineage_record *l = NULL;
	uint64_t generation;
	size_t count = 0;
	int r;

	if (names == WEIGHT_TREE_TOMBSTONES) {
		r = collect(s->records, &lineage, REMOVED, 0, 1, &generation,
			    &count);
		return r < 0 ? r : count ? 0 : -ENOENT;
	}
	r = wms_lineage_get(s->records, &lineage, &l);
	if (r == 0 && !l->claimed)
		r = -ENOENT;
	weight_lineage_record_free(l);
	return r;
}

int weight_tree_names_find(struct weight_store *store,
			   enum weight_tree_names names,
			   const char *const parts[], unsigned depth)
{
	struct buf first = BUF_INIT;
	struct parts p;
	int r = parts_decode(parts, depth, &p);

	if (r < 0)
		return r;
	if (depth == WEIGHT_TREE_LINEAGE_DEPTH)
		r = find_lineage(store, names, &p);
	else
		r = wms_names_next(store->records, kind_of(names), p.at, depth,
				   "", &first);
	buf_release(&first);
	parts_release(&p);
	return r;
}

/* ---- Tombstones ---- */

int weight_tree_tombstone_next(struct weight_store *store,
			       const char *const parts[], uint64_t after,
			       uint64_t *ret)
{
	struct weight_lineage lineage;
	struct parts p;
	size_t count = 0;
	int r = parts_decode(parts, WEIGHT_TREE_LINEAGE_DEPTH, &p);

	if (r < 0)
		return r;
	lineage = lineage_of(&p);
	r = collect(store->records, &lineage, REMOVED, after, 1, ret, &count);
	parts_release(&p);
	return r < 0 ? r : count ? 0 : -ENOENT;
}

int weight_tree_tombstone_json(struct weight_store *store,
			       const char *const parts[], uint64_t generation,
			       struct buf *ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	struct weight_identity id = { .generation = generation };
	struct parts p;
	int r = parts_decode(parts, WEIGHT_TREE_LINEAGE_DEPTH, &p);

	if (r < 0)
		return r;
	id.lineage = lineage_of(&p);
	r = wms_get(store->records, &id, &m);
	parts_release(&p);
	if (r < 0)
		return r;
	return m->availability == WEIGHT_DELETED ? tree_metadata_json(m, ret) :
						   -ENOENT;
}

/* ---- Claims ---- */

static void put_import(struct json_object *o, const struct weight_import *i)
{
	json_put_u64(o, "payload_count", i->payload_count);
	json_put_u64(o, "logical_bytes", i->logical_bytes);
	json_put_u64(o, "affinity_count", i->affinity_count);
	tree_put_digest(o, "affinity_digest", &i->affinity_digest);
	tree_put_policy(o, &i->policy);
}

static void put_claim(struct json_object *o, const struct weight_claim *c)
{
	json_put_text(o, "request_id", c->request_id);
	json_put_text(o, "mode", weight_upsert_mode_name(c->mode));
	json_put_text(o, "phase", weight_upsert_phase_name(c->phase));
	json_put_text(o, "error", c->error);
	json_put_u64(o, "base", c->base);
	json_put_u64(o, "target", c->target);
	json_put_u64(o, "expected_base_metadata_generation",
		     c->expected_base_metadata_generation);
	json_put_u64(o, "created_at_ms", c->created_at_ms);
	json_put_u64(o, "updated_at_ms", c->updated_at_ms);
	if (c->described)
		put_import(o, &c->import);
}

int weight_tree_claim_json(struct weight_store *store,
			   const char *const parts[], struct buf *ret)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	struct json_object o = JSON_OBJECT_INIT;
	struct weight_lineage lineage;
	struct parts p;
	int r = parts_decode(parts, WEIGHT_TREE_LINEAGE_DEPTH, &p);

	if (r < 0)
		return r;
	lineage = lineage_of(&p);
	r = wms_lineage_get(store->records, &lineage, &l);
	parts_release(&p);
	if (r < 0)
		return r;
	if (!l->claimed)
		return -ENOENT;
	tree_put_lineage(&o, &l->lineage);
	json_put_u64(&o, "lineage_metadata_generation",
		     l->lineage_metadata_generation);
	json_put_u64(&o, "committed_weight_generation", l->watermark);
	put_claim(&o, &l->claim);
	return json_object_end(&o, ret);
}
