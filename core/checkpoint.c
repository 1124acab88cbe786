/* SPDX-License-Identifier: Apache-2.0 */
#include "core/checkpoint_priv.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/buf.h"
#include "core/gguf.h"
#include "core/log.h"
#include "core/safetensors.h"
#include "core/tensor_range.h"
#include "core/util.h"

#define INDEX_SUFFIX ".safetensors.index.json"

/* clang-format off */
static const struct checkpoint_format formats[] = {
	{ ".safetensors", SAFETENSORS_LAYOUT, safetensors_read },
	{ ".gguf",        GGUF_LAYOUT,        gguf_read },
};
/* clang-format on */

static bool has_suffix(const char *path, const char *suffix)
{
	size_t len = strlen(path);
	size_t n = strlen(suffix);

	return len >= n && strcmp(path + len - n, suffix) == 0;
}

/* Some part of the path begins with a dot. */
static bool is_companion(const char *path)
{
	return path[0] == '.' || strstr(path, "/.");
}

static const struct checkpoint_format *format_of(const char *path)
{
	if (is_companion(path))
		return NULL;
	for (size_t i = 0; i < ARRAY_LEN(formats); i++)
		if (has_suffix(path, formats[i].suffix))
			return &formats[i];
	return NULL;
}

static bool is_index(const char *path)
{
	return !is_companion(path) && has_suffix(path, INDEX_SUFFIX);
}

bool checkpoint_is_safetensors(const char *path)
{
	return format_of(path) == &formats[0];
}

