/* SPDX-License-Identifier: Apache-2.0 */
#include "core/file_io.h"

#include <errno.h>
#include <unistd.h>

#include "core/log.h"

int file_io_write(int fd, const void *bytes, size_t len)
{
	const char *at = bytes;

	while (len > 0) {
		ssize_t n = write(fd, at, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return log_debug(n < 0 ? -errno : -EIO, "write");
		at += n;
		len -= (size_t)n;
	}
	return 0;
}

int file_io_read_at(int fd, void *bytes, size_t len, uint64_t offset)
{
	char *at = bytes;

	while (len > 0) {
		ssize_t n = pread(fd, at, len, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return log_debug(-errno, "pread");
		if (n == 0)
			return log_debug(-EIO, "%zu bytes are missing", len);
		at += n;
		len -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}
