/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vocabulary of managed weight revisions: identity, states, errors, and the
 * records that describe a revision, a lease and a residency operation, each
 * with the rules that make it valid (weight-contracts 6.1 to 6.5 and 6.8).
 *
 * Everything here is a plain value or a pure function: no I/O, no clock, no
 * state, thread-safe.
 *
 * Ownership: strings inside these structs are borrowed, NUL-terminated and
 * never NULL unless said otherwise. A struct that a _copy or _decode function
 * returns is one heap allocation together with all of its strings; its _free
 * function frees it as a whole and must not be given a struct built by hand.
 *
 * Trust: the _check functions accept any bytes. They take a `why` to which they
 * append one sentence when they refuse; it may be NULL.
 *
 * Units: times are milliseconds since the epoch, sizes are bytes.
 */
#ifndef CORE_WEIGHT_MANAGEMENT_H
#define CORE_WEIGHT_MANAGEMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/digest.h"

/* Limits. All are inclusive. */
#define WEIGHT_COMPONENT_MAX 1024 /* bytes of an identity part, holder, ... */
#define WEIGHT_GENERATION_LEN_MAX 20 /* digits of 2^64-1 */
#define WEIGHT_METADATA_GENERATION_MAX (UINT64_MAX - 1)
#define WEIGHT_LEASE_TTL_MS_MIN 1
#define WEIGHT_LEASE_TTL_MS_MAX 86400000 /* 24 hours */
#define WEIGHT_LIST_LIMIT_DEFAULT 100
#define WEIGHT_LIST_LIMIT_MAX 1000
#define WEIGHT_DELETE_BATCH_MAX 64 /* members removed per round */

/* The message of a finished operation; no other operation may carry it. */
#define WEIGHT_OPERATION_COMPLETED "completed"

/* Likewise of one that ended unfinished, because its revision was removed. */
#define WEIGHT_OPERATION_REMOVED "the revision was removed"

/* And of one that couldn't go on when another target was asked for. */
#define WEIGHT_OPERATION_SUPERSEDED "another operation took its place"

/*
 * States. The numbers are wire and disk format: they never change, and a number
 * that is not listed is invalid everywhere.
 */
enum weight_availability {
	WEIGHT_IMPORTING = 0,
	WEIGHT_READY = 1,
	WEIGHT_DEGRADED = 2,
	WEIGHT_DELETING = 3,
	WEIGHT_DELETED = 4,
};

enum weight_residency {
	WEIGHT_UNKNOWN = 0,
	WEIGHT_HOT = 1,
	WEIGHT_COLD = 2,
	WEIGHT_MIXED = 3,
	WEIGHT_ABSENT = 4,
};

enum weight_migration_mode {
	WEIGHT_PINNED = 0,
	WEIGHT_MANUAL = 1,
	WEIGHT_AUTO = 2,
};

enum weight_operation_kind {
	WEIGHT_MIGRATING = 0,
	WEIGHT_REPAIRING = 1,
};

enum weight_upsert_mode {
	WEIGHT_PUT_FIRST = 0,
	WEIGHT_DELETE_FIRST = 1,
};

/* The contracts leave these numbers open; they are ours. */
enum weight_upsert_phase {
	WEIGHT_PREPARING_TARGET = 0,
	WEIGHT_RETIRING_BASE = 1,
	WEIGHT_DELETING_BASE = 2,
	WEIGHT_TARGET_IMPORTING = 3,
	WEIGHT_COMPLETED = 4,
	WEIGHT_ABORTED = 5,
};

enum weight_error {
	WEIGHT_INVALID_ARGUMENT = 1,
	WEIGHT_NOT_FOUND = 2,
	WEIGHT_CONFLICT = 3,
	WEIGHT_STALE_GENERATION = 4,
	WEIGHT_NOT_READY = 5,
	WEIGHT_BUSY = 6,
	WEIGHT_LEASE_EXPIRED = 7,
	WEIGHT_GENERATION_EXHAUSTED = 8,
	WEIGHT_DURABILITY_FAILED = 9,
	WEIGHT_POLICY_UNSATISFIABLE = 10,
};

/*
 * The word for a value as users see it ("ready", "cold", "put_first"), or NULL
 * for a number that is not listed.
 */
