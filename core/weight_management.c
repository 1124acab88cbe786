/* SPDX-License-Identifier: Apache-2.0 */
#include "core/weight_management.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/log.h"
#include "core/parse.h"
#include "core/utf8.h"
#include "core/util.h"
#include "core/weight_key.h"
#include "core/weight_management_priv.h"

static const char *word_of(const char *const *words, size_t count, unsigned v)
{
	return v < count ? words[v] : NULL;
}

static int word_parse(const char *const *words, size_t count, const char *text,
		      size_t len, unsigned *ret)
{
	for (unsigned i = 0; i < count; i++) {
		if (strlen(words[i]) != len || memcmp(words[i], text, len) != 0)
			continue;
		*ret = i;
		return 0;
	}
	return log_debug(-EINVAL, "unknown word of %zu bytes", len);
}

/* Defines the _name and _parse functions of an enum that counts from 0. */
#define DEFINE_WORDS(stem, ...)                                                \
	static const char *const stem##_words[] = { __VA_ARGS__ };             \
	const char *stem##_name(enum stem v)                                   \
	{                                                                      \
		return word_of(stem##_words, ARRAY_LEN(stem##_words),          \
			       (unsigned)v);                                   \
	}                                                                      \
	int stem##_parse(const char *text, size_t len, enum stem *ret)         \
	{                                                                      \
		unsigned v;                                                    \
		int r = word_parse(stem##_words, ARRAY_LEN(stem##_words),      \
				   text, len, &v);                             \
                                                                               \
		if (r < 0)                                                     \
			return r;                                              \
		*ret = (enum stem)v;                                           \
		return 0;                                                      \
	}

/* clang-format off */
DEFINE_WORDS(weight_availability,
	[WEIGHT_IMPORTING] = "importing",
	[WEIGHT_READY]     = "ready",
	[WEIGHT_DEGRADED]  = "degraded",
	[WEIGHT_DELETING]  = "deleting",
	[WEIGHT_DELETED]   = "deleted")

DEFINE_WORDS(weight_residency,
	[WEIGHT_UNKNOWN] = "unknown",
	[WEIGHT_HOT]     = "hot",
	[WEIGHT_COLD]    = "cold",
	[WEIGHT_MIXED]   = "mixed",
	[WEIGHT_ABSENT]  = "absent")

DEFINE_WORDS(weight_migration_mode,
	[WEIGHT_PINNED] = "pinned",
	[WEIGHT_MANUAL] = "manual",
	[WEIGHT_AUTO]   = "auto")

DEFINE_WORDS(weight_operation_kind,
	[WEIGHT_MIGRATING] = "migrating",
	[WEIGHT_REPAIRING] = "repairing")

DEFINE_WORDS(weight_upsert_mode,
	[WEIGHT_PUT_FIRST]    = "put_first",
	[WEIGHT_DELETE_FIRST] = "delete_first")

DEFINE_WORDS(weight_upsert_phase,
	[WEIGHT_PREPARING_TARGET] = "preparing_target",
	[WEIGHT_RETIRING_BASE]    = "retiring_base",
	[WEIGHT_DELETING_BASE]    = "deleting_base",
	[WEIGHT_TARGET_IMPORTING] = "target_importing",
	[WEIGHT_COMPLETED]        = "completed",
	[WEIGHT_ABORTED]          = "aborted")

static const struct {
	const char *name;
	int err;
} errors[] = {
	[WEIGHT_INVALID_ARGUMENT]     = { "INVALID_ARGUMENT",     -EINVAL },
	[WEIGHT_NOT_FOUND]            = { "NOT_FOUND",            -ENOENT },
	[WEIGHT_CONFLICT]             = { "CONFLICT",             -EEXIST },
	[WEIGHT_STALE_GENERATION]     = { "STALE_GENERATION",     -ECANCELED },
	[WEIGHT_NOT_READY]            = { "NOT_READY",            -EINPROGRESS },
	[WEIGHT_BUSY]                 = { "BUSY",                 -EBUSY },
	[WEIGHT_LEASE_EXPIRED]        = { "LEASE_EXPIRED",        -EKEYEXPIRED },
	[WEIGHT_GENERATION_EXHAUSTED] = { "GENERATION_EXHAUSTED", -EOVERFLOW },
	[WEIGHT_DURABILITY_FAILED]    = { "DURABILITY_FAILED",    -EIO },
	[WEIGHT_POLICY_UNSATISFIABLE] = { "POLICY_UNSATISFIABLE", -EPERM },
};
/* clang-format on */

