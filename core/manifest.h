/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stored manifest: what one revision consists of. Its tensors, the fragments
 * that hold their bytes, and optionally the files and objects behind them.
 *
 * The text is the StoredWeightManifest of weight-contracts section 4 in its
 * canonical form (UTF-8 dialect, sorted keys, no spaces), plus the optional
 * keys files and objects. A manifest without them is, byte for byte, the
 * strict form. Lists keep the order in which they were added, and the order is
 * part of the text and so of its digest.
 *
 * Life: manifest_new(), any number of manifest_add_*(), manifest_finish(). Or
 * manifest_parse(), which does all of that. A finished manifest is complete,
 * valid and never changes, so any thread may read it. Before that, one thread.
 *
 * Ownership: a manifest is reference-counted and owns every string and array
 * reached from it; manifest_add_*() copy what they are given.
 *
 * Trust: the text and the arguments come from outside. Every rule of sections
 * 1.1 and 4.2 is checked, every limit below is enforced before memory is
 * committed. Wider than the strict form, since real checkpoints have them:
 * shapes of rank 0, zero extents (nbytes 0), an empty tensor id, no tensors at
 * all; and two fragments may share one range of an object if they are members
 * of one alias group with the same geometry.
 *
 * Beyond 4.1, in the wire form:
 *
 *  files[]	kind	"regular", "directory" or "symlink"
 *		mode	permission bits, at most 07777
 *		mtime	"<seconds>.<nine digits>", as struct timespec
 *		object	the key of an object for a regular file, else null
 *		path	relative, see struct manifest_file
 *		size	bytes; of the object, of the link's target, or 0
 *		target	where a symlink points to, else null
 *  objects[]	chunk_size, chunks (64 hex digits each), digest (of the raw
 *		chunk digests joined), key, size
 *
 * why, where not NULL, gets one sentence on failure.
 */
#ifndef CORE_MANIFEST_H
#define CORE_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/digest.h"

#define MANIFEST_BYTES_MAX BUF_MAX

/* Entries in each of the four lists. */
#define MANIFEST_ENTRIES_MAX ((size_t)1 << 22)

#define MANIFEST_RANK_MAX 64
#define MANIFEST_ALIASES_MAX 4096

/* Bytes in one string: an id, a key, a path, a name. */
#define MANIFEST_STRING_MAX ((size_t)64 << 10)
#define MANIFEST_PATH_MAX 4095
#define MANIFEST_NAME_MAX 255

/* Chunks of one object. */
#define MANIFEST_CHUNKS_MAX ((size_t)1 << 22)

/* Pairs of fragments of one tensor that are compared to find an overlap. */
#define MANIFEST_PAIRS_MAX 1000000

#define MANIFEST_MODE_MAX 07777
#define MANIFEST_NSEC_MAX 999999999

/* layer_id and expert_id of a tensor that has none. */
#define MANIFEST_NO_ID (-1)

/* The object of a file or fragment that has none. */
#define MANIFEST_NO_OBJECT UINT32_MAX

/* A tensor's name: any UTF-8, also empty, also with NUL bytes inside. */
struct manifest_id {
	const char *data; /* NUL-terminated once it is in a manifest */
	size_t len;
};

enum manifest_semantics {
	MANIFEST_SPLIT,
	MANIFEST_REPLICATED,
	MANIFEST_OWNERSHIP,
};

/* In the canonical order of axes. */
enum manifest_axis_kind {
	MANIFEST_DP,
	MANIFEST_PP,
	MANIFEST_EP,
	MANIFEST_TP,
	MANIFEST_CP,
};
#define MANIFEST_AXES_MAX 5

struct manifest_axis {
	enum manifest_semantics semantics;
	enum manifest_axis_kind kind;
	uint32_t dim; /* MANIFEST_SPLIT only, else 0 */
};

struct manifest_tensor {
	struct manifest_id id;
	const uint64_t *global_shape; /* rank extents */
	const char *dtype;
	const char *layout_fingerprint;
	const uint32_t *shard_dims; /* the dims of the split axes, sorted */
	const struct manifest_axis *axes; /* in canonical order of kinds */
	uint64_t itemsize;
	int64_t layer_id; /* or MANIFEST_NO_ID */
	int64_t expert_id;
	uint32_t rank;
	uint32_t shard_dim_count;
	uint32_t axis_count;
};

struct manifest_fragment {
	const char *fragment_id;
	const uint64_t *global_offset; /* as many as the tensor's rank */
	const uint64_t *local_shape;
	const char *object_key;
	const struct manifest_id
		*aliases; /* sorted; of tensors, own included */
	uint64_t object_offset;
	uint64_t nbytes;
	uint32_t alias_count;
	uint32_t tensor; /* index in tensors */
	/*
	 * Index in objects, or MANIFEST_NO_OBJECT in a manifest without any.
	 * Set by manifest_finish(), whatever was given.
	 */
	uint32_t object;
};

enum manifest_file_kind {
	MANIFEST_REGULAR,
	MANIFEST_DIRECTORY,
	MANIFEST_SYMLINK,
};

