/* SPDX-License-Identifier: Apache-2.0 */
#include "core/chunk_check.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/chunk_buffer.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/util.h"

/* No machine has smaller pages. */
#define PAGE_BYTES_MIN 4096
#define PAGES_MAX (CHUNK_BYTES / PAGE_BYTES_MIN)
/* No filesystem has larger blocks. */
#define BLOCK_BYTES_MAX ((uint32_t)64 << 10)

static_assert(CHUNK_BYTES % BLOCK_BYTES_MAX == 0,
	      "the last block fits the buffer");

/* One chunk while it is looked at. */
struct look {
	const struct chunk_target *t;
	const struct digest *expected;
	uint64_t at; /* of the chunk in the file */
	uint32_t len;
	bool through;         /* the device is only seen through the cache */
	unsigned char *bytes; /* what the device gave, or what is right */
	int device_err;       /* 0, or why bytes doesn't hold anything */
	bool hole;            /* no data there, and nothing is in bytes */
	bool right;           /* bytes, or the hole, are as expected */
	bool right_size;      /* as far as it concerns this chunk */
	unsigned char *map;   /* the chunk as the cache has it, or NULL */
	size_t page;          /* its size */
	size_t pages;
	size_t resident_count;
	unsigned char resident[PAGES_MAX]; /* bit 0, as from mincore() */
};

uint64_t chunk_target_len(const struct chunk_target *t, size_t i)
{
	uint64_t at;

	if (__builtin_mul_overflow((uint64_t)i, t->chunk_size, &at) ||
	    at >= t->size)
		return 0;
	return t->size - at < t->chunk_size ? t->size - at : t->chunk_size;
}

size_t chunk_target_count(const struct chunk_target *t)
{
	if (!t->chunk_size)
		return 0;
	return (size_t)(t->size / t->chunk_size +
			(t->size % t->chunk_size != 0));
}

static void look_end(struct look *l)
{
	if (l->map)
		(void)munmap(l->map, l->pages * l->page);
	l->map = NULL;
}

/*
 * On btrfs an O_DIRECT read ends in the cache: recent kernels read like this
 * whatever has checksums, older ones what is left when a part of it failed. A
 * good copy in the cache would pass for the device's.
 */
static bool has_only_cached_reads(int fd)
{
	struct statfs st;

	return fstatfs(fd, &st) == 0 && st.f_type == BTRFS_SUPER_MAGIC;
}

static int look_start(struct look *l, const struct chunk_target *t, size_t i)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint64_t len;

	if (t->chunk_size > CHUNK_BYTES)
		return log_debug(-EFBIG, "chunks of %llu bytes",
				 (unsigned long long)t->chunk_size);
	/* Chunks have no pages and no blocks of the device in common. */
	if (t->chunk_size % page || t->chunk_size % CHUNK_BUFFER_ALIGN)
		return log_debug(-EINVAL, "chunks of %llu bytes",
				 (unsigned long long)t->chunk_size);
	len = chunk_target_len(t, i);
	if (!len)
		return log_debug(-EINVAL, "no chunk %zu", i);
	l->t = t;
	l->expected = &t->chunks[i];
	l->at = (uint64_t)i * t->chunk_size;
	l->len = (uint32_t)len;
	l->through = t->device_fd < 0 || has_only_cached_reads(t->fd);
	l->page = page;
	l->pages = (l->len + page - 1) / page;
	return chunk_buffer_get(0, &l->bytes);
}

/* --- The device --- */

/* Else the question was wrong, and the device had no part in it. */
static bool is_device_error(int err)
{
	static const int others[] = { -EBADF,  -EFAULT, -EINVAL,
				      -EISDIR, -ENOMEM, -EOPNOTSUPP };

	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (err == others[i])
			return false;
	return true;
}

static int digest_bytes(const unsigned char *bytes, const struct look *l,
			bool *ret_right)
{
	struct digest d;
	int r = digest_of(bytes, l->len, &d);

	if (r < 0)
		return r;
	metrics_add(METRIC_CHUNKS_HASHED, 1);
	metrics_add(METRIC_BYTES_HASHED, l->len);
	*ret_right = digest_equal(&d, l->expected);
	return 0;
}

