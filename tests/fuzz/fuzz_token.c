/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes, as the token of a page: what is accepted names a revision and a
 * generation that can exist, and is the token of exactly these.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/cleanup.h"
#include "core/weight_metadata_store.h"
#include "fuzz.h"

#define REQUIRE(cond)                                                          \
	do {                                                                   \
		if (!(cond))                                                   \
			abort();                                               \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup(buf_release) struct buf again = BUF_INIT;
	char revision[WEIGHT_COMPONENT_MAX + 1] = "untouched";
	uint64_t generation = 0;
	struct weight_metadata m = { .identity.lineage.revision = revision };

	if (wms_page_token_parse((const char *)data, size, revision,
				 &generation) < 0) {
		REQUIRE(strcmp(revision, "untouched") == 0);
		return 0;
	}
	REQUIRE(weight_component_ok(revision));
	REQUIRE(generation > 0);
	m.identity.generation = generation;
	REQUIRE(wms_page_token(&m, &again) == 0);
	REQUIRE(again.len == size && memcmp(again.data, data, size) == 0);
	return 0;
}
