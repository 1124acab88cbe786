/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of a published group's service directory. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "core/json.h"
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

struct text_field {
	const char *key;
	const char *value;
};

static int put_texts(struct buf *out, const struct text_field *fields,
		     size_t count)
{
	int r = 0;

	for (size_t i = 0; i < count && r == 0; i++) {
		r = buf_printf(out, "%s\"%s\":", out->len > 1 ? "," : "",
			       fields[i].key);
		if (r == 0)
			r = json_write_string(out, fields[i].value,
					      strlen(fields[i].value),
					      JSON_UTF8);
	}
	return r;
}

static int put_numbers(struct buf *out, const struct weight_metadata *m)
{
	const struct {
		const char *key;
		uint64_t value;
	} fields[] = {
		{ "weight_generation", m->identity.generation },
		{ "payload_count", m->manifest.payload_count },
		{ "logical_bytes", m->manifest.logical_bytes },
		{ "affinity_count", m->affinity_count },
		{ "metadata_generation", m->metadata_generation },
		{ "created_at_ms", m->created_at_ms },
		{ "updated_at_ms", m->updated_at_ms },
		{ "last_accessed_at_ms", m->last_accessed_at_ms },
	};
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(fields) && r == 0; i++)
		r = buf_printf(out, ",\"%s\":%llu", fields[i].key,
			       (unsigned long long)fields[i].value);
	if (r == 0 && m->operation_id)
		r = buf_printf(out, ",\"operation_id\":%llu",
			       (unsigned long long)m->operation_id);
	return r < 0 ? r :
		       buf_printf(out,
				  ",\"mixed_hot_ratio\":%.6g"
				  ",\"observed_hot_ratio\":%.6g"
				  ",\"durable\":%s}\n",
				  m->policy.mixed_hot_ratio,
				  m->observed_hot_ratio,
				  m->durable ? "true" : "false");
}

int weight_group_metadata_json(struct weight_group *group, struct buf *ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	char manifest[DIGEST_HEX_LEN + 1];
	char keys[DIGEST_HEX_LEN + 1];
	char affinity[DIGEST_HEX_LEN + 1];
	struct buf text = BUF_INIT;
	int r = weight_group_metadata(group, &m);

	if (r < 0)
		return r;
	digest_to_hex(&m->manifest.manifest_sha256, manifest);
	digest_to_hex(&m->manifest.payload_keys_sha256, keys);
	digest_to_hex(&m->affinity_digest, affinity);
	const struct text_field fields[] = {
		{ "tenant_id", m->identity.lineage.tenant },
		{ "namespace", m->identity.lineage.name_space },
		{ "resource_id", m->identity.lineage.resource },
		{ "revision", m->identity.lineage.revision },
		{ "manifest_key", m->manifest.manifest_key },
		{ "manifest_sha256", manifest },
		{ "payload_group_id", m->manifest.payload_group_id },
		{ "payload_keys_sha256", keys },
		{ "affinity_digest", affinity },
		{ "availability", weight_availability_name(m->availability) },
		{ "residency", weight_residency_name(m->residency) },
		{ "preferred_residency",
		  weight_residency_name(m->policy.preferred) },
		{ "migration_mode",
		  weight_migration_mode_name(m->policy.mode) },
	};
	r = buf_append(&text, "{", 1);
	if (r == 0)
		r = put_texts(&text, fields, ARRAY_LEN(fields));
	if (r == 0)
		r = put_numbers(&text, m);
	if (r == 0)
		r = buf_append(ret, text.data, text.len);
	buf_release(&text);
	return r;
}
