/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes, as a configuration file and as mount options: a refusal has its
 * sentence and changes nothing, and what is accepted can be printed and read
 * back.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/cleanup.h"
#include "core/config.h"
#include "fuzz.h"

#define REQUIRE(cond)                                                          \
	do {                                                                   \
		if (!(cond))                                                   \
			abort();                                               \
	} while (0)

static void require_sentence(const struct buf *why)
{
	REQUIRE(why->len > 0 && strlen(why->data) == why->len);
	for (size_t i = 0; i < why->len; i++)
		REQUIRE((unsigned char)why->data[i] >= ' ');
}

/* Prints cfg as a file would say it, which is without the last line. */
static void print(const struct config *cfg, struct buf *text)
{
	REQUIRE(config_print(cfg, text) == 0);
	text->len =
		(size_t)(strstr(text->data, "\nconfig = ") - text->data) + 1;
	text->data[text->len] = '\0';
}

static void require_round_trip(const struct config *cfg)
{
	cleanup(buf_release) struct buf first = BUF_INIT, second = BUF_INIT;
	struct config again;

	print(cfg, &first);
	config_init(&again);
	REQUIRE(config_parse_text(&again, "again", first.data, first.len,
				  NULL) == 0);
	print(&again, &second);
	REQUIRE(strcmp(first.data, second.data) == 0);
}

static void require_defaults(const struct config *cfg)
{
	cleanup(buf_release) struct buf first = BUF_INIT, second = BUF_INIT;
	struct config fresh;

	config_init(&fresh);
	print(cfg, &first);
	print(&fresh, &second);
	REQUIRE(strcmp(first.data, second.data) == 0);
}

static void check(int r, const struct config *cfg, const struct buf *why)
{
	if (r == 0) {
		REQUIRE(why->len == 0);
		require_round_trip(cfg);
	} else {
		require_sentence(why);
		require_defaults(cfg);
	}
}

/* A list that names a file would make the target read it. */
static bool names_a_file(const char *list)
{
	static const char name[] = "config";
	size_t matched = 0;

	for (; *list && name[matched]; list++) {
		if (*list == '\\')
			continue;
		if (*list == name[matched])
			matched++;
		else
			matched = *list == name[0];
	}
	return name[matched] == '\0';
}

static void try_list(const char *list)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct config cfg;

	if (names_a_file(list))
		return;
	config_init(&cfg);
	check(config_parse_list(&cfg, list, &why), &cfg, &why);
}

static void try_one(const char *assignment)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct config cfg;

	config_init(&cfg);
	check(config_set(&cfg, assignment, &why), &cfg, &why);
}

static void try_text(const char *text, size_t len)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct config cfg;

	config_init(&cfg);
	check(config_parse_text(&cfg, "input", text, len, &why), &cfg, &why);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_free char *text = malloc(size + 1);

	if (!text)
		return 0;
	if (size)
		memcpy(text, data, size);
	text[size] = '\0';
	try_text(text, size);
	if (!memchr(text, '\0', size)) {
		try_list(text);
		try_one(text);
	}
	return 0;
}