struct manifest_file {
	/*
	 * Below the revision's directory: components that are neither empty
	 * nor "." nor "..", joined by single slashes. Each file that is above
	 * another one is a directory.
	 */
	const char *path;
	const char *target; /* MANIFEST_SYMLINK only, else NULL */
	uint64_t size;      /* bytes; 0 for a directory */
	int64_t mtime_s;    /* may be negative; mtime_nsec counts up from it */
	uint32_t mtime_nsec;
	uint32_t mode;   /* permission bits only */
	uint32_t object; /* MANIFEST_REGULAR only: index in objects */
	enum manifest_file_kind kind;
};

struct manifest_object {
	const char *key;
	const struct digest *chunks; /* one for each chunk_size bytes begun */
	uint64_t size;
	uint64_t chunk_size; /* at least 1 */
	size_t chunk_count;
	struct digest digest; /* SHA-256 of the raw chunk digests joined */
};

/* What manifest_new() needs. Non-empty, valid UTF-8, at most
 * MANIFEST_STRING_MAX bytes each. */
struct manifest_top {
	const char *name_space;
	const char *resource_id;
	const char *revision;
	/*
	 * "weight:" and 64 hex digits for a managed revision, otherwise
	 * manifest_key without its last part.
	 */
	const char *group_id;
	/*
	 * Ends in "/manifest". Keys of objects start with what is before
	 * that, and "/payload/".
	 */
	const char *manifest_key;
	const char *created_at;
	uint64_t weight_generation;
};

struct manifest_private;

/* Read-only for users. */
struct manifest {
	struct manifest_top top;
	struct manifest_tensor *tensors;
	size_t tensor_count;
	struct manifest_fragment *fragments;
	size_t fragment_count;
	struct manifest_file *files;
	size_t file_count;
	struct manifest_object *objects;
	size_t object_count;
	/* The key is in the text, even if its list is empty. */
	bool has_files;
	bool has_objects;
	struct manifest_private *priv;
};

/* Errors: -EBADMSG a rule is broken, -EFBIG over a limit, -ENOMEM. */
int manifest_new(const struct manifest_top *top, struct manifest **ret,
		 struct buf *why);

struct manifest *manifest_ref(struct manifest *m);
void manifest_unref(struct manifest *m); /* accepts NULL */
DEFINE_CLEANUP(struct manifest *, manifest_unref)

/*
 * Append one entry, whose index is the number of those before it. The tensor
 * of a fragment must be there already; the object of a file may come later.
 * After a failure the manifest is only good for manifest_unref().
 *
 * Errors: as manifest_new().
 */
int manifest_add_tensor(struct manifest *m, const struct manifest_tensor *t,
			struct buf *why);
int manifest_add_fragment(struct manifest *m, const struct manifest_fragment *f,
			  struct buf *why);
int manifest_add_file(struct manifest *m, const struct manifest_file *f,
		      struct buf *why);
int manifest_add_object(struct manifest *m, const struct manifest_object *o,
			struct buf *why);

/*
 * Checks what concerns more than one entry: names that must be unique, names
 * that must exist, fragments that tile their tensor, complete alias groups,
 * ranges that must not overlap. Then the accessors below work.
 *
 * Errors: as manifest_new(); -EFBIG also for a tensor whose fragments take more
 * than MANIFEST_PAIRS_MAX comparisons; -EIO.
 */
int manifest_finish(struct manifest *m, struct buf *why);

/*
 * Parses a whole text into a finished manifest with one reference. Accepts
 * any order of keys and white space; only manifest_write() is canonical.
 *
 * Errors: -EFBIG, -EBADMSG not strict JSON, a key is missing, unknown or
 * there twice, or a rule is broken; -ENOMEM, -EIO.
 */
int manifest_parse(const char *text, size_t len, struct manifest **ret,
		   struct buf *why);

/*
 * Appends the canonical text of a finished manifest. On failure out may hold a
 * part of it.
 *
 * Errors: -ENOMEM, -EOVERFLOW.
 */
int manifest_write(const struct manifest *m, struct buf *out);

/* The manifest digest: SHA-256 of the canonical text. Errors: -EIO. */
int manifest_digest(const char *text, size_t len, struct digest *ret);

/* Finished manifests only, all four. NULL when there is none. O(log n). */
const struct manifest_tensor *manifest_tensor_find(const struct manifest *m,
						   const char *id, size_t len);
const struct manifest_file *manifest_file_find(const struct manifest *m,
					       const char *path);
const struct manifest_object *manifest_object_find(const struct manifest *m,
						   const char *key);

/* The object that holds a fragment's bytes. NULL: the manifest has none. */
const struct manifest_object *manifest_object_of(
	const struct manifest *m, const struct manifest_fragment *f);

/*
 * The fragments of one tensor in the order of (offset, shape). tensor and i
 * are below tensor_count and manifest_tensor_fragment_count(). A finished
 * manifest has at least one for each tensor. O(1).
 */
size_t manifest_tensor_fragment_count(const struct manifest *m, size_t tensor);
const struct manifest_fragment *manifest_tensor_fragment(
	const struct manifest *m, size_t tensor, size_t i);

#endif
