/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of a store from outside: what lies in it, and its lock.
 *
 *	lock		locked by who has the store open
 *	meta/		the metadata database
 *	meta.new/	one that is being filled, before it gets that name
 *	tree/		lineages, as directories
 *	groups/		payload
 *	aside/		payload that a restored database doesn't know
 *
 * Thread-safe. Errors are those of the system calls, unless said otherwise.
 */
#ifndef CORE_STORE_DIR_H
#define CORE_STORE_DIR_H

#include <stdbool.h>

#define STORE_LOCK_NAME "lock"
#define STORE_META_NAME "meta"
#define STORE_DATA_NAME "data.mdb" /* in it, or in the new one */
#define STORE_META_NEW_NAME "meta.new"
#define STORE_TREE_NAME "tree"
#define STORE_GROUPS_NAME "groups"
#define STORE_ASIDE_NAME "aside"

struct store_dir {
	bool empty;      /* but for lost+found */
	bool locked;     /* there is a lock file, held or not */
	bool metadata;   /* there is meta/ */
	bool unfinished; /* there is meta.new/ */
	bool foreign;    /* there is something that no store has */
};

int store_dir_look(int fd, struct store_dir *ret);

/* It is one, or what a kill left of making one. */
static inline bool store_dir_is_store(const struct store_dir *d)
{
	return d->metadata || (d->locked && !d->foreign);
}

/* Whether the directory `name` below fd has nothing in it but lost+found. */
int store_dir_is_empty(int fd, const char *name, bool *ret);

/* Whether there is a metadata database, whatever is in it. */
int store_dir_has_data(int fd, bool *ret);

/*
 * Takes the lock of the store in directory fd, and waits a little for who is
 * about to let go of it. *ret_fd holds it until it is closed. With make, makes
 * the lock file (and says so), else one that is not there is -ENOENT.
 *
 * Errors: -EBUSY another process has it.
 */
int store_dir_lock(int fd, bool make, bool *ret_made, int *ret_fd);

/* Removes a meta.new/ that was left. */
int store_dir_drop_unfinished(int fd);

#endif
