/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of the first door that need no handle of their own. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/weight_store_priv.h"

#define TENANT_DEFAULT "default"

/* ---- Who may be asked about ---- */

int door_check_tenant(const struct weight_store *s, const char *tenant,
		      struct buf *why)
{
	if (s->config->tenants != CONFIG_TENANTS_DEFAULT ||
	    strcmp(tenant, TENANT_DEFAULT) == 0)
		return 0;
	if (why)
		(void)buf_printf(why,
				 "this store has the tenant '%s' only "
				 "(option tenants)",
				 TENANT_DEFAULT);
	return -EINVAL;
}

int door_check(const struct weight_store *s, const struct weight_identity *id,
	       struct buf *why)
{
	int r = weight_identity_check(id, why);

	return r < 0 ? r : door_check_tenant(s, id->lineage.tenant, why);
}

/* ---- Asking ---- */

int weight_is_exist(struct weight_store *store,
		    const struct weight_identity *identity, bool *ret)
{
	struct weight_metadata *m = NULL;
	int r = door_check(store, identity, NULL);

	if (r == 0)
		r = wms_get(store->records, identity, &m);
	if (r < 0 && r != -ENOENT)
		return r;
	*ret = r == 0 && m->availability == WEIGHT_READY;
	weight_metadata_free(m);
	return 0;
}

/* The store's own record may linger without anybody behind it. */
static bool own_lease_lingers(struct weight_store *s,
			      const struct weight_identity *id)
{
	char hex[DIGEST_HEX_LEN + 1];
	struct weight_group *g;
	bool lingers;

	if (weight_group_hex(id, hex) < 0)
		return false;
	store_lock(s);
	g = map_find(s->groups, hex, DIGEST_HEX_LEN);
	lingers = g && g->lease_id != 0 && g->holders == 0 &&
		  g->lease_expires_ms > clock_realtime_ms();
	store_unlock(s);
	return lingers;
}

static int count_leases(struct weight_store *s,
			const struct weight_identity *id,
			struct weight_lease_count *ret)
{
	struct wms_lease_summary summary;
	int r = wms_lease_summary(s->records, id, clock_realtime_ms(),
				  &summary);

	if (r < 0)
		return r;
	if (summary.active > 0 && own_lease_lingers(s, id))
		summary.active--;
	ret->active = summary.active;
	ret->nearest_expiry_ms = summary.active ? summary.nearest_expiry_ms : 0;
	return 0;
}

int weight_get_metadata(struct weight_store *store,
			const struct weight_identity *identity,
			struct weight_metadata **ret,
			struct weight_lease_count *ret_leases)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	int r = door_check(store, identity, NULL);

	if (r == 0)
		r = wms_get(store->records, identity, &m);
	if (r == 0 && ret_leases)
		r = count_leases(store, identity, ret_leases);
	if (r < 0)
		return r;
	*ret = take_ptr(m);
	return 0;
}

int weight_get_size(struct weight_store *store,
		    const struct weight_identity *identity, uint64_t *ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	int r = door_check(store, identity, NULL);

	if (r == 0)
		r = wms_get(store->records, identity, &m);
	if (r < 0)
		return r;
	if (m->availability != WEIGHT_READY)
		return -EINPROGRESS;
	*ret = m->manifest.logical_bytes;
	return 0;
}

struct weight_page {
	struct wms_page records;
	struct weight_lease_count *leases;
};

int weight_list(struct weight_store *store, const char *tenant,
		const char *name_space, const char *resource, const char *token,
		size_t limit, struct weight_page **ret, struct buf *why)
{
	cleanup(weight_page_free_cleanup) struct weight_page *page = NULL;
	int r = door_check_tenant(store, tenant, why);

	if (r < 0)
		return r;
	page = calloc(1, sizeof(*page));
	if (!page)
		return -ENOMEM;
	r = wms_list(store->records, tenant, name_space, resource, token, limit,
		     &page->records);
	if (r == -EINVAL)
		(void)buf_printf(why, "a part, the limit or the page token is "
				      "not valid");
	if (r < 0)
		return r;
	page->leases = calloc(page->records.count + 1, sizeof(*page->leases));
	if (!page->leases)
		return -ENOMEM;
	for (size_t i = 0; i < page->records.count; i++) {
		r = count_leases(store, &page->records.items[i]->identity,
				 &page->leases[i]);
		if (r < 0)
			return r;
	}
	*ret = take_ptr(page);
	return 0;
}

