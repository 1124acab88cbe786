/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-helpers/weightctl.h"
#include "mount-helpers/weightctl_say.h"

#include <assert.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "core/buf.h"
#include "core/util.h"
#include "fs/attr_names.h"

#define COLUMNS 80
#define HELP_INDENT 21

/* clang-format off */
static const struct command {
	const char *name;
	const char *args;
	int args_min, args_max;
	unsigned options;	/* enum ctl_option */
	ctl_fn *fn;
	const char *summary;	/* one line */
	const char *help;
} commands[] = {
	{ "put", "SOURCE LINEAGE/GENERATION", 2, 2,
	  CTL_JSON | CTL_QUIET | CTL_KEEP | CTL_FOLLOW | CTL_DURABLE, ctl_put,
	  "copy a directory or a file in and publish it",
	  "Copies SOURCE into LINEAGE/.staging/GENERATION, waits until it is "
	  "ready, and renames it to LINEAGE/GENERATION, so that it is there as "
	  "a whole or not at all. The directories of LINEAGE are made. Modes, "
	  "times, symlinks, hard links and holes are kept; owners are not. "
	  "What is staged is removed again when anything fails or a signal "
	  "comes before it is published." },
	{ "upsert", "--replaces=BASE SOURCE LINEAGE/GENERATION", 2, 2,
	  CTL_JSON | CTL_QUIET | CTL_KEEP | CTL_FOLLOW | CTL_NO_WAIT | CTL_IF |
		  CTL_REPLACES | CTL_MODE | CTL_REQUEST_ID,
	  ctl_upsert, "as put, in the place of another generation",
	  "As put, and announces that generation BASE of the lineage is "
	  "replaced. With put_first BASE stays until the new one is durable, "
	  "and goes when nobody reads it any more; with delete_first it goes "
	  "before the first byte is copied. Waits for the end of that. Who "
	  "interrupts it goes on with the same command." },
	{ "ls", "LINEAGE", 1, 1, CTL_JSON, ctl_ls,
	  "list the generations of a lineage",
	  "One line for each generation, in the order of numbers: "
	  "availability, residency, size, whether it is durable, and the names "
	  "of symlinks that point to it. Imports are listed as staged." },
	{ "stat", "PATH...", 1, INT_MAX, CTL_JSON, ctl_stat,
	  "show the attributes of a revision, file, tensor or lineage",
	  "All attributes user.weights.* that PATH has; see weightctl help "
	  "attributes." },
	{ "migrate", "PATH hot|cold", 2, 2,
	  CTL_JSON | CTL_QUIET | CTL_NO_WAIT | CTL_IF, ctl_migrate,
	  "move a revision to memory or to disk",
	  "Moves the whole revision to memory (hot) or leaves it to the disk "
	  "(cold), and waits until it is there. When interrupted, the "
	  "operation goes on." },
	{ "policy", "PATH [preferred=P] [ratio=R] [mode=M]", 1, INT_MAX,
	  CTL_JSON | CTL_QUIET | CTL_WAIT | CTL_IF, ctl_policy,
	  "show or change where a revision is wanted",
	  "Shows the policy of a revision or of an import, or changes it: "
	  "preferred is hot, cold or mixed; ratio, the hot part of mixed, is "
	  "between 0 and 1; mode, who may move it, is pinned, manual or auto. "
	  "What is not named stays, and commas may take the place of blanks. In "
	  "mode auto it begins to move to where it is preferred; the operation "
	  "goes on when a wait for it is interrupted." },
	{ "op", "ID|PATH", 1, 1, CTL_JSON | CTL_MOUNT, ctl_op,
	  "show an operation",
	  "The record of operation ID, or of the one that moves the revision "
	  "PATH now. A path that is a number is written ./7." },
	{ "claim", "PATH", 1, 1, CTL_JSON, ctl_claim,
	  "show the latest replacement in a lineage",
	  "Which generation of the lineage that PATH is or is in takes the "
	  "place of which, how far that is, and the generation that "
	  "replacements have come to." },
	{ "leases", "[MOUNT]", 0, 1, CTL_JSON, ctl_leases,
	  "list the revisions in use",
	  "One line for each lease on the mount MOUNT, else on that of the "
	  "working directory, else on the only one there is. For root alone." },
	{ "wait", "PATH...", 1, INT_MAX, CTL_QUIET, ctl_wait,
	  "wait until nothing is pending",
	  "Waits until the bytes of a revision are durable and its operation, "
	  "scrub or repair is over; of an import until it can be published; of "
	  "a mount point until this is so of all revisions." },
	{ "scrub", "PATH...", 1, INT_MAX, CTL_JSON | CTL_QUIET | CTL_NO_WAIT,
	  ctl_scrub,
	  "check all bytes of a revision",
	  "Checks names, sizes and all bytes of the revision against its "
	  "manifest, mends what can be mended, and says what is damaged. "
	  "Status 1 when damage remains." },
	{ "repair", "REVISION FILE...", 2, INT_MAX, CTL_JSON | CTL_QUIET,
	  ctl_repair,
	  "mend a damaged revision with good copies of its files",
	  "Each FILE is a good copy of the file of that name in the revision; "
	  "PATH=FILE says which one it is where names differ or occur twice. "
	  "They are copied beside the revision for the while. Only bytes whose "
	  "digests match are taken. Status 1 when damage remains." },
	{ "rm", "PATH...", 1, INT_MAX, CTL_IF, ctl_rm,
	  "remove a revision",
	  "Removes a published generation as a whole, unless it is in use. "
	  "PATH ends in its number, which is never to be had again. An import "
	  "is given up with rm -r." },
};

