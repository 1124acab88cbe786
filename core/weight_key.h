/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that are derived from an identity or from tensors: keys of the store,
 * ids and summary digests (weight-contracts 3.2, 3.4, 4.4, 6.13), and the names
 * that identities and tensors have in the mounted tree.
 *
 * All functions are pure but for weight_transaction_id(), which draws random
 * bits, and thread-safe. Functions that take an identity or a lineage expect
 * one that its _check function accepts.
 *
 * Results go to a caller's array whose size is fixed here, or are appended to a
 * struct buf, which is unchanged on failure. Appending fails as buf_append()
 * does (-ENOMEM, -EOVERFLOW), hashing as digest_of() does (-EIO), and this is
 * not repeated below.
 */
#ifndef CORE_WEIGHT_KEY_H
#define CORE_WEIGHT_KEY_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/digest.h"
#include "core/weight_management.h"

/* The only key prefix that managed revisions have. */
#define WEIGHT_KEY_PREFIX "weights"

/* What a weight_base() or a manifest key can be at most, in bytes. */
#define WEIGHT_BASE_MAX                                                        \
	(sizeof(WEIGHT_KEY_PREFIX) +                                           \
	 3 * (3 * (size_t)WEIGHT_COMPONENT_MAX + 1) +                          \
	 WEIGHT_GENERATION_LEN_MAX)
#define WEIGHT_MANIFEST_KEY_MAX (WEIGHT_BASE_MAX + sizeof("/manifest") - 1)

/* Lengths without the NUL. */
#define WEIGHT_GROUP_ID_PREFIX "weight:"
#define WEIGHT_GROUP_ID_LEN                                                    \
	(sizeof(WEIGHT_GROUP_ID_PREFIX) - 1 + DIGEST_HEX_LEN)
#define WEIGHT_METADATA_LOG_KEY_LEN                                            \
	(sizeof("weight-revision:") - 1 + DIGEST_HEX_LEN)
#define WEIGHT_LINEAGE_LOG_KEY_LEN                                             \
	(sizeof("weight-lineage:") - 1 + DIGEST_HEX_LEN)
#define WEIGHT_LEASE_LOG_KEY_LEN_MAX                                           \
	(sizeof("weight-lease:") - 1 + WEIGHT_GENERATION_LEN_MAX)
#define WEIGHT_FRAGMENT_ID_LEN 24
#define WEIGHT_TRANSACTION_ID_LEN 32

/*
 * One segment of a store key: letters, digits and "-_.~" stand for themselves,
 * any other byte becomes %XX with upper-case digits.
 */
int weight_segment_encode(const char *segment, struct buf *ret);

/*
 * The inverse. Only what weight_segment_encode() writes is accepted, so that a
 * segment has one form. The result may hold NUL bytes if text has %00.
 *
 * Errors: -EINVAL.
 */
int weight_segment_decode(const char *text, size_t len, struct buf *ret);

/* weights/<namespace>/<resource>/<revision>/<generation> */
int weight_base(const struct weight_identity *id, struct buf *ret);

/* <base>/manifest */
int weight_manifest_key(const struct weight_identity *id, struct buf *ret);

/* Whether key is the one above; needs no memory. */
bool weight_manifest_key_is(const struct weight_identity *id, const char *key);

/* <base>/payload/<transaction id>/<fragment id> */
int weight_payload_key(const struct weight_identity *id, const char *txid,
		       const char *fragment_id, struct buf *ret);

/* What makes the group id and the keys of log entries. Errors: -ENOMEM. */
int weight_group_hash(const struct weight_identity *id, struct digest *ret);
int weight_lineage_hash(const struct weight_lineage *l, struct digest *ret);

/* "weight:" and the group hash. Errors: -ENOMEM. */
int weight_group_id(const struct weight_identity *id,
		    char ret[static WEIGHT_GROUP_ID_LEN + 1]);

/* The hash alone, as the group's directory is named. Errors: -ENOMEM. */
int weight_group_hex(const struct weight_identity *id,
		     char ret[static DIGEST_HEX_LEN + 1]);

/* Keys of entries in the operation log. Errors: -ENOMEM. */
int weight_metadata_log_key(const struct weight_identity *id,
			    char ret[static WEIGHT_METADATA_LOG_KEY_LEN + 1]);
