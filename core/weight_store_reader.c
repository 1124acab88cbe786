/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a revision through the first door. A reader holds the group as an
 * open handle of the mount does, and asks for each file before it reads it
 * whether its bytes may go out.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/file_io.h"
#include "core/weight_key.h"
#include "core/weight_store_priv.h"

struct weight_reader {
	struct weight_store *store;
	struct weight_group *group;   /* a reference, and a hold */
	struct tree_content *content; /* NULL until it is verified */
	struct weight_description *tensors;
	const char **aliases; /* of all tensors, one after the other */
};

/* ---- Opening ---- */

static bool same_text(const char *a, const char *b)
{
	return strcmp(a, b) == 0;
}

/* The digest says that it is what was published; this, of what. */
static int check_identity(const struct manifest *m,
			  const struct weight_identity *id)
{
	cleanup(buf_release) struct buf key = BUF_INIT;
	char group_id[WEIGHT_GROUP_ID_LEN + 1];
	int r;

	if ((r = weight_group_id(id, group_id)) < 0 ||
	    (r = weight_manifest_key(id, &key)) < 0)
		return r;
	return same_text(m->top.name_space, id->lineage.name_space) &&
			       same_text(m->top.resource_id,
					 id->lineage.resource) &&
			       same_text(m->top.revision,
					 id->lineage.revision) &&
			       m->top.weight_generation == id->generation &&
			       same_text(m->top.group_id, group_id) &&
			       same_text(m->top.manifest_key, key.data) ?
		       0 :
		       -EUCLEAN;
}

static int open_content(struct weight_reader *reader, struct buf *why)
{
	int r = tree_content_get(reader->group, &reader->content);

	if (r == -EUCLEAN) {
		(void)buf_printf(why, "managed manifest digest mismatch: it is "
				      "not the one that was published");
		return r;
	}
	if (r == 0)
		r = check_identity(reader->content->manifest,
				   reader->group->identity);
	if (r == -EUCLEAN)
		(void)buf_printf(why, "managed manifest identity mismatch: it "
				      "is that of another revision");
	return r;
}

/* The first fragment has the aliases of its tensor: all name the same group. */
static const struct manifest_fragment *first_fragment(const struct manifest *m,
						      size_t i)
{
	return manifest_tensor_fragment(m, i, 0);
}

static uint64_t tensor_len(const struct manifest *m, size_t i)
{
	uint64_t len = 0;

	for (size_t k = 0; k < manifest_tensor_fragment_count(m, i); k++)
		len += manifest_tensor_fragment(m, i, k)->nbytes;
	return len;
}

static size_t describe(const struct manifest *m, size_t i, const char **aliases,
		       struct weight_description *ret)
{
	const struct manifest_fragment *f = first_fragment(m, i);
	const struct manifest_tensor *t = &m->tensors[i];

	for (size_t k = 0; k < f->alias_count; k++)
		aliases[k] = f->aliases[k].data;
	*ret = (struct weight_description){
		.tensor_id = t->id.data,
		.dtype = t->dtype,
		.layout_fingerprint = t->layout_fingerprint,
		.global_shape = t->global_shape,
		.aliases = f->alias_count ? aliases : NULL,
		.len = tensor_len(m, i),
		.itemsize = t->itemsize,
		.layer_id = t->layer_id,
		.expert_id = t->expert_id,
		.alias_count = f->alias_count,
		.rank = t->rank,
	};
	return f->alias_count;
}

static int describe_all(struct weight_reader *reader)
{
	const struct manifest *m = reader->content->manifest;
	size_t count = 0, at = 0;

	for (size_t i = 0; i < m->tensor_count; i++)
		count += first_fragment(m, i)->alias_count;
	reader->tensors = calloc(m->tensor_count + 1, sizeof(*reader->tensors));
	reader->aliases = calloc(count + 1, sizeof(*reader->aliases));
	if (!reader->tensors || !reader->aliases)
		return -ENOMEM;
	for (size_t i = 0; i < m->tensor_count; i++)
		at += describe(m, i, reader->aliases + at, &reader->tensors[i]);
	return 0;
}

/* Why there is nothing to be held, by the record. */
static int find_group(struct weight_store *s, const struct weight_identity *id,
		      struct weight_group **ret, struct buf *why)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	int r = wms_get(s->records, id, &m);

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

int weight_get(struct weight_store *store,
	       const struct weight_identity *identity,
	       struct weight_reader **ret, struct buf *why)
{
	cleanup(weight_reader_free_cleanup) struct weight_reader *reader = NULL;
	cleanup(weight_group_unref_cleanup) struct weight_group *g = NULL;
	int r = door_check(store, identity, why);

