/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon: parses the command line, opens the store, serves the mount.
 * The only file that may include from fs/, core/ and transport/ at once.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "config.h"
#include "core/config.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/weight_store.h"
#include "fs/attr_names.h"
#include "fs/log_sink.h"
#include "fs/mount.h"
#include "fs/offline.h"
#include "fs/process.h"

struct program {
	struct config config;
	struct buf options; /* of all -o together */
	enum offline_command command;
	const char *file; /* that it takes, from the command line */
	char *store;      /* absolute */
	char *mountpoint; /* absolute, resolved as far as it can be */
	bool foreground;
	int ready_fd; /* the parent waits for it; -1 in the foreground */
	struct log_sink *sink;
	struct buf why;
};

static int complain(struct program *p, int r)
{
	if (p->why.len > 0)
		(void)fprintf(stderr, "weightfs: %s\n", p->why.data);
	else
		(void)fprintf(stderr, "weightfs: %s\n", strerror(-r));
	return r;
}

static int print_help(void)
{
	struct buf text = BUF_INIT;
	int r = config_help(&text);

	if (r == 0)
		(void)printf(
			"Usage: weightfs STORE MOUNTPOINT [-o OPTION,...] "
			"[-f]\n"
			"       weightfs --check STORE\n"
			"       weightfs --export FILE STORE\n"
			"       weightfs --import FILE STORE\n"
			"       weightfs --help | --version\n"
			"\n"
			"Shows the revisions of model weights in the directory "
			"STORE, which is made if\n"
			"it is not there, as directories at MOUNTPOINT.\n"
			"\n"
			"  -o OPTION,...      options, as below\n"
			"  -f, --foreground   stay in the foreground\n"
			"      --check        look whether a store is sound, "
			"while nothing runs on it\n"
			"      --export FILE  write its metadata to FILE, "
			"which is new, or to - (stdout)\n"
			"      --import FILE  bring that into a store "
			"without metadata\n"
			"  -h, --help         this text\n"
			"  -V, --version      the version\n"
			"\n"
			"%s",
			text.data);
	buf_release(&text);
	text = (struct buf)BUF_INIT;
	if (r == 0)
		r = attr_help(&text);
	if (r == 0)
		(void)printf("\nAttributes, all named user.weights.NAME:\n\n%s",
			     text.data);
	buf_release(&text);
	return r;
}

/* ---- The command line ---- */

static int set_command(struct program *p, enum offline_command command)
{
	if (p->command != OFFLINE_NONE) {
		(void)buf_printf(&p->why, "one of --check, --export and "
					  "--import at a time");
		return -EINVAL;
	}
	p->command = command;
	p->file = optarg;
	return 0;
}

/* Returns 0 to go on, 1 when all is done, or a negative errno. */
static int parse_options(struct program *p, int argc, char *argv[])
{
	static const struct option longs[] = {
		{ "check", no_argument, NULL, 'C' },
		{ "export", required_argument, NULL, 'E' },
		{ "foreground", no_argument, NULL, 'f' },
		{ "help", no_argument, NULL, 'h' },
		{ "import", required_argument, NULL, 'I' },
		{ "version", no_argument, NULL, 'V' },
		{ 0 },
	};
	int r = 0;
	int c;

	while (r == 0 &&
	       (c = getopt_long(argc, argv, "o:fhV", longs, NULL)) != -1) {
		switch (c) {
		case 'o':
			r = buf_printf(&p->options, "%s%s",
				       p->options.len > 0 ? "," : "", optarg);
			break;
		case 'f':
			p->foreground = true;
			break;
		case 'C':
			r = set_command(p, OFFLINE_CHECK);
			break;
		case 'E':
			r = set_command(p, OFFLINE_EXPORT);
			break;
		case 'I':
			r = set_command(p, OFFLINE_IMPORT);
			break;
		case 'h':
			r = print_help();
			return r < 0 ? r : 1;
		case 'V':
			(void)printf("weightfs " WEIGHTFS_VERSION "\n");
			return 1;
		default:
			(void)buf_printf(&p->why, "see weightfs --help");
			return -EINVAL;
		}
	}
	return r;
}

static int parse_store(struct program *p, int argc, char *argv[])
{
	if (argc - optind != 1 || p->options.len > 0 || p->foreground) {
		(void)buf_printf(&p->why, "a STORE is needed and nothing else, "
					  "see weightfs --help");
		return -EINVAL;
	}
	p->store = strdup(argv[optind]);
	return p->store ? 0 : -ENOMEM;
}

static int parse_paths(struct program *p, int argc, char *argv[])
{
	int r;

	if (p->command != OFFLINE_NONE)
		return parse_store(p, argc, argv);
	if (argc - optind != 2) {
		(void)buf_printf(&p->why,
				 "a STORE and a MOUNTPOINT are needed, "
				 "see weightfs --help");
		return -EINVAL;
	}
	r = process_absolute(argv[optind], &p->store);
	if (r < 0) {
		(void)buf_printf(&p->why, "the store '%s': %s", argv[optind],
				 strerror(-r));
		return r;
	}
	r = process_absolute(argv[optind + 1], &p->mountpoint);
	if (r < 0)
		(void)buf_printf(&p->why, "the mount point '%s': %s",
				 argv[optind + 1], strerror(-r));
	return r;
}

