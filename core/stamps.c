/* SPDX-License-Identifier: Apache-2.0 */
#include "core/stamps.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/cursor.h"
#include "core/digest.h"
#include "core/file_io.h"
#include "core/log.h"
#include "core/map.h"
#include "core/metrics.h"

#define MAGIC "wfstamps"
#define MAGIC_LEN ((size_t)8)
#define HEAD_BYTES ((size_t)56)
#define ENTRY_BYTES ((size_t)48)
#define FILE_BYTES_MAX                                                         \
	(HEAD_BYTES + STAMPS_COUNT_MAX * ENTRY_BYTES + DIGEST_LEN)
#define NSEC_PER_SEC 1000000000
#define TMP_SUFFIX ".tmp"

#define SLOTS_MIN ((size_t)16)
#define SLOT_FREE UINT32_MAX

static_assert(STAMPS_COUNT_MAX < SLOT_FREE, "an index fits a slot");
static_assert(FILE_BYTES_MAX < BUF_MAX, "a file fits a buffer");

/* --- The index: linear probing, never more than half full --- */

static size_t slot_home(const struct stamps *s, uint64_t ino)
{
	return (size_t)map_hash(s->secret, &ino, sizeof(ino)) & s->mask;
}

/* The slot of the entry with that number, or the free one where it would go. */
static size_t slot_of(const struct stamps *s, uint64_t ino)
{
	size_t at = slot_home(s, ino);

	while (s->slots[at] != SLOT_FREE && s->entries[s->slots[at]].ino != ino)
		at = (at + 1) & s->mask;
	return at;
}

/*
 * Frees a slot and closes the gap, so that no search ends there too early
 * (Knuth, The Art of Computer Programming, 6.4, algorithm R).
 */
static void slot_release(struct stamps *s, size_t gap)
{
	size_t at = gap;

	for (;;) {
		size_t home;

		at = (at + 1) & s->mask;
		if (s->slots[at] == SLOT_FREE)
			break;
		home = slot_home(s, s->entries[s->slots[at]].ino);
		if (((at - home) & s->mask) < ((at - gap) & s->mask))
			continue;
		s->slots[gap] = s->slots[at];
		gap = at;
	}
	s->slots[gap] = SLOT_FREE;
}

static void forget(struct stamps *s, size_t i)
{
	if (!s->entries[i].known)
		return;
	slot_release(s, slot_of(s, s->entries[i].ino));
	s->entries[i] = (struct stamp){ 0 };
	s->known_count--;
}

/* Entry i is unknown, and so is the number of the stamp. */
static void know(struct stamps *s, size_t i, const struct stamp *stamp)
{
	size_t slot = slot_of(s, stamp->ino);

	assert(s->slots[slot] == SLOT_FREE);
	s->slots[slot] = (uint32_t)i;
	s->entries[i] = *stamp;
	s->known_count++;
}

/* --- Stamps --- */

static int draw_secret(struct stamps *s)
{
	ssize_t n;

	do
		n = getrandom(s->secret, sizeof(s->secret), 0);
	while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof(s->secret))
		return log_debug(n < 0 ? -errno : -EIO, "drawing a secret");
	return 0;
}

int stamps_new(size_t count, struct stamps **ret)
{
	cleanup(stamps_free_cleanup) struct stamps *s = NULL;
	size_t size = SLOTS_MIN;
	int r;

	if (count > STAMPS_COUNT_MAX)
		return log_debug(-EFBIG, "%zu stamps", count);
	while (size < 2 * count)
		size *= 2;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->count = count;
	s->mask = size - 1;
	s->slots = malloc(size * sizeof(*s->slots));
	s->entries = calloc(count ? count : 1, sizeof(*s->entries));
	if (!s->slots || !s->entries)
		return -ENOMEM;
	memset(s->slots, 0xff, size * sizeof(*s->slots)); /* SLOT_FREE */
	r = draw_secret(s);
	if (r < 0)
		return r;
	*ret = take_ptr(s);
	return 0;
}

void stamps_free(struct stamps *s)
{
	if (!s)
		return;
	free(s->entries);
	free(s->slots);
	free(s);
}

