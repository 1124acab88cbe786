/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint: the tensors of a directory tree of model files.
 *
 * Which files are weights: those whose name ends in .safetensors or .gguf.
 * A name that begins with a dot, and everything below a directory whose name
 * does, is a companion (version control, caches, partial copies, macOS "._"
 * files): it is part of the tree but never opened here. So is every other
 * file, whatever stands in it. A tree without weights is a checkpoint without
 * tensors.
 *
 * What is checked:
 *  - every weight file is read completely (safetensors.h, gguf.h);
 *  - every *.safetensors.index.json must be strict JSON with a "weight_map"
 *    from tensor names to shards. A shard is a path below the directory of the
 *    index, without "." and ".." in it; it must be a safetensors file of the
 *    tree and hold the tensor. Tensors that no index names are fine;
 *  - of a split GGUF, NAME-00001-of-00003.gguf, all parts must be there.
 * Anything else refuses the checkpoint as a whole, naming the file.
 *
 * Every tensor gets an id that is unique in the checkpoint. That is its name.
 * Where files share a name, each tensor so called has the directory of its
 * file and a slash in front ("unet/conv.weight"; in the top directory the name
 * stays). Ids that are then still shared become path, slash, name
 * ("unet/a.safetensors/conv.weight"), and if even one of those meets another
 * id, the ids of all tensors of the checkpoint do. The ids depend on paths and
 * names only, and cost a few sorts.
 *
 * The storage shape and itemsize of a tensor satisfy
 *	end - begin == product of the shape * itemsize.
 * They are the tensor's own, unless its type is stored in blocks (GGUF's
 * quantised types; F4 and F6 of safetensors, two and four elements to 1 and 3
 * bytes): then the last axis counts blocks and itemsize is the size of one. A
 * last axis that is no multiple of the block makes the storage shape flat: one
 * axis that counts the blocks.
 *
 * Ownership: a checkpoint owns all it returns. It is read-only, so any number
 * of threads may look at it.
 *
 * Trust: files come from outside, paths and sizes from the caller's walk of
 * the tree. Files are opened without following links anywhere, must be regular
 * and of the size that was said.
 */
#ifndef CORE_CHECKPOINT_H
#define CORE_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "core/cleanup.h"

struct buf;

#define CHECKPOINT_TENSORS_MAX ((size_t)1 << 22)
#define CHECKPOINT_NAME_BYTES_MAX ((size_t)512 << 20) /* and shapes */
#define CHECKPOINT_INDEX_BYTES_MAX ((uint64_t)64 << 20)

struct checkpoint;

/* A regular file of the tree. */
struct checkpoint_file {
	const char *path; /* relative, no empty, "." or ".." part */
	uint64_t size;
};

struct checkpoint_tensor {
	const char *id; /* neither is terminated; both may hold NUL bytes */
	size_t id_len;
	const char *name; /* in its file */
	size_t name_len;
	size_t file;        /* index in the files that were given */
	const char *dtype;  /* static; as the format spells it */
	const char *layout; /* static: layout fingerprint, "gguf:v1" */
	uint32_t itemsize;
	unsigned rank;
	const uint64_t *shape; /* storage shape, slowest axis first */
	uint64_t begin, end;   /* bytes of the file, end exclusive */
};

/*
 * Reads the tree at dirfd. files are all its regular files, sorted by path as
 * strcmp() does; they are not needed afterwards.
 *
 * Errors, each with a sentence in why that begins with the file:
 *  -EINVAL	files are not sorted, or one twice (no sentence)
 *  -EBADMSG	refused by a rule above, or changed since the walk
 *  -EFBIG	above a limit
 *  -ENOMEM (no sentence); what openat() and pread() set
 */
int checkpoint_read(int dirfd, const struct checkpoint_file *files,
		    size_t count, struct checkpoint **ret, struct buf *why);

void checkpoint_free(struct checkpoint *c); /* accepts NULL */
DEFINE_CLEANUP(struct checkpoint *, checkpoint_free)

/* How many files were read as weights. */
size_t checkpoint_weight_file_count(const struct checkpoint *c);

size_t checkpoint_tensor_count(const struct checkpoint *c);

/* i must be below the count. Tensors are sorted by the bytes of their ids. */
const struct checkpoint_tensor *checkpoint_tensor_at(const struct checkpoint *c,
						     size_t i);

/* Borrowed; NULL when there is none. O(log n). */
const struct checkpoint_tensor *checkpoint_tensor_find(
	const struct checkpoint *c, const char *id, size_t id_len);

#endif
