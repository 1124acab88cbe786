/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-helpers/weightctl_mount.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/parse.h"
#include "core/util.h"
#include "core/weight_management.h"
#include "mount-helpers/weightctl_say.h"

#define FS_TYPE "fuse.weightfs"
#define MOUNTINFO "/proc/self/mountinfo"
/* Of any attribute; the kernel's limit. */
#define VALUE_MAX ((size_t)64 << 10)
#define ATTR_NAME_MAX 255
/* Far more than any text of a mount has. */
#define TEXT_MAX ((size_t)256 << 20)
#define READ_BYTES 65536

static void file_close(FILE *f)
{
	(void)fclose(f);
}
DEFINE_CLEANUP(FILE *, file_close)

/* ---- Attributes ---- */

static void full_name(const char *name, char ret[static ATTR_NAME_MAX + 1])
{
	(void)snprintf(ret, ATTR_NAME_MAX + 1, ATTR_PREFIX "%s", name);
}

int attr_read(const char *path, const char *name, struct buf *ret)
{
	char full[ATTR_NAME_MAX + 1];
	auto_free char *value = NULL;
	ssize_t n;

	full_name(name, full);
	if (!ret)
		return getxattr(path, full, NULL, 0) < 0 ? -errno : 0;
	value = malloc(VALUE_MAX);
	if (!value)
		return -ENOMEM;
	n = getxattr(path, full, value, VALUE_MAX);
	return n < 0 ? -errno : buf_append(ret, value, (size_t)n);
}

bool attr_is_there(const char *path, const char *name)
{
	return attr_read(path, name, NULL) == 0;
}

int attr_read_u64(const char *path, const char *name, uint64_t *ret)
{
	struct buf value = BUF_INIT;
	int r = attr_read(path, name, &value);

	if (r == 0)
		r = parse_u64(value.data, ret);
	buf_release(&value);
	return r;
}

bool revision_is_durable(const char *path)
{
	struct buf said = BUF_INIT;
	bool durable = attr_read(path, "durable", &said) == 0 &&
		       strcmp(said.data, "yes") == 0;

	buf_release(&said);
	return durable;
}

int attr_set(const char *path, const char *name, const char *value)
{
	char full[ATTR_NAME_MAX + 1];

	full_name(name, full);
	return setxattr(path, full, value, strlen(value), 0) < 0 ? -errno : 0;
}

int attr_write(const char *path, const char *name, const char *value)
{
	char what[2 * ATTR_NAME_MAX];
	int r = attr_set(path, name, value);

	if (r == 0)
		return 0;
	(void)snprintf(what, sizeof(what), "%s=%s", name, value);
	/* What is there means something else that is not. */
	if (r == -ENOENT && access(path, F_OK) == 0)
		say_answer(r, path, what);
	else
		say_refusal(r, path, what);
	return r;
}

/* ---- Attributes as facts ---- */

/* In JSON these are no strings. */
static bool is_number(const char *name)
{
	static const enum attr_id numbers[] = {
		ATTR_HOT_RATIO,       ATTR_PINNED_BYTES,
		ATTR_MIXED_HOT_RATIO, ATTR_METADATA_GENERATION,
		ATTR_LOGICAL_BYTES,   ATTR_PAYLOAD_COUNT,
		ATTR_OPERATION,       ATTR_LEASES,
		ATTR_WATERMARK,
	};

	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		if (strcmp(attr_names[numbers[i]].name, name) == 0)
			return true;
	return false;
}

void facts_attr(struct facts *f, const char *name, const char *value)
{
	uint64_t n;
	double ratio;

	if (is_number(name) &&
	    (parse_u64(value, &n) == 0 || parse_ratio(value, &ratio) == 0))
		facts_raw(f, name, value);
	else if (strcmp(name, attr_names[ATTR_DURABLE].name) == 0)
		facts_bool(f, name, strcmp(value, "yes") == 0);
	else
		facts_text(f, name, value);
}

void facts_attrs(struct facts *f, const char *path, const char *const *names)
{
	struct buf value = BUF_INIT;

	for (; *names; names++) {
		buf_release(&value);
		if (attr_read(path, *names, &value) == 0)
			facts_attr(f, *names, value.data);
	}
	buf_release(&value);
}

/* ---- Mounts ---- */

struct mount_line {
	unsigned major, minor;
	char root[PATH_MAX];
	char point[PATH_MAX];
	char type[64];
};

/* Undoes "\040" and the like, in place. */
static void unescape(char *s)
{
	char *out = s;

	for (; *s != '\0'; out++) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' &&
		    s[2] <= '7' && s[3] >= '0' && s[3] <= '7') {
			*out = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 |
				      (s[3] - '0'));
			s += 4;
		} else {
			*out = *s++;
		}
	}
	*out = '\0';
}

/* Fields of proc(5): ids, major:minor, root, point, options, "-", type. */
static bool line_parse(const char *line, struct mount_line *ret)
{
	const char *dash = strstr(line, " - ");

	if (!dash ||
	    sscanf(line, "%*d %*d %u:%u %4095s %4095s", &ret->major,
		   &ret->minor, ret->root, ret->point) != 4 ||
	    sscanf(dash, " - %63s", ret->type) != 1)
		return false;
	unescape(ret->point);
	return true;
}

