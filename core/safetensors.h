/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors: which tensors a file holds and where.
 *
 * The format: 8 bytes little-endian length of a header, the header (one JSON
 * object, which may be followed by white space), then the data. A member of
 * the header is a tensor: {"dtype", "shape", "data_offsets": [begin, end]},
 * positions counted from the end of the header. The member "__metadata__" maps
 * strings to strings.
 *
 * Trust: none. The header's length is checked against the file before memory
 * is taken for it, every byte of the data must belong to exactly one tensor,
 * and a tensor's range must be as long as its dtype and shape say.
 *
 * What the format leaves open, and readers answer differently:
 *  - a name given twice is refused, also with the same range;
 *  - "__metadata__" may be null, which counts as absent;
 *  - further fields of an entry are ignored;
 *  - tensors without elements are fine anywhere between two others, and any
 *    number of them at one place; the product of a shape must fit 63 bits at
 *    every step (tensor_elements());
 *  - the empty name, and names with NUL bytes, are names;
 *  - at most TENSOR_RANK_MAX axes.
 */
#ifndef CORE_SAFETENSORS_H
#define CORE_SAFETENSORS_H

#include <stdint.h>

#include "core/tensor_range.h"

struct buf;

/* The format's own limit, inclusive. */
#define SAFETENSORS_HEADER_MAX ((uint64_t)100000000)

#define SAFETENSORS_LAYOUT "safetensors:v1"

/*
 * Reads the header of the file behind fd, which is size bytes long, checks all
 * of it and then calls fn for each tensor, sorted by (begin, end, name). The
 * position of fd is neither used nor moved.
 *
 * Memory: about the size of the header while it is read, none afterwards.
 *
 * Errors, each with a sentence in why:
 *  -EBADMSG	not a safetensors file, cut off, or against a rule above
 *  -EFBIG	a tensor of more than TENSOR_RANK_MAX axes
 *  -ENOMEM (no sentence); what pread() sets; what fn returned
 */
int safetensors_read(int fd, uint64_t size, tensor_fn *fn, void *arg,
		     struct buf *why);

#endif
