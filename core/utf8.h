/* SPDX-License-Identifier: Apache-2.0 */
/* Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef CORE_UTF8_H
#define CORE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the first character of s, with its code point in *ret, or 0. */
static inline size_t utf8_decode(const char *s, size_t len, uint32_t *ret)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	uint8_t lead = len ? (uint8_t)*s : 0xff;
	uint32_t point;
	size_t need;

	if (lead < 0x80) {
		*ret = lead;
		return 1;
	}
	if (lead < 0xc2 || lead > 0xf4)
		return 0;
	need = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
	if (need > len)
		return 0;
	point = lead & (0x7fU >> need);
	for (size_t i = 1; i < need; i++) {
		if (((uint8_t)s[i] & 0xc0) != 0x80)
			return 0;
		point = point << 6 | ((uint8_t)s[i] & 0x3f);
	}
	if (point < least[need] || point > 0x10ffff ||
	    (point >= 0xd800 && point <= 0xdfff))
		return 0;
	*ret = point;
	return need;
}

static inline bool utf8_valid(const char *s, size_t len)
{
	uint32_t point;

	while (len) {
		size_t n = utf8_decode(s, len, &point);

		if (n == 0)
			return false;
		s += n;
		len -= n;
	}
	return true;
}

#endif
