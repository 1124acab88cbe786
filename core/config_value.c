/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config_value.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "core/parse.h"

/* choice_parse() stores an int in fields of these types. */
static_assert(sizeof(enum config_durability) == sizeof(int), "enum is int");
static_assert(sizeof(enum config_direct) == sizeof(int), "enum is int");
static_assert(sizeof(enum weight_residency) == sizeof(int), "enum is int");
static_assert(sizeof(enum log_level) == sizeof(int), "enum is int");

static void field_set(const struct config_option *o, struct config *cfg,
		      const void *value, size_t size)
{
	assert(o->offset + size <= sizeof(*cfg));
	memcpy((char *)cfg + o->offset, value, size);
}

static void field_get(const struct config_option *o, const struct config *cfg,
		      void *value, size_t size)
{
	assert(o->offset + size <= sizeof(*cfg));
	memcpy(value, (const char *)cfg + o->offset, size);
}

int config_choices_print(const struct config_choice *c, struct buf *out)
{
	const char *between = "";
	int r = 0;

	for (; r == 0 && c->word; c++) {
		r = buf_printf(out, "%s%s", between, c->word);
		between = "|";
	}
	return r;
}

static int choice_parse(const struct config_option *o, const char *value,
			struct config *cfg)
{
	for (const struct config_choice *c = o->choices; c->word; c++) {
		if (strcmp(c->word, value) != 0)
			continue;
		field_set(o, cfg, &c->value, sizeof(c->value));
		return 0;
	}
	return -EINVAL;
}

static int choice_print(const struct config_option *o, const struct config *cfg,
			struct buf *out)
{
	const struct config_choice *c = o->choices;
	int value;

	field_get(o, cfg, &value, sizeof(value));
	while (c->word && c->value != value)
		c++;
	assert(c->word);
	return buf_append(out, c->word, strlen(c->word));
}

static int choice_allowed(const struct config_option *o, struct buf *out)
{
	int r = buf_printf(out, "give one of ");

	return r < 0 ? r : config_choices_print(o->choices, out);
}

const struct config_type config_type_choice = {
	.parse = choice_parse,
	.print = choice_print,
	.allowed = choice_allowed,
};

static int switch_parse(const struct config_option *o, const char *value,
			struct config *cfg)
{
	bool on;

	if (parse_switch(value, &on) < 0)
		return -EINVAL;
	field_set(o, cfg, &on, sizeof(on));
	return 0;
}

static int switch_print(const struct config_option *o, const struct config *cfg,
			struct buf *out)
{
	bool on;

	field_get(o, cfg, &on, sizeof(on));
	return buf_printf(out, "%s", on ? "on" : "off");
}

static int switch_allowed(const struct config_option *o, struct buf *out)
{
	(void)o;
	return buf_printf(out, "give one of on|off");
}

const struct config_type config_type_switch = {
	.placeholder = "on|off",
	.parse = switch_parse,
	.print = switch_print,
	.allowed = switch_allowed,
};

struct unit {
	uint64_t factor;
	const char *name;
};

/* In units of falling size; the last one has the factor 1. */
static const struct unit size_units[] = {
	{ (uint64_t)1 << 40, "T" },
	{ (uint64_t)1 << 30, "G" },
	{ (uint64_t)1 << 20, "M" },
	{ (uint64_t)1 << 10, "K" },
	{ 1, "" },
};

static const struct unit time_units[] = {
	{ 3600000, "h" },
	{ 60000, "m" },
	{ 1000, "s" },
	{ 1, "ms" },
};

static const struct unit plain_units[] = { { 1, "" } };

/* Prints value in the largest unit that leaves no remainder. */
static int print_units(uint64_t value, const struct unit *unit, struct buf *out)
{
	if (value == 0)
		return buf_append(out, "0", 1);
	while (value % unit->factor != 0)
		unit++;
	return buf_printf(out, "%llu%s",
			  (unsigned long long)(value / unit->factor),
			  unit->name);
}

