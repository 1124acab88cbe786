/* SPDX-License-Identifier: Apache-2.0 */
/* The few strings, digests and policies that a run uses, and their numbers. */
#ifndef TESTS_MODEL_NAMES_H
#define TESTS_MODEL_NAMES_H

#include <stdint.h>

#include "core/digest.h"
#include "core/weight_management.h"
#include "state.h"

/* What is in none of the tables. */
#define UNKNOWN UINT64_MAX

extern const struct weight_lineage lineage_names[LINEAGES];
uint64_t lineage_number(const struct weight_lineage *l);

#define TENANTS 3 /* the last one has nothing */
extern const char *const tenant_names[TENANTS];
/* The tenant of a lineage. */
uint64_t lineage_tenant(uint64_t lineage);
bool lineage_is_long(uint64_t lineage); /* longer than WMS_NAME_MAX */

enum {
	HOLDER_NONE,
	HOLDER_MOUNT,
	HOLDER_READER,
	HOLDER_TRAINER,
	HOLDER_CONTROL, /* bad */
	HOLDERS,
};
extern const char *const holder_names[HOLDERS];
uint64_t holder_number(const char *name);

enum {
	CURSOR_NONE,
	CURSOR_1,
	CURSOR_2,
	CURSOR_CONTROL, /* bad */
	CURSORS,
};
extern const char *const cursor_names[CURSORS];
uint64_t cursor_number(const char *name);

enum {
	MESSAGE_NONE,
	MESSAGE_SLOW,
	MESSAGE_FAILED,
	MESSAGE_COMPLETED, /* reserved from here on */
	MESSAGE_REMOVED,
	MESSAGE_SUPERSEDED,
	MESSAGE_CONTROL, /* bad */
	MESSAGES,
};
extern const char *const message_names[MESSAGES];
uint64_t message_number(const char *name);

/* The last one is empty, and so bad. */
#define REQUESTS 7
#define REQUEST_EMPTY (REQUESTS - 1)
extern const char *const request_names[REQUESTS];
uint64_t request_number(const char *name);

enum {
	ERROR_NONE,
	ERROR_INTERRUPTED,
	CLAIM_ERRORS,
};
extern const char *const claim_errors[CLAIM_ERRORS];
uint64_t claim_error_number(const char *name);

/* The first POLICIES_GOOD ones are. */
#define POLICIES 13
#define POLICIES_GOOD 9
extern const struct weight_policy policies[POLICIES];

/* Between these two a tag is the first byte of a digest of zeros else. */
#define TAG_NOTHING 0 /* the digest of nothing */
#define TAG_ZERO 255  /* no digest at all */
struct digest digest_of_tag(uint64_t tag);
uint64_t tag_of_digest(const struct digest *d);

/* What is wrong with an identity. */
enum flaw {
	FLAW_NONE,
	FLAW_GENERATION, /* 0, and no flaw where none is asked for */
	FLAW_TENANT,     /* starts with '_' */
	FLAW_LONG,
	FLAW_CONTROL,
	FLAW_EMPTY,
	FLAW_UTF8,
	FLAWS,
};

/* The identity with this flaw. Its strings live for ever. */
struct weight_identity identity_of(uint64_t lineage, uint64_t generation,
				   uint64_t flaw);

#endif