static const struct option_row {
	enum ctl_option bit;
	char letter;
	const char *name;
	const char *arg;	/* NULL: takes none */
	const char *help;
} option_rows[] = {
	{ CTL_JSON, 'j', "json", NULL, "print facts as JSON" },
	{ CTL_QUIET, 'q', "quiet", NULL, "show no progress" },
	{ CTL_KEEP, 'k', "keep", NULL,
	  "leave what was copied when it is not published" },
	{ CTL_FOLLOW, 'L', "dereference", NULL,
	  "copy what symlinks point to" },
	{ CTL_DURABLE, 'd', "durable", NULL,
	  "wait until it survives a power loss, too" },
	{ CTL_NO_WAIT, 'n', "no-wait", NULL, "start it and return" },
	{ CTL_WAIT, 'w', "wait", NULL, "wait until it has moved" },
	{ CTL_IF, 'i', "if", "METADATA_GENERATION",
	  "only while this is its metadata_generation" },
	{ CTL_MOUNT, 'm', "mount", "DIR", "the mount that is meant" },
	{ CTL_REPLACES, 'r', "replaces", "BASE",
	  "the generation that goes" },
	{ CTL_MODE, 'M', "mode", "put_first|delete_first",
	  "what comes first; put_first if not given" },
	{ CTL_REQUEST_ID, 'R', "request-id", "ID",
	  "tells this replacement from others" },
};
/* clang-format on */

/* ---- Signals ---- */

static volatile sig_atomic_t signal_came;

static void on_signal(int number)
{
	signal_came = number;
}

bool ctl_interrupted(void)
{
	return signal_came != 0;
}

static void catch_signals(void)
{
	static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction action = { .sa_handler = on_signal,
				    .sa_flags = (int)SA_RESETHAND };
	struct sigaction old;

	/* Nobody who reads must not end a copy that has to be cleaned up. */
	(void)signal(SIGPIPE, SIG_IGN);
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		/* nohup stays in force. */
		if (sigaction(numbers[i], NULL, &old) == 0 &&
		    old.sa_handler != SIG_IGN)
			(void)sigaction(numbers[i], &action, NULL);
}

/* Ends as the signal would have, so that a script or a loop stops, too. */
static void end_by_signal(void)
{
	(void)fflush(NULL);
	(void)signal((int)signal_came, SIG_DFL);
	(void)raise((int)signal_came);
}

/* ---- Help ---- */

/* Breaks text into lines below an indent. */
static void print_wrapped(const char *text, int indent)
{
	int column = 0;

	while (*text != '\0') {
		int len = (int)strcspn(text, " ");

		if (column > 0 && column + 1 + len > COLUMNS - 1) {
			(void)printf("\n");
			column = 0;
		}
		(void)printf("%*s%.*s", column > 0 ? 1 : indent, "", len, text);
		column += len + (column > 0 ? 1 : indent);
		text += len;
		text += *text == ' ' ? 1 : 0;
	}
	(void)printf("\n");
}

static void print_options(unsigned options)
{
	for (size_t i = 0; i < ARRAY_LEN(option_rows); i++) {
		const struct option_row *o = &option_rows[i];
		char left[64];

		if (!(options & o->bit))
			continue;
		(void)snprintf(left, sizeof(left), "-%c, --%s%s%s", o->letter,
			       o->name, o->arg ? "=" : "",
			       o->arg ? o->arg : "");
		if (strlen(left) < HELP_INDENT - 2)
			(void)printf("  %-*s%s\n", HELP_INDENT - 2, left,
				     o->help);
		else
			(void)printf("  %s\n%*s%s\n", left, HELP_INDENT, "",
				     o->help);
	}
	(void)printf("  %-*s%s\n", HELP_INDENT - 2, "-h, --help", "this text");
}

static int help_command(const struct command *c)
{
	(void)printf("Usage: weightctl %s [OPTION...] %s\n\n", c->name,
		     c->args);
	print_wrapped(c->help, 0);
	(void)printf("\n");
	print_options(c->options);
	return CTL_OK;
}

static int help_all(void)
{
	(void)printf("Usage: weightctl COMMAND [OPTION...] ARGUMENT...\n"
		     "       weightctl help [COMMAND | attributes]\n"
		     "       weightctl --help | --version\n"
		     "\n"
		     "Works on the revisions of model weights of a mount of "
		     "weightfs.\n"
		     "\n");
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		(void)printf("  %-*s%s\n", HELP_INDENT - 2, commands[i].name,
			     commands[i].summary);
	(void)printf("\nStatus: 0 done, 1 refused or failed, 2 the command is "
		     "wrong.\n");
	return CTL_OK;
}

