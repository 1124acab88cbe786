/* SPDX-License-Identifier: Apache-2.0 */
#include "core/memory_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/checked.h"
#include "core/cleanup.h"
#include "core/log.h"
#include "core/parse.h"

#define TEXT_MAX 8192 /* more than any of the files has */
#define NUMBER_MAX 20 /* digits of 64 bits */

/* Where a control group's account stands, in the two versions there are. */
struct version {
	const char *mount;
	const char *limit;
	const char *usage;
	const char *active_file; /* in memory.stat, with groups below */
	const char *inactive_file;
};

static const struct version version_1 = {
	.mount = "/sys/fs/cgroup/memory",
	.limit = "memory.limit_in_bytes",
	.usage = "memory.usage_in_bytes",
	.active_file = "total_active_file ",
	.inactive_file = "total_inactive_file ",
};

static const struct version version_2 = {
	.mount = "/sys/fs/cgroup",
	.limit = "memory.max",
	.usage = "memory.current",
	.active_file = "active_file ",
	.inactive_file = "inactive_file ",
};

/* A group's directory, to which names of files are appended. */
struct group_path {
	char text[PATH_MAX + TEXT_MAX];
	size_t len;
};

/* What a limit of a group leaves. */
typedef uint64_t rest_fn(const struct version *v, struct group_path *group,
			 uint64_t limit);

static int read_text(const char *path, char ret[TEXT_MAX + 1])
{
	auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, ret, TEXT_MAX);
	if (n < 0)
		return -errno;
	ret[n] = '\0';
	return 0;
}

/* The number behind key, which begins a line: "MemTotal:    16263724 kB". */
static int find_number(const char *text, const char *key, uint64_t *ret)
{
	char number[NUMBER_MAX + 1];
	size_t len = strlen(key);
	size_t digits;

	while (strncmp(text, key, len) != 0) {
		text = strchr(text, '\n');
		if (!text)
			return -EBADMSG;
		text++;
	}
	text += len;
	text += strspn(text, " ");
	digits = strcspn(text, " \n");
	if (digits > NUMBER_MAX)
		return -EBADMSG;
	memcpy(number, text, digits);
	number[digits] = '\0';
	return parse_u64(number, ret) < 0 ? -EBADMSG : 0;
}

/* A line of /proc/meminfo, in bytes. */
static int machine_memory(const char *root, const char *key, uint64_t *ret)
{
	char path[PATH_MAX], text[TEXT_MAX + 1];
	int r;

	(void)snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	r = read_text(path, text);
	if (r < 0)
		return log_debug(r, "reading '%s'", path);
	if (find_number(text, key, ret) < 0 || checked_mul(*ret, 1024, ret) < 0)
		return log_debug(-EBADMSG, "'%s' has no good %s", path, key);
	return 0;
}

/* Appends a name to a group's path, in place of the one before. */
static const char *file_of(struct group_path *group, const char *name)
{
	(void)snprintf(group->text + group->len,
		       sizeof(group->text) - group->len, "/%s", name);
	return group->text;
}

/* A file with one number; "max" is none, nor is a file that isn't there. */
static int read_number(const char *path, uint64_t *ret)
{
	char text[TEXT_MAX + 1];
	int r = read_text(path, text);

	return r < 0 ? r : find_number(text, "", ret);
}

static uint64_t all_of_it(const struct version *v, struct group_path *group,
			  uint64_t limit)
{
	(void)v;
	(void)group;
	return limit;
}

/* The file cache is clean or can be cleaned, so it goes where need be. */
static uint64_t without_usage(const struct version *v, struct group_path *group,
			      uint64_t limit)
{
	uint64_t usage, active = 0, inactive = 0;
	char text[TEXT_MAX + 1];

	if (read_number(file_of(group, v->usage), &usage) < 0)
		return limit;
	if (read_text(file_of(group, "memory.stat"), text) == 0) {
		(void)find_number(text, v->active_file, &active);
		(void)find_number(text, v->inactive_file, &inactive);
	}
	/* The numbers are of different instants. */
	usage -= active < usage ? active : usage;
	usage -= inactive < usage ? inactive : usage;
	return usage < limit ? limit - usage : 0;
}

/* Lowers *lowest to that of a group and each one above it. Cuts name down. */
static void lower_to_group(const char *root, const struct version *v,
			   char *name, rest_fn *rest, uint64_t *lowest)
{
	struct group_path group;
	char *slash;

	/* A group outside of what this namespace shows can't be looked up. */
	if (strstr(name, "/.."))
		name[0] = '\0';
	do {
		uint64_t limit, left;
		int len = snprintf(group.text, sizeof(group.text), "%s%s%s",
				   root, v->mount, name);

		group.len = (size_t)len;
		if (group.len < sizeof(group.text) &&
		    read_number(file_of(&group, v->limit), &limit) == 0) {
			left = rest(v, &group, limit);
			if (left < *lowest)
				*lowest = left;
		}
		slash = strrchr(name, '/');
		if (slash)
			*slash = '\0';
	} while (slash);
}

/* One line of /proc/self/cgroup: a number, controllers, the group. */
static void lower_to_line(const char *root, char *line, rest_fn *rest,
			  uint64_t *lowest)
{
	static const char memory[] = ":memory:";
	static const char unified[] = "0::";
	char *group = strstr(line, memory);

	if (strncmp(line, unified, sizeof(unified) - 1) == 0)
		lower_to_group(root, &version_2, line + sizeof(unified) - 1,
			       rest, lowest);
	else if (group)
		lower_to_group(root, &version_1, group + sizeof(memory) - 1,
			       rest, lowest);
}

static void lower_to_groups(const char *root, rest_fn *rest, uint64_t *lowest)
{
	char path[PATH_MAX], text[TEXT_MAX + 1];
	char *left = text;

	(void)snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	/* A kernel without control groups has no such file, and no limits. */
	if (read_text(path, text) < 0)
		return;
	for (char *line; (line = strsep(&left, "\n"));)
		lower_to_line(root, line, rest, lowest);
}

int memory_limit_total(const char *root, uint64_t *ret)
{
	uint64_t lowest;
	int r = machine_memory(root, "MemTotal:", &lowest);

	if (r < 0)
		return r;
	lower_to_groups(root, all_of_it, &lowest);
	*ret = lowest;
	return 0;
}

int memory_limit_available(const char *root, uint64_t *ret)
{
	uint64_t lowest;
	int r = machine_memory(root, "MemAvailable:", &lowest);

	if (r < 0)
		return r;
	lower_to_groups(root, without_usage, &lowest);
	*ret = lowest;
	return 0;
}
