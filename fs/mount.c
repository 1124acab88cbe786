/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/mount.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "core/log.h"
#include "fs/mountinfo.h"
#include "fs/notify.h"
#include "fs/ops.h"

#define DEVICE "/dev/fuse"
#define FUSE_CONF "/etc/fuse.conf"
#define FUSE_CONF_BYTES_MAX 65536
/* One on top of the other, when several daemons died there. */
#define DEAD_MOUNTS_MAX 16
/* The kernel's default of 128 KiB makes maps without passthrough crawl. */
#define READ_AHEAD_KB "4096"
/* How often a thread that is about to read the device is woken. */
#define WAKE_MS 20
/* How often the next request is looked for before sleeping: about 20 us. */
#define SPINS 40

/* ---- The mount point ---- */

static bool is_dead(int err)
{
	return err == ENOTCONN || err == ECONNABORTED;
}

/* fusermount3 unmounts for those who may not. */
static int unmount_as_user(const char *mountpoint)
{
	char *const argv[] = { (char[]){ "fusermount3" },
			       (char[]){ "-u" },
			       (char[]){ "-z" },
			       (char[]){ "--" },
			       (char *)(uintptr_t)mountpoint,
			       NULL };
	int status;
	pid_t pid;
	int err = posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ);

	if (err != 0)
		return -err;
	if (waitpid(pid, &status, 0) != pid)
		return -errno;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EPERM;
}

static int clear_dead(const char *mountpoint, struct buf *why)
{
	int r = 0;

	if (!mountinfo_is_ours(mountpoint)) {
		(void)buf_printf(
			why,
			"the mount at '%s' is dead and not a weightfs; "
			"unmount it first",
			mountpoint);
		return -EBUSY;
	}
	if (umount2(mountpoint, MNT_DETACH) != 0)
		r = errno == EPERM ? unmount_as_user(mountpoint) : -errno;
	if (r < 0) {
		(void)buf_printf(why, "clearing the dead mount at '%s': %s",
				 mountpoint, strerror(-r));
		return r;
	}
	log_info("cleared the dead mount at '%s'", mountpoint);
	return 0;
}

static int check_directory(const char *mountpoint, const struct stat *st,
			   struct buf *why)
{
	if (!S_ISDIR(st->st_mode)) {
		(void)buf_printf(why, "the mount point '%s' is not a directory",
				 mountpoint);
		return -ENOTDIR;
	}
	if (mountinfo_is_ours(mountpoint)) {
		(void)buf_printf(
			why, "another weightfs is mounted at '%s' and alive",
			mountpoint);
		return -EBUSY;
	}
	return 0;
}

int mount_prepare(const char *mountpoint, struct buf *why)
{
	struct statfs fs;
	struct stat st;
	int r;

	if (access(DEVICE, F_OK) != 0) {
		r = -errno;
		(void)buf_printf(why,
				 DEVICE " is not there: load the fuse module, "
					"or give the container the device");
		return r;
	}
	for (int i = 0; i < DEAD_MOUNTS_MAX; i++) {
		/* Attributes of a dead mount may be cached; these are not. */
		if (stat(mountpoint, &st) == 0 && statfs(mountpoint, &fs) == 0)
			return check_directory(mountpoint, &st, why);
		if (!is_dead(errno)) {
			r = -errno;
			(void)buf_printf(why, "the mount point '%s': %s",
					 mountpoint, strerror(-r));
			return r;
		}
		r = clear_dead(mountpoint, why);
		if (r < 0)
			return r;
	}
	(void)buf_printf(why, "'%s' has too many dead mounts", mountpoint);
	return -EBUSY;
}

/* ---- Options of the mount itself ---- */

