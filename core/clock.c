/* SPDX-License-Identifier: Apache-2.0 */
#include "core/clock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/log.h"

#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"

static uint64_t kernel_ms(clockid_t id)
{
	struct timespec ts;
	int r = clock_gettime(id, &ts);

	/* It fails only for a bad id or address, neither of which we pass. */
	assert(r == 0);
	(void)r;
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static uint64_t kernel_realtime_ms(void *arg)
{
	(void)arg;
	return kernel_ms(CLOCK_REALTIME);
}

static uint64_t kernel_monotonic_ms(void *arg)
{
	(void)arg;
	return kernel_ms(CLOCK_BOOTTIME);
}

static const struct clock_source kernel_source = {
	.realtime_ms = kernel_realtime_ms,
	.monotonic_ms = kernel_monotonic_ms,
};

/* Written only before the first thread starts, read from every thread. */
static const struct clock_source *current = &kernel_source;

uint64_t clock_realtime_ms(void)
{
	return current->realtime_ms(current->arg);
}

uint64_t clock_monotonic_ms(void)
{
	return current->monotonic_ms(current->arg);
}

void clock_set(const struct clock_source *source)
{
	assert(!source || (source->realtime_ms && source->monotonic_ms));
	current = source ? source : &kernel_source;
}

int clock_boot_id(char ret[CLOCK_BOOT_ID_LEN + 1])
{
	static const char allowed[] = "0123456789abcdef-";
	char id[CLOCK_BOOT_ID_LEN + 1];
	auto_fd int fd = open(BOOT_ID_PATH, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return log_debug(-errno, "opening '%s'", BOOT_ID_PATH);
	n = read(fd, id, CLOCK_BOOT_ID_LEN);
	if (n < 0)
		return log_debug(-errno, "reading '%s'", BOOT_ID_PATH);
	id[n] = '\0';
	if (n != CLOCK_BOOT_ID_LEN || strspn(id, allowed) != CLOCK_BOOT_ID_LEN)
		return log_debug(-EBADMSG, "'%s' holds no id", BOOT_ID_PATH);
	memcpy(ret, id, sizeof(id));
	return 0;
}

int clock_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;
	int r = pthread_condattr_init(&attr);

	if (r)
		return -r;
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	r = pthread_cond_init(cond, &attr);
	(void)pthread_condattr_destroy(&attr);
	return -r;
}

void clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t ms)
{
	struct timespec until;

	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (time_t)(ms / 1000);
	until.tv_nsec += (long)(ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	(void)pthread_cond_timedwait(cond, mutex, &until);
}
