/* SPDX-License-Identifier: Apache-2.0 */
#include "script.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/util.h"

#define WORDS_MAX 16
#define LINE_MAX_BYTES 1024

#define NO_YES                                                                 \
	{                                                                      \
		"no", "yes"                                                    \
	}

/* clang-format off */
static const struct {
	const char *name;
	const char *words[WORDS_MAX]; /* none: a number */
} args[ARGS] = {
	[A_WHO]           = { "who" },
	[A_LINEAGE]       = { "lineage" },
	[A_GENERATION]    = { "generation" },
	[A_FLAW]          = { "flaw", { "none", "generation", "tenant", "long",
					"control", "empty", "utf8" } },
	[A_FENCE]         = { "fence", { "any", "current", "last", "next",
					 "seen", "1" } },
	[A_POLICY]        = { "policy", { "hot", "cold", "mixed",
					  "mixed_quarter", "hot_manual",
					  "cold_manual", "mixed_manual",
					  "hot_pinned", "mixed_pinned",
					  "bad_ratio", "bad_preferred",
					  "bad_nan", "bad_mode" } },
	[A_LIKE]          = { "like", { "arguments", "record", "claim" } },
	[A_UNITS]         = { "units" },
	[A_COUNT]         = { "count" },
	[A_BYTES]         = { "bytes" },
	[A_TAG]           = { "tag" },
	[A_REF]           = { "ref", { "good", "key", "group", "count",
				       "bytes", "part", "none" } },
	[A_AVAILABILITY]  = { "availability", { "importing", "ready",
						"degraded", "deleting",
						"deleted", "number_5" } },
	[A_RESIDENCY]     = { "residency", { "unknown", "hot", "cold", "mixed",
					     "absent", "number_5" } },
	[A_RATIO]         = { "ratio", { "fits", "one", "zero", "half",
					 "quarter", "nan", "above" } },
	[A_DURABLE]       = { "durable", NO_YES },
	[A_CONVERGES]     = { "converges", NO_YES },
	[A_STAYS]         = { "stays", NO_YES },
	[A_BESIDE]        = { "beside", NO_YES },
	[A_CLAIM]         = { "by_claim", NO_YES },
	[A_HOLDER]        = { "holder", { "empty", "mount", "reader", "trainer",
					  "control" } },
	[A_TTL]           = { "ttl" },
	[A_DEGRADED]      = { "degraded", NO_YES },
	[A_LEASE]         = { "lease", { "last", "older", "newest", "active",
					 "none", "next" } },
	[A_OPERATION]     = { "operation", { "last", "older", "newest",
					     "active", "none", "next" } },
	[A_TENANT]        = { "tenant", { "own", "other" } },
	[A_LIMIT]         = { "limit" },
	[A_IGNORE]        = { "ignore", { "nobody", "mount", "reader",
					  "trainer" } },
	[A_OPERATION_KIND] = { "kind", { "migrating", "repairing",
					 "number_2" } },
	[A_TARGET]        = { "target", { "unknown", "hot", "cold", "mixed",
					  "absent", "number_5" } },
	[A_SUPERSEDES]    = { "supersedes", NO_YES },
	[A_TOTALS]        = { "totals", { "right", "more", "none",
					  "exceeded" } },
	[A_CURSOR]        = { "cursor", { "none", "unit_1", "unit_2",
					  "control" } },
	[A_MESSAGE]       = { "message", { "none", "slow", "failed",
					   "completed", "removed",
					   "superseded", "control" } },
	[A_REQUEST]       = { "request", { "r0", "r1", "r2", "r3", "r4", "r5",
					   "empty" } },
	[A_BASE]          = { "base" },
	[A_MODE]          = { "mode", { "put_first", "delete_first",
					"number_2" } },
	[A_DESCRIBED]     = { "described", NO_YES },
	[A_NAME]          = { "claim", { "latest", "other_request",
					 "other_base", "other_target",
					 "seen" } },
	[A_WANTS_DURABLE] = { "wants_durable", NO_YES },
	[A_TOKEN]         = { "token", { "none", "last", "item",
					 "no_generation", "zeros", "word",
					 "no_revision" } },
	[A_NAMES]         = { "names", { "claims", "tombstones" } },
	[A_DEPTH]         = { "depth" },
	[A_MS]            = { "ms" },
	[A_TO]            = { "to", { "ms", "expiry", "last_ms" } },
	[A_BOOT]          = { "boot" },
	[A_ELSEWHERE]     = { "elsewhere", NO_YES },
	[A_REPLICATED]    = { "replicated", NO_YES },
	[A_CONFIRMS]      = { "confirms", { "nothing", "management", "lineages",
					    "both" } },
	[A_KEEP]          = { "keep" },
	[A_CRASH]         = { "crash" },
};