/* The last chunk answers for what is behind it, too. */
static int check_size(struct look *l)
{
	uint64_t end = l->at + l->len;
	struct stat st;

	if (fstat(l->t->fd, &st) < 0)
		return log_debug(-errno, "fstat");
	l->right_size = end == l->t->size ? (uint64_t)st.st_size == end :
					    (uint64_t)st.st_size >= end;
	return 0;
}

static int device_read(const struct look *l, uint64_t at, uint32_t len,
		       unsigned char *buffer, size_t *ret)
{
	const struct chunk_target *t = l->t;

	if (!l->through)
		return chunk_buffer_read(t->device_fd, at, len, buffer, ret);
	(void)posix_fadvise(t->fd, (off_t)at, (off_t)len, POSIX_FADV_DONTNEED);
	return chunk_buffer_read(t->fd, at, len, buffer, ret);
}

/* Looks past the cache. Reads the chunk once, and a hole not at all. */
static int look_at_device(struct look *l)
{
	struct digest zeros;
	size_t got = 0;
	int r;

	l->device_err = 0;
	r = check_size(l);
	if (r < 0)
		return r;
	l->hole = chunk_buffer_is_hole(l->t->fd, l->at, l->len);
	if (l->hole) {
		r = chunk_buffer_zeros(l->len, &zeros);
		if (r == 0)
			l->right = digest_equal(&zeros, l->expected);
		return r;
	}
	l->right = false;
	r = device_read(l, l->at, l->len, l->bytes, &got);
	if (r < 0 && is_device_error(r)) {
		l->device_err = r;
		return 0;
	}
	if (r < 0)
		return r;
	if (got < l->len)
		memset(l->bytes + got, 0, l->len - got);
	return digest_bytes(l->bytes, l, &l->right);
}

/* --- The cache --- */

/*
 * Finds out which pages of the chunk are in the cache. It is looked at through
 * a mapping, because reading, also with RWF_NOWAIT, starts readahead, which
 * fills the cache and the holes in it. A file that can't be mapped has nothing
 * that readers could share.
 */
static int cache_open(struct look *l)
{
	size_t len = l->pages * l->page;
	void *map;

	map = mmap(NULL, len, PROT_READ, MAP_SHARED, l->t->fd, (off_t)l->at);
	if (map == MAP_FAILED && errno == ENODEV)
		return 0;
	if (map == MAP_FAILED)
		return log_debug(-errno, "mapping a chunk");
	l->map = map;
	/* A page that is thrown out before it is copied comes back alone. */
	if (madvise(map, len, MADV_RANDOM) < 0 ||
	    mincore(map, len, l->resident) < 0)
		return log_debug(-errno, "asking for the cache");
	for (size_t i = 0; i < l->pages; i++)
		l->resident_count += l->resident[i] & 1;
	return 0;
}

/* Pages that are or aren't in the cache, one after the other. */
struct run {
	bool resident;
	size_t first;  /* page */
	size_t end;    /* page behind the last */
	uint32_t from; /* byte in the chunk */
	uint32_t len;  /* in bytes, up to the end of the chunk at most */
};

/* Starts with an empty run. */
static bool run_next(const struct look *l, struct run *run)
{
	size_t i = run->end;
	uint32_t to;

	if (i == l->pages)
		return false;
	run->first = i;
	run->resident = l->resident[i] & 1;
	while (i < l->pages && run->resident == (l->resident[i] & 1))
		i++;
	run->end = i;
	run->from = (uint32_t)(run->first * l->page);
	to = i == l->pages ? l->len : (uint32_t)(i * l->page);
	run->len = to - run->from;
	return true;
}

/*
 * Copies a resident run to where it belongs in dst. What can't be had, because
 * it has left the cache and can't be read again, is no longer resident: the run
 * gets shorter. The kernel copies, and answers with an error where a
 * load instruction would be killed by SIGBUS.
 */
static int cache_copy(struct look *l, struct run *run, unsigned char *dst)
{
	struct iovec to = { dst + run->from, run->len };
	struct iovec from = { l->map + run->from, run->len };
	ssize_t n = process_vm_readv(getpid(), &to, 1, &from, 1, 0);

	if (n < 0 && errno != EFAULT)
		return log_debug(-errno, "reading the cache");
	if (n == (ssize_t)run->len)
		return 0;
	run->end = run->first + (n > 0 ? (size_t)n / l->page : 0);
	run->len = (uint32_t)((run->end - run->first) * l->page);
	for (size_t i = run->end; i < l->pages && (l->resident[i] & 1); i++) {
		l->resident[i] = 0;
		l->resident_count--;
	}
	return 0;
}

