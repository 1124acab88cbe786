/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/attr.h"

#include <assert.h>
#include <stdio.h>
#include <time.h>

#include "core/util.h"
#include "fs/notify.h"
#include "fs/refusal.h"

/* How long a removal waits for the kernel to forget the names. */
#define FORGET_MS_MAX 200

enum scope {
	REVISION = 1,
	STAGED = 2,
	LINEAGE = 4,
	PLAIN_FILE = 8,
	TENSOR = 16,
};

/* How a value is formatted: from the record, or from the object itself. */
typedef int record_fn(const struct weight_metadata *m, struct buf *ret);
typedef int object_fn(struct call *call, struct buf *ret);
typedef int set_fn(struct call *call, const char *value);

static record_fn availability, residency, hot_ratio, preferred, mixed_ratio,
	migration_mode, metadata_generation, logical_bytes, payload_count,
	manifest_sha256, manifest_key, group_id, durable, created, updated,
	last_accessed, nothing;
static object_fn leases, error_sentence, progress, file_digest, plain_sha256,
	dtype, shape, extent;
static set_fn set_remove;

/* clang-format off */
static const struct attr {
	const char *name;	/* behind ATTR_PREFIX */
	record_fn *record;
	object_fn *object;
	set_fn *set;
	const char *help;
	unsigned scopes;
	bool unlisted;		/* read by name only */
	bool waits;		/* perhaps for long */
} attrs[] = {
	{ .name = "availability", .scopes = REVISION, .record = availability,
	  .help = "ready, degraded, or on its way in or out" },
	{ .name = "residency", .scopes = REVISION | PLAIN_FILE | TENSOR,
	  .record = residency, .help = "hot, cold or mixed: where the bytes are" },
	{ .name = "hot_ratio", .scopes = REVISION, .record = hot_ratio,
	  .help = "the part that is held in memory, 0 to 1" },
	{ .name = "pinned_bytes", .scopes = REVISION, .record = nothing,
	  .help = "bytes that are held in memory" },
	{ .name = "preferred", .scopes = REVISION, .record = preferred,
	  .help = "the residency that its policy asks for" },
	{ .name = "mixed_hot_ratio", .scopes = REVISION, .record = mixed_ratio,
	  .help = "the hot part that its policy asks for when mixed" },
	{ .name = "mode", .scopes = REVISION, .record = migration_mode,
	  .help = "pinned, manual or auto: who may move it" },
	{ .name = "metadata_generation", .scopes = REVISION,
	  .record = metadata_generation,
	  .help = "goes up with each change of its record" },
	{ .name = "logical_bytes", .scopes = REVISION, .record = logical_bytes,
	  .help = "size of all files" },
	{ .name = "payload_count", .scopes = REVISION, .record = payload_count,
	  .help = "number of objects" },
	{ .name = "manifest_sha256", .scopes = REVISION,
	  .record = manifest_sha256, .help = "digest of .weights/manifest.json" },
	{ .name = "manifest_key", .scopes = REVISION, .record = manifest_key,
	  .help = "key of the manifest" },
	{ .name = "group_id", .scopes = REVISION, .record = group_id,
	  .help = "id of the group of objects" },
	{ .name = "leases", .scopes = REVISION, .object = leases,
	  .help = "how many hold it" },
	{ .name = "durable", .scopes = REVISION, .record = durable,
	  .help = "yes when it survives a power loss" },
	{ .name = "created", .scopes = REVISION, .record = created,
	  .help = "when it was published" },
	{ .name = "updated", .scopes = REVISION, .record = updated,
	  .help = "when its record last changed" },
	{ .name = "last_accessed", .scopes = REVISION, .record = last_accessed,
	  .help = "when it was last opened" },
	{ .name = "error", .scopes = REVISION | STAGED | LINEAGE,
	  .object = error_sentence,
	  .help = "why the last request on it was refused, in words" },
	{ .name = "progress", .scopes = STAGED, .object = progress,
	  .help = "what is left to do before it can be published" },
	{ .name = "digest", .scopes = PLAIN_FILE, .object = file_digest,
	  .help = "root of the digests of its chunks" },
	{ .name = "dtype", .scopes = TENSOR, .object = dtype,
	  .help = "type of the elements" },
	{ .name = "shape", .scopes = TENSOR, .object = shape,
	  .help = "extents, such as [2,3]" },
	{ .name = "extent", .scopes = TENSOR, .object = extent,
	  .help = "file,offset,length: where its bytes are" },
	{ .name = "sha256", .scopes = PLAIN_FILE | TENSOR,
	  .object = plain_sha256, .unlisted = true, .waits = true,
	  .help = "SHA-256 of its bytes, computed when asked for" },
	{ .name = "remove", .scopes = REVISION, .set = set_remove,
	  .help = "set to GENERATION[,if=METADATA_GENERATION]: removes it" },
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
			return REVISION;
		return plain ? PLAIN_FILE : 0;
	case WEIGHT_GROUP_STAGED:
	case WEIGHT_GROUP_PUBLISHING:
		return node->group_root ? STAGED : 0;
	default:
		return 0;
	}
}

static unsigned scope_of(const struct node *node)
{
	if (node->kind == NODE_FILE)
		return scope_of_group(node);
	if (node->kind == NODE_TENSOR)
		return TENSOR;
	return node_is_lineage(node) ? LINEAGE : 0;
}

bool attr_is_ours(const char *name)
{
	return strncmp(name, ATTR_PREFIX, sizeof(ATTR_PREFIX) - 1) == 0;
}

