/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stamps: how the files of a published group looked when their bytes were known
 * to be right, and how far a scrub of the group has come.
 *
 * A file whose inode number, size or times differ from its stamp was changed
 * behind the daemon's back, and is verified before it is served. The stamps of
 * a group lie in one small file in the group's directory, which can always be
 * made again by verifying: when it is missing, torn or damaged, nothing is
 * known, and that is all.
 *
 * Entry i belongs to object i of the group's manifest. An inode number belongs
 * to one object at most, so it is in one known entry at most.
 *
 * The file, all integers little-endian:
 *	0	u8[8]	"wfstamps"
 *	8	u16	STAMPS_VERSION, u16 zero, u32 zero
 *	16	u64	epoch
 *	24	u64	scrub_ended_ms
 *	32	u64	scrub_next
 *	40	u64	scrub_bad
 *	48	u64	count
 *	56		count times: u64 ino, u64 size, i64 mtime s, u32 mtime ns,
 *			u32 ctime ns, i64 ctime s, u32 known (0 or 1), u32 zero
 *	end	u8[32]	SHA-256 of all before it
 *
 * Ownership: struct stamps and its index belong to the caller. Threads: plain
 * data. Trust: the bytes on disk are hostile; count is bounded by the file's
 * size and STAMPS_COUNT_MAX before memory is taken. Inode numbers are hashed
 * with a secret.
 */
#ifndef CORE_STAMPS_H
#define CORE_STAMPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

#include "core/buf.h"
#include "core/cleanup.h"

#define STAMPS_VERSION 1
#define STAMPS_COUNT_MAX ((size_t)1 << 20)

struct stamp {
	uint64_t ino;
	uint64_t size; /* bytes */
	struct timespec mtime;
	struct timespec ctime;
	bool known; /* else the rest is zero, and no file is equal to it */
};

struct stamps {
	uint64_t epoch;          /* of the boots, in which they were made */
	uint64_t scrub_ended_ms; /* when the last scrub ended; 0: never */
	/*
	 * Where the running scrub goes on: 1 and the number of chunks before,
	 * counted through all objects. 0: none runs.
	 */
	uint64_t scrub_next;
	uint64_t scrub_bad; /* chunks that the last one couldn't mend */
	size_t count;
	struct stamp *entries;
	size_t known_count;
	/* Where a known entry is, by ino: a hash table for stamps.c alone. */
	uint32_t *slots;
	size_t mask;
	uint8_t secret[16];
};

/*
 * All unknown. Errors: -EFBIG above STAMPS_COUNT_MAX, -ENOMEM, or what
 * getrandom() answered.
 */
int stamps_new(size_t count, struct stamps **ret);
void stamps_free(struct stamps *s); /* accepts NULL */
DEFINE_CLEANUP(struct stamps *, stamps_free)

struct stamp stamp_of(const struct stat *st);
/* Whether a file that looks like st is the one of the stamp. False: unknown. */
bool stamp_matches(const struct stamp *stamp, const struct stat *st);

/*
 * Sets an entry, or with st NULL makes it unknown. Another entry with the same
 * inode number becomes unknown: that file is gone.
 */
void stamps_set(struct stamps *s, size_t i, const struct stat *st);
/* The known entry with that inode number. -ENOENT. O(1). */
int stamps_find(const struct stamps *s, uint64_t ino, size_t *ret);

/*
 * The bytes of the file. Encoding appends them to out; equal stamps have equal
 * bytes. Errors: those of buf_append().
 */
int stamps_encode(const struct stamps *s, struct buf *out);
/* Errors: those of stamps_read() but -ENOENT. */
int stamps_decode(const void *bytes, size_t len, struct stamps **ret);

/*
 * Reads the file `name` in dirfd. Errors: -ENOENT; -EUCLEAN it isn't what was
 * written; -EPROTONOSUPPORT a newer version; -EFBIG more than STAMPS_COUNT_MAX
 * need; -ENOMEM, or what reading answered.
 */
int stamps_read(int dirfd, const char *name, struct stamps **ret);

/*
 * Replaces the file, whole or not at all, through "<name>.tmp" beside it. With
 * durable, it is on the disk afterwards; without, a power loss may leave a torn
 * one. dirfd may be an O_PATH descriptor. Two writers of one name are the
 * caller's to keep apart.
 *
 * Errors: those of stamps_encode(), -ENAMETOOLONG, or what writing answered.
 */
int stamps_write(int dirfd, const char *name, const struct stamps *s,
		 bool durable);

#endif