/* Whether what the cache has of the chunk is what bytes, or the hole, are. */
static int cache_is_right(struct look *l, bool *ret)
{
	struct run run = { 0 };
	unsigned char *copy;
	int r = cache_open(l);

	*ret = true;
	if (r < 0 || !l->resident_count)
		return r;
	if (l->hole)
		memset(l->bytes, 0, l->len);
	r = chunk_buffer_get(1, &copy);
	while (r == 0 && *ret && run_next(l, &run)) {
		if (!run.resident)
			continue;
		r = cache_copy(l, &run, copy);
		if (r == 0)
			*ret = memcmp(copy + run.from, l->bytes + run.from,
				      run.len) == 0;
	}
	return r;
}

/* --- Putting a good copy together --- */

/* Reads a run from a device that failed with the whole chunk. */
static int fill_gap(struct look *l, const struct run *run, bool *ret)
{
	size_t got = 0;
	int r = device_read(l, l->at + run->from, run->len,
			    l->bytes + run->from, &got);

	*ret = r == 0 && got >= run->len;
	return r < 0 && !is_device_error(r) ? r : 0;
}

/*
 * Makes bytes right, if what the cache has, together with what the device gives
 * of the rest, is. On a hole the device gives zeros.
 */
static int gather(struct look *l, bool *ret)
{
	struct run run = { 0 };
	bool whole = true;
	int r = cache_open(l);

	*ret = false;
	if (r < 0 || !l->resident_count)
		return r;
	if (l->hole)
		memset(l->bytes, 0, l->len);
	while (r == 0 && whole && run_next(l, &run)) {
		if (run.resident)
			r = cache_copy(l, &run, l->bytes);
		else if (l->device_err)
			r = fill_gap(l, &run, &whole);
	}
	return r < 0 || !whole ? r : digest_bytes(l->bytes, l, ret);
}

static int look_at(struct look *l, enum chunk_verdict *ret)
{
	bool right = true;
	int r = look_at_device(l);

	if (r < 0)
		return r;
	/* Looking through the cache shows both at once. */
	if (l->right) {
		if (!l->through || l->hole)
			r = cache_is_right(l, &right);
		*ret = !l->right_size ? CHUNK_BAD_ON_DEVICE :
		       right          ? CHUNK_GOOD :
					CHUNK_STALE;
		return r;
	}
	right = false;
	if (!l->through || l->hole)
		r = gather(l, &right);
	*ret = right ? CHUNK_BAD_ON_DEVICE : CHUNK_LOST;
	return r;
}

int chunk_check(const struct chunk_target *t, size_t i, enum chunk_verdict *ret,
		int *ret_device_error)
{
	cleanup(look_end) struct look l = { 0 };
	enum chunk_verdict verdict = CHUNK_LOST;
	int r = look_start(&l, t, i);

	if (r == 0)
		r = look_at(&l, &verdict);
	if (r < 0)
		return r;
	*ret = verdict;
	if (ret_device_error)
		*ret_device_error = l.device_err;
	return 0;
}

/* --- Mending --- */

/* Makes bytes right from another file. Errors: -ENODATA. */
static int take_from(struct look *l, int from_fd)
{
	bool right = false;
	size_t got = 0;
	int r = chunk_buffer_read(from_fd, l->at, l->len, l->bytes, &got);

	if (r == 0 && got >= l->len)
		r = digest_bytes(l->bytes, l, &right);
	if (r == -ENOMEM)
		return r;
	return right ? 0 : log_debug(-ENODATA, "the other file is bad, too");
}

static int write_all(const struct look *l, int fd, uint32_t from, uint32_t len)
{
	while (len) {
		ssize_t n =
			pwrite(fd, l->bytes + from, len, (off_t)(l->at + from));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return log_debug(n < 0 ? -errno : -EIO, "writing");
		from += (uint32_t)n;
		len -= (uint32_t)n;
	}
	return 0;
}

/*
 * Writes the last block of a file, which the kernel would have to read first,
 * and can't: as a whole, zeros behind the end. Until the file is cut again it
 * is a little longer, which is less wrong than any other way.
 */
