/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF: which tensors a file holds and where.
 *
 * The format, little-endian: "GGUF", u32 version, u64 number of tensors, u64
 * number of keys; the keys (string, u32 type, value); the table of tensors
 * (string name, u32 number of axes, u64 per axis with the fastest first, u32
 * type, u64 offset in the data); padding; the data. A string is its u64 length
 * and its bytes. The key general.alignment (u32, 32 by default) is what the
 * data and every tensor in it are aligned to.
 *
 * Trust: none. Every count and length is compared with what is left of the
 * file before anything is done for it, sums and products are checked, and
 * memory grows with what was really read.
 *
 * What readers answer differently:
 *  - versions 2 and 3 are read; big-endian files are refused;
 *  - the tensors must follow each other in the order of the table, each padded
 *    to the alignment, without a hole or an overlap: what the common reader
 *    demands, too;
 *  - padding after the last tensor may be missing; anything may follow it, and
 *    belongs to no tensor;
 *  - the alignment is a power of two up to GGUF_ALIGNMENT_MAX;
 *  - tensors without elements are fine; the product of the axes must fit 63
 *    bits at every step from either end, so 2^32 x 2^32 is refused;
 *  - no axis at all means one element;
 *  - arrays of arrays are refused, as no reader in use takes them;
 *  - a tensor's name is valid UTF-8 of at most GGUF_NAME_MAX bytes without a
 *    NUL byte, because C readers would take two such names for one. It may be
 *    empty; a key may not.
 */
#ifndef CORE_GGUF_H
#define CORE_GGUF_H

#include <stdint.h>

#include "core/tensor_range.h"

struct buf;

#define GGUF_RANK_MAX 4
#define GGUF_NAME_MAX 255
#define GGUF_KEY_MAX 65535
#define GGUF_ALIGNMENT_MAX ((uint32_t)1 << 30)

/* Ours, far above any real file. */
#define GGUF_KEYS_MAX ((uint64_t)1 << 16)
#define GGUF_TENSORS_MAX ((uint64_t)1 << 20)
#define GGUF_KEY_BYTES_MAX ((size_t)32 << 20)   /* all keys together */
#define GGUF_HEAD_BYTES_MAX ((uint64_t)1 << 30) /* all before the data */

#define GGUF_LAYOUT "gguf:v1"

/*
 * Reads what stands before the data of the file behind fd, which is size bytes
 * long, checks all of it and then calls fn for each tensor, in the order of
 * the table. The shape is handed over with the slowest axis first, so in
 * reverse. The position of fd is neither used nor moved.
 *
 * Memory: a window of 64 KiB, the keys, and the table of tensors.
 *
 * Errors, each with a sentence in why:
 *  -EBADMSG	not a GGUF file, cut off, or against a rule above
 *  -EFBIG	above one of our limits
 *  -ENOMEM (no sentence); what pread() sets; what fn returned
 */
int gguf_read(int fd, uint64_t size, tensor_fn *fn, void *arg, struct buf *why);

#endif
