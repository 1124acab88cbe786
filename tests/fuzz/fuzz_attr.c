/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes, as values of attributes: a refusal has its clause, made of
 * printable characters, and what is accepted can be written and read back as
 * the same.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/cleanup.h"
#include "fs/attr_value.h"
#include "fuzz.h"

#define REQUIRE(cond)                                                          \
	do {                                                                   \
		if (!(cond))                                                   \
			abort();                                               \
	} while (0)

static void require_refusal(int r, const struct buf *why)
{
	REQUIRE(r < 0 && why->len > 0 && strlen(why->data) == why->len);
	for (size_t i = 0; i < why->len; i++)
		REQUIRE(why->data[i] >= ' ' && why->data[i] < 0x7f);
}

static void try_fenced(const char *value)
{
	cleanup(buf_release) struct buf again = BUF_INIT;
	uint64_t expected = 0;
	size_t len = 0;

	if (attr_value_fenced(value, &len, &expected) < 0)
		return;
	REQUIRE(buf_append(&again, value, len) == 0);
	if (expected)
		REQUIRE(buf_printf(&again, ",if=%llu",
				   (unsigned long long)expected) == 0);
	REQUIRE(strcmp(again.data, value) == 0);
}

static void try_policy(const char *value)
{
	cleanup(buf_release) struct buf why = BUF_INIT, text = BUF_INIT;
	struct weight_policy policy = WEIGHT_POLICY_DEFAULT;
	struct weight_policy_change change, again;
	uint64_t expected, none;
	int r = attr_value_policy(value, &change, &expected, &why);

	if (r < 0) {
		require_refusal(r, &why);
		return;
	}
	REQUIRE(why.len == 0);
	if (change.set_preferred)
		policy.preferred = change.policy.preferred;
	if (change.set_mixed_hot_ratio)
		policy.mixed_hot_ratio = change.policy.mixed_hot_ratio;
	if (change.set_mode)
		policy.mode = change.policy.mode;
	REQUIRE(weight_policy_check(&policy, NULL) == 0);
	REQUIRE(attr_value_policy_print(&policy, &text) == 0);
	REQUIRE(attr_value_policy(text.data, &again, &none, &why) == 0);
	REQUIRE(none == 0 && again.set_preferred && again.set_mode &&
		again.set_mixed_hot_ratio);
	REQUIRE(weight_policy_equal(&again.policy, &policy));
}

static void print_replaces(const struct weight_replacement *r, struct buf *text)
{
	REQUIRE(buf_printf(text, "%llu,mode=%s", (unsigned long long)r->base,
			   weight_upsert_mode_name(r->mode)) == 0);
	if (r->request_id)
		REQUIRE(buf_printf(text, ",request_id=%s", r->request_id) == 0);
	if (r->expected_metadata_generation)
		REQUIRE(buf_printf(text, ",if=%llu",
				   (unsigned long long)
					   r->expected_metadata_generation) ==
			0);
}

static void try_replaces(const char *value)
{
	cleanup(buf_release) struct buf why = BUF_INIT, first = BUF_INIT,
					second = BUF_INIT;
	struct attr_replaces replaces, again;
	int r = attr_value_replaces(value, &replaces, &why);

	if (r < 0) {
		require_refusal(r, &why);
		return;
	}
	REQUIRE(why.len == 0 && replaces.replacement.base > 0);
	print_replaces(&replaces.replacement, &first);
	REQUIRE(attr_value_replaces(first.data, &again, &why) == 0);
	print_replaces(&again.replacement, &second);
	REQUIRE(strcmp(first.data, second.data) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_free char *value = malloc(size + 1);

	if (!value)
		return 0;
	if (size)
		memcpy(value, data, size);
	value[size] = '\0';
	try_fenced(value);
	try_policy(value);
	try_replaces(value);
	return 0;
}
