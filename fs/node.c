/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/node.h"

#include <assert.h>
#include <sys/sysmacros.h>

#include "core/cleanup.h"
#include "core/log.h"
#include "core/map.h"
#include "core/util.h"
#include "fs/control.h"
#include "fs/notify.h"

/* Virtual things have numbers of their own, apart from those of real files. */
#define SYNTHETIC_INO ((uint64_t)1 << 63)
#define BLOCK_BYTES 512
/* What is left of a key beside the kind. */
#define INDEX_BITS 56
/* Of a directory: tools that count on 2 would expect none in it. */
#define NLINK_UNKNOWN 1

struct node_table {
	pthread_mutex_t lock;
	struct map *nodes; /* by struct node_key; holds no reference */
	size_t files;      /* under lock; FILE nodes in it */
	size_t files_told; /* under lock; when the notifier was last told */
	size_t hand;       /* under lock; where the last search stopped */
};

/* Bytes of the map's key, so without padding. */
struct node_key {
	uint64_t object;
	uint64_t part; /* kind and index */
};
static_assert(sizeof(struct node_key) == 16, "no padding in a key");

static struct node_key key_of(enum node_kind kind, const void *object,
			      size_t index)
{
	return (struct node_key){
		.object = (uintptr_t)object,
		.part = ((uint64_t)kind << INDEX_BITS) | (uint64_t)index,
	};
}

static const void *object_of(const struct node *node)
{
	if (node->file)
		return node->file;
	if (node->group)
		return node->group;
	return node->dir;
}

/* What it is found by in the table. room is for one that isn't stored. */
static const void *key_of_node(const struct node *node, struct node_key *room,
			       size_t *ret_len)
{
	if (node->names) {
		*ret_len = node->names->key_len;
		return node->names->key;
	}
	*room = key_of(node->kind, object_of(node), node->index);
	*ret_len = sizeof(*room);
	return room;
}

/* splitmix64: spreads, so that parent and part don't cancel out. */
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return x ^ (x >> 31);
}

static uint64_t synthetic_ino(uint64_t parent, enum node_kind kind,
			      size_t index)
{
	return SYNTHETIC_INO |
	       mix(mix(parent) ^
		   (((uint64_t)kind << INDEX_BITS) | (uint64_t)index));
}

int node_table_new(struct node_table **ret)
{
	auto_free struct node_table *table = calloc(1, sizeof(*table));
	int r;

	if (!table)
		return -ENOMEM;
	r = map_new(&table->nodes);
	if (r < 0)
		return r;
	(void)pthread_mutex_init(&table->lock, NULL);
	*ret = take_ptr(table);
	return 0;
}

/* Releases what the node stands for; it is in no table any more. */
static void node_free(struct fs *fs, struct node *node)
{
	passthrough_drop(fs, node);
	if (node->fd >= 0)
		(void)close(node->fd);
	node_unref(fs, node->table, 1);
	weight_tensors_unref(node->tensors);
	weight_file_unref(node->file);
	weight_group_unref(node->group);
	weight_dir_unref(node->dir);
	(void)pthread_mutex_destroy(&node->lock);
	free(node->names);
	free(node->last);
	free(node->error);
	free(node);
}

static void free_run(struct work *work)
{
	struct node *node = container_of(work, struct node, work);
	struct fs *fs = node->fs;

	node_free(fs, node);
	fs_end(fs);
}

static void free_later(struct fs *fs, struct node *node)
{
	node->work.run = free_run;
	node->work.priority = WORK_BULK;
	fs_begin(fs);
	workers_submit(fs->workers, &node->work);
}

void node_table_free(struct fs *fs, struct node_table *table)
{
	struct map_entry e;
	size_t at;

	if (!table)
		return;
	/* The kernel need not forget what it knew when a mount goes away. */
	at = map_count(table->nodes);
	while (map_next(table->nodes, &at, &e)) {
		struct node *node = e.value;

		(void)map_take(table->nodes, e.key, e.len);
		node->table = NULL; /* goes in this loop too */
		node_free(fs, node);
	}
	map_free(table->nodes);
	(void)pthread_mutex_destroy(&table->lock);
	free(table);
}