bool weight_upsert_phase_is_terminal(enum weight_upsert_phase phase)
{
	return phase == WEIGHT_COMPLETED || phase == WEIGHT_ABORTED;
}

const char *weight_error_name(enum weight_error e)
{
	return (unsigned)e < ARRAY_LEN(errors) ? errors[e].name : NULL;
}

int weight_error_errno(enum weight_error e)
{
	return weight_error_name(e) ? errors[e].err : -EIO;
}

enum weight_error weight_error_of_errno(int r)
{
	for (unsigned e = WEIGHT_INVALID_ARGUMENT; e < ARRAY_LEN(errors); e++)
		if (errors[e].err == r)
			return (enum weight_error)e;
	return (enum weight_error)0;
}

/* What is wrong with text, to follow its name in a sentence, or NULL. */
static const char *component_fault(const char *text)
{
	unsigned beyond_ascii = 0;
	size_t len;

	if (!text || !*text)
		return "is empty";
	len = strnlen(text, WEIGHT_COMPONENT_MAX + 1);
	if (len > WEIGHT_COMPONENT_MAX)
		return "is longer than 1024 bytes";
	for (size_t i = 0; i < len; i++) {
		if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
			return "holds a control character";
		beyond_ascii |= (unsigned char)text[i];
	}
	if ((beyond_ascii & 0x80) && !utf8_valid(text, len))
		return "is not UTF-8";
	return NULL;
}

static_assert(WEIGHT_COMPONENT_MAX == 1024, "the sentence above names it");

static const char *tenant_fault(const char *text)
{
	if (text && text[0] == '_')
		return "starts with '_'";
	return component_fault(text);
}

bool weight_component_ok(const char *text)
{
	return !component_fault(text);
}

bool weight_tenant_ok(const char *text)
{
	return !tenant_fault(text);
}

int weight_lineage_check(const struct weight_lineage *l, struct buf *why)
{
	const struct {
		const char *what;
		const char *fault;
	} parts[] = {
		{ "tenant", tenant_fault(l->tenant) },
		{ "namespace", component_fault(l->name_space) },
		{ "resource", component_fault(l->resource) },
		{ "revision", component_fault(l->revision) },
	};

	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		if (parts[i].fault)
			return refuse(why, -EINVAL,
				      "the name of the %s %s, choose another",
				      parts[i].what, parts[i].fault);
	return 0;
}

int weight_identity_check(const struct weight_identity *id, struct buf *why)
{
	int r = weight_lineage_check(&id->lineage, why);

	if (r < 0)
		return r;
	if (id->generation == 0)
		return refuse(why, -EINVAL,
			      "generation 0 is not allowed, start with 1");
	return 0;
}

bool weight_lineage_equal(const struct weight_lineage *a,
			  const struct weight_lineage *b)
{
	return strcmp(a->tenant, b->tenant) == 0 &&
	       strcmp(a->name_space, b->name_space) == 0 &&
	       strcmp(a->resource, b->resource) == 0 &&
	       strcmp(a->revision, b->revision) == 0;
}

bool weight_identity_equal(const struct weight_identity *a,
			   const struct weight_identity *b)
{
	return a->generation == b->generation &&
	       weight_lineage_equal(&a->lineage, &b->lineage);
}