#define ARG(a) (UINT64_C(1) << A_##a)
#define OF_LINEAGE (ARG(WHO) | ARG(LINEAGE) | ARG(FLAW))
#define OF_REVISION (OF_LINEAGE | ARG(GENERATION))
#define IMPORT (ARG(POLICY) | ARG(UNITS) | ARG(COUNT) | ARG(BYTES) | ARG(LIKE))
#define FOUND (ARG(RESIDENCY) | ARG(RATIO))
#define CLAIM_NAME (OF_LINEAGE | ARG(NAME) | ARG(WANTS_DURABLE))

static_assert(ARGS <= 64, "a kind has its arguments as bits");

static const struct {
	const char *name;
	uint64_t args;
} kinds[KINDS] = {
	[OP_STAGE]         = { "stage", OF_REVISION | ARG(CRASH) },
	[OP_STAGED_POLICY] = { "staged_policy",
			       OF_REVISION | ARG(POLICY) | ARG(LIKE) },
	[OP_UNSTAGE]       = { "unstage", OF_REVISION | ARG(CRASH) },
	[OP_PUBLISH]       = { "publish",
			       OF_REVISION | IMPORT | FOUND | ARG(TAG) |
			       ARG(REF) | ARG(DURABLE) | ARG(CONVERGES) |
			       ARG(CRASH) },
	[OP_IMPORT_BEGIN]  = { "import_begin",
			       OF_REVISION | IMPORT | ARG(REF) | ARG(CLAIM) |
			       ARG(CRASH) },
	[OP_IMPORT_COMMIT] = { "import_commit",
			       OF_REVISION | FOUND | ARG(FENCE) | ARG(TAG) |
			       ARG(REF) | ARG(DURABLE) | ARG(STAYS) |
			       ARG(CRASH) },
	[OP_IMPORT_ABORT]  = { "import_abort",
			       OF_REVISION | ARG(FENCE) | ARG(CRASH) },
	[OP_POLICY]        = { "policy", OF_REVISION | ARG(FENCE) |
			       ARG(POLICY) | ARG(CRASH) },
	[OP_ACQUIRE]       = { "acquire", OF_REVISION | ARG(FENCE) |
			       ARG(HOLDER) | ARG(TTL) | ARG(DEGRADED) |
			       ARG(CRASH) },
	[OP_RENEW]         = { "renew", ARG(WHO) | ARG(LEASE) | ARG(TENANT) |
			       ARG(TTL) | ARG(CRASH) },
	[OP_RELEASE]       = { "release", ARG(WHO) | ARG(LEASE) |
			       ARG(TENANT) | ARG(CRASH) },
	[OP_SWEEP]         = { "sweep", ARG(WHO) | ARG(LIMIT) | ARG(CRASH) },
	[OP_DELETE]        = { "delete", OF_REVISION | ARG(FENCE) |
			       ARG(IGNORE) | ARG(CLAIM) | ARG(CRASH) },
	[OP_DELETE_FINISH] = { "delete_finish",
			       OF_REVISION | ARG(FENCE) | ARG(CRASH) },
	[OP_OBSERVE]       = { "observe", OF_REVISION | FOUND | ARG(FENCE) |
			       ARG(AVAILABILITY) | ARG(DURABLE) | ARG(BESIDE) |
			       ARG(CRASH) },
	[OP_DURABLE]       = { "durable", OF_REVISION | ARG(CRASH) },
	[OP_START]         = { "start", OF_REVISION | ARG(FENCE) |
			       ARG(OPERATION_KIND) | ARG(TARGET) | ARG(RATIO) |
			       ARG(SUPERSEDES) | ARG(CRASH) },
	[OP_PROGRESS]      = { "progress", OF_REVISION | FOUND |
			       ARG(OPERATION) | ARG(UNITS) | ARG(BYTES) |
			       ARG(TOTALS) | ARG(CURSOR) | ARG(MESSAGE) |
			       ARG(AVAILABILITY) | ARG(CRASH) },
	[OP_ERROR]         = { "error", OF_REVISION | ARG(OPERATION) |
			       ARG(MESSAGE) | ARG(CRASH) },
	[OP_FINISH]        = { "finish", OF_REVISION | FOUND | ARG(OPERATION) |
			       ARG(CRASH) },
	[OP_UPSERT]        = { "upsert", OF_REVISION | IMPORT | ARG(BASE) |
			       ARG(REQUEST) | ARG(MODE) | ARG(FENCE) |
			       ARG(DESCRIBED) | ARG(CRASH) },
	[OP_COMMIT]        = { "commit", CLAIM_NAME | ARG(CRASH) },
	[OP_ABORT]         = { "abort", CLAIM_NAME | ARG(CRASH) },
	[OP_ADVANCE]       = { "advance", OF_LINEAGE | ARG(CRASH) },
	[OP_GET]           = { "get", OF_REVISION },
	[OP_STAGED_GET]    = { "staged_get", OF_REVISION },
	[OP_STAGED_NEXT]   = { "staged_next", OF_REVISION },
	[OP_REVISION_NEXT] = { "revision_next", OF_REVISION },
	[OP_IN_USE]        = { "in_use", OF_LINEAGE },
	[OP_SUMMARY]       = { "summary", OF_REVISION },
	[OP_OPERATION_GET] = { "operation_get", ARG(WHO) | ARG(LINEAGE) |
			       ARG(GENERATION) | ARG(OPERATION) | ARG(TENANT) },
	[OP_CLAIM_STEP]    = { "claim_step", OF_LINEAGE | ARG(WANTS_DURABLE) |
			       ARG(IGNORE) },
	[OP_LIST]          = { "list", OF_REVISION | ARG(TOKEN) | ARG(LIMIT) },
	[OP_GENERATIONS]   = { "generations", OF_REVISION | ARG(LIMIT) },
	[OP_NAMES]         = { "names", ARG(LINEAGE) | ARG(NAMES) |
			       ARG(DEPTH) },
	[OP_IS_NEW]        = { "is_new", 0 },
	[OP_CLOCK]         = { "clock", ARG(MS) | ARG(TO) },
	[OP_BOOT]          = { "boot", ARG(BOOT) },
	[OP_MARK_CLEAN]    = { "mark_clean", 0 },
	[OP_REOPEN]        = { "reopen", 0 },
	[OP_MOVE]          = { "move", ARG(ELSEWHERE) },
	[OP_FOLLOW]        = { "follow", 0 },
	[OP_PROMOTE]       = { "promote", 0 },
	[OP_FORGE]         = { "forge", ARG(LIMIT) },
	[OP_CONFIGURE]     = { "configure", ARG(REPLICATED) | ARG(CONFIRMS) |
			       ARG(KEEP) },
	[OP_CHECK]         = { "check", 0 },
};
/* clang-format on */

