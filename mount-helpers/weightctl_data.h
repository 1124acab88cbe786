/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of one file into another one: by the kernel where it can, else in
 * large pieces. Holes stay holes.
 *
 * A struct data_copy serves any number of files, one at a time. Says nothing.
 */
#ifndef MOUNT_HELPERS_WEIGHTCTL_DATA_H
#define MOUNT_HELPERS_WEIGHTCTL_DATA_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes that are done, holes included. A negative errno ends the copying. */
typedef int data_moved_fn(void *arg, uint64_t bytes);

struct data_copy {
	data_moved_fn *moved;
	void *arg;
	bool by_hand;   /* the kernel refused once */
	bool at_source; /* the failure was one of reading */
	char *buffer;
};

void data_copy_init(struct data_copy *d, data_moved_fn *moved, void *arg);
void data_copy_release(struct data_copy *d);

/*
 * Copies size bytes from in to the empty file out.
 *
 * Errors: -EINTR a signal came, -EBUSY with at_source: in became shorter; what
 * moved returned; what reading or writing answers.
 */
int data_copy(struct data_copy *d, int in, int out, uint64_t size);

#endif