size_t weight_page_count(const struct weight_page *page)
{
	return page->records.count;
}

const struct weight_metadata *weight_page_at(
	const struct weight_page *page, size_t i,
	struct weight_lease_count *ret_leases)
{
	assert(i < page->records.count);
	if (ret_leases)
		*ret_leases = page->leases[i];
	return page->records.items[i];
}

const char *weight_page_next(const struct weight_page *page)
{
	return page->records.next;
}

void weight_page_free(struct weight_page *page)
{
	if (!page)
		return;
	wms_page_release(&page->records);
	free(page->leases);
	free(page);
}

/* ---- Changing what is there ---- */

/* A revision that isn't live is in no tree, but has a record. */
static int find_live(struct weight_store *s, const struct weight_identity *id,
		     struct weight_group **ret, struct buf *why)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	int r = door_check(s, id, why);

	if (r == 0)
		r = wms_get(s->records, id, &m);
	if (r < 0)
		return r;
	if (m->availability != WEIGHT_READY &&
	    m->availability != WEIGHT_DEGRADED) {
		(void)buf_printf(why, "generation %llu is %s",
				 (unsigned long long)id->generation,
				 weight_availability_name(m->availability));
		return -EINPROGRESS;
	}
	return tree_group_of(s, id, ret);
}

int weight_update_policy(struct weight_store *store,
			 const struct weight_identity *identity,
			 const struct weight_policy *policy,
			 uint64_t expected_metadata_generation, struct buf *why)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	const struct weight_policy_change change = {
		.set_preferred = true,
		.set_mixed_hot_ratio = true,
		.set_mode = true,
		.policy = *policy,
	};
	int r = weight_policy_check(policy, why);

	if (r == 0)
		r = find_live(store, identity, &g, why);
	return r < 0 ? r :
		       weight_group_set_policy(
			       g, &change, expected_metadata_generation, why);
}

int weight_migrate(struct weight_store *store,
		   const struct weight_identity *identity,
		   enum weight_residency target, double hot_ratio,
		   uint64_t expected_metadata_generation,
		   uint64_t *ret_operation_id, struct buf *why)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	bool mixed = target == WEIGHT_MIXED;
	int r;

	if (mixed ? !(hot_ratio > 0 && hot_ratio < 1) : hot_ratio != 0) {
		(void)buf_printf(why, "a move to mixed, and no other, has a "
				      "ratio between 0 and 1");
		return -EINVAL;
	}
	r = find_live(store, identity, &g, why);
	return r < 0 ? r :
		       tree_group_migrate(g, target,
					  expected_metadata_generation,
					  ret_operation_id, why);
}

int weight_get_operation(struct weight_store *store, const char *tenant,
			 uint64_t operation_id, struct weight_operation **ret)
{
	int r = door_check_tenant(store, tenant, NULL);

	if (r == 0)
		r = wms_operation_get(store->records, tenant, operation_id,
				      ret);
	if (r == 0)
		tree_operation_overlay(store, *ret);
	return r;
}

/* What is removed already: whether this is a repeat of it. */
static int remove_again(struct weight_store *s,
			const struct weight_identity *id, uint64_t expected,
			struct buf *why)
{
	const struct wms_delete_request request = {
		.expected_metadata_generation = expected,
	};

	int r = wms_delete_begin(s->records, id, &request, clock_realtime_ms(),
				 NULL);

	if (r == -ECANCELED)
		(void)buf_printf(why, "its metadata_generation is another one "
				      "than was asked for");
	return r;
}

int weight_remove(struct weight_store *store,
		  const struct weight_identity *identity,
		  uint64_t expected_metadata_generation, struct buf *why)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	int r = door_check(store, identity, why);

	if (r == 0)
		r = wms_get(store->records, identity, &m);
	if (r < 0)
		return r;
	if (m->availability == WEIGHT_DELETING ||
	    m->availability == WEIGHT_DELETED)
		return remove_again(store, identity,
				    expected_metadata_generation, why);
	r = find_live(store, identity, &g, why);
	return r < 0 ? r :
		       weight_group_remove(g, expected_metadata_generation,
					   why);
}