/* Counts the mounts of weightfs on dev (0: any), and keeps one's point. */
static int mounts_find(dev_t dev, unsigned *ret_count, char **ret)
{
	cleanup(file_close_cleanup) FILE *f = fopen(MOUNTINFO, "re");
	auto_free struct mount_line *m = malloc(sizeof(*m));
	auto_free char *line = NULL;
	auto_free char *found = NULL;
	bool whole = false;
	unsigned count = 0;
	size_t cap = 0;

	if (!f || !m)
		return f ? -ENOMEM : -errno;
	while (getline(&line, &cap, f) > 0) {
		if (!line_parse(line, m) || strcmp(m->type, FS_TYPE) != 0 ||
		    (dev && dev != makedev(m->major, m->minor)))
			continue;
		count++;
		/* A mount of all of it is better than one of a part. */
		if (found && (whole || strcmp(m->root, "/") != 0))
			continue;
		whole = strcmp(m->root, "/") == 0;
		free(found);
		found = strdup(m->point);
		if (!found)
			return -ENOMEM;
	}
	if (ferror(f))
		return -EIO;
	*ret_count = count;
	*ret = take_ptr(found);
	return 0;
}

/* The mount point of the filesystem that path is on, or NULL. */
static int mount_of(const char *path, char **ret)
{
	struct stat st;
	unsigned count;

	if (stat(path, &st) < 0)
		return -errno;
	return mounts_find(st.st_dev, &count, ret);
}

int mount_root(const char *path, char **ret)
{
	auto_free char *found = NULL;
	unsigned count = 0;
	int r = mount_of(path ? path : ".", &found);

	if (r == 0 && !found && !path) {
		r = mounts_find(0, &count, &found);
		if (r == 0 && count > 1)
			r = -EEXIST;
	}
	if (r == 0 && !found)
		r = -ENOENT;
	if (r == 0)
		*ret = take_ptr(found);
	return r;
}

int mount_named(const char *path, char **ret)
{
	int r = mount_root(path, ret);

	if (r == -EEXIST)
		say_note(".", "there are several mounts of weightfs: name the "
			      "one that is meant");
	else if (r == -ENOENT)
		say_note(path ? path : ".", "there is no mount of weightfs");
	else if (r < 0)
		say_error(r, path ? path : ".", "finding the mount");
	return r;
}

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

int mount_text(const char *root, const char *name, struct buf *ret)
{
	struct buf path = BUF_INIT;
	auto_fd int fd = -1;
	int r = buf_printf(&path, "%s/.weights/%s", root, name);

	if (r == 0) {
		fd = open(path.data, O_RDONLY | O_CLOEXEC);
		r = fd < 0 ? -errno : read_all(fd, ret);
	}
	buf_release(&path);
	return r;
}

int mount_resolve(const char *path, char **ret)
{
	auto_free char *real = realpath(path, NULL);
	auto_free char *point = NULL;
	int r = real ? mount_of(real, &point) : -errno;

	if (r < 0)
		return say_failed(r, path, "finding it");
	if (!point) {
		say_note(path, "this is not on a mount of weightfs");
		return -EXDEV;
	}
	*ret = take_ptr(real);
	return 0;
}

/* ---- What a path is in ---- */

typedef bool is_fn(const char *path);

static bool is_published(const char *path)
{
	return attr_is_there(path, "availability");
}

static bool is_revision(const char *path)
{
	return is_published(path) || attr_is_there(path, "progress");
}

/* Each lineage has a place where generations are staged. */
static bool is_lineage(const char *path)
{
	struct buf staging = BUF_INIT;
	bool there = buf_printf(&staging, "%s/.staging", path) == 0 &&
		     access(staging.data, F_OK) == 0;

	buf_release(&staging);
	return there;
}

/* The nearest one at or above path, which is absolute, to be freed; or NULL. */
static char *find_above(const char *path, is_fn *is)
{
	auto_free char *at = strdup(path);
	char *slash;

	while (at && !is(at)) {
		slash = strrchr(at, '/');
		if (!slash || slash == at)
			return NULL;
		*slash = '\0';
	}
	return take_ptr(at);
}

int mount_revision(const char *path, bool staged, char **ret)
{
	auto_free char *real = NULL;
	int r = mount_resolve(path, &real);

	if (r < 0)
		return r;
	*ret = find_above(real, staged ? is_revision : is_published);
	if (*ret)
		return 0;
	say_note(path, "this is not in a %srevision",
		 staged ? "" : "published ");
	return -ENOENT;
}

/* A directory of a revision may look like a lineage, so that is left first. */
int mount_lineage(const char *path, char **ret)
{
	auto_free char *revision = NULL;
	auto_free char *real = NULL;
	int r = mount_resolve(path, &real);

	if (r < 0)
		return r;
	revision = find_above(real, is_revision);
	*ret = find_above(revision ? dirname(revision) : real, is_lineage);
	if (*ret)
		return 0;
	say_note(path, "this is not in a lineage, which is a directory "
		       "TENANT/NAMESPACE/RESOURCE/REVISION of the mount");
	return -ENOENT;
}

int path_generation(const char *path, uint64_t *ret)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;

	return weight_generation_parse(name, strlen(name), ret);
}