const char *weight_availability_name(enum weight_availability v);
const char *weight_residency_name(enum weight_residency v);
const char *weight_migration_mode_name(enum weight_migration_mode v);
const char *weight_operation_kind_name(enum weight_operation_kind v);
const char *weight_upsert_mode_name(enum weight_upsert_mode v);
const char *weight_upsert_phase_name(enum weight_upsert_phase v);

/*
 * The value for a word of len bytes, which need not be NUL-terminated. Exact
 * spelling, lower case only. Errors: -EINVAL.
 */
int weight_availability_parse(const char *text, size_t len,
			      enum weight_availability *ret);
int weight_residency_parse(const char *text, size_t len,
			   enum weight_residency *ret);
int weight_migration_mode_parse(const char *text, size_t len,
				enum weight_migration_mode *ret);
int weight_operation_kind_parse(const char *text, size_t len,
				enum weight_operation_kind *ret);
int weight_upsert_mode_parse(const char *text, size_t len,
			     enum weight_upsert_mode *ret);
int weight_upsert_phase_parse(const char *text, size_t len,
			      enum weight_upsert_phase *ret);

/* COMPLETED and ABORTED end a claim. */
bool weight_upsert_phase_is_terminal(enum weight_upsert_phase phase);

/* "NOT_READY" and so on, or NULL for an unknown number. */
const char *weight_error_name(enum weight_error e);

/* The negative errno that carries e inside the program; -EIO if unknown. */
int weight_error_errno(enum weight_error e);

/* The error that the negative errno r carries, or 0 when r carries none. */
enum weight_error weight_error_of_errno(int r);

/* Everything of an identity but the generation. */
struct weight_lineage {
	const char *tenant;
	const char *name_space;
	const char *resource;
	const char *revision;
};

struct weight_identity {
	struct weight_lineage lineage;
	uint64_t generation; /* 1 or more */
};

/*
 * Whether text may be a namespace, resource, revision, holder, request id,
 * cursor or message: 1 to WEIGHT_COMPONENT_MAX bytes of UTF-8 without control
 * characters. '/', spaces and leading dots are allowed. UTF-8 is asked for
 * because these strings end up in JSON.
 */
bool weight_component_ok(const char *text);

/* As weight_component_ok(), and it does not start with '_'. */
bool weight_tenant_ok(const char *text);

/* Errors: -EINVAL. */
int weight_lineage_check(const struct weight_lineage *l, struct buf *why);
int weight_identity_check(const struct weight_identity *id, struct buf *why);

bool weight_lineage_equal(const struct weight_lineage *a,
			  const struct weight_lineage *b);
bool weight_identity_equal(const struct weight_identity *a,
			   const struct weight_identity *b);

/* Errors: -ENOMEM. */
int weight_identity_copy(const struct weight_identity *id,
			 struct weight_identity **ret);
void weight_identity_free(struct weight_identity *id); /* accepts NULL */
DEFINE_CLEANUP(struct weight_identity *, weight_identity_free)

/*
 * A generation has one text form: decimal, 1 to 2^64-1, no sign, no leading
 * zero. text need not be NUL-terminated. Errors: -EINVAL.
 */
int weight_generation_parse(const char *text, size_t len, uint64_t *ret);
void weight_generation_print(uint64_t generation,
			     char ret[static WEIGHT_GENERATION_LEN_MAX + 1]);

/*
 * The metadata generation that follows. Errors: -EOVERFLOW when it is 0 or can
 * go no further.
 */
int weight_generation_advance(uint64_t metadata_generation, uint64_t *ret);

/*
 * Whether a mutation that is found already applied may be answered as a repeat
 * of itself: the caller's fence is the current generation or the one before.
 */
bool weight_generation_is_retry(uint64_t current, uint64_t expected);

struct weight_policy {
	enum weight_residency preferred; /* HOT, COLD or MIXED */
	double mixed_hot_ratio; /* inside (0,1), whatever is preferred */
	enum weight_migration_mode mode;
};

/* The policy of the contracts; a mount has defaults of its own. */
#define WEIGHT_POLICY_DEFAULT                                                  \
	((struct weight_policy){ .preferred = WEIGHT_MIXED,                    \
				 .mixed_hot_ratio = 0.5,                       \
				 .mode = WEIGHT_AUTO })

/* Errors: -EINVAL. */
int weight_policy_check(const struct weight_policy *p, struct buf *why);
bool weight_policy_equal(const struct weight_policy *a,
			 const struct weight_policy *b);

/*
 * What a revision's metadata says about its manifest and payload. While it is
 * not complete only the group, the count and the bytes are set: manifest_key is
 * "" and both digests are zero.
 */
