/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of a published group's service directory. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "core/tree_priv.h"

/* ---- sha256sums ---- */

/* One line as sha256sum(1) writes it, odd names escaped as it does. */
static int sum_line(const char *path, const struct digest *d, struct buf *ret)
{
	char hex[DIGEST_HEX_LEN + 1];
	bool odd = strpbrk(path, "\\\n\r") != NULL;
	int r;

	digest_to_hex(d, hex);
	r = buf_printf(ret, "%s%s  ", odd ? "\\" : "", hex);
	for (const char *p = path; *p && r == 0; p++) {
		if (*p == '\\')
			r = buf_append(ret, "\\\\", 2);
		else if (*p == '\n')
			r = buf_append(ret, "\\n", 2);
		else if (*p == '\r')
			r = buf_append(ret, "\\r", 2);
		else
			r = buf_append(ret, p, 1);
	}
	return r < 0 ? r : buf_append(ret, "\n", 1);
}

static int sum_files(struct weight_group *g, const struct weight_tensors *t,
		     const struct weight_waiter *waiter, struct buf *ret)
{
	for (size_t i = 0; i < t->file_count; i++) {
		const struct listed_file *f = &t->files[i];
		struct digest digest;
		auto_fd int fd = -1;
		int r;

		fd = openat(g->files_fd, f->path,
			    O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			return -errno;
		if ((r = tree_hash_range(fd, 0, f->size, waiter, &digest)) <
			    0 ||
		    (r = sum_line(f->path, &digest, ret)) < 0)
			return r;
	}
	return 0;
}

int weight_group_sha256sums(struct weight_group *group,
			    const struct weight_waiter *waiter, struct buf *ret)
{
	cleanup(weight_tensors_unref_cleanup) struct weight_tensors *t = NULL;
	struct weight_store *s = group->store;
	struct buf text = BUF_INIT;
	bool known;
	int r;

	store_lock(s);
	known = group->sha256sums != NULL;
	r = known ? buf_append(ret, group->sha256sums,
			       strlen(group->sha256sums)) :
		    0;
	store_unlock(s);
	if (known)
		return r;
	r = weight_group_tensors(group, &t);
	if (r == 0)
		r = sum_files(group, t, waiter, &text);
	if (r == 0)
		r = buf_append(ret, text.data, text.len);
	if (r == 0 && text.cap) {
		store_lock(s);
		if (!group->sha256sums)
			group->sha256sums = take_ptr(text.data);
		store_unlock(s);
		if (!text.data)
			text = (struct buf)BUF_INIT;
	}
	buf_release(&text);
	return r;
}

/* ---- metadata.json ---- */

void tree_put_lineage(struct json_object *o, const struct weight_lineage *l)
{
	json_put_text(o, "tenant_id", l->tenant);
	json_put_text(o, "namespace", l->name_space);
	json_put_text(o, "resource_id", l->resource);
	json_put_text(o, "revision", l->revision);
}

void tree_put_digest(struct json_object *o, const char *key,
		     const struct digest *d)
{
	char hex[DIGEST_HEX_LEN + 1];

	digest_to_hex(d, hex);
	json_put_text(o, key, hex);
}

void tree_put_policy(struct json_object *o, const struct weight_policy *p)
{
	json_put_text(o, "preferred_residency",
		      weight_residency_name(p->preferred));
	json_put_text(o, "migration_mode", weight_migration_mode_name(p->mode));
	json_put_ratio(o, "mixed_hot_ratio", p->mixed_hot_ratio);
}

static void put_texts(struct json_object *o, const struct weight_metadata *m)
{
	const struct weight_manifest_ref *ref = &m->manifest;

	tree_put_lineage(o, &m->identity.lineage);
	json_put_text(o, "manifest_key", ref->manifest_key);
	tree_put_digest(o, "manifest_sha256", &ref->manifest_sha256);
	json_put_text(o, "payload_group_id", ref->payload_group_id);
	tree_put_digest(o, "payload_keys_sha256", &ref->payload_keys_sha256);
	tree_put_digest(o, "affinity_digest", &m->affinity_digest);
	json_put_text(o, "availability",
		      weight_availability_name(m->availability));
	json_put_text(o, "residency", weight_residency_name(m->residency));
	tree_put_policy(o, &m->policy);
}

static void put_numbers(struct json_object *o, const struct weight_metadata *m)
{
	json_put_u64(o, "weight_generation", m->identity.generation);
	json_put_u64(o, "payload_count", m->manifest.payload_count);
	json_put_u64(o, "logical_bytes", m->manifest.logical_bytes);
	json_put_u64(o, "affinity_count", m->affinity_count);
	json_put_u64(o, "metadata_generation", m->metadata_generation);
	json_put_u64(o, "created_at_ms", m->created_at_ms);
	json_put_u64(o, "updated_at_ms", m->updated_at_ms);
	json_put_u64(o, "last_accessed_at_ms", m->last_accessed_at_ms);
	if (m->operation_id)
		json_put_u64(o, "operation_id", m->operation_id);
	json_put_ratio(o, "observed_hot_ratio", m->observed_hot_ratio);
}

int tree_metadata_json(const struct weight_metadata *m, struct buf *ret)
{
	struct json_object o = JSON_OBJECT_INIT;

	put_texts(&o, m);
	put_numbers(&o, m);
	json_put_bool(&o, "durable", m->durable);
	return json_object_end(&o, ret);
}

int weight_group_metadata_json(struct weight_group *group, struct buf *ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	int r = weight_group_metadata(group, &m);

	return r < 0 ? r : tree_metadata_json(m, ret);
}
