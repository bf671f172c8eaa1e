#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#    include <malloc.h>
#endif

int pl_buf_reserve(pl_error *err, pl_buf *buf, size_t more)
{
    if (more >= SIZE_MAX / 2 - buf->size) return PL_FAIL_NOMEM(err);
    size_t need = buf->size + more + 1;
    if (need <= buf->capacity) return 0;
    size_t capacity = buf->capacity < 64 ? 64 : buf->capacity;
    while (capacity < need) capacity *= 2;
    char *data = realloc(buf->data, capacity);
    if (!data) return PL_FAIL_NOMEM(err);
    buf->data = data;
    buf->capacity = capacity;
    buf->data[buf->size] = 0;
    return 0;
}

int pl_buf_append(pl_error *err, pl_buf *buf, const void *bytes, size_t size)
{
    PL_TRY(pl_buf_reserve(err, buf, size));
    if (size) memcpy(buf->data + buf->size, bytes, size);
    buf->size += size;
    buf->data[buf->size] = 0;
    return 0;
}

int pl_buf_puts(pl_error *err, pl_buf *buf, const char *text)
{
    return pl_buf_append(err, buf, text, strlen(text));
}

int pl_buf_putc(pl_error *err, pl_buf *buf, char c)
{
    return pl_buf_append(err, buf, &c, 1);
}

static int append_formatted(pl_error *err, pl_buf *buf, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (n < 0) return PL_FAIL(err, PL_EBUG, "a format could not be printed: %s", format);
    PL_TRY(pl_buf_reserve(err, buf, (size_t)n));
    vsnprintf(buf->data + buf->size, (size_t)n + 1, format, args);
    buf->size += (size_t)n;
    return 0;
}

int pl_buf_printf(pl_error *err, pl_buf *buf, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int rc = append_formatted(err, buf, format, args);
    va_end(args);
    return rc;
}

void pl_buf_clear(pl_buf *buf)
{
    buf->size = 0;
    if (buf->data) buf->data[0] = 0;
}

void pl_buf_free(pl_buf *buf)
{
    free(buf->data);
    *buf = (pl_buf){0};
}

const char *pl_buf_text(const pl_buf *buf)
{
    return buf->data ? buf->data : "";
}

int pl_strndup(pl_error *err, const char *text, size_t size, char **out)
{
    char *copy = malloc(size + 1);
    if (!copy) return PL_FAIL_NOMEM(err);
    if (size) memcpy(copy, text, size);
    copy[size] = 0;
    *out = copy;
    return 0;
}

int pl_strdup(pl_error *err, const char *text, char **out)
{
    return pl_strndup(err, text, strlen(text), out);
}

int pl_format(pl_error *err, char **out, const char *format, ...)
{
    pl_buf buf = {0};
    va_list args;
    va_start(args, format);
    int rc = append_formatted(err, &buf, format, args);
    va_end(args);
    if (rc < 0) {
        pl_buf_free(&buf);
        return rc;
    }
    *out = buf.data;
    return 0;
}

int pl_calloc(pl_error *err, size_t count, size_t size, void *out)
{
    void *memory = calloc(count ? count : 1, size ? size : 1);
    if (!memory) return PL_FAIL_NOMEM(err);
    memcpy(out, &memory, sizeof memory);
    return 0;
}

int pl_grow(pl_error *err, void *items, size_t *capacity, size_t need, size_t element)
{
    if (need <= *capacity) return 0;
    size_t next = *capacity < 8 ? 8 : *capacity;
    while (next < need) {
        if (next > SIZE_MAX / 2) return PL_FAIL_NOMEM(err);
        next *= 2;
    }
    if (element && next > SIZE_MAX / element) return PL_FAIL_NOMEM(err);
    void *old;
    memcpy(&old, items, sizeof old);
    void *memory = realloc(old, next * element);
    if (!memory) return PL_FAIL_NOMEM(err);
    memcpy(items, &memory, sizeof memory);
    *capacity = next;
    return 0;
}

void pl_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
