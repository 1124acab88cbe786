/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records as bytes: how the metadata store keeps revisions, leases, staged
 * imports, residency operations and lineages. Pure functions, thread-safe.
 *
 * Every record is little-endian and starts with the version of its layout. A
 * string is its length and its bytes, without a NUL. A ratio is the bits of an
 * IEEE double. Flags that are not named are 0.
 *
 *	string	u16 length, at most WEIGHT_RECORD_STRING_MAX; bytes, none is 0
 *	identity	strings tenant, namespace, resource, revision; u64 generation
 *
 * Revision, version 1:
 *	u16	version
 *	u8	availability
 *	u8	residency
 *	u8	preferred residency of the policy
 *	u8	migration mode of the policy
 *	u16	flags: 1 durable, 2 the manifest reference is complete
 *	u64	metadata generation
 *	u64	operation id, 0 for none
 *	u64	created at, ms
 *	u64	updated at, ms
 *	u64	last accessed at, ms
 *	u64	ratio of the policy
 *	u64	observed hot ratio
 *	u64	payload count
 *	u64	logical bytes
 *	u64	affinity count
 *	u8[32]	affinity digest
 *	u8[32]	manifest SHA-256
 *	u8[32]	payload keys SHA-256
 *	identity
 *	string	manifest key
 *	string	payload group id
 *
 * Lease, version 1:
 *	u16	version
 *	u16	zero
 *	u64	lease id
 *	u64	expires at, ms
 *	u64	fenced metadata generation
 *	identity
 *	string	holder
 *
 * Staged import, version 1, and version 2 where it has a policy:
 *	u16	version
 *	u16	zero
 *	u64	created at, ms
 *	u64	epoch
 *	identity
 *	policy	version 2: u8 preferred residency, u8 migration mode, u64 ratio
 *
 * Operation, version 1:
 *	u16	version
 *	u8	kind
 *	u8	target residency
 *	u64	operation id
 *	u64	target hot ratio
 *	u64	fenced metadata generation
 *	u64	started at, ms
 *	u64	updated at, ms
 *	u64	processed units
 *	u64	total units
 *	u64	processed bytes
 *	u64	total bytes
 *	identity
 *	string	cursor
 *	string	message
 *
 * Lineage, version 1:
 *	u16	version
 *	u64	watermark
 *	u64	lineage metadata generation
 *	u16	flags: 1 there is a claim, 2 its target is described
 *	strings tenant, namespace, resource, revision
 *	claim, if there is one:
 *		u8	mode
 *		u8	phase
 *		u64	base, a weight generation
 *		u64	target
 *		u64	expected metadata generation of the base
 *		u64	created at, ms
 *		u64	updated at, ms
 *		string	request id
 *		string	error
 *		of a target that is described: u64 payload count, u64 logical
 *			bytes, policy, u64 affinity count, u8[32] affinity digest
 *
 * Encoding appends to a buffer, which is unchanged on failure. Errors:
 *  -EINVAL	the record breaks a rule of its _check function
 *  -ENOMEM, -EOVERFLOW	as buf_append()
 *  -EIO	the crypto library
 *
 * Decoding takes any bytes, checks all of them and every rule of the record.
 * Its result is one heap allocation that owns its strings, for the _free
 * function of the struct. Errors:
 *  -EUCLEAN	damaged: too short or too long, or a field breaks a rule
 *  -EPROTONOSUPPORT	written by a newer version
 *  -ENOMEM
 *  -EIO	the crypto library
 */
#ifndef CORE_WEIGHT_RECORD_H
#define CORE_WEIGHT_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/weight_key.h"
#include "core/weight_lineage.h"
#include "core/weight_management.h"

#define WEIGHT_RECORD_VERSION 1
#define WEIGHT_RECORD_STRING_MAX WEIGHT_MANIFEST_KEY_MAX
#define WEIGHT_RECORD_BYTES_MAX ((size_t)32 << 10)

int weight_record_metadata_encode(const struct weight_metadata *m,
				  struct buf *ret);
int weight_record_metadata_decode(const void *bytes, size_t len,
				  struct weight_metadata **ret);

/*
 * As decoding, of bytes that were decoded or encoded before by whoever keeps
 * them: see weight_metadata_check_again(). Other bytes do no harm.
 */
int weight_record_metadata_decode_again(const void *bytes, size_t len,
					struct weight_metadata **ret);

int weight_record_lease_encode(const struct weight_lease *lease,
			       struct buf *ret);
int weight_record_lease_decode(const void *bytes, size_t len,
			       struct weight_lease **ret);

/* An import that was begun: it reserves its identity. */
struct weight_staging {
	struct weight_identity identity;
	uint64_t created_at_ms;
	uint64_t epoch;  /* of the boot that the import was begun in */
	bool has_policy; /* else the one of the store when it is published */
	struct weight_policy policy;
};

void weight_staging_free(struct weight_staging *s); /* accepts NULL */
DEFINE_CLEANUP(struct weight_staging *, weight_staging_free)

int weight_record_staging_encode(const struct weight_staging *s,
				 struct buf *ret);
int weight_record_staging_decode(const void *bytes, size_t len,
				 struct weight_staging **ret);

int weight_record_operation_encode(const struct weight_operation *op,
				   struct buf *ret);
int weight_record_operation_decode(const void *bytes, size_t len,
				   struct weight_operation **ret);

int weight_record_lineage_encode(const struct weight_lineage_record *l,
				 struct buf *ret);
int weight_record_lineage_decode(const void *bytes, size_t len,
				 struct weight_lineage_record **ret);

/* An identity alone, for what names a revision. It has no version. */
int weight_record_identity_encode(const struct weight_identity *id,
				  struct buf *ret);
int weight_record_identity_decode(const void *bytes, size_t len,
				  struct weight_identity **ret);

#endif