size_t checkpoint_dir_len(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Paths are shown whole: the end is what tells shards apart. */
static void show_path(struct buf *out, const char *path)
{
	for (; *path; path++) {
		bool control = (unsigned char)*path < ' ' || *path == 0x7f;

		(void)buf_append(out, control ? "?" : path, 1);
	}
}

/* Appends "PATH: " and the reason, if there is one, and returns err. */
static int refuse_file(int err, struct buf *why, const char *path,
		       const struct buf *reason)
{
	size_t from = why->len;

	if (err == -ENOMEM)
		return err;
	show_path(why, path);
	(void)buf_append(why, ": ", 2);
	(void)buf_append(why, reason->data, reason->len);
	return log_debug(err, "%s", why->data + from);
}

static int path_cmp(const void *key, const void *file)
{
	return strcmp(key, ((const struct checkpoint_file *)file)->path);
}

const struct checkpoint_file *checkpoint_file_find(
	const struct checkpoint_scan *s, const char *path)
{
	if (s->count == 0)
		return NULL;
	return bsearch(path, s->files, s->count, sizeof(*s->files), path_cmp);
}

/* Opens path below dirfd, following no link in any part of it. */
static int open_below(int dirfd, const char *path)
{
	auto_fd int dir = -1;
	char name[NAME_MAX + 1];
	const char *slash;
	struct stat st;
	int fd;

	while ((slash = strchr(path, '/'))) {
		size_t len = (size_t)(slash - path);

		if (len > NAME_MAX)
			return -ENAMETOOLONG;
		memcpy(name, path, len);
		name[len] = '\0';
		fd = openat(dir < 0 ? dirfd : dir, name,
			    O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			return -errno;
		if (dir >= 0)
			(void)close(dir);
		dir = fd;
		path = slash + 1;
	}
	/*
	 * Waits for a moment where O_NONBLOCK would fail, when somebody is
	 * just asking the kernel who has the file. Only regular files are
	 * opened so: others could make it wait for ever.
	 */
	if (fstatat(dir < 0 ? dirfd : dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return S_ISLNK(st.st_mode) ? -ELOOP : -EBADMSG;
	fd = openat(dir < 0 ? dirfd : dir, path,
		    O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int checkpoint_open_file(const struct checkpoint_scan *s,
			 const struct checkpoint_file *f, int *ret,
			 struct buf *reason)
{
	auto_fd int fd = open_below(s->dirfd, f->path);
	struct stat st;

	if (fd == -EBADMSG)
		return file_refuse(fd, reason, "it is no regular file");
	if (fd < 0) {
		errno = -fd;
		return file_refuse(fd, reason, "it cannot be opened: %m");
	}
	if (fstat(fd, &st) < 0)
		return file_refuse(-errno, reason, "its size is unknown: %m");
	if ((uint64_t)st.st_size != f->size)
		return file_refuse(-EBADMSG, reason,
				   "its size changed from %llu to %llu bytes "
				   "while it was looked at",
				   (unsigned long long)f->size,
				   (unsigned long long)st.st_size);
	*ret = take_fd(&fd);
	return 0;
}

/*
 * Turns shape and block into the storage shape of the header's contract.
 * Returns its rank; shape is changed.
 */
static unsigned storage_shape(const struct tensor_info *t, uint64_t *shape)
{
	unsigned last = t->rank - 1;

	if (t->block_elems == 1)
		return t->rank;
	assert(t->rank > 0); /* one element is no whole block */
	if (shape[last] % t->block_elems == 0) {
		shape[last] /= t->block_elems;
		return t->rank;
	}
	shape[0] = (t->end - t->begin) / t->block_bytes;
	return 1;
}

static int tensors_grow(struct checkpoint *c, struct buf *why)
{
	size_t cap = c->cap ? 2 * c->cap : 256;
	struct checkpoint_tensor *p;

	if (c->count == CHECKPOINT_TENSORS_MAX ||
	    c->name_bytes > CHECKPOINT_NAME_BYTES_MAX)
		return file_refuse(-EFBIG, why,
				   "with it the checkpoint has more than %zu "
				   "tensors or %zu bytes of their names",
				   CHECKPOINT_TENSORS_MAX,
				   CHECKPOINT_NAME_BYTES_MAX);
	if (c->count < c->cap)
		return 0;
	p = realloc(c->tensors, cap * sizeof(*p));
	if (!p)
		return -ENOMEM;
	c->tensors = p;
	c->cap = cap;
	return 0;
}

static int tensor_add(void *arg, const struct tensor_info *t, struct buf *why)
{
	struct checkpoint_scan *s = arg;
	struct checkpoint *c = s->c;
	uint64_t shape[TENSOR_RANK_MAX];
	unsigned rank;
	uint64_t *kept;
	char *name;
	int r;

	r = tensors_grow(c, why);
	if (r < 0)
		return r;
	memcpy(shape, t->shape, sizeof(shape));
	rank = storage_shape(t, shape);
	name = arena_copy(&c->arena, t->name, t->name_len);
	kept = arena_alloc(&c->arena, rank * sizeof(*kept));
	if (!name || !kept)
		return -ENOMEM;
	c->name_bytes += t->name_len + rank * sizeof(*kept);
	memcpy(kept, shape, rank * sizeof(*kept));
	c->tensors[c->count++] = (struct checkpoint_tensor){
		.id = name,
		.id_len = t->name_len,
		.name = name,
		.name_len = t->name_len,
		.file = s->file,
		.dtype = t->dtype,
		.layout = s->format->layout,
		.itemsize = t->block_bytes,
		.rank = rank,
		.shape = kept,
		.begin = t->begin,
		.end = t->end,
	};
	return 0;
}

static int weights_read(struct checkpoint_scan *s, struct buf *why)
{
	for (size_t i = 0; i < s->count; i++) {
		const struct checkpoint_file *f = &s->files[i];
		cleanup(buf_release) struct buf reason = BUF_INIT;
		auto_fd int fd = -1;
		int r;

		s->file = i;
		s->format = format_of(f->path);
		if (!s->format)
			continue;
		r = checkpoint_open_file(s, f, &fd, &reason);
		if (r == 0)
			r = s->format->read(fd, f->size, tensor_add, s,
					    &reason);
		if (r < 0)
			return refuse_file(r, why, f->path, &reason);
		s->c->weight_files++;
	}
	return 0;
}

/* "-00001-of-00003.gguf" */
#define SPLIT_DIGITS ((size_t)5)
#define SPLIT_SUFFIX_LEN (1 + SPLIT_DIGITS + 4 + SPLIT_DIGITS + 5)

struct split {
	unsigned part, count;
	size_t stem_len; /* of the path before the suffix */
};

static bool digits_read(const char *s, unsigned *ret)
{
	unsigned n = 0;

	for (size_t i = 0; i < SPLIT_DIGITS; i++) {
		if (s[i] < '0' || s[i] > '9')
			return false;
		n = 10 * n + (unsigned)(s[i] - '0');
	}
	*ret = n;
	return true;
}

static bool split_parse(const char *path, struct split *ret)
{
	size_t len = strlen(path);
	const char *s;

	if (is_companion(path) || len < SPLIT_SUFFIX_LEN)
		return false;
	ret->stem_len = len - SPLIT_SUFFIX_LEN;
	s = path + ret->stem_len;
	return s[0] == '-' && digits_read(s + 1, &ret->part) &&
	       strncmp(s + 1 + SPLIT_DIGITS, "-of-", 4) == 0 &&
	       digits_read(s + 5 + SPLIT_DIGITS, &ret->count) &&
	       strcmp(s + 5 + 2 * SPLIT_DIGITS, ".gguf") == 0 &&
	       ret->part >= 1 && ret->part <= ret->count;
}

static int part_check(const struct checkpoint_scan *s, const char *path,
		      const struct split *split, unsigned part, struct buf *why)
{
	cleanup(buf_release) struct buf other = BUF_INIT;
	cleanup(buf_release) struct buf reason = BUF_INIT;
	int r;

	if (part < 1 || part > split->count)
		return 0;
	r = buf_printf(&other, "%.*s-%05u-of-%05u.gguf", (int)split->stem_len,
		       path, part, split->count);
	if (r < 0)
		return r;
	if (checkpoint_file_find(s, other.data))
		return 0;
	(void)buf_printf(&reason,
			 "it is missing, though it is part %u of the "
			 "split that ",
			 part);
	show_path(&reason, path);
	(void)buf_printf(&reason, " belongs to");
	return refuse_file(-EBADMSG, why, other.data, &reason);
}

/* Every part has its neighbours, so every split is complete. */
static int splits_check(const struct checkpoint_scan *s, struct buf *why)
{
	for (size_t i = 0; i < s->count; i++) {
		const char *path = s->files[i].path;
		struct split split;
		int r;

		if (!split_parse(path, &split))
			continue;
		if ((r = part_check(s, path, &split, split.part - 1, why)) <
			    0 ||
		    (r = part_check(s, path, &split, split.part + 1, why)) < 0)
			return r;
	}
	return 0;
}

static int bytes_cmp(const char *a, size_t a_len, const char *b, size_t b_len)
{
	int r = memcmp(a, b, a_len < b_len ? a_len : b_len);

	return r ? r : (a_len > b_len) - (a_len < b_len);
}

/* By file, then name: for the indexes. */
static int place_cmp(const void *a, const void *b)
{
	const struct checkpoint_tensor *x = a;
	const struct checkpoint_tensor *y = b;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return bytes_cmp(x->name, x->name_len, y->name, y->name_len);
}

static int id_cmp(const void *a, const void *b)
{
	const struct checkpoint_tensor *x = a;
	const struct checkpoint_tensor *y = b;

	return bytes_cmp(x->id, x->id_len, y->id, y->id_len);
}

static void tensors_sort(struct checkpoint *c,
			 int (*cmp)(const void *, const void *))
{
	if (c->count)
		qsort(c->tensors, c->count, sizeof(*c->tensors), cmp);
}

bool checkpoint_has_tensor(const struct checkpoint *c, size_t file,
			   const char *name, size_t len)
{
	const struct checkpoint_tensor key = {
		.file = file,
		.name = name,
		.name_len = len,
	};

	return c->count && bsearch(&key, c->tensors, c->count,
				   sizeof(*c->tensors), place_cmp);
}

static int indexes_check(struct checkpoint_scan *s, struct buf *why)
{
	for (size_t i = 0; i < s->count; i++) {
		cleanup(buf_release) struct buf reason = BUF_INIT;
		int r;

		if (!is_index(s->files[i].path))
			continue;
		r = checkpoint_index_check(s, &s->files[i], &reason);
		if (r < 0)
			return refuse_file(r, why, s->files[i].path, &reason);
	}
	return 0;
}

/* Puts the first len bytes of prefix, and a slash if asked, before the name. */
static int id_set(struct checkpoint *c, struct checkpoint_tensor *t,
		  const char *prefix, size_t len, bool slash)
{
	size_t front = len + slash;
	char *id;

	if (front == 0)
		return 0;
	id = arena_alloc(&c->arena, front + t->name_len + 1);
	if (!id)
		return -ENOMEM;
	memcpy(id, prefix, len);
	if (slash)
		id[len] = '/';
	memcpy(id + front, t->name, t->name_len);
	t->id = id;
	t->id_len = front + t->name_len;
	return 0;
}

static int id_set_dir(const struct checkpoint_scan *s,
		      struct checkpoint_tensor *t)
{
	const char *path = s->files[t->file].path;

	return id_set(s->c, t, path, checkpoint_dir_len(path), false);
}

/*
 * Unique among its like: a path is never a directory of another path, and a
 * file holds a name once.
 */
static int id_set_path(const struct checkpoint_scan *s,
		       struct checkpoint_tensor *t)
{
	const char *path = s->files[t->file].path;

	return id_set(s->c, t, path, strlen(path), true);
}

typedef int id_fn(const struct checkpoint_scan *s, struct checkpoint_tensor *t);

/* Sorts by id and applies fn to every tensor whose id is not its own. */
static int ids_tell_apart(const struct checkpoint_scan *s, id_fn *fn,
			  bool *ret_shared)
{
	struct checkpoint_tensor *t = s->c->tensors;
	size_t count = s->c->count;
	size_t next;

	tensors_sort(s->c, id_cmp);
	*ret_shared = false;
	for (size_t i = 0; i < count; i = next) {
		int r = 0;

		next = i + 1;
		while (next < count && id_cmp(&t[i], &t[next]) == 0)
			next++;
		if (next == i + 1)
			continue;
		*ret_shared = true;
		for (size_t k = i; k < next && r == 0 && fn; k++)
			r = fn(s, &t[k]);
		if (r < 0)
			return r;
	}
	return 0;
}

static int ids_assign(const struct checkpoint_scan *s)
{
	bool shared;
	int r;

	if ((r = ids_tell_apart(s, id_set_dir, &shared)) < 0 || !shared ||
	    (r = ids_tell_apart(s, id_set_path, &shared)) < 0 || !shared ||
	    (r = ids_tell_apart(s, NULL, &shared)) < 0 || !shared)
		return r;
	for (size_t i = 0; i < s->c->count && r == 0; i++)
		r = id_set_path(s, &s->c->tensors[i]);
	tensors_sort(s->c, id_cmp);
	return r;
}

int checkpoint_read(int dirfd, const struct checkpoint_file *files,
		    size_t count, struct checkpoint **ret, struct buf *why)
{
	cleanup(checkpoint_free_cleanup) struct checkpoint *c = NULL;
	struct checkpoint_scan s = { .dirfd = dirfd,
				     .files = files,
				     .count = count };
	int r;

	for (size_t i = 1; i < count; i++)
		if (strcmp(files[i - 1].path, files[i].path) >= 0)
			return log_debug(-EINVAL, "files are not sorted");
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	s.c = c;

	if ((r = splits_check(&s, why)) < 0 || (r = weights_read(&s, why)) < 0)
		return r;
	tensors_sort(c, place_cmp);
	if ((r = indexes_check(&s, why)) < 0 || (r = ids_assign(&s)) < 0)
		return r;
	*ret = take_ptr(c);
	return 0;
}

void checkpoint_free(struct checkpoint *c)
{
	if (!c)
		return;
	arena_release(&c->arena);
	free(c->tensors);
	free(c);
}

size_t checkpoint_weight_file_count(const struct checkpoint *c)
{
	return c->weight_files;
}

size_t checkpoint_tensor_count(const struct checkpoint *c)
{
	return c->count;
}

const struct checkpoint_tensor *checkpoint_tensor_at(const struct checkpoint *c,
						     size_t i)
{
	assert(i < c->count);
	return &c->tensors[i];
}

const struct checkpoint_tensor *checkpoint_tensor_find(
	const struct checkpoint *c, const char *id, size_t id_len)
{
	const struct checkpoint_tensor key = { .id = id, .id_len = id_len };

	if (c->count == 0)
		return NULL;
	return bsearch(&key, c->tensors, c->count, sizeof(*c->tensors), id_cmp);
}
