/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as an entry of the operation log, as they are and with checksums
 * that are made right: what is accepted names what it changes, and encodes to
 * the same bytes.
 */
#include <endian.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/oplog.h"
#include "fuzz.h"

#define AT_CHECKSUM 20
#define AT_KEY_HASH 24
#define AT_HEAD_CHECKSUM 28
#define AT_TENANT_LEN 32
#define AT_TENANT 34

#define REQUIRE(cond)                                                          \
	do {                                                                   \
		if (!(cond))                                                   \
			abort();                                               \
	} while (0)

static void check_change(const struct oplog_change *c)
{
	REQUIRE(oplog_type_name(c->type));
	REQUIRE(c->operation_count <= OPLOG_OPERATIONS_MAX);
	REQUIRE((c->type == OPLOG_METADATA_UPSERT) == (c->metadata != NULL));
	REQUIRE((c->type == OPLOG_LEASE_UPSERT) == (c->lease != NULL));
	REQUIRE((c->type == OPLOG_LINEAGE_UPSERT) == (c->lineage != NULL));
	for (size_t i = 0; i < c->operation_count; i++)
		REQUIRE(weight_identity_equal(&c->operations[i]->identity,
					      &c->metadata->identity));
	if (c->type == OPLOG_METADATA_DELETE || c->type == OPLOG_LEASE_DELETE)
		REQUIRE(weight_identity_check(&c->identity, NULL) == 0);
}

static void check(const uint8_t *data, size_t size)
{
	cleanup(oplog_entry_free_cleanup) struct oplog_entry *e = NULL;
	cleanup(buf_release) struct buf again = BUF_INIT;

	if (oplog_decode(data, size, &e) < 0) {
		REQUIRE(!e);
		return;
	}
	REQUIRE(e->sequence > 0 && weight_tenant_ok(e->tenant));
	REQUIRE(strncmp(e->key, "weight-", strlen("weight-")) == 0);
	check_change(&e->change);
	REQUIRE(oplog_encode(&e->change, e->sequence, &again) == 0);
	REQUIRE(again.len == size && memcmp(again.data, data, size) == 0);
}

static size_t u16_at(const uint8_t *data, size_t at)
{
	return data[at] | (size_t)data[at + 1] << 8;
}

static void set_hash(uint8_t *at, const void *bytes, size_t len)
{
	uint32_t le = htole32(XXH32(bytes, len, 0));

	memcpy(at, &le, sizeof(le));
}

/* Makes the checksums right, as far as the lengths leave something to hash. */
static void mend(uint8_t *data, size_t size)
{
	size_t tenant_len, key_len, at;
	uint8_t *covered;

	if (size < AT_TENANT)
		return;
	tenant_len = u16_at(data, AT_TENANT_LEN);
	at = AT_TENANT + tenant_len;
	if (size < at + 2)
		return;
	key_len = u16_at(data, at);
	at += 2;
	if (size < at + key_len + 4)
		return;
	set_hash(data + AT_KEY_HASH, data + at, key_len);
	at += key_len + 4;
	set_hash(data + AT_CHECKSUM, data + at, size - at);
	covered = malloc(AT_HEAD_CHECKSUM + tenant_len);
	REQUIRE(covered);
	memcpy(covered, data, AT_HEAD_CHECKSUM);
	memcpy(covered + AT_HEAD_CHECKSUM, data + AT_TENANT, tenant_len);
	set_hash(data + AT_HEAD_CHECKSUM, covered,
		 AT_HEAD_CHECKSUM + tenant_len);
	free(covered);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_free uint8_t *copy = malloc(size + 1);

	check(data, size);
	REQUIRE(copy);
	memcpy(copy, data, size);
	mend(copy, size);
	check(copy, size);
	return 0;
}
