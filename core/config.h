/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Config: every option of a mount, in one table in config.c.
 *
 * Mount options and the configuration file set the same options; what is given
 * as a mount option wins over the file. Adding an option is adding a member
 * here and a row there: the parser, the help text and .weights/config follow.
 *
 * A plain value without pointers: copy it freely, nothing is to be released.
 * It is filled before the first thread starts and not changed after that.
 *
 * Failures: where a function takes why, it appends one sentence that names the
 * option, the value and what is allowed. why may be NULL. On failure the
 * struct config is unchanged.
 *
 * Errors, unless a function says otherwise:
 *  -EINVAL	an unknown option, a malformed value, or one out of range
 *  -EFBIG	above one of the limits
 *  -ENOMEM	no memory for a sentence
 *
 * Source: weight contracts, section 9.2, for the names that begin with weight_,
 * default_weight_ and eviction_.
 */
#ifndef CORE_CONFIG_H
#define CORE_CONFIG_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/log.h"
#include "core/mode_change.h"
#include "core/weight_management.h"

#define CONFIG_FILE_BYTES_MAX ((size_t)64 << 10)
#define CONFIG_LIST_BYTES_MAX ((size_t)64 << 10)
#define CONFIG_WAIT_MS_MAX 3600000      /* 1 hour */
#define CONFIG_LONG_MS_MAX 315360000000 /* 87600 hours */

enum config_durability {
	CONFIG_DURABILITY_WRITEBACK,    /* soon after publishing */
	CONFIG_DURABILITY_WRITETHROUGH, /* before a revision is published */
	CONFIG_DURABILITY_NONE,
};

/* What an O_DIRECT open of a file that is all in memory gets. */
enum config_direct {
	CONFIG_DIRECT_REFUSE,
	CONFIG_DIRECT_ALLOW,
};

enum config_passthrough {
	CONFIG_PASSTHROUGH_AUTO,
	CONFIG_PASSTHROUGH_OFF,
};

enum config_control {
	CONFIG_CONTROL_HIDDEN,
	CONFIG_CONTROL_VISIBLE,
};

enum config_allow_other {
	CONFIG_ALLOW_OTHER_AUTO, /* on where permitted */
	CONFIG_ALLOW_OTHER_ON,
	CONFIG_ALLOW_OTHER_OFF,
};

enum config_tenants {
	CONFIG_TENANTS_ANY,
	CONFIG_TENANTS_DEFAULT, /* only the tenant named "default" */
};

enum config_log {
	CONFIG_LOG_AUTO, /* stderr in the foreground, else syslog */
	CONFIG_LOG_STDERR,
	CONFIG_LOG_SYSLOG,
	CONFIG_LOG_FILE,
};

#define CONFIG_METADATA_LIMIT_MAX ((uint64_t)64 << 30)

struct config {
	uint64_t memory_bytes;   /* 0: see config_memory_bytes() */
	uint64_t headroom_bytes; /* of memory_bytes */
	uint64_t derived_bytes;  /* 0: see config_derived_bytes() */
	enum config_durability durability;
	uint64_t io_limit; /* bytes a second; 0: none */
	uint64_t publish_wait_ms;
	uint64_t open_wait_ms;
	uint64_t lease_ttl_ms;
	uint64_t staging_ttl_ms; /* 0: never */
	enum config_direct direct;
	uint64_t scrub_every_ms; /* 0: never */
	uint64_t scrub_rate;     /* bytes a second; 0: no limit */
	enum config_passthrough passthrough;
	enum config_control control;
	struct mode_change publish_mode;
	enum config_allow_other allow_other;
	enum config_tenants tenants;
	enum config_log log;
	char log_file
		[PATH_MAX]; /* absolute; "" unless log is CONFIG_LOG_FILE */
	enum log_level log_level;
	struct weight_policy policy;      /* of new revisions */
	uint64_t migration_round_members; /* 1 or more, */
	uint64_t migration_round_bytes;   /* as this */
	uint64_t migration_cooldown_ms;
	double eviction_high_watermark_ratio; /* from 0 to 1, */
	double eviction_ratio;                /* as this */
	bool management_oplog_confirmed;
	bool lineage_oplog_confirmed;
	uint64_t metadata_limit_bytes;
	uint64_t oplog_keep;        /* entries */
	char config_file[PATH_MAX]; /* absolute; "": none */
};

/* Every option gets its default. */
void config_init(struct config *cfg);

/*
 * Sets one option from "name=value". A switch may be given by its name alone.
 * config=FILE is only remembered, the file is not read.
 */
int config_set(struct config *cfg, const char *assignment, struct buf *why);

/*
 * Sets the options of a list such as mount(8) hands over: "a=b,c=d", in which
 * a backslash takes the meaning from the character behind it, so "\," is a
 * comma in a value. A later one wins over an earlier one. If the list names a
 * configuration file, that is read first, whatever the order.
 *
 * Errors: also those of config_read_file().
 */
int config_parse_list(struct config *cfg, const char *list, struct buf *why);

/*
 * Sets the options of a text with one "name = value" a line. Blank lines and
 * lines that start with '#' say nothing. An option given twice is an error, and
 * so is config, since a file can't include another. name stands in sentences.
 */
int config_parse_text(struct config *cfg, const char *name, const char *text,
		      size_t len, struct buf *why);

/* As config_parse_text(). Errors: also those of opening and reading. */
int config_read_file(struct config *cfg, const char *path, struct buf *why);

/*
 * Appends every option as "name = value" a line; config_parse_text() takes
 * that, but for the line of config. Errors: those of buf_append().
 */
int config_print(const struct config *cfg, struct buf *out);

/*
 * Appends a description of every option, in lines of at most 80 columns.
 * Errors: those of buf_append().
 */
int config_help(struct buf *out);

/*
 * The limits for pinned memory and for derived files on a machine where the
 * daemon may use usable_bytes of memory: half of it, and a quarter of the
 * former, unless they were given.
 */
uint64_t config_memory_bytes(const struct config *cfg, uint64_t usable_bytes);
uint64_t config_derived_bytes(const struct config *cfg, uint64_t usable_bytes);

/*
 * The bytes of memory that this process may use: the machine's, or the lowest
 * limit of its control group and those above, if that is less. root stands
 * before the paths that are read, and is "" but in tests.
 *
 * Errors: -EBADMSG when the kernel's account is not understood, and those of
 * reading it.
 */
int config_usable_memory(const char *root, uint64_t *ret);

#endif
