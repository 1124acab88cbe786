/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifest of a staged tree: what is in it, where each tensor lies, and the
 * digests that prove it.
 *
 * Every regular file is one object, also one that holds no tensor. A tensor of
 * a stock checkpoint is one fragment: its range of its file's object.
 */
#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "core/checkpoint.h"
#include "core/clock.h"
#include "core/publish_priv.h"
#include "core/utf8.h"
#include "core/weight_key.h"

#define NO_FILE SIZE_MAX

/* ---- What all manifests share ---- */

void publish_created_at(uint64_t ms, bool to_the_ms,
			char ret[static PUBLISH_CREATED_LEN])
{
	time_t s = (time_t)(ms / 1000);
	struct tm tm;
	size_t n;

	(void)gmtime_r(&s, &tm);
	n = strftime(ret, PUBLISH_CREATED_LEN, "%Y-%m-%dT%H:%M:%S", &tm);
	if (to_the_ms)
		(void)snprintf(ret + n, PUBLISH_CREATED_LEN - n, ".%03uZ",
			       (unsigned)(ms % 1000));
	else
		(void)snprintf(ret + n, PUBLISH_CREATED_LEN - n, "Z");
}

int publish_draft_begin(struct publish_draft *d, const char *created_at)
{
	const struct weight_identity *id = d->g->identity;
	char group_id[WEIGHT_GROUP_ID_LEN + 1];
	struct buf key = BUF_INIT;
	int r;

	d->keys = calloc(d->look->payload->object_count + 1, sizeof(*d->keys));
	if (!d->keys)
		return -ENOMEM;
	if ((r = weight_group_id(id, group_id)) == 0 &&
	    (r = weight_manifest_key(id, &key)) == 0) {
		const struct manifest_top top = {
			.name_space = id->lineage.name_space,
			.resource_id = id->lineage.resource,
			.revision = id->lineage.revision,
			.group_id = group_id,
			.manifest_key = key.data,
			.created_at = created_at,
			.weight_generation = id->generation,
		};

		r = manifest_new(&top, &d->m, d->why);
	}
	buf_release(&key);
	return r;
}

int publish_draft_key(struct publish_draft *d, size_t i, const char *txid,
		      const char *fragment_id)
{
	struct buf key = BUF_INIT;
	int r = weight_payload_key(d->g->identity, txid, fragment_id, &key);

	if (r == 0 && !(d->keys[i] = strdup(key.data)))
		r = -ENOMEM;
	buf_release(&key);
	return r;
}

int publish_draft_objects(struct publish_draft *d)
{
	int r = 0;

	for (size_t i = 0; i < d->look->count && r == 0; i++) {
		const struct chunk_list *chunks = d->look->files[i]->chunks;
		const struct manifest_object object = {
			.key = d->keys[i],
			.chunks = chunks->chunks,
			.size = chunks->size,
			.chunk_size = chunks->chunk_size,
			.chunk_count = chunks->count,
			.digest = chunks->root,
		};

		r = manifest_add_object(d->m, &object, d->why);
	}
	return r;
}

static enum manifest_file_kind kind_of(enum payload_kind kind)
{
	switch (kind) {
	case PAYLOAD_DIR:
		return MANIFEST_DIRECTORY;
	case PAYLOAD_SYMLINK:
		return MANIFEST_SYMLINK;
	case PAYLOAD_FILE:
		break;
	}
	return MANIFEST_REGULAR;
}

/* Bytes that are no UTF-8 as \xff, so that everybody can read the sentence. */
static int say_bytes(const char *text, struct buf *why)
{
	size_t len = strlen(text);
	uint32_t point;
	int r = 0;

	while (len && r == 0) {
		size_t n = utf8_decode(text, len, &point);

		r = n ? buf_append(why, text, n) :
			buf_printf(why, "\\x%02x", (unsigned char)*text);
		text += n ? n : 1;
		len -= n ? n : 1;
	}
	return r;
}

static int check_text(const struct payload_entry *e, struct buf *why)
{
	bool path_ok = utf8_valid(e->path, strlen(e->path));

	if (path_ok && (!e->target || utf8_valid(e->target, strlen(e->target))))
		return 0;
	(void)buf_printf(why, path_ok ? "the target of the symlink '" :
					"the name of '");
	(void)say_bytes(e->path, why);
	(void)buf_printf(why, "' is not valid UTF-8; rename it");
	return -EBADMSG;
}

