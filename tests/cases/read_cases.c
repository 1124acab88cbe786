/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read_cases PATH...: what the readers say of weight files and checkpoints.
 *
 * For every PATH one line, "reject: why" or "accept: COUNT", the latter
 * followed by one JSON object a line for each tensor. A PATH that ends in
 * .safetensors or .gguf and is no directory is read as that file, a directory
 * as a checkpoint (its ids, file paths and storage shapes are printed then).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/buf.h"
#include "core/checkpoint.h"
#include "core/cleanup.h"
#include "core/gguf.h"
#include "core/json.h"
#include "core/safetensors.h"

struct tree {
	struct checkpoint_file *files;
	size_t count;
};

static void put_string(struct buf *out, const char *key, const char *s,
		       size_t len)
{
	(void)buf_printf(out, "\"%s\":", key);
	if (json_write_string(out, s, len, JSON_ASCII) < 0)
		(void)buf_printf(out, "null");
}

static void put_range(struct buf *out, const char *dtype, unsigned rank,
		      const uint64_t *shape, uint64_t begin, uint64_t end)
{
	(void)buf_printf(out, ",\"dtype\":\"%s\",\"shape\":[", dtype);
	for (unsigned i = 0; i < rank; i++)
		(void)buf_printf(out, "%s%llu", i ? "," : "",
				 (unsigned long long)shape[i]);
	(void)buf_printf(out, "],\"begin\":%llu,\"end\":%llu",
			 (unsigned long long)begin, (unsigned long long)end);
}

struct listing {
	struct buf out;
	size_t count;
};

static int list_tensor(void *arg, const struct tensor_info *t, struct buf *why)
{
	struct listing *l = arg;

	(void)why;
	(void)buf_printf(&l->out, "{");
	put_string(&l->out, "name", t->name, t->name_len);
	put_range(&l->out, t->dtype, t->rank, t->shape, t->begin, t->end);
	(void)buf_printf(&l->out, "}\n");
	l->count++;
	return 0;
}

static int read_file(const char *path, struct listing *l, struct buf *why)
{
	const char *dot = strrchr(path, '.');
	auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (dot && strcmp(dot, ".gguf") == 0)
		return gguf_read(fd, (uint64_t)st.st_size, list_tensor, l, why);
	return safetensors_read(fd, (uint64_t)st.st_size, list_tensor, l, why);
}

static int tree_add(struct tree *t, const char *path, uint64_t size)
{
	struct checkpoint_file *files;

	files = realloc(t->files, (t->count + 1) * sizeof(*files));
	if (!files)
		return -ENOMEM;
	t->files = files;
	t->files[t->count].path = strdup(path);
	t->files[t->count].size = size;
	return t->files[t->count++].path ? 0 : -ENOMEM;
}

static void tree_release(struct tree *t)
{
	for (size_t i = 0; i < t->count; i++)
		free((void *)t->files[i].path);
	free(t->files);
}

static void dir_close(DIR **d)
{
	if (*d)
		(void)closedir(*d);
}

/* All regular files below top/rel; links are not followed. */
static int tree_walk(struct tree *t, const char *top, const char *rel)
{
	char path[PATH_MAX];
	cleanup(dir_close) DIR *d = NULL;
	const struct dirent *e;

	(void)snprintf(path, sizeof(path), "%s/%s", top, rel);
	d = opendir(path);
	if (!d)
		return -errno;
	while ((e = readdir(d))) {
		char below[PATH_MAX / 2];
		struct stat st;
		int r = 0;

		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		(void)snprintf(below, sizeof(below), "%s%s%s", rel,
			       *rel ? "/" : "", e->d_name);
		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			return -errno;
		if (S_ISDIR(st.st_mode))
			r = tree_walk(t, top, below);
		else if (S_ISREG(st.st_mode))
			r = tree_add(t, below, (uint64_t)st.st_size);
		if (r < 0)
			return r;
	}
	return 0;
}

static int file_cmp(const void *a, const void *b)
{
	const struct checkpoint_file *x = a;
	const struct checkpoint_file *y = b;

	return strcmp(x->path, y->path);
}

static int read_tree(const char *top, struct listing *l, struct buf *why)
{
	cleanup(checkpoint_free_cleanup) struct checkpoint *c = NULL;
	cleanup(tree_release) struct tree t = { .count = 0 };
	auto_fd int fd = open(top, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int r;

	if (fd < 0)
		return -errno;
	r = tree_walk(&t, top, "");
	if (r < 0)
		return r;
	if (t.files)
		qsort(t.files, t.count, sizeof(*t.files), file_cmp);
	r = checkpoint_read(fd, t.files, t.count, &c, why);
	if (r < 0)
		return r;
	l->count = checkpoint_tensor_count(c);
	for (size_t i = 0; t.files && i < l->count; i++) {
		const struct checkpoint_tensor *x = checkpoint_tensor_at(c, i);
		const char *path = t.files[x->file].path;

		(void)buf_printf(&l->out, "{");
		put_string(&l->out, "id", x->id, x->id_len);
		(void)buf_printf(&l->out, ",");
		put_string(&l->out, "name", x->name, x->name_len);
		(void)buf_printf(&l->out, ",");
		put_string(&l->out, "file", path, strlen(path));
		put_range(&l->out, x->dtype, x->rank, x->shape, x->begin,
			  x->end);
		(void)buf_printf(&l->out, ",\"itemsize\":%u}\n", x->itemsize);
	}
	return 0;
}

static int is_dir(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int main(int argc, char *argv[])
{
	for (int i = 1; i < argc; i++) {
		cleanup(buf_release) struct buf why = BUF_INIT;
		struct listing l = { .out = BUF_INIT };
		int r;

		r = is_dir(argv[i]) ? read_tree(argv[i], &l, &why) :
				      read_file(argv[i], &l, &why);
		if (r < 0)
			(void)printf("reject: %s (errno %d)\n", why.data, -r);
		else
			(void)printf("accept: %zu\n%s", l.count, l.out.data);
		buf_release(&l.out);
	}
	return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
