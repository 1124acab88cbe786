/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/attr.h"

#include <assert.h>
#include <stdio.h>
#include <time.h>

#include "core/parse.h"
#include "fs/attr_value.h"
#include "fs/notify.h"
#include "fs/refusal.h"

/* How long a removal waits for the kernel to forget the names. */
#define FORGET_MS_MAX 200

/* How a value is formatted: from the record, or from the object itself. */
typedef int record_fn(const struct weight_metadata *m, struct buf *ret);
typedef int object_fn(struct call *call, struct buf *ret);
typedef int set_fn(struct call *call, const char *value);

static record_fn availability, preferred, mixed_ratio, migration_mode,
	metadata_generation, logical_bytes, payload_count, manifest_sha256,
	manifest_key, group_id, operation, durable, created, updated,
	last_accessed;
static object_fn residency, hot_ratio, pinned_bytes, leases, scrub_text,
	error_sentence, progress, file_digest, plain_sha256, dtype, shape,
	extent, policy, replaces, watermark, claim;
static set_fn set_residency, set_policy, set_scrub, set_replaces, set_repair,
	set_remove;

/* Their names are in attr_names.c, by the same numbers. */
/* clang-format off */
static const struct attr {
	record_fn *record;
	object_fn *object;
	set_fn *set;
	bool waits;	/* reading it, perhaps for long */
} attrs[ATTR_COUNT] = {
	[ATTR_AVAILABILITY]        = { .record = availability },
	[ATTR_RESIDENCY]           = { .object = residency,
				       .set = set_residency },
	[ATTR_HOT_RATIO]           = { .object = hot_ratio },
	[ATTR_PINNED_BYTES]        = { .object = pinned_bytes },
	[ATTR_PREFERRED]           = { .record = preferred },
	[ATTR_MIXED_HOT_RATIO]     = { .record = mixed_ratio },
	[ATTR_MODE]                = { .record = migration_mode },
	[ATTR_POLICY]              = { .object = policy, .set = set_policy },
	[ATTR_METADATA_GENERATION] = { .record = metadata_generation },
	[ATTR_LOGICAL_BYTES]       = { .record = logical_bytes },
	[ATTR_PAYLOAD_COUNT]       = { .record = payload_count },
	[ATTR_MANIFEST_SHA256]     = { .record = manifest_sha256 },
	[ATTR_MANIFEST_KEY]        = { .record = manifest_key },
	[ATTR_GROUP_ID]            = { .record = group_id },
	[ATTR_OPERATION]           = { .record = operation },
	[ATTR_LEASES]              = { .object = leases },
	[ATTR_DURABLE]             = { .record = durable },
	[ATTR_SCRUB]               = { .object = scrub_text, .set = set_scrub },
	[ATTR_CREATED]             = { .record = created },
	[ATTR_UPDATED]             = { .record = updated },
	[ATTR_LAST_ACCESSED]       = { .record = last_accessed },
	[ATTR_ERROR]               = { .object = error_sentence },
	[ATTR_PROGRESS]            = { .object = progress },
	[ATTR_REPLACES]            = { .object = replaces,
				       .set = set_replaces },
	[ATTR_WATERMARK]           = { .object = watermark },
	[ATTR_CLAIM]               = { .object = claim },
	[ATTR_DIGEST]              = { .object = file_digest },
	[ATTR_DTYPE]               = { .object = dtype },
	[ATTR_SHAPE]               = { .object = shape },
	[ATTR_EXTENT]              = { .object = extent },
	[ATTR_SHA256]              = { .object = plain_sha256, .waits = true },
	[ATTR_REPAIR]              = { .set = set_repair },
	[ATTR_REMOVE]              = { .set = set_remove },
};
/* clang-format on */

static unsigned scope_of_group(const struct node *node)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(node);
	bool plain = S_ISREG(weight_file_type(node->file));

	switch (weight_group_state(group)) {
	case WEIGHT_GROUP_PUBLISHED:
		if (node->group_root)
			return ATTR_OF_REVISION;
		return plain ? ATTR_OF_FILE : 0;
	case WEIGHT_GROUP_STAGED:
	case WEIGHT_GROUP_PUBLISHING:
		return node->group_root ? ATTR_OF_STAGED : 0;
	default:
		return 0;
	}
}

static unsigned scope_of(const struct node *node)
{
	if (node->kind == NODE_FILE)
		return scope_of_group(node);
	if (node->kind == NODE_TENSOR)
		return ATTR_OF_TENSOR;
	return node_is_lineage(node) ? ATTR_OF_LINEAGE : 0;
}

bool attr_is_ours(const char *name)
{
	return strncmp(name, ATTR_PREFIX, sizeof(ATTR_PREFIX) - 1) == 0;
}

