/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cleanup.h"
#include "core/config_value.h"
#include "core/util.h"

/* One assignment: a name, '=', and a value that may be a path. */
#define ASSIGNMENT_BYTES_MAX (PATH_MAX + 128)
#define QUOTED_BYTES_MAX 80
#define HELP_COLUMNS 80
#define HELP_INDENT 8

#define SIZE_BYTES_MAX ((uint64_t)1 << 50)
#define MEMORY_SHARE 2  /* of what the daemon may use */
#define DERIVED_SHARE 4 /* of what pinning may have */

/* What a round may be told to take, and what a log has to keep. */
#define ROUND_MEMBERS_MAX 1000000000
#define METADATA_LIMIT_MIN ((uint64_t)1 << 20)
#define OPLOG_KEEP_MIN 1000
#define OPLOG_KEEP_MAX 1000000000

/* clang-format off */
static const struct config_choice durabilities[] = {
	{ "writeback",    CONFIG_DURABILITY_WRITEBACK },
	{ "writethrough", CONFIG_DURABILITY_WRITETHROUGH },
	{ "none",         CONFIG_DURABILITY_NONE },
	{ NULL, 0 },
};

static const struct config_choice directs[] = {
	{ "refuse", CONFIG_DIRECT_REFUSE },
	{ "allow",  CONFIG_DIRECT_ALLOW },
	{ NULL, 0 },
};

static const struct config_choice passthroughs[] = {
	{ "auto", CONFIG_PASSTHROUGH_AUTO },
	{ "off",  CONFIG_PASSTHROUGH_OFF },
	{ NULL, 0 },
};

static const struct config_choice controls[] = {
	{ "hidden",  CONFIG_CONTROL_HIDDEN },
	{ "visible", CONFIG_CONTROL_VISIBLE },
	{ NULL, 0 },
};

static const struct config_choice allow_others[] = {
	{ "auto", CONFIG_ALLOW_OTHER_AUTO },
	{ "on",   CONFIG_ALLOW_OTHER_ON },
	{ "off",  CONFIG_ALLOW_OTHER_OFF },
	{ NULL, 0 },
};

static const struct config_choice tenants[] = {
	{ "any",     CONFIG_TENANTS_ANY },
	{ "default", CONFIG_TENANTS_DEFAULT },
	{ NULL, 0 },
};

static const struct config_choice logs[] = {
	{ "auto",   CONFIG_LOG_AUTO },
	{ "syslog", CONFIG_LOG_SYSLOG },
	{ "stderr", CONFIG_LOG_STDERR },
	{ NULL, 0 },
};

static const struct config_choice log_levels[] = {
	{ "error", LOG_LEVEL_ERROR },
	{ "warn",  LOG_LEVEL_WARN },
	{ "info",  LOG_LEVEL_INFO },
	{ "debug", LOG_LEVEL_DEBUG },
	{ NULL, 0 },
};

static const struct config_choice residencies[] = {
	{ "hot",   WEIGHT_HOT },
	{ "cold",  WEIGHT_COLD },
	{ "mixed", WEIGHT_MIXED },
	{ NULL, 0 },
};

static const struct config_choice migration_modes[] = {
	{ "pinned", WEIGHT_PINNED },
	{ "manual", WEIGHT_MANUAL },
	{ "auto",   WEIGHT_AUTO },
	{ NULL, 0 },
};

#define AT(field) .offset = offsetof(struct config, field)