struct node *node_of(struct fs *fs, fuse_ino_t ino)
{
	static_assert(sizeof(ino) >= sizeof(void *), "a node fits its number");
	if (ino == FUSE_ROOT_ID)
		return fs->root;
	return (struct node *)(uintptr_t)ino;
}

fuse_ino_t node_id(const struct fs *fs, const struct node *node)
{
	return node == fs->root ? FUSE_ROOT_ID : (fuse_ino_t)(uintptr_t)node;
}

/* The node under the key with one more reference, or NULL. */
static struct node *find_bytes(struct fs *fs, const void *key, size_t len)
{
	struct node *node;

	(void)pthread_mutex_lock(&fs->nodes->lock);
	node = map_find(fs->nodes->nodes, key, len);
	if (node)
		node->refs++;
	(void)pthread_mutex_unlock(&fs->nodes->lock);
	return node;
}

static struct node *find(struct fs *fs, const struct node_key *key)
{
	return find_bytes(fs, key, sizeof(*key));
}

/* True when there are so many that some should go. */
static bool count_file_locked(struct fs *fs)
{
	struct node_table *t = fs->nodes;

	t->files++;
	if (t->files < fs->files_max)
		t->files_told = 0;
	else if (t->files_told == 0 ||
		 t->files > t->files_told + fs->files_max / 8)
		t->files_told = t->files;
	else
		return false;
	return t->files_told != 0;
}

/*
 * Adds a node that was made for a thing, or gives it up for the one that
 * somebody else added meanwhile. Takes it over in any case.
 */
static int add(struct fs *fs, struct node *node, struct node **ret)
{
	struct node_key room;
	struct node *there;
	bool many = false;
	const void *key;
	size_t len;
	int r = 0;

	node->fs = fs;
	key = key_of_node(node, &room, &len);
	(void)pthread_mutex_lock(&fs->nodes->lock);
	there = map_find(fs->nodes->nodes, key, len);
	if (there)
		there->refs++;
	else
		r = map_add(fs->nodes->nodes, key, len, node);
	if (!there && r == 0 && node->file)
		many = count_file_locked(fs);
	(void)pthread_mutex_unlock(&fs->nodes->lock);

	if (many)
		notifier_shrink(fs->notifier);
	if (there || r < 0)
		node_free(fs, node);
	if (r < 0)
		return r;
	*ret = there ? there : node;
	return 0;
}

static struct node *node_new(enum node_kind kind, size_t index)
{
	struct node *node = calloc(1, sizeof(*node));

	if (!node)
		return NULL;
	node->kind = kind;
	node->index = index;
	node->refs = 1;
	node->fd = -1;
	(void)pthread_mutex_init(&node->lock, NULL);
	return node;
}

int node_of_dir(struct fs *fs, struct weight_dir *dir, struct node **ret)
{
	cleanup(weight_dir_unref_cleanup) struct weight_dir *owned = dir;
	struct node_key key = key_of(NODE_DIR, dir, 0);
	struct node *node = find(fs, &key);
	struct stat st;
	int r;

	if (node) {
		*ret = node;
		return 0;
	}
	r = weight_dir_stat(dir, &st);
	if (r < 0)
		return r;
	node = node_new(NODE_DIR, 0);
	if (!node)
		return -ENOMEM;
	node->ino = st.st_ino;
	node->dir = take_ptr(owned);
	return add(fs, node, ret);
}

int node_of_file(struct fs *fs, struct weight_file *file, bool group_root,
		 struct node **ret)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *owned = file;
	struct node_key key = key_of(NODE_FILE, file, 0);
	struct node *node = find(fs, &key);
	struct stat st;
	int r;

	if (node) {
		*ret = node;
		return 0;
	}
	r = weight_file_stat(file, &st);
	if (r < 0)
		return r;
	node = node_new(NODE_FILE, 0);
	if (!node)
		return -ENOMEM;
	node->ino = st.st_ino;
	node->group_root = group_root;
	node->file = take_ptr(owned);
	return add(fs, node, ret);
}

