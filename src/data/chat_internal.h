/* Shared by chat.c and chat_trained.c. */
#ifndef PL_DATA_CHAT_INTERNAL_H
#define PL_DATA_CHAT_INTERNAL_H

#include "data/chat.h"

struct pl_chat {
    pl_template *plain, *tool_use; /* tool_use may be NULL */
    json_t *variables;             /* special tokens and what pl_chat_set gave */
    char *where;
};

/* Renders and, with `pieces` not NULL, tells where the text comes from. */
int pl_chat_render_pieces(pl_error *err, const pl_chat *chat, const json_t *messages, const json_t *tools,
    bool add_generation_prompt, pl_buf *out, pl_pieces *pieces);
const pl_template *pl_chat_template(const pl_chat *chat, const json_t *tools);

#endif
