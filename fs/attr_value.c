/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/attr_value.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "core/parse.h"
#include "core/util.h"

/* The finest ratio that can be written, and so the least of one. */
#define RATIO_MIN 1e-15
#define RATIO_LEN_MAX (2 + PARSE_RATIO_DIGITS_MAX)

/* A key that a value may have. */
struct key {
	const char *name;    /* with its "=" */
	const char *allowed; /* what it takes, for a sentence */
	int (*read)(const char *word, size_t len, void *ret);
};

static int refuse(struct buf *why, const char *key, const char *what)
{
	(void)buf_printf(why, "%s %s", key, what);
	return -EINVAL;
}

static int refuse_piece(const struct key *keys, size_t count, struct buf *why)
{
	const char *before = "there is something beside ";

	for (size_t i = 0; i < count; i++) {
		(void)buf_printf(why, "%s%s", before, keys[i].name);
		before = i + 2 == count ? " and " : ", ";
	}
	return -EINVAL;
}

/* Reads pieces up to the end of the value. */
static int read_keys(const char *at, const struct key *keys, size_t count,
		     void *ret, struct buf *why)
{
	unsigned seen = 0;

	for (;;) {
		size_t len = strcspn(at, ",");
		size_t name_len = 0, i;

		for (i = 0; i < count; i++) {
			name_len = strlen(keys[i].name);
			if (strncmp(at, keys[i].name, name_len) == 0)
				break;
		}
		if (i == count)
			return refuse_piece(keys, count, why);
		if (seen & 1u << i)
			return refuse(why, keys[i].name, "is there twice");
		seen |= 1u << i;
		if (keys[i].read(at + name_len, len - name_len, ret) < 0)
			return refuse(why, keys[i].name, keys[i].allowed);
		if (at[len] == '\0')
			return 0;
		at += len + 1;
	}
}

/* ---- Fences ---- */

#define FENCE_KEY "if="
#define FENCE_ALLOWED "takes a metadata_generation"

int attr_value_fenced(const char *value, size_t *ret_len,
		      uint64_t *ret_expected)
{
	static const char fence[] = "," FENCE_KEY;
	size_t len = strcspn(value, ",");
	const char *rest = value + len;
	uint64_t expected = 0;
	int r = 0;

	if (rest[0] != '\0') {
		if (strncmp(rest, fence, sizeof(fence) - 1) != 0)
			return -EINVAL;
		rest += sizeof(fence) - 1;
		r = weight_generation_parse(rest, strlen(rest), &expected);
	}
	if (r < 0)
		return r;
	*ret_len = len;
	*ret_expected = expected;
	return 0;
}

/* ---- Policies ---- */

struct policy {
	struct weight_policy_change change;
	uint64_t expected;
};

static int read_preferred(const char *word, size_t len, void *ret)
{
	struct weight_policy_change *change = &((struct policy *)ret)->change;
	enum weight_residency *preferred = &change->policy.preferred;

	change->set_preferred = true;
	if (weight_residency_parse(word, len, preferred) < 0 ||
	    (*preferred != WEIGHT_HOT && *preferred != WEIGHT_COLD &&
	     *preferred != WEIGHT_MIXED))
		return -EINVAL;
	return 0;
}

static int read_ratio(const char *word, size_t len, void *ret)
{
	struct weight_policy_change *change = &((struct policy *)ret)->change;
	double *ratio = &change->policy.mixed_hot_ratio;
	char text[RATIO_LEN_MAX + 1];

	change->set_mixed_hot_ratio = true;
	if (len > RATIO_LEN_MAX)
		return -EINVAL;
	memcpy(text, word, len);
	text[len] = '\0';
	if (parse_ratio(text, ratio) < 0 || *ratio <= 0 || *ratio >= 1)
		return -EINVAL;
	return 0;
}

static int read_migration_mode(const char *word, size_t len, void *ret)
{
	struct weight_policy_change *change = &((struct policy *)ret)->change;

	change->set_mode = true;
	return weight_migration_mode_parse(word, len, &change->policy.mode);
}

