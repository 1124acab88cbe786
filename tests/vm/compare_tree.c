/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares a tree, as it is served, with the tree that was copied in.
 *
 * usage: compare_tree ORIGINAL SERVED
 *
 * Prints one line for each name that isn't whole: "missing NAME", "refused
 * NAME: why", "unreadable NAME: bytes of bytes", "wrong NAME: what". Exit
 * status: 0 all is equal; 1 something is missing or can't be read, and all
 * that can be read is right; 2 a wrong byte, size, kind or name is shown;
 * 3 the comparison itself failed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/cleanup.h"

#define PIECE 65536
#define PAGE 4096 /* the least that is asked for where a piece fails */

enum verdict { EQUAL, INCOMPLETE, WRONG, TROUBLE };

static enum verdict worst;
static const char *original_root, *served_root;

static void verdict(enum verdict v, const char *word, const char *name,
		    const char *text)
{
	(void)printf("%s %s%s%s\n", word, name, text ? ": " : "",
		     text ? text : "");
	if (v > worst)
		worst = v;
}

static char *joined(const char *a, const char *b)
{
	char *path;

	if (asprintf(&path, "%s%s%s", a, a[0] ? "/" : "", b) < 0)
		abort();
	return path;
}

/* What an honest refusal looks like; any other errno is a fault. */
static bool is_refusal(int e)
{
	return e == EIO || e == EINPROGRESS;
}

/* Returns the number of bytes that can't be read, or -1 for a wrong byte. */
static long compare_piece(const char *name, int a, int b, off_t at, size_t len)
{
	static char expected[PIECE], got[PIECE];
	ssize_t n = pread(a, expected, len, at);
	long bad = 0, r;
	char text[64];

	if (n != (ssize_t)len) {
		verdict(TROUBLE, "trouble", name, "the original can't be read");
		return -1;
	}
	n = pread(b, got, len, at);
	if (n == (ssize_t)len && memcmp(expected, got, len) == 0)
		return 0;
	if (n < 0 && errno == EIO && len <= PAGE)
		return (long)len;
	if (n < 0 && errno == EIO) {
		for (size_t i = 0; i < len; i += PAGE) {
			r = compare_piece(name, a, b, at + (off_t)i,
					  len - i < PAGE ? len - i : PAGE);
			if (r < 0)
				return -1;
			bad += r;
		}
		return bad;
	}
	if (n < 0)
		(void)snprintf(text, sizeof(text), "read: %s", strerror(errno));
	else
		(void)snprintf(text, sizeof(text), "bytes %ld to %ld of it",
			       (long)at, (long)at + (long)len);
	verdict(WRONG, "wrong", name, text);
	return -1;
}

/* A file that isn't refused has its size and no wrong byte. */
static void compare_opened(const char *name, int a, int b, off_t size)
{
	long bad = 0, r;
	struct stat st;
	char text[64];

	if (fstat(b, &st) < 0 || st.st_size != size) {
		verdict(WRONG, "wrong", name, "its size");
		return;
	}
	for (off_t at = 0; at < size; at += PIECE) {
		off_t left = size - at;

		r = compare_piece(name, a, b, at,
				  left < PIECE ? (size_t)left : PIECE);
		if (r < 0)
			return;
		bad += r;
	}
	(void)snprintf(text, sizeof(text), "%ld of %ld bytes", bad, (long)size);
	if (bad > 0)
		verdict(INCOMPLETE, "unreadable", name, text);
}

static void refused(const char *name)
{
	verdict(is_refusal(errno) ? INCOMPLETE : WRONG,
		is_refusal(errno) ? "refused" : "wrong", name, strerror(errno));
}

static void compare_file(const char *name, const char *original,
			 const char *served, off_t size)
{
	auto_fd int a = open(original, O_RDONLY | O_CLOEXEC);
	auto_fd int b = open(served, O_RDONLY | O_CLOEXEC);

	if (b < 0)
		refused(name);
	else if (a < 0)
		verdict(TROUBLE, "trouble", name, "the original can't be read");
	else
		compare_opened(name, a, b, size);
}

static void compare_dir(const char *name);

static void compare_name(const char *name)
{
	auto_free char *original = joined(original_root, name);
	auto_free char *served = joined(served_root, name);
	struct stat a, b;

	if (lstat(original, &a) < 0) {
		verdict(TROUBLE, "trouble", name, strerror(errno));
	} else if (lstat(served, &b) < 0) {
		if (errno == ENOENT)
			verdict(INCOMPLETE, "missing", name, NULL);
		else
			refused(name);
	} else if ((a.st_mode & S_IFMT) != (b.st_mode & S_IFMT)) {
		verdict(WRONG, "wrong", name, "another kind");
	} else if (S_ISDIR(a.st_mode)) {
		compare_dir(name);
	} else if (S_ISREG(a.st_mode)) {
		compare_file(name, original, served, a.st_size);
	}
}

/* Calls fn for each name below root/name. */
static void each(const char *root, const char *name, void (*fn)(const char *))
{
	auto_free char *path = joined(root, name);
	DIR *dir = opendir(path);
	struct dirent *d;

	if (!dir) {
		refused(name);
		return;
	}
	while ((d = readdir(dir))) {
		auto_free char *below = NULL;

		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		below = joined(name, d->d_name);
		fn(below);
	}
	(void)closedir(dir);
}

static void must_be_known(const char *name)
{
	auto_free char *original = joined(original_root, name);
	struct stat st;

	if (lstat(original, &st) < 0)
		verdict(WRONG, "wrong", name, "it was never copied in");
}

static void compare_dir(const char *name)
{
	each(original_root, name, compare_name);
	each(served_root, name, must_be_known);
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		(void)fputs("usage: compare_tree ORIGINAL SERVED\n", stderr);
		return TROUBLE;
	}
	original_root = argv[1];
	served_root = argv[2];
	compare_dir("");
	return worst;
}