static int help_attributes(void)
{
	struct buf text = BUF_INIT;
	int r = attr_help(&text);

	if (r == 0)
		(void)printf("Attributes, all named user.weights.NAME:\n\n%s",
			     text.data);
	buf_release(&text);
	return r < 0 ? CTL_REFUSED : CTL_OK;
}

/* ---- The command line ---- */

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static int unknown_command(const char *name)
{
	(void)fprintf(stderr,
		      "weightctl: there is no command '%s'; see weightctl "
		      "--help\n",
		      name);
	return CTL_USAGE;
}

static int help(int argc, char *argv[])
{
	const struct command *c;

	if (argc == 0 || strcmp(argv[0], "help") == 0)
		return help_all();
	if (strcmp(argv[0], "attributes") == 0)
		return help_attributes();
	c = find_command(argv[0]);
	return c ? help_command(c) : unknown_command(argv[0]);
}

static int usage(const struct command *c)
{
	(void)fprintf(stderr,
		      "usage: weightctl %s [OPTION...] %s\n"
		      "see weightctl help %s\n",
		      c->name, c->args, c->name);
	return CTL_USAGE;
}

/* Both forms of what getopt_long() takes, for the options in a set. */
struct parser {
	char shorts[2 + 2 * ARRAY_LEN(option_rows) + 2];
	struct option longs[ARRAY_LEN(option_rows) + 2];
};

static void parser_init(struct parser *p, unsigned options)
{
	size_t s = 0, l = 0;

	*p = (struct parser){ 0 };
	p->shorts[s++] = 'h';
	p->longs[l++] = (struct option){ "help", no_argument, NULL, 'h' };
	for (size_t i = 0; i < ARRAY_LEN(option_rows); i++) {
		const struct option_row *o = &option_rows[i];

		if (!(options & o->bit))
			continue;
		p->shorts[s++] = o->letter;
		if (o->arg)
			p->shorts[s++] = ':';
		p->longs[l++] = (struct option){ o->name,
						 o->arg ? required_argument :
							  no_argument,
						 NULL, o->letter };
	}
	assert(s < sizeof(p->shorts) && l < ARRAY_LEN(p->longs));
}

static enum ctl_option bit_of(int letter)
{
	for (size_t i = 0; i < ARRAY_LEN(option_rows); i++)
		if (option_rows[i].letter == letter)
			return option_rows[i].bit;
	return 0;
}

/* Where the value of an option goes, or NULL if it has none. */
static const char **value_of(struct ctl *ctl, enum ctl_option bit)
{
	switch (bit) {
	case CTL_IF:
		return &ctl->fence;
	case CTL_MOUNT:
		return &ctl->mount;
	case CTL_REPLACES:
		return &ctl->replaces;
	case CTL_MODE:
		return &ctl->mode;
	case CTL_REQUEST_ID:
		return &ctl->request_id;
	default:
		return NULL;
	}
}

/* argv[0] is the command's name. */
static int run(const struct command *c, int argc, char *argv[])
{
	static char program[] = "weightctl";
	struct ctl ctl = { 0 };
	const char **value;
	struct parser p;
	int letter;

	/* getopt_long() begins its messages with it. */
	argv[0] = program;
	parser_init(&p, c->options);
	while ((letter = getopt_long(argc, argv, p.shorts, p.longs, NULL)) !=
	       -1) {
		if (letter == 'h')
			return help_command(c);
		if (letter == '?')
			return usage(c);
		ctl.options |= bit_of(letter);
		value = value_of(&ctl, bit_of(letter));
		if (value)
			*value = optarg;
	}
	ctl.argc = argc - optind;
	ctl.argv = argv + optind;
	if (ctl.argc < c->args_min || ctl.argc > c->args_max)
		return usage(c);
	catch_signals();
	return c->fn(&ctl);
}

int main(int argc, char *argv[])
{
	const char *name = argc > 1 ? argv[1] : "";
	const struct command *c = find_command(name);
	int status;

	if (argc < 2) {
		(void)fprintf(stderr, "usage: weightctl COMMAND ...; see "
				      "weightctl --help\n");
		status = CTL_USAGE;
	} else if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
		(void)printf("weightctl " WEIGHTFS_VERSION "\n");
		status = CTL_OK;
	} else if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
		status = help_all();
	} else if (strcmp(name, "help") == 0) {
		status = help(argc - 2, argv + 2);
	} else {
		status = c ? run(c, argc - 1, argv + 1) : unknown_command(name);
	}
	if (status == CTL_REFUSED && ctl_interrupted())
		end_by_signal();
	/* Facts that could not be written are no success. */
	if (fflush(stdout) != 0 || ferror(stdout)) {
		say_note("standard output", "not all could be written to it");
		if (status == CTL_OK)
			status = CTL_REFUSED;
	}
	return status;
}