static const struct config_option options[] = {
	{ "memory", &config_type_size, AT(memory_bytes),
	  .min = 0, .max = SIZE_BYTES_MAX, .initial = "0",
	  .help = "Memory in which files of hot revisions are held. 0 is half "
		  "of the memory that the daemon may use." },
	{ "headroom", &config_type_size, AT(headroom_bytes),
	  .min = 0, .max = SIZE_BYTES_MAX, .initial = "0",
	  .help = "The part of memory that published revisions leave free for "
		  "what is being copied in." },
	{ "derived", &config_type_size, AT(derived_bytes),
	  .min = 0, .max = SIZE_BYTES_MAX, .initial = "0",
	  .help = "Memory for files that are made on demand, such as single "
		  "tensors. 0 is a quarter of memory." },
	{ "durability", &config_type_choice, AT(durability),
	  .choices = durabilities, .initial = "writeback",
	  .help = "With writeback, a revision is published first, then "
		  "written to the disk and read back, after which its "
		  "attribute durable is yes: it survives a power loss. "
		  "With writethrough, publishing makes it durable first. "
		  "With none, nothing waits for the disk and a power loss may "
		  "take everything: for scratch." },
	{ "io_limit", &config_type_size, AT(io_limit),
	  .min = 0, .max = SIZE_BYTES_MAX, .initial = "0",
	  .help = "Bytes a second that the daemon reads and writes by itself: "
		  "to read ahead, to read back, to scrub and to fill memory. "
		  "What users read and write doesn't count. 0 is no limit." },
	{ "publish_wait", &config_type_time, AT(publish_wait_ms),
	  .min = 0, .max = CONFIG_WAIT_MS_MAX, .initial = "5s",
	  .help = "How long the rename that publishes a revision may work "
		  "before it gives up with EAGAIN and changes nothing." },
	{ "open_wait", &config_type_time, AT(open_wait_ms),
	  .min = 0, .max = CONFIG_WAIT_MS_MAX, .initial = "10s",
	  .help = "How long opening a file waits while its bytes are verified "
		  "after a power loss or a change from outside, before it "
		  "gives up with EINPROGRESS." },
	{ "lease_ttl", &config_type_time, AT(lease_ttl_ms),
	  .min = WEIGHT_LEASE_TTL_MS_MIN, .max = WEIGHT_LEASE_TTL_MS_MAX,
	  .initial = "24h",
	  .help = "How long a lease on a revision in use lasts unless it is "
		  "renewed, at most 24h." },
	{ "staging_ttl", &config_type_time, AT(staging_ttl_ms),
	  .min = 0, .max = CONFIG_LONG_MS_MAX, .initial = "0",
	  .help = "How long a staged generation that nobody touches is kept. "
		  "0 is for ever." },
	{ "direct", &config_type_choice, AT(direct),
	  .choices = directs, .initial = "refuse",
	  .help = "Whether a file that is all held in memory can be opened "
		  "with O_DIRECT, which reads it from the disk. Where it is "
		  "refused with EINVAL, most programs go on without O_DIRECT "
		  "and read from memory." },
	{ "scrub", &config_type_time, AT(scrub_every_ms),
	  .min = 0, .max = CONFIG_LONG_MS_MAX, .initial = "720h",
	  .help = "How often all bytes of each revision are checked against "
		  "their digests. 0 is never." },
	{ "scrub_rate", &config_type_size, AT(scrub_rate),
	  .min = 0, .max = SIZE_BYTES_MAX, .initial = "100M",
	  .help = "Bytes a second that are read for that. 0 is no limit but "
		  "that of io_limit." },
	{ "passthrough", &config_type_choice, AT(passthrough),
	  .choices = passthroughs, .initial = "auto",
	  .help = "Whether the kernel reads published files without asking "
		  "the daemon, where it can." },
	{ "control", &config_type_choice, AT(control),
	  .choices = controls, .initial = "hidden",
	  .help = "Whether listing a revision shows its .weights directory, "
		  "which can be entered by name in any case." },
	{ "publish_mode", &config_type_mode, AT(publish_mode),
	  .initial = "",
	  .help = "Change the modes of files and directories when they are "
		  "published, in the language of chmod: a+rX lets everybody "
		  "read. Without it they stay as copied." },
	{ "allow_other", &config_type_choice, AT(allow_other),
	  .choices = allow_others, .initial = "auto", .bare = "on",
	  .help = "Whether users other than the one who mounts may use the "
		  "mount. auto is on where that is permitted." },
	{ "tenants", &config_type_choice, AT(tenants),
	  .choices = tenants, .initial = "any",
	  .help = "With default, no tenant but the one named default is "
		  "allowed." },
	{ "log", &config_type_log, AT(log),
	  .choices = logs, .initial = "auto",
	  .help = "Where to report. auto is stderr in the foreground, else "
		  "syslog. A file is opened anew on SIGHUP." },
	{ "log_level", &config_type_choice, AT(log_level),
	  .choices = log_levels, .initial = "info",
	  .help = "Report this and what is graver." },
	{ "default_weight_preferred_residency", &config_type_choice,
	  AT(policy.preferred),
	  .choices = residencies, .initial = "hot",
	  .help = "Policy of new revisions: where their bytes should be, in "
		  "memory (hot), on disk (cold) or some of each (mixed)." },
	{ "default_weight_mixed_hot_ratio", &config_type_ratio,
	  AT(policy.mixed_hot_ratio),
	  .initial = "0.5",
	  .help = "Policy of new revisions: the share of the bytes that is in "
		  "memory when they are mixed, between 0 and 1." },
	{ "default_weight_migration_mode", &config_type_choice,
	  AT(policy.mode),
	  .choices = migration_modes, .initial = "auto",
	  .help = "Policy of new revisions: whether they stay where they are "
		  "(pinned), move on request (manual), or also by "
		  "themselves (auto)." },
	{ "weight_migration_max_members_per_round", &config_type_count,
	  AT(migration_round_members),
	  .min = 1, .max = ROUND_MEMBERS_MAX, .initial = "64",
	  .help = "How many files of a revision are moved into memory or out "
		  "of it before others have their turn." },
	{ "weight_migration_max_bytes_per_round", &config_type_size,
	  AT(migration_round_bytes),
	  .min = 1, .max = SIZE_BYTES_MAX, .initial = "1G",
	  .help = "How many bytes, likewise. The first piece is moved in any "
		  "case, however large it is." },
	{ "weight_migration_cooldown_ms", &config_type_ms,
	  AT(migration_cooldown_ms),
	  .min = 0, .max = CONFIG_LONG_MS_MAX, .initial = "30000",
	  .help = "For automatic moves: how long a revision is left where it "
		  "is after it was changed or used." },
	{ "eviction_high_watermark_ratio", &config_type_part,
	  AT(eviction_high_watermark_ratio),
	  .initial = "0.9",
	  .help = "For automatic moves: the part of memory above which "
		  "revisions give way, from 0 to 1." },
	{ "eviction_ratio", &config_type_part, AT(eviction_ratio),
	  .initial = "0.05",
	  .help = "For automatic moves: how far below "
		  "eviction_high_watermark_ratio the part of memory has to be "
		  "before revisions are brought back, from 0 to 1." },
	{ "weight_management_oplog_capability_confirmed", &config_type_switch,
	  AT(management_oplog_confirmed),
	  .initial = "off", .bare = "on",
	  .help = "Only relevant where the operation log is replicated: every "
		  "daemon that reads it understands what it says of "
		  "revisions, leases and operations. While this is off, such "
		  "changes are refused there." },
	{ "weight_lineage_oplog_capability_confirmed", &config_type_switch,
	  AT(lineage_oplog_confirmed),
	  .initial = "off", .bare = "on",
	  .help = "Likewise, what it says of replacements of one generation "
		  "by another." },
	{ "metadata_limit", &config_type_size, AT(metadata_limit_bytes),
	  .min = METADATA_LIMIT_MIN, .max = CONFIG_METADATA_LIMIT_MAX,
	  .initial = "64G",
	  .help = "How large the metadata of the store may become. What is "
		  "published then is refused with ENOSPC." },
	{ "oplog_keep", &config_type_count, AT(oplog_keep),
	  .min = OPLOG_KEEP_MIN, .max = OPLOG_KEEP_MAX, .initial = "65536",
	  .help = "Entries of the operation log that are kept; older ones "
		  "go." },
	{ "config", &config_type_path, AT(config_file),
	  .initial = "",
	  .help = "Read more options from this file, one 'name = value' a "
		  "line. Options that are given with -o win." },
};
#undef AT
/* clang-format on */