struct stamp stamp_of(const struct stat *st)
{
	return (struct stamp){
		.ino = st->st_ino,
		.size = (uint64_t)st->st_size,
		.mtime = st->st_mtim,
		.ctime = st->st_ctim,
		.known = true,
	};
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

bool stamp_matches(const struct stamp *stamp, const struct stat *st)
{
	return stamp->known && stamp->ino == st->st_ino &&
	       stamp->size == (uint64_t)st->st_size &&
	       same_time(&stamp->mtime, &st->st_mtim) &&
	       same_time(&stamp->ctime, &st->st_ctim);
}

void stamps_set(struct stamps *s, size_t i, const struct stat *st)
{
	struct stamp stamp;
	size_t other;

	assert(i < s->count);
	forget(s, i);
	if (!st)
		return;
	stamp = stamp_of(st);
	if (stamps_find(s, stamp.ino, &other) == 0)
		forget(s, other);
	know(s, i, &stamp);
}

int stamps_find(const struct stamps *s, uint64_t ino, size_t *ret)
{
	uint32_t i = s->slots[slot_of(s, ino)];

	if (i == SLOT_FREE)
		return -ENOENT;
	*ret = i;
	return 0;
}

/* --- Bytes --- */

/* Writes into memory that is large enough. */
static void put_u32(uint8_t **at, uint32_t v)
{
	v = htole32(v);
	memcpy(*at, &v, sizeof(v));
	*at += sizeof(v);
}

static void put_u64(uint8_t **at, uint64_t v)
{
	v = htole64(v);
	memcpy(*at, &v, sizeof(v));
	*at += sizeof(v);
}

static void put_stamp(uint8_t **at, const struct stamp *e)
{
	put_u64(at, e->ino);
	put_u64(at, e->size);
	put_u64(at, (uint64_t)(int64_t)e->mtime.tv_sec);
	put_u32(at, (uint32_t)e->mtime.tv_nsec);
	put_u32(at, (uint32_t)e->ctime.tv_nsec);
	put_u64(at, (uint64_t)(int64_t)e->ctime.tv_sec);
	put_u32(at, e->known);
	put_u32(at, 0);
}

static struct stamp get_stamp(struct cursor *c, bool *ret_valid)
{
	struct stamp e;
	uint32_t known, zero;

