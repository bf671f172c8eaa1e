/* A model's own chat template: conversations to text, and which bytes of it the assistant wrote. */
#ifndef PL_DATA_CHAT_H
#define PL_DATA_CHAT_H

#include "data/template.h"

typedef struct pl_chat pl_chat; /* immutable after pl_chat_set: many threads may render at once */

/* Reads the template of a model's folder: chat_template.jinja, else chat_template in tokenizer_config.json (a text, or
   a list of {name, template} of which "default" is meant, and "tool_use" when there are tools), else
   chat_template.json. The special tokens (bos_token, eos_token...) come from tokenizer_config.json, else
   special_tokens_map.json, else they are those that transformers' class of this tokenizer has by itself. *out is NULL
   where the folder has no template. The caller frees. */
int pl_chat_open(pl_error *err, const char *folder, pl_chat **out);
/* The same with the template of a file, and of the folder the special tokens alone. */
int pl_chat_from_file(pl_error *err, const char *folder, const char *path, pl_chat **out);
/* A template given as text; `special` (may be NULL) is an object of special tokens. */
int pl_chat_from_text(
    pl_error *err, const char *where, const char *text, size_t size, const json_t *special, pl_chat **out);
void pl_chat_free(pl_chat *chat); /* NULL is fine */

/* One more variable for the template, like enable_thinking or strftime_now; replaces what it had under that name. */
int pl_chat_set(pl_error *err, pl_chat *chat, const char *name, const json_t *value);

/* The same hash, the same renderings, the date aside: of the templates' texts and the variables. */
int pl_chat_hash(pl_error *err, const pl_chat *chat, uint64_t *out);

/* Appends the text of a conversation: `messages` is a list of {role, content, ...}, `tools` a list of tools or NULL. */
int pl_chat_render(pl_error *err, const pl_chat *chat, const json_t *messages, const json_t *tools,
    bool add_generation_prompt, pl_buf *out);

/* The same without a generation prompt, and the spans of it (counted from the start of what is appended) that the
   assistant writes: each turn from where the generation prompt ends, to its end-of-turn token, which is included; a
   line break behind that token is not. What tools answer in between is not, where a template writes it within the turn
   that calls them. Found by {% generation %} where the template has it; otherwise by what the template writes while it
   goes through a message, and by rendering the conversation up to a turn, with a generation prompt and with the turn.
   Where the turn's place stays unclear, or the template writes nothing of it: PL_EUNSUPPORTED, never a guess. */
int pl_chat_render_trained(
    pl_error *err, const pl_chat *chat, const json_t *messages, const json_t *tools, pl_buf *out, pl_spans *trained);

#endif