static const struct config_option *option_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(options); i++)
		if (strcmp(options[i].name, name) == 0)
			return &options[i];
	return NULL;
}

/* Appends text from outside, cut and without what could upset a terminal. */
static int quote(struct buf *out, const char *text)
{
	const char *end = text;
	int r = buf_append(out, "'", 1);

	for (; r == 0 && *end && end - text < QUOTED_BYTES_MAX; end++) {
		unsigned char c = (unsigned char)*end;

		r = buf_append(out, c < ' ' || c == 0x7f ? "?" : end, 1);
	}
	if (r == 0 && *end)
		r = buf_append(out, "...", 3);
	return r < 0 ? r : buf_append(out, "'", 1);
}

/* Each of these says why and returns the error to go on with. */
static int refuse_unknown(const char *name, struct buf *why)
{
	int r;

	if (!why)
		return -EINVAL;
	if ((r = buf_printf(why, "unknown option ")) < 0 ||
	    (r = quote(why, name)) < 0 ||
	    (r = buf_printf(why, "; --help lists all options")) < 0)
		return r;
	return -EINVAL;
}

static int refuse_value(const struct config_option *o, const char *value,
			struct buf *why)
{
	int r;

	if (!why)
		return -EINVAL;
	r = buf_printf(why, "option '%s'", o->name);
	if (r == 0 && !value)
		r = buf_printf(why, " needs a value; ");
	if (r == 0 && value) {
		if ((r = buf_printf(why, " can't be ")) == 0 &&
		    (r = quote(why, value)) == 0)
			r = buf_printf(why, "; ");
	}
	if (r == 0)
		r = o->type->allowed(o, why);
	return r < 0 ? r : -EINVAL;
}