/* The root of a generation may change for as long as that is staged. */
static void stat_root(struct weight_group *group, struct stat *ret)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *root = NULL;

	if (weight_group_root(group, &root) == 0)
		(void)weight_file_stat(root, ret);
}

/*
 * A virtual node below or beside parent. Either dir or group, borrowed, is
 * what it belongs to, or neither.
 */
static int node_of_virtual(struct fs *fs, enum node_kind kind, size_t index,
			   const struct node *parent, struct weight_dir *dir,
			   struct weight_group *group, struct node **ret)
{
	const void *object = group ? (const void *)group : dir;
	struct node_key key = key_of(kind, object, index);
	struct node *node = find(fs, &key);

	if (node) {
		*ret = node;
		return 0;
	}
	node = node_new(kind, index);
	if (!node)
		return -ENOMEM;
	node->ino = synthetic_ino(parent->ino, kind, index);
	node->dir = dir ? weight_dir_ref(dir) : NULL;
	node->group = group ? weight_group_ref(group) : NULL;
	node->like = parent->like;
	if (parent->kind == NODE_FILE)
		(void)weight_file_stat(parent->file, &node->like);
	else if (group)
		stat_root(group, &node->like);
	node->like.st_size = 0;
	node->like.st_blocks = 0;
	return add(fs, node, ret);
}

int node_of_staging(struct fs *fs, struct node *lineage, struct node **ret)
{
	return node_of_virtual(fs, NODE_STAGING, 0, lineage, lineage->dir, NULL,
			       ret);
}

int node_of_control(struct fs *fs, struct node *parent, struct node **ret)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group = NULL;
	struct node *node;
	int r;

	if (parent->kind == NODE_FILE) {
		group = weight_file_group(parent->file);
		return node_of_virtual(fs, NODE_GROUP_CONTROL, 0, parent, NULL,
				       group, ret);
	}
	r = node_of_virtual(fs, NODE_ROOT_CONTROL, 0, parent, NULL, NULL,
			    &node);
	if (r < 0)
		return r;
	node->like.st_uid = geteuid();
	node->like.st_gid = getegid();
	node->like.st_atim = fs->started;
	node->like.st_mtim = fs->started;
	node->like.st_ctim = fs->started;
	*ret = node;
	return 0;
}

int node_of_text(struct fs *fs, struct node *control, size_t index,
		 struct node **ret)
{
	struct node *node;
	int r;

	r = node_of_virtual(fs,
			    control->group ? NODE_GROUP_TEXT : NODE_ROOT_TEXT,
			    index, control, NULL, control->group, &node);
	if (r < 0)
		return r;
	r = control_prepare(node);
	if (r < 0) {
		node_unref(fs, node, 1);
		return r;
	}
	*ret = node;
	return 0;
}

int node_of_tensors(struct fs *fs, struct node *control, struct node **ret)
{
	cleanup(weight_tensors_unref_cleanup) struct weight_tensors *tensors =
		NULL;
	struct node *node;
	int r;

	r = weight_group_tensors(control->group, &tensors);
	if (r < 0)
		return r;
	r = node_of_virtual(fs, NODE_TENSORS, 0, control, NULL, control->group,
			    &node);
	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&node->lock);
	if (!node->tensors)
		node->tensors = take_ptr(tensors);
	(void)pthread_mutex_unlock(&node->lock);
	*ret = node;
	return 0;
}

/* The directories on the way to a file. */
struct way {
	mode_t mode; /* what all of them allow */
	uid_t uid;   /* of the first */
	gid_t gid;
	bool mixed_uid, mixed_gid; /* others have another one */
};

static void way_add(struct way *way, const struct stat *dir)
{
	if (way->mode == 0) {
		way->mode = ~(mode_t)0;
		way->uid = dir->st_uid;
		way->gid = dir->st_gid;
	}
	way->mode &= dir->st_mode;
	way->mixed_uid |= dir->st_uid != way->uid;
	way->mixed_gid |= dir->st_gid != way->gid;
}

/*
 * Which of the file's read bits are worth anything to those who have to come
 * this way. Who has another place in a directory than in the file passes only
 * where all do.
 */
