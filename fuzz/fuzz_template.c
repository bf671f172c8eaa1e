/* A chat template from anywhere: parsing and rendering it must end in a text or a message, never in a crash. */
#include <stdint.h>

#include "data/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pl_error err = {0};
    pl_template *t = NULL;
    pl_buf out = {0};
    pl_pieces pieces = {0};
    json_t *context = json_pack("{s:[{s:s, s:s}, {s:s, s:[{s:s, s:s}]}], s:n, s:b, s:{s:i, s:f}, s:s}", "messages",
        "role", "user", "content", "Grüße, <b>\n", "role", "assistant", "content", "type", "text", "text", "x", "tools",
        "add_generation_prompt", 1, "d", "a", 1, "b", 2.5, "strftime_now", "2026-01-15T12:00:00");
    if (context && pl_template_parse(&err, "fuzz", (const char *)data, size, &t) == 0)
        pl_template_render(&err, t, context, &out, &pieces);
    pl_template_free(t);
    pl_buf_free(&out);
    pl_pieces_free(&pieces);
    json_decref(context);
    return 0;
}
