/* SPDX-License-Identifier: Apache-2.0 */
/* Reading .weights/wait to its end, with progress. */
#ifndef MOUNT_HELPERS_WEIGHTCTL_WAIT_H
#define MOUNT_HELPERS_WEIGHTCTL_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "mount-helpers/weightctl_bar.h"

/* Looks after each line; true ends the waiting. */
typedef bool wait_over_fn(void *arg, struct bar *bar);

/*
 * Waits until nothing is pending at dir: a revision, a staged one or a mount
 * point. over may be NULL. When the mount ended the waiting because what is
 * pending can't go on, its sentence is said. title is shown beside the bar.
 *
 * Errors: -EINTR, -EAGAIN it can't go on, and what reading answers.
 */
int wait_for(const char *dir, const char *title, bool quiet, wait_over_fn *over,
	     void *arg);

/*
 * Waits likewise, without a bar. 1: the sentence with which the mount ended it is
 * appended to ret; 0: nothing is pending. Errors: as above, and nothing is said.
 */
int wait_sentence(const char *dir, struct buf *ret);

/*
 * Says that what was asked for goes on without us. Returns err, which is what
 * wait_for() returned.
 */
int wait_left(int err, const char *path, const char *what);

struct ctl;

/*
 * Waits while operation id, which moves the revision dir to target, is on
 * record. Errors: as wait_for().
 */
int wait_move(const struct ctl *ctl, const char *dir, const char *target,
	      uint64_t id);
/* Unless dir is at target now, says why. Errors: -EAGAIN. */
int wait_check_move(const char *dir, const char *target, uint64_t id);

/* A signal ends it early. */
void wait_pause(unsigned ms);

/* Says what is wrong unless the revision dir is ready. Errors: -EIO. */
int wait_check_whole(const char *dir);

#endif