/* Whether a plain user may let others in. */
static bool user_may_allow_other(void)
{
	char text[FUSE_CONF_BYTES_MAX];
	auto_fd int fd = open(FUSE_CONF, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	char *rest = text;

	if (n < 0)
		return false;
	text[n] = '\0';
	for (char *line = strsep(&rest, "\n"); line;
	     line = strsep(&rest, "\n")) {
		line += strspn(line, " \t");
		line[strcspn(line, " \t\r")] = '\0';
		if (strcmp(line, "user_allow_other") == 0)
			return true;
	}
	return false;
}

static bool wants_allow_other(const struct config *config)
{
	switch (config->allow_other) {
	case CONFIG_ALLOW_OTHER_ON:
		return true;
	case CONFIG_ALLOW_OTHER_OFF:
		return false;
	default:
		return geteuid() == 0 || user_may_allow_other();
	}
}

/* A value in a list of options: commas and backslashes are escaped. */
static int append_value(struct buf *list, const char *value)
{
	int r = 0;

	for (; *value != '\0' && r == 0; value++)
		r = buf_printf(list, "%s%c",
			       *value == ',' || *value == '\\' ? "\\" : "",
			       *value);
	return r;
}

static int session_new(struct fs *fs, const struct mount_options *options)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	struct buf list = BUF_INIT;
	int r;

	r = buf_printf(&list,
		       "subtype=weightfs,default_permissions,nosuid,"
		       "nodev%s,fsname=",
		       wants_allow_other(fs->config) ? ",allow_other" : "");
	if (r == 0)
		r = append_value(&list, options->store);
	if (r == 0 && (fuse_opt_add_arg(&args, "weightfs") != 0 ||
		       fuse_opt_add_arg(&args, "-o") != 0 ||
		       fuse_opt_add_arg(&args, list.data) != 0))
		r = -ENOMEM;
	if (r == 0) {
		fs->session =
			fuse_session_new(&args, &fs_ops, sizeof(fs_ops), fs);
		r = fs->session ? 0 : -EINVAL;
	}
	fuse_opt_free_args(&args);
	buf_release(&list);
	return r;
}

/* ---- Signals ---- */

struct signals {
	pthread_t thread;
	pthread_t server; /* the thread that runs the loop */
	const struct mount_options *options;
	struct fuse_session *session;
	atomic_bool over;
};

static void signal_set(sigset_t *set)
{
	(void)sigemptyset(set);
	(void)sigaddset(set, SIGTERM);
	(void)sigaddset(set, SIGINT);
	(void)sigaddset(set, SIGHUP);
}

static void do_nothing(int sig)
{
	(void)sig;
}

void mount_block_signals(void)
{
	struct sigaction wake = { .sa_handler = do_nothing };
	struct sigaction ignore = { .sa_handler = SIG_IGN };
	sigset_t set;

	signal_set(&set);
	(void)pthread_sigmask(SIG_BLOCK, &set, NULL);
	/* Not restarting: it ends the read of the device. */
	(void)sigaction(SIGUSR1, &wake, NULL);
	/* What breaking a lease sends, which would kill. */
	(void)sigaction(SIGIO, &ignore, NULL);
	(void)sigaction(SIGPIPE, &ignore, NULL);
}

/* Ends the loop, however unlucky the moment. */
static void end_loop(struct signals *s)
{
	const struct timespec pause = { .tv_nsec = WAKE_MS * 1000000L };
	sigset_t set;

	signal_set(&set);
	fuse_session_exit(s->session);
	while (!atomic_load(&s->over)) {
		(void)pthread_kill(s->server, SIGUSR1);
		(void)sigtimedwait(&set, NULL, &pause);
	}
}

static void *signals_main(void *arg)
{
	struct signals *s = arg;
	sigset_t set;
	int sig;

	signal_set(&set);
	while (!atomic_load(&s->over)) {
		if (sigwait(&set, &sig) != 0 || atomic_load(&s->over))
			continue;
		if (sig == SIGHUP && !s->options->foreground) {
			s->options->hangup(s->options->arg);
			continue;
		}
		log_info("ending for signal %d", sig);
		end_loop(s);
	}
	return NULL;
}

static int signals_start(struct signals *s)
{
	int err;

	atomic_init(&s->over, false);
	s->server = pthread_self();
	err = pthread_create(&s->thread, NULL, signals_main, s);
	return -err;
}

static void signals_stop(struct signals *s)
{
	atomic_store(&s->over, true);
	/* It is blocked everywhere, so it only ends the thread's wait. */
	(void)pthread_kill(s->thread, SIGHUP);
	(void)pthread_join(s->thread, NULL);
}

/* ---- Getting ready ---- */

struct starter {
	pthread_t thread;
	struct fs *fs;
	const struct mount_options *options;
};