static enum attr_id attr_find(const char *name)
{
	assert(attr_is_ours(name));
	return attr_names_find(name + sizeof(ATTR_PREFIX) - 1);
}

bool attr_waits(const char *name)
{
	enum attr_id id = attr_find(name);

	return id < ATTR_COUNT && attrs[id].waits;
}

bool attr_sets_staged(const char *name)
{
	enum attr_id id = attr_find(name);

	return id < ATTR_COUNT && attr_names[id].set & ATTR_OF_STAGED;
}

/* ---- Values from the record ---- */

static int availability(const struct weight_metadata *m, struct buf *ret)
{
	return buf_printf(ret, "%s", weight_availability_name(m->availability));
}

static int preferred(const struct weight_metadata *m, struct buf *ret)
{
	return buf_printf(ret, "%s",
			  weight_residency_name(m->policy.preferred));
}

static int mixed_ratio(const struct weight_metadata *m, struct buf *ret)
{
	return print_ratio(m->policy.mixed_hot_ratio, ret);
}

static int migration_mode(const struct weight_metadata *m, struct buf *ret)
{
	return buf_printf(ret, "%s",
			  weight_migration_mode_name(m->policy.mode));
}

static int print_number(uint64_t n, struct buf *ret)
{
	return buf_printf(ret, "%llu", (unsigned long long)n);
}

static int metadata_generation(const struct weight_metadata *m, struct buf *ret)
{
	return print_number(m->metadata_generation, ret);
}

static int logical_bytes(const struct weight_metadata *m, struct buf *ret)
{
	return print_number(m->manifest.logical_bytes, ret);
}

static int payload_count(const struct weight_metadata *m, struct buf *ret)
{
	return print_number(m->manifest.payload_count, ret);
}

static int print_digest(const struct digest *d, struct buf *ret)
{
	char hex[DIGEST_HEX_LEN + 1];

	digest_to_hex(d, hex);
	return buf_printf(ret, "%s", hex);
}

static int manifest_sha256(const struct weight_metadata *m, struct buf *ret)
{
	return print_digest(&m->manifest.manifest_sha256, ret);
}

static int manifest_key(const struct weight_metadata *m, struct buf *ret)
{
	return buf_printf(ret, "%s", m->manifest.manifest_key);
}

static int group_id(const struct weight_metadata *m, struct buf *ret)
{
	return buf_printf(ret, "%s", m->manifest.payload_group_id);
}

/* Absent when nothing moves it. */
static int operation(const struct weight_metadata *m, struct buf *ret)
{
	return m->operation_id == 0 ? -ENODATA :
				      print_number(m->operation_id, ret);
}

static int durable(const struct weight_metadata *m, struct buf *ret)
{
	return buf_printf(ret, "%s", m->durable ? "yes" : "no");
}

/* As in RFC 3339, in UTC. */
static int print_time(uint64_t ms, struct buf *ret)
{
	time_t s = (time_t)(ms / 1000);
	char text[sizeof("2000-01-01T00:00:00") + 16];
	struct tm tm;

	if (!gmtime_r(&s, &tm) ||
	    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm) == 0)
		return -EIO;
	return buf_printf(ret, "%s.%03uZ", text, (unsigned)(ms % 1000));
}

static int created(const struct weight_metadata *m, struct buf *ret)
{
	return print_time(m->created_at_ms, ret);
}

static int updated(const struct weight_metadata *m, struct buf *ret)
{
	return print_time(m->updated_at_ms, ret);
}

static int last_accessed(const struct weight_metadata *m, struct buf *ret)
{
	return print_time(m->last_accessed_at_ms, ret);
}

/* ---- Values from the object ---- */

/* Of a tensor: that of the file that holds it. */
static int residence_of(struct call *call, struct weight_residence *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *file = NULL;
	struct node *node = call->node;
	int r;

	if (node->kind == NODE_TENSOR) {
		r = node_tensor_file(node, &file);
		return r < 0 ? r : weight_file_residence(file, ret);
	}
	if (!node->group_root)
		return weight_file_residence(node->file, ret);
	group = node_group(node);
	return weight_group_residence(group, ret);
}

static int residency(struct call *call, struct buf *ret)
{
	struct weight_residence res;
	int r = residence_of(call, &res);

	return r < 0 ? r :
		       buf_printf(ret, "%s",
				  weight_residency_name(res.residency));
}

static int hot_ratio(struct call *call, struct buf *ret)
{
	struct weight_residence res;
	int r = residence_of(call, &res);

	return r < 0 ? r : buf_printf(ret, "%g", res.hot_ratio);
}

static int pinned_bytes(struct call *call, struct buf *ret)
{
	struct weight_residence res;
	int r = residence_of(call, &res);

	return r < 0 ? r : print_number(res.pinned_bytes, ret);
}

