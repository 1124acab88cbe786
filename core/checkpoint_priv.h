/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the checkpoint module share; nobody else includes this. */
#ifndef CORE_CHECKPOINT_PRIV_H
#define CORE_CHECKPOINT_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/checkpoint.h"
#include "core/tensor_range.h"

struct checkpoint {
	struct arena arena; /* names, ids, shapes */
	struct checkpoint_tensor *tensors;
	size_t count, cap;
	size_t weight_files;
	size_t name_bytes; /* names and shapes in the arena */
};

struct checkpoint_format {
	const char *suffix;
	const char *layout;
	int (*read)(int fd, uint64_t size, tensor_fn *fn, void *arg,
		    struct buf *why);
};

/* What is needed while reading. */
struct checkpoint_scan {
	int dirfd;
	const struct checkpoint_file *files;
	size_t count;
	struct checkpoint *c;
	size_t file;                            /* being read */
	const struct checkpoint_format *format; /* of it */
};

/* The length of the directory of path with its slash, 0 for the top. */
size_t checkpoint_dir_len(const char *path);

/* Whether path is read as a safetensors file. */
bool checkpoint_is_safetensors(const char *path);

/* NULL when there is no such file. O(log n). */
const struct checkpoint_file *checkpoint_file_find(
	const struct checkpoint_scan *s, const char *path);

/*
 * Opens a file of the tree for reading, following no link, and makes sure that
 * it is what files says.
 *
 * Errors: -EBADMSG it is not; what openat() and fstat() set.
 */
int checkpoint_open_file(const struct checkpoint_scan *s,
			 const struct checkpoint_file *f, int *ret,
			 struct buf *reason);

/* Whether a file holds a tensor. The tensors are sorted by place. O(log n). */
bool checkpoint_has_tensor(const struct checkpoint *c, size_t file,
			   const char *name, size_t len);

/*
 * Reads the index f and compares it with the files and their tensors.
 *
 * Errors: as checkpoint_read(), but for the name of f in reason.
 */
int checkpoint_index_check(const struct checkpoint_scan *s,
			   const struct checkpoint_file *f, struct buf *reason);

#endif