static mode_t way_passable(const struct way *way, const struct stat *file)
{
	const mode_t all = S_IXGRP | S_IXOTH;
	bool everybody = (way->mode & all) == all;
	bool same_gid = !way->mixed_gid && way->gid == file->st_gid;
	mode_t mask = 0;

	if (everybody || (!way->mixed_uid && way->uid == file->st_uid))
		mask |= S_IRUSR;
	if (everybody || (same_gid && way->mode & S_IXGRP))
		mask |= S_IRGRP;
	if (everybody || (same_gid && way->mode & S_IXOTH))
		mask |= S_IROTH;
	return mask;
}

/*
 * The file with that path below the root of a group, with a reference. way: the
 * directories before it, or NULL.
 */
static int find_in_group(struct weight_group *group, const char *path,
			 struct way *way, struct weight_file **ret)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *at = NULL;
	auto_free char *copy = strdup(path);
	char *rest = copy;
	struct stat st;
	int r;

	if (!copy)
		return -ENOMEM;
	r = weight_group_root(group, &at);
	for (char *name = strsep(&rest, "/"); name && r == 0;
	     name = strsep(&rest, "/")) {
		struct weight_file *next = NULL;

		r = way ? weight_file_stat(at, &st) : 0;
		if (r == 0)
			r = weight_file_lookup(at, name, &next);
		if (r < 0)
			return r;
		if (way)
			way_add(way, &st);
		weight_file_unref(at);
		at = next;
	}
	if (r == 0)
		*ret = take_ptr(at);
	return r;
}

/*
 * Owner, mode and times of the file that holds a tensor, so that nobody reads
 * through a tensor what he may not read as a file.
 */
static int tensor_like(struct weight_group *group, const char *path,
		       struct stat *ret)
{
	cleanup(weight_file_unref_cleanup) struct weight_file *file = NULL;
	struct way way = { 0 };
	struct stat st;
	int r = find_in_group(group, path, &way, &file);

	if (r == 0)
		r = weight_file_stat(file, &st);
	if (r < 0)
		return r;
	st.st_mode &= S_IFMT | way_passable(&way, &st);
	*ret = st;
	return 0;
}

int node_tensor_file(const struct node *node, struct weight_file **ret)
{
	return find_in_group(node->group, node_tensor(node)->path, NULL, ret);
}

/* As tensor_like(); most tensors are in the same file as the one before. */
static int tensor_like_cached(struct node *tensors, const char *path,
			      struct stat *ret)
{
	struct node_like like = { .path = path };
	bool known;
	int r;

	(void)pthread_mutex_lock(&tensors->lock);
	known = tensors->last && strcmp(tensors->last->path, path) == 0;
	if (known)
		*ret = tensors->last->st;
	(void)pthread_mutex_unlock(&tensors->lock);
	if (known)
		return 0;
	r = tensor_like(tensors->group, path, &like.st);
	if (r < 0)
		return r;
	*ret = like.st;
	(void)pthread_mutex_lock(&tensors->lock);
	if (!tensors->last)
		tensors->last = malloc(sizeof(*tensors->last));
	if (tensors->last)
		*tensors->last = like;
	(void)pthread_mutex_unlock(&tensors->lock);
	return 0;
}

int node_of_tensor(struct fs *fs, struct node *tensors, size_t index,
		   struct node **ret)
{
	const struct weight_tensor *t =
		weight_tensors_at(tensors->tensors, index);
	struct node_key key = key_of(NODE_TENSOR, tensors->group, index);
	struct node *node = find(fs, &key);
	int r;

	if (node) {
		*ret = node;
		return 0;
	}
	node = node_new(NODE_TENSOR, index);
	if (!node)
		return -ENOMEM;
	node->ino = synthetic_ino(tensors->ino, NODE_TENSOR, index);
	node->group = weight_group_ref(tensors->group);
	node->table = node_ref(fs, tensors);
	r = tensor_like_cached(tensors, t->path, &node->like);
	if (r < 0) {
		node_free(fs, node);
		return r;
	}
	node->like.st_size = (off_t)t->len;
	return add(fs, node, ret);
}