static int write_last_block(const struct look *l, int fd, uint32_t from,
			    uint32_t len)
{
	uint32_t to = from + len;
	uint32_t end =
		(to + BLOCK_BYTES_MAX - 1) / BLOCK_BYTES_MAX * BLOCK_BYTES_MAX;

	memset(l->bytes + to, 0, end - to);
	return write_all(l, fd, from, end - from);
}

static int write_run(const struct look *l, int fd, uint32_t from, uint32_t len)
{
	int r = write_all(l, fd, from, len);

	if (r == -EIO && l->at + from + len == l->t->size)
		r = write_last_block(l, fd, from, len);
	return r;
}

/* Whether [from, from + len) is a hole that can stay one. */
static bool stays_hole(const struct look *l, uint32_t from, uint32_t len)
{
	size_t end = (from + len + l->page - 1) / l->page;

	for (size_t i = from / l->page; i < end; i++)
		if (l->resident[i] & 1)
			return false;
	return l->bytes[from] == 0 &&
	       memcmp(l->bytes + from, l->bytes + from + 1, len - 1) == 0;
}

/* The place of the next data or hole, from a byte of the chunk to its end. */
static uint32_t seek(const struct look *l, int fd, uint32_t from, int whence)
{
	off_t at = lseek(fd, (off_t)(l->at + from), whence);

	if (at < 0)
		return errno == ENXIO || whence == SEEK_HOLE ? l->len : from;
	return (uint64_t)at - l->at < l->len ?
		       (uint32_t)((uint64_t)at - l->at) :
		       l->len;
}

/* Writes bytes, but for holes. */
static int write_bytes(const struct look *l, int fd)
{
	uint32_t from = 0;
	int r = 0;

	while (r == 0 && from < l->len) {
		uint32_t data = seek(l, fd, from, SEEK_DATA);
		uint32_t hole = data;

		if (data > from && !stays_hole(l, from, data - from))
			r = write_run(l, fd, from, data - from);
		if (r == 0 && data < l->len) {
			hole = seek(l, fd, data, SEEK_HOLE);
			if (hole == data) /* it moved: take all */
				hole = l->len;
			r = write_run(l, fd, data, hole - data);
		}
		from = hole;
	}
	return r;
}

/* Gives the file the size that it should have, as far as this chunk knows. */
static int write_size(const struct look *l, int fd)
{
	uint64_t end = l->at + l->len;
	struct stat st;
	bool wrong;

	if (fstat(fd, &st) < 0)
		return log_debug(-errno, "fstat");
	wrong = (uint64_t)st.st_size < end ||
		((uint64_t)st.st_size > end && end == l->t->size);
	if (wrong && ftruncate(fd, (off_t)end) < 0)
		return log_debug(-errno, "setting the size");
	return 0;
}

/* Writes bytes back and looks at what is on the device then. */
static int put_back(struct look *l, int write_fd)
{
	int r = write_bytes(l, write_fd);
	int size_err = write_size(l, write_fd);

	look_end(l); /* pages that are mapped don't leave the cache */
	if (r < 0 || size_err < 0)
		return r < 0 ? r : size_err;
	if (fsync(write_fd) < 0)
		return log_debug(-errno, "syncing a mended chunk");
	metrics_add(METRIC_FSYNCS, 1);
	r = look_at_device(l);
	if (r < 0)
		return r;
	return l->right && l->right_size ?
		       0 :
		       log_debug(-EIO, "the device doesn't take it");
}

int chunk_mend(const struct chunk_target *t, size_t i, int write_fd,
	       int from_fd)
{
	cleanup(look_end) struct look l = { 0 };
	enum chunk_verdict verdict = CHUNK_LOST;
	int r = look_start(&l, t, i);

	if (r == 0)
		r = look_at(&l, &verdict);
	if (r < 0 || verdict == CHUNK_GOOD)
		return r;
	if (verdict == CHUNK_LOST) {
		if (from_fd < 0)
			return log_debug(-ENODATA, "no good copy");
		r = take_from(&l, from_fd);
		if (r < 0)
			return r;
	} else if (l.right && l.hole) {
		memset(l.bytes, 0, l.len);
	}
	return put_back(&l, write_fd);
}
