/* A growing byte buffer that is always zero-terminated, so that it serves as a string too. */
#ifndef PL_BASE_BUF_H
#define PL_BASE_BUF_H

#include <stddef.h>

#include "base/error.h"

typedef struct pl_buf {
    char *data; /* NULL until the first append; data[size] is 0 */
    size_t size, capacity;
} pl_buf;

/* All of them: PL_ENOMEM when memory runs out, and then the buffer is as it was. */
int pl_buf_reserve(pl_error *err, pl_buf *buf, size_t more);
int pl_buf_append(pl_error *err, pl_buf *buf, const void *bytes, size_t size);
int pl_buf_puts(pl_error *err, pl_buf *buf, const char *text);
int pl_buf_putc(pl_error *err, pl_buf *buf, char c);
int pl_buf_printf(pl_error *err, pl_buf *buf, const char *format, ...) __attribute__((format(printf, 3, 4)));
void pl_buf_clear(pl_buf *buf); /* keeps the memory */
void pl_buf_free(pl_buf *buf);  /* the buffer is empty and usable afterwards */
/* The text, never NULL ("" while empty). */
const char *pl_buf_text(const pl_buf *buf);

/* A copy of text[0..size) with a terminating 0 into *out; the caller frees. */
int pl_strndup(pl_error *err, const char *text, size_t size, char **out);
int pl_strdup(pl_error *err, const char *text, char **out);
/* A formatted string into *out; the caller frees. */
int pl_format(pl_error *err, char **out, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* calloc(count, size) into *out (void **), PL_ENOMEM on overflow or refusal; count 0 gives a valid pointer. */
int pl_calloc(pl_error *err, size_t count, size_t size, void *out);
/* Gives memory that was freed back to the system, where the C library would keep it. */
void pl_trim(void);
/* Makes room for at least `need` elements in the array *items (of capacity *capacity), by doubling. */
int pl_grow(pl_error *err, void *items, size_t *capacity, size_t need, size_t element);

#endif