	if (r == 0)
		r = find_group(store, identity, &g, why);
	if (r == 0) {
		r = keeper_hold(g);
		if (r == -EBUSY)
			(void)weight_group_error(g, why);
	}
	if (r < 0)
		return r;
	reader = calloc(1, sizeof(*reader));
	if (!reader) {
		keeper_release(g);
		return -ENOMEM;
	}
	reader->store = store;
	reader->group = take_ptr(g);
	r = open_content(reader, why);
	if (r == 0)
		r = describe_all(reader);
	if (r < 0)
		return r;
	*ret = take_ptr(reader);
	return 0;
}

void weight_reader_free(struct weight_reader *reader)
{
	if (!reader)
		return;
	tree_content_put(reader->content);
	keeper_release(reader->group);
	weight_group_unref(reader->group);
	free(reader->tensors);
	free(reader->aliases);
	free(reader);
}

/* ---- Asking ---- */

const struct manifest *reader_manifest(const struct weight_reader *reader)
{
	return reader->content->manifest;
}

const struct weight_identity *weight_reader_identity(
	const struct weight_reader *reader)
{
	return reader->group->identity;
}

size_t weight_reader_tensor_count(const struct weight_reader *reader)
{
	return reader->content->manifest->tensor_count;
}

const struct weight_description *weight_reader_tensor(
	const struct weight_reader *reader, size_t i)
{
	assert(i < weight_reader_tensor_count(reader));
	return &reader->tensors[i];
}

int weight_reader_find(const struct weight_reader *reader,
		       const char *tensor_id, size_t *ret)
{
	const struct manifest *m = reader->content->manifest;
	const struct manifest_tensor *t =
		manifest_tensor_find(m, tensor_id, strlen(tensor_id));

	if (!t)
		return -ENOENT;
	*ret = (size_t)(t - m->tensors);
	return 0;
}

/* ---- Bytes ---- */

/* Where tensor i is, and its file once its bytes may go out. */
static int open_tensor(struct weight_reader *reader, size_t i, uint64_t offset,
		       uint64_t len, struct weight_file **ret,
		       uint64_t *ret_offset)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	const struct tree_content *c = reader->content;
	const struct manifest_fragment *fragment;
	int r;

	assert(i < c->manifest->tensor_count);
	if (manifest_tensor_fragment_count(c->manifest, i) != 1)
		return -EOPNOTSUPP;
	fragment = first_fragment(c->manifest, i);
	if (offset > fragment->nbytes || len > fragment->nbytes - offset)
		return -EINVAL;
	if (fragment->object == MANIFEST_NO_OBJECT ||
	    !c->objects[fragment->object].path)
		return -EUCLEAN;
	r = tree_file_at(reader->group, c->objects[fragment->object].path, &f);
	if (r == -ENOENT)
		return -EIO; /* its name is lost */
	if (r == 0)
		r = tree_trust_open(f, true);
	if (r == 0)
		r = weight_file_range_check(f, fragment->object_offset + offset,
					    len);
	if (r < 0)
		return r;
	*ret_offset = fragment->object_offset + offset;
	*ret = take_ptr(f);
	return 0;
}

int weight_reader_read(struct weight_reader *reader, size_t i, uint64_t offset,
		       void *bytes, size_t len)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	auto_fd int fd = -1;
	uint64_t at = 0;
	int r = open_tensor(reader, i, offset, len, &f, &at);

	if (r == 0)
		r = tree_file_reopen(f, O_RDONLY, &fd);
	return r < 0 ? r : file_io_read_at(fd, bytes, len, at);
}

/*
 * Opened and closed once as a handle: from then on the keeper looks for whoever
 * has the file open or mapped, and holds the group for as long.
 */
int weight_reader_extent(struct weight_reader *reader, size_t i,
			 struct weight_extent *ret)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *f = NULL;
	uint64_t len = reader->tensors[i].len;
	uint64_t at = 0;
	int fd = -1;
	int r = open_tensor(reader, i, 0, len, &f, &at);

	if (r == 0)
		r = weight_file_open(f, O_RDONLY, true);
	if (r < 0)
		return r;
	r = tree_file_reopen(f, O_RDONLY, &fd);
	weight_file_close(f, O_RDONLY);
	if (r < 0)
		return r;
	*ret = (struct weight_extent){ .fd = fd, .offset = at, .len = len };
	return 0;
}
