/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-helpers/weightctl_bar.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/util.h"
#include "mount-helpers/weightctl_say.h"

#define COLUMNS_DEFAULT 80
#define COLUMNS_MAX 500
#define CELLS_MAX 30
#define CELLS_MIN 8
/* Before that a rate is mere chance. */
#define RATE_MS_MIN 500

/* ---- "a of b" ---- */

/* A number and its unit, if it has one. Returns where it ends, or NULL. */
static const char *quantity(const char *s, double *ret, bool *ret_has_unit)
{
	static const struct {
		const char *name;
		double factor;
	} units[] = {
		{ "B", 1 },
		{ "KiB", 1024 },
		{ "MiB", 1024.0 * 1024 },
		{ "GiB", 1024.0 * 1024 * 1024 },
		{ "TiB", 1024.0 * 1024 * 1024 * 1024 },
	};
	char *end;
	double value;

	if (!isdigit((unsigned char)*s))
		return NULL;
	value = strtod(s, &end);
	*ret_has_unit = false;
	for (size_t i = 0; i < ARRAY_LEN(units) && *end == ' '; i++) {
		size_t len = strlen(units[i].name);

		if (strncmp(end + 1, units[i].name, len) != 0 ||
		    isalnum((unsigned char)end[1 + len]))
			continue;
		value *= units[i].factor;
		*ret_has_unit = true;
		end += 1 + len;
		break;
	}
	*ret = value;
	return end;
}

/* "3 of 9", "1.5 of 4.0 GiB", "200.0 MiB of 4.0 GiB". */
static bool pair(const char *s, double *ret)
{
	static const char of[] = " of ";
	bool first_unit, second_unit;
	double a, b, alone;
	const char *rest = quantity(s, &a, &first_unit);

	if (!rest || strncmp(rest, of, sizeof(of) - 1) != 0)
		return false;
	rest += sizeof(of) - 1;
	if (!quantity(rest, &b, &second_unit))
		return false;
	alone = strtod(rest, NULL);
	if (!first_unit && second_unit && alone > 0)
		a *= b / alone;
	*ret = b > 0 ? a / b : 1;
	return true;
}

double bar_fraction(const char *line)
{
	double least = -1;
	double found;

	for (const char *s = line; *s != '\0'; s++) {
		bool inside = s > line &&
			      (isalnum((unsigned char)s[-1]) || s[-1] == '.');

		if (inside || !pair(s, &found))
			continue;
		if (least < 0 || found < least)
			least = found;
	}
	return least > 1 ? 1 : least;
}

/* ---- Drawing ---- */

static size_t columns(void)
{
	struct winsize size;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
		return COLUMNS_DEFAULT;
	return size.ws_col < COLUMNS_MAX ? size.ws_col : COLUMNS_MAX;
}

static double fraction(const struct bar *bar)
{
	if (bar->total == 0)
		return bar->fraction;
	return (double)bar->done / (double)bar->total;
}

static int print_time(char *ret, size_t size, uint64_t s)
{
	if (s >= 3600)
		return snprintf(ret, size, "%llu:%02llu:%02llu",
				(unsigned long long)s / 3600,
				(unsigned long long)s / 60 % 60,
				(unsigned long long)s % 60);
	return snprintf(ret, size, "%llu:%02llu", (unsigned long long)s / 60,
			(unsigned long long)s % 60);
}

/* "1.9 of 4.0 GiB, 812.3 MiB/s, 0:02 left"; at the end how long it took. */
static void print_bytes(const struct bar *bar, bool end, char *ret, size_t size)
{
	uint64_t took_ms = clock_monotonic_ms() - bar->began_ms;
	uint64_t moved = bar->done - bar->base;
	char done[SAY_SIZE_MAX], total[SAY_SIZE_MAX], rate[SAY_SIZE_MAX];
	uint64_t per_s = took_ms > 0 ? moved * 1000 / took_ms : 0;
	char left[32] = "";

	say_size(bar->done, done);
	say_size(bar->total, total);
	say_size(per_s, rate);
	if (end)
		(void)print_time(left, sizeof(left), took_ms / 1000);
	else if (per_s > 0)
		(void)print_time(left, sizeof(left),
				 (bar->total - bar->done) / per_s);
	if (took_ms < RATE_MS_MIN || left[0] == '\0')
		(void)snprintf(ret, size, "%s of %s", done, total);
	else
		(void)snprintf(ret, size, "%s of %s, %s/s, %s%s%s", done, total,
			       rate, end ? "in " : "", left,
			       end ? "" : " left");
}