int weight_generation_parse(const char *text, size_t len, uint64_t *ret)
{
	uint64_t g = 0;

	if (len == 0 || len > WEIGHT_GENERATION_LEN_MAX || text[0] == '0')
		return log_debug(-EINVAL, "%zu bytes or a leading 0", len);
	for (size_t i = 0; i < len; i++) {
		unsigned digit = (unsigned)text[i] - '0';

		if (digit > 9)
			return log_debug(-EINVAL, "not a digit");
		if (__builtin_mul_overflow(g, (uint64_t)10, &g) ||
		    __builtin_add_overflow(g, (uint64_t)digit, &g))
			return log_debug(-EINVAL, "above 2^64-1");
	}
	*ret = g;
	return 0;
}

void weight_generation_print(uint64_t generation,
			     char ret[static WEIGHT_GENERATION_LEN_MAX + 1])
{
	ret[print_u64(generation, ret)] = '\0';
}

int weight_generation_advance(uint64_t metadata_generation, uint64_t *ret)
{
	if (metadata_generation == 0 ||
	    metadata_generation >= WEIGHT_METADATA_GENERATION_MAX)
		return log_debug(-EOVERFLOW, "generation %" PRIu64,
				 metadata_generation);
	*ret = metadata_generation + 1;
	return 0;
}

bool weight_generation_is_retry(uint64_t current, uint64_t expected)
{
	return current == expected ||
	       (expected < UINT64_MAX && current == expected + 1);
}

/* False for NaN. */
static bool is_inner_ratio(double ratio)
{
	return ratio > 0.0 && ratio < 1.0;
}

/* Where a revision can be sent, as opposed to be found. */
static bool is_target(enum weight_residency r)
{
	return r == WEIGHT_HOT || r == WEIGHT_COLD || r == WEIGHT_MIXED;
}

int weight_policy_check(const struct weight_policy *p, struct buf *why)
{
	if (!is_target(p->preferred))
		return refuse(why, -EINVAL,
			      "preferred must be hot, cold or mixed");
	if (!is_inner_ratio(p->mixed_hot_ratio))
		return refuse(why, -EINVAL,
			      "ratio must be above 0 and below 1, also when "
			      "preferred is not mixed");
	if (!weight_migration_mode_name(p->mode))
		return refuse(why, -EINVAL,
			      "mode must be pinned, manual or auto");
	return 0;
}

bool weight_policy_equal(const struct weight_policy *a,
			 const struct weight_policy *b)
{
	return a->preferred == b->preferred && a->mode == b->mode &&
	       a->mixed_hot_ratio == b->mixed_hot_ratio;
}

#define IN(residency) (1u << WEIGHT_##residency)
#define IN_TIERS (IN(HOT) | IN(COLD) | IN(MIXED))
#define TO(availability) (1u << WEIGHT_##availability)

/* clang-format off */
static const struct {
	unsigned next;        /* the states that may follow */
	unsigned residencies; /* where the payload may be meanwhile */
	bool operates;        /* may have a running operation */
	bool refers;          /* must have the complete manifest reference */
	bool imports;         /* must not have it yet */
} states[] = {
	[WEIGHT_IMPORTING] = { .next = TO(READY) | TO(DELETING),
			       .residencies = IN(UNKNOWN), .imports = true },
	[WEIGHT_READY]     = { .next = TO(DEGRADED) | TO(DELETING),
			       .residencies = IN_TIERS,
			       .operates = true, .refers = true },
	[WEIGHT_DEGRADED]  = { .next = TO(READY) | TO(DELETING),
			       .residencies = IN_TIERS | IN(ABSENT),
			       .operates = true, .refers = true },
	[WEIGHT_DELETING]  = { .next = TO(DELETED),
			       .residencies = IN_TIERS | IN(UNKNOWN) | IN(ABSENT)
	},
	[WEIGHT_DELETED]   = { .residencies = IN(ABSENT) },
};
/* clang-format on */