int publish_draft_files(struct publish_draft *d)
{
	const struct mode_change *change = &d->g->store->config->publish_mode;
	const struct payload *p = d->look->payload;

	for (size_t i = 0; i < p->count; i++) {
		const struct payload_entry *e = &p->entries[i];
		bool is_dir = e->kind == PAYLOAD_DIR;
		const struct manifest_file file = {
			.path = e->path,
			.target = e->target,
			.size = is_dir ? 0 : e->size,
			.mtime_s = e->mtime.tv_sec,
			.mtime_nsec = (uint32_t)e->mtime.tv_nsec,
			.mode = e->kind == PAYLOAD_SYMLINK ?
					e->mode :
					mode_change_apply(change, e->mode,
							  is_dir),
			.object = e->kind == PAYLOAD_FILE ?
					  (uint32_t)e->object :
					  MANIFEST_NO_OBJECT,
			.kind = kind_of(e->kind),
		};
		int r = check_text(e, d->why);

		if (r == 0)
			r = manifest_add_file(d->m, &file, d->why);
		if (r < 0)
			return r;
	}
	return 0;
}

int publish_draft_end(struct publish_draft *d, struct publish_result *ret)
{
	struct weight_manifest_ref *ref = &ret->ref;
	const struct manifest *m = d->m;
	int r = manifest_finish(d->m, d->why);

	if (r < 0)
		return r;
	ref->manifest_key = m->top.manifest_key;
	ref->payload_group_id = m->top.group_id;
	ref->complete = true;
	for (size_t i = 0; i < m->object_count; i++)
		ref->logical_bytes += m->objects[i].size;
	if ((r = manifest_write(m, &ret->text)) < 0 ||
	    (r = manifest_digest(ret->text.data, ret->text.len,
				 &ref->manifest_sha256)) < 0)
		return r;
	/* Sorts the pointers, so it comes last. */
	return weight_payload_keys_digest(
		(const char **)d->keys, m->object_count,
		&ref->payload_keys_sha256, &ref->payload_count);
}

void publish_draft_release(struct publish_draft *d)
{
	for (size_t i = 0; d->keys && i < d->look->payload->object_count; i++)
		free(d->keys[i]);
	free(d->keys);
}

void publish_result_release(struct publish_result *r)
{
	manifest_unref(r->manifest);
	buf_release(&r->text);
	*r = (struct publish_result){ .text = BUF_INIT };
}

/* ---- Of a checkpoint ---- */

/* What the steps below share beside it. */
struct draft {
	struct publish_draft to;
	const struct checkpoint *ckpt;
	size_t *paths;      /* payload entry of each checkpoint file */
	size_t *claimed_by; /* checkpoint file whose tensors an object has */
};

/* An object is named after the first path of its file. */
static int draft_keys(struct publish_draft *d)
{
	const struct payload *p = d->look->payload;
	char txid[WEIGHT_TRANSACTION_ID_LEN + 1];
	char hex[DIGEST_HEX_LEN + 1];
	struct digest digest;
	int r = weight_transaction_id(txid);

	for (size_t i = 0; i < p->object_count && r == 0; i++) {
		const char *path = p->entries[p->objects[i]].path;

		r = digest_of(path, strlen(path), &digest);
		if (r < 0)
			return r;
		digest_to_hex(&digest, hex);
		hex[WEIGHT_FRAGMENT_ID_LEN] = '\0';
		r = publish_draft_key(d, i, txid, hex);
	}
	return r;
}

/* The payload entries that the checkpoint calls its files, in its order. */
static int draft_paths(struct draft *d)
{
	const struct payload *p = d->to.look->payload;
	size_t n = 0;

	d->paths = calloc(p->count + 1, sizeof(*d->paths));
	d->claimed_by = calloc(p->object_count + 1, sizeof(*d->claimed_by));
	if (!d->paths || !d->claimed_by)
		return -ENOMEM;
	for (size_t i = 0; i < p->count; i++)
		if (p->entries[i].kind == PAYLOAD_FILE)
			d->paths[n++] = i;
	for (size_t i = 0; i < p->object_count; i++)
		d->claimed_by[i] = NO_FILE;
	return 0;
}

