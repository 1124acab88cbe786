/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a file of stamps, as they are and with the digest that they
 * would need: what is accepted encodes to the same bytes, and each known entry
 * is found by its number.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/digest.h"
#include "core/stamps.h"
#include "fuzz.h"

#define REQUIRE(cond)                                                          \
	do {                                                                   \
		if (!(cond))                                                   \
			abort();                                               \
	} while (0)

static void check_index(const struct stamps *s)
{
	size_t known = 0, at;

	for (size_t i = 0; i < s->count; i++) {
		const struct stamp *e = &s->entries[i];

		if (!e->known)
			continue;
		known++;
		REQUIRE(stamps_find(s, e->ino, &at) == 0 && at == i);
	}
	REQUIRE(known == s->known_count);
}

static void as_stamps(const void *bytes, size_t len)
{
	cleanup(stamps_free_cleanup) struct stamps *s = NULL;
	cleanup(buf_release) struct buf again = BUF_INIT;

	if (stamps_decode(bytes, len, &s) < 0) {
		REQUIRE(!s);
		return;
	}
	check_index(s);
	REQUIRE(stamps_encode(s, &again) == 0);
	REQUIRE(again.len == len && memcmp(again.data, bytes, len) == 0);
	for (size_t i = 0; i < s->count; i += 2)
		stamps_set(s, i, NULL);
	check_index(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup(buf_release) struct buf whole = BUF_INIT;
	struct digest d;

	as_stamps(data, size);
	REQUIRE(digest_of(data, size, &d) == 0);
	REQUIRE(buf_append(&whole, data, size) == 0);
	REQUIRE(buf_append(&whole, d.bytes, DIGEST_LEN) == 0);
	as_stamps(whole.data, whole.len);
	return 0;
}
