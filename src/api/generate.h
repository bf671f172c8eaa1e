/* Text from a model, from its configuration to what a reader sees. */
#ifndef PL_API_GENERATE_H
#define PL_API_GENERATE_H

#include "api/config.h"
#include "base/log.h"

typedef struct pl_writer_sink {
    void *user;
    bool (*text)(void *user, const char *bytes, size_t size); /* whole characters, as they come; false ends it */
} pl_writer_sink;

typedef struct pl_generate_result {
    int64_t prompt_tokens, new_tokens;
    double prompt_s, write_s; /* until the first token, and for all others */
} pl_generate_result;

/* Writes on from `prompt` as config->generate says (with chat: as an answer to it, by the model's template). */
int pl_generate_text(pl_error *err, const pl_log *log, pl_config *config, const char *prompt,
    const pl_writer_sink *sink, pl_generate_result *result);

#endif
