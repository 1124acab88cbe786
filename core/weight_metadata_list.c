/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of the weight metadata store: pages of a resource, and generations. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"

#define TOKEN_SEPARATOR '\x1f'

/* ---- Tokens ---- */

int wms_page_token(const struct weight_metadata *m, struct buf *ret)
{
	return buf_printf(ret, "%s%c%llu", m->identity.lineage.revision,
			  TOKEN_SEPARATOR,
			  (unsigned long long)m->identity.generation);
}

int wms_page_token_parse(const char *token, size_t len,
			 char revision[static WEIGHT_COMPONENT_MAX + 1],
			 uint64_t *ret_generation)
{
	/* No component has it, so that it comes once. */
	const char *at = memchr(token, TOKEN_SEPARATOR, len);
	size_t name_len = at ? (size_t)(at - token) : 0;
	char name[WEIGHT_COMPONENT_MAX + 1];
	int r;

	if (!at || name_len > WEIGHT_COMPONENT_MAX ||
	    memchr(token, '\0', name_len))
		return log_debug(-EINVAL, "page token");
	memcpy(name, token, name_len);
	name[name_len] = '\0';
	if (!weight_component_ok(name))
		return log_debug(-EINVAL, "page token");
	r = weight_generation_parse(at + 1, len - name_len - 1, ret_generation);
	if (r < 0)
		return r;
	memcpy(revision, name, name_len + 1);
	return 0;
}

/* ---- Pages ---- */

/* A page as it is being filled. */
struct filling {
	const struct wms_table *table;
	const char *const *parts; /* tenant, namespace, resource */
	size_t limit;
	/* Behind what it begins; revision "" for the start. */
	char revision[WEIGHT_COMPONENT_MAX + 1];
	uint64_t generation;
	/* One more than the page has, to know whether it is the last one. */
	struct weight_metadata **items;
	size_t count;
	size_t settled; /* of them, nothing can come before any more */
};

static int compare(const char *revision, uint64_t generation,
		   const struct weight_metadata *m)
{
	int c = strcmp(revision, m->identity.lineage.revision);

	if (c != 0)
		return c;
	return generation < m->identity.generation ?
		       -1 :
		       generation > m->identity.generation;
}

static bool is_wanted(const struct filling *f, const struct weight_metadata *m)
{
	const struct weight_lineage *l = &m->identity.lineage;

	return strcmp(l->tenant, f->parts[0]) == 0 &&
	       strcmp(l->name_space, f->parts[1]) == 0 &&
	       strcmp(l->resource, f->parts[2]) == 0 &&
	       compare(f->revision, f->generation, m) < 0;
}

/* Takes the item over: to its place, or away when the page is full before it. */
static void place(struct filling *f, struct weight_metadata *m)
{
	size_t at = f->count;

	while (at > f->settled &&
	       compare(m->identity.lineage.revision, m->identity.generation,
		       f->items[at - 1]) < 0)
		at--;
	if (at > f->limit) {
		weight_metadata_free(m);
		return;
	}
	if (f->count > f->limit)
		weight_metadata_free(f->items[--f->count]);
	memmove(&f->items[at + 1], &f->items[at],
		(f->count - at) * sizeof(*f->items));
	f->items[at] = m;
	f->count++;
}

/* How much of a revision's name a key has. */
static size_t key_name_len(const struct meta_bytes *key, size_t prefix_len)
{
	const char *name = (const char *)key->data + prefix_len;

	return strnlen(name, key->len - prefix_len);
}

/*
 * Keys have the first bytes of a revision. Those that agree in all of them come
 * in another order than their names, so a run of them is sorted as it is read;
 * of a long run no more is kept than the page has room for.
 */
static int fill(struct meta_cursor *c, const struct wms_key *prefix,
		const struct wms_key *from, struct filling *f)
{
	unsigned char run[WMS_KEY_REVISION_MAX];
	struct meta_bytes key, value;
	size_t run_len = 0;
	int r;

	for (r = meta_cursor_seek(c, from->bytes, from->len, &key, &value);
	     r == 0; r = meta_cursor_next(c, &key, &value)) {
		size_t len = key_name_len(&key, prefix->len);
		const char *name = (const char *)key.data + prefix->len;
		void *m;

		if (len > sizeof(run))
			return log_debug(-EUCLEAN, "key of a revision");
		if (len < sizeof(run) || run_len != len ||
		    memcmp(run, name, len) != 0) {
			f->settled = f->count;
			if (f->count > f->limit)
				return 0;
		}
		memcpy(run, name, len);
		run_len = len;
		r = f->table->decode(&value, &m);
		if (r < 0)
			return r;
		if (is_wanted(f, m))
			place(f, m);
		else
			weight_metadata_free(m);
	}
	return r == -ENOENT ? 0 : r;
}

/* The first key that may be behind the token. */
static int fill_from(const struct filling *f, const struct wms_key *prefix,
		     struct wms_key *ret)
{
	size_t len = strlen(f->revision);
	struct wms_key key = *prefix;