static const struct attr *attr_find(const char *name)
{
	assert(attr_is_ours(name));
	for (size_t i = 0; i < ARRAY_LEN(attrs); i++)
		if (strcmp(attrs[i].name, name + sizeof(ATTR_PREFIX) - 1) == 0)
			return &attrs[i];
	return NULL;
}

bool attr_waits(const char *name)
{
	const struct attr *a = attr_find(name);

	return a && a->waits;
}

/* ---- Values from the record ---- */

static int availability(const struct weight_metadata *m, struct buf *ret)
{
	return buf_printf(ret, "%s", weight_availability_name(m->availability));
}

static int residency(const struct weight_metadata *m, struct buf *ret)
{
	return buf_printf(ret, "%s", weight_residency_name(m->residency));
}

static int hot_ratio(const struct weight_metadata *m, struct buf *ret)
{
	return buf_printf(ret, "%g", m->observed_hot_ratio);
}

static int nothing(const struct weight_metadata *m, struct buf *ret)
{
	(void)m;
	return buf_printf(ret, "0");
}

static int preferred(const struct weight_metadata *m, struct buf *ret)
{
	return buf_printf(ret, "%s",
			  weight_residency_name(m->policy.preferred));
}

static int mixed_ratio(const struct weight_metadata *m, struct buf *ret)
{
	return buf_printf(ret, "%g", m->policy.mixed_hot_ratio);
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
	int r = refusal_get(call->node, ret);

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

static int read_value(struct call *call, const struct attr *a, struct buf *ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group = NULL;
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m = NULL;
	int r;

	if (a->object)
		return a->object(call, ret);
	if (!a->record)
		return -ENODATA;
	group = node_group(call->node);
	r = weight_group_metadata(group, &m);
	return r < 0 ? r : a->record(m, ret);
}

int attr_get(struct call *call, struct buf *ret)
{
	const struct attr *a = attr_find(call->name);

	if (!a || !(a->scopes & scope_of(call->node)))
		return -ENODATA;
	return read_value(call, a, ret);
}

int attr_list(struct call *call, struct buf *ret)
{
	unsigned scope = scope_of(call->node);
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(attrs) && r == 0; i++) {
		const struct attr *a = &attrs[i];
		struct buf value = BUF_INIT;
		int there = 0;

		if (!(a->scopes & scope) || a->unlisted ||
		    (!a->object && !a->record))
			continue;
		/* What may be absent is listed only while it is there. */
		if (a->object)
			there = a->object(call, &value);
		buf_release(&value);
		if (there == 0)
			r = buf_printf(ret, ATTR_PREFIX "%s%c", a->name, '\0');
	}
	return r;
}

/* ---- Setting ---- */

/* "<generation>[,if=<metadata generation>]" */
static int parse_remove(const char *value, uint64_t *ret_generation,
			uint64_t *ret_expected)
{
	static const char fence[] = ",if=";
	size_t len = strcspn(value, ",");
	const char *rest = value + len;
	uint64_t expected = 0;
	uint64_t generation;
	int r = weight_generation_parse(value, len, &generation);

	if (r == 0 && rest[0] != '\0') {
		if (strncmp(rest, fence, sizeof(fence) - 1) != 0)
			return -EINVAL;
		rest += sizeof(fence) - 1;
		r = weight_generation_parse(rest, strlen(rest), &expected);
	}
	if (r < 0)
		return r;
	*ret_generation = generation;
	*ret_expected = expected;
	return 0;
}

/*
 * The kernel lets everybody set it who may write to the directory, which a
 * copied mode may make the whole world.
 */
static int check_owner(struct call *call)
{
	struct stat st;
	int r = weight_file_stat(call->node->file, &st);

	if (r < 0 || call->caller.uid == 0 || call->caller.uid == st.st_uid)
		return r;
	(void)buf_printf(&call->why,
			 "a generation is removed by its owner or by root");
	return -EPERM;
}

static int set_remove(struct call *call, const char *value)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(call->node);
	uint64_t own = weight_group_identity(group)->generation;
	uint64_t generation, expected;
	int r = parse_remove(value, &generation, &expected);

	if (r < 0 || generation != own) {
		(void)buf_printf(&call->why,
				 "user.weights.remove takes the number of the "
				 "generation, here %llu, and perhaps "
				 ",if=METADATA_GENERATION; nothing was removed",
				 (unsigned long long)own);
		return -EINVAL;
	}
	r = check_owner(call);
	if (r < 0)
		return r;
	r = weight_group_remove(group, expected, &call->why);
	if (r == 0)
		notifier_removed_wait(call->fs->notifier, group, FORGET_MS_MAX);
	return r;
}

int attr_set(struct call *call)
{
	const struct attr *a = attr_find(call->name);

	if (!a || !(a->scopes & scope_of(call->node)) || !a->set) {
		(void)buf_printf(&call->why, "%s can't be set%s", call->name,
				 a ? " here" : ": there is no such attribute");
		return -EPERM;
	}
	/* A NUL inside ends the value, and what follows makes it a bad one. */
	if (strlen(call->in.data) != call->in.len)
		return a->set(call, "");
	return a->set(call, call->in.data);
}

int attr_help(struct buf *ret)
{
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(attrs) && r == 0; i++)
		r = buf_printf(ret, "  %-20s %s\n", attrs[i].name,
			       attrs[i].help);
	return r;
}