const struct weight_tensor *node_tensor(const struct node *node)
{
	assert(node->kind == NODE_TENSOR);
	return weight_tensors_at(node->table->tensors, node->index);
}

int node_of_operations(struct fs *fs, struct node *control, struct node **ret)
{
	return node_of_virtual(fs, NODE_OPERATIONS, 0, control, NULL, NULL,
			       ret);
}

int node_of_operation(struct fs *fs, struct node *operations, uint64_t id,
		      struct node **ret)
{
	if (id >> INDEX_BITS != 0)
		return -ENOENT;
	return node_of_virtual(fs, NODE_OPERATION, (size_t)id, operations, NULL,
			       NULL, ret);
}

/*
 * The names of a place: those of parent and one more, or none of both. The key
 * is longer than those of all others, or equal to one that they can't have.
 */
static int names_new(enum weight_tree_names kind,
		     const struct node_names *parent, const char *name,
		     struct node_names **ret)
{
	const struct node_key start = key_of(NODE_NAMES, NULL, kind);
	size_t start_len = parent ? parent->key_len : sizeof(start);
	size_t name_len = name ? strlen(name) + 1 : 0;
	struct node_names *n = malloc(sizeof(*n) + start_len + name_len);

	if (!n)
		return -ENOMEM;
	*n = (struct node_names){ .kind = kind };
	n->key_len = start_len + name_len;
	memcpy(n->key, parent ? (const void *)parent->key : &start, start_len);
	if (name)
		memcpy(n->key + start_len, name, name_len);
	for (const char *at = n->key + sizeof(start); at < n->key + n->key_len;
	     at += strlen(at) + 1)
		n->parts[n->depth++] = at;
	*ret = n;
	return 0;
}

/* Takes the names over. */
static int node_of_place(struct fs *fs, enum node_kind kind,
			 const struct node *parent, struct node_names *names,
			 struct node **ret)
{
	static const uint8_t no_secret[16];
	auto_free struct node_names *owned = names;
	struct node *node = find_bytes(fs, names->key, names->key_len);

	if (node) {
		*ret = node;
		return 0;
	}
	node = node_new(kind, 0);
	if (!node)
		return -ENOMEM;
	node->ino =
		SYNTHETIC_INO | map_hash(no_secret, names->key, names->key_len);
	node->names = take_ptr(owned);
	node->like = parent->like;
	return add(fs, node, ret);
}

int node_of_names(struct fs *fs, struct node *control,
		  enum weight_tree_names kind, struct node **ret)
{
	struct node_names *names;
	int r = names_new(kind, NULL, NULL, &names);

	return r < 0 ? r : node_of_place(fs, NODE_NAMES, control, names, ret);
}

bool node_has_texts(const struct node *names)
{
	return names->names->depth ==
	       WEIGHT_TREE_LINEAGE_DEPTH -
		       (names->names->kind == WEIGHT_TREE_CLAIMS);
}

int node_of_name(struct fs *fs, struct node *names, const char *name,
		 struct node **ret)
{
	enum node_kind kind =
		node_has_texts(names) ? NODE_NAMED_TEXT : NODE_NAMES;
	struct node_names *mine;
	int r = names_new(names->names->kind, names->names, name, &mine);

	return r < 0 ? r : node_of_place(fs, kind, names, mine, ret);
}

struct node *node_find_dir(struct fs *fs, struct weight_dir *dir)
{
	struct node_key key = key_of(NODE_DIR, dir, 0);

	return find(fs, &key);
}

struct node *node_find_file(struct fs *fs, struct weight_file *file)
{
	struct node_key key = key_of(NODE_FILE, file, 0);

	return find(fs, &key);
}

static bool is_idle_file(struct node *node)
{
	bool idle;

	if (!node->file || S_ISDIR(weight_file_type(node->file)))
		return false;
	(void)pthread_mutex_lock(&node->lock);
	idle = node->opens == 0;
	(void)pthread_mutex_unlock(&node->lock);
	return idle;
}

/* Entries of the table from *at down. Returns how many were stored. */
static size_t take_idle_locked(struct node_table *t, size_t *at,
			       struct node **ret, size_t count)
{
	struct map_entry e;
	size_t found = 0;