static int scrub_text(struct call *call, struct buf *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(call->node);

	return weight_group_scrub_text(group, ret);
}

static int leases(struct call *call, struct buf *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(call->node);
	uint64_t count;
	int r = weight_group_leases(group, &count);

	return r < 0 ? r : print_number(count, ret);
}

static int error_sentence(struct call *call, struct buf *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(call->node);
	int r = refusal_get(call->node, ret);

	/* Nothing was refused, but something may be wrong. */
	if (r == 0 && ret->len == 0 && group &&
	    weight_group_state(group) == WEIGHT_GROUP_PUBLISHED)
		r = weight_group_damage(group, ret);
	if (r < 0)
		return r;
	return ret->len == 0 ? -ENODATA : 0;
}

static int progress(struct call *call, struct buf *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(call->node);

	return weight_group_progress(group, ret);
}

static int policy(struct call *call, struct buf *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(call->node);
	struct weight_policy p;
	int r = weight_group_policy(group, &p);

	return r < 0 ? r : attr_value_policy_print(&p, ret);
}

static int replaces(struct call *call, struct buf *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(call->node);

	return weight_group_replaces(group, ret);
}

static int watermark(struct call *call, struct buf *ret)
{
	uint64_t generation;
	int r = weight_dir_watermark(call->node->dir, &generation);

	return r < 0 ? r : print_number(generation, ret);
}

static int claim(struct call *call, struct buf *ret)
{
	return weight_dir_claim(call->node->dir, ret);
}

static int file_digest(struct call *call, struct buf *ret)
{
	struct digest d;
	int r = weight_file_digest(call->node->file, &d);

	return r < 0 ? r : print_digest(&d, ret);
}

static int plain_sha256(struct call *call, struct buf *ret)
{
	struct weight_waiter waiter = call_waiter(call, NULL);
	struct node *node = call->node;
	struct digest d;
	int r;

	if (node->kind == NODE_TENSOR)
		r = weight_tensor_sha256(node->group, node->index, &waiter, &d);
	else
		r = weight_file_sha256(node->file, &waiter, &d);
	return r < 0 ? r : print_digest(&d, ret);
}

static int dtype(struct call *call, struct buf *ret)
{
	return buf_printf(ret, "%s", node_tensor(call->node)->dtype);
}

static int shape(struct call *call, struct buf *ret)
{
	const struct weight_tensor *t = node_tensor(call->node);
	int r = buf_printf(ret, "[");

	for (unsigned i = 0; i < t->rank && r == 0; i++)
		r = buf_printf(ret, "%s%llu", i > 0 ? "," : "",
			       (unsigned long long)t->shape[i]);
	return r < 0 ? r : buf_printf(ret, "]");
}

static int extent(struct call *call, struct buf *ret)
{
	const struct weight_tensor *t = node_tensor(call->node);

	return buf_printf(ret, "%s,%llu,%llu", t->path,
			  (unsigned long long)t->offset,
			  (unsigned long long)t->len);
}

/* m: the record, read by the first one that needs it. */
static int read_value(struct call *call, enum attr_id id,
		      struct weight_metadata **m, struct buf *ret)
{
	const struct attr *a = &attrs[id];
	int r = 0;

	if (a->object)
		return a->object(call, ret);
	if (!a->record)
		return -ENODATA;
	if (!*m) {
		cleanup(weight_group_unref_cleanup) struct weight_group *group =
			node_group(call->node);

		r = weight_group_metadata(group, m);
	}
	return r < 0 ? r : a->record(*m, ret);
}

int attr_get(struct call *call, struct buf *ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	enum attr_id id = attr_find(call->name);

	if (id == ATTR_COUNT || !(attr_names[id].get & scope_of(call->node)))
		return -ENODATA;
	return read_value(call, id, &m, ret);
}

int attr_list(struct call *call, struct buf *ret)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	unsigned scope = scope_of(call->node);
	int r = 0;

	for (enum attr_id id = 0; id < ATTR_COUNT && r == 0; id++) {
		struct buf value = BUF_INIT;
		int there;

		if (!(attr_names[id].get & scope) || attr_names[id].unlisted)
			continue;
		/* What may be absent is listed only while it is there. */
		there = read_value(call, id, &m, &value);
		buf_release(&value);
		if (there == 0)
			r = buf_printf(ret, ATTR_PREFIX "%s%c",
				       attr_names[id].name, '\0');
	}
	return r;
}

/* ---- Setting ---- */

/* root: of a generation. */
static int check_owner_of(struct call *call, struct weight_file *root,
			  const char *what)
{
	struct stat st;
	int r = weight_file_stat(root, &st);

	if (r < 0 || call->caller.uid == 0 || call->caller.uid == st.st_uid)
		return r;
	(void)buf_printf(&call->why,
			 "a generation is %s by its owner or by root", what);
	return -EPERM;
}