static int print_range(const struct config_option *o, const char *what,
		       const struct unit *units, struct buf *out)
{
	int r;

	if ((r = buf_printf(out, "give %s, from ", what)) < 0 ||
	    (r = print_units(o->min, units, out)) < 0 ||
	    (r = buf_printf(out, " to ")) < 0)
		return r;
	return print_units(o->max, units, out);
}

static int number_set(const struct config_option *o, uint64_t value,
		      struct config *cfg)
{
	if (value < o->min || value > o->max)
		return -EINVAL;
	field_set(o, cfg, &value, sizeof(value));
	return 0;
}

static int plain_print(const struct config_option *o, const struct config *cfg,
		       struct buf *out)
{
	uint64_t value;

	field_get(o, cfg, &value, sizeof(value));
	return print_units(value, plain_units, out);
}

static int count_parse(const struct config_option *o, const char *value,
		       struct config *cfg)
{
	uint64_t count;

	if (parse_u64(value, &count) < 0)
		return -EINVAL;
	return number_set(o, count, cfg);
}

static int count_allowed(const struct config_option *o, struct buf *out)
{
	return print_range(o, "a number", plain_units, out);
}

const struct config_type config_type_count = {
	.placeholder = "NUMBER",
	.parse = count_parse,
	.print = plain_print,
	.allowed = count_allowed,
};

static int size_parse(const struct config_option *o, const char *value,
		      struct config *cfg)
{
	uint64_t bytes;

	if (parse_size(value, &bytes) < 0)
		return -EINVAL;
	return number_set(o, bytes, cfg);
}

static int size_print(const struct config_option *o, const struct config *cfg,
		      struct buf *out)
{
	uint64_t bytes;

	field_get(o, cfg, &bytes, sizeof(bytes));
	return print_units(bytes, size_units, out);
}

static int size_allowed(const struct config_option *o, struct buf *out)
{
	return print_range(o, "a number of bytes, or one with K, M, G or T",
			   size_units, out);
}

const struct config_type config_type_size = {
	.placeholder = "SIZE",
	.parse = size_parse,
	.print = size_print,
	.allowed = size_allowed,
};

static int time_parse(const struct config_option *o, const char *value,
		      struct config *cfg)
{
	uint64_t ms;

	if (parse_time_ms(value, &ms) < 0)
		return -EINVAL;
	return number_set(o, ms, cfg);
}

static int time_print(const struct config_option *o, const struct config *cfg,
		      struct buf *out)
{
	uint64_t ms;

	field_get(o, cfg, &ms, sizeof(ms));
	return print_units(ms, time_units, out);
}

static int time_allowed(const struct config_option *o, struct buf *out)
{
	return print_range(o, "a number with ms, s, m or h", time_units, out);
}

const struct config_type config_type_time = {
	.placeholder = "TIME",
	.parse = time_parse,
	.print = time_print,
	.allowed = time_allowed,
};

/* For names that end in _ms, which say what a bare number means. */
static int ms_parse(const struct config_option *o, const char *value,
		    struct config *cfg)
{
	return count_parse(o, value, cfg) == 0 ? 0 : time_parse(o, value, cfg);
}

static int ms_allowed(const struct config_option *o, struct buf *out)
{
	return print_range(o, "milliseconds, or a number with ms, s, m or h",
			   time_units, out);
}

const struct config_type config_type_ms = {
	.placeholder = "TIME",
	.parse = ms_parse,
	.print = plain_print,
	.allowed = ms_allowed,
};

static int part_parse(const struct config_option *o, const char *value,
		      struct config *cfg)
{
	double ratio;

	if (parse_ratio(value, &ratio) < 0)
		return -EINVAL;
	field_set(o, cfg, &ratio, sizeof(ratio));
	return 0;
}

/* Both ends are out: a MIXED revision has something on either side. */
static int ratio_parse(const struct config_option *o, const char *value,
		       struct config *cfg)
{
	double ratio;

	if (parse_ratio(value, &ratio) < 0 || ratio <= 0 || ratio >= 1)
		return -EINVAL;
	return part_parse(o, value, cfg);
}

