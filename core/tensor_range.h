/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor range: one tensor as a weight file describes it, and the few helpers
 * that the readers of such files share.
 *
 * A reader hands each tensor to a tensor_fn only after the whole file was
 * checked, in the order of the data. What it promises of every one:
 *  - begin <= end <= size of the file;
 *  - tensor_elements() of its shape succeeds, and end - begin is elements /
 *    block_elems * block_bytes, without wrapping;
 *  - no two tensors of one file share a byte, and no two share a name;
 *  - name is valid UTF-8.
 *
 * Ownership: a struct tensor_info and all it points to is borrowed for the
 * time of the call; dtype is static.
 *
 * No global state: any thread, any number at once. why is never NULL.
 */
#ifndef CORE_TENSOR_RANGE_H
#define CORE_TENSOR_RANGE_H

#include <stddef.h>
#include <stdint.h>

struct buf;

/* The most axes that any array library in use can hold. */
#define TENSOR_RANK_MAX 64

struct tensor_info {
	const char *name; /* not terminated; may be empty, may hold NUL bytes */
	size_t name_len;
	const char *dtype; /* as the format spells it: "BF16", "q4_K" */
	unsigned rank;
	uint64_t shape[TENSOR_RANK_MAX]; /* in elements, slowest axis first */
	uint64_t begin, end;             /* bytes of the file, end exclusive */
	uint32_t block_elems; /* the last axis is stored in blocks: elements */
	uint32_t block_bytes; /* and bytes of one */
};

/* Returns 0 to go on, or a negative errno that the reader hands through. */
typedef int tensor_fn(void *arg, const struct tensor_info *t, struct buf *why);

/*
 * The number of elements, 1 for rank 0. The product must fit 63 bits at every
 * step from the left, so that no reader's arithmetic can wrap: { 0, 2^62, 4 }
 * is empty, { 2^62, 4, 0 } is refused.
 *
 * Errors: -EOVERFLOW.
 */
int tensor_elements(const uint64_t *shape, unsigned rank, uint64_t *ret);

/* Bytes of a name that a sentence shows; longer ones are cut visibly. */
#define TENSOR_NAME_SHOWN_MAX 128

/* Appends name in quotes, control bytes replaced. Out of memory: unchanged. */
void tensor_show_name(struct buf *out, const char *name, size_t len);

/*
 * tensor_refuse(err, why, name, len, fmt, ...) appends "tensor 'NAME': " and
 * the sentence to why, logs, and is err. No memory for the sentence is no
 * reason for another error. file_refuse(err, why, fmt, ...) does the same of
 * the file as a whole. Macros, so that static analysers see what comes out.
 */
#define tensor_refuse(err, ...)                                                \
	({                                                                     \
		int refuse_err_ = (err);                                       \
		tensor_say(refuse_err_, __VA_ARGS__);                          \
		refuse_err_;                                                   \
	})
#define file_refuse(err, ...)                                                  \
	({                                                                     \
		int refuse_err_ = (err);                                       \
		file_say(refuse_err_, __VA_ARGS__);                            \
		refuse_err_;                                                   \
	})

__attribute__((format(printf, 5, 6))) void tensor_say(int err, struct buf *why,
						      const char *name,
						      size_t len,
						      const char *fmt, ...);
__attribute__((format(printf, 3, 4))) void file_say(int err, struct buf *why,
						    const char *fmt, ...);

/*
 * Reads exactly len bytes at offset.
 *
 * Errors: -EBADMSG the file has become shorter than it was said to be; what
 * pread() sets.
 */
int file_read_exact(int fd, void *dst, size_t len, uint64_t offset,
		    struct buf *why);

/* How many bytes of a file file_looks_like() wants. */
#define FILE_HEAD_LEN 4096

/*
 * What else a file that is not a weight file may be, from its first len bytes:
 * "a git-lfs pointer, ...", or NULL when nothing comes to mind. Meant for the
 * sentence of a refusal, not for deciding one.
 */
const char *file_looks_like(const void *head, size_t len);

#endif
