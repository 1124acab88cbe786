/* SPDX-License-Identifier: Apache-2.0 */
#include "core/chunk_buffer.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/log.h"

#define HUGE_BYTES ((size_t)2 << 20)

static_assert(CHUNK_BYTES % CHUNK_BUFFER_ALIGN == 0,
	      "a padded read fits the buffer");

/* --- Aligned buffers of a thread --- */

static pthread_once_t keys_once = PTHREAD_ONCE_INIT;
static pthread_key_t keys[CHUNK_BUFFER_COUNT];
static int keys_err;

/*
 * In huge pages, where there are any: what the device writes into these comes
 * two to three times as fast. The mapping is cut to the aligned part of it.
 */
static int buffer_map(void **ret)
{
	const size_t room = CHUNK_BYTES + HUGE_BYTES;
	char *at = mmap(NULL, room, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t before;

	if (at == MAP_FAILED)
		return log_debug(-ENOMEM, "no buffer");
	before = -(uintptr_t)at & (HUGE_BYTES - 1);
	if (before > 0)
		(void)munmap(at, before);
	(void)munmap(at + before + CHUNK_BYTES, HUGE_BYTES - before);
	(void)madvise(at + before, CHUNK_BYTES, MADV_HUGEPAGE);
	*ret = at + before;
	return 0;
}

static void buffer_unmap(void *buffer)
{
	(void)munmap(buffer, CHUNK_BYTES);
}

static void keys_make(void)
{
	for (size_t i = 0; i < CHUNK_BUFFER_COUNT && !keys_err; i++)
		keys_err = pthread_key_create(&keys[i], buffer_unmap);
}

int chunk_buffer_get(unsigned which, unsigned char **ret)
{
	void *buffer;
	int r;

	assert(which < CHUNK_BUFFER_COUNT);
	(void)pthread_once(&keys_once, keys_make);
	if (keys_err)
		return log_debug(-ENOMEM, "no thread-local key");
	buffer = pthread_getspecific(keys[which]);
	if (!buffer) {
		r = buffer_map(&buffer);
		if (r < 0)
			return r;
		if (pthread_setspecific(keys[which], buffer)) {
			buffer_unmap(buffer);
			return -ENOMEM;
		}
	}
	*ret = buffer;
	return 0;
}

/* --- Files --- */

int chunk_buffer_read(int fd, uint64_t at, uint32_t len, unsigned char *buffer,
		      size_t *ret)
{
	const size_t align = CHUNK_BUFFER_ALIGN;
	size_t padded = (len + align - 1) / align * align;
	size_t got = 0;

	while (got < len) {
		ssize_t n = pread(fd, buffer + got, padded - got,
				  (off_t)(at + got));

		if (n < 0 && errno == EINTR)
			continue;
		/* Past the cache, what ends off the grid is the file's end. */
		if (n == 0 || (n < 0 && errno == EINVAL && got % align))
			break;
		if (n < 0)
			return log_debug(-errno, "reading at %llu",
					 (unsigned long long)(at + got));
		got += (size_t)n;
	}
	*ret = got;
	return 0;
}

bool chunk_buffer_is_hole(int fd, uint64_t at, uint32_t len)
{
	off_t data = lseek(fd, (off_t)at, SEEK_DATA);

	if (data < 0)
		return errno == ENXIO;
	return (uint64_t)data >= at + len;
}

/* --- Zeros --- */

/*
 * Digests of runs of zeros by length. Files have few different tails, so one
 * slot per hash value is enough; the whole chunk has the slot of its own.
 */
#define ZEROS_SLOTS 64

static struct {
	pthread_mutex_t lock;
	struct zeros {
		uint32_t len; /* 0: empty */
		struct digest digest;
	} slots[ZEROS_SLOTS]; /* guarded by lock */
} zeros_cache = { .lock = PTHREAD_MUTEX_INITIALIZER };

static size_t zeros_slot(uint32_t len)
{
	if (len == CHUNK_BYTES)
		return 0;
	return 1 + (len ^ len >> 12) % (ZEROS_SLOTS - 1);
}

static bool zeros_find(uint32_t len, struct digest *ret)
{
	const struct zeros *z = &zeros_cache.slots[zeros_slot(len)];
	bool found;

	(void)pthread_mutex_lock(&zeros_cache.lock);
	found = z->len == len;
	if (found)
		*ret = z->digest;
	(void)pthread_mutex_unlock(&zeros_cache.lock);
	return found;
}

int chunk_buffer_zeros(uint32_t len, struct digest *ret)
{
	struct zeros *z = &zeros_cache.slots[zeros_slot(len)];
	unsigned char *buffer;
	int r;

	assert(len <= CHUNK_BYTES);
	if (zeros_find(len, ret))
		return 0;
	r = chunk_buffer_get(0, &buffer);
	if (r < 0)
		return r;
	memset(buffer, 0, len);
	r = digest_of(buffer, len, ret);
	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&zeros_cache.lock);
	*z = (struct zeros){ .len = len, .digest = *ret };
	(void)pthread_mutex_unlock(&zeros_cache.lock);
	return 0;
}