bool weight_availability_may(enum weight_availability from,
			     enum weight_availability to)
{
	return (unsigned)from < ARRAY_LEN(states) &&
	       (unsigned)to < ARRAY_LEN(states) &&
	       (states[from].next & 1u << to);
}

static bool ratio_ok(enum weight_residency residency, double ratio)
{
	if (residency == WEIGHT_MIXED)
		return is_inner_ratio(ratio);
	return ratio == (residency == WEIGHT_HOT ? 1.0 : 0.0);
}

bool weight_place_ok(enum weight_availability availability,
		     enum weight_residency residency, double hot_ratio)
{
	return (unsigned)availability < ARRAY_LEN(states) &&
	       weight_residency_name(residency) &&
	       (states[availability].residencies & 1u << residency) &&
	       ratio_ok(residency, hot_ratio);
}

static int state_check(const struct weight_metadata *m, struct buf *why)
{
	const char *availability = weight_availability_name(m->availability);
	const char *residency = weight_residency_name(m->residency);

	if (!availability || !residency)
		return refuse(why, -EINVAL, "unknown state %u or residency %u",
			      (unsigned)m->availability,
			      (unsigned)m->residency);
	if (!(states[m->availability].residencies & 1u << m->residency))
		return refuse(why, -EINVAL, "a revision can't be %s and %s",
			      availability, residency);
	if (m->operation_id && !states[m->availability].operates)
		return refuse(why, -EINVAL,
			      "operation %" PRIu64 " can't run on a revision "
			      "that is %s",
			      m->operation_id, availability);
	if (!m->manifest.complete && states[m->availability].refers)
		return refuse(why, -EINVAL,
			      "a revision that is %s needs a manifest",
			      availability);
	if (m->manifest.complete && states[m->availability].imports)
		return refuse(why, -EINVAL,
			      "a revision that is %s has no manifest yet",
			      availability);
	return 0;
}

static int ratio_check(const struct weight_metadata *m, struct buf *why)
{
	double ratio = m->observed_hot_ratio;

	if (!ratio_ok(m->residency, ratio))
		return refuse(why, -EINVAL,
			      "a revision that is %s can't have hot ratio %g",
			      weight_residency_name(m->residency), ratio);
	return 0;
}

static int numbers_check(const struct weight_metadata *m, struct buf *why)
{
	if (m->metadata_generation == 0 ||
	    m->metadata_generation > WEIGHT_METADATA_GENERATION_MAX)
		return refuse(why, -EINVAL, "metadata generation %" PRIu64,
			      m->metadata_generation);
	if (m->updated_at_ms < m->created_at_ms)
		return refuse(why, -EINVAL,
			      "the revision was updated before it was created");
	if (m->affinity_count == 0 &&
	    !digest_equal(&m->affinity_digest, &digest_of_nothing))
		return refuse(why, -EINVAL,
			      "no units, but not the digest of none");
	if (m->manifest.payload_count == 0 && m->manifest.logical_bytes > 0)
		return refuse(why, -EINVAL, "%" PRIu64 " bytes in no object",
			      m->manifest.logical_bytes);
	return 0;
}

static bool digest_is_zero(const struct digest *d)
{
	static const struct digest zero;

	return digest_equal(d, &zero);
}

static int manifest_key_check(const struct weight_metadata *m, struct buf *why)
{
	const struct weight_manifest_ref *ref = &m->manifest;

	if (!ref->manifest_key)
		return refuse(why, -EINVAL, "the manifest has no key");
	if (!ref->complete) {
		if (ref->manifest_key[0] ||
		    !digest_is_zero(&ref->manifest_sha256) ||
		    !digest_is_zero(&ref->payload_keys_sha256))
			return refuse(why, -EINVAL,
				      "part of a manifest reference");
		return 0;
	}
	if (!weight_manifest_key_is(&m->identity, ref->manifest_key))
		return refuse(why, -EINVAL,
			      "the manifest key belongs to another revision");
	return 0;
}

