/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a weight metadata store knows, as plain numbers: the form in which the
 * model has it, and into which the store's answers are brought, so that both
 * can be compared byte by byte.
 *
 * Strings and digests are numbers of tables in names.c. A number is a u64 or a
 * double throughout, so that there is no padding.
 */
#ifndef TESTS_MODEL_STATE_H
#define TESTS_MODEL_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINEAGES 5
#define GENERATIONS_MAX 63 /* weight generations go from 1 to this */
#define REVISIONS_MAX (LINEAGES * GENERATIONS_MAX)
#define LEASES_MAX 512
#define OPERATIONS_MAX 8192

/* The fields of each record: N a number, R a ratio. */
/* clang-format off */
#define REVISION_FIELDS(N, R)                                                  \
	N(lineage) N(generation) N(availability) N(residency) R(hot_ratio)     \
	N(durable) N(complete) N(preferred) R(policy_ratio) N(mode)            \
	N(operation_id) N(payload_count) N(logical_bytes) N(affinity_count)    \
	N(affinity_tag) N(manifest_tag) N(keys_tag) N(metadata_generation)     \
	N(created_at_ms) N(updated_at_ms) N(accessed_at_ms)

#define LEASE_FIELDS(N, R)                                                     \
	N(id) N(lineage) N(generation) N(holder) N(expires_at_ms) N(fence)

#define OPERATION_FIELDS(N, R)                                                 \
	N(id) N(lineage) N(generation) N(kind) N(target) R(target_ratio)       \
	N(fence) N(started_at_ms) N(updated_at_ms) N(processed_units)          \
	N(total_units) N(processed_bytes) N(total_bytes) N(cursor) N(message)

#define STAGING_FIELDS(N, R)                                                   \
	N(lineage) N(generation) N(created_at_ms) N(epoch) N(has_policy)       \
	N(preferred) R(policy_ratio) N(mode)

#define LINEAGE_FIELDS(N, R)                                                   \
	N(there) N(metadata_generation) N(watermark) N(claimed) N(request)     \
	N(base) N(target) N(upsert_mode) N(phase) N(expected) N(described)     \
	N(payload_count) N(logical_bytes) N(preferred) R(policy_ratio) N(mode) \
	N(affinity_count) N(affinity_tag) N(created_at_ms) N(updated_at_ms)    \
	N(error)
/* clang-format on */

#define DECLARE_NUMBER(name) uint64_t name;
#define DECLARE_RATIO(name) double name;

struct revision {
	REVISION_FIELDS(DECLARE_NUMBER, DECLARE_RATIO)
};
struct lease {
	LEASE_FIELDS(DECLARE_NUMBER, DECLARE_RATIO)
};
struct operation {
	OPERATION_FIELDS(DECLARE_NUMBER, DECLARE_RATIO)
};
struct staging {
	STAGING_FIELDS(DECLARE_NUMBER, DECLARE_RATIO)
};
struct lineage {
	LINEAGE_FIELDS(DECLARE_NUMBER, DECLARE_RATIO)
};

/* Revisions and stagings by lineage and generation, the others by id. */
struct state {
	struct revision revisions[REVISIONS_MAX];
	size_t revision_count;
	struct staging stagings[REVISIONS_MAX];
	size_t staging_count;
	struct lease leases[LEASES_MAX];
	size_t lease_count;
	struct lineage lineages[LINEAGES];
	struct operation operations[OPERATIONS_MAX]; /* id 1 comes first */
	size_t operation_count;
};

/* ---- Finding and changing; NULL: there is none ---- */

struct revision *state_revision(struct state *s, uint64_t lineage,
				uint64_t generation);
struct staging *state_staging(struct state *s, uint64_t lineage,
			      uint64_t generation);
struct lease *state_lease(struct state *s, uint64_t id);
struct operation *state_operation(struct state *s, uint64_t id);

/* Where the records of a lineage begin, with generations above `after`. */
size_t state_revision_at(const struct state *s, uint64_t lineage,
			 uint64_t after);
size_t state_staging_at(const struct state *s, uint64_t lineage,
			uint64_t after);

/* Puts one in, or in place of the one with its name. */
void state_put_revision(struct state *s, const struct revision *r);
void state_put_staging(struct state *s, const struct staging *g);
void state_put_lease(struct state *s, const struct lease *l);
void state_put_operation(struct state *s, const struct operation *op);
void state_drop_staging(struct state *s, const struct staging *g);
void state_drop_lease(struct state *s, const struct lease *l);

/* Copies what is there, and no more. operations: those, too. */
void state_copy(struct state *to, const struct state *from, bool operations);

/* ---- Questions ---- */

/* The claim of a lineage that is going on. */
bool lineage_is_live(const struct lineage *l);
/* Whether that claim keeps everybody from the generation. */
bool lineage_fences(const struct lineage *l, uint64_t generation);
bool lease_is_active(const struct lease *l, const struct revision *r,
		     uint64_t now_ms);
bool operation_is_over(const struct operation *op);

/* ---- Differences ---- */

enum record {
	RECORD_REVISION,
	RECORD_LEASE,
	RECORD_OPERATION,
	RECORD_STAGING,
	RECORD_LINEAGE,
};

/* Prints the fields in which two records differ. */
void record_print_difference(enum record kind, const void *store,
			     const void *model);

/* False, and says so, when the states differ. */
bool state_equal(const struct state *store, const struct state *model,
		 bool operations);

#endif