	e.ino = cursor_u64(c);
	e.size = cursor_u64(c);
	e.mtime.tv_sec = (time_t)cursor_u64(c);
	e.mtime.tv_nsec = (long)cursor_u32(c);
	e.ctime.tv_nsec = (long)cursor_u32(c);
	e.ctime.tv_sec = (time_t)cursor_u64(c);
	known = cursor_u32(c);
	zero = cursor_u32(c);
	e.known = known == 1;
	*ret_valid = known <= 1 && zero == 0 &&
		     e.mtime.tv_nsec < NSEC_PER_SEC &&
		     e.ctime.tv_nsec < NSEC_PER_SEC;
	if (!e.known)
		*ret_valid &= !e.ino && !e.size && !e.mtime.tv_sec &&
			      !e.mtime.tv_nsec && !e.ctime.tv_sec &&
			      !e.ctime.tv_nsec;
	return e;
}

/* bytes has room for all but the digest. */
static void put_all(uint8_t *bytes, const struct stamps *s)
{
	uint8_t *at = bytes;

	memcpy(at, MAGIC, MAGIC_LEN);
	at += MAGIC_LEN;
	put_u32(&at, STAMPS_VERSION); /* and the u16 that is zero */
	put_u32(&at, 0);
	put_u64(&at, s->epoch);
	put_u64(&at, s->scrub_ended_ms);
	put_u64(&at, s->scrub_next);
	put_u64(&at, s->scrub_bad);
	put_u64(&at, s->count);
	for (size_t i = 0; i < s->count; i++)
		put_stamp(&at, &s->entries[i]);
	assert((size_t)(at - bytes) == HEAD_BYTES + s->count * ENTRY_BYTES);
}

int stamps_encode(const struct stamps *s, struct buf *out)
{
	size_t len = HEAD_BYTES + s->count * ENTRY_BYTES;
	auto_free uint8_t *bytes = NULL;
	struct digest d;
	int r;

	bytes = malloc(len + DIGEST_LEN);
	if (!bytes)
		return -ENOMEM;
	put_all(bytes, s);
	r = digest_of(bytes, len, &d);
	if (r < 0)
		return r;
	memcpy(bytes + len, d.bytes, DIGEST_LEN);
	return buf_append(out, bytes, len + DIGEST_LEN);
}

static int get_entries(struct cursor *c, struct stamps *s)
{
	for (size_t i = 0; i < s->count; i++) {
		bool valid;
		struct stamp e = get_stamp(c, &valid);
		size_t other;

		if (!valid)
			return log_debug(-EUCLEAN, "stamp %zu", i);
		if (!e.known)
			continue;
		if (stamps_find(s, e.ino, &other) == 0)
			return log_debug(-EUCLEAN, "stamps %zu and %zu", other,
					 i);
		know(s, i, &e);
	}
	return 0;
}

/* What of the head doesn't depend on the version, and the digest. */
static int check_frame(struct cursor *c, const uint8_t *bytes, size_t len)
{
	uint8_t magic[MAGIC_LEN];
	struct digest d, stored;
	uint16_t version;
	int r;

	cursor_bytes(c, magic, sizeof(magic));
	version = cursor_u16(c);
	if (c->bad || memcmp(magic, MAGIC, MAGIC_LEN) != 0 || version == 0)
		return log_debug(-EUCLEAN, "no stamps");
	if (version > STAMPS_VERSION)
		return log_debug(-EPROTONOSUPPORT, "version %u", version);
	if (len < HEAD_BYTES + DIGEST_LEN)
		return log_debug(-EUCLEAN, "cut");
	r = digest_of(bytes, len - DIGEST_LEN, &d);
	if (r < 0)
		return r;
	memcpy(stored.bytes, bytes + len - DIGEST_LEN, DIGEST_LEN);
	return digest_equal(&d, &stored) ? 0 : log_debug(-EUCLEAN, "torn");
}

int stamps_decode(const void *bytes, size_t len, struct stamps **ret)
{
	cleanup(stamps_free_cleanup) struct stamps *s = NULL;
	struct cursor c = cursor_over(bytes, len);
	uint64_t zeros, epoch, ended, next, bad, count;
	int r;

	if (len > FILE_BYTES_MAX)
		return log_debug(-EFBIG, "%zu bytes", len);
	r = check_frame(&c, bytes, len);
	if (r < 0)
		return r;
	zeros = cursor_u16(&c);
	zeros |= cursor_u32(&c);
	epoch = cursor_u64(&c);
	ended = cursor_u64(&c);
	next = cursor_u64(&c);
	bad = cursor_u64(&c);
	count = cursor_u64(&c);
	/* The length is known to be small, the count isn't. */
	if (zeros || (len - HEAD_BYTES - DIGEST_LEN) % ENTRY_BYTES ||
	    count != (len - HEAD_BYTES - DIGEST_LEN) / ENTRY_BYTES)
		return log_debug(-EUCLEAN, "field out of range");

	r = stamps_new((size_t)count, &s);
	if (r < 0)
		return r;
	s->epoch = epoch;
	s->scrub_ended_ms = ended;
	s->scrub_next = next;
	s->scrub_bad = bad;
	r = get_entries(&c, s);
	if (r < 0)
		return r;
	*ret = take_ptr(s);
	return 0;
}

/* --- Files --- */

static int read_all(int fd, uint8_t *bytes, size_t len)
{
	size_t got = 0;

	while (got < len) {
		ssize_t n = read(fd, bytes + got, len - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return log_debug(-errno, "reading stamps");
		if (n == 0)
			return log_debug(-EUCLEAN, "the file got shorter");
		got += (size_t)n;
	}
	return 0;
}

int stamps_read(int dirfd, const char *name, struct stamps **ret)
{
	auto_free uint8_t *bytes = NULL;
	auto_fd int fd = -1;
	struct stat st;
	int r;

	fd = openat(dirfd, name,
		    O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 && (errno == ELOOP || errno == ENXIO))
		return log_debug(-EUCLEAN, "another kind of file");
	if (fd < 0)
		return log_debug(-errno, "opening stamps");
	if (fstat(fd, &st) < 0)
		return log_debug(-errno, "fstat");
	if (!S_ISREG(st.st_mode))
		return log_debug(-EUCLEAN, "another kind of file");
	if ((uint64_t)st.st_size > FILE_BYTES_MAX)
		return log_debug(-EFBIG, "%llu bytes",
				 (unsigned long long)st.st_size);
	bytes = malloc((size_t)st.st_size + 1);
	if (!bytes)
		return -ENOMEM;
	r = read_all(fd, bytes, (size_t)st.st_size);
	if (r < 0)
		return r;
	return stamps_decode(bytes, (size_t)st.st_size, ret);
}

/* Makes the file anew, whatever stood there. */
static int write_new(int dirfd, const char *name, const struct buf *bytes,
		     bool durable)
{
	auto_fd int fd = -1;
	int r;

	if (unlinkat(dirfd, name, 0) < 0 && errno != ENOENT)
		return log_debug(-errno, "removing '%s'", name);
	fd = openat(dirfd, name,
		    O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return log_debug(-errno, "making '%s'", name);
	r = file_io_write(fd, bytes->data, bytes->len);
	if (r < 0)
		return r;
	if (durable && fsync(fd) < 0)
		return log_debug(-errno, "syncing stamps");
	/* Some filesystems say only here that there was no space. */
	if (close(take_fd(&fd)) < 0 && errno != EINTR)
		return log_debug(-errno, "closing stamps");
	return 0;
}

static int sync_dir(int dirfd)
{
	auto_fd int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || fsync(fd) < 0)
		return log_debug(-errno, "syncing the directory of stamps");
	return 0;
}

int stamps_write(int dirfd, const char *name, const struct stamps *s,
		 bool durable)
{
	cleanup(buf_release) struct buf bytes = BUF_INIT;
	char tmp[NAME_MAX + 1];
	int n, r;

	n = snprintf(tmp, sizeof(tmp), "%s" TMP_SUFFIX, name);
	if (n < 0 || (size_t)n >= sizeof(tmp))
		return log_debug(-ENAMETOOLONG, "'%s'", name);
	r = stamps_encode(s, &bytes);
	if (r < 0)
		return r;
	r = write_new(dirfd, tmp, &bytes, durable);
	if (r == 0 && renameat(dirfd, tmp, dirfd, name) < 0)
		r = log_debug(-errno, "renaming stamps");
	if (r < 0) {
		(void)unlinkat(dirfd, tmp, 0);
		return r;
	}
	if (!durable)
		return 0;
	metrics_add(METRIC_FSYNCS, 2);
	return sync_dir(dirfd);
}