static int group_check(const struct weight_metadata *m, struct buf *why)
{
	char group[WEIGHT_GROUP_ID_LEN + 1];
	int r = weight_group_id(&m->identity, group);

	if (r < 0)
		return r;
	if (strcmp(m->manifest.payload_group_id, group) != 0)
		return refuse(why, -EINVAL,
			      "the group id belongs to another revision");
	return 0;
}

static int group_form_check(const struct weight_metadata *m, struct buf *why)
{
	const char *group = m->manifest.payload_group_id;

	if (!group || strlen(group) != WEIGHT_GROUP_ID_LEN ||
	    strncmp(group, WEIGHT_GROUP_ID_PREFIX,
		    strlen(WEIGHT_GROUP_ID_PREFIX)) != 0)
		return refuse(why, -EINVAL, "the group id isn't one");
	return 0;
}

int weight_metadata_check_again(const struct weight_metadata *m,
				struct buf *why)
{
	int r;

	if ((r = weight_identity_check(&m->identity, why)) < 0 ||
	    (r = weight_policy_check(&m->policy, why)) < 0 ||
	    (r = state_check(m, why)) < 0 || (r = ratio_check(m, why)) < 0 ||
	    (r = numbers_check(m, why)) < 0 ||
	    (r = group_form_check(m, why)) < 0)
		return r;
	return manifest_key_check(m, why);
}

int weight_metadata_check(const struct weight_metadata *m, struct buf *why)
{
	int r = weight_metadata_check_again(m, why);

	return r < 0 ? r : group_check(m, why);
}

int weight_identity_copy(const struct weight_identity *id,
			 struct weight_identity **ret)
{
	struct weight_identity *copy;
	char *at;

	copy = malloc(sizeof(*copy) + lineage_size(&id->lineage));
	if (!copy)
		return -ENOMEM;
	*copy = *id;
	at = (char *)(copy + 1);
	lineage_pack(&at, &copy->lineage);
	*ret = copy;
	return 0;
}

void weight_identity_free(struct weight_identity *id)
{
	free(id);
}

int weight_metadata_copy(const struct weight_metadata *m,
			 struct weight_metadata **ret)
{
	struct weight_metadata *copy;
	char *at;

	copy = malloc(sizeof(*copy) + lineage_size(&m->identity.lineage) +
		      strlen(m->manifest.manifest_key) + 1 +
		      strlen(m->manifest.payload_group_id) + 1);
	if (!copy)
		return -ENOMEM;
	*copy = *m;
	at = (char *)(copy + 1);
	lineage_pack(&at, &copy->identity.lineage);
	copy->manifest.manifest_key = pack(&at, m->manifest.manifest_key);
	copy->manifest.payload_group_id =
		pack(&at, m->manifest.payload_group_id);
	*ret = copy;
	return 0;
}

void weight_metadata_free(struct weight_metadata *m)
{
	free(m);
}

int weight_lease_check(const struct weight_lease *lease, struct buf *why)
{
	const char *fault = component_fault(lease->holder);
	int r = weight_identity_check(&lease->identity, why);

	if (r < 0)
		return r;
	if (fault)
		return refuse(why, -EINVAL, "the holder's name %s", fault);
	if (!lease->lease_id || !lease->expires_at_ms ||
	    !lease->fenced_metadata_generation)
		return refuse(why, -EINVAL,
			      "a lease's id, expiry and generation can't be 0");
	return 0;
}

bool weight_lease_is_active(const struct weight_lease *lease, uint64_t now_ms,
			    uint64_t metadata_generation)
{
	return lease->expires_at_ms > now_ms &&
	       lease->fenced_metadata_generation <= metadata_generation;
}

int weight_lease_copy(const struct weight_lease *lease,
		      struct weight_lease **ret)
{
	struct weight_lease *copy;
	char *at;

	copy = malloc(sizeof(*copy) + lineage_size(&lease->identity.lineage) +
		      strlen(lease->holder) + 1);
	if (!copy)
		return -ENOMEM;
	*copy = *lease;
	at = (char *)(copy + 1);
	lineage_pack(&at, &copy->identity.lineage);
	copy->holder = pack(&at, lease->holder);
	*ret = copy;
	return 0;
}