/* Returns 0 to go on, 1 when all is done, or a negative errno. */
static int parse(struct program *p, int argc, char *argv[])
{
	int r = parse_options(p, argc, argv);

	if (r == 0)
		r = parse_paths(p, argc, argv);
	if (r == 0)
		r = config_parse_list(&p->config, p->options.data, &p->why);
	return r;
}

/* ---- Serving ---- */

static bool logs_to_stderr(const struct program *p)
{
	return p->config.log == CONFIG_LOG_STDERR ||
	       (p->config.log == CONFIG_LOG_AUTO && p->foreground);
}

static int open_log(struct program *p)
{
	enum log_sink_target target = LOG_SINK_SYSLOG;
	int r;

	if (p->config.log == CONFIG_LOG_FILE)
		target = LOG_SINK_FILE;
	else if (logs_to_stderr(p))
		target = LOG_SINK_STDERR;
	r = log_sink_open(target, p->config.log_file, &p->sink);
	if (r < 0) {
		(void)buf_printf(&p->why, "the log '%s': %s",
				 p->config.log_file, strerror(-r));
		return r;
	}
	log_set_sink(log_sink_write, p->sink);
	log_set_level(p->config.log_level);
	return 0;
}

/* What the library has to say goes where everything goes. */
__attribute__((format(printf, 2, 0))) static void library_log(
	enum fuse_log_level level, const char *fmt, va_list ap)
{
	char line[512];

	(void)vsnprintf(line, sizeof(line), fmt, ap);
	line[strcspn(line, "\n")] = '\0';
	log_emit(level <= FUSE_LOG_ERR ? LOG_LEVEL_WARN : LOG_LEVEL_DEBUG, 0,
		 "libfuse", "%s", line);
}

static void on_ready(void *arg)
{
	struct program *p = arg;

	log_info("weightfs " WEIGHTFS_VERSION " serves '%s' at '%s'", p->store,
		 p->mountpoint);
	if (p->ready_fd >= 0)
		process_ready(p->ready_fd, p->config.log == CONFIG_LOG_STDERR);
	p->ready_fd = -1;
}

static void on_hangup(void *arg)
{
	struct program *p = arg;

	log_sink_reopen(p->sink);
}

static int serve(struct program *p, struct buf *shortcomings)
{
	cleanup(weight_store_close_cleanup) struct weight_store *store = NULL;
	const struct mount_options options = {
		.store = p->store,
		.mountpoint = p->mountpoint,
		.foreground = p->foreground,
		.ready = on_ready,
		.hangup = on_hangup,
		.arg = p,
	};
	struct fs *fs = NULL;
	int r;

	r = mount_prepare(p->mountpoint, &p->why);
	if (r == 0)
		r = weight_store_open(p->store, &p->config, &store, &p->why);
	if (r == 0)
		r = weight_tree_set_mountpoint(store, p->mountpoint, 0);
	if (r == 0)
		r = fs_new(store, &p->config, &fs);
	if (r < 0)
		return r;
	(void)buf_append(&fs->shortcomings, shortcomings->data,
			 shortcomings->len);
	r = mount_serve(fs, &options, &p->why);
	if (r == 0)
		log_info("unmounted '%s'", p->mountpoint);
	return r;
}

static int run(struct program *p)
{
	struct buf shortcomings = BUF_INIT;
	int r = 0;

	mount_block_signals();
	process_prepare(&shortcomings);
	if (!p->foreground)
		r = process_background(&p->ready_fd);
	if (r == 0)
		r = open_log(p);
	if (r == 0) {
		fuse_set_log_func(library_log);
		metrics_set_version(WEIGHTFS_VERSION);
		r = serve(p, &shortcomings);
	}
	buf_release(&shortcomings);
	return r;
}

int main(int argc, char *argv[])
{
	struct program p = { .options = BUF_INIT,
			     .why = BUF_INIT,
			     .ready_fd = -1 };
	int r;

	config_init(&p.config);
	r = parse(&p, argc, argv);
	if (r == 0)
		r = p.command ?
			    offline_run(p.command, p.file, p.store, &p.why) :
			    run(&p);
	if (r < 0)
		(void)complain(&p, r);

	log_set_sink(NULL, NULL);
	log_sink_close(p.sink);
	buf_release(&p.options);
	buf_release(&p.why);
	free(p.store);
	free(p.mountpoint);
	if (r < 0)
		return EXIT_FAILURE;
	return r == OFFLINE_WRONG ? OFFLINE_WRONG : EXIT_SUCCESS;
}