int weight_lineage_log_key(const struct weight_lineage *l,
			   char ret[static WEIGHT_LINEAGE_LOG_KEY_LEN + 1]);

/* Errors: -EINVAL for lease 0, which has no key. */
int weight_lease_log_key(uint64_t lease_id,
			 char ret[static WEIGHT_LEASE_LOG_KEY_LEN_MAX + 1]);

/* 128 random bits. Errors: -EIO when the system has none to give. */
int weight_transaction_id(char ret[static WEIGHT_TRANSACTION_ID_LEN + 1]);

/*
 * The stored fragment id of a box of a tensor: the first digits of a digest
 * over the tensor id and rank numbers of offset and shape each. The arrays may
 * be NULL when rank is 0.
 */
int weight_fragment_id(const char *tensor_id, size_t len,
		       const uint64_t *offset, const uint64_t *shape,
		       unsigned rank,
		       char ret[static WEIGHT_FRAGMENT_ID_LEN + 1]);

/*
 * Digest over the distinct object keys in sorted order. Sorts keys in place;
 * ret_distinct, which may be NULL, gets how many differ.
 */
int weight_payload_keys_digest(const char **keys, size_t count,
			       struct digest *ret, uint64_t *ret_distinct);

/* Bytes of any value; a tensor id may be empty and need not be a C string. */
struct weight_text {
	const char *bytes;
	size_t len;
};

/*
 * What moves between memory and disk as one: a tensor (one member) or a group
 * of aliases (its members, sorted and distinct). Members are borrowed.
 */
struct weight_affinity_unit {
	const struct weight_text *members;
	size_t count; /* 1 or more */
};

/* Orders by bytes, the shorter first where one begins the other. */
int weight_text_compare(const struct weight_text *a,
			const struct weight_text *b);

/*
 * Digest over the distinct units in sorted order. Sorts units in place;
 * ret_distinct, which may be NULL, gets the affinity count.
 */
int weight_affinity_digest(struct weight_affinity_unit *units, size_t count,
			   struct digest *ret, uint64_t *ret_distinct);

/* The id of one unit; units move in the order of their ids. */
int weight_residency_affinity_id(const struct weight_affinity_unit *unit,
				 struct digest *ret);

/*
 * The request id that a replacement has when its caller gives none. Equal
 * requests have equal ids.
 */
int weight_request_id(const struct weight_identity *base,
		      const struct weight_identity *target,
		      enum weight_upsert_mode mode,
		      uint64_t expected_metadata_generation,
		      char ret[static DIGEST_HEX_LEN + 1]);

/*
 * The transaction id of the payload of a replacement: it follows from the
 * request and from what is uploaded, so that a writer that is made anew goes on
 * where the last one was. source is the digest of the source placement.
 */
int weight_upsert_transaction_id(const struct weight_identity *target,
				 const char *request_id,
				 const struct digest *source,
				 char ret[static DIGEST_HEX_LEN + 1]);

/*
 * Names in the mounted tree.
 *
 * A part of an identity is its own name, with three exceptions that make every
 * legal part a legal name: '/' becomes %2F, '%' becomes %25, and '.' becomes
 * %2E where it comes first. So "." and ".." and names that the tree keeps for
 * itself, such as ".weights" and ".staging", can't come out. Nothing else is
 * decoded, so that a part has exactly one name.
 */
#define WEIGHT_PATH_NAME_MAX 255

/* Errors: -EINVAL not a component, -ENAMETOOLONG. */
int weight_path_encode(const char *component, struct buf *ret);

/*
 * name need not be NUL-terminated.
 *
 * Errors:
 *  -EINVAL	not what weight_path_encode() writes for any component
 *  -ENAMETOOLONG	more than WEIGHT_PATH_NAME_MAX bytes
 */
int weight_path_decode(const char *name, size_t len, struct buf *ret);

/*
 * The file name of a tensor whose id is len bytes of any value. As for a part
 * of an identity, and control characters (below 0x20, and 0x7f) become %XX too.
 * The empty id is "%" alone. A name that would be longer than
 * WEIGHT_PATH_NAME_MAX has a short form: its first bytes, cut between
 * characters, then "%~" and the first 32 hex digits of the SHA-256 of the id.
 * The short form doesn't give the id back; the manifest does.
 */
int weight_tensor_name(const char *tensor_id, size_t len,
		       char ret[static WEIGHT_PATH_NAME_MAX + 1]);

#endif