void weight_lease_free(struct weight_lease *lease)
{
	free(lease);
}

bool weight_operation_is_finished(const struct weight_operation *op)
{
	return strcmp(op->message, WEIGHT_OPERATION_COMPLETED) == 0;
}

bool weight_operation_is_over(const struct weight_operation *op)
{
	return weight_operation_is_finished(op) ||
	       strcmp(op->message, WEIGHT_OPERATION_REMOVED) == 0 ||
	       strcmp(op->message, WEIGHT_OPERATION_SUPERSEDED) == 0;
}

bool weight_operation_message_ok(const char *message)
{
	return weight_component_ok(message) &&
	       strcmp(message, WEIGHT_OPERATION_COMPLETED) != 0 &&
	       strcmp(message, WEIGHT_OPERATION_REMOVED) != 0 &&
	       strcmp(message, WEIGHT_OPERATION_SUPERSEDED) != 0;
}

static int operation_target_check(const struct weight_operation *op,
				  struct buf *why)
{
	if (!weight_operation_kind_name(op->kind) ||
	    !is_target(op->target_residency))
		return refuse(why, -EINVAL,
			      "the target must be hot, cold or "
			      "mixed");
	if (op->target_residency == WEIGHT_MIXED &&
	    !is_inner_ratio(op->target_hot_ratio))
		return refuse(why, -EINVAL,
			      "a mixed target needs a ratio above 0 and below "
			      "1");
	if (op->target_residency != WEIGHT_MIXED && op->target_hot_ratio != 0.0)
		return refuse(why, -EINVAL,
			      "only a mixed target can have a ratio");
	return 0;
}

static int operation_progress_check(const struct weight_operation *op,
				    struct buf *why)
{
	if (op->processed_units > op->total_units ||
	    op->processed_bytes > op->total_bytes)
		return refuse(why, -EINVAL, "more was processed than there is");
	if (!op->cursor || !op->message ||
	    (op->cursor[0] && component_fault(op->cursor)) ||
	    (op->message[0] && component_fault(op->message)))
		return refuse(why, -EINVAL, "bad cursor or message");
	if (weight_operation_is_finished(op) &&
	    (op->processed_units != op->total_units ||
	     op->processed_bytes != op->total_bytes))
		return refuse(why, -EINVAL,
			      "the operation is completed, but work is left");
	if (weight_operation_is_over(op) && op->cursor[0])
		return refuse(why, -EINVAL,
			      "the operation is over, but has a cursor");
	return 0;
}

int weight_operation_check(const struct weight_operation *op, struct buf *why)
{
	int r = weight_identity_check(&op->identity, why);

	if (r < 0)
		return r;
	if (!op->operation_id || !op->fenced_metadata_generation)
		return refuse(why, -EINVAL,
			      "an operation's id and generation can't be 0");
	if (op->updated_at_ms < op->started_at_ms)
		return refuse(why, -EINVAL,
			      "the operation was updated before it started");
	r = operation_target_check(op, why);
	if (r < 0)
		return r;
	return operation_progress_check(op, why);
}

int weight_operation_copy(const struct weight_operation *op,
			  struct weight_operation **ret)
{
	struct weight_operation *copy;
	char *at;

	copy = malloc(sizeof(*copy) + lineage_size(&op->identity.lineage) +
		      strlen(op->cursor) + 1 + strlen(op->message) + 1);
	if (!copy)
		return -ENOMEM;
	*copy = *op;
	at = (char *)(copy + 1);
	lineage_pack(&at, &copy->identity.lineage);
	copy->cursor = pack(&at, op->cursor);
	copy->message = pack(&at, op->message);
	*ret = copy;
	return 0;
}

void weight_operation_free(struct weight_operation *op)
{
	free(op);
}
