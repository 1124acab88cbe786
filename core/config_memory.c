/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/checked.h"
#include "core/cleanup.h"
#include "core/config.h"
#include "core/log.h"
#include "core/parse.h"

#define TEXT_MAX 8192 /* more than any of the files has */

/* Where a control group's limit stands, in the two versions there are. */
struct hierarchy {
	const char *mount;
	const char *file;
};

static const struct hierarchy version_1 = {
	"/sys/fs/cgroup/memory",
	"memory.limit_in_bytes",
};

static const struct hierarchy version_2 = { "/sys/fs/cgroup", "memory.max" };

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

/* The machine's memory: "MemTotal:    16263724 kB", with other lines. */
static int machine_memory(const char *root, uint64_t *ret)
{
	static const char key[] = "MemTotal:";
	char path[PATH_MAX], text[TEXT_MAX + 1];
	char *number;
	int r;

	(void)snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	r = read_text(path, text);
	if (r < 0)
		return log_debug(r, "reading '%s'", path);
	number = strstr(text, key);
	if (!number)
		return log_debug(-EBADMSG, "'%s' has no %s", path, key);
	number += sizeof(key) - 1;
	number += strspn(number, " ");
	number[strcspn(number, " \n")] = '\0';
	if (parse_u64(number, ret) < 0 || checked_mul(*ret, 1024, ret) < 0)
		return log_debug(-EBADMSG, "'%s' says '%s'", path, number);
	return 0;
}

/* Lowers *limit to what a file says; "max", or no file, is no limit. */
static void lower_to_file(const char *path, uint64_t *limit)
{
	char text[TEXT_MAX + 1];
	uint64_t value;

	if (read_text(path, text) < 0)
		return;
	text[strcspn(text, "\n")] = '\0';
	if (parse_u64(text, &value) == 0 && value < *limit)
		*limit = value;
}

/* Lowers *limit to that of a group and each one above it. Cuts group down. */
static void lower_to_group(const char *root, const struct hierarchy *h,
			   char *group, uint64_t *limit)
{
	char path[PATH_MAX + TEXT_MAX];
	char *slash;

	/* A group outside of what this namespace shows can't be looked up. */
	if (strstr(group, "/.."))
		group[0] = '\0';
	do {
		(void)snprintf(path, sizeof(path), "%s%s%s/%s", root, h->mount,
			       group, h->file);
		lower_to_file(path, limit);
		slash = strrchr(group, '/');
		if (slash)
			*slash = '\0';
	} while (slash);
}

/* One line of /proc/self/cgroup: a number, controllers, the group. */
static void lower_to_line(const char *root, char *line, uint64_t *limit)
{
	static const char memory[] = ":memory:";
	static const char unified[] = "0::";
	char *group = strstr(line, memory);

	if (strncmp(line, unified, sizeof(unified) - 1) == 0)
		lower_to_group(root, &version_2, line + sizeof(unified) - 1,
			       limit);
	else if (group)
		lower_to_group(root, &version_1, group + sizeof(memory) - 1,
			       limit);
}

int config_usable_memory(const char *root, uint64_t *ret)
{
	char path[PATH_MAX], text[TEXT_MAX + 1];
	uint64_t limit;
	char *rest = text;
	int r = machine_memory(root, &limit);

	if (r < 0)
		return r;
	(void)snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	/* A kernel without control groups has no such file, and no limits. */
	if (read_text(path, text) == 0)
		for (char *line; (line = strsep(&rest, "\n"));)
			lower_to_line(root, line, &limit);
	*ret = limit;
	return 0;
}
