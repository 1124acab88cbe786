/* SPDX-License-Identifier: Apache-2.0 */
#include "core/derived.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/holders.h"
#include "core/list.h"
#include "core/log.h"
#include "core/map.h"
#include "core/util.h"

/*
 * Read into a buffer and written from there: faster than reading into a mapping
 * of the new file, which has to be zeroed first, and than splicing pages one
 * by one. Large reads also make large folios of what the cache lacks.
 */
#define COPY_BYTES ((size_t)4 << 20)

#define PAGE_BYTES ((uint64_t)4096) /* what the limit is counted in */

/* A filesystem's own limit is above ours by what files take while written. */
#define INSTANCE_SLACK_BYTES ((uint64_t)64 << 20)

enum file_state {
	FILE_MAKING,
	FILE_READY,
	FILE_FAILED,
};

struct derived_file {
	struct derived *derived; /* constant */
	struct list idle;        /* on derived->idle while unused; its lock */
	enum file_state state;   /* derived->lock */
	unsigned uses;           /* derived->lock; waiting for it is one */
	bool listed;             /* in derived->files; derived->lock */
	int err;                 /* constant once FILE_FAILED */
	int fd;                  /* O_PATH; constant once FILE_READY */
	uint64_t size;           /* constant */
	char key[];              /* constant */
};

struct derived {
	pthread_mutex_t lock;
	pthread_cond_t made;        /* broadcast when any file is made */
	struct map *files;          /* by key; guarded by lock */
	struct list idle;           /* least recent first; guarded by lock */
	struct derived_stats stats; /* guarded by lock */
	enum derived_kind kind;     /* constant */
	int huge;                   /* mount, or -1; constant */
	int small;                  /* mount, or -1; constant */
};

/* --- Filesystems --- */

