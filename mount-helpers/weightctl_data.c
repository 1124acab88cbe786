/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-helpers/weightctl_data.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "mount-helpers/weightctl.h"

/* Large enough for the disk's best speed, small enough to be interrupted. */
#define STEP_BYTES ((size_t)4 << 20)
/* The kernel may copy more at once where it copies at all. */
#define KERNEL_STEP_BYTES ((size_t)64 << 20)

void data_copy_init(struct data_copy *d, data_moved_fn *moved, void *arg)
{
	*d = (struct data_copy){ .moved = moved, .arg = arg };
}

void data_copy_release(struct data_copy *d)
{
	free(d->buffer);
	d->buffer = NULL;
}

/* It works between some filesystems only, and says so in many ways. */
static bool is_no_kernel_copy(int err)
{
	return err == EXDEV || err == EOPNOTSUPP || err == EINVAL ||
	       err == ENOSYS || err == EBADF || err == EPERM || err == ETXTBSY;
}

/*
 * The kernel copies, without bytes coming here. Returns how many it did; 0: it
 * can't, which reading will find the reason of.
 */
static ssize_t step_by_kernel(struct data_copy *d, int in, int out, uint64_t at,
			      size_t len)
{
	off_t from = (off_t)at, to = (off_t)at;
	ssize_t n;

	if (len > KERNEL_STEP_BYTES)
		len = KERNEL_STEP_BYTES;
	n = copy_file_range(in, &from, out, &to, len, 0);
	if (n >= 0)
		return n;
	if (errno == EINTR)
		return -EINTR;
	d->by_hand = d->by_hand || is_no_kernel_copy(errno);
	return 0;
}

static int write_at(int out, const char *bytes, size_t len, uint64_t at)
{
	while (len > 0) {
		ssize_t n = pwrite(out, bytes, len, (off_t)at);

		if (n < 0 && errno == EINTR && !ctl_interrupted())
			continue;
		if (n < 0)
			return -errno;
		bytes += n;
		len -= (size_t)n;
		at += (uint64_t)n;
	}
	return 0;
}

/* Returns how many bytes it copied, never 0. */
static ssize_t step_by_hand(struct data_copy *d, int in, int out, uint64_t at,
			    size_t len)
{
	ssize_t n;
	int r;

	if (!d->buffer)
		d->buffer = malloc(STEP_BYTES);
	if (!d->buffer)
		return -ENOMEM;
	do {
		n = pread(in, d->buffer, len < STEP_BYTES ? len : STEP_BYTES,
			  (off_t)at);
	} while (n < 0 && errno == EINTR && !ctl_interrupted());
	d->at_source = n <= 0;
	if (n <= 0)
		return n < 0 ? -errno : -EBUSY;
	r = write_at(out, d->buffer, (size_t)n, at);
	return r < 0 ? r : n;
}

static int copy_range(struct data_copy *d, int in, int out, uint64_t at,
		      uint64_t end)
{
	while (at < end) {
		size_t len =
			end - at < SIZE_MAX ? (size_t)(end - at) : SIZE_MAX;
		ssize_t n = 0;
		int r;

		if (!d->by_hand)
			n = step_by_kernel(d, in, out, at, len);
		if (n == 0)
			n = step_by_hand(d, in, out, at, len);
		if (n == -EINTR && !ctl_interrupted())
			continue;
		if (n < 0)
			return (int)n;
		at += (uint64_t)n;
		r = d->moved(d->arg, (uint64_t)n);
		if (r < 0)
			return r;
	}
	return 0;
}

/*
 * The next range of in that holds data, from at on: [*ret, *ret_end). At the
 * end of all data both are size.
 */
static void next_data(int in, uint64_t at, uint64_t size, uint64_t *ret,
		      uint64_t *ret_end)
{
	off_t data = lseek(in, (off_t)at, SEEK_DATA);
	off_t hole;

	if (data < 0 && errno == ENXIO) {
		*ret = *ret_end = size;
		return;
	}
	hole = data < 0 ? -1 : lseek(in, data, SEEK_HOLE);
	*ret = data < 0 ? at : (uint64_t)data;
	*ret_end = hole < 0 ? size : (uint64_t)hole;
	if (*ret > size)
		*ret = size;
	if (*ret_end > size)
		*ret_end = size;
}

int data_copy(struct data_copy *d, int in, int out, uint64_t size)
{
	uint64_t at = 0, data = 0, end = 0;
	int r = 0;

	d->at_source = false;
	while (at < size && r == 0) {
		next_data(in, at, size, &data, &end);
		r = d->moved(d->arg, data - at);
		if (r == 0)
			r = copy_range(d, in, out, data, end);
		at = end;
	}
	/* A hole at the end is written by nobody. */
	if (r == 0 && size > 0 && data == size &&
	    ftruncate(out, (off_t)size) < 0)
		r = -errno;
	return r;
}