const char *kind_name(enum kind kind)
{
	return kinds[kind].name;
}

enum family kind_family(enum kind kind)
{
	static const enum kind ends[FAMILIES] = {
		[FAMILY_IMPORTS] = OP_POLICY, [FAMILY_REVISIONS] = OP_ACQUIRE,
		[FAMILY_LEASES] = OP_START,   [FAMILY_OPERATIONS] = OP_UPSERT,
		[FAMILY_CLAIMS] = OP_GET,     [FAMILY_QUESTIONS] = OP_CLOCK,
		[FAMILY_WHOLE] = KINDS,
	};
	unsigned f = 0;

	while (kind >= ends[f])
		f++;
	return f;
}

bool kind_has(enum kind kind, enum arg arg)
{
	return kinds[kind].args >> arg & 1;
}

unsigned arg_words(enum arg arg)
{
	unsigned n = 0;

	while (n < WORDS_MAX && args[arg].words[n])
		n++;
	return n;
}

void op_print(const struct op *op, FILE *to)
{
	(void)fprintf(to, "%s", kinds[op->kind].name);
	for (unsigned a = 0; a < ARGS; a++) {
		if (!kind_has(op->kind, a) || op->arg[a] == 0)
			continue;
		if (arg_words(a))
			(void)fprintf(to, " %s=%s", args[a].name,
				      args[a].words[op->arg[a]]);
		else
			(void)fprintf(to, " %s=%" PRId64, args[a].name,
				      (int64_t)op->arg[a]);
	}
	(void)fprintf(to, "\n");
}

static bool value_parse(unsigned arg, const char *text, uint64_t *ret)
{
	unsigned words = arg_words(arg);
	char *end;

	for (unsigned w = 0; w < words; w++)
		if (strcmp(args[arg].words[w], text) == 0) {
			*ret = w;
			return true;
		}
	*ret = (uint64_t)strtoll(text, &end, 10);
	return words == 0 && *text && *end == '\0';
}

static bool arg_parse(char *text, struct op *op)
{
	char *value = strchr(text, '=');

	if (!value)
		return false;
	*value++ = '\0';
	for (unsigned a = 0; a < ARGS; a++)
		if (kind_has(op->kind, a) && strcmp(args[a].name, text) == 0)
			return value_parse(a, value, &op->arg[a]);
	return false;
}

static bool kind_parse(const char *text, enum kind *ret)
{
	for (unsigned k = 0; k < KINDS; k++)
		if (strcmp(kinds[k].name, text) == 0) {
			*ret = k;
			return true;
		}
	return false;
}

bool op_parse(const char *line, struct op *ret)
{
	char copy[LINE_MAX_BYTES], *save = NULL, *word;
	struct op op = { KINDS, { 0 } };

	(void)snprintf(copy, sizeof(copy), "%s", line);
	copy[strcspn(copy, "#\n")] = '\0';
	word = strtok_r(copy, " \t", &save);
	if (word && !kind_parse(word, &op.kind)) {
		(void)fprintf(stderr, "no such operation: %s\n", word);
		return false;
	}
	while (word && (word = strtok_r(NULL, " \t", &save)))
		if (!arg_parse(word, &op)) {
			(void)fprintf(stderr, "%s has no such argument: %s\n",
				      kinds[op.kind].name, word);
			return false;
		}
	*ret = op;
	return true;
}
