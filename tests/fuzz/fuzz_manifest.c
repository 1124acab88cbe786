/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes. If they are a manifest, its canonical text is one too and stays
 * as it is, and everything in it can be found.
 */
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/manifest.h"
#include "fuzz.h"

#define REQUIRE(cond)                                                          \
	do {                                                                   \
		if (!(cond))                                                   \
			abort();                                               \
	} while (0)

static void check_tensors(const struct manifest *m)
{
	size_t fragments = 0;

	for (size_t i = 0; i < m->tensor_count; i++) {
		const struct manifest_tensor *t = &m->tensors[i];
		size_t count = manifest_tensor_fragment_count(m, i);

		REQUIRE(t->rank <= MANIFEST_RANK_MAX && t->itemsize);
		REQUIRE(manifest_tensor_find(m, t->id.data, t->id.len) == t);
		REQUIRE(count > 0);
		for (size_t f = 0; f < count; f++)
			REQUIRE(manifest_tensor_fragment(m, i, f)->tensor == i);
		fragments += count;
	}
	REQUIRE(fragments == m->fragment_count);
}

static void check_places(const struct manifest *m)
{
	for (size_t i = 0; i < m->fragment_count; i++) {
		const struct manifest_fragment *f = &m->fragments[i];
		const struct manifest_object *o = manifest_object_of(m, f);

		REQUIRE((o != NULL) == m->has_objects);
		if (o)
			REQUIRE(f->object_offset + f->nbytes <= o->size);
	}
	for (size_t i = 0; i < m->file_count; i++) {
		const struct manifest_file *f = &m->files[i];

		REQUIRE(f->path[0] && f->path[0] != '/');
		REQUIRE(manifest_file_find(m, f->path) == f);
		REQUIRE((f->kind == MANIFEST_REGULAR) ==
			(f->object < m->object_count));
	}
	for (size_t i = 0; i < m->object_count; i++)
		REQUIRE(manifest_object_find(m, m->objects[i].key) ==
			&m->objects[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	cleanup(manifest_unref_cleanup) struct manifest *again = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	cleanup(buf_release) struct buf first = BUF_INIT;
	cleanup(buf_release) struct buf second = BUF_INIT;

	if (manifest_parse((const char *)data, size, &m, &why) < 0) {
		REQUIRE(!m && why.len && !strchr(why.data, '\n'));
		return 0;
	}
	REQUIRE(why.len == 0);
	check_tensors(m);
	check_places(m);
	REQUIRE(manifest_write(m, &first) == 0);
	REQUIRE(manifest_parse(first.data, first.len, &again, NULL) == 0);
	REQUIRE(manifest_write(again, &second) == 0);
	REQUIRE(first.len == second.len);
	REQUIRE(memcmp(first.data, second.data, first.len) == 0);
	return 0;
}
