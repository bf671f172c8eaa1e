/* UTF-8: checking, reading and writing code points. */
#ifndef PL_BASE_UTF8_H
#define PL_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* How many leading bytes of text are well-formed UTF-8 (Unicode 15, table 3-7: no overlong forms, no surrogates,
   nothing above U+10FFFF); `size` when all of it is. A sequence that is cut short at the end does not count. */
size_t pl_utf8_check(const char *text, size_t size);

/* Bytes of the code point whose first byte is `lead`; the text must have been checked. */
static inline size_t pl_utf8_length(unsigned char lead)
{
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* The code point at text[*at], which must have been checked; moves *at behind it. */
static inline int32_t pl_utf8_next(const char *text, size_t *at)
{
    const unsigned char *p = (const unsigned char *)text + *at;
    if (p[0] < 0x80) {
        *at += 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *at += 2;
        return (p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    }
    if (p[0] < 0xF0) {
        *at += 3;
        return (p[0] & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    }
    *at += 4;
    return (p[0] & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | (p[3] & 0x3F);
}

/* Writes the code point (0..0x10FFFF) to out[4] and returns how many bytes it took. */
size_t pl_utf8_put(char *out, int32_t codepoint);

#endif
