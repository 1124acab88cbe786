/* SPDX-License-Identifier: Apache-2.0 */
/* The command op, and what others ask about operations. */
#include "mount-helpers/weightctl_operation.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/cleanup.h"
#include "core/json.h"
#include "core/util.h"
#include "core/weight_management.h"
#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_mount.h"
#include "mount-helpers/weightctl_say.h"

int operation_text(const char *root, uint64_t id, struct buf *ret)
{
	char name[64];

	(void)snprintf(name, sizeof(name), "operations/%llu.json",
		       (unsigned long long)id);
	return mount_text(root, name, ret);
}

static int state_parse(const struct json_value *v, struct operation_state *ret)
{
	const struct json_value *done = json_find(v, "processed_bytes");
	const struct json_value *total = json_find(v, "total_bytes");
	int r = done && total ? 0 : -EBADMSG;

	if (r == 0)
		r = json_u64(done, &ret->processed_bytes);
	if (r == 0)
		r = json_u64(total, &ret->total_bytes);
	return r;
}

static int record_read(const char *root, uint64_t id, struct json_doc **ret)
{
	struct buf text = BUF_INIT;
	int r = operation_text(root, id, &text);

	if (r == 0)
		r = json_parse(text.data, text.len, ret, NULL);
	buf_release(&text);
	return r;
}

int operation_state(const char *root, uint64_t id, struct operation_state *ret)
{
	cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;
	int r = record_read(root, id, &doc);

	return r < 0 ? r : state_parse(json_doc_root(doc), ret);
}

int operation_message(const char *root, uint64_t id, struct buf *ret)
{
	cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;
	const struct json_value *v;
	const char *message;
	int r = record_read(root, id, &doc);

	if (r < 0)
		return r;
	v = json_find(json_doc_root(doc), "message");
	message = v ? json_string(v, NULL) : NULL;
	if (!message)
		return -EBADMSG;
	return buf_append(ret, message, strlen(message));
}

/* ---- op ---- */

static void print_value(const struct json_value *v)
{
	bool yes;

	switch (json_kind(v)) {
	case JSON_STRING:
		say_plain(stdout, json_string(v, NULL));
		break;
	case JSON_NUMBER:
		say_plain(stdout, json_number(v, NULL));
		break;
	case JSON_BOOL:
		(void)fputs(json_bool(v, &yes) == 0 && yes ? "yes" : "no",
			    stdout);
		break;
	case JSON_NULL:
		(void)fputs("-", stdout);
		break;
	default:
		(void)printf("(%zu)", json_count(v));
	}
}

/* What the record tells of it only by what the message is. */
static const char *state_name(const struct json_value *record)
{
	static const char *const ends[] = { WEIGHT_OPERATION_COMPLETED,
					    WEIGHT_OPERATION_REMOVED,
					    WEIGHT_OPERATION_SUPERSEDED };
	const struct json_value *v = json_find(record, "message");
	const char *message = v ? json_string(v, NULL) : NULL;

	for (size_t i = 0; message && i < ARRAY_LEN(ends); i++)
		if (strcmp(message, ends[i]) == 0)
			return "over";
	return "running";
}

/* "running, 45%". */
static void print_state(const struct json_value *record)
{
	const char *name = state_name(record);
	struct operation_state s;

	(void)printf("%-26s %s", "state", name);
	if (strcmp(name, "running") == 0 && state_parse(record, &s) == 0 &&
	    s.total_bytes > 0 && s.processed_bytes <= s.total_bytes)
		(void)printf(", %d%%", (int)(100 * ((double)s.processed_bytes /
						    (double)s.total_bytes)));
	(void)putchar('\n');
}

/* One member a line. */
static void print_record(const struct json_value *record)
{
	print_state(record);
	for (const struct json_value *v = json_first(record); v;
	     v = json_next(v)) {
		(void)printf("%-26s ", json_key(v, NULL));
		print_value(v);
		(void)putchar('\n');
	}
}

/* The record as it is, with its state before all others. */
static void print_json(const struct json_value *record, const char *text)
{
	const char *members = strchr(text, '{');
	size_t len = strlen(members);

	while (len > 0 && members[len - 1] == '\n')
		len--;
	(void)printf("{\"state\":\"%s\"%s%.*s\n", state_name(record),
		     json_count(record) > 0 ? "," : "", (int)len - 1,
		     members + 1);
}

static int show_operation(const struct ctl *ctl, const char *root, uint64_t id)
{
	cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;
	struct buf text = BUF_INIT;
	char what[64];
	int r = operation_text(root, id, &text);

	if (r == 0)
		r = json_parse(text.data, text.len, &doc, NULL);
	if (r == 0 && json_kind(json_doc_root(doc)) != JSON_OBJECT)
		r = -EBADMSG;
	if (r == 0 && ctl->options & CTL_JSON)
		print_json(json_doc_root(doc), text.data);
	else if (r == 0)
		print_record(json_doc_root(doc));
	buf_release(&text);
	(void)snprintf(what, sizeof(what), "operation %llu",
		       (unsigned long long)id);
	return r < 0 ? say_failed(r, root, what) : 0;
}

/* The one of the mount that --mount names, that we are in, or the only one. */
static int op_by_id(const struct ctl *ctl, uint64_t id)
{
	auto_free char *root = NULL;
	int r = mount_named(ctl->mount, &root);

	return r < 0 ? r : show_operation(ctl, root, id);
}

static int op_by_path(const struct ctl *ctl, const char *path)
{
	auto_free char *dir = NULL;
	auto_free char *root = NULL;
	struct facts f = FACTS_INIT;
	uint64_t id;
	int r = mount_revision(path, false, &dir);

	if (r < 0)
		return r;
	r = attr_read_u64(dir, "operation", &id);
	if (r == -ENODATA && ctl->options & CTL_JSON)
		return facts_print(&f);
	if (r == -ENODATA) {
		say_plain(stdout, dir);
		(void)puts(": no operation runs");
		return 0;
	}
	if (r < 0)
		return say_refused(r, dir, "operation");
	r = mount_root(dir, &root);
	if (r < 0)
		return say_failed(r, dir, "finding the mount");
	return show_operation(ctl, root, id);
}

int ctl_op(const struct ctl *ctl)
{
	const char *arg = ctl->argv[0];
	uint64_t id;
	int r;

	/* A number is an id; a path that is one is written ./7. */
	if (weight_generation_parse(arg, strlen(arg), &id) == 0)
		r = op_by_id(ctl, id);
	else
		r = op_by_path(ctl, arg);
	return r < 0 ? CTL_REFUSED : CTL_OK;
}