static void print_state(const struct bar *bar, bool end, char *ret, size_t size)
{
	uint64_t took_ms = clock_monotonic_ms() - bar->began_ms;
	size_t n;

	ret[0] = '\0';
	if (bar->total > 0) {
		print_bytes(bar, end, ret, size);
	} else if (bar->over) {
		n = (size_t)snprintf(ret, size, "done in ");
		(void)print_time(ret + n, size - n, took_ms / 1000);
	}
	/* A note that counts says the same. */
	n = strlen(ret);
	if (bar->note[0] != '\0' && (n == 0 || bar->fraction < 0))
		(void)snprintf(ret + n, size - n, "%s%s", n > 0 ? "; " : "",
			       bar->note);
}

static void draw_line(struct bar *bar, bool end)
{
	char state[BAR_NOTE_MAX + 128];

	print_state(bar, end, state, sizeof(state));
	(void)fprintf(stderr, "weightctl: %s: ", bar->title);
	say_plain(stderr, state);
	(void)fputc('\n', stderr);
}

/* As many as there is room for beside the words. */
static size_t cell_count(size_t width, size_t words)
{
	size_t others = words + sizeof(" [] 100% ");
	size_t room = width > others ? width - others : 0;

	if (room > CELLS_MAX)
		return CELLS_MAX;
	return room < CELLS_MIN ? CELLS_MIN : room;
}

/* "title [####....]  48% state", cut where the terminal ends. */
static void draw_bar(struct bar *bar, bool end)
{
	char state[BAR_NOTE_MAX + 128];
	char cells[CELLS_MAX + 1];
	char line[COLUMNS_MAX + 1];
	size_t width = columns();
	double part = fraction(bar);
	size_t count;

	print_state(bar, end, state, sizeof(state));
	count = cell_count(width, strlen(bar->title) + strlen(state));
	for (size_t i = 0; i < count; i++)
		cells[i] = (double)(i + 1) <= part * (double)count + 1e-9 ?
				   '#' :
				   '.';
	cells[count] = '\0';
	if (part < 0)
		(void)snprintf(line, sizeof(line), "%s: %s", bar->title, state);
	else
		(void)snprintf(line, sizeof(line), "%s [%s] %3d%% %s",
			       bar->title, cells, (int)(part * 100), state);
	/* The last column stays free: some terminals wrap there. */
	if (strlen(line) >= width)
		line[width > 1 ? width - 1 : 1] = '\0';
	(void)fputs("\r\033[K", stderr);
	say_plain(stderr, line);
	if (end)
		(void)fputc('\n', stderr);
	(void)fflush(stderr);
}

static void draw(struct bar *bar, bool end)
{
	bar->drawn_ms = clock_monotonic_ms();
	bar->shown = true;
	if (bar->terminal)
		draw_bar(bar, end);
	else
		draw_line(bar, end);
}

static void draw_if_due(struct bar *bar)
{
	uint64_t every = bar->terminal ? BAR_DRAW_MS : BAR_LINE_MS;

	if (!bar->quiet && clock_monotonic_ms() - bar->drawn_ms >= every)
		draw(bar, false);
}

/* ---- The interface ---- */

void bar_begin(struct bar *bar, const char *title, bool quiet)
{
	*bar = (struct bar){ .title = title, .quiet = quiet, .fraction = -1 };
	bar->terminal = isatty(STDERR_FILENO) == 1;
	bar->began_ms = clock_monotonic_ms();
	bar->drawn_ms = bar->began_ms;
}

void bar_bytes(struct bar *bar, uint64_t done, uint64_t total)
{
	if (!bar->based)
		bar->base = done;
	bar->based = true;
	bar->total = total;
	bar->done = done < total ? done : total;
	/* Should it go back, the rate begins anew. */
	if (bar->done < bar->base)
		bar->base = bar->done;
	draw_if_due(bar);
}

void bar_note(struct bar *bar, const char *line)
{
	size_t len = strlen(bar->title);

	/* The title stands before it anyway. */
	if (strncmp(line, bar->title, len) == 0 &&
	    strncmp(line + len, ", ", 2) == 0)
		line += len + 2;
	(void)snprintf(bar->note, sizeof(bar->note), "%s", line);
	bar->fraction = bar_fraction(bar->note);
	draw_if_due(bar);
}

void bar_step_aside(struct bar *bar)
{
	if (bar->terminal && bar->shown)
		(void)fputs("\r\033[K", stderr);
}

void bar_end(struct bar *bar, bool over)
{
	bool whole = bar->total > 0 && !bar->terminal;

	bar->over = over;
	if (over) {
		bar->done = bar->total;
		bar->fraction = 1;
		bar->note[0] = '\0';
	}
	if (!bar->quiet && (bar->shown || whole))
		draw(bar, true);
}