static int refuse(int err, struct buf *why, const char *sentence)
{
	int r = why ? buf_printf(why, "%s", sentence) : 0;

	return r < 0 ? r : err;
}

/* value is NULL when only the name was given. */
static int option_set(struct config *cfg, const struct config_option *o,
		      const char *value, struct buf *why)
{
	const char *given = value ? value : o->bare;

	if (!given || o->type->parse(o, given, cfg) < 0)
		return refuse_value(o, value, why);
	return 0;
}

/* Takes text apart in place. */
static int assign(struct config *cfg, char *text, struct buf *why)
{
	char *equals = strchr(text, '=');
	const struct config_option *o;

	if (equals)
		*equals = '\0';
	o = option_find(text);
	if (!o)
		return refuse_unknown(text, why);
	return option_set(cfg, o, equals ? equals + 1 : NULL, why);
}

void config_init(struct config *cfg)
{
	memset(cfg, 0, sizeof(*cfg));
	for (size_t i = 0; i < ARRAY_LEN(options); i++) {
		int r = options[i].type->parse(&options[i], options[i].initial,
					       cfg);

		assert(r == 0);
		(void)r;
	}
}

int config_set(struct config *cfg, const char *assignment, struct buf *why)
{
	char text[ASSIGNMENT_BYTES_MAX + 1];
	size_t len = strlen(assignment);

	if (len > ASSIGNMENT_BYTES_MAX)
		return refuse(-EFBIG, why, "an option is too long");
	memcpy(text, assignment, len + 1);
	return assign(cfg, text, why);
}

/*
 * Takes the text before the next comma off *list, without its backslashes.
 * Errors: -EFBIG, -EINVAL for a backslash with nothing behind it.
 */
static int take_item(const char **list, char ret[ASSIGNMENT_BYTES_MAX + 1],
		     struct buf *why)
{
	const char *at = *list;
	size_t len = 0;

	for (; *at && *at != ','; at++) {
		if (*at == '\\' && !*++at)
			return refuse(-EINVAL, why,
				      "the options end in a backslash");
		if (len == ASSIGNMENT_BYTES_MAX)
			return refuse(-EFBIG, why, "an option is too long");
		ret[len++] = *at;
	}
	ret[len] = '\0';
	*list = *at ? at + 1 : at;
	return 0;
}