/*
 * A file with two names is read under both; its tensors are those of the
 * first that has any.
 */
static bool is_second_name(struct draft *d, size_t file, size_t object)
{
	if (d->claimed_by[object] == NO_FILE)
		d->claimed_by[object] = file;
	return d->claimed_by[object] != file;
}

static int draft_fragment(struct draft *d, const struct checkpoint_tensor *t,
			  size_t object, uint32_t index)
{
	static const uint64_t origin[MANIFEST_RANK_MAX];
	char id[WEIGHT_FRAGMENT_ID_LEN + 1];
	struct manifest_fragment fragment = {
		.fragment_id = id,
		.global_offset = origin,
		.local_shape = t->shape,
		.object_key = d->to.keys[object],
		.object_offset = t->begin,
		.nbytes = t->end - t->begin,
		.tensor = index,
	};
	int r = weight_fragment_id(t->id, t->id_len, origin, t->shape, t->rank,
				   id);

	if (r < 0)
		return r;
	return manifest_add_fragment(d->to.m, &fragment, d->to.why);
}

static int draft_tensors(struct draft *d)
{
	const struct payload *p = d->to.look->payload;
	struct manifest *m = d->to.m;

	for (size_t i = 0; i < checkpoint_tensor_count(d->ckpt); i++) {
		const struct checkpoint_tensor *t =
			checkpoint_tensor_at(d->ckpt, i);
		size_t object = p->entries[d->paths[t->file]].object;
		const struct manifest_tensor tensor = {
			.id = { .data = t->id, .len = t->id_len },
			.global_shape = t->shape,
			.dtype = t->dtype,
			.layout_fingerprint = t->layout,
			.itemsize = t->itemsize,
			.layer_id = MANIFEST_NO_ID,
			.expert_id = MANIFEST_NO_ID,
			.rank = t->rank,
		};
		int r;

		if (is_second_name(d, t->file, object))
			continue;
		r = manifest_add_tensor(m, &tensor, d->to.why);
		if (r == 0)
			r = draft_fragment(d, t, object,
					   (uint32_t)m->tensor_count - 1);
		if (r < 0)
			return r;
	}
	return 0;
}

/* One unit a tensor: stock checkpoints declare no aliases. */
static int affinity(const struct manifest *m, struct publish_result *ret)
{
	auto_free struct weight_text *texts = NULL;
	auto_free struct weight_affinity_unit *units = NULL;
	size_t count = m->tensor_count;

	texts = calloc(count + 1, sizeof(*texts));
	units = calloc(count + 1, sizeof(*units));
	if (!texts || !units)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		texts[i].bytes = m->tensors[i].id.data;
		texts[i].len = m->tensors[i].id.len;
		units[i].members = &texts[i];
		units[i].count = 1;
	}
	return weight_affinity_digest(units, count, &ret->affinity_digest,
				      &ret->affinity_count);
}

int publish_manifest(struct weight_group *g, const struct staging_look *look,
		     const struct checkpoint *ckpt, struct publish_result *ret,
		     struct buf *why)
{
	struct draft d = { .to = { g, look, why }, .ckpt = ckpt };
	struct publish_result result = { .text = BUF_INIT };
	char created[PUBLISH_CREATED_LEN];
	int r;

	publish_created_at(clock_realtime_ms(), false, created);
	if ((r = publish_draft_begin(&d.to, created)) == 0 &&
	    (r = draft_paths(&d)) == 0 && (r = draft_keys(&d.to)) == 0 &&
	    (r = publish_draft_objects(&d.to)) == 0 &&
	    (r = draft_tensors(&d)) == 0 &&
	    (r = publish_draft_files(&d.to)) == 0 &&
	    (r = publish_draft_end(&d.to, &result)) == 0)
		r = affinity(d.to.m, &result);
	result.manifest = d.to.m;
	publish_draft_release(&d.to);
	free(d.paths);
	free(d.claimed_by);
	if (r < 0)
		publish_result_release(&result);
	else
		*ret = result;
	return r;
}