	if (len > WMS_KEY_REVISION_MAX)
		len = WMS_KEY_REVISION_MAX;
	wms_key_add(&key, f->revision, len);
	if (len > 0 && len < WMS_KEY_REVISION_MAX) {
		wms_key_add(&key, "", 1);
		wms_key_add_u64(&key, f->generation);
	}
	*ret = key;
	return 0;
}

static int page_finish(struct filling *f, struct wms_page *ret)
{
	struct wms_page page = { .items = f->items, .count = f->count };
	cleanup(buf_release) struct buf token = BUF_INIT;
	int r;

	if (page.count > f->limit) {
		weight_metadata_free(page.items[--page.count]);
		f->count--;
		r = wms_page_token(page.items[page.count - 1], &token);
		if (r < 0)
			return r;
		memcpy(page.next, token.data, token.len + 1);
	}
	*ret = page;
	f->items = NULL;
	f->count = 0;
	return 0;
}

static void filling_release(struct filling *f)
{
	for (size_t i = 0; i < f->count; i++)
		weight_metadata_free(f->items[i]);
	free(f->items);
}

static int list_check(const struct weight_lineage *probe, const char *token,
		      size_t *limit, struct filling *f)
{
	int r = weight_lineage_check(probe, NULL);

	if (r < 0)
		return r;
	if (*limit == 0)
		*limit = WEIGHT_LIST_LIMIT_DEFAULT;
	if (*limit > WEIGHT_LIST_LIMIT_MAX)
		return log_debug(-EINVAL, "limit %zu", *limit);
	return token[0] ? wms_page_token_parse(token, strlen(token),
					       f->revision, &f->generation) :
			  0;
}

int wms_list(struct weight_metadata_store *store, const char *tenant,
	     const char *name_space, const char *resource, const char *token,
	     size_t limit, struct wms_page *ret)
{
	const char *const parts[] = { tenant, name_space, resource };
	const struct weight_lineage probe = { tenant, name_space, resource,
					      "any" };
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	cleanup(filling_release) struct filling f = {
		.table = wms_revisions_of(store), .parts = parts
	};
	struct wms_key prefix, from;
	int r;

	if ((r = list_check(&probe, token, &limit, &f)) < 0 ||
	    (r = wms_key_of_resource(parts, &prefix)) < 0 ||
	    (r = fill_from(&f, &prefix, &from)) < 0)
		return r;
	f.limit = limit;
	f.items = calloc(limit + 2, sizeof(*f.items));
	if (!f.items)
		return -ENOMEM;
	if ((r = meta_read_begin(store->meta, &txn)) < 0 ||
	    (r = meta_cursor_open(txn, META_DB_REVISION, prefix.bytes,
				  prefix.len, &c)) < 0 ||
	    (r = fill(c, &prefix, &from, &f)) < 0)
		return r;
	return page_finish(&f, ret);
}

void wms_page_release(struct wms_page *page)
{
	for (size_t i = 0; i < page->count; i++)
		weight_metadata_free(page->items[i]);
	free(page->items);
	*page = (struct wms_page){ .items = NULL };
}

/* ---- Generations ---- */

int wms_generations(struct weight_metadata_store *store,
		    const struct weight_lineage *lineage, uint64_t after,
		    size_t limit, struct wms_generation *ret, size_t *ret_count)
{
	cleanup(meta_read_end_cleanup) struct meta_txn *txn = NULL;
	cleanup(meta_cursor_close_cleanup) struct meta_cursor *c = NULL;
	const struct wms_table *table = wms_revisions_of(store);
	struct meta_bytes key, value;
	struct wms_key prefix, from;
	size_t n = 0;
	int r;

	*ret_count = 0;
	if (after == UINT64_MAX)
		return 0;
	if ((r = weight_lineage_check(lineage, NULL)) < 0 ||
	    (r = wms_key_of_lineage(lineage, &prefix)) < 0)
		return r;
	from = prefix;
	wms_key_add_u64(&from, after + 1);
	if ((r = meta_read_begin(store->meta, &txn)) < 0 ||
	    (r = meta_cursor_open(txn, META_DB_REVISION, prefix.bytes,
				  prefix.len, &c)) < 0)
		return r;
	for (r = meta_cursor_seek(c, from.bytes, from.len, &key, &value);
	     r == 0 && n < limit; r = meta_cursor_next(c, &key, &value)) {
		const struct weight_metadata *m;
		void *record;

		if (key.len != from.len)
			continue;
		r = table->decode(&value, &record);
		if (r < 0)
			return r;
		m = record;
		if (weight_lineage_equal(&m->identity.lineage, lineage))
			ret[n++] =
				(struct wms_generation){ m->identity.generation,
							 m->availability };
		weight_metadata_free(record);
	}
	if (r < 0 && r != -ENOENT)
		return r;
	*ret_count = n;
	return 0;
}
