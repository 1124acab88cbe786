/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the manifest_*.c files share. For nobody else.
 *
 * manifest.c holds the memory and checks single entries, manifest_check.c what
 * concerns several, manifest_index.c finds entries, and manifest_read.c,
 * manifest_entry.c and manifest_write.c know the text.
 */
#ifndef CORE_MANIFEST_PRIVATE_H
#define CORE_MANIFEST_PRIVATE_H

#include <stdatomic.h>
#include <string.h>

#include "core/arena.h"
#include "core/manifest.h"

struct manifest_private {
	atomic_uint refs;
	struct arena arena;
	size_t tensor_cap;
	size_t fragment_cap;
	size_t file_cap;
	size_t object_cap;
	bool finished;
	/* Indexes of entries in the order of their ids, paths, keys. */
	uint32_t *tensor_order;
	uint32_t *file_order;
	uint32_t *object_order;
	/*
	 * Indexes of fragments by (tensor, offset, shape). Those of tensor t
	 * are from fragment_start[t] up to fragment_start[t + 1].
	 */
	uint32_t *fragment_order;
	uint32_t *fragment_start;
};

#define MANIFEST_KEY_SUFFIX "/manifest"
#define MANIFEST_PAYLOAD "/payload/"
#define MANIFEST_RESOURCE_KIND "model_weight"

/* The words of the wire form. */
extern const char *const manifest_semantics_words[3];
extern const char *const manifest_axis_words[MANIFEST_AXES_MAX];
extern const char *const manifest_kind_words[3];

/*
 * Writes `noun "name": what` into why and returns err. name may be NULL, then
 * it is `noun: what`.
 */
int manifest_refuse(struct buf *why, int err, const char *noun,
		    const struct manifest_id *name, const char *what);

static inline struct manifest_id manifest_id_of(const char *text)
{
	return (struct manifest_id){ .data = text, .len = strlen(text) };
}

static inline int manifest_id_compare(const struct manifest_id *a,
				      const struct manifest_id *b)
{
	size_t len = a->len < b->len ? a->len : b->len;
	int r = len ? memcmp(a->data, b->data, len) : 0;

	return r ? r : (a->len > b->len) - (a->len < b->len);
}

/* A manifest without anything in it, not even what is in top. */
int manifest_new_empty(struct manifest **ret);

/*
 * Copies a text that must not be empty. what names it in the sentence.
 * Errors: as manifest_new().
 */
int manifest_copy_text(struct manifest *m, const char *text, const char *what,
		       const char **ret, struct buf *why);

/* Checks the keys in m->top, which are all there. Errors: -EBADMSG. */
int manifest_check_top(const struct manifest *m, struct buf *why);

/* As manifest_add_fragment(), for a tensor that is not known yet. */
int manifest_put_fragment(struct manifest *m, const struct manifest_fragment *f,
			  size_t rank, struct buf *why);

/* No index. */
#define MANIFEST_NONE UINT32_MAX

/*
 * Make tensors and objects, files, fragments findable. Names, paths, keys and
 * ids must be there once. Nothing may be added after it. Names are done by
 * manifest_finish() if they were not done before; fragments need them.
 *
 * Errors: -EBADMSG, -ENOMEM.
 */
int manifest_index_names(struct manifest *m, struct buf *why);
int manifest_index_files(struct manifest *m, struct buf *why);
int manifest_index_fragments(struct manifest *m, struct buf *why);

/* Indexes, or MANIFEST_NONE. */
uint32_t manifest_find_tensor(const struct manifest *m,
			      const struct manifest_id *id);
uint32_t manifest_find_file(const struct manifest *m,
			    const struct manifest_id *path);
uint32_t manifest_find_object(const struct manifest *m,
			      const struct manifest_id *key);

/* The fragment of a tensor that has the same box as like, or NULL. */
const struct manifest_fragment *manifest_find_box(
	const struct manifest *m, uint32_t tensor,
	const struct manifest_fragment *like);

/* 0, 1, ... count - 1, for sorting. The caller frees it. Errors: -ENOMEM. */
int manifest_order_new(size_t count, uint32_t **ret);

int manifest_compare_u64s(const uint64_t *a, const uint64_t *b, size_t count);

/* By (offset, shape). Both of a tensor of that rank. */
int manifest_compare_boxes(const struct manifest_fragment *a,
			   const struct manifest_fragment *b, size_t rank);

/* Elements in a box. Errors: -EOVERFLOW. */
int manifest_volume(const uint64_t *shape, size_t rank, uint64_t *ret);

#endif
