/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as model.safetensors.index.json beside two shards: if the
 * checkpoint is read, every entry of the index names a tensor that is in the
 * shard it names; if not, the reason begins with the name of the index.
 */
#include <endian.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/checkpoint.h"
#include "core/json.h"
#include "core/util.h"
#include "fuzz.h"

#define REQUIRE(cond)                                                          \
	do {                                                                   \
		if (!(cond))                                                   \
			abort();                                               \
	} while (0)

#define INDEX "model.safetensors.index.json"

static const struct {
	const char *path;
	const char *tensor;
} shards[] = { { "a.safetensors", "a" }, { "b.safetensors", "b" } };

static struct checkpoint_file files[ARRAY_LEN(shards) + 1];
static char top[] = "/tmp/fuzz-index-XXXXXX";
static int top_fd = -1;

static void drop_tree(void)
{
	for (size_t i = 0; i < ARRAY_LEN(files); i++)
		(void)unlinkat(top_fd, files[i].path, 0);
	(void)rmdir(top);
}

static void put_file(struct checkpoint_file *f, const char *path,
		     const void *bytes, size_t len)
{
	auto_fd int fd = openat(top_fd, path,
				O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	REQUIRE(fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
	*f = (struct checkpoint_file){ .path = path, .size = len };
}

static void put_shard(size_t i)
{
	cleanup(buf_release) struct buf header = BUF_INIT;
	cleanup(buf_release) struct buf all = BUF_INIT;
	uint64_t len;

	REQUIRE(buf_printf(&header,
			   "{\"%s\":{\"dtype\":\"U8\",\"shape\":[0],"
			   "\"data_offsets\":[0,0]}}",
			   shards[i].tensor) == 0);
	len = htole64(header.len);
	REQUIRE(buf_append(&all, &len, sizeof(len)) == 0);
	REQUIRE(buf_append(&all, header.data, header.len) == 0);
	put_file(&files[i], shards[i].path, all.data, all.len);
}

static void put_tree(void)
{
	REQUIRE(mkdtemp(top));
	top_fd = open(top, O_PATH | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(top_fd >= 0);
	for (size_t i = 0; i < ARRAY_LEN(shards); i++)
		put_shard(i);
	put_file(&files[ARRAY_LEN(shards)], INDEX, "", 0);
	REQUIRE(atexit(drop_tree) == 0);
}

static void require_right(const uint8_t *data, size_t size)
{
	cleanup(json_doc_free_cleanup) struct json_doc *doc = NULL;
	const struct json_value *map;

	REQUIRE(json_parse((const char *)data, size, &doc, NULL) == 0);
	map = json_find(json_doc_root(doc), "weight_map");
	REQUIRE(map);
	for (const struct json_value *v = json_first(map); v;
	     v = json_next(v)) {
		bool right = false;

		for (size_t i = 0; i < ARRAY_LEN(shards); i++)
			if (strcmp(json_string(v, NULL), shards[i].path) == 0)
				right = strcmp(json_key(v, NULL),
					       shards[i].tensor) == 0;
		REQUIRE(right);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup(checkpoint_free_cleanup) struct checkpoint *c = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;

	if (top_fd < 0)
		put_tree();
	put_file(&files[ARRAY_LEN(shards)], INDEX, data, size);
	if (checkpoint_read(top_fd, files, ARRAY_LEN(files), &c, &why) == 0) {
		REQUIRE(checkpoint_tensor_count(c) == ARRAY_LEN(shards));
		require_right(data, size);
	} else {
		REQUIRE(!c);
		REQUIRE(strncmp(why.data, INDEX ": ", strlen(INDEX ": ")) == 0);
	}
	return 0;
}
