/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a GGUF file: if it is read, its tensors lie inside the file,
 * one behind the other, as long as the shape says; if not, there is a reason
 * and no tensor was handed over.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/gguf.h"
#include "core/utf8.h"
#include "fuzz.h"

#define REQUIRE(cond)                                                          \
	do {                                                                   \
		if (!(cond))                                                   \
			abort();                                               \
	} while (0)

struct seen {
	size_t count;
	uint64_t at; /* the end of the last tensor */
	uint64_t size;
};

static int see(void *arg, const struct tensor_info *t, struct buf *why)
{
	struct seen *s = arg;
	uint64_t elems;

	(void)why;
	s->count++;
	REQUIRE(t->begin >= s->at);
	REQUIRE(t->end >= t->begin && t->end <= s->size);
	REQUIRE(t->rank <= GGUF_RANK_MAX);
	REQUIRE(tensor_elements(t->shape, t->rank, &elems) == 0);
	REQUIRE(elems % t->block_elems == 0);
	REQUIRE(elems / t->block_elems * t->block_bytes == t->end - t->begin);
	REQUIRE(utf8_valid(t->name, t->name_len));
	s->at = t->end;
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	auto_fd int fd = memfd_create("fuzz", MFD_CLOEXEC);
	struct seen s = { .size = size };

	REQUIRE(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	if (gguf_read(fd, size, see, &s, &why) == 0) {
		REQUIRE(why.len == 0);
	} else {
		REQUIRE(s.count == 0);
		REQUIRE(why.len > 0);
		REQUIRE(utf8_valid(why.data, why.len));
	}
	return 0;
}