static int ratio_print(const struct config_option *o, const struct config *cfg,
		       struct buf *out)
{
	double ratio;

	field_get(o, cfg, &ratio, sizeof(ratio));
	return print_ratio(ratio, out);
}

static int ratio_allowed(const struct config_option *o, struct buf *out)
{
	(void)o;
	return buf_printf(out, "give a number between 0 and 1, such as 0.5");
}

const struct config_type config_type_ratio = {
	.placeholder = "RATIO",
	.parse = ratio_parse,
	.print = ratio_print,
	.allowed = ratio_allowed,
};

static int part_allowed(const struct config_option *o, struct buf *out)
{
	(void)o;
	return buf_printf(out, "give a number from 0 to 1, such as 0.5");
}

const struct config_type config_type_part = {
	.placeholder = "RATIO",
	.parse = part_parse,
	.print = ratio_print,
	.allowed = part_allowed,
};

/*
 * Paths are absolute, since a daemon works in another directory. What a line
 * of the configuration file can't say is refused: control characters, and a
 * blank at the end.
 */
static bool path_ok(const char *path)
{
	size_t len = strlen(path);

	for (size_t i = 0; i < len; i++)
		if ((unsigned char)path[i] < ' ')
			return false;
	return path[0] == '/' && path[len - 1] != ' ' && len < PATH_MAX;
}

static int path_parse(const struct config_option *o, const char *value,
		      struct config *cfg)
{
	if (*value && !path_ok(value))
		return -EINVAL;
	field_set(o, cfg, value, strlen(value) + 1);
	return 0;
}

static int path_print(const struct config_option *o, const struct config *cfg,
		      struct buf *out)
{
	const char *path = (const char *)cfg + o->offset;

	return buf_append(out, path, strlen(path));
}

static int path_allowed(const struct config_option *o, struct buf *out)
{
	(void)o;
	return buf_printf(out, "give a path that begins with '/'");
}

const struct config_type config_type_path = {
	.placeholder = "FILE",
	.parse = path_parse,
	.print = path_print,
	.allowed = path_allowed,
};

static int mode_parse(const struct config_option *o, const char *value,
		      struct config *cfg)
{
	struct mode_change change;

	if (mode_change_compile(value, &change) < 0)
		return -EINVAL;
	field_set(o, cfg, &change, sizeof(change));
	return 0;
}

static int mode_print(const struct config_option *o, const struct config *cfg,
		      struct buf *out)
{
	struct mode_change change;

	field_get(o, cfg, &change, sizeof(change));
	return buf_append(out, change.text, strlen(change.text));
}

static int mode_allowed(const struct config_option *o, struct buf *out)
{
	(void)o;
	return buf_printf(out,
			  "give what chmod takes, such as a+rX or 644, in at "
			  "most %d characters",
			  MODE_CHANGE_TEXT_MAX);
}

const struct config_type config_type_mode = {
	.placeholder = "MODE",
	.parse = mode_parse,
	.print = mode_print,
	.allowed = mode_allowed,
};

static int log_parse(const struct config_option *o, const char *value,
		     struct config *cfg)
{
	if (choice_parse(o, value, cfg) == 0) {
		cfg->log_file[0] = '\0';
		return 0;
	}
	if (!path_ok(value))
		return -EINVAL;
	memcpy(cfg->log_file, value, strlen(value) + 1);
	cfg->log = CONFIG_LOG_FILE;
	return 0;
}

static int log_print(const struct config_option *o, const struct config *cfg,
		     struct buf *out)
{
	if (cfg->log == CONFIG_LOG_FILE)
		return buf_append(out, cfg->log_file, strlen(cfg->log_file));
	return choice_print(o, cfg, out);
}

static int log_allowed(const struct config_option *o, struct buf *out)
{
	int r = choice_allowed(o, out);

	return r < 0 ? r : buf_printf(out, ", or a path that begins with '/'");
}

const struct config_type config_type_log = {
	.placeholder = "FILE|syslog|stderr|auto",
	.parse = log_parse,
	.print = log_print,
	.allowed = log_allowed,
};
