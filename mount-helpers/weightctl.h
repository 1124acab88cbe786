/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightctl: what people do with a mount, as commands. It is one more user of
 * the mount: ordinary system calls and user.weights.* attributes, nothing that
 * coreutils and attr could not do.
 *
 * Adding a command is adding a row to the table in weightctl.c and its
 * function, which is declared here.
 *
 * One thread. Whoever notices a failure says so (weightctl_say.h) and returns
 * a negative errno; callers add nothing.
 */
#ifndef MOUNT_HELPERS_WEIGHTCTL_H
#define MOUNT_HELPERS_WEIGHTCTL_H

#include <stdbool.h>

/* What the program ends with. */
enum ctl_status {
	CTL_OK = 0,
	CTL_REFUSED = 1,
	CTL_USAGE = 2,
};

/* Bits, so that a command can say which it takes. */
enum ctl_option {
	CTL_JSON = 1,
	CTL_QUIET = 2,
	CTL_KEEP = 4,
	CTL_NO_WAIT = 8,
	CTL_FOLLOW = 16,
	CTL_DURABLE = 32,
	CTL_IF = 64,
	CTL_MOUNT = 128,
	CTL_WAIT = 256,
	CTL_REPLACES = 512,
	CTL_MODE = 1024,
	CTL_REQUEST_ID = 2048,
};

struct ctl {
	unsigned options; /* enum ctl_option */
	/* Values of options, NULL where they were not given. */
	const char *fence; /* of --if */
	const char *mount;
	const char *replaces;
	const char *mode;
	const char *request_id;
	int argc; /* what is left: the command's own arguments */
	char **argv;
};

/* Returns an enum ctl_status. The number of arguments is right. */
typedef int ctl_fn(const struct ctl *ctl);

ctl_fn ctl_put, ctl_stat, ctl_ls, ctl_op, ctl_wait, ctl_migrate, ctl_scrub,
	ctl_rm, ctl_repair, ctl_policy, ctl_claim, ctl_leases, ctl_upsert;

/*
 * Whether SIGINT, SIGTERM or SIGHUP came. Whatever takes long asks now and then
 * and gives up with -EINTR; a second signal ends the program at once.
 */
bool ctl_interrupted(void);

#endif