	while (found < count && map_next(t->nodes, at, &e)) {
		if (!is_idle_file(e.value))
			continue;
		ret[found] = e.value;
		ret[found++]->refs++;
	}
	return found;
}

size_t node_idle_files(struct fs *fs, struct node **ret, size_t count)
{
	struct node_table *t = fs->nodes;
	size_t top, found;

	(void)pthread_mutex_lock(&t->lock);
	top = map_count(t->nodes);
	if (t->hand > top)
		t->hand = top;
	found = take_idle_locked(t, &t->hand, ret, count);
	if (found < count) {
		t->hand = top;
		found += take_idle_locked(t, &t->hand, ret + found,
					  count - found);
	}
	(void)pthread_mutex_unlock(&t->lock);
	return found;
}

struct node *node_ref(struct fs *fs, struct node *node)
{
	(void)pthread_mutex_lock(&fs->nodes->lock);
	node->refs++;
	(void)pthread_mutex_unlock(&fs->nodes->lock);
	return node;
}

void node_unref(struct fs *fs, struct node *node, uint64_t count)
{
	bool last;

	if (!node)
		return;
	(void)pthread_mutex_lock(&fs->nodes->lock);
	assert(node->refs >= count);
	node->refs -= count;
	last = node->refs == 0;
	if (last) {
		struct node_key room;
		size_t len;
		const void *key = key_of_node(node, &room, &len);

		(void)map_take(fs->nodes->nodes, key, len);
		fs->nodes->files -= node->file != NULL;
	}
	(void)pthread_mutex_unlock(&fs->nodes->lock);
	if (!last)
		return;
	/* The last close of an unlinked file frees its blocks: that waits. */
	if (node->file && S_ISREG(weight_file_type(node->file)))
		free_later(fs, node);
	else
		node_free(fs, node);
}

struct weight_group *node_group(const struct node *node)
{
	if (node->file)
		return weight_file_group(node->file);
	return node->group ? weight_group_ref(node->group) : NULL;
}

bool node_is_published(const struct node *node)
{
	cleanup(weight_group_unref_cleanup) struct weight_group *group =
		node_group(node);

	return group && weight_group_state(group) == WEIGHT_GROUP_PUBLISHED;
}

bool node_is_lineage(const struct node *node)
{
	return node->kind == NODE_DIR &&
	       weight_dir_depth(node->dir) == WEIGHT_TREE_LINEAGE_DEPTH;
}

double node_timeout(const struct node *node)
{
	switch (node->kind) {
	case NODE_ROOT_CONTROL:
	case NODE_TENSORS:
	case NODE_TENSOR:
	case NODE_OPERATIONS:
	case NODE_NAMES: /* nothing of it ever goes */
		return FS_TIMEOUT_LONG_S;
	case NODE_FILE:
	case NODE_GROUP_CONTROL:
		return node_is_published(node) ? FS_TIMEOUT_LONG_S :
						 FS_TIMEOUT_SHORT_S;
	case NODE_GROUP_TEXT:
		return node->fd >= 0 ? FS_TIMEOUT_LONG_S : 0;
	case NODE_ROOT_TEXT:
	case NODE_OPERATION:
	case NODE_NAMED_TEXT:
		return 0;
	default:
		return FS_TIMEOUT_SHORT_S;
	}
}

/*
 * What exists here only has the owner and times of something else. In a
 * generation it tells all names, so it is open to those who may list the root.
 */
static void stat_virtual(const struct node *node, mode_t mode, struct stat *ret)
{
	*ret = node->like;
	if (node->kind == NODE_GROUP_CONTROL || node->kind == NODE_GROUP_TEXT)
		stat_root(node->group, ret);
	if (node->group && node->kind != NODE_TENSOR)
		mode &= S_IFMT | (ret->st_mode & 0777);
	ret->st_size = node->like.st_size;
	ret->st_ino = node->ino;
	ret->st_mode = mode;
	ret->st_nlink = S_ISDIR(mode) ? 2 : 1;
	ret->st_blocks = (ret->st_size + BLOCK_BYTES - 1) / BLOCK_BYTES;
}

