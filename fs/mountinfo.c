/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/mountinfo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUR_TYPE "fuse.weightfs"
/* Fields before the mount point: id, parent, device, root. */
#define FIELDS_BEFORE 4

static bool is_octal(char c)
{
	return c >= '0' && c <= '7';
}

/* Blanks and backslashes are written as \ooo. In place. */
static void unescape(char *text)
{
	char *out = text;

	for (const char *in = text; *in != '\0'; out++) {
		if (in[0] == '\\' && is_octal(in[1]) && is_octal(in[2]) &&
		    is_octal(in[3])) {
			*out = (char)((in[1] - '0') * 64 + (in[2] - '0') * 8 +
				      (in[3] - '0'));
			in += 4;
		} else {
			*out = *in++;
		}
	}
	*out = '\0';
}

const char *mountinfo_type_at(char *line, const char *path)
{
	char *rest = line;
	char *mountpoint = NULL;
	char *type;

	for (int i = 0; i <= FIELDS_BEFORE; i++)
		mountpoint = strsep(&rest, " ");
	if (!mountpoint || !rest)
		return NULL;
	unescape(mountpoint);
	/* Optional fields end with a single dash. */
	rest = strstr(rest, " - ");
	if (!rest || strcmp(mountpoint, path) != 0)
		return NULL;
	rest += sizeof(" - ") - 1;
	type = strsep(&rest, " ");
	return type;
}

bool mountinfo_is_ours(const char *path)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char *line = NULL;
	size_t size = 0;
	bool ours = false;

	if (!f)
		return false;
	/* Later lines lie on top of earlier ones. */
	while (getline(&line, &size, f) > 0) {
		const char *type = mountinfo_type_at(line, path);

		if (type)
			ours = strcmp(type, OUR_TYPE) == 0;
	}
	free(line);
	(void)fclose(f);
	return ours;
}
