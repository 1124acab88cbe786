/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include <math.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_decision_lineage.h"

#define X8 "xxxxxxxx"
#define X40 X8 X8 X8 X8 X8
#define X400 X40 X40 X40 X40 X40 X40 X40 X40 X40 X40
#define X1025 X400 X400 X40 X40 X40 X40 X40 X8 X8 X8 "x"

/* One name begins another, and two are alike for longer than a key is. */
const struct weight_lineage lineage_names[LINEAGES] = {
	{ "default", "ns", "demo", "main" },
	{ "default", "ns", "demo", "main/2" },
	{ "other", "ns", "demo", "main" },
	{ "default", "ns", "demo", X400 "b" X40 },
	{ "default", "ns", "demo", X400 "a" X40 },
};

const char *const tenant_names[TENANTS] = { "default", "other", "nobody" };

const char *const holder_names[HOLDERS] = {
	[HOLDER_NONE] = "",
	[HOLDER_MOUNT] = "mount",
	[HOLDER_READER] = "reader",
	[HOLDER_TRAINER] = "trainer",
	[HOLDER_CONTROL] = "a\x1f"
			   "b",
};

const char *const cursor_names[CURSORS] = {
	[CURSOR_NONE] = "",
	[CURSOR_1] = "unit-1",
	[CURSOR_2] = "unit-2",
	[CURSOR_CONTROL] = "a\nb",
};

const char *const message_names[MESSAGES] = {
	[MESSAGE_NONE] = "",
	[MESSAGE_SLOW] = "slow disk",
	[MESSAGE_FAILED] = "cold replica write failed",
	[MESSAGE_COMPLETED] = WEIGHT_OPERATION_COMPLETED,
	[MESSAGE_REMOVED] = WEIGHT_OPERATION_REMOVED,
	[MESSAGE_SUPERSEDED] = WEIGHT_OPERATION_SUPERSEDED,
	[MESSAGE_CONTROL] = "a\x7f",
};

const char *const request_names[REQUESTS] = {
	"r0", "r1", "r2", "r3", "r4", "r5", "",
};

const char *const claim_errors[CLAIM_ERRORS] = {
	[ERROR_NONE] = "",
	[ERROR_INTERRUPTED] = WEIGHT_CLAIM_INTERRUPTED,
};

/* clang-format off */
const struct weight_policy policies[POLICIES] = {
	{ WEIGHT_HOT,    0.5,  WEIGHT_AUTO },
	{ WEIGHT_COLD,   0.5,  WEIGHT_AUTO },
	{ WEIGHT_MIXED,  0.5,  WEIGHT_AUTO },
	{ WEIGHT_MIXED,  0.25, WEIGHT_AUTO },
	{ WEIGHT_HOT,    0.5,  WEIGHT_MANUAL },
	{ WEIGHT_COLD,   0.5,  WEIGHT_MANUAL },
	{ WEIGHT_MIXED,  0.25, WEIGHT_MANUAL },
	{ WEIGHT_HOT,    0.5,  WEIGHT_PINNED },
	{ WEIGHT_MIXED,  0.5,  WEIGHT_PINNED },
	{ WEIGHT_HOT,    1.0,  WEIGHT_AUTO },
	{ WEIGHT_ABSENT, 0.5,  WEIGHT_AUTO },
	{ WEIGHT_COLD,   (double)NAN, WEIGHT_AUTO },
	{ WEIGHT_COLD,   0.5,  (enum weight_migration_mode)3 },
};
/* clang-format on */

static uint64_t number_of(const char *const *names, size_t count,
			  const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(names[i], name) == 0)
			return i;
	return UNKNOWN;
}

uint64_t holder_number(const char *name)
{
	return number_of(holder_names, HOLDERS, name);
}

uint64_t cursor_number(const char *name)
{
	return number_of(cursor_names, CURSORS, name);
}

uint64_t message_number(const char *name)
{
	return number_of(message_names, MESSAGES, name);
}

uint64_t request_number(const char *name)
{
	return number_of(request_names, REQUESTS, name);
}

uint64_t claim_error_number(const char *name)
{
	return number_of(claim_errors, CLAIM_ERRORS, name);
}

uint64_t lineage_number(const struct weight_lineage *l)
{
	for (size_t i = 0; i < LINEAGES; i++)
		if (weight_lineage_equal(&lineage_names[i], l))
			return i;
	return UNKNOWN;
}

uint64_t lineage_tenant(uint64_t lineage)
{
	return number_of(tenant_names, TENANTS, lineage_names[lineage].tenant);
}

bool lineage_is_long(uint64_t lineage)
{
	return strlen(lineage_names[lineage].revision) > 400;
}

struct digest digest_of_tag(uint64_t tag)
{
	if (tag == TAG_NOTHING)
		return digest_of_nothing;
	if (tag == TAG_ZERO)
		return (struct digest){ { 0 } };
	return (struct digest){ { (uint8_t)tag } };
}

uint64_t tag_of_digest(const struct digest *d)
{
	uint64_t tag = d->bytes[0] ? d->bytes[0] : TAG_ZERO;
	struct digest tagged = digest_of_tag(tag);

	if (digest_equal(d, &tagged))
		return tag;
	return digest_equal(d, &digest_of_nothing) ? TAG_NOTHING : UNKNOWN;
}

struct weight_identity identity_of(uint64_t lineage, uint64_t generation,
				   uint64_t flaw)
{
	struct weight_identity id = { lineage_names[lineage], generation };

	switch ((enum flaw)flaw) {
	case FLAW_GENERATION:
		id.generation = 0;
		break;
	case FLAW_TENANT:
		id.lineage.tenant = "_default";
		break;
	case FLAW_LONG:
		id.lineage.name_space = X1025;
		break;
	case FLAW_CONTROL:
		id.lineage.resource = "de\tmo";
		break;
	case FLAW_EMPTY:
		id.lineage.revision = "";
		break;
	case FLAW_UTF8:
		id.lineage.revision = "ma\xff\xfe";
		break;
	case FLAW_NONE:
	case FLAWS:
		break;
	}
	return id;
}
