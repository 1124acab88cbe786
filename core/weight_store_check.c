/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a store is sound: its metadata, and that the payload which it speaks
 * of is there. What is in the files is not read.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/manifest.h"
#include "core/store_dir.h"
#include "core/weight_key.h"
#include "core/weight_store_offline_priv.h"

#define MANIFEST_NAME "manifest.json"
#define IDENTITY_NAME "identity.json"
#define FILES_NAME "files"
#define READ_BYTES ((size_t)1 << 20)
/* Of one revision; the others are counted. */
#define FILES_SHOWN_MAX 5
#define IDENTITY_SHOWN_MAX 1024

struct checker {
	struct offline offline;
	const struct weight_store_watch *watch;
	struct weight_store_summary summary;
	struct payload_names names;
	char *piece; /* READ_BYTES */
};

static void checker_release(struct checker *c)
{
	payload_names_release(&c->names);
	offline_release(&c->offline);
	free(c->piece);
}

/* ---- Lines ---- */

/* Names come from users, and a finding is one line. */
static void make_printable(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < 0x20 || *text == 0x7f)
			*text = '?';
}

static void tell(struct checker *c, char *line)
{
	make_printable(line);
	if (c->watch->found)
		c->watch->found(c->watch->arg, line);
}

__attribute__((format(printf, 2, 3))) static int note(struct checker *c,
						      const char *format, ...)
{
	cleanup(buf_release) struct buf line = BUF_INIT;
	va_list ap;
	int r;

	c->summary.wrong++;
	va_start(ap, format);
	r = buf_vprintf(&line, format, ap);
	va_end(ap);
	if (r == 0)
		tell(c, line.data);
	return r;
}

static int note_revision(struct checker *c, const struct weight_identity *id,
			 const char *what)
{
	return note(c, "revision %s/%s/%s/%s/%llu: %s", id->lineage.tenant,
		    id->lineage.name_space, id->lineage.resource,
		    id->lineage.revision, (unsigned long long)id->generation,
		    what);
}

/* A line for each thing that the metadata's own check found. */
static void tell_report(struct checker *c, char *report)
{
	char *next, *line = report;

	for (; *line; line = next) {
		next = line + strcspn(line, "\n");
		if (*next)
			*next++ = '\0';
		tell(c, line);
	}
}

static int check_metadata(struct checker *c, struct buf *why)
{
	cleanup(buf_release) struct buf report = BUF_INIT;
	uint64_t bad = 0;
	int r = wms_check(c->offline.records, &report, &bad);

	if (r == -EUCLEAN) {
		c->summary.unreadable = true;
		return note(c, "the metadata can't be read through");
	}
	if (r < 0)
		return offline_say(&c->offline, r, "checking the metadata of",
				   why);
	c->summary.wrong += bad;
	if (bad > 0)
		tell_report(c, report.data);
	return 0;
}

/* ---- Payload ---- */

/* One revision whose payload is looked at. */
struct looked {
	struct checker *c;
	const struct weight_metadata *m;
	int dirfd;    /* of its directory */
	int files_fd; /* of files/ in it */
	size_t bad_files;
};

static void looked_release(struct looked *l)
{
	if (l->dirfd >= 0)
		(void)close(l->dirfd);
	if (l->files_fd >= 0)
		(void)close(l->files_fd);
}

static int note_looked(struct looked *l, const char *what)
{
	return note_revision(l->c, &l->m->identity, what);
}