static int read_policy_fence(const char *word, size_t len, void *ret)
{
	return weight_generation_parse(word, len,
				       &((struct policy *)ret)->expected);
}

static const struct key policy_keys[] = {
	{ "preferred=", "takes hot, cold or mixed", read_preferred },
	{ "ratio=", "takes a number between 0 and 1, such as 0.5", read_ratio },
	{ "mode=", "takes pinned, manual or auto", read_migration_mode },
	{ FENCE_KEY, FENCE_ALLOWED, read_policy_fence },
};

int attr_value_policy(const char *value, struct weight_policy_change *ret,
		      uint64_t *ret_expected, struct buf *why)
{
	struct policy p = { 0 };
	int r = read_keys(value, policy_keys, ARRAY_LEN(policy_keys), &p, why);

	if (r < 0)
		return r;
	if (!p.change.set_preferred && !p.change.set_mixed_hot_ratio &&
	    !p.change.set_mode)
		return refuse(why, FENCE_KEY, "alone changes nothing");
	*ret = p.change;
	*ret_expected = p.expected;
	return 0;
}

int attr_value_policy_print(const struct weight_policy *policy, struct buf *ret)
{
	double ratio = policy->mixed_hot_ratio;
	struct buf text = BUF_INIT;
	int r;

	/* One from elsewhere may be finer than what can be written. */
	if (ratio < RATIO_MIN)
		ratio = RATIO_MIN;
	else if (ratio > 1 - RATIO_MIN)
		ratio = 1 - RATIO_MIN;
	r = buf_printf(&text, "preferred=%s,ratio=",
		       weight_residency_name(policy->preferred));
	if (r == 0)
		r = print_ratio(ratio, &text);
	if (r == 0)
		r = buf_printf(&text, ",mode=%s",
			       weight_migration_mode_name(policy->mode));
	if (r == 0)
		r = buf_append(ret, text.data, text.len);
	buf_release(&text);
	return r;
}

/* ---- Replacements ---- */

static int read_upsert_mode(const char *word, size_t len, void *ret)
{
	struct attr_replaces *replaces = ret;

	return weight_upsert_mode_parse(word, len, &replaces->replacement.mode);
}

static int read_request_id(const char *word, size_t len, void *ret)
{
	struct attr_replaces *replaces = ret;

	if (len > WEIGHT_COMPONENT_MAX)
		return -EINVAL;
	memcpy(replaces->request_id, word, len);
	replaces->request_id[len] = '\0';
	replaces->replacement.request_id = replaces->request_id;
	return weight_component_ok(replaces->request_id) ? 0 : -EINVAL;
}

static int read_base_fence(const char *word, size_t len, void *ret)
{
	struct weight_replacement *replacement =
		&((struct attr_replaces *)ret)->replacement;

	return weight_generation_parse(
		word, len, &replacement->expected_metadata_generation);
}

static const struct key replaces_keys[] = {
	{ "mode=", "takes put_first or delete_first", read_upsert_mode },
	{ "request_id=", "takes 1 to 1024 bytes of UTF-8, no control character",
	  read_request_id },
	{ FENCE_KEY, FENCE_ALLOWED, read_base_fence },
};
static_assert(WEIGHT_COMPONENT_MAX == 1024, "as the sentence says");

int attr_value_replaces(const char *value, struct attr_replaces *ret,
			struct buf *why)
{
	size_t len = strcspn(value, ",");

	ret->replacement =
		(struct weight_replacement){ .mode = WEIGHT_PUT_FIRST };
	if (weight_generation_parse(value, len, &ret->replacement.base) < 0)
		return refuse(why, "the first piece",
			      "is the generation that goes");
	if (value[len] == '\0')
		return 0;
	return read_keys(value + len + 1, replaces_keys,
			 ARRAY_LEN(replaces_keys), ret, why);
}
