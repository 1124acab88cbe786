/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress on standard error: a line that is drawn over and over on a
 * terminal, elsewhere a new line each BAR_LINE_MS and one at the end.
 *
 * Nothing is owned. A wait that takes no time shows nothing.
 */
#ifndef MOUNT_HELPERS_WEIGHTCTL_BAR_H
#define MOUNT_HELPERS_WEIGHTCTL_BAR_H

#include <stdbool.h>
#include <stdint.h>

#define BAR_DRAW_MS 100
#define BAR_LINE_MS 10000
#define BAR_NOTE_MAX 256

struct bar {
	const char *title;
	bool quiet;
	bool terminal;
	bool shown; /* something was */
	bool over;  /* it came to its end */
	uint64_t began_ms, drawn_ms;
	uint64_t done, total;    /* bytes; total 0: unknown */
	uint64_t base;           /* done when it began: no part of the rate */
	bool based;              /* base is set */
	double fraction;         /* of a note that tells it, else below 0 */
	char note[BAR_NOTE_MAX]; /* one line, or empty */
};

/* title is borrowed. */
void bar_begin(struct bar *bar, const char *title, bool quiet);

/* Bytes done of total. Draws when that is due. */
void bar_bytes(struct bar *bar, uint64_t done, uint64_t total);

/*
 * A line that says how far it is. Pairs like "1.5 of 4.0 GiB" in it, the one
 * that is furthest behind, make the bar while the bytes are not known.
 */
void bar_note(struct bar *bar, const char *line);

/* Makes room for a line of another kind; the bar is drawn below it again. */
void bar_step_aside(struct bar *bar);

/*
 * Leaves the last state on a line of its own if anything was shown, or, where
 * there is no terminal, if there were bytes to move. over: nothing is left.
 */
void bar_end(struct bar *bar, bool over);

/* The smallest a/b of all "a of b" in line, or below 0 when there is none. */
double bar_fraction(const char *line);

#endif
