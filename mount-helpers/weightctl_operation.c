/* SPDX-License-Identifier: Apache-2.0 */
/* The command op, and what others ask about operations. */
#include "mount-helpers/weightctl_operation.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "core/cleanup.h"
#include "core/json.h"
#include "core/weight_management.h"
#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_mount.h"
#include "mount-helpers/weightctl_say.h"

/* Far more than a record has. */
#define TEXT_MAX ((size_t)1 << 20)
#define READ_BYTES 4096

static int read_all(int fd, struct buf *ret)
{
	char chunk[READ_BYTES];
	ssize_t n;
	int r = 0;

	do {
		n = read(fd, chunk, sizeof(chunk));
		if (n > 0)
			r = buf_append(ret, chunk, (size_t)n);
		if (r == 0 && ret->len > TEXT_MAX)
			r = -EFBIG;
	} while (r == 0 && (n > 0 || (n < 0 && errno == EINTR)));
	return r < 0 ? r : n < 0 ? -errno : 0;
}

int operation_text(const char *root, uint64_t id, struct buf *ret)
{
	struct buf path = BUF_INIT;
	auto_fd int fd = -1;
	int r = buf_printf(&path, "%s/.weights/operations/%llu.json", root,
			   (unsigned long long)id);

	if (r == 0) {
		fd = open(path.data, O_RDONLY | O_CLOEXEC);
		r = fd < 0 ? -errno : read_all(fd, ret);
	}
	buf_release(&path);
	return r;
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

/* One member a line. */
static int print_record(const struct buf *text)
{
	cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;
	const struct json_value *v;
	int r = json_parse(text->data, text->len, &doc, NULL);

	if (r < 0)
		return r;
	v = json_first(json_doc_root(doc));
	for (; v; v = json_next(v)) {
		(void)printf("%-26s ", json_key(v, NULL));
		print_value(v);
		(void)putchar('\n');
	}
	return 0;
}

static int show_operation(const struct ctl *ctl, const char *root, uint64_t id)
{
	struct buf text = BUF_INIT;
	char what[64];
	int r = operation_text(root, id, &text);

	(void)snprintf(what, sizeof(what), "operation %llu",
		       (unsigned long long)id);
	if (r == 0 && ctl->options & CTL_JSON)
		(void)printf("%s%s", text.data,
			     text.len > 0 && text.data[text.len - 1] == '\n' ?
				     "" :
				     "\n");
	else if (r == 0)
		r = print_record(&text);
	buf_release(&text);
	return r < 0 ? say_failed(r, root, what) : 0;
}

/* The one of the mount that --mount names, that we are in, or the only one. */
static int op_by_id(const struct ctl *ctl, uint64_t id)
{
	auto_free char *root = NULL;
	int r = mount_root(ctl->mount, &root);

	if (r == -EEXIST) {
		say_note(ctl->argv[0],
			 "there are several mounts: name one with --mount");
		return r;
	}
	if (r == -ENOENT) {
		say_note(ctl->mount ? ctl->mount : ctl->argv[0],
			 "there is no mount of weightfs");
		return r;
	}
	if (r < 0)
		return say_failed(r, ctl->mount ? ctl->mount : ".",
				  "finding the mount");
	return show_operation(ctl, root, id);
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
