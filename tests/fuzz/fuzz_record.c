/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as each kind of record: what is accepted obeys the rules of the
 * record, and encodes to the same bytes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/weight_record.h"
#include "fuzz.h"

#define REQUIRE(cond)                                                          \
	do {                                                                   \
		if (!(cond))                                                   \
			abort();                                               \
	} while (0)

static void require_same(const struct buf *b, const uint8_t *data, size_t size)
{
	REQUIRE(b->len == size && memcmp(b->data, data, size) == 0);
}

static void as_metadata(const uint8_t *data, size_t size)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *copy =
		NULL;
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *again =
		NULL;
	cleanup(buf_release) struct buf b = BUF_INIT;
	int r = weight_record_metadata_decode_again(data, size, &again);

	REQUIRE((r == 0) == (again != NULL));
	if (again)
		REQUIRE(weight_metadata_check_again(again, NULL) == 0);
	if (weight_record_metadata_decode(data, size, &m) < 0) {
		REQUIRE(!m);
		return;
	}
	REQUIRE(again);
	REQUIRE(weight_metadata_check(m, NULL) == 0);
	REQUIRE(weight_metadata_copy(m, &copy) == 0);
	REQUIRE(weight_record_metadata_encode(copy, &b) == 0);
	require_same(&b, data, size);
}

static void as_lease(const uint8_t *data, size_t size)
{
	cleanup(weight_lease_free_cleanup) struct weight_lease *l = NULL;
	cleanup(weight_lease_free_cleanup) struct weight_lease *copy = NULL;
	cleanup(buf_release) struct buf b = BUF_INIT;

	if (weight_record_lease_decode(data, size, &l) < 0) {
		REQUIRE(!l);
		return;
	}
	REQUIRE(weight_lease_check(l, NULL) == 0);
	REQUIRE(weight_lease_copy(l, &copy) == 0);
	REQUIRE(weight_record_lease_encode(copy, &b) == 0);
	require_same(&b, data, size);
}

static void as_staging(const uint8_t *data, size_t size)
{
	cleanup(weight_staging_free_cleanup) struct weight_staging *s = NULL;
	cleanup(buf_release) struct buf b = BUF_INIT;

	if (weight_record_staging_decode(data, size, &s) < 0) {
		REQUIRE(!s);
		return;
	}
	REQUIRE(weight_identity_check(&s->identity, NULL) == 0);
	REQUIRE(!s->has_policy || weight_policy_check(&s->policy, NULL) == 0);
	REQUIRE(weight_record_staging_encode(s, &b) == 0);
	require_same(&b, data, size);
}

static void as_operation(const uint8_t *data, size_t size)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	cleanup(weight_operation_free_cleanup) struct weight_operation *copy =
		NULL;
	cleanup(buf_release) struct buf b = BUF_INIT;

	if (weight_record_operation_decode(data, size, &op) < 0) {
		REQUIRE(!op);
		return;
	}
	REQUIRE(weight_operation_check(op, NULL) == 0);
	REQUIRE(weight_operation_copy(op, &copy) == 0);
	REQUIRE(weight_record_operation_encode(copy, &b) == 0);
	require_same(&b, data, size);
}

static void as_lineage(const uint8_t *data, size_t size)
{
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*l = NULL;
	cleanup(weight_lineage_record_free_cleanup) struct weight_lineage_record
		*copy = NULL;
	cleanup(buf_release) struct buf b = BUF_INIT;
	const struct weight_claim *live;

	if (weight_record_lineage_decode(data, size, &l) < 0) {
		REQUIRE(!l);
		return;
	}
	REQUIRE(weight_lineage_record_check(l, NULL) == 0);
	live = weight_lineage_live_claim(l);
	REQUIRE(!live || weight_lineage_claims(l, live->base));
	REQUIRE(weight_lineage_record_copy(l, &copy) == 0);
	REQUIRE(weight_record_lineage_encode(copy, &b) == 0);
	require_same(&b, data, size);
}

/* A name in the tree stands for at most one part of an identity. */
static void as_name(const uint8_t *data, size_t size)
{
	cleanup(buf_release) struct buf component = BUF_INIT;
	cleanup(buf_release) struct buf name = BUF_INIT;
	char tensor[WEIGHT_PATH_NAME_MAX + 1];
	const char *text = (const char *)data;

	REQUIRE(weight_tensor_name(text, size, tensor) == 0);
	REQUIRE(tensor[0] && tensor[0] != '.' && !strchr(tensor, '/'));
	REQUIRE(strlen(tensor) <= WEIGHT_PATH_NAME_MAX);
	if (weight_path_decode(text, size, &component) < 0)
		return;
	REQUIRE(weight_path_encode(component.data, &name) == 0);
	require_same(&name, data, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	as_metadata(data, size);
	as_lease(data, size);
	as_staging(data, size);
	as_operation(data, size);
	as_lineage(data, size);
	as_name(data, size);
	return 0;
}
