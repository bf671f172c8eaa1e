/* What to write on from: the prompts of a configuration, as tokens. */
#ifndef PL_API_PROMPTS_H
#define PL_API_PROMPTS_H

#include "api/data.h"
#include "infer/generate.h"

typedef struct pl_prompt_text {
    char *where;          /* "the prompt", "prompt 2", "FILE:7: the prompt": for messages */
    pl_buf text;          /* as it was given; empty where it was messages */
    bool chat;            /* put into a chat template: what is written stands alone, and does not go on from the text */
    bool messages;        /* it was no text, but a conversation */
    pl_tokens tokens;     /* at least one */
    json_t *conversation; /* to be rendered; NULL once there are tokens, or for a plain text */
    json_t *tools;        /* the same */
} pl_prompt_text;

typedef struct pl_prompt_list {
    pl_prompt_text *items;
    size_t count, capacity;
} pl_prompt_list;

/* Reads --prompt, or the file of --prompts: .txt has one a line, .jsonl and .json objects with a field `prompt` (a
   text, or messages) or `messages`, and `tools` beside it. Empty lines are skipped. PL_EINPUT with file and line. */
int pl_prompts_open(pl_error *err, const pl_config *config, const pl_texts *texts, pl_prompt_list *list);
void pl_prompts_close(pl_prompt_list *list); /* {0} is fine */

#endif
