/* SPDX-License-Identifier: Apache-2.0 */
/* What the manifest of a published group says about its objects. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/log.h"
#include "core/tree_priv.h"

#define READ_BYTES ((size_t)1 << 20)

int weight_group_manifest_open(struct weight_group *group, int *ret_fd)
{
	int fd;

	if (weight_group_state(group) != WEIGHT_GROUP_PUBLISHED)
		return -ENOENT;
	fd = openat(group->dirfd, TREE_MANIFEST_NAME,
		    O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

static int read_all(int fd, struct buf *ret)
{
	auto_free char *piece = malloc(READ_BYTES);
	ssize_t n;
	int r;

	if (!piece)
		return -ENOMEM;
	while ((n = read(fd, piece, READ_BYTES)) > 0) {
		r = buf_append(ret, piece, (size_t)n);
		if (r < 0)
			return r;
	}
	return n < 0 ? -errno : 0;
}

static int read_manifest(struct weight_group *g,
			 const struct weight_metadata *m, struct manifest **ret)
{
	struct buf text = BUF_INIT;
	struct digest digest;
	auto_fd int fd = -1;
	int r = weight_group_manifest_open(g, &fd);

	/* Of one that is published, that is damage. */
	if (r == -ENOENT && weight_group_state(g) == WEIGHT_GROUP_PUBLISHED)
		r = -EUCLEAN;
	if (r < 0)
		return r;
	r = read_all(fd, &text);
	if (r == 0)
		r = manifest_digest(text.data, text.len, &digest);
	if (r == 0 && !digest_equal(&digest, &m->manifest.manifest_sha256))
		r = log_debug(-EUCLEAN,
			      "the manifest of '%s' is not the one "
			      "that was published",
			      g->hex);
	if (r == 0)
		r = manifest_parse(text.data, text.len, ret, NULL);
	buf_release(&text);
	return r == -EBADMSG ? -EUCLEAN : r;
}

int tree_manifest_read(struct weight_group *g, struct manifest **ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	int r = weight_group_metadata(g, &m);

	if (r < 0)
		return r;
	r = read_manifest(g, m, ret);
	tree_loss_note(g, r);
	return r;
}

/* ---- Objects ---- */

/* Aliases are one unit: the one whose own name comes first counts. */
static bool is_first_alias(const struct manifest *m,
			   const struct manifest_fragment *f)
{
	const struct manifest_id *own = &m->tensors[f->tensor].id;
	const struct manifest_id *first;

	if (f->alias_count == 0)
		return true;
	first = &f->aliases[0];
	return own->len == first->len &&
	       memcmp(own->data, first->data, own->len) == 0;
}

static void fill_objects(struct tree_content *c)
{
	const struct manifest *m = c->manifest;

	for (size_t i = 0; i < m->object_count; i++) {
		const struct manifest_object *from = &m->objects[i];

		c->objects[i] = (struct tree_object){
			.size = from->size,
			.chunks = from->chunks,
			.chunk_count = from->chunk_count,
			.chunk_size = from->chunk_size,
		};
		c->bytes += from->size;
	}
	for (size_t i = m->file_count; i-- > 0;)
		if (m->files[i].kind == MANIFEST_REGULAR)
			c->objects[m->files[i].object].path = m->files[i].path;
	for (size_t i = 0; i < m->fragment_count; i++) {
		const struct manifest_fragment *f = &m->fragments[i];

		if (f->object != MANIFEST_NO_OBJECT && is_first_alias(m, f))
			c->objects[f->object].units++;
	}
}

static void content_free(struct tree_content *c)
{
	manifest_unref(c->manifest);
	free(c->objects);
	free(c);
}

static int content_new(struct weight_group *g, struct tree_content **ret)
{
	struct tree_content *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	c->refs = 1;
	c->group = g;
	r = tree_manifest_read(g, &c->manifest);
	if (r == 0) {
		c->count = c->manifest->object_count;
		c->objects = calloc(c->count + 1, sizeof(*c->objects));
		if (!c->objects)
			r = -ENOMEM;
	}
	if (r < 0) {
		content_free(c);
		return r;
	}
	fill_objects(c);
	*ret = c;
	return 0;
}

int tree_content_get(struct weight_group *g, struct tree_content **ret)
{
	struct tree_content *mine = NULL;
	struct tree_content *c;
	int r;

	store_lock(g->store);
	c = g->content;
	if (c)
		c->refs++;
	store_unlock(g->store);
	if (c) {
		*ret = c;
		return 0;
	}
	r = content_new(g, &mine);
	if (r < 0)
		return r;
	/* Another may have been faster. */
	store_lock(g->store);
	c = g->content;
	if (c) {
		c->refs++;
	} else {
		c = g->content = take_ptr(mine);
		g->refs++;
	}
	store_unlock(g->store);
	if (mine)
		content_free(mine);
	*ret = c;
	return 0;
}

void tree_content_put(struct tree_content *c)
{
	struct weight_group *g;
	bool last;

	if (!c)
		return;
	g = c->group;
	store_lock(g->store);
	assert(c->refs > 0);
	last = --c->refs == 0;
	if (last)
		g->content = NULL;
	store_unlock(g->store);
	if (!last)
		return;
	content_free(c);
	weight_group_unref(g);
}

size_t tree_content_object(const struct tree_content *c, const char *path)
{
	const struct manifest_file *f = manifest_file_find(c->manifest, path);

	return f && f->kind == MANIFEST_REGULAR ? f->object : TREE_NO_OBJECT;
}