struct weight_manifest_ref {
	const char *manifest_key;
	const char *payload_group_id;
	struct digest manifest_sha256;
	struct digest payload_keys_sha256;
	bool complete;
	uint64_t payload_count;
	uint64_t logical_bytes;
};

struct weight_metadata {
	struct weight_identity identity;
	struct weight_manifest_ref manifest;
	struct weight_policy policy;
	enum weight_availability availability;
	enum weight_residency residency;
	bool durable; /* survives a power loss; the filesystem's own field */
	uint64_t operation_id; /* 0: none is running */
	uint64_t affinity_count;
	struct digest affinity_digest;
	double observed_hot_ratio;
	uint64_t metadata_generation;
	uint64_t created_at_ms;
	uint64_t updated_at_ms;
	uint64_t last_accessed_at_ms;
};

/*
 * Every rule that a revision record obeys. Checkpoints without tensors or
 * without bytes are real, so payload_count, logical_bytes and affinity_count
 * may be 0 in any state; no units have the digest of nothing, no objects have
 * no bytes.
 *
 * Errors: -EINVAL, -ENOMEM, -EIO.
 */
int weight_metadata_check(const struct weight_metadata *m, struct buf *why);

/*
 * The same of a record that was checked before: its group id must look like
 * one, but isn't computed again, which would cost as much as all the rest.
 */
int weight_metadata_check_again(const struct weight_metadata *m,
				struct buf *why);

/* Errors: -ENOMEM. */
int weight_metadata_copy(const struct weight_metadata *m,
			 struct weight_metadata **ret);
void weight_metadata_free(struct weight_metadata *m); /* accepts NULL */
DEFINE_CLEANUP(struct weight_metadata *, weight_metadata_free)

/* Whether availability may change so. No state may change to itself. */
bool weight_availability_may(enum weight_availability from,
			     enum weight_availability to);

/* Whether the payload of a revision can be there while its state is this. */
bool weight_place_ok(enum weight_availability availability,
		     enum weight_residency residency, double hot_ratio);

struct weight_lease {
	uint64_t lease_id; /* 1 or more */
	struct weight_identity identity;
	const char *holder;
	uint64_t expires_at_ms;              /* 1 or more */
	uint64_t fenced_metadata_generation; /* 1 or more */
};

/* Errors: -EINVAL. */
int weight_lease_check(const struct weight_lease *lease, struct buf *why);

/*
 * Whether the lease protects a revision that is at metadata_generation now. One
 * that was taken before later changes of the metadata still does.
 */
bool weight_lease_is_active(const struct weight_lease *lease, uint64_t now_ms,
			    uint64_t metadata_generation);

/* Errors: -ENOMEM. */
int weight_lease_copy(const struct weight_lease *lease,
		      struct weight_lease **ret);
void weight_lease_free(struct weight_lease *lease); /* accepts NULL */
DEFINE_CLEANUP(struct weight_lease *, weight_lease_free)

struct weight_operation {
	uint64_t operation_id; /* 1 or more */
	struct weight_identity identity;
	enum weight_operation_kind kind;
	enum weight_residency target_residency; /* HOT, COLD or MIXED */
	double target_hot_ratio; /* inside (0,1) for MIXED, else 0 */
	uint64_t fenced_metadata_generation;
	uint64_t started_at_ms;
	uint64_t updated_at_ms;
	uint64_t processed_units;
	uint64_t total_units;
	uint64_t processed_bytes;
	uint64_t total_bytes;
	const char *cursor;  /* "" at the start and at the end */
	const char *message; /* "" when there is nothing to say */
};

bool weight_operation_is_finished(const struct weight_operation *op);

/* It will never run again: it is finished, or its revision was removed. */
bool weight_operation_is_over(const struct weight_operation *op);

/* Whether an operation that runs may say so: any message but the two above. */
bool weight_operation_message_ok(const char *message);

/*
 * A finished operation has processed all, and one that is over keeps no cursor.
 * -EINVAL.
 */
int weight_operation_check(const struct weight_operation *op, struct buf *why);

/* Errors: -ENOMEM. */
int weight_operation_copy(const struct weight_operation *op,
			  struct weight_operation **ret);
void weight_operation_free(struct weight_operation *op); /* accepts NULL */
DEFINE_CLEANUP(struct weight_operation *, weight_operation_free)

#endif