/* A memory filesystem; huge is its option of that name, NULL for none. */
static int instance_new(const char *huge, uint64_t limit, int *ret)
{
	auto_fd int fs = fsopen("tmpfs", FSOPEN_CLOEXEC);
	char size[24];
	int mnt;

	if (fs < 0)
		return log_debug(-errno, "fsopen");
	(void)snprintf(size, sizeof(size), "%llu", (unsigned long long)limit);
	if ((huge && fsconfig(fs, FSCONFIG_SET_STRING, "huge", huge, 0) < 0) ||
	    fsconfig(fs, FSCONFIG_SET_STRING, "size", size, 0) < 0 ||
	    fsconfig(fs, FSCONFIG_SET_STRING, "mode", "0700", 0) < 0 ||
	    fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return log_debug(-errno, "configuring a memory filesystem");
	mnt = fsmount(fs, FSMOUNT_CLOEXEC,
		      MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	if (mnt < 0)
		return log_debug(-errno, "fsmount");
	*ret = mnt;
	return 0;
}

static void instances_new(struct derived *d, uint64_t limit)
{
	uint64_t room = limit > UINT64_MAX / 2 ? UINT64_MAX / 2 : limit;

	room = (room + INSTANCE_SLACK_BYTES) / PAGE_BYTES * PAGE_BYTES;
	d->kind = DERIVED_MEMFD;
	if (instance_new(NULL, room, &d->small) < 0)
		return;
	d->kind = DERIVED_SMALL_PAGES;
	if (instance_new("always", room, &d->huge) == 0)
		d->kind = DERIVED_HUGE_PAGES;
}

static const char *const kind_texts[] = {
	[DERIVED_HUGE_PAGES] = "huge",
	[DERIVED_SMALL_PAGES] = "small",
	[DERIVED_MEMFD] = "memfd",
};

enum derived_kind derived_kind(const struct derived *d)
{
	return d->kind;
}

const char *derived_kind_text(enum derived_kind kind)
{
	assert((size_t)kind < ARRAY_LEN(kind_texts));
	return kind_texts[kind];
}

/* --- Files --- */

static bool is_huge(const struct derived *d, uint64_t size)
{
	return d->huge >= 0 && size >= DERIVED_HUGE_BYTES;
}

/* A new file without a name, open for writing. */
static int file_create(const struct derived *d, uint64_t size, int *ret)
{
	int mnt = is_huge(d, size) ? d->huge : d->small;
	int fd;

	if (mnt >= 0)
		fd = openat(mnt, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0400);
	else
		fd = memfd_create("derived", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return log_debug(-errno, "making a derived file");
	*ret = fd;
	return 0;
}

static int write_all(int fd, const char *bytes, size_t len, uint64_t at)
{
	while (len) {
		ssize_t n = pwrite(fd, bytes, len, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return log_debug(-errno, "writing a derived file");
		bytes += n;
		len -= (size_t)n;
		at += (uint64_t)n;
	}
	return 0;
}

static int copy_range(int src, uint64_t off, uint64_t len, int dst, uint64_t at,
		      char *buffer)
{
	while (len) {
		size_t want = len < COPY_BYTES ? (size_t)len : COPY_BYTES;
		ssize_t n = pread(src, buffer, want, (off_t)off);
		int r;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return log_debug(-errno, "reading at %llu",
					 (unsigned long long)off);
		if (n == 0)
			return log_debug(-EUCLEAN, "the file ends at %llu",
					 (unsigned long long)off);
		r = write_all(dst, buffer, (size_t)n, at);
		if (r < 0)
			return r;
		off += (uint64_t)n;
		at += (uint64_t)n;
		len -= (uint64_t)n;
	}
	return 0;
}

static int copy_parts(const struct derived_part *parts, size_t count, int dst,
		      uint64_t size)
{
	auto_free char *buffer = NULL;
	uint64_t at = 0;

	buffer = malloc(size < COPY_BYTES ? (size_t)size + 1 : COPY_BYTES);
	if (!buffer)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		const struct derived_part *p = &parts[i];
		int r;

		if (p->fd < 0)
			r = write_all(dst, p->data, (size_t)p->len, at);
		else
			r = copy_range(p->fd, p->offset, p->len, dst, at,
				       buffer);
		if (r < 0)
			return r;
		at += p->len;
	}
	return 0;
}

/*
 * The last huge page reaches beyond the file. Making the file longer and
 * shorter again gives that tail back.
 */
static int trim_tail(int fd, uint64_t size)
{
	uint64_t whole = (size + DERIVED_HUGE_BYTES - 1) / DERIVED_HUGE_BYTES *
			 DERIVED_HUGE_BYTES;

	if (ftruncate(fd, (off_t)whole) < 0 || ftruncate(fd, (off_t)size) < 0)
		return log_debug(-errno, "trimming a derived file");
	return 0;
}

/* Opens the finished file anew, for its name only, and ends writing to it. */
static int seal(const struct derived *d, int fd, int *ret)
{
	char path[32];
	int opath;

	if (d->small < 0 &&
	    fcntl(fd, F_ADD_SEALS,
		  F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
		return log_debug(-errno, "sealing a derived file");
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	opath = open(path, O_PATH | O_CLOEXEC);
	if (opath < 0)
		return log_debug(-errno, "opening a derived file");
	*ret = opath;
	return 0;
}

static int file_make(const struct derived *d, const struct derived_part *parts,
		     size_t count, uint64_t size, int *ret)
{
	auto_fd int fd = -1;
	int r;

	r = file_create(d, size, &fd);
	if (r < 0)
		return r;
	r = copy_parts(parts, count, fd, size);
	if (r < 0)
		return r;
	if (is_huge(d, size)) {
		r = trim_tail(fd, size);
		if (r < 0)
			return r;
	}
	return seal(d, fd, ret);
}

/* --- The table of files --- */

static uint64_t cost_of(uint64_t size)
{
	return (size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/* Takes the file out of the table; its memory no longer counts. */
static void unlist_locked(struct derived *d, struct derived_file *f)
{
	if (!f->listed)
		return;
	(void)map_take(d->files, f->key, strlen(f->key));
	f->listed = false;
	d->stats.used_bytes -= cost_of(f->size);
	d->stats.files--;
}

/* The first use of an idle file takes it off the idle list. */
static void use_locked(struct derived *d, struct derived_file *f)
{
	if (f->uses++ == 0) {
		list_remove(&f->idle);
		d->stats.idle_files--;
	}
}

static void drop_locked(struct derived *d, struct derived_file *f,
			struct list *doomed)
{
	assert(f->uses == 0);
	unlist_locked(d, f);
	list_move_tail(doomed, &f->idle);
	d->stats.idle_files--;
	d->stats.dropped_total++;
}

/* Giving back gigabytes takes a while, so it is done without the lock. */
static void bury(struct list *doomed)
{
	struct list *at;

	while ((at = list_take_first(doomed))) {
		struct derived_file *f =
			container_of(at, struct derived_file, idle);

		if (f->fd >= 0)
			(void)close(f->fd);
		free(f);
	}
}

/* Drops idle files that nobody maps until cost fits. */
static int make_room_locked(struct derived *d, uint64_t cost,
			    struct list *doomed)
{
	struct derived_stats *s = &d->stats;
	struct list *next;

	if (cost > s->limit_bytes)
		return log_debug(-ENOSPC, "%llu bytes",
				 (unsigned long long)cost);
	for (struct list *at = d->idle.next;
	     at != &d->idle && s->used_bytes > s->limit_bytes - cost;
	     at = next) {
		struct derived_file *f =
			container_of(at, struct derived_file, idle);

		next = at->next;
		/* Only a clear no: dropping what is mapped frees nothing. */
		if (holders_any(f->fd) != 1)
			drop_locked(d, f, doomed);
	}
	if (s->used_bytes > s->limit_bytes - cost)
		return log_debug(-ENOSPC, "all derived files are in use");
	return 0;
}

/* Lists a new file that its one user is about to make. */
static int add_locked(struct derived *d, const char *key, uint64_t size,
		      struct list *doomed, struct derived_file **ret)
{
	auto_free struct derived_file *f = NULL;
	size_t len = strlen(key);
	int r;

	f = calloc(1, sizeof(*f) + len + 1);
	if (!f)
		return -ENOMEM;
	f->derived = d;
	list_init(&f->idle);
	f->uses = 1;
	f->fd = -1;
	f->size = size;
	memcpy(f->key, key, len + 1);
	r = make_room_locked(d, cost_of(size), doomed);
	if (r < 0)
		return r;
	r = map_add(d->files, key, len, f);
	if (r < 0)
		return r;
	f->listed = true;
	d->stats.used_bytes += cost_of(size);
	d->stats.files++;
	*ret = take_ptr(f);
	return 0;
}

/* Ends one use. What nobody will find again is doomed with its last use. */
static void unuse_locked(struct derived *d, struct derived_file *f,
			 struct list *doomed)
{
	assert(f->uses > 0);
	if (--f->uses > 0)
		return;
	if (!f->listed) {
		list_add_tail(doomed, &f->idle);
		return;
	}
	list_add_tail(&d->idle, &f->idle);
	d->stats.idle_files++;
	if (d->stats.idle_files > DERIVED_IDLE_MAX)
		drop_locked(d,
			    container_of(list_first(&d->idle),
					 struct derived_file, idle),
			    doomed);
}

/* Waits for whoever makes the file. */
static int wait_made_locked(struct derived *d, struct derived_file *f)
{
	while (f->state == FILE_MAKING)
		(void)pthread_cond_wait(&d->made, &d->lock);
	return f->state == FILE_FAILED ? f->err : 0;
}

static void made_locked(struct derived *d, struct derived_file *f, int r,
			int fd)
{
	if (r < 0) {
		f->state = FILE_FAILED;
		f->err = r;
		unlist_locked(d, f);
	} else {
		f->state = FILE_READY;
		f->fd = fd;
		d->stats.made_total++;
		d->stats.copied_bytes_total += f->size;
	}
	(void)pthread_cond_broadcast(&d->made);
}

static int parts_size(const struct derived_part *parts, size_t count,
		      uint64_t *ret)
{
	uint64_t size = 0;

	for (size_t i = 0; i < count; i++)
		if (__builtin_add_overflow(size, parts[i].len, &size) ||
		    size > INT64_MAX - PAGE_BYTES)
			return log_debug(-EFBIG, "part %zu", i);
	*ret = size;
	return 0;
}

int derived_open_parts(struct derived *d, const char *key,
		       const struct derived_part *parts, size_t count,
		       struct derived_file **ret)
{
	struct list doomed = LIST_INIT(doomed);
	struct derived_file *f;
	bool found;
	uint64_t size;
	int r, fd = -1;

	if (strlen(key) > DERIVED_KEY_MAX)
		return log_debug(-EINVAL, "a key of %zu bytes", strlen(key));
	r = parts_size(parts, count, &size);
	if (r < 0)
		return r;

	(void)pthread_mutex_lock(&d->lock);
	f = map_find(d->files, key, strlen(key));
	found = f != NULL;
	if (found) {
		use_locked(d, f);
		r = wait_made_locked(d, f);
	} else {
		r = add_locked(d, key, size, &doomed, &f);
	}
	if (!found && r == 0) {
		(void)pthread_mutex_unlock(&d->lock);
		bury(&doomed); /* first, so that there is room */
		r = file_make(d, parts, count, size, &fd);
		(void)pthread_mutex_lock(&d->lock);
		made_locked(d, f, r, fd);
	}
	if (r < 0 && f)
		unuse_locked(d, f, &doomed);
	(void)pthread_mutex_unlock(&d->lock);
	bury(&doomed);
	if (r < 0)
		return r;
	*ret = f;
	return 0;
}

int derived_open(struct derived *d, const char *key, int src_fd, uint64_t off,
		 uint64_t len, struct derived_file **ret)
{
	const struct derived_part part = {
		.fd = src_fd,
		.offset = off,
		.len = len,
	};

	if (src_fd < 0)
		return log_debug(-EBADF, "no source");
	return derived_open_parts(d, key, &part, 1, ret);
}

void derived_release(struct derived_file *file)
{
	struct list doomed = LIST_INIT(doomed);
	struct derived *d;

	if (!file)
		return;
	d = file->derived;
	(void)pthread_mutex_lock(&d->lock);
	unuse_locked(d, file, &doomed);
	(void)pthread_mutex_unlock(&d->lock);
	bury(&doomed);
}

int derived_file_fd(const struct derived_file *file)
{
	return file->fd;
}

uint64_t derived_file_size(const struct derived_file *file)
{
	return file->size;
}

void derived_forget(struct derived *d, const char *prefix)
{
	struct list doomed = LIST_INIT(doomed);
	struct map_entry e;
	size_t at;

	(void)pthread_mutex_lock(&d->lock);
	at = map_count(d->files);
	while (map_next(d->files, &at, &e)) {
		struct derived_file *f = e.value;

		if (strncmp(f->key, prefix, strlen(prefix)) != 0)
			continue;
		if (f->uses)
			unlist_locked(d, f);
		else
			drop_locked(d, f, &doomed);
	}
	(void)pthread_mutex_unlock(&d->lock);
	bury(&doomed);
}

void derived_stats(struct derived *d, struct derived_stats *ret)
{
	(void)pthread_mutex_lock(&d->lock);
	*ret = d->stats;
	(void)pthread_mutex_unlock(&d->lock);
}

/* --- The whole --- */

int derived_new(uint64_t limit_bytes, struct derived **ret)
{
	cleanup(derived_free_cleanup) struct derived *d = NULL;
	int r;

	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	d->huge = -1;
	d->small = -1;
	d->stats.limit_bytes = limit_bytes;
	list_init(&d->idle);
	(void)pthread_mutex_init(&d->lock, NULL);
	(void)pthread_cond_init(&d->made, NULL);
	r = map_new(&d->files);
	if (r < 0)
		return r;
	instances_new(d, limit_bytes);

	*ret = take_ptr(d);
	return 0;
}

void derived_free(struct derived *d)
{
	if (!d)
		return;
	if (d->files) {
		derived_forget(d, "");
		assert(d->stats.files == 0);
	}
	map_free(d->files);
	if (d->huge >= 0)
		(void)close(d->huge);
	if (d->small >= 0)
		(void)close(d->small);
	(void)pthread_cond_destroy(&d->made);
	(void)pthread_mutex_destroy(&d->lock);
	free(d);
}