static int apply_list(struct config *cfg, const char *list, struct buf *why)
{
	char text[ASSIGNMENT_BYTES_MAX + 1];

	while (*list) {
		int r = take_item(&list, text, why);

		/* Nothing between two commas says nothing. */
		if (r == 0 && *text)
			r = assign(cfg, text, why);
		if (r < 0)
			return r;
	}
	return 0;
}

int config_parse_list(struct config *cfg, const char *list, struct buf *why)
{
	struct config next = *cfg;
	struct config base = *cfg;
	int r;

	if (strnlen(list, CONFIG_LIST_BYTES_MAX + 1) > CONFIG_LIST_BYTES_MAX)
		return refuse(-EFBIG, why, "there are too many options");
	next.config_file[0] = '\0';
	r = apply_list(&next, list, why);
	if (r < 0)
		return r;
	if (next.config_file[0]) {
		r = config_read_file(&base, next.config_file, why);
		if (r < 0)
			return r;
	}
	r = apply_list(&base, list, why);
	if (r < 0)
		return r;
	*cfg = base;
	return 0;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

/* Cuts blanks off both ends, in place at the end. */
static char *trim(char *text)
{
	size_t len;

	while (is_blank(*text))
		text++;
	len = strlen(text);
	while (len && is_blank(text[len - 1]))
		len--;
	text[len] = '\0';
	return text;
}

/* One line of a file, without its newline. seen has a place per option. */
static int apply_line(struct config *cfg, char *line, bool *seen,
		      struct buf *why)
{
	char *name = trim(line);
	char *equals = strchr(name, '=');
	const struct config_option *o;

	if (!*name || *name == '#')
		return 0;
	if (equals) {
		*equals = '\0';
		name = trim(name);
	}
	o = option_find(name);
	if (!o)
		return refuse_unknown(name, why);
	if (o->offset == offsetof(struct config, config_file))
		return refuse(-EINVAL, why,
			      "a configuration file can't name another; write "
			      "its options here");
	if (seen[o - options])
		return refuse(-EINVAL, why, "the option is given twice");
	seen[o - options] = true;
	return option_set(cfg, o, equals ? trim(equals + 1) : NULL, why);
}

static int copy_line(const char *from, size_t len,
		     char ret[ASSIGNMENT_BYTES_MAX + 1], struct buf *why)
{
	if (len > ASSIGNMENT_BYTES_MAX)
		return refuse(-EFBIG, why, "the line is too long");
	if (memchr(from, '\0', len))
		return refuse(-EINVAL, why, "the line holds a zero byte");
	memcpy(ret, from, len);
	ret[len] = '\0';
	return 0;
}

static int apply_text(struct config *cfg, const char *text, size_t len,
		      unsigned *line_number, struct buf *why)
{
	char line[ASSIGNMENT_BYTES_MAX + 1];
	bool seen[ARRAY_LEN(options)] = { false };

	for (const char *at = text, *end = text + len; at < end;) {
		const char *newline = memchr(at, '\n', (size_t)(end - at));
		size_t n = (size_t)((newline ? newline : end) - at);
		int r;

		++*line_number;
		r = copy_line(at, n, line, why);
		if (r == 0)
			r = apply_line(cfg, line, seen, why);
		if (r < 0)
			return r;
		at = newline ? newline + 1 : end;
	}
	return 0;
}

int config_parse_text(struct config *cfg, const char *name, const char *text,
		      size_t len, struct buf *why)
{
	cleanup(buf_release) struct buf sentence = BUF_INIT;
	struct config next = *cfg;
	unsigned line_number = 0;
	int r;

	if (len > CONFIG_FILE_BYTES_MAX)
		return refuse(-EFBIG, why, "the configuration is too long");
	r = apply_text(&next, text, len, &line_number, &sentence);
	if (r < 0 && why && sentence.len) {
		int said = buf_printf(why, "'%s', line %u: %s", name,
				      line_number, sentence.data);

		return said < 0 ? said : r;
	}
	if (r == 0)
		*cfg = next;
	return r;
}

/* Fills bytes, which has room for one more than a file may have. */
static int read_all(int fd, char *bytes, size_t *ret)
{
	size_t len = 0;

	while (len <= CONFIG_FILE_BYTES_MAX) {
		ssize_t n =
			read(fd, bytes + len, CONFIG_FILE_BYTES_MAX + 1 - len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		len += (size_t)n;
	}
	*ret = len;
	return len > CONFIG_FILE_BYTES_MAX ? -EFBIG : 0;
}

int config_read_file(struct config *cfg, const char *path, struct buf *why)
{
	auto_free char *bytes = malloc(CONFIG_FILE_BYTES_MAX + 1);
	auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	size_t len = 0;
	int r;

	if (!bytes)
		return -ENOMEM;
	r = fd < 0 ? -errno : read_all(fd, bytes, &len);
	if (r < 0) {
		int said = why ? buf_printf(why,
					    "reading the configuration file "
					    "'%s': %s",
					    path, strerrordesc_np(-r)) :
				 0;

		return log_debug(said < 0 ? said : r, "reading '%s'", path);
	}
	return config_parse_text(cfg, path, bytes, len, why);
}

int config_print(const struct config *cfg, struct buf *out)
{
	for (size_t i = 0; i < ARRAY_LEN(options); i++) {
		const struct config_option *o = &options[i];
		int r;

		if ((r = buf_printf(out, "%s = ", o->name)) < 0 ||
		    (r = o->type->print(o, cfg, out)) < 0 ||
		    (r = buf_append(out, "\n", 1)) < 0)
			return r;
	}
	return 0;
}

/* Appends words, broken into indented lines. */
static int wrap(struct buf *out, const char *words)
{
	size_t column = 0;
	int r = 0;

	while (r == 0 && *words) {
		size_t len = strcspn(words, " ");

		if (column == 0) {
			r = buf_printf(out, "%*s", HELP_INDENT, "");
			column = HELP_INDENT;
		} else if (column + 1 + len > HELP_COLUMNS) {
			r = buf_printf(out, "\n%*s", HELP_INDENT, "");
			column = HELP_INDENT;
		} else {
			r = buf_append(out, " ", 1);
			column++;
		}
		if (r == 0)
			r = buf_append(out, words, len);
		column += len;
		words += len + strspn(words + len, " ");
	}
	return r < 0 ? r : buf_append(out, "\n", 1);
}

static int option_help(const struct config_option *o, struct buf *out)
{
	cleanup(buf_release) struct buf words = BUF_INIT;
	int r;

	r = buf_printf(out, "  -o %s=", o->name);
	if (r < 0)
		return r;
	r = o->type->placeholder ? buf_printf(out, "%s", o->type->placeholder) :
				   config_choices_print(o->choices, out);
	if (r < 0)
		return r;
	r = buf_printf(&words, "%s", o->help);
	if (r == 0 && *o->initial)
		r = buf_printf(&words, " Default: %s.", o->initial);
	if (r == 0)
		r = buf_append(out, "\n", 1);
	return r < 0 ? r : wrap(out, words.data);
}

int config_help(struct buf *out)
{
	for (size_t i = 0; i < ARRAY_LEN(options); i++) {
		int r = option_help(&options[i], out);

		if (r < 0)
			return r;
	}
	return 0;
}

uint64_t config_memory_bytes(const struct config *cfg, uint64_t usable_bytes)
{
	return cfg->memory_bytes ? cfg->memory_bytes :
				   usable_bytes / MEMORY_SHARE;
}

uint64_t config_derived_bytes(const struct config *cfg, uint64_t usable_bytes)
{
	return cfg->derived_bytes ?
		       cfg->derived_bytes :
		       config_memory_bytes(cfg, usable_bytes) / DERIVED_SHARE;
}