static int stat_text(const struct node *node, struct stat *ret)
{
	struct stat st;

	stat_virtual(node, S_IFREG | control_mode(node), ret);
	if (node->fd < 0)
		return 0;
	if (fstat(node->fd, &st) != 0)
		return -errno;
	ret->st_size = st.st_size;
	ret->st_blocks = st.st_blocks;
	ret->st_mtim = st.st_mtim;
	return 0;
}

/* It tells of one revision, so it is open to those who may read that. */
static int stat_operation(const struct node *node, struct stat *ret)
{
	struct stat like;
	int r = weight_tree_operation_stat(node->fs->store, node->index, &like);

	if (r < 0)
		return r;
	stat_virtual(node, S_IFREG | (like.st_mode & 0444), ret);
	ret->st_uid = like.st_uid;
	ret->st_gid = like.st_gid;
	ret->st_atim = like.st_atim;
	ret->st_mtim = like.st_mtim;
	ret->st_ctim = like.st_ctim;
	return 0;
}

int node_stat(struct node *node, struct stat *ret)
{
	struct stat st = { 0 };
	int r = 0;

	switch (node->kind) {
	case NODE_DIR:
		r = weight_dir_stat(node->dir, &st);
		if (node_is_lineage(node))
			st.st_nlink = NLINK_UNKNOWN;
		break;
	case NODE_STAGING:
		r = weight_dir_stat(node->dir, &st);
		st.st_ino = node->ino;
		st.st_nlink = NLINK_UNKNOWN;
		break;
	case NODE_FILE:
		r = weight_file_stat(node->file, &st);
		break;
	case NODE_ROOT_TEXT:
	case NODE_GROUP_TEXT:
	case NODE_NAMED_TEXT:
		r = stat_text(node, &st);
		break;
	case NODE_NAMES:
		stat_virtual(node, S_IFDIR | CONTROL_CLOSED_DIR_MODE, &st);
		st.st_nlink = NLINK_UNKNOWN;
		break;
	case NODE_TENSOR:
		stat_virtual(node, S_IFREG | (node->like.st_mode & 0777), &st);
		break;
	case NODE_OPERATION:
		r = stat_operation(node, &st);
		break;
	default:
		stat_virtual(node, S_IFDIR | 0555, &st);
		break;
	}
	if (r < 0)
		return r;
	st.st_blksize = WEIGHT_FILE_BLKSIZE;
	*ret = st;
	return 0;
}

/* A change of the bytes shows in the time of the inode, which nobody can set. */
bool node_keeps_cache(struct node *node, int fd)
{
	struct timespec now = { 0 };
	struct stat st;
	bool same;

	if (node_is_published(node) && fstat(fd, &st) == 0 &&
	    (node->kind != NODE_FILE || weight_file_may_pass(node->file)))
		now = st.st_ctim;
	(void)pthread_mutex_lock(&node->lock);
	same = now.tv_sec != 0 && now.tv_sec == node->cached.tv_sec &&
	       now.tv_nsec == node->cached.tv_nsec;
	node->cached = now;
	(void)pthread_mutex_unlock(&node->lock);
	return same;
}

void node_drop_group(struct fs *fs, const struct weight_group *group)
{
	auto_free struct node **found = NULL;
	size_t count = 0;
	struct map_entry e;
	size_t at;

	/* The last close of a removed file may take long: not under the lock. */
	(void)pthread_mutex_lock(&fs->nodes->lock);
	at = map_count(fs->nodes->nodes);
	found = calloc(at + 1, sizeof(void *));
	while (found && map_next(fs->nodes->nodes, &at, &e)) {
		cleanup(weight_group_unref_cleanup) struct weight_group *of =
			node_group(e.value);

		if (of != group)
			continue;
		found[count] = e.value;
		found[count++]->refs++;
	}
	(void)pthread_mutex_unlock(&fs->nodes->lock);

	for (size_t i = 0; i < count; i++) {
		passthrough_drop(fs, found[i]);
		node_unref(fs, found[i], 1);
	}
}