/* 1: it was told of what is wrong. */
static int open_payload(struct looked *l, const char *path)
{
	char line[128];
	int r;

	l->dirfd = openat(l->c->offline.groups_fd, path,
			  O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (l->dirfd < 0) {
		(void)snprintf(line, sizeof(line),
			       "its directory " STORE_GROUPS_NAME "/%s: %s",
			       path, strerrordesc_np(errno));
		r = note_looked(l, line);
		return r < 0 ? r : 1;
	}
	l->files_fd = openat(l->dirfd, FILES_NAME,
			     O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (l->files_fd >= 0)
		return 0;
	(void)snprintf(line, sizeof(line),
		       "its files in " STORE_GROUPS_NAME "/%s: %s", path,
		       strerrordesc_np(errno));
	r = note_looked(l, line);
	return r < 0 ? r : 1;
}

static int read_manifest(struct looked *l, struct buf *ret)
{
	auto_fd int fd = openat(l->dirfd, MANIFEST_NAME,
				O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	ssize_t n;
	int r = fd < 0 ? -errno : 0;

	while (r == 0 && (n = read(fd, l->c->piece, READ_BYTES)) != 0)
		r = n < 0 ? -errno : buf_append(ret, l->c->piece, (size_t)n);
	return r;
}

/* What is wrong with a file, or NULL. */
static const char *file_fault(int files_fd, const struct manifest_file *f)
{
	static const mode_t kinds[] = {
		[MANIFEST_REGULAR] = S_IFREG,
		[MANIFEST_DIRECTORY] = S_IFDIR,
		[MANIFEST_SYMLINK] = S_IFLNK,
	};
	struct stat st;

	if (fstatat(files_fd, f->path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return strerrordesc_np(errno);
	if ((st.st_mode & S_IFMT) != kinds[f->kind])
		return "it is of another kind";
	if (f->kind == MANIFEST_REGULAR && (uint64_t)st.st_size != f->size)
		return "it has another size";
	return NULL;
}

static int check_files(struct looked *l, const struct manifest *m)
{
	char more[64];
	int r = 0;

	for (size_t i = 0; i < m->file_count && r == 0; i++) {
		cleanup(buf_release) struct buf line = BUF_INIT;
		const char *fault = file_fault(l->files_fd, &m->files[i]);

		if (!fault || l->bad_files++ >= FILES_SHOWN_MAX)
			continue;
		r = buf_printf(&line, "its file '%s': %s", m->files[i].path,
			       fault);
		if (r == 0)
			r = note_looked(l, line.data);
	}
	if (r < 0 || l->bad_files <= FILES_SHOWN_MAX)
		return r;
	(void)snprintf(more, sizeof(more), "%zu more of its files are wrong",
		       l->bad_files - FILES_SHOWN_MAX);
	return note_looked(l, more);
}

static int check_manifest(struct looked *l)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	cleanup(buf_release) struct buf text = BUF_INIT;
	struct digest digest;
	int r = read_manifest(l, &text);

	if (r == -ENOMEM)
		return r;
	if (r < 0) {
		(void)log_debug(r, "reading a manifest");
		return note_looked(l, r == -ENOENT ?
					      "its manifest is not there" :
					      "its manifest can't be read");
	}
	r = manifest_digest(text.data, text.len, &digest);
	if (r < 0)
		return r;
	if (!digest_equal(&digest, &l->m->manifest.manifest_sha256))
		return note_looked(l, "its manifest is not the one that was "
				      "published");
	r = manifest_parse(text.data, text.len, &m, NULL);
	if (r == -ENOMEM)
		return r;
	return r < 0 ? note_looked(l, "its manifest makes no sense") :
		       check_files(l, m);
}

static bool has_payload(const struct weight_metadata *m)
{
	return m->availability == WEIGHT_READY ||
	       m->availability == WEIGHT_DEGRADED;
}

static int check_payload(struct checker *c, const struct weight_metadata *m)
{
	cleanup(looked_release) struct looked l = {
		.c = c, .m = m, .dirfd = -1, .files_fd = -1
	};
	char path[OFFLINE_GROUP_PATH_LEN];
	char hex[DIGEST_HEX_LEN + 1];
	int r;

	if (!has_payload(m))
		return 0;
	r = weight_group_hex(&m->identity, hex);
	if (r < 0)
		return r;
	if (m->availability == WEIGHT_DEGRADED)
		r = note_looked(&l, "it is degraded: some of it is lost, "
				    "weightctl repair takes good files");
	offline_group_path(hex, path);
	if (r == 0)
		r = open_payload(&l, path);
	if (r == 0)
		r = check_manifest(&l);
	return r > 0 ? 0 : r;
}

static int check_revisions(struct checker *c)
{
	struct wms_position at = { 0 };
	uint64_t done = 0;
	int r = 0;

	/* What is damaged has a line already. */
	while (r == 0 || wms_is_damage(r)) {
		cleanup(weight_metadata_free_cleanup) struct weight_metadata
			*m = NULL;

		r = wms_revision_each(c->offline.records, &at, &m);
		if (r == 0)
			r = check_payload(c, m);
		if (r == 0 && c->watch->progress)
			c->watch->progress(c->watch->arg, ++done,
					   c->summary.revisions);
	}
	return r == -ENOENT ? 0 : r;
}

/* A staged one has its directory, but for the instant in which it was made. */
static int check_staged(struct checker *c)
{
	struct wms_position at = { 0 };
	int r = 0;

	while (r == 0 || wms_is_damage(r)) {
		cleanup(weight_staging_free_cleanup) struct weight_staging *st =
			NULL;
		char hex[DIGEST_HEX_LEN + 1], path[OFFLINE_GROUP_PATH_LEN];

		if ((r = wms_staged_each(c->offline.records, &at, &st)) < 0 ||
		    (r = weight_group_hex(&st->identity, hex)) < 0)
			continue;
		offline_group_path(hex, path);
		if (faccessat(c->offline.groups_fd, path, F_OK,
			      AT_SYMLINK_NOFOLLOW) < 0)
			r = note_revision(c, &st->identity,
					  "it is staged, and has no directory; "
					  "the next start forgets it");
	}
	return r == -ENOENT ? 0 : r;
}

/* What its identity.json says, for people; nothing when it has none. */
static void append_identity(int groups_fd, const char *path, struct buf *line)
{
	char text[IDENTITY_SHOWN_MAX + 1];
	struct buf name = BUF_INIT;
	auto_fd int fd = -1;
	ssize_t n = 0;

	if (buf_printf(&name, "%s/" IDENTITY_NAME, path) == 0)
		fd = openat(groups_fd, name.data,
			    O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	buf_release(&name);
	if (fd >= 0)
		n = read(fd, text, IDENTITY_SHOWN_MAX);
	if (n <= 0)
		return;
	text[n] = '\0';
	(void)buf_printf(line, "; it was %s", text);
}

static int note_stray(void *arg, const char *path)
{
	cleanup(buf_release) struct buf line = BUF_INIT;
	struct checker *c = arg;
	const char *hex = strchr(path, '/');
	bool gone = hex && map_find(c->names.gone, hex + 1, strlen(hex + 1));

	append_identity(c->offline.groups_fd, path, &line);
	return note(c, STORE_GROUPS_NAME "/%s: %s%s", path,
		    gone ? "what is left of a revision that was removed" :
			   "no record knows it",
		    line.data);
}

static int count_payload(struct checker *c, uint64_t *ret)
{
	struct wms_position at = { 0 };
	uint64_t count = 0;
	int r = 0;

	while (r == 0 || wms_is_damage(r)) {
		cleanup(weight_metadata_free_cleanup) struct weight_metadata
			*m = NULL;

		r = wms_revision_each(c->offline.records, &at, &m);
		count += r == 0 && has_payload(m);
	}
	*ret = count;
	return r == -ENOENT ? 0 : r;
}

/* Of metadata alone, one line says it all. */
static int note_no_payload(struct checker *c)
{
	uint64_t count;
	int r = count_payload(c, &count);

	if (r < 0 || count == 0)
		return r;
	return note(c,
		    STORE_GROUPS_NAME " is not there: the payload of %llu "
				      "revision%s is missing",
		    (unsigned long long)count, count == 1 ? "" : "s");
}

static int check_groups(struct checker *c, struct buf *why)
{
	int r;

	if (c->offline.groups_fd < 0)
		r = note_no_payload(c);
	else if ((r = payload_names_read(c->offline.records, &c->names)) == 0 &&
		 (r = check_revisions(c)) == 0 && (r = check_staged(c)) == 0)
		r = payload_strays(c->offline.groups_fd, &c->names, note_stray,
				   c);
	return r < 0 ? offline_say(&c->offline, r, "checking the payload of",
				   why) :
		       0;
}

/* ---- All of it ---- */

/* The database is damaged: that is what there is to be said. */
static int note_unreadable(struct checker *c, struct buf *why)
{
	int r;

	c->summary.unreadable = true;
	r = note(c, "%s", why->data);
	buf_release(why);
	return r;
}

static int check_all(struct checker *c, struct buf *why)
{
	int r = offline_open(&c->offline, why);

	if (r == -EUCLEAN)
		return note_unreadable(c, why);
	if (r < 0 || (r = check_metadata(c, why)) < 0 || c->summary.unreadable)
		return r;
	r = offline_summary(&c->offline, &c->summary, why);
	return r < 0 ? r : check_groups(c, why);
}

int weight_store_check(const char *path, const struct weight_store_watch *watch,
		       struct weight_store_summary *ret, struct buf *why)
{
	cleanup(checker_release) struct checker c = {
		.offline = OFFLINE_INIT(path),
		.watch = watch,
		.piece = malloc(READ_BYTES),
	};
	int r = c.piece ? payload_names_new(&c.names) : -ENOMEM;

	if (r == 0)
		r = check_all(&c, why);
	if (r == 0)
		*ret = c.summary;
	return r;
}