static void set_read_ahead(dev_t dev)
{
	char path[64];
	auto_fd int fd = -1;

	(void)snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb",
		       major(dev), minor(dev));
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, READ_AHEAD_KB, sizeof(READ_AHEAD_KB) - 1) < 0)
		log_debug(-errno, "setting '%s'", path);
}

/* Asks through the mount like anybody else, so an answer means it serves. */
static void *starter_main(void *arg)
{
	struct starter *s = arg;
	struct stat st;

	if (stat(s->options->mountpoint, &st) != 0) {
		log_debug(-errno, "looking at '%s'", s->options->mountpoint);
		return NULL;
	}
	s->fs->device_minor = minor(st.st_dev);
	set_read_ahead(st.st_dev);
	(void)weight_tree_set_mountpoint(s->fs->store, s->options->mountpoint,
					 st.st_dev);
	/* Uses the session's descriptor, which is closed when that ends. */
	fs_begin(s->fs);
	if (!atomic_load(&s->fs->stopping))
		passthrough_try(s->fs);
	fs_end(s->fs);
	s->options->ready(s->options->arg);
	return NULL;
}

static int starter_start(struct starter *s)
{
	sigset_t all, old;
	int err;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_BLOCK, &all, &old);
	err = pthread_create(&s->thread, NULL, starter_main, s);
	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -err;
}

/* ---- Serving ---- */

/*
 * Looks for the next request a few times before sleeping for it. An open is
 * followed by a close and the next open within microseconds, and waking a
 * thread on an idle processor costs more than answering. Whoever else wants
 * this processor goes first.
 */
static void spin_for_request(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	for (unsigned i = 0; i < SPINS && poll(&p, 1, 0) == 0; i++)
		(void)sched_yield();
}

/* As fuse_session_loop(). */
static int serve_requests(struct fuse_session *session)
{
	struct fuse_buf request = { .mem = NULL };
	int fd = fuse_session_fd(session);
	int r = 0;

	while (!fuse_session_exited(session)) {
		spin_for_request(fd);
		r = fuse_session_receive_buf(session, &request);
		if (r == -EINTR)
			continue;
		if (r <= 0)
			break;
		fuse_session_process_buf(session, &request);
	}
	free(request.mem);
	return r > 0 || r == -EINTR ? 0 : r;
}

static int serve_mounted(struct fs *fs, const struct mount_options *options)
{
	struct starter starter = { .fs = fs, .options = options };
	struct signals signals = { .options = options, .session = fs->session };
	bool started = false;
	int r = signals_start(&signals);

	if (r == 0) {
		r = starter_start(&starter);
		started = r == 0;
		if (started)
			r = serve_requests(fs->session);
		signals_stop(&signals);
	}
	fs_stop(fs);
	fuse_session_unmount(fs->session);
	if (started)
		(void)pthread_join(starter.thread, NULL);
	/* A positive number is the signal that ended it. */
	return r > 0 ? 0 : r;
}

/* libfuse says what it missed in the log only, where a user won't look. */
static void say_why_not(const char *mountpoint, struct buf *why)
{
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	(void)buf_printf(why, "mounting at '%s' failed", mountpoint);
	if (fd < 0)
		(void)buf_printf(why, ": /dev/fuse: %s", strerror(errno));
	else if (geteuid() != 0)
		(void)buf_printf(why, ": an ordinary user needs fusermount3 "
				      "(package fuse3), a mount point of his "
				      "own, and for allow_other the line "
				      "user_allow_other in /etc/fuse.conf");
	if (fd >= 0)
		(void)close(fd);
}

int mount_serve(struct fs *fs, const struct mount_options *options,
		struct buf *why)
{
	struct fuse_session *session;
	int r = session_new(fs, options);

	session = fs->session;
	if (r < 0) {
		(void)buf_printf(why, "making a session: %s", strerror(-r));
	} else if (fuse_session_mount(session, options->mountpoint) != 0) {
		r = errno > 0 ? -errno : -EIO;
		say_why_not(options->mountpoint, why);
	} else {
		r = serve_mounted(fs, options);
		if (r < 0)
			(void)buf_printf(why, "serving '%s': %s",
					 options->mountpoint, strerror(-r));
	}
	fs_free(fs);
	if (session)
		fuse_session_destroy(session);
	return r;
}
