/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a sharded checkpoint: which shard holds which tensor. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/checkpoint_priv.h"
#include "core/json.h"
#include "core/tensor_range.h"

/* Whether path stays below where it starts. */
static bool path_is_plain(const char *path, size_t len)
{
	if (strlen(path) != len)
		return false;
	for (;;) {
		size_t n = strcspn(path, "/");

		if (n == 0 || (n == 1 && path[0] == '.') ||
		    (n == 2 && path[0] == '.' && path[1] == '.'))
			return false;
		if (!path[n])
			return true;
		path += n + 1;
	}
}

struct index_scan {
	const struct checkpoint_scan *s;
	const char *path; /* of the index */
	bool has_map;
};

/* Whether the shard is there and may be read; its number in *ret. */
static int shard_find(const struct index_scan *x, const char *shard, size_t len,
		      size_t *ret, struct buf *why)
{
	cleanup(buf_release) struct buf path = BUF_INIT;
	const struct checkpoint_file *f;
	int r;

	if (!path_is_plain(shard, len)) {
		(void)buf_printf(why, "its shard ");
		tensor_show_name(why, shard, len);
		return file_refuse(-EBADMSG, why, " is no path beside it");
	}
	if ((r = buf_append(&path, x->path, checkpoint_dir_len(x->path))) < 0 ||
	    (r = buf_append(&path, shard, len)) < 0)
		return r;
	f = checkpoint_file_find(x->s, path.data);
	if (f && checkpoint_is_safetensors(f->path)) {
		*ret = (size_t)(f - x->s->files);
		return 0;
	}
	(void)buf_printf(why, "its shard ");
	tensor_show_name(why, shard, len);
	return file_refuse(-EBADMSG, why,
			   f ? " is not read as a safetensors file" :
			       " is missing; add it and publish again");
}

static int mapping_check(const struct index_scan *x, const struct json_value *v,
			 struct buf *why)
{
	size_t name_len, len;
	size_t file = 0;
	const char *name = json_key(v, &name_len);
	const char *shard = json_string(v, &len);
	int r;

	if (!shard)
		return tensor_refuse(-EBADMSG, why, name, name_len,
				     "its shard is no string");
	r = shard_find(x, shard, len, &file, why);
	if (r < 0)
		return r;
	if (checkpoint_has_tensor(x->s->c, file, name, name_len))
		return 0;
	(void)tensor_refuse(-EBADMSG, why, name, name_len,
			    "it is not in its shard ");
	tensor_show_name(why, shard, len);
	return -EBADMSG;
}

static int index_member(void *arg, const struct json_item *item,
			struct buf *why)
{
	struct index_scan *x = arg;
	int r = 0;

	if (item->key_len != strlen("weight_map") ||
	    memcmp(item->key, "weight_map", item->key_len) != 0)
		return 0;
	x->has_map = true;
	if (json_kind(item->value) != JSON_OBJECT)
		r = file_refuse(-EBADMSG, why, "its weight_map is no object");
	for (const struct json_value *v = json_first(item->value); v && r == 0;
	     v = json_next(v))
		r = mapping_check(x, v, why);
	return r;
}

int checkpoint_index_check(const struct checkpoint_scan *s,
			   const struct checkpoint_file *f, struct buf *reason)
{
	struct index_scan x = { .s = s, .path = f->path };
	auto_free char *text = NULL;
	auto_fd int fd = -1;
	int r;

	if (f->size > CHECKPOINT_INDEX_BYTES_MAX)
		return file_refuse(
			-EFBIG, reason,
			"%llu bytes, at most %llu are supported",
			(unsigned long long)f->size,
			(unsigned long long)CHECKPOINT_INDEX_BYTES_MAX);
	r = checkpoint_open_file(s, f, &fd, reason);
	if (r < 0)
		return r;
	text = malloc(f->size + 1);
	if (!text)
		return -ENOMEM;
	r = file_read_exact(fd, text, f->size, 0, reason);
	if (r < 0)
		return r;
	r = json_stream(text, f->size, 0, index_member, &x, reason);
	if (r < 0)
		return r;
	if (!x.has_map)
		return file_refuse(-EBADMSG, reason, "it has no weight_map");
	return 0;
}
