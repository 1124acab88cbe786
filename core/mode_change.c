/* SPDX-License-Identifier: Apache-2.0 */
#include "core/mode_change.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#include "core/log.h"

#define ALL_BITS 07777
#define ALL_R (S_IRUSR | S_IRGRP | S_IROTH)
#define ALL_W (S_IWUSR | S_IWGRP | S_IWOTH)
#define ALL_X (S_IXUSR | S_IXGRP | S_IXOTH)

/* A number of fewer digits leaves a directory the set-id bits that it has. */
#define DIGITS_NAMING_SET_ID 5

/* A letter and the bits that it stands for. */
struct letter {
	char name;
	uint16_t bits;
};

/* clang-format off */
static const struct letter who_letters[] = {
	{ 'u', S_ISUID | S_IRWXU },
	{ 'g', S_ISGID | S_IRWXG },
	{ 'o', S_ISVTX | S_IRWXO },
	{ 'a', ALL_BITS },
	{ '\0', 0 },
};

static const struct letter copy_letters[] = {
	{ 'u', S_IRWXU },
	{ 'g', S_IRWXG },
	{ 'o', S_IRWXO },
	{ '\0', 0 },
};

static const struct letter bit_letters[] = {
	{ 'r', ALL_R },
	{ 'w', ALL_W },
	{ 'x', ALL_X },
	{ 'X', 0 }, /* which bits depends on the file */
	{ 's', S_ISUID | S_ISGID },
	{ 't', S_ISVTX },
	{ '\0', 0 },
};
/* clang-format on */

static const struct letter *letter_find(const struct letter *letters, char name)
{
	for (; letters->name; letters++)
		if (letters->name == name)
			return letters;
	return NULL;
}

static bool is_op(char c)
{
	return c == '+' || c == '-' || c == '=';
}

static bool is_octal(char c)
{
	return c >= '0' && c <= '7';
}

/* Moves *at past the digits. Errors: -EINVAL above 7777. */
static int take_octal(const char **at, uint16_t *ret)
{
	unsigned value = 0;

	for (; is_octal(**at); ++*at) {
		value = value * 8 + (unsigned)(**at - '0');
		if (value > ALL_BITS)
			return -EINVAL;
	}
	*ret = (uint16_t)value;
	return 0;
}

/* A text that is one number. */
static int compile_number(const char *text, struct mode_change_step *ret)
{
	struct mode_change_step step = { .op = '=', .affected = ALL_BITS };
	const char *at = text;

	if (take_octal(&at, &step.bits) < 0 || *at)
		return -EINVAL;
	step.named = at - text < DIGITS_NAMING_SET_ID ? step.bits : ALL_BITS;
	*ret = step;
	return 0;
}

/*
 * Takes an operator and its operand. affected is 0 when the clause names
 * nobody, which is the only place where a number may stand.
 */
static int take_step(const char **at, uint16_t affected,
		     struct mode_change_step *ret)
{
	struct mode_change_step step = {
		.op = *(*at)++,
		.source = MODE_CHANGE_BITS,
		.affected = affected ? affected : ALL_BITS,
	};
	const struct letter *l = letter_find(copy_letters, **at);

	if (is_octal(**at)) {
		if (affected || take_octal(at, &step.bits) < 0 ||
		    (**at && **at != ','))
			return -EINVAL;
		step.named = ALL_BITS;
		*ret = step;
		return 0;
	}
	if (l) {
		step.source = MODE_CHANGE_COPY;
		step.bits = l->bits;
		++*at;
	} else {
		for (; (l = letter_find(bit_letters, **at)); ++*at) {
			step.bits |= l->bits;
			if (l->name == 'X')
				step.source = MODE_CHANGE_BITS_OR_X;
		}
	}
	step.named = step.affected & step.bits;
	*ret = step;
	return 0;
}

/* Takes who, then one step or more. */
static int take_clause(const char **at, struct mode_change *c)
{
	const struct letter *l;
	uint16_t affected = 0;

	for (; (l = letter_find(who_letters, **at)); ++*at)
		affected |= l->bits;
	if (!is_op(**at))
		return -EINVAL;
	while (is_op(**at)) {
		int r;

		if (c->count == MODE_CHANGE_STEPS_MAX)
			return log_debug(-EFBIG, "too many steps");
		r = take_step(at, affected, &c->steps[c->count]);
		if (r < 0)
			return r;
		c->count++;
	}
	return 0;
}

static int compile_clauses(const char *text, struct mode_change *c)
{
	const char *at = text;

	for (;;) {
		int r = take_clause(&at, c);

		if (r < 0)
			return r;
		if (!*at)
			return 0;
		if (*at++ != ',')
			return -EINVAL;
	}
}

int mode_change_compile(const char *text, struct mode_change *ret)
{
	struct mode_change c = { .count = 0 };
	size_t len = strlen(text);
	int r = 0;

	if (len > MODE_CHANGE_TEXT_MAX)
		return log_debug(-EFBIG, "%zu bytes", len);
	memcpy(c.text, text, len + 1);
	if (is_octal(*text)) {
		r = compile_number(text, &c.steps[0]);
		c.count = 1;
	} else if (*text) {
		r = compile_clauses(text, &c);
	}
	if (r < 0)
		return r;
	*ret = c;
	return 0;
}

/* What one class of users may do, given to all three. */
static mode_t spread(mode_t bits)
{
	return (bits & ALL_R ? ALL_R : 0) | (bits & ALL_W ? ALL_W : 0) |
	       (bits & ALL_X ? ALL_X : 0);
}

static mode_t step_bits(const struct mode_change_step *step, mode_t mode,
			bool is_dir)
{
	switch (step->source) {
	case MODE_CHANGE_COPY:
		return spread(mode & step->bits);
	case MODE_CHANGE_BITS_OR_X:
		return step->bits | (is_dir || mode & ALL_X ? ALL_X : 0);
	case MODE_CHANGE_BITS:
		break;
	}
	return step->bits;
}

static mode_t step_apply(const struct mode_change_step *step, mode_t mode,
			 bool is_dir)
{
	mode_t may = step->affected;
	mode_t bits;

	/* A directory keeps set-id bits that the step does not name. */
	if (is_dir)
		may &= ~(mode_t)(S_ISUID | S_ISGID) | step->named;
	bits = step_bits(step, mode, is_dir) & may;
	switch (step->op) {
	case '+':
		return mode | bits;
	case '-':
		return mode & ~bits;
	default:
		return (mode & ~may) | bits;
	}
}

mode_t mode_change_apply(const struct mode_change *c, mode_t mode, bool is_dir)
{
	mode_t low = mode & ALL_BITS;

	for (unsigned i = 0; i < c->count; i++)
		low = step_apply(&c->steps[i], low, is_dir);
	return (mode & ~(mode_t)ALL_BITS) | low;
}
