/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a running store: what the files of the two doors share.
 *
 *	weight_store.c	opening, settling what was left, closing; the
 *			operations of the first door are in weight_store_*.c
 *	tree_dir.c	directories above a revision
 *	tree_lineage.c	what the records say of a lineage
 *	tree_group.c	groups: finding, staging, aborting, the mutation gate
 *	tree_file.c	files below a group, and what is known of them
 *	tree_import.c	groups that a writer of the first door fills
 *	tree_name.c	what staging may do to their names
 *	tree_content.c	and to their attributes and contents
 *	tree_tensor.c	tensors as files, digests on demand
 *	tree_text.c	texts of a revision's service directory
 *	staging.c	digests and write-back of staged files, waiting
 *	publish.c	the publish attempt; publish_manifest.c what it writes
 *	lease_keeper.c	open handles, mappings that outlive them, lease records
 *	removal.c	removing revisions and sweeping what is left of them
 *	tree_manifest.c	what the manifest of a published group says
 *	tree_pin.c	files that are held in memory, or brought there
 *	tree_trust.c	whether the bytes of a published file may be served
 *	tree_verify.c	finding that out, and mending what can be mended
 *	tree_lost.c	groups whose directory or manifest is gone
 *	tree_wait.c	operations and waits as users see them
 *	tree_policy.c	policies of revisions, and of those to come
 *	tree_claim.c	replacing one generation by another
 *	reconciler.c	what goes on without anybody: claims, abandoned imports
 *	upkeep.c	what goes on with published groups, and upkeep_*.c its
 *			kinds of work
 *
 * One lock, store->lock, guards all memory that changes; what it guards is
 * marked [lock]. It is held for a few instructions, never across a system
 * call that could wait. store->namespace_lock orders changes of what exists
 * (stage, abort, publish's commit, removal, directories) and is held across
 * the disk; only workers take it, and before store->lock.
 *
 * Reference counts are guarded by the lock too, so that a table lookup and a
 * last unref can't cross. An object is unlinked from its table under the lock
 * and torn down after it.
 */
#ifndef CORE_TREE_PRIV_H
#define CORE_TREE_PRIV_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/arena.h"
#include "core/chunk_digest.h"
#include "core/cursor.h"
#include "core/derived.h"
#include "core/json.h"
#include "core/list.h"
#include "core/manifest.h"
#include "core/map.h"
#include "core/payload.h"
#include "core/pins.h"
#include "core/stamps.h"
#include "core/store_trial.h"
#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "core/weight_store.h"
#include "core/weight_tree.h"

/* Reserved in every directory of a revision. */
#define TREE_CONTROL_NAME ".weights"
#define TREE_STAGING_NAME ".staging"
#define TREE_MANIFEST_NAME "manifest.json"
#define TREE_IDENTITY_NAME "identity.json"
#define TREE_FILES_NAME "files"
#define TREE_STAMPS_NAME "stamps"
/* While a replacement is imported: the digest of what it is described as. */
#define TREE_IMPORT_NAME "import.sha256"
/* Of the backing file: when it was staged, and what it held when synced. */
#define TREE_SEAL_XATTR "user.weights.seal"
#define TREE_HOLDER_PREFIX "mount:"

/* A lease record may outlive its last use by this, to spare writes. */
#define TREE_LEASE_LINGER_MS 30000
/* Digest jobs that run at once; each holds a descriptor. */
#define TREE_JOBS_MAX 32
/* First and longest pause between two looks for a mapping. */
#define TREE_PROBE_MS_MIN 4
#define TREE_PROBE_MS_MAX 1000
/* How long a publish attempt waits for writers to go. */
#define TREE_DRAIN_MS 1000
/* A synced_version of a file whose attributes changed since. */
#define TREE_NEVER_SYNCED UINT64_MAX

/* Never stored: nothing below a store gives anybody another identity. */
#define TREE_SET_ID_BITS ((mode_t)(S_ISUID | S_ISGID))
#define TREE_PROC_FD_LEN 40

/* What the kernel said, or 0. */
static inline int errno_of(int rc)
{
	return rc < 0 ? -errno : 0;
}

/* A path that reaches the very inode of fd, whatever its names. */
static inline void tree_proc_fd(int fd, char ret[static TREE_PROC_FD_LEN])
{
	(void)snprintf(ret, TREE_PROC_FD_LEN, "/proc/self/fd/%d", fd);
}

#define TREE_GROUP_PATH_LEN (2 + 1 + DIGEST_HEX_LEN + 1)

/* "<2 hex>/<hash>", the directory of a group relative to STORE/groups. */
static inline void tree_group_dir(const char *hex,
				  char ret[static TREE_GROUP_PATH_LEN])
{
	(void)snprintf(ret, TREE_GROUP_PATH_LEN, "%.2s/%s", hex, hex);
}

struct inode_key {
	dev_t dev;
	ino_t ino;
};

/* Its padding is zero: the key is compared byte by byte. */
static inline int inode_key_of(int fd, struct stat *st, struct inode_key *ret)
{
	if (fstatat(fd, "", st, AT_EMPTY_PATH) < 0)
		return -errno;
	memset(ret, 0, sizeof(*ret));
	ret->dev = st->st_dev;
	ret->ino = st->st_ino;
	return 0;
}

static inline bool waiter_interrupted(const struct weight_waiter *waiter)
{
	return waiter && waiter->interrupted &&
	       waiter->interrupted(waiter->arg);
}

struct weight_dir {
	unsigned refs; /* [lock] */
	struct weight_store *store;
	struct weight_dir *parent; /* [lock] NULL for the root */
	char *name;                /* [lock] as in the path; NULL for root */
	struct inode_key key;
	mode_t type; /* S_IFDIR or S_IFLNK */
	unsigned depth;
	int fd; /* O_PATH */
};

/* What a seal on a backing file says. */
struct tree_seal {
	uint64_t epoch; /* of the boots, when the file was made or emptied */
	bool sealed;    /* the rest is set */
	uint64_t size;
	struct digest root;
};

/* Whether the bytes of a published file are those that were published. */
enum tree_trust {
	TREE_UNKNOWN,  /* nobody looked */
	TREE_GOOD,     /* it looks as its stamp says */
	TREE_CHECKING, /* it is being read */
	TREE_DAMAGED,  /* ranges of it are lost, see weight_group.damages */
	TREE_FOREIGN,  /* the manifest doesn't know it */
};

#define TREE_NO_OBJECT SIZE_MAX

/* The ranges of one object that are lost, a bit for each chunk. */
struct tree_damage {
	struct list in_group;
	size_t object;
	struct stamp seen; /* how the file looked when that was found */
	uint64_t size;
	uint64_t chunk_size;
	size_t chunks; /* in all */
	size_t bad;
	unsigned char bits[];
};

struct prefetch;
struct prefetcher;
struct pace;

struct weight_file {
	unsigned refs; /* [lock] */
	struct weight_store *store;
	struct weight_group *group; /* [lock] a reference */
	struct list in_group;       /* [lock] group->files */
	struct inode_key key;
	mode_t type; /* S_IFMT bits */
	int fd;      /* O_PATH; of /dev/null once the group is removed */

	unsigned readers, writers; /* [lock] open handles */

	/*
	 * [lock] Goes up with everything that may change the bytes. Facts
	 * about the bytes carry the version they were found at.
	 */
	uint64_t version;
	bool kept;           /* a reference of the group's own: it has facts */
	struct list in_kept; /* [lock] store->kept while it is */
	struct chunk_list *chunks; /* of chunks_version */
	uint64_t chunks_version;
	uint64_t synced_version; /* on the disk as of this; 0 never */
	bool syncing;
	bool seal_wanted; /* somebody synced it before its digest was there */
	unsigned sealing; /* how many are at that just now */
	struct chunk_job *job;
	int job_error; /* why the last job failed, negative, or 0 */

	/*
	 * [lock] In memory. A pin or a prefetch is a reference of its own. Who
	 * works with the pin counts as a user of it meanwhile.
	 */
	struct pin_file *pin;
	unsigned pin_users;
	bool pin_goes;         /* nobody may begin to use it */
	bool pin_pending;      /* a tender pins it while it is staged */
	uint64_t pin_version;  /* of the bytes, when it was bound */
	struct list in_pinned; /* store->staged_pins, from oldest */
	struct prefetch *prefetch;
	int prefetch_fd;        /* its open file, -1: none */
	uint64_t prefetched_ms; /* when one was last begun */
	bool prefetching;       /* a worker begins or ends one */

	/* [lock] Of a published file. */
	enum tree_trust trust;
	uint64_t checks; /* begun */
	size_t object;   /* in the manifest, or TREE_NO_OBJECT */

	/* [lock] The keeper's. On its queue means one reference. */
	struct list in_queue;
	uint64_t due_ms;
	unsigned pause_ms;
	bool maybe_mapped; /* counted in group->holders */
};

/* A tensor file that was closed but may still be mapped. */
struct tensor_hold {
	struct list in_queue;
	struct weight_group *group;
	struct derived_file *file;
	uint64_t due_ms;
	unsigned pause_ms;
};

/* What is known of a group's files, against what publishing needs. */
struct staging_need {
	size_t files; /* regular, distinct */
	uint64_t bytes;
	size_t undigested;
	uint64_t digested_bytes;
	size_t unsynced;
	size_t written;             /* open for writing */
	size_t pinning;             /* on their way into memory */
	struct weight_file *failed; /* borrowed from the look, or NULL */
	int error;                  /* why it failed */
};

/* A regular file of a published group, under one of its names. */
struct listed_file {
	const char *path;
	uint64_t size;
	struct digest digest; /* root of its chunk digests */
};

/*
 * What is asked of a manifest again and again, without its bulk: a revision of
 * 100,000 tensors takes about 10 MB here.
 */
struct weight_tensors {
	unsigned refs; /* [lock] */
	struct weight_store *store;
	struct weight_tensor *entries; /* by file_name */
	size_t count;
	struct listed_file *files; /* by path */
	size_t file_count;
	struct arena strings;
};

/* What a manifest says about the objects of a group. Read-only. */
struct tree_object {
	const char *path; /* the first of its names */
	uint64_t size;
	const struct digest *chunks;
	size_t chunk_count;
	uint64_t chunk_size;
	uint64_t units; /* affinity units that lie in it */
};

struct tree_content {
	unsigned refs; /* [lock] */
	struct weight_group *group;
	struct manifest *manifest;
	struct tree_object *objects;
	size_t count;
	uint64_t bytes;
};

/* What is gone of a published group as a whole. */
enum tree_loss {
	TREE_LOSS_NONE,
	TREE_LOSS_MANIFEST, /* so that nothing can be verified */
	TREE_LOSS_ALL,      /* and there is no file, either */
};

struct upkeep;

struct weight_group {
	unsigned refs;                 /* [lock] */
	enum weight_group_state state; /* [lock] */
	struct weight_store *store;
	struct weight_identity *identity;
	struct weight_dir *lineage; /* NULL: too long for a path */
	bool hidden;  /* [lock] from the mount: a writer's, not published yet */
	int dirfd;    /* of the group's directory, O_PATH */
	int files_fd; /* of files/ in it, O_PATH */
	bool remade;  /* files/ was gone, and is there anew */
	struct list files; /* [lock] all weight_files of this group */

	pthread_cond_t changed; /* of anything below, broadcast */
	unsigned mutations;     /* [lock] between enter and leave */
	unsigned writers;       /* [lock] sum over files */
	uint64_t tree_version;  /* [lock] goes up with every mutation */
	uint64_t
		tree_synced; /* [lock] directories durable as of this, plus 1 */
	bool places_synced;  /* [lock] its name and those above are durable */
	struct work
		*parked;  /* [lock] of struct weight_parked, to be run later */
	struct buf error; /* [lock] */

	/* [lock] Of those who wait one looks at the tree, for all. */
	bool wait_led;
	uint64_t wait_rounds;          /* looks begun */
	uint64_t wait_ready;           /* the last one that found all ready */
	struct staging_need wait_need; /* what the last one sees */
	pthread_cond_t wait_over;      /* nobody leads any more */

	/* [lock] Handles and mappings that keep the lease. */
	unsigned holders;
	bool lease_busy;    /* a worker is changing the record */
	bool given_up;      /* [lock] nobody waits for the attempt any more */
	bool removing;      /* a removal is looking around */
	bool awaits_base;   /* what it replaces has to go before it is filled */
	uint64_t fenced_by; /* what replaces it, and nobody comes in; 0: none */
	int base_error;     /* removing that failed last time, negative, or 0 */
	enum weight_residency preferred; /* of a staged one, by its policy */
	bool unpinning;    /* opens wait until it is out of memory */
	unsigned tending;  /* the daemon itself is at its files */
	uint64_t lease_id; /* 0: no record */
	uint64_t lease_expires_ms;
	/* Monotonic; when holders became 0, or a renewal failed last. */
	uint64_t idle_since_ms;
	struct list in_leased; /* store->leased while lease_id != 0 */

	/* [lock] Of a published group. */
	struct stamps *stamps;    /* NULL: not read yet */
	uint64_t stamps_saved_ms; /* monotonic; 0: never */
	struct list damages;      /* struct tree_damage */
	char *damage_text;        /* NULL: whole */
	bool damage_ref;          /* a reference of its own while damaged */
	enum tree_loss loss;
	struct tree_content *content; /* weak */
	struct upkeep *upkeep;        /* what goes on with it; weak */
	struct pin_file *manifest_pin;
	uint64_t logical_bytes; /* 0: not known yet, or none */
	bool durable;           /* what the record said last */

	/* [lock] Read from the manifest when first asked for. */
	struct weight_tensors *tensors;
	uint64_t tensors_used_ms;
	struct list in_cached; /* store->cached while tensors is set */
	char *sha256sums;

	char hex[DIGEST_HEX_LEN + 1]; /* name of its directory, table key */
};

struct weight_store {
	const struct config *config;
	int fd, lock_fd, tree_fd, groups_fd;
	struct weight_metadata_store *records;
	struct workers *workers; /* whatever waits for the disk */
	struct workers *hashers; /* one per core, at low priority */
	struct workers *tenders; /* pins, write-back, checks: may take long */
	struct workers *bulk;    /* fsync of files, deletions: may take long */
	struct derived *derived;
	char holder[WEIGHT_COMPONENT_MAX + 1];
	uint64_t epoch; /* of the boots that ended uncleanly */
	bool can_lease;
	bool scratch; /* on memory: nothing of it is ever durable */
	bool can_pin; /* memory can be locked */
	struct store_abilities abilities;
	struct pins *pins;
	struct prefetcher *prefetcher;
	struct pace *pace;       /* io_limit= */
	struct pace *scrub_pace; /* scrub_rate= */
	struct weight_dir *root;

	pthread_mutex_t namespace_lock;
	pthread_mutex_t stamps_lock; /* writing stamps; held across the disk */
	pthread_mutex_t lock;
	struct map *dirs, *files, *groups; /* [lock] weak */
	char *mountpoint;                  /* [lock] */
	dev_t mount_dev;                   /* [lock] 0: not known yet */
	weight_removed_fn *removed;        /* set before serving */
	void *removed_arg;

	/* The keeper thread's. */
	pthread_t keeper;
	bool keeper_runs;
	pthread_cond_t keeper_wakes;
	bool stopping;      /* [lock] */
	bool gives_up;      /* [lock] nobody waits for what is replaced */
	struct list queue;  /* [lock] staged files to look at */
	struct list mapped; /* [lock] published files to look at */
	struct list holds;  /* [lock] tensor files to look at */
	struct list leased; /* [lock] groups with a lease record */
	struct list cached; /* [lock] weak: groups with a tensor table */
	struct list kept;   /* [lock] files kept for what is known of them */
	size_t kept_count;  /* [lock] */
	size_t kept_max;    /* a share of the descriptors */
	struct list staged_pins; /* [lock] staged files that are pinned */
	struct upkeeper *upkeeper;
	struct reconciler *reconciler;
	bool payload_missing; /* of some revisions, as the start has seen */
	bool settled;         /* [lock] leases of before were looked at */
	unsigned jobs;        /* [lock] digest jobs running */
	unsigned background;  /* [lock] deletions, syncs that still run */
	pthread_cond_t quiet; /* background or jobs went down */
};

static inline void store_lock(struct weight_store *s)
{
	(void)pthread_mutex_lock(&s->lock);
}

static inline void store_unlock(struct weight_store *s)
{
	(void)pthread_mutex_unlock(&s->lock);
}

/* Whether the store is to outlive the machine, and something waits for that. */
static inline bool store_is_kept(const struct weight_store *s)
{
	return s->config->durability != CONFIG_DURABILITY_NONE && !s->scratch;
}

/* Something was not found out, only for want of memory or descriptors. */
static inline bool is_short(int r)
{
	return r == -ENOMEM || r == -EMFILE || r == -ENFILE;
}

/* Waits on a condition of the store's for at most ms. Lock held. */
void store_wait_locked(struct weight_store *s, pthread_cond_t *cond,
		       uint64_t ms);

/* Keeps the store open while something runs in the background. */
void store_background_begin(struct weight_store *s);
void store_background_end(struct weight_store *s);

/* A share of the descriptors that the process may have: one in `share`. */
size_t tree_descriptors(unsigned share);

/* Sleeps until ms passed or the store is stopping. */
void store_pause(struct weight_store *s, uint64_t ms);
/* Counts bytes that were moved just now, and pauses as the pace says. */
void store_pace(struct weight_store *s, struct pace *pace, uint64_t bytes);

/* ---- tree_dir.c ---- */

int tree_dir_open_root(struct weight_store *s);
/* The lineage's identity; strings are copied into one block. */
int tree_lineage_of(struct weight_dir *lineage, uint64_t generation,
		    struct weight_identity **ret);
/* Walks to a lineage by its parts; with make, makes what is missing. */
int tree_lineage_find(struct weight_store *s, const struct weight_lineage *l,
		      bool make, struct weight_dir **ret);
/* fsync of the lineage and all above it. */
int tree_dir_sync(struct weight_dir *lineage);
/* "tenant/namespace/resource/revision" below the mount. */
int tree_dir_path(struct weight_dir *dir, struct buf *ret);

/* ---- tree_group.c ---- */

/* The group of an identity in the state the records say. -ENOENT. */
int tree_group_find(struct weight_store *s, const struct weight_identity *id,
		    struct weight_dir *lineage, struct weight_group **ret);
/* The same, of which no directory is known. Never makes one. */
int tree_group_of(struct weight_store *s, const struct weight_identity *id,
		  struct weight_group **ret);
/* lineage may be NULL. */
int tree_group_new(struct weight_store *s, const struct weight_identity *id,
		   struct weight_dir *lineage, enum weight_group_state state,
		   bool hidden, struct weight_group **ret);
/* The directory of a group, with files/ as its owner asked for it. */
int tree_group_mkdir(struct weight_store *s, const char *hex,
		     const struct weight_identity *id, mode_t mode,
		     const struct weight_caller *caller);
/* The group's directory is named in two more: makes those names durable. */
int tree_group_sync_places(struct weight_group *g);
/* "<lineage path>/.staging/7", or without ".staging" once published. */
int tree_group_path(struct weight_group *g, struct buf *ret);
/* Removes a staged tree that nobody has touched for so long. -EBUSY. */
int tree_group_expire(struct weight_group *g, uint64_t idle_ms);
/* Into the group's directory, for people: whose it is. */
int tree_group_write_identity(int dirfd, const struct weight_identity *id);
/* Removes what is left of an emptied or abandoned group's directory. */
int tree_group_rmdir(struct weight_store *s, const char *hex);
void tree_unpark_locked(struct weight_group *g);
/*
 * Appends who holds files of the group, from what the system shows. Walks the
 * tree, so it waits for the disk.
 */
void tree_group_who(struct weight_group *g, bool writers_only, struct buf *why);

/* ---- tree_import.c ---- */

/*
 * Begins an import, or goes on with it, and makes its group, which is staged
 * and hidden, with a directory that may hold what its last writer left. Where
 * the revision is READY by this very request, *ret_group is NULL. *ret is the
 * record. Errors: as wms_import_begin(), -EBUSY it has a writer.
 */
int tree_import_begin(struct weight_store *s,
		      const struct weight_import_request *request,
		      struct weight_metadata **ret,
		      struct weight_group **ret_group, struct buf *why);
/*
 * Whether the import is the one that source describes; notes it if nothing was
 * noted yet. Errors: -EEXIST it is another one.
 */
int tree_import_claim(struct weight_group *g, const struct digest *source);
/* The note is of no use once it is published. */
void tree_import_settle(struct weight_group *g);
/* Removes what the last writer left. */
int tree_import_clear(struct weight_group *g);
/* Its writer is gone: nothing in memory knows the group any more. */
void tree_import_forget(struct weight_group *g);

/* ---- tree_file.c ---- */

/* The object of an opened O_PATH descriptor, which is taken over. */
int tree_file_adopt(struct weight_group *g, int fd, struct weight_file **ret);
/* The file at a path below the group's root. */
int tree_file_at(struct weight_group *g, const char *path,
		 struct weight_file **ret);
/* Path of a file below its group's root, "" for the root itself. */
int tree_file_path(struct weight_file *f, struct buf *ret);
/* Opens the backing file anew, not through a path that anybody can change. */
int tree_file_reopen(const struct weight_file *f, int flags, int *ret_fd);
/*
 * Whether one who entered a group may begin to change f, wherever it is now:
 * -EROFS, -ENOENT, -EBUSY its new group is past waiting for writers. Lock held.
 */
int tree_write_check_locked(const struct weight_file *f);
/* What was known about the bytes is void. Lock held. */
void tree_file_touch_locked(struct weight_file *f);
/*
 * Keeps a file for what is known of it, without anybody else's reference. Each
 * costs a descriptor, so there is a limit: returns the one that was kept
 * longest and now is not, for the caller to unref, or NULL. Lock held.
 */
struct weight_file *tree_file_keep_locked(struct weight_file *f);
/* Drops the group's own reference; true: the caller must unref. Lock held. */
bool tree_file_unkeep_locked(struct weight_file *f);
/* Gives up the descriptors of all files, so that their space can be freed. */
void tree_group_let_go(struct weight_group *g);
int tree_seal_read(const struct weight_file *f, struct tree_seal *ret);
int tree_seal_write(int fd, const struct tree_seal *seal);
/* The file's bytes begin in this boot: nothing of before can be left. */
int tree_seal_begin(struct weight_store *s, int fd);
/* A removed or aborted group has no files any more, whoever refers to them. */
bool tree_file_is_gone(struct weight_file *f);
/*
 * Who changes a file through the daemon counts as its writer for as long. That
 * goes with the file when a rename moves it to another staging tree, and keeps
 * any group from being published meanwhile. Errors: as a write of it.
 */
int tree_write_pin(struct weight_file *f);
void tree_write_unpin(struct weight_file *f);

/* ---- staging.c ---- */

/* The keeper found that nobody writes: start a digest job if one is due. */
void staging_digest_start(struct weight_file *f);

/*
 * The files of one look at a staged tree. files[i] belongs to object i of the
 * payload.
 */
struct staging_look {
	uint64_t tree_version; /* plus 1; 0: it was being changed */
	struct payload *payload;
	struct weight_file **files;
	size_t count;
};

int staging_look(struct weight_group *g, struct staging_look *ret,
		 struct buf *why);
void staging_look_release(struct staging_look *look);
void staging_need(struct weight_group *g, const struct staging_look *look,
		  struct staging_need *ret);
bool staging_need_nothing(const struct staging_need *need);
/* All could be published, and would be HOT a moment later. */
bool staging_need_only_pins(const struct staging_need *need);
/* Starts what is missing: digests, then write-back where digests are there. */
void staging_kick(struct weight_group *g, const struct staging_look *look);
/* Makes the tree's directories durable unless they are. */
int staging_sync_dirs(struct weight_group *g, const struct staging_look *look);
int staging_progress_line(const struct staging_need *need, struct buf *ret);

/* ---- tree_manifest.c ---- */

/* The manifest that the record names. -EUCLEAN it is another one. */
int tree_manifest_read(struct weight_group *g, struct manifest **ret);
/* Shared by all who ask while somebody has it. */
int tree_content_get(struct weight_group *g, struct tree_content **ret);
void tree_content_put(struct tree_content *c); /* accepts NULL */
DEFINE_CLEANUP(struct tree_content *, tree_content_put)
/* The object behind a path, or TREE_NO_OBJECT. */
size_t tree_content_object(const struct tree_content *c, const char *path);

/* ---- tree_pin.c ---- */

/*
 * The pin of a file, to be given back with tree_pin_put(); binds it first when
 * bind is true. Errors: -ENOENT it has none, and those of pins_file_open().
 */
int tree_pin_get(struct weight_file *f, bool bind, struct pin_file **ret);
void tree_pin_put(struct weight_file *f);
/* Unpins all of it and forgets the pin; with drop, lets the cache go, too. */
void tree_pin_drop(struct weight_file *f, bool drop);
/* All files of a group. */
void tree_group_unpin(struct weight_group *g, bool drop);
/*
 * At a close, with its digests: whether it is to be pinned. From then on it
 * counts as on its way into memory, and tree_pin_staged() has to be called.
 * Lock held.
 */
bool tree_pin_expect_locked(struct weight_file *f);
/* Pins a staged file in the background, as far as there is room. */
void tree_pin_staged(struct weight_file *f);
/*
 * Before a publish: makes true what is believed of a file's pin. Returns
 * whether all of it is pinned.
 */
bool tree_pin_settle(struct weight_file *f);
/* The publish failed: what is pinned may give way again. */
void tree_pin_unsettle(struct weight_group *g);
/* Takes pins from staged files until bytes are free. */
bool tree_pin_make_room(struct weight_store *s, uint64_t bytes);
/* Whether it is the pin's turn to say so; all bytes of a file are pinned. */
bool tree_file_is_hot_locked(struct weight_file *f);
/*
 * As holders_any(), without the daemon's own descriptors that stay open.
 * With settle_ms, asks again for as long.
 */
int tree_file_held(struct weight_file *f, uint64_t settle_ms);
/* A reader came: brings the file into memory, if it isn't there. Lock held. */
void tree_prefetch_want_locked(struct weight_file *f);
void tree_prefetch_stop(struct weight_file *f);
void tree_group_prefetch_stop(struct weight_group *g);
/* At the end: everything out of memory. */
void tree_pin_stop(struct weight_store *s);

/* ---- tree_trust.c ---- */

/* Reads the stamps, once. After an unclean boot some say nothing any more. */
int tree_stamps_load(struct weight_group *g);
/* Of a group that was just published: all files are what they should be. */
int tree_stamps_make(struct weight_group *g, const struct staging_look *look);
/* Writes them out as they are now. */
int tree_stamps_save(struct weight_group *g, bool durable);
/* Looks at a file again that somebody is about to open, and says whether its
 * bytes may go out. Errors: as weight_file_open(). */
int tree_trust_open(struct weight_file *f, bool may_block);
/* Whether each file is known to be good or damaged. Loads the stamps. */
bool tree_trust_is_complete(struct weight_group *g);
/* A verified file: good, or with these lost chunks. Takes damage over. */
void tree_trust_settle(struct weight_group *g, size_t object,
		       const struct stat *st, struct tree_damage *damage);
/* A copy of what is lost of an object, or NULL; -ENOMEM. */
int tree_damage_copy(struct weight_group *g, size_t object,
		     struct tree_damage **ret);
int tree_damage_new(const struct tree_object *o, size_t object,
		    struct tree_damage **ret);
void tree_damage_add(struct tree_damage *d, size_t chunk);
void tree_damage_remove(struct tree_damage *d, size_t chunk);
bool tree_damage_has(const struct tree_damage *d, size_t chunk);
bool tree_group_is_damaged(struct weight_group *g);
/* Describes what is lost, for people. */
void tree_damage_describe(struct weight_group *g, const struct tree_content *c);
/* Removed: forgets what was known. */
void tree_trust_forget(struct weight_group *g);
/* At the end: of all groups. */
void tree_trust_stop(struct weight_store *s);

/* ---- tree_verify.c ---- */

/* What a verification may cost and where it says how far it is. */
struct tree_check {
	struct weight_group *group;
	const struct tree_content *content;
	bool device;       /* past the cache, too, and mends what it can */
	struct pace *pace; /* or NULL */
	/* Told of bytes that are through; false stops with -ECANCELED. */
	bool (*go_on)(void *arg, uint64_t bytes);
	void *arg;
};

/*
 * Digests all size bytes of fd with all cores and waits for that. go_on may be
 * NULL. Errors: as chunk_done_fn.
 */
int tree_digest_wait(struct weight_store *s, int fd, uint64_t size,
		     bool (*go_on)(void *arg, uint64_t bytes), void *arg,
		     struct chunk_list **ret);
/*
 * Reads all of an object and settles whether it is good. Errors: -ECANCELED,
 * -EAGAIN it changes while it is read, -ENOMEM, -EMFILE and such.
 */
int tree_verify_object(const struct tree_check *check, size_t object);
/* From chunk `first` on, at most `bytes`; *ret_next is where to go on. */
int tree_scrub_object(const struct tree_check *check, size_t object,
		      size_t first, uint64_t bytes, size_t *ret_next);
/* Mends what it can of the damage of an object, makes a lost file anew. */
int tree_repair_object(const struct tree_check *check, size_t object);
/* fsync of all directories of the manifest. */
int tree_sync_dirs(struct weight_group *g, const struct tree_content *c);
/* Names that are missing, or that the manifest doesn't know, in why. */
int tree_check_names(struct weight_group *g, const struct tree_content *c,
		     struct buf *why);

/* ---- tree_lost.c ---- */

bool tree_group_has_dir(struct weight_store *s,
			const struct weight_identity *id);
/*
 * Opens dirfd and files_fd. Those of a published group that are gone are made
 * again, empty.
 */
int tree_group_open_dirs(struct weight_group *g, bool published);
/* Of a published one that has just come into memory: is its manifest there? */
void tree_loss_look(struct weight_group *g);
/* Reading the manifest has answered so. */
void tree_loss_note(struct weight_group *g, int r);
/* Whether it is still lost; reads the manifest. */
bool tree_loss_look_again(struct weight_group *g);
enum tree_loss tree_group_loss(struct weight_group *g);

/* ---- upkeep.c ---- */

int upkeep_new(struct weight_store *s);
/* Goes on with what the last daemon left. */
int upkeep_start(struct weight_store *s);
/* The store is stopping: ends what runs, and starts no more. */
void upkeep_stop(struct weight_store *s);
void upkeep_free(struct weight_store *s);

/* Something may be pending for a published group. */
int upkeep_want(struct weight_group *g);
/* Something that others wait for has become free: pins, leases. */
void upkeep_poke_all(struct weight_store *s);
/*
 * A removal has closed the door: waits at most ms until the daemon itself lets
 * go of the files. False: it did not.
 */
bool upkeep_yield(struct weight_group *g, uint64_t ms);
/* Nobody reads the group any more, for one that waits for that. Lock held. */
void upkeep_poke_locked(struct weight_group *g);
/* When the oldest operation that waits began, in real time; 0: none. */
uint64_t upkeep_oldest_ms(struct weight_store *s);

/* What is pending for a group. Lock held. */
enum upkeep_pending {
	UPKEEP_IDLE,
	UPKEEP_BUSY,
	UPKEEP_STUCK, /* for lack of memory, or of its payload */
};
enum upkeep_pending upkeep_pending_locked(struct weight_group *g);
/* Whether that goes on only when somebody else does something. Lock held. */
bool upkeep_is_waiting_locked(struct weight_group *g);
/* Whether its operation may never end by itself. Lock held. */
bool upkeep_may_give_way_locked(struct weight_group *g);
/* Whether something of it failed and is tried again, and what. */
bool upkeep_is_failing(struct weight_group *g, struct buf *why);
/* Whether there may be more that is pending than is known yet. */
bool upkeep_is_resuming(struct weight_store *s);
/* One line about it. */
int upkeep_line(struct weight_group *g, struct buf *ret);
/* Live numbers of the operation that runs; false: none is known. */
bool upkeep_progress(struct weight_group *g, uint64_t operation_id,
		     uint64_t *ret_bytes, uint64_t *ret_units);

/* ---- tree_text.c ---- */

/* Members that several texts have. */
void tree_put_lineage(struct json_object *o, const struct weight_lineage *l);
void tree_put_digest(struct json_object *o, const char *key,
		     const struct digest *d);
void tree_put_policy(struct json_object *o, const struct weight_policy *p);
int tree_metadata_json(const struct weight_metadata *m, struct buf *ret);

/* ---- tree_wait.c ---- */

/* -EPERM nothing of this store can ever be there, and why. */
int tree_may_move(struct weight_store *s, enum weight_residency target,
		  struct buf *why);
/* As weight_group_migrate(). ret_operation_id may be NULL. */
int tree_group_migrate(struct weight_group *g, enum weight_residency target,
		       uint64_t expected_metadata_generation,
		       uint64_t *ret_operation_id, struct buf *why);
/* What a running one has done since its record was written. */
void tree_operation_overlay(struct weight_store *s,
			    struct weight_operation *op);

/* As weight_group_wait(), of a published group. */
int tree_wait_published(struct weight_group *g,
			const struct weight_waiter *waiter, struct buf *why);

/* ---- publish_manifest.c ---- */

struct publish_result {
	struct manifest *manifest;
	struct buf text;
	struct weight_manifest_ref ref; /* strings point into the manifest */
	uint64_t affinity_count;
	struct digest affinity_digest;
};

struct checkpoint;
int publish_manifest(struct weight_group *g, const struct staging_look *look,
		     const struct checkpoint *ckpt, struct publish_result *ret,
		     struct buf *why);
void publish_result_release(struct publish_result *r);

/* ---- lease_keeper.c ---- */

int keeper_start(struct weight_store *s);
void keeper_stop(struct weight_store *s);
/* Looks at a file soon (in ms). Lock held. */
void keeper_queue_locked(struct weight_file *f, uint64_t in_ms);
/* One more or one fewer reason to keep the group's lease. Lock held. */
void keeper_hold_locked(struct weight_group *g);
void keeper_drop_locked(struct weight_group *g);
/* Makes sure that the record exists and lasts. Waits for the disk. */
int keeper_lease_take(struct weight_group *g);
/* Ends a record that lingers, unless somebody holds the group after all. */
void keeper_lease_give_up(struct weight_group *g);
/*
 * Holds a published group as an open handle does, until keeper_release(). Waits
 * for the disk. Errors: -ENOENT it is gone, -EBUSY it is being replaced.
 */
int keeper_hold(struct weight_group *g);
void keeper_release(struct weight_group *g);
/* After a start: leases of the last daemon against what is really held. */
void keeper_settle(struct weight_store *s);

/* ---- tree_claim.c ---- */

/* What a claim means for the groups that are in memory. */
void tree_claim_apply(struct weight_store *s,
		      const struct weight_lineage_record *l);
/* What the claim of its lineage means for a group that has just come there. */
int tree_claim_load(struct weight_group *g);
/*
 * Removing the base of a claim failed: who would fill the target is told
 * instead of waiting for longer.
 */
void tree_claim_stalled(struct weight_store *s,
			const struct weight_identity *base, int error);
/*
 * What a published group replaces: waits until it is gone. 1: somebody holds it,
 * and why says who. Errors: -EINTR.
 */
int tree_claim_wait(struct weight_group *g, const struct weight_waiter *waiter,
		    struct buf *why);
/* A staged group is gone: its replacement is given up. */
void tree_claim_unstaged(struct weight_group *g);

/* ---- reconciler.c ---- */

int reconciler_new(struct weight_store *s);
/* Goes on with what the last daemon left. */
int reconciler_start(struct weight_store *s);
void reconciler_stop(struct weight_store *s);
void reconciler_free(struct weight_store *s);
/* The lineage has a claim that is going on; the revision is IMPORTING. */
int reconciler_watch_claim(struct weight_store *s,
			   const struct weight_lineage *lineage);
int reconciler_watch_import(struct weight_store *s,
			    const struct weight_identity *identity);
/* Something that a claim may wait for has happened. */
void reconciler_poke(struct weight_store *s);
void reconciler_poke_locked(struct weight_store *s);

/* ---- removal.c ---- */

/*
 * Opens wait between these two, so that nobody comes in while somebody looks
 * around. Errors: -ENOENT it is gone, -EBUSY somebody else does that.
 */
int removal_close_door(struct weight_group *g, struct buf *why);
void removal_open_door(struct weight_group *g, bool removed);
/*
 * With the door closed: whether nobody has anything of it. -EBUSY, and then
 * *ret_held says whether by a handle or a mapping.
 */
int removal_look(struct weight_group *g, bool *ret_held, struct buf *why);
/* As weight_group_remove(). by_claim: the replacement of it does it. */
int tree_group_remove(struct weight_group *g,
		      uint64_t expected_metadata_generation, bool by_claim,
		      struct buf *why);

/* Deletes the bytes of a DELETING revision in the background. */
int removal_start(struct weight_store *s, const struct weight_identity *id);
/*
 * The same to the end, the tombstone, also while that goes on. Errors: what the
 * disk says.
 */
int removal_finish(struct weight_store *s, const struct weight_identity *id);
/*
 * Before serving: sweeps directories of groups that no record knows, drops
 * records of staged groups that have no directory, counts revisions, and adds
 * those whose deletion a kill interrupted to *ret.
 */
struct removal_left {
	struct weight_identity **items;
	size_t count, room;
};
void removal_left_release(struct removal_left *left);
int removal_sweep(struct weight_store *s, struct removal_left *ret);
/* One revision more or less in a state, for the gauges. */
void removal_count(enum weight_availability availability,
		   enum weight_residency residency, int delta);
/* Goes on with these deletions. */
void removal_resume(struct weight_store *s, const struct removal_left *left);

/* ---- tree_tensor.c ---- */

/* Plain SHA-256 of a range. Errors: -EINTR when waiter says so, -EIO. */
int tree_hash_range(int fd, uint64_t offset, uint64_t len,
		    const struct weight_waiter *waiter, struct digest *ret);

/* Empties the group's cache; the caller unrefs what it gets. Lock held. */
struct weight_tensors *tree_tensors_take_locked(struct weight_group *g);
/* A table that nobody asked for lately, or NULL. Lock held. */
struct weight_tensors *tree_tensors_idle_locked(struct weight_store *s,
						uint64_t now);

#endif
