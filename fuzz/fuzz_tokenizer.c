/* libFuzzer target: a tokenizer.json, and after a zero byte a text to encode with it. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const pl_tokenizer *t, const char *text, size_t size)
{
    pl_error err = {0};
    pl_tokens plain = {0}, spanned = {.spans = true};
    pl_buf decoded = {0};
    int rc = pl_tokenizer_encode(&err, t, text, size, true, &plain);
    pl_error_clear(&err);
    int spanned_rc = pl_tokenizer_encode(&err, t, text, size, true, &spanned);
    if (rc != spanned_rc || plain.count != spanned.count) abort();
    if (plain.count && memcmp(plain.ids, spanned.ids, plain.count * sizeof *plain.ids)) abort();
    for (size_t i = 0; i < spanned.count; i++) {
        if (spanned.begin[i] > spanned.end[i] || spanned.end[i] > (int64_t)size) abort();
    }
    pl_error_clear(&err);
    if (pl_tokenizer_decode(&err, t, plain.ids, plain.count, false, &decoded) < 0) abort();
    pl_buf_free(&decoded);
    pl_tokens_free(&plain);
    pl_tokens_free(&spanned);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char sample[] = " Once upon a time,\n there\xE2\x80\x99s <s> 123 \xE4\xBD\xA0\xE5\xA5\xBD e\xCC\x81 ";
    const char *json = (const char *)data;
    size_t json_size = strnlen(json, size);
    pl_error err = {0};
    pl_tokenizer *t;
    if (pl_tokenizer_parse(&err, "fuzz", json, json_size, &t) < 0) return 0;
    use(t, sample, sizeof sample - 1);
    if (json_size < size) use(t, json + json_size + 1, size - json_size - 1);
    pl_tokenizer_close(t);
    return 0;
}
