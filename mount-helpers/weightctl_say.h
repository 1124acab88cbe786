/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is said to people and to programs.
 *
 * Messages go to standard error, "weightctl: PATH: what: sentence"; facts go
 * to standard output. Names and sentences may hold any byte, so what a
 * terminal would obey is shown as '?'.
 */
#ifndef MOUNT_HELPERS_WEIGHTCTL_SAY_H
#define MOUNT_HELPERS_WEIGHTCTL_SAY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/buf.h"

void say_error(int err, const char *path, const char *what);
/*
 * As say_error(), for a request to the mount: path is the object that keeps
 * the sentence in user.weights.error. Where it has none, the error's own text.
 */
void say_refusal(int err, const char *path, const char *what);
/* The same, where it was the object that answered, whatever err is. */
void say_answer(int err, const char *path, const char *what);

/*
 * The same, with err, which is negative, as value. Macros, so that static
 * analysers see which err comes out.
 */
#define say_failed(err, path, what)                                            \
	({                                                                     \
		int say_err_ = (err);                                          \
		say_error(say_err_, path, what);                               \
		say_err_;                                                      \
	})
#define say_refused(err, path, what)                                           \
	({                                                                     \
		int say_err_ = (err);                                          \
		say_refusal(say_err_, path, what);                             \
		say_err_;                                                      \
	})

/* A sentence about path. */
__attribute__((format(printf, 2, 3))) void say_note(const char *path,
						    const char *fmt, ...);

/* Text for people, on one line. */
void say_plain(FILE *to, const char *text);

/* "1.5 GiB"; the result fits. */
#define SAY_SIZE_MAX 32
void say_size(uint64_t bytes, char ret[static SAY_SIZE_MAX]);

/*
 * Facts as one JSON object. Starts as FACTS_INIT. What does not fit into
 * memory makes facts_print() fail.
 */
struct facts {
	struct buf text;
	int err;
};
#define FACTS_INIT                                                             \
	{                                                                      \
		.text = BUF_INIT                                               \
	}

/* value need not be valid UTF-8: bytes that are not become '?'. */
void facts_text(struct facts *f, const char *key, const char *value);
void facts_u64(struct facts *f, const char *key, uint64_t value);
void facts_bool(struct facts *f, const char *key, bool value);
/* An array of texts, which stand in values each with its NUL. */
void facts_list(struct facts *f, const char *key, const struct buf *values);
/* value is JSON already. */
void facts_raw(struct facts *f, const char *key, const char *value);

/*
 * Prints the object on a line and empties f. Says why it could not.
 * Errors: -ENOMEM, -EIO.
 */
int facts_print(struct facts *f);
/* As above, but appends the object to ret and says nothing. */
int facts_take(struct facts *f, struct buf *ret);

#endif