/*
 * The kernel lets everybody set it who may write to the directory, which a
 * copied mode may make the whole world.
 */
static int check_owner(struct call *call, const char *what)
{
	return check_owner_of(call, call->node->file, what);
}

static int set_residency(struct call *call, const char *value)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(call->node);
	enum weight_residency target = WEIGHT_UNKNOWN;
	uint64_t expected;
	size_t len;
	int r = attr_value_fenced(value, &len, &expected);

	if (r == 0)
		r = weight_residency_parse(value, len, &target);
	if (r < 0 || (target != WEIGHT_HOT && target != WEIGHT_COLD)) {
		(void)buf_printf(&call->why,
				 "user.weights.residency takes hot or cold, "
				 "and perhaps ,if=METADATA_GENERATION; nothing "
				 "is moved");
		return -EINVAL;
	}
	r = check_owner(call, "moved");
	if (r < 0)
		return r;
	return weight_group_migrate(group, target, expected, &call->why);
}

static int set_policy(struct call *call, const char *value)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(call->node);
	struct weight_policy_change change;
	uint64_t expected;
	int r = attr_value_policy(value, &change, &expected, &call->why);

	if (r < 0) {
		(void)buf_printf(&call->why, "; the policy stays as it is");
		return r;
	}
	r = check_owner(call, "given a policy");
	return r < 0 ? r :
		       weight_group_set_policy(group, &change, expected,
					       &call->why);
}

/* To replace a generation is to remove it. What isn't there has no owner. */
static int check_base(struct call *call, struct weight_group *group,
		      uint64_t generation)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *base = NULL;
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;
	char name[WEIGHT_GENERATION_LEN_MAX + 1];
	int r;

	weight_generation_print(generation, name);
	r = weight_dir_published(weight_group_lineage(group), name, &base);
	if (r == 0)
		r = weight_group_root(base, &root);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	return check_owner_of(call, root, "replaced");
}

static int set_replaces(struct call *call, const char *value)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(call->node);
	struct attr_replaces to;
	int r = attr_value_replaces(value, &to, &call->why);

	if (r < 0) {
		(void)buf_printf(&call->why, "; nothing is replaced");
		return r;
	}
	r = check_owner(call, "made to replace another");
	if (r == 0)
		r = check_base(call, group, to.replacement.base);
	return r < 0 ? r :
		       weight_group_replace(group, &to.replacement, &call->why);
}

/* What takes the value 1 only, and begins something. */
static int set_switch(struct call *call, enum attr_id id, const char *value,
		      const char *what,
		      int (*begin)(struct weight_group *group, struct buf *why))
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(call->node);
	int r;

	if (strcmp(value, "1") != 0) {
		(void)buf_printf(&call->why,
				 ATTR_PREFIX "%s takes 1; nothing was begun",
				 attr_names[id].name);
		return -EINVAL;
	}
	r = check_owner(call, what);
	return r < 0 ? r : begin(group, &call->why);
}

static int set_scrub(struct call *call, const char *value)
{
	return set_switch(call, ATTR_SCRUB, value, "scrubbed",
			  weight_group_scrub);
}

static int set_repair(struct call *call, const char *value)
{
	return set_switch(call, ATTR_REPAIR, value, "repaired",
			  weight_group_repair);
}

static int set_remove(struct call *call, const char *value)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(call->node);
	uint64_t own = weight_group_identity(group)->generation;
	uint64_t generation = 0, expected;
	size_t len;
	int r = attr_value_fenced(value, &len, &expected);

	if (r == 0)
		r = weight_generation_parse(value, len, &generation);
	if (r < 0 || generation != own) {
		(void)buf_printf(&call->why,
				 "user.weights.remove takes the number of the "
				 "generation, here %llu, and perhaps "
				 ",if=METADATA_GENERATION; nothing was removed",
				 (unsigned long long)own);
		return -EINVAL;
	}
	r = check_owner(call, "removed");
	if (r < 0)
		return r;
	r = weight_group_remove(group, expected, &call->why);
	if (r == 0)
		notifier_removed_wait(call->fs->notifier, group, FORGET_MS_MAX);
	return r;
}

int attr_set(struct call *call)
{
	enum attr_id id = attr_find(call->name);

	if (id == ATTR_COUNT || !(attr_names[id].set & scope_of(call->node))) {
		(void)buf_printf(&call->why, "%s can't be set%s", call->name,
				 id == ATTR_COUNT ?
					 ": there is no such attribute" :
					 " here");
		return -EPERM;
	}
	/* A NUL inside ends the value, and what follows makes it a bad one. */
	if (strlen(call->in.data) != call->in.len)
		return attrs[id].set(call, "");
	return attrs[id].set(call, call->in.data);
}
